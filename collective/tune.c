/* tune.c - see tune.h: what each rank measures, and how all change a cell's plan at the same operation. */
#include "collective/tune.h"

#include <string.h>

#define NO_TIME UINT64_MAX /* a report of a rank that could measure nothing */
enum { KEY_REPRODUCIBLE = 1 << 16, KEY_ORDERED = 1 << 17, KEY_NARROW = 1 << 18 };

/* ---- cells ---- */
uint32_t tune_key(const struct weft_group *group, const struct weft_coll_args *args, uint64_t bytes)
{
    bool sums = args->kind == WEFT_COLL_ALL_REDUCE || args->kind == WEFT_COLL_REDUCE_SCATTER ||
                args->kind == WEFT_COLL_REDUCE;
    bool moves = args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_BROADCAST ||
                 args->kind == WEFT_COLL_GATHER || args->kind == WEFT_COLL_SCATTER ||
                 args->kind == WEFT_COLL_ALL_TO_ALL;
    if (!group->tune || (!sums && !moves) || args->plan != WEFT_PLAN_AUTO || args->counts || args->unequal ||
        bytes == 0)
        return 0;
    uint32_t key = (uint32_t)args->kind | (uint32_t)(63 - __builtin_clzll(bytes)) << 8;
    bool floats = args->dtype == WEFT_F64 || args->dtype == WEFT_F32 || sum_is_narrow(args->dtype);
    if (sums && args->reproducible) key |= KEY_REPRODUCIBLE;
    if (sums && floats && args->op != WEFT_MIN && args->op != WEFT_MAX) key |= KEY_ORDERED;
    if (sums && sum_is_narrow(args->dtype)) key |= KEY_NARROW;
    return key;
}

static struct tune_cell *cell_of(const struct weft_group *group, uint32_t key)
{
    struct tune *tune = group->tune;
    if (!key || !tune) return NULL;
    if (tune->cells[tune->last].key == key) return &tune->cells[tune->last];
    for (uint32_t i = 0; i < TUNE_CELLS; i++)
        if (tune->cells[i].key == key) return &tune->cells[tune->last = i];
    return NULL;
}

static struct tune_cell *cell_make(struct weft_group *group, uint32_t key)
{
    struct tune_cell *cell = cell_of(group, key);
    for (uint32_t i = 0; !cell && i < TUNE_CELLS; i++) {
        if (group->tune->cells[i].key) continue;
        cell = &group->tune->cells[i];
        *cell = (struct tune_cell){.key = key, .least_ns = NO_TIME, .watch = TUNE_WATCH};
    }
    return cell;
}

enum weft_plan_id tune_told(const struct weft_group *group, uint32_t key, uint64_t sequence,
                            uint16_t *version_out)
{
    const struct tune_cell *cell = cell_of(group, key);
    bool before = cell && sequence < cell->from;
    *version_out = cell ? (uint16_t)(before ? cell->version_before : cell->version) : 0;
    return !cell ? WEFT_PLAN_AUTO : before ? cell->plan_before : cell->plan;
}

bool tune_holds(const struct weft_group *group, uint32_t key)
{
    return key && group->tune->next.open && group->tune->next.key == key;
}
bool tune_in_order(const struct weft_group *group, uint32_t key)
{
    return key & KEY_ORDERED && group->tune && group->tune->in_order;
}
enum weft_plan_id tune_coming(const struct weft_group *group)
{
    return group->tune->next.plan;
}

void tune_posted(struct weft_group *group, uint32_t key, const struct weft_plan_question *question)
{
    struct tune_cell *cell = cell_make(group, key);
    if (!cell || cell->candidates) return;
    cell->question = *question;
    cell->question.told = WEFT_PLAN_AUTO;
    cell->candidates = tune_candidates(&cell->question, group->tune->policy, key & KEY_ORDERED);
    if (cell->settled == WEFT_PLAN_AUTO) return;
    if (!(cell->candidates >> cell->settled & 1)) { /* not for this job: begin anew */
        cell->settled = WEFT_PLAN_AUTO;
        return;
    }
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) /* another job has found them slower */
        if (plan != (int)cell->settled) cell->times_ns[plan] = NO_TIME;
}

/* ---- to rank 0 ---- */
static void tells_go_on(struct weft_group *group);

static void tell_sent(struct weft_completion *completion, enum weft_status status)
{
    struct tell *tell = weft_container_of(completion, struct tell, completion);
    struct weft_group *group = tell->group;
    tell->busy = false;
    if (!group->closing && group->fail_status == WEFT_OK) tells_go_on(group);
    group_released(group);
}

/* Any trouble but "later" counts as told: a connection that is gone is news of its own. */
static void tell_go_on(struct weft_group *group, struct tell *tell)
{
    if (!tell->wanted || tell->busy) return;
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &tell->header);
    struct weft_message message = {
        .tag = group_news_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    tell->group = group;
    weft_completion_init(&tell->completion, 1, tell_sent);
    enum weft_status status = weft_transport_send(group->roster->peers[0], &message, &tell->completion);
    if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) {
        group->retry = true;
        group_kick(group);
        return;
    }
    tell->wanted = false;
    if (status != WEFT_IN_PROGRESS) return;
    tell->busy = true;
    group->outstanding++;
}

static struct coll_header news_header(const struct weft_group *group, enum coll_message_type type,
                                      uint32_t version)
{
    return (struct coll_header){.type = (uint8_t)type,
                                .group = group->group_id,
                                .epoch = group->epoch,
                                .rank = group->rank,
                                .sequence = version};
}

static uint64_t measured_ns(const struct tune_cell *cell)
{
    if (cell->least_ns != NO_TIME) return cell->least_ns;
    return cell->samples ? cell->sum_ns / cell->samples : NO_TIME;
}

static void tells_go_on(struct weft_group *group)
{
    struct tune *tune = group->tune;
    for (uint32_t i = 0; i < TUNE_CELLS && !tune->report.wanted && !tune->report.busy; i++) {
        struct tune_cell *cell = &tune->cells[i];
        if (!cell->due) continue;
        cell->due = false;
        tune->report.header = news_header(group, COLL_MESSAGE_TUNE_REPORT, cell->version);
        tune->report.header.cuts = cell->key;
        tune->report.header.count = measured_ns(cell);
        tune->report.wanted = true;
    }
    tell_go_on(group, &tune->report);
    tell_go_on(group, &tune->ack);
}

/* ---- a change comes into force ---- */
static void version_begins(struct tune_cell *cell, uint32_t version, enum weft_plan_id plan, uint64_t from)
{
    cell->version_before = cell->version;
    cell->plan_before = cell->plan;
    cell->version = version;
    cell->plan = plan;
    cell->from = from;
    cell->count = cell->samples = cell->reports = 0;
    cell->sum_ns = cell->worst_ns = 0;
    cell->least_ns = NO_TIME;
    cell->due = cell->reported = cell->wanted = false;
    cell->quiet = 0;
}

static void close_change(struct weft_group *group, uint64_t from, bool refused)
{
    struct tune *tune = group->tune;
    struct tune_cell *cell = cell_of(group, tune->next.key);
    tune->next.open = false;
    tune->off |= refused;
    if (cell && !refused) version_begins(cell, tune->next.version, tune->next.plan, from);
    if (!refused) tune->last_from = from;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->held) coll_unhold(coll);
    }
}

static bool open_change(struct weft_group *group, uint32_t version, uint32_t key, enum weft_plan_id plan)
{
    struct tune *tune = group->tune;
    tune->version = version;
    if (!cell_make(group, key)) return false;
    tune->next.open = true;
    tune->next.version = version;
    tune->next.key = key;
    tune->next.plan = plan;
    return true;
}

/* ---- rank 0 ---- */
static void publish_next(struct weft_group *group)
{
    struct tune *tune = group->tune;
    if (tune->next.open || tune->off || tune->table.busy || tune->commit.busy ||
        group->sequence < tune->last_from)
        return;
    for (uint32_t i = 0; i < TUNE_CELLS; i++) {
        struct tune_cell *cell = &tune->cells[i];
        if (!cell->key || !cell->wanted) continue;
        cell->wanted = false;
        open_change(group, tune->version + 1, cell->key, cell->next);
        tune->acks = 1;
        tune->refused = false;
        tune->from = group->sequence;
        struct coll_header *header = &tune->table_header;
        *header = news_header(group, COLL_MESSAGE_TUNE_TABLE, tune->version);
        header->cuts = cell->key;
        header->root = cell->next;
        header->lanes = tune->in_order = tune->policy == WEFT_RETUNE_SAME_ORDER;
        control_publish(&tune->table, group, header);
        return;
    }
}

static void acknowledged(struct weft_group *group, const struct coll_header *header)
{
    struct tune *tune = group->tune;
    if (!tune->next.open || header->sequence != tune->next.version) return;
    if (tune->acked[header->rank] == tune->next.version) return; /* left after its ACK; or says it twice */
    tune->acked[header->rank] = tune->next.version;
    if (header->count > tune->from) tune->from = header->count;
    tune->refused |= header->status < 0;
    if (++tune->acks < group->ranks) return;
    struct coll_header *commit = &tune->commit_header;
    *commit = news_header(group, COLL_MESSAGE_TUNE_COMMIT, tune->next.version);
    commit->count = tune->from;
    commit->status = tune->refused ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    control_publish(&tune->commit, group, commit);
    close_change(group, tune->from, tune->refused);
}

static void want(struct tune_cell *cell, enum weft_plan_id plan)
{
    cell->wanted = true;
    cell->next = plan;
}

/* UNTRUSTED: a key that tune_key could have made. */
static bool sensible_key(uint64_t key) { return key != 0 && key >> 19 == 0 && (key >> 8 & 0xff) < 64; }

/* A root that waits for nobody may report before rank 0 has posted its first of this cell: that counts, too, and what it is about comes
 * with rank 0's own, without which nothing is decided. */
static void reported(struct weft_group *group, uint64_t key, uint64_t version, uint64_t time_ns)
{
    if (!sensible_key(key)) return;
    struct tune_cell *cell = version == 0 ? cell_make(group, (uint32_t)key) : cell_of(group, (uint32_t)key);
    if (!cell || version != cell->version) return;
    if (time_ns != NO_TIME && time_ns > cell->worst_ns) cell->worst_ns = time_ns;
    if (++cell->reports < group->ranks || cell->worst_ns == 0 || !cell->candidates) return;
    enum weft_plan_id in_force = cell->plan ? cell->plan : weft_plan_choose(&cell->question, NULL);
    enum weft_plan_id settled = cell->settled, next = tune_pick(cell, in_force, cell->worst_ns);
    if (next != in_force) want(cell, next);
    if (cell->settled == settled && settled != WEFT_PLAN_AUTO && cell->watch < TUNE_WATCH_MAX)
        cell->watch *= 2;
    publish_next(group);
}

void tune_seed(struct weft_group *group, const struct tune_cell *seed)
{
    struct tune_cell *cell = cell_make(group, seed->key);
    if (!cell) return;
    cell->settled = seed->settled; /* published when all have reported what the model's plan takes */
    cell->times_ns[cell->settled] = seed->times_ns[cell->settled];
}

/* ---- measuring ---- */
void tune_ended(struct weft_coll *coll, uint64_t now_ns)
{
    struct weft_group *group = coll->group;
    struct tune *tune = group->tune;
    uint64_t begin_ns = coll->posted_ns > tune->last_end_ns ? coll->posted_ns : tune->last_end_ns;
    bool alone = coll->alone && group->active_count == 1 && group->launches == coll->launch;
    tune->last_end_ns = now_ns;
    struct tune_cell *cell = cell_of(group, coll->tune_key);
    if (!cell || coll->header.table != (uint16_t)cell->version || tune->off) return;
    if (++cell->count > 1) {
        uint64_t took_ns = now_ns > begin_ns ? now_ns - begin_ns : 1;
        cell->samples++;
        cell->sum_ns += took_ns;
        if (alone && took_ns < cell->least_ns) cell->least_ns = took_ns;
    }
    if (cell->count >= TUNE_TRIAL && !cell->reported) {
        cell->reported = true;
        if (group->rank == 0) reported(group, cell->key, cell->version, measured_ns(cell));
        else cell->due = true;
    }
    if (group->rank == 0) {
        bool idle = cell->reports >= group->ranks && !cell->wanted && !tune_holds(group, cell->key);
        if (idle && ++cell->quiet >= cell->watch)
            want(cell, cell->plan ? cell->plan : weft_plan_choose(&cell->question, NULL));
        publish_next(group);
    } else {
        tells_go_on(group);
    }
}

/* ---- news ---- */
/* UNTRUSTED: a key that tune_key could have made, and a plan of its kind. */
static bool sensible(uint64_t key, uint32_t plan)
{
    uint32_t kind = key & 0xff;
    return sensible_key(key) && plan > 0 && plan < WEFT_PLAN_COUNT &&
           weft_plan_supports((enum weft_plan_id)plan, (enum weft_coll_kind)kind);
}

void tune_went_on(struct weft_group *group)
{
    struct tune *tune = group->tune;
    if (!tune || !tune->early.type || group->sequence < tune->last_from) return;
    bool takes = open_change(group, (uint32_t)tune->early.sequence, (uint32_t)tune->early.cuts,
                             (enum weft_plan_id)tune->early.root);
    tune->in_order = tune->early.lanes != 0;
    tune->early.type = 0;
    tune->ack.header = news_header(group, COLL_MESSAGE_TUNE_ACK, tune->version);
    tune->ack.header.count = group->sequence;
    tune->ack.header.status = takes ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    tune->ack.wanted = true;
    tells_go_on(group);
}

void tune_news(struct weft_group *group, const struct coll_header *header)
{
    struct tune *tune = group->tune;
    if (!tune)
        return; /* where one rank does not tune, the reports of no cell are complete, and nothing is ever published */
    bool leads = group->rank == 0;
    if (header->type == COLL_MESSAGE_TUNE_REPORT && leads)
        reported(group, header->cuts, header->sequence, header->count);
    if (header->type == COLL_MESSAGE_TUNE_ACK && leads) acknowledged(group, header);
    if (header->rank != 0 || leads) return;
    if (header->type == COLL_MESSAGE_TUNE_COMMIT && tune->next.open && header->sequence == tune->next.version)
        close_change(group, header->count, header->status < 0);
    else if (header->type == COLL_MESSAGE_TUNE_COMMIT && header->status < 0)
        tune->off = true; /* this rank was the one that refused */
    if (header->type != COLL_MESSAGE_TUNE_TABLE || tune->next.open || !sensible(header->cuts, header->root))
        return;
    tune->early = *header;
    tune_went_on(group);
}

void tune_left(struct weft_group *group, uint32_t rank)
{
    struct tune *tune = group->tune;
    if (!tune) return;
    tune->off = true;
    if (rank == 0) { /* a COMMIT would have come before this */
        tune->early.type = 0;
        if (tune->next.open) close_change(group, 0, true);
    } else if (group->rank == 0) {
        acknowledged(group, &(struct coll_header){.rank = rank,
                                                  .sequence = tune->next.version,
                                                  .status = WEFT_ERR_CLOSED});
    }
}

void tune_retry(struct weft_group *group)
{
    if (!group->tune) return;
    tells_go_on(group);
    if (group->rank == 0) publish_next(group);
}

/* ---- life ---- */
enum weft_status tune_create(struct weft_group *group, enum weft_retune policy)
{
    if (policy == WEFT_RETUNE_OFF || group->ranks < 2) return WEFT_OK;
    size_t acked = group->rank == 0 ? group->ranks : 0;
    group->tune = weft_alloc_zero(group->env, sizeof *group->tune + acked * sizeof group->tune->acked[0]);
    if (!group->tune) return WEFT_ERR_NO_MEMORY;
    group->tune->policy = policy;
    return WEFT_OK;
}

void tune_free(struct weft_group *group)
{
    weft_free_bytes(group->env, group->tune);
    group->tune = NULL;
}
