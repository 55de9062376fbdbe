/* ring.c - each rank sends to the next rank and receives from the previous one; bandwidth-optimal for long
 * vectors.
 *
 *     reduce (S), s = 0 .. ranks-2:  send slice r-s-1 to the next rank, receive slice r-s-2 and add:
 *                                    partial = received + own input; at s = ranks-2 slice r is complete
 *     gather (G), s = 0 .. ranks-2:  send slice r-s, receive slice r-s-1
 *
 * Order of sums: slice k is ((x[k+1] + x[k+2]) + ... + x[k+ranks-1]) + x[k], ranks modulo `ranks`. The bits
 * of an element depend on its slice, so on count and ranks: deterministic, not reproducible. Narrower floats
 * round at every hop, because partials travel in the element type. Means (args.wide) send partials as f32,
 * because the sum may not fit.
 *
 * `lanes` chunks of a slice travel as a group, so `lanes` messages are in flight while a sum is computed. A
 * lane has two scratch chunks that alternate with s: one is sent while the next partial arrives in the other.
 *
 * No deadlock: messages ordered by (group, phase, s, lane). Both ends walk this order, the send of a key
 * before the receive of the same key, and depend on smaller keys only.
 * Per rank: 2(ranks-1) messages of a chunk; 2(ranks-1)/ranks of the vector in bytes each way. If hosts are
 * known, the ring goes host by host (ranks of a host ascending), so each host's link carries one message of a
 * hop. The order of hosts follows measured links: it crosses the fewest slow links.
 * Source: Patarasuk & Yuan, JPDC 2009. */
#include "collective/plan/algorithm.h"

/* The rank `positions` after this one in the ring, or before it. */
static uint32_t ring_rank_after(const struct weft_plan_args *args, uint32_t positions)
{
    return plan_ring_rank(args, plan_ring_position(args) + positions);
}
static uint32_t ring_rank_before(const struct weft_plan_args *args, uint32_t positions)
{
    return plan_ring_rank(args, plan_ring_position(args) + args->ranks - positions % args->ranks);
}

struct layout {
    uint64_t chunks;
    uint64_t lanes; /* chunks of a full group */
    uint64_t hops;  /* ranks - 1 */
    bool copies, reduces, gathers;
};

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {
        .chunks = plan_slice_chunks(args),
        .lanes = args->lanes,
        .hops = args->ranks - 1,
        .copies = args->kind == WEFT_COLL_ALL_GATHER,
        .reduces = args->kind != WEFT_COLL_ALL_GATHER,
        .gathers = args->kind != WEFT_COLL_REDUCE_SCATTER,
    };
    return layout;
}

static uint64_t group_steps(const struct layout *layout, uint64_t lanes)
{
    uint64_t phases = (uint64_t)layout->reduces + layout->gathers;
    return lanes * ((layout->copies ? 1 : 0) + phases * layout->hops * 2);
}

static void reduce_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t group,
                        uint64_t lanes, uint64_t place, uint32_t message, struct weft_action *action)
{
    uint64_t s = place / (2 * lanes), lane = place % (2 * lanes) / 2;
    bool sends = place % 2 == 0;
    uint32_t slice = ring_rank_before(args, (uint32_t)s + (sends ? 1 : 2));
    struct plan_range part = plan_chunk_range(args, slice, group * layout->lanes + lane);
    /* An empty step (short slice) keeps its `depends`, because the chain of users of a scratch chunk
     * includes it. */
    if (sends && s > 0) {
        action->depends = 2 * lanes - 1; /* the sum of hop s-1 of this lane */
    } else if (!sends && s >= 2) {
        action->depends = 2 * lanes + 1; /* the send of hop s-1, which read this scratch chunk */
    } else if (!sends && group > 0) {
        /* The previous group was full. Last user of this scratch chunk: the last sum, or the send of the
         * last hop. */
        uint64_t hop = layout->hops - 1;
        uint64_t user = (hop * layout->lanes + lane) * 2 + ((hop & 1) == (s & 1) ? 1 : 0);
        action->depends = group_steps(layout, layout->lanes) + place - user;
    }
    if (part.count == 0) return;
    action->message = message;
    action->offset_in = plan_slice_in(args, slice) + part.first;
    action->count = part.count;
    if (sends) {
        action->kind = WEFT_ACTION_SEND;
        action->peer = ring_rank_after(args, 1);
        action->place = s == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
        action->wide = args->wide && s > 0;
        action->scratch = (2 * lane + ((s - 1) & 1)) * plan_chunk_elems_padded(args);
        return;
    }
    action->kind = WEFT_ACTION_RECV_SUM;
    action->peer = ring_rank_before(args, 1);
    action->place = WEFT_PLACE_INPUT;
    action->wide = args->wide && s > 0;
    action->scratch = (2 * lane + (s & 1)) * plan_chunk_elems_padded(args);
    action->last = s + 1 == layout->hops;
    if (action->last) action->offset = plan_slice_out(args, args->rank) + part.first;
}

static void gather_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t group,
                        uint64_t lanes, uint64_t place, uint32_t message, struct weft_action *action)
{
    uint64_t s = place / (2 * lanes), lane = place % (2 * lanes) / 2;
    bool sends = place % 2 == 0;
    uint32_t slice = ring_rank_before(args, (uint32_t)s + (sends ? 0 : 1));
    struct plan_range part = plan_chunk_range(args, slice, group * layout->lanes + lane);
    if (part.count == 0) return;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->peer = sends ? ring_rank_after(args, 1) : ring_rank_before(args, 1);
    action->message = message;
    action->place = sends && layout->copies && s == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->offset_in = part.first;
    action->offset = plan_slice_out(args, slice) + part.first;
    action->count = part.count;
    if (sends && (s > 0 || layout->reduces))
        action->depends = 2 * lanes - 1; /* the step that received this chunk */
}

static void copy_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t group,
                      uint64_t lane, struct weft_action *action)
{
    struct plan_range part = plan_chunk_range(args, args->rank, group * layout->lanes + lane);
    if (part.count == 0) return;
    action->kind = WEFT_ACTION_COPY;
    action->place = WEFT_PLACE_INPUT;
    action->offset_in = part.first;
    action->offset = plan_slice_out(args, args->rank) + part.first;
    action->count = part.count;
}

bool plan_ring_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    if (layout.chunks == 0) return false;
    uint64_t group = index / group_steps(&layout, layout.lanes);
    uint64_t last_group = (layout.chunks - 1) / layout.lanes;
    if (group > last_group) return false;
    uint64_t lanes = group == last_group ? layout.chunks - last_group * layout.lanes : layout.lanes;
    uint64_t place = index - group * group_steps(&layout, layout.lanes);
    if (place >= group_steps(&layout, lanes)) return false;
    uint32_t message =
        /* the two ends of a message have step numbers that differ in the lowest bit only */
        (uint32_t)(index / 2 + 1);

    if (layout.copies) {
        if (place < lanes) {
            copy_step(args, &layout, group, place, action);
            return true;
        }
        place -= lanes;
        message = (uint32_t)(group * layout.hops * layout.lanes + place / 2 + 1);
    }
    uint64_t phase_steps = layout.hops * lanes * 2;
    if (layout.reduces) {
        if (place < phase_steps) {
            reduce_step(args, &layout, group, lanes, place, message, action);
            return true;
        }
        place -= phase_steps;
    }
    gather_step(args, &layout, group, lanes, place, message, action);
    return true;
}

uint64_t plan_ring_scratch(const struct weft_plan_args *args)
{
    if (args->kind == WEFT_COLL_ALL_GATHER) return 0;
    uint64_t chunks = plan_slice_chunks(args);
    return 2 * (chunks < args->lanes ? chunks : args->lanes) * plan_chunk_elems_padded(args);
}
