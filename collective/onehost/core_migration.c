/* onehost_core_migration.c - ranks that share a processor while another is free part.
 *
 * Ranks that wait for each other run in turns, and to the system two such threads look like one: it may start
 * both on one processor and leave them there for longer than many operations take. So a rank that waits for
 * one on its own processor leaves, for a processor that no rank of the group was last seen on, if it may run
 * there. Of those on one processor the rank of the lowest number stays.
 *
 * A thread is moved by taking processors away from it for a moment; it has all of them back before the
 * call returns, and the system may move it as before. Who has bound a rank to one processor has left it
 * none to go to. What another thread or process says of this one's processors in that moment is
 * overwritten: who does such things says so (weft_group_options.stay). */
#include "collective/onehost/onehost.h"

#include <string.h>

enum { POLLS = 16 }; /* at a rank that shares this processor, before anything is done about it */
#define WAIT_NS_MIN WEFT_MS(1) /* between two moves; doubles while they come to be needed again soon, */
#define WAIT_NS_MAX WEFT_MS(16)
#define SOON 8 /* waits */

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
    if (onehost->migration.wait_ns == 0 ||
        weft_elapsed_ns(onehost->migration.moved_ns, now_ns) > SOON * onehost->migration.wait_ns)
        return WAIT_NS_MIN;
    return onehost->migration.wait_ns < WAIT_NS_MAX / 2 ? 2 * onehost->migration.wait_ns : WAIT_NS_MAX;
}

/* Whom nobody has bound is not bound to those that are there today either: the system remembers what a
 * thread asks for, and would keep it there when its cpuset grows or processors come online. */
bool onehost_core_migration_move(const cpu_set_t *allowed, const cpu_set_t *free)
{
    cpu_set_t any, whole;
    memset(&any, 0xff, sizeof any);
    if (sched_setaffinity(0, sizeof *free, free) != 0) return false;
    bool widened =
        sched_setaffinity(0, sizeof any, &any) == 0 && sched_getaffinity(0, sizeof whole, &whole) == 0;
    /* refused: all are others by now, and it has them */
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
    if (onehost->is_oversubscribed || onehost->group->keeps_affinity || ++onehost->migration.polls < POLLS)
        return;
    onehost->migration.polls = 0;
    uint64_t now_ns = weft_now_ns(onehost->group->env);
    if (onehost->migration.wait_ns > 0 &&
        weft_elapsed_ns(onehost->migration.moved_ns, now_ns) < onehost->migration.wait_ns)
        return;
    onehost->migration.wait_ns = next_wait_ns(onehost, now_ns);
    onehost->migration.moved_ns = now_ns;
    move(onehost);
}
