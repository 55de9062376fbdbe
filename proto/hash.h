/* hash.h - checksum of the data header. Internal to proto; the weight hash is in proto.h. */
#ifndef WEFT_PROTO_HASH_H
#define WEFT_PROTO_HASH_H

#include <stddef.h>
#include <stdint.h>

/* xxh32, seed 0. */
uint32_t wire_checksum(const void *data, size_t bytes);

#endif
