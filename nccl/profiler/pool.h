/* pool.h - records of NCCL's events, in a fixed number of slots. No call waits or allocates.
 *
 *     FREE --event_open--> OPEN --event_close--> CLOSED --pool_drain--> FREE
 *
 * A handle is generation and slot, so that a handle of an earlier event in the slot is recognised: NCCL
 * starts the children of a collective after it has stopped the collective. A handle from another process is
 * checked in the same way, and never dereferenced. */
#ifndef WEFT_NCCL_PROFILER_POOL_H
#define WEFT_NCCL_PROFILER_POOL_H

#include <stdbool.h>

#include "nccl/abi/profiler_v5.h"

enum { POOL_SLOTS = 8192, POOL_DRAIN_AT = 256 };

enum event_wait { EVENT_WAIT_NONE, EVENT_WAIT_GPU, EVENT_WAIT_PEER, EVENT_WAIT_NETWORK, EVENT_WAIT_COUNT };

struct profiler_event {
    enum nccl_profile type;
    uint32_t comm; /* index */
    uint64_t begin_ns, end_ns;
    uint64_t sequence; /* of the collective, also for its children */
    const char *name;  /* static text of NCCL: of the collective or call, also for its children */
    const char *dtype, *algorithm, *protocol; /* NULL: none */
    uint64_t count, bytes, chunk_bytes;
    int peer, channel, steps, step, root; /* -1: none */
    bool is_send;
    enum event_wait waits; /* what a step waits for now, since waits_since_ns */
    uint64_t waits_since_ns, waited_ns[EVENT_WAIT_COUNT];
    uint64_t gpu_begin_ns, gpu_end_ns; /* GPU's clock; 0: unknown */
};

/* A free slot; NULL: none, counted as dropped. *handle_out is for NCCL. */
struct profiler_event *pool_open(void **handle_out);
/* Sets what children of this event copy: before NCCL gets the handle. */
void pool_publish(struct profiler_event *event);
/* The open event of a handle; NULL: a handle of another process or of an earlier event. */
struct profiler_event *pool_find(void *handle);
/* Copies comm, sequence and name of the parent; false: it is not known. */
bool pool_inherit(void *parent, struct profiler_event *event);
/* The event has its end; true: enough events are closed that they should be drained. */
bool pool_close(struct profiler_event *event);
/* Calls write(event) for each closed event and frees its slot. One thread at a time. */
void pool_drain(void (*write)(void *context, const struct profiler_event *event), void *context);
uint64_t pool_dropped(void); /* events that found no slot so far */

#endif
