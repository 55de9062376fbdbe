/* layout_hash.c - hash of the counts of pieces, which also shows where two ranks differ.
 *
 * The hash is the exclusive or of one term for each piece. A term is an invertible mix of the count and the
 * number of the piece (the finaliser of splitmix64, Steele et al. 2014). Where two ranks differ in one piece,
 * the other terms cancel, and the inverse of the rest is the count at the other rank. For another piece than
 * the right one the inverse is a random number, and those from 2^36 on are no counts. */
#include "collective/core/layout_hash.h"

#include <stdio.h>

#define GOLDEN 0x9e3779b97f4a7c15ull
#define COUNT_BITS 36

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t unmix(uint64_t x)
{
    x = (x ^ x >> 31 ^ x >> 62) * 0x319642b2d24d8ec3ull;
    x = (x ^ x >> 27 ^ x >> 54) * 0x96de1b173f119089ull;
    return x ^ x >> 30 ^ x >> 60;
}

static uint64_t term(uint32_t piece, uint64_t count)
{
    return mix(count + (piece + 1) * GOLDEN);
}

uint64_t coll_layout_hash(const uint64_t *counts, uint32_t ranks)
{
    uint64_t hash = 0;
    for (uint32_t piece = 0; piece < ranks; piece++) hash ^= term(piece, counts[piece]);
    return hash;
}

bool coll_layout_find(const uint64_t *cuts, uint32_t ranks, uint64_t own, uint64_t theirs,
                      struct coll_layout_difference *difference_out)
{
    uint32_t found = 0;
    for (uint32_t piece = 0; piece < ranks && own != theirs; piece++) {
        const uint64_t count = cuts[piece + 1] - cuts[piece];
        const uint64_t other = unmix(own ^ theirs ^ term(piece, count)) - (piece + 1) * GOLDEN;
        if (other >> COUNT_BITS) continue;
        found++;
        *difference_out = (struct coll_layout_difference){.piece = piece, .count = other};
    }
    return found == 1;
}

void coll_layout_format(const uint64_t *cuts, uint32_t ranks, char *out, size_t out_bytes)
{
    enum { SHOWN = 8 };
    size_t used = 0;
    out[0] = 0;
    for (uint32_t piece = 0; piece < ranks && piece < SHOWN && used < out_bytes; piece++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%llu", piece ? ", " : "",
                                 (unsigned long long)(cuts[piece + 1] - cuts[piece]));
    if (ranks > SHOWN && used < out_bytes) snprintf(out + used, out_bytes - used, ", ...");
}
