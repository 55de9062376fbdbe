/* integer_combiner.c - combines int8 and int4: the maximum of exponents, then the exact sum of codes.
 *
 * Neither depends on the order of contributions, so here "the same bytes for the same contributions" needs
 * no tree. The sums are kept in 32 bits: ranks * 127 fits up to 16 million ranks, more are refused at
 * create. */
#include <string.h>

#include "compress/codec.h"
#include "compress/quantise.h"
#include "kernels/kernels.h"

struct integer_combiner {
    struct weft_combiner base;
    uint8_t *exponents; /* owned (blocks,) */
    int8_t *codes;      /* owned (elems,): one contribution, checked before it is added */
    int32_t *sums;      /* owned (elems,) */
    void *aggregate;    /* owned: the sums as bytes */
};

static void begin(struct weft_combiner *combiner)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    if (combiner->round == 0) memset(self->exponents, 0, quantise_blocks(combiner->elems));
    else memset(self->sums, 0, combiner->elems * sizeof *self->sums);
}

static enum weft_status add_exponents(struct integer_combiner *self, const uint8_t *exponents, size_t bytes)
{
    const size_t blocks = quantise_blocks(self->base.elems);
    bool fine = bytes == blocks;
    for (size_t b = 0; b < blocks && fine; b++)
        fine = exponents[b] <= QUANTISE_EXPONENT_MAX;
    if (!fine) return WEFT_ERR_MALFORMED;
    for (size_t b = 0; b < blocks; b++)
        self->exponents[b] = exponents[b] > self->exponents[b] ? exponents[b] : self->exponents[b];
    return WEFT_OK;
}

static enum weft_status add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    if (combiner->round == 0) return add_exponents(self, data, bytes);
    WEFT_TRY(quantise_unpack(combiner->spec.id, self->codes, data, bytes, combiner->elems));
    weft_kernels()->add_i8_i32(self->sums, self->codes, combiner->elems);
    return WEFT_OK;
}

static void integer_close(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    *bytes_out =
        quantise_aggregate_bytes(combiner->spec.id, combiner->elems, combiner->round, combiner->ranks);
    *data_out = self->exponents;
    if (combiner->round == 0) return;
    quantise_write_sums(combiner->spec.id, self->aggregate, self->sums, combiner->elems, combiner->ranks);
    *data_out = self->aggregate;
}

static void finish(struct weft_combiner *combiner, float scale, float *out)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    weft_kernels()->dequantise_i32_f32(out, self->sums, self->exponents, scale, combiner->elems);
}

/* ---- a second combiner: the exponents, then the sums as the aggregate ---- */

static size_t step_bytes_max(const struct weft_combiner *combiner, uint32_t ranks)
{
    return quantise_blocks(combiner->elems) +
           quantise_aggregate_bytes(combiner->spec.id, combiner->elems, 1, ranks);
}

static size_t step_save(const struct weft_combiner *combiner, uint8_t *out)
{
    const struct integer_combiner *self = (const struct integer_combiner *)combiner;
    const size_t blocks = quantise_blocks(combiner->elems), bytes = step_bytes_max(combiner, combiner->ranks);
    memcpy(out, self->exponents, blocks);
    memcpy(out + blocks, self->aggregate, bytes - blocks);
    return bytes;
}

static enum weft_status step_check(const struct weft_combiner *combiner, const uint8_t *data, size_t bytes)
{
    const size_t blocks = quantise_blocks(combiner->elems);
    if (bytes != step_bytes_max(combiner, combiner->ranks)) return WEFT_ERR_MALFORMED;
    for (size_t b = 0; b < blocks; b++)
        if (data[b] > QUANTISE_EXPONENT_MAX) return WEFT_ERR_MALFORMED;
    return quantise_check_sums(combiner->spec.id, data + blocks, bytes - blocks, combiner->elems,
                               combiner->ranks);
}

static void step_load(struct weft_combiner *combiner, const uint8_t *data, size_t bytes,
                      const void **data_out, size_t *bytes_out)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    const size_t blocks = quantise_blocks(combiner->elems);
    memcpy(self->exponents, data, blocks);
    memcpy(self->aggregate, data + blocks, bytes - blocks);
    const enum weft_status status = quantise_read_sums(combiner->spec.id, self->aggregate, bytes - blocks,
                                                       combiner->elems, combiner->ranks, self->sums);
    WEFT_ASSERT(status == WEFT_OK);
    *data_out = self->aggregate;
    *bytes_out = bytes - blocks;
}

static void integer_free(struct weft_combiner *combiner)
{
    struct integer_combiner *self = (struct integer_combiner *)combiner;
    void *const all[] = {self->exponents, self->codes, self->sums, self->aggregate};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(combiner->env, all[i]);
    weft_free_bytes(combiner->env, self);
}

static const struct combiner_ops integer_ops = {
    .begin = begin,
    .add = add,
    .close = integer_close,
    .finish = finish,
    .step_bytes_max = step_bytes_max,
    .step_save = step_save,
    .step_check = step_check,
    .step_load = step_load,
    .free = integer_free,
};

struct weft_combiner *integer_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                              const struct weft_shape *shape, uint32_t ranks)
{
    const size_t elems = weft_shape_elems(shape);
    struct integer_combiner *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base.ops = &integer_ops;
    self->base.env = env;
    self->exponents = weft_alloc_bytes(env, quantise_blocks(elems));
    self->codes = weft_alloc_bytes(env, elems);
    self->sums = weft_alloc_array(env, elems, sizeof *self->sums);
    self->aggregate = weft_alloc_bytes(env, quantise_aggregate_bytes(spec->id, elems, 1, ranks));
    if (self->exponents && self->codes && self->sums && self->aggregate) return &self->base;
    integer_free(&self->base);
    return NULL;
}
