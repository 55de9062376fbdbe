/* quantise_format.c - int8 and int4 as bytes; quantise.h has the layout. */
#include <string.h>

#include "compress/quantise.h"
#include "kernels/kernels.h"

unsigned quantise_limit(enum weft_codec_id id) { return id == WEFT_CODEC_INT4 ? 7 : 127; }

size_t quantise_blocks(size_t elems) { return elems / WEFT_BLOCK + (elems % WEFT_BLOCK != 0); }

size_t quantise_contribution_bytes(enum weft_codec_id id, size_t elems, uint32_t round)
{
    if (round == 0) return quantise_blocks(elems);
    return id == WEFT_CODEC_INT4 ? elems / 2 + elems % 2 : elems;
}

/* Bytes of one sum; every product of a 32-bit rank count and a limit fits 64 bits. */
static size_t sum_width(enum weft_codec_id id, uint32_t ranks)
{
    const uint64_t most = (uint64_t)ranks * quantise_limit(id);
    return most <= INT8_MAX ? 1 : most <= INT16_MAX ? 2 : 4;
}

size_t quantise_aggregate_bytes(enum weft_codec_id id, size_t elems, uint32_t round, uint32_t ranks)
{
    return round == 0 ? quantise_blocks(elems) : elems * sum_width(id, ranks);
}

void quantise_pack(enum weft_codec_id id, uint8_t *out, const int8_t *codes, size_t elems)
{
    if (id == WEFT_CODEC_INT8) {
        memcpy(out, codes, elems);
        return;
    }
    for (size_t i = 0; i + 2 <= elems; i += 2)
        out[i / 2] = (uint8_t)((codes[i] & 0xf) | (codes[i + 1] & 0xf) << 4);
    if (elems % 2) out[elems / 2] = (uint8_t)(codes[elems - 1] & 0xf);
}

/* The two halves of a byte as signed numbers. */
static inline int8_t low_half(uint8_t byte) { return (int8_t)((int8_t)(uint8_t)(byte << 4) >> 4); }
static inline int8_t high_half(uint8_t byte) { return (int8_t)((int8_t)byte >> 4); }

enum weft_status quantise_unpack(enum weft_codec_id id, int8_t *codes_out, const void *data, size_t bytes,
                                 size_t elems)
{
    const int8_t least = (int8_t)-(int)quantise_limit(id);
    const uint8_t *from = data;
    bool fine = true;
    if (bytes != quantise_contribution_bytes(id, elems, 1)) return WEFT_ERR_MALFORMED;
    if (id == WEFT_CODEC_INT8) {
        memcpy(codes_out, data, bytes);
    } else {
        for (size_t i = 0; i + 2 <= elems; i += 2) {
            codes_out[i] = low_half(from[i / 2]);
            codes_out[i + 1] = high_half(from[i / 2]);
        }
        if (elems % 2) {
            codes_out[elems - 1] = low_half(from[elems / 2]);
            fine = from[elems / 2] >> 4 == 0;
        }
    }
    for (size_t i = 0; i < elems; i++)
        fine &= codes_out[i] >= least; /* the one code too low, -128 or -8; none is too high */
    return fine ? WEFT_OK : WEFT_ERR_MALFORMED;
}

void quantise_write_sums(enum weft_codec_id id, void *out, const int32_t *sums, size_t elems, uint32_t ranks)
{
    const size_t width = sum_width(id, ranks);
    int8_t *narrow = out;
    if (width == 4) memcpy(out, sums, elems * sizeof *sums);
    for (size_t i = 0; i < elems && width == 1; i++)
        narrow[i] = (int8_t)sums[i];
    for (size_t i = 0; i < elems && width == 2; i++) {
        const int16_t sum = (int16_t)sums[i];
        memcpy(narrow + 2 * i, &sum, sizeof sum);
    }
}

enum weft_status quantise_read_sums(enum weft_codec_id id, const void *data, size_t bytes, size_t elems,
                                    uint32_t ranks, int32_t *sums_out)
{
    const size_t width = sum_width(id, ranks);
    const int64_t most = (int64_t)((uint64_t)ranks * quantise_limit(id));
    const int8_t *from = data;
    bool fine = true;
    if (bytes != quantise_aggregate_bytes(id, elems, 1, ranks)) return WEFT_ERR_MALFORMED;
    if (width == 4) memcpy(sums_out, data, bytes);
    for (size_t i = 0; i < elems && width == 1; i++)
        sums_out[i] = from[i];
    for (size_t i = 0; i < elems && width == 2; i++) {
        int16_t sum;
        memcpy(&sum, from + 2 * i, sizeof sum);
        sums_out[i] = sum;
    }
    for (size_t i = 0; i < elems; i++)
        fine &= sums_out[i] <= most && sums_out[i] >= -most;
    return fine ? WEFT_OK : WEFT_ERR_MALFORMED;
}

enum weft_status quantise_check_exponents(const void *data, size_t bytes, size_t elems, const uint8_t *own)
{
    const uint8_t *exponents = data;
    const size_t blocks = quantise_blocks(elems);
    if (bytes != blocks) return WEFT_ERR_MALFORMED;
    for (size_t b = 0; b < blocks; b++)
        if (exponents[b] < own[b] || exponents[b] > QUANTISE_EXPONENT_MAX) return WEFT_ERR_MALFORMED;
    return WEFT_OK;
}

enum weft_status quantise_check_sums(enum weft_codec_id id, const void *data, size_t bytes, size_t elems,
                                     uint32_t ranks)
{
    enum { PART = 1024 };
    const size_t width = sum_width(id, ranks);
    const uint8_t *from = data;
    int32_t sums[PART];
    if (bytes != quantise_aggregate_bytes(id, elems, 1, ranks)) return WEFT_ERR_MALFORMED;
    for (size_t at = 0; at < elems; at += PART) {
        const size_t part = elems - at < PART ? elems - at : PART;
        WEFT_TRY(quantise_read_sums(id, from + at * width, part * width, part, ranks, sums));
    }
    return WEFT_OK;
}
