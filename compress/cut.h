/* cut.h - how a tensor in server mode is cut into chunks. The coordinator cuts; a worker asks before it declares. */
#ifndef WEFT_CUT_H
#define WEFT_CUT_H

#include <stdint.h>

#include "compress/compress.h"
#include "compress/judge.h"
#include "kernels/kernels.h"

struct weft_cut {
    uint64_t elems, elem_bytes, chunk_bytes;        /* chunk_bytes: the longest chunk's, declared */
    const struct weft_codec_spec *codec;            /* resolved; of a choice its first, dense */
    const struct weft_optimizer *optimizer;
    const struct weft_judge_candidates *candidates; /* resolved; fewer than two: there is no choice */
};

/* Elements of a chunk, the last one apart: a multiple of what the codec works in, or all. */
uint64_t weft_cut_elems(const struct weft_cut *cut);
/* Which of the candidates but dense are cut as that one is; the others are one chunk each. cuts_out (WEFT_JUDGE_CANDIDATES_MAX,), may be NULL.
 * Returns the chunks of the tensor with all its candidates. */
uint64_t weft_cut_chunks(const struct weft_cut *cut, bool *cuts_out);

#endif
