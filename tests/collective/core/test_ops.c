/* test_ops.c - every operation x type x reduction x plan x number of ranks, in the simulator, in bits. */
#include "tests/collective/call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

/* A group per number of ranks serves all its calls: records and tags are used again and again. */
static struct world *world;
static struct weft_group *groups[WORLD_HOSTS_MAX];
static size_t groups_chunk_bytes;
/* up to three ranks on a host, in turn one, two and three, and not side by side where there are many */
static struct weft_plan_hosts hosts;

static void open_groups(uint32_t ranks, size_t chunk_bytes, uint32_t inflight)
{
    world = world_create(weft_env_system(), ranks, ranks, NULL);
    assert_non_null(world);
    struct weft_group_options options;
    weft_group_options_init(&options);
    static uint32_t memory[9 * WORLD_HOSTS_MAX + 5];
    uint32_t host_of[WORLD_HOSTS_MAX];
    for (uint32_t r = 0; r < ranks; r++)
        host_of[r] = r % 6 < 3 ? r / 6 * 2 : ranks > 8 && r % 6 == 4 ? 1 : r / 6 * 2 + 1;
    if (ranks == 4 || ranks == 64)
        for (uint32_t r = 0; r < ranks; r++) host_of[r] = r / (ranks / 2); /* subtrees of T */
    weft_plan_hosts_init(host_of, ranks, memory, &hosts);
    options.hosts = &hosts;
    options.chunk_bytes = groups_chunk_bytes = chunk_bytes;
    options.inflight_max = inflight;
    assert_int_equal(world_group(world, NULL, ranks, 5, &options, groups), WEFT_OK);
}

static void close_groups(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_group_free(groups[r]);
    world_free(world);
}

static void run_call(const struct call *what, bool in_place)
{
    struct call of_group = *what, *call = &of_group;
    call->chunk_bytes = groups_chunk_bytes;
    call->hosts = &hosts;
    struct posted posted[WORLD_HOSTS_MAX];
    uint32_t pending = call->ranks;
    bool done = false;
    char name[160], why[200];
    call_name(call, name, sizeof name);
    for (uint32_t r = 0; r < call->ranks; r++) {
        posted_prepare(&posted[r], call, r, in_place);
        posted[r].outcome.pending = &pending;
        posted[r].outcome.all_done = &done;
        assert_int_equal(posted_start(&posted[r], groups[r], 0), WEFT_IN_PROGRESS);
        assert_false(posted[r].outcome.ended); /* never from inside the call */
    }
    enum weft_status status = world_run(world, &done, WEFT_SECONDS(20));
    if (status != WEFT_OK) fail_msg("%s: %u ranks did not end (%s)", name, pending, weft_status_name(status));
    for (uint32_t r = 0; r < call->ranks; r++) {
        if (posted[r].outcome.status != WEFT_OK) fail_msg("%s: rank %u: %s", name, r, posted[r].outcome.text);
        assert_int_equal(posted[r].outcome.times, 1);
        if (!posted_check(&posted[r], why, sizeof why))
            fail_msg("%s%s: %s", name, in_place ? ", in place" : "", why);
        posted_release(&posted[r]);
    }
}

static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I64};
static const enum weft_coll_kind kinds[] = {
    WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER,
    WEFT_COLL_BROADCAST,  WEFT_COLL_BARRIER,        WEFT_COLL_REDUCE,
    WEFT_COLL_GATHER,     WEFT_COLL_SCATTER,        WEFT_COLL_ALL_TO_ALL};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void sweep(uint32_t ranks, const uint64_t *counts, size_t count_count, bool all_types)
{
    uint64_t seed = 1;
    for (size_t k = 0; k < KINDS; k++)
        for (int plan = WEFT_PLAN_DIRECT; plan < WEFT_PLAN_COUNT; plan++)
            for (size_t d = 0; d < 4; d++)
                for (size_t n = 0; n < count_count; n++) {
                    if (!weft_plan_supports(plan, kinds[k])) continue;
                    if (kinds[k] == WEFT_COLL_BARRIER && (d || n)) continue;
                    if (!all_types && (d + n + ranks) % 4) continue;
                    struct call call = {.kind = kinds[k],
                                        .plan = plan,
                                        .dtype = dtypes[d],
                                        .op = (d + n) % 2 ? WEFT_AVG : WEFT_SUM,
                                        .ranks = ranks,
                                        .root = (uint32_t)(seed % ranks),
                                        .count = counts[n],
                                        .seed = seed};
                    bool piecewise = kinds[k] != WEFT_COLL_ALL_REDUCE && kinds[k] != WEFT_COLL_BROADCAST &&
                                     kinds[k] != WEFT_COLL_REDUCE;
                    if (piecewise && call.count > 40) call.count = call.count / ranks + 1;
                    run_call(&call, seed % 2);
                    if (all_types) {
                        call.op = call.op == WEFT_SUM ? WEFT_AVG : WEFT_SUM;
                        run_call(&call, seed % 2 == 0);
                    }
                    seed++;
                }
}

/* Chunks of 64 bytes and a narrow window: many chunks of few elements. */
static void few_ranks(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8};
    for (size_t i = 0; i < 7; i++) {
        uint64_t counts[] = {0, 1, sizes[i] + 1, 37, 501};
        open_groups(sizes[i], i % 2 ? 64 : 128, i % 3 ? 16 : 2);
        sweep(sizes[i], counts, 5, sizes[i] == 3 || sizes[i] == 5);
        close_groups(sizes[i]);
    }
}

static void many_ranks(void **state)
{
    static const uint32_t sizes[] = {16, 33, 64};
    for (size_t i = 0; i < 3; i++) {
        uint64_t counts[] = {1, 37, 1009, 4 * sizes[i]};
        open_groups(sizes[i], 1 << 20, 16);
        sweep(sizes[i], counts, 4, false);
        close_groups(sizes[i]);
    }
}

/* Longer than eager messages: payloads move only into buffers that were named (rendezvous). */
static void long_vectors(void **state)
{
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        open_groups(ranks, 16384, 8);
        for (int plan = WEFT_PLAN_DIRECT; plan < WEFT_PLAN_COUNT; plan++)
            for (size_t d = 0; d < 4; d++) {
                if (!weft_plan_supports(plan, WEFT_COLL_ALL_REDUCE)) continue;
                struct call call = {.kind = WEFT_COLL_ALL_REDUCE,
                                    .plan = plan,
                                    .dtype = dtypes[d],
                                    .op = d % 2 ? WEFT_SUM : WEFT_AVG,
                                    .ranks = ranks,
                                    .count = 50021,
                                    .seed = ranks * 10 + d};
                run_call(&call, d % 2);
            }
        close_groups(ranks);
    }
}

/* Every element type with every reduction it has, on a plan of each make: folds, wide scratch, the ring. */
static void types_and_reductions(void **state)
{
    static const struct {
        enum weft_coll_kind kind;
        enum weft_plan_id plan;
    } makes[] = {{WEFT_COLL_ALL_REDUCE, WEFT_PLAN_DIRECT},      {WEFT_COLL_ALL_REDUCE, WEFT_PLAN_RING},
                 {WEFT_COLL_ALL_REDUCE, WEFT_PLAN_HALVING},     {WEFT_COLL_REDUCE_SCATTER, WEFT_PLAN_DIRECT},
                 {WEFT_COLL_REDUCE, WEFT_PLAN_BINOMIAL},        {WEFT_COLL_REDUCE, WEFT_PLAN_CHAIN},
                 {WEFT_COLL_ALL_REDUCE, WEFT_PLAN_DOUBLE_TREE}, {WEFT_COLL_REDUCE_SCATTER, WEFT_PLAN_PAT},
                 {WEFT_COLL_ALL_REDUCE, WEFT_PLAN_HIERARCHY}};
    for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
        open_groups(ranks, 256, 8);
        uint64_t seed = 100;
        for (int dtype = 1; dtype < WEFT_DTYPE_COUNT; dtype++)
            for (int op = 1; op < WEFT_OP_COUNT; op++)
                for (size_t m = 0; m < sizeof makes / sizeof *makes; m++) {
                    bool real = dtype <= WEFT_BF16 || dtype == WEFT_F64 || dtype >= WEFT_F8_E4M3;
                    struct call call = {.kind = makes[m].kind,
                                        .plan = makes[m].plan,
                                        .dtype = dtype,
                                        .op = op,
                                        .ranks = ranks,
                                        .root = ranks / 2,
                                        .count = 131,
                                        .seed = seed++};
                    if (real ? op >= WEFT_AND && op <= WEFT_XOR : op == WEFT_SCALED_SUM) {
                        struct posted posted;
                        posted_prepare(&posted, &call, 0, false);
                        assert_int_equal(posted_start(&posted, groups[0], 0), WEFT_ERR_UNSUPPORTED);
                        posted_release(&posted);
                        continue;
                    }
                    run_call(&call, seed % 2);
                }
        close_groups(ranks);
    }
}

/* Several calls of ranks that differ in what they post: pieces of unequal lengths, messages of pairs. */
struct batch {
    struct outcome outcomes[64];
    uint32_t pending;
    bool done;
};
static void batch_post(struct batch *batch, uint32_t rank, const struct weft_coll_args *args)
{
    struct outcome *outcome = &batch->outcomes[batch->pending++];
    *outcome = (struct outcome){.pending = &batch->pending, .all_done = &batch->done};
    struct weft_error error = {0};
    enum weft_status status = weft_coll_post(groups[rank], args, outcome_done, outcome, NULL, &error);
    if (status != WEFT_IN_PROGRESS) fail_msg("%s", error.text);
}
static void batch_run(struct batch *batch)
{
    uint32_t posted = batch->pending;
    enum weft_status status = world_run(world, &batch->done, WEFT_SECONDS(20));
    for (uint32_t i = 0; i < posted; i++)
        if (batch->outcomes[i].ended && batch->outcomes[i].status != WEFT_OK)
            fail_msg("%s", batch->outcomes[i].text);
    assert_int_equal(status, WEFT_OK);
    *batch = (struct batch){0};
}

/* ---- means of narrow floats over their whole range ---- */
struct narrow_type {
    enum weft_dtype dtype;
    int mantissa_bits, exponent_min;
    uint16_t sign, largest; /* codes */
};
static const struct narrow_type narrow_types[] = {{WEFT_F16, 10, -14, 0x8000, 0x7bff},
                                                  {WEFT_BF16, 7, -126, 0x8000, 0x7f7f},
                                                  {WEFT_F8_E4M3, 3, -6, 0x80, 0x7e},
                                                  {WEFT_F8_E5M2, 2, -14, 0x80, 0x7b}};

static double narrow_value(const struct narrow_type *type, uint16_t code)
{
    int exponent = (code & (type->sign - 1)) >> type->mantissa_bits,
        mantissa = code & ((1 << type->mantissa_bits) - 1);
    double value = exponent == 0 ? ldexp(mantissa, type->exponent_min - type->mantissa_bits)
                                 : ldexp(mantissa + (1 << type->mantissa_bits),
                                         exponent - 1 + type->exponent_min - type->mantissa_bits);
    return code & type->sign ? -value : value;
}

/* The largest everywhere, the largest with either sign, the least, and numbers of all sizes. */
static uint16_t narrow_code(const struct narrow_type *type, uint32_t rank, uint64_t i)
{
    uint32_t random = (uint32_t)((rank * 7919u + i * 104729u + 17) * 2654435761u) >> 7;
    uint16_t sign = random & 1 ? type->sign : 0;
    switch (i % 5) {
    case 0: return type->largest;
    case 1: return type->largest | sign;
    case 2: return (uint16_t)((random >> 1) % 7) | sign;
    default: return (uint16_t)((random >> 1) % (type->largest + 1u)) | sign;
    }
}

/* What docs/collectives.md states: half a step of the result, and what f32 loses in the sum. */
static double mean_tolerance(const struct narrow_type *type, double mean, double mean_size, uint32_t ranks)
{
    int exponent = mean == 0 ? type->exponent_min : ilogb(mean);
    if (exponent < type->exponent_min) exponent = type->exponent_min;
    return ldexp(0.5, exponent - type->mantissa_bits) + (ranks + 1) * ldexp(mean_size, -24);
}

#define MEAN_ELEMS 151u
static void check_mean(const struct narrow_type *type, uint32_t ranks, uint64_t element, uint16_t got,
                       const char *name)
{
    double sum = 0, size = 0, value = narrow_value(type, got);
    for (uint32_t r = 0; r < ranks; r++) {
        double x = narrow_value(type, narrow_code(type, r, element));
        sum += x, size += fabs(x);
    }
    bool finite = (got & (type->sign - 1)) <= type->largest;
    if (!finite || fabs(value - sum / ranks) > mean_tolerance(type, sum / ranks, size / ranks, ranks))
        fail_msg("%s, %s, %u ranks: element %llu is %g (code %x), the mean %g", name,
                 weft_dtype_name(type->dtype), ranks, (unsigned long long)element, value, got, sum / ranks);
}

static void mean_of(const struct narrow_type *type, enum weft_coll_kind kind, enum weft_plan_id plan,
                    uint32_t ranks)
{
    static uint16_t in[9][9 * MEAN_ELEMS], out[9][9 * MEAN_ELEMS];
    static struct batch batch;
    bool pieces = kind == WEFT_COLL_REDUCE_SCATTER, bytes = weft_dtype_bytes(type->dtype) == 1;
    uint64_t in_count = pieces ? ranks * MEAN_ELEMS : MEAN_ELEMS;
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint64_t i = 0; i < in_count; i++) {
            uint16_t code = narrow_code(type, r, i);
            if (bytes) ((uint8_t *)in[r])[i] = (uint8_t)code;
            else in[r][i] = code;
        }
        batch_post(&batch, r,
                   &(struct weft_coll_args){.kind = kind,
                                            .plan = plan,
                                            .dtype = type->dtype,
                                            .op = WEFT_AVG,
                                            .in = in[r],
                                            .out = out[r],
                                            .count = MEAN_ELEMS,
                                            .root = ranks / 2});
    }
    batch_run(&batch);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint64_t i = 0; i < MEAN_ELEMS && (kind != WEFT_COLL_REDUCE || r == ranks / 2); i++)
            check_mean(type, ranks, pieces ? r * MEAN_ELEMS + i : i,
                       bytes ? ((uint8_t *)out[r])[i] : out[r][i], weft_plan_name(plan));
}

/* The mean of finite numbers is finite and near on every plan, also where their sum does not fit into an
 * element or into f32. */
static void means_of_narrow_floats(void **state)
{
    static const enum weft_coll_kind sums[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE,
                                               WEFT_COLL_REDUCE_SCATTER};
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        open_groups(ranks, 64, 8);
        for (int plan = WEFT_PLAN_DIRECT; plan < WEFT_PLAN_COUNT; plan++)
            for (size_t k = 0; k < 3; k++)
                for (size_t t = 0; t < 4; t++)
                    if (weft_plan_supports(plan, sums[k])) mean_of(&narrow_types[t], sums[k], plan, ranks);
        close_groups(ranks);
    }
}

#define UNEQUAL 5u
static void unequal_pieces(void **state)
{
    static const uint64_t counts[UNEQUAL] = {3, 0, 70, 1, 33};
    static int32_t in[UNEQUAL][600], out[UNEQUAL][600], sum[600];
    static struct batch batch;
    for (int plan = WEFT_PLAN_DIRECT; plan < WEFT_PLAN_COUNT; plan++)
        for (size_t k = 0; k < KINDS; k++) {
            if (!weft_plan_supports_unequal(plan, kinds[k])) continue;
            open_groups(UNEQUAL, 64, 4);
            uint32_t root = 2;
            uint64_t sent[UNEQUAL][UNEQUAL], received[UNEQUAL][UNEQUAL], firsts[UNEQUAL + 1] = {0};
            memset(out, 0xff, sizeof out);
            memset(sum, 0, sizeof sum);
            for (uint32_t r = 0; r < UNEQUAL; r++) firsts[r + 1] = firsts[r] + counts[r];
            for (uint32_t r = 0; r < UNEQUAL; r++)
                for (uint32_t i = 0; i < 600; i++) sum[i] += in[r][i] = (int32_t)(r * 100000 + i);
            for (uint32_t r = 0; r < UNEQUAL; r++)
                for (uint32_t p = 0; p < UNEQUAL; p++) sent[r][p] = received[p][r] = (r * 31 + p * 17) % 90;
            for (uint32_t r = 0; r < UNEQUAL; r++) {
                struct weft_coll_args args = {.kind = kinds[k],
                                              .plan = plan,
                                              .dtype = WEFT_I32,
                                              .op = WEFT_SUM,
                                              .in = in[r],
                                              .out = out[r],
                                              .root = root,
                                              .count = counts[r],
                                              .counts = counts};
                if (kinds[k] == WEFT_COLL_ALL_TO_ALL) args.counts = sent[r], args.counts_out = received[r];
                args.unequal = kinds[k] == WEFT_COLL_GATHER || kinds[k] == WEFT_COLL_SCATTER;
                if (args.unequal && r != root) args.counts = NULL;
                batch_post(&batch, r, &args);
            }
            batch_run(&batch);
            for (uint32_t r = 0; r < UNEQUAL; r++)
                for (uint32_t p = 0, at = 0; p < UNEQUAL; p++) {
                    uint64_t n = kinds[k] == WEFT_COLL_ALL_TO_ALL ? received[r][p] : counts[p], first = 0;
                    for (uint32_t q = 0; q < r; q++) first += sent[p][q];
                    for (uint64_t i = 0; i < n; i++, at++) {
                        if (kinds[k] == WEFT_COLL_ALL_TO_ALL) assert_int_equal(out[r][at], in[p][first + i]);
                        else if (kinds[k] == WEFT_COLL_ALL_GATHER ||
                                 (kinds[k] == WEFT_COLL_GATHER && r == root))
                            assert_int_equal(out[r][at], in[p][i]);
                        else if (kinds[k] == WEFT_COLL_SCATTER && p == r)
                            assert_int_equal(out[r][i], in[root][firsts[r] + i]);
                        else if (kinds[k] == WEFT_COLL_REDUCE_SCATTER && p == r)
                            assert_int_equal(out[r][i], sum[firsts[r] + i]);
                    }
                }
            close_groups(UNEQUAL);
        }
}

/* Sends and receives of pairs, beside operations of all: they meet in the order posted between two ranks. */
static void pairs(void **state)
{
    static uint16_t sent[3][3][4][3000], got[3][3][4][3000];
    static struct batch batch;
    open_groups(3, 1024, 4);
    for (uint32_t round = 0; round < 3; round++) {
        float values[3] = {1, 2, 3};
        for (uint32_t r = 0; r < 3; r++) {
            for (uint32_t n = 0; n < 4; n++)
                for (uint32_t p = 0; p < 3; p++) {
                    if (p == r) continue;
                    for (uint32_t i = 0; i < 3000; i++)
                        sent[r][p][n][i] = (uint16_t)(r * 7000 + p * 1000 + n * 100 + i + round);
                    struct weft_coll_args send = {.kind = WEFT_COLL_SEND,
                                                  .in = sent[r][p][n],
                                                  .count = n * 999 + p,
                                                  .dtype = WEFT_BF16,
                                                  .root = p};
                    struct weft_coll_args recv = {.kind = WEFT_COLL_RECV,
                                                  .out = got[r][p][n],
                                                  .count = n * 999 + r,
                                                  .dtype = WEFT_BF16,
                                                  .root = p};
                    batch_post(&batch, r, n % 2 ? &send : &recv);
                    batch_post(&batch, r, n % 2 ? &recv : &send);
                }
            batch_post(&batch, r,
                       &(struct weft_coll_args){.kind = WEFT_COLL_ALL_REDUCE,
                                                .in = &values[r],
                                                .out = &values[r],
                                                .count = 1,
                                                .dtype = WEFT_F32,
                                                .op = WEFT_MAX});
        }
        batch_run(&batch);
        for (uint32_t r = 0; r < 3; r++) {
            assert_true(values[r] == 3);
            for (uint32_t p = 0; p < 3; p++)
                for (uint32_t n = 0; n < 4 && p != r; n++)
                    assert_memory_equal(got[r][p][n], sent[p][r][n], 2 * (n * 999 + r));
        }
    }
    close_groups(3);
}

/* In place an exchange takes a copy of what it sends. */
static void exchange_in_place(void **state)
{
    static int64_t values[4][4 * 500];
    static struct batch batch;
    open_groups(4, 512, 4);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t i = 0; i < 2000; i++) values[r][i] = r * 10000 + i;
    for (uint32_t r = 0; r < 4; r++)
        batch_post(&batch, r,
                   &(struct weft_coll_args){.kind = WEFT_COLL_ALL_TO_ALL,
                                            .in = values[r],
                                            .out = values[r],
                                            .count = 500,
                                            .dtype = WEFT_I64});
    batch_run(&batch);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t i = 0; i < 2000; i++)
            assert_int_equal(values[r][i], i / 500 * 10000 + r * 500 + i % 500);
    close_groups(4);
}

static void gathered_bytes(uint32_t ranks, uint64_t piece_max, size_t chunk_bytes)
{
    open_groups(ranks, chunk_bytes, 4);
    uint8_t *in[WORLD_HOSTS_MAX], *out[WORLD_HOSTS_MAX];
    uint64_t lengths[WORLD_HOSTS_MAX][WORLD_HOSTS_MAX], own[WORLD_HOSTS_MAX];
    struct outcome outcomes[WORLD_HOSTS_MAX] = {0};
    uint32_t pending = ranks;
    bool done = false;
    for (uint32_t r = 0; r < ranks; r++) {
        own[r] = r == 0 ? piece_max : r == 1 ? 0 : (piece_max * r * 7 / 11) % (piece_max + 1);
        in[r] = malloc(piece_max + 1);
        out[r] = calloc(ranks, piece_max + 1);
        for (uint64_t i = 0; i < own[r]; i++) in[r][i] = (uint8_t)(r * 31 + i * 7);
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_GATHER_BYTES,
                                      .in = in[r],
                                      .out = out[r],
                                      .count = own[r],
                                      .piece_bytes_max = piece_max,
                                      .piece_bytes_out = lengths[r]};
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(outcomes[r].status, WEFT_OK);
        for (uint32_t peer = 0; peer < ranks; peer++) {
            assert_true(lengths[r][peer] == own[peer]);
            assert_memory_equal(out[r] + peer * piece_max, in[peer], own[peer]);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) free(in[r]), free(out[r]);
    close_groups(ranks);
}

/* Rank r's piece for rank p: some are empty, some are full. */
static uint64_t exchange_length(uint32_t from, uint32_t to, uint64_t piece_max)
{
    return (from + to) % 3 == 0   ? 0
           : (from * to) % 4 == 1 ? piece_max
                                  : (piece_max * (from * 5 + to * 3 + 1) / 17) % (piece_max + 1);
}

static void exchanged_bytes(uint32_t ranks, uint64_t piece_max, size_t chunk_bytes)
{
    open_groups(ranks, chunk_bytes, 4);
    uint8_t *in[WORLD_HOSTS_MAX], *out[WORLD_HOSTS_MAX];
    uint64_t lengths[WORLD_HOSTS_MAX][WORLD_HOSTS_MAX], own[WORLD_HOSTS_MAX][WORLD_HOSTS_MAX];
    struct outcome outcomes[WORLD_HOSTS_MAX] = {0};
    uint32_t pending = ranks;
    bool done = false;
    for (uint32_t r = 0; r < ranks; r++) {
        in[r] = malloc(ranks * piece_max + 1);
        out[r] = calloc(ranks, piece_max + 1);
        for (uint64_t i = 0; i < ranks * piece_max; i++) in[r][i] = (uint8_t)(r * 31 + i * 7);
        for (uint32_t to = 0; to < ranks; to++) own[r][to] = exchange_length(r, to, piece_max);
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        struct weft_coll_args args = {.kind = WEFT_COLL_EXCHANGE_BYTES,
                                      .in = in[r],
                                      .out = out[r],
                                      .piece_bytes_in = own[r],
                                      .piece_bytes_max = piece_max,
                                      .piece_bytes_out = lengths[r]};
        own[r][ranks - 1] += piece_max + 1;
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_ERR_INVALID);
        own[r][ranks - 1] -= piece_max + 1;
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(outcomes[r].status, WEFT_OK);
        for (uint32_t peer = 0; peer < ranks; peer++) {
            assert_true(lengths[r][peer] == own[peer][r]);
            assert_memory_equal(out[r] + peer * piece_max, in[peer] + r * piece_max, own[peer][r]);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) free(in[r]), free(out[r]);
    close_groups(ranks);
}

static void exchange_bytes(void **state)
{
    exchanged_bytes(1, 100, 64);
    exchanged_bytes(2, 1, 64);
    exchanged_bytes(3, 0, 64);
    exchanged_bytes(4, 1000, 64);
    exchanged_bytes(7, 30000, 16384);
}

static void gather_bytes(void **state)
{
    gathered_bytes(1, 100, 64);
    gathered_bytes(2, 1, 64);
    gathered_bytes(3, 0, 64);
    gathered_bytes(4, 1000, 64);
    gathered_bytes(7, 30000, 16384);
}

/* The flight recorder has a begin and an end of each operation. */
static void recorded(void **state)
{
    struct weft_event_ring *ring;
    assert_int_equal(weft_event_ring_create(weft_env_system(), 64, &ring), WEFT_OK);
    world = world_create(weft_env_system(), 2, 1, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.events = ring;
    groups_chunk_bytes = options.chunk_bytes;
    assert_int_equal(world_group(world, NULL, 2, 5, &options, groups), WEFT_OK);
    run_call(&(struct call){.kind = WEFT_COLL_ALL_REDUCE,
                            .plan = WEFT_PLAN_RING,
                            .dtype = WEFT_F32,
                            .op = WEFT_SUM,
                            .ranks = 2,
                            .count = 3},
             false);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(weft_event_ring_dump_json(ring, "test", out), WEFT_OK);
    fclose(out);
    uint32_t found = 0;
    for (const char *at = text; (at = strstr(at, "\"all_reduce\"")); at++) found++;
    assert_int_equal(found, 4); /* two ranks share this ring */
    free(text);
    close_groups(2);
    weft_event_ring_free(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_ranks),
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(long_vectors),
        cmocka_unit_test(gather_bytes),
        cmocka_unit_test(exchange_bytes),
        cmocka_unit_test(recorded),
        cmocka_unit_test(types_and_reductions),
        cmocka_unit_test(means_of_narrow_floats),
        cmocka_unit_test(unequal_pieces),
        cmocka_unit_test(pairs),
        cmocka_unit_test(exchange_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
