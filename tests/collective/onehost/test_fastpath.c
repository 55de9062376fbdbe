/* test_fastpath.c - operations that complete inside their call (collective/onehost/fastpath.c), mixed with
 * queued ones: bits, the flight recorder, and every transition from the fast path to the queue. */
#include "collective/onehost/onehost.h"
#include "tests/collective/call.h"
#include "tests/collective/onehost/shm_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"

enum { RANKS_MAX = 4, CALLS = 400, RANK_BUFFER_BYTES = 1 << 20, RECORDS = 64 };

static struct shm_ranks shm_ranks;
static uint8_t *rank_buffers[RANKS_MAX];
static struct weft_recorder *recorders[RANKS_MAX];
static struct outcome outcomes[RANKS_MAX];

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static struct weft_coll_args sum_call(uint32_t rank, uint64_t count)
{
    return (struct weft_coll_args){.kind = WEFT_COLL_ALL_REDUCE,
                                   .in = rank_buffers[rank],
                                   .out = rank_buffers[rank],
                                   .count = count,
                                   .dtype = WEFT_F32,
                                   .op = WEFT_SUM};
}

static bool run_all(uint32_t except)
{
    bool done = false;
    for (int i = 0; i < 200000 && !done; i++) {
        done = true;
        for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
            if (r == except) continue;
            weft_loop_step(shm_ranks.loops[r]);
            done = done && outcomes[r].ended;
        }
        if (!done) usleep(20);
    }
    return done;
}

static void post_ordinary(uint32_t rank, const struct weft_coll_args *args)
{
    outcomes[rank] = (struct outcome){0};
    assert_int_equal(weft_coll_post(shm_ranks.groups[rank], args, outcome_done, &outcomes[rank], NULL, NULL),
                     WEFT_IN_PROGRESS);
}

static enum weft_status call_fastpath(uint32_t rank, const struct weft_coll_args *args)
{
    outcomes[rank] = (struct outcome){0};
    enum weft_status status = weft_coll_try_fastpath(shm_ranks.groups[rank], args, outcome_done,
                                                     &outcomes[rank], &(struct weft_coll *){NULL});
    outcomes[rank].ended = outcomes[rank].ended || status == WEFT_OK;
    return status;
}

/* By the fast path, or queued if the machine was stopped so long that the group's timer is idle. */
static enum weft_status start(uint32_t rank, const struct weft_coll_args *args)
{
    enum weft_status status = call_fastpath(rank, args);
    if (status != WEFT_ERR_AGAIN) return status;
    post_ordinary(rank, args);
    return WEFT_IN_PROGRESS;
}

/* After a queued operation a group has all that the fast path needs. */
static void open_group(uint32_t ranks, uint64_t deadline_ns)
{
    shm_ranks_open(&shm_ranks, ranks, NULL, false, deadline_ns);
    for (uint32_t r = 0; r < ranks; r++) {
        void *memory;
        if (SHM_RANKS_PLAIN_ONLY) assert_non_null(memory = malloc(RANK_BUFFER_BYTES));
        else
            assert_int_equal(weft_memory_alloc(weft_env_system(), RANK_BUFFER_BYTES, &memory, NULL), WEFT_OK);
        rank_buffers[r] = memory;
        memset(memory, 0, RANK_BUFFER_BYTES);
        weft_group_free(shm_ranks.groups[r]);
        assert_int_equal(weft_recorder_create(weft_env_system(), RECORDS, &recorders[r]), WEFT_OK);
        shm_ranks.recorders[r] = recorders[r];
    }
    shm_ranks_group(&shm_ranks, 6, deadline_ns);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = sum_call(r, 3);
        assert_int_equal(call_fastpath(r, &args), WEFT_ERR_AGAIN); /* the vote is not over */
        post_ordinary(r, &args);
    }
    assert_true(run_all(RANKS_MAX));
}

static void close_group(void)
{
    uint32_t ranks = shm_ranks.ranks;
    shm_ranks_close(&shm_ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        if (SHM_RANKS_PLAIN_ONLY) free(rank_buffers[r]);
        else weft_memory_free(weft_env_system(), rank_buffers[r]);
        weft_recorder_free(recorders[r]);
    }
}

/* ---- bits ---- */
struct worker {
    pthread_t thread;
    uint32_t rank, fast;
    char trouble[240];
};

static struct call call_at(uint64_t *state)
{
    static const enum weft_coll_kind kinds[] = {
        WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER, WEFT_COLL_BARRIER,
        WEFT_COLL_BROADCAST,  WEFT_COLL_BROADCAST,      WEFT_COLL_BROADCAST,  WEFT_COLL_BROADCAST,
        WEFT_COLL_REDUCE,     WEFT_COLL_GATHER,         WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL};
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_I32};
    struct call call = {.kind = kinds[draw(state) % 12],
                        .dtype = dtypes[draw(state) % 4],
                        .op = draw(state) % 3 ? WEFT_SUM : WEFT_MAX,
                        .ranks = shm_ranks.ranks};
    /* several with the same root in sequence */
    call.root = draw(state) % 2 ? 0 : (uint32_t)(draw(state) % shm_ranks.ranks);
    call.seed = draw(state);
    uint64_t longer = draw(state) % 24; /* sometimes in a small slot, or a large one */
    call.count = 1 + draw(state) % (longer == 0 ? 12000 : longer < 4 ? 1500 : 40);
    return call;
}

/* One call, by either way. NULL: correct. */
static const char *run_one(struct worker *worker, const struct call *call, bool tries, bool in_place)
{
    struct posted posted;
    enum weft_status status = WEFT_ERR_AGAIN;
    posted_prepare_at(&posted, call, worker->rank, in_place, rank_buffers[worker->rank]);
    if (tries) {
        struct weft_coll_args args = {.kind = call->kind,
                                      .in = posted.in,
                                      .out = posted.out,
                                      .count = call->count,
                                      .dtype = call->dtype,
                                      .op = call->op,
                                      .root = call->root};
        status = weft_coll_try_fastpath(shm_ranks.groups[worker->rank], &args, outcome_done, &posted.outcome,
                                        &posted.coll);
        if (status == WEFT_OK && posted.outcome.ended) return "done has run";
        if (status == WEFT_OK) worker->fast++;
    }
    if (status == WEFT_ERR_AGAIN) status = posted_start(&posted, shm_ranks.groups[worker->rank], 0);
    if (status == WEFT_IN_PROGRESS) {
        if (weft_loop_wait(shm_ranks.loops[worker->rank], &posted.outcome.ended,
                           weft_now_ns(weft_env_system()) + WEFT_SECONDS(20)) < 0)
            return "late";
        status = posted.outcome.times == 1 ? posted.outcome.status : WEFT_ERR_STATE;
    }
    if (status != WEFT_OK) return weft_status_name(status);
    if (!posted_check(&posted, worker->trouble, sizeof worker->trouble)) return worker->trouble;
    posted_release(&posted);
    return NULL;
}

static void *work(void *context)
{
    struct worker *worker = context;
    uint64_t shared = 17, own = 1000 + worker->rank;
    for (uint32_t i = 0; i < CALLS; i++) {
        struct call call = call_at(&shared);
        bool tries = draw(&own) % 4 != 0, in_place = draw(&own) % 2;
        const char *trouble = run_one(worker, &call, tries, in_place);
        if (trouble) {
            if (trouble != worker->trouble)
                snprintf(worker->trouble, sizeof worker->trouble, "call %u: %s", i, trouble);
            return worker->trouble;
        }
    }
    return NULL;
}

/* Each operation has one record, in order. */
static void check_records(uint32_t rank)
{
    struct weft_record record;
    assert_int_equal(weft_recorder_count(recorders[rank]), CALLS + 1);
    for (uint64_t number = CALLS + 1 - RECORDS; number < CALLS + 1; number++) {
        assert_true(weft_recorder_read(recorders[rank], number, &record));
        assert_int_equal(record.sequence, number);
        assert_int_equal(record.status, WEFT_OK);
        assert_string_equal(record.phase, "done");
        assert_true(record.posted_ns > 0 && record.started_ns >= record.posted_ns &&
                    record.ended_ns >= record.started_ns);
    }
}

static void modes_differ(void **state)
{
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += 2) {
        static struct worker workers[RANKS_MAX];
        uint32_t fast = 0;
        open_group(ranks, 0);
        for (uint32_t r = 0; r < ranks; r++) {
            workers[r] = (struct worker){.rank = r};
            assert_int_equal(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
        }
        for (uint32_t r = 0; r < ranks; r++) {
            void *trouble;
            pthread_join(workers[r].thread, &trouble);
            if (trouble) fail_msg("rank %u: %s", r, (const char *)trouble);
            fast += workers[r].fast;
            check_records(r);
        }
        assert_true(fast > 0); /* the last rank to arrive finds all others */
        close_group();
    }
}

/* ---- fallback ---- */

/* Rank 0 is early and falls back to the queue. Rank 1 finds its descriptor. */
static void early_and_late(void **state)
{
    uint32_t fast = 0;
    open_group(2, 0);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t first = i % 2;
        struct weft_coll_args early = sum_call(first, 2), late = sum_call(!first, 2);
        ((float *)early.out)[0] = 1.0f + (float)i;
        ((float *)late.out)[0] = 0.5f;
        assert_int_equal(start(first, &early), WEFT_IN_PROGRESS);
        /* one is active */
        assert_int_equal(
            weft_coll_try_fastpath(shm_ranks.groups[first], &early, outcome_done, &outcomes[first], NULL),
            WEFT_ERR_AGAIN);
        fast += start(!first, &late) == WEFT_OK;
        assert_true(run_all(RANKS_MAX));
        assert_true(((float *)early.out)[0] == 1.5f + (float)i && ((float *)late.out)[0] == 1.5f + (float)i);
        assert_int_equal(outcomes[first].times, 1);
    }
    assert_true(fast > 0);
    close_group();
}

static struct weft_coll_args broadcast_of(uint32_t rank)
{
    struct weft_coll_args args = sum_call(rank, 2);
    args.kind = WEFT_COLL_BROADCAST;
    return args;
}

static enum weft_status call_again(uint32_t rank, uint64_t shape, void *in, void *out)
{
    return weft_coll_try_prepared(shm_ranks.groups[rank], WEFT_COLL_BROADCAST, shape, in, out, outcome_done,
                                  &outcomes[rank], &(struct weft_coll *){NULL});
}

/* Rank 0 sends, rank 1 receives. */
static void broadcast(float value, uint64_t shape, const struct weft_coll_args *args)
{
    struct weft_coll_args theirs = broadcast_of(1);
    float *in = (float *)args->out, *out = (float *)theirs.out;
    in[0] = value;
    assert_int_equal(shape ? call_again(0, shape, in, in) : call_fastpath(0, args), WEFT_OK);
    assert_int_equal(call_fastpath(1, &theirs), WEFT_OK);
    assert_true(out[0] == value);
}

/* Prepared calls: a valid one, and one invalid by its id or by a later change. */
static void again(void **state)
{
    open_group(2, 0);
    struct weft_coll_args args = broadcast_of(0), later = args;
    float *buffer = args.out;
    broadcast(1, 0, &args);
    uint64_t shape = weft_coll_prepared_id(shm_ranks.groups[0], WEFT_COLL_BROADCAST),
             other = weft_coll_prepared_id(shm_ranks.groups[1], WEFT_COLL_BROADCAST);
    assert_true(shape != 0 && other != 0 && shape != other);
    for (int i = 2; i < 20; i++) broadcast((float)i, shape, &args);
    args.in = args.out = buffer + 100; /* other buffers keep the prepared call */
    broadcast(20, shape, &args);
    broadcast(21, 0, &args);
    broadcast(22, shape, &args);
    assert_int_equal(call_again(0, other, buffer, buffer), WEFT_ERR_AGAIN);
    assert_int_equal(call_again(0, shape, NULL, NULL), WEFT_ERR_AGAIN);
    later.deadline_ns = WEFT_MS(100000); /* may be validated again */
    broadcast(23, 0, &later);
    assert_int_equal(call_again(0, shape, buffer, buffer), WEFT_ERR_AGAIN);
    shape = weft_coll_prepared_id(shm_ranks.groups[0], WEFT_COLL_BROADCAST);
    broadcast(24, shape, &later);
    close_group();
}

/* A call that is too long, of another plan, or invalid, is declined. */
static void others_are_declined(void **state)
{
    open_group(2, 0);
    struct weft_coll_args args = sum_call(0, 100000);
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    args = sum_call(0, 2);
    args.plan = WEFT_PLAN_RING;
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    args = sum_call(0, 2);
    args.kind = WEFT_COLL_GATHER; /* unequal pieces, whose lengths no rank knows */
    args.unequal = true;
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    for (int kind = WEFT_COLL_REDUCE; kind <= WEFT_COLL_ALL_TO_ALL; kind++) {
        args = sum_call(0, 2); /* rank 0 is the root */
        args.kind = (enum weft_coll_kind)kind;
        args.in = NULL;
        assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
        args.in = args.out;
        args.out = NULL;
        assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    }
    args = sum_call(0, 2);
    args.in = NULL;
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    args = sum_call(0, 2);
    args.op = WEFT_XOR; /* invalid for floats */
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    assert_int_equal(call_fastpath(0, &args), WEFT_ERR_AGAIN);
    close_group();
}

/* Calls that differ, by any mixture of the ways: both ranks report it. */
static void mismatch(void **state)
{
    for (uint32_t i = 0; i < 8; i++) {
        open_group(2, 0);
        struct weft_coll_args calls[2] = {sum_call(0, 2), sum_call(1, i % 2 ? 2 : 3)};
        if (i % 2) calls[1].op = WEFT_MAX;
        for (uint32_t r = 0; r < 2; r++) {
            if (i / 2 >> r & 1) post_ordinary(r, &calls[r]);
            else assert_int_equal(start(r, &calls[r]), WEFT_IN_PROGRESS);
        }
        assert_true(run_all(RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, i % 2 ? "differs in the reduction" : "differs in the count"))
                fail_msg("%s", outcomes[r].text);
            assert_int_equal(call_fastpath(r, &calls[0]), WEFT_ERR_AGAIN);
        }
        close_group();
    }
}

/* ---- run-ahead: the root of a broadcast or scatter, the other ranks of a reduce or gather ---- */
enum {
    OUT_FLOATS = 32768,
    MANY = 100,
    IN_SMALL_SLOT = 300,
    IN_LARGE_SLOT = 1300 /* floats, of each of three ranks to as many */
};
static const enum weft_coll_kind rooted[] = {WEFT_COLL_BROADCAST, WEFT_COLL_SCATTER, WEFT_COLL_REDUCE,
                                             WEFT_COLL_GATHER};
enum { ROOTED = sizeof rooted / sizeof rooted[0] };

static bool leads(enum weft_coll_kind kind, uint32_t rank, uint32_t root)
{
    return (rank == root) == (kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER);
}

static struct weft_coll_args of_root(enum weft_coll_kind kind, uint32_t rank, uint32_t root, uint64_t count)
{
    float *in = (float *)rank_buffers[rank];
    return (struct weft_coll_args){.kind = kind,
                                   .in = in,
                                   .out = kind == WEFT_COLL_BROADCAST ? in : in + OUT_FLOATS,
                                   .count = count,
                                   .dtype = WEFT_F32,
                                   .op = WEFT_SUM,
                                   .root = root};
}

/* What rank `rank` contributes to its operation i for rank `to`. */
static float value_of(uint32_t rank, uint32_t i, uint32_t to)
{
    return (float)(1 + i + 1000 * rank + 10000 * to);
}

static struct weft_coll_args call_of(enum weft_coll_kind kind, uint32_t rank, uint32_t i, uint64_t count)
{
    struct weft_coll_args args = of_root(kind, rank, 0, count);
    float *in = (float *)rank_buffers[rank];
    bool pieces = kind == WEFT_COLL_SCATTER;
    for (uint32_t to = 0; to < (pieces ? shm_ranks.ranks : 1); to++)
        for (uint64_t e = 0; e < count; e++) in[to * count + e] = value_of(rank, i, to);
    return args;
}

static void check_outcome(const struct weft_coll_args *args, uint32_t rank, uint32_t i)
{
    const float *out = args->out;
    uint64_t last = args->count - 1;
    if (args->kind == WEFT_COLL_BROADCAST) assert_true(out[last] == value_of(0, i, 0));
    if (args->kind == WEFT_COLL_SCATTER) assert_true(out[last] == value_of(0, i, rank));
    float sum = 0;
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        sum += value_of(r, i, 0);
        if (args->kind == WEFT_COLL_GATHER && rank == 0)
            assert_true(out[r * args->count + last] == value_of(r, i, 0));
    }
    if (args->kind == WEFT_COLL_REDUCE && rank == 0) assert_true(out[last] == sum);
}

static uint32_t lead_repeatedly(enum weft_coll_kind kind, uint32_t rank, uint64_t count, uint32_t most)
{
    for (uint32_t i = 0; i < most; i++) {
        struct weft_coll_args args = call_of(kind, rank, i, count);
        enum weft_status status = call_fastpath(rank, &args);
        if (status == WEFT_ERR_AGAIN) return i;
        assert_int_equal(status, WEFT_OK);
    }
    return most;
}

/* All ranks that complete early, the same number of operations. */
static uint32_t all_lead(enum weft_coll_kind kind, uint64_t count, uint32_t most)
{
    uint32_t run_ahead = UINT32_MAX;
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        if (!leads(kind, r, 0)) continue;
        uint32_t now = lead_repeatedly(kind, r, count, most);
        assert_true(now == run_ahead || run_ahead == UINT32_MAX);
        run_ahead = now;
    }
    return run_ahead;
}

static void all_follow(enum weft_coll_kind kind, uint64_t count, uint32_t run_ahead)
{
    for (uint32_t i = 0; i < run_ahead; i++) {
        for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
            if (leads(kind, r, 0)) continue;
            struct weft_coll_args args = call_of(kind, r, i, count);
            assert_int_equal(start(r, &args), WEFT_OK);
            check_outcome(&args, r, i);
        }
    }
}

/* A rank that follows finds what the others contributed. */
static void run_ahead(void **state)
{
    for (uint32_t k = 0; k < ROOTED; k++) {
        open_group(3, 0);
        for (uint32_t round = 0; round < 40; round++) {
            bool in_room = round % 4 == 3, in_hall = round % 8 == 7;
            uint64_t count = in_hall ? IN_LARGE_SLOT : in_room ? IN_SMALL_SLOT : 1;
            uint32_t most = in_hall ? 3 : in_room ? 1 : 4;
            assert_int_equal(all_lead(rooted[k], count, most), most);
            all_follow(rooted[k], count, most);
        }
        close_group();
    }
}

/* It waited for no peer, so the clock was read once. */
static void check_last_record(uint32_t rank)
{
    struct weft_record record;
    assert_true(weft_recorder_read(recorders[rank], weft_recorder_count(recorders[rank]) - 1, &record));
    assert_string_equal(record.phase, "done");
    assert_true(record.posted_ns > 0 && record.started_ns == record.posted_ns &&
                record.ended_ns == record.posted_ns);
}

/* Run-ahead is bounded. */
static void ahead_no_further(void **state)
{
    static const struct {
        uint64_t count;
        uint32_t most;
    } sizes[] = {{1, MANY - 1}, {IN_SMALL_SLOT, 32}, {IN_LARGE_SLOT, ONEHOST_LARGE_SLOTS}};
    for (uint32_t i = 0; i < 3 * ROOTED; i++) {
        enum weft_coll_kind kind = rooted[i / 3];
        uint64_t count = sizes[i % 3].count;
        open_group(2, 0);
        for (uint32_t round = 0; round < 20; round++) {
            uint32_t count_ahead = all_lead(kind, count, MANY);
            assert_in_range(count_ahead, 1, sizes[i % 3].most);
            /* of an inline one before it nothing is left to read */
            if (count > 1 && round == 0)
                assert_in_range(count_ahead, sizes[i % 3].most - 1, sizes[i % 3].most);
            all_follow(kind, count, count_ahead);
            for (uint32_t r = 0; r < 2 && count == 1; r++) check_last_record(r);
        }
        close_group();
    }
}

/* Each rank in turn is the root of each kind, and ranks run ahead as far as possible: no deadlock. */
static void ahead_in_turns(void **state)
{
    enum { OPERATIONS = 600 };
    static const uint64_t counts[] = {1, IN_SMALL_SLOT, IN_LARGE_SLOT};
    for (int size = 0; size < 3; size++) {
        const uint64_t count = counts[size];
        uint32_t next[3] = {0}, stuck = 0;
        bool waits[3] = {0};
        open_group(3, 0);
        while (next[0] + next[1] + next[2] < 3 * OPERATIONS) {
            bool any = false;
            for (uint32_t r = 0; r < 3; r++) {
                if (next[r] == OPERATIONS) continue;
                uint32_t i = next[r];
                struct weft_coll_args args = of_root(rooted[i / 7 % ROOTED], r, i / 5 % 3, count);
                if (waits[r]) { /* queued */
                    weft_loop_step(shm_ranks.loops[r]);
                } else {
                    for (uint32_t e = 0; e < 3 * count; e++) ((float *)rank_buffers[r])[e] = (float)(i + r);
                    waits[r] = start(r, &args) != WEFT_OK;
                }
                if (waits[r] && !outcomes[r].ended) continue;
                if (waits[r]) assert_int_equal(outcomes[r].status, WEFT_OK);
                waits[r] = false;
                float *out = args.out;
                if (args.kind == WEFT_COLL_BROADCAST || args.kind == WEFT_COLL_SCATTER)
                    assert_true(out[0] == (float)(i + args.root) || r == args.root);
                if (args.kind == WEFT_COLL_REDUCE && r == args.root)
                    assert_true(out[0] == (float)(3 * i + 3));
                if (args.kind == WEFT_COLL_GATHER && r == args.root)
                    assert_true(out[0] == (float)i && out[2 * count] == (float)(i + 2));
                next[r]++;
                any = true;
            }
            stuck = any ? 0 : stuck + 1;
            if (stuck > 100000)
                fail_msg("ranks 0, 1, 2 wait at operations %u, %u, %u", next[0], next[1], next[2]);
        }
        close_group();
    }
}

/* The contributions of a rank that has left the group are still readable. */
static void ahead_and_ended(void **state)
{
    for (uint32_t turn = 0; turn < 2 * ROOTED; turn++) {
        uint32_t k = turn / 2, leader = leads(rooted[k], 0, 0) ? 0 : 1, other = !leader;
        uint64_t count = turn % 2 ? IN_LARGE_SLOT : 2;
        open_group(2, 0);
        assert_int_equal(lead_repeatedly(rooted[k], leader, count, 3), 3);
        weft_group_free(shm_ranks.groups[leader]);
        shm_ranks.groups[leader] = NULL;
        for (int i = 0; i < 100; i++) weft_loop_step(shm_ranks.loops[other]); /* it is notified */
        for (uint32_t i = 0; i < 3; i++) {
            struct weft_coll_args args = call_of(rooted[k], other, i, count);
            if (start(other, &args) == WEFT_IN_PROGRESS) assert_true(run_all(leader));
            assert_int_equal(outcomes[other].status, WEFT_OK);
            check_outcome(&args, other, i);
        }
        close_group();
    }
}

/* An operation that waits for slower peers is cancelled before it is published: the group continues. */
static void ahead_and_cancelled(void **state)
{
    for (uint32_t waits = 0; waits < 2 * ROOTED; waits++) {
        enum weft_coll_kind kind = rooted[waits / 2];
        open_group(3, 0);
        uint32_t count = all_lead(kind, 2, 3);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t r = waits % 2 ? i : 2 - i; /* the peers' are published, or not yet */
            struct weft_coll_args args = sum_call(r, 3);
            struct weft_coll *coll;
            for (uint32_t b = 0; b < count && !leads(kind, r, 0); b++) {
                struct weft_coll_args others = of_root(kind, r, 0, 2);
                assert_int_equal(start(r, &others), WEFT_OK);
            }
            outcomes[r] = (struct outcome){0};
            assert_int_equal(
                weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], &coll, NULL),
                WEFT_IN_PROGRESS);
            weft_coll_cancel(coll);
            while (!outcomes[r].ended) weft_loop_step(shm_ranks.loops[r]);
            assert_int_equal(outcomes[r].status, WEFT_ERR_CANCELLED);
        }
        for (uint64_t length = 2; length <= 2000; length *= 10)
            for (uint32_t r = 0; r < 3; r++) {
                struct weft_coll_args args = sum_call(r, length);
                post_ordinary(r, &args);
                if (r == 2) assert_true(run_all(RANKS_MAX));
            }
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(outcomes[r].status, WEFT_OK);
        close_group();
    }
}

/* Peers may wait for the retired_seq of the cancelled one: it is published before the rank runs ahead
 * again. */
static void ahead_after_a_cancelled_one(void **state)
{
    for (uint32_t k = 0; k < ROOTED; k++) {
        open_group(2, 0);
        uint32_t leader = leads(rooted[k], 0, 0) ? 0 : 1, other = !leader, order[2] = {leader, other};
        assert_int_equal(lead_repeatedly(rooted[k], leader, 2, 1), 1);
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t r = order[i];
            struct weft_coll_args follows = call_of(rooted[k], other, 0, 2), args = sum_call(r, 3);
            struct weft_coll *coll;
            if (r == other) assert_int_equal(start(r, &follows), WEFT_OK);
            outcomes[r] = (struct outcome){0};
            assert_int_equal(
                weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], &coll, NULL),
                WEFT_IN_PROGRESS);
            weft_coll_cancel(coll);
            while (!outcomes[r].ended) weft_loop_step(shm_ranks.loops[r]);
            assert_int_equal(outcomes[r].status, WEFT_ERR_CANCELLED);
        }
        struct weft_coll_args args = call_of(rooted[k], other, 1, 2);
        post_ordinary(other, &args);
        assert_int_equal(lead_repeatedly(rooted[k], leader, 2, 1), 1);
        assert_true(run_all(leader)); /* which computes now */
        assert_int_equal(outcomes[other].status, WEFT_OK);
        close_group();
    }
}

/* It waits for all that it ran ahead of, and names the late rank: a receiver, or the root. */
static void ahead_of_a_late_rank(void **state)
{
    for (uint32_t i = 0; i < 2 * ROOTED; i++) {
        uint32_t k = i / 2;
        uint64_t elems = i % 2 ? IN_LARGE_SLOT : 2;
        open_group(3, 0);
        uint32_t leader = leads(rooted[k], 0, 0) ? 0 : 1,
                 count = lead_repeatedly(rooted[k], leader, elems, MANY);
        for (uint32_t n = 0; n < count && leader == 0; n++) {
            struct weft_coll_args others = of_root(rooted[k], 1, 0, elems);
            assert_int_equal(start(1, &others), WEFT_OK);
        }
        struct weft_coll_args args = of_root(rooted[k], leader, 0, elems);
        args.deadline_ns = WEFT_MS(50);
        post_ordinary(leader, &args);
        for (uint32_t r = 0; r < 3; r++) outcomes[r].ended = r != leader;
        assert_true(run_all(RANKS_MAX));
        assert_int_equal(outcomes[leader].status, WEFT_ERR_DEADLINE);
        const char *named = leader == 0 ? "rank 2 has not called it" : "rank 0 has not called it",
                   *all = leader == 0 ? "rank 1, rank 2" : "rank 0, rank 2";
        if (!strstr(outcomes[leader].text, named) && !strstr(outcomes[leader].text, all))
            fail_msg("%s", outcomes[leader].text);
        close_group();
    }
}

/* Two ranks complete early with calls that differ: another root, a call by messages, or another length. Found
 * at the next operation that waits for the other rank, by either way. */
static void ahead_of_another_call(void **state)
{
    static const char *const names[] = {"broadcast of 2 f32 from rank 0", "scatter of 2 f32, root 0",
                                        "reduce of 2 f32", "gather of 2 f32, root "};
    for (uint32_t i = 0; i < 4 * ROOTED; i++) {
        enum weft_coll_kind kind = rooted[i / 4];
        uint32_t root = leads(kind, 0, 0) ? 0 : 1; /* rank 0 completes early */
        open_group(2, 0);
        struct weft_coll_args first = of_root(kind, 0, root, 2), other = of_root(kind, 1, !root, 2),
                              next[2] = {sum_call(0, 2), sum_call(1, 2)};
        if (i % 2) other = sum_call(1, 2), other.plan = WEFT_PLAN_RING;
        if (i % 4 == 3) next[0].plan = WEFT_PLAN_RING;
        assert_int_equal(call_fastpath(0, &first), WEFT_OK);
        if (i % 2) post_ordinary(1, &other);
        else assert_int_equal(call_fastpath(1, &other), WEFT_OK);
        assert_int_equal(start(0, &next[0]), WEFT_IN_PROGRESS);
        if (i % 4 == 0) assert_int_equal(start(1, &next[1]), WEFT_IN_PROGRESS);
        if (i % 4 == 2) post_ordinary(1, &next[1]);
        assert_true(run_all(RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, "operation 1 differs in ") ||
                !strstr(outcomes[r].text, names[i / 4]))
                fail_msg("%s", outcomes[r].text);
        }
        close_group();
    }
}

/* Found while it waits in a recv: the error is not about the recv. */
static void ahead_of_another_call_in_a_recv(void **state)
{
    open_group(2, 0);
    struct weft_coll_args first = of_root(WEFT_COLL_REDUCE, 0, 1, 2), other = sum_call(1, 2);
    struct weft_coll_args recv = {
        .kind = WEFT_COLL_RECV, .out = rank_buffers[0], .count = 1, .dtype = WEFT_F32, .root = 1};
    other.plan = WEFT_PLAN_RING;
    assert_int_equal(call_fastpath(0, &first), WEFT_OK);
    post_ordinary(1, &other);
    post_ordinary(0, &recv);
    assert_true(run_all(RANKS_MAX));
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
        if (!strstr(outcomes[r].text, "operation 1 differs in ")) fail_msg("%s", outcomes[r].text);
    }
    close_group();
}

/* Two ranks complete early in one operation with different lengths: they compare descriptors although the
 * root has not called. */
static void ahead_of_each_other(void **state)
{
    for (uint32_t k = 2; k < ROOTED; k++) {
        open_group(3, 0);
        for (uint32_t r = 1; r < 3; r++) {
            struct weft_coll_args args = of_root(rooted[k], r, 0, r);
            assert_int_equal(call_fastpath(r, &args), WEFT_OK);
        }
        outcomes[0].ended = outcomes[2].ended = true;
        struct weft_coll_args next = sum_call(1, 2);
        next.deadline_ns = WEFT_SECONDS(20);
        post_ordinary(1, &next);
        struct weft_coll_args root = of_root(rooted[k], 0, 0, 2);
        assert_int_equal(start(0, &root), WEFT_IN_PROGRESS);
        assert_true(run_all(RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, "operation 1 differs in the count"))
                fail_msg("%s", outcomes[r].text);
        }
        close_group();
    }
}

/* Rank 2 never calls: the deadline names it. */
static void late_rank(void **state)
{
    for (int i = 0; i < 2; i++) {
        open_group(3, 0);
        for (uint32_t r = 0; r < 2; r++) {
            struct weft_coll_args args = sum_call(r, i ? IN_LARGE_SLOT : 2);
            args.deadline_ns = WEFT_MS(50);
            assert_int_equal(start(r, &args), WEFT_IN_PROGRESS);
        }
        outcomes[2].ended = true;
        assert_true(run_all(RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
            if (!strstr(outcomes[r].text, "rank 2 ")) fail_msg("%s", outcomes[r].text);
        }
        close_group();
    }
}

static void group_fails(void **state)
{
    open_group(2, 0);
    struct weft_coll_args args = sum_call(0, 2);
    assert_int_equal(start(0, &args), WEFT_IN_PROGRESS);
    weft_group_fail(shm_ranks.groups[0], WEFT_ERR_ABORTED, "stopped by hand");
    outcomes[1].ended = true;
    assert_true(run_all(RANKS_MAX));
    assert_int_equal(outcomes[0].status, WEFT_ERR_ABORTED);
    for (int i = 0; i < 100; i++) weft_loop_step(shm_ranks.loops[1]); /* it is notified */
    assert_int_equal(call_fastpath(1, &args), WEFT_ERR_AGAIN);
    assert_int_equal(weft_coll_post(shm_ranks.groups[1], &args, outcome_done, &outcomes[1], NULL, NULL),
                     WEFT_ERR_ABORTED);
    close_group();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_differ),
        cmocka_unit_test(early_and_late),
        cmocka_unit_test(again),
        cmocka_unit_test(others_are_declined),
        cmocka_unit_test(mismatch),
        cmocka_unit_test(run_ahead),
        cmocka_unit_test(ahead_no_further),
        cmocka_unit_test(ahead_in_turns),
        cmocka_unit_test(ahead_and_ended),
        cmocka_unit_test(ahead_and_cancelled),
        cmocka_unit_test(ahead_after_a_cancelled_one),
        cmocka_unit_test(ahead_of_another_call_in_a_recv),
        cmocka_unit_test(ahead_of_a_late_rank),
        cmocka_unit_test(ahead_of_another_call),
        cmocka_unit_test(ahead_of_each_other),
        cmocka_unit_test(late_rank),
        cmocka_unit_test(group_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
