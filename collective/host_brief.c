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
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->op == b->op && a->label == b->label && a->root == b->root && a->plan == b->plan &&
           a->counts == b->counts && a->counts_out == b->counts_out && a->unequal == b->unequal && a->subject == b->subject &&
           a->reproducible == b->reproducible;
}

static bool has_buffers(const struct host_shape *shape, const void *in, const void *out)
{
    return (in || !shape->reads) && (out || !shape->writes) && coll_places_fit(&shape->places, in, out);
}

/* Which buffers it has, and whom it needs: nobody else, in the first case, or nobody but the root. */
static void know_sides(const struct weft_group *group, struct host_shape *shape)
{
    const enum weft_coll_kind kind = shape->call.kind;
    const bool root = shape->call.root == group->rank;
    const bool from_root = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER, to_root = kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_GATHER;
    shape->reads = kind != WEFT_COLL_BARRIER && (kind != WEFT_COLL_SCATTER || root);
    shape->writes = kind != WEFT_COLL_BARRIER && (!to_root || root);
    shape->leads = root ? from_root : to_root;
    shape->follows = from_root && !root;
    shape->works = kind != WEFT_COLL_BARRIER && shape->call.count > 0 && (!shape->leads || kind == WEFT_COLL_SCATTER);
    shape->sums = coll_sums(kind);
    shape->rooted = coll_rooted(kind);
    const struct weft_coll_place place = coll_place(group);
    shape->places = coll_places_of(&place, &shape->args);
}

static void know_records(const struct weft_group *group, struct host_shape *shape)
{
    struct weft_record *open = &shape->open;
    *open = coll_record_of(group, 0, 0, true);
    open->kind = (uint8_t)shape->call.kind, open->count = shape->call.count, open->dtype = shape->call.dtype, open->op = coll_sums(shape->call.kind) ? shape->call.op : 0;
    open->root = shape->call.root, open->plan = WEFT_PLAN_ONE_HOST;
    shape->done = *open;
    shape->done.phase = "done", shape->done.status = WEFT_OK;
}

static void know(const struct weft_group *group, struct host_shape *shape)
{
    const struct weft_coll_args *args = &shape->args;
    const bool barrier = args->kind == WEFT_COLL_BARRIER;
    shape->call = (struct host_call){.kind = args->kind, .count = barrier ? 0 : args->count, .dtype = (uint8_t)(barrier ? 0 : args->dtype),
                                     .op = (uint8_t)(coll_sums(args->kind) ? (unsigned)args->op : (unsigned)args->label), .root = coll_rooted(args->kind) ? args->root : 0};
    shape->name = weft_coll_kind_name(args->kind);
    shape->bytes = host_short_bytes(group, args);
    shape->event_bytes = shape->call.count * (barrier ? 1 : weft_dtype_bytes(args->dtype));
    shape->moved_bytes = host_moved_short(group, args);
    shape->small = group->ranks <= FEW_RANKS && !host_needs_room(shape->event_bytes);
    shape->in_lines = true;
    for (uint32_t rank = 0; rank < group->ranks; rank++) shape->in_lines = shape->in_lines && !host_needs_room(host_said_bytes(group, args, rank));
    know_sides(group, shape);
    know_records(group, shape);
}

/* What nothing follows from before the work is done. */
static bool same_terms(const struct weft_coll_args *a, const struct weft_coll_args *b)
{
    return a->deadline_ns == b->deadline_ns && a->factor == b->factor && a->total == b->total;
}

static bool may_be_over(struct weft_group *group, struct host_shape *shape)
{
    const struct weft_coll_args *args = &shape->args;
    struct weft_error error;
    bool scales = coll_sums(args->kind) && args->op == WEFT_SCALED_SUM; /* by a factor that is another in each call, mostly */
    if (scales || !host_takes(group, args) || args->subject || coll_check(group, args, &error) != WEFT_OK) return false;
    shape->maps = host_brief_maps(group, args);
    shape->says = host_is_short(group, args);
    return shape->maps || (shape->says && !host_may_lend(group, args));
}

static struct host_shape *shape_make(const struct weft_group *group)
{
    weft_loop_guard(group->loop);
    return weft_alloc_zero(group->env, sizeof(struct host_shape));
}

void host_shapes_free(struct host *host)
{
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) {
        if (host->shapes[kind]) weft_free_bytes(host->group->env, host->shapes[kind]->mapped);
        weft_free_bytes(host->group->env, host->shapes[kind]);
    }
}

void host_shapes_forget(struct host *host)
{
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) {
        if (!host->shapes[kind]) continue;
        host->shapes[kind]->fits = false;
        host->shapes[kind]->args.kind = WEFT_COLL_KIND_COUNT; /* like no call */
    }
}

/* Look at a call as the post does. NULL: it is not for this way. */
static struct host_shape *shape_of(struct weft_group *group, const struct weft_coll_args *args)
{
    static _Atomic uint64_t numbers;
    struct host_shape *shape = group->host->shapes[args->kind];
    bool same = shape && same_call(&shape->args, args);
    if (same && same_terms(&shape->args, args)) return shape->fits ? shape : NULL;
    if (!shape && !(shape = group->host->shapes[args->kind] = shape_make(group))) return NULL;
    shape->number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
    shape->args = *args;
    weft_loop_guard(group->loop);
    if (!same && (shape->fits = may_be_over(group, shape))) know(group, shape);
    if (shape->fits && shape->maps) host_brief_mapped_know(group, shape); /* its terms are part of that */
    return shape->fits ? shape : NULL;
}

/* What is always the same in it was written long ago: small fields that are written and then read as a word make the processor wait
 * until all stores before them have left it, the announcement's too. */
static uint64_t record(struct host *host, struct weft_record *record, uint64_t sequence, uint64_t now_ns, uint64_t ended_ns)
{
    record->sequence = sequence;
    record->posted_ns = record->started_ns = now_ns;
    record->ended_ns = ended_ns;
    return weft_recorder_add(host->group->recorder, record);
}

bool host_brief_alike(const struct host_post *post, const struct host_call *call, uint64_t sequence)
{
    return post->sequence == sequence && post->count == call->count && post->kind == (uint8_t)call->kind && post->dtype == call->dtype &&
           post->op == call->op && post->root == call->root && !(post->flags & HOST_UNEQUAL);
}

/* It begins with the first look at the clock. */
static bool patience_ends(struct host *host)
{
    uint64_t now_ns = weft_now_ns(host->group->env);
    if (host->patient_ns == 0) host->patient_ns = now_ns + (host->crowded ? PATIENCE_CROWDED_NS : PATIENCE_NS);
    return now_ns > host->patient_ns;
}

bool host_brief_patient(struct host *host, bool shares, uint32_t looks)
{
    bool yields = shares || (host->crowded && looks % LOOKS_ELSEWHERE == 0);
    if (shares) host_apart(host);
    if ((yields || looks % LOOKS_PER_CLOCK == 0) && patience_ends(host)) return false;
    weft_relax(yields);
    return true;
}

bool host_brief_comes(struct host *host, uint32_t rank, uint64_t number)
{
    if (host_has_come(host, rank, number)) return true;
    host->waited = true;
    for (uint32_t looks = 1; !host_has_come(host, rank, number); looks++)
        if (!host_brief_patient(host, host_needs_this_core(host, rank), looks)) return false;
    return true;
}

static bool comes_alike(struct host *host, const struct host_shape *shape, uint32_t rank, uint64_t number, uint64_t sequence)
{
    const struct host_post *post = host_post_of(host->peers[rank].segment, number);
    return host_brief_comes(host, rank, number) && host_brief_alike(post, &shape->call, sequence) && !(post->flags & HOST_LENDS) &&
           (shape->in_lines || host_contribution(host, rank, number, host_said_bytes(host->group, &shape->args, rank)));
}

/* First those that need this core: a rank elsewhere may wait for just them, and would be looked at in vain. */
bool host_brief_neighbours_come(struct host *host, uint64_t number)
{
    for (uint32_t rank = 0; rank < host->group->ranks; rank++)
        if (rank != host->group->rank && host_needs_this_core(host, rank) && !host_brief_comes(host, rank, number)) return false;
    return true;
}

/* The root, or all others, have announced the same, soon; and before it what this rank did. */
static bool all_come(struct host *host, const struct host_shape *shape, uint64_t number, uint64_t sequence)
{
    const struct weft_group *group = host->group;
    if (shape->follows) {
        if (!comes_alike(host, shape, shape->call.root, number, sequence)) return false;
        host_root_came(host, number);
        return true;
    }
    if (host->crowded && !host_brief_neighbours_come(host, number)) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !comes_alike(host, shape, rank, number, sequence)) return false;
    host_all_came(host, number);
    return host->ahead.settled >= number || host_settle(host, number);
}

/* Those whom it waits for are there, whatever they have called. */
static bool all_here(const struct host *host, const struct host_shape *shape, uint64_t number)
{
    const struct weft_group *group = host->group;
    if (shape->follows) return host_has_come(host, shape->call.root, number);
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !host_has_come(host, rank, number)) return false;
    return true;
}

void host_brief_late(struct weft_group *group, const struct weft_coll_args *given, const struct host_begun *begun, const struct weft_coll *so_far, const struct host_after *after)
{
    struct weft_coll_args args = *given;
    struct weft_error error;
    const uint64_t late_ns = weft_now_ns(group->env); /* its time is measured from now on */
    args.posted_ns = begun->now_ns < late_ns ? begun->now_ns : late_ns;
    weft_loop_guard(group->loop);
    group->host->next = begun->number;
    group->sequence--;
    enum weft_status status = coll_prepare(group, &args, true, 0, after->done, after->context, after->coll_out, &error);
    WEFT_ASSERT(status == WEFT_OK); /* checked before, and its record lay there */
    struct weft_coll *coll = *after->coll_out;
    if (so_far) coll->host = so_far->host;
    weft_list_init(&coll->host.link);
    coll->host.announced = true;
    coll->record_number = begun->record_number;
    group_watch(group, coll->posted_ns, coll->deadline_ns); /* the timer runs already */
    coll_launch(coll, true, coll->posted_ns);
}

static void event(const struct host *host, const struct host_shape *shape, enum weft_event_phase phase, uint64_t sequence, uint64_t now_ns)
{
    const struct weft_group *group = host->group;
    weft_event_ring_add_at(group->events, now_ns, shape->name, phase, coll_event_id(group, sequence), UINT32_MAX, shape->event_bytes, WEFT_OK);
}

static void work(struct host *host, const struct host_shape *shape, uint64_t number)
{
    if (!shape->works) return;
    if (shape->sums) weft_loop_guard(host->group->loop);
    host_work_short(host, &shape->args, number);
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns) { return a_ns > b_ns ? a_ns : b_ns; }

/* Nothing was waited for: one entry says that it began and that it is over. */
static enum weft_status over_at_once(struct host *host, struct host_shape *shape, uint64_t number, uint64_t sequence)
{
    struct weft_env *env = host->group->env;
    uint64_t now_ns = weft_stamp_ns(&host->stamp, env);
    work(host, shape, number);
    if (!shape->leads) host_over(host, number);
    uint64_t ended_ns = shape->small ? now_ns : later(now_ns, weft_stamp_ns(&host->stamp, env));
    record(host, &shape->done, sequence, now_ns, ended_ns);
    if (ended_ns == now_ns) {
        event(host, shape, WEFT_EVENT_BOTH, sequence, now_ns);
    } else {
        event(host, shape, WEFT_EVENT_BEGIN, sequence, now_ns);
        event(host, shape, WEFT_EVENT_END, sequence, ended_ns);
    }
    host_announced(host);
    return WEFT_OK;
}

struct host_begun host_brief_begin(struct host *host, struct host_shape *shape, uint64_t number, uint64_t sequence)
{
    uint64_t now_ns = weft_stamp_ns(&host->stamp, host->group->env);
    event(host, shape, WEFT_EVENT_BEGIN, sequence, now_ns);
    struct host_begun begun = {number, sequence, now_ns, record(host, &shape->open, sequence, now_ns, 0)};
    host_announced(host);
    host->waited = false;
    host->patient_ns = 0;
    return begun;
}

void host_brief_end(struct host *host, const struct host_shape *shape, const struct host_begun *begun)
{
    host_over(host, begun->number);
    uint64_t ended_ns = shape->small && !host->waited ? begun->now_ns : later(begun->now_ns, weft_stamp_ns(&host->stamp, host->group->env));
    event(host, shape, WEFT_EVENT_END, begun->sequence, ended_ns);
    weft_recorder_end(host->group->recorder, begun->record_number, ended_ns);
}

/* Announced, and somebody whom it needs was not there. */
static enum weft_status meet(struct host *host, struct host_shape *shape, uint64_t number, uint64_t sequence, const struct host_after *after)
{
    struct host_begun begun = host_brief_begin(host, shape, number, sequence);
    if (!all_come(host, shape, number, sequence)) {
        host_brief_late(host->group, &shape->args, &begun, NULL, after);
        return WEFT_IN_PROGRESS;
    }
    work(host, shape, number);
    host_brief_end(host, shape, &begun);
    return WEFT_OK;
}

/* Where others may lend their buffers instead, it may have to go by messages: who is over before it has seen all the others would not hear of it. */
static bool may_say(struct weft_group *group, const struct host_shape *shape)
{
    if (!shape->maps) return true;
    return shape->says && !shape->leads && !shape->follows && !(shape->mapped && shape->mapped->host.lends) && coll_has_record(group, shape->scratch_bytes);
}

static void trail_call(struct weft_group *group, const struct host_call *call, uint64_t sequence)
{
    const struct coll_header called = {.kind = (uint8_t)call->kind, .dtype = call->dtype, .op = call->op, .root = call->root, .count = call->count,
                                       .sequence = sequence};
    trail_add(group, &called);
}

/* Said with the announcement. */
static enum weft_status say(struct weft_group *group, struct host_shape *shape, const void *in, void *out, const struct host_after *after)
{
    struct host *host = group->host;
    if (host_needs_room(shape->bytes) && !host_room_take(host, host_room_of(shape->bytes))) return WEFT_ERR_AGAIN;
    if (!host_may_announce(host, shape->leads, shape->bytes)) return WEFT_ERR_AGAIN;
    shape->args.in = in;
    shape->args.out = out;
    uint64_t number = host->next++, sequence = group->sequence++;
    if (shape->rooted) trail_call(group, &shape->call, sequence);
    host_announce_short(host, &shape->call, shape->call.kind == WEFT_COLL_BROADCAST ? out : in, shape->bytes, number, sequence);
    bool waits = !shape->leads && !(all_here(host, shape, number) && all_come(host, shape, number, sequence));
    enum weft_status status = waits ? meet(host, shape, number, sequence, after) : over_at_once(host, shape, number, sequence);
    if (status == WEFT_OK) host->moved_bytes += shape->moved_bytes;
    return status;
}

static enum weft_status call(struct weft_group *group, struct host_shape *shape, const void *in, void *out, const struct host_after *after)
{
    if (!has_buffers(shape, in, out)) return WEFT_ERR_AGAIN; /* perhaps refused: the post knows */
    enum weft_status status = shape->maps ? host_brief_mapped(group, shape, in, out, after) : WEFT_ERR_AGAIN;
    if (status == WEFT_ERR_NO_MEMORY) return WEFT_ERR_AGAIN; /* nor is it said: the others may lend theirs, as this rank will, too */
    return status == WEFT_ERR_AGAIN && may_say(group, shape) ? say(group, shape, in, out, after) : status;
}

enum weft_status weft_coll_brief(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context,
                                 struct weft_coll **coll_out)
{
    if (args->kind == WEFT_COLL_SEND || args->kind == WEFT_COLL_RECV) return host_pair_brief(group, args, done, context, coll_out);
    struct host_shape *shape = at_rest(group) ? shape_of(group, args) : NULL;
    return shape ? call(group, shape, args->in, args->out, &(struct host_after){done, context, coll_out}) : WEFT_ERR_AGAIN;
}

uint64_t weft_coll_shape(const struct weft_group *group, enum weft_coll_kind kind) { return group->host && group->host->shapes[kind] ? group->host->shapes[kind]->number : 0; }

enum weft_status weft_coll_brief_again(struct weft_group *group, enum weft_coll_kind kind, uint64_t number, const void *in, void *out,
                                       weft_coll_done_fn done, void *context, struct weft_coll **coll_out)
{
    if (!at_rest(group)) return WEFT_ERR_AGAIN;
    struct host_shape *shape = group->host->shapes[kind];
    bool same = shape && shape->number == number && shape->fits;
    return same ? call(group, shape, in, out, &(struct host_after){done, context, coll_out}) : WEFT_ERR_AGAIN;
}
