/* topk_codec.c - the worker's side of exact top-k sparsification with error feedback.
 *
 *     encode   p = g + e;  send the k largest |p| (ties to the smaller index);  e' = p, zero where sent
 *     take     the union of all workers' indices, values summed
 *     finish   out = the sparse sum * scale, zero elsewhere
 *     commit   e = e'
 *
 * g = grad * scale; and with the options of deep gradient compression (Lin et al., ICLR 2018):
 *
 *     clip c           first g is shortened to c / sqrt(ranks) if its norm is larger: the sum of as many
 *                      independent
 *                      gradients then has about norm c. Local, before anything is added to it
 *     momentum m       u' = m u + g;  p = u' + e              (momentum correction: e already contains
 *                                     momentum)
 *     nesterov         u' = m (u + g);  p = (u' + g) + e
 *     masking          u' = 0 where sent (momentum factor masking): old momentum is not sent later
 *     warmup_steps     k falls from a quarter of the elements to `ratio` (spec.c)
 *
 * The result contains the momentum, so the optimiser must have none. A tensor that is sent dense (small) has
 * no momentum here: its optimiser needs it.
 *
 * Values are moved, never changed: sent bits plus residual bits are the bits of p. k = clamp(ceil(n * ratio),
 * 1, n), always exactly k, also when p is zero everywhere, so all sizes are fixed. Values of p or u' that are
 * not finite, or from 2^120 on, are refused before any state changes.
 *
 * p is written once; that pass lists all elements at or above a threshold as candidates. The threshold is
 * a guess a little below the last step's k-th magnitude (in the first step: from a sample of p). When the
 * list is full the threshold is raised to the k-th largest seen so far. When at least k elements were
 * listed, the k largest are among them and are selected exactly from that short list; otherwise the select
 * reads all of p. Both ways select exactly the k largest: the guess changes time, never bits, and is not
 * saved. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/sparse.h"
#include "kernels/kernels.h"

/* Elements per call of the kernel. Large tensors go in parts whose result does not fit the caches, which
 * the kernel then uses non-temporal stores: p is not read again in this step. */
enum { BLOCK = 4096, LARGE_BLOCK = 1 << 19, LARGE_ELEMS = 1 << 22, SAMPLES = 2 * BLOCK };

/* How far below the last k-th magnitude the guess lies, in units of its bit pattern (2^23 is a factor of
 * two). */
enum { MARGIN_MIN = 1 << 16, MARGIN_FIRST = 1 << 20, MARGIN_MAX = 1 << 23 };

struct topk_codec {
    struct weft_codec base;
    size_t k, k_max;           /* of this step; of any */
    uint64_t steps;            /* committed so far */
    float momentum;            /* 0: none, and no velocity */
    float *velocity, *velocity_shadow; /* owned (elems,): u, and u' of the open step; commit swaps them */
    float *incoming;           /* owned (block,): u' + g, for Nesterov's form; else NULL */
    uint32_t *indices;         /* owned (k_max,) */
    float *values;             /* owned (k_max,) */
    uint8_t *sent;             /* owned; this step's contribution, kept for a retry */
    void *work;                /* owned; scratch of the select, later the aggregate */
    size_t work_bytes, aggregate_bytes;
    uint32_t *candidates;      /* owned (candidate_room,) */
    float *candidate_values;   /* owned (candidate_room,) */
    size_t candidate_room;     /* about 4 k_max */
    size_t block;
    uint32_t floor_bits, margin, last_kth; /* of the guess; floor_bits 0: none yet */
};

/* What is added to the residual at element i: g, or with momentum what the velocity makes of it. */
static float incoming_at(const struct topk_codec *self, const float *grad, float grad_scale, size_t i)
{
    const float g = grad[i] * grad_scale;
    if (!self->velocity) return g;
    if (self->base.spec.nesterov) return (self->velocity[i] + g) * self->momentum + g;
    return self->velocity[i] * self->momentum + g;
}

/* A threshold that somewhat more than k elements pass, from evenly spaced samples of p. */
static uint32_t sampled_floor(struct topk_codec *self, const float *grad, float grad_scale)
{
    const size_t elems = self->base.elems;
    const size_t samples = elems < SAMPLES ? elems : SAMPLES, stride = elems / samples;
    float *sample = self->candidate_values; /* it holds at least SAMPLES */
    uint32_t *picked = self->candidates;
    for (size_t i = 0; i < samples; i++)
        sample[i] = incoming_at(self, grad, grad_scale, i * stride) + self->base.residual[i * stride];
    const size_t wanted = (size_t)((double)samples * (double)self->k / (double)elems * 1.5) + 8;
    return weft_select_among(picked, sample, samples, wanted < samples ? wanted : samples);
}

/* The list is full: k elements at or above its k-th largest are known, so nothing below can be among the k
 * largest of all. Keeps the k and raises the threshold. Returns how many are left. */
static size_t raise_floor(struct topk_codec *self, size_t found)
{
    self->floor_bits = weft_select_among(self->indices, self->candidate_values, found, self->k);
    for (size_t i = 0; i < self->k; i++) {
        const uint32_t from = self->indices[i]; /* rising, so no entry is read after it was written over */
        self->candidates[i] = self->candidates[from];
        self->candidate_values[i] = self->candidate_values[from];
    }
    return self->k;
}

/* u' of one block; returns what is to be added to the residual there. *max_bits is raised to the largest
 * |u'|. */
static const float *add_momentum(struct topk_codec *self, const float *grad, float *grad_scale, size_t at,
                                 size_t count, uint32_t *max_bits)
{
    const struct weft_kernels *kernels = weft_kernels();
    float *next = self->velocity_shadow + at;
    uint32_t bits;
    if (self->base.spec.nesterov) {
        kernels->scale_f32(self->incoming, grad + at, *grad_scale, count);
        kernels->sum_f32(next, self->velocity + at, self->incoming, count);
        kernels->scale_f32(next, next, self->momentum, count);
        bits = kernels->max_abs_bits_f32(next, count);
        kernels->sum_f32(self->incoming, next, self->incoming, count);
    } else {
        kernels->scale_f32(next, grad + at, *grad_scale, count);
        bits = kernels->scale_add_f32(next, self->velocity + at, self->momentum, next, count);
    }
    if (bits > *max_bits) *max_bits = bits;
    *grad_scale = 1.0f;
    return self->base.spec.nesterov ? self->incoming : next;
}

/* p into shadow and the candidates into their list; returns max_abs_bits of p and u'. */
static uint32_t add_residual(struct topk_codec *self, const float *grad, float grad_scale, size_t *found)
{
    const struct weft_kernels *kernels = weft_kernels();
    const size_t elems = self->base.elems;
    uint32_t max_bits = 0;
    *found = 0;
    for (size_t at = 0; at < elems; at += self->block) {
        const size_t part = elems - at < self->block ? elems - at : self->block;
        const float *incoming = grad + at;
        float factor = grad_scale;
        if (self->velocity) incoming = add_momentum(self, grad, &factor, at, part, &max_bits);
        if (*found + part > self->candidate_room) *found = raise_floor(self, *found);
        *found += kernels->scale_add_above_f32(
            self->base.shadow + at, incoming, factor, self->base.residual + at, part, self->floor_bits,
            (uint32_t)at, self->candidates + *found, self->candidate_values + *found, &max_bits);
    }
    return max_bits;
}

/* The indices and values of the k largest of p, and the guess for the next step. */
static void select_top(struct topk_codec *self, size_t found)
{
    uint32_t kth = UINT32_MAX;
    if (found >= self->k) {
        kth = weft_select_among(self->indices, self->candidate_values, found, self->k);
        for (size_t i = 0; i < self->k; i++) {
            const uint32_t from = self->indices[i];
            self->indices[i] = self->candidates[from];
            self->values[i] = self->candidate_values[from];
        }
        if (found > 2 * self->k && self->margin > MARGIN_MIN) self->margin /= 2;
    } else {
        weft_select_top(self->indices, self->base.shadow, self->base.elems, self->k, self->work);
        for (size_t i = 0; i < self->k; i++) {
            uint32_t bits;
            self->values[i] = self->base.shadow[self->indices[i]];
            memcpy(&bits, &self->values[i], sizeof bits);
            bits &= 0x7fffffffu;
            kth = bits < kth ? bits : kth;
        }
        if (self->margin < MARGIN_MAX) self->margin *= 2;
    }
    /* Early on the residual grows, and the k-th magnitude with it: go on as from the last step to this
     * one. */
    const int64_t growth = self->last_kth ? (int64_t)kth - self->last_kth : 0;
    const int64_t guess = (int64_t)kth + (growth < MARGIN_MAX ? growth : MARGIN_MAX) - self->margin;
    self->floor_bits = guess < 1 ? 1 : guess > 0x7f7fffff ? 0x7f7fffff : (uint32_t)guess;
    self->last_kth = kth;
}

/* The scale that shortens the gradient to its share of `clip`; false: it is not finite. */
static bool clipped_scale(const struct topk_codec *self, const float *grad, float *grad_scale)
{
    const uint32_t ranks = self->base.ranks ? self->base.ranks : 1;
    const double limit = self->base.spec.clip / sqrt((double)ranks);
    const double norm =
        sqrt(weft_kernels()->dot_f32(grad, grad, self->base.elems)) * fabs((double)*grad_scale);
    if (!isfinite(norm)) return false;
    if (norm > limit) *grad_scale = (float)((double)*grad_scale * (limit / norm));
    return true;
}

/* One line of memory each, in a vector that was written past the caches: they are asked for some way
 * ahead. */
static void clear_sent(float *values, const uint32_t *indices, size_t count)
{
    enum { AHEAD = 32 };
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&values[indices[i + AHEAD < count ? i + AHEAD : i]], 1);
        values[indices[i]] = 0.0f;
    }
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    size_t found;
    self->k = topk_count_at(&codec->spec, codec->elems, self->steps);
    if (codec->spec.clip > 0 && !clipped_scale(self, grad, &grad_scale)) return WEFT_ERR_INVALID;
    if (self->floor_bits == 0) self->floor_bits = sampled_floor(self, grad, grad_scale);
    if (add_residual(self, grad, grad_scale, &found) >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    select_top(self, found);
    clear_sent(self->base.shadow, self->indices, self->k);
    if (self->velocity && codec->spec.masking) clear_sent(self->velocity_shadow, self->indices, self->k);
    const size_t sent_bytes =
        sparse_encode(self->sent, self->indices, self->values, self->k, codec->elems);
    return codec_send(codec, round, self->sent, sent_bytes, out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    /* both below 2^32; others may be in another stage */
    const uint64_t together = (uint64_t)ranks * self->k_max;
    uint64_t count;
    if (bytes > self->work_bytes) return WEFT_ERR_MALFORMED;
    WEFT_TRY(sparse_check(aggregate, bytes, codec->elems, together, &count));
    memcpy(self->work, aggregate, bytes);
    self->aggregate_bytes = bytes;
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    sparse_scatter(self->work, self->aggregate_bytes, codec->elems, scale, out);
    return WEFT_OK;
}

static void commit(struct weft_codec *codec)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    codec_swap(&self->velocity, &self->velocity_shadow);
    self->steps++;
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    state->steps = &self->steps;
    if (!self->velocity) return;
    state->values[1] = self->velocity;
    state->counts[1] = codec->elems;
    state->residual_count = 2;
}

static void topk_free(struct weft_codec *codec)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    void *const all[] = {self->indices,  self->values,          self->sent,
                         self->work,     self->candidates,      self->candidate_values,
                         self->velocity, self->velocity_shadow, self->incoming};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(codec->env, all[i]);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops topk_ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = topk_free,
};

static bool velocity_open(struct topk_codec *self, struct weft_env *env, size_t elems)
{
    self->velocity = weft_alloc_zero(env, elems * sizeof *self->velocity);
    self->velocity_shadow = weft_alloc_array(env, elems, sizeof *self->velocity_shadow);
    self->incoming = weft_alloc_array(env, self->block, sizeof *self->incoming);
    return self->velocity && self->velocity_shadow && self->incoming;
}

struct weft_codec *topk_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                     const struct weft_shape *shape)
{
    const size_t elems = weft_shape_elems(shape), k = topk_count_max(spec, elems);
    struct topk_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &topk_ops, .env = env};
    self->k = self->k_max = k;
    self->momentum = (float)spec->momentum;
    const bool remembers = self->momentum > 0;
    /* The number of ranks is not known here: memory for an aggregate of all elements. That is also
     * more than the select's scratch of one uint32 per element. */
    self->work_bytes = weft_index_bytes_max(elems, elems) + elems * sizeof(float);
    self->indices = weft_alloc_array(env, k, sizeof *self->indices);
    self->values = weft_alloc_array(env, k, sizeof *self->values);
    self->margin = MARGIN_FIRST;
    /* u' is read again while it is in the cache */
    self->block = elems < LARGE_ELEMS || remembers ? BLOCK : LARGE_BLOCK;
    self->candidate_room = 4 * k + 2 * self->block;
    self->candidates = weft_alloc_array(env, self->candidate_room, sizeof *self->candidates);
    self->candidate_values = weft_alloc_array(env, self->candidate_room, sizeof *self->candidate_values);
    self->sent = weft_alloc_bytes(env, weft_codec_contribution_bytes_max(spec, shape, 0));
    self->work = weft_alloc_bytes(env, self->work_bytes);
    if (!codec_residual_open(&self->base, elems) || (remembers && !velocity_open(self, env, elems)) ||
        !self->indices || !self->values || !self->sent || !self->work || !self->candidates ||
        !self->candidate_values) {
        weft_codec_free(&self->base);
        return NULL;
    }
    return &self->base;
}
