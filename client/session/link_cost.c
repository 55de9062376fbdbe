/* link_cost.c - cost of the links between the workers' hosts, for the choice of plans and codecs: read once,
 * from rank 0's table.
 *
 *     rank 0: file (weft doctor, weft bench calibrate)
 *                ├─► worst link among the workers' hosts ─┐
 *                └─► ring order and speed of hosts ───────┴─► Ready ─► coordinator ─► Go ─► group, topology.c
 *
 * The cost is read from a file, not measured here. A cost measured at start would depend on the load, and
 * with it the plan and the order of every sum (collective/tuning/cost_model.c). */
#include <string.h>

#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"

#define LINK_COST_BYTES ((uint64_t)1 << 18) /* message size for which each link's lane is chosen */

static uint32_t host_index(const struct weft_link_table *table, const char *name)
{
    for (uint32_t i = 0; i < weft_link_table_host_count(table); i++)
        if (strcmp(weft_link_table_host_name(table, i), name) == 0) return i;
    return UINT32_MAX;
}

/* Lists each host of the workers once, and twice if it has several workers: then its internal link counts
 * too. (ranks,) at most. */
static const char *list_hosts(const struct weft_link_table *table, const Weft__Control__Roster *roster,
                              uint32_t *hosts, uint32_t *count_out)
{
    uint32_t count = 0;
    for (size_t i = 0; i < roster->n_members; i++) {
        const Weft__Control__Member *member = roster->members[i];
        if (member->role != WEFT__CONTROL__ROLE__ROLE_WORKER) continue;
        uint32_t host = host_index(table, member->host), seen = 0;
        if (host == UINT32_MAX) return member->host;
        for (uint32_t k = 0; k < count; k++) seen += hosts[k] == host;
        if (seen < 2) hosts[count++] = host;
    }
    *count_out = count;
    return NULL;
}

static enum weft_status cost_of(struct weft_session *session, const struct weft_link_table *table,
                                const Weft__Control__Roster *roster, const char *path,
                                struct weft_link_cost *cost)
{
    uint32_t *hosts = weft_alloc_array(session->env, session->ranks, sizeof *hosts), count = 0;
    if (!hosts) return WEFT_ERR_NO_MEMORY;
    const char *unknown_host = list_hosts(table, roster, hosts, &count);
    if (unknown_host)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "host %s is not in the link table %s (weft doctor measures it): plans are chosen without it",
                 unknown_host, path);
    else if (weft_link_cost_among(table, hosts, count, LINK_COST_BYTES, cost) == WEFT_OK && cost->unknown > 0)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "%u of %u links between the job's hosts are not in the link table %s: plans are chosen "
                 "without it",
                 cost->unknown, cost->pairs, path);
    weft_free_bytes(session->env, hosts);
    return WEFT_OK;
}

static const char *host_name(const Weft__Control__Roster *roster, uint32_t rank)
{
    for (size_t i = 0; i < roster->n_members; i++)
        if (roster->members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER && roster->members[i]->index == rank)
            return roster->members[i]->host;
    return "";
}

/* LinkCost.ring, freed with weft_free_bytes. Empty if a link is unknown or memory is short: rings then
 * follow the host numbers. */
static ProtobufCBinaryData ring_of(struct weft_session *session, const struct weft_link_table *table,
                                   const Weft__Control__Roster *roster)
{
    const struct weft_plan_hosts *hosts = &atomic_load(&session->membership.hosts)->plan;
    ProtobufCBinaryData ring = {0, NULL};
    if (hosts->count > WEFT_LINK_RING_HOSTS_MAX) return ring;
    uint32_t *words = weft_alloc_array(session->env, hosts->count, 3 * sizeof *words),
             *order = words + hosts->count, *speeds = order + hosts->count;
    uint8_t *out = weft_alloc_array(session->env, hosts->count, WEFT_RING_HOST_BYTES);
    bool known = words && out;
    for (uint32_t h = 0; known && h < hosts->count; h++)
        words[h] = host_index(table, host_name(roster, hosts->members[hosts->first[h]]));
    if (!known || weft_link_ring_among(table, words, hosts->count, LINK_COST_BYTES, order, speeds) < 0)
        weft_free_bytes(session->env, out);
    else ring = (ProtobufCBinaryData){hosts->count * WEFT_RING_HOST_BYTES, out};
    for (uint32_t i = 0; i < ring.len / WEFT_RING_HOST_BYTES; i++, out += WEFT_RING_HOST_BYTES) {
        put_le64(out, atomic_load(&session->membership.hosts)->keys[hosts->members[hosts->first[order[i]]]]);
        put_le32(out + 8, speeds[order[i]]);
    }
    weft_free_bytes(session->env, words);
    return ring;
}

/* LinkCost.calibration, to be freed with weft_free_bytes; empty if nothing was measured, or without
 * memory. */
static ProtobufCBinaryData calibration_of(struct weft_session *session, const struct weft_link_cost *cost)
{
    _Static_assert(WEFT_LIMIT_CALIBRATION_BYTES == WEFT_CALIBRATION_BYTES_MAX,
                   "control messages carry every blob");
    uint8_t *out = weft_alloc_bytes(session->env, WEFT_CALIBRATION_BYTES_MAX);
    return (ProtobufCBinaryData){out ? weft_calibration_encode(&cost->memory, &cost->runs, out) : 0, out};
}

/* LinkCost.runs of a release before LinkCost.calibration. UNTRUSTED: values that no table can hold count as
 * unknown. All ranks receive the same bytes. */
static struct weft_link_runs old_runs(const ProtobufCBinaryData *sent)
{
    uint32_t numbers[WEFT_LINK_RUNS_NUMBERS] = {0};
    struct weft_link_runs runs;
    _Static_assert(WEFT_RUNS_BYTES == sizeof runs, "the wire has all numbers");
    for (size_t i = 0; sent->len == WEFT_RUNS_BYTES && i < WEFT_LINK_RUNS_NUMBERS; i++)
        numbers[i] = get_le32(sent->data + 4 * i);
    memcpy(&runs, numbers, sizeof runs);
    return weft_link_runs_are_valid(&runs) ? runs : (struct weft_link_runs){0};
}

/* The figures of the one-host plans in rank 0's message. UNTRUSTED: invalid ones count as not measured.
 * All ranks get the same message and use the same figures. */
static void read_calibration(const struct weft_session *session, const Weft__Control__LinkCost *sent,
                             struct weft_link_cost *cost)
{
    const enum weft_status status =
        weft_calibration_decode(sent->calibration.data, sent->calibration.len, &cost->memory, &cost->runs);
    if (status < 0)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "the calibration of rank 0 cannot be read (%s): plans for one host are chosen without it",
                 weft_status_text(status));
    if (sent->calibration.len > 0) return;
    cost->memory = (struct weft_link_memory){sent->words_ns, sent->slices_ns, sent->said_ps, sent->cached_ps,
                                             sent->passed_ps, sent->core_kib, sent->last_kib, sent->past_ps};
    cost->runs = old_runs(&sent->runs);
}

enum weft_status client_link_cost_read(struct weft_session *session, const Weft__Control__Roster *roster,
                                       Weft__Control__LinkCost *cost_out, bool *known_out,
                                       struct weft_error *error)
{
    const char *path = weft_config_text(session->settings.config, "collective.links");
    struct weft_link_table *table;
    struct weft_link_cost cost = {0};
    *known_out = false;
    if (session->rank != 0 || session->ranks < 2 || !path[0]) return WEFT_OK;
    enum weft_status status = weft_link_table_load(session->env, path, &table, error);
    if (status < 0) return weft_error_set(error, status, "collective.links: there is no link table %s", path);
    status = cost_of(session, table, roster, path, &cost);
    if (status == WEFT_OK && cost.unknown == 0) cost_out->ring = ring_of(session, table, roster);
    weft_link_table_free(table);
    if (status < 0) return weft_error_set(error, status, "no memory for the hosts of the job");
    cost_out->pairs = cost.pairs;
    cost_out->unknown = cost.unknown;
    cost_out->latency_ns = cost.latency_ns;
    cost_out->bytes_per_second = cost.bytes_per_second;
    cost_out->eager_bytes = cost.eager_bytes;
    cost_out->inject_ns = cost.inject_ns;
    cost_out->sum_ps = cost.sum_ps;
    cost_out->pass_ps = cost.pass_ps;
    cost_out->incast_milli = cost.incast_milli;
    cost_out->calibration = calibration_of(session, &cost);
    *known_out = cost.pairs > 0;
    return WEFT_OK;
}

enum weft_status client_link_cost_set(struct weft_session *session, const Weft__Control__LinkCost *cost)
{
    session->link.cost =
        (struct weft_link_cost){.pairs = cost->pairs,
                                .unknown = cost->unknown,
                                .latency_ns = cost->latency_ns,
                                .bytes_per_second = cost->bytes_per_second,
                                .eager_bytes = cost->eager_bytes,
                                .inject_ns = cost->inject_ns,
                                .sum_ps = cost->sum_ps,
                                .pass_ps = cost->pass_ps,
                                .incast_milli = cost->incast_milli};
    read_calibration(session, cost, &session->link.cost);
    uint8_t *ring = cost->ring.len > 0 ? weft_alloc_bytes(session->env, cost->ring.len) : NULL;
    if (cost->ring.len > 0 && !ring) return WEFT_ERR_NO_MEMORY;
    if (ring) memcpy(ring, cost->ring.data, cost->ring.len);
    session->link.ring = ring;
    session->link.ring_hosts = (uint32_t)(cost->ring.len / WEFT_RING_HOST_BYTES);
    return WEFT_OK;
}
