/* engine.c - runs queued operations one after the other, each through its phases.
 *
 *   VOTE_PENDING   until the vote of the ranks ends
 *   QUEUED         until the operation before it is finished
 *   VERIFYING      until all peers have called what completed early here (sequence.c)
 *   PUBLISHED      descriptor published; until those of all peers are there and match
 *   WORKING        on this rank's slice, in steps of the loop; or STAGING: on its rounds (staged.c)
 *   COMPLETING     own slice done; until all slices are
 *
 * The loop polls the first operation of the queue. A peer that stores for a sleeping rank wakes it through
 * the transport. If a rank ends an operation early, it closes its buffers (segment.c) and finishes when no
 * peer is inside. */
#include "collective/core/interpreter.h"
#include "collective/core/record/op_record.h"
#include "collective/core/record/straggler_time.h"
#include "collective/onehost/onehost.h"

#include <math.h>
#include <string.h>

static struct weft_coll *queue_first(const struct onehost *onehost)
{
    return weft_list_empty(&onehost->polling.queue)
               ? NULL
               : weft_list_first(&onehost->polling.queue, struct weft_coll, onehost.link);
}

/* ---- queue ---- */

static uint64_t loaded_bytes(const struct weft_coll *coll)
{
    return coll->args.count * coll->data.elem_bytes;
}

/* Unmapped buffers that can go by CMA or staged: does this rank ask for staged? */
static bool should_stage(struct onehost *onehost, struct weft_coll *coll)
{
    if (!onehost->setup.all_cma) return true;
    /* staged would copy each byte twice, one system call copies it once */
    if (!coll->onehost.uses_cma || coll->args.kind == WEFT_COLL_GATHER ||
        coll->args.kind == WEFT_COLL_SCATTER)
        return false;
    if (onehost->group->rank != 0) return true;
    coll->onehost.method_stats = onehost_method_stats_of(onehost, coll->args.kind,
                                                         coll->args.in == coll->args.out, loaded_bytes(coll));
    return !coll->onehost.method_stats || !onehost_method_uses_cma(coll->onehost.method_stats);
}

/* Unequal pieces in unmapped memory, lengths known to all ranks: here the owner makes the system calls of a
 * piece alone. By messages the two ranks of a piece share them, which pays for long pieces. */
static bool should_use_messages(const struct weft_coll *coll)
{
    const struct weft_plan_args *plan = &coll->steps.cursor.args;
    return coll->onehost.uses_cma && plan->displs_in && !plan->own_lengths &&
           plan->displs_in[plan->ranks] * coll->data.elem_bytes > ONEHOST_UNEQUAL_CMA_BYTES_MAX;
}

/* How peers can access this rank's buffers. Ranks may differ. */
static void select_methods(struct onehost *onehost, struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    bool unequal = onehost_is_unequal(coll);
    bool uses_input_copy =
        unequal && coll->args.kind == WEFT_COLL_ALL_TO_ALL && coll->args.in == coll->args.out;
    if (coll->onehost.uses_cma && onehost->setup.all_cma && !onehost_cma_is_permitted(onehost))
        onehost_cma_disable(onehost);
    coll->onehost.flags = uses_input_copy || should_use_messages(coll) ? 0
                          : !coll->onehost.uses_cma                    ? ONEHOST_DIRECT
                          : onehost->setup.all_cma                           ? ONEHOST_CMA
                                                                       : 0;
    onehost->buffers = onehost_buffers_acquire(group);
    if (!onehost->buffers) coll->onehost.flags = 0;
    else if (!unequal && should_stage(onehost, coll)) coll->onehost.stage = onehost_stage_acquire(group);
    if (unequal) coll->onehost.flags |= ONEHOST_UNEQUAL;
    if (!onehost->setup.all_cma) coll->onehost.flags |= ONEHOST_CMA_REFUSED;
    /* also if it cannot reach the peers' buffers: peers learn that this rank does not copy in */
    if (coll->onehost.prefers_direct) coll->onehost.flags |= ONEHOST_PREFERS_DIRECT;
    if (onehost_is_personalized(coll->args.kind) && onehost_has_local_piece(coll))
        coll->onehost.flags |= ONEHOST_HAS_LOCAL_PIECE;
    if (coll->onehost.stage &&
        weft_memory_locate(coll->onehost.stage, ONEHOST_STAGE_BYTES, &coll->onehost.stage_info.offset))
        coll->onehost.flags |= ONEHOST_STAGED;
    coll->onehost.stage_info.block = onehost_stage_block(onehost->is_oversubscribed);
    coll->onehost.all_flags = coll->onehost.flags;
    coll->onehost.cma_refused = coll->onehost.flags & ONEHOST_CMA_REFUSED;
    coll->onehost.is_reachable = coll->onehost.flags & (ONEHOST_DIRECT | ONEHOST_CMA);
}

/* false: some peers have not called what completed here before. */
static bool try_publish(struct onehost *onehost, struct weft_coll *coll)
{
    uint64_t seq = coll->onehost.seq;
    if (!onehost_verify_all_before(onehost, seq)) return false;
    coll->onehost.phase = ONEHOST_PUBLISHED;
    onehost->awaited_rank = 0;
    if (!coll->path.is_published) onehost_publish(onehost, coll, seq);
    return true;
}

/* A poll takes little time; work on a vector does not. */
static void set_poll_cost(struct onehost *onehost)
{
    const struct weft_coll *coll = queue_first(onehost);
    onehost->polling.pollable.quick =
        coll && coll->onehost.phase != ONEHOST_WORKING && coll->onehost.phase != ONEHOST_SCALING;
}

static bool needs_scaling(const struct weft_coll *coll)
{
    return coll_is_reduction(coll->args.kind) && coll->args.op == WEFT_SCALED_SUM;
}

/* Contributions with a factor are multiplied before peers may read them. */
static bool scale_input(struct weft_coll *coll)
{
    size_t budget = ONEHOST_STEP_BYTES / 2;
    return !needs_scaling(coll) || coll_scale_input(coll, &budget);
}

static void start_first(struct onehost *onehost)
{
    struct weft_coll *coll = queue_first(onehost);
    if (!coll || coll->onehost.phase != ONEHOST_QUEUED || coll->phase != COLL_RUNNING) return;
    coll->onehost.phase = scale_input(coll) ? ONEHOST_VERIFYING : ONEHOST_SCALING;
    set_poll_cost(onehost);
    if (coll->onehost.phase == ONEHOST_SCALING) return;
    onehost->awaited_rank = 0;
    if (!coll->onehost.is_copyin) select_methods(onehost, coll);
    coll->launch.record.plan = coll->header.plan;
    coll_record_start(coll, coll->posted_ns); /* without reading the clock */
    (void)try_publish(onehost, coll);
}

static int onehost_progress(struct weft_pollable *pollable, int budget);
static enum weft_status onehost_arm(struct weft_pollable *pollable);

static void queue_append(struct onehost *onehost, struct weft_coll *coll)
{
    coll->header.plan = WEFT_PLAN_ONE_HOST;
    weft_list_append(&onehost->polling.queue, &coll->onehost.link);
    if (!onehost->polling.is_registered) {
        onehost->polling.pollable = (struct weft_pollable){
            .fd = WEFT_POLLABLE_NO_FD, .progress = onehost_progress, .arm = onehost_arm};
        weft_list_init(&onehost->polling.pollable.link);
        /* cannot fail without a descriptor */
        onehost->polling.is_registered =
            weft_loop_add(onehost->group->loop, &onehost->polling.pollable) == WEFT_OK;
    }
    set_poll_cost(onehost);
}

static void enqueue(struct onehost *onehost, struct weft_coll *coll)
{
    coll->onehost.phase = ONEHOST_QUEUED;
    if (needs_scaling(coll)) coll->args.in = coll->data.in; /* the scaled copy */
    coll->onehost.is_copyin = onehost_uses_copyin(coll->group, &coll->args);
    coll->onehost.can_prefer_direct = onehost_can_prefer_direct(coll->group, &coll->args);
    coll->onehost.modes_differ = false;
    if (!coll->onehost.is_copyin || coll->onehost.can_prefer_direct) onehost_buffers_locate(onehost, coll);
    if (coll->onehost.can_prefer_direct && coll->onehost.prefers_direct) coll->onehost.is_copyin = false;
    queue_append(onehost, coll);
    start_first(onehost);
}

bool onehost_starts_immediately(const struct onehost *onehost)
{
    return onehost->state == ONEHOST_ENABLED && weft_list_empty(&onehost->polling.queue);
}

/* The operation was begun by the fast path: first in the queue and published. */
static void resume(struct onehost *onehost, struct weft_coll *coll)
{
    onehost->awaited_rank = 0;
    queue_append(onehost, coll);
    coll->launch.record.plan = coll->header.plan;
    coll_record_start(coll, coll->posted_ns);
}

void onehost_launch(struct weft_coll *coll)
{
    struct onehost *onehost = coll->group->onehost;
    bool resumes = coll->onehost.phase != ONEHOST_BY_MESSAGES;
    onehost_set_phase(coll, resumes ? coll->onehost.phase : ONEHOST_VOTE_PENDING);
    /* assigned here: it can be cancelled before the vote ends on this rank and after it ends on another */
    coll->onehost.seq = onehost->next_seq++;
    if (resumes) resume(onehost, coll);
    else if (onehost->state == ONEHOST_ENABLED) enqueue(onehost, coll);
}

static void fall_back_to_messages(struct weft_coll *coll)
{
    onehost_unlink(coll);
    coll->header.plan = coll->launch.record.plan = (uint8_t)coll->steps.cursor.args.plan;
    coll_mark_ready(coll);
}

void onehost_vote_complete(struct onehost *onehost)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &onehost->group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->onehost.phase != ONEHOST_VOTE_PENDING || coll->phase != COLL_RUNNING) continue;
        if (onehost->state != ONEHOST_ENABLED) fall_back_to_messages(coll);
        else if (coll->flags.is_sendrecv) onehost_sendrecv_launch(coll);
        else enqueue(onehost, coll);
    }
    if (onehost->state != ONEHOST_ENABLED) onehost->next_seq = 0; /* no operation uses the path */
}

void onehost_unlink(struct weft_coll *coll)
{
    struct onehost *onehost = coll->group->onehost;
    bool was_first = coll->onehost.phase > ONEHOST_VOTE_PENDING && queue_first(onehost) == coll;
    /* else it has ended early, alone or with the group */
    bool was_published = coll->onehost.phase > ONEHOST_VERIFYING;
    if (!was_published && !coll->flags.is_sendrecv && onehost->run_ahead.cancelled_seq <= coll->onehost.seq)
        onehost->run_ahead.cancelled_seq = coll->onehost.seq + 1;
    onehost_set_phase(coll, ONEHOST_BY_MESSAGES);
    weft_loop_set_wait_core(coll->group->loop,
                            onehost->is_oversubscribed ? WEFT_WAIT_SAME_CORE : WEFT_WAIT_UNKNOWN);
    weft_list_remove(&coll->onehost.link);
    onehost_stage_release(coll->group->ops.op_pool, coll->onehost.stage);
    if (was_first) {
        onehost_buffers_release(coll->group->ops.op_pool, onehost->buffers);
        onehost->buffers = NULL;
    }
    coll->onehost.stage = NULL;
    if (was_first) {
        if (was_published) onehost_retire(onehost, coll->onehost.seq);
        start_first(onehost);
    }
    set_poll_cost(onehost);
    if (weft_list_empty(&onehost->polling.queue)) onehost_sleep_end(onehost);
}

/* ---- phases ---- */

/* The descriptor as a message header, for comparison and error text. */
static struct coll_header header_of_descriptor(const struct weft_coll *coll, uint32_t rank,
                                               const struct onehost_descriptor *descriptor)
{
    struct coll_header header = coll->header;
    header.rank = rank;
    header.kind = descriptor->kind;
    header.dtype = descriptor->dtype;
    header.op = descriptor->op;
    header.root = descriptor->root;
    header.count = descriptor->count;
    header.sequence = descriptor->sequence;
    const bool is_unequal = descriptor->flags & ONEHOST_UNEQUAL;
    if (is_unequal != onehost_is_unequal(coll)) header.cuts = is_unequal ? ~header.cuts : 0;
    else if (onehost_is_unequal(coll) && !coll->steps.cursor.args.own_lengths)
        memcpy(&header.cuts, descriptor->inline_data, sizeof header.cuts);
    return header;
}

/* The descriptor names memory that the peer does not map. */
static bool fail_outside_memory(struct weft_coll *coll, uint32_t rank)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, WEFT_ERR_MALFORMED, true,
              "operation %llu: the buffers of %s lie outside its memory", (unsigned long long)coll->sequence,
              name);
    return false;
}

/* Checks that the peer's buffers lie in its memory; else the group ends. */
static bool accept_buffers(struct onehost *onehost, struct weft_coll *coll, uint32_t rank,
                           const struct onehost_descriptor *descriptor)
{
    const struct weft_mapping *mapping = &onehost->peers[rank].memory->mapping;
    struct onehost_stage_info stage = {0};
    bool staged = descriptor->flags & ONEHOST_STAGED;
    if (staged) memcpy(&stage, descriptor->inline_data, sizeof stage);
    /* the kernel checks addresses */
    struct onehost_buffers buffers = {.uses_cma = !(descriptor->flags & ONEHOST_DIRECT),
                                      .in_address = descriptor->in,
                                      .out_address = descriptor->out};
    bool fits = true;
    if (onehost_is_personalized(coll->args.kind) &&
        !onehost_pieces_check(onehost, coll, rank, &buffers, &fits))
        return false;
    if (fits && !buffers.uses_cma) fits = onehost_buffers_resolve(onehost, coll, rank, descriptor, &buffers);
    if (staged && (stage.offset > mapping->bytes || ONEHOST_STAGE_BYTES > mapping->bytes - stage.offset ||
                   !onehost_stage_block_is_valid(stage.block)))
        fits = false;
    if (fits && staged) {
        buffers.stage = mapping->base + stage.offset;
        if (coll->onehost.stage_info.block < stage.block) coll->onehost.stage_info.block = stage.block;
    }
    if (onehost->buffers) onehost->buffers[rank] = buffers;
    return fits || fail_outside_memory(coll, rank);
}

/* Checks the location of a contribution by copy-in. */
static bool accept_copyin(const struct onehost *onehost, struct weft_coll *coll, uint32_t rank)
{
    size_t bytes = onehost_copyin_bytes_of(coll->group, &coll->args, rank);
    return onehost_copyin_of(onehost, rank, coll->onehost.seq, bytes) || fail_outside_memory(coll, rank);
}

/* A peer's descriptor is there: compares the call and takes its buffers. */
static bool accept_descriptor(struct onehost *onehost, struct weft_coll *coll, uint32_t rank)
{
    const struct onehost_descriptor *descriptor =
        onehost_descriptor_of(onehost->peers[rank].segment, coll->onehost.seq);
    struct coll_header theirs = header_of_descriptor(coll, rank, descriptor);
    const char *what = coll_header_difference(&theirs, &coll->header);
    if (what) {
        coll_report_mismatch(coll, &coll->header, rank, &theirs, what);
        return false;
    }
    if (coll->onehost.can_prefer_direct &&
        coll->onehost.is_copyin == ((descriptor->flags & ONEHOST_PREFERS_DIRECT) != 0)) {
        coll->onehost.modes_differ = true;
        return true;
    }
    if (coll->onehost.is_copyin) return accept_copyin(onehost, coll, rank);
    if (!(descriptor->flags & (ONEHOST_DIRECT | ONEHOST_CMA))) coll->onehost.is_reachable = false;
    coll->onehost.all_flags &= descriptor->flags;
    if (descriptor->flags & ONEHOST_CMA_REFUSED) {
        coll->onehost.cma_refused = true;
        if (onehost->setup.all_cma) onehost_cma_disable(onehost);
    }
    return accept_buffers(onehost, coll, rank, descriptor);
}

static void begin_completion(struct onehost *onehost, struct weft_coll *coll)
{
    coll->onehost.phase = ONEHOST_COMPLETING;
    onehost->awaited_rank = 0;
    set_poll_cost(onehost);
}

static void slice_finish(struct onehost *onehost, struct weft_coll *coll)
{
    onehost_publish_slice_done(onehost, coll->onehost.seq);
    begin_completion(onehost, coll);
}

/* All descriptors are there: starts the work, or falls back. true: the operation is complete. */
static bool start_work(struct onehost *onehost, struct weft_coll *coll)
{
    onehost->awaited_rank = 0;
    coll->onehost.max_bits = 0;
    coll->onehost.is_checked = false;
    straggler_wait_end(coll);
    onehost_all_arrived(onehost, coll->onehost.seq);
    if (coll->onehost.modes_differ) {
        fall_back_to_messages(coll);
        return false;
    }
    if (coll->onehost.is_copyin) {
        onehost_copyin_work(onehost, &coll->args, coll->onehost.seq);
        return true;
    }
    bool staged = !(coll->onehost.all_flags & ONEHOST_DIRECT) && coll->onehost.all_flags & ONEHOST_STAGED;
    /* the kernel refuses unmapped memory */
    if (coll->onehost.cma_refused && !(coll->onehost.all_flags & ONEHOST_DIRECT))
        coll->onehost.is_reachable = false;
    if (!coll->onehost.is_reachable && !staged) {
        fall_back_to_messages(coll);
        return false;
    }
    if (coll->onehost.method_stats) coll->onehost.began_ns = weft_now_ns(onehost->group->env);
    if (staged) {
        onehost_stage_begin(coll);
        coll->onehost.phase = ONEHOST_STAGING;
        weft_loop_set_wait_core(coll->group->loop,
                                onehost->is_oversubscribed ? WEFT_WAIT_SAME_CORE : WEFT_WAIT_UNKNOWN);
        return false;
    }
    onehost->buffers[coll->group->rank] =
        (struct onehost_buffers){.in = coll->args.in,
                                 .out = coll->args.out,
                                 .has_local_piece = coll->onehost.flags & ONEHOST_HAS_LOCAL_PIECE};
    coll->onehost.phase = ONEHOST_WORKING;
    coll->onehost.remaining = onehost_slice(coll);
    set_poll_cost(onehost);
    return false;
}

static void fail_unreachable(struct weft_coll *coll, uint32_t rank, enum weft_status status)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, status, true,
              "lost %s during operation %llu (%s): its buffers cannot be reached: %s", name,
              (unsigned long long)coll->sequence, weft_coll_kind_name(coll->args.kind),
              weft_reason_text(status));
}

static enum weft_coll_finite own_finite(const struct weft_coll *coll)
{
    float largest;
    memcpy(&largest, &coll->onehost.max_bits, sizeof largest);
    return isfinite(largest) ? WEFT_COLL_FINITE : WEFT_COLL_NOT_FINITE;
}

/* All slices are done. The answer stays UNKNOWN if a rank has published no verdict of its slice. */
static void report_finite(const struct onehost *onehost, const struct weft_coll *coll)
{
    enum weft_coll_finite all = own_finite(coll);
    for (uint32_t rank = 0; rank < coll->group->ranks; rank++) {
        if (rank == coll->group->rank) continue;
        const enum weft_coll_finite theirs = onehost_finite_of(onehost, rank, coll->onehost.seq);
        if (theirs == WEFT_COLL_FINITE_UNKNOWN) return;
        if (theirs == WEFT_COLL_NOT_FINITE) all = theirs;
    }
    *coll->args.finite_out = all;
}

static void work_step(struct onehost *onehost, struct weft_coll *coll)
{
    struct onehost_range *rest = &coll->onehost.remaining;
    uint64_t most = ONEHOST_STEP_BYTES / 2 / coll->group->ranks / coll->data.elem_bytes;
    struct onehost_range now = {rest->first, rest->count < most ? rest->count : most};
    if (now.count > 0) {
        /* a peer has ended it; the reason follows by message */
        if (!onehost_buffers_enter(onehost, coll->onehost.seq)) return;
        uint32_t culprit = 0;
        enum weft_status status = onehost_direct_work(onehost, coll, now, &culprit);
        onehost_buffers_leave(onehost);
        if (status < 0) {
            fail_unreachable(coll, culprit, status);
            return;
        }
    }
    rest->first += now.count;
    rest->count -= now.count;
    if (rest->count > 0) return;
    coll->onehost.is_checked = onehost_checks_sum(coll);
    if (coll->onehost.is_checked) onehost_publish_finite(onehost, coll->onehost.seq, own_finite(coll));
    slice_finish(onehost, coll);
}

/* Sets how the loop waits: on this core if the peer shares it, else as `where`. */
static void set_wait_hint(struct onehost *onehost, uint32_t rank, enum weft_wait_core where)
{
    bool shares = rank != onehost->group->rank && onehost_peer_shares_core(onehost, rank);
    weft_loop_set_wait_core(onehost->group->loop, shares ? WEFT_WAIT_SAME_CORE : where);
    if (shares) onehost_core_migration(onehost);
}

static int staging_step(struct onehost *onehost, struct weft_coll *coll)
{
    bool complete, acted = onehost_stage_step(onehost, coll, &complete);
    if (complete) slice_finish(onehost, coll);
    else if (!acted)
        set_wait_hint(onehost, onehost->awaited_rank,
                      onehost->is_oversubscribed ? WEFT_WAIT_SAME_CORE : WEFT_WAIT_UNKNOWN);
    return acted;
}

/* Has a peer that has not arrived called this number by messages? */
static bool check_message_call(struct onehost *onehost, struct weft_coll *coll, const struct coll_header *own,
                               uint32_t rank)
{
    const struct onehost_descriptor *descriptor = onehost_message_call_of(onehost, rank, own->sequence);
    if (!descriptor) return false;
    struct coll_header theirs = header_of_descriptor(coll, rank, descriptor);
    theirs.plan = descriptor->flags;
    theirs.cuts = descriptor->in;
    theirs.chunk = descriptor->out;
    const char *what = coll_header_difference(&theirs, own);
    coll_report_mismatch(coll, own, rank, &theirs, what ? what : "the plan");
    return true;
}

/* Has awaited_rank called something other than the operation that completed here before? */
static bool check_waiting_call(struct onehost *onehost, struct weft_coll *coll)
{
    uint64_t seq = onehost->run_ahead.waiting_seq;
    struct coll_header own =
        header_of_descriptor(coll, coll->group->rank, onehost_descriptor_of(onehost->segment, seq));
    if (onehost_peer_has_arrived(onehost, onehost->awaited_rank, seq)) {
        struct coll_header theirs =
            header_of_descriptor(coll, onehost->awaited_rank,
                                 onehost_descriptor_of(onehost->peers[onehost->awaited_rank].segment, seq));
        const char *what = coll_header_difference(&theirs, &own);
        if (what) coll_report_mismatch(coll, &own, onehost->awaited_rank, &theirs, what);
        return true; /* or it has arrived now */
    }
    own.plan = WEFT_PLAN_ONE_HOST;
    own.cuts = 0; /* a run-ahead operation has equal pieces */
    return check_message_call(onehost, coll, &own, onehost->awaited_rank);
}

/* Publishes if the peers have called everything before; else waits. */
static bool verify_step(struct onehost *onehost, struct weft_coll *coll)
{
    if (try_publish(onehost, coll)) return true;
    if (!onehost_waits_for_retired_seq(onehost) && check_waiting_call(onehost, coll)) return true;
    set_wait_hint(onehost, onehost->awaited_rank, WEFT_WAIT_UNKNOWN);
    return false;
}

void onehost_verify_idle(struct weft_group *group)
{
    struct onehost *onehost = group->onehost;
    if (!onehost || onehost->state != ONEHOST_ENABLED || !weft_list_empty(&onehost->polling.queue) ||
        onehost_verify(onehost, onehost->next_seq))
        return;
    (void)check_waiting_call(onehost, weft_list_first(&group->ops.active, struct weft_coll, link));
}

static bool peer_is_ready(const struct onehost *onehost, const struct weft_coll *coll, uint32_t rank)
{
    return coll->onehost.phase == ONEHOST_PUBLISHED
               ? onehost_peer_has_arrived(onehost, rank, coll->onehost.seq)
               : onehost_slice_is_done(onehost, rank, coll->onehost.seq);
}

/* If ranks are oversubscribed: a rank on this core is waited for first, since a rank on another core can
 * depend on it. */
static enum weft_wait_core wait_location(const struct onehost *onehost, const struct weft_coll *coll)
{
    if (!onehost->is_oversubscribed) return WEFT_WAIT_UNKNOWN;
    for (uint32_t rank = onehost->awaited_rank; rank < coll->group->ranks; rank++) {
        if (rank != coll->group->rank && onehost_peer_shares_core(onehost, rank) &&
            !peer_is_ready(onehost, coll, rank))
            return WEFT_WAIT_SAME_CORE;
    }
    return WEFT_WAIT_UNKNOWN;
}

/* Advances awaited_rank past the ranks that have done what the phase waits for. */
static bool poll_peers(struct onehost *onehost, struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    bool is_published_phase = coll->onehost.phase == ONEHOST_PUBLISHED;
    for (; onehost->awaited_rank < group->ranks; onehost->awaited_rank++) {
        uint32_t rank = onehost->awaited_rank;
        if (rank == group->rank) continue;
        bool is_ready = peer_is_ready(onehost, coll, rank);
        if (!is_ready) set_wait_hint(onehost, rank, wait_location(onehost, coll));
        if (!is_ready && !is_published_phase) return false;
        if (!is_ready) {
            (void)check_message_call(onehost, coll, &coll->header, rank);
            return false;
        }
        if (is_published_phase && !accept_descriptor(onehost, coll, rank)) return false;
    }
    return true;
}

bool weft_group_shares_memory(const struct weft_group *group)
{
    return group->onehost ? group->onehost->state != ONEHOST_DISABLED : group->may_open_onehost;
}

void weft_group_add_moved(const struct weft_group *group, struct weft_moved *moved)
{
    const struct onehost *onehost = group->onehost;
    if (!onehost) return;
    moved->out_bytes += onehost->moved_bytes;
    moved->in_bytes += onehost->moved_bytes;
    onehost_sendrecv_add_moved(onehost->sendrecv, moved);
}

/* If some buffers are mapped, staged was not available: this is no measurement of the method that was asked
 * for. */
static void record_method(const struct weft_coll *coll)
{
    bool staged = !(coll->onehost.all_flags & ONEHOST_DIRECT) && coll->onehost.all_flags & ONEHOST_STAGED;
    if (!staged && coll->onehost.flags & ONEHOST_STAGED) return;
    onehost_method_record(coll->onehost.method_stats, !staged,
                          weft_elapsed_ns(coll->onehost.began_ns, weft_now_ns(coll->group->env)),
                          loaded_bytes(coll));
}

static void finish(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    if (coll->onehost.method_stats) record_method(coll);
    if (coll->onehost.is_checked) report_finite(group->onehost, coll);
    group->onehost->moved_bytes += onehost_moved_bytes(coll);
    group->sending.outstanding++; /* keeps the group while the callback runs */
    coll_finish(coll, 0);
    group_transport_op_done(group);
}

static int onehost_progress(struct weft_pollable *pollable, int budget)
{
    struct onehost *onehost = weft_container_of(pollable, struct onehost, polling.pollable);
    onehost_sleep_end(onehost);
    struct weft_coll *coll = queue_first(onehost);
    if (!coll || coll->phase != COLL_RUNNING) return 0;
    switch (coll->onehost.phase) {
    case ONEHOST_SCALING:
        if (!scale_input(coll)) return 1;
        coll->onehost.phase = ONEHOST_QUEUED;
        start_first(onehost);
        return 1;
    case ONEHOST_VERIFYING: return verify_step(onehost, coll);
    case ONEHOST_PUBLISHED:
        if (!poll_peers(onehost, coll)) return 0;
        if (start_work(onehost, coll)) finish(coll);
        return 1;
    case ONEHOST_WORKING: work_step(onehost, coll); return 1;
    case ONEHOST_STAGING: return staging_step(onehost, coll);
    case ONEHOST_COMPLETING:
        if (!poll_peers(onehost, coll)) return 0;
        finish(coll);
        return 1;
    default: return 0;
    }
}

/* awaited_rank has called neither in memory nor by messages, and has not retired the operation. */
static bool is_still_waiting(const struct onehost *onehost)
{
    uint64_t seq = onehost->run_ahead.waiting_seq;
    const struct onehost_peer *peer = &onehost->peers[onehost->awaited_rank];
    if (onehost_waits_for_retired_seq(onehost)) return onehost_peer_reads_segment(peer, seq);
    return onehost_peer_reads_segment(peer, seq + 1) &&
           !onehost_peer_has_arrived(onehost, onehost->awaited_rank, seq) &&
           !onehost_message_call_of(onehost, onehost->awaited_rank,
                                    onehost_descriptor_of(onehost->segment, seq)->sequence);
}

static enum weft_status onehost_arm(struct weft_pollable *pollable)
{
    struct onehost *onehost = weft_container_of(pollable, struct onehost, polling.pollable);
    struct weft_coll *coll = queue_first(onehost);
    if (!coll || coll->phase != COLL_RUNNING) return WEFT_OK;
    if (coll->onehost.phase == ONEHOST_WORKING || coll->onehost.phase == ONEHOST_SCALING)
        return WEFT_ERR_AGAIN;
    onehost_sleep(onehost);
    if (coll->onehost.phase == ONEHOST_STAGING)
        return onehost_stage_can_act(onehost, coll) ? WEFT_ERR_AGAIN : WEFT_OK;
    uint32_t rank = onehost->awaited_rank;
    if (coll->onehost.phase == ONEHOST_VERIFYING) return is_still_waiting(onehost) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (rank == coll->group->rank) rank++;
    if (rank >= coll->group->ranks) return WEFT_ERR_AGAIN;
    bool is_ready = coll->onehost.phase == ONEHOST_PUBLISHED
                        ? onehost_peer_has_arrived(onehost, rank, coll->onehost.seq) ||
                              onehost_message_call_of(onehost, rank, coll->sequence)
                        : onehost_slice_is_done(onehost, rank, coll->onehost.seq);
    return is_ready ? WEFT_ERR_AGAIN : WEFT_OK;
}

/* ---- queries of other modules ---- */
bool onehost_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out)
{
    const struct onehost *onehost = coll->group->onehost;
    uint32_t rank = onehost->awaited_rank;
    switch (coll->onehost.phase) {
    case ONEHOST_VERIFYING:
    case ONEHOST_PUBLISHED: *phase_out = "greeting"; break;
    case ONEHOST_COMPLETING: *phase_out = "leaving"; break;
    case ONEHOST_SCALING:
    case ONEHOST_WORKING: *phase_out = "reducing"; return false;
    case ONEHOST_STAGING: *phase_out = "reducing"; break;
    case ONEHOST_RECV_POSTED:
        *phase_out = "receiving";
        *rank_out = coll->args.root;
        return true;
    case ONEHOST_VOTE_PENDING:
        *phase_out = "meeting";
        for (rank = 0; rank < coll->group->ranks; rank++)
            if (rank != coll->group->rank && !(onehost->setup.voted_ranks >> rank & 1)) break;
        break;
    default: *phase_out = "queued"; return false;
    }
    if (rank == coll->group->rank) rank++;
    *rank_out = rank;
    return rank < coll->group->ranks;
}
