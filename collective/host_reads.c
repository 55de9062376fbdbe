/* host_reads.c - may the ranks of a host still copy each other's ordinary memory?
 *
 * They agreed on it when they met (host_setup.c). Since then a program may have given up privileges, made itself undumpable, or installed a filter
 * of system calls. The system then refuses process_vm_readv to this rank, or to the others of this one. A copy that is refused in the middle of an operation
 * cannot be made up for, since sums in place are half done. So each rank looks before it announces an operation on ordinary memory:
 *
 *     it reads a word of each peer             what it has lost itself
 *     its user, group and dumpable flag        what the peers have lost of it: they may have looked before it changed
 *
 * It announces what it found (HOST_APART). All ranks take the operation, and all that follow, through stages or messages. */
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
        if (rank != group->rank && weft_peer_copy(group->roster->peers[rank], false, 0, NULL, 0) == WEFT_ERR_UNSUPPORTED) refused = true;
    if (refused) return false; /* the transport has warned */
    if (!has_changed(&host->rights)) return true;
    weft_log(group->env, WEFT_LOG_WARN, "collective",
             "group %u rank %u: the user, group or dumpable flag of this process has changed since start, so its peers may be refused "
             "process_vm_readv: ordinary memory goes through staging memory from here on",
             group->group_id, group->rank);
    return false;
}

void host_copies_no_more(struct host *host)
{
    host->copies_all = false;
    host_shapes_forget(host); /* calls that rely on it */
}
