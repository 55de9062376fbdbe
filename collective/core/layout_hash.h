/* layout_hash.h - hash of the counts of pieces, which must be equal on all ranks of a call. */
#ifndef WEFT_COLLECTIVE_CORE_LAYOUT_HASH_H
#define WEFT_COLLECTIVE_CORE_LAYOUT_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* counts (ranks,) */
uint64_t coll_layout_hash(const uint64_t *counts, uint32_t ranks);
/* Piece whose count differs between two ranks. */
struct coll_layout_difference {
    uint32_t piece;
    uint64_t count; /* at the other rank */
};
/* `cuts` (ranks + 1,) are the first elements of this rank's pieces, `own` and `theirs` the hashes of the two
 * ranks. Returns true if they differ in the count of one piece, below 2^36 at the other rank. */
bool coll_layout_find(const uint64_t *cuts, uint32_t ranks, uint64_t own, uint64_t theirs,
                      struct coll_layout_difference *difference_out);
/* Formats "3, 5, 4, 4, ..." of the counts. */
void coll_layout_format(const uint64_t *cuts, uint32_t ranks, char *out, size_t out_bytes);

#endif
