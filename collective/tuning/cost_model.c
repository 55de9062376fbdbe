/* cost_model.c - the choice of WEFT_PLAN_AUTO: the plan with the least modelled time. In nanoseconds:
 *
 *     a  latency of a message between two ranks     b  per byte of one link direction (link table;
 *     o  hand-over of a message to the transport       without one: a 10 Gbit/s network)
 *     d  per byte of a pass over memory             g  per byte of sums, in cache
 *     e  incast: each sender beyond the eighth on a link adds this fraction to b
 * Ranks of one host have a, b and o of cost_messages.c.
 *
 * Each plan has one function (docs/internals/plans.md has the formulas). A plan that sends partials moves
 * more bytes, by the width of f32 over the element. Plans that do not support the call (unequal pieces, T)
 * are out. On equal times the plan with the lower number wins. Pure, from values that all ranks share: every
 * rank chooses the same plan. */
#include "collective/plan/algorithm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define LATENCY_NS 25000.0
#define BYTE_NS 0.8
#define INJECT_SHARE 0.08   /* o as a fraction of a */
#define INJECT_NS_MAX 2000.0
#define INJECT_NS_MIN 150.0
#define SUM_NS 0.12         /* three streams in cache */
#define PASS_NS 0.10
#define INCAST 0.04
#define INCAST_FREE 8.0     /* senders on one link without loss */
#define CACHE_BYTES 1048576.0
#define LOCAL_LATENCY_NS 2000.0
#define LOCAL_BYTE_NS 0.2
#define STEP_NS 60.0        /* of a short copy, without its bytes */

struct model {
    double p, n, a, b, o, g, d; /* n: bytes of the longest vector; of one piece for kinds with pieces */
    double wide;                /* bytes of a partial over bytes of an element */
    double chunk, log2;
    double eager;               /* longest message without rendezvous, in bytes */
    double crowd;               /* e */
    uint64_t window;
    double hosts, host_ranks;        /* hosts of the group, ranks of the largest; 1, 1 if unknown */
    double meet;                /* ranks of a host that share one link */
    double local_a, local_b;    /* inside a host */
    double line;                /* latency of the line between sites if `a` is not that; else 0 */
    /* rounds of halving whose distance stays inside a site; latency and byte time there */
    double near_rounds, near_a, near_b;
};

static double log2_up(uint32_t ranks)
{
    double rounds = 0;
    while (1ull << (uint64_t)rounds < ranks) rounds++;
    return rounds;
}
static double max_of(double x, double y) { return x > y ? x : y; }
static double min_of(double x, double y) { return x < y ? x : y; }
static double chunk_count(double bytes, double chunk) { return bytes <= chunk ? 1 : bytes / chunk; }
static double incast(const struct model *m, double senders)
{
    return senders > INCAST_FREE ? 1 + m->crowd * (senders - INCAST_FREE) : 1;
}
/* Time of a message without its bytes. A message above `eager` takes a rendezvous: three latencies. */
static double message_time(const struct model *m, double bytes) { return bytes > m->eager ? 3 * m->a : m->a; }
/* One direction of a rank's link: hand-over of the messages and bytes on the wire. */
static double link_time(const struct model *m, double messages, double bytes)
{
    return messages * m->o + bytes * m->b;
}

/* plan_pipeline_chunk as a continuous function. */
static double pipeline_chunk(const struct model *m, double stages)
{
    double least = m->chunk < 4096 ? m->chunk : 4096, best = sqrt(m->n * PLAN_HOP_BYTES / stages);
    return best < least ? least : best > m->chunk ? m->chunk : best;
}

/* A chain of `links` messages, with the bytes of each link cut into pipelined chunks. */
static double pipelined(const struct model *m, double links, double bytes, double per_byte)
{
    double most = pipeline_chunk(m, links), chunk = bytes < most ? bytes : most;
    double fill = links * (message_time(m, chunk) + chunk * (m->b + per_byte)),
           pieces = chunk_count(bytes, most);
    /* The grant of a rendezvous travels behind the data on the same link, between chunks. */
    double grants =
        links > 1 && chunk > m->eager ? (pieces - 1) * (message_time(m, chunk) + chunk * m->b) : 0;
    return fill + grants + link_time(m, pieces, bytes) + bytes * per_byte;
}

/* The far rounds of halving have short messages. Its first k rounds move the fraction 1 - 2^-k of the
 * bytes. */
static double halving_byte(const struct model *m, double rounds)
{
    double far = exp2(-m->near_rounds) - exp2(-rounds);
    return m->near_rounds < 1 ? m->b
                              : (m->near_b * (1 - exp2(-m->near_rounds)) + m->b * far) / (1 - exp2(-rounds));
}
static double halving_trip(const struct model *m, double round, double bytes)
{
    return message_time(m, bytes) * (round < m->near_rounds ? m->near_a / m->a : 1);
}

/* Binary blocks of a number of ranks. */
static uint32_t blocks_of(uint32_t ranks) { return (uint32_t)__builtin_popcount(ranks); }

/* All pairs of ranks: the window holds some of the messages, and messages collide on links (constants from
 * weft sim). */
static double all_pairs_time(const struct model *m, double phases, double chunks, double piece)
{
    double others = m->p - 1, trips = max_of(phases, 2 * phases * others * chunks / (double)m->window);
    double crossed = max_of(1, 1.35 - 0.45 / sqrt(m->p));
    return trips * message_time(m, piece / chunks) +
           link_time(m, phases * others * chunks, phases * others * piece * crossed * incast(m, others));
}

/* All_reduce with weighted slices: rank i moves n (1 + (p-2) w) each way; w is its fraction of the vector. */
static double time_weighted_slices(const struct weft_plan_question *q, const struct model *m)
{
    const uint32_t *slice_weights = q->hosts->slice_weights, *speeds = q->hosts->speeds;
    double parts = slice_weights[q->ranks], slowest = 0, longest = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t r = 0; r < q->ranks; r++) least = speeds[r] < least ? speeds[r] : least;
    for (uint32_t r = 0; r < q->ranks; r++) {
        double part = (slice_weights[r + 1] - slice_weights[r]) / parts,
               bytes = m->n * (1 + (m->p - 2) * part);
        slowest = max_of(slowest, bytes * m->b * least / speeds[r]);
        longest = max_of(longest, part);
    }
    double most = m->chunk * min_of(1, (double)m->window / (2 * m->p)), others = m->p - 1,
           slice = longest * m->n;
    double chunks = chunk_count(slice, (double)plan_weighted_chunk((uint64_t)slice, (uint64_t)most));
    /* the first C and the last R do not overlap */
    double again = m->n > CACHE_BYTES ? m->d * 2 * (1 - CACHE_BYTES / m->n) : 0, alone = 1 / chunks;
    double trips = max_of(2, 4 * others * chunks / (double)m->window);
    return trips * message_time(m, slice / chunks) + link_time(m, 2 * others * chunks, 0) +
           slowest * (1.05 + alone) * incast(m, others) + others * slice * (m->g + again);
}
static bool can_use_slice_weights(const struct weft_plan_question *q)
{
    return q->kind == WEFT_COLL_ALL_REDUCE && q->hosts && q->hosts->slice_weights && q->hosts->lanes == 1;
}

static double time_equal_slices(const struct model *m)
{
    double others = m->p - 1, slice = m->n / m->p,
           chunks = chunk_count(slice, m->chunk * (double)m->window / (2 * m->p));
    /* All contributions of a chunk are in memory before the fold: bytes beyond the cache are loaded again. */
    double again = m->n > CACHE_BYTES ? m->d * 2 * (1 - CACHE_BYTES / m->n) : 0;
    return all_pairs_time(m, 2, chunks, slice) + others * slice * (m->g + again);
}

static double time_direct(const struct weft_plan_question *q, const struct model *m)
{
    double others = m->p - 1, slice = m->n / m->p;
    switch (q->kind) {
    case WEFT_COLL_ALL_REDUCE: {
        double equal = time_equal_slices(m);
        return can_use_slice_weights(q) ? min_of(equal, time_weighted_slices(q, m)) : equal;
    }
    case WEFT_COLL_REDUCE:
        return 2 * m->a + link_time(m, 2 * others, others * slice * (1 + incast(m, others))) +
               others * slice * m->g;
    case WEFT_COLL_REDUCE_SCATTER:
        return all_pairs_time(m, 1, chunk_count(m->n, m->chunk), m->n) + others * m->n * m->g;
    case WEFT_COLL_BROADCAST:
        return m->log2 * message_time(m, min_of(m->n, m->chunk)) +
               link_time(m, m->log2 * chunk_count(m->n, m->chunk), m->log2 * m->n);
    case WEFT_COLL_BARRIER: return m->log2 * m->a;
    case WEFT_COLL_SEND:
    case WEFT_COLL_RECV: return m->a + link_time(m, 1, m->n);
    case WEFT_COLL_GATHER:
        return m->a + link_time(m, others * chunk_count(m->n, m->chunk), others * m->n * incast(m, others));
    case WEFT_COLL_ALL_TO_ALL:
    case WEFT_COLL_SCATTER: return m->a + link_time(m, others * chunk_count(m->n, m->chunk), others * m->n);
    default: return all_pairs_time(m, 1, chunk_count(m->n, m->chunk), m->n); /* all_gather */
    }
}

static double time_ring(const struct weft_plan_question *q, const struct model *m)
{
    double hops = m->p - 1, all = q->kind == WEFT_COLL_ALL_REDUCE, slice = all ? m->n / m->p : m->n,
           phases = all ? 2 : 1;
    double sums = q->kind == WEFT_COLL_ALL_GATHER ? 0 : hops * slice * m->g,
           trips = phases * hops * message_time(m, min_of(slice, m->chunk));
    double wide = q->averages ? m->wide - 1 : 0; /* extra bytes of the hops with sums */
    /* All slices pass a line in sequence. A rendezvous message with a sum waits for scratch, which is free
     * when the previous one has arrived. Results arrive in place, a window of them at a time (constants
     * from weft sim). */
    if (min_of(slice, m->chunk) > m->eager)
        trips = max_of(trips,
                       m->line *
                           ((q->kind == WEFT_COLL_ALL_GATHER ? 0 : 2 * hops) +
                            (q->kind == WEFT_COLL_REDUCE_SCATTER ? 0 : 3 + 9.6 * hops / (double)m->window)));
    return trips +
           link_time(m, phases * hops * chunk_count(slice, m->chunk), (phases + wide) * hops * slice) + sums;
}

static double time_doubling(const struct weft_plan_question *q, const struct model *m)
{
    /* Later blocks send up while the first block works. Their results go down after it, from one rank to
     * many. */
    uint32_t blocks = blocks_of(q->ranks), fan = 0;
    double floor2 = blocks > 1 ? m->log2 - 1 : m->log2, rounds = 2 * floor2 - __builtin_ctz(q->ranks);
    for (uint32_t rest = q->ranks, before; before = rest & (~rest + 1), rest ^= before;)
        if ((rest & (~rest + 1)) / before > fan) fan = (rest & (~rest + 1)) / before;
    double bytes = m->n * (1 + (1.1 * floor2 - 1 + (blocks > 1 ? 2.6 + 0.9 * fan : 0)) * m->wide);
    /* Scratch holds a few chunks. With a long latency each chunk but the first waits for all but one of
     * its rounds (constants from weft sim). */
    double pieces = chunk_count(m->n, m->chunk),
           moved = link_time(m, rounds * pieces, bytes) + rounds * m->n * m->wide * (m->g + m->d);
    double one = message_time(m, min_of(m->n, m->chunk)),
           stall = (pieces - 1) * (rounds - 1) * one * (blocks > 1 ? 1.6 : 1);
    /* Rendezvous messages go up, down and out in sequence, one block at a time (constants from weft sim). */
    double alone = blocks > 1 && m->n > m->eager ? floor2 + 1 + 4.0 / 3 * blocks : 0;
    /* rounds inside a site do not hide a header check that passes the line: the third round waits for it */
    double greeting = m->log2 > 2 && blocks > 1 ? m->line : 0;
    return greeting + max_of(rounds, alone) * one + sqrt(moved * moved + stall * stall);
}

static double time_halving(const struct weft_plan_question *q, const struct model *m)
{
    double first = (double)(1u << (31 - __builtin_clz(q->ranks))),
           last = (double)(q->ranks & (~q->ranks + 1));
    double rounds = 2 * (blocks_of(q->ranks) > 1 ? m->log2 - 1 : m->log2);
    /* the first half of the halving sends elements */
    double spread = 1 - 1 / first, bytes = m->n * (spread * (1 + m->wide) / 2 + spread);
    double fan = 0;
    if (blocks_of(q->ranks) > 1) { /* their messages up overlap with the halving of the first block */
        /* The ranks of the smallest block move the most bytes: their own phases, and their piece up and
         * down. */
        double up = m->n / last * m->wide + m->n / last, own = m->n * (1 - 1 / last) * (1 + m->wide);
        bytes = max_of(bytes + m->n / first * (1 + m->wide), own + up);
        bytes += 1.5 * m->n / last;
        uint32_t before = (q->ranks & (q->ranks - 1)) & (~(q->ranks & (q->ranks - 1)) + 1);
        fan = 2 * (double)before / last;
    }
    double segments = chunk_count(m->n, 2 * m->chunk);
    double piece = min_of(m->n, 2 * m->chunk), latency = 0;
    for (double t = 0; t < rounds / 2; t++) latency += 2 * halving_trip(m, t, piece /= 2);
    bytes *= 1 + 0.2 * (1 - 1 / sqrt(segments)); /* two segments in flight do not fill the link */
    /* and wait for each other */
    latency += 2 * (segments - 1) / max_of(1, segments / 2) * message_time(m, min_of(m->n, 2 * m->chunk) / 2);
    struct model mixed = *m;
    mixed.b = halving_byte(m, rounds / 2);
    return latency * max_of(1, segments / 2) + link_time(&mixed, (rounds + fan) * segments, bytes) +
           m->n * m->wide * (m->g + m->d);
}

/* For all ranks. Between hosts the hierarchy sets the chunk. */
static double time_halving_of_ranks(const struct weft_plan_question *q, const struct model *m)
{
    struct model of_plan = *m;
    of_plan.chunk = (double)plan_halving_chunk(q->ranks, (uint64_t)m->chunk);
    return time_halving(q, &of_plan);
}

static double time_double_tree(const struct weft_plan_question *q, const struct model *m)
{
    /* Partials go up, elements go down. A rank moves each byte about once each way in a phase, mostly in
     * parallel. A chunk passes the depth twice, and the window holds a few chunks, so a deep tree waits
     * (constants from weft sim: docs/simulator.md). */
    double most = pipeline_chunk(m, 2 * m->log2), chunk = m->n < most ? m->n : most,
           pieces = chunk_count(m->n, most);
    double wire = chunk * m->b * (1 + m->wide) / 2, granted = chunk > m->eager;
    double fill = 2 * m->log2 * (message_time(m, chunk) + wire + chunk * m->wide * m->g);
    double moved = link_time(m, 3 * pieces, m->n * (1 + m->wide) * (m->p - 1) / m->p) * (granted ? 1.3 : 1);
    double stall = max_of(0, pieces - 4) * 2 * m->log2 *
                   (0.3 * message_time(m, chunk) + wire * (granted ? 1.94 : 0.9)) * 4 / (double)m->window;
    return fill + sqrt(moved * moved + stall * stall) + m->n * m->wide * (m->g + m->d);
}

static double time_bruck(const struct weft_plan_question *q, const struct model *m)
{
    if (q->kind == WEFT_COLL_ALL_TO_ALL) { /* each round packs, sends and unpacks half of the vector */
        double bytes = m->log2 * m->p / 2 * m->n;
        return m->log2 * m->a + link_time(m, m->log2, bytes) + 3 * m->p * STEP_NS +
               2 * (bytes + m->p * m->n) * m->d;
    }
    double trips = m->a, reach = 1; /* a range that wraps around is a message of its own */
    for (double t = 0; t < m->log2; t++, reach *= 2) trips += message_time(m, min_of(reach * m->n, m->chunk));
    /* A rendezvous stops the pipeline: rounds do not overlap (constants from weft sim). */
    double granted = m->p / 2 * m->n > m->eager ? 1.3 : 1;
    return trips + link_time(m, 2 * m->log2, (m->p - 1) * m->n * granted);
}

/* log2(p) message times. If pieces need more messages, two are in flight, and half of the others add a
 * message time. */
static double time_pat(const struct weft_plan_question *q, const struct model *m)
{
    bool sums = q->kind == WEFT_COLL_REDUCE_SCATTER;
    double most = max_of(1, m->p / 2), together = m->n < m->chunk ? m->chunk / max_of(m->n, 1) : 1;
    double messages =
        max_of(m->log2, m->p / (together < most ? together : most)) * chunk_count(m->n, m->chunk);
    double bytes = (m->p - 1) * m->n * (sums ? m->wide : 1), stalls = max_of(0, messages - m->log2) / 4;
    return (m->log2 + stalls) * message_time(m, max_of(m->n, min_of(bytes / 2, m->chunk))) +
           link_time(m, messages, bytes) + 3 * m->p * STEP_NS + bytes * (2 * m->d + (sums ? m->g : 0));
}

static double time_chain(const struct weft_plan_question *q, const struct model *m)
{
    bool sums = q->kind == WEFT_COLL_REDUCE;
    return pipelined(m, m->p - 1, m->n * (sums ? m->wide : 1), sums ? m->g : 0);
}

static double time_binomial(const struct weft_plan_question *q, const struct model *m)
{
    if (q->kind == WEFT_COLL_BROADCAST) return time_direct(q, m);
    /* gather, scatter */
    if (q->kind != WEFT_COLL_REDUCE)
        return m->log2 * m->a + link_time(m, 2 * m->log2, (m->p - 1) * m->n) + m->p * m->n / 2 * m->d;
    double hops = m->log2 + 1; /* the root may be a rank other than 0 */
    return hops * m->a + link_time(m, hops * chunk_count(m->n, m->chunk), m->log2 * m->n * m->wide) +
           m->log2 * m->n * m->wide * m->g;
}

/* reduce_scatter, all_gather: transfers between hosts and inside hosts overlap, one stage for each host.
 * Short pieces wait for the window, which holds about one stage. */
static double time_hierarchy_pieces(const struct weft_plan_question *q, const struct model *m)
{
    bool sums = q->kind == WEFT_COLL_REDUCE_SCATTER;
    double others = m->host_ranks - 1,
           chunk = sums ? min_of(m->chunk, m->chunk * (double)m->window / (2 * (m->host_ranks + m->hosts)))
                        : m->chunk;
    double chunks = chunk_count(m->n, chunk), steps = m->hosts * (2 * others + 3) * chunks,
           waves = max_of(1, steps / (double)m->window * (sums ? 1 : 0.5));
    double local_o = max_of(INJECT_NS_MIN, m->local_a * INJECT_SHARE);
    double across = (m->hosts - 1) * (chunks * m->o + m->n * (sums ? m->wide : 1) * m->b * m->meet);
    double inside = m->hosts * others *
                    (chunks * (m->o < local_o ? m->o : local_o) + m->n * (m->local_b + (sums ? m->g : 0)));
    return waves * message_time(m, min_of(m->n, chunk)) + 2 * m->local_a + max_of(across, inside) +
           (sums ? m->hosts * m->n * m->wide * m->g : 0);
}

/* Weighted lanes end at the same time; equal lanes wait for the slowest. Returns the ratio. */
static double lane_speedup(const struct weft_plan_hosts *hosts)
{
    uint32_t least = UINT32_MAX;
    if (!hosts->lane_weights) return 1;
    for (uint32_t l = 0; l < hosts->lanes; l++) {
        uint32_t host_ranks = hosts->lane_weights[l + 1] - hosts->lane_weights[l];
        if (host_ranks > 0 && host_ranks < least) least = host_ranks;
    }
    return (double)least * hosts->lanes / hosts->lane_weights[hosts->lanes];
}

/* Hosts in several sites, each with one line to the others: how often a plan passes the line. Concurrent
 * transfers share a line that is slower than the links of the hosts. */
static struct model adjust_for_sites(const struct weft_plan_question *q, const struct model *m,
                                     double of_site, enum weft_plan_id plan)
{
    const struct weft_plan_hosts *hosts = q->hosts;
    struct model flat = *m;
    if (hosts->sites < 2 || hosts->near_bytes_per_second == 0) return flat;
    double sites = hosts->sites, near_a = (double)hosts->near_latency_ns,
           near_b = 1e9 / (double)hosts->near_bytes_per_second;
    double log2_sites = log2_up(hosts->sites), log2_near = max_of(0, m->log2 - log2_sites),
           near = (of_site - 1) / (m->p - 1);
    double line = m->b * (near_b < m->b / 2 ? of_site : 1);
    bool tree = plan == WEFT_PLAN_BINOMIAL || (plan == WEFT_PLAN_DIRECT && q->kind == WEFT_COLL_BROADCAST);
    if (plan == WEFT_PLAN_RING || plan == WEFT_PLAN_CHAIN) {
        double across = plan == WEFT_PLAN_RING ? sites / m->p : (sites - 1) / (m->p - 1);
        flat.a = m->a * across + near_a * (1 - across);
        flat.line = m->a;
    } else if (tree) {
        flat.a = (log2_sites * m->a + log2_near * near_a) / m->log2;
        flat.b = (log2_sites * m->b + log2_near * near_b) / m->log2;
        flat.line = m->a; /* the broadcast of the hierarchy waits for its header check */
    } else if (plan == WEFT_PLAN_DOUBLING && hosts->sites_aligned) {
        flat.a = (log2_sites * m->a + log2_near * near_a) / m->log2;
        flat.b = (log2_sites * line + log2_near * near_b) / m->log2;
        flat.line = m->a;
    } else if (plan == WEFT_PLAN_HALVING && hosts->sites_aligned) {
        flat.near_rounds = log2_near, flat.near_a = near_a, flat.near_b = near_b;
        flat.b = line;
    } else if (plan == WEFT_PLAN_DIRECT && q->kind != WEFT_COLL_BARRIER) {
        flat.b = line * (1 - near) + near_b * near;
    }
    return flat;
}

/* The lanes of a host together carry the vector once. Around it are two exchanges inside the host. */
static double time_hierarchy(const struct weft_plan_question *q, const struct model *m)
{
    if (q->kind == WEFT_COLL_REDUCE_SCATTER || q->kind == WEFT_COLL_ALL_GATHER)
        return time_hierarchy_pieces(q, m);
    struct model across = *m, local = *m;
    struct weft_plan_question hosts = *q;
    hosts.ranks = q->hosts->count;
    across.p = m->hosts;
    across.log2 = log2_up(hosts.ranks);
    across.n = m->n / m->host_ranks;
    across.b = m->b * m->meet * lane_speedup(q->hosts);
    bool shorts = hosts.ranks == 2 || across.n <= 4096.0 * (double)q->elem_bytes,
         sums = q->kind == WEFT_COLL_ALL_REDUCE;
    enum weft_plan_id between_hosts = !sums    ? WEFT_PLAN_BINOMIAL
                                      : shorts ? WEFT_PLAN_DOUBLING
                                               : WEFT_PLAN_HALVING;
    across = adjust_for_sites(q, &across, q->hosts->site_ranks / m->host_ranks, between_hosts);
    local.a = m->local_a, local.b = m->local_b;
    local.o = max_of(INJECT_NS_MIN, m->local_a * INJECT_SHARE);
    double chunk = sums ? m->chunk * max_of(1, (double)m->window / (2 * m->host_ranks)) : m->chunk;
    double chunks = chunk_count(across.n, chunk < m->chunk ? chunk : m->chunk), others = m->host_ranks - 1;
    double inside = 2 * message_time(&local, min_of(across.n, m->chunk)) +
                    link_time(&local, 2 * others * chunks, 2 * others * across.n) +
                    (sums ? others * across.n * (m->g + 2 * m->d) : 0);
    if (!sums) return inside + across.line + time_direct(&hosts, &across);
    double between = shorts ? time_doubling(&hosts, &across) : time_halving(&hosts, &across);
    /* While one chunk is inside the hosts the previous one is between them: half of the shorter phase is
     * hidden (constant from weft sim). */
    return max_of(inside, between) + min_of(inside, between) * (0.5 + 0.5 / chunks);
}

/* A plan without host levels on hosts with several ranks: the share of its messages that stay inside a
 * host, and the ranks that send through one link at the same time. */
static struct model adjust_for_hosts(const struct weft_plan_question *q, const struct model *m,
                                     enum weft_plan_id plan)
{
    struct model flat = *m;
    if (plan == WEFT_PLAN_HIERARCHY) return flat;
    if (q->hosts && q->hosts->sites > 1) return adjust_for_sites(q, m, q->hosts->site_ranks, plan);
    if (m->host_ranks <= 1) return flat;
    double log2_hosts = log2_up(q->hosts->count), log2_share = max_of(0, m->log2 - log2_hosts),
           near = (m->host_ranks - 1) / (m->p - 1);
    /* their order is host by host */
    bool in_line = plan == WEFT_PLAN_RING || plan == WEFT_PLAN_CHAIN || plan == WEFT_PLAN_DOUBLE_TREE;
    bool by_distance =
        plan == WEFT_PLAN_DOUBLING || plan == WEFT_PLAN_HALVING || plan == WEFT_PLAN_BINOMIAL ||
        plan == WEFT_PLAN_PAT ||
        (plan == WEFT_PLAN_DIRECT && (q->kind == WEFT_COLL_BROADCAST || q->kind == WEFT_COLL_BARRIER));
    if (!q->hosts->has_consecutive_ranks && !in_line) {
        flat.b *= m->host_ranks;
    } else if (by_distance) {
        flat.a = (log2_hosts * m->a + log2_share * m->local_a) / m->log2;
        /* near halves are long, far ones short */
        if (plan == WEFT_PLAN_HALVING && q->hosts->subtrees) flat.b += m->local_b;
        else if (plan == WEFT_PLAN_DOUBLING || plan == WEFT_PLAN_HALVING)
            flat.b = (log2_hosts * m->b * m->meet + log2_share * m->local_b) / m->log2;
        /* far links carry least (constant from weft sim) */
        else if (plan == WEFT_PLAN_PAT) flat.b *= 1 + 0.3 * (m->host_ranks - 1);
        else flat.b = (log2_hosts * m->b + log2_share * m->local_b) / m->log2;
    } else if (in_line) { /* most neighbours share a host; the slower link sets the pace */
        double hops_across = m->hosts / m->p;
        flat.a = m->a * hops_across + m->local_a * (1 - hops_across);
        flat.b = max_of(m->b, m->local_b);
    } else {
        flat.b = m->b * m->meet * (1 - near) + m->local_b * near;
    }
    return flat;
}

typedef double (*time_fn)(const struct weft_plan_question *q, const struct model *m);
static const time_fn times[WEFT_PLAN_COUNT] = {
    [WEFT_PLAN_DIRECT] = time_direct,
    [WEFT_PLAN_RING] = time_ring,
    [WEFT_PLAN_DOUBLING] = time_doubling,
    [WEFT_PLAN_HALVING] = time_halving_of_ranks,
    [WEFT_PLAN_DOUBLE_TREE] = time_double_tree,
    [WEFT_PLAN_BRUCK] = time_bruck,
    [WEFT_PLAN_PAT] = time_pat,
    [WEFT_PLAN_HIERARCHY] = time_hierarchy,
    [WEFT_PLAN_CHAIN] = time_chain,
    [WEFT_PLAN_BINOMIAL] = time_binomial,
};

/* Ranks of one host: message costs measured with the plans themselves. */
static void apply_measured_messages(const struct weft_plan_question *q, enum weft_plan_id plan,
                                    struct model *m)
{
    const struct weft_link_runs *runs = &q->cost->runs;
    double crowd = cost_messages_oversubscription(runs, q->ranks);
    m->a = crowd * runs->trip_ns, m->o = crowd * runs->inject_ns;
    m->b = crowd * cost_messages_byte_ns(runs, q, plan);
}

static struct model model_of(const struct weft_plan_question *q, enum weft_plan_id plan)
{
    struct model m = {
        .p = q->ranks, .n = (double)q->bytes, .a = LATENCY_NS, .b = BYTE_NS, .g = SUM_NS, .d = PASS_NS};
    if (q->cost && q->cost->bytes_per_second > 0) {
        m.a = (double)q->cost->latency_ns;
        m.b = 1e9 / (double)q->cost->bytes_per_second;
    }
    m.o = m.a * INJECT_SHARE;
    if (m.o > INJECT_NS_MAX) m.o = INJECT_NS_MAX;
    if (m.o < INJECT_NS_MIN) m.o = INJECT_NS_MIN;
    m.crowd = INCAST;
    m.eager = INFINITY;
    if (q->cost && q->cost->inject_ns) m.o = q->cost->inject_ns;
    if (q->cost && q->cost->sum_ps) m.g = q->cost->sum_ps * 1e-3;
    if (q->cost && q->cost->pass_ps) m.d = q->cost->pass_ps * 1e-3;
    if (q->cost && q->cost->incast_milli) m.crowd = q->cost->incast_milli * 1e-3;
    if (q->cost && q->cost->eager_bytes) m.eager = (double)q->cost->eager_bytes;
    m.wide = q->wide_bytes > q->elem_bytes ? (double)q->wide_bytes / (double)q->elem_bytes : 1;
    m.chunk = (double)plan_link_chunk(plan, q->cost, q->chunk_bytes ? q->chunk_bytes : WEFT_COLL_CHUNK_BYTES,
                                      q->message_bytes);
    m.window = q->window ? q->window : 16;
    m.log2 = log2_up(q->ranks);
    bool local_known = q->local_cost && q->local_cost->bytes_per_second > 0,
         several = q->hosts && q->hosts->count > 1;
    m.local_a = local_known              ? (double)q->local_cost->latency_ns
                : m.a < LOCAL_LATENCY_NS ? m.a
                                         : LOCAL_LATENCY_NS;
    m.local_b = local_known           ? 1e9 / (double)q->local_cost->bytes_per_second
                : m.b < LOCAL_BYTE_NS ? m.b
                                      : LOCAL_BYTE_NS;
    m.hosts = several ? q->hosts->count : 1;
    m.host_ranks = several ? q->hosts->lanes : 1;
    m.meet = several && q->hosts->rails > 1 ? max_of(1, m.host_ranks / q->hosts->rails) : m.host_ranks;
    if (q->cost && q->cost->runs.ranks > 0 && !several) apply_measured_messages(q, plan, &m);
    return m;
}

static bool is_candidate(const struct weft_plan_question *q, enum weft_plan_id plan)
{
    if (!weft_plan_supports(plan, q->kind) || !times[plan]) return false;
    /* otherwise the hierarchy is taken only if it is forced */
    bool levels = q->hosts && q->hosts->count > 1 && q->hosts->lanes > 1;
    if (plan == WEFT_PLAN_HIERARCHY && !levels && !(q->hosts && q->forced_plan == plan)) return false;
    return (!q->reproducible || weft_plan_reproducible(plan, q->hosts)) &&
           (!q->unequal || weft_plan_supports_unequal(plan, q->kind));
}

bool weft_plan_uses_slice_weights(const struct weft_plan_question *q)
{
    struct model m = model_of(q, WEFT_PLAN_DIRECT);
    return can_use_slice_weights(q) && time_weighted_slices(q, &m) < time_equal_slices(&m);
}

enum weft_plan_id weft_plan_choose(const struct weft_plan_question *q, uint64_t times_ns_out[WEFT_PLAN_COUNT])
{
    enum weft_plan_id best = WEFT_PLAN_DIRECT;
    double best_ns = -1;
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) {
        bool fit = is_candidate(q, plan);
        struct model m = model_of(q, plan), of_plan = fit ? adjust_for_hosts(q, &m, plan) : m;
        double ns = fit && q->ranks > 1 ? times[plan](q, &of_plan) : 0;
        if (times_ns_out) times_ns_out[plan] = !fit ? UINT64_MAX : ns < 9e18 ? (uint64_t)ns : UINT64_MAX - 1;
        if (!fit || (best_ns >= 0 && ns >= best_ns)) continue;
        best = plan;
        best_ns = ns;
    }
    if (times_ns_out) times_ns_out[0] = UINT64_MAX;
    bool other_order =
        q->keeps_order && q->forced_plan != best &&
        !(weft_plan_reproducible(q->forced_plan, q->hosts) && weft_plan_reproducible(best, q->hosts));
    return is_candidate(q, q->forced_plan) && !other_order ? q->forced_plan : best;
}

size_t weft_plan_explain(const struct weft_plan_question *q, char *out, size_t out_bytes)
{
    uint64_t ns[WEFT_PLAN_COUNT];
    enum weft_plan_id chosen = weft_plan_choose(q, ns);
    struct model m = model_of(q, chosen);
    bool known = q->cost && q->cost->bytes_per_second > 0;
    size_t used = 0;
    int n =
        snprintf(out, out_bytes, "%s %" PRIu64 " B, %u ranks: %s%s;", weft_coll_kind_name(q->kind), q->bytes,
                 q->ranks, weft_plan_name(chosen), chosen == q->forced_plan ? " (forced)" : "");
    used = n < 0 ? 0 : (size_t)n;
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) {
        if (ns[plan] == UINT64_MAX || used >= out_bytes) continue;
        n = snprintf(out + used, out_bytes - used, " %s %.1f us,", weft_plan_name(plan),
                     (double)ns[plan] * 1e-3);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used >= out_bytes) return used;
    n = snprintf(out + used, out_bytes - used,
                 " with %s latency %.1f us, %.2f GB/s; a message handed over %.2f us, a byte added %.3f ns, "
                 "passed over %.3f ns, incast %.1f %%%s",
                 known ? "measured" : "assumed", m.a * 1e-3, 1 / m.b, m.o * 1e-3, m.g, m.d, m.crowd * 100,
                 q->reproducible ? ", reproducible asked" : "");
    used += n < 0 ? 0 : (size_t)n;
    if (used < out_bytes && q->hosts && q->hosts->number) {
        bool cut = weft_plan_uses_slice_weights(q), turned = !q->hosts->ring_is_identity;
        n = snprintf(out + used, out_bytes - used, "%s%s%s", turned || cut ? "; by measured links:" : "",
                     turned ? " the round" : "", cut ? " slices of direct" : "");
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used >= out_bytes || m.host_ranks <= 1) return used;
    n = snprintf(out + used, out_bytes - used, "; %u hosts of up to %u ranks, inside %s %.1f us, %.2f GB/s",
                 q->hosts->count, q->hosts->lanes,
                 q->local_cost && q->local_cost->bytes_per_second ? "measured" : "assumed", m.local_a * 1e-3,
                 1 / m.local_b);
    return used + (n < 0 ? 0 : (size_t)n);
}
