/* deadline.c - deadlines of operations; the error names the rank that the operation waited for.
 *
 * A rank often waits for a neighbour that is not the culprit: in a ring every rank waits for the one
 * before it. So the first rank whose deadline passes requests the status of all others and reports one
 * diagnosis:
 *
 *     deadline ─► STATUS_REQUEST to all ─► replies, or GROUP_STATUS_TIMEOUT_NS ─► "rank 5 has not called it"
 *
 * A rank that gets a request defers its own for two such timeouts, so one diagnosis is normally enough. A
 * reply names the rank that its sender waits for and its progress: in the operation in question, else in its
 * oldest one, else in a call that makes a group, else in its oldest one of another group. If no rank is late
 * by itself, the diagnosis follows this chain. If all other ranks are silent, the text also names this rank:
 * it may be the one that is cut off. */
#include "collective/core/control/deadline.h"

#include "collective/core/control/control_router.h"
#include "collective/core/control/group_control.h"
#include "collective/core/control/peer_table.h"
#include "collective/core/group.h"
#include "collective/core/interpreter.h"
#include "collective/core/op.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WARN_AFTER_NS WEFT_SECONDS(30) /* a rank logs one warning after this wait for an operation */

static struct weft_coll *oldest_running(const struct weft_group *group)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase == COLL_RUNNING && !coll->flags.is_sendrecv) return coll;
    }
    return NULL;
}

static struct weft_coll *expired_sendrecv(const struct weft_group *group, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase == COLL_RUNNING && coll->flags.is_sendrecv && coll->deadline_ns <= now_ns)
            return coll;
    }
    return NULL;
}

/* ---- late ranks ---- */
enum lateness { NOT_LATE, NOT_CALLED, NO_REPLY };

static enum lateness lateness_of(const struct weft_group *group, const struct weft_coll *coll, uint32_t rank)
{
    const struct peer_state peer_state = peer_state_of(group, rank);
    if (rank == group->rank) return NOT_LATE;
    if (!peer_state.has_replied) return NO_REPLY;
    return peer_state.reply_posted_ops > coll->sequence ? NOT_LATE : NOT_CALLED;
}

static size_t put(char *out, size_t out_bytes, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static size_t put(char *out, size_t out_bytes, size_t used, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = used < out_bytes ? vsnprintf(out + used, out_bytes - used, format, list) : 0;
    va_end(list);
    return used + (n > 0 ? (size_t)n : 0);
}

/* Up to three ranks by their full names: "host b does not answer; rank 3 has not called it". */
static void name_few(const struct weft_group *group, const struct weft_coll *coll, char *out,
                     size_t out_bytes)
{
    size_t used = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        enum lateness late = lateness_of(group, coll, rank);
        char name[128];
        if (late == NOT_LATE) continue;
        group_describe(group, rank, name, sizeof name);
        used = put(out, out_bytes, used, "%s%.60s %s", used ? "; " : "", name,
                   late == NOT_CALLED ? "has not called it" : "does not answer");
    }
}

/* The rank has not called the operation but waits in an earlier one, so it is not the culprit. A wait in
 * another group may be unrelated: the text then names the rank and the rank that it waits for. */
static bool is_waiting_in_earlier_op(const struct weft_group *group, const struct weft_coll *coll,
                                     uint32_t rank)
{
    return lateness_of(group, coll, rank) == NOT_CALLED &&
           peer_state_of(group, rank).reply_waits_for != GROUP_RANK_NONE;
}
static bool is_waiting_in_other_group(const struct weft_group *group, const struct weft_coll *coll,
                                      uint32_t rank)
{
    return is_waiting_in_earlier_op(group, coll, rank) &&
           peer_state_of(group, rank).reply_steps == REPLY_NOT_ACTIVE;
}

/* Most late ranks only wait in an earlier operation. The culprit is among those that posted the fewest
 * operations. */
static size_t name_least_advanced(const struct weft_group *group, const struct weft_coll *coll, char *out,
                                  size_t out_bytes)
{
    uint32_t behind = GROUP_RANK_NONE, count = 0;
    char name[128];
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (lateness_of(group, coll, rank) != NOT_CALLED) continue;
        uint64_t posted = peer_state_of(group, rank).reply_posted_ops,
                 fewest =
                     behind == GROUP_RANK_NONE ? UINT64_MAX : peer_state_of(group, behind).reply_posted_ops;
        if (posted < fewest) behind = rank, count = 0;
        count += posted <= fewest;
    }
    if (behind == GROUP_RANK_NONE || count > 3) return 0;
    size_t used = put(out, out_bytes, 0, "furthest behind: ");
    for (uint32_t rank = behind, named = 0; named < count; rank++) {
        if (lateness_of(group, coll, rank) != NOT_CALLED ||
            peer_state_of(group, rank).reply_posted_ops != peer_state_of(group, behind).reply_posted_ops)
            continue;
        group_describe(group, rank, name, sizeof name);
        used = put(out, out_bytes, used, "%s%.40s", named++ ? ", " : "", name);
    }
    return used;
}

static uint32_t count_late(const struct weft_group *group, const struct weft_coll *coll, enum lateness kind,
                           uint32_t *last_out)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (lateness_of(group, coll, rank) == kind) *last_out = rank, count++;
    return count;
}

/* Many ranks by number: "ranks 3, 7-90 have not called it; ranks 1, 2 and 40 more do not answer". One
 * rank: "rank 3 does not answer". */
static void name_many(const struct weft_group *group, const struct weft_coll *coll, char *out,
                      size_t out_bytes)
{
    size_t used = name_least_advanced(group, coll, out, out_bytes);
    for (int kind = NOT_CALLED; kind <= NO_REPLY; kind++) {
        uint32_t listed = 0, more = 0, only;
        if (count_late(group, coll, (enum lateness)kind, &only) == 1) {
            used = put(out, out_bytes, used, "%srank %" PRIu32 " %s", used ? "; " : "", only,
                       kind == NOT_CALLED ? "has not called it" : "does not answer");
            continue;
        }
        size_t text_bytes_max = used + (out_bytes - used) / (kind == NOT_CALLED ? 2 : 1) - 48;
        for (uint32_t rank = 0; rank < group->ranks; rank++) {
            if (lateness_of(group, coll, rank) != (enum lateness)kind) continue;
            uint32_t first = rank;
            while (rank + 1 < group->ranks && lateness_of(group, coll, rank + 1) == (enum lateness)kind)
                rank++;
            if (used + 24 > text_bytes_max) more += rank - first + 1;
            else if (first == rank)
                used = put(out, out_bytes, used, "%s%" PRIu32,
                           listed++ ? ", "
                           : used   ? "; ranks "
                                    : "ranks ",
                           first);
            else
                used = put(out, out_bytes, used, "%s%" PRIu32 "-%" PRIu32,
                           listed++ ? ", "
                           : used   ? "; ranks "
                                    : "ranks ",
                           first, rank);
        }
        if (more && listed) used = put(out, out_bytes, used, " and %" PRIu32 " more", more);
        else if (more) used = put(out, out_bytes, used, "%s%" PRIu32 " ranks", used ? "; " : "", more);
        if (listed || more)
            used = put(out, out_bytes, used, kind == NOT_CALLED ? " have not called it" : " do not answer");
    }
}

/* Progress of a rank. */
struct progress {
    uint64_t operation, steps;
};
static bool is_behind(struct progress a, struct progress b)
{
    return a.operation < b.operation || (a.operation == b.operation && a.steps < b.steps);
}

/* Follows the chain of waits. Its end is the culprit. If the chain is a cycle (a link lost a message), the
 * culprit is the rank of the cycle with the earliest operation and the fewest completed steps. before:
 * text on the ranks that wait for the chain and have not called the operation; may be NULL. */
static void name_wait_chain_end(const struct weft_group *group, const struct weft_coll *coll, uint32_t from,
                                const char *before, char *out, size_t out_bytes)
{
    const char *phase;
    uint32_t at = from, own_peer;
    if (!coll_waits_for(coll, &own_peer, &phase)) own_peer = GROUP_RANK_NONE;
    uint32_t next = at == group->rank ? own_peer : peer_state_of(group, at).reply_waits_for, least = at;
    struct progress fewest = {UINT64_MAX, UINT64_MAX};
    char name[128], other[128];
    for (uint32_t hops = 0; hops <= 2 * group->ranks && next != GROUP_RANK_NONE; hops++) {
        at = next;
        next = at == group->rank                      ? own_peer
               : peer_state_of(group, at).has_replied ? peer_state_of(group, at).reply_waits_for
                                                      : GROUP_RANK_NONE;
        const struct peer_state peer_state = peer_state_of(group, at);
        const struct progress done = at == group->rank
                                         ? (struct progress){coll->sequence, coll->steps.tail}
                                         : (struct progress){peer_state.reply_op_seq, peer_state.reply_steps};
        /* after group->ranks hops the walk is inside the cycle */
        if (hops >= group->ranks && is_behind(done, fewest)) fewest = done, least = at;
    }
    if (next == GROUP_RANK_NONE) {
        group_describe(group, at, name, sizeof name);
        snprintf(out, out_bytes, "%s, %s for %.100s", before ? before : "all ranks have called it",
                 before ? "waiting" : "and it waits", name);
        return;
    }
    group_describe(group, least, name, sizeof name);
    group_describe(group, least == group->rank ? own_peer : peer_state_of(group, least).reply_waits_for,
                   other, sizeof other);
    snprintf(out, out_bytes,
             "%s; ranks wait for each other, in a cycle: %.80s has done the fewest steps and waits for %.80s",
             before ? before : "all ranks have called it", name, other);
}

static void name_late_ranks(const struct weft_group *group, const struct weft_coll *coll, char *out,
                            size_t out_bytes)
{
    uint32_t late = 0, before = 0, other_group = 0, silent = 0, first = GROUP_RANK_NONE;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        const enum lateness lateness = lateness_of(group, coll, rank);
        late += lateness != NOT_LATE;
        silent += lateness == NO_REPLY;
        if (!is_waiting_in_earlier_op(group, coll, rank)) continue;
        before++;
        other_group += is_waiting_in_other_group(group, coll, rank);
        if (first == GROUP_RANK_NONE ||
            peer_state_of(group, rank).reply_posted_ops < peer_state_of(group, first).reply_posted_ops)
            first = rank;
    }
    if (late == 0) {
        name_wait_chain_end(group, coll, group->rank, NULL, out, out_bytes);
    } else if (late == before) {
        char description[240];
        if (other_group) name_many(group, coll, description, sizeof description);
        else
            snprintf(description, sizeof description,
                     "%" PRIu32 " %s not called it, being at operation %" PRIu64 " or before it", before,
                     before > 1 ? "ranks have" : "rank has",
                     peer_state_of(group, first).reply_posted_ops - 1);
        name_wait_chain_end(group, coll, first, description, out, out_bytes);
    } else if (late <= 3) {
        name_few(group, coll, out, out_bytes);
    } else {
        name_many(group, coll, out, out_bytes);
    }
    if (silent >= 2 && silent == group->ranks - 1) {
        char name[128];
        size_t used = strlen(out);
        group_describe(group, group->rank, name, sizeof name);
        put(out, out_bytes, used, "; or it is %.80s that is cut off from all of them", name);
    }
}

/* The oldest running operation of another group that has waited for half its deadline. A younger one may
 * overlap with a computation. */
struct other_group {
    const struct weft_group *group;
    const struct weft_coll *oldest;
};
static void find_oldest_in_group(void *context, const struct weft_group *group)
{
    struct other_group *other_group = context;
    const struct weft_coll *coll =
        group != other_group->group && group->failure.fail_status == WEFT_OK ? oldest_running(group) : NULL;
    if (!coll || weft_now_ns(group->env) < coll->posted_ns + (coll->deadline_ns - coll->posted_ns) / 2)
        return;
    if (!other_group->oldest || coll->posted_ns < other_group->oldest->posted_ns) other_group->oldest = coll;
}

static uint32_t peer_id_in_other_group(const struct weft_group *group)
{
    struct other_group other_group = {group, NULL};
    const char *phase;
    uint32_t awaited;
    control_router_each_group(group, find_oldest_in_group, &other_group);
    if (!other_group.oldest || !coll_waits_for(other_group.oldest, &awaited, &phase)) return WEFT_ANY_PEER;
    const struct weft_peer *peer = other_group.oldest->group->peer_table->peers[awaited];
    return peer ? weft_peer_id(peer) : WEFT_ANY_PEER;
}

/* The rank that this rank waits for in a call that makes a group, else in another group, as a rank of
 * `group`; GROUP_RANK_NONE: not a member. */
static uint32_t other_group_wait(const struct weft_group *group)
{
    uint32_t peer_id = control_router_awaited_peer(group);
    if (peer_id == WEFT_ANY_PEER) peer_id = peer_id_in_other_group(group);
    for (uint32_t rank = 0; peer_id != WEFT_ANY_PEER && rank < group->ranks; rank++)
        if (group->peer_table->peers[rank] && weft_peer_id(group->peer_table->peers[rank]) == peer_id)
            return rank;
    return GROUP_RANK_NONE;
}

void deadline_fill_reply(const struct weft_group *group, uint64_t sequence, struct coll_header *header)
{
    const struct weft_coll *found = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        const struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->sequence == sequence && !coll->flags.is_sendrecv) found = coll;
    }
    /* not called yet; the oldest operation may be the reason */
    if (!found && sequence >= group->ops.sequence) found = oldest_running(group);
    const char *phase;
    uint32_t awaited;
    if (found) header->root = coll_waits_for(found, &awaited, &phase) ? awaited : GROUP_RANK_NONE;
    else header->root = sequence >= group->ops.sequence ? other_group_wait(group) : GROUP_RANK_NONE;
    header->chunk = found ? found->sequence : sequence;
    /* not found: it has completed */
    header->lanes = !found                     ? REPLY_NOT_ACTIVE
                    : found->steps.tail < UINT32_MAX ? (uint32_t)found->steps.tail
                                               : UINT32_MAX - 1;
}

/* ---- the diagnosis ---- */
static void report_deadline(struct weft_group *group, const struct weft_coll *coll)
{
    char late[360], call[COLL_CALL_BYTES];
    const char *phase;
    uint32_t awaited;
    coll_waits_for(coll, &awaited, &phase);
    name_late_ranks(group, coll, late, sizeof late);
    group_describe_call(group, &coll->header, call, sizeof call);
    uint64_t waited_ms = weft_elapsed_ns(coll->posted_ns, weft_now_ns(group->env)) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true,
              "operation %" PRIu64 " (%s) waited %" PRIu64 ".%03" PRIu64 " s, phase %s: %s", coll->sequence,
              call, waited_ms / 1000, waited_ms % 1000, phase, late);
}

/* Follows the chain of waits from the peer of a late send or recv to its end. */
static uint32_t wait_chain_end(const struct weft_group *group, uint32_t rank)
{
    for (uint32_t hops = 0; hops < group->ranks; hops++) {
        const struct peer_state peer_state = peer_state_of(group, rank);
        if (rank == group->rank || !peer_state.has_replied || peer_state.reply_waits_for == GROUP_RANK_NONE)
            break;
        rank = peer_state.reply_waits_for;
    }
    return rank;
}

static void report_sendrecv_deadline(struct weft_group *group, const struct weft_coll *coll)
{
    const uint32_t other = coll->args.root, end = wait_chain_end(group, other);
    const struct peer_state peer_state = peer_state_of(group, other);
    char name[128], last[128], call[COLL_CALL_BYTES], why[240];
    group_describe(group, other, name, sizeof name);
    group_describe(group, end, last, sizeof last);
    group_describe_call(group, &coll->header, call, sizeof call);
    if (!peer_state.has_replied) snprintf(why, sizeof why, "does not answer");
    else if (end == other) snprintf(why, sizeof why, "has not met it");
    else if (peer_state.reply_steps == REPLY_NOT_ACTIVE || peer_state.reply_posted_ops == 0)
        snprintf(why, sizeof why, "has not met it, and waits for %.100s in an operation of another group",
                 last);
    else
        snprintf(why, sizeof why,
                 "has not met it, being at operation %" PRIu64 " or before it, where it waits for %.100s",
                 peer_state.reply_posted_ops - 1, last);
    uint64_t waited_ms = weft_elapsed_ns(coll->posted_ns, weft_now_ns(group->env)) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true,
              "a %s (%s) waited %" PRIu64 ".%03" PRIu64 " s for %.100s, which %s",
              weft_coll_kind_name(coll->args.kind), call, waited_ms / 1000, waited_ms % 1000, name, why);
}

/* For a send or recv: asks about the next operation of all ranks. A rank that waits in an operation that
 * this rank has called then reports it. */
static void request_status(struct weft_group *group, const struct weft_coll *coll, uint64_t now_ns)
{
    group->late_op.diagnosis = DIAGNOSIS_REQUESTING;
    group->late_op.diagnosis_is_sendrecv = coll->flags.is_sendrecv;
    group->late_op.diagnosis_seq = coll->flags.is_sendrecv ? group->ops.sequence : coll->sequence;
    group->late_op.diagnosis_until_ns = now_ns + GROUP_STATUS_TIMEOUT_NS;
    for (uint32_t rank = 0; group->peer_states && rank < group->ranks; rank++)
        group->peer_states[rank].has_replied = false;
    group_control_broadcast(&group->control.status_request, group, COLL_MESSAGE_STATUS_REQUEST,
                            group->late_op.diagnosis_seq, WEFT_OK);
}

void deadline_request_received(struct weft_group *group, uint64_t sequence)
{
    if (group->late_op.diagnosis != DIAGNOSIS_NONE || group->failure.fail_status < 0) return;
    group->late_op.diagnosis = DIAGNOSIS_DEFERRED;
    group->late_op.diagnosis_seq = sequence;
    group->late_op.diagnosis_until_ns = weft_now_ns(group->env) + 2 * GROUP_STATUS_TIMEOUT_NS;
}

/* The sender is authenticated, its content is UNTRUSTED. Without memory for the peer state the rank counts
 * as silent. */
void deadline_reply_received(struct weft_group *group, uint32_t rank, const struct coll_header *header)
{
    if (group->late_op.diagnosis != DIAGNOSIS_REQUESTING || header->sequence != group->late_op.diagnosis_seq)
        return;
    struct peer_state *peer_state = peer_state_get(group, rank);
    if (!peer_state) return;
    peer_state->has_replied = true;
    peer_state->reply_posted_ops = header->count;
    peer_state->reply_waits_for = header->root < group->ranks ? header->root : GROUP_RANK_NONE;
    peer_state->reply_op_seq = header->chunk;
    peer_state->reply_steps = header->lanes;
    for (uint32_t other = 0; other < group->ranks; other++)
        if (other != group->rank && !group->peer_states[other].has_replied) return;
    group->late_op.diagnosis_until_ns = weft_now_ns(group->env); /* all replies are here */
    group_schedule(group);
}

static void warn(struct weft_group *group, struct weft_coll *coll)
{
    const char *phase;
    uint32_t awaited;
    char name[128] = "no rank", call[COLL_CALL_BYTES], title[48];
    if (coll_waits_for(coll, &awaited, &phase)) group_describe(group, awaited, name, sizeof name);
    group_describe_call(group, &coll->header, call, sizeof call);
    coll->flags.warned = true;
    weft_log(group->env, WEFT_LOG_WARN, "collective",
             "group %u rank %u: %s (%s) waits for %s since %" PRIu64 " s, phase %s", group->group_id,
             group->rank, coll_title(coll, coll->sequence, title), call, name,
             (uint64_t)(WARN_AFTER_NS / WEFT_SECONDS(1)), phase);
}

/* Ranks that post together expire together. The delay grows with the rank, so the first request finds the
 * others before their own. */
static uint64_t query_time_ns(const struct weft_coll *coll)
{
    uint64_t rank = coll->group->rank, later_ns = rank < 20000 ? rank * 10000 : WEFT_MS(200);
    return weft_deadline_ns(coll->deadline_ns, later_ns);
}

void weft_group_expire(struct weft_group *group)
{
    struct weft_coll *coll = oldest_running(group);
    const uint64_t now_ns = weft_now_ns(group->env);
    if (!coll || coll->deadline_ns <= now_ns || group->failure.fail_status < 0) return;
    coll->deadline_ns = now_ns;
    group_schedule(group);
}

uint64_t deadline_check(struct weft_group *group, uint64_t now_ns)
{
    if (group->departures.lost) {
        if (now_ns < group->departures.lost_until_ns) return group->departures.lost_until_ns;
        group_control_end_lost(group);
        return now_ns + GROUP_RELEASE_TIMEOUT_NS;
    }
    if (group->late_op.diagnosis != DIAGNOSIS_NONE) {
        if (now_ns < group->late_op.diagnosis_until_ns) return group->late_op.diagnosis_until_ns;
        const bool asked = group->late_op.diagnosis == DIAGNOSIS_REQUESTING,
                   is_sendrecv = asked && group->late_op.diagnosis_is_sendrecv;
        struct weft_coll *coll = is_sendrecv ? expired_sendrecv(group, now_ns) : oldest_running(group);
        group->late_op.diagnosis = DIAGNOSIS_NONE;
        if (is_sendrecv && coll) {
            report_sendrecv_deadline(group, coll);
            return now_ns + GROUP_RELEASE_TIMEOUT_NS;
        }
        if (asked && !is_sendrecv && coll && coll->sequence <= group->late_op.diagnosis_seq &&
            coll->deadline_ns <= now_ns) {
            report_deadline(group, coll);
            return now_ns + GROUP_RELEASE_TIMEOUT_NS;
        }
    }
    uint64_t next_ns = WEFT_NEVER;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase != COLL_RUNNING) continue;
        /* the post may be later than now_ns */
        if (!coll->flags.warned && now_ns >= coll->posted_ns + WARN_AFTER_NS) warn(group, coll);
        if (now_ns >= query_time_ns(coll)) {
            request_status(group, coll, now_ns);
            return group->late_op.diagnosis_until_ns;
        }
        if (query_time_ns(coll) < next_ns) next_ns = query_time_ns(coll);
    }
    return next_ns;
}
