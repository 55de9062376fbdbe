/* fastpath_direct.c - completes an operation on mapped buffers inside its call.
 *
 *   mapped, all before verified ──► publish ──► all arrived, match, mapped ──► slices ──► all done: complete
 *             │ else                                    │ late, or differs        │           │ late
 *             ▼                                         └─────────────────────────┴───────────┘
 *   WEFT_ERR_AGAIN: nothing happened               falls back to the queue, which continues where this stops
 *
 * It saves the operation record, the queue, the steps of the loop and the way to the engine thread. Segments
 * are used as by engine.c, so each rank decides for itself. A prepared call keeps the constant part of the
 * operation, without memory for messages; a fallback takes an idle record that has it. Only what one step of
 * the loop would do is accepted: others may wait for the loop. */
#include "collective/onehost/onehost.h"

enum { VECTOR_BYTES = ONEHOST_STEP_BYTES / 2 };

/* ---- which calls ---- */
static bool is_of_kind(enum weft_coll_kind kind)
{
    switch (kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_REDUCE: return true;
    default: return false;
    }
}

bool onehost_fastpath_direct_accepts(const struct weft_group *group, const struct weft_coll_args *args)
{
    const struct onehost *onehost = group->onehost;
    /* without CMA a rank also offers a stage */
    if (!is_of_kind(args->kind) || args->counts || args->count == 0 || !onehost->setup.all_cma) return false;
    bool pieces = args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_ALL_GATHER;
    return args->count <= VECTOR_BYTES / weft_dtype_bytes(args->dtype) / (pieces ? group->ranks : 1) &&
           (!onehost_uses_copyin(group, args) || onehost_can_prefer_direct(group, args));
}

void onehost_fastpath_direct_prepare(struct weft_group *group, struct onehost_prepared *prepared)
{
    struct weft_coll outline = {.group = NULL},
                     *coll = prepared->direct_coll ? prepared->direct_coll : &outline;
    prepared->scratch_bytes = coll_init_template(coll, group, &prepared->args);
    coll->onehost.is_copyin = false;
    coll->onehost.can_prefer_direct = onehost_can_prefer_direct(group, &prepared->args);
}

static bool is_mapped(const void *memory)
{
    uint64_t offset;
    return memory && weft_memory_locate(memory, 1, &offset);
}

/* Made at the first call whose buffers may be mapped, because most groups reduce unmapped memory.
 * WEFT_ERR_AGAIN: not mapped. WEFT_ERR_NO_MEMORY: may be mapped. */
static enum weft_status outline_ensure(struct weft_group *group, struct onehost_prepared *prepared,
                                       const void *in, const void *out)
{
    if (prepared->direct_coll) return WEFT_OK;
    if (!is_mapped(in) && !is_mapped(out)) return WEFT_ERR_AGAIN;
    weft_loop_guard_thread(group->loop);
    if (!(prepared->direct_coll = weft_alloc_zero(group->env, sizeof *prepared->direct_coll)))
        return WEFT_ERR_NO_MEMORY;
    onehost_fastpath_direct_prepare(group, prepared);
    return WEFT_OK;
}

/* ---- the operation ---- */

/* Everything that could fail later is reserved. */
static bool can_begin(struct onehost *onehost, const struct onehost_prepared *prepared, const void *in,
                      void *out)
{
    struct weft_group *group = onehost->group;
    struct weft_coll *coll = prepared->direct_coll;
    coll->args.in = in;
    coll->args.out = out;
    onehost_buffers_locate(onehost, coll);
    if (!coll->onehost.prefers_direct || !op_pool_has_scratch(group, prepared->scratch_bytes)) return false;
    if (coll->onehost.can_prefer_direct && !onehost_copyin_reserve(onehost, &prepared->args)) return false;
    if (!onehost_verify_all_before(onehost, onehost->next_seq)) return false;
    if (!onehost->buffers) onehost->buffers = onehost_buffers_acquire(group);
    return onehost->buffers;
}

static void begin(struct onehost *onehost, struct weft_coll *coll)
{
    coll->onehost.seq = onehost->next_seq++;
    coll->sequence = coll->header.sequence = onehost->group->ops.sequence++;
    if (coll_has_root(coll->args.kind)) call_digest_add(onehost->group, &coll->header);
    coll->onehost.flags = coll->onehost.all_flags =
        ONEHOST_DIRECT | (coll->onehost.prefers_direct ? ONEHOST_PREFERS_DIRECT : 0);
    coll->onehost.is_reachable = true;
    coll->onehost.modes_differ = coll->onehost.cma_refused = false;
    coll->onehost.phase = ONEHOST_PUBLISHED;
    onehost->awaited_rank = 0;
    onehost->buffers[onehost->group->rank] =
        (struct onehost_buffers){.in = coll->args.in, .out = coll->args.out};
}

/* The peer calls the same with mapped buffers, as far as all need them. Other cases are left to the queue. */
static bool accept_peer(struct onehost *onehost, const struct onehost_prepared *prepared, uint32_t rank)
{
    struct weft_coll *coll = prepared->direct_coll;
    const struct onehost_descriptor *descriptor =
        onehost_descriptor_of(onehost->peers[rank].segment, coll->onehost.seq);
    if (!onehost_descriptor_matches(descriptor, &prepared->call, coll->sequence) ||
        descriptor->flags != coll->onehost.flags)
        return false;
    struct onehost_buffers buffers = {.uses_cma = false};
    if (!onehost_buffers_resolve(onehost, coll, rank, descriptor, &buffers)) return false;
    onehost->buffers[rank] = buffers;
    return true;
}

static bool wait_all(struct onehost *onehost, const struct onehost_prepared *prepared)
{
    const uint64_t seq = prepared->direct_coll->onehost.seq;
    if (onehost->is_oversubscribed && !onehost_fastpath_wait_core_sharers(onehost, seq)) return false;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++)
        if (rank != onehost->group->rank &&
            (!onehost_fastpath_wait_arrival(onehost, rank, seq) || !accept_peer(onehost, prepared, rank)))
            return false;
    onehost_all_arrived(onehost, seq);
    return true;
}

/* Works on the slice of this rank. false: a peer has ended the operation. */
static bool work(struct onehost *onehost, struct weft_coll *coll)
{
    uint32_t culprit;
    coll->onehost.phase = ONEHOST_WORKING;
    coll->onehost.remaining = onehost_slice(coll);
    if (coll_is_reduction(coll->args.kind)) weft_loop_guard_thread(onehost->group->loop);
    if (coll->onehost.remaining.count > 0) {
        if (!onehost_buffers_enter(onehost, coll->onehost.seq)) return false;
        enum weft_status status = onehost_direct_work(onehost, coll, coll->onehost.remaining, &culprit);
        onehost_buffers_leave(onehost);
        WEFT_ASSERT(status == WEFT_OK); /* no system call is involved */
    }
    onehost_publish_slice_done(onehost, coll->onehost.seq);
    coll->onehost.phase = ONEHOST_COMPLETING;
    return true;
}

static bool wait_slice_done(struct onehost *onehost, const struct weft_coll *coll, uint32_t rank)
{
    const uint64_t seq = coll->onehost.seq;
    if (onehost_slice_is_done(onehost, rank, seq)) return true;
    for (uint32_t polls = 1; !onehost_slice_is_done(onehost, rank, seq); polls++)
        if (!onehost_fastpath_poll_pause(onehost, onehost_peer_shares_core(onehost, rank), polls))
            return false;
    return true;
}

static bool wait_all_done(struct onehost *onehost, const struct weft_coll *coll)
{
    onehost->polling.fast_poll_until_ns = 0;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++)
        if (rank != onehost->group->rank && !wait_slice_done(onehost, coll, rank)) return false;
    return true;
}

enum weft_status onehost_fastpath_direct(struct weft_group *group, struct onehost_prepared *prepared,
                                         const void *in, void *out, const struct onehost_completion *after)
{
    struct onehost *onehost = group->onehost;
    WEFT_TRY(outline_ensure(group, prepared, in, out));
    if (!can_begin(onehost, prepared, in, out)) return WEFT_ERR_AGAIN;
    struct weft_coll *coll = prepared->direct_coll;
    begin(onehost, coll);
    onehost_publish_buffers(onehost, coll, coll->onehost.seq);
    struct onehost_started started =
        onehost_fastpath_begin(onehost, prepared, coll->onehost.seq, coll->sequence);
    if (!wait_all(onehost, prepared) || !work(onehost, coll) || !wait_all_done(onehost, coll)) {
        prepared->args.in = in;
        prepared->args.out = out;
        onehost_fall_back_to_queue(group, &prepared->args, &started, coll, after);
        return WEFT_IN_PROGRESS;
    }
    onehost_buffers_release(group->ops.op_pool, onehost->buffers);
    onehost->buffers = NULL;
    onehost_fastpath_end(onehost, prepared, &started);
    onehost->moved_bytes += onehost_moved_bytes(coll);
    return WEFT_OK;
}
