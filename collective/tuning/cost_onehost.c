/* cost_onehost.c - cost model of the one-host plan.
 *
 *   copy-in    W h + t B s          W  one synchronization of all ranks     S  fixed cost of slices
 *   in slices  (W + S) h + t T c    s  per byte read from a slot             c  per byte loaded or stored
 *
 * B: bytes that a rank reads. T: bytes that it loads and stores. If p ranks share P cores, each core serves t
 * = ceil(p/P) ranks, and a synchronization takes h = 2 p/P log2(p) rounds. c is the rate of the private
 * caches while the buffers of all ranks, F = pT, fit into them; then of the last-level cache, then of memory.
 * Between half and four times a capacity c is interpolated by the logarithm. Sums with non-temporal stores
 * (nt_store_limit.c) have a rate of their own until the last-level cache is full. All figures are measured by
 * `weft bench calibrate`; weft_onehost_model_fit derives them. Pure. */
#include "collective/plan/algorithm.h"

#include <math.h>
#include <stdio.h>

/* If nothing was measured. */
static const struct weft_link_memory memory_assumed = {.flag_round_ns = 400,
                                                       .slices_overhead_ns = 100,
                                                       .copyin_ps = 100,
                                                       .private_cache_ps = 12,
                                                       .last_cache_ps = 50,
                                                       .private_cache_kib = 1024,
                                                       .last_cache_kib = 24576,
                                                       .nt_store_ps = 40};

/* bytes of the measured pass over memory: a last-level cache of this size would have served it */
#define MEASURED_PASS_BYTES 134217728.0

static double larger(double x, double y)
{
    return x > y ? x : y;
}
static double smaller(double x, double y)
{
    return x < y ? x : y;
}

/* The terms of one operation, in nanoseconds. */
struct terms {
    double sync, slices, bytes; /* slices: 0 for copy-in */
    double moved, byte;         /* bytes is ranks_per_core * moved * byte */
};

static bool is_oversubscribed(double ranks, uint32_t processors)
{
    return processors > 0 && ranks > processors;
}
static double ranks_per_core(double ranks, uint32_t processors)
{
    return is_oversubscribed(ranks, processors) ? ceil(ranks / processors) : 1;
}
static double sync_rounds(double ranks, uint32_t processors)
{
    return is_oversubscribed(ranks, processors) ? 2 * ranks / processors * log2(ranks) : 1;
}

/* The part of all bytes that caches of this capacity miss. */
static double missed(double bytes, double cached_capacity)
{
    return larger(0, smaller(1, (1 + log2(larger(1, bytes) / cached_capacity)) / 3));
}

/* Capacity of the private caches of the cores in use, in bytes. */
static double core_cache_share_bytes(double private_cache_kib, double ranks, uint32_t processors)
{
    return private_cache_kib * 1024 *
           (is_oversubscribed(ranks, processors) ? processors * (processors / ranks) : ranks);
}

/* Bytes that each rank loads and stores. n: bytes of the vector, or of one piece. */
static double moved_bytes(enum weft_coll_kind kind, double p, double n)
{
    switch (kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_BROADCAST: return n;
    case WEFT_COLL_REDUCE: return (1 + 1 / p) * n;
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER: return (p + 1) * n;
    case WEFT_COLL_ALL_TO_ALL: return 2 * p * n;
    default: return 2 * n;
    }
}

/* Bytes read by the rank that reads most. */
static double read_bytes(enum weft_coll_kind kind, double p, double n)
{
    bool of_root = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER;
    return kind == WEFT_COLL_BARRIER ? 0 : of_root ? n : (p - 1) * n;
}

/* The longest contribution of a rank. */
static double copyin_bytes(enum weft_coll_kind kind, double p, double n)
{
    bool pieces =
        kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
    return kind == WEFT_COLL_BARRIER ? 0 : pieces ? p * n : n;
}

/* Older tables have no cache sizes. */
static struct weft_link_memory memory_of(const struct weft_plan_question *q)
{
    struct weft_link_memory memory =
        q->cost && q->cost->memory.flag_round_ns ? q->cost->memory : memory_assumed;
    if (!memory.private_cache_kib) memory.private_cache_kib = memory_assumed.private_cache_kib;
    if (!memory.last_cache_kib) memory.last_cache_kib = memory_assumed.last_cache_kib;
    return memory;
}

static bool is_sum(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER;
}

/* Capacity of the private caches of the cores in use. */
static uint64_t core_cache_bytes(double private_cache_kib, double ranks, uint32_t processors)
{
    return (uint64_t)(private_cache_kib * 1024 * (is_oversubscribed(ranks, processors) ? processors : ranks));
}

/* c, in ns, if the buffers of all ranks have (all,) bytes. */
static double byte_ns(const struct weft_plan_question *q, const struct weft_link_memory *memory, double all,
                      uint32_t processors)
{
    double last = memory->last_cache_kib * 1024.0;
    double cached = memory->private_cache_ps * 1e-3, passed = larger(cached, memory->last_cache_ps * 1e-3),
           uncached = passed;
    if (q->cost && q->cost->pass_ps && last < MEASURED_PASS_BYTES)
        uncached = larger(passed, q->cost->pass_ps * 1e-3 / 2);
    if (is_sum(q->kind) && memory->nt_store_ps &&
        all >= (double)plan_onehost_nt_sum_bytes(
                   (uint64_t)last, core_cache_bytes(memory->private_cache_kib, q->ranks, processors))) {
        double nontemporal = memory->nt_store_ps * 1e-3;
        return nontemporal + larger(0, uncached - nontemporal) * larger(0, smaller(1, log2(all / last) / 2));
    }
    return cached +
           (passed - cached) *
               missed(all, core_cache_share_bytes(memory->private_cache_kib, q->ranks, processors)) +
           (uncached - passed) * missed(all, last);
}

static struct terms copyin_terms(const struct weft_plan_question *q, const struct weft_link_memory *memory,
                                 uint32_t processors)
{
    double p = q->ranks, read = read_bytes(q->kind, p, (double)q->bytes), copyin = memory->copyin_ps * 1e-3;
    return (struct terms){.sync = memory->flag_round_ns * sync_rounds(p, processors),
                          .bytes = ranks_per_core(p, processors) * read * copyin,
                          .moved = read,
                          .byte = copyin};
}
static struct terms direct_terms(const struct weft_plan_question *q, const struct weft_link_memory *memory,
                                 uint32_t processors)
{
    double p = q->ranks, moved = moved_bytes(q->kind, p, (double)q->bytes),
           byte = byte_ns(q, memory, moved * p, processors), h = sync_rounds(p, processors);
    return (struct terms){.sync = memory->flag_round_ns * h,
                          .slices = memory->slices_overhead_ns * h,
                          .bytes = ranks_per_core(p, processors) * moved * byte,
                          .moved = moved,
                          .byte = byte};
}
static double sum_of_terms(const struct terms *terms)
{
    return terms->sync + terms->slices + terms->bytes;
}

/* Copy-in up to the limit, slices beyond. The limit is set elsewhere (copyin_limit.c), so copy-in is capped
 * at twice the length in slices, and slices cost at least as much as the longest copy-in: a longer vector is
 * never cheaper. */
static struct terms terms_of(const struct weft_plan_question *q, uint32_t processors)
{
    const struct weft_link_memory memory = memory_of(q);
    struct weft_plan_question last = *q, twice = *q;
    double copyin_limit =
        (double)plan_onehost_copyin_limit_direct(q->kind, q->ranks, is_oversubscribed(q->ranks, processors));
    last.bytes = (uint64_t)(copyin_limit / larger(1, copyin_bytes(q->kind, q->ranks, 1)));
    twice.bytes = 2 * last.bytes;
    struct terms direct = direct_terms(q, &memory, processors),
                 cap = direct_terms(&twice, &memory, processors);
    bool is_copyin = q->kind == WEFT_COLL_BARRIER || (!q->unequal && q->bytes <= last.bytes);
    struct terms copyin = copyin_terms(is_copyin ? q : &last, &memory, processors);
    if (q->kind != WEFT_COLL_BARRIER) copyin.bytes = smaller(copyin.bytes, sum_of_terms(&cap) - copyin.sync);
    if (is_copyin) return copyin;
    if (!q->unequal) direct.slices += larger(0, sum_of_terms(&copyin) - sum_of_terms(&direct));
    return direct;
}

uint64_t weft_onehost_model_ns(const struct weft_plan_question *q, uint32_t processors)
{
    struct terms terms = terms_of(q, processors);
    double ns = q->ranks < 2 ? 0 : sum_of_terms(&terms);
    return ns < 9e18 ? (uint64_t)ns : UINT64_MAX - 1;
}

size_t weft_onehost_model_explain(const struct weft_plan_question *q, uint32_t processors, char *out,
                                  size_t out_bytes)
{
    struct terms terms = terms_of(q, processors);
    bool known = q->cost && q->cost->memory.flag_round_ns;
    double us = 1e-3 * (double)weft_onehost_model_ns(q, processors);
    int n = snprintf(out, out_bytes,
                     "one-host %.2f us, in memory that all ranks map (%s: words %.2f us, slices %.2f us, a "
                     "rank's %.0f B %.2f us by %.4f ns)",
                     us, known ? "measured" : "assumed", terms.sync * 1e-3, terms.slices * 1e-3, terms.moved,
                     terms.bytes * 1e-3, terms.byte);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- calibration ---- */
/* Lengths of all_reduces: the shortest and the longest copy-in, two that private caches hold, one that they
 * do not, one with non-temporal stores. Consecutive lengths in slices differ by a factor of at least four, so
 * that the fixed cost can be separated. */
uint64_t weft_onehost_sample_bytes(enum weft_onehost_sample which, uint32_t ranks, uint32_t processors,
                                   const struct weft_link_memory *caches)
{
    /* an input and an output of each rank */
    double cached_capacity =
        core_cache_share_bytes(caches->private_cache_kib ? caches->private_cache_kib
                                                         : memory_assumed.private_cache_kib,
                               ranks, processors) /
        (2.0 * ranks);
    double copyin = (double)plan_onehost_copyin_limit_direct(WEFT_COLL_ALL_REDUCE, ranks,
                                                             is_oversubscribed(ranks, processors)),
           cached = larger(8 * copyin, cached_capacity / 4), bytes = 64;
    double nontemporal =
        (double)plan_onehost_nt_sum_bytes(
            (caches->last_cache_kib ? caches->last_cache_kib : memory_assumed.last_cache_kib) * 1024ull,
            core_cache_bytes(caches->private_cache_kib ? caches->private_cache_kib
                                                       : memory_assumed.private_cache_kib,
                             ranks, processors)) /
        (2.0 * ranks);
    switch (which) {
    case WEFT_ONEHOST_SAMPLE_SYNC: break;
    case WEFT_ONEHOST_SAMPLE_COPYIN: bytes = copyin; break;
    case WEFT_ONEHOST_SAMPLE_SLICES: bytes = 2 * copyin; break;
    case WEFT_ONEHOST_SAMPLE_CACHED: bytes = cached; break;
    case WEFT_ONEHOST_SAMPLE_UNCACHED:
        bytes = larger(2 * cached, smaller(larger(4 * cached, cached_capacity * 8), nontemporal - 64));
        break;
    default: bytes = larger(4 * cached, 2 * nontemporal); break;
    }
    return (uint64_t)bytes & ~(uint64_t)63;
}

/* a table has nine digits */
static uint32_t rounded(double value)
{
    return value < 1 ? 1 : value < 1e9 - 1 ? (uint32_t)(value + 0.5) : 999999999u;
}

#define CORE_CACHE_SPEEDUP_MAX 6 /* upper bound of the speed of private caches over the last-level cache */

/* Fixed cost, and rate inside and outside of private caches. */
struct direct {
    double fixed, cached, passed;
};

/* Time i is fixed + x[i] (cached + m[i] (passed - cached)); m is the missed part. If the three lengths do not
 * separate cached from passed, or contradict what caches can do, both are the slope from the shortest to the
 * longest. */
static struct direct direct_fit(const double times[3], const double x[3], const double m[3])
{
    double near_elems = x[1] - x[0], far_elems = x[2] - x[0], near_missed = x[1] * m[1] - x[0] * m[0],
           far_missed = x[2] * m[2] - x[0] * m[0];
    double determinant = near_elems * far_missed - far_elems * near_missed,
           mean = larger(1e-3, (times[2] - times[0]) / far_elems), cached = mean, more = 0;
    if (fabs(determinant) > near_elems * far_elems / 50) {
        cached = ((times[1] - times[0]) * far_missed - (times[2] - times[0]) * near_missed) / determinant;
        more = ((times[2] - times[0]) * near_elems - (times[1] - times[0]) * far_elems) / determinant;
    }
    if (more < 0 || cached < (cached + more) / CORE_CACHE_SPEEDUP_MAX) cached = mean, more = 0;
    return (struct direct){
        .fixed = times[0] - x[0] * (cached + m[0] * more), .cached = cached, .passed = cached + more};
}

void weft_onehost_model_fit(uint32_t ranks, uint32_t processors, const double times_ns[WEFT_ONEHOST_SAMPLES],
                            struct weft_link_memory *memory)
{
    double n[WEFT_ONEHOST_SAMPLES], x[3], m[3], h = sync_rounds(ranks, processors),
                                                t = ranks_per_core(ranks, processors);
    for (int i = 0; i < WEFT_ONEHOST_SAMPLES; i++)
        n[i] = (double)weft_onehost_sample_bytes((enum weft_onehost_sample)i, ranks, processors, memory);
    double cached_capacity = core_cache_share_bytes(
        memory->private_cache_kib ? memory->private_cache_kib : memory_assumed.private_cache_kib, ranks,
        processors);
    for (int i = 0; i < 3; i++)
        x[i] = 2 * t * n[WEFT_ONEHOST_SAMPLE_SLICES + i],
        m[i] = missed(2.0 * ranks * n[WEFT_ONEHOST_SAMPLE_SLICES + i], cached_capacity);
    struct direct direct = direct_fit(times_ns + WEFT_ONEHOST_SAMPLE_SLICES, x, m);
    double copyin = (times_ns[WEFT_ONEHOST_SAMPLE_COPYIN] - times_ns[WEFT_ONEHOST_SAMPLE_SYNC]) /
                    (t * (ranks - 1) * (n[WEFT_ONEHOST_SAMPLE_COPYIN] - n[WEFT_ONEHOST_SAMPLE_SYNC]));
    double sync = larger(1, times_ns[WEFT_ONEHOST_SAMPLE_SYNC] -
                                t * (ranks - 1) * n[WEFT_ONEHOST_SAMPLE_SYNC] * larger(copyin, 0));
    memory->flag_round_ns = rounded(sync / h);
    memory->slices_overhead_ns = rounded((direct.fixed - sync) / h);
    memory->copyin_ps = rounded(1e3 * larger(copyin, direct.cached));
    memory->private_cache_ps = rounded(1e3 * direct.cached);
    memory->last_cache_ps = rounded(1e3 * direct.passed);
    memory->nt_store_ps = rounded(1e3 * (times_ns[WEFT_ONEHOST_SAMPLE_NT] - direct.fixed) /
                                  (2 * t * n[WEFT_ONEHOST_SAMPLE_NT]));
}
