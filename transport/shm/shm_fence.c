/* shm_fence.c - the fence between access to memory and its withdrawal: the owner pays, the user does not.
 *
 *   user (each put, get, granted slice)       owner (closes a window, ends a pair)
 *   U1  inside = this window                  O1  generation + 1, or state = ended
 *   U2  still open? else leave                O2  fence
 *   U3  copy                                  O3  is a user inside? then check again later
 *   U4  inside = 0 (release)                      the memory belongs to the owner again
 *
 * Required: not both "U2 sees the window open" and "O3 sees no user inside". U1 and U2 are a store and a
 * load of different addresses. Processors reorder them unless a full fence lies between, which costs more
 * than a small copy.
 *
 * 1. The owner fences for both. membarrier(GLOBAL_EXPEDITED) in O2 makes every processor that runs a
 *    thread of a registered process execute a full fence during the call. A processor that runs none
 *    executes one at its context switch.
 * 2. The user needs compiler order only. If that fence falls after U1, U1 is visible when the call
 *    returns, and O3 sees it.
 * 3. If it falls before U1, it falls before U2. O1 was visible when the call began, and U2 sees it.
 * 4. U4 (release) and O3 (acquire) order the copied bytes. Non-temporal stores are fenced by the copy
 *    itself.
 * 5. A user that stops or dies between U1 and U4 has made U1 visible, so O3 sees it inside.
 *
 * The call reaches registered processes only, and both sides must be able to issue it: the endpoints agree
 * by SHM_FENCES in the bootstrap parameters. If one side lacks the system call (Linux before 4.16, a
 * filter), users fence themselves. If the call is refused later, by a filter installed after open, such
 * peers count as inside for UNCERTAIN_NS, far longer than a store stays in a store buffer. */
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
    if (!endpoint->access.fences || membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return;
    endpoint->access.uncertain_until_ns = weft_now_ns(endpoint->transport->env) + UNCERTAIN_NS;
}

bool shm_fence_is_uncertain(const struct shm_pair *pair)
{
    uint64_t until_ns = pair->endpoint->access.uncertain_until_ns;
    return until_ns != 0 && pair->flags.light && !pair->flags.self &&
           weft_now_ns(pair->endpoint->transport->env) < until_ns;
}
