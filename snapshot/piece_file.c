/* piece_file.c - the file of a piece: safetensors, bytes shuffled, zstd. The only file that includes zstd.
 *
 *     arrays -> xor with the base -> bytes of equal significance together -> one zstd frame
 *
 * A file without base and of one byte per element is plain safetensors inside zstd. The name hashes the
 * content before xor and shuffle, so it does not depend on the base. Size of the frame, of the header and of
 * each array are checked before memory is taken for them. */
#include <stdio.h>
#include <string.h>
#include <zstd.h>

#include "snapshot/piece_header.h"

#define LEVEL 1
#define CONTENT_BYTES_MAX (WEFT_PIECE_HEADER_BYTES_MAX + WEFT_PIECE_BYTES_MAX)

/* ---- name and layout ---- */

enum weft_status weft_piece_name(const struct weft_piece *piece, char name_out[WEFT_PIECE_NAME_BYTES])
{
    uint8_t *header, hash[WEFT_CONTENT_HASH_BYTES];
    size_t bytes;
    WEFT_TRY(piece_header_write(piece, NULL, &header, &bytes));
    weft_content_hash(header, bytes, piece->data, piece->bytes, hash);
    weft_hex_encode(hash, sizeof hash, name_out);
    weft_free_bytes(piece->env, header);
    return WEFT_OK;
}

enum weft_status weft_piece_layout(const struct weft_piece *piece, uint64_t *layout_out)
{
    uint8_t *header;
    size_t bytes;
    WEFT_TRY(piece_header_write(piece, NULL, &header, &bytes));
    *layout_out = weft_weight_hash(header, bytes);
    weft_free_bytes(piece->env, header);
    return WEFT_OK;
}

/* ---- shuffle ---- */

/* Byte k of element i of (count,) is stored at k * count + i. */
static void shuffle(const uint8_t *in, uint64_t count, size_t width, uint8_t *out)
{
    for (size_t k = 0; k < width; k++)
        for (uint64_t i = 0; i < count; i++) out[k * count + i] = in[i * width + k];
}

static void unshuffle(const uint8_t *in, uint64_t count, size_t width, uint8_t *out)
{
    for (size_t k = 0; k < width; k++)
        for (uint64_t i = 0; i < count; i++) out[i * width + k] = in[k * count + i];
}

/* Applies `move` to the elements of all arrays, and to scales. */
static void move_all(const struct weft_piece *piece, const uint8_t *in, uint8_t *out,
                     void (*move)(const uint8_t *, uint64_t, size_t, uint8_t *))
{
    for (uint32_t i = 0; i < piece->array_count; i++) {
        const struct weft_piece_array *array = &piece->arrays[i];
        const size_t width = array->dtype == WEFT_PIECE_F32 ? 4 : array->dtype == WEFT_PIECE_BF16 ? 2 : 1;
        const size_t bytes = weft_piece_array_bytes((enum weft_piece_dtype)array->dtype, array->count),
                     elements = array->count * width;
        move(in + array->at, array->count, width, out + array->at);
        if (bytes > elements)
            move(in + array->at + elements, (bytes - elements) / 4, 4, out + array->at + elements);
    }
}

static void xor_bytes(uint8_t *data, const uint8_t *with, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) data[i] ^= with[i];
}

/* ---- encoding ---- */

static enum weft_status compress(struct weft_env *env, const uint8_t *content, size_t bytes,
                                 uint8_t **file_out, size_t *bytes_out)
{
    const size_t bound = ZSTD_compressBound(bytes);
    uint8_t *file = weft_alloc_bytes(env, bound);
    if (!file) return WEFT_ERR_NO_MEMORY;
    const size_t written = ZSTD_compress(file, bound, content, bytes, LEVEL);
    if (ZSTD_isError(written)) {
        weft_free_bytes(env, file);
        return WEFT_ERR_NO_MEMORY; /* the bound suffices: only its context can be missing */
    }
    *file_out = file;
    *bytes_out = written;
    return WEFT_OK;
}

enum weft_status weft_piece_encode(const struct weft_piece *piece, const struct weft_piece *base,
                                   const char *base_name, uint32_t chain, uint8_t **file_out,
                                   size_t *bytes_out)
{
    struct weft_env *env = piece->env;
    struct weft_piece_ref ref = {.chain = chain};
    uint8_t *header;
    size_t header_bytes;
    WEFT_ASSERT(!base || (base->bytes == piece->bytes && chain >= 1 && chain <= WEFT_PIECE_CHAIN_MAX));
    if (base) snprintf(ref.base, sizeof ref.base, "%s", base_name);
    WEFT_TRY(piece_header_write(piece, &ref, &header, &header_bytes));
    const size_t bytes = header_bytes + piece->bytes;
    uint8_t *difference = base ? weft_alloc_bytes(env, piece->bytes + 1) : NULL,
            *content = weft_alloc_bytes(env, bytes);
    enum weft_status status = content && (!base || difference) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (header_bytes > WEFT_PIECE_HEADER_BYTES_MAX || piece->bytes > WEFT_PIECE_BYTES_MAX)
        status = WEFT_ERR_LIMIT;
    if (status == WEFT_OK) {
        memcpy(content, header, header_bytes);
        if (base) {
            memcpy(difference, piece->data, piece->bytes);
            xor_bytes(difference, base->data, piece->bytes);
        }
        move_all(piece, base ? difference : piece->data, content + header_bytes, shuffle);
        status = compress(env, content, bytes, file_out, bytes_out);
    }
    weft_free_bytes(env, header);
    weft_free_bytes(env, difference);
    weft_free_bytes(env, content);
    return status;
}

/* ---- decoding ---- */

/* The content of one zstd frame whose header gives its size. */
static enum weft_status decompress(struct weft_env *env, const uint8_t *file, size_t bytes,
                                   uint8_t **content_out, size_t *bytes_out, struct weft_error *error)
{
    const unsigned long long size = ZSTD_getFrameContentSize(file, bytes);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size < 8 ||
        size > CONTENT_BYTES_MAX)
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "a piece is damaged: it is no zstd frame of 8 to %zu bytes", CONTENT_BYTES_MAX);
    uint8_t *content = weft_alloc_bytes(env, (size_t)size);
    if (!content)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a piece of %llu bytes", size);
    const size_t written = ZSTD_decompress(content, (size_t)size, file, bytes);
    if (ZSTD_isError(written) || written != size) {
        weft_free_bytes(env, content);
        return weft_error_set(error, WEFT_ERR_MALFORMED, "a piece is damaged: zstd cannot decompress it");
    }
    *content_out = content;
    *bytes_out = written;
    return WEFT_OK;
}

enum weft_status weft_piece_decode(struct weft_env *env, const uint8_t *file, size_t bytes,
                                   struct weft_piece **piece_out, struct weft_piece_ref *ref_out,
                                   struct weft_error *error)
{
    uint8_t *content = NULL;
    size_t content_bytes = 0, at = 0;
    *ref_out = (struct weft_piece_ref){.stored = bytes};
    WEFT_TRY(decompress(env, file, bytes, &content, &content_bytes, error));
    struct weft_piece *piece = weft_piece_create(env, WEFT_PIECE_ARRAYS_MAX, content_bytes);
    enum weft_status status =
        piece ? WEFT_OK : weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a piece");
    if (status == WEFT_OK) status = piece_header_read(piece, content, content_bytes, ref_out, &at, error);
    if (status == WEFT_OK) {
        move_all(piece, content + at, piece->data, unshuffle);
        ref_out->bytes = piece->bytes;
        *piece_out = piece;
    } else weft_piece_free(piece);
    weft_free_bytes(env, content);
    return status;
}

enum weft_status weft_piece_rebase(struct weft_piece *piece, const struct weft_piece *base)
{
    uint64_t layout, base_layout;
    WEFT_TRY(weft_piece_layout(piece, &layout));
    WEFT_TRY(weft_piece_layout(base, &base_layout));
    if (layout != base_layout || piece->bytes != base->bytes) return WEFT_ERR_MALFORMED;
    xor_bytes(piece->data, base->data, piece->bytes);
    return WEFT_OK;
}
