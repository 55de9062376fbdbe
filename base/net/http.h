/* http.h - HTTP server for GET and HEAD on a weft_net: one request for each connection, bounded in every way.
 *
 * A server beyond loopback serves its pages only to clients that send the token. Everything runs on the net
 * thread; `answer` must not block for long. */
#ifndef WEFT_BASE_NET_HTTP_H
#define WEFT_BASE_NET_HTTP_H

#include "base/net/net.h"

struct weft_http_reply {
    int code;                 /* 200, 404, ... */
    const char *content_type; /* NULL: plain text */
    char *body;               /* allocated with the env; the server frees it */
    size_t body_bytes;
};

struct weft_http_options {
    const char *host;
    uint16_t port;     /* 0: any free one */
    const char *token; /* a request needs "Authorization: Bearer TOKEN"; NULL: it does not. Copied */
    /* Pages that are served without the token; `answer` then gets is_trusted = false. NULL: none. */
    bool (*is_public)(const char *path);
    /* Writes the reply to a path, as sent and without query; a zeroed reply is a 404. */
    void (*answer)(void *context, const char *path, bool is_trusted, struct weft_http_reply *reply);
    void *context;
    uint32_t connections_max;      /* default 64; at the limit the oldest one is closed */
    uint64_t request_ns;           /* from accept until the reply has been read; default 10 s */
    uint32_t descriptors_reserved; /* descriptors of the process that connections leave free; default 64, at
                                    * most a quarter of the limit */
};
void weft_http_options_init(struct weft_http_options *options);
/* One server per net. Net thread. Statuses as weft_net_listen; WEFT_ERR_EXISTS also: a second server. */
enum weft_status weft_http_start(struct weft_net *net, const struct weft_http_options *options,
                                 uint16_t *port_out, struct weft_error *error);

#endif
