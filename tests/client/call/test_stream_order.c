/* test_stream_order.c - stream-ordered calls (weft_call.on_stream) over a CUDA runtime without a device
 * (tests/lib/fake_cuda). The caller queues calls and the kernels that read their results, and waits for none
 * of them: only the streams order the work. Several sessions in one process.
 *
 *    test_client_stream_order [--seeds N] [--first N] */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/client/crowd.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

enum { RANKS = 2, ELEMS = 5000, ROUNDS = 3, LOOKS = 40000 };

static uint64_t seed;

/* A kernel of the trainer on (count,) int64. */
struct kernel {
    enum { SET, READ, ADD, COUNT_COPIES } what; /* COUNT_COPIES: value = bytes copied so far */
    int64_t *device, *host, value;
    size_t count;
    _Atomic bool ran;
};

static void run_kernel(void *context)
{
    struct kernel *kernel = context;
    if (kernel->what == COUNT_COPIES) kernel->value = (int64_t)fake_cuda_copied_bytes();
    int64_t *memory = fake_cuda_shadow(kernel->device);
    for (size_t i = 0; i < kernel->count; i++) {
        if (kernel->what == SET) memory[i] = kernel->value + (int64_t)i;
        else if (kernel->what == READ) kernel->host[i] = memory[i];
        else memory[i] += kernel->value;
    }
    atomic_store(&kernel->ran, true);
}

/* Polls at least LOOKS times 0.1 ms: false only by a failure. */
static bool has_run(struct kernel *kernel)
{
    for (int i = 0; i < LOOKS && !atomic_load(&kernel->ran); i++) usleep(100);
    return atomic_load(&kernel->ran);
}

static _Atomic bool gates[RANKS];
static void hold(void *context)
{
    while (!atomic_load((_Atomic bool *)context)) usleep(100);
}

static void launch(void *stream, struct kernel *kernel)
{
    assert_int_equal(fake_cuda_launch(stream, run_kernel, kernel), 0);
}

static int64_t *device_alloc(size_t count)
{
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, count * sizeof(int64_t)), 0);
    return memory;
}

static struct weft_call sum_of(int64_t *memory, uint64_t count, void *stream)
{
    return (struct weft_call){.size = sizeof(struct weft_call),
                              .kind = WEFT_CALL_ALL_REDUCE,
                              .in = memory,
                              .out = memory,
                              .count = count,
                              .dtype = WEFT_I64,
                              .memory = WEFT_MEMORY_CUDA,
                              .stream = stream,
                              .on_stream = true};
}

/* ---- a chain of calls on one stream ---- */

/* x = 1..: x = sum(x); x += 1; x = sum(x) ... Each call needs the result of the one before, and each has
 * more pieces than windows, so a copy that waits for a later place of the stream would end in a deadlock.
 * The buffer is overwritten behind the last reader. */
static void chain(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS][2 * ROUNDS + 4];
    static int64_t got[RANKS][ELEMS];
    struct kernel *mine = kernels[rank];
    struct weft_request requests[ROUNDS] = {{{0}}};
    void *stream = NULL;
    int k = 0;
    memset(mine, 0, sizeof kernels[rank]);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    int64_t *x = device_alloc(ELEMS);
    mine[k] = (struct kernel){.what = SET, .device = x, .value = rank, .count = ELEMS};
    launch(stream, &mine[k++]);
    for (int round = 0; round < ROUNDS; round++) {
        const struct weft_call call = sum_of(x, ELEMS, stream);
        CROWD_OK(crowd, session, weft_call_start(session, &call, &requests[round]));
        mine[k] = (struct kernel){.what = ADD, .device = x, .value = 1, .count = ELEMS};
        launch(stream, &mine[k++]);
    }
    mine[k] = (struct kernel){.what = READ, .device = x, .host = got[rank], .count = ELEMS};
    launch(stream, &mine[k++]);
    mine[k] = (struct kernel){.what = SET, .device = x, .value = -7, .count = ELEMS};
    launch(stream, &mine[k]);
    CROWD_CHECK(crowd, session, has_run(&mine[k]));
    bool right = true;
    for (int64_t i = 0; i < ELEMS; i++) {
        int64_t a = i, b = i + 1; /* on rank 0 and 1 */
        for (int round = 0; round < ROUNDS; round++) a = b = a + b + 1;
        right = right && got[rank][i] == a;
    }
    if (!CROWD_CHECK(crowd, session, right)) fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < ROUNDS; round++) CROWD_OK(crowd, session, weft_wait(&requests[round], 0));
    cudaFree(x);
    cudaStreamDestroy(stream);
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

/* ---- tensors ---- */

enum { TENSORS = 2, STEPS = 4 };

/* The ranks begin with 1 and 2. Each step computes their mean, then adds one. */
static bool is_mean_of_steps(const float *values)
{
    float a = 1, b = 2; /* on rank 0 and 1 */
    for (int step = 0; step < STEPS; step++) a = b = (a + b) / 2 + 1;
    for (int i = 0; i < ELEMS; i++)
        if (values[i] != a) return false;
    return true;
}

static void add_one(void *context)
{
    const struct kernel *kernel = context;
    float *memory = fake_cuda_shadow(kernel->device);
    for (size_t i = 0; i < kernel->count; i++) memory[i] += 1;
}

static void set_floats(void *context)
{
    const struct kernel *kernel = context;
    float *memory = fake_cuda_shadow(kernel->device);
    for (size_t i = 0; i < kernel->count; i++) memory[i] = (float)kernel->value;
}

static void read_floats(void *context)
{
    struct kernel *kernel = context;
    memcpy(kernel->host, fake_cuda_shadow(kernel->device), kernel->count * sizeof(float));
    atomic_store(&kernel->ran, true);
}

/* The input of the second tensor of a step is the result of the first; that of the next step, the
 * second's. Steps deliver late: no call waits for a result before the last step has ended. */
static void late_steps(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS], reading[RANKS];
    static float got[RANKS][ELEMS];
    static const char *const codecs[TENSORS] = {"dense", "f16"};
    struct weft_request requests[TENSORS] = {{{0}}};
    struct weft_tensor *tensors[TENSORS];
    void *stream = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    int64_t *x = device_alloc(ELEMS);
    kernels[rank] = (struct kernel){.device = x, .count = ELEMS, .value = rank + 1};
    reading[rank] = (struct kernel){.device = x, .count = ELEMS, .host = (int64_t *)(void *)got[rank]};
    for (int t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = t ? "b" : "a", options.dim_count = 1, options.dims[0] = ELEMS;
        options.codec = codecs[t];
        CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[t]));
        CROWD_OK(crowd, session, weft_tensor_memory(tensors[t], WEFT_MEMORY_CUDA, stream));
        CROWD_OK(crowd, session, weft_tensor_on_stream(tensors[t], true));
    }
    assert_int_equal(fake_cuda_launch(stream, set_floats, &kernels[rank]), 0);
    for (uint64_t step = 1; step <= STEPS; step++) {
        CROWD_OK(crowd, session,
                 weft_step_begin_with(session,
                                      WEFT_STEP(.step = step, .lr = 1, .weight = 1, .deliver_late = true)));
        for (int t = 0; t < TENSORS; t++)
            CROWD_OK(crowd, session, weft_push_pull(tensors[t], x, x, &requests[t]));
        assert_int_equal(fake_cuda_launch(stream, add_one, &kernels[rank]), 0);
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    assert_int_equal(fake_cuda_launch(stream, read_floats, &reading[rank]), 0);
    if (!CROWD_CHECK(crowd, session, has_run(&reading[rank]) && is_mean_of_steps(got[rank])))
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    CROWD_OK(crowd, session, weft_step_wait(session));
    cudaFree(x);
    cudaStreamDestroy(stream);
}

/* ---- a plain call behind a stream-ordered one ---- */

/* The second call is on another stream that waits for the first one's. Its copies must not block those of the
 * first call, which has more pieces than windows. A broadcast has no input on rank 1. */
static void behind(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS][4];
    static int64_t got[RANKS][ELEMS];
    struct kernel *mine = kernels[rank];
    struct weft_request first = {{0}}, second = {{0}};
    void *streams[2], *event = NULL;
    memset(mine, 0, sizeof kernels[rank]);
    for (int s = 0; s < 2; s++) assert_int_equal(cudaStreamCreateWithFlags(&streams[s], 0), 0);
    assert_int_equal(cudaEventCreateWithFlags(&event, 0), 0);
    int64_t *x = device_alloc(ELEMS), *y = device_alloc(ELEMS);
    mine[0] = (struct kernel){.what = SET, .device = x, .value = rank, .count = ELEMS};
    launch(streams[0], &mine[0]);
    struct weft_call call = sum_of(x, ELEMS, streams[0]);
    CROWD_OK(crowd, session, weft_call_start(session, &call, &first));
    assert_int_equal(cudaEventRecord(event, streams[0]), 0);
    assert_int_equal(cudaStreamWaitEvent(streams[1], event, 0), 0);
    mine[1] = (struct kernel){.what = SET, .device = y, .value = 40 + rank, .count = ELEMS};
    launch(streams[1], &mine[1]);
    call = sum_of(y, ELEMS, streams[1]);
    call.kind = WEFT_CALL_BROADCAST;
    call.on_stream = false;
    CROWD_OK(crowd, session, weft_call_start(session, &call, &second));
    CROWD_OK(crowd, session, weft_wait(&second, 0));
    mine[2] = (struct kernel){.what = READ, .device = y, .host = got[rank], .count = ELEMS};
    launch(streams[1], &mine[2]);
    CROWD_CHECK(crowd, session,
                has_run(&mine[2]) && got[rank][0] == 40 && got[rank][ELEMS - 1] == 40 + ELEMS - 1);
    mine[3] = (struct kernel){.what = READ, .device = x, .host = got[rank], .count = ELEMS};
    launch(streams[0], &mine[3]);
    CROWD_CHECK(crowd, session, has_run(&mine[3]) && got[rank][0] == 1 && got[rank][3000] == 6001);
    CROWD_OK(crowd, session, weft_wait(&first, 0));
    cudaFree(x);
    cudaFree(y);
    cudaEventDestroy(event);
    for (int s = 0; s < 2; s++) cudaStreamDestroy(streams[s]);
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void run_seed(crowd_fn fn)
{
    struct crowd crowd = {0};
    fake_cuda_setup(seed, seed % 4 == 0 ? 0 : 300, 1);
    int before = fake_cuda_live_count();
    crowd_run(&crowd, RANKS, fn);
    if (crowd.failures)
        fprintf(stderr, "again: test_client_stream_order --seeds 1 --first %llu\n", (unsigned long long)seed);
    assert_int_equal(crowd.failures, 0);
    fake_cuda_synchronize();
    assert_int_equal(fake_cuda_live_count(), before);
}

static void test_chain(void **state)
{
    run_seed(chain);
}
static void test_late_steps(void **state)
{
    run_seed(late_steps);
}

static void test_behind(void **state)
{
    run_seed(behind);
}

/* ---- the host does not wait, and the stream does ---- */

static void not_blocked(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS][2];
    static int64_t got[RANKS][10];
    struct kernel *mine = kernels[rank];
    struct weft_request request = {{0}};
    void *stream = NULL;
    memset(mine, 0, sizeof kernels[rank]);
    atomic_store(&gates[rank], false);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    int64_t *x = device_alloc(10);
    if (rank == 0) assert_int_equal(fake_cuda_launch(stream, hold, &gates[0]), 0);
    mine[0] = (struct kernel){.what = SET, .device = x, .value = rank, .count = 10};
    launch(stream, &mine[0]);
    const struct weft_call call = sum_of(x, 10, stream);
    if (rank == 1) pthread_barrier_wait(&crowd->meet); /* rank 0 has called, and its stream runs */
    CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    mine[1] = (struct kernel){.what = READ, .device = x, .host = got[rank], .count = 10};
    launch(stream, &mine[1]);
    if (rank == 0) {
        CROWD_CHECK(crowd, session, !atomic_load(&mine[0].ran)); /* the call has returned before its input */
        atomic_store(&gates[0], true);
        CROWD_CHECK(crowd, session, has_run(&mine[0]));
        CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_IN_PROGRESS);
        CROWD_CHECK(crowd, session, !atomic_load(&mine[1].ran)); /* rank 1 has not called */
        pthread_barrier_wait(&crowd->meet);
    }
    CROWD_CHECK(crowd, session, has_run(&mine[1]) && got[rank][9] == 19);
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    cudaFree(x);
    cudaStreamDestroy(stream);
}

static void test_not_blocked(void **state)
{
    seed = 1;
    run_seed(not_blocked);
}

/* Where the driver cannot make a stream wait for memory, the call blocks, and the order is the same. */
static void test_without_words(void **state)
{
    fake_cuda_refuse_words(true);
    run_seed(chain);
    fake_cuda_refuse_words(false);
}

/* ---- failures: the stream continues, and the session has the reason ---- */

struct failing {
    int copy;     /* of rank 0 that fails; 0: rank 1 aborts instead of calling */
    bool in_gate; /* the stream has not reached the call when the session ends */
    bool copying; /* copies from the buffer are queued then */
};

static void fails(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS][2];
    const struct failing *failing = crowd->user;
    struct kernel *mine = kernels[rank];
    struct weft_request request = {{0}};
    void *stream = NULL;
    memset(mine, 0, sizeof kernels[rank]);
    atomic_store(&gates[rank], false);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    int64_t *x = device_alloc(ELEMS);
    const uint64_t before = fake_cuda_copied_bytes();
    const struct weft_call call = sum_of(x, ELEMS, stream);
    if (failing->in_gate && rank == 0) assert_int_equal(fake_cuda_launch(stream, hold, &gates[0]), 0);
    if (failing->copy > 0 && rank == 0) fake_cuda_fail_copy(failing->copy);
    pthread_barrier_wait(&crowd->meet);
    const bool calls = rank == 0 || failing->copy > 0;
    if (calls) {
        enum weft_status status = weft_call_start(session, &call, &request);
        if (failing->copy == 0) CROWD_CHECK(crowd, session, status == WEFT_IN_PROGRESS);
        if (failing->copy == 0) {
            mine[0] = (struct kernel){.what = COUNT_COPIES};
            launch(stream, &mine[0]);
        }
    }
    pthread_barrier_wait(&crowd->meet);
    for (int i = 0; i < LOOKS && failing->copying && fake_cuda_copied_bytes() == before; i++) usleep(50);
    if (failing->copy == 0 && rank == 1)
        CROWD_OK(crowd, session, weft_abort(session, "the test ends the job"));
    enum weft_status later = WEFT_OK; /* no thread waits for the request */
    for (int i = 0; i < LOOKS && later >= 0; i++) {
        char text[1024];
        usleep(100);
        later = weft_explain(session, "all_reduce", 1, WEFT_F32, text, sizeof text);
    }
    CROWD_CHECK(crowd, session, later < 0);
    CROWD_CHECK(
        crowd, session,
        strstr(weft_error_text(session), failing->copy ? "cudaErrorIllegalAddress" : "the test ends"));
    if (rank == 0) atomic_store(&gates[0], true);
    if (failing->copy == 0 && rank == 0) {
        CROWD_CHECK(crowd, session, has_run(&mine[0]));
        fake_cuda_synchronize();
        /* the buffer is the stream's again: no copy reads it */
        CROWD_CHECK(crowd, session, (uint64_t)mine[0].value == fake_cuda_copied_bytes());
    }
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) fake_cuda_reset();
    pthread_barrier_wait(&crowd->meet);
    cudaFree(x);
    cudaStreamDestroy(stream);
}

/* The driver refuses the store that releases the stream: the host stores the word. */
static void not_released(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct kernel kernels[RANKS];
    static int64_t got[RANKS][4];
    struct weft_request request = {{0}};
    void *stream = NULL;
    memset(&kernels[rank], 0, sizeof kernels[rank]);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    int64_t *x = device_alloc(4);
    const struct weft_call call = sum_of(x, 4, stream);
    if (rank == 0) CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
    if (rank == 0) fake_cuda_refuse_words(true);
    pthread_barrier_wait(&crowd->meet);
    if (rank == 1) (void)weft_call_start(session, &call, &request);
    kernels[rank] = (struct kernel){.what = READ, .device = x, .host = got[rank], .count = 4};
    launch(stream, &kernels[rank]);
    CROWD_CHECK(crowd, session, has_run(&kernels[rank]));
    if (rank == 0)
        CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_UNSUPPORTED,
                      "was released without its result");
    pthread_barrier_wait(&crowd->meet);
    cudaFree(x);
    cudaStreamDestroy(stream);
}

static void test_not_released(void **state)
{
    run_seed(not_released);
    fake_cuda_refuse_words(false);
}

static void test_fails(void **state)
{
    const struct failing all[] = {
        {.copy = 0}, {.in_gate = true}, {.copying = true}, {.copy = 1}, {.copy = 9}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct failing failing = all[i];
        struct crowd crowd = {.user = &failing};
        fake_cuda_setup(i + 1, failing.copying ? 0 : 100, 1);
        fake_cuda_slow_copies(failing.copying ? 50000 : 0);
        crowd_run(&crowd, RANKS, fails);
        assert_int_equal(crowd.failures, 0);
        fake_cuda_synchronize();
        assert_int_equal(fake_cuda_live_count(), 0);
    }
}

/* The session ends while a copy of the input is under way: its memory is freed behind the copy. */
static void ends_copying(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct weft_request request; /* until the end of the session */
    int64_t *const *x = crowd->user;
    const uint64_t before = fake_cuda_copied_bytes();
    struct weft_call call = sum_of(x[rank], ELEMS, NULL);
    call.on_stream = false;
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) CROWD_CHECK(crowd, session, weft_call_start(session, &call, &request) == WEFT_IN_PROGRESS);
    for (int i = 0; i < LOOKS && fake_cuda_copied_bytes() == before; i++) usleep(50);
}

static void test_ends_copying(void **state)
{
    int64_t *x[RANKS];
    struct crowd crowd = {.user = x};
    fake_cuda_setup(1, 0, 1);
    for (int rank = 0; rank < RANKS; rank++) x[rank] = device_alloc(ELEMS);
    fake_cuda_slow_copies(50000);
    crowd_run(&crowd, RANKS, ends_copying);
    fake_cuda_slow_copies(0);
    for (int rank = 0; rank < RANKS; rank++) cudaFree(x[rank]);
    assert_int_equal(crowd.failures, 0);
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* The session ends when the result is known, before the copies and the release of the stream have run. */
static void ends_before_release(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct weft_request requests[RANKS];
    int64_t *const *x = crowd->user;
    const struct weft_call call = sum_of(x[rank], ELEMS, x[RANKS + rank]);
    CROWD_OK(crowd, session, weft_call_start(session, &call, &requests[rank]));
    CROWD_OK(crowd, session, weft_wait(&requests[rank], 0));
}

static void test_ends_before_release(void **state)
{
    int64_t *x[2 * RANKS]; /* buffers, then streams */
    struct crowd crowd = {.user = x};
    for (uint64_t one = 1; one <= 5; one++) {
        fake_cuda_setup(one, 2000, 1);
        for (int rank = 0; rank < RANKS; rank++) {
            x[rank] = device_alloc(ELEMS);
            assert_int_equal(cudaStreamCreateWithFlags((void **)&x[RANKS + rank], 0), 0);
        }
        crowd_run(&crowd, RANKS, ends_before_release);
        for (int rank = 0; rank < RANKS; rank++) {
            cudaFree(x[rank]);
            cudaStreamDestroy(x[RANKS + rank]);
        }
        assert_int_equal(crowd.failures, 0);
        assert_int_equal(fake_cuda_live_count(), 0);
    }
}

/* ---- refused calls ---- */

static void misuse(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    int64_t host[4] = {0};
    int64_t *x = device_alloc(4);
    struct weft_request request = {{0}};
    struct weft_call call = sum_of(host, 4, NULL);
    call.memory = WEFT_MEMORY_HOST;
    CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_INVALID,
                  "on_stream is for operations on device memory");
    call = sum_of(x, 4, NULL);
    call.kind = WEFT_CALL_BARRIER;
    CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_INVALID, "on_stream");
    call = sum_of(x, 4, NULL);
    call.dtype = WEFT_F32, call.op = WEFT_AVG, call.weighted = true, call.weight = 1;
    CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_UNSUPPORTED,
                  "on_stream has no weighted average");
    call = sum_of(x, 4, NULL);
    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_REFUSED(crowd, session, weft_call_start(session, &call, &request), WEFT_ERR_UNSUPPORTED,
                  "call weft_group_end first");
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    void *stream; /* of this rank; the ranks share the default stream */
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    weft_tensor_options_init(&options);
    options.name = "grouped", options.dim_count = 1, options.dims[0] = 4;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, WEFT_MEMORY_CUDA, stream));
    CROWD_OK(crowd, session, weft_tensor_on_stream(tensor, true));
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, x, x, &request), WEFT_ERR_UNSUPPORTED,
                  "'grouped' is stream-ordered");
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_push_pull(tensor, x, x, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_step_end(session));
    cudaFree(x);
    cudaStreamDestroy(stream);
}

static void test_misuse(void **state)
{
    run_seed(misuse);
}

/* ---- NCCL inside hosts is not for elastic jobs ---- */

static void elastic(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    char text[2048];
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session, weft_nccl_open(session, 0));
    CROWD_OK(crowd, session, weft_explain(session, "all_reduce", ELEMS, WEFT_F32, text, sizeof text));
    CROWD_CHECK(crowd, session, strstr(text, "as the job is elastic") != NULL);
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void test_elastic(void **state)
{
    struct crowd crowd = {.workers_min = 1};
    fake_cuda_setup(1, 0, 1);
    crowd_run(&crowd, RANKS, elastic);
    assert_int_equal(crowd.failures, 0);
}

int main(int argc, char **argv)
{
    uint64_t seeds = 3, first = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seeds") == 0) seeds = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--first") == 0) first = strtoull(argv[i + 1], NULL, 10);
    }
    const struct CMUnitTest seeded[] = {cmocka_unit_test(test_chain), cmocka_unit_test(test_late_steps),
                                        cmocka_unit_test(test_behind)};
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_not_blocked),  cmocka_unit_test(test_without_words),
        cmocka_unit_test(test_fails),        cmocka_unit_test(test_not_released),
        cmocka_unit_test(test_misuse),       cmocka_unit_test(test_elastic),
        cmocka_unit_test(test_ends_copying), cmocka_unit_test(test_ends_before_release),
    };
    setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    setenv("WEFT_NCCL", FAKE_NCCL, 1);
    setenv("WEFT_CUDA_KERNELS", FAKE_KERNELS, 1);
    setenv("WEFT_CLIENT_PIECE_BYTES", "4KiB", 1);
    int failed = 0;
    for (seed = first; seed < first + seeds; seed++) failed += cmocka_run_group_tests(seeded, NULL, NULL);
    return failed + cmocka_run_group_tests(others, NULL, NULL);
}
