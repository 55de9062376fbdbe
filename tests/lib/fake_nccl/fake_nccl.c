/* fake_nccl.c - see fake_nccl.h. A group of calls is one kernel:
 *
 *     write this rank's inputs and their table │ all ranks have │ read and sum │ all ranks have │
 *     into its slot of the file                │ written        │              │ read           │  */
#include "fake_nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../fake_cuda/fake_cuda.h"

enum { OK = 0, INTERNAL = 3, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };
enum { SUM = 0, AVG = 4, INT32 = 2, INT64 = 4, FLOAT32 = 7 };
enum { RANKS_MAX = 8, OPS_MAX = 32, SLOT_BYTES = 8 << 20, POLLS = 2 };
enum kind { REDUCE_SCATTER = 1, ALL_GATHER, REDUCE, BROADCAST, SEND, RECV, ALL_REDUCE };

struct op {
    enum kind kind;
    const void *in;
    void *out;
    size_t count;
    int dtype, op, peer; /* peer: also the root */
};

struct table {                      /* of a rank, for the group it runs */
    _Atomic uint64_t written, read; /* groups */
    uint64_t signature;             /* of the collectives */
    int count;
    struct {
        int peer; /* of a send; -1: for all */
        size_t at, bytes;
    } pieces[OPS_MAX];
};

struct file {
    _Atomic uint32_t joined;
    struct table tables[RANKS_MAX];
    uint8_t slots[RANKS_MAX][SLOT_BYTES];
};

struct comm {
    struct comm *next; /* never freed: its kernels may be queued */
    struct file *file;
    int rank, ranks;
    void *stream;
    _Atomic bool aborted;
    _Atomic int error;
    /* under `lock` */
    int polls; /* until the answer is ncclSuccess */
    bool init_ends, hangs, blocks; /* blocks: of ncclCommInitRank, whose calls are queued at once */
    struct kernel *pending; /* queued with the last poll */
    uint64_t groups;
};

struct kernel {
    struct comm *comm;
    uint64_t number;
    int count;
    struct op ops[OPS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *comms;
static _Atomic int groups, sums, refused, aborted, destroyed, group_until_failure, groups_until_async;
static _Atomic int version = 22809;
static _Atomic bool hang_init;
static _Thread_local struct {
    int depth, count;
    struct op ops[OPS_MAX];
    struct comm *comm;
} group;

struct unique_id {
    char path[128];
};

/* ---- kernels: on a stream ---- */

static size_t elem_bytes(int dtype)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[dtype];
}

static bool all_reached(const struct kernel *kernel, bool reads)
{
    for (int rank = 0; rank < kernel->comm->ranks; rank++) {
        struct table *table = &kernel->comm->file->tables[rank];
        if (atomic_load(reads ? &table->read : &table->written) < kernel->number) return false;
    }
    return true;
}

static bool wait_all(const struct kernel *kernel, bool reads)
{
    while (!all_reached(kernel, reads)) {
        if (atomic_load(&kernel->comm->aborted)) return false;
        usleep(20);
    }
    return true;
}

static void write_inputs(const struct kernel *kernel)
{
    struct comm *comm = kernel->comm;
    struct table *table = &comm->file->tables[comm->rank];
    size_t at = 0;
    table->count = 0;
    table->signature = 1;
    for (int i = 0; i < kernel->count; i++) {
        const struct op *op = &kernel->ops[i];
        size_t bytes = op->count * elem_bytes(op->dtype);
        if (op->kind == REDUCE_SCATTER) bytes *= (size_t)comm->ranks;
        if (op->kind == RECV) continue;
        if (op->kind != SEND)
            table->signature = table->signature * 1000003u + (uint64_t)op->kind * 31 + op->count * 7 +
                               (uint64_t)op->dtype * 3 + (uint64_t)op->op;
        if (at + bytes > SLOT_BYTES) abort();
        if (op->kind != BROADCAST || op->peer == comm->rank)
            memcpy(comm->file->slots[comm->rank] + at, fake_cuda_shadow(op->in), bytes);
        table->pieces[table->count].peer = op->kind == SEND ? op->peer : -1;
        table->pieces[table->count].at = at;
        table->pieces[table->count++].bytes = bytes;
        at += bytes;
    }
}

static const void *piece(const struct comm *comm, int rank, int index)
{
    return comm->file->slots[rank] + comm->file->tables[rank].pieces[index].at;
}

/* Not NCCL's results, but equal on all ranks: bytes of the other types and reductions, combined by xor. */
static void mix(const struct comm *comm, const struct op *op, int index, size_t from)
{
    uint8_t *out = fake_cuda_shadow(op->out);
    const size_t size = elem_bytes(op->dtype);
    memset(out, op->dtype * 16 + op->op, op->count * size);
    for (int rank = 0; rank < comm->ranks; rank++) {
        const uint8_t *in = (const uint8_t *)piece(comm, rank, index) + from * size;
        for (size_t i = 0; i < op->count * size; i++) out[i] ^= in[i];
    }
}

/* From the last rank to the first: sums and averages of f32, i32 and i64. */
static void sum(const struct comm *comm, const struct op *op, int index, size_t from)
{
    void *out = fake_cuda_shadow(op->out);
    const bool is_summed = op->dtype == FLOAT32 || op->dtype == INT32 || op->dtype == INT64;
    atomic_fetch_add(&sums, 1);
    if (!is_summed || (op->op != SUM && op->op != AVG)) {
        mix(comm, op, index, from);
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        float f = 0;
        int64_t n = 0;
        for (int rank = comm->ranks - 1; rank >= 0; rank--) {
            if (op->dtype == FLOAT32) f += ((const float *)piece(comm, rank, index))[from + i];
            else if (op->dtype == INT32) n += ((const int32_t *)piece(comm, rank, index))[from + i];
            else n += ((const int64_t *)piece(comm, rank, index))[from + i];
        }
        if (op->dtype == FLOAT32) ((float *)out)[i] = op->op == AVG ? f / (float)comm->ranks : f;
        else if (op->dtype == INT32) ((int32_t *)out)[i] = (int32_t)n;
        else ((int64_t *)out)[i] = n;
    }
}

/* The n-th piece that `peer` sends to this rank. */
static const void *sent(const struct comm *comm, int peer, int n, size_t bytes)
{
    const struct table *table = &comm->file->tables[peer];
    for (int i = 0; i < table->count; i++)
        if (table->pieces[i].peer == comm->rank && n-- == 0)
            return table->pieces[i].bytes == bytes ? piece(comm, peer, i) : NULL;
    return NULL;
}

static bool same_calls(const struct comm *comm)
{
    for (int rank = 1; rank < comm->ranks; rank++)
        if (comm->file->tables[rank].signature != comm->file->tables[0].signature) return false;
    return true;
}

static void read_results(const struct kernel *kernel)
{
    struct comm *comm = kernel->comm;
    int received[RANKS_MAX] = {0}, index = 0;
    for (int i = 0; i < kernel->count; i++) {
        const struct op *op = &kernel->ops[i];
        const size_t bytes = op->count * elem_bytes(op->dtype);
        uint8_t *out = op->out ? fake_cuda_shadow(op->out) : NULL;
        if (op->kind == REDUCE_SCATTER) sum(comm, op, index, (size_t)comm->rank * op->count);
        if (op->kind == ALL_REDUCE || (op->kind == REDUCE && op->peer == comm->rank)) sum(comm, op, index, 0);
        if (op->kind == BROADCAST) memcpy(out, piece(comm, op->peer, index), bytes);
        for (int rank = 0; op->kind == ALL_GATHER && rank < comm->ranks; rank++)
            memcpy(out + (size_t)rank * bytes, piece(comm, rank, index), bytes);
        if (op->kind == RECV) {
            const void *from = sent(comm, op->peer, received[op->peer]++, bytes);
            if (from) memcpy(out, from, bytes);
            else atomic_store(&comm->error, INTERNAL);
        } else {
            index++;
        }
    }
}

static void run_kernel(void *context)
{
    struct kernel *kernel = context;
    struct comm *comm = kernel->comm;
    struct table *own = &comm->file->tables[comm->rank];
    if (atomic_load(&comm->aborted)) return;
    write_inputs(kernel);
    atomic_store(&own->written, kernel->number);
    if (!wait_all(kernel, false)) return;
    if (same_calls(comm)) read_results(kernel);
    else atomic_store(&comm->error, USAGE);
    atomic_store(&own->read, kernel->number);
    wait_all(kernel, true);
}

/* ---- communicators ---- */

static int refuse(const char *what)
{
    fprintf(stderr, "fake NCCL refuses: %s\n", what);
    atomic_fetch_add(&refused, 1);
    return USAGE;
}

int ncclGetVersion(int *version_out)
{
    *version_out = version;
    return OK;
}

const char *ncclGetErrorString(int result)
{
    return result == REMOTE  ? "remote process exited or there was a network error"
           : result == USAGE ? "invalid usage"
                             : "internal error";
}
const char *ncclGetLastError(void *comm)
{
    return "the fake's last error";
}

int ncclGetUniqueId(struct unique_id *id)
{
    static _Atomic int made;
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "/weft-fake-nccl-%ld-%d", (long)getpid(), atomic_fetch_add(&made, 1));
    int fd = shm_open(id->path, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct file)) != 0) return INTERNAL;
    close(fd);
    return OK;
}

static int join(struct comm **comm_out, int ranks, struct unique_id id, int rank)
{
    int fd = shm_open(id.path, O_RDWR, 0600);
    struct comm *comm = calloc(1, sizeof *comm);
    if (fd < 0 || !comm || ranks > RANKS_MAX) return INTERNAL;
    comm->file = mmap(NULL, sizeof *comm->file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (comm->file == MAP_FAILED) return INTERNAL;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->hangs = hang_init;
    if (atomic_fetch_add(&comm->file->joined, 1) + 1 == (uint32_t)ranks) shm_unlink(id.path);
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&lock);
    *comm_out = comm;
    return OK;
}

/* A communicator whose calls wait for nothing of the host. */
int ncclCommInitRank(struct comm **comm_out, int ranks, struct unique_id id, int rank)
{
    int result = join(comm_out, ranks, id, rank);
    if (result != OK) return result;
    (*comm_out)->blocks = true;
    while (atomic_load(&(*comm_out)->file->joined) < (uint32_t)ranks) usleep(100);
    return OK;
}

struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

int ncclCommInitRankConfig(struct comm **comm_out, int ranks, struct unique_id id, int rank,
                           const struct config *config)
{
    if (config->magic != 0xcafebeefu || config->blocking != 0 || config->version < 21400)
        return refuse("a config that is not of a non-blocking communicator");
    int result = join(comm_out, ranks, id, rank);
    if (result != OK) return result;
    (*comm_out)->polls = POLLS;
    return IN_PROGRESS;
}

/* With the lock held. */
static void launch_pending(struct comm *comm)
{
    if (fake_cuda_launch_owned(comm->stream, run_kernel, comm->pending) != 0) {
        free(comm->pending);
        atomic_store(&comm->error, 1);
    }
    comm->pending = NULL;
}

int ncclCommGetAsyncError(struct comm *comm, int *error_out)
{
    pthread_mutex_lock(&lock);
    if (!comm->init_ends)
        comm->init_ends = !comm->hangs && atomic_load(&comm->file->joined) == (uint32_t)comm->ranks;
    if (comm->polls > 0 && comm->init_ends && --comm->polls == 0 && comm->pending) launch_pending(comm);
    *error_out = comm->error ? comm->error : comm->polls > 0 ? IN_PROGRESS : OK;
    pthread_mutex_unlock(&lock);
    return OK;
}

int ncclCommFinalize(struct comm *comm)
{
    if (comm->polls > 0 || comm->aborted) return refuse("finalize in the middle of a call, or after abort");
    comm->polls = POLLS;
    return IN_PROGRESS;
}

int ncclCommDestroy(struct comm *comm)
{
    if (comm->polls > 0 || comm->aborted) return refuse("destroy before finalize has ended");
    atomic_fetch_add(&destroyed, 1);
    atomic_store(&comm->aborted, true);
    return OK;
}

int ncclCommAbort(struct comm *comm)
{
    pthread_mutex_lock(&lock);
    if (atomic_exchange(&comm->aborted, true)) refuse("a second abort");
    free(comm->pending);
    comm->pending = NULL;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&aborted, 1);
    return OK;
}

/* ---- calls ---- */

int ncclGroupStart(void)
{
    if (group.depth++ == 0) group.count = 0, group.comm = NULL;
    return OK;
}

static int end_group(void)
{
    struct comm *comm = group.comm;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) abort();
    if (group_until_failure > 0 && atomic_fetch_sub(&group_until_failure, 1) == 1) {
        free(kernel);
        return INTERNAL;
    }
    pthread_mutex_lock(&lock);
    kernel->comm = comm;
    kernel->count = group.count;
    memcpy(kernel->ops, group.ops, sizeof kernel->ops);
    kernel->number = ++comm->groups;
    comm->pending = kernel;
    if (comm->blocks) launch_pending(comm);
    else comm->polls = POLLS;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&groups, 1);
    if (groups_until_async > 0 && atomic_fetch_sub(&groups_until_async, 1) == 1)
        atomic_store(&comm->error, REMOTE);
    return comm->blocks ? OK : IN_PROGRESS;
}

int ncclGroupEnd(void)
{
    if (--group.depth > 0 || group.count == 0) return OK;
    return end_group();
}

static int add(struct comm *comm, void *stream, struct op op)
{
    if (comm->aborted) return refuse("a call after abort");
    if (comm->polls > 0) return refuse("a call while another is in progress");
    if (!comm->stream) comm->stream = stream;
    if (comm->stream != stream || (group.depth > 0 && group.comm && group.comm != comm))
        return refuse("another stream");
    ncclGroupStart();
    if (group.count == OPS_MAX) abort();
    group.comm = comm;
    group.ops[group.count++] = op;
    return ncclGroupEnd();
}

int ncclReduceScatter(const void *in, void *out, size_t count, int dtype, int op, struct comm *comm,
                      void *stream)
{
    return add(comm, stream, (struct op){REDUCE_SCATTER, in, out, count, dtype, op, 0});
}
int ncclAllReduce(const void *in, void *out, size_t count, int dtype, int op, struct comm *comm, void *stream)
{
    return add(comm, stream, (struct op){ALL_REDUCE, in, out, count, dtype, op, 0});
}
int ncclAllGather(const void *in, void *out, size_t count, int dtype, struct comm *comm, void *stream)
{
    return add(comm, stream, (struct op){ALL_GATHER, in, out, count, dtype, 0, 0});
}
int ncclReduce(const void *in, void *out, size_t count, int dtype, int op, int root, struct comm *comm,
               void *stream)
{
    return add(comm, stream, (struct op){REDUCE, in, out, count, dtype, op, root});
}
int ncclBroadcast(const void *in, void *out, size_t count, int dtype, int root, struct comm *comm,
                  void *stream)
{
    return add(comm, stream, (struct op){BROADCAST, in, out, count, dtype, 0, root});
}
int ncclSend(const void *in, size_t count, int dtype, int peer, struct comm *comm, void *stream)
{
    return add(comm, stream, (struct op){SEND, in, NULL, count, dtype, 0, peer});
}
int ncclRecv(void *out, size_t count, int dtype, int peer, struct comm *comm, void *stream)
{
    return add(comm, stream, (struct op){RECV, NULL, out, count, dtype, 0, peer});
}

/* ---- for tests ---- */

void fake_nccl_fail_group(int n)
{
    group_until_failure = n;
}
void fake_nccl_fail_async(int n)
{
    groups_until_async = n;
}
void fake_nccl_break(void)
{
    pthread_mutex_lock(&lock);
    for (struct comm *comm = comms; comm; comm = comm->next) atomic_store(&comm->error, REMOTE);
    pthread_mutex_unlock(&lock);
}
void fake_nccl_hang_init(void)
{
    hang_init = true;
}
void fake_nccl_version(int wanted)
{
    version = wanted;
}
int fake_nccl_groups(void)
{
    return groups;
}
int fake_nccl_sums(void)
{
    return sums;
}
int fake_nccl_refused(void)
{
    return refused;
}
int fake_nccl_aborted(void)
{
    return aborted;
}
int fake_nccl_destroyed(void)
{
    return destroyed;
}
