/* lowbit_format.c - sign, e4m3 and e5m2 as bytes; lowbit.h has the layout. */
#include <string.h>

#include "compress/codec.h"
#include "compress/lowbit.h"
#include "compress/quantise.h"
#include "kernels/kernels.h"

bool is_lowbit(enum weft_codec_id id)
{
    return id == WEFT_CODEC_SIGN || id == WEFT_CODEC_E4M3 || id == WEFT_CODEC_E5M2;
}

static enum weft_fp8 fp8_of(enum weft_codec_id id) { return id == WEFT_CODEC_E4M3 ? WEFT_E4M3 : WEFT_E5M2; }

size_t lowbit_scales_bytes(enum weft_codec_id id, size_t elems)
{
    return quantise_blocks(elems) * (id == WEFT_CODEC_SIGN ? sizeof(float) : 1);
}

static size_t codes_bytes(enum weft_codec_id id, size_t elems)
{
    return id == WEFT_CODEC_SIGN ? elems / 8 + (elems % 8 != 0) : elems;
}

size_t lowbit_bytes(enum weft_codec_id id, size_t elems)
{
    return lowbit_scales_bytes(id, elems) + codes_bytes(id, elems);
}

/* Block by block, so that p is still in the first-level cache when it is coded. `out` may start anywhere. */
bool lowbit_pack(enum weft_codec_id id, void *out, float *x, const float *grad, float factor,
                 const float *residual, size_t elems)
{
    const struct weft_kernels *kernels = weft_kernels();
    uint8_t *scales = out, *codes = scales + lowbit_scales_bytes(id, elems);
    uint32_t max_bits = 0;
    for (size_t at = 0; at < elems; at += WEFT_BLOCK) {
        const size_t length = elems - at < WEFT_BLOCK ? elems - at : WEFT_BLOCK;
        const uint32_t bits = kernels->scale_add_f32(x + at, grad + at, factor, residual + at, length);
        max_bits = bits > max_bits ? bits : max_bits;
        if (max_bits >= CODEC_MAGNITUDE_LIMIT_BITS) return false;
        if (id == WEFT_CODEC_SIGN) {
            float mean;
            kernels->quantise_sign_f32(codes + at / 8, &mean, x + at, length);
            memcpy(scales, &mean, sizeof mean);
            scales += sizeof mean;
        } else {
            *scales = weft_fp8_exponent(bits, fp8_of(id));
            kernels->quantise_fp8_f32(codes + at, x + at, scales++, length, fp8_of(id));
        }
    }
    return true;
}

static bool sign_well_formed(const uint8_t *scales, const uint8_t *codes, size_t elems)
{
    bool fine = elems % 8 == 0 || codes[elems / 8] >> elems % 8 == 0;
    for (size_t block = 0; block < quantise_blocks(elems); block++) {
        uint32_t bits;
        memcpy(&bits, scales + block * sizeof bits, sizeof bits);
        fine &= bits < CODEC_MAGNITUDE_LIMIT_BITS; /* not negative, not NaN either */
    }
    return fine;
}

static bool fp8_well_formed(enum weft_codec_id id, const uint8_t *scales, const uint8_t *codes, size_t elems)
{
    const uint8_t top = id == WEFT_CODEC_E4M3 ? 0x7e : 0x7b;
    bool fine = true;
    for (size_t block = 0; block < quantise_blocks(elems); block++)
        fine &= scales[block] <= QUANTISE_EXPONENT_MAX;
    for (size_t i = 0; i < elems; i++)
        fine &= (codes[i] & 0x7f) <= top;
    return fine;
}

bool lowbit_well_formed(enum weft_codec_id id, const void *data, size_t bytes, size_t elems)
{
    const uint8_t *scales = data;
    if (bytes != lowbit_bytes(id, elems)) return false;
    const uint8_t *codes = scales + lowbit_scales_bytes(id, elems);
    return id == WEFT_CODEC_SIGN ? sign_well_formed(scales, codes, elems)
                                 : fp8_well_formed(id, scales, codes, elems);
}

void lowbit_unpack(enum weft_codec_id id, float *out, const void *data, size_t elems)
{
    const struct weft_kernels *kernels = weft_kernels();
    const uint8_t *scales = data, *codes = scales + lowbit_scales_bytes(id, elems);
    if (id != WEFT_CODEC_SIGN) {
        kernels->dequantise_fp8_f32(out, codes, scales, elems, fp8_of(id));
        return;
    }
    for (size_t at = 0; at < elems; at += WEFT_BLOCK, scales += sizeof(float)) {
        float mean; /* may lie anywhere in the bytes */
        memcpy(&mean, scales, sizeof mean);
        kernels->dequantise_sign_f32(out + at, codes + at / 8, &mean,
                                     elems - at < WEFT_BLOCK ? elems - at : WEFT_BLOCK);
    }
}
