/* process_pair.h - one endpoint in each of two processes, connected by a socket pair before the fork: for
 * tests that kill one of them or put them into two networks. A failure while a side opens ends its
 * process. */
#ifndef WEFT_TESTS_TRANSPORT_PROCESS_PAIR_H
#define WEFT_TESTS_TRANSPORT_PROCESS_PAIR_H

#include "tests/transport/net.h"

enum { CHILD = 0, PARENT = 1 }; /* ids 10 and 11 */

struct side {
    struct weft_transport *transport;
    struct weft_peer *peer; /* the other process */
    int failed;             /* how often peer_failed was called */
    enum weft_status failed_status;
};

/* `device`: NULL: the next of WEFT_TEST_DEVICES, or the backend's default. Exchanges addresses over `fd`. */
void side_open(struct side *side, const struct flavour *flavour, const char *device, int who, int fd);
void side_close(struct side *side); /* in order */
void side_write(int fd, const void *data, size_t bytes);
void side_read(int fd, void *data, size_t bytes);

/* Zeroed payload memory: from weft_memory_alloc, or from calloc. */
void *side_alloc(bool from_transport, size_t bytes);
void side_release_memory(bool from_transport, void *memory);

#define SPIN(side, expression)                                                                     \
    for (uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60); !(expression);) {                   \
        weft_transport_progress((side)->transport, 64);                                            \
        if (net_now_ns() > limit_ns_) fail_msg("never true: %s", #expression);                     \
    }

#endif
