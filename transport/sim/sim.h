/* sim.h - inside the simulator: one thread, one clock, one heap of events.
 *
 *   heap.c       event queue: intrusive nodes ordered by (time, scheduling order)
 *   pool.c       memory of objects in flight
 *   wire.c       phases of a message; on the ideal network also their arrival times
 *   flow.c       the same on a topology: bursts over links that queue and lose, with a reliable layer
 *   topology*.c  a topology file, and the links that a flow uses
 *   link_use.c   load of links, properties of paths
 *   window.c     windows, put, get
 *   endpoint.c   the simulator as a transport backend
 *   sim.c        hosts, their env, their loops, faults, and the run that advances time
 *
 * A message is one struct for its whole life, shared by both ends and the heap, and counted by `refs`:
 *
 *   eager        ANNOUNCE (payload inside) ──► sink         complete at the source when it has left
 *   rendezvous   ANNOUNCE ──► sink, ACCEPT ──► source, DATA ──► sink (buffer to buffer), FINISH ──► source
 *                                   or DISCARD ──► source
 *   put          PUT (with its bytes) ──► sink (window, then inbox if it notifies), FINISH ──► source
 *   get          GET ──► sink, GET_DATA (bytes) ──► source
 *
 * `send_live` and `receive_live` are set while the buffer of that end may be used. An end that closes,
 * loses the peer or dies clears its flag; later events then touch nothing. Equal seeds give equal runs: no
 * result depends on addresses, real time or hash order.
 *
 * Heap space is reserved when a node is created (out of memory is a status there), so scheduling cannot
 * fail. */
#ifndef WEFT_TRANSPORT_SIM_H
#define WEFT_TRANSPORT_SIM_H

#include "transport/core/core.h"

struct weft_sim;

struct sim_due {
    uint64_t time_ns;
    uint64_t order;
    size_t index; /* SIM_IDLE: in no heap */
    void (*fire)(struct weft_sim *sim, struct sim_due *due);
};
#define SIM_IDLE SIZE_MAX

struct sim_heap_entry {
    uint64_t time_ns, order;
    struct sim_due *due;
};

struct sim_heap {
    struct sim_heap_entry *entries;
    size_t count, capacity, reserved;
    bool tracked; /* nodes know their index, for fast removal */
};

bool sim_heap_reserve(struct sim_heap *heap, struct weft_env *env, size_t nodes);
static inline void sim_heap_unreserve(struct sim_heap *heap, size_t nodes) { heap->reserved -= nodes; }
void sim_heap_push(struct sim_heap *heap, struct sim_due *due);
struct sim_due *sim_heap_pop(struct sim_heap *heap);
void sim_heap_remove(struct sim_heap *heap, struct sim_due *due);

/* pool.c: blocks of one size; contents undefined. slab_bytes 0: one allocation per block. */
struct sim_pool {
    struct sim_block *unused;
    struct weft_list slabs;
    size_t block_bytes;
};
void sim_pool_init(struct sim_pool *pool, size_t block_bytes);
void *sim_pool_alloc(struct sim_pool *pool, struct weft_env *env, size_t slab_bytes); /* NULL: no memory */
void sim_pool_release(struct sim_pool *pool, struct weft_env *env, size_t slab_bytes, void *memory);
void sim_pool_free(struct sim_pool *pool, struct weft_env *env);
enum { SIM_COPY_CLASSES = 12, SIM_COPY_BYTES_MIN = 64 };
static inline bool sim_copy_pooled(size_t bytes)
{
    return bytes <= (size_t)SIM_COPY_BYTES_MIN << (SIM_COPY_CLASSES - 1);
}
void *sim_copy_alloc(struct weft_sim *sim, size_t bytes); /* for an eager payload; NULL: no memory */
void sim_copy_release(struct weft_sim *sim, void *memory, size_t bytes);

struct sim_loop {
    struct weft_loop *loop;
    struct sim_host *host;
    struct sim_due timer; /* its earliest timer */
    struct weft_list link;
};

struct sim_host {
    struct weft_env env;
    struct weft_sim *sim;
    uint32_t index;
    uint64_t random;
    uint64_t clock_ns; /* last reading of its clock */
    uint32_t slow;
    uint64_t egress_free_ns, ingress_free_ns; /* ideal network: when the link is free again */
    uint64_t egress_bytes;
    uint32_t endpoint_count;                  /* endpoints opened so far: they use the rails in turn */
    bool dead, death_known;
    bool frozen; /* not stepped; its link continues */
    uint64_t killed_ns;
    struct sim_due kill_due, notice_due;
    struct weft_list loops;
    struct weft_list ready; /* in sim->ready while it needs a step */
};

struct sim_endpoint {
    struct weft_sim *sim;
    struct sim_host *host;
    struct weft_transport *transport; /* NULL once freed; the record stays until the end of the simulation */
    uint32_t id, serial, rail;
    uint32_t phases_out;                 /* phases of its messages in flight on a topology */
    bool closed, gone_known;
    uint32_t sending_count;
    struct weft_list sending, receiving; /* struct sim_message */
    struct weft_list inbox;              /* announced, waiting for progress */
    struct sim_due look;                 /* check for lost peers */
    struct sim_due notice;               /* delivers the notice of the close to peers */
    bool must_check_peers;
    uint64_t last_delivery_ns;
    struct weft_list link;               /* in sim->endpoints */
    uint8_t address[24];
};

struct sim_peer {
    struct sim_endpoint *remote;
    uint64_t last_delivery_ns; /* announcements of one pair keep their order */
};

/* A window, kept until the end of the simulation, so that an old key finds it closed. */
struct sim_window {
    struct sim_endpoint *owner;
    unsigned char *address;
    uint64_t bytes, secret; /* the key carries the secret */
    unsigned rights;
    uint32_t serial, peer_id;
    bool open;
};

/* The variable state of a link. */
struct sim_link {
    uint64_t free_ns; /* when all its bytes have left */
    uint64_t bytes;   /* bytes sent */
    struct weft_list waiting; /* flows that start here and may send, linked by of_link */
    struct sim_due turn;
    bool down;
};

/* A fault of the topology file. */
struct sim_fault {
    struct sim_due due;
    const struct topology_fault *what;
    bool on;
};

enum sim_phase {
    SIM_ANNOUNCE = 1,
    SIM_ACCEPT,
    SIM_DATA,
    SIM_FINISH,
    SIM_DISCARD,
    SIM_PUT,
    SIM_GET,
    SIM_GET_DATA
};

/* Memory of the payload. */
struct sim_buffers {
    const void *payload;     /* the sender's buffer, or `copy` */
    void *copy;              /* of an eager payload */
    void *buffer;            /* receiver's buffer, or destination of a get */
};
/* Entries in the lists of its endpoints. */
struct sim_message_links {
    struct weft_list of_source, of_sink, waiting, stalled; /* sending; receiving; inbox; behind a cut */
};
/* With a topology: its flows. */
struct sim_transfer {
    struct sim_flow *flow, *flow_back; /* topology: forward, and back for operations with an answer */
    uint64_t phase_bytes;
    struct weft_list of_flow; /* in the queue of its flow */
};

struct sim_message {
    struct core_arrival arrival; /* first */
    uint64_t nonce;
    uint64_t depart_ns;      /* when the announcement leaves its host */
    uint64_t offset;
    size_t bytes;            /* size of a put or get */
    enum weft_status result; /* status that FINISH carries */
    /* Fields that every event reads: 64 bytes, aligned to 64 with the present size of the arrival. */
    struct sim_due travel;
    struct sim_endpoint *source, *sink;
    enum sim_phase phase;
    int refs;
    bool eager, send_live, receive_live, accepted, notify;
    struct sim_due sent;
    struct core_done send_done, receive_done;
    struct sim_buffers buffers;
    struct sim_message_links links;
    struct sim_window *window; /* of a put or get */
    struct sim_transfer transfer;
    struct weft_list all;    /* in sim->big_copies, while its copy is not from a pool */
};

/* Memory of messages, peers, payloads and flows. */
struct sim_pools {
    struct sim_pool message_pool, peer_pool, copies[SIM_COPY_CLASSES];
    struct sim_pool flow_pool, burst_pool, copy_pool;
};
/* Flows between hosts, with a topology. */
struct sim_flows {
    struct sim_flow **flow_buckets;
    uint32_t flow_bucket_count, flow_count, idle_flow_count, broken_count;
    struct weft_list idle_flows;
};
/* Pairs of hosts without a connection. */
struct sim_cuts {
    uint8_t *cut; /* (hosts, hosts) bits */
    uint64_t cut_count; /* number of set bits */
    uint64_t heal_done_ns; /* messages released by the last heal have arrived by then */
    bool has_deferred_notices;      /* a close is not reported yet because of a cut */
};
/* Endpoints by serial. */
struct sim_endpoint_table {
    struct sim_endpoint **endpoint_table; /* by serial */
    uint32_t endpoint_count, endpoint_capacity;
};
/* Windows by serial. */
struct sim_window_table {
    struct sim_window **window_table; /* by serial */
    uint32_t window_count, window_capacity;
};

struct weft_sim {
    struct weft_env *env;
    struct weft_sim_options options;
    uint64_t now_ns, order, event_count, random;
    uint64_t trace; /* hash of all events in order */
    struct sim_heap events, timers;
    struct sim_pools pools;
    struct sim_flows flows;
    struct sim_link *links; /* indexed as topology->links */
    struct sim_fault *faults;
    struct weft_sim_traffic traffic;
    struct sim_host *hosts;
    struct sim_cuts cuts;
    struct weft_list ready;
    struct weft_list endpoints, big_copies, stalled;
    struct sim_endpoint_table endpoints_by_serial;
    struct sim_window_table windows_by_serial;
};

/* sim.c */
void sim_host_ready(struct sim_host *host);
struct sim_host *sim_host_of_env(struct weft_env *env); /* NULL: not an env of a simulation */
void sim_schedule(struct weft_sim *sim, struct sim_due *due, uint64_t time_ns);
uint64_t sim_random(uint64_t *state);
static inline void sim_note(struct weft_sim *sim, uint64_t what)
{
    sim->trace = (sim->trace ^ what) * 0x9fb21c651e98df25ull;
}
static inline bool sim_is_cut(const struct weft_sim *sim, const struct sim_host *a, const struct sim_host *b)
{
    if (sim->cuts.cut_count == 0) return false; /* the common case: reads nothing of the hosts */
    size_t bit = (size_t)a->index * sim->options.host_count + b->index;
    return sim->cuts.cut[bit / 8] >> bit % 8 & 1;
}
/* Makes space for one more pointer; doubles the table. */
bool sim_table_grow(struct weft_sim *sim, void ***table, uint32_t count, uint32_t *capacity);

/* wire.c */
/* `answered`: the sink will send an answer. NULL: no memory. */
struct sim_message *sim_message_new(struct sim_endpoint *source, struct sim_endpoint *sink, bool answered);
void sim_message_start(struct sim_message *message, enum sim_phase phase, struct sim_peer *peer);
void sim_message_accept(struct sim_message *message);
void sim_message_discard(struct sim_message *message);
void sim_message_release(struct sim_message *message);
void sim_message_end_send(struct sim_message *message, enum weft_status status);
void sim_message_end_receive(struct sim_message *message, enum weft_status status);
void sim_message_arrived(struct sim_message *message); /* the present phase has arrived */
/* time at which the last byte of its first phase leaves the host */
void sim_message_departed(struct sim_message *message, uint64_t time_ns);
void sim_message_heal(struct sim_message *message);
void sim_recycle_send(struct weft_transport *transport, struct core_done *done);

/* window.c: one-sided access */
enum weft_status sim_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error);
void sim_window_close(struct weft_transport *transport, struct weft_window *window);
void sim_window_free(struct weft_transport *transport, struct weft_window *window);
enum weft_status sim_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                            size_t bytes);
void sim_release(struct weft_transport *transport, struct weft_remote *remote);
enum weft_status sim_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion);
enum weft_status sim_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion);

enum { SIM_SENDING_MAX = 4096 }; /* operations in flight per endpoint; more: WEFT_ERR_AGAIN */

#endif
