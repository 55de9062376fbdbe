/* stall.c - is an operation open for much longer than usual, and because of which rank, link or host?
 *
 *     a worker: Heartbeat(progress, is_stalled) -> Heartbeat(ask_progress) to all
 *                                               -> each: Heartbeat(progress)
 *     ANSWER_NS later: one log line, the text of the status; again every UPDATE_NS while the stall lasts
 *
 * Each worker measures the usual time of its operations; the coordinator compares the workers. A member that
 * does not answer is stopped or cut off. Otherwise the wait of the stalled workers is followed to its end: a
 * rank that has no operation open has not called it; two members that wait for each other have a broken link.
 * A stall does not end the job; its deadlines do. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"

#define ANSWER_NS WEFT_MS(500)
#define UPDATE_NS WEFT_SECONDS(5)
#define NAMED_MAX 3u

static bool takes_part(const struct coordinator_member *member)
{
    return member->state == MEMBER_READY && !member->newcomer && !member->agreement.joined;
}

static bool is_stalled(const struct coordinator_member *member)
{
    return takes_part(member) && coordinator_member_is_worker(member) && member->progress.is_stalled;
}

static uint64_t open_ns(const struct coordinator_member *member, uint64_t now_ns)
{
    const struct coordinator_progress *progress = &member->progress;
    return progress->open_ns ? progress->open_ns + weft_elapsed_ns(progress->received_ns, now_ns) : 0;
}

/* The stalled worker whose operation is open for the longest time. NULL: none is stalled. */
static const struct coordinator_member *longest_stalled(const struct weft_coordinator *coordinator,
                                                        uint64_t now_ns, uint32_t *count_out)
{
    const struct coordinator_member *longest = NULL;
    *count_out = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (!is_stalled(member)) continue;
        ++*count_out;
        if (!longest || open_ns(member, now_ns) > open_ns(longest, now_ns)) longest = member;
    }
    return longest;
}

/* ---- the culprit ---- */

static const struct coordinator_member *awaited(const struct weft_coordinator *coordinator,
                                                const struct coordinator_member *member)
{
    const uint32_t rank = member->progress.waits_for - 1;
    if (member->progress.waits_for == 0 || member->progress.open_ns == 0) return NULL;
    return rank < coordinator->options.workers ? coordinator->membership.workers[rank] : NULL;
}

struct text {
    char *out;
    size_t bytes, used;
};

static void append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text->out + text->used, text->bytes - text->used, format, args);
    va_end(args);
    const size_t left = text->bytes - text->used;
    if (n > 0) text->used += (size_t)n < left ? (size_t)n : left - 1;
}

/* Appends "rank 1 (hostb, pid 7), rank 3 (hostc, pid 9) and 2 more VERB"; returns whether there is one. */
static bool append_members(const struct weft_coordinator *coordinator,
                           bool (*wanted)(const struct coordinator_member *), const char *verb,
                           struct text *text)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (!takes_part(member) || !wanted(member) || count++ >= NAMED_MAX) continue;
        append(text, "%s%.100s", count > 1 ? ", " : "", member->label);
    }
    if (count > NAMED_MAX) append(text, " and %u more", count - NAMED_MAX);
    if (count > 0) append(text, " %s", verb);
    return count > 0;
}

static bool is_mute(const struct coordinator_member *member)
{
    return member->abilities.supports_progress && !member->progress.has_answered;
}

static bool is_idle_worker(const struct coordinator_member *member)
{
    return coordinator_member_is_worker(member) && member->progress.has_answered &&
           member->progress.open_ns == 0;
}

/* A shard waits for a contribution of a worker that has called: the link between them loses it. */
static bool append_shard_link(const struct weft_coordinator *coordinator, struct text *text)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        const struct coordinator_member *shard = coordinator->membership.shards[i],
                                        *worker = shard ? awaited(coordinator, shard) : NULL;
        if (!worker || !takes_part(shard) || !takes_part(worker) || worker->progress.open_ns == 0) continue;
        append(text, "%.100s waits for %.100s, which has called it: see the link between these two hosts",
               shard->label, worker->label);
        return true;
    }
    return false;
}

/* Follows the wait of a stalled worker: to a rank that waits for no other, or around a cycle. */
static bool append_wait_chain(const struct weft_coordinator *coordinator,
                              const struct coordinator_member *from, struct text *text)
{
    const struct coordinator_member *at = from, *next = awaited(coordinator, from);
    if (!next) return false;
    for (uint32_t hops = 0; next && hops < coordinator->options.workers; hops++) {
        at = next;
        next = awaited(coordinator, at);
    }
    if (!next && at->progress.open_ns == 0) {
        append(text, "%.100s has not called it", at->label);
        return true;
    }
    append(text, "%.100s", at->label);
    if (next)
        append(text, " and %.100s wait for each other%s: see the link between these two hosts", next->label,
               awaited(coordinator, next) == at ? "" : ", in a cycle");
    else append(text, " is the last one that others wait for: see its links");
    return true;
}

static void append_culprit(const struct weft_coordinator *coordinator,
                           const struct coordinator_member *stalled, struct text *text)
{
    if (append_members(coordinator, is_mute, "does not answer: stopped, or cut off", text)) return;
    if (append_wait_chain(coordinator, stalled, text) || append_shard_link(coordinator, text)) return;
    if (append_members(coordinator, is_idle_worker, "has no operation open", text)) return;
    append(text, "every rank has called it: see the links between the hosts, and the logs of the shards");
}

static void describe(const struct weft_coordinator *coordinator, const struct coordinator_member *stalled,
                     uint32_t count, uint64_t now_ns, char *out, size_t out_bytes)
{
    struct text text = {.out = out, .bytes = out_bytes};
    out[0] = 0;
    append(&text, "%.100s", stalled->label);
    if (count > 1) append(&text, " and %u more", count - 1);
    append(&text, " %s waited %.1f s in %s", count > 1 ? "have" : "has",
           (double)open_ns(stalled, now_ns) / 1e9,
           stalled->progress.call[0] ? stalled->progress.call : "an operation");
    if (stalled->progress.usual_ns > 0)
        append(&text, " (usually at most %.3f s)", (double)stalled->progress.usual_ns / 1e9);
    append(&text, ": ");
    append_culprit(coordinator, stalled, &text);
}

/* ---- states ---- */

static void ask_all(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    coordinator->stall.asked_ns = now_ns;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
        member->progress.has_answered = false;
        if (!takes_part(member) || !member->abilities.supports_progress) continue;
        heartbeat.ask_progress = true;
        coordinator_send_heartbeat(coordinator, member, &heartbeat);
    }
}

static void end_stall(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    struct coordinator_stall *stall = &coordinator->stall;
    if (stall->text[0])
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %.100s continues after %.1f s",
                 coordinator->job, (double)weft_elapsed_ns(stall->began_ns, now_ns) / 1e9);
    *stall = (struct coordinator_stall){0};
}

void coordinator_stall_progress(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                const Weft__Control__Progress *progress)
{
    const uint64_t now_ns = weft_now_ns(coordinator->env);
    if (coordinator->state != COORDINATOR_RUNNING) return;
    member->progress = (struct coordinator_progress){.operations = progress->operations,
                                                     .open_ns = progress->open_ns,
                                                     .usual_ns = progress->usual_ns,
                                                     .received_ns = now_ns,
                                                     .waits_for = progress->waits_for,
                                                     .is_stalled = progress->is_stalled,
                                                     .has_answered = true};
    snprintf(member->progress.call, sizeof member->progress.call, "%.100s", progress->call);
    if (coordinator->stall.asked_ns == 0 && is_stalled(member)) ask_all(coordinator, now_ns);
}

void coordinator_stall_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    struct coordinator_stall *stall = &coordinator->stall;
    uint32_t count;
    if (stall->asked_ns == 0 || weft_elapsed_ns(stall->asked_ns, now_ns) < ANSWER_NS) return;
    const struct coordinator_member *stalled = longest_stalled(coordinator, now_ns, &count);
    if (!stalled || coordinator->state != COORDINATOR_RUNNING) {
        end_stall(coordinator, now_ns);
        return;
    }
    const bool is_new = stall->text[0] == 0;
    if (is_new) stall->began_ns = now_ns - open_ns(stalled, now_ns);
    describe(coordinator, stalled, count, now_ns, stall->text, sizeof stall->text);
    if (is_new)
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %.100s is stalled: %s",
                 coordinator->job, stall->text);
    if (weft_elapsed_ns(stall->asked_ns, now_ns) >= UPDATE_NS) ask_all(coordinator, now_ns);
}

uint64_t coordinator_stall_ns(const struct weft_coordinator *coordinator, uint64_t now_ns)
{
    return coordinator->stall.text[0] ? weft_elapsed_ns(coordinator->stall.began_ns, now_ns) : 0;
}
