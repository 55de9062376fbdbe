/* check.c - validates the arguments of a call, as far as one rank can.
 *
 * The client applies the rules on the caller's thread, before anything is sent. The group applies the same
 * rules when an operation is posted. No buffer is read. */
#include "collective/internal.h"

#include <math.h>

#define BUFFER_BYTES_MAX (1ull << 56) /* above the address space of a process */

static bool is_at_root(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER;
}
static bool one_buffer(enum weft_coll_kind kind)
{
    return coll_pairwise(kind) || kind == WEFT_COLL_BROADCAST;
}
static bool cuts_allowed(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER || is_at_root(kind) ||
           kind == WEFT_COLL_ALL_TO_ALL;
}

static uint64_t total_of(const uint64_t *counts, uint64_t count, uint32_t ranks)
{
    if (!counts) return count * ranks;
    uint64_t total = 0;
    for (uint32_t r = 0; r < ranks; r++) total += counts[r];
    return total;
}

struct coll_lengths coll_lengths_of(const struct weft_coll_place *place, const struct weft_coll_args *args)
{
    uint64_t count = args->count, whole = total_of(args->counts, count, place->ranks);
    bool root = args->root == place->rank;
    uint64_t piece = args->counts ? args->counts[place->rank] : count;
    switch (args->kind) {
    case WEFT_COLL_ALL_REDUCE: return (struct coll_lengths){count, count};
    case WEFT_COLL_REDUCE_SCATTER: return (struct coll_lengths){whole, piece};
    case WEFT_COLL_ALL_GATHER: return (struct coll_lengths){piece, whole};
    case WEFT_COLL_BROADCAST: return (struct coll_lengths){0, count};
    case WEFT_COLL_BARRIER: return (struct coll_lengths){0, 0};
    case WEFT_COLL_ALL_GATHER_BYTES: return (struct coll_lengths){count, args->piece_bytes_max};
    case WEFT_COLL_REDUCE: return (struct coll_lengths){count, root ? count : 0};
    case WEFT_COLL_GATHER: return (struct coll_lengths){root ? piece : count, root ? whole : 0};
    case WEFT_COLL_SCATTER: return (struct coll_lengths){root ? whole : 0, root ? piece : count};
    case WEFT_COLL_ALL_TO_ALL:
        return (struct coll_lengths){whole, total_of(args->counts_out, count, place->ranks)};
    case WEFT_COLL_SEND: return (struct coll_lengths){count, 0};
    case WEFT_COLL_RECV: return (struct coll_lengths){0, count};
    case WEFT_COLL_EXCHANGE_BYTES: return (struct coll_lengths){args->piece_bytes_max, args->piece_bytes_max};
    }
    return (struct coll_lengths){0, 0};
}

static enum weft_status check_types(const struct weft_coll_args *args, const char *kind,
                                    struct weft_error *error)
{
    if (!coll_of_pieces(args->kind) && weft_dtype_bytes(args->dtype) == 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: dtype %d is not a valid weft_dtype (WEFT_F32 .. WEFT_F8_E5M2)", kind,
                              (int)args->dtype);
    if (!coll_sums(args->kind)) return WEFT_OK;
    if (weft_op_name(args->op)[0] == '?')
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: op %d is not a valid weft_op (WEFT_SUM .. WEFT_SCALED_SUM)", kind,
                              (int)args->op);
    if (!sum_allows(args->dtype, args->op))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s: op %s has no dtype %s; %s", kind,
                              weft_op_name(args->op), weft_dtype_name(args->dtype),
                              args->op == WEFT_SCALED_SUM ? "a scaled sum is for floats"
                                                          : "and, or, xor are for integers");
    if (args->op == WEFT_SCALED_SUM && !isfinite(args->factor))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: factor is %g; it must be finite", kind,
                              args->factor);
    return WEFT_OK;
}

static enum weft_status check_root(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                   const char *kind, struct weft_error *error)
{
    bool pair = coll_pairwise(args->kind);
    if ((pair || coll_rooted(args->kind)) && args->root >= place->ranks)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s %u is beyond the %u ranks", kind,
                              pair ? "rank" : "root", args->root, place->ranks);
    if (pair && args->root == place->rank)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: rank %u is this rank", kind, args->root);
    return WEFT_OK;
}

static enum weft_status check_tables(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                     const char *kind, struct weft_error *error)
{
    bool exchanges = args->kind == WEFT_COLL_ALL_TO_ALL, at_root = is_at_root(args->kind);
    if (args->counts && !cuts_allowed(args->kind))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s takes one count, not one for each rank", kind);
    if (args->unequal && !at_root)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: `unequal` is for gather and scatter", kind);
    if (at_root && args->counts && !args->unequal)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: counts without `unequal`, which all ranks set",
                              kind);
    if (at_root && args->unequal && !args->counts && args->root == place->rank)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: counts is NULL at the root", kind);
    if (exchanges ? !args->counts != !args->counts_out : args->counts_out != NULL)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s", kind,
                              exchanges ? "counts and counts_out go together"
                                        : "counts_out is for all_to_all");
    return WEFT_OK;
}

/* Bounds the counts, so that lengths and their sums in bytes fit into 64 bits. */
static enum weft_status check_counts(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                     const char *kind, struct weft_error *error)
{
    uint64_t elem_bytes = coll_of_pieces(args->kind) ? 1 : weft_dtype_bytes(args->dtype),
             limit = BUFFER_BYTES_MAX / elem_bytes / place->ranks;
    const uint64_t *tables[] = {args->counts, args->counts_out};
    for (size_t t = 0; t < 2; t++)
        for (uint32_t r = 0; tables[t] && r < place->ranks; r++)
            if (tables[t][r] > limit)
                return weft_error_set(error, WEFT_ERR_INVALID,
                                      "%s: count %llu of rank %u does not fit into memory", kind,
                                      (unsigned long long)tables[t][r], r);
    if (args->count > limit || args->piece_bytes_max > limit)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: count %llu does not fit into memory", kind,
                              (unsigned long long)args->count);
    return WEFT_OK;
}

static enum weft_status check_buffers(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                      const char *kind, struct weft_error *error)
{
    struct coll_lengths lengths = coll_lengths_of(place, args);
    bool pieces = coll_of_pieces(args->kind), exchanges = args->kind == WEFT_COLL_EXCHANGE_BYTES;
    if ((lengths.out > 0 && !args->out) || (lengths.in > 0 && !args->in) ||
        (pieces && !args->piece_bytes_out) || (exchanges && !args->piece_bytes_in))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: %s is NULL", kind,
                              one_buffer(args->kind)        ? "the buffer"
                              : lengths.in > 0 && !args->in ? "buffer `in`"
                                                            : "buffer `out`");
    if (pieces && args->count > args->piece_bytes_max)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: this rank's piece has %llu bytes, at most %llu were agreed", kind,
                              (unsigned long long)args->count, (unsigned long long)args->piece_bytes_max);
    return WEFT_OK;
}

static uint64_t before(const struct weft_coll_place *place, const struct weft_coll_args *args)
{
    return args->counts ? total_of(args->counts, 0, place->rank) : args->count * place->rank;
}

struct coll_places coll_places_of(const struct weft_coll_place *place, const struct weft_coll_args *args)
{
    const struct coll_lengths lengths = coll_lengths_of(place, args);
    const uint64_t elem_bytes = weft_dtype_bytes(args->dtype);
    struct coll_places places = {.in_bytes = lengths.in * elem_bytes, .out_bytes = lengths.out * elem_bytes};
    if (places.in_bytes == 0 || places.out_bytes == 0 || coll_of_pieces(args->kind))
        return (struct coll_places){0, 0, 0};
    if (args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_GATHER)
        places.in_place = before(place, args) * elem_bytes;
    if (args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_SCATTER)
        places.in_place = -(before(place, args) * elem_bytes);
    return places;
}

static enum weft_status check_places(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                     const char *kind, struct weft_error *error)
{
    const struct coll_places places = coll_places_of(place, args);
    if (place->untouched || coll_places_fit(&places, args->in, args->out)) return WEFT_OK;
    const bool gathers = args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_GATHER;
    const bool scatters = args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_SCATTER;
    const long long apart = (long long)((uint64_t)(uintptr_t)args->out - (uint64_t)(uintptr_t)args->in);
    return weft_error_set(error, WEFT_ERR_INVALID,
                          "%s: `in` of %llu bytes and `out` of %llu, %lld bytes behind it, overlap; let them "
                          "lie apart, or in place: %s",
                          kind, (unsigned long long)places.in_bytes, (unsigned long long)places.out_bytes,
                          apart,
                          gathers    ? "`in` is this rank's piece of `out`"
                          : scatters ? "`out` is this rank's piece of `in`"
                                     : "in == out");
}

/* The forced plan, if there is one. */
static enum weft_status check_plan(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                   const char *kind, struct weft_error *error)
{
    if (args->plan == WEFT_PLAN_AUTO) return WEFT_OK;
    const char *plan = weft_plan_name(args->plan);
    if (!weft_plan_supports(args->plan, args->kind))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "plan %s has no %s", plan, kind);
    if (args->kind == WEFT_COLL_BARRIER) return WEFT_OK;
    if (args->plan == WEFT_PLAN_HIERARCHY && !place->hosts)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "%s: plan hierarchy needs to know which ranks share a host", kind);
    if (args->reproducible && coll_sums(args->kind) && !weft_plan_reproducible(args->plan, place->hosts))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s: plan %s is not reproducible; leave the plan to weft or take direct", kind,
                              plan);
    if ((args->counts || args->unequal) && !weft_plan_cuts(args->plan, args->kind))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s: plan %s has no unequal pieces", kind, plan);
    return WEFT_OK;
}

enum weft_status weft_coll_check(const struct weft_coll_place *place, const struct weft_coll_args *args,
                                 struct weft_error *error)
{
    const char *kind = weft_coll_kind_name(args->kind);
    if (kind[0] == '?')
        return weft_error_set(error, WEFT_ERR_INVALID, "collective kind %d does not exist", (int)args->kind);
    WEFT_TRY(check_plan(place, args, kind, error));
    if (args->kind == WEFT_COLL_BARRIER) return WEFT_OK;
    WEFT_TRY(check_types(args, kind, error));
    WEFT_TRY(check_root(place, args, kind, error));
    WEFT_TRY(check_tables(place, args, kind, error));
    WEFT_TRY(check_counts(place, args, kind, error));
    WEFT_TRY(check_buffers(place, args, kind, error));
    return check_places(place, args, kind, error);
}
