/* stream.c - life of a stream: create, HELLO, pump, end. stream.h describes the protocol. */
#include "transport/verbs/stream/stream.h"

#include <stdio.h>
#include <string.h>

enum { CONTROL_QUEUE_BYTES = 16384, FIRST_TABLE = 16, ANNOUNCED_MAX = 1 << 20 };

void stream_options_init(struct stream_options *options)
{
    *options = (struct stream_options){
        .lane_count = 1,
        .lane_depth = 256,
        .signal_every = 128,
        .chunk_bytes = 64 << 10,
        .eager_budget = 256 << 10,
        .retry_ns = WEFT_MS(10),
        .lost_ns = WEFT_SECONDS(10),
    };
}

/* ---- tables ---- */

static bool table_grow(struct weft_env *env, struct stream_table *table)
{
    uint32_t capacity = table->capacity ? table->capacity * 2 : FIRST_TABLE;
    if (capacity > table->limit) return false;
    void **items = weft_alloc_zero(env, capacity * sizeof *items);
    uint32_t *free_items = weft_alloc_array(env, capacity, sizeof *free_items);
    if (!items || !free_items) {
        weft_free_bytes(env, items);
        weft_free_bytes(env, free_items);
        return false;
    }
    if (table->capacity > 0) memcpy(items, table->items, table->capacity * sizeof *items);
    /* it was empty: the table is full */
    for (uint32_t i = table->capacity; i < capacity; i++) free_items[table->free_count++] = i;
    weft_free_bytes(env, table->items);
    weft_free_bytes(env, table->free_items);
    table->items = items;
    table->free_items = free_items;
    table->capacity = capacity;
    return true;
}

bool stream_table_put(struct weft_env *env, struct stream_table *table, void *item, uint32_t *at_out)
{
    if (table->free_count == 0 && !table_grow(env, table)) return false;
    *at_out = table->free_items[--table->free_count];
    table->items[*at_out] = item;
    return true;
}

void stream_table_take(struct stream_table *table, uint32_t at)
{
    WEFT_ASSERT(table->items[at]);
    table->items[at] = NULL;
    table->free_items[table->free_count++] = at;
}

/* ---- life ---- */

struct stream *stream_create(struct weft_env *env, const struct stream_options *options,
                             const struct stream_ops *ops, void *context)
{
    WEFT_ASSERT(options->lane_count > 0 && options->lane_count <= STREAM_LANES_MAX);
    WEFT_ASSERT(options->lane_depth >= 16 && options->signal_every > 0 &&
                options->signal_every <= options->lane_depth / 2);
    WEFT_ASSERT(options->ring_bytes >= STREAM_RING_LEAST && options->ring_bytes <= 4u << 20 &&
                options->ring_bytes % STREAM_ALIGN == 0);
    WEFT_ASSERT(options->eager_budget >= STREAM_EAGER_BUDGET_LEAST);
    struct stream *stream = weft_alloc_zero(env, sizeof *stream);
    if (!stream) return NULL;
    stream->env = env;
    stream->ops = ops;
    stream->context = context;
    stream->options = *options;
    stream->options.lane_count_made = options->lane_count;
    stream->announced.limit = ANNOUNCED_MAX;
    stream->grants.limit = STREAM_GRANTS_MAX;
    stream->hello.peer_eager_budget = STREAM_EAGER_BUDGET_LEAST;
    weft_list_init(&stream->outgoing.waiting);
    weft_list_init(&stream->sends);
    weft_list_init(&stream->receives);
    weft_list_init(&stream->moving);
    weft_list_init(&stream->ungranted);
    bool whole = table_grow(env, &stream->announced) && table_grow(env, &stream->grants);
    whole = whole && (stream->control.control_queue = weft_alloc_bytes(env, CONTROL_QUEUE_BYTES));
    whole = whole &&
            (stream->replay.replays = weft_alloc_array(env, (size_t)options->lane_count * options->lane_depth,
                                                       sizeof *stream->replay.replays));
    for (uint32_t i = 0; i < options->lane_count && whole; i++) {
        stream->lane_set.lanes[i].epoch = 1;
        stream->lane_set.lanes[i].entries =
            weft_alloc_array(env, options->lane_depth, sizeof(struct stream_entry));
        whole = stream->lane_set.lanes[i].entries != NULL;
    }
    if (whole) return stream;
    stream_free(stream);
    return NULL;
}

void stream_free(struct stream *stream)
{
    if (!stream) return;
    struct weft_env *env = stream->env;
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) weft_free_bytes(env, stream->lane_set.lanes[i].entries);
    weft_free_bytes(env, stream->announced.items);
    weft_free_bytes(env, stream->announced.free_items);
    weft_free_bytes(env, stream->grants.items);
    weft_free_bytes(env, stream->grants.free_items);
    weft_free_bytes(env, stream->control.control_queue);
    weft_free_bytes(env, stream->replay.replays);
    weft_free_bytes(env, stream);
}

uint64_t stream_memory(const struct stream *stream)
{
    const struct stream_options *options = &stream->options;
    uint64_t lanes = (uint64_t)options->lane_count_made * options->lane_depth *
                     (sizeof(struct stream_entry) + sizeof(struct stream_replay));
    uint64_t tables = (uint64_t)(stream->announced.capacity + stream->grants.capacity) *
                      (sizeof(void *) + sizeof(uint32_t));
    return sizeof *stream + lanes + tables + CONTROL_QUEUE_BYTES;
}

void stream_fail(struct stream *stream, enum weft_status status, const char *text)
{
    if (stream->failure < 0) return;
    stream->failure = status;
    snprintf(stream->failure_text, sizeof stream->failure_text, "%s", text);
}

void stream_start(struct stream *stream)
{
    if (stream->hello.hello_sent || stream->phase != STREAM_RUNNING) return;
    const struct stream_options *options = &stream->options;
    struct stream_hello hello = {
        .version = STREAM_VERSION,
        .lane_count = options->lane_count,
        .ring_bytes = options->ring_bytes,
        .chunk_bytes = options->chunk_bytes,
        .eager_budget = options->eager_budget,
        .ring = (uintptr_t)options->ring,
    };
    memcpy(hello.keys, options->ring_keys.key, sizeof hello.keys);
    uint8_t body[128], out[STREAM_CONTROL_BYTES_MAX];
    struct stream_control control = {
        .kind = STREAM_CONTROL_HELLO, .bytes = stream_hello_encode(&hello, body), .body = body};
    stream->hello.hello_sent = true;
    stream->lane_set.down_since_ns = weft_now_ns(stream->env);
    stream_send_control(stream, out, stream_control_encode(&control, out));
}

/* ---- the link ---- */

static bool control_flush(struct stream *stream)
{
    uint32_t at = 0;
    while (at < stream->control.control_queued) {
        uint16_t bytes;
        memcpy(&bytes, stream->control.control_queue + at, 2);
        if (stream->ops->control(stream->context, stream->control.control_queue + at + 2, bytes) != WEFT_OK)
            break;
        at += 2u + bytes;
    }
    if (at == 0) return false;
    memmove(stream->control.control_queue, stream->control.control_queue + at,
            stream->control.control_queued - at);
    stream->control.control_queued -= at;
    return true;
}

void stream_send_control(struct stream *stream, const void *bytes, uint32_t count)
{
    if (stream->control.control_queued == 0 && stream->ops->control(stream->context, bytes, count) == WEFT_OK)
        return;
    if (stream->control.control_queued + count + 2 > CONTROL_QUEUE_BYTES) {
        stream_fail(stream, WEFT_ERR_PEER_LOST, "its control link takes no more messages");
        return;
    }
    uint16_t length = (uint16_t)count;
    memcpy(stream->control.control_queue + stream->control.control_queued, &length, 2);
    memcpy(stream->control.control_queue + stream->control.control_queued + 2, bytes, count);
    stream->control.control_queued += count + 2;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void hello_take(struct stream *stream, const struct stream_control *control)
{
    struct stream_hello hello;
    if (stream->hello.hello_received || stream_hello_decode(control->body, control->bytes, &hello) < 0) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "its greeting cannot be understood: another version?");
        return;
    }
    stream->hello.hello_received = true;
    stream->hello.peer_ring = hello.ring;
    stream->hello.peer_ring_bytes = hello.ring_bytes;
    memcpy(stream->hello.peer_ring_keys.key, hello.keys, sizeof hello.keys);
    stream->outgoing.ring_size = smaller(stream->options.ring_bytes, hello.ring_bytes);
    stream->options.lane_count = smaller(stream->options.lane_count, hello.lane_count);
    stream->options.chunk_bytes = smaller(stream->options.chunk_bytes, hello.chunk_bytes);
    uint32_t budget = smaller(stream->options.eager_budget, hello.eager_budget);
    if (budget > stream->hello.peer_eager_budget) stream->hello.peer_eager_budget = budget;
}

static void leave_check(struct stream *stream)
{
    if (!stream->departure.leave_received || stream->departure.left_reported ||
        stream->incoming.in_next < stream->departure.leave_records)
        return;
    stream->departure.left_reported = true;
    stream->ops->left(stream->context);
}

void stream_control(struct stream *stream, const void *bytes, uint32_t count)
{
    struct stream_control control;
    if (stream->phase != STREAM_RUNNING || stream->failure < 0) return;
    if (stream_control_decode(bytes, count, &control) < 0 ||
        (!stream->hello.hello_received && control.kind != STREAM_CONTROL_HELLO) ||
        (stream->hello.hello_received && control.lane >= stream->options.lane_count)) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "it sent a control message that cannot be understood");
        return;
    }
    switch (control.kind) {
    case STREAM_CONTROL_HELLO: hello_take(stream, &control); break;
    case STREAM_CONTROL_OFFER: stream_on_lane_offer(stream, &control); break;
    case STREAM_CONTROL_READY: stream_on_lane_ready(stream, &control); break;
    case STREAM_CONTROL_BROKEN: stream_on_lane_broken(stream, &control); break;
    case STREAM_CONTROL_LEAVE:
        stream->departure.leave_received = true;
        stream->departure.leave_records = control.value;
        leave_check(stream);
        break;
    case STREAM_CONTROL_LEAVE_REPLY: stream->departure.leave_acked = true; break;
    case STREAM_CONTROL_LOST: {
        char text[sizeof stream->failure_text];
        snprintf(text, sizeof text, "it has given this connection up: %.*s", (int)control.bytes,
                 (const char *)control.body);
        stream_fail(stream, WEFT_ERR_PEER_LOST, text);
        break;
    }
    }
}

/* Sent when everything before it is staged, so the count of records is final. */
static void leave_send(struct stream *stream, enum stream_control_kind kind)
{
    uint8_t out[STREAM_CONTROL_BYTES_MAX];
    struct stream_control control = {.kind = kind, .value = stream->outgoing.out_next};
    stream_send_control(stream, out, stream_control_encode(&control, out));
}

void stream_leave(struct stream *stream, bool answer)
{
    if (stream->phase != STREAM_RUNNING) return;
    if (answer) leave_send(stream, STREAM_CONTROL_LEAVE_REPLY);
    else stream->departure.leaving = true;
}

void stream_report_lost(struct stream *stream, const char *text)
{
    uint8_t out[STREAM_CONTROL_BYTES_MAX];
    size_t bytes = strlen(text), most = STREAM_CONTROL_BYTES_MAX - STREAM_CONTROL_FIXED_BYTES;
    if (stream->phase != STREAM_RUNNING || !stream->hello.hello_sent) return;
    struct stream_control control = {.kind = STREAM_CONTROL_LOST,
                                     .bytes = (uint32_t)(bytes < most ? bytes : most),
                                     .body = (const uint8_t *)text};
    stream_send_control(stream, out, stream_control_encode(&control, out));
}

/* ---- progress ---- */

void stream_imm(struct stream *stream, uint32_t lane_at, uint32_t epoch, uint32_t imm)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (stream->phase != STREAM_RUNNING || stream->failure < 0) return;
    if (epoch != lane->epoch) return;
    if (STREAM_MUTANT != STREAM_MUTANT_NO_FENCE && lane->state != STREAM_LANE_JOINED &&
        lane->state != STREAM_LANE_UP && lane->state != STREAM_LANE_FENCING) {
        return; /* the watermark is fixed: this write will be replayed */
    }
    lane->imm_received++;
    stream->lane_set.breaks_without_progress = 0;
    uint32_t rest = imm & 0x3fffffff;
    switch (imm >> 30) {
    case STREAM_IMM_RECORD: stream_on_record(stream, rest >> 16, (rest & 0xffff) * STREAM_ALIGN); break;
    case STREAM_IMM_DATA: stream_on_chunks(stream, rest >> 20, rest & 0xfffff); break;
    case STREAM_IMM_CREDIT: stream_credit_imm(stream, rest); break;
    case STREAM_IMM_FLUSH: break;
    }
    leave_check(stream);
}

/* Posts one batch for this lane. */
static bool lane_pump(struct stream *stream, uint32_t lane_at, uint32_t chunk_limit)
{
    struct stream_work works[STREAM_BATCH];
    uint32_t count = 0;
    stream_records_post(stream, lane_at, works, &count);
    stream_transfers_post(stream, lane_at, works, &count, chunk_limit);
    if (count == 0) return false;
    if (stream->ops->post(stream->context, lane_at, works, count) != WEFT_OK) {
        stream_lane_stop(stream, lane_at, "the queue pair takes no work");
    }
    return true;
}

/* Closes runs of lanes whose chunks are all posted, while another lane took the last chunk. */
static bool runs_close(struct stream *stream)
{
    bool any = false;
    for (uint32_t i = 0; i < stream->options.lane_count; i++) {
        struct stream_lane *lane = &stream->lane_set.lanes[i];
        struct stream_work work;
        uint32_t count = 0;
        if (lane->state != STREAM_LANE_UP || !lane->run || !stream_run_is_posted(lane)) continue;
        stream_run_close(stream, i, &work, &count);
        any = true;
        if (stream->ops->post(stream->context, i, &work, count) != WEFT_OK)
            stream_lane_stop(stream, i, "the queue pair takes no work");
    }
    return any;
}

bool stream_pump(struct stream *stream)
{
    bool any = control_flush(stream);
    if (stream->phase != STREAM_RUNNING || stream->failure < 0 || !stream->hello.hello_received) return any;
    any |= stream_records_stage(stream);
    if (stream->departure.leaving && weft_list_empty(&stream->outgoing.waiting)) {
        stream->departure.leaving = false;
        leave_send(stream, STREAM_CONTROL_LEAVE);
    }
    uint32_t lanes = stream->options.lane_count;
    uint32_t chunk_limit = lanes > 1 ? 4 : STREAM_BATCH; /* several lanes share the chunks */
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < lanes; i++) {
            uint32_t at = (stream->lane_set.next_lane + i) % lanes;
            if (stream->lane_set.lanes[at].state == STREAM_LANE_UP)
                more |= lane_pump(stream, at, chunk_limit);
        }
        stream->lane_set.next_lane = (stream->lane_set.next_lane + 1) % lanes;
        any |= more;
    }
    return runs_close(stream) || any;
}

bool stream_is_flushed(const struct stream *stream)
{
    if (stream->phase != STREAM_RUNNING) return true;
    for (uint32_t i = 0; i < stream->options.lane_count; i++) {
        const struct stream_lane *lane = &stream->lane_set.lanes[i];
        if (lane->state != STREAM_LANE_UP && lane->posted != lane->acked) return false;
    }
    return weft_list_empty(&stream->outgoing.waiting) && stream->outgoing.out_unposted == 0 &&
           stream->replay.replay_count == 0 && stream->control.control_queued == 0;
}

/* ---- end ---- */

void stream_check_end(struct stream *stream)
{
    if (stream->phase != STREAM_ENDING) return;
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) {
        enum stream_lane_state state = stream->lane_set.lanes[i].state;
        bool live = state == STREAM_LANE_OFFERED || state == STREAM_LANE_JOINED || state == STREAM_LANE_UP ||
                    state == STREAM_LANE_FENCING;
        if (live && STREAM_MUTANT != STREAM_MUTANT_END_UNFENCED) return;
    }
    stream->phase = STREAM_ENDED;
    while (!weft_list_empty(&stream->sends)) {
        struct stream_send *send = weft_list_first(&stream->sends, struct stream_send, link);
        weft_list_remove(&send->link);
        weft_list_remove(&send->outgoing.link);
        stream->ops->sent(stream->context, send, stream->end_status);
    }
    while (!weft_list_empty(&stream->receives)) {
        struct stream_receive *receive = weft_list_first(&stream->receives, struct stream_receive, link);
        weft_list_remove(&receive->link);
        weft_list_remove(&receive->outgoing.link);
        stream->ops->received(stream->context, receive, stream->end_status);
    }
    stream->ops->ended(stream->context);
}

void stream_end(struct stream *stream, enum weft_status status)
{
    if (stream->phase != STREAM_RUNNING) return;
    stream->phase = STREAM_ENDING;
    stream->end_status = status;
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) stream_lane_stop(stream, i, "the stream ends");
    stream_check_end(stream);
}
