/* compressed/test_all_reduce.c - the compressed all-reduce gives the bits of a shard's combiner on every
 * rank, over several steps. */
#include "tests/collective/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/core/group.h"
#include "tests/lib/check.h"

#define RANKS_MAX 8

static float gradient(uint32_t rank, uint32_t step, uint64_t i)
{
    uint64_t x =
        (rank + 1) * 0x9e3779b97f4a7c15ull + step * 0xbf58476d1ce4e5b9ull + i * 0x94d049bb133111ebull;
    x = (x ^ (x >> 29)) * 0xff51afd7ed558ccdull;
    return ldexpf((float)(int32_t)(x >> 32), -33 + (int)(x % 7));
}

/* One step through one combiner. */
static void reference_step(struct weft_codec **codecs, const struct weft_codec_spec *spec,
                           const struct weft_shape *shape, uint32_t ranks, float *const *grads, float scale,
                           float *out)
{
    struct weft_combiner *combiner;
    struct weft_codec_spec plain = *spec;
    plain.global = 0; /* an all-reduce keeps no residual in a combiner */
    assert_int_equal(weft_combiner_create(weft_env_system(), &plain, shape, ranks, &combiner), WEFT_OK);
    for (uint32_t round = 0; round < weft_codec_rounds(spec); round++) {
        uint8_t *bytes = malloc(weft_codec_contribution_bytes_max(spec, shape, round) + 1);
        weft_combiner_begin(combiner, round);
        for (uint32_t r = 0; r < ranks; r++) {
            size_t n;
            assert_int_equal(weft_codec_encode(codecs[r], round, grads[r], 1.0f, bytes, &n), WEFT_OK);
            assert_int_equal(weft_combiner_add(combiner, bytes, n), WEFT_OK);
        }
        const void *aggregate;
        size_t n;
        assert_int_equal(weft_combiner_close(combiner, &aggregate, &n), WEFT_OK);
        for (uint32_t r = 0; r < ranks; r++)
            assert_int_equal(weft_codec_take(codecs[r], round, aggregate, n, ranks), WEFT_OK);
        free(bytes);
    }
    assert_int_equal(weft_codec_finish(codecs[0], scale, out), WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++) weft_codec_commit(codecs[r]);
    weft_combiner_free(combiner);
}

struct tensor {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    uint64_t elems;
    struct weft_codec *codecs[RANKS_MAX], *references[RANKS_MAX];
    float *grads[RANKS_MAX], *outs[RANKS_MAX], *expected;
    struct outcome outcomes[RANKS_MAX];
    struct weft_codec_times times[RANKS_MAX];
};

static void tensor_open(struct tensor *t, const char *text, uint32_t ranks, uint64_t rows, uint64_t cols)
{
    struct weft_codec_spec spec;
    assert_int_equal(weft_codec_parse(text, &spec, NULL), WEFT_OK);
    memset(t, 0, sizeof *t);
    t->shape = spec.stacked ? (struct weft_shape){.dim_count = 3, .dims = {5, rows, cols}}
                            : (struct weft_shape){.dim_count = 2, .dims = {rows, cols}};
    t->spec = weft_codec_resolve(&spec, &t->shape);
    assert_int_equal(t->spec.id, spec.id);
    t->elems = weft_shape_elems(&t->shape);
    t->expected = malloc(t->elems * sizeof(float));
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(weft_codec_create(weft_env_system(), &t->spec, &t->shape, &t->codecs[r]), WEFT_OK);
        assert_int_equal(weft_codec_create(weft_env_system(), &t->spec, &t->shape, &t->references[r]),
                         WEFT_OK);
        t->grads[r] = malloc(t->elems * sizeof(float));
        t->outs[r] = malloc(t->elems * sizeof(float));
    }
}

static void tensor_close(struct tensor *t, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        weft_codec_free(t->codecs[r]);
        weft_codec_free(t->references[r]);
        free(t->grads[r]);
        free(t->outs[r]);
    }
    free(t->expected);
}

static const char *const specs[] = {"dense",
                                    "f16",
                                    "bf16",
                                    "powersgd:rank=3",
                                    "topk:ratio=0.05,min_count=1",
                                    "int8:min_count=1",
                                    "int4:min_count=1",
                                    "sign:min_count=1",
                                    "e4m3:min_count=1",
                                    "e5m2:min_count=1",
                                    "randomk:ratio=0.05,min_count=1",
                                    "powersgd:rank=2,iterations=3",
                                    "topk:ratio=0.05,min_count=1,momentum=0.9,warmup_steps=2",
                                    "topk:ratio=0.05,min_count=1,global=1",
                                    "powersgd:rank=2,stacked=1"};
#define SPECS (sizeof specs / sizeof specs[0])

static struct world *world;
static struct weft_group *groups[RANKS_MAX];

/* rounds are split by regions or slices from this number of ranks on; 0: the group decides */
static uint32_t shared_from;

static uint64_t urgency; /* of all gradients; 0: none */

static void open_groups(uint32_t ranks)
{
    world = world_create(weft_env_system(), ranks, ranks, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = 4096;
    options.sparse_shared_ranks = shared_from;
    assert_int_equal(world_group(world, NULL, ranks, 1, &options, groups), WEFT_OK);
}

static void close_groups(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_group_free(groups[r]);
    world_free(world);
}

static void start(struct tensor *t, uint32_t rank, const float *grad, float result_scale)
{
    const struct weft_coll_codec_member member = {
        .codec = t->codecs[rank], .urgency = urgency, .grad = grad, .grad_scale = 1.0f, .out = t->outs[rank]};
    const struct weft_coll_codec_args args = {.members = &member,
                                              .count = 1,
                                              .resolved = &t->spec,
                                              .shape = &t->shape,
                                              .result_scale = result_scale,
                                              .times = &t->times[rank]};
    assert_int_equal(weft_coll_codec_all_reduce(groups[rank], &args, outcome_done, &t->outcomes[rank], NULL),
                     WEFT_IN_PROGRESS);
}

/* All codecs at the same time, so their rounds overlap; several steps, for residuals and warm starts. */
static void bits_of_the_combiner(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t ranks = sizes[s];
        struct tensor tensors[SPECS];
        open_groups(ranks);
        for (size_t t = 0; t < SPECS; t++) tensor_open(&tensors[t], specs[t], ranks, 61, 40 + t);
        for (uint32_t step = 0; step < 3; step++) {
            uint32_t pending = ranks * SPECS;
            bool done = false;
            for (size_t t = 0; t < SPECS; t++)
                for (uint32_t r = 0; r < ranks; r++) {
                    struct tensor *tensor = &tensors[t];
                    for (uint64_t i = 0; i < tensor->elems; i++)
                        tensor->grads[r][i] = gradient(r, step, i * (t + 1));
                    tensor->outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
                    bool in_place = step == 1;
                    if (in_place) memcpy(tensor->outs[r], tensor->grads[r], tensor->elems * sizeof(float));
                    start(tensor, r, in_place ? tensor->outs[r] : tensor->grads[r], 1.0f / ranks);
                }
            assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
            for (size_t t = 0; t < SPECS; t++) {
                struct tensor *tensor = &tensors[t];
                reference_step(tensor->references, &tensor->spec, &tensor->shape, ranks, tensor->grads,
                               1.0f / ranks, tensor->expected);
                for (uint32_t r = 0; r < ranks; r++) {
                    if (tensor->outcomes[r].status != WEFT_OK)
                        fail_msg("%s: %s", specs[t], tensor->outcomes[r].text);
                    assert_memory_equal(tensor->outs[r], tensor->expected, tensor->elems * sizeof(float));
                    weft_codec_commit(tensor->codecs[r]);
                }
            }
        }
        for (size_t t = 0; t < SPECS; t++) tensor_close(&tensors[t], ranks);
        close_groups(ranks);
    }
}

/* Returns whether the error names the rank whose gradient is not finite. A sum cannot. */
static bool names_rank(const struct weft_codec_spec *spec)
{
    return weft_codec_combine_kind(spec, 0) == WEFT_COMBINE_GATHER;
}

/* The figures of one exchange. */
static void check_times(const struct tensor *tensor, const struct weft_codec_times *times)
{
    assert_int_equal(weft_histogram_count(&times->encode), 1);
    assert_int_equal(weft_histogram_count(&times->decode), 1);
    assert_in_range(times->encode.sum + times->decode.sum, 1, times->compute_ns);
    assert_int_equal(times->gradient_bytes, tensor->elems * sizeof(float));
    uint64_t bytes_max = 0;
    for (uint32_t round = 0; round < weft_codec_rounds(&tensor->spec); round++)
        bytes_max += weft_codec_contribution_bytes_max(&tensor->spec, &tensor->shape, round);
    assert_in_range(times->encoded_bytes, 1, bytes_max);
    if (tensor->spec.id == WEFT_CODEC_BF16) assert_int_equal(times->encoded_bytes, times->gradient_bytes / 2);
}

/* One rank's gradient has a NaN: all ranks return the error, the group stays usable, and the next step
 * works. The failed exchange has no figures. */
static void not_finite_everywhere(void **state)
{
    uint32_t ranks = 3;
    open_groups(ranks);
    for (size_t t = 0; t < SPECS; t++) {
        struct tensor tensor;
        tensor_open(&tensor, specs[t], ranks, 50, 40);
        for (uint32_t step = 0; step < 2; step++) {
            uint32_t pending = ranks;
            bool done = false;
            for (uint32_t r = 0; r < ranks; r++) {
                for (uint64_t i = 0; i < tensor.elems; i++) tensor.grads[r][i] = gradient(r, step, i);
                if (step == 0 && r == 1) tensor.grads[r][777] = NAN;
                tensor.outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
                start(&tensor, r, tensor.grads[r], 1.0f);
            }
            assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
            for (uint32_t r = 0; r < ranks; r++) {
                if (step == 1) check_times(&tensor, &tensor.times[r]);
                assert_int_equal(tensor.outcomes[r].status, step == 0 ? WEFT_ERR_INVALID : WEFT_OK);
                if (step == 0) {
                    assert_non_null(strstr(tensor.outcomes[r].text, "not finite"));
                    if (names_rank(&tensor.spec))
                        assert_non_null(strstr(tensor.outcomes[r].text, r == 1 ? "this rank" : "rank 1"));
                    weft_codec_abandon(tensor.codecs[r]);
                } else {
                    weft_codec_commit(tensor.codecs[r]);
                }
            }
        }
        tensor_close(&tensor, ranks);
    }
    close_groups(ranks);
}

/* The same with rounds split by regions or slices, and with gathers only: equal bits, and a NaN is
 * detected. */
static void shared_out(void **state)
{
    for (uint32_t way = 0; way < 2; way++) {
        shared_from = way == 0 ? 1 : UINT32_MAX;
        bits_of_the_combiner(state);
        not_finite_everywhere(state);
    }
    shared_from = 0;
}

static const char *const sliced_specs[] = {"f16",
                                           "bf16",
                                           "int8:min_count=1",
                                           "int4:min_count=1",
                                           "sign:min_count=1",
                                           "e4m3:min_count=1",
                                           "e5m2:min_count=1"};
#define SLICED_SPECS (sizeof sliced_specs / sizeof sliced_specs[0])

/* Runs one step on all ranks of the open groups. */
static void run_step(struct tensor *t, uint32_t ranks)
{
    uint32_t pending = ranks;
    bool done = false;
    for (uint32_t r = 0; r < ranks; r++) {
        t->outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
        start(t, r, t->grads[r], 1.0f / ranks);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
}

/* Slices without elements, and counts around a block, on 2 to 8 ranks. */
static void few_elements(void **state)
{
    static const uint64_t counts[] = {1, 31, 33, 255, 256, 257, 511, 1793};
    shared_from = 1;
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++) {
        open_groups(ranks);
        for (size_t s = 0; s < SLICED_SPECS; s++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                struct tensor t;
                tensor_open(&t, sliced_specs[s], ranks, 1, counts[c]);
                for (uint32_t r = 0; r < ranks; r++)
                    for (uint64_t i = 0; i < t.elems; i++) t.grads[r][i] = gradient(r, 0, i);
                run_step(&t, ranks);
                reference_step(t.references, &t.spec, &t.shape, ranks, t.grads, 1.0f / ranks, t.expected);
                for (uint32_t r = 0; r < ranks; r++) {
                    assert_int_equal(t.outcomes[r].status, WEFT_OK);
                    assert_memory_equal(t.outs[r], t.expected, t.elems * sizeof(float));
                }
                tensor_close(&t, ranks);
            }
        close_groups(ranks);
    }
    shared_from = 0;
}

/* Rank 1 orders its bytes as for pieces, so codes of elements stand at the position of scales. The code of
 * -1 exceeds all scales. Only rank 2 has such codes in its slice, and all ranks fail. */
static void unreadable_contribution(void **state)
{
    const uint32_t ranks = 3;
    struct tensor t;
    shared_from = 1;
    open_groups(ranks);
    tensor_open(&t, "e4m3:min_count=1", ranks, 30, 256);
    assert_int_equal(weft_codec_set_pieces(t.codecs[1], WEFT_CODEC_PIECE), WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++)
        /* blocks 20 to 29 */
        for (uint64_t i = 0; i < t.elems; i++) t.grads[r][i] = i >= 19 && i < 29 ? -1.0f : 1.0f;
    run_step(&t, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        const char *const cause =
            r == 2 ? "the contribution of rank 1 cannot be used" : "rank 2 has no usable sum";
        assert_int_equal(t.outcomes[r].status, WEFT_ERR_MALFORMED);
        if (!strstr(t.outcomes[r].text, cause)) fail_msg("rank %u: %s", r, t.outcomes[r].text);
    }
    tensor_close(&t, ranks);
    close_groups(ranks);
    shared_from = 0;
}

/* Split rounds use the send credit, as all operations with an urgency. */
static void urgency_of_split_rounds(void **state)
{
    static const char *const split[] = {"topk:ratio=0.01,min_count=1", "int8:min_count=1"};
    const uint32_t ranks = 3;
    shared_from = 1;
    urgency = 1;
    for (size_t s = 0; s < sizeof split / sizeof split[0]; s++) {
        struct tensor t;
        open_groups(ranks);
        tensor_open(&t, split[s], ranks, 30, 256);
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t i = 0; i < t.elems; i++) t.grads[r][i] = gradient(r, 0, i);
        run_step(&t, ranks);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_int_equal(t.outcomes[r].status, WEFT_OK);
            assert_non_null(groups[r]->sending.send_credit);
        }
        tensor_close(&t, ranks);
        close_groups(ranks);
    }
    shared_from = 0;
    urgency = 0;
}

/* Which rounds are split, and the traffic that the codec tuner uses: few ranks or dense unions are not
 * split. */
static void when_it_pays(void **state)
{
    struct weft_codec_spec spec;
    const struct weft_shape shape = {.dim_count = 1, .dims = {10000000}};
    const size_t dense = 4 * shape.dims[0];
    double least = INFINITY;
    assert_int_equal(weft_codec_parse("topk:ratio=0.01", &spec, NULL), WEFT_OK);
    for (uint32_t ranks = 2; ranks <= 4096; ranks *= 2) {
        struct weft_coll_traffic traffic;
        weft_coll_codec_traffic(&spec, &shape, ranks, NULL, &traffic);
        const double one = (double)weft_codec_contribution_bytes_max(&spec, &shape, 0),
                     gathered = (ranks - 1) * one;
        assert_true(traffic.bytes <= gathered);
        assert_true(traffic.bytes <= one + (double)dense); /* for any number of ranks */
        if (ranks <= 4) assert_true(traffic.bytes == gathered && traffic.hops == 1);
        if (ranks >= 128) assert_true(traffic.bytes < 0.8 * gathered && traffic.hops == 2);
        least = traffic.bytes < least ? traffic.bytes : least;
    }
    assert_true(least > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_of_the_combiner),
                                       cmocka_unit_test(not_finite_everywhere),
                                       cmocka_unit_test(shared_out),
                                       cmocka_unit_test(few_elements),
                                       cmocka_unit_test(unreadable_contribution),
                                       cmocka_unit_test(urgency_of_split_rounds),
                                       cmocka_unit_test(when_it_pays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
