/* cast_format.c - elements as bytes: f32, bf16, and f16 with one exponent for the whole tensor.
 *
 *   dense   count f32, little-endian
 *   bf16    count bf16
 *   f16     int32 exponent, then count f16:   value = f16 * 2^exponent
 *
 * f16 spans only 2^-24 .. 2^16, gradients do not care: they shrink to 1e-9 late in training, and a sum
 * over many workers or a loss scale pushes them over 65504. The exponent puts the largest magnitude of the
 * tensor into [2^14, 2^15): nothing finite overflows, and all of the range below serves. Multiplying by a
 * power of two is exact, so the only rounding is the one to 11 bits. Contributions and aggregates have the
 * same format. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "kernels/kernels.h"

enum { BLOCK = 2048, EXPONENT_MIN = -126, EXPONENT_MAX = 113 };

size_t cast_bytes(enum weft_codec_id id, size_t count)
{
    switch (id) {
    case WEFT_CODEC_DENSE: return count * sizeof(float);
    case WEFT_CODEC_F16: return sizeof(int32_t) + count * sizeof(uint16_t);
    default: return count * sizeof(uint16_t);
    }
}

static int32_t shared_exponent(uint32_t max_bits)
{
    float max;
    if (max_bits == 0) return 0;
    if (max_bits >= WEFT_F32_INFINITY_BITS) return EXPONENT_MAX;
    memcpy(&max, &max_bits, sizeof max);
    const int exponent = ilogbf(max) - 14;
    return exponent < EXPONENT_MIN ? EXPONENT_MIN : exponent;
}

/* max |factor * x|: multiplication and its rounding are monotone, so the largest x gives the largest
 * product. */
bool cast_exponent(enum weft_codec_id id, uint32_t max_bits, float factor, int32_t *exponent_out)
{
    float max;
    memcpy(&max, &max_bits, sizeof max);
    weft_kernels()->scale_f32(&max, &max, factor, 1);
    const uint32_t scaled = weft_kernels()->max_abs_bits_f32(&max, 1);
    *exponent_out = id == WEFT_CODEC_F16 && scaled < WEFT_F32_INFINITY_BITS ? shared_exponent(scaled) : 0;
    return scaled < WEFT_F32_INFINITY_BITS;
}

/* Through a block that stays in the first-level cache, and through aligned arrays: `out` may start
 * anywhere. */
static void pack(enum weft_codec_id id, uint8_t *out, const float *in, float factor, int32_t exponent,
                 size_t count)
{
    const struct weft_kernels *kernels = weft_kernels();
    if (id == WEFT_CODEC_F16) {
        memcpy(out, &exponent, sizeof exponent);
        out += sizeof exponent;
    }
    const size_t width = id == WEFT_CODEC_DENSE ? sizeof(float) : sizeof(uint16_t);
    for (size_t at = 0; at < count; at += BLOCK) {
        float scaled[BLOCK];
        uint16_t halves[BLOCK];
        const size_t part = count - at < BLOCK ? count - at : BLOCK;
        const float *source = in + at;
        if (factor != 1.0f) {
            kernels->scale_f32(scaled, source, factor, part);
            source = scaled;
        }
        if (exponent != 0) {
            kernels->scale_f32(scaled, source, ldexpf(1.0f, -exponent), part);
            source = scaled;
        }
        if (id == WEFT_CODEC_F16) kernels->cast_f32_f16(halves, source, part);
        if (id == WEFT_CODEC_BF16) kernels->cast_f32_bf16(halves, source, part);
        memcpy(out + at * width, id == WEFT_CODEC_DENSE ? (const void *)source : (const void *)halves,
               part * width);
    }
}

bool cast_pack(enum weft_codec_id id, void *out, const float *in, float factor, size_t count)
{
    int32_t exponent;
    if (!cast_exponent(id, weft_kernels()->max_abs_bits_f32(in, count), factor, &exponent)) return false;
    pack(id, out, in, factor, exponent, count);
    return true;
}

void cast_pack_sum(enum weft_codec_id id, void *out, const float *in, size_t count)
{
    cast_pack_peak(id, out, in, id == WEFT_CODEC_F16 ? weft_kernels()->max_abs_bits_f32(in, count) : 0,
                   count);
}

void cast_pack_peak(enum weft_codec_id id, void *out, const float *in, uint32_t peak_bits, size_t count)
{
    pack(id, out, in, 1.0f, id == WEFT_CODEC_F16 ? shared_exponent(peak_bits) : 0, count);
}

bool cast_well_formed(enum weft_codec_id id, const void *data, size_t bytes, size_t count)
{
    int32_t exponent = 0;
    if (bytes != cast_bytes(id, count)) return false;
    if (id == WEFT_CODEC_F16) memcpy(&exponent, data, sizeof exponent);
    return exponent >= EXPONENT_MIN && exponent <= EXPONENT_MAX;
}

void cast_unpack(enum weft_codec_id id, float *out, const void *data, float factor, size_t count)
{
    const struct weft_kernels *kernels = weft_kernels();
    const uint8_t *in = data;
    int32_t exponent = 0;
    if (id == WEFT_CODEC_F16) {
        memcpy(&exponent, in, sizeof exponent);
        in += sizeof exponent;
    }
    const size_t width = id == WEFT_CODEC_DENSE ? sizeof(float) : sizeof(uint16_t);
    for (size_t at = 0; at < count; at += BLOCK) {
        uint16_t halves[BLOCK];
        const size_t part = count - at < BLOCK ? count - at : BLOCK;
        memcpy(id == WEFT_CODEC_DENSE ? (void *)(out + at) : (void *)halves, in + at * width, part * width);
        if (id == WEFT_CODEC_F16) kernels->cast_f16_f32(out + at, halves, part);
        if (id == WEFT_CODEC_BF16) kernels->cast_bf16_f32(out + at, halves, part);
        if (exponent != 0) kernels->scale_f32(out + at, out + at, ldexpf(1.0f, exponent), part);
        if (factor != 1.0f) kernels->scale_f32(out + at, out + at, factor, part);
    }
}
