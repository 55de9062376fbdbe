/* fastpath.c - completes a copy-in operation inside its call, without the engine thread and the queue.
 *
 *   nothing else posted ──► publish ──► poll, a few us ──► all arrived and match: reduce or copy, complete
 *             │ else                          │ else
 *             ▼                               ▼
 *   WEFT_ERR_AGAIN: nothing happened     falls back to the queue; the descriptor stays published
 *
 * A rank waits only for the ranks that it depends on: the root, or the contributors. A rank that needs no
 * peer completes after its publish (sequence.c). Peers see an ordinary descriptor, so each rank decides for
 * itself. Nothing can fail after the publish: the operation's record and the group's timer exist before it.
 * Late or dead ranks, differing calls, aborts and deadlines are left to the queue. If ranks are
 * oversubscribed, a rank on this core is waited for first, by yielding. The caller must step the loop
 * regularly, so that control messages are handled. */
#include "collective/core/record/op_record.h"
#include "collective/onehost/onehost.h"

enum {
    POLL_TIMEOUT_NS = 5000,                 /* as a loop spins before its first yield */
    POLL_TIMEOUT_OVERSUBSCRIBED_NS = 50000, /* some ranks need this core to arrive, so polls yield */
    POLLS_PER_CLOCK_READ = 16,
    POLLS_PER_YIELD = 256, /* for a rank on another core, before this core is yielded */
    SMALL_RANKS_MAX = 8,
};

/* No other operation is active in the group, and no failure or departure is known. */
static bool is_idle(const struct weft_group *group)
{
    const struct onehost *onehost = group->onehost;
    return onehost && onehost->state == ONEHOST_ENABLED &&
           group->ops.active_count + group->ops.prepared_count + group->departures.left_count == 0 &&
           group->failure.fail_status == WEFT_OK && !group->departures.lost && !group->progress.is_closing &&
           !group->modes.timing_only && !group->planning.retune && weft_list_empty(&onehost->polling.queue) &&
           weft_list_empty(&group->ops.computing) && !weft_list_empty(&group->ops.op_pool->idle) &&
           weft_timer_is_running(&group->progress.timer);
}

static bool same_call(const struct weft_coll_args *a, const struct weft_coll_args *b)
{
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
           a->label == b->label && a->root == b->root && a->plan == b->plan && a->counts == b->counts &&
           a->counts_out == b->counts_out && a->unequal == b->unequal && a->subject == b->subject &&
           a->reproducible == b->reproducible;
}

static bool has_buffers(const struct onehost_prepared *prepared, const void *in, const void *out)
{
    return (in || !prepared->has_in) && (out || !prepared->has_out) &&
           coll_buffers_are_valid(&prepared->layout, in, out);
}

/* Which buffers the call has, and which ranks it depends on: none, the root, or all. */
static void prepare_roles(const struct weft_group *group, struct onehost_prepared *prepared)
{
    const enum weft_coll_kind kind = prepared->call.kind;
    const bool root = prepared->call.root == group->rank;
    const bool from_root = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER,
               to_root = kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_GATHER;
    prepared->has_in = kind != WEFT_COLL_BARRIER && (kind != WEFT_COLL_SCATTER || root);
    prepared->has_out = kind != WEFT_COLL_BARRIER && (!to_root || root);
    prepared->completes_early = root ? from_root : to_root;
    prepared->needs_root_only = from_root && !root;
    prepared->has_work = kind != WEFT_COLL_BARRIER && prepared->call.count > 0 &&
                         (!prepared->completes_early || kind == WEFT_COLL_SCATTER);
    prepared->is_sum = coll_is_reduction(kind);
    prepared->is_rooted = coll_has_root(kind);
    const struct weft_coll_caller caller = coll_caller(group);
    prepared->layout = coll_buffer_layout_of(&caller, &prepared->args);
}

static void prepare_records(const struct weft_group *group, struct onehost_prepared *prepared)
{
    struct weft_record *begin_record = &prepared->begin_record;
    *begin_record = coll_record_of(group, 0, 0, true);
    begin_record->kind = (uint8_t)prepared->call.kind, begin_record->count = prepared->call.count,
    begin_record->dtype = prepared->call.dtype,
    begin_record->op = coll_is_reduction(prepared->call.kind) ? prepared->call.op : 0;
    begin_record->root = prepared->call.root, begin_record->plan = WEFT_PLAN_ONE_HOST;
    prepared->done = *begin_record;
    prepared->done.phase = "done", prepared->done.status = WEFT_OK;
}

static void prepare(const struct weft_group *group, struct onehost_prepared *prepared)
{
    const struct weft_coll_args *args = &prepared->args;
    const bool barrier = args->kind == WEFT_COLL_BARRIER;
    prepared->call = (struct onehost_call){
        .kind = args->kind,
        .count = barrier ? 0 : args->count,
        .dtype = (uint8_t)(barrier ? 0 : args->dtype),
        .op = (uint8_t)(coll_is_reduction(args->kind) ? (unsigned)args->op : (unsigned)args->label),
        .root = coll_has_root(args->kind) ? args->root : 0};
    prepared->name = weft_coll_kind_name(args->kind);
    prepared->bytes = onehost_copyin_bytes(group, args);
    prepared->event_bytes = prepared->call.count * (barrier ? 1 : weft_dtype_bytes(args->dtype));
    prepared->moved_bytes = onehost_copyin_moved_bytes(group, args);
    prepared->is_small = group->ranks <= SMALL_RANKS_MAX && !onehost_needs_slot(prepared->event_bytes);
    prepared->is_all_inline = true;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        prepared->is_all_inline =
            prepared->is_all_inline && !onehost_needs_slot(onehost_copyin_bytes_of(group, args, rank));
    prepare_roles(group, prepared);
    prepare_records(group, prepared);
}

/* Arguments that matter only if the call does not complete at once. */
static bool same_terms(const struct weft_coll_args *a, const struct weft_coll_args *b)
{
    return a->deadline_ns == b->deadline_ns && a->factor == b->factor && a->total == b->total;
}

static bool can_prepare(struct weft_group *group, struct onehost_prepared *prepared)
{
    const struct weft_coll_args *args = &prepared->args;
    struct weft_error error;
    /* its factor usually changes with each call */
    bool scales = coll_is_reduction(args->kind) && args->op == WEFT_SCALED_SUM;
    if (scales || !onehost_accepts(group, args) || args->subject ||
        coll_check(group, args, &error) != WEFT_OK)
        return false;
    prepared->can_use_direct = onehost_fastpath_direct_accepts(group, args);
    prepared->can_copyin = onehost_uses_copyin(group, args);
    return prepared->can_use_direct || (prepared->can_copyin && !onehost_can_prefer_direct(group, args));
}

static struct onehost_prepared *prepared_create(const struct weft_group *group)
{
    weft_loop_guard_thread(group->loop);
    return weft_alloc_zero(group->env, sizeof(struct onehost_prepared));
}

void onehost_prepared_free(struct onehost *onehost)
{
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) {
        if (onehost->prepared[kind])
            weft_free_bytes(onehost->group->env, onehost->prepared[kind]->direct_coll);
        weft_free_bytes(onehost->group->env, onehost->prepared[kind]);
    }
}

void onehost_prepared_invalidate(struct onehost *onehost)
{
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) {
        if (!onehost->prepared[kind]) continue;
        onehost->prepared[kind]->is_usable = false;
        onehost->prepared[kind]->args.kind = WEFT_COLL_KIND_COUNT; /* matches no call */
    }
}

/* Validates the call as a post does. NULL: the fast path does not accept it. */
static struct onehost_prepared *prepared_find(struct weft_group *group, const struct weft_coll_args *args)
{
    static _Atomic uint64_t last_id;
    struct onehost_prepared *prepared = group->onehost->prepared[args->kind];
    bool same = prepared && same_call(&prepared->args, args);
    if (same && same_terms(&prepared->args, args)) return prepared->is_usable ? prepared : NULL;
    if (!prepared && !(prepared = group->onehost->prepared[args->kind] = prepared_create(group))) return NULL;
    prepared->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    prepared->args = *args;
    weft_loop_guard_thread(group->loop);
    if (!same && (prepared->is_usable = can_prepare(group, prepared))) prepare(group, prepared);
    /* depends on the deadline, factor and total */
    if (prepared->is_usable && prepared->can_use_direct) onehost_fastpath_direct_prepare(group, prepared);
    return prepared->is_usable ? prepared : NULL;
}

/* Constant fields were written long before. A small field that is written and then read as part of a word
 * stalls until all earlier stores have left the core, the descriptor's too. */
static uint64_t record(struct onehost *onehost, struct weft_record *record, uint64_t sequence,
                       uint64_t now_ns, uint64_t ended_ns)
{
    record->sequence = sequence;
    record->posted_ns = record->started_ns = now_ns;
    record->ended_ns = ended_ns;
    return weft_recorder_add(onehost->group->observers.recorder, record);
}

bool onehost_descriptor_matches(const struct onehost_descriptor *descriptor, const struct onehost_call *call,
                                uint64_t sequence)
{
    return descriptor->sequence == sequence && descriptor->count == call->count &&
           descriptor->kind == (uint8_t)call->kind && descriptor->dtype == call->dtype &&
           descriptor->op == call->op && descriptor->root == call->root &&
           !(descriptor->flags & ONEHOST_UNEQUAL);
}

/* The timeout starts at the first reading of the clock. */
static bool poll_timed_out(struct onehost *onehost)
{
    uint64_t now_ns = weft_now_ns(onehost->group->env);
    if (onehost->polling.fast_poll_until_ns == 0)
        onehost->polling.fast_poll_until_ns =
            now_ns + (onehost->is_oversubscribed ? POLL_TIMEOUT_OVERSUBSCRIBED_NS : POLL_TIMEOUT_NS);
    return now_ns > onehost->polling.fast_poll_until_ns;
}

bool onehost_fastpath_poll_pause(struct onehost *onehost, bool shares, uint32_t polls)
{
    bool yields = shares || (onehost->is_oversubscribed && polls % POLLS_PER_YIELD == 0);
    if (shares) onehost_core_migration(onehost);
    if ((yields || polls % POLLS_PER_CLOCK_READ == 0) && poll_timed_out(onehost)) return false;
    weft_cpu_relax(yields);
    return true;
}

bool onehost_fastpath_wait_arrival(struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    if (onehost_peer_has_arrived(onehost, rank, seq)) return true;
    onehost->polling.fast_has_waited = true;
    for (uint32_t polls = 1; !onehost_peer_has_arrived(onehost, rank, seq); polls++)
        if (!onehost_fastpath_poll_pause(onehost, onehost_peer_shares_core(onehost, rank), polls))
            return false;
    return true;
}

static bool wait_match(struct onehost *onehost, const struct onehost_prepared *prepared, uint32_t rank,
                       uint64_t seq, uint64_t sequence)
{
    const struct onehost_descriptor *descriptor = onehost_descriptor_of(onehost->peers[rank].segment, seq);
    return onehost_fastpath_wait_arrival(onehost, rank, seq) &&
           onehost_descriptor_matches(descriptor, &prepared->call, sequence) &&
           !(descriptor->flags & ONEHOST_PREFERS_DIRECT) &&
           (prepared->is_all_inline ||
            onehost_copyin_of(onehost, rank, seq,
                              onehost_copyin_bytes_of(onehost->group, &prepared->args, rank)));
}

/* Ranks on this core first: a rank on another core can depend on them, so polling it first would be in
 * vain. */
bool onehost_fastpath_wait_core_sharers(struct onehost *onehost, uint64_t seq)
{
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++)
        if (rank != onehost->group->rank && onehost_peer_shares_core(onehost, rank) &&
            !onehost_fastpath_wait_arrival(onehost, rank, seq))
            return false;
    return true;
}

/* Waits until the root or all peers have published the same call, and verifies the calls before it. */
static bool wait_all(struct onehost *onehost, const struct onehost_prepared *prepared, uint64_t seq,
                     uint64_t sequence)
{
    const struct weft_group *group = onehost->group;
    if (prepared->needs_root_only) {
        if (!wait_match(onehost, prepared, prepared->call.root, seq, sequence)) return false;
        onehost_root_arrived(onehost, seq);
        return true;
    }
    if (onehost->is_oversubscribed && !onehost_fastpath_wait_core_sharers(onehost, seq)) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !wait_match(onehost, prepared, rank, seq, sequence)) return false;
    onehost_all_arrived(onehost, seq);
    return onehost->run_ahead.verified_seq >= seq || onehost_verify(onehost, seq);
}

/* The ranks that it depends on have published something. */
static bool have_all_arrived(const struct onehost *onehost, const struct onehost_prepared *prepared,
                             uint64_t seq)
{
    const struct weft_group *group = onehost->group;
    if (prepared->needs_root_only) return onehost_peer_has_arrived(onehost, prepared->call.root, seq);
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !onehost_peer_has_arrived(onehost, rank, seq)) return false;
    return true;
}

void onehost_fall_back_to_queue(struct weft_group *group, const struct weft_coll_args *given,
                                const struct onehost_started *started, const struct weft_coll *so_far,
                                const struct onehost_completion *after)
{
    struct weft_coll_args args = *given;
    struct weft_error error;
    const uint64_t late_ns = weft_now_ns(group->env); /* the deadline counts from here */
    args.posted_ns = started->now_ns < late_ns ? started->now_ns : late_ns;
    weft_loop_guard_thread(group->loop);
    group->onehost->next_seq = started->seq;
    group->ops.sequence--;
    enum weft_status status =
        coll_prepare(group, &args, true, 0, after->done, after->context, after->coll_out, &error);
    WEFT_ASSERT(status == WEFT_OK); /* validated before, and an idle record was there */
    struct weft_coll *coll = *after->coll_out;
    if (so_far) coll->onehost = so_far->onehost;
    weft_list_init(&coll->onehost.link);
    coll->path.is_published = true;
    coll->launch.record_number = started->record_number;
    group_schedule_at(group, coll->posted_ns, coll->deadline_ns); /* the timer runs already */
    coll_launch(coll, true, coll->posted_ns);
}

static void event(const struct onehost *onehost, const struct onehost_prepared *prepared,
                  enum weft_event_phase phase, uint64_t sequence, uint64_t now_ns)
{
    const struct weft_group *group = onehost->group;
    weft_event_ring_add_at(group->observers.events, now_ns, prepared->name, phase,
                           coll_event_id(group, sequence), UINT32_MAX, prepared->event_bytes, WEFT_OK);
}

static void work(struct onehost *onehost, const struct onehost_prepared *prepared, uint64_t seq)
{
    if (!prepared->has_work) return;
    if (prepared->is_sum) weft_loop_guard_thread(onehost->group->loop);
    onehost_copyin_work(onehost, &prepared->args, seq);
}

static uint64_t later_ns(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

/* Completes without a wait: one record for begin and end. */
static enum weft_status complete_immediately(struct onehost *onehost, struct onehost_prepared *prepared,
                                             uint64_t seq, uint64_t sequence)
{
    struct weft_env *env = onehost->group->env;
    uint64_t now_ns = weft_timestamp_ns(&onehost->stamp, env);
    work(onehost, prepared, seq);
    if (!prepared->completes_early) onehost_retire(onehost, seq);
    uint64_t ended_ns =
        prepared->is_small ? now_ns : later_ns(now_ns, weft_timestamp_ns(&onehost->stamp, env));
    record(onehost, &prepared->done, sequence, now_ns, ended_ns);
    if (ended_ns == now_ns) {
        event(onehost, prepared, WEFT_EVENT_BOTH, sequence, now_ns);
    } else {
        event(onehost, prepared, WEFT_EVENT_BEGIN, sequence, now_ns);
        event(onehost, prepared, WEFT_EVENT_END, sequence, ended_ns);
    }
    onehost_wake_peers(onehost);
    return WEFT_OK;
}

struct onehost_started onehost_fastpath_begin(struct onehost *onehost, struct onehost_prepared *prepared,
                                              uint64_t seq, uint64_t sequence)
{
    uint64_t now_ns = weft_timestamp_ns(&onehost->stamp, onehost->group->env);
    event(onehost, prepared, WEFT_EVENT_BEGIN, sequence, now_ns);
    struct onehost_started started = {seq, sequence, now_ns,
                                      record(onehost, &prepared->begin_record, sequence, now_ns, 0)};
    onehost_wake_peers(onehost);
    onehost->polling.fast_has_waited = false;
    onehost->polling.fast_poll_until_ns = 0;
    return started;
}

void onehost_fastpath_end(struct onehost *onehost, const struct onehost_prepared *prepared,
                          const struct onehost_started *started)
{
    onehost_retire(onehost, started->seq);
    uint64_t ended_ns =
        prepared->is_small && !onehost->polling.fast_has_waited
            ? started->now_ns
            : later_ns(started->now_ns, weft_timestamp_ns(&onehost->stamp, onehost->group->env));
    event(onehost, prepared, WEFT_EVENT_END, started->sequence, ended_ns);
    weft_recorder_end(onehost->group->observers.recorder, started->record_number, ended_ns);
}

/* Published, but a rank that it depends on was not there. */
static enum weft_status wait_and_complete(struct onehost *onehost, struct onehost_prepared *prepared,
                                          uint64_t seq, uint64_t sequence,
                                          const struct onehost_completion *after)
{
    struct onehost_started started = onehost_fastpath_begin(onehost, prepared, seq, sequence);
    if (!wait_all(onehost, prepared, seq, sequence)) {
        onehost_fall_back_to_queue(onehost->group, &prepared->args, &started, NULL, after);
        return WEFT_IN_PROGRESS;
    }
    work(onehost, prepared, seq);
    onehost_fastpath_end(onehost, prepared, &started);
    return WEFT_OK;
}

/* If peers may use their buffers directly instead, the operation may have to go by messages. A rank that
 * completed before it saw all descriptors would not know. */
static bool may_copyin(struct weft_group *group, const struct onehost_prepared *prepared)
{
    if (!prepared->can_use_direct) return true;
    return prepared->can_copyin && !prepared->completes_early && !prepared->needs_root_only &&
           !(prepared->direct_coll && prepared->direct_coll->onehost.prefers_direct) &&
           op_pool_has_scratch(group, prepared->scratch_bytes);
}

static void trail_call(struct weft_group *group, const struct onehost_call *call, uint64_t sequence)
{
    const struct coll_header called = {.kind = (uint8_t)call->kind,
                                       .dtype = call->dtype,
                                       .op = call->op,
                                       .root = call->root,
                                       .count = call->count,
                                       .sequence = sequence};
    call_digest_add(group, &called);
}

static enum weft_status start_copyin(struct weft_group *group, struct onehost_prepared *prepared,
                                     const void *in, void *out, const struct onehost_completion *after)
{
    struct onehost *onehost = group->onehost;
    if (onehost_needs_slot(prepared->bytes) &&
        !onehost_slots_acquire(onehost, onehost_slot_class_of(prepared->bytes)))
        return WEFT_ERR_AGAIN;
    if (!onehost_can_publish(onehost, prepared->completes_early, prepared->bytes)) return WEFT_ERR_AGAIN;
    prepared->args.in = in;
    prepared->args.out = out;
    uint64_t seq = onehost->next_seq++, sequence = group->ops.sequence++;
    if (prepared->is_rooted) trail_call(group, &prepared->call, sequence);
    onehost_publish_copyin(onehost, &prepared->call, prepared->call.kind == WEFT_COLL_BROADCAST ? out : in,
                           prepared->bytes, seq, sequence);
    bool waits = !prepared->completes_early &&
                 !(have_all_arrived(onehost, prepared, seq) && wait_all(onehost, prepared, seq, sequence));
    enum weft_status status = waits ? wait_and_complete(onehost, prepared, seq, sequence, after)
                                    : complete_immediately(onehost, prepared, seq, sequence);
    if (status == WEFT_OK) onehost->moved_bytes += prepared->moved_bytes;
    return status;
}

static enum weft_status run_prepared(struct weft_group *group, struct onehost_prepared *prepared,
                                     const void *in, void *out, const struct onehost_completion *after)
{
    if (!has_buffers(prepared, in, out)) return WEFT_ERR_AGAIN; /* possibly invalid: the post validates it */
    enum weft_status status =
        prepared->can_use_direct ? onehost_fastpath_direct(group, prepared, in, out, after) : WEFT_ERR_AGAIN;
    /* no copy-in either: peers may use their buffers directly, and so will this rank */
    if (status == WEFT_ERR_NO_MEMORY) return WEFT_ERR_AGAIN;
    return status == WEFT_ERR_AGAIN && may_copyin(group, prepared)
               ? start_copyin(group, prepared, in, out, after)
               : status;
}

enum weft_status weft_coll_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out)
{
    if (coll_is_sendrecv(args->kind))
        return onehost_sendrecv_try_fastpath(group, args, done, context, coll_out);
    struct onehost_prepared *prepared = is_idle(group) ? prepared_find(group, args) : NULL;
    return prepared ? run_prepared(group, prepared, args->in, args->out,
                                   &(struct onehost_completion){done, context, coll_out})
                    : WEFT_ERR_AGAIN;
}

uint64_t weft_coll_prepared_id(const struct weft_group *group, enum weft_coll_kind kind)
{
    return group->onehost && group->onehost->prepared[kind] ? group->onehost->prepared[kind]->id : 0;
}

enum weft_status weft_coll_try_prepared(struct weft_group *group, enum weft_coll_kind kind,
                                        uint64_t prepared_id, const void *in, void *out,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out)
{
    if (!is_idle(group)) return WEFT_ERR_AGAIN;
    struct onehost_prepared *prepared = group->onehost->prepared[kind];
    bool same = prepared && prepared->id == prepared_id && prepared->is_usable;
    return same
               ? run_prepared(group, prepared, in, out, &(struct onehost_completion){done, context, coll_out})
               : WEFT_ERR_AGAIN;
}
