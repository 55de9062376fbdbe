/* powersgd.h - what the worker on the host, the one on a device and the combiner share. Private to the
 * module. */
#ifndef WEFT_COMPRESS_POWERSGD_H
#define WEFT_COMPRESS_POWERSGD_H

#include "compress/compress.h"

/* out (rows, cols) = basis^T (q_sum * scale) of every matrix; q_scaled, as large as q_sum, is scratch. */
void powersgd_decode(const struct weft_codec_spec *spec, const struct weft_shape *shape, const float *basis,
                     const float *q_sum, float *q_scaled, float scale, float *out);

/* Where the next power iteration begins: sum Q_i, each column scaled by a power of two, or a new draw for
 * a column without a direction. q and q_sum (matrices, rank, cols). */
void powersgd_next_q(const struct weft_codec_spec *spec, const struct weft_shape *shape, const float *q_sum,
                     uint64_t step, uint32_t iteration, float *q);
/* of the first step */
void powersgd_first_q(const struct weft_codec_spec *spec, const struct weft_shape *shape, float *q);
/* The aggregate of an even round, UNTRUSTED; its length is right. WEFT_ERR_MALFORMED: these are no unit
 * vectors. */
enum weft_status powersgd_take_basis(float *basis, const void *aggregate, size_t count);

#endif
