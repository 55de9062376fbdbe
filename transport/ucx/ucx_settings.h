/* ucx_settings.h - meaning of the endpoint options for UCX. Uses no UCX.
 *
 * tune: "name=value,name=value"; sizes take K, M or G:
 *   eager_window=4M   unconsumed eager bytes of one peer before it must announce (64K to 1G)
 *   fragment=256K     payload of one DATA message, 4K to 16M. With its header it should fit
 *                     UCX_TCP_RX_SEG_SIZE
 *                     (set to 264K; 64512 if the user has set it, and on lanes other than tcp)
 *   direct=y          n: no UCX rendezvous, put and get; active messages only */
#ifndef WEFT_TRANSPORT_UCX_SETTINGS_H
#define WEFT_TRANSPORT_UCX_SETTINGS_H

#include "transport/transport.h"

struct ucx_settings {
    char lanes[64];   /* as given, for names and error texts */
    char list[256];   /* UCX_TLS */
    char devices[256]; /* UCX_NET_DEVICES */
    char ports[16];   /* "first-last", "": any */
    bool tcp, shared_memory, verbs; /* lanes in the list ("all": every one) */
    uint64_t eager_window;
    uint64_t fragment_bytes;
    uint64_t eager_bytes_max;
    uint64_t segment_bytes; /* for UCX_TCP_RX_SEG_SIZE; 0: unchanged */
    bool direct;
};

/* WEFT_ERR_INVALID: the sentence names the option. */
enum weft_status ucx_settings_read(const struct weft_transport_options *options,
                                   struct ucx_settings *settings_out, struct weft_error *error);

#endif
