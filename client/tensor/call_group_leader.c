/* call_group_leader.c - tensors with one codec that are pushed in a group of calls share operations.
 *
 * Only tensors in all-reduce mode whose codec rounds are sums share. Each tensor waits for weft_group_end:
 *
 *     client.push_order=agreed   each leads. The agreement decides which tensor follows which; its order may
 *                                differ from that of the calls (order/codec_batch.c)
 *     =called, or one rank       the first of each shape and codec leads, and the later ones follow it
 *                                (allreduce_mode.c). The calls alone decide, and are equal on all ranks */
#include "client/call/call_group.h"
#include "client/call/calls.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* The leader among the earlier calls of the group; NULL: none. */
static struct weft_tensor *find_leader(const struct weft_tensor *tensor)
{
    const struct weft_session *session = tensor->session;
    struct weft_list *node, *spare;
    if (session->settings.agrees_push_order && session->ranks > 1) return NULL;
    weft_list_foreach (node, spare, &session->tensors->leaders) {
        struct weft_tensor *leader = weft_container_of(node, struct weft_tensor, order.call_group.link);
        if (leader->order.call_group.count < WEFT_CODEC_BATCH_MAX &&
            client_codec_batch_can_share(leader, tensor))
            return leader;
    }
    return NULL;
}

struct weft_tensor *client_tensor_group_leader(struct weft_tensor *tensor)
{
    struct client_call_group *call_group = &tensor->session->calls->call_group;
    if (call_group->depth == 0 || tensor->mode != WEFT_MODE_ALL_REDUCE || !client_codec_batch_accepts(tensor))
        return NULL;
    tensor->order.call_group.serial = call_group->serial;
    struct weft_tensor *leader = find_leader(tensor);
    if (leader) {
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

/* One command closes the group for all leaders, so that they take part in one agreement. The commands of the
 * tensors were posted before it. */
void client_tensor_group_ended(struct weft_session *session, bool start)
{
    struct weft_tensor *first = NULL, *last = NULL;
    while (!weft_list_empty(&session->tensors->leaders)) {
        struct weft_tensor *leader =
            weft_list_first(&session->tensors->leaders, struct weft_tensor, order.call_group.link);
        weft_list_remove(&leader->order.call_group.link);
        leader->order.call_group.next = NULL;
        if (last) last->order.call_group.next = leader;
        else first = leader;
        last = leader;
    }
    if (!first || !start) return;
    first->order.call_group.command.fn = client_allreduce_mode_group_closed;
    weft_loop_post(session->loop, &first->order.call_group.command);
}
