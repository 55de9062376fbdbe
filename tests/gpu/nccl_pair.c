/* nccl_pair.c - one rank of a small NCCL job: collectives over a list of sizes, a hash of each result.
 *
 *     nccl_pair --rank R --ranks N --id FILE [--ops a,b] [--max BYTES] [--again TIMES] [--die CALL] [--types]
 *
 * Rank 0 writes NCCL's unique id into FILE. All ranks use device 0; NCCL takes two ranks of one device as
 * two hosts if their NCCL_HOSTID differs. Prints "version V", then one line "op bytes hash" for each call;
 * lines of two runs must be equal. --types: instead, all_reduces of each type and reduction, "type op bytes
 * hash" (not fp8, whose rounding differs between NCCL and weft). Exit status 77: no NCCL, no CUDA or no
 * device; 3: a remote error. */
#include <dlfcn.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { INT8 = 0, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9, TYPES = 10, SUM = 0, OPS = 4 };
enum { TO_DEVICE = 1, TO_HOST = 2, SKIPPED = 77, REMOTE = 6 };
struct id {
    char bytes[128];
};

/* Functions of NCCL and of the CUDA runtime, by name. */
static struct {
    int (*GetVersion)(int *);
    int (*GetUniqueId)(struct id *);
    int (*CommInitRank)(void **, int, struct id, int);
    int (*CommDestroy)(void *);
    int (*CommAbort)(void *);
    int (*CommGetAsyncError)(void *, int *);
    const char *(*GetErrorString)(int);
    const char *(*GetLastError)(void *);
    int (*AllReduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*ReduceScatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*AllGather)(const void *, void *, size_t, int, void *, void *);
    int (*Broadcast)(const void *, void *, size_t, int, int, void *, void *);
    int (*Reduce)(const void *, void *, size_t, int, int, int, void *, void *);
} nccl;
static struct {
    int (*GetDeviceCount)(int *);
    int (*SetDevice)(int);
    int (*Malloc)(void **, size_t);
    int (*Free)(void *);
    int (*Memcpy)(void *, const void *, size_t, int);
    int (*StreamCreate)(void **);
    int (*StreamQuery)(void *);
    const char *(*GetErrorString)(int);
} cuda;

static void skip(const char *reason)
{
    printf("skip: %s\n", reason);
    exit(SKIPPED);
}

static void *library(const char *variable, const char *const *names)
{
    void *opened = getenv(variable) ? dlopen(getenv(variable), RTLD_NOW) : NULL;
    for (; !opened && *names; names++) opened = dlopen(*names, RTLD_NOW);
    return opened;
}

#define LOAD(table, prefix, name) (*(void **)&(table).name = dlsym(handle, prefix #name))
static void load(void)
{
    void *handle = library("WEFT_NCCL", (const char *[]){"libnccl.so.2", NULL});
    if (!handle) skip("libnccl.so.2 cannot be opened (WEFT_NCCL names another file)");
    LOAD(nccl, "nccl", GetVersion), LOAD(nccl, "nccl", GetUniqueId), LOAD(nccl, "nccl", CommInitRank);
    LOAD(nccl, "nccl", CommDestroy), LOAD(nccl, "nccl", CommAbort), LOAD(nccl, "nccl", CommGetAsyncError);
    LOAD(nccl, "nccl", GetErrorString), LOAD(nccl, "nccl", GetLastError), LOAD(nccl, "nccl", AllReduce);
    LOAD(nccl, "nccl", ReduceScatter), LOAD(nccl, "nccl", AllGather), LOAD(nccl, "nccl", Broadcast);
    LOAD(nccl, "nccl", Reduce);
    handle = library("WEFT_CUDA_RUNTIME", (const char *[]){"libcudart.so.13", "libcudart.so.12", NULL});
    if (!handle) skip("the CUDA runtime cannot be opened (WEFT_CUDA_RUNTIME names another file)");
    LOAD(cuda, "cuda", GetDeviceCount), LOAD(cuda, "cuda", SetDevice), LOAD(cuda, "cuda", Malloc);
    LOAD(cuda, "cuda", Free), LOAD(cuda, "cuda", Memcpy), LOAD(cuda, "cuda", StreamCreate);
    LOAD(cuda, "cuda", StreamQuery), LOAD(cuda, "cuda", GetErrorString);
}

static void *communicator;

static void check_nccl(int result, const char *what)
{
    if (result == 0) return;
    printf("%s: %s: %s\n", what, nccl.GetErrorString(result), nccl.GetLastError(communicator));
    fflush(stdout);
    _exit(result == REMOTE ? 3 : 1);
}

static void check_cuda(int result, const char *what)
{
    if (result == 0) return;
    printf("%s: %s\n", what, cuda.GetErrorString(result));
    fflush(stdout);
    _exit(1);
}

static int rank = 0, ranks = 1;

/* Rank 0 writes the id into a file beside FILE and renames it, so that a reader sees all of it. */
static struct id exchange_id(const char *path, int life)
{
    struct id id;
    char name[512], part[520];
    snprintf(name, sizeof name, "%s.%d", path, life);
    snprintf(part, sizeof part, "%s.part", name);
    if (rank == 0) {
        check_nccl(nccl.GetUniqueId(&id), "ncclGetUniqueId");
        FILE *file = fopen(part, "we");
        if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 || rename(part, name) != 0) {
            perror(name);
            exit(1);
        }
        return id;
    }
    FILE *file;
    while (!(file = fopen(name, "re"))) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (fread(&id, sizeof id, 1, file) != 1) exit(1);
    fclose(file);
    return id;
}

/* Waits for the stream; an error of the communicator ends the process after an abort. */
static void wait_stream(void *stream, const char *what)
{
    for (int result; (result = cuda.StreamQuery(stream)) != 0;) {
        int asynchronous = 0;
        if (result != 600 /* not ready */) check_cuda(result, what);
        check_nccl(nccl.CommGetAsyncError(communicator, &asynchronous), "ncclCommGetAsyncError");
        if (asynchronous == 0 || asynchronous == 7 /* in progress */) continue;
        printf("%s: asynchronous error %d: %s\n", what, asynchronous, nccl.GetLastError(communicator));
        fflush(stdout);
        nccl.CommAbort(communicator);
        _exit(asynchronous == REMOTE ? 3 : 1);
    }
}

struct buffers {
    void *in, *out, *stream;
    float *host;
    size_t bytes;
};

static int call(const char *op, struct buffers *b, size_t count)
{
    void *c = communicator, *s = b->stream;
    if (strcmp(op, "all_reduce") == 0) return nccl.AllReduce(b->in, b->out, count, FLOAT32, SUM, c, s);
    if (strcmp(op, "reduce_scatter") == 0)
        return nccl.ReduceScatter(b->in, b->out, count / (size_t)ranks, FLOAT32, SUM, c, s);
    if (strcmp(op, "all_gather") == 0)
        return nccl.AllGather(b->in, b->out, count / (size_t)ranks, FLOAT32, c, s);
    if (strcmp(op, "broadcast") == 0) return nccl.Broadcast(b->in, b->out, count, FLOAT32, 0, c, s);
    if (strcmp(op, "reduce") == 0) return nccl.Reduce(b->in, b->out, count, FLOAT32, SUM, 0, c, s);
    fprintf(stderr, "unknown op %s\n", op);
    exit(2);
}

/* Copies the input, which is in b->host, to the device; clears the output. */
static void upload(struct buffers *b, size_t bytes)
{
    check_cuda(cuda.Memcpy(b->in, b->host, bytes, TO_DEVICE), "copy to the device");
    memset(b->host, 0, bytes);
    check_cuda(cuda.Memcpy(b->out, b->host, bytes, TO_DEVICE), "copy to the device");
}

/* Waits for the call and prints the hash of the output. */
static void finish(const char *name, struct buffers *b, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    wait_stream(b->stream, name);
    check_cuda(cuda.Memcpy(b->host, b->out, bytes, TO_HOST), "copy from the device");
    const unsigned char *data = (const unsigned char *)b->host;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ data[i]) * 0x100000001b3ull;
    printf("%s %zu %016llx\n", name, bytes, (unsigned long long)hash);
    fflush(stdout);
}

static void run_one(const char *op, struct buffers *b, size_t bytes)
{
    size_t count = bytes / sizeof(float);
    for (size_t i = 0; i < count; i++)
        b->host[i] = (float)((i * 2654435761u + (size_t)rank * 97) % 100003) * 1e-3f - 30.0f;
    upload(b, bytes);
    check_nccl(call(op, b, count), op);
    finish(op, b, bytes);
}

/* ---- types ---- */

/* Element i of this rank: a random number; floats are finite, of magnitude 2^-4 to 2^4, so sums round. */
static uint64_t element(int dtype, size_t i)
{
    uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15ull ^ ((uint64_t)rank + 1) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ bits >> 30) * 0x94d049bb133111ebull;
    bits ^= bits >> 31;
    const uint64_t exponent = bits >> 60 & 7; /* below a bias of 4 */
    switch (dtype) {
    case FLOAT16: return (bits & 0x83ff) | (exponent + 11) << 10;
    case BFLOAT16: return (bits & 0x807f) | (exponent + 123) << 7;
    case FLOAT32: return (bits & 0x807fffff) | (exponent + 123) << 23;
    case FLOAT32 + 1: return (bits & 0x800fffffffffffff) | (exponent + 1019) << 52;
    default: return bits;
    }
}

static void run_types(struct buffers *b)
{
    static const char *const names[TYPES] = {"i8",  "u8",  "i32", "u32", "i64",
                                             "u64", "f16", "f32", "f64", "bf16"};
    static const char *const ops[OPS] = {"sum", "prod", "max", "min"};
    static const size_t sizes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2}, totals[] = {8, 40000, (size_t)8 << 20};
    for (int dtype = INT8; dtype < TYPES; dtype++)
        for (int op = SUM; op < OPS; op++)
            for (int t = 0; t < 3 && totals[t] <= b->bytes; t++) {
                char name[32];
                snprintf(name, sizeof name, "%s %s", names[dtype], ops[op]);
                for (size_t i = 0; i < totals[t] / sizes[dtype]; i++) {
                    const uint64_t bits = element(dtype, i);
                    memcpy((char *)b->host + i * sizes[dtype], &bits, sizes[dtype]);
                }
                upload(b, totals[t]);
                check_nccl(nccl.AllReduce(b->in, b->out, totals[t] / sizes[dtype], dtype, op, communicator,
                                          b->stream),
                           name);
                finish(name, b, totals[t]);
            }
}

static void buffers_open(struct buffers *b, size_t bytes)
{
    int devices = 0, result = cuda.GetDeviceCount(&devices);
    if (result != 0 || devices == 0) skip(result != 0 ? cuda.GetErrorString(result) : "no CUDA device");
    check_cuda(cuda.SetDevice(0), "cudaSetDevice");
    check_cuda(cuda.Malloc(&b->in, bytes), "cudaMalloc");
    check_cuda(cuda.Malloc(&b->out, bytes), "cudaMalloc");
    check_cuda(cuda.StreamCreate(&b->stream), "cudaStreamCreate");
    b->host = malloc(bytes);
    b->bytes = bytes;
    if (!b->host) exit(1);
}

/* All operations and sizes, from 8 bytes by factors of 32. */
static int run_all(const char *ops, struct buffers *b, int call_count, int die)
{
    char list[256], *rest = list;
    snprintf(list, sizeof list, "%s", ops);
    for (char *op; (op = strtok_r(rest, ",", &rest));) {
        for (size_t bytes = 8; bytes <= b->bytes;
             bytes = bytes * 32 > b->bytes && bytes < b->bytes ? b->bytes : bytes * 32) {
            if (++call_count == die) raise(SIGKILL);
            run_one(op, b, bytes);
        }
    }
    return call_count;
}

int main(int count, char **arguments)
{
    static const struct option options[] = {
        {"rank", 1, NULL, 'r'}, {"ranks", 1, NULL, 'n'}, {"id", 1, NULL, 'i'},  {"ops", 1, NULL, 'o'},
        {"max", 1, NULL, 'm'},  {"again", 1, NULL, 'a'}, {"die", 1, NULL, 'd'}, {"types", 0, NULL, 't'},
        {NULL, 0, NULL, 0}};
    const char *id_path = NULL, *ops = "all_reduce,reduce_scatter,all_gather,broadcast,reduce";
    size_t most = (size_t)64 << 20;
    int lives = 1, die = 0, version = 0, calls = 0, by_type = 0;
    for (int option; (option = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        switch (option) {
        case 'r': rank = atoi(optarg); break;
        case 'n': ranks = atoi(optarg); break;
        case 'i': id_path = optarg; break;
        case 'o': ops = optarg; break;
        case 'm': most = strtoul(optarg, NULL, 10); break;
        case 'a': lives = atoi(optarg); break;
        case 'd': die = atoi(optarg); break;
        case 't': by_type = 1; break;
        default: return 2;
        }
    }
    if (!id_path || rank < 0 || rank >= ranks || most < 8 || most % 8 != 0) {
        fprintf(stderr, "usage: nccl_pair --rank R --ranks N --id FILE [--ops a,b] [--max BYTES] [--again "
                        "TIMES] [--die CALL] [--types]\n");
        return 2;
    }
    struct buffers buffers;
    load();
    check_nccl(nccl.GetVersion(&version), "ncclGetVersion");
    printf("version %d\n", version);
    buffers_open(&buffers, most);
    for (int life = 0; life < lives; life++) {
        check_nccl(nccl.CommInitRank(&communicator, ranks, exchange_id(id_path, life), rank),
                   "ncclCommInitRank");
        if (by_type) run_types(&buffers);
        else calls = run_all(ops, &buffers, calls, die);
        check_nccl(nccl.CommDestroy(communicator), "ncclCommDestroy");
    }
    printf("done\n");
    return 0;
}
