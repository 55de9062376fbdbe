/* test_oversubscribed.c - work stealing (collective/onehost/oversubscribed.c): the last rank to arrive
 * completes the operation for all; a rank stopped with a claimed slice is named; sums are correct in any
 * order of arrival. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collective/onehost/onehost.h"
#include "tests/collective/onehost/shm_ranks.h"
#include "tests/collective/world.h"
#include "tests/lib/check.h"

enum { RANKS = 4, FLOATS = 1 << 20, OPERATIONS = 400 };

static struct shm_ranks shm_ranks;
/* rank_buffers: in use now; mapped unless a test changes it */
static float *rank_buffers[RANKS], *mapped[RANKS], *ordinary[RANKS];
static struct outcome outcomes[RANKS];
static struct weft_coll *colls[RANKS];
static cpu_set_t whole;

static float value(uint32_t rank, uint64_t i, uint64_t seed)
{
    return (float)((rank * 7919 + i * 31 + seed * 101) % 1000) * (i % 3 ? 1.0f : 4096.0f);
}

static void fill(uint32_t rank, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) rank_buffers[rank][i] = value(rank, i, seed);
}

static bool of_own_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
}

/* Elements of a rank's memory; `count` of a reduce_scatter and all_gather is that of a piece. */
static uint64_t elems_of(const struct weft_coll_args *args)
{
    return args->count * (of_own_pieces(args->kind) ? RANKS : 1);
}

/* Integers below 2^24: the sum is exact in any order. */
static float wanted(const struct weft_coll_args *args, uint32_t rank, uint64_t i, uint64_t seed)
{
    float sum = 0;
    if (args->kind == WEFT_COLL_BROADCAST) return value(args->root, i, seed);
    if (args->kind == WEFT_COLL_ALL_GATHER) return value((uint32_t)(i / args->count), i, seed);
    /* its output is unchanged */
    if (args->kind == WEFT_COLL_REDUCE && rank != args->root) return value(rank, i, seed);
    if (args->kind == WEFT_COLL_REDUCE_SCATTER && i / args->count != rank) return value(rank, i, seed);
    for (uint32_t r = 0; r < RANKS; r++) sum += value(r, i, seed);
    return sum;
}

static bool right(const struct weft_coll_args *args, uint32_t rank, uint64_t seed)
{
    for (uint64_t i = 0; i < elems_of(args); i++)
        if (rank_buffers[rank][i] != wanted(args, rank, i, seed)) return false;
    return true;
}

static bool tries; /* tries the fast path first */

static void post_apart(uint32_t rank, struct weft_coll_args args)
{
    struct weft_error error = {0};
    outcomes[rank] = (struct outcome){0};
    enum weft_status tried = tries ? weft_coll_try_fastpath(shm_ranks.groups[rank], &args, outcome_done,
                                                            &outcomes[rank], &colls[rank])
                                   : WEFT_ERR_AGAIN;
    if (tried == WEFT_OK) outcome_done(&outcomes[rank], WEFT_OK, "");
    if (tried != WEFT_ERR_AGAIN) return;
    outcomes[rank] = (struct outcome){0};
    const enum weft_status status =
        weft_coll_post(shm_ranks.groups[rank], &args, outcome_done, &outcomes[rank], &colls[rank], &error);
    if (status != WEFT_IN_PROGRESS) outcome_done(&outcomes[rank], status, error.text);
}

static void post(uint32_t rank, struct weft_coll_args args)
{
    args.in = rank_buffers[rank] + (args.kind == WEFT_COLL_ALL_GATHER ? rank * args.count : 0);
    args.out = rank_buffers[rank] + (args.kind == WEFT_COLL_REDUCE_SCATTER ? rank * args.count : 0);
    post_apart(rank, args);
}

static bool run_all(uint32_t except)
{
    for (int i = 0; i < 400000; i++) {
        bool done = true;
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r == except) continue;
            weft_loop_step(shm_ranks.loops[r]);
            done = done && outcomes[r].ended;
        }
        if (done) return true;
        if (i % 16 == 15) usleep(20);
    }
    return false;
}

static void open_group(void)
{
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof whole, &whole), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    tries = false;
    shm_ranks_open(&shm_ranks, RANKS, NULL, false, 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        void *memory;
        assert_int_equal(weft_memory_alloc(weft_env_system(), FLOATS * sizeof(float), &memory, NULL),
                         WEFT_OK);
        rank_buffers[r] = mapped[r] = memory;
        assert_non_null(ordinary[r] = malloc(FLOATS * sizeof(float)));
        post(r, (struct weft_coll_args){.kind = WEFT_COLL_BARRIER});
    }
    assert_true(run_all(RANKS));
    for (uint32_t r = 0; r < RANKS; r++) assert_true(shm_ranks.groups[r]->onehost->is_oversubscribed);
}

static void close_group(void)
{
    shm_ranks_close(&shm_ranks);
    for (uint32_t r = 0; r < RANKS; r++) {
        weft_memory_free(weft_env_system(), mapped[r]);
        free(ordinary[r]);
    }
    assert_int_equal(sched_setaffinity(0, sizeof whole, &whole), 0);
}

static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE, WEFT_COLL_BROADCAST,
                                            WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Two lengths, and one below the copy-in limit of unmapped memory. */
static uint64_t length(enum weft_coll_kind kind, uint32_t which)
{
    if (which < 2) return (which ? 1 << 19 : 50001) / (of_own_pieces(kind) ? RANKS : 1);
    return of_own_pieces(kind) ? 5000 : kind == WEFT_COLL_ALL_REDUCE ? 6000 : 50001;
}

static void the_last_works_for_all(void **state)
{
    open_group();
    for (uint32_t i = 0; i < KINDS * RANKS * 3; i++) {
        const uint32_t last = i % RANKS;
        const struct weft_coll_args args = {.kind = kinds[i % KINDS],
                                            .count = length(kinds[i % KINDS], i / (KINDS * RANKS)),
                                            .dtype = WEFT_F32,
                                            .op = WEFT_SUM,
                                            .root = i / KINDS % RANKS};
        for (uint32_t r = 0; r < RANKS; r++) fill(r, elems_of(&args), i);
        for (uint32_t r = 0; r < RANKS; r++) post(r, args);
        for (int step = 0; step < 4; step++) /* all before is verified, and all have published */
            for (uint32_t r = 0; r < RANKS; r++)
                if (colls[r]->onehost.phase < ONEHOST_PUBLISHED) weft_loop_step(shm_ranks.loops[r]);
        for (int step = 0; step < 1000 && !outcomes[last].ended; step++)
            weft_loop_step(shm_ranks.loops[last]);
        assert_true(outcomes[last].ended);
        assert_int_equal(outcomes[last].status, WEFT_OK);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_true(r == last || !outcomes[r].ended);
            assert_true(right(&args, r, i));
        }
        assert_true(run_all(RANKS));
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(outcomes[r].status, WEFT_OK);
            assert_true(right(&args, r, i));
        }
    }
    close_group();
}

/* A longer vector is not stolen. */
static void long_ones_are_not_taken(void **state)
{
    open_group();
    const struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE, .count = (1 << 19) + 1, .dtype = WEFT_F32, .op = WEFT_SUM};
    for (uint32_t r = 0; r < RANKS; r++) fill(r, args.count, 0);
    for (uint32_t r = 0; r < RANKS; r++) post(r, args);
    for (int step = 0; step < 1000; step++) weft_loop_step(shm_ranks.loops[3]);
    assert_false(outcomes[3].ended);
    assert_true(run_all(RANKS));
    for (uint32_t r = 0; r < RANKS; r++) assert_true(outcomes[r].status == WEFT_OK && right(&args, r, 0));
    close_group();
}

/* One rank's own side of a reduce_scatter or all_gather is unmapped; only a thief would access it. */
static void what_is_not_lent_is_not_taken(void **state)
{
    enum { PIECE = 12500 };
    open_group();
    float *apart = malloc(PIECE * sizeof *apart);
    assert_non_null(apart);
    for (int i = 0; i < 2; i++) {
        struct weft_coll_args args = {.kind = i ? WEFT_COLL_ALL_GATHER : WEFT_COLL_REDUCE_SCATTER,
                                      .count = PIECE,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM};
        for (uint32_t r = 0; r < RANKS; r++) fill(r, elems_of(&args), 3);
        memcpy(apart, rank_buffers[1] + PIECE, PIECE * sizeof *apart);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r != 1) post(r, args);
            else
                post_apart(
                    r, (args.in = i ? apart : rank_buffers[r], args.out = i ? rank_buffers[r] : apart, args));
        }
        for (int step = 0; step < 1000; step++) weft_loop_step(shm_ranks.loops[3]);
        assert_false(outcomes[3].ended);
        assert_true(run_all(RANKS));
        if (!i) memcpy(rank_buffers[1] + PIECE, apart, PIECE * sizeof *apart);
        for (uint32_t r = 0; r < RANKS; r++) assert_true(outcomes[r].status == WEFT_OK && right(&args, r, 3));
    }
    free(apart);
    close_group();
}

/* Rank 1 claims slices, its own and others or one of rank 2 only, and stops: the others name it, and nothing
 * is stored when it continues. */
static void one_stands_still(void **state)
{
    for (int own = 0; own < 2; own++) {
        open_group();
        const struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                            .count = 60000,
                                            .dtype = WEFT_F32,
                                            .op = WEFT_SUM,
                                            .deadline_ns = WEFT_MS(60)};
        for (uint32_t r = 0; r < RANKS; r++) fill(r, args.count, 0);
        for (uint32_t r = 0; r < RANKS; r++) post(r, args);
        if (own) {
            for (int slices = 0; slices < 2; slices++)
                assert_true(onehost_claim_next_slice(shm_ranks.groups[1]->onehost, colls[1]));
        } else {
            /* as if rank 2's slice was claimed by rank 1 */
            struct onehost_segment *segment = shm_ranks.groups[1]->onehost->peers[2].segment;
            atomic_store(&segment->claimed_seq,
                         shm_ranks.groups[1]->onehost->peers[2].salt + colls[1]->onehost.seq + 1);
            atomic_store(&segment->claimed_by, 1);
        }
        for (int i = 0; i < 1000; i++)
            for (uint32_t r = 0; r < RANKS; r++)
                if (r != 1) weft_loop_step(shm_ranks.loops[r]);
        for (uint32_t r = 0; r < RANKS; r++) {
            uint32_t awaited = RANKS;
            const char *phase;
            if (r != 1) assert_true(onehost_waits_for(colls[r], &awaited, &phase) && awaited == 1);
        }
        assert_true(run_all(1));
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r == 1) continue;
            assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
            if (!strstr(outcomes[r].text, "rank 1 does not answer"))
                fail_msg("rank %u: %s", r, outcomes[r].text);
        }
        float *before = malloc(args.count * sizeof *before);
        memcpy(before, rank_buffers[0], args.count * sizeof *before);
        for (int i = 0; i < 100000 && !outcomes[1].ended; i++) weft_loop_step(shm_ranks.loops[1]);
        assert_int_equal(outcomes[1].status, WEFT_ERR_DEADLINE);
        assert_memory_equal(before, rank_buffers[0], args.count * sizeof *before);
        free(before);
        close_group();
    }
}

/* ---- each rank a thread, with mapped and unmapped memory ---- */
struct worker {
    pthread_t thread;
    uint32_t rank;
    char trouble[200];
};

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static void *work(void *context)
{
    struct worker *worker = context;
    uint64_t shared = 11, own = 77 + worker->rank;
    for (uint32_t number = 0; number < OPERATIONS && !worker->trouble[0]; number++) {
        const uint32_t rank = worker->rank;
        struct weft_coll_args args = {.kind = kinds[draw(&shared) % KINDS],
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM,
                                      .root = (uint32_t)draw(&shared) % RANKS};
        args.count = 1 + draw(&shared) % (draw(&shared) % 6 ? 1 << 15 : 1 << 20) /
                             (of_own_pieces(args.kind) ? RANKS : 1);
        bool all_mapped = draw(&shared) % 3 == 0, none_is = draw(&shared) % 3 == 0,
             is_mapped = draw(&own) % 2;
        rank_buffers[rank] = all_mapped || (is_mapped && !none_is) ? mapped[rank] : ordinary[rank];
        fill(rank, elems_of(&args), number);
        if (draw(&own) % 8 == 0) usleep((useconds_t)(draw(&own) % 300));
        post(rank, args);
        (void)weft_loop_wait(shm_ranks.loops[rank], &outcomes[rank].ended,
                             weft_now_ns(weft_env_system()) + WEFT_SECONDS(20));
        if (!outcomes[rank].ended || outcomes[rank].status != WEFT_OK)
            snprintf(worker->trouble, sizeof worker->trouble, "operation %u: %s", number,
                     outcomes[rank].text);
        else if (!right(&args, rank, number))
            snprintf(worker->trouble, sizeof worker->trouble, "operation %u (%s) is wrong", number,
                     weft_coll_kind_name(args.kind));
    }
    return NULL;
}

static void in_any_order(void **state)
{
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        static struct worker workers[RANKS];
        open_group();
        if (everywhere) assert_int_equal(sched_setaffinity(0, sizeof whole, &whole), 0);
        tries = true;
        for (uint32_t r = 0; r < RANKS; r++) {
            workers[r] = (struct worker){.rank = r};
            assert_int_equal(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
        }
        for (uint32_t r = 0; r < RANKS; r++) pthread_join(workers[r].thread, NULL);
        for (uint32_t r = 0; r < RANKS; r++)
            if (workers[r].trouble[0]) fail_msg("rank %u: %s", r, workers[r].trouble);
        close_group();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_works_for_all),
                                       cmocka_unit_test(long_ones_are_not_taken),
                                       cmocka_unit_test(what_is_not_lent_is_not_taken),
                                       cmocka_unit_test(one_stands_still), cmocka_unit_test(in_any_order)};
    /* ranks of one process may not store into each other's memory there */
    if (SHM_RANKS_PLAIN_ONLY) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
