/* faulty_collnet.c - the CollNet table of faulty_plugin.c: its faults change results of f32. */
#include "tests/nccl/faulty_collnet.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { F32 = 7 };

extern struct nccl_coll_v12 ncclCollNetPlugin_v12;
static const struct nccl_coll_v12 *inner;
static const char *fault;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *first_comm;
static struct noted { /* an open call of f32 */
    void *request, *comm;
    uint32_t *out;
    size_t count;
} noted[64];

#define FAULT(name_) (fault && strcmp(fault, name_) == 0)

static uint32_t changed(uint32_t bits)
{
    const uint32_t sign = 1u << 31, magnitude = bits & ~sign, infinity = 0x7f800000u;
    if (FAULT("coll-last-bit") && magnitude > 1u << 23 && magnitude < infinity - 1) return bits ^ 1;
    if (FAULT("coll-nan-sign") && magnitude > infinity) return bits ^ sign;
    if (FAULT("coll-zero-sign") && magnitude == 0) return 0;
    if (FAULT("coll-flushed") && magnitude < 1u << 23) return bits & sign;
    if (FAULT("coll-overflow") && magnitude == infinity) return bits - 1;
    return bits;
}

static enum nccl_result iallreduce(void *comm, void *in, void *out, size_t count, int dtype, int op,
                                   void *in_memory, void *out_memory, void **request_out)
{
    const enum nccl_result result =
        inner->iallreduce(comm, in, out, count, dtype, op, in_memory, out_memory, request_out);
    pthread_mutex_lock(&lock);
    if (!first_comm) first_comm = comm;
    for (int i = 0; *request_out && dtype == F32 && i < 64; i++) {
        if (noted[i].request) continue;
        noted[i] = (struct noted){*request_out, comm, out, count};
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static enum nccl_result test(void *request, int *is_done_out, int *bytes_out)
{
    const enum nccl_result result = inner->test(request, is_done_out, bytes_out);
    if (!*is_done_out) return result;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64; i++) {
        if (noted[i].request != request) continue;
        for (size_t k = 0; k < noted[i].count; k++) noted[i].out[k] = changed(noted[i].out[k]);
        if (FAULT("coll-one-rank") && noted[i].comm == first_comm) noted[i].out[0] ^= 1u << 31;
        noted[i].request = NULL;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void faulty_collnet_open(const struct nccl_coll_v12 *table, const char *name)
{
    inner = table;
    fault = name;
    if (!table) return;
    ncclCollNetPlugin_v12 = *table;
    ncclCollNetPlugin_v12.iallreduce = iallreduce;
    ncclCollNetPlugin_v12.test = test;
}

__attribute__((visibility("default"))) struct nccl_coll_v12 ncclCollNetPlugin_v12;
