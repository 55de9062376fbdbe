/* retune.c - see retune.h: measurements of each rank, and the protocol that changes a plan on all ranks at
 * the same operation. */
#include "collective/core/retune.h"

#include "collective/core/control/group_control.h"

#include <string.h>

#define NO_TIME UINT64_MAX /* report of a rank without a measurement */
enum { KEY_REPRODUCIBLE = 1 << 16, KEY_ORDERED = 1 << 17, KEY_WIDENED = 1 << 18 };

/* ---- cells ---- */
uint32_t retune_key(const struct weft_group *group, const struct weft_coll_args *args, uint64_t bytes)
{
    const struct coll_kind_info *kind = coll_kind_info_of(args->kind);
    const bool sums = kind->is_reduction;
    if (!group->planning.retune || !kind->is_retunable || args->plan != WEFT_PLAN_AUTO || args->counts ||
        args->unequal || bytes == 0)
        return 0;
    uint32_t key = (uint32_t)args->kind | (uint32_t)(63 - __builtin_clzll(bytes)) << 8;
    bool floats = args->dtype == WEFT_F64 || args->dtype == WEFT_F32 || reduce_is_widened(args->dtype);
    if (sums && args->reproducible) key |= KEY_REPRODUCIBLE;
    if (sums && floats && args->op != WEFT_MIN && args->op != WEFT_MAX) key |= KEY_ORDERED;
    if (sums && reduce_is_widened(args->dtype)) key |= KEY_WIDENED;
    return key;
}

static struct retune_cell *cell_of(const struct weft_group *group, uint32_t key)
{
    struct retune *retune = group->planning.retune;
    if (!key || !retune) return NULL;
    if (retune->cells[retune->last].key == key) return &retune->cells[retune->last];
    for (uint32_t i = 0; i < RETUNE_CELLS_MAX; i++)
        if (retune->cells[i].key == key) return &retune->cells[retune->last = i];
    return NULL;
}

static struct retune_cell *cell_get_or_add(struct weft_group *group, uint32_t key)
{
    struct retune_cell *cell = cell_of(group, key);
    for (uint32_t i = 0; !cell && i < RETUNE_CELLS_MAX; i++) {
        if (group->planning.retune->cells[i].key) continue;
        cell = &group->planning.retune->cells[i];
        *cell =
            (struct retune_cell){.key = key, .least_ns = NO_TIME, .recheck_after_ops = RETUNE_RECHECK_OPS};
    }
    return cell;
}

enum weft_plan_id retune_plan_for(const struct weft_group *group, uint32_t key, uint64_t sequence,
                                  uint16_t *version_out)
{
    const struct retune_cell *cell = cell_of(group, key);
    bool before = cell && sequence < cell->from;
    *version_out = cell ? (uint16_t)(before ? cell->version_before : cell->version) : 0;
    return !cell ? WEFT_PLAN_AUTO : before ? cell->plan_before : cell->plan;
}

bool retune_is_pending(const struct weft_group *group, uint32_t key)
{
    return key && group->planning.retune->next.open && group->planning.retune->next.key == key;
}
bool retune_keeps_order(const struct weft_group *group, uint32_t key)
{
    return key & KEY_ORDERED && group->planning.retune && group->planning.retune->keeps_order;
}
enum weft_plan_id retune_pending_plan(const struct weft_group *group)
{
    return group->planning.retune->next.plan;
}

void retune_op_posted(struct weft_group *group, uint32_t key, const struct weft_plan_question *question)
{
    struct retune_cell *cell = cell_get_or_add(group, key);
    if (!cell || cell->candidates) return;
    cell->question = *question;
    cell->question.forced_plan = WEFT_PLAN_AUTO;
    cell->candidates = retune_candidates(&cell->question, group->planning.retune->policy, key & KEY_ORDERED);
    if (cell->settled == WEFT_PLAN_AUTO) return;
    /* the seed is no candidate in this job: start from the model */
    if (!(cell->candidates >> cell->settled & 1)) {
        cell->settled = WEFT_PLAN_AUTO;
        return;
    }
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) /* the earlier job found them slower */
        if (plan != (int)cell->settled) cell->times_ns[plan] = NO_TIME;
}

/* ---- to rank 0 ---- */
static void retune_messages_send(struct weft_group *group);

static void retune_message_sent(struct weft_completion *completion, enum weft_status status)
{
    struct retune_message *retune_message = weft_container_of(completion, struct retune_message, completion);
    struct weft_group *group = retune_message->group;
    retune_message->busy = false;
    if (!group->progress.is_closing && group->failure.fail_status == WEFT_OK) retune_messages_send(group);
    group_transport_op_done(group);
}

/* Errors other than WEFT_ERR_AGAIN count as sent: a lost connection is reported elsewhere. */
static void retune_message_send(struct weft_group *group, struct retune_message *retune_message)
{
    if (!retune_message->is_wanted || retune_message->busy) return;
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &retune_message->header);
    struct weft_message message = {
        .tag = group_control_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    retune_message->group = group;
    weft_completion_init(&retune_message->completion, 1, retune_message_sent);
    enum weft_status status =
        weft_transport_send(group->peer_table->peers[0], &message, &retune_message->completion);
    if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) {
        group->progress.needs_retry = true;
        group_schedule(group);
        return;
    }
    retune_message->is_wanted = false;
    if (status != WEFT_IN_PROGRESS) return;
    retune_message->busy = true;
    group->sending.outstanding++;
}

static struct coll_header control_header(const struct weft_group *group, enum coll_message_type type,
                                         uint32_t version)
{
    return (struct coll_header){.type = (uint8_t)type,
                                .group = group->group_id,
                                .epoch = group->epoch,
                                .rank = group->rank,
                                .sequence = version};
}

static uint64_t measured_ns(const struct retune_cell *cell)
{
    if (cell->least_ns != NO_TIME) return cell->least_ns;
    return cell->samples ? cell->sum_ns / cell->samples : NO_TIME;
}

static void retune_messages_send(struct weft_group *group)
{
    struct retune *retune = group->planning.retune;
    for (uint32_t i = 0; i < RETUNE_CELLS_MAX && !retune->report.is_wanted && !retune->report.busy; i++) {
        struct retune_cell *cell = &retune->cells[i];
        if (!cell->report_is_due) continue;
        cell->report_is_due = false;
        retune->report.header = control_header(group, COLL_MESSAGE_RETUNE_REPORT, cell->version);
        retune->report.header.cuts = cell->key;
        retune->report.header.count = measured_ns(cell);
        retune->report.is_wanted = true;
    }
    retune_message_send(group, &retune->report);
    retune_message_send(group, &retune->ack);
}

/* ---- a change takes effect ---- */
static void version_start(struct retune_cell *cell, uint32_t version, enum weft_plan_id plan, uint64_t from)
{
    cell->version_before = cell->version;
    cell->plan_before = cell->plan;
    cell->version = version;
    cell->plan = plan;
    cell->from = from;
    cell->count = cell->samples = cell->reports = 0;
    cell->sum_ns = cell->worst_ns = 0;
    cell->least_ns = NO_TIME;
    cell->report_is_due = cell->has_reported = cell->is_wanted = false;
    cell->ops_since_settled = 0;
}

static void close_change(struct weft_group *group, uint64_t from, bool refused)
{
    struct retune *retune = group->planning.retune;
    struct retune_cell *cell = cell_of(group, retune->next.key);
    retune->next.open = false;
    retune->is_disabled |= refused;
    if (cell && !refused) version_start(cell, retune->next.version, retune->next.plan, from);
    if (!refused) retune->last_from = from;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->flags.is_plan_pending) coll_resume(coll);
    }
}

static bool open_change(struct weft_group *group, uint32_t version, uint32_t key, enum weft_plan_id plan)
{
    struct retune *retune = group->planning.retune;
    retune->version = version;
    if (!cell_get_or_add(group, key)) return false;
    retune->next.open = true;
    retune->next.version = version;
    retune->next.key = key;
    retune->next.plan = plan;
    return true;
}

/* ---- rank 0 ---- */
static void publish_next(struct weft_group *group)
{
    struct retune *retune = group->planning.retune;
    if (retune->next.open || retune->is_disabled || retune->table.busy || retune->commit.busy ||
        group->ops.sequence < retune->last_from)
        return;
    for (uint32_t i = 0; i < RETUNE_CELLS_MAX; i++) {
        struct retune_cell *cell = &retune->cells[i];
        if (!cell->key || !cell->is_wanted) continue;
        cell->is_wanted = false;
        open_change(group, retune->version + 1, cell->key, cell->next);
        retune->acks = 1;
        retune->refused = false;
        retune->from = group->ops.sequence;
        struct coll_header *header = &retune->table_header;
        *header = control_header(group, COLL_MESSAGE_RETUNE_TABLE, retune->version);
        header->cuts = cell->key;
        header->root = cell->next;
        header->lanes = retune->keeps_order = retune->policy == WEFT_RETUNE_SAME_ORDER;
        group_control_broadcast_header(&retune->table, group, header);
        return;
    }
}

static void handle_ack(struct weft_group *group, const struct coll_header *header)
{
    struct retune *retune = group->planning.retune;
    if (!retune->next.open || header->sequence != retune->next.version) return;
    /* a duplicate, or a leave after the ACK */
    if (retune->acked[header->rank] == retune->next.version) return;
    retune->acked[header->rank] = retune->next.version;
    if (header->count > retune->from) retune->from = header->count;
    retune->refused |= header->status < 0;
    if (++retune->acks < group->ranks) return;
    struct coll_header *commit = &retune->commit_header;
    *commit = control_header(group, COLL_MESSAGE_RETUNE_COMMIT, retune->next.version);
    commit->count = retune->from;
    commit->status = retune->refused ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    group_control_broadcast_header(&retune->commit, group, commit);
    close_change(group, retune->from, retune->refused);
}

static void request_change(struct retune_cell *cell, enum weft_plan_id plan)
{
    cell->is_wanted = true;
    cell->next = plan;
}

/* UNTRUSTED: returns whether retune_key can have made the key. */
static bool is_valid_key(uint64_t key)
{
    return key != 0 && key >> 19 == 0 && (key >> 8 & 0xff) < 64;
}

/* A root that does not wait may report before rank 0 has posted its first operation of the cell. The
 * report counts. Rank 0 decides after its own report, which has the question. */
static void handle_report(struct weft_group *group, uint64_t key, uint64_t version, uint64_t time_ns)
{
    if (!is_valid_key(key)) return;
    struct retune_cell *cell =
        version == 0 ? cell_get_or_add(group, (uint32_t)key) : cell_of(group, (uint32_t)key);
    if (!cell || version != cell->version) return;
    if (time_ns != NO_TIME && time_ns > cell->worst_ns) cell->worst_ns = time_ns;
    if (++cell->reports < group->ranks || cell->worst_ns == 0 || !cell->candidates) return;
    enum weft_plan_id in_force = cell->plan ? cell->plan : weft_plan_choose(&cell->question, NULL);
    enum weft_plan_id settled = cell->settled, next = retune_pick(cell, in_force, cell->worst_ns);
    if (next != in_force) request_change(cell, next);
    if (cell->settled == settled && settled != WEFT_PLAN_AUTO &&
        cell->recheck_after_ops < RETUNE_RECHECK_OPS_MAX)
        cell->recheck_after_ops *= 2;
    publish_next(group);
}

void retune_seed(struct weft_group *group, const struct retune_cell *seed)
{
    struct retune_cell *cell = cell_get_or_add(group, seed->key);
    if (!cell) return;
    cell->settled = seed->settled; /* published when all ranks have reported the time of the model's plan */
    cell->times_ns[cell->settled] = seed->times_ns[cell->settled];
}

/* ---- measuring ---- */
void retune_op_completed(struct weft_coll *coll, uint64_t now_ns)
{
    struct weft_group *group = coll->group;
    struct retune *retune = group->planning.retune;
    uint64_t begin_ns = coll->posted_ns > retune->last_end_ns ? coll->posted_ns : retune->last_end_ns;
    bool is_alone = coll->launch.is_alone && group->ops.active_count == 1 &&
                    group->sending.launch_count == coll->launch.launch_number;
    retune->last_end_ns = now_ns;
    struct retune_cell *cell = cell_of(group, coll->launch.retune_key);
    if (!cell || coll->header.plan_version != (uint16_t)cell->version || retune->is_disabled) return;
    if (++cell->count > 1) {
        uint64_t took_ns = now_ns > begin_ns ? now_ns - begin_ns : 1;
        cell->samples++;
        cell->sum_ns += took_ns;
        if (is_alone && took_ns < cell->least_ns) cell->least_ns = took_ns;
    }
    if (cell->count >= RETUNE_SAMPLES && !cell->has_reported) {
        cell->has_reported = true;
        if (group->rank == 0) handle_report(group, cell->key, cell->version, measured_ns(cell));
        else cell->report_is_due = true;
    }
    if (group->rank == 0) {
        bool idle = cell->reports >= group->ranks && !cell->is_wanted && !retune_is_pending(group, cell->key);
        if (idle && ++cell->ops_since_settled >= cell->recheck_after_ops)
            request_change(cell, cell->plan ? cell->plan : weft_plan_choose(&cell->question, NULL));
        publish_next(group);
    } else {
        retune_messages_send(group);
    }
}

/* ---- received messages ---- */
/* UNTRUSTED: returns whether retune_key can have made the key, and the plan supports its kind. */
static bool is_valid_change(uint64_t key, uint32_t plan)
{
    uint32_t kind = key & 0xff;
    return is_valid_key(key) && plan > 0 && plan < WEFT_PLAN_COUNT &&
           weft_plan_supports((enum weft_plan_id)plan, (enum weft_coll_kind)kind);
}

void retune_sequence_advanced(struct weft_group *group)
{
    struct retune *retune = group->planning.retune;
    if (!retune || !retune->deferred_table.type || group->ops.sequence < retune->last_from) return;
    bool takes =
        open_change(group, (uint32_t)retune->deferred_table.sequence, (uint32_t)retune->deferred_table.cuts,
                    (enum weft_plan_id)retune->deferred_table.root);
    retune->keeps_order = retune->deferred_table.lanes != 0;
    retune->deferred_table.type = 0;
    retune->ack.header = control_header(group, COLL_MESSAGE_RETUNE_ACK, retune->version);
    retune->ack.header.count = group->ops.sequence;
    retune->ack.header.status = takes ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    retune->ack.is_wanted = true;
    retune_messages_send(group);
}

void retune_receive(struct weft_group *group, const struct coll_header *header)
{
    struct retune *retune = group->planning.retune;
    if (!retune)
        return; /* if one rank does not re-tune, no cell gets all reports and no change is published */
    bool leads = group->rank == 0;
    if (header->type == COLL_MESSAGE_RETUNE_REPORT && leads)
        handle_report(group, header->cuts, header->sequence, header->count);
    if (header->type == COLL_MESSAGE_RETUNE_ACK && leads) handle_ack(group, header);
    if (header->rank != 0 || leads) return;
    if (header->type == COLL_MESSAGE_RETUNE_COMMIT && retune->next.open &&
        header->sequence == retune->next.version)
        close_change(group, header->count, header->status < 0);
    else if (header->type == COLL_MESSAGE_RETUNE_COMMIT && header->status < 0)
        retune->is_disabled = true; /* this rank refused */
    if (header->type != COLL_MESSAGE_RETUNE_TABLE || retune->next.open ||
        !is_valid_change(header->cuts, header->root))
        return;
    retune->deferred_table = *header;
    retune_sequence_advanced(group);
}

void retune_peer_left(struct weft_group *group, uint32_t rank)
{
    struct retune *retune = group->planning.retune;
    if (!retune) return;
    retune->is_disabled = true;
    if (rank == 0) { /* rank 0 sends a COMMIT before it leaves */
        retune->deferred_table.type = 0;
        if (retune->next.open) close_change(group, 0, true);
    } else if (group->rank == 0) {
        handle_ack(group, &(struct coll_header){
                              .rank = rank, .sequence = retune->next.version, .status = WEFT_ERR_CLOSED});
    }
}

void retune_retry(struct weft_group *group)
{
    if (!group->planning.retune) return;
    retune_messages_send(group);
    if (group->rank == 0) publish_next(group);
}

/* ---- create, free ---- */
enum weft_status retune_create(struct weft_group *group, enum weft_retune policy)
{
    if (policy == WEFT_RETUNE_OFF || group->ranks < 2) return WEFT_OK;
    size_t acked = group->rank == 0 ? group->ranks : 0;
    group->planning.retune = weft_alloc_zero(group->env, sizeof *group->planning.retune +
                                                             acked * sizeof group->planning.retune->acked[0]);
    if (!group->planning.retune) return WEFT_ERR_NO_MEMORY;
    group->planning.retune->policy = policy;
    return WEFT_OK;
}

void retune_free(struct weft_group *group)
{
    weft_free_bytes(group->env, group->planning.retune);
    group->planning.retune = NULL;
}
