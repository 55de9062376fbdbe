/* host.h - inside the room: the plan for ranks that share a host and map each other's memory.
 *
 *   host_setup.c   who maps whom; the vote by which all ranks agree to use this plan, or none
 *   host_line.c    a rank's segment: what it writes, who is woken, when it sleeps, who is inside whose buffers
 *   host_run.c     one operation after the other: its phases
 *   host_buffers.c whose buffers lie where
 *   host_work.c    the arithmetic on one slice of everybody's buffers
 *   host_said.c    contributions that are said with the announcement (choose_said.c: how long they may be)
 *   host_pieces.c  pieces that one rank sends and one gets: gather, scatter, all_to_all
 *   host_memory.c  what all this is kept in, by all groups together
 *   host_turns.c   whose slice a rank works on, where ranks take turns
 *   host_stage.c   the same through memory in between, where buffers are not mapped
 *   host_way.c     whether such buffers go that way, or are copied by system calls
 *   host_apart.c   ranks that share a processor part
 *   host_brief.c   a short one that is announced and over within the call, where the others come at once
 *   host_brief_mapped.c   or one on buffers that are mapped
 *   host_pair.c    sends and recvs of two ranks
 *   host_ahead.c   who needs nothing of the others goes ahead of them, by some operations; what they called is seen later
 *
 * One pass instead of messages. Every rank announces its call and its buffers in its own segment. Once all have come, rank i
 * loads slice i of all inputs, sums by T in registers, and stores the sum into all outputs; once all have said that they are
 * through, the operation is over. Short ones carry their contribution in the announcement: everybody sums everything, and
 * nobody waits a second time.
 *
 * Each word of a segment has one writer. Numbers of operations are counted apart from those of the group, for the operations
 * that come here only; all ranks count alike. Announcements go round HOST_LINES places: a rank announces operation n + HOST_LINES
 * when all others have said that they are over with n (host_ahead.c says why nobody looks at that word as a rule).
 *
 * Numbers are stored with the segment's random salt added. So what a peer reads is an answer or it is not, even where the
 * segment is gone and its memory has become something else. */
#ifndef WEFT_COLLECTIVE_HOST_H
#define WEFT_COLLECTIVE_HOST_H

#include <sched.h>
#include <stdatomic.h>

#include "collective/internal.h"
#include "collective/plan.h"

enum {
    HOST_RANKS_MAX = 64,
    HOST_WORD_BYTES = 16,       /* contributions up to this lie in the announcement's own line */
    HOST_SHORT_BYTES = PLAN_ONE_HOST_SHORT, /* up to this in a room of the rank */
    HOST_STEP_BYTES = 1 << 20,  /* loaded and stored in one step of the loop */
    HOST_COPY_BYTES = 128 << 10, /* of ordinary memory at a time: stays in the cache between system call and sum */
    HOST_PLACE_BYTES = 16 << 10, /* of it at least, where a plan by messages needs no memory for so much */
    HOST_FAR_BYTES = 256 << 10, /* unequal pieces of ordinary memory, all together, longer than that go by messages */
    HOST_ROOM_SLOTS = 32,
    HOST_ROOM_BYTES = HOST_ROOM_SLOTS * HOST_SHORT_BYTES,
    HOST_HALL_SLOTS = 16,       /* contributions that do not fit into a room lie in a hall, */
    HOST_SLOT_BYTES = 64 << 10, /* in as many slots in a row as they take */
    HOST_HALL_BYTES = HOST_HALL_SLOTS * HOST_SLOT_BYTES,
    HOST_PIECE_BYTES = 4096,    /* slices begin at multiples of it, where there is that much */
    HOST_STAGE_BYTES = (768 << 10) + 4096, /* memory between buffers that are not mapped */
    HOST_PROCESSORS = CPU_SETSIZE,
    HOST_LINES = 48,            /* announcements of a rank that stand there at a time */
    HOST_CALLS = 32,            /* by messages, remembered: a rank runs ahead of one that waits by as many */
};

/* How the peers reach what they need of the caller's buffers; none of the first three: not at all, by messages. STAGED: through a stage, if
 * all say so. UNEQUAL: pieces of many lengths. KEEPS: this rank has a piece of its own to copy. LENDS: MAPPED, and so is all that others need to work
 * on this rank's slice. APART: the kernel refuses copies of ordinary memory by this rank or by
 * its peers (host_reads.c). */
enum host_flags { HOST_MAPPED = 1, HOST_COPIED = 2, HOST_STAGED = 4, HOST_UNEQUAL = 8, HOST_KEEPS = 16, HOST_LENDS = 32, HOST_APART = 64 };

/* host_stage.c: what a rank does in each round. */
_Static_assert(sizeof(struct host_stage_word) <= HOST_WORD_BYTES, "it lies in the announcement");
enum host_action { HOST_FILL, HOST_SUM, HOST_DRAIN, HOST_ACTIONS };

/* What a rank says when it calls: one line, the turn stored last. */
struct host_post {
    _Alignas(64) _Atomic uint64_t turn; /* salt + number + 1 */
    uint64_t sequence, count;
    uint64_t in, out;                   /* HOST_MAPPED: offsets in the memory that peers map; HOST_COPIED: addresses; a short
                                           one's `in`: the offset of its contribution, where it does not lie in `word` */
    uint8_t kind, dtype, op, flags;
    uint32_t root;
    uint8_t word[HOST_WORD_BYTES];      /* HOST_STAGED: begins with a struct host_stage_word; HOST_UNEQUAL: where the cuts lie, or the
                                           length of the only piece, or, of cuts that all ranks know, their number (host_pieces.c), 64 bits */
};
_Static_assert(sizeof(struct host_post) == 64, "an announcement is one line");

struct host_segment {
    _Alignas(64) _Atomic uint64_t through;  /* salt + number + 1 of the last operation whose slice is done */
    _Atomic uint64_t taken;                 /* the same of the last one whose slice somebody has taken (host_turns.c), */
    _Atomic uint32_t taker;                 /* this rank */
    _Alignas(64) _Atomic uint32_t sleeping; /* wake me after you have stored */
    _Atomic uint32_t processor;             /* on which this rank last announced an operation; HOST_NO_PROCESSOR: none yet */
    _Alignas(64) _Atomic uint32_t inside;   /* 1: loading and storing in the peers' buffers at this moment */
    _Atomic uint64_t over;                  /* salt + number of operations, from the first on, for which peers' segments are not looked at any more */
    _Alignas(64) _Atomic uint64_t closed;   /* operations with a number below are over here: keep out of my buffers */
    _Atomic uint64_t calls_at;              /* salt + offset + 1 of a struct host_calls; no such offset: none yet */
    _Atomic uint64_t pairs_at;              /* likewise of a table of host_pair.c */
    _Alignas(64) _Atomic uint64_t done[HOST_ACTIONS]; /* salt + (number + 1) * HOST_ROUNDS_MAX + rounds */
    struct host_post posts[HOST_LINES];     /* operation n is announced in n % HOST_LINES */
    uint64_t processors[HOST_PROCESSORS / 64]; /* a bit for each that this rank may run on; written before the offer, as what follows: so all ranks see the same */
    uint32_t online;                           /* as many as this rank sees running */
    struct weft_cpu_quota quota;               /* and how much of their time it may have, with others of its container; as processors */
};

/* The last calls that go by messages, by their number in the group (`turn` is salt + that + 1): a peer that waits for one of them
 * in memory sees that this rank calls otherwise. flags: the plan; in: cuts; out: chunk. Made with the first one. */
struct host_calls {
    struct host_post posts[HOST_CALLS];
};

/* The payload of COLL_MESSAGE_HOST: between processes of one host, in its own byte order. */
struct host_offer {
    uint32_t magic, layout;
    uint64_t at, salt; /* at: where the segment lies in the sender's memory */
};

/* A process's memory as it is mapped here; one for all groups of this process that meet it. */
struct host_place {
    struct weft_mapping mapping;
    struct host_place *next;
    uint32_t users;
};

struct host_peer {
    const struct host_place *place; /* NULL: none yet, or this rank itself */
    struct host_segment *segment; /* in the mapping */
    uint64_t salt;
};

/* A rank's buffers of the operation under way. */
struct host_reach {
    bool copied;       /* by address, else mapped here */
    const uint8_t *in;
    uint8_t *out;
    uint8_t *stage;
    uint64_t in_address, out_address;
    uint64_t in_first, out_first; /* host_pieces.c: elements before the pieces for and of this rank */
    bool keeps;
};

/* host_way.c: what an operation on ordinary memory took, copied by system calls (true) or through stages (false). */
#define HOST_WAY_KINDS 6
#define HOST_WAY_SIZES 8
struct host_way {
    uint32_t cost[2]; /* picoseconds per byte */
    uint8_t tries[2], since, looks; /* the first few; operations by the faster one since the other was looked at, and how often that was */
};
struct host_ways {
    struct host_way of[HOST_WAY_KINDS][2][HOST_WAY_SIZES]; /* by kind, in place or not, and size */
};

/* A call that is announced: what its line says, beside the numbers. */
struct host_call {
    enum weft_coll_kind kind;
    uint64_t count; /* these four as in the header of a message */
    uint32_t root;
    uint8_t dtype, op;
};

/* host_brief.c: a brief call, and what follows from it; looked at once for all calls that are alike but for their buffers. */
struct host_shape {
    uint64_t number;             /* no other shape of this process has it */
    bool fits;                   /* it may be over within the call; what follows is known */
    bool maps;                   /* where buffers are mapped, by these (host_brief_mapped.c) */
    bool says;                   /* else, or only so, by what is said */
    struct weft_coll *mapped;    /* what is the same in all such; NULL: none yet */
    size_t scratch_bytes;        /* that one of them needs when it becomes an ordinary one */
    struct weft_coll_args args;
    struct host_call call;       /* how it is announced */
    const char *name;            /* of its kind */
    size_t bytes;                /* host_short_bytes */
    uint64_t event_bytes, moved_bytes;
    bool reads, writes;          /* in and out are not NULL */
    struct coll_places places;   /* permitted layout of in and out */
    bool leads;                  /* needs nothing of the others */
    bool follows;                /* needs something of the root alone */
    bool works;                  /* has something to copy or sum */
    bool sums, rooted;
    bool in_lines;               /* all that is said lies in the announcements */
    bool small;                  /* a few lines: over within the time of a look at the clock where all are there */
    struct weft_record open, done; /* how it is recorded */
};

#define HOST_NO_PROCESSOR UINT32_MAX

/* host_reads.c: credentials by which the kernel permits peers to copy this process's memory. */
struct host_rights {
    uint32_t user, group;
    int dumpable;
};

enum host_state { HOST_ASKING = 1, HOST_ON, HOST_OFF };
enum host_vote { HOST_VOTE_YES = 1, HOST_VOTE_COPIES = 2 }; /* none of both: not, or not yet */
enum host_room_size { HOST_ROOM, HOST_HALL, HOST_ROOM_SIZES };

struct host {
    struct weft_group *group;
    enum host_state state;
    bool maps_all;               /* no offer so far that could not be mapped */
    bool copies_all;             /* no rank has reported that copies of ordinary memory are refused */
    struct host_rights rights;   /* of this process at setup */
    bool crowded;                /* more ranks than processors whose time they may have: all ranks know the same */
    uint64_t last_bytes, own_bytes; /* host_past.c: what the last cache holds, and the own ones of all processors that work */
    bool sleeping;
    uint32_t processor;          /* as the own segment says */
    struct {                     /* host_apart.c */
        uint32_t looks;
        uint64_t moved_ns, wait_ns; /* the last move, and how long none follows it */
    } apart;
    struct host_segment *segment; /* own; in memory that the peers map */
    uint64_t salt;
    struct host_calls *calls;    /* own, as the segment; NULL: none yet */
    struct host_pairs *pairs;    /* host_pair.c; NULL: nothing was sent or received yet */
    struct host_room {           /* for contributions of a few operations, in memory that the peers map */
        uint8_t *memory;         /* NULL: none now */
        uint64_t at;
        struct weft_list link;   /* records->rooms[].holders */
    } rooms[HOST_ROOM_SIZES];
    uint64_t *slots;             /* (HOST_HALL_SLOTS,) of the hall, from the first one on: all others have to have read what was said in operations below, before another has the slot */
    struct host_reach *reach;    /* (ranks,) of the first of the queue; NULL: it needs none, or there is no memory */
    uint32_t offer_count, vote_count;
    uint64_t offered, voted;     /* ranks, a bit each */
    struct host_offer offer;
    uint64_t next;               /* number of the next operation */
    struct {                     /* host_ahead.c */
        uint64_t settled;        /* operations below are over here, and all others called them alike; never more than `next` */
        uint64_t followed;       /* all others have said that they are over with operations below */
        uint64_t awaited;        /* looked for in vain, of host->seen */
        uint64_t unsaid;         /* the last operation that was cancelled unannounced is below; 0: there was none */
        uint64_t passed;         /* all others have announced this one, or are over with what is below: they have read all below */
    } ahead;
    uint32_t seen;               /* ranks below it have done what the first of the queue waits for */
    uint32_t origin;             /* low half: operations from this one on have the places of the room from the first on, one after the other; */
    struct weft_list queue;      /* struct weft_coll.host.link, by number */
    struct weft_pollable pollable;
    bool polled;
    uint8_t vote;                /* own: enum host_vote */
    uint8_t wall;                /* the operation before `origin` has this place. All before that one were read when this was so made */
    bool waited;                 /* the brief call under way, for another rank */
    uint64_t patient_ns;         /* and so long; 0: it has not looked at the clock yet */
    struct weft_stamp stamp;     /* of its records */
    struct host_shape *shapes[WEFT_COLL_KIND_COUNT]; /* the last brief call of each kind; NULL: none yet */
    uint64_t moved_bytes;        /* from this rank's memory to the peers', and as many the other way (weft_group_add_moved) */
    struct host_peer peers[];    /* (ranks,) */
};

/* host_setup.c */
bool host_all_map(const struct weft_group *group); /* each other's memory */
enum weft_status host_open(struct weft_group *group); /* if there is no host yet, and may be one; error: there is none, for good */
void host_left(struct weft_group *group, uint32_t rank, uint64_t said); /* host->vote of a rank that says nothing more */
void host_offered(struct weft_group *group, uint32_t rank, const void *payload, size_t bytes);
void host_voted(struct weft_group *group, uint32_t rank, enum weft_status opinion, bool copies);
void host_free(struct weft_group *group); /* nothing of the group is in a buffer any more, or it is given up */

uint32_t host_processors(const struct host_peer *peers, uint32_t ranks); /* whose time these ranks may have */
bool host_peers_look(const struct host_peer *peers, uint32_t count, uint64_t operations); /* some are not over with all below */

/* host_reads.c */
struct host_rights host_rights_now(void);
bool host_still_copies(struct host *host); /* checks with the kernel; logs a warning at the first refusal */
void host_copies_no_more(struct host *host);

/* host_memory.c */
enum weft_status host_place_take(struct weft_peer *peer, const struct host_place **place_out);
void host_place_give(const struct host_place *place); /* NULL is fine */
static inline bool host_place_holds(const struct host_place *place, uint64_t at, uint64_t bytes)
{
    return at <= place->mapping.bytes && bytes <= place->mapping.bytes - at;
}
/* Zeroed. UNSUPPORTED: memory of this process cannot be mapped by others. Any thread; so that a piece may outlive its group. */
enum weft_status host_piece_take(size_t bytes, void **piece_out, uint64_t *at_out);
void host_piece_give(void *piece); /* NULL is fine */
bool host_room_take(struct host *host, enum host_room_size size); /* if it has none; false: no memory. It stays while an operation of the group is posted */
uint8_t *host_room_leave(struct host *host, enum host_room_size size); /* the caller's now, for weft_memory_free or host_room_give; NULL: it had none */
void host_room_give(struct records *records, enum host_room_size size, uint8_t *memory); /* nobody looks at it any more; NULL is fine */
struct host_reach *host_reach_take(struct weft_group *group); /* NULL: no memory */
void host_reach_give(struct records *records, struct host_reach *reach);
/* Does this rank say so much that it needs its room for it? */
static inline bool host_needs_room(size_t said_bytes) { return said_bytes > HOST_WORD_BYTES; }
static inline enum host_room_size host_room_of(size_t said_bytes) { return said_bytes > HOST_SHORT_BYTES ? HOST_HALL : HOST_ROOM; }
/* All others have read what lies in its room where an operation has its place; and where that is, as it is announced. */
bool host_room_has_place(const struct host *host, uint64_t number);
size_t host_room_place(struct host *host, uint64_t number);
/* In a hall: the first of so many slots in a row that all others have read what lies there; HOST_HALL_SLOTS: there are none now. */
uint32_t host_hall_slot(const struct host *host, size_t said_bytes);
static inline uint32_t host_hall_slots(size_t said_bytes) { return (uint32_t)((said_bytes + HOST_SLOT_BYTES - 1) / HOST_SLOT_BYTES); }

/* host_line.c */
static inline struct host_post *host_post_of(struct host_segment *segment, uint64_t number) { return &segment->posts[number % HOST_LINES]; }
/* A peer's contribution of so many bytes; NULL: it says that it lies outside its memory. */
const uint8_t *host_contribution(const struct host *host, uint32_t rank, uint64_t number, size_t bytes);
void host_announce(struct host *host, const struct weft_coll *coll, uint64_t number);
void host_announce_buffers(struct host *host, const struct weft_coll *coll, uint64_t number); /* of a long one; nobody is woken yet */
/* Nobody is woken yet: host_announced does that, which waits for the line to have left this processor. */
void host_announce_short(struct host *host, const struct host_call *call, const void *from, size_t bytes, uint64_t number, uint64_t sequence);
void host_announced(struct host *host);
void host_tell(struct host *host, const struct weft_coll *coll); /* a call that goes by messages */
/* The peer has called number `sequence` of the group by messages: NULL, or what it called. */
const struct host_post *host_called_otherwise(const struct host *host, uint32_t rank, uint64_t sequence);
bool host_needs_this_core(const struct host *host, uint32_t rank); /* to come at all: its last one was this rank's, too */
void host_tell_processor(struct host *host);
void host_wake(const struct host *host, uint32_t rank); /* it sleeps */
static inline bool host_has_come(const struct host *host, uint32_t rank, uint64_t number)
{
    const struct host_peer *peer = &host->peers[rank];
    return atomic_load_explicit(&host_post_of(peer->segment, number)->turn, memory_order_acquire) == peer->salt + number + 1;
}
void host_say_through(struct host *host, uint32_t rank, uint64_t number); /* the slice of `rank` is done */
bool host_is_through(const struct host *host, uint32_t rank, uint64_t number);
void host_say_over(struct host *host, uint64_t operations); /* from the first on */
#define HOST_ROUNDS_MAX (1ull << 32)
void host_say_done(struct host *host, uint64_t number, enum host_action action, uint64_t rounds);
bool host_has_done(const struct host *host, uint32_t rank, uint64_t number, enum host_action action, uint64_t rounds);
/* The peer is not over with all operations below `next`. A word that makes no sense is that of a segment which has gone: its rank has ended the
 * group, and looks at nothing. */
static inline bool host_looks_at_us(const struct host_peer *peer, uint64_t next)
{
    return atomic_load_explicit(&peer->segment->over, memory_order_acquire) - peer->salt < next;
}
bool host_enter(struct host *host, uint64_t number); /* false: somebody has closed it */
void host_leave(struct host *host);
void host_close(struct host *host, uint64_t below);
bool host_anybody_inside(const struct host *host); /* of those who can still move */
#define HOST_ENDED (UINT64_MAX / 2) /* as a number of operations: nothing is looked at any more */
void host_sleep(struct host *host);
void host_awake(struct host *host);

/* host_ahead.c */
bool host_make_way(struct host *host, bool leads, size_t bytes); /* so that the next operation may be announced; false: not soon */
/* Operations of this rank that are not settled: at least one line for the operation itself, one that who leads leaves free. */
#define HOST_AHEAD_MAX (HOST_LINES - 2)
#define HOST_LOOK_EVERY 4 /* operations, from half as many on */
static inline bool host_looks_behind(const struct host *host)
{
    uint64_t ahead = host->next - host->ahead.settled;
    return ahead >= HOST_AHEAD_MAX || (ahead >= HOST_AHEAD_MAX / 2 && host->next % HOST_LOOK_EVERY == 0);
}
/* The next operation, nothing else under way, may be announced; it says so many bytes. */
static inline bool host_may_announce(struct host *host, bool leads, size_t bytes)
{
    bool free = !host_looks_behind(host) && host->ahead.settled >= host->ahead.unsaid && host->next + leads < host->ahead.followed + HOST_LINES;
    return (free && !host_needs_room(bytes)) || host_make_way(host, leads, bytes);
}
/* These two: or host->seen has not called operation ahead.awaited, or otherwise. */
bool host_settle(struct host *host, uint64_t below);    /* all operations below are settled */
bool host_followed(struct host *host, uint64_t number); /* and all have called the one before it: it may be announced, however long it is */
bool host_waits_for_word(const struct host *host);      /* ahead.awaited was cancelled here: host->seen is not over with what is below it */
void host_all_came(struct host *host, uint64_t number); /* all ranks have announced it */
void host_root_came(struct host *host, uint64_t number); /* its root has, of a broadcast or a scatter */
void host_over(struct host *host, uint64_t number);     /* it is over here, and settled if all before it are */

/* host_pair.c */
bool host_pairs_meet(const struct weft_group *group); /* sends and recvs go this way, unless the vote says otherwise */
bool host_pair_has_come(const struct weft_group *group, const struct weft_coll_args *args); /* a recv's send, from a rank that may have left since */
bool host_pair_recv_has_come(const struct weft_coll *coll); /* HOST_PAIRED: is the send that it would take there? */
bool host_pair_ready(struct host *host, uint32_t rank, bool sends); /* takes the memory for it; false: there is none */
void host_pair_launch(struct weft_coll *coll); /* ready */
void host_pair_owed(const struct weft_coll *coll); /* a recv ends without the message that it was to take */
struct coll_pair_counts host_pair_counts(const struct host_pairs *pairs, uint32_t rank); /* by memory, with that rank */
bool host_pairs_untaken(const struct host *host); /* a peer has not received a send */
void host_pairs_add_moved(const struct host_pairs *pairs, struct weft_moved *moved);
enum weft_status host_pair_brief(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context,
                                 struct weft_coll **coll_out); /* as weft_coll_brief */
bool host_pairs_look(const struct host_pairs *pairs, const struct host_peer *peers, uint32_t own); /* some have not taken all that lies there for them */
void host_pairs_part(struct host_pairs *pairs); /* from group and loop; what was sent stays */
void host_pairs_free(struct host_pairs *pairs); /* NULL is fine, here and above */

/* host_apart.c */
void host_apart(struct host *host); /* after a look at a rank that is awaited and needs this core; may move the calling thread */
/* Should rank `rank` leave its processor? Those that are left to it then: of `allowed`, what no rank is on. (ranks,) processors. */
bool host_apart_choose(const cpu_set_t *allowed, const uint32_t *processors, uint32_t ranks, uint32_t rank, cpu_set_t *free_out);
/* The calling thread to one of `free`, with all of `allowed`, its own, to run on again. false: nothing was done. */
bool host_apart_move(const cpu_set_t *allowed, const cpu_set_t *free);

/* host_brief.c */
struct host_after { /* what becomes of a call that is not over within itself */
    weft_coll_done_fn done;
    void *context;
    struct weft_coll **coll_out;
};
struct host_begun {
    uint64_t number, sequence, now_ns, record_number;
};
void host_shapes_free(struct host *host);
void host_shapes_forget(struct host *host);
bool host_brief_alike(const struct host_post *post, const struct host_call *call, uint64_t sequence);
bool host_brief_comes(struct host *host, uint32_t rank, uint64_t number); /* soon */
/* First those that need this core: a rank elsewhere may wait for just them, and would be looked at in vain. */
bool host_brief_neighbours_come(struct host *host, uint64_t number);
bool host_brief_patient(struct host *host, bool shares, uint32_t looks); /* after a look in vain; false: no longer */
/* Its line is written: record it, and wake who sleeps. */
struct host_begun host_brief_begin(struct host *host, struct host_shape *shape, uint64_t number, uint64_t sequence);
void host_brief_end(struct host *host, const struct host_shape *shape, const struct host_begun *begun);
/* The others are late, or something is wrong: from here on it is an operation like others, but for what was announced, and, so_far not NULL, done. */
void host_brief_late(struct weft_group *group, const struct weft_coll_args *args, const struct host_begun *begun, const struct weft_coll *so_far, const struct host_after *after);

/* host_brief_mapped.c */
bool host_brief_maps(const struct weft_group *group, const struct weft_coll_args *args); /* such a call may be over so, if its buffers are mapped */
void host_brief_mapped_know(struct weft_group *group, struct host_shape *shape); /* after a change of the call or of its terms */
/* As weft_coll_brief. NO_MEMORY: nothing happened either, and whether its buffers are mapped is not known. */
enum weft_status host_brief_mapped(struct weft_group *group, struct host_shape *shape, const void *in, void *out, const struct host_after *after);

/* host_run.c */
bool host_takes(const struct weft_group *group, const struct weft_coll_args *args);
bool host_begins_at_once(const struct host *host); /* an operation launched now waits for nothing before it */
void host_launch(struct weft_coll *coll);
void host_look_behind(struct weft_group *group); /* seldom, while operations go by messages, which wait for nothing that was called in memory */
void host_decide(struct host *host); /* the vote is over: operations that wait for it go their way */
void host_unlink(struct weft_coll *coll); /* it is finished, or goes another way */
bool host_waits(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);

/* host_buffers.c */
uint64_t host_vector_elems(const struct weft_coll *coll); /* all pieces together, of a reduce_scatter or all_gather */
void host_locate(const struct host *host, struct weft_coll *coll); /* what peers touch of the caller's buffers: where is it in the memory they map? */
/* What `rank` says that it has mapped lies in its memory; reach->in and ->out then. */
bool host_reaches(const struct host *host, const struct weft_coll *coll, uint32_t rank, const struct host_post *post, struct host_reach *reach);
/* What crossed between this rank and the others, one way, whoever did the copying: its contribution to what they own of the
 * result, and its result to them. The mean over the ranks where their shares of a vector differ. */
uint64_t host_moved(const struct weft_coll *coll);

/* host_past.c */
void host_past_know(struct host *host, uint32_t processors);
bool host_sums_past(const struct host *host, const struct weft_coll *coll);   /* its results are stored past the caches: nobody will find them there */
bool host_copies_past(const struct host *host, const struct weft_coll *coll);
bool host_stages_past(const struct host *host, const struct weft_coll *coll); /* the copies that it takes out of stages are */

/* host_turns.c */
bool host_turns_taken(const struct host *host, const struct weft_coll *coll); /* slices are for whoever comes first */
bool host_turns_next(struct host *host, struct weft_coll *coll); /* takes the next slice; false: there is none left */
uint32_t host_turns_taker(const struct host *host, uint32_t rank); /* who has taken its slice, once none is left */

/* host_said.c */
bool host_is_short(const struct weft_group *group, const struct weft_coll_args *args); /* once the vote is over */
size_t host_said_bytes(const struct weft_group *group, const struct weft_coll_args *args, uint32_t rank); /* contribution of a rank to a short one */
size_t host_short_bytes(const struct weft_group *group, const struct weft_coll_args *args); /* of this rank */
uint64_t host_moved_short(const struct weft_group *group, const struct weft_coll_args *args); /* from this rank to others, what they read */
size_t host_room_bytes(const struct host *host, const struct weft_coll_args *args); /* that the call may need of a room or hall */
bool host_one_reads(const struct weft_group *group, enum weft_coll_kind kind); /* each byte of what a rank says or stages is for one other alone */
bool host_says_pieces(enum weft_coll_kind kind); /* one for each rank */
bool host_may_say(struct host *host, const struct weft_coll_args *args); /* takes it; false: no memory */
/* A short one that is worked on in slices instead, where all ranks lend their buffers (HOST_LENDS). */
bool host_may_lend(const struct weft_group *group, const struct weft_coll_args *args);

/* host_work.c */
struct host_range host_slice(const struct weft_coll *coll);
struct host_range host_slice_of(const struct weft_coll *coll, uint32_t rank); /* not of gather, scatter and all_to_all */
size_t host_scratch_bytes(const struct weft_group *group, const struct weft_coll_args *args); /* needed by host_work */
void host_work_short(struct host *host, const struct weft_coll_args *args, uint64_t number);
/* outs[each] = the sum of sources[each rank], (count,) of the operation's type. */
void host_sum(const struct weft_coll *coll, const uint8_t *const *sources, uint8_t *const *outs, uint32_t out_count, uint64_t count);
/* < 0: the memory of *culprit_out cannot be reached. */
enum weft_status host_work(struct host *host, struct weft_coll *coll, struct host_range range, uint32_t *culprit_out);

/* host_pieces.c */
struct host_range host_piece_of(const struct weft_coll *coll, uint32_t rank); /* reduce_scatter: of the input; all_gather: of the output */
static inline bool host_is_unequal(const struct weft_coll *coll) { return coll->cursor.args.own_lengths || coll->cursor.args.cut_in; }
static inline bool host_of_pieces(enum weft_coll_kind kind) { return kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL; }
struct host_range host_piece_sent(const struct weft_coll *coll, uint32_t rank); /* of the own input: for `rank` */
struct host_range host_piece_got(const struct weft_coll *coll, uint32_t rank);  /* of the own output: from `rank` */
bool host_keeps_piece(const struct weft_coll *coll); /* from its input to another place in its output */
bool host_says_cuts(const struct weft_group *group, const struct weft_coll_args *args); /* in its room */
uint64_t host_say_lengths(struct host *host, const struct weft_coll *coll, uint64_t number); /* what the announcement says of them */
/* false: `rank` has other lengths in mind, and the group has ended. *fits_out: its pieces lie in its memory. */
bool host_pieces_meet(const struct host *host, struct weft_coll *coll, uint32_t rank, struct host_reach *reach, bool *fits_out);
struct host_range host_pieces_slice(const struct host *host, const struct weft_coll *coll);
enum weft_status host_pieces_work(struct host *host, struct weft_coll *coll, struct host_range range, uint32_t *culprit_out);

/* host_way.c */
/* NULL: there is no memory to remember it. */
struct host_way *host_way_of(struct host *host, enum weft_coll_kind kind, bool in_place, uint64_t bytes);
bool host_way_copies(struct host_way *way); /* is to be taken by system calls */
void host_way_took(struct host_way *way, bool copied, uint64_t ns, uint64_t bytes);

/* host_stage.c; host_stages_free is in internal.h */
uint32_t host_stage_block(bool crowded); /* bytes of the vector that a rank would move in a round */
bool host_stage_allows(uint64_t block);
uint8_t *host_stage_take(struct weft_group *group); /* NULL: no memory */
void host_stage_give(struct records *records, uint8_t *stage); /* NULL is fine */
void host_stage_begin(struct weft_coll *coll);
bool host_stage_may_act(struct host *host, const struct weft_coll *coll); /* if not, host->seen is waited for */
bool host_stage_step(struct host *host, struct weft_coll *coll, bool *over_out); /* false: nothing can be done now */

#endif
