/* sim_verbs_stream.c - two verbs streams over modelled queue pairs and a modelled link; one world per
 * seed.
 *
 *     sim_verbs_stream [--seeds N] [--first S] [--verbose] [--expect-caught]
 *
 * The model permits the worst behaviour of a reliable queue pair. Writes land in any order; only an
 * immediate waits for earlier writes. Bytes are read from the sender's memory when they land, not when
 * they are posted. Acknowledgements are late, or lost because the queue pair breaks after landing. Works
 * of a broken queue pair may land until the *receiver* has fenced its own. Windows close under puts and
 * gets; create, join and post fail at times; a peer dies.
 *
 * Safety, in every world: messages arrive once, in order, with the right bits. A send's source is
 * overwritten after its completion and a receive's buffer is poisoned, so a late access is detected. No
 * write lands outside the ring, a granted buffer or a window. Unconsumed eager bytes stay below the
 * budget. Liveness: every operation ends, with WEFT_OK unless a peer or all rails died. A failing seed
 * prints the command that replays it.
 *
 * --expect-caught inverts the result, for the deliberately broken variants of stream.h (STREAM_MUTANT). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/stream/stream.h"

enum {
    RING = 4096, DEPTH = 16, LANES = 4, CHUNK = 256, EAGER = 300,
    MESSAGES = 24, BYTES_MAX = 6000, QPS_MAX = 2048, WORKS_MAX = 64, EVENTS_MAX = 4096, PACKETS_MAX = 512,
    STEPS_MAX = 200000,
};

enum trouble { CALM, BREAKS, STORM, DEATH, RAILS_DIE, VAIN, LEAVE };
static const char *const trouble_names[] = {
    "calm", "breaks", "storm", "a peer dies", "all rails die", "nothing gets through", "a leave"};

struct posted {
    struct stream_work work;
    bool landed, done;
};

/* One queue pair and its works. */
struct qp {
    int side;
    uint32_t lane, epoch;
    struct qp *peer;
    bool joined, error, told_error, fence_asked, fenced;
    struct posted works[WORKS_MAX]; /* a ring: reported works are dropped */
    uint32_t count, acked;          /* works posted; acknowledged to the sender */
};

enum event_kind { EVENT_JOINED, EVENT_IMM, EVENT_ACKED, EVENT_REFUSED, EVENT_BROKE, EVENT_FENCED };
struct event {
    enum event_kind kind;
    struct qp *qp;
    uint32_t imm;
    uint64_t index;
};

struct packet {
    uint32_t count;
    uint8_t bytes[STREAM_CONTROL_BYTES_MAX];
};

enum item_kind { ITEM_MESSAGE, ITEM_PUT, ITEM_GET };

/* One operation and its receiving half. */
struct item {
    struct stream_send send;
    struct stream_receive receive;
    enum item_kind kind;
    uint32_t number, bytes, header_bytes;
    bool started, sent, sent_ok, arrived, accepted, discarded, received, taken, buffer_live, eager, closed;
    uint8_t source[BYTES_MAX], buffer[BYTES_MAX];
};

struct side {
    int index;
    struct stream *stream;
    uint8_t *ring, *staging;
    struct event events[EVENTS_MAX];
    uint32_t event_first, event_count;
    struct packet packets[PACKETS_MAX]; /* in flight to this side */
    uint32_t letter_first, letter_count;
    struct item items[MESSAGES]; /* operations that it starts */
    uint32_t started, next_arrival; /* next_arrival: of the peer's messages */
    bool dead, told_lost, ended, left, rails_dead;
};

static struct world {
    uint64_t seed, random, now_ns;
    enum trouble trouble;
    uint32_t breaks_left, lanes;
    struct side sides[2];
    struct qp *qps[QPS_MAX];
    uint32_t qp_count;
    struct qp *newest[2][LANES];
    struct weft_env env;
    bool failed, verbose;
    bool deaf; /* queue pairs connect, but nothing posted on them arrives */
    char what[200];
    uint64_t breaks;
    int dying;
    uint32_t trouble_step;
} world;

static bool quiet;
static uint64_t total_breaks, total_steps;

static uint64_t next_random(void)
{
    uint64_t z = (world.random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static uint64_t draw(uint64_t below) { return next_random() % below; }
static bool chance(uint32_t percent) { return draw(100) < percent; }

static void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void violation(const char *format, ...)
{
    if (world.failed) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world.what, sizeof world.what, format, arguments);
    va_end(arguments);
    world.failed = true;
}

static uint8_t pattern(int side, uint32_t number, uint32_t at)
{
    return (uint8_t)((number * 2654435761u + (uint32_t)side * 97 + at * 40503u) >> 9 | 1);
}

static void fill(uint8_t *bytes, uint32_t count, int side, uint32_t number)
{
    for (uint32_t i = 0; i < count; i++) bytes[i] = pattern(side, number, i);
}
static bool filled(const uint8_t *bytes, uint32_t count, int side, uint32_t number)
{
    for (uint32_t i = 0; i < count; i++) {
        if (bytes[i] != pattern(side, number, i)) return false;
    }
    return true;
}
static bool poisoned(const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (bytes[i] != 0xDD) return false;
    }
    return true;
}

/* a real clock is later at each reading */
static uint64_t sim_now(struct weft_env *env) { return world.now_ns++; }

/* ---- requests of the streams ---- */

static struct posted *work_of(struct qp *qp, uint32_t number) { return &qp->works[number % WORKS_MAX]; }
static struct side *other(struct side *side) { return &world.sides[1 - side->index]; }

static void event_add(struct side *side, struct event event)
{
    if (side->event_count == EVENTS_MAX) {
        violation("more completions than works");
        return;
    }
    side->events[(side->event_first + side->event_count++) % EVENTS_MAX] = event;
}

static struct qp *qp_find(int side, uint32_t lane, uint32_t epoch)
{
    for (uint32_t i = world.qp_count; i-- > 0;) {
        struct qp *qp = world.qps[i];
        if (qp->side == side && qp->lane == lane && qp->epoch == epoch) return qp;
    }
    return NULL;
}

static enum weft_status lane_make(void *context, uint32_t lane, uint32_t epoch, uint8_t *blob,
                                  uint32_t *bytes)
{
    struct side *side = context;
    if (side->rails_dead || (world.trouble != CALM && chance(5))) return WEFT_ERR_UNREACHABLE;
    if (world.qp_count == QPS_MAX) return WEFT_ERR_NO_MEMORY;
    struct qp *qp = calloc(1, sizeof *qp);
    qp->side = side->index;
    qp->lane = lane;
    qp->epoch = epoch;
    memcpy(blob, &world.qp_count, 4);
    *bytes = 4;
    world.qps[world.qp_count++] = world.newest[side->index][lane] = qp;
    return WEFT_OK;
}

static enum weft_status lane_join(void *context, uint32_t lane, uint32_t epoch, const uint8_t *blob,
                                  uint32_t bytes)
{
    struct side *side = context;
    struct qp *qp = qp_find(side->index, lane, epoch);
    uint32_t number;
    if (world.trouble != CALM && chance(4)) return WEFT_ERR_UNREACHABLE;
    memcpy(&number, blob, 4);
    qp->peer = world.qps[number];
    qp->joined = true; /* a connection manager may finish before it reports so */
    if (chance(70)) return WEFT_OK;
    event_add(side, (struct event){.kind = EVENT_JOINED, .qp = qp});
    return WEFT_IN_PROGRESS;
}

static void lane_fence(void *context, uint32_t lane, uint32_t epoch)
{
    struct side *side = context;
    qp_find(side->index, lane, epoch)->fence_asked = true;
}

static enum weft_status post(void *context, uint32_t lane, const struct stream_work *works, uint32_t count)
{
    struct side *side = context;
    struct qp *qp = world.newest[side->index][lane];
    if (!qp->joined || qp->fence_asked) violation("posted on a queue pair that is not up");
    if (world.trouble != CALM && world.breaks_left > 0 && chance(1)) {
        world.breaks_left--;
        return WEFT_ERR_AGAIN;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (qp->count - qp->acked >= DEPTH) violation("more works in flight than the lane is deep");
        if (works[i].index != qp->count)
            violation("work %llu posted as number %u", (unsigned long long)works[i].index, qp->count);
        *work_of(qp, qp->count++) = (struct posted){.work = works[i]};
    }
    return WEFT_OK;
}

static enum weft_status control(void *context, const void *bytes, uint32_t count)
{
    struct side *peer = other(context);
    if (chance(3)) return WEFT_ERR_AGAIN;
    if (peer->letter_count == PACKETS_MAX) {
        violation("the link is flooded");
        return WEFT_OK;
    }
    struct packet *packet = &peer->packets[(peer->letter_first + peer->letter_count++) % PACKETS_MAX];
    packet->count = count;
    memcpy(packet->bytes, bytes, count);
    return WEFT_OK;
}

static void item_taken(struct side *side, struct item *item)
{
    item->taken = true;
    stream_eager_taken(side->stream, item->header_bytes, item->kind == ITEM_MESSAGE ? item->bytes : 0);
}

static void arrived(void *context, const struct stream_arrival *incoming)
{
    struct side *side = context;
    uint32_t number = (uint32_t)incoming->tag & 0xffff;
    if (number >= MESSAGES || !other(side)->items[number].started) {
        violation("a message arrived that was not sent");
        return;
    }
    struct item *item = &other(side)->items[number];
    if (item->arrived) violation("message %u arrived twice", number);
    item->arrived = true;
    if (incoming->header_bytes != item->header_bytes ||
        !filled(incoming->header, incoming->header_bytes, 7, number))
        violation("message %u: wrong header", number);
    if (item->kind == ITEM_PUT) {
        if (!filled(item->buffer, item->bytes, 1 - side->index, number))
            violation("put %u: notified before the bytes were there", number);
        item_taken(side, item);
        return;
    }
    while (side->next_arrival < number && other(side)->items[side->next_arrival].kind != ITEM_MESSAGE)
        side->next_arrival++;
    if (number != side->next_arrival)
        violation("message %u arrived when %u was next", number, side->next_arrival);
    side->next_arrival = number + 1;
    if (incoming->payload_bytes != item->bytes)
        violation("message %u: %llu bytes instead of %u", number, (unsigned long long)incoming->payload_bytes,
                  item->bytes);
    item->eager = !incoming->announced;
    item->receive.id = incoming->id;
    if (item->eager && !filled(incoming->payload, item->bytes, 1 - side->index, number))
        violation("message %u: wrong bits in a small payload", number);
}

static void left(void *context) { ((struct side *)context)->left = true; }

static void sent(void *context, struct stream_send *send, enum weft_status status)
{
    struct item *item = weft_container_of(send, struct item, send);
    struct side *side = context;
    if (item->sent) violation("operation %u ended twice", item->number);
    item->sent = true;
    item->sent_ok = status == WEFT_OK;
    if (item->closed && status == WEFT_ERR_CANCELLED) item->sent_ok = true;
    else if (item->closed && status == WEFT_OK)
        violation("operation %u reached a closed window", item->number);
    if (item->kind == ITEM_GET) {
        if (item->sent_ok && !item->closed && !filled(item->source, item->bytes, 9, item->number))
            violation("get %u: wrong bits", item->number);
        memset(item->source, 0xDD, sizeof item->source);
        return;
    }
    if (item->kind == ITEM_MESSAGE && item->sent_ok && !item->send.eager && !item->arrived)
        violation("message %u ended before it arrived", item->number);
    if (!side->dead) memset(item->source, 0xEE, sizeof item->source);
}

static void received(void *context, struct stream_receive *receive, enum weft_status status)
{
    struct item *item = weft_container_of(receive, struct item, receive);
    struct side *side = context;
    if (item->received) violation("message %u was received twice", item->number);
    item->received = true;
    if (item->discarded || !item->buffer_live) return;
    if (status == WEFT_OK && !filled(item->buffer, item->bytes, 1 - side->index, item->number))
        violation("message %u: wrong bits", item->number);
    item->buffer_live = false;
    memset(item->buffer, 0xDD, sizeof item->buffer);
}

static void ended(void *context) { ((struct side *)context)->ended = true; }

static const struct stream_ops ops = {lane_make, lane_join, lane_fence, post,     control,
                                      arrived,   left,      sent,       received, ended};

/* ---- the wire ---- */

/* Whether this accesses a closed window: the device refuses it and the queue pair breaks. */
static bool refused(const struct side *owner, const struct posted *posted)
{
    const uint8_t *at = (const uint8_t *)(uintptr_t)posted->work.remote;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const struct item *item = &world.sides[1 - owner->index].items[i];
        if (item->closed && at >= item->buffer && at < item->buffer + BYTES_MAX)
            return posted->work.bytes > 0;
    }
    return false;
}

/* Whether these bytes of the peer's memory may be written. */
static uint8_t *target(struct side *owner, uint64_t address, uint32_t bytes, bool read)
{
    uint8_t *at = (uint8_t *)(uintptr_t)address;
    if (at >= owner->ring && at + bytes <= owner->ring + RING) return at;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct item *item = &other(owner)->items[i];
        bool inside = at >= item->buffer && at + bytes <= item->buffer + item->bytes;
        if (inside && (item->kind != ITEM_MESSAGE || item->buffer_live)) return at;
    }
    violation("%s memory that was never granted, or was given back", read ? "a read of" : "a write into");
    return NULL;
}

static void land(struct qp *qp, struct posted *posted)
{
    struct side *to = &world.sides[1 - qp->side];
    const struct stream_work *work = &posted->work;
    posted->landed = true;
    if (work->bytes == 0 || to->dead) return;
    uint8_t *at = target(to, work->remote, work->bytes, work->kind == STREAM_WORK_READ);
    if (!at) return;
    if (work->kind == STREAM_WORK_READ) memcpy(work->local, at, work->bytes);
    else memcpy(at, work->local, work->bytes);
}

/* Executes one step of this queue pair at the peer; false: none is possible. */
static bool wire_step(struct qp *qp)
{
    if (!qp->joined || !qp->peer) return false;
    uint32_t open[WORKS_MAX], count = 0, first = qp->acked;
    while (first < qp->count && work_of(qp, first)->done) first++;
    for (uint32_t i = first; i < qp->count; i++) {
        struct posted *posted = work_of(qp, i);
        if (posted->done) continue;
        if (posted->work.kind == STREAM_WORK_WRITE_IMM) {
            if (i == first) open[count++] = i;
            break;
        }
        if (!posted->landed) open[count++] = i;
    }
    if (count == 0) return false;
    struct posted *posted = work_of(qp, open[draw(count)]);
    struct side *to = &world.sides[1 - qp->side];
    bool reaches = qp->peer->joined && !qp->peer->fenced && !qp->peer->error && !to->dead && !world.deaf;
    if (STREAM_MUTANT == STREAM_MUTANT_LATE_WRITES && posted->work.kind == STREAM_WORK_WRITE)
        reaches = !to->dead && !world.deaf;
    if (!reaches) { /* dropped for ever */
        if (qp->peer->joined || to->dead) qp->error = true;
        return false;
    }
    if (posted->work.kind == STREAM_WORK_READ && qp->fenced) return false;
    if (refused(to, posted)) {
        if (qp->fence_asked) return false;
        qp->error = qp->told_error = qp->peer->error = true;
        event_add(&world.sides[qp->side],
                  (struct event){.kind = EVENT_REFUSED, .qp = qp, .index = posted->work.index});
        return true;
    }
    land(qp, posted);
    if (posted->work.kind == STREAM_WORK_WRITE_IMM) {
        posted->done = true;
        event_add(to, (struct event){.kind = EVENT_IMM, .qp = qp->peer, .imm = posted->work.imm});
    } else if (posted->work.kind == STREAM_WORK_READ) {
        posted->done = true;
    }
    for (uint32_t i = first; i < qp->count; i++) {
        struct posted *next = work_of(qp, i);
        if (next->landed && next->work.kind == STREAM_WORK_WRITE) next->done = true;
        if (!next->done) break;
    }
    return true;
}

/* Acknowledges some of the executed works. */
static bool ack_step(struct qp *qp)
{
    if (qp->error || qp->fenced) return false;
    uint32_t done = qp->acked;
    while (done < qp->count && work_of(qp, done)->done) done++;
    if (done == qp->acked) return false;
    done = qp->acked + 1 + (uint32_t)draw(done - qp->acked);
    for (uint32_t i = qp->acked; i < done; i++) {
        if (!work_of(qp, i)->work.signalled) continue;
        event_add(&world.sides[qp->side], (struct event){.kind = EVENT_ACKED, .qp = qp, .index = i});
    }
    qp->acked = done;
    return true;
}

static bool error_step(struct qp *qp)
{
    if (!qp->error || qp->told_error || qp->fence_asked) return false;
    qp->told_error = true;
    event_add(&world.sides[qp->side], (struct event){.kind = EVENT_BROKE, .qp = qp});
    return true;
}

static bool fence_step(struct qp *qp)
{
    if (!qp->fence_asked || qp->fenced) return false;
    qp->fenced = true; /* earlier completions are in the queue and reported first */
    event_add(&world.sides[qp->side], (struct event){.kind = EVENT_FENCED, .qp = qp});
    return true;
}

static bool event_step(struct side *side)
{
    if (side->event_count == 0) return false;
    struct event event = side->events[side->event_first];
    side->event_first = (side->event_first + 1) % EVENTS_MAX;
    side->event_count--;
    struct qp *qp = event.qp;
    switch (event.kind) {
    case EVENT_JOINED: stream_lane_joined(side->stream, qp->lane, qp->epoch); break;
    case EVENT_IMM: stream_imm(side->stream, qp->lane, qp->epoch, event.imm); break;
    case EVENT_ACKED: stream_acked(side->stream, qp->lane, qp->epoch, event.index); break;
    case EVENT_REFUSED:
        stream_work_refused(side->stream, qp->lane, qp->epoch, event.index); /* fall through */
    case EVENT_BROKE: stream_lane_broke(side->stream, qp->lane, qp->epoch, "the model broke it"); break;
    case EVENT_FENCED: stream_lane_fenced(side->stream, qp->lane, qp->epoch); break;
    }
    return true;
}

static bool letter_step(struct side *side)
{
    if (side->letter_count == 0) return false;
    struct packet packet = side->packets[side->letter_first];
    side->letter_first = (side->letter_first + 1) % PACKETS_MAX;
    side->letter_count--;
    stream_control(side->stream, packet.bytes, packet.count);
    return true;
}

/* ---- the users ---- */

static void start_message(struct side *side, struct item *item)
{
    struct stream_send *send = &item->send;
    static const uint32_t sizes[] = {0, 1, 60, EAGER, EAGER + 1, CHUNK, 2 * CHUNK + 1, 5000, BYTES_MAX};
    item->bytes = sizes[draw(9)];
    fill(item->source, item->bytes, side->index, item->number);
    send->payload = item->source;
    send->payload_bytes = item->bytes;
    if (stream_send_message(side->stream, send, EAGER) != WEFT_OK) violation("no memory");
}

static void start_access(struct side *side, struct item *item)
{
    struct stream_send *send = &item->send;
    item->bytes = 1 + (uint32_t)draw(BYTES_MAX);
    item->buffer_live = true; /* a window that stays open, */
    item->closed = world.trouble == BREAKS && chance(15); /* or one that was closed before */
    if (item->kind == ITEM_GET) fill(item->buffer, item->bytes, 9, item->number);
    else fill(item->source, item->bytes, side->index, item->number);
    send->notify = item->kind == ITEM_PUT;
    send->transfer.read = item->kind == ITEM_GET;
    send->transfer.local = item->source;
    send->transfer.bytes = item->bytes;
    send->transfer.remote = (uintptr_t)item->buffer;
    stream_send_access(side->stream, send);
}

static bool start_step(struct side *side)
{
    if (side->started == MESSAGES || side->told_lost || side->ended) return false;
    struct item *item = &side->items[side->started];
    item->number = side->started++;
    item->started = true;
    item->kind = chance(70) ? ITEM_MESSAGE : chance(60) ? ITEM_PUT : ITEM_GET;
    item->header_bytes = item->kind == ITEM_GET ? 0 : (uint32_t)draw(40);
    item->send.tag = item->number;
    item->send.header_bytes = item->header_bytes;
    fill(item->send.header, item->header_bytes, 7, item->number);
    if (item->kind == ITEM_MESSAGE) start_message(side, item);
    else start_access(side, item);
    return true;
}

/* The user accepts, discards or consumes one arrival. */
static bool take_step(struct side *side)
{
    struct item *items = other(side)->items;
    uint32_t at = (uint32_t)draw(MESSAGES);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct item *item = &items[(at + i) % MESSAGES];
        if (!item->arrived || item->kind != ITEM_MESSAGE || item->taken || item->accepted || item->discarded)
            continue;
        if (side->told_lost || side->ended) return false;
        if (item->eager) {
            item_taken(side, item);
        } else if (chance(15)) {
            item->discarded = true;
            stream_discard(side->stream, &item->receive);
        } else {
            item->accepted = item->buffer_live = true;
            memset(item->buffer, 0, sizeof item->buffer);
            item->receive.bytes = item->bytes;
            item->receive.buffer = item->buffer;
            stream_accept(side->stream, &item->receive);
        }
        return true;
    }
    return false;
}

/* ---- trouble ---- */

static void break_something(void)
{
    if (world.breaks_left == 0 || world.qp_count == 0) return;
    uint32_t recent = world.qp_count < 2 * LANES ? world.qp_count : 2 * LANES;
    struct qp *qp = world.qps[world.qp_count - 1 - draw(recent)];
    if (qp->error || qp->fenced) return;
    world.breaks_left--;
    world.breaks++;
    qp->error = true;
    if (qp->peer && chance(30)) qp->peer->error = true;
}

static void lose(struct side *side, enum weft_status status)
{
    if (side->told_lost) return;
    side->told_lost = true;
    if (status == WEFT_ERR_PEER_LOST && !side->left) stream_report_lost(side->stream, "lost");
    stream_end(side->stream, status);
}

static void trouble_strikes(uint32_t step)
{
    if (step != world.trouble_step) return;
    if (world.trouble == DEATH) world.sides[world.dying].dead = true;
    if (world.trouble == RAILS_DIE) {
        world.sides[world.dying].rails_dead = true;
        for (uint32_t i = 0; i < world.qp_count; i++) {
            if (world.qps[i]->side == world.dying) world.qps[i]->error = true;
        }
    }
    if (world.trouble == VAIN) world.deaf = true;
    if (world.trouble == LEAVE) stream_leave(world.sides[world.dying].stream, false);
}

/* Reacts to the reports of the stream, as the backend does. */
static void react(struct side *side)
{
    struct side *peer = other(side);
    if (side->dead) return;
    if (peer->dead && chance(2)) lose(side, WEFT_ERR_PEER_LOST);
    if (side->stream->failure < 0) {
        if (world.trouble != RAILS_DIE && world.trouble != VAIN)
            violation("side %d gave up: %s", side->index, side->stream->failure_text);
        lose(side, side->stream->failure);
    }
    if ((world.trouble == RAILS_DIE || world.trouble == VAIN) && peer->told_lost)
        lose(side, WEFT_ERR_PEER_LOST);
    if (side->left && !side->told_lost) {
        stream_leave(side->stream, true);
        stream_pump(side->stream);
        if (side->stream->control.control_queued == 0) lose(side, WEFT_ERR_PEER_LOST);
    }
    if (stream_leave_is_acked(side->stream)) lose(side, WEFT_ERR_CLOSED);
}

/* ---- one world ---- */

static void world_make(uint64_t seed, bool verbose)
{
    memset(&world, 0, sizeof world);
    world.seed = seed;
    world.random = seed * 0x9e3779b97f4a7c15ull + 1;
    world.verbose = verbose;
    world.env = *weft_env_system();
    world.env.now_ns = sim_now;
    world.now_ns = 1000;
    static const enum trouble troubles[] = {CALM,  BREAKS, BREAKS,    BREAKS, STORM, STORM,
                                            DEATH, DEATH,  RAILS_DIE, VAIN,   LEAVE};
    world.trouble = troubles[draw(11)];
    world.breaks_left = world.trouble == CALM ? 0 : world.trouble == STORM ? 60 : (uint32_t)draw(6);
    world.dying = (int)draw(2);
    world.trouble_step = 100 + (uint32_t)draw(3000);
    world.lanes = 1 + (uint32_t)draw(LANES);
    for (int s = 0; s < 2; s++) {
        struct side *side = &world.sides[s];
        side->index = s;
        side->ring = aligned_alloc(64, RING);
        side->staging = aligned_alloc(64, RING);
        struct stream_options options;
        stream_options_init(&options);
        options.lane_count = chance(80) ? world.lanes : LANES;
        options.lane_depth = DEPTH;
        options.signal_every = 1 + (uint32_t)draw(DEPTH / 2);
        options.chunk_bytes = chance(80) ? CHUNK : CHUNK * 2;
        options.eager_budget = STREAM_EAGER_BUDGET_LEAST;
        options.ring_bytes = RING;
        options.ring = side->ring;
        options.staging = side->staging;
        options.lost_ns =
            world.trouble == RAILS_DIE || world.trouble == VAIN ? WEFT_MS(200) : WEFT_SECONDS(1000);
        side->stream = stream_create(&world.env, &options, &ops, side);
        stream_start(side->stream);
    }
}

static void world_free(void)
{
    for (int s = 0; s < 2; s++) {
        stream_free(world.sides[s].stream);
        free(world.sides[s].ring);
        free(world.sides[s].staging);
    }
    for (uint32_t i = 0; i < world.qp_count; i++) free(world.qps[i]);
}

static bool side_has_ended(const struct side *side)
{
    if (side->dead || side->ended) return true;
    const struct side *peer = &world.sides[1 - side->index];
    if (side->started < MESSAGES) return false;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const struct item *own = &side->items[i], *his = &peer->items[i];
        if (!own->sent) return false;
        if (his->started && his->kind == ITEM_MESSAGE && !(his->taken || his->received)) return false;
        if (his->started && his->kind == ITEM_PUT && !his->closed && !his->arrived) return false;
    }
    return !side->told_lost && peer->started == MESSAGES;
}

/* Mostly one in use, else any earlier one: it may have writes in flight. */
static struct qp *any_qp(void)
{
    if (world.qp_count == 0) return NULL;
    if (chance(15)) return world.qps[draw(world.qp_count)];
    return world.newest[draw(2)][draw(LANES)];
}

/* One random event at a random place. */
static bool something(void)
{
    struct side *side = &world.sides[draw(2)];
    struct qp *qp = any_qp();
    switch (draw(10)) {
    case 0:
    case 1: return !side->dead && letter_step(side);
    case 2:
    case 3: return !side->dead && event_step(side);
    case 4: return qp && !world.sides[qp->side].dead && (error_step(qp) || fence_step(qp) || ack_step(qp));
    case 5:
    case 6: return qp && wire_step(qp);
    case 7: return !side->dead && !side->told_lost && stream_pump(side->stream);
    case 8: return !side->dead && start_step(side);
    default: return !side->dead && take_step(side);
    }
}

static void tick(bool idle)
{
    world.now_ns += draw(2000);
    for (int s = 0; s < 2; s++) {
        struct side *side = &world.sides[s];
        if (side->dead) continue;
        uint64_t next_ns = stream_next_ns(side->stream);
        if (idle && next_ns != WEFT_NEVER && next_ns > world.now_ns &&
            next_ns < world.now_ns + WEFT_SECONDS(3) && chance(20))
            world.now_ns = next_ns;
        if (world.now_ns >= next_ns) stream_tick(side->stream, world.now_ns);
        react(side);
    }
}

static void check_end(void)
{
    for (int s = 0; s < 2 && !world.failed; s++) {
        struct side *side = &world.sides[s];
        bool alone = world.trouble == DEATH || world.trouble == RAILS_DIE || world.trouble == VAIN ||
                     world.trouble == LEAVE;
        for (uint32_t i = 0; i < MESSAGES; i++) {
            struct item *own = &side->items[i];
            if (!own->started) continue;
            if (!side->dead && !own->sent) violation("side %d: operation %u never ended", s, i);
            if (!alone && !own->sent_ok) violation("side %d: operation %u failed", s, i);
            struct side *peer = other(side);
            if (own->accepted && !peer->dead && !own->received)
                violation("side %d: receive %u never ended", 1 - s, i);
            if (own->received && own->accepted && own->bytes > 0 && !poisoned(own->buffer, own->bytes))
                violation("message %u: its buffer was touched after its end", i);
        }
        if (!side->dead && side->stream->incoming.payload_untaken > STREAM_EAGER_BUDGET_LEAST)
            violation("too much lies unreceived");
    }
}

static bool play(uint64_t seed, bool verbose)
{
    world_make(seed, verbose);
    uint32_t step, idle = 0, after = 0;
    for (step = 0; step < STEPS_MAX && !world.failed; step++) {
        idle = something() ? 0 : idle + 1;
        if (world.trouble != CALM && chance(world.trouble == STORM ? 3 : 1) && chance(50)) break_something();
        trouble_strikes(step);
        if (idle > 30 || step % 16 == 0) tick(idle > 30);
        bool over = side_has_ended(&world.sides[0]) && side_has_ended(&world.sides[1]);
        if (over && ++after > 400) break; /* late writes get a chance */
    }
    if (step == STEPS_MAX) violation("it never ends");
    check_end();
    total_breaks += world.breaks;
    total_steps += step;
    if (verbose) {
        printf("seed %llu: %s, %u lanes, %u steps, %llu breaks, %u queue pairs\n", (unsigned long long)seed,
               trouble_names[world.trouble], world.lanes, step, (unsigned long long)world.breaks,
               world.qp_count);
    }
    if (world.failed && !quiet) {
        printf("seed %llu: %s\n  trouble: %s, %u lanes\n  replay: tests/transport/sim_verbs_stream --first "
               "%llu --seeds 1 --verbose\n",
               (unsigned long long)seed, world.what, trouble_names[world.trouble], world.lanes,
               (unsigned long long)seed);
    }
    bool good = !world.failed;
    world_free();
    return good;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 100, first = 1;
    bool verbose = false, expect_caught = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else if (strcmp(argv[i], "--expect-caught") == 0) expect_caught = true;
        else {
            fprintf(stderr,
                    "usage: sim_verbs_stream [--seeds N] [--first S] [--verbose] [--expect-caught]\n");
            return 2;
        }
    }
    quiet = expect_caught;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (play(seed, verbose)) continue;
        if (!expect_caught) return 1;
        printf("variant %d was caught by seed %llu: %s\n", STREAM_MUTANT, (unsigned long long)seed,
               world.what);
        return 0;
    }
    if (expect_caught) {
        printf("variant %d was not caught in %llu seeds\n", STREAM_MUTANT, (unsigned long long)seeds);
        return 1;
    }
    printf("%llu seeds, %llu steps, %llu broken queue pairs: all messages once, in order, bit for bit\n",
           (unsigned long long)seeds, (unsigned long long)total_steps, (unsigned long long)total_breaks);
    return 0;
}
