/* crowd.h - many endpoints in this process that come and go: for the test with a thousand, and for the soak. */
#ifndef WEFT_TESTS_TRANSPORT_CROWD_H
#define WEFT_TESTS_TRANSPORT_CROWD_H

#include "tests/transport/conformance/flavours.h"
#include "tests/transport/net.h"

struct crowd;

struct resident {
    struct crowd *crowd;
    int slot;
    uint32_t id;                      /* new with each life */
    struct weft_transport *transport; /* NULL: nobody lives here */
    struct weft_loop *loop;           /* sim only */
    void *owner;
};

struct crowd {
    const struct flavour *flavour;
    const char *backend, *wrap; /* of the flavour, or another */
    struct weft_env *env;
    struct weft_sim *sim;
    struct weft_topology *topology;
    int count;
    struct resident *residents;
    uint32_t next_id;
    void (*peer_failed)(struct resident *resident, uint32_t peer_id); /* may be NULL */
};

/* No residents yet. `env`: memory and log of them all. */
void crowd_init(struct crowd *crowd, const struct flavour *flavour, int count, struct weft_env *env);
void crowd_empty(struct crowd *crowd); /* closes those who are left */
void crowd_fini(struct crowd *crowd);  /* the same, and forgets the crowd */
void crowd_enter(struct crowd *crowd, int slot);
/* Both sides; the peers as a and b see them (either pointer may be NULL). */
void crowd_connect(struct crowd *crowd, int a, int b, struct weft_peer **of_a, struct weft_peer **of_b);
void crowd_leave(struct crowd *crowd, int slot); /* close, drain, free */
void crowd_pump(struct crowd *crowd);
int crowd_descriptors(void); /* open in this process */

#define CROWD_UNTIL(crowd, expression)                                                              \
    do {                                                                                            \
        uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60);                                       \
        while (!(expression)) {                                                                     \
            crowd_pump(crowd);                                                                      \
            if (net_now_ns() > limit_ns_) fail_msg("%s: never true: %s", (crowd)->flavour->name, #expression); \
        }                                                                                           \
    } while (0)

#endif
