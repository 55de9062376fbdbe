/* op_args.c - validates the arguments of a call, as far as one rank can.
 *
 * The client applies these rules on the caller's thread, the group when an operation is posted. Which
 * arguments a kind has is in kind_info.c. No buffer is read. */
#include "collective/core/op_args.h"

#include <math.h>

#define BUFFER_BYTES_MAX (1ull << 56) /* above the address space of a process */

static uint64_t total_of(const uint64_t *counts, uint64_t count, uint32_t ranks)
{
    if (!counts) return count * ranks;
    uint64_t total = 0;
    for (uint32_t r = 0; r < ranks; r++) total += counts[r];
    return total;
}

static uint64_t elems_of(enum coll_extent extent, const struct weft_coll_caller *caller,
                         const struct weft_coll_args *args)
{
    switch (extent) {
    case COLL_EXTENT_NONE: return 0;
    case COLL_EXTENT_COUNT: return args->count;
    case COLL_EXTENT_PIECE: return args->counts ? args->counts[caller->rank] : args->count;
    case COLL_EXTENT_PIECES: return total_of(args->counts, args->count, caller->ranks);
    case COLL_EXTENT_OUT_PIECES: return total_of(args->counts_out, args->count, caller->ranks);
    case COLL_EXTENT_BYTES_MAX: return args->piece_bytes_max;
    }
    return 0;
}

struct coll_elem_counts coll_elem_counts_of(const struct weft_coll_caller *caller,
                                            const struct weft_coll_args *args)
{
    const struct coll_kind_info *kind = coll_kind_info_of(args->kind);
    const bool root = kind->has_root && args->root == caller->rank;
    return (struct coll_elem_counts){elems_of(root ? kind->root_in : kind->in, caller, args),
                                     elems_of(root ? kind->root_out : kind->out, caller, args)};
}

static enum weft_status check_types(const struct weft_coll_args *args, const char *kind,
                                    struct weft_error *error)
{
    if (coll_kind_info_of(args->kind)->has_dtype && weft_dtype_bytes(args->dtype) == 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: dtype %d is not a valid weft_dtype (WEFT_F32 .. WEFT_F8_E5M2)", kind,
                              (int)args->dtype);
    if (!coll_is_reduction(args->kind)) return WEFT_OK;
    if (weft_op_name(args->op)[0] == '?')
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: op %d is not a valid weft_op (WEFT_SUM .. WEFT_SCALED_SUM)", kind,
                              (int)args->op);
    if (!reduce_supports(args->dtype, args->op))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s: op %s has no dtype %s; %s", kind,
                              weft_op_name(args->op), weft_dtype_name(args->dtype),
                              args->op == WEFT_SCALED_SUM ? "a scaled sum is for floats"
                                                          : "and, or, xor are for integers");
    if (args->op == WEFT_SCALED_SUM && !isfinite(args->factor))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: factor is %g; it must be finite", kind,
                              args->factor);
    return WEFT_OK;
}

static enum weft_status check_root(const struct weft_coll_caller *caller, const struct weft_coll_args *args,
                                   const char *kind, struct weft_error *error)
{
    bool pair = coll_is_sendrecv(args->kind);
    if ((pair || coll_has_root(args->kind)) && args->root >= caller->ranks)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s %u is beyond the %u ranks", kind,
                              pair ? "rank" : "root", args->root, caller->ranks);
    if (pair && args->root == caller->rank)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: rank %u is this rank", kind, args->root);
    return WEFT_OK;
}

static enum weft_status check_count_tables(const struct weft_coll_caller *caller,
                                           const struct weft_coll_args *args, const char *kind,
                                           struct weft_error *error)
{
    const struct coll_kind_info *info = coll_kind_info_of(args->kind);
    const bool exchanges = info->has_counts_out, at_root = info->has_root_counts;
    if (args->counts && !info->has_pieces)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s takes one count, not one for each rank", kind);
    if (args->unequal && !at_root)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: `unequal` is for gather and scatter", kind);
    if (at_root && args->counts && !args->unequal)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: counts without `unequal`, which all ranks set",
                              kind);
    if (at_root && args->unequal && !args->counts && args->root == caller->rank)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: counts is NULL at the root", kind);
    if (exchanges ? !args->counts != !args->counts_out : args->counts_out != NULL)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s", kind,
                              exchanges ? "counts and counts_out go together"
                                        : "counts_out is for all_to_all");
    return WEFT_OK;
}

/* Bounds the counts, so that sums in bytes fit into 64 bits. */
static enum weft_status check_counts(const struct weft_coll_caller *caller, const struct weft_coll_args *args,
                                     const char *kind, struct weft_error *error)
{
    uint64_t elem_bytes = coll_has_byte_pieces(args->kind) ? 1 : weft_dtype_bytes(args->dtype),
             limit = BUFFER_BYTES_MAX / elem_bytes / caller->ranks;
    const uint64_t *tables[] = {args->counts, args->counts_out};
    for (size_t t = 0; t < 2; t++)
        for (uint32_t r = 0; tables[t] && r < caller->ranks; r++)
            if (tables[t][r] > limit)
                return weft_error_set(error, WEFT_ERR_INVALID,
                                      "%s: count %llu of rank %u does not fit into memory", kind,
                                      (unsigned long long)tables[t][r], r);
    if (args->count > limit || args->piece_bytes_max > limit)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: count %llu does not fit into memory", kind,
                              (unsigned long long)args->count);
    return WEFT_OK;
}

static enum weft_status check_buffers(const struct weft_coll_caller *caller,
                                      const struct weft_coll_args *args, const char *kind,
                                      struct weft_error *error)
{
    struct coll_elem_counts counts_of_buffers = coll_elem_counts_of(caller, args);
    bool pieces = coll_has_byte_pieces(args->kind), exchanges = args->kind == WEFT_COLL_EXCHANGE_BYTES;
    if ((counts_of_buffers.out > 0 && !args->out) || (counts_of_buffers.in > 0 && !args->in) ||
        (pieces && !args->piece_bytes_out) || (exchanges && !args->piece_bytes_in))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s is NULL", kind,
                              coll_kind_info_of(args->kind)->has_one_buffer ? "the buffer"
                              : counts_of_buffers.in > 0 && !args->in ? "buffer `in`"
                                                                      : "buffer `out`");
    if (pieces && args->count > args->piece_bytes_max)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: this rank's piece has %llu bytes, at most %llu were agreed", kind,
                              (unsigned long long)args->count, (unsigned long long)args->piece_bytes_max);
    return WEFT_OK;
}

static uint64_t elems_before(const struct weft_coll_caller *caller, const struct weft_coll_args *args)
{
    return args->counts ? total_of(args->counts, 0, caller->rank) : args->count * caller->rank;
}

struct coll_buffer_layout coll_buffer_layout_of(const struct weft_coll_caller *caller,
                                                const struct weft_coll_args *args)
{
    const struct coll_elem_counts counts_of_buffers = coll_elem_counts_of(caller, args);
    const uint64_t elem_bytes = weft_dtype_bytes(args->dtype);
    struct coll_buffer_layout layout = {.in_bytes = counts_of_buffers.in * elem_bytes,
                                        .out_bytes = counts_of_buffers.out * elem_bytes};
    if (layout.in_bytes == 0 || layout.out_bytes == 0 || coll_has_byte_pieces(args->kind))
        return (struct coll_buffer_layout){0, 0, 0};
    switch (coll_kind_info_of(args->kind)->in_place) {
    case COLL_IN_PLACE_SAME: break;
    case COLL_IN_PLACE_IN_IS_PIECE: layout.in_place = elems_before(caller, args) * elem_bytes; break;
    case COLL_IN_PLACE_OUT_IS_PIECE: layout.in_place = -(elems_before(caller, args) * elem_bytes); break;
    }
    return layout;
}

static enum weft_status check_overlap(const struct weft_coll_caller *caller,
                                      const struct weft_coll_args *args, const char *kind,
                                      struct weft_error *error)
{
    const struct coll_buffer_layout layout = coll_buffer_layout_of(caller, args);
    if (caller->skips_buffer_checks || coll_buffers_are_valid(&layout, args->in, args->out)) return WEFT_OK;
    static const char *const in_place[] = {
        [COLL_IN_PLACE_SAME] = "in == out",
        [COLL_IN_PLACE_IN_IS_PIECE] = "`in` is this rank's piece of `out`",
        [COLL_IN_PLACE_OUT_IS_PIECE] = "`out` is this rank's piece of `in`"};
    const long long apart = (long long)((uint64_t)(uintptr_t)args->out - (uint64_t)(uintptr_t)args->in);
    return weft_error_set(error, WEFT_ERR_INVALID,
                          "%s: `in` of %llu bytes and `out` of %llu, %lld bytes behind it, overlap; let them "
                          "lie apart, or in place: %s",
                          kind, (unsigned long long)layout.in_bytes, (unsigned long long)layout.out_bytes,
                          apart, in_place[coll_kind_info_of(args->kind)->in_place]);
}

/* The forced plan, if there is one. */
static enum weft_status check_plan(const struct weft_coll_caller *caller, const struct weft_coll_args *args,
                                   const char *kind, struct weft_error *error)
{
    if (args->plan == WEFT_PLAN_AUTO) return WEFT_OK;
    const char *plan = weft_plan_name(args->plan);
    if (!weft_plan_supports(args->plan, args->kind))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "plan %s has no %s", plan, kind);
    if (args->kind == WEFT_COLL_BARRIER) return WEFT_OK;
    if (args->plan == WEFT_PLAN_HIERARCHY && !caller->hosts)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "%s: plan hierarchy needs to know which ranks share a host", kind);
    if (args->reproducible && coll_is_reduction(args->kind) &&
        !weft_plan_reproducible(args->plan, caller->hosts))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: plan %s is not reproducible; leave the plan to weft or take direct", kind,
                              plan);
    if ((args->counts || args->unequal) && !weft_plan_supports_unequal(args->plan, args->kind))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s: plan %s has no unequal pieces", kind, plan);
    return WEFT_OK;
}

enum weft_status weft_coll_check(const struct weft_coll_caller *caller, const struct weft_coll_args *args,
                                 struct weft_error *error)
{
    const char *kind = weft_coll_kind_name(args->kind);
    if (kind[0] == '?')
        return weft_error_set(error, WEFT_ERR_INVALID, "collective kind %d does not exist", (int)args->kind);
    WEFT_TRY(check_plan(caller, args, kind, error));
    if (args->kind == WEFT_COLL_BARRIER) return WEFT_OK;
    WEFT_TRY(check_types(args, kind, error));
    WEFT_TRY(check_root(caller, args, kind, error));
    WEFT_TRY(check_count_tables(caller, args, kind, error));
    WEFT_TRY(check_counts(caller, args, kind, error));
    WEFT_TRY(check_buffers(caller, args, kind, error));
    return check_overlap(caller, args, kind, error);
}
