/* shard_half.c - tensors whose contributions or results are f16 or bf16. Values, states and sums are f32.
 *
 *     contribution --> widened, times factor --> T, in f32 --> mean, optimiser: values --> rounded --> result
 *
 * factor = weight / loss scale, as workers scale a gradient of f32 before they send it: an update has the
 * bits of a tensor of f32 with the widened gradients. A mean without an optimiser is not larger than the
 * largest gradient, but a sum of bf16 may exceed f32: its factors are divided by a power of two that is not
 * below the number of workers. With "sum" the excess is the result. Each rounding is to nearest even.
 *
 * A contribution is received in the second half of its slot, and widened there from its first element on. */
#include <math.h>
#include <string.h>

#include "server/shard/shard_engine.h"

enum { TILE = 256 }; /* elements that are widened at once */

static void widen(enum weft_dtype dtype, float *out, const uint16_t *in, size_t count)
{
    if (dtype == WEFT_F16) weft_kernels()->cast_f16_f32(out, in, count);
    else weft_kernels()->cast_bf16_f32(out, in, count);
}

/* With a factor of 0 the result is zeros, even of NaN and infinity. */
static void widen_scaled(enum weft_dtype dtype, float *out, const uint16_t *in, float factor, size_t count)
{
    if (factor == 0) {
        memset(out, 0, count * sizeof *out);
        return;
    }
    widen(dtype, out, in, count);
    if (factor != 1.0f) weft_kernels()->scale_f32(out, out, factor, count);
}

/* Exponent of the power of two that divides the factors. */
static int headroom(const struct shard_chunk *chunk)
{
    const struct shard_tensor *tensor = chunk->tensor;
    int exponent = 0;
    if (tensor->dtype != WEFT_BF16 || tensor->optimizer.kind != WEFT_OPTIMIZER_NONE) return 0;
    if (tensor->optimizer.is_sum) return 0;
    while (tensor->engine->workers > 1u << exponent) exponent++;
    return exponent;
}

void shard_half_push(const struct shard_chunk *chunk, const struct weft_wire_header *header,
                     struct shard_contribution *contribution)
{
    const float unscaled = header->weight / ldexpf(1.0f, header->loss_exponent);
    contribution->factor = ldexpf(unscaled, -headroom(chunk));
}

float shard_half_unscale(const struct shard_chunk *chunk)
{
    return ldexpf(1.0f, headroom(chunk));
}

void *shard_half_place(const struct shard_chunk *chunk, struct shard_slot *slot)
{
    return (uint16_t *)shard_slot_data(slot) + (shard_half_is_pushed(chunk) ? chunk->count : 0);
}

void shard_half_widen(const struct shard_chunk *chunk, struct shard_slot *slot)
{
    const uint16_t *in = shard_half_place(chunk, slot);
    const float factor = chunk->workers.contributions[slot->worker].factor;
    float *out = shard_slot_data(slot);
    uint16_t tile[TILE];
    for (uint64_t at = 0; at < chunk->count; at += TILE) {
        const uint64_t left = chunk->count - at, count = left < TILE ? left : TILE;
        memcpy(tile, in + at, count * sizeof *tile);
        widen_scaled(chunk->tensor->dtype, out + at, tile, factor, count);
    }
}

uint32_t shard_half_sum(const struct shard_chunk *chunk, float *out)
{
    uint32_t most = 0;
    const uint32_t workers = chunk->tensor->engine->workers;
    float tiles[WEFT_SUM_SOURCES_MAX][TILE];
    const float *sources[WEFT_SUM_SOURCES_MAX];
    for (uint64_t at = 0; at < chunk->count; at += TILE) {
        const uint64_t left = chunk->count - at, count = left < TILE ? left : TILE;
        for (uint32_t worker = 0; worker < workers; worker++) {
            const struct shard_contribution *contribution = &chunk->workers.contributions[worker];
            widen_scaled(chunk->tensor->dtype, tiles[worker], (const uint16_t *)contribution->source + at,
                         contribution->factor, count);
            sources[worker] = tiles[worker];
        }
        const uint32_t bits = weft_sum_sources_f32(out + at, sources, workers, 1.0f, count);
        most = bits > most ? bits : most;
    }
    return most;
}

static void round_to(const struct shard_chunk *chunk, uint16_t *half, const float *values)
{
    if (!half || !values) return;
    if (chunk->tensor->pull_dtype == WEFT_F16) weft_kernels()->cast_f32_f16(half, values, chunk->count);
    else weft_kernels()->cast_f32_bf16(half, values, chunk->count);
}

void shard_half_round(struct shard_chunk *chunk)
{
    round_to(chunk, chunk->half, chunk->values);
}

void shard_half_round_backup(struct shard_chunk *chunk)
{
    round_to(chunk, chunk->backup.half, chunk->backup.values);
}

void shard_half_install(struct shard_chunk *chunk)
{
    widen(chunk->tensor->dtype, chunk->values, chunk->half, chunk->count);
}
