/* codec_placement.c - see codec_placement.h. */
#include "client/tensor/codec_placement.h"

#include "client/session/session.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/tensor.h"
#include "kernels/kernels.h"

/* Replaces the tensor's codec by `codec`, which takes over its state. */
static enum weft_status move_codec(struct weft_tensor *tensor, struct weft_codec *codec,
                                   struct weft_error *error)
{
    struct weft_env *env = tensor->session->env;
    const size_t bytes = weft_codec_state_bytes(tensor->codec);
    void *state = weft_alloc_bytes(env, bytes);
    enum weft_status status = state ? weft_codec_save(tensor->codec, state) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = weft_codec_load(codec, state, bytes);
    if (status == WEFT_OK)
        status = weft_codec_set_stream(codec, tensor->wire.rounding_seed, tensor->session->rank);
    weft_free_bytes(env, state);
    if (status < 0) {
        const char *trouble = weft_codec_device_error(tensor->codec)[0]
                                  ? weft_codec_device_error(tensor->codec)
                                  : weft_codec_device_error(codec);
        weft_error_set(error, status,
                       "the state of its codec cannot be moved between host and device: %.150s",
                       trouble[0] ? trouble : weft_reason_text(status));
        weft_codec_free(codec);
        return status;
    }
    weft_codec_free(tensor->codec);
    tensor->codec = codec;
    return WEFT_OK;
}

enum weft_status client_codec_place_on_host(struct weft_tensor *tensor, struct weft_error *error)
{
    struct weft_codec *codec;
    if (!tensor->codec || !weft_codec_device_of(tensor->codec)) return WEFT_OK;
    const enum weft_status status =
        weft_codec_create(tensor->session->env, &tensor->options.codec_spec, &tensor->options.shape, &codec);
    if (status < 0) return (enum weft_status)weft_error_set(error, status, "no memory for its codec");
    return move_codec(tensor, codec, error);
}

void client_codec_settle(struct weft_tensor *tensor)
{
    /* if the device refuses, its stream cannot run either */
    if (tensor->codec) (void)weft_codec_settle(tensor->codec);
}

/* Logs the reason once for each kind of memory that the buffers are in. */
static void log_host_codec(struct weft_tensor *tensor, const char *why)
{
    if (!tensor->buffers.host_codec_logged)
        weft_log(tensor->session->env, WEFT_LOG_WARN, "client",
                 "tensor '%.100s' is on a device and its codec runs on the host, so whole gradients cross "
                 "the bus: %.300s",
                 tensor->name, why);
    tensor->buffers.host_codec_logged = true;
}

static const char *device_codec_obstacle(const struct weft_tensor *tensor)
{
    if (tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE && !client_update_is_on_device(tensor))
        return "its optimiser runs on the host";
    return NULL;
}

enum weft_status client_codec_place_on_device(struct weft_tensor *tensor,
                                              const struct weft_codec_device *where, bool *coded_out,
                                              struct weft_error *error)
{
    struct weft_codec_device at = *where;
    struct weft_error why = {0};
    struct weft_codec *codec;
    *coded_out = false;
    if (!tensor->codec) return WEFT_OK;
    const struct weft_codec_device *now = weft_codec_device_of(tensor->codec);
    const bool here = now && now->memory == at.memory && now->number == at.number && now->ranks >= at.ranks;
    /* the host adds a carry, once */
    if (tensor->arrays.carry || tensor->buffers.host_codec_logged)
        return client_codec_place_on_host(tensor, error);
    *coded_out = here;
    if (here) return WEFT_OK;
    if (device_codec_obstacle(tensor)) {
        log_host_codec(tensor, device_codec_obstacle(tensor));
        return WEFT_OK;
    }
    enum weft_status status =
        at.memory->has_kernels
            ? weft_device_kernels(&at.kernels, &why)
            : (enum weft_status)weft_error_set(&why, WEFT_ERR_UNSUPPORTED,
                                               "weft has no kernels for %s memory", at.memory->name);
    if (status == WEFT_OK)
        status = weft_codec_create_on(tensor->session->env, &tensor->options.codec_spec,
                                      &tensor->options.shape, &at, &codec, &why);
    if (status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_NO_MEMORY) {
        log_host_codec(tensor, why.text);
        return client_codec_place_on_host(tensor, error);
    }
    if (status < 0)
        return (enum weft_status)weft_error_set(
            error, status, "its codec cannot be set up on device %d: %.200s", at.number, why.text);
    WEFT_TRY(move_codec(tensor, codec, error));
    *coded_out = true;
    return WEFT_OK;
}
