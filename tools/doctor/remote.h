/* remote.h - `weft doctor` on two hosts: one listens, the other asks for tries.
 *
 * The asker's TCP connection carries a challenge both ways (HMAC under the shared secret, hello.h) before
 * anything else is said, then one request after another; a try runs over the same socket
 * (transport_try.h). Everything has a deadline. The listener serves each asker in a process of its own
 * (listen.c): silent, slow and hostile callers keep nobody out. */
#ifndef WEFT_TOOLS_DOCTOR_REMOTE_H
#define WEFT_TOOLS_DOCTOR_REMOTE_H

#include "tools/doctor/transport_try.h"

#define DOCTOR_PORT 4747

struct doctor_remote {
    int fd;
    char name[WEFT_LINK_NAME_BYTES]; /* what it calls itself */
    uint64_t fingerprint, nonce;
    int64_t clock_offset_ns; /* its wall clock minus ours */
    char devices[32];        /* the network device that leads there from here */
    char remote_device[32];   /* ... and from there to here */
    uint32_t mtu, remote_mtu; /* of these; 0: unknown */
    uint32_t path_mtu;       /* as the kernel has learnt it so far; 0: unknown */
    bool same_kernel;        /* containers or namespaces of one host */
};

struct doctor_listen {
    const char *host;      /* beyond loopback only with a secret */
    uint16_t port;         /* 0: any free one */
    const char *devices;   /* NULL: the one the connection came over */
    const char *secret;    /* NULL: loopback only */
    const char *port_file; /* the port is written there; may be NULL */
    bool once;             /* end after the first asker who holds the secret */
    uint32_t deadline_s;
};

/* Serves until ended by a signal, or one asker. Returns the exit status; told on stderr. */
int doctor_serve(const struct doctor_listen *listen);
bool doctor_is_loopback(const char *host);

/* "host", "host:4747", "10.0.0.1", "fe80::1", "[fe80::1]:4747" into host and port ("" when there is none). */
bool doctor_parse_target(const char *target, char *host, size_t capacity, char *port, size_t port_capacity);
/* HOST or HOST:PORT. On failure the finding is in the report and false is answered. */
bool doctor_connect(const char *target, const char *secret, uint32_t deadline_s, struct doctor_remote *remote,
                  struct doctor_report *report);
/* What the other machine's files say, with the target before each subject. False: it has gone, or talks
 * nonsense. */
bool doctor_remote_examine(struct doctor_remote *remote, const char *target, bool need_rdma,
                           uint32_t deadline_s, struct doctor_report *report);
/* Both sides try this lane now. False: the listener has gone, or this side's try was ended: leave, and reach
 * it anew. */
bool doctor_remote_try(struct doctor_remote *remote, const char *lane, const char *devices,
                       const char *secret, uint32_t deadline_s, struct doctor_try_result *result);
void doctor_disconnect(struct doctor_remote *remote);

#endif
