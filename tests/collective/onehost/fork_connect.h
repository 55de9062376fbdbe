/* fork_connect.h - connects the endpoints of forked processes, through memory that they share. */
#ifndef TEST_COLLECTIVE_MEETING_H
#define TEST_COLLECTIVE_MEETING_H

#include <stdbool.h>

#include "transport/transport.h"

enum { FORK_CONNECT_RANKS_MAX = 8 };

struct fork_connect { /* zeroed, in shared memory */
    _Atomic uint32_t addresses;
    uint8_t blobs[FORK_CONNECT_RANKS_MAX][WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes[FORK_CONNECT_RANKS_MAX];
};

/* Publishes the address of this rank's endpoint, waits for those of the other ranks (which end with their
 * parent) and connects. ids_out (ranks,): rank r has endpoint first_id + r. Returns NULL, or what failed. */
const char *fork_connect_all(struct fork_connect *fork_connect, struct weft_transport *transport,
                             uint32_t rank, uint32_t ranks, uint32_t first_id, uint32_t *ids_out);

/* In a child: prints `what` and exits unless `fine`. */
void fork_connect_must(bool fine, const char *what);

#endif
