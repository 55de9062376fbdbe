/* fuzz_snapshot_piece.c - any file is a valid piece, whose arrays can be read, or refused with a sentence.
 * The last byte of an input that is no zstd frame chooses how the rest is packed, so that inputs reach the
 * reader of the header. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "snapshot/snapshot.h"
#include "tests/fuzz/fuzz.h"

static volatile float sink; /* so that every element is read */

static void read_all(const struct weft_piece *piece)
{
    for (uint32_t i = 0; i < piece->array_count; i++) {
        const uint64_t count = piece->arrays[i].count;
        float *values = malloc(count * sizeof *values);
        if (!values) abort();
        weft_piece_values(piece, i, 0, count, values);
        for (uint64_t k = 0; k < count; k++) sink = values[k];
        free(values);
    }
}

static void decode(const uint8_t *file, size_t bytes)
{
    struct weft_error error = {0};
    struct weft_piece *piece;
    struct weft_piece_ref ref;
    char name[WEFT_PIECE_NAME_BYTES];
    if (weft_piece_decode(weft_env_system(), file, bytes, &piece, &ref, &error) < 0) {
        if (!error.text[0]) abort();
        return;
    }
    if (ref.chain > WEFT_PIECE_CHAIN_MAX || piece->bytes > WEFT_PIECE_BYTES_MAX) abort();
    read_all(piece);
    if (weft_piece_name(piece, name) < 0 || strlen(name) != WEFT_PIECE_NAME_BYTES - 1) abort();
    weft_piece_free(piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    decode(data, bytes);
    if (bytes == 0 || bytes > (1 << 20)) return 0;
    const size_t bound = ZSTD_compressBound(bytes);
    uint8_t *file = malloc(bound);
    if (!file) abort();
    const size_t packed = ZSTD_compress(file, bound, data, bytes, 1);
    if (ZSTD_isError(packed)) abort();
    decode(file, packed);
    free(file);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const names[] = {"a", "layer.weight", "odd @name\"", "\xc3\xa9"};
    float values[300];
    uint8_t *file;
    size_t bytes = 0;
    for (size_t i = 0; i < 300; i++) values[i] = (float)(i * (number + 1));
    struct weft_piece *piece =
        number % 5 == 4 ? weft_piece_create_worker(weft_env_system(), 7, number, (const uint8_t *)values, 99)
                        : weft_piece_create(weft_env_system(), 3, sizeof values * 3);
    if (!piece) abort();
    for (uint32_t i = 0; number % 5 != 4 && i <= number % 3; i++) {
        struct weft_piece_array array = {.part = (uint8_t)(i ? WEFT_PIECE_STATE + i - 1 : 0),
                                         .offset = number * 100,
                                         .count = 1 + number % 300};
        snprintf(array.tensor, sizeof array.tensor, "%s", names[number % 4]);
        weft_piece_add(piece, &array, values);
    }
    weft_piece_quantise(piece, (enum weft_piece_dtype)(number / 2 % WEFT_PIECE_WEIGHT_DTYPES));
    if (weft_piece_encode(piece, number & 1 ? piece : NULL, "0123456789abcdef0123456789abcdef", 1, &file,
                          &bytes) < 0)
        abort();
    if (number & 2) { /* what is inside the frame */
        bytes = ZSTD_decompress(out, capacity, file, bytes);
        if (ZSTD_isError(bytes)) bytes = 0;
    } else if (bytes <= capacity) memcpy(out, file, bytes);
    weft_free_bytes(weft_env_system(), file);
    weft_piece_free(piece);
    return bytes <= capacity ? bytes : 0;
}
