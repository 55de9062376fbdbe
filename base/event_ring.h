/* event_ring.h - the last N events of one engine, fixed memory, written by its one thread.
 * The flight recorder (JSON) and the Perfetto trace are two dumps of this ring. Writing is a few
 * stores; nothing allocates. A dump from another thread may see the newest entry half written and
 * leaves it out (each slot carries its sequence number before and after). */
#ifndef WEFT_BASE_EVENT_RING_H
#define WEFT_BASE_EVENT_RING_H

#include <stdint.h>
#include <stdio.h>

#include "base/env.h"
#include "weft/status.h"

/* BOTH: a BEGIN and an END at the same time, in one entry; dumped as two. */
enum weft_event_phase { WEFT_EVENT_BEGIN = 1, WEFT_EVENT_END = 2, WEFT_EVENT_MARK = 3, WEFT_EVENT_BOTH = 4 };

struct weft_event {
    uint64_t time_ns;
    const char *name;      /* static text: "all_reduce", "push", "peer_lost" */
    uint8_t phase;         /* enum weft_event_phase */
    int16_t status;        /* enum weft_status, of an END */
    uint32_t peer;         /* endpoint id, or UINT32_MAX */
    uint64_t id;           /* operation or chunk: pairs BEGIN with END */
    uint64_t bytes;
};

struct weft_event_ring;
enum weft_status weft_event_ring_create(struct weft_env *env, uint32_t capacity,
                                        struct weft_event_ring **ring_out);
void weft_event_ring_free(struct weft_event_ring *ring);
/* NULL ring: does nothing. Owner thread only. */
void weft_event_ring_add(struct weft_event_ring *ring, const char *name, enum weft_event_phase phase,
                         uint64_t id, uint32_t peer, uint64_t bytes, enum weft_status status);
/* The same at a time that the caller has read already. */
void weft_event_ring_add_at(struct weft_event_ring *ring, uint64_t time_ns, const char *name,
                            enum weft_event_phase phase, uint64_t id, uint32_t peer, uint64_t bytes,
                            enum weft_status status);
/* Oldest first. The writer is any stdio stream; WEFT_ERR_IO with errno kept when it refuses. */
enum weft_status weft_event_ring_dump_json(struct weft_event_ring *ring, const char *engine, FILE *out);
enum weft_status weft_event_ring_dump_perfetto(struct weft_event_ring *ring, const char *engine, int pid,
                                               FILE *out);

#endif
