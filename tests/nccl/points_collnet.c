/* points_collnet.c - the CollNet table: ranks are threads of this process, or a child that dies. A plugin
 * without the table passes with a note. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/nccl/collnet_nodes.h"

enum { COUNT = NODE_COUNT, SUM = 0, PROD = 1, MAX = 2, F32 = 7 };

/* ---- values ---- */

/* Small whole numbers, which every type holds exactly. */
static uint64_t encode(int dtype, unsigned value)
{
    static const struct {
        int mantissa, bias;
    } floats[COLL_DTYPES] = {
        [6] = {10, 15}, [7] = {23, 127}, [8] = {52, 1023}, [9] = {7, 127}, [10] = {3, 7}, [11] = {2, 15}};
    if (floats[dtype].bias == 0 || value == 0) return value;
    int exponent = 31 - __builtin_clz(value);
    uint64_t fraction = (uint64_t)(value - (1u << exponent)) << floats[dtype].mantissa >> exponent;
    return (uint64_t)(exponent + floats[dtype].bias) << floats[dtype].mantissa | fraction;
}

static unsigned input_of(int op, int rank, size_t i)
{
    return (unsigned)((i * 7 + i / 5 + (size_t)rank * 3) % 2) + (op != SUM);
}

static unsigned expected(int op, int ranks, size_t i)
{
    unsigned value = input_of(op, 0, i);
    for (int rank = 1; rank < ranks; rank++) {
        unsigned next = input_of(op, rank, i);
        if (op == SUM) value += next;
        else if (op == PROD) value *= next;
        else if ((op == MAX) == (next > value)) value = next;
    }
    return value;
}

static void one_call(struct node *node, int dtype, int op, size_t count)
{
    void *request = NULL;
    size_t size = (size_t)coll_dtype_bytes[dtype];
    int bytes = -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = encode(dtype, input_of(op, node->rank, i));
        memcpy(node->in + i * size, &bits, size);
    }
    memset(node->out, 0xee, count * size);
    while (!request)
        CHECK_OK(coll_iallreduce(node->comm, node->in, node->out, count, dtype, op, node->in_memory,
                                 node->out_memory, &request));
    node_wait(request, &bytes);
    CHECK(bytes == (int)(count * size), "%zu elements of type %d report %d bytes", count, dtype, bytes);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = encode(dtype, expected(op, node->ranks, i));
        CHECK(memcmp(node->out + i * size, &bits, size) == 0,
              "type %d, reduction %d, %d ranks: element %zu of %zu is wrong", dtype, op, node->ranks, i,
              count);
    }
}

static void *all_types(void *context)
{
    struct node *node = context;
    static const size_t counts[] = {1, 17, COUNT};
    node_open(node);
    for (int dtype = 0; dtype < COLL_DTYPES; dtype++) {
        for (int op = 0; op < COLL_OPS; op++) {
            int is_supported = 0;
            CHECK_OK(EACH(reduce_support(dtype, op, &is_supported)));
            for (int k = 0; is_supported && k < 3; k++) one_call(node, dtype, op, counts[k]);
        }
    }
    int is_supported = 1;
    CHECK_OK(EACH(reduce_support(COLL_DTYPES, 0, &is_supported)));
    CHECK(!is_supported, "type %d is claimed", COLL_DTYPES);
    node_close(node);
    return NULL;
}

static void types(struct harness *harness)
{
    if (!coll_open(harness)) return;
    static const int numbers[] = {1, 2, 5};
    if (harness->ranks) run_nodes(harness, harness->ranks, all_types);
    for (int i = 0; !harness->ranks && i < 3; i++) run_nodes(harness, numbers[i], all_types);
}

/* ---- bits ---- */

static float float_of(int rank, size_t i)
{
    uint64_t random = (uint64_t)rank << 32 | i;
    return (float)((double)(random_next(&random) % 2000001) * 1e-5 - 10.0) * (float)(1 << (i % 12));
}

/* The canonical tree over ranks a..b-1 (docs/collectives.md). */
static float tree(size_t i, int a, int b)
{
    int half = 1;
    if (b - a == 1) return float_of(a, i);
    while (half * 2 < b - a) half *= 2;
    return tree(i, a, a + half) + tree(i, a + half, b);
}

/* All ranks get equal bits; with nccl.reproducible those of the tree, also where a faster plan has others. */
static void *same_bits(void *context)
{
    enum { LONG = 400000 };
    static float *results[NODES_MAX];
    struct node *node = context;
    void *request = NULL;
    float *in = malloc(LONG * sizeof *in), *out = malloc(LONG * sizeof *out);
    node_open(node);
    for (size_t i = 0; i < LONG; i++) in[i] = float_of(node->rank, i);
    while (!request)
        CHECK_OK(coll_iallreduce(node->comm, in, out, LONG, F32, SUM, node->in_memory, node->out_memory,
                                 &request));
    node_wait(request, NULL);
    results[node->rank] = out;
    pthread_barrier_wait(node->barrier);
    CHECK(memcmp(results[0], out, LONG * sizeof *out) == 0, "ranks 0 and %d have different bits", node->rank);
    for (size_t i = 0; getenv("WEFT_NCCL_REPRODUCIBLE") && i < LONG; i++)
        CHECK(out[i] == tree(i, 0, node->ranks), "element %zu is not that of the tree", i);
    pthread_barrier_wait(node->barrier);
    node_close(node);
    free(in);
    free(out);
    return NULL;
}

static void bits(struct harness *harness)
{
    if (!coll_open(harness)) return;
    if (harness->ranks) run_nodes(harness, harness->ranks, same_bits);
    else
        for (int ranks = 3; ranks <= 5; ranks += 2) run_nodes(harness, ranks, same_bits);
}

/* ---- full queue ---- */

static void *fill(void *context)
{
    enum { MOST = 1024 };
    static _Thread_local void *requests[MOST];
    struct node *node = context;
    int posted = 0;
    node_open(node);
    if (node->rank == 0) { /* the other rank has posted nothing, so none completes */
        for (; posted < MOST; posted++) {
            float *in = (float *)node->in + posted % 64, *out = (float *)node->out + posted % 64;
            *in = (float)(posted % 64);
            CHECK_OK(coll_iallreduce(node->comm, in, out, 1, F32, SUM, node->in_memory, node->out_memory,
                                     &requests[posted]));
            if (!requests[posted]) break;
        }
        CHECK(posted >= 16 && posted < MOST, "%d operations were taken", posted);
    }
    pthread_barrier_wait(node->barrier);
    static int taken;
    if (node->rank == 0) taken = posted;
    pthread_barrier_wait(node->barrier);
    for (int i = 0; node->rank == 1 && i < taken; i++) {
        float *in = (float *)node->in + i % 64, *out = (float *)node->out + i % 64;
        *in = 1;
        while (!requests[i]) {
            CHECK_OK(coll_iallreduce(node->comm, in, out, 1, F32, SUM, node->in_memory, node->out_memory,
                                     &requests[i]));
            sched_yield();
        }
    }
    for (int i = 0; i < taken; i++) node_wait(requests[i], NULL);
    for (int i = 0; i < taken && i < 64; i++)
        CHECK(((float *)node->out)[i] == (float)(i + 1), "operation %d has another result", i);
    node_close(node);
    return NULL;
}

static void full(struct harness *harness)
{
    if (coll_open(harness)) run_nodes(harness, 2, fill);
}

/* ---- the end ---- */

/* Rank 0 has an operation open when its memory is reused; then rank 1 calls. */
static void *abort_one(void *context)
{
    struct node *node = context;
    void *request = NULL;
    int done = 0;
    node_open(node);
    if (node->rank == 1) pthread_barrier_wait(node->barrier);
    CHECK_OK(coll_iallreduce(node->comm, node->in, node->out, COUNT, F32, SUM, node->in_memory,
                             node->out_memory, &request));
    for (int i = 0; node->rank == 0 && i < 50; i++) CHECK_OK(EACH(test(request, &done, NULL)));
    CHECK(!done, "an operation without its other rank is done");
    if (node->rank == 0) {
        CHECK_OK(EACH(dereg_mr(node->comm, node->in_memory)));
        CHECK_OK(EACH(dereg_mr(node->comm, node->out_memory)));
        memset(node->out, 0x77, COUNT * sizeof(float));
        pthread_barrier_wait(node->barrier);
    }
    /* any result is legal, but the new user's bytes stay */
    for (int i = 0; request && i < 3000 && !done; i++, sched_yield())
        if (EACH(test(request, &done, NULL)) != NCCL_RESULT_SUCCESS) request = NULL;
    pthread_barrier_wait(node->barrier);
    CHECK_OK(EACH(close_coll(node->comm)));
    for (size_t i = 0; node->rank == 0 && i < COUNT * sizeof(float); i++)
        CHECK(node->out[i] == 0x77, "byte %zu was written after deregMr", i);
    CHECK_OK(driver_finalize(&node->harness->driver, node->context));
    return NULL;
}

static void abort_open(struct harness *harness)
{
    if (coll_open(harness)) run_nodes(harness, 2, abort_one);
}

/* Rank 1 is a process that is killed after some operations. */
static void death(struct harness *harness)
{
    static char handles[2][NCCL_HANDLE_BYTES];
    int ends[2], status;
    void *listener;
    if (!coll_open(harness)) return;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
    pid_t pid = fork();
    int own = pid == 0;
    struct node node = {.harness = harness, .rank = own, .ranks = 2, .handles = handles};
    node_listen(&node, &listener);
    CHECK(write(ends[own], handles[own], NCCL_HANDLE_BYTES) == NCCL_HANDLE_BYTES,
          "the other process has ended");
    CHECK(recv(ends[own], handles[!own], NCCL_HANDLE_BYTES, MSG_WAITALL) == NCCL_HANDLE_BYTES,
          "the other process has ended");
    node_connect(&node, listener);
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    for (int i = 0; result == NCCL_RESULT_SUCCESS; i++) {
        void *request = NULL;
        int done = 0;
        if (own && i == 5) raise(SIGKILL);
        while (!request && result == NCCL_RESULT_SUCCESS)
            result = coll_iallreduce(node.comm, node.in, node.out, COUNT, F32, SUM, node.in_memory,
                                     node.out_memory, &request);
        for (; result == NCCL_RESULT_SUCCESS && !done; sched_yield())
            result = EACH(test(request, &done, NULL));
    }
    CHECK(result == NCCL_RESULT_REMOTE, "a killed rank gave %d, not %d", (int)result, NCCL_RESULT_REMOTE);
    node_close(&node);
    waitpid(pid, &status, 0);
}

/* ---- a fleet (nccl.fleet), test_fleet.py ---- */

/* Calls of equal size, several in flight. The test reads the plugin's log: bytes sent and received. */
static void *send_sums(void *context)
{
    enum { CALLS = 40, OPEN = 6 };
    struct node *node = context;
    void *requests[OPEN] = {NULL};
    node_open(node);
    for (int i = 0; i < CALLS + OPEN; i++) {
        void **request = &requests[i % OPEN];
        if (*request) node_wait(*request, NULL);
        for (*request = NULL; i < CALLS && !*request; sched_yield())
            CHECK_OK(coll_iallreduce(node->comm, node->in, node->out, COUNT, F32, SUM, node->in_memory,
                                     node->out_memory, request));
    }
    node_close(node);
    return NULL;
}

static void traffic(struct harness *harness)
{
    if (harness->ranks && coll_open(harness)) run_nodes(harness, harness->ranks, send_sums);
}

/* More sizes than the shards have tensors for, also of a size again. */
static void *change_size(void *context)
{
    struct node *node = context;
    node_open(node);
    for (size_t count = 1; count <= 70; count++) one_call(node, F32, SUM, count);
    for (int i = 0; i < 10; i++) one_call(node, F32, SUM, 7);
    node_close(node);
    return NULL;
}

static void many_sizes(struct harness *harness)
{
    if (harness->ranks && coll_open(harness)) run_nodes(harness, harness->ranks, change_size);
}

/* A shard is killed between two calls. With copies (WEFT_SERVER_COPIES) all sums are right; else all ranks
 * get a remote error. */
static void *lose_shard(void *context)
{
    enum { BEFORE = 20, AFTER = 60 };
    struct node *node = context;
    const bool has_copies = getenv("WEFT_SERVER_COPIES");
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    node_open(node);
    for (int i = 0; i < BEFORE; i++) one_call(node, F32, SUM, COUNT);
    pthread_barrier_wait(node->barrier);
    if (node->rank == 0) kill(node->harness->shard, SIGKILL);
    for (int i = 0; has_copies && i < AFTER; i++) one_call(node, F32, SUM, COUNT);
    while (!has_copies && result == NCCL_RESULT_SUCCESS) {
        void *request = NULL;
        int done = 0;
        while (!request && result == NCCL_RESULT_SUCCESS)
            result = coll_iallreduce(node->comm, node->in, node->out, COUNT, F32, SUM, node->in_memory,
                                     node->out_memory, &request);
        for (; result == NCCL_RESULT_SUCCESS && !done; sched_yield())
            result = EACH(test(request, &done, NULL));
    }
    CHECK(result == (has_copies ? NCCL_RESULT_SUCCESS : NCCL_RESULT_REMOTE), "a killed shard gave %d",
          (int)result);
    node_close(node);
    return NULL;
}

static void shard(struct harness *harness)
{
    if (harness->shard && coll_open(harness)) run_nodes(harness, harness->ranks, lose_shard);
}

/* Needs a deadline of the plugin: rank 1 listens and never connects. */
static void missing(struct harness *harness)
{
    static char handles[2][NCCL_HANDLE_BYTES];
    void *both[2] = {handles[0], handles[1]}, *listener, *other, *comm = NULL;
    if (!getenv("WEFT_NCCL_DEADLINE") || !coll_open(harness)) return;
    struct node node = {.harness = harness, .ranks = 2, .handles = handles};
    node_listen(&node, &listener);
    CHECK_OK(coll_listen(node.context, handles[1], &other));
    for (int rank = 0; rank < 2; rank++) {
        enum nccl_result result = EACH(connect(both, 2, rank, rank == 0 ? listener : other, &comm));
        CHECK(result == NCCL_RESULT_REMOTE && !comm, "connect without rank %d gave %d", !rank, (int)result);
    }
    CHECK_OK(EACH(close_listen(listener)));
    CHECK_OK(EACH(close_listen(other)));
    CHECK_OK(driver_finalize(&harness->driver, node.context));
}

const struct point collnet_points[] = {
    {"coll-types", types}, {"coll-bits", bits},       {"coll-full", full}, {"coll-abort", abort_open},
    {"coll-death", death}, {"coll-missing", missing}, {"coll-traffic", traffic},
    {"coll-shard", shard}, {"coll-many-sizes", many_sizes}, {NULL, NULL}};
