/* hello.h - what the doctors of two hosts say before a try, and how long each word may take.
 *
 *   listener ── hello ──►  asker      magic and a challenge
 *   listener ◄── hello ──  asker
 *   listener ◄── proof ──  asker      over the other's challenge, the asker first: a stranger learns nothing
 *   listener ── proof ──►  asker
 *   listener ── about ──►  asker      name, fingerprint, clock, device, MTU
 *   listener ◄─ request ─  asker ...  try a lane (transport_try.h), or say what your machine is like, or end */
#ifndef WEFT_TOOLS_DOCTOR_HELLO_H
#define WEFT_TOOLS_DOCTOR_HELLO_H

#include "proto/proto.h"
#include "tools/doctor/transport_try.h"

#define HELLO_MAGIC 0x32636f64u /* "doc2": the last byte counts forms of this exchange */
#define HELLO_MAGIC_MASK 0x00ffffffu

enum hello_request_kind { HELLO_TRY = 1, HELLO_END = 2, HELLO_EXAMINE = 3 };
enum { HELLO_FINDINGS_MAX = 256 };

struct hello_challenge {
    uint32_t magic;
    uint8_t challenge[WEFT_NONCE_BYTES];
};

struct hello_host {
    char name[WEFT_LINK_NAME_BYTES];
    char device[32]; /* the network device that this connection came over */
    uint32_t mtu;    /* of that; 0: unknown */
    uint32_t unused;
    uint64_t fingerprint;
    uint64_t kernel; /* the same number: processes of one kernel, in containers or namespaces perhaps */
    int64_t wall_ns;
};

struct hello_request {
    uint32_t kind;      /* enum hello_request_kind */
    uint32_t need_rdma; /* of HELLO_EXAMINE */
    char lane[DOCTOR_LANE_MAX];
};

void hello_draw_challenge(uint8_t *out);
/* Both ways; secret NULL: none (loopback only). False: it is not the same secret, or the other is silent. */
bool hello_authenticate(int fd, const char *secret, bool client, const uint8_t *mine, const uint8_t *theirs,
                 uint32_t seconds);
/* The same number on both sides. */
uint64_t hello_nonce(const uint8_t *client, const uint8_t *listener);
/* Ours; fd: the connection. */
void hello_describe_host(int fd, struct hello_host *about);
/* Small messages one after the other: none may wait for the answer to the one before. */
void hello_set_nodelay(int fd);
int64_t hello_wall_clock_ns(void);

#endif
