/* fleet_groups.c - workers of a fleet that send their requests in message groups (options.groups), as a
 * client does: what a worker sends in one step of its loop travels together. */
#include <stdlib.h>
#include <string.h>

#include "shard_fleet.h"

struct fleet_group {
    struct fleet_group *next; /* the worker's groups, until fleet_free */
    struct weft_completion sent;
    uint32_t shard, number, count;
    size_t used;
    uint8_t entries[WEFT_LIMIT_GROUP_BYTES];
};

static void ignore(struct weft_completion *completion, enum weft_status status)
{
    (void)completion;
    (void)status;
}

static void group_send(struct fleet_worker *worker, struct fleet_group *group)
{
    uint8_t header[WEFT_WIRE_GROUP_HEADER_BYTES];
    weft_wire_group_encode(&(struct weft_wire_group){.kind = WEFT_WIRE_GROUP_REQUESTS,
                                                     .job = FLEET_JOB,
                                                     .number = group->number,
                                                     .count = group->count,
                                                     .payload_bytes = (uint32_t)group->used},
                           header);
    const struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_PUSH_GROUP, group->number),
                                         .header = header,
                                         .header_bytes = sizeof header,
                                         .payload = group->entries,
                                         .payload_bytes = group->used};
    weft_completion_init(&group->sent, 1, ignore);
    (void)weft_transport_send(
        weft_transport_peer(worker->transport, worker->fleet->shard[group->shard].endpoint), &message,
        &group->sent);
    worker->fleet->counts.groups_sent++;
}

static void flush(struct weft_timer *timer)
{
    struct fleet_worker *worker = weft_container_of(timer, struct fleet_worker, groups.timer);
    for (uint32_t s = 0; s < FLEET_SHARDS_MAX; s++) {
        struct fleet_group *group = worker->groups.open[s];
        worker->groups.open[s] = NULL;
        if (group && !worker->killed) group_send(worker, group);
    }
}

static struct fleet_group *group_open(struct fleet_worker *worker, uint32_t shard)
{
    struct fleet_group *group = calloc(1, sizeof *group);
    WEFT_ASSERT(group != NULL);
    group->shard = shard;
    group->number = ++worker->groups.number;
    group->next = worker->groups.all;
    worker->groups.all = worker->groups.open[shard] = group;
    return group;
}

void fleet_group_add(struct fleet_worker *worker, uint32_t shard,
                     const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload, size_t bytes)
{
    struct fleet_group *group = worker->groups.open[shard];
    const size_t whole = weft_wire_group_entry_bytes(bytes);
    if (group && (group->used + whole > sizeof group->entries || group->count == WEFT_LIMIT_GROUP_ENTRIES)) {
        group_send(worker, group);
        group = NULL;
    }
    if (!group) group = group_open(worker, shard);
    weft_wire_group_put(group->entries + group->used, header, payload, bytes);
    group->used += whole;
    group->count++;
    (void)weft_timer_start_now(worker->loop, &worker->groups.timer);
}

/* ---- answers ---- */

static void read_results(struct fleet_worker *worker, const uint8_t *payload, size_t bytes)
{
    struct weft_wire_entry entry;
    size_t at = 0;
    while (at < bytes) {
        const enum weft_status status = weft_wire_group_next(payload, bytes, &at, &entry);
        WEFT_ASSERT(status == WEFT_OK && entry.decoded.kind == WEFT_WIRE_RESULT);
        fleet_result(worker, &entry.decoded, entry.payload);
        worker->fleet->counts.results_in_groups++;
    }
}

/* Sends the entries of a refused group alone. */
static void send_entries(struct fleet_worker *worker, uint32_t number)
{
    struct fleet_group *group = worker->groups.all;
    while (group && group->number != number) group = group->next;
    WEFT_ASSERT(group != NULL);
    struct weft_wire_entry entry;
    size_t at = 0;
    while (at < group->used && weft_wire_group_next(group->entries, group->used, &at, &entry) == WEFT_OK)
        fleet_send_copy(worker, group->shard, entry.header, entry.payload, entry.payload_bytes);
    worker->fleet->counts.groups_refused++;
}

struct fleet_group_receipt {
    struct fleet_worker *worker;
    struct weft_completion done;
    size_t bytes;
    uint8_t payload[];
};

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct fleet_group_receipt *receipt = weft_container_of(completion, struct fleet_group_receipt, done);
    if (status == WEFT_OK) read_results(receipt->worker, receipt->payload, receipt->bytes);
    free(receipt);
}

static void group_arrived(void *context, struct weft_arrival *arrival)
{
    struct fleet_worker *worker = context;
    struct weft_wire_group group;
    const enum weft_status status = weft_wire_group_decode(arrival->header, arrival->header_bytes, &group);
    WEFT_ASSERT(status == WEFT_OK && group.job == FLEET_JOB);
    WEFT_ASSERT(worker->groups.number > 0); /* only a worker that has sent a group may get one */
    if (group.kind == WEFT_WIRE_GROUP_REFUSED) {
        weft_transport_discard(worker->transport, arrival);
        send_entries(worker, group.number);
        return;
    }
    WEFT_ASSERT(group.kind == WEFT_WIRE_GROUP_RESULTS && group.payload_bytes == arrival->payload_bytes &&
                group.count > 1);
    struct fleet_group_receipt *receipt = malloc(sizeof *receipt + group.payload_bytes);
    WEFT_ASSERT(receipt != NULL);
    receipt->worker = worker;
    receipt->bytes = group.payload_bytes;
    weft_completion_init(&receipt->done, 1, received);
    if (weft_transport_accept(worker->transport, arrival, receipt->payload, receipt->bytes, &receipt->done) >=
        0)
        return;
    weft_transport_discard(worker->transport, arrival);
    free(receipt);
}

void fleet_groups_init(struct fleet_worker *worker)
{
    weft_timer_init(&worker->groups.timer, flush);
    weft_transport_handler(worker->transport, WEFT_CHANNEL_RESULT_GROUP, group_arrived, worker);
}

void fleet_groups_free(struct fleet_worker *worker)
{
    while (worker->groups.all) {
        struct fleet_group *group = worker->groups.all;
        worker->groups.all = group->next;
        free(group);
    }
}
