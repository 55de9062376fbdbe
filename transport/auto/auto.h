/* auto.h - inside the composite endpoint "auto": several backends behind one face.
 *
 *      weft_transport_recv, _cancel, _handler ... ──► whole ──► the part of that peer (or all parts)
 *      weft_transport_send, _put, _get, _import ──────────────► peer ──► its part: the whole is not in the
 *      way completions, arrivals, peer_failed ◄───────── progress of the whole ◄── progress of each part
 *
 * Each part is an ordinary endpoint of one backend with the same id, and a peer is a peer of one part; the
 * core sees weft_transport.parts and hands on what concerns one of them. So a message costs what it costs
 * without the whole.
 *
 * Which part. An address is an *offer*: every backend that works here, in the order of preference, with its
 * own address. Both ends apply one rule (auto_address_list.c) to both offers and nothing else, so they come
 * to the same answer without asking each other: what both offer and what can work between the two; of these,
 * what a link table that both have read says is quickest, otherwise the first in the order of the end with
 * the smaller id.
 *
 *   route.c          life, peers, progress, sleeping
 *   auto_address_list.c    offers and the rule; pure
 *   auto_devices.c  which of the devices named is for which part
 *   auto_window.c   windows: one in every part, and a key made of their keys
 *
 * Settings (options.tune): use=shm+verbs+ucx (what to offer, most wanted first); links=FILE (a link table
 * as `weft doctor` writes it, the same at all ends, else it is ignored); BACKEND.NAME=VALUE (a setting of
 * one part: shm.cma=off). */
#ifndef WEFT_TRANSPORT_AUTO_AUTO_H
#define WEFT_TRANSPORT_AUTO_AUTO_H

#include "transport/core/core.h"

enum {
    AUTO_BACKENDS = 3,
    AUTO_POLL_IDLE_EVERY = 64,
    AUTO_TUNE_BYTES = 512,
    AUTO_WHY_BYTES = 160,
    AUTO_DEVICES_BYTES = 256
};
enum { AUTO_SHM, AUTO_VERBS, AUTO_UCX };
extern const char *const auto_backend_names[AUTO_BACKENDS]; /* most wanted first */

/* ---- offers ---- */

struct auto_backend_address {
    uint8_t kind;
    const uint8_t *blob; /* (bytes,) of that backend; inside the decoded bytes */
    uint32_t bytes;
};

struct auto_address_list {
    uint32_t nonce_hash, id;
    uint64_t host;        /* this boot of this host; 0: not known */
    uint64_t net_namespace;       /* its network namespace; without a secret its user, too */
    uint64_t fingerprint; /* of the host, as in link tables; 0 without `links` */
    uint64_t links;       /* digest of the link table that was read; 0: none */
    uint32_t address_count;
    struct auto_backend_address addresses[AUTO_BACKENDS]; /* most wanted first */
};

/* 0: too long */
size_t auto_address_list_encode(const struct auto_address_list *address_list,
                                uint8_t out[WEFT_TRANSPORT_ADDRESS_BYTES_MAX]);
/* WEFT_ERR_MALFORMED, _VERSION. The offer points into `data`. */
enum weft_status auto_address_list_decode(const void *data, size_t bytes,
                                          struct auto_address_list *offer_out);

enum auto_reason {
    AUTO_CHOSEN = 0,
    AUTO_LESS_PREFERRED,     /* works, too */
    AUTO_MISSING_HERE,
    AUTO_MISSING_AT_PEER,
    AUTO_OTHER_HOST,
    AUTO_OTHER_NAMESPACE,
    AUTO_NO_SECRET,
    AUTO_BAD_LINK,
};
/* The kind that both ends take, or -1; reasons by kind. Swapping the two ends changes nothing but NOT_HERE
 * and NOT_THERE. secret: the job has one. links: the table whose digest is in `mine`, or NULL. */
int auto_choose(const struct auto_address_list *mine, const struct auto_address_list *theirs, bool secret,
                const struct weft_link_table *links, enum auto_reason reasons_out[AUTO_BACKENDS]);

/* ---- devices ---- */

/* One list names the devices of all parts: RDMA devices are for verbs, network interfaces for UCX's
 * sockets. */
struct auto_devices {
    char all[AUTO_DEVICES_BYTES], rdma[AUTO_DEVICES_BYTES], network[AUTO_DEVICES_BYTES];
};
/* list: "mlx5_0:1,eth0", or NULL for "lo". What is an RDMA device is looked up below `root`, "/".
 * WEFT_ERR_INVALID: too long. */
enum weft_status auto_devices_split(const char *root, const char *list, struct auto_devices *devices_out,
                                    struct weft_error *error);
/* Is there any RDMA device below `root`, "/"? */
bool auto_has_rdma(const char *root);
/* Lanes of UCX that run over network interfaces, whatever RDMA devices there are. */
bool auto_lanes_are_sockets(const char *lanes);

/* ---- the endpoint ---- */

struct auto_endpoint {
    struct weft_transport *parent;
    struct weft_transport *children[AUTO_BACKENDS]; /* those that work here, most wanted first;
                                                     * whole->parts */
    uint8_t kinds[AUTO_BACKENDS];                /* of parts */
    char why[AUTO_BACKENDS][AUTO_WHY_BYTES];    /* by kind: why it is not here */
    struct auto_address_list address_list;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    bool secret;
    struct weft_link_table *links; /* owned; or NULL */
    int epoll_fd;
    bool poll_idle;              /* may have slept: parts without peers get a look, too */
    uint32_t next_child;
};

static inline struct auto_endpoint *auto_of(struct weft_transport *parent) { return parent->backend; }
/* The kind of a part, by its place. */
int auto_backend_of(const struct auto_endpoint *auto_endpoint, const struct weft_transport *child);

/* auto_memory_register.c: weft_transport_ops.memory_register and memory_unregister. */
enum weft_status auto_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                      void **registered_out, struct weft_error *error);
void auto_memory_unregister(struct weft_transport *transport, void *kept);

/* auto_window.c */
enum weft_status auto_window_open(struct weft_transport *transport, struct weft_window *window,
                                  struct weft_error *error);
void auto_window_close(struct weft_transport *transport, struct weft_window *window);
void auto_window_free(struct weft_transport *transport, struct weft_window *window);

#endif
