/* endpoint_set.h - many endpoints in this process that open and close: for the test with a thousand
 * endpoints, and for the soak. */
#ifndef WEFT_TESTS_TRANSPORT_CONFORMANCE_ENDPOINT_SET_H
#define WEFT_TESTS_TRANSPORT_CONFORMANCE_ENDPOINT_SET_H

#include "tests/transport/conformance/flavours.h"
#include "tests/transport/net.h"

struct endpoint_set;

struct set_member {
    struct endpoint_set *endpoint_set;
    int slot;
    uint32_t id;                      /* new for each endpoint */
    struct weft_transport *transport; /* NULL: no endpoint in this slot */
    struct weft_loop *loop;           /* sim only */
    void *owner;
};

struct endpoint_set {
    const struct flavour *flavour;
    const char *backend, *wrap; /* of the flavour, or another */
    struct weft_env *env;
    struct weft_sim *sim;
    struct weft_topology *topology;
    int count;
    struct set_member *members;
    uint32_t next_id;
    void (*peer_failed)(struct set_member *set_member, uint32_t peer_id); /* may be NULL */
};

/* An empty set. `env`: memory and log of all members. */
void endpoint_set_init(struct endpoint_set *endpoint_set, const struct flavour *flavour, int count,
                       struct weft_env *env);
void endpoint_set_empty(struct endpoint_set *endpoint_set); /* closes the remaining members */
void endpoint_set_fini(struct endpoint_set *endpoint_set);  /* the same, and frees the set */
void endpoint_set_enter(struct endpoint_set *endpoint_set, int slot);
/* Connects both sides and returns the peers as a and b see them (either pointer may be NULL). */
void endpoint_set_connect(struct endpoint_set *endpoint_set, int a, int b, struct weft_peer **of_a,
                          struct weft_peer **of_b);
void endpoint_set_leave(struct endpoint_set *endpoint_set, int slot); /* close, drain, free */
void endpoint_set_pump(struct endpoint_set *endpoint_set);
int endpoint_set_descriptors(void); /* open in this process */

#define ENDPOINT_SET_UNTIL(endpoint_set, expression) \
    do {                                                                                            \
        uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60);                                       \
        while (!(expression)) {                                                                     \
            endpoint_set_pump(endpoint_set); \
            if (net_now_ns() > limit_ns_) \
                fail_msg("%s: never true: %s", (endpoint_set)->flavour->name, #expression); \
        }                                                                                           \
    } while (0)

#endif
