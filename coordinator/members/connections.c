/* connections.c - the coordinator's connections, by rising id: opened and closed. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/reign.h"

#include <stdio.h>
#include <string.h>

#define PAUSE_BLAME_NS WEFT_SECONDS(2) /* losses so soon after a stop are due to it */

static size_t connection_position(const struct weft_coordinator *coordinator, uint64_t id)
{
    size_t low = 0, high = coordinator->membership.connection_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (coordinator->membership.connections[middle]->id < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct coordinator_connection *coordinator_connection_find(const struct weft_coordinator *coordinator,
                                                           uint64_t id)
{
    size_t at = connection_position(coordinator, id);
    return at < coordinator->membership.connection_count && coordinator->membership.connections[at]->id == id
               ? coordinator->membership.connections[at]
               : NULL;
}

struct coordinator_connection *coordinator_connection_add(struct weft_coordinator *coordinator, uint64_t id)
{
    size_t at = connection_position(coordinator, id);
    WEFT_ASSERT(id != 0 && (at == coordinator->membership.connection_count ||
                            coordinator->membership.connections[at]->id != id));
    if (coordinator->membership.connection_count == coordinator->membership.connection_capacity) {
        size_t capacity = coordinator->membership.connection_capacity
                              ? coordinator->membership.connection_capacity * 2
                              : 16;
        struct coordinator_connection **more = weft_alloc_array(coordinator->env, capacity, sizeof *more);
        if (!more) return NULL;
        if (coordinator->membership.connection_count)
            memcpy(more, coordinator->membership.connections,
                   coordinator->membership.connection_count * sizeof *more);
        weft_free_bytes(coordinator->env, coordinator->membership.connections);
        coordinator->membership.connections = more;
        coordinator->membership.connection_capacity = capacity;
    }
    struct coordinator_connection *connection = weft_alloc_zero(coordinator->env, sizeof *connection);
    if (!connection) return NULL;
    connection->id = id;
    memmove(coordinator->membership.connections + at + 1, coordinator->membership.connections + at,
            (coordinator->membership.connection_count - at) * sizeof *coordinator->membership.connections);
    coordinator->membership.connections[at] = connection;
    coordinator->membership.connection_count++;
    return connection;
}

size_t coordinator_connections_count(const struct weft_coordinator *coordinator,
                                     enum coordinator_connection_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < coordinator->membership.connection_count; i++)
        count += coordinator->membership.connections[i]->state == state;
    return count;
}

static void close_oldest_newcomer(struct weft_coordinator *coordinator)
{
    for (size_t i = 0; i < coordinator->membership.connection_count; i++)
        if (coordinator->membership.connections[i]->state == CONNECTION_NEW) {
            coordinator_refuse(coordinator, coordinator->membership.connections[i], WEFT_ERR_LIMIT,
                               "too many connections wait to join; try again");
            return;
        }
}

void weft_coordinator_opened(struct weft_coordinator *coordinator, uint64_t id, const char *peer_name)
{
    if (coordinator_connections_count(coordinator, CONNECTION_NEW) >= coordinator->options.newcomers_max)
        close_oldest_newcomer(coordinator);
    struct coordinator_connection *connection = coordinator_connection_add(coordinator, id);
    if (!connection) { /* later calls with this id are ignored */
        coordinator->options.net.close(coordinator->options.context, id,
                                   "the coordinator has no memory for another connection");
        return;
    }
    connection->state = CONNECTION_NEW;
    snprintf(connection->peer, sizeof connection->peer, "%s", peer_name);
    connection->opened_ns = connection->last_received_ns = weft_now_ns(coordinator->env);
    weft_nonce_draw(coordinator->env, connection->nonce);
    weft_log(coordinator->env, WEFT_LOG_DEBUG, "coordinator", "connection %llu from %s",
             (unsigned long long)id, peer_name);

    Weft__Control__Challenge challenge = WEFT__CONTROL__CHALLENGE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    weft_wire_range_challenge(coordinator_wire_range(coordinator), &challenge);
    challenge.weft_version = (char *)weft_proto_release();
    challenge.nonce = (ProtobufCBinaryData){WEFT_NONCE_BYTES, connection->nonce};
    challenge.auth_required = coordinator->secret != NULL;
    challenge.job = coordinator->job;
    challenge.is_begun = coordinator->state != COORDINATOR_JOINING;
    challenge.seals = WEFT_SEAL_VERSION;
    if (coordinator->records.reign) challenge.reign = coordinator->records.reign->number;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_CHALLENGE;
    message.challenge = &challenge;
    coordinator_send_to(coordinator, id, &message);
}

/* Members end by their own clocks while this process is stopped: then it is the cause of the loss. */
static void closed_reason(const struct weft_coordinator *coordinator, const char *why, char *out,
                          size_t out_bytes)
{
    const uint64_t since_ns = weft_elapsed_ns(coordinator->process.paused_ns, weft_now_ns(coordinator->env));
    if (coordinator->process.pause_ns > 0 && since_ns < PAUSE_BLAME_NS)
        snprintf(out, out_bytes, "%.200s, after the coordinator was stopped for %.1f s", why,
                 (double)coordinator->process.pause_ns / 1e9);
    else snprintf(out, out_bytes, "%.300s", why);
}

void weft_coordinator_closed(struct weft_coordinator *coordinator, uint64_t id, const char *why)
{
    size_t at = connection_position(coordinator, id);
    if (at == coordinator->membership.connection_count || coordinator->membership.connections[at]->id != id)
        return;
    struct coordinator_connection *connection = coordinator->membership.connections[at];
    memmove(coordinator->membership.connections + at, coordinator->membership.connections + at + 1,
            (coordinator->membership.connection_count - at - 1) *
                sizeof *coordinator->membership.connections);
    coordinator->membership.connection_count--;
    if (connection->member) {
        char reason[320];
        closed_reason(coordinator, why && why[0] ? why : "connection closed", reason, sizeof reason);
        connection->member->connection = 0;
        coordinator_member_lost(coordinator, connection->member, reason);
    }
    weft_free_bytes(coordinator->env, connection);
}
