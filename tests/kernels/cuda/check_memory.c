/* check_memory.c - the table of memory operations (base/memory/memory_kind.h) on a real device: kinds,
 * pinning, copies that are ordered by events across streams. tests/base/os/test_memory_kind.c has the same
 * over a runtime without a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory/memory_kind.h"
#include "tests/kernels/cuda/device_check.h"

enum { BYTES = 8 << 20, ROUNDS = 8 };

static const struct weft_memory_ops *ops;

#define MUST(call)                                                \
    do {                                                          \
        struct weft_error error = {0};                            \
        if ((call) < 0) fail_msg("%s: %s", #call, error.text);    \
    } while (0)

static void wait_for(void *event)
{
    enum weft_status status;
    struct weft_error error = {0};
    while ((status = ops->passed(event, &error)) == WEFT_IN_PROGRESS) {
    }
    if (status < 0) fail_msg("%s", error.text);
}

static void kinds(void **state)
{
    enum weft_memory_kind kind;
    int device, before;
    void *memory, *host = check_malloc(BYTES);
    MUST(ops->enter(0, &before, &error));
    MUST(ops->alloc(BYTES, &memory, &error));
    MUST(ops->find((char *)memory + BYTES - 1, &kind, &device, &error));
    assert_int_equal(kind, WEFT_MEMORY_CUDA);
    assert_int_equal(device, 0);
    MUST(ops->find(host, &kind, &device, &error));
    assert_int_equal(kind, WEFT_MEMORY_HOST);
    MUST(ops->pin(host, BYTES, &error));
    MUST(ops->find(host, &kind, &device, &error));
    assert_int_equal(kind, WEFT_MEMORY_PINNED);
    ops->unpin(host);
    ops->free(memory);
    ops->leave(before);
    free(host);
}

/* Up on one stream, down on the other, the next round's bytes written as soon as the events allow. */
static void order_of_events(void **state)
{
    uint8_t *host[2] = {check_malloc(BYTES), check_malloc(BYTES)};
    void *memory, *streams[2], *events[2];
    for (int i = 0; i < 2; i++) {
        MUST(ops->pin(host[i], BYTES, &error));
        MUST(ops->stream_create(&streams[i], &error));
        MUST(ops->event_create(&events[i], &error));
    }
    MUST(ops->alloc(BYTES, &memory, &error));
    for (int round = 0; round < ROUNDS; round++) {
        memset(host[0], round + 1, BYTES);
        MUST(ops->zero(memory, BYTES, streams[0], &error));
        MUST(ops->copy(memory, host[0], BYTES / 2, streams[0], &error));
        MUST(ops->record(events[0], streams[0], &error));
        MUST(ops->wait(streams[1], events[0], &error));
        MUST(ops->copy(host[1], memory, BYTES, streams[1], &error));
        MUST(ops->record(events[1], streams[1], &error));
        MUST(ops->wait(streams[0], events[1], &error));
        wait_for(events[1]);
        for (size_t i = 0; i < BYTES; i += 4093) assert_int_equal(host[1][i], i < BYTES / 2 ? round + 1 : 0);
    }
    ops->free(memory);
    for (int i = 0; i < 2; i++) {
        ops->event_free(events[i]);
        ops->stream_free(streams[i]);
        ops->unpin(host[i]);
        free(host[i]);
    }
}

int check_memory_kinds(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(order_of_events),
    };
    struct weft_error error = {0};
    if (weft_memory_ops(WEFT_MEMORY_CUDA, &ops, &error) < 0) {
        printf("    skipped: %s\n", error.text);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
