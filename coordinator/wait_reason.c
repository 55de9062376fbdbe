/* wait_reason.c - which members block a member that joins, declares a tensor, or agrees on a membership?
 *
 * Only the coordinator knows which members it waits for. A member near its deadline asks before it fails, so
 * that its error names them. The coordinator's own deadlines use the same lists.
 *
 *     a worker: Heartbeat(wait_reason)
 *     reply:    Heartbeat(wait_reason, "rank 3 (hostb, pid 41) [silent for 12.0 s] has not declared it")
 *
 * An observer may ask about a job that has not begun; the coordinator logs that too. The text names up to
 * NAMED_MAX members, ranks first, then shards, and counts the rest. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"

#define NAMED_MAX 8u
#define DESCRIBED_MAX 3u /* members described by host and pid; limits the length of the text */
/* longest time between two messages of a live member; also at least every heartbeat_ns / 4 */
#define BEAT_NS WEFT_SECONDS(10)

struct member_list {
    const struct weft_coordinator *coordinator;
    char *out;
    size_t bytes, used;
    uint32_t count;
};

static void append(struct member_list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct member_list *list, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(list->out + list->used, list->bytes - list->used, format, args);
    va_end(args);
    if (n > 0) list->used += (size_t)n < list->bytes - list->used ? (size_t)n : list->bytes - list->used - 1;
}

/* Appends "rank 3 (hostb, pid 41)" and the time since its last message, if that is long. Appends only the
 * number of a member that is not present. */
static void append_member(struct member_list *list, const struct coordinator_member *member, bool worker,
                       uint32_t index)
{
    if (list->count++ >= NAMED_MAX) return;
    if (list->count > 1) append(list, ", ");
    if (!member || list->count > DESCRIBED_MAX) {
        append(list, "%s %u", worker ? "rank" : "shard", index);
        return;
    }
    const uint64_t silent_ns = weft_elapsed_ns(member->last_received_ns, weft_now_ns(list->coordinator->env)),
                   beat_ns = list->coordinator->options.heartbeat_ns / 4;
    append(list, "%.72s", member->label);
    if (silent_ns > 3 * (beat_ns < BEAT_NS ? beat_ns : BEAT_NS))
        append(list, " [silent for %.1f s]", (double)silent_ns / 1e9);
}

static void append_verb(struct member_list *list, const char *what)
{
    if (list->count == 0) return;
    if (list->count > NAMED_MAX) append(list, " and %u more", list->count - NAMED_MAX);
    append(list, " %s %s", list->count > 1 ? "have" : "has", what);
}

static struct member_list list_begin(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    out[0] = 0;
    return (struct member_list){.coordinator = coordinator, .out = out, .bytes = out_bytes};
}

static bool is_present(const struct coordinator_member *member)
{
    return member && member->state >= MEMBER_ADDRESSED;
}

/* Appends "; 2 of 4 ranks are present: 0, 1". */
static void append_present(struct member_list *list)
{
    const struct weft_coordinator *coordinator = list->coordinator;
    const uint32_t workers = coordinator->options.workers;
    uint32_t present = 0, named = 0;
    for (uint32_t i = 0; i < workers; i++)
        present += is_present(coordinator->membership.workers[i]);
    append(list, "; %u of %u ranks %s present", present, workers, present == 1 ? "is" : "are");
    if (present == 0 || present == workers) return;
    for (uint32_t i = 0; i < workers && named < NAMED_MAX; i++)
        if (is_present(coordinator->membership.workers[i]))
            append(list, "%s %u", named++ ? "," : ":", i);
    if (present > named) append(list, " and %u more", present - named);
}

void coordinator_describe_missing(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    const bool joining = coordinator->state == COORDINATOR_JOINING;
    const enum coordinator_member_state state = joining ? MEMBER_ADDRESSED : MEMBER_READY;
    const uint32_t total = coordinator->options.workers + coordinator->options.shards;
    struct member_list list = list_begin(coordinator, out, out_bytes);
    for (uint32_t i = 0; i < total; i++) {
        bool worker = i < coordinator->options.workers;
        uint32_t index = worker ? i : i - coordinator->options.workers;
        const struct coordinator_member *member =
            worker ? coordinator->membership.workers[index] : coordinator->membership.shards[index];
        if (!member || member->state < state) append_member(&list, member, worker, index);
    }
    append_verb(&list, joining ? "not joined" : "not connected to the others");
    if (joining && list.count > 0) append_present(&list);
}

void coordinator_describe_active(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    struct member_list list = list_begin(coordinator, out, out_bytes);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator_member_is_active(coordinator->membership.members[i]))
            append_member(&list, coordinator->membership.members[i], true,
                          coordinator->membership.members[i]->index);
    append_verb(&list, "not left");
}

void coordinator_describe_undecided(const struct weft_coordinator *coordinator, const char *what, char *out,
                                    size_t out_bytes)
{
    struct member_list list = list_begin(coordinator, out, out_bytes);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        bool agreed = coordinator->epochs.epoch != coordinator->epochs.epoch_in_force &&
                      member->agreement.agreed_epoch == coordinator->epochs.epoch;
        if (coordinator_member_is_active(member) && !member->agreement.joined && !agreed)
            append_member(&list, member, true, member->index);
    }
    append_verb(&list, what);
}

/* Waits first for all workers to declare the tensor, then for its shards to confirm it. */
static void append_undeclared(const struct weft_coordinator *coordinator,
                           const struct coordinator_tensor *tensor, struct member_list *list)
{
    for (uint32_t i = 0; i < coordinator->options.workers; i++)
        if (coordinator->membership.workers[i]->declared_count <= tensor->declare.ordinal)
            append_member(list, coordinator->membership.workers[i], true, i);
    if (list->count > 0) {
        append_verb(list, "not declared it");
        return;
    }
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (tensor->shard_reply_pending[i]) append_member(list, coordinator->membership.shards[i], false, i);
    append_verb(list, "not taken it");
}

/* Writes "" if the member waits for no other. member: NULL for an observer. */
static void describe_wait(const struct weft_coordinator *coordinator, const struct coordinator_member *member,
                         char *out, size_t out_bytes)
{
    struct member_list list = list_begin(coordinator, out, out_bytes);
    if (coordinator->state < COORDINATOR_RUNNING) {
        coordinator_describe_missing(coordinator, out, out_bytes);
        return;
    }
    /* a shard waits for the begin only */
    if (!member || member->role == WEFT__CONTROL__ROLE__ROLE_SHARD) return;
    const struct coordinator_tensor *declares =
        member->declared_count > 0 && member->declared_count <= coordinator->table.tensor_count
            ? coordinator->table.tensors[member->declared_count - 1]
            : NULL;
    if (declares && !declares->announced) append_undeclared(coordinator, declares, &list);
    else if (member->agreement.joined)
        coordinator_describe_undecided(coordinator, "not joined", out, out_bytes);
    else if (member->newcomer)
        coordinator_describe_undecided(coordinator, "not ended a step since", out, out_bytes);
    else if (coordinator->epochs.epoch != coordinator->epochs.epoch_in_force)
        coordinator_describe_undecided(coordinator, "not agreed", out, out_bytes);
}

void coordinator_send_wait_reason(struct weft_coordinator *coordinator, uint64_t connection,
                                  const struct coordinator_member *member)
{
    char text[480];
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    describe_wait(coordinator, member, text, sizeof text);
    heartbeat.wait_reason = true;
    heartbeat.text = text;
    heartbeat.time_ns = weft_now_ns(coordinator->env);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    coordinator->options.net.send(coordinator->options.context, connection, &message);
}

void coordinator_log_wait_reason(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    char text[480];
    if (coordinator->state >= COORDINATOR_RUNNING || now_ns < coordinator->process.report_ns) return;
    coordinator->process.report_ns = weft_deadline_ns(now_ns, WEFT_WAIT_REASON_PERIOD_NS);
    coordinator_describe_missing(coordinator, text, sizeof text);
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %.100s%s has waited %.1f s to begin: %s",
             coordinator->job, coordinator->process.address,
             (double)weft_elapsed_ns(coordinator->process.created_ns, now_ns) / 1e9, text);
}
