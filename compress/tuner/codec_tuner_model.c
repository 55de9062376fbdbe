/* codec_tuner_model.c - time of a step for given choices, and the choices with the shortest step.
 *
 * The recurrences of tuner/codec_tuner.h are sums and maxima, so the time after tensor k is a function of
 * four numbers (engine, link, decoder, engine's own work) of the form max(number + coefficient, ...,
 * constant): a *tail*. Tails of all k are made from the last tensor to the first; then one walk from the
 * first to the last tries each candidate of each tensor in constant time. Passes repeat until none improves.
 *
 * With `steal`, codec work delays everything after it by the same time, so the four numbers are kept
 * relative to that delay, and the delay is added at the end. */
#include <math.h>
#include <string.h>

#include "compress/compress.h"

enum { PASSES_MAX = 8 };
#define TIE_MARGIN 0.005 /* of a step: a smaller gain does not justify a codec */

struct front {
    double engine, link, decoder, work; /* time at which each is free, relative to `delay` */
    double delay;
};

struct tail {
    double engine, link, decoder, work, constant;
};

/* For numbers: costs that are NaN are excluded before. */
static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static double wire_ns(const struct weft_codec_tuner_input *figures, const struct weft_codec_cost *cost)
{
    return cost->wire_bytes / figures->bytes_per_second * 1e9;
}

/* From the last byte sent until all arrived; the link is free meanwhile. */
static double transit_ns(const struct weft_codec_tuner_input *figures, const struct weft_codec_cost *cost)
{
    return cost->hops * figures->latency_ns + cost->return_bytes / figures->bytes_per_second * 1e9;
}

static bool is_usable(const struct weft_codec_cost *cost)
{
    return cost->encode_ns >= 0 && cost->decode_ns >= 0 && cost->wire_bytes >= 0 && cost->hops >= 0 &&
           cost->return_bytes >= 0 &&
           isfinite(cost->encode_ns + cost->decode_ns + cost->wire_bytes + cost->hops + cost->return_bytes);
}

double weft_codec_tuner_exchange_ns(const struct weft_codec_tuner_input *figures,
                                    const struct weft_codec_cost *cost)
{
    return cost->encode_ns + wire_ns(figures, cost) + transit_ns(figures, cost) + cost->decode_ns;
}

static void front_add(struct front *front, const struct weft_codec_tuner_input *figures, double ready,
                 const struct weft_codec_cost *cost)
{
    const double steal = figures->steal * (cost->encode_ns + cost->decode_ns);
    front->work = larger(front->work, ready) + cost->encode_ns + cost->decode_ns - steal;
    front->engine = larger(front->engine, ready) + cost->encode_ns;
    front->link = larger(front->link, front->engine) + wire_ns(figures, cost);
    front->decoder =
        larger(front->decoder, front->link + transit_ns(figures, cost)) + cost->decode_ns - steal;
    front->engine -= steal;
    front->link -= steal;
    front->delay += steal;
}

/* Index of the tensor of exchange i. */
static uint32_t tensor_index_at(const struct weft_codec_tuner_input *figures, uint32_t i)
{
    return figures->order ? figures->order[i] : i;
}

static struct tail tail_end(const struct weft_codec_tuner_input *figures)
{
    return (struct tail){
        .engine = -INFINITY, .link = -INFINITY, .decoder = 0, .work = 0, .constant = figures->compute_ns};
}

/* The tail before a tensor, from the tail after it. */
static struct tail tail_prepend(const struct tail *behind, const struct weft_codec_tuner_input *figures,
                               double ready, const struct weft_codec_cost *cost)
{
    const double steal = figures->steal * (cost->encode_ns + cost->decode_ns);
    struct tail tail;
    tail.decoder = cost->decode_ns + behind->decoder;
    tail.link =
        wire_ns(figures, cost) + larger(behind->link, transit_ns(figures, cost) + tail.decoder);
    tail.engine = cost->encode_ns + larger(behind->engine, tail.link);
    tail.work = cost->encode_ns + cost->decode_ns + behind->work;
    tail.constant = larger(ready + larger(tail.engine, tail.work), behind->constant + steal);
    return tail;
}

static double step_ns_between(const struct front *front, const struct tail *tail)
{
    return front->delay + larger(larger(larger(front->engine + tail->engine, front->link + tail->link),
                                        front->decoder + tail->decoder),
                                 larger(front->work + tail->work, tail->constant));
}

double weft_codec_tuner_step_ns(const struct weft_codec_tuner_input *figures, const uint8_t *choices,
                                uint32_t count)
{
    struct front front = {0};
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t index = tensor_index_at(figures, i);
        const struct weft_codec_tuner_tensor *tensor = &figures->tensors[index];
        const uint8_t choice = choices[index];
        if (choice >= tensor->candidate_count || !is_usable(&tensor->costs[choice])) return INFINITY;
        front_add(&front, figures, tensor->ready_ns, &tensor->costs[choice]);
    }
    const struct tail end = tail_end(figures);
    return step_ns_between(&front, &end);
}

static bool is_allowed(const struct weft_codec_tuner_tensor *tensor, uint8_t refused, uint32_t candidate)
{
    return !(refused >> candidate & 1) && is_usable(&tensor->costs[candidate]);
}

/* One walk: each tensor takes the candidate with which the step is shortest, the others as they are. False:
 * nothing changed. With `limit`, instead the first candidate with which the step takes no longer than that.
 * */
static bool improve_once(const struct weft_codec_tuner_input *figures, const uint8_t *refused,
                         uint8_t *choices, uint32_t count, struct tail *tails, double limit)
{
    struct front front = {0};
    bool changed = false;
    tails[count] = tail_end(figures);
    for (uint32_t i = count; i-- > 0;) {
        const struct weft_codec_tuner_tensor *tensor = &figures->tensors[tensor_index_at(figures, i)];
        tails[i] = tail_prepend(&tails[i + 1], figures, tensor->ready_ns,
                                &tensor->costs[choices[tensor_index_at(figures, i)]]);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t index = tensor_index_at(figures, i);
        const struct weft_codec_tuner_tensor *tensor = &figures->tensors[index];
        const uint8_t old = choices[index];
        double best = step_ns_between(&front, &tails[i]);
        for (uint32_t c = 0; c < tensor->candidate_count && !(limit > 0 && c >= choices[index]); c++) {
            struct front next = front;
            if (c == old || !is_allowed(tensor, refused ? refused[index] : 0, c)) continue;
            front_add(&next, figures, tensor->ready_ns, &tensor->costs[c]);
            const double step = step_ns_between(&next, &tails[i + 1]);
            if (limit > 0 ? step > limit : step >= best * (1 - 1e-9)) continue;
            best = step;
            choices[index] = (uint8_t)c;
        }
        changed |= choices[index] != old;
        front_add(&front, figures, tensor->ready_ns, &tensor->costs[choices[index]]);
    }
    return changed;
}

static double descend(const struct weft_codec_tuner_input *figures, const uint8_t *refused, uint8_t *choices,
                      uint32_t count, struct tail *tails)
{
    for (uint32_t i = 0; i < PASSES_MAX && improve_once(figures, refused, choices, count, tails, 0); i++)
        continue;
    return weft_codec_tuner_step_ns(figures, choices, count);
}

uint32_t weft_codec_tuner_candidate_of_kind(const struct weft_codec_tuner_tensor *tensor, uint32_t kind)
{
    for (uint32_t c = 0; c < tensor->candidate_count; c++)
        if ((tensor->kinds ? tensor->kinds[c] : c) == kind) return c;
    return 0;
}

/* Start of a search: the candidate of kind `kind` for all that have it, or each tensor's own shortest
 * exchange. */
static void choose_start(const struct weft_codec_tuner_input *figures, const uint8_t *refused,
                         uint8_t *choices, uint32_t count, uint32_t kind)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct weft_codec_tuner_tensor *tensor = &figures->tensors[i];
        double best = INFINITY;
        choices[i] = 0;
        for (uint32_t c = 0; c < tensor->candidate_count; c++) {
            if (!is_allowed(tensor, refused ? refused[i] : 0, c)) continue;
            if (kind < WEFT_CODEC_CANDIDATES_MAX && c != weft_codec_tuner_candidate_of_kind(tensor, kind))
                continue;
            const double exchange = weft_codec_tuner_exchange_ns(figures, &tensor->costs[c]);
            if (exchange >= best) continue;
            best = exchange;
            choices[i] = (uint8_t)c;
        }
    }
}

size_t weft_codec_tuner_scratch_bytes(uint32_t count)
{
    return ((size_t)count + 1) * (sizeof(struct tail) + 1);
}

double weft_codec_tuner_improve(const struct weft_codec_tuner_input *figures, const uint8_t *refused,
                                uint8_t *choices, uint32_t count, void *scratch)
{
    struct tail *tails = scratch;
    uint8_t *other = (uint8_t *)(tails + count + 1);
    double best = weft_codec_tuner_step_ns(figures, choices, count);
    if (isfinite(best)) best = descend(figures, refused, choices, count, tails);
    for (uint32_t kind = 0; kind <= WEFT_CODEC_CANDIDATES_MAX; kind++) {
        choose_start(figures, refused, other, count, kind);
        if (!isfinite(weft_codec_tuner_step_ns(figures, other, count)))
            continue; /* dense itself is out: nothing to fall back on */
        const double step = descend(figures, refused, other, count, tails);
        if (step >= best * (1 - 1e-9)) continue;
        best = step;
        memcpy(choices, other, count);
    }
    if (!isfinite(best)) return best;
    improve_once(figures, refused, choices, count, tails, best * (1 + TIE_MARGIN));
    return weft_codec_tuner_step_ns(figures, choices, count);
}
