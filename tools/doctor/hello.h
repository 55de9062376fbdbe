/* hello.h - handshake between the doctors of two hosts, with a limit for every message.
 *
 *   listener ── challenge ──►  client     magic and a nonce
 *   listener ◄── challenge ──  client
 *   listener ◄──── proof ────  client     HMAC over the challenge of the listener; the client proves first,
 *   listener ───── proof ───►  client     so an unauthenticated client learns nothing
 *   listener ───── host ────►  client     name, fingerprint, clock, device, MTU
 *   listener ◄─── request ───  client ... try a lane (transport_try.h), examine this machine, or end */
#ifndef WEFT_TOOLS_DOCTOR_HELLO_H
#define WEFT_TOOLS_DOCTOR_HELLO_H

#include "proto/proto.h"
#include "tools/doctor/transport_try.h"

#define HELLO_MAGIC 0x32636f64u /* "doc2": the last byte is the version of this handshake */
#define HELLO_MAGIC_MASK 0x00ffffffu

enum hello_request_kind { HELLO_TRY = 1, HELLO_END = 2, HELLO_EXAMINE = 3 };
enum { HELLO_FINDINGS_MAX = 256 };

struct hello_challenge {
    uint32_t magic;
    uint8_t challenge[WEFT_NONCE_BYTES];
};

struct hello_host {
    char name[WEFT_LINK_NAME_BYTES];
    char device[32]; /* the network device of this connection */
    uint32_t mtu;    /* of that device; 0: unknown */
    uint32_t unused;
    uint64_t fingerprint;
    /* hash of the boot id; equal for processes of one kernel, also in containers and namespaces */
    uint64_t kernel;
    int64_t wall_ns;
};

struct hello_request {
    uint32_t kind;      /* enum hello_request_kind */
    uint32_t need_rdma; /* of HELLO_EXAMINE: a machine without RDMA is broken */
    char lane[DOCTOR_LANE_MAX];
};

void hello_draw_challenge(uint8_t *out);
/* Proves the secret to the other side and checks its proof. `secret` NULL: none (loopback only). False: the
 * secrets differ, or the other side did not answer within `seconds`. */
bool hello_authenticate(int fd, const char *secret, bool client, const uint8_t *mine, const uint8_t *theirs,
                        uint32_t seconds);
/* The nonce of the session; equal on both sides. */
uint64_t hello_nonce(const uint8_t *client, const uint8_t *listener);
/* Describes this host; fd is the connection. */
void hello_describe_host(int fd, struct hello_host *about);
/* Sets TCP_NODELAY: small messages do not wait for acknowledgements. */
void hello_set_nodelay(int fd);
int64_t hello_wall_clock_ns(void);

#endif
