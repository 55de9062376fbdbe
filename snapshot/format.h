/* format.h - the format of a manifest or piece, as text: "weft-piece-1". */
#ifndef WEFT_SNAPSHOT_FORMAT_H
#define WEFT_SNAPSHOT_FORMAT_H

#include "base/base.h"

/* WEFT_ERR_VERSION unless `found` is `own`. The sentence shows whether a newer release has written it. found
 * NULL: it has none. what: "the manifest". */
enum weft_status snapshot_format_check(const char *found, const char *own, const char *what,
                                       struct weft_error *error);

#endif
