/* verbs_device.h - the device part of the verbs backend: devices, queue pairs, completions, memory keys.
 *
 * Only this folder calls libibverbs and librdmacm. The message part posts struct verbs_work, reads struct
 * verbs_completion and registers memory.
 *
 *     verbs_rail        one port of one device: context, protection domain, completion queue, receive queue
 *     verbs_queue_pair  one RC connection to a peer over one rail; a broken one is destroyed and replaced
 *     verbs_memory      keys of memory ranges on all rails of an endpoint; a cache that sees unmaps
 *     verbs_cm          queue pairs connected by librdmacm instead of by exchanged addresses
 *
 *   verbs_device.c   choice of device, port, GID and MTU    verbs_queue_pair.c  life of a queue pair, posting
 *   verbs_rail.c     open, poll, sleep, async events        verbs_errors.c      errors as status and sentence
 *   verbs_memory.c   registration and its cache             verbs_watch.c       sees unmaps (userfaultfd)
 *   verbs_cm.c       librdmacm                              verbs_options.c     settings as text
 *
 * The engine thread owns everything of an endpoint. Only open, create and register block (system calls
 * into the driver). Receives have no bytes and share one receive queue: peers only write. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_DEVICE_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_DEVICE_H

#include <infiniband/verbs.h>

#include "base/base.h"

enum {
    VERBS_RAILS_MAX = 8,
    VERBS_ADDRESS_BYTES = 48,
    VERBS_NAME_BYTES = 64,
    VERBS_RETRY_MAX = 6, /* some devices treat 7 as infinite, and an error must be reported eventually */
};

enum verbs_switch { VERBS_OFF, VERBS_ON, VERBS_AUTO };
enum verbs_connect { VERBS_CONNECT_EXCHANGE, VERBS_CONNECT_CM };

struct verbs_options {
    /* "mlx5_0,mlx5_1:2" (port after the colon), or network interfaces; default "": chosen automatically */
    char devices[256];
    uint32_t rails;          /* rails=   upper bound of automatically chosen rails; default 1 */
    int gid_index;           /* gid=     default -1: RoCE v2 over IPv4, then v2 over a routed IPv6, v2
                              * link-local, v1 */
    uint32_t mtu;            /* mtu=     path MTU in bytes: 256 ... 4096; default 0: that of the port */
    uint8_t traffic_class;   /* tc=      of RoCE and routed packets; default 0 */
    uint8_t service_level;   /* sl=      default 0 */
    /* relaxed=off|on|auto; PCIe relaxed ordering; auto: if supported; default auto */
    enum verbs_switch relaxed_ordering;
    enum verbs_connect connect;         /* connect=exchange|cm; default exchange */
    /* timeout= an unacknowledged packet is retransmitted after 4.096 us * 2^timeout; default 16 (0.27 s) */
    uint8_t timeout;
    uint8_t retries;         /* retries= retransmissions before the queue pair breaks, 0 ... 6; default 6 */
    uint32_t send_depth;     /* depth=   work requests of one queue pair in flight; default 128 */
    uint32_t receive_depth;  /* receives= size of a rail's shared receive queue; default 4096 */
    /* inline=  requested inline size; the queue pair holds the granted one; default 220 */
    uint32_t inline_bytes;
    /* cache=   bytes that the cache keeps registered after use; default 1 GiB; 0: none */
    uint64_t cache_bytes;
};
void verbs_options_init(struct verbs_options *options);
/* Parses "name=value,..." with the names above. An unknown name is WEFT_ERR_NOT_FOUND, or skipped if
 * `others`; an invalid value is WEFT_ERR_INVALID. NULL and "" are fine. */
enum weft_status verbs_options_parse(const char *text, bool others, struct verbs_options *options,
                                     struct weft_error *error);

/* ---- ports ---- */

struct verbs_port {
    char device[VERBS_NAME_BYTES];
    char interface[32];    /* network interface under the chosen GID; "" on InfiniBand */
    uint8_t port;
    bool roce;             /* Ethernet link layer; else InfiniBand */
    bool usable;
    char why_not[160];     /* not usable: why, "port 1 is down" */
    int gid_index;         /* -1: none */
    int gid_type;          /* 0: InfiniBand or RoCE v1, 2: RoCE v2 */
    union ibv_gid gid;
    uint16_t lid;
    uint32_t mtu_bytes, mtu_max_bytes; /* active (or configured); maximum of the port */
    uint64_t bits_per_second;
};
/* Every port of every device: usable ones first, then by speed, then by name. The caller frees
 * `*ports_out` with weft_free_bytes; NULL if there is none. WEFT_OK also without devices;
 * WEFT_ERR_NO_MEMORY. */
enum weft_status verbs_ports_list(struct weft_env *env, const struct verbs_options *options,
                                  struct verbs_port **ports_out, uint32_t *count_out);
/* "rxe0 port 1 (RoCE v2, 10.77.0.1, MTU 4096)" */
void verbs_port_describe(const struct verbs_port *port, char *out, size_t bytes);

/* ---- rails ---- */

struct verbs_counters {
    uint64_t work_requests, doorbells, signalled, completions, polls, events, receive_doorbells;
};

struct verbs_queue_pair;

struct verbs_rail {
    struct weft_env *env;
    struct verbs_options options;
    struct verbs_port port;
    uint32_t index;               /* index among the rails of the endpoint */
    struct ibv_context *context;
    struct ibv_device_attr limits;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *queue;         /* of sends and receives */
    struct ibv_srq *receives;
    /* entries of the queue; entries reserved for queue pairs and receives */
    uint32_t queue_capacity, queue_reserved;
    uint32_t receive_missing;     /* receives consumed and not reposted */
    uint32_t events_unacknowledged;
    bool armed, has_lookahead;
    struct ibv_wc lookahead;          /* polled while arming, not returned yet */
    /* device or port is lost (async event): no new queue pairs; VERBS_ASYNC_PORT_UP restores a port */
    bool broken;
    uint32_t queue_pair_count, bucket_count;
    struct verbs_queue_pair **buckets; /* hash table by number */
    struct verbs_counters counters;
};
/* Opens the ports that `options` names, or chooses. Fills rails[0 .. *count_out). WEFT_ERR_NOT_FOUND: no
 * such device, or none usable (the sentence lists what there is); WEFT_ERR_UNSUPPORTED, WEFT_ERR_LIMIT,
 * WEFT_ERR_NO_MEMORY. On failure nothing remains. */
enum weft_status verbs_rails_open(struct weft_env *env, const struct verbs_options *options,
                                  struct verbs_rail *rails, uint32_t *count_out, struct weft_error *error);
/* All its queue pairs must be destroyed and its memory unregistered. */
void verbs_rail_close(struct verbs_rail *rail);
/* Bytes of this rail itself, and per queue pair (estimated from the granted sizes). */
void verbs_rail_memory(const struct verbs_rail *rail, uint64_t *own_out, uint64_t *queue_pair_out);

enum verbs_event {
    VERBS_SENT = 1, /* a signalled work request is complete, with all before it on its queue pair */
    VERBS_ARRIVED,  /* a write with immediate of the peer: all its earlier writes are visible */
};
struct verbs_completion {
    enum verbs_event event;
    struct verbs_queue_pair *queue_pair;
    uint64_t id;         /* VERBS_SENT: of the work request */
    uint32_t immediate;  /* VERBS_ARRIVED */
    uint32_t bytes;      /* VERBS_ARRIVED: of that write */
    /* WEFT_OK; WEFT_ERR_CANCELLED: flushed after the queue pair broke; else why it broke */
    enum weft_status status;
    enum ibv_wc_status cause;
    uint32_t vendor;
};
/* Returns up to `max` completions, 0 if there is none. Failed unsignalled work requests are included.
 * Receives are reposted automatically. A failed completion has set queue_pair->broken. A negative status:
 * the rail is lost. */
int verbs_rail_poll(struct verbs_rail *rail, struct verbs_completion *completions, int max);
/* Before sleeping. WEFT_OK: verbs_rail_fd becomes readable at the next completion; WEFT_ERR_AGAIN: poll
 * first. */
enum weft_status verbs_rail_arm(struct verbs_rail *rail);
/* Consumes the wake-ups of the channel. Does not block. */
void verbs_rail_woken(struct verbs_rail *rail);
int verbs_rail_fd(const struct verbs_rail *rail);
int verbs_rail_async_fd(const struct verbs_rail *rail);

enum verbs_async_kind {
    VERBS_ASYNC_OTHER = 1,   /* for the log only */
    /* queue pairs may live on: they break by themselves, or continue if the port returns in time */
    VERBS_ASYNC_PORT_DOWN,
    VERBS_ASYNC_PORT_UP,
    VERBS_ASYNC_ADDRESS,     /* GID, LID or subnet manager changed: rebuild queue pairs */
    VERBS_ASYNC_QUEUE_PAIR,  /* queue_pair is broken */
    /* the device or its completion queue is lost: all queue pairs of the rail are broken */
    VERBS_ASYNC_DEVICE,
};
struct verbs_async {
    enum verbs_async_kind kind;
    struct verbs_queue_pair *queue_pair; /* or NULL */
    char text[256];                      /* names device, port and cause */
};
/* Returns one event, if there is one. Does not block. */
bool verbs_rail_async(struct verbs_rail *rail, struct verbs_async *async_out);

/* ---- queue pairs ---- */

enum verbs_queue_pair_state { VERBS_FRESH = 1, VERBS_CONNECTED, VERBS_BROKEN, VERBS_FLUSHED };

struct verbs_queue_pair {
    struct verbs_rail *rail;
    struct ibv_qp *qp;
    void *owner;                   /* object of the message part */
    char peer[VERBS_NAME_BYTES];   /* name in error texts: "endpoint 7" */
    enum verbs_queue_pair_state state;
    bool broken;                   /* BROKEN or FLUSHED */
    bool marker_posted;
    uint32_t number, packet_number;  /* of this side */
    /* granted; one entry of send_depth is reserved for the marker */
    uint32_t send_depth, inline_bytes, mtu_bytes;
    uint32_t signal_every;         /* at least one of so many work requests is signalled */
    uint32_t since_signal;
    uint64_t posted, retired;      /* work requests; free entries = send_depth - (posted - retired) */
    uint64_t *signals; /* ring: value of `posted` at each signalled request that is not complete */
    uint32_t signal_head, signal_count;
    struct verbs_queue_pair *next; /* in its bucket */
};
/* Creates a queue pair, ready to connect. `peer_name` is copied. WEFT_ERR_LIMIT, WEFT_ERR_NO_MEMORY,
 * WEFT_ERR_UNREACHABLE (the rail is broken), WEFT_ERR_IO, with a sentence. */
enum weft_status verbs_queue_pair_create(struct verbs_rail *rail, const char *peer_name, void *owner,
                                         struct verbs_queue_pair **out, struct weft_error *error);
/* The blob for the peer: number, first packet number (random), GID, LID, MTU. Travels over authenticated
 * links only. */
void verbs_queue_pair_address(const struct verbs_queue_pair *queue_pair, uint8_t out[VERBS_ADDRESS_BYTES]);
/* Moves to "ready to send and receive" with the peer's blob. The peer may send before this returns. The
 * local side may write only after the peer has connected, which the link reports. WEFT_ERR_MALFORMED,
 * WEFT_ERR_UNSUPPORTED (an InfiniBand and a RoCE port), WEFT_ERR_UNREACHABLE (no route to that address),
 * WEFT_ERR_STATE. */
enum weft_status verbs_queue_pair_connect(struct verbs_queue_pair *queue_pair, const void *blob, size_t bytes,
                                          struct weft_error *error);

enum verbs_opcode { VERBS_WRITE = 1, VERBS_WRITE_IMMEDIATE, VERBS_READ };
struct verbs_work {
    enum verbs_opcode opcode;
    bool signalled;       /* request VERBS_SENT for this one; otherwise one in signal_every */
    bool inlined;         /* bytes <= inline_bytes: copied now, no lkey needed */
    uint32_t bytes;       /* 0: the immediate only */
    void *local;
    uint32_t lkey;        /* verbs_region.lkey[rail->index] */
    uint32_t rkey;
    uint64_t remote;
    uint32_t immediate;
    uint64_t id;          /* returned in the completion; less than UINT64_MAX - 1 */
};
enum { VERBS_POST_MAX = 64 }; /* in one call */
/* Work requests that can be posted now. */
uint32_t verbs_queue_pair_space(const struct verbs_queue_pair *queue_pair);
/* Posts all of them with one doorbell. WEFT_OK; WEFT_ERR_AGAIN (not enough free entries), WEFT_ERR_STATE
 * (not connected or broken): nothing was posted; another status: the queue pair is broken now. */
enum weft_status verbs_queue_pair_post(struct verbs_queue_pair *queue_pair, const struct verbs_work *works,
                                       uint32_t count);
/* Moves to the error state: everything in flight is flushed with WEFT_ERR_CANCELLED. After the last flush
 * the state is VERBS_FLUSHED and the device accesses no local buffer. For tests, cancellation and rebuild. */
void verbs_queue_pair_break(struct verbs_queue_pair *queue_pair);
/* In any state; afterwards the device accesses no buffer. Its remaining completions are dropped. NULL is
 * fine. */
void verbs_queue_pair_destroy(struct verbs_queue_pair *queue_pair);

/* ---- errors ---- */

/* WEFT_OK, WEFT_ERR_CANCELLED (flushed), WEFT_ERR_PEER_LOST, WEFT_ERR_IO, WEFT_ERR_INTERNAL. */
enum weft_status verbs_status_of(enum ibv_wc_status cause);
/* Whether a new queue pair to the same peer may work (a link that was cut), or the cause is a bug or a
 * misbehaving peer. */
bool verbs_may_rebuild(enum ibv_wc_status cause);
/* "endpoint 7 over rxe0 port 1: no acknowledgement after 7 attempts in 1.9 s (retry exceeded): is the peer
 * alive, the link up? ..." */
void verbs_completion_describe(const struct verbs_completion *completion, char *out, size_t bytes);

/* ---- memory ---- */

enum verbs_access {
    VERBS_LOCAL = 0,            /* source of local writes; may be read-only memory */
    VERBS_REMOTE_WRITE = 1,
    VERBS_REMOTE_READ = 2,
    /* bytes may become visible in any order until the completion: for payload, never for polled memory */
    VERBS_RELAXED = 4,
    VERBS_TARGET = 8,           /* target of local reads */
};
struct verbs_region {
    const void *address;
    size_t bytes;
    unsigned access;
    uint32_t lkey[VERBS_RAILS_MAX], rkey[VERBS_RAILS_MAX]; /* by rail index */
    struct ibv_mr *handles[VERBS_RAILS_MAX];
    /* used by the cache */
    uint32_t users;
    bool cached, stale;
    bool is_direct; /* of verbs_direct.c: the processor does not access the memory */
    uint64_t used;
};
struct verbs_memory; /* of one endpoint */

struct verbs_memory_stats {
    uint64_t hits, misses, evictions, unmaps; /* unmaps: cached ranges that the program unmapped */
    uint64_t registered_bytes, cached_bytes;
    uint32_t region_count;
    bool watching; /* false: user memory is registered for each use; why_not is the reason */
    char why_not[160];
};
enum weft_status verbs_memory_open(struct weft_env *env, struct verbs_rail *rails, uint32_t rail_count,
                                   struct verbs_memory **out, struct weft_error *error);
void verbs_memory_close(struct verbs_memory *memory); /* every region must be put and unregistered */

/* For memory whose life the caller controls (slabs, weft_memory_alloc): registered until
 * verbs_memory_unregister. `region` belongs to the caller. WEFT_ERR_LIMIT: the limit of locked memory (the
 * sentence shows how to raise it); WEFT_ERR_INVALID: not mapped or not writable; WEFT_ERR_NO_MEMORY. */
enum weft_status verbs_memory_register(struct verbs_memory *memory, const void *address, size_t bytes,
                                       unsigned access, struct verbs_region *region,
                                       struct weft_error *error);
/* GPU memory behind a dma-buf descriptor (borrowed); remote writes use `address`. WEFT_ERR_UNSUPPORTED. */
enum weft_status verbs_memory_register_dmabuf(struct verbs_memory *memory, int descriptor, uint64_t offset,
                                              const void *address, size_t bytes, unsigned access,
                                              struct verbs_region *region, struct weft_error *error);
void verbs_memory_unregister(struct verbs_memory *memory, struct verbs_region *region);
/* Whether device and driver register dma-bufs at all. */
bool verbs_rail_takes_dmabuf(struct verbs_rail *rail);

/* For memory of the user: a region that covers the range, from the cache or new. Held until
 * verbs_memory_put; region and keys may be shared with other users of the range. */
enum weft_status verbs_memory_get(struct verbs_memory *memory, const void *address, size_t bytes,
                                  unsigned access, struct verbs_region **region_out,
                                  struct weft_error *error);
void verbs_memory_put(struct verbs_memory *memory, struct verbs_region *region);
/* The owner frees the range: cached regions over it are not used again. */
void verbs_memory_forget(struct verbs_memory *memory, const void *address, size_t bytes);
void verbs_memory_stats(const struct verbs_memory *memory, struct verbs_memory_stats *stats_out);

#endif
