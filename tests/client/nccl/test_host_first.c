/* test_host_first.c - all_reduces by NCCL inside hosts (weft_nccl_open), over an NCCL and a CUDA runtime
 * without devices (tests/lib/fake_nccl, tests/lib/fake_cuda). Each rank is a process; WEFT_CLIENT_HOST makes
 * hosts. Results are compared with calls on host memory; a fault in the order of the streams, in the order of
 * NCCL's calls or in the handling of a failure makes a test fail. */
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os/sanitizer.h"
#include "client/session/session.h"
#include "tests/client/fleet.h"
#include "tests/lib/fake_cuda/fake_cuda.h"
#include "tests/lib/fake_nccl/fake_nccl.h"
#include "weft/weft.h"

/* Under the thread sanitizer no wait is dropped: that makes a race, by intent. */
#define FINDS_RACES WEFT_THREAD_SANITIZER

enum { RANKS = 4, COUNT = 100003, LOOKS = 60000, DEADLINE_MS = 20000 };

/* What the forked ranks do; set before the fork. */
static struct {
    const char *mode; /* client.nccl */
    uint32_t ranks_per_host;
    uint64_t seed;
    unsigned delay_us;
    int number; /* of a variant of the test */
} job;

#define MUST(rig, call)                                                                                \
    do {                                                                                               \
        if ((call) < 0)                                                                                \
            return fprintf(stderr, "%s:%d: rank %u: %s: %s\n", __FILE__, __LINE__, (rig)->rank, #call, \
                           weft_error_text((rig)->session));                                           \
    } while (0)
#define CHECK(rig, condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return fprintf(stderr, "%s:%d: rank %u: does not hold: %s (%s)\n", __FILE__, __LINE__, \
                           (rig)->rank, #condition, weft_error_text((rig)->session));              \
    } while (0)

/* A rank with a stream and two buffers on the device. */
struct rig {
    struct weft_session *session;
    uint32_t rank;
    void *stream, *x, *y;
    size_t bytes;
};

static int rig_open(struct rig *rig, struct fleet *fleet, uint32_t rank, size_t bytes)
{
    char host[16];
    *rig = (struct rig){.rank = rank, .bytes = bytes};
    snprintf(host, sizeof host, "host%u", rank / job.ranks_per_host);
    setenv("WEFT_CLIENT_HOST", host, 1);
    setenv("WEFT_CLIENT_NCCL", job.mode, 1);
    fake_cuda_setup(job.seed * 100 + rank, job.delay_us, 1);
    if (fleet_join(fleet, rank, DEADLINE_MS, &rig->session) != 0) return 1;
    const int created = cudaStreamCreateWithFlags(&rig->stream, 0), x = cudaMalloc(&rig->x, bytes),
              y = cudaMalloc(&rig->y, bytes);
    if (created == 0 && x == 0 && y == 0) return 0;
    return fprintf(stderr, "rank %u: no stream (%d) or no buffers of %zu bytes (%d, %d)\n", rank, created,
                   bytes, x, y);
}

static int rig_close(struct rig *rig)
{
    struct weft_request request = {{0}};
    MUST(rig, weft_barrier(rig->session, &request));
    MUST(rig, weft_wait(&request, 0));
    MUST(rig, weft_finalize(rig->session));
    cudaFree(rig->x);
    cudaFree(rig->y);
    cudaStreamDestroy(rig->stream);
    fake_cuda_synchronize();
    if (fake_cuda_live_count() != 0)
        return fprintf(stderr, "%d things of the device are left\n", fake_cuda_live_count());
    if (fake_nccl_refused() != 0) return fprintf(stderr, "NCCL refused a call\n");
    return 0;
}

/* ---- kernels of the trainer ---- */

struct kernel {
    void *to;
    const void *from;
    size_t bytes;
    unsigned slow_us;
    int until_sums; /* > 0: runs when NCCL has made this many sums, or after a time limit */
    _Atomic bool ran;
};

static void run_kernel(void *context)
{
    struct kernel *kernel = context;
    if (kernel->slow_us > 0) usleep(kernel->slow_us);
    for (int i = 0; i < LOOKS && fake_nccl_sums() < kernel->until_sums; i++) usleep(100);
    if (kernel->bytes > 0)
        memcpy(fake_cuda_shadow(kernel->to), fake_cuda_shadow(kernel->from), kernel->bytes);
    atomic_store(&kernel->ran, true);
}

static void copy(void *stream, struct kernel *kernel, void *to, const void *from, size_t bytes)
{
    kernel->to = to;
    kernel->from = from;
    kernel->bytes = bytes;
    atomic_store(&kernel->ran, false);
    if (fake_cuda_launch(stream, run_kernel, kernel) != 0) abort();
}

static bool has_run(struct kernel *kernel)
{
    for (int i = 0; i < LOOKS && !atomic_load(&kernel->ran); i++) usleep(100);
    return atomic_load(&kernel->ran);
}

static struct weft_call sum_of(struct rig *rig, void *in, void *out, uint64_t count, enum weft_dtype dtype)
{
    return (struct weft_call){.size = sizeof(struct weft_call),
                              .kind = WEFT_CALL_ALL_REDUCE,
                              .in = in,
                              .out = out,
                              .count = count,
                              .dtype = dtype,
                              .memory = WEFT_MEMORY_CUDA,
                              .stream = rig->stream};
}

static void draw(float *values, size_t count, uint64_t seed, bool whole)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (whole) values[i] = (float)((seed >> 40) % 1000);
        else values[i] = (float)((int64_t)seed >> 40) * (i % 5 ? 1.0f : 1e-5f);
    }
}

/* ---- the bits of each kind of call ---- */

struct variant {
    uint64_t count;
    enum weft_dtype dtype;
    enum weft_op op;
    bool in_place, reproducible, on_stream, by_nccl;
};

/* The call on host memory, then on the device: the same bits; whole numbers where NCCL sums. */
static int one(struct rig *rig, const struct variant *variant)
{
    static float source[COUNT + 1], expected[COUNT + 1], got[COUNT + 1];
    static struct kernel kernels[3];
    const size_t bytes = variant->count * weft_dtype_bytes(variant->dtype);
    struct weft_request request = {{0}};
    const bool is_whole = !variant->reproducible;
    draw(source, COUNT, job.seed * 10 + rig->rank, is_whole && variant->dtype == WEFT_F32);
    if (variant->dtype == WEFT_I64)
        for (uint64_t i = 0; i < variant->count; i++)
            ((int64_t *)(void *)source)[i] = (int64_t)i * 7 - rig->rank;
    struct weft_call call = sum_of(rig, source, expected, variant->count, variant->dtype);
    call.op = variant->op;
    call.reproducible = variant->reproducible;
    call.memory = WEFT_MEMORY_HOST;
    call.stream = NULL;
    MUST(rig, weft_call_start(rig->session, &call, &request));
    MUST(rig, weft_wait(&request, 0));

    const int groups = fake_nccl_groups(), sums = fake_nccl_sums();
    const uint64_t copied = fake_cuda_copied_bytes();
    kernels[0].slow_us = 2000;
    copy(rig->stream, &kernels[0], rig->x, source, bytes);
    call.in = rig->x;
    call.out = variant->in_place ? rig->x : rig->y;
    call.memory = WEFT_MEMORY_CUDA;
    call.stream = rig->stream;
    call.on_stream = variant->on_stream;
    MUST(rig, weft_call_start(rig->session, &call, &request));
    if (!variant->on_stream) MUST(rig, weft_wait(&request, 0));
    copy(rig->stream, &kernels[1], got, call.out, bytes);
    CHECK(rig, has_run(&kernels[1]));
    MUST(rig, weft_wait(&request, 0));
    if (memcmp(got, expected, bytes) != 0)
        return fprintf(stderr, "rank %u: count %llu, dtype %d, op %d, in place %d: other bits\n", rig->rank,
                       (unsigned long long)variant->count, (int)variant->dtype, (int)variant->op,
                       variant->in_place);
    CHECK(rig, (fake_nccl_groups() > groups) == variant->by_nccl);
    if (variant->reproducible) CHECK(rig, fake_nccl_sums() == sums); /* NCCL moves bytes only */
    if (!variant->by_nccl) return 0;
    const uint64_t g = job.ranks_per_host, each = variant->count / g, rest = variant->count % g;
    const uint64_t slice = each + (rig->rank % g == g - 1 ? rest : 0);
    const uint64_t moved = job.ranks_per_host == RANKS ? 0 : 2 * slice * weft_dtype_bytes(variant->dtype);
    CHECK(rig, fake_cuda_copied_bytes() - copied == moved); /* only the slice crosses the bus */
    return 0;
}

static const struct variant variants[] = {
    {COUNT, WEFT_F32, WEFT_SUM, false, false, false, true},
    {COUNT, WEFT_F32, WEFT_SUM, true, false, true, true},
    {COUNT, WEFT_F32, WEFT_AVG, true, false, false, true},
    {COUNT / 2, WEFT_I64, WEFT_SUM, true, false, true, true},
    {COUNT / 2, WEFT_I64, WEFT_SUM, false, false, false, true},
    {5, WEFT_F32, WEFT_SUM, true, false, false, true},
    {3, WEFT_F32, WEFT_SUM, true, false, false, false}, /* fewer than ranks, if all share a host */
    {COUNT, WEFT_F32, WEFT_SUM, false, true, false, true},
    {COUNT, WEFT_F32, WEFT_SUM, true, true, true, true},
    {COUNT, WEFT_F32, WEFT_AVG, true, true, false, true},
    {COUNT, WEFT_F32, WEFT_MAX, true, false, false, false},
    {COUNT / 2, WEFT_I64, WEFT_AVG, true, false, false, false},
};

static int bits(struct fleet *fleet, uint32_t rank)
{
    struct rig rig;
    if (rig_open(&rig, fleet, rank, (COUNT + 1) * sizeof(float)) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        struct variant variant = variants[i];
        if (variant.count == 3) variant.by_nccl = job.ranks_per_host < RANKS;
        if (one(&rig, &variant) != 0) return fprintf(stderr, "variant %zu\n", i);
    }
    if (rig_close(&rig) != 0) return 1;
    return fake_nccl_destroyed() == 1 && fake_nccl_aborted() == 0 ? 0 : fprintf(stderr, "no orderly end\n");
}

static void run(fleet_worker_fn worker)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, 0, worker, &result, NULL));
}

static void test_bits(void **state)
{
    run(bits);
}

static void test_bits_one_host(void **state)
{
    job.ranks_per_host = RANKS;
    run(bits);
    job.ranks_per_host = 2;
}

/* The result is right also where the driver cannot make a stream wait for memory. */
static void test_bits_without_words(void **state)
{
    fake_cuda_refuse_words(true);
    run(bits);
    fake_cuda_refuse_words(false);
}

/* ---- many calls, persistent ones among them ---- */

enum { CALLS = 3, ROUNDS = 4 };

/* Nothing waits on the host between the calls. Persistent requests are waited for before they start again. */
static int many(struct fleet *fleet, uint32_t rank)
{
    enum { N = 2001 };
    static int64_t source[ROUNDS][CALLS][N], got[ROUNDS][CALLS][N];
    static struct kernel kernels[ROUNDS][CALLS][2];
    struct weft_request requests[CALLS] = {{{0}}}, single[ROUNDS] = {{{0}}};
    struct rig rig;
    int64_t *buffers[CALLS];
    if (rig_open(&rig, fleet, rank, N * sizeof(int64_t)) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    for (int c = 0; c < CALLS; c++) {
        CHECK(&rig, cudaMalloc((void **)&buffers[c], sizeof source[0][0]) == 0);
        struct weft_call call = sum_of(&rig, buffers[c], buffers[c], N - (uint64_t)c, WEFT_I64);
        call.on_stream = c % 2;
        MUST(&rig, weft_call_init(rig.session, &call, &requests[c]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        const struct weft_call call = sum_of(&rig, rig.x, rig.y, N, WEFT_I64);
        MUST(&rig, weft_call_start(rig.session, &call, &single[round]));
        for (int c = 0; c < CALLS; c++) {
            for (int i = 0; i < N; i++) source[round][c][i] = round * 100 + c * 10 + (int64_t)rank + i;
            copy(rig.stream, &kernels[round][c][0], buffers[c], source[round][c], (N - (size_t)c) * 8);
            MUST(&rig, weft_start(&requests[c]));
        }
        for (int c = CALLS - 1; c >= 0; c--) {
            MUST(&rig, weft_wait(&requests[c], 0));
            copy(rig.stream, &kernels[round][c][1], got[round][c], buffers[c], (N - (size_t)c) * 8);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        MUST(&rig, weft_wait(&single[round], 0));
        for (int c = 0; c < CALLS; c++) {
            CHECK(&rig, has_run(&kernels[round][c][1]));
            for (int i = 0; i < N - c; i++)
                CHECK(&rig, got[round][c][i] == RANKS * (round * 100 + c * 10 + (int64_t)i) + 6);
        }
    }
    for (int c = 0; c < CALLS; c++) cudaFree(buffers[c]);
    return rig_close(&rig);
}

static void test_many(void **state)
{
    run(many);
}

/* Without delays, and with other delays. */
static void test_bits_seeds(void **state)
{
    const unsigned delay_us = job.delay_us;
    for (job.seed = 2; job.seed <= 4; job.seed++) {
        job.delay_us = job.seed == 2 ? 0 : 500;
        run(bits);
        run(many);
    }
    job.seed = 1;
    job.delay_us = delay_us;
}

/* Slices longer than the scratch, with `reproducible`. */
static int long_call(struct fleet *fleet, uint32_t rank)
{
    const uint64_t count = 2 * (1u << 20) + 3;
    struct rig rig;
    static struct kernel kernels[2];
    struct weft_request request = {{0}};
    float *source = calloc(count, sizeof *source), *expected = calloc(count, sizeof *source),
          *got = calloc(count, sizeof *source);
    if (rig_open(&rig, fleet, rank, count * sizeof *source) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    draw(source, count, rank + 1, false);
    struct weft_call call = sum_of(&rig, source, expected, count, WEFT_F32);
    call.reproducible = true;
    call.memory = WEFT_MEMORY_HOST;
    MUST(&rig, weft_call_start(rig.session, &call, &request));
    MUST(&rig, weft_wait(&request, 0));
    copy(rig.stream, &kernels[0], rig.x, source, count * sizeof *source);
    call.in = call.out = rig.x;
    call.memory = WEFT_MEMORY_CUDA;
    MUST(&rig, weft_call_start(rig.session, &call, &request));
    MUST(&rig, weft_wait(&request, 0));
    copy(rig.stream, &kernels[1], got, rig.x, count * sizeof *source);
    CHECK(&rig, has_run(&kernels[1]));
    CHECK(&rig, memcmp(got, expected, count * sizeof *source) == 0 && fake_nccl_groups() == 3);
    free(source);
    free(expected);
    free(got);
    return rig_close(&rig);
}

static void test_long_call(void **state)
{
    run(long_call);
}

/* ---- choice ---- */

static int chosen(struct rig *rig, uint64_t count, const char *words)
{
    char text[2048];
    MUST(rig, weft_explain(rig->session, "all_reduce", count, WEFT_F32, text, sizeof text));
    if (strstr(text, words)) return 0;
    return fprintf(stderr, "rank %u: \"%s\" is not in \"%s\"\n", rig->rank, words, text);
}

static int choice(struct fleet *fleet, uint32_t rank)
{
    struct rig rig;
    if (job.number == 1 && rank == 2) job.mode = "no";
    if (job.number == 2) job.ranks_per_host = 1;
    if (job.number == 3) fake_nccl_version(rank == 1 ? 21600 : 22809);
    if (job.number == 4) fake_nccl_version(rank == 3 ? 22708 : 22809);
    if (job.number == 5 && rank == 1) fake_nccl_hang_init();
    if (job.number == 6) job.ranks_per_host = 3;
    static const char *const reasons[] = {"NCCL 2.28.9 inside each of 2 hosts",
                                          "client.nccl is \"no\" on rank 2",
                                          "no host has two ranks",
                                          "rank 1",
                                          "has NCCL 22708 and rank 0 has 22809",
                                          "has no communicator",
                                          "the hosts have different numbers of ranks"};
    if (rig_open(&rig, fleet, rank, 1 << 20) != 0) return 1;
    /* shorter than that of the operations, which a loaded machine may need */
    if (job.number == 5) rig.session->settings.deadline_ns = WEFT_MS(1500);
    const enum weft_status status = weft_nccl_open(rig.session, 0);
    rig.session->settings.deadline_ns = WEFT_MS(DEADLINE_MS);
    const bool forced = strcmp(job.mode, "yes") == 0;
    CHECK(&rig, status == (forced ? WEFT_ERR_UNSUPPORTED : WEFT_OK));
    if (forced) CHECK(&rig, strstr(weft_error_text(rig.session), reasons[job.number]) != NULL);
    if (chosen(&rig, 1 << 20, reasons[job.number]) != 0) return 1;
    CHECK(&rig, weft_nccl_open(rig.session, 0) == WEFT_ERR_EXISTS);
    if (job.number == 0 && chosen(&rig, 100, "shorter than 256 KiB") != 0) return 1;
    const struct variant plain = {COUNT / 4, WEFT_F32, WEFT_SUM, true, false, true, false};
    if (one(&rig, &plain) != 0) return 1; /* too short for "auto"; or not possible */
    if (job.number == 0) {
        MUST(&rig, weft_set_plan(rig.session, "all_reduce=ring"));
        if (chosen(&rig, 1 << 20, "a plan is set") != 0) return 1;
    }
    return rig_close(&rig);
}

static void test_choice(void **state)
{
    for (job.number = 0; job.number <= 6; job.number++) {
        job.mode = job.number == 2 ? "yes" : "auto";
        run(choice);
    }
    job.mode = "yes";
}

static int misuse(struct fleet *fleet, uint32_t rank)
{
    struct rig rig;
    struct weft_request request = {{0}};
    static float host[8];
    if (rig_open(&rig, fleet, rank, 1 << 16) != 0) return 1;
    CHECK(&rig, weft_nccl_open(NULL, 0) == WEFT_ERR_INVALID);
    CHECK(&rig, weft_nccl_open(rig.session, -1) == WEFT_ERR_INVALID);
    MUST(&rig, weft_group_start(rig.session));
    CHECK(&rig, weft_nccl_open(rig.session, 0) == WEFT_ERR_STATE);
    MUST(&rig, weft_group_end(rig.session));
    MUST(&rig, weft_nccl_open(rig.session, 0));
    struct weft_call call = sum_of(&rig, host, rig.x, 8, WEFT_F32);
    CHECK(&rig, weft_call_start(rig.session, &call, &request) == WEFT_ERR_INVALID);
    CHECK(&rig, strstr(weft_error_text(rig.session), "is host memory") != NULL);
    call.in = rig.x;
    call.stream = (void *)2; /* cudaStreamPerThread */
    CHECK(&rig, weft_call_start(rig.session, &call, &request) == WEFT_ERR_INVALID);
    const struct variant after = {COUNT / 8, WEFT_F32, WEFT_SUM, true, false, true, true};
    return one(&rig, &after) != 0 ? 1 : rig_close(&rig);
}

static void test_misuse(void **state)
{
    run(misuse);
}

/* ---- failures ---- */

enum { KILLED = 0, STOPS_CALLING, GROUP_FAILS, GATHER_FAILS, ASYNC_FAILS, ENDS_EARLY, BREAKS };

static int failure(struct fleet *fleet, uint32_t rank)
{
    struct rig rig;
    static struct kernel after;
    struct weft_request request = {{0}};
    enum weft_status status = WEFT_OK;
    if (job.number == STOPS_CALLING) job.ranks_per_host = RANKS;
    if (rig_open(&rig, fleet, rank, 1 << 20) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    const struct variant before = {COUNT, WEFT_F32, WEFT_SUM, true, false, false, true};
    if (one(&rig, &before) != 0) return 1;
    /* else rank 1 could end the session while another rank checks its bits; the barrier itself may fail */
    if (job.number != STOPS_CALLING && weft_barrier(rig.session, &request) >= 0)
        (void)weft_wait(&request, 0);
    if (job.number == STOPS_CALLING) rig.session->settings.deadline_ns = WEFT_MS(1000);
    if (rank == 1 && job.number == KILLED) raise(SIGKILL);
    if (rank == 1 && job.number == GROUP_FAILS) fake_nccl_fail_group(1);
    if (rank == 1 && job.number == GATHER_FAILS) fake_nccl_fail_group(2);
    if (rank == 1 && job.number == ASYNC_FAILS) fake_nccl_fail_async(2);
    if (rank == 1 && job.number == ENDS_EARLY) {
        weft_finalize(rig.session);
        fake_cuda_synchronize();
        cudaStreamDestroy(rig.stream);
        return 0;
    }
    struct weft_call call = sum_of(&rig, rig.x, rig.x, COUNT, WEFT_F32);
    call.on_stream = true;
    const bool calls = rank != 1 || (job.number != STOPS_CALLING && job.number != BREAKS);
    if (calls) (void)weft_call_start(rig.session, &call, &request);
    if (rank == 0 && job.number == BREAKS) fake_nccl_break(); /* after the call, which waits for rank 1 */
    copy(rig.stream, &after, rig.x, rig.y, COUNT * sizeof(float)); /* the buffer's next use */
    for (int i = 0; i < LOOKS && status >= 0; i++) { /* no thread waits for the request */
        char text[1024];
        usleep(100);
        status = weft_explain(rig.session, "all_reduce", 1, WEFT_F32, text, sizeof text);
    }
    static const char *const texts[] = {
        "rank 1", "twice the deadline",   "ncclGroupEnd", "ncclGroupEnd", "remote process exited",
        "rank 1", "remote process exited"};
    CHECK(&rig, status < 0);
    CHECK(&rig, strstr(weft_error_text(rig.session), texts[job.number]) != NULL);
    CHECK(&rig, has_run(&after)); /* the stream was released */
    weft_finalize(rig.session);
    fake_cuda_synchronize();
    /* behind all work of the failed call */
    if (memcmp(fake_cuda_shadow(rig.x), fake_cuda_shadow(rig.y), COUNT * sizeof(float)) != 0)
        return fprintf(stderr, "rank %u: the failed call has written to the buffer of later work\n", rank);
    cudaFree(rig.x);
    cudaFree(rig.y);
    cudaStreamDestroy(rig.stream);
    CHECK(&(struct rig){.rank = rank}, fake_nccl_aborted() == 1 && fake_nccl_destroyed() == 0);
    return 0;
}

static void test_failure(void **state)
{
    for (job.number = KILLED; job.number <= BREAKS; job.number++) {
        struct fleet_result result;
        (void)fleet_run(RANKS, 0, failure, &result, NULL);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const bool is_victim = rank == 1 && job.number == KILLED;
            if (result.worker_status[rank] != (is_victim ? SIGKILL : 0))
                fprintf(stderr, "failure %d, rank %u\n", job.number, rank);
            assert_int_equal(result.worker_status[rank], is_victim ? SIGKILL : 0);
        }
    }
}

/* ---- a caller whose own work takes longer than the limit ---- */

static _Atomic bool gate;

static void hold(void *context)
{
    while (!atomic_load(&gate)) usleep(1000);
}

/* A call is overdue if NCCL's part has not ended within twice the deadline after its begin. The time
 * before its begin is not counted. The calls behind the gate may succeed or fail. */
static int late_caller(struct fleet *fleet, uint32_t rank)
{
    struct rig rig;
    struct weft_request request = {{0}};
    char text[1024];
    job.ranks_per_host = RANKS;
    if (rig_open(&rig, fleet, rank, COUNT * sizeof(float)) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    rig.session->settings.deadline_ns = WEFT_MS(100);
    CHECK(&rig, fake_cuda_launch(rig.stream, hold, NULL) == 0);
    struct weft_call call = sum_of(&rig, rig.x, rig.x, COUNT, WEFT_F32);
    call.on_stream = true;
    MUST(&rig, weft_call_start(rig.session, &call, &request));
    usleep(600000); /* six deadlines */
    MUST(&rig, weft_explain(rig.session, "all_reduce", 1, WEFT_F32, text, sizeof text));
    CHECK(&rig, fake_nccl_aborted() == 0);
    atomic_store(&gate, true);
    (void)weft_wait(&request, 0);
    weft_finalize(rig.session);
    fake_cuda_synchronize();
    cudaFree(rig.x);
    cudaFree(rig.y);
    cudaStreamDestroy(rig.stream);
    return 0;
}

static void test_late_caller(void **state)
{
    run(late_caller);
}

/* ---- each wait is needed ---- */

static int dropped(struct fleet *fleet, uint32_t rank)
{
    enum { N = 4000 };
    static struct kernel kernels[3];
    static int64_t source[N], got[N], zeros[N];
    struct weft_request request = {{0}};
    struct rig rig;
    if (rig_open(&rig, fleet, rank, N * sizeof(int64_t)) != 0) return 1;
    MUST(&rig, weft_nccl_open(rig.session, 0));
    for (int i = 0; i < N; i++) source[i] = i + rank;
    copy(rig.stream, &kernels[0], rig.x, zeros, sizeof zeros);
    CHECK(&rig, has_run(&kernels[0]));
    fake_cuda_synchronize();
    if (rank == 0) fake_cuda_drop((enum fake_cuda_order)job.number, rig.stream);
    /* The side that is to wait must be first without its wait, on a loaded machine too. */
    fake_cuda_slow_copies(job.number > FAKE_CUDA_WAIT_FOR_STREAM ? 100000 : 10000);
    kernels[1].slow_us = 30000;
    if (rank == 0 && job.number == FAKE_CUDA_WAIT_FOR_STREAM) kernels[1].until_sums = fake_nccl_sums() + 1;
    copy(rig.stream, &kernels[1], rig.x, source, sizeof source);
    struct weft_call call = sum_of(&rig, rig.x, rig.x, N, WEFT_I64);
    call.on_stream = true;
    MUST(&rig, weft_call_start(rig.session, &call, &request));
    copy(rig.stream, &kernels[2], got, rig.x, sizeof got);
    CHECK(&rig, has_run(&kernels[2]));
    fake_cuda_drop(FAKE_CUDA_NONE, NULL);
    MUST(&rig, weft_wait(&request, 0));
    bool right = true;
    for (int i = 0; i < N; i++) right = right && got[i] == 4 * (int64_t)i + 6;
    ((int *)fleet->user)[rank] = right;
    return rig_close(&rig);
}

static void test_each_wait_is_needed(void **state)
{
    for (job.number = FAKE_CUDA_NONE; job.number <= (FINDS_RACES ? FAKE_CUDA_NONE : FAKE_CUDA_WAIT_WORD);
         job.number++) {
        struct fleet_result result;
        void *user;
        assert_true(fleet_run(RANKS, 0, dropped, &result, &user));
        bool all = true;
        for (int rank = 0; rank < RANKS; rank++) all = all && ((int *)user)[rank];
        if (all != (job.number == FAKE_CUDA_NONE)) fprintf(stderr, "order %d\n", job.number);
        assert_int_equal(all, job.number == FAKE_CUDA_NONE);
    }
}

/* test_client_nccl_host_first [order | failures | seeds] */
int main(int argc, char **argv)
{
    setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    setenv("WEFT_CUDA_KERNELS", FAKE_KERNELS, 1);
    setenv("WEFT_NCCL", FAKE_NCCL, 1);
    job.mode = "yes";
    job.ranks_per_host = 2;
    job.seed = 1;
    job.delay_us = 200;
    const struct CMUnitTest order[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_each_wait_is_needed),
    };
    const struct CMUnitTest failures[] = {
        cmocka_unit_test(test_bits_one_host),
        cmocka_unit_test(test_long_call),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_late_caller),
        cmocka_unit_test(test_bits_without_words),

    };
    const struct CMUnitTest seeds[] = {cmocka_unit_test(test_bits_seeds)};
    int failed = 0;
    if (argc < 2 || strcmp(argv[1], "seeds") == 0) failed += cmocka_run_group_tests(seeds, NULL, NULL);
    if (argc < 2 || strcmp(argv[1], "order") == 0) failed += cmocka_run_group_tests(order, NULL, NULL);
    if (argc < 2 || strcmp(argv[1], "failures") == 0) failed += cmocka_run_group_tests(failures, NULL, NULL);
    return failed;
}
