/* device.c - the devices of a session: streams, and which device is current on a thread. */
#include "client/call/staging/stage.h"

#include <string.h>

#include "client/call/calls.h"
#include "client/session/session.h"

/* The engine's own threads keep the device current. Switching back to device 0 would create a context
 * there, with hundreds of MB of device memory for each rank of the host. */
void client_device_leave(struct weft_session *session, const struct weft_memory_ops *ops, int before)
{
    const struct weft_loop *loop = session->loop; /* NULL: the engine has ended */
    if (!weft_loop_is_compute_thread() && (!loop || !weft_loop_is_engine_thread(loop))) ops->leave(before);
}

static struct client_device *device_lookup(struct client_staging *staging, const struct weft_memory_ops *ops,
                                           int device)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &staging->devices) {
        struct client_device *known = weft_container_of(node, struct client_device, link);
        if (known->ops == ops && known->device == device) return known;
    }
    return NULL;
}

void client_device_free(struct weft_session *session, struct client_device *device)
{
    int before;
    bool entered = client_device_enter(device, &before, NULL) == WEFT_OK;
    weft_codec_batcher_free(device->batcher, !entered || device->is_stuck);
    device->ops->stream_free(device->down);
    device->ops->stream_free(device->up);
    device->ops->stream_free(device->coding);
    if (entered) device->ops->leave(before);
    weft_free_bytes(session->env, device);
}

/* The device is current. */
enum weft_status client_device_find(struct weft_session *session, const struct weft_memory_ops *ops,
                                    int number, struct client_device **out, struct weft_error *error)
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
            client_device_free(session, device);
            device = NULL;
        }
    }
    pthread_mutex_unlock(&staging->lock);
    *out = device;
    return status;
}

/* Runs act() with the caller's device current: the stream may be the device's default stream. */
enum weft_status client_stage_on_device(struct client_stage *stage,
                                        enum weft_status (*act)(struct client_stage *, struct window *,
                                                                struct weft_error *),
                                        struct window *window, struct weft_error *error)
{
    int before;
    if (!stage->device) return act(stage, window, error);
    WEFT_TRY(client_device_enter(stage->device, &before, error));
    enum weft_status status = act(stage, window, error);
    client_device_restore(stage->session, stage->device, before);
    return status;
}
