/* plan_rotated.c - see plan_rotated.h. */
#include "tests/collective/plan/plan_rotated.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX 64

/* ---- values ---- */
struct value {
    uint32_t first, length; /* length 0: nothing */
    uint32_t slice, at;     /* element `at` of slice `slice` */
    bool chain, tree;       /* order in which the interval is summed */
    bool folded;            /* by a fold, in rank order: T over all */
    bool finished;
};

enum slot_state { SLOT_WAITING, SLOT_POSTED, SLOT_DONE };
struct slot {
    struct weft_action action;
    enum slot_state state;
};

struct turned {
    const struct plan_case *c;
    struct weft_plan_args args;
    struct weft_plan_cursor cursor;
    struct value *in, *out, *scratch;
    uint64_t in_count, out_count, scratch_count;
    struct fold {
        uint8_t *present; /* (ranks,) */
        uint32_t slice, at;
        uint64_t count;
        bool open;
    } folds[2];
    struct slot slots[WINDOW_MAX];
    uint64_t head, tail;
    bool ended, failed;
    char *why;
    size_t why_bytes;
};

static bool fault(struct turned *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fault(struct turned *t, const char *format, ...)
{
    if (t->failed) return false;
    t->failed = true;
    va_list list;
    va_start(list, format);
    vsnprintf(t->why, t->why_bytes, format, list);
    va_end(list);
    return false;
}

static bool long_in(const struct plan_case *c) { return c->kind != WEFT_COLL_ALL_GATHER; }
static bool long_out(const struct plan_case *c) { return c->kind != WEFT_COLL_REDUCE_SCATTER; }
static bool is_receive(enum weft_action_kind kind)
{
    return kind == WEFT_ACTION_RECV || kind == WEFT_ACTION_RECV_FOLD || kind == WEFT_ACTION_RECV_SUM;
}
static bool talks(const struct weft_action *a) { return a->kind == WEFT_ACTION_SEND || is_receive(a->kind); }

/* ---- rank r is rank 0, rotated ---- */
static uint64_t turn_offset(const struct plan_case *c, uint64_t offset, uint32_t by, bool of_long)
{
    if (!of_long || c->count == 0) return offset;
    uint64_t slice = offset / c->count, within = offset % c->count;
    /* the end of the vector maps to itself */
    return slice >= c->ranks ? offset : (slice + by) % c->ranks * c->count + within;
}

static bool reads_in(const struct weft_action *a)
{
    return a->place == WEFT_PLACE_INPUT || a->kind == WEFT_ACTION_FOLD || a->kind == WEFT_ACTION_RECV_FOLD;
}
static bool names_out(const struct weft_action *a)
{
    bool writes = (a->kind == WEFT_ACTION_RECV || a->kind == WEFT_ACTION_FOLD)
                      ? a->place == WEFT_PLACE_OUTPUT
                      : a->kind == WEFT_ACTION_COPY || a->last;
    return a->place == WEFT_PLACE_OUTPUT || writes;
}

static bool same_turned(const struct plan_case *c, const struct weft_action *zero,
                        const struct weft_action *a, uint32_t by)
{
    struct weft_action expected = *zero, found = *a;
    if (zero->kind != a->kind) return false;
    if (talks(zero)) expected.peer = (zero->peer + by) % c->ranks;
    if (a->kind == WEFT_ACTION_NONE || a->count == 0) /* an empty step: only its waits count */
        return expected.after == found.after && expected.depends == found.depends &&
               (!talks(a) || (expected.peer == found.peer && expected.message == found.message));
    expected.offset_in = reads_in(zero) ? turn_offset(c, zero->offset_in, by, long_in(c)) : found.offset_in;
    expected.offset = names_out(zero) ? turn_offset(c, zero->offset, by, long_out(c)) : found.offset;
    return expected.kind == found.kind && expected.place == found.place && expected.peer == found.peer &&
           expected.message == found.message && expected.area == found.area &&
           expected.own_first == found.own_first && expected.into_own == found.into_own &&
           expected.wide == found.wide && expected.last == found.last &&
           expected.offset_in == found.offset_in && expected.offset == found.offset &&
           expected.scratch == found.scratch && expected.scratch_own == found.scratch_own &&
           expected.count == found.count && expected.after == found.after &&
           expected.depends == found.depends;
}

static bool turns(struct turned *t, uint32_t rank)
{
    struct weft_plan_cursor zero, other;
    struct weft_plan_args args = t->args;
    struct weft_action a, b;
    weft_plan_begin(&zero, &args);
    args.rank = rank;
    weft_plan_begin(&other, &args);
    do {
        weft_plan_next(&zero, &a);
        weft_plan_next(&other, &b);
        if (!same_turned(t->c, &a, &b, rank))
            return fault(t, "step %llu of rank %u is not rank 0's, turned",
                         (unsigned long long)(zero.next - 1), rank);
    } while (a.kind != WEFT_ACTION_DONE);
    return true;
}

/* ---- one rank's memory ---- */
static struct value turn_value(const struct plan_case *c, struct value value, uint32_t by)
{
    value.first = (value.first + by) % c->ranks;
    value.slice = (value.slice + by) % c->ranks;
    return value;
}

static bool add(struct turned *t, struct value left, struct value right, struct value *out)
{
    uint32_t p = t->c->ranks, length = left.length + right.length;
    if (left.length == 0 || right.length == 0 || length > p)
        return fault(t, "a sum of %u and %u contributions", left.length, right.length);
    if (left.slice != right.slice || left.at != right.at)
        return fault(t, "a sum of two elements: %u.%u and %u.%u", left.slice, left.at, right.slice, right.at);
    if (left.finished || right.finished || left.folded || right.folded)
        return fault(t, "a finished sum is added to");
    if (right.first != (left.first + left.length) % p)
        return fault(t, "ranks %u + %u are followed by rank %u", left.first, left.length, right.first);
    uint32_t most = 1;
    while (most * 2 < length) most *= 2;
    *out = (struct value){left.first,
                          length,
                          left.slice,
                          left.at,
                          left.chain && right.length == 1,
                          left.tree && right.tree && left.length == most,
                          false,
                          false};
    if (!out->chain && !out->tree)
        return fault(t, "ranks %u + %u: neither a chain nor T", left.first, length);
    return true;
}

static struct value *at_place(struct turned *t, const struct weft_action *a, uint64_t scratch)
{
    uint64_t offset = a->place == WEFT_PLACE_INPUT    ? a->offset_in
                      : a->place == WEFT_PLACE_OUTPUT ? a->offset
                                                      : scratch;
    uint64_t limit = a->place == WEFT_PLACE_INPUT    ? t->in_count
                    : a->place == WEFT_PLACE_OUTPUT ? t->out_count
                                                    : t->scratch_count;
    struct value *base = a->place == WEFT_PLACE_INPUT    ? t->in
                         : a->place == WEFT_PLACE_OUTPUT ? t->out
                                                         : t->scratch;
    if (offset + a->count > limit)
        fault(t, "kind %d past the end: %llu + %llu of %llu", (int)a->kind, (unsigned long long)offset,
              (unsigned long long)a->count, (unsigned long long)limit);
    return t->failed ? NULL : base + offset;
}
static struct value *in_scratch(struct turned *t, const struct weft_action *a)
{
    if (a->scratch + a->count > t->scratch_count)
        fault(t, "past the end of scratch: %llu + %llu", (unsigned long long)a->scratch,
              (unsigned long long)a->count);
    return t->failed ? NULL : t->scratch + a->scratch;
}

static void sum(struct turned *t, const struct weft_action *a)
{
    struct value *received = in_scratch(t, a), *own = at_place(t, a, a->scratch_own);
    for (uint64_t i = 0; i < a->count && !t->failed; i++) {
        struct value total;
        if (!add(t, a->own_first ? own[i] : received[i], a->own_first ? received[i] : own[i], &total)) return;
        total.finished = a->last;
        if (a->last && a->offset + i < t->out_count) t->out[a->offset + i] = total;
        else if (a->last) fault(t, "a sum past the end of the output");
        else (a->into_own ? own : received)[i] = total;
    }
}

static void receive(struct turned *t, const struct weft_action *s, const struct weft_action *r)
{
    const struct value *from = s->count ? at_place(t, s, s->scratch) : NULL;
    if (s->message != r->message || s->count != r->count || s->wide != r->wide) {
        fault(t, "message %u of %llu meets message %u of %llu", s->message, (unsigned long long)s->count,
              r->message, (unsigned long long)r->count);
        return;
    }
    if (s->count == 0 || !from) return;
    if (r->kind == WEFT_ACTION_RECV_FOLD) {
        struct fold *fold = &t->folds[r->area];
        struct value first = turn_value(t->c, from[0], r->peer);
        if (!fold->open) *fold = (struct fold){fold->present, first.slice, first.at, s->count, true};
        if (fold->present[r->peer]++) fault(t, "the contribution of rank %u twice", r->peer);
        for (uint64_t i = 0; i < s->count; i++) {
            struct value value = turn_value(t->c, from[i], r->peer);
            if (value.length != 1 || value.first != r->peer || value.slice != fold->slice ||
                value.at != fold->at + i)
                fault(t, "not the contribution of rank %u", r->peer);
        }
        return;
    }
    struct value *to = r->kind == WEFT_ACTION_RECV_SUM ? in_scratch(t, r) : at_place(t, r, r->scratch);
    for (uint64_t i = 0; i < s->count && !t->failed; i++) to[i] = turn_value(t->c, from[i], r->peer);
    if (r->kind == WEFT_ACTION_RECV_SUM) sum(t, r);
}

static void fold(struct turned *t, const struct weft_action *a)
{
    struct fold *fold = &t->folds[a->area];
    struct value *to = at_place(t, a, a->scratch);
    for (uint32_t peer = 1; peer < t->c->ranks; peer++)
        if (fold->present[peer] != 1) fault(t, "a fold without rank %u", peer);
    for (uint64_t i = 0; i < a->count && !t->failed; i++) {
        struct value own = t->in[a->offset_in + i];
        if (fold->slice != own.slice || fold->at + i != own.at || fold->count != a->count)
            fault(t, "a fold of two chunks");
        to[i] = (struct value){
            .length = t->c->ranks, .slice = own.slice, .at = own.at, .folded = true, .finished = a->last};
    }
    memset(fold->present, 0, t->c->ranks);
    fold->open = false;
}

static void copy(struct turned *t, const struct weft_action *a)
{
    bool packs = a->kind == WEFT_ACTION_PACK;
    const struct value *from = at_place(t, a, packs ? a->scratch_own : a->scratch);
    if (!packs && a->offset + a->count > t->out_count) fault(t, "a copy past the end of the output");
    struct value *to = packs ? in_scratch(t, a) : t->out + a->offset;
    for (uint64_t i = 0; i < a->count && !t->failed; i++) {
        to[i] = from[i];
        if (!packs && a->last) to[i].finished = true;
    }
}

/* ---- all ranks in lockstep ---- */
static struct slot *slot_at(struct turned *t, uint64_t number) { return &t->slots[number % t->c->window]; }

static bool ready(struct turned *t, uint64_t number)
{
    const struct weft_action *a = &slot_at(t, number)->action;
    if (a->after && number - a->after >= t->tail) return false;
    if (a->depends && number - a->depends >= t->tail && slot_at(t, number - a->depends)->state != SLOT_DONE)
        return false;
    if (a->kind == WEFT_ACTION_FOLD && number != t->tail) return false;
    for (uint64_t older = t->tail; older < number; older++) {
        const struct slot *other = slot_at(t, older);
        bool same = talks(a) && talks(&other->action) && other->action.peer == a->peer &&
                    is_receive(a->kind) == is_receive(other->action.kind);
        if (same && other->state == SLOT_WAITING) return false;
    }
    return true;
}

/* The n-th message to rank s is, at rank s, the n-th from rank 0: the one that rank 0 receives from rank
 * -s. */
static bool meet(struct turned *t)
{
    bool met = false;
    for (uint64_t number = t->tail; number < t->head; number++) {
        struct slot *send = slot_at(t, number);
        if (send->action.kind != WEFT_ACTION_SEND || send->state != SLOT_POSTED) continue;
        for (uint64_t other = t->tail; other < t->head; other++) {
            struct slot *recv = slot_at(t, other);
            bool fits =
                is_receive(recv->action.kind) && (recv->action.peer + send->action.peer) % t->c->ranks == 0;
            if (!fits || recv->state == SLOT_DONE) continue;
            if (recv->state == SLOT_POSTED) {
                receive(t, &send->action, &recv->action);
                send->state = recv->state = SLOT_DONE;
                met = true;
            }
            break;
        }
    }
    return met;
}

static void issue(struct turned *t, struct slot *slot)
{
    const struct weft_action *a = &slot->action;
    slot->state = talks(a) ? SLOT_POSTED : SLOT_DONE;
    if (talks(a) && (a->peer == 0 || a->peer >= t->c->ranks)) fault(t, "rank 0 talks to rank %u", a->peer);
    if (a->count > t->c->chunk_elems) fault(t, "a step of %llu elements", (unsigned long long)a->count);
    if (a->area >= 2 || (a->kind == WEFT_ACTION_FOLD && a->area >= weft_plan_fold_count(&t->args)))
        fault(t, "fold %u does not exist", a->area);
    if (t->failed) return;
    if (a->kind == WEFT_ACTION_FOLD) fold(t, a);
    else if (a->kind == WEFT_ACTION_SUM) sum(t, a);
    else if (a->kind == WEFT_ACTION_COPY || a->kind == WEFT_ACTION_PACK) copy(t, a);
}

static void go(struct turned *t)
{
    for (bool moved = true; moved && !t->failed;) {
        moved = false;
        while (t->tail < t->head && slot_at(t, t->tail)->state == SLOT_DONE) t->tail++;
        while (!t->ended && t->head - t->tail < t->c->window) {
            struct slot *slot = slot_at(t, t->head);
            weft_plan_next(&t->cursor, &slot->action);
            t->ended = slot->action.kind == WEFT_ACTION_DONE;
            if (t->ended) break;
            slot->state = SLOT_WAITING;
            t->head++;
            moved = true;
        }
        for (uint64_t number = t->tail; number < t->head && !t->failed; number++) {
            if (slot_at(t, number)->state != SLOT_WAITING || !ready(t, number)) continue;
            issue(t, slot_at(t, number));
            moved = true;
        }
        moved |= meet(t);
    }
    if (!t->failed && (!t->ended || t->tail != t->head))
        fault(t, "deadlock at step %llu", (unsigned long long)t->tail);
}

/* ---- set up, expectation ---- */
static bool right(const struct turned *t, uint64_t i)
{
    const struct plan_case *c = t->c;
    const struct value *v = &t->out[i];
    uint32_t slice = long_out(c) ? (uint32_t)(i / c->count) : 0, at = (uint32_t)(i % c->count);
    if (v->at != at) return false;
    if (c->kind == WEFT_COLL_ALL_GATHER) return v->length == 1 && v->first == slice && v->slice == slice;
    if (c->kind == WEFT_COLL_ALL_TO_ALL) return v->length == 1 && v->first == slice && v->slice == 0;
    if (v->length != c->ranks || v->slice != slice || !v->finished) return false;
    switch (c->plan) {
    case WEFT_PLAN_DIRECT: return v->folded;
    case WEFT_PLAN_RING: return v->chain && v->first == (slice + 1) % c->ranks;
    case WEFT_PLAN_PAT: return v->tree && v->first == slice;
    default: return false;
    }
}

bool plan_rotated_run(const struct plan_case *c, bool every_rank, char *why, size_t why_bytes)
{
    struct turned t = {.c = c, .why = why, .why_bytes = why_bytes};
    t.args =
        (struct weft_plan_args){.plan = c->plan,
                                .kind = c->kind,
                                .ranks = c->ranks,
                                .chunk_elems = c->chunk_elems,
                                .lanes = c->lanes,
                                .count = c->kind == WEFT_COLL_ALL_REDUCE ? c->count * c->ranks : c->count};
    uint32_t step = every_rank ? 1 : c->ranks / 5 + 1;
    for (uint32_t rank = 1; rank < c->ranks && !t.failed; rank += step) turns(&t, rank);
    if (!t.failed) turns(&t, c->ranks - 1);
    t.in_count = long_in(c) ? c->count * c->ranks : c->count;
    t.out_count = long_out(c) ? c->count * c->ranks : c->count;
    t.scratch_count = weft_plan_scratch(&t.args);
    t.in = calloc(t.in_count + 1, sizeof *t.in);
    t.out = calloc(t.out_count + 1, sizeof *t.out);
    t.scratch = calloc(t.scratch_count + 1, sizeof *t.scratch);
    for (int a = 0; a < 2; a++) t.folds[a].present = calloc(c->ranks, 1);
    for (uint64_t i = 0; i < t.in_count; i++)
        t.in[i] = (struct value){0,     1,    (uint32_t)(i / c->count), (uint32_t)(i % c->count), true, true,
                                 false, false};
    weft_plan_begin(&t.cursor, &t.args);
    if (!t.failed) go(&t);
    for (uint64_t i = 0; i < t.out_count && !t.failed; i++)
        if (!right(&t, i))
            fault(&t, "element %llu is not what is declared: ranks %u + %u of %u.%u", (unsigned long long)i,
                  t.out[i].first, t.out[i].length, t.out[i].slice, t.out[i].at);
    free(t.in), free(t.out), free(t.scratch), free(t.folds[0].present), free(t.folds[1].present);
    return !t.failed;
}
