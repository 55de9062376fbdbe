/* notify.c - see notify.h. A process of its own does this, not the trainer: NVML may block for ever, and a
 * trainer with GPUs must not fork (docs/decisions/0081). */
#include "tools/doctor/notify.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/target.h"

/* Findings that need action, at most as many as one message holds. */
static size_t collect(const struct doctor_report *report, Weft__Control__HostFinding *findings)
{
    size_t count = 0;
    for (size_t i = 0; i < report->count && count < WEFT_LIMIT_HOST_FINDINGS; i++) {
        const struct doctor_finding *found = &report->findings[i];
        if (found->level < DOCTOR_WARN) continue;
        weft__control__host_finding__init(&findings[count]);
        findings[count].subject = (char *)found->subject;
        findings[count].text = (char *)found->text;
        findings[count++].advice = (char *)found->advice;
    }
    return count;
}

int doctor_notify(const struct doctor_report *report, const char *coordinator, const char *secret_file)
{
    Weft__Control__HostFinding findings[WEFT_LIMIT_HOST_FINDINGS], *pointers[WEFT_LIMIT_HOST_FINDINGS];
    Weft__Control__HostHealth health = WEFT__CONTROL__HOST_HEALTH__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct tool_target target;
    struct weft_error error = {0};
    char host[256] = {0}, *address[1] = {(char *)coordinator};
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "unknown");
    health.host = host;
    health.n_findings = collect(report, findings);
    health.findings = pointers;
    for (size_t i = 0; i < health.n_findings; i++) pointers[i] = &findings[i];
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HOST_HEALTH;
    message.host_health = &health;
    tool_target_init(&target);
    target.secret_file = secret_file;
    int status = tool_target_resolve("weft doctor", &target, 1, address, 0);
    if (status >= 0) return status;
    char *answer = tool_target_send(&target, &message, &error);
    tool_target_free(&target);
    if (!answer) {
        fprintf(stderr, "weft doctor: the coordinator was not notified: %s\n", error.text);
        return 1;
    }
    free(answer);
    return 0;
}
