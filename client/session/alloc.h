/* alloc.h - memory of weft_alloc. */
#ifndef WEFT_CLIENT_SESSION_ALLOC_H
#define WEFT_CLIENT_SESSION_ALLOC_H

struct weft_session;

void client_memory_free_all(struct weft_session *session);

#endif
