/* conformance.h - one suite for every backend and wrapper: the contract of transport.h. Each file here
 * tests one topic; flavours.c lists the backends. */
#ifndef WEFT_TESTS_TRANSPORT_CONFORMANCE_H
#define WEFT_TESTS_TRANSPORT_CONFORMANCE_H

#include "tests/transport/conformance/flavours.h"
#include "tests/transport/net.h"
#include "transport/core/core.h"

struct conformance_part {
    const char *name;
    const struct CMUnitTest *tests;
    size_t count;
};
extern const struct conformance_part conformance_messages, conformance_receive, conformance_load,
    conformance_ends, conformance_deadline, conformance_unconnected, conformance_sleep, conformance_one_sided,
    conformance_many;

extern const struct flavour *flavour; /* of this run */
extern int conformance_endpoints;     /* --endpoints; 0: the flavour's number */

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
static inline uint32_t id_of(int index) { return 100 + (uint32_t)index; }

/* messages.c: sends `bytes` from endpoint 0 to 1, both buffers shifted, receive posted first or last;
 * compares. */
void exchange(struct net *net, size_t bytes, size_t shift, bool post_first, uint32_t seed);

/* A handler that stores arrivals. */
struct handled {
    struct weft_list held;
    int count;
};
void on_arrival(void *context, struct weft_arrival *arrival);

#endif
