/* call_group_leader.c - tensors of one shape and codec that are pushed in a group of calls share an
 * operation.
 *
 * Only tensors in all-reduce mode whose codec rounds are sums share. The first one pushed leads: it keeps
 * its place among the group's operations and waits for weft_group_end. The later ones follow it
 * (allreduce_mode.c). The calls alone decide which tensor follows which, so all ranks make the same
 * choice. */
#include <string.h>

#include "client/call/call_group.h"
#include "client/call/calls.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static bool has_same_shape_and_codec(const struct weft_tensor *a, const struct weft_tensor *b)
{
    return memcmp(&a->options.codec_spec, &b->options.codec_spec, sizeof a->options.codec_spec) == 0 &&
           a->options.shape.dim_count == b->options.shape.dim_count &&
           memcmp(a->options.shape.dims, b->options.shape.dims,
                  a->options.shape.dim_count * sizeof a->options.shape.dims[0]) == 0;
}

struct weft_tensor *client_tensor_group_leader(struct weft_tensor *tensor)
{
    struct client_call_group *call_group = &tensor->session->calls->call_group;
    struct weft_list *node, *spare;
    if (call_group->depth == 0 || tensor->mode != WEFT_MODE_ALL_REDUCE || !tensor->codec ||
        !weft_coll_codec_can_batch(&tensor->options.codec_spec))
        return NULL;
    tensor->order.call_group.serial = call_group->serial;
    weft_list_foreach(node, spare, &tensor->session->tensors->leaders) {
        struct weft_tensor *leader = weft_container_of(node, struct weft_tensor, order.call_group.link);
        if (leader->order.call_group.count >= WEFT_CODEC_BATCH_MAX ||
            !has_same_shape_and_codec(leader, tensor))
            continue;
        leader->order.call_group.count++;
        return leader;
    }
    tensor->order.call_group.count = 1;
    weft_list_append(&tensor->session->tensors->leaders, &tensor->order.call_group.link);
    return tensor;
}

bool client_tensor_is_gathered(const struct weft_session *session, const struct weft_tensor *tensor)
{
    const struct client_call_group *call_group = &session->calls->call_group;
    if (call_group->depth == 0) return false;
    return tensor ? tensor->order.call_group.serial == call_group->serial
                  : !weft_list_empty(&session->tensors->leaders);
}

/* The commands of the followers are posted before that of their leader, so the leader knows all of them. */
void client_tensor_group_ended(struct weft_session *session, bool start)
{
    while (!weft_list_empty(&session->tensors->leaders)) {
        struct weft_tensor *leader =
            weft_list_first(&session->tensors->leaders, struct weft_tensor, order.call_group.link);
        weft_list_remove(&leader->order.call_group.link);
        leader->order.call_group.command.fn = client_allreduce_mode_group_closed;
        if (start) weft_loop_post(session->loop, &leader->order.call_group.command);
    }
}
