/* op.c - entry point of an operation: validates the call, chooses its plan, allocates its memory, queues it.
 *
 * All refusals happen here (op_args.c has the rules for arguments): a posted operation only waits for its
 * peers. The memory of a completed operation (window of steps, scratch) returns to the pool of the group and
 * serves the next operation. So a training loop allocates nothing after its first step. */
#include "collective/core/op.h"

#include "collective/core/control/call_digest.h"
#include "collective/core/control/group_control.h"
#include "collective/core/group.h"
#include "collective/core/interpreter.h"
#include "collective/core/layout_hash.h"
#include "collective/core/op_args.h"
#include "collective/core/op_pool.h"
#include "collective/core/record/op_record.h"
#include "collective/core/record/straggler_time.h"
#include "collective/core/reduce_buffer.h"
#include "collective/core/retune.h"
#include "collective/plan/algorithm.h"

#include <string.h>

#define REDUCE_CHUNK_BYTES_MIN 4096u
/* below this the time of the computation is shorter than one clock reading */
#define TIMED_EXACTLY_BYTES_MIN 4096u

static uint64_t max_count(const uint64_t *counts, uint32_t ranks)
{
    uint64_t longest = 0;
    for (uint32_t r = 0; r < ranks; r++)
        if (counts[r] > longest) longest = counts[r];
    return longest;
}

/* Each pair of ranks has its own lengths, so only the messages can compare them. */
static bool own_lengths(const struct weft_coll_args *args)
{
    const struct coll_kind_info *kind = coll_kind_info_of(args->kind);
    return kind->has_root_counts ? args->unequal : kind->has_counts_out && args->counts;
}

/* Returns whether the finished sum is divided. */
static bool averages(const struct weft_coll_args *args)
{
    return coll_is_reduction(args->kind) &&
           (args->op == WEFT_AVG || (args->op == WEFT_SCALED_SUM && args->total != 0));
}

static struct weft_plan_question question_of(const struct weft_group *group,
                                             const struct weft_coll_args *args, uint64_t bytes,
                                             size_t elem_bytes)
{
    return (struct weft_plan_question){
        .kind = args->kind,
        .ranks = group->ranks,
        .bytes = bytes,
        .elem_bytes = elem_bytes,
        .wide_bytes = coll_is_reduction(args->kind) ? reduce_partial_bytes(args->dtype) : elem_bytes,
        .reproducible = args->reproducible && coll_is_reduction(args->kind),
        .unequal = args->counts || args->unequal,
        .averages = averages(args),
        .chunk_bytes = group->limits.chunk_bytes,
        .message_bytes = weft_transport_message_bytes(group->transport),
        .window = group->limits.window,
        .cost = &group->planning.cost,
        .hosts = group->planning.hosts,
        .local_cost = &group->planning.local_cost};
}

/* Returns the plan of this call. The last choice of each kind is cached, because a training loop repeats
 * its calls. */
static enum weft_plan_id choose(struct weft_group *group, const struct weft_coll_args *args, uint64_t bytes,
                                size_t elem_bytes, enum weft_plan_id forced_plan, bool keeps_order)
{
    /* no memory: each call evaluates the model */
    if (!group->planning.choices)
        group->planning.choices =
            weft_alloc_zero(group->env, GROUP_KINDS_CACHED * sizeof *group->planning.choices);
    struct plan_choice *last = group->planning.choices && (size_t)args->kind < GROUP_KINDS_CACHED
                                   ? &group->planning.choices[args->kind]
                                   : NULL;
    struct weft_plan_question question = question_of(group, args, bytes, elem_bytes);
    if (last && last->plan != WEFT_PLAN_AUTO && last->bytes == bytes && last->dtype == args->dtype &&
        last->reproducible == question.reproducible && last->unequal == question.unequal &&
        last->averages == question.averages && last->forced_plan == forced_plan &&
        last->keeps_order == keeps_order)
        return (enum weft_plan_id)last->plan;
    question.forced_plan = forced_plan;
    question.keeps_order = keeps_order;
    enum weft_plan_id plan = weft_plan_choose(&question, NULL);
    if (last)
        *last = (struct plan_choice){.plan = (uint8_t)plan,
                                     .forced_plan = (uint8_t)forced_plan,
                                     .dtype = (uint8_t)args->dtype,
                                     .bytes = bytes,
                                     .reproducible = question.reproducible,
                                     .unequal = question.unequal,
                                     .averages = question.averages,
                                     .keeps_order = keeps_order};
    return plan;
}

/* Uses slice weights if the model gives a shorter time with them. */
static void apply_slice_weights(const struct weft_group *group, const struct weft_coll_args *args,
                                struct weft_plan_args *plan, size_t *chunk_bytes)
{
    size_t elem_bytes = weft_dtype_bytes(args->dtype);
    if (plan->plan != WEFT_PLAN_DIRECT || args->kind != WEFT_COLL_ALL_REDUCE || !group->planning.hosts ||
        !group->planning.hosts->slice_weights)
        return;
    struct weft_plan_question question = question_of(group, args, plan->count * elem_bytes, elem_bytes);
    if (!weft_plan_uses_slice_weights(&question)) return;
    plan->slice_weights = group->planning.hosts->slice_weights;
    double longest = (double)plan->slice_weights[group->ranks + 1] / plan->slice_weights[group->ranks];
    *chunk_bytes = plan_weighted_chunk((uint64_t)(longest * (double)question.bytes), *chunk_bytes);
}

/* Chunks in flight together. Two ranks of one host have no wire latency to hide: one chunk at a time keeps
 * each sum in the cache. */
static uint32_t lanes_of(const struct weft_group *group, const struct weft_coll_args *args)
{
    bool near = group->ranks == 2 && group->planning.hosts && group->planning.hosts->count == 1;
    if (near && args->kind == WEFT_COLL_ALL_REDUCE) return 1;
    return group->limits.inflight_max / 4 > 0 ? group->limits.inflight_max / 4 : 1;
}

static struct weft_plan_args plan_args_of(struct weft_group *group, const struct weft_coll_args *args,
                                          enum weft_plan_id forced_plan, bool keeps_order)
{
    struct weft_plan_args plan = {
        .kind = args->kind, .rank = group->rank, .ranks = group->ranks, .hosts = group->planning.hosts};
    size_t elem_bytes = coll_has_byte_pieces(args->kind) ? 1 : weft_dtype_bytes(args->dtype);
    plan.count = coll_has_byte_pieces(args->kind) ? args->piece_bytes_max : args->count;
    if (args->kind == WEFT_COLL_BARRIER) plan.count = 0, elem_bytes = 1;
    if (args->counts) plan.count = max_count(args->counts, group->ranks);
    if (args->counts_out && max_count(args->counts_out, group->ranks) > plan.count)
        plan.count = max_count(args->counts_out, group->ranks);
    if (coll_has_root(args->kind) || coll_is_sendrecv(args->kind)) plan.root = args->root;
    plan.plan = args->plan;
    if (plan.plan == WEFT_PLAN_AUTO)
        plan.plan = choose(group, args, plan.count * elem_bytes, elem_bytes, forced_plan, keeps_order);
    /* The direct plan holds two chunks of all ranks' contributions, the hierarchy those of a host. Shorter
     * chunks bound that memory. */
    size_t longest = plan_link_chunk(plan.plan, &group->planning.cost, group->limits.chunk_bytes,
                                     weft_transport_message_bytes(group->transport));
    if (args->urgency > 0) longest = plan_urgent_chunk(&group->planning.cost, longest);
    size_t chunk_bytes = plan_pipeline_chunk(plan.plan, group->ranks, plan.count * elem_bytes, longest);
    if (plan.plan == WEFT_PLAN_HALVING) chunk_bytes = plan_halving_chunk(group->ranks, longest);
    if (coll_is_reduction(args->kind) &&
        (plan.plan == WEFT_PLAN_DIRECT || plan.plan == WEFT_PLAN_HIERARCHY)) {
        /* contributions that meet: lanes or slices */
        size_t meet = plan.plan == WEFT_PLAN_DIRECT ? group->ranks : group->planning.hosts->lanes;
        if (plan.plan == WEFT_PLAN_HIERARCHY && args->kind == WEFT_COLL_REDUCE_SCATTER)
            meet += group->planning.hosts->count;
        size_t share = longest * group->limits.inflight_max / (2 * meet);
        if (share < REDUCE_CHUNK_BYTES_MIN) share = REDUCE_CHUNK_BYTES_MIN;
        if (share < chunk_bytes) chunk_bytes = share;
    }
    apply_slice_weights(group, args, &plan, &chunk_bytes);
    plan.own_lengths = own_lengths(args);
    plan.wide = plan.plan == WEFT_PLAN_RING && averages(args) && reduce_is_widened(args->dtype);
    plan.chunk_elems = chunk_bytes / elem_bytes;
    plan.lanes = lanes_of(group, args);
    return plan;
}

/* ---- memory: one block: reduce buffers | their contributions | scratch of the plan | displacements | a
 * copy of the input ---- */
static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static bool is_wide(const struct weft_plan_args *plan)
{
    return plan->wide || weft_plan_wide(plan->plan, plan->kind);
}

struct scratch {
    uint32_t folds;
    uint64_t reduce_buffer_elems, copy_elems;
    size_t reduce_buffer_bytes_each, plan_at, cuts_at, copy_at, total_bytes;
    bool cuts;
};

static uint32_t reduce_buffer_ranks(const struct weft_plan_args *plan)
{
    if (!weft_plan_folds_within_host(plan->plan)) return plan->ranks;
    const uint32_t *first = plan->hosts->first + plan->hosts->host[plan->rank];
    return first[1] - first[0];
}

/* all_reduce scales into its output. The outputs of the other kinds are shorter, or do not exist on this
 * rank. */
static bool copies_scaled_input(const struct weft_coll_args *args)
{
    return args->op == WEFT_SCALED_SUM &&
           (args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_REDUCE);
}

static uint64_t input_elems(const struct weft_group *group, const struct weft_coll_args *args)
{
    const struct weft_coll_caller caller = coll_caller(group);
    return coll_elem_counts_of(&caller, args).in;
}

static struct scratch scratch_of(const struct weft_group *group, const struct weft_plan_args *plan,
                                 const struct weft_coll_args *args)
{
    struct scratch scratch = {.folds = weft_plan_fold_count(plan), .cuts = args->counts != NULL};
    if (scratch.folds) scratch.reduce_buffer_elems = weft_plan_fold_elems(plan);
    if (scratch.folds)
        scratch.reduce_buffer_bytes_each =
            reduce_buffer_bytes(reduce_buffer_ranks(plan), args->dtype, scratch.reduce_buffer_elems);
    scratch.plan_at = round_up(scratch.folds * sizeof(struct reduce_buffer)) +
                      scratch.folds * scratch.reduce_buffer_bytes_each;
    size_t elem_bytes = is_wide(plan) ? reduce_partial_bytes(args->dtype) : weft_dtype_bytes(args->dtype);
    scratch.cuts_at = scratch.plan_at + round_up(weft_plan_scratch(plan) * elem_bytes);
    scratch.copy_at =
        scratch.cuts_at + (scratch.cuts ? round_up(2 * (plan->ranks + 1ull) * sizeof(uint64_t)) : 0);
    if (copies_scaled_input(args) || (plan->kind == WEFT_COLL_ALL_TO_ALL && args->in == args->out))
        scratch.copy_elems = input_elems(group, args);
    scratch.total_bytes = scratch.copy_at + round_up(scratch.copy_elems * weft_dtype_bytes(args->dtype));
    return scratch;
}

/* Scratch of a copy-in operation, which never falls back to messages. */
static struct scratch scratch_of_copyin(const struct weft_group *group, const struct weft_coll_args *args)
{
    struct scratch scratch = {.copy_elems = copies_scaled_input(args) ? input_elems(group, args) : 0};
    scratch.total_bytes = round_up(scratch.copy_elems * weft_dtype_bytes(args->dtype));
    return scratch;
}

/* The one-host path needs its scratch beside the copy of the input. */
static void scratch_for_path(struct scratch *scratch, const struct weft_group *group,
                                const struct weft_coll_args *args)
{
    size_t bytes =
        coll_path.scratch_bytes(group, args) + (copies_scaled_input(args) ? scratch->total_bytes : 0);
    if (scratch->total_bytes < bytes) scratch->total_bytes = bytes;
}

static const uint64_t *cuts_fill(uint64_t *cuts, const uint64_t *counts, uint32_t ranks)
{
    cuts[0] = 0;
    for (uint32_t r = 0; r < ranks; r++) cuts[r + 1] = cuts[r] + counts[r];
    return cuts;
}

static void scratch_lay_out(struct weft_coll *coll, const struct scratch *scratch,
                            struct weft_plan_args *plan)
{
    coll->buffers.reduce_buffer_count = scratch->folds;
    coll->buffers.reduce_buffer_ranks = reduce_buffer_ranks(plan);
    coll->buffers.reduce_buffers = (struct reduce_buffer *)coll->buffers.scratch;
    coll->buffers.plan_scratch = coll->buffers.scratch + scratch->plan_at;
    uint8_t *memory = coll->buffers.scratch + round_up(scratch->folds * sizeof(struct reduce_buffer));
    for (uint32_t a = 0; a < scratch->folds; a++)
        reduce_buffer_init(&coll->buffers.reduce_buffers[a], memory + a * scratch->reduce_buffer_bytes_each,
                           coll->buffers.reduce_buffer_ranks, coll->args.dtype, scratch->reduce_buffer_elems);
    if (!scratch->cuts) return;
    uint64_t *cuts = (uint64_t *)(coll->buffers.scratch + scratch->cuts_at);
    plan->displs_in = plan->displs_out = cuts_fill(cuts, coll->args.counts, plan->ranks);
    if (coll->args.counts_out)
        plan->displs_out = cuts_fill(cuts + plan->ranks + 1, coll->args.counts_out, plan->ranks);
}

/* The input of the plan: the caller's buffer, or a copy that is made before the first step. */
static void input_init(struct weft_coll *coll, const struct scratch *scratch)
{
    coll->data.in = coll->data.unscaled = coll->args.in;
    coll->data.input_elems_prepared = coll->data.input_elems_to_prepare = 0;
    if (scratch->copy_elems > 0) {
        coll->data.in = coll->buffers.scratch + scratch->copy_at;
        coll->data.input_elems_to_prepare = scratch->copy_elems;
    } else if (coll->args.kind == WEFT_COLL_ALL_REDUCE && coll->data.sum.op == WEFT_SCALED_SUM) {
        coll->data.in = coll->args.out;
        coll->data.input_elems_to_prepare = coll->args.count;
    }
    if (!coll_is_reduction(coll->args.kind))
        coll->args.op = WEFT_SUM; /* no reduction */
}

/* Takes an operation from the pool: one with enough scratch, else one whose scratch grows, else a new one. */
static struct weft_coll *op_alloc(struct weft_group *group, size_t scratch_bytes)
{
    struct weft_env *env = group->env;
    struct weft_coll *coll = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.op_pool->idle) {
        struct weft_coll *idle = weft_container_of(node, struct weft_coll, link);
        if (!coll || idle->buffers.scratch_bytes >= scratch_bytes) coll = idle;
        if (idle->buffers.scratch_bytes >= scratch_bytes) break;
    }
    if (!coll) {
        coll = weft_alloc_bytes(env, sizeof *coll + group->limits.window * sizeof(struct slot));
        if (!coll) return NULL;
        coll->buffers.scratch = NULL;
        coll->buffers.scratch_bytes = 0;
        coll_path.op_init(coll);
        weft_list_init(&coll->link);
        weft_list_append(&group->ops.op_pool->idle, &coll->link);
    }
    if (coll->buffers.scratch_bytes < scratch_bytes) {
        weft_free_bytes(env, coll->buffers.scratch);
        coll->buffers.scratch_bytes = 0;
        coll->buffers.scratch = weft_alloc_bytes(env, scratch_bytes);
        if (!coll->buffers.scratch) return NULL;
        coll->buffers.scratch_bytes = scratch_bytes;
    }
    weft_list_remove(&coll->link);
    return coll;
}

static void ops_free(struct weft_env *env, struct op_pool *op_pool, struct weft_list *list)
{
    while (!weft_list_empty(list)) {
        struct weft_coll *coll = weft_list_first(list, struct weft_coll, link);
        weft_list_remove(&coll->link);
        coll_path.op_free(op_pool, coll);
        weft_free_bytes(env, coll->buffers.scratch);
        weft_free_bytes(env, coll);
    }
}

struct op_pool *op_pool_acquire(struct weft_env *env, const struct weft_group *with, uint32_t window)
{
    struct op_pool *op_pool = with && with->limits.window == window ? with->ops.op_pool : NULL;
    if (!op_pool) {
        op_pool = weft_alloc_zero(env, sizeof *op_pool);
        if (!op_pool) return NULL;
        weft_list_init(&op_pool->idle);
        coll_path.pool_init(op_pool);
        weft_list_init(&op_pool->idle_codec_ops);
        op_pool->window = window;
    }
    op_pool->groups++;
    return op_pool;
}

void op_pool_release(struct weft_env *env, struct op_pool *op_pool)
{
    if (!op_pool || --op_pool->groups > 0) return;
    ops_free(env, op_pool, &op_pool->idle);
    op_pool_free_codec_ops(env, op_pool);
    coll_path.pool_free(env, op_pool);
    weft_free_bytes(env, op_pool);
}

void group_ops_free(struct weft_group *group)
{
    ops_free(group->env, group->ops.op_pool, &group->ops.active);
    op_pool_release(group->env, group->ops.op_pool);
}

/* ---- post ---- */

/* Returns whether the steps of the plan depend on measured links. */
static bool depends_on_links(enum weft_plan_id plan)
{
    return plan == WEFT_PLAN_RING || plan == WEFT_PLAN_CHAIN || plan == WEFT_PLAN_DOUBLE_TREE ||
           plan == WEFT_PLAN_DIRECT || plan == WEFT_PLAN_HIERARCHY;
}

/* Hash of the piece lengths that all ranks know and of the measured links. Ranks compare it. */
static uint64_t layout_hash(const struct weft_group *group, const struct weft_coll_args *args,
                            enum weft_plan_id plan)
{
    uint64_t links = group->planning.hosts && depends_on_links(plan) ? group->planning.hosts->number : 0;
    if (coll_kind_info_of(args->kind)->has_root_counts) return args->unequal;
    if (!args->counts) return links;
    if (coll_kind_info_of(args->kind)->has_counts_out) return WEFT_FNV_BASIS ^ links;
    return links ^ coll_layout_hash(args->counts, group->ranks);
}

static void coll_init(struct weft_coll *coll, struct weft_group *group, const struct weft_coll_args *args,
                      const struct weft_plan_args *plan)
{
    coll->group = group;
    weft_list_init(&coll->link);
    weft_list_init(&coll->ready_link);
    coll_path.op_init(coll);
    coll->phase = COLL_RUNNING;
    coll->status = WEFT_OK;
    coll->text = "";
    coll->args = *args;
    coll->data.sum = reduce_spec_of(args, group->ranks);
    coll->data.wide = is_wide(plan);
    coll->flags.is_sendrecv = coll_is_sendrecv(args->kind);
    coll->data.scratch_elem_bytes =
        coll->data.wide ? reduce_partial_bytes(args->dtype) : weft_dtype_bytes(args->dtype);
    coll->data.elem_bytes = !coll_kind_info_of(args->kind)->has_dtype ? 1 : weft_dtype_bytes(args->dtype);
    coll->sequence = coll->flags.is_sendrecv ? WEFT_COLL_SEQUENCE_PAIR : group->ops.sequence;
    coll->posted_ns = args->posted_ns ? args->posted_ns : weft_now_ns(group->env);
    coll->deadline_ns =
        weft_deadline_ns(coll->posted_ns, args->deadline_ns ? args->deadline_ns : group->limits.deadline_ns);
    memset(&coll->straggler_time, 0, sizeof coll->straggler_time);
    coll->flags.warned = false;
    coll->steps.plan_ended = false;
    coll->steps.head = coll->steps.tail = 0;
    coll->steps.outstanding = 0;
    coll->flags.is_held = false;
    coll->header = (struct coll_header){
        .type = COLL_MESSAGE_DATA,
        .kind = (uint8_t)(coll->flags.is_sendrecv ? WEFT_COLL_SEND : args->kind),
        .plan = (uint8_t)plan->plan,
        .dtype = (uint8_t)(!coll_kind_info_of(args->kind)->has_dtype ? 0 : args->dtype),
        .op = (uint8_t)(coll_is_reduction(args->kind) ? (unsigned)args->op : (unsigned)args->label),
        .group = group->group_id,
        .epoch = group->epoch,
        .rank = group->rank,
        .root = coll->flags.is_sendrecv ? 0 : plan->root,
        .lanes = plan->lanes,
        .sequence = coll->sequence,
        .count = plan->count,
        .chunk = plan->chunk_elems,
        .cuts = layout_hash(group, args, plan->plan),
    };
    if (own_lengths(args)) coll->header.count = 0;
    if (!coll->flags.is_sendrecv && !coll_has_root(args->kind)) coll->header.root = args->subject;
}

enum weft_status coll_check_group(struct weft_group *group, const struct weft_coll_args *pair,
                                  struct weft_error *error)
{
    if (group->progress.is_closing) return weft_error_set(error, WEFT_ERR_CLOSED, "the group is being freed");
    if (group->failure.fail_status == WEFT_OK && !pair) group_control_require_all(group, group->ops.sequence);
    else if (group->failure.fail_status == WEFT_OK && pair->root < group->ranks)
        group_control_require_peer(group, pair->root, pair->kind);
    if (group->failure.fail_status < 0)
        return weft_error_set(error, group->failure.fail_status, "%s", group->failure.fail_text);
    return WEFT_OK;
}

/* Scratch for both plans while a change of the plan table is pending. */
static size_t scratch_for_both(struct weft_group *group, const struct weft_coll_args *args,
                               uint32_t retune_key, size_t bytes)
{
    struct weft_plan_args plan =
        plan_args_of(group, args, retune_pending_plan(group), retune_keeps_order(group, retune_key));
    size_t other = scratch_of(group, &plan, args).total_bytes;
    return other > bytes ? other : bytes;
}

enum weft_status coll_prepare(struct weft_group *group, const struct weft_coll_args *args, bool on_path,
                              uint32_t retune_key, weft_coll_done_fn done, void *context,
                              struct weft_coll **coll_out, struct weft_error *error)
{
    WEFT_TRY(coll_check(group, args, error));
    if (group->ops.active_count + group->ops.prepared_count >= group->limits.operations_max)
        return weft_error_set(error, WEFT_ERR_AGAIN, "%u operations are posted already (operations_max)",
                              group->ops.active_count + group->ops.prepared_count);
    bool can_fall_back = true;
    if (on_path) WEFT_TRY(coll_path.prepare(group, args, &can_fall_back, error));
    uint16_t version = 0;
    bool is_plan_pending = retune_is_pending(group, retune_key);
    enum weft_plan_id forced_plan =
        retune_key ? retune_plan_for(group, retune_key, group->ops.sequence, &version) : WEFT_PLAN_AUTO;
    struct weft_plan_args plan =
        plan_args_of(group, args, forced_plan, retune_keeps_order(group, retune_key));
    struct scratch scratch =
        can_fall_back ? scratch_of(group, &plan, args) : scratch_of_copyin(group, args);
    if (is_plan_pending) scratch.total_bytes = scratch_for_both(group, args, retune_key, scratch.total_bytes);
    if (on_path && can_fall_back) scratch_for_path(&scratch, group, args);
    if (args->urgency > 0) send_credit_open(group);
    struct weft_coll *coll = op_alloc(group, scratch.total_bytes);
    if (!coll)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %s: %zu bytes of scratch",
                              weft_coll_kind_name(args->kind), scratch.total_bytes);
    coll_init(coll, group, args, &plan);
    coll->flags.is_plan_pending = is_plan_pending;
    coll->launch.retune_key = retune_key;
    coll->header.plan_version = version;
    scratch_lay_out(coll, &scratch, &plan);
    input_init(coll, &scratch);
    weft_plan_begin(&coll->steps.cursor, &plan);
    coll->done = done;
    coll->context = context;
    if (coll_has_root(args->kind)) call_digest_add(group, &coll->header);
    if (!coll->flags.is_sendrecv) {
        group->ops.sequence++;
        group->checks.last_op_is_unverified = own_lengths(args) && coll->header.plan != WEFT_PLAN_ONE_HOST;
    }
    group->ops.prepared_count++;
    *coll_out = coll;
    return WEFT_OK;
}

size_t coll_init_template(struct weft_coll *coll, struct weft_group *group, const struct weft_coll_args *args)
{
    struct weft_plan_args plan = plan_args_of(group, args, WEFT_PLAN_AUTO, retune_keeps_order(group, 0));
    struct scratch scratch = scratch_of(group, &plan, args);
    size_t path_bytes = coll_path.scratch_bytes(group, args);
    coll_init(coll, group, args, &plan);
    weft_plan_begin(&coll->steps.cursor, &plan);
    coll->header.plan = WEFT_PLAN_ONE_HOST;
    return scratch.total_bytes > path_bytes ? scratch.total_bytes : path_bytes;
}

/* Runs with each call on the fast path. An operation that fits moves to the front of the list, so the next
 * search ends at once. */
bool op_pool_has_scratch(struct weft_group *group, size_t scratch_bytes)
{
    struct weft_list *node, *spare, *idle = &group->ops.op_pool->idle;
    weft_list_foreach(node, spare, idle) {
        if (weft_container_of(node, struct weft_coll, link)->buffers.scratch_bytes < scratch_bytes) continue;
        if (node == idle->next) return true;
        weft_list_remove(node);
        weft_list_prepend(idle, node);
        return true;
    }
    return false;
}

void coll_resume(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    uint16_t version;
    enum weft_plan_id forced_plan = retune_plan_for(group, coll->launch.retune_key, coll->sequence, &version);
    struct weft_plan_args plan =
        plan_args_of(group, &coll->args, forced_plan, retune_keeps_order(group, coll->launch.retune_key));
    struct scratch scratch = scratch_of(group, &plan, &coll->args);
    WEFT_ASSERT(scratch.total_bytes <= coll->buffers.scratch_bytes);
    coll->flags.is_plan_pending = false;
    if (coll->phase != COLL_RUNNING) return;
    coll->data.wide = is_wide(&plan);
    coll->data.scratch_elem_bytes =
        coll->data.wide ? reduce_partial_bytes(coll->args.dtype) : weft_dtype_bytes(coll->args.dtype);
    coll->header.plan_version = version;
    coll->header.plan = coll->launch.record.plan = (uint8_t)plan.plan;
    coll->header.chunk = plan.chunk_elems;
    coll->header.cuts = layout_hash(group, &coll->args, plan.plan);
    scratch_lay_out(coll, &scratch, &plan);
    input_init(coll, &scratch);
    weft_plan_begin(&coll->steps.cursor, &plan);
    coll_mark_ready(coll);
}

void coll_discard_prepared(struct weft_coll *coll)
{
    coll->group->ops.prepared_count--;
    weft_list_prepend(&coll->group->ops.op_pool->idle, &coll->link);
}

void coll_launch(struct weft_coll *coll, bool on_path, uint64_t now_ns)
{
    struct weft_group *group = coll->group;
    const struct weft_coll_args *args = &coll->args;
    bool in_pair = coll->flags.is_sendrecv && coll_path.carries_sendrecv(group);
    if (group->ops.active_count == 0) group->progress.seen_ns = now_ns;
    if (coll_has_byte_pieces(args->kind)) {
        bool exchanges = args->kind == WEFT_COLL_EXCHANGE_BYTES;
        for (uint32_t rank = 0; rank < group->ranks; rank++)
            args->piece_bytes_out[rank] = args->piece_bytes_max ? UINT64_MAX : 0;
        args->piece_bytes_out[group->rank] = exchanges ? args->piece_bytes_in[group->rank] : args->count;
        coll->header.piece_bytes = args->count; /* of an exchange: set for each message */
    }
    weft_list_append(&group->ops.active, &coll->link);
    group->ops.prepared_count--;
    group->ops.active_count++;
    coll->launch.launch_number = ++group->sending.launch_count;
    coll->launch.is_alone = group->ops.active_count == 1;
    if (!coll->path.is_published)
        coll_event(group, args->kind, WEFT_EVENT_BEGIN, coll->sequence,
                   coll->header.count * coll->data.elem_bytes, WEFT_OK, now_ns);
    bool starts = on_path && coll_path.starts_immediately(group);
    if (starts) coll->header.plan = WEFT_PLAN_ONE_HOST;
    coll_record_post(coll, starts || in_pair);
    if (!on_path && !coll->flags.is_sendrecv) coll_path.launch_by_messages(coll);
    coll->flags.is_counted = coll->flags.is_sendrecv && !in_pair;
    if (coll->flags.is_counted) sendrecv_count_add(group, args->kind, args->root);
    if (on_path || (in_pair && args->kind == WEFT_COLL_RECV)) straggler_wait_begin(coll);
    if (on_path || in_pair) coll_path.launch(coll);
    else if (!coll->flags.is_plan_pending) coll_mark_ready(coll);
}

static enum weft_status check_lengths(const struct weft_group *group, const struct weft_coll_args *args,
                                      struct weft_error *error)
{
    if (args->kind != WEFT_COLL_EXCHANGE_BYTES || !args->piece_bytes_in) return WEFT_OK;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (args->piece_bytes_in[rank] > args->piece_bytes_max)
            return weft_error_set(
                error, WEFT_ERR_INVALID,
                "exchange_bytes: the piece for rank %u has %llu bytes, at most %llu were agreed", rank,
                (unsigned long long)args->piece_bytes_in[rank], (unsigned long long)args->piece_bytes_max);
    return WEFT_OK;
}

enum weft_status weft_coll_post(struct weft_group *group, const struct weft_coll_args *given,
                                weft_coll_done_fn done, void *context, struct weft_coll **coll_out,
                                struct weft_error *error)
{
    WEFT_ASSERT(group && given && done);
    struct weft_coll_args call = *given, *args = &call;
    const bool at_root = coll_kind_info_of(call.kind)->has_root_counts;
    /* only the root's counts are used */
    if (at_root && call.unequal && call.root != group->rank) call.counts = NULL;
    if (!coll_path.send_has_arrived(group, args))
        WEFT_TRY(coll_check_group(group, coll_is_sendrecv(call.kind) ? args : NULL, error));
    WEFT_TRY(check_lengths(group, args, error));
    /* on an error the operation uses messages; peers learn it from the call descriptors */
    (void)coll_path.open(group);
    bool on_path = coll_path.accepts(group, args),
         in_pair = coll_is_sendrecv(call.kind) && coll_path.carries_sendrecv(group);
    size_t elem_bytes = weft_dtype_bytes(call.dtype);
    uint32_t key = on_path ? 0 : retune_key(group, args, call.count * elem_bytes);
    if (!on_path && !in_pair && !group_schedule(group))
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a timer");
    struct weft_coll *coll;
    WEFT_TRY(coll_prepare(group, args, on_path, key, done, context, &coll, error));
    if (key) {
        struct weft_plan_question question = question_of(group, args, call.count * elem_bytes, elem_bytes);
        retune_op_posted(group, key, &question);
    }
    if (on_path && !group_schedule_at(group, coll->posted_ns, coll->deadline_ns)) {
        group->ops.sequence--; /* no peer has seen the sequence */
        coll_discard_prepared(coll);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a timer");
    }
    if (in_pair && (!coll_path.sendrecv_reserve(group, call.root, call.kind == WEFT_COLL_SEND) ||
                    !group_schedule_at(group, coll->posted_ns, coll->deadline_ns))) {
        coll_discard_prepared(coll);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                              "no memory for %s: what this host's ranks see of it, or a timer",
                              weft_coll_kind_name(call.kind));
    }
    coll_launch(coll, on_path, coll->posted_ns); /* the clock was read at the begin of this call */
    retune_sequence_advanced(group);
    if (coll_out) *coll_out = coll;
    return WEFT_IN_PROGRESS;
}

/* End time for the flight recorder and for re-tuning. */
static uint64_t ended_ns(const struct weft_coll *coll, uint64_t callback_ns)
{
    const struct weft_group *group = coll->group;
    if (!group->observers.events && !group->observers.recorder && !group->planning.retune) return 0;
    if (callback_ns == 0 || coll->header.count * coll->data.elem_bytes > TIMED_EXACTLY_BYTES_MIN)
        return weft_now_ns(group->env);
    return callback_ns > coll->posted_ns ? callback_ns : coll->posted_ns;
}

void coll_finish(struct weft_coll *coll, uint64_t callback_ns)
{
    struct weft_group *group = coll->group;
    weft_coll_done_fn done = coll->done;
    coll->done = NULL;
    straggler_wait_end(coll);
    /* a cancel inside done changes nothing */
    if (coll->phase == COLL_RUNNING) coll->phase = COLL_ENDING;
    const uint64_t now_ns = ended_ns(coll, callback_ns);
    if (group->planning.retune && coll->status == WEFT_OK && !coll->path.is_active &&
        group->failure.fail_status == WEFT_OK)
        retune_op_completed(coll, now_ns);
    coll_event(group, coll->args.kind, WEFT_EVENT_END, coll->sequence,
               coll->header.count * coll->data.elem_bytes, coll->status, now_ns);
    coll_record_end(coll, now_ns);
    weft_list_remove(&coll->ready_link);
    weft_list_remove(&coll->link);
    if (coll->path.is_active || coll->path.expects_message) coll_path.finish(coll);
    group->ops.active_count--;
    send_credit_op_ended(coll);
    if (done) done(coll->context, coll->status, coll->text); /* may post, fail or free the group */
    /* the next operation reuses this memory while it is in the caches */
    weft_list_prepend(&group->ops.op_pool->idle, &coll->link);
}

void weft_coll_cancel(struct weft_coll *coll)
{
    /* the peer waits for the message: the operation is completing */
    if (coll->path.expects_message && coll->args.kind == WEFT_COLL_SEND) return;
    coll_abort(coll, WEFT_ERR_CANCELLED, "cancelled by the caller");
}

bool weft_coll_cancel_recv(struct weft_coll *coll)
{
    if (coll->args.kind != WEFT_COLL_RECV || coll->phase != COLL_RUNNING || coll->path.expects_message)
        return false;
    if (coll->path.is_active ? coll_path.recv_is_matched(coll) : coll_has_received(coll))
        return false;
    if (coll->flags.is_counted) sendrecv_count_remove(coll->group, coll->args.root);
    coll_abort(coll, WEFT_ERR_CANCELLED, "cancelled by the caller");
    return true;
}

uint64_t weft_coll_sequence(const struct weft_coll *coll) { return coll->sequence; }
bool weft_coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out)
{
    const char *phase;
    return coll->phase == COLL_RUNNING && coll_waits_for(coll, rank_out, &phase);
}
enum weft_plan_id weft_coll_plan(const struct weft_coll *coll)
{
    return (enum weft_plan_id)coll->header.plan;
}
