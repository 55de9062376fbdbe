/* region.c - a sparse sum in regions: each rank sums one region of the elements and sends the sum to all.
 *
 *     contribution --split--> one piece for each rank --exchange--> all ranks' pieces of the own region
 *         --combiner, in rank order--> its sum --all_gather--> all regions' sums --join--> an aggregate
 *
 * Bytes: with an all_gather a rank receives (ranks - 1) k pairs. With regions it sends and receives k pairs,
 * then the union u once. u never exceeds the vector, because a region's sum that would is sent as the vector
 * (sparse.h).
 *
 * Regions: blocks of 64 elements, block b in region b % ranks, so that a layer of large values is spread over
 * all ranks. In its region an element has the number (b / ranks) * 64 + its offset in the block. Numbers rise
 * with indices, so pieces and sums use the index coding of a tensor of the region's size.
 *
 * Bits: a region's combiner is the union combiner in rank order, so each index has the sum that one
 * combiner would give. */
#include <string.h>

#include "compress/codec.h"
#include "compress/index_block.h"
#include "compress/sparse.h"

enum { REGION_BLOCK_ELEMS = 64 };

struct weft_regions {
    struct weft_env *env;
    uint64_t elems, k_max;
    uint32_t ranks;
    struct weft_combiner *combiner;  /* owned; of the own region */
    uint64_t pairs_max;                   /* pairs in the union at most, and no less than k_max */
    uint32_t *numbers, *indices;     /* owned (pairs_max,): as decoded; put in the order of the regions
                                      * (cut) or of the whole (join) */
    float *values, *sorted;          /* owned (pairs_max,) */
    uint64_t *starts, *ends;         /* owned (ranks,) */
    uint8_t *aggregate;              /* owned */
};

/* ---- arithmetic of the deal ---- */

static uint64_t blocks_of(uint64_t elems)
{
    return elems / REGION_BLOCK_ELEMS + (elems % REGION_BLOCK_ELEMS != 0);
}

static uint64_t region_elems(uint64_t elems, uint32_t ranks, uint32_t region)
{
    const uint64_t blocks = blocks_of(elems);
    const uint64_t mine = blocks / ranks + (region < blocks % ranks);
    const bool last = (blocks - 1) % ranks == region;
    return mine * REGION_BLOCK_ELEMS - (last ? blocks * REGION_BLOCK_ELEMS - elems : 0);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t union_max(uint64_t elems, uint64_t k, uint32_t ranks)
{
    return k > elems / ranks ? elems : k * ranks;
}

static size_t pairs_bytes(uint64_t elems, uint64_t count)
{
    return weft_index_bytes_max(elems, count) + count * sizeof(float);
}

bool weft_regions_possible(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks)
{
    return spec->id == WEFT_CODEC_TOPK && ranks >= 2 && blocks_of(weft_shape_elems(shape)) >= ranks;
}

size_t weft_regions_piece_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                    uint32_t ranks)
{
    const uint64_t elems = weft_shape_elems(shape), largest = region_elems(elems, ranks, 0);
    return pairs_bytes(largest, smaller(topk_count_max(spec, elems), largest));
}

size_t weft_regions_sum_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                  uint32_t ranks)
{
    const uint64_t elems = weft_shape_elems(shape), largest = region_elems(elems, ranks, 0);
    const size_t pairs =
        pairs_bytes(largest, union_max(largest, smaller(topk_count_max(spec, elems), largest), ranks));
    const size_t dense = sparse_dense_bytes(largest);
    return pairs < dense ? pairs : dense;
}

/* ---- cut ---- */

static size_t piece_write(const struct weft_regions *self, uint32_t region, uint64_t from, uint64_t to,
                          uint8_t *out)
{
    return sparse_encode(out, self->indices + from, self->values + from, to - from,
                         region_elems(self->elems, self->ranks, region));
}

enum weft_status weft_regions_split(struct weft_regions *self, const void *contribution, size_t bytes,
                                    uint8_t *pieces_out, size_t stride, uint64_t *lengths_out)
{
    uint64_t count;
    size_t consumed;
    WEFT_TRY(
        weft_index_decode(contribution, bytes, self->elems, self->numbers, self->k_max, &count, &consumed));
    if (bytes - consumed != count * sizeof(float)) return WEFT_ERR_MALFORMED;
    const uint8_t *at = (const uint8_t *)contribution + consumed;

    memset(self->ends, 0, self->ranks * sizeof *self->ends);
    for (uint64_t i = 0; i < count; i++)
        self->ends[self->numbers[i] / REGION_BLOCK_ELEMS % self->ranks]++;
    uint64_t sum = 0;
    for (uint32_t r = 0; r < self->ranks; r++) {
        /* counts become where each region's pairs end, as they are filled in */
        self->starts[r] = sum;
        sum += self->ends[r];
        self->ends[r] = self->starts[r];
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t block = self->numbers[i] / REGION_BLOCK_ELEMS, region = block % self->ranks;
        const uint64_t to = self->ends[region]++;
        self->indices[to] = block / self->ranks * REGION_BLOCK_ELEMS + self->numbers[i] % REGION_BLOCK_ELEMS;
        memcpy(&self->values[to], at + i * sizeof(float), sizeof(float));
    }
    for (uint32_t r = 0; r < self->ranks; r++)
        lengths_out[r] = piece_write(self, r, self->starts[r], self->ends[r], pieces_out + r * stride);
    return WEFT_OK;
}

struct weft_combiner *weft_regions_combiner(struct weft_regions *self)
{
    return self->combiner;
}

/* ---- join ---- */

/* One region's sum: checked whole; when it is a list its pairs go to [starts, ends) of numbers and values. */
static enum weft_status sum_read(struct weft_regions *self, uint32_t region, const uint8_t *data,
                                 size_t bytes, bool *dense)
{
    const uint64_t elems = region_elems(self->elems, self->ranks, region), start = self->starts[region];
    uint64_t count, most = union_max(elems, smaller(self->k_max, elems), self->ranks);
    size_t consumed;
    self->ends[region] = start;
    if (sparse_is_dense(data, bytes)) {
        *dense = true;
        return bytes == sparse_dense_bytes(elems) ? WEFT_OK : WEFT_ERR_MALFORMED;
    }
    WEFT_TRY(weft_index_decode(data, bytes, elems, self->numbers + start,
                               smaller(most, self->pairs_max - start), &count, &consumed));
    if (bytes - consumed != count * sizeof(float)) return WEFT_ERR_MALFORMED;
    memcpy(self->values + start, data + consumed, bytes - consumed);
    self->ends[region] = start + count;
    return WEFT_OK;
}

/* The pairs of all regions in the order of the whole, to indices and sorted. */
static uint64_t merge_regions(struct weft_regions *self)
{
    const uint64_t blocks = blocks_of(self->elems);
    uint64_t count = 0;
    for (uint64_t block = 0, row = 0; block < blocks; row++)
        for (uint32_t r = 0; r < self->ranks && block < blocks; r++, block++)
            for (; self->starts[r] < self->ends[r] &&
                   self->numbers[self->starts[r]] < (row + 1) * REGION_BLOCK_ELEMS;
                 self->starts[r]++) {
                self->indices[count] = (uint32_t)(block * REGION_BLOCK_ELEMS +
                                                  self->numbers[self->starts[r]] % REGION_BLOCK_ELEMS);
                self->sorted[count++] = self->values[self->starts[r]];
            }
    return count;
}

/* A region's vector into its blocks of the whole. */
static void blocks_scatter(const struct weft_regions *self, uint32_t region, const float *from, float *vector)
{
    for (uint64_t block = region; block * REGION_BLOCK_ELEMS < self->elems; block += self->ranks) {
        const uint64_t count = smaller(REGION_BLOCK_ELEMS, self->elems - block * REGION_BLOCK_ELEMS);
        memcpy(vector + block * REGION_BLOCK_ELEMS, from, count * sizeof *from);
        from += count;
    }
}

static size_t join_dense(struct weft_regions *self, const uint8_t *sums, size_t stride,
                         const uint64_t *lengths)
{
    const size_t bytes = sparse_encode_dense(self->aggregate, NULL, NULL, 0, self->elems);
    float *vector = (float *)(void *)(self->aggregate + sizeof(uint32_t));
    for (uint32_t r = 0; r < self->ranks; r++) {
        const uint8_t *data = sums + r * stride;
        if (sparse_is_dense(data, lengths[r]))
            blocks_scatter(self, r, (const float *)(const void *)(data + sizeof(uint32_t)), vector);
        for (uint64_t i = self->starts[r]; i < self->ends[r]; i++)
            vector[((uint64_t)(self->numbers[i] / REGION_BLOCK_ELEMS) * self->ranks + r) *
                       REGION_BLOCK_ELEMS +
                   self->numbers[i] % REGION_BLOCK_ELEMS] = self->values[i];
    }
    return bytes;
}

enum weft_status weft_regions_join(struct weft_regions *self, const uint8_t *sums, size_t stride,
                                   const uint64_t *lengths, const void **aggregate_out, size_t *bytes_out)
{
    bool dense = false;
    for (uint32_t r = 0; r < self->ranks; r++) {
        self->starts[r] = r == 0 ? 0 : self->ends[r - 1];
        WEFT_TRY(sum_read(self, r, sums + r * stride, lengths[r], &dense));
    }
    const uint64_t count = self->ends[self->ranks - 1];
    /* As the combiner of all would: the vector where it is shorter. Which of them decides nothing about
     * values. */
    dense = dense || pairs_bytes(self->elems, count) > sparse_dense_bytes(self->elems);
    if (dense) {
        *bytes_out = join_dense(self, sums, stride, lengths);
    } else {
        const uint64_t together = merge_regions(self);
        *bytes_out = sparse_encode(self->aggregate, self->indices, self->sorted, together, self->elems);
    }
    *aggregate_out = self->aggregate;
    return WEFT_OK;
}

/* ---- life ---- */

void weft_regions_free(struct weft_regions *self)
{
    if (!self) return;
    void *const all[] = {self->numbers, self->indices, self->values,   self->sorted,
                         self->starts,  self->ends,    self->aggregate};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(self->env, all[i]);
    weft_combiner_free(self->combiner);
    weft_free_bytes(self->env, self);
}

enum weft_status weft_regions_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                     const struct weft_shape *shape, uint32_t ranks, uint32_t rank,
                                     struct weft_regions **regions_out)
{
    if (rank >= ranks || weft_codec_resolve(resolved, shape).id != resolved->id ||
        !weft_regions_possible(resolved, shape, ranks))
        return WEFT_ERR_INVALID;
    struct weft_regions *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->env = env;
    self->elems = weft_shape_elems(shape);
    self->k_max = topk_count_max(resolved, self->elems);
    self->ranks = ranks;
    self->pairs_max = union_max(self->elems, self->k_max, ranks);
    const uint64_t own = region_elems(self->elems, ranks, rank);
    const size_t pairs = pairs_bytes(self->elems, self->pairs_max), dense = sparse_dense_bytes(self->elems);
    self->numbers = weft_alloc_array(env, self->pairs_max, sizeof *self->numbers);
    self->indices = weft_alloc_array(env, self->pairs_max, sizeof *self->indices);
    self->values = weft_alloc_array(env, self->pairs_max, sizeof *self->values);
    self->sorted = weft_alloc_array(env, self->pairs_max, sizeof *self->sorted);
    self->starts = weft_alloc_array(env, ranks, sizeof *self->starts);
    self->ends = weft_alloc_array(env, ranks, sizeof *self->ends);
    self->aggregate = weft_alloc_bytes(env, pairs > dense ? pairs : dense);
    self->combiner = union_combiner_open(env, own, 0, smaller(self->k_max, own), ranks);
    if (self->numbers && self->indices && self->values && self->sorted && self->starts && self->ends &&
        self->aggregate && self->combiner) {
        *regions_out = self;
        return WEFT_OK;
    }
    weft_regions_free(self);
    return WEFT_ERR_NO_MEMORY;
}
