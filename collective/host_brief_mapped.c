/* host_brief_mapped.c - an operation on buffers that all ranks map, begun and over within its call (host_brief.c does so with what is said).
 *
 *     buffers mapped, all before it settled ──► announce ──► all have come, alike, mapped ──► slices ──► all are through: over
 *                  │ else                                         │ late, or otherwise           │           │ late
 *                  ▼                                              └──────────────────────────────┴───────────┘
 *     WEFT_ERR_AGAIN: nothing happened                     an ordinary operation, which goes on where this one stops
 *
 * What an ordinary operation takes beside its work, a record of its own, a place in the queue, steps of the loop, and the way from caller to engine and back,
 * was two thirds of a microsecond, as much as to sum 64 KiB: here none of it is touched. The words are those of host_run.c, so each rank decides for itself
 * which way it goes. A shape keeps what an operation is to the functions of the room, without memory for messages; should it become ordinary
 * there is a record that has that. Only what one step of the loop would do goes this way: others may wait for the loop. */
#include "collective/host.h"

enum { VECTOR_BYTES = HOST_STEP_BYTES / 2 };

/* ---- which calls ---- */
static bool is_of_kind(enum weft_coll_kind kind)
{
    switch (kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_REDUCE: return true;
    default: return false;
    }
}

bool host_brief_maps(const struct weft_group *group, const struct weft_coll_args *args)
{
    const struct host *host = group->host;
    if (!is_of_kind(args->kind) || args->counts || args->count == 0 || !host->copies_all) return false; /* who may not copy offers stages as well */
    bool pieces = args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_ALL_GATHER;
    return args->count <= VECTOR_BYTES / weft_dtype_bytes(args->dtype) / (pieces ? group->ranks : 1) && (!host_is_short(group, args) || host_may_lend(group, args));
}

void host_brief_mapped_know(struct weft_group *group, struct host_shape *shape)
{
    struct weft_coll outline = {.group = NULL}, *coll = shape->mapped ? shape->mapped : &outline;
    shape->scratch_bytes = coll_outline(coll, group, &shape->args);
    coll->host.is_short = false;
    coll->host.may_lend = host_may_lend(group, &shape->args);
}

static bool is_mapped(const void *memory)
{
    uint64_t offset;
    return memory && weft_memory_locate(memory, 1, &offset);
}

/* Kept from the first call on whose buffers may be mapped: of very many groups most sum ordinary memory. AGAIN: they are not; NO_MEMORY: they may be. */
static enum weft_status outline(struct weft_group *group, struct host_shape *shape, const void *in, const void *out)
{
    if (shape->mapped) return WEFT_OK;
    if (!is_mapped(in) && !is_mapped(out)) return WEFT_ERR_AGAIN;
    weft_loop_guard(group->loop);
    if (!(shape->mapped = weft_alloc_zero(group->env, sizeof *shape->mapped))) return WEFT_ERR_NO_MEMORY;
    host_brief_mapped_know(group, shape);
    return WEFT_OK;
}

/* ---- the operation ---- */

/* All that could fail later is there. */
static bool may_begin(struct host *host, const struct host_shape *shape, const void *in, void *out)
{
    struct weft_group *group = host->group;
    struct weft_coll *coll = shape->mapped;
    coll->args.in = in;
    coll->args.out = out;
    host_locate(host, coll);
    if (!coll->host.lends || !coll_has_record(group, shape->scratch_bytes)) return false;
    if (coll->host.may_lend && !host_may_say(host, &shape->args)) return false;
    if (!host_followed(host, host->next)) return false;
    if (!host->reach) host->reach = host_reach_take(group);
    return host->reach;
}

static void begin(struct host *host, struct weft_coll *coll)
{
    coll->host.number = host->next++;
    coll->sequence = coll->header.sequence = host->group->sequence++;
    if (coll_rooted(coll->args.kind)) trail_add(host->group, &coll->header);
    coll->host.flags = coll->host.flags_of_all = HOST_MAPPED | (coll->host.lends ? HOST_LENDS : 0);
    coll->host.reached = true;
    coll->host.mixed = coll->host.turns = coll->host.apart = false;
    coll->host.slice_of = host->group->rank;
    coll->host.phase = HOST_COMING;
    host->seen = 0;
    host->reach[host->group->rank] = (struct host_reach){.in = coll->args.in, .out = coll->args.out};
}

/* Its buffers, where it calls the same and has them mapped, as far as all need it. Anything else is for the ordinary operation to say. */
static bool meets(struct host *host, const struct host_shape *shape, uint32_t rank)
{
    struct weft_coll *coll = shape->mapped;
    const struct host_post *post = host_post_of(host->peers[rank].segment, coll->host.number);
    if (!host_brief_alike(post, &shape->call, coll->sequence) || post->flags != coll->host.flags) return false;
    struct host_reach reach = {.copied = false};
    if (!host_reaches(host, coll, rank, post, &reach)) return false;
    host->reach[rank] = reach;
    return true;
}

static bool all_come(struct host *host, const struct host_shape *shape)
{
    const uint64_t number = shape->mapped->host.number;
    if (host->crowded && !host_brief_neighbours_come(host, number)) return false;
    for (uint32_t rank = 0; rank < host->group->ranks; rank++)
        if (rank != host->group->rank && (!host_brief_comes(host, rank, number) || !meets(host, shape, rank))) return false;
    host_all_came(host, number);
    return true;
}

/* The slices that are for this rank. false: somebody has ended the operation. */
static bool work(struct host *host, struct weft_coll *coll)
{
    uint32_t culprit;
    coll->host.turns = host_turns_taken(host, coll);
    coll->host.phase = HOST_WORKING;
    bool any = !coll->host.turns || host_turns_next(host, coll);
    if (!coll->host.turns) coll->host.rest = host_slice(coll);
    if (coll_sums(coll->args.kind)) weft_loop_guard(host->group->loop);
    for (; any; any = coll->host.turns && host_turns_next(host, coll)) {
        if (coll->host.rest.count > 0) {
            if (!host_enter(host, coll->host.number)) return false;
            enum weft_status status = host_work(host, coll, coll->host.rest, &culprit);
            host_leave(host);
            WEFT_ASSERT(status == WEFT_OK); /* nothing of it is copied by system calls */
        }
        host_say_through(host, coll->host.slice_of, coll->host.number);
    }
    coll->host.phase = HOST_LEAVING;
    return true;
}

static bool is_through(struct host *host, const struct weft_coll *coll, uint32_t rank)
{
    const uint64_t number = coll->host.number;
    if (host_is_through(host, rank, number)) return true;
    for (uint32_t looks = 1; !host_is_through(host, rank, number); looks++) {
        uint32_t whom = coll->host.turns ? host_turns_taker(host, rank) : rank;
        if (!host_brief_patient(host, whom != host->group->rank && host_needs_this_core(host, whom), looks)) return false;
    }
    return true;
}

static bool all_through(struct host *host, const struct weft_coll *coll)
{
    host->patient_ns = 0;
    for (uint32_t rank = 0; rank < host->group->ranks; rank++)
        if ((rank != host->group->rank || coll->host.turns) && !is_through(host, coll, rank)) return false;
    return true;
}

enum weft_status host_brief_mapped(struct weft_group *group, struct host_shape *shape, const void *in, void *out, const struct host_after *after)
{
    struct host *host = group->host;
    WEFT_TRY(outline(group, shape, in, out));
    if (!may_begin(host, shape, in, out)) return WEFT_ERR_AGAIN;
    struct weft_coll *coll = shape->mapped;
    begin(host, coll);
    host_announce_buffers(host, coll, coll->host.number);
    struct host_begun begun = host_brief_begin(host, shape, coll->host.number, coll->sequence);
    if (!all_come(host, shape) || !work(host, coll) || !all_through(host, coll)) {
        shape->args.in = in;
        shape->args.out = out;
        host_brief_late(group, &shape->args, &begun, coll, after);
        return WEFT_IN_PROGRESS;
    }
    host_reach_give(group->records, host->reach);
    host->reach = NULL;
    host_brief_end(host, shape, &begun);
    host->moved_bytes += host_moved(coll);
    return WEFT_OK;
}
