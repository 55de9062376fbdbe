/* compressed/all_reduce.c - a compressed all-reduce: the rounds of a codec (compress.h) over a group.
 *
 *     sum rounds     encode ─► all_reduce of f32 by T, in place ─► take_sum on every rank
 *     gather rounds  encode ─► all_gather_bytes ─► a local combiner adds 0..ranks-1 ─► take
 *     regions        encode ─► two exchanges that split a sparse sum by regions (sparse.c) ─► take
 *     slices         encode ─► each rank combines one slice of the elements (slices.c) ─► take
 *
 * Invariant: each way adds in the order of a shard's combiner, so all ranks (and a server) get the same bits.
 * A round is one or more *stages*, each one operation of the group. The post prepares all of them, because a
 * later stage starts at a different time on every rank and must still have the same sequence. A rank whose
 * gradient is not finite sends a marker (NaN in a sum, an empty piece in a gather). All ranks then return
 * WEFT_ERR_INVALID, and the group stays usable. The codec's state is not committed here. While a compute task
 * or a device works, the operation is in group->ops.computing; a timer polls the device (device_poll). */
#include "collective/compressed/slices.h"
#include "collective/compressed/sparse.h"
#include "collective/core/control/group_control.h"
#include "collective/core/group.h"
#include "collective/core/op.h"
#include "collective/core/op_pool.h"

#include <stdio.h>
#include <string.h>

#define SLICED_ROUNDS_MAX 2u /* int8 and int4 have two such rounds, other codecs one */
#define STAGES_MAX WEFT_CODEC_ROUNDS_MAX
_Static_assert(STAGES_MAX >= 3 * SLICED_ROUNDS_MAX, "a sliced round has at most three exchanges");

enum stage_kind {
    STAGE_SUM,       /* all_reduce */
    STAGE_GATHER,    /* all_gather_bytes of contributions */
    STAGE_REGIONS,   /* sparse.c: exchange of pieces */
    STAGE_REGION_SUMS,
    STAGE_PIECES,    /* slices.c: enum codec_slices_exchange, in this order */
    STAGE_PEAKS,
    STAGE_SLICE_SUMS,
};

/* One operation of the group. */
struct stage {
    enum stage_kind kind;
    uint32_t round;               /* of the codec */
};

/* An encode on a device. */
struct codec_op_device {
    struct weft_timer timer;      /* while a device encodes */
    /* the device has not answered since the first; the second is the deadline */
    uint64_t device_wait_since_ns, until_ns;
};
/* Stages of the operation. */
struct codec_op_plan {
    struct stage stages[STAGES_MAX];
    uint32_t stage, stage_count;
    struct weft_coll *colls[STAGES_MAX]; /* prepared operation of each stage until its launch; else NULL */
};
/* Result of the arithmetic. */
struct codec_op_result {
    bool poisoned;                /* this rank's gradient is not finite */
    /* the result of this stage is taken; the task continues with the next encode */
    bool result_is_taken;
    enum weft_status computed;    /* status of the arithmetic */
    uint32_t at_rank;             /* rank whose contribution caused it; UINT32_MAX: unknown */
    bool not_finite;              /* the gradient of some rank is not finite */
    char text[GROUP_TEXT_BYTES];
};

struct codec_op {
    struct weft_group *group;
    struct weft_list link;        /* op_pool->idle_codec_ops while free, ops.computing while a task runs */
    struct weft_task task;
    void (*run)(struct weft_task *task); /* the computation of the task */
    struct codec_op_device device;
    struct weft_coll_codec_member members[WEFT_CODEC_BATCH_MAX]; /* codecs and buffers are borrowed */
    uint32_t count;               /* of members; above 1 all rounds are sums */
    struct weft_codec_spec spec;
    struct weft_shape shape;
    struct weft_combiner *combiner; /* gather rounds; owned while active */
    bool is_sparse;
    struct codec_sparse sparse;     /* open while active and is_sparse */
    struct codec_slices slices[SLICED_ROUNDS_MAX]; /* of round r; open while active and the round is sliced */
    float result_scale;
    weft_coll_done_fn done;
    void *context;
    struct codec_op_plan plan;
    struct codec_op_result result;
    struct weft_codec_exchange exchange;
    struct weft_codec_times *times; /* borrowed; NULL: none */
    uint8_t *memory;              /* owned: contribution | gathered pieces, or the slices of a round |
                                   * lengths */
    size_t memory_bytes;
    uint8_t *contribution, *gathered;
    uint64_t *lengths;
};

static void stage_done(void *context, enum weft_status status, const char *text);
static void device_poll(struct weft_timer *timer);

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static bool is_sum_round(const struct codec_op *op, uint32_t round)
{
    return weft_codec_combine_kind(&op->spec, round) == WEFT_COMBINE_SUM_F32;
}

/* ---- memory ---- */
static struct codec_op *codec_op_alloc(struct weft_group *group, size_t bytes)
{
    struct weft_env *env = group->env;
    struct codec_op *op = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->ops.op_pool->idle_codec_ops) {
        struct codec_op *idle = weft_container_of(node, struct codec_op, link);
        if (!op || idle->memory_bytes >= bytes) op = idle;
        if (idle->memory_bytes >= bytes) break;
    }
    if (!op) {
        op = weft_alloc_zero(env, sizeof *op);
        if (!op) return NULL;
        weft_list_append(&group->ops.op_pool->idle_codec_ops, &op->link);
    }
    if (op->memory_bytes < bytes) {
        weft_free_bytes(env, op->memory);
        op->memory_bytes = 0;
        op->memory = weft_alloc_bytes(env, bytes);
        if (!op->memory) return NULL;
        op->memory_bytes = bytes;
    }
    weft_list_remove(&op->link);
    return op;
}

static void codec_op_release(struct codec_op *op)
{
    for (uint32_t stage = 0; stage < STAGES_MAX; stage++) {
        if (op->plan.colls[stage]) coll_discard_prepared(op->plan.colls[stage]);
        op->plan.colls[stage] = NULL;
    }
    for (uint32_t round = 0; round < SLICED_ROUNDS_MAX; round++) codec_slices_close(&op->slices[round]);
    weft_combiner_free(op->combiner);
    op->combiner = NULL;
    if (op->is_sparse) codec_sparse_close(&op->sparse);
    op->is_sparse = false;
    weft_list_append(&op->group->ops.op_pool->idle_codec_ops, &op->link);
}

void op_pool_free_codec_ops(struct weft_env *env, struct op_pool *op_pool)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &op_pool->idle_codec_ops) {
        struct codec_op *op = weft_container_of(node, struct codec_op, link);
        weft_free_bytes(env, op->memory);
        weft_free_bytes(env, op);
    }
}

/* ---- stages ---- */
static bool is_sliced(const struct weft_group *group, const struct weft_codec_spec *spec,
                      const struct weft_shape *shape, uint32_t round)
{
    return codec_slices_is_used(spec, shape, group->ranks, round, group->limits.sparse_shared_ranks);
}

static void stage_add(struct codec_op *op, enum stage_kind kind, uint32_t round)
{
    WEFT_ASSERT(op->plan.stage_count < STAGES_MAX);
    op->plan.stages[op->plan.stage_count++] = (struct stage){.kind = kind, .round = round};
}

static void plan_pipeline_stages(struct codec_op *op)
{
    op->plan.stage = op->plan.stage_count = 0;
    if (op->is_sparse) {
        stage_add(op, STAGE_REGIONS, 0);
        stage_add(op, STAGE_REGION_SUMS, 0);
        return;
    }
    for (uint32_t round = 0; round < weft_codec_rounds(&op->spec); round++) {
        if (is_sum_round(op, round)) {
            stage_add(op, STAGE_SUM, round);
        } else if (!is_sliced(op->group, &op->spec, &op->shape, round)) {
            stage_add(op, STAGE_GATHER, round);
        } else {
            stage_add(op, STAGE_PIECES, round);
            if (op->spec.id == WEFT_CODEC_F16) stage_add(op, STAGE_PEAKS, round);
            stage_add(op, STAGE_SLICE_SUMS, round);
        }
    }
}

/* Sizes of an operation's memory. Rounds run one after the other and share it. */
struct op_layout {
    size_t contribution_bytes, gathered_bytes, behind_bytes;
    bool is_sparse;
};

static struct op_layout layout_of(const struct weft_group *group, const struct weft_codec_spec *spec,
                                  const struct weft_shape *shape, uint32_t count)
{
    struct op_layout layout = {0};
    size_t sliced_bytes = 0, padded_bytes = 0;
    for (uint32_t round = 0; round < weft_codec_rounds(spec); round++) {
        const size_t bytes = weft_codec_contribution_bytes_max(spec, shape, round);
        if (bytes > layout.contribution_bytes) layout.contribution_bytes = bytes;
        if (weft_codec_combine_kind(spec, round) != WEFT_COMBINE_GATHER) continue;
        struct weft_slices form;
        if (!is_sliced(group, spec, shape, round)) {
            if (bytes > layout.gathered_bytes) layout.gathered_bytes = bytes;
        } else if (weft_slices_of(spec, shape, group->ranks, round, &form)) {
            const size_t slices_bytes = codec_slices_bytes(spec, shape, group->ranks, round);
            if (slices_bytes > sliced_bytes) sliced_bytes = slices_bytes;
            if (form.ranks * form.piece_bytes > padded_bytes) padded_bytes = form.ranks * form.piece_bytes;
        }
    }
    layout.is_sparse = codec_sparse_is_used(spec, shape, group->ranks, group->limits.sparse_shared_ranks);
    layout.contribution_bytes *= count;
    if (padded_bytes > layout.contribution_bytes) layout.contribution_bytes = padded_bytes; /* count is 1 */
    layout.behind_bytes = round_up(layout.gathered_bytes * group->ranks) + group->ranks * sizeof(uint64_t);
    if (sliced_bytes > layout.behind_bytes) layout.behind_bytes = sliced_bytes;
    if (layout.is_sparse) layout.behind_bytes = codec_sparse_bytes(spec, shape, group->ranks);
    return layout;
}

/* Opens what the stages need in addition to their operations. */
static enum weft_status open_stages(struct codec_op *op, bool gathers)
{
    if (op->is_sparse) return codec_sparse_open(&op->sparse, op->group, &op->spec, &op->shape, op->gathered);
    for (uint32_t stage = 0; stage < op->plan.stage_count; stage++) {
        const uint32_t round = op->plan.stages[stage].round;
        if (op->plan.stages[stage].kind != STAGE_PIECES) continue;
        WEFT_ASSERT(round < SLICED_ROUNDS_MAX);
        WEFT_TRY(codec_slices_open(&op->slices[round], op->group, &op->spec, &op->shape, round,
                                   op->contribution, op->gathered));
    }
    if (!gathers) return WEFT_OK;
    return weft_combiner_create(op->group->env, &op->spec, &op->shape, op->group->ranks, &op->combiner);
}

static struct codec_op *op_create(struct weft_group *group, const struct weft_codec_spec *spec,
                                  const struct weft_shape *shape, uint32_t count)
{
    const struct op_layout layout = layout_of(group, spec, shape, count);
    struct codec_op *op = codec_op_alloc(group, round_up(layout.contribution_bytes) + layout.behind_bytes);
    if (!op) return NULL;
    op->group = group;
    op->count = count;
    op->spec = *spec;
    op->spec.global = 0; /* a combiner lives for one step only, so it can keep no residual */
    op->shape = *shape;
    op->combiner = NULL;
    weft_task_init(&op->task);
    weft_timer_init(&op->device.timer, device_poll);
    op->result.result_is_taken = false;
    weft_list_init(&op->link);
    op->is_sparse = layout.is_sparse;
    op->result.poisoned = false;
    memset(op->plan.colls, 0, sizeof op->plan.colls);
    op->exchange =
        (struct weft_codec_exchange){.gradient_bytes = count * weft_shape_elems(shape) * sizeof(float)};
    memset(op->slices, 0, sizeof op->slices);
    op->contribution = op->memory;
    op->gathered = op->memory + round_up(layout.contribution_bytes);
    op->lengths = (uint64_t *)(void *)(op->gathered + round_up(layout.gathered_bytes * group->ranks));
    plan_pipeline_stages(op);
    if (open_stages(op, !layout.is_sparse && layout.gathered_bytes > 0) == WEFT_OK) return op;
    codec_op_release(op);
    return NULL;
}

/* ---- rounds ---- */
static uint32_t subject_of(const struct codec_op *op)
{
    if (op->count == 1) return op->members[0].subject;
    uint64_t hash = WEFT_FNV_BASIS;
    for (uint32_t i = 0; i < op->count; i++) hash = weft_fnv(hash, op->members[i].subject) + 1;
    return weft_subject_batch(hash);
}

static struct weft_coll_args sum_args(const struct codec_op *op, uint32_t round)
{
    return (struct weft_coll_args){
        .kind = WEFT_COLL_ALL_REDUCE,
        .in = op->contribution,
        .out = op->contribution,
        .count =
            op->count * (weft_codec_contribution_bytes_max(&op->spec, &op->shape, round) / sizeof(float)),
        .dtype = WEFT_F32,
        .op = WEFT_SUM,
        .reproducible = true,
    };
}

static struct weft_coll_args gather_args(const struct codec_op *op, uint32_t round)
{
    return (struct weft_coll_args){
        .kind = WEFT_COLL_ALL_GATHER_BYTES,
        .in = op->contribution,
        .out = op->gathered,
        .piece_bytes_max = weft_codec_contribution_bytes_max(&op->spec, &op->shape, round),
        .piece_bytes_out = op->lengths,
    };
}

static struct weft_coll_args stage_args(const struct codec_op *op, const struct stage *stage)
{
    switch (stage->kind) {
    case STAGE_SUM: return sum_args(op, stage->round);
    case STAGE_GATHER: return gather_args(op, stage->round);
    default:
        return codec_slices_args(
            &op->slices[stage->round],
            (enum codec_slices_exchange)(stage->kind - STAGE_PIECES + CODEC_SLICES_PIECES));
    }
}

static enum weft_status prepare_stage(struct codec_op *op, uint32_t index, struct weft_error *error)
{
    struct weft_coll_args args =
        op->is_sparse ? codec_sparse_args(&op->sparse, index) : stage_args(op, &op->plan.stages[index]);
    args.subject = subject_of(op);
    args.urgency = op->members[0].urgency;
    return coll_prepare(op->group, &args, false, 0, stage_done, op, &op->plan.colls[index], error);
}

static void op_end(struct codec_op *op, enum weft_status status, const char *text)
{
    weft_coll_done_fn done = op->done;
    void *context = op->context;
    if (text != op->result.text) snprintf(op->result.text, sizeof op->result.text, "%s", text);
    if (status == WEFT_OK && op->times) weft_codec_times_add(op->times, &op->exchange);
    done(context, status, op->result.text);
    codec_op_release(op);
}

static void launch(struct codec_op *op)
{
    struct weft_coll *coll = op->plan.colls[op->plan.stage];
    op->plan.colls[op->plan.stage] = NULL;
    coll_launch(coll, false, weft_now_ns(op->group->env)); /* it was prepared by the post */
}

/* ---- arithmetic: on the loop's or the compute thread; accesses this operation only ---- */

/* Encodes a member's contribution to the round of this stage, or its marker. Adds its bytes. */
static enum weft_status encode_one(struct codec_op *op, uint32_t stage, uint32_t index, uint64_t *bytes_sum)
{
    const uint32_t round = op->plan.stages[stage].round;
    const struct weft_coll_codec_member *member = &op->members[index];
    size_t bytes = 0, bytes_max = weft_codec_contribution_bytes_max(&op->spec, &op->shape, round);
    uint8_t *contribution = op->contribution + index * bytes_max;
    enum weft_status status = weft_codec_encode(member->codec, round, round == 0 ? member->grad : NULL,
                                                round == 0 ? member->grad_scale : 1.0f, contribution, &bytes);
    if (status == WEFT_IN_PROGRESS || (status < 0 && status != WEFT_ERR_INVALID)) return status;
    const bool poisoned = status == WEFT_ERR_INVALID;
    op->result.poisoned |= poisoned;
    *bytes_sum += bytes;
    if (op->is_sparse) return codec_sparse_cut(&op->sparse, contribution, bytes, poisoned);
    if (op->plan.stages[stage].kind == STAGE_PIECES) {
        codec_slices_cut(&op->slices[round], contribution, poisoned);
        return WEFT_OK;
    }
    if (is_sum_round(op, round)) {
        WEFT_ASSERT(poisoned || bytes == bytes_max); /* sums have equal lengths on all ranks */
        if (poisoned) memset(contribution, 0xff, bytes_max); /* NaN in every element */
    } else {
        op->plan.colls[stage]->args.count = poisoned ? 0 : bytes;
    }
    return WEFT_OK;
}

static enum weft_status encode(struct codec_op *op, uint32_t stage)
{
    enum weft_status all = WEFT_OK;
    uint64_t bytes = 0;
    if (op->exchange.began_ns == 0) op->exchange.began_ns = weft_now_ns(op->group->env);
    if (op->result.computed == WEFT_OK) op->result.poisoned = false;
    for (uint32_t i = 0; i < op->count; i++) {
        const enum weft_status status = encode_one(op, stage, i, &bytes);
        WEFT_TRY(status);
        if (status == WEFT_IN_PROGRESS) all = status; /* the other members' kernels run meanwhile */
    }
    if (all == WEFT_IN_PROGRESS) return all;
    op->exchange.encode_ns += weft_elapsed_ns(op->exchange.began_ns, weft_now_ns(op->group->env));
    op->exchange.began_ns = 0;
    op->exchange.encoded_bytes += bytes;
    return all;
}

static enum weft_status finish(struct codec_op *op)
{
    enum weft_status all = WEFT_OK;
    for (uint32_t i = 0; i < op->count && all == WEFT_OK; i++)
        all = weft_codec_finish_begin(op->members[i].codec, op->result_scale, op->members[i].out);
    for (uint32_t i = 0; i < op->count; i++) {
        const enum weft_status status = weft_codec_settle(op->members[i].codec);
        if (all == WEFT_OK) all = status;
    }
    return all;
}

static enum weft_status not_finite(struct codec_op *op, uint32_t rank)
{
    op->result.not_finite = true;
    op->result.at_rank = rank;
    return WEFT_ERR_INVALID;
}

static uint32_t round_of(const struct codec_op *op) { return op->plan.stages[op->plan.stage].round; }

static enum weft_status take_sum(struct codec_op *op)
{
    const uint32_t round = round_of(op);
    float *sum = (float *)op->contribution;
    size_t bytes = weft_codec_contribution_bytes_max(&op->spec, &op->shape, round);
    const size_t elems = bytes / sizeof(float);
    if (!weft_kernels()->finite_f32(sum, op->count * elems)) return not_finite(op, UINT32_MAX);
    for (uint32_t i = 0; i < op->count; i++, sum += elems)
        WEFT_TRY(weft_codec_take_sum(op->members[i].codec, round, sum, bytes, op->group->ranks));
    return WEFT_OK;
}

static enum weft_status take_gathered(struct codec_op *op)
{
    const uint32_t round = round_of(op);
    size_t piece_bytes_max = weft_codec_contribution_bytes_max(&op->spec, &op->shape, round), bytes;
    for (uint32_t rank = 0; rank < op->group->ranks; rank++)
        if (op->lengths[rank] == 0) return not_finite(op, rank);
    weft_combiner_begin(op->combiner, round);
    for (uint32_t rank = 0; rank < op->group->ranks; rank++) {
        op->result.at_rank = rank;
        WEFT_TRY(weft_combiner_add(op->combiner, op->gathered + rank * piece_bytes_max, op->lengths[rank]));
    }
    op->result.at_rank = UINT32_MAX;
    const void *aggregate;
    WEFT_TRY(weft_combiner_close(op->combiner, &aggregate, &bytes));
    return weft_codec_take(op->members[0].codec, round, aggregate, bytes, op->group->ranks);
}

/* The next stage sends the sum of the own region or slice, or its peak. */
static enum weft_status combine(struct codec_op *op)
{
    struct weft_coll *next = op->plan.colls[op->plan.stage + 1];
    uint32_t empty = UINT32_MAX;
    const enum weft_status status = op->is_sparse
                                        ? codec_sparse_sum(&op->sparse, next, &empty)
                                        : codec_slices_combine(&op->slices[round_of(op)], next, &empty);
    return empty != UINT32_MAX ? not_finite(op, empty) : status;
}

/* Takes the result of a stage. *more_out: the next stage of the round has its input. */
static enum weft_status take_stage(struct codec_op *op, bool *more_out)
{
    const enum stage_kind kind = op->plan.stages[op->plan.stage].kind;
    *more_out = kind == STAGE_REGIONS || kind == STAGE_PIECES || kind == STAGE_PEAKS;
    switch (kind) {
    case STAGE_SUM: return take_sum(op);
    case STAGE_GATHER: return take_gathered(op);
    case STAGE_REGIONS:
    case STAGE_PIECES: return combine(op);
    case STAGE_PEAKS:
        return codec_slices_repack(&op->slices[round_of(op)], op->plan.colls[op->plan.stage + 1],
                                   &op->result.at_rank);
    case STAGE_REGION_SUMS: return codec_sparse_take(&op->sparse, op->members[0].codec, &op->result.at_rank);
    default: return codec_slices_take(&op->slices[round_of(op)], op->members[0].codec, &op->result.at_rank);
    }
}

static void run_first_encode(struct weft_task *task)
{
    struct codec_op *op = weft_container_of(task, struct codec_op, task);
    op->result.computed = encode(op, 0);
}

/* Takes the result of the stage, then encodes the next contribution or writes the gradient. */
static void run_stage(struct weft_task *task)
{
    struct codec_op *op = weft_container_of(task, struct codec_op, task);
    const uint64_t began_ns = weft_now_ns(op->group->env);
    bool more = false;
    if (!op->result.result_is_taken) {
        op->result.computed = take_stage(op, &more);
        op->result.result_is_taken = op->result.computed >= 0 && !more;
    }
    const bool is_last = op->plan.stage + 1 == op->plan.stage_count;
    if (op->result.result_is_taken && is_last) op->result.computed = finish(op);
    if (op->exchange.began_ns == 0) /* an encode that goes on decodes nothing */
        op->exchange.decode_ns += weft_elapsed_ns(began_ns, weft_now_ns(op->group->env));
    if (op->result.result_is_taken && !is_last) op->result.computed = encode(op, op->plan.stage + 1);
}

/* On the loop's or the compute thread. */
static void run_timed(struct weft_task *task)
{
    struct codec_op *op = weft_container_of(task, struct codec_op, task);
    const uint64_t began_ns = weft_now_ns(op->group->env);
    op->run(task);
    op->exchange.compute_ns += weft_elapsed_ns(began_ns, weft_now_ns(op->group->env));
}

/* ---- on the loop ---- */

/* The text of a failed device, else of the status. */
static const char *failure_text(const struct codec_op *op)
{
    for (uint32_t i = 0; i < op->count; i++)
        if (weft_codec_device_error(op->members[i].codec)[0])
            return weft_codec_device_error(op->members[i].codec);
    return weft_status_text(op->result.computed);
}

/* Returns whether the sum of at_rank is unusable, not its contribution. */
static bool is_sum_at_fault(const struct codec_op *op)
{
    switch (op->plan.stages[op->plan.stage].kind) {
    case STAGE_REGION_SUMS: return true;
    case STAGE_PEAKS:
    case STAGE_SLICE_SUMS: return op->slices[round_of(op)].culprit == UINT32_MAX;
    default: return false;
    }
}

static void format_error(struct codec_op *op)
{
    char name[128] = "a rank";
    if (op->result.not_finite && op->result.poisoned) snprintf(name, sizeof name, "this rank");
    else if (op->result.at_rank != UINT32_MAX)
        group_describe(op->group, op->result.at_rank, name, sizeof name);
    if (op->result.not_finite)
        snprintf(op->result.text, sizeof op->result.text,
                 "the gradient of %s is not finite (NaN or infinity): no rank has a result; skip the step or "
                 "lower "
                 "the loss scale",
                 name);
    else if (op->result.at_rank != UINT32_MAX && is_sum_at_fault(op))
        snprintf(op->result.text, sizeof op->result.text,
                 "%s has no usable sum for its share of the elements: %s. If it could not read a "
                 "contribution, its "
                 "own error names the rank",
                 name, weft_reason_text(op->result.computed));
    else if (op->result.at_rank != UINT32_MAX)
        snprintf(op->result.text, sizeof op->result.text, "the contribution of %s cannot be used: %s", name,
                 weft_reason_text(op->result.computed));
    else snprintf(op->result.text, sizeof op->result.text, "compressed all_reduce: %s", failure_text(op));
}

/* Polls the device by a timer. WEFT_ERR_NO_MEMORY: no timer. */
static enum weft_status device_poll_start(struct codec_op *op, bool first)
{
    struct weft_group *group = op->group;
    const uint64_t now_ns = weft_now_ns(group->env);
    if (first) op->device.device_wait_since_ns = now_ns;
    WEFT_TRY(weft_timer_start(
        group->loop, &op->device.timer,
        now_ns + weft_memory_look_ns(weft_elapsed_ns(op->device.device_wait_since_ns, now_ns))));
    weft_list_append(&group->ops.computing, &op->link);
    return WEFT_OK;
}

static void device_poll_start_or_end(struct codec_op *op, bool first)
{
    if (device_poll_start(op, first) < 0) op_end(op, WEFT_ERR_NO_MEMORY, "no memory for a timer");
}

static void first_computed(struct codec_op *op)
{
    if (op->result.computed == WEFT_IN_PROGRESS) {
        device_poll_start_or_end(op, true);
    } else if (op->result.computed < 0) {
        format_error(op);
        op_end(op, op->result.computed, op->result.text);
    } else {
        launch(op);
    }
}

static void stage_computed(struct codec_op *op)
{
    if (op->result.computed == WEFT_IN_PROGRESS) {
        device_poll_start_or_end(op, true);
        return;
    }
    op->result.result_is_taken = false;
    if (op->result.computed == WEFT_OK && ++op->plan.stage < op->plan.stage_count) {
        launch(op);
        return;
    }
    op->result.text[0] = 0;
    if (op->result.computed < 0) format_error(op);
    op_end(op, op->result.computed, op->result.text);
}

/* The group may have ended while the task ran. */
static void task_done(struct weft_task *task)
{
    struct codec_op *op = weft_container_of(task, struct codec_op, task);
    struct weft_group *group = op->group;
    weft_list_remove(&op->link);
    if (group->failure.fail_status < 0) op_end(op, group->failure.fail_status, group->failure.fail_text);
    else if (op->run == run_first_encode) first_computed(op);
    else stage_computed(op);
}

/* Returns false if the arithmetic ran inside this call. */
static bool compute_start(struct codec_op *op, void (*run)(struct weft_task *task))
{
    uint64_t elements = op->count * weft_shape_elems(&op->shape);
    if (op->result.computed != WEFT_IN_PROGRESS) op->result.computed = WEFT_OK;
    op->result.not_finite = false;
    op->result.at_rank = UINT32_MAX;
    op->run = run;
    op->task.run = run_timed;
    op->task.done = task_done;
    if (elements <= WEFT_LOOP_SLICE) {
        run_timed(&op->task);
        return false;
    }
    weft_list_append(&op->group->ops.computing, &op->link);
    weft_loop_compute(op->group->loop, &op->task, elements);
    return true;
}

/* Returns whether all devices have completed the queued work. A failed device counts as ready: the encode
 * then returns its error. */
static bool devices_are_ready(const struct codec_op *op)
{
    for (uint32_t i = 0; i < op->count; i++)
        if (weft_codec_pending(op->members[i].codec) == WEFT_IN_PROGRESS) return false;
    return true;
}

static void device_poll(struct weft_timer *timer)
{
    struct codec_op *op = weft_container_of(timer, struct codec_op, device.timer);
    struct weft_group *group = op->group;
    weft_list_remove(&op->link);
    if (group->failure.fail_status < 0) {
        op_end(op, group->failure.fail_status, group->failure.fail_text);
    } else if (weft_now_ns(group->env) > op->device.until_ns) {
        op_end(op, WEFT_ERR_DEADLINE, "the device of this rank has not encoded its gradient in time");
    } else if (!devices_are_ready(op)) {
        device_poll_start_or_end(op, false);
    } else if (!compute_start(op, op->run)) {
        if (op->run == run_first_encode) first_computed(op);
        else stage_computed(op);
    }
}

static void stage_done(void *context, enum weft_status status, const char *text)
{
    struct codec_op *op = context;
    op->result.computed = WEFT_OK;
    if (status < 0) op_end(op, status, text);
    else if (!compute_start(op, run_stage)) stage_computed(op);
}

void codec_close(struct weft_group *group, enum weft_status status, const char *text)
{
    while (!weft_list_empty(&group->ops.computing)) {
        struct codec_op *op = weft_list_first(&group->ops.computing, struct codec_op, link);
        weft_timer_stop(group->loop, &op->device.timer);
        weft_loop_compute_cancel(group->loop, &op->task);
        weft_list_remove(&op->link);
        op_end(op, status, text);
    }
}

bool weft_coll_codec_can_batch(const struct weft_codec_spec *resolved)
{
    for (uint32_t round = 0; round < weft_codec_rounds(resolved); round++)
        if (weft_codec_combine_kind(resolved, round) != WEFT_COMBINE_SUM_F32) return false;
    return true;
}

static bool is_valid_batch(const struct weft_coll_codec_args *args)
{
    for (uint32_t i = 0; i < args->count; i++)
        if (!args->members[i].grad || !args->members[i].out) return false;
    return args->count == 1 || (args->count > 1 && args->count <= WEFT_CODEC_BATCH_MAX &&
                                weft_coll_codec_can_batch(args->resolved));
}

enum weft_status weft_coll_codec_all_reduce(struct weft_group *group, const struct weft_coll_codec_args *args,
                                            weft_coll_done_fn done, void *context, struct weft_error *error)
{
    const uint64_t elems = weft_shape_elems(args->shape);
    if (!is_valid_batch(args) || elems == 0)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "compressed all_reduce: a buffer is NULL, the shape is empty, or these do not go together");
    WEFT_TRY(coll_check_group(group, NULL, error));
    if (!group_schedule(group)) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a timer");
    struct codec_op *op = op_create(group, args->resolved, args->shape, args->count);
    if (!op)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                              "no memory for a compressed all_reduce of %llu elements",
                              (unsigned long long)(args->count * elems));
    memcpy(op->members, args->members, args->count * sizeof *args->members);
    op->result_scale = args->result_scale;
    op->times = args->times;
    op->done = done;
    op->context = context;
    op->result.computed = WEFT_OK;
    op->device.until_ns = weft_deadline_ns(weft_now_ns(group->env), group->limits.deadline_ns);
    uint64_t sequence = group->ops.sequence;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < op->plan.stage_count && status == WEFT_OK; i++)
        status = prepare_stage(op, i, error);
    if (status == WEFT_OK && compute_start(op, run_first_encode)) return WEFT_IN_PROGRESS;
    if (status == WEFT_OK && op->result.computed == WEFT_IN_PROGRESS) {
        const enum weft_status looks = device_poll_start(op, true);
        if (looks == WEFT_OK) return WEFT_IN_PROGRESS;
        op->result.computed = looks;
    }
    if (status == WEFT_OK && (status = op->result.computed) < 0)
        weft_error_set(error, status, "compressed all_reduce: %s", failure_text(op));
    if (status < 0) {
        codec_op_release(op);
        group->ops.sequence = sequence; /* nothing was posted: the sequences are free again */
        return status;
    }
    launch(op);
    return WEFT_IN_PROGRESS;
}
