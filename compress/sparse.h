/* sparse.h - the bytes of sparse gradients: an index stream, then one f32 per index. Private to the module.
 * Contributions and aggregates have the same format; an aggregate for which that would be longer than the
 * plain vector is the vector: u32 SPARSE_DENSE (no count of indices), then one f32 per element, +0 where
 * no rank sent one. */
#ifndef WEFT_COMPRESS_SPARSE_H
#define WEFT_COMPRESS_SPARSE_H

#include "compress/compress.h"

#define SPARSE_DENSE UINT32_MAX

size_t sparse_dense_bytes(uint64_t elem_count);
bool sparse_is_dense(const void *data, size_t bytes);

/* Returns the bytes written. */
size_t sparse_encode(uint8_t *out, const uint32_t *indices, const float *values, uint64_t count,
                     uint64_t elem_count);

/* As the vector; `out` begins at a multiple of 4. */
size_t sparse_encode_dense(uint8_t *out, const uint32_t *indices, const float *values, uint64_t count,
                           uint64_t elem_count);

/* Everything a decoder may rely on later: whole, no byte left over, at most count_max indices. UNTRUSTED. */
enum weft_status sparse_check(const void *data, size_t bytes, uint64_t elem_count, uint64_t count_max,
                              uint64_t *count_out);

/* The indices and values themselves; `data` was checked, is not dense, and the arrays hold its count. */
void sparse_read(const void *data, size_t bytes, uint64_t elem_count, uint32_t *indices_out,
                 float *values_out);

/* out (elem_count,) = values * scale where there is one, else +0. `data` was checked. */
void sparse_scatter(const void *data, size_t bytes, uint64_t elem_count, float scale, float *out);

#endif
