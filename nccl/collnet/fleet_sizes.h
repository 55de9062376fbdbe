/* fleet_sizes.h - which tensor of the fleet a call uses. */
#ifndef WEFT_NCCL_COLLNET_FLEET_SIZES_H
#define WEFT_NCCL_COLLNET_FLEET_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/types.h"

enum {
    FLEET_SIZES_MAX = 64,       /* pairs of type and count; calls of further ones use the collectives */
    FLEET_TENSORS_PER_SIZE = 8, /* as many calls of one size are in flight in a step */
};

struct fleet_size {
    enum weft_dtype dtype;
    size_t count;
    uint32_t next; /* tensor of its next call */
};

struct fleet_sizes {
    struct fleet_size known[FLEET_SIZES_MAX];
    uint32_t known_count;
};

struct fleet_place {
    enum weft_dtype dtype;
    size_t count;
    uint32_t size, tensor; /* indices */
};

/* The tensor of the next call of that type and count. false: the table is full, and stays as it is. Depends
 * on the sequence of calls alone. */
bool fleet_sizes_next(struct fleet_sizes *sizes, enum weft_dtype dtype, size_t count,
                      struct fleet_place *place_out);

#endif
