/* event_ring.h - the last N events of one engine, in fixed memory; written by one thread.
 *
 * The flight recorder (JSON) and the Perfetto trace are dumps of it. A write is a few stores and allocates
 * nothing. A dump on another thread leaves out an entry that is being written. */
#ifndef WEFT_BASE_EVENT_RING_H
#define WEFT_BASE_EVENT_RING_H

#include <stdint.h>
#include <stdio.h>

#include "base/env.h"
#include "weft/status.h"

/* BOTH: BEGIN and END at the same time in one entry; dumped as two. */
enum weft_event_phase { WEFT_EVENT_BEGIN = 1, WEFT_EVENT_END = 2, WEFT_EVENT_MARK = 3, WEFT_EVENT_BOTH = 4 };

struct weft_event {
    uint64_t time_ns;
    const char *name;      /* static text: "all_reduce", "push", "peer_lost" */
    uint8_t phase;         /* enum weft_event_phase */
    int16_t status;        /* enum weft_status of an END */
    uint32_t peer;         /* endpoint id; UINT32_MAX: none */
    uint64_t id;           /* operation or chunk; pairs BEGIN with END */
    uint64_t bytes;
};

struct weft_event_ring;
enum weft_status weft_event_ring_create(struct weft_env *env, uint32_t capacity,
                                        struct weft_event_ring **ring_out);
void weft_event_ring_free(struct weft_event_ring *ring);
/* No effect if ring is NULL. Owner thread only. */
void weft_event_ring_add(struct weft_event_ring *ring, const char *name, enum weft_event_phase phase,
                         uint64_t id, uint32_t peer, uint64_t bytes, enum weft_status status);
/* The same with a time that the caller has read. */
void weft_event_ring_add_at(struct weft_event_ring *ring, uint64_t time_ns, const char *name,
                            enum weft_event_phase phase, uint64_t id, uint32_t peer, uint64_t bytes,
                            enum weft_status status);
/* Oldest first. WEFT_ERR_IO: the stream failed; errno is kept. */
enum weft_status weft_event_ring_dump_json(struct weft_event_ring *ring, const char *engine, FILE *out);
enum weft_status weft_event_ring_dump_perfetto(struct weft_event_ring *ring, const char *engine, int pid,
                                               FILE *out);

#endif
