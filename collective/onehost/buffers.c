/* buffers.c - where the buffers of an operation are: extents that peers access, offsets in mapped memory,
 * bytes moved. */
#include "collective/onehost/onehost.h"

static uint64_t pieces_of_all(const uint64_t *cuts, uint64_t count, uint32_t ranks)
{
    return cuts ? cuts[ranks] : count * ranks;
}

static bool has_own_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
}

uint64_t onehost_vector_elems(const struct weft_coll *coll)
{
    return has_own_pieces(coll->args.kind)
               ? pieces_of_all(coll->steps.cursor.args.displs_in, coll->args.count, coll->group->ranks)
               : coll->args.count;
}

/* Elements of a rank's buffers that peers load from and store to. */
static struct touched {
    uint64_t in, out;
} touched_of(const struct weft_coll *coll, uint32_t rank)
{
    const struct weft_coll_args *args = &coll->args;
    /* if ranks do not know all lengths: valid for this rank's own buffers only */
    const struct weft_plan_args *plan = &coll->steps.cursor.args;
    uint64_t count = args->count, in = pieces_of_all(plan->displs_in, count, coll->group->ranks),
             out = pieces_of_all(plan->displs_out, count, coll->group->ranks);
    bool root = rank == args->root;
    switch (args->kind) {
    case WEFT_COLL_REDUCE_SCATTER: return (struct touched){in, 0};
    case WEFT_COLL_ALL_GATHER: return (struct touched){0, out};
    case WEFT_COLL_BROADCAST: return (struct touched){0, count};
    case WEFT_COLL_REDUCE: return (struct touched){count, root ? count : 0};
    case WEFT_COLL_GATHER: return (struct touched){root ? 0 : count, root ? out : 0};
    case WEFT_COLL_SCATTER: return (struct touched){root ? in : 0, root ? 0 : count};
    case WEFT_COLL_ALL_TO_ALL: return (struct touched){in, out};
    default: return (struct touched){count, count};
    }
}

static bool find(const void *memory, uint64_t elems, size_t elem_bytes, uint64_t *offset_out)
{
    return elems == 0 || weft_memory_locate(memory, elems * elem_bytes, offset_out);
}

void onehost_buffers_locate(const struct onehost *onehost, struct weft_coll *coll)
{
    struct touched elems = touched_of(coll, onehost->group->rank);
    coll->onehost.in_offset = coll->onehost.out_offset = 0;
    coll->onehost.uses_cma =
        !find(coll->args.in, elems.in, coll->data.elem_bytes, &coll->onehost.in_offset) ||
        !find(coll->args.out, elems.out, coll->data.elem_bytes, &coll->onehost.out_offset);
    coll->onehost.prefers_direct = !coll->onehost.uses_cma && !onehost_is_personalized(coll->args.kind);
    if (!coll->onehost.uses_cma) return;
    coll->onehost.in_offset = (uintptr_t)coll->args.in;
    coll->onehost.out_offset = (uintptr_t)coll->args.out;
}

bool onehost_buffers_resolve(const struct onehost *onehost, const struct weft_coll *coll, uint32_t rank,
                             const struct onehost_descriptor *descriptor, struct onehost_buffers *buffers)
{
    const struct weft_mapping *mapping = &onehost->peers[rank].memory->mapping;
    uint64_t in = descriptor->in, out = descriptor->out;
    if (!onehost_is_personalized(coll->args.kind)) { /* onehost_pieces_check has checked those */
        struct touched elems = touched_of(coll, rank);
        bool holds_in = elems.in == 0 || onehost_peer_memory_contains(onehost->peers[rank].memory, in,
                                                                      elems.in * coll->data.elem_bytes);
        bool holds_out = elems.out == 0 || onehost_peer_memory_contains(onehost->peers[rank].memory, out,
                                                                        elems.out * coll->data.elem_bytes);
        if (!holds_in || !holds_out) return false;
    }
    buffers->in = mapping->base + in;
    buffers->out = mapping->base + out;
    return true;
}

/* Pieces for other ranks. */
static uint64_t moved_pieces(const struct weft_coll *coll)
{
    uint64_t elems = 0;
    for (uint32_t r = 0; r < coll->group->ranks; r++)
        if (r != coll->group->rank) elems += onehost_piece_sent(coll, r).count;
    return elems * coll->data.elem_bytes;
}

uint64_t onehost_moved_bytes(const struct weft_coll *coll)
{
    const struct weft_coll_args *args = &coll->args;
    uint64_t bytes = args->count * coll->data.elem_bytes, others = coll->group->ranks - 1;
    if (coll->onehost.is_copyin) return onehost_copyin_moved_bytes(coll->group, args);
    if (onehost_is_personalized(args->kind)) return moved_pieces(coll);
    switch (args->kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * (bytes / coll->group->ranks) * others;
    case WEFT_COLL_REDUCE:
        return (args->root == coll->group->rank ? 1 : 2) * (bytes / coll->group->ranks) * others;
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER:
        return onehost_piece_of(coll, coll->group->rank).count * coll->data.elem_bytes * others;
    default: return bytes / coll->group->ranks * others;
    }
}
