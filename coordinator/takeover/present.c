/* present.c - the present coordinator of a job, for a process that is no member of it. */
#include <string.h>
#include <unistd.h>

#include "coordinator/coordinator.h"
#include "coordinator/takeover/reign.h"

enum weft_status weft_takeover_address(struct weft_env *env, const char *path, const char *job,
                                       char address_out[256], struct weft_error *error)
{
    struct coordinator_reign *reign;
    struct coordinator_reign_view view;
    if (access(path, R_OK | W_OK) != 0) /* an open would create the file */
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the store %.200s (server.store): %s", path,
                              weft_reason_text(WEFT_ERR_IO));
    WEFT_TRY(coordinator_reign_open(env, path, &reign, error));
    const enum weft_status status = coordinator_reign_read(reign, &view);
    coordinator_reign_close(reign);
    if (status < 0)
        return weft_error_set(error, status, "cannot read the store %.200s (server.store): %s", path,
                              weft_reason_text(status));
    if (view.number == 0)
        return weft_error_set(error, WEFT_ERR_CLOSED, "no process coordinates, by the store %.200s", path);
    if (strcmp(view.job, job) != 0)
        return weft_error_set(error, WEFT_ERR_MISMATCH,
                              "the store %.200s is that of job %.100s, not of %.100s", path, view.job, job);
    memcpy(address_out, view.address, sizeof view.address);
    return WEFT_OK;
}
