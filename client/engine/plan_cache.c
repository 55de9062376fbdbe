/* plan_cache.c - plans that the group of all workers has learned (collective.retune), stored in a file
 * between jobs (collective.plans).
 *
 * Rank 0 reads the file when its group is made and writes it when the session ends in order. A missing
 * file means an empty table. A file that does not fit is ignored with a log line. Blocks for the disk. */
#include "client/engine/plan_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/session/session.h"

static const char *plan_file_path(const struct weft_session *session)
{
    const char *path = weft_config_text(session->settings.config, "collective.plans");
    return session->rank == 0 && session->engine->group && client_plans_retune(session) != WEFT_RETUNE_OFF &&
                   path[0]
               ? path
               : NULL;
}

enum weft_retune client_plans_retune(const struct weft_session *session)
{
    const char *asked = weft_config_text(session->settings.config, "collective.retune");
    return strcmp(asked, "any") == 0          ? WEFT_RETUNE_ANY
           : strcmp(asked, "same_order") == 0 ? WEFT_RETUNE_SAME_ORDER
                                              : WEFT_RETUNE_OFF;
}

void client_plans_load(struct weft_session *session)
{
    char text[WEFT_GROUP_PLANS_BYTES_MAX + 1];
    const char *path = plan_file_path(session);
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; /* an open of a FIFO must not
                                                                               * block */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file) return;
    struct weft_error error = {0};
    size_t bytes = fread(text, 1, sizeof text, file);
    bool broken = ferror(file) != 0;
    fclose(file);
    if (broken || bytes == sizeof text)
        weft_error_set(&error, WEFT_ERR_IO,
                       broken ? "it cannot be read" : "it is longer than any table of plans");
    else weft_group_plans_read(session->engine->group, text, bytes, &error);
    if (error.text[0])
        weft_log(session->env, WEFT_LOG_WARN, "client", "collective.plans: %s is not used: %s", path,
                 error.text);
}

void client_plans_save(struct weft_session *session)
{
    char text[WEFT_GROUP_PLANS_BYTES_MAX];
    const char *path = plan_file_path(session);
    if (!path) return;
    size_t bytes = weft_group_plans_write(session->engine->group, text, sizeof text);
    if (bytes >= sizeof text) return;
    const int reason = weft_replace_file(path, text, bytes, 0644);
    if (reason != 0)
        weft_log(session->env, WEFT_LOG_WARN, "client", "collective.plans: %s cannot be written: %s", path,
                 strerror(reason));
}
