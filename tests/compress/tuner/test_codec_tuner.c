/* test_codec_tuner.c - the codec tuner: candidates from text, the model against a plain simulation, the
 * search against every fixed choice and against all choices, and the conditions of a change. */
#include <math.h>

#include "tests/compress/compress_fixture.h"

enum { TENSORS_MAX = 40, CANDIDATES = 4 };

static struct weft_codec_cost costs[TENSORS_MAX][CANDIDATES];
static struct weft_codec_tuner_tensor tensors[TENSORS_MAX];
static uint8_t choices[TENSORS_MAX], tried[TENSORS_MAX];
static _Alignas(16) char scratch[8192];

static uint64_t seed = 1;
static double uniform(double low, double high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(seed >> 11) * 0x1p-53;
}

/* ---- candidates ---- */

static void test_candidates(void **state)
{
    static const struct {
        const char *text, *specs;
    } cases[] = {
        {"auto", "dense bf16"},
        {"auto:bf16", "dense bf16"},
        {"auto:dense", "dense"},
        {"auto:topk:ratio=0.05,bf16", "dense topk:ratio=0.05,min_count=1024 bf16"},
        {"auto:powersgd:rank=2,min_ratio=3,topk,int8:min_count=5,seed=2",
         "dense powersgd:rank=2,min_ratio=3,seed=1 topk:ratio=0.01,min_count=1024 int8:seed=2,min_count=5"},
        {"auto:lossy", "dense bf16 int8:seed=1,min_count=1024 powersgd:rank=4,min_ratio=2,seed=1"},
    };
    static const char *const bad[] = {"auto:",
                                      "auto:nothing",
                                      "auto:bf16,",
                                      "auto:,bf16",
                                      "auto:topk,topk",
                                      "auto:rank=4",
                                      "auto:topk:rank=4",
                                      "automatic",
                                      "dense",
                                      "",
                                      "auto:bf16:x=1",
                                      "auto:topk:momentum=0.9",
                                      "auto:topk:global=1",
                                      "auto:f16,bf16,int8,int4,sign,e4m3,e5m2,topk"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weft_codec_candidates found;
        struct weft_error error = {0};
        char text[512] = "", one[WEFT_CODEC_TEXT_BYTES];
        if (weft_codec_candidates_parse(cases[i].text, &found, &error) != WEFT_OK)
            fail_msg("%s: %s", cases[i].text, error.text);
        for (uint32_t c = 0; c < found.count; c++) {
            weft_codec_format(&found.specs[c], one, sizeof one);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", c ? " " : "", one);
        }
        assert_string_equal(text, cases[i].specs);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct weft_codec_candidates found = {.count = 77};
        struct weft_error error = {0};
        if (weft_codec_candidates_parse(bad[i], &found, &error) != WEFT_ERR_INVALID)
            fail_msg("accepted \"%s\"", bad[i]);
        assert_int_equal(found.count, 77);
        assert_true(strlen(error.text) > 20);
    }
    assert_true(weft_codec_candidates_requested("auto") && weft_codec_candidates_requested("auto:topk") &&
                !weft_codec_candidates_requested("autox") && !weft_codec_candidates_requested("bf16"));
}

static void test_candidates_of_a_shape(void **state)
{
    struct weft_codec_candidates found;
    struct weft_shape vector = {1, {4000}}, small = {1, {10}};
    assert_int_equal(weft_codec_candidates_parse("auto:powersgd,topk,bf16", &found, NULL), WEFT_OK);
    weft_codec_candidates_resolve(&found, &vector);
    assert_int_equal(found.count, 3);
    assert_int_equal(found.specs[1].id, WEFT_CODEC_TOPK);
    weft_codec_candidates_resolve(&found, &small);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.specs[1].id, WEFT_CODEC_BF16);
}

/* ---- the model ---- */

/* Random jobs: each tensor has a dense exchange and smaller ones that cost processor time. */
static struct weft_codec_tuner_input random_figures(uint32_t count)
{
    struct weft_codec_tuner_input figures = {.latency_ns = uniform(0, 1e5),
                                         .bytes_per_second = exp(uniform(log(1e7), log(2e10))),
                                         .tensors = tensors};
    double ready = uniform(0, 1e6);
    for (uint32_t i = 0; i < count; i++) {
        const double bytes = exp(uniform(log(1e3), log(3e7)));
        for (uint32_t c = 0; c < CANDIDATES; c++)
            costs[i][c] = (struct weft_codec_cost){.wire_bytes = c ? bytes * uniform(0.01, 0.6) : bytes,
                                                   .return_bytes = i % 2 ? bytes * uniform(0, 1) : 0,
                                                   .hops = 1 + c % 2,
                                                   .encode_ns = c ? bytes * uniform(0.05, 0.5) : 0,
                                                   .decode_ns = c ? bytes * uniform(0.02, 0.3) : 0};
        tensors[i] =
            (struct weft_codec_tuner_tensor){.ready_ns = ready,
                                       .candidate_count = 1 + (uint32_t)uniform(0, CANDIDATES - 1e-9),
                                       .costs = costs[i]};
        ready += uniform(0, 3e6);
    }
    figures.compute_ns = ready;
    figures.steal = uniform(0, 1) < 0.5 ? 0 : 1;
    return figures;
}

/* The same recurrences as a reader of the header would write them down, in plain time. */
static double simulate(const struct weft_codec_tuner_input *f, const uint8_t *chosen, uint32_t count)
{
    double engine = 0, link = 0, decoder = 0, work = 0, delay = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct weft_codec_cost *c = &f->tensors[i].costs[chosen[i]];
        const double ready = f->tensors[i].ready_ns + delay;
        engine = fmax(engine, ready) + c->encode_ns;
        link = fmax(link, engine) + 1e9 * c->wire_bytes / f->bytes_per_second;
        decoder =
            fmax(decoder, link + c->hops * f->latency_ns + 1e9 * c->return_bytes / f->bytes_per_second) +
            c->decode_ns;
        work = fmax(work, ready) + c->encode_ns + c->decode_ns;
        delay += f->steal * (c->encode_ns + c->decode_ns);
    }
    return fmax(fmax(decoder, work), f->compute_ns + delay);
}

/* One codec, at another index in a tensor whose shape has fewer of them. */
static void test_kinds(void **state)
{
    const struct weft_shape matrix = {2, {300, 400}}, vector = {1, {5000}};
    struct weft_codec_candidates candidates[2];
    struct weft_codec_tuner_tensor tensor[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_codec_candidates_parse("auto:bf16,powersgd,int8", &candidates[i], NULL),
                         WEFT_OK);
        weft_codec_candidates_resolve(&candidates[i], i ? &vector : &matrix);
        tensor[i] = (struct weft_codec_tuner_tensor){.candidate_count = candidates[i].count,
                                                     .kinds = candidates[i].kinds};
    }
    assert_int_equal(candidates[0].count, 4);
    assert_int_equal(candidates[1].count, 3); /* no low rank of a vector */
    for (uint32_t kind = 0; kind < 4; kind++)
        assert_int_equal(weft_codec_tuner_candidate_of_kind(&tensor[0], kind), kind);
    assert_int_equal(weft_codec_tuner_candidate_of_kind(&tensor[1], 1), 1);
    assert_int_equal(weft_codec_tuner_candidate_of_kind(&tensor[1], 2), 0);
    assert_int_equal(weft_codec_tuner_candidate_of_kind(&tensor[1], 3), 2);
    assert_int_equal(candidates[1].specs[2].id, WEFT_CODEC_INT8);
}

static void test_model(void **state)
{
    seed = 11;
    for (int round = 0; round < 500; round++) {
        const uint32_t count = 1 + (uint32_t)uniform(0, 12);
        const struct weft_codec_tuner_input figures = random_figures(count);
        for (uint32_t i = 0; i < count; i++)
            choices[i] = (uint8_t)uniform(0, tensors[i].candidate_count - 1e-9);
        const double expected = simulate(&figures, choices, count),
                     got = weft_codec_tuner_step_ns(&figures, choices, count);
        assert_true(fabs(got - expected) <= 1e-9 * expected);
    }
    choices[0] = 0;
    struct weft_codec_tuner_input figures = random_figures(1);
    costs[0][0].decode_ns = -1;
    assert_true(isinf(weft_codec_tuner_step_ns(&figures, choices, 1)));
    choices[0] = CANDIDATES;
    assert_true(isinf(weft_codec_tuner_step_ns(&figures, choices, 1)));
}

/* Never worse than any fixed choice for all tensors, for any start; its return value equals the model's. */
static void test_improve_against_fixed(void **state)
{
    seed = 12;
    assert_true(weft_codec_tuner_scratch_bytes(TENSORS_MAX) <= sizeof scratch);
    for (int round = 0; round < 1000; round++) {
        const uint32_t count = 1 + (uint32_t)uniform(0, TENSORS_MAX - 1e-9);
        const struct weft_codec_tuner_input figures = random_figures(count);
        for (uint32_t i = 0; i < count; i++)
            choices[i] = (uint8_t)uniform(0, tensors[i].candidate_count - 1e-9);
        const double before = weft_codec_tuner_step_ns(&figures, choices, count);
        const double found = weft_codec_tuner_improve(&figures, NULL, choices, count, scratch);
        assert_true(found == weft_codec_tuner_step_ns(&figures, choices, count));
        assert_true(found <= before * 1.0051);
        for (uint32_t fixed = 0; fixed < CANDIDATES; fixed++) {
            for (uint32_t i = 0; i < count; i++)
                tried[i] = (uint8_t)(fixed < tensors[i].candidate_count ? fixed : 0);
            assert_true(found <= weft_codec_tuner_step_ns(&figures, tried, count) * 1.0051);
        }
    }
}

static double best_of_all(const struct weft_codec_tuner_input *figures, uint32_t count)
{
    double best = INFINITY;
    for (uint32_t code = 0; code < 1u << 2 * count; code++) {
        for (uint32_t i = 0; i < count; i++) tried[i] = (uint8_t)(code >> 2 * i & 3);
        best = fmin(best, weft_codec_tuner_step_ns(figures, tried, count));
    }
    return best;
}

static void test_improve_against_all(void **state)
{
    seed = 13;
    double worst = 0, sum = 0;
    for (int round = 0; round < 200; round++) {
        const struct weft_codec_tuner_input figures = random_figures(4);
        memset(choices, 0, sizeof choices);
        const double ratio =
            weft_codec_tuner_improve(&figures, NULL, choices, 4, scratch) / best_of_all(&figures, 4);
        worst = fmax(worst, ratio);
        sum += ratio;
    }
    assert_true(sum / 200 <= 1.005); /* half a percent is given away for plainness */
    assert_true(worst <= 1.05);
}

static void test_refused_and_unusable(void **state)
{
    seed = 14;
    for (int round = 0; round < 200; round++) {
        const uint32_t count = 6;
        uint8_t refused[6];
        const struct weft_codec_tuner_input figures = random_figures(count);
        for (uint32_t i = 0; i < count; i++) {
            refused[i] = (uint8_t)(uniform(0, 8)) << 1;
            if (tensors[i].candidate_count > 2 && round % 2)
                costs[i][2].encode_ns = round % 4 == 1 ? NAN : -3;
        }
        memset(choices, 0, sizeof choices);
        const double found = weft_codec_tuner_improve(&figures, refused, choices, count, scratch);
        assert_true(isfinite(found) &&
                    found <= weft_codec_tuner_step_ns(&figures, (uint8_t[6]){0}, count) * 1.0051);
        for (uint32_t i = 0; i < count; i++) {
            assert_false(refused[i] >> choices[i] & 1);
            assert_false(choices[i] == 2 && round % 2);
        }
    }
}

/* ---- the tuner ---- */

/* One tensor of 10 MB: dense, or a tenth of it for 4 ms of work. */
static struct weft_codec_tuner_input one_tensor(double bytes_per_second, double compute_ns)
{
    costs[0][0] = (struct weft_codec_cost){.wire_bytes = 1e7, .hops = 2};
    costs[0][1] = (struct weft_codec_cost){.wire_bytes = 1e6, .hops = 2, .encode_ns = 3e6, .decode_ns = 1e6};
    tensors[0] = (struct weft_codec_tuner_tensor){.ready_ns = 0, .candidate_count = 2, .costs = costs[0]};
    return (struct weft_codec_tuner_input){.latency_ns = 1e4,
                                       .bytes_per_second = bytes_per_second,
                                       .compute_ns = compute_ns,
                                       .tensors = tensors};
}

#define SLOW 1.25e8  /* dense 80 ms, coded 12 ms */
#define FAST 1.25e10 /* dense 0.8 ms, coded 4.1 ms */

static struct weft_codec_tuner *tuner_of(uint32_t count)
{
    struct weft_codec_tuner *tuner;
    assert_int_equal(weft_codec_tuner_create(weft_env_system(), NULL, count, &tuner), WEFT_OK);
    return tuner;
}

static enum weft_codec_decision look(struct weft_codec_tuner *tuner, double bytes_per_second,
                                     double compute_ns, double step_ns)
{
    struct weft_codec_tuner_input figures = one_tensor(bytes_per_second, compute_ns);
    figures.step_ns = step_ns;
    return weft_codec_tuner_update(tuner, &figures);
}

static void test_first_decision(void **state)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    assert_int_equal(look(tuner, FAST, 0, 0), WEFT_CODEC_DECISION_KEEP);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 0);
    weft_codec_tuner_free(tuner);
    tuner = tuner_of(1);
    assert_int_equal(look(tuner, SLOW, 0, 0), WEFT_CODEC_DECISION_CHANGE);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 1);
    assert_int_equal(weft_codec_tuner_revision(tuner), 1);
    weft_codec_tuner_free(tuner);
}

/* What is hidden behind computation gains nothing by being small. */
static void test_hidden_is_dense(void **state)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    assert_int_equal(look(tuner, SLOW, 2e8, 0), WEFT_CODEC_DECISION_KEEP);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 0);
    weft_codec_tuner_free(tuner);
    tuner = tuner_of(1); /* nothing was known of the computation when it began */
    assert_int_equal(look(tuner, SLOW, 0, 0), WEFT_CODEC_DECISION_CHANGE);
    int looks = 0;
    while (weft_codec_tuner_choices(tuner)[0] != 0 && looks < 20) {
        look(tuner, SLOW, 2e8, 2e8);
        looks++;
    }
    assert_true(looks > 1 && looks < 10);
    weft_codec_tuner_free(tuner);
}

/* A link that becomes fast makes it dense within some looks, one that becomes slow again brings the codec
 * back; a single odd look does neither. */
static void test_bandwidth_flips(void **state)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    look(tuner, SLOW, 0, 0);
    for (int flip = 0; flip < 6; flip++) {
        const double now = flip % 2 ? SLOW : FAST, before = flip % 2 ? FAST : SLOW;
        const uint8_t was = weft_codec_tuner_choices(tuner)[0];
        for (int i = 0; i < 30; i++)
            assert_int_equal(look(tuner, i % 3 == 1 ? now : before, 0, 0), WEFT_CODEC_DECISION_KEEP);
        int looks = 1;
        while (look(tuner, now, 0, 0) == WEFT_CODEC_DECISION_KEEP) assert_true(++looks < 20);
        assert_true(looks >= 3);
        assert_int_not_equal(weft_codec_tuner_choices(tuner)[0], was);
    }
    weft_codec_tuner_free(tuner);
}

static void test_changes_are_bounded(void **state)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    int changes = 0;
    for (int i = 0; i < 100000; i++)
        changes += look(tuner, i / 50 % 2 ? SLOW : FAST, 0, 0) != WEFT_CODEC_DECISION_KEEP;
    assert_true(changes > 4 && changes <= 32);
    weft_codec_tuner_free(tuner);
}

/* A gain below the margin is not worth a change. */
static void test_margin(void **state)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    struct weft_codec_tuner_input figures = one_tensor(SLOW, 0);
    costs[0][1].wire_bytes = 1e7; /* the same, at first */
    assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_KEEP);
    costs[0][1].wire_bytes = 1e7 - 0.01 * 1e7 - 4e6 * SLOW * 1e-9; /* one percent faster */
    for (int i = 0; i < 100; i++)
        assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_KEEP);
    costs[0][1].wire_bytes = 1e7 - 0.05 * 1e7 - 4e6 * SLOW * 1e-9;
    int looks = 1;
    while (weft_codec_tuner_update(tuner, &figures) == WEFT_CODEC_DECISION_KEEP) assert_true(++looks < 10);
    assert_int_equal(looks, 3);
    weft_codec_tuner_free(tuner);
}

/* A tuner that has chosen the coded candidate when the link became slow: a step took 80 ms before that. */
static struct weft_codec_tuner *tuner_on_trial(void)
{
    struct weft_codec_tuner *tuner = tuner_of(1);
    look(tuner, FAST, 0, 1e7);
    for (int i = 0; i < 3; i++) look(tuner, SLOW, 0, 8e7);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 1);
    return tuner;
}

/* Faster by the model, slower by the clock: reverted, and not tried again on this link. */
static void test_trial(void **state)
{
    struct weft_codec_tuner *tuner = tuner_on_trial();
    assert_int_equal(look(tuner, SLOW, 0, 8.8e7), WEFT_CODEC_DECISION_KEEP);
    assert_int_equal(look(tuner, SLOW, 0, 8.8e7), WEFT_CODEC_DECISION_REVERT);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 0);
    for (int i = 0; i < 100; i++) assert_int_equal(look(tuner, SLOW, 0, 8e7), WEFT_CODEC_DECISION_KEEP);
    int looks = 1; /* another link: another try */
    while (look(tuner, SLOW / 4, 0, 3.2e8) == WEFT_CODEC_DECISION_KEEP) assert_true(++looks < 20);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 1);
    for (int i = 0; i < 100; i++) assert_int_equal(look(tuner, SLOW / 4, 0, 4e7), WEFT_CODEC_DECISION_KEEP);
    weft_codec_tuner_free(tuner);
}

/* One look is enough when it is much slower. */
static void test_plainly_slower(void **state)
{
    struct weft_codec_tuner *tuner = tuner_on_trial();
    assert_int_equal(look(tuner, SLOW, 0, 1.2e8), WEFT_CODEC_DECISION_REVERT);
    assert_int_equal(weft_codec_tuner_choices(tuner)[0], 0);
    weft_codec_tuner_free(tuner);
}

/* Two tensors. The model likes a mix whose measured step is much longer than modelled: one candidate for both
 * is tried, kept when it is shorter (and the mix is not taken again), and left again when it is not. */
static void test_exploring(void **state)
{
    for (int better = 0; better < 2; better++) {
        struct weft_codec_tuner *tuner = tuner_of(2);
        struct weft_codec_tuner_input figures = one_tensor(SLOW, 0);
        costs[0][1] =
            (struct weft_codec_cost){.wire_bytes = 1e5, .hops = 2, .encode_ns = 1e6}; /* 1.8 ms each */
        costs[0][2] = (struct weft_codec_cost){.wire_bytes = 1.2e5, .hops = 2, .encode_ns = 1e6};
        costs[1][0] = costs[0][0];
        costs[1][1] = (struct weft_codec_cost){.wire_bytes = 1.2e5, .hops = 2, .encode_ns = 1e6};
        costs[1][2] = (struct weft_codec_cost){.wire_bytes = 1e5, .hops = 2, .encode_ns = 1e6};
        for (int i = 0; i < 2; i++)
            tensors[i] = (struct weft_codec_tuner_tensor){.candidate_count = 3, .costs = costs[i]};
        assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_CHANGE);
        assert_int_equal(weft_codec_tuner_choices(tuner)[0], 1);
        assert_int_equal(weft_codec_tuner_choices(tuner)[1], 2);
        uint32_t mixed = 0, looks_alike = 0;
        for (int i = 0; i < 200; i++) {
            const uint8_t *now = weft_codec_tuner_choices(tuner);
            const bool mix = now[0] != now[1];
            figures.step_ns = mix == (bool)better ? 4e6 : 2.9e6;
            if (!better && mix)
                figures.step_ns = 3.4e6; /* longer than modelled, and still the best there is */
            mixed += mix && i >= 100;
            looks_alike += !mix;
            weft_codec_tuner_update(tuner, &figures);
        }
        assert_true(looks_alike > 0);
        assert_int_equal(mixed, better ? 0 : 100);
        assert_true(weft_codec_tuner_revision(tuner) < 12);
        weft_codec_tuner_free(tuner);
    }
}

static void test_nonsense_decides_nothing(void **state)
{
    static const double odd[] = {NAN, -1, INFINITY, -INFINITY};
    struct weft_codec_tuner *tuner = tuner_of(1);
    for (int field = 0; field < 5; field++) {
        for (int i = 0; i < 4; i++) {
            struct weft_codec_tuner_input figures = one_tensor(SLOW, 0);
            double *const fields[] = {&figures.latency_ns, &figures.bytes_per_second, &figures.compute_ns,
                                      &figures.steal, &tensors[0].ready_ns};
            if (field == 4 && odd[i] == -1) continue; /* early is early */
            *fields[field] = odd[i];
            assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_KEEP);
        }
    }
    assert_int_equal(look(tuner, 0, 0, 0), WEFT_CODEC_DECISION_KEEP);
    struct weft_codec_tuner_input figures = one_tensor(SLOW, 0);
    figures.step_ns = NAN;
    assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_CHANGE);
    weft_codec_tuner_free(tuner);
}

/* Equal figures give equal answers, in another tuner at another address too. */
static void test_deterministic(void **state)
{
    struct weft_codec_tuner *a = tuner_of(20), *b = tuner_of(20);
    seed = 15;
    for (int i = 0; i < 300; i++) {
        const struct weft_codec_tuner_input figures = random_figures(20);
        assert_int_equal(weft_codec_tuner_update(a, &figures), weft_codec_tuner_update(b, &figures));
        assert_memory_equal(weft_codec_tuner_choices(a), weft_codec_tuner_choices(b), 20);
    }
    weft_codec_tuner_free(a);
    weft_codec_tuner_free(b);
}

static void test_no_memory(void **state)
{
    struct weft_codec_tuner *tuner = NULL;
    for (long fail = 1; fail <= 2; fail++) {
        struct counting_env memory;
        struct weft_env *env = counting_env_init(&memory);
        memory.fail_at = fail;
        assert_int_equal(weft_codec_tuner_create(env, NULL, 5, &tuner), WEFT_ERR_NO_MEMORY);
        assert_int_equal(memory.live, 0);
    }
    assert_int_equal(weft_codec_tuner_create(weft_env_system(), NULL, 0, &tuner),
                     WEFT_OK); /* a job without such tensors */
    struct weft_codec_tuner_input figures = {.bytes_per_second = 1};
    assert_int_equal(weft_codec_tuner_update(tuner, &figures), WEFT_CODEC_DECISION_KEEP);
    weft_codec_tuner_free(tuner);
    weft_codec_tuner_free(NULL);
}

/* ---- the residual of a replaced codec ---- */

static void test_residual_copy(void **state)
{
    static const char *const texts[] = {"topk:ratio=0.1,min_count=0",
                                        "int8:min_count=0",
                                        "powersgd:rank=1,min_ratio=1",
                                        "sign:min_count=0",
                                        "bf16",
                                        "dense"};
    struct weft_shape shape = shape_of(16, 20);
    float grad[320], out[320], residual[320], again[320];
    seed = 16;
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        struct weft_codec_spec spec = spec_of(texts[t]);
        struct weft_codec *codec;
        struct weft_combiner *combiner;
        double sum[320] = {0}, scale = 0, worst = 0;
        assert_int_equal(weft_codec_create(weft_env_system(), &spec, &shape, &codec), WEFT_OK);
        assert_int_equal(weft_combiner_create(weft_env_system(), &spec, &shape, 1, &combiner), WEFT_OK);
        uint8_t *bytes = malloc(8192);
        for (int step = 0; step < 5; step++) {
            for (int i = 0; i < 320; i++) sum[i] += (double)(grad[i] = (float)uniform(-1, 1));
            for (uint32_t round = 0; round < weft_codec_rounds(&spec); round++) {
                size_t length;
                const void *aggregate;
                assert_int_equal(weft_codec_encode(codec, round, grad, 1.0f, bytes, &length), WEFT_OK);
                assert_int_equal(weft_codec_residual_copy(codec, residual), WEFT_ERR_STATE);
                weft_combiner_begin(combiner, round);
                assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_OK);
                assert_int_equal(weft_combiner_close(combiner, &aggregate, &length), WEFT_OK);
                assert_int_equal(weft_codec_take(codec, round, aggregate, length, 1), WEFT_OK);
            }
            assert_int_equal(weft_codec_finish(codec, 1.0f, out), WEFT_OK);
            weft_codec_commit(codec);
            for (int i = 0; i < 320; i++) sum[i] -= (double)out[i];
        }
        assert_int_equal(weft_codec_residual_copy(codec, residual), WEFT_OK);
        assert_int_equal(weft_codec_residual_copy(codec, again), WEFT_OK);
        assert_memory_equal(residual, again, sizeof residual);
        for (int i = 0; i < 320; i++) {
            scale = fmax(scale, fabs(sum[i]));
            worst = fmax(worst, fabs(sum[i] - (double)residual[i]));
        }
        /* The residual is the input minus the output; a cast has none, and sums of signs are bf16. */
        assert_true(worst <= (spec.id == WEFT_CODEC_BF16 || spec.id == WEFT_CODEC_SIGN ? 5 * 0x1p-7
                                                                                       : 1e-5 * (1 + scale)));
        free(bytes);
        weft_combiner_free(combiner);
        weft_codec_free(codec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_candidates_of_a_shape),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_improve_against_fixed),
        cmocka_unit_test(test_improve_against_all),
        cmocka_unit_test(test_refused_and_unusable),
        cmocka_unit_test(test_first_decision),
        cmocka_unit_test(test_hidden_is_dense),
        cmocka_unit_test(test_bandwidth_flips),
        cmocka_unit_test(test_changes_are_bounded),
        cmocka_unit_test(test_margin),
        cmocka_unit_test(test_trial),
        cmocka_unit_test(test_plainly_slower),
        cmocka_unit_test(test_exploring),
        cmocka_unit_test(test_nonsense_decides_nothing),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_residual_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
