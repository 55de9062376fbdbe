/* sparse.h - the bytes of sparse gradients: an index stream, then one f32 per index. Private to the room.
 * Contributions and aggregates have the same format. */
#ifndef WEFT_COMPRESS_SPARSE_H
#define WEFT_COMPRESS_SPARSE_H

#include "compress/compress.h"

/* Returns the bytes written. */
size_t sparse_encode(uint8_t *out, const uint32_t *indices, const float *values, uint64_t count, uint64_t elem_count);

/* Everything a decoder may rely on later: whole, no byte left over, at most count_max indices. UNTRUSTED. */
enum weft_status sparse_check(const void *data, size_t bytes, uint64_t elem_count, uint64_t count_max, uint64_t *count_out);

/* out (elem_count,) = values * scale where there is one, else +0. `data` was checked. */
void sparse_scatter(const void *data, size_t bytes, uint64_t elem_count, float scale, float *out);

#endif
