/* codec_tuner.c - see codec_tuner.h: the schedule of decisions, their broadcast, and a change of a tensor's
 * codec. */
#include "client/tensor/codec_tuner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/open_step.h"
#include "client/session/session.h"
#include "client/session/sized.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* bytes of a step from which on its traffic measures the link */
#define RATE_SAMPLE_BYTES_MIN 1048576.0
#define ROOT 0u

/* Figures that a rank sends to rank 0, followed by the ready time of each tensor. Doubles, sent as 64-bit
 * words. */
enum { WORD_STEP_NS, WORD_COMPUTE_NS, WORD_RATE, WORD_READY };

/* ---- memory ---- */

enum weft_status client_codec_tuner_add(struct weft_session *session, struct weft_tensor *tensor)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    if (codec_tuner->count == codec_tuner->capacity) {
        const uint32_t capacity = codec_tuner->capacity ? 2 * codec_tuner->capacity : 16;
        struct weft_tensor **more = weft_alloc_array(session->env, capacity, sizeof(*more));
        if (!more) return WEFT_ERR_NO_MEMORY;
        if (codec_tuner->count) memcpy(more, codec_tuner->tensors, codec_tuner->count * sizeof(*more));
        weft_free_bytes(session->env, codec_tuner->tensors);
        codec_tuner->tensors = more;
        codec_tuner->capacity = capacity;
    }
    codec_tuner->tensors[codec_tuner->count++] = tensor;
    codec_tuner->measured = false;
    return WEFT_OK;
}

static void free_memory(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    void *const owned[] = {codec_tuner->mine, codec_tuner->all, codec_tuner->decision, codec_tuner->figures,
                           codec_tuner->order};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) weft_free_bytes(session->env, owned[i]);
    weft_codec_tuner_free(codec_tuner->tuner);
    codec_tuner->mine = codec_tuner->all = NULL;
    codec_tuner->decision = NULL;
    codec_tuner->figures = NULL;
    codec_tuner->order = NULL;
    codec_tuner->tuner = NULL;
}

void client_codec_tuner_remove(struct weft_session *session, const struct weft_tensor *tensor)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    uint32_t at = 0;
    while (at < codec_tuner->count && codec_tuner->tensors[at] != tensor) at++;
    if (at == codec_tuner->count) return;
    codec_tuner->count--;
    memmove(&codec_tuner->tensors[at], &codec_tuner->tensors[at + 1],
            (codec_tuner->count - at) * sizeof(*codec_tuner->tensors));
    codec_tuner->measured = false;
}

void client_codec_tuner_free(struct weft_session *session)
{
    free_memory(session);
    weft_free_bytes(session->env, session->tensors->codec_tuner.tensors);
}

static enum weft_status alloc_memory(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    struct weft_env *env = session->env;
    free_memory(session);
    codec_tuner->words = WORD_READY + codec_tuner->count;
    codec_tuner->mine = weft_alloc_array(env, codec_tuner->words, sizeof(*codec_tuner->mine));
    codec_tuner->all = weft_alloc_array(env, codec_tuner->words * session->ranks, sizeof(*codec_tuner->all));
    codec_tuner->decision = weft_alloc_array(env, CLIENT_DECISION_CHOICES + (size_t)codec_tuner->count,
                                             sizeof(*codec_tuner->decision));
    codec_tuner->figures = weft_alloc_array(env, codec_tuner->count, sizeof(*codec_tuner->figures));
    codec_tuner->order = weft_alloc_array(env, codec_tuner->count, sizeof(*codec_tuner->order));
    if (!codec_tuner->mine || !codec_tuner->all || !codec_tuner->decision || !codec_tuner->figures ||
        !codec_tuner->order)
        return WEFT_ERR_NO_MEMORY;
    return session->rank == ROOT ? weft_codec_tuner_create(env, NULL, codec_tuner->count, &codec_tuner->tuner)
                                 : WEFT_OK;
}

/* ---- figures ---- */

static double median(double *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && values[k] < values[k - 1]; k--) {
            const double value = values[k];
            values[k] = values[k - 1];
            values[k - 1] = value;
        }
    return count ? values[count / 2] : 0;
}

/* Fills this rank's figures of the steps since the last decision, and resets them. */
static void fill_own_words(struct client_codec_tuner *codec_tuner)
{
    codec_tuner->mine[WORD_STEP_NS] = median(codec_tuner->step_ns, codec_tuner->step_count);
    codec_tuner->mine[WORD_COMPUTE_NS] = median(codec_tuner->compute_ns, codec_tuner->step_count);
    codec_tuner->mine[WORD_RATE] = codec_tuner->rate_max; /* the largest: a disturbance only lowers the
                                                           * rate */
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        struct client_codec_choice *codec_choice = &codec_tuner->tensors[i]->codec_choice;
        codec_tuner->mine[WORD_READY + i] =
            codec_choice->ready_count ? codec_choice->ready_ns / codec_choice->ready_count : 0;
        codec_choice->ready_ns = 0;
        codec_choice->ready_count = 0;
    }
    codec_tuner->step_count = 0;
    codec_tuner->rate_max = 0;
}

/* Maximum over all ranks. An exchange begins when the last rank is ready, and the rank that did not wait has
 * measured the link. */
static double largest(const struct client_codec_tuner *codec_tuner, uint32_t ranks, size_t word)
{
    double found = 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        found = fmax(found, codec_tuner->all[rank * codec_tuner->words + word]);
    return isfinite(found) ? found : 0;
}

/* Insertion sort: the order of pushes is nearly equal in every step. */
static void sort_by_readiness(struct client_codec_tuner *codec_tuner)
{
    for (uint32_t i = 1; i < codec_tuner->count; i++) {
        const uint32_t index = codec_tuner->order[i];
        uint32_t k = i;
        for (; k > 0 && codec_tuner->figures[codec_tuner->order[k - 1]].ready_ns >
                            codec_tuner->figures[index].ready_ns;
             k--)
            codec_tuner->order[k] = codec_tuner->order[k - 1];
        codec_tuner->order[k] = index;
    }
}

void client_codec_tuner_add_bandwidth(struct client_codec_tuner *codec_tuner, double bytes_per_second)
{
    codec_tuner->link.bytes_per_second = codec_tuner->link.bandwidth_from_table
                                             ? bytes_per_second
                                             : sqrt(codec_tuner->link.bytes_per_second * bytes_per_second);
    codec_tuner->link.bandwidth_from_table = false;
}

/* Takes the link rate from the steps. Equal on all ranks. */
static void use_step_rates(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const double rate = largest(codec_tuner, session->ranks, WORD_RATE);
    if (rate <= 0) return;
    client_codec_tuner_add_bandwidth(codec_tuner, rate);
    codec_tuner->link.probed_ns = weft_now_ns(session->env);
}

/* If exchanges are too small to measure the link, the ranks time an all-reduce. Bytes that the link carries
 * in 1/100 of the time since its last measurement; 0: too few to measure. */
static int64_t probe_bytes(const struct weft_session *session)
{
    const struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const double spent_ns = 0.01 * (double)(weft_now_ns(session->env) - codec_tuner->link.probed_ns);
    const double share = 2 * ((double)session->ranks - 1) / (double)session->ranks;
    const double bytes =
        (spent_ns - 4 * codec_tuner->link.latency_ns) * codec_tuner->link.bytes_per_second * 1e-9 / share;
    if (bytes < (double)CLIENT_PROBE_BYTES_MIN) return 0;
    return bytes < 4.0 * (double)CLIENT_PROBE_BYTES_MIN ? (int64_t)bytes & ~(int64_t)63
                                                    : 4 * (int64_t)CLIENT_PROBE_BYTES_MIN;
}

/* Rank 0. gathered: figures of steps exist; without them no time is known to be overlapped. */
static void decide(struct weft_session *session, bool gathered)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        const struct client_codec_choice *codec_choice = &codec_tuner->tensors[i]->codec_choice;
        codec_tuner->figures[i] = (struct weft_codec_tuner_tensor){
            .ready_ns = gathered ? largest(codec_tuner, session->ranks, WORD_READY + i) : 0,
            .candidate_count = codec_choice->candidates.count,
            .costs = codec_choice->costs,
            .kinds = codec_choice->candidates.kinds,
        };
        if (!gathered) codec_tuner->order[i] = i;
    }
    sort_by_readiness(codec_tuner);
    const struct weft_codec_tuner_input figures = {
        .latency_ns = codec_tuner->link.latency_ns,
        .bytes_per_second = codec_tuner->link.bytes_per_second,
        .compute_ns = gathered ? largest(codec_tuner, session->ranks, WORD_COMPUTE_NS) : 0,
        .steal = codec_tuner->steal,
        .step_ns = gathered ? largest(codec_tuner, session->ranks, WORD_STEP_NS) : 0,
        .tensors = codec_tuner->figures,
        .order = codec_tuner->order,
    };
    const enum weft_codec_decision decision = weft_codec_tuner_update(codec_tuner->tuner, &figures);
    weft_log(
        session->env, WEFT_LOG_DEBUG, "client",
        "codec tuner: link %.0f MB/s, %.1f us; compute %.3f ms, step %.3f ms measured, %.3f ms estimated; %s",
        figures.bytes_per_second / 1e6, figures.latency_ns / 1e3, figures.compute_ns / 1e6,
        figures.step_ns / 1e6,
        weft_codec_tuner_step_ns(&figures, weft_codec_tuner_choices(codec_tuner->tuner), codec_tuner->count) /
            1e6,
        decision == WEFT_CODEC_DECISION_KEEP     ? "kept"
        : decision == WEFT_CODEC_DECISION_CHANGE ? "changed"
                                                 : "reverted");
    bool differs =
        false; /* compares with what is in force: after a late declaration the tuner begins with dense */
    codec_tuner->decision[CLIENT_DECISION_PROBE_BYTES] =
        gathered &&
                (codec_tuner->link.latency_from_table || largest(codec_tuner, session->ranks, WORD_RATE) == 0)
            ? probe_bytes(session)
            : 0;
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        const uint8_t choice = weft_codec_tuner_choices(codec_tuner->tuner)[i];
        codec_tuner->decision[CLIENT_DECISION_CHOICES + i] = choice;
        differs |= choice != codec_tuner->tensors[i]->codec_choice.chosen;
    }
    codec_tuner->decision[CLIENT_DECISION_REVISION] = (int64_t)codec_tuner->revision + differs;
}

/* ---- changes ---- */

/* Adds the residual of the present codec to tensor->arrays.carry, which enters the next contribution. */
static enum weft_status save_residual(struct weft_tensor *tensor)
{
    struct weft_env *env = tensor->session->env;
    if (!tensor->codec || weft_codec_residual_norm(tensor->codec) == 0) return WEFT_OK;
    float *residual = weft_alloc_array(env, tensor->elems, sizeof *residual);
    if (!residual) return WEFT_ERR_NO_MEMORY;
    weft_codec_residual_copy(tensor->codec, residual);
    if (tensor->arrays.carry)
        weft_kernels()->sum_f32(residual, residual, tensor->arrays.carry, tensor->elems);
    weft_free_bytes(env, tensor->arrays.carry);
    tensor->arrays.carry = residual;
    tensor->arrays.carry_ranks = tensor->session->ranks;
    return WEFT_OK;
}

static enum weft_status change_codec(struct weft_tensor *tensor, uint8_t choice, uint64_t step)
{
    struct weft_session *session = tensor->session;
    struct client_codec_choice *codec_choice = &tensor->codec_choice;
    const struct weft_codec_spec *spec = &codec_choice->candidates.specs[choice];
    struct weft_codec *codec = NULL;
    char from[WEFT_CODEC_TEXT_BYTES], to[WEFT_CODEC_TEXT_BYTES];
    if (spec->id != WEFT_CODEC_DENSE) {
        WEFT_TRY(weft_codec_create(session->env, spec, &tensor->options.shape, &codec));
        weft_codec_set_ranks(codec, session->ranks);
        weft_codec_set_stream(codec, tensor->wire.rounding_seed, session->rank);
    }
    const enum weft_status status = save_residual(tensor);
    if (status < 0) {
        weft_codec_free(codec);
        return status;
    }
    weft_codec_format(&tensor->options.codec_spec, from, sizeof from);
    weft_codec_format(spec, to, sizeof to);
    weft_codec_free(tensor->codec);
    tensor->codec = codec;
    tensor->options.codec_spec = *spec;
    tensor->buffers.host_codec_logged = false;
    if (choice == codec_choice->chosen) return WEFT_OK; /* only made again */
    weft_log(session->env, WEFT_LOG_INFO, "client",
             "codec tuner: tensor '%.100s' changes from %s to %s in step %llu", tensor->name, from, to,
             (unsigned long long)step);
    codec_choice->chosen = choice;
    codec_choice->changes++;
    codec_choice->since_step = step;
    return WEFT_OK;
}

/* Puts the decision in force from `step`. remake_all: all ranks make all codecs again, because new and rested
 * ranks must have equal counters and seeds. Residuals are kept. */
static enum weft_status apply(struct weft_session *session, uint64_t step, bool remake_all)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    if (!remake_all && codec_tuner->decision[CLIENT_DECISION_REVISION] == (int64_t)codec_tuner->revision)
        return WEFT_OK;
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        struct weft_tensor *tensor = codec_tuner->tensors[i];
        const int64_t choice = codec_tuner->decision[CLIENT_DECISION_CHOICES + i];
        enum weft_status status = WEFT_OK;
        if (choice < 0 || choice >= (int64_t)tensor->codec_choice.candidates.count) {
            client_fail(session, WEFT_ERR_MALFORMED, true,
                        "rank %u: rank 0 chose a codec that tensor '%s' does not have", session->rank,
                        tensor->name);
            return client_usable(session);
        }
        if (choice != tensor->codec_choice.chosen || (remake_all && tensor->codec))
            status = change_codec(tensor, (uint8_t)choice, step);
        if (status < 0) {
            client_fail(session, status, true, "rank %u has no memory for another codec of tensor '%s'",
                        session->rank, tensor->name);
            return client_usable(session);
        }
    }
    codec_tuner->revision = (uint32_t)codec_tuner->decision[CLIENT_DECISION_REVISION];
    codec_tuner->revised_step = step;
    codec_tuner->step_count = 0;
    return WEFT_OK;
}

/* ---- schedule ---- */

static enum weft_status post_decision(struct weft_session *session)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const struct client_simple_call call = client_simple_broadcast(
        codec_tuner->decision, CLIENT_DECISION_CHOICES + (uint64_t)codec_tuner->count, WEFT_I64, ROOT);
    return client_call_start_internal(session, WEFT_COLL_LABEL_CODEC_CHOICE, &call,
                                      &codec_tuner->decision_request);
}

static enum weft_status measure_and_choose(struct weft_session *session, uint64_t step)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    const bool remake_all = codec_tuner->epoch != session->epoch;
    enum weft_status status = alloc_memory(session);
    codec_tuner->phase = CLIENT_CODEC_TUNER_IDLE;
    codec_tuner->step_count = 0;
    codec_tuner->rate_max = 0;
    if (status == WEFT_OK) status = client_codec_tuner_measure(session);
    if (status == WEFT_OK) {
        if (session->rank == ROOT) decide(session, false);
        status = post_decision(session);
        if (status >= 0)
            status = client_request_wait_internal(session, &codec_tuner->decision_request,
                                                  "publishing the choice of codecs");
    }
    if (status == WEFT_ERR_NO_MEMORY) /* the other ranks depend on this one */
        client_fail(session, status, true, "rank %u has no memory to measure codecs", session->rank);
    if (status < 0) return client_usable(session) < 0 ? client_usable(session) : status;
    WEFT_TRY(apply(session, step, remake_all));
    codec_tuner->measured = true;
    codec_tuner->epoch = session->epoch;
    return WEFT_OK;
}

/* A single rank exchanges nothing, so no codec is needed. */
static enum weft_status choose_dense(struct weft_session *session, uint64_t step)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    codec_tuner->measured = false;
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        const enum weft_status status =
            codec_tuner->tensors[i]->codec ? change_codec(codec_tuner->tensors[i], 0, step) : WEFT_OK;
        if (status == WEFT_OK) continue;
        client_fail(session, status, true, "rank %u has no memory for the residual of tensor '%s'",
                    session->rank, codec_tuner->tensors[i]->name);
        return client_usable(session);
    }
    return WEFT_OK;
}

/* Measures the link if rank 0's decision asks for it. */
static enum weft_status probe(struct weft_session *session)
{
    const int64_t bytes = session->tensors->codec_tuner.decision[CLIENT_DECISION_PROBE_BYTES];
    if (bytes < (int64_t)CLIENT_PROBE_BYTES_MIN || bytes > (int64_t)CLIENT_PROBE_BYTES_MAX) return WEFT_OK;
    const enum weft_status status = client_codec_tuner_probe(session, (size_t)bytes);
    if (status == WEFT_ERR_NO_MEMORY) /* the other ranks depend on this one */
        client_fail(session, status, true, "rank %u has no memory to measure the link", session->rank);
    return status;
}

enum weft_status client_codec_tuner_step_begin(struct weft_session *session, uint64_t step)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    if (codec_tuner->count == 0) return WEFT_OK;
    codec_tuner->traffic = (struct client_codec_traffic){0};
    if (session->ranks == 1) return choose_dense(session, step);
    if (!codec_tuner->measured || codec_tuner->epoch != session->epoch)
        return measure_and_choose(session, step);
    switch (codec_tuner->phase) {
    case CLIENT_CODEC_TUNER_IDLE:
        if (step % CLIENT_CODEC_TUNER_PERIOD_STEPS != 0) return WEFT_OK;
        fill_own_words(codec_tuner);
        codec_tuner->phase = CLIENT_CODEC_TUNER_GATHERING;
        const struct client_simple_call call = {.kind = WEFT_COLL_ALL_GATHER,
                                                .in = codec_tuner->mine,
                                                .out = codec_tuner->all,
                                                .count = codec_tuner->words,
                                                .dtype = WEFT_I64,
                                                .op = WEFT_SUM};
        enum weft_status status = client_call_start_internal(session, WEFT_COLL_LABEL_CODEC_CHOICE, &call,
                                                             &codec_tuner->gather_request);
        return status < 0 ? status : WEFT_OK;
    case CLIENT_CODEC_TUNER_GATHERING:
        use_step_rates(session);
        if (session->rank == ROOT) decide(session, true);
        codec_tuner->phase = CLIENT_CODEC_TUNER_BROADCASTING;
        status = post_decision(session);
        return status < 0 ? status : WEFT_OK;
    default:
        codec_tuner->phase = CLIENT_CODEC_TUNER_IDLE;
        WEFT_TRY(apply(session, step, false));
        return probe(session);
    }
}

/* Derives the link rate from the step's exchanges, without the time of codec work. */
static void record_rate(struct client_codec_tuner *codec_tuner)
{
    const struct client_codec_traffic *traffic = &codec_tuner->traffic;
    const double ns = (double)traffic->busy_ns - traffic->coded_ns;
    /* the return of the last exchange overlaps with nothing */
    const double bytes = traffic->moved_bytes + traffic->return_bytes;
    if (bytes < RATE_SAMPLE_BYTES_MIN || ns < 0.5 * (double)traffic->busy_ns ||
        ns < 4 * codec_tuner->link.latency_ns)
        return;
    codec_tuner->rate_max = fmax(codec_tuner->rate_max, bytes / ns * 1e9);
}

void client_codec_tuner_step_end(struct weft_session *session, uint64_t step_ns, uint64_t exposed_ns)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    if (codec_tuner->count == 0 || !codec_tuner->measured) return;
    const struct weft_codec_tuner_input link = {.latency_ns = codec_tuner->link.latency_ns,
                                                .bytes_per_second = codec_tuner->link.bytes_per_second};
    record_rate(codec_tuner);
    if (session->step.number > codec_tuner->revised_step &&
        codec_tuner->step_count < CLIENT_CODEC_TUNER_PERIOD_STEPS) {
        codec_tuner->step_ns[codec_tuner->step_count] = (double)step_ns;
        codec_tuner->compute_ns[codec_tuner->step_count++] =
            step_ns > exposed_ns ? (double)(step_ns - exposed_ns) : 0;
    }
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        struct client_codec_choice *codec_choice = &codec_tuner->tensors[i]->codec_choice;
        const struct weft_codec_cost *cost = &codec_choice->costs[codec_choice->chosen];
        if (codec_choice->chosen == 0 || codec_tuner->tensors[i]->progress.last_step != session->step.number)
            continue;
        codec_choice->coded_steps++;
        codec_choice->saved_bytes += codec_choice->costs[0].wire_bytes - cost->wire_bytes;
        codec_choice->saved_ns += weft_codec_tuner_exchange_ns(&link, &codec_choice->costs[0]) -
                                  weft_codec_tuner_exchange_ns(&link, cost);
    }
}

void client_codec_tuner_tensor_ready(struct weft_tensor *tensor)
{
    const struct client_step *step = &tensor->session->step;
    const uint64_t since_ns = weft_now_ns(tensor->session->env) - step->began_ns,
                   exposed_ns = atomic_load(&step->exposed_ns);
    tensor->codec_choice.ready_ns += since_ns > exposed_ns ? (double)(since_ns - exposed_ns) : 0;
    tensor->codec_choice.ready_count++;
}

/* ---- engine ---- */

void client_codec_tuner_exchange_posted(struct weft_tensor *tensor)
{
    struct client_codec_traffic *traffic = &tensor->session->tensors->codec_tuner.traffic;
    const struct weft_codec_cost *cost = &tensor->codec_choice.costs[tensor->codec_choice.chosen];
    if (!client_tensor_has_codec_choice(tensor)) return;
    if (traffic->running++ == 0) traffic->busy_since_ns = weft_now_ns(tensor->session->env);
    traffic->moved_bytes += cost->wire_bytes;
    traffic->return_bytes = fmax(traffic->return_bytes, cost->return_bytes);
    traffic->coded_ns += cost->encode_ns + cost->decode_ns;
}

void client_codec_tuner_exchange_completed(struct weft_tensor *tensor)
{
    struct client_codec_traffic *traffic = &tensor->session->tensors->codec_tuner.traffic;
    if (!client_tensor_has_codec_choice(tensor) || traffic->running == 0) return;
    if (--traffic->running == 0)
        traffic->busy_ns += weft_now_ns(tensor->session->env) - traffic->busy_since_ns;
}

/* ---- report ---- */

enum weft_status weft_choice_get(struct weft_tensor *tensor, struct weft_choice *choice_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("choice_get", "tensor");
    const struct client_codec_choice *codec_choice = &tensor->codec_choice;
    struct weft_error error = {0};
    if (client_sized_check(choice_out, sizeof *choice_out, "choice_get: choice", &error) < 0)
        return client_error(tensor->session, WEFT_ERR_INVALID, "%s", error.text);
    struct weft_choice choice = {
        .size = sizeof choice,
        .candidates = codec_choice->candidates.count,
        .changes = codec_choice->changes,
        .since_step = codec_choice->since_step,
        .coded_steps = codec_choice->coded_steps,
        .saved_bytes = (int64_t)codec_choice->saved_bytes,
        .saved_ns = (int64_t)codec_choice->saved_ns,
    };
    weft_codec_format(&tensor->options.codec_spec, choice.codec, sizeof choice.codec);
    client_sized_copy_out(&choice, sizeof choice, choice_out);
    return WEFT_OK;
}

/* Rank 0, at the end of the job. */
void client_codec_tuner_report(struct weft_session *session)
{
    const struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    if (codec_tuner->count == 0 || session->rank != ROOT || session->ranks == 1) return;
    weft_log(session->env, WEFT_LOG_INFO, "client",
             "codecs chosen on a link of %.1f Mbit/s and %.1f us, %u revisions:",
             codec_tuner->link.bytes_per_second * 8e-6, codec_tuner->link.latency_ns / 1e3,
             codec_tuner->revision);
    for (uint32_t i = 0; i < codec_tuner->count; i++) {
        const struct weft_tensor *tensor = codec_tuner->tensors[i];
        const struct client_codec_choice *codec_choice = &tensor->codec_choice;
        char codec[WEFT_CODEC_TEXT_BYTES];
        weft_codec_format(&tensor->options.codec_spec, codec, sizeof codec);
        weft_log(session->env, WEFT_LOG_INFO, "client",
                 "  tensor '%.100s': %s since step %llu, changed %u times; coded in %llu steps, %.1f MB and "
                 "%.1f ms of exchange saved",
                 tensor->name, codec, (unsigned long long)codec_choice->since_step, codec_choice->changes,
                 (unsigned long long)codec_choice->coded_steps, codec_choice->saved_bytes / 1e6,
                 codec_choice->saved_ns / 1e6);
    }
}
