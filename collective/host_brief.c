/* host_brief.c - a short operation of the one-host plan that is announced, found complete and finished within its call.
 *
 *     nothing else posted here ──► announce ──► look, a few microseconds ──► all have come, alike: sum, over
 *                  │ else                          │ else
 *                  ▼                               ▼
 *        WEFT_ERR_AGAIN: nothing happened     an ordinary operation, whose announcement stands already
 *
 * A rank waits for those alone of whom it needs something: in a broadcast and a scatter for the root, in a reduce and a gather the root for
 * all others. Who needs nothing is over when it has announced, and sees later what the others called (host_ahead.c).
 *
 * What the others see is the same line as of an ordinary operation, so each rank decides for itself which way it goes. All that
 * is unusual (a rank that is late, dead, or calls otherwise; an abort, a deadline) is the ordinary operation's, which begins where
 * this one stops. Nothing can fail once the line is written: a record for the operation and the group's timer are there before.
 *
 * Where ranks outnumber cores, one that shares this core is given it before anybody elsewhere is looked for: so a core changes hands once
 * an operation for each rank that shares it, less one, which is the least.
 *
 * What is only book-keeping is done while the lines travel between the cores, and before the fence that waits for this rank's own. The
 * caller sees to it that the loop is stepped now and then: news of the group must not wait for ever. */
#include "collective/host.h"

enum {
    PATIENCE_NS = 5000,          /* as a loop spins before its first yield */
    PATIENCE_CROWDED_NS = 50000, /* some need this core to come at all: looks are yields then */
    LOOKS_PER_CLOCK = 16,
    LOOKS_ELSEWHERE = 256, /* at one that runs on another core, before this core is lent all the same */
    FEW_RANKS = 8,
};

/* Nothing else is under way in the group, and nothing has happened to it. */
static bool at_rest(const struct weft_group *group)
{
    const struct host *host = group->host;
    return host && host->state == HOST_ON && group->active_count + group->prepared_count + group->left_count == 0 &&
           group->fail_status == WEFT_OK && !group->lost && !group->closing && !group->timing_only && !group->tune && weft_list_empty(&host->queue) &&
           weft_list_empty(&group->computing) && !weft_list_empty(&group->records->idle) && weft_timer_running(&group->timer);
}

static bool same_call(const struct weft_coll_args *a, const struct weft_coll_args *b)
{
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->op == b->op && a->root == b->root && a->plan == b->plan &&
           a->counts == b->counts && a->counts_out == b->counts_out && a->unequal == b->unequal && a->signature == b->signature &&
           a->reproducible == b->reproducible;
}

static bool lacks_buffer(const struct weft_group *group, const struct weft_coll_args *args)
{
    bool root = args->root == group->rank;
    switch (args->kind) {
    case WEFT_COLL_BARRIER: return false;
    case WEFT_COLL_REDUCE:
    case WEFT_COLL_GATHER: return !args->in || (root && !args->out);
    case WEFT_COLL_SCATTER: return !args->out || (root && !args->in);
    default: return !args->in || !args->out;
    }
}

static bool from_root(const struct host *host) { return host->brief.kind == WEFT_COLL_BROADCAST || host->brief.kind == WEFT_COLL_SCATTER; }
static bool to_root(const struct host *host) { return host->brief.kind == WEFT_COLL_REDUCE || host->brief.kind == WEFT_COLL_GATHER; }
static bool is_root(const struct host *host) { return host->brief.root == host->group->rank; }
static bool waits_for_root(const struct host *host) { return from_root(host) && !is_root(host); }

/* It needs nothing of the others. */
static bool leads(const struct host *host) { return is_root(host) ? from_root(host) : to_root(host); }

/* Once for all calls that are alike. Who leads is over as soon as it has announced, and has it recorded so. */
static void know(struct host *host, const struct weft_coll_args *args)
{
    const struct weft_group *group = host->group;
    const bool barrier = args->kind == WEFT_COLL_BARRIER;
    const size_t elem_bytes = barrier ? 1 : weft_dtype_bytes(args->dtype);
    host->brief = (struct host_call){.kind = args->kind, .count = barrier ? 0 : args->count, .dtype = (uint8_t)(barrier ? 0 : args->dtype),
                                     .op = (uint8_t)(coll_sums(args->kind) ? args->op : 0), .root = coll_rooted(args->kind) ? args->root : 0};
    host->known.name = weft_coll_kind_name(args->kind);
    host->known.bytes = host_short_bytes(group, args);
    host->known.event_bytes = host->brief.count * elem_bytes;
    host->known.moved_bytes = host_moved_short(group, args);
    host->known.leads = leads(host);
    host->known.small = group->ranks <= FEW_RANKS && !host_needs_room(host->known.event_bytes);
    host->record = coll_record_of(group, 0, 0, true);
    host->record.kind = (uint8_t)args->kind, host->record.count = host->brief.count, host->record.dtype = host->brief.dtype, host->record.op = host->brief.op;
    host->record.root = host->brief.root, host->record.plan = WEFT_PLAN_ONE_HOST;
    if (host->known.leads) host->record.phase = "done", host->record.status = WEFT_OK;
}

/* Look at a call as the post does, once for all calls that are alike. */
static bool fits(struct host *host, const struct weft_coll_args *args)
{
    if (lacks_buffer(host->group, args)) return false; /* perhaps refused: the post knows */
    if (same_call(&host->asked, args)) return host->brief.kind != 0;
    weft_loop_guard(host->group->loop);
    host->asked = *args;
    host->brief.kind = 0;
    struct weft_error error;
    if (!host_takes(host->group, args) || args->signature || coll_check(host->group, args, &error) < 0 || !host_is_short(host->group, args))
        return false;
    know(host, args);
    return true;
}

/* What is always the same in it was written long ago: small fields that are written and then read as a word make the processor wait
 * until all stores before them have left it, the announcement's too. */
static uint64_t record(struct host *host, uint64_t sequence, uint64_t now_ns)
{
    host->record.sequence = sequence;
    host->record.posted_ns = host->record.started_ns = now_ns;
    if (host->known.leads) host->record.ended_ns = now_ns;
    return weft_recorder_add(host->group->recorder, &host->record);
}

static bool alike(const struct host_post *post, const struct host_call *call, uint64_t sequence)
{
    return post->sequence == sequence && post->count == call->count && post->kind == (uint8_t)call->kind && post->dtype == call->dtype &&
           post->op == call->op && post->root == call->root && !(post->flags & HOST_UNEQUAL);
}

static bool comes(struct host *host, uint32_t rank, uint64_t number, uint64_t until_ns)
{
    if (host_has_come(host, rank, number)) return true;
    host->waited = true;
    for (uint32_t looks = 1; !host_has_come(host, rank, number); looks++) {
        bool shares = host_needs_this_core(host, rank), yields = shares || (host->crowded && looks % LOOKS_ELSEWHERE == 0);
        if (shares) host_apart(host);
        if ((yields || looks % LOOKS_PER_CLOCK == 0) && weft_now_ns(host->group->env) > until_ns) return false;
        weft_relax(yields);
    }
    return true;
}

static bool comes_alike(struct host *host, uint32_t rank, uint64_t number, uint64_t sequence, uint64_t until_ns)
{
    return comes(host, rank, number, until_ns) && alike(host_post_of(host->peers[rank].segment, number), &host->brief, sequence) &&
           host_contribution(host, rank, number, host_said_bytes(host->group, &host->asked, rank));
}

/* First those that need this core: a rank elsewhere may wait for just them, and would be looked at in vain. */
static bool neighbours_come(struct host *host, uint64_t number, uint64_t until_ns)
{
    for (uint32_t rank = 0; rank < host->group->ranks; rank++)
        if (rank != host->group->rank && host_needs_this_core(host, rank) && !comes(host, rank, number, until_ns)) return false;
    return true;
}

/* The root, or all others, have announced the same, soon; and before it what this rank did. */
static bool all_come(struct host *host, uint64_t number, uint64_t sequence, uint64_t since_ns)
{
    const struct weft_group *group = host->group;
    uint64_t until_ns = since_ns + (host->crowded ? PATIENCE_CROWDED_NS : PATIENCE_NS);
    if (waits_for_root(host)) {
        if (!comes_alike(host, host->brief.root, number, sequence, until_ns)) return false;
        host_root_came(host, number);
        return true;
    }
    if (host->crowded && !neighbours_come(host, number, until_ns)) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !comes_alike(host, rank, number, sequence, until_ns)) return false;
    host_all_came(host, number);
    return host_settle(host, number);
}

/* The others are late, or something is wrong: from here on it is an operation like others, but for what was announced. */
static void becomes_ordinary(struct weft_group *group, const struct weft_coll_args *given, uint64_t number, uint64_t record_number,
                             weft_coll_done_fn done, void *context, struct weft_coll **coll_out)
{
    struct weft_coll_args args = *given;
    struct weft_error error;
    weft_loop_guard(group->loop);
    group->host->next = number;
    group->sequence--;
    enum weft_status status = coll_prepare(group, &args, true, 0, done, context, coll_out, &error);
    WEFT_ASSERT(status == WEFT_OK); /* checked before, and its record lay there */
    (*coll_out)->host.announced = true;
    (*coll_out)->record_number = record_number;
    group_watch(group, (*coll_out)->posted_ns, (*coll_out)->deadline_ns); /* the timer runs already */
    coll_launch(*coll_out, true, (*coll_out)->posted_ns);
}

static void event(const struct host *host, enum weft_event_phase phase, uint64_t sequence, uint64_t now_ns)
{
    const struct weft_group *group = host->group;
    weft_event_ring_add_at(group->events, now_ns, host->known.name, phase, coll_event_id(group, sequence), UINT32_MAX, host->known.event_bytes, WEFT_OK);
}

/* Who leads has nothing to wait for: one entry says that it began and that it is over. */
static void record_leader(struct host *host, uint64_t sequence)
{
    uint64_t now_ns = weft_now_ns(host->group->env);
    event(host, WEFT_EVENT_BEGIN, sequence, now_ns);
    record(host, sequence, now_ns);
    event(host, WEFT_EVENT_END, sequence, now_ns);
}

/* Announced, and it needs the others. */
static enum weft_status meet(struct host *host, const struct weft_coll_args *args, uint64_t number, uint64_t sequence, weft_coll_done_fn done,
                             void *context, struct weft_coll **coll_out)
{
    struct weft_group *group = host->group;
    uint64_t now_ns = weft_now_ns(group->env);
    event(host, WEFT_EVENT_BEGIN, sequence, now_ns);
    uint64_t record_number = record(host, sequence, now_ns);
    host_announced(host);
    host->waited = false;
    if (!all_come(host, number, sequence, now_ns)) {
        struct weft_coll_args late = *args;
        late.posted_ns = now_ns;
        becomes_ordinary(group, &late, number, record_number, done, context, coll_out);
        return WEFT_IN_PROGRESS;
    }
    if (coll_sums(args->kind)) weft_loop_guard(group->loop);
    host_work_short(host, args, number);
    host_over(host, number);
    uint64_t ended_ns = host->known.small && !host->waited ? now_ns : weft_now_ns(group->env);
    event(host, WEFT_EVENT_END, sequence, ended_ns);
    weft_recorder_end(group->recorder, record_number, ended_ns);
    return WEFT_OK;
}

enum weft_status weft_coll_brief(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context,
                                 struct weft_coll **coll_out)
{
    if (args->kind == WEFT_COLL_SEND || args->kind == WEFT_COLL_RECV) return host_pair_brief(group, args, done, context, coll_out);
    if (!at_rest(group) || !fits(group->host, args)) return WEFT_ERR_AGAIN;
    struct host *host = group->host;
    size_t bytes = host->known.bytes;
    if (host_needs_room(bytes) && !host_room_take(host, host_room_of(bytes))) return WEFT_ERR_AGAIN;
    if (!host_may_announce(host, host->known.leads, bytes)) return WEFT_ERR_AGAIN;
    uint64_t number = host->next++, sequence = group->sequence++;
    host_announce_short(host, &host->brief, args->kind == WEFT_COLL_BROADCAST ? args->out : args->in, bytes, number, sequence);
    if (host->known.leads) {
        host_work_short(host, args, number);
        record_leader(host, sequence);
        host_announced(host);
    } else if (meet(host, args, number, sequence, done, context, coll_out) == WEFT_IN_PROGRESS) {
        return WEFT_IN_PROGRESS;
    }
    host->moved_bytes += host->known.moved_bytes;
    return WEFT_OK;
}
