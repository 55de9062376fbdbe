/* coding.c - see coding.h. */
#include "client/coding.h"

#include "client/session.h"
#include "client/tensor.h"
#include "kernels/kernels.h"

/* The tensor goes on with `codec`, which is new, from where the one it has is. */
static enum weft_status move_to(struct weft_tensor *tensor, struct weft_codec *codec, struct weft_error *error)
{
    struct weft_env *env = tensor->session->env;
    const size_t bytes = weft_codec_state_bytes(tensor->codec);
    void *state = weft_alloc_bytes(env, bytes);
    enum weft_status status = state ? weft_codec_save(tensor->codec, state) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = weft_codec_load(codec, state, bytes);
    if (status == WEFT_OK) status = weft_codec_set_stream(codec, tensor->draws, tensor->session->rank);
    weft_free_bytes(env, state);
    if (status < 0) {
        const char *trouble = weft_codec_trouble(tensor->codec)[0] ? weft_codec_trouble(tensor->codec) : weft_codec_trouble(codec);
        weft_error_set(error, status, "what its codec remembers cannot be moved between host and device: %.150s",
                       trouble[0] ? trouble : weft_reason_text(status));
        weft_codec_free(codec);
        return status;
    }
    weft_codec_free(tensor->codec);
    tensor->codec = codec;
    return WEFT_OK;
}

enum weft_status client_coding_home(struct weft_tensor *tensor, struct weft_error *error)
{
    struct weft_codec *codec;
    if (!tensor->codec || !weft_codec_where(tensor->codec)) return WEFT_OK;
    const enum weft_status status = weft_codec_create(tensor->session->env, &tensor->codec_spec, &tensor->shape, &codec);
    if (status < 0) return (enum weft_status)weft_error_set(error, status, "no memory for its codec");
    return move_to(tensor, codec, error);
}

/* Once for each place that a tensor's buffers are said to lie at. */
static void stays(struct weft_tensor *tensor, const char *why)
{
    if (!tensor->stays_home)
        weft_log(tensor->session->env, WEFT_LOG_WARN, "client",
                 "tensor '%.100s' is on a device and its codec works on the host, so that whole gradients cross the bus: %.300s", tensor->name, why);
    tensor->stays_home = true;
}

static const char *no_form(const struct weft_tensor *tensor)
{
    if (tensor->mode != WEFT_MODE_ALL_REDUCE) return "in server mode it does so in this version";
    if (tensor->optimizer.kind != WEFT_OPTIMIZER_NONE) return "its optimiser works there in this version";
    if (tensor->choosing.candidates.count > 0) return "with codec auto it may change with any step";
    return NULL;
}

enum weft_status client_coding_there(struct weft_tensor *tensor, const struct weft_codec_device *where, bool *coded_out, struct weft_error *error)
{
    struct weft_codec_device at = *where;
    struct weft_error why = {0};
    struct weft_codec *codec;
    *coded_out = false;
    if (!tensor->codec) return WEFT_OK;
    const struct weft_codec_device *now = weft_codec_where(tensor->codec);
    const bool here = now && now->number == at.number && now->ranks >= at.ranks;
    if (tensor->carry || tensor->stays_home) return client_coding_home(tensor, error); /* a carry is added on the host, once */
    *coded_out = here;
    if (here) return WEFT_OK;
    if (no_form(tensor)) {
        stays(tensor, no_form(tensor));
        return WEFT_OK;
    }
    enum weft_status status = weft_device_kernels(&at.kernels, &why);
    if (status == WEFT_OK) status = weft_codec_create_on(tensor->session->env, &tensor->codec_spec, &tensor->shape, &at, &codec, &why);
    if (status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_NO_MEMORY) {
        stays(tensor, why.text);
        return client_coding_home(tensor, error);
    }
    if (status < 0) return (enum weft_status)weft_error_set(error, status, "its codec cannot be set up on device %d: %.200s", at.number, why.text);
    WEFT_TRY(move_to(tensor, codec, error));
    *coded_out = true;
    return WEFT_OK;
}
