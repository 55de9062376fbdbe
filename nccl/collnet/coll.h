/* coll.h - inside the CollNet table: all_reduce among one GPU of each node, by weft's collectives.
 *
 *   coll_older_tables.c -> coll_plugin.c (version 12)
 *   coll_connect.c   endpoint of a rank, connected with all others by exchanges (net/exchange.h)
 *   coll_comm.c      group of weft over it; operations, registrations, the end
 *   coll_fleet.c     whether sums go through shards -> fleet.c, fleet_sizes.c
 *
 * As in the network table, NCCL's calls drive everything: test steps the loop of its communicator. Only a
 * fleet has threads. NCCL calls iallreduce in the same order on all ranks; the group numbers the
 * operations. */
#ifndef WEFT_NCCL_COLLNET_COLL_H
#define WEFT_NCCL_COLLNET_COLL_H

#include "collective/collective.h"
#include "nccl/collnet/fleet.h"
#include "nccl/nccl.h"
#include "nccl/net/net.h"

enum { COLL_REQUESTS = 64 };             /* of one communicator; more: "again" */
#define COLL_CONNECT_NS WEFT_SECONDS(60) /* longest connect, which blocks: then NCCL uses its other plans */

struct coll_comm;
struct coll_request {
    struct coll_comm *comm;
    struct weft_list link; /* in free_requests or open_requests of its communicator */
    bool is_done;
    enum weft_status status;
    size_t bytes;
    struct fleet_call *call; /* NULL: an operation of the group */
    struct net_memory *memories[2];
};

struct coll_answer { /* of all ranks, to a question that connect asks */
    bool is_done;
    enum weft_status status;
    int32_t mine, all;
};

struct coll_comm {
    pthread_mutex_t lock;
    struct weft_transport *transport; /* NULL: abandoned */
    struct weft_loop *loop;
    struct weft_group *group;
    struct coll_answer answer;
    struct fleet *fleet;                         /* NULL: none */
    bool has_reported_types, has_reported_sizes; /* why calls do not use the fleet */
    uint32_t rank, ranks;
    enum nccl_result failed; /* once set, every call returns it */
    struct weft_list free_requests, open_requests, memories;
    struct coll_request requests[COLL_REQUESTS];
};

_Static_assert((int)FLEET_CALLS >= (int)COLL_REQUESTS, "a call for each request");

enum nccl_result coll_connect(void *handles[], int ranks, int rank, void *listener, void **comm_out);
/* coll_connect.c calls it when the endpoint is connected with all ranks. */
enum weft_status coll_group_create(struct coll_comm *comm, struct weft_error *error);
void coll_comm_free(struct coll_comm *comm);
/* Joins the fleet of nccl.fleet if all ranks can; blocks for about two times patience_ns at most. An error:
 * the ranks could not agree. */
enum weft_status coll_fleet_open(struct coll_comm *comm, int device, uint64_t patience_ns,
                                 struct weft_error *error);
/* NULL: the call is one of the group. All ranks get the same answer. A free request exists. */
struct fleet_call *coll_fleet_post(struct coll_comm *comm, const struct weft_coll_args *args);

enum nccl_result coll_reduce_support(int dtype, int op, int *is_supported_out);
enum nccl_result coll_reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out);
enum nccl_result coll_dereg_mr(void *comm, void *memory);
enum nccl_result coll_iallreduce(void *comm, void *in, void *out, size_t count, int dtype, int op,
                                 void *in_memory, void *out_memory, void **request_out);
enum nccl_result coll_test(void *request, int *is_done_out, int *bytes_out);
enum nccl_result coll_close(void *comm);

#endif
