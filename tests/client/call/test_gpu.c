/* test_gpu.c - calls and tensors on the memory of a real CUDA device, compared with host memory bit for
 * bit: one rank on the first device, one on the last, one on the host. Without a device it is skipped (77)
 * with the reason; over tests/lib/fake_cuda it is a quick test. Timing and order are tested by
 * test_device_staging.c. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os/sanitizer.h"
#include "tests/client/crowd.h"
#include "tests/client/twin.h"

enum { RANKS = 3, COUNT = 300007 };

static const struct weft_memory_ops *ops;
static struct weft_error why_not;

/* Buffer of a rank on a device, and the stream of its kernels. */
struct side {
    bool on_device;
    int device, before;
    void *stream, *memory[2], *event;
};

#define OPS(call) \
    do { \
        struct weft_error error = {0}; \
        if ((call) < 0) fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.text), exit(1); \
    } while (0)

static int devices(void)
{
    int count = 0, before;
    while (ops->enter(count, &before, NULL) == WEFT_OK) ops->leave(before), count++;
    return count;
}

static void side_open(struct side *side, uint32_t rank)
{
    *side = (struct side){.on_device = rank < 2, .device = rank == 0 ? 0 : devices() - 1};
    if (!side->on_device) return;
    OPS(ops->enter(side->device, &side->before, &error));
    OPS(ops->stream_create(&side->stream, &error));
    OPS(ops->event_create(&side->event, &error));
    for (int i = 0; i < 2; i++) OPS(ops->alloc(COUNT * sizeof(float), &side->memory[i], &error));
}

static void side_close(struct side *side)
{
    if (!side->on_device) return;
    for (int i = 0; i < 2; i++) ops->free(side->memory[i]);
    ops->event_free(side->event);
    ops->stream_free(side->stream);
    ops->leave(side->before);
}

static void put(struct side *side, int which, const float *from, size_t count)
{
    OPS(ops->copy(side->memory[which], from, count * sizeof(float), side->stream, &error));
}

static void get(struct side *side, int which, float *to, size_t count)
{
    enum weft_status status;
    OPS(ops->copy(to, side->memory[which], count * sizeof(float), side->stream, &error));
    OPS(ops->record(side->event, side->stream, &error));
    while ((status = ops->passed(side->event, NULL)) == WEFT_IN_PROGRESS) usleep(50);
    if (status < 0) fprintf(stderr, "a copy from the device failed\n"), exit(1);
}

static void draw(float *values, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)((int64_t)seed >> 40) * (i % 5 ? 1.0f : 1e-5f);
    }
}

/* The call again, and its result read in the order of the stream, with and without a wait for the request. */
static void call_on_device(struct crowd *crowd, struct weft_session *session, struct side *side,
                           struct weft_call call, const float *in, float *got, bool on_stream)
{
    struct weft_request request = {{0}};
    memcpy(got, in, COUNT * sizeof(float));
    call.out = got;
    if (side->on_device) {
        for (int which = 0; which < 2; which++) put(side, which, in, COUNT);
        call.in = side->memory[0];
        call.out = side->memory[1];
        call.memory = WEFT_MEMORY_CUDA;
        call.stream = side->stream;
        call.on_stream = on_stream;
    }
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    if (!call.on_stream) CROWD_OK(crowd, session, weft_wait(&request, 0));
    if (side->on_device) get(side, 1, got, COUNT);
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void calls(struct crowd *crowd, struct weft_session *session, struct side *side, uint32_t rank,
                  const float *in, float *expected, float *got)
{
    static const struct { enum weft_call_kind kind; uint64_t count; uint32_t root;
    } all[] = {{WEFT_CALL_ALL_REDUCE, COUNT, 0},
               {WEFT_CALL_ALL_REDUCE, 3, 0},
               {WEFT_CALL_BROADCAST, COUNT, 1},
               {WEFT_CALL_ALL_GATHER, COUNT / RANKS, 0},
               {WEFT_CALL_REDUCE_SCATTER, COUNT / RANKS, 0}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        size_t count = all[i].kind == WEFT_CALL_ALL_GATHER ? COUNT / RANKS * RANKS : all[i].count;
        struct weft_request request = {{0}};
        struct weft_call call = {.size = sizeof call,
                                 .kind = all[i].kind,
                                 .in = in,
                                 .out = expected,
                                 .count = all[i].count,
                                 .dtype = WEFT_F32,
                                 .root = all[i].root};
        memcpy(expected, in, COUNT * sizeof(float));
        CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        for (int on_stream = 0; on_stream < 2; on_stream++) {
            call_on_device(crowd, session, side, call, in, got, on_stream);
            if (!CROWD_CHECK(crowd, session, memcmp(got, expected, count * sizeof(float)) == 0))
                fprintf(stderr, "call %zu differs on rank %u, on_stream %d\n", i, rank, on_stream);
        }
    }
}

static const struct { const char *codec, *optimizer; bool there;
} tensors[] = {
    {"topk:ratio=0.01", "sgd:momentum=0.9", true},
    {"int8", "adamw", true},
    {"topk:ratio=0.01", "none", true},
    {"topk:ratio=0.001,momentum=0.9", "none", true},
    {"int8", "none", true},
    {"int4", "none", true},
    {"sign", "none", true},
    {"e4m3", "none", true},
    {"e5m2", "none", true},
    {"f16", "none", true},
    {"bf16", "none", true},
    {"powersgd:rank=4", "none", true},
    {"dense", "none", false},
    {"dense", "adam", false},
    {"dense", "lamb", false},
};

/* A tensor of each codec, twice. `there`: its codec runs on the device if the buffers are there. */
static void tensor(struct crowd *crowd, struct weft_session *session, struct side *side, const char *codec,
                   const char *optimizer, bool there, const float *grad, float *expected, float *got)
{
    enum { ROWS = 541, COLS = 554 };
    const size_t bytes = (size_t)ROWS * COLS * sizeof(float);
    static const uint64_t dims[] = {ROWS, COLS};
    static _Thread_local uint64_t step;
    struct weft_tensor *twins[2];
    struct weft_request requests[2] = {{{0}}};
    for (int k = 0; k < 2; k++) {
        struct weft_tensor_options options;
        char name[100];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "%s %s %s", codec, optimizer, k ? "device" : "host");
        options.name = name;
        options.dim_count = 2;
        memcpy(options.dims, dims, sizeof dims);
        options.codec = codec;
        options.optimizer = optimizer;
        CROWD_OK(crowd, session, weft_declare(session, &options, &twins[k]));
        twin_draws(twins[k], twins[0]);
        draw(expected, COUNT, 5);
        CROWD_OK(crowd, session, weft_tensor_init(twins[k], expected));
    }
    memcpy(got, expected, bytes);
    if (side->on_device) {
        put(side, 0, grad, COUNT);
        put(side, 1, got, COUNT);
        CROWD_OK(crowd, session, weft_tensor_memory(twins[1], WEFT_MEMORY_CUDA, side->stream));
    }
    for (int s = 0; s < 3; s++) {
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = ++step, .lr = 0.1f, .weight = 1}));
        CROWD_OK(crowd, session, weft_push_pull(twins[0], grad, expected, &requests[0]));
        if (side->on_device)
            CROWD_OK(crowd, session,
                     weft_push_pull(twins[1], side->memory[0], side->memory[1], &requests[1]));
        else CROWD_OK(crowd, session, weft_push_pull(twins[1], grad, got, &requests[1]));
        CROWD_OK(crowd, session, weft_step_end(session));
        if (side->on_device) get(side, 1, got, COUNT);
        if (!CROWD_CHECK(crowd, session, memcmp(got, expected, bytes) == 0))
            fprintf(stderr, "%s differs in its step %d\n", codec, s);
    }
    const struct weft_codec *used = twins[1]->codec;
    if (side->on_device) CROWD_CHECK(crowd, session, (used && weft_codec_device_of(used) != NULL) == there);
}

static void work(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct side side;
    float *in = calloc(COUNT, sizeof *in), *expected = calloc(COUNT, sizeof *in),
          *got = calloc(COUNT, sizeof *in);
    struct weft_request request = {{0}};
    draw(in, COUNT, rank + 1);
    side_open(&side, rank);
    calls(crowd, session, &side, rank, in, expected, got);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor(crowd, session, &side, tensors[i].codec, tensors[i].optimizer, tensors[i].there, in, expected,
               got);
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    side_close(&side);
    free(in);
    free(expected);
    free(got);
}

static void test_same_bits_as_on_the_host(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, work);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits_as_on_the_host)};
    if (weft_memory_ops(WEFT_MEMORY_CUDA, &ops, &why_not) < 0) {
        printf("skipped: %s\n", why_not.text);
        return 77;
    }
    setenv("WEFT_CLIENT_PIECE_BYTES", "64KiB", 1); /* many pieces in a short time */
    /* In one process the sanitizer does not see what orders accesses to mapped memory
     * (tests/collective/onehost/shm_ranks.h). */
    if (WEFT_THREAD_SANITIZER) setenv("WEFT_TRANSPORT_BACKEND", "tcp", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
