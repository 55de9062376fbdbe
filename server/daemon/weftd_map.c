/* weftd_map.c - forwards the coordinator's Maps to the engines, in the order of declarations and memberships.
 *
 *     Map -> every engine: fail the endpoints of the lost shard, then enter the slots (shard_map.c) */
#include <stdio.h>

#include "server/daemon/weftd.h"

struct map_request {
    struct weftd_command base;       /* must be the first member */
    Weft__Control__Control *message; /* owned */
    const Weft__Control__Member *lost; /* the shard that is lost, or has left; NULL: none */
};

/* ---- engine thread ---- */

/* Not every transport detects a dead peer, and what is received from it must end. */
static void fail_lost(struct weftd_engine *engine, const struct map_request *request)
{
    const Weft__Control__Member *lost = request->lost;
    for (size_t e = 0; lost && e < lost->n_addresses; e++)
        if (weft_transport_peer(engine->transport, lost->endpoint_first + (uint32_t)e))
            weft_transport_fail_peer(engine->transport, lost->endpoint_first + (uint32_t)e,
                                     WEFT_ERR_PEER_LOST, request->message->map->text);
}

static void on_map(struct weft_command *command)
{
    struct map_request *request = weft_container_of(command, struct map_request, base.command);
    struct weftd_engine *engine = request->base.engine;
    if (engine->shard) {
        fail_lost(engine, request);
        weft_shard_engine_map(engine->shard, request->message->map);
    }
    weftd_command_reply(&request->base);
}

/* ---- net thread ---- */

static void release(struct weftd_command *command)
{
    struct map_request *request = weft_container_of(command, struct map_request, base);
    weft_control_free(command->engine->weftd->env, request->message);
}

void weftd_map(struct weftd *weftd, const Weft__Control__Control *message)
{
    const Weft__Control__Map *map = message->map;
    if (!weftd->roster || weftd->welcome.copies == 0) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator sent a map that was not due");
        return;
    }
    if (map->lost > 0) weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s; copies lead its slots", map->text);
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct map_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (request) request->message = weftd_copy_message(weftd, message);
        if (!request || !request->message) {
            weft_free_bytes(weftd->env, request);
            (void)weft_control_client_abort(weftd->member, WEFT_ERR_NO_MEMORY,
                                            "a shard has no memory for the map of the slots");
            weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory for the map of the slots");
            return;
        }
        request->lost = map->lost > 0 ? weftd_shard_of(weftd, map->lost - 1) : NULL;
        request->base.release = release;
        weftd_command_post(&request->base, &weftd->engines[i], on_map);
    }
}
