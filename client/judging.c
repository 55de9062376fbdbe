/* judging.c - see judging.h: when the judge looks, how its word travels, and what it takes to change a
 * tensor's codec. */
#include "client/call.h"
#include "client/judging.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/session.h"
#include "client/sized.h"
#include "client/tensor.h"

#define TELLING_BYTES 1048576.0 /* of a step, from which on its traffic says something about the link */
#define ROOT 0u

/* What a rank tells rank 0 at a look: these, then the moment of readiness of each tensor. Doubles, sent as
 * 64-bit words. */
enum { WORD_STEP_NS, WORD_COMPUTE_NS, WORD_RATE, WORD_READY };

/* ---- memory ---- */

enum weft_status client_judging_add(struct weft_session *session, struct weft_tensor *tensor)
{
    struct client_judging *judging = &session->judging;
    if (judging->count == judging->room) {
        const uint32_t room = judging->room ? 2 * judging->room : 16;
        struct weft_tensor **more = weft_alloc_array(session->env, room, sizeof(*more));
        if (!more) return WEFT_ERR_NO_MEMORY;
        if (judging->count) memcpy(more, judging->tensors, judging->count * sizeof(*more));
        weft_free_bytes(session->env, judging->tensors);
        judging->tensors = more;
        judging->room = room;
    }
    judging->tensors[judging->count++] = tensor;
    judging->measured = false;
    return WEFT_OK;
}

static void forget(struct weft_session *session)
{
    struct client_judging *judging = &session->judging;
    void *const owned[] = {judging->mine, judging->all, judging->verdict, judging->figures, judging->order};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) weft_free_bytes(session->env, owned[i]);
    weft_judge_free(judging->judge);
    judging->mine = judging->all = NULL;
    judging->verdict = NULL;
    judging->figures = NULL;
    judging->order = NULL;
    judging->judge = NULL;
}

void client_judging_remove(struct weft_session *session, const struct weft_tensor *tensor)
{
    struct client_judging *judging = &session->judging;
    uint32_t at = 0;
    while (at < judging->count && judging->tensors[at] != tensor) at++;
    if (at == judging->count) return;
    judging->count--;
    memmove(&judging->tensors[at], &judging->tensors[at + 1], (judging->count - at) * sizeof(*judging->tensors));
    judging->measured = false;
}

void client_judging_free(struct weft_session *session)
{
    forget(session);
    weft_free_bytes(session->env, session->judging.tensors);
}

static enum weft_status take_memory(struct weft_session *session)
{
    struct client_judging *judging = &session->judging;
    struct weft_env *env = session->env;
    forget(session);
    judging->words = WORD_READY + judging->count;
    judging->mine = weft_alloc_array(env, judging->words, sizeof(*judging->mine));
    judging->all = weft_alloc_array(env, judging->words * session->ranks, sizeof(*judging->all));
    judging->verdict =
        weft_alloc_array(env, CLIENT_VERDICT_CHOICES + (size_t)judging->count, sizeof(*judging->verdict));
    judging->figures = weft_alloc_array(env, judging->count, sizeof(*judging->figures));
    judging->order = weft_alloc_array(env, judging->count, sizeof(*judging->order));
    if (!judging->mine || !judging->all || !judging->verdict || !judging->figures || !judging->order)
        return WEFT_ERR_NO_MEMORY;
    return session->rank == ROOT ? weft_judge_create(env, NULL, judging->count, &judging->judge) : WEFT_OK;
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

/* This rank's, of the steps since the last look; then they are forgotten. */
static void fill_mine(struct client_judging *judging)
{
    judging->mine[WORD_STEP_NS] = median(judging->step_ns, judging->step_count);
    judging->mine[WORD_COMPUTE_NS] = median(judging->compute_ns, judging->step_count);
    judging->mine[WORD_RATE] = judging->rate_max; /* what disturbs a step only makes it slower */
    for (uint32_t i = 0; i < judging->count; i++) {
        struct client_choosing *choosing = &judging->tensors[i]->choosing;
        judging->mine[WORD_READY + i] =
            choosing->ready_count ? choosing->ready_ns / choosing->ready_count : 0;
        choosing->ready_ns = 0;
        choosing->ready_count = 0;
    }
    judging->step_count = 0;
    judging->rate_max = 0;
}

/* Of all ranks: an exchange begins when the last one is ready, and the one that waited for nobody has
 * measured the link. */
static double largest(const struct client_judging *judging, uint32_t ranks, size_t word)
{
    double found = 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        found = fmax(found, judging->all[rank * judging->words + word]);
    return isfinite(found) ? found : 0;
}

/* Tensors are pushed in much the same order every step, so this is nearly sorted from the second time on. */
static void sort_by_readiness(struct client_judging *judging)
{
    for (uint32_t i = 1; i < judging->count; i++) {
        const uint32_t index = judging->order[i];
        uint32_t k = i;
        for (; k > 0 && judging->figures[judging->order[k - 1]].ready_ns > judging->figures[index].ready_ns;
             k--)
            judging->order[k] = judging->order[k - 1];
        judging->order[k] = index;
    }
}

void client_judging_take_bandwidth(struct client_judging *judging, double bytes_per_second)
{
    judging->bytes_per_second = judging->tabled_bandwidth
                                    ? bytes_per_second
                                    : sqrt(judging->bytes_per_second * bytes_per_second);
    judging->tabled_bandwidth = false;
}

/* Every rank, from the same figures: what the steps said about the link. */
static void take_rate(struct weft_session *session)
{
    struct client_judging *judging = &session->judging;
    const double rate = largest(judging, session->ranks, WORD_RATE);
    if (rate <= 0) return;
    client_judging_take_bandwidth(judging, rate);
    judging->probed_ns = weft_now_ns(session->env);
}

/* What the link can carry in a hundredth of the time since it was last measured, if that says anything about
 * it. */
static int64_t probe_bytes(const struct weft_session *session)
{
    const struct client_judging *judging = &session->judging;
    const double spent_ns = 0.01 * (double)(weft_now_ns(session->env) - judging->probed_ns);
    const double share = 2 * ((double)session->ranks - 1) / (double)session->ranks;
    const double bytes = (spent_ns - 4 * judging->latency_ns) * judging->bytes_per_second * 1e-9 / share;
    if (bytes < (double)CLIENT_PROBE_LEAST) return 0;
    return bytes < 4.0 * (double)CLIENT_PROBE_LEAST ? (int64_t)bytes & ~(int64_t)63
                                                    : 4 * (int64_t)CLIENT_PROBE_LEAST;
}

/* Rank 0. `gathered`: there are figures of steps; before the first one nothing is known to be hidden. */
static void look(struct weft_session *session, bool gathered)
{
    struct client_judging *judging = &session->judging;
    for (uint32_t i = 0; i < judging->count; i++) {
        const struct client_choosing *choosing = &judging->tensors[i]->choosing;
        judging->figures[i] = (struct weft_judge_tensor){
            .ready_ns = gathered ? largest(judging, session->ranks, WORD_READY + i) : 0,
            .candidate_count = choosing->candidates.count,
            .costs = choosing->costs,
            .kinds = choosing->candidates.kinds,
        };
        if (!gathered) judging->order[i] = i;
    }
    sort_by_readiness(judging);
    const struct weft_judge_figures figures = {
        .latency_ns = judging->latency_ns,
        .bytes_per_second = judging->bytes_per_second,
        .compute_ns = gathered ? largest(judging, session->ranks, WORD_COMPUTE_NS) : 0,
        .steal = judging->steal,
        .step_ns = gathered ? largest(judging, session->ranks, WORD_STEP_NS) : 0,
        .tensors = judging->figures,
        .order = judging->order,
    };
    const enum weft_verdict verdict = weft_judge_look(judging->judge, &figures);
    weft_log(
        session->env, WEFT_LOG_DEBUG, "client",
        "judge: link %.0f MB/s, %.1f us; compute %.3f ms, step %.3f ms measured, %.3f ms by the model; %s",
        figures.bytes_per_second / 1e6, figures.latency_ns / 1e3, figures.compute_ns / 1e6,
        figures.step_ns / 1e6,
        weft_judge_step_ns(&figures, weft_judge_choices(judging->judge), judging->count) / 1e6,
        verdict == WEFT_VERDICT_KEEP     ? "kept"
        : verdict == WEFT_VERDICT_CHANGE ? "changed"
                                         : "taken back");
    bool differs =
        false; /* not the judge's verdict: after a late declaration it begins anew, from all dense */
    judging->verdict[CLIENT_VERDICT_PROBE] =
        gathered && (judging->tabled_latency || largest(judging, session->ranks, WORD_RATE) == 0)
            ? probe_bytes(session)
            : 0;
    for (uint32_t i = 0; i < judging->count; i++) {
        const uint8_t choice = weft_judge_choices(judging->judge)[i];
        judging->verdict[CLIENT_VERDICT_CHOICES + i] = choice;
        differs |= choice != judging->tensors[i]->choosing.chosen;
    }
    judging->verdict[CLIENT_VERDICT_REVISION] = (int64_t)judging->revision + differs;
}

/* ---- changing ---- */

/* What the codec in use still owes goes into tensor->carry, beside what is there from an earlier change. */
static enum weft_status keep_debt(struct weft_tensor *tensor)
{
    struct weft_env *env = tensor->session->env;
    if (!tensor->codec || weft_codec_residual_norm(tensor->codec) == 0) return WEFT_OK;
    float *owed = weft_alloc_array(env, tensor->elems, sizeof *owed);
    if (!owed) return WEFT_ERR_NO_MEMORY;
    weft_codec_residual_copy(tensor->codec, owed);
    if (tensor->carry) weft_kernels()->sum_f32(owed, owed, tensor->carry, tensor->elems);
    weft_free_bytes(env, tensor->carry);
    tensor->carry = owed;
    tensor->carry_ranks = tensor->session->ranks;
    return WEFT_OK;
}

static enum weft_status change_codec(struct weft_tensor *tensor, uint8_t choice, uint64_t step)
{
    struct weft_session *session = tensor->session;
    struct client_choosing *choosing = &tensor->choosing;
    const struct weft_codec_spec *spec = &choosing->candidates.specs[choice];
    struct weft_codec *codec = NULL;
    char from[WEFT_CODEC_TEXT_BYTES], to[WEFT_CODEC_TEXT_BYTES];
    if (spec->id != WEFT_CODEC_DENSE) {
        WEFT_TRY(weft_codec_create(session->env, spec, &tensor->shape, &codec));
        weft_codec_set_ranks(codec, session->ranks);
        weft_codec_set_stream(codec, tensor->draws, session->rank);
    }
    const enum weft_status status = keep_debt(tensor);
    if (status < 0) {
        weft_codec_free(codec);
        return status;
    }
    weft_codec_format(&tensor->codec_spec, from, sizeof from);
    weft_codec_format(spec, to, sizeof to);
    weft_codec_free(tensor->codec);
    tensor->codec = codec;
    tensor->codec_spec = *spec;
    if (choice == choosing->chosen) return WEFT_OK; /* only made anew */
    weft_log(session->env, WEFT_LOG_INFO, "client",
             "judge: tensor '%.100s' goes from %s to %s with step %llu", tensor->name, from, to,
             (unsigned long long)step);
    choosing->chosen = choice;
    choosing->changes++;
    choosing->since_step = step;
    return WEFT_OK;
}

/* The published choices are in force from `step`. `anew`: every codec is made anew, by all ranks alike: of those that come together
 * some may be new and some have rested, and what codecs count and draw by must be the same everywhere. What they owe is kept. */
static enum weft_status apply(struct weft_session *session, uint64_t step, bool anew)
{
    struct client_judging *judging = &session->judging;
    if (!anew && judging->verdict[CLIENT_VERDICT_REVISION] == (int64_t)judging->revision) return WEFT_OK;
    for (uint32_t i = 0; i < judging->count; i++) {
        struct weft_tensor *tensor = judging->tensors[i];
        const int64_t choice = judging->verdict[CLIENT_VERDICT_CHOICES + i];
        enum weft_status status = WEFT_OK;
        if (choice < 0 || choice >= (int64_t)tensor->choosing.candidates.count) {
            client_fail(session, WEFT_ERR_MALFORMED, true,
                        "rank %u: rank 0 chose a codec that tensor '%s' does not have", session->rank,
                        tensor->name);
            return client_usable(session);
        }
        if (choice != tensor->choosing.chosen || (anew && tensor->codec)) status = change_codec(tensor, (uint8_t)choice, step);
        if (status < 0) {
            client_fail(session, status, true, "rank %u has no memory for another codec of tensor '%s'",
                        session->rank, tensor->name);
            return client_usable(session);
        }
    }
    judging->revision = (uint32_t)judging->verdict[CLIENT_VERDICT_REVISION];
    judging->revised_step = step;
    judging->step_count = 0;
    return WEFT_OK;
}

/* ---- the rhythm ---- */

static enum weft_status publish(struct weft_session *session)
{
    struct client_judging *judging = &session->judging;
    const struct client_plain call = client_plain_broadcast(judging->verdict, CLIENT_VERDICT_CHOICES + (uint64_t)judging->count, WEFT_I64, ROOT);
    return client_call_within(session, WEFT_COLL_LABEL_CODEC_CHOICE, &call, &judging->publish);
}

static enum weft_status first(struct weft_session *session, uint64_t step)
{
    struct client_judging *judging = &session->judging;
    const bool anew = judging->epoch != session->epoch;
    enum weft_status status = take_memory(session);
    judging->phase = CLIENT_JUDGING_QUIET;
    judging->step_count = 0;
    judging->rate_max = 0;
    if (status == WEFT_OK) status = client_judging_measure(session);
    if (status == WEFT_OK) {
        if (session->rank == ROOT) look(session, false);
        status = publish(session);
        if (status >= 0)
            status = client_request_finish(session, &judging->publish, "publishing the choice of codecs");
    }
    if (status == WEFT_ERR_NO_MEMORY) /* the others count on this rank */
        client_fail(session, status, true, "rank %u has no memory to measure codecs", session->rank);
    if (status < 0) return client_usable(session) < 0 ? client_usable(session) : status;
    WEFT_TRY(apply(session, step, anew));
    judging->measured = true;
    judging->epoch = session->epoch;
    return WEFT_OK;
}

/* Whoever is left alone exchanges nothing, so nothing is to be coded. */
static enum weft_status alone(struct weft_session *session, uint64_t step)
{
    struct client_judging *judging = &session->judging;
    judging->measured = false;
    for (uint32_t i = 0; i < judging->count; i++) {
        const enum weft_status status = judging->tensors[i]->codec ? change_codec(judging->tensors[i], 0, step) : WEFT_OK;
        if (status == WEFT_OK) continue;
        client_fail(session, status, true, "rank %u has no memory for what tensor '%s' owes", session->rank, judging->tensors[i]->name);
        return client_usable(session);
    }
    return WEFT_OK;
}

/* Rank 0 has asked for it, from all ranks alike. */
static enum weft_status probe(struct weft_session *session)
{
    const int64_t bytes = session->judging.verdict[CLIENT_VERDICT_PROBE];
    if (bytes < (int64_t)CLIENT_PROBE_LEAST || bytes > (int64_t)CLIENT_PROBE_MOST) return WEFT_OK;
    const enum weft_status status = client_judging_probe(session, (size_t)bytes);
    if (status == WEFT_ERR_NO_MEMORY) /* the others count on this rank */
        client_fail(session, status, true, "rank %u has no memory to measure the link", session->rank);
    return status;
}

enum weft_status client_judging_begin(struct weft_session *session, uint64_t step)
{
    struct client_judging *judging = &session->judging;
    if (judging->count == 0) return WEFT_OK;
    judging->traffic = (struct client_traffic){0};
    if (session->ranks == 1) return alone(session, step);
    if (!judging->measured || judging->epoch != session->epoch) return first(session, step);
    switch (judging->phase) {
    case CLIENT_JUDGING_QUIET:
        if (step % CLIENT_LOOK_STEPS != 0) return WEFT_OK;
        fill_mine(judging);
        judging->phase = CLIENT_JUDGING_GATHERS;
        const struct client_plain call = {.kind = WEFT_COLL_ALL_GATHER, .in = judging->mine, .out = judging->all, .count = judging->words,
                                          .dtype = WEFT_I64, .op = WEFT_SUM};
        enum weft_status status = client_call_within(session, WEFT_COLL_LABEL_CODEC_CHOICE, &call, &judging->gather);
        return status < 0 ? status : WEFT_OK;
    case CLIENT_JUDGING_GATHERS:
        take_rate(session);
        if (session->rank == ROOT) look(session, true);
        judging->phase = CLIENT_JUDGING_PUBLISHES;
        status = publish(session);
        return status < 0 ? status : WEFT_OK;
    default:
        judging->phase = CLIENT_JUDGING_QUIET;
        WEFT_TRY(apply(session, step, false));
        return probe(session);
    }
}

/* What the step's exchanges say about the link, without the work of codecs that went on meanwhile. */
static void note_rate(struct client_judging *judging)
{
    const struct client_traffic *traffic = &judging->traffic;
    const double ns = (double)traffic->busy_ns - traffic->coded_ns;
    const double bytes = traffic->moved_bytes + traffic->return_bytes; /* the last one's: it hides behind nothing */
    if (bytes < TELLING_BYTES || ns < 0.5 * (double)traffic->busy_ns ||
        ns < 4 * judging->latency_ns)
        return;
    judging->rate_max = fmax(judging->rate_max, bytes / ns * 1e9);
}

void client_judging_end(struct weft_session *session, uint64_t step_ns, uint64_t exposed_ns)
{
    struct client_judging *judging = &session->judging;
    if (judging->count == 0 || !judging->measured) return;
    const struct weft_judge_figures link = {.latency_ns = judging->latency_ns,
                                            .bytes_per_second = judging->bytes_per_second};
    note_rate(judging);
    if (session->step.number > judging->revised_step && judging->step_count < CLIENT_LOOK_STEPS) {
        judging->step_ns[judging->step_count] = (double)step_ns;
        judging->compute_ns[judging->step_count++] =
            step_ns > exposed_ns ? (double)(step_ns - exposed_ns) : 0;
    }
    for (uint32_t i = 0; i < judging->count; i++) {
        struct client_choosing *choosing = &judging->tensors[i]->choosing;
        const struct weft_judge_cost *cost = &choosing->costs[choosing->chosen];
        if (choosing->chosen == 0 || judging->tensors[i]->last_step != session->step.number) continue;
        choosing->coded_steps++;
        choosing->saved_bytes += choosing->costs[0].wire_bytes - cost->wire_bytes;
        choosing->saved_ns +=
            weft_judge_exchange_ns(&link, &choosing->costs[0]) - weft_judge_exchange_ns(&link, cost);
    }
}

void client_judging_ready(struct weft_tensor *tensor)
{
    const struct client_step *step = &tensor->session->step;
    const uint64_t since_ns = weft_now_ns(tensor->session->env) - step->began_ns,
                   exposed_ns = atomic_load(&step->exposed_ns);
    tensor->choosing.ready_ns += since_ns > exposed_ns ? (double)(since_ns - exposed_ns) : 0;
    tensor->choosing.ready_count++;
}

/* ---- engine ---- */

void client_judging_posted(struct weft_tensor *tensor)
{
    struct client_traffic *traffic = &tensor->session->judging.traffic;
    const struct weft_judge_cost *cost = &tensor->choosing.costs[tensor->choosing.chosen];
    if (!client_tensor_judged(tensor)) return;
    if (traffic->under_way++ == 0) traffic->busy_since_ns = weft_now_ns(tensor->session->env);
    traffic->moved_bytes += cost->wire_bytes;
    traffic->return_bytes = fmax(traffic->return_bytes, cost->return_bytes);
    traffic->coded_ns += cost->encode_ns + cost->decode_ns;
}

void client_judging_done(struct weft_tensor *tensor)
{
    struct client_traffic *traffic = &tensor->session->judging.traffic;
    if (!client_tensor_judged(tensor) || traffic->under_way == 0) return;
    if (--traffic->under_way == 0)
        traffic->busy_ns += weft_now_ns(tensor->session->env) - traffic->busy_since_ns;
}

/* ---- the report ---- */

enum weft_status weft_choice_get(struct weft_tensor *tensor, struct weft_choice *choice_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_missing("choice_get", "tensor");
    const struct client_choosing *choosing = &tensor->choosing;
    struct weft_error error = {0};
    if (client_sized_check(choice_out, sizeof *choice_out, "choice_get: choice", &error) < 0)
        return client_error(tensor->session, WEFT_ERR_INVALID, "%s", error.text);
    struct weft_choice choice = {
        .size = sizeof choice,
        .candidates = choosing->candidates.count,
        .changes = choosing->changes,
        .since_step = choosing->since_step,
        .coded_steps = choosing->coded_steps,
        .saved_bytes = (int64_t)choosing->saved_bytes,
        .saved_ns = (int64_t)choosing->saved_ns,
    };
    weft_codec_format(&tensor->codec_spec, choice.codec, sizeof choice.codec);
    client_sized_give(&choice, sizeof choice, choice_out);
    return WEFT_OK;
}

/* At the end of the job, from rank 0, for tensors that had a choice. */
void client_judging_report(struct weft_session *session)
{
    const struct client_judging *judging = &session->judging;
    if (judging->count == 0 || session->rank != ROOT || session->ranks == 1) return;
    weft_log(session->env, WEFT_LOG_INFO, "client",
             "codecs chosen on a link of %.1f Mbit/s and %.1f us, %u revisions:",
             judging->bytes_per_second * 8e-6, judging->latency_ns / 1e3, judging->revision);
    for (uint32_t i = 0; i < judging->count; i++) {
        const struct weft_tensor *tensor = judging->tensors[i];
        const struct client_choosing *choosing = &tensor->choosing;
        char codec[WEFT_CODEC_TEXT_BYTES];
        weft_codec_format(&tensor->codec_spec, codec, sizeof codec);
        weft_log(session->env, WEFT_LOG_INFO, "client",
                 "  tensor '%.100s': %s since step %llu, changed %u times; coded in %llu steps, %.1f MB and "
                 "%.1f ms of exchange saved",
                 tensor->name, codec, (unsigned long long)choosing->since_step, choosing->changes,
                 (unsigned long long)choosing->coded_steps, choosing->saved_bytes / 1e6,
                 choosing->saved_ns / 1e6);
    }
}
