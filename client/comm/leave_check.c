/* leave_check.c - weft_finalize compares the calls of all ranks before this rank leaves.
 *
 *     weft_finalize ──► engine: send LEAVE to all ranks of every group ──► poll for their LEAVEs
 *                       (up to WAIT_NS, if the last operation had a root) ──► leave
 *
 * A rooted operation can complete on one rank before another rank calls it, so its calls may not have been
 * compared (collective/core/control/call_digest.c). Ranks that are lost or leave after WAIT_NS are not
 * compared. */
#include "client/comm/comm.h"
#include "client/comm/comms.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define POLL_PERIOD_NS WEFT_MS(1)
#define SLACK_NS WEFT_MS(100)
#define WAIT_NS WEFT_SECONDS(2) /* weft_finalize blocks at most 5 s */

struct client_leave_check {
    struct weft_command command;
    struct weft_timer timer;
    struct weft_session *session;
    uint64_t until_ns;
    struct weft_error error; /* of the first group whose ranks differ */
    _Atomic bool is_done;
};

static bool poll_group(struct client_leave_check *leave_check, const struct weft_group *group,
                    const struct weft_comm *comm)
{
    struct weft_error error = {0};
    const enum weft_status status = group ? weft_group_compare_leavers(group, &error) : WEFT_OK;
    if (status == WEFT_ERR_MISMATCH && comm)
        weft_error_set(&leave_check->error, status, "group %u (%s): %s", comm->id, comm->name, error.text);
    else if (status == WEFT_ERR_MISMATCH) weft_error_set(&leave_check->error, status, "%s", error.text);
    return status == WEFT_IN_PROGRESS && weft_group_has_unverified_calls(group);
}

/* Returns whether a LEAVE that could show a mismatch has not arrived. */
static bool poll_groups(struct client_leave_check *leave_check)
{
    struct client_engine *engine = leave_check->session->engine;
    struct weft_list *node, *spare;
    bool waits = poll_group(leave_check, engine->group, NULL);
    weft_list_foreach(node, spare, &engine->comms) {
        const struct weft_comm *comm = weft_container_of(node, struct weft_comm, engine_link);
        if (poll_group(leave_check, comm->group, comm)) waits = true;
    }
    return waits && leave_check->error.status == WEFT_OK;
}

static void poll(struct weft_timer *timer)
{
    struct client_leave_check *leave_check = weft_container_of(timer, struct client_leave_check, timer);
    struct weft_session *session = leave_check->session;
    const uint64_t now_ns = weft_now_ns(session->env);
    if (!session->engine->failed && poll_groups(leave_check) && now_ns < leave_check->until_ns &&
        weft_timer_start(session->loop, timer, now_ns + POLL_PERIOD_NS) >= 0)
        return;
    atomic_store_explicit(&leave_check->is_done, true, memory_order_release);
    weft_loop_notify(session->loop);
}

static void send_leaves(struct weft_command *command)
{
    struct client_leave_check *leave_check = weft_container_of(command, struct client_leave_check, command);
    struct client_engine *engine = leave_check->session->engine;
    if (!engine->failed) client_comms_send_leave(leave_check->session);
    if (!engine->failed && engine->group) weft_group_leave(engine->group);
    poll(&leave_check->timer);
}

static bool is_done(void *context)
{
    const struct client_leave_check *leave_check = context;
    return atomic_load_explicit(&leave_check->is_done, memory_order_acquire);
}

void client_leave_check_run(struct weft_session *session)
{
    if (session->membership.is_elastic || session->ranks == 1 || session->engine->thread.is_halted ||
        client_failed(session) < 0)
        return;
    struct client_leave_check *leave_check = session->comms->leave_check =
        weft_alloc_zero(session->env, sizeof *leave_check);
    if (!leave_check) return;
    leave_check->command.fn = send_leaves;
    leave_check->session = session;
    leave_check->until_ns = client_deadline(session, WAIT_NS);
    weft_timer_init(&leave_check->timer, poll);
    weft_loop_post(session->loop, &leave_check->command);
    if (client_wait_for(session, is_done, leave_check, leave_check->until_ns + SLACK_NS) < 0)
        return; /* the engine is busy: leave without the comparison */
    if (leave_check->error.status < 0)
        client_fail(session, WEFT_ERR_MISMATCH, true, "rank %u: %s", session->rank, leave_check->error.text);
}
