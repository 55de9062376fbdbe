/* process_pair.h - one endpoint in each of two processes, which a socket pair joined before the fork. For
 * tests that kill one of them, or put them into two networks. Whatever fails while a side opens ends its
 * process: the other one cannot go on alone. */
#ifndef WEFT_TESTS_TRANSPORT_PROCESS_PAIR_H
#define WEFT_TESTS_TRANSPORT_PROCESS_PAIR_H

#include "tests/transport/net.h"

enum { CHILD = 0, PARENT = 1 }; /* ids 10 and 11 */

struct side {
    struct weft_transport *transport;
    struct weft_peer *peer; /* the other one */
    int failed;             /* how often peer_failed was called */
    enum weft_status failed_status;
};

/* `device`: NULL: the next of WEFT_TEST_DEVICES, or the backend's default. Addresses are exchanged over
 * `fd`. */
void side_open(struct side *side, const struct flavour *flavour, const char *device, int who, int fd);
void side_close(struct side *side); /* in order */
void side_write(int fd, const void *data, size_t bytes);
void side_read(int fd, void *data, size_t bytes);

/* Memory for payloads, zeroed: of weft_memory_alloc, or of calloc. */
void *side_alloc(bool from_transport, size_t bytes);
void side_give(bool from_transport, void *memory);

#define SPIN(side, expression)                                                                     \
    for (uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60); !(expression);) {                   \
        weft_transport_progress((side)->transport, 64);                                            \
        if (net_now_ns() > limit_ns_) fail_msg("never true: %s", #expression);                     \
    }

#endif
