/* mode_pair.c - see mode_pair.h. */
#include "mode_pair.h"

#include <string.h>

#include "twin.h"

float mode_pseudo(uint32_t rank, uint32_t step, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)(rank + 1) * 0xbf58476d1ce4e5b9ull ^
                 (uint64_t)(step + 1) * 0x94d049bb133111ebull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (float)((double)(x & 0xffffff) / (double)0x800000 - 1.0) * 0.37f;
}

int mode_pair_declare(struct weft_session *session, const struct mode_plan *plan, struct mode_pair *pair)
{
    pair->elems = plan->dims[0] * (plan->dim_count == 2 ? plan->dims[1] : 1);
    pair->grad = weft_alloc(session, pair->elems * 4);
    for (int mode = 0; mode < 2; mode++) {
        struct weft_tensor_options options;
        char name[64];
        snprintf(name, sizeof name, "%s.%d", plan->name, mode);
        weft_tensor_options_init(&options);
        options.name = name;
        options.dim_count = plan->dim_count;
        options.dims[0] = plan->dims[0];
        options.dims[1] = plan->dims[1];
        options.mode = mode == 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
        options.codec = plan->codec;
        options.optimizer = plan->optimizer;
        options.chunk_bytes = plan->chunk_bytes;
        MUST(session, weft_declare(session, &options, &pair->tensor[mode]));
        if (mode == 0 && plan->chunks != 0 && pair->tensor[mode]->chunk_table.count != plan->chunks) {
            fprintf(stderr, "tensor %s is cut into %u chunks, not %u\n", name,
                    pair->tensor[mode]->chunk_table.count, plan->chunks);
            return 1;
        }
        twin_draws(pair->tensor[mode], pair->tensor[0]);
        pair->out[mode] = weft_alloc(session, pair->elems * 4);
        for (uint64_t i = 0; i < pair->elems; i++)
            pair->out[mode][i] = weft_rank(session) == 0 ? mode_pseudo(7, 0, i) : -1;
        if (strcmp(plan->optimizer, "none") != 0 && strcmp(plan->optimizer, "sum") != 0)
            MUST(session, weft_tensor_init(pair->tensor[mode], pair->out[mode]));
    }
    return 0;
}

bool mode_pair_equal(const struct mode_pair *pair, const char *name, uint32_t rank, uint32_t step)
{
    for (uint64_t i = 0; i < pair->elems; i++) {
        if (memcmp(&pair->out[0][i], &pair->out[1][i], 4) == 0) continue;
        fprintf(stderr, "rank %u step %u tensor %s element %llu: server %.9g, all-reduce %.9g\n", rank, step,
                name, (unsigned long long)i, (double)pair->out[0][i], (double)pair->out[1][i]);
        return false;
    }
    return true;
}
