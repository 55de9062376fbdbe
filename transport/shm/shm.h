/* shm.h - inside the shared memory backend: endpoints of one host.
 *
 *   shm_ring.c      the segment between two endpoints, one each way: cells and bytes
 *   shm_doorbell.c      how a writer tells a reader that does not look; how an endpoint sleeps
 *   shm_open.c      open, address, progress, arm, close, free
 *   shm_pair.c      two endpoints meet (meet.h), and how a pair ends
 *   shm_message.c   send, arrivals, accept, discard: cells out, cells in
 *   shm_transfer.c  payloads: mapped, CMA, granted, staged; in slices
 *   shm_split.c     payloads by CMA that both sides copy
 *   shm_window.c    windows, put, get
 *   shm_fence.c     why nobody writes to memory that its owner has taken back
 *   shm_copy.c      one copy; the system calls of CMA
 *
 * How a payload moves is chosen by its receiver when the buffer is named, for the fewest copies:
 *
 *   sender's memory          receiver's memory      way       copies  who copies
 *   up to eager bytes        any                    eager     2       sender into the ring, receiver out of it
 *   from weft_memory_alloc   any                    mapped    1       receiver, straight out of the mapping; then DONE
 *   any                      from weft_memory_alloc granted   1       GRANT, sender straight into the mapping, then DONE
 *   any                      any, CMA allowed       CMA       1       receiver, process_vm_readv, and if it is large and the
 *                                                                     sender awake he too, from the end; then
 *                                                                     DONE
 *   any                      any                    staged    2       STAGE, sender into slots of its staging memory, receiver out
 *
 * A put or get is done by who asks for it, mapped or by CMA; without both it is a message to the owner, whose
 * progress then does as with any other message (the table above).
 *
 * Trust: peers are of the same job and have proven it. What they write into a ring is checked; that they
 * write nowhere in mapped memory but where they were told cannot be. */
#ifndef WEFT_TRANSPORT_SHM_H
#define WEFT_TRANSPORT_SHM_H

#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/memory/memory.h"
#include "transport/shm/shm_ring.h"

enum {
    SHM_OPS_MAX = 8192,        /* sends, puts and gets in flight of one endpoint; more answer
                                * WEFT_ERR_AGAIN */
    SHM_EAGER_MAX = 8192,      /* at most this much payload travels through the ring, whatever the option
                                * says */
    SHM_MAPPED_MIN = 1024,     /* payload in mapped memory above this is announced rather than copied twice */
    SHM_CREDIT_BYTES = 1 << 20, /* eager messages one peer may leave here untaken; what exceeds it is
                                 * announced */
    SHM_MESSAGE_COST = 512,    /* a message's own share of that, beside its payload */
    SHM_GRANT_MIN = 64 << 10,  /* below this a CMA read is quicker than asking the sender to write */
    SHM_SPLIT_MIN = 48 << 10,  /* from here on both sides copy what goes by CMA */
    SHM_SLICE_BYTES = 512 << 10, /* of one copy at a time: bounds a step */
    SHM_STEP_BYTES = 1 << 20,  /* of all copies in one progress */
    SHM_DIRECT_BYTES = 256 << 10, /* puts and gets up to this are done inside their call */
    SHM_DIRECT_COST = 256,     /* what one of them counts in a step, beside its bytes */
    SHM_DIRECT_STEP = 4 << 20, /* of mapped ones between two calls of progress; those beyond wait for the
                                * next */
    SHM_STREAM_BYTES = 16 << 20, /* copies of this and more go around the cache */
    SHM_SLOT_BYTES = 128 << 10, /* staging memory: so many slots of so many bytes for all peers */
    SHM_SLOTS = 16,
    SHM_SLOTS_OF_OP = 4,
    SHM_PIECE_BYTES = 4096,    /* pieces without a slot travel behind their cell */
    SHM_HOT_MAX = 16,          /* rings that are looked at without a bell */
    SHM_HOT_IDLE = 4096,       /* progress without a cell after which a ring may lose that place */
    SHM_DOORBELL_BITS = 4096,          /* bits of the bell; peers beyond share them */
    SHM_BOOTSTRAP_POLL_EVERY = 1024,     /* progress calls between looks at the sockets, while nothing else
                                          * asks for one; */
    SHM_BOOTSTRAP_POLL_BYTES = 16384,    /* so many bytes copied count as a call */
    SHM_POOL_BLOCK = 32,
};
#define SHM_INSIDE_GRANT 0x80000000u

/* The writer of the hello can map, or read by CMA, its peer's memory. In the parameters of the meeting
 * also: it fences for its peers (shm_fence.c). */
enum shm_ability { SHM_MAPS = 1, SHM_CMA = 2, SHM_FENCES = 4 };

/* ---- what an endpoint shows to its peers ---- */

struct shm_doorbell_bitmap { /* written by everybody */
    _Alignas(64) _Atomic uint32_t sleeping;
    _Alignas(64) _Atomic uint64_t summary; /* bit i: look at words[i] */
    _Alignas(64) _Atomic uint64_t words[SHM_DOORBELL_BITS / 64];
};

struct shm_window_generations { /* written by the endpoint alone: peers can only read it */
    _Atomic uint32_t generation[RING_WINDOWS]; /* odd: open */
};

/* ---- operations ---- */

enum shm_phase {
    SHM_FREE = 0,
    SHM_ARRIVED,     /* an arrival that nobody has taken: its peer knows no name of it yet */
    SHM_QUEUED,    /* its cell waits for room */
    SHM_ANNOUNCED, /* sender: the receiver has to name a buffer */
    SHM_COPYING,   /* in endpoint->active: this side copies */
    SHM_GRANTED,   /* the other side writes into our memory */
    SHM_STAGING,   /* sender, in endpoint->active or ->stalled: pieces go out */
    SHM_RECEIVING,    /* receiver: pieces come in */
    SHM_AT_OWNER,   /* put or get: the owner works on it */
    SHM_DONE,      /* finished; may still have a cell to write */
};

enum shm_copy_method { SHM_COPY_MAPPED = 1, SHM_COPY_CMA };

struct shm_op {
    struct core_done done;    /* first */
    struct weft_list of_pair; /* in pair->ops until over */
    struct weft_list link;    /* in pair->queue or ->answers (queued), or in endpoint->active or ->stalled */
    struct shm_pair *pair;
    uint32_t index, generation; /* its name at the peer */
    enum shm_phase phase;
    bool is_arrival;          /* embedded in a struct shm_arrival, else in a struct shm_send */
    bool has_user;                /* somebody's completion hangs on it */
    bool delivered;           /* core is through with it */
    bool queued;              /* `cell` waits for room: not recycled before it is written */
    struct shm_window *held_window; /* of ours: counted in its users */
    /* the copy, when this side does it */
    bool outward, stream, notify_done;
    enum shm_copy_method method;
    uint8_t *local;
    size_t bytes, at;
    uint64_t peer_address;           /* arena offset (mapped) or address (CMA) at the peer */
    uint64_t peer_op;         /* its operation at the peer */
    uint32_t window, window_generation; /* of the peer: 1 + its number and what makes it valid; 0: no
                                         * window */
    uint32_t slots;           /* staging slots filled and not taken */
    /* when both sides copy: shm_split.c */
    uint32_t split, split_epoch; /* 1 + the number of its word in the ring; 0: it is not shared */
    uint64_t chunk, taken;    /* bytes; chunks taken by this side */
    bool split_reported;         /* receiver: the sender has told how his part ended: */
    enum weft_status split_peer_status, split_status; /* his, and ours */
    /* the cell that says so */
    struct ring_cell cell;
    const uint8_t *payload;   /* behind the cell, after the header; eager only */
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
    struct shm_op op;         /* its acceptance */
    uint64_t address, offset, sender_op; /* announced */
    bool announced, notify;
    struct shm_window *window; /* a put through the owner: where it goes */
    uint32_t cost;            /* of its eager bytes kept here */
    const uint8_t *payload;   /* eager: in the ring while core_arrived runs, later in `kept` */
    uint8_t *kept;
};

struct shm_pool {
    size_t item_bytes, op_offset;
    bool is_arrival;
    struct weft_list free; /* by op.link */
    void *blocks;          /* singly linked through their first word */
};

/* ---- pairs and endpoints ---- */

enum shm_pair_state { SHM_PAIR_CONNECTING = 1, SHM_PAIR_CONNECTED, SHM_PAIR_CLOSED };

struct shm_pair {
    struct shm_endpoint *endpoint;
    struct weft_peer *peer;
    struct bootstrap_peer *bootstrap;
    enum shm_pair_state state;
    bool dead;        /* its process is gone, or has taken its hands off: it touches nothing any more */
    bool watched;     /* given up while it ran: its connection stays, to learn when it ends
                       * (shm_is_detached) */
    bool self;        /* an endpoint's pair with itself: one ring, both ends here */
    bool broken;      /* its ring says the impossible */
    bool answered;    /* its hello came */
    bool read_by_cma; /* we can reach its memory by process_vm_readv */
    bool light;       /* each fences for the other when it takes memory back */
    uint32_t abilities; /* of its hello: what it can do with our memory */
    int32_t pid;
    uint64_t probe_address; /* address of a word in its memory, readable by CMA */
    uint64_t arena_id, arena_bytes; /* of its parameters; 0: it has none */
    struct ring_writer out;
    struct ring_reader in;
    struct shm_doorbell_bitmap *doorbells; /* the peer's, mapped here; likewise the next two */
    struct shm_window_generations *window_generations;
    int event_fd;
    struct memory_view *view;
    uint32_t doorbell_bit, peer_doorbell_bit; /* the bit in our board that this peer sets, and ours in its
                                               * board */
    struct weft_list queue, answers, ops; /* cells that wait: messages in order; answers go first */
    uint64_t credit_used;     /* cost of eager messages sent so far */
    uint64_t credit_given;    /* cost of eager messages taken here so far */
    uint64_t credit_kept;     /* cost of those not taken yet */
    uint32_t splits, split_epoch; /* words of the ring that are in use, a bit each; the last number given */
    uint32_t pieces_taken;    /* staging slots of the peer (a bit each) that it is to be told are free */
    struct shm_arrival *current; /* being handed to the core, payload still in the ring */
    enum weft_status end_status;
    bool hot;
    uint32_t idle;            /* progress without a cell, while hot */
    struct shm_pair *next_doorbell; /* further pairs with the same bit */
    struct weft_list link;    /* in endpoint->pairs */
    struct weft_list blocked; /* in endpoint->blocked while cells wait */
    struct weft_list ending;  /* in endpoint->ending while the peer may be inside our memory */
};

struct shm_window {
    struct weft_window *face;
    uint32_t number, generation;
    uint32_t users;         /* puts and gets that the owner does itself, under way */
    struct weft_list closing;
};

struct shm_remote {
    struct shm_pair *pair;
    uint32_t window, generation;
    uint64_t address, offset;
    uint8_t *memory;          /* the window in the pair's mapping, while the pair is met; NULL: not mapped,
                               * or not needed yet */
    struct memory_view *view; /* given out by weft_remote_map: a bit in writer.maps */
};

struct shm_slot {
    struct shm_pair *pair; /* who reads it; NULL: free */
    struct shm_op *op;
    uint32_t op_generation;
};

struct shm_endpoint {
    struct weft_transport *transport;
    struct bootstrap *bootstrap;
    int epoll_fd, event_fd, doorbells_fd, window_generations_fd;
    struct shm_doorbell_bitmap *doorbells;
    struct shm_window_generations *window_generations;
    bool allow_maps, allow_cma, allow_fences, allow_split;
    bool fences;             /* this process is registered for the fences of its peers' endpoints, and can
                              * make them pass one */
    uint64_t uncertain_until_ns; /* until then one may be inside whose word has not been seen; 0: no */
    bool armed;              /* said to sleep; an answer may be in event_fd */
    bool bootstrap_due;
    uint32_t bootstrap_poll_count, connecting_count; /* progress since the last look; pairs that have not
                                                      * met yet */
    uint64_t probe;          /* what a peer must read at &probe to have found the right process */
    struct weft_list pairs, active, stalled, blocked, ending, closing;
    struct shm_pair *pairs_by_bit[SHM_DOORBELL_BITS], *hot[SHM_HOT_MAX];
    uint32_t next_doorbell, hot_count, hot_first;
    struct shm_window *windows[RING_WINDOWS];
    struct shm_pool sends, arrivals;
    struct shm_op **ops;     /* by index */
    uint32_t op_count, op_capacity, ops_used;
    uint8_t *staging;        /* SHM_SLOTS slots in the arena; NULL: not needed yet, or none to be had */
    uint64_t staging_offset;
    bool staging_tried;
    struct shm_slot slots[SHM_SLOTS];
    size_t step_bytes;       /* copied in this progress */
    uint64_t refused_seen;   /* of the sockets' refusals, in the stats already */
    size_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
};

/* shm_doorbell.c */
void shm_doorbell_ring(struct shm_pair *pair);  /* make the peer look at this pair, whatever it does */
void shm_doorbell_ring_self(struct shm_pair *pair);  /* make ourselves look at it */
void shm_notify_reader(struct shm_pair *pair);  /* after ring_writer_publish: the bell only if nobody looks */
enum weft_status shm_arm(struct weft_transport *transport);
void shm_disarm(struct shm_endpoint *endpoint);
int shm_doorbells_progress(struct shm_endpoint *endpoint, int budget);
void shm_doorbell_join(struct shm_endpoint *endpoint, struct shm_pair *pair);
void shm_doorbell_leave(struct shm_endpoint *endpoint, struct shm_pair *pair);

void shm_wake(struct weft_transport *transport, struct weft_peer *peer);

/* shm_open.c */
void *shm_pool_take(struct shm_endpoint *endpoint, struct shm_pool *pool); /* NULL: no memory */
bool shm_pool_has(struct shm_endpoint *endpoint, struct shm_pool *pool);   /* the next take will answer */
void shm_pool_give(struct shm_endpoint *endpoint, struct shm_op *op);
/* NULL: none has been told so to this pair's peer */
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
/* It has broken the rules: lost. From progress only. */
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
enum weft_status shm_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                            struct weft_completion *completion);
void shm_discard(struct weft_transport *transport, struct weft_arrival *face);
int shm_pair_poll(struct shm_pair *pair, int budget);  /* cells in */
void shm_pair_flush(struct shm_pair *pair);            /* cells out, those that wait */
/* op->cell.body is filled: write it now or when there is room */
void shm_answer(struct shm_op *op, enum ring_kind kind, uint64_t a);
void shm_op_finish(struct shm_op *op, enum weft_status status); /* finish, once */
void shm_op_recycle(struct weft_transport *transport, struct core_done *done);
/* Start an operation of the user: in the pair's list, its completion hooked in. */
void shm_op_start(struct shm_op *op, struct shm_pair *pair, struct weft_completion *completion,
                  struct weft_remote *remote);
void shm_queue(struct shm_op *op); /* op->cell in the order of messages */
/* as a message, whole or announced */
void shm_message_start(struct shm_op *op, const struct weft_message *message);
/* A message that is only a header, without a record of it: reserved if there is room and its turn now;
 * then written, or not. */
bool shm_notification_reserve(struct shm_pair *pair, size_t header_bytes);
void shm_notification_write(struct shm_pair *pair, uint64_t tag, const void *header, size_t header_bytes);
void shm_notification_cancel(struct shm_pair *pair);
void shm_block(struct shm_pair *pair); /* something waits for room */
/* Written at once when there is room and nothing waits before it. */
bool shm_write(struct shm_pair *pair, struct ring_cell *cell, const void *header, const void *payload,
               size_t payload_bytes);
struct shm_arrival *shm_arrival_take(struct shm_pair *pair, uint64_t tag, const uint8_t *header,
                                     uint32_t header_bytes);
void shm_arrival_release(struct shm_arrival *arrival);
void shm_arrival_deliver(struct shm_arrival *arrival); /* to the core */

/* shm_transfer.c */
void shm_receive_start(struct shm_arrival *arrival); /* op.local is named: choose the way and go */
void shm_copy_start(struct shm_op *op, enum shm_copy_method method, uint64_t peer_address, bool outward);
enum weft_status shm_copy_slice(struct shm_op *op, size_t bytes); /* at op->at, which moves on */
/* another way, or its end; a receive that is in no list */
void shm_copy_failed(struct shm_op *op, enum weft_status status);
/* was what we read from the peer's memory what it meant us to read? */
bool shm_is_still_valid(const struct shm_pair *pair);
void shm_receive_finish(struct shm_arrival *arrival, enum weft_status status); /* and its sender is told */
int shm_transfers_progress(struct shm_endpoint *endpoint, int budget);
void shm_stalled_resume(struct shm_endpoint *endpoint);
/* these answer false: the peer breaks the rules */
bool shm_on_done(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_grant(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_stage(struct shm_pair *pair, const struct ring_cell *cell);
bool shm_on_piece(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *data);
bool shm_on_piece_taken(struct shm_pair *pair, const struct ring_cell *cell);
void shm_slots_free(struct shm_endpoint *endpoint, const struct shm_pair *pair);
uint8_t *shm_view_at(const struct memory_view *view, uint64_t offset, uint64_t bytes); /* NULL: outside */

/* shm_split.c */
bool shm_split_start(struct shm_arrival *arrival); /* false: not this one; nothing has happened */
void shm_split_step(struct shm_op *op);            /* one slice of this side's part */
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
bool shm_ask_owner(struct shm_op *op); /* a put or get as a message to the window's owner; true */
int shm_windows_progress(struct shm_endpoint *endpoint); /* those that close */
/* Around every touch of a peer's memory that it may take back. false: it has. */
bool shm_access_begin(struct shm_pair *pair, uint32_t window, uint32_t generation);
void shm_access_end(struct shm_pair *pair);

/* shm_fence.c */
bool shm_fence_register(void); /* false: this system has no such fence */
/* Between taking memory back and looking who is inside it. */
void shm_fence_users(struct shm_endpoint *endpoint);
/* the peer may be inside without having been seen there */
bool shm_fence_is_uncertain(const struct shm_pair *pair);

/* shm_copy.c */
void shm_copy(void *to, const void *from, size_t bytes, bool stream);
/* Whole or an error: WEFT_ERR_PEER_LOST, WEFT_ERR_UNSUPPORTED (not allowed), WEFT_ERR_INVALID (no such
 * memory there). */
enum weft_status shm_cma(int32_t pid, void *local, uint64_t remote, size_t bytes, bool write);
/* The same with a peer. The first refusal after setup logs a warning and clears pair->read_by_cma. */
enum weft_status shm_pair_cma(struct shm_pair *pair, void *local, uint64_t remote, size_t bytes, bool write);

#endif
