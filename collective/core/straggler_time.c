/* straggler_time.c - how long operations lacked a rank that had not begun them.
 *
 *     operation posted ──── lacks a rank ────► all whose first message it waits for have begun ────► done
 *                           counted here                    not counted: the network and the work of the ranks
 *
 * In the memory of one host an operation lacks a rank until all have announced it. By messages it lacks the
 * rank behind until the greeting is there, and each rank whose first message is short until that is there:
 * with plans direct, doubling and halving, and of those whose partial sums it receives. For a rank farther
 * away, a delayed rank puts the length of its delay into each message that it sends later (coll_header.status
 * of data messages). The receiver counts as much of the time that it has waited. Durations alone travel, so
 * no clocks are compared. A first message counts with the time that it travels. A long one does not count: if
 * the slow rank sends no other to this rank or its predecessors, the figure is too low.
 *
 * Time in which several operations lack a rank counts once. */
#include "collective/core/internal.h"

static void account(struct weft_straggler_time *straggler_time, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns < straggler_time->accounted_until_ns) from_ns = straggler_time->accounted_until_ns;
    if (to_ns <= from_ns) return;
    atomic_fetch_add_explicit(&straggler_time->total_ns, to_ns - from_ns, memory_order_relaxed);
    straggler_time->accounted_until_ns = to_ns;
}

/* Readers on other threads see total and since of one moment. */
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
    struct weft_straggler_time *straggler_time = coll->group->straggler_time;
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
    struct weft_straggler_time *straggler_time = coll->group->straggler_time;
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
    const bool is_short = action->count * coll->elem_bytes <= STRAGGLER_MESSAGE_BYTES_MAX;
    const bool first =
        coll->straggler_time.asked == 0 || (own_rounds && is_short && !(coll->straggler_time.asked & bit));
    coll->straggler_time.asked |= bit;
    if (!first || !coll->group->straggler_time) return false;
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
    struct weft_straggler_time *straggler_time = coll->group->straggler_time;
    if (!straggler_time || late_us <= 0 || (uint64_t)late_us * 1000 <= coll->straggler_time.late_ns) return;
    if (!atomic_load_explicit(&straggler_time->is_enabled, memory_order_relaxed)) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env),
                   waited_ns = weft_elapsed_ns(coll->posted_ns, now_ns);
    uint64_t late_ns = (uint64_t)late_us * 1000;
    if (late_ns > waited_ns) late_ns = waited_ns;
    if (late_ns <= coll->straggler_time.late_ns) return;
    const uint64_t more_ns = late_ns - coll->straggler_time.late_ns;
    coll->straggler_time.late_ns = late_ns;
    if (straggler_time->waiting_ops > 0) return; /* that time is being counted */
    write_begin(straggler_time);
    account(straggler_time, now_ns - more_ns, now_ns);
    write_end(straggler_time);
}
