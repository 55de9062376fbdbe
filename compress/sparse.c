/* sparse.c - sparse gradients as bytes: index stream (index_block.c), then the values in index order as f32.
 *
 * A reader walks the stream in batches, so neither checking nor scattering needs memory for all indices. */
#include <string.h>

#include "compress/index_block.h"
#include "compress/sparse.h"
#include "kernels/kernels.h"

enum { BATCH = 512 };

size_t sparse_encode(uint8_t *out, const uint32_t *indices, const float *values, uint64_t count,
                     uint64_t elem_count)
{
    const size_t index_bytes = weft_index_encode(indices, count, elem_count, out);
    memcpy(out + index_bytes, values, count * sizeof *values);
    return index_bytes + count * sizeof *values;
}

size_t sparse_dense_bytes(uint64_t elem_count)
{
    return sizeof(uint32_t) + elem_count * sizeof(float);
}

bool sparse_is_dense(const void *data, size_t bytes)
{
    uint32_t count;
    if (bytes < sizeof count) return false;
    memcpy(&count, data, sizeof count);
    return count == SPARSE_DENSE;
}

size_t sparse_encode_dense(uint8_t *out, const uint32_t *indices, const float *values, uint64_t count,
                           uint64_t elem_count)
{
    const uint32_t mark = SPARSE_DENSE;
    float *const vector = (float *)(void *)(out + sizeof mark);
    memcpy(out, &mark, sizeof mark);
    memset(vector, 0, elem_count * sizeof *vector);
    for (uint64_t i = 0; i < count; i++)
        vector[indices[i]] = values[i];
    return sparse_dense_bytes(elem_count);
}

enum weft_status sparse_check(const void *data, size_t bytes, uint64_t elem_count, uint64_t count_max,
                              uint64_t *count_out)
{
    struct index_reader reader;
    uint32_t indices[BATCH], count;
    uint64_t promised;
    if (sparse_is_dense(data, bytes)) {
        *count_out = elem_count;
        return bytes == sparse_dense_bytes(elem_count) ? WEFT_OK : WEFT_ERR_MALFORMED;
    }
    WEFT_TRY(index_reader_begin(&reader, data, bytes, elem_count, count_max, &promised));
    do
        WEFT_TRY(index_reader_read(&reader, indices, BATCH, &count));
    while (count > 0);
    if ((uint64_t)(reader.end - reader.at) != promised * sizeof(float)) return WEFT_ERR_MALFORMED;
    *count_out = promised;
    return WEFT_OK;
}

void sparse_read(const void *data, size_t bytes, uint64_t elem_count, uint32_t *indices_out,
                 float *values_out)
{
    struct index_reader reader;
    uint64_t total;
    uint32_t count;
    enum weft_status status = index_reader_begin(&reader, data, bytes, elem_count, elem_count, &total);
    WEFT_ASSERT(status == WEFT_OK);
    memcpy(values_out, (const uint8_t *)data + bytes - total * sizeof *values_out,
           total * sizeof *values_out);
    while ((status = index_reader_read(&reader, indices_out, BATCH, &count)) == WEFT_OK && count > 0)
        indices_out += count;
    WEFT_ASSERT(status == WEFT_OK);
}

void sparse_scatter(const void *data, size_t bytes, uint64_t elem_count, float scale, float *out)
{
    struct index_reader reader;
    uint32_t indices[BATCH], count;
    float values[BATCH];
    uint64_t total;
    if (sparse_is_dense(data, bytes)) {
        weft_kernels()->scale_f32(
            out, (const float *)(const void *)((const uint8_t *)data + sizeof(uint32_t)), scale, elem_count);
        return;
    }
    enum weft_status status = index_reader_begin(&reader, data, bytes, elem_count, elem_count, &total);
    WEFT_ASSERT(status == WEFT_OK);
    const uint8_t *at = (const uint8_t *)data + bytes - total * sizeof *values;

    memset(out, 0, elem_count * sizeof *out);
    while ((status = index_reader_read(&reader, indices, BATCH, &count)) == WEFT_OK && count > 0) {
        memcpy(values, at, count * sizeof *values);
        at += count * sizeof *values;
        weft_kernels()->scale_f32(values, values, scale, count);
        for (uint32_t i = 0; i < count; i++)
            out[indices[i]] = values[i];
    }
    WEFT_ASSERT(status == WEFT_OK);
}
