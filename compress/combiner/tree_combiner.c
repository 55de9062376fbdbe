/* tree_combiner.c - combines vectors: widen to f32, sum by T, round once.
 *
 *     contribution --unpack--> f32 buffer --weft_tree_reduce_add--> partials ... sum --> aggregate bytes
 *
 *   dense, powersgd   the aggregate is the f32 sum (powersgd, even rounds: orthogonalised)
 *   f16, bf16         the f32 sum is rounded once to the 16-bit type; half the bytes back, one rounding
 *   sign, e4m3, e5m2  the same, to bf16
 *   randomk           round 0: the largest step number; round 1: the f32 sum of k values
 *
 * weft_tree_reduce_buffer_count(ranks) buffers are allocated at create and circulate between the pool and
 * the tree. */
#include <string.h>

#include "compress/codec.h"
#include "compress/lowbit.h"
#include "compress/powersgd.h"
#include "compress/randomk.h"
#include "kernels/kernels.h"

struct tree_combiner {
    struct weft_combiner base;
    struct weft_tree_reduce reduce;
    float *memory;        /* owned; slots * count_max */
    float *pool[33];      /* buffers that the tree does not hold */
    uint32_t pooled, slots;
    size_t count_max;
    enum weft_codec_id format; /* of a contribution's elements: powersgd's factors and randomk's values are
                                * dense */
    enum weft_codec_id reply;  /* of the aggregate's */
    void *packed;          /* owned; where the reply is 16-bit: the aggregate; else NULL */
    uint32_t *indices;     /* owned (k,); randomk: elements of the open step; else NULL */
    uint64_t step;         /* randomk: of the open step */
    float *basis, *q_scaled; /* owned; powersgd: P^ of the last even round, and scratch; else NULL */
    const void *aggregate; /* of the last closed round */
    const float *sum;      /* of the last closed round; borrowed from memory until the next add */
};

/* Elements of one contribution. */
static size_t round_count(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round)
{
    if (spec->id == WEFT_CODEC_RANDOMK) return topk_count(spec, weft_shape_elems(shape));
    if (spec->id != WEFT_CODEC_POWERSGD) return weft_shape_elems(shape);
    return powersgd_count(spec, shape, round);
}

static void begin(struct weft_combiner *combiner)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    for (uint32_t s = 0; s < self->slots; s++)
        self->pool[s] = self->memory + s * self->count_max;
    self->pooled = self->slots;
    weft_tree_reduce_init(&self->reduce, round_count(&combiner->spec, &combiner->shape, combiner->round));
}

static void buffers_release(struct tree_combiner *self, float *const freed[32], uint32_t freed_count)
{
    for (uint32_t f = 0; f < freed_count; f++)
        self->pool[self->pooled++] = freed[f];
}

/* randomk, round 0. */
static enum weft_status add_step(struct tree_combiner *self, const void *data, size_t bytes)
{
    uint64_t step;
    if (bytes != sizeof step) return WEFT_ERR_MALFORMED;
    memcpy(&step, data, sizeof step);
    if (self->base.added == 0 || step > self->step) self->step = step;
    return WEFT_OK;
}

static enum weft_status add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    float *freed[32];
    if (self->indices && combiner->round == 0) return add_step(self, data, bytes);
    if (is_lowbit(self->format) ? !lowbit_well_formed(self->format, data, bytes, self->reduce.count)
                                : !cast_well_formed(self->format, data, bytes, self->reduce.count))
        return WEFT_ERR_MALFORMED;
    WEFT_ASSERT(self->pooled > 0);
    float *buffer = self->pool[--self->pooled];
    if (is_lowbit(self->format)) lowbit_unpack(self->format, buffer, data, self->reduce.count);
    else cast_unpack(self->format, buffer, data, 1.0f, self->reduce.count);
    buffers_release(self, freed, weft_tree_reduce_add(&self->reduce, buffer, freed));
    return WEFT_OK;
}

static void tree_close(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    const size_t count = self->reduce.count;
    float *freed[32];
    uint32_t freed_count;
    if (self->indices && combiner->round == 0) {
        randomk_indices(self->indices, combiner->elems, count, combiner->spec.seed, self->step);
        *data_out = &self->step;
        *bytes_out = sizeof self->step;
        return;
    }
    float *sum = weft_tree_reduce_finish(&self->reduce, freed, &freed_count);
    buffers_release(self, freed, freed_count);
    weft_codec_sum_to_aggregate(&combiner->spec, &combiner->shape, combiner->round, sum);
    if (self->packed) cast_pack_sum(self->reply, self->packed, sum, count);
    if (self->basis && combiner->round % 2 == 0) memcpy(self->basis, sum, count * sizeof *sum);
    self->sum = sum;
    self->aggregate = self->packed ? self->packed : sum;
    *data_out = self->aggregate;
    *bytes_out = cast_bytes(self->reply, count);
}

static void finish(struct weft_combiner *combiner, float scale, float *out)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    if (self->basis)
        powersgd_decode(&combiner->spec, &combiner->shape, self->basis, self->aggregate, self->q_scaled,
                        scale, out);
    else if (self->indices)
        randomk_spread(out, combiner->elems, self->indices, self->aggregate, self->reduce.count, scale);
    else
        cast_unpack(self->reply, out, self->aggregate, scale, combiner->elems);
}

/* ---- a second combiner: what finish needs of the earlier rounds, then the aggregate ----
 *
 *   powersgd   the basis        randomk   the step        others   none */

static size_t head_bytes(const struct weft_combiner *combiner)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    if (self->indices) return sizeof self->step;
    if (!self->basis) return 0;
    return powersgd_count(&combiner->spec, &combiner->shape, 0) * sizeof *self->basis;
}

static size_t last_count(const struct weft_combiner *combiner)
{
    return round_count(&combiner->spec, &combiner->shape, combiner->rounds - 1);
}

static size_t step_bytes(const struct weft_combiner *combiner)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    return head_bytes(combiner) + cast_bytes(self->reply, last_count(combiner));
}

static size_t step_bytes_max(const struct weft_combiner *combiner, uint32_t ranks)
{
    (void)ranks;
    return step_bytes(combiner);
}

static size_t step_save(const struct weft_combiner *combiner, uint8_t *out)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    const size_t head = head_bytes(combiner);
    if (self->indices) memcpy(out, &self->step, head);
    else if (self->basis) memcpy(out, self->basis, head);
    memcpy(out + head, self->aggregate, step_bytes(combiner) - head);
    return step_bytes(combiner);
}

static enum weft_status step_check(const struct weft_combiner *combiner, const uint8_t *data, size_t bytes)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    const size_t head = head_bytes(combiner);
    const bool fits = bytes == step_bytes(combiner) &&
                      cast_well_formed(self->reply, data + head, bytes - head, last_count(combiner));
    return fits ? WEFT_OK : WEFT_ERR_MALFORMED;
}

static void step_load(struct weft_combiner *combiner, const uint8_t *data, size_t bytes,
                      const void **data_out, size_t *bytes_out)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    const size_t head = head_bytes(combiner), count = last_count(combiner);
    void *const aggregate = self->packed ? self->packed : self->memory;
    weft_tree_reduce_init(&self->reduce, count);
    if (self->indices) {
        memcpy(&self->step, data, head);
        randomk_indices(self->indices, combiner->elems, count, combiner->spec.seed, self->step);
    } else if (self->basis) {
        memcpy(self->basis, data, head);
    }
    memcpy(aggregate, data + head, bytes - head);
    self->aggregate = aggregate;
    *data_out = aggregate;
    *bytes_out = bytes - head;
}

static void tree_free(struct weft_combiner *combiner)
{
    struct tree_combiner *self = (struct tree_combiner *)combiner;
    weft_free_bytes(combiner->env, self->memory);
    weft_free_bytes(combiner->env, self->packed);
    weft_free_bytes(combiner->env, self->indices);
    weft_free_bytes(combiner->env, self->basis);
    weft_free_bytes(combiner->env, self->q_scaled);
    weft_free_bytes(combiner->env, self);
}

static const struct combiner_ops tree_ops = {
    .begin = begin,
    .add = add,
    .close = tree_close,
    .finish = finish,
    .step_bytes_max = step_bytes_max,
    .step_save = step_save,
    .step_check = step_check,
    .step_load = step_load,
    .free = tree_free,
};

struct weft_combiner *tree_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                           const struct weft_shape *shape, uint32_t ranks)
{
    struct tree_combiner *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base.ops = &tree_ops;
    self->base.env = env;
    const bool low_rank = spec->id == WEFT_CODEC_POWERSGD, is_randomk = spec->id == WEFT_CODEC_RANDOMK;
    const size_t first = round_count(spec, shape, 0),
                 last = round_count(spec, shape, weft_codec_rounds(spec) - 1);
    self->slots = weft_tree_reduce_buffer_count(ranks);
    self->count_max = first > last ? first : last;
    self->format = low_rank || is_randomk ? WEFT_CODEC_DENSE : spec->id;
    self->reply = is_lowbit(spec->id) ? WEFT_CODEC_BF16 : self->format;
    const bool packs = self->reply != WEFT_CODEC_DENSE;
    self->memory = weft_alloc_array(env, self->slots * self->count_max, sizeof *self->memory);
    if (packs) self->packed = weft_alloc_bytes(env, cast_bytes(self->reply, first));
    if (is_randomk) self->indices = weft_alloc_array(env, last, sizeof *self->indices);
    if (low_rank) {
        self->basis = weft_alloc_array(env, first, sizeof *self->basis);
        self->q_scaled = weft_alloc_array(env, last, sizeof *self->q_scaled);
    }
    if (self->memory && (!packs || self->packed) && (!is_randomk || self->indices) &&
        (!low_rank || (self->basis && self->q_scaled)))
        return &self->base;
    tree_free(&self->base);
    return NULL;
}

uint32_t weft_combiner_peak(const struct weft_combiner *combiner)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    WEFT_ASSERT(combiner->spec.id == WEFT_CODEC_F16 && combiner->closed_count == combiner->rounds);
    return weft_kernels()->max_abs_bits_f32(self->sum, combiner->elems);
}

void weft_combiner_repack(struct weft_combiner *combiner, uint32_t peak_bits, const void **data_out,
                          size_t *bytes_out)
{
    const struct tree_combiner *self = (const struct tree_combiner *)combiner;
    WEFT_ASSERT(combiner->spec.id == WEFT_CODEC_F16 && combiner->closed_count == combiner->rounds);
    cast_pack_peak(self->reply, self->packed, self->sum, peak_bits, combiner->elems);
    *data_out = self->aggregate;
    *bytes_out = cast_bytes(self->reply, combiner->elems);
}

void weft_codec_sum_to_aggregate(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                 uint32_t round, float *sum)
{
    if (spec->id != WEFT_CODEC_POWERSGD || round % 2 != 0) return;
    const size_t rows = matrix_rows(spec, shape), matrices = matrix_count(spec, shape);
    for (size_t b = 0; b < matrices; b++)
        weft_orthogonalise(sum + b * spec->rank * rows, rows, spec->rank, NULL);
}
