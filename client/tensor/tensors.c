/* tensors.c - see tensors.h: state of the folder, and what engine and calls call in it. */
#include "client/tensor/tensors.h"

#include <stdio.h>

#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/session/session.h"
#include "client/tensor/codec_placement.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/shard/shard_map.h"
#include "client/tensor/tensor.h"

/* The count of a new rank does not include the last ones if they were freed before it joined. */
uint32_t client_tensors_declared(const struct weft_session *session)
{
    const uint32_t count = session->tensors->count, before = session->control.tensors;
    return count > before ? count : before;
}

struct weft_tensor *client_tensor_find(const struct weft_session *session, uint32_t id)
{
    struct weft_tensor *tensor = session->tensors->by_id[id % CLIENT_TENSOR_BUCKETS];
    while (tensor && tensor->id != id) tensor = tensor->registration.engine_next;
    return tensor;
}

/* ---- for the engine ---- */

static void fail(struct weft_session *session)
{
    for (size_t i = 0; i < CLIENT_TENSOR_BUCKETS; i++)
        for (struct weft_tensor *tensor = session->tensors->by_id[i]; tensor;
             tensor = tensor->registration.engine_next)
            client_tensor_failed(tensor);
}

static void describe_subject(void *session, uint32_t subject, char *out, size_t out_bytes)
{
    if (subject & WEFT_SUBJECT_BATCH) return;
    const struct weft_tensor *tensor = client_tensor_find(session, subject - 1);
    if (tensor) snprintf(out, out_bytes, "tensor '%.90s'", tensor->name);
    else snprintf(out, out_bytes, "a tensor that this rank has not declared");
}

static const char *name(const struct weft_tensor *tensor) { return tensor->name; }

static void range(const struct weft_tensor *tensor, struct weft_nvtx_range *range_out)
{
    static const char *const codecs[] = {
        [WEFT_CODEC_DENSE] = "dense",       [WEFT_CODEC_F16] = "f16",        [WEFT_CODEC_BF16] = "bf16",
        [WEFT_CODEC_POWERSGD] = "powersgd", [WEFT_CODEC_TOPK] = "topk",      [WEFT_CODEC_INT8] = "int8",
        [WEFT_CODEC_INT4] = "int4",         [WEFT_CODEC_SIGN] = "sign",      [WEFT_CODEC_E4M3] = "e4m3",
        [WEFT_CODEC_E5M2] = "e5m2",         [WEFT_CODEC_RANDOMK] = "randomk"};
    *range_out = (struct weft_nvtx_range){.name = tensor->name,
                                          .bytes = tensor->bytes,
                                          .category = (uint32_t)tensor->options.codec_spec.id + 1,
                                          .category_name = codecs[tensor->options.codec_spec.id]};
}

static void begin(struct weft_tensor *tensor) { tensor->execution.has_begun = true; }

/* ---- for calls ---- */

static bool group_has_tensors(const struct weft_session *session)
{
    return !weft_list_empty(&session->tensors->leaders);
}

static void copy_failed(struct weft_tensor *tensor, enum weft_status status, const char *text)
{
    client_tensor_fail(tensor, status, "could not copy its gradient from the device: %.200s", text);
}

/* ---- life ---- */

void client_tensors_init(struct weft_session *session, struct client_tensors *tensors)
{
    static const struct client_engine_tensor_ops engine_ops = {
        .listen = client_server_mode_listen,
        .resend = client_server_mode_resend,
        .fail = fail,
        .describe_subject = describe_subject,
        .describe = client_tensor_describe,
        .name = name,
        .range = range,
        .is_in_group = client_tensor_is_in_group,
        .is_gathered = client_tensor_is_gathered,
        .begin = begin,
        .release = client_tensor_release,
        .result = client_tensor_result,
        .wait_begins = client_tensor_wait_begins,
        .wait_ends = client_tensor_wait_ends,
        .delivered = client_tensor_delivered,
    };
    static const struct client_call_tensor_ops call_ops = {
        .group_has_tensors = group_has_tensors,
        .group_ended = client_tensor_group_ended,
        .name = name,
        .place_codec = client_codec_place_on_device,
        .settle_codec = client_codec_settle,
        .place_update = client_update_place_on_device,
        .queue_update = client_update_queue,
        .fail = copy_failed,
    };
    session->tensors = tensors;
    client_snapshot_init(session);
    tensors->session = session;
    session->engine->ops.tensor = &engine_ops;
    session->calls->tensor_ops = &call_ops;
    weft_list_init(&tensors->list);
    weft_list_init(&tensors->freed);
    weft_list_init(&tensors->leaders);
    weft_list_init(&tensors->send_queue);
    weft_list_init(&tensors->record_waiters);
    client_push_order_init(session);
    client_push_groups_init(session);
    client_shard_map_init(session);
}

void client_tensors_free(struct weft_session *session)
{
    struct client_tensors *tensors = session->tensors;
    while (!weft_list_empty(&tensors->list))
        client_tensor_free(weft_list_first(&tensors->list, struct weft_tensor, registration.session_link));
    while (!weft_list_empty(&tensors->freed))
        client_tensor_free(weft_list_first(&tensors->freed, struct weft_tensor, registration.session_link));
    client_codec_tuner_free(session);
    client_push_order_free(session);
    client_learned_order_free(session);
    client_push_groups_free(session);
    client_shard_map_free(session);
    client_snapshot_free(session);
    weft_free_bytes(session->env, tensors->skip.all);
}
