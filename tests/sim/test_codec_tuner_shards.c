/* test_codec_tuner_shards.c - the codec tuner against every fixed choice in server mode, in virtual time:
 * real shard engines behind simulated links, workers that speak the wire protocol.
 *
 * A step is as in test_codec_tuner.c, but the contributions go to shards: dense, bf16 and int8 in pieces to
 * all of them, codecs that cannot be cut to one. The tuner begins with the job's link table, right or wrong
 * by a factor, and then has the inputs of a session: the rate of the steps (client/tensor/codec_tuner.c) if
 * they move enough bytes, otherwise an exchange of its own. Over all steps it may be at most 5 % slower than
 * the best codec for all tensors. Virtual time is equal in every run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard_fleet.h"

enum {
    WORKERS_MAX = 4,
    TENSORS = 6,
    CANDIDATES = 5,
    JUDGED_STEPS = 80,
    FIXED_STEPS = 3,
    LOOK_STEPS = 4,
    PIECES_MAX = 16
};
enum { PIECE_ELEMS = 16384, EAGER_BYTES = 1024 /* as the fleet */ };
#define RATE_SAMPLE_BYTES_MIN 1048576.0

static const struct {
    enum weft_codec_id id;
    double encode_ns, decode_ns; /* per element */
} codecs[CANDIDATES] = {
    {WEFT_CODEC_DENSE, 0, 0},        {WEFT_CODEC_BF16, 0.2, 0.8}, {WEFT_CODEC_INT8, 1.2, 2.5},
    {WEFT_CODEC_POWERSGD, 0.8, 0.5}, {WEFT_CODEC_TOPK, 0.9, 0.9},
};
#define AUTO "auto:bf16,int8:min_count=0,powersgd:rank=4,topk:ratio=0.01,min_count=0"
static const struct fleet_tensor_spec specs[TENSORS] = {
    {"a", AUTO, "none", 2, {10, 256}, PIECE_ELEMS},  {"b", AUTO, "none", 2, {256, 256}, PIECE_ELEMS},
    {"c", AUTO, "none", 2, {256, 256}, PIECE_ELEMS}, {"d", AUTO, "none", 2, {256, 512}, PIECE_ELEMS},
    {"e", AUTO, "none", 1, {512}, PIECE_ELEMS},      {"f", AUTO, "none", 2, {128, 512}, PIECE_ELEMS},
};

struct scenario {
    const char *rate;
    uint32_t workers, shards;
    double compute_ns, processor; /* factor of the codec times */
    double table;                 /* bandwidth in the link table over the real one */
};

struct worker;
struct flight;
struct piece { /* a message and its reply */
    struct flight *flight;
    const struct fleet_chunk *chunk;
    struct weft_completion sent, received;
};

struct flight { /* one tensor of one worker */
    struct worker *worker;
    uint32_t index, piece_count, left; /* messages and replies in flight */
    struct weft_timer ready, encoded, decoded;
    struct weft_codec *codec;
    uint8_t chosen, round;
    float *grad, *out;
    uint8_t *contribution[WEFT_CODEC_ROUNDS_MAX], *aggregate;
    size_t aggregate_bytes;
    struct piece pieces[PIECES_MAX];
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
    struct weft_topology *topology;
    struct fleet *fleet;
    struct worker workers[WORKERS_MAX];
    struct weft_codec_cost costs[TENSORS][CANDIDATES];
    uint64_t step;
    double ready_ns[TENSORS];
    uint32_t pending, exchanging;
    bool done;
    /* of the step, as a session's engine measures it */
    double moved_bytes, return_bytes, coded_ns, busy_ns;
    uint64_t busy_since_ns;
};

static struct fleet_worker *wire(const struct worker *worker)
{
    return &worker->job->fleet->worker[worker->rank];
}
static uint64_t now_ns(const struct job *job)
{
    return weft_sim_now_ns(job->fleet->sim);
}

/* ---- a step ---- */

static void one_less(struct job *job)
{
    if (--job->pending == 0) job->done = true;
}

/* The engine runs one task at a time. */
static void use_engine(struct worker *worker, double ns, struct weft_timer *then)
{
    const uint64_t now = now_ns(worker->job);
    if (worker->engine_free_ns < now) worker->engine_free_ns = now;
    worker->engine_free_ns += (uint64_t)ns;
    assert_int_equal(weft_timer_start(wire(worker)->loop, then, worker->engine_free_ns), WEFT_OK);
}

static const struct weft_codec_cost *cost_of(const struct flight *flight)
{
    return &flight->worker->job->costs[flight->index][flight->chosen];
}

static void on_ready(struct weft_timer *timer)
{
    struct flight *flight = weft_container_of(timer, struct flight, ready);
    struct job *job = flight->worker->job;
    if (flight->worker->rank == 0) { /* as client_codec_tuner_exchange_posted */
        if (job->exchanging++ == 0) job->busy_since_ns = now_ns(job);
        job->moved_bytes += cost_of(flight)->wire_bytes;
        job->return_bytes = fmax(job->return_bytes, cost_of(flight)->return_bytes);
        job->coded_ns += cost_of(flight)->encode_ns + cost_of(flight)->decode_ns;
    }
    use_engine(flight->worker, cost_of(flight)->encode_ns, &flight->encoded);
}

static void send_round(struct flight *flight);

static void all_here(struct flight *flight)
{
    const struct fleet *fleet = flight->worker->job->fleet;
    if (flight->codec) {
        const struct weft_codec_spec *spec = &fleet->candidates[flight->index].specs[flight->chosen];
        assert_int_equal(weft_codec_take(flight->codec, flight->round, flight->aggregate,
                                         flight->aggregate_bytes, fleet->options.workers),
                         WEFT_OK);
        if (flight->round + 1u < weft_codec_rounds(spec)) {
            flight->round++;
            send_round(flight);
            return;
        }
        assert_int_equal(weft_codec_finish(flight->codec, 1.0f, flight->out), WEFT_OK);
        weft_codec_commit(flight->codec);
    }
    use_engine(flight->worker, cost_of(flight)->decode_ns, &flight->decoded);
}

static void settled(struct flight *flight)
{
    if (--flight->left == 0) all_here(flight);
}

static void on_sent(struct weft_completion *completion, enum weft_status status)
{
    assert_int_equal(status, WEFT_OK);
    settled(weft_container_of(completion, struct piece, sent)->flight);
}

static void on_received(struct weft_completion *completion, enum weft_status status)
{
    assert_int_equal(status, WEFT_OK);
    settled(weft_container_of(completion, struct piece, received)->flight);
}

/* Bytes of a piece, sent or received. */
static size_t share(const struct flight *flight, const struct piece *piece, bool comes)
{
    const struct fleet *fleet = flight->worker->job->fleet;
    const struct weft_codec_spec *spec = &fleet->candidates[flight->index].specs[flight->chosen];
    const struct weft_shape shape = {1, {piece->chunk->count}};
    if (flight->piece_count == 1) return 0; /* no further piece */
    return comes ? weft_codec_aggregate_bytes_max(spec, &shape, flight->round, fleet->options.workers)
                 : weft_codec_contribution_bytes_max(spec, &shape, flight->round);
}

static void on_result(void *context, struct weft_arrival *arrival)
{
    struct worker *worker = context;
    struct weft_wire_header header;
    assert_int_equal(weft_wire_decode(arrival->header, arrival->header_bytes, &header), WEFT_OK);
    assert_int_equal(header.status, WEFT_OK);
    assert_int_equal(header.step, worker->job->step);
    struct flight *flight = &worker->flights[header.tensor];
    struct piece *piece = flight->pieces;
    while (piece < flight->pieces + flight->piece_count && piece->chunk->index != header.chunk) piece++;
    assert_true(piece < flight->pieces + flight->piece_count);
    flight->aggregate_bytes += arrival->payload_bytes;
    const size_t before = (size_t)(piece - flight->pieces) * share(flight, &flight->pieces[0], true);
    void *place =
        flight->codec ? (void *)(flight->aggregate + before) : (void *)(flight->out + piece->chunk->offset);
    weft_completion_init(&piece->received, 1, on_received);
    assert_true(weft_transport_accept(wire(worker)->transport, arrival, place, arrival->payload_bytes,
                                      &piece->received) >= 0);
}

static void send_piece(struct piece *piece, const void *payload, size_t bytes)
{
    struct flight *flight = piece->flight;
    struct job *job = flight->worker->job;
    const struct fleet_chunk *chunk = piece->chunk;
    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    struct weft_wire_header header =
        fleet_header(job->fleet, flight->worker->rank, (uint32_t)(chunk - job->fleet->chunk),
                     WEFT_WIRE_PUSH_PULL, job->step);
    header.codec = (uint8_t)job->fleet->candidates[flight->index].specs[flight->chosen].id;
    header.round = flight->round;
    header.payload_bytes = bytes;
    weft_wire_encode(&header, encoded);
    const struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_PUSH, chunk->index),
                                         .header = encoded,
                                         .header_bytes = sizeof encoded,
                                         .payload = payload,
                                         .payload_bytes = bytes};
    weft_completion_init(&piece->sent, 1, on_sent);
    struct weft_transport *transport = wire(flight->worker)->transport;
    struct weft_peer *shard = weft_transport_peer(transport, job->fleet->shard[chunk->shard].endpoint);
    assert_true(weft_transport_send(shard, &message, &piece->sent) >= 0);
}

static void send_round(struct flight *flight)
{
    flight->left = 2 * flight->piece_count;
    if (flight->codec) {
        size_t bytes;
        assert_int_equal(weft_codec_encode(flight->codec, flight->round, flight->round ? NULL : flight->grad,
                                           1.0f, flight->contribution[flight->round], &bytes),
                         WEFT_OK);
        flight->aggregate_bytes = 0;
        const uint8_t *at = flight->contribution[flight->round];
        for (uint32_t i = 0; i < flight->piece_count; i++) {
            const size_t length = flight->piece_count > 1 ? share(flight, &flight->pieces[i], false) : bytes;
            send_piece(&flight->pieces[i], at, length);
            at += length;
        }
        return;
    }
    for (uint32_t i = 0; i < flight->piece_count; i++)
        send_piece(&flight->pieces[i], flight->grad + flight->pieces[i].chunk->offset,
                   flight->pieces[i].chunk->count * sizeof(float));
}

static void on_encoded(struct weft_timer *timer)
{
    struct flight *flight = weft_container_of(timer, struct flight, encoded);
    flight->round = 0;
    send_round(flight);
}

static void on_decoded(struct weft_timer *timer)
{
    struct flight *flight = weft_container_of(timer, struct flight, decoded);
    struct job *job = flight->worker->job;
    if (flight->worker->rank == 0 && --job->exchanging == 0)
        job->busy_ns += (double)(now_ns(job) - job->busy_since_ns);
    one_less(job);
}

static void on_computed(struct weft_timer *timer)
{
    one_less(weft_container_of(timer, struct worker, computed)->job);
}

static double step(struct job *job)
{
    const uint64_t begin = now_ns(job);
    job->done = false;
    job->pending = job->scenario->workers * (TENSORS + 1);
    job->moved_bytes = job->return_bytes = job->coded_ns = job->busy_ns = 0;
    job->step++;
    for (uint32_t rank = 0; rank < job->scenario->workers; rank++) {
        struct worker *worker = &job->workers[rank];
        weft_timer_start(wire(worker)->loop, &worker->computed, begin + (uint64_t)job->scenario->compute_ns);
        for (uint32_t i = 0; i < TENSORS; i++)
            weft_timer_start(wire(worker)->loop, &worker->flights[i].ready,
                             begin + (uint64_t)job->ready_ns[i]);
    }
    weft_sim_run(job->fleet->sim, &job->done, begin + WEFT_SECONDS(1000));
    assert_true(job->done);
    return (double)(now_ns(job) - begin);
}

static void choose(struct job *job, const uint8_t *choices)
{
    for (uint32_t rank = 0; rank < job->scenario->workers; rank++)
        for (uint32_t i = 0; i < TENSORS; i++) {
            struct flight *flight = &job->workers[rank].flights[i];
            weft_codec_free(flight->codec);
            flight->codec = NULL;
            flight->chosen = choices[i];
            flight->piece_count = 0;
            for (uint32_t c = 0; c < job->fleet->chunk_count; c++) {
                if (job->fleet->chunk[c].tensor != i || job->fleet->chunk[c].candidate != choices[i])
                    continue;
                assert_true(flight->piece_count < PIECES_MAX);
                flight->pieces[flight->piece_count++] =
                    (struct piece){.flight = flight, .chunk = &job->fleet->chunk[c]};
            }
            if (choices[i] == 0) continue;
            assert_int_equal(weft_codec_create(weft_env_system(),
                                               &job->fleet->candidates[i].specs[choices[i]],
                                               &job->fleet->shape[i], &flight->codec),
                             WEFT_OK);
            if (flight->piece_count > 1)
                assert_int_equal(weft_codec_set_pieces(flight->codec, PIECE_ELEMS), WEFT_OK);
        }
}

/* The tensor's candidate of this kind; dense if it has none. */
static uint8_t candidate_of(const struct job *job, uint32_t tensor, enum weft_codec_id id)
{
    const struct weft_codec_candidates *candidates = &job->fleet->candidates[tensor];
    for (uint32_t c = 0; c < candidates->count; c++)
        if (candidates->specs[c].id == id) return (uint8_t)c;
    return 0;
}

/* ---- a job ---- */

/* Bytes of one real encode of such a gradient. */
static void measure_bytes(const struct job *job, uint32_t i, uint8_t c, size_t *bytes)
{
    const struct weft_codec_spec *spec = &job->fleet->candidates[i].specs[c];
    const struct weft_shape *shape = &job->fleet->shape[i];
    struct weft_codec *codec;
    float *grad = malloc(weft_shape_elems(shape) * sizeof *grad);
    uint8_t *contribution = malloc(weft_codec_contribution_bytes_max(spec, shape, 0));
    fleet_gradient(job->fleet, 0, i, 1, grad);
    for (uint32_t round = 0; round < weft_codec_rounds(spec); round++)
        bytes[round] = weft_codec_contribution_bytes_max(spec, shape, round);
    assert_int_equal(weft_codec_create(weft_env_system(), spec, shape, &codec), WEFT_OK);
    assert_int_equal(weft_codec_encode(codec, 0, grad, 1.0f, contribution, &bytes[0]), WEFT_OK);
    weft_codec_free(codec);
    free(contribution);
    free(grad);
}

static void set_costs(struct job *job, uint32_t i)
{
    const struct weft_shape *shape = &job->fleet->shape[i];
    const double elems = (double)weft_shape_elems(shape) * job->scenario->processor;
    for (uint32_t k = 0; k < CANDIDATES; k++) {
        const uint8_t c = candidate_of(job, i, codecs[k].id);
        if (c == 0 && k > 0) continue;
        const bool cut = c == 0 || weft_codec_can_split(&job->fleet->candidates[i].specs[c]);
        const uint32_t pieces =
            cut ? (uint32_t)((weft_shape_elems(shape) + PIECE_ELEMS - 1) / PIECE_ELEMS) : 1;
        job->costs[i][c] = (struct weft_codec_cost){.encode_ns = codecs[k].encode_ns * elems,
                                                    .decode_ns = codecs[k].decode_ns * elems};
        size_t bytes[WEFT_CODEC_ROUNDS_MAX];
        if (c > 0) measure_bytes(job, i, c, bytes);
        weft_codec_server_traffic(&job->fleet->candidates[i].specs[c], shape, c ? bytes : NULL,
                                  job->scenario->workers, job->scenario->shards, pieces, EAGER_BYTES,
                                  &job->costs[i][c]);
    }
}

static void flight_open(struct worker *worker, uint32_t i)
{
    struct flight *flight = &worker->flights[i];
    const struct fleet *fleet = worker->job->fleet;
    const uint64_t elems = weft_shape_elems(&fleet->shape[i]);
    const size_t most = elems * 8 + 4096;
    *flight = (struct flight){.worker = worker,
                              .index = i,
                              .grad = malloc(elems * 4),
                              .out = malloc(elems * 4),
                              .aggregate = malloc(most)};
    for (uint32_t round = 0; round < WEFT_CODEC_ROUNDS_MAX; round++)
        flight->contribution[round] = malloc(most);
    for (uint32_t c = 0; c < fleet->candidates[i].count; c++)
        for (uint32_t round = 0; round < weft_codec_rounds(&fleet->candidates[i].specs[c]); round++)
            assert_true(weft_codec_aggregate_bytes_max(&fleet->candidates[i].specs[c], &fleet->shape[i],
                                                       round, fleet->options.workers) <= most);
    weft_timer_init(&flight->ready, on_ready);
    weft_timer_init(&flight->encoded, on_encoded);
    weft_timer_init(&flight->decoded, on_decoded);
    fleet_gradient(fleet, worker->rank, i, 1, flight->grad);
}

static double bytes_per_second(const char *rate)
{
    return strtod(rate, NULL) * (strchr(rate, 'G') ? 125e6 : 125e3);
}

static void job_open(struct job *job, const struct scenario *scenario)
{
    char text[200];
    struct weft_error error = {0};
    *job = (struct job){.scenario = scenario};
    snprintf(text, sizeof text,
             "[host node]\ncount = %u\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = s\nrate = "
             "%s\nlatency = 10us\n",
             scenario->workers + scenario->shards, scenario->rate);
    if (weft_topology_parse(weft_env_system(), "net", text, strlen(text), &job->topology, &error) < 0)
        fail_msg("%s", error.text);
    job->fleet = fleet_create(&(struct fleet_options){.seed = 1,
                                                      .shards = scenario->shards,
                                                      .workers = scenario->workers,
                                                      .receive_bytes_max = (size_t)64 << 20,
                                                      .tensors = specs,
                                                      .tensor_count = TENSORS,
                                                      .topology = job->topology});
    for (uint32_t i = 0; i < TENSORS; i++) {
        /* a forward pass, then the backward pass */
        job->ready_ns[i] = scenario->compute_ns * (0.4 + 0.6 * (i + 1) / TENSORS);
        set_costs(job, i);
    }
    for (uint32_t rank = 0; rank < scenario->workers; rank++) {
        struct worker *worker = &job->workers[rank];
        worker->job = job;
        worker->rank = rank;
        weft_timer_init(&worker->computed, on_computed);
        weft_transport_handler(wire(worker)->transport, WEFT_CHANNEL_RESULT, on_result, worker);
        for (uint32_t i = 0; i < TENSORS; i++) flight_open(worker, i);
    }
    choose(job, (uint8_t[TENSORS]){0});
}

static void job_close(struct job *job)
{
    for (uint32_t rank = 0; rank < job->scenario->workers; rank++)
        for (uint32_t i = 0; i < TENSORS; i++) {
            struct flight *flight = &job->workers[rank].flights[i];
            weft_codec_free(flight->codec);
            free(flight->grad);
            free(flight->out);
            free(flight->aggregate);
            for (uint32_t round = 0; round < WEFT_CODEC_ROUNDS_MAX; round++)
                free(flight->contribution[round]);
        }
    fleet_free(job->fleet);
    weft_topology_free(job->topology);
}

/* ---- the comparison ---- */

static double fixed_ns(const struct scenario *scenario, enum weft_codec_id id)
{
    struct job job;
    uint8_t choices[TENSORS];
    double sum = 0;
    job_open(&job, scenario);
    for (uint32_t i = 0; i < TENSORS; i++) choices[i] = candidate_of(&job, i, id);
    choose(&job, choices);
    step(&job);
    for (int i = 0; i < FIXED_STEPS; i++) sum += step(&job);
    job_close(&job);
    return sum / FIXED_STEPS;
}

/* The rate of a step as client/tensor/codec_tuner.c takes it. 0: no rate. */
static double rate_of(const struct job *job, double latency_ns)
{
    const double bytes = job->moved_bytes + job->return_bytes, ns = job->busy_ns - job->coded_ns;
    return bytes < RATE_SAMPLE_BYTES_MIN || ns < 0.5 * job->busy_ns || ns < 4 * latency_ns ? 0
                                                                                           : bytes / ns * 1e9;
}

struct tuned {
    double mean_ns, last_ns, bytes_per_second;
    uint32_t revisions;
    char choices[TENSORS + 1];
};

static struct tuned tuned_ns(const struct scenario *scenario)
{
    struct job job;
    struct weft_codec_tuner *tuner;
    struct weft_codec_tuner_tensor tensors[TENSORS];
    struct tuned result = {0};
    double since_look[LOOK_STEPS], rate = 0;
    bool tabled = true;
    const double real = bytes_per_second(scenario->rate);
    job_open(&job, scenario);
    assert_int_equal(weft_codec_tuner_create(weft_env_system(), NULL, TENSORS, &tuner), WEFT_OK);
    for (uint32_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct weft_codec_tuner_tensor){.candidate_count = job.fleet->candidates[i].count,
                                                .costs = job.costs[i],
                                                .kinds = job.fleet->candidates[i].kinds};
    struct weft_codec_tuner_input figures = {
        .tensors = tensors, .latency_ns = 20000, .bytes_per_second = real * scenario->table};
    weft_codec_tuner_update(tuner, &figures); /* without figures of the computation */
    choose(&job, weft_codec_tuner_choices(tuner));
    for (uint32_t n = 1; n <= JUDGED_STEPS; n++) {
        since_look[(n - 1) % LOOK_STEPS] = result.last_ns = step(&job);
        result.mean_ns += result.last_ns / JUDGED_STEPS;
        rate = fmax(rate, rate_of(&job, figures.latency_ns));
        if (n % LOOK_STEPS != 0) continue;
        if (rate == 0) rate = real; /* an all-reduce between the workers gives it */
        figures.bytes_per_second = tabled ? rate : sqrt(figures.bytes_per_second * rate);
        tabled = false;
        rate = 0;
        figures.compute_ns = scenario->compute_ns;
        figures.step_ns = since_look[LOOK_STEPS / 2];
        for (uint32_t i = 0; i < TENSORS; i++) tensors[i].ready_ns = job.ready_ns[i];
        weft_codec_tuner_update(tuner, &figures);
        choose(&job, weft_codec_tuner_choices(tuner));
    }
    result.bytes_per_second = figures.bytes_per_second;
    result.revisions = weft_codec_tuner_revision(tuner);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const enum weft_codec_id id = job.fleet->candidates[i].specs[weft_codec_tuner_choices(tuner)[i]].id;
        for (char k = 0; k < CANDIDATES; k++)
            if (codecs[(int)k].id == id) result.choices[i] = (char)('0' + k);
    }
    weft_codec_tuner_free(tuner);
    job_close(&job);
    return result;
}

static uint32_t slower; /* cases in which the tuner was slower */

static void compare(const struct scenario *scenario)
{
    double best = INFINITY, fixed[CANDIDATES];
    for (uint8_t c = 0; c < CANDIDATES; c++) best = fmin(best, fixed[c] = fixed_ns(scenario, codecs[c].id));
    const struct tuned tuned = tuned_ns(scenario);
    print_message("%8s %u workers, %u shards, compute %6.2f ms, codecs x %4.1f, believed x %.2f:",
                  scenario->rate, scenario->workers, scenario->shards, scenario->compute_ns / 1e6,
                  scenario->processor, scenario->table);
    for (uint32_t c = 0; c < CANDIDATES; c++) print_message(" %8.3f", fixed[c] / 1e6);
    print_message("  tuner %8.3f (last %8.3f, %s, %u revisions, %.0f MB/s): %.3f of the best\n",
                  tuned.mean_ns / 1e6, tuned.last_ns / 1e6, tuned.choices, tuned.revisions,
                  tuned.bytes_per_second / 1e6, tuned.mean_ns / best);
    slower += tuned.mean_ns > 1.05 * best;
}

static void test_links(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit", "100Gbit"};
    static const uint32_t sizes[][2] = {{2, 1}, {2, 2}, {4, 2}};
    slower = 0;
    print_message("virtual milliseconds of a step: dense, bf16, int8, PowerSGD, top-k for all tensors, and "
                  "the tuner's\n");
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t s = 0; s < 3; s++)
            for (int compute = 0; compute < 3; compute++)
                compare(&(struct scenario){rates[r], sizes[s][0], sizes[s][1],
                                           (double[]){0, 2e6, 30e6}[compute], 1, 1});
    assert_int_equal(slower, 0);
}

/* Codecs on a core ten times slower: faster on slow links only. */
static void test_slow_processor(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit"};
    slower = 0;
    for (uint32_t r = 0; r < 3; r++) compare(&(struct scenario){rates[r], 2, 2, 1e6, 10, 1});
    assert_int_equal(slower, 0);
}

/* The link table had a link four times slower or faster. */
static void test_link_table(void **state)
{
    static const char *const rates[] = {"100Mbit", "1Gbit", "10Gbit", "100Gbit"};
    slower = 0;
    for (uint32_t r = 0; r < 4; r++)
        for (int table = 0; table < 2; table++)
            compare(&(struct scenario){rates[r], 2, 2, 2e6, 1, (double[]){0.25, 4}[table]});
    assert_int_equal(slower, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_links), cmocka_unit_test(test_slow_processor),
                                       cmocka_unit_test(test_link_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
