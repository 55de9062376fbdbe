/* test_memory_kind.c - memory operations over a fake runtime: kinds, order of copies by streams and events,
 * the current device restored, a failed copy reported; and the sentence without a runtime. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

static const struct weft_memory_ops *cuda(void)
{
    const struct weft_memory_ops *ops = NULL;
    struct weft_error error = {0};
    if (weft_memory_ops(WEFT_MEMORY_CUDA, &ops, &error) < 0) fail_msg("%s", error.text);
    return ops;
}

static void wait_for(const struct weft_memory_ops *ops, void *event, enum weft_status wanted)
{
    enum weft_status status;
    struct weft_error error = {0};
    while ((status = ops->passed(event, &error)) == WEFT_IN_PROGRESS) {
        assert_int_equal(cudaGetLastError(), 0); /* "not ready" must not remain as the program's last error */
        usleep(50);
    }
    assert_int_equal(status, wanted);
}

/* In its own process, because the result is kept. */
static void refused(const char *runtime, int devices, const char *words)
{
    pid_t child = fork();
    if (child == 0) {
        const struct weft_memory_ops *ops = NULL;
        struct weft_error error = {0};
        setenv("WEFT_CUDA_RUNTIME", runtime, 1);
        fake_cuda_setup(1, 0, devices);
        enum weft_status status = weft_memory_ops(WEFT_MEMORY_CUDA, &ops, &error);
        _exit(status == WEFT_ERR_UNSUPPORTED && !ops && strstr(error.text, words) ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void the_error_names_what_is_missing(void **state)
{
    refused("/nowhere/libcudart.so", 1, "/nowhere/libcudart.so");
    refused("libm.so.6", 1, "has no cudaGetDeviceCount");
    refused(FAKE_CUDART, 0, "finds no device (cudaErrorNoDevice)");
}

static void host_memory_has_no_table(void **state)
{
    const struct weft_memory_ops *ops = NULL;
    struct weft_error error = {0};
    assert_int_equal(weft_memory_ops(WEFT_MEMORY_HOST, &ops, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "memory kind 0"));
    assert_int_equal(weft_memory_ops(WEFT_MEMORY_PINNED, &ops, NULL), WEFT_ERR_INVALID);
    assert_true(weft_memory_is_kind(WEFT_MEMORY_DEVICE));
    assert_false(weft_memory_is_kind(WEFT_MEMORY_DEVICE + 1));
    assert_false(weft_memory_in_use(WEFT_MEMORY_HOST));
    assert_false(weft_memory_in_use(WEFT_MEMORY_DEVICE));
    assert_true(weft_memory_in_use(WEFT_MEMORY_CUDA));
}

/* In its own process, because the result is kept. */
static void library_refused(const char *library, const char *words)
{
    pid_t child = fork();
    if (child == 0) {
        const struct weft_memory_ops *ops = NULL;
        struct weft_error error = {0};
        setenv("WEFT_DEVICE_RUNTIME", library, 1);
        enum weft_status status = weft_memory_ops(WEFT_MEMORY_DEVICE, &ops, &error);
        if (!strstr(error.text, words))
            fprintf(stderr, "%s: '%s' is not in '%s'\n", library, words, error.text);
        _exit(status == WEFT_ERR_UNSUPPORTED && !ops && strstr(error.text, words) ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_wrong_library_of_an_accelerator_is_named(void **state)
{
    library_refused("", "name the library in WEFT_DEVICE_RUNTIME");
    library_refused("/nowhere/libdevice.so", "/nowhere/libdevice.so");
    library_refused("libm.so.6", "has no symbol weft_memory_library");
    library_refused(FAKE_DEVICE_VERSION, "another version");
    library_refused(FAKE_DEVICE_MISSING, "missing operation");
    library_refused(FAKE_DEVICE_NO_DEVICE, "finds no accelerator");
}

/* The second kind by its own table, in a process of its own without a CUDA runtime. */
static void another_accelerator_has_its_own_table(void **state)
{
    pid_t child = fork();
    if (child == 0) {
        const struct weft_memory_ops *ops = NULL;
        enum weft_memory_kind kind = WEFT_MEMORY_HOST;
        int device = -1, descriptor;
        uint64_t offset;
        void *memory = NULL;
        unsetenv("WEFT_CUDA_RUNTIME");
        setenv("WEFT_DEVICE_RUNTIME", FAKE_DEVICE, 1);
        if (!weft_memory_device_in_use() || !weft_memory_in_use(WEFT_MEMORY_DEVICE)) _exit(1);
        if (weft_memory_ops(WEFT_MEMORY_DEVICE, &ops, NULL) < 0 || ops->has_kernels) _exit(2);
        if (ops->alloc(10, &memory, NULL) < 0 || ops->find(memory, &kind, &device, NULL) < 0) _exit(3);
        if (kind != WEFT_MEMORY_DEVICE || device != 0) _exit(4);
        if (weft_memory_dmabuf(kind, memory, 10, &descriptor, &offset, NULL) != WEFT_ERR_UNSUPPORTED)
            _exit(5);
        if (weft_memory_flush(kind, NULL) != WEFT_ERR_UNSUPPORTED) _exit(7);
        if (weft_memory_dmabuf(WEFT_MEMORY_HOST, memory, 1, &descriptor, &offset, NULL) != WEFT_ERR_INVALID)
            _exit(6);
        ops->free(memory);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void kinds_are_found(void **state)
{
    const struct weft_memory_ops *ops = cuda();
    enum weft_memory_kind kind;
    int device, before, now;
    static char host[8192];
    void *memory;
    assert_int_equal(ops->enter(1, &before, NULL), WEFT_OK);
    assert_int_equal(ops->alloc(100, &memory, NULL), WEFT_OK);
    ops->leave(before);
    assert_int_equal(cudaGetDevice(&now), 0);
    assert_int_equal(now, before);
    assert_int_equal(ops->find((char *)memory + 99, &kind, &device, NULL), WEFT_OK);
    assert_int_equal(kind, WEFT_MEMORY_CUDA);
    assert_int_equal(device, 1);
    assert_int_equal(ops->find(host, &kind, &device, NULL), WEFT_OK);
    assert_int_equal(kind, WEFT_MEMORY_HOST);
    assert_int_equal(device, -1);
    assert_int_equal(ops->pin(host, sizeof host, NULL), WEFT_OK);
    assert_int_equal(ops->find(host + 5, &kind, &device, NULL), WEFT_OK);
    assert_int_equal(kind, WEFT_MEMORY_PINNED);
    ops->unpin(host);
    ops->free(memory);
    ops->free(NULL);
    struct weft_error error = {0};
    assert_int_equal(ops->enter(7, &before, &error), WEFT_ERR_STATE);
    assert_non_null(strstr(error.text, "cudaSetDevice"));
    assert_int_equal(fake_cuda_live_count(), 0);
}

static void writes_of_the_network_are_flushed(void **state)
{
    struct weft_error error = {0};
    const int before = fake_cuda_flushes();
    assert_int_equal(weft_memory_flush(WEFT_MEMORY_CUDA, &error), WEFT_OK);
    assert_int_equal(fake_cuda_flushes(), before + 1);
    fake_cuda_refuse_words(true);
    assert_int_equal(weft_memory_flush(WEFT_MEMORY_CUDA, &error), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "cuFlushGPUDirectRDMAWrites"));
    fake_cuda_refuse_words(false);
    assert_int_equal(weft_memory_flush(WEFT_MEMORY_HOST, &error), WEFT_ERR_INVALID);
}

/* Down on one stream, up on another, ordered by events only. */
static void copies_keep_the_order_of_events(void **state)
{
    const struct weft_memory_ops *ops = cuda();
    enum { BYTES = 4096, ROUNDS = 20 };
    static uint8_t in[BYTES], middle[BYTES], out[BYTES];
    void *memory[2], *streams[2], *events[3];
    for (int i = 0; i < 2; i++) assert_int_equal(ops->alloc(BYTES, &memory[i], NULL), WEFT_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(ops->stream_create(&streams[i], NULL), WEFT_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(ops->event_create(&events[i], NULL), WEFT_OK);
    assert_int_equal(ops->passed(events[0], NULL), WEFT_OK); /* never recorded */
    for (int round = 0; round < ROUNDS; round++) {
        memset(in, round + 1, BYTES);
        assert_int_equal(ops->zero(memory[0], BYTES, streams[0], NULL), WEFT_OK);
        assert_int_equal(ops->copy(memory[0], in, BYTES / 2, streams[0], NULL), WEFT_OK);
        assert_int_equal(ops->copy(middle, memory[0], BYTES, streams[0], NULL), WEFT_OK);
        assert_int_equal(ops->record(events[0], streams[0], NULL), WEFT_OK);
        assert_int_equal(ops->wait(streams[1], events[0], NULL), WEFT_OK);
        assert_int_equal(ops->copy(memory[1], middle, BYTES, streams[1], NULL), WEFT_OK);
        assert_int_equal(ops->record(events[1], streams[1], NULL), WEFT_OK);
        assert_int_equal(ops->wait(NULL, events[1], NULL), WEFT_OK);
        assert_int_equal(ops->copy(out, memory[1], BYTES, NULL, NULL), WEFT_OK);
        assert_int_equal(ops->record(events[2], NULL, NULL), WEFT_OK);
        wait_for(ops, events[2], WEFT_OK);
        for (int i = 0; i < BYTES; i++) assert_int_equal(out[i], i < BYTES / 2 ? round + 1 : 0);
    }
    for (int i = 0; i < 3; i++) ops->event_free(events[i]);
    for (int i = 0; i < 2; i++) ops->stream_free(streams[i]);
    for (int i = 0; i < 2; i++) ops->free(memory[i]);
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* A kernel that blocks its stream. */
static void keep(void *context)
{
    while (!atomic_load((atomic_bool *)context)) usleep(50);
}

static void a_failed_copy_returns_an_error(void **state)
{
    static atomic_bool all_queued;
    const struct weft_memory_ops *ops = cuda();
    static uint8_t host[64];
    struct weft_error error = {0};
    void *memory, *event;
    assert_int_equal(ops->alloc(64, &memory, NULL), WEFT_OK);
    assert_int_equal(ops->event_create(&event, NULL), WEFT_OK);
    assert_int_equal(fake_cuda_launch(NULL, keep, &all_queued), 0);
    /* one byte too many: detected when it runs */
    assert_int_equal(ops->copy(memory, host, 65, NULL, NULL), WEFT_OK);
    assert_int_equal(ops->record(event, NULL, NULL), WEFT_OK);
    atomic_store(&all_queued, true); /* if the copy had run before, record would have failed */
    wait_for(ops, event, WEFT_ERR_STATE);
    assert_int_equal(ops->copy(memory, host, 64, NULL, &error), WEFT_ERR_STATE);
    assert_non_null(strstr(error.text, "cudaErrorIllegalAddress (700)"));
    fake_cuda_reset();
    ops->event_free(event);
    ops->free(memory);
    assert_int_equal(fake_cuda_live_count(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_names_what_is_missing),
        cmocka_unit_test(host_memory_has_no_table),
        cmocka_unit_test(a_wrong_library_of_an_accelerator_is_named),
        cmocka_unit_test(another_accelerator_has_its_own_table),
        cmocka_unit_test(kinds_are_found),
        cmocka_unit_test(writes_of_the_network_are_flushed),
        cmocka_unit_test(copies_keep_the_order_of_events),
        cmocka_unit_test(a_failed_copy_returns_an_error),
    };
    setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    fake_cuda_setup(7, 200, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
