/* slice_pack.c - see slice_pack.h. */
#include "compress/split/slice_pack.h"

#include <string.h>

#include "kernels/kernels.h"

enum {
    BLOCK = WEFT_BLOCK,
    GROUPS = 8,
    PLANE_BYTES = BLOCK / GROUPS,
    GROUP_WORDS = PLANE_BYTES / 8,
    WINDOW_HIGH_BITS = 7,
    WINDOW = 127,   /* exponents above the base */
    BASE_MAX = 128, /* 255 - WINDOW */
    BASE_RAW = 255  /* the block is 16-bit elements */
};

static uint32_t high_bits_of(const struct weft_slice_packing *packing)
{
    return packing->kind == WEFT_SLICE_WINDOWS ? WINDOW_HIGH_BITS : packing->high_bits;
}

size_t slice_packed_bytes(const struct weft_slice_packing *packing, uint64_t elems)
{
    const uint64_t blocks = elems / BLOCK + (elems % BLOCK != 0);
    const size_t bases = packing->kind == WEFT_SLICE_WINDOWS ? blocks : 0;
    return bases + elems + blocks * high_bits_of(packing) * PLANE_BYTES;
}

size_t slice_packed_bytes_max(const struct weft_slice_packing *packing, uint64_t elems)
{
    const uint64_t blocks = elems / BLOCK + (elems % BLOCK != 0);
    const size_t packed = slice_packed_bytes(packing, elems), raw = blocks + 2 * elems;
    return packing->kind == WEFT_SLICE_WINDOWS && raw > packed ? raw : packed;
}

/* ---- planes ---- */

/* Bit j of group g and bit g of group j change places: a transposed 8 x 8 matrix of bits at each of 32
 * bytes. Three steps of swaps (Warren, Hacker's Delight, section 7-3), on all bytes at once. */
static void transpose(uint64_t groups[GROUPS][GROUP_WORDS])
{
    static const uint64_t masks[] = {0x0f0f0f0f0f0f0f0f, 0x3333333333333333, 0x5555555555555555};
    for (uint32_t step = 0, distance = 4; step < 3; step++, distance /= 2)
        for (uint32_t g = 0; g < GROUPS; g++) {
            if (g & distance) continue;
            uint64_t *low = groups[g], *high = groups[g + distance];
            for (uint32_t w = 0; w < GROUP_WORDS; w++) {
                const uint64_t swapped = ((low[w] >> distance) ^ high[w]) & masks[step];
                high[w] ^= swapped;
                low[w] ^= swapped << distance;
            }
        }
}

static void planes_write(uint8_t *out, const uint8_t high[BLOCK], uint32_t bits)
{
    uint64_t groups[GROUPS][GROUP_WORDS];
    memcpy(groups, high, sizeof groups);
    transpose(groups);
    memcpy(out, groups, bits * PLANE_BYTES);
}

static void planes_read(uint8_t high[BLOCK], const uint8_t *planes, uint32_t bits)
{
    uint64_t groups[GROUPS][GROUP_WORDS] = {{0}};
    memcpy(groups, planes, bits * PLANE_BYTES);
    transpose(groups);
    memcpy(high, groups, sizeof groups);
}

/* A block of words of 8 + bits bits: low bytes, then planes. Returns the bytes. */
static size_t words_write(uint8_t *out, const uint16_t words[BLOCK], size_t count, uint32_t bits)
{
    uint8_t low[BLOCK], high[BLOCK];
    for (uint32_t i = 0; i < BLOCK; i++) {
        low[i] = (uint8_t)words[i];
        high[i] = (uint8_t)(words[i] >> 8);
    }
    memcpy(out, low, count);
    planes_write(out + count, high, bits);
    return count + bits * PLANE_BYTES;
}

static size_t words_read(uint16_t words[BLOCK], const uint8_t *data, size_t count, uint32_t bits)
{
    uint8_t low[BLOCK] = {0}, high[BLOCK];
    memcpy(low, data, count);
    planes_read(high, data + count, bits);
    for (uint32_t i = 0; i < BLOCK; i++) words[i] = (uint16_t)(low[i] | high[i] << 8);
    return count + bits * PLANE_BYTES;
}

/* ---- windows: sign, exponent - base, 7 bits of mantissa ---- */
static int16_t exponent_of(uint16_t word)
{
    return (int16_t)((word >> 7) & 0xff);
}

/* BASE_RAW: the exponents of the block do not fit into one window. An exponent of 0 fits always. */
static uint8_t base_of(const uint16_t words[BLOCK])
{
    int16_t most = 0, least = INT16_MAX;
    for (uint32_t i = 0; i < BLOCK; i++) {
        const int16_t exponent = exponent_of(words[i]), below = (exponent - 1) & INT16_MAX;
        most = exponent > most ? exponent : most;
        least = below < least ? below : least;
    }
    const int16_t base = most > WINDOW ? most - WINDOW : 0;
    return least >= base ? (uint8_t)base : BASE_RAW;
}

static void window_enter(uint16_t words[BLOCK], uint8_t base)
{
    for (uint32_t i = 0; i < BLOCK; i++) {
        const int16_t above = exponent_of(words[i]) - base, within = above > 0 ? above : 0;
        words[i] = (uint16_t)((words[i] >> 15) << 14 | within << 7 | (words[i] & 0x7f));
    }
}

static void window_leave(uint16_t words[BLOCK], uint8_t base)
{
    for (uint32_t i = 0; i < BLOCK; i++) {
        const int16_t within = (words[i] >> 7) & WINDOW, exponent = within > 0 ? within + base : 0;
        words[i] = (uint16_t)((words[i] >> 14) << 15 | exponent << 7 | (words[i] & 0x7f));
    }
}

static size_t window_write(uint8_t *out, uint16_t words[BLOCK], size_t count)
{
    const uint8_t base = base_of(words);
    *out++ = base;
    if (base == BASE_RAW) {
        memcpy(out, words, count * sizeof *words);
        return 1 + count * sizeof *words;
    }
    window_enter(words, base);
    return 1 + words_write(out, words, count, WINDOW_HIGH_BITS);
}

/* ---- slices ---- */
size_t slice_pack(const struct weft_slice_packing *packing, uint8_t *out, const uint8_t *in, uint64_t elems)
{
    uint8_t *const first = out;
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        uint16_t words[BLOCK] = {0};
        const size_t count = elems - at < BLOCK ? elems - at : BLOCK;
        memcpy(words, in + at * sizeof *words, count * sizeof *words);
        out += packing->kind == WEFT_SLICE_WINDOWS ? window_write(out, words, count)
                                                   : words_write(out, words, count, packing->high_bits);
    }
    return (size_t)(out - first);
}

/* Sums of 8 + bits bits, two's complement, widened. */
static void extend_sign(uint16_t words[BLOCK], uint32_t bits)
{
    const uint16_t sign = (uint16_t)(1u << (7 + bits));
    for (uint32_t i = 0; i < BLOCK; i++) words[i] = (uint16_t)((words[i] ^ sign) - sign);
}

static enum weft_status block_read(const struct weft_slice_packing *packing, uint16_t words[BLOCK],
                                   const uint8_t **data, size_t *left, size_t count)
{
    const bool windows = packing->kind == WEFT_SLICE_WINDOWS;
    uint8_t base = 0;
    if (windows) {
        if (*left == 0) return WEFT_ERR_MALFORMED;
        base = *(*data)++;
        (*left)--;
        if (base > BASE_MAX && base != BASE_RAW) return WEFT_ERR_MALFORMED;
    }
    const size_t raw = count * sizeof *words, packed = count + high_bits_of(packing) * PLANE_BYTES;
    const size_t bytes = base == BASE_RAW ? raw : packed;
    if (*left < bytes) return WEFT_ERR_MALFORMED;
    if (base == BASE_RAW) memcpy(words, *data, raw);
    else words_read(words, *data, count, high_bits_of(packing));
    if (windows && base != BASE_RAW) window_leave(words, base);
    if (!windows) extend_sign(words, packing->high_bits);
    *data += bytes;
    *left -= bytes;
    return WEFT_OK;
}

enum weft_status slice_unpack(const struct weft_slice_packing *packing, uint8_t *out, const uint8_t *data,
                              size_t bytes, uint64_t elems)
{
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        uint16_t words[BLOCK];
        const size_t count = elems - at < BLOCK ? elems - at : BLOCK;
        WEFT_TRY(block_read(packing, words, &data, &bytes, count));
        memcpy(out + at * sizeof *words, words, count * sizeof *words);
    }
    return bytes == 0 ? WEFT_OK : WEFT_ERR_MALFORMED;
}
