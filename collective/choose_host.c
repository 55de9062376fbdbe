/* choose_host.c - what the one-host plan takes: its part of the model of cost (choose.c has the others').
 *
 *     in the announcements   W h + t B s           W  a round of words               S  what slices take beyond it and their bytes
 *     in slices              (W + S) h + t T c     s  per byte of another's words    c  per byte loaded or stored in buffers
 *
 * B and T are the bytes that a rank hears, and those that it loads and stores. Where p ranks outnumber the P processors each of those has
 * t = ceil(p/P) of them to serve, and a round of words is h = 2 p/P log2(p) rounds: a rank that waits yields, and what it waits for
 * comes after some of the others had their turn.
 *
 * c is g while the buffers of all ranks, F = pT, fit into the own caches of the processors that work; where ranks take turns there, each of those
 * holds P/p as much of what is needed next. Buffers begin to miss at half of what caches hold, miss always at four times that, and in between by the
 * logarithm; then c is d, what the last cache gives, and beyond that one, likewise, what memory gives: half of what a pass takes that goes through the
 * caches, as was measured of 16 to 64 MiB. Sums are stored past the caches from a length on (choose_past.c) at which the last one still
 * holds all: then c is a rate of its own, e, until it no longer does.
 *
 * All seven figures are measured by all_reduces of a few lengths (`weft bench calibrate`), of which weft_plan_one_host_fit makes them: whatever
 * becomes faster in this plan, the model follows. Pure. */
#include "collective/plan.h"

#include <math.h>
#include <stdio.h>

/* Where nothing was measured. */
static const struct weft_link_memory assumed = {.words_ns = 400, .slices_ns = 100, .said_ps = 100, .cached_ps = 12, .passed_ps = 50, .core_kib = 1024, .last_kib = 24576, .past_ps = 40};

#define COPIED_BYTES 134217728.0 /* a pass over memory was measured with so many: a last cache that holds them gave it, too */

static double larger(double x, double y) { return x > y ? x : y; }
static double shorter(double x, double y) { return x < y ? x : y; }

/* The terms of one operation, in nanoseconds. */
struct terms {
    double words, slices, bytes; /* slices: 0 where all is in the announcements */
    double moved, byte;          /* bytes is turns * moved * byte */
};

static bool is_crowded(double ranks, uint32_t processors) { return processors > 0 && ranks > processors; }
static double turns(double ranks, uint32_t processors) { return is_crowded(ranks, processors) ? ceil(ranks / processors) : 1; }
static double rounds(double ranks, uint32_t processors) { return is_crowded(ranks, processors) ? 2 * ranks / processors * log2(ranks) : 1; }

/* The part of all bytes that caches of (held,) do not have when they are needed again. */
static double missed(double bytes, double held) { return larger(0, shorter(1, (1 + log2(larger(1, bytes) / held)) / 3)); }

/* What the own caches of those processors that work hold, in bytes. */
static double held_bytes(double core_kib, double ranks, uint32_t processors)
{
    return core_kib * 1024 * (is_crowded(ranks, processors) ? processors * (processors / ranks) : ranks);
}

/* Bytes that each rank loads and stores. n: of the vector; of operations that have pieces, of one piece. */
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

/* Bytes that the one that hears most of the others' words takes out of them. */
static double heard_bytes(enum weft_coll_kind kind, double p, double n)
{
    bool of_root = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER;
    return kind == WEFT_COLL_BARRIER ? 0 : of_root ? n : (p - 1) * n;
}

/* Bytes that a rank says, at most. */
static double said_bytes(enum weft_coll_kind kind, double p, double n)
{
    bool pieces = kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
    return kind == WEFT_COLL_BARRIER ? 0 : pieces ? p * n : n;
}

/* A table made before these were measured has none of them. */
static struct weft_link_memory memory_of(const struct weft_plan_question *q)
{
    struct weft_link_memory memory = q->cost && q->cost->memory.words_ns ? q->cost->memory : assumed;
    if (!memory.core_kib) memory.core_kib = assumed.core_kib;
    if (!memory.last_kib) memory.last_kib = assumed.last_kib;
    return memory;
}

static bool is_sum(enum weft_coll_kind kind) { return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER; }

/* What the own caches of the processors that work hold. */
static uint64_t own_bytes(double core_kib, double ranks, uint32_t processors) { return (uint64_t)(core_kib * 1024 * (is_crowded(ranks, processors) ? processors : ranks)); }

/* c of a byte, all ranks' buffers together (all,) bytes. */
static double byte_ns(const struct weft_plan_question *q, const struct weft_link_memory *memory, double all, uint32_t processors)
{
    double last = memory->last_kib * 1024.0;
    double cached = memory->cached_ps * 1e-3, passed = larger(cached, memory->passed_ps * 1e-3), beyond = passed;
    if (q->cost && q->cost->pass_ps && last < COPIED_BYTES) beyond = larger(passed, q->cost->pass_ps * 1e-3 / 2);
    if (is_sum(q->kind) && memory->past_ps && all >= (double)plan_one_host_sums_past((uint64_t)last, own_bytes(memory->core_kib, q->ranks, processors))) {
        double past = memory->past_ps * 1e-3;
        return past + larger(0, beyond - past) * larger(0, shorter(1, log2(all / last) / 2));
    }
    return cached + (passed - cached) * missed(all, held_bytes(memory->core_kib, q->ranks, processors)) + (beyond - passed) * missed(all, last);
}

static struct terms in_announcements(const struct weft_plan_question *q, const struct weft_link_memory *memory, uint32_t processors)
{
    double p = q->ranks, heard = heard_bytes(q->kind, p, (double)q->bytes), said = memory->said_ps * 1e-3;
    return (struct terms){.words = memory->words_ns * rounds(p, processors), .bytes = turns(p, processors) * heard * said, .moved = heard, .byte = said};
}
static struct terms in_slices(const struct weft_plan_question *q, const struct weft_link_memory *memory, uint32_t processors)
{
    double p = q->ranks, moved = moved_bytes(q->kind, p, (double)q->bytes), byte = byte_ns(q, memory, moved * p, processors), h = rounds(p, processors);
    return (struct terms){.words = memory->words_ns * h, .slices = memory->slices_ns * h, .bytes = turns(p, processors) * moved * byte, .moved = moved, .byte = byte};
}
static double sum_of_terms(const struct terms *terms) { return terms->words + terms->slices + terms->bytes; }

/* Up to what announcements hold all is said, and beyond nothing. That as much is said as pays is measured elsewhere (choose_said.c): no more is taken for
 * it than for twice as much in slices, and no less for the first lengths in slices than for the last one that is said. So longer is never cheaper. */
static struct terms terms_of(const struct weft_plan_question *q, uint32_t processors)
{
    const struct weft_link_memory memory = memory_of(q);
    struct weft_plan_question last = *q, twice = *q;
    double most = (double)plan_one_host_said_mapped(q->kind, q->ranks, is_crowded(q->ranks, processors));
    last.bytes = (uint64_t)(most / larger(1, said_bytes(q->kind, q->ranks, 1)));
    twice.bytes = 2 * last.bytes;
    struct terms sliced = in_slices(q, &memory, processors), cap = in_slices(&twice, &memory, processors);
    bool is_said = q->kind == WEFT_COLL_BARRIER || (!q->unequal && q->bytes <= last.bytes);
    struct terms said = in_announcements(is_said ? q : &last, &memory, processors);
    if (q->kind != WEFT_COLL_BARRIER) said.bytes = shorter(said.bytes, sum_of_terms(&cap) - said.words);
    if (is_said) return said;
    if (!q->unequal) sliced.slices += larger(0, sum_of_terms(&said) - sum_of_terms(&sliced));
    return sliced;
}

uint64_t weft_plan_one_host_ns(const struct weft_plan_question *q, uint32_t processors)
{
    struct terms terms = terms_of(q, processors);
    double ns = q->ranks < 2 ? 0 : sum_of_terms(&terms);
    return ns < 9e18 ? (uint64_t)ns : UINT64_MAX - 1;
}

size_t weft_plan_one_host_explain(const struct weft_plan_question *q, uint32_t processors, char *out, size_t out_bytes)
{
    struct terms terms = terms_of(q, processors);
    bool known = q->cost && q->cost->memory.words_ns;
    double us = 1e-3 * (double)weft_plan_one_host_ns(q, processors);
    int n = snprintf(out, out_bytes, "one-host %.2f us, in memory that all ranks map (%s: words %.2f us, slices %.2f us, a rank's %.0f B %.2f us by %.4f ns)", us,
                     known ? "measured" : "assumed", terms.words * 1e-3, terms.slices * 1e-3, terms.moved, terms.bytes * 1e-3, terms.byte);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- calibration ---- */
/* Lengths of all_reduces: two that are said, the shortest and the longest; then two that caches hold, as far as ranks that take turns leave any, one
 * that they do not, and one that is stored past them. In slices each but the last ones is four times the one before or more: what they take beside their bytes is what two of them differ in least. */
uint64_t weft_plan_one_host_sample(enum weft_plan_host_sample which, uint32_t ranks, uint32_t processors, const struct weft_link_memory *caches)
{
    double held = held_bytes(caches->core_kib ? caches->core_kib : assumed.core_kib, ranks, processors) / (2.0 * ranks); /* an input and an output of all */
    double said = (double)plan_one_host_said_mapped(WEFT_COLL_ALL_REDUCE, ranks, is_crowded(ranks, processors)), cached = larger(8 * said, held / 4), bytes = 64;
    double past = (double)plan_one_host_sums_past((caches->last_kib ? caches->last_kib : assumed.last_kib) * 1024ull,
                                                  own_bytes(caches->core_kib ? caches->core_kib : assumed.core_kib, ranks, processors)) / (2.0 * ranks);
    switch (which) {
    case WEFT_PLAN_HOST_WORDS: break;
    case WEFT_PLAN_HOST_SAID: bytes = said; break;
    case WEFT_PLAN_HOST_SLICES: bytes = 2 * said; break;
    case WEFT_PLAN_HOST_CACHED: bytes = cached; break;
    case WEFT_PLAN_HOST_PASSED: bytes = larger(2 * cached, shorter(larger(4 * cached, held * 8), past - 64)); break;
    default: bytes = larger(4 * cached, 2 * past); break;
    }
    return (uint64_t)bytes & ~(uint64_t)63;
}

static uint32_t whole(double value) { return value < 1 ? 1 : value < 1e9 - 1 ? (uint32_t)(value + 0.5) : 999999999u; } /* a table has nine digits */

#define NEARER 6 /* own caches are faster than the last one by less */

/* Of three lengths in slices: what they take beside their bytes, and a byte in caches and beyond. */
struct sliced {
    double fixed, cached, passed;
};

/* Time i is fixed + x[i] (cached + m[i] (passed - cached)), m the part that caches do not have. Where the three do not tell cached from
 * passed, as where ranks take turns and all miss, or disagree with what caches can be, both are what the longest took more than the shortest. */
static struct sliced sliced_by(const double times[3], const double x[3], const double m[3])
{
    double near = x[1] - x[0], far = x[2] - x[0], near_missed = x[1] * m[1] - x[0] * m[0], far_missed = x[2] * m[2] - x[0] * m[0];
    double determinant = near * far_missed - far * near_missed, mean = larger(1e-3, (times[2] - times[0]) / far), cached = mean, more = 0;
    if (fabs(determinant) > near * far / 50) {
        cached = ((times[1] - times[0]) * far_missed - (times[2] - times[0]) * near_missed) / determinant;
        more = ((times[2] - times[0]) * near - (times[1] - times[0]) * far) / determinant;
    }
    if (more < 0 || cached < (cached + more) / NEARER) cached = mean, more = 0;
    return (struct sliced){.fixed = times[0] - x[0] * (cached + m[0] * more), .cached = cached, .passed = cached + more};
}

void weft_plan_one_host_fit(uint32_t ranks, uint32_t processors, const double times_ns[WEFT_PLAN_HOST_SAMPLES], struct weft_link_memory *memory)
{
    double n[WEFT_PLAN_HOST_SAMPLES], x[3], m[3], h = rounds(ranks, processors), t = turns(ranks, processors);
    for (int i = 0; i < WEFT_PLAN_HOST_SAMPLES; i++) n[i] = (double)weft_plan_one_host_sample((enum weft_plan_host_sample)i, ranks, processors, memory);
    double held = held_bytes(memory->core_kib ? memory->core_kib : assumed.core_kib, ranks, processors);
    for (int i = 0; i < 3; i++) x[i] = 2 * t * n[WEFT_PLAN_HOST_SLICES + i], m[i] = missed(2.0 * ranks * n[WEFT_PLAN_HOST_SLICES + i], held);
    struct sliced sliced = sliced_by(times_ns + WEFT_PLAN_HOST_SLICES, x, m);
    double said = (times_ns[WEFT_PLAN_HOST_SAID] - times_ns[WEFT_PLAN_HOST_WORDS]) / (t * (ranks - 1) * (n[WEFT_PLAN_HOST_SAID] - n[WEFT_PLAN_HOST_WORDS]));
    double words = larger(1, times_ns[WEFT_PLAN_HOST_WORDS] - t * (ranks - 1) * n[WEFT_PLAN_HOST_WORDS] * larger(said, 0));
    memory->words_ns = whole(words / h);
    memory->slices_ns = whole((sliced.fixed - words) / h);
    memory->said_ps = whole(1e3 * larger(said, sliced.cached));
    memory->cached_ps = whole(1e3 * sliced.cached);
    memory->passed_ps = whole(1e3 * sliced.passed);
    memory->past_ps = whole(1e3 * (times_ns[WEFT_PLAN_HOST_PAST] - sliced.fixed) / (2 * t * n[WEFT_PLAN_HOST_PAST]));
}
