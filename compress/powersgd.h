/* powersgd.h - the decoder that worker and combiner share. Private to the room. */
#ifndef WEFT_COMPRESS_POWERSGD_H
#define WEFT_COMPRESS_POWERSGD_H

#include "compress/compress.h"

/* out (rows, cols) = basis^T (q_sum * scale) of every matrix; q_scaled, as large as q_sum, is scratch. */
void powersgd_decode(const struct weft_codec_spec *spec, const struct weft_shape *shape, const float *basis, const float *q_sum, float *q_scaled,
                     float scale, float *out);

#endif
