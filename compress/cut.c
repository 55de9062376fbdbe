/* cut.c - see cut.h. */
#include "compress/cut.h"

#define ALIGN_ELEMS 16u /* the width of the fixed summation order; keeps chunks vector-aligned */

static bool has_choice(const struct weft_cut *cut)
{
    return cut->candidates && cut->candidates->count > 1;
}

uint64_t weft_cut_elems(const struct weft_cut *cut)
{
    const bool dense = cut->codec->id == WEFT_CODEC_DENSE,
               choice = has_choice(cut); /* with candidates the workers update and the shards only add */
    if (!choice && weft_optimizer_is_whole(cut->optimizer)) return cut->elems;
    if (!dense && !weft_codec_cuts(cut->codec)) return cut->elems;
    const uint64_t unit = dense && !choice ? ALIGN_ELEMS : WEFT_CODEC_PIECE;
    const uint64_t elems = cut->chunk_bytes / cut->elem_bytes / unit * unit;
    return elems < cut->elems ? elems : cut->elems;
}

uint64_t weft_cut_chunks(const struct weft_cut *cut, bool *cuts_out)
{
    const uint64_t piece = weft_cut_elems(cut), pieces = (cut->elems + piece - 1) / piece;
    uint64_t chunks = pieces;
    for (uint32_t candidate = 1; has_choice(cut) && candidate < cut->candidates->count; candidate++) {
        const bool cuts = weft_codec_cuts(&cut->candidates->specs[candidate]);
        if (cuts_out) cuts_out[candidate] = cuts;
        chunks += cuts ? pieces : 1;
    }
    return chunks;
}
