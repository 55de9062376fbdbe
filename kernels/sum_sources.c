/* sum_sources.c - the sum T over more sources than one pass of the kernel takes.
 *
 * Groups of eight neighbours are subtrees of T, and T over their sums is the same tree. The elements are
 * summed in tiles, so that the sums of the groups stay in the first-level cache. */
#include "kernels/kernels.h"

enum { GROUP = 8, GROUPS_MAX = WEFT_SUM_SOURCES_MAX / GROUP, TILE = 512 };

static uint32_t sum_tile(float *out, const float *const *sources, size_t source_count, float factor,
                         size_t from, size_t elems)
{
    float partials[GROUPS_MAX][TILE];
    const float *groups[GROUPS_MAX];
    size_t group_count = 0;
    for (size_t first = 0; first < source_count; first += GROUP, group_count++) {
        const size_t rest = source_count - first, members = rest < GROUP ? rest : GROUP;
        const float *parts[GROUP];
        float *total = partials[group_count];
        for (size_t i = 0; i < members; i++) parts[i] = sources[first + i] + from;
        weft_kernels()->sum_tree_f32(&total, 1, parts, members, 1.0f, elems);
        groups[group_count] = total;
    }
    float *total = out + from;
    return weft_kernels()->sum_tree_max_f32(&total, 1, groups, group_count, factor, elems, false);
}

uint32_t weft_sum_sources_f32(float *out, const float *const *sources, size_t source_count, float factor,
                              size_t count)
{
    uint32_t most = 0;
    if (source_count <= GROUP)
        return weft_kernels()->sum_tree_max_f32(&out, 1, sources, source_count, factor, count, false);
    for (size_t from = 0; from < count; from += TILE) {
        const size_t elems = count - from < TILE ? count - from : TILE;
        const uint32_t bits = sum_tile(out, sources, source_count, factor, from, elems);
        most = bits > most ? bits : most;
    }
    return most;
}
