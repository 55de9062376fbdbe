/* coordinator_status.c - the state of the job as one JSON object, for /status and `weft status`.
 *
 * Times are durations ("silent_ms"), since the env's clock has no calendar. The lists hold at most
 * TENSORS_MAX tensors, MEMBERS_MAX members and FINDINGS_MAX findings about hosts. If the text exceeds
 * WEFT_LIMIT_STATUS_BYTES all the same, the last tensors are left out, then the last members. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/reign.h"

#define TENSORS_MAX 5000u
#define MEMBERS_MAX 5120u
#define FINDINGS_MAX 128u

/* JSON requires UTF-8. A name may contain other bytes, and a cut sentence may end inside a character. */
static json_t *json_of_text(const char *text)
{
    json_t *json = json_string(text);
    if (json) return json;
    char plain[512];
    size_t bytes = 0;
    for (; text[bytes] && bytes + 1 < sizeof plain; bytes++)
        plain[bytes] = (unsigned char)text[bytes] < 0x80 ? text[bytes] : '?';
    plain[bytes] = 0;
    return json_string(plain);
}

static const char *member_state_name(const struct coordinator_member *member)
{
    switch (member->state) {
    case MEMBER_WELCOMED: return "joined";
    case MEMBER_ADDRESSED: return "connecting";
    case MEMBER_READY:
        return member->is_draining ? "draining" : member->agreement.joined ? "joined" : "ready";
    case MEMBER_LEFT: return "left";
    case MEMBER_LOST: return "lost";
    }
    return "?";
}

static json_int_t number_of(uint64_t value) { return value < INT64_MAX ? (json_int_t)value : INT64_MAX; }

/* The tensor that the worker waited for longest. Its id is the worker's claim. */
static void add_exposed_tensor(json_t *json, const struct weft_coordinator *coordinator,
                               const Weft__Control__Report *report)
{
    const uint32_t tensor = report->exposed_tensor;
    char name[64]; /* cut: the status has a limit, and a row for each worker */
    if (tensor == 0 || tensor > coordinator->table.tensor_count) return;
    snprintf(name, sizeof name, "%s", coordinator->table.tensors[tensor - 1]->declare.name);
    json_object_set_new(json, "exposed_tensor", json_of_text(name));
    json_object_set_new(json, "exposed_tensor_ns", json_integer(number_of(report->exposed_tensor_ns)));
}

/* Pairs: position in the list of members, bytes sent to that member. */
static json_t *json_of_links(const struct weft_coordinator *coordinator,
                             const struct coordinator_member *member)
{
    json_t *links = json_array();
    for (uint32_t i = 0; i < member->figures.link_count; i++)
        if (member->figures.link_members[i] < coordinator->membership.member_count &&
            member->figures.link_members[i] < MEMBERS_MAX)
            json_array_append_new(links, json_pack("[I, I]", (json_int_t)member->figures.link_members[i],
                                                   number_of(member->figures.link_bytes[i])));
    return links;
}

/* The newest figures of a member, or null. */
static json_t *json_of_report(const struct weft_coordinator *coordinator,
                              const struct coordinator_member *member)
{
    const Weft__Control__Report *report = &member->figures.report;
    const json_int_t age_ms =
        number_of(weft_elapsed_ns(member->figures.reported_ns, weft_now_ns(coordinator->env)) / WEFT_MS(1));
    if (!member->figures.has_report) return json_null();
    if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD)
        return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "age_ms", age_ms, "sent_bytes",
                         number_of(report->sent_bytes), "received_bytes", number_of(report->received_bytes),
                         "rounds", number_of(report->rounds), "rounds_open", number_of(report->rounds_open),
                         "round_ns", number_of(report->round_ns), "missing", number_of(report->missing));
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "age_ms", age_ms,
                  "sent_bytes", number_of(report->sent_bytes), "received_bytes",
                  number_of(report->received_bytes), "steps", number_of(report->steps), "step_ns",
                  number_of(report->step_ns), "exposed_ns", number_of(report->exposed_ns), "exposed_peers_ns",
                  number_of(report->exposed_peers_ns), "wait_ns", number_of(report->wait_ns), "operations",
                  number_of(report->requests), "snapshot_ns", number_of(report->snapshot_ns), "encode_ns",
                  number_of(report->encode_ns), "idle_ns", number_of(report->idle_ns), "open_ns",
                  number_of(report->open_ns), "open", json_of_text(report->open));
    if (json) add_exposed_tensor(json, coordinator, report);
    if (json) json_object_set_new(json, "links", json_of_links(coordinator, member));
    return json;
}

/* Slots of a shard in a job with copies, and the bytes of those that it copies. */
static void add_slots(json_t *json, const struct weft_coordinator *coordinator,
                      const struct coordinator_member *shard)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    json_int_t led = 0, copied = 0, bytes = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        const struct coordinator_slot *slot = &slots->all[i];
        const bool is_copy = slot->copy > 0 && coordinator_shard_of(coordinator, slot->copy - 1) == shard;
        led += coordinator_shard_of(coordinator, slot->leader) == shard;
        copied += is_copy;
        if (is_copy) bytes += number_of(slot->bytes);
    }
    json_object_set_new(json, "slots_led", json_integer(led));
    json_object_set_new(json, "slots_copied", json_integer(copied));
    json_object_set_new(json, "copied_bytes", json_integer(bytes));
}

static json_t *json_of_member(const struct weft_coordinator *coordinator,
                              const struct coordinator_member *member)
{
    uint64_t load_bytes = 0;
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++)
        if (coordinator->table.endpoints[i].id - member->endpoint_first < member->endpoint_count)
            load_bytes += coordinator->table.endpoints[i].load_bytes;
    json_t *json = json_pack(
        "{s:s, s:i, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:i}", "role",
        member->role == WEFT__CONTROL__ROLE__ROLE_WORKER ? "worker" : "shard", "index", (int)member->index,
        "state", member_state_name(member), "host", json_of_text(member->host), "pid",
        (json_int_t)member->pid, "incarnation", (json_int_t)member->incarnation, "endpoint_first",
        (json_int_t)member->endpoint_first, "endpoints", (json_int_t)member->endpoint_count, "weights_bytes",
        (json_int_t)load_bytes, "silent_ms",
        (json_int_t)(weft_elapsed_ns(member->last_received_ns, weft_now_ns(coordinator->env)) / WEFT_MS(1)),
        "operations", (json_int_t)member->progress.operations, "open_ms",
        (json_int_t)(member->progress.open_ns / WEFT_MS(1)), "report", json_of_report(coordinator, member),
        "wire_version", (int)member->abilities.wire.newest);
    if (json && member->abilities.zone[0])
        (void)json_object_set_new(json, "zone", json_of_text(member->abilities.zone));
    if (json && coordinator->slots.count > 0 && member->role == WEFT__CONTROL__ROLE__ROLE_SHARD)
        add_slots(json, coordinator, member);
    return json;
}

static json_t *json_of_tensor(const struct coordinator_tensor *tensor)
{
    const Weft__Control__Declare *declare = &tensor->declare;
    json_t *dims = json_array();
    for (size_t i = 0; i < declare->n_dims; i++)
        json_array_append_new(dims, json_integer((json_int_t)declare->dims[i]));
    uint64_t bytes = tensor->elems * weft_dtype_bytes((enum weft_dtype)declare->dtype);
    return json_pack("{s:i, s:o, s:s, s:o, s:s, s:s, s:s, s:s, s:I, s:I, s:b, s:b}", "tensor",
                     (int)declare->ordinal, "name", json_of_text(declare->name), "dtype",
                     weft_dtype_name((enum weft_dtype)declare->dtype), "dims", dims, "mode",
                     declare->mode == WEFT_WIRE_MODE_SERVER ? "server" : "all_reduce", "codec",
                     declare->codec, "optimizer", declare->optimizer[0] ? declare->optimizer : "none",
                     "consistency", declare->consistency[0] ? declare->consistency : "bsp", "bytes",
                     (json_int_t)bytes, "chunks", (json_int_t)tensor->chunk_count, "declared",
                     (int)tensor->announced, "freed", (int)(tensor->freed_count > 0));
}

/* moves: slots that are being copied, or whose leader changes. All 0 in a job without copies. */
static json_t *json_of_slots(const struct weft_coordinator *coordinator)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    uint32_t term_max = 0;
    uint64_t moved_bytes = slots->moved_bytes;
    for (uint32_t i = 0; i < slots->count; i++) {
        moved_bytes += slots->moves[i].bytes;
        if (slots->all[i].term > term_max) term_max = slots->all[i].term;
    }
    return json_pack("{s:i, s:i, s:i, s:b, s:i, s:i, s:I, s:I}", "copies", (int)coordinator->options.copies,
                     "count", (int)slots->count, "without_copy",
                     (int)coordinator_slots_without_copy(coordinator), "rebalancing",
                     (int)slots->is_rebalancing, "term_max", (int)term_max, "moves",
                     (int)coordinator_moves_count(coordinator), "moved_bytes", number_of(moved_bytes),
                     "diverged", number_of(slots->diverged));
}

/* null: the job makes none. `failures` counts since the start of this coordinator. */
static json_t *json_of_snapshots(const struct weft_coordinator *coordinator)
{
    const struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const uint64_t age_ns =
        snapshot->complete_ns ? weft_elapsed_ns(snapshot->complete_ns, weft_now_ns(coordinator->env)) : 0;
    if (!snapshot->answered) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "complete_step", number_of(snapshot->complete),
                     "complete_age_ms", number_of(age_ns / WEFT_MS(1)), "failures",
                     number_of(snapshot->failures.count), "failed_step", number_of(snapshot->failures.step),
                     "failed_text", json_of_text(snapshot->failures.text));
}

static json_t *json_of_codec(const struct weft_codec_figures *codec)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I}", "exchanges", number_of(weft_histogram_count(&codec->encode)),
        "encode_ns", number_of(codec->encode.sum), "decode_ns", number_of(codec->decode.sum),
        "gradient_bytes", number_of(codec->gradient_bytes), "encoded_bytes", number_of(codec->encoded_bytes));
}

const char *const weft_coordinator_states[WEFT_COORDINATOR_STATES] = {"joining", "connecting", "running",
                                                                      "ended"};

const char *coordinator_state_name(enum coordinator_state state)
{
    return weft_coordinator_states[state - COORDINATOR_JOINING];
}

/* Findings about hosts, a row each. */
static json_t *json_of_host_health(const struct weft_coordinator *coordinator)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < coordinator->host_health.count; i++) {
        const struct coordinator_sick_host *host = coordinator->host_health.hosts[i];
        for (uint32_t k = 0; k < host->count && json_array_size(rows) < FINDINGS_MAX; k++)
            json_array_append_new(rows, json_pack("{s:o, s:o, s:o, s:o}", "host", json_of_text(host->host),
                                                  "subject", json_of_text(host->findings[k].subject), "text",
                                                  json_of_text(host->findings[k].text), "advice",
                                                  json_of_text(host->findings[k].advice)));
    }
    return rows;
}

/* Removes the second half of the list. false: it is empty. */
static bool halve(json_t *list)
{
    const size_t count = json_array_size(list);
    while (json_array_size(list) > count / 2) json_array_remove(list, json_array_size(list) - 1);
    return count > 0;
}

char *weft_coordinator_status_json(struct weft_coordinator *coordinator)
{
    json_t *members = json_array(), *tensors = json_array();
    for (uint32_t i = 0; i < coordinator->membership.member_count && i < MEMBERS_MAX; i++)
        json_array_append_new(members, json_of_member(coordinator, coordinator->membership.members[i]));
    for (uint32_t i = 0; i < coordinator->table.tensor_count && i < TENSORS_MAX; i++)
        json_array_append_new(tensors, json_of_tensor(coordinator->table.tensors[i]));
    json_t *root = json_pack(
        "{s:o, s:s, s:s, s:i, s:I, s:i, s:i, s:i, s:I, s:o, s:I, s:o, s:o, s:s, s:o, s:I, s:o}", "job",
        json_of_text(coordinator->job), "state", coordinator_state_name(coordinator->state), "weft_version",
        weft_proto_release(), "wire_version",
        (int)(coordinator->wire_version ? coordinator->wire_version
                                        : coordinator_wire_range(coordinator).newest),
        "reign", (json_int_t)(coordinator->records.reign ? coordinator->records.reign->number : 0), "epoch",
        (int)coordinator->epochs.epoch_in_force, "workers", (int)coordinator->options.workers, "shards",
        (int)coordinator->options.shards, "uptime_ms",
        (json_int_t)((weft_now_ns(coordinator->env) - coordinator->process.created_ns) / WEFT_MS(1)),
        "members", members, "tensor_count", (json_int_t)coordinator->table.tensor_count, "tensors", tensors,
        "slots", json_of_slots(coordinator), "end_status", weft_status_name(coordinator->end_status),
        "end_text", json_of_text(coordinator->end.text), "stall_ms",
        (json_int_t)(coordinator_stall_ns(coordinator, weft_now_ns(coordinator->env)) / WEFT_MS(1)),
        "stall_text", json_of_text(coordinator->stall.text));
    if (!root) return NULL;
    json_object_set_new(root, "host_findings", json_of_host_health(coordinator));
    json_object_set_new(root, "snapshots", json_of_snapshots(coordinator));
    json_object_set_new(root, "codec", json_of_codec(&coordinator->times.codec));
    size_t bytes = json_dumpb(root, NULL, 0, JSON_COMPACT);
    while (bytes > WEFT_LIMIT_STATUS_BYTES && (halve(tensors) || halve(members)))
        bytes = json_dumpb(root, NULL, 0, JSON_COMPACT);
    char *text =
        bytes && bytes <= WEFT_LIMIT_STATUS_BYTES ? weft_alloc_bytes(coordinator->env, bytes + 1) : NULL;
    if (text) {
        json_dumpb(root, text, bytes, JSON_COMPACT);
        text[bytes] = 0;
    }
    json_decref(root);
    return text;
}
