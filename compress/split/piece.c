/* piece.c - which codecs may be combined in pieces, and how a codec is told.
 *
 *     one codec, whole tensor --encode--> [piece 0][piece 1] ... [rest]     each to a combiner of its own
 *     [sum 0][sum 1] ... [rest] --take--> as the aggregate of one combiner
 *
 * A cut at a multiple of the block is nowhere to be seen in what is summed: an element's code depends on
 * its own value, on those of its block, and on its number in the tensor. So the bits are those of one
 * combiner for all. */
#include "compress/codec.h"

bool weft_codec_can_split(const struct weft_codec_spec *resolved)
{
    switch (resolved->id) {
    case WEFT_CODEC_BF16:
    case WEFT_CODEC_INT8:
    case WEFT_CODEC_INT4:
    case WEFT_CODEC_E4M3:
    case WEFT_CODEC_E5M2: return true;
    default: return false;
    }
}

/* It is the whole tensor that was long enough to be coded. */
struct weft_codec_spec weft_codec_of_piece(const struct weft_codec_spec *resolved)
{
    struct weft_codec_spec spec = *resolved;
    spec.min_count = 0;
    return spec;
}

uint64_t weft_codec_malformed_elem(const struct weft_codec *codec)
{
    return codec->malformed_elem;
}

enum weft_status weft_codec_set_pieces(struct weft_codec *codec, uint64_t elems)
{
    if (codec->progress != 0) return WEFT_ERR_STATE;
    if (codec->device || !weft_codec_can_split(&codec->spec)) return WEFT_ERR_UNSUPPORTED;
    if (elems == 0 || elems % WEFT_CODEC_PIECE != 0) return WEFT_ERR_INVALID;
    codec->piece = elems < codec->elems ? (size_t)elems : codec->elems;
    return WEFT_OK;
}
