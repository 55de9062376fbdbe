/* straggler_time.c - time that operations wait for ranks that have not begun them.
 *
 *     operation posted ── waits for stragglers ──► first messages of all awaited ranks are here ──► done
 *                         counted here                       not counted: network and computation
 *
 * One-host path: the wait ends when all ranks have published the operation. By messages: it ends with the
 * message of the previous rank, and with the first message (up to STRAGGLER_MESSAGE_BYTES_MAX) of each rank
 * that direct, doubling, halving or a partial sum receives from. A delayed rank puts its delay into its later
 * messages (coll_header.status of data messages), and the receiver counts as much of it as it has waited.
 * Only durations travel, so clocks need no synchronization. The transfer time of a first message counts. If
 * the straggler sends only longer messages to this rank and its predecessors, the counter is too low.
 * Overlapping waits count once. */
#include "collective/core/record/straggler_time.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

static void account(struct weft_straggler_time *straggler_time, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns < straggler_time->accounted_until_ns) from_ns = straggler_time->accounted_until_ns;
    if (to_ns <= from_ns) return;
    atomic_fetch_add_explicit(&straggler_time->total_ns, to_ns - from_ns, memory_order_relaxed);
    straggler_time->accounted_until_ns = to_ns;
}

/* Seqlock: readers on other threads see total_ns and since_ns of one moment. */
static void write_begin(struct weft_straggler_time *straggler_time)
{
    atomic_fetch_add_explicit(&straggler_time->version, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void write_end(struct weft_straggler_time *straggler_time)
{
    atomic_fetch_add_explicit(&straggler_time->version, 1, memory_order_release);
}

uint64_t weft_straggler_time_ns(struct weft_straggler_time *straggler_time, uint64_t now_ns)
{
    uint64_t total_ns = 0, since_ns = 0;
    for (int tries = 0; tries < 100; tries++) {
        const uint32_t version = atomic_load_explicit(&straggler_time->version, memory_order_acquire);
        total_ns = atomic_load_explicit(&straggler_time->total_ns, memory_order_relaxed);
        since_ns = atomic_load_explicit(&straggler_time->since_ns, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (version % 2 == 0 &&
            atomic_load_explicit(&straggler_time->version, memory_order_relaxed) == version)
            break;
    }
    return total_ns + (since_ns > 0 && now_ns > since_ns ? now_ns - since_ns : 0);
}

void weft_straggler_time_add(struct weft_straggler_time *straggler_time, uint64_t from_ns, uint64_t to_ns)
{
    if (!atomic_load_explicit(&straggler_time->is_enabled, memory_order_relaxed)) return;
    write_begin(straggler_time);
    account(straggler_time, from_ns, to_ns);
    write_end(straggler_time);
}

void straggler_wait_begin(struct weft_coll *coll)
{
    struct weft_straggler_time *straggler_time = coll->group->observers.straggler_time;
    if (!straggler_time || coll->straggler_time.counts ||
        !atomic_load_explicit(&straggler_time->is_enabled, memory_order_relaxed))
        return;
    const uint64_t now_ns = weft_now_ns(coll->group->env);
    coll->straggler_time.counts = true;
    coll->straggler_time.since_ns = now_ns;
    if (straggler_time->waiting_ops++ > 0) return;
    write_begin(straggler_time);
    atomic_store_explicit(&straggler_time->since_ns, now_ns, memory_order_relaxed);
    write_end(straggler_time);
}

void straggler_wait_end(struct weft_coll *coll)
{
    struct weft_straggler_time *straggler_time = coll->group->observers.straggler_time;
    if (!coll->straggler_time.counts) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env);
    coll->straggler_time.counts = false;
    coll->straggler_time.late_ns += weft_elapsed_ns(coll->straggler_time.since_ns, now_ns);
    if (--straggler_time->waiting_ops > 0) return;
    write_begin(straggler_time);
    account(straggler_time, atomic_load_explicit(&straggler_time->since_ns, memory_order_relaxed), now_ns);
    atomic_store_explicit(&straggler_time->since_ns, 0, memory_order_relaxed);
    write_end(straggler_time);
}

bool straggler_recv_posted(struct weft_coll *coll, const struct weft_action *action)
{
    const uint64_t bit = 1ull << action->peer % 64;
    const uint8_t plan = coll->header.plan;
    const bool own_rounds = plan == WEFT_PLAN_DIRECT || plan == WEFT_PLAN_DOUBLING ||
                            plan == WEFT_PLAN_HALVING || action->kind == WEFT_ACTION_RECV_SUM;
    const bool is_short = action->count * coll->data.elem_bytes <= STRAGGLER_MESSAGE_BYTES_MAX;
    const bool first =
        coll->straggler_time.asked == 0 || (own_rounds && is_short && !(coll->straggler_time.asked & bit));
    coll->straggler_time.asked |= bit;
    if (!first || !coll->group->observers.straggler_time) return false;
    if (coll->straggler_time.awaited++ == 0) straggler_wait_begin(coll);
    return true;
}

void straggler_recv_arrived(struct weft_coll *coll)
{
    if (--coll->straggler_time.awaited == 0) straggler_wait_end(coll);
}

int32_t straggler_delay_us(const struct weft_coll *coll)
{
    const uint64_t us = coll->straggler_time.late_ns / 1000;
    return us < INT32_MAX ? (int32_t)us : INT32_MAX;
}

void straggler_merge_delay(struct weft_coll *coll, int32_t late_us)
{
    struct weft_straggler_time *straggler_time = coll->group->observers.straggler_time;
    if (!straggler_time || late_us <= 0 || (uint64_t)late_us * 1000 <= coll->straggler_time.late_ns) return;
    if (!atomic_load_explicit(&straggler_time->is_enabled, memory_order_relaxed)) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env),
                   waited_ns = weft_elapsed_ns(coll->posted_ns, now_ns);
    uint64_t late_ns = (uint64_t)late_us * 1000;
    if (late_ns > waited_ns) late_ns = waited_ns;
    if (late_ns <= coll->straggler_time.late_ns) return;
    const uint64_t more_ns = late_ns - coll->straggler_time.late_ns;
    coll->straggler_time.late_ns = late_ns;
    if (straggler_time->waiting_ops > 0) return; /* the interval is being counted */
    write_begin(straggler_time);
    account(straggler_time, now_ns - more_ns, now_ns);
    write_end(straggler_time);
}
