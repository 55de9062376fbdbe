/* group.c - life of a group: created over connected peers, driven by one timer, ended once.
 *
 * The timer and the transport completions are the only entries from the loop. A completion or a post marks an
 * operation ready and starts the timer now. The timer advances ready operations within a budget of bytes,
 * checks deadlines and starts itself for the next check. It does not run while no operation is posted.
 *
 * Ending (group_end): the first cause wins and every operation ends with it. The transport refuses later
 * messages of the group, so their senders' buffers become free. The other ranks get a FAIL. If a peer holds a
 * send buffer longer than release_timeout_ns, its connection is closed and the operation completes as lost:
 * nothing hangs.
 *
 * Freeing: operations complete with WEFT_ERR_CLOSED at once. The memory is freed when the last transport
 * operation that points into it has completed. */
#include "collective/core/group.h"

#include "collective/core/control/control_router.h"
#include "collective/core/control/deadline.h"
#include "collective/core/control/group_control.h"
#include "collective/core/control/peer_table.h"
#include "collective/core/interpreter.h"
#include "collective/core/op.h"
#include "collective/core/op_pool.h"
#include "collective/core/record/op_record.h"
#include "collective/core/retune.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SEQUENCE_TAGS 0xfffffeull /* tags repeat after this many operations; the last value is the tag of
                                   * sends and recvs */
#define TAG_MASK 0xffffffull

void weft_group_options_init(struct weft_group_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->chunk_bytes = WEFT_COLL_CHUNK_BYTES;
    options->inflight_max = 16;
    options->operations_max = 1024;
    options->deadline_ns = WEFT_SECONDS(300);
    options->release_timeout_ns = GROUP_RELEASE_TIMEOUT_NS;
}

/* ---- tags: channel 8 | group 24 | epoch 8 | operation 24 ---- */
static uint64_t tag_prefix(const struct weft_group *group)
{
    return WEFT_TAG(WEFT_CHANNEL_COLLECTIVE, (uint64_t)group->group_id << 32 | (uint64_t)(group->epoch & 0xff)
                                                                                   << 24);
}
uint64_t group_tag(const struct weft_group *group, uint64_t sequence)
{
    return tag_prefix(group) | sequence % SEQUENCE_TAGS;
}
uint64_t group_pair_tag(const struct weft_group *group) { return tag_prefix(group) | SEQUENCE_TAGS; }
uint64_t group_control_tag(const struct weft_group *group)
{
    return WEFT_TAG(WEFT_CHANNEL_GROUP_CONTROL, tag_prefix(group));
}

static enum weft_status refuse_tags(struct weft_group *group, bool on)
{
    WEFT_TRY(weft_transport_discard_tags(group->transport, tag_prefix(group), ~TAG_MASK, on));
    return weft_transport_discard_tags(group->transport, group_control_tag(group), UINT64_MAX, on);
}

/* If ids increase, control_router.c knows which groups have ended. The transport then needs no rule: it
 * keeps one only to drop the messages that wait for this group. */
static void refuse_messages(struct weft_group *group, bool on)
{
    enum weft_status status = refuse_tags(group, on);
    if (status < 0)
        weft_log(group->env, WEFT_LOG_WARN, "collective",
                 "group %u: messages of the ended group could not be refused: %s", group->group_id,
                 weft_reason_text(status));
    if (on && group->modes.ids_increase) (void)refuse_tags(group, false);
}

/* ---- progress ---- */
bool group_schedule(struct weft_group *group)
{
    if (group->progress.is_scheduled || group->progress.is_closing) return true;
    group->progress.is_scheduled = weft_timer_start_now(group->loop, &group->progress.timer) >= 0;
    return group->progress.is_scheduled;
}

bool group_schedule_at(struct weft_group *group, uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t check_ns =
        now_ns + GROUP_POLL_INTERVAL_NS < deadline_ns ? now_ns + GROUP_POLL_INTERVAL_NS : deadline_ns;
    if (group->progress.is_scheduled || group->progress.is_closing ||
        (weft_timer_is_running(&group->progress.timer) && group->progress.timer.deadline_ns <= check_ns))
        return true;
    return weft_timer_start(group->loop, &group->progress.timer, check_ns) >= 0;
}

void coll_mark_ready(struct weft_coll *coll)
{
    struct weft_list *ready = &coll->group->ops.ready, *at = ready;
    if (weft_list_empty(&coll->ready_link)) {
        while (at->prev != ready && weft_container_of(at->prev, struct weft_coll, ready_link)->args.urgency >
                                        coll->args.urgency)
            at = at->prev;
        weft_list_insert_before(at, &coll->ready_link);
    }
    group_schedule(coll->group);
}

/* The time in which this process did not run (a debugger, a paused machine) does not count as waiting. */
static void extend_deadlines(struct weft_group *group, uint64_t now_ns)
{
    uint64_t gap_ns = weft_elapsed_ns(group->progress.seen_ns, now_ns);
    group->progress.seen_ns = now_ns;
    if (gap_ns <= GROUP_STALL_MIN_NS) return;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        coll->deadline_ns = weft_deadline_ns(coll->deadline_ns, gap_ns);
        /* posted inside the gap */
        coll->posted_ns =
            weft_elapsed_ns(coll->posted_ns, now_ns) > gap_ns ? coll->posted_ns + gap_ns : now_ns;
    }
    if (group->late_op.diagnosis != DIAGNOSIS_NONE) group->late_op.diagnosis_until_ns += gap_ns;
    if (group->failure.fail_status < 0) group->failure.grace_ns += gap_ns;
}

static void progress(struct weft_group *group, uint64_t now_ns)
{
    size_t budget = GROUP_PROGRESS_BYTES_MAX;
    group->progress.is_progressing = true;
    for (uint32_t ops_left = group->ops.active_count;
         ops_left > 0 && budget > 0 && !weft_list_empty(&group->ops.ready) && !group->progress.is_closing;
         ops_left--) {
        struct weft_coll *coll = weft_list_first(&group->ops.ready, struct weft_coll, ready_link);
        weft_list_remove(&coll->ready_link);
        coll_record_start(coll, now_ns);
        coll_advance(coll, &budget);
        /* runs done: may post, fail or free the group */
        if (coll_is_complete(coll)) coll_finish(coll, now_ns);
        else if (budget == 0 || group->progress.needs_retry) coll_mark_ready(coll);
    }
    group->progress.is_progressing = false;
}

/* The operation has ended on the one-host path, but a peer may still access its buffers. No message
 * announces the end of the access, so the timer polls. Returns true if buffers are held. */
static bool poll_held_buffers(struct weft_group *group)
{
    bool buffers_are_held = false;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase != COLL_ENDING || !coll->path.is_active) continue;
        if (coll_is_complete(coll)) coll_mark_ready(coll);
        else buffers_are_held = true;
    }
    return buffers_are_held;
}

/* Closes the connections of peers that hold a send buffer of an ended operation. */
static void fail_holding_peers(struct weft_group *group)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        for (uint64_t number = coll->steps.tail; number < coll->steps.head; number++) {
            struct slot *slot = &coll->slots[number % group->limits.window];
            if (slot->state != SLOT_POSTED) continue;
            weft_transport_fail_peer(
                group->transport, weft_peer_id(group->peer_table->peers[slot->action.peer]),
                WEFT_ERR_PEER_LOST, "does not answer: it kept a buffer of an operation that has ended");
        }
    }
}

static void timer_fired(struct weft_timer *timer)
{
    struct weft_group *group = weft_container_of(timer, struct weft_group, progress.timer);
    uint64_t now_ns = weft_now_ns(group->env);
    group->progress.is_scheduled = false;
    bool was_retry = group->progress.needs_retry;
    group->progress.needs_retry = false;
    group->sending.outstanding++; /* keeps the group alive while callbacks run */
    extend_deadlines(group, now_ns);
    if (was_retry) group_control_retry(group);
    bool buffers_are_held = poll_held_buffers(group);
    (void)send_credit_retry(group, now_ns);
    progress(group, now_ns);
    uint64_t next_ns = WEFT_NEVER;
    if (!group->progress.is_closing && group->ops.active_count > 0) {
        next_ns = now_ns + GROUP_POLL_INTERVAL_NS;
        if (now_ns >= group->progress.recorded_ns + GROUP_POLL_INTERVAL_NS) {
            weft_group_update_records(group);
            if (group->failure.fail_status == WEFT_OK) coll_path.verify(group);
        }
        if (group->failure.fail_status == WEFT_OK) {
            uint64_t check_ns = deadline_check(group, now_ns);
            if (check_ns < next_ns) next_ns = check_ns;
        } else if (now_ns >= group->failure.grace_ns) {
            fail_holding_peers(group);
        } else if (group->failure.grace_ns < next_ns) {
            next_ns = group->failure.grace_ns;
        }
        const uint64_t retry_ns = send_credit_retry(group, now_ns);
        if (retry_ns < next_ns) next_ns = retry_ns;
        if (buffers_are_held && next_ns > now_ns + GROUP_RELEASE_POLL_NS)
            next_ns = now_ns + GROUP_RELEASE_POLL_NS;
    }
    if (!group->progress.is_closing && group->progress.needs_retry) {
        weft_timer_start(group->loop, &group->progress.timer, now_ns + GROUP_RETRY_NS);
        group->progress.is_scheduled = false;
    } else if (!group->progress.is_closing && !group->progress.is_scheduled) {
        if (!weft_list_empty(&group->ops.ready)) group_schedule(group);
        else if (next_ns != WEFT_NEVER && next_ns >= now_ns + WEFT_MS(1))
            weft_timer_start_later(group->loop, &group->progress.timer, next_ns);
        else if (next_ns != WEFT_NEVER) weft_timer_start(group->loop, &group->progress.timer, next_ns);
    }
    group_transport_op_done(group);
}

/* ---- end ---- */
void group_end(struct weft_group *group, enum weft_status status, bool notify_peers, const char *format,
               ...)
{
    if (group->failure.fail_status < 0 || group->progress.is_closing) return;
    group->failure.fail_status = status;
    char text[GROUP_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    group->failure.fail_text = weft_alloc_text(group->env, text);
    if (!group->failure.fail_text) group->failure.fail_text = weft_status_text(status);
    if (group->ops.active_count > 0)
        weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u rank %u: %s: %s", group->group_id,
                 group->rank, weft_status_name(status), group->failure.fail_text);
    weft_event_ring_add(group->observers.events, "group_end", WEFT_EVENT_MARK, group->group_id, UINT32_MAX, 0,
                        status);
    group->failure.grace_ns = weft_deadline_ns(weft_now_ns(group->env), group->failure.release_timeout_ns);
    group->late_op.diagnosis = DIAGNOSIS_NONE;
    coll_path.fence(group);
    bool had_operations = group->ops.active_count > 0 || !weft_list_empty(&group->ops.computing);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active)
        coll_abort(weft_container_of(node, struct weft_coll, link), status, group->failure.fail_text);
    refuse_messages(group, true);
    if (notify_peers && had_operations)
        group_control_broadcast(&group->control.fail, group, COLL_MESSAGE_FAIL, group->ops.sequence, status);
    group_schedule(group);
}

void weft_group_fail(struct weft_group *group, enum weft_status status, const char *text)
{
    WEFT_ASSERT(status < 0);
    group_end(group, status, true, "%s", text && text[0] ? text : weft_reason_text(status));
}

enum weft_status weft_group_end_status(const struct weft_group *group, const char **text_out)
{
    *text_out = group->failure.fail_status < 0 ? group->failure.fail_text : "";
    return group->failure.fail_status;
}

uint32_t weft_group_end_rank(const struct weft_group *group)
{
    return group->failure.failed_remotely ? group->failure.fail_rank : group->rank;
}

/* ---- create, free ---- */
static enum weft_status check_options(const struct weft_group_options *o, struct weft_error *error)
{
    if (o->size != sizeof *o)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "group options have size %zu, this build expects %zu: call weft_group_options_init", o->size,
            sizeof *o);
    if (!o->transport || !o->loop || !o->endpoint_ids)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a group needs a transport, a loop and the endpoint ids of its ranks");
    if (o->ranks == 0 || o->ranks > 1u << 20 || o->rank >= o->ranks)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "rank %u of %u ranks: a group has 1 to 1048576 ranks, numbered from 0", o->rank,
                              o->ranks);
    if (o->group_id > GROUP_ID_MAX)
        return weft_error_set(error, WEFT_ERR_INVALID, "group id %u is too large: 24 bits", o->group_id);
    if (o->chunk_bytes < 64 || o->chunk_bytes > 1u << 30)
        return weft_error_set(error, WEFT_ERR_INVALID, "chunk_bytes %zu is out of range: 64 to 1 GiB",
                              o->chunk_bytes);
    if (o->inflight_max < 2 || o->inflight_max > 4096 || o->operations_max == 0 ||
        o->operations_max > 1u << 20)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "inflight_max %u (2 to 4096) or operations_max %u (1 to 1048576) is out of range",
            o->inflight_max, o->operations_max);
    if (o->deadline_ns == 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "deadline_ns is 0: every operation has a deadline");
    return WEFT_OK;
}

enum weft_status weft_group_create(struct weft_env *env, const struct weft_group_options *options,
                                   struct weft_group **group_out, struct weft_error *error)
{
    WEFT_TRY(check_options(options, error));
    struct weft_group *group = weft_alloc_zero(env, sizeof *group);
    struct op_pool *op_pool = op_pool_acquire(env, options->share, options->inflight_max);
    if (!group || !op_pool) {
        op_pool_release(env, op_pool);
        weft_free_bytes(env, group);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a group of %u ranks", options->ranks);
    }
    group->env = env;
    group->transport = options->transport;
    group->loop = options->loop;
    group->observers.events = options->events;
    group->observers.recorder = options->recorder;
    group->observers.straggler_time = options->straggler_time;
    group->rank = options->rank;
    group->ranks = options->ranks;
    group->group_id = options->group_id;
    group->epoch = options->epoch;
    group->limits.inflight_max = options->inflight_max;
    group->limits.window = options->inflight_max;
    group->limits.operations_max = options->operations_max;
    group->limits.sparse_shared_ranks = options->sparse_shared_ranks;
    group->limits.chunk_bytes = options->chunk_bytes;
    group->limits.deadline_ns = options->deadline_ns;
    group->failure.release_timeout_ns = options->release_timeout_ns;
    group->modes.timing_only = options->modes.timing_only;
    group->modes.keeps_affinity = options->modes.keeps_affinity;
    group->modes.ids_increase = options->modes.ids_increase;
    group->modes.rank_modulus = options->modes.timing_only ? options->modes.rank_modulus : 0;
    group->names.describe = options->names.describe;
    group->names.describe_context = options->names.describe_context;
    group->names.describe_subject = options->names.describe_subject;
    if (options->cost) group->planning.cost = *options->cost;
    if (options->local_cost) group->planning.local_cost = *options->local_cost;
    group->planning.hosts = options->hosts;
    group->ops.op_pool = op_pool;
    weft_list_init(&group->ops.active);
    weft_list_init(&group->ops.ready);
    weft_list_init(&group->ops.computing);
    weft_timer_init(&group->progress.timer, timer_fired);
    group->progress.seen_ns = weft_now_ns(env);
    group->members_hash = 0x811c9dc5u; /* FNV-1a */
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        group->members_hash = (group->members_hash ^ options->endpoint_ids[rank]) * 0x1000193u;
    enum weft_status status = peer_table_acquire(group, options->endpoint_ids, error);
    if (status < 0) {
        op_pool_release(env, op_pool);
        weft_free_bytes(env, group);
        return status;
    }
    refuse_messages(group, false);
    status = retune_create(group, options->retune);
    if (status < 0) weft_error_set(error, status, "no memory for the group's table of plans");
    else status = group_control_start(group, options->modes.defers_peer_loss, error);
    group->may_open_onehost = coll_path.is_possible(group);
    if (status == WEFT_OK && !options->modes.opens_onehost_later && coll_path.open(group) < 0)
        status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the group's shared segment");
    if (status < 0) {
        weft_group_free(group);
        return status;
    }
    control_router_deliver_early(group); /* may end the group; the first post then returns the error */
    *group_out = group;
    return WEFT_OK;
}

void group_transport_op_done(struct weft_group *group)
{
    WEFT_ASSERT(group->sending.outstanding > 0);
    if (--group->sending.outstanding > 0 || !group->progress.is_closing || group->progress.is_progressing)
        return;
    struct weft_env *env = group->env;
    peer_table_release(group);
    group_ops_free(group);
    retune_free(group);
    send_credit_close(group);
    if (group->failure.fail_status < 0 &&
        group->failure.fail_text != weft_status_text(group->failure.fail_status))
        weft_free_bytes(env, (void *)group->failure.fail_text);
    weft_free_bytes(env, group->control.remote_failure);
    weft_free_bytes(env, group->planning.choices);
    weft_free_bytes(env, group);
}

void weft_group_leave(struct weft_group *group)
{
    if (group->departures.leaving || group->failure.fail_status < 0) return;
    group->departures.leaving = true;
    group_control_broadcast(&group->control.leave, group, COLL_MESSAGE_LEAVE, group->ops.sequence, WEFT_OK);
}

bool weft_group_has_left(const struct weft_group *group) { return !group->control.leave.busy; }

void weft_group_free(struct weft_group *group)
{
    if (!group) return;
    WEFT_ASSERT(!group->progress.is_closing);
    group->sending.outstanding++; /* until the end of this call */
    weft_group_leave(group);
    weft_timer_stop(group->loop, &group->progress.timer);
    group_control_drop_unsent(group);
    control_router_remove(group);
    group->progress.is_closing = true;
    coll_path.fence(group);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active)
        coll_abort(weft_container_of(node, struct weft_coll, link), WEFT_ERR_CLOSED, "the group was freed");
    /* A group with increasing ids that has ended refused its messages then. By now the eight epoch bits of
     * its tag may belong to a live group. */
    if (!group->modes.ids_increase || group->failure.fail_status == WEFT_OK) refuse_messages(group, true);
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        weft_coll_done_fn done = coll->done;
        coll->done = NULL;
        coll_record_end(coll, weft_now_ns(group->env));
        if (done) done(coll->context, coll->status, coll->text);
    }
    codec_close(group, WEFT_ERR_CLOSED, "the group was freed");
    coll_path.close(group);
    group_transport_op_done(group);
}

uint32_t weft_group_rank(const struct weft_group *group) { return group->rank; }
uint32_t weft_group_ranks(const struct weft_group *group) { return group->ranks; }
const struct weft_link_cost *weft_group_cost(const struct weft_group *group) { return &group->planning.cost; }
void weft_group_set_cost(struct weft_group *group, const struct weft_link_cost *cost)
{
    group->planning.cost = *cost;
    if (group->planning.choices)
        memset(group->planning.choices, 0, GROUP_KINDS_CACHED * sizeof *group->planning.choices);
    coll_path.cost_changed(group);
}

void group_describe(const struct weft_group *group, uint32_t rank, char *out, size_t out_bytes)
{
    out[0] = 0;
    if (group->names.describe) group->names.describe(group->names.describe_context, rank, out, out_bytes);
    if (!out[0]) snprintf(out, out_bytes, "rank %u", rank);
}

void group_describe_call(const struct weft_group *group, const struct coll_header *header, char *out,
                         size_t out_bytes)
{
    char subject[128] = "";
    const bool has_subject = header->root != 0 && !coll_has_root(header->kind);
    const bool any_subject = has_subject && coll_header_has_any_subject(header);
    if (any_subject) snprintf(out, out_bytes, "push_pull");
    else coll_header_describe(header, out, out_bytes);
    if (!has_subject || !group->names.describe_subject) return;
    const uint32_t named = any_subject ? header->root & ~WEFT_SUBJECT_ANY : header->root;
    group->names.describe_subject(group->names.describe_context, named, subject, sizeof subject);
    const size_t length = strlen(out);
    if (subject[0])
        snprintf(out + length, out_bytes - length, "%s of %s", any_subject ? "" : ",", subject);
}
