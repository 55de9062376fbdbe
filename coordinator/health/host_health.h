/* host_health.h - findings about hosts, sent by observers (HostHealth): kept, logged and shown, never acted
 * on. */
#ifndef WEFT_COORDINATOR_HEALTH_HOST_HEALTH_H
#define WEFT_COORDINATOR_HEALTH_HOST_HEALTH_H

#include "proto/proto.h"

enum { COORDINATOR_SICK_HOSTS_MAX = 64 }; /* further hosts are logged, and not kept */

struct coordinator_host_finding {
    char subject[64], text[256], advice[256];
};

struct coordinator_sick_host { /* a host with at least one finding */
    char host[256];
    uint32_t count;
    struct coordinator_host_finding findings[WEFT_LIMIT_HOST_FINDINGS];
};

struct coordinator_host_health {
    struct coordinator_sick_host *hosts[COORDINATOR_SICK_HOSTS_MAX]; /* owned; (count,) */
    uint32_t count;
};

struct weft_coordinator;

/* Takes the findings of a host in place of those before. Each new one is logged once, with its members. */
void coordinator_host_health(struct weft_coordinator *coordinator, const Weft__Control__HostHealth *health);
void coordinator_host_health_free(struct weft_coordinator *coordinator);

#endif
