/* record.c - what a group tells the flight recorder of its operations. Nothing here is on the way of a message: a
 * record is written when an operation is posted, begins, ends, and with the group's tick while it waits. */
#include "collective/internal.h"

void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase, uint64_t sequence, uint64_t bytes,
                enum weft_status status, uint64_t now_ns)
{
    uint64_t id = (uint64_t)group->group_id << 40 | (sequence & ((1ull << 40) - 1));
    weft_event_ring_add_at(group->events, now_ns, weft_coll_kind_name(kind), phase, id, UINT32_MAX, bytes, status);
}

void coll_record_post(struct weft_coll *coll, bool starts)
{
    struct weft_group *group = coll->group;
    const struct coll_header *header = &coll->header;
    bool pair = coll->args.kind == WEFT_COLL_SEND || coll->args.kind == WEFT_COLL_RECV; /* their header is the same on both sides */
    coll->record = (struct weft_record){
        .sequence = coll->sequence, .count = header->count, .posted_ns = coll->posted_ns,
        .started_ns = starts ? coll->posted_ns : 0, .phase = starts ? "started" : "posted", .group = group->group_id,
        .members = group->members, .epoch = group->epoch, .rank = group->rank, .ranks = group->ranks, .root = pair ? coll->args.root : header->kind == WEFT_COLL_ALL_REDUCE ? 0 : header->root, .peer = WEFT_RECORD_NOBODY,
        .status = WEFT_IN_PROGRESS, .kind = coll->args.kind, .dtype = header->dtype, .op = header->op, .plan = header->plan};
    if (coll->host.announced) weft_recorder_update(group->recorder, coll->record_number, &coll->record);
    else coll->record_number = weft_recorder_add(group->recorder, &coll->record);
}

void coll_record_start(struct weft_coll *coll, uint64_t now_ns)
{
    if (coll->record.started_ns || !coll->group->recorder) return;
    coll->record.started_ns = now_ns > coll->posted_ns ? now_ns : coll->posted_ns;
    coll->record.phase = "started";
    weft_recorder_update(coll->group->recorder, coll->record_number, &coll->record);
}

void coll_record_phase(struct weft_coll *coll)
{
    if (!coll->group->recorder || coll->phase != COLL_RUNNING || !coll->record.started_ns) return;
    uint32_t awaited;
    coll->record.peer = coll_waits(coll, &awaited, &coll->record.phase) ? awaited : WEFT_RECORD_NOBODY;
    coll->record.steps = coll->tail;
    weft_recorder_update(coll->group->recorder, coll->record_number, &coll->record);
}

void coll_record_end(struct weft_coll *coll, uint64_t now_ns)
{
    if (!coll->group->recorder) return;
    coll->record.ended_ns = now_ns;
    coll->record.status = coll->status;
    if (coll->status == WEFT_OK) {
        coll->record.phase = "done";
        coll->record.peer = WEFT_RECORD_NOBODY;
        coll->record.steps = coll->tail;
    }
    weft_recorder_update(coll->group->recorder, coll->record_number, &coll->record);
}

void weft_group_record(struct weft_group *group)
{
    struct weft_list *node, *spare;
    group->recorded_ns = weft_now_ns(group->env);
    weft_list_foreach(node, spare, &group->active) coll_record_phase(weft_container_of(node, struct weft_coll, link));
}
