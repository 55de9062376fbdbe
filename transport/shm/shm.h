/* shm.h - inside the shared memory backend: endpoints of one host.
 *
 *   shm_ring.c      one segment per direction of a pair: cells and bytes
 *   shm_doorbell.c  polling, doorbells, sleep and wake-up
 *   shm_open.c      open, address, progress, arm, close, free
 *   shm_pair.c      bootstrap of a pair and its end
 *   shm_message.c   send, arrivals, accept, discard: cells out, cells in
 *   shm_transfer.c  payloads: mapped, CMA, granted, staged; in slices
 *   shm_split.c     CMA payloads that both sides copy
 *   shm_window.c    windows, put, get
 *   shm_fence.c     the fence that protects memory which its owner takes back
 *   shm_copy.c      one copy; the system calls of CMA
 *
 * The receiver chooses the copy method when it names the buffer, for the fewest copies:
 *
 *   sender's memory         receiver's memory       method   copies  copied by
 *   up to eager bytes       any                     eager    2       sender into the ring, receiver out of it
 *   from weft_memory_alloc  any                     mapped   1       receiver, from the mapping; then DONE
 *   any                     from weft_memory_alloc  granted  1       GRANT, sender into the mapping, DONE
 *   any                     any, CMA allowed        CMA      1       receiver, process_vm_readv; if large,
 *                                                                    also an awake sender; then DONE
 *   any                     any                     staged   2       STAGE, sender into slots, receiver out
 *
 * The caller of a put or get copies itself, mapped or by CMA. Without both, the request is a message and
 * the owner copies in its progress by a method of the table.
 *
 * Trust: peers belong to the same job and are authenticated. Ring contents are checked. A peer that writes
 * to other places of mapped memory than granted cannot be detected. */
#ifndef WEFT_TRANSPORT_SHM_H
#define WEFT_TRANSPORT_SHM_H

#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/memory/memory.h"
#include "transport/shm/shm_ring.h"

enum {
    SHM_OPS_MAX = 8192,        /* sends, puts and gets in flight per endpoint; more return WEFT_ERR_AGAIN */
    SHM_EAGER_MAX = 8192,      /* largest payload in the ring, whatever the option is */
    SHM_MAPPED_MIN = 1024,     /* a larger payload in mapped memory is announced instead of copied twice */
    SHM_CREDIT_BYTES = 1 << 20, /* eager bytes of one peer that wait here at most; more are announced */
    SHM_CREDIT_FIRST = WEFT_TRANSPORT_UNREAD_BYTES_MIN, /* until the peer's hello names its number */
    SHM_MESSAGE_COST = 512,    /* fixed cost of one message in SHM_CREDIT_BYTES */
    SHM_GRANT_MIN = 64 << 10,  /* below this a CMA read is faster than a grant */
    SHM_SPLIT_MIN = 48 << 10,  /* from here on both sides copy a CMA payload */
    SHM_SLICE_BYTES = 512 << 10, /* largest copy without a return to progress */
    SHM_STEP_BYTES = 1 << 20,  /* bytes of all copies in one progress */
    SHM_DIRECT_BYTES = 256 << 10, /* puts and gets up to this complete inside their call */
    SHM_DIRECT_COST = 256,     /* fixed cost of one such put or get in SHM_DIRECT_STEP */
    SHM_DIRECT_STEP = 4 << 20, /* direct bytes between two calls of progress; more are queued */
    SHM_STREAM_BYTES = 16 << 20, /* copies of this size and more use non-temporal stores */
    SHM_SLOT_BYTES = 128 << 10, /* size of a staging slot; SHM_SLOTS of them serve all peers */
    SHM_SLOTS = 16,
    SHM_SLOTS_OF_OP = 4,
    SHM_PIECE_BYTES = 4096,    /* size of a piece in the ring, if no slot is free */
    SHM_HOT_MAX = 16,          /* rings that are polled without a doorbell */
    SHM_HOT_IDLE = 4096, /* progress calls without a cell after which a ring may lose its polled place */
    SHM_DOORBELL_BITS = 4096,          /* doorbell bits; further peers share bits */
    SHM_BOOTSTRAP_POLL_EVERY = 1024,     /* progress calls between two polls of the sockets */
    SHM_BOOTSTRAP_POLL_BYTES = 16384,    /* so many copied bytes count as one progress call */
    SHM_POOL_BLOCK = 32,
};
#define SHM_INSIDE_GRANT 0x80000000u

/* Abilities of the sender of a hello: map the peer's memory, access it by CMA. FENCES travels in the
 * bootstrap parameters: the process fences for its peers (shm_fence.c). */
enum shm_ability { SHM_MAPS = 1, SHM_CMA = 2, SHM_FENCES = 4 };

/* ---- shared with peers ---- */

struct shm_doorbell_bitmap { /* written by all peers */
    _Alignas(64) _Atomic uint32_t sleeping;
    _Alignas(64) _Atomic uint64_t summary; /* bit i: words[i] is not 0 */
    _Alignas(64) _Atomic uint64_t words[SHM_DOORBELL_BITS / 64];
};

struct shm_window_generations { /* written by the owner only; peers map it read-only */
    _Atomic uint32_t generation[RING_WINDOWS]; /* odd: the window is open */
};

/* ---- operations ---- */

enum shm_phase {
    SHM_FREE = 0,
    SHM_ARRIVED,     /* an arrival without an acceptance; the peer has no name for it */
    SHM_QUEUED,    /* its cell waits for space in the ring */
    SHM_ANNOUNCED, /* sender: waits until the receiver names a buffer */
    SHM_COPYING,   /* in endpoint->active: this side copies */
    SHM_GRANTED,   /* the peer writes into our memory */
    SHM_STAGING,   /* sender, in endpoint->active or ->stalled: sends pieces */
    SHM_RECEIVING,    /* receiver: receives pieces */
    SHM_AT_OWNER,   /* put or get: the window's owner copies */
    SHM_DONE,      /* complete; a cell may still wait for space */
};

enum shm_copy_method { SHM_COPY_MAPPED = 1, SHM_COPY_CMA };

/* Copy by this side. */
struct shm_copy {
    /* state of a copy by this side */
    bool outward, stream, notify_done; /* stream: by non-temporal stores */
    enum shm_copy_method method;
    uint8_t *local;
    size_t bytes, at;
    uint64_t peer_address;           /* arena offset (mapped) or address (CMA) at the peer */
    uint64_t peer_op;         /* name of the peer's operation */
    uint32_t window, window_generation; /* window of the peer: 1 + number, and its generation; 0: none */
    uint32_t slots;           /* staging slots that are filled and not read */
};

struct shm_op {
    struct core_done done;    /* first */
    struct weft_list of_pair; /* in pair->ops until complete */
    struct weft_list link;    /* in pair->queue or ->answers (queued), or in endpoint->active or ->stalled */
    struct shm_pair *pair;
    uint32_t index, generation; /* name of the operation at the peer */
    enum shm_phase phase;
    bool is_arrival;          /* embedded in a struct shm_arrival, else in a struct shm_send */
    bool has_user;                /* a completion of a caller is attached */
    bool delivered;           /* the core has delivered it */
    bool queued;              /* `cell` waits for space; the record must live until it is written */
    /* local window that this operation uses (counted in its users), or NULL */
    struct shm_window *held_window;
    struct shm_copy copy;
    /* state of a split copy: shm_split.c */
    uint32_t split, split_epoch; /* 1 + index of its split word in the ring; 0: not split */
    uint64_t chunk, taken;    /* chunk size in bytes; chunks claimed by this side */
    bool split_reported;         /* receiver: the sender has reported the end of its part */
    enum weft_status split_peer_status, split_status; /* status of the peer's part; of the local part */
    /* the next cell of this operation */
    struct ring_cell cell;
    const uint8_t *payload;   /* eager payload, written behind the cell and its header */
};

struct shm_send {
    struct shm_op op; /* first */
    bool notify;      /* put: a message without payload follows the bytes */
    uint64_t tag;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct shm_arrival {
    struct core_arrival core; /* first */
    struct shm_op op;         /* the acceptance */
    uint64_t address, offset, sender_op; /* from the announcement */
    bool announced, notify;
    struct shm_window *window; /* target of a put that the owner copies */
    uint32_t cost;            /* eager bytes charged to the peer's credit */
    const uint8_t *payload;   /* eager payload: in the ring while core_arrived runs, later in `kept` */
    uint8_t *kept;
    struct memory_view *peeked; /* reference for the readers of a peeked payload, or NULL */
};

struct shm_pool {
    size_t item_bytes, op_offset;
    bool is_arrival;
    struct weft_list free; /* linked by op.link */
    void *blocks;          /* singly linked through their first word */
};

/* ---- pairs and endpoints ---- */

enum shm_pair_state { SHM_PAIR_CONNECTING = 1, SHM_PAIR_CONNECTED, SHM_PAIR_CLOSED };

/* Facts about the peer and the connection. */
struct shm_pair_flags {
    bool dead;        /* the process has ended or has closed: it accesses no memory */
    bool watched; /* lost while the process runs: the connection stays to detect its end (shm_is_detached) */
    bool self;        /* pair of an endpoint with itself: one ring */
    bool broken;      /* the ring has impossible contents */
    bool answered;    /* the peer's hello has arrived */
    bool read_by_cma; /* process_vm_readv of the peer's memory works */
    bool light;       /* each side fences for the other when it takes memory back */
};
/* From the peer's hello. */
struct shm_peer_memory {
    uint32_t abilities; /* abilities in the peer's hello, towards our memory */
    int32_t pid;
    uint64_t probe_address; /* address of a test word in the peer's memory, for CMA */
    uint64_t arena_id, arena_bytes; /* arena in the peer's parameters; 0: none */
};
/* Memory and descriptors of the peer. */
struct shm_mapped {
    struct shm_doorbell_bitmap *doorbells; /* of the peer, mapped here; as the next two */
    struct shm_window_generations *window_generations;
    int event_fd;
    struct memory_view *view;
};
/* Cost of eager messages. */
struct shm_credit {
    uint64_t max;      /* cost of eager messages that may wait at the peer */
    uint64_t used;     /* cost of eager messages sent, since connect */
    uint64_t given;    /* cost of eager messages consumed here, since connect */
    uint64_t kept;     /* cost of eager messages that wait here */
};
/* Entries in the lists of the endpoint. */
struct shm_pair_links {
    struct weft_list link;    /* in endpoint->pairs */
    struct weft_list blocked; /* in endpoint->blocked while cells wait for space */
    struct weft_list ending;  /* in endpoint->ending while the peer may access our memory */
};

struct shm_pair {
    struct shm_endpoint *endpoint;
    struct weft_peer *peer;
    struct bootstrap_peer *bootstrap;
    enum shm_pair_state state;
    struct shm_pair_flags flags;
    struct shm_peer_memory remote;
    struct ring_writer out;
    struct ring_reader in;
    struct shm_mapped mapped;
    /* the bit in our bitmap that the peer sets; our bit in its bitmap */
    uint32_t doorbell_bit, peer_doorbell_bit;
    /* cells that wait for space: messages in order; answers go before them */
    struct weft_list queue, answers, ops;
    struct shm_credit credit;
    uint32_t splits, split_epoch; /* split words in use, one bit each; last epoch used */
    uint32_t pieces_taken;    /* bits of the peer's staging slots to report as free */
    struct shm_arrival *current; /* arrival being dispatched; its payload is still in the ring */
    enum weft_status end_status;
    bool hot;
    uint32_t idle;            /* progress calls without a cell, while hot */
    struct shm_pair *next_doorbell; /* next pair with the same bit */
    struct shm_pair_links links;
};

struct shm_window {
    struct weft_window *handle;
    uint32_t number, generation;
    uint32_t users;         /* puts and gets in progress that the owner copies */
    struct weft_list closing;
};

struct shm_remote {
    struct shm_pair *pair;
    uint32_t window, generation;
    uint64_t address, offset;
    uint8_t *memory; /* the window in the mapping of a connected pair; NULL: not mapped, or not used yet */
    struct memory_view *view; /* set by weft_remote_map; a bit in writer.maps */
};

struct shm_slot {
    struct shm_pair *pair; /* pair that reads the slot; NULL: free */
    struct shm_op *op;
    uint32_t op_generation;
};

/* How this process may reach the memory of peers. */
struct shm_access {
    bool allow_maps, allow_cma, allow_fences, allow_split;
    bool fences;             /* registered for membarrier, and able to issue it */
    /* until then a peer counts as inside, although its flag was not seen; 0: none */
    uint64_t uncertain_until_ns;
};
/* Pairs and operations with work. */
struct shm_lists {
    struct weft_list pairs, active, stalled, blocked, ending, closing;
};
/* Which pairs are polled next. */
struct shm_polling {
    struct shm_pair *pairs_by_bit[SHM_DOORBELL_BITS], *hot[SHM_HOT_MAX];
    uint32_t next_doorbell, hot_count, hot_first;
};
/* Operations that peers name by index. */
struct shm_op_table {
    struct shm_op **ops;     /* by index */
    uint32_t op_count, op_capacity, ops_used;
};
/* Staging slots in the arena. */
struct shm_staging_area {
    uint8_t *staging;        /* SHM_SLOTS slots in the arena; NULL: not used yet, or no memory */
    uint64_t staging_offset;
    bool staging_tried;
    struct shm_slot slots[SHM_SLOTS];
};
/* Address that peers connect to. */
struct shm_own_address {
    size_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
};

struct shm_endpoint {
    struct weft_transport *transport;
    struct bootstrap *bootstrap;
    int epoll_fd, event_fd, doorbells_fd, window_generations_fd;
    struct shm_doorbell_bitmap *doorbells;
    struct shm_window_generations *window_generations;
    struct shm_access access;
    bool armed;              /* announced as sleeping; event_fd may be readable */
    bool bootstrap_due;
    /* progress calls since the last socket poll; pairs that are not connected yet */
    uint32_t bootstrap_poll_count, connecting_count;
    uint64_t probe;          /* random value that a peer must read at &probe to have found this process */
    struct shm_lists lists;
    struct shm_polling polling;
    struct shm_window *windows[RING_WINDOWS];
    struct shm_pool sends, arrivals;
    struct shm_op_table op_table;
    struct shm_staging_area staging_area;
    size_t step_bytes;       /* bytes copied in this progress */
    size_t credit_bytes;     /* cost of eager messages of one peer that may wait here */
    uint64_t refused_seen;   /* refusals of the bootstrap that are already in the stats */
    struct shm_own_address own_address;
};

/* shm_doorbell.c */
void shm_doorbell_ring(struct shm_pair *pair);  /* makes the peer handle this pair, whatever it polls */
void shm_doorbell_ring_self(struct shm_pair *pair);  /* makes this endpoint handle the pair */
/* after ring_writer_publish: rings if the reader does not poll */
void shm_notify_reader(struct shm_pair *pair);
enum weft_status shm_arm(struct weft_transport *transport);
void shm_disarm(struct shm_endpoint *endpoint);
int shm_doorbells_progress(struct shm_endpoint *endpoint, int budget);
void shm_doorbell_join(struct shm_endpoint *endpoint, struct shm_pair *pair);
void shm_doorbell_leave(struct shm_endpoint *endpoint, struct shm_pair *pair);

void shm_wake(struct weft_transport *transport, struct weft_peer *peer);

/* shm_open.c */
void *shm_pool_alloc(struct shm_endpoint *endpoint, struct shm_pool *pool); /* NULL: no memory */
bool shm_pool_has(struct shm_endpoint *endpoint, struct shm_pool *pool);   /* the next take will succeed */
void shm_pool_release(struct shm_endpoint *endpoint, struct shm_op *op);
/* NULL: no such name was given to this peer */
struct shm_op *shm_op_find(struct shm_pair *pair, uint64_t name);
static inline uint64_t shm_op_name(const struct shm_op *op)
{
    return (uint64_t)op->generation << 32 | op->index;
}

/* shm_pair.c */
enum weft_status shm_address_make(struct shm_endpoint *endpoint);
enum weft_status shm_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes);
void shm_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void shm_pair_connected(void *owner, struct bootstrap_peer *bootstrap, const void *parameters, size_t bytes,
                        int *descriptors, uint32_t count);
void shm_pair_on_message(void *owner, struct bootstrap_peer *bootstrap, const void *data, size_t bytes,
                         int *descriptors, uint32_t count);
void shm_pair_disconnected(void *owner, struct bootstrap_peer *bootstrap, enum weft_status status,
                           const char *text);
/* The peer has broken the protocol: marks it lost. From progress only. */
void shm_pair_broken(struct shm_pair *pair, const char *text);
void shm_pair_end(struct shm_pair *pair, enum ring_state how, enum weft_status status);
void shm_pair_leave(struct shm_pair *pair);
int shm_pairs_ending(struct shm_endpoint *endpoint);
void shm_pair_free(struct shm_pair *pair);
enum weft_status shm_map_peer(struct weft_transport *transport, struct weft_peer *peer,
                              struct weft_mapping *mapping_out);
enum weft_status shm_copy_peer(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                               uint64_t address, void *local, size_t bytes);
bool shm_is_detached(struct weft_transport *transport, const struct weft_peer *peer);
void shm_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);

/* shm_message.c */
enum weft_status shm_send(struct weft_transport *transport, struct weft_peer *peer,
                          const struct weft_message *message, struct weft_completion *completion);
enum weft_status shm_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                            struct weft_completion *completion);
void shm_discard(struct weft_transport *transport, struct weft_arrival *handle);
const void *shm_peek(struct weft_transport *transport, struct weft_arrival *handle);
bool shm_peek_is_valid(struct weft_transport *transport, const struct weft_arrival *handle);
int shm_pair_poll(struct shm_pair *pair, int budget);  /* reads cells */
void shm_pair_flush(struct shm_pair *pair);            /* writes waiting cells */
/* op->cell.body is filled: writes the cell now or when there is space */
void shm_answer(struct shm_op *op, enum ring_kind kind, uint64_t a);
void shm_op_finish(struct shm_op *op, enum weft_status status); /* ends the operation, once */
void shm_op_recycle(struct weft_transport *transport, struct core_done *done);
/* Starts an operation of the caller: adds it to the pair and attaches the completion. */
void shm_op_start(struct shm_op *op, struct shm_pair *pair, struct weft_completion *completion,
                  struct weft_remote *remote);
void shm_queue(struct shm_op *op); /* queues op->cell in message order */
/* as a message, complete or announced */
void shm_message_start(struct shm_op *op, const struct weft_message *message);
/* A message of only a header, without a record. Reserve succeeds if there is space and nothing waits
 * before it; then write or cancel. */
bool shm_notification_reserve(struct shm_pair *pair, size_t header_bytes);
void shm_notification_write(struct shm_pair *pair, uint64_t tag, const void *header, size_t header_bytes);
void shm_notification_cancel(struct shm_pair *pair);
void shm_block(struct shm_pair *pair); /* cells wait for space */
/* Writes the cell if there is space and nothing waits before it. */
bool shm_write(struct shm_pair *pair, struct ring_cell *cell, const void *header, const void *payload,
               size_t payload_bytes);
struct shm_arrival *shm_arrival_take(struct shm_pair *pair, uint64_t tag, const uint8_t *header,
                                     uint32_t header_bytes);
void shm_arrival_release(struct shm_arrival *arrival);
void shm_arrival_deliver(struct shm_arrival *arrival); /* passes it to the core */

/* shm_transfer.c */
void shm_receive_start(struct shm_arrival *arrival); /* op.local is set: chooses the method and starts */
void shm_copy_start(struct shm_op *op, enum shm_copy_method method, uint64_t peer_address, bool outward);
enum weft_status shm_copy_slice(struct shm_op *op, size_t bytes); /* copies at op->at and advances it */
/* tries another method or ends the operation; a receive must be in no list */
void shm_copy_failed(struct shm_op *op, enum weft_status status);
/* false: the peer ended the pair, so the bytes read may be invalid */
bool shm_is_still_valid(const struct shm_pair *pair);
/* ends the receive and reports to the sender */
void shm_receive_finish(struct shm_arrival *arrival, enum weft_status status);
int shm_transfers_progress(struct shm_endpoint *endpoint, int budget);
void shm_stalled_resume(struct shm_endpoint *endpoint);
/* the shm_on_... functions return false if the peer breaks the protocol */
bool shm_on_done(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_grant(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_stage(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_piece(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *data);
bool shm_on_piece_taken(struct shm_pair *pair, const struct ring_cell *cell);
void shm_slots_free(struct shm_endpoint *endpoint, const struct shm_pair *pair);
uint8_t *shm_view_at(const struct memory_view *view, uint64_t offset, uint64_t bytes); /* NULL: outside */

/* shm_split.c */
bool shm_split_start(struct shm_arrival *arrival); /* false: not split, nothing was done */
void shm_split_step(struct shm_op *op);            /* one slice of the local part */
void shm_split_end(struct shm_op *op);
bool shm_on_split(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_split_on_done(struct shm_op *op, enum weft_status status);

/* shm_window.c */
enum weft_status shm_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error);
void shm_window_close(struct weft_transport *transport, struct weft_window *window);
void shm_window_free(struct weft_transport *transport, struct weft_window *window);
enum weft_status shm_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                            size_t bytes);
void shm_release(struct weft_transport *transport, struct weft_remote *remote);
void *shm_map(struct weft_transport *transport, struct weft_remote *remote);
enum weft_status shm_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion);
enum weft_status shm_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion);
bool shm_on_put(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *header);
bool shm_on_get(struct shm_pair *pair, const struct ring_cell *cell);
/* sends a put or get as a message to the window's owner; returns true */
bool shm_ask_owner(struct shm_op *op);
int shm_windows_progress(struct shm_endpoint *endpoint); /* checks windows that close */
/* Brackets every access to memory that the peer may take back. False: it is closed. */
bool shm_access_begin(struct shm_pair *pair, uint32_t window, uint32_t generation);
void shm_access_end(struct shm_pair *pair);

/* shm_fence.c */
bool shm_fence_register(void); /* false: this system has no membarrier */
/* Between closing memory and checking for accesses. */
void shm_fence_users(struct shm_endpoint *endpoint);
/* the peer may be inside although its flag was not seen */
bool shm_fence_is_uncertain(const struct shm_pair *pair);

/* shm_copy.c */
void shm_copy(void *to, const void *from, size_t bytes, bool stream);
/* Copies all bytes or fails: WEFT_ERR_PEER_LOST, WEFT_ERR_UNSUPPORTED (not permitted), WEFT_ERR_INVALID
 * (no such memory). */
enum weft_status shm_cma(int32_t pid, void *local, uint64_t remote, size_t bytes, bool write);
/* The same for a pair. The first refusal after setup logs a warning and clears pair->read_by_cma. */
enum weft_status shm_pair_cma(struct shm_pair *pair, void *local, uint64_t remote, size_t bytes, bool write);

#endif
