/* index_block.c - sorted indices as bits: gaps in Rice codes, a parameter for every 65,536 elements.
 *
 * Format (all numbers little-endian; wire format, pinned):
 *
 *     stream  = u32 index_count, then one block for every 65,536 elements of the tensor, in order, all
 *             present
 *     block   = u8 0xff                                     no index in this block
 *             | u8 b (0..15), u16 count - 1, bits, padding  count indices (1..65,536)
 *     bits    = for each index:  gap = index - previous - 1   (previous of the first: block start - 1)
 *                                gap >> b  zero bits, one 1 bit, then the b low bits of gap
 *               bits fill a byte from its lowest bit; the lowest bit of a number is first
 *     padding = zero bits up to the next whole byte
 *
 *     example: 10 elements, indices 1, 2, 7 (gaps 1, 0, 4):   03 00 00 00 | 00 | 02 00 | 86
 *
 * Rice codes (Rice 1979; Golomb 1966 for powers of two) are within a few hundredths of a bit of the entropy
 * of randomly placed indices at any density below a half; with b = 0 the code *is* a bitmap, so dense blocks
 * need no second form. The writer takes for each block the b that gives the fewest bits, the reader any. At 1
 * % density an index costs 8.1 bits, against 16 or 32 as numbers.
 *
 * The reader trusts nothing: counts, positions, block ends, padding and the end of data are all checked,
 * and its work is bounded by the bytes given. */
#include <string.h>

#include "compress/index_block.h"

enum { BLOCK_ELEMS = 65536, LOW_BITS_MAX = 15, EMPTY_BLOCK = 0xff, BLOCK_HEADER_BYTES = 3 };

static uint64_t block_count_of(uint64_t elem_count)
{
    return elem_count / BLOCK_ELEMS + (elem_count % BLOCK_ELEMS != 0);
}

/* With one b for all blocks the codes take at most count*(b+1) + elems>>b bits; the best b per block is no
 * worse. */
size_t weft_index_bytes_max(uint64_t elem_count, uint64_t index_count)
{
    uint64_t bits = UINT64_MAX;
    for (unsigned b = 0; b <= LOW_BITS_MAX; b++) {
        const uint64_t with_b = index_count * (b + 1) + (elem_count >> b);
        if (with_b < bits) bits = with_b;
    }
    return sizeof(uint32_t) + bits / 8 + block_count_of(elem_count) * (BLOCK_HEADER_BYTES + 1) + 1;
}

/* ---- writing ---- */

struct bit_writer {
    uint8_t *at;
    uint64_t window;
    uint32_t window_bits; /* below 8 between calls */
};

/* count <= 56 */
static inline void put_bits(struct bit_writer *writer, uint64_t bits, uint32_t count)
{
    writer->window |= bits << writer->window_bits;
    writer->window_bits += count;
    while (writer->window_bits >= 8) {
        *writer->at++ = (uint8_t)writer->window;
        writer->window >>= 8;
        writer->window_bits -= 8;
    }
}

static void put_gap(struct bit_writer *writer, uint32_t gap, uint32_t low_bits)
{
    uint32_t zeros = gap >> low_bits;
    for (; zeros > 32; zeros -= 32)
        put_bits(writer, 0, 32);
    put_bits(writer, (uint64_t)1 << zeros, zeros + 1);
    put_bits(writer, gap & ((1u << low_bits) - 1u), low_bits);
}

static uint32_t best_low_bits(const uint32_t *indices, size_t count, uint64_t block_start)
{
    uint64_t zeros[LOW_BITS_MAX + 1] = {0}, best_cost = UINT64_MAX;
    uint64_t position = block_start;
    uint32_t best = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t gap = (uint32_t)(indices[i] - position);
        for (uint32_t b = 0; b <= LOW_BITS_MAX; b++)
            zeros[b] += gap >> b;
        position = (uint64_t)indices[i] + 1;
    }
    for (uint32_t b = 0; b <= LOW_BITS_MAX; b++) {
        const uint64_t cost = zeros[b] + (uint64_t)count * (b + 1);
        if (cost < best_cost) {
            best_cost = cost;
            best = b;
        }
    }
    return best;
}

static uint8_t *put_block(uint8_t *at, const uint32_t *indices, size_t count, uint64_t block_start)
{
    const uint32_t low_bits = best_low_bits(indices, count, block_start);
    const uint16_t stored_count = (uint16_t)(count - 1);
    struct bit_writer writer = {.at = at + BLOCK_HEADER_BYTES};
    uint64_t position = block_start;
    at[0] = (uint8_t)low_bits;
    memcpy(at + 1, &stored_count, sizeof stored_count);
    for (size_t i = 0; i < count; i++) {
        put_gap(&writer, (uint32_t)(indices[i] - position), low_bits);
        position = (uint64_t)indices[i] + 1;
    }
    if (writer.window_bits > 0) put_bits(&writer, 0, 8 - writer.window_bits);
    return writer.at;
}

size_t weft_index_encode(const uint32_t *indices, uint64_t index_count, uint64_t elem_count, uint8_t *out)
{
    const uint32_t stored_count = (uint32_t)index_count;
    uint8_t *at = out;
    uint64_t first = 0;
    memcpy(at, &stored_count, sizeof stored_count);
    at += sizeof stored_count;
    for (uint64_t block = 0; block < block_count_of(elem_count); block++) {
        uint64_t last = first;
        while (last < index_count && indices[last] / BLOCK_ELEMS == block)
            last++;
        if (last == first)
            *at++ = EMPTY_BLOCK;
        else
            at = put_block(at, indices + first, last - first, block * BLOCK_ELEMS);
        first = last;
    }
    WEFT_ASSERT(first == index_count); /* indices rise and lie below elem_count */
    return (size_t)(at - out);
}

/* ---- reading ---- */

enum weft_status index_reader_begin(struct index_reader *reader, const void *data, size_t bytes,
                                    uint64_t elem_count, uint64_t index_count_max, uint64_t *index_count_out)
{
    uint32_t stored_count;
    if (bytes < sizeof stored_count) return WEFT_ERR_MALFORMED;
    memcpy(&stored_count, data, sizeof stored_count);
    if (stored_count > elem_count || stored_count > index_count_max) return WEFT_ERR_MALFORMED;
    *reader = (struct index_reader){
        .at = (const uint8_t *)data + sizeof stored_count,
        .end = (const uint8_t *)data + bytes,
        .elem_count = elem_count,
        .block_count = block_count_of(elem_count),
        .left = stored_count,
    };
    *index_count_out = stored_count;
    return WEFT_OK;
}

static inline void refill(struct index_reader *reader)
{
    while (reader->window_bits <= 56 && reader->at < reader->end) {
        reader->window |= (uint64_t)*reader->at++ << reader->window_bits;
        reader->window_bits += 8;
    }
}

static inline bool get_gap(struct index_reader *reader, uint64_t *gap_out)
{
    uint64_t zeros = 0;
    refill(reader);
    while (reader->window == 0) {
        zeros += reader->window_bits;
        reader->window_bits = 0;
        refill(reader);
        if (reader->window_bits == 0 || zeros > BLOCK_ELEMS) return false;
    }
    const uint32_t more = (uint32_t)__builtin_ctzll(reader->window);
    zeros += more;
    reader->window = reader->window >> more >> 1; /* two shifts: more + 1 may be 64 */
    reader->window_bits -= more + 1;
    if (reader->window_bits < reader->low_bits) refill(reader);
    if (reader->window_bits < reader->low_bits) return false;
    *gap_out = zeros << reader->low_bits | (reader->window & ((1u << reader->low_bits) - 1u));
    reader->window >>= reader->low_bits;
    reader->window_bits -= reader->low_bits;
    return true;
}

/* Padding must be zero; whole bytes that were read ahead go back. */
static bool end_block(struct index_reader *reader)
{
    const uint32_t padding = reader->window_bits % 8;
    if ((reader->window & ((1u << padding) - 1u)) != 0) return false;
    reader->at -= reader->window_bits / 8;
    reader->window = 0;
    reader->window_bits = 0;
    return true;
}

static bool open_block(struct index_reader *reader)
{
    uint16_t stored_count;
    if (reader->at == reader->end) return false;
    const uint8_t form = *reader->at++;
    const uint64_t start = reader->block++ * BLOCK_ELEMS;
    if (form == EMPTY_BLOCK) return true;
    if (form > LOW_BITS_MAX || (size_t)(reader->end - reader->at) < sizeof stored_count) return false;
    memcpy(&stored_count, reader->at, sizeof stored_count);
    reader->at += sizeof stored_count;
    reader->low_bits = form;
    reader->left_in_block = (uint32_t)stored_count + 1;
    reader->position = start;
    reader->block_end = start + BLOCK_ELEMS < reader->elem_count ? start + BLOCK_ELEMS : reader->elem_count;
    if (reader->left_in_block > reader->left) return false;
    reader->left -= reader->left_in_block;
    return true;
}

enum weft_status index_reader_read(struct index_reader *reader, uint32_t *indices_out, uint32_t capacity,
                                   uint32_t *count_out)
{
    uint32_t count = 0;
    while (count < capacity) {
        if (reader->left_in_block == 0) {
            if (reader->block == reader->block_count) break;
            if (!open_block(reader)) return WEFT_ERR_MALFORMED;
            continue;
        }
        uint64_t gap;
        if (!get_gap(reader, &gap) || gap >= reader->block_end - reader->position) return WEFT_ERR_MALFORMED;
        indices_out[count++] = (uint32_t)(reader->position + gap);
        reader->position += gap + 1;
        if (--reader->left_in_block == 0 && !end_block(reader)) return WEFT_ERR_MALFORMED;
    }
    if (count == 0 && reader->left != 0) return WEFT_ERR_MALFORMED;
    *count_out = count;
    return WEFT_OK;
}

enum weft_status weft_index_decode(const uint8_t *data, size_t bytes, uint64_t elem_count,
                                   uint32_t *indices_out, uint64_t index_count_max, uint64_t *index_count_out,
                                   size_t *consumed_out)
{
    struct index_reader reader;
    uint64_t promised, total = 0;
    uint32_t count;
    WEFT_TRY(index_reader_begin(&reader, data, bytes, elem_count, index_count_max, &promised));
    do {
        const uint64_t capacity = promised - total;
        /* One more than is promised would be malformed anyway; a capacity of at least one lets the end be
         * seen. */
        uint32_t beyond;
        uint32_t *into = capacity > 0 ? indices_out + total : &beyond;
        WEFT_TRY(index_reader_read(&reader, into, capacity > 0 ? (uint32_t)capacity : 1, &count));
        total += count;
    } while (count > 0);
    *index_count_out = total;
    *consumed_out = (size_t)(reader.at - data);
    return WEFT_OK;
}
