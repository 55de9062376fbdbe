/* codec_times.h - figures of compressed exchanges: the time of their arithmetic and the bytes that they save.
 * An exchange is one tensor, or one batch of tensors, that passes through a codec. */
#ifndef WEFT_COLLECTIVE_CODEC_TIMES_H
#define WEFT_COLLECTIVE_CODEC_TIMES_H

#include <stdint.h>

#include "base/base.h"

/* Sums over all exchanges without error. Written by one thread. */
struct weft_codec_times {
    struct weft_histogram encode, decode; /* one value for each exchange, all its rounds together */
    uint64_t gradient_bytes;              /* bytes of the gradients as f32 */
    uint64_t encoded_bytes;               /* bytes of the contributions that replaced them */
    uint64_t compute_ns;                  /* all-reduce mode: time of threads that compute */
};

/* Figures of one exchange, whose stages run one after the other. Zeroed at its start. */
struct weft_codec_exchange {
    uint64_t began_ns; /* start of the running encode, which may wait for a device; 0: none runs */
    uint64_t encode_ns;
    uint64_t decode_ns; /* from the aggregate to the gradient; all-reduce mode: also makes the aggregate */
    uint64_t gradient_bytes, encoded_bytes;
    uint64_t compute_ns;
};

static inline void weft_codec_times_add(struct weft_codec_times *times,
                                        const struct weft_codec_exchange *exchange)
{
    weft_histogram_add(&times->encode, exchange->encode_ns);
    weft_histogram_add(&times->decode, exchange->decode_ns);
    times->gradient_bytes += exchange->gradient_bytes;
    times->encoded_bytes += exchange->encoded_bytes;
    times->compute_ns += exchange->compute_ns;
}

#endif
