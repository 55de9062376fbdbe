/* hash.h - inside proto: the checksum of the data header. The hash of weights is in proto.h. */
#ifndef WEFT_PROTO_HASH_H
#define WEFT_PROTO_HASH_H

#include <stddef.h>
#include <stdint.h>

/* xxh32, seed 0. */
uint32_t wire_checksum(const void *data, size_t bytes);

#endif
