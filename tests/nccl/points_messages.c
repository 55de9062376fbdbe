/* points_messages.c - sends and receives: sizes, order, groups, full queues, requests. */
#include <stdlib.h>
#include <string.h>

#include "tests/nccl/harness.h"

enum { BIG = 512 << 10 };

static void one_size(struct pair *pair, char *from, char *to, size_t bytes, size_t spare)
{
    pattern_fill(from, bytes, bytes);
    memset(to, 0xee, bytes + spare + 1);
    transfer(pair, from, bytes, to, bytes + spare, 3);
    CHECK(pattern_is(to, bytes, bytes), "a message of %zu bytes arrived changed", bytes);
    CHECK((unsigned char)to[bytes] == 0xee, "bytes behind a message of %zu were written", bytes);
}

static void sizes(struct harness *harness)
{
    static const size_t table[] = {0, 1, 7, 8, 15, 16, 17, 0, 255, 4095, 4096, 4097, 65536, BIG, 3 * BIG + 5};
    struct pair pair;
    char *from = malloc(4 * BIG), *to = malloc(4 * BIG);
    pair_open(&pair, harness);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        one_size(&pair, from, to, table[i], 0);
        one_size(&pair, from, to, table[i], 1000);
    }
    if (harness->is_large) {
        size_t bytes = ((size_t)1 << 30) + 1;
        char *large = malloc(bytes), *copy = malloc(bytes + 2);
        if (large && copy) one_size(&pair, large, copy, bytes, 1);
        free(large);
        free(copy);
    }
    pair_close(&pair);
    free(from);
    free(to);
}

/* A message longer than its receive is an error of usage at the receiver. */
static void too_long(struct harness *harness)
{
    struct pair pair;
    char from[5000], to[5000];
    int done = 0, bytes;
    pair_open(&pair, harness);
    memset(to, 0, sizeof to);
    void *recv = recv_try(&pair, to, 100, 0, NULL), *send = send_try(&pair, from, 5000, 0, NULL);
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    while (result == NCCL_RESULT_SUCCESS && !done) {
        result = driver_test(pair.driver, recv, &done, &bytes);
        int sent = 0;
        if (send && driver_test(pair.driver, send, &sent, NULL) == NCCL_RESULT_SUCCESS && sent) send = NULL;
        sched_yield();
    }
    CHECK(result == NCCL_RESULT_USAGE, "a message of 5000 bytes into 100 gave %d, not %d", (int)result,
          NCCL_RESULT_USAGE);
    for (int i = 100; i < 5000; i++) CHECK(to[i] == 0, "byte %d behind the receive was written", i);
    pair_close(&pair);
}

/* Sends match receives in order, 8 open at once. */
static void order_run(struct harness *harness, bool differing_tags)
{
    enum { COUNT = 400, OPEN = 8, BYTES = 6000 };
    struct pair pair;
    static char from[OPEN][BYTES], to[OPEN][BYTES];
    void *sends[OPEN] = {0}, *recvs[OPEN] = {0};
    int posted = 0, sent = 0, received = 0, bytes;
    pair_open(&pair, harness);
    for (int asked = 0; received < COUNT || sent < COUNT;) {
        int slot = asked % OPEN;
        if (asked < COUNT && asked - received < OPEN &&
            (recvs[slot] = recv_try(&pair, to[slot], BYTES, 7, NULL)))
            asked++;
        slot = posted % OPEN;
        if (posted < COUNT && posted - sent < OPEN) {
            size_t size = (size_t)(posted * 37 % BYTES);
            pattern_fill(from[slot], size, (uint64_t)posted);
            if ((sends[slot] = send_try(&pair, from[slot], size, differing_tags ? posted : 7, NULL)))
                posted++;
        }
        if (sent < posted && is_done(&pair, &sends[sent % OPEN], &bytes)) sent++;
        if (received < asked && is_done(&pair, &recvs[received % OPEN], &bytes)) {
            size_t size = (size_t)(received * 37 % BYTES);
            CHECK(bytes == (int)size, "receive %d has %d bytes, not %zu", received, bytes, size);
            CHECK(pattern_is(to[received % OPEN], size, (uint64_t)received), "receive %d has other data",
                  received);
            received++;
        }
        sched_yield();
    }
    pair_close(&pair);
}

static void order(struct harness *harness)
{
    order_run(harness, false);
    if (harness->properties.max_recvs == 1) order_run(harness, true);
}

/* ---- groups ---- */

enum { GROUP_BYTES = 3000 };

static void *group_recv(struct pair *pair, int count, char (*to)[GROUP_BYTES], int first_tag)
{
    void *data[NCCL_RECVS_LIMIT], *memories[NCCL_RECVS_LIMIT] = {0}, *parents[NCCL_RECVS_LIMIT] = {0};
    void *request = NULL;
    size_t bytes[NCCL_RECVS_LIMIT];
    int tags[NCCL_RECVS_LIMIT];
    for (int i = 0; i < count; i++) {
        data[i] = to[i];
        bytes[i] = GROUP_BYTES;
        tags[i] = first_tag + i;
        memset(to[i], 0xee, GROUP_BYTES);
    }
    while (!request)
        CHECK_OK(
            driver_irecv(pair->driver, pair->recv, count, data, bytes, tags, memories, parents, &request));
    return request;
}

/* Two groups of equal tags are open; the sends of each are permuted. The first group takes the first. */
static void group_round(struct pair *pair, int count, uint64_t *random)
{
    static char from[2][NCCL_RECVS_LIMIT][GROUP_BYTES], to[2][NCCL_RECVS_LIMIT][GROUP_BYTES];
    void *recvs[2], *sends[2 * NCCL_RECVS_LIMIT];
    size_t size[2][NCCL_RECVS_LIMIT];
    int bytes[NCCL_RECVS_LIMIT], permuted[NCCL_RECVS_LIMIT], posted = 0;
    for (int g = 0; g < 2; g++) recvs[g] = group_recv(pair, count, to[g], 40);
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < count; i++) permuted[i] = i;
        for (int i = count - 1; i > 0; i--) {
            int other = (int)(random_next(random) % (uint64_t)(i + 1)), kept = permuted[i];
            permuted[i] = permuted[other];
            permuted[other] = kept;
        }
        for (int k = 0; k < count; k++) {
            int i = permuted[k];
            size[g][i] = random_next(random) % 3 == 0 ? 0 : random_next(random) % GROUP_BYTES;
            pattern_fill(from[g][i], size[g][i], (uint64_t)(100 * g + i));
            while (!(sends[posted] = send_try(pair, from[g][i], size[g][i], 40 + i, NULL))) {
            }
            posted++;
        }
    }
    for (int g = 0; g < 2; g++) {
        while (recvs[g]) {
            is_done(pair, &recvs[g], bytes);
            for (int k = 0; k < posted; k++)
                if (sends[k]) is_done(pair, &sends[k], NULL);
            sched_yield();
        }
        for (int i = 0; i < count; i++) {
            CHECK(bytes[i] == (int)size[g][i], "buffer %d of group %d reports %d bytes, not %zu", i, g,
                  bytes[i], size[g][i]);
            CHECK(pattern_is(to[g][i], size[g][i], (uint64_t)(100 * g + i)),
                  "buffer %d of group %d has other data", i, g);
        }
    }
    for (int k = 0; k < posted; k++)
        while (sends[k]) is_done(pair, &sends[k], NULL);
}

static void groups(struct harness *harness)
{
    struct pair pair;
    uint64_t random = 5;
    pair_open(&pair, harness);
    int most =
        harness->properties.max_recvs < NCCL_RECVS_LIMIT ? harness->properties.max_recvs : NCCL_RECVS_LIMIT;
    for (int count = 1; count <= most; count++)
        for (int round = 0; round < 8; round++) group_round(&pair, count, &random);
    pair_close(&pair);
}

/* ---- full queues ---- */

/* Requests until NULL; every further call answers NULL and nothing else; all complete later, once. */
static void full(struct harness *harness)
{
    enum { MOST = 2048, BYTES = 64 };
    struct pair pair;
    static char from[MOST][BYTES], to[MOST][BYTES];
    static void *recvs[MOST], *sends[MOST];
    int asked = 0, posted = 0, received = 0, bytes;
    pair_open(&pair, harness);
    while (asked < MOST && (recvs[asked] = recv_try(&pair, to[asked], BYTES, 1, NULL))) asked++;
    CHECK(asked >= NCCL_REQUESTS_MAX, "only %d receives can be open", asked);
    for (int i = 0; i < 3 && asked < MOST; i++)
        CHECK(!recv_try(&pair, to[asked], BYTES, 1, NULL), "a full queue has taken a receive");
    while (received < asked) {
        if (posted < asked) {
            pattern_fill(from[posted], BYTES, (uint64_t)posted);
            if ((sends[posted] = send_try(&pair, from[posted], BYTES, 1, NULL))) posted++;
        }
        for (int i = 0; i < posted; i++)
            if (sends[i]) is_done(&pair, &sends[i], NULL);
        if (!is_done(&pair, &recvs[received], &bytes)) continue;
        CHECK(pattern_is(to[received], BYTES, (uint64_t)received), "receive %d has other data", received);
        received++;
    }
    transfer(&pair, from[0], BYTES, to[0], BYTES, 1);
    CHECK(pattern_is(to[0], BYTES, 0), "a message was delivered twice or lost");
    pair_close(&pair);
}

/* The same for sends: no receive is posted until isend has answered NULL or MOST are open. */
static void full_sends(struct harness *harness)
{
    enum { MOST = 512, BYTES = 20000 };
    struct pair pair;
    char *from = malloc((size_t)MOST * BYTES), *to = malloc(BYTES);
    static void *sends[MOST];
    int posted = 0, first = 0, bytes;
    pair_open(&pair, harness);
    for (; posted < MOST; posted++) {
        char *data = from + (size_t)posted * BYTES;
        pattern_fill(data, BYTES, (uint64_t)posted);
        if (!(sends[posted] = send_try(&pair, data, BYTES, 1, NULL))) break;
    }
    CHECK(posted >= NCCL_REQUESTS_MAX, "only %d sends can be open", posted);
    for (int received = 0; received < posted; received++) {
        void *recv = NULL;
        while (!recv) recv = recv_try(&pair, to, BYTES, 1, NULL);
        while (recv) {
            is_done(&pair, &recv, &bytes);
            for (int i = first; i < posted; i++)
                if (sends[i]) is_done(&pair, &sends[i], NULL);
            while (first < posted && !sends[first]) first++;
            sched_yield();
        }
        CHECK(pattern_is(to, BYTES, (uint64_t)received), "message %d has other data", received);
    }
    while (first < posted)
        if (!sends[first] || is_done(&pair, &sends[first], NULL)) first++;
    transfer(&pair, from, 100, to, BYTES, 1);
    CHECK(pattern_is(to, 100, 0), "a message was delivered twice or lost");
    pair_close(&pair);
    free(from);
    free(to);
}

/* ---- requests ---- */

/* Requests are tested newest first. */
static void newest_first(struct harness *harness)
{
    enum { OPEN = 8, BYTES = 30000 };
    struct pair pair;
    static char from[OPEN][BYTES], to[OPEN][BYTES];
    void *sends[OPEN], *recvs[OPEN];
    pair_open(&pair, harness);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < OPEN; i++) {
            pattern_fill(from[i], BYTES, (uint64_t)(round * OPEN + i));
            while (!(recvs[i] = recv_try(&pair, to[i], BYTES, 2, NULL))) {
            }
            while (!(sends[i] = send_try(&pair, from[i], BYTES, 2, NULL))) {
            }
        }
        for (int i = OPEN - 1; i >= 0; i--) {
            int bytes = finish(&pair, sends[i], recvs[i]);
            CHECK(bytes == BYTES && pattern_is(to[i], BYTES, (uint64_t)(round * OPEN + i)),
                  "message %d of round %d is wrong", i, round);
        }
    }
    pair_close(&pair);
}

/* NCCL offers to take no completion by a request that is (void *)1; it tests what it gets. */
static void optional_completion(struct harness *harness)
{
    struct pair pair;
    char from[64], to[64];
    void *data = to, *memory = NULL, *parent = NULL, *request = NCCL_OPTIONAL_COMPLETION;
    size_t bytes = sizeof to;
    int tag = 4, done_bytes = 0;
    pair_open(&pair, harness);
    pattern_fill(from, sizeof from, 1);
    CHECK_OK(driver_irecv(pair.driver, pair.recv, 1, &data, &bytes, &tag, &memory, &parent, &request));
    void *send = send_try(&pair, from, sizeof from, 4, NULL);
    CHECK(request != NULL, "a receive of an empty queue was refused");
    if (request == NCCL_OPTIONAL_COMPLETION) request = NULL;
    CHECK(request, "the request was left as it was, so the receive cannot be tested");
    done_bytes = finish(&pair, send, request);
    CHECK(done_bytes == 64 && pattern_is(to, 64, 1), "the message is wrong");
    pair_close(&pair);
}

/* test with sizes NULL; requests are used again thousands of times. */
static void reuse(struct harness *harness)
{
    struct pair pair;
    char from[40], to[40];
    pair_open(&pair, harness);
    for (int i = 0; i < 3000; i++) {
        void *recv = NULL, *send = NULL;
        pattern_fill(from, sizeof from, (uint64_t)i);
        while (!recv) recv = recv_try(&pair, to, sizeof to, 0, NULL);
        while (!send) send = send_try(&pair, from, sizeof from, 0, NULL);
        while (send || recv) {
            if (send) is_done(&pair, &send, NULL);
            if (recv) is_done(&pair, &recv, NULL);
            sched_yield();
        }
        CHECK(pattern_is(to, sizeof to, (uint64_t)i), "message %d is wrong", i);
    }
    pair_close(&pair);
}

/* A flush of host memory needs no progress of any other call. */
static void flush(struct harness *harness)
{
    struct pair pair;
    char from[64], to[64];
    void *data = to, *memory, *request = (void *)&pair;
    int bytes = sizeof to;
    pair_open(&pair, harness);
    memory = reg(&pair, pair.recv, to, sizeof to);
    pattern_fill(from, sizeof from, 9);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK_OK(driver_iflush(pair.driver, pair.recv, 1, &data, &bytes, &memory, &request));
    CHECK(request != (void *)&pair, "iflush has not set its request");
    for (int i = 0; request && i < 1000; i++) is_done(&pair, &request, NULL);
    CHECK(!request, "a flush of host memory does not complete");
    CHECK_OK(driver_dereg(pair.driver, pair.recv, memory));
    pair_close(&pair);
}

static enum nccl_result profile(void **event, int what, void *parent, int64_t plugin_id, void *data)
{
    return NCCL_RESULT_SUCCESS;
}

/* NCCL passes handles of its profiler; the plugin may ignore but not change them. */
static void profiler(struct harness *harness)
{
    struct pair pair;
    char from[64], to[64], mark[8] = "mark";
    void *data = to, *memory = NULL, *parents[1] = {mark}, *recv = NULL, *send = NULL;
    size_t bytes = sizeof to;
    int tag = 0;
    for (int given = 0; given < 2; given++) {
        driver_profiler = given ? profile : NULL;
        pair_open(&pair, harness);
        recv = send = NULL;
        CHECK_OK(driver_irecv(pair.driver, pair.recv, 1, &data, &bytes, &tag, &memory, parents, &recv));
        CHECK_OK(driver_isend(pair.driver, pair.send, from, sizeof from, 0, NULL, mark, &send));
        CHECK(recv && send, "an empty queue was full");
        finish(&pair, send, recv);
        CHECK(parents[0] == mark && strcmp(mark, "mark") == 0, "a profiler handle was changed");
        pair_close(&pair);
    }
}

const struct point message_points[] = {{"sizes", sizes},
                                       {"too-long", too_long},
                                       {"order", order},
                                       {"groups", groups},
                                       {"full", full},
                                       {"full-sends", full_sends},
                                       {"newest-first", newest_first},
                                       {"optional", optional_completion},
                                       {"reuse", reuse},
                                       {"flush", flush},
                                       {"profiler", profiler},
                                       {NULL, NULL}};
