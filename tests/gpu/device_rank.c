/* device_rank.c - one rank of a job of weft with buffers on device 0, for tests/gpu/run.sh:
 *
 *     weft run -n N -- device_rank [--nccl]
 *     weft run -n N -- device_rank --codecs ROWS ROUNDS
 *
 * Compares all_reduces on the device with those on the host, bit for bit; then queues a chain of
 * stream-ordered calls and prints for how long the calls held the host thread. --nccl: weft_nccl_open first,
 * and fails if NCCL is not used. --codecs: instead, times push_pull of a gradient of ROWS x ROWS f32 on the
 * device, dense and with each codec in turn, and prints medians and ratios to dense. Opens the CUDA runtime
 * at run time. Exit status 77: none, or no device. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "weft/weft.h"

enum { BY_ADDRESS = 4, NON_BLOCKING = 1, NO_TIMING = 2, CHAIN = 10, COUNT_MAX = 1 << 20, SKIPPED = 77 };

static struct {
    int (*GetDeviceCount)(int *);
    int (*SetDevice)(int);
    int (*Malloc)(void **, size_t);
    int (*Free)(void *);
    int (*MemcpyAsync)(void *, const void *, size_t, int, void *);
    int (*StreamCreateWithFlags)(void **, unsigned);
    int (*StreamDestroy)(void *);
    int (*EventCreateWithFlags)(void **, unsigned);
    int (*EventDestroy)(void *);
    int (*EventRecord)(void *, void *);
    int (*EventQuery)(void *);
} cuda;

static struct weft_session *session;
static void *stream, *event, *device_memory;
static float source[COUNT_MAX], expected[COUNT_MAX], got[COUNT_MAX];

static void skip(const char *reason)
{
    printf("skip: %s\n", reason);
    exit(SKIPPED);
}

static void must(int holds, const char *what)
{
    if (holds) return;
    printf("rank %u: %s: %s\n", weft_rank(session), what, weft_error_text(session));
    exit(1);
}

static void load(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};
    const char *named = getenv("WEFT_CUDA_RUNTIME");
    void *handle = named ? dlopen(named, RTLD_NOW) : NULL;
    for (int i = 0; !handle && i < 2; i++) handle = dlopen(names[i], RTLD_NOW);
    if (!handle) skip("the CUDA runtime cannot be opened (WEFT_CUDA_RUNTIME names another file)");
#define LOAD(name) (*(void **)&cuda.name = dlsym(handle, "cuda" #name))
    LOAD(GetDeviceCount), LOAD(SetDevice), LOAD(Malloc), LOAD(Free), LOAD(MemcpyAsync);
    LOAD(StreamCreateWithFlags), LOAD(StreamDestroy), LOAD(EventCreateWithFlags), LOAD(EventDestroy);
    LOAD(EventRecord), LOAD(EventQuery);
    int count = 0;
    if (cuda.GetDeviceCount(&count) != 0 || count == 0) skip("the CUDA runtime finds no device");
}

static void synchronise(void)
{
    must(cuda.EventRecord(event, stream) == 0, "cudaEventRecord");
    int answer;
    while ((answer = cuda.EventQuery(event)) == 600) usleep(50);
    must(answer == 0, "the stream");
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static struct weft_call call_of(void *memory, uint64_t count, enum weft_dtype dtype, int on_device)
{
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = memory,
                             .out = memory,
                             .count = count,
                             .dtype = dtype,
                             .reproducible = dtype == WEFT_F32};
    if (on_device) call.memory = WEFT_MEMORY_CUDA, call.stream = stream;
    return call;
}

static void compare(uint64_t count, enum weft_dtype dtype, int on_stream)
{
    const size_t bytes = count * weft_dtype_bytes(dtype);
    struct weft_request request = {{0}};
    uint32_t draw = 7 * weft_rank(session) + (uint32_t)count;
    for (uint64_t i = 0; i < COUNT_MAX; i++) {
        draw = draw * 1664525u + 1013904223u;
        if (dtype == WEFT_F32) source[i] = (float)(int32_t)draw * (i % 7 ? 1.0f : 1e-6f);
        else memcpy(&source[i], &draw, sizeof draw);
    }
    memcpy(expected, source, bytes);
    struct weft_call call = call_of(expected, count, dtype, 0);
    must(weft_call_start(session, &call, &request) >= 0 && weft_wait(&request, 0) >= 0, "on the host");
    must(cuda.MemcpyAsync(device_memory, source, bytes, BY_ADDRESS, stream) == 0, "cudaMemcpyAsync");
    call = call_of(device_memory, count, dtype, 1);
    call.on_stream = on_stream;
    must(weft_call_start(session, &call, &request) >= 0, "weft_call_start");
    if (!on_stream) must(weft_wait(&request, 0) >= 0, "weft_wait");
    must(cuda.MemcpyAsync(got, device_memory, bytes, BY_ADDRESS, stream) == 0, "cudaMemcpyAsync");
    synchronise();
    must(weft_wait(&request, 0) >= 0, "weft_wait");
    must(memcmp(got, expected, bytes) == 0, "the bits differ from those on the host");
}

/* Each call reduces the result of the one before. No claim about speed: the ranks share one GPU. */
static void chain(void)
{
    struct weft_request requests[CHAIN] = {{{0}}};
    for (int i = 0; i < COUNT_MAX; i++) source[i] = 1;
    must(cuda.MemcpyAsync(device_memory, source, sizeof source, BY_ADDRESS, stream) == 0, "cudaMemcpyAsync");
    synchronise();
    uint64_t began_us = now_us(), held_us = 0;
    for (int i = 0; i < CHAIN; i++) {
        struct weft_call call = call_of(device_memory, COUNT_MAX, WEFT_F32, 1);
        call.op = WEFT_AVG;
        call.on_stream = 1;
        const uint64_t at_us = now_us();
        must(weft_call_start(session, &call, &requests[i]) >= 0, "weft_call_start");
        held_us += now_us() - at_us;
    }
    must(cuda.MemcpyAsync(got, device_memory, sizeof got, BY_ADDRESS, stream) == 0, "cudaMemcpyAsync");
    synchronise();
    const uint64_t all_us = now_us() - began_us;
    for (int i = 0; i < CHAIN; i++) must(weft_wait(&requests[i], 0) >= 0, "weft_wait");
    must(memcmp(got, source, sizeof got) == 0, "the mean of ones is not one");
    if (weft_rank(session) == 0)
        printf("%d stream-ordered calls of %d f32: the calls held the host for %llu us of %llu us\n", CHAIN,
               COUNT_MAX, (unsigned long long)held_us, (unsigned long long)all_us);
}

/* ---- codecs ---- */

enum { ROUNDS_MAX = 101, WARM_UP = 3 };

static const struct {
    const char *codec;
    double goal; /* largest wanted ratio to dense; 0: none */
} rows_of_codecs[] = {{"dense", 0},   {"bf16", 0},           {"int8", 0.4},         {"int4", 0},
                      {"sign", 0},    {"topk:ratio=0.01", 0.2}, {"powersgd:rank=4", 0.3}};
enum { CODECS = sizeof rows_of_codecs / sizeof rows_of_codecs[0] };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return sorted[count / 2];
}

static void declare(struct weft_tensor **tensors, uint64_t side)
{
    for (int c = 0; c < CODECS; c++) {
        struct weft_tensor_options options;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "g%d", c);
        options.name = name, options.dim_count = 2, options.dims[0] = options.dims[1] = side;
        options.codec = rows_of_codecs[c].codec;
        options.mode = WEFT_MODE_ALL_REDUCE;
        must(weft_declare(session, &options, &tensors[c]) >= 0, "weft_declare");
        must(weft_tensor_memory(tensors[c], WEFT_MEMORY_CUDA, stream) >= 0, "weft_tensor_memory");
    }
}

/* Milliseconds of one push_pull, from a barrier until the result is on the device. */
static double push_pull_once(struct weft_tensor *tensor, void *gradient, void *result, uint64_t step)
{
    struct weft_request request = {{0}};
    must(weft_barrier(session, &request) >= 0 && weft_wait(&request, 0) >= 0, "weft_barrier");
    must(weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}) >= 0,
         "weft_step_begin");
    const uint64_t began_us = now_us();
    must(weft_push_pull(tensor, gradient, result, &request) >= 0, "weft_push_pull");
    must(weft_wait(&request, 0) >= 0, "weft_wait");
    synchronise();
    const double ms = (double)(now_us() - began_us) * 1e-3;
    must(weft_step_end(session) >= 0, "weft_step_end");
    return ms;
}

/* The ranks share one GPU and one host, so the network is shared memory: the bus and the kernels count. */
static void time_codecs(uint64_t side, int rounds)
{
    static double times[CODECS][ROUNDS_MAX];
    struct weft_tensor *tensors[CODECS];
    const uint64_t count = side * side;
    void *gradient, *result;
    float *host = malloc(count * sizeof *host);
    must(host && cuda.Malloc(&gradient, count * sizeof *host) == 0 &&
             cuda.Malloc(&result, count * sizeof *host) == 0,
         "memory of the gradients");
    uint32_t draw = 11 * weft_rank(session) + 1;
    for (uint64_t i = 0; i < count; i++) {
        draw = draw * 1664525u + 1013904223u;
        host[i] = (float)(int32_t)draw * 1e-9f;
    }
    must(cuda.MemcpyAsync(gradient, host, count * sizeof *host, BY_ADDRESS, stream) == 0, "cudaMemcpyAsync");
    synchronise();
    declare(tensors, side);
    uint64_t step = 0;
    for (int round = -WARM_UP; round < rounds; round++)
        for (int c = 0; c < CODECS; c++) {
            const double ms = push_pull_once(tensors[c], gradient, result, ++step);
            if (round >= 0) times[c][round] = ms;
        }
    const double dense_ms = median(times[0], rounds);
    for (int c = 0; c < CODECS && weft_rank(session) == 0; c++) {
        const double ms = median(times[c], rounds);
        printf("push_pull of %.1f MiB, %-15s: %8.3f ms, %.2f of dense", (double)count * 4 / (1 << 20),
               rows_of_codecs[c].codec, ms, ms / dense_ms);
        if (rows_of_codecs[c].goal > 0) printf(" (goal: at most %.1f)", rows_of_codecs[c].goal);
        printf("\n");
    }
    struct weft_request request = {{0}};
    must(weft_barrier(session, &request) >= 0 && weft_wait(&request, 0) >= 0, "weft_barrier");
    for (int c = 0; c < CODECS; c++) must(weft_tensor_free(tensors[c]) >= 0, "weft_tensor_free");
    cuda.Free(gradient);
    cuda.Free(result);
    free(host);
}

static void compare_all(void)
{
    static const uint64_t counts[] = {1, 1000, 100003, COUNT_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int on_stream = 0; on_stream < 2; on_stream++) {
            compare(counts[i], WEFT_F32, on_stream);
            compare(counts[i], WEFT_I32, on_stream);
        }
    chain();
}

static void open_nccl(void)
{
    char text[2048];
    must(weft_nccl_open(session, 0) >= 0, "weft_nccl_open");
    must(weft_explain(session, "all_reduce", COUNT_MAX, WEFT_F32, text, sizeof text) >= 0, "weft_explain");
    const char *choice = strstr(text, "CUDA memory: ");
    must(choice && strstr(choice, "inside each of"), choice ? choice : text);
    if (weft_rank(session) == 0) printf("%s\n", choice);
}

int main(int argc, char **argv)
{
    struct weft_request request = {{0}};
    const int codecs = argc > 3 && strcmp(argv[1], "--codecs") == 0, rounds = codecs ? atoi(argv[3]) : 0;
    if (codecs && (strtoul(argv[2], NULL, 10) < 8 || rounds < 1 || rounds > ROUNDS_MAX)) {
        fprintf(stderr, "device_rank: --codecs ROWS (8 or more) ROUNDS (1-%d)\n", ROUNDS_MAX);
        return 2;
    }
    load();
    must(cuda.SetDevice(0) == 0 && cuda.Malloc(&device_memory, sizeof source) == 0, "cudaMalloc");
    must(cuda.StreamCreateWithFlags(&stream, NON_BLOCKING) == 0, "cudaStreamCreateWithFlags");
    must(cuda.EventCreateWithFlags(&event, NO_TIMING) == 0, "cudaEventCreateWithFlags");
    must(weft_init(NULL, &session) >= 0, weft_error_text(NULL));
    if (argc > 1 && strcmp(argv[1], "--nccl") == 0) open_nccl();
    if (codecs) time_codecs(strtoul(argv[2], NULL, 10), rounds);
    else compare_all();
    must(weft_barrier(session, &request) >= 0 && weft_wait(&request, 0) >= 0, "weft_barrier");
    must(weft_finalize(session) >= 0, weft_error_text(NULL));
    session = NULL;
    cuda.Free(device_memory);
    cuda.EventDestroy(event);
    cuda.StreamDestroy(stream);
    printf(codecs ? "codecs timed\n" : "bits as on the host\n");
    return 0;
}
