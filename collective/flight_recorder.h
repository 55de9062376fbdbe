/* flight_recorder.h - the flight recorder: the last operations of an engine, whatever group they belong to.
 *
 * One record per posted operation, in a ring of fixed memory (112 bytes each). The owner of the engine
 * writes: at the post, at the first step, every half second while the operation waits (phase, peer), and at
 * its end; a record costs a few stores and nothing allocates. Any thread reads, at any time, also while the
 * engine is stuck: each record is a sequence lock, and one that is being written in this instant is left out.
 *
 * base/event_ring.h keeps what happens *once* (a begin, an end, a lost peer) and is the source of the
 * Perfetto trace; a record here *changes* while its operation waits, and that is what tells who is late. A
 * dump holds both. */
#ifndef WEFT_COLLECTIVE_FLIGHT_RECORDER_H
#define WEFT_COLLECTIVE_FLIGHT_RECORDER_H

#include <stdint.h>
#include <stdio.h>

#include "base/base.h"

#define WEFT_RECORD_OPERATIONS 2000u /* kept by default */
#define WEFT_RECORD_NO_PEER UINT32_MAX

struct weft_record {
    uint64_t sequence, count;     /* number in its group; elements, as the header of its messages says */
    uint64_t steps;               /* of its plan, that are over */
    uint64_t posted_ns, started_ns, ended_ns; /* the env's clock; 0: not yet; all the same: a short one
                                               * that waited for nobody */
    const char *phase;            /* static text: "posted", "greeting", "reducing", ...; the last one for
                                   * ever */
    uint32_t group, epoch, rank, ranks, root;
    uint32_t members_hash;             /* the same number on the members of one group: groups without a
                                        * common rank may share an id */
    uint32_t peer;                /* rank in the group that it waits for, or waited for last;
                                   * WEFT_RECORD_NO_PEER */
    int32_t status;               /* enum weft_status; WEFT_IN_PROGRESS until it ends */
    uint8_t kind, dtype, op, plan;
};

struct weft_recorder;

/* WEFT_ERR_INVALID: capacity 0 or absurd. */
enum weft_status weft_recorder_create(struct weft_env *env, uint32_t capacity,
                                      struct weft_recorder **recorder_out);
void weft_recorder_free(struct weft_recorder *recorder); /* NULL is fine; no group uses it any more */
/* Keep a new record; returns its number. Owner's thread. NULL recorder: does nothing, as the next. */
uint64_t weft_recorder_add(struct weft_recorder *recorder, const struct weft_record *record);
/* Write record `number` anew, unless it has been overwritten by later ones. Owner's thread. */
void weft_recorder_update(struct weft_recorder *recorder, uint64_t number, const struct weft_record *record);
/* Of record `number` only this is new: it has ended well. */
void weft_recorder_end(struct weft_recorder *recorder, uint64_t number, uint64_t ended_ns);
/* Copy record `number`; false: it is overwritten, not there yet, or being written just now. Any thread. */
bool weft_recorder_read(struct weft_recorder *recorder, uint64_t number, struct weft_record *record_out);
uint64_t weft_recorder_count(struct weft_recorder *recorder);    /* records ever added; any thread */
uint32_t weft_recorder_capacity(const struct weft_recorder *recorder);
/* Keep the lengths of unequal pieces beside the records of calls that have them, in a ring of so many
 * numbers; before any other thread knows of the recorder. WEFT_ERR_INVALID: absurd. */
enum weft_status weft_recorder_keep_lengths(struct weft_recorder *recorder, uint64_t numbers);
/* Record `number` has these, in elements: (in_count,) and (out_count,). Nothing is kept where
 * weft_recorder_keep_lengths was not called, and what does not fit the ring is not kept either. Owner's
 * thread. NULL recorder: does nothing. */
void weft_recorder_lengths(struct weft_recorder *recorder, uint64_t number, const uint64_t *in,
                           uint32_t in_count, const uint64_t *out, uint32_t out_count);
/* `"recorded":N,"capacity":N,"operations":[...]`, oldest first, without braces around. Any thread. */
void weft_recorder_dump(struct weft_recorder *recorder, FILE *out);

#endif
