/* weftd_command.c - letters of the net thread to an engine that are answered when it has read them; an error
 * in the answer ends the job.
 *
 *     net: weftd_command_post ──► engine: fn, weftd_command_reply ──► net: over, or the job is aborted; freed
 *
 * Letters to one engine are read in their order. One that no engine has read when the process ends is
 * freed with the others. */
#include "server/daemon/weftd.h"

static struct weftd_command *letter_of(struct weft_command *command)
{
    return weft_container_of(command, struct weftd_command, command);
}

void weftd_command_post(struct weftd_command *letter, struct weftd_engine *engine,
                        void (*fn)(struct weft_command *command))
{
    letter->engine = engine;
    letter->command.fn = fn;
    weft_list_append(&engine->weftd->letters, &letter->link);
    weft_loop_post(engine->loop, &letter->command);
}

static void on_answered(struct weft_command *command)
{
    struct weftd_command *letter = letter_of(command);
    struct weftd *weftd = letter->engine->weftd;
    if (letter->error.status != WEFT_OK && !weftd->failing) {
        (void)weft_control_client_abort(weftd->member, (enum weft_status)letter->error.status,
                                        letter->error.text);
        weftd_fail(weftd, (enum weft_status)letter->error.status, "%s", letter->error.text);
    }
    weft_list_remove(&letter->link);
    weft_free_bytes(weftd->env, letter);
}

void weftd_command_reply(struct weftd_command *letter)
{
    letter->command.fn = on_answered;
    weft_net_post(letter->engine->weftd->net, &letter->command);
}

void weftd_commands_free(struct weftd *weftd)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &weftd->letters)
        weft_free_bytes(weftd->env, weft_container_of(node, struct weftd_command, link));
}
