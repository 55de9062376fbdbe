/* shard_reference.c - expected results of a fleet, computed simply.
 *
 * T is a recursion over ranks, the optimiser a loop over elements in the order of kernels.h; neither uses the
 * kernels. Codec rounds use codecs and a combiner of the reference's own: the shard's use of them is tested,
 * their arithmetic has its own tests. */
#include <stdlib.h>
#include <string.h>

#include "shard_fleet.h"

struct reference_step {
    float *values, *sum; /* sum: of a dense step */
    void *aggregate[WEFT_CODEC_ROUNDS_MAX];
    size_t aggregate_bytes[WEFT_CODEC_ROUNDS_MAX];
};

struct reference_tensor {
    struct reference_step *steps; /* 0..known */
    uint64_t known, capacity;
    float *velocity;
    struct weft_codec *codec[FLEET_WORKERS_MAX];
    struct weft_combiner *combiner;
};

struct reference {
    struct fleet *fleet;
    struct reference_tensor tensor[FLEET_TENSORS_MAX];
};

uint64_t fleet_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static float unit(uint64_t bits)
{
    return (float)((int64_t)(bits >> 40) - (1 << 23)) / (float)(1 << 23);
}

float fleet_lr(uint64_t step)
{
    return 0.1f / (float)(1 + step % 7);
}

float fleet_weight(const struct fleet *fleet, uint32_t rank, uint64_t step)
{
    if (fleet->options.weighted && rank > 0 && (rank * 7 + step) % 5 == 3) return 0; /* no data */
    return fleet->options.weighted ? 0.5f + (float)((rank * 7 + step) % 5) * 0.3f : 1.0f;
}

bool fleet_clips(const struct fleet *fleet, uint32_t tensor, uint64_t step)
{
    return fleet->options.tensors[tensor].clips &&
           fleet_mix(fleet->options.seed ^ (uint64_t)(tensor + 1) << 32 ^ step) % 4 > 0;
}

float fleet_factor(const struct fleet *fleet, uint64_t step)
{
    return 1.0f / (float)(1 + fleet_mix(fleet->options.seed ^ step << 8) % 5);
}

/* test_shard_clock.c has numbers of its own. */
static bool counts(const struct fleet *fleet, uint32_t tensor)
{
    return fleet_has_clock(fleet, tensor) && fleet->options.copies;
}

void fleet_gradient(const struct fleet *fleet, uint32_t rank, uint32_t tensor, uint64_t step, float *out)
{
    uint64_t base =
        fleet_mix(fleet->options.seed) ^ fleet_mix((uint64_t)rank << 40 ^ (uint64_t)tensor << 32 ^ step);
    uint64_t elems = weft_shape_elems(&fleet->shape[tensor]);
    for (uint64_t i = 0; i < elems && counts(fleet, tensor); i++)
        out[i] = (float)(fleet_mix(base + i) % 8 * (step > 0) * fleet->options.workers);
    for (uint64_t i = 0; i < elems && !counts(fleet, tensor); i++)
        out[i] = fleet_half_round(fleet_dtype(fleet, tensor), unit(fleet_mix(base + i)));
}

void fleet_first_weights(const struct fleet *fleet, uint32_t tensor, float *out)
{
    fleet_gradient(fleet, 0xffff, tensor, 0, out);
}

struct reference *reference_create(struct fleet *fleet)
{
    struct reference *reference = calloc(1, sizeof *reference);
    reference->fleet = fleet;
    for (uint32_t t = 0; t < fleet->options.tensor_count; t++) {
        struct reference_tensor *tensor = &reference->tensor[t];
        uint64_t elems = weft_shape_elems(&fleet->shape[t]);
        tensor->capacity = 64;
        tensor->steps = calloc(tensor->capacity, sizeof *tensor->steps);
        tensor->steps[0].values = calloc(elems, sizeof(float));
        fleet_first_weights(fleet, t, tensor->steps[0].values);
        tensor->velocity = calloc(elems, sizeof(float));
        if (fleet->codec[t].id == WEFT_CODEC_DENSE) continue;
        struct weft_env *env = weft_env_system();
        for (uint32_t w = 0; w < fleet->options.workers; w++)
            weft_codec_create(env, &fleet->codec[t], &fleet->shape[t], &tensor->codec[w]);
        weft_combiner_create(env, &fleet->codec[t], &fleet->shape[t], fleet->options.workers,
                             &tensor->combiner);
    }
    return reference;
}

void reference_free(struct reference *reference)
{
    if (!reference) return;
    for (uint32_t t = 0; t < reference->fleet->options.tensor_count; t++) {
        struct reference_tensor *tensor = &reference->tensor[t];
        for (uint64_t s = 0; s <= tensor->known; s++) {
            free(tensor->steps[s].values);
            free(tensor->steps[s].sum);
            for (int r = 0; r < WEFT_CODEC_ROUNDS_MAX; r++) free(tensor->steps[s].aggregate[r]);
        }
        free(tensor->steps);
        free(tensor->velocity);
        for (uint32_t w = 0; w < FLEET_WORKERS_MAX; w++)
            if (tensor->codec[w]) weft_codec_free(tensor->codec[w]);
        if (tensor->combiner) weft_combiner_free(tensor->combiner);
    }
    free(reference);
}

/* T(a,b) of one element. */
static float tree(float *const *contributions, uint64_t element, uint32_t from, uint32_t to)
{
    if (to - from == 1) return contributions[from][element];
    uint32_t half = 1;
    while (half * 2 < to - from) half *= 2;
    float left = tree(contributions, element, from, from + half),
          right = tree(contributions, element, from + half, to);
    return left + right;
}

static void sgd(const struct weft_optimizer *spec, float lr, float *weights, float *velocity,
                const float *grad, float scale, uint64_t elems)
{
    for (uint64_t i = 0; i < elems; i++) {
        float g = grad[i] * scale;
        if (spec->weight_decay != 0) {
            float decay = spec->weight_decay * weights[i];
            g = g + decay;
        }
        if (spec->momentum != 0) {
            float kept = spec->momentum * velocity[i];
            velocity[i] = kept + g;
            float ahead = spec->momentum * velocity[i];
            g = spec->nesterov ? g + ahead : velocity[i];
        }
        float change = lr * g;
        weights[i] = weights[i] - change;
    }
}

static float scale_of(const struct fleet *fleet, uint32_t t, uint64_t step)
{
    double sum = 0;
    if (fleet->optimizer[t].is_sum) return 1;
    for (uint32_t w = 0; w < fleet->options.workers; w++) sum += (double)fleet_weight(fleet, w, step);
    float weight_sum = (float)sum;
    return (float)(1.0 / (double)weight_sum);
}

static void dense_step(struct reference *reference, uint32_t t, uint64_t step)
{
    struct fleet *fleet = reference->fleet;
    struct reference_tensor *tensor = &reference->tensor[t];
    uint64_t elems = weft_shape_elems(&fleet->shape[t]);
    float *contributions[FLEET_WORKERS_MAX], *sum = calloc(elems, sizeof(float)),
                                             *values = tensor->steps[step].values;
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        contributions[w] = malloc(elems * sizeof(float));
        fleet_gradient(fleet, w, t, step, contributions[w]);
        float weight = counts(fleet, t) ? 1.0f : fleet_weight(fleet, w, step);
        if (weight != 1.0f)
            for (uint64_t i = 0; i < elems; i++) contributions[w][i] *= weight;
    }
    for (uint64_t i = 0; i < elems; i++) sum[i] = tree(contributions, i, 0, fleet->options.workers);
    float scale = counts(fleet, t) ? 1.0f / (float)fleet->options.workers : scale_of(fleet, t, step);
    if (fleet_clips(fleet, t, step)) scale = (float)((double)scale * (double)fleet_factor(fleet, step));
    if (fleet->optimizer[t].kind == WEFT_OPTIMIZER_SGD) {
        memcpy(values, tensor->steps[step - 1].values, elems * sizeof(float));
        sgd(&fleet->optimizer[t], counts(fleet, t) ? 1.0f : fleet_lr(step), values, tensor->velocity, sum,
            scale, elems);
    } else {
        for (uint64_t i = 0; i < elems; i++) values[i] = sum[i] * scale;
    }
    for (uint32_t w = 0; w < fleet->options.workers; w++) free(contributions[w]);
    tensor->steps[step].sum = sum;
}

static void codec_step(struct reference *reference, uint32_t t, uint64_t step)
{
    struct fleet *fleet = reference->fleet;
    struct reference_tensor *tensor = &reference->tensor[t];
    struct reference_step *out = &tensor->steps[step];
    uint64_t elems = weft_shape_elems(&fleet->shape[t]);
    float *grad = malloc(elems * sizeof(float));
    for (uint32_t round = 0; round < weft_codec_rounds(&fleet->codec[t]); round++) {
        uint8_t *bytes = malloc(weft_codec_contribution_bytes_max(&fleet->codec[t], &fleet->shape[t], round));
        weft_combiner_begin(tensor->combiner, round);
        for (uint32_t w = 0; w < fleet->options.workers; w++) {
            size_t length;
            fleet_gradient(fleet, w, t, step, grad);
            weft_codec_encode(tensor->codec[w], round, grad, fleet_weight(fleet, w, step), bytes, &length);
            weft_combiner_add(tensor->combiner, bytes, length);
        }
        free(bytes);
        const void *aggregate;
        weft_combiner_close(tensor->combiner, &aggregate, &out->aggregate_bytes[round]);
        out->aggregate[round] = malloc(out->aggregate_bytes[round]);
        memcpy(out->aggregate[round], aggregate, out->aggregate_bytes[round]);
        for (uint32_t w = 0; w < fleet->options.workers; w++)
            weft_codec_take(tensor->codec[w], round, aggregate, out->aggregate_bytes[round],
                            fleet->options.workers);
    }
    weft_codec_finish(tensor->codec[0], scale_of(fleet, t, step), grad);
    for (uint32_t w = 1; w < fleet->options.workers; w++) {
        float *other = malloc(elems * sizeof(float));
        weft_codec_finish(tensor->codec[w], scale_of(fleet, t, step), other);
        free(other);
    }
    for (uint32_t w = 0; w < fleet->options.workers; w++) weft_codec_commit(tensor->codec[w]);
    memcpy(out->values, tensor->steps[step - 1].values, elems * sizeof(float));
    if (fleet->optimizer[t].kind == WEFT_OPTIMIZER_SGD)
        sgd(&fleet->optimizer[t], fleet_lr(step), out->values, tensor->velocity, grad, 1.0f, elems);
    free(grad);
}

static void reach(struct reference *reference, uint32_t t, uint64_t step)
{
    struct reference_tensor *tensor = &reference->tensor[t];
    while (tensor->known < step) {
        uint64_t next = tensor->known + 1;
        if (next == tensor->capacity) {
            tensor->steps = realloc(tensor->steps, 2 * tensor->capacity * sizeof *tensor->steps);
            memset(tensor->steps + tensor->capacity, 0, tensor->capacity * sizeof *tensor->steps);
            tensor->capacity *= 2;
        }
        tensor->steps[next].values = calloc(weft_shape_elems(&reference->fleet->shape[t]), sizeof(float));
        if (tensor->combiner) codec_step(reference, t, next);
        else dense_step(reference, t, next);
        tensor->known = next;
    }
}

const float *reference_values(struct reference *reference, uint32_t tensor, uint64_t step)
{
    reach(reference, tensor, step);
    return reference->tensor[tensor].steps[step].values;
}

const float *reference_sum(struct reference *reference, uint32_t tensor, uint64_t step)
{
    reach(reference, tensor, step);
    return reference->tensor[tensor].steps[step].sum;
}

const void *reference_aggregate(struct reference *reference, uint32_t tensor, uint64_t step, uint32_t round,
                                size_t *bytes_out)
{
    reach(reference, tensor, step);
    *bytes_out = reference->tensor[tensor].steps[step].aggregate_bytes[round];
    return reference->tensor[tensor].steps[step].aggregate[round];
}
