/* chunking.h - cuts a tensor in server mode into chunks. The coordinator places the chunks; a worker checks
 * their number first. */
#ifndef WEFT_COMPRESS_SPLIT_CHUNKING_H
#define WEFT_COMPRESS_SPLIT_CHUNKING_H

#include <stdint.h>

#include "compress/compress.h"
#include "compress/tuner/codec_tuner.h"
#include "kernels/kernels.h"

struct weft_chunking {
    uint64_t elems, elem_bytes, chunk_bytes; /* chunk_bytes: declared upper bound of a chunk */
    const struct weft_codec_spec *codec;     /* resolved; with candidates the first one, dense */
    const struct weft_optimizer *optimizer;
    const struct weft_codec_candidates *candidates; /* resolved; fewer than two: the codec is fixed */
};

/* Elements of each chunk but the last: a multiple of the codec's block, or all elements. */
uint64_t weft_chunking_elems(const struct weft_chunking *chunking);
/* Number of chunks of the tensor with all its candidates. splits_out (WEFT_CODEC_CANDIDATES_MAX,), may be
 * NULL: whether a candidate is cut like the dense one, else it is one chunk. */
uint64_t weft_chunking_count(const struct weft_chunking *chunking, bool *splits_out);

#endif
