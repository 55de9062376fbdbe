/* fuzz_index.c - index decoder: increasing, in range, inside the bytes; accepted indices can be encoded. */
#include <stdlib.h>
#include <string.h>

#include "compress/compress.h"
#include "tests/fuzz/fuzz.h"

enum { COUNT_MAX = 4096 };

/* The first two bytes select the tensor: enough for three blocks, and an end inside one. */
static uint64_t elems_of(const uint8_t *data)
{
    return 1 + ((uint64_t)data[0] << 2 | (uint64_t)data[1] << 10) % 200000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint32_t indices[COUNT_MAX], again[COUNT_MAX];
    uint64_t count, count_again;
    size_t consumed, consumed_again;
    if (bytes < 2) return 0;
    const uint64_t elems = elems_of(data);
    if (weft_index_decode(data + 2, bytes - 2, elems, indices, COUNT_MAX, &count, &consumed) != WEFT_OK)
        return 0;
    if (count > COUNT_MAX || consumed > bytes - 2) abort();
    for (uint64_t i = 0; i < count; i++)
        if (indices[i] >= elems || (i > 0 && indices[i] <= indices[i - 1])) abort();

    uint8_t *encoded = malloc(weft_index_bytes_max(elems, count));
    const size_t written = weft_index_encode(indices, count, elems, encoded);
    /* the encoder's is never longer */
    if (written > weft_index_bytes_max(elems, count) || written > consumed) abort();
    if (weft_index_decode(encoded, written, elems, again, COUNT_MAX, &count_again, &consumed_again) !=
        WEFT_OK)
        abort();
    if (count_again != count || consumed_again != written ||
        memcmp(again, indices, count * sizeof *again) != 0)
        abort();
    free(encoded);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    uint32_t indices[300];
    uint64_t count = 0;
    out[0] = (uint8_t)(number * 31);
    out[1] = (uint8_t)(number * 7);
    const uint64_t elems = elems_of(out);
    for (uint64_t at = number; at < elems && count < 300; at += 1 + number * number * (1 + at % 3))
        indices[count++] = (uint32_t)at;
    return 2 + weft_index_encode(indices, count, elems, out + 2);
}
