/* host_apart.c - ranks that share a processor while another is free part.
 *
 * Ranks that wait for each other run in turns, and to the system two such threads look like one: it may start both on one processor
 * and leave them there for longer than many operations take. So a rank that waits for one on its own processor leaves, for a processor
 * that no rank of the group was last seen on, if it may run there. Of those on one processor the rank of the lowest number stays.
 *
 * A thread is moved by taking processors away from it for a moment; it has all of them back before the call returns, and the system
 * may move it as before. Who has bound a rank to one processor has left it none to go to. What another thread or process says of this
 * one's processors in that moment is overwritten: who does such things says so (weft_group_options.stay). */
#include "collective/host.h"

#include <string.h>

enum { LOOKS = 16 }; /* at a rank that shares this processor, before anything is done about it */
#define WAIT_NS_MIN WEFT_MS(1) /* between two moves; doubles while they come to be needed again soon, */
#define WAIT_NS_MAX WEFT_MS(16)
#define SOON 8 /* waits */

bool host_apart_choose(const cpu_set_t *allowed, const uint32_t *processors, uint32_t ranks, uint32_t rank, cpu_set_t *free_out)
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
static uint64_t next_wait_ns(const struct host *host, uint64_t now_ns)
{
    if (host->apart.wait_ns == 0 || weft_since_ns(host->apart.moved_ns, now_ns) > SOON * host->apart.wait_ns) return WAIT_NS_MIN;
    return host->apart.wait_ns < WAIT_NS_MAX / 2 ? 2 * host->apart.wait_ns : WAIT_NS_MAX;
}

/* Whom nobody has bound is not bound to those that are there today either: the system remembers what a thread asks for, and would keep
 * it there when its cpuset grows or processors come online. */
bool host_apart_move(const cpu_set_t *allowed, const cpu_set_t *free)
{
    cpu_set_t any, whole;
    memset(&any, 0xff, sizeof any);
    if (sched_setaffinity(0, sizeof *free, free) != 0) return false;
    bool widened = sched_setaffinity(0, sizeof any, &any) == 0 && sched_getaffinity(0, sizeof whole, &whole) == 0;
    if (!widened || !CPU_EQUAL(&whole, allowed)) sched_setaffinity(0, sizeof *allowed, allowed); /* refused: all are others by now, and it has them */
    return true;
}

static void move(struct host *host)
{
    uint32_t processors[HOST_RANKS_MAX], ranks = host->group->ranks;
    cpu_set_t allowed, free;
    for (uint32_t rank = 0; rank < ranks; rank++)
        processors[rank] = atomic_load_explicit(&host->peers[rank].segment->processor, memory_order_relaxed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !host_apart_choose(&allowed, processors, ranks, host->group->rank, &free)) return;
    if (host_apart_move(&allowed, &free)) host_tell_processor(host);
}

void host_apart(struct host *host)
{
    if (host->crowded || host->group->stay || ++host->apart.looks < LOOKS) return;
    host->apart.looks = 0;
    uint64_t now_ns = weft_now_ns(host->group->env);
    if (host->apart.wait_ns > 0 && weft_since_ns(host->apart.moved_ns, now_ns) < host->apart.wait_ns) return;
    host->apart.wait_ns = next_wait_ns(host, now_ns);
    host->apart.moved_ns = now_ns;
    move(host);
}
