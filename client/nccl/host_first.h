/* host_first.h - all_reduces that NCCL begins and ends inside each host.
 *
 *     the caller's stream ─ready─► NCCL's stream: reduce_scatter in the host
 *                                                 all_reduce of n/g elements over the hosts, by weft
 *                                                 all_gather in the host ─done─► the caller's stream
 *
 * g ranks share a host, and rank k of each host reduces slice k. All three phases are queued by the caller's
 * thread in the order of its calls, which is equal on all ranks; the second is a stream-ordered call of weft
 * on NCCL's stream, in the group of the ranks with this place on all hosts. The request is that of the second
 * phase. With `reproducible` NCCL only moves slices, and the device sums them by the tree T. */
#ifndef WEFT_CLIENT_NCCL_HOST_FIRST_H
#define WEFT_CLIENT_NCCL_HOST_FIRST_H

#include "client/nccl/host_comm.h"
#include "kernels/device_table.h"

struct client_request;

struct client_nccl {
    bool is_used;   /* else `reason` has why not; equal on all ranks */
    bool is_forced; /* client.nccl = yes: for all sizes */
    char reason[320];
    uint32_t hosts;
    struct host_comm host;
    struct weft_comm *across;                  /* the ranks with this rank's place, one of each host */
    const struct weft_device_kernels *kernels; /* NULL: no reproducible sums */
    char kernels_reason[200];
    float *scratch;    /* (ranks of the host * NCCL_SCRATCH_ELEMS,) on the device; owned */
    bool has_subtrees; /* T over hosts of T over the ranks of a host is T over all ranks */
};
#define NCCL_SCRATCH_ELEMS (1u << 20)
#define NCCL_SUM_SOURCES_MAX 8u /* of weft_cuda_sum_tree_f32 */

/* Registers the folder with the session's calls; `nccl` is owned by the session from then on. */
void client_nccl_register(struct weft_session *session, struct client_nccl *nccl);

#endif
