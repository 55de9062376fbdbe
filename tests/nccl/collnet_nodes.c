/* collnet_nodes.c - see collnet_nodes.h. */
#include "tests/nccl/collnet_nodes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>

/* ---- the table ---- */

struct coll_tables coll;

bool coll_open(struct harness *harness)
{
    char symbol[40];
    snprintf(symbol, sizeof symbol, "ncclCollNetPlugin_v%d", harness->driver.version);
    const void *table = dlsym(harness->driver.library, symbol);
    if (!table) {
        printf("     no CollNet table\n");
        return false;
    }
    if (harness->driver.version == 12) coll.v12 = table;
    else if (harness->driver.version == 11) coll.v11 = table;
    else if (harness->driver.version == 10) coll.v10 = table;
    else coll.v8 = table;
    return true;
}

enum nccl_result coll_listen(void *context, void *handle, void **listener)
{
    if (coll.v12) return coll.v12->listen(context, 0, handle, listener);
    if (coll.v11) return coll.v11->listen(context, 0, handle, listener);
    return coll.v10 ? coll.v10->listen(0, handle, listener) : coll.v8->listen(0, handle, listener);
}

enum nccl_result coll_iallreduce(void *comm, void *in, void *out, size_t count, int dtype, int op,
                                 void *in_memory, void *out_memory, void **request)
{
    if (coll.v12)
        return coll.v12->iallreduce(comm, in, out, count, dtype, op, in_memory, out_memory, request);
    if (coll.v11)
        return coll.v11->iallreduce(comm, in, out, count, dtype, op, in_memory, out_memory, request);
    if (coll.v10)
        return coll.v10->iallreduce(comm, in, out, count, dtype, op, in_memory, out_memory, request);
    return coll.v8->iallreduce(comm, in, out, (int)count, dtype, op, in_memory, out_memory, request);
}

/* ---- ranks ---- */

void node_listen(struct node *node, void **listener)
{
    CHECK_OK(driver_init(&node->harness->driver, 1, &node->context));
    CHECK_OK(coll_listen(node->context, node->handles[node->rank], listener));
}

void node_connect(struct node *node, void *listener)
{
    void *handles[NODES_MAX];
    size_t bytes = (size_t)NODE_COUNT * 8;
    for (int i = 0; i < node->ranks; i++) handles[i] = node->handles[i];
    CHECK_OK(EACH(connect(handles, node->ranks, node->rank, listener, &node->comm)));
    CHECK_OK(EACH(close_listen(listener)));
    node->in = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    node->out = node->in + bytes;
    CHECK_OK(EACH(reg_mr(node->comm, node->in, bytes, NCCL_POINTER_HOST, &node->in_memory)));
    CHECK_OK(EACH(reg_mr(node->comm, node->out, bytes, NCCL_POINTER_HOST, &node->out_memory)));
}

void node_close(struct node *node)
{
    CHECK_OK(EACH(dereg_mr(node->comm, node->in_memory)));
    CHECK_OK(EACH(dereg_mr(node->comm, node->out_memory)));
    CHECK_OK(EACH(close_coll(node->comm)));
    CHECK_OK(driver_finalize(&node->harness->driver, node->context));
    munmap(node->in, (size_t)NODE_COUNT * 16);
}

void node_wait(void *request, int *bytes)
{
    for (int done = 0; !done; sched_yield()) CHECK_OK(EACH(test(request, &done, bytes)));
}

void run_nodes(struct harness *harness, int ranks, void *(*run)(void *))
{
    static char handles[NODES_MAX][NCCL_HANDLE_BYTES];
    struct node nodes[NODES_MAX];
    pthread_t threads[NODES_MAX];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    for (int i = 0; i < ranks; i++) {
        nodes[i] = (struct node){
            .harness = harness, .rank = i, .ranks = ranks, .handles = handles, .barrier = &barrier};
        CHECK(pthread_create(&threads[i], NULL, run, &nodes[i]) == 0, "no thread");
    }
    for (int i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
}

void node_open(struct node *node)
{
    void *listener;
    node_listen(node, &listener);
    pthread_barrier_wait(node->barrier);
    node_connect(node, listener);
    pthread_barrier_wait(node->barrier); /* NCCL gathers the results of connect before the first call */
}
