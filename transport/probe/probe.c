/* probe.c - see probe.h. An endpoint has two roles at once:
 *
 *   active   IDLE ─► ASKING ─► PINGING ─► PUSHING ─► PULLING ─► next round    one partner at a time
 *   serving  grants, echoes, receives and streams for at most one partner of any round
 *
 * No deadlock: an endpoint grants if it neither measures nor serves, and while it asks itself, only
 * requests of earlier rounds. So the earliest round can always proceed. A later request waits in `asked`
 * and is answered by WAIT, so a dead endpoint does not make the endpoints that it delays look dead. A
 * partner that waits to be measured asks, too.
 *
 * All messages have one header of fixed size. Only BULK has a payload, with arbitrary contents. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport.h"

enum {
    VERSION = 1,
    HEADER_BYTES = 40,
    WINDOW = 16,
    SENDS = 32,
    QUEUE = 64,
    PINGS_MAX = 1024,
    WARM_PINGS = 4,
    TICK_NS = 5000000,
    KICK_NS = 20000
};
/* a partner that answers is waited for so much longer */
enum { ASKS_PER_CONTACT = 4, CONTACTS_MAX = 8 };
enum { BULK_BYTES_MAX = 64 << 20, BULK_COUNT_MAX = 4096 };

#define CHANNEL_MASK ((uint64_t)0xff << 56)

enum kind { ASK = 1, GRANT, PING, PONG, BULK, BULK_ACK, PULL, PULL_END, RESULT, WAIT };
enum phase { IDLE, ASKING, PINGING, PUSHING, PULLING };

static const char *const phase_texts[] = {"", "to be let in", "pinging", "sending to it",
                                          "receiving from it"};

struct probe_message {
    uint8_t kind;
    uint32_t peer;             /* index */
    uint32_t round;            /* of the measurement it belongs to */
    uint64_t values[4];
};

struct probe_send {
    struct weft_completion completion;
    struct weft_probe *probe;
    uint32_t peer;
    bool busy;
};

struct probe_sink {
    struct weft_completion completion;
    struct weft_probe *probe;
    uint32_t peer, round;
    uint64_t number;
    bool busy;
};

/* The active role. */
struct probe_active {
    /* the active role */
    enum phase phase;
    uint32_t partner;                  /* also set while waiting for a partner's result */
    uint64_t deadline_ns, phase_ns;    /* of the pair or the contact; start of the phase */
    uint64_t contact_limit_ns, ask_again_ns;
    uint64_t pings_done, ping_ns;
    double samples[PINGS_MAX];
    uint64_t bulk_sent, bulk_done, bulk_end; /* end: total to send */
    uint64_t mark_ns, mark_done, last_ns;    /* bandwidth is measured from the mark */
    uint64_t latency_ns, out_rate;
};
/* The serving role. */
struct probe_served {
    /* the serving role */
    uint32_t serving, serving_round;   /* count: none */
    uint64_t serving_until_ns, stream_sent, stream_done, stream_end, stream_ns;
};

struct weft_probe {
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_env *env;
    struct weft_probe_options options;
    uint32_t *ids;
    uint32_t self, count, rounds, round;
    struct weft_probe_result *results; /* (count,): by index; own unused */
    struct weft_probe_result *given;   /* (count - 1,): without this endpoint */
    uint32_t *asked;                   /* (count,): round + 1 of a waiting request; 0: none */
    struct weft_timer tick, kick;
    bool finished, closed;

    struct probe_active active;

    struct probe_served served;

    struct probe_send sends[SENDS];
    struct probe_message queue[QUEUE]; /* ring of messages that the transport refused with WEFT_ERR_AGAIN */
    uint32_t queue_first, queue_count;
    struct probe_sink sinks[WINDOW];
    uint8_t *bulk, *swallowed;         /* (bulk_bytes,): payload to send; sink of received payloads */
};

static void proceed(struct weft_probe *probe);
static void next_round(struct weft_probe *probe);

/* ---- the tournament ---- */

uint32_t weft_probe_rounds(uint32_t count) { return count < 2 ? 0 : count + count % 2 - 1; }

uint32_t weft_probe_partner(uint32_t index, uint32_t round, uint32_t count)
{
    /* the fixed player of the circle method, and its modulus */
    uint32_t last = weft_probe_rounds(count), partner;
    if (count < 2 || index >= count || round >= last) return UINT32_MAX;
    if (index == last) partner = round;
    else partner = (uint32_t)((2ull * round + last - index) % last);
    if (partner == index) partner = last;
    return partner < count ? partner : UINT32_MAX;
}

/* ---- messages ---- */

static void put_le(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)in[i] << (8 * i);
    return value;
}

static void message_encode(const struct probe_message *probe_message, uint8_t *out)
{
    put_le(out, VERSION, 2);
    put_le(out + 2, probe_message->kind, 2);
    put_le(out + 4, probe_message->round, 4);
    for (size_t i = 0; i < 4; i++) put_le(out + 8 + 8 * i, probe_message->values[i], 8);
}

static bool message_decode(struct probe_message *probe_message, const uint8_t *in, size_t bytes)
{
    if (bytes != HEADER_BYTES || get_le(in, 2) != VERSION) return false;
    uint64_t kind = get_le(in + 2, 2);
    if (kind < ASK || kind > WAIT) return false;
    probe_message->kind = (uint8_t)kind;
    probe_message->round = (uint32_t)get_le(in + 4, 4);
    for (size_t i = 0; i < 4; i++) probe_message->values[i] = get_le(in + 8 + 8 * i, 8);
    return true;
}

/* ---- sending ---- */

static void fail_pair(struct weft_probe *probe, enum weft_status status, const char *text);

static void send_done(struct weft_completion *completion, enum weft_status status)
{
    struct probe_send *send = weft_container_of(completion, struct probe_send, completion);
    struct weft_probe *probe = send->probe;
    send->busy = false;
    if (probe->closed) return;
    if (status < 0 && probe->active.phase != IDLE && send->peer == probe->active.partner)
        fail_pair(probe, status, weft_reason_text(status));
    if (status < 0 && send->peer == probe->served.serving) probe->served.serving = probe->count;
    proceed(probe);
}

static enum weft_status try_send(struct weft_probe *probe, const struct probe_message *probe_message)
{
    struct weft_peer *peer = weft_transport_peer(probe->transport, probe->ids[probe_message->peer]);
    struct probe_send *send = NULL;
    uint8_t header[HEADER_BYTES];
    for (uint32_t i = 0; i < SENDS && !send; i++) {
        if (!probe->sends[i].busy) send = &probe->sends[i];
    }
    if (!peer) return WEFT_ERR_NOT_FOUND;
    if (!send) return WEFT_ERR_AGAIN;
    message_encode(probe_message, header);
    bool bulk = probe_message->kind == BULK;
    struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_PROBE, 0),
                                   .header = header,
                                   .header_bytes = sizeof header,
                                   .payload = bulk ? probe->bulk : NULL,
                                   .payload_bytes = bulk ? probe->options.bulk_bytes : 0};
    weft_completion_init(&send->completion, 1, send_done);
    send->probe = probe;
    send->peer = probe_message->peer;
    enum weft_status status = weft_transport_send(peer, &message, &send->completion);
    send->busy = status == WEFT_IN_PROGRESS;
    return status;
}

static void flush(struct weft_probe *probe)
{
    while (probe->queue_count > 0) {
        if (try_send(probe, &probe->queue[probe->queue_first]) == WEFT_ERR_AGAIN) {
            weft_timer_start(probe->loop, &probe->kick, weft_now_ns(probe->env) + KICK_NS);
            return;
        }
        probe->queue_first = (probe->queue_first + 1) % QUEUE;
        probe->queue_count--;
    }
}

/* Sends in order, now or when the transport accepts it. If the queue is full the message is lost: the pair
 * ends by deadline. */
static void send_control(struct weft_probe *probe, uint32_t peer, enum kind kind, uint32_t round, uint64_t a,
                         uint64_t b, uint64_t c, uint64_t d)
{
    if (probe->queue_count == QUEUE) return;
    struct probe_message *probe_message = &probe->queue[(probe->queue_first + probe->queue_count++) % QUEUE];
    *probe_message =
        (struct probe_message){.kind = (uint8_t)kind, .peer = peer, .round = round, .values = {a, b, c, d}};
    flush(probe);
}

/* ---- the active role ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void enter(struct weft_probe *probe, enum phase phase)
{
    probe->active.phase = phase;
    probe->active.phase_ns = weft_now_ns(probe->env);
    probe->active.bulk_sent = probe->active.bulk_done = probe->active.mark_done = probe->active.mark_ns = 0;
    probe->active.bulk_end = probe->options.bulk_count;
}

static void store(struct weft_probe *probe, uint32_t peer, enum weft_status status, const char *text)
{
    struct weft_probe_result *result = &probe->results[peer];
    result->status = status;
    snprintf(result->text, sizeof result->text, "%s", text);
    probe->given[peer < probe->self ? peer : peer - 1] = *result;
}

static void fail_pair(struct weft_probe *probe, enum weft_status status, const char *text)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence, "endpoint %" PRIu32 ", %s: %s", probe->ids[probe->active.partner],
             phase_texts[probe->active.phase], text);
    if (probe->active.phase > ASKING)
        send_control(probe, probe->active.partner, RESULT, probe->round, 0, 0, 0,
                     (uint64_t)(uint32_t)-status);
    probe->active.phase = IDLE;
    store(probe, probe->active.partner, status, sentence);
    next_round(probe);
}

static void ping(struct weft_probe *probe)
{
    probe->active.ping_ns = weft_now_ns(probe->env);
    send_control(probe, probe->active.partner, PING, probe->round, probe->active.pings_done, 0, 0, 0);
}

static void on_grant(struct weft_probe *probe)
{
    enter(probe, PINGING);
    probe->active.deadline_ns = probe->active.phase_ns + probe->options.pair_ns;
    probe->active.pings_done = 0;
    ping(probe);
}

static void on_pong(struct weft_probe *probe, const struct probe_message *probe_message)
{
    if (probe_message->values[0] != probe->active.pings_done) return;
    uint64_t took_ns = weft_now_ns(probe->env) - probe->active.ping_ns;
    if (probe->active.pings_done >= WARM_PINGS)
        probe->active.samples[probe->active.pings_done - WARM_PINGS] = (double)took_ns;
    if (++probe->active.pings_done < probe->options.pings + WARM_PINGS) {
        ping(probe);
        return;
    }
    qsort(probe->active.samples, probe->options.pings, sizeof(double), compare_doubles);
    probe->active.latency_ns = (uint64_t)(probe->active.samples[probe->options.pings / 2] / 2);
    if (probe->active.latency_ns == 0) probe->active.latency_ns = 1;
    enter(probe, PUSHING);
    proceed(probe);
}

/* Accounts one more bulk message, there or here. The first ones only warm up the path. */
static void note_bulk(struct weft_probe *probe)
{
    probe->active.last_ns = weft_now_ns(probe->env);
    probe->active.bulk_done++;
    if (probe->active.bulk_done == WINDOW || probe->active.bulk_done == 1) {
        probe->active.mark_ns = probe->active.last_ns;
        probe->active.mark_done = probe->active.bulk_done;
    }
    /* A slow link: stop early. */
    if (probe->active.phase == PUSHING &&
        weft_elapsed_ns(probe->active.phase_ns, probe->active.last_ns) > probe->options.pair_ns / 4)
        probe->active.bulk_end = probe->active.bulk_sent;
}

static uint64_t bulk_rate(const struct weft_probe *probe)
{
    uint64_t messages = probe->active.bulk_done - probe->active.mark_done, from_ns = probe->active.mark_ns;
    if (messages == 0 || probe->active.last_ns <= from_ns) { /* too few, or all at the same time */
        messages = probe->active.bulk_done;
        from_ns = probe->active.phase_ns;
    }
    if (probe->active.last_ns <= from_ns) return 1000000000000ull; /* faster than the clock resolution */
    double rate = 1e9 * (double)messages * (double)probe->options.bulk_bytes /
                  (double)(probe->active.last_ns - from_ns);
    return rate < 1 ? 1 : (uint64_t)rate;
}

static void end_pushing(struct weft_probe *probe)
{
    probe->active.out_rate = bulk_rate(probe);
    enter(probe, PULLING);
    send_control(probe, probe->active.partner, PULL, probe->round, probe->options.bulk_count,
                 probe->options.bulk_bytes, 0, 0);
}

static void end_pair(struct weft_probe *probe)
{
    struct weft_probe_result *result = &probe->results[probe->active.partner];
    struct weft_peer *peer = weft_transport_peer(probe->transport, probe->ids[probe->active.partner]);
    char way[160] = "";
    result->latency_ns = probe->active.latency_ns;
    result->out_bytes_per_second = probe->active.out_rate;
    result->in_bytes_per_second = bulk_rate(probe);
    if (peer) weft_peer_describe(peer, way, sizeof way);
    store(probe, probe->active.partner, WEFT_OK, way);
    send_control(probe, probe->active.partner, RESULT, probe->round, result->latency_ns,
                 result->out_bytes_per_second, result->in_bytes_per_second, 0);
    probe->active.phase = IDLE;
    next_round(probe);
}

/* Keeps the window full; ends the phase when all acknowledgements have arrived. */
static void push(struct weft_probe *probe)
{
    if (probe->active.bulk_done >= probe->active.bulk_end) {
        end_pushing(probe);
        return;
    }
    while (probe->active.phase == PUSHING && probe->active.bulk_sent < probe->active.bulk_end &&
           probe->active.bulk_sent - probe->active.bulk_done < WINDOW && probe->queue_count == 0) {
        send_control(probe, probe->active.partner, BULK, probe->round, probe->active.bulk_sent++, 0, 0, 0);
    }
}

/* ---- the serving role ---- */

static void serve(struct weft_probe *probe, uint32_t peer, uint32_t round)
{
    probe->served.serving = peer;
    probe->served.serving_round = round;
    probe->served.serving_until_ns = weft_now_ns(probe->env) + 2 * probe->options.pair_ns;
    probe->served.stream_sent = probe->served.stream_done = probe->served.stream_end = 0;
    probe->asked[peer] = 0;
    send_control(probe, peer, GRANT, round, 0, 0, 0, 0);
}

static bool may_grant(const struct weft_probe *probe, uint32_t round)
{
    if (probe->served.serving < probe->count || probe->active.phase > ASKING) return false;
    return probe->active.phase != ASKING || round < probe->round;
}

static void serve_waiting(struct weft_probe *probe)
{
    uint32_t best = probe->count;
    for (uint32_t i = 0; i < probe->count; i++) {
        if (probe->asked[i] && (best == probe->count || probe->asked[i] < probe->asked[best])) best = i;
    }
    if (best < probe->count && may_grant(probe, probe->asked[best] - 1))
        serve(probe, best, probe->asked[best] - 1);
}

static void stream(struct weft_probe *probe)
{
    bool slow =
        weft_elapsed_ns(probe->served.stream_ns, weft_now_ns(probe->env)) > probe->options.pair_ns / 4;
    if (probe->served.serving == probe->count || probe->served.stream_end == 0) return;
    if (slow && probe->served.stream_sent > 0 && probe->served.stream_sent < probe->served.stream_end) {
        probe->served.stream_end = probe->served.stream_sent;
        send_control(probe, probe->served.serving, PULL_END, probe->served.serving_round,
                     probe->served.stream_end, 0, 0, 0);
    }
    while (probe->served.stream_sent < probe->served.stream_end &&
           probe->served.stream_sent - probe->served.stream_done < WINDOW && probe->queue_count == 0) {
        send_control(probe, probe->served.serving, BULK, probe->served.serving_round,
                     probe->served.stream_sent++, 0, 0, 0);
    }
}

static void on_result(struct weft_probe *probe, const struct probe_message *probe_message)
{
    struct weft_probe_result *result = &probe->results[probe_message->peer];
    struct weft_peer *peer = weft_transport_peer(probe->transport, probe->ids[probe_message->peer]);
    char text[160] = "";
    if (peer) weft_peer_describe(peer, text, sizeof text);
    bool fine = probe_message->values[3] == 0 && probe_message->values[0] > 0 &&
                probe_message->values[1] > 0 && probe_message->values[2] > 0;
    if (!fine)
        snprintf(text, sizeof text, "endpoint %" PRIu32 " could not measure this link",
                 probe->ids[probe_message->peer]);
    result->latency_ns = fine ? probe_message->values[0] : 0;
    /* the peer's incoming rate is this side's outgoing rate */
    result->out_bytes_per_second = fine ? probe_message->values[2] : 0;
    result->in_bytes_per_second = fine ? probe_message->values[1] : 0;
    if (probe_message->peer < probe->self)
        store(probe, probe_message->peer, fine ? WEFT_OK : WEFT_ERR_UNREACHABLE, text);
    probe->served.serving = probe->count;
}

static void on_served(struct weft_probe *probe, const struct probe_message *probe_message)
{
    switch (probe_message->kind) {
    case PING:
        send_control(probe, probe_message->peer, PONG, probe_message->round, probe_message->values[0], 0, 0,
                     0);
        break;
    case PULL:
        if (probe_message->values[0] == 0 || probe_message->values[0] > BULK_COUNT_MAX) break;
        probe->served.stream_sent = probe->served.stream_done = 0;
        probe->served.stream_end = probe_message->values[0];
        probe->served.stream_ns = weft_now_ns(probe->env);
        break;
    case BULK_ACK: probe->served.stream_done++; break;
    case RESULT: on_result(probe, probe_message); break;
    default: break;
    }
}

static void on_answer(struct weft_probe *probe, const struct probe_message *probe_message)
{
    if (probe_message->kind == GRANT && probe->active.phase == ASKING) on_grant(probe);
    else if (probe_message->kind == PONG && probe->active.phase == PINGING) on_pong(probe, probe_message);
    else if (probe_message->kind == BULK_ACK && probe->active.phase == PUSHING) note_bulk(probe);
    else if (probe_message->kind == PULL_END && probe->active.phase == PULLING &&
             probe_message->values[0] > 0)
        probe->active.bulk_end = probe_message->values[0];
}

/* ---- arrivals ---- */

static bool is_answer(const struct weft_probe *probe, const struct probe_message *probe_message)
{
    return probe->active.phase != IDLE && probe_message->peer == probe->active.partner &&
           probe_message->round == probe->round && probe_message->peer > probe->self;
}

static bool is_served(const struct weft_probe *probe, const struct probe_message *probe_message)
{
    return probe_message->peer == probe->served.serving &&
           probe_message->round == probe->served.serving_round;
}

static void sink_done(struct weft_completion *completion, enum weft_status status)
{
    struct probe_sink *sink = weft_container_of(completion, struct probe_sink, completion);
    struct weft_probe *probe = sink->probe;
    struct probe_message probe_message = {.peer = sink->peer, .round = sink->round};
    sink->busy = false;
    if (probe->closed || status < 0) return;
    if (is_answer(probe, &probe_message) && probe->active.phase == PULLING) {
        note_bulk(probe);
        send_control(probe, sink->peer, BULK_ACK, sink->round, sink->number, 0, 0, 0);
    } else if (is_served(probe, &probe_message)) {
        send_control(probe, sink->peer, BULK_ACK, sink->round, sink->number, 0, 0, 0);
    }
    proceed(probe);
}

static void ignore_arrival(struct weft_probe *probe, struct weft_arrival *arrival,
                           const struct probe_message *probe_message)
{
    struct probe_sink *sink = NULL;
    for (uint32_t i = 0; i < WINDOW && !sink; i++) {
        if (!probe->sinks[i].busy) sink = &probe->sinks[i];
    }
    if (!sink || arrival->payload_bytes > probe->options.bulk_bytes ||
        !(is_answer(probe, probe_message) || is_served(probe, probe_message))) {
        weft_transport_discard(probe->transport, arrival);
        return;
    }
    weft_completion_init(&sink->completion, 1, sink_done);
    sink->peer = probe_message->peer;
    sink->round = probe_message->round;
    sink->number = probe_message->values[0];
    sink->busy = true;
    if (weft_transport_accept(probe->transport, arrival, probe->swallowed, probe->options.bulk_bytes,
                              &sink->completion) < 0) {
        sink->busy = false;
        weft_transport_discard(probe->transport, arrival);
    }
}

/* From an earlier endpoint: a request to measure. From a later one: the question whether this endpoint
 * will still measure. */
static void on_ask(struct weft_probe *probe, const struct probe_message *probe_message)
{
    if (probe_message->round >= probe->rounds) return;
    if (probe_message->peer > probe->self) {
        enum weft_status status = probe->results[probe_message->peer].status;
        send_control(probe, probe_message->peer, WAIT, probe_message->round, status < 0, 0, 0, 0);
        return;
    }
    probe->asked[probe_message->peer] = probe_message->round + 1;
    serve_waiting(probe);
    if (probe->asked[probe_message->peer])
        send_control(probe, probe_message->peer, WAIT, probe_message->round, 0, 0, 0, 0);
}

static void on_wait(struct weft_probe *probe, const struct probe_message *probe_message)
{
    bool waiting = probe->active.phase == ASKING || probe->active.phase == IDLE;
    if (probe->finished || !waiting || probe_message->peer != probe->active.partner ||
        probe_message->round != probe->round)
        return;
    /* it has given up on this endpoint */
    if (probe_message->values[0] != 0 && probe_message->peer < probe->self) {
        probe->active.deadline_ns = 0;
        return;
    }
    probe->active.deadline_ns = weft_now_ns(probe->env) + probe->options.contact_ns;
    if (probe->active.deadline_ns > probe->active.contact_limit_ns)
        probe->active.deadline_ns = probe->active.contact_limit_ns;
}

static void on_arrival(void *context, struct weft_arrival *arrival)
{
    struct weft_probe *probe = context;
    struct probe_message probe_message = {0};
    uint32_t peer = 0;
    while (peer < probe->count && probe->ids[peer] != arrival->peer_id) peer++;
    probe_message.peer = peer;
    if (peer == probe->count || peer == probe->self ||
        !message_decode(&probe_message, arrival->header, arrival->header_bytes)) {
        weft_transport_discard(probe->transport, arrival);
        return;
    }
    if (probe_message.kind == BULK) {
        ignore_arrival(probe, arrival, &probe_message);
        return;
    }
    weft_transport_discard(probe->transport, arrival);
    if (probe_message.kind == ASK) {
        on_ask(probe, &probe_message);
    } else if (probe_message.kind == WAIT) {
        on_wait(probe, &probe_message);
    } else if (is_answer(probe, &probe_message)) {
        on_answer(probe, &probe_message);
    } else if (is_served(probe, &probe_message)) {
        on_served(probe, &probe_message);
    }
    proceed(probe);
}

/* ---- rounds ---- */

/* Starts everything that can start. */
static void proceed(struct weft_probe *probe)
{
    if (probe->closed) return;
    flush(probe);
    serve_waiting(probe);
    if (probe->active.phase == PUSHING) push(probe);
    if (probe->active.phase == PULLING && probe->active.bulk_done >= probe->active.bulk_end) end_pair(probe);
    stream(probe);
    if (!probe->finished && probe->active.phase == IDLE && probe->active.partner < probe->self &&
        probe->results[probe->active.partner].status != WEFT_IN_PROGRESS) {
        next_round(probe);
    }
}

static void finish(struct weft_probe *probe)
{
    probe->finished = true;
    probe->active.partner = probe->self;
    if (probe->options.done) probe->options.done(probe->options.context);
}

static void next_round(struct weft_probe *probe)
{
    while (!probe->finished) {
        if (++probe->round >= probe->rounds) {
            finish(probe);
            return;
        }
        uint32_t partner = weft_probe_partner(probe->self, probe->round, probe->count);
        if (partner == UINT32_MAX || probe->results[partner].status != WEFT_IN_PROGRESS) continue;
        struct weft_peer *peer = weft_transport_peer(probe->transport, probe->ids[partner]);
        enum weft_status status = peer ? weft_peer_status(peer) : WEFT_ERR_NOT_FOUND;
        if (status < 0) {
            store(probe, partner, status, weft_reason_text(status));
            continue;
        }
        probe->active.partner = partner;
        uint64_t now_ns = weft_now_ns(probe->env);
        probe->active.deadline_ns = now_ns + probe->options.contact_ns;
        probe->active.contact_limit_ns = now_ns + CONTACTS_MAX * probe->options.contact_ns;
        probe->active.ask_again_ns = now_ns + probe->options.contact_ns / ASKS_PER_CONTACT;
        if (partner > probe->self) {
            enter(probe, ASKING);
            send_control(probe, partner, ASK, probe->round, 0, 0, 0, 0);
        }
        return;
    }
}

static void on_kick(struct weft_timer *timer) { proceed(weft_container_of(timer, struct weft_probe, kick)); }

/* Checks a partner of this round that is lost or late. */
static void check_partner(struct weft_probe *probe, uint64_t now_ns)
{
    struct weft_peer *peer = weft_transport_peer(probe->transport, probe->ids[probe->active.partner]);
    enum weft_status status = peer ? weft_peer_status(peer) : WEFT_ERR_NOT_FOUND;
    bool late = now_ns >= probe->active.deadline_ns,
         serving_it = probe->served.serving == probe->active.partner;
    if (status >= 0 && !serving_it && probe->active.phase <= ASKING && now_ns >= probe->active.ask_again_ns) {
        probe->active.ask_again_ns = now_ns + probe->options.contact_ns / ASKS_PER_CONTACT;
        send_control(probe, probe->active.partner, ASK, probe->round, 0, 0, 0, 0);
    }
    if (status >= 0 && (!late || serving_it)) return;
    if (status >= 0) status = WEFT_ERR_DEADLINE;
    if (probe->active.phase != IDLE) {
        fail_pair(probe, status, late ? "it has not answered in time" : weft_reason_text(status));
        return;
    }
    char text[160];
    snprintf(text, sizeof text, "endpoint %" PRIu32 " has not measured this link in time: %s",
             probe->ids[probe->active.partner], weft_reason_text(status));
    store(probe, probe->active.partner, status, text);
    next_round(probe);
}

static void on_tick(struct weft_timer *timer)
{
    struct weft_probe *probe = weft_container_of(timer, struct weft_probe, tick);
    uint64_t now_ns = weft_now_ns(probe->env);
    if (probe->closed) return;
    if (probe->served.serving < probe->count && now_ns >= probe->served.serving_until_ns)
        probe->served.serving = probe->count;
    if (!probe->finished) check_partner(probe, now_ns);
    proceed(probe);
    if (!probe->closed) weft_timer_start(probe->loop, timer, now_ns + TICK_NS);
}

/* ---- life ---- */

void weft_probe_options_init(struct weft_probe_options *options)
{
    *options = (struct weft_probe_options){.size = sizeof *options,
                                           .pings = 32,
                                           .bulk_count = 80,
                                           .bulk_bytes = 256 << 10,
                                           .contact_ns = WEFT_MS(500),
                                           .pair_ns = WEFT_SECONDS(1)};
}

static enum weft_status check_options(struct weft_transport *transport,
                                      const struct weft_probe_options *options, uint32_t self_id,
                                      uint32_t *self_out, struct weft_error *error)
{
    uint32_t found = 0;
    if (options->size != sizeof *options)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "probe options of another size: call weft_probe_options_init");
    if (options->count < 2 || options->count > WEFT_PROBE_PEERS_MAX || !options->ids) {
        return weft_error_set(error, WEFT_ERR_INVALID, "a probe needs 2 to %u endpoints, not %" PRIu32,
                              WEFT_PROBE_PEERS_MAX, options->count);
    }
    if (options->pings == 0 || options->pings > PINGS_MAX - WARM_PINGS || options->bulk_count < 2 ||
        options->bulk_count > BULK_COUNT_MAX || options->bulk_bytes == 0 ||
        options->bulk_bytes > BULK_BYTES_MAX || options->contact_ns == 0 || options->pair_ns == 0) {
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "probe counts or sizes are out of range (see probe.h)");
    }
    for (uint32_t i = 0; i < options->count; i++) {
        if (options->ids[i] == self_id) {
            *self_out = i;
            found++;
        } else if (!weft_transport_peer(transport, options->ids[i])) {
            return weft_error_set(error, WEFT_ERR_INVALID,
                                  "endpoint %" PRIu32 " is to be probed and not connected", options->ids[i]);
        }
    }
    return found == 1 ? WEFT_OK
                      : weft_error_set(error, WEFT_ERR_INVALID,
                                       "the ids of a probe hold the own id %" PRIu32 " %" PRIu32 " times",
                                       self_id, found);
}

static bool take_memory(struct weft_probe *probe, const struct weft_probe_options *options)
{
    probe->ids = weft_alloc_array(probe->env, options->count, sizeof *probe->ids);
    probe->results = weft_alloc_array(probe->env, options->count, sizeof *probe->results);
    probe->given = weft_alloc_array(probe->env, options->count, sizeof *probe->given);
    probe->asked = weft_alloc_array(probe->env, options->count, sizeof *probe->asked);
    probe->bulk = weft_alloc_zero(probe->env, options->bulk_bytes);
    probe->swallowed = weft_alloc_zero(probe->env, options->bulk_bytes);
    for (uint32_t i = 0; i < WINDOW; i++) probe->sinks[i].probe = probe;
    return probe->ids && probe->results && probe->given && probe->asked && probe->bulk && probe->swallowed;
}

enum weft_status weft_probe_start(struct weft_transport *transport, struct weft_loop *loop,
                                  const struct weft_probe_options *options, struct weft_probe **probe_out,
                                  struct weft_error *error)
{
    struct weft_env *env = weft_transport_env(transport);
    uint32_t self = 0;
    WEFT_TRY(check_options(transport, options, weft_transport_id(transport), &self, error));
    struct weft_probe *probe = weft_alloc_zero(env, sizeof *probe);
    if (!probe) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a probe");
    probe->transport = transport;
    probe->loop = loop;
    probe->env = env;
    probe->options = *options;
    probe->self = self;
    probe->count = options->count;
    probe->served.serving = options->count;
    probe->rounds = weft_probe_rounds(options->count);
    probe->round = UINT32_MAX; /* next_round increments it to 0 */
    weft_timer_init(&probe->tick, on_tick);
    weft_timer_init(&probe->kick, on_kick);
    if (!take_memory(probe, options) ||
        weft_timer_start(loop, &probe->tick, weft_now_ns(env) + TICK_NS) < 0) {
        probe->closed = true;
        weft_probe_free(probe);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a probe");
    }
    memcpy(probe->ids, options->ids, options->count * sizeof *probe->ids);
    memset(probe->asked, 0, options->count * sizeof *probe->asked);
    for (uint32_t i = 0; i < options->count; i++) {
        probe->results[i] =
            (struct weft_probe_result){.peer_id = options->ids[i], .status = WEFT_IN_PROGRESS};
        if (i != self) probe->given[i < self ? i : i - 1] = probe->results[i];
    }
    weft_transport_discard_tags(transport, WEFT_TAG(WEFT_CHANNEL_PROBE, 0), CHANNEL_MASK, false);
    weft_transport_handler(transport, WEFT_CHANNEL_PROBE, on_arrival, probe);
    next_round(probe);
    *probe_out = probe;
    return WEFT_OK;
}

bool weft_probe_done(const struct weft_probe *probe) { return probe->finished; }

const struct weft_probe_result *weft_probe_results(const struct weft_probe *probe, uint32_t *count_out)
{
    *count_out = probe->count - 1;
    return probe->given;
}

void weft_probe_close(struct weft_probe *probe)
{
    if (probe->closed) return;
    probe->closed = true;
    weft_timer_stop(probe->loop, &probe->tick);
    weft_timer_stop(probe->loop, &probe->kick);
    weft_transport_handler(probe->transport, WEFT_CHANNEL_PROBE, NULL, NULL);
    /* late messages are dropped; their pairs end by deadline */
    weft_transport_discard_tags(probe->transport, WEFT_TAG(WEFT_CHANNEL_PROBE, 0), CHANNEL_MASK, true);
}

bool weft_probe_drained(const struct weft_probe *probe)
{
    for (uint32_t i = 0; i < SENDS; i++) {
        if (probe->sends[i].busy) return false;
    }
    for (uint32_t i = 0; i < WINDOW; i++) {
        if (probe->sinks[i].busy) return false;
    }
    return probe->closed;
}

void weft_probe_free(struct weft_probe *probe)
{
    if (!probe) return;
    WEFT_ASSERT(weft_probe_drained(probe));
    weft_free_bytes(probe->env, probe->swallowed);
    weft_free_bytes(probe->env, probe->bulk);
    weft_free_bytes(probe->env, probe->asked);
    weft_free_bytes(probe->env, probe->given);
    weft_free_bytes(probe->env, probe->results);
    weft_free_bytes(probe->env, probe->ids);
    weft_free_bytes(probe->env, probe);
}
