/* weftd_shard_added.c - a further shard joins the job: the engines connect to it.
 *
 *     ShardAdded -> every engine connects to each endpoint of the shard -> after all replies: ShardKnown
 *
 * An engine that cannot connect does not end the job: the coordinator does not admit the shard. The messages
 * are kept to the end, because a later Map may name the shard as lost. */
#include "server/daemon/weftd.h"

struct weftd_added {
    struct weftd_added *next;
    Weft__Control__Control *message; /* owned; engines read it */
    uint32_t waited_for;             /* engines that have not answered */
    struct weft_error error;         /* the first of their errors */
};

struct added_request {
    struct weftd_command base; /* must be the first member */
    struct weftd_added *added;
    struct weft_error error;
};

static const Weft__Control__Member *shard_of(const struct weftd_added *added)
{
    return added->message->shard_added->shard;
}

/* ---- engine thread ---- */

static void on_connect(struct weft_command *command)
{
    struct added_request *request = weft_container_of(command, struct added_request, base.command);
    if (request->base.engine->shard)
        (void)weftd_engine_connect_shard(request->base.engine, shard_of(request->added), &request->error);
    weftd_command_reply(&request->base);
}

/* ---- net thread ---- */

static void send_known(struct weftd *weftd, const struct weftd_added *added)
{
    Weft__Control__ShardKnown known = WEFT__CONTROL__SHARD_KNOWN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    known.member = shard_of(added)->member;
    known.text = (char *)(uintptr_t)added->error.text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN;
    message.shard_known = &known;
    (void)weft_control_client_send(weftd->member, &message);
}

/* The engine has replied, or the process ends. */
static void replied(struct weftd_command *command)
{
    struct added_request *request = weft_container_of(command, struct added_request, base);
    struct weftd *weftd = command->engine->weftd;
    struct weftd_added *added = request->added;
    if (added->error.status == WEFT_OK) added->error = request->error;
    if (--added->waited_for == 0 && !weftd->state.failing && !atomic_load(&weftd->outcome.stopped))
        send_known(weftd, added);
}

static struct weftd_added *keep(struct weftd *weftd, const Weft__Control__Control *message)
{
    struct weftd_added *added = weft_alloc_zero(weftd->env, sizeof *added);
    if (added) added->message = weftd_copy_message(weftd, message);
    if (!added || !added->message) {
        weft_free_bytes(weftd->env, added);
        return NULL;
    }
    added->next = weftd->added;
    weftd->added = added;
    return added;
}

void weftd_shard_added(struct weftd *weftd, const Weft__Control__Control *message)
{
    struct weftd_added *added = weftd->state.running ? keep(weftd, message) : NULL;
    if (!weftd->state.running) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator named a further shard when that was not due");
        return;
    }
    for (uint32_t i = 0; added && i < weftd->options.engines; i++) {
        struct added_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) {
            added = NULL;
            break;
        }
        request->added = added;
        request->base.release = replied;
        added->waited_for++;
        weftd_command_post(&request->base, &weftd->engines[i], on_connect);
    }
    if (added) return;
    (void)weft_control_client_abort(weftd->member, WEFT_ERR_NO_MEMORY,
                                    "a shard has no memory for another shard");
    weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory for %.200s", message->shard_added->shard->name);
}

const Weft__Control__Member *weftd_shard_of(const struct weftd *weftd, uint32_t number)
{
    const Weft__Control__Roster *roster = weftd->roster->roster;
    for (size_t i = 0; i < roster->n_members; i++)
        if (roster->members[i]->member == number &&
            roster->members[i]->role == WEFT__CONTROL__ROLE__ROLE_SHARD)
            return roster->members[i];
    for (const struct weftd_added *added = weftd->added; added; added = added->next)
        if (shard_of(added)->member == number) return shard_of(added);
    return NULL;
}

void weftd_shards_added_free(struct weftd *weftd)
{
    while (weftd->added) {
        struct weftd_added *added = weftd->added;
        weftd->added = added->next;
        weft_control_free(weftd->env, added->message);
        weft_free_bytes(weftd->env, added);
    }
}
