/* route.h - inside the composite endpoint "auto": several backends behind one face.
 *
 *      weft_transport_recv, _cancel, _handler ... ──► whole ──► the part of that peer (or all parts)
 *      weft_transport_send, _put, _get, _import ──────────────► peer ──► its part: the whole is not in the way
 *      completions, arrivals, peer_failed ◄───────── progress of the whole ◄── progress of each part
 *
 * Each part is an ordinary endpoint of one backend with the same id, and a peer is a peer of one part; the core sees
 * weft_transport.parts and hands on what concerns one of them. So a message costs what it costs without the whole.
 *
 * Which part. An address is an *offer*: every backend that works here, in the order of preference, with its own address.
 * Both ends apply one rule (route_offer.c) to both offers and nothing else, so they come to the same answer without
 * asking each other: what both offer and what can work between the two; of these, what a link table that both have read
 * says is quickest, otherwise the first in the order of the end with the smaller id.
 *
 *   route.c          life, peers, progress, sleeping
 *   route_offer.c    offers and the rule; pure
 *   route_devices.c  which of the devices named is for which part
 *   route_window.c   windows: one in every part, and a key made of their keys
 *
 * Settings (options.tune): use=shm+verbs+ucx (what to offer, most wanted first); links=FILE (a link table as `weft doctor`
 * writes it, the same at all ends, else it is ignored); BACKEND.NAME=VALUE (a setting of one part: shm.cma=off). */
#ifndef WEFT_TRANSPORT_ROUTE_H
#define WEFT_TRANSPORT_ROUTE_H

#include "transport/core/core.h"

enum { ROUTE_KINDS = 3, ROUTE_LOOK_EVERY = 64, ROUTE_TUNE_BYTES = 512, ROUTE_WHY_BYTES = 160, ROUTE_DEVICES_BYTES = 256 };
enum { ROUTE_SHM, ROUTE_VERBS, ROUTE_UCX };
extern const char *const route_kind_names[ROUTE_KINDS]; /* most wanted first */

/* ---- offers ---- */

struct route_way {
    uint8_t kind;
    const uint8_t *blob; /* (bytes,) of that backend; inside the decoded bytes */
    uint32_t bytes;
};

struct route_offer {
    uint32_t nonce_hash, id;
    uint64_t host;        /* this boot of this host; 0: not known */
    uint64_t space;       /* its network namespace; without a secret its user, too */
    uint64_t fingerprint; /* of the host, as in link tables; 0 without `links` */
    uint64_t links;       /* digest of the link table that was read; 0: none */
    uint32_t way_count;
    struct route_way ways[ROUTE_KINDS]; /* most wanted first */
};

size_t route_offer_encode(const struct route_offer *offer, uint8_t out[WEFT_TRANSPORT_ADDRESS_BYTES_MAX]); /* 0: too long */
/* WEFT_ERR_MALFORMED, _VERSION. The offer points into `data`. */
enum weft_status route_offer_decode(const void *data, size_t bytes, struct route_offer *offer_out);

enum route_reason {
    ROUTE_TAKEN = 0,
    ROUTE_LATER,     /* works, too */
    ROUTE_NOT_HERE,
    ROUTE_NOT_THERE,
    ROUTE_OTHER_HOST,
    ROUTE_OTHER_SPACE,
    ROUTE_NO_SECRET,
    ROUTE_BAD_LINK,
};
/* The kind that both ends take, or -1; reasons by kind. Swapping the two ends changes nothing but NOT_HERE and NOT_THERE.
 * secret: the job has one. links: the table whose digest is in `mine`, or NULL. */
int route_choose(const struct route_offer *mine, const struct route_offer *theirs, bool secret, const struct weft_link_table *links,
                 enum route_reason reasons_out[ROUTE_KINDS]);

/* ---- devices ---- */

/* One list names the devices of all parts: RDMA devices are for verbs, network interfaces for UCX's sockets. */
struct route_devices {
    char all[ROUTE_DEVICES_BYTES], rdma[ROUTE_DEVICES_BYTES], network[ROUTE_DEVICES_BYTES];
};
/* list: "mlx5_0:1,eth0", or NULL for "lo". What is an RDMA device is looked up below `root`, "/". WEFT_ERR_INVALID: too long. */
enum weft_status route_devices_split(const char *root, const char *list, struct route_devices *devices_out, struct weft_error *error);
/* Is there any RDMA device below `root`, "/"? */
bool route_has_rdma(const char *root);
/* Lanes of UCX that run over network interfaces, whatever RDMA devices there are. */
bool route_lanes_are_sockets(const char *lanes);

/* ---- the endpoint ---- */

struct route {
    struct weft_transport *whole;
    struct weft_transport *parts[ROUTE_KINDS]; /* those that work here, most wanted first; whole->parts */
    uint8_t kinds[ROUTE_KINDS];                /* of parts */
    char why[ROUTE_KINDS][ROUTE_WHY_BYTES];    /* by kind: why it is not here */
    struct route_offer offer;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    bool secret;
    struct weft_link_table *links; /* owned; or NULL */
    int epoll_fd;
    bool look_around;              /* may have slept: parts without peers get a look, too */
    uint32_t turn;
};

static inline struct route *route_of(struct weft_transport *whole) { return whole->backend; }
/* The kind of a part, by its place. */
int route_kind_of(const struct route *route, const struct weft_transport *part);

/* route_keep.c: weft_transport_ops.memory_keep and memory_forget. */
enum weft_status route_keep(struct weft_transport *transport, void *address, size_t bytes, void **kept_out, struct weft_error *error);
void route_keep_end(struct weft_transport *transport, void *kept);

/* route_window.c */
enum weft_status route_window_open(struct weft_transport *transport, struct weft_window *window, struct weft_error *error);
void route_window_close(struct weft_transport *transport, struct weft_window *window);
void route_window_free(struct weft_transport *transport, struct weft_window *window);

#endif
