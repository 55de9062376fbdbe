/* clip.h - updates with clipped gradients; see clip.c. */
#ifndef WEFT_CLIENT_ELASTIC_CLIP_H
#define WEFT_CLIENT_ELASTIC_CLIP_H

struct weft_session;

/* The step is good: makes the updates that waited for the norm. Caller's thread, no request open. */
void client_clip_update(struct weft_session *session);

#endif
