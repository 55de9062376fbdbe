/* hierarchy_pieces.c - the hierarchy for kinds with pieces: reduce_scatter and all_gather in two levels.
 *
 * Lane l is the pieces of the ranks at place l of each host. In a host it belongs to the rank at place l
 * modulo the number of its ranks. So every rank owns lanes, in a smaller host several, and a byte passes
 * between two hosts once for all ranks of the other host.
 *
 * Stage (c, s): chunk c of the pieces of the host at distance s after (reduce_scatter) or before (all_gather)
 * this host.
 *
 *     reduce_scatter   contribute (C)  to the owner of the lane in the own host
 *                      fold       (F)  T over the ranks of the host
 *                      across     (X)  partials to the rank whose piece it is
 *                      sum        (S)  T over hosts, rounded once
 *         C0 | C1 F0 X0 | C2 F1 X1 | ... with S after the X of the last stage of a chunk
 *
 *     all_gather       across     (X)  the own piece (s = 0: K, its copy) to the lane's owner in the host
 *                      result     (R)  what arrived by X, to the other ranks of the own host
 *         X0 | X1 R0 | X2 R1 | ... | R(last)
 *
 * Transfers inside hosts and between hosts overlap.
 *
 * Order: T over hosts of T over the ranks of each, so the bits equal hierarchy.c, and T if hosts are subtrees
 * of it. Partials between hosts are f32 for narrower floats.
 * No deadlock: messages ordered by (stage as above; in C and R by lane, then distance in the host; in X by
 * the turn of the lane at its owner). Both ends walk this order, the send of a key before the receive of the
 * same key.
 * Per rank with g ranks on a host and N hosts: N-1 messages of a chunk across each way, N(g-1) in the host.
 * Scratch of reduce_scatter: two chunks of N partials and 2L/g outgoing ones (L: ranks of the largest host);
 * folds: 2L/g. */
#include "collective/plan/algorithm.h"

enum { MESSAGE_CONTRIBUTE = 0, MESSAGE_ACROSS = 1, MESSAGE_RESULT = 2, MESSAGES = 3 };

struct layout {
    const struct weft_plan_hosts *hosts;
    uint32_t host, place, size; /* host of this rank, its index there, ranks of the host */
    uint32_t lanes, mine;       /* all lanes; the most that a rank of this host owns */
    bool sums;
    uint64_t chunks, stages;            /* stages: of all chunks */
    uint64_t inside, fold, across, sum; /* steps of one C or R, F, X, S (K counts as X) */
    uint64_t part_max;
};

static uint32_t host_size(const struct layout *l, uint32_t host)
{
    return l->hosts->first[host + 1] - l->hosts->first[host];
}
static uint32_t member(const struct layout *l, uint32_t host, uint32_t place)
{
    return l->hosts->members[l->hosts->first[host] + place];
}

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout l = {.hosts = args->hosts,
                       .host = args->hosts->host[args->rank],
                       .place = args->hosts->place[args->rank],
                       .lanes = args->hosts->lanes};
    l.size = host_size(&l, l.host);
    l.mine = (l.lanes + l.size - 1) / l.size;
    l.sums = args->kind == WEFT_COLL_REDUCE_SCATTER;
    l.chunks = plan_slice_chunks(args);
    l.stages = l.chunks * l.hosts->count;
    l.part_max = plan_chunk_elems_padded(args);
    l.inside = 2ull * l.mine * (l.size - 1);
    l.fold = l.sums ? l.mine : 0;
    l.across = l.mine + 1;
    l.sum = !l.sums ? 0 : l.hosts->count > 1 ? l.hosts->count - 1 : 1;
    return l;
}

/* ---- step numbers ---- */
static uint64_t chunk_of(const struct layout *l, uint64_t stage)
{
    return stage / l->hosts->count;
}
static uint32_t distance_of(const struct layout *l, uint64_t stage)
{
    return (uint32_t)(stage % l->hosts->count);
}
static uint32_t next_host(const struct layout *l, uint32_t distance)
{
    return (uint32_t)(((uint64_t)l->host + distance) % l->hosts->count);
}
static uint32_t previous_host(const struct layout *l, uint32_t distance)
{
    return (uint32_t)(((uint64_t)l->host + l->hosts->count - distance) % l->hosts->count);
}

/* reduce_scatter: C of stage 0, then groups: C of the next stage, F, X and, after a whole chunk, S. */
static uint64_t group_at(const struct layout *l, uint64_t stage)
{
    return l->inside + stage * (l->inside + l->fold + l->across) + chunk_of(l, stage) * l->sum;
}
static uint64_t contribute_at(const struct layout *l, uint64_t stage)
{
    return stage == 0 ? 0 : group_at(l, stage - 1);
}
static uint64_t fold_at(const struct layout *l, uint64_t stage)
{
    return group_at(l, stage) + (stage + 1 < l->stages ? l->inside : 0);
}
/* all_gather: X of stage 0, then groups: X of the next stage and R. */
static uint64_t across_at(const struct layout *l, uint64_t stage)
{
    return l->sums      ? fold_at(l, stage) + l->fold
           : stage == 0 ? 0
                        : l->across + (stage - 1) * (l->across + l->inside);
}

/* The step at `index` waits for all steps before `at`. */
static void wait_for_steps_before(struct weft_action *action, uint64_t index, uint64_t at)
{
    if (at > 0) plan_wait_after(action, index + 1 - at);
}

/* ---- pieces ---- */
/* Sets the position and the length of the piece of the rank at place `lane` of a host. false: it has no
 * elements. */
static bool cover(const struct weft_plan_args *args, const struct layout *l, uint32_t host, uint64_t lane,
                  uint64_t stage, uint32_t message, struct weft_action *action)
{
    if (lane >= host_size(l, host)) return false;
    uint32_t piece = member(l, host, (uint32_t)lane);
    struct plan_range part = plan_chunk_range(args, piece, chunk_of(l, stage));
    action->offset_in = plan_slice_in(args, piece) + part.first;
    action->offset = plan_slice_out(args, piece) + part.first;
    action->count = part.count;
    action->message = (uint32_t)((stage * l->lanes + lane) * MESSAGES + message + 1);
    return part.count > 0;
}

/* Scratch of reduce_scatter: outgoing partials of two stages, then partials of the own piece of two
 * chunks. */
static uint64_t outgoing_at(const struct layout *l, uint64_t stage, uint64_t turn)
{
    return ((stage & 1) * l->mine + turn) * l->part_max;
}
static uint64_t own_at(const struct layout *l, uint64_t chunk, uint32_t host)
{
    return (2ull * l->mine + (chunk & 1) * l->hosts->count + host) * l->part_max;
}

/* C and R: for each turn and distance in the host one message sent and one received. */
struct exchange {
    bool sends;
    uint32_t place, peer; /* of the other rank */
    uint64_t turn;
};
static struct exchange exchange_of(const struct layout *l, uint64_t at)
{
    uint64_t others = 2ull * (l->size - 1);
    uint32_t distance = (uint32_t)(at % others / 2) + 1;
    struct exchange exchange = {.sends = at % 2 == 0, .turn = at / others};
    exchange.place = (l->place + (exchange.sends ? distance : l->size - distance)) % l->size;
    exchange.peer = member(l, l->host, exchange.place);
    return exchange;
}

/* X: a rank sends one piece and receives one a turn, or the reverse. The single message stands next to the
 * turn in which its other end has it, before it if one_first. true: step `at` is the single message;
 * otherwise sets *turn_out. */
static bool is_single_message(const struct layout *l, uint32_t other_host, bool one_first, uint64_t at,
                       uint64_t *turn_out)
{
    uint64_t beside = l->place / host_size(l, other_host), one_at = one_first ? beside : beside + 1;
    if (one_at > l->mine) one_at = l->mine;
    *turn_out = at < one_at ? at : at - 1;
    return at == one_at;
}

/* ---- reduce_scatter ---- */
static void contribute_step(const struct weft_plan_args *args, const struct layout *l, uint64_t stage,
                            uint64_t at, struct weft_action *action)
{
    struct exchange exchange = exchange_of(l, at);
    uint64_t lane = (exchange.sends ? exchange.place : l->place) + exchange.turn * l->size;
    if (!cover(args, l, next_host(l, distance_of(l, stage)), lane, stage, MESSAGE_CONTRIBUTE, action))
        return;
    action->kind = exchange.sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV_FOLD;
    action->place = WEFT_PLACE_INPUT;
    action->peer = exchange.peer;
    action->area = (uint32_t)((stage & 1) * l->mine + exchange.turn);
    if (!exchange.sends && stage >= 2)
        action->depends = contribute_at(l, stage) + at - (fold_at(l, stage - 2) + exchange.turn);
}

static void fold_step(const struct weft_plan_args *args, const struct layout *l, uint64_t stage,
                      uint64_t turn, uint64_t index, struct weft_action *action)
{
    uint64_t chunk = chunk_of(l, stage);
    bool own = distance_of(l, stage) == 0;
    if (stage >= 2)
        wait_for_steps_before(
            action, index,
            group_at(l, stage - 1)); /* also for an empty fold, because later steps wait for this step only */
    if (own && chunk >= 2) wait_for_steps_before(action, index, group_at(l, (chunk - 1) * l->hosts->count));
    if (!cover(args, l, next_host(l, distance_of(l, stage)), l->place + turn * l->size, stage, 0, action))
        return;
    action->kind = l->size > 1 ? WEFT_ACTION_FOLD : WEFT_ACTION_PACK;
    action->place = l->size > 1 ? WEFT_PLACE_SCRATCH : WEFT_PLACE_INPUT;
    action->area = (uint32_t)((stage & 1) * l->mine + turn);
    action->scratch = own ? own_at(l, chunk, l->host) : outgoing_at(l, stage, turn);
}

static void partial_step(const struct weft_plan_args *args, const struct layout *l, uint64_t stage,
                         uint64_t at, uint64_t index, struct weft_action *action)
{
    uint32_t distance = distance_of(l, stage), from = previous_host(l, distance), to = next_host(l, distance);
    uint64_t turn, chunk = chunk_of(l, stage);
    bool receives = is_single_message(l, from, false, at, &turn);
    if (distance == 0) return;
    if (!cover(args, l, receives ? l->host : to, receives ? l->place : l->place + turn * l->size, stage,
               MESSAGE_ACROSS, action))
        return;
    action->kind = receives ? WEFT_ACTION_RECV : WEFT_ACTION_SEND;
    action->place = WEFT_PLACE_SCRATCH;
    action->wide = true;
    if (receives) {
        action->peer = member(l, from, l->place % host_size(l, from));
        action->scratch = own_at(l, chunk, from);
        if (chunk >= 2)
            wait_for_steps_before(
                action, index,
                group_at(l, (chunk - 1) * l->hosts->count)); /* its sums have read that scratch */
    } else {
        action->peer = member(l, to, (uint32_t)(l->place + turn * l->size));
        action->scratch = outgoing_at(l, stage, turn);
        action->depends = index - (fold_at(l, stage) + turn);
    }
}

/* T over the partials of the hosts, in place: at distances 1, 2, 4 each sum adds the partial at that
 * distance. */
static void sum_step(const struct weft_plan_args *args, const struct layout *l, uint64_t chunk, uint64_t at,
                     struct weft_action *action)
{
    uint64_t hosts = l->hosts->count, reach = 1;
    action->after = 1;
    if (!cover(args, l, l->host, l->place, chunk * hosts, 0, action)) return;
    action->place = WEFT_PLACE_SCRATCH;
    action->last = at + 1 == l->sum;
    if (hosts == 1) {
        action->kind = WEFT_ACTION_COPY;
        action->scratch = own_at(l, chunk, 0);
        return;
    }
    for (uint64_t sums; at >= (sums = (hosts - reach + 2 * reach - 1) / (2 * reach)); reach *= 2) at -= sums;
    action->kind = WEFT_ACTION_SUM;
    action->wide = action->own_first = action->into_own = true;
    action->scratch_own = own_at(l, chunk, (uint32_t)(2 * reach * at));
    action->scratch = own_at(l, chunk, (uint32_t)(2 * reach * at + reach));
}

static bool reduce_scatter_step(const struct weft_plan_args *args, const struct layout *l, uint64_t index,
                                struct weft_action *action)
{
    if (index < l->inside) {
        contribute_step(args, l, 0, index, action);
        return true;
    }
    uint64_t hosts = l->hosts->count, group = l->inside + l->fold + l->across, block = hosts * group + l->sum,
             at = index - l->inside;
    uint64_t chunk = at / block < l->chunks ? at / block : l->chunks - 1;
    at -= chunk * block;
    uint64_t distance = at / group < hosts ? at / group : hosts - 1, stage = chunk * hosts + distance;
    at -= distance * group;
    if (stage + 1 < l->stages) {
        if (at < l->inside) {
            contribute_step(args, l, stage + 1, at, action);
            return true;
        }
        at -= l->inside;
    }
    if (at < l->fold) fold_step(args, l, stage, at, index, action);
    else if (at -= l->fold, at < l->across) partial_step(args, l, stage, at, index, action);
    else if (at -= l->across, distance + 1 == hosts && at < l->sum) sum_step(args, l, chunk, at, action);
    else return false;
    return true;
}

/* ---- all_gather ---- */
static void piece_step(const struct weft_plan_args *args, const struct layout *l, uint64_t stage, uint64_t at,
                       struct weft_action *action)
{
    uint32_t distance = distance_of(l, stage), from = previous_host(l, distance), to = next_host(l, distance);
    uint64_t turn;
    bool sends = is_single_message(l, to, true, at, &turn);
    if (distance == 0 && !sends) return;
    if (!cover(args, l, sends ? l->host : from, sends ? l->place : l->place + turn * l->size, stage,
               MESSAGE_ACROSS, action))
        return;
    action->kind = distance == 0 ? WEFT_ACTION_COPY : sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    if (distance > 0)
        action->peer = sends ? member(l, to, l->place % host_size(l, to))
                             : member(l, from, (uint32_t)(l->place + turn * l->size));
}

/* The step of X that received the piece of a turn. */
static uint64_t received_at(const struct layout *l, uint64_t stage, uint64_t turn)
{
    uint64_t beside = l->place / host_size(l, next_host(l, distance_of(l, stage)));
    return across_at(l, stage) + turn + (turn >= beside ? 1 : 0);
}

static void result_step(const struct weft_plan_args *args, const struct layout *l, uint64_t stage,
                        uint64_t at, uint64_t index, struct weft_action *action)
{
    struct exchange exchange = exchange_of(l, at);
    uint32_t distance = distance_of(l, stage);
    uint64_t lane = (exchange.sends ? l->place : exchange.place) + exchange.turn * l->size;
    if (!cover(args, l, previous_host(l, distance), lane, stage, MESSAGE_RESULT, action)) return;
    action->kind = exchange.sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = exchange.sends && distance == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->peer = exchange.peer;
    if (exchange.sends && distance > 0) action->depends = index - received_at(l, stage, exchange.turn);
}

static bool all_gather_step(const struct weft_plan_args *args, const struct layout *l, uint64_t index,
                            struct weft_action *action)
{
    if (index < l->across) {
        piece_step(args, l, 0, index, action);
        return true;
    }
    uint64_t group = l->across + l->inside, at = index - l->across,
             stage = at / group < l->stages ? at / group : l->stages - 1;
    at -= stage * group;
    if (stage + 1 < l->stages) {
        if (at < l->across) {
            piece_step(args, l, stage + 1, at, action);
            return true;
        }
        at -= l->across;
    }
    if (at >= l->inside) return false;
    result_step(args, l, stage, at, index, action);
    return true;
}

bool plan_hierarchy_pieces_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout l = layout_of(args);
    if (l.chunks == 0) return false;
    return l.sums ? reduce_scatter_step(args, &l, index, action) : all_gather_step(args, &l, index, action);
}

uint32_t plan_hierarchy_pieces_folds(const struct weft_plan_args *args)
{
    struct layout l = layout_of(args);
    if (!l.sums || l.size == 1) return 0;
    return (uint32_t)(l.stages > 1 ? 2 : l.stages) * l.mine;
}

uint64_t plan_hierarchy_pieces_scratch(const struct weft_plan_args *args)
{
    struct layout l = layout_of(args);
    return l.sums ? (2ull * l.mine + (l.chunks > 1 ? 2 : l.chunks) * l.hosts->count) * l.part_max : 0;
}
