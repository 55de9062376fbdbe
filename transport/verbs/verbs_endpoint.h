/* verbs_endpoint.h - the message part of the verbs backend: one endpoint, its peers, its operations.
 *
 *   verbs_open.c       options, devices, memory, bootstrap; close, free, statistics
 *   verbs_peer.c       connect, link messages, queue pairs, end of a peer
 *   verbs_join.c       connects the two queue pairs of a lane
 *   verbs_message.c    send, arrivals, accept, discard
 *   verbs_window.c     windows, put, get
 *   verbs_pin.c        user memory, registered in advance
 *   verbs_direct.c     memory that the processor does not access
 *   verbs_self.c       messages of an endpoint to itself
 *   verbs_progress.c   completions, fences, time, sleep
 *   verbs_tune.c       settings as text
 *   verbs_address.c    address blob and keys of windows
 *
 * stream.h decides the protocol. These files carry out its requests (queue pairs, registrations, the link)
 * and report events to it. Work for a peer is collected while events are handled (`dirty`) and posted at
 * the end of progress, so that one doorbell serves many work requests. */
#ifndef WEFT_TRANSPORT_VERBS_ENDPOINT_H
#define WEFT_TRANSPORT_VERBS_ENDPOINT_H

#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/verbs/stream/stream.h"
#include "transport/verbs/verbs_address.h"
#include "transport/verbs/device/verbs_cm.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/verbs_ops.h"

enum {
    VERBS_SENDS_MAX = 8192,   /* operations in flight per endpoint; more return WEFT_ERR_AGAIN */
    VERBS_SMALL_BYTES = 256,  /* payloads up to this are stored inside the arrival */
    VERBS_POOL_BLOCK = 32,
    VERBS_POLL = 32,          /* completions per poll */
    VERBS_CLOCK_EVERY = 32,   /* polls between two clock reads */
    /* between two polls of the bootstrap and the devices' events while peers connect, close or fail */
    VERBS_BOOTSTRAP_POLL_NS = 1000000,
    VERBS_BOOTSTRAP_IDLE_POLL_NS = 10000000, /* between two such polls otherwise */
};

/* Settings of the message part; verbs_device.h has the others. */
struct verbs_tuning {
    uint32_t lanes;    /* lanes=  queue pairs per peer, distributed over the rails; default one per rail */
    uint32_t chunk;    /* chunk=  bytes of one write of a large message; default 64k */
    uint32_t ring;     /* ring=   bytes of the record ring of a peer, per direction; default 64k */
    uint32_t budget;   /* budget= unconsumed eager bytes of one peer; default 256k */
    uint32_t peers;    /* peers=  peers in the first slab; default 16 */
    uint64_t lost_ns; /* lost_ms= time without any queue pair until the peer is lost, in ms; default 10,000 */
    uint32_t direct;  /* direct= 1: device memory is accessed directly (verbs_direct.c), 0: not; default 1 */
    /* host=   numeric address for the bootstrap; default: address of the first rail if there is a secret,
     * else 127.0.0.1 */
    char host[64];
};
/* Parses the settings above out of `text` and copies the others to `rest_out`. */
enum weft_status verbs_tune(const char *text, struct verbs_tuning *tuning, char *rest_out, size_t rest_bytes,
                            struct weft_error *error);

/* A free list that grows in blocks to the peak in flight; freed with the endpoint. */
struct verbs_pool {
    size_t item_bytes;
    void *free_items, *blocks; /* linked by their first word */
    uint64_t block_count;
};

/* Rings and staging of several peers in one registration. */
struct verbs_slab {
    struct weft_list link;
    uint8_t *memory;
    uint32_t piece_count, free_count;
    uint32_t *free_pieces;
    struct verbs_region region;
};

struct verbs_lane {
    struct verbs_peer *verbs_peer;
    uint32_t index, epoch;
    struct verbs_queue_pair *queue_pair; /* NULL: none */
    bool fencing, drained;
    uint64_t fence_limit_ns;
    struct weft_list link;  /* in endpoint->fencing */
};

struct verbs_peer {
    struct verbs_endpoint *endpoint;
    struct weft_peer *peer;
    struct bootstrap_peer *link;     /* NULL: none yet, or closed */
    struct stream *stream;      /* NULL: peer is the endpoint itself */
    struct verbs_slab *slab;
    uint32_t piece;
    struct verbs_lane lanes[STREAM_LANES_MAX];
    struct weft_list of_endpoint, dirty, needs_check;
    bool left, left_reported, leaving, ended;
    uint64_t end_limit_ns; /* while closing, or while the reply to a leave is being sent: when to give up */
    uint32_t rebuilt_count;
};

struct verbs_send {
    struct core_done done; /* first */
    struct verbs_peer *verbs_peer;
    struct verbs_region *region;
    struct stream_send stream;
    struct weft_list link; /* to itself: waits for a receiver */
};

struct verbs_arrival {
    struct core_arrival core; /* first */
    struct core_done done;
    struct verbs_peer *verbs_peer;
    struct verbs_region *region;
    struct stream_receive receive;
    bool announced;
    struct weft_list link;    /* to itself: waits for delivery in progress */
    struct verbs_send *sender; /* to itself, large: the send */
    void *big;                /* a payload larger than `small` */
    bool alone;               /* `big` is not from the pool */
    uint8_t small[VERBS_SMALL_BYTES];
};

/* Address that peers connect to. */
struct verbs_own_address {
    uint8_t blob[ADDRESS_BLOB_BYTES_MAX];
    uint32_t blob_bytes;
};
/* Figures for the stats. */
struct verbs_traffic {
    uint64_t system_calls, copied_bytes;
    uint64_t refused_reported; /* refusals of the bootstrap already in the stats */
};

struct verbs_endpoint {
    struct weft_transport *transport;
    struct verbs_options options;
    struct verbs_tuning tuning;
    struct verbs_rail rails[VERBS_RAILS_MAX];
    uint32_t rail_count;
    struct verbs_cm *cms[VERBS_RAILS_MAX]; /* one per rail; NULL with connect=exchange */
    struct verbs_memory *memory;
    struct bootstrap *bootstrap;
    int epoll;
    struct verbs_own_address own_address;
    struct weft_list peers, dirty, needs_check, fencing, slabs, self_arrivals;
    struct weft_list directs; /* verbs_direct.c */
    struct verbs_pool sends, arrivals, payloads;
    uint32_t send_count;
    uint32_t polls;
    uint64_t bootstrap_poll_ns; /* next poll of the bootstrap and the devices' events */
    bool slept;
    struct verbs_traffic traffic;
};

/* verbs_open.c */
/* bytes; bounded by the settings ring, depth and lanes */
uint64_t verbs_peer_memory(const struct verbs_peer *verbs_peer);
void *verbs_pool_alloc(struct verbs_endpoint *endpoint, struct verbs_pool *pool);
void verbs_pool_release(struct verbs_pool *pool, void *item);

/* verbs_peer.c */
enum weft_status verbs_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                               size_t bytes);
void verbs_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void verbs_peer_leave(struct verbs_peer *verbs_peer);
void verbs_peer_check(struct verbs_peer *verbs_peer, uint64_t now_ns);
void verbs_peer_free(struct verbs_peer *verbs_peer);
void verbs_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);
extern const struct bootstrap_callbacks verbs_link_callbacks;
static inline void verbs_dirty(struct verbs_peer *verbs_peer)
{
    if (weft_list_empty(&verbs_peer->dirty))
        weft_list_append(&verbs_peer->endpoint->dirty, &verbs_peer->dirty);
}
/* Called after an operation was started: posts it now, unless progress will soon. */
void verbs_push(struct verbs_peer *verbs_peer);

/* verbs_join.c */
enum weft_status verbs_cms_open(struct verbs_endpoint *endpoint, struct weft_error *error);
void verbs_cms_close(struct verbs_endpoint *endpoint);
/* The blob for the peer; at most STREAM_BLOB_BYTES_MAX. */
enum weft_status verbs_lane_blob(struct verbs_lane *lane, uint8_t *blob, uint32_t *bytes_out);
/* Connects with the peer's blob. WEFT_OK; WEFT_IN_PROGRESS: verbs_lanes_joined reports to the stream; or
 * an error. */
enum weft_status verbs_lane_connect(struct verbs_lane *lane, const uint8_t *blob, uint32_t bytes,
                                    struct weft_error *error);
void verbs_lane_destroy(struct verbs_lane *lane); /* its queue pair, if any */
int verbs_lanes_joined(struct verbs_cm *cm);

/* verbs_message.c */
enum weft_status verbs_send_message(struct weft_transport *transport, struct weft_peer *peer,
                                    const struct weft_message *message, struct weft_completion *completion);
enum weft_status verbs_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                              struct weft_completion *completion);
void verbs_discard(struct weft_transport *transport, struct weft_arrival *handle);
void verbs_arrived(void *context, const struct stream_arrival *incoming);
void verbs_sent(void *context, struct stream_send *send, enum weft_status status);
void verbs_received(void *context, struct stream_receive *receive, enum weft_status status);
struct verbs_send *verbs_send_new(struct verbs_peer *verbs_peer, struct weft_completion *completion);
void verbs_send_drop(struct verbs_send *send);
struct verbs_arrival *verbs_arrival_new(struct verbs_peer *verbs_peer, const struct stream_arrival *incoming);
void verbs_arrival_release(struct verbs_arrival *arrival);
void verbs_keys(const struct verbs_endpoint *endpoint, const uint32_t *by_rail, struct stream_keys *keys_out);

/* verbs_window.c */
enum weft_status verbs_window_open(struct weft_transport *transport, struct weft_window *window,
                                   struct weft_error *error);
void verbs_window_close(struct weft_transport *transport, struct weft_window *window);
/* verbs_pin.c: pin and unpin of weft_transport_memory_ops. */
enum weft_status verbs_memory_pin(struct weft_transport *transport, void *address, size_t bytes,
                                  void **registered_out, struct weft_error *error);
void verbs_memory_unpin(struct weft_transport *transport, void *kept);

/* verbs_direct.c: of weft_transport_memory_ops. */
unsigned verbs_direct_kinds(struct weft_transport *transport);
enum weft_status verbs_direct_pin(struct weft_transport *transport, const struct weft_direct_memory *memory,
                                  void **registered_out, struct weft_error *error);
void verbs_direct_unpin(struct weft_transport *transport, void *kept);
/* A region of direct memory that covers the range; NULL: none. Held until verbs_region_put. */
struct verbs_region *verbs_direct_get(struct verbs_endpoint *endpoint, const void *address, size_t bytes);
bool verbs_is_direct(struct verbs_endpoint *endpoint, const void *address, size_t bytes);
/* Ends the use of a region of verbs_direct_get or verbs_memory_get. */
void verbs_region_put(struct verbs_endpoint *endpoint, struct verbs_region *region);

void verbs_window_free(struct weft_transport *transport, struct weft_window *window);
enum weft_status verbs_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                              size_t bytes);
void verbs_release(struct weft_transport *transport, struct weft_remote *remote);
enum weft_status verbs_put(struct weft_transport *transport, struct weft_remote *remote,
                           const struct weft_put *put, struct weft_completion *completion);
enum weft_status verbs_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                           void *destination, size_t bytes, struct weft_completion *completion);

/* verbs_self.c */
enum weft_status verbs_self_send(struct verbs_peer *verbs_peer, const struct weft_message *message,
                                 struct weft_completion *completion);
void verbs_self_accept(struct verbs_arrival *arrival, void *buffer);
void verbs_self_discard(struct verbs_arrival *arrival);
int verbs_self_progress(struct verbs_endpoint *endpoint, int budget);
enum weft_status verbs_self_access(struct verbs_peer *verbs_peer, void *to, const void *from, size_t bytes,
                                   const struct weft_put *put, struct weft_remote *remote,
                                   struct weft_completion *completion);

/* verbs_progress.c */
int verbs_progress(struct weft_transport *transport, int budget);
enum weft_status verbs_arm(struct weft_transport *transport);

#endif
