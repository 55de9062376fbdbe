/* endpoint.c - the simulator as a transport backend: the executable specification of the contract. */
#include <stdio.h>
#include <string.h>

#include "transport/sim/flow.h"
#include "transport/sim/sim_ops.h"

enum { ADDRESS_MAGIC = 0x4d495357, ADDRESS_VERSION = 1, NOTICE_POLL_NS = 100000 };

static struct sim_endpoint *endpoint_of(struct weft_transport *transport) { return transport->backend; }

/* magic u32 | version u32 | nonce hash u32 | id u32 | host u32 | serial u32 */
static void address_write(struct sim_endpoint *endpoint, uint64_t nonce)
{
    uint32_t words[6] = {ADDRESS_MAGIC, ADDRESS_VERSION,       core_nonce_hash(nonce),
                         endpoint->id,  endpoint->host->index, endpoint->serial};
    memcpy(endpoint->address, words, sizeof words);
}

/* Finds peers that closed or died and reports them; runs in progress. */
static void read_timer_fired(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_endpoint *endpoint = weft_container_of(due, struct sim_endpoint, look);
    endpoint->must_check_peers = true;
    sim_host_ready(endpoint->host);
}

/* Ideal network: a cut delays the messages that the peer sent before it closed, so it delays the notice of
 * the close, too. Shortly after the heal those messages are still in flight. */
static bool defer_notice(struct sim_endpoint *endpoint, const struct sim_endpoint *remote)
{
    struct weft_sim *sim = endpoint->sim;
    /* on a topology those messages have arrived or were given up before the notice */
    if (sim->options.topology) return false;
    if (!sim_is_cut(sim, endpoint->host, remote->host) && sim->now_ns >= sim->cuts.heal_done_ns) return false;
    sim->cuts.has_deferred_notices = true;
    if (!sim_is_cut(sim, endpoint->host, remote->host) && endpoint->look.index == SIM_IDLE)
        sim_schedule(sim, &endpoint->look, sim->cuts.heal_done_ns);
    return true;
}

static int progress_endpoint(struct weft_transport *transport, struct sim_endpoint *endpoint)
{
    endpoint->must_check_peers = false;
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        struct sim_peer *sim_peer = peer->backend;
        if (!sim_peer || peer->status < 0) continue;
        struct sim_endpoint *remote = sim_peer->remote;
        char text[120];
        if (remote->host->death_known) {
            snprintf(text, sizeof text, "host %u of endpoint %u died", remote->host->index, remote->id);
        } else if (remote->gone_known) {
            if (defer_notice(endpoint, remote)) continue;
            snprintf(text, sizeof text, "endpoint %u on host %u closed", remote->id, remote->host->index);
        } else if (sim_flow_broken(endpoint->sim, endpoint, remote)) {
            snprintf(text, sizeof text,
                     "nothing from or to endpoint %u on host %u was acknowledged after %u attempts",
                     remote->id, remote->host->index, endpoint->sim->options.topology->retry_count + 1);
        } else {
            continue;
        }
        if (remote->gone_known && !remote->host->death_known) core_peer_left(transport, peer, text);
        else core_peer_lost(transport, peer, WEFT_ERR_PEER_LOST, text);
        count++;
    }
    return count;
}

/* Delivers the notice of this endpoint's close to its peers. */
static void notice_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_endpoint *endpoint = weft_container_of(due, struct sim_endpoint, notice);
    if (endpoint->phases_out > 0 && !endpoint->host->dead) { /* the delivery time is unknown on lossy links */
        sim_schedule(sim, due, sim->now_ns + NOTICE_POLL_NS);
        return;
    }
    endpoint->gone_known = true;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &sim->endpoints) {
        struct sim_endpoint *other = weft_container_of(node, struct sim_endpoint, link);
        if (other == endpoint || !other->transport || other->look.index != SIM_IDLE) continue;
        sim_schedule(sim, &other->look, sim->now_ns);
    }
}

/* Reserves a place in the table and two nodes in the heap for one more endpoint. */
static bool reserve(struct weft_sim *sim)
{
    return sim_table_grow(sim, (void ***)&sim->endpoints_by_serial.endpoint_table,
                          sim->endpoints_by_serial.endpoint_count,
                          &sim->endpoints_by_serial.endpoint_capacity) &&
           sim_heap_reserve(&sim->events, sim->env, 2);
}

/* "rail=2"; without it the endpoints of a host use its rails in turn. */
static enum weft_status set_rail(struct sim_endpoint *endpoint, const char *tune, struct weft_error *error)
{
    int used = 0;
    endpoint->rail = endpoint->host->endpoint_count++;
    if (!tune || !tune[0]) return WEFT_OK;
    if (sscanf(tune, "rail=%u%n", &endpoint->rail, &used) == 1 && used > 0 && !tune[used]) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_INVALID,
                          "transport.tune \"%s\" is not valid: the simulator has rail=NUMBER", tune);
}

static enum weft_status sim_open(struct weft_transport *transport,
                                 const struct weft_transport_options *options, struct weft_error *error)
{
    const struct sim_host *here = sim_host_of_env(transport->env);
    struct weft_sim *sim = options->sim ? options->sim : here ? here->sim : NULL;
    uint32_t host = options->sim ? options->sim_host : here ? here->index : 0;
    if (!sim) return weft_error_set(error, WEFT_ERR_INVALID, "transport backend \"sim\" needs options.sim");
    if (host >= sim->options.host_count)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "sim host %u is out of range: the simulation has %u hosts", host,
                              sim->options.host_count);
    struct sim_endpoint *endpoint = weft_alloc_zero(sim->env, sizeof *endpoint);
    if (!endpoint) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a simulated endpoint");
    endpoint->sim = sim;
    endpoint->host = &sim->hosts[host];
    enum weft_status status = set_rail(endpoint, options->tune, error);
    if (status == WEFT_OK && !reserve(sim))
        status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a simulated endpoint");
    if (status < 0) {
        weft_free_bytes(sim->env, endpoint);
        return status;
    }
    endpoint->transport = transport;
    endpoint->id = options->id;
    endpoint->serial = sim->endpoints_by_serial.endpoint_count++;
    sim->endpoints_by_serial.endpoint_table[endpoint->serial] = endpoint;
    weft_list_init(&endpoint->sending);
    weft_list_init(&endpoint->receiving);
    weft_list_init(&endpoint->inbox);
    endpoint->look = (struct sim_due){.index = SIM_IDLE, .fire = read_timer_fired};
    endpoint->notice = (struct sim_due){.index = SIM_IDLE, .fire = notice_fire};
    weft_list_append(&sim->endpoints, &endpoint->link);
    address_write(endpoint, options->nonce);
    if (sim->options.maps_payloads) transport->abilities |= WEFT_TRANSPORT_MAPS;
    transport->backend = endpoint;
    return WEFT_OK;
}

static enum weft_status sim_address(struct weft_transport *transport, const void **blob_out,
                                    size_t *bytes_out)
{
    *blob_out = endpoint_of(transport)->address;
    *bytes_out = sizeof endpoint_of(transport)->address;
    return WEFT_OK;
}

static bool has_way(const struct weft_sim *sim, const struct sim_endpoint *from,
                    const struct sim_endpoint *to)
{
    const struct weft_topology *topology = sim->options.topology;
    return !topology || topology_reaches(topology, from->host->index, from->rail, to->host->index, to->rail);
}

static enum weft_status sim_connect(struct weft_transport *transport, struct weft_peer *peer,
                                    const void *blob, size_t bytes)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct weft_sim *sim = endpoint->sim;
    uint32_t words[6];
    if (bytes != sizeof words) return WEFT_ERR_MALFORMED;
    memcpy(words, blob, sizeof words);
    if (words[0] != ADDRESS_MAGIC) return WEFT_ERR_MALFORMED;
    if (words[1] != ADDRESS_VERSION) return WEFT_ERR_VERSION;
    if (words[2] != core_nonce_hash(transport->nonce)) return WEFT_ERR_AUTH;
    if (words[3] != peer->id || words[4] >= sim->options.host_count) return WEFT_ERR_MALFORMED;
    if (words[5] >= sim->endpoints_by_serial.endpoint_count) return WEFT_ERR_MALFORMED;
    struct sim_endpoint *remote = sim->endpoints_by_serial.endpoint_table[words[5]];
    if (remote->id != peer->id || remote->host->index != words[4]) return WEFT_ERR_MALFORMED;
    if (!has_way(sim, endpoint, remote) || !has_way(sim, remote, endpoint)) return WEFT_ERR_UNREACHABLE;
    struct sim_peer *sim_peer = sim_pool_alloc(&sim->pools.peer_pool, sim->env, sim->options.slab_bytes);
    if (!sim_peer) return WEFT_ERR_NO_MEMORY;
    *sim_peer = (struct sim_peer){.remote = remote};
    peer->backend = sim_peer;
    if ((remote->gone_known || remote->host->death_known) && endpoint->look.index == SIM_IDLE) {
        sim_schedule(sim, &endpoint->look, sim->now_ns + sim->options.latency_ns);
    }
    return WEFT_OK;
}

static void recycle_receive(struct weft_transport *transport, struct core_done *done)
{
    sim_message_release(weft_container_of(done, struct sim_message, receive_done));
}

static enum weft_status sim_send(struct weft_transport *transport, struct weft_peer *peer,
                                 const struct weft_message *sent, struct weft_completion *completion)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct weft_sim *sim = endpoint->sim;
    struct sim_peer *sim_peer = peer->backend;
    if (endpoint->sending_count >= SIM_SENDING_MAX) return WEFT_ERR_AGAIN;
    bool eager = sent->payload_bytes <= transport->eager_bytes_max,
         copied = eager && sent->payload_bytes > 0 && !sim->options.timing_only;
    void *copy = copied ? sim_copy_alloc(sim, sent->payload_bytes) : NULL;
    if (copied && !copy) return WEFT_ERR_NO_MEMORY;
    struct sim_message *message = sim_message_new(endpoint, sim_peer->remote, !eager);
    if (!message) {
        if (copy) sim_copy_release(sim, copy, sent->payload_bytes);
        return WEFT_ERR_NO_MEMORY;
    }
    struct weft_arrival *handle = &message->arrival.handle;
    handle->tag = sent->tag;
    handle->payload_bytes = sent->payload_bytes;
    handle->header_bytes = sent->header_bytes;
    if (sent->header_bytes > 0) memcpy(handle->header, sent->header, sent->header_bytes);
    message->eager = message->arrival.is_complete = eager;
    message->buffers.payload = sent->payload;
    if (copy) {
        memcpy(copy, sent->payload, sent->payload_bytes);
        transport->stats.copied_bytes += sent->payload_bytes;
        message->buffers.payload = message->buffers.copy = copy;
        if (!sim_copy_pooled(sent->payload_bytes)) weft_list_append(&sim->big_copies, &message->all);
    }
    message->send_done =
        (struct core_done){.peer = peer, .completion = completion, .recycle = sim_recycle_send};
    sim_message_start(message, SIM_ANNOUNCE, sim_peer);
    return WEFT_IN_PROGRESS;
}

static enum weft_status sim_accept(struct weft_transport *transport, struct weft_arrival *handle,
                                   void *buffer, struct weft_completion *completion)
{
    struct sim_message *message = weft_container_of(handle, struct sim_message, arrival.handle);
    message->buffers.buffer = buffer;
    message->receive_done = (struct core_done){
        .peer = message->arrival.peer, .completion = completion, .recycle = recycle_receive};
    sim_message_accept(message);
    return WEFT_IN_PROGRESS;
}

static void sim_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    sim_message_discard(weft_container_of(handle, struct sim_message, arrival.handle));
}

static const void *sim_peek(struct weft_transport *transport, struct weft_arrival *handle)
{
    const struct sim_message *message = weft_container_of(handle, struct sim_message, arrival.handle);
    const struct weft_sim_options *options = &endpoint_of(transport)->sim->options;
    return options->maps_payloads && !options->timing_only && !message->eager ? message->buffers.payload
                                                                              : NULL;
}

static bool sim_peek_is_valid(struct weft_transport *transport, const struct weft_arrival *handle)
{
    const struct sim_message *message = weft_container_of(handle, struct sim_message, arrival.handle);
    return message->send_live && !message->source->host->dead;
}

/* Ends operations with the remote endpoint (NULL: with all). */
static void end_operations(struct sim_endpoint *endpoint, const struct sim_endpoint *remote,
                           enum weft_status status)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->sending) {
        struct sim_message *message = weft_container_of(node, struct sim_message, links.of_source);
        if (!remote || message->sink == remote) sim_message_end_send(message, status);
    }
    weft_list_foreach(node, spare, &endpoint->receiving) {
        struct sim_message *message = weft_container_of(node, struct sim_message, links.of_sink);
        if (!remote || message->source == remote) sim_message_end_receive(message, status);
    }
}

static void sim_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct sim_peer *sim_peer = peer->backend;
    end_operations(endpoint_of(transport), sim_peer->remote, status);
}

static int sim_progress(struct weft_transport *transport, int budget)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    int count = 0;
    while (count < budget && !weft_list_empty(&endpoint->inbox)) {
        struct sim_message *message = weft_list_first(&endpoint->inbox, struct sim_message, links.waiting);
        weft_list_remove(&message->links.waiting);
        count++;
        if (message->nonce != transport->nonce) {
            core_count_refused(transport);
            sim_message_release(message);
            continue;
        }
        message->receive_live = true; /* takes over the reference of the inbox */
        weft_list_append(&endpoint->receiving, &message->links.of_sink);
        core_arrived(transport, &message->arrival);
    }
    /* its messages are delivered first */
    if (endpoint->must_check_peers && weft_list_empty(&endpoint->inbox))
        count += progress_endpoint(transport, endpoint);
    return count;
}

static void sim_close(struct weft_transport *transport)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct weft_sim *sim = endpoint->sim;
    end_operations(endpoint, NULL, WEFT_ERR_CLOSED);
    while (!weft_list_empty(&endpoint->inbox)) {
        struct sim_message *message = weft_list_first(&endpoint->inbox, struct sim_message, links.waiting);
        weft_list_remove(&message->links.waiting);
        sim_message_release(message);
    }
    endpoint->closed = true;
    uint64_t notice_ns = sim->now_ns + sim->options.latency_ns;
    /* not before its last message */
    if (notice_ns < endpoint->last_delivery_ns) notice_ns = endpoint->last_delivery_ns;
    if (!endpoint->host->dead) sim_schedule(sim, &endpoint->notice, notice_ns);
}

static bool sim_drained(struct weft_transport *transport)
{
    return weft_list_empty(&endpoint_of(transport)->sending);
}

static void sim_free(struct weft_transport *transport)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->receiving) { /* held by a handler and not ended */
        struct sim_message *message = weft_container_of(node, struct sim_message, links.of_sink);
        message->receive_live = false;
        weft_list_remove(node);
        sim_message_release(message);
    }
    while (!weft_list_empty(&transport->done)) { /* the caller gave up: these never run */
        struct core_done *done = weft_list_first(&transport->done, struct core_done, link);
        weft_list_remove(&done->link);
        done->recycle(transport, done);
    }
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        if (peer->backend)
            sim_pool_release(&endpoint->sim->pools.peer_pool, endpoint->sim->env,
                             endpoint->sim->options.slab_bytes, peer->backend);
    }
    endpoint->transport = NULL;
}

static enum weft_status sim_arm(struct weft_transport *transport)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    return endpoint->must_check_peers || !weft_list_empty(&endpoint->inbox) ? WEFT_ERR_AGAIN : WEFT_OK;
}

static int sim_fd(struct weft_transport *transport) { return -1; }

const struct weft_transport_ops sim_transport_ops = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .drained = sim_drained,
    .free = sim_free,
    .address = sim_address,
    .connect = sim_connect,
    .disconnect = sim_disconnect,
    .send = sim_send,
    .accept = sim_accept,
    .discard = sim_discard,
    .peek = sim_peek,
    .peek_is_valid = sim_peek_is_valid,
    .abilities = WEFT_TRANSPORT_WINDOWS,
    .window_open = sim_window_open,
    .window_close = sim_window_close,
    .window_free = sim_window_free,
    .import = sim_import,
    .release = sim_release,
    .put = sim_put,
    .get = sim_get,
    .progress = sim_progress,
    .arm = sim_arm,
    .fd = sim_fd,
};
