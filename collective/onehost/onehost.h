/* onehost.h - internal interface of the one-host path: collectives of ranks that map each other's memory.
 *
 *   publish    each rank fills a descriptor (one cache line) in its segment: the call, where its buffers are
 *   work       all descriptors are there: rank i reduces or copies slice i of all buffers; T in registers
 *   complete   all done_seq counters are there: the operation is complete
 *   copy-in    small contributions travel in the descriptor or a copy-in slot, and need no second wait
 *
 * Each word of a segment has one writer. Sequence numbers (seq) count the operations of this path only;
 * `sequence` counts those of the group. The descriptor of seq n is reused by n + ONEHOST_DESCRIPTORS
 * (sequence.c). The segment's random salt is added to each stored number, so a stale or reused segment never
 * matches. */
#ifndef WEFT_COLLECTIVE_ONEHOST_ONEHOST_H
#define WEFT_COLLECTIVE_ONEHOST_ONEHOST_H

#include <sched.h>
#include <stdatomic.h>

#include "collective/core/control/call_digest.h"
#include "collective/core/group.h"
#include "collective/core/op.h"
#include "collective/core/op_args.h"
#include "collective/core/op_pool.h"
#include "collective/plan/algorithm.h"

enum {
    ONEHOST_RANKS_MAX = 64,
    ONEHOST_INLINE_BYTES = 16, /* contributions up to this size are stored in the descriptor */
    ONEHOST_SMALL_SLOT_BYTES = PLAN_ONEHOST_COPYIN_SMALL_BYTES, /* and up to this size in one small slot */
    ONEHOST_STEP_BYTES = 1 << 20, /* loaded and stored in one step of the loop */
    /* read from a peer by one system call, so that it stays in the cache until the sum reads it */
    ONEHOST_CMA_CHUNK_BYTES = 128 << 10,
    /* scratch for CMA reads per rank, if the plan by messages needs less */
    ONEHOST_CMA_SCRATCH_BYTES = 16 << 10,
    /* unequal pieces in unmapped memory go by messages if all pieces together are longer */
    ONEHOST_UNEQUAL_CMA_BYTES_MAX = 256 << 10,
    ONEHOST_SMALL_SLOTS = 32,
    ONEHOST_SMALL_POOL_BYTES = ONEHOST_SMALL_SLOTS * ONEHOST_SMALL_SLOT_BYTES,
    ONEHOST_LARGE_SLOTS = 16,
    ONEHOST_LARGE_SLOT_BYTES = 64 << 10, /* a larger contribution occupies consecutive large slots */
    ONEHOST_LARGE_POOL_BYTES = ONEHOST_LARGE_SLOTS * ONEHOST_LARGE_SLOT_BYTES,
    ONEHOST_SLICE_ALIGN_BYTES = 4096, /* slices begin at multiples of this, if the vector is long enough */
    ONEHOST_STAGE_BYTES = (768 << 10) + 4096, /* staging memory of one rank */
    ONEHOST_CPUS = CPU_SETSIZE,
    ONEHOST_DESCRIPTORS = 48,   /* descriptors of one segment */
    ONEHOST_MESSAGE_CALLS = 32, /* calls by messages that a segment remembers */
};

/* How peers access the caller's buffers. Without DIRECT, CMA and STAGED the operation goes by messages.
 * DIRECT: the buffers are in memory that all peers map. CMA: peers copy them by process_vm_readv and
 * writev. STAGED: this rank has a stage; used if all ranks set it. UNEQUAL: pieces of unequal lengths.
 * HAS_LOCAL_PIECE: this rank copies a piece from its own input to its own output. PREFERS_DIRECT: this
 * rank does not copy in although the length permits it. CMA_REFUSED: the kernel refuses copies to this
 * rank or to one of its peers (cma_permission.c). */
enum onehost_flags {
    ONEHOST_DIRECT = 1,
    ONEHOST_CMA = 2,
    ONEHOST_STAGED = 4,
    ONEHOST_UNEQUAL = 8,
    ONEHOST_HAS_LOCAL_PIECE = 16,
    ONEHOST_PREFERS_DIRECT = 32,
    ONEHOST_CMA_REFUSED = 64
};

/* The actions of a round of the staged method (staged.c). */
_Static_assert(sizeof(struct onehost_stage_info) <= ONEHOST_INLINE_BYTES, "it fits into the descriptor");
enum onehost_stage_action { ONEHOST_COPY_IN, ONEHOST_REDUCE, ONEHOST_COPY_OUT, ONEHOST_STAGE_ACTIONS };

/* A rank's call: one cache line. `seq` is stored last. */
struct onehost_descriptor {
    _Alignas(64) _Atomic uint64_t seq; /* salt + seq + 1; written by the owner */
    uint64_t sequence, count;
    /* DIRECT: offsets in the owner's mapped memory; CMA: addresses; copy-in: `in` is the offset of the
     * slot */
    uint64_t in, out;
    uint8_t kind, dtype, op, flags;
    uint32_t root;
    /* STAGED: begins with a struct onehost_stage_info. UNEQUAL: 64 bits: the offset of the cuts, the length
     * of the only piece, or the hash of cuts that all ranks know (personalized.c). */
    uint8_t inline_data[ONEHOST_INLINE_BYTES];
};
_Static_assert(sizeof(struct onehost_descriptor) == 64, "a descriptor is one cache line");

struct onehost_segment {
    /* salt + seq + 1 of the last operation whose slice is done; written by the owner */
    _Alignas(64) _Atomic uint64_t done_seq;
    _Alignas(64) _Atomic uint32_t sleeping; /* 1: the owner sleeps; wake it after a store */
    /* core of the owner at its last publish; ONEHOST_NO_PROCESSOR: it has published nothing */
    _Atomic uint32_t processor;
    /* 1: the owner loads from and stores to the peers' buffers now */
    _Alignas(64) _Atomic uint32_t accesses_buffers;
    /* salt + number of operations after which the owner reads no peer's segment any more; exclusive */
    _Atomic uint64_t retired_seq;
    /* operations below this seq are closed: peers must not access the owner's buffers for them */
    _Alignas(64) _Atomic uint64_t closed_seq;
    /* salt + offset + 1 of a struct onehost_message_calls; any other value: none yet */
    _Atomic uint64_t message_calls_at;
    /* salt + offset + 1 of the table of sendrecv.c; any other value: none yet */
    _Atomic uint64_t sendrecv_at;
    /* salt + (seq + 1) * ONEHOST_ROUNDS_MAX + rounds */
    _Alignas(64) _Atomic uint64_t done[ONEHOST_STAGE_ACTIONS];
    /* the descriptor of seq n is descriptors[n % ONEHOST_DESCRIPTORS] */
    struct onehost_descriptor descriptors[ONEHOST_DESCRIPTORS];
    /* one bit per core in the owner's affinity; constant from before the address is sent, as the rest */
    uint64_t cpu_mask[ONEHOST_CPUS / 64];
    uint32_t online_cpus;        /* cores online, as the owner sees */
    struct weft_cpu_quota quota; /* CPU time limit of the owner's container */
};

/* The last calls that went by messages, by their number in the group: `seq` is salt + that number + 1. A peer
 * that waits for the same call in memory finds here that this rank called something else. Other use of
 * fields: flags: plan; in: cuts; out: chunk. Allocated with the first such call. */
struct onehost_message_calls {
    struct onehost_descriptor descriptors[ONEHOST_MESSAGE_CALLS];
};

/* Payload of COLL_MESSAGE_ONEHOST_SEGMENT, in the byte order of the host. */
struct onehost_segment_address {
    uint32_t magic, layout;
    uint64_t at, salt; /* at: address of the segment in the sender's memory */
};

/* The memory of another process as mapped here; shared by all groups of this process. */
struct onehost_peer_memory {
    struct weft_mapping mapping;
    struct onehost_peer_memory *next;
    uint32_t users;
};

struct onehost_peer {
    const struct onehost_peer_memory *memory; /* NULL: not mapped yet, or this rank itself */
    struct onehost_segment *segment;          /* inside the mapping */
    uint64_t salt;
};

/* A rank's buffers in the current operation. */
struct onehost_buffers {
    bool uses_cma; /* accessed by address through the kernel; else mapped here */
    const uint8_t *in;
    uint8_t *out;
    uint8_t *stage;
    uint64_t in_address, out_address;
    uint64_t in_first, out_first; /* personalized.c: elements before the pieces for and from this rank */
    bool has_local_piece;
};

/* copy_method.c: measured cost for unmapped buffers; index 1: CMA, index 0: staged. */
#define ONEHOST_METHOD_KINDS 6
#define ONEHOST_METHOD_SIZES 8
struct onehost_method_stats {
    uint32_t cost[2]; /* picoseconds per byte */
    /* measurements of each, at most 3; operations since the slower method was probed; doublings of that
     * interval */
    uint8_t tries[2], since_probe, backoff;
};
struct onehost_method_table {
    /* by kind, in place or not, and size */
    struct onehost_method_stats of[ONEHOST_METHOD_KINDS][2][ONEHOST_METHOD_SIZES];
};

/* The call as the descriptor carries it. */
struct onehost_call {
    enum weft_coll_kind kind;
    uint64_t count; /* this field and the next three as in the message header */
    uint32_t root;
    uint8_t dtype, op;
};

/* A prepared call (fastpath.c): what follows from the arguments alone, computed once per set of arguments. */
struct onehost_prepared {
    uint64_t id;         /* unique in this process */
    bool is_usable;      /* the call can complete inside itself; the fields below are valid */
    bool can_use_direct; /* with mapped buffers (fastpath_direct.c) */
    bool can_copyin;     /* by copy-in */
    /* constant part of the operation for mapped buffers; NULL: not made yet */
    struct weft_coll *direct_coll;
    size_t scratch_bytes; /* needed if the operation falls back to the queue */
    struct weft_coll_args args;
    struct onehost_call call;
    const char *name; /* of the kind */
    size_t bytes;     /* own contribution by copy-in */
    uint64_t event_bytes, moved_bytes;
    bool has_in, has_out; /* `in` and `out` must not be NULL */
    struct coll_buffer_layout layout;
    bool completes_early; /* needs no peer: completes when the descriptor is published */
    bool needs_root_only; /* needs the root's descriptor only */
    bool has_work;        /* has something to copy or reduce */
    bool is_sum, is_rooted;
    bool is_all_inline; /* all contributions are inline */
    bool is_small;      /* at most a few cache lines, so the clock is not read a second time */
    struct weft_record begin_record, done; /* flight recorder entries */
};

#define ONEHOST_NO_PROCESSOR UINT32_MAX

/* cma_permission.c: what the kernel compares before it permits peers to copy this process's memory. */
struct onehost_credentials {
    uint32_t user, group;
    int dumpable;
};

enum onehost_state { ONEHOST_VOTING = 1, ONEHOST_ENABLED, ONEHOST_DISABLED };
enum onehost_vote { ONEHOST_VOTE_YES = 1, ONEHOST_VOTE_CMA = 2 }; /* neither bit: no, or not voted yet */
enum onehost_slot_class { ONEHOST_SMALL, ONEHOST_LARGE, ONEHOST_SLOT_CLASSES };

/* Addresses and votes of the ranks while the path is set up. */
struct onehost_setup {
    bool all_mappable;                      /* every address received so far could be mapped */
    bool all_cma;                           /* no rank has reported that the kernel refuses CMA */
    uint8_t vote;                           /* own vote, enum onehost_vote */
    struct onehost_credentials credentials; /* of this process at setup */
    uint32_t offer_count, vote_count;
    uint64_t offered_ranks, voted_ranks; /* bit per rank */
    struct onehost_segment_address offer;
};
/* cache_policy.c: last-level cache; private caches of all cores in use. */
struct onehost_caches {
    uint64_t last_cache_bytes, core_cache_bytes;
};
/* State of sleep and of core migration. */
struct onehost_scheduling {
    bool sleeping;
    uint32_t processor; /* copy of segment->processor */
    struct {            /* core_migration.c */
        uint32_t polls;
        uint64_t moved_ns, wait_ns; /* time of the last move; minimum time until the next one */
    } migration;
};
/* The queue, its poll, and the wait of the current fast-path call. */
struct onehost_polling {
    struct weft_list queue; /* struct weft_coll.onehost.link, by seq */
    struct weft_pollable pollable;
    bool is_registered;
    bool fast_has_waited;        /* the current fast-path call has waited for a peer */
    uint64_t fast_poll_until_ns; /* end of that wait; 0: the clock was not read yet */
};

struct onehost {
    struct weft_group *group;
    enum onehost_state state;
    /* more ranks than cores that they may use; the same on all ranks */
    bool is_oversubscribed;
    uint8_t small_slots_limit; /* slot of the operation before small_slots_first_seq */
    struct onehost_setup setup;
    struct onehost_caches caches;
    struct onehost_scheduling scheduling;
    struct onehost_segment *segment; /* own; in memory that peers map */
    uint64_t salt;
    struct onehost_message_calls *message_calls; /* own; in memory that peers map; NULL: none yet */
    struct onehost_sendrecv *sendrecv;           /* sendrecv.c; NULL: no send or recv yet */
    /* copy-in slots of one class, in memory that peers map */
    struct onehost_copyin_slots {
        uint8_t *memory; /* NULL: not held now */
        uint64_t at;
        struct weft_list link; /* op_pool->copyin_slots[].holders */
    } copyin_slots[ONEHOST_SLOT_CLASSES];
    /* (ONEHOST_LARGE_SLOTS,) of each slot: one more than the seq of its last contribution */
    uint64_t *large_slot_seqs;
    /* (ranks,) of the first operation in the queue; NULL: not needed, or no memory */
    struct onehost_buffers *buffers;
    uint64_t next_seq; /* seq of the next operation */
    struct {           /* sequence.c; all bounds exclusive unless stated */
        /* operations below are complete here, and all peers called the same; at most next_seq */
        uint64_t verified_seq;
        uint64_t peers_retired_seq; /* all peers have retired the operations below */
        uint64_t waiting_seq;       /* operation that awaited_rank has not called; inclusive */
        /* one more than the last operation cancelled before it was published; 0: none */
        uint64_t cancelled_seq;
        uint64_t peers_read_seq; /* all peers have read the contributions of the operations below */
    } run_ahead;
    /* the first rank that the current phase waits for; ranks below it are done */
    uint32_t awaited_rank;
    /* low half of the seq from which on small slots are used in order from slot 0 */
    uint32_t small_slots_first_seq;
    struct onehost_polling polling;
    struct weft_timestamp stamp; /* of flight recorder entries */
    /* last fast-path call of each kind; NULL: none yet */
    struct onehost_prepared *prepared[WEFT_COLL_KIND_COUNT];
    /* payload bytes moved to the peers, and as many from them (weft_group_add_moved) */
    uint64_t moved_bytes;
    struct onehost_peer peers[]; /* (ranks,) */
};

/* ---- setup.c ---- */
bool onehost_can_map_all(const struct weft_group *group); /* all ranks can map each other's memory */
/* Allocates group->onehost if it may exist and does not. Errors: no memory; the group then has none for
 * good. */
enum weft_status onehost_open(struct weft_group *group);
/* last_vote: setup.vote of a rank that has left */
void onehost_peer_left(struct weft_group *group, uint32_t rank, uint64_t last_vote);
void onehost_address_received(struct weft_group *group, uint32_t rank, const void *payload, size_t bytes);
void onehost_vote_received(struct weft_group *group, uint32_t rank, enum weft_status opinion, bool copies);
/* Frees it. No operation of the group accesses a buffer any more. */
void onehost_free(struct weft_group *group);

/* cores that these ranks may use together */
uint32_t onehost_processor_count(const struct onehost_peer *peers, uint32_t ranks);
/* a peer has not retired all operations below */
bool onehost_is_read_by_peers(const struct onehost_peer *peers, uint32_t count, uint64_t operations);

/* ---- cma_permission.c ---- */
struct onehost_credentials onehost_credentials_read(void);
/* asks the kernel; logs a warning at the first refusal */
bool onehost_cma_is_permitted(struct onehost *onehost);
void onehost_cma_disable(struct onehost *onehost);

/* ---- pool.c ---- */
void onehost_pools_free(struct weft_env *env, struct op_pool *op_pool);
enum weft_status onehost_peer_memory_acquire(struct weft_peer *peer,
                                             const struct onehost_peer_memory **memory_out);
void onehost_peer_memory_release(const struct onehost_peer_memory *memory); /* NULL is allowed */
static inline bool onehost_peer_memory_contains(const struct onehost_peer_memory *memory, uint64_t at,
                                                uint64_t bytes)
{
    return at <= memory->mapping.bytes && bytes <= memory->mapping.bytes - at;
}
/* Zeroed memory that peers map. Any thread; a block can outlive its group. WEFT_ERR_UNSUPPORTED: peers cannot
 * map memory of this process. */
enum weft_status onehost_block_alloc(size_t bytes, void **block_out, uint64_t *at_out);
void onehost_block_free(void *block); /* NULL is allowed */
/* holds slots of this class until no operation of the group is posted; false: no memory */
bool onehost_slots_acquire(struct onehost *onehost, enum onehost_slot_class slot_class);
/* ownership to the caller, for weft_memory_free or onehost_slots_release; NULL: it held none */
uint8_t *onehost_slots_detach(struct onehost *onehost, enum onehost_slot_class slot_class);
/* no peer reads it any more; NULL is allowed */
void onehost_slots_release(struct op_pool *op_pool, enum onehost_slot_class slot_class, uint8_t *memory);
struct onehost_buffers *onehost_buffers_acquire(struct weft_group *group); /* NULL: no memory */
void onehost_buffers_release(struct op_pool *op_pool, struct onehost_buffers *buffers);
/* Does a contribution of this size need a slot? */
static inline bool onehost_needs_slot(size_t copyin_bytes)
{
    return copyin_bytes > ONEHOST_INLINE_BYTES;
}
static inline enum onehost_slot_class onehost_slot_class_of(size_t copyin_bytes)
{
    return copyin_bytes > ONEHOST_SMALL_SLOT_BYTES ? ONEHOST_LARGE : ONEHOST_SMALL;
}
/* onehost_small_slot_is_free: all peers have read the slot of operation `seq`. onehost_small_slot_take: its
 * byte offset. */
bool onehost_small_slot_is_free(const struct onehost *onehost, uint64_t seq);
size_t onehost_small_slot_take(struct onehost *onehost, uint64_t seq);
/* First of the consecutive free large slots for this size; ONEHOST_LARGE_SLOTS: not enough are free. */
uint32_t onehost_large_slot_find(const struct onehost *onehost, size_t copyin_bytes);
static inline uint32_t onehost_large_slots_needed(size_t copyin_bytes)
{
    return (uint32_t)((copyin_bytes + ONEHOST_LARGE_SLOT_BYTES - 1) / ONEHOST_LARGE_SLOT_BYTES);
}

/* ---- segment.c ---- */
static inline struct onehost_descriptor *onehost_descriptor_of(struct onehost_segment *segment, uint64_t seq)
{
    return &segment->descriptors[seq % ONEHOST_DESCRIPTORS];
}
/* A peer's contribution; NULL: its offset is outside the peer's memory. */
const uint8_t *onehost_copyin_of(const struct onehost *onehost, uint32_t rank, uint64_t seq, size_t bytes);
void onehost_publish(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* for DIRECT, CMA or STAGED; does not wake the peers */
void onehost_publish_buffers(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* Does not wake the peers: onehost_wake_peers does, after a full fence. */
void onehost_publish_copyin(struct onehost *onehost, const struct onehost_call *call, const void *from,
                            size_t bytes, uint64_t seq, uint64_t sequence);
void onehost_wake_peers(struct onehost *onehost);
/* a call that goes by messages */
void onehost_publish_message_call(struct onehost *onehost, const struct weft_coll *coll);
/* What the peer called by messages as number `sequence` of the group; NULL: nothing. */
const struct onehost_descriptor *onehost_message_call_of(const struct onehost *onehost, uint32_t rank,
                                                         uint64_t sequence);
/* the peer last published on this rank's core, so it cannot run while this rank does */
bool onehost_peer_shares_core(const struct onehost *onehost, uint32_t rank);
void onehost_publish_processor(struct onehost *onehost);
void onehost_wake(const struct onehost *onehost, uint32_t rank); /* the rank sleeps */
static inline bool onehost_peer_has_arrived(const struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    return atomic_load_explicit(&onehost_descriptor_of(peer->segment, seq)->seq, memory_order_acquire) ==
           peer->salt + seq + 1;
}
/* the slice owned by `rank` */
void onehost_publish_slice_done(struct onehost *onehost, uint64_t seq);
bool onehost_slice_is_done(const struct onehost *onehost, uint32_t rank, uint64_t seq);
/* Whether the result of a slice is finite, for the peers: publish before onehost_publish_slice_done, read
 * after onehost_slice_is_done. */
void onehost_publish_finite(struct onehost *onehost, uint64_t seq, enum weft_coll_finite finite);
enum weft_coll_finite onehost_finite_of(const struct onehost *onehost, uint32_t rank, uint64_t seq);
/* The caller needs to know whether the sum is finite, and the kernels can tell. */
static inline bool onehost_checks_sum(const struct weft_coll *coll)
{
    return coll->args.finite_out && coll->args.kind == WEFT_COLL_ALL_REDUCE && coll->args.dtype == WEFT_F32 &&
           (coll->args.op == WEFT_SUM || coll->args.op == WEFT_AVG);
}
void onehost_publish_retired(struct onehost *onehost, uint64_t operations); /* exclusive */
#define ONEHOST_ROUNDS_MAX (1ull << 32)
void onehost_publish_rounds(struct onehost *onehost, uint64_t seq, enum onehost_stage_action action,
                            uint64_t rounds);
bool onehost_has_done_rounds(const struct onehost *onehost, uint32_t rank, uint64_t seq,
                             enum onehost_stage_action action, uint64_t rounds);
/* The peer has not retired all operations below `next`. A value out of range belongs to a freed segment: its
 * owner has ended the group and reads nothing. */
static inline bool onehost_peer_reads_segment(const struct onehost_peer *peer, uint64_t next)
{
    return atomic_load_explicit(&peer->segment->retired_seq, memory_order_acquire) - peer->salt < next;
}
bool onehost_buffers_enter(struct onehost *onehost, uint64_t seq); /* false: a rank has closed its buffers */
void onehost_buffers_leave(struct onehost *onehost);
void onehost_buffers_close(struct onehost *onehost, uint64_t below);
bool onehost_buffers_have_peer(const struct onehost *onehost); /* a live peer is inside */
#define ONEHOST_SEQ_ENDED (UINT64_MAX / 2) /* as retired_seq: the owner reads nothing any more */
void onehost_sleep(struct onehost *onehost);
void onehost_sleep_end(struct onehost *onehost);

/* ---- sequence.c ---- */
/* Waits until the next operation may be published. false: timed out. */
bool onehost_reserve_sequence(struct onehost *onehost, bool completes_early, size_t bytes);
/* Unverified operations of a rank: the current one and one free descriptor are left. */
#define ONEHOST_RUN_AHEAD_MAX (ONEHOST_DESCRIPTORS - 2)
#define ONEHOST_VERIFY_EVERY 4 /* operations between two looks, from half the limit on */
static inline bool onehost_should_verify(const struct onehost *onehost)
{
    uint64_t run_ahead = onehost->next_seq - onehost->run_ahead.verified_seq;
    return run_ahead >= ONEHOST_RUN_AHEAD_MAX ||
           (run_ahead >= ONEHOST_RUN_AHEAD_MAX / 2 && onehost->next_seq % ONEHOST_VERIFY_EVERY == 0);
}
/* May the next operation be published now? Nothing else is queued. copyin_bytes: its contribution. */
static inline bool onehost_can_publish(struct onehost *onehost, bool completes_early, size_t bytes)
{
    bool free =
        !onehost_should_verify(onehost) &&
        onehost->run_ahead.verified_seq >= onehost->run_ahead.cancelled_seq &&
        onehost->next_seq + completes_early < onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS;
    return (free && !onehost_needs_slot(bytes)) || onehost_reserve_sequence(onehost, completes_early, bytes);
}
/* false: awaited_rank has not called run_ahead.waiting_seq, or has called something else. */
bool onehost_verify(struct onehost *onehost, uint64_t below); /* verifies all operations below */
/* and all peers have called the operation before `seq` */
bool onehost_verify_all_before(struct onehost *onehost, uint64_t seq);
/* waiting_seq was cancelled here: only the peer's retired_seq shows that it is past it */
bool onehost_waits_for_retired_seq(const struct onehost *onehost);
void onehost_all_arrived(struct onehost *onehost, uint64_t seq); /* all ranks have published `seq` */
/* the root of a broadcast or scatter has published `seq` */
void onehost_root_arrived(struct onehost *onehost, uint64_t seq);
/* `seq` is complete here; verified if all before it are */
void onehost_retire(struct onehost *onehost, uint64_t seq);

/* ---- sendrecv.c ---- */
/* sends and recvs use memory unless the vote fails */
bool onehost_sendrecv_is_possible(const struct weft_group *group);
/* the send for a recv is there, from a rank that may have left since */
bool onehost_send_has_arrived(const struct weft_group *group, const struct weft_coll_args *args);
/* ONEHOST_RECV_POSTED: the send that it would match is there */
bool onehost_recv_is_matched(const struct weft_coll *coll);
/* allocates what the call needs; false: no memory */
bool onehost_sendrecv_reserve(struct onehost *onehost, uint32_t rank, bool sends);
void onehost_sendrecv_launch(struct weft_coll *coll); /* after onehost_sendrecv_reserve */
/* a recv ends without the message that was announced for it */
void onehost_recv_drop_message(const struct weft_coll *coll);
/* through memory, with that rank */
struct coll_sendrecv_counts onehost_sendrecv_counts(const struct onehost_sendrecv *sendrecv, uint32_t rank);
bool onehost_has_unreceived_sends(const struct onehost *onehost); /* a peer has not received a send */
void onehost_sendrecv_add_moved(const struct onehost_sendrecv *sendrecv, struct weft_moved *moved);
enum weft_status onehost_sendrecv_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                               weft_coll_done_fn done, void *context,
                                               struct weft_coll **coll_out); /* as weft_coll_try_fastpath */
/* a peer has not received all sends */
bool onehost_sends_are_read_by_peers(const struct onehost_sendrecv *sendrecv,
                                     const struct onehost_peer *peers, uint32_t own);
/* from group and loop; pending sends stay readable */
void onehost_sendrecv_detach(struct onehost_sendrecv *sendrecv);
void onehost_sendrecv_free(struct onehost_sendrecv *sendrecv); /* NULL is allowed, here and above */

/* ---- core_migration.c ---- */
/* call after a poll of a rank that shares this core; can move the calling thread */
void onehost_core_migration(struct onehost *onehost);
/* Should `rank` leave its core? *free_out: cores of `allowed` without a rank. processors (ranks,). */
bool onehost_core_migration_choose(const cpu_set_t *allowed, const uint32_t *processors, uint32_t ranks,
                                   uint32_t rank, cpu_set_t *free_out);
/* Moves the calling thread to a core of `free` and restores affinity `allowed`. false: nothing changed. */
bool onehost_core_migration_move(const cpu_set_t *allowed, const cpu_set_t *free);

/* ---- fastpath.c ---- */
struct onehost_completion { /* completion of a call that does not complete inside itself */
    weft_coll_done_fn done;
    void *context;
    struct weft_coll **coll_out;
};
struct onehost_started {
    uint64_t seq, sequence, now_ns, record_number;
};
void onehost_prepared_free(struct onehost *onehost);
void onehost_prepared_invalidate(struct onehost *onehost);
bool onehost_descriptor_matches(const struct onehost_descriptor *descriptor, const struct onehost_call *call,
                                uint64_t sequence);
/* false: timed out */
bool onehost_fastpath_wait_arrival(struct onehost *onehost, uint32_t rank, uint64_t seq);
/* Ranks on this core first: a rank on another core can depend on them, so polling it first would be in
 * vain. */
bool onehost_fastpath_wait_core_sharers(struct onehost *onehost, uint64_t seq);
/* after an unsuccessful poll; false: timed out */
bool onehost_fastpath_poll_pause(struct onehost *onehost, bool shares, uint32_t polls);
/* The descriptor is published: record the start and wake sleeping peers. */
struct onehost_started onehost_fastpath_begin(struct onehost *onehost, struct onehost_prepared *prepared,
                                              uint64_t seq, uint64_t sequence);
void onehost_fastpath_end(struct onehost *onehost, const struct onehost_prepared *prepared,
                          const struct onehost_started *started);
/* Continues as a queued operation after a timeout or an irregular descriptor. so_far: state of the direct
 * operation, or NULL. */
void onehost_fall_back_to_queue(struct weft_group *group, const struct weft_coll_args *args,
                                const struct onehost_started *started, const struct weft_coll *so_far,
                                const struct onehost_completion *after);

/* ---- fastpath_direct.c ---- */
/* the call can complete inside itself if its buffers are mapped */
bool onehost_fastpath_direct_accepts(const struct weft_group *group, const struct weft_coll_args *args);
/* call after a change of the arguments */
void onehost_fastpath_direct_prepare(struct weft_group *group, struct onehost_prepared *prepared);
/* As weft_coll_try_fastpath. WEFT_ERR_NO_MEMORY: nothing happened; unknown whether the buffers are mapped. */
enum weft_status onehost_fastpath_direct(struct weft_group *group, struct onehost_prepared *prepared,
                                         const void *in, void *out, const struct onehost_completion *after);

/* ---- path.c ---- */
bool onehost_accepts(const struct weft_group *group, const struct weft_coll_args *args);

/* ---- engine.c ---- */
static inline void onehost_set_phase(struct weft_coll *coll, enum onehost_phase phase)
{
    coll->onehost.phase = phase;
    coll->path.is_active = phase != ONEHOST_BY_MESSAGES;
}
/* a launched operation would start now */
bool onehost_starts_immediately(const struct onehost *onehost);
void onehost_launch(struct weft_coll *coll);
/* periodic, while operations go by messages: verifies what was called in memory before */
void onehost_verify_idle(struct weft_group *group);
/* the vote is over: pending operations start here or by messages */
void onehost_vote_complete(struct onehost *onehost);
void onehost_unlink(struct weft_coll *coll); /* the operation is finished, or falls back to messages */
bool onehost_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);

/* ---- buffers.c ---- */
/* all pieces together, for reduce_scatter and all_gather */
uint64_t onehost_vector_elems(const struct weft_coll *coll);
/* finds the caller's buffers in the memory that peers map */
void onehost_buffers_locate(const struct onehost *onehost, struct weft_coll *coll);
/* Checks that the buffers of `rank` lie in its mapped memory and sets buffers->in and ->out. */
bool onehost_buffers_resolve(const struct onehost *onehost, const struct weft_coll *coll, uint32_t rank,
                             const struct onehost_descriptor *descriptor, struct onehost_buffers *buffers);
/* Bytes moved between this rank and its peers, one direction. If slices differ in length: the mean over the
 * ranks. */
uint64_t onehost_moved_bytes(const struct weft_coll *coll);

/* ---- cache_policy.c: non-temporal stores ---- */
void onehost_cache_policy_init(struct onehost *onehost, uint32_t processors);
bool onehost_sum_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);
bool onehost_copy_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);
bool onehost_stage_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);

/* ---- copyin.c ---- */
/* after the vote */
bool onehost_uses_copyin(const struct weft_group *group, const struct weft_coll_args *args);
/* contribution of a rank */
size_t onehost_copyin_bytes_of(const struct weft_group *group, const struct weft_coll_args *args,
                               uint32_t rank);
/* of this rank */
size_t onehost_copyin_bytes(const struct weft_group *group, const struct weft_coll_args *args);
/* from this rank to its peers */
uint64_t onehost_copyin_moved_bytes(const struct weft_group *group, const struct weft_coll_args *args);
/* slot space that the call can need */
size_t onehost_slot_bytes(const struct onehost *onehost, const struct weft_coll_args *args);
/* each byte that a rank copies in has one reader */
bool onehost_has_single_reader(const struct weft_group *group, enum weft_coll_kind kind);
bool onehost_copyin_has_pieces(enum weft_coll_kind kind); /* a contribution has one piece per rank */
/* acquires the slots; false: no memory */
bool onehost_copyin_reserve(struct onehost *onehost, const struct weft_coll_args *args);
/* The length permits copy-in, but ranks with mapped buffers prefer direct access (ONEHOST_PREFERS_DIRECT). */
bool onehost_can_prefer_direct(const struct weft_group *group, const struct weft_coll_args *args);

/* ---- direct.c ---- */
struct onehost_range onehost_slice(const struct weft_coll *coll);
/* not for gather, scatter and all_to_all */
struct onehost_range onehost_slice_of(const struct weft_coll *coll, uint32_t rank);
/* for onehost_direct_work */
size_t onehost_scratch_bytes(const struct weft_group *group, const struct weft_coll_args *args);
void onehost_copyin_work(struct onehost *onehost, const struct weft_coll_args *args, uint64_t seq);
/* outs[each] = sum of sources[rank], (count,) elements. */
void onehost_reduce(const struct weft_coll *coll, const uint8_t *const *sources, uint8_t *const *outs,
                    uint32_t out_count, uint64_t count);
/* Error: the memory of rank *culprit_out cannot be accessed. */
enum weft_status onehost_direct_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out);

/* ---- personalized.c ---- */
/* reduce_scatter: of the input; all_gather: of the output */
struct onehost_range onehost_piece_of(const struct weft_coll *coll, uint32_t rank);
static inline bool onehost_is_unequal(const struct weft_coll *coll)
{
    return coll->steps.cursor.args.own_lengths || coll->steps.cursor.args.displs_in;
}
static inline bool onehost_is_personalized(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}
/* of the own input, for `rank` */
struct onehost_range onehost_piece_sent(const struct weft_coll *coll, uint32_t rank);
/* of the own output, from `rank` */
struct onehost_range onehost_piece_received(const struct weft_coll *coll, uint32_t rank);
/* own input to own output, at another address */
bool onehost_has_local_piece(const struct weft_coll *coll);
/* in a small slot */
bool onehost_publishes_cuts(const struct weft_group *group, const struct weft_coll_args *args);
/* value for the descriptor */
uint64_t onehost_publish_lengths(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* false: the lengths differ, and the group has ended. *fits_out: the pieces lie in the peer's memory. */
bool onehost_pieces_check(const struct onehost *onehost, struct weft_coll *coll, uint32_t rank,
                          struct onehost_buffers *buffers, bool *fits_out);
struct onehost_range onehost_pieces_slice(const struct onehost *onehost, const struct weft_coll *coll);
enum weft_status onehost_pieces_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out);

/* ---- copy_method.c ---- */
/* NULL: no memory. */
struct onehost_method_stats *onehost_method_stats_of(struct onehost *onehost, enum weft_coll_kind kind,
                                                     bool in_place, uint64_t bytes);
bool onehost_method_uses_cma(struct onehost_method_stats *method_stats);
void onehost_method_record(struct onehost_method_stats *method_stats, bool uses_cma, uint64_t ns,
                           uint64_t bytes);

/* ---- staged.c ---- */
void onehost_stages_free(struct weft_env *env, struct op_pool *op_pool);
/* bytes of the vector that this rank would move in a round */
uint32_t onehost_stage_block(bool is_oversubscribed);
bool onehost_stage_block_is_valid(uint64_t block);
uint8_t *onehost_stage_acquire(struct weft_group *group);            /* NULL: no memory */
void onehost_stage_release(struct op_pool *op_pool, uint8_t *stage); /* NULL is allowed */
void onehost_stage_begin(struct weft_coll *coll);
/* false: awaited_rank must act first */
bool onehost_stage_can_act(struct onehost *onehost, const struct weft_coll *coll);
/* false: nothing can be done now */
bool onehost_stage_step(struct onehost *onehost, struct weft_coll *coll, bool *complete_out);

#endif
