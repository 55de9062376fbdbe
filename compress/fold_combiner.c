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
#include "compress/powersgd.h"
#include "kernels/kernels.h"

struct fold_combiner {
    struct weft_combiner base;
    struct weft_fold fold;
    float *memory;        /* owned; slots * count_max */
    float *pool[33];      /* buffers the fold does not hold */
    uint32_t pooled, slots;
    size_t count_max;
    enum weft_codec_id format; /* of the elements: powersgd's factors are dense */
    void *narrow;          /* owned; f16 and bf16: the aggregate; else NULL */
    float *basis, *q_scaled; /* owned; powersgd: P^ of round 0, and scratch; else NULL */
    const void *aggregate; /* of the last closed round */
};

/* Elements of one contribution. */
static size_t round_count(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round)
{
    if (spec->id != WEFT_CODEC_POWERSGD) return weft_shape_elems(shape);
    return spec->rank * (round == 0 ? matrix_rows(shape) : matrix_cols(shape));
}

static void begin(struct weft_combiner *combiner)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    for (uint32_t s = 0; s < self->slots; s++)
        self->pool[s] = self->memory + s * self->count_max;
    self->pooled = self->slots;
    weft_fold_init(&self->fold, round_count(&combiner->spec, &combiner->shape, combiner->round));
}

static void give_back(struct fold_combiner *self, float *const freed[32], uint32_t freed_count)
{
    for (uint32_t f = 0; f < freed_count; f++)
        self->pool[self->pooled++] = freed[f];
}

static enum weft_status add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    float *freed[32];
    if (!cast_well_formed(self->format, data, bytes, self->fold.count)) return WEFT_ERR_MALFORMED;
    WEFT_ASSERT(self->pooled > 0);
    float *buffer = self->pool[--self->pooled];
    cast_unpack(self->format, buffer, data, 1.0f, self->fold.count);
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
    if (self->narrow) cast_pack_sum(self->format, self->narrow, sum, count);
    if (self->basis && combiner->round == 0) memcpy(self->basis, sum, count * sizeof *sum);
    self->aggregate = self->narrow ? self->narrow : sum;
    *data_out = self->aggregate;
    *bytes_out = cast_bytes(self->format, count);
}

static void finish(struct weft_combiner *combiner, float scale, float *out)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    if (self->basis)
        powersgd_decode(&combiner->shape, combiner->spec.rank, self->basis, self->aggregate, self->q_scaled, scale, out);
    else
        cast_unpack(self->format, out, self->aggregate, scale, combiner->elems);
}

static void fold_free(struct weft_combiner *combiner)
{
    struct fold_combiner *self = (struct fold_combiner *)combiner;
    weft_free_bytes(combiner->env, self->memory);
    weft_free_bytes(combiner->env, self->narrow);
    weft_free_bytes(combiner->env, self->basis);
    weft_free_bytes(combiner->env, self->q_scaled);
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
    const bool narrows = spec->id == WEFT_CODEC_F16 || spec->id == WEFT_CODEC_BF16;
    const bool low_rank = spec->id == WEFT_CODEC_POWERSGD;
    const size_t first = round_count(spec, shape, 0), last = round_count(spec, shape, weft_codec_rounds(spec) - 1);
    self->slots = weft_fold_slots(ranks);
    self->count_max = first > last ? first : last;
    self->format = low_rank ? WEFT_CODEC_DENSE : spec->id;
    self->memory = weft_alloc_array(env, self->slots * self->count_max, sizeof *self->memory);
    if (narrows) self->narrow = weft_alloc_bytes(env, cast_bytes(spec->id, first));
    if (low_rank) {
        self->basis = weft_alloc_array(env, first, sizeof *self->basis);
        self->q_scaled = weft_alloc_array(env, last, sizeof *self->q_scaled);
    }
    if (self->memory && (!narrows || self->narrow) && (!low_rank || (self->basis && self->q_scaled))) return &self->base;
    fold_free(&self->base);
    return NULL;
}

void weft_codec_sum_to_aggregate(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round, float *sum)
{
    if (spec->id == WEFT_CODEC_POWERSGD && round == 0)
        weft_orthogonalise(sum, matrix_rows(shape), spec->rank, NULL);
}
