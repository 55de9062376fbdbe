/* flow.h - what one endpoint sends another over the links of a topology: bursts, acknowledged and sent again.
 *
 *   message phase ─► queue ─► cut into bursts, at most `window` unacknowledged ─► link ─► link ─► ... ─► sink
 *                                    ▲            a link queues, delays, loses, doubles            │
 *                                    └──────────── acknowledgement, or a timeout ◄─────────────────┘
 *
 * The sink hands bursts up in order and once, so messages see loss, doubles and reordering as time only,
 * and a flow whose burst is not acknowledged after all retries as the loss of the peer, at both ends. */
#ifndef WEFT_TRANSPORT_SIM_FLOW_H
#define WEFT_TRANSPORT_SIM_FLOW_H

#include "transport/sim/sim.h"
#include "transport/sim/topology.h"

enum { SIM_IDLE_FLOWS_MAX = 65536, SIM_FLOW_BUCKETS_MIN = 1024 };

struct sim_flow {
    struct sim_endpoint *source, *sink;
    struct sim_flow *next;   /* in its bucket */
    uint32_t users;          /* messages that may still send on it */
    uint32_t busy;           /* phases queued and bursts not finished with */
    bool broken;
    uint8_t hops;
    uint32_t path[TOPOLOGY_HOPS_MAX];
    uint64_t window_bytes, in_flight_bytes, rtt_ns, ack_ns, next_number, deliver_number;
    double ack_loss;
    uint64_t head_left;         /* bytes of the first queued phase that are not cut yet */
    struct weft_list queue;     /* struct sim_message, by of_flow */
    struct weft_list unacknowledged, undelivered; /* struct sim_burst, in order */
    struct weft_list idle;      /* in sim->idle_flows, the longest idle first */
    struct weft_list of_link;   /* waiting for its turn at its first link */
};

struct sim_burst {
    struct sim_flow *flow;
    struct sim_message *message; /* NULL once delivered, and when the flow is broken */
    uint64_t number, bytes, sent_ns;
    bool last, departed, received, delivered, acknowledged;
    uint8_t attempts;
    uint32_t copies;             /* of it, or of its acknowledgement, that are under way */
    struct sim_due retry;
    struct weft_list of_unacknowledged, of_undelivered;
};

/* One burst on the wire, or its acknowledgement on the way back. */
struct sim_copy {
    struct sim_due due;
    struct sim_burst *burst;
    uint32_t hop;
    bool acknowledgement;
    uint64_t lag_ns;    /* from its first byte to its last, where it is now */
    uint64_t delivered; /* acknowledgement: bursts before this number have been delivered */
};

/* The flow from one endpoint to another, made if need be; it counts one more user. NULL: no memory, or no
 * way. */
struct sim_flow *sim_flow_use(struct sim_endpoint *source, struct sim_endpoint *sink);
void sim_flow_leave(struct sim_flow *flow);
/* A phase of a message: sim_message_arrived is called when all its bytes are there. Takes over one of its
 * refs. */
void sim_flow_send(struct sim_flow *flow, struct sim_message *message, uint64_t bytes);
/* Did retries run out between the two, in either direction? */
bool sim_flow_broken(struct weft_sim *sim, const struct sim_endpoint *a, const struct sim_endpoint *b);

enum weft_status sim_flows_init(struct weft_sim *sim);
void sim_flows_free(struct weft_sim *sim);

#endif
