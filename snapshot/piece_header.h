/* piece_header.h - the safetensors header of a piece: text from arrays, arrays from text. Internal. */
#ifndef WEFT_SNAPSHOT_PIECE_HEADER_H
#define WEFT_SNAPSHOT_PIECE_HEADER_H

#include "snapshot/snapshot.h"

/* 8 bytes of length and the JSON, padded to 8 bytes. ref: base and chain are written; NULL: the header of the
 * content, which gives the name. The caller frees *out. */
enum weft_status piece_header_write(const struct weft_piece *piece, const struct weft_piece_ref *ref,
                                    uint8_t **out, size_t *bytes_out);
/* Reads the header of a file of `bytes`. Fills arrays and `bytes` of the piece, base and chain of ref.
 * *data_out: first byte of the data. */
enum weft_status piece_header_read(struct weft_piece *piece, const uint8_t *file, size_t bytes,
                                   struct weft_piece_ref *ref, size_t *data_out, struct weft_error *error);

/* 32 lowercase hexadecimal digits. */
bool piece_name_is_valid(const char *name);

#endif
