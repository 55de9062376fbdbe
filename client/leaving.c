/* leaving.c - weft_finalize compares what the ranks called, before this rank leaves.
 *
 *     weft_finalize ──► engine: send LEAVE to all ranks of every group ──► poll for the LEAVEs of the others
 *                       (up to WAIT_NS, if the last operation had a root) ──► leave
 *
 * An operation with a root can complete on one rank before another rank calls it, so its calls may never
 * have been compared (collective/trail.c). The comparison skips a rank that is lost or that leaves after
 * WAIT_NS. */
#include "client/comm.h"
#include "client/session.h"

#define LOOK_NS WEFT_MS(1)
#define SLACK_NS WEFT_MS(100)
#define WAIT_NS WEFT_SECONDS(2) /* weft_finalize has a limit of 5 s */

struct client_leaving {
    struct weft_mail mail;
    struct weft_timer timer;
    struct weft_session *session;
    uint64_t until_ns;
    struct weft_error error; /* of the first group whose ranks differ */
    _Atomic bool over;
};

static bool look_at(struct client_leaving *leaving, const struct weft_group *group,
                    const struct weft_comm *comm)
{
    struct weft_error error = {0};
    const enum weft_status status = group ? weft_group_compare_left(group, &error) : WEFT_OK;
    if (status == WEFT_ERR_MISMATCH && comm)
        weft_error_set(&leaving->error, status, "group %u (%s): %s", comm->id, comm->name, error.text);
    else if (status == WEFT_ERR_MISMATCH) weft_error_set(&leaving->error, status, "%s", error.text);
    return status == WEFT_IN_PROGRESS && weft_group_has_unverified_calls(group);
}

/* Returns whether a LEAVE that could show a mismatch is still missing. */
static bool look_at_all(struct client_leaving *leaving)
{
    struct client_engine *engine = &leaving->session->engine;
    struct weft_list *node, *spare;
    bool waits = look_at(leaving, engine->group, NULL);
    weft_list_foreach(node, spare, &engine->comms) {
        const struct weft_comm *comm = weft_container_of(node, struct weft_comm, engine_link);
        if (look_at(leaving, comm->group, comm)) waits = true;
    }
    return waits && leaving->error.status == WEFT_OK;
}

static void look(struct weft_timer *timer)
{
    struct client_leaving *leaving = weft_container_of(timer, struct client_leaving, timer);
    struct weft_session *session = leaving->session;
    const uint64_t now_ns = weft_now_ns(session->env);
    if (!session->engine.failed && look_at_all(leaving) && now_ns < leaving->until_ns &&
        weft_timer_start(session->engine.loop, timer, now_ns + LOOK_NS) >= 0)
        return;
    atomic_store_explicit(&leaving->over, true, memory_order_release);
    weft_loop_notify(session->engine.loop);
}

static void send_leaves(struct weft_mail *mail)
{
    struct client_leaving *leaving = weft_container_of(mail, struct client_leaving, mail);
    struct client_engine *engine = &leaving->session->engine;
    if (!engine->failed) client_comms_say_leave(leaving->session);
    if (!engine->failed && engine->group) weft_group_leave(engine->group);
    look(&leaving->timer);
}

static bool is_over(void *context)
{
    const struct client_leaving *leaving = context;
    return atomic_load_explicit(&leaving->over, memory_order_acquire);
}

void client_leaving_compare(struct weft_session *session)
{
    if (session->elastic || session->ranks == 1 || session->engine.halted || client_failed(session) < 0)
        return;
    struct client_leaving *leaving = session->leaving = weft_alloc_zero(session->env, sizeof *leaving);
    if (!leaving) return;
    leaving->mail.fn = send_leaves;
    leaving->session = session;
    leaving->until_ns = client_deadline(session, WAIT_NS);
    weft_timer_init(&leaving->timer, look);
    weft_loop_post(session->engine.loop, &leaving->mail);
    if (client_wait_for(session, is_over, leaving, leaving->until_ns + SLACK_NS) < 0)
        return; /* the engine is busy; leave without the comparison */
    if (leaving->error.status < 0)
        client_fail(session, WEFT_ERR_MISMATCH, true, "rank %u: %s", session->rank, leaving->error.text);
}
