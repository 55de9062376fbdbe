/* test_verbs_watch.c - the watch sees registered memory being unmapped, by any caller; needs no RDMA
 * device. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/os/sanitizer.h"
#include "transport/verbs/device/verbs_watch.h"

struct range {
    uintptr_t start, end; /* the watched range */
    int unmapped;             /* events that touch it */
};

static void unmapped(void *context, uintptr_t start, uintptr_t end)
{
    struct range *range = context;
    if (start < range->end && end > range->start) range->unmapped++;
}

static int seen(const struct range *range)
{
    verbs_watch_lock();
    int count = range->unmapped;
    verbs_watch_unlock();
    return count;
}

static struct verbs_watcher watcher;
static struct range range;
enum { BYTES = 64 << 12 };

static void look_for(const void *memory, size_t bytes)
{
    verbs_watch_lock();
    range = (struct range){.start = (uintptr_t)memory, .end = (uintptr_t)memory + bytes};
    verbs_watch_unlock();
}

/* AddressSanitizer delays the unmapping of freed memory. */
enum { FREE_UNMAPS = !WEFT_ADDRESS_SANITIZER };

static int join_watch(void **state)
{
    struct weft_error error = {0};
    memset(&range, 0, sizeof range);
    watcher = (struct verbs_watcher){.unmapped = unmapped, .context = &range};
    if (verbs_watch_join(&watcher, &error) == WEFT_OK) return 0;
    print_message("cannot watch here: %s\n", error.text);
    assert_true(strlen(error.text) > 10);
    *state = &watcher; /* nothing to leave */
    return 0;
}

static int leave_watch(void **state)
{
    if (!*state) verbs_watch_leave(&watcher);
    return 0;
}

static char *map(void)
{
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    memset(memory, 7, BYTES);
    return memory;
}

static char *watched(void **state)
{
    if (*state) skip();
    char *memory = map();
    look_for(memory, BYTES);
    assert_true(verbs_watch_range(range.start, range.end));
    assert_true(verbs_watch_range(range.start, range.end)); /* repeated calls are fine */
    memset(memory, 8, BYTES);                               /* and faults are not intercepted */
    assert_int_equal(memory[BYTES - 1], 8);
    assert_int_equal(seen(&range), 0);
    return memory;
}

static void test_munmap(void **state)
{
    char *memory = watched(state);
    munmap(memory, BYTES);
    assert_int_equal(seen(&range), 1);
}

static void test_part(void **state)
{
    char *memory = watched(state);
    munmap(memory + BYTES / 2, 4096);
    assert_int_equal(seen(&range), 1);
    memory[0] = memory[BYTES - 1] = 1;
    verbs_watch_release(range.start, range.end);
    munmap(memory, BYTES);
    assert_int_equal(seen(&range), 2); /* the release itself reports; after it nothing is reported */
}

static void test_mapping_replaced(void **state)
{
    char *memory = watched(state);
    char *other = mmap(memory, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    assert_ptr_equal(other, memory);
    assert_true(seen(&range) >= 1);
    munmap(memory, BYTES);
}

static void test_moved(void **state)
{
    char *memory = watched(state);
    char *moved = mremap(memory, BYTES, 4 * BYTES, MREMAP_MAYMOVE);
    if (moved != memory) assert_true(seen(&range) >= 1);
    moved[4 * BYTES - 1] = 1;
    munmap(moved, 4 * BYTES);
    assert_true(seen(&range) >= 1);
}

static void test_given_back(void **state)
{
    char *memory = watched(state);
    madvise(memory, BYTES, MADV_DONTNEED);
    assert_int_equal(seen(&range), 1);
    assert_int_equal(memory[5], 0); /* reads, writes and system calls work as before */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "hello", 5), 5);
    assert_int_equal(read(ends[0], memory + 4096, 5), 5);
    assert_memory_equal(memory + 4096, "hello", 5);
    close(ends[0]);
    close(ends[1]);
    munmap(memory, BYTES);
}

static void test_heap(void **state)
{
    if (*state || !FREE_UNMAPS) skip();
    char *memory = malloc(8 << 20); /* its own mapping; free unmaps it */
    memset(memory, 1, 8 << 20);
    look_for(memory, 8 << 20);
    assert_true(verbs_watch_range(range.start, range.end));
    free(memory);
    assert_true(seen(&range) >= 1);
}

/* Memory that cannot be watched is refused: a mapped file. */
static void test_file(void **state)
{
    if (*state) skip();
    FILE *file = tmpfile();
    assert_non_null(file);
    int fd = fileno(file);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    (void)verbs_watch_range((uintptr_t)memory, (uintptr_t)memory + BYTES); /* either result is harmless */
    memory[0] = 1;
    munmap(memory, BYTES);
    /* not mapped */
    assert_false(verbs_watch_range((uintptr_t)memory, (uintptr_t)memory + BYTES));
    fclose(file);
}

/* One thread maps, registers, checks and unmaps while another unmaps its own memory all the time: in every
 * round the mark is set when munmap returns. An address that the other thread has just unmapped may be
 * mapped here before its event is read, which marks this range, too. That is harmless, so marks are
 * counted from before the munmap. */
static atomic_bool stop_other;

static void *other_thread(void *unused)
{
    while (!atomic_load(&stop_other)) {
        char *memory = map();
        (void)verbs_watch_range((uintptr_t)memory, (uintptr_t)memory + BYTES);
        munmap(memory, BYTES);
    }
    return NULL;
}

static void test_mark_before_return(void **state)
{
    if (*state) skip();
    pthread_t thread;
    atomic_store(&stop_other, false);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    for (int round = 0; round < 300; round++) {
        char *memory = map();
        look_for(memory, BYTES);
        assert_true(verbs_watch_range(range.start, range.end));
        int before = seen(&range);
        munmap(memory, BYTES);
        assert_true(seen(&range) > before);
    }
    atomic_store(&stop_other, true);
    pthread_join(thread, NULL);
}

/* Two users: each gets every event; one leaves, the other still gets them. */
static void test_two_watchers(void **state)
{
    char *memory = watched(state);
    struct range second_range = range;
    struct verbs_watcher second = {.unmapped = unmapped, .context = &second_range};
    assert_int_equal(verbs_watch_join(&second, NULL), WEFT_OK);
    munmap(memory, 4096);
    assert_int_equal(seen(&range), 1);
    assert_int_equal(seen(&second_range), 1);
    verbs_watch_leave(&second);
    munmap(memory + 4096, BYTES - 4096);
    assert_int_equal(seen(&range), 2);
    assert_int_equal(seen(&second_range), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_munmap, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_part, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_mapping_replaced, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_moved, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_given_back, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_heap, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_file, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_mark_before_return, join_watch, leave_watch),
        cmocka_unit_test_setup_teardown(test_two_watchers, join_watch, leave_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
