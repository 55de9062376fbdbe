/* auto.h - inside the composite endpoint "auto": several backends behind one endpoint.
 *
 *   weft_transport_recv, _cancel, _handler ... ──► parent ──► the peer's child (or all children)
 *   weft_transport_send, _put, _get, _import ──────────────► peer ──► its child; the parent is not involved
 *   completions, arrivals, peer_failed ◄───────── progress of the parent ◄── progress of each child
 *
 * A child is an ordinary endpoint of one backend with the same id; a peer belongs to one child. The core
 * reads weft_transport.children and delegates. So a message costs no more than without `auto`.
 *
 * Choice: the address of an endpoint is an *address list*, every backend that works here with its own
 * address, preferred first. Both ends apply one pure rule (auto_choose.c) to both lists, so they choose
 * the same backend without a message. Candidates are the backends in both lists that can work between the
 * two. If both ends have read the same link table, the fastest of them wins, else the first in the list of
 * the smaller id.
 *
 *   auto.c            life, peers, progress, sleep
 *   auto_choose.c     address lists and the rule; pure
 *   auto_devices.c    which listed devices belong to which child
 *   auto_register.c   user memory, registered with every child
 *   auto_window.c     windows: one per child, and a key made of their keys
 *
 * Settings (options.tune): use=shm+verbs+ucx (backends, preferred first); links=FILE (a link table of
 * `weft doctor`, equal at all ends, else ignored); BACKEND.NAME=VALUE (a setting of one child:
 * shm.cma=off). */
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
extern const char *const auto_backend_names[AUTO_BACKENDS]; /* in default order of preference */

/* ---- address lists ---- */

struct auto_backend_address {
    uint8_t kind;
    const uint8_t *blob; /* (bytes,) address of that backend; inside the decoded list */
    uint32_t bytes;
};

struct auto_address_list {
    uint32_t nonce_hash, id;
    uint64_t host;        /* hash of the boot id; 0: unknown */
    uint64_t net_namespace;       /* hash of the network namespace, and of the user if there is no secret */
    uint64_t fingerprint; /* of the host, as in link tables; 0 without `links` */
    uint64_t links;       /* digest of the link table; 0: none */
    uint32_t address_count;
    struct auto_backend_address addresses[AUTO_BACKENDS]; /* preferred first */
};

/* 0: too long */
size_t auto_address_list_encode(const struct auto_address_list *address_list,
                                uint8_t out[WEFT_TRANSPORT_ADDRESS_BYTES_MAX]);
/* WEFT_ERR_MALFORMED, _VERSION. The list points into `data`. */
enum weft_status auto_address_list_decode(const void *data, size_t bytes,
                                          struct auto_address_list *offer_out);

enum auto_reason {
    AUTO_CHOSEN = 0,
    AUTO_LESS_PREFERRED,     /* possible, but another one was chosen */
    AUTO_MISSING_HERE,
    AUTO_MISSING_AT_PEER,
    AUTO_OTHER_HOST,
    AUTO_OTHER_NAMESPACE,
    AUTO_NO_SECRET,
    AUTO_BAD_LINK,
};
/* Returns the backend that both ends choose, or -1; reasons_out is indexed by backend. Exchanging the two
 * ends only exchanges MISSING_HERE and MISSING_AT_PEER. secret: the job has one. links: the table with the
 * digest in `mine`, or NULL. */
int auto_choose(const struct auto_address_list *mine, const struct auto_address_list *theirs, bool secret,
                const struct weft_link_table *links, enum auto_reason reasons_out[AUTO_BACKENDS]);

/* ---- devices ---- */

/* One list names the devices of all children: RDMA devices for verbs, network interfaces for UCX over tcp. */
struct auto_devices {
    char all[AUTO_DEVICES_BYTES], rdma[AUTO_DEVICES_BYTES], network[AUTO_DEVICES_BYTES];
};
/* list: "mlx5_0:1,eth0", or NULL for "lo". RDMA devices are looked up below `root`, normally "/".
 * WEFT_ERR_INVALID: too long. */
enum weft_status auto_devices_split(const char *root, const char *list, struct auto_devices *devices_out,
                                    struct weft_error *error);
/* Whether there is an RDMA device below `root`, normally "/". */
bool auto_has_rdma(const char *root);
/* Whether these UCX lanes use network interfaces and no RDMA device. */
bool auto_lanes_are_sockets(const char *lanes);

/* ---- the endpoint ---- */

struct auto_endpoint {
    struct weft_transport *parent;
    /* those that work here, preferred first; parent->children */
    struct weft_transport *children[AUTO_BACKENDS];
    uint8_t kinds[AUTO_BACKENDS];                /* backend of each child */
    char why[AUTO_BACKENDS][AUTO_WHY_BYTES];    /* by backend: why it is absent */
    struct auto_address_list address_list;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    bool secret;
    struct weft_link_table *links; /* owned, or NULL */
    int epoll_fd;
    bool poll_idle;              /* the endpoint may have slept: progress also polls children without peers */
    uint32_t next_child;
};

static inline struct auto_endpoint *auto_of(struct weft_transport *parent) { return parent->backend; }
/* Backend of a child. */
int auto_backend_of(const struct auto_endpoint *auto_endpoint, const struct weft_transport *child);

/* auto_register.c: pin and unpin of weft_transport_memory_ops. */
enum weft_status auto_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                      void **registered_out, struct weft_error *error);
void auto_memory_unregister(struct weft_transport *transport, void *kept);

/* auto_window.c */
enum weft_status auto_window_open(struct weft_transport *transport, struct weft_window *window,
                                  struct weft_error *error);
void auto_window_close(struct weft_transport *transport, struct weft_window *window);
void auto_window_free(struct weft_transport *transport, struct weft_window *window);

#endif
