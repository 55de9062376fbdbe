/* hash.c - the one file that sees xxhash: the data header's checksum (xxh32) and the weight hash.
 *
 * The weight hash is xxh3-64 of the bytes of f32 weights. Of a tensor in chunks the chunks' hashes are added,
 * each times an odd number of its own, so that they may be made in any order, and two chunks that have
 * changed places are not equal to themselves.
 *
 * In compressed server modes the shard and every worker apply the same optimiser step to their own copy of
 * the weights. Equal bits give equal hashes; a different hash is proof that a copy has gone its own way
 * (WEFT_ERR_DIVERGED). The bytes are hashed as they lie in memory, little endian, without padding. */
#include <xxhash.h>

#include "proto/hash.h"
#include "proto/proto.h"

uint32_t wire_checksum(const void *data, size_t bytes)
{
    return XXH32(data, bytes, 0);
}

uint64_t weft_weight_hash(const void *weights, size_t bytes)
{
    return XXH3_64bits(weights, bytes);
}

uint64_t weft_chunk_hash(uint32_t index, const void *weights, size_t bytes)
{
    return weft_weight_hash(weights, bytes) * (2 * (uint64_t)index + 1);
}
