/* query.c - see query.h. */
#include "client/engine/query.h"

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "client/session/wait.h"

void client_engine_query_answered(struct client_engine_query *query)
{
    struct weft_loop *loop = query->session->loop; /* after the store the next query may write the field */
    atomic_store_explicit(&query->state, 2, memory_order_release);
    weft_loop_notify(loop);
}

static bool is_answered(void *context)
{
    struct client_engine_query *query = context;
    return atomic_load_explicit(&query->state, memory_order_acquire) == 2;
}

enum weft_status client_engine_query_run(struct weft_session *session, struct client_engine_query *query)
{
    uint64_t until_ns = client_deadline(session, WEFT_SECONDS(1));
    if (session->engine->thread.is_halted) { /* no thread steps the loop: answer here */
        query->session = session;
        query->command.fn(&query->command);
        atomic_store(&query->state, 0);
        return WEFT_OK;
    }
    if (atomic_load(&query->state) == 1 && client_wait_for(session, is_answered, query, until_ns) < 0)
        return WEFT_ERR_BUSY;
    query->session = session;
    atomic_store(&query->state, 1);
    weft_loop_post_lazy(session->loop, &query->command);
    if (client_wait_for(session, is_answered, query, until_ns) < 0) return WEFT_ERR_BUSY;
    atomic_store(&query->state, 0);
    return WEFT_OK;
}
