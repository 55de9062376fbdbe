/* verbs_device.h - the device half of the verbs backend: devices, queue pairs, completions, memory keys.
 *
 * The only files that talk to libibverbs and librdmacm are in this folder. The message half knows nothing of
 * them: it posts struct verbs_work, reads struct verbs_completion, and registers memory.
 *
 *     verbs_rail        one port of one device: context, protection domain, completion queue + channel, shared receive queue
 *     verbs_queue_pair  one RC connection to a peer over one rail, for one life: a broken one is destroyed and a new one made
 *     verbs_memory      keys of memory ranges on all rails of an endpoint; a cache that sees unmaps
 *     verbs_cm          queue pairs connected by librdmacm instead of by exchanged addresses
 *
 *   verbs_device.c      which device, port, GID and MTU          verbs_queue_pair.c  life of a queue pair, posting
 *   verbs_rail.c        opening, polling, sleeping, async events verbs_errors.c      what went wrong, as a sentence
 *   verbs_memory.c      registration and its cache               verbs_watch.c       sees unmaps (userfaultfd)
 *   verbs_cm.c          librdmacm                                verbs_options.c     settings as text
 *
 * Threads: everything of one endpoint is its engine's. Nothing blocks but opening, creating and
 * registering (system calls into the driver). Receives are zero bytes long and live in one shared receive
 * queue: peers only ever WRITE. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_DEVICE_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_DEVICE_H

#include <infiniband/verbs.h>

#include "base/base.h"

enum {
    VERBS_RAILS_MAX = 8,
    VERBS_ADDRESS_BYTES = 48,
    VERBS_NAME_BYTES = 64,
    VERBS_RETRY_MAX = 6, /* 7 is "for ever" on some devices: an error must come some day */
};

enum verbs_switch { VERBS_OFF, VERBS_ON, VERBS_AUTO };
enum verbs_connect { VERBS_CONNECT_EXCHANGE, VERBS_CONNECT_CM };

struct verbs_options {
    char devices[256];       /* "mlx5_0,mlx5_1:2" (port after the colon), or network interfaces; default
                              * "": by themselves */
    uint32_t rails;          /* rails=   1: at most so many are opened when they are picked by themselves;
                              * default 1 */
    int gid_index;           /* gid=     default -1: RoCE v2 over IPv4, then v2 over a routed IPv6, v2
                              * link-local, v1 */
    uint32_t mtu;            /* mtu=     path MTU in bytes: 256 ... 4096; default 0: the port's */
    uint8_t traffic_class;   /* tc=      of RoCE and routed packets; default 0 */
    uint8_t service_level;   /* sl=      default 0 */
    enum verbs_switch relaxed_ordering; /* relaxed=off|on|auto; PCIe; auto: where offered; default auto */
    enum verbs_connect connect;         /* connect=exchange|cm; default exchange */
    uint8_t timeout;         /* timeout= an unacknowledged packet is sent again after 4.096 us * 2^timeout;
                              * default 16 (0.27 s) */
    uint8_t retries;         /* retries= so often, 0 ... 6; default 6; then the queue pair breaks */
    uint32_t send_depth;     /* depth=   work requests of one queue pair in flight; default 128 */
    uint32_t receive_depth;  /* receives= of a rail's shared receive queue; default 4096 */
    uint32_t inline_bytes;   /* inline=  asked for; what was granted is in the queue pair; default 220 */
    uint64_t cache_bytes;    /* cache=   memory kept registered by the cache beyond its use; default 1 GiB;
                              * 0: none */
};
void verbs_options_init(struct verbs_options *options);
/* "name=value,..." with the names above; an unknown name is WEFT_ERR_NOT_FOUND unless `others` (then it is
 * passed over), a bad value WEFT_ERR_INVALID. NULL and "" are fine. */
enum weft_status verbs_options_parse(const char *text, bool others, struct verbs_options *options,
                                     struct weft_error *error);

/* ---- ports: what there is, and what would be used of it ---- */

struct verbs_port {
    char device[VERBS_NAME_BYTES];
    char interface[32];    /* network interface under the chosen GID; "" on InfiniBand */
    uint8_t port;
    bool roce;             /* Ethernet link layer; else InfiniBand */
    bool usable;
    char why_not[160];     /* when not usable: "port 1 is down" */
    int gid_index;         /* -1: none */
    int gid_type;          /* 0: InfiniBand or RoCE v1, 2: RoCE v2 */
    union ibv_gid gid;
    uint16_t lid;
    uint32_t mtu_bytes, mtu_max_bytes; /* active (or as asked for), and what the port could */
    uint64_t bits_per_second;
};
/* Every port of every device, usable ones first, fastest first among those, then by name. `*ports_out` is
 * the caller's, to free with weft_free_bytes; NULL when there is none. WEFT_OK also when there are no
 * devices; WEFT_ERR_NO_MEMORY. */
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
    uint32_t index;               /* among the endpoint's rails */
    struct ibv_context *context;
    struct ibv_device_attr limits;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *queue;         /* of sends and receives */
    struct ibv_srq *receives;
    uint32_t queue_capacity, queue_reserved; /* completions: what it holds, what queue pairs and receives
                                              * may leave there */
    uint32_t receive_missing;     /* taken and not posted again yet */
    uint32_t events_unacknowledged;
    bool armed, has_lookahead;
    struct ibv_wc lookahead;          /* taken while arming, not handed out yet */
    bool broken;                  /* device or port is gone (async event): open no queue pairs here;
                                   * VERBS_ASYNC_PORT_UP heals a port */
    uint32_t queue_pair_count, bucket_count;
    struct verbs_queue_pair **buckets; /* by number */
    struct verbs_counters counters;
};
/* Open what `options` names, or pick. Fills rails[0 .. *count_out). WEFT_ERR_NOT_FOUND: no such device, or
 * none usable (the sentence says what there is); WEFT_ERR_UNSUPPORTED, WEFT_ERR_LIMIT, WEFT_ERR_NO_MEMORY.
 * Nothing is left behind then. */
enum weft_status verbs_rails_open(struct weft_env *env, const struct verbs_options *options,
                                  struct verbs_rail *rails, uint32_t *count_out, struct weft_error *error);
/* All its queue pairs must have been destroyed and memory unregistered. */
void verbs_rail_close(struct verbs_rail *rail);
/* Bytes this rail holds for itself, and for each queue pair (an estimate from the granted sizes). */
void verbs_rail_memory(const struct verbs_rail *rail, uint64_t *own_out, uint64_t *queue_pair_out);

enum verbs_event {
    VERBS_SENT = 1, /* a signalled work request, and all of its queue pair before it */
    VERBS_ARRIVED,  /* a peer's write with immediate: everything that it wrote before is here */
};
struct verbs_completion {
    enum verbs_event event;
    struct verbs_queue_pair *queue_pair;
    uint64_t id;         /* VERBS_SENT: of the work request */
    uint32_t immediate;  /* VERBS_ARRIVED */
    uint32_t bytes;      /* VERBS_ARRIVED: of that write */
    enum weft_status status; /* WEFT_OK; WEFT_ERR_CANCELLED: flushed, the queue pair broke before; else why
                              * it broke */
    enum ibv_wc_status cause;
    uint32_t vendor;
};
/* Up to `max` completions, 0 when there is none. An unsignalled work request that failed comes as well.
 * Receives are given back to the shared queue by themselves. A failed completion has set
 * queue_pair->broken. WEFT_ERR_... : the rail is lost. */
int verbs_rail_poll(struct verbs_rail *rail, struct verbs_completion *completions, int max);
/* Before sleeping: WEFT_OK: verbs_rail_fd becomes readable at the next completion; WEFT_ERR_AGAIN: poll
 * first. */
enum weft_status verbs_rail_arm(struct verbs_rail *rail);
/* After sleeping (or whenever): take the wake-ups out of the channel. Never blocks. */
void verbs_rail_woken(struct verbs_rail *rail);
int verbs_rail_fd(const struct verbs_rail *rail);
int verbs_rail_async_fd(const struct verbs_rail *rail);

enum verbs_async_kind {
    VERBS_ASYNC_OTHER = 1,   /* worth a line in the log, nothing to do */
    VERBS_ASYNC_PORT_DOWN,   /* queue pairs may still live: they break by themselves, or go on if it comes
                              * back in time */
    VERBS_ASYNC_PORT_UP,
    VERBS_ASYNC_ADDRESS,     /* GID, LID or subnet manager changed: rebuild queue pairs */
    VERBS_ASYNC_QUEUE_PAIR,  /* queue_pair is broken */
    VERBS_ASYNC_DEVICE,      /* the device or its completion queue is gone: all queue pairs of the rail are
                              * broken */
};
struct verbs_async {
    enum verbs_async_kind kind;
    struct verbs_queue_pair *queue_pair; /* or NULL */
    char text[256];                      /* names device, port and cause */
};
/* One event, if there is one. Never blocks. */
bool verbs_rail_async(struct verbs_rail *rail, struct verbs_async *async_out);

/* ---- queue pairs ---- */

enum verbs_queue_pair_state { VERBS_FRESH = 1, VERBS_CONNECTED, VERBS_BROKEN, VERBS_FLUSHED };

struct verbs_queue_pair {
    struct verbs_rail *rail;
    struct ibv_qp *qp;
    void *owner;                   /* the message half's */
    char peer[VERBS_NAME_BYTES];   /* in sentences: "endpoint 7" */
    enum verbs_queue_pair_state state;
    bool broken;                   /* BROKEN or FLUSHED */
    bool marker_posted;
    uint32_t number, packet_number;  /* ours */
    uint32_t send_depth, inline_bytes, mtu_bytes; /* granted; one of send_depth is kept back for the marker */
    uint32_t signal_every;         /* a work request is signalled at least so often, asked for or not */
    uint32_t since_signal;
    uint64_t posted, retired;      /* work requests; room = send_depth - (posted - retired) */
    uint64_t *signals;             /* ring of `posted` at each signalled one that has not completed */
    uint32_t signal_head, signal_count;
    struct verbs_queue_pair *next; /* in its bucket */
};
/* A fresh queue pair, ready to be connected. `peer_name` is copied. WEFT_ERR_LIMIT, WEFT_ERR_NO_MEMORY,
 * WEFT_ERR_UNREACHABLE (the rail is broken), WEFT_ERR_IO, with a sentence. */
enum weft_status verbs_queue_pair_create(struct verbs_rail *rail, const char *peer_name, void *owner,
                                         struct verbs_queue_pair **out, struct weft_error *error);
/* The blob for the other side: number, first packet number (random), GID, LID, MTU. Travels only over
 * authenticated links. */
void verbs_queue_pair_address(const struct verbs_queue_pair *queue_pair, uint8_t out[VERBS_ADDRESS_BYTES]);
/* To "may send and receive", with the other side's blob. The other side may send before this returns; the
 * peer can only be written to once IT has connected as well (say so over the link). WEFT_ERR_MALFORMED,
 * WEFT_ERR_UNSUPPORTED (an InfiniBand and a RoCE port), WEFT_ERR_UNREACHABLE (no route to that address),
 * WEFT_ERR_STATE. */
enum weft_status verbs_queue_pair_connect(struct verbs_queue_pair *queue_pair, const void *blob, size_t bytes,
                                          struct weft_error *error);

enum verbs_opcode { VERBS_WRITE = 1, VERBS_WRITE_IMMEDIATE, VERBS_READ };
struct verbs_work {
    enum verbs_opcode opcode;
    bool signalled;       /* VERBS_SENT must come; without it, it comes every signal_every */
    bool inlined;         /* bytes <= inline_bytes: copied now, no lkey needed */
    uint32_t bytes;       /* 0: nothing but the immediate */
    void *local;
    uint32_t lkey;        /* verbs_region.lkey[rail->index] */
    uint32_t rkey;
    uint64_t remote;
    uint32_t immediate;
    uint64_t id;          /* comes back in the completion; less than UINT64_MAX - 1 */
};
enum { VERBS_POST_MAX = 64 }; /* with one call */
/* Work requests that may be posted now. */
uint32_t verbs_queue_pair_room(const struct verbs_queue_pair *queue_pair);
/* Post all of them with one doorbell. WEFT_OK; WEFT_ERR_AGAIN (not room for all: nothing was posted),
 * WEFT_ERR_STATE (not connected or broken: nothing was posted), or another status: the queue pair is
 * broken now. */
enum weft_status verbs_queue_pair_post(struct verbs_queue_pair *queue_pair, const struct verbs_work *works,
                                       uint32_t count);
/* To the error state: everything in flight is flushed (comes as WEFT_ERR_CANCELLED), the peer's next
 * packet finds it dead. When the last has come, state is VERBS_FLUSHED and no local buffer is touched any
 * more. For tests, cancelling and rebuilding. */
void verbs_queue_pair_break(struct verbs_queue_pair *queue_pair);
/* No buffer is touched after it, in whatever state. Its completions still in the queue are dropped. NULL
 * is fine. */
void verbs_queue_pair_destroy(struct verbs_queue_pair *queue_pair);

/* ---- what went wrong ---- */

/* WEFT_OK, WEFT_ERR_CANCELLED (flushed), WEFT_ERR_PEER_LOST, WEFT_ERR_IO, WEFT_ERR_INTERNAL. */
enum weft_status verbs_status_of(enum ibv_wc_status cause);
/* May a new queue pair to the same peer do better (a link that was cut), or is it a bug or the peer's
 * misbehaviour? */
bool verbs_may_rebuild(enum ibv_wc_status cause);
/* "endpoint 7 over rxe0 port 1: no acknowledgement after 7 attempts in 1.9 s (retry exceeded): is the peer
 * alive, the link up? ..." */
void verbs_completion_describe(const struct verbs_completion *completion, char *out, size_t bytes);

/* ---- memory ---- */

enum verbs_access {
    VERBS_LOCAL = 0,            /* the source of our own writes; may be read-only memory */
    VERBS_REMOTE_WRITE = 1,
    VERBS_REMOTE_READ = 2,
    VERBS_RELAXED = 4,          /* bytes may become visible in any order until the completion: payload,
                                 * never what is polled */
    VERBS_TARGET = 8,           /* the target of our own reads */
};
struct verbs_region {
    const void *address;
    size_t bytes;
    unsigned access;
    uint32_t lkey[VERBS_RAILS_MAX], rkey[VERBS_RAILS_MAX]; /* by rail index */
    struct ibv_mr *handles[VERBS_RAILS_MAX];
    /* the cache's */
    uint32_t users;
    bool cached, stale;
    uint64_t used;
};
struct verbs_memory; /* of one endpoint */

struct verbs_memory_stats {
    uint64_t hits, misses, evictions, unmaps; /* unmaps: cached ranges that were given back under us */
    uint64_t registered_bytes, cached_bytes;
    uint32_t region_count;
    bool watching;                            /* false: user memory is registered for each use, the text
                                               * says why */
    char why_not[160];
};
enum weft_status verbs_memory_open(struct weft_env *env, struct verbs_rail *rails, uint32_t rail_count,
                                   struct verbs_memory **out, struct weft_error *error);
void verbs_memory_close(struct verbs_memory *memory); /* every region has been put and unregistered */

/* For memory whose life the caller rules (slabs, weft_memory_alloc): registered until
 * verbs_memory_unregister. `region` is the caller's. WEFT_ERR_LIMIT: locked memory is used up (the
 * sentence says how to raise it); WEFT_ERR_INVALID: not mapped or not writable; WEFT_ERR_NO_MEMORY. */
enum weft_status verbs_memory_register(struct verbs_memory *memory, const void *address, size_t bytes,
                                       unsigned access, struct verbs_region *region,
                                       struct weft_error *error);
/* GPU memory behind a dma-buf descriptor (borrowed); `address` is what remote writes will name.
 * WEFT_ERR_UNSUPPORTED. */
enum weft_status verbs_memory_register_dmabuf(struct verbs_memory *memory, int descriptor, uint64_t offset,
                                              const void *address, size_t bytes, unsigned access,
                                              struct verbs_region *region, struct weft_error *error);
void verbs_memory_unregister(struct verbs_memory *memory, struct verbs_region *region);

/* For anybody's memory: a region that covers the range, from the cache or made now. Held until
 * verbs_memory_put; the region (and its keys) may be shared with other users of the same range. */
enum weft_status verbs_memory_get(struct verbs_memory *memory, const void *address, size_t bytes,
                                  unsigned access, struct verbs_region **region_out,
                                  struct weft_error *error);
void verbs_memory_put(struct verbs_memory *memory, struct verbs_region *region);
/* The owner gives the range back: cached regions over it are not used again. */
void verbs_memory_forget(struct verbs_memory *memory, const void *address, size_t bytes);
void verbs_memory_stats(const struct verbs_memory *memory, struct verbs_memory_stats *stats_out);

#endif
