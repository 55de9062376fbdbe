/* union_combiner.c - combines sparse lists: the union of the indices, values summed in T's order.
 *
 * Per index, the sum is the tree T over ranks with the ranks that did not send it left out: an absent value
 * is the identity (x alone, not x + 0, which would lose -0). The shape of the tree is fixed by rank numbers,
 * so arrival order does not matter. Lists merge pairwise like a binary counter, as in
 * weft_tree_reduce:
 *
 *     level 2   [0,4)                    resident[l]: the sum of 2^l ranks, when that bit of `added` is set
 *     level 1          [4,6)             carry[l]:    a list of 2^l ranks on its way up
 *     level 0                 [6,7)      at the end the residents merge from the lowest up: [4,6)+[6,7), then
 *                                        [0,4)+..
 *
 * Where list and indices would take more bytes than the vector itself, the vector is the aggregate
 * (sparse.h).
 *
 * With global=1 the combiner keeps a residual of its own (two-sided error feedback, as DoubleSqueeze, Tang et
 * al. 2019, has it): q = sum + residual; the aggregate is the k largest |q| (ties to the smaller index; k is
 * the longest contribution's), the rest is the residual. Values that are not finite, or from 2^120 on, are
 * never kept in it.
 *
 * A list of 2^l ranks holds at most min(n, 2^l * k) indices; all lists together are about 4 * ranks * k
 * pairs, taken at create. A contribution is decoded into carry[0] and checked to its end before anything
 * is merged. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/index_block.h"
#include "compress/sparse.h"
#include "kernels/kernels.h"

enum { LEVELS_MAX = 32 };

struct sparse_list {
    uint32_t *indices; /* owned, rising */
    float *values;     /* owned */
    uint64_t count;
    bool full;         /* holds a partial sum (which may have no index) */
};

struct union_combiner {
    struct weft_combiner base;
    uint64_t k, k_least; /* a contribution has so many at most and at least: they differ while a warm-up is
                          * possible */
    uint32_t levels;
    struct sparse_list resident[LEVELS_MAX], carry[LEVELS_MAX];
    struct sparse_list merged[2]; /* of the last merges; only when ranks is no power of two */
    float *residual;                  /* owned (elems,); global only, else NULL */
    uint32_t *scratch;            /* owned (elems,); likewise, for the select */
    struct sparse_list chosen;    /* likewise */
    uint64_t longest;             /* contribution of this round */
    const struct sparse_list *sum; /* of the last close, before the choice; in resident or merged */
    uint8_t *aggregate;           /* owned */
    size_t aggregate_bytes;
};

static void merge(struct sparse_list *out, const struct sparse_list *left, const struct sparse_list *right)
{
    uint64_t l = 0, r = 0, count = 0;
    while (l < left->count && r < right->count) {
        const uint32_t a = left->indices[l], b = right->indices[r];
        const float sum = left->values[l] + right->values[r];
        out->indices[count] = a < b ? a : b;
        out->values[count] = a < b ? left->values[l] : b < a ? right->values[r] : sum == sum ? sum : NAN;
        count++;
        l += a <= b;
        r += b <= a;
    }
    const struct sparse_list *rest = l < left->count ? left : right;
    const uint64_t from = l < left->count ? l : r;
    memcpy(out->indices + count, rest->indices + from, (rest->count - from) * sizeof *out->indices);
    memcpy(out->values + count, rest->values + from, (rest->count - from) * sizeof *out->values);
    out->count = count + rest->count - from;
}

static void swap(struct sparse_list *a, struct sparse_list *b)
{
    const struct sparse_list kept = *a;
    *a = *b;
    *b = kept;
}

static void begin(struct weft_combiner *combiner)
{
    struct union_combiner *self = (struct union_combiner *)combiner;
    for (uint32_t level = 0; level < self->levels; level++)
        self->resident[level].full = false;
    self->longest = 0;
}

/* As many indices as values, not a byte more. */
static enum weft_status decode(const struct union_combiner *self, struct sparse_list *into, const void *data,
                               size_t bytes)
{
    uint64_t count;
    size_t consumed;
    WEFT_TRY(weft_index_decode(data, bytes, self->base.elems, into->indices, self->k, &count, &consumed));
    if (count < self->k_least || bytes - consumed != count * sizeof *into->values) return WEFT_ERR_MALFORMED;
    memcpy(into->values, (const uint8_t *)data + consumed, count * sizeof *into->values);
    into->count = count;
    return WEFT_OK;
}

static enum weft_status add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    struct union_combiner *self = (struct union_combiner *)combiner;
    uint32_t level = 0;
    WEFT_TRY(decode(self, &self->carry[0], data, bytes));
    if (self->carry[0].count > self->longest) self->longest = self->carry[0].count;
    for (; self->resident[level].full; level++) {
        merge(&self->carry[level + 1], &self->resident[level], &self->carry[level]);
        self->resident[level].full = false;
    }
    self->carry[level].full = true;
    swap(&self->resident[level], &self->carry[level]);
    self->carry[level].full = false;
    return WEFT_OK;
}

/* The k largest of sum + residual; the rest is the new residual. */
static const struct sparse_list *choose(struct union_combiner *self, const struct sparse_list *sum)
{
    for (uint64_t i = 0; i < sum->count; i++)
        self->residual[sum->indices[i]] = sum->values[i] + self->residual[sum->indices[i]];
    self->chosen.count = self->longest;
    weft_select_top(self->chosen.indices, self->residual, self->base.elems, self->longest, self->scratch);
    for (uint64_t i = 0; i < self->chosen.count; i++) {
        const float value = self->residual[self->chosen.indices[i]];
        self->chosen.values[i] = value == value ? value : NAN;
        self->residual[self->chosen.indices[i]] = 0.0f;
    }
    for (uint64_t i = 0; i < sum->count; i++)
        if (!(fabsf(self->residual[sum->indices[i]]) < (float)CODEC_MAGNITUDE_LIMIT))
            self->residual[sum->indices[i]] = 0.0f;
    return &self->chosen;
}

static float *residual(const struct weft_combiner *combiner)
{
    return ((const struct union_combiner *)combiner)->residual;
}

static void write_aggregate(struct union_combiner *self, const struct sparse_list *list)
{
    const struct weft_combiner *combiner = &self->base;
    self->aggregate_bytes =
        sparse_encode(self->aggregate, list->indices, list->values, list->count, combiner->elems);
    if (combiner->ranks > 1 && self->aggregate_bytes > sparse_dense_bytes(combiner->elems))
        self->aggregate_bytes =
            sparse_encode_dense(self->aggregate, list->indices, list->values, list->count, combiner->elems);
}

static void union_close(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out)
{
    struct union_combiner *self = (struct union_combiner *)combiner;
    const struct sparse_list *sum = NULL;
    uint32_t next = 0;
    for (uint32_t level = 0; level < self->levels; level++) {
        if (!self->resident[level].full) continue;
        if (sum) {
            merge(&self->merged[next], &self->resident[level], sum);
            sum = &self->merged[next];
            next ^= 1;
        } else {
            sum = &self->resident[level];
        }
    }
    WEFT_ASSERT(sum != NULL);
    self->sum = sum;
    write_aggregate(self, self->residual ? choose(self, sum) : sum);
    *data_out = self->aggregate;
    *bytes_out = self->aggregate_bytes;
}

static void finish(struct weft_combiner *combiner, float scale, float *out)
{
    const struct union_combiner *self = (const struct union_combiner *)combiner;
    sparse_scatter(self->aggregate, self->aggregate_bytes, combiner->elems, scale, out);
}

/* Indices that `ranks` ranks can bring together. */
static uint64_t capacity_of(uint64_t elems, uint64_t k, uint64_t ranks)
{
    return k > elems / ranks ? elems : k * ranks;
}

/* ---- a second combiner: the aggregate; with a residual the longest contribution and the sum ---- */

static size_t sum_bytes_max(uint64_t elems, uint64_t k, uint32_t ranks)
{
    const uint64_t all = capacity_of(elems, k, ranks);
    return weft_index_bytes_max(elems, all) + all * sizeof(float);
}

static size_t step_bytes_max(const struct weft_combiner *combiner, uint32_t ranks)
{
    const struct union_combiner *self = (const struct union_combiner *)combiner;
    const size_t sparse = sum_bytes_max(combiner->elems, self->k, ranks),
                 dense = sparse_dense_bytes(combiner->elems);
    if (self->residual) return sizeof self->longest + sparse;
    return ranks > 1 && dense < sparse ? dense : sparse;
}

static size_t step_save(const struct weft_combiner *combiner, uint8_t *out)
{
    const struct union_combiner *self = (const struct union_combiner *)combiner;
    if (!self->residual) {
        memcpy(out, self->aggregate, self->aggregate_bytes);
        return self->aggregate_bytes;
    }
    memcpy(out, &self->longest, sizeof self->longest);
    return sizeof self->longest + sparse_encode(out + sizeof self->longest, self->sum->indices,
                                                self->sum->values, self->sum->count, combiner->elems);
}

static enum weft_status step_check(const struct weft_combiner *combiner, const uint8_t *data, size_t bytes)
{
    const struct union_combiner *self = (const struct union_combiner *)combiner;
    const uint64_t most = capacity_of(combiner->elems, self->k, combiner->ranks);
    uint64_t longest, count;
    if (bytes > step_bytes_max(combiner, combiner->ranks)) return WEFT_ERR_MALFORMED;
    if (!self->residual) return sparse_check(data, bytes, combiner->elems, most, &count);
    if (bytes < sizeof longest) return WEFT_ERR_MALFORMED;
    memcpy(&longest, data, sizeof longest);
    if (longest > self->k || sparse_is_dense(data + sizeof longest, bytes - sizeof longest))
        return WEFT_ERR_MALFORMED;
    return sparse_check(data + sizeof longest, bytes - sizeof longest, combiner->elems, most, &count);
}

static uint64_t sparse_count(const uint8_t *data, size_t bytes, uint64_t elems)
{
    uint64_t count;
    const enum weft_status status = sparse_check(data, bytes, elems, elems, &count);
    WEFT_ASSERT(status == WEFT_OK);
    return count;
}

static void step_load(struct weft_combiner *combiner, const uint8_t *data, size_t bytes,
                      const void **data_out, size_t *bytes_out)
{
    struct union_combiner *self = (struct union_combiner *)combiner;
    *data_out = self->aggregate;
    if (!self->residual) {
        memcpy(self->aggregate, data, bytes);
        self->aggregate_bytes = bytes;
    } else {
        struct sparse_list *sum =
            self->merged[0].indices ? &self->merged[0] : &self->resident[self->levels - 1];
        const size_t head = sizeof self->longest;
        memcpy(&self->longest, data, head);
        sum->count = sparse_count(data + head, bytes - head, combiner->elems);
        sparse_read(data + head, bytes - head, combiner->elems, sum->indices, sum->values);
        self->sum = sum;
        write_aggregate(self, choose(self, sum));
    }
    *bytes_out = self->aggregate_bytes;
}

/* ---- life ---- */

static bool list_create(struct weft_env *env, struct sparse_list *list, uint64_t capacity)
{
    list->indices = weft_alloc_array(env, capacity, sizeof *list->indices);
    list->values = weft_alloc_array(env, capacity, sizeof *list->values);
    return list->indices && list->values;
}

static void list_free(struct weft_env *env, struct sparse_list *list)
{
    weft_free_bytes(env, list->indices);
    weft_free_bytes(env, list->values);
}

static void union_free(struct weft_combiner *combiner)
{
    struct union_combiner *self = (struct union_combiner *)combiner;
    for (uint32_t level = 0; level < LEVELS_MAX; level++) {
        list_free(combiner->env, &self->resident[level]);
        list_free(combiner->env, &self->carry[level]);
    }
    list_free(combiner->env, &self->merged[0]);
    list_free(combiner->env, &self->merged[1]);
    list_free(combiner->env, &self->chosen);
    weft_free_bytes(combiner->env, self->residual);
    weft_free_bytes(combiner->env, self->scratch);
    weft_free_bytes(combiner->env, self->aggregate);
    weft_free_bytes(combiner->env, self);
}

static const struct combiner_ops union_ops = {
    .begin = begin,
    .add = add,
    .close = union_close,
    .finish = finish,
    .residual = residual,
    .step_bytes_max = step_bytes_max,
    .step_save = step_save,
    .step_check = step_check,
    .step_load = step_load,
    .free = union_free,
};

struct weft_combiner *union_combiner_open(struct weft_env *env, uint64_t elems, uint64_t k_least,
                                          uint64_t k_most, uint32_t ranks)
{
    struct union_combiner *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base =
        (struct weft_combiner){.ops = &union_ops, .env = env, .elems = elems, .ranks = ranks, .rounds = 1};
    self->k = k_most;
    self->k_least = k_least;
    bool enough = true;
    for (; self->levels < LEVELS_MAX && ranks >> self->levels != 0; self->levels++) {
        const uint64_t capacity = capacity_of(elems, self->k, (uint64_t)1 << self->levels);
        enough = enough && list_create(env, &self->resident[self->levels], capacity)
            && list_create(env, &self->carry[self->levels], capacity);
    }
    if ((ranks & (ranks - 1)) != 0) {
        const uint64_t capacity = capacity_of(elems, self->k, ranks);
        enough = enough && list_create(env, &self->merged[0], capacity) &&
                 list_create(env, &self->merged[1], capacity);
    }
    const size_t sparse = sum_bytes_max(elems, self->k, ranks), dense = sparse_dense_bytes(elems);
    /* written before it is known which is shorter */
    self->aggregate = weft_alloc_bytes(env, sparse > dense ? sparse : dense);
    if (enough && self->aggregate) return &self->base;
    union_free(&self->base);
    return NULL;
}

struct weft_combiner *union_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                            const struct weft_shape *shape, uint32_t ranks)
{
    const uint64_t elems = weft_shape_elems(shape);
    struct weft_combiner *combiner =
        union_combiner_open(env, elems, topk_count(spec, elems), topk_count_max(spec, elems), ranks);
    struct union_combiner *self = (struct union_combiner *)combiner;
    if (!combiner || !spec->global) return combiner;
    self->residual = weft_alloc_zero(env, elems * sizeof *self->residual);
    self->scratch = weft_alloc_array(env, elems, sizeof *self->scratch);
    if (list_create(env, &self->chosen, self->k) && self->residual && self->scratch) return combiner;
    union_free(combiner);
    return NULL;
}
