/* remote.h - `weft doctor` on two hosts: one listens, the other is the client.
 *
 * The TCP connection begins with the handshake of hello.h (HMAC under the shared secret, both ways). Requests
 * follow, one after another; a try runs over the same socket (transport_try.h). Every step has a deadline.
 * The listener serves each client in a process of its own (listen.c), so silent, slow and hostile clients
 * delay no other client. */
#ifndef WEFT_TOOLS_DOCTOR_REMOTE_H
#define WEFT_TOOLS_DOCTOR_REMOTE_H

#include "tools/doctor/transport_try.h"

#define DOCTOR_PORT 4747

struct doctor_remote {
    int fd;
    char name[WEFT_LINK_NAME_BYTES]; /* its host name, as it reports it */
    uint64_t fingerprint, nonce;
    int64_t clock_offset_ns;  /* its wall clock minus ours */
    char devices[32];         /* the network device here of the connection */
    char remote_device[32];   /* the network device there */
    uint32_t mtu, remote_mtu; /* of these two; 0: unknown */
    uint32_t path_mtu;        /* as the kernel has discovered it; 0: unknown */
    bool same_kernel;         /* both run on one kernel: containers or namespaces of one host */
};

struct doctor_listen {
    const char *host;      /* anything but loopback requires a secret */
    uint16_t port;         /* 0: any free one */
    const char *devices;   /* NULL: the device of the connection */
    const char *secret;    /* NULL: loopback only */
    const char *port_file; /* file for the port number; NULL: none */
    bool once;             /* end after the first authenticated client */
    uint32_t deadline_s;
};

/* Serves until a signal, or with `once` until one client has ended. Returns the exit status; the sentence is
 * on stderr. */
int doctor_serve(const struct doctor_listen *listen);
bool doctor_is_loopback(const char *host);

/* Splits "host", "host:4747", "10.0.0.1", "fe80::1", "[fe80::1]:4747" into host and port ("": no port). */
bool doctor_parse_target(const char *target, char *host, size_t capacity, char *port, size_t port_capacity);
/* Connects to HOST or HOST:PORT and authenticates. False: the finding is in the report. */
bool doctor_connect(const char *target, const char *secret, uint32_t deadline_s, struct doctor_remote *remote,
                    struct doctor_report *report);
/* Appends the findings of the other machine, with the target before each subject. False: the connection is
 * lost, or the answer is malformed. */
bool doctor_remote_examine(struct doctor_remote *remote, const char *target, bool need_rdma,
                           uint32_t deadline_s, struct doctor_report *report);
/* Both sides try this lane now. False: the connection is lost, or the try on this side was ended; disconnect
 * and connect again. */
bool doctor_remote_try(struct doctor_remote *remote, const char *lane, const char *devices,
                       const char *secret, uint32_t deadline_s, struct doctor_try_result *result);
void doctor_disconnect(struct doctor_remote *remote);

#endif
