/* describe_links.c - weft_describe_links: text about the backend and route to each peer. The engine thread
 * reads the transport. */
#include <stdio.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/engine/query.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"

#define LINE_BYTES 512u /* of one endpoint; a longer line is cut */

static size_t add_line(char *text, size_t at, size_t capacity, const char *name, struct weft_peer *peer)
{
    char route[LINE_BYTES - sizeof((struct client_member *)0)->name];
    if (weft_peer_status(peer) < 0) snprintf(route, sizeof route, "lost");
    else weft_peer_describe(peer, route, sizeof route);
    int length = snprintf(text + at, capacity - at, "%s: %s\n", name, route);
    return length < 0 ? at : at + (size_t)length;
}

static void answer(struct weft_command *command)
{
    struct client_engine_query *query = weft_container_of(command, struct client_engine_query, command);
    struct weft_session *session = query->session;
    struct client_engine *engine = session->engine;
    size_t at = 0;
    engine->queries.links.text[0] = 0;
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        const struct client_member *member = &session->membership.members[i];
        for (uint32_t e = 0; e < member->endpoint_count && at + LINE_BYTES < engine->queries.links.bytes;
             e++) {
            struct weft_peer *peer = weft_transport_peer(engine->transport, member->endpoint_first + e);
            if (peer)
                at =
                    add_line(engine->queries.links.text, at, engine->queries.links.bytes, member->name, peer);
        }
    }
    client_engine_query_answered(query);
}

/* The engine writes into memory of the session: the caller may stop waiting before the engine answers. */
static bool reserve_text(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    size_t endpoints = 1;
    if (engine->queries.links.text) return true;
    for (uint32_t i = 0; i < session->membership.member_count; i++)
        endpoints += session->membership.members[i].endpoint_count;
    engine->queries.links.bytes = endpoints * LINE_BYTES;
    return (engine->queries.links.text = weft_alloc_zero(session->env, engine->queries.links.bytes)) != NULL;
}

enum weft_status weft_describe_links(struct weft_session *session, char *out, size_t out_bytes)
{
    if (!session) return client_null_argument("describe_links", "session");
    WEFT_TRY(client_usable(session));
    if (!out || out_bytes == 0)
        return client_error(session, WEFT_ERR_INVALID, "describe_links: out is NULL or out_bytes is 0");
    if (!reserve_text(session))
        return client_error(session, WEFT_ERR_NO_MEMORY, "describe_links: no memory for a text");
    struct client_engine *engine = session->engine;
    engine->queries.links.query.command.fn = answer;
    if (client_engine_query_run(session, &engine->queries.links.query) < 0)
        return client_error(session, WEFT_ERR_BUSY,
                            "describe_links: the engine is in a long computation; call again");
    snprintf(out, out_bytes, "%s", engine->queries.links.text);
    return WEFT_OK;
}
