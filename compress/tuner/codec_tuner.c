/* codec_tuner.c - decisions with hysteresis over the model of codec_tuner_model.c.
 *
 *     first decision   the best choice, at once, if it gains FIRST_GAIN over dense
 *     later decisions  a change must gain `margin` of the step, `confirmations` times in a row (one more
 *                      after each change)
 *     trial            after a change: if the measured step is slower than before by TRIAL_MARGIN twice in a
 *                      row, or by CLEAR_LOSS_MARGIN once, with link and computation unchanged, the previous
 *                      choice is restored, and the new candidates are refused until the link changes
 *     exploration      if the measured step exceeds the model's, the one candidate for all tensors that
 *                      should be faster is tried, each once per link; if it is faster, the replaced
 *                      candidates are refused */
#include <math.h>
#include <string.h>

#include "compress/compress.h"

#define SAME_LINK_FACTOR 1.5 /* bandwidths within this factor: the same link */
#define MODEL_ERROR_FACTOR 1.1    /* measured over modelled time: above it the model misses an effect */
#define FIRST_GAIN 0.1     /* of a step: the first choice has no trial */
#define TRIAL_MARGIN 0.03    /* of a step: above the noise of measurements */
#define CLEAR_LOSS_MARGIN 0.15    /* of a step: one decision suffices */
enum { TRIAL_CONFIRMATIONS = 2 };

struct weft_codec_tuner {
    struct weft_env *env;
    struct weft_codec_tuner_options options;
    uint32_t count, revision;
    bool has_decided;
    /* decisions in a row that confirmed a change */
    uint32_t confirmed;
    uint8_t *choices, *previous, *wanted, *refused;               /* (count,) each, of `memory` */
    double previous_step_ns, previous_bandwidth, previous_compute_ns; /* before the trial; 0: no trial */
    uint32_t slower, faster;                                    /* decisions of the trial, in a row */
    /* the trial is one candidate for all tensors */
    bool exploring;
    uint8_t explored;                                           /* bit mask of kinds tried on this link */
    uint32_t model_errors;           /* decisions in a row with a model error */
    double refused_bandwidth; /* link of `refused` and `explored`; 0: both are empty */
    void *scratch, *memory;   /* owned */
};

void weft_codec_tuner_options_init(struct weft_codec_tuner_options *options)
{
    *options = (struct weft_codec_tuner_options){.margin = 0.02, .confirmations = 3, .revisions_max = 32};
}

enum weft_status weft_codec_tuner_create(struct weft_env *env, const struct weft_codec_tuner_options *options,
                                   uint32_t tensor_count, struct weft_codec_tuner **tuner_out)
{
    struct weft_codec_tuner *tuner = weft_alloc_zero(env, sizeof *tuner);
    if (!tuner) return WEFT_ERR_NO_MEMORY;
    const size_t scratch_bytes = weft_codec_tuner_scratch_bytes(tensor_count);
    tuner->env = env;
    tuner->count = tensor_count;
    tuner->memory = weft_alloc_zero(env, scratch_bytes + (size_t)tensor_count * 4);
    if (!tuner->memory) {
        weft_codec_tuner_free(tuner);
        return WEFT_ERR_NO_MEMORY;
    }
    weft_codec_tuner_options_init(&tuner->options);
    if (options) tuner->options = *options;
    tuner->scratch = tuner->memory;
    tuner->choices = (uint8_t *)tuner->memory + scratch_bytes;
    tuner->previous = tuner->choices + tensor_count;
    tuner->wanted = tuner->previous + tensor_count;
    tuner->refused = tuner->wanted + tensor_count;
    *tuner_out = tuner;
    return WEFT_OK;
}

void weft_codec_tuner_free(struct weft_codec_tuner *tuner)
{
    if (!tuner) return;
    weft_free_bytes(tuner->env, tuner->memory);
    weft_free_bytes(tuner->env, tuner);
}

const uint8_t *weft_codec_tuner_choices(const struct weft_codec_tuner *tuner)
{
    return tuner->choices;
}
uint32_t weft_codec_tuner_revision(const struct weft_codec_tuner *tuner)
{
    return tuner->revision;
}

static bool is_input_valid(const struct weft_codec_tuner *tuner, const struct weft_codec_tuner_input *figures)
{
    if (!(figures->bytes_per_second > 0) || !isfinite(figures->bytes_per_second)) return false;
    if (!(figures->latency_ns >= 0) || !isfinite(figures->latency_ns)) return false;
    if (!(figures->compute_ns >= 0) || !isfinite(figures->compute_ns)) return false;
    if (!(figures->steal >= 0 && figures->steal <= 1)) return false;
    for (uint32_t i = 0; i < tuner->count; i++) {
        const struct weft_codec_tuner_tensor *tensor = &figures->tensors[i];
        if (!isfinite(tensor->ready_ns) || tensor->candidate_count < 1 ||
            tensor->candidate_count > WEFT_CODEC_CANDIDATES_MAX)
            return false;
    }
    return true;
}

static bool is_within(double a, double b, double factor)
{
    return a <= b * factor && b <= a * factor;
}

static void apply_choices(struct weft_codec_tuner *tuner, const uint8_t *choices,
                          const struct weft_codec_tuner_input *figures, bool trial)
{
    memcpy(tuner->previous, tuner->choices, tuner->count);
    memcpy(tuner->choices, choices, tuner->count);
    tuner->revision++;
    tuner->confirmed = tuner->slower = tuner->faster = tuner->model_errors = 0;
    tuner->exploring = false;
    tuner->previous_step_ns = trial ? figures->step_ns : 0;
    tuner->previous_bandwidth = figures->bytes_per_second;
    tuner->previous_compute_ns = figures->compute_ns;
}

/* ---- a change on trial ---- */

static bool is_on_trial(const struct weft_codec_tuner *tuner, const struct weft_codec_tuner_input *figures)
{
    return tuner->previous_step_ns > 0 && figures->step_ns > 0 &&
           is_within(tuner->previous_bandwidth, figures->bytes_per_second, SAME_LINK_FACTOR) &&
           is_within(tuner->previous_compute_ns, figures->compute_ns, 1.2);
}

/* Excludes these candidates of these tensors until the link changes. */
static void refuse_candidates(struct weft_codec_tuner *tuner, const uint8_t *wrong, const uint8_t *right,
                   const struct weft_codec_tuner_input *figures)
{
    for (uint32_t i = 0; i < tuner->count; i++)
        if (wrong[i] != right[i]) tuner->refused[i] |= (uint8_t)(1u << wrong[i]);
    tuner->refused_bandwidth = figures->bytes_per_second;
}

/* True: the previous choice was restored. */
static bool update_trial(struct weft_codec_tuner *tuner, const struct weft_codec_tuner_input *figures)
{
    const bool slower = figures->step_ns > tuner->previous_step_ns * (1 + TRIAL_MARGIN);
    const bool faster = figures->step_ns < tuner->previous_step_ns * (1 - TRIAL_MARGIN);
    const bool plain = figures->step_ns > tuner->previous_step_ns * (1 + CLEAR_LOSS_MARGIN);
    tuner->slower = plain ? TRIAL_CONFIRMATIONS : slower ? tuner->slower + 1 : 0;
    tuner->faster = slower ? 0 : tuner->faster + 1;
    if (tuner->slower >= TRIAL_CONFIRMATIONS) {
        if (!tuner->exploring) refuse_candidates(tuner, tuner->choices, tuner->previous, figures);
        memcpy(tuner->wanted, tuner->previous, tuner->count);
        apply_choices(tuner, tuner->wanted, figures, false);
        return true;
    }
    if (tuner->faster >= TRIAL_CONFIRMATIONS) {
        if (tuner->exploring && faster) refuse_candidates(tuner, tuner->previous, tuner->choices, figures);
        tuner->previous_step_ns = 0;
    }
    return false;
}

/* ---- what to change to ---- */

/* As fast, and only earlier candidates. */
static bool is_simpler(const struct weft_codec_tuner *tuner)
{
    bool differs = false;
    for (uint32_t i = 0; i < tuner->count; i++) {
        if (tuner->wanted[i] > tuner->choices[i]) return false;
        differs |= tuner->wanted[i] < tuner->choices[i];
    }
    return differs;
}

/* Whether the change to the wanted choice saves more than it costs. */
static bool is_worth_change(const struct weft_codec_tuner *tuner, double now, double then)
{
    if (!isfinite(now)) return isfinite(then);
    return now - then > (tuner->has_decided ? tuner->options.margin : FIRST_GAIN) * now || is_simpler(tuner);
}

/* One kind for all tensors that have it and do not exclude it, dense for the others. */
static void choose_for_all(const struct weft_codec_tuner *tuner, const struct weft_codec_tuner_input *figures,
                           uint32_t kind, uint8_t *choices)
{
    for (uint32_t i = 0; i < tuner->count; i++) {
        const uint32_t c = weft_codec_tuner_candidate_of_kind(&figures->tensors[i], kind);
        choices[i] = tuner->refused[i] >> c & 1 ? 0 : (uint8_t)c;
    }
}

/* Sets `wanted` to a candidate for all tensors whose modelled time is below the measured time. */
static bool find_exploration(struct weft_codec_tuner *tuner, const struct weft_codec_tuner_input *figures,
                             double now)
{
    double best = figures->step_ns * (1 - 2 * TRIAL_MARGIN);
    uint32_t found = WEFT_CODEC_CANDIDATES_MAX;
    tuner->model_errors = figures->step_ns > now * MODEL_ERROR_FACTOR ? tuner->model_errors + 1 : 0;
    if (tuner->model_errors < TRIAL_CONFIRMATIONS) return false;
    for (uint32_t c = 0; c < WEFT_CODEC_CANDIDATES_MAX; c++) {
        choose_for_all(tuner, figures, c, tuner->wanted);
        const double step = weft_codec_tuner_step_ns(figures, tuner->wanted, tuner->count);
        if (tuner->explored >> c & 1 || step >= best ||
            memcmp(tuner->wanted, tuner->choices, tuner->count) == 0)
            continue;
        best = step;
        found = c;
    }
    if (found == WEFT_CODEC_CANDIDATES_MAX) return false;
    choose_for_all(tuner, figures, found, tuner->wanted);
    tuner->explored |= (uint8_t)(1u << found);
    tuner->refused_bandwidth = figures->bytes_per_second;
    return true;
}

static void clear_refused_on_new_link(struct weft_codec_tuner *tuner,
                                      const struct weft_codec_tuner_input *figures)
{
    if (tuner->refused_bandwidth == 0 ||
        is_within(tuner->refused_bandwidth, figures->bytes_per_second, SAME_LINK_FACTOR))
        return;
    memset(tuner->refused, 0, tuner->count);
    tuner->explored = 0;
    tuner->refused_bandwidth = 0;
}

enum weft_codec_decision weft_codec_tuner_update(struct weft_codec_tuner *tuner,
                                                 const struct weft_codec_tuner_input *figures)
{
    if (!is_input_valid(tuner, figures) || tuner->revision >= tuner->options.revisions_max)
        return WEFT_CODEC_DECISION_KEEP;
    if (is_on_trial(tuner, figures)) {
        if (update_trial(tuner, figures)) return WEFT_CODEC_DECISION_REVERT;
        if (tuner->previous_step_ns > 0) return WEFT_CODEC_DECISION_KEEP; /* the trial continues */
    }
    clear_refused_on_new_link(tuner, figures);
    const double now = weft_codec_tuner_step_ns(figures, tuner->choices, tuner->count);
    memcpy(tuner->wanted, tuner->choices, tuner->count);
    const double then =
        weft_codec_tuner_improve(figures, tuner->refused, tuner->wanted, tuner->count, tuner->scratch);
    tuner->confirmed = is_worth_change(tuner, now, then) ? tuner->confirmed + 1 : 0;
    const uint32_t needed = tuner->has_decided ? tuner->options.confirmations + tuner->revision : 1;
    tuner->has_decided = true;
    if (tuner->confirmed >= needed && memcmp(tuner->wanted, tuner->choices, tuner->count) != 0) {
        apply_choices(tuner, tuner->wanted, figures, true);
        return WEFT_CODEC_DECISION_CHANGE;
    }
    if (tuner->confirmed > 0 || !find_exploration(tuner, figures, now)) return WEFT_CODEC_DECISION_KEEP;
    apply_choices(tuner, tuner->wanted, figures, true);
    tuner->exploring = true;
    return WEFT_CODEC_DECISION_CHANGE;
}
