/* profiler.c - NCCL's profiler table: which collective, which step of it, and what the step waits for, as
 * spans of a trace file (base/trace/trace_file.h) that `weft trace merge` joins with those of endpoints.
 *
 *     NCCL's threads --start, state, stop--> pool.c (slots) --drained by a stop or finalize--> trace file
 *
 * Without nccl.trace the activation mask is 0, and NCCL reports nothing. Contexts are small numbers: a proxy
 * that serves another process passes that process's context and parents. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl/net/net.h"
#include "nccl/profiler/pool.h"
#include "nccl/profiler/profiler.h"

enum { COMMS_MAX = 256, ARGUMENT_BYTES = 320 };
#define MASK                                                                                        \
    (NCCL_PROFILE_COLLECTIVE | NCCL_PROFILE_P2P | NCCL_PROFILE_PROXY_OP | NCCL_PROFILE_PROXY_STEP | \
     NCCL_PROFILE_KERNEL)
/* the viewer's process number: beyond those of endpoints */
#define TRACE_ID_BASE 0x4e000000u
#define TRACE_BYTES_MAX ((uint64_t)1 << 30)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the file; only tried by NCCL's threads */
static struct weft_trace *trace; /* open until the process ends, because communicators may be made again */
static uint64_t comm_ids[COMMS_MAX];
static _Atomic uint32_t comm_count;

/* ---- writing ---- */

static void add_text(char *out, const char *key, const char *text)
{
    const size_t used = strlen(out);
    if (text) snprintf(out + used, ARGUMENT_BYTES - used, ",\"%s\":\"%.24s\"", key, text);
}

static void add_number(char *out, const char *key, uint64_t number)
{
    const size_t used = strlen(out);
    snprintf(out + used, ARGUMENT_BYTES - used, ",\"%s\":%" PRIu64, key, number);
}

static void describe_step(char *out, const struct profiler_event *event)
{
    add_number(out, "step", (uint64_t)event->step);
    add_number(out, "bytes", event->bytes);
    add_number(out, "gpu_wait_us", event->waited_ns[EVENT_WAIT_GPU] / 1000);
    add_number(out, "peer_wait_us", event->waited_ns[EVENT_WAIT_PEER] / 1000);
    add_number(out, "network_us", event->waited_ns[EVENT_WAIT_NETWORK] / 1000);
}

static const char *span_name(const struct profiler_event *event)
{
    switch (event->type) {
    case NCCL_PROFILE_PROXY_OP: return event->is_send ? "send" : "recv";
    case NCCL_PROFILE_PROXY_STEP: return event->is_send ? "send step" : "recv step";
    case NCCL_PROFILE_KERNEL: return "kernel";
    default: return event->name ? event->name : "call";
    }
}

static void write_event(void *context, const struct profiler_event *event)
{
    char arguments[ARGUMENT_BYTES];
    snprintf(arguments, sizeof arguments, "\"comm\":\"%016" PRIx64 "\",\"sequence\":%" PRIu64,
             event->comm < COMMS_MAX ? comm_ids[event->comm] : 0, event->sequence);
    if (event->type >= NCCL_PROFILE_PROXY_OP) add_text(arguments, "of", event->name);
    if (event->channel >= 0) add_number(arguments, "channel", (uint64_t)event->channel);
    if (event->peer >= 0) add_number(arguments, "peer", (uint64_t)event->peer);
    if (event->type == NCCL_PROFILE_COLLECTIVE || event->type == NCCL_PROFILE_P2P)
        add_number(arguments, "count", event->count);
    add_text(arguments, "dtype", event->dtype);
    add_text(arguments, "algorithm", event->algorithm);
    add_text(arguments, "protocol", event->protocol);
    if (event->type == NCCL_PROFILE_PROXY_OP) {
        add_number(arguments, "steps", (uint64_t)event->steps);
        add_number(arguments, "chunk_bytes", event->chunk_bytes);
    }
    if (event->type == NCCL_PROFILE_PROXY_STEP) describe_step(arguments, event);
    if (event->gpu_end_ns > event->gpu_begin_ns && event->gpu_begin_ns > 0)
        add_number(arguments, "gpu_us", (event->gpu_end_ns - event->gpu_begin_ns) / 1000);
    weft_trace_range(context, span_name(event), event->type == NCCL_PROFILE_KERNEL ? "nccl gpu" : "nccl",
                     event->channel >= 0 ? (uint32_t)event->channel + 1 : 0, event->begin_ns, event->end_ns,
                     arguments);
}

/* ---- communicators ---- */

/* With the lock held. Index of the communicator; COMMS_MAX: no trace. */
static uint32_t comm_add(uint64_t comm_id, int ranks, int rank)
{
    struct net_process *process = net_process();
    const uint32_t count = atomic_load(&comm_count);
    for (uint32_t i = 0; i < count; i++)
        if (comm_ids[i] == comm_id) return i;
    if (count == COMMS_MAX) return COMMS_MAX;
    if (!trace) {
        char title[64];
        snprintf(title, sizeof title, "NCCL rank %d of %d", rank, ranks);
        trace = weft_trace_open(&process->env, process->trace, TRACE_BYTES_MAX,
                                TRACE_ID_BASE + (uint32_t)rank, title);
    }
    if (!trace) return COMMS_MAX;
    comm_ids[count] = comm_id;
    atomic_store(&comm_count, count + 1);
    return count;
}

static enum nccl_result open_comm(void **context_out, uint64_t comm_id, int *mask_out, int ranks, int rank,
                                  nccl_logger_fn logger)
{
    *context_out = NULL;
    *mask_out = 0;
    /* a job must not fail for its trace: the sentence is in the log */
    if (net_process_init(logger) != NCCL_RESULT_SUCCESS || !net_process()->trace[0])
        return NCCL_RESULT_SUCCESS;
    pthread_mutex_lock(&lock);
    const uint32_t comm = comm_add(comm_id, ranks, rank);
    pthread_mutex_unlock(&lock);
    if (comm == COMMS_MAX) return NCCL_RESULT_SUCCESS;
    *context_out = (void *)((uintptr_t)comm + 1);
    *mask_out = MASK;
    return NCCL_RESULT_SUCCESS;
}

static void drain_if_free(void)
{
    if (pthread_mutex_trylock(&lock) != 0) return;
    if (trace) pool_drain(write_event, trace);
    pthread_mutex_unlock(&lock);
}

static enum nccl_result finalize(void *context)
{
    static uint64_t reported;
    if (!context) return NCCL_RESULT_SUCCESS;
    pthread_mutex_lock(&lock);
    if (trace) {
        pool_drain(write_event, trace);
        weft_trace_flush(trace);
    }
    const uint64_t dropped = pool_dropped();
    if (dropped > reported)
        weft_log(&net_process()->env, WEFT_LOG_WARN, "nccl",
                 "the trace lacks %" PRIu64 " events: all %d slots were in use", dropped - reported,
                 POOL_SLOTS);
    reported = dropped;
    pthread_mutex_unlock(&lock);
    return NCCL_RESULT_SUCCESS;
}

/* ---- events: no lock, no allocation ---- */

static uint64_t now_ns(void)
{
    return weft_now_ns(&net_process()->env);
}

/* The communicator of a context; comm_count or more: a context of another process. */
static uint32_t comm_of(void *context)
{
    return (uint32_t)((uintptr_t)context - 1);
}

static void fill_collective(struct profiler_event *event, const struct nccl_profile_event *from)
{
    event->sequence = from->collective.sequence;
    event->name = from->collective.name;
    event->count = from->collective.count;
    event->root = from->collective.root;
    event->dtype = from->collective.dtype;
    event->algorithm = from->collective.algorithm;
    event->protocol = from->collective.protocol;
}

static void fill_p2p(struct profiler_event *event, const struct nccl_profile_event *from)
{
    event->name = from->p2p.name;
    event->count = from->p2p.count;
    event->dtype = from->p2p.dtype;
    event->peer = from->p2p.peer;
}

static void fill_proxy_op(struct profiler_event *event, const struct nccl_profile_event *from)
{
    event->channel = from->proxy_op.channel;
    event->peer = from->proxy_op.peer;
    event->steps = from->proxy_op.steps;
    event->chunk_bytes = (uint64_t)(from->proxy_op.chunk_bytes > 0 ? from->proxy_op.chunk_bytes : 0);
    event->is_send = from->proxy_op.is_send != 0;
    if (from->proxy_op.pid == getpid()) (void)pool_inherit(from->parent, event);
    else event->comm = COMMS_MAX;
}

static void fill_proxy_step(struct profiler_event *event, const struct nccl_profile_event *from)
{
    const struct profiler_event *op = pool_find(from->parent); /* open, and of this thread */
    event->step = from->proxy_step;
    if (!op) return;
    event->is_send = op->is_send;
    event->channel = op->channel;
    event->peer = op->peer;
    event->name = op->name;
    event->sequence = op->sequence;
    event->comm = op->comm;
}

static enum nccl_result start_event(void *context, void **event_out, const struct nccl_profile_event *from)
{
    *event_out = NULL;
    if (!net_process()) return NCCL_RESULT_SUCCESS;
    struct profiler_event *event = pool_open(event_out);
    if (!event) return NCCL_RESULT_SUCCESS;
    event->type = (enum nccl_profile)from->type;
    event->comm = comm_of(context) < atomic_load(&comm_count) ? comm_of(context) : COMMS_MAX;
    event->peer = event->channel = -1;
    event->begin_ns = now_ns();
    switch (from->type) {
    case NCCL_PROFILE_COLLECTIVE: fill_collective(event, from); break;
    case NCCL_PROFILE_P2P: fill_p2p(event, from); break;
    case NCCL_PROFILE_PROXY_OP: fill_proxy_op(event, from); break;
    case NCCL_PROFILE_PROXY_STEP: fill_proxy_step(event, from); break;
    case NCCL_PROFILE_KERNEL:
        event->channel = from->kernel.channel;
        event->gpu_begin_ns = from->kernel.timer_ns;
        (void)pool_inherit(from->parent, event);
        break;
    default: break; /* a type outside the mask: its span has no arguments */
    }
    pool_publish(event);
    return NCCL_RESULT_SUCCESS;
}

static void end_wait(struct profiler_event *event, uint64_t at_ns)
{
    event->waited_ns[event->waits] += weft_elapsed_ns(event->waits_since_ns, at_ns);
    event->waits = EVENT_WAIT_NONE;
}

static enum nccl_result stop_event(void *handle)
{
    struct profiler_event *event = pool_find(handle);
    if (!event) return NCCL_RESULT_SUCCESS;
    event->end_ns = now_ns();
    end_wait(event, event->end_ns);
    if (pool_close(event)) drain_if_free();
    return NCCL_RESULT_SUCCESS;
}

static enum event_wait wait_of(int state)
{
    switch (state) {
    case NCCL_STATE_SEND_GPU_WAIT:
    case NCCL_STATE_RECV_GPU_WAIT: return EVENT_WAIT_GPU;
    case NCCL_STATE_SEND_PEER_WAIT: return EVENT_WAIT_PEER;
    case NCCL_STATE_SEND_WAIT:
    case NCCL_STATE_RECV_WAIT:
    case NCCL_STATE_RECV_FLUSH_WAIT: return EVENT_WAIT_NETWORK;
    default: return EVENT_WAIT_NONE;
    }
}

static enum nccl_result record_state(void *handle, int state, union nccl_profile_update *update)
{
    struct profiler_event *event = pool_find(handle);
    if (!event) return NCCL_RESULT_SUCCESS;
    if (event->type == NCCL_PROFILE_KERNEL) {
        if (state == NCCL_STATE_KERNEL_STOP && update) event->gpu_end_ns = update->timer_ns;
        return NCCL_RESULT_SUCCESS;
    }
    if (event->type != NCCL_PROFILE_PROXY_STEP) return NCCL_RESULT_SUCCESS;
    const uint64_t at_ns = now_ns();
    end_wait(event, at_ns);
    event->waits = wait_of(state);
    event->waits_since_ns = at_ns;
    const bool has_bytes = state == NCCL_STATE_SEND_WAIT || state == NCCL_STATE_RECV_FLUSH_WAIT ||
                           state == NCCL_STATE_RECV_GPU_WAIT;
    if (update && has_bytes && update->step_bytes > 0) event->bytes = update->step_bytes;
    return NCCL_RESULT_SUCCESS;
}

/* ---- the tables ---- */

static enum nccl_result init_v5(void **context_out, uint64_t comm_id, int *mask_out, const char *comm_name,
                                int nodes, int ranks, int rank, nccl_logger_fn logger)
{
    return open_comm(context_out, comm_id, mask_out, ranks, rank, logger);
}

static enum nccl_result start_v5(void *context, void **event_out, struct nccl_profile_event *event)
{
    return start_event(context, event_out, event);
}

NCCL_EXPORT const struct nccl_profiler_v5 ncclProfiler_v5 = {.name = NCCL_PLUGIN_NAME,
                                                             .init = init_v5,
                                                             .start_event = start_v5,
                                                             .stop_event = stop_event,
                                                             .record_state = record_state,
                                                             .finalize = finalize};

static enum nccl_result init_v4(void **context_out, int *mask_out, const char *comm_name, uint64_t comm_id,
                                int nodes, int ranks, int rank, nccl_logger_fn logger)
{
    return open_comm(context_out, comm_id, mask_out, ranks, rank, logger);
}

/* The event is 8 bytes shorter than that of version 5, and the byte of its type is followed by padding. */
static enum nccl_result start_v4(void *context, void **event_out, struct nccl_profile_event_v4 *event)
{
    struct nccl_profile_event newer;
    memset(&newer, 0, sizeof newer);
    memcpy(&newer, event, sizeof *event);
    newer.type = event->type;
    return start_event(context, event_out, &newer);
}

NCCL_EXPORT const struct nccl_profiler_v4 ncclProfiler_v4 = {.name = NCCL_PLUGIN_NAME,
                                                             .init = init_v4,
                                                             .start_event = start_v4,
                                                             .stop_event = stop_event,
                                                             .record_state = record_state,
                                                             .finalize = finalize};
