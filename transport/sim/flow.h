/* flow.h - transfer between two endpoints over the links of a topology: bursts with acknowledgement and
 * retry.
 *
 *   message phase ─► queue ─► cut into bursts, at most `window` unacknowledged ─► link ─► link ─► ... ─► sink
 *                                    ▲            a link queues, delays, loses, duplicates       │
 *                                    └──────────── acknowledgement, or a timeout ◄───────────────┘
 *
 * The sink delivers bursts once and in order, so messages see loss, duplicates and reordering as delay
 * only. If all retries of a burst fail, both ends lose the peer. */
#ifndef WEFT_TRANSPORT_SIM_FLOW_H
#define WEFT_TRANSPORT_SIM_FLOW_H

#include "transport/sim/sim.h"
#include "transport/sim/topology.h"

enum { SIM_IDLE_FLOWS_MAX = 65536, SIM_FLOW_BUCKETS_MIN = 1024 };

struct sim_flow {
    struct sim_endpoint *source, *sink;
    struct sim_flow *next;   /* in the hash bucket */
    uint32_t users;          /* messages that may still use it */
    uint32_t busy;           /* queued phases and unfinished bursts */
    bool broken;
    uint8_t hops;
    uint32_t path[TOPOLOGY_HOPS_MAX];
    uint64_t window_bytes, in_flight_bytes, rtt_ns, ack_ns, next_number, deliver_number;
    double ack_loss;
    uint64_t head_left;         /* bytes of the first queued phase without a burst */
    struct weft_list queue;     /* struct sim_message, linked by of_flow */
    struct weft_list unacknowledged, undelivered; /* struct sim_burst, in order */
    struct weft_list idle;      /* in sim->idle_flows, longest idle first */
    struct weft_list of_link;   /* in the queue of its first link */
};

struct sim_burst {
    struct sim_flow *flow;
    struct sim_message *message; /* NULL once delivered, and when the flow is broken */
    uint64_t number, bytes, sent_ns;
    bool last, departed, received, delivered, acknowledged;
    uint8_t attempts;
    uint32_t copies;             /* copies and acknowledgements in flight */
    struct sim_due retry;
    struct weft_list of_unacknowledged, of_undelivered;
};

/* One burst in flight, or its acknowledgement on the way back. */
struct sim_copy {
    struct sim_due due;
    struct sim_burst *burst;
    uint32_t hop;
    bool acknowledgement;
    uint64_t lag_ns;    /* time from its first to its last byte, at the present link */
    uint64_t delivered; /* acknowledgement: bursts before this number were delivered */
};

/* The flow between two endpoints, created if needed; adds one user. NULL: no memory, or no path. */
struct sim_flow *sim_flow_use(struct sim_endpoint *source, struct sim_endpoint *sink);
void sim_flow_leave(struct sim_flow *flow);
/* Sends one phase of a message; sim_message_arrived follows when all bytes have arrived. Takes over one
 * reference. */
void sim_flow_send(struct sim_flow *flow, struct sim_message *message, uint64_t bytes);
/* Whether retries were used up between the two, in either direction. */
bool sim_flow_broken(struct weft_sim *sim, const struct sim_endpoint *a, const struct sim_endpoint *b);

enum weft_status sim_flows_init(struct weft_sim *sim);
void sim_flows_free(struct weft_sim *sim);

#endif
