/* wire.c - duration of each phase of a message, and the effect of its arrival.
 *
 * On a topology every phase uses a flow (flow.c). Otherwise the network is ideal. Between two hosts the
 * sender's link sends one message after the other at its rate, latency and random jitter follow, and the
 * receiver's link receives one after the other; forwarding is cut-through. Inside a host there is no link,
 * only a tenth of the latency. A cut loses nothing: arrivals wait until it heals, as under a
 * retransmitting protocol, so deadlines must detect it. */
#include <string.h>

#include "transport/sim/flow.h"

enum { ANNOUNCE_BYTES = 64, CONTROL_BYTES = 32 }; /* bytes of framing on the link */

static uint64_t link_ns(const struct sim_host *host, uint64_t bytes)
{
    uint64_t rate = host->sim->options.bytes_per_second;
    if (rate == 0) return 0;
    return (uint64_t)((double)bytes * 1e9 / (double)rate) * host->slow;
}

static uint64_t random_below(struct weft_sim *sim, uint64_t bound)
{
    return bound ? sim_random(&sim->random) % bound : 0;
}

/* Arrival time of `bytes` that leave now; *depart_out: when the last of them has left. */
static uint64_t arrival_time(struct weft_sim *sim, struct sim_host *from, struct sim_host *to, uint64_t bytes,
                             uint64_t *depart_out)
{
    const struct weft_sim_options *options = &sim->options;
    if (from == to) {
        *depart_out = sim->now_ns;
        return sim->now_ns + options->latency_ns / 10 + random_below(sim, options->jitter_ns / 10 + 1);
    }
    uint64_t start = sim->now_ns > from->egress_free_ns ? sim->now_ns : from->egress_free_ns;
    from->egress_bytes += bytes;
    *depart_out = from->egress_free_ns = start + link_ns(from, bytes);
    uint64_t first = start + options->latency_ns + random_below(sim, options->jitter_ns + 1);
    if (first < to->ingress_free_ns) first = to->ingress_free_ns;
    uint64_t slower = link_ns(from, bytes) > link_ns(to, bytes) ? link_ns(from, bytes) : link_ns(to, bytes);
    to->ingress_free_ns = first + link_ns(to, bytes);
    return first + slower;
}

static void message_travel(struct sim_message *message, enum sim_phase phase, struct sim_endpoint *from,
                           struct sim_endpoint *to, uint64_t bytes, struct sim_peer *order)
{
    struct weft_sim *sim = from->sim;
    message->phase = phase;
    message->refs++;
    sim_note(sim, (uint64_t)from->serial << 40 ^ (uint64_t)to->serial << 8 ^ phase ^ bytes << 16);
    if (sim->options.topology) {
        bool back =
            phase == SIM_ACCEPT || phase == SIM_FINISH || phase == SIM_DISCARD || phase == SIM_GET_DATA;
        sim_flow_send(back ? message->transfer.flow_back : message->transfer.flow, message, bytes);
        return;
    }
    uint64_t time_ns = arrival_time(sim, from->host, to->host, bytes, &message->depart_ns);
    if (order) {
        if (time_ns < order->last_delivery_ns) time_ns = order->last_delivery_ns;
        order->last_delivery_ns = time_ns;
    }
    if (from->last_delivery_ns < time_ns) from->last_delivery_ns = time_ns;
    sim_schedule(sim, &message->travel, time_ns);
}

void sim_message_release(struct sim_message *message)
{
    if (--message->refs > 0) return;
    struct weft_sim *sim = message->source->sim;
    WEFT_ASSERT(!message->send_live && !message->receive_live);
    weft_list_remove(&message->all);
    sim_heap_unreserve(&sim->events, 2);
    if (message->transfer.flow) sim_flow_leave(message->transfer.flow);
    if (message->transfer.flow_back) sim_flow_leave(message->transfer.flow_back);
    if (message->buffers.copy)
        sim_copy_release(sim, message->buffers.copy, message->arrival.handle.payload_bytes);
    sim_pool_release(&sim->pools.message_pool, sim->env, sim->options.slab_bytes, message);
}

static bool use_flows(struct sim_message *message, struct sim_endpoint *source, struct sim_endpoint *sink,
                      bool answered)
{
    if (!source->sim->options.topology) return true;
    if (!(message->transfer.flow = sim_flow_use(source, sink))) return false;
    if (!answered || (message->transfer.flow_back = sim_flow_use(sink, source))) return true;
    sim_flow_leave(message->transfer.flow);
    return false;
}

/* A record with all but the header of its arrival cleared, in the lists of its source and of the
 * simulation. */
struct sim_message *sim_message_new(struct sim_endpoint *source, struct sim_endpoint *sink, bool answered)
{
    struct weft_sim *sim = source->sim;
    const size_t header = offsetof(struct sim_message, arrival.handle.header),
                 after = header + WEFT_TRANSPORT_HEADER_BYTES_MAX;
    struct sim_message *message = sim_pool_alloc(&sim->pools.message_pool, sim->env, sim->options.slab_bytes);
    if (!message) return NULL;
    if (!sim_heap_reserve(&sim->events, sim->env, 2)) {
        sim_pool_release(&sim->pools.message_pool, sim->env, sim->options.slab_bytes, message);
        return NULL;
    }
    memset(message, 0, header);
    memset((char *)message + after, 0, sizeof *message - after);
    if (!use_flows(message, source, sink, answered)) {
        sim_heap_unreserve(&sim->events, 2);
        sim_pool_release(&sim->pools.message_pool, sim->env, sim->options.slab_bytes, message);
        return NULL;
    }
    message->arrival.handle.peer_id = source->id;
    message->travel.index = message->sent.index = SIM_IDLE;
    message->source = source;
    message->sink = sink;
    message->nonce = source->transport->nonce;
    message->send_live = true;
    message->refs = 1;
    weft_list_init(&message->all);
    weft_list_append(&source->sending, &message->links.of_source);
    weft_list_init(&message->links.of_sink);
    weft_list_init(&message->links.waiting);
    weft_list_init(&message->links.stalled);
    weft_list_init(&message->transfer.of_flow);
    source->sending_count++;
    return message;
}

void sim_recycle_send(struct weft_transport *transport, struct core_done *done)
{
    sim_message_release(weft_container_of(done, struct sim_message, send_done));
}

/* Copies the payload; in timing-only mode touches nothing. */
static void move_bytes(const struct sim_endpoint *payer, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || payer->sim->options.timing_only) return;
    memcpy(to, from, bytes);
    if (payer->transport) payer->transport->stats.copied_bytes += bytes;
}

/* Ends the send; the completion runs from the owner's progress. */
void sim_message_end_send(struct sim_message *message, enum weft_status status)
{
    if (!message->send_live) return;
    message->send_live = false;
    weft_list_remove(&message->links.of_source);
    message->source->sending_count--;
    core_finish(message->source->transport, &message->send_done, status);
    sim_host_ready(message->source->host);
}

void sim_message_end_receive(struct sim_message *message, enum weft_status status)
{
    if (!message->receive_live || !message->accepted) return;
    message->receive_live = false;
    message->buffers.buffer = NULL;
    weft_list_remove(&message->links.of_sink);
    core_finish(message->sink->transport, &message->receive_done, status);
    sim_host_ready(message->sink->host);
}

static void sent_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_message *message = weft_container_of(due, struct sim_message, sent);
    if (!message->source->host->dead) sim_message_end_send(message, WEFT_OK);
    sim_message_release(message);
}

/* The payload has arrived: copies it if both buffers may still be used. */
static void data_arrived(struct sim_message *message)
{
    if (!message->receive_live || message->sink->host->dead) return;
    if (!message->send_live || message->source->host->dead) return;
    move_bytes(message->sink, message->buffers.buffer, message->buffers.payload,
               message->arrival.handle.payload_bytes);
    sim_message_end_receive(message, WEFT_OK);
    message_travel(message, SIM_FINISH, message->sink, message->source, CONTROL_BYTES, NULL);
}

static void announce_arrived(struct sim_message *message)
{
    struct sim_endpoint *source = message->source, *sink = message->sink;
    if (sink->closed || sink->host->dead) return;
    if (source->host->dead && message->depart_ns > source->host->killed_ns) return;
    message->refs++; /* reference of the inbox */
    weft_list_append(&sink->inbox, &message->links.waiting);
    sim_host_ready(sink->host);
}

/* Writes into the window if it is open; the notification goes to the inbox. */
static void put_arrived(struct sim_message *message)
{
    struct sim_endpoint *source = message->source, *sink = message->sink;
    struct sim_window *window = message->window;
    if (sink->closed || sink->host->dead || !message->send_live || source->host->dead) return;
    if (window->open) {
        move_bytes(sink, window->address + message->offset, message->buffers.payload, message->bytes);
        if (message->notify) announce_arrived(message);
    } else {
        message->result = WEFT_ERR_CANCELLED;
    }
    message_travel(message, SIM_FINISH, sink, source, CONTROL_BYTES, NULL);
}

static void get_arrived(struct sim_message *message)
{
    if (message->sink->closed || message->sink->host->dead) return;
    message_travel(message, SIM_GET_DATA, message->sink, message->source, CONTROL_BYTES + message->bytes,
                   NULL);
}

static void get_data_arrived(struct sim_message *message)
{
    if (!message->send_live || message->source->host->dead) return;
    bool open = message->window->open && !message->sink->closed;
    if (open)
        move_bytes(message->source, message->buffers.buffer, message->window->address + message->offset,
                   message->bytes);
    sim_message_end_send(message, open ? WEFT_OK : WEFT_ERR_CANCELLED);
}

static void accept_arrived(struct sim_message *message)
{
    if (!message->send_live || message->source->host->dead) return;
    message_travel(message, SIM_DATA, message->source, message->sink, message->arrival.handle.payload_bytes,
                   NULL);
}

static void travel_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_message *message = weft_container_of(due, struct sim_message, travel);
    if (sim_is_cut(sim, message->source->host, message->sink->host)) {
        weft_list_append(&sim->stalled, &message->links.stalled);
        return; /* the list keeps its reference */
    }
    sim_message_arrived(message);
    sim_message_release(message);
}

void sim_message_arrived(struct sim_message *message)
{
    switch (message->phase) {
    case SIM_ANNOUNCE: announce_arrived(message); break;
    case SIM_ACCEPT: accept_arrived(message); break;
    case SIM_DATA: data_arrived(message); break;
    case SIM_PUT: put_arrived(message); break;
    case SIM_GET: get_arrived(message); break;
    case SIM_GET_DATA: get_data_arrived(message); break;
    case SIM_FINISH:
    case SIM_DISCARD:
        if (!message->source->host->dead) sim_message_end_send(message, message->result);
        break;
    }
}

/* An eager message completes for its sender when it has left. */
void sim_message_departed(struct sim_message *message, uint64_t time_ns)
{
    if (message->phase != SIM_ANNOUNCE || !message->eager) return;
    message->depart_ns = time_ns;
    message->refs++;
    sim_schedule(message->source->sim, &message->sent, time_ns);
}

/* A stalled message arrives at the heal, in the order of arrival and without a further latency: otherwise
 * a message sent shortly before the heal would overtake earlier ones. */
void sim_message_heal(struct sim_message *message)
{
    weft_list_remove(&message->links.stalled);
    sim_message_arrived(message);
    sim_message_release(message);
}

/* Sends a new message that the endpoint has filled. */
void sim_message_start(struct sim_message *message, enum sim_phase phase, struct sim_peer *peer)
{
    message->travel.fire = travel_fire;
    message->sent.fire = sent_fire;
    uint64_t bytes =
        (phase == SIM_GET ? CONTROL_BYTES : ANNOUNCE_BYTES) + message->arrival.handle.header_bytes;
    if (phase == SIM_PUT) bytes += message->bytes;
    if (phase == SIM_ANNOUNCE && message->eager) bytes += message->arrival.handle.payload_bytes;
    message_travel(message, phase, message->source, message->sink, bytes, peer);
    if (!message->transfer.flow) sim_message_departed(message, message->depart_ns);
}

void sim_message_accept(struct sim_message *message)
{
    message->accepted = true;
    if (!message->eager) {
        message_travel(message, SIM_ACCEPT, message->sink, message->source, CONTROL_BYTES, NULL);
        return;
    }
    move_bytes(message->sink, message->buffers.buffer, message->buffers.payload,
               message->arrival.handle.payload_bytes);
    sim_message_end_receive(message, WEFT_OK);
}

void sim_message_discard(struct sim_message *message)
{
    message->receive_live = false;
    weft_list_remove(&message->links.of_sink);
    if (!message->eager)
        message_travel(message, SIM_DISCARD, message->sink, message->source, CONTROL_BYTES, NULL);
    sim_message_release(message);
}
