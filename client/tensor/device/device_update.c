/* device_update.c - see device_update.h. */
#include "client/tensor/device/device_update.h"

#include <string.h>

#include "client/call/device_staging.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/device/device_wait.h"
#include "client/tensor/tensor.h"
#include "kernels/device_optimizer.h"

#define MOVE_NS WEFT_SECONDS(30)
#define CLOSE_NS WEFT_SECONDS(1)
enum { PAGE = 4096, MOVE_BYTES = 1 << 20 };

struct client_device_update {
    struct weft_codec_device at;              /* memory, kernels, number; `stream`: of moves */
    float *sum;                               /* owned device memory (elems,) */
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* owned device memory; NULL: not used by the rule */
    void *workspace;                          /* owned device memory; NULL: none */
    void *event;                              /* owned: the last work queued */
};

bool client_update_is_on_device(const struct weft_tensor *tensor)
{
    return tensor->buffers.device_update != NULL;
}

/* ---- with the device current ---- */

static void update_free(struct weft_tensor *tensor, struct client_device_update *update)
{
    const struct weft_memory_ops *memory = update->at.memory;
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) memory->free(update->states[s]);
    memory->free(update->workspace);
    memory->free(update->sum);
    memory->event_free(update->event);
    weft_free_bytes(tensor->session->env, update);
}

static enum weft_status alloc_array(const struct client_device_update *update, size_t bytes, void *place,
                                    struct weft_error *error)
{
    void *memory = NULL;
    WEFT_TRY(update->at.memory->alloc(bytes, &memory, error));
    memcpy(place, &memory, sizeof memory);
    return WEFT_OK;
}

static enum weft_status alloc_arrays(struct weft_tensor *tensor, struct client_device_update *update,
                                     struct weft_error *error)
{
    const size_t workspace =
        weft_optimizer_device_workspace(update->at.kernels, &tensor->options.optimizer, tensor->elems);
    WEFT_TRY(update->at.memory->event_create(&update->event, error));
    WEFT_TRY(alloc_array(update, tensor->bytes, &update->sum, error));
    for (uint32_t s = 0; s < weft_optimizer_states(&tensor->options.optimizer); s++)
        WEFT_TRY(alloc_array(update, tensor->bytes, &update->states[s], error));
    return workspace > 0 ? alloc_array(update, workspace, &update->workspace, error) : WEFT_OK;
}

/* One array between host and device, through pinned memory. */
static enum weft_status move_array(struct weft_tensor *tensor, const struct client_device_update *update,
                                   uint8_t *pinned, float *host, float *there, bool to_host,
                                   struct weft_error *error)
{
    const struct weft_memory_ops *memory = update->at.memory;
    for (size_t at = 0; at < tensor->bytes; at += MOVE_BYTES) {
        const size_t bytes = tensor->bytes - at < MOVE_BYTES ? tensor->bytes - at : MOVE_BYTES;
        uint8_t *const here = (uint8_t *)host + at, *const far = (uint8_t *)there + at;
        if (!to_host) memcpy(pinned, here, bytes);
        WEFT_TRY(
            memory->copy(to_host ? pinned : far, to_host ? far : pinned, bytes, update->at.stream, error));
        WEFT_TRY(memory->record(update->event, update->at.stream, error));
        WEFT_TRY(client_device_wait(&update->at, update->event, tensor->session->env, MOVE_NS, error));
        if (to_host) memcpy(here, pinned, bytes);
    }
    return WEFT_OK;
}

static enum weft_status move_states(struct weft_tensor *tensor, const struct client_device_update *update,
                                    bool to_host, struct weft_error *error)
{
    struct weft_env *env = tensor->session->env;
    const struct weft_memory_ops *memory = update->at.memory;
    if (weft_optimizer_states(&tensor->options.optimizer) == 0) return WEFT_OK;
    uint8_t *block = weft_alloc_bytes(env, MOVE_BYTES + PAGE);
    if (!block)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to move its arrays");
    uint8_t *const pinned = block + (PAGE - (uintptr_t)block % PAGE) % PAGE;
    const bool is_pinned = memory->pin(pinned, MOVE_BYTES, NULL) == WEFT_OK; /* else copies are slower */
    enum weft_status status = WEFT_OK;
    for (uint32_t s = 0; s < weft_optimizer_states(&tensor->options.optimizer) && status == WEFT_OK; s++)
        status =
            move_array(tensor, update, pinned, tensor->arrays.states[s], update->states[s], to_host, error);
    if (status == WEFT_ERR_DEADLINE) return status; /* the device may still use the block */
    if (is_pinned) memory->unpin(pinned);
    weft_free_bytes(env, block);
    return status;
}

/* ---- placement: caller's thread ---- */

static const char *obstacle(const struct weft_tensor *tensor)
{
    if (tensor->mode != WEFT_MODE_ALL_REDUCE) return "shards keep the durable weights";
    if (tensor->dtype != WEFT_F32) return "the weights are not f32";
    return NULL;
}

static void log_host_update(struct weft_tensor *tensor, const char *why)
{
    if (!tensor->buffers.host_update_logged)
        weft_log(tensor->session->env, WEFT_LOG_WARN, "client",
                 "tensor '%.100s' is on a device and its optimiser runs on the host, so its weights cross "
                 "the bus: "
                 "%.300s",
                 tensor->name, why);
    tensor->buffers.host_update_logged = true;
}

/* Makes *update_out, with the tensor's arrays. WEFT_ERR_UNSUPPORTED, WEFT_ERR_NO_MEMORY: not on this
 * device. */
static enum weft_status update_create(struct weft_tensor *tensor, const struct weft_codec_device *where,
                                      struct client_device_update **update_out, struct weft_error *why)
{
    struct client_device_update *update;
    if (!where->memory->has_kernels)
        return (enum weft_status)weft_error_set(why, WEFT_ERR_UNSUPPORTED,
                                                "weft has no kernels for %s memory", where->memory->name);
    update = weft_alloc_zero(tensor->session->env, sizeof *update);
    if (!update) return (enum weft_status)weft_error_set(why, WEFT_ERR_NO_MEMORY, "no memory");
    update->at = *where;
    enum weft_status status = weft_device_kernels(&update->at.kernels, why);
    if (status == WEFT_OK) status = alloc_arrays(tensor, update, why);
    if (status == WEFT_OK) status = move_states(tensor, update, false, why);
    if (status < 0) {
        if (status != WEFT_ERR_DEADLINE) update_free(tensor, update);
        return status;
    }
    *update_out = update;
    return WEFT_OK;
}

enum weft_status client_update_place_on_device(struct weft_tensor *tensor,
                                               const struct weft_codec_device *where, float **sum_out,
                                               struct weft_error *error)
{
    const struct client_device_update *now = tensor->buffers.device_update;
    struct weft_error why = {0};
    *sum_out = NULL;
    if (!client_tensor_has_local_optimizer(tensor)) return WEFT_OK;
    if (now && (now->at.memory != where->memory || now->at.number != where->number))
        WEFT_TRY(client_update_place_on_host(tensor, error));
    if (tensor->buffers.host_update_logged) return WEFT_OK;
    if (obstacle(tensor)) {
        log_host_update(tensor, obstacle(tensor));
        return WEFT_OK;
    }
    if (!tensor->buffers.device_update) {
        const enum weft_status status = update_create(tensor, where, &tensor->buffers.device_update, &why);
        if (status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_NO_MEMORY) {
            log_host_update(tensor, why.text);
            return WEFT_OK;
        }
        if (status < 0)
            return (enum weft_status)weft_error_set(error, status,
                                                    "its optimiser cannot be set up on device %d: %.200s",
                                                    where->number, why.text);
    }
    *sum_out = tensor->buffers.device_update->sum;
    return WEFT_OK;
}

enum weft_status client_update_place_on_host(struct weft_tensor *tensor, struct weft_error *error)
{
    struct client_device_update *update = tensor->buffers.device_update;
    struct weft_error why = {0};
    int before;
    if (!update) return WEFT_OK;
    const struct weft_memory_ops *memory = update->at.memory;
    const int number = update->at.number;
    WEFT_TRY(memory->enter(number, &before, error));
    /* the last update */
    enum weft_status status =
        client_device_wait(&update->at, update->event, tensor->session->env, MOVE_NS, &why);
    if (status == WEFT_OK) status = move_states(tensor, update, true, &why);
    if (status == WEFT_OK) {
        tensor->buffers.device_update = NULL;
        update_free(tensor, update);
    }
    client_device_leave(tensor->session, memory, before);
    if (status == WEFT_OK) return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, status, "the arrays of its optimiser cannot be read from device %d: %.200s", number, why.text);
}

enum weft_status client_update_to_host(struct weft_tensor *tensor)
{
    struct weft_error error = {0};
    const enum weft_status status = client_update_place_on_host(tensor, &error);
    return status < 0 ? client_error(tensor->session, status, "tensor '%s': %.300s", tensor->name, error.text)
                      : WEFT_OK;
}

/* ---- engine thread ---- */

enum weft_status client_update_queue(struct weft_tensor *tensor, float *weights, void *stream,
                                     struct weft_error *error)
{
    const struct client_device_update *update = tensor->buffers.device_update;
    const struct client_tensor_op *op = &tensor->op;
    struct weft_optimizer rule = tensor->options.optimizer;
    if (op->rates.has_decay) rule.weight_decay = op->rates.weight_decay;
    const enum weft_status status = weft_optimizer_step_on_device(
        update->at.kernels, &rule, op->rates.lr, op->step, weights, update->states, update->sum,
        tensor->codec ? 1.0f : op->rates.grad_scale, tensor->elems, update->workspace,
        (weft_device_stream)stream);
    if (status < 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_STATE,
                                                "%s: an update could not be queued: %s",
                                                update->at.memory->name, weft_status_text(status));
    return update->at.memory->record(update->event, stream, error);
}

/* ---- end ---- */

/* A forked child does not touch the device. */
void client_update_free(struct weft_tensor *tensor)
{
    struct client_device_update *update = tensor->buffers.device_update;
    const struct weft_session *session = tensor->session;
    int before;
    if (!update || session->live.pid != weft_process_id()) return;
    tensor->buffers.device_update = NULL;
    if (update->at.memory->enter(update->at.number, &before, NULL) < 0) return;
    const struct weft_memory_ops *memory = update->at.memory;
    if (client_device_wait(&update->at, update->event, tensor->session->env, CLOSE_NS, NULL) !=
        WEFT_ERR_DEADLINE)
        update_free(tensor, update);
    memory->leave(before);
}
