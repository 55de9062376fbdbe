/* judge.c - the model of judge_model.c asked again and again, and slow to change its mind.
 *
 *     first look    the best choice, at once, if it is clearly better than dense
 *     later looks   a change must gain `margin` of the step, `looks` times in a row (one more after each
 *                   revision)
 *     on trial      after a change the measured step is held against the one before: slower by TRIAL, twice in
 *                   a row, or by PLAIN, once, with the link and the computation as they were, means that the model is wrong about
 *                   these candidates here. The choice goes back, and what was new in it is refused until the
 *                   link changes
 *     exploring     where the measured step is much longer than the model's, the model misses something about
 *                   this mix of candidates; then the one candidate for all tensors that should be shorter than
 *                   what is measured is tried, each once on a link. If it is shorter, what it took the place of
 *                   is refused instead */
#include <math.h>
#include <string.h>

#include "compress/compress.h"

#define SAME_LINK 1.5 /* bandwidths within this factor are the same link */
#define MISSED 1.1    /* measured over modelled, from which on the model is not believed */
#define FIRST 0.1     /* of a step: no trial shows whether the first choice was right */
#define TRIAL 0.03    /* of a step: what clocks tell apart */
#define PLAIN 0.15    /* of a step: so much slower that one look tells */
enum { TRIAL_LOOKS = 2 };

struct weft_judge {
    struct weft_env *env;
    struct weft_judge_options options;
    uint32_t count, revision;
    bool looked;
    uint32_t patience;                                          /* looks in a row that wanted a change */
    uint8_t *choices, *before, *wanted, *refused;               /* (count,) each, of `memory` */
    double before_step_ns, before_bandwidth, before_compute_ns; /* of the trial; 0: no trial */
    uint32_t slower, faster;                                    /* looks of the trial, in a row */
    bool exploring;                                             /* it is one of a candidate for all */
    uint8_t explored;                                           /* bit mask of those tried on this link */
    uint32_t doubt;           /* looks in a row at which the model missed something */
    double refused_bandwidth; /* of the link that `refused` and `explored` are about; 0: they are empty */
    void *scratch, *memory;   /* owned */
};

void weft_judge_options_init(struct weft_judge_options *options)
{
    *options = (struct weft_judge_options){.margin = 0.02, .looks = 3, .revisions_max = 32};
}

enum weft_status weft_judge_create(struct weft_env *env, const struct weft_judge_options *options,
                                   uint32_t tensor_count, struct weft_judge **judge_out)
{
    struct weft_judge *judge = weft_alloc_zero(env, sizeof *judge);
    if (!judge) return WEFT_ERR_NO_MEMORY;
    const size_t scratch_bytes = weft_judge_scratch_bytes(tensor_count);
    judge->env = env;
    judge->count = tensor_count;
    judge->memory = weft_alloc_zero(env, scratch_bytes + (size_t)tensor_count * 4);
    if (!judge->memory) {
        weft_judge_free(judge);
        return WEFT_ERR_NO_MEMORY;
    }
    weft_judge_options_init(&judge->options);
    if (options) judge->options = *options;
    judge->scratch = judge->memory;
    judge->choices = (uint8_t *)judge->memory + scratch_bytes;
    judge->before = judge->choices + tensor_count;
    judge->wanted = judge->before + tensor_count;
    judge->refused = judge->wanted + tensor_count;
    *judge_out = judge;
    return WEFT_OK;
}

void weft_judge_free(struct weft_judge *judge)
{
    if (!judge) return;
    weft_free_bytes(judge->env, judge->memory);
    weft_free_bytes(judge->env, judge);
}

const uint8_t *weft_judge_choices(const struct weft_judge *judge)
{
    return judge->choices;
}
uint32_t weft_judge_revision(const struct weft_judge *judge)
{
    return judge->revision;
}

static bool sane(const struct weft_judge *judge, const struct weft_judge_figures *figures)
{
    if (!(figures->bytes_per_second > 0) || !isfinite(figures->bytes_per_second)) return false;
    if (!(figures->latency_ns >= 0) || !isfinite(figures->latency_ns)) return false;
    if (!(figures->compute_ns >= 0) || !isfinite(figures->compute_ns)) return false;
    if (!(figures->steal >= 0 && figures->steal <= 1)) return false;
    for (uint32_t i = 0; i < judge->count; i++) {
        const struct weft_judge_tensor *tensor = &figures->tensors[i];
        if (!isfinite(tensor->ready_ns) || tensor->candidate_count < 1 ||
            tensor->candidate_count > WEFT_JUDGE_CANDIDATES_MAX)
            return false;
    }
    return true;
}

static bool within(double a, double b, double factor)
{
    return a <= b * factor && b <= a * factor;
}

static void revise(struct weft_judge *judge, const uint8_t *choices, const struct weft_judge_figures *figures,
                   bool trial)
{
    memcpy(judge->before, judge->choices, judge->count);
    memcpy(judge->choices, choices, judge->count);
    judge->revision++;
    judge->patience = judge->slower = judge->faster = judge->doubt = 0;
    judge->exploring = false;
    judge->before_step_ns = trial ? figures->step_ns : 0;
    judge->before_bandwidth = figures->bytes_per_second;
    judge->before_compute_ns = figures->compute_ns;
}

/* ---- a change on trial ---- */

static bool on_trial(const struct weft_judge *judge, const struct weft_judge_figures *figures)
{
    return judge->before_step_ns > 0 && figures->step_ns > 0 &&
           within(judge->before_bandwidth, figures->bytes_per_second, SAME_LINK) &&
           within(judge->before_compute_ns, figures->compute_ns, 1.2);
}

/* Not these candidates for these tensors, as long as the link is what it is. */
static void refuse(struct weft_judge *judge, const uint8_t *wrong, const uint8_t *right,
                   const struct weft_judge_figures *figures)
{
    for (uint32_t i = 0; i < judge->count; i++)
        if (wrong[i] != right[i]) judge->refused[i] |= (uint8_t)(1u << wrong[i]);
    judge->refused_bandwidth = figures->bytes_per_second;
}

/* True: the choice has gone back. */
static bool judge_trial(struct weft_judge *judge, const struct weft_judge_figures *figures)
{
    const bool slower = figures->step_ns > judge->before_step_ns * (1 + TRIAL);
    const bool faster = figures->step_ns < judge->before_step_ns * (1 - TRIAL);
    const bool plain = figures->step_ns > judge->before_step_ns * (1 + PLAIN);
    judge->slower = plain ? TRIAL_LOOKS : slower ? judge->slower + 1 : 0;
    judge->faster = slower ? 0 : judge->faster + 1;
    if (judge->slower >= TRIAL_LOOKS) {
        if (!judge->exploring) refuse(judge, judge->choices, judge->before, figures);
        memcpy(judge->wanted, judge->before, judge->count);
        revise(judge, judge->wanted, figures, false);
        return true;
    }
    if (judge->faster >= TRIAL_LOOKS) {
        if (judge->exploring && faster) refuse(judge, judge->before, judge->choices, figures);
        judge->before_step_ns = 0;
    }
    return false;
}

/* ---- what to change to ---- */

/* As fast, and nothing but candidates that stand earlier. */
static bool plainer(const struct weft_judge *judge)
{
    bool differs = false;
    for (uint32_t i = 0; i < judge->count; i++) {
        if (judge->wanted[i] > judge->choices[i]) return false;
        differs |= judge->wanted[i] < judge->choices[i];
    }
    return differs;
}

/* Is judge->wanted worth having? */
static bool pays(const struct weft_judge *judge, double now, double then)
{
    if (!isfinite(now)) return isfinite(then);
    return now - then > (judge->looked ? judge->options.margin : FIRST) * now || plainer(judge);
}

/* The candidate of one kind for all that have it and may take it, dense for the others. */
static void take_for_all(const struct weft_judge *judge, const struct weft_judge_figures *figures, uint32_t kind,
                         uint8_t *choices)
{
    for (uint32_t i = 0; i < judge->count; i++) {
        const uint32_t c = weft_judge_of_kind(&figures->tensors[i], kind);
        choices[i] = judge->refused[i] >> c & 1 ? 0 : (uint8_t)c;
    }
}

/* Puts a candidate for all tensors into judge->wanted that should take less than what is measured. */
static bool explore(struct weft_judge *judge, const struct weft_judge_figures *figures, double now)
{
    double best = figures->step_ns * (1 - 2 * TRIAL);
    uint32_t found = WEFT_JUDGE_CANDIDATES_MAX;
    judge->doubt = figures->step_ns > now * MISSED ? judge->doubt + 1 : 0;
    if (judge->doubt < TRIAL_LOOKS) return false;
    for (uint32_t c = 0; c < WEFT_JUDGE_CANDIDATES_MAX; c++) {
        take_for_all(judge, figures, c, judge->wanted);
        const double step = weft_judge_step_ns(figures, judge->wanted, judge->count);
        if (judge->explored >> c & 1 || step >= best ||
            memcmp(judge->wanted, judge->choices, judge->count) == 0)
            continue;
        best = step;
        found = c;
    }
    if (found == WEFT_JUDGE_CANDIDATES_MAX) return false;
    take_for_all(judge, figures, found, judge->wanted);
    judge->explored |= (uint8_t)(1u << found);
    judge->refused_bandwidth = figures->bytes_per_second;
    return true;
}

static void forget_other_link(struct weft_judge *judge, const struct weft_judge_figures *figures)
{
    if (judge->refused_bandwidth == 0 ||
        within(judge->refused_bandwidth, figures->bytes_per_second, SAME_LINK))
        return;
    memset(judge->refused, 0, judge->count);
    judge->explored = 0;
    judge->refused_bandwidth = 0;
}

enum weft_verdict weft_judge_look(struct weft_judge *judge, const struct weft_judge_figures *figures)
{
    if (!sane(judge, figures) || judge->revision >= judge->options.revisions_max) return WEFT_VERDICT_KEEP;
    if (on_trial(judge, figures)) {
        if (judge_trial(judge, figures)) return WEFT_VERDICT_REVERT;
        if (judge->before_step_ns > 0) return WEFT_VERDICT_KEEP; /* it is still going on */
    }
    forget_other_link(judge, figures);
    const double now = weft_judge_step_ns(figures, judge->choices, judge->count);
    memcpy(judge->wanted, judge->choices, judge->count);
    const double then =
        weft_judge_improve(figures, judge->refused, judge->wanted, judge->count, judge->scratch);
    judge->patience = pays(judge, now, then) ? judge->patience + 1 : 0;
    const uint32_t needed = judge->looked ? judge->options.looks + judge->revision : 1;
    judge->looked = true;
    if (judge->patience >= needed && memcmp(judge->wanted, judge->choices, judge->count) != 0) {
        revise(judge, judge->wanted, figures, true);
        return WEFT_VERDICT_CHANGE;
    }
    if (judge->patience > 0 || !explore(judge, figures, now)) return WEFT_VERDICT_KEEP;
    revise(judge, judge->wanted, figures, true);
    judge->exploring = true;
    return WEFT_VERDICT_CHANGE;
}
