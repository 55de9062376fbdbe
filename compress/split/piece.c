/* piece.c - which codecs can be combined in pieces, and the length of the pieces.
 *
 *     one codec, whole tensor --encode--> [piece 0][piece 1] ... [rest]     each to its own combiner
 *     [sum 0][sum 1] ... [rest] --take--> as the aggregate of one combiner
 *
 * An element's code depends on its value, its block, and its number in the tensor. Pieces begin at
 * multiples of the block, so the bits are those of one combiner. */
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
    if (!weft_codec_can_split(&codec->spec)) return WEFT_ERR_UNSUPPORTED;
    if (elems == 0 || elems % WEFT_CODEC_PIECE != 0) return WEFT_ERR_INVALID;
    codec->piece = elems < codec->elems ? (size_t)elems : codec->elems;
    return WEFT_OK;
}
