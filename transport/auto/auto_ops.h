/* auto_ops.h - the composite endpoint "auto" as a backend, and its functions for the core. */
#ifndef WEFT_TRANSPORT_AUTO_AUTO_OPS_H
#define WEFT_TRANSPORT_AUTO_AUTO_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops auto_transport_ops;

/* As weft_transport_connect; the peer belongs to the child that both ends choose. */
enum weft_status auto_connect(struct weft_transport *parent, uint32_t peer_id, const void *blob, size_t bytes,
                              struct weft_peer **peer_out);
/* The part of a window's key for the child of `peer`. WEFT_ERR_MALFORMED: not such a key;
 * WEFT_ERR_UNSUPPORTED: that child could not open the window. */
enum weft_status auto_key_part(const struct weft_peer *peer, const void **key, size_t *bytes);
/* As weft_peer_describe, with the reasons against the other backends. */
void auto_describe(struct weft_peer *peer, char *out, size_t bytes);

#endif
