/* post.c - the door: checks a call, chooses its plan, takes all its memory, queues it.
 *
 * Everything that can be refused is refused here: a posted operation only waits for its peers. A record
 * (window of steps, and scratch for sums) is kept by the group when its operation is over and serves the
 * next one, so a training loop stops allocating after its first step. */
#include "collective/internal.h"

#include <string.h>

#define FOLD_CHUNK_BYTES_MIN 4096u

/* ---- arguments ---- */
static bool sums(enum weft_coll_kind kind) { return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER; }

static enum weft_status check_args(const struct weft_group *group, const struct weft_coll_args *args, struct weft_error *error)
{
    const char *kind = weft_coll_kind_name(args->kind);
    if (kind[0] == '?') return weft_error_set(error, WEFT_ERR_INVALID, "collective kind %d does not exist", (int)args->kind);
    if (args->plan != WEFT_PLAN_AUTO && !weft_plan_supports(args->plan, args->kind))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "plan %s has no %s", weft_plan_name(args->plan), kind);
    if (args->kind == WEFT_COLL_BARRIER) return WEFT_OK;
    bool bytes_only = args->kind == WEFT_COLL_ALL_GATHER_BYTES;
    if (!bytes_only && weft_dtype_bytes(args->dtype) == 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: element type %d does not exist", kind, (int)args->dtype);
    if (sums(args->kind) && args->op != WEFT_SUM && args->op != WEFT_AVG)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: reduction %d does not exist", kind, (int)args->op);
    if (args->kind == WEFT_COLL_BROADCAST && args->root >= group->ranks)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: root %u of %u ranks", kind, args->root, group->ranks);
    uint64_t limit = (UINT64_MAX >> 4) / group->ranks;
    if (args->count > limit || args->piece_bytes_max > limit)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: count %llu is too large", kind, (unsigned long long)args->count);
    bool out_needed = bytes_only ? args->piece_bytes_max > 0 : args->count > 0;
    bool in_needed = args->count > 0 && args->kind != WEFT_COLL_BROADCAST;
    if ((out_needed && !args->out) || (in_needed && !args->in) || (bytes_only && !args->piece_bytes_out))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: a buffer is NULL", kind);
    if (bytes_only && args->count > args->piece_bytes_max)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: this rank's piece has %llu bytes, at most %llu were agreed", kind,
                              (unsigned long long)args->count, (unsigned long long)args->piece_bytes_max);
    if (args->plan != WEFT_PLAN_AUTO && args->reproducible && sums(args->kind) && !weft_plan_reproducible(args->plan))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s: plan %s is not reproducible; leave the plan to weft or take direct", kind,
                              weft_plan_name(args->plan));
    return WEFT_OK;
}

static struct weft_plan_args plan_args_of(const struct weft_group *group, const struct weft_coll_args *args)
{
    struct weft_plan_args plan = {.kind = args->kind, .rank = group->rank, .ranks = group->ranks};
    size_t elem_bytes = args->kind == WEFT_COLL_ALL_GATHER_BYTES ? 1 : weft_dtype_bytes(args->dtype);
    plan.count = args->kind == WEFT_COLL_ALL_GATHER_BYTES ? args->piece_bytes_max : args->count;
    if (args->kind == WEFT_COLL_BARRIER) plan.count = 0, elem_bytes = 1;
    if (args->kind == WEFT_COLL_BROADCAST) plan.root = args->root;
    plan.plan = args->plan;
    if (plan.plan == WEFT_PLAN_AUTO)
        plan.plan = weft_plan_choose(args->kind, group->ranks, plan.count * elem_bytes, args->reproducible && sums(args->kind));
    /* The direct plan holds all ranks' contributions to a chunk, twice: shorter chunks keep that bounded. */
    size_t chunk_bytes = group->chunk_bytes;
    if (plan.plan == WEFT_PLAN_DIRECT && sums(args->kind)) {
        size_t share = group->chunk_bytes * group->inflight_max / (2 * (size_t)group->ranks);
        if (share < FOLD_CHUNK_BYTES_MIN) share = FOLD_CHUNK_BYTES_MIN;
        if (share < chunk_bytes) chunk_bytes = share;
    }
    plan.chunk_elems = chunk_bytes / elem_bytes;
    plan.lanes = group->inflight_max / 4 > 0 ? group->inflight_max / 4 : 1;
    return plan;
}

/* ---- memory ---- */
static uint64_t longest_part(const struct weft_plan_args *plan)
{
    uint64_t longest = plan->kind == WEFT_COLL_ALL_REDUCE ? plan->count / plan->ranks + (plan->count % plan->ranks != 0) : plan->count;
    return longest < plan->chunk_elems ? longest : plan->chunk_elems;
}

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

struct scratch {
    uint32_t areas;
    bool folds;
    size_t area_bytes, total_bytes;
};

static struct scratch scratch_of(const struct weft_plan_args *plan, enum weft_dtype dtype)
{
    struct scratch scratch = {.areas = weft_plan_areas(plan), .folds = plan->plan == WEFT_PLAN_DIRECT};
    if (scratch.areas == 0) return scratch;
    uint64_t part = longest_part(plan);
    scratch.area_bytes = scratch.folds ? fold_area_bytes(plan->ranks, dtype, part) : round_up(part * weft_dtype_bytes(dtype));
    scratch.total_bytes = scratch.areas * scratch.area_bytes;
    if (scratch.folds) scratch.total_bytes += round_up(scratch.areas * sizeof(struct fold_area));
    return scratch;
}

static void scratch_lay_out(struct weft_coll *coll, const struct scratch *scratch, const struct weft_plan_args *plan)
{
    coll->area_count = scratch->areas;
    coll->fold_areas = NULL;
    coll->ring_areas = coll->scratch;
    coll->ring_area_bytes = scratch->area_bytes;
    if (!scratch->folds || scratch->areas == 0) return;
    coll->fold_areas = (struct fold_area *)coll->scratch;
    uint8_t *memory = coll->scratch + round_up(scratch->areas * sizeof(struct fold_area));
    for (uint32_t a = 0; a < scratch->areas; a++)
        fold_area_init(&coll->fold_areas[a], memory + a * scratch->area_bytes, plan->ranks, coll->args.dtype, longest_part(plan));
}

/* A record with enough scratch: one that has it, else one that grows, else a new one. */
static struct weft_coll *record_take(struct weft_group *group, size_t scratch_bytes)
{
    struct weft_env *env = group->env;
    struct weft_coll *coll = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->idle) {
        struct weft_coll *idle = weft_container_of(node, struct weft_coll, link);
        if (!coll || idle->scratch_bytes >= scratch_bytes) coll = idle;
        if (idle->scratch_bytes >= scratch_bytes) break;
    }
    if (!coll) {
        coll = weft_alloc_bytes(env, sizeof *coll + group->window * sizeof(struct slot));
        if (!coll) return NULL;
        coll->scratch = NULL;
        coll->scratch_bytes = 0;
        weft_list_init(&coll->link);
        weft_list_append(&group->idle, &coll->link);
    }
    if (coll->scratch_bytes < scratch_bytes) {
        weft_free_bytes(env, coll->scratch);
        coll->scratch_bytes = 0;
        coll->scratch = weft_alloc_bytes(env, scratch_bytes);
        if (!coll->scratch) return NULL;
        coll->scratch_bytes = scratch_bytes;
    }
    weft_list_remove(&coll->link);
    return coll;
}

void coll_records_free(struct weft_group *group)
{
    struct weft_list *lists[] = {&group->active, &group->idle};
    for (size_t i = 0; i < 2; i++) {
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, lists[i]) {
            struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
            weft_free_bytes(group->env, coll->scratch);
            weft_free_bytes(group->env, coll);
        }
    }
}

/* ---- post ---- */
static void coll_init(struct weft_coll *coll, struct weft_group *group, const struct weft_coll_args *args, const struct weft_plan_args *plan)
{
    coll->group = group;
    weft_list_init(&coll->link);
    weft_list_init(&coll->ready_link);
    coll->phase = COLL_RUNNING;
    coll->status = WEFT_OK;
    coll->text = "";
    coll->args = *args;
    coll->elem_bytes = args->kind == WEFT_COLL_ALL_GATHER_BYTES || args->kind == WEFT_COLL_BARRIER ? 1 : weft_dtype_bytes(args->dtype);
    coll->sequence = group->sequence;
    coll->posted_ns = weft_now_ns(group->env);
    uint64_t deadline_ns = args->deadline_ns ? args->deadline_ns : group->deadline_ns;
    coll->deadline_ns = deadline_ns < WEFT_NEVER - coll->posted_ns ? coll->posted_ns + deadline_ns : WEFT_NEVER;
    coll->warned = false;
    coll->plan_ended = false;
    coll->head = coll->tail = 0;
    coll->outstanding = 0;
    coll->header = (struct coll_header){
        .type = COLL_MESSAGE_DATA, .kind = (uint8_t)args->kind, .plan = (uint8_t)plan->plan,
        .dtype = (uint8_t)(coll->elem_bytes == 1 ? 0 : args->dtype), .op = (uint8_t)(sums(args->kind) ? args->op : 0),
        .group = group->group_id, .epoch = group->epoch, .rank = group->rank, .root = plan->root, .lanes = plan->lanes,
        .sequence = coll->sequence, .count = plan->count, .chunk = plan->chunk_elems,
    };
    weft_plan_begin(&coll->cursor, plan);
}

enum weft_status coll_group_open(struct weft_group *group, struct weft_error *error)
{
    if (group->closing) return weft_error_set(error, WEFT_ERR_CLOSED, "the group is being freed");
    if (group->fail_status == WEFT_OK) control_all_stay(group, group->sequence);
    if (group->fail_status < 0) return weft_error_set(error, group->fail_status, "%s", group->fail_text);
    return WEFT_OK;
}

enum weft_status coll_prepare(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context,
                              struct weft_coll **coll_out, struct weft_error *error)
{
    WEFT_TRY(check_args(group, args, error));
    if (group->active_count + group->prepared_count >= group->operations_max)
        return weft_error_set(error, WEFT_ERR_AGAIN, "%u operations are posted already (operations_max)",
                              group->active_count + group->prepared_count);
    struct weft_plan_args plan = plan_args_of(group, args);
    struct scratch scratch = scratch_of(&plan, args->dtype);
    struct weft_coll *coll = record_take(group, scratch.total_bytes);
    if (!coll)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %s: %zu bytes of scratch", weft_coll_kind_name(args->kind),
                              scratch.total_bytes);
    coll_init(coll, group, args, &plan);
    scratch_lay_out(coll, &scratch, &plan);
    coll->done = done;
    coll->context = context;
    group->sequence++;
    group->prepared_count++;
    *coll_out = coll;
    return WEFT_OK;
}

void coll_unprepare(struct weft_coll *coll)
{
    coll->group->prepared_count--;
    weft_list_append(&coll->group->idle, &coll->link);
}

void coll_launch(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    const struct weft_coll_args *args = &coll->args;
    if (group->active_count == 0) group->seen_ns = weft_now_ns(group->env);
    if (args->kind == WEFT_COLL_ALL_GATHER_BYTES) {
        for (uint32_t rank = 0; rank < group->ranks; rank++) args->piece_bytes_out[rank] = args->piece_bytes_max ? UINT64_MAX : 0;
        args->piece_bytes_out[group->rank] = args->count;
        coll->header.piece_bytes = args->count;
    }
    weft_list_append(&group->active, &coll->link);
    group->prepared_count--;
    group->active_count++;
    weft_event_ring_add(group->events, weft_coll_kind_name(args->kind), WEFT_EVENT_BEGIN, (uint64_t)group->group_id << 40 | coll->sequence,
                        UINT32_MAX, coll->header.count * coll->elem_bytes, WEFT_OK);
    coll_record_post(coll);
    group_ready(coll);
}

enum weft_status weft_coll_post(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context,
                                struct weft_coll **coll_out, struct weft_error *error)
{
    WEFT_ASSERT(group && args && done);
    WEFT_TRY(coll_group_open(group, error));
    if (!group_kick(group)) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a timer");
    struct weft_coll *coll;
    WEFT_TRY(coll_prepare(group, args, done, context, &coll, error));
    coll_launch(coll);
    if (coll_out) *coll_out = coll;
    return WEFT_IN_PROGRESS;
}

void coll_finish(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    weft_coll_done_fn done = coll->done;
    coll->done = NULL;
    if (coll->phase == COLL_RUNNING) coll->phase = COLL_ENDING; /* a cancel from inside done changes nothing */
    weft_event_ring_add(group->events, weft_coll_kind_name(coll->args.kind), WEFT_EVENT_END,
                        (uint64_t)group->group_id << 40 | coll->sequence, UINT32_MAX, coll->header.count * coll->elem_bytes, coll->status);
    coll_record_end(coll);
    weft_list_remove(&coll->ready_link);
    weft_list_remove(&coll->link);
    group->active_count--;
    if (done) done(coll->context, coll->status, coll->text); /* may post, fail or free the group */
    weft_list_append(&group->idle, &coll->link);
}

void weft_coll_cancel(struct weft_coll *coll) { coll_end(coll, WEFT_ERR_CANCELLED, "cancelled by the caller"); }
uint64_t weft_coll_sequence(const struct weft_coll *coll) { return coll->sequence; }
enum weft_plan_id weft_coll_plan(const struct weft_coll *coll) { return coll->cursor.args.plan; }
