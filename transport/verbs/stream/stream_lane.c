/* stream_lane.c - epochs of a lane, and its open works when it breaks. */
#include <stdio.h>
#include <string.h>

#include "transport/verbs/stream/stream.h"

enum { BACKOFF_MAX = 7, BREAKS_WITHOUT_PROGRESS_MAX = 3 };

static void send_lane_control(struct stream *stream, enum stream_control_kind kind, uint32_t lane_at,
                              uint64_t value, const void *body, uint32_t bytes)
{
    uint8_t out[STREAM_CONTROL_BYTES_MAX];
    struct stream_control control = {.kind = kind,
                                     .lane = lane_at,
                                     .epoch = stream->lane_set.lanes[lane_at].epoch,
                                     .value = value,
                                     .bytes = bytes,
                                     .body = body};
    stream_send_control(stream, out, stream_control_encode(&control, out));
}

static bool lane_live(const struct stream_lane *lane)
{
    return lane->state == STREAM_LANE_OFFERED || lane->state == STREAM_LANE_JOINED ||
           lane->state == STREAM_LANE_UP;
}

uint32_t stream_lanes_up(const struct stream *stream)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < stream->options.lane_count; i++)
        count += stream->lane_set.lanes[i].state == STREAM_LANE_UP;
    return count;
}

/* ---- up ---- */

static void lane_up(struct stream *stream, struct stream_lane *lane)
{
    lane->state = STREAM_LANE_UP;
    stream->lane_set.down_since_ns = WEFT_NEVER;
}

void stream_lane_joined(struct stream *stream, uint32_t lane_at, uint32_t epoch)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (epoch != lane->epoch || lane->state != STREAM_LANE_OFFERED || !lane->peer_offered) return;
    lane->state = STREAM_LANE_JOINED;
    send_lane_control(stream, STREAM_CONTROL_READY, lane_at, 0, NULL, 0);
    if (lane->peer_ready) lane_up(stream, lane);
}

static void lane_join(struct stream *stream, uint32_t lane_at)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    enum weft_status status =
        stream->ops->lane_join(stream->context, lane_at, lane->epoch, lane->peer_blob, lane->peer_blob_bytes);
    if (status < 0) stream_lane_stop(stream, lane_at, "the queue pair cannot be connected");
    else if (status == WEFT_OK) stream_lane_joined(stream, lane_at, lane->epoch);
}

static uint64_t backoff_ns(const struct stream *stream, const struct stream_lane *lane)
{
    uint32_t doubled = lane->failures < BACKOFF_MAX ? lane->failures : BACKOFF_MAX;
    return stream->options.retry_ns << doubled;
}

static void lane_make(struct stream *stream, uint32_t lane_at, uint64_t now_ns)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    uint8_t blob[STREAM_BLOB_BYTES_MAX];
    uint32_t bytes = 0;
    if (stream->ops->lane_make(stream->context, lane_at, lane->epoch, blob, &bytes) != WEFT_OK) {
        /* the cause of the last break is more precise */
        if (!lane->cause[0]) snprintf(lane->cause, sizeof lane->cause, "no queue pair can be made");
        lane->retry_ns = now_ns + backoff_ns(stream, lane);
        lane->failures++;
        return;
    }
    WEFT_ASSERT(bytes <= STREAM_BLOB_BYTES_MAX);
    lane->state = STREAM_LANE_OFFERED;
    send_lane_control(stream, STREAM_CONTROL_OFFER, lane_at, 0, blob, bytes);
    if (lane->peer_offered) lane_join(stream, lane_at);
}

/* The peer may refer only to the epoch that both sides agreed on. */
static bool epoch_agrees(struct stream *stream, const struct stream_control *control)
{
    if (control->epoch == stream->lane_set.lanes[control->lane].epoch) return true;
    stream_fail(stream, WEFT_ERR_MALFORMED, "it speaks of a queue pair that does not exist");
    return false;
}

void stream_on_lane_offer(struct stream *stream, const struct stream_control *control)
{
    struct stream_lane *lane = &stream->lane_set.lanes[control->lane];
    if (!epoch_agrees(stream, control)) return;
    if (lane->peer_offered || control->bytes > STREAM_BLOB_BYTES_MAX) {
        stream_fail(stream, WEFT_ERR_MALFORMED,
                    "it offered a queue pair twice, or one that cannot be understood");
        return;
    }
    lane->peer_offered = true;
    lane->peer_blob_bytes = control->bytes;
    memcpy(lane->peer_blob, control->body, control->bytes);
    if (lane->state == STREAM_LANE_IDLE) lane_make(stream, control->lane, weft_now_ns(stream->env));
    else if (lane->state == STREAM_LANE_OFFERED) lane_join(stream, control->lane);
}

void stream_on_lane_ready(struct stream *stream, const struct stream_control *control)
{
    struct stream_lane *lane = &stream->lane_set.lanes[control->lane];
    if (!epoch_agrees(stream, control)) return;
    lane->peer_ready = true;
    if (lane->state == STREAM_LANE_JOINED) lane_up(stream, lane);
}

/* ---- down ---- */

static bool entry_is_imm(const struct stream_entry *entry)
{
    return entry->kind != STREAM_ENTRY_CHUNK && entry->kind != STREAM_ENTRY_READ;
}

static struct stream_entry *entry_at(struct stream *stream, struct stream_lane *lane, uint64_t index)
{
    return &lane->entries[index % stream->options.lane_depth];
}

static bool entry_has_transfer(const struct stream_entry *entry)
{
    return entry->kind != STREAM_ENTRY_RECORD && entry->kind != STREAM_ENTRY_CREDIT;
}

/* The work is done at the peer. */
static void entry_done(struct stream *stream, struct stream_lane *lane, const struct stream_entry *entry)
{
    if (!entry_has_transfer(entry)) return;
    struct stream_transfer *transfer = entry->of.transfer;
    bool counted = entry->kind != STREAM_ENTRY_CHUNK && !transfer->refused;
    uint32_t number = entry->kind == STREAM_ENTRY_READ ? 1 : entry->number;
    if (entry->kind == STREAM_ENTRY_CHUNK) {
        lane->unconfirmed = transfer;
        lane->unconfirmed_count++;
    } else if (entry->kind == STREAM_ENTRY_RUN) {
        lane->unconfirmed_count = 0;
    }
    stream_transfer_closed(stream, transfer); /* a refused transfer may be complete now */
    if (counted) stream_confirm(stream, transfer, number);
}

static void entry_again(struct stream *stream, const struct stream_entry *entry)
{
    if (entry_has_transfer(entry)) {
        struct stream_transfer *transfer = entry->of.transfer;
        bool refused = transfer->refused;
        if (!refused && entry->kind == STREAM_ENTRY_UNCOUNTED)
            stream_replay_add(stream, transfer, 0, entry->number);
        else if (!refused && entry->kind != STREAM_ENTRY_RUN && STREAM_MUTANT != STREAM_MUTANT_NO_REPLAY)
            stream_replay_add(stream, transfer, entry->number, 0);
        stream_transfer_closed(stream, transfer);
        return;
    }
    switch (entry->kind) {
    case STREAM_ENTRY_RECORD:
        if (entry->of.sequence < stream->outgoing.out_done) return;
        stream->outgoing.out[entry->of.sequence % STREAM_RECORDS_MAX].posted = false;
        stream->outgoing.out_unposted++;
        return;
    case STREAM_ENTRY_CREDIT: stream->credit_again = true; return;
    }
}

/* Everything up to the peer's watermark is done, later works never will be. Reads have no watermark: they
 * are repeated into the same buffer. */
static void lane_replay(struct stream *stream, struct stream_lane *lane)
{
    uint64_t imms = 0, boundary = lane->acked;
    if (STREAM_MUTANT == STREAM_MUTANT_NO_WATERMARK) lane->peer_received = lane->imm_acked;
    for (uint64_t i = lane->acked; i < lane->posted; i++) {
        if (!entry_is_imm(entry_at(stream, lane, i))) continue;
        imms++;
        if (lane->imm_acked + imms <= lane->peer_received) boundary = i + 1;
    }
    if (lane->peer_received < lane->imm_acked || lane->peer_received > lane->imm_acked + imms) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "its count of what it received is impossible");
        return;
    }
    for (uint64_t i = lane->acked; i < lane->posted; i++) {
        const struct stream_entry *entry = entry_at(stream, lane, i);
        if (i < boundary && entry->kind != STREAM_ENTRY_READ) entry_done(stream, lane, entry);
        else entry_again(stream, entry);
    }
    if (lane->unconfirmed_count > 0 && !lane->unconfirmed->refused &&
        STREAM_MUTANT != STREAM_MUTANT_NOT_UNCOUNTED)
        stream_replay_add(stream, lane->unconfirmed, 0, lane->unconfirmed_count);
    lane->unconfirmed_count = 0;
}

/* Both queue pairs of this epoch are fenced and both watermarks were exchanged: starts the next epoch. */
static void lane_settle(struct stream *stream, uint32_t lane_at)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    /* more had arrived than was known */
    if (lane->peer_received > lane->imm_acked) stream->lane_set.breaks_without_progress = 0;
    lane_replay(stream, lane);
    if (stream->failure < 0) return;
    uint64_t now_ns = weft_now_ns(stream->env);
    lane->retry_ns = now_ns + backoff_ns(stream, lane);
    /* it had worked */
    if (lane->acked > 0 || lane->imm_received > 0 || lane->peer_received > 0) lane->failures = 0;
    else lane->failures++;
    lane->state = STREAM_LANE_IDLE;
    lane->epoch++;
    lane->peer_offered = lane->peer_ready = lane->peer_broken = false;
    lane->posted = lane->acked = lane->imm_acked = lane->imm_received = 0;
    lane->unsignalled = 0;
    lane->run = NULL;
    lane->run_count = 0;
}

void stream_lane_stop(struct stream *stream, uint32_t lane_at, const char *cause)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (!lane_live(lane)) return;
    lane->state = STREAM_LANE_FENCING;
    lane->run = NULL;
    snprintf(lane->cause, sizeof lane->cause, "%s", cause);
    uint64_t now_ns = weft_now_ns(stream->env);
    if (stream->lane_set.down_since_ns == WEFT_NEVER && stream_lanes_up(stream) == 0)
        stream->lane_set.down_since_ns = now_ns;
    if (lane->posted > lane->acked && stream->lane_set.breaks_without_progress++ == 0)
        stream->lane_set.no_progress_since_ns = now_ns;
    if (STREAM_MUTANT == STREAM_MUTANT_NO_FENCE)
        send_lane_control(stream, STREAM_CONTROL_BROKEN, lane_at, lane->imm_received, lane->cause,
            (uint32_t)strlen(lane->cause));
    stream->ops->lane_fence(stream->context, lane_at, lane->epoch);
}

bool stream_work_refused(struct stream *stream, uint32_t lane_at, uint32_t epoch, uint64_t index)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (epoch != lane->epoch || index < lane->acked || index >= lane->posted) return false;
    const struct stream_entry *entry = entry_at(stream, lane, index);
    if (entry->kind != STREAM_ENTRY_CHUNK && entry->kind != STREAM_ENTRY_READ) return false;
    if (entry->of.transfer->grant != STREAM_NO_GRANT) return false;
    entry->of.transfer->refused = true;
    stream->lane_set.breaks_without_progress = 0; /* the peer's device has responded */
    return true;
}

void stream_lane_broke(struct stream *stream, uint32_t lane_at, uint32_t epoch, const char *cause)
{
    if (epoch == stream->lane_set.lanes[lane_at].epoch) stream_lane_stop(stream, lane_at, cause);
}

void stream_lane_fenced(struct stream *stream, uint32_t lane_at, uint32_t epoch)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (epoch != lane->epoch || lane->state != STREAM_LANE_FENCING) return;
    lane->state = STREAM_LANE_FENCED;
    if (stream->phase != STREAM_RUNNING) {
        stream_check_end(stream);
        return;
    }
    if (STREAM_MUTANT != STREAM_MUTANT_NO_FENCE)
        send_lane_control(stream, STREAM_CONTROL_BROKEN, lane_at, lane->imm_received, lane->cause,
            (uint32_t)strlen(lane->cause));
    if (lane->peer_broken) lane_settle(stream, lane_at);
}

void stream_on_lane_broken(struct stream *stream, const struct stream_control *control)
{
    struct stream_lane *lane = &stream->lane_set.lanes[control->lane];
    if (!epoch_agrees(stream, control)) return;
    lane->peer_broken = true;
    lane->peer_received = control->value;
    if (lane->state == STREAM_LANE_IDLE) {
        send_lane_control(stream, STREAM_CONTROL_BROKEN, control->lane, 0, NULL, 0);
        lane_settle(stream, control->lane);
    } else if (lane->state == STREAM_LANE_FENCED) {
        lane_settle(stream, control->lane);
    } else if (lane_live(lane)) {
        char cause[120];
        snprintf(cause, sizeof cause, "the peer reports: %.*s",
                 (int)(control->bytes < 90 ? control->bytes : 90), (const char *)control->body);
        stream_lane_stop(stream, control->lane, cause);
    }
}

/* ---- works ---- */

struct stream_work *stream_lane_work(struct stream *stream, uint32_t lane_at, struct stream_work *works,
                                     uint32_t *count, enum stream_work_kind kind, struct stream_entry entry)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    struct stream_work *work = &works[(*count)++];
    WEFT_ASSERT(stream_lane_space(stream, lane) > 0);
    *work = (struct stream_work){.kind = kind, .index = lane->posted};
    *entry_at(stream, lane, lane->posted) = entry;
    if (entry_has_transfer(&entry)) entry.of.transfer->open++;
    lane->posted++;
    lane->unsignalled++;
    work->signalled = entry.kind == STREAM_ENTRY_RUN || entry.kind == STREAM_ENTRY_UNCOUNTED ||
                      entry.kind == STREAM_ENTRY_READ || lane->unsignalled >= stream->options.signal_every;
    if (work->signalled) lane->unsignalled = 0;
    return work;
}

void stream_acked(struct stream *stream, uint32_t lane_at, uint32_t epoch, uint64_t index)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    if (stream->phase != STREAM_RUNNING || epoch != lane->epoch || index >= lane->posted) return;
    stream->lane_set.breaks_without_progress = 0;
    while (lane->acked <= index) {
        const struct stream_entry *entry = entry_at(stream, lane, lane->acked++);
        lane->imm_acked += entry_is_imm(entry);
        entry_done(stream, lane, entry);
    }
}

/* ---- time ---- */

static uint64_t lost_at(const struct stream *stream, uint64_t since_ns)
{
    return since_ns == WEFT_NEVER ? WEFT_NEVER : since_ns + stream->options.lost_ns;
}

/* Lanes may connect repeatedly on a path that carries nothing: a connection is no progress. */
static uint64_t no_progress_since_ns(const struct stream *stream)
{
    return stream->lane_set.breaks_without_progress >= BREAKS_WITHOUT_PROGRESS_MAX
               ? stream->lane_set.no_progress_since_ns
               : WEFT_NEVER;
}

const char *stream_trouble(const struct stream *stream)
{
    if (stream->lane_set.down_since_ns == WEFT_NEVER && stream->lane_set.breaks_without_progress == 0)
        return NULL;
    for (uint32_t i = 0; i < stream->options.lane_count; i++) {
        if (stream->lane_set.lanes[i].cause[0]) return stream->lane_set.lanes[i].cause;
    }
    return NULL;
}

uint64_t stream_next_ns(const struct stream *stream)
{
    if (stream->phase != STREAM_RUNNING || !stream->hello.hello_sent) return WEFT_NEVER;
    uint64_t next_ns = lost_at(stream, stream->lane_set.down_since_ns),
             vain_ns = lost_at(stream, no_progress_since_ns(stream));
    if (vain_ns < next_ns) next_ns = vain_ns;
    for (uint32_t i = 0; i < stream->options.lane_count && stream->hello.hello_received; i++) {
        const struct stream_lane *lane = &stream->lane_set.lanes[i];
        if (lane->state == STREAM_LANE_IDLE && lane->retry_ns < next_ns) next_ns = lane->retry_ns;
    }
    return next_ns;
}

void stream_tick(struct stream *stream, uint64_t now_ns)
{
    if (stream->phase != STREAM_RUNNING || !stream->hello.hello_sent || stream->failure < 0) return;
    for (uint32_t i = 0; i < stream->options.lane_count && stream->hello.hello_received; i++) {
        struct stream_lane *lane = &stream->lane_set.lanes[i];
        if (lane->state == STREAM_LANE_IDLE && now_ns >= lane->retry_ns) lane_make(stream, i, now_ns);
    }
    bool down = now_ns >= lost_at(stream, stream->lane_set.down_since_ns),
         vain = now_ns >= lost_at(stream, no_progress_since_ns(stream));
    if (!down && !vain) return;
    const char *cause = stream_trouble(stream);
    char text[200];
    snprintf(text, sizeof text, "%s for %llu ms: %s",
             down ? "no queue pair with it could be had"
                  : "every queue pair with it breaks, nothing got through",
             (unsigned long long)(stream->options.lost_ns / 1000000), cause ? cause : "it does not answer");
    stream_fail(stream, WEFT_ERR_PEER_LOST, text);
}
