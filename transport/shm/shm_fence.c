/* shm_fence.c - one fence for two: who takes memory back pays for it, who reaches for memory does not.
 *
 *   user (each put, get, granted slice)       owner (closes a window, ends a pair)
 *   U1  inside = this window                  O1  generation + 1, or state = ended
 *   U2  still open? else leave                O2  fence
 *   U3  copy                                  O3  is anybody inside? then look again later
 *   U4  inside = 0 (release)                      the memory is the owner's again
 *
 * It must not happen that U2 still sees the window open and O3 sees nobody inside. U1 and U2 are a store and
 * a load of different places, which processors reorder unless a full fence lies between them, and that costs
 * more than a small copy.
 *
 * So the owner fences for both: membarrier(GLOBAL_EXPEDITED) in O2 makes every processor that runs a thread
 * of a registered process pass a full fence between the call's begin and its end, at some place of its
 * program; one that runs none of its threads has passed one when it was switched out, or passes one when it
 * is switched in. For the user the compiler's order is then enough:
 *   - that fence falls behind U1: U1 is visible when the call returns, and O3, which comes later, sees it;
 *   - it falls before U1, so before U2: O1 was visible when the call began, and U2 sees it.
 * What was copied (U3) is visible to whoever has seen U4, by release and acquire, as before; stores around
 * the cache are fenced by the copy itself. A user that is stopped, or dies, between U1 and U4 has U1 visible
 * and is seen inside.
 *
 * The call reaches only processes that have registered, and only an owner who makes it may be left alone with
 * the fence: both is agreed when two endpoints meet (SHM_FENCES in the parameters). Where either lacks the
 * system call (Linux before 4.16, a filter), both fence for themselves. Should the call be refused later, by
 * a filter that came after the endpoint, then such peers count as inside for UNCERTAIN_NS: far longer than a
 * store stays unseen. */
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/shm/shm.h"

#define UNCERTAIN_NS WEFT_MS(20)

static long membarrier(int command)
{
    return syscall(__NR_membarrier, command, 0);
}

bool shm_fence_register(void)
{
    const long wanted = MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    long known = membarrier(MEMBARRIER_CMD_QUERY);
    return known >= 0 && (known & wanted) == wanted &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

void shm_fence_users(struct shm_endpoint *endpoint)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!endpoint->fences || membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return;
    endpoint->uncertain_until_ns = weft_now_ns(endpoint->transport->env) + UNCERTAIN_NS;
}

bool shm_fence_is_uncertain(const struct shm_pair *pair)
{
    uint64_t until_ns = pair->endpoint->uncertain_until_ns;
    return until_ns != 0 && pair->light && !pair->self &&
           weft_now_ns(pair->endpoint->transport->env) < until_ns;
}
