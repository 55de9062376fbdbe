/* test_sendrecv.c - sends and recvs on one host (collective/onehost/sendrecv.c): random ones of all lengths
 * in two groups, on the fast path and queued, early and late; and how they end if the two calls differ or one
 * is missing. */
#include "tests/collective/call.h"
#include "tests/collective/onehost/shm_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"

enum {
    RANKS_MAX = 10,
    MIXED_RANKS_MAX = 4,
    GROUPS = 2,
    TRANSFERS = 3000,
    WINDOW = 24,
    ELEMS_MAX = 50000,
    AHEAD = 100,
    MARGIN = 16,
    LONG = 100000 /* goes by message */
};

static struct shm_ranks shm_ranks;
static struct weft_group *groups[GROUPS][RANKS_MAX];

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* ---- groups ---- */
static uint32_t step_not = SHM_RANKS_MAX; /* its loop is not stepped */
static void step_all(int times)
{
    for (int i = 0; i < times; i++)
        for (uint32_t r = 0; r < shm_ranks.ranks; r++)
            if (r != step_not) weft_loop_step(shm_ranks.loops[r]);
}

static void open_groups(uint32_t ranks)
{
    shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
    memcpy(groups[0], shm_ranks.groups, sizeof groups[0]);
    shm_ranks_group(&shm_ranks, 6, 0);
    memcpy(groups[1], shm_ranks.groups, sizeof groups[1]);
    while (!weft_group_uses_onehost(groups[0][0], WEFT_COLL_BARRIER) ||
           !weft_group_uses_onehost(groups[1][ranks - 1], WEFT_COLL_BARRIER))
        step_all(1);
    step_all(100); /* the vote is over */
}

static void close_groups(void)
{
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) weft_group_free(groups[0][r]);
    memcpy(shm_ranks.groups, groups[1], sizeof groups[1]);
    shm_ranks_close(&shm_ranks);
}

/* ---- one send or recv ---- */
struct transfer {
    uint32_t group, from, to;
    uint64_t count, seed;
    enum weft_dtype dtype;
};

struct end {
    uint8_t *memory;
    struct transfer transfer;
    bool sends, mapped;
    struct weft_coll *coll;
    struct outcome outcome;
};

static uint8_t byte_of(const struct transfer *transfer, size_t i)
{
    return (uint8_t)(transfer->seed + i * 7 + (i >> 8));
}

static struct weft_coll_args args_of(struct end *end)
{
    const struct transfer *t = &end->transfer;
    return (struct weft_coll_args){.kind = end->sends ? WEFT_COLL_SEND : WEFT_COLL_RECV,
                                   .in = end->memory,
                                   .out = end->memory,
                                   .count = t->count,
                                   .dtype = t->dtype,
                                   .root = end->sends ? t->to : t->from};
}

static size_t bytes_of(const struct transfer *transfer)
{
    return transfer->count * weft_dtype_bytes(transfer->dtype);
}

static void prepare_in(struct end *end, const struct transfer *transfer, bool sends, bool mapped)
{
    size_t bytes = bytes_of(transfer);
    void *memory;
    if (!mapped) memory = malloc(bytes + MARGIN);
    else assert_int_equal(weft_memory_alloc(weft_env_system(), bytes + MARGIN, &memory, NULL), WEFT_OK);
    *end = (struct end){.transfer = *transfer, .sends = sends, .mapped = mapped, .memory = memory};
    memset(end->memory, 0xa5, bytes + MARGIN);
    for (size_t i = 0; sends && i < bytes; i++) end->memory[i] = byte_of(transfer, i);
}

static void prepare(struct end *end, const struct transfer *transfer, bool sends)
{
    prepare_in(end, transfer, sends, false);
}

static void free_memory(const struct end *end)
{
    if (end->mapped) weft_memory_free(weft_env_system(), end->memory);
    else free(end->memory);
}

/* By the fast path if possible, else posted. */
static enum weft_status start(struct end *end, bool fast)
{
    const struct transfer *t = &end->transfer;
    struct weft_group *group = groups[t->group][end->sends ? t->from : t->to];
    struct weft_coll_args args = args_of(end);
    enum weft_status status = WEFT_ERR_AGAIN;
    end->outcome = (struct outcome){0};
    if (fast) status = weft_coll_try_fastpath(group, &args, outcome_done, &end->outcome, &end->coll);
    if (status == WEFT_OK && end->outcome.times == 0)
        end->outcome = (struct outcome){.ended = true, .times = 1, .status = WEFT_OK};
    if (status == WEFT_ERR_AGAIN)
        status = weft_coll_post(group, &args, outcome_done, &end->outcome, &end->coll, NULL);
    return status;
}

static bool came_right(const struct end *end)
{
    size_t bytes = bytes_of(&end->transfer);
    for (size_t i = 0; i < bytes; i++)
        if (end->memory[i] != byte_of(&end->transfer, i)) return false;
    for (size_t i = bytes; i < bytes + MARGIN; i++)
        if (end->memory[i] != 0xa5) return false;
    return true;
}

/* NULL: correct. */
static const char *finish(struct end *end, struct weft_loop *loop)
{
    if (!end->outcome.ended &&
        weft_loop_wait(loop, &end->outcome.ended, weft_now_ns(weft_env_system()) + WEFT_SECONDS(20)) < 0)
        return "late";
    const char *trouble = end->outcome.status < 0   ? weft_status_name(end->outcome.status)
                          : end->outcome.times != 1 ? "done ran not once"
                          : came_right(end)         ? NULL
                                                    : "other bytes";
    free_memory(end);
    return trouble;
}

/* ---- random ones ---- */
struct worker {
    pthread_t thread;
    uint32_t rank, fast;
    uint64_t seed;
    char trouble[120];
};

static struct transfer transfer_at(uint64_t *state)
{
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_U8};
    struct transfer t = {.group = (uint32_t)(draw(state) % GROUPS),
                         .from = (uint32_t)(draw(state) % shm_ranks.ranks),
                         .dtype = dtypes[draw(state) % 4]};
    t.to = (t.from + 1 + (uint32_t)(draw(state) % (shm_ranks.ranks - 1))) % shm_ranks.ranks;
    uint64_t kind = draw(state) % 16;
    t.count = draw(state) % (kind < 9 ? 12 : kind < 14 ? 600 : kind < 15 ? 4000 : ELEMS_MAX);
    t.seed = draw(state);
    return t;
}

/* All ranks run the same list, each with its own number of active calls: no deadlock. */
static void *work(void *context)
{
    struct worker *worker = context;
    static _Thread_local struct end ends[WINDOW];
    uint64_t state = worker->seed, own = worker->seed * 64 + worker->rank;
    uint32_t begun = 0, over = 0, most = WINDOW;
    const char *trouble = NULL;
    for (uint32_t i = 0; i < TRANSFERS && !trouble; i++) {
        struct transfer t = transfer_at(&state);
        if (t.from != worker->rank && t.to != worker->rank) continue;
        if (draw(&own) % 64 == 0) most = 1 + (uint32_t)(draw(&own) % WINDOW);
        if (draw(&own) % 256 == 0) usleep(500); /* peers get far ahead */
        struct end *end = &ends[begun++ % WINDOW];
        prepare_in(end, &t, t.from == worker->rank, bytes_of(&t) > 10000 && draw(&own) % 2);
        enum weft_status status = start(end, draw(&own) % 4 != 0);
        worker->fast += status == WEFT_OK;
        if (status < 0) trouble = weft_status_name(status);
        while (!trouble && begun - over >= most)
            trouble = finish(&ends[over++ % WINDOW], shm_ranks.loops[worker->rank]);
        if (trouble)
            snprintf(worker->trouble, sizeof worker->trouble, "transfer %u, or up to %u before it: %s", i,
                     begun - over, trouble);
    }
    while (!trouble && over < begun) trouble = finish(&ends[over++ % WINDOW], shm_ranks.loops[worker->rank]);
    if (trouble && !worker->trouble[0])
        snprintf(worker->trouble, sizeof worker->trouble, "one of the last: %s", trouble);
    return trouble ? worker->trouble : NULL;
}

static void modes_differ(void **state)
{
    for (uint32_t ranks = 2; ranks <= MIXED_RANKS_MAX; ranks++) {
        static struct worker workers[MIXED_RANKS_MAX];
        uint32_t fast = 0;
        open_groups(ranks);
        for (uint32_t r = 0; r < ranks; r++) {
            workers[r] = (struct worker){.rank = r, .seed = 5 + ranks};
            assert_int_equal(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
        }
        for (uint32_t r = 0; r < ranks; r++) {
            void *trouble;
            pthread_join(workers[r].thread, &trouble);
            if (trouble) fail_msg("%u ranks, rank %u: %s", ranks, r, (const char *)trouble);
            fast += workers[r].fast;
        }
        assert_true(fast > TRANSFERS / 4);
        close_groups();
    }
}

/* ---- by one thread ---- */
static struct transfer short_one(uint64_t count)
{
    return (struct transfer){.from = 0, .to = 1, .count = count, .dtype = WEFT_F32, .seed = count};
}

static void must_end(struct end *end)
{
    for (int i = 0; i < 200000 && !end->outcome.ended; i++) {
        step_all(1);
        if (i > 100) usleep(10);
    }
    assert_true(end->outcome.ended);
}

/* A sender never waits for the receiver; its sends arrive in order, also after it has left the group, and
 * nothing after them. */
static void ahead(void **state)
{
    for (uint32_t round = 0; round < 3; round++) {
        static struct end sends[AHEAD], recvs[AHEAD + 1];
        open_groups(2);
        for (uint32_t i = 0; i < AHEAD; i++) {
            /* buffers of both sizes; longer ones would wait */
            struct transfer t = short_one(round == 0   ? 1 + i % 10
                                          : round == 1 ? 1 + i % 1000
                                                       : 1 + i * 701 % 2000);
            prepare(&sends[i], &t, true);
            assert_true(start(&sends[i], round < 2) >= 0);
            must_end(&sends[i]);
            assert_int_equal(sends[i].outcome.status, WEFT_OK);
        }
        if (round == 1) {
            weft_group_free(groups[0][0]);
            groups[0][0] = NULL;
            step_all(100);
        }
        /* unmatched messages are freed with their group */
        uint32_t most = round == 1 ? 8 : AHEAD;
        for (uint32_t i = 0; i < most; i++) {
            prepare(&recvs[i], &sends[i].transfer, false);
            assert_true(start(&recvs[i], i % 2) >= 0);
            must_end(&recvs[i]);
            assert_int_equal(recvs[i].outcome.status, WEFT_OK);
            assert_true(came_right(&recvs[i]));
            free(recvs[i].memory);
        }
        for (uint32_t i = 0; i < AHEAD; i++) free(sends[i].memory);
        close_groups();
    }
}

/* Sends `bytes` from rank 0 to `to`: did it complete inside the call? */
static bool sends_at_once(struct end *end, uint32_t to, size_t bytes, bool mapped)
{
    struct transfer t = short_one(bytes / 4);
    t.to = to;
    prepare_in(end, &t, true, mapped);
    return start(end, true) == WEFT_OK;
}

static void must_arrive(struct end *send)
{
    struct end recv;
    prepare(&recv, &send->transfer, false);
    assert_true(start(&recv, true) >= 0);
    must_end(&recv);
    assert_true(recv.outcome.status == WEFT_OK && came_right(&recv));
    must_end(send);
    free_memory(&recv), free_memory(send);
}

/* Lengths up to which a send completes inside the call: unmapped 256 KiB to eight receivers, else 32 KiB. */
static void at_once(void **state)
{
    static const struct {
        size_t bytes;
        bool mapped, at_once;
    } cases[] = {{16384, true, true},   {32772, true, false},  {65536, true, false},  {16384, false, true},
                 {131072, false, true}, {262144, false, true}, {262148, false, false}};
    struct end send;
    open_groups(10);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (sends_at_once(&send, 1, cases[i].bytes, cases[i].mapped) != cases[i].at_once)
            fail_msg("%zu bytes", cases[i].bytes);
        must_arrive(&send);
    }
    for (uint32_t to = 2; to < 10; to++) {
        assert_int_equal(sends_at_once(&send, to, 65536, false), to < 9);
        must_arrive(&send);
        assert_true(sends_at_once(&send, to, 32768, false));
        must_arrive(&send);
    }
    close_groups();
}

/* After all in a buffer was received all of it is free; a larger buffer waits until the smaller one is
 * empty. */
static void buffer_of_its_own(void **state)
{
    enum { BYTES = 48 << 10, FIT = 10 };
    struct end first, sends[FIT + 1];
    open_groups(2);
    assert_true(sends_at_once(&first, 1, 8192, false));
    assert_false(sends_at_once(&sends[0], 1, BYTES, false));
    must_arrive(&first), must_arrive(&sends[0]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i <= round; i++) {
            assert_true(sends_at_once(&first, 1, BYTES, false));
            must_arrive(&first);
        }
        for (int i = 0; i <= FIT; i++) assert_int_equal(sends_at_once(&sends[i], 1, BYTES, false), i < FIT);
        for (int i = 0; i <= FIT; i++) must_arrive(&sends[i]);
    }
    close_groups();
}

/* Any number of recvs before their sends; other pairs and groups do not wait for them. */
static void early(void **state)
{
    static struct end recvs[AHEAD], sends[AHEAD];
    struct end other;
    open_groups(3);
    for (uint32_t i = 0; i < AHEAD; i++) {
        struct transfer t = short_one(1 + i * i * 10);
        prepare(&recvs[i], &t, false);
        assert_int_equal(start(&recvs[i], true), WEFT_IN_PROGRESS);
    }
    for (uint32_t i = 0; i < 4; i++) {
        struct transfer t = {
            .group = i % 2, .from = i < 2 ? 2 : 0, .to = i < 2 ? 1 : 2, .count = 3, .dtype = WEFT_F32};
        prepare(&other, &t, true);
        assert_int_equal(start(&other, true), WEFT_OK);
        free(other.memory);
        prepare(&other, &t, false);
        assert_true(start(&other, i == 0) >= 0);
        must_end(&other);
        assert_true(came_right(&other));
        free(other.memory);
    }
    for (uint32_t i = 0; i < AHEAD; i++) {
        assert_false(recvs[i].outcome.ended);
        prepare(&sends[i], &recvs[i].transfer, true);
        assert_true(start(&sends[i], i % 3) >= 0);
        must_end(&recvs[i]);
        assert_true(recvs[i].outcome.status == WEFT_OK && came_right(&recvs[i]));
        must_end(&sends[i]);
        free(sends[i].memory);
        free(recvs[i].memory);
    }
    close_groups();
}

/* Bytes through memory are counted, per direction. */
static void counted(void **state)
{
    open_groups(2);
    struct transfer t = short_one(700);
    struct end send, recv;
    prepare(&send, &t, true);
    prepare(&recv, &t, false);
    assert_int_equal(start(&send, true), WEFT_OK);
    assert_int_equal(start(&recv, true), WEFT_OK);
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_moved moved = {.out_bytes = 1};
        weft_group_add_moved(groups[0][r], &moved);
        assert_int_equal(moved.out_bytes, 1 + (r == 0 ? 2800 : 0));
        assert_int_equal(moved.in_bytes, r == 0 ? 0 : 2800);
    }
    free(send.memory), free(recv.memory);
    close_groups();
}

/* Another length or type, in any order: the receiver reports it, and the sender with its next call at the
 * latest. */
static void mismatch(void **state)
{
    static const uint64_t counts[][2] = {{2, 3},    {2, 500},         {500, 2}, {2, LONG},
                                         {LONG, 2}, {LONG, LONG + 1}, {2, 2},   {LONG, LONG}};
    for (uint32_t i = 0; i < 4 * 8; i++) {
        struct transfer sent = short_one(counts[i / 4][0]), received = short_one(counts[i / 4][1]);
        struct end send, recv, next;
        bool types = sent.count == received.count;
        if (types) received.dtype = WEFT_I32;
        open_groups(2);
        prepare(&send, &sent, true);
        prepare(&recv, &received, false);
        for (uint32_t turn = 0; turn < 2; turn++)
            assert_true(start(turn == i % 2 ? &send : &recv, i & 2) >= 0);
        must_end(&recv);
        assert_int_equal(recv.outcome.status, WEFT_ERR_MISMATCH);
        if (!strstr(recv.outcome.text, types ? "a recv differs in the element type: rank 0 called message of"
                                             : "a recv differs in the count: rank 0 called message of") ||
            !strstr(recv.outcome.text, ", rank 1 called message of"))
            fail_msg("%s", recv.outcome.text);
        must_end(&send);
        step_all(100); /* it is notified */
        struct transfer t = short_one(1);
        prepare(&next, &t, true);
        assert_int_equal(start(&next, i & 2), WEFT_ERR_MISMATCH);
        free(send.memory), free(recv.memory), free(next.memory);
        close_groups();
    }
}

/* No send: the deadline names the sender. */
static void late(void **state)
{
    open_groups(3);
    struct transfer t = {.from = 2, .to = 1, .count = 3, .dtype = WEFT_F32};
    struct end recv;
    prepare(&recv, &t, false);
    struct weft_coll_args args = args_of(&recv);
    args.deadline_ns = WEFT_MS(50);
    assert_int_equal(weft_coll_try_fastpath(groups[0][1], &args, outcome_done, &recv.outcome, &recv.coll),
                     WEFT_IN_PROGRESS);
    must_end(&recv);
    assert_int_equal(recv.outcome.status, WEFT_ERR_DEADLINE);
    if (!strstr(recv.outcome.text, "a recv (message of 3 f32) waited") ||
        !strstr(recv.outcome.text, "for rank 2, which has not met it"))
        fail_msg("%s", recv.outcome.text);
    free(recv.memory);
    close_groups();
}

/* The sender itself waits for a rank that has not called a collective that both others have called: that rank
 * is named. */
static void late_behind_another(void **state)
{
    for (uint32_t silent = 0; silent < 2; silent++) {
        open_groups(3);
        struct transfer t = {.from = 0, .to = 1, .count = 3, .dtype = WEFT_F32};
        struct end recv;
        float word[3][3] = {{0}};
        struct outcome sums[2] = {{0}};
        prepare(&recv, &t, false);
        struct weft_coll_args args = args_of(&recv);
        args.deadline_ns = WEFT_MS(50);
        struct outcome met[3] = {{0}};
        for (uint32_t r = 0; r < 3; r++)
            assert_int_equal(weft_coll_post(groups[0][r], &(struct weft_coll_args){.kind = WEFT_COLL_BARRIER},
                                            outcome_done, &met[r], NULL, NULL),
                             WEFT_IN_PROGRESS);
        step_all(100);
        for (uint32_t r = 0; r < 2; r++) { /* rank 0 waits for the others, rank 1 has contributed */
            struct weft_coll_args gather = {.kind = WEFT_COLL_GATHER,
                                            .in = word[r],
                                            .out = word[2],
                                            .count = 1,
                                            .dtype = WEFT_F32,
                                            .deadline_ns = WEFT_SECONDS(60)};
            struct weft_coll *coll;
            assert_int_equal(weft_coll_try_fastpath(groups[0][r], &gather, outcome_done, &sums[r], &coll),
                             r == 0 ? WEFT_IN_PROGRESS : WEFT_OK);
        }
        step_all(100);
        assert_false(sums[0].ended);
        assert_int_equal(weft_coll_try_fastpath(groups[0][1], &args, outcome_done, &recv.outcome, &recv.coll),
                         WEFT_IN_PROGRESS);
        if (silent) step_not = 2;
        must_end(&recv);
        step_not = SHM_RANKS_MAX;
        assert_int_equal(recv.outcome.status, WEFT_ERR_DEADLINE);
        if (!strstr(recv.outcome.text, "for rank 0, which has not met it, being at operation ") ||
            !strstr(recv.outcome.text, "where it waits for rank 2"))
            fail_msg("%s", recv.outcome.text);
        step_all(100);
        assert_true(sums[0].ended);
        free(recv.memory);
        close_groups();
    }
}

/* The sender leaves, or the group is ended by hand, while a recv waits. */
static void gone(void **state)
{
    for (uint32_t by_hand = 0; by_hand < 2; by_hand++) {
        open_groups(2);
        struct transfer t = short_one(3);
        struct end recv;
        prepare(&recv, &t, false);
        assert_int_equal(start(&recv, true), WEFT_IN_PROGRESS);
        if (by_hand) {
            weft_group_fail(groups[0][1], WEFT_ERR_ABORTED, "stopped by hand");
        } else {
            weft_group_free(groups[0][0]);
            groups[0][0] = NULL;
        }
        must_end(&recv);
        assert_int_equal(recv.outcome.status, by_hand ? WEFT_ERR_ABORTED : WEFT_ERR_PEER_LOST);
        if (!strstr(recv.outcome.text, by_hand ? "stopped by hand" : "rank 0 left the group before a recv"))
            fail_msg("%s", recv.outcome.text);
        assert_int_equal(weft_group_ended_by_leave(groups[0][1]), !by_hand);
        free(recv.memory);
        close_groups();
    }
}

/* It has sent some and left. All recvs are posted before the first is polled; one more fails, unless one was
 * cancelled. */
static void ended_after_several(void **state)
{
    enum { SENDS = 5 };
    for (uint32_t cancels = 0; cancels < 2; cancels++) {
        static struct end sends[SENDS], recvs[SENDS + 1];
        open_groups(2);
        struct transfer t = short_one(200);
        for (uint32_t i = 0; i < SENDS; i++) {
            prepare(&sends[i], &t, true);
            assert_int_equal(start(&sends[i], true), WEFT_OK);
        }
        weft_group_free(groups[0][0]);
        groups[0][0] = NULL;
        step_all(100);
        for (uint32_t i = 0; i < SENDS + cancels; i++) {
            prepare(&recvs[i], &t, false);
            assert_int_equal(start(&recvs[i], i % 2), WEFT_IN_PROGRESS);
            if (cancels && i == 2) weft_coll_cancel(recvs[i].coll);
        }
        for (uint32_t i = 0; i < SENDS + cancels; i++) {
            must_end(&recvs[i]);
            assert_int_equal(recvs[i].outcome.status, cancels && i == 2 ? WEFT_ERR_CANCELLED : WEFT_OK);
            assert_true(came_right(&recvs[i]) == !(cancels && i == 2));
            free(recvs[i].memory);
        }
        prepare(&recvs[0], &t, false);
        assert_int_equal(start(&recvs[0], false), WEFT_ERR_PEER_LOST);
        free(recvs[0].memory);
        for (uint32_t i = 0; i < SENDS; i++) free(sends[i].memory);
        close_groups();
    }
}

/* A third rank has left: the two others continue. Sends to it and recvs from it are refused. */
static void others_continue(void **state)
{
    static const uint64_t counts[] = {0, 3, 900, LONG};
    for (uint32_t last = 0; last < 4; last++) {
        open_groups(3);
        weft_group_free(groups[0][2]);
        groups[0][2] = NULL;
        step_all(100);
        for (uint32_t i = 0; i < 8; i++) {
            struct transfer t = short_one(counts[i / 2]);
            struct end ends[2];
            for (uint32_t e = 0; e < 2; e++) {
                prepare(&ends[e], &t, e == i % 2);
                assert_true(start(&ends[e], last % 2) >= 0);
            }
            for (uint32_t e = 0; e < 2; e++) {
                must_end(&ends[e]);
                assert_int_equal(ends[e].outcome.status, WEFT_OK);
                assert_true(came_right(&ends[e]));
                free(ends[e].memory);
            }
        }
        const bool sends = last / 2;
        float word = 0;
        struct weft_coll_args args = {.kind = sends ? WEFT_COLL_SEND : WEFT_COLL_RECV,
                                      .in = &word,
                                      .out = &word,
                                      .count = 1,
                                      .dtype = WEFT_F32,
                                      .root = 2};
        struct outcome outcome = {0};
        struct weft_error error = {0};
        assert_int_equal(
            weft_coll_try_fastpath(groups[0][0], &args, outcome_done, &outcome, &(struct weft_coll *){NULL}),
            WEFT_ERR_AGAIN);
        assert_int_equal(weft_coll_post(groups[0][0], &args, outcome_done, &outcome, NULL, &error),
                         WEFT_ERR_PEER_LOST);
        if (!strstr(error.text,
                    sends ? "rank 2 left the group before a send" : "rank 2 left the group before a recv"))
            fail_msg("%s", error.text);
        assert_true(weft_group_ended_by_leave(groups[0][0]));
        close_groups();
    }
}

/* A cancelled recv takes no send: the next one gets it, also if its message was announced already. */
static void cancelled(void **state)
{
    for (uint32_t i = 0; i < 3; i++) {
        bool announced = i == 2;
        open_groups(2);
        struct transfer first = short_one(i ? LONG : 3), second = short_one(5);
        struct end cancelled, recvs[2], sends[2];
        for (uint32_t k = 0; k < 2; k++)
            prepare(&sends[k], k ? &second : &first, true), prepare(&recvs[k], k ? &second : &first, false);
        /* not sent before its loop is stepped */
        if (announced) assert_int_equal(start(&sends[0], true), WEFT_IN_PROGRESS);
        prepare(&cancelled, &first, false);
        assert_int_equal(start(&cancelled, !i), WEFT_IN_PROGRESS);
        for (int k = 0; k < 10; k++) weft_loop_step(shm_ranks.loops[1]);
        weft_coll_cancel(cancelled.coll);
        while (!cancelled.outcome.ended) weft_loop_step(shm_ranks.loops[1]);
        assert_int_equal(cancelled.outcome.status, WEFT_ERR_CANCELLED);
        for (uint32_t k = 0; k < 2; k++) {
            if (k > 0 || !announced) assert_true(start(&sends[k], true) >= 0);
            assert_true(start(&recvs[k], true) >= 0);
        }
        for (uint32_t k = 0; k < 2; k++) {
            must_end(&recvs[k]);
            must_end(&sends[k]);
            assert_true(recvs[k].outcome.status == WEFT_OK && came_right(&recvs[k]));
            free(sends[k].memory), free(recvs[k].memory);
        }
        free(cancelled.memory);
        close_groups();
    }
}

/* Invalid calls are refused. */
static void refused(void **state)
{
    open_groups(2);
    float word = 0;
    struct weft_coll_args args = {
        .kind = WEFT_COLL_SEND, .in = &word, .count = 1, .dtype = WEFT_F32, .root = 0};
    struct outcome outcome;
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 1) args.root = 7;
        if (i == 2) args.root = 1, args.in = NULL;
        assert_int_equal(
            weft_coll_try_fastpath(groups[0][0], &args, outcome_done, &outcome, &(struct weft_coll *){NULL}),
            WEFT_ERR_AGAIN);
        assert_int_equal(weft_coll_post(groups[0][0], &args, outcome_done, &outcome, NULL, NULL),
                         WEFT_ERR_INVALID);
    }
    close_groups();
}

/* A group with opens_onehost_later has no segment until a rank posts; then all ranks vote. If a rank has left
 * by then, the calls go by messages and do not wait for it. */
static void opens_onehost_later(void **state)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        open_groups(3);
        for (uint32_t r = 0; r < 3; r++) weft_group_free(groups[1][r]);
        shm_ranks.opens_onehost_later = true;
        shm_ranks_group(&shm_ranks, 7, 0);
        memcpy(groups[1], shm_ranks.groups, sizeof groups[1]);
        step_all(100);
        for (uint32_t r = 0; r < 3; r++)
            assert_true(weft_group_shares_memory(groups[1][r]) &&
                        !weft_group_uses_onehost(groups[1][r], WEFT_COLL_BARRIER));
        const struct transfer transfer = {
            .group = 1, .from = 0, .to = 1, .count = 5, .dtype = WEFT_F32, .seed = 3};
        struct end ends[2];
        for (int e = 0; e < 2; e++) {
            prepare(&ends[e], &transfer, e == 0);
            assert_int_equal(start(&ends[e], true), WEFT_IN_PROGRESS);
        }
        if (leaves) weft_group_free(groups[1][2]), groups[1][2] = NULL;
        assert_true(shm_ranks_run(&shm_ranks, &ends[0].outcome.ended, SHM_RANKS_MAX) &&
                    shm_ranks_run(&shm_ranks, &ends[1].outcome.ended, SHM_RANKS_MAX));
        for (int e = 0; e < 2; e++) assert_null(finish(&ends[e], shm_ranks.loops[e]));
        step_all(100);
        for (uint32_t r = 0; r < 3 - (uint32_t)leaves; r++)
            assert_true(weft_group_shares_memory(groups[1][r]) == !leaves &&
                        weft_group_uses_onehost(groups[1][r], WEFT_COLL_BARRIER) == !leaves);
        close_groups();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_differ),
        cmocka_unit_test(ahead),
        cmocka_unit_test(at_once),
        cmocka_unit_test(buffer_of_its_own),
        cmocka_unit_test(early),
        cmocka_unit_test(counted),
        cmocka_unit_test(mismatch),
        cmocka_unit_test(late),
        cmocka_unit_test(late_behind_another),
        cmocka_unit_test(gone),
        cmocka_unit_test(ended_after_several),
        cmocka_unit_test(others_continue),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(refused),
        cmocka_unit_test(opens_onehost_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
