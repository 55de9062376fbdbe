/* ucx_settings.h - what the options of an endpoint mean for UCX. No UCX in here.
 *
 * tune  "name=value,name=value", bytes with K, M or G behind them:
 *   eager_window=4M   how much one peer may leave untaken at this endpoint before it must announce (64K to
 *                     1G)
 *   fragment=256K     payload of one DATA message, 4K to 16M: with its header it should fit
 *                     UCX_TCP_RX_SEG_SIZE (set to 264K; 64512 where the user has set it, and on lanes beside
 *                     tcp)
 *   direct=y          n: never UCX's own rendezvous, put and get, but ours over active messages */
#ifndef WEFT_TRANSPORT_UCX_SETTINGS_H
#define WEFT_TRANSPORT_UCX_SETTINGS_H

#include "transport/transport.h"

struct ucx_settings {
    char lanes[64];   /* as asked for, for names and sentences */
    char list[256];   /* UCX_TLS */
    char devices[256]; /* UCX_NET_DEVICES */
    char ports[16];   /* "first-last", "": any */
    bool tcp, shared_memory, verbs; /* what the list holds ("all": everything) */
    uint64_t eager_window;
    uint64_t fragment_bytes;
    uint64_t eager_bytes_max;
    uint64_t segment_bytes; /* for UCX_TCP_RX_SEG_SIZE; 0: as it is */
    bool direct;
};

/* WEFT_ERR_INVALID: the sentence names the option. */
enum weft_status ucx_settings_read(const struct weft_transport_options *options,
                                   struct ucx_settings *settings_out, struct weft_error *error);

#endif
