/* net.h - a few endpoints of one backend in this process, connected all to all, for the conformance
 * suite. Real backends are progressed in turn; simulated ones live in a weft_sim with a loop each. */
#ifndef WEFT_TESTS_TRANSPORT_NET_H
#define WEFT_TESTS_TRANSPORT_NET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/transport/conformance/flavours.h"
#include "transport/transport.h"

enum { NET_MAX = 4, NET_EAGER = 8192 };

struct net {
    const struct flavour *flavour;
    int count;
    struct weft_sim *sim;
    struct weft_topology *topology; /* of a lossy flavour */
    struct weft_loop *loops[NET_MAX];
    struct weft_transport *transports[NET_MAX];
    struct weft_peer *peers[NET_MAX][NET_MAX]; /* [from][to] */
    int failed_count[NET_MAX];                 /* peer_failed calls at each */
    uint32_t failed_id[NET_MAX];
    enum weft_status failed_status[NET_MAX];
    char failed_text[NET_MAX][200];
};

/* Index of an endpoint of another job (other nonce), -1: none. It forges its address. */
extern size_t net_unread_bytes; /* option of the next endpoints */
extern int net_stranger;
/* Index of an endpoint without the job's secret, -1: none. */
extern int net_impostor;

/* Ids are 100, 101, ... (id 100 + index). */
void net_open(struct net *net, const struct flavour *flavour, int count);
void net_close(struct net *net);
void net_drop(struct net *net, int index); /* close, drain and free one endpoint */
/* Zeroed; from weft_memory_alloc if the flavour requires it. */
void *net_alloc(struct net *net, size_t bytes);
void net_release_memory(struct net *net, void *memory);
void net_pump(struct net *net);
/* Two endpoints, and a message from the first to the second. */
void net_connect_pair(struct net *net);
/* WEFT_TEST_DEVICES: network devices of the endpoints, in turn, separated by blanks. NULL: the default. */
const char *net_devices(int index);
bool net_is_sim(const struct flavour *flavour);
/* A simulation of that many hosts for this flavour; free `topology_out` (NULL: none) after it. */
struct weft_sim *net_sim_create(struct weft_env *env, const struct flavour *flavour, int hosts, uint64_t seed,
                                struct weft_topology **topology_out);
uint64_t net_now_ns(void);

/* Pumps until the expression is true; fails after a minute. */
#define PUMP_UNTIL(net, expression)                                                                   \
    do {                                                                                              \
        uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60);                                         \
        while (!(expression)) {                                                                       \
            net_pump(net);                                                                            \
            if (net_now_ns() > limit_ns_) fail_msg("%s: never true: %s", (net)->flavour->name, #expression); \
        }                                                                                             \
    } while (0)

/* One operation under test: counts its completions, which must not run inside a call. */
struct op {
    struct weft_completion completion;
    struct weft_receive receive;
    int fired;
    enum weft_status status;
    int order; /* its number among all completions */
    bool over; /* complete when its call returned: its completion must not run */
};
extern bool op_inside_call;
extern int op_order;

void op_init(struct op *op);
enum weft_status op_send(struct op *op, struct weft_peer *peer, uint64_t tag, const char *header,
                         const void *payload, size_t bytes);
/* A put or get. WEFT_OK counts as completed, and a later completion is an error. */
enum weft_status op_put(struct op *op, struct weft_remote *remote, const struct weft_put *put);
enum weft_status op_get(struct op *op, struct weft_remote *remote, uint64_t offset, void *destination,
                        size_t bytes);
/* Whether a put or get was accepted. */
static inline bool op_taken(enum weft_status status)
{
    return status == WEFT_OK || status == WEFT_IN_PROGRESS;
}
enum weft_status op_recv(struct op *op, struct weft_transport *transport, uint32_t peer_id, uint64_t tag,
                         void *buffer, size_t bytes);

void fill(void *memory, size_t bytes, uint32_t seed);
bool filled(const void *memory, size_t bytes, uint32_t seed);

#endif
