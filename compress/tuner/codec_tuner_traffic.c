/* codec_tuner_traffic.c - bytes and messages of an exchange through shards: part of a cost (codec_tuner.h).
 *
 * 1. A worker's link carries its contribution and the aggregate; a shard's link carries those of all workers,
 *    for its tensors. Tensors are spread evenly, so with more workers than shards the shards' links carry
 *    workers / shards times as much.
 * 2. An aggregate returns only after all workers have sent, so the two directions are rarely busy at once:
 *    the busier direction counts with SERIAL_SHARE of the other (tests/sim/test_codec_tuner_shards.c checks
 *    it in virtual time). The rest of the other direction follows; if the tensor travels in pieces, only that
 *    of the last piece.
 * 3. A message above the eager size takes three latencies (rendezvous) instead of one. */
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
