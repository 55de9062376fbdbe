/* core_migration.c - moves a rank away from a core that it shares with another rank, if another core is free.
 *
 * The scheduler may start two ranks on one core and leave them there. A rank that waits for a rank on its own
 * core moves to a core without a rank of the group, if its affinity permits. Of the ranks on one core the
 * lowest stays. A thread is moved by two calls of sched_setaffinity: fewer cores, then all as before. A rank
 * bound to one core does not move. weft_group_options.stay disables it. */
#include "collective/onehost/onehost.h"

#include <string.h>

enum { POLLS = 16 };           /* polls of a rank on this core before it acts */
#define WAIT_NS_MIN WEFT_MS(1) /* between two moves; doubles if the next move is needed soon */
#define WAIT_NS_MAX WEFT_MS(16)
#define SOON 8 /* in units of the wait */

bool onehost_core_migration_choose(const cpu_set_t *allowed, const uint32_t *processors, uint32_t ranks,
                                   uint32_t rank, cpu_set_t *free_out)
{
    bool moves = false;
    *free_out = *allowed;
    for (uint32_t r = 0; r < ranks; r++) {
        if (processors[r] < CPU_SETSIZE) CPU_CLR(processors[r], free_out);
        moves |= r < rank && processors[r] == processors[rank];
    }
    return moves && CPU_COUNT(free_out) > 0;
}

/* The wait after a move at `now_ns`. */
static uint64_t next_wait_ns(const struct onehost *onehost, uint64_t now_ns)
{
    if (onehost->scheduling.migration.wait_ns == 0 ||
        weft_elapsed_ns(onehost->scheduling.migration.moved_ns, now_ns) >
            SOON * onehost->scheduling.migration.wait_ns)
        return WAIT_NS_MIN;
    return onehost->scheduling.migration.wait_ns < WAIT_NS_MAX / 2 ? 2 * onehost->scheduling.migration.wait_ns
                                                                   : WAIT_NS_MAX;
}

/* A thread without affinity must not be bound to the cores of today: the kernel would keep it there when its
 * cpuset grows or cores are brought online. */
bool onehost_core_migration_move(const cpu_set_t *allowed, const cpu_set_t *free)
{
    cpu_set_t any, whole;
    memset(&any, 0xff, sizeof any);
    if (sched_setaffinity(0, sizeof *free, free) != 0) return false;
    bool widened =
        sched_setaffinity(0, sizeof any, &any) == 0 && sched_getaffinity(0, sizeof whole, &whole) == 0;
    /* refused: the cpuset has changed, and the thread has all of it */
    if (!widened || !CPU_EQUAL(&whole, allowed)) sched_setaffinity(0, sizeof *allowed, allowed);
    return true;
}

static void move(struct onehost *onehost)
{
    uint32_t processors[ONEHOST_RANKS_MAX], ranks = onehost->group->ranks;
    cpu_set_t allowed, free;
    for (uint32_t rank = 0; rank < ranks; rank++)
        processors[rank] =
            atomic_load_explicit(&onehost->peers[rank].segment->processor, memory_order_relaxed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        !onehost_core_migration_choose(&allowed, processors, ranks, onehost->group->rank, &free))
        return;
    if (onehost_core_migration_move(&allowed, &free)) onehost_publish_processor(onehost);
}

void onehost_core_migration(struct onehost *onehost)
{
    if (onehost->is_oversubscribed || onehost->group->modes.keeps_affinity ||
        ++onehost->scheduling.migration.polls < POLLS)
        return;
    onehost->scheduling.migration.polls = 0;
    uint64_t now_ns = weft_now_ns(onehost->group->env);
    if (onehost->scheduling.migration.wait_ns > 0 &&
        weft_elapsed_ns(onehost->scheduling.migration.moved_ns, now_ns) <
            onehost->scheduling.migration.wait_ns)
        return;
    onehost->scheduling.migration.wait_ns = next_wait_ns(onehost, now_ns);
    onehost->scheduling.migration.moved_ns = now_ns;
    move(onehost);
}
