/* codec_batch.c - tensors of one shape and codec that all ranks have pushed share an operation.
 *
 *     tensor a   leads: its operation carries the batch, at the place of a ─┐
 *     tensor b   follows                                                     ├─► one operation for each round
 *     tensor c   follows                                                    ─┘
 *
 * Only codecs whose rounds are sums share: an element of a sum has the bits of an operation of its own. The
 * agreed tensors and their order decide which tensor follows which, so all ranks make the same choice.
 * Only tensors that all ranks push in groups of calls share: a gradient that is not finite ends the whole
 * batch. */
#include <string.h>

#include "client/tensor/allreduce_mode.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/tensor.h"

bool client_codec_batch_accepts(const struct weft_tensor *tensor)
{
    return tensor->codec && !tensor->options.alone && weft_coll_codec_can_batch(&tensor->options.codec_spec);
}

bool client_codec_batch_can_share(const struct weft_tensor *a, const struct weft_tensor *b)
{
    return memcmp(&a->options.codec_spec, &b->options.codec_spec, sizeof a->options.codec_spec) == 0 &&
           a->options.optimizer.is_sum == b->options.optimizer.is_sum && /* one scale for the batch */
           a->options.shape.dim_count == b->options.shape.dim_count &&
           memcmp(a->options.shape.dims, b->options.shape.dims,
                  a->options.shape.dim_count * sizeof a->options.shape.dims[0]) == 0;
}

/* A full batch, or the oldest one, is replaced by the new leader. */
static void lead(struct client_codec_batches *batches, struct weft_tensor *tensor, uint32_t full)
{
    uint32_t at = batches->count;
    if (full < batches->count) {
        at = full;
    } else if (batches->count == CLIENT_CODEC_BATCHES_OPEN) {
        memmove(batches->open, batches->open + 1, (batches->count - 1) * sizeof batches->open[0]);
        at = batches->count - 1;
    } else {
        batches->count++;
    }
    batches->open[at].leader = tensor;
    batches->open[at].tensors = 1;
}

bool client_codec_batch_follow(struct client_codec_batches *batches, struct weft_tensor *tensor)
{
    if (!batches->is_grouped || !client_codec_batch_accepts(tensor)) return false;
    uint32_t at = 0;
    while (at < batches->count && !client_codec_batch_can_share(batches->open[at].leader, tensor)) at++;
    if (at == batches->count || batches->open[at].tensors == WEFT_CODEC_BATCH_MAX) {
        lead(batches, tensor, at);
        return false;
    }
    batches->open[at].tensors++;
    client_allreduce_mode_follow(batches->open[at].leader, tensor);
    return true;
}
