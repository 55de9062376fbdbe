/* hierarchy.c - all_reduce and broadcast in two levels: inside each host, and between hosts on all lanes at
 * once.
 *
 * The vector is cut into as many lanes as the largest host has ranks. In each host, lane l belongs to the
 * rank at place l modulo the number of its ranks. So every rank owns lanes, in a smaller host several, and
 * each host moves the same bytes over its links. Lanes have equal lengths, or lengths in proportion to
 * measured links.
 *
 *     contribute (C)  to the lane's owner in the own host (broadcast: from the root to the owners)
 *     fold       (F)  T over the ranks of the host
 *     across     (X)  over hosts: halving; doubling for short chunks or two hosts (broadcast: binomial)
 *     result     (R)  from the owner of the lane to the other ranks of its host
 *
 *     C0 | C1 F0 X0 R0 | C2 F1 X1 R1 | ... | F(k-1) X(k-1) R(k-1)         k chunks of each lane
 *
 * X runs the steps of another plan with hosts as ranks: its input is the result of the fold in scratch, and
 * it sends partials.
 *
 * Order: T over hosts of T over the ranks of each, hosts in the order of their first ranks. That equals T if
 * hosts are subtrees of T (one power of two of consecutive ranks each, the last may have fewer). Partials
 * between hosts are f32 for narrower floats.
 * No deadlock: messages ordered by (stage as above; in C and R by distance in the host; in X by lane and by
 * the order of the plan across); all ranks walk this order.
 * Per rank with g ranks on a host: 2(g-1) messages of a chunk in the host, and those of X. Scratch: for each
 * own lane two chunks and the scratch of X; folds of g contributions. */
#include "collective/plan/algorithm.h"

#define SHORT_ELEMS 4096u /* up to this length X takes one message time a round */
#define MESSAGES 256u     /* message numbers of one lane and chunk */
enum { MESSAGE_CONTRIBUTE = 1, MESSAGE_RESULT = 2, MESSAGE_ACROSS = 3 };

struct layout {
    const struct weft_plan_hosts *hosts;
    uint32_t host, place, size; /* host of this rank, its index there, ranks of the host */
    uint32_t lanes, mine;       /* all lanes; the most that a rank of this host owns */
    bool sums;
    struct weft_plan_args cut;    /* the vector cut into lanes, as slices of so many ranks */
    struct weft_plan_args across; /* arguments of X, for the longest chunk */
    uint64_t chunks;
    uint64_t contribute, fold, steps_across, result, group; /* in steps; steps_across of one lane */
    uint64_t part_max, across_scratch;
};

static struct weft_plan_args across_of(const struct weft_plan_args *args, const struct layout *layout,
                                       uint64_t longest)
{
    uint32_t hosts = layout->hosts->count;
    bool shorts = hosts == 2 || longest <= SHORT_ELEMS;
    return (struct weft_plan_args){.plan = !layout->sums ? WEFT_PLAN_DIRECT
                                           : shorts      ? WEFT_PLAN_DOUBLING
                                                         : WEFT_PLAN_HALVING,
                                   .kind = args->kind,
                                   .rank = layout->host,
                                   .ranks = hosts,
                                   .root = layout->sums ? 0 : layout->hosts->host[args->root],
                                   .count = longest,
                                   .chunk_elems = args->chunk_elems,
                                   .lanes = 1};
}

static void measure_across(struct layout *layout)
{
    const struct weft_plan_args *across = &layout->across;
    if (!layout->sums) {
        layout->steps_across = plan_broadcast_steps(across);
    } else if (across->ranks == 1) {
        layout->steps_across = 1;
    } else if (across->plan == WEFT_PLAN_DOUBLING) {
        layout->steps_across = plan_doubling_steps(across);
        layout->across_scratch = plan_doubling_scratch(across);
    } else {
        layout->steps_across = plan_halving_steps(across);
        layout->across_scratch = plan_halving_scratch(across);
    }
}

static struct layout layout_of(const struct weft_plan_args *args)
{
    const struct weft_plan_hosts *hosts = args->hosts;
    struct layout layout = {.hosts = hosts,
                            .host = hosts->host[args->rank],
                            .place = hosts->place[args->rank],
                            .lanes = hosts->lanes,
                            .cut = *args};
    layout.size = hosts->first[layout.host + 1] - hosts->first[layout.host];
    layout.mine = (layout.lanes + layout.size - 1) / layout.size;
    layout.sums = args->kind == WEFT_COLL_ALL_REDUCE;
    layout.cut.kind = WEFT_COLL_ALL_REDUCE;
    layout.cut.ranks = layout.lanes;
    layout.cut.slice_weights = hosts->lane_weights;
    layout.chunks = plan_slice_chunks(&layout.cut);
    layout.part_max = plan_chunk_elems_padded(&layout.cut);
    layout.across = across_of(args, &layout, plan_chunk_elems_max(&layout.cut));
    measure_across(&layout);
    layout.contribute = layout.result = 2ull * (layout.size - 1) * layout.mine;
    layout.fold = layout.sums ? layout.mine : 0;
    layout.group = layout.contribute + layout.fold + layout.mine * layout.steps_across + layout.result;
    return layout;
}

static uint64_t contribute_at(const struct layout *layout, uint64_t chunk)
{
    return chunk == 0 ? 0 : layout->contribute + (chunk - 1) * layout->group;
}
static uint64_t fold_at(const struct layout *layout, uint64_t chunk)
{
    return layout->contribute + chunk * layout->group + (chunk + 1 < layout->chunks ? layout->contribute : 0);
}
static uint64_t across_at(const struct layout *layout, uint64_t chunk, uint64_t mine)
{
    return fold_at(layout, chunk) + layout->fold + mine * layout->steps_across;
}

/* The step at `index` waits for all steps before `at`. */
static void wait_for_steps_before(struct weft_action *action, uint64_t index, uint64_t at)
{
    if (at > 0) plan_wait_after(action, index + 1 - at);
}
/* Every second chunk uses the same scratch and folds. */
static void wait_for_chunk(const struct layout *layout, struct weft_action *action, uint64_t index,
                           uint64_t chunk)
{
    if (chunk >= 2) wait_for_steps_before(action, index, layout->contribute + (chunk - 1) * layout->group);
}

static uint32_t member(const struct layout *layout, uint32_t host, uint32_t place)
{
    return layout->hosts->members[layout->hosts->first[host] + place];
}

/* The owner of a lane in a host. */
static uint32_t owner(const struct layout *layout, uint32_t host, uint64_t lane)
{
    return member(layout, host,
                  (uint32_t)(lane % (layout->hosts->first[host + 1] - layout->hosts->first[host])));
}

/* Sets the position and the length of a chunk of a lane. false: it has no elements. */
static bool cover(const struct layout *layout, uint64_t lane, uint64_t chunk, uint32_t message,
                  struct weft_action *action)
{
    if (lane >= layout->lanes) return false;
    struct plan_range part = plan_chunk_range(&layout->cut, (uint32_t)lane, chunk);
    action->offset_in = action->offset = weft_plan_slice_first(&layout->cut, (uint32_t)lane) + part.first;
    action->count = part.count;
    action->message = (uint32_t)((chunk * layout->lanes + lane) * MESSAGES + message);
    return part.count > 0;
}

static uint64_t scratch_at(const struct layout *layout, uint64_t chunk, uint64_t mine)
{
    return ((chunk & 1) * layout->mine + mine) * (layout->part_max + layout->across_scratch);
}

/* C and R: at each distance in the host and for each own lane one message sent and one received. */
struct exchange {
    bool sends;
    uint32_t place, peer; /* of the other rank */
    uint64_t mine;
};
static struct exchange exchange_of(const struct layout *layout, uint64_t at)
{
    uint32_t distance = (uint32_t)(at / (2ull * layout->mine)) + 1;
    struct exchange exchange = {.sends = at % 2 == 0, .mine = at % (2ull * layout->mine) / 2};
    exchange.place = (layout->place + (exchange.sends ? distance : layout->size - distance)) % layout->size;
    exchange.peer = member(layout, layout->host, exchange.place);
    return exchange;
}

static void contribute_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                            uint64_t at, struct weft_action *action)
{
    struct exchange exchange = exchange_of(layout, at);
    uint64_t lane = (exchange.sends ? exchange.place : layout->place) + exchange.mine * layout->size;
    if (!cover(layout, lane, chunk, MESSAGE_CONTRIBUTE, action)) return;
    action->peer = exchange.peer;
    action->place = layout->sums ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    if (!layout->sums) {
        if ((exchange.sends ? args->rank : exchange.peer) == args->root)
            action->kind = exchange.sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
        return;
    }
    action->kind = exchange.sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV_FOLD;
    action->area = (uint32_t)((chunk & 1) * layout->mine + exchange.mine);
    if (!exchange.sends && chunk >= 2)
        action->depends = contribute_at(layout, chunk) + at - (fold_at(layout, chunk - 2) + exchange.mine);
}

static void fold_step(const struct layout *layout, uint64_t chunk, uint64_t mine, uint64_t index,
                      struct weft_action *action)
{
    if (!cover(layout, layout->place + mine * layout->size, chunk, 0, action)) return;
    action->kind = layout->size > 1 ? WEFT_ACTION_FOLD : WEFT_ACTION_PACK;
    action->place = layout->size > 1 ? WEFT_PLACE_SCRATCH : WEFT_PLACE_INPUT;
    action->area = (uint32_t)((chunk & 1) * layout->mine + mine);
    action->scratch = scratch_at(layout, chunk, mine);
    wait_for_chunk(layout, action, index, chunk);
}

/* Translates a step of X: ranks for hosts, and the result of the fold as input. */
static void translate(const struct layout *layout, uint64_t lane, uint64_t first, uint64_t value_at,
                      struct weft_action *action)
{
    bool of_input = action->place == WEFT_PLACE_INPUT, adds = action->kind == WEFT_ACTION_RECV_SUM;
    uint64_t scratch = value_at + layout->part_max,
             own = of_input ? value_at + action->offset_in : scratch + action->scratch_own;
    action->peer = owner(layout, action->peer, lane);
    if (of_input) action->place = WEFT_PLACE_SCRATCH;
    action->scratch_own = own;
    action->scratch = of_input && !adds ? own : scratch + action->scratch;
    action->wide = adds || action->place == WEFT_PLACE_SCRATCH;
    action->offset += first;
    action->offset_in = 0;
}

static void across_step(const struct layout *layout, uint64_t chunk, uint64_t mine, uint64_t at,
                        uint64_t index, struct weft_action *action)
{
    struct weft_action where = {0};
    struct weft_plan_args across = layout->across;
    uint64_t lane = layout->place + mine * layout->size, value_at = scratch_at(layout, chunk, mine);
    if (!cover(layout, lane, chunk, MESSAGE_ACROSS, &where)) return;
    across.count = where.count;
    if (layout->sums && across.ranks == 1) {
        *action = where;
        action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_SCRATCH;
        action->scratch = value_at;
        action->last = true;
        wait_for_steps_before(action, index, across_at(layout, chunk, 0));
        return;
    }
    bool any = !layout->sums                       ? plan_broadcast_step(&across, at, action)
               : across.plan == WEFT_PLAN_DOUBLING ? plan_doubling_step(&across, at, action)
                                                   : plan_halving_step(&across, at, action);
    if (!any) return;
    action->message += where.message;
    bool first = layout->sums ? action->place == WEFT_PLACE_INPUT : action->kind == WEFT_ACTION_SEND;
    if (layout->sums) {
        translate(layout, lane, where.offset, value_at, action);
        wait_for_chunk(layout, action, index, chunk);
        uint64_t fold_back = index - (fold_at(layout, chunk) + mine);
        /* It waits for its fold only, so the end of the previous chunk may still run. */
        if (first && action->depends == 0) action->depends = fold_back;
        else if (first) wait_for_steps_before(action, index, fold_at(layout, chunk) + mine + 1);
    } else {
        action->peer = owner(layout, action->peer, lane);
        action->offset += where.offset;
        if (first) wait_for_steps_before(action, index, contribute_at(layout, chunk) + layout->contribute);
    }
}

static void result_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                        uint64_t at, uint64_t index, struct weft_action *action)
{
    struct exchange exchange = exchange_of(layout, at);
    uint64_t lane = (exchange.sends ? layout->place : exchange.place) + exchange.mine * layout->size;
    if (!cover(layout, lane, chunk, MESSAGE_RESULT, action)) return;
    /* the root has all elements */
    if (!layout->sums && (exchange.sends ? exchange.peer : args->rank) == args->root) return;
    action->kind = exchange.sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = WEFT_PLACE_OUTPUT;
    action->peer = exchange.peer;
    if (exchange.sends) wait_for_steps_before(action, index, across_at(layout, chunk, exchange.mine + 1));
}

bool plan_hierarchy_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    uint64_t at = index;
    if (layout.chunks == 0) return false;
    if (at < layout.contribute) {
        contribute_step(args, &layout, 0, at, action);
        return true;
    }
    at -= layout.contribute;
    uint64_t chunk = layout.group > 0 ? at / layout.group : 0;
    if (chunk > layout.chunks - 1) chunk = layout.chunks - 1;
    at -= chunk * layout.group;
    if (chunk + 1 < layout.chunks) {
        if (at < layout.contribute) {
            contribute_step(args, &layout, chunk + 1, at, action);
            return true;
        }
        at -= layout.contribute;
    }
    uint64_t across = layout.mine * layout.steps_across;
    if (at < layout.fold) fold_step(&layout, chunk, at, index, action);
    else if (at -= layout.fold, at < across)
        across_step(&layout, chunk, at / layout.steps_across, at % layout.steps_across, index, action);
    else if (at -= across, at < layout.result) result_step(args, &layout, chunk, at, index, action);
    else return false;
    return true;
}

uint32_t plan_hierarchy_folds(const struct weft_plan_args *args)
{
    struct layout layout = layout_of(args);
    if (!layout.sums || layout.size == 1) return 0;
    return (uint32_t)(layout.chunks > 1 ? 2 : layout.chunks) * layout.mine;
}

uint64_t plan_hierarchy_chunk_elems(const struct weft_plan_args *args) { return layout_of(args).part_max; }

uint64_t plan_hierarchy_scratch(const struct weft_plan_args *args)
{
    struct layout layout = layout_of(args);
    return layout.sums ? (layout.chunks > 1 ? 2 : layout.chunks) * layout.mine *
                             (layout.part_max + layout.across_scratch)
                       : 0;
}
