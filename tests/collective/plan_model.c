/* plan_model.c - see plan_model.h. */
#include "tests/collective/plan_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX 64

enum slot_state { SLOT_WAITING, SLOT_ISSUED, SLOT_OVER };

struct slot {
    struct weft_action action;
    enum slot_state state;
    struct slot *queued; /* next of the same pair and direction */
    uint32_t rank;
};

struct area {
    uint64_t *elements;   /* fold: (ranks, chunk); ring: (chunk,) */
    uint8_t *present;     /* fold: (ranks,) */
    bool filling;         /* a receive into it is not over */
};

struct rank {
    struct weft_plan_cursor cursor;
    uint64_t *in, *out;
    struct area *areas;
    struct slot slots[WINDOW_MAX];
    uint64_t head, tail;
    bool ended, woken;
};

struct model {
    const struct plan_case *c;
    struct weft_plan_args args;
    struct rank *ranks;
    struct slot **sends, **recvs;       /* (ranks, ranks) oldest unmatched */
    struct slot **sends_last, **recvs_last;
    uint32_t area_count;
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

static uint64_t in_elements(const struct plan_case *c)
{
    if (c->kind == WEFT_COLL_BARRIER) return 0;
    return c->kind == WEFT_COLL_REDUCE_SCATTER ? c->count * c->ranks : c->count;
}
static bool gathers(const struct plan_case *c)
{
    return c->kind == WEFT_COLL_ALL_GATHER || c->kind == WEFT_COLL_ALL_GATHER_BYTES;
}
static uint64_t out_elements(const struct plan_case *c)
{
    if (c->kind == WEFT_COLL_BARRIER) return 0;
    return gathers(c) ? c->count * c->ranks : c->count;
}
static bool direct(const struct plan_case *c) { return c->plan == WEFT_PLAN_DIRECT; }

/* ---- what a step may touch ---- */
static bool in_bounds(struct model *m, const struct slot *slot)
{
    const struct weft_action *a = &slot->action;
    uint64_t in_n = in_elements(m->c), out_n = out_elements(m->c);
    bool reads_in = (a->kind == WEFT_ACTION_SEND && a->place == WEFT_PLACE_INPUT) || a->kind == WEFT_ACTION_FOLD ||
                    a->kind == WEFT_ACTION_RECV_SUM || a->kind == WEFT_ACTION_COPY;
    bool uses_out = (a->kind == WEFT_ACTION_SEND && a->place == WEFT_PLACE_OUTPUT) || a->kind == WEFT_ACTION_FOLD ||
                    a->kind == WEFT_ACTION_RECV || a->kind == WEFT_ACTION_COPY || (a->kind == WEFT_ACTION_RECV_SUM && a->last);
    bool uses_area = a->kind == WEFT_ACTION_RECV_FOLD || a->kind == WEFT_ACTION_FOLD || a->kind == WEFT_ACTION_RECV_SUM ||
                     (a->kind == WEFT_ACTION_SEND && a->place == WEFT_PLACE_AREA);
    if (a->count > m->c->chunk_elems) return fault(m, "a step of %llu elements", (unsigned long long)a->count);
    if (reads_in && (a->offset_in > in_n || a->count > in_n - a->offset_in)) return fault(m, "reads past the input");
    if (uses_out && (a->offset > out_n || a->count > out_n - a->offset)) return fault(m, "past the output");
    if (uses_area && a->area >= m->area_count) return fault(m, "area %u of %u", a->area, m->area_count);
    bool talks = a->kind == WEFT_ACTION_SEND || a->kind == WEFT_ACTION_RECV || a->kind == WEFT_ACTION_RECV_FOLD ||
                 a->kind == WEFT_ACTION_RECV_SUM;
    if (talks && (a->peer >= m->c->ranks || a->peer == slot->rank)) return fault(m, "rank %u talks to rank %u", slot->rank, a->peer);
    return true;
}

static const uint64_t *send_source(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    if (slot->action.place == WEFT_PLACE_INPUT) return r->in + slot->action.offset_in;
    if (slot->action.place == WEFT_PLACE_OUTPUT) return r->out + slot->action.offset;
    return r->areas[slot->action.area].elements;
}

static void receive_payload(struct model *m, struct slot *recv, const uint64_t *data)
{
    struct rank *r = &m->ranks[recv->rank];
    const struct weft_action *a = &recv->action;
    if (a->kind == WEFT_ACTION_RECV) {
        if (a->count) memmove(r->out + a->offset, data, a->count * sizeof *data);
        return;
    }
    struct area *area = &r->areas[a->area];
    if (a->kind == WEFT_ACTION_RECV_FOLD) {
        if (area->present[a->peer]) fault(m, "rank %u gets the contribution of rank %u twice", recv->rank, a->peer);
        area->present[a->peer] = 1;
        memcpy(area->elements + a->peer * m->c->chunk_elems, data, a->count * sizeof *data);
        return;
    }
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t value = sum(data[i], r->in[a->offset_in + i]);
        if (a->last) r->out[a->offset + i] = finished(value);
        else area->elements[i] = value;
    }
    area->filling = false;
}

static void fold(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    const struct weft_action *a = &slot->action;
    struct area *area = &r->areas[a->area];
    for (uint32_t peer = 0; peer < m->c->ranks; peer++)
        if (area->present[peer] != (peer != slot->rank)) fault(m, "rank %u folds without rank %u", slot->rank, peer);
    memcpy(area->elements + slot->rank * m->c->chunk_elems, r->in + a->offset_in, a->count * sizeof(uint64_t));
    for (uint64_t i = 0; i < a->count; i++)
        r->out[a->offset + i] = finished(tree(area->elements + i, m->c->chunk_elems, 0, m->c->ranks));
    memset(area->present, 0, m->c->ranks);
}

/* ---- the interpreter in small ---- */
static void over(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    slot->state = SLOT_OVER;
    r->woken = true;
}

static void enqueue(struct slot **first, struct slot **last, struct slot *slot)
{
    slot->queued = NULL;
    if (*first) (*last)->queued = slot;
    else *first = slot;
    *last = slot;
}

static void match(struct model *m, uint32_t from, uint32_t to)
{
    size_t pair = (size_t)from * m->c->ranks + to;
    while (m->sends[pair] && m->recvs[pair] && !m->failed) {
        struct slot *send = m->sends[pair], *recv = m->recvs[pair];
        m->sends[pair] = send->queued;
        m->recvs[pair] = recv->queued;
        if (send->action.message != recv->action.message || send->action.count != recv->action.count) {
            fault(m, "rank %u sends message %u of %llu, rank %u awaits message %u of %llu", from, send->action.message,
                  (unsigned long long)send->action.count, to, recv->action.message, (unsigned long long)recv->action.count);
            return;
        }
        receive_payload(m, recv, send_source(m, send));
        over(m, send);
        over(m, recv);
    }
}

/* An earlier send of the same area is not over. */
static bool area_is_sent(struct model *m, struct rank *r, const struct slot *slot)
{
    for (uint64_t number = r->tail; number < r->head; number++) {
        struct slot *other = &r->slots[number % m->c->window];
        if (other == slot) return false;
        if (other->state != SLOT_OVER && other->action.kind == WEFT_ACTION_SEND && other->action.place == WEFT_PLACE_AREA &&
            other->action.area == slot->action.area)
            return true;
    }
    return false;
}

static void issue(struct model *m, struct slot *slot)
{
    struct rank *r = &m->ranks[slot->rank];
    const struct weft_action *a = &slot->action;
    slot->state = SLOT_ISSUED;
    if (!in_bounds(m, slot)) return;
    switch (a->kind) {
    case WEFT_ACTION_SEND:
        if (a->place == WEFT_PLACE_AREA && r->areas[a->area].filling) fault(m, "sends an area that is not summed yet");
        enqueue(&m->sends[(size_t)slot->rank * m->c->ranks + a->peer], &m->sends_last[(size_t)slot->rank * m->c->ranks + a->peer], slot);
        match(m, slot->rank, a->peer);
        break;
    case WEFT_ACTION_RECV_SUM:
        if (r->areas[a->area].filling || area_is_sent(m, r, slot)) fault(m, "receives into an area in use");
        r->areas[a->area].filling = true; /* fall through */
    case WEFT_ACTION_RECV_FOLD:
    case WEFT_ACTION_RECV:
        enqueue(&m->recvs[(size_t)a->peer * m->c->ranks + slot->rank], &m->recvs_last[(size_t)a->peer * m->c->ranks + slot->rank], slot);
        match(m, a->peer, slot->rank);
        break;
    case WEFT_ACTION_FOLD:
        fold(m, slot);
        over(m, slot);
        break;
    case WEFT_ACTION_COPY:
        for (uint64_t i = 0; i < a->count; i++) {
            uint64_t value = r->in[a->offset_in + i];
            r->out[a->offset + i] = a->last ? finished(value) : value;
        }
        over(m, slot);
        break;
    default:
        over(m, slot);
    }
}

static bool same_lane(const struct weft_action *a, const struct weft_action *b)
{
    bool a_sends = a->kind == WEFT_ACTION_SEND, b_sends = b->kind == WEFT_ACTION_SEND;
    bool a_recvs = a->kind == WEFT_ACTION_RECV || a->kind == WEFT_ACTION_RECV_FOLD || a->kind == WEFT_ACTION_RECV_SUM;
    bool b_recvs = b->kind == WEFT_ACTION_RECV || b->kind == WEFT_ACTION_RECV_FOLD || b->kind == WEFT_ACTION_RECV_SUM;
    return a->peer == b->peer && ((a_sends && b_sends) || (a_recvs && b_recvs));
}

/* Fold steps also need what their area awaits; the plan puts it all before them. */
static bool ready(struct model *m, struct rank *r, uint64_t number)
{
    struct slot *slot = &r->slots[number % m->c->window];
    uint64_t depends = slot->action.depends;
    if (slot->action.fence && number != r->tail) return false;
    if (depends && number - depends >= r->tail && r->slots[(number - depends) % m->c->window].state != SLOT_OVER) return false;
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
        while (r->tail < r->head && r->slots[r->tail % m->c->window].state == SLOT_OVER) r->tail++;
        while (!r->ended && r->head - r->tail < m->c->window) {
            struct slot *slot = &r->slots[r->head % m->c->window];
            weft_plan_next(&r->cursor, &slot->action);
            if (slot->action.kind == WEFT_ACTION_DONE) {
                r->ended = true;
                break;
            }
            slot->rank = rank;
            slot->state = SLOT_WAITING;
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
static uint64_t expected(struct model *m, uint32_t rank, uint64_t i, uint64_t *leaves)
{
    const struct plan_case *c = m->c;
    if (c->kind == WEFT_COLL_BROADCAST) return leaf(c->root, i);
    if (gathers(c)) return leaf((uint32_t)(i / c->count), i % c->count);
    uint64_t element = c->kind == WEFT_COLL_REDUCE_SCATTER ? rank * c->count + i : i;
    uint32_t slice = 0;
    while (weft_plan_slice_first(&m->args, slice + 1) <= element) slice++;
    for (uint32_t r = 0; r < c->ranks; r++) leaves[r] = leaf(r, element);
    if (direct(c) || c->ranks == 1) return finished(tree(leaves, 1, 0, c->ranks));
    uint64_t value = leaves[(slice + 1) % c->ranks];
    for (uint32_t n = 2; n <= c->ranks; n++) value = sum(value, leaves[(slice + n) % c->ranks]);
    return finished(value);
}

static void set_up(struct model *m, uint32_t rank)
{
    const struct plan_case *c = m->c;
    struct rank *r = &m->ranks[rank];
    struct weft_plan_args args = m->args;
    args.rank = rank;
    weft_plan_begin(&r->cursor, &args);
    uint64_t in_n = in_elements(c), out_n = out_elements(c), both = in_n > out_n ? in_n : out_n;
    if (c->in_place) {
        uint64_t *whole = calloc(both + 1, sizeof *whole);
        r->in = whole + (gathers(c) ? rank * c->count : 0);
        r->out = whole + (c->kind == WEFT_COLL_REDUCE_SCATTER ? rank * c->count : 0);
    } else {
        r->in = calloc(in_n + 1, sizeof *r->in);
        r->out = calloc(out_n + 1, sizeof *r->out);
    }
    for (uint64_t i = 0; i < in_n; i++) r->in[i] = leaf(rank, i);
    if (c->kind == WEFT_COLL_BROADCAST && rank == c->root)
        for (uint64_t i = 0; i < out_n; i++) r->out[i] = leaf(rank, i);
    r->areas = calloc(m->area_count + 1, sizeof *r->areas);
    size_t depth = direct(c) ? c->ranks : 1;
    for (uint32_t a = 0; a < m->area_count; a++) {
        r->areas[a].elements = calloc(depth * c->chunk_elems, sizeof(uint64_t));
        r->areas[a].present = calloc(depth, 1);
    }
}

static void tear_down(struct model *m, uint32_t rank)
{
    struct rank *r = &m->ranks[rank];
    bool in_first = r->in <= r->out; /* in place both lie in one allocation that starts at the lower one */
    if (m->c->in_place) free(gathers(m->c) ? r->out : in_first ? r->in : r->out);
    else free(r->in), free(r->out);
    for (uint32_t a = 0; a < m->area_count; a++) free(r->areas[a].elements), free(r->areas[a].present);
    free(r->areas);
}

static void check_end(struct model *m)
{
    const struct plan_case *c = m->c;
    uint64_t n = out_elements(c), *leaves = calloc(c->ranks, sizeof *leaves), *wanted = calloc(n + 1, sizeof *wanted);
    for (uint32_t rank = 0; rank < c->ranks && !m->failed; rank++) {
        struct rank *r = &m->ranks[rank];
        if (!r->ended || r->tail != r->head) {
            struct slot *slot = &r->slots[r->tail % c->window];
            fault(m, "deadlock: rank %u stands at step %llu (kind %d, peer %u)", rank, (unsigned long long)r->tail,
                  (int)slot->action.kind, slot->action.peer);
        }
        bool own = c->kind == WEFT_COLL_REDUCE_SCATTER; /* else all ranks hold the same */
        for (uint64_t i = 0; i < n && (own || rank == 0); i++) wanted[i] = expected(m, rank, i, leaves);
        for (uint64_t i = 0; i < n && !m->failed; i++)
            if (r->out[i] != wanted[i]) fault(m, "rank %u, element %llu: not the declared sum", rank, (unsigned long long)i);
    }
    free(leaves);
    free(wanted);
}

bool plan_model_run(const struct plan_case *c, char *why, size_t why_bytes)
{
    size_t pairs = (size_t)c->ranks * c->ranks;
    struct model m = {.c = c, .why = why, .why_bytes = why_bytes};
    m.args = (struct weft_plan_args){.plan = c->plan, .kind = c->kind, .ranks = c->ranks, .root = c->root, .count = c->count,
                                     .chunk_elems = c->chunk_elems, .lanes = c->lanes};
    m.area_count = weft_plan_areas(&m.args);
    m.ranks = calloc(c->ranks, sizeof *m.ranks);
    m.sends = calloc(pairs, sizeof *m.sends);
    m.recvs = calloc(pairs, sizeof *m.recvs);
    m.sends_last = calloc(pairs, sizeof *m.sends_last);
    m.recvs_last = calloc(pairs, sizeof *m.recvs_last);
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        set_up(&m, rank);
        m.ranks[rank].woken = true;
    }
    for (bool woken = true; woken && !m.failed;) {
        woken = false;
        for (uint32_t rank = 0; rank < c->ranks; rank++) {
            if (!m.ranks[rank].woken) continue;
            m.ranks[rank].woken = false;
            woken = true;
            advance(&m, rank);
        }
    }
    if (!m.failed) check_end(&m);
    for (size_t pair = 0; pair < pairs && !m.failed; pair++)
        if (m.sends[pair] || m.recvs[pair]) fault(&m, "a message without its other end");
    for (uint32_t rank = 0; rank < c->ranks; rank++) tear_down(&m, rank);
    free(m.ranks), free(m.sends), free(m.recvs), free(m.sends_last), free(m.recvs_last);
    return !m.failed;
}
