/* codec_tuner_measure.c - costs of candidates and of the link, measured before the first step.
 *
 * Codecs: one rank's work in an exchange (encode, combine, take, finish) on samples of two sizes, one within
 * the caches and one beyond. Costs in between are interpolated by the logarithm of the size. All ranks
 * measure at the same time, as they encode at the same time; the slowest rank counts.
 *
 * Link: the job's link table (collective.links of rank 0), checked by the first probe. Without a table, the
 * latency is the shortest of some small exchanges, and the bandwidth that of all-reduces which grow until one
 * takes PROBE_NS_MIN, because a shaped link passes a burst at full speed. The last rank to arrive has
 * measured the exchange alone, so the minimum over the ranks is used on all of them. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "client/call/call.h"
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

enum { SMALL_ELEMS = 1 << 14, LARGE_ELEMS = 1 << 20, RUNS = 3, SMALL_EXCHANGES = 8 };
#define FIRST_PROBE_BYTES ((size_t)64 << 10)
#define PROBE_NS_MIN 60e6 /* longer than the bursts of a shaped link */
#define CALL_NS 5e3        /* fixed cost of an operation: messages to the engine, validation */

/* ---- codecs ---- */

struct sample {
    double encode_ns, decode_ns;         /* 0: not measured */
    uint64_t elems;
    double share[WEFT_CODEC_ROUNDS_MAX]; /* bytes of a contribution, divided by their upper bound */
};

struct candidate_samples {
    struct weft_codec_spec spec;
    struct sample small, large;
};

struct bench {
    struct weft_env *env;
    struct weft_codec_spec spec;
    struct weft_shape shape;
    uint32_t ranks;
    bool can_slice; /* false for shards, which combine whole chunks */
    struct weft_codec *codec;
    struct weft_combiner *combiner;
    const float *grad;
    float *out;
    uint8_t *bytes;
};

static double since_ns(struct weft_env *env, uint64_t began_ns)
{
    return (double)(weft_now_ns(env) - began_ns);
}

/* Adds the ns of one rank's part to *ns. */
static enum weft_status combine(struct bench *b, uint32_t round, size_t bytes, double *ns)
{
    const void *aggregate = b->bytes;
    struct weft_slices slices;
    uint64_t began_ns = weft_now_ns(b->env);
    if (weft_codec_combine_kind(&b->spec, round) == WEFT_COMBINE_SUM_F32) {
        weft_codec_sum_to_aggregate(&b->spec, &b->shape, round, (float *)(void *)b->bytes);
    } else {
        weft_combiner_begin(b->combiner, round);
        for (uint32_t rank = 0; rank < b->ranks; rank++)
            WEFT_TRY(weft_combiner_add(b->combiner, b->bytes, bytes));
        WEFT_TRY(weft_combiner_close(b->combiner, &aggregate, &bytes));
    }
    const double combine_ns = since_ns(b->env, began_ns);
    const bool sliced = b->can_slice && weft_coll_codec_slices(&b->spec, &b->shape, b->ranks, round, &slices);
    *ns += sliced ? client_codec_tuner_sliced_ns(b->env, &slices, aggregate, bytes, combine_ns) : combine_ns;
    began_ns = weft_now_ns(b->env);
    const enum weft_status status = weft_codec_take(b->codec, round, aggregate, bytes, b->ranks);
    *ns += since_ns(b->env, began_ns);
    return status;
}

static enum weft_status run_once(struct bench *b, struct sample *sample)
{
    double encode_ns = 0, decode_ns = 0;
    for (uint32_t round = 0; round < weft_codec_rounds(&b->spec); round++) {
        size_t bytes;
        uint64_t began_ns = weft_now_ns(b->env);
        WEFT_TRY(weft_codec_encode(b->codec, round, b->grad, 1.0f, b->bytes, &bytes));
        *(round == 0 ? &encode_ns : &decode_ns) += since_ns(b->env, began_ns);
        sample->share[round] =
            (double)bytes / (double)weft_codec_contribution_bytes_max(&b->spec, &b->shape, round);
        WEFT_TRY(combine(b, round, bytes, &decode_ns));
    }
    uint64_t began_ns = weft_now_ns(b->env);
    WEFT_TRY(weft_codec_finish(b->codec, 1.0f / (float)b->ranks, b->out));
    decode_ns += since_ns(b->env, began_ns);
    weft_codec_commit(b->codec);
    if (sample->encode_ns == 0 || encode_ns + decode_ns < sample->encode_ns + sample->decode_ns) {
        sample->encode_ns = encode_ns + 1; /* above 0 also with a virtual clock, which stands still */
        sample->decode_ns = decode_ns;
    }
    return WEFT_OK;
}

/* After an error the sample is unmeasured, and the candidate is not chosen. */
static void measure_sample(const struct weft_tensor *tensor, const struct weft_codec_spec *spec,
                           const struct weft_shape *shape, const float *grad, float *out,
                           struct sample *sample)
{
    struct weft_env *env = tensor->session->env;
    const uint32_t ranks = tensor->session->ranks;
    struct bench b = {.env = env, .spec = *spec, .shape = *shape, .ranks = ranks, .grad = grad, .out = out};
    b.can_slice = tensor->mode == WEFT_MODE_ALL_REDUCE;
    size_t capacity = 0;
    *sample = (struct sample){.elems = weft_shape_elems(shape)};
    for (uint32_t round = 0; round < weft_codec_rounds(spec); round++)
        capacity += weft_codec_contribution_bytes_max(spec, shape, round);
    b.bytes = weft_alloc_bytes(env, capacity);
    enum weft_status status = b.bytes ? weft_codec_create(env, spec, shape, &b.codec) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = weft_combiner_create(env, spec, shape, ranks, &b.combiner);
    for (int run = 0; run < RUNS && status == WEFT_OK; run++) status = run_once(&b, sample);
    if (status < 0) sample->encode_ns = 0;
    weft_combiner_free(b.combiner);
    weft_codec_free(b.codec);
    weft_free_bytes(env, b.bytes);
}

/* A shape of at most `elems` elements: a matrix if the tensor is one. */
static struct weft_shape sample_shape(const struct weft_shape *shape, uint64_t elems)
{
    const uint64_t all = weft_shape_elems(shape);
    uint64_t rows = shape->dims[0], side = 1;
    if (all <= elems) return *shape;
    while (side * side * 4 <= elems) side *= 2;
    if (shape->dim_count == 1) return (struct weft_shape){1, {elems}};
    if (rows > side) rows = side;
    return (struct weft_shape){2, {rows, elems / rows}};
}

static double interpolate(const struct sample *small, const struct sample *large, double small_ns,
                      double large_ns, uint64_t elems)
{
    const double a = small_ns / (double)small->elems, b = large_ns / (double)large->elems, n = (double)elems;
    if (small->encode_ns == 0 || elems >= large->elems || small->elems >= large->elems) return b * n;
    if (elems <= small->elems) return a * n;
    const double at = log(n / (double)small->elems) / log((double)large->elems / (double)small->elems);
    return (a + (b - a) * at) * n;
}

/* bytes: of the contributions of candidate `choice`; NULL: dense, choice 0. */
static void add_traffic(const struct weft_tensor *tensor, uint32_t choice, const size_t *bytes,
                        struct weft_codec_cost *cost)
{
    const struct weft_codec_spec *spec = &tensor->codec_choice.candidates.specs[choice];
    struct weft_coll_traffic traffic;
    if (tensor->mode == WEFT_MODE_SERVER) {
        weft_codec_server_traffic(
            spec, &tensor->options.shape, bytes, tensor->session->ranks, tensor->session->membership.shards,
            tensor->chunk_table.choice_first[choice + 1] - tensor->chunk_table.choice_first[choice],
            tensor->session->engine->shards_eager_bytes, cost);
        return;
    }
    weft_coll_codec_traffic(spec, &tensor->options.shape, tensor->session->ranks, bytes, &traffic);
    cost->wire_bytes = traffic.bytes;
    cost->hops = traffic.hops;
}

static struct weft_codec_cost cost_of(const struct candidate_samples *samples,
                                      const struct weft_tensor *tensor, uint32_t choice)
{
    const struct weft_codec_spec *spec = &samples->spec;
    const struct weft_shape *shape = &tensor->options.shape;
    const uint64_t elems = tensor->elems;
    size_t bytes[WEFT_CODEC_ROUNDS_MAX] = {0};
    if (samples->large.encode_ns == 0) return (struct weft_codec_cost){.encode_ns = -1};
    for (uint32_t round = 0; round < weft_codec_rounds(spec); round++)
        bytes[round] = (size_t)(samples->large.share[round] *
                                (double)weft_codec_contribution_bytes_max(spec, shape, round));
    struct weft_codec_cost cost = {
        .encode_ns = CALL_NS + interpolate(&samples->small, &samples->large, samples->small.encode_ns,
                                       samples->large.encode_ns, elems),
        .decode_ns = CALL_NS + interpolate(&samples->small, &samples->large, samples->small.decode_ns,
                                       samples->large.decode_ns, elems),
    };
    add_traffic(tensor, choice, bytes, &cost);
    return cost;
}

/* Each spec is measured once, on the largest tensor that has it. */
static const struct weft_tensor *largest_tensor_with(const struct client_codec_tuner *codec_tuner,
                                              const struct weft_codec_spec *spec)
{
    const struct weft_tensor *largest = NULL;
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        const struct weft_tensor *tensor = codec_tuner->tensors[i];
        for (uint32_t c = 1; c < tensor->codec_choice.candidates.count; c++)
            if (memcmp(&tensor->codec_choice.candidates.specs[c], spec, sizeof *spec) == 0 &&
                (!largest || tensor->elems > largest->elems))
                largest = tensor;
    }
    return largest;
}

static void measure_samples(const struct weft_tensor *tensor, const float *grad, float *out,
                         struct candidate_samples *samples)
{
    const struct weft_shape small = sample_shape(&tensor->options.shape, SMALL_ELEMS),
                            large = sample_shape(&tensor->options.shape, LARGE_ELEMS);
    measure_sample(tensor, &samples->spec, &large, grad, out, &samples->large);
    samples->small = samples->large;
    if (weft_shape_elems(&small) < weft_shape_elems(&large))
        measure_sample(tensor, &samples->spec, &small, grad, out, &samples->small);
}

static struct candidate_samples *find_samples(struct candidate_samples *all_samples, uint32_t count,
                                            const struct weft_codec_spec *spec)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&all_samples[i].spec, spec, sizeof *spec) == 0) return &all_samples[i];
    return NULL;
}

static void fill_normal(float *out, size_t count)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (float)((int32_t)(seed >> 48) + (int32_t)(seed >> 32 & 0xffff) +
                         (int32_t)(seed >> 16 & 0xffff) - 98302) *
                 0x1p-16f;
    }
}

/* Fills costs[] of every tensor by this rank's clock. */
static enum weft_status measure_codecs(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    struct weft_env *env = session->env;
    struct candidate_samples *all_samples =
        weft_alloc_array(env, codec_tuner->count * WEFT_CODEC_CANDIDATES_MAX, sizeof *all_samples);
    uint64_t most = 1; /* a sample is at most as large as its tensor */
    for (uint32_t i = 0; i < codec_tuner->count; i++)
        if (codec_tuner->tensors[i]->elems > most) most = codec_tuner->tensors[i]->elems;
    if (most > LARGE_ELEMS) most = LARGE_ELEMS;
    float *grad = weft_alloc_array(env, most, sizeof *grad),
          *out = weft_alloc_array(env, most, sizeof *out);
    uint32_t count = 0;
    enum weft_status status = all_samples && grad && out ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) fill_normal(grad, most);
    for (uint32_t i = 0; i < codec_tuner->count && status == WEFT_OK; i++) {
        struct weft_tensor *tensor = codec_tuner->tensors[i];
        struct client_codec_choice *codec_choice = &tensor->codec_choice;
        codec_choice->costs[0] = (struct weft_codec_cost){.encode_ns = CALL_NS};
        add_traffic(tensor, 0, NULL, &codec_choice->costs[0]);
        for (uint32_t c = 1; c < codec_choice->candidates.count; c++) {
            const struct weft_codec_spec *spec = &codec_choice->candidates.specs[c];
            struct candidate_samples *samples = find_samples(all_samples, count, spec);
            if (!samples) {
                samples = &all_samples[count++];
                samples->spec = *spec;
                measure_samples(largest_tensor_with(codec_tuner, spec), grad, out, samples);
            }
            codec_choice->costs[c] = cost_of(samples, tensor, c);
        }
    }
    weft_free_bytes(env, all_samples);
    weft_free_bytes(env, grad);
    weft_free_bytes(env, out);
    return status;
}

/* ---- exchanges ---- */

static enum weft_status finish(struct weft_session *session, enum weft_status started,
                               struct weft_request *request, const char *what)
{
    return started < 0 ? started : client_request_wait_internal(session, request, what);
}

static enum weft_status gather(struct weft_session *session, const double *mine, double *all, uint64_t count)
{
    struct weft_request request = {0};
    const struct client_simple_call call = {.kind = WEFT_COLL_ALL_GATHER,
                                            .in = mine,
                                            .out = all,
                                            .count = count,
                                            .dtype = WEFT_I64,
                                            .op = WEFT_SUM};
    return finish(session, client_call_start_internal(session, WEFT_COLL_LABEL_CODEC_CHOICE, &call, &request),
                  &request, "measuring codecs and links");
}

enum { COST_WORDS = 4 };

/* Takes the maximum over all ranks, on all ranks. */
static enum weft_status agree_on_costs(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const size_t count = (size_t)codec_tuner->count * WEFT_CODEC_CANDIDATES_MAX * COST_WORDS;
    double *mine = weft_alloc_zero(session->env, count * sizeof *mine);
    double *all = weft_alloc_array(session->env, count * session->ranks, sizeof *all);
    enum weft_status status = mine && all ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < codec_tuner->count && status == WEFT_OK; i++)
        for (uint32_t c = 0; c < codec_tuner->tensors[i]->codec_choice.candidates.count; c++) {
            const struct weft_codec_cost *cost = &codec_tuner->tensors[i]->codec_choice.costs[c];
            const double words[COST_WORDS] = {cost->encode_ns, cost->decode_ns, cost->wire_bytes,
                                              cost->return_bytes};
            memcpy(mine + (i * WEFT_CODEC_CANDIDATES_MAX + c) * COST_WORDS, words, sizeof words);
        }
    if (status == WEFT_OK) status = gather(session, mine, all, count);
    for (uint32_t i = 0; i < codec_tuner->count && status == WEFT_OK; i++)
        for (uint32_t c = 0; c < codec_tuner->tensors[i]->codec_choice.candidates.count; c++) {
            struct weft_codec_cost *cost = &codec_tuner->tensors[i]->codec_choice.costs[c];
            for (uint32_t rank = 0; rank < session->ranks; rank++) {
                const double *place = all + rank * count + (i * WEFT_CODEC_CANDIDATES_MAX + c) * COST_WORDS;
                if (!(place[0] >= 0)) cost->encode_ns = -1; /* a candidate that fails on one rank is excluded
                                                             * on all */
                if (cost->encode_ns < 0) break;
                cost->encode_ns = fmax(cost->encode_ns, place[0]);
                cost->decode_ns = fmax(cost->decode_ns, place[1]);
                cost->wire_bytes = fmax(cost->wire_bytes, place[2]);
                cost->return_bytes = fmax(cost->return_bytes, place[3]);
            }
        }
    weft_free_bytes(session->env, mine);
    weft_free_bytes(session->env, all);
    return status;
}

/* Minimum over all ranks. */
static enum weft_status min_over_ranks(struct weft_session *session, double mine, double *all,
                                       double *least_out)
{
    WEFT_TRY(gather(session, &mine, all, 1));
    *least_out = all[0];
    for (uint32_t rank = 1; rank < session->ranks; rank++) *least_out = fmin(*least_out, all[rank]);
    return WEFT_OK;
}

static enum weft_status time_all_reduce(struct weft_session *session, float *buffer, size_t bytes,
                                        double *all, double *ns_out)
{
    struct weft_request request = {0};
    const uint64_t began_ns = weft_now_ns(session->env);
    enum weft_status status = client_all_reduce_tensor(session, buffer, bytes / sizeof(float), &request);
    WEFT_TRY(finish(session, status, &request, "measuring the link"));
    return min_over_ranks(session, since_ns(session->env, began_ns), all, ns_out);
}

static enum weft_status min_small_exchange_ns(struct weft_session *session, float *buffer, double *all,
                                      double *shortest_out)
{
    double ns;
    *shortest_out = INFINITY;
    for (int i = 0; i < SMALL_EXCHANGES; i++) {
        WEFT_TRY(time_all_reduce(session, buffer, sizeof(float), all, &ns));
        *shortest_out = fmin(*shortest_out, ns);
    }
    return WEFT_OK;
}

static enum weft_status measure_link(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const double share = 2 * ((double)session->ranks - 1) / (double)session->ranks;
    double ns = 0, shortest = INFINITY;
    float *buffer = weft_alloc_zero(session->env, CLIENT_PROBE_BYTES_MAX);
    double *all = weft_alloc_array(session->env, session->ranks, sizeof *all);
    enum weft_status status = buffer && all ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = min_small_exchange_ns(session, buffer, all, &shortest);
    codec_tuner->link.latency_ns = shortest / 2; /* one way */
    for (size_t bytes = FIRST_PROBE_BYTES;
         bytes <= CLIENT_PROBE_BYTES_MAX && status == WEFT_OK && ns < PROBE_NS_MIN; bytes *= 4) {
        status = time_all_reduce(session, buffer, bytes, all, &ns);
        codec_tuner->link.bytes_per_second = share * (double)bytes / fmax(ns - shortest, ns / 10) * 1e9;
    }
    codec_tuner->link.probed_ns = weft_now_ns(session->env);
    weft_free_bytes(session->env, buffer);
    weft_free_bytes(session->env, all);
    return status;
}

/* Takes the link from the job's link table, equal on all ranks. false: no table, or not of all links. Later
 * measurements are kept. */
static bool read_link_table(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const struct weft_link_cost *cost = &session->link.cost;
    if (cost->pairs == 0 || cost->unknown > 0 || cost->bytes_per_second == 0) return false;
    if (codec_tuner->link.bytes_per_second > 0) return true;
    codec_tuner->link.latency_ns = (double)cost->latency_ns;
    codec_tuner->link.bytes_per_second = (double)cost->bytes_per_second;
    codec_tuner->link.latency_from_table = codec_tuner->link.bandwidth_from_table = true;
    codec_tuner->link.probed_ns = weft_now_ns(session->env);
    return true;
}

enum weft_status client_codec_tuner_probe(struct weft_session *session, size_t bytes)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const double moved = 2 * ((double)session->ranks - 1) / (double)session->ranks * (double)bytes;
    double ns = 0, shortest = 0;
    float *buffer = weft_alloc_zero(session->env, bytes);
    double *all = weft_alloc_array(session->env, session->ranks, sizeof *all);
    enum weft_status status = buffer && all ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK && codec_tuner->link.latency_from_table) {
        status = min_small_exchange_ns(session, buffer, all, &shortest);
        if (status == WEFT_OK) codec_tuner->link.latency_ns = shortest / 2;
    }
    if (status == WEFT_OK) status = time_all_reduce(session, buffer, bytes, all, &ns);
    if (status == WEFT_OK) {
        client_codec_tuner_add_bandwidth(codec_tuner,
                                         moved / fmax(ns - 2 * codec_tuner->link.latency_ns, ns / 10) * 1e9);
        codec_tuner->link.latency_from_table = false;
    }
    codec_tuner->link.probed_ns = weft_now_ns(session->env);
    weft_free_bytes(session->env, buffer);
    weft_free_bytes(session->env, all);
    return status;
}

/* 1 if the ranks of this host, each with an engine thread, outnumber the processors: codec work then delays
 * the computation. */
static double measure_steal(const struct weft_session *session)
{
    char mine[128], other[128];
    uint32_t here = 0;
    client_rank_name(session, session->rank, mine, sizeof mine);
    const char *host = strchr(mine, '(');
    for (uint32_t rank = 0; rank < session->ranks && host; rank++) {
        client_rank_name(session, rank, other, sizeof other);
        const char *theirs = strchr(other, '(');
        here += theirs && strncmp(host, theirs, strcspn(host, ",") + 1) == 0;
    }
    return 2 * (long)here > sysconf(_SC_NPROCESSORS_ONLN) ? 1 : 0;
}

enum weft_status client_codec_tuner_measure(struct weft_session *session)
{
    enum weft_status status = measure_codecs(session);
    session->tensors->codec_tuner.steal = measure_steal(session);
    if (status == WEFT_OK) status = agree_on_costs(session);
    if (status == WEFT_OK && !read_link_table(session)) status = measure_link(session);
    return status;
}
