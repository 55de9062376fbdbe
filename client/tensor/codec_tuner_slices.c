/* codec_tuner_slices.c - one rank's cost of a round that the ranks combine in slices
 * (compress/split/slice.h).
 *
 * A rank adds one slice of all ranks, 1 / ranks of the elements. It packs its own sum and unpacks the sums of
 * all ranks. */
#include "client/tensor/codec_tuner.h"

struct packing {
    struct weft_env *env;
    const struct weft_slices *slices;
    const uint8_t *aggregate;
    uint8_t *sums, *whole;
    uint64_t *lengths;
};

/* Start of a rank's sum in the aggregate; packed sums have 16-bit elements. */
static const uint8_t *sum_of(const struct packing *packing, uint32_t rank)
{
    return packing->aggregate + rank * packing->slices->slice_elems * sizeof(uint16_t);
}

static void pack_one(const struct packing *packing, uint32_t rank)
{
    uint8_t *out = packing->sums + rank * packing->slices->sum_bytes;
    packing->lengths[rank] = 1; /* no elements */
    if (weft_slices_elems(packing->slices, rank) == 0) return;
    packing->lengths[rank] = weft_slices_pack(packing->slices, rank, sum_of(packing, rank), out);
}

static double timed_ns(const struct packing *packing)
{
    const void *joined;
    size_t bytes;
    uint32_t rank;
    for (rank = 1; rank < packing->slices->ranks; rank++) pack_one(packing, rank);
    const uint64_t began_ns = weft_now_ns(packing->env);
    pack_one(packing, 0);
    const enum weft_status status = weft_slices_join(packing->slices, packing->sums, packing->lengths,
                                                     packing->whole, &joined, &bytes, &rank);
    WEFT_ASSERT(status == WEFT_OK);
    return (double)(weft_now_ns(packing->env) - began_ns);
}

double client_codec_tuner_sliced_ns(struct weft_env *env, const struct weft_slices *slices,
                                    const void *aggregate, size_t aggregate_bytes, double combine_ns)
{
    struct packing packing = {.env = env, .slices = slices, .aggregate = aggregate};
    const double added_ns = combine_ns / slices->ranks;
    double packed_ns = 0;
    if (!weft_slices_need_packing(slices)) return added_ns;
    packing.sums = weft_alloc_bytes(env, slices->ranks * slices->sum_bytes);
    packing.whole = weft_alloc_bytes(env, aggregate_bytes);
    packing.lengths = weft_alloc_array(env, slices->ranks, sizeof *packing.lengths);
    if (packing.sums && packing.whole && packing.lengths) packed_ns = timed_ns(&packing);
    weft_free_bytes(env, packing.sums);
    weft_free_bytes(env, packing.whole);
    weft_free_bytes(env, packing.lengths);
    return added_ns + packed_ns;
}
