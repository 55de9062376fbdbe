/* weftd_command.c - commands of the net thread to an engine, each with a reply. An error in a reply ends the
 * job.
 *
 *     net: weftd_command_post -> engine: fn, weftd_command_reply -> net: frees it; after an error aborts the
 *     job
 *
 * Commands to one engine run in order. weftd_commands_free frees the commands that no engine has read at the
 * end. */
#include "server/daemon/weftd.h"

static struct weftd_command *request_of(struct weft_command *command)
{
    return weft_container_of(command, struct weftd_command, command);
}

void weftd_command_post(struct weftd_command *request, struct weftd_engine *engine,
                        void (*fn)(struct weft_command *command))
{
    request->engine = engine;
    request->command.fn = fn;
    weft_list_append(&engine->weftd->requests, &request->link);
    weft_loop_post(engine->loop, &request->command);
}

static void request_free(struct weftd_command *request)
{
    if (request->release) request->release(request);
    weft_free_bytes(request->engine->weftd->env, request);
}

static void on_reply(struct weft_command *command)
{
    struct weftd_command *request = request_of(command);
    struct weftd *weftd = request->engine->weftd;
    if (request->error.status != WEFT_OK && !weftd->state.failing) {
        (void)weft_control_client_abort(weftd->member, (enum weft_status)request->error.status,
                                        request->error.text);
        weftd_fail(weftd, (enum weft_status)request->error.status, "%s", request->error.text);
    }
    weft_list_remove(&request->link);
    request_free(request);
}

void weftd_command_reply(struct weftd_command *request)
{
    request->command.fn = on_reply;
    weft_net_post(request->engine->weftd->net, &request->command);
}

void weftd_commands_free(struct weftd *weftd)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &weftd->requests)
        request_free(weft_container_of(node, struct weftd_command, link));
}
