/* test_traffic.c - by the transport's counters a compressed all-reduce sends at most a fixed fraction of
 * the dense one, and the model of its cost gives the same bytes. */
#include "tests/collective/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

#define RANKS_MAX 64u
#define GRADS 8u /* ranks share gradients modulo this */

struct fleet {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    struct weft_codec *codecs[RANKS_MAX];
    float *grads[GRADS], *out;
    struct outcome outcomes[RANKS_MAX];
};

static float gradient(uint32_t rank, uint64_t i)
{
    uint64_t x = (rank + 1) * 0x9e3779b97f4a7c15ull + i * 0x94d049bb133111ebull;
    x = (x ^ (x >> 29)) * 0xff51afd7ed558ccdull;
    return ldexpf((float)(int32_t)(x >> 32), -40 + (int)(x % 7));
}

static void fleet_open(struct fleet *f, const char *text, uint32_t ranks, uint64_t elems)
{
    struct weft_codec_spec spec;
    memset(f, 0, sizeof *f);
    assert_int_equal(weft_codec_parse(text, &spec, NULL), WEFT_OK);
    f->shape = (struct weft_shape){.dim_count = 1, .dims = {elems}};
    f->spec = weft_codec_resolve(&spec, &f->shape);
    assert_int_equal(f->spec.id, spec.id);
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(weft_codec_create(weft_env_system(), &f->spec, &f->shape, &f->codecs[r]), WEFT_OK);
    for (uint32_t g = 0; g < GRADS; g++) {
        f->grads[g] = malloc(elems * sizeof(float));
        for (uint64_t i = 0; i < elems; i++) f->grads[g][i] = gradient(g, i);
    }
    f->out = malloc(elems * sizeof(float)); /* all ranks write the same bits */
}

static void fleet_close(struct fleet *f, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_codec_free(f->codecs[r]);
    for (uint32_t g = 0; g < GRADS; g++) free(f->grads[g]);
    free(f->out);
}

/* The most payload bytes that one rank sends in one all-reduce. */
static uint64_t sent_bytes(const char *text, uint32_t ranks, uint64_t elems,
                           struct weft_coll_traffic *model_out)
{
    struct fleet fleet;
    struct weft_group *groups[RANKS_MAX];
    uint64_t most = 0;
    uint32_t pending = ranks;
    bool done = false;
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = 64 << 10;
    struct world *world = world_create(weft_env_system(), ranks, ranks, NULL);
    assert_non_null(world);
    assert_int_equal(world_group(world, NULL, ranks, 1, &options, groups), WEFT_OK);
    fleet_open(&fleet, text, ranks, elems);
    for (uint32_t r = 0; r < ranks; r++) {
        fleet.outcomes[r] = (struct outcome){.pending = &pending, .all_done = &done};
        const struct weft_coll_codec_member member = {
            .codec = fleet.codecs[r], .grad = fleet.grads[r % GRADS], .grad_scale = 1.0f, .out = fleet.out};
        const struct weft_coll_codec_args args = {.members = &member,
                                                  .count = 1,
                                                  .resolved = &fleet.spec,
                                                  .shape = &fleet.shape,
                                                  .result_scale = 1.0f / (float)ranks};
        assert_int_equal(weft_coll_codec_all_reduce(groups[r], &args, outcome_done, &fleet.outcomes[r], NULL),
                         WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(60)), WEFT_OK);
    weft_coll_codec_traffic(&fleet.spec, &fleet.shape, ranks, NULL, model_out);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_transport_stats stats;
        assert_int_equal(fleet.outcomes[r].status, WEFT_OK);
        weft_transport_stats(world->transports[r], &stats);
        if (stats.sent_payload_bytes > most) most = stats.sent_payload_bytes;
        weft_group_free(groups[r]);
    }
    fleet_close(&fleet, ranks);
    world_free(world);
    return most;
}

/* Bytes of a dense all-reduce of slices of whole blocks: 256 elements. */
static double dense_bytes(uint32_t ranks, uint64_t elems)
{
    const uint64_t block = WEFT_CODEC_PIECE, slice = (elems + ranks * block - 1) / (ranks * block) * block;
    return 2.0 * (ranks - 1) * (double)slice * sizeof(float);
}

static const struct {
    const char *text;
    double share; /* of dense_bytes, at most */
    double slack; /* of the model */
    double
        heads; /* bytes to each peer beside the elements: f16's two exponents and the peak */
} codecs[] = {
    {"bf16", 0.5, 0.001, 0},  {"f16", 0.5, 0.001, 12}, {"int8", 0.375, 0.01, 0}, {"e4m3", 0.375, 0.01, 0},
    {"e5m2", 0.375, 0.01, 0}, {"int4", 0.32, 0.01, 0}, {"sign", 0.27, 0.01, 0},
};
#define CODECS (sizeof codecs / sizeof codecs[0])

static void share_of_dense(void **state)
{
    static const uint32_t sizes[] = {2, 3, 4, 8, 16, 32, 64};
    const uint64_t elems = 1 << 17;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint32_t ranks = sizes[s];
        const double dense = dense_bytes(ranks, elems);
        printf("%2u ranks:", ranks);
        for (size_t c = 0; c < CODECS; c++) {
            struct weft_coll_traffic model;
            const double sent = (double)sent_bytes(codecs[c].text, ranks, elems, &model);
            printf("  %s %.4f", codecs[c].text, sent / dense);
            if (sent > codecs[c].share * dense + codecs[c].heads * (ranks - 1))
                fail_msg("%s, %u ranks: %.0f bytes, dense %.0f", codecs[c].text, ranks, sent, dense);
            assert_true(fabs(model.bytes - sent) <= codecs[c].slack * sent);
        }
        printf("\n");
    }
}

/* Baseline of the table. */
static void dense_sends_its_formula(void **state)
{
    const uint64_t elems = 1 << 17;
    for (uint32_t ranks = 2; ranks <= 64; ranks *= 8) {
        struct weft_coll_traffic model;
        const double sent = (double)sent_bytes("dense", ranks, elems, &model);
        assert_true(fabs(model.bytes - sent) <= 0.001 * sent);
        assert_true(fabs(8.0 * (ranks - 1) / ranks * (double)elems - sent) <= 0.001 * sent);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(share_of_dense),
                                       cmocka_unit_test(dense_sends_its_formula)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
