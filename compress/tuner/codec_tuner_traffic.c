/* codec_tuner_traffic.c - bytes of an exchange through shards: part of a cost (tuner/codec_tuner.h),
 * without the codecs' time.
 *
 * A worker's link carries its contribution out and the aggregate in; a shard's link those of all workers, of
 * the tensors that are its own. Tensors are spread evenly, so where there are more workers than shards the
 * shards' links have workers / shards times as much to carry. A worker has nothing to receive before all have
 * sent, and what is under way at the same time shares the link and arrives together: both directions are
 * hardly ever busy at once. In virtual time (tests/sim/test_codec_tuner_shards.c) tensors one after the other
 * take 1.6 to 2 times the bytes of one direction, so the busier direction counts with WAITS of the other one,
 * and the rest of it follows; of tensors that go in pieces (dense, and codecs that can be cut), the last
 * piece's.
 *
 * What is longer than an eager message is announced and waits until it is called for: three trips instead
 * of one. */
#include <math.h>

#include "compress/compress.h"

#define SERIAL_SHARE 0.9

void weft_codec_server_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                               const size_t *contribution_bytes, uint32_t workers, uint32_t shards,
                               uint32_t pieces, size_t eager_bytes, struct weft_codec_cost *cost)
{
    const double workers_per_shard = workers > shards && shards > 0 ? (double)workers / shards : 1;
    double out = 0, in = 0, trips = 0;
    for (uint32_t round = 0; round < weft_codec_rounds(resolved); round++) {
        const double most = (double)weft_codec_contribution_bytes_max(resolved, shape, round),
                     bytes = contribution_bytes ? (double)contribution_bytes[round] : most;
        const double back =
            bytes / most * (double)weft_codec_aggregate_bytes_max(resolved, shape, round, workers);
        out += bytes;
        in += back;
        trips += bytes / pieces > (double)eager_bytes ? 3 : 1;
        trips += back / pieces > (double)eager_bytes ? 3 : 1;
    }
    cost->wire_bytes = workers_per_shard * (fmax(out, in) + SERIAL_SHARE * fmin(out, in));
    cost->return_bytes = workers_per_shard * (1 - SERIAL_SHARE) * fmin(out, in) / pieces;
    cost->hops = trips;
}
