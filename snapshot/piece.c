/* piece.c - a piece in memory: arrays of f32, stored as f32, bf16 or int8.
 *
 *     weft_piece_add ... -> weft_piece_quantise -> weft_piece_encode
 *     weft_piece_decode -> weft_piece_values
 *
 * int8: each block of WEFT_PIECE_SCALE_BLOCK elements has the scale max|x| / 127. A block with an element
 * that is not finite has the scale NaN, so that the loss is visible. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"
#include "snapshot/snapshot.h"

static const char *const dtype_texts[WEFT_PIECE_DTYPES] = {"f32", "bf16", "int8", "u8"};

bool weft_piece_dtype_parse(const char *text, enum weft_piece_dtype *dtype_out)
{
    for (uint32_t dtype = 0; dtype < WEFT_PIECE_WEIGHT_DTYPES; dtype++) {
        if (strcmp(text, dtype_texts[dtype]) != 0) continue;
        *dtype_out = (enum weft_piece_dtype)dtype;
        return true;
    }
    return false;
}

const char *weft_piece_dtype_text(enum weft_piece_dtype dtype)
{
    return dtype_texts[dtype];
}

static uint64_t blocks_of(uint64_t count)
{
    return (count + WEFT_PIECE_SCALE_BLOCK - 1) / WEFT_PIECE_SCALE_BLOCK;
}

size_t weft_piece_array_bytes(enum weft_piece_dtype dtype, uint64_t count)
{
    switch (dtype) {
    case WEFT_PIECE_BF16: return count * sizeof(uint16_t);
    case WEFT_PIECE_I8: return count + blocks_of(count) * sizeof(float);
    case WEFT_PIECE_U8: return count;
    case WEFT_PIECE_F32:
    case WEFT_PIECE_DTYPES:
    default: return count * sizeof(float);
    }
}

struct weft_piece *weft_piece_create(struct weft_env *env, uint32_t array_capacity, size_t bytes)
{
    struct weft_piece *piece = weft_alloc_zero(env, sizeof *piece);
    if (!piece) return NULL;
    piece->env = env;
    piece->arrays = weft_alloc_array(env, array_capacity ? array_capacity : 1, sizeof *piece->arrays);
    piece->data = weft_alloc_bytes(env, bytes ? bytes : 1);
    piece->array_capacity = array_capacity;
    piece->capacity = bytes;
    weft_list_init(&piece->link);
    if (piece->arrays && piece->data) return piece;
    weft_piece_free(piece);
    return NULL;
}

void weft_piece_free(struct weft_piece *piece)
{
    if (!piece) return;
    weft_free_bytes(piece->env, piece->arrays);
    weft_free_bytes(piece->env, piece->data);
    weft_free_bytes(piece->env, piece);
}

float *weft_piece_place(struct weft_piece *piece, const struct weft_piece_array *array)
{
    const size_t bytes = array->count * sizeof(float);
    WEFT_ASSERT(piece->array_count < piece->array_capacity && bytes <= piece->capacity - piece->bytes);
    struct weft_piece_array *added = &piece->arrays[piece->array_count++];
    *added = *array;
    added->dtype = WEFT_PIECE_F32;
    added->at = piece->bytes;
    piece->bytes += bytes;
    return (float *)(void *)(piece->data + added->at);
}

void weft_piece_add(struct weft_piece *piece, const struct weft_piece_array *array, const float *values)
{
    memcpy(weft_piece_place(piece, array), values, array->count * sizeof *values);
}

struct weft_piece *weft_piece_create_worker(struct weft_env *env, uint32_t rank, uint64_t offset,
                                            const uint8_t *data, size_t bytes)
{
    struct weft_piece *piece = weft_piece_create(env, 1, bytes);
    if (!piece) return NULL;
    struct weft_piece_array *array = &piece->arrays[piece->array_count++];
    *array = (struct weft_piece_array){
        .part = WEFT_PIECE_WORKER, .dtype = WEFT_PIECE_U8, .offset = offset, .count = bytes};
    snprintf(array->tensor, sizeof array->tensor, "rank%u", rank);
    memcpy(piece->data, data, bytes);
    piece->bytes = bytes;
    return piece;
}

/* ---- quantisation ---- */

static void quantise_block(const float *in, uint64_t count, int8_t *out, float *scale_out)
{
    float most = 0;
    bool is_finite = true;
    for (uint64_t i = 0; i < count; i++) {
        is_finite &= isfinite(in[i]) != 0;
        if (fabsf(in[i]) > most) most = fabsf(in[i]);
    }
    const float scale = is_finite ? most / 127.0f : NAN;
    for (uint64_t i = 0; i < count; i++) {
        const float level = is_finite && scale > 0 ? roundf(in[i] / scale) : 0;
        out[i] = (int8_t)(level > 127 ? 127 : level < -127 ? -127 : level);
    }
    *scale_out = scale;
}

static void quantise_i8(const float *in, uint64_t count, uint8_t *out)
{
    for (uint64_t block = 0; block < blocks_of(count); block++) {
        const uint64_t first = block * WEFT_PIECE_SCALE_BLOCK, rest = count - first;
        float scale;
        quantise_block(in + first, rest < WEFT_PIECE_SCALE_BLOCK ? rest : WEFT_PIECE_SCALE_BLOCK,
                       (int8_t *)out + first, &scale);
        memcpy(out + count + block * sizeof scale, &scale, sizeof scale);
    }
}

/* Converts one array to `to`, which may overlap it from below. Without memory the array stays f32. */
static void quantise_array(struct weft_piece *piece, struct weft_piece_array *array,
                           enum weft_piece_dtype dtype, uint8_t *to)
{
    const uint8_t *from = piece->data + array->at;
    const bool converts = array->part == WEFT_PIECE_VALUES && array->dtype == WEFT_PIECE_F32;
    float *values = converts ? weft_alloc_array(piece->env, array->count, sizeof *values) : NULL;
    if (!values) {
        memmove(to, from, weft_piece_array_bytes((enum weft_piece_dtype)array->dtype, array->count));
        return;
    }
    memcpy(values, from, array->count * sizeof *values);
    array->dtype = (uint8_t)dtype;
    if (dtype == WEFT_PIECE_I8) quantise_i8(values, array->count, to);
    else weft_kernels()->cast_f32_bf16((uint16_t *)(void *)to, values, array->count);
    weft_free_bytes(piece->env, values);
}

void weft_piece_quantise(struct weft_piece *piece, enum weft_piece_dtype dtype)
{
    size_t end = 0;
    if (dtype == WEFT_PIECE_F32) return;
    for (uint32_t i = 0; i < piece->array_count; i++) {
        struct weft_piece_array *array = &piece->arrays[i];
        quantise_array(piece, array, dtype, piece->data + end);
        array->at = end;
        end += weft_piece_array_bytes((enum weft_piece_dtype)array->dtype, array->count);
    }
    piece->bytes = end;
}

/* Elements first .. first + count of an array that is not f32. */
static void dequantise(const uint8_t *data, const struct weft_piece_array *array, uint64_t first,
                       uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = first + i;
        float scale;
        if (array->dtype == WEFT_PIECE_U8) {
            out[i] = data[at];
            continue;
        }
        if (array->dtype == WEFT_PIECE_BF16) {
            const uint32_t bits = (uint32_t)get_le16(data + at * sizeof(uint16_t)) << 16;
            memcpy(&out[i], &bits, sizeof bits);
            continue;
        }
        memcpy(&scale, data + array->count + at / WEFT_PIECE_SCALE_BLOCK * sizeof scale, sizeof scale);
        out[i] = (float)(int8_t)data[at] * scale;
    }
}

void weft_piece_values(const struct weft_piece *piece, uint32_t index, uint64_t first, uint64_t count,
                       float *out)
{
    const struct weft_piece_array *array = &piece->arrays[index];
    const uint8_t *data = piece->data + array->at;
    WEFT_ASSERT(first <= array->count && count <= array->count - first);
    if (array->dtype == WEFT_PIECE_F32) memcpy(out, data + first * sizeof *out, count * sizeof *out);
    else dequantise(data, array, first, count, out);
}
