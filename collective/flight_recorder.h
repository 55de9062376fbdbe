/* flight_recorder.h - the last operations of an engine, of all its groups.
 *
 * One record per posted operation, in a ring of fixed memory. The owner of the engine writes a record at the
 * post, at the first step, every half second while the operation waits (phase, peer), and at its end. A write
 * is a few stores and allocates nothing. Any thread reads at any time, also while the engine hangs: each
 * record is a seqlock, and a reader skips a record that is being written.
 *
 * base/event_ring.h stores events (a begin, an end, a lost peer) for the Perfetto trace. A record here
 * changes while its operation waits and so shows the late rank. A dump holds both. */
#ifndef WEFT_COLLECTIVE_FLIGHT_RECORDER_H
#define WEFT_COLLECTIVE_FLIGHT_RECORDER_H

#include <stdint.h>
#include <stdio.h>

#include "base/base.h"

#define WEFT_RECORD_OPERATIONS 2000u /* default capacity */
#define WEFT_RECORD_NO_PEER UINT32_MAX

struct weft_record {
    uint64_t sequence, count;     /* number in its group; elements, as in the header of its messages */
    uint64_t steps;               /* completed steps of its plan */
    /* clock of the env; 0: not yet. All equal: a short operation that did not wait */
    uint64_t posted_ns, started_ns, ended_ns;
    /* static text: "posted", "greeting", "reducing", ...; stays after the end */
    const char *phase;
    uint32_t group, epoch, rank, ranks, root;
    /* hash of the members: groups without a common rank may have equal ids */
    uint32_t members_hash;
    /* rank in the group that it waits for, or waited for last; WEFT_RECORD_NO_PEER: none */
    uint32_t peer;
    int32_t status;               /* enum weft_status; WEFT_IN_PROGRESS until it ends */
    uint8_t kind, dtype, op, plan;
};

struct weft_recorder;

/* WEFT_ERR_INVALID: capacity 0 or too large. */
enum weft_status weft_recorder_create(struct weft_env *env, uint32_t capacity,
                                      struct weft_recorder **recorder_out);
void weft_recorder_free(struct weft_recorder *recorder); /* NULL is fine; no group uses it */
/* Adds a record and returns its number. Owner's thread. A NULL recorder does nothing, here and below. */
uint64_t weft_recorder_add(struct weft_recorder *recorder, const struct weft_record *record);
/* Replaces record `number` unless a later record has overwritten it. Owner's thread. */
void weft_recorder_update(struct weft_recorder *recorder, uint64_t number, const struct weft_record *record);
/* Sets the end time and status WEFT_OK of record `number`. */
void weft_recorder_end(struct weft_recorder *recorder, uint64_t number, uint64_t ended_ns);
/* Copies record `number`. Returns false if it is overwritten, not written yet, or being written. Any
 * thread. */
bool weft_recorder_read(struct weft_recorder *recorder, uint64_t number, struct weft_record *record_out);
uint64_t weft_recorder_count(struct weft_recorder *recorder);    /* records added so far; any thread */
uint32_t weft_recorder_capacity(const struct weft_recorder *recorder);
/* Stores the lengths of unequal pieces beside the records, in a ring of `numbers` numbers. Call it before
 * another thread uses the recorder. WEFT_ERR_INVALID: numbers is 0 or too large. */
enum weft_status weft_recorder_keep_lengths(struct weft_recorder *recorder, uint64_t numbers);
/* Stores the piece lengths of record `number`, in elements: (in_count,) and (out_count,). Without
 * weft_recorder_keep_lengths, or if they do not fit into the ring, it does nothing. Owner's thread. */
void weft_recorder_lengths(struct weft_recorder *recorder, uint64_t number, const uint64_t *in,
                           uint32_t in_count, const uint64_t *out, uint32_t out_count);
/* Writes `"recorded":N,"capacity":N,"operations":[...]`, oldest first, without braces around it. Any
 * thread. */
void weft_recorder_dump(struct weft_recorder *recorder, FILE *out);

#endif
