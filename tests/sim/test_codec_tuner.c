/* test_codec_tuner.c - the codec tuner against every fixed choice, in virtual time: a training step on
 * simulated links.
 *
 * Every rank computes for a given time. Its gradients become ready in sequence; one engine encodes them (for
 * the time that the case gives), the real collectives exchange them over the simulated network, and the
 * engine decodes them. The tuner has the inputs of a session: it times exchanges of growing size, decides
 * before the first step without figures of the computation, and again every few steps. Or it begins with the
 * job's link table, right or out of date. Over all steps, including the first ones, it may be at most 5 %
 * slower than the best codec for all tensors. Virtual time is equal in every run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/collective/world.h"

enum { RANKS_MAX = 4, TENSORS = 6, CANDIDATES = 5, JUDGED_STEPS = 80, FIXED_STEPS = 3, LOOK_STEPS = 4 };

static const struct {
    const char *spec;
    double encode_ns, decode_ns; /* per element */
} codecs[CANDIDATES] = {
    {"dense", 0, 0},
    {"bf16", 0.2, 0.8},
    {"int8:min_count=0", 1.2, 2.5},
    {"powersgd:rank=4", 0.8, 0.5},
    {"topk:ratio=0.01,min_count=0", 0.9, 0.9},
};
static const uint64_t shapes[TENSORS][2] = {{10, 256},  {256, 256}, {256, 256},
                                            {256, 512}, {1, 512},   {128, 512}};

struct scenario {
    const char *rate;
    uint32_t ranks;
    double compute_ns, processor; /* factor of the codec times */
    double table;                 /* bandwidth in the link table over the real one; 0: no link table */
};

struct worker;
struct flight { /* one tensor of one rank */
    struct worker *worker;
    uint32_t index;
    struct weft_timer ready, encoded, decoded;
    struct weft_codec *codec;
    uint8_t chosen;
    float *grad, *out;
};

struct worker {
    struct job *job;
    uint32_t rank;
    uint64_t engine_free_ns;
    struct weft_timer computed;
    struct flight flights[TENSORS];
};

struct job {
    const struct scenario *scenario;
    struct world *world;
    struct weft_topology *topology;
    struct weft_group *groups[RANKS_MAX];
    struct worker workers[RANKS_MAX];
    struct weft_shape shapes[TENSORS];
    struct weft_codec_spec specs[TENSORS][CANDIDATES];
    struct weft_codec_cost costs[TENSORS][CANDIDATES];
    double ready_ns[TENSORS];
    uint32_t pending;
    bool done;
    struct outcome outcomes[RANKS_MAX];
};

static const struct weft_topology *topology;
static void tweak(struct weft_sim_options *options)
{
    options->topology = topology;
}

static uint64_t now_ns(const struct worker *worker)
{
    return weft_now_ns(worker->job->world->envs[worker->rank]);
}
static struct weft_loop *loop_of(const struct worker *worker)
{
    return worker->job->world->loops[worker->rank];
}

/* ---- a step ---- */

static void one_less(struct job *job)
{
    if (--job->pending == 0) job->done = true;
}

/* The engine runs one task at a time. */
static void use_engine(struct worker *worker, double ns, struct weft_timer *then)
{
    if (worker->engine_free_ns < now_ns(worker)) worker->engine_free_ns = now_ns(worker);
    worker->engine_free_ns += (uint64_t)ns;
    assert_int_equal(weft_timer_start(loop_of(worker), then, worker->engine_free_ns), WEFT_OK);
}

static void on_ready(struct weft_timer *timer)
{
    struct flight *flight = weft_container_of(timer, struct flight, ready);
    use_engine(flight->worker, flight->worker->job->costs[flight->index][flight->chosen].encode_ns,
               &flight->encoded);
}

static void on_exchanged(void *context, enum weft_status status, const char *text)
{
    struct flight *flight = context;
    if (status < 0) fail_msg("rank %u: %s", flight->worker->rank, text);
    if (flight->codec) weft_codec_commit(flight->codec);
    use_engine(flight->worker, flight->worker->job->costs[flight->index][flight->chosen].decode_ns,
               &flight->decoded);
}

static void on_encoded(struct weft_timer *timer)
{
    struct flight *flight = weft_container_of(timer, struct flight, encoded);
    struct job *job = flight->worker->job;
    struct weft_group *group = job->groups[flight->worker->rank];
    const struct weft_shape *shape = &job->shapes[flight->index];
    struct weft_error error = {0};
    enum weft_status status;
    if (flight->codec) {
        const struct weft_coll_codec_member member = {
            .codec = flight->codec, .grad = flight->grad, .grad_scale = 1.0f, .out = flight->out};
        const struct weft_coll_codec_args args = {.members = &member,
                                                  .count = 1,
                                                  .resolved = &job->specs[flight->index][flight->chosen],
                                                  .shape = shape,
                                                  .result_scale = 1.0f};
        status = weft_coll_codec_all_reduce(group, &args, on_exchanged, flight, &error);
    } else {
        const struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                            .in = flight->grad,
                                            .out = flight->out,
                                            .count = weft_shape_elems(shape),
                                            .dtype = WEFT_F32,
                                            .op = WEFT_SUM,
                                            .reproducible = true};
        status = weft_coll_post(group, &args, on_exchanged, flight, NULL, &error);
    }
    if (status != WEFT_IN_PROGRESS) fail_msg("%s", error.text);
}

static void on_decoded(struct weft_timer *timer)
{
    one_less(weft_container_of(timer, struct flight, decoded)->worker->job);
}
static void on_computed(struct weft_timer *timer)
{
    one_less(weft_container_of(timer, struct worker, computed)->job);
}

static double step(struct job *job)
{
    const double begin = world_seconds(job->world);
    job->done = false;
    job->pending = job->scenario->ranks * (TENSORS + 1);
    for (uint32_t rank = 0; rank < job->scenario->ranks; rank++) {
        struct worker *worker = &job->workers[rank];
        const uint64_t now = now_ns(worker);
        weft_timer_start(loop_of(worker), &worker->computed, now + (uint64_t)job->scenario->compute_ns);
        for (uint32_t i = 0; i < TENSORS; i++)
            weft_timer_start(loop_of(worker), &worker->flights[i].ready, now + (uint64_t)job->ready_ns[i]);
    }
    assert_int_equal(world_run(job->world, &job->done, WEFT_SECONDS(1000)), WEFT_OK);
    return (world_seconds(job->world) - begin) * 1e9;
}

static void choose(struct job *job, const uint8_t *choices)
{
    for (uint32_t rank = 0; rank < job->scenario->ranks; rank++)
        for (uint32_t i = 0; i < TENSORS; i++) {
            struct flight *flight = &job->workers[rank].flights[i];
            const struct weft_codec_spec *spec = &job->specs[i][choices[i]];
            if (flight->chosen == choices[i]) continue;
            weft_codec_free(flight->codec);
            flight->codec = NULL;
            flight->chosen = choices[i];
            if (spec->id != WEFT_CODEC_DENSE)
                assert_int_equal(weft_codec_create(weft_env_system(), spec, &job->shapes[i], &flight->codec),
                                 WEFT_OK);
        }
}

/* ---- a job ---- */

static float noise(uint64_t i)
{
    i = (i + 1) * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(i >> 32) * 0x1p-31f;
}

/* Virtual work of a codec, and the bytes of one real encode of such a gradient. */
static void set_cost(struct job *job, uint32_t i, uint32_t c)
{
    struct weft_codec_spec spec;
    struct weft_coll_traffic traffic;
    struct weft_codec *codec;
    size_t bytes[WEFT_CODEC_ROUNDS_MAX] = {0};
    assert_int_equal(weft_codec_parse(codecs[c].spec, &spec, NULL), WEFT_OK);
    spec = weft_codec_resolve(&spec, &job->shapes[i]);
    job->specs[i][c] = spec;
    for (uint32_t round = 0; round < weft_codec_rounds(&spec); round++)
        bytes[round] = weft_codec_contribution_bytes_max(&spec, &job->shapes[i], round);
    uint8_t *contribution = malloc(bytes[0]);
    assert_int_equal(weft_codec_create(weft_env_system(), &spec, &job->shapes[i], &codec), WEFT_OK);
    assert_int_equal(
        weft_codec_encode(codec, 0, job->workers[0].flights[i].grad, 1.0f, contribution, &bytes[0]), WEFT_OK);
    weft_codec_free(codec);
    free(contribution);
    weft_coll_codec_traffic(&spec, &job->shapes[i], job->scenario->ranks, bytes, &traffic);
    const double elems = (double)weft_shape_elems(&job->shapes[i]) * job->scenario->processor;
    const bool dense = spec.id == WEFT_CODEC_DENSE; /* tensors that the codec does not encode */
    job->costs[i][c] = (struct weft_codec_cost){.encode_ns = dense ? 0 : codecs[c].encode_ns * elems,
                                                .decode_ns = dense ? 0 : codecs[c].decode_ns * elems,
                                                .wire_bytes = traffic.bytes,
                                                .hops = traffic.hops};
}

static uint64_t bytes_per_second(const char *rate)
{
    return strtoull(rate, NULL, 10) * (strchr(rate, 'G') ? 125000000u : 125000u);
}

static void job_open(struct job *job, const struct scenario *scenario)
{
    char text[200];
    struct weft_group_options options;
    *job = (struct job){.scenario = scenario};
    snprintf(text, sizeof text,
             "[host node]\ncount = %u\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = s\nrate = "
             "%s\nlatency = 10us\n",
             scenario->ranks, scenario->rate);
    struct weft_error error = {0};
    if (weft_topology_parse(weft_env_system(), "net", text, strlen(text), &job->topology, &error) < 0)
        fail_msg("%s", error.text);
    topology = job->topology;
    job->world = world_create(weft_env_system(), scenario->ranks, 1, tweak);
    assert_non_null(job->world);
    weft_group_options_init(&options);
    /* Link cost as a session's probe measures it; the plans follow it: announcement, grant, data. */
    const struct weft_link_cost cost = {.pairs = scenario->ranks * (scenario->ranks - 1),
                                        .latency_ns = 24000,
                                        .bytes_per_second = bytes_per_second(scenario->rate)};
    options.cost = &cost;
    assert_int_equal(world_group(job->world, NULL, scenario->ranks, 1, &options, job->groups), WEFT_OK);
    for (uint32_t i = 0; i < TENSORS; i++) {
        job->shapes[i] = shapes[i][0] == 1 ? (struct weft_shape){1, {shapes[i][1]}}
                                           : (struct weft_shape){2, {shapes[i][0], shapes[i][1]}};
        job->ready_ns[i] =
            /* a forward pass, then the backward pass */
            scenario->compute_ns * (0.4 + 0.6 * (i + 1) / TENSORS);
    }
    for (uint32_t rank = 0; rank < scenario->ranks; rank++) {
        struct worker *worker = &job->workers[rank];
        worker->job = job;
        worker->rank = rank;
        weft_timer_init(&worker->computed, on_computed);
        for (uint32_t i = 0; i < TENSORS; i++) {
            struct flight *flight = &worker->flights[i];
            const uint64_t elems = weft_shape_elems(&job->shapes[i]);
            *flight = (struct flight){
                .worker = worker, .index = i, .grad = malloc(elems * 4), .out = malloc(elems * 4)};
            weft_timer_init(&flight->ready, on_ready);
            weft_timer_init(&flight->encoded, on_encoded);
            weft_timer_init(&flight->decoded, on_decoded);
            for (uint64_t k = 0; k < elems; k++) flight->grad[k] = noise(k * 16 + rank * 4 + i);
        }
    }
    for (uint32_t i = 0; i < TENSORS; i++)
        for (uint32_t c = 0; c < CANDIDATES; c++) set_cost(job, i, c);
}

static void job_close(struct job *job)
{
    for (uint32_t rank = 0; rank < job->scenario->ranks; rank++) {
        weft_group_free(job->groups[rank]);
        for (uint32_t i = 0; i < TENSORS; i++) {
            weft_codec_free(job->workers[rank].flights[i].codec);
            free(job->workers[rank].flights[i].grad);
            free(job->workers[rank].flights[i].out);
        }
    }
    world_free(job->world);
    weft_topology_free(job->topology);
}

/* ---- the measured link ---- */

static double time_all_reduce(struct job *job, float *buffers, uint64_t count)
{
    const uint32_t ranks = job->scenario->ranks;
    const double begin = world_seconds(job->world);
    uint32_t pending = ranks;
    bool done = false;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                            .in = buffers + rank * count,
                                            .out = buffers + rank * count,
                                            .count = count,
                                            .dtype = WEFT_F32,
                                            .op = WEFT_SUM,
                                            .reproducible = true};
        job->outcomes[rank] = (struct outcome){.pending = &pending, .all_done = &done};
        assert_int_equal(
            weft_coll_post(job->groups[rank], &args, outcome_done, &job->outcomes[rank], NULL, NULL),
            WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(job->world, &done, WEFT_SECONDS(1000)), WEFT_OK);
    return (world_seconds(job->world) - begin) * 1e9;
}

/* As a session measures it (client/tensor/codec_tuner_measure.c). */
static void measure_link(struct job *job, struct weft_codec_tuner_input *figures)
{
    const double share = 2 * ((double)job->scenario->ranks - 1) / job->scenario->ranks;
    const uint64_t most = (uint64_t)4 << 20;
    float *buffers = calloc(job->scenario->ranks, most);
    const double shortest = time_all_reduce(job, buffers, 1);
    double ns = 0;
    figures->latency_ns = shortest / 2;
    for (uint64_t bytes = 64 << 10; bytes <= most && ns < 60e6; bytes *= 4) {
        ns = time_all_reduce(job, buffers, bytes / 4);
        figures->bytes_per_second = share * (double)bytes / fmax(ns - shortest, ns / 10) * 1e9;
    }
    free(buffers);
}

/* ---- the comparison ---- */

static double fixed_ns(const struct scenario *scenario, uint8_t choice)
{
    struct job job;
    uint8_t choices[TENSORS];
    double sum = 0;
    job_open(&job, scenario);
    memset(choices, choice, sizeof choices);
    choose(&job, choices);
    step(&job);
    for (int i = 0; i < FIXED_STEPS; i++) sum += step(&job);
    job_close(&job);
    return sum / FIXED_STEPS;
}

struct tuned {
    double mean_ns, last_ns;
    uint32_t revisions;
    char choices[TENSORS + 1];
};

static struct tuned tuned_ns(const struct scenario *scenario)
{
    struct job job;
    struct weft_codec_tuner *tuner;
    struct weft_codec_tuner_tensor tensors[TENSORS];
    struct tuned result = {0};
    double since_look[LOOK_STEPS];
    job_open(&job, scenario);
    assert_int_equal(weft_codec_tuner_create(weft_env_system(), NULL, TENSORS, &tuner), WEFT_OK);
    for (uint32_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct weft_codec_tuner_tensor){.candidate_count = CANDIDATES, .costs = job.costs[i]};
    struct weft_codec_tuner_input figures = {.tensors = tensors};
    if (scenario->table > 0) {
        const struct weft_link_cost *cost = weft_group_cost(job.groups[0]);
        figures.latency_ns = (double)cost->latency_ns;
        figures.bytes_per_second = (double)cost->bytes_per_second * scenario->table;
    } else {
        measure_link(&job, &figures);
    }
    weft_codec_tuner_update(tuner, &figures); /* without figures of the computation */
    choose(&job, weft_codec_tuner_choices(tuner));
    for (uint32_t n = 1; n <= JUDGED_STEPS; n++) {
        since_look[(n - 1) % LOOK_STEPS] = result.last_ns = step(&job);
        result.mean_ns += result.last_ns / JUDGED_STEPS;
        if (n % LOOK_STEPS != 0) continue;
        figures.compute_ns = scenario->compute_ns;
        figures.step_ns = since_look[LOOK_STEPS / 2];
        if (scenario->table > 0 && n == LOOK_STEPS) measure_link(&job, &figures);
        for (uint32_t i = 0; i < TENSORS; i++) tensors[i].ready_ns = job.ready_ns[i];
        weft_codec_tuner_update(tuner, &figures);
        choose(&job, weft_codec_tuner_choices(tuner));
    }
    result.revisions = weft_codec_tuner_revision(tuner);
    for (uint32_t i = 0; i < TENSORS; i++)
        result.choices[i] = (char)('0' + weft_codec_tuner_choices(tuner)[i]);
    weft_codec_tuner_free(tuner);
    job_close(&job);
    return result;
}

static uint32_t slower; /* cases in which the tuner was slower */

static void compare(const struct scenario *scenario)
{
    double best = INFINITY, fixed[CANDIDATES];
    for (uint8_t c = 0; c < CANDIDATES; c++) best = fmin(best, fixed[c] = fixed_ns(scenario, c));
    const struct tuned tuned = tuned_ns(scenario);
    print_message("%8s %u ranks, compute %6.2f ms, codecs x %4.1f", scenario->rate, scenario->ranks,
                  scenario->compute_ns / 1e6, scenario->processor);
    if (scenario->table > 0) print_message(", link table x %.2f", scenario->table);
    print_message(":");
    for (uint32_t c = 0; c < CANDIDATES; c++) print_message(" %8.3f", fixed[c] / 1e6);
    print_message("  tuner %8.3f (last %8.3f, %s, %u revisions): %.3f of the best\n", tuned.mean_ns / 1e6,
                  tuned.last_ns / 1e6, tuned.choices, tuned.revisions, tuned.mean_ns / best);
    slower += tuned.mean_ns > 1.05 * best;
}

static void test_links(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit", "100Gbit"};
    slower = 0;
    print_message("virtual milliseconds of a step: dense, bf16, int8, PowerSGD, top-k for all tensors, and "
                  "the tuner's\n");
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += 2)
            for (int compute = 0; compute < 3; compute++)
                compare(&(struct scenario){rates[r], ranks, (double[]){0, 2e6, 30e6}[compute], 1, 0});
    assert_int_equal(slower, 0);
}

/* Codecs on a core ten times slower: faster on slow links only. */
static void test_slow_processor(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit"};
    slower = 0;
    for (uint32_t r = 0; r < 3; r++) compare(&(struct scenario){rates[r], 2, 1e6, 10, 0});
    assert_int_equal(slower, 0);
}

/* A right table, and one of a link that was four times slower or faster. */
static void test_link_table(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit", "100Gbit"};
    slower = 0;
    for (uint32_t r = 0; r < 4; r++)
        for (int table = 0; table < 3; table++)
            compare(&(struct scenario){rates[r], 2, 2e6, 1, (double[]){1, 0.25, 4}[table]});
    assert_int_equal(slower, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_links), cmocka_unit_test(test_slow_processor),
                                       cmocka_unit_test(test_link_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
