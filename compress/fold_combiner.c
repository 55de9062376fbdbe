/* fold_combiner.c - combining vectors: widen to f32, add by the tree T, round once.
 *
 *     contribution --unpack--> f32 buffer --weft_fold_add--> partials ... finish --> sum --> aggregate bytes
 *
 *   dense, powersgd   the aggregate is the f32 sum (powersgd round 0: orthogonalised)
 *   f16, bf16         the f32 sum is rounded once to the 16-bit type; half the bytes back, one rounding
 *
 * weft_fold_slots(ranks) buffers are taken at create and circulate between the pool and the fold. */
#include <string.h>

#include "compress/codec.h"
#include "kernels/kernels.h"

struct fold_combiner {
    struct weft_combiner base;
    struct weft_fold fold;
    float *memory;        /* owned; slots * count_max */
    float *pool[33];      /* buffers the fold does not hold */
    uint32_t pooled, slots;
    size_t count_max;
    void *narrow;         /* owned; f16 and bf16: the aggregate; else NULL */
    const void *aggregate; /* of the last closed round */
};

static size_t round_count(const struct weft_combiner *combiner)
{
    return combiner->elems;
}

static void begin(struct weft_combiner *combiner)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    for (uint32_t s = 0; s < self->slots; s++)
        self->pool[s] = self->memory + s * self->count_max;
    self->pooled = self->slots;
    weft_fold_init(&self->fold, round_count(combiner));
}

static void give_back(struct fold_combiner *self, float *const freed[32], uint32_t freed_count)
{
    for (uint32_t f = 0; f < freed_count; f++)
        self->pool[self->pooled++] = freed[f];
}

static enum weft_status add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    const enum weft_codec_id format = combiner->spec.id;
    float *freed[32];
    if (!cast_well_formed(format, data, bytes, self->fold.count)) return WEFT_ERR_MALFORMED;
    WEFT_ASSERT(self->pooled > 0);
    float *buffer = self->pool[--self->pooled];
    cast_unpack(format, buffer, data, 1.0f, self->fold.count);
    give_back(self, freed, weft_fold_add(&self->fold, buffer, freed));
    return WEFT_OK;
}

static void fold_close(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    const size_t count = self->fold.count;
    float *freed[32];
    uint32_t freed_count;
    float *sum = weft_fold_finish(&self->fold, freed, &freed_count);
    give_back(self, freed, freed_count);
    weft_codec_sum_to_aggregate(&combiner->spec, &combiner->shape, combiner->round, sum);
    if (self->narrow) cast_pack_sum(combiner->spec.id, self->narrow, sum, count);
    self->aggregate = self->narrow ? self->narrow : sum;
    *data_out = self->aggregate;
    *bytes_out = weft_codec_aggregate_bytes_max(&combiner->spec, &combiner->shape, combiner->round, combiner->ranks);
}

static void finish(struct weft_combiner *combiner, float scale, float *out)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    cast_unpack(combiner->spec.id, out, self->aggregate, scale, combiner->elems);
}

static void fold_free(struct weft_combiner *combiner)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    weft_free_bytes(combiner->env, self->memory);
    weft_free_bytes(combiner->env, self->narrow);
    weft_free_bytes(combiner->env, self);
}

static const struct combiner_ops fold_ops = {
    .begin = begin,
    .add = add,
    .close = fold_close,
    .finish = finish,
    .free = fold_free,
};

struct weft_combiner *fold_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                           const struct weft_shape *shape, uint32_t ranks)
{
    struct fold_combiner *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base.ops = &fold_ops;
    self->base.env = env;
    self->slots = weft_fold_slots(ranks);
    self->count_max = weft_shape_elems(shape);
    self->memory = weft_alloc_array(env, self->slots * self->count_max, sizeof *self->memory);
    const bool narrows = spec->id == WEFT_CODEC_F16 || spec->id == WEFT_CODEC_BF16;
    if (narrows) self->narrow = weft_alloc_bytes(env, cast_bytes(spec->id, self->count_max));
    if (self->memory && (self->narrow || !narrows)) return &self->base;
    fold_free(&self->base);
    return NULL;
}

void weft_codec_sum_to_aggregate(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round, float *sum)
{
    if (spec->id == WEFT_CODEC_POWERSGD && round == 0)
        weft_orthogonalise(sum, matrix_rows(shape), spec->rank, NULL);
}
