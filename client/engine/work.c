/* work.c - the queue of computations: each command runs one slice, so that the transport, timers and other
 * commands run between slices. */
#include "client/engine/work.h"

#include "client/engine/engine.h"
#include "client/session/session.h"

void client_engine_run_work(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, work.command);
    engine->work.is_posted = false;
    if (weft_list_empty(&engine->work.queue)) return;
    struct client_work *work = weft_list_first(&engine->work.queue, struct client_work, link);
    struct weft_env *env = weft_loop_env(engine->loop);
    uint64_t began_ns = weft_now_ns(env);
    weft_list_remove(&work->link);
    bool finished = work->run(work); /* it may complete the tensor's request, or queue work, also itself */
    engine->counters.encode_ns += weft_now_ns(env) - began_ns;
    if (!finished) weft_list_insert_before(engine->work.queue.next, &work->link); /* first in, first out */
    if (!weft_list_empty(&engine->work.queue) && !engine->work.is_posted) {
        engine->work.is_posted = true;
        weft_loop_post(engine->loop, &engine->work.command);
    }
}

void client_engine_queue_work(struct weft_session *session, struct client_work *work)
{
    struct client_engine *engine = session->engine;
    WEFT_ASSERT(weft_list_empty(&work->link));
    weft_list_append(&engine->work.queue, &work->link);
    if (engine->work.is_posted) return;
    engine->work.is_posted = true;
    weft_loop_post(engine->loop, &engine->work.command);
}

void client_engine_cancel_work(struct client_work *work)
{
    weft_list_remove(&work->link);
}
