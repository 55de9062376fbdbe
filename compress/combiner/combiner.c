/* combiner.c - entry points of a combiner: validates rounds and rank order, then calls the ops.
 *
 * A combiner gets contributions in rank order and gives the same bytes for the same contributions: at a
 * shard, in the owner of an all-reduce slice, or on each rank after an all-gather. tree_combiner.c sums
 * vectors by T, union_combiner.c sparse lists by T for each index, integer_combiner.c exponents and codes,
 * exact in any order. */
#include "compress/codec.h"

enum weft_status weft_combiner_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                      const struct weft_shape *shape, uint32_t ranks,
                                      struct weft_combiner **combiner_out)
{
    const uint64_t elems = weft_shape_elems(shape);
    struct weft_combiner *combiner;
    if (elems == 0 || elems > SIZE_MAX / 16 || ranks == 0) return WEFT_ERR_INVALID;
    if (weft_codec_resolve(resolved, shape).id != resolved->id) return WEFT_ERR_INVALID;
    switch (resolved->id) {
    case WEFT_CODEC_TOPK: combiner = union_combiner_create(env, resolved, shape, ranks); break;
    case WEFT_CODEC_INT8:
    case WEFT_CODEC_INT4:
        if (ranks > INT32_MAX / 127) return WEFT_ERR_INVALID; /* sums are kept in 32 bits */
        combiner = integer_combiner_create(env, resolved, shape, ranks);
        break;
    default: combiner = tree_combiner_create(env, resolved, shape, ranks); break;
    }
    if (!combiner) return WEFT_ERR_NO_MEMORY;
    combiner->env = env;
    combiner->spec = *resolved;
    combiner->shape = *shape;
    combiner->elems = (size_t)elems;
    combiner->ranks = ranks;
    combiner->rounds = weft_codec_rounds(resolved);
    *combiner_out = combiner;
    return WEFT_OK;
}

void weft_combiner_free(struct weft_combiner *combiner)
{
    if (combiner) combiner->ops->free(combiner);
}

void weft_combiner_begin(struct weft_combiner *combiner, uint32_t round)
{
    WEFT_ASSERT(round < combiner->rounds);
    combiner->round = round;
    combiner->added = 0;
    combiner->open = true;
    if (combiner->closed_count > round) combiner->closed_count = round;
    combiner->ops->begin(combiner);
}

enum weft_status weft_combiner_add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    if (!combiner->open || combiner->added == combiner->ranks) return WEFT_ERR_STATE;
    WEFT_TRY(combiner->ops->add(combiner, data, bytes));
    combiner->added++;
    return WEFT_OK;
}

enum weft_status weft_combiner_close(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out)
{
    if (!combiner->open || combiner->added != combiner->ranks) return WEFT_ERR_STATE;
    combiner->ops->close(combiner, data_out, bytes_out);
    combiner->open = false;
    if (combiner->closed_count == combiner->round) combiner->closed_count++;
    return WEFT_OK;
}

enum weft_status weft_combiner_finish(struct weft_combiner *combiner, float scale, float *out)
{
    if (combiner->open || combiner->closed_count != combiner->rounds) return WEFT_ERR_STATE;
    combiner->ops->finish(combiner, scale, out);
    return WEFT_OK;
}

/* ---- a second combiner that follows ---- */

static bool has_closed_step(const struct weft_combiner *combiner)
{
    return !combiner->open && combiner->closed_count == combiner->rounds;
}

size_t weft_combiner_step_bytes_max(const struct weft_combiner *combiner, uint32_t ranks)
{
    return combiner->ops->step_bytes_max(combiner, ranks);
}

size_t weft_combiner_step_save(const struct weft_combiner *combiner, void *out)
{
    WEFT_ASSERT(has_closed_step(combiner));
    return combiner->ops->step_save(combiner, out);
}

enum weft_status weft_combiner_step_check(const struct weft_combiner *combiner, const void *data,
                                          size_t bytes)
{
    return combiner->ops->step_check(combiner, data, bytes);
}

void weft_combiner_step_load(struct weft_combiner *combiner, const void *data, size_t bytes,
                             const void **aggregate_out, size_t *aggregate_bytes_out)
{
    combiner->open = false;
    combiner->ops->step_load(combiner, data, bytes, aggregate_out, aggregate_bytes_out);
    combiner->round = combiner->rounds - 1;
    combiner->closed_count = combiner->rounds;
}
