/* host_health.c - findings about hosts.
 *
 *     host: `weft doctor --notify` --HostHealth--> coordinator --> log, status, weft_job_sick_hosts
 *
 * A message has all findings of its host, so a repeated one changes nothing, and one without findings removes
 * the host. What to do is advice for the operator: the host may run other work, and a drained worker loses
 * its place. */
#include "coordinator/health/host_health.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"

static uint32_t find(const struct coordinator_host_health *own, const char *host)
{
    uint32_t i = 0;
    while (i < own->count && strcmp(own->hosts[i]->host, host) != 0) i++;
    return i;
}

static bool is_known(const struct coordinator_sick_host *host, const Weft__Control__HostFinding *finding)
{
    struct coordinator_host_finding cut;
    snprintf(cut.subject, sizeof cut.subject, "%s", finding->subject);
    snprintf(cut.text, sizeof cut.text, "%s", finding->text);
    for (uint32_t i = 0; host && i < host->count; i++)
        if (strcmp(host->findings[i].subject, cut.subject) == 0 &&
            strcmp(host->findings[i].text, cut.text) == 0)
            return true;
    return false;
}

/* "rank 3, shard 0": connected members on the host. */
static void members_on(const struct weft_coordinator *coordinator, const char *host, char *out, size_t bytes)
{
    size_t used = 0;
    snprintf(out, bytes, "no member");
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (member->state >= MEMBER_LEFT || strcmp(member->host, host) != 0) continue;
        const int n =
            snprintf(out + used, bytes - used, "%s%s %u", used ? ", " : "",
                     member->role == WEFT__CONTROL__ROLE__ROLE_WORKER ? "rank" : "shard", member->index);
        if (n < 0 || used + (size_t)n >= bytes) return;
        used += (size_t)n;
    }
}

static void log_new(const struct weft_coordinator *coordinator, const struct coordinator_sick_host *known,
                    const Weft__Control__HostHealth *health)
{
    char members[120];
    members_on(coordinator, health->host, members, sizeof members);
    for (size_t i = 0; i < health->n_findings; i++) {
        const Weft__Control__HostFinding *finding = health->findings[i];
        if (is_known(known, finding)) continue;
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
                 "job %.100s: host %.100s with %s: %.60s: %.250s; advice: %.250s", coordinator->job,
                 health->host, members, finding->subject, finding->text, finding->advice);
    }
}

static void store(struct coordinator_sick_host *host, const Weft__Control__HostHealth *health)
{
    snprintf(host->host, sizeof host->host, "%s", health->host);
    host->count = (uint32_t)health->n_findings;
    for (uint32_t i = 0; i < host->count; i++) {
        struct coordinator_host_finding *finding = &host->findings[i];
        snprintf(finding->subject, sizeof finding->subject, "%s", health->findings[i]->subject);
        snprintf(finding->text, sizeof finding->text, "%s", health->findings[i]->text);
        snprintf(finding->advice, sizeof finding->advice, "%s", health->findings[i]->advice);
    }
}

void coordinator_host_health(struct weft_coordinator *coordinator, const Weft__Control__HostHealth *health)
{
    struct coordinator_host_health *own = &coordinator->host_health;
    const uint32_t at = find(own, health->host);
    struct coordinator_sick_host *known = at < own->count ? own->hosts[at] : NULL;
    log_new(coordinator, known, health);
    if (health->n_findings == 0 && known) {
        weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator",
                 "job %.100s: host %.100s has no findings now", coordinator->job, health->host);
        weft_free_bytes(coordinator->env, known);
        own->hosts[at] = own->hosts[--own->count];
    }
    if (health->n_findings == 0) return;
    if (!known && own->count < COORDINATOR_SICK_HOSTS_MAX) {
        known = weft_alloc_zero(coordinator->env, sizeof *known);
        if (known) own->hosts[own->count++] = known;
    }
    if (known) store(known, health);
}

void coordinator_host_health_free(struct weft_coordinator *coordinator)
{
    struct coordinator_host_health *own = &coordinator->host_health;
    for (uint32_t i = 0; i < own->count; i++) weft_free_bytes(coordinator->env, own->hosts[i]);
    own->count = 0;
}
