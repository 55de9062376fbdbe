/* device_staging.c - see device_staging.h. States of a window:
 *
 *     idle ──copy down queued──► filling ──event has passed──► full ──► posted ──operation done──► emptying
 *                                   ▲                                            (copy up queued)      │
 *                                   └──────────────── piece + WINDOWS; down waits for up ──────────────┘
 *
 * No host thread waits for a device: events order the streams. The engine polls the events of the windows
 * that it needs, first often and later at most every millisecond.
 *
 * A stream-ordered call (on_stream) makes its stream wait for a word of the stage. The stream `up` stores the
 * word behind the last copy of the call. While a stream may wait for a word, `down` and `up` must not wait
 * for that stream, also not through others. Then each stage is gated: its copies are queued after `begun` has
 * passed. */
#include "client/call/device_staging.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "transport/transport.h"

#define WINDOWS 3u
#define LEAVE_NS WEFT_SECONDS(1)

struct client_device {
    struct weft_list link;
    const struct weft_memory_ops *ops;
    struct weft_session *session;
    int device;
    void *down, *up, *coding; /* streams: copies to the host, copies to the device, codecs on the device */
    struct weft_codec_batcher *batcher; /* of `coding`: small tensors share a launch */
    bool is_stuck;               /* a codec that was freed waited for the device in vain */
    bool has_stream_order;    /* a stream-ordered call was made: new stages are gated; caller's thread */
    bool words_refused;       /* the driver has no such waits; caller's thread */
};

/* Of a stream-ordered call. */
struct stream_hold {
    _Atomic uint32_t *word; /* owned; NULL: not needed yet */
    uint32_t value;         /* that ends the wait of the caller's stream; one more for each call */
    bool is_held;           /* the caller's stream waits, or will */
};

enum window_state { IDLE = 0, FILLING, FULL, POSTED, EMPTYING };

struct window {
    struct client_stage *stage;
    uint8_t *memory; /* (capacity,) owned; NULL: the caller's host memory is used */
    size_t capacity;
    bool pinned;
    void *filled, *emptied; /* events, created on the device `of` */
    enum window_state state;
    uint64_t piece;
    uint64_t filling_ns;    /* since then the input is copied in */
    struct weft_coll *coll; /* while posted */
};

struct client_stage {
    struct weft_list link;
    struct weft_session *session;
    struct client_request *request;
    struct client_device *device; /* device of this call; NULL: host memory in pieces */
    struct client_device *of;     /* device of the events */
    void *stream;                 /* the caller's */
    void *begun;                  /* event: the work that the caller had queued before the call */
    struct stream_hold hold;
    bool is_gated; /* no copy is queued before `begun` has passed */
    struct window windows[WINDOWS];
    size_t elem_bytes;
    uint64_t piece_elems, pieces;
    struct client_extents extents; /* of the whole call */
    bool has_separate_areas;                    /* in and out have separate areas in the window */
    bool coded;                    /* a codec on the device reads in and writes out: no windows */
    bool keeps_out;                /* the content of `out` is copied down too */
    float *sum;                    /* device memory: the weights `out` are updated from it; NULL: not there */
    void (*resume)(struct client_request *request); /* of a tensor that waits for its input; else NULL */
    uint64_t emptying_ns;          /* since then the last piece of the result is copied out; 0: no copy */
    uint64_t posted, done;         /* pieces; done includes failed pieces */
    bool ended;                    /* the request's operation has ended */
    enum weft_status status;
    char text[300];
};

/* ---- the current device ---- */

/* Around every call with a stream or an event, also queries: without a current device a runtime creates a
 * context on device 0. */
static enum weft_status enter_device(const struct client_device *device, int *before_out,
                                     struct weft_error *error)
{
    return device->ops->enter(device->device, before_out, error);
}

/* The engine's own threads keep the device current. Switching back to device 0 would create a context
 * there, with hundreds of MB of device memory for each rank of the host. */
void client_device_leave(struct weft_session *session, const struct weft_memory_ops *ops, int before)
{
    const struct weft_loop *loop = session->loop; /* NULL: the engine has ended */
    if (!weft_loop_is_compute_thread() && (!loop || !weft_loop_is_engine_thread(loop))) ops->leave(before);
}

static void leave_device(struct weft_session *session, const struct client_device *device, int before)
{
    client_device_leave(session, device->ops, before);
}

static void codec_leave(void *context, int before)
{
    const struct client_device *device = context;
    leave_device(device->session, device, before);
}

/* ---- devices: caller's thread ---- */

static struct client_device *device_lookup(struct client_staging *staging, const struct weft_memory_ops *ops,
                                           int device)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &staging->devices) {
        struct client_device *known = weft_container_of(node, struct client_device, link);
        if (known->ops == ops && known->device == device) return known;
    }
    return NULL;
}

static void device_free(struct weft_session *session, struct client_device *device)
{
    int before;
    bool entered = enter_device(device, &before, NULL) == WEFT_OK;
    weft_codec_batcher_free(device->batcher, !entered || device->is_stuck);
    device->ops->stream_free(device->down);
    device->ops->stream_free(device->up);
    device->ops->stream_free(device->coding);
    if (entered) device->ops->leave(before);
    weft_free_bytes(session->env, device);
}

/* The device is current. */
static enum weft_status device_find_or_create(struct weft_session *session, const struct weft_memory_ops *ops,
                                              int number, struct client_device **out,
                                              struct weft_error *error)
{
    struct client_staging *staging = &session->calls->staging;
    pthread_mutex_lock(&staging->lock);
    struct client_device *device = device_lookup(staging, ops, number);
    enum weft_status status = WEFT_OK;
    if (!device) {
        device = weft_alloc_zero(session->env, sizeof *device);
        if (!device)
            status = (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                      "no memory for a device's streams");
        if (device) *device = (struct client_device){.ops = ops, .session = session, .device = number};
        if (status == WEFT_OK) status = ops->stream_create(&device->down, error);
        if (status == WEFT_OK) status = ops->stream_create(&device->up, error);
        if (status == WEFT_OK) status = ops->stream_create(&device->coding, error);
        if (status == WEFT_OK) /* NULL: no memory; each codec then launches its own kernels */
            device->batcher = weft_codec_batcher_create(session->env, ops, device->coding);
        if (status == WEFT_OK) {
            weft_list_append(&staging->devices, &device->link);
        } else if (device) {
            device_free(session, device);
            device = NULL;
        }
    }
    pthread_mutex_unlock(&staging->lock);
    *out = device;
    return status;
}

/* ---- stages and their windows: caller's thread ---- */

static void window_free(struct weft_session *session, struct window *window,
                        const struct weft_memory_ops *ops)
{
    if (window->pinned) ops->unpin(window->memory);
    weft_memory_free(session->env, window->memory);
    window->memory = NULL;
    window->capacity = 0;
    window->pinned = false;
}

static void stage_free(struct weft_session *session, struct client_stage *stage)
{
    const struct weft_memory_ops *ops = stage->of ? stage->of->ops : NULL;
    int before;
    bool entered = ops && enter_device(stage->of, &before, NULL) == WEFT_OK;
    for (uint32_t w = 0; ops && w < WINDOWS; w++) {
        window_free(session, &stage->windows[w], ops);
        ops->event_free(stage->windows[w].filled);
        ops->event_free(stage->windows[w].emptied);
    }
    if (ops) ops->event_free(stage->begun);
    if (ops) ops->word_free(stage->hold.word);
    if (entered) ops->leave(before);
    weft_free_bytes(session->env, stage);
}

static enum weft_status make_events(struct client_stage *stage, struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->of->ops;
    WEFT_TRY(ops->event_create(&stage->begun, error));
    for (uint32_t w = 0; w < WINDOWS; w++) {
        WEFT_TRY(ops->event_create(&stage->windows[w].filled, error));
        WEFT_TRY(ops->event_create(&stage->windows[w].emptied, error));
    }
    return WEFT_OK;
}

/* An idle stage of this device, or a new one. The device is current: it gets the new events. */
static enum weft_status stage_alloc(struct weft_session *session, struct client_device *device,
                                    struct client_stage **out, struct weft_error *error)
{
    struct client_staging *staging = &session->calls->staging;
    struct client_stage *stage = NULL;
    struct weft_list *node, *spare;
    pthread_mutex_lock(&staging->lock);
    weft_list_foreach(node, spare, &staging->idle) {
        struct client_stage *idle = weft_container_of(node, struct client_stage, link);
        if (idle->of != device) continue;
        weft_list_remove(node);
        stage = idle;
        break;
    }
    pthread_mutex_unlock(&staging->lock);
    if (!stage) {
        stage = weft_alloc_zero(session->env, sizeof *stage);
        if (!stage)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to stage a call");
        weft_list_init(&stage->link);
        stage->of = device;
        stage->session = session;
        for (uint32_t w = 0; w < WINDOWS; w++) stage->windows[w].stage = stage;
        enum weft_status status = device ? make_events(stage, error) : WEFT_OK;
        if (status < 0) {
            stage_free(session, stage);
            return status;
        }
    }
    for (uint32_t w = 0; w < WINDOWS; w++) stage->windows[w].state = IDLE;
    stage->coded = stage->is_gated = stage->hold.is_held = false;
    stage->device = device;
    stage->posted = stage->done = 0;
    stage->emptying_ns = 0;
    stage->ended = false;
    stage->status = WEFT_OK;
    *out = stage;
    return WEFT_OK;
}

static void stage_release(struct weft_session *session, struct client_stage *stage)
{
    pthread_mutex_lock(&session->calls->staging.lock);
    weft_list_insert_before(session->calls->staging.idle.next, &stage->link);
    pthread_mutex_unlock(&session->calls->staging.lock);
}

static size_t round_up_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t window_bytes(const struct client_stage *stage)
{
    if (stage->pieces > 1) return stage->piece_elems * stage->elem_bytes;
    size_t in = stage->extents.in * stage->elem_bytes, out = stage->extents.out * stage->elem_bytes;
    if (stage->has_separate_areas) return round_up_to_line(in) + out;
    return in > out ? in : out;
}

static enum weft_status window_reserve(struct weft_session *session, struct client_stage *stage,
                                       struct window *window, struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->device->ops;
    size_t bytes = window_bytes(stage);
    void *memory;
    if (window->capacity >= bytes) return WEFT_OK;
    window_free(session, window, ops);
    WEFT_TRY(weft_memory_alloc(session->env, bytes, &memory, error));
    window->memory = memory;
    window->capacity = bytes;
    window->pinned = ops->pin(memory, bytes, NULL) == WEFT_OK; /* without pinning, copies are slower */
    if (!window->pinned)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "%zu bytes of host memory cannot be pinned: copies will be slower", bytes);
    return WEFT_OK;
}

/* ---- pieces ---- */

static uint64_t piece_count(const struct client_stage *stage, uint64_t whole, uint64_t piece)
{
    uint64_t at = piece * stage->piece_elems;
    if (at >= whole) return 0;
    return whole - at < stage->piece_elems ? whole - at : stage->piece_elems;
}

static uint8_t *output_area(const struct client_stage *stage, const struct window *window)
{
    return window->memory +
           (stage->has_separate_areas ? round_up_to_line(stage->extents.in * stage->elem_bytes) : 0);
}

/* Queues the copy of a piece into its window, after the previous result has left the window. */
static enum weft_status window_copy_in(struct client_stage *stage, uint64_t piece, struct weft_error *error)
{
    struct window *window = &stage->windows[piece % WINDOWS];
    bool used = window->state == EMPTYING;
    uint64_t count = piece_count(stage, stage->extents.in, piece);
    window->piece = piece;
    window->filling_ns = weft_now_ns(stage->session->env);
    if (!stage->device) {
        window->state = FULL;
        return WEFT_OK;
    }
    const struct weft_memory_ops *ops = stage->device->ops;
    if (used) WEFT_TRY(ops->wait(stage->device->down, window->emptied, error));
    if (count > 0) {
        const uint8_t *from =
            (const uint8_t *)stage->request->in + piece * stage->piece_elems * stage->elem_bytes;
        WEFT_TRY(ops->copy(window->memory, from, count * stage->elem_bytes, stage->device->down, error));
    }
    if (stage->keeps_out) {
        WEFT_TRY(ops->copy(output_area(stage, window), stage->request->out,
                           stage->extents.out * stage->elem_bytes, stage->device->down, error));
        used = true;
    }
    if (count > 0 || used) WEFT_TRY(ops->record(window->filled, stage->device->down, error));
    window->state = count > 0 || used ? FILLING : FULL;
    return WEFT_OK;
}

/* Queues the update of the weights from the sum. The device is current. */
static enum weft_status queue_update(struct client_stage *stage, struct window *unused,
                                     struct weft_error *error)
{
    return stage->session->calls->tensor_ops->queue_update(stage->request->tensor, stage->request->out,
                                                           stage->device->coding, error);
}

/* Queues the copy of a result out of its window, or to the sum and the update from it. The device is
 * current. */
static enum weft_status window_copy_out(struct client_stage *stage, struct window *window,
                                        struct weft_error *error)
{
    uint64_t count = piece_count(stage, stage->extents.out, window->piece);
    window->state = IDLE;
    if (!stage->device || count == 0) return WEFT_OK;
    const struct weft_memory_ops *ops = stage->device->ops;
    uint8_t *to = (uint8_t *)stage->request->out + window->piece * stage->piece_elems * stage->elem_bytes;
    void *stream = stage->device->up;
    if (stage->sum) { /* all updates of a tensor are on one stream */
        to = (uint8_t *)stage->sum;
        stream = stage->device->coding;
    }
    WEFT_TRY(ops->wait(stream, stage->begun, error));
    WEFT_TRY(ops->copy(to, output_area(stage, window), count * stage->elem_bytes, stream, error));
    if (stage->sum) WEFT_TRY(queue_update(stage, NULL, error));
    WEFT_TRY(ops->record(window->emptied, stream, error));
    window->state = EMPTYING;
    stage->emptying_ns = weft_now_ns(stage->session->env);
    return WEFT_OK;
}

/* ---- starting: caller's thread ---- */

static enum weft_status check_address(struct weft_session *session, const char *name,
                                      const struct weft_memory_ops *ops, const char *which,
                                      const void *address, int *device_out)
{
    struct weft_error error = {0};
    enum weft_memory_kind kind;
    int device;
    enum weft_status status = ops->find(address, &kind, &device, &error);
    if (status < 0) return client_error(session, status, "%s: %.380s", name, error.text);
    if (!weft_memory_is_device(kind))
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: `%s` at %p is declared as %s memory and is host memory", name, which,
                            address, ops->name);
    if (*device_out >= 0 && *device_out != device)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s: `in` lies on device %d and `out` on device %d; they must share one", name,
                            *device_out, device);
    *device_out = device;
    return WEFT_OK;
}

static enum weft_status find_device(struct weft_session *session, const char *name,
                                    enum weft_memory_kind memory, const void *in, const void *out,
                                    struct client_extents extents, const struct weft_memory_ops **ops_out,
                                    int *device_out)
{
    struct weft_error error = {0};
    enum weft_status status = weft_memory_ops(memory, ops_out, &error);
    if (status < 0) return client_error(session, status, "%s: %.400s", name, error.text);
    *device_out = -1;
    if (extents.in > 0) WEFT_TRY(check_address(session, name, *ops_out, "in", in, device_out));
    if (extents.out > 0) WEFT_TRY(check_address(session, name, *ops_out, "out", out, device_out));
    return WEFT_OK;
}

/* Depends on call and job alone, so all ranks choose the same pieces. */
static void choose_pieces(const struct weft_session *session, struct client_stage *stage,
                          const struct client_request *request)
{
    uint64_t elems = session->calls->staging.piece_bytes / stage->elem_bytes;
    stage->pieces = 1;
    stage->piece_elems = stage->extents.in > stage->extents.out ? stage->extents.in : stage->extents.out;
    if (!session->calls->staging.cuts_long_calls || request->tensor || !coll_can_be_cut(request->kind) ||
        request->count <= elems)
        return;
    stage->piece_elems = elems;
    stage->pieces = (request->count + elems - 1) / elems;
}

/* Makes the caller's stream wait for the end of the call. If the driver cannot do it, the caller blocks. */
static enum weft_status hold_stream(struct weft_session *session, struct client_stage *stage,
                                    struct weft_error *error)
{
    struct client_device *device = stage->device;
    const struct weft_memory_ops *ops = device->ops;
    struct weft_error refused = {0};
    enum weft_status status = device->words_refused ? WEFT_ERR_UNSUPPORTED : WEFT_OK;
    if (status == WEFT_OK && !stage->hold.word) status = ops->word_create(&stage->hold.word, &refused);
    if (status == WEFT_OK)
        status = ops->wait_word(stage->stream, stage->hold.word, stage->hold.value + 1, &refused);
    if (status == WEFT_ERR_UNSUPPORTED) {
        if (!device->words_refused)
            weft_log(session->env, WEFT_LOG_WARN, "client", "stream-ordered calls block their caller: %s",
                     refused.text);
        device->words_refused = true;
        stage->request->must_block = true;
        return WEFT_OK;
    }
    if (status < 0) return (enum weft_status)weft_error_set(error, status, "%s", refused.text);
    stage->hold.value++;
    stage->hold.is_held = true;
    device->has_stream_order = true;
    return WEFT_OK;
}

static enum weft_status copy_in_first(struct client_stage *stage, struct weft_error *error)
{
    for (uint64_t piece = 0; piece < stage->pieces && piece < WINDOWS; piece++)
        WEFT_TRY(window_copy_in(stage, piece, error));
    return WEFT_OK;
}

static void gate(struct client_stage *stage)
{
    stage->is_gated = true;
    for (uint32_t w = 0; w < WINDOWS; w++) {
        stage->windows[w].piece = w;
        stage->windows[w].state = FILLING;
    }
}

/* Orders the copies after the work on the caller's stream. Copies up wait for that event when they are
 * queued, so that results of other calls do not wait for this stream. The device is current. */
static enum weft_status begin_stage(struct weft_session *session, struct client_stage *stage,
                                    struct weft_error *error)
{
    if (stage->coded) {
        stage->windows[0].state = FILLING;
        stage->windows[0].filling_ns = weft_now_ns(session->env);
        WEFT_TRY(stage->device->ops->record(stage->begun, stage->stream, error));
        return stage->request->on_stream ? hold_stream(session, stage, error) : WEFT_OK;
    }
    if (stage->device) {
        const struct weft_memory_ops *ops = stage->device->ops;
        for (uint32_t w = 0; w < stage->pieces && w < WINDOWS; w++)
            WEFT_TRY(window_reserve(session, stage, &stage->windows[w], error));
        WEFT_TRY(ops->record(stage->begun, stage->stream, error));
        if (stage->request->on_stream) WEFT_TRY(hold_stream(session, stage, error));
        if (stage->device->has_stream_order) {
            gate(stage);
            return WEFT_OK;
        }
        WEFT_TRY(ops->wait(stage->device->down, stage->begun, error));
    }
    return copy_in_first(stage, error);
}

static enum weft_status start_on(struct client_request *request, const struct weft_memory_ops *ops,
                                 int number, struct client_extents extents, bool keeps_out, bool may_code,
                                 struct weft_error *error)
{
    struct weft_session *session = request->session;
    struct client_device *device = NULL;
    struct client_stage *stage = NULL;
    bool coded = false;
    float *sum = NULL;
    if (ops) WEFT_TRY(device_find_or_create(session, ops, number, &device, error));
    if (may_code) {
        const struct weft_codec_device where = {.memory = ops,
                                                .number = number,
                                                .ranks = session->ranks,
                                                .stream = device->coding,
                                                .leave = codec_leave,
                                                .context = device,
                                                .batcher = device->batcher,
                                                .hangs = &device->is_stuck};
        WEFT_TRY(session->calls->tensor_ops->place_update(request->tensor, &where, &sum, error));
        WEFT_TRY(session->calls->tensor_ops->place_codec(request->tensor, &where, &coded, error));
    }
    WEFT_TRY(stage_alloc(session, device, &stage, error));
    stage->coded = coded;
    stage->request = request;
    stage->stream = request->stream;
    stage->extents = extents;
    stage->elem_bytes = weft_dtype_bytes((enum weft_dtype)request->dtype);
    stage->has_separate_areas = request->tensor || !coll_can_be_cut(request->kind);
    stage->keeps_out = keeps_out && !sum;
    stage->sum = sum;
    stage->resume = NULL;
    choose_pieces(session, stage, request);
    enum weft_status status = begin_stage(session, stage, error);
    if (status < 0) {
        stage_release(session, stage); /* a device that refuses has started no copy of it, or is lost */
        return status;
    }
    request->stage = stage;
    return WEFT_OK;
}

enum weft_status client_stage_start(struct client_request *request, struct client_extents extents)
{
    struct weft_session *session = request->session;
    const char *name = weft_coll_kind_name((enum weft_coll_kind)request->kind);
    bool on_device = weft_memory_is_device(request->memory) && (extents.in > 0 || extents.out > 0);
    const struct weft_memory_ops *ops = NULL;
    int number = -1, before = -1;
    struct weft_error error = {0};
    request->stage = NULL;
    if (!on_device) {
        bool is_long = session->calls->staging.cuts_long_calls && coll_can_be_cut(request->kind) &&
                       request->count > session->calls->staging.piece_bytes /
                                            weft_dtype_bytes((enum weft_dtype)request->dtype);
        if (!is_long) return WEFT_OK;
    } else {
        WEFT_TRY(find_device(session, name, (enum weft_memory_kind)request->memory, request->in, request->out,
                             extents, &ops, &number));
    }
    enum weft_status status = ops ? ops->enter(number, &before, &error) : WEFT_OK;
    if (status == WEFT_OK) status = start_on(request, ops, number, extents, false, false, &error);
    if (ops && before >= 0) ops->leave(before);
    return status < 0 ? client_error(session, status, "%s: %.400s", name, error.text) : WEFT_OK;
}

enum weft_status client_stage_start_tensor(struct client_request *request, enum weft_memory_kind memory,
                                           void *stream, struct client_extents extents, bool keeps_out,
                                           bool may_code, const void **host_in_out, void **host_out_out)
{
    struct weft_session *session = request->session;
    char name[300];
    const struct weft_memory_ops *ops;
    int number, before;
    struct weft_error error = {0};
    snprintf(name, sizeof name, "tensor '%s'", session->calls->tensor_ops->name(request->tensor));
    WEFT_TRY(find_device(session, name, memory, request->in, request->out, extents, &ops, &number));
    request->memory = (uint8_t)memory;
    request->stream = stream;
    enum weft_status status = ops->enter(number, &before, &error);
    if (status == WEFT_OK) {
        status = start_on(request, ops, number, extents, keeps_out, may_code, &error);
        ops->leave(before);
    }
    if (status < 0) return client_error(session, status, "%s: %.150s", name, error.text);
    if (request->stage->coded) return WEFT_OK;
    *host_in_out = request->stage->windows[0].memory;
    *host_out_out = output_area(request->stage, &request->stage->windows[0]);
    return WEFT_OK;
}

/* ---- engine thread ---- */

/* Runs act() with the caller's device current: the stream may be the device's default stream. */
static enum weft_status on_device(struct client_stage *stage,
                                  enum weft_status (*act)(struct client_stage *, struct window *,
                                                          struct weft_error *),
                                  struct window *window, struct weft_error *error)
{
    int before;
    if (!stage->device) return act(stage, window, error);
    WEFT_TRY(enter_device(stage->device, &before, error));
    enum weft_status status = act(stage, window, error);
    leave_device(stage->session, stage->device, before);
    return status;
}

static void poll_soon(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    if (weft_timer_is_running(&staging->timer)) return;
    staging->idle_since_ns = weft_now_ns(session->env);
    weft_timer_start(session->loop, &staging->timer, staging->idle_since_ns + weft_memory_look_ns(0));
}

/* A span of the device in the flight recorder, and so in the Perfetto trace. Its end is the time at which the
 * engine saw the event, up to 1 ms after the device (weft_memory_look_ns). */
static void add_span(struct weft_session *session, const char *name, uint64_t from_ns, uint64_t bytes)
{
    struct weft_event_ring *events = session->flight.events;
    const uint64_t id = ++session->calls->staging.span_count;
    weft_event_ring_add_at(events, from_ns, name, WEFT_EVENT_BEGIN, id, UINT32_MAX, bytes, WEFT_OK);
    weft_event_ring_add_at(events, weft_now_ns(session->env), name, WEFT_EVENT_END, id, UINT32_MAX, bytes,
                           WEFT_OK);
}

/* WEFT_OK: the device uses no window of the stage any more. The device is current. */
static enum weft_status copies_have_ended(struct client_stage *stage, struct window *unused,
                                          struct weft_error *error)
{
    if (!stage->device) return WEFT_OK;
    for (uint32_t w = 0; w < WINDOWS; w++) {
        enum weft_status status = stage->device->ops->passed(stage->windows[w].filled, error);
        if (status == WEFT_OK) status = stage->device->ops->passed(stage->windows[w].emptied, error);
        if (status != WEFT_OK) return status;
    }
    return WEFT_OK;
}

/* Releases stages whose copies have ended. If a copy fails after its request was done, the device is lost
 * and the session fails. */
static bool release_copied_out(struct weft_session *session)
{
    bool any = false;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->calls->staging.copying_out) {
        struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        struct weft_error error = {0};
        enum weft_status status = on_device(stage, copies_have_ended, NULL, &error);
        if (status == WEFT_IN_PROGRESS) continue;
        any = true;
        weft_list_remove(&stage->link);
        if (status == WEFT_OK && stage->emptying_ns)
            add_span(session, "device copy out", stage->emptying_ns, stage->extents.out * stage->elem_bytes);
        stage_release(session, stage); /* a failed device runs no copy */
        if (status < 0)
            client_fail(session, status, true, "rank %u: a result could not be copied to the device: %.300s",
                        session->rank, error.text);
    }
    return any;
}

static void try_to_resume(struct client_stage *stage)
{
    struct weft_error error = {0};
    struct client_request *request = stage->request;
    enum weft_status status = client_stage_ready(request, &error);
    if (status == WEFT_ERR_AGAIN) return;
    void (*resume)(struct client_request *) = stage->resume;
    stage->resume = NULL;
    if (status < 0) request->session->calls->tensor_ops->fail(request->tensor, status, error.text);
    else resume(request);
}

void client_stage_when_ready(struct client_request *request, void (*resume)(struct client_request *request))
{
    client_stage_opened(request);
    request->stage->resume = resume;
    try_to_resume(request->stage);
}

static void poll_stages(struct weft_timer *timer)
{
    struct client_staging *staging = weft_container_of(timer, struct client_staging, timer);
    struct weft_session *session = weft_container_of(staging, struct client_calls, staging)->session;
    const uint64_t idle_since_ns = staging->idle_since_ns;
    uint64_t now_ns = weft_now_ns(session->env), posted_before = 0, posted = 0;
    struct weft_list *node, *spare;
    bool waiting = false;
    weft_list_foreach (node, spare, &staging->open)
        posted_before += weft_container_of(node, struct client_stage, link)->posted;
    if (!session->engine->failed) client_engine_pump_all(session);
    weft_list_foreach(node, spare, &staging->open) {
        struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        if (stage->resume && !session->engine->failed) try_to_resume(stage);
    }
    weft_list_foreach(node, spare, &staging->open) {
        const struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        posted += stage->posted;
        waiting = waiting || stage->posted < stage->pieces;
    }
    const bool progressed = release_copied_out(session) || posted != posted_before;
    /* a timer restart by a waiting stage does not count as progress */
    staging->idle_since_ns = progressed ? now_ns : idle_since_ns;
    if (!waiting && weft_list_empty(&staging->copying_out)) return;
    weft_timer_start(session->loop, timer,
                     now_ns + weft_memory_look_ns(weft_elapsed_ns(staging->idle_since_ns, now_ns)));
}

void client_stage_opened(struct client_request *request)
{
    struct client_stage *stage = request->stage;
    weft_list_init(&stage->link);
    weft_list_append(&request->session->calls->staging.open, &stage->link);
}

/* Has the input of the next piece arrived? */
static enum weft_status input_has_arrived(struct client_stage *stage, struct window *window,
                                          struct weft_error *error)
{
    return stage->device->ops->passed(stage->coded ? stage->begun : window->filled, error);
}

/* Queues the first copies of a gated stage, if its stream has reached the call. */
static enum weft_status open_gate(struct client_stage *stage, struct window *unused, struct weft_error *error)
{
    const enum weft_status status = stage->device->ops->passed(stage->begun, error);
    if (status != WEFT_OK) return status;
    stage->is_gated = false;
    return copy_in_first(stage, error);
}

static enum weft_status is_full(struct weft_session *session, struct client_stage *stage,
                                struct window *window, struct weft_error *error)
{
    if (stage->is_gated) {
        const enum weft_status status = on_device(stage, open_gate, NULL, error);
        if (status < 0) return status;
    }
    if (stage->is_gated) {
        poll_soon(session);
        return WEFT_ERR_AGAIN;
    }
    if (window->state == FILLING) {
        enum weft_status status = on_device(stage, input_has_arrived, window, error);
        if (status < 0) return status;
        if (status == WEFT_OK) {
            const uint64_t count =
                stage->coded ? stage->extents.in : piece_count(stage, stage->extents.in, window->piece);
            window->state = FULL;
            add_span(session, stage->coded ? "device input" : "device copy in", window->filling_ns,
                     count * stage->elem_bytes);
        }
    }
    if (window->state == FULL) return WEFT_OK;
    if (window->state == FILLING) poll_soon(session);
    return WEFT_ERR_AGAIN;
}

enum weft_status client_stage_ready(struct client_request *request, struct weft_error *error)
{
    struct client_stage *stage = request->stage;
    WEFT_TRY(is_full(request->session, stage, &stage->windows[0], error));
    stage->posted = stage->done = 1; /* the operation that carries several calls posts it */
    return WEFT_OK;
}

float *client_stage_sum(const struct client_request *request)
{
    const struct client_stage *stage = request->stage;
    if (!stage->sum || stage->coded) return stage->sum;
    return (float *)(void *)output_area(stage, &stage->windows[0]);
}

void *client_stage_memory(const struct client_request *request)
{
    return request->stage->windows[0].memory;
}

/* Orders all later work of the caller's stream after the copies of this call. */
static enum weft_status order_after_copies(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error)
{
    if (stage->coded) /* the codec's work, also of a failed call, uses the caller's buffers */
        stage->session->calls->tensor_ops->settle_codec(stage->request->tensor);
    if (stage->coded)
        WEFT_TRY(stage->device->ops->record(stage->windows[0].emptied, stage->device->coding, error));
    void *follower = stage->hold.is_held ? stage->device->up : stage->stream;
    for (uint32_t w = 0; w < WINDOWS; w++) {
        WEFT_TRY(stage->device->ops->wait(follower, stage->windows[w].filled, error));
        WEFT_TRY(stage->device->ops->wait(follower, stage->windows[w].emptied, error));
    }
    return WEFT_OK;
}

/* Lets the caller's stream continue behind the copies of this call. The stage is used again after `emptied`,
 * so no store of an earlier value is pending then. */
static enum weft_status release_stream(struct client_stage *stage, struct window *unused,
                                       struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->device->ops;
    WEFT_TRY(order_after_copies(stage, NULL, error));
    WEFT_TRY(ops->write_word(stage->device->up, stage->hold.word, stage->hold.value, error));
    return ops->record(stage->windows[0].emptied, stage->device->up, error);
}

/* The call has ended, or does not start. */
static void end_order(struct client_stage *stage)
{
    if (!stage->hold.is_held) {
        /* if the device refuses, the caller's stream cannot run either */
        on_device(stage, order_after_copies, NULL, NULL);
        return;
    }
    struct weft_error error = {0};
    const enum weft_status status = on_device(stage, release_stream, NULL, &error);
    if (status < 0) {
        atomic_store(stage->hold.word, stage->hold.value);
        client_fail(stage->session, status, true,
                    "rank %u: the stream of a call was released without its result: %.300s",
                    stage->session->rank, error.text);
    }
    stage->hold.is_held = false;
}

enum weft_status client_stage_copy_out(struct client_request *request, struct weft_error *error)
{
    /* the codec wrote the result to `out`, or to the sum */
    if (request->stage->coded && !request->stage->sum) return WEFT_OK;
    if (request->stage->coded) return on_device(request->stage, queue_update, NULL, error);
    return on_device(request->stage, window_copy_out, &request->stage->windows[0], error);
}

void client_stage_done(struct client_request *request)
{
    struct client_stage *stage = request->stage;
    stage->resume = NULL;
    struct weft_session *session = request->session;
    request->stage = NULL;
    weft_list_remove(&stage->link);
    if (!stage->device) {
        stage_release(session, stage);
        return;
    }
    end_order(stage);
    weft_list_append(&session->calls->staging.copying_out, &stage->link);
    poll_soon(session);
}

/* All posted pieces are done, and no further piece will be posted. */
static void complete_request(struct client_stage *stage)
{
    struct client_request *request = stage->request;
    struct weft_session *session = request->session;
    if (session->engine->failed)
        client_request_complete(request, session->engine->failed, session->engine->failed_text);
    else if (stage->status < 0) client_call_failed(&request->op, stage->status, stage->text);
    else client_request_complete(request, WEFT_OK, NULL);
}

static void stop_stage(struct client_stage *stage, enum weft_status status, const char *text)
{
    if (stage->status < 0) return;
    stage->status = status;
    snprintf(stage->text, sizeof stage->text, "%.299s", text ? text : weft_reason_text(status));
    if (stage->posted < stage->pieces && !stage->ended) {
        stage->ended = true;
        weft_list_remove(&stage->request->op.link); /* no further piece: the call leaves the queue */
    }
}

/* Copies the result out of the window, and the piece `WINDOWS` later into it. */
static enum weft_status refill_window(struct client_stage *stage, struct window *window,
                                      struct weft_error *error)
{
    uint64_t next = window->piece + WINDOWS;
    WEFT_TRY(window_copy_out(stage, window, error));
    return next < stage->pieces ? window_copy_in(stage, next, error) : WEFT_OK;
}

static void piece_done(void *context, enum weft_status status, const char *text)
{
    struct window *window = context;
    struct client_stage *stage = window->stage;
    struct client_request *request = stage->request;
    struct weft_session *session = request->session;
    struct weft_error error = {0};
    window->coll = NULL;
    request->op.coll = NULL;
    for (uint32_t w = 0; w < WINDOWS; w++) /* for the sentence about what the call waits for */
        if (stage->windows[w].coll) request->op.coll = stage->windows[w].coll;
    stage->done++;
    window->state = IDLE;
    if (status == WEFT_OK && stage->status == WEFT_OK && !stage->ended) {
        window->state = POSTED;
        status = on_device(stage, refill_window, window, &error);
        text = error.text;
    }
    if (status < 0) stop_stage(stage, status, text);
    bool all_posted = stage->posted == stage->pieces || stage->ended;
    struct weft_list *queue = client_engine_group_queue(&request->op);
    /* the request may be freed now */
    if (all_posted && stage->done == stage->posted) complete_request(stage);
    if (!session->engine->failed) client_engine_pump(queue);
}

static void *offset_or_null(const void *memory, size_t bytes)
{
    return memory ? (uint8_t *)memory + bytes : NULL;
}

enum weft_status client_stage_post(struct client_request *request, struct weft_error *error)
{
    struct client_stage *stage = request->stage;
    while (stage->posted < stage->pieces) {
        struct window *window = &stage->windows[stage->posted % WINDOWS];
        /* the window still has an earlier piece, whose end pumps the queue */
        if (window->piece != stage->posted) return WEFT_ERR_AGAIN;
        WEFT_TRY(is_full(request->session, stage, window, error));
        struct weft_coll_args args;
        client_call_args(request, &args);
        uint64_t at = stage->posted * stage->piece_elems * stage->elem_bytes;
        if (stage->pieces > 1) args.count = piece_count(stage, request->count, stage->posted);
        args.in = stage->device ? window->memory : offset_or_null(request->in, at);
        args.out = stage->device ? output_area(stage, window) : offset_or_null(request->out, at);
        WEFT_TRY(
            weft_coll_post(client_request_group(request), &args, piece_done, window, &window->coll, error));
        request->op.coll = window->coll;
        atomic_store_explicit(&request->session->calls->last_plan, (int)weft_coll_plan(window->coll),
                              memory_order_relaxed);
        request->is_next = false;
        window->state = POSTED;
        stage->posted++;
    }
    return WEFT_IN_PROGRESS;
}

bool client_stage_ended(struct client_request *request, enum weft_status status, const char *text)
{
    struct client_stage *stage = request->stage;
    stage->ended = true; /* the call is out of the queue */
    if (status < 0) stop_stage(stage, status, text);
    return stage->done == stage->posted;
}

bool client_stage_in_pieces(const struct client_request *request)
{
    return request->stage && request->stage->pieces > 1;
}
bool client_stage_is_filling(const struct client_request *request)
{
    return request->stage->device && request->stage->posted == 0;
}

void client_stage_drop(struct client_request *request)
{
    struct client_stage *stage = request->stage;
    if (!stage) return;
    request->stage = NULL;
    if (stage->device) end_order(stage);
    /* the engine may use the stage in this moment: it is freed with the session */
    pthread_mutex_lock(&request->session->calls->staging.lock);
    weft_list_append(&request->session->calls->staging.idle, &stage->link);
    pthread_mutex_unlock(&request->session->calls->staging.lock);
}

/* ---- life ---- */

void client_staging_configure(struct weft_session *session, const Weft__Control__Roster *roster)
{
    struct client_staging *staging = &session->calls->staging;
    staging->piece_bytes = weft_config_u64(session->settings.config, "client.piece_bytes");
    staging->cuts_long_calls = false;
    for (size_t i = 0; i < roster->n_members; i++)
        if (roster->members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER && roster->members[i]->device)
            staging->cuts_long_calls = true;
}

void client_staging_init(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    pthread_mutex_init(&staging->lock, NULL);
    weft_list_init(&staging->idle);
    weft_list_init(&staging->devices);
    weft_list_init(&staging->open);
    weft_list_init(&staging->copying_out);
    weft_timer_init(&staging->timer, poll_stages);
}

static void free_all(struct weft_session *session, struct weft_list *stages, uint64_t until_ns)
{
    bool forked = session->pid != weft_process_id();
    while (!weft_list_empty(stages)) {
        struct client_stage *stage = weft_list_first(stages, struct client_stage, link);
        weft_list_remove(&stage->link);
        enum weft_status status = WEFT_OK;
        while (!forked && (status = on_device(stage, copies_have_ended, NULL, NULL)) == WEFT_IN_PROGRESS &&
               weft_now_ns(session->env) < until_ns)
            sched_yield();
        /* a device may still write there; a forked child has no device */
        if (forked || status == WEFT_IN_PROGRESS) continue;
        stage_free(session, stage);
    }
}

void client_staging_free(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    uint64_t until_ns = client_deadline(session, LEAVE_NS);
    free_all(session, &staging->open, until_ns);
    free_all(session, &staging->copying_out, until_ns);
    free_all(session, &staging->idle, until_ns);
    while (!weft_list_empty(&staging->devices)) {
        struct client_device *device = weft_list_first(&staging->devices, struct client_device, link);
        weft_list_remove(&device->link);
        if (session->pid == weft_process_id()) device_free(session, device);
    }
    pthread_mutex_destroy(&staging->lock);
}
