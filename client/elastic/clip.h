/* clip.h - updates with clipped gradients; see clip.c. */
#ifndef WEFT_CLIENT_ELASTIC_CLIP_H
#define WEFT_CLIENT_ELASTIC_CLIP_H

#include "weft/weft.h"

/* The step is good: makes the updates that waited for the norm, here and at the shards. Blocks up to the
 * deadline. Caller's thread, no request open. */
enum weft_status client_clip_update(struct weft_session *session);

#endif
