/* op_args.h - checks of the arguments of a call. */
#ifndef WEFT_COLLECTIVE_CORE_OP_ARGS_H
#define WEFT_COLLECTIVE_CORE_OP_ARGS_H

#include "collective/core/group.h"

/* Permitted layouts of the two buffers of a call: disjoint or in place. In bytes; all 0 if the call has
 * one buffer. */
struct coll_buffer_layout {
    uint64_t in_bytes, out_bytes, in_place; /* in_place: offset of `in` from `out`, modulo 2^64 */
};
struct coll_buffer_layout coll_buffer_layout_of(const struct weft_coll_caller *caller,
                                                const struct weft_coll_args *args);
static inline bool coll_buffers_are_valid(const struct coll_buffer_layout *layout, const void *in,
                                          const void *out)
{
    const uint64_t behind = (uint64_t)(uintptr_t)in - (uint64_t)(uintptr_t)out;
    return behind == layout->in_place || (behind >= layout->out_bytes && -behind >= layout->in_bytes);
}
static inline struct weft_coll_caller coll_caller(const struct weft_group *group)
{
    return (struct weft_coll_caller){.rank = group->rank,
                                     .ranks = group->ranks,
                                     .hosts = group->planning.hosts,
                                     .skips_buffer_checks = group->modes.timing_only};
}
static inline enum weft_status coll_check(const struct weft_group *group, const struct weft_coll_args *args,
                                          struct weft_error *error)
{
    const struct weft_coll_caller caller = coll_caller(group);
    return weft_coll_check(&caller, args, error);
}

#endif
