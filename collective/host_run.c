/* host_run.c - one operation after the other, each through its phases; see host.h for the idea.
 *
 *     WAITING   for the vote of the ranks
 *     QUEUED    for the operation before it
 *     AHEAD     until all ranks have called, alike, what this one was over with before the others came (host_ahead.c)
 *     COMING    announced; until all ranks have announced theirs, alike
 *     WORKING   on this rank's slice, in steps of the loop; or
 *     STAGING   on its part of each round (host_stage.c)
 *     LEAVING   this rank is through; until all are
 *
 * The loop polls the first of the queue (a pollable without a descriptor: whoever stores for a rank that sleeps wakes it
 * through the transport). Ordinary buffers of all ranks go through stages or are copied by system calls in pieces, whichever takes less time (host_way.c; those
 * of gather and scatter are copied); where only some ranks have them, they are copied, or, where that is not allowed, everybody's go through stages. Only where there is no memory for one does
 * the operation leave for the messages, after the announcements have told all ranks so.
 *
 * Ending early: the rank closes its buffers (host_line.c), and the operation is over when nobody is inside any more. */
#include "collective/host.h"

#include <string.h>

static struct weft_coll *first_of(const struct host *host)
{
    return weft_list_empty(&host->queue) ? NULL : weft_list_first(&host->queue, struct weft_coll, host.link);
}

bool host_takes(const struct weft_group *group, const struct weft_coll_args *args)
{
    if (!group->host || group->host->state == HOST_OFF || args->plan != WEFT_PLAN_AUTO) return false;
    switch (args->kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_BARRIER:
    case WEFT_COLL_REDUCE:
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER:
    case WEFT_COLL_ALL_TO_ALL:
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER: return true;
    default: return false;
    }
}

bool weft_group_one_host(const struct weft_group *group, enum weft_coll_kind kind)
{
    return group->host && group->host->state == HOST_ON && host_takes(group, &(struct weft_coll_args){.kind = kind, .op = WEFT_SUM});
}

/* ---- the queue ---- */

static uint64_t loaded_bytes(const struct weft_coll *coll) { return coll->args.count * coll->elem_bytes; }

/* Ordinary memory that may go by both: does it go through a stage, as far as this rank is asked? */
static bool wants_stage(struct host *host, struct weft_coll *coll)
{
    if (!host->copies_all) return true;
    /* of gather and scatter a stage would carry each byte twice, one call does it once */
    if (!coll->host.copied || coll->args.kind == WEFT_COLL_GATHER || coll->args.kind == WEFT_COLL_SCATTER) return false;
    if (host->group->rank != 0) return true;
    coll->host.way = host_way_of(host, coll->args.kind, coll->args.in == coll->args.out, loaded_bytes(coll));
    return !coll->host.way || !host_way_copies(coll->host.way);
}

/* Unequal pieces of ordinary memory that all ranks know: messages share out the system calls for a long piece between its two ranks, which here
 * its owner makes alone. With pieces of one and two thirds all_gather of 64 KiB took 2.8 us here and 3.6 by messages, of 25 MiB 1,797 and 1,441. */
static bool long_by_messages(const struct weft_coll *coll)
{
    const struct weft_plan_args *plan = &coll->cursor.args;
    return coll->host.copied && plan->cut_in && !plan->own_lengths && plan->cut_in[plan->ranks] * coll->elem_bytes > HOST_FAR_BYTES;
}

/* How this rank's buffers are reached, from what is known here; ranks may differ. */
static void offer_ways(struct host *host, struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    bool unequal = host_is_unequal(coll), in_a_copy = unequal && coll->args.kind == WEFT_COLL_ALL_TO_ALL && coll->args.in == coll->args.out;
    if (coll->host.copied && host->copies_all && !host_still_copies(host)) host_copies_no_more(host);
    coll->host.flags = in_a_copy || long_by_messages(coll) ? 0 : !coll->host.copied ? HOST_MAPPED : host->copies_all ? HOST_COPIED : 0;
    host->reach = host_reach_take(group);
    if (!host->reach) coll->host.flags = 0;
    else if (!unequal && wants_stage(host, coll)) coll->host.stage = host_stage_take(group);
    if (unequal) coll->host.flags |= HOST_UNEQUAL;
    if (!host->copies_all) coll->host.flags |= HOST_APART;
    if (coll->host.lends) coll->host.flags |= HOST_LENDS; /* says so even where it cannot reach the others: that it does not say its contribution */
    if (host_of_pieces(coll->args.kind) && host_keeps_piece(coll)) coll->host.flags |= HOST_KEEPS;
    if (coll->host.stage && weft_memory_locate(coll->host.stage, HOST_STAGE_BYTES, &coll->host.stage_word.offset)) coll->host.flags |= HOST_STAGED;
    coll->host.stage_word.block = host_stage_block(host->crowded);
    coll->host.flags_of_all = coll->host.flags;
    coll->host.apart = coll->host.flags & HOST_APART;
    coll->host.reached = coll->host.flags & (HOST_MAPPED | HOST_COPIED);
}

/* false: some have not called yet what this rank was over with before. */
static bool announces(struct host *host, struct weft_coll *coll)
{
    uint64_t number = coll->host.number;
    if (!host_followed(host, number)) return false;
    coll->host.phase = HOST_COMING;
    host->seen = 0;
    if (!coll->host.announced) host_announce(host, coll, number);
    return true;
}

/* Looking for the others' words is quick; work on a vector is not. */
static void polls_quickly(struct host *host)
{
    const struct weft_coll *coll = first_of(host);
    host->pollable.quick = coll && coll->host.phase != HOST_WORKING && coll->host.phase != HOST_SCALING;
}

static bool scales(const struct weft_coll *coll) { return coll_sums(coll->args.kind) && coll->args.op == WEFT_SCALED_SUM; }

/* Contributions with a factor of their own are multiplied before the others may see them. */
static bool is_scaled(struct weft_coll *coll)
{
    size_t budget = HOST_STEP_BYTES / 2;
    return !scales(coll) || coll_scale_input(coll, &budget);
}

static void begin_first(struct host *host)
{
    struct weft_coll *coll = first_of(host);
    if (!coll || coll->host.phase != HOST_QUEUED || coll->phase != COLL_RUNNING) return;
    coll->host.phase = is_scaled(coll) ? HOST_AHEAD : HOST_SCALING;
    polls_quickly(host);
    if (coll->host.phase == HOST_SCALING) return;
    host->seen = 0;
    if (!coll->host.is_short) offer_ways(host, coll);
    coll->record.plan = coll->header.plan;
    coll_record_start(coll, coll->posted_ns); /* the clock is not read for it */
    (void)announces(host, coll);
}

static int host_progress(struct weft_pollable *pollable, int budget);
static enum weft_status host_arm(struct weft_pollable *pollable);

static void join_queue(struct host *host, struct weft_coll *coll)
{
    coll->header.plan = WEFT_PLAN_ONE_HOST;
    weft_list_append(&host->queue, &coll->host.link);
    if (!host->polled) {
        host->pollable = (struct weft_pollable){.fd = WEFT_POLLABLE_WOKEN, .progress = host_progress, .arm = host_arm}; /* from now on */
        weft_list_init(&host->pollable.link);
        host->polled = weft_loop_add(host->group->loop, &host->pollable) == WEFT_OK; /* without a descriptor it cannot fail */
    }
    polls_quickly(host);
}

static void enqueue(struct host *host, struct weft_coll *coll)
{
    coll->host.phase = HOST_QUEUED;
    if (scales(coll)) coll->args.in = coll->in; /* from now on: where its products lie */
    coll->host.is_short = host_is_short(coll->group, &coll->args);
    coll->host.may_lend = host_may_lend(coll->group, &coll->args);
    coll->host.mixed = false;
    if (!coll->host.is_short || coll->host.may_lend) host_locate(host, coll);
    if (coll->host.may_lend && coll->host.lends) coll->host.is_short = false;
    join_queue(host, coll);
    begin_first(host);
}

bool host_begins_at_once(const struct host *host) { return host->state == HOST_ON && weft_list_empty(&host->queue); }

/* It is the first, announced, and perhaps more than that (host_brief_mapped.c). */
static void go_on(struct host *host, struct weft_coll *coll)
{
    host->seen = 0;
    join_queue(host, coll);
    coll->record.plan = coll->header.plan;
    coll_record_start(coll, coll->posted_ns);
}

void host_launch(struct weft_coll *coll)
{
    struct host *host = coll->group->host;
    bool goes_on = coll->host.phase != HOST_AWAY;
    if (!goes_on) coll->host.phase = HOST_WAITING;
    coll->host.number = host->next++; /* now: it may be cancelled before the vote is over here, and after that on another rank */
    if (goes_on) go_on(host, coll);
    else if (host->state == HOST_ON) enqueue(host, coll);
}

static void by_messages(struct weft_coll *coll)
{
    host_unlink(coll);
    coll->header.plan = coll->record.plan = (uint8_t)coll->cursor.args.plan;
    group_ready(coll);
}

void host_decide(struct host *host)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &host->group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->host.phase != HOST_WAITING || coll->phase != COLL_RUNNING) continue;
        if (host->state != HOST_ON) by_messages(coll);
        else if (coll->pairwise) host_pair_launch(coll);
        else enqueue(host, coll);
    }
    if (host->state != HOST_ON) host->next = 0; /* no operation will meet here */
}

void host_unlink(struct weft_coll *coll)
{
    struct host *host = coll->group->host;
    bool was_first = coll->host.phase > HOST_WAITING && first_of(host) == coll;
    bool was_announced = coll->host.phase > HOST_AHEAD; /* else it has ended early, alone or with the group */
    if (!was_announced && !coll->pairwise && host->ahead.unsaid <= coll->host.number) host->ahead.unsaid = coll->host.number + 1;
    coll->host.phase = HOST_AWAY;
    weft_loop_waits(coll->group->loop, host->crowded ? WEFT_LOOP_HERE : WEFT_LOOP_ANYWHERE);
    weft_list_remove(&coll->host.link);
    host_stage_give(coll->group->records, coll->host.stage);
    if (was_first) {
        host_reach_give(coll->group->records, host->reach);
        host->reach = NULL;
    }
    coll->host.stage = NULL;
    if (was_first) {
        if (was_announced) host_over(host, coll->host.number);
        begin_first(host);
    }
    polls_quickly(host);
    if (weft_list_empty(&host->queue)) host_awake(host);
}

/* ---- phases ---- */

/* The peer's announcement as a header, to be compared and described like one that came as a message. */
static struct coll_header header_of(const struct weft_coll *coll, uint32_t rank, const struct host_post *post)
{
    struct coll_header header = coll->header;
    header.rank = rank;
    header.kind = post->kind;
    header.dtype = post->dtype;
    header.op = post->op;
    header.root = post->root;
    header.count = post->count;
    header.sequence = post->sequence;
    if (host_is_unequal(coll) != ((post->flags & HOST_UNEQUAL) != 0)) header.cuts = ~header.cuts;
    else if (host_is_unequal(coll) && !coll->cursor.args.own_lengths) memcpy(&header.cuts, post->word, sizeof header.cuts);
    return header;
}

/* What a rank says of its memory cannot be. */
static bool lies_outside(struct weft_coll *coll, uint32_t rank)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, WEFT_ERR_MALFORMED, true, "operation %llu: the buffers of %s lie outside its memory",
              (unsigned long long)coll->sequence, name);
    return false;
}

/* Its buffers are where all its memory is, or the group ends. */
static bool take_buffers(struct host *host, struct weft_coll *coll, uint32_t rank, const struct host_post *post)
{
    const struct weft_mapping *mapping = &host->peers[rank].place->mapping;
    struct host_stage_word stage = {0};
    bool staged = post->flags & HOST_STAGED;
    if (staged) memcpy(&stage, post->word, sizeof stage);
    struct host_reach reach = {.copied = !(post->flags & HOST_MAPPED), .in_address = post->in, .out_address = post->out}; /* what is not there the system will refuse */
    bool fits = true;
    if (host_of_pieces(coll->args.kind) && !host_pieces_meet(host, coll, rank, &reach, &fits)) return false;
    if (fits && !reach.copied) fits = host_reaches(host, coll, rank, post, &reach);
    if (staged && (stage.offset > mapping->bytes || HOST_STAGE_BYTES > mapping->bytes - stage.offset || !host_stage_allows(stage.block))) fits = false;
    if (fits && staged) {
        reach.stage = mapping->base + stage.offset;
        if (coll->host.stage_word.block < stage.block) coll->host.stage_word.block = stage.block;
    }
    if (host->reach) host->reach[rank] = reach;
    return fits || lies_outside(coll, rank);
}

/* A contribution that is carried by the announcement. */
static bool take_contribution(const struct host *host, struct weft_coll *coll, uint32_t rank)
{
    size_t bytes = host_said_bytes(coll->group, &coll->args, rank);
    return host_contribution(host, rank, coll->host.number, bytes) || lies_outside(coll, rank);
}

/* One more rank has come: does it call the same? */
static bool greet(struct host *host, struct weft_coll *coll, uint32_t rank)
{
    const struct host_post *post = host_post_of(host->peers[rank].segment, coll->host.number);
    struct coll_header theirs = header_of(coll, rank, post);
    const char *what = coll_header_difference(&theirs, &coll->header);
    if (what) {
        coll_mismatch(coll, &coll->header, rank, &theirs, what);
        return false;
    }
    if (coll->host.may_lend && coll->host.is_short == ((post->flags & HOST_LENDS) != 0)) {
        coll->host.mixed = true;
        return true;
    }
    if (coll->host.is_short) return take_contribution(host, coll, rank);
    if (!(post->flags & (HOST_MAPPED | HOST_COPIED))) coll->host.reached = false;
    coll->host.flags_of_all &= post->flags;
    if (post->flags & HOST_APART) {
        coll->host.apart = true;
        if (host->copies_all) host_copies_no_more(host);
    }
    return take_buffers(host, coll, rank, post);
}

static void leave(struct host *host, struct weft_coll *coll)
{
    coll->host.phase = HOST_LEAVING;
    host->seen = 0;
    polls_quickly(host);
}

/* A slice is done. Is there another? */
static void through(struct host *host, struct weft_coll *coll)
{
    host_say_through(host, coll->host.slice_of, coll->host.number);
    if (!coll->host.turns || !host_turns_next(host, coll)) leave(host, coll);
}

/* All ranks are here: the work, or what replaces it. true: the operation is over. */
static bool all_here(struct host *host, struct weft_coll *coll)
{
    host->seen = 0;
    lack_end(coll);
    host_all_came(host, coll->host.number);
    if (coll->host.mixed) {
        by_messages(coll);
        return false;
    }
    if (coll->host.is_short) {
        host_work_short(host, &coll->args, coll->host.number);
        return true;
    }
    bool staged = !(coll->host.flags_of_all & HOST_MAPPED) && coll->host.flags_of_all & HOST_STAGED;
    if (coll->host.apart && !(coll->host.flags_of_all & HOST_MAPPED)) coll->host.reached = false; /* memory that is not mapped cannot be copied */
    if (!coll->host.reached && !staged) {
        by_messages(coll);
        return false;
    }
    coll->host.slice_of = coll->group->rank;
    coll->host.turns = false;
    if (coll->host.way) coll->host.began_ns = weft_now_ns(host->group->env);
    if (staged) {
        host_stage_begin(coll);
        coll->host.phase = HOST_STAGING;
        weft_loop_waits(coll->group->loop, host->crowded ? WEFT_LOOP_HERE : WEFT_LOOP_ANYWHERE);
        return false;
    }
    host->reach[coll->group->rank] = (struct host_reach){.in = coll->args.in, .out = coll->args.out, .keeps = coll->host.flags & HOST_KEEPS};
    coll->host.turns = host_turns_taken(host, coll);
    coll->host.phase = HOST_WORKING;
    if (!coll->host.turns) coll->host.rest = host_slice(coll);
    else if (!host_turns_next(host, coll)) leave(host, coll);
    polls_quickly(host);
    return false;
}

static void unreachable(struct weft_coll *coll, uint32_t rank, enum weft_status status)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, status, true, "lost %s during operation %llu (%s): its buffers cannot be reached: %s", name,
              (unsigned long long)coll->sequence, weft_coll_kind_name(coll->args.kind), weft_reason_text(status));
}

static void work_step(struct host *host, struct weft_coll *coll)
{
    struct host_range *rest = &coll->host.rest;
    uint64_t most = HOST_STEP_BYTES / 2 / coll->group->ranks / coll->elem_bytes;
    struct host_range now = {rest->first, rest->count < most ? rest->count : most};
    if (now.count > 0) {
        if (!host_enter(host, coll->host.number)) return; /* somebody has ended it: soon we shall know more */
        uint32_t culprit = 0;
        enum weft_status status = host_work(host, coll, now, &culprit);
        host_leave(host);
        if (status < 0) {
            unreachable(coll, culprit, status);
            return;
        }
    }
    rest->first += now.count;
    rest->count -= now.count;
    if (rest->count == 0) through(host, coll);
}

/* How the loop waits for a rank: does that need this core? Else as told. */
static void waits_for(struct host *host, uint32_t rank, enum weft_loop_where where)
{
    bool shares = rank != host->group->rank && host_needs_this_core(host, rank);
    weft_loop_waits(host->group->loop, shares ? WEFT_LOOP_HERE : where);
    if (shares) host_apart(host);
}

static int staging_step(struct host *host, struct weft_coll *coll)
{
    bool over, acted = host_stage_step(host, coll, &over);
    if (over) through(host, coll);
    else if (!acted) waits_for(host, host->seen, host->crowded ? WEFT_LOOP_HERE : WEFT_LOOP_ANYWHERE);
    return acted;
}

/* A rank that has not come to a call: has it called this number of the group by messages? */
static bool look_elsewhere(struct host *host, struct weft_coll *coll, const struct coll_header *own, uint32_t rank)
{
    const struct host_post *post = host_called_otherwise(host, rank, own->sequence);
    if (!post) return false;
    struct coll_header theirs = header_of(coll, rank, post);
    theirs.plan = post->flags;
    theirs.cuts = post->in;
    theirs.chunk = post->out;
    const char *what = coll_header_difference(&theirs, own);
    coll_mismatch(coll, own, rank, &theirs, what ? what : "the plan");
    return true;
}

/* The rank that host->seen names has not called what this one was over with before: has it called otherwise? */
static bool look_behind(struct host *host, struct weft_coll *coll)
{
    uint64_t number = host->ahead.awaited;
    struct coll_header own = header_of(coll, coll->group->rank, host_post_of(host->segment, number));
    if (host_has_come(host, host->seen, number)) {
        struct coll_header theirs = header_of(coll, host->seen, host_post_of(host->peers[host->seen].segment, number));
        const char *what = coll_header_difference(&theirs, &own);
        if (what) coll_mismatch(coll, &own, host->seen, &theirs, what);
        return true; /* or it has come this moment */
    }
    own.plan = WEFT_PLAN_ONE_HOST;
    own.cuts = 0; /* its pieces were equal */
    return look_elsewhere(host, coll, &own, host->seen);
}

/* Wait for it. */
static bool catch_up(struct host *host, struct weft_coll *coll)
{
    if (announces(host, coll)) return true;
    if (!host_waits_for_word(host) && look_behind(host, coll)) return true;
    waits_for(host, host->seen, WEFT_LOOP_ANYWHERE);
    return false;
}

void host_look_behind(struct weft_group *group)
{
    struct host *host = group->host;
    if (!host || host->state != HOST_ON || !weft_list_empty(&host->queue) || host_settle(host, host->next)) return;
    (void)look_behind(host, weft_list_first(&group->active, struct weft_coll, link));
}

static bool is_there(const struct host *host, const struct weft_coll *coll, uint32_t rank)
{
    return coll->host.phase == HOST_COMING ? host_has_come(host, rank, coll->host.number) : host_is_through(host, rank, coll->host.number);
}

/* Who is to announce a rank's call, or is at work on its slice. */
static uint32_t awaited(const struct host *host, const struct weft_coll *coll, uint32_t rank)
{
    return coll->host.phase == HOST_LEAVING && coll->host.turns ? host_turns_taker(host, rank) : rank;
}

/* Where ranks take turns: those of this core have nothing to do but wait for others as well, or else one that was looked for first, elsewhere, may wait for
 * them. */
static enum weft_loop_where where_missing(const struct host *host, const struct weft_coll *coll)
{
    if (!host->crowded) return WEFT_LOOP_ANYWHERE;
    for (uint32_t rank = host->seen; rank < coll->group->ranks; rank++) {
        uint32_t whom = awaited(host, coll, rank);
        if (whom != coll->group->rank && host_needs_this_core(host, whom) && !is_there(host, coll, rank)) return WEFT_LOOP_HERE;
    }
    return WEFT_LOOP_ELSEWHERE;
}

/* How many ranks from 0 on have done what the phase waits for. */
static bool look(struct host *host, struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    bool coming = coll->host.phase == HOST_COMING;
    for (; host->seen < group->ranks; host->seen++) {
        uint32_t rank = host->seen;
        if (rank == group->rank && (coming || !coll->host.turns)) continue;
        bool there = is_there(host, coll, rank);
        if (!there) waits_for(host, awaited(host, coll, rank), where_missing(host, coll));
        if (!there && !coming) return false;
        if (!there) {
            (void)look_elsewhere(host, coll, &coll->header, rank);
            return false;
        }
        if (coming && !greet(host, coll, rank)) return false;
    }
    return true;
}

bool weft_group_shares_memory(const struct weft_group *group) { return group->host ? group->host->state != HOST_OFF : group->may_meet; }

void weft_group_add_moved(const struct weft_group *group, struct weft_moved *moved)
{
    const struct host *host = group->host;
    if (!host) return;
    moved->out_bytes += host->moved_bytes;
    moved->in_bytes += host->moved_bytes;
    host_pairs_add_moved(host->pairs, moved);
}

/* Where some ranks' memory is mapped, stages were not to be had: that is no answer to what was asked. */
static void note_way(const struct weft_coll *coll)
{
    bool staged = !(coll->host.flags_of_all & HOST_MAPPED) && coll->host.flags_of_all & HOST_STAGED;
    if (!staged && coll->host.flags & HOST_STAGED) return;
    host_way_took(coll->host.way, !staged, weft_since_ns(coll->host.began_ns, weft_now_ns(coll->group->env)), loaded_bytes(coll));
}

static void finish(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    if (coll->host.way) note_way(coll);
    group->host->moved_bytes += host_moved(coll);
    group->outstanding++; /* keeps the group while the callback runs */
    coll_finish(coll, 0);
    group_released(group);
}

static int host_progress(struct weft_pollable *pollable, int budget)
{
    struct host *host = weft_container_of(pollable, struct host, pollable);
    host_awake(host);
    struct weft_coll *coll = first_of(host);
    if (!coll || coll->phase != COLL_RUNNING) return 0;
    switch (coll->host.phase) {
    case HOST_SCALING:
        if (!is_scaled(coll)) return 1;
        coll->host.phase = HOST_QUEUED;
        begin_first(host);
        return 1;
    case HOST_AHEAD: return catch_up(host, coll);
    case HOST_COMING:
        if (!look(host, coll)) return 0;
        if (all_here(host, coll)) finish(coll);
        return 1;
    case HOST_WORKING:
        work_step(host, coll);
        return 1;
    case HOST_STAGING: return staging_step(host, coll);
    case HOST_LEAVING:
        if (!look(host, coll)) return 0;
        finish(coll);
        return 1;
    default: return 0;
    }
}

/* The rank that host->seen names has still not called what it is awaited for, by either way, nor said that it is over. */
static bool has_not_followed(const struct host *host)
{
    uint64_t number = host->ahead.awaited;
    const struct host_peer *peer = &host->peers[host->seen];
    if (host_waits_for_word(host)) return host_looks_at_us(peer, number);
    return host_looks_at_us(peer, number + 1) && !host_has_come(host, host->seen, number) && !host_called_otherwise(host, host->seen, host_post_of(host->segment, number)->sequence);
}

static enum weft_status host_arm(struct weft_pollable *pollable)
{
    struct host *host = weft_container_of(pollable, struct host, pollable);
    struct weft_coll *coll = first_of(host);
    if (!coll || coll->phase != COLL_RUNNING) return WEFT_OK;
    if (coll->host.phase == HOST_WORKING || coll->host.phase == HOST_SCALING) return WEFT_ERR_AGAIN;
    host_sleep(host);
    if (coll->host.phase == HOST_STAGING) return host_stage_may_act(host, coll) ? WEFT_ERR_AGAIN : WEFT_OK;
    uint32_t rank = host->seen;
    if (coll->host.phase == HOST_AHEAD) return has_not_followed(host) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (rank == coll->group->rank && (coll->host.phase == HOST_COMING || !coll->host.turns)) rank++;
    if (rank >= coll->group->ranks) return WEFT_ERR_AGAIN;
    bool there = coll->host.phase == HOST_COMING ? host_has_come(host, rank, coll->host.number) || host_called_otherwise(host, rank, coll->sequence)
                                                 : host_is_through(host, rank, coll->host.number);
    return there ? WEFT_ERR_AGAIN : WEFT_OK;
}

/* ---- questions of the others ---- */
bool host_waits(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out)
{
    const struct host *host = coll->group->host;
    uint32_t rank = host->seen;
    switch (coll->host.phase) {
    case HOST_AHEAD:
    case HOST_COMING: *phase_out = "greeting"; break;
    case HOST_LEAVING:
        *phase_out = "leaving";
        if (rank < coll->group->ranks) rank = awaited(host, coll, rank);
        break;
    case HOST_SCALING:
    case HOST_WORKING: *phase_out = "reducing"; return false;
    case HOST_STAGING: *phase_out = "reducing"; break;
    case HOST_PAIRED:
        *phase_out = "receiving";
        *rank_out = coll->args.root;
        return true;
    case HOST_WAITING:
        *phase_out = "meeting";
        for (rank = 0; rank < coll->group->ranks; rank++)
            if (rank != coll->group->rank && !(host->voted >> rank & 1)) break;
        break;
    default: *phase_out = "queued"; return false;
    }
    if (rank == coll->group->rank) rank++;
    *rank_out = rank;
    return rank < coll->group->ranks;
}
