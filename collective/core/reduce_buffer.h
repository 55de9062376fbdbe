/* reduce_buffer.h - the contributions of all ranks to one chunk, and their fold. */
#ifndef WEFT_COLLECTIVE_CORE_REDUCE_BUFFER_H
#define WEFT_COLLECTIVE_CORE_REDUCE_BUFFER_H

#include "collective/collective.h"
#include "collective/core/reduce.h"
#include "kernels/kernels.h"

struct weft_coll;

/* The contributions of all ranks to one chunk. */
struct reduce_buffer {
    bool open; /* from the first receive of a chunk to the end of its fold */
    uint64_t offset_in, count;
    uint32_t next; /* index of the next contribution to fold */
    /* elements of that contribution that are folded. After the last one: elements of the sum that are
     * written */
    uint64_t done;
    float *partial;   /* the widened contribution; types narrower than f32 */
    uint8_t *present; /* (ranks,) 1: the contribution has arrived */
    uint8_t *raw;     /* (ranks, raw_bytes) contributions as received */
    size_t raw_bytes;
    float *free_partials[34]; /* widened buffers that the fold does not use */
    uint32_t free_count;
    struct weft_tree_reduce fold;
};

size_t reduce_buffer_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems);
void reduce_buffer_init(struct reduce_buffer *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype,
                        uint64_t chunk_elems);
void reduce_buffer_open(struct weft_coll *coll, struct reduce_buffer *area, uint64_t offset_in,
                        uint64_t count);
/* Index of a rank's contribution in the fold, and its receive buffer. */
uint32_t reduce_buffer_index(const struct weft_coll *coll, uint32_t rank);
static inline uint8_t *reduce_buffer_slot(struct reduce_buffer *area, uint32_t index)
{
    return area->raw + index * area->raw_bytes;
}
/* Folds contributions in rank order within the budget of bytes. Returns true when all are folded. */
bool reduce_buffer_advance(struct weft_coll *coll, struct reduce_buffer *area, size_t *budget);
/* After all contributions: rounds, scales and writes the sum within the budget. Returns true when all is
 * written; the buffer is then closed. */
bool reduce_buffer_finish(struct weft_coll *coll, struct reduce_buffer *area, struct reduce_dst out,
                          size_t *budget);

#endif
