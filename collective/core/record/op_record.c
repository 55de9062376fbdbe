/* op_record.c - writes the operations of a group into the flight recorder: at the post, the start, the
 * end, and every GROUP_POLL_INTERVAL_NS while an operation waits. No message depends on it. */
#include "collective/core/record/op_record.h"

#include "collective/core/group.h"
#include "collective/core/interpreter.h"
#include "collective/core/op.h"

void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase,
                uint64_t sequence, uint64_t bytes, enum weft_status status, uint64_t now_ns)
{
    weft_event_ring_add_at(group->observers.events, now_ns, weft_coll_kind_name(kind), phase,
                           coll_event_id(group, sequence), UINT32_MAX, bytes, status);
}

/* The root of a gather or scatter records all lengths, the other ranks their own. */
static void keep_lengths(const struct weft_coll *coll)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks;
    if (args->counts)
        weft_recorder_lengths(coll->group->observers.recorder, coll->launch.record_number, args->counts,
                              ranks, args->counts_out, args->counts_out ? ranks : 0);
    else if (args->unequal)
        weft_recorder_lengths(coll->group->observers.recorder, coll->launch.record_number, &args->count, 1,
                              NULL, 0);
}

void coll_record_post(struct weft_coll *coll, bool starts)
{
    struct weft_group *group = coll->group;
    const struct coll_header *header = &coll->header;
    bool pair = coll_is_sendrecv(coll->args.kind); /* send and recv have equal headers */
    struct weft_record *record = &coll->launch.record;
    *record = coll_record_of(group, coll->sequence, coll->posted_ns, starts);
    record->kind = coll->args.kind, record->count = header->count, record->dtype = header->dtype,
    record->op = coll_is_reduction(header->kind) ? header->op : 0, record->plan = header->plan;
    record->root = pair ? coll->args.root : coll_has_root(header->kind) ? header->root : 0;
    if (coll->path.is_published)
        weft_recorder_update(group->observers.recorder, coll->launch.record_number, &coll->launch.record);
    else coll->launch.record_number = weft_recorder_add(group->observers.recorder, &coll->launch.record);
    keep_lengths(coll);
}

void coll_record_start(struct weft_coll *coll, uint64_t now_ns)
{
    if (coll->launch.record.started_ns || !coll->group->observers.recorder) return;
    coll->launch.record.started_ns = now_ns > coll->posted_ns ? now_ns : coll->posted_ns;
    coll->launch.record.phase = "started";
    weft_recorder_update(coll->group->observers.recorder, coll->launch.record_number, &coll->launch.record);
}

void coll_record_phase(struct weft_coll *coll)
{
    if (!coll->group->observers.recorder || coll->phase != COLL_RUNNING || !coll->launch.record.started_ns)
        return;
    uint32_t awaited;
    coll->launch.record.peer =
        coll_waits_for(coll, &awaited, &coll->launch.record.phase) ? awaited : WEFT_RECORD_NO_PEER;
    coll->launch.record.steps = coll->steps.tail;
    weft_recorder_update(coll->group->observers.recorder, coll->launch.record_number, &coll->launch.record);
}

void coll_record_end(struct weft_coll *coll, uint64_t now_ns)
{
    if (!coll->group->observers.recorder) return;
    coll->launch.record.ended_ns = now_ns;
    coll->launch.record.status = coll->status;
    if (coll->status == WEFT_OK) {
        coll->launch.record.phase = "done";
        coll->launch.record.peer = WEFT_RECORD_NO_PEER;
        coll->launch.record.steps = coll->steps.tail;
    }
    weft_recorder_update(coll->group->observers.recorder, coll->launch.record_number, &coll->launch.record);
}

void weft_group_update_records(struct weft_group *group)
{
    struct weft_list *node, *spare;
    group->progress.recorded_ns = weft_now_ns(group->env);
    weft_list_foreach (node, spare, &group->ops.active)
        coll_record_phase(weft_container_of(node, struct weft_coll, link));
}
