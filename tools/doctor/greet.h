/* greet.h - what the doctors of two hosts say before a try, and how long each word may take.
 *
 *   listener ── hello ──►  asker      magic and a challenge
 *   listener ◄── hello ──  asker
 *   listener ◄── proof ──  asker      over the other's challenge, the asker first: a stranger learns nothing
 *   listener ── proof ──►  asker
 *   listener ── about ──►  asker      name, fingerprint, clock, device, MTU
 *   listener ◄─ request ─  asker ...  try a lane (try.h), or say what your machine is like, or end */
#ifndef WEFT_TOOLS_DOCTOR_GREET_H
#define WEFT_TOOLS_DOCTOR_GREET_H

#include "proto/proto.h"
#include "tools/doctor/try.h"

#define GREET_MAGIC 0x32636f64u /* "doc2": the last byte counts forms of this exchange */
#define GREET_MAGIC_NAME 0x00ffffffu

enum greet_kind { GREET_TRY = 1, GREET_END = 2, GREET_LOOK = 3 };
enum { GREET_FINDINGS_MAX = 256 };

struct greet_hello {
    uint32_t magic;
    uint8_t challenge[WEFT_NONCE_BYTES];
};

struct greet_about {
    char name[WEFT_LINK_NAME_BYTES];
    char device[32]; /* the network device that this connection came over */
    uint32_t mtu;    /* of that; 0: unknown */
    uint32_t unused;
    uint64_t fingerprint;
    uint64_t kernel; /* the same number: processes of one kernel, in containers or namespaces perhaps */
    int64_t wall_ns;
};

struct greet_request {
    uint32_t kind;      /* enum greet_kind */
    uint32_t need_rdma; /* of GREET_LOOK */
    char lane[DOCTOR_LANE_MAX];
};

void greet_challenge(uint8_t *out);
/* Both ways; secret NULL: none (loopback only). False: it is not the same secret, or the other is silent. */
bool greet_prove(int fd, const char *secret, bool asker, const uint8_t *mine, const uint8_t *theirs,
                 uint32_t seconds);
/* The same number on both sides. */
uint64_t greet_nonce(const uint8_t *asker, const uint8_t *listener);
/* Ours; fd: the connection. */
void greet_describe(int fd, struct greet_about *about);
/* Small messages one after the other: none may wait for the answer to the one before. */
void greet_send_at_once(int fd);
int64_t greet_wall_ns(void);

#endif
