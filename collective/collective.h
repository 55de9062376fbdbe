/* collective.h - groups, plans and non-blocking collectives over any transport.
 *
 *   plan      pure function (algorithm, rank, ranks, count, chunk) -> steps, read through a cursor
 *   step      one interpreter runs a plan over a transport, several chunks in flight
 *   group     ranks 0..ranks-1 = endpoint ids. Operations are numbered in post order, equal on all ranks
 *
 * The owner of the group's loop calls every function here, unless its comment names another thread. Nothing
 * blocks. Completions run from the loop, never inside the posting call. A post allocates all memory of the
 * operation; a step allocates nothing. Every message carries the call of its sender: if two ranks call
 * different operations, both end with WEFT_ERR_MISMATCH and a text that names the other rank. */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/codec_times.h"
#include "collective/flight_recorder.h"
#include "collective/kind_info.h"
#include "compress/compress.h"
#include "transport/transport.h"

/* ---- plans (collective/plan/; proved in tests/collective/plan for 1..257 ranks and up to 4,099) ---- */

/* The numbers are on the wire. Reproducible plans evaluate the canonical tree T (docs/collectives.md). The
 * other plans are deterministic. */
enum weft_plan_id {
    WEFT_PLAN_AUTO = 0,
    WEFT_PLAN_DIRECT = 1,      /* every kind but send and recv, all pairs; T */
    WEFT_PLAN_RING = 2,        /* all_reduce, reduce_scatter, all_gather */
    WEFT_PLAN_DOUBLING = 3,    /* all_reduce by recursive doubling, any number of ranks; T */
    WEFT_PLAN_HALVING = 4,     /* all_reduce by halving and doubling, binary blocks; T */
    WEFT_PLAN_DOUBLE_TREE = 5, /* all_reduce over two binary trees */
    WEFT_PLAN_BRUCK = 6,       /* all_gather, all_to_all in log2(ranks) messages */
    /* reduce_scatter, all_gather: a binomial tree to or from each rank; far links carry least */
    WEFT_PLAN_PAT = 7,
    WEFT_PLAN_CHAIN = 8,       /* broadcast, reduce: pipelined along a chain of ranks */
    /* all_reduce, broadcast, reduce_scatter, all_gather in two levels; T if hosts are subtrees */
    WEFT_PLAN_HIERARCHY = 9,
    /* ranks that map each other's memory; only AUTO chooses it (onehost/onehost.h); T */
    WEFT_PLAN_ONE_HOST = 10,
    WEFT_PLAN_BINOMIAL = 11,   /* broadcast, reduce, gather, scatter over the binomial tree; T */
};
#define WEFT_PLAN_COUNT 12

/* The public call that posted an operation as part of its work. Kinds without a reduction carry it in the
 * field of the reduction. Ranks compare it, and texts of a mismatch name it. */
enum weft_coll_label {
    WEFT_COLL_LABEL_NONE = 0, /* the user called the operation */
    WEFT_COLL_LABEL_SPLIT = 1,
    WEFT_COLL_LABEL_MESH = 2,
    WEFT_COLL_LABEL_TENSOR_INIT = 3,
    WEFT_COLL_LABEL_TENSOR_SHARE = 4,
    WEFT_COLL_LABEL_STATE_LOAD = 5,
    WEFT_COLL_LABEL_STEP_BEGIN = 6,
    WEFT_COLL_LABEL_CODEC_CHOICE = 7,
    WEFT_COLL_LABEL_STEP_END = 8,
    WEFT_COLL_LABEL_TENSOR_FREE = 9,
    WEFT_COLL_LABEL_TENSOR_ORDER = 10,
    WEFT_COLL_LABEL_NCCL_OPEN = 11,
    WEFT_COLL_LABEL_WEIGHTS = 12,
};
#define WEFT_COLL_LABEL_COUNT 13

/* One step. offset_in counts elements of the input vector, offset of the output vector, scratch of the
 * scratch. Scratch of a *wide* plan holds partials: f32 for narrower floats, else the element type. */
enum weft_action_kind {
    /* empty step (a slice without elements): does nothing, but waits for `depends` */
    WEFT_ACTION_NONE = 0,
    WEFT_ACTION_SEND = 1,      /* `count` elements of `place` to peer; count 0: a message without payload */
    WEFT_ACTION_RECV = 2,      /* into `place`: OUTPUT or SCRATCH */
    WEFT_ACTION_RECV_FOLD = 3, /* receives peer's contribution to fold `area` */
    /* `place`: output[offset..) or elements at scratch[scratch..) = T over the contributions in `area` and
     * input[offset_in..) */
    WEFT_ACTION_FOLD = 4,
    /* receives into scratch[scratch..). The sum with the own operand of `place` stays there; if `last`, it
     * goes to the output */
    WEFT_ACTION_RECV_SUM = 5,
    WEFT_ACTION_COPY = 6,      /* output[offset..) = `place`: input[offset_in..) or scratch[scratch..) */
    /* scratch[scratch..) = `place`: input[offset_in..), output[offset..) or scratch[scratch_own..);
     * widened in a wide plan */
    WEFT_ACTION_PACK = 7,
    WEFT_ACTION_SUM = 8,       /* as RECV_SUM, with partials that are already at scratch[scratch..); `wide` */
    WEFT_ACTION_DONE = 9,
};
enum weft_place { WEFT_PLACE_INPUT = 1, WEFT_PLACE_OUTPUT = 2, WEFT_PLACE_SCRATCH = 3 };

struct weft_action {
    enum weft_action_kind kind;
    /* INPUT uses offset_in, OUTPUT offset, SCRATCH scratch (PACK and the own operand of a sum:
     * scratch_own) */
    enum weft_place place;
    uint32_t peer;          /* rank in the group */
    /* number of the message between the two ranks in the operation; equal on both sides */
    uint32_t message;
    uint32_t area;          /* number of the fold (RECV_FOLD, FOLD) */
    bool own_first;         /* RECV_SUM: own + received, else received + own */
    /* RECV_SUM: a sum that is not `last` replaces the own operand in scratch, not the received one */
    bool into_own;
    bool wide;              /* the message carries partials, else elements */
    /* the sum is complete here: FOLD, COPY of a sum, the last RECV_SUM. AVG scales now */
    bool last;
    uint64_t offset_in, offset, scratch, scratch_own, count; /* elements */
    uint64_t after;         /* starts when all steps at least this many back are done (0: none) */
    uint64_t depends;       /* distance back to the step that must be done before this one starts (0: none) */
};

/* Placement of ranks on hosts, equal on all ranks (plan/topology.c). Hosts count in the order of their
 * first ranks. */
struct weft_plan_hosts {
    uint32_t count, lanes;           /* hosts; ranks of the largest host */
    const uint32_t *host, *place;    /* (ranks,) host of a rank; index of a rank in its host */
    /* (ranks,) ranks host by host, ascending; (count + 1,) begin of each host in `members` */
    const uint32_t *members, *first;
    /* (ranks,) order of ranks in rings, chains and double trees, host by host; position of a rank in it */
    const uint32_t *ring_order, *ring_position;
    /* (count,) link speed of a host, all its ranks together, in any unit. NULL: equal or unknown */
    const uint32_t *speeds;
    /* as in weft_plan_args, for a direct all_reduce with weighted slices. NULL: equal slices */
    const uint32_t *slice_weights;
    const uint32_t *lane_weights;     /* the same for the lanes of the hierarchy. NULL: equal */
    uint32_t rails;                  /* links of a host; 0: one or unknown */
    /* groups of hosts with slow links between them; ranks of a site. 0: unknown. Only the cost model uses
     * them */
    uint32_t sites, site_ranks;
    /* each site but the last has the same power of two of consecutive ranks */
    bool sites_aligned;
    uint64_t near_latency_ns, near_bytes_per_second; /* worst link inside a site */
    /* hash of the measurements that change a plan; part of the headers. 0: none */
    uint64_t number;
    bool has_consecutive_ranks;                   /* the ranks of each host are consecutive */
    bool ring_is_identity;                     /* ring_order is 0, 1, 2 ... */
    /* T over hosts of T over the ranks of each host equals T over all ranks */
    bool subtrees;
};
size_t weft_plan_hosts_words(uint32_t ranks);
/* host_of (ranks,): any numbers, equal for ranks on one host. memory: (weft_plan_hosts_words(ranks),);
 * *out points into it. */
void weft_plan_hosts_init(const uint32_t *host_of, uint32_t ranks, uint32_t *memory,
                          struct weft_plan_hosts *out);
/* Measured links. They must be equal on all ranks, or calls end with WEFT_ERR_MISMATCH. */
struct weft_plan_links {
    const uint32_t *order;       /* (hosts->count,) hosts in ring order; NULL: in their order */
    const uint32_t *speeds;      /* (hosts->count,) as above, > 0; NULL: equal */
    uint32_t rails;              /* links of a host that its ranks share; 0: one */
    /* (hosts->count,) site of a host (transport/probe/link_sites.h); NULL: one site */
    const uint32_t *sites;
    /* worst link inside a site, if there are several sites */
    uint64_t near_latency_ns, near_bytes_per_second;
    /* (hosts->lanes,) slowest link of a lane; 0: the lane is not used; NULL: equal */
    const uint32_t *lane_speeds;
};
/* Call once, after weft_plan_hosts_init with the same memory and before a group with these hosts posts.
 * Reads `links` in this call only. */
void weft_plan_hosts_apply_links(struct weft_plan_hosts *hosts, uint32_t *memory, uint32_t ranks,
                                 const struct weft_plan_links *links);

struct weft_plan_args {
    enum weft_plan_id plan; /* not AUTO */
    enum weft_coll_kind kind;
    uint32_t rank, ranks, root; /* root: of SEND and RECV the other rank */
    /* all_reduce, reduce, broadcast: elements. Other kinds: elements of the longest piece */
    uint64_t count;
    uint64_t chunk_elems; /* longest message, > 0 */
    uint32_t lanes;       /* ring: chunks of one slice in flight together, > 0 */
    /* Unequal pieces: (ranks + 1,) elements before piece i (MPI: displacements), of the longer vector.
     * all_to_all: displs_in of the input, displs_out of the output. NULL: pieces of `count`, which is the
     * longest. Borrowed while the cursor lives. */
    const uint64_t *displs_in, *displs_out;
    /* gather, scatter, all_to_all with pieces whose length only the pair of ranks knows. The first message
     * of a pair travels even if the piece is empty, and carries its length. Equal on all ranks. */
    bool own_lengths;
    /* hierarchy, ring, chain, double_tree: borrowed while the cursor lives */
    const struct weft_plan_hosts *hosts;
    /* direct and ring, all_reduce: slices of unequal length. (ranks + 2,): slice i is [w[i], w[i + 1]) of
     * w[ranks] parts of the vector; w[ranks + 1] is the longest slice in parts. NULL: equal slices. The
     * bits of a plan that evaluates T do not depend on it. */
    const uint32_t *slice_weights;
    /* ring: partials are f32 in scratch and in messages, because the sum of a mean may not fit into an
     * element */
    bool wide;
};

/* A plan is a function from the number of a step to the step; the cursor only counts. Steps of one rank
 * may overlap except for `depends` and `after`. Messages from one rank to another leave in step order, and
 * their receives are posted in that order. Any window of at least 2 steps, oldest first, runs without
 * deadlock. */
struct weft_plan_cursor {
    struct weft_plan_args args;
    uint64_t next;
};

void weft_plan_begin(struct weft_plan_cursor *cursor, const struct weft_plan_args *args);
/* Returns the next step of this rank; after the last one always WEFT_ACTION_DONE. Pure. */
void weft_plan_next(struct weft_plan_cursor *cursor, struct weft_action *action_out);
/* Returns whether the plan's own messages compare the calls of all neighbours in the ring of ranks. If
 * not, one empty message around the ring does that first. */
bool weft_plan_checks_headers(const struct weft_plan_args *args);
bool weft_plan_supports(enum weft_plan_id plan, enum weft_coll_kind kind);
bool weft_plan_supports_unequal(enum weft_plan_id plan, enum weft_coll_kind kind); /* with unequal pieces */
/* evaluates T; hosts may be NULL */
bool weft_plan_reproducible(enum weft_plan_id plan, const struct weft_plan_hosts *hosts);
/* scratch holds partials even if args.wide is not set */
bool weft_plan_wide(enum weft_plan_id plan, enum weft_coll_kind kind);
uint32_t weft_plan_fold_count(const struct weft_plan_args *args);   /* steps name folds 0 .. this - 1 */
uint64_t weft_plan_fold_elems(const struct weft_plan_args *args); /* elements of the longest fold */
/* a fold covers the ranks of a host, else all ranks */
bool weft_plan_folds_within_host(enum weft_plan_id plan);
uint64_t weft_plan_scratch(const struct weft_plan_args *args); /* elements of scratch that the steps name */
/* own_lengths: elements of the piece that this rank sends to, or receives from, a peer. */
uint64_t weft_plan_piece(const struct weft_plan_args *args, uint32_t peer, bool sends);
/* Elements before slice `index` of the output: slice i is [first(i), first(i+1)). */
uint64_t weft_plan_slice_first(const struct weft_plan_args *args, uint32_t index);
const char *weft_plan_name(enum weft_plan_id plan);
enum weft_plan_id weft_plan_parse(const char *name); /* AUTO for an unknown name: check the name first */
/* ---- choice of a plan (collective/tuning/cost_model.c) ---- */
struct weft_plan_question {
    enum weft_coll_kind kind;
    uint32_t ranks;
    /* all_reduce, reduce, broadcast, send, recv: of the vector. Other kinds: of the longest piece */
    uint64_t bytes;
    size_t elem_bytes, wide_bytes;/* of an element, and of a partial */
    bool reproducible, unequal;   /* allow only plans that evaluate T; that support unequal pieces */
    bool averages;                /* the sum is divided, so the ring sends f32 partials */
    enum weft_plan_id forced_plan;       /* AUTO, or a plan that is taken if it fits, at any cost */
    /* forced_plan is taken only if it adds in the order of the choice without it */
    bool keeps_order;
    /* message_bytes: message size at which the transport is fastest; 0: unknown */
    uint64_t chunk_bytes, message_bytes;
    uint32_t window;
    const struct weft_link_cost *cost; /* NULL or unknown: assumes a 10 Gbit/s network */
    const struct weft_plan_hosts *hosts; /* NULL: unknown; the hierarchy is then not possible */
    const struct weft_link_cost *local_cost; /* inside a host; NULL or unknown: assumes 2 us and 5 GB/s */
};
/* Returns the plan that AUTO takes: a pure function of values that all ranks share. times_ns_out may be
 * NULL: modelled time of each plan; UINT64_MAX if the plan is not possible. */
enum weft_plan_id weft_plan_choose(const struct weft_plan_question *question,
                                   uint64_t times_ns_out[WEFT_PLAN_COUNT]);
/* Returns whether a direct plan for this call uses hosts->slice_weights: if that gives a shorter time. */
bool weft_plan_uses_slice_weights(const struct weft_plan_question *question);
/* Modelled time of the one-host plan with direct access to all buffers. AUTO takes that plan whenever all
 * ranks can, so the time is not compared with others. processors: of the host, shared by its ranks; 0:
 * enough. */
uint64_t weft_onehost_model_ns(const struct weft_plan_question *question, uint32_t processors);
/* Formats the time and its terms: "one-host 12.4 us, in memory that ...". Returns the result of snprintf. */
size_t weft_onehost_model_explain(const struct weft_plan_question *question, uint32_t processors, char *out,
                                  size_t out_bytes);
/* What the model of one-host is calibrated by: all_reduces of f32 that are not in place, of so many bytes.
 * caches: its private_cache_kib and last_cache_kib alone are heeded. */
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
/* Sets the other fields of *memory so that weft_onehost_model_ns returns these times. */
void weft_onehost_model_fit(uint32_t ranks, uint32_t processors, const double times_ns[WEFT_ONEHOST_SAMPLES],
                            struct weft_link_memory *memory);
/* The plan whose f32 all_reduces calibrate the model of messages inside a host, at a short vector and at
 * the lengths of weft_link_runs. */
enum weft_plan_id weft_plan_of_pattern(enum weft_link_pattern pattern);
/* Derives the figures with which the model returns about these times. cost: all fields but its runs. */
#define WEFT_PLAN_MESSAGE_COST_SAMPLES (1 + WEFT_LINK_LENGTHS)
#define WEFT_PLAN_MESSAGE_COST_SHORT_BYTES 256 /* bytes of the first sample: every rank has a slice of it */
void weft_plan_fit_message_costs(uint32_t ranks, uint32_t processors,
                                 double times_ns[WEFT_LINK_PATTERNS][WEFT_PLAN_MESSAGE_COST_SAMPLES],
                                 const struct weft_link_cost *cost, struct weft_link_runs *runs_out);
/* Formats "all_reduce 1024 B, 4 ranks: doubling; direct 51.2 us, ring ...". Returns the result of
 * snprintf. */
size_t weft_plan_explain(const struct weft_plan_question *question, char *out, size_t out_bytes);
/* Parses "auto", "ring" (for all operations that support it) or "all_reduce=halving,broadcast=chain" (the
 * other operations keep their plan) into plans (WEFT_COLL_KIND_COUNT,). On an error plans are unchanged. */
enum weft_status weft_plans_parse(const char *text, enum weft_plan_id plans[WEFT_COLL_KIND_COUNT],
                                  struct weft_error *error);

/* ---- groups ---- */
/* Default of the longest payload of a message. Halving on many ranks has longer ones
 * (docs/internals/plans.md). */
#define WEFT_COLL_CHUNK_BYTES ((size_t)WEFT_CHUNK_KIB << 10)
struct weft_group;
/* Re-tuning: changes the plans that AUTO takes, by the measured times of operations. Equal on all ranks
 * (docs/internals/tuning.md). */
enum weft_retune {
    WEFT_RETUNE_OFF = 0,        /* the model decides; every run of a job takes the same plans */
    /* among plans that add in the same order, so the bits are equal in every run */
    WEFT_RETUNE_SAME_ORDER = 1,
    /* among all plans: two runs may add floats in different orders; the ranks of one run never do */
    WEFT_RETUNE_ANY = 2,
};
/* Time that operations of some groups waited for ranks that had not begun them
 * (core/record/straggler_time.c). Zero it before use. The owner sets is_enabled; the holder of the groups'
 * loop writes the other fields. */
struct weft_straggler_time {
    _Atomic bool is_enabled;            /* false: no clock is read for it */
    _Atomic uint32_t version;          /* seqlock; odd while it is written */
    _Atomic uint64_t total_ns, since_ns; /* since_ns > 0: an operation waits for a straggler since then */
    uint64_t accounted_until_ns;              /* all time before it is counted */
    uint32_t waiting_ops;            /* operations that wait for a straggler now */
};
/* Returns the time until now_ns in which at least one operation waited for a straggler. Any thread. */
uint64_t weft_straggler_time_ns(struct weft_straggler_time *straggler_time, uint64_t now_ns);
/* Counts the interval from_ns to to_ns, not in the future, of another kind of wait. The loop's thread. */
void weft_straggler_time_add(struct weft_straggler_time *straggler_time, uint64_t from_ns, uint64_t to_ns);

/* Formats ranks and subjects for error texts. */
struct weft_group_names {
    /* Formats a rank for error texts: "rank 3 (host b, pid 41)". May be NULL. */
    void (*describe)(void *context, uint32_t rank, char *out, size_t out_bytes);
    void *describe_context;
    /* Formats the subject of a call for error texts: "tensor 'fc1'". Called with describe_context. May be
     * NULL. */
    void (*describe_subject)(void *context, uint32_t subject, char *out, size_t out_bytes);
};
/* Variants of a group; all default to off. */
struct weft_group_modes {
    /* for a simulation of times only: buffers are not accessed, sums and copies are not done */
    bool timing_only;
    /* with timing_only: messages of rank r stand for those of every rank equal to r modulo this. 0: off */
    uint32_t rank_modulus;
    /* the waiting thread keeps its core. Default: it may move to another core of its affinity while the
     * call waits (onehost/core_migration.c) */
    bool keeps_affinity;
    /* groups on this transport are made in the order of epoch and group_id. A message for an unknown
     * earlier group is then dropped, and nothing is stored for ended groups. Equal for all groups.
     * Default: the last few hundred ended groups are stored */
    bool ids_increase;
    /* ranks set up the one-host path with the first operation that one of them posts; a group without
     * operations uses no memory for it. Default: when the group is made. May differ between ranks */
    bool opens_onehost_later;
    /* if a peer is lost already, the group is made and its first operation fails. Default:
     * weft_group_create returns WEFT_ERR_PEER_LOST */
    bool defers_peer_loss;
};

struct weft_group_options {
    size_t size;                     /* sizeof(struct weft_group_options) */
    struct weft_transport *transport;/* borrowed; peers are connected */
    struct weft_loop *loop;          /* borrowed; runs the timer */
    struct weft_event_ring *events;  /* borrowed, may be NULL */
    struct weft_group *share;        /* another group on the same loop, or NULL: both use one op pool */
    struct weft_recorder *recorder;  /* borrowed until weft_group_free, may be NULL; groups may share one */
    struct weft_straggler_time *straggler_time;          /* the same */
    uint32_t rank, ranks;
    const uint32_t *endpoint_ids;    /* (ranks,) copied */
    /* 24 bits; (group_id, epoch) names one group of the job and is never reused */
    uint32_t group_id;
    uint32_t epoch;                  /* of the membership */
    size_t chunk_bytes;              /* default WEFT_COLL_CHUNK_BYTES */
    uint32_t inflight_max;           /* messages in flight per operation; default 16 */
    /* operations posted at once; default 1,024; more return WEFT_ERR_AGAIN */
    uint32_t operations_max;
    uint64_t deadline_ns;            /* default deadline of an operation; default 300 s */
    /* after the group has ended, time for peers to release its buffers; then their connections are closed
     * for all groups of this transport. Default 2 s */
    uint64_t release_timeout_ns;
    /* from this many ranks on, a compressed all_reduce is split by regions or slices if possible. Default
     * 0: if that moves fewer bytes. Equal on all ranks */
    uint32_t sparse_shared_ranks;
    struct weft_group_modes modes;
    struct weft_group_names names;
    /* Worst link between the ranks, for the cost model. All ranks need the same bytes, or their calls end
     * with WEFT_ERR_MISMATCH. Copied; NULL: unknown. */
    const struct weft_link_cost *cost;
    const struct weft_link_cost *local_cost; /* the same, worst link inside a host */
    const struct weft_plan_hosts *hosts; /* borrowed until weft_group_free, may be shared; NULL: unknown */
    enum weft_retune retune;         /* default OFF */
};
void weft_group_options_init(struct weft_group_options *options);
enum weft_status weft_group_create(struct weft_env *env, const struct weft_group_options *options,
                                   struct weft_group **group_out, struct weft_error *error);
/* Completes posted operations with WEFT_ERR_CLOSED in this call. Their buffers may be in use until the
 * transport is drained: to be sure, call weft_group_fail and wait for the done callbacks first. The other
 * ranks get a LEAVE: operations that this rank took part in do not fail. May be called from a done
 * callback. NULL is fine. */
void weft_group_free(struct weft_group *group);
/* weft_group_leave sends LEAVE to the other ranks. weft_group_free does the same but does not wait.
 * Nothing may be posted after it. weft_group_has_left: the LEAVE is sent to every rank that is not lost. A
 * connection that is not up yet delays it. */
void weft_group_leave(struct weft_group *group);
bool weft_group_has_left(const struct weft_group *group);
/* An operation with a root can complete on one rank before another rank calls it. After weft_group_leave
 * these functions find calls that differ and that no message has compared.
 * weft_group_has_unverified_calls: the last operation had a root or was an all_to_all with counts, or a peer
 * has not received a send.
 * weft_group_compare_leavers: WEFT_ERR_MISMATCH and a text if a rank that has left called other
 * operations. WEFT_OK if all other ranks have left and called the same, or if a rank is lost.
 * WEFT_IN_PROGRESS if a rank has not left. If the group has ended, its status. */
bool weft_group_has_unverified_calls(const struct weft_group *group);
enum weft_status weft_group_compare_leavers(const struct weft_group *group, struct weft_error *error);
uint32_t weft_group_rank(const struct weft_group *group);
uint32_t weft_group_ranks(const struct weft_group *group);
/* Returns the cost given at creation; all zero: unknown. Never NULL. */
const struct weft_link_cost *weft_group_cost(const struct weft_group *group);
/* Payload that the one-host path has moved out of and into this rank's memory. It bypasses the transport,
 * so the transport's counters do not have it. weft_group_add_moved adds to *moved. */
struct weft_moved {
    uint64_t out_bytes, in_bytes;
};
void weft_group_add_moved(const struct weft_group *group, struct weft_moved *moved);
/* Returns whether all ranks can map each other's memory, so operations use the one-host path now or after
 * its setup. */
bool weft_group_shares_memory(const struct weft_group *group);
/* Returns whether the LEAVE of `rank` has arrived. Owner of the loop. */
bool weft_group_peer_has_left(const struct weft_group *group, uint32_t rank);
/* Returns whether the group ended because an operation needs a rank that left. No rank reports that rank
 * as lost. */
bool weft_group_ended_by_leave(const struct weft_group *group);
/* Returns whether AUTO takes the one-host plan for this kind now. */
bool weft_group_uses_onehost(const struct weft_group *group, enum weft_coll_kind kind);
/* Formats the plans that re-tuning has settled, for weft_group_plans_read in a later job with the same
 * numbers of ranks and hosts. Only rank 0 has cells. Returns the result of snprintf. */
size_t weft_group_plans_write(const struct weft_group *group, char *out, size_t out_bytes);
#define WEFT_GROUP_PLANS_BYTES_MAX 4096u
/* Reads UNTRUSTED text before the first operation. Rank 0 publishes it. Other ranks, and groups without
 * re-tuning, ignore it. WEFT_ERR_MALFORMED, WEFT_ERR_INVALID (other numbers of ranks or hosts): nothing is
 * taken. */
enum weft_status weft_group_plans_read(struct weft_group *group, const char *text, size_t bytes,
                                       struct weft_error *error);
/* Sets the cost from the next posted operation on. Every rank calls it after the same operation. */
void weft_group_set_cost(struct weft_group *group, const struct weft_link_cost *cost);
/* Ends all posted operations with `status`, from the loop. Later posts return it. The text is copied. If
 * operations are posted, the other ranks end too. The first cause wins. A mismatch, a deadline or a lost
 * rank leaves the group in the same state (docs/collectives.md). */
void weft_group_fail(struct weft_group *group, enum weft_status status, const char *text);
/* Ends the deadline of the oldest running operation now, so that the group names the late rank. Call when the
 * deadline of a request that waits for it has passed. No effect if no operation runs. Sends and recvs are
 * not considered. */
void weft_group_expire(struct weft_group *group);
/* Returns WEFT_OK, or the status of the ended group and its text (owned by the group). Operations may
 * still wait for the release of their buffers. */
enum weft_status weft_group_end_status(const struct weft_group *group, const char **text_out);
/* Returns the rank that wrote the text of weft_group_end_status: this rank, or the peer whose FAIL ended
 * the group. */
uint32_t weft_group_end_rank(const struct weft_group *group);

/* With ids_increase: groups of earlier epochs have ended, groups of this epoch may be made. An endpoint that
 * joins no group for many epochs calls it, because a tag has eight bits of the epoch. Owner of the loop. */
void weft_groups_set_epoch(struct weft_transport *transport, uint32_t epoch);
/* The caller of this endpoint's groups waits for endpoint peer_id outside of operations. If another rank asks
 * from from_ns on why an operation was not called, the reply names that rank. WEFT_ANY_PEER: no wait. Owner
 * of the loop. */
void weft_groups_set_wait(struct weft_transport *transport, uint32_t peer_id, uint64_t from_ns);

/* Updates the records of posted operations (phase, awaited rank) before a dump. */
void weft_group_update_records(struct weft_group *group);

/* ---- operations ---- */
/* set: the subject is a hash of the calls that were fused into the operation */
#define WEFT_SUBJECT_BATCH 0x80000000u
/* set: the operation finds out which subjects all ranks have. The rest names one of this rank for error
 * texts, and may differ between ranks */
#define WEFT_SUBJECT_ANY 0x40000000u
static inline uint32_t weft_subject_batch(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32) | WEFT_SUBJECT_BATCH;
}

/* Whether the result of an all_reduce of f32 is finite. UNKNOWN: this rank lacks the verdict of a slice. */
enum weft_coll_finite { WEFT_COLL_FINITE_UNKNOWN = 0, WEFT_COLL_FINITE = 1, WEFT_COLL_NOT_FINITE = 2 };

struct weft_coll_args {
    enum weft_coll_kind kind;
    /* (count,); reduce_scatter, all_to_all, root of scatter: (ranks*count,); broadcast, recv: ignored */
    const void *in;
    /* (count,); all_gather, all_to_all, root of gather: (ranks*count,); send, ranks but the root of reduce
     * and gather: ignored. In place: in == out; all_gather and root of gather: in == out + rank*count;
     * reduce_scatter and root of scatter: out == in + rank*count. all_to_all in place copies the input. */
    void *out;
    uint64_t count;        /* elements; ALL_GATHER_BYTES: bytes of this rank's piece */
    enum weft_dtype dtype;
    enum weft_op op;
    enum weft_coll_label label;
    /* SCALED_SUM: factor of this rank's contribution. Products are rounded to elements. 0: zeros, also for
     * NaN in `in` */
    double factor;
    /* SCALED_SUM: divisor of the finished sum, as ranks is for AVG. Equal on all ranks. 0: no division */
    double total;
    uint32_t root;         /* send, recv: the other rank */
    /* Unequal pieces, consecutive in the longer vector; (ranks,), read by the post only; NULL: `count`
     * each. reduce_scatter, all_gather: equal on all ranks. gather, scatter: valid at the root; other
     * ranks set `count` and `unequal`. all_to_all: counts to each rank, counts_out from each rank. */
    const uint64_t *counts, *counts_out;
    bool unequal;          /* gather, scatter with `counts` at the root: set on all ranks */
    /* kinds without a root: number of the caller's object, a tensor; equal on all ranks. 0: none */
    uint32_t subject;
    /* Operations with a lower number go first where several are ready, and have limited bytes in flight
     * (core/send_credit.h). 0, on all ranks: before all others and without a limit. Other numbers need not be
     * equal on all ranks */
    uint64_t urgency;
    bool reproducible;     /* only plans that evaluate T */
    enum weft_plan_id plan;/* WEFT_PLAN_AUTO: chosen by the cost model */
    uint64_t deadline_ns;  /* relative to the post; 0: default of the group */
    uint64_t posted_ns;    /* clock reading just before the post; 0: the post reads the clock */
    /* ALL_GATHER_BYTES: out has ranks*piece_bytes_max bytes; piece r starts at r*piece_bytes_max. The
     * lengths are written to piece_bytes_out. */
    uint64_t piece_bytes_max;
    uint64_t *piece_bytes_out; /* (ranks,) */
    /* EXCHANGE_BYTES: `in` has the same layout; piece r, for rank r, has these lengths. `count` is
     * ignored. in != out */
    const uint64_t *piece_bytes_in; /* (ranks,) */
    /* all_reduce of f32, on all ranks or none: written before `done` by a path that checks the sum while it
     * computes it; else unchanged. NULL: the caller does not need it */
    enum weft_coll_finite *finite_out;
};

/* The rank that makes a call. */
struct weft_coll_caller {
    uint32_t rank, ranks;
    const struct weft_plan_hosts *hosts; /* NULL: unknown, so plan hierarchy is not possible */
    bool skips_buffer_checks;                      /* timing_only: addresses of buffers are not checked */
};
/* Elements of the two buffers of this rank, from the table of kinds. Reads the counts of args. Pure. */
struct coll_elem_counts {
    uint64_t in, out;
};
struct coll_elem_counts coll_elem_counts_of(const struct weft_coll_caller *caller,
                                            const struct weft_coll_args *args);
/* Validates all arguments that one rank can check. A post with arguments that pass does not fail for its
 * arguments. Reads no buffer. Any thread. Returns WEFT_ERR_INVALID or WEFT_ERR_UNSUPPORTED; the text names
 * the call and the argument. */
enum weft_status weft_coll_check(const struct weft_coll_caller *caller, const struct weft_coll_args *args,
                                 struct weft_error *error);

struct weft_coll; /* one posted operation; valid until its done callback has returned */
/* sequence of a send or recv: only the order in their pair counts */
#define WEFT_COLL_SEQUENCE_PAIR UINT64_MAX
typedef void (*weft_coll_done_fn)(void *context, enum weft_status status, const char *text);

/* WEFT_IN_PROGRESS: done runs exactly once, later, from the loop, also for one rank. After it no peer
 * accesses the buffers. Errors, nothing is posted: WEFT_ERR_INVALID, _UNSUPPORTED (plan), _AGAIN
 * (operations_max), _NO_MEMORY, and the status of an ended group. */
enum weft_status weft_coll_post(struct weft_group *group, const struct weft_coll_args *args,
                                weft_coll_done_fn done, void *context, struct weft_coll **coll_out,
                                struct weft_error *error);
/* Fast path: tries to complete the operation inside the call. For copy-in sizes, and for directly mapped
 * buffers up to 512 KiB. WEFT_OK: completed; done never runs. WEFT_IN_PROGRESS: as weft_coll_post.
 * WEFT_ERR_AGAIN: nothing happened; post it. Polls for the peers up to the timeout of fastpath.c. */
enum weft_status weft_coll_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out);
/* Returns the id of the prepared call of this kind: the last call of weft_coll_try_fastpath without its
 * buffers. 0: none. Ids are unique in the process. */
uint64_t weft_coll_prepared_id(const struct weft_group *group, enum weft_coll_kind kind);
/* As weft_coll_try_fastpath, for a call that equals the prepared call `id`. Not for sends and recvs.
 * WEFT_ERR_AGAIN also if a later call replaced the prepared call or the group differs: then call
 * weft_coll_try_fastpath. */
enum weft_status weft_coll_try_prepared(struct weft_group *group, enum weft_coll_kind kind,
                                        uint64_t prepared_id, const void *in, void *out,
                                        weft_coll_done_fn done, void *context, struct weft_coll **coll_out);
/* A short recv without a post. WEFT_OK: completed. WEFT_IN_PROGRESS: its send has not arrived and nothing
 * happened. should_poll: polls for the send first, up to the timeout of sendrecv.c. WEFT_ERR_AGAIN: nothing
 * happened; post it. */
enum weft_status weft_coll_try_recv(struct weft_group *group, const struct weft_coll_args *args,
                                    bool should_poll);
/* Runs done with WEFT_ERR_CANCELLED unless the operation is completing. The other ranks get no message. */
void weft_coll_cancel(struct weft_coll *coll);
/* Cancels a recv whose send has not arrived: done runs with WEFT_ERR_CANCELLED, and the next recv of the
 * pair gets that send. Returns false if the send has arrived or this is no recv; nothing changes. Holder
 * of the loop. */
bool weft_coll_cancel_recv(struct weft_coll *coll);
uint64_t weft_coll_sequence(const struct weft_coll *coll);
/* the rank that the operation waits for now; false: none. Holder of the loop */
bool weft_coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out);
enum weft_plan_id weft_coll_plan(const struct weft_coll *coll);

/* A gradient that a codec reduces. */
struct weft_coll_codec_member {
    struct weft_codec *codec; /* borrowed; the caller commits or abandons it after done */
    uint32_t subject;         /* as in weft_coll_args; a batch carries a hash of all subjects */
    uint64_t urgency;         /* as in weft_coll_args; a batch has that of its first member */
    const float *grad;        /* (elems,), borrowed until done */
    float grad_scale;
    float *out; /* (elems,), may equal grad */
};
/* Gradients of one shape and codec. Those of a batch share operations: each round is one operation with all
 * contributions, one after the other. The bits equal those of separate calls. */
#define WEFT_CODEC_BATCH_MAX 32u
struct weft_coll_codec_args {
    const struct weft_coll_codec_member *members; /* (count,), borrowed during the call */
    uint32_t count; /* 1..WEFT_CODEC_BATCH_MAX; more than 1 requires weft_coll_codec_can_batch() */
    const struct weft_codec_spec *resolved;
    const struct weft_shape *shape;
    float result_scale; /* result = sum over ranks of grad_scale * grad (+ residuals), times this */
    struct weft_codec_times *times; /* borrowed until done, which follows the addition; NULL: none */
};
bool weft_coll_codec_can_batch(const struct weft_codec_spec *resolved);
/* All-reduce of gradients through a codec: the codec's rounds (compress.h) run over the group. The first
 * encode runs inside this call. done with WEFT_ERR_INVALID on all ranks: a gradient is not finite; no member
 * has a result, and the group stays usable. */
enum weft_status weft_coll_codec_all_reduce(struct weft_group *group, const struct weft_coll_codec_args *args,
                                            weft_coll_done_fn done, void *context, struct weft_error *error);

/* Returns whether the ranks combine this round in slices, and the slices (compress/split/slice.h). */
bool weft_coll_codec_slices(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                            uint32_t ranks, uint32_t round, struct weft_slices *slices_out);
/* Traffic of weft_coll_codec_all_reduce, for the codec tuner. contribution_bytes: measured bytes of each
 * round, assumed equal on all ranks; NULL: the upper bounds. */
struct weft_coll_traffic {
    double bytes; /* out of one rank; the same into it */
    double hops;  /* length of the longest chain of dependent messages */
};
void weft_coll_codec_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                             uint32_t ranks, const size_t *contribution_bytes,
                             struct weft_coll_traffic *traffic_out);

#endif
