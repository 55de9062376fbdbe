/* plan_model.c - see plan_model.h. */
#include "tests/collective/plan/plan_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY 64 /* steps looked back for uses of the same memory */

enum slot_state { SLOT_WAITING, SLOT_POSTED, SLOT_DONE };

struct slot {
    struct weft_action action;
    enum slot_state state;
    struct slot *partner; /* of a message on its way: the other end */
    uint32_t rank;
};

struct fold {
    uint64_t *elements;   /* (ranks, count) of the chunk; NULL: closed */
    uint8_t *present;     /* (ranks,) */
};

/* Memory that a step accesses. */
enum space { SPACE_IN, SPACE_OUT, SPACE_SCRATCH };
struct touch {
    enum space space;
    bool writes;
    uint64_t first, count;
};
struct past {
    struct touch touches[3];
    uint32_t touch_count;
    uint64_t surely_over; /* bit i: the step i + 1 back is done when this one starts */
};

struct rank {
    struct weft_plan_cursor cursor;
    uint64_t *in, *out, *scratch;
    uint64_t in_count, out_count;
    uint64_t *cuts_in, *cuts_out; /* all_to_all */
    struct fold *folds;
    uint64_t scratch_count;
    uint32_t fold_count;
    /* (HISTORY,) of the ranks that are checked; with many ranks some stand for the others */
    struct past *past;
    struct slot *slots;   /* (window,) */
    uint64_t head, tail;
    bool ended, woken;
};

struct model {
    const struct plan_case *c;
    struct weft_plan_args args;
    struct rank *ranks;
    struct slot **running;              /* sends with a partner, and computations: started, not finished */
    size_t running_count, running_room;
    uint64_t random;
    char *why;
    size_t why_bytes;
    bool failed;
};

static bool fault(struct model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fault(struct model *m, const char *format, ...)
{
    if (m->failed) return false;
    m->failed = true;
    va_list list;
    va_start(list, format);
    vsnprintf(m->why, m->why_bytes, format, list);
    va_end(list);
    return false;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185ull;
    x ^= x >> 27;
    return x * 0x81dadef4bc2dd44dull + 0x9e37;
}
static uint64_t leaf(uint32_t rank, uint64_t element) { return mix(mix(rank + 1) + element); }
static uint64_t sum(uint64_t left, uint64_t right) { return mix(mix(left + 77) * 3 + right); }
static uint64_t finished(uint64_t value) { return mix(value ^ 0xf1e1d1); }

/* T(a,b), written from its definition. */
static uint64_t tree(const uint64_t *leaves, size_t stride, uint32_t a, uint32_t b)
{
    if (b - a == 1) return leaves[a * stride];
    uint32_t h = 1;
    while (h * 2 < b - a) h *= 2;
    return sum(tree(leaves, stride, a, a + h), tree(leaves, stride, a + h, b));
}

static bool gathers(const struct plan_case *c)
{
    return c->kind == WEFT_COLL_ALL_GATHER || c->kind == WEFT_COLL_ALL_GATHER_BYTES;
}
static uint64_t piece_first(const struct plan_case *c, uint32_t piece)
{
    return c->cuts ? c->cuts[piece] : c->count * piece;
}
static uint64_t piece_count(const struct plan_case *c, uint32_t piece)
{
    return piece_first(c, piece + 1) - piece_first(c, piece);
}

static uint64_t in_elements(const struct plan_case *c, uint32_t rank)
{
    switch (c->kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_REDUCE_SCATTER: return piece_first(c, c->ranks);
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_GATHER: return piece_count(c, rank);
    case WEFT_COLL_SCATTER: return rank == c->root ? piece_first(c, c->ranks) : 0;
    case WEFT_COLL_ALL_TO_ALL: return c->count * c->ranks; /* unequal pieces: set_up */
    default: return c->count;
    }
}
static uint64_t out_elements(const struct plan_case *c, uint32_t rank)
{
    switch (c->kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_ALL_GATHER: return piece_first(c, c->ranks);
    case WEFT_COLL_ALL_GATHER_BYTES:
    case WEFT_COLL_ALL_TO_ALL: return c->count * c->ranks;
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_SCATTER: return piece_count(c, rank);
    case WEFT_COLL_GATHER: return rank == c->root ? piece_first(c, c->ranks) : 0;
    case WEFT_COLL_REDUCE: return rank == c->root ? c->count : 0;
    default: return c->count;
    }
}
static bool is_receive(enum weft_action_kind kind)
{
    return kind == WEFT_ACTION_RECV || kind == WEFT_ACTION_RECV_FOLD || kind == WEFT_ACTION_RECV_SUM;
}

/* ---- what a step may touch ---- */
static void touch(struct past *past, enum space space, bool writes, uint64_t first, uint64_t count)
{
    if (count > 0) past->touches[past->touch_count++] = (struct touch){space, writes, first, count};
}

static void touch_place(struct past *past, const struct weft_action *a, bool writes, uint64_t scratch)
{
    if (a->place == WEFT_PLACE_SCRATCH) touch(past, SPACE_SCRATCH, writes, scratch, a->count);
    else if (a->place == WEFT_PLACE_OUTPUT) touch(past, SPACE_OUT, writes, a->offset, a->count);
    else touch(past, SPACE_IN, writes, a->offset_in, a->count);
}

static void touches_of(struct past *past, const struct weft_action *a)
{
    past->touch_count = 0;
    switch (a->kind) {
    case WEFT_ACTION_SEND: touch_place(past, a, false, a->scratch); break;
    case WEFT_ACTION_RECV:
        if (a->place == WEFT_PLACE_SCRATCH) touch(past, SPACE_SCRATCH, true, a->scratch, a->count);
        else touch(past, SPACE_OUT, true, a->offset, a->count);
        break;
    case WEFT_ACTION_RECV_SUM:
        touch(past, SPACE_SCRATCH, true, a->scratch, a->count);
        touch_place(past, a, a->into_own && !a->last, a->scratch_own);
        if (a->last) touch(past, SPACE_OUT, true, a->offset, a->count);
        break;
    case WEFT_ACTION_FOLD:
        touch(past, SPACE_IN, false, a->offset_in, a->count);
        if (a->place == WEFT_PLACE_SCRATCH) touch(past, SPACE_SCRATCH, true, a->scratch, a->count);
        else touch(past, SPACE_OUT, true, a->offset, a->count);
        break;
    case WEFT_ACTION_PACK:
        touch_place(past, a, false, a->scratch_own);
        touch(past, SPACE_SCRATCH, true, a->scratch, a->count);
        break;
    case WEFT_ACTION_SUM:
        touch(past, SPACE_SCRATCH, !a->into_own && !a->last, a->scratch, a->count);
        touch_place(past, a, a->into_own && !a->last, a->scratch_own);
        if (a->last) touch(past, SPACE_OUT, true, a->offset, a->count);
        break;
    case WEFT_ACTION_COPY:
        touch_place(past, a, false, a->scratch);
        touch(past, SPACE_OUT, true, a->offset, a->count);
        break;
    default: break;
    }
}

static bool clash(const struct touch *a, const struct touch *b)
{
    return a->space == b->space && (a->writes || b->writes) && a->first < b->first + b->count &&
           b->first < a->first + a->count;
}

/* Checks step `number` when the plan returns it. */
static bool keeps_order(struct model *m, uint32_t rank, uint64_t number, const struct weft_action *a)
{
    struct rank *r = &m->ranks[rank];
    if (!r->past) return true;
    struct past *now = &r->past[number % HISTORY];
    uint64_t over = 0;
    if (a->after > 0 && a->after <= 64) over |= ~0ull << (a->after - 1);
    if (a->depends > 0 && a->depends < HISTORY) {
        over |= 1ull << (a->depends - 1);
        if (a->depends < 63) over |= r->past[(number - a->depends) % HISTORY].surely_over << a->depends;
    }
    touches_of(now, a);
    now->surely_over = over;
    for (uint64_t back = 1; back < HISTORY && back <= number && now->touch_count > 0; back++) {
        if (over >> (back - 1) & 1) continue;
        const struct past *past = &r->past[(number - back) % HISTORY];
        for (uint32_t x = 0; x < now->touch_count; x++)
            for (uint32_t y = 0; y < past->touch_count; y++) {
                /* steps of other ranks guarantee it */
                if (m->c->in_place && now->touches[x].space != SPACE_SCRATCH) continue;
                if (clash(&now->touches[x], &past->touches[y]))
                    return fault(m,
                                 "rank %u: step %llu (kind %d) uses what step %llu before it may still use "
                                 "(space %d, element %llu)",
                                 rank, (unsigned long long)number, (int)a->kind, (unsigned long long)back,
                                 (int)now->touches[x].space, (unsigned long long)now->touches[x].first);
            }
    }
    return true;
}

static bool in_bounds(struct model *m, uint32_t rank, const struct weft_action *a)
{
    const struct rank *r = &m->ranks[rank];
    struct past past;
    touches_of(&past, a);
    uint64_t sizes[] = {r->in_count, r->out_count, r->scratch_count};
    bool long_messages = m->c->plan == WEFT_PLAN_BRUCK ||
                         (m->c->plan == WEFT_PLAN_BINOMIAL && !weft_plan_wide(m->c->plan, m->c->kind));
    if (!long_messages && a->count > m->c->chunk_elems)
        return fault(m, "a step of %llu elements", (unsigned long long)a->count);
    for (uint32_t t = 0; t < past.touch_count; t++) {
        const struct touch *use = &past.touches[t];
        if (use->first > sizes[use->space] || use->count > sizes[use->space] - use->first)
            return fault(m, "rank %u: kind %d past the end of space %d: %llu + %llu of %llu", rank,
                         (int)a->kind, (int)use->space, (unsigned long long)use->first,
                         (unsigned long long)use->count, (unsigned long long)sizes[use->space]);
    }
    bool folds = a->kind == WEFT_ACTION_RECV_FOLD || a->kind == WEFT_ACTION_FOLD;
    if (folds && a->area >= r->fold_count) return fault(m, "fold %u does not exist", a->area);
    bool talks = a->kind == WEFT_ACTION_SEND || is_receive(a->kind);
    if (talks && (a->peer >= m->c->ranks || a->peer == rank))
        return fault(m, "rank %u talks to rank %u", rank, a->peer);
    bool partials = a->kind == WEFT_ACTION_SEND && a->place != WEFT_PLACE_SCRATCH && a->wide;
    if (partials || (a->wide && !m->args.wide && !weft_plan_wide(m->c->plan, m->c->kind)))
        return fault(m, "rank %u sends partials where there are none", rank);
    return true;
}

static uint64_t *place_of(struct rank *r, const struct weft_action *a, uint64_t scratch)
{
    if (a->place == WEFT_PLACE_INPUT) return r->in + a->offset_in;
    return a->place == WEFT_PLACE_OUTPUT ? r->out + a->offset : r->scratch + scratch;
}

/* Adds scratch and the own operand as RECV_SUM and SUM define it. */
static void add(struct rank *r, const struct weft_action *a)
{
    const uint64_t *own = place_of(r, a, a->scratch_own);
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t received = r->scratch[a->scratch + i],
                 value = a->own_first ? sum(own[i], received) : sum(received, own[i]);
        if (a->last) r->out[a->offset + i] = finished(value);
        else r->scratch[(a->into_own ? a->scratch_own : a->scratch) + i] = value;
    }
}

static struct fold *open_fold(struct model *m, struct rank *r, const struct weft_action *a)
{
    struct fold *fold = &r->folds[a->area];
    if (fold->elements) return fold;
    fold->elements = calloc(m->c->ranks * a->count, sizeof(uint64_t));
    fold->present = calloc(m->c->ranks, 1);
    return fold;
}

static void receive_payload(struct model *m, struct slot *recv, const uint64_t *data)
{
    struct rank *r = &m->ranks[recv->rank];
    const struct weft_action *a = &recv->action;
    if (a->kind == WEFT_ACTION_RECV) {
        uint64_t *to = a->place == WEFT_PLACE_SCRATCH ? r->scratch + a->scratch : r->out + a->offset;
        if (a->count) memmove(to, data, a->count * sizeof *data);
        return;
    }
    if (a->kind == WEFT_ACTION_RECV_FOLD) {
        struct fold *fold = open_fold(m, r, a);
        if (fold->present[a->peer])
            fault(m, "rank %u gets the contribution of rank %u twice", recv->rank, a->peer);
        fold->present[a->peer] = 1;
        memcpy(fold->elements + a->peer * a->count, data, a->count * sizeof *data);
        return;
    }
    memmove(r->scratch + a->scratch, data, a->count * sizeof *data);
    add(r, a);
}

static void fold(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    const struct weft_action *a = &slot->action;
    struct fold *area = open_fold(m, r, a);
    uint64_t *to = a->place == WEFT_PLACE_SCRATCH ? r->scratch + a->scratch : r->out + a->offset;
    const struct weft_plan_hosts *hosts = weft_plan_folds_within_host(m->c->plan) ? m->c->hosts : NULL;
    uint32_t folded = 0;
    uint64_t *leaves = calloc(m->c->ranks, sizeof *leaves);
    for (uint32_t peer = 0; peer < m->c->ranks; peer++) {
        bool member = !hosts || hosts->host[peer] == hosts->host[slot->rank];
        if (area->present[peer] != (member && peer != slot->rank))
            fault(m, "rank %u folds without, or with, rank %u", slot->rank, peer);
    }
    memcpy(area->elements + slot->rank * a->count, r->in + a->offset_in, a->count * sizeof(uint64_t));
    for (uint64_t i = 0; i < a->count; i++) {
        for (uint32_t peer = folded = 0; peer < m->c->ranks; peer++)
            if (peer == slot->rank || area->present[peer])
                leaves[folded++] = area->elements[i + peer * a->count];
        to[i] = tree(leaves, 1, 0, folded);
        if (a->last) to[i] = finished(to[i]);
    }
    free(leaves);
    free(area->elements), free(area->present);
    *area = (struct fold){0};
}

static void copy(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    const struct weft_action *a = &slot->action;
    const uint64_t *from = place_of(r, a, a->scratch);
    for (uint64_t i = 0; i < a->count; i++) r->out[a->offset + i] = a->last ? finished(from[i]) : from[i];
}

/* ---- a small interpreter ---- */
static void over(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    slot->state = SLOT_DONE;
    r->woken = true;
}

/* The oldest message of a pair that has started on this rank and has not matched. */
static struct slot *oldest(struct model *m, uint32_t rank, uint32_t peer, bool receives)
{
    struct rank *r = &m->ranks[rank];
    for (uint64_t number = r->tail; number < r->head; number++) {
        struct slot *slot = &r->slots[number % m->c->window];
        if (slot->state != SLOT_POSTED || slot->partner || slot->action.peer != peer) continue;
        if (receives ? is_receive(slot->action.kind) : slot->action.kind == WEFT_ACTION_SEND) return slot;
    }
    return NULL;
}

/* Completes a started step: bytes are read and written only now. */
static void finish(struct model *m, struct slot *slot)
{
    if (slot->action.kind == WEFT_ACTION_SEND) {
        receive_payload(m, slot->partner,
                        place_of(&m->ranks[slot->rank], &slot->action, slot->action.scratch));
        over(m, slot->partner);
    } else if (slot->action.kind == WEFT_ACTION_FOLD) {
        fold(m, slot);
    } else if (slot->action.kind == WEFT_ACTION_SUM) {
        add(&m->ranks[slot->rank], &slot->action);
    } else if (slot->action.kind == WEFT_ACTION_PACK) {
        struct rank *r = &m->ranks[slot->rank];
        memmove(r->scratch + slot->action.scratch, place_of(r, &slot->action, slot->action.scratch_own),
                slot->action.count * sizeof(uint64_t));
    } else {
        copy(m, slot);
    }
    over(m, slot);
}

static void run(struct model *m, struct slot *slot)
{
    if (m->c->seed == 0) {
        finish(m, slot);
        return;
    }
    if (m->running_count == m->running_room) {
        m->running_room = m->running_room * 2 + 64;
        m->running = realloc(m->running, m->running_room * sizeof *m->running);
    }
    m->running[m->running_count++] = slot;
}

/* Completes a random one; false: none is running. */
static bool finish_any(struct model *m)
{
    if (m->running_count == 0) return false;
    m->random = mix(m->random + 1);
    size_t at = m->random % m->running_count;
    struct slot *slot = m->running[at];
    m->running[at] = m->running[--m->running_count];
    finish(m, slot);
    return true;
}

static void match(struct model *m, uint32_t from, uint32_t to)
{
    while (!m->failed) {
        struct slot *send = oldest(m, from, to, false), *recv = send ? oldest(m, to, from, true) : NULL;
        if (!recv) return;
        const struct weft_action *s = &send->action, *r = &recv->action;
        if (s->message != r->message || s->count != r->count || s->wide != r->wide) {
            fault(m, "rank %u sends message %u of %llu%s, rank %u awaits message %u of %llu%s", from,
                  s->message, (unsigned long long)s->count, s->wide ? " partials" : "", to, r->message,
                  (unsigned long long)r->count, r->wide ? " partials" : "");
            return;
        }
        send->partner = recv;
        recv->partner = send;
        run(m, send);
    }
}

static void issue(struct model *m, struct slot *slot)
{
    const struct weft_action *a = &slot->action;
    slot->state = SLOT_POSTED;
    switch (a->kind) {
    case WEFT_ACTION_SEND: match(m, slot->rank, a->peer); break;
    case WEFT_ACTION_RECV_SUM:
    case WEFT_ACTION_RECV_FOLD:
    case WEFT_ACTION_RECV: match(m, a->peer, slot->rank); break;
    case WEFT_ACTION_FOLD:
    case WEFT_ACTION_PACK:
    case WEFT_ACTION_SUM:
    case WEFT_ACTION_COPY: run(m, slot); break;
    default: over(m, slot);
    }
}

static bool same_lane(const struct weft_action *a, const struct weft_action *b)
{
    bool a_sends = a->kind == WEFT_ACTION_SEND, b_sends = b->kind == WEFT_ACTION_SEND;
    return a->peer == b->peer && ((a_sends && b_sends) || (is_receive(a->kind) && is_receive(b->kind)));
}

/* A fold also needs the contributions of its buffer; the plan orders them before it. */
static bool ready(struct model *m, struct rank *r, uint64_t number)
{
    struct slot *slot = &r->slots[number % m->c->window];
    uint64_t depends = slot->action.depends;
    if (slot->action.after && number - slot->action.after >= r->tail) return false;
    if (depends && number - depends >= r->tail &&
        r->slots[(number - depends) % m->c->window].state != SLOT_DONE)
        return false;
    if (slot->action.kind == WEFT_ACTION_FOLD && number != r->tail) return false;
    for (uint64_t earlier = r->tail; earlier < number; earlier++) {
        struct slot *other = &r->slots[earlier % m->c->window];
        if (other->state == SLOT_WAITING && same_lane(&other->action, &slot->action)) return false;
    }
    return true;
}

static void advance(struct model *m, uint32_t rank)
{
    struct rank *r = &m->ranks[rank];
    bool moved = true;
    while (moved && !m->failed) {
        moved = false;
        while (r->tail < r->head && r->slots[r->tail % m->c->window].state == SLOT_DONE) r->tail++;
        while (!r->ended && r->head - r->tail < m->c->window) {
            struct slot *slot = &r->slots[r->head % m->c->window];
            weft_plan_next(&r->cursor, &slot->action);
            if (slot->action.kind == WEFT_ACTION_DONE) {
                r->ended = true;
                break;
            }
            slot->rank = rank;
            slot->partner = NULL;
            slot->state = SLOT_WAITING;
            if (!in_bounds(m, rank, &slot->action) || !keeps_order(m, rank, r->head, &slot->action)) return;
            r->head++;
            moved = true;
        }
        for (uint64_t number = r->tail; number < r->head && !m->failed; number++) {
            struct slot *slot = &r->slots[number % m->c->window];
            if (slot->state != SLOT_WAITING || !ready(m, r, number)) continue;
            issue(m, slot);
            moved = true;
        }
    }
}

/* ---- set up, expectation ---- */

/* A ring or a chain: from the rank after `last` around to it. */
static uint64_t around(const uint64_t *leaves, uint32_t ranks, uint32_t last)
{
    uint64_t value = leaves[(last + 1) % ranks];
    for (uint32_t n = 2; n <= ranks; n++) value = sum(value, leaves[(last + n) % ranks]);
    return finished(value);
}

/* The double tree's sum at a place of one tree, from the rule of parents: (lower child + own) + upper
 * child. */
static uint32_t parent_place(uint32_t place, uint32_t ranks)
{
    uint32_t lowest = place & (~place + 1);
    uint64_t up = (uint64_t)(place - lowest) | 2ull * lowest;
    return up < ranks ? (uint32_t)up : place - lowest;
}
static uint64_t tree_at(const uint64_t *leaves, uint32_t ranks, bool second, uint32_t place)
{
    uint32_t rank = !second ? place : ranks % 2 ? (place + 1) % ranks : ranks - 1 - place;
    uint64_t value = leaves[rank];
    for (uint32_t child = 1; child < place; child++)
        if (parent_place(child, ranks) == place) value = sum(tree_at(leaves, ranks, second, child), value);
    for (uint32_t child = place + 1; child < ranks; child++)
        if (parent_place(child, ranks) == place) value = sum(value, tree_at(leaves, ranks, second, child));
    return value;
}

static uint64_t reduced(struct model *m, uint64_t element, uint32_t slice, uint64_t *leaves)
{
    const struct plan_case *c = m->c;
    for (uint32_t r = 0; r < c->ranks; r++) leaves[r] = leaf(r, element);
    if (c->plan == WEFT_PLAN_HIERARCHY && c->ranks > 1) {
        uint64_t sums[5000], members[5000];
        for (uint32_t h = 0; h < c->hosts->count; h++) {
            uint32_t first = c->hosts->first[h], size = c->hosts->first[h + 1] - first;
            for (uint32_t i = 0; i < size; i++) members[i] = leaves[c->hosts->members[first + i]];
            sums[h] = tree(members, 1, 0, size);
        }
        uint64_t total = tree(sums, 1, 0, c->hosts->count);
        if (c->hosts->subtrees && total != tree(leaves, 1, 0, c->ranks))
            fault(m, "hosts are called subtrees of T, and are not");
        return finished(total);
    }
    if (c->ranks == 1 || weft_plan_reproducible(c->plan, NULL)) return finished(tree(leaves, 1, 0, c->ranks));
    if (c->plan == WEFT_PLAN_PAT) { /* T over the ranks from the owner on */
        uint64_t turned[5000];
        for (uint32_t r = 0; r < c->ranks; r++) turned[r] = leaves[(slice + r) % c->ranks];
        return finished(tree(turned, 1, 0, c->ranks));
    }
    uint64_t in_row[5000]; /* by number, or in ring order */
    for (uint32_t i = 0; i < c->ranks; i++) in_row[i] = leaves[c->hosts ? c->hosts->ring_order[i] : i];
    if (c->plan == WEFT_PLAN_DOUBLE_TREE)
        return finished(tree_at(in_row, c->ranks, element / c->chunk_elems & 1, 0));
    uint32_t last = c->plan == WEFT_PLAN_CHAIN ? c->root : slice;
    return around(in_row, c->ranks, c->hosts ? c->hosts->ring_position[last] : last);
}

static uint64_t expected(struct model *m, uint32_t rank, uint64_t i, uint64_t *leaves)
{
    const struct plan_case *c = m->c;
    uint32_t piece = 0;
    switch (c->kind) {
    case WEFT_COLL_BROADCAST: return leaf(c->root, i);
    case WEFT_COLL_ALL_GATHER_BYTES: return leaf((uint32_t)(i / c->count), i % c->count);
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_GATHER:
        if (!c->cuts) return leaf((uint32_t)(i / c->count), i % c->count);
        while (piece_first(c, piece + 1) <= i) piece++;
        return leaf(piece, i - piece_first(c, piece));
    case WEFT_COLL_SCATTER: return leaf(c->root, piece_first(c, rank) + i);
    case WEFT_COLL_ALL_TO_ALL: {
        const struct rank *r = &m->ranks[rank];
        if (!c->cuts) return leaf((uint32_t)(i / c->count), rank * c->count + i % c->count);
        while (r->cuts_out[piece + 1] <= i) piece++;
        return leaf(piece, m->ranks[piece].cuts_in[rank] + i - r->cuts_out[piece]);
    }
    case WEFT_COLL_REDUCE_SCATTER: return reduced(m, piece_first(c, rank) + i, rank, leaves);
    default:
        while (weft_plan_slice_first(&m->args, piece + 1) <= i) piece++;
        return reduced(m, i, piece, leaves);
    }
}

/* Unequal pieces: elements that rank `from` has for rank `to`. */
static uint64_t exchanged(const struct plan_case *c, uint32_t from, uint32_t to)
{
    return (from * 7ull + to * 3ull) % (c->count + 1);
}

static void set_up(struct model *m, uint32_t rank)
{
    const struct plan_case *c = m->c;
    struct rank *r = &m->ranks[rank];
    struct weft_plan_args args = m->args;
    args.rank = rank;
    r->in_count = in_elements(c, rank);
    r->out_count = out_elements(c, rank);
    if (c->kind == WEFT_COLL_ALL_TO_ALL && c->cuts) {
        r->cuts_in = calloc(c->ranks + 1, sizeof(uint64_t));
        r->cuts_out = calloc(c->ranks + 1, sizeof(uint64_t));
        for (uint32_t peer = 0; peer < c->ranks; peer++) {
            r->cuts_in[peer + 1] = r->cuts_in[peer] + exchanged(c, rank, peer);
            r->cuts_out[peer + 1] = r->cuts_out[peer] + exchanged(c, peer, rank);
        }
        r->in_count = r->cuts_in[c->ranks];
        r->out_count = r->cuts_out[c->ranks];
        /* the longest piece that this rank knows */
        args.displs_in = r->cuts_in, args.displs_out = r->cuts_out, args.count = 0;
        for (uint32_t peer = 0; peer < c->ranks; peer++) {
            if (exchanged(c, rank, peer) > args.count) args.count = exchanged(c, rank, peer);
            if (exchanged(c, peer, rank) > args.count) args.count = exchanged(c, peer, rank);
        }
    } else if (c->cuts && (c->kind == WEFT_COLL_GATHER || c->kind == WEFT_COLL_SCATTER) && rank != c->root) {
        args.displs_in = args.displs_out = NULL; /* only the root knows all lengths */
        args.count = piece_count(c, rank);
    }
    args.own_lengths = c->cuts && (c->kind == WEFT_COLL_GATHER || c->kind == WEFT_COLL_SCATTER ||
                                   c->kind == WEFT_COLL_ALL_TO_ALL);
    weft_plan_begin(&r->cursor, &args);
    bool looked_at = rank % (c->ranks / 24 + 1) == 0 || rank + 2 > c->ranks;
    r->past = looked_at ? calloc(HISTORY, sizeof *r->past) : NULL;
    r->slots = calloc(c->window, sizeof *r->slots);
    uint64_t both = r->in_count > r->out_count ? r->in_count : r->out_count;
    bool out_inside = c->kind == WEFT_COLL_REDUCE_SCATTER || c->kind == WEFT_COLL_SCATTER;
    bool in_inside = gathers(c) || c->kind == WEFT_COLL_GATHER;
    if (c->in_place) {
        uint64_t *whole = calloc(both + 1, sizeof *whole);
        r->in = whole + (in_inside && r->out_count ? piece_first(c, rank) : 0);
        r->out = whole + (out_inside && r->in_count ? piece_first(c, rank) : 0);
    } else {
        r->in = calloc(r->in_count + 1, sizeof *r->in);
        r->out = calloc(r->out_count + 1, sizeof *r->out);
    }
    for (uint64_t i = 0; i < r->in_count; i++) r->in[i] = leaf(rank, i);
    if (c->kind == WEFT_COLL_BROADCAST && rank == c->root)
        for (uint64_t i = 0; i < r->out_count; i++) r->out[i] = leaf(rank, i);
    r->scratch = calloc(weft_plan_scratch(&args) + 1, sizeof *r->scratch);
    r->scratch_count = weft_plan_scratch(&args);
    r->fold_count = weft_plan_fold_count(&args);
    r->folds = calloc(r->fold_count + 1, sizeof *r->folds);
}

static void tear_down(struct model *m, uint32_t rank)
{
    struct rank *r = &m->ranks[rank];
    bool in_first = r->in <= r->out; /* in place both lie in one allocation that starts at the lower one */
    if (m->c->in_place) {
        free(in_first ? r->in : r->out);
    } else {
        free(r->in);
        free(r->out);
    }
    for (uint32_t a = 0; a < r->fold_count; a++) {
        free(r->folds[a].elements);
        free(r->folds[a].present);
    }
    free(r->folds);
    free(r->past);
    free(r->slots);
    free(r->scratch);
    free(r->cuts_in);
    free(r->cuts_out);
}

static void check_end(struct model *m)
{
    const struct plan_case *c = m->c;
    uint64_t *leaves = calloc(c->ranks, sizeof *leaves), *wanted = NULL;
    uint64_t wanted_count = 0;
    for (uint32_t rank = 0; rank < c->ranks && !m->failed; rank++) {
        struct rank *r = &m->ranks[rank];
        if (!r->ended || r->tail != r->head) {
            struct slot *slot = &r->slots[r->tail % c->window];
            fault(m, "deadlock: rank %u stands at step %llu (kind %d, peer %u)", rank,
                  (unsigned long long)r->tail, (int)slot->action.kind, slot->action.peer);
        }
        /* on all ranks */
        bool is_equal_on_ranks =
            c->kind == WEFT_COLL_ALL_REDUCE || gathers(c) || c->kind == WEFT_COLL_BROADCAST;
        if (!wanted || !is_equal_on_ranks) {
            wanted_count = r->out_count;
            wanted = realloc(wanted, (wanted_count + 1) * sizeof *wanted);
            for (uint64_t i = 0; i < wanted_count; i++) wanted[i] = expected(m, rank, i, leaves);
        }
        for (uint64_t i = 0; i < wanted_count && !m->failed; i++)
            if (r->out[i] != wanted[i])
                fault(m, "rank %u, element %llu: not the declared sum", rank, (unsigned long long)i);
    }
    free(leaves);
    free(wanted);
}

static uint64_t longest_piece(const struct plan_case *c)
{
    uint64_t longest = 0;
    for (uint32_t r = 0; r < c->ranks; r++)
        if (piece_count(c, r) > longest) longest = piece_count(c, r);
    return longest;
}

static void open_model(struct model *m, const struct plan_case *c, char *why, size_t why_bytes)
{
    *m = (struct model){.c = c, .why = why, .why_bytes = why_bytes, .random = c->seed};
    m->args = (struct weft_plan_args){.plan = c->plan,
                                      .kind = c->kind,
                                      .ranks = c->ranks,
                                      .root = c->root,
                                      .count = c->count,
                                      .chunk_elems = c->chunk_elems,
                                      .lanes = c->lanes,
                                      .hosts = c->hosts,
                                      .slice_weights = c->slice_weights,
                                      .wide = c->plan == WEFT_PLAN_RING && c->kind != WEFT_COLL_ALL_GATHER &&
                                              c->count % 2};
    if (c->cuts && c->kind != WEFT_COLL_ALL_TO_ALL) {
        m->args.displs_in = m->args.displs_out = c->cuts;
        m->args.count = longest_piece(c);
    }
    m->ranks = calloc(c->ranks, sizeof *m->ranks);
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        set_up(m, rank);
        m->ranks[rank].woken = true;
    }
}

static void close_model(struct model *m)
{
    if (!m->failed) check_end(m);
    for (uint32_t rank = 0; rank < m->c->ranks; rank++) tear_down(m, rank);
    free(m->ranks), free(m->running);
}

bool plan_model_run(const struct plan_case *c, char *why, size_t why_bytes)
{
    struct model m;
    open_model(&m, c, why, why_bytes);
    for (bool woken = true; woken && !m.failed;) {
        woken = false;
        for (uint32_t rank = 0; rank < c->ranks; rank++) {
            if (!m.ranks[rank].woken) continue;
            m.ranks[rank].woken = false;
            woken = true;
            advance(&m, rank);
        }
        if (!woken) woken = finish_any(&m);
    }
    close_model(&m);
    return !m.failed;
}

/* Advances a random rank or message of one group; false: the group has nothing left to do. */
static bool turn(struct model *m, uint64_t random)
{
    if (random % 3 == 0 && finish_any(m)) return true;
    for (uint32_t n = 0; n < m->c->ranks; n++) {
        uint32_t rank = (uint32_t)((random / 3 + n) % m->c->ranks);
        if (!m->ranks[rank].woken) continue;
        m->ranks[rank].woken = false;
        advance(m, rank);
        return true;
    }
    return finish_any(m);
}

bool plan_model_run_together(const struct plan_case *cases, size_t count, uint64_t seed, char *why,
                             size_t why_bytes)
{
    struct model models[PLAN_MODEL_GROUPS_MAX];
    bool good = true, more = true;
    for (size_t i = 0; i < count; i++) open_model(&models[i], &cases[i], why, why_bytes);
    while (more && good) {
        seed = mix(seed + 1);
        size_t first = seed % count;
        more = false;
        for (size_t i = 0; i < count && !more; i++) more = turn(&models[(first + i) % count], seed >> 8);
        for (size_t i = 0; i < count; i++) good &= !models[i].failed;
    }
    for (size_t i = 0; i < count; i++) {
        close_model(&models[i]);
        good &= !models[i].failed;
    }
    return good;
}
