/* remote.h - `weft doctor` on two hosts: one listens, the other asks for tries.
 *
 * The asker's TCP connection carries a challenge both ways (HMAC under the shared secret) before anything else is said, then
 * one request after another; a try runs over the same socket (try.h). The listener serves each asker in a process of its own,
 * with a deadline; strangers cost a few seconds of a process, and no more than a few at once. */
#ifndef WEFT_TOOLS_DOCTOR_REMOTE_H
#define WEFT_TOOLS_DOCTOR_REMOTE_H

#include "tools/doctor/try.h"

#define DOCTOR_PORT 4747

struct doctor_remote {
    int fd;
    char name[WEFT_LINK_NAME_BYTES]; /* what it calls itself */
    uint64_t fingerprint, nonce;
    int64_t clock_offset_ns;         /* its wall clock minus ours */
    char devices[64];                /* the network device that leads there from here */
};

struct doctor_listen {
    const char *host;    /* NULL: 127.0.0.1 */
    uint16_t port;
    const char *devices; /* NULL: the one the connection came over */
    const char *secret;  /* NULL: loopback only */
    const char *port_file; /* the port is written there; may be NULL */
    bool once;           /* serve one asker, then end */
    uint32_t deadline_s;
};

/* Serves until ended by a signal, or one asker. Returns the exit status; told on stderr. */
int doctor_serve(const struct doctor_listen *listen);

/* "host", "host:4747", "10.0.0.1", "fe80::1", "[fe80::1]:4747" into host and port (DOCTOR_PORT when there is none). */
bool doctor_split_target(const char *target, char *host, size_t room, char *port, size_t port_room);
/* HOST or HOST:PORT. On failure the finding is in the report and false is answered. */
bool doctor_reach(const char *target, const char *secret, uint32_t deadline_s, struct doctor_remote *remote, struct doctor_report *report);
/* Both sides try this lane now. False: the listener has gone. */
bool doctor_remote_try(struct doctor_remote *remote, const char *lane, const char *devices, const char *secret, uint32_t deadline_s,
                       struct doctor_try_result *result);
void doctor_leave(struct doctor_remote *remote);

#endif
