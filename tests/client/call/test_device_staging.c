/* test_device_staging.c - calls on device memory over a CUDA runtime without a device (tests/lib/fake_cuda).
 * Streams run late by amounts from a seed, and the host cannot access device memory. Ranks with and without a
 * device share every group. Results equal those of the same calls on host memory, bit for bit. Several
 * sessions in one process.
 *
 *    test_client_device [--seeds N] [--first N] [--kind device]
 *
 * With --kind device the same calls are on memory of the second kind (tests/lib/fake_device), whose process
 * finds no CUDA runtime. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os/sanitizer.h"
#include "client/session/session.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/tensors.h"
#include "tests/client/crowd.h"
#include "tests/client/fleet.h"
#include "tests/client/twin.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

enum { RANKS = 3, COUNT_MAX = 5000, PIECE_BYTES = 4096 };

static uint64_t seed;
static enum weft_memory_kind device_kind = WEFT_MEMORY_CUDA; /* --kind device: WEFT_MEMORY_DEVICE */

/* ---- a rank's buffer, on a device or not ---- */

struct buffer {
    uint8_t *memory; /* argument of the call */
    size_t bytes;
    bool on_device;
};

struct place { /* of a rank */
    bool on_device;
    int device;
    void *stream;
};

/* A kernel of the trainer: writes a buffer, or reads one. */
struct kernel {
    void *to;
    const void *from;
    size_t bytes;
    bool garbage;
    _Atomic bool ran;
};

static void run_kernel(void *context)
{
    struct kernel *kernel = context;
    void *to = fake_cuda_shadow(kernel->to);
    if (kernel->garbage) memset(to, 0x77, kernel->bytes);
    else memcpy(to, fake_cuda_shadow(kernel->from), kernel->bytes);
    atomic_store(&kernel->ran, true);
}

static struct buffer buffer_new(const struct place *place, size_t bytes)
{
    struct buffer buffer = {.bytes = bytes, .on_device = place->on_device};
    void *memory = NULL;
    if (place->on_device) assert_int_equal(cudaMalloc(&memory, bytes ? bytes : 1), 0);
    else memory = calloc(1, bytes ? bytes : 1);
    buffer.memory = memory;
    return buffer;
}

static void buffer_free(struct buffer *buffer)
{
    if (buffer->on_device) cudaFree(buffer->memory);
    else free(buffer->memory);
}

/* Queues a copy of `from` into the buffer, as a backward pass does. `kernel` must stay until the stream
 * has run it. */
static void buffer_write(const struct place *place, struct buffer *buffer, const void *from,
                         struct kernel *kernel)
{
    *kernel = (struct kernel){.to = buffer->memory, .from = from, .bytes = buffer->bytes};
    if (place->on_device) assert_int_equal(fake_cuda_launch(place->stream, run_kernel, kernel), 0);
    else run_kernel(kernel);
}

/* Queues a read and overwrites the buffer at once: the caller may do both when the request is done. */
static void buffer_read(const struct place *place, struct buffer *buffer, void *to, struct kernel kernels[2])
{
    kernels[0] = (struct kernel){.to = to, .from = buffer->memory, .bytes = buffer->bytes};
    kernels[1] = (struct kernel){.to = buffer->memory, .bytes = buffer->bytes, .garbage = true};
    for (int i = 0; i < 2; i++) {
        if (place->on_device) assert_int_equal(fake_cuda_launch(place->stream, run_kernel, &kernels[i]), 0);
        else run_kernel(&kernels[i]);
    }
    while (!atomic_load(&kernels[1].ran)) usleep(20);
}

static void place_open(struct place *place, uint32_t rank)
{
    place->on_device = rank != 1; /* rank 1 has only host memory */
    place->device = rank == 2 ? 1 : 0;
    place->stream = NULL;
    if (!place->on_device) return;
    assert_int_equal(cudaSetDevice(place->device), 0);
    /* rank 2: the default stream */
    if (rank == 0) assert_int_equal(cudaStreamCreateWithFlags(&place->stream, 0), 0);
}

static void place_close(struct place *place)
{
    if (place->stream) cudaStreamDestroy(place->stream);
}

/* ---- one call on host memory and on device memory ---- */

struct one {
    enum weft_call_kind kind;
    enum weft_dtype dtype;
    uint64_t count;
    uint32_t root;
    bool in_place, unequal;
};

/* Elements of in and out by the contract of weft.h. */
static void sizes(const struct one *one, uint32_t rank, const uint64_t *counts, uint64_t *in, uint64_t *out)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < RANKS; r++) total += one->unequal ? counts[r] : one->count;
    uint64_t own = one->unequal ? counts[rank] : one->count;
    bool at_root = rank == one->root;
    *in = *out = one->count;
    switch (one->kind) {
    case WEFT_CALL_REDUCE_SCATTER: *in = total; *out = own; break;
    case WEFT_CALL_ALL_GATHER: *in = own; *out = total; break;
    case WEFT_CALL_REDUCE: *out = at_root ? one->count : 0; break;
    case WEFT_CALL_GATHER: *in = own; *out = at_root ? total : 0; break;
    case WEFT_CALL_SCATTER: *in = at_root ? total : 0; *out = own; break;
    case WEFT_CALL_ALL_TO_ALL: *in = *out = total; break;
    default: break;
    }
}

static void fill(uint8_t *bytes, size_t count, enum weft_dtype dtype, uint64_t draw)
{
    for (size_t i = 0; i < count; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        /* mixed magnitudes */
        if (dtype == WEFT_F32) ((float *)bytes)[i] = (float)((int64_t)draw >> 40) * (i % 7 ? 1.0f : 1e-6f);
        else ((int64_t *)bytes)[i] = (int64_t)(draw >> 20);
    }
}

static struct weft_call call_of(const struct one *one, uint32_t rank, const uint64_t *counts, void *in,
                                void *out)
{
    struct weft_call call = {.size = sizeof call,
                             .kind = one->kind,
                             .in = in,
                             .out = out,
                             .count = one->count,
                             .dtype = one->dtype,
                             .root = one->root};
    bool rooted = one->kind == WEFT_CALL_GATHER || one->kind == WEFT_CALL_SCATTER;
    if (one->unequal) {
        call.counts = counts;
        call.unequal = rooted;
        if (rooted && rank != one->root) call.counts = NULL, call.count = counts[rank];
        else call.count = 0;
    }
    if (one->kind == WEFT_CALL_SEND) { /* a ring: to the next rank, from the previous one */
        call.root = (rank + 1) % RANKS;
    } else if (one->kind == WEFT_CALL_RECV) {
        call.root = (rank + RANKS - 1) % RANKS;
    }
    return call;
}

static void both_ways(struct crowd *crowd, struct weft_session *session, uint32_t rank, struct place *place,
                      const struct one *one)
{
    static const uint64_t counts[RANKS] = {700, 3, 1200};
    size_t elem = weft_dtype_bytes(one->dtype);
    uint64_t in, out;
    sizes(one, rank, counts, &in, &out);
    uint8_t *source = calloc(in + 1, elem), *expected = calloc(out + 1, elem), *got = calloc(out + 1, elem);
    struct buffer from = buffer_new(place, in * elem),
                  to = one->in_place ? from : buffer_new(place, out * elem);
    struct weft_request request = {{0}}, other = {{0}};
    struct kernel writing, reading[2];
    fill(source, in, one->dtype, seed * 977 + rank * 31 + one->count);

    /* On host memory, every rank. */
    bool broadcast = one->kind == WEFT_CALL_BROADCAST, pair = one->kind == WEFT_CALL_SEND;
    if (broadcast) memcpy(expected, source, out * elem);
    struct weft_call call = call_of(one, rank, counts, source, expected);
    struct one receiving = *one;
    receiving.kind = WEFT_CALL_RECV;
    struct weft_call receive = call_of(&receiving, rank, counts, NULL, expected);
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    if (pair) CROWD_OK(crowd, session, weft_call_start(session, &receive, &other));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_wait(&other, 0));

    /* With devices: a kernel that may run late writes the input, and a queued kernel reads the result. */
    buffer_write(place, &from, source, &writing);
    if (broadcast && !one->in_place) buffer_write(place, &to, source, &reading[0]);
    call = call_of(one, rank, counts, from.memory, to.memory);
    receive = call_of(&receiving, rank, counts, NULL, to.memory);
    if (place->on_device)
        call.memory = receive.memory = device_kind, call.stream = receive.stream = place->stream;
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    if (pair) CROWD_OK(crowd, session, weft_call_start(session, &receive, &other));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_wait(&other, 0));
    to.bytes = out * elem;
    buffer_read(place, &to, got, reading);
    while (!atomic_load(&writing.ran)) usleep(20);
    if (!CROWD_CHECK(crowd, session, out == 0 || memcmp(got, expected, out * elem) == 0))
        fprintf(stderr, "seed %llu: kind %d, count %llu, root %u\n", (unsigned long long)seed, (int)one->kind,
                (unsigned long long)one->count, one->root);
    if (!one->in_place) buffer_free(&to);
    buffer_free(&from);
    free(source);
    free(expected);
    free(got);
}

static const struct one operations[] = {
    {WEFT_CALL_ALL_REDUCE, WEFT_F32, 1, 0, false, false},
    {WEFT_CALL_ALL_REDUCE, WEFT_F32, 1024, 0, true, false},      /* one piece */
    {WEFT_CALL_ALL_REDUCE, WEFT_F32, 1025, 0, false, false},     /* a second piece of one element */
    {WEFT_CALL_ALL_REDUCE, WEFT_F32, COUNT_MAX, 0, true, false}, /* windows are reused */
    {WEFT_CALL_ALL_REDUCE, WEFT_I64, COUNT_MAX, 0, false, false},
    {WEFT_CALL_BROADCAST, WEFT_F32, 3000, 0, true, false},
    {WEFT_CALL_BROADCAST, WEFT_I64, COUNT_MAX, 1, false, false},
    {WEFT_CALL_REDUCE, WEFT_F32, COUNT_MAX, 2, false, false},
    {WEFT_CALL_REDUCE_SCATTER, WEFT_F32, 900, 0, false, false},
    {WEFT_CALL_REDUCE_SCATTER, WEFT_F32, 0, 0, false, true},
    {WEFT_CALL_ALL_GATHER, WEFT_I64, 700, 0, false, false},
    {WEFT_CALL_ALL_GATHER, WEFT_F32, 0, 0, false, true},
    {WEFT_CALL_GATHER, WEFT_F32, 300, 2, false, false},
    {WEFT_CALL_GATHER, WEFT_F32, 0, 1, false, true},
    {WEFT_CALL_SCATTER, WEFT_F32, 300, 0, false, false},
    {WEFT_CALL_SCATTER, WEFT_F32, 0, 2, false, true},
    {WEFT_CALL_ALL_TO_ALL, WEFT_I64, 333, 0, false, false},
    {WEFT_CALL_SEND, WEFT_F32, 5, 0, false, false},
    {WEFT_CALL_SEND, WEFT_F32, COUNT_MAX, 0, false, false},
};

static void every_operation(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct place place;
    place_open(&place, rank);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        both_ways(crowd, session, rank, &place, &operations[i]);
    struct weft_request request = {{0}}; /* other ranks may still need this rank's group */
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    place_close(&place);
}

/* ---- several calls at once: persistent, in groups of calls, small ones that share an operation ---- */

enum { CALLS = 6, ROUNDS = 4 };

static void many_at_once(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint64_t counts[CALLS] = {5, 3000, 77, 1, 2500, 600};
    struct place place;
    struct buffer buffers[CALLS];
    struct weft_request requests[CALLS] = {{{0}}};
    static struct kernel kernels[RANKS][CALLS][3];
    static int64_t source[RANKS][CALLS][3000], got[RANKS][CALLS][3000];
    place_open(&place, rank);
    for (int c = 0; c < CALLS; c++) {
        buffers[c] = buffer_new(&place, counts[c] * sizeof(int64_t));
        struct weft_call call = {.size = sizeof call,
                                 .kind = WEFT_CALL_ALL_REDUCE,
                                 .in = buffers[c].memory,
                                 .out = buffers[c].memory,
                                 .count = counts[c],
                                 .dtype = WEFT_I64};
        if (place.on_device) call.memory = device_kind, call.stream = place.stream;
        CROWD_OK(crowd, session, weft_call_init(session, &call, &requests[c]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int c = 0; c < CALLS; c++) {
            for (uint64_t i = 0; i < counts[c]; i++)
                source[rank][c][i] = (int64_t)(rank + 1) * 1000 + round * 100 + (int64_t)i;
            buffer_write(&place, &buffers[c], source[rank][c], &kernels[rank][c][0]);
        }
        CROWD_OK(crowd, session, weft_start_all(requests, CALLS));
        for (int c = CALLS - 1; c >= 0; c--) CROWD_OK(crowd, session, weft_wait(&requests[c], 0));
        for (int c = 0; c < CALLS; c++) {
            buffer_read(&place, &buffers[c], got[rank][c], &kernels[rank][c][1]);
            bool right = true;
            for (uint64_t i = 0; i < counts[c]; i++)
                right = right && got[rank][c][i] == 6000 + RANKS * (round * 100 + (int64_t)i);
            CROWD_CHECK(crowd, session, right);
        }
    }
    for (int c = 0; c < CALLS; c++) CROWD_OK(crowd, session, weft_request_free(&requests[c]));
    for (int c = 0; c < CALLS; c++) buffer_free(&buffers[c]);
    place_close(&place);
}

/* No thread waits on the device for the results while the next calls run: a window must not be reused too
 * early. */
static void back_to_back(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { ELEMS = 1000, TIMES = 12 };
    static struct kernel kernels[RANKS][TIMES];
    static int64_t got[RANKS][TIMES][ELEMS];
    struct place place;
    struct buffer buffers[TIMES];
    struct weft_request request = {{0}};
    place_open(&place, rank);
    for (int t = 0; t < TIMES; t++) buffers[t] = buffer_new(&place, ELEMS * sizeof(int64_t));
    for (int t = 0; t < TIMES; t++) {
        for (int i = 0; i < ELEMS && rank == 1; i++) ((int64_t *)(void *)buffers[t].memory)[i] = t * 1000 + i;
        struct weft_call call = {.size = sizeof call,
                                 .kind = WEFT_CALL_BROADCAST,
                                 .out = buffers[t].memory,
                                 .count = ELEMS,
                                 .dtype = WEFT_I64,
                                 .root = 1};
        if (place.on_device) call.memory = device_kind, call.stream = place.stream;
        CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
    }
    for (int t = 0; t < TIMES; t++) {
        kernels[rank][t] =
            (struct kernel){.to = got[rank][t], .from = buffers[t].memory, .bytes = buffers[t].bytes};
        if (place.on_device)
            assert_int_equal(fake_cuda_launch(place.stream, run_kernel, &kernels[rank][t]), 0);
        else run_kernel(&kernels[rank][t]);
    }
    bool right = true;
    for (int t = 0; t < TIMES; t++) {
        while (!atomic_load(&kernels[rank][t].ran)) usleep(20);
        for (int i = 0; i < ELEMS; i++) right = right && got[rank][t][i] == t * 1000 + i;
        buffer_free(&buffers[t]);
    }
    CROWD_CHECK(crowd, session, right);
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    place_close(&place);
}

static uint32_t count_words(const char *text, const char *words)
{
    uint32_t count = 0;
    for (; (text = strstr(text, words)); text++) count++;
    return count;
}

/* Each piece has a span for its copy from the device, and the call one for the copy of its result. */
static void spans(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const char RESULT_END[] = "\"device copy out\",\"cat\":\"weft\",\"ph\":\"e\"";
    enum { PIECES = 5 };
    static char text[RANKS][1 << 18];
    struct place place;
    struct weft_request request = {{0}};
    char path[64];
    place_open(&place, rank);
    struct buffer buffer = buffer_new(&place, PIECES * PIECE_BYTES);
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = buffer.memory,
                             .out = buffer.memory,
                             .count = PIECES * PIECE_BYTES / 4,
                             .dtype = WEFT_F32,
                             .op = WEFT_SUM};
    if (place.on_device) call.memory = device_kind, call.stream = place.stream;
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    snprintf(path, sizeof path, "/tmp/weft-spans-%d-%u.perfetto.json", (int)getpid(), rank);
    for (int i = 0; i < 5000; i++) { /* the engine sees the end of the copy at its next poll */
        CROWD_OK(crowd, session, weft_dump_events(session, path));
        FILE *file = fopen(path, "r");
        if (file) text[rank][fread(text[rank], 1, sizeof text[rank] - 1, file)] = 0;
        if (file) fclose(file);
        if (!place.on_device || count_words(text[rank], RESULT_END) > 0) break;
        usleep(1000);
    }
    unlink(path);
    const uint32_t pieces = place.on_device ? PIECES : 0, results = place.on_device ? 1 : 0;
    CROWD_CHECK(crowd, session,
                count_words(text[rank], "\"device copy in\",\"cat\":\"weft\",\"ph\":\"b\"") == pieces);
    CROWD_CHECK(crowd, session,
                count_words(text[rank], "\"device copy in\",\"cat\":\"weft\",\"ph\":\"e\"") == pieces);
    CROWD_CHECK(crowd, session,
                count_words(text[rank], "\"device copy out\",\"cat\":\"weft\",\"ph\":\"b\"") == results);
    buffer_free(&buffer);
    place_close(&place);
}

static void run_seed(crowd_fn fn)
{
    struct crowd crowd = {0};
    fake_cuda_setup(seed, seed % 4 == 0 ? 0 : 300, 2);
    int before = fake_cuda_live_count(), unpinned = fake_cuda_unpinned_copies();
    crowd_run(&crowd, RANKS, fn);
    if (crowd.failures)
        fprintf(stderr, "again: test_client_device --seeds 1 --first %llu\n", (unsigned long long)seed);
    assert_int_equal(crowd.failures, 0);
    fake_cuda_synchronize();
    assert_int_equal(fake_cuda_live_count(), before);
    assert_int_equal(fake_cuda_unpinned_copies(), unpinned);
}

static void test_every_operation(void **state) { run_seed(every_operation); }
static void test_many_at_once(void **state) { run_seed(many_at_once); }
static void test_back_to_back(void **state) { run_seed(back_to_back); }
static void test_spans(void **state)
{
    run_seed(spans);
}

/* ---- tensors: each twice; one of the two has its buffers on the rank's device ---- */

enum { TENSOR_ELEMS = 60 * 50, STEPS = 5 };

#define CHOICE "auto:int8:min_count=0,topk:ratio=0.05,min_count=0"
static const struct weft_tensor_options twins[] = {
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "dense", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "dense", .optimizer = "adam"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "topk:ratio=0.05", .optimizer = "sgd:momentum=0.9"},
    {.mode = WEFT_MODE_ALL_REDUCE,
     .codec = "dense",
     .optimizer = "lamb"}, /* these are updated on the device */
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "dense", .optimizer = "ftrl:l1=0.1"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "int8", .optimizer = "adamw"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "powersgd:rank=2", .optimizer = "adagrad"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "powersgd:rank=2", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "powersgd:rank=3,iterations=2", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "int8", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "int4:seed=7", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "f16", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "bf16", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "sign", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "e4m3", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "e5m2", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "topk:ratio=0.05", .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "topk:ratio=0.5", .optimizer = "none"}, /* the union is dense */
    {.mode = WEFT_MODE_ALL_REDUCE,
     .codec = "topk:ratio=0.01,momentum=0.9,warmup_steps=2",
     .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE,
     .codec = "topk:ratio=0.05,momentum=0.5,nesterov=1,masking=0",
     .optimizer = "none"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "randomk:ratio=0.05", .optimizer = "none"},
    /* its codec stays on the host */
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = "topk:ratio=0.05,clip=10", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "dense", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "dense", .optimizer = "sgd"},
    {.mode = WEFT_MODE_SERVER, .codec = "topk:ratio=0.05", .optimizer = "sgd:momentum=0.9"},
    {.mode = WEFT_MODE_ALL_REDUCE, .codec = CHOICE, .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = CHOICE, .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "f16", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "powersgd:rank=2", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "topk:ratio=0.05", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "randomk:ratio=0.05,feedback=0.5", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "int8", .optimizer = "none"}, /* these in chunks */
    {.mode = WEFT_MODE_SERVER, .codec = "int4:seed=7", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "bf16", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "e4m3", .optimizer = "none"},
    {.mode = WEFT_MODE_SERVER, .codec = "dense", .optimizer = "none"}, /* in two halves */
};
enum { TWINS = sizeof twins / sizeof twins[0], HALVES = TWINS - 1, SERVED_INT4 = TWINS - 4, DENSE_ADAM = 1 };

/* Without an optimiser, whose weights would have to move too: in one step the buffers are in host memory,
 * and with them the codec's residual. */
static bool wanders(int number)
{
    const bool is_whole =
        twins[number].mode == WEFT_MODE_ALL_REDUCE || strcmp(twins[number].codec, "dense") != 0;
    return is_whole && strcmp(twins[number].optimizer, "none") == 0 && number % 2 == 0;
}

struct twin {
    struct weft_tensor *tensor[2]; /* host, device */
    float grad[TENSOR_ELEMS], out[TENSOR_ELEMS], seen[TENSOR_ELEMS];
    bool on_host;    /* in this step, on a rank with a device */
    bool is_ordered; /* in this step: the stream waits for the result, and the reader is queued behind it */
    struct buffer from, to;
    struct kernel kernels[4];
    struct weft_request requests[2];
};

#define MUST(session, call) \
    do { \
        if ((call) < 0) \
            return fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, weft_error_text(session)); \
    } while (0)

static int declare_twin(struct weft_session *session, const struct place *place, int number,
                        struct twin *twin)
{
    for (int k = 0; k < 2; k++) {
        struct weft_tensor_options options;
        char name[32];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "twin %d on %s", number, k ? "device" : "host");
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = 60;
        options.dims[1] = 50;
        options.mode = twins[number].mode;
        options.codec = twins[number].codec;
        options.optimizer = twins[number].optimizer;
        options.chunk_bytes = 4096;
        MUST(session, weft_declare(session, &options, &twin->tensor[k]));
        twin_draws(twin->tensor[k], twin->tensor[0]);
        for (int i = 0; i < TENSOR_ELEMS; i++) twin->out[i] = twin->seen[i] = (float)(i % 13) / 7.0f;
        MUST(session, weft_tensor_init(twin->tensor[k], twin->seen));
    }
    twin->from = buffer_new(place, sizeof twin->grad);
    twin->to = buffer_new(place, sizeof twin->out);
    buffer_write(place, &twin->to, twin->out, &twin->kernels[0]);
    while (!atomic_load(&twin->kernels[0].ran)) usleep(20);
    if (place->on_device) MUST(session, weft_tensor_memory(twin->tensor[1], device_kind, place->stream));
    return 0;
}

/* In step 1 the tuner's own choice is in force, which may differ between the two tensors. */
static bool is_left_out(int number, uint64_t step)
{
    return step == 1 && strcmp(twins[number].codec, CHOICE) == 0;
}

static void read_twin(const struct place *place, struct twin *twin)
{
    twin->kernels[1] = (struct kernel){.to = twin->seen, .from = twin->to.memory, .bytes = sizeof twin->seen};
    if (twin->on_host) atomic_store(&twin->kernels[1].ran, true);
    else if (place->on_device)
        assert_int_equal(fake_cuda_launch(place->stream, run_kernel, &twin->kernels[1]), 0);
    else run_kernel(&twin->kernels[1]);
}

static int step_of(struct weft_session *session, const struct place *place, uint32_t rank, int number,
                   uint64_t step, struct twin *twin)
{
    if (is_left_out(number, step)) return 0;
    twin->is_ordered = place->on_device && step % 2 == 1;
    MUST(session, weft_tensor_on_stream(twin->tensor[1], twin->is_ordered));
    fill((uint8_t *)twin->grad, TENSOR_ELEMS, WEFT_F32, seed + step * 64 + rank);
    buffer_write(place, &twin->from, twin->grad, &twin->kernels[0]);
    if (number == HALVES) {
        MUST(session, weft_push(twin->tensor[1], twin->from.memory, &twin->requests[1]));
        MUST(session, weft_push(twin->tensor[0], twin->grad, &twin->requests[0]));
        for (int k = 0; k < 2; k++) MUST(session, weft_wait(&twin->requests[k], 0));
        MUST(session, weft_pull(twin->tensor[1], twin->to.memory, &twin->requests[1]));
        if (twin->is_ordered) read_twin(place, twin);
        MUST(session, weft_pull(twin->tensor[0], twin->out, &twin->requests[0]));
        return 0;
    }
    twin->on_host = wanders(number) && step == 2;
    if (place->on_device)
        MUST(session, weft_tensor_memory(twin->tensor[1], twin->on_host ? WEFT_MEMORY_HOST : device_kind,
                                         place->stream));
    if (twin->on_host)
        MUST(session, weft_push_pull(twin->tensor[1], twin->grad, twin->seen, &twin->requests[1]));
    else
        MUST(session,
             weft_push_pull(twin->tensor[1], twin->from.memory, twin->to.memory, &twin->requests[1]));
    if (twin->is_ordered) read_twin(place, twin);
    MUST(session, weft_push_pull(twin->tensor[0], twin->grad, twin->out, &twin->requests[0]));
    return 0;
}

static int same_twins(const struct place *place, int number, uint64_t step, struct twin *twin)
{
    if (is_left_out(number, step)) return 0;
    if (!twin->is_ordered) read_twin(place, twin);
    while (!atomic_load(&twin->kernels[1].ran)) usleep(20);
    if (memcmp(twin->seen, twin->out, sizeof twin->out) == 0) return 0;
    return fprintf(stderr, "seed %llu: twin %d differs at step %llu\n", (unsigned long long)seed, number,
                   (unsigned long long)step);
}

/* Puts a codec of CHOICE in force with the next step, as if rank 0 had broadcast it: int8 in steps 2 and 3,
 * then top-k. In step 4 the residual of int8 is added on the host. */
static void force_choice(struct weft_session *session, uint64_t step)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    codec_tuner->decision[CLIENT_DECISION_REVISION] = (int64_t)codec_tuner->revision + 1;
    codec_tuner->decision[CLIENT_DECISION_PROBE_BYTES] = 0;
    for (uint32_t i = 0; i < codec_tuner->count; i++)
        codec_tuner->decision[CLIENT_DECISION_CHOICES + i] = step < 3 ? 1 : 2;
    codec_tuner->phase = CLIENT_CODEC_TUNER_BROADCASTING;
}

/* The choices were in force. */
static int has_changed_codecs(struct weft_session *session, const struct twin *twins_of_rank)
{
    for (int t = 0; t < TWINS; t++) {
        struct weft_choice choice = {.size = sizeof choice};
        if (strcmp(twins[t].codec, CHOICE) != 0) continue;
        MUST(session, weft_choice_get(twins_of_rank[t].tensor[1], &choice));
        if (choice.changes < 2 || strncmp(choice.codec, "topk", 4) != 0)
            return fprintf(stderr, "twin %d: %u changes, codec %s\n", t, choice.changes, choice.codec);
    }
    return 0;
}

/* Weights of all-reduce mode are updated on the device. A save moves the optimiser's arrays to the host, and
 * the bytes are those of the twin; the next step moves them back. */
static int has_device_updates(struct weft_session *session, const struct place *place,
                              struct twin *twins_of_rank)
{
    for (int t = 0; t < TWINS; t++) {
        struct weft_tensor *const *tensor = twins_of_rank[t].tensor;
        if (twins[t].mode != WEFT_MODE_ALL_REDUCE || strcmp(twins[t].optimizer, "none") == 0) continue;
        const bool expected = place->on_device && device_kind == WEFT_MEMORY_CUDA;
        if (client_update_is_on_device(tensor[1]) != expected)
            return fprintf(stderr, "twin %d: its update is %s the device\n", t, expected ? "not on" : "on");
        const uint64_t bytes = weft_state_bytes(tensor[1]);
        uint8_t *saved[2] = {malloc(bytes), malloc(bytes)};
        assert_true(saved[0] && saved[1]);
        for (int k = 0; k < 2; k++) MUST(session, weft_state_save(tensor[k], saved[k], bytes));
        const bool is_equal = memcmp(saved[0], saved[1], bytes) == 0;
        free(saved[0]), free(saved[1]);
        if (!is_equal) return fprintf(stderr, "twin %d: other arrays of the optimiser\n", t);
        if (client_update_is_on_device(tensor[1])) return fprintf(stderr, "twin %d: arrays not moved\n", t);
    }
    return 0;
}

/* A step of one tensor: fewer than `limit` bytes cross the bus. */
static int few_bytes(struct weft_session *session, const struct place *place, uint32_t rank,
                     struct twin *twin, uint64_t step, uint64_t limit)
{
    MUST(session, weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1}));
    fill((uint8_t *)twin->grad, TENSOR_ELEMS, WEFT_F32, seed + rank);
    buffer_write(place, &twin->from, twin->grad, &twin->kernels[0]);
    fake_cuda_synchronize();
    const uint64_t before = fake_cuda_copied_bytes();
    MUST(session, weft_tensor_on_stream(twin->tensor[1], false));
    MUST(session, weft_push_pull(twin->tensor[1], twin->from.memory, twin->to.memory, &twin->requests[1]));
    MUST(session, weft_push_pull(twin->tensor[0], twin->grad, twin->out, &twin->requests[0]));
    for (int k = 0; k < 2; k++) MUST(session, weft_wait(&twin->requests[k], 0));
    MUST(session, weft_step_end(session));
    fake_cuda_synchronize();
    const uint64_t bytes = fake_cuda_copied_bytes() - before;
    if (device_kind != WEFT_MEMORY_CUDA) return 0; /* the other kind has no kernels */
    if (bytes < limit) return 0;
    return fprintf(stderr, "%llu bytes of a tensor crossed the bus in step %llu\n", (unsigned long long)bytes,
                   (unsigned long long)step);
}

static int train(struct fleet *fleet, uint32_t rank)
{
    static struct twin all[TWINS];
    struct weft_session *session;
    struct place place;
    fake_cuda_setup(seed, 300, 2);
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    place_open(&place, rank);
    int rc = 0;
    for (int t = 0; t < TWINS && rc == 0; t++) rc = declare_twin(session, &place, t, &all[t]);
    for (uint64_t step = 1; step <= STEPS && rc == 0; step++) {
        float weight = step == 2 ? (float)(rank + 1) : 1.0f;
        MUST(session,
             weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = weight}));
        for (int t = 0; t < TWINS && rc == 0; t++) rc = step_of(session, &place, rank, t, step, &all[t]);
        MUST(session, weft_step_end(session));
        force_choice(session, step);
        for (int t = 0; t < TWINS && rc == 0; t++) rc = same_twins(&place, t, step, &all[t]);
        if (rc == 0 && step == 2) rc = has_device_updates(session, &place, all);
    }
    if (rc == 0) rc = has_changed_codecs(session, all);
    /* encoded bytes; gradient and sum, but no weights */
    if (rc == 0) rc = few_bytes(session, &place, rank, &all[SERVED_INT4], STEPS + 1, 2 * TENSOR_ELEMS);
    if (rc == 0)
        rc = few_bytes(session, &place, rank, &all[DENSE_ADAM], STEPS + 2, 2 * 4 * TENSOR_ELEMS + 64);
    MUST(session, weft_finalize(session));
    for (int t = 0; t < TWINS && rc == 0; t++) buffer_free(&all[t].from), buffer_free(&all[t].to);
    place_close(&place);
    if (rc == 0 && fake_cuda_live_count() != 0)
        rc = fprintf(stderr, "%d things of the device's are left\n", fake_cuda_live_count());
    if (rc == 0 && fake_cuda_unpinned_copies() != 0)
        rc = fprintf(stderr, "%d copies of memory that was not pinned\n", fake_cuda_unpinned_copies());
    return rc;
}

/* A bit of the weights on rank 0's device flips: every rank gets an error with the tensor and the rank at
 * the next comparison, also rank 1, whose weights are in host memory. */
static int diverge(struct fleet *fleet, uint32_t rank)
{
    static struct twin twin;
    struct weft_session *session;
    struct place place;
    enum weft_status status = WEFT_OK;
    uint64_t step = 0;
    fake_cuda_setup(seed, 300, 2);
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    place_open(&place, rank);
    if (declare_twin(session, &place, DENSE_ADAM, &twin) != 0) return 1;
    while (status >= 0 && ++step <= 2 * STEPS) {
        fill((uint8_t *)twin.grad, TENSOR_ELEMS, WEFT_F32, seed + step * 64 + rank);
        buffer_write(&place, &twin.from, twin.grad, &twin.kernels[0]);
        MUST(session, weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1}));
        MUST(session, weft_push_pull(twin.tensor[1], twin.from.memory, twin.to.memory, &twin.requests[1]));
        MUST(session, weft_wait(&twin.requests[1], 0));
        fake_cuda_synchronize();
        if (rank == 0 && step == 2 * STEPS) *(uint8_t *)fake_cuda_shadow(twin.to.memory) ^= 1;
        MUST(session, weft_push_none(twin.tensor[0]));
        status = weft_step_end(session);
    }
    const bool is_right = status == WEFT_ERR_DIVERGED && step == 2 * STEPS &&
                          strstr(weft_error_text(session), "rank 0") &&
                          strstr(weft_error_text(session), "'twin 1 on device'");
    if (!is_right)
        fprintf(stderr, "rank %u, step %llu: status %d: %s\n", rank, (unsigned long long)step, status,
                weft_error_text(session));
    weft_finalize(session);
    buffer_free(&twin.from), buffer_free(&twin.to);
    place_close(&place);
    return is_right ? 0 : 1;
}

static void test_weights_differ(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, 0, diverge, &result, NULL));
}

/* First, because it forks: the process must have no threads. */
static void test_tensors(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, 1, train, &result, NULL));
    assert_int_equal(result.shard_status[0], 0);
}

/* A kernel or a copy of an encode in server mode is refused on rank 0: all ranks get an error, none hangs. */
static int fails_to_encode(struct fleet *fleet, uint32_t rank)
{
    static float grad[TENSOR_ELEMS];
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_request request = {{0}};
    struct place place = {.on_device = true};
    struct kernel writing;
    struct weft_tensor_options options;
    fake_cuda_setup(seed, 100, 1);
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    assert_int_equal(cudaStreamCreateWithFlags(&place.stream, 0), 0);
    struct buffer buffer = buffer_new(&place, sizeof grad);
    weft_tensor_options_init(&options);
    options.name = "t", options.dim_count = 1, options.dims[0] = TENSOR_ELEMS;
    options.mode = WEFT_MODE_SERVER, options.codec = "int8", options.chunk_bytes = 4096;
    MUST(session, weft_declare(session, &options, &tensor));
    MUST(session, weft_tensor_memory(tensor, WEFT_MEMORY_CUDA, place.stream));
    enum weft_status ended = WEFT_OK;
    for (uint64_t step = 1; step <= 2 && ended >= 0; step++) {
        ended = weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1});
        if (step == 1) MUST(session, ended);
        if (ended < 0) break; /* in step 2 rank 0 may have failed before */
        buffer_write(&place, &buffer, grad, &writing);
        fake_cuda_synchronize();
        if (step == 2 && rank == 0 && seed % 2) fake_cuda_fail_launch(1);
        if (step == 2 && rank == 0 && seed % 2 == 0) fake_cuda_fail_copy(1);
        ended = weft_push_pull(tensor, buffer.memory, buffer.memory, &request);
        if (ended >= 0) ended = weft_wait(&request, 0);
        if (step == 1) MUST(session, weft_step_end(session));
    }
    const char *const words = seed % 2 ? "could not be queued" : "cudaErrorIllegalAddress";
    if (ended >= 0 || (rank == 0 && !strstr(weft_error_text(session), words)))
        return fprintf(stderr, "rank %u: %d: %s\n", rank, ended, weft_error_text(session));
    weft_finalize(session); /* the session has ended */
    return 0;
}

static void test_encode_fails(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(2, 1, fails_to_encode, &result, NULL));
}

/* ---- refused calls and failures ---- */

static void misuse(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    float host[4] = {0};
    void *memory[2];
    int before;
    struct weft_request request = {{0}};
    cudaGetDevice(&before);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(cudaSetDevice(d), 0);
        assert_int_equal(cudaMalloc(&memory[d], 16), 0);
    }
    cudaSetDevice(before);
    CROWD_REFUSED(crowd, session,
                  weft_call_start(session,
                                  WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = host, .out = memory[0],
                                            .count = 4, .dtype = WEFT_F32, .memory = device_kind),
                                  &request),
                  WEFT_ERR_INVALID, "`in` at");
    CROWD_REFUSED(crowd, session,
                  weft_call_start(session,
                                  WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = memory[1], .out = memory[0],
                                            .count = 4, .dtype = WEFT_F32, .memory = device_kind),
                                  &request),
                  WEFT_ERR_UNSUPPORTED, "`in` lies on device 1 and `out` on device 0");
    CROWD_REFUSED(crowd, session,
                  weft_call_start(session,
                                  WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = host, .out = host, .count = 4,
                                            .dtype = WEFT_F32, .memory = (enum weft_memory_kind)9),
                                  &request),
                  WEFT_ERR_INVALID, "memory 9");
    void *per_thread = (void *)2, *captured;
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = memory[0],
                             .out = memory[0],
                             .count = 4,
                             .dtype = WEFT_F32,
                             .memory = device_kind,
                             .stream = per_thread};
    CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_INVALID,
                  "cudaStreamPerThread is another stream");
    if (rank == 0) {
        assert_int_equal(cudaStreamCreateWithFlags(&captured, 0), 0);
        fake_cuda_capture(call.stream = captured);
        CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_UNSUPPORTED,
                      "is being captured into a graph");
        fake_cuda_capture(NULL);
        cudaStreamDestroy(captured);
    }
    /* the refused calls took no place in the order of operations */
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    for (int d = 0; d < 2; d++) cudaFree(memory[d]);
}

static void test_misuse(void **state)
{
    struct crowd crowd = {0};
    fake_cuda_setup(1, 0, 2);
    crowd_run(&crowd, 2, misuse);
    assert_int_equal(crowd.failures, 0);
    assert_int_equal(fake_cuda_live_count(), 0);
}

static _Atomic bool gate;
static void hold(void *context)
{
    while (!atomic_load(&gate)) usleep(100);
}

/* A stream that does not progress blocks the operation, and the sentence names that. */
static void held(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct place place;
    struct weft_request request = {{0}};
    struct kernel reading[2];
    float got[2] = {0}, zero[2] = {1, 2};
    struct kernel writing;
    place_open(&place, rank);
    struct buffer buffer = buffer_new(&place, sizeof got);
    if (rank == 0) assert_int_equal(fake_cuda_launch(place.stream, hold, NULL), 0);
    buffer_write(&place, &buffer, zero, &writing);
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = buffer.memory,
                             .out = buffer.memory,
                             .count = 2,
                             .dtype = WEFT_F32};
    if (place.on_device) call.memory = device_kind, call.stream = place.stream;
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    if (rank == 0) {
        CROWD_REFUSED(crowd, session, weft_wait(&request, 20), WEFT_ERR_DEADLINE,
                      "waits for the work before it on its device stream");
        atomic_store(&gate, true);
    }
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    buffer_read(&place, &buffer, got, reading);
    CROWD_CHECK(crowd, session, got[0] == 3 && got[1] == 6);
    buffer_free(&buffer);
    place_close(&place);
}

static void test_held(void **state) { run_seed(held); }

static _Atomic bool other_gate;
static void hold_other(void *context)
{
    while (!atomic_load(&other_gate)) usleep(100);
}

/* A blocked stream of one call does not block the result of the previous call on another stream. */
static void stuck_neighbour(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { LOOKS = 50000 }; /* of 0.2 ms and more: reached only by a failure */
    struct place place = {.on_device = true};
    struct weft_request first = {{0}}, second = {{0}};
    static struct kernel writing[2][2], reading[2];
    static int64_t source[2][10], got[2][10];
    void *stuck = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&place.stream, 0), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&stuck, 0), 0);
    struct buffer a = buffer_new(&place, sizeof source[0]), b = buffer_new(&place, sizeof source[0]);
    source[rank][0] = 5;
    buffer_write(&place, &a, source[rank], &writing[rank][0]);
    buffer_write(&place, &b, source[rank], &writing[rank][1]);
    while (!atomic_load(&writing[rank][1].ran)) usleep(100);
    if (rank == 0) assert_int_equal(fake_cuda_launch(stuck, hold_other, NULL), 0);
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = a.memory,
                             .out = a.memory,
                             .count = 10,
                             .dtype = WEFT_I64,
                             .memory = device_kind,
                             .stream = place.stream},
                     next = call;
    next.in = next.out = b.memory;
    next.stream = stuck;
    /* the first call completes after the second has begun */
    if (rank == 1) pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_call_start(session, &call, &first));
    CROWD_OK(crowd, session, weft_call_start(session, &next, &second));
    if (rank == 0) pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_wait(&first, 0));
    reading[rank] = (struct kernel){.to = got[rank], .from = a.memory, .bytes = a.bytes};
    assert_int_equal(fake_cuda_launch(place.stream, run_kernel, &reading[rank]), 0);
    for (int i = 0; i < LOOKS && !atomic_load(&reading[rank].ran); i++) usleep(200);
    CROWD_CHECK(crowd, session, atomic_load(&reading[rank].ran) && got[rank][0] == 10);
    if (rank == 0) atomic_store(&other_gate, true);
    CROWD_OK(crowd, session, weft_wait(&second, 0));
    fake_cuda_synchronize();
    buffer_free(&a);
    buffer_free(&b);
    cudaStreamDestroy(place.stream);
    cudaStreamDestroy(stuck);
}

static void test_stuck_neighbour(void **state)
{
    struct crowd crowd = {0};
    fake_cuda_setup(1, 100, 2);
    crowd_run(&crowd, 2, stuck_neighbour);
    assert_int_equal(crowd.failures, 0);
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* A device hangs with an update of the weights queued: the end of the session does not wait for it. Its
 * arrays are then leaked, because the device may still write to them. */
static void hanging_update(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float first_weights[2][1000];
    struct place place = {.on_device = true};
    struct weft_request request = {{0}};
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    assert_int_equal(cudaStreamCreateWithFlags(&place.stream, 0), 0);
    struct buffer grad = buffer_new(&place, 1000 * sizeof(float)), weights = buffer_new(&place, grad.bytes);
    weft_tensor_options_init(&options);
    options.name = "t", options.dim_count = 1, options.dims[0] = 1000;
    options.mode = WEFT_MODE_ALL_REDUCE, options.codec = "dense", options.optimizer = "sgd";
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    CROWD_OK(crowd, session, weft_tensor_init(tensor, first_weights[rank]));
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, device_kind, place.stream));
    for (uint64_t step = 1; step <= 2; step++) {
        fake_cuda_synchronize();
        pthread_barrier_wait(&crowd->meet);
        fake_cuda_hang(step == 2);
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1}));
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad.memory, weights.memory, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0)); /* the update is queued */
        CROWD_OK(crowd, session, weft_step_end(session));
    }
}

static void test_hanging_update(void **state)
{
    if (WEFT_ADDRESS_SANITIZER) skip(); /* which reports the leak */
    struct crowd crowd = {0};
    const int before = fake_cuda_hung_calls();
    fake_cuda_setup(1, 100, 2);
    crowd_run(&crowd, 2, hanging_update);
    fake_cuda_hang(false);
    fake_cuda_synchronize();
    assert_int_equal(crowd.failures, 0);
    assert_int_equal(fake_cuda_hung_calls(), before);
}

/* All ranks on device 1, and no caller waits: the engine thread, whose current device is 0 at first,
 * creates no context on device 0. */
static void note(void *context, enum weft_status status)
{
    (void)status; /* weft_wait returns it */
    atomic_store((_Atomic bool *)context, true);
}

static void other_device(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct place place = {.on_device = true, .device = 1};
    struct weft_request request = {{0}};
    struct kernel writing, reading[2];
    static int64_t source[2][COUNT_MAX], got[2][COUNT_MAX];
    _Atomic bool done = false;
    assert_int_equal(cudaSetDevice(1), 0);
    struct buffer buffer = buffer_new(&place, sizeof source[0]);
    for (int i = 0; i < COUNT_MAX; i++) source[rank][i] = i;
    buffer_write(&place, &buffer, source[rank], &writing);
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = buffer.memory,
                             .out = buffer.memory,
                             .count = COUNT_MAX,
                             .dtype = WEFT_I64,
                             .memory = device_kind,
                             .completed = note,
                             .context = &done};
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    while (!atomic_load(&done)) usleep(100);
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    buffer_read(&place, &buffer, got[rank], reading);
    bool right = true;
    for (int i = 0; i < COUNT_MAX; i++) right = right && got[rank][i] == 2 * i;
    CROWD_CHECK(crowd, session, right);
    buffer_free(&buffer);
}

static void test_other_device(void **state)
{
    struct crowd crowd = {0};
    fake_cuda_setup(1, 100, 2);
    crowd_run(&crowd, 2, other_device);
    assert_int_equal(crowd.failures, 0);
    assert_int_equal(fake_cuda_contexts(), 1u << 1);
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* A failed copy ends the session on all ranks with a sentence, whichever copy fails; no call hangs. */
static void copy_fails(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct place place;
    struct weft_request request = {{0}};
    enum weft_status status = WEFT_OK;
    place_open(&place, rank);
    struct buffer buffer = buffer_new(&place, COUNT_MAX * sizeof(float));
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) fake_cuda_fail_copy(*(int *)crowd->user);
    pthread_barrier_wait(&crowd->meet);
    struct weft_call call = {.size = sizeof call,
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = buffer.memory,
                             .out = buffer.memory,
                             .count = COUNT_MAX,
                             .dtype = WEFT_F32};
    if (place.on_device) call.memory = device_kind, call.stream = place.stream;
    for (int round = 0; status >= 0; round++) { /* a failed last copy is detected after the call was done */
        status = weft_call_start(session, &call, &request);
        if (status >= 0) status = weft_wait(&request, 0);
    }
    CROWD_CHECK(crowd, session,
                strstr(weft_error_text(session),
                       device_kind == WEFT_MEMORY_CUDA ? "cudaErrorIllegalAddress" : "answered 700") != NULL);
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) fake_cuda_reset(); /* the fake runtime has one context for all ranks */
    pthread_barrier_wait(&crowd->meet);
    buffer_free(&buffer);
    place_close(&place);
}

static _Atomic bool coded_gate;
static void hold_coded(void *context)
{
    while (!atomic_load(&coded_gate)) usleep(100);
}

/* A codec on the device starts after the work before the call on its stream, and later work on the stream
 * sees the result. */
static void coded(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { CODED_STEPS = 8 };
    static float grad[RANKS][COUNT_MAX], out[RANKS][COUNT_MAX], seen[RANKS][COUNT_MAX];
    struct place place;
    struct weft_tensor *tensors[2]; /* host, device */
    struct weft_request requests[2] = {{{0}}};
    struct kernel writing, reading[2];
    place_open(&place, rank);
    struct buffer from = buffer_new(&place, sizeof grad[0]), to = buffer_new(&place, sizeof out[0]);
    for (int k = 0; k < 2; k++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = k ? "device" : "host";
        options.dim_count = 1;
        options.dims[0] = COUNT_MAX;
        options.codec = "int8";
        CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[k]));
        twin_draws(tensors[k], tensors[0]);
    }
    if (place.on_device) CROWD_OK(crowd, session, weft_tensor_memory(tensors[1], device_kind, place.stream));
    for (uint64_t step = 1; step <= CODED_STEPS; step++) {
        const bool held = rank == 0 && step == 2;
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}));
        fill((uint8_t *)grad[rank], COUNT_MAX, WEFT_F32, step * 64 + rank);
        if (held) assert_int_equal(fake_cuda_launch(place.stream, hold_coded, NULL), 0);
        buffer_write(&place, &from, grad[rank], &writing);
        CROWD_OK(crowd, session, weft_push_pull(tensors[1], from.memory, to.memory, &requests[1]));
        CROWD_OK(crowd, session, weft_push_pull(tensors[0], grad[rank], out[rank], &requests[0]));
        if (held)
            CROWD_REFUSED(crowd, session, weft_wait(&requests[1], 20), WEFT_ERR_DEADLINE,
                          "waits for the work before it on its device stream");
        if (held) atomic_store(&coded_gate, true);
        CROWD_OK(crowd, session, weft_wait(&requests[1], 0));
        buffer_read(&place, &to, seen[rank], reading);
        CROWD_OK(crowd, session, weft_step_end(session));
        CROWD_CHECK(crowd, session, memcmp(seen[rank], out[rank], sizeof out[0]) == 0);
    }
    buffer_free(&from);
    buffer_free(&to);
    place_close(&place);
}

static void test_coded(void **state)
{
    struct crowd crowd = {0};
    fake_cuda_setup(1, 300, 2);
    crowd_run(&crowd, RANKS, coded);
    assert_int_equal(crowd.failures, 0);
    fake_cuda_synchronize();
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* The same for codecs and their kernels: n is odd for those. */
static void coding_fails(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct place place;
    struct weft_request request = {{0}};
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    enum weft_status status = WEFT_OK;
    const int n = *(int *)crowd->user;
    static float host[COUNT_MAX];
    place_open(&place, rank);
    struct buffer buffer = buffer_new(&place, COUNT_MAX * sizeof(float));
    weft_tensor_options_init(&options);
    options.name = "t";
    options.dim_count = 1;
    options.dims[0] = COUNT_MAX;
    options.codec = n % 3 ? "int8" : "topk:ratio=0.1";
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    if (place.on_device) {
        cudaMemcpyAsync(buffer.memory, host, sizeof host, 0, place.stream);
        CROWD_OK(crowd, session, weft_tensor_memory(tensor, device_kind, place.stream));
    }
    fake_cuda_synchronize();
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0 && n % 2) fake_cuda_fail_launch(n / 2 + 1);
    if (rank == 0 && n % 2 == 0) fake_cuda_fail_copy(n / 2);
    pthread_barrier_wait(&crowd->meet);
    for (uint64_t step = 1; status >= 0 && step <= 100; step++) { /* a bound, should no kernel fail */
        status = weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1});
        if (status >= 0) status = weft_push_pull(tensor, buffer.memory, buffer.memory, &request);
        /* the trainer reports a call that cannot be made */
        if (status < 0) weft_abort(session, weft_error_text(session));
        if (status >= 0) status = weft_step_end(session);
    }
    if (!CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "CUDA") != NULL))
        fprintf(stderr, "n %d: %s\n", n, weft_error_text(session));
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) fake_cuda_reset();
    pthread_barrier_wait(&crowd->meet);
    buffer_free(&buffer);
    place_close(&place);
}

static void test_coding_fails(void **state)
{
    for (int n = 1; n <= 24; n += 1) {
        struct crowd crowd = {.user = &n};
        fake_cuda_setup((uint64_t)n, 50, 2);
        crowd_run(&crowd, RANKS, coding_fails);
        assert_int_equal(crowd.failures, 0);
        assert_int_equal(fake_cuda_live_count(), 0);
    }
}

static void test_copy_fails(void **state)
{
    for (int n = 1; n <= 20; n += 3) { /* 5 pieces down and up on two ranks: 20 copies */
        struct crowd crowd = {.user = &n};
        fake_cuda_setup((uint64_t)n, 100, 2);
        crowd_run(&crowd, RANKS, copy_fails);
        assert_int_equal(crowd.failures, 0);
        assert_int_equal(fake_cuda_live_count(), 0);
    }
}

int main(int argc, char **argv)
{
    uint64_t seeds = 2, first = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seeds") == 0) seeds = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--first") == 0) first = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--kind") == 0) device_kind = WEFT_MEMORY_DEVICE;
    }
    const struct CMUnitTest seeded[] = {
        cmocka_unit_test(test_every_operation),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_back_to_back),
        cmocka_unit_test(test_spans),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_stuck_neighbour),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_copy_fails),
    };
    const struct CMUnitTest of_cuda[] = {
        /* kernels, and streams that only CUDA has */
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_coded),
        cmocka_unit_test(test_coding_fails),
    };
    const struct CMUnitTest hanging[] = {cmocka_unit_test(test_hanging_update)};
    const bool cuda = device_kind == WEFT_MEMORY_CUDA;
    if (cuda) setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    else setenv("WEFT_DEVICE_RUNTIME", FAKE_DEVICE, 1);
    setenv("WEFT_CUDA_KERNELS", FAKE_KERNELS, 1);
    setenv("WEFT_CLIENT_PIECE_BYTES", "4KiB", 1);
    setenv("WEFT_CLIENT_HASH_EVERY", "5", 1); /* weights in the last step of test_tensors */
    const struct CMUnitTest forking[] = {cmocka_unit_test(test_tensors),
                                         cmocka_unit_test(test_weights_differ)};
    const struct CMUnitTest forking_of_cuda[] = {cmocka_unit_test(test_encode_fails)};
    int failed = 0;
    for (seed = 1; seed <= 2 && cuda; seed++) failed += cmocka_run_group_tests(forking_of_cuda, NULL, NULL);
    for (seed = first; seed < first + seeds; seed++) failed += cmocka_run_group_tests(forking, NULL, NULL);
    for (seed = first; seed < first + seeds; seed++) failed += cmocka_run_group_tests(seeded, NULL, NULL);
    if (cuda) failed += cmocka_run_group_tests(of_cuda, NULL, NULL);
    failed += cmocka_run_group_tests(others, NULL, NULL);
    if (cuda) failed += cmocka_run_group_tests(hanging, NULL, NULL); /* leaves things of the device */
    return failed;
}
