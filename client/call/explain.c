/* explain.c - weft_explain: the plan that an operation would take, with the model's estimates, as text. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/query.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/topology.h"

#define COUNT_MAX (1ull << 48) /* elements; times element size and ranks it fits into 64 bits */

/* Copies the group's link cost into memory of the session. Engine thread. */
static void answer(struct weft_command *command)
{
    struct client_engine_query *query = weft_container_of(command, struct client_engine_query, command);
    const struct client_engine *engine = query->session->engine;
    struct client_calls *calls = query->session->calls;
    if (engine->group) {
        calls->explain.cost = *weft_group_cost(engine->group);
        calls->explain.one_host = weft_group_uses_onehost(engine->group, calls->explain.kind);
    }
    client_engine_query_answered(query);
}

enum weft_status weft_explain(struct weft_session *session, const char *operation, uint64_t count,
                              enum weft_dtype dtype, char *out, size_t out_bytes)
{
    if (!session) return client_null_argument("explain", "session");
    WEFT_TRY(client_usable(session));
    const enum weft_coll_kind kind = operation ? weft_coll_kind_parse(operation, strlen(operation)) : 0;
    if (kind == 0)
        return client_error(session, WEFT_ERR_INVALID, "explain: there is no operation '%.40s'",
                            operation ? operation : "(NULL)");
    if (!out || out_bytes == 0)
        return client_error(session, WEFT_ERR_INVALID, "explain: out is NULL or out_bytes is 0");
    if (weft_dtype_bytes(dtype) == 0)
        return client_error(session, WEFT_ERR_INVALID,
                            "explain: dtype %d is not a valid weft_dtype (WEFT_F32 .. WEFT_F8_E5M2)",
                            (int)dtype);
    if (count > COUNT_MAX)
        return client_error(session, WEFT_ERR_INVALID, "explain: count %llu does not fit into memory",
                            (unsigned long long)count);
    struct client_calls *calls = session->calls;
    calls->explain.kind = kind;
    calls->explain.query.command.fn = answer;
    if (client_engine_query_run(session, &calls->explain.query) < 0)
        return client_error(session, WEFT_ERR_BUSY,
                            "explain: the engine is in a long computation; call again");
    bool narrow = dtype == WEFT_F16 || dtype == WEFT_BF16 || dtype == WEFT_F8_E4M3 || dtype == WEFT_F8_E5M2;
    size_t elem_bytes = weft_dtype_bytes(dtype);
    struct weft_plan_question query = {
        .kind = kind,
        .ranks = session->ranks,
        .bytes = count * elem_bytes,
        .elem_bytes = elem_bytes,
        .wide_bytes = narrow ? sizeof(float) : elem_bytes,
        .forced_plan = calls->plans[kind],
        .cost = &calls->explain.cost,
        .hosts = &atomic_load(&session->membership.hosts)->plan,
        .chunk_bytes = weft_config_u64(session->settings.config, "collective.chunk_bytes"),
        .message_bytes = weft_transport_message_bytes(session->engine->transport),
        .window = (uint32_t)weft_config_u64(session->settings.config, "collective.inflight"),
    };
    char text[768], one_host[256];
    weft_plan_explain(&query, text, sizeof text);
    weft_onehost_model_explain(&query, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), one_host, sizeof one_host);
    if (calls->explain.one_host && query.forced_plan == WEFT_PLAN_AUTO)
        snprintf(out, out_bytes, "%s: %s; by messages it would be %s", operation, one_host, text);
    else snprintf(out, out_bytes, "%s", text);
    const size_t used = strlen(out);
    if (calls->nccl_ops && kind == WEFT_COLL_ALL_REDUCE)
        calls->nccl_ops->explain(session, count, dtype, out + used, out_bytes - used);
    return WEFT_OK;
}
