/* chunking.c - see chunking.h. */
#include "compress/split/chunking.h"

#define ALIGN_ELEMS 16u /* the width of the fixed summation order; keeps chunks vector-aligned */

static bool has_choice(const struct weft_chunking *chunking)
{
    return chunking->candidates && chunking->candidates->count > 1;
}

uint64_t weft_chunking_elems(const struct weft_chunking *chunking)
{
    const bool dense = chunking->codec->id == WEFT_CODEC_DENSE,
               choice = has_choice(chunking); /* with candidates the workers update and the shards only add */
    if (!choice && weft_optimizer_is_whole(chunking->optimizer)) return chunking->elems;
    if (!dense && !weft_codec_can_split(chunking->codec)) return chunking->elems;
    const uint64_t unit = dense && !choice ? ALIGN_ELEMS : WEFT_CODEC_PIECE;
    const uint64_t elems = chunking->chunk_bytes / chunking->elem_bytes / unit * unit;
    return elems < chunking->elems ? elems : chunking->elems;
}

uint64_t weft_chunking_count(const struct weft_chunking *chunking, bool *splits_out)
{
    const uint64_t piece = weft_chunking_elems(chunking), pieces = (chunking->elems + piece - 1) / piece;
    uint64_t chunks = pieces;
    for (uint32_t candidate = 1; has_choice(chunking) && candidate < chunking->candidates->count;
         candidate++) {
        const bool splits = weft_codec_can_split(&chunking->candidates->specs[candidate]);
        if (splits_out) splits_out[candidate] = splits;
        chunks += splits ? pieces : 1;
    }
    return chunks;
}
