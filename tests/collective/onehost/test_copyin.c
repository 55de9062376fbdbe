/* test_copyin.c - copy-in with all slots in use (collective/onehost/copyin.c): all ranks report calls that
 * differ, a cancelled call leaves the slots of the next one alone, and a slow reader finds what was copied
 * in. With a core per rank and on one core. */
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

enum { RANKS_MAX = 3, RANK_BUFFER_BYTES = 4 << 20, OPERATIONS = 240 };

static const enum weft_coll_kind kinds[] = {
    WEFT_COLL_ALL_REDUCE, WEFT_COLL_BROADCAST,  WEFT_COLL_REDUCE,         WEFT_COLL_GATHER,
    WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static struct shm_ranks shm_ranks;
static uint8_t *rank_buffers[RANKS_MAX];
static struct outcome outcomes[RANKS_MAX];
static cpu_set_t whole;
/* in every other group the buffers are unmapped: mapped ones are used directly from some lengths on */
static bool ordinary = SHM_RANKS_PLAIN_ONLY;

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static bool run_all(void)
{
    for (int i = 0; i < 400000; i++) {
        bool done = true;
        for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
            weft_loop_step(shm_ranks.loops[r]);
            done = done && outcomes[r].ended;
        }
        if (done) return true;
        if (i % 16 == 15) usleep(20);
    }
    return false;
}

static enum weft_status post(uint32_t rank, const struct weft_coll_args *args, struct weft_coll **coll_out)
{
    struct weft_error error = {0};
    outcomes[rank] = (struct outcome){0};
    const enum weft_status status =
        weft_coll_post(shm_ranks.groups[rank], args, outcome_done, &outcomes[rank], coll_out, &error);
    if (status != WEFT_IN_PROGRESS) outcome_done(&outcomes[rank], status, error.text);
    return status;
}

/* true: complete. */
static bool call(uint32_t rank, const struct weft_coll_args *args, bool tries_fastpath)
{
    outcomes[rank] = (struct outcome){0};
    enum weft_status status = WEFT_ERR_AGAIN;
    if (tries_fastpath)
        status = weft_coll_try_fastpath(shm_ranks.groups[rank], args, outcome_done, &outcomes[rank],
                                        &(struct weft_coll *){NULL});
    if (status == WEFT_OK) outcomes[rank] = (struct outcome){.ended = true};
    if (status == WEFT_ERR_AGAIN) (void)post(rank, args, NULL);
    return outcomes[rank].ended && outcomes[rank].status == WEFT_OK;
}

/* All ranks are connected and have completed one operation. */
static void open_group(uint32_t ranks, bool on_one)
{
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof whole, &whole), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    if (on_one) assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
    ordinary = !ordinary || SHM_RANKS_PLAIN_ONLY;
    for (uint32_t r = 0; r < ranks; r++) {
        void *memory;
        if (ordinary) assert_non_null(memory = calloc(1, RANK_BUFFER_BYTES));
        else
            assert_int_equal(weft_memory_alloc(weft_env_system(), RANK_BUFFER_BYTES, &memory, NULL), WEFT_OK);
        rank_buffers[r] = memory;
        (void)post(r, &(struct weft_coll_args){.kind = WEFT_COLL_BARRIER}, NULL);
    }
    assert_true(run_all());
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(outcomes[r].status, WEFT_OK);
        if (on_one) assert_true(shm_ranks.groups[r]->onehost->is_oversubscribed);
    }
}

static void close_group(void)
{
    const uint32_t ranks = shm_ranks.ranks;
    shm_ranks_close(&shm_ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        if (ordinary) free(rank_buffers[r]);
        else weft_memory_free(weft_env_system(), rank_buffers[r]);
    }
    assert_int_equal(sched_setaffinity(0, sizeof whole, &whole), 0);
}

/* The longest copy-in, or `less` elements fewer. In large slots, except for some kinds with a core per
 * rank. */
static struct weft_coll_args longest_copyin(enum weft_coll_kind kind, uint32_t rank, uint32_t root,
                                            uint64_t less)
{
    struct weft_coll_args args = {.kind = kind,
                                  .in = rank_buffers[rank],
                                  .out = rank_buffers[rank] + RANK_BUFFER_BYTES / 2,
                                  .dtype = WEFT_F32,
                                  .op = WEFT_SUM,
                                  .root = root};
    const bool pieces =
        kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL || kind == WEFT_COLL_REDUCE_SCATTER;
    if (kind == WEFT_COLL_BROADCAST) args.in = args.out;
    for (args.count = 1 << 16; args.count > 1 && !onehost_uses_copyin(shm_ranks.groups[rank], &args);)
        args.count--;
    args.count -= less;
    assert_true(onehost_needs_slot(args.count * (pieces ? shm_ranks.ranks : 1) * 4));
    return args;
}

/* The longest copy-in for any kind of memory. */
static struct weft_coll_args longest_copyin_always(enum weft_coll_kind kind, uint32_t rank)
{
    struct weft_coll_args args = longest_copyin(kind, rank, 0, 0);
    while (onehost_can_prefer_direct(shm_ranks.groups[rank], &args)) args.count--;
    assert_true(onehost_needs_slot(args.count * 4));
    return args;
}

/* ---- calls that differ ---- */

enum difference { COUNT_LESS, COUNT_IN_LINE, COUNT_LONG, TYPE, REDUCTION, ROOT, KIND, DIFFERENCES };
static const char *const words[DIFFERENCES] = {
    "the count", "the count", "the count", "the element type", "the reduction", "the root", "the operation"};

static bool rooted(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_GATHER ||
           kind == WEFT_COLL_SCATTER;
}
static bool sums(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER;
}

static struct weft_coll_args otherwise(enum difference difference, struct weft_coll_args args, uint32_t rank,
                                       uint32_t k)
{
    switch (difference) {
    case COUNT_LESS: args.count--; break;
    case COUNT_IN_LINE: args.count = 1; break;
    case COUNT_LONG: args.count = 100000; break; /* above the copy-in limit */
    case TYPE: args.dtype = WEFT_I32; break;
    case REDUCTION: args.op = WEFT_MAX; break;
    case ROOT: args.root = (args.root + 1) % shm_ranks.ranks; break;
    default: args = longest_copyin(kinds[(k + 1) % KINDS], rank, 0, 0); break;
    }
    return args;
}

/* It depends on no peer. */
static bool leads(const struct weft_coll_args *args, uint32_t rank)
{
    return rooted(args->kind) &&
           (args->root == rank) == (args->kind == WEFT_COLL_BROADCAST || args->kind == WEFT_COLL_SCATTER);
}

/* One rank calls something else; each rank by either way. A rank that depends on no peer completes, and gets
 * the error from its next call. */
static void differ(uint32_t k, enum difference difference, uint32_t odd, uint32_t tries_fastpath)
{
    char name[16];
    snprintf(name, sizeof name, "rank %u called", odd);
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        struct weft_coll_args args = longest_copyin(kinds[k], r, 0, 0), next = {.kind = WEFT_COLL_ALL_REDUCE,
                                                                                .in = rank_buffers[r],
                                                                                .out = rank_buffers[r],
                                                                                .count = 2,
                                                                                .dtype = WEFT_F32,
                                                                                .op = WEFT_SUM};
        if (r == odd) args = otherwise(difference, args, r, k);
        if (!call(r, &args, tries_fastpath >> r & 1)) continue;
        const bool of_root =
            r != odd && odd != 0 && (kinds[k] == WEFT_COLL_BROADCAST || kinds[k] == WEFT_COLL_SCATTER);
        if (!of_root && !leads(&args, r))
            fail_msg("%s of %u ranks, rank %u has %s otherwise: rank %u has a result",
                     weft_coll_kind_name(kinds[k]), shm_ranks.ranks, odd, words[difference], r);
        (void)call(r, &next, tries_fastpath >> r & 1);
    }
    bool over = run_all();
    for (uint32_t r = 1; r < shm_ranks.ranks; r++) {
        /* a rank that follows the root has seen the root only: it may get the error from one more call */
        const bool follows = r != odd && (kinds[k] == WEFT_COLL_BROADCAST || kinds[k] == WEFT_COLL_SCATTER);
        if (follows && outcomes[r].status == WEFT_OK && outcomes[r].ended)
            (void)post(r, &(struct weft_coll_args){.kind = WEFT_COLL_BARRIER}, NULL);
    }
    over = over && run_all();
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        bool is_reported = outcomes[r].status == WEFT_ERR_MISMATCH &&
                           strstr(outcomes[r].text, "operation 1 differs in ") &&
                           strstr(outcomes[r].text, words[difference]) && strstr(outcomes[r].text, name);
        if (!over || !is_reported)
            fail_msg("%s of %u ranks, rank %u has %s otherwise, briefly %x: rank %u: %s",
                     weft_coll_kind_name(kinds[k]), shm_ranks.ranks, odd, words[difference], tries_fastpath,
                     r, outcomes[r].ended ? outcomes[r].text : "hangs");
    }
}

static void mismatch(void **state)
{
    for (uint32_t turn = 0; turn < 3; turn++) {
        const uint32_t ranks = turn == 2 ? 3 : 2;
        for (uint32_t k = 0; k < KINDS; k++)
            for (uint32_t d = 0; d < DIFFERENCES; d++) {
                if ((d == ROOT && !rooted(kinds[k])) || (d == REDUCTION && !sums(kinds[k]))) continue;
                for (uint32_t i = 0; i < 2 * ranks; i++) {
                    const uint32_t odd = i / 2, all = (1u << ranks) - 1;
                    open_group(ranks, turn > 0);
                    differ(k, (enum difference)d, odd, i % 2 ? all : (k + d + odd + turn) % all);
                    close_group();
                }
            }
    }
}

/* ---- cancelled ---- */

static void fill(const struct weft_coll_args *args, uint32_t rank, uint32_t number)
{
    const bool pieces = args->kind == WEFT_COLL_SCATTER || args->kind == WEFT_COLL_ALL_TO_ALL ||
                        args->kind == WEFT_COLL_REDUCE_SCATTER;
    float *in = (float *)(uintptr_t)args->in;
    for (uint64_t i = 0; i < args->count * (pieces ? shm_ranks.ranks : 1); i++)
        in[i] = (float)(number + 1000 * rank + i % 7);
}

/* The first wrong element; -1: none. Pieces differ by the arguments of `fill` only. */
static int64_t wrong_at(const struct weft_coll_args *args, uint32_t rank, uint32_t number)
{
    const float *out = args->out;
    const uint32_t ranks = shm_ranks.ranks;
    for (uint64_t i = 0; i < args->count; i++) {
        const uint64_t own = rank * args->count + i; /* in an input of pieces */
        float sum = 0, piece_sum = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            sum += (float)(number + 1000 * r + i % 7);
            piece_sum += (float)(number + 1000 * r + own % 7);
        }
        switch (args->kind) {
        case WEFT_COLL_ALL_REDUCE:
            if (out[i] != sum) return (int64_t)i;
            break;
        case WEFT_COLL_REDUCE:
            if (rank == args->root && out[i] != sum) return (int64_t)i;
            break;
        case WEFT_COLL_REDUCE_SCATTER:
            if (out[i] != piece_sum) return (int64_t)i;
            break;
        case WEFT_COLL_BROADCAST:
            if (out[i] != (float)(number + 1000 * args->root + i % 7)) return (int64_t)i;
            break;
        case WEFT_COLL_SCATTER:
            if (out[i] != (float)(number + 1000 * args->root + own % 7)) return (int64_t)i;
            break;
        default: /* from each */
            for (uint32_t r = 0; r < ranks && (args->kind != WEFT_COLL_GATHER || rank == args->root); r++)
                if (out[r * args->count + i] !=
                    (float)(number + 1000 * r + (args->kind == WEFT_COLL_ALL_TO_ALL ? own : i) % 7))
                    return (int64_t)(r * args->count + i);
        }
    }
    return -1;
}

/* Each of a few operations is cancelled by the waiting ranks, sooner or later; the other ranks get its
 * contributions. */
static void cancelled(void **state)
{
    enum { IN_A_ROW = 6 };
    for (uint32_t turn = 0; turn < 4 * KINDS; turn++) {
        const uint32_t k = turn % KINDS, ranks = turn / KINDS % 2 ? 3 : 2;
        const bool later = turn / KINDS / 2;
        open_group(ranks, ranks == 3);
        for (uint32_t number = 0; number < 3 * IN_A_ROW; number++) {
            struct weft_coll_args args[RANKS_MAX];
            struct weft_coll *colls[RANKS_MAX] = {NULL};
            for (uint32_t i = 0; i < ranks; i++) {
                const uint32_t r = (i + number) % ranks;
                args[r] = longest_copyin(kinds[k], r, 0, number % 5);
                fill(&args[r], r, number);
                (void)post(r, &args[r], &colls[r]);
                if (later) weft_loop_step(shm_ranks.loops[r]);
            }
            for (uint32_t r = 0; r < ranks && number % 3 == 1; r++)
                if (!outcomes[r].ended) weft_coll_cancel(colls[r]);
            assert_true(run_all());
            for (uint32_t r = 0; r < ranks; r++) {
                if (outcomes[r].status == WEFT_ERR_CANCELLED && number % 3 == 1) continue;
                if (outcomes[r].status != WEFT_OK)
                    fail_msg("%s, operation %u, rank %u: %s", weft_coll_kind_name(kinds[k]), number, r,
                             outcomes[r].text);
                if (wrong_at(&args[r], r, number) >= 0)
                    fail_msg("%s, operation %u, rank %u: element %lld", weft_coll_kind_name(kinds[k]), number,
                             r, (long long)wrong_at(&args[r], r, number));
            }
        }
        close_group();
    }
}

/* A contributor runs ahead as far as slots permit; the reader cancels some of its operations and reads the
 * others. */
static void cancelled_by_the_reader(void **state)
{
    for (uint32_t turn = 0; turn < 4; turn++) {
        const enum weft_coll_kind kind = turn % 2 ? WEFT_COLL_GATHER : WEFT_COLL_REDUCE;
        open_group(2, turn / 2);
        for (uint32_t number = 0; number < 24;) {
            uint32_t run_ahead = 0;
            for (; run_ahead < 8; run_ahead++) {
                struct weft_coll_args args = longest_copyin_always(kind, 1);
                fill(&args, 1, number + run_ahead);
                if (weft_coll_try_fastpath(shm_ranks.groups[1], &args, outcome_done, &outcomes[1],
                                           &(struct weft_coll *){NULL}) != WEFT_OK)
                    break;
            }
            assert_in_range(run_ahead, 1, ONEHOST_LARGE_SLOTS);
            for (uint32_t i = 0; i < run_ahead; i++, number++) {
                struct weft_coll_args args = longest_copyin_always(kind, 0);
                struct weft_coll *coll;
                fill(&args, 0, number);
                (void)post(0, &args, &coll);
                if (number % 3 == 1) weft_coll_cancel(coll);
                for (int steps = 0; !outcomes[0].ended; steps++) {
                    assert_in_range(steps, 0, 100000);
                    weft_loop_step(shm_ranks.loops[0]);
                }
                assert_int_equal(outcomes[0].status, number % 3 == 1 ? WEFT_ERR_CANCELLED : WEFT_OK);
                if (number % 3 != 1) assert_int_equal(wrong_at(&args, 0, number), -1);
            }
        }
        close_group();
    }
}

/* Whatever peers have read: two unread contributions never share a slot, and a slot is free after all have
 * called the operation before. If peers keep up, few slots are used. */
static void slots_are_disjoint(void **state)
{
    enum { TIMES = 200000 };
    static size_t small_at[TIMES], large_at[TIMES], slots[TIMES];
    struct onehost *onehost = calloc(1, sizeof *onehost);
    uint64_t seed = 11, refused = 0, far = 0, free_until[ONEHOST_LARGE_SLOTS] = {0};
    assert_non_null(onehost);
    onehost->large_slot_seqs = free_until;
    for (uint64_t number = 0; number < TIMES;) {
        const bool closely = number / 5000 % 2;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (closely && onehost->run_ahead.peers_read_seq + 1 < number)
            onehost->run_ahead.peers_read_seq = number - 1;
        else if (onehost->run_ahead.peers_read_seq < number && seed >> 60 < 6)
            onehost->run_ahead.peers_read_seq +=
                1 + (seed >> 40) % (number - onehost->run_ahead.peers_read_seq);
        const size_t bytes = ONEHOST_SMALL_SLOT_BYTES + 1 +
                             (seed >> 33) % (PLAN_ONEHOST_COPYIN_BYTES_MAX - ONEHOST_SMALL_SLOT_BYTES);
        const uint32_t slot = onehost_large_slot_find(onehost, bytes);
        if (!onehost_small_slot_is_free(onehost, number) || slot == ONEHOST_LARGE_SLOTS) {
            assert_true(onehost->run_ahead.peers_read_seq + 1 < number);
            refused++;
            continue;
        }
        small_at[number] = onehost_small_slot_take(onehost, number), large_at[number] = slot,
        slots[number] = onehost_large_slots_needed(bytes);
        for (uint32_t i = 0; i < slots[number]; i++) onehost->large_slot_seqs[slot + i] = number + 1;
        assert_true(small_at[number] % ONEHOST_SMALL_SLOT_BYTES == 0 &&
                    small_at[number] < ONEHOST_SMALL_POOL_BYTES &&
                    slot + slots[number] <= ONEHOST_LARGE_SLOTS);
        for (uint64_t before = onehost->run_ahead.peers_read_seq; before < number; before++) {
            if (small_at[before] == small_at[number])
                fail_msg("operations %lu and %lu have one place", (unsigned long)before,
                         (unsigned long)number);
            if (large_at[before] < large_at[number] + slots[number] &&
                large_at[number] < large_at[before] + slots[before])
                fail_msg("operations %lu and %lu share slots", (unsigned long)before, (unsigned long)number);
        }
        if (closely && number % 5000 > 40)
            assert_true(small_at[number] <= ONEHOST_SMALL_SLOT_BYTES && slot < 8);
        far += number - onehost->run_ahead.peers_read_seq > 4;
        number++;
    }
    assert_true(refused > 1000 && far > 1000);
    free(onehost);
}

/* ---- groups in sequence: slots pass to the next group after all were read ---- */
static void large_slots_are_shared(void **state)
{
    enum { GROUPS = 8 };
    static const enum weft_coll_kind last[] = {WEFT_COLL_REDUCE, WEFT_COLL_GATHER, WEFT_COLL_ALL_REDUCE,
                                               WEFT_COLL_BROADCAST};
    for (uint32_t k = 0; k < sizeof last / sizeof last[0]; k++) {
        static struct weft_group *groups[GROUPS][RANKS_MAX];
        open_group(RANKS_MAX, true);
        memcpy(groups[0], shm_ranks.groups, sizeof groups[0]);
        memcpy(shm_ranks.shares, groups[0], sizeof groups[0]);
        for (uint32_t g = 0; g < GROUPS; g++) {
            if (g > 0) shm_ranks_group(&shm_ranks, 50 + g, 0);
            memcpy(groups[g], shm_ranks.groups, sizeof groups[g]);
            for (uint32_t r = 0; r < RANKS_MAX; r++)
                (void)post(r, &(struct weft_coll_args){.kind = WEFT_COLL_BARRIER}, NULL);
            assert_true(run_all());
            for (uint32_t i = 0; i < RANKS_MAX; i++) { /* the root last */
                const uint32_t r = last[k] == WEFT_COLL_BROADCAST ? i : RANKS_MAX - 1 - i;
                struct weft_coll_args args = longest_copyin_always(last[k], r);
                fill(&args, r, g);
                (void)call(r, &args, true);
            }
            assert_true(run_all());
            for (uint32_t r = 0; r < RANKS_MAX; r++) {
                struct weft_coll_args args = longest_copyin_always(last[k], r);
                assert_int_equal(outcomes[r].status, WEFT_OK);
                assert_int_equal(wrong_at(&args, r, g), -1);
            }
        }
        for (uint32_t r = 0; r < RANKS_MAX; r++) {
            const uint32_t large_pools = groups[0][r]->ops.op_pool->copyin_slots[ONEHOST_LARGE].count,
                           small_pools = groups[0][r]->ops.op_pool->copyin_slots[ONEHOST_SMALL].count;
            if (large_pools > 2 || small_pools > 16)
                fail_msg("after %s in %u groups rank %u has %u large and %u small slots",
                         weft_coll_kind_name(last[k]), GROUPS, r, large_pools, small_pools);
        }
        for (uint32_t g = 1; g < GROUPS; g++)
            for (uint32_t r = 0; r < RANKS_MAX; r++) weft_group_free(groups[g][r]);
        memcpy(shm_ranks.groups, groups[0], sizeof groups[0]);
        close_group();
    }
}

/* ---- a slow reader ---- */

struct worker {
    pthread_t thread;
    uint32_t rank;
    bool slow;
    char trouble[240];
};

static bool call_and_wait(struct worker *worker, const struct weft_coll_args *args)
{
    const uint32_t rank = worker->rank;
    if (call(rank, args, true)) return true;
    if (weft_loop_wait(shm_ranks.loops[rank], &outcomes[rank].ended,
                       weft_now_ns(weft_env_system()) + WEFT_SECONDS(20)) < 0)
        return false;
    return outcomes[rank].status == WEFT_OK;
}

static void *work(void *context)
{
    struct worker *worker = context;
    uint64_t shared = 5, own = 77 + worker->rank;
    for (uint32_t number = 0; number < OPERATIONS; number++) {
        const uint32_t k = (uint32_t)(draw(&shared) % (2 * KINDS)), less = (uint32_t)(draw(&shared) % 300);
        struct weft_coll_args args =
            longest_copyin(k < KINDS ? kinds[k] : kinds[1 + k % 4], worker->rank, k % 5 == 0, less);
        fill(&args, worker->rank, number);
        if (worker->slow && draw(&own) % 4 == 0) usleep((useconds_t)(draw(&own) % 400));
        if (!call_and_wait(worker, &args))
            snprintf(worker->trouble, sizeof worker->trouble, "operation %u: %s", number,
                     outcomes[worker->rank].text);
        else if (wrong_at(&args, worker->rank, number) >= 0)
            snprintf(worker->trouble, sizeof worker->trouble, "operation %u (%s) is wrong", number,
                     weft_coll_kind_name(args.kind));
        if (worker->trouble[0]) break;
    }
    return NULL;
}

static void slow_reader(void **state)
{
    for (uint32_t turn = 0; turn < 6; turn++) {
        static struct worker workers[RANKS_MAX];
        const uint32_t ranks = turn % 2 ? 3 : 2;
        open_group(ranks, turn % 3 == 2);
        for (uint32_t r = 0; r < ranks; r++) {
            workers[r] = (struct worker){.rank = r, .slow = r == turn % ranks};
            assert_int_equal(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
        }
        for (uint32_t r = 0; r < ranks; r++) pthread_join(workers[r].thread, NULL);
        for (uint32_t r = 0; r < ranks; r++)
            if (workers[r].trouble[0]) fail_msg("turn %u, rank %u: %s", turn, r, workers[r].trouble);
        close_group();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mismatch),
                                       cmocka_unit_test(cancelled),
                                       cmocka_unit_test(slots_are_disjoint),
                                       cmocka_unit_test(cancelled_by_the_reader),
                                       cmocka_unit_test(large_slots_are_shared),
                                       cmocka_unit_test(slow_reader)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
