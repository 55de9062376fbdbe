/* collnet_nodes.h - the CollNet table of a plugin, and ranks that are threads of one process. */
#ifndef WEFT_TESTS_NCCL_COLLNET_NODES_H
#define WEFT_TESTS_NCCL_COLLNET_NODES_H

#include <pthread.h>

#include "tests/nccl/harness.h"

enum { NODES_MAX = 8, NODE_COUNT = 3001, COLL_DTYPES = 12, COLL_OPS = 4 };
static const int coll_dtype_bytes[COLL_DTYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* NCCL's numbers */

extern struct coll_tables { /* one is not NULL */
    const struct nccl_coll_v8 *v8;
    const struct nccl_coll_v10 *v10;
    const struct nccl_coll_v11 *v11;
    const struct nccl_coll_v12 *v12;
} coll;

#define EACH(call) \
    (coll.v12 ? coll.v12->call : coll.v11 ? coll.v11->call : coll.v10 ? coll.v10->call : coll.v8->call)

/* False, with a note: the plugin has no CollNet table. */
bool coll_open(struct harness *harness);
enum nccl_result coll_listen(void *context, void *handle, void **listener);
enum nccl_result coll_iallreduce(void *comm, void *in, void *out, size_t count, int dtype, int op,
                                 void *in_memory, void *out_memory, void **request);

struct node {
    struct harness *harness;
    int rank, ranks;
    char (*handles)[NCCL_HANDLE_BYTES]; /* (ranks,) */
    pthread_barrier_t *barrier;
    void *context, *comm, *in_memory, *out_memory;
    unsigned char *in, *out; /* NODE_COUNT elements of any type each, registered */
};

/* Runs the function in a thread for each rank; its argument is a struct node with the first four fields. */
void run_nodes(struct harness *harness, int ranks, void *(*run)(void *));
void node_listen(struct node *node, void **listener);
void node_connect(struct node *node, void *listener);
void node_open(struct node *node); /* both; returns when all ranks are connected */
void node_close(struct node *node);
void node_wait(void *request, int *bytes);

#endif
