/* cma_permission.c - checks whether ranks may still copy each other's unmapped memory (CMA).
 *
 * The ranks agree on it at setup (setup.c). Later a program can drop privileges, become undumpable, or
 * install a filter of system calls. The kernel then refuses process_vm_readv to this rank, or to its peers.
 * An operation cannot recover from a refusal in its middle, because in-place sums are half done. So each rank
 * checks before it publishes a descriptor with unmapped buffers:
 *
 *   read a word of each peer                    detects a right that this rank lost
 *   compare own user, group, dumpable flag      detects a right that peers lost, also after their check
 *
 * The descriptor carries the result (ONEHOST_CMA_REFUSED). If it is set, all ranks use staged or messages
 * from then on. */
#include <sys/prctl.h>
#include <unistd.h>

#include "collective/onehost/onehost.h"

struct onehost_credentials onehost_credentials_read(void)
{
    return (struct onehost_credentials){
        .user = geteuid(), .group = getegid(), .dumpable = prctl(PR_GET_DUMPABLE)};
}

static bool has_changed(const struct onehost_credentials *before)
{
    const struct onehost_credentials now = onehost_credentials_read();
    return now.user != before->user || now.group != before->group || now.dumpable != before->dumpable;
}

bool onehost_cma_is_permitted(struct onehost *onehost)
{
    const struct weft_group *group = onehost->group;
    bool refused = false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank &&
            weft_peer_copy(group->peer_table->peers[rank], false, 0, NULL, 0) == WEFT_ERR_UNSUPPORTED)
            refused = true;
    if (refused) return false; /* the transport logs the warning */
    if (!has_changed(&onehost->setup.credentials)) return true;
    weft_log(group->env, WEFT_LOG_WARN, "collective",
             "group %u rank %u: the user, group or dumpable flag of this process has changed since start, so "
             "its peers may be refused "
             "process_vm_readv: ordinary memory is copied through staging memory from here on",
             group->group_id, group->rank);
    return false;
}

void onehost_cma_disable(struct onehost *onehost)
{
    onehost->setup.all_cma = false;
    onehost_prepared_invalidate(onehost); /* prepared calls that rely on it */
}
