/* lack.c - how long operations lacked a rank that had not begun them.
 *
 *     operation posted ──── lacks a rank ────► all whose first message it waits for have begun ────► done
 *                           counted here                    not counted: the network and the work of the ranks
 *
 * In the memory of one host an operation lacks a rank until all have announced it. By messages it lacks
 * the rank behind until the greeting is there, and each rank whose first message is short until that is
 * there: with plans direct, doubling and halving, and of those whose partial sums it receives. For a
 * rank farther away, a delayed rank puts the length of its delay into each message that it sends later
 * (coll_header.status of data messages). The receiver counts as much of the time that it has waited. Durations alone travel, so no clocks are compared. A first message counts with the time that it
 * travels. A long one does not count: if the slow rank sends no other to this rank or its predecessors,
 * the figure is too low.
 *
 * Time in which several operations lack a rank counts once. */
#include "collective/internal.h"

static void account(struct weft_lack *lack, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns < lack->until_ns) from_ns = lack->until_ns;
    if (to_ns <= from_ns) return;
    atomic_fetch_add_explicit(&lack->total_ns, to_ns - from_ns, memory_order_relaxed);
    lack->until_ns = to_ns;
}

/* Readers on other threads see total and since of one moment. */
static void write_begin(struct weft_lack *lack)
{
    atomic_fetch_add_explicit(&lack->turn, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void write_end(struct weft_lack *lack)
{
    atomic_fetch_add_explicit(&lack->turn, 1, memory_order_release);
}

uint64_t weft_lack_ns(struct weft_lack *lack, uint64_t now_ns)
{
    uint64_t total_ns = 0, since_ns = 0;
    for (int tries = 0; tries < 100; tries++) {
        const uint32_t turn = atomic_load_explicit(&lack->turn, memory_order_acquire);
        total_ns = atomic_load_explicit(&lack->total_ns, memory_order_relaxed);
        since_ns = atomic_load_explicit(&lack->since_ns, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (turn % 2 == 0 && atomic_load_explicit(&lack->turn, memory_order_relaxed) == turn) break;
    }
    return total_ns + (since_ns > 0 && now_ns > since_ns ? now_ns - since_ns : 0);
}

void weft_lack_add(struct weft_lack *lack, uint64_t from_ns, uint64_t to_ns)
{
    if (!atomic_load_explicit(&lack->counts, memory_order_relaxed)) return;
    write_begin(lack);
    account(lack, from_ns, to_ns);
    write_end(lack);
}

void lack_begin(struct weft_coll *coll)
{
    struct weft_lack *lack = coll->group->lack;
    if (!lack || coll->lack.counts || !atomic_load_explicit(&lack->counts, memory_order_relaxed)) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env);
    coll->lack.counts = true;
    coll->lack.since_ns = now_ns;
    if (lack->operations++ > 0) return;
    write_begin(lack);
    atomic_store_explicit(&lack->since_ns, now_ns, memory_order_relaxed);
    write_end(lack);
}

void lack_end(struct weft_coll *coll)
{
    struct weft_lack *lack = coll->group->lack;
    if (!coll->lack.counts) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env);
    coll->lack.counts = false;
    coll->lack.late_ns += weft_since_ns(coll->lack.since_ns, now_ns);
    if (--lack->operations > 0) return;
    write_begin(lack);
    account(lack, atomic_load_explicit(&lack->since_ns, memory_order_relaxed), now_ns);
    atomic_store_explicit(&lack->since_ns, 0, memory_order_relaxed);
    write_end(lack);
}

bool lack_first(struct weft_coll *coll, const struct weft_action *action)
{
    const uint64_t bit = 1ull << action->peer % 64;
    const uint8_t plan = coll->header.plan;
    const bool own_rounds = plan == WEFT_PLAN_DIRECT || plan == WEFT_PLAN_DOUBLING ||
                            plan == WEFT_PLAN_HALVING || action->kind == WEFT_ACTION_RECV_SUM;
    const bool is_short = action->count * coll->elem_bytes <= LACK_FIRST_BYTES;
    const bool first = coll->lack.asked == 0 || (own_rounds && is_short && !(coll->lack.asked & bit));
    coll->lack.asked |= bit;
    if (!first || !coll->group->lack) return false;
    if (coll->lack.awaited++ == 0) lack_begin(coll);
    return true;
}

void lack_arrived(struct weft_coll *coll)
{
    if (--coll->lack.awaited == 0) lack_end(coll);
}

int32_t lack_told(const struct weft_coll *coll)
{
    const uint64_t us = coll->lack.late_ns / 1000;
    return us < INT32_MAX ? (int32_t)us : INT32_MAX;
}

void lack_hear(struct weft_coll *coll, int32_t late_us)
{
    struct weft_lack *lack = coll->group->lack;
    if (!lack || late_us <= 0 || (uint64_t)late_us * 1000 <= coll->lack.late_ns) return;
    if (!atomic_load_explicit(&lack->counts, memory_order_relaxed)) return;
    const uint64_t now_ns = weft_now_ns(coll->group->env), waited_ns = weft_since_ns(coll->posted_ns, now_ns);
    uint64_t late_ns = (uint64_t)late_us * 1000;
    if (late_ns > waited_ns) late_ns = waited_ns;
    if (late_ns <= coll->lack.late_ns) return;
    const uint64_t more_ns = late_ns - coll->lack.late_ns;
    coll->lack.late_ns = late_ns;
    if (lack->operations > 0) return; /* that time is being counted */
    write_begin(lack);
    account(lack, now_ns - more_ns, now_ns);
    write_end(lack);
}
