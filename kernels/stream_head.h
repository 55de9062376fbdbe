/* stream_head.h - where vector loops may begin to store past the caches, for all variants. */
#ifndef WEFT_KERNELS_STREAM_HEAD_H
#define WEFT_KERNELS_STREAM_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many elements precede the first one that is aligned to `bytes` in every out: a loop may stream
 * from there on. Returns count if there is none, or if the outs have different alignments. */
static inline size_t stream_head(float *const *outs, size_t out_count, size_t count, size_t bytes)
{
    const size_t past = (uintptr_t)outs[0] % bytes, head = past == 0 ? 0 : (bytes - past) / sizeof(float);
    bool same_alignment = past % sizeof(float) == 0 && count > head;
    for (size_t o = 1; o < out_count; o++)
        same_alignment = same_alignment && (uintptr_t)outs[o] % bytes == past;
    return same_alignment ? head : count;
}

#endif
