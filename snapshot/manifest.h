/* manifest.h - what writer and reader of a manifest share. Internal. */
#ifndef WEFT_SNAPSHOT_MANIFEST_H
#define WEFT_SNAPSHOT_MANIFEST_H

#include <jansson.h>
#include <stdio.h>

#include "snapshot/snapshot.h"

#define MANIFEST_FORMAT "weft-snapshot-1"

/* Canonical text, with a NUL behind it; the caller frees it. */
enum weft_status manifest_text(struct weft_env *env, const json_t *root, char **text_out, size_t *bytes_out);
/* Of the canonical text without the key checksum. */
enum weft_status manifest_checksum(struct weft_env *env, const json_t *root,
                                   char text_out[WEFT_PIECE_NAME_BYTES]);

#endif
