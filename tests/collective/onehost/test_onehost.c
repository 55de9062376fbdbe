/* test_onehost.c - the one-host path over the shared memory transport: bits, failures, and which plan is
 * used. */
#include "collective/onehost/onehost.h" /* the counters of a segment, to make them stale */
#include "tests/collective/call.h"
#include "tests/collective/onehost/shm_ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"

static struct shm_ranks shm_ranks;
static bool thorough; /* --thorough: every number of ranks, every type and count */

/* Mapped memory with any alignment: one buffer per rank. */
static uint8_t *rank_buffers[SHM_RANKS_MAX];
static bool plain_buffers;     /* unmapped memory */
static const char *plain_tune; /* "cma=off": unmapped memory is staged only */
enum { RANK_BUFFER_BYTES = 4 << 20 };

static void buffers_open(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        void *memory;
        if (plain_buffers) {
            assert_non_null(rank_buffers[r] = calloc(1, RANK_BUFFER_BYTES));
            continue;
        }
        assert_int_equal(weft_memory_alloc(weft_env_system(), RANK_BUFFER_BYTES, &memory, NULL), WEFT_OK);
        rank_buffers[r] = memory;
    }
}

static void buffers_close(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (plain_buffers) free(rank_buffers[r]);
        else weft_memory_free(weft_env_system(), rank_buffers[r]);
    }
}

/* Runs the test with mapped and with unmapped buffers. */
static void in_both_memories(void (*test)(void))
{
    test();
    plain_buffers = true;
    test();
    plain_buffers = false;
}

static void with_staging(void (*test)(void))
{
    plain_buffers = true;
    plain_tune = "cma=off";
    test();
    plain_tune = NULL;
    plain_buffers = false;
}

#define ALL_RANKS (SHM_RANKS_MAX + 1)

struct how {
    bool in_place;
    bool mixed_places; /* every other rank in place */
    uint32_t shift;    /* bytes of misalignment of rank r: r * shift */
    uint32_t unmapped; /* this rank's buffers are unmapped; SHM_RANKS_MAX: none; ALL_RANKS: all */
};

static void run_call(const struct call *call, const struct how *how, enum weft_plan_id plan)
{
    struct posted posted[SHM_RANKS_MAX];
    uint32_t pending = call->ranks;
    bool done = false;
    char name[160], why[200];
    call_name(call, name, sizeof name);
    for (uint32_t r = 0; r < call->ranks; r++) {
        bool in_place = how->mixed_places ? r % 2 : how->in_place;
        if (how->unmapped == r || how->unmapped == ALL_RANKS) posted_prepare(&posted[r], call, r, in_place);
        else {
            assert_true(posted_bytes(call) + r * how->shift <= RANK_BUFFER_BYTES);
            posted_prepare_at(&posted[r], call, r, in_place, rank_buffers[r] + r * how->shift);
        }
        posted[r].outcome.pending = &pending;
        posted[r].outcome.all_done = &done;
        assert_int_equal(posted_start(&posted[r], shm_ranks.groups[r], 0), WEFT_IN_PROGRESS);
        assert_false(posted[r].outcome.ended);
    }
    assert_int_equal(weft_coll_plan(posted[0].coll), plan);
    if (!shm_ranks_run(&shm_ranks, &done, SHM_RANKS_MAX)) fail_msg("%s: %u ranks did not end", name, pending);
    for (uint32_t r = 0; r < call->ranks; r++) {
        if (posted[r].outcome.status != WEFT_OK) fail_msg("%s: rank %u: %s", name, r, posted[r].outcome.text);
        assert_int_equal(posted[r].outcome.times, 1);
        if (!posted_check(&posted[r], why, sizeof why)) fail_msg("%s: %s", name, why);
        posted_release(&posted[r]);
    }
}

static void run_barrier(enum weft_plan_id plan)
{
    struct call call = {
        .kind = WEFT_COLL_BARRIER, .dtype = WEFT_F32, .op = WEFT_SUM, .ranks = shm_ranks.ranks};
    run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, plan);
}

enum { DTYPES = 12, OPS = 8 };
static const enum weft_dtype dtypes[DTYPES] = {WEFT_F32,     WEFT_F16,     WEFT_BF16, WEFT_I64,
                                               WEFT_F64,     WEFT_F8_E4M3, WEFT_I8,   WEFT_U64,
                                               WEFT_F8_E5M2, WEFT_I32,     WEFT_U32,  WEFT_U8};
static const enum weft_op ops[OPS] = {WEFT_SUM, WEFT_AVG, WEFT_PROD, WEFT_MIN,
                                      WEFT_MAX, WEFT_AND, WEFT_OR,   WEFT_XOR};

static enum weft_op op_for(enum weft_dtype dtype, uint64_t seed)
{
    bool whole = dtype == WEFT_I64 || dtype == WEFT_I8 || dtype == WEFT_U64 || dtype == WEFT_I32 ||
                 dtype == WEFT_U32 || dtype == WEFT_U8;
    return ops[seed % (whole ? 8 : 5)];
}

enum { KINDS = 8 };
static const enum weft_coll_kind kinds[KINDS] = {
    WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST,
    WEFT_COLL_REDUCE,     WEFT_COLL_GATHER,         WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL};

static void sweep(const uint64_t *counts, size_t count_count, bool thin)
{
    uint64_t seed = 1;
    for (size_t k = 0; k < KINDS; k++)
        for (size_t d = 0; d < DTYPES; d++)
            for (size_t n = 0; n < count_count; n++, seed++) {
                if ((k + d + n) % (thin ? 7 : d >= 4 ? 4 : 1)) continue;
                struct call call = {.kind = kinds[k],
                                    .dtype = dtypes[d],
                                    .op = d < 4 ? ops[(d + n) % 2] : op_for(dtypes[d], seed),
                                    .ranks = shm_ranks.ranks,
                                    .root = (uint32_t)(seed % shm_ranks.ranks),
                                    .count = counts[n],
                                    .seed = seed};
                bool piecewise = kinds[k] != WEFT_COLL_ALL_REDUCE && kinds[k] != WEFT_COLL_BROADCAST &&
                                 kinds[k] != WEFT_COLL_REDUCE;
                if (piecewise && call.count > 100) call.count = call.count / shm_ranks.ranks + 1;
                struct how how = {.in_place = seed % 2,
                                  .mixed_places = seed % 5 == 0,
                                  .shift = (uint32_t)(seed % 4) * 4,
                                  .unmapped = SHM_RANKS_MAX};
                if (weft_dtype_bytes(dtypes[d]) == 8) how.shift *= 2;
                run_call(&call, &how, WEFT_PLAN_ONE_HOST);
            }
}

/* Around the limits of: a line, copy-in, steps of the work, tiles, slices. */
static void bits(void **state)
{
    for (uint32_t ranks = 2; ranks <= 9; ranks += thorough || ranks == 2 ? 1 : 6) {
        const uint64_t counts[] = {0,   1,    2,    4,    5,    8,    9,    511,  512,
                                   513, 1023, 1024, 1025, 2049, 2048, 4097, 13001};
        shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
        buffers_open(ranks);
        run_barrier(WEFT_PLAN_DIRECT); /* still voting when it is posted */
        sweep(counts, thorough ? 17 : 14, !thorough);
        run_barrier(WEFT_PLAN_ONE_HOST);
        buffers_close(ranks);
        shm_ranks_close(&shm_ranks);
    }
}

/* More ranks than fit into registers; a vector of several steps. */
static void many_ranks_and_long(void **state)
{
    static const uint64_t few[] = {1, 37, 3001}, lengthy[] = {100003}; /* the reference is slow */
    static const uint32_t sizes[] = {17, 33};
    for (size_t i = 0; i < (thorough ? 2 : 1); i++) {
        shm_ranks_open(&shm_ranks, sizes[i], NULL, false, 0);
        buffers_open(sizes[i]);
        run_barrier(WEFT_PLAN_DIRECT);
        sweep(few, thorough ? 3 : 2, true);
        buffers_close(sizes[i]);
        shm_ranks_close(&shm_ranks);
    }
    if (!thorough) return;
    shm_ranks_open(&shm_ranks, 2, NULL, false, 0);
    buffers_open(2);
    run_barrier(WEFT_PLAN_DIRECT);
    sweep(lengthy, 1, !thorough);
    buffers_close(2);
    shm_ranks_close(&shm_ranks);
}

/* Unmapped memory at one rank or at all: CMA or staged. */
static void ordinary_memory(void **state)
{
    static const char *const tunes[] = {NULL, "cma=off"};
    for (uint32_t ranks = 2; ranks <= (thorough ? 5 : 3); ranks++)
        for (size_t t = 0; t < 2; t++) {
            shm_ranks_open(&shm_ranks, ranks, tunes[t], true, 0);
            buffers_open(ranks);
            run_barrier(WEFT_PLAN_DIRECT);
            for (uint32_t r = 0; r <= ranks; r++)
                for (size_t k = 0; k < KINDS; k++) {
                    struct call call = {.kind = kinds[k],
                                        .dtype = dtypes[(r + k) % 4],
                                        .op = k % 3 ? WEFT_SUM : WEFT_AVG,
                                        .ranks = ranks,
                                        .root = (r + k) % 3 ? ranks - 1 : 0,
                                        .count = (k == 0 && t == 0 ? 70003 : 5003) / (thorough ? 1 : 4) + r,
                                        .seed = r + k};
                    run_call(&call,
                             &(struct how){.in_place = (r + k) % 2, .unmapped = r < ranks ? r : ALL_RANKS},
                             WEFT_PLAN_ONE_HOST);
                }
            for (size_t k = 0; k < KINDS && ranks == 2; k++) { /* more rounds than a stage has slots */
                struct call call = {.kind = kinds[k],
                                    .dtype = dtypes[k % 4],
                                    .op = WEFT_SUM,
                                    .ranks = 2,
                                    .root = k % 2,
                                    .seed = k + t,
                                    .count = 132007 / weft_dtype_bytes(dtypes[k % 4])};
                run_call(&call, &(struct how){.in_place = k % 2, .unmapped = ALL_RANKS}, WEFT_PLAN_ONE_HOST);
            }
            buffers_close(ranks);
            shm_ranks_close(&shm_ranks);
        }
}

/* Contributions with a factor per rank: products in the output of an all_reduce, else in the operation's
 * scratch. By copy-in, direct, staged and CMA, and one that is multiplied in several steps of the loop. */
static void scaled(void **state)
{
    static const enum weft_coll_kind sums[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
                                               WEFT_COLL_REDUCE};
    static const enum weft_dtype floats[] = {WEFT_F32,     WEFT_BF16, WEFT_F64,
                                             WEFT_F8_E4M3, WEFT_F16,  WEFT_F8_E5M2};
    static const uint64_t counts[] = {2, 513, 5003, 0, 17003};
    static const char *const tunes[] = {NULL, "cma=off"};
    uint64_t seed = 1;
    for (uint32_t ranks = 2; ranks <= (thorough ? 9 : 3); ranks++)
        for (size_t t = 0; t < 2; t++) {
            shm_ranks_open(&shm_ranks, ranks, tunes[t], true, 0);
            buffers_open(ranks);
            run_barrier(WEFT_PLAN_DIRECT);
            for (size_t k = 0; k < 3; k++)
                for (size_t n = 0; n < 5; n++)
                    for (uint32_t where = 0; where < 3; where++, seed++) {
                        struct call call = {.kind = sums[k],
                                            .dtype = floats[seed % 6],
                                            .op = WEFT_SCALED_SUM,
                                            .ranks = ranks,
                                            .root = (uint32_t)(seed % ranks),
                                            .count = counts[n],
                                            .seed = seed};
                        struct how how = {.in_place = seed / 2 % 2,
                                          .mixed_places = seed % 5 == 0,
                                          .unmapped = where == 0   ? SHM_RANKS_MAX
                                                      : where == 1 ? (uint32_t)(seed % ranks)
                                                                   : ALL_RANKS};
                        run_call(&call, &how, WEFT_PLAN_ONE_HOST);
                    }
            struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                                .dtype = WEFT_F32,
                                .op = WEFT_SCALED_SUM,
                                .ranks = ranks,
                                .count = 150001,
                                .seed = seed++};
            for (int i = 0; i < 2 && ranks == 2; i++)
                run_call(&call, &(struct how){.in_place = i, .unmapped = ALL_RANKS}, WEFT_PLAN_ONE_HOST);
            buffers_close(ranks);
            shm_ranks_close(&shm_ranks);
        }
}

/* The choice of the method: each is tried a few times, then the faster is used, and the other probed now and
 * then. */
static void ways(void **state)
{
    struct onehost_method_stats stats = {0};
    uint32_t tries[2] = {0, 0};
    for (int i = 0; i < 6; i++) {
        bool uses_cma = onehost_method_uses_cma(&stats);
        tries[uses_cma]++;
        /* only the first staged sample was undisturbed */
        onehost_method_record(&stats, uses_cma, uses_cma ? 300 : 200 + i * 1000, 1000);
    }
    assert_int_equal(tries[false], 3);
    assert_int_equal(tries[true], 3);
    for (int round = 0; round < 6; round++) {
        /* one disturbed sample of the faster method does not count */
        uint32_t looks = 0;
        for (int i = 0; i < (round < 3 ? 8 << round : 64) + 1; i++) {
            bool uses_cma = onehost_method_uses_cma(&stats);
            looks += uses_cma;
            onehost_method_record(&stats, uses_cma, uses_cma ? 300 : i % 10 ? 200 : 100000, 1000);
        }
        assert_int_equal(looks, 1);
    }
    for (int i = 0; i < 100; i++) onehost_method_record(&stats, false, 400, 1000); /* slower from now on */
    uint32_t copies = 0;
    for (int i = 0; i < 100; i++) {
        bool uses_cma = onehost_method_uses_cma(&stats);
        copies += uses_cma;
        onehost_method_record(&stats, uses_cma, uses_cma ? 300 : 400, 1000);
    }
    assert_true(copies > 90);
}

/* Rank 0 tries both, and all follow it. */
static void both_ways(void **state)
{
    static const enum weft_coll_kind either[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
                                                 WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST,
                                                 WEFT_COLL_REDUCE,     WEFT_COLL_ALL_TO_ALL};
    for (uint32_t ranks = 2; ranks <= 3; ranks++) {
        shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
        buffers_open(ranks);
        run_barrier(WEFT_PLAN_DIRECT);
        struct onehost *onehost = shm_ranks.groups[0]->onehost;
        for (uint32_t i = 0; i < 6 * 2 * 6 && onehost->setup.all_cma; i++) {
            /* a container can refuse CMA */
            struct call call = {.kind = either[i / 12],
                                .dtype = WEFT_F32,
                                .op = WEFT_SUM,
                                .ranks = ranks,
                                .root = i % ranks,
                                .count = 66003,
                                .seed = i};
            bool in_place = i / 6 % 2;
            run_call(&call, &(struct how){.in_place = in_place, .unmapped = ALL_RANKS}, WEFT_PLAN_ONE_HOST);
            /* which rank is in place depends on the root */
            if (i % 6 < 5 || call.kind == WEFT_COLL_BROADCAST || call.kind == WEFT_COLL_REDUCE) continue;
            const struct onehost_method_stats *stats =
                onehost_method_stats_of(onehost, call.kind, in_place, call.count * sizeof(float));
            assert_int_equal(stats->tries[false], 3);
            assert_int_equal(stats->tries[true], 3);
        }
        buffers_close(ranks);
        shm_ranks_close(&shm_ranks);
    }
}

/* ---- unequal pieces ---- */
enum { UNEQUAL_MAX = 5 };
/* none, some, most */
static uint64_t piece_at(uint32_t from, uint32_t to, uint64_t longest)
{
    return (from * 7 + to * 3) % 4 * longest / 3;
}
static uint16_t value_at(uint32_t from, uint32_t to, uint64_t i)
{
    return (uint16_t)(from * 20011 + to * 4001 + i * 7 + 1);
}

/* Fills `in` with what rank `r` sends and the counts with its lengths; returns its length. */
static uint64_t lay_out(enum weft_coll_kind kind, uint32_t r, uint32_t root, uint64_t longest, uint16_t *in,
                        uint64_t counts[], uint64_t counts_out[])
{
    uint64_t at = 0;
    bool exchanges = kind == WEFT_COLL_ALL_TO_ALL;
    for (uint32_t p = 0; p < shm_ranks.ranks; p++) {
        bool gathers = kind == WEFT_COLL_GATHER;
        uint32_t from = gathers && r == root ? p : r, to = gathers && r == root ? root : p;
        counts[p] = piece_at(from, to, longest);
        counts_out[p] = piece_at(p, r, longest);
        bool sends = exchanges || (gathers ? p == root : r == root);
        uint64_t length = gathers ? piece_at(r, root, longest) : counts[p];
        for (uint64_t i = 0; i < length && sends; i++) in[at++] = value_at(r, p, i);
    }
    return at;
}

/* What rank `r` has received from all, one piece after the other. */
static bool got_all(enum weft_coll_kind kind, uint32_t r, uint32_t root, uint64_t longest,
                    const uint16_t *out)
{
    uint64_t at = 0;
    for (uint32_t p = 0; p < shm_ranks.ranks; p++) {
        bool gets = kind == WEFT_COLL_ALL_TO_ALL || (kind == WEFT_COLL_GATHER ? r == root : p == root);
        for (uint64_t i = 0; i < piece_at(p, r, longest) && gets; i++)
            if (out[at++] != value_at(p, r, i)) return false;
    }
    return out[at] == 0xa5a5;
}

static void unequal_once(enum weft_coll_kind kind, uint32_t root, uint64_t longest, uint32_t unmapped,
                         bool in_place)
{
    static uint16_t *plain[SHM_RANKS_MAX];
    struct outcome outcomes[SHM_RANKS_MAX];
    uint64_t counts[UNEQUAL_MAX], counts_out[UNEQUAL_MAX];
    uint32_t pending = shm_ranks.ranks;
    const uint16_t *outs[SHM_RANKS_MAX];
    struct weft_coll *coll = NULL;
    bool done = false;
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        plain[r] = calloc(1, RANK_BUFFER_BYTES);
        uint16_t *in = unmapped == r || unmapped == ALL_RANKS ? plain[r] : (uint16_t *)rank_buffers[r] + r,
                 *out = in + RANK_BUFFER_BYTES / 4;
        memset(in, 0xa5, RANK_BUFFER_BYTES - 64);
        uint64_t sent = lay_out(kind, r, root, longest, in, counts, counts_out);
        struct weft_coll_args args = {.kind = kind,
                                      .in = in,
                                      .out = out,
                                      .root = root,
                                      .dtype = WEFT_BF16,
                                      .unequal = kind != WEFT_COLL_ALL_TO_ALL,
                                      .count = 17};
        if (in_place && r == root && kind == WEFT_COLL_GATHER) {
            uint64_t before = 0;
            for (uint32_t p = 0; p < r; p++) before += counts[p];
            memcpy(out + before, in, sent * sizeof *in);
            args.in = out + before;
        } else if (in_place && kind == WEFT_COLL_ALL_TO_ALL && r == root) {
            memcpy(out, in, sent * sizeof *in);
            memset(out + sent, 0xa5, 64);
            args.in = out;
        }
        if (kind == WEFT_COLL_ALL_TO_ALL) args.counts = counts, args.counts_out = counts_out;
        else if (r == root) args.counts = counts;
        else args.count = kind == WEFT_COLL_GATHER ? piece_at(r, root, longest) : piece_at(root, r, longest);
        outs[r] = out;
        outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
        assert_int_equal(
            weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], r ? NULL : &coll, NULL),
            WEFT_IN_PROGRESS);
    }
    assert_int_equal(weft_coll_plan(coll), WEFT_PLAN_ONE_HOST);
    if (!shm_ranks_run(&shm_ranks, &done, SHM_RANKS_MAX))
        fail_msg("%s: %u ranks did not end", weft_coll_kind_name(kind), pending);
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        if (outcomes[r].status != WEFT_OK)
            fail_msg("%s: rank %u: %s", weft_coll_kind_name(kind), r, outcomes[r].text);
        /* bytes after the result may have been input */
        bool overlaid = in_place && r == root && kind == WEFT_COLL_ALL_TO_ALL;
        if (!overlaid && !got_all(kind, r, root, longest, outs[r]))
            fail_msg("%s, root %u, longest %llu: rank %u has got other", weft_coll_kind_name(kind), root,
                     (unsigned long long)longest, r);
        free(plain[r]);
    }
}

/* all_gather and reduce_scatter of pieces with lengths known to all ranks: none, some or most of
 * `longest`. */
static int32_t known_value(uint32_t r, uint64_t i)
{
    return (int32_t)(r * 1000003 + i * 7 + 1);
}

static void known_once(bool gathers, uint64_t longest, uint32_t unmapped, bool in_place)
{
    enum { FAR = 0x5a };
    static int32_t *plain[SHM_RANKS_MAX];
    int32_t *outs[SHM_RANKS_MAX];
    struct outcome outcomes[SHM_RANKS_MAX];
    uint64_t counts[UNEQUAL_MAX], at[UNEQUAL_MAX + 1] = {0};
    uint32_t pending = shm_ranks.ranks;
    struct weft_coll *coll = NULL;
    bool done = false;
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) at[r + 1] = at[r] + (counts[r] = piece_at(r, 0, longest));
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        plain[r] = malloc(RANK_BUFFER_BYTES);
        int32_t *in = unmapped == r || unmapped == ALL_RANKS ? plain[r] : (int32_t *)rank_buffers[r] + r,
                *out = in + RANK_BUFFER_BYTES / 8;
        memset(in, FAR, RANK_BUFFER_BYTES - 64);
        if (in_place && gathers) in = out + at[r];
        if (in_place && !gathers) out = in + at[r];
        for (uint64_t i = 0; i < (gathers ? counts[r] : at[shm_ranks.ranks]); i++) in[i] = known_value(r, i);
        struct weft_coll_args args = {.kind = gathers ? WEFT_COLL_ALL_GATHER : WEFT_COLL_REDUCE_SCATTER,
                                      .in = in,
                                      .out = out,
                                      .dtype = WEFT_I32,
                                      .op = WEFT_SUM,
                                      .counts = counts};
        outs[r] = out;
        outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
        assert_int_equal(
            weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], r ? NULL : &coll, NULL),
            WEFT_IN_PROGRESS);
    }
    assert_int_equal(weft_coll_plan(coll), WEFT_PLAN_ONE_HOST);
    assert_true(shm_ranks_run(&shm_ranks, &done, SHM_RANKS_MAX));
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        if (outcomes[r].status != WEFT_OK) fail_msg("rank %u: %s", r, outcomes[r].text);
        for (uint32_t p = 0; p < shm_ranks.ranks && gathers; p++)
            for (uint64_t i = 0; i < counts[p]; i++) assert_int_equal(outs[r][at[p] + i], known_value(p, i));
        for (uint64_t i = 0; i < counts[r] && !gathers; i++) {
            int32_t sum = 0;
            for (uint32_t p = 0; p < shm_ranks.ranks; p++) sum += known_value(p, at[r] + i);
            assert_int_equal(outs[r][i], sum);
        }
        /* in place: the input of the pieces after it */
        uint64_t behind = gathers ? at[shm_ranks.ranks] : in_place ? at[shm_ranks.ranks] - at[r] : counts[r];
        assert_int_equal(((const uint8_t *)(outs[r] + behind))[0], FAR);
    }
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) free(plain[r]);
}

static void known_pieces(void **state)
{
    static const uint64_t longest[] = {0, 3, 700, 30007, 100003};
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
        buffers_open(ranks);
        run_barrier(WEFT_PLAN_DIRECT);
        for (uint32_t i = 0; i < 5 * 2 * 2 * 3; i++) {
            uint32_t unmapped = i % 3 == 0 ? SHM_RANKS_MAX : i % 3 == 1 ? ALL_RANKS : ranks - 1;
            known_once(i / 3 % 2, longest[i / 12], unmapped, i / 6 % 2);
        }
        buffers_close(ranks);
        shm_ranks_close(&shm_ranks);
    }
}

/* Pieces of several steps, long enough that both ranks of a pair copy, in place at none, all or some
 * ranks. */
static void long_pieces(void **state)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks += thorough ? 1 : 2) {
        shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
        buffers_open(ranks);
        run_barrier(WEFT_PLAN_DIRECT);
        for (uint32_t i = 0; i < 16; i++) {
            struct call call = {.kind = kinds[4 + i % 4],
                                .dtype = i % 3 ? WEFT_I8 : WEFT_BF16,
                                .op = WEFT_MAX,
                                .ranks = ranks,
                                .root = i / 4 % ranks,
                                .seed = i,
                                .count = i < 4   ? 8191
                                         : i < 8 ? 40000 + i
                                                 : 150001};
            if (call.kind == WEFT_COLL_REDUCE && call.count > 100000) call.count = 300007;
            run_call(
                &call,
                &(struct how){
                    .in_place = i / 4 % 2, .mixed_places = i >= 12, .shift = i, .unmapped = SHM_RANKS_MAX},
                WEFT_PLAN_ONE_HOST);
        }
        buffers_close(ranks);
        shm_ranks_close(&shm_ranks);
    }
}

static void unequal_pieces(void **state)
{
    static const enum weft_coll_kind of_pieces[] = {WEFT_COLL_GATHER, WEFT_COLL_SCATTER,
                                                    WEFT_COLL_ALL_TO_ALL};
    static const uint64_t lengths[] = {3, 100, 9001, 130001};
    for (size_t t = 0; t < 2; t++)
        for (uint32_t ranks = 2; ranks <= UNEQUAL_MAX; ranks += t ? 3 : 1) {
            shm_ranks_open(&shm_ranks, ranks, t ? "cma=off" : NULL, true, 0);
            buffers_open(ranks);
            run_barrier(WEFT_PLAN_DIRECT);
            for (size_t k = 0; k < 3; k++)
                for (size_t n = 0; n < (thorough ? 4 : 3); n++)
                    for (uint32_t how = 0; how < 4; how++)
                        unequal_once(of_pieces[k], (ranks - 1 + how) % ranks, lengths[n],
                                     how == 2   ? (uint32_t)n % ranks
                                     : how == 3 ? ALL_RANKS
                                                : SHM_RANKS_MAX,
                                     how % 2);
            buffers_close(ranks);
            shm_ranks_close(&shm_ranks);
        }
}

/* Round counters as an operation 2^32 before would have left them: no round counts as done. */
static void rounds_of_long_ago(void **state)
{
    shm_ranks_open(&shm_ranks, 2, "cma=off", true, 0);
    buffers_open(2);
    run_barrier(WEFT_PLAN_DIRECT); /* still voting when it is posted */
    for (uint32_t i = 0; i < 2 * KINDS; i++) {
        struct call call = {.kind = kinds[i % KINDS],
                            .dtype = WEFT_F32,
                            .op = WEFT_SUM,
                            .ranks = 2,
                            .root = i / KINDS,
                            .count = 100000,
                            .seed = i};
        for (uint32_t r = 0; r < 2; r++) {
            struct onehost *onehost = shm_ranks.groups[r]->onehost;
            for (int action = 0; action < ONEHOST_STAGE_ACTIONS; action++)
                atomic_store(&onehost->segment->done[action],
                             onehost->salt +
                                 (onehost->next_seq + 1 - ONEHOST_ROUNDS_MAX) * ONEHOST_ROUNDS_MAX + 1000);
        }
        run_call(&call, &(struct how){.unmapped = ALL_RANKS}, WEFT_PLAN_ONE_HOST);
    }
    buffers_close(2);
    shm_ranks_close(&shm_ranks);
}

/* One rank cannot map its peers: all use messages. */
static void one_cannot_map(void **state)
{
    shm_ranks_open(&shm_ranks, 3, "maps=off", true, 0);
    buffers_open(3);
    run_barrier(WEFT_PLAN_DIRECT);
    struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                        .dtype = WEFT_F32,
                        .op = WEFT_SUM,
                        .ranks = 3,
                        .count = 5003,
                        .seed = 3};
    struct weft_plan_question question = {
        .kind = WEFT_COLL_ALL_REDUCE, .ranks = 3, .bytes = 5003 * 4, .elem_bytes = 4, .wide_bytes = 4};
    run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, weft_plan_choose(&question, NULL));
    buffers_close(3);
    shm_ranks_close(&shm_ranks);
}

/* Many operations posted at once, of all lengths, end in order; then groups are opened and closed. */
static void overlapping(void **state)
{
    enum { CALLS = 60 };
    static struct posted posted[3][CALLS];
    shm_ranks_open(&shm_ranks, 3, NULL, false, 0);
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t pending = 3 * CALLS;
        bool done = false;
        void *memory[3][CALLS];
        for (uint32_t c = 0; c < CALLS; c++)
            for (uint32_t r = 0; r < 3; r++) {
                uint32_t rank = (r + c) % 3;
                struct call call = {.kind = kinds[c % KINDS],
                                    .dtype = WEFT_F32,
                                    .op = WEFT_SUM,
                                    .ranks = 3,
                                    .root = c % 3,
                                    .count = c % 7 ? c : 2000 + c,
                                    .seed = c};
                assert_int_equal(
                    weft_memory_alloc(weft_env_system(), posted_bytes(&call), &memory[rank][c], NULL),
                    WEFT_OK);
                posted_prepare_at(&posted[rank][c], &call, rank, false, memory[rank][c]);
                posted[rank][c].outcome.pending = &pending;
                posted[rank][c].outcome.all_done = &done;
                assert_int_equal(posted_start(&posted[rank][c], shm_ranks.groups[rank], 0), WEFT_IN_PROGRESS);
            }
        assert_true(shm_ranks_run(&shm_ranks, &done, SHM_RANKS_MAX));
        for (uint32_t rank = 0; rank < 3; rank++)
            for (uint32_t c = 0; c < CALLS; c++) {
                char why[200];
                assert_int_equal(posted[rank][c].outcome.status, WEFT_OK);
                if (!posted_check(&posted[rank][c], why, sizeof why)) fail_msg("call %u: %s", c, why);
                weft_memory_free(weft_env_system(), memory[rank][c]);
            }
        for (uint32_t rank = 0; rank < 3; rank++) weft_group_free(shm_ranks.groups[rank]);
        shm_ranks_group(&shm_ranks, 6 + round, 0);
    }
    shm_ranks_close(&shm_ranks);
}

/* ---- failures ---- */
static struct outcome outcomes[SHM_RANKS_MAX];
static uint32_t pending;
static bool all_done;

static struct weft_coll *post_one(uint32_t rank, uint64_t count, enum weft_op op, uint64_t deadline_ns)
{
    struct weft_coll *coll;
    struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                  .in = rank_buffers[rank],
                                  .out = rank_buffers[rank],
                                  .count = count,
                                  .dtype = WEFT_F32,
                                  .op = op,
                                  .deadline_ns = deadline_ns};
    outcomes[rank] = (struct outcome){.pending = &pending, .all_done = &all_done};
    assert_int_equal(
        weft_coll_post(shm_ranks.groups[rank], &args, outcome_done, &outcomes[rank], &coll, NULL),
        WEFT_IN_PROGRESS);
    return coll;
}

static void failures_open(uint32_t ranks)
{
    shm_ranks_open(&shm_ranks, ranks, NULL, false, 0);
    buffers_open(ranks);
    run_barrier(WEFT_PLAN_DIRECT);
    pending = ranks;
    all_done = false;
}

static void failures_close(void)
{
    buffers_close(shm_ranks.ranks);
    shm_ranks_close(&shm_ranks);
}

static void mismatch(void **state)
{
    static const uint64_t lengths[][2] = {{2, 3}, {5000, 5001}, {2, 5000}};
    for (size_t i = 0; i < 4; i++) {
        failures_open(3);
        for (uint32_t r = 0; r < 3; r++) {
            if (i < 3) post_one(r, lengths[i][r == 1], WEFT_SUM, 0);
            else post_one(r, 2, r == 2 ? WEFT_AVG : WEFT_SUM, 0);
        }
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, i < 3 ? "differs in the count" : "differs in the reduction"))
                fail_msg("%s", outcomes[r].text);
            if (!strstr(outcomes[r].text, i < 3 ? "rank 1" : "rank 2")) fail_msg("%s", outcomes[r].text);
        }
        failures_close();
    }
}

static void expect_other_counts(void)
{
    assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
        if (!strstr(outcomes[r].text, "differs in the counts of the pieces"))
            fail_msg("%s", outcomes[r].text);
    }
}

/* Another root; another length of one piece at its sender or its reader: both ranks report it. */
static void mismatch_of_pieces(void **state)
{
    static const enum weft_coll_kind rooted[] = {WEFT_COLL_REDUCE, WEFT_COLL_GATHER, WEFT_COLL_SCATTER};
    for (uint32_t i = 0; i < 6; i++) {
        failures_open(3);
        for (uint32_t r = 0; r < 3; r++) {
            struct weft_coll_args args = {.kind = rooted[i % 3],
                                          .in = rank_buffers[r],
                                          .out = rank_buffers[r] + RANK_BUFFER_BYTES / 2,
                                          .count = i < 3 ? 2 : 5000,
                                          .dtype = WEFT_F32,
                                          .op = WEFT_SUM,
                                          .root = r == 1};
            outcomes[r] = (struct outcome){.pending = &pending, .all_done = &all_done};
            assert_int_equal(
                weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                WEFT_IN_PROGRESS);
        }
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, "differs in the root") || !strstr(outcomes[r].text, "rank 1"))
                fail_msg("%s", outcomes[r].text);
        }
        failures_close();
    }
    static const enum weft_coll_kind of_pieces[] = {WEFT_COLL_GATHER, WEFT_COLL_SCATTER,
                                                    WEFT_COLL_ALL_TO_ALL};
    for (uint32_t i = 0; i < 6; i++) {
        failures_open(2);
        for (uint32_t r = 0; r < 2; r++) {
            uint64_t counts[2] = {3 + (i < 3 && r == 0), 3}, counts_out[2] = {3, 3 - (i >= 3 && r == 0)};
            bool exchanges = of_pieces[i % 3] == WEFT_COLL_ALL_TO_ALL;
            struct weft_coll_args args = {.kind = of_pieces[i % 3],
                                          .in = rank_buffers[r],
                                          .out = rank_buffers[r] + RANK_BUFFER_BYTES / 2,
                                          .count = r ? 3 : 4,
                                          .dtype = WEFT_F32,
                                          .root = i < 3,
                                          .unequal = !exchanges,
                                          .counts = exchanges || r == (i < 3) ? counts : NULL,
                                          .counts_out = exchanges ? counts_out : NULL};
            /* the root's: rank 0's piece differs */
            if (!exchanges) counts[0] = 3, counts[1] = 5;
            if (exchanges && i < 3) counts[!r] = 3 + r;
            outcomes[r] = (struct outcome){.pending = &pending, .all_done = &all_done};
            assert_int_equal(
                weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                WEFT_IN_PROGRESS);
        }
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, "differs in the count of ") ||
                !strstr(outcomes[r].text, "which expects ") || !strstr(outcomes[r].text, "rank 0") ||
                !strstr(outcomes[r].text, "rank 1"))
                fail_msg("%s", outcomes[r].text);
        }
        failures_close();
    }
    failures_open(2); /* with counts on one rank only */
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_coll_args args = {.kind = WEFT_COLL_GATHER,
                                      .in = rank_buffers[r],
                                      .out = rank_buffers[r] + RANK_BUFFER_BYTES / 2,
                                      .dtype = WEFT_F32,
                                      .unequal = r};
        outcomes[r] = (struct outcome){.pending = &pending, .all_done = &all_done};
        assert_int_equal(weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    expect_other_counts();
    failures_close();
}

/* Lengths known to all ranks that differ but have the same sum. */
static void mismatch_of_known_pieces(void **state)
{
    failures_open(2);
    for (uint32_t r = 0; r < 2; r++) { /* the same sum and the same maximum */
        uint64_t counts[2] = {r ? 5 : 9, r ? 9 : 5};
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_GATHER,
                                      .in = rank_buffers[r],
                                      .out = rank_buffers[r] + RANK_BUFFER_BYTES / 2,
                                      .dtype = WEFT_I32,
                                      .counts = counts};
        outcomes[r] = (struct outcome){.pending = &pending, .all_done = &all_done};
        assert_int_equal(weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    expect_other_counts();
    failures_close();
}

/* One rank calls by messages, the others in memory: without the message call log neither would find out. */
static void mismatch_of_ways(void **state)
{
    static const struct {
        enum weft_coll_kind kind;
        enum weft_plan_id plan;
        const char *what;
    } odd[] = {{WEFT_COLL_REDUCE, WEFT_PLAN_AUTO, "differs in the operation"},
               {WEFT_COLL_ALL_REDUCE, WEFT_PLAN_RING, "differs in the plan"},
               {WEFT_COLL_ALL_TO_ALL, WEFT_PLAN_DIRECT, "differs in the operation"}};
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t ranks = 2 + i % 2, culprit = i / 3 % ranks;
        uint64_t count = i < 6 ? 2 : 5000;
        failures_open(ranks);
        for (uint32_t r = 0; r < ranks; r++) {
            if (r != culprit) {
                post_one(r, count, WEFT_SUM, 0);
                continue;
            }
            struct weft_coll_args args = {.kind = odd[i % 3].kind,
                                          .plan = odd[i % 3].plan,
                                          .in = rank_buffers[r],
                                          .out = rank_buffers[r],
                                          .count = count,
                                          .dtype = WEFT_F32,
                                          .op = WEFT_SUM};
            outcomes[r] = (struct outcome){.pending = &pending, .all_done = &all_done};
            assert_int_equal(
                weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                WEFT_IN_PROGRESS);
        }
        /* by comparison: deadlines are minutes away */
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        char name[16];
        snprintf(name, sizeof name, "rank %u", culprit);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, odd[i % 3].what) || !strstr(outcomes[r].text, name))
                fail_msg("%s", outcomes[r].text);
        }
        failures_close();
    }
}

/* Rank 2 never calls: the error names it. */
static void late_rank(void **state)
{
    for (int i = 0; i < 2; i++) {
        failures_open(3);
        pending = 2;
        for (uint32_t r = 0; r < 2; r++) post_one(r, i ? 5000 : 2, WEFT_SUM, WEFT_MS(50));
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
            if (!strstr(outcomes[r].text, "rank 2 has not called it")) fail_msg("%s", outcomes[r].text);
            if (!strstr(outcomes[r].text, "plan one-host")) fail_msg("%s", outcomes[r].text);
        }
        failures_close();
    }
}

/* Rank 2 calls, and then its loop is not stepped: it replies to nothing, and no rank waits without limit. */
enum { SILENT_FLOATS = 600000 }; /* above the copy-in limit: the ranks access the buffers */
static void silent_once(void)
{
    failures_open(3);
    pending = 2;
    for (uint32_t r = 0; r < 3; r++) post_one(r, SILENT_FLOATS, WEFT_SUM, WEFT_MS(50));
    outcomes[2].pending = NULL;
    assert_true(shm_ranks_run(&shm_ranks, &all_done, 2));
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
        if (!strstr(outcomes[r].text, "rank 2 does not answer")) fail_msg("%s", outcomes[r].text);
    }
    /* Rank 2 continues: it stores into no peer's buffer and learns the reason. */
    uint8_t *before = malloc(SILENT_FLOATS * 4);
    memcpy(before, rank_buffers[0], SILENT_FLOATS * 4);
    bool ended = false;
    for (int i = 0; i < 100000 && !(ended = outcomes[2].ended); i++) weft_loop_step(shm_ranks.loops[2]);
    assert_true(ended);
    assert_int_equal(outcomes[2].status, WEFT_ERR_DEADLINE);
    assert_memory_equal(before, rank_buffers[0], SILENT_FLOATS * 4);
    free(before);
    failures_close();
}

static void silent_rank(void **state)
{
    in_both_memories(silent_once);
}

static void cancelled_once(void)
{
    failures_open(2);
    struct weft_coll *colls[2];
    for (int i = 0; i < 4; i++) {
        pending = 2;
        all_done = false;
        /* partly multiplied */
        for (uint32_t r = 0; r < 2; r++)
            colls[r] = post_one(r,
                                i == 1   ? 5000
                                : i == 2 ? 150001
                                         : 3,
                                i == 2 ? WEFT_SCALED_SUM : WEFT_SUM, 0);
        for (uint32_t r = 0; r < 2; r++) weft_coll_cancel(colls[r]);
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) assert_int_equal(outcomes[r].status, WEFT_ERR_CANCELLED);
    }
    run_barrier(WEFT_PLAN_ONE_HOST); /* the group continues */
    struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                        .dtype = WEFT_F32,
                        .op = WEFT_SUM,
                        .ranks = 2,
                        .count = 5003,
                        .seed = 3};
    run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, WEFT_PLAN_ONE_HOST);
    failures_close();
}

/* Queued after another one: not published yet, and no rank waits for it. */
static void cancelled_behind_another(void)
{
    enum { POSTED = 12 };
    failures_open(2);
    for (int kept = 0; kept < 2; kept++) {
        struct weft_coll *colls[2][POSTED];
        struct outcome ends[2][POSTED];
        pending = 2 * POSTED;
        all_done = false;
        for (uint32_t r = 0; r < 2; r++)
            for (int i = 0; i < POSTED; i++) {
                colls[r][i] = post_one(r, i % 2 ? 5000 : 3, WEFT_SUM, 0);
                colls[r][i]->context = &ends[r][i];
                ends[r][i] = (struct outcome){.pending = &pending, .all_done = &all_done};
            }
        for (uint32_t r = 0; r < 2; r++)
            for (int i = kept; i < POSTED; i++) weft_coll_cancel(colls[r][i]);
        assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++)
            for (int i = 0; i < POSTED; i++)
                assert_int_equal(ends[r][i].status, i < kept ? WEFT_OK : WEFT_ERR_CANCELLED);
        run_barrier(WEFT_PLAN_ONE_HOST); /* the group continues */
    }
    struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                        .dtype = WEFT_F32,
                        .op = WEFT_SUM,
                        .ranks = 2,
                        .count = 5003,
                        .seed = 3};
    run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, WEFT_PLAN_ONE_HOST);
    failures_close();
}

/* Some ranks cancel it before the vote ends, others after it: the next operation is the same for all. */
static void cancelled_before_they_agree(uint32_t quick)
{
    struct weft_coll *colls[3];
    shm_ranks_open(&shm_ranks, 3, NULL, false, 0);
    buffers_open(3);
    pending = 3;
    all_done = false;
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_not_equal(shm_ranks.groups[r]->onehost->state, ONEHOST_ENABLED);
        colls[r] = post_one(r, 3, WEFT_SUM, 0);
        if (quick >> r & 1) weft_coll_cancel(colls[r]);
    }
    for (uint32_t steps = 0, on = 0; on < 3; steps++) {
        assert_true(steps < 1000000);
        for (uint32_t r = on = 0; r < 3; r++) {
            weft_loop_step(shm_ranks.loops[r]);
            on += shm_ranks.groups[r]->onehost->state == ONEHOST_ENABLED;
            if (shm_ranks.groups[r]->onehost->state == ONEHOST_ENABLED && !outcomes[r].ended)
                weft_coll_cancel(colls[r]);
        }
    }
    assert_true(shm_ranks_run(&shm_ranks, &all_done, SHM_RANKS_MAX));
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(outcomes[r].status, WEFT_ERR_CANCELLED);
    run_barrier(WEFT_PLAN_ONE_HOST); /* the group continues */
    struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                        .dtype = WEFT_F32,
                        .op = WEFT_SUM,
                        .ranks = 3,
                        .count = 5003,
                        .seed = 3};
    run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, WEFT_PLAN_ONE_HOST);
    failures_close();
}

static void cancelled(void **state)
{
    for (uint32_t quick = 0; quick < 8; quick++) cancelled_before_they_agree(quick);
    in_both_memories(cancelled_once);
    in_both_memories(cancelled_behind_another);
}

/* A rank leaves after its last operation, before its peers have read its descriptor; then one more call. */
static void left_early(void **state)
{
    failures_open(2);
    for (uint32_t r = 0; r < 2; r++) post_one(r, 3, WEFT_SUM, 0);
    for (int i = 0; i < 1000 && !outcomes[0].ended; i++) weft_loop_step(shm_ranks.loops[0]);
    assert_int_equal(outcomes[0].status, WEFT_OK);
    weft_group_free(shm_ranks.groups[0]);
    shm_ranks.groups[0] = NULL;
    for (int i = 0; i < 100; i++) weft_loop_step(shm_ranks.loops[0]);
    for (int i = 0; i < 1000 && !outcomes[1].ended; i++) weft_loop_step(shm_ranks.loops[1]);
    assert_int_equal(outcomes[1].status, WEFT_OK);
    for (int i = 0; i < 100; i++) weft_loop_step(shm_ranks.loops[1]);
    struct weft_coll_args args = {.kind = WEFT_COLL_BARRIER};
    struct weft_error error = {0};
    assert_int_equal(weft_coll_post(shm_ranks.groups[1], &args, outcome_done, &outcomes[1], NULL, &error),
                     WEFT_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "rank 0 left the group"));
    failures_close();
}

/* A rank leaves before the vote; one peer is slow: its leave message waits for the connection, and it does
 * not count as dead. */
static void left_before_the_header_check(void **state)
{
    shm_ranks_open(&shm_ranks, 3, NULL, false, WEFT_SECONDS(60));
    weft_group_leave(shm_ranks.groups[2]);
    assert_false(weft_group_has_left(shm_ranks.groups[2]));
    for (int i = 0; i < 1000; i++) weft_loop_step(shm_ranks.loops[2]);
    for (uint32_t steps = 0; !weft_group_has_left(shm_ranks.groups[2]); steps++) {
        assert_true(steps < 1000000);
        for (uint32_t r = 0; r < 3; r++) weft_loop_step(shm_ranks.loops[r]);
    }
    weft_group_free(shm_ranks.groups[2]);
    shm_ranks.groups[2] = NULL;
    weft_transport_close(shm_ranks.transports[2]);
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_coll_args args = {.kind = WEFT_COLL_BARRIER};
        struct weft_error error = {0};
        for (int i = 0; i < 100; i++) weft_loop_step(shm_ranks.loops[r]);
        assert_int_equal(weft_coll_post(shm_ranks.groups[r], &args, outcome_done, &outcomes[r], NULL, &error),
                         WEFT_ERR_PEER_LOST);
        assert_non_null(strstr(error.text, "rank 2 left the group"));
    }
    shm_ranks_close(&shm_ranks);
}

static void until_the_header_check(struct weft_group *const *groups)
{
    uint32_t steps = 0;
    for (uint32_t rank = 0; rank < shm_ranks.ranks;) {
        if (groups[rank]->onehost->state == ONEHOST_ENABLED) {
            rank++;
            continue;
        }
        assert_true(steps++ < 1000000);
        for (uint32_t r = 0; r < shm_ranks.ranks; r++) weft_loop_step(shm_ranks.loops[r]);
    }
}

/* Many groups in sequence: there are fewer small slot pools than groups. */
static void many_groups(void **state)
{
    (void)state;
    enum { RANKS = 3, GROUPS = 90, ROOMS = 64 };
    static struct weft_group *groups[GROUPS][RANKS];
    shm_ranks_open(&shm_ranks, RANKS, NULL, false, 0);
    buffers_open(RANKS);
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (g > 0) shm_ranks_group(&shm_ranks, 100 + g, 0);
        memcpy(groups[g], shm_ranks.groups, sizeof groups[g]);
        if (g == 0)
            for (uint32_t r = 0; r < RANKS; r++) shm_ranks.shares[r] = groups[0][r];
    }
    for (uint32_t g = 0; g < GROUPS; g++) until_the_header_check(groups[g]);
    for (uint32_t turn = 0; turn < 3 * GROUPS; turn++) {
        uint32_t g = turn < GROUPS ? turn : turn * 7 % GROUPS;
        struct call call = {.kind = kinds[turn % KINDS],
                            .dtype = WEFT_F32,
                            .op = WEFT_SUM,
                            .ranks = RANKS,
                            .root = turn % RANKS,
                            .count = 5 + turn,
                            .seed = turn};
        memcpy(shm_ranks.groups, groups[g], sizeof groups[g]);
        run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, WEFT_PLAN_ONE_HOST);
    }
    uint32_t held = 0;
    for (uint32_t g = 0; g < GROUPS; g++)
        held += groups[g][0]->onehost->copyin_slots[ONEHOST_SMALL].memory != NULL;
    assert_in_range(held, 1, ROOMS);
    assert_int_equal(groups[0][0]->ops.op_pool->copyin_slots[ONEHOST_SMALL].count, held);
    for (uint32_t g = 1; g < GROUPS; g++)
        for (uint32_t r = 0; r < RANKS; r++) weft_group_free(groups[g][r]);
    memcpy(shm_ranks.groups, groups[0], sizeof groups[0]);
    run_barrier(WEFT_PLAN_ONE_HOST);
    buffers_close(RANKS);
    shm_ranks_close(&shm_ranks);
}

/* Groups whose env has its own allocator, of unmapped memory: contributions are in mapped memory
 * nevertheless. */
static void *own_alloc(struct weft_env *env, size_t bytes)
{
    (void)env;
    return weft_env_system()->alloc(weft_env_system(), bytes);
}

static void own_allocator(void **state)
{
    (void)state;
    enum { RANKS = 2 };
    struct weft_group *first[RANKS];
    struct weft_env own = *weft_env_system();
    own.alloc = own_alloc;
    shm_ranks_open(&shm_ranks, RANKS, NULL, false, 0);
    buffers_open(RANKS);
    memcpy(first, shm_ranks.groups, sizeof first);
    shm_ranks.env = &own;
    shm_ranks_group(&shm_ranks, 6, 0);
    until_the_header_check(shm_ranks.groups);
    for (uint64_t count = 1; count <= 1000; count *= 10) {
        struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                            .dtype = WEFT_F32,
                            .op = WEFT_SUM,
                            .ranks = RANKS,
                            .count = count,
                            .seed = count};
        run_call(&call, &(struct how){.unmapped = SHM_RANKS_MAX}, WEFT_PLAN_ONE_HOST);
    }
    for (uint32_t r = 0; r < RANKS; r++) weft_group_free(shm_ranks.groups[r]);
    memcpy(shm_ranks.groups, first, sizeof first);
    run_barrier(WEFT_PLAN_ONE_HOST);
    buffers_close(RANKS);
    shm_ranks_close(&shm_ranks);
}

/* ---- ranks that share a core ---- */
static cpu_set_t set_of(uint64_t mask)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned cpu = 0; cpu < 64; cpu++)
        if (mask >> cpu & 1) CPU_SET(cpu, &set);
    return set;
}

static void sharing_a_processor(void **state)
{
    (void)state;
    static const struct {
        uint64_t allowed;
        uint32_t processors[4], rank;
        uint64_t to; /* 0: does not move */
    } cases[] = {
        {0x3, {0, 0, 7, 7}, 1, 0x2}, /* the cores of ranks 2 and 3 are outside its affinity */
        {0x3, {0, 0, 7, 7}, 0, 0},   /* the lowest rank stays */
        {0xf, {0, 0, 0, 1}, 2, 0xc},
        {0xf, {0, 1, 2, 3}, 3, 0}, /* alone on its core */
        {0xf, {0, 1, 2, 2}, 3, 0x8},
        {0x2, {1, 1, 0, 0}, 1, 0},                /* bound */
        {0x3, {0, 0, 1, 1}, 3, 0},                /* no core is free */
        {0x3, {0, 0, UINT32_MAX, 70000}, 1, 0x2}, /* unknown; more than a set holds */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cpu_set_t allowed = set_of(cases[i].allowed), to = set_of(cases[i].to), found;
        assert_int_equal(
            onehost_core_migration_choose(&allowed, cases[i].processors, 4, cases[i].rank, &found),
            cases[i].to != 0);
        if (cases[i].to) assert_true(CPU_EQUAL(&found, &to));
    }
}

/* A rank that has published nothing has no core yet, so no rank moves away from it. */
static void no_processor_yet(void **state)
{
    (void)state;
    shm_ranks_open(&shm_ranks, 3, NULL, false, 0);
    buffers_open(3);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(atomic_load(&shm_ranks.groups[r]->onehost->segment->processor),
                         ONEHOST_NO_PROCESSOR);
    until_the_header_check(shm_ranks.groups);
    run_barrier(WEFT_PLAN_ONE_HOST);
    for (uint32_t r = 0; r < 3; r++)
        assert_true(atomic_load(&shm_ranks.groups[r]->onehost->segment->processor) < ONEHOST_NO_PROCESSOR);
    buffers_close(3);
    shm_ranks_close(&shm_ranks);
}

/* Are two ranks on a thread with affinity `mask` oversubscribed? */
static bool crowded_on(const cpu_set_t *mask)
{
    if (sched_setaffinity(0, sizeof *mask, mask) != 0) return false;
    shm_ranks_open(&shm_ranks, 2, NULL, false, WEFT_SECONDS(60));
    until_the_header_check(shm_ranks.groups);
    bool is_oversubscribed = shm_ranks.groups[0]->onehost->is_oversubscribed;
    assert_int_equal(shm_ranks.groups[1]->onehost->is_oversubscribed, is_oversubscribed);
    shm_ranks_close(&shm_ranks);
    return is_oversubscribed;
}

/* Only the cores count that the ranks may use. */
static void *crowd(void *context)
{
    cpu_set_t whole, one;
    if (sched_getaffinity(0, sizeof whole, &whole) != 0) return "affinity unknown";
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    if (!crowded_on(&one)) return "two ranks on one processor are not crowded";
    if (crowded_on(&whole) != (CPU_COUNT(&whole) < 2))
        return "two ranks are crowded on two processors, or not on one";
    return NULL;
}

static void bound_to_few_processors(void **state)
{
    pthread_t thread;
    void *wrong = NULL;
    assert_int_equal(pthread_create(&thread, NULL, crowd, NULL), 0);
    pthread_join(thread, &wrong);
    if (wrong) fail_msg("%s", (const char *)wrong);
    /* Each bound to its own core. */
    static struct onehost_segment segments[3];
    const struct onehost_peer peers[] = {
        {.segment = &segments[0]}, {.segment = &segments[1]}, {.segment = &segments[2]}};
    for (int i = 0; i < 3; i++) segments[i].cpu_mask[i] = 1, segments[i].online_cpus = 64;
    assert_int_equal(onehost_processor_count(peers, 3), 3);
    segments[1].cpu_mask[0] = 1, segments[1].cpu_mask[1] = 0;
    assert_int_equal(onehost_processor_count(peers, 2), 1);
    /* Containers: any core, with a CPU time limit. */
    for (int i = 0; i < 3; i++)
        segments[i].cpu_mask[0] = 7, segments[i].quota = (struct weft_cpu_quota){.group = 5, .processors = 1};
    assert_int_equal(onehost_processor_count(peers, 3), 1);
    segments[1].quota.group = 6;
    assert_int_equal(onehost_processor_count(peers, 3), 2);
    segments[2].quota.processors = 0;
    assert_int_equal(onehost_processor_count(peers, 3), 4); /* cores of the third word included */
    segments[2].online_cpus = 2;                            /* a core went offline between two of them */
    assert_int_equal(onehost_processor_count(peers, 3), 2);
}

/* The longest copy-in of each kind and one element more: two ranks on one core, and three; with a core per
 * rank. */
static void copy_in(void **state)
{
    (void)state;
    enum { KIB = 1024 };
    static const struct {
        enum weft_coll_kind kind;
        /* bytes of `count`, of all ranks together if `of_all`; apart: two ranks with a core each */
        uint32_t is_oversubscribed, apart;
        bool of_all;
    } most[] = {
        {WEFT_COLL_ALL_REDUCE, 256 * KIB, 256 * KIB, false},
        {WEFT_COLL_REDUCE_SCATTER, 256 * KIB, 256 * KIB, true},
        {WEFT_COLL_ALL_GATHER, 256 * KIB, 256 * KIB, false},
        {WEFT_COLL_BROADCAST, 256 * KIB, 256 * KIB, false},
        {WEFT_COLL_REDUCE, 256 * KIB, 256 * KIB, false},
        {WEFT_COLL_GATHER, 256 * KIB, 32 * KIB, false},
        {WEFT_COLL_SCATTER, 256 * KIB, 64 * KIB, true},
        {WEFT_COLL_ALL_TO_ALL, 256 * KIB, 32 * KIB, true},
    };
    cpu_set_t whole, one;
    assert_int_equal(sched_getaffinity(0, sizeof whole, &whole), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        bool alone = ranks < 4, is_oversubscribed = alone || CPU_COUNT(&whole) < 2;
        uint32_t count_ranks = alone ? ranks : 2;
        if (alone) assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        shm_ranks_open(&shm_ranks, count_ranks, NULL, false, 0);
        buffers_open(count_ranks);
        until_the_header_check(shm_ranks.groups);
        assert_int_equal(shm_ranks.groups[0]->onehost->is_oversubscribed, is_oversubscribed);
        for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
            uint64_t bytes = is_oversubscribed ? most[i].is_oversubscribed : most[i].apart;
            if (most[i].of_all) bytes /= count_ranks;
            for (uint64_t more = 0; more < 2; more++) {
                struct call call = {.kind = most[i].kind,
                                    .dtype = WEFT_F32,
                                    .op = WEFT_SUM,
                                    .ranks = count_ranks,
                                    .root = i % count_ranks,
                                    .count = bytes / 4 + more,
                                    .seed = i};
                struct weft_coll_args args = {.kind = call.kind,
                                              .dtype = call.dtype,
                                              .op = call.op,
                                              .root = call.root,
                                              .count = call.count};
                for (uint32_t r = 0; r < count_ranks; r++)
                    assert_int_equal(onehost_uses_copyin(shm_ranks.groups[r], &args), !more);
                run_call(&call,
                         &(struct how){.in_place = i % 2, .unmapped = more ? SHM_RANKS_MAX : ALL_RANKS},
                         WEFT_PLAN_ONE_HOST);
            }
        }
        assert_int_equal(shm_ranks.groups[0]->ops.op_pool->copyin_slots[ONEHOST_LARGE].count, 1);
        buffers_close(count_ranks);
        shm_ranks_close(&shm_ranks);
        if (alone) assert_int_equal(sched_setaffinity(0, sizeof whole, &whole), 0);
    }
}

/* On a separate thread, whose affinity ends with it. */
static void *move_bound(void *context)
{
    (void)context;
    cpu_set_t whole, some, rest, now;
    if (sched_getaffinity(0, sizeof whole, &whole) != 0) return "affinity unknown";
    if (CPU_COUNT(&whole) < 2) return NULL;
    int first = 0;
    while (!CPU_ISSET(first, &whole)) first++;
    CPU_ZERO(&some);
    CPU_SET(first, &some);
    CPU_XOR(&rest, &whole, &some);
    if (!onehost_core_migration_move(&whole, &some)) return "not moved";
    if (sched_getaffinity(0, sizeof now, &now) != 0 || !CPU_EQUAL(&now, &whole))
        return "unbound before, and not after";
    if (sched_setaffinity(0, sizeof some, &some) != 0) return "cannot be bound";
    if (!onehost_core_migration_move(&some, &rest)) return "bound, not moved";
    if (sched_getaffinity(0, sizeof now, &now) != 0 || !CPU_EQUAL(&now, &some))
        return "bound before, and not after";
    CPU_ZERO(&rest);
    if (onehost_core_migration_move(&some, &rest)) return "moved to nowhere";
    if (sched_getaffinity(0, sizeof now, &now) != 0 || !CPU_EQUAL(&now, &some)) return "changed by nothing";
    return NULL;
}

static void affinity_is_what_it_was(void **state)
{
    (void)state;
    pthread_t thread;
    void *trouble;
    assert_int_equal(pthread_create(&thread, NULL, move_bound, NULL), 0);
    pthread_join(thread, &trouble);
    if (trouble) fail_msg("%s", (const char *)trouble);
}

/* ---- threads: each rank has a thread and sleeps between operations ---- */
struct worker {
    pthread_t thread;
    uint32_t rank;
    bool done;
    char why[200];
    struct outcome outcome;
};

static void worker_done(void *context, enum weft_status status, const char *text)
{
    struct worker *worker = context;
    outcome_done(&worker->outcome, status, text);
    worker->done = true;
}

/* Lengths from one round of a stage to several times all its slots. */
static void *work(void *context)
{
    enum { LONGEST = 450001 };
    struct worker *worker = context;
    cpu_set_t before, after;
    if (sched_getaffinity(0, sizeof before, &before) != 0) return "affinity unknown";
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t count = i % 3 ? 1 + i % 2000 : i % 50 ? 20000 : LONGEST - i;
        float *in = (float *)rank_buffers[worker->rank], *out = i % 2 ? in : in + LONGEST;
        for (uint64_t e = 0; e < count; e++) in[e] = (float)(worker->rank + e + i);
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .in = in,
                                      .out = out,
                                      .count = count,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM};
        worker->done = false;
        if (weft_coll_post(shm_ranks.groups[worker->rank], &args, worker_done, worker, NULL, NULL) !=
            WEFT_IN_PROGRESS)
            return "refused";
        if (weft_loop_wait(shm_ranks.loops[worker->rank], &worker->done,
                           weft_now_ns(weft_env_system()) + WEFT_SECONDS(20)) < 0)
            return "late";
        if (worker->outcome.status != WEFT_OK) return worker->outcome.text;
        for (uint64_t e = 0; e < count; e++) {
            float sum = 0;
            for (uint32_t r = 0; r < shm_ranks.ranks; r++) sum += (float)(r + e + i);
            if (out[e] != sum) return "wrong";
        }
    }
    if (sched_getaffinity(0, sizeof after, &after) != 0 || !CPU_EQUAL(&before, &after))
        return "bound to other processors than before";
    return NULL;
}

/* Operations with one reader per piece or for the result. */
static void *work_pieces(void *context)
{
    struct worker *worker = context;
    for (uint32_t i = 0; i < 120; i++) {
        struct call call = {.kind = kinds[4 + i % 4],
                            .dtype = i % 5 ? WEFT_F32 : WEFT_I8,
                            .op = WEFT_SUM,
                            .ranks = shm_ranks.ranks,
                            .root = i / 4 % shm_ranks.ranks,
                            .seed = i,
                            .count = i % 3    ? 1 + i * 17
                                     : i % 30 ? 9000
                                              : 50021};
        struct posted posted;
        posted_prepare_at(&posted, &call, worker->rank, i % 2, rank_buffers[worker->rank]);
        if (posted_start(&posted, shm_ranks.groups[worker->rank], 0) != WEFT_IN_PROGRESS) return "refused";
        if (weft_loop_wait(shm_ranks.loops[worker->rank], &posted.outcome.ended,
                           weft_now_ns(weft_env_system()) + WEFT_SECONDS(20)) < 0)
            return "late";
        if (posted.outcome.status != WEFT_OK) return "failed";
        if (!posted_check(&posted, worker->why, sizeof worker->why)) return worker->why;
    }
    return NULL;
}

static void threads_once(uint32_t ranks, void *(*work_of)(void *))
{
    static struct worker workers[4];
    shm_ranks_open(&shm_ranks, ranks, plain_tune, true, 0);
    buffers_open(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        workers[r].rank = r;
        assert_int_equal(pthread_create(&workers[r].thread, NULL, work_of, &workers[r]), 0);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        void *trouble;
        pthread_join(workers[r].thread, &trouble);
        if (trouble) fail_msg("rank %u: %s", r, (const char *)trouble);
    }
    buffers_close(ranks);
    shm_ranks_close(&shm_ranks);
}

static void four_threads(void)
{
    threads_once(4, work);
}
/* often a core each: they migrate if they start on one */
static void two_threads(void)
{
    threads_once(2, work);
}
static void threads_of_pieces(void)
{
    for (uint32_t ranks = 2; ranks <= 3; ranks++) threads_once(ranks, work_pieces);
}

static void threads(void **state)
{
    in_both_memories(four_threads);
    in_both_memories(two_threads);
    with_staging(four_threads);
    with_staging(two_threads);
    with_staging(threads_of_pieces);
    plain_buffers = SHM_RANKS_PLAIN_ONLY;
    if (plain_buffers) threads_of_pieces();
    else in_both_memories(threads_of_pieces);
    plain_buffers = false;
}

int main(int argc, char **argv)
{
    thorough = argc > 1 && strcmp(argv[1], "--thorough") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits),
        cmocka_unit_test(copy_in),
        cmocka_unit_test(many_ranks_and_long),
        cmocka_unit_test(scaled),
        cmocka_unit_test(ordinary_memory),
        cmocka_unit_test(ways),
        cmocka_unit_test(both_ways),
        cmocka_unit_test(rounds_of_long_ago),
        cmocka_unit_test(long_pieces),
        cmocka_unit_test(unequal_pieces),
        cmocka_unit_test(known_pieces),
        cmocka_unit_test(one_cannot_map),
        cmocka_unit_test(overlapping),
        cmocka_unit_test(mismatch),
        cmocka_unit_test(mismatch_of_pieces),
        cmocka_unit_test(mismatch_of_known_pieces),
        cmocka_unit_test(mismatch_of_ways),
        cmocka_unit_test(late_rank),
        cmocka_unit_test(silent_rank),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(left_early),
        cmocka_unit_test(left_before_the_header_check),
        cmocka_unit_test(many_groups),
        cmocka_unit_test(own_allocator),
        cmocka_unit_test(sharing_a_processor),
        cmocka_unit_test(no_processor_yet),
        cmocka_unit_test(affinity_is_what_it_was),
        cmocka_unit_test(bound_to_few_processors),
        cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
