/* hash.c - checksum of the data header (xxh32), weight hash and content hash. The only file that includes
 * xxhash.
 *
 * The weight hash is xxh3-64 of f32 weights as they are in memory. For a tensor in chunks, each chunk's hash
 * is multiplied by an odd number of its own, and the products are added. Chunks may be hashed in any order,
 * and exchanged chunks give another sum. With a codec and an optimiser, shard and workers apply the same step
 * to their own copies. Equal bits give equal hashes; different hashes prove that a copy has diverged
 * (WEFT_ERR_DIVERGED). */
#include <string.h>
#include <xxhash.h>

#include "proto/hash.h"
#include "proto/proto.h"

uint32_t wire_checksum(const void *data, size_t bytes)
{
    return XXH32(data, bytes, 0);
}

uint64_t weft_bytes_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t weft_weight_hash(const void *weights, size_t bytes)
{
    return weft_bytes_hash(weights, bytes);
}

void *weft_weight_hash_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_64bits_reset(state);
    return state;
}

void weft_weight_hash_add(void *state, const void *part, size_t bytes)
{
    XXH3_64bits_update(state, part, bytes);
}

uint64_t weft_weight_hash_end(void *state)
{
    if (!state) return 0;
    const uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

uint64_t weft_chunk_hash(uint32_t index, const void *weights, size_t bytes)
{
    return weft_weight_hash(weights, bytes) * (2 * (uint64_t)index + 1);
}

void weft_content_hash(const void *head, size_t head_bytes, const void *data, size_t bytes,
                       uint8_t hash_out[WEFT_CONTENT_HASH_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(data, bytes, XXH3_64bits(head, head_bytes)));
    _Static_assert(sizeof canonical.digest == WEFT_CONTENT_HASH_BYTES, "128 bits");
    memcpy(hash_out, canonical.digest, sizeof canonical.digest);
}
