/* onehost.h - inside the room: the plan for ranks that share a host and map each other's memory.
 *
 *   setup.c   who maps whom; the vote by which all ranks agree to use this plan, or none
 *   segment.c    a rank's segment: what it writes, who is woken, when it sleeps, who is inside whose buffers
 *   onehost/engine.c     one operation after the other: its phases
 *   buffers.c whose buffers lie where
 *   onehost_direct_work.c    the arithmetic on one slice of everybody's buffers
 *   copyin.c    contributions that are said with the announcement (copyin_limit.c: how long they may be)
 *   personalized.c  pieces that one rank sends and one gets: gather, scatter, all_to_all
 *   onehost/pool.c  what all this is kept in, by all groups together
 *   oversubscribed.c   whose slice a rank works on, where ranks take turns
 *   staged.c   the same through memory in between, where buffers are not mapped
 *   onehost_method_stats.c     whether such buffers go that way, or are copied by system calls
 *   onehost_core_migration.c   ranks that share a processor part
 *   onehost/fastpath.c   a short one that is announced and over within the call, where the others come at once
 *   onehost_fastpath_direct.c   or one on buffers that are mapped
 *   onehost_channel.c    sends and recvs of two ranks
 *   sequence.c   who needs nothing of the others goes ahead of them, by some operations; what they called is seen later
 *
 * One pass instead of messages. Every rank announces its call and its buffers in its own segment. Once all
 * have come, rank i loads slice i of all inputs, sums by T in registers, and stores the sum into all outputs;
 * once all have said that they are through, the operation is over. Short ones carry their contribution in the
 * announcement: everybody sums everything, and nobody waits a second time.
 *
 * Each word of a segment has one writer. Numbers of operations are counted apart from those of the group, for
 * the operations that come here only; all ranks count alike. Announcements go round ONEHOST_DESCRIPTORS
 * places: a rank announces operation n + ONEHOST_DESCRIPTORS when all others have said that they are over
 * with n (sequence.c says why nobody looks at that word as a rule).
 *
 * Numbers are stored with the segment's random salt added. So what a peer reads is an answer or it is not,
 * even where the segment is gone and its memory has become something else. */
#ifndef WEFT_COLLECTIVE_ONEHOST_ONEHOST_H
#define WEFT_COLLECTIVE_ONEHOST_ONEHOST_H

#include <sched.h>
#include <stdatomic.h>

#include "collective/core/internal.h"
#include "collective/plan/algorithm.h"

enum {
    ONEHOST_RANKS_MAX = 64,
    ONEHOST_INLINE_BYTES = 16,       /* contributions up to this lie in the announcement's own line */
    ONEHOST_SMALL_SLOT_BYTES = PLAN_ONEHOST_COPYIN_SMALL_BYTES, /* up to this in a room of the rank */
    ONEHOST_STEP_BYTES = 1 << 20,  /* loaded and stored in one step of the loop */
    ONEHOST_CMA_CHUNK_BYTES = 128 << 10, /* of ordinary memory at a time: stays in the cache between system
                                          * call and sum */
    ONEHOST_CMA_SCRATCH_BYTES = 16 << 10, /* of it at least, where a plan by messages needs no memory for
                                           * so much */
    ONEHOST_UNEQUAL_CMA_BYTES_MAX = 256 << 10, /* unequal pieces of ordinary memory, all together, longer
                                                * than that go by messages */
    ONEHOST_SMALL_SLOTS = 32,
    ONEHOST_SMALL_POOL_BYTES = ONEHOST_SMALL_SLOTS * ONEHOST_SMALL_SLOT_BYTES,
    ONEHOST_LARGE_SLOTS = 16,       /* contributions that do not fit into a room lie in a hall, */
    ONEHOST_LARGE_SLOT_BYTES = 64 << 10, /* in as many slots in a row as they take */
    ONEHOST_LARGE_POOL_BYTES = ONEHOST_LARGE_SLOTS * ONEHOST_LARGE_SLOT_BYTES,
    ONEHOST_SLICE_ALIGN_BYTES = 4096,    /* slices begin at multiples of it, where there is that much */
    ONEHOST_STAGE_BYTES = (768 << 10) + 4096, /* memory between buffers that are not mapped */
    ONEHOST_CPUS = CPU_SETSIZE,
    ONEHOST_DESCRIPTORS = 48,            /* announcements of a rank that stand there at a time */
    ONEHOST_MESSAGE_CALLS = 32,            /* by messages, remembered: a rank runs ahead of one that waits
                                            * by as many */
};

/* How the peers reach what they need of the caller's buffers; none of the first three: not at all, by
 * messages. STAGED: through a stage, if all say so. UNEQUAL: pieces of many lengths. KEEPS: this rank has
 * a piece of its own to copy. LENDS: MAPPED, and so is all that others need to work on this rank's slice.
 * APART: the kernel refuses copies of ordinary memory by this rank or by its peers (cma_permission.c). */
enum onehost_flags {
    ONEHOST_DIRECT = 1,
    ONEHOST_CMA = 2,
    ONEHOST_STAGED = 4,
    ONEHOST_UNEQUAL = 8,
    ONEHOST_HAS_LOCAL_PIECE = 16,
    ONEHOST_ALLOWS_STEALING = 32,
    ONEHOST_CMA_REFUSED = 64
};

/* staged.c: what a rank does in each round. */
_Static_assert(sizeof(struct onehost_stage_info) <= ONEHOST_INLINE_BYTES, "it lies in the announcement");
enum onehost_stage_action { ONEHOST_COPY_IN, ONEHOST_REDUCE, ONEHOST_COPY_OUT, ONEHOST_STAGE_ACTIONS };

/* What a rank says when it calls: one line, the turn stored last. */
struct onehost_descriptor {
    _Alignas(64) _Atomic uint64_t seq; /* salt + number + 1 */
    uint64_t sequence, count;
    uint64_t in, out;                   /* ONEHOST_DIRECT: offsets in the memory that peers map;
                                         * ONEHOST_CMA: addresses; a short one's `in`: the offset of its
                                         * contribution, where it does not lie in `word` */
    uint8_t kind, dtype, op, flags;
    uint32_t root;
    uint8_t inline_data[ONEHOST_INLINE_BYTES];      /* ONEHOST_STAGED: begins with a struct
                                                     * onehost_stage_info; ONEHOST_UNEQUAL: where the cuts
                                                     * lie, or the length of the only piece, or, of cuts
                                                     * that all ranks know, their number (personalized.c),
                                                     * 64 bits */
};
_Static_assert(sizeof(struct onehost_descriptor) == 64, "an announcement is one line");

struct onehost_segment {
    _Alignas(64) _Atomic uint64_t done_seq;  /* salt + number + 1 of the last operation whose slice is done */
    _Atomic uint64_t claimed_seq;                 /* the same of the last one whose slice somebody has
                                                   * taken (oversubscribed.c), */
    _Atomic uint32_t claimed_by;                 /* this rank */
    _Alignas(64) _Atomic uint32_t sleeping; /* wake me after you have stored */
    _Atomic uint32_t processor;             /* on which this rank last announced an operation;
                                             * ONEHOST_NO_PROCESSOR: none yet */
    _Alignas(64) _Atomic uint32_t accesses_buffers;   /* 1: loading and storing in the peers' buffers at
                                                       * this moment */
    _Atomic uint64_t retired_seq;                  /* salt + number of operations, from the first on, for
                                                    * which peers' segments are not looked at any more */
    _Alignas(64) _Atomic uint64_t closed_seq;   /* operations with a number below are over here: keep out
                                                 * of my buffers */
    _Atomic uint64_t message_calls_at;              /* salt + offset + 1 of a struct onehost_message_calls;
                                                     * no such offset: none yet */
    _Atomic uint64_t sendrecv_at;              /* likewise of a table of onehost_channel.c */
    /* salt + (number + 1) * ONEHOST_ROUNDS_MAX + rounds */
    _Alignas(64) _Atomic uint64_t done[ONEHOST_STAGE_ACTIONS];
    /* operation n is announced in n % ONEHOST_DESCRIPTORS */
    struct onehost_descriptor descriptors[ONEHOST_DESCRIPTORS];
    /* a bit for each that this rank may run on; written before the offer, as what follows: so all ranks
     * see the same */
    uint64_t cpu_mask[ONEHOST_CPUS / 64];
    uint32_t online_cpus;                           /* as many as this rank sees running */
    struct weft_cpu_quota quota;               /* and how much of their time it may have, with others of
                                                * its container; as processors */
};

/* The last calls that go by messages, by their number in the group (`turn` is salt + that + 1): a peer
 * that waits for one of them in memory sees that this rank calls otherwise. flags: the plan; in: cuts;
 * out: chunk. Made with the first one. */
struct onehost_message_calls {
    struct onehost_descriptor descriptors[ONEHOST_MESSAGE_CALLS];
};

/* The payload of COLL_MESSAGE_ONEHOST_SEGMENT: between processes of one host, in its own byte order. */
struct onehost_segment_address {
    uint32_t magic, layout;
    uint64_t at, salt; /* at: where the segment lies in the sender's memory */
};

/* A process's memory as it is mapped here; one for all groups of this process that meet it. */
struct onehost_peer_memory {
    struct weft_mapping mapping;
    struct onehost_peer_memory *next;
    uint32_t users;
};

struct onehost_peer {
    const struct onehost_peer_memory *memory; /* NULL: none yet, or this rank itself */
    struct onehost_segment *segment; /* in the mapping */
    uint64_t salt;
};

/* A rank's buffers of the operation under way. */
struct onehost_buffers {
    bool uses_cma;       /* by address, else mapped here */
    const uint8_t *in;
    uint8_t *out;
    uint8_t *stage;
    uint64_t in_address, out_address;
    uint64_t in_first, out_first; /* personalized.c: elements before the pieces for and of this rank */
    bool has_local_piece;
};

/* onehost_method_stats.c: what an operation on ordinary memory took, copied by system calls (true) or
 * through stages (false). */
#define ONEHOST_METHOD_KINDS 6
#define ONEHOST_METHOD_SIZES 8
struct onehost_method_stats {
    uint32_t cost[2]; /* picoseconds per byte */
    uint8_t tries[2], since_probe, backoff; /* the first few; operations by the faster one since the other
                                             * was looked at, and how often that was */
};
struct onehost_method_table {
    /* by kind, in place or not, and size */
    struct onehost_method_stats of[ONEHOST_METHOD_KINDS][2][ONEHOST_METHOD_SIZES];
};

/* A call that is announced: what its line says, beside the numbers. */
struct onehost_call {
    enum weft_coll_kind kind;
    uint64_t count; /* these four as in the header of a message */
    uint32_t root;
    uint8_t dtype, op;
};

/* onehost/fastpath.c: a brief call, and what follows from it; looked at once for all calls that are alike
 * but for their buffers. */
struct onehost_prepared {
    uint64_t id;             /* no other shape of this process has it */
    bool is_usable;                   /* it may be over within the call; what follows is known */
    bool can_use_direct;                   /* where buffers are mapped, by these
                                            * (onehost_fastpath_direct.c) */
    bool can_copyin;                   /* else, or only so, by what is said */
    struct weft_coll *direct_coll;    /* what is the same in all such; NULL: none yet */
    size_t scratch_bytes;        /* that one of them needs when it becomes an ordinary one */
    struct weft_coll_args args;
    struct onehost_call call;       /* how it is announced */
    const char *name;            /* of its kind */
    size_t bytes;                /* onehost_copyin_bytes */
    uint64_t event_bytes, moved_bytes;
    bool has_in, has_out;          /* in and out are not NULL */
    struct coll_buffer_layout layout;   /* permitted layout of in and out */
    bool completes_early;                  /* needs nothing of the others */
    bool needs_root_only;                /* needs something of the root alone */
    bool has_work;                  /* has something to copy or sum */
    bool is_sum, is_rooted;
    bool is_all_inline;               /* all that is said lies in the announcements */
    bool is_small;                  /* a few lines: over within the time of a look at the clock where all
                                     * are there */
    struct weft_record begin_record, done; /* how it is recorded */
};

#define ONEHOST_NO_PROCESSOR UINT32_MAX

/* cma_permission.c: credentials by which the kernel permits peers to copy this process's memory. */
struct onehost_credentials {
    uint32_t user, group;
    int dumpable;
};

enum onehost_state { ONEHOST_VOTING = 1, ONEHOST_ENABLED, ONEHOST_DISABLED };
enum onehost_vote { ONEHOST_VOTE_YES = 1, ONEHOST_VOTE_CMA = 2 }; /* none of both: not, or not yet */
enum onehost_slot_class { ONEHOST_SMALL, ONEHOST_LARGE, ONEHOST_SLOT_CLASSES };

struct onehost {
    struct weft_group *group;
    enum onehost_state state;
    bool all_mappable;               /* no offer so far that could not be mapped */
    bool all_cma;             /* no rank has reported that copies of ordinary memory are refused */
    struct onehost_credentials credentials;   /* of this process at setup */
    bool is_oversubscribed;                /* more ranks than processors whose time they may have: all
                                            * ranks know the same */
    uint64_t last_cache_bytes, core_cache_bytes; /* cache_policy.c: what the last cache holds, and the own
                                                  * ones of all processors that work */
    bool sleeping;
    uint32_t processor;          /* as the own segment says */
    struct {                     /* onehost_core_migration.c */
        uint32_t polls;
        uint64_t moved_ns, wait_ns; /* the last move, and how long none follows it */
    } migration;
    struct onehost_segment *segment; /* own; in memory that the peers map */
    uint64_t salt;
    struct onehost_message_calls *message_calls;    /* own, as the segment; NULL: none yet */
    struct onehost_sendrecv *sendrecv;    /* onehost_channel.c; NULL: nothing was sent or received yet */
    /* for contributions of a few operations, in memory that the peers map */
    struct onehost_copyin_slots {
        uint8_t *memory;         /* NULL: none now */
        uint64_t at;
        struct weft_list link;   /* records->rooms[].holders */
    } copyin_slots[ONEHOST_SLOT_CLASSES];
    uint64_t *large_slot_seqs;             /* (ONEHOST_LARGE_SLOTS,) of the hall, from the first one on:
                                            * all others have to have read what was said in operations
                                            * below, before another has the slot */
    struct onehost_buffers *buffers;    /* (ranks,) of the first of the queue; NULL: it needs none, or
                                         * there is no memory */
    uint32_t offer_count, vote_count;
    uint64_t offered_ranks, voted_ranks;     /* ranks, a bit each */
    struct onehost_segment_address offer;
    uint64_t next_seq;               /* number of the next operation */
    struct {                     /* sequence.c */
        uint64_t verified_seq;        /* operations below are over here, and all others called them alike;
                                       * never more than `next` */
        uint64_t peers_retired_seq;       /* all others have said that they are over with operations below */
        uint64_t waiting_seq;        /* looked for in vain, of host->seen */
        uint64_t cancelled_seq;         /* the last operation that was cancelled unannounced is below; 0:
                                         * there was none */
        uint64_t peers_read_seq;         /* all others have announced this one, or are over with what is
                                          * below: they have read all below */
    } run_ahead;
    uint32_t awaited_rank;               /* ranks below it have done what the first of the queue waits for */
    uint32_t small_slots_first_seq;             /* low half: operations from this one on have the places of
                                                 * the room from the first on, one after the other; */
    struct weft_list queue;      /* struct weft_coll.host.link, by number */
    struct weft_pollable pollable;
    bool is_registered;
    uint8_t vote;                /* own: enum onehost_vote */
    uint8_t small_slots_limit;                /* the operation before `origin` has this place. All before
                                               * that one were read when this was so made */
    bool has_waited;                 /* the brief call under way, for another rank */
    uint64_t poll_until_ns;         /* and so long; 0: it has not looked at the clock yet */
    struct weft_timestamp stamp;     /* of its records */
    /* the last brief call of each kind; NULL: none yet */
    struct onehost_prepared *prepared[WEFT_COLL_KIND_COUNT];
    uint64_t moved_bytes;        /* from this rank's memory to the peers', and as many the other way
                                  * (weft_group_add_moved) */
    struct onehost_peer peers[];    /* (ranks,) */
};

/* setup.c */
bool onehost_can_map_all(const struct weft_group *group); /* each other's memory */
/* if there is no host yet, and may be one; error: there is none, for good */
enum weft_status onehost_open(struct weft_group *group);
/* host->vote of a rank that says nothing more */
void onehost_peer_left(struct weft_group *group, uint32_t rank, uint64_t last_vote);
void onehost_address_received(struct weft_group *group, uint32_t rank, const void *payload, size_t bytes);
void onehost_vote_received(struct weft_group *group, uint32_t rank, enum weft_status opinion, bool copies);
/* nothing of the group is in a buffer any more, or it is given up */
void onehost_free(struct weft_group *group);

/* whose time these ranks may have */
uint32_t onehost_processor_count(const struct onehost_peer *peers, uint32_t ranks);
/* some are not over with all below */
bool onehost_is_read_by_peers(const struct onehost_peer *peers, uint32_t count, uint64_t operations);

/* cma_permission.c */
struct onehost_credentials onehost_credentials_read(void);
/* checks with the kernel; logs a warning at the first refusal */
bool onehost_cma_is_permitted(struct onehost *onehost);
void onehost_cma_disable(struct onehost *onehost);

/* onehost/pool.c */
enum weft_status onehost_peer_memory_acquire(struct weft_peer *peer,
                                             const struct onehost_peer_memory **memory_out);
void onehost_peer_memory_release(const struct onehost_peer_memory *memory); /* NULL is fine */
static inline bool onehost_peer_memory_contains(const struct onehost_peer_memory *memory, uint64_t at,
                                                uint64_t bytes)
{
    return at <= memory->mapping.bytes && bytes <= memory->mapping.bytes - at;
}
/* Zeroed. UNSUPPORTED: memory of this process cannot be mapped by others. Any thread; so that a piece may
 * outlive its group. */
enum weft_status onehost_block_alloc(size_t bytes, void **block_out, uint64_t *at_out);
void onehost_block_free(void *block); /* NULL is fine */
/* if it has none; false: no memory. It stays while an operation of the group is posted */
bool onehost_slots_acquire(struct onehost *onehost, enum onehost_slot_class slot_class);
/* the caller's now, for weft_memory_free or onehost_slots_release; NULL: it had none */
uint8_t *onehost_slots_detach(struct onehost *onehost, enum onehost_slot_class slot_class);
/* nobody looks at it any more; NULL is fine */
void onehost_slots_release(struct op_pool *op_pool, enum onehost_slot_class slot_class, uint8_t *memory);
struct onehost_buffers *onehost_buffers_acquire(struct weft_group *group); /* NULL: no memory */
void onehost_buffers_release(struct op_pool *op_pool, struct onehost_buffers *buffers);
/* Does this rank say so much that it needs its room for it? */
static inline bool onehost_needs_slot(size_t copyin_bytes) { return copyin_bytes > ONEHOST_INLINE_BYTES; }
static inline enum onehost_slot_class onehost_slot_class_of(size_t copyin_bytes)
{
    return copyin_bytes > ONEHOST_SMALL_SLOT_BYTES ? ONEHOST_LARGE : ONEHOST_SMALL;
}
/* All others have read what lies in its room where an operation has its place; and where that is, as it is
 * announced. */
bool onehost_small_slot_is_free(const struct onehost *onehost, uint64_t seq);
size_t onehost_small_slot_take(struct onehost *onehost, uint64_t seq);
/* In a hall: the first of so many slots in a row that all others have read what lies there;
 * ONEHOST_LARGE_SLOTS: there are none now. */
uint32_t onehost_large_slot_find(const struct onehost *onehost, size_t copyin_bytes);
static inline uint32_t onehost_large_slots_needed(size_t copyin_bytes)
{
    return (uint32_t)((copyin_bytes + ONEHOST_LARGE_SLOT_BYTES - 1) / ONEHOST_LARGE_SLOT_BYTES);
}

/* segment.c */
static inline struct onehost_descriptor *onehost_descriptor_of(struct onehost_segment *segment, uint64_t seq)
{
    return &segment->descriptors[seq % ONEHOST_DESCRIPTORS];
}
/* A peer's contribution of so many bytes; NULL: it says that it lies outside its memory. */
const uint8_t *onehost_copyin_of(const struct onehost *onehost, uint32_t rank, uint64_t seq, size_t bytes);
void onehost_publish(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* of a long one; nobody is woken yet */
void onehost_publish_buffers(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* Nobody is woken yet: onehost_wake_peers does that, which waits for the line to have left this processor. */
void onehost_publish_copyin(struct onehost *onehost, const struct onehost_call *call, const void *from,
                            size_t bytes, uint64_t seq, uint64_t sequence);
void onehost_wake_peers(struct onehost *onehost);
/* a call that goes by messages */
void onehost_publish_message_call(struct onehost *onehost, const struct weft_coll *coll);
/* The peer has called number `sequence` of the group by messages: NULL, or what it called. */
const struct onehost_descriptor *onehost_message_call_of(const struct onehost *onehost, uint32_t rank,
                                                         uint64_t sequence);
/* to come at all: its last one was this rank's, too */
bool onehost_peer_shares_core(const struct onehost *onehost, uint32_t rank);
void onehost_publish_processor(struct onehost *onehost);
void onehost_wake(const struct onehost *onehost, uint32_t rank); /* it sleeps */
static inline bool onehost_peer_has_arrived(const struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    return atomic_load_explicit(&onehost_descriptor_of(peer->segment, seq)->seq, memory_order_acquire) ==
           peer->salt + seq + 1;
}
/* the slice of `rank` is done */
void onehost_publish_slice_done(struct onehost *onehost, uint32_t rank, uint64_t seq);
bool onehost_slice_is_done(const struct onehost *onehost, uint32_t rank, uint64_t seq);
void onehost_publish_retired(struct onehost *onehost, uint64_t operations); /* from the first on */
#define ONEHOST_ROUNDS_MAX (1ull << 32)
void onehost_publish_rounds(struct onehost *onehost, uint64_t seq, enum onehost_stage_action action,
                            uint64_t rounds);
bool onehost_has_done_rounds(const struct onehost *onehost, uint32_t rank, uint64_t seq,
                             enum onehost_stage_action action, uint64_t rounds);
/* The peer is not over with all operations below `next`. A word that makes no sense is that of a segment
 * which has gone: its rank has ended the group, and looks at nothing. */
static inline bool onehost_peer_reads_segment(const struct onehost_peer *peer, uint64_t next)
{
    return atomic_load_explicit(&peer->segment->retired_seq, memory_order_acquire) - peer->salt < next;
}
bool onehost_buffers_enter(struct onehost *onehost, uint64_t seq); /* false: somebody has closed it */
void onehost_buffers_leave(struct onehost *onehost);
void onehost_buffers_close(struct onehost *onehost, uint64_t below);
bool onehost_buffers_have_peer(const struct onehost *onehost); /* of those who can still move */
#define ONEHOST_SEQ_ENDED (UINT64_MAX / 2) /* as a number of operations: nothing is looked at any more */
void onehost_sleep(struct onehost *onehost);
void onehost_sleep_end(struct onehost *onehost);

/* sequence.c */
/* so that the next operation may be announced; false: not soon */
bool onehost_reserve_sequence(struct onehost *onehost, bool completes_early, size_t bytes);
/* Operations of this rank that are not settled: at least one line for the operation itself, one that who
 * leads leaves free. */
#define ONEHOST_RUN_AHEAD_MAX (ONEHOST_DESCRIPTORS - 2)
#define ONEHOST_VERIFY_EVERY 4 /* operations, from half as many on */
static inline bool onehost_should_verify(const struct onehost *onehost)
{
    uint64_t run_ahead = onehost->next_seq - onehost->run_ahead.verified_seq;
    return run_ahead >= ONEHOST_RUN_AHEAD_MAX ||
           (run_ahead >= ONEHOST_RUN_AHEAD_MAX / 2 && onehost->next_seq % ONEHOST_VERIFY_EVERY == 0);
}
/* The next operation, nothing else under way, may be announced; it says so many bytes. */
static inline bool onehost_can_publish(struct onehost *onehost, bool completes_early, size_t bytes)
{
    bool free =
        !onehost_should_verify(onehost) &&
        onehost->run_ahead.verified_seq >= onehost->run_ahead.cancelled_seq &&
        onehost->next_seq + completes_early < onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS;
    return (free && !onehost_needs_slot(bytes)) || onehost_reserve_sequence(onehost, completes_early, bytes);
}
/* These two: or host->seen has not called operation ahead.awaited, or otherwise. */
bool onehost_verify(struct onehost *onehost, uint64_t below);    /* all operations below are settled */
/* and all have called the one before it: it may be announced, however long it is */
bool onehost_verify_all_before(struct onehost *onehost, uint64_t seq);
/* ahead.awaited was cancelled here: host->seen is not over with what is below it */
bool onehost_waits_for_retired_seq(const struct onehost *onehost);
void onehost_all_arrived(struct onehost *onehost, uint64_t seq); /* all ranks have announced it */
/* its root has, of a broadcast or a scatter */
void onehost_root_arrived(struct onehost *onehost, uint64_t seq);
/* it is over here, and settled if all before it are */
void onehost_retire(struct onehost *onehost, uint64_t seq);

/* onehost_channel.c */
/* sends and recvs go this way, unless the vote says otherwise */
bool onehost_sendrecv_is_possible(const struct weft_group *group);
/* a recv's send, from a rank that may have left since */
bool onehost_send_has_arrived(const struct weft_group *group, const struct weft_coll_args *args);
/* ONEHOST_RECV_POSTED: is the send that it would take there? */
bool onehost_recv_is_matched(const struct weft_coll *coll);
/* takes the memory for it; false: there is none */
bool onehost_sendrecv_reserve(struct onehost *onehost, uint32_t rank, bool sends);
void onehost_sendrecv_launch(struct weft_coll *coll); /* ready */
/* a recv ends without the message that it was to take */
void onehost_recv_drop_message(const struct weft_coll *coll);
/* by memory, with that rank */
struct coll_sendrecv_counts onehost_sendrecv_counts(const struct onehost_sendrecv *sendrecv, uint32_t rank);
bool onehost_has_unreceived_sends(const struct onehost *onehost); /* a peer has not received a send */
void onehost_sendrecv_add_moved(const struct onehost_sendrecv *sendrecv, struct weft_moved *moved);
enum weft_status onehost_sendrecv_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                               weft_coll_done_fn done, void *context,
                                               struct weft_coll **coll_out); /* as weft_coll_try_fastpath */
/* some have not taken all that lies there for them */
bool onehost_sends_are_read_by_peers(const struct onehost_sendrecv *sendrecv,
                                     const struct onehost_peer *peers, uint32_t own);
/* from group and loop; what was sent stays */
void onehost_sendrecv_detach(struct onehost_sendrecv *sendrecv);
void onehost_sendrecv_free(struct onehost_sendrecv *sendrecv); /* NULL is fine, here and above */

/* onehost_core_migration.c */
/* after a look at a rank that is awaited and needs this core; may move the calling thread */
void onehost_core_migration(struct onehost *onehost);
/* Should rank `rank` leave its processor? Those that are left to it then: of `allowed`, what no rank is
 * on. (ranks,) processors. */
bool onehost_core_migration_choose(const cpu_set_t *allowed, const uint32_t *processors, uint32_t ranks,
                                   uint32_t rank, cpu_set_t *free_out);
/* The calling thread to one of `free`, with all of `allowed`, its own, to run on again. false: nothing was
 * done. */
bool onehost_core_migration_move(const cpu_set_t *allowed, const cpu_set_t *free);

/* onehost/fastpath.c */
struct onehost_completion { /* what becomes of a call that is not over within itself */
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
bool onehost_fastpath_wait_arrival(struct onehost *onehost, uint32_t rank, uint64_t seq); /* soon */
/* First those that need this core: a rank elsewhere may wait for just them, and would be looked at in
 * vain. */
bool onehost_fastpath_wait_core_sharers(struct onehost *onehost, uint64_t seq);
/* after a look in vain; false: no longer */
bool onehost_fastpath_poll_pause(struct onehost *onehost, bool shares, uint32_t polls);
/* Its line is written: record it, and wake who sleeps. */
struct onehost_started onehost_fastpath_begin(struct onehost *onehost, struct onehost_prepared *prepared,
                                              uint64_t seq, uint64_t sequence);
void onehost_fastpath_end(struct onehost *onehost, const struct onehost_prepared *prepared,
                          const struct onehost_started *started);
/* The others are late, or something is wrong: from here on it is an operation like others, but for what
 * was announced, and, so_far not NULL, done. */
void onehost_fall_back_to_queue(struct weft_group *group, const struct weft_coll_args *args,
                                const struct onehost_started *started, const struct weft_coll *so_far,
                                const struct onehost_completion *after);

/* onehost_fastpath_direct.c */
/* such a call may be over so, if its buffers are mapped */
bool onehost_fastpath_direct_accepts(const struct weft_group *group, const struct weft_coll_args *args);
/* after a change of the call or of its terms */
void onehost_fastpath_direct_prepare(struct weft_group *group, struct onehost_prepared *prepared);
/* As weft_coll_try_fastpath. NO_MEMORY: nothing happened either, and whether its buffers are mapped is not
 * known. */
enum weft_status onehost_fastpath_direct(struct weft_group *group, struct onehost_prepared *prepared,
                                         const void *in, void *out, const struct onehost_completion *after);

/* onehost/engine.c */
bool onehost_accepts(const struct weft_group *group, const struct weft_coll_args *args);
/* an operation launched now waits for nothing before it */
bool onehost_starts_immediately(const struct onehost *onehost);
void onehost_launch(struct weft_coll *coll);
/* seldom, while operations go by messages, which wait for nothing that was called in memory */
void onehost_verify_idle(struct weft_group *group);
/* the vote is over: operations that wait for it go their way */
void onehost_vote_complete(struct onehost *onehost);
void onehost_unlink(struct weft_coll *coll); /* it is finished, or goes another way */
bool onehost_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);

/* buffers.c */
/* all pieces together, of a reduce_scatter or all_gather */
uint64_t onehost_vector_elems(const struct weft_coll *coll);
/* what peers touch of the caller's buffers: where is it in the memory they map? */
void onehost_buffers_locate(const struct onehost *onehost, struct weft_coll *coll);
/* What `rank` says that it has mapped lies in its memory; reach->in and ->out then. */
bool onehost_buffers_resolve(const struct onehost *onehost, const struct weft_coll *coll, uint32_t rank,
                             const struct onehost_descriptor *descriptor, struct onehost_buffers *buffers);
/* What crossed between this rank and the others, one way, whoever did the copying: its contribution to
 * what they own of the result, and its result to them. The mean over the ranks where their shares of a
 * vector differ. */
uint64_t onehost_moved_bytes(const struct weft_coll *coll);

/* cache_policy.c */
void onehost_cache_policy_init(struct onehost *onehost, uint32_t processors);
/* its results are stored past the caches: nobody will find them there */
bool onehost_sum_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);
bool onehost_copy_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);
/* the copies that it takes out of stages are */
bool onehost_stage_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll);

/* oversubscribed.c */
/* slices are for whoever comes first */
bool onehost_stealing_is_enabled(const struct onehost *onehost, const struct weft_coll *coll);
/* takes the next slice; false: there is none left */
bool onehost_claim_next_slice(struct onehost *onehost, struct weft_coll *coll);
/* who has taken its slice, once none is left */
uint32_t onehost_slice_claimed_by(const struct onehost *onehost, uint32_t rank);

/* copyin.c */
/* once the vote is over */
bool onehost_uses_copyin(const struct weft_group *group, const struct weft_coll_args *args);
/* contribution of a rank to a short one */
size_t onehost_copyin_bytes_of(const struct weft_group *group, const struct weft_coll_args *args,
                               uint32_t rank);
/* of this rank */
size_t onehost_copyin_bytes(const struct weft_group *group, const struct weft_coll_args *args);
/* from this rank to others, what they read */
uint64_t onehost_copyin_moved_bytes(const struct weft_group *group, const struct weft_coll_args *args);
/* that the call may need of a room or hall */
size_t onehost_slot_bytes(const struct onehost *onehost, const struct weft_coll_args *args);
/* each byte of what a rank says or stages is for one other alone */
bool onehost_has_single_reader(const struct weft_group *group, enum weft_coll_kind kind);
bool onehost_copyin_has_pieces(enum weft_coll_kind kind); /* one for each rank */
/* takes it; false: no memory */
bool onehost_copyin_reserve(struct onehost *onehost, const struct weft_coll_args *args);
/* A short one that is worked on in slices instead, where all ranks lend their buffers
 * (ONEHOST_ALLOWS_STEALING). */
bool onehost_may_allow_stealing(const struct weft_group *group, const struct weft_coll_args *args);

/* onehost_direct_work.c */
struct onehost_range onehost_slice(const struct weft_coll *coll);
/* not of gather, scatter and all_to_all */
struct onehost_range onehost_slice_of(const struct weft_coll *coll, uint32_t rank);
/* needed by onehost_direct_work */
size_t onehost_scratch_bytes(const struct weft_group *group, const struct weft_coll_args *args);
void onehost_copyin_work(struct onehost *onehost, const struct weft_coll_args *args, uint64_t seq);
/* outs[each] = the sum of sources[each rank], (count,) of the operation's type. */
void onehost_reduce(const struct weft_coll *coll, const uint8_t *const *sources, uint8_t *const *outs,
                    uint32_t out_count, uint64_t count);
/* < 0: the memory of *culprit_out cannot be reached. */
enum weft_status onehost_direct_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out);

/* personalized.c */
/* reduce_scatter: of the input; all_gather: of the output */
struct onehost_range onehost_piece_of(const struct weft_coll *coll, uint32_t rank);
static inline bool onehost_is_unequal(const struct weft_coll *coll)
{
    return coll->cursor.args.own_lengths || coll->cursor.args.displs_in;
}
static inline bool onehost_is_personalized(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}
/* of the own input: for `rank` */
struct onehost_range onehost_piece_sent(const struct weft_coll *coll, uint32_t rank);
/* of the own output: from `rank` */
struct onehost_range onehost_piece_received(const struct weft_coll *coll, uint32_t rank);
/* from its input to another place in its output */
bool onehost_has_local_piece(const struct weft_coll *coll);
/* in its room */
bool onehost_publishes_cuts(const struct weft_group *group, const struct weft_coll_args *args);
/* what the announcement says of them */
uint64_t onehost_publish_lengths(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq);
/* false: `rank` has other lengths in mind, and the group has ended. *fits_out: its pieces lie in its
 * memory. */
bool onehost_pieces_check(const struct onehost *onehost, struct weft_coll *coll, uint32_t rank,
                          struct onehost_buffers *buffers, bool *fits_out);
struct onehost_range onehost_pieces_slice(const struct onehost *onehost, const struct weft_coll *coll);
enum weft_status onehost_pieces_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out);

/* onehost_method_stats.c */
/* NULL: there is no memory to remember it. */
struct onehost_method_stats *onehost_method_stats_of(struct onehost *onehost, enum weft_coll_kind kind,
                                                     bool in_place, uint64_t bytes);
bool onehost_method_uses_cma(struct onehost_method_stats *method_stats); /* is to be taken by system calls */
void onehost_method_record(struct onehost_method_stats *method_stats, bool uses_cma, uint64_t ns,
                           uint64_t bytes);

/* staged.c; onehost_stages_free is in internal.h */
/* bytes of the vector that a rank would move in a round */
uint32_t onehost_stage_block(bool is_oversubscribed);
bool onehost_stage_block_is_valid(uint64_t block);
uint8_t *onehost_stage_acquire(struct weft_group *group); /* NULL: no memory */
void onehost_stage_release(struct op_pool *op_pool, uint8_t *stage); /* NULL is fine */
void onehost_stage_begin(struct weft_coll *coll);
/* if not, host->seen is waited for */
bool onehost_stage_can_act(struct onehost *onehost, const struct weft_coll *coll);
/* false: nothing can be done now */
bool onehost_stage_step(struct onehost *onehost, struct weft_coll *coll, bool *over_out);

#endif
