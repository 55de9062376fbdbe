/* host_reads.c - checks whether the ranks of a host may still copy each other's ordinary memory.
 *
 * The ranks agree on it at setup (host_setup.c). Later a program can drop privileges, become undumpable,
 * or install a filter of system calls. The kernel then refuses process_vm_readv to this rank, or to its
 * peers. An operation cannot recover from a refusal in its middle, since sums in place are half done. Each
 * rank therefore checks before it posts the descriptor of an operation on ordinary memory:
 *
 *     read a word of each peer                    detects a right that this rank lost
 *     compare own user, group, dumpable flag      detects a right that peers lost, also after their check
 *
 * The descriptor carries the result (HOST_APART). If it is set, all ranks fall back to staging or messages
 * from then on. */
#include <sys/prctl.h>
#include <unistd.h>

#include "collective/host.h"

struct host_rights host_rights_now(void)
{
    return (struct host_rights){.user = geteuid(), .group = getegid(), .dumpable = prctl(PR_GET_DUMPABLE)};
}

static bool has_changed(const struct host_rights *before)
{
    const struct host_rights now = host_rights_now();
    return now.user != before->user || now.group != before->group || now.dumpable != before->dumpable;
}

bool host_still_copies(struct host *host)
{
    const struct weft_group *group = host->group;
    bool refused = false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank &&
            weft_peer_copy(group->roster->peers[rank], false, 0, NULL, 0) == WEFT_ERR_UNSUPPORTED)
            refused = true;
    if (refused) return false; /* the transport logs the warning */
    if (!has_changed(&host->rights)) return true;
    weft_log(group->env, WEFT_LOG_WARN, "collective",
             "group %u rank %u: the user, group or dumpable flag of this process has changed since start, so "
             "its peers may be refused "
             "process_vm_readv: ordinary memory goes through staging memory from here on",
             group->group_id, group->rank);
    return false;
}

void host_copies_no_more(struct host *host)
{
    host->copies_all = false;
    host_shapes_forget(host); /* prepared calls that rely on it */
}
