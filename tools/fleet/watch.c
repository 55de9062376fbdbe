/* watch.c - see watch.h. */
#include "tools/fleet/watch.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/progress.h"

enum { READ_MS = 500, WAIT_S = 3600 };

void fleet_watch_init(struct fleet_watch *watch, const char *command)
{
    *watch = (struct fleet_watch){.command = command, .wait_s = WAIT_S};
    tool_target_init(&watch->target);
}

json_t *fleet_status(const struct fleet_watch *watch)
{
    struct weft_error error = {0};
    char *text = tool_target_status(&watch->target, &error);
    json_t *status = text ? json_loads(text, 0, NULL) : NULL;
    if (!text) fprintf(stderr, "%s: %s\n", watch->command, error.text);
    else if (!status) fprintf(stderr, "%s: the coordinator's answer is not JSON\n", watch->command);
    free(text);
    return status;
}

bool fleet_request(const struct fleet_watch *watch, const Weft__Control__Control *request, const char *what)
{
    struct weft_error error = {0};
    char *refusal = tool_target_request(&watch->target, request, &error);
    const bool is_accepted = refusal && refusal[0] == 0;
    if (!refusal) fprintf(stderr, "%s: %s\n", watch->command, error.text);
    else if (!is_accepted) fprintf(stderr, "%s: %s: %s\n", watch->command, what, refusal);
    free(refusal);
    return is_accepted;
}

int fleet_follow(const struct fleet_watch *watch, const char *label, const char *unit, fleet_check *check,
                 void *context, const char *late)
{
    struct weft_env *env = weft_env_system();
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(env), WEFT_SECONDS(watch->wait_s));
    struct progress_bar bar;
    enum fleet_progress progress = FLEET_CONTINUES;
    uint64_t done = 0, total = 0;
    progress_begin(&bar, label, unit);
    while (progress == FLEET_CONTINUES && weft_now_ns(env) < until_ns) {
        json_t *status = fleet_status(watch);
        progress = status ? check(context, status, &done, &total) : FLEET_FAILED;
        json_decref(status);
        if (progress != FLEET_CONTINUES) break;
        progress_draw(&bar, done, total);
        (void)poll(NULL, 0, READ_MS);
    }
    progress_end(&bar);
    if (progress == FLEET_CONTINUES)
        fprintf(stderr, "%s: after %llu s %s; it continues, see weft status\n", watch->command,
                (unsigned long long)watch->wait_s, late);
    return progress == FLEET_DONE ? 0 : 1;
}
