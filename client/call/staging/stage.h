/* stage.h - what the files of client/call/staging/ share: devices, stages and their windows. Private to the
 * folder; callers include client/call/device_staging.h.
 *
 *     start.c ──► window.c: first copies ──► poll.c: input has arrived ──► pieces.c: operations, copies up
 *                                                                                  │
 *     stage.c: used again ◄── poll.c: copies have ended ◄── stream_order.c: the end ◄┘ */
#ifndef WEFT_CLIENT_CALL_STAGING_STAGE_H
#define WEFT_CLIENT_CALL_STAGING_STAGE_H

#include "client/call/device_staging.h"
#include "compress/compress.h"

struct weft_coll;

#define STAGE_WINDOWS 3u

struct client_device {
    struct weft_list link;
    const struct weft_memory_ops *ops;
    struct weft_session *session;
    int device;
    void *down, *up, *coding; /* streams: copies to the host, copies to the device, codecs on the device */
    struct weft_codec_batcher *batcher; /* of `coding`: small tensors share a launch */
    bool is_stuck;                      /* a codec that was freed waited for the device in vain */
    bool has_stream_order; /* a stream-ordered call was made: new stages are gated; caller's thread */
    bool words_refused;    /* the driver has no such waits; caller's thread */
};

/* Of a stream-ordered call. */
struct stream_hold {
    _Atomic uint32_t *word; /* owned; NULL: not needed yet */
    uint32_t value;         /* that ends the wait of the caller's stream; one more for each call */
    bool is_held;           /* the caller's stream waits, or will */
};

enum window_state { WINDOW_IDLE = 0, WINDOW_FILLING, WINDOW_FULL, WINDOW_POSTED, WINDOW_EMPTYING };

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
    struct window windows[STAGE_WINDOWS];
    size_t elem_bytes;
    uint64_t piece_elems, pieces;
    struct client_extents extents; /* of the whole call */
    bool has_separate_areas;       /* in and out have separate areas in the window */
    bool coded;                    /* a codec on the device reads in and writes out: no windows */
    bool keeps_out;                /* the content of `out` is copied down too */
    float *sum;                    /* device memory: the weights `out` are updated from it; NULL: not there */
    void (*resume)(struct client_request *request); /* of a tensor that waits for its input; else NULL */
    uint64_t emptying_ns;  /* since then the last piece of the result is copied out; 0: no copy */
    uint64_t posted, done; /* pieces; done includes failed pieces */
    bool ended;            /* the request's operation has ended */
    enum weft_status status;
    char text[300];
};

/* Around every call with a stream or an event, also queries: without a current device a runtime creates a
 * context on device 0. */
static inline enum weft_status client_device_enter(const struct client_device *device, int *before_out,
                                                   struct weft_error *error)
{
    return device->ops->enter(device->device, before_out, error);
}

static inline void client_device_restore(struct weft_session *session, const struct client_device *device,
                                         int before)
{
    client_device_leave(session, device->ops, before);
}

/* ---- device.c ---- */
void client_device_free(struct weft_session *session, struct client_device *device);
enum weft_status client_device_find(struct weft_session *session, const struct weft_memory_ops *ops,
                                    int number, struct client_device **out, struct weft_error *error);
enum weft_status client_stage_on_device(struct client_stage *stage,
                                        enum weft_status (*act)(struct client_stage *, struct window *,
                                                                struct weft_error *),
                                        struct window *window, struct weft_error *error);
/* ---- window.c ---- */
void client_window_free(struct weft_session *session, struct window *window,
                        const struct weft_memory_ops *ops);
enum weft_status client_window_reserve(struct weft_session *session, struct client_stage *stage,
                                       struct window *window, struct weft_error *error);
uint64_t client_window_count(const struct client_stage *stage, uint64_t whole, uint64_t piece);
uint8_t *client_window_output(const struct client_stage *stage, const struct window *window);
enum weft_status client_window_copy_in(struct client_stage *stage, uint64_t piece, struct weft_error *error);
enum weft_status client_window_copy_in_first(struct client_stage *stage, struct weft_error *error);
enum weft_status client_stage_queue_update(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error);
enum weft_status client_window_copy_out(struct client_stage *stage, struct window *window,
                                        struct weft_error *error);
enum weft_status client_stage_copies_ended(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error);
/* ---- stage.c ---- */
enum weft_status client_stage_alloc(struct weft_session *session, struct client_device *device,
                                    struct client_stage **out, struct weft_error *error);
void client_stage_release(struct weft_session *session, struct client_stage *stage);
/* ---- stream_order.c ---- */
enum weft_status client_stage_hold_stream(struct weft_session *session, struct client_stage *stage,
                                          struct weft_error *error);
void client_stage_gate(struct client_stage *stage);
void client_stage_end_order(struct client_stage *stage);
/* ---- poll.c ---- */
void client_stage_poll_soon(struct weft_session *session);
void client_stage_poll(struct weft_timer *timer);
enum weft_status client_window_is_full(struct weft_session *session, struct client_stage *stage,
                                       struct window *window, struct weft_error *error);

#endif
