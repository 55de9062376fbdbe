/* collective.h - groups, plans and non-blocking collectives over any transport.
 *
 *   plan      pure: (algorithm, rank, ranks, count, chunk) -> steps through a cursor; no network, no memory
 *   step      one interpreter runs a plan over a transport, several chunks in flight
 *   group     ranks 0..size-1 = endpoint ids; operations are numbered by the order posted, the same on all ranks
 *
 * Single thread: everything here is called by the owner of the group's loop. Nothing blocks; completions
 * run from the loop, never from inside the posting call. All memory a posted operation needs is taken at
 * post; a step allocates nothing.
 *
 * Every message carries the group's header (group, epoch, sequence, kind, count, dtype, op, root, plan,
 * chunk): a rank that called differently is found and named (WEFT_ERR_MISMATCH on both sides). */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/flight_recorder.h"
#include "collective/kind_info.h"
#include "compress/compress.h"
#include "transport/transport.h"

/* ---- plans (collective/plan_*.c; proved in tests/collective, the long suite for 1..257 ranks and up to 4,099) ---- */

/* Pinned: on the wire. Reproducible plans evaluate T (docs/collectives.md), the others are deterministic. */
enum weft_plan_id {
    WEFT_PLAN_AUTO = 0,
    WEFT_PLAN_DIRECT = 1,      /* every kind but send and recv, all pairs; T */
    WEFT_PLAN_RING = 2,        /* all_reduce, reduce_scatter, all_gather */
    WEFT_PLAN_DOUBLING = 3,    /* all_reduce by recursive doubling, any number of ranks; T */
    WEFT_PLAN_HALVING = 4,     /* all_reduce by halving and doubling, binary blocks; T */
    WEFT_PLAN_DOUBLE_TREE = 5, /* all_reduce over two binary trees */
    WEFT_PLAN_BRUCK = 6,       /* all_gather, all_to_all in log2(ranks) messages */
    WEFT_PLAN_PAT = 7,         /* reduce_scatter, all_gather: a binomial tree to or from each rank, far
                                * links carry least */
    WEFT_PLAN_CHAIN = 8,       /* broadcast, reduce: one link after the other, pipelined */
    WEFT_PLAN_HIERARCHY = 9,   /* all_reduce, broadcast, reduce_scatter, all_gather, in two levels; T where
                                * hosts are subtrees */
    WEFT_PLAN_ONE_HOST = 10,   /* ranks that map each other's memory; taken by AUTO alone (onehost.h); T */
    WEFT_PLAN_BINOMIAL = 11,   /* broadcast, reduce, gather, scatter over the binomial tree; T */
};
#define WEFT_PLAN_COUNT 12

/* The public call that posted an operation as a part of its work. Kinds without a reduction carry it in
 * the field of the reduction. Ranks compare it, and mismatch sentences name it. */
enum weft_coll_label {
    WEFT_COLL_LABEL_NONE = 0, /* the user called the operation itself */
    WEFT_COLL_LABEL_SPLIT = 1,
    WEFT_COLL_LABEL_MESH = 2,
    WEFT_COLL_LABEL_TENSOR_INIT = 3,
    WEFT_COLL_LABEL_TENSOR_SHARE = 4,
    WEFT_COLL_LABEL_STATE_LOAD = 5,
    WEFT_COLL_LABEL_STEP_BEGIN = 6,
    WEFT_COLL_LABEL_CODEC_CHOICE = 7,
    WEFT_COLL_LABEL_STEP_END = 8,
    WEFT_COLL_LABEL_TENSOR_FREE = 9,
};
#define WEFT_COLL_LABEL_COUNT 10

/* One step. `offset_in` counts elements of the input vector, `offset` of the output vector, `scratch` of
 * the operation's scratch. Scratch of a *wide* plan holds partials: f32 for narrower floats, else the
 * element type. */
enum weft_action_kind {
    WEFT_ACTION_NONE = 0,      /* an empty place (a slice without elements): nothing to do, but it waits
                                * for `depends` too */
    WEFT_ACTION_SEND = 1,      /* `count` elements of `place` to peer; count 0: a message without payload */
    WEFT_ACTION_RECV = 2,      /* into `place`: OUTPUT or AREA */
    WEFT_ACTION_RECV_FOLD = 3, /* peer's contribution to the fold in `area` */
    WEFT_ACTION_FOLD = 4,      /* `place`: output[offset..), or elements at scratch[scratch..) = T over all
                                * ranks' contributions in `area`, own one from input[offset_in..) */
    WEFT_ACTION_RECV_SUM = 5,  /* into scratch[scratch..); then received + own (of `place`) stays there or,
                                * if `last`, goes to the output */
    WEFT_ACTION_COPY = 6,      /* output[offset..) = `place`: input[offset_in..) or scratch[scratch..) */
    WEFT_ACTION_PACK = 7,      /* scratch[scratch..) = `place`: input[offset_in..) or output[offset..),
                                * widened in a wide plan, or scratch[scratch_own..) */
    WEFT_ACTION_SUM = 8,       /* as RECV_SUM, with partials that lie at scratch[scratch..) already; `wide` */
    WEFT_ACTION_DONE = 9,
};
enum weft_place { WEFT_PLACE_INPUT = 1, WEFT_PLACE_OUTPUT = 2, WEFT_PLACE_SCRATCH = 3 };

struct weft_action {
    enum weft_action_kind kind;
    enum weft_place place;  /* INPUT uses offset_in, OUTPUT offset, AREA scratch (what is read by PACK, and
                             * the own operand of a sum: scratch_own) */
    uint32_t peer;          /* rank in the group */
    uint32_t message;       /* number of the message between this pair of ranks within the operation: equal
                             * on both sides */
    uint32_t area;          /* which fold (RECV_FOLD, FOLD) */
    bool own_first;         /* RECV_SUM: own + received, else received + own */
    bool into_own;          /* RECV_SUM: a sum that is not `last` replaces the own operand in scratch, not
                             * what was received */
    bool wide;              /* the message carries partials, else elements */
    bool last;              /* the sum is complete here: FOLD, COPY of a sum, the last RECV_SUM; AVG scales
                             * now */
    uint64_t offset_in, offset, scratch, scratch_own, count; /* elements */
    uint64_t after;         /* starts only when all steps at least this many back are over (0: none) */
    uint64_t depends;       /* how many steps back (0: none) the step lies that must be over before this
                             * one starts */
};

/* Who shares a host; the same on all ranks (plan/topology.c). Hosts count in the order of their first
 * ranks. */
struct weft_plan_hosts {
    uint32_t count, lanes;           /* hosts; ranks of the largest */
    const uint32_t *host, *place;    /* (ranks,) of a rank: its host, and its place among the ranks of it */
    const uint32_t *members, *first; /* (ranks,) host by host, rising; (count + 1,) where each host begins
                                      * there */
    const uint32_t *ring_order, *ring_position;    /* (ranks,) ranks as rings, chains and double trees go
                                                    * round, host by host; of a rank: its place there */
    const uint32_t *speeds;          /* (count,) of the link of a host, all its ranks together, in any
                                      * unit; NULL: alike, or not known */
    const uint32_t *slice_weights;          /* as in weft_plan_args, of the ranks in a direct all_reduce
                                             * whose slices follow speeds; NULL: it has none */
    const uint32_t *lane_weights;     /* likewise of the lanes of the hierarchy's; NULL: equal */
    uint32_t rails;                  /* links of a host; 0: one, as far as is known */
    uint32_t sites, site_ranks;      /* of hosts with long ways between them; ranks of one. 0: none are
                                      * known; the choice alone goes by them */
    bool sites_aligned;              /* each site but the last has the same power of two of consecutive
                                      * ranks */
    uint64_t near_latency_ns, near_bytes_per_second; /* of the worst link inside a site */
    uint64_t number;                 /* of what was measured, goes with the calls it matters to; 0: nothing
                                      * was */
    bool has_consecutive_ranks;                   /* the ranks of each host are consecutive */
    bool ring_is_identity;                     /* round is 0, 1, 2 ... */
    bool subtrees;                   /* T over hosts of T over the ranks of each is T over all */
};
size_t weft_plan_hosts_words(uint32_t ranks);
/* host_of (ranks,): any numbers, equal for ranks that share a host. memory
 * (weft_plan_hosts_words(ranks),), which *out points into. */
void weft_plan_hosts_init(const uint32_t *host_of, uint32_t ranks, uint32_t *memory,
                          struct weft_plan_hosts *out);
/* What was measured of their links; the same on all ranks, or calls are refused as mismatched. */
struct weft_plan_links {
    const uint32_t *order;       /* (hosts->count,) each host once: as rings go; NULL: as they count */
    const uint32_t *speeds;      /* (hosts->count,) as above, > 0; NULL: alike */
    uint32_t rails;              /* links that a host has, which its ranks share out; 0: one */
    const uint32_t *sites;       /* (hosts->count,) of each host its site (transport/probe/link_sites.h);
                                  * NULL: all are of one */
    uint64_t near_latency_ns, near_bytes_per_second; /* of the worst link inside a site, where there are
                                                      * several */
    const uint32_t *lane_speeds; /* (hosts->lanes,) of the slowest link that a lane goes over; 0: it is not
                                  * to be used; NULL: alike */
};
/* Once, after weft_plan_hosts_init of the same memory, before a group that has the hosts posts anything.
 * `links` is read here only. */
void weft_plan_hosts_apply_links(struct weft_plan_hosts *hosts, uint32_t *memory, uint32_t ranks,
                                 const struct weft_plan_links *links);

struct weft_plan_args {
    enum weft_plan_id plan; /* not AUTO */
    enum weft_coll_kind kind;
    uint32_t rank, ranks, root; /* root: of SEND and RECV the other rank */
    uint64_t count;       /* all_reduce, reduce, broadcast: elements; the others: elements of one rank's
                           * piece (the longest) */
    uint64_t chunk_elems; /* cut size of a message, > 0 */
    uint32_t lanes;       /* ring: chunks of one slice that travel together, > 0 */
    /* Unequal pieces: (ranks + 1,) elements before piece i, borrowed while the cursor lives; NULL: pieces
     * of `count`. The cut of the longer vector; all_to_all: displs_in of the input, displs_out of the
     * output. The longest is `count`. */
    const uint64_t *displs_in, *displs_out;
    /* gather, scatter, all_to_all of pieces whose length each pair knows for itself: its first message
     * travels even when the piece is empty, and says how long the piece is. The same on all ranks. */
    bool own_lengths;
    const struct weft_plan_hosts *hosts; /* hierarchy, ring, chain, double_tree: borrowed while the cursor
                                          * lives */
    /* direct and ring, all_reduce: slices of unequal length. (ranks + 2,): slice i is [shares[i], shares[i
     * + 1]) of shares[ranks] parts of the vector, shares[ranks + 1] the longest of these. NULL: equal
     * slices. Bits of a plan of T do not depend on it. */
    const uint32_t *slice_weights;
    bool wide; /* ring: partials are f32 in scratch and on the wire, since the sum of a mean may not fit
                * into an element */
};

/* A plan is a function from a step's number to the step; the cursor only counts. Steps of one rank may
 * overlap freely except for `depends` and `after`; messages from one rank to another leave in the order of
 * the steps (and their receives are posted in it). Any window of >= 2 steps, oldest first, runs without
 * deadlock. */
struct weft_plan_cursor {
    struct weft_plan_args args;
    uint64_t next;
};

void weft_plan_begin(struct weft_plan_cursor *cursor, const struct weft_plan_args *args);
/* The next step of this rank; after the last one WEFT_ACTION_DONE for ever. Pure: no clock, no memory. */
void weft_plan_next(struct weft_plan_cursor *cursor, struct weft_action *action_out);
/* Messages of the plan itself, its first ones but for doubling, go once round the ranks in the order of
 * their numbers, each with elements: no greeting goes before them. */
bool weft_plan_checks_headers(const struct weft_plan_args *args);
bool weft_plan_supports(enum weft_plan_id plan, enum weft_coll_kind kind);
bool weft_plan_supports_unequal(enum weft_plan_id plan, enum weft_coll_kind kind); /* with unequal pieces */
/* evaluates T; hosts: NULL where not known */
bool weft_plan_reproducible(enum weft_plan_id plan, const struct weft_plan_hosts *hosts);
/* its scratch holds partials even if args.wide is not set */
bool weft_plan_wide(enum weft_plan_id plan, enum weft_coll_kind kind);
uint32_t weft_plan_fold_count(const struct weft_plan_args *args);   /* steps name folds 0 .. this - 1, */
uint64_t weft_plan_fold_elems(const struct weft_plan_args *args); /* each of so many elements at most, */
/* of the ranks of a host; else of all */
bool weft_plan_folds_within_host(enum weft_plan_id plan);
uint64_t weft_plan_scratch(const struct weft_plan_args *args); /* elements of scratch its steps name */
/* own_lengths: elements of the piece that this rank sends to, or receives from, another. */
uint64_t weft_plan_piece(const struct weft_plan_args *args, uint32_t peer, bool sends);
/* Elements before slice `index` of the output's owner cut: slice i is [first(i), first(i+1)). */
uint64_t weft_plan_slice_first(const struct weft_plan_args *args, uint32_t index);
const char *weft_plan_name(enum weft_plan_id plan);
enum weft_plan_id weft_plan_parse(const char *name); /* AUTO for unknown: check the name first */
/* ---- the choice of a plan (collective/tuning/cost_model.c) ---- */
struct weft_plan_question {
    enum weft_coll_kind kind;
    uint32_t ranks;
    uint64_t bytes;               /* all_reduce, reduce, broadcast, send, recv: of the vector; the others:
                                   * of the longest piece */
    size_t elem_bytes, wide_bytes;/* of an element, and of a partial */
    bool reproducible, unequal;   /* only plans that evaluate T; that have unequal pieces */
    bool averages;                /* the sum is divided, so the ring sends f32 partials */
    enum weft_plan_id forced_plan;       /* AUTO, or taken where it fits, whatever it costs */
    bool keeps_order;                /* told only where it adds in the order of what is taken without it */
    uint64_t chunk_bytes, message_bytes; /* message_bytes: what the transport moves best; 0: not known */
    uint32_t window;
    const struct weft_link_cost *cost; /* NULL or unknown: a 10 Gbit/s network is assumed */
    const struct weft_plan_hosts *hosts; /* NULL: not known, then the hierarchy does not fit */
    const struct weft_link_cost *local_cost; /* inside a host; NULL or unknown: 2 us and 5 GB/s are assumed */
};
/* What AUTO means for this call: a pure function of what all ranks share. times_ns_out, may be NULL: the
 * modelled time of each plan, UINT64_MAX for those that do not fit. */
enum weft_plan_id weft_plan_choose(const struct weft_plan_question *question,
                                   uint64_t times_ns_out[WEFT_PLAN_COUNT]);
/* Does direct, where it is taken for this call, cut its slices by hosts->shares? Where the slowest link
 * has less to carry then. */
bool weft_plan_uses_slice_weights(const struct weft_plan_question *question);
/* The modelled time of one-host, all buffers mapped: it is no rival of the others, but taken where all
 * ranks can. processors: of the host, which its ranks share; 0: enough of them. */
uint64_t weft_onehost_model_ns(const struct weft_plan_question *question, uint32_t processors);
/* That and its terms, as text: "one-host 12.4 us, in memory that ..." Returns what snprintf would. */
size_t weft_onehost_model_explain(const struct weft_plan_question *question, uint32_t processors, char *out,
                                  size_t out_bytes);
/* What the model of one-host is calibrated by: all_reduces of f32 that are not in place, of so many bytes.
 * caches: its core_kib and last_kib alone are heeded. */
enum weft_onehost_sample {
    WEFT_ONEHOST_SAMPLE_SYNC,
    WEFT_ONEHOST_SAMPLE_COPYIN,
    WEFT_ONEHOST_SAMPLE_SLICES,
    WEFT_ONEHOST_SAMPLE_CACHED,
    WEFT_ONEHOST_SAMPLE_UNCACHED,
    WEFT_ONEHOST_SAMPLE_NT,
    WEFT_ONEHOST_SAMPLES
};
uint64_t weft_onehost_sample_bytes(enum weft_onehost_sample which, uint32_t ranks, uint32_t processors,
                                   const struct weft_link_memory *caches);
/* From what they took, the rest of *memory: with it weft_onehost_model_ns says those times again. */
void weft_onehost_model_fit(uint32_t ranks, uint32_t processors, const double times_ns[WEFT_ONEHOST_SAMPLES],
                            struct weft_link_memory *memory);
/* What the model of messages between ranks of one host is calibrated by: all_reduces of f32 by these
 * plans, of a short vector and of the lengths of weft_link_runs. */
enum weft_plan_id weft_plan_of_pattern(enum weft_link_pattern pattern);
/* From what they took, figures with which the model says about those times again. cost: with all but its
 * runs. */
#define WEFT_PLAN_MESSAGE_COST_SAMPLES (1 + WEFT_LINK_LENGTHS)
#define WEFT_PLAN_MESSAGE_COST_SHORT_BYTES 256 /* bytes of the first sample: every rank has a slice of it */
void weft_plan_fit_message_costs(uint32_t ranks, uint32_t processors,
                                 double times_ns[WEFT_LINK_PATTERNS][WEFT_PLAN_MESSAGE_COST_SAMPLES],
                                 const struct weft_link_cost *cost, struct weft_link_runs *runs_out);
/* "all_reduce 1024 B, 4 ranks: doubling; direct 51.2 us, ring ..." Returns what snprintf would. */
size_t weft_plan_explain(const struct weft_plan_question *question, char *out, size_t out_bytes);
/* "auto", "ring" (for all operations that have it) or "all_reduce=halving,broadcast=chain" (the others
 * stay as they are) into plans (WEFT_COLL_KIND_COUNT,). On an error plans are untouched. */
enum weft_status weft_plans_parse(const char *text, enum weft_plan_id plans[WEFT_COLL_KIND_COUNT],
                                  struct weft_error *error);

/* ---- groups ---- */
/* The longest payload of a message, where nobody says otherwise; halving on many ranks has longer ones
 * (docs/collectives.md). */
#define WEFT_COLL_CHUNK_BYTES ((size_t)WEFT_CHUNK_KIB << 10)
struct weft_group;
/* Plans that AUTO takes, re-tuned by what operations take while the group lives (docs/collectives.md). The
 * same on all ranks. */
enum weft_retune {
    WEFT_RETUNE_OFF = 0,        /* the model decides, and every run of a job does the same */
    WEFT_RETUNE_SAME_ORDER = 1, /* among plans that add in the same order: bits stay what they are */
    WEFT_RETUNE_ANY = 2,        /* among all: two runs may add floats in different orders, ranks of one
                                 * never */
};
/* How long operations of some groups lacked a rank that had not begun them (straggler_time.c). Zeroed
 * before use; written by the holder of the groups' loop, but for `counts`, which the owner sets. */
struct weft_straggler_time {
    _Atomic bool is_enabled;            /* else no clock is read for it */
    _Atomic uint32_t version;          /* odd: it is being written */
    _Atomic uint64_t total_ns, since_ns; /* since_ns above 0: some operation lacks a rank since then */
    uint64_t accounted_until_ns;              /* all up to here is accounted */
    uint32_t waiting_ops;            /* that lack a rank now */
};
/* The time up to now_ns in which some operation lacked a rank. Any thread. */
uint64_t weft_straggler_time_ns(struct weft_straggler_time *straggler_time, uint64_t now_ns);
/* From from_ns to to_ns, which is not in the future, something else lacked a rank, too. The loop's thread. */
void weft_straggler_time_add(struct weft_straggler_time *straggler_time, uint64_t from_ns, uint64_t to_ns);

struct weft_group_options {
    size_t size;                     /* sizeof(struct weft_group_options) */
    struct weft_transport *transport;/* borrowed; peers connected already */
    struct weft_loop *loop;          /* borrowed; carries the deadlines */
    struct weft_event_ring *events;  /* borrowed, may be NULL */
    struct weft_group *share;        /* another group over the same loop, or NULL: memory that operations
                                      * leave behind serves both */
    struct weft_recorder *recorder;  /* borrowed until weft_group_free, may be NULL; several groups may
                                      * share one */
    struct weft_straggler_time *straggler_time;          /* likewise */
    uint32_t rank, ranks;
    const uint32_t *endpoint_ids;    /* (ranks,) copied */
    uint32_t group_id;               /* 24 bits; (group_id, epoch) names one group of the job and is never
                                      * used again */
    uint32_t epoch;                  /* of the membership */
    size_t chunk_bytes;              /* default WEFT_COLL_CHUNK_BYTES */
    uint32_t inflight_max;           /* messages in flight per operation, default 16 */
    uint32_t operations_max;         /* posted at once, default 1,024: more answer WEFT_ERR_AGAIN */
    uint64_t deadline_ns;            /* default of an operation, default 300 s */
    uint64_t release_timeout_ns;            /* of a group that has ended, with peers that have not let go
                                             * of its buffers: then their connection is given up, for all
                                             * groups over this transport; default 2 s */
    uint32_t sparse_shared_ranks;    /* a compressed all_reduce of so many ranks or more is shared out, by
                                      * regions or slices, where it can be; default 0: where that moves
                                      * fewer bytes. The same on all ranks */
    bool timing_only;                /* over a timing-only simulation: buffers are never touched, sums and
                                      * copies not done */
    uint32_t rank_modulus;                  /* with timing_only: rank r's messages stand for those of every
                                             * rank that equals r modulo this; default 0: every rank is
                                             * itself */
    /* Names a rank in error texts: "rank 3 (host b, pid 41)"; may be NULL. */
    void (*describe)(void *context, uint32_t rank, char *out, size_t out_bytes);
    void *describe_context;
    /* Formats the subject of a call for error texts: "tensor 'fc1'". Called with describe_context; may be
     * NULL. */
    void (*describe_subject)(void *context, uint32_t subject, char *out, size_t out_bytes);
    /* The worst link among the ranks, by which AUTO chooses: the same bytes on every rank, or they choose
     * differently and the call is refused as mismatched. Copied; NULL: not known. */
    const struct weft_link_cost *cost;
    const struct weft_link_cost *local_cost; /* likewise, of the worst link inside a host */
    const struct weft_plan_hosts *hosts; /* borrowed until weft_group_free, may be shared; NULL: not known */
    enum weft_retune retune;         /* default OFF */
    bool keeps_affinity;                       /* leave the thread that waits for a rank on its own
                                                * processor there; default: it may be moved to another one
                                                * of its affinity, which is as before when the call returns
                                                * (core_migration.c) */
    bool ids_increase;                   /* groups are made over this transport in the order of epoch and
                                          * group_id: a message for one before the last that is not there
                                          * is dropped, and nothing is kept of groups that have ended. The
                                          * same for all of them. Default: the newest few hundred that have
                                          * ended are known */
    bool opens_onehost_later;                /* where ranks can meet in memory they agree on it with the
                                              * first operation that any of them posts; a group without one
                                              * has no memory there. Default: as the group is made. Ranks
                                              * may differ */
    bool defers_peer_loss;                 /* a rank that is gone already: the group is made, and its first
                                            * operation says so. Default: it is not made,
                                            * WEFT_ERR_PEER_LOST */
};
void weft_group_options_init(struct weft_group_options *options);
enum weft_status weft_group_create(struct weft_env *env, const struct weft_group_options *options,
                                   struct weft_group **group_out, struct weft_error *error);
/* Posted operations complete with WEFT_ERR_CLOSED, from this call: their buffers may be in use until the
 * transport is drained (to be sure: weft_group_fail, wait for the dones, then free). The other ranks are
 * told that this one has left: its end is no loss for operations it has taken part in. May be called from
 * a done. NULL is fine. */
void weft_group_free(struct weft_group *group);
/* In good order, before weft_group_free (which else does it, and does not wait): tell the other ranks that
 * this one is done with the group. A connection that is not up yet takes the word along when it comes up,
 * and one that never does holds up weft_group_has_left. Nothing may be posted any more.
 * weft_group_has_left: all have been told, or are gone, or need not be. */
void weft_group_leave(struct weft_group *group);
bool weft_group_has_left(const struct weft_group *group);
/* An operation with a root can complete on one rank before another rank calls it. After weft_group_leave
 * these find calls that differ and that no message has compared. weft_group_has_unverified_calls(): the
 * last operation had a root, or a peer has not received a send. weft_group_compare_leavers():
 * WEFT_ERR_MISMATCH and a sentence if a rank that has left called other operations. WEFT_OK if all other
 * ranks have left and called the same, or a rank is lost. WEFT_IN_PROGRESS if a rank has not left. If the
 * group has ended, its status. */
bool weft_group_has_unverified_calls(const struct weft_group *group);
enum weft_status weft_group_compare_leavers(const struct weft_group *group, struct weft_error *error);
uint32_t weft_group_rank(const struct weft_group *group);
uint32_t weft_group_ranks(const struct weft_group *group);
/* What the group was given; all zero: not known. Never NULL. */
const struct weft_link_cost *weft_group_cost(const struct weft_group *group);
/* Payload that plan one-host, and short sends and recvs of one host, have moved from this rank's memory to
 * the others' and the other way so far, added to what stands there: it passes the transport by, whose
 * statistics do not know of it. */
struct weft_moved {
    uint64_t out_bytes, in_bytes;
};
void weft_group_add_moved(const struct weft_group *group, struct weft_moved *moved);
/* May its operations meet in memory that all its ranks map, now or once they have agreed on it? */
bool weft_group_shares_memory(const struct weft_group *group);
/* Has the group ended because a rank that an operation needs had left it in good order? Nobody will report
 * that one as lost. */
bool weft_group_ended_by_leave(const struct weft_group *group);
/* Does AUTO take the one-host plan for this kind now (the ranks have agreed on it)? */
bool weft_group_uses_onehost(const struct weft_group *group, enum weft_coll_kind kind);
/* What WEFT_RETUNE has settled so far, as text for weft_group_plans_read of a later job of as many ranks
 * on as many hosts. Rank 0's; the others' is empty of cells. Returns what snprintf would. */
size_t weft_group_plans_write(const struct weft_group *group, char *out, size_t out_bytes);
#define WEFT_GROUP_PLANS_BYTES_MAX 4096u
/* UNTRUSTED text. Before the first operation; rank 0 publishes what it says, on other ranks and without
 * retune it does nothing. WEFT_ERR_MALFORMED, WEFT_ERR_INVALID (of other ranks): nothing is taken. */
enum weft_status weft_group_plans_read(struct weft_group *group, const char *text, size_t bytes,
                                       struct weft_error *error);
/* Another one from the next operation posted on: every rank calls it after the same operation. */
void weft_group_set_cost(struct weft_group *group, const struct weft_link_cost *cost);
/* Every posted operation ends with `status` (from the loop), every later one is refused with it; text is
 * copied. While operations are posted the other ranks are told and end alike. The first cause wins; a
 * group that failed by itself (mismatch, deadline, lost rank: docs/collectives.md) is in the same state. */
void weft_group_fail(struct weft_group *group, enum weft_status status, const char *text);
/* WEFT_OK, or why the group has ended, with the sentence (the group's), though operations may still wait
 * until their buffers are free. */
enum weft_status weft_group_end_status(const struct weft_group *group, const char **text_out);
/* The rank that wrote the sentence of weft_group_end_status: this rank, or the peer whose FAIL ended the
 * group. */
uint32_t weft_group_end_rank(const struct weft_group *group);

/* Of groups whose ids rise: those of epochs before this one have ended, and those of it may come. For an
 * endpoint that takes no part in the groups of others for many epochs: a message shows its epoch to who is
 * within a hundred of it. Owner of the loop. */
void weft_groups_set_epoch(struct weft_transport *transport, uint32_t epoch);

/* Bring the records of posted operations up to date (their phase, whom they wait for), before a dump. */
void weft_group_update_records(struct weft_group *group);

/* ---- operations ---- */
/* if set, the subject is a hash of the calls that were fused into the operation */
#define WEFT_SUBJECT_BATCH 0x80000000u
static inline uint32_t weft_subject_batch(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32) | WEFT_SUBJECT_BATCH;
}

struct weft_coll_args {
    enum weft_coll_kind kind;
    const void *in;        /* (count,); reduce_scatter, all_to_all, scatter's root (ranks*count,);
                            * broadcast, recv: ignored */
    void *out;             /* (count,); all_gather, all_to_all, gather's root (ranks*count,); send, others
                            * than reduce's or gather's root: ignored in place: in == out; all_gather and
                            * gather's root in == out + rank*count; reduce_scatter and scatter's root out
                            * == in + rank*count; all_to_all in == out takes a copy */
    uint64_t count;        /* elements; ALL_GATHER_BYTES: bytes of this rank's piece */
    enum weft_dtype dtype;
    enum weft_op op;
    enum weft_coll_label label;
    double factor;         /* SCALED_SUM: of this rank's contribution; the products are rounded to
                            * elements; 0: zeros, whatever is in `in` */
    double total;          /* SCALED_SUM: the finished sum is multiplied by 1/total, as AVG is by 1/ranks.
                            * The same on all ranks. 0: it is not */
    uint32_t root;         /* send, recv: the other rank */
    /* Unequal pieces, one behind the other in the longer vector; (ranks,), read by the post only; NULL:
     * `count` each. reduce_scatter, all_gather: the same on all ranks; gather, scatter: at the root (the
     * others: `count` and `unequal`); all_to_all: counts to each rank, counts_out from each. */
    const uint64_t *counts, *counts_out;
    bool unequal;          /* gather, scatter with `counts` at the root: all ranks say so */
    uint32_t subject;      /* kinds without a root: number of the object that the caller operates on, a
                            * tensor; equal on all ranks. 0: none */
    bool reproducible;     /* take only plans that evaluate T */
    enum weft_plan_id plan;/* WEFT_PLAN_AUTO: chosen by ranks and size */
    uint64_t deadline_ns;  /* relative to the post; 0: the group's */
    uint64_t posted_ns;    /* a reading of the clock just before the post; 0: the post reads it */
    /* ALL_GATHER_BYTES: out has room for ranks*piece_bytes_max, piece r starts at r*piece_bytes_max;
     * lengths are written here */
    uint64_t piece_bytes_max;
    uint64_t *piece_bytes_out; /* (ranks,) */
    /* EXCHANGE_BYTES: `in` too has ranks*piece_bytes_max, piece r, for rank r, with these lengths; `count`
     * is not used, in != out */
    const uint64_t *piece_bytes_in; /* (ranks,) */
};

/* The rank that makes a call, and its group. */
struct weft_coll_caller {
    uint32_t rank, ranks;
    const struct weft_plan_hosts *hosts; /* NULL: not known, and there is no plan hierarchy */
    bool skips_buffer_checks;                      /* timing_only: addresses of buffers are not checked */
};
/* Elements of the two buffers of this rank. The counts of args must be valid at this rank. Pure. */
struct coll_elem_counts {
    uint64_t in, out;
};
struct coll_elem_counts coll_elem_counts_of(const struct weft_coll_caller *caller, const struct weft_coll_args *args);
/* Validates all arguments of a call that one rank can check. A post of a call that passes does not fail
 * for its arguments. Reads no buffer. Any thread. WEFT_ERR_INVALID or WEFT_ERR_UNSUPPORTED; the sentence
 * names the call and the argument. */
enum weft_status weft_coll_check(const struct weft_coll_caller *place, const struct weft_coll_args *args,
                                 struct weft_error *error);

struct weft_coll; /* one posted operation; valid until its `done` has returned */
/* the number of a send or recv: they count in no order but their pair's */
#define WEFT_COLL_SEQUENCE_PAIR UINT64_MAX
typedef void (*weft_coll_done_fn)(void *context, enum weft_status status, const char *text);

/* WEFT_IN_PROGRESS: done runs exactly once, later, from the loop (also for one rank), and after it nobody
 * touches the buffers. Errors, nothing posted: WEFT_ERR_INVALID, _UNSUPPORTED (plan), _AGAIN
 * (operations_max), _NO_MEMORY, and the status of a group that has ended. */
enum weft_status weft_coll_post(struct weft_group *group, const struct weft_coll_args *args,
                                weft_coll_done_fn done, void *context, struct weft_coll **coll_out,
                                struct weft_error *error);
/* A short operation, or one on mapped buffers of up to 512 KiB, that may be over within this call, where
 * all ranks meet in memory and come at about the same time. WEFT_OK: it is; `done` never runs.
 * WEFT_IN_PROGRESS: as from weft_coll_post. WEFT_ERR_AGAIN: nothing has happened; post it. Waits some
 * microseconds at most for the others, where ranks outnumber cores some tens. */
enum weft_status weft_coll_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out);
/* The shape of the last call of its kind that weft_coll_try_fastpath was asked for: all but its buffers.
 * 0: none. No two shapes of a process have the same number. */
uint64_t weft_coll_prepared_id(const struct weft_group *group, enum weft_coll_kind kind);
/* As weft_coll_try_fastpath, of a call that has that shape; not of pairs. WEFT_ERR_AGAIN also where
 * another shape of this kind was asked for since, or the group is another one: weft_coll_try_fastpath
 * knows. */
enum weft_status weft_coll_try_prepared(struct weft_group *group, enum weft_coll_kind kind,
                                        uint64_t prepared_id, const void *in, void *out,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out);
/* A short recv, now or never: WEFT_OK, it is over. WEFT_IN_PROGRESS: it can be, but its send has not come,
 * and nothing has happened; with `patient` that was waited for, some microseconds at most. WEFT_ERR_AGAIN:
 * nothing has happened; post it. */
enum weft_status weft_coll_try_recv(struct weft_group *group, const struct weft_coll_args *args,
                                    bool patient);
/* done runs with WEFT_ERR_CANCELLED unless it is already finishing. The other ranks are not told. */
void weft_coll_cancel(struct weft_coll *coll);
/* Cancels a recv whose send has not come: done runs with WEFT_ERR_CANCELLED, and the next recv of the pair
 * gets that send. false: it has come, or this is no recv; nothing has changed. Holding the loop. */
bool weft_coll_cancel_recv(struct weft_coll *coll);
uint64_t weft_coll_sequence(const struct weft_coll *coll);
/* for this rank of the group, at this moment; false: for none. Holding the loop */
bool weft_coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out);
enum weft_plan_id weft_coll_plan(const struct weft_coll *coll);

/* All-reduce of a gradient through a codec: the rounds of compress.h run over this group. grad (elems,)
 * f32 is borrowed until done; out (elems,) may equal grad. Result: the sum over ranks of grad_scale*grad
 * (+ residuals), times result_scale. `codec` is borrowed; commit or abandon is the caller's, after done.
 * The first encode runs inside this call. done with WEFT_ERR_INVALID on all ranks: some gradient is not
 * finite; the group goes on. */
enum weft_status weft_coll_codec_all_reduce(struct weft_group *group, struct weft_codec *codec,
                                            const struct weft_codec_spec *resolved,
                                            const struct weft_shape *shape, const float *grad,
                                            float grad_scale, float *out, float result_scale,
                                            uint64_t deadline_ns, weft_coll_done_fn done, void *context,
                                            struct weft_error *error);

/* Gradients of one shape and codec together: each round is one operation with the contributions of all,
 * one behind the other, instead of one operation each. The bits are those of `count` calls of their own. A
 * gradient of any that is not finite ends all of them so. Only where weft_coll_codec_can_batch() says that
 * the codec's rounds are sums; count 1..WEFT_CODEC_BATCH_MAX. */
#define WEFT_CODEC_BATCH_MAX 32u
struct weft_coll_codec_member {
    struct weft_codec *codec;
    uint32_t subject; /* as in weft_coll_args; an operation of several tensors carries a hash of all
                       * subjects */
    const float *grad;
    float grad_scale;
    float *out;
};
bool weft_coll_codec_can_batch(const struct weft_codec_spec *resolved);
enum weft_status weft_coll_codec_all_reduce_batch(struct weft_group *group,
                                                  const struct weft_coll_codec_member *members,
                                                  uint32_t count, const struct weft_codec_spec *resolved,
                                                  const struct weft_shape *shape, float result_scale,
                                                  uint64_t deadline_ns, weft_coll_done_fn done, void *context,
                                                  struct weft_error *error);

/* Whether the ranks combine this round in slices, and how (compress/split/slice.h). */
bool weft_coll_codec_slices(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                            uint32_t ranks, uint32_t round, struct weft_slices *slices_out);
/* What the first of these calls moves, for those who choose a codec. contribution_bytes: of each round, as
 * measured (all ranks' are taken to be alike); NULL: the upper bounds. */
struct weft_coll_traffic {
    double bytes; /* out of one rank, and as many into it */
    double hops;  /* messages that wait for one another */
};
void weft_coll_codec_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                             uint32_t ranks, const size_t *contribution_bytes,
                             struct weft_coll_traffic *traffic_out);

#endif
