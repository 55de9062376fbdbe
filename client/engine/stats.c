/* stats.c - weft_stats_get. The engine thread reads the figures of the transport and the engine. */
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/query.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/sized.h"

void client_engine_count_bytes(struct client_engine *engine, uint64_t *sent_out, uint64_t *received_out)
{
    struct weft_transport_stats transport = {0};
    weft_transport_stats(engine->transport, &transport);
    struct weft_moved moved = engine->counters.left;
    if (engine->group) weft_group_add_moved(engine->group, &moved);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &engine->comms)
        weft_group_add_moved(weft_container_of(node, struct weft_comm, engine_link)->group, &moved);
    *sent_out = transport.sent_bytes + moved.out_bytes;
    *received_out = transport.received_bytes + moved.in_bytes;
}

static void answer(struct weft_command *command)
{
    struct client_engine_query *query = weft_container_of(command, struct client_engine_query, command);
    struct client_engine *engine = query->session->engine;
    client_engine_count_bytes(engine, &engine->queries.stats.sent_bytes,
                              &engine->queries.stats.received_bytes);
    engine->queries.stats.encode_ns = client_engine_encode_ns(engine);
    engine->queries.stats.requests =
        atomic_load_explicit(&engine->counters.requests_done, memory_order_relaxed);
    client_engine_query_answered(query);
}

enum weft_status weft_stats_get(struct weft_session *session, struct weft_stats *stats_out)
{
    if (!session) return client_null_argument("stats_get", "session");
    enum weft_status usable = client_usable(session); /* a failed session still has figures */
    if (usable == WEFT_ERR_FORKED) return usable;
    struct weft_error error = {0};
    if (client_sized_check(stats_out, sizeof *stats_out, "stats_get: stats", &error) < 0)
        return client_error(session, WEFT_ERR_INVALID, "%s", error.text);
    struct client_engine *engine = session->engine;
    engine->queries.stats.query.command.fn = answer;
    if (client_engine_query_run(session, &engine->queries.stats.query) < 0)
        return client_error(session, WEFT_ERR_BUSY,
                            "stats_get: the engine is in a long computation; call again");
    const struct weft_stats stats = {
        .size = sizeof stats,
        .sent_bytes = engine->queries.stats.sent_bytes,
        .received_bytes = engine->queries.stats.received_bytes,
        .steps = session->totals.steps_ended,
        .step_ns = session->totals.step_ns,
        .exposed_ns = session->totals.exposed_ns,
        .encode_ns = engine->queries.stats.encode_ns,
        .requests = engine->queries.stats.requests,
        .exposed_peers_ns = session->totals.exposed_peers_ns,
        .exposed_network_ns = session->totals.exposed_ns - session->totals.exposed_peers_ns,
        .waited_outside_ns = session->totals.waited_outside_ns,
    };
    client_sized_copy_out(&stats, sizeof stats, stats_out);
    return WEFT_OK;
}
