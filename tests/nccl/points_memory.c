/* points_memory.c - registrations, order of bytes inside a message, and the end of access to memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os/sanitizer.h"
#include "tests/nccl/harness.h"

/* Registrations overlap, share pages, are not aligned, and end in any order while messages move. */
static void registrations(struct harness *harness)
{
    enum { COUNT = 24, BYTES = 40000 };
    struct pair pair;
    char *from = malloc(BYTES + COUNT * 100), *to = malloc(BYTES + COUNT * 100);
    void *one[COUNT], *other[COUNT];
    uint64_t random = 11;
    pair_open(&pair, harness);
    for (int i = 0; i < COUNT; i++) {
        one[i] = reg(&pair, pair.send, from + 97 * i, BYTES);
        other[i] = reg(&pair, pair.recv, to + 33 * i, BYTES);
    }
    for (int ended = 0; ended < COUNT; ended++) {
        int k = (int)(random_next(&random) % COUNT);
        while (!one[k]) k = (k + 1) % COUNT;
        void *recv = NULL, *send = NULL;
        int keep = (k + 1) % COUNT;
        while (!one[keep]) keep = (keep + 1) % COUNT;
        if (keep != k) {
            pattern_fill(from + 97 * keep, BYTES, (uint64_t)ended);
            while (!recv) recv = recv_try(&pair, to + 33 * keep, BYTES, 0, other[keep]);
            while (!send) send = send_try(&pair, from + 97 * keep, BYTES, 0, one[keep]);
        }
        CHECK_OK(driver_dereg(pair.driver, pair.send, one[k]));
        CHECK_OK(driver_dereg(pair.driver, pair.recv, other[k]));
        one[k] = other[k] = NULL;
        if (keep == k) break;
        CHECK(finish(&pair, send, recv) == BYTES && pattern_is(to + 33 * keep, BYTES, (uint64_t)ended),
              "the message beside ending registration %d is wrong", k);
    }
    pair_close(&pair);
    free(from);
    free(to);
}

/* ---- LL: data and flag in one line ---- */

enum { LINES = 256 };
struct line {
    _Alignas(16) uint64_t words[2]; /* flag << 32 | data, twice */
};
struct reader {
    struct line *lines;
    atomic_uint round; /* to read; 0: wait */
    atomic_uint read_round;
    atomic_bool stop;
};

/* The GPU's part: polls each line until its flags are of the round, then the data must be too. */
static void *read_lines(void *context)
{
    struct reader *reader = context;
    for (;;) {
        uint32_t round = reader->round;
        if (reader->stop) return NULL;
        if (round == reader->read_round) {
            sched_yield();
            continue;
        }
        for (uint32_t i = 0; i < LINES; i++) {
            for (int w = 0; w < 2; w++) {
                uint64_t word;
                while (word = __atomic_load_n(&reader->lines[i].words[w], __ATOMIC_RELAXED),
                       (uint32_t)(word >> 32) != round)
                    if (reader->stop) return NULL;
                CHECK((uint32_t)word == round * 31 + i, "line %u shows the flag of round %u and other data",
                      i, round);
            }
        }
        reader->read_round = round;
    }
}

static void ll(struct harness *harness)
{
    if (WEFT_THREAD_SANITIZER) {
        printf("     ll: skipped, a reader beside the writer is a race by design\n");
        return;
    }
    struct pair pair;
    struct line *from = aligned_alloc(4096, LINES * sizeof *from),
                *to = aligned_alloc(4096, LINES * sizeof *to);
    struct reader reader = {.lines = to};
    pthread_t thread;
    memset(to, 0, LINES * sizeof *to);
    pair_open(&pair, harness);
    CHECK(pthread_create(&thread, NULL, read_lines, &reader) == 0, "no thread");
    uint32_t rounds = harness->is_large ? 40000 : 400;
    for (uint32_t round = 1; round <= rounds; round++) {
        for (uint32_t i = 0; i < LINES; i++)
            from[i].words[0] = from[i].words[1] = (uint64_t)round << 32 | (uint32_t)(round * 31 + i);
        reader.round = round;
        transfer(&pair, from, LINES * sizeof *from, to, LINES * sizeof *to, 0);
        while (reader.read_round != round) sched_yield();
    }
    reader.stop = true;
    pthread_join(thread, NULL);
    pair_close(&pair);
    free(from);
    free(to);
}

/* ---- the end with requests open ---- */

enum { OPEN = 8, CHUNK = 3 << 20 };

static void *map(void)
{
    void *memory =
        mmap(NULL, (size_t)OPEN * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "no memory");
    memset(memory, 1, (size_t)OPEN * CHUNK);
    return memory;
}

/* Any result is legal at the side that continues, but it returns, and its memory stays its own. */
static void poll_rest(struct pair *pair, void **requests, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < OPEN; i++) {
            int done = 0;
            if (!requests[i]) continue;
            enum nccl_result result = driver_test(pair->driver, requests[i], &done, NULL);
            if (done || result != NCCL_RESULT_SUCCESS) requests[i] = NULL;
        }
        sched_yield();
    }
}

/* As after an abort: deregMr with requests open, then the memory is freed and the connection closed. */
static void abort_run(struct harness *harness, bool sender_first, int polls)
{
    struct pair pair;
    void *from = map(), *to = map(), *sends[OPEN] = {0}, *recvs[OPEN] = {0};
    pair_open(&pair, harness);
    void *one = reg(&pair, pair.send, from, (size_t)OPEN * CHUNK),
         *other = reg(&pair, pair.recv, to, (size_t)OPEN * CHUNK);
    for (int i = 0; i < OPEN; i++) {
        if (i % 3 != 2) recvs[i] = recv_try(&pair, (char *)to + (size_t)i * CHUNK, CHUNK, 0, other);
        if (i < OPEN / 2 || polls % 2 == 0) /* else receives stay open whatever a socket holds */
            sends[i] = send_try(&pair, (char *)from + (size_t)i * CHUNK, CHUNK, 0, one);
    }
    poll_rest(&pair, sends, polls);
    poll_rest(&pair, recvs, polls);
    for (int side = 0; side < 2; side++) {
        if ((side == 0) == sender_first) {
            CHECK_OK(driver_dereg(pair.driver, pair.send, one));
            mprotect(from, (size_t)OPEN * CHUNK, PROT_NONE);
            if (side == 0) poll_rest(&pair, recvs, 50);
            CHECK_OK(driver_close_send(pair.driver, pair.send));
        } else {
            CHECK_OK(driver_dereg(pair.driver, pair.recv, other));
            memset(to, 0x77, (size_t)OPEN * CHUNK); /* the memory has another user */
            for (int k = 0; k < 50; k++) {
                poll_rest(&pair, recvs, 1);
                if (side == 0) poll_rest(&pair, sends, 1);
            }
            CHECK_OK(driver_close_recv(pair.driver, pair.recv));
        }
        if (side == 0) poll_rest(&pair, sender_first ? recvs : sends, 50);
    }
    CHECK_OK(driver_finalize(pair.driver, pair.send_context));
    CHECK_OK(driver_finalize(pair.driver, pair.recv_context));
    for (size_t i = 0; i < (size_t)OPEN * CHUNK; i++)
        CHECK(((char *)to)[i] == 0x77, "byte %zu was written after deregMr", i);
    munmap(from, (size_t)OPEN * CHUNK);
    munmap(to, (size_t)OPEN * CHUNK);
}

static void abort_open(struct harness *harness)
{
    static const int polls[] = {0, 1, 3, 10};
    for (int i = 0; i < 4; i++) {
        abort_run(harness, true, polls[i]);
        abort_run(harness, false, polls[i]);
    }
}

/* A sender may close as soon as its sends are done; what they carried still arrives. */
static void close_after_done(struct harness *harness)
{
    static char from[20000], to[20000];
    for (int i = 0; i < 20; i++) {
        struct pair pair;
        size_t bytes = (size_t)(i * 997);
        int got = -1;
        pair_open(&pair, harness);
        pattern_fill(from, bytes, (uint64_t)i);
        void *send = send_try(&pair, from, bytes, 0, NULL), *recv = NULL;
        CHECK(send, "an empty queue was full");
        for (int k = 0; send && k < 100; k++) is_done(&pair, &send, NULL);
        bool was_done = !send;
        recv = recv_try(&pair, to, sizeof to, 0, NULL);
        while (send) {
            is_done(&pair, &send, NULL);
            if (recv) is_done(&pair, &recv, &got);
        }
        CHECK_OK(driver_close_send(pair.driver, pair.send));
        while (recv) is_done(&pair, &recv, &got);
        CHECK(got == (int)bytes && pattern_is(to, bytes, (uint64_t)i),
              "a send of %zu bytes was done%s, and its receive has %d", bytes, was_done ? " at once" : "",
              got);
        CHECK_OK(driver_close_recv(pair.driver, pair.recv));
        CHECK_OK(driver_finalize(pair.driver, pair.send_context));
        CHECK_OK(driver_finalize(pair.driver, pair.recv_context));
    }
}

const struct point memory_points[] = {{"registrations", registrations},
                                      {"ll", ll},
                                      {"abort", abort_open},
                                      {"close-after-done", close_after_done},
                                      {NULL, NULL}};
