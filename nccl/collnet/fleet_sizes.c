/* fleet_sizes.c - a table of pairs of type and count, each with tensors that its calls use in turn.
 *
 * NCCL cuts a call into chunks of few sizes. A tensor holds one exact count, so no padding travels. The table
 * only grows: an entry that one rank drops and another keeps would send their calls to different tensors. */
#include "nccl/collnet/fleet_sizes.h"

bool fleet_sizes_next(struct fleet_sizes *sizes, enum weft_dtype dtype, size_t count,
                      struct fleet_place *place_out)
{
    uint32_t i = 0;
    while (i < sizes->known_count && (sizes->known[i].dtype != dtype || sizes->known[i].count != count)) i++;
    if (i == FLEET_SIZES_MAX) return false;
    if (i == sizes->known_count)
        sizes->known[sizes->known_count++] = (struct fleet_size){.dtype = dtype, .count = count};
    *place_out =
        (struct fleet_place){.dtype = dtype, .count = count, .size = i, .tensor = sizes->known[i].next};
    sizes->known[i].next = (sizes->known[i].next + 1) % FLEET_TENSORS_PER_SIZE;
    return true;
}
