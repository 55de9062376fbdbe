/* reduce.h - element arithmetic of one operation: widen, combine, scale, round. Pure. */
#ifndef WEFT_COLLECTIVE_CORE_REDUCE_H
#define WEFT_COLLECTIVE_CORE_REDUCE_H

#include "collective/collective.h"
#include "kernels/kernels.h"

struct reduce_spec {
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t ranks;
    /* divisor of the finished sum: ranks for AVG, set by the caller for SCALED_SUM. 0: no division */
    double total;
    /* factor of each contribution when it is widened. A power of two; 1 except for means of bf16 */
    float prescale;
};
/* The sum of bf16 numbers can exceed f32 although their mean does not. The factor is a power of two at or
 * below 1/ranks. Up to 65,536 ranks all products are exact, also of the smallest bf16, so no bit of a mean
 * with a finite sum changes. */
static inline float reduce_prescale(const struct weft_coll_args *args, uint32_t ranks, double total)
{
    if (args->dtype != WEFT_BF16 || total == 0 || ranks < 2 || ranks > 65536) return 1;
    return 1.0f / (float)(1u << (32 - __builtin_clz(ranks - 1)));
}
static inline struct reduce_spec reduce_spec_of(const struct weft_coll_args *args, uint32_t ranks)
{
    double total = args->op == WEFT_SCALED_SUM ? args->total : args->op == WEFT_AVG && ranks > 1 ? ranks : 0;
    return (struct reduce_spec){args->dtype, args->op, ranks, total, reduce_prescale(args, ranks, total)};
}
/* for all float types but f64 */
static inline float reduce_scale_factor(const struct reduce_spec *sum)
{
    return 1.0f / (float)sum->total / sum->prescale;
}
struct reduce_src {
    const void *data;
    bool wide; /* true: partials; false: elements */
};
struct reduce_dst {
    void *data;
    bool wide, last;
};

bool reduce_is_widened(enum weft_dtype dtype); /* true: partials are f32 */
size_t reduce_partial_bytes(enum weft_dtype dtype);
bool reduce_supports(enum weft_dtype dtype, enum weft_op op);
/* out = left (op) right; scaled if out.last. */
void reduce_pair(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src left,
                 struct reduce_src right, size_t count);
/* out = in, widened or rounded; scaled if out.last. */
void reduce_copy(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src in, size_t count);
void reduce_widen(enum weft_dtype dtype, float *out, const void *in, size_t count);
/* widens the elements and multiplies them by sum->prescale */
void reduce_load(const struct reduce_spec *sum, float *out, const void *in, size_t count);
/* float types; count in elements */
void reduce_scale(enum weft_dtype dtype, double factor, void *out, const void *in, size_t count);

#endif
