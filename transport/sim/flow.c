/* flow.c - the reliable layer of the simulator and the links below it; see flow.h.
 *
 * Flows take turns at the source's own link, as the queue pairs of an adapter do. A later link serves
 * bursts first in, first out. A burst is forwarded while it arrives (cut-through), but not faster than its
 * slowest link so far: `lag` is the time from its first to its last byte. So a single flow takes the
 * latency of its path plus bytes over the lowest rate, and flows that share a link queue there.
 *
 * Acknowledgements take the latency of the way back. They may be lost, but neither wait in queues nor fill
 * them. The simulator knows what is lost, so a burst is retried exactly one timeout after it was sent if
 * it or its acknowledgement was lost, and never otherwise. The timeout doubles with each attempt, at most
 * six times. */
#include <stdio.h>
#include <string.h>

#include "transport/sim/flow.h"

static void copy_fire(struct weft_sim *sim, struct sim_due *due);
static void retry_fire(struct weft_sim *sim, struct sim_due *due);

static bool chance(struct weft_sim *sim, double probability)
{
    return probability > 0 && (double)(sim_random(&sim->random) >> 11) * 0x1p-53 < probability;
}

static void *take(struct weft_sim *sim, struct sim_pool *pool)
{
    if (!sim_heap_reserve(&sim->events, sim->env, 1)) return NULL;
    void *block = sim_pool_alloc(pool, sim->env, sim->options.slab_bytes);
    if (!block) sim_heap_unreserve(&sim->events, 1);
    return block;
}

static void pool_put(struct weft_sim *sim, struct sim_pool *pool, void *block)
{
    sim_heap_unreserve(&sim->events, 1);
    sim_pool_release(pool, sim->env, sim->options.slab_bytes, block);
}

/* ---- flows ---- */

static uint64_t hash_of(const struct sim_endpoint *source, const struct sim_endpoint *sink)
{
    uint64_t value = ((uint64_t)source->serial << 32 | sink->serial) * 0x9e3779b97f4a7c15ull;
    return value ^ value >> 29;
}

static struct sim_flow *find(const struct weft_sim *sim, const struct sim_endpoint *source,
                             const struct sim_endpoint *sink)
{
    struct sim_flow *flow =
        sim->flows.flow_buckets[hash_of(source, sink) & (sim->flows.flow_bucket_count - 1)];
    while (flow && (flow->source != source || flow->sink != sink)) flow = flow->next;
    return flow;
}

static void remove_flow(struct weft_sim *sim, struct sim_flow *flow)
{
    struct sim_flow **at =
        &sim->flows.flow_buckets[hash_of(flow->source, flow->sink) & (sim->flows.flow_bucket_count - 1)];
    while (*at != flow) at = &(*at)->next;
    *at = flow->next;
    weft_list_remove(&flow->idle);
    sim->flows.flow_count--;
    pool_put(sim, &sim->pools.flow_pool, flow);
}

/* Doubles the buckets. Without memory the chains grow. */
static void grow_buckets(struct weft_sim *sim)
{
    uint32_t count = sim->flows.flow_bucket_count * 2;
    struct sim_flow **buckets = weft_alloc_zero(sim->env, count * sizeof(struct sim_flow *));
    if (!buckets) return;
    for (uint32_t i = 0; i < sim->flows.flow_bucket_count; i++) {
        for (struct sim_flow *flow = sim->flows.flow_buckets[i], *next; flow; flow = next) {
            struct sim_flow **bucket = &buckets[hash_of(flow->source, flow->sink) & (count - 1)];
            next = flow->next;
            flow->next = *bucket;
            *bucket = flow;
        }
    }
    weft_free_bytes(sim->env, sim->flows.flow_buckets);
    sim->flows.flow_buckets = buckets;
    sim->flows.flow_bucket_count = count;
}

/* Derives round trip and window from the path. */
static void measure_path(struct sim_flow *flow)
{
    const struct weft_topology *topology = flow->source->sim->options.topology;
    double slowest = 0, kept = 1;
    for (uint32_t i = 0; i < flow->hops; i++) {
        const struct topology_link *link = &topology->links[flow->path[i]];
        flow->ack_ns += link->latency_ns;
        if (link->ns_per_byte > slowest) slowest = link->ns_per_byte;
        kept *= 1 - link->loss;
    }
    flow->ack_loss = 1 - kept;
    flow->rtt_ns = 2 * flow->ack_ns + (uint64_t)(slowest * (double)topology->burst_bytes);
    flow->window_bytes = topology->window_bytes;
    if (flow->window_bytes == 0)
        flow->window_bytes = (uint64_t)(2 * (double)flow->rtt_ns / slowest) + 4 * topology->burst_bytes;
}

struct sim_flow *sim_flow_use(struct sim_endpoint *source, struct sim_endpoint *sink)
{
    struct weft_sim *sim = source->sim;
    struct sim_flow *flow = find(sim, source, sink);
    if (!flow) {
        if (!(flow = take(sim, &sim->pools.flow_pool))) return NULL;
        memset(flow, 0, sizeof *flow);
        flow->source = source;
        flow->sink = sink;
        weft_list_init(&flow->queue);
        weft_list_init(&flow->unacknowledged);
        weft_list_init(&flow->undelivered);
        weft_list_init(&flow->idle);
        weft_list_init(&flow->of_link);
        flow->hops =
            (uint8_t)topology_route(sim->options.topology, source->host->index, source->rail,
                                    sink->host->index, sink->rail, hash_of(source, sink), flow->path);
        WEFT_ASSERT(flow->hops > 0); /* checked by connect */
        measure_path(flow);
        if (sim->flows.flow_count >= sim->flows.flow_bucket_count) grow_buckets(sim);
        struct sim_flow **bucket =
            &sim->flows.flow_buckets[hash_of(source, sink) & (sim->flows.flow_bucket_count - 1)];
        flow->next = *bucket;
        *bucket = flow;
        sim->flows.flow_count++;
    } else if (!weft_list_empty(&flow->idle)) {
        weft_list_remove(&flow->idle);
        sim->flows.idle_flow_count--;
    }
    flow->users++;
    return flow;
}

/* Keeps an idle flow for the next message, up to a limit. */
static void maybe_idle(struct sim_flow *flow)
{
    struct weft_sim *sim = flow->source->sim;
    if (flow->users > 0 || flow->busy > 0 || flow->broken || !weft_list_empty(&flow->idle)) return;
    weft_list_append(&sim->flows.idle_flows, &flow->idle);
    if (++sim->flows.idle_flow_count <= SIM_IDLE_FLOWS_MAX) return;
    sim->flows.idle_flow_count--;
    remove_flow(sim, weft_list_first(&sim->flows.idle_flows, struct sim_flow, idle));
}

void sim_flow_leave(struct sim_flow *flow)
{
    WEFT_ASSERT(flow->users > 0);
    flow->users--;
    maybe_idle(flow);
}

bool sim_flow_broken(struct weft_sim *sim, const struct sim_endpoint *a, const struct sim_endpoint *b)
{
    if (sim->flows.broken_count == 0) return false;
    const struct sim_flow *there = find(sim, a, b), *back = find(sim, b, a);
    return (there && there->broken) || (back && back->broken);
}

/* ---- end of bursts, copies and flows ---- */

static void burst_check_end(struct sim_burst *burst)
{
    struct sim_flow *flow = burst->flow;
    bool over = flow->broken || (burst->acknowledged && burst->delivered);
    if (!over || burst->copies > 0 || burst->retry.index != SIM_IDLE) return;
    weft_list_remove(&burst->of_unacknowledged);
    weft_list_remove(&burst->of_undelivered);
    pool_put(flow->source->sim, &flow->source->sim->pools.burst_pool, burst);
    flow->busy--;
    maybe_idle(flow);
}

static void copy_finish(struct sim_copy *copy)
{
    struct sim_burst *burst = copy->burst;
    burst->copies--;
    pool_put(burst->flow->source->sim, &burst->flow->source->sim->pools.copy_pool, copy);
}

/* No copy of the burst is in flight and the source does not know that it arrived: schedules the retry. */
static void copy_lost(struct sim_copy *copy)
{
    struct sim_burst *burst = copy->burst;
    struct sim_flow *flow = burst->flow;
    struct weft_sim *sim = flow->source->sim;
    sim->traffic.lost++;
    copy_finish(copy);
    if (burst->copies == 0 && !burst->acknowledged && !flow->broken && burst->retry.index == SIM_IDLE &&
        !flow->source->host->dead) {
        uint64_t timeout_ns = sim->options.topology->timeout_ns;
        if (timeout_ns < 2 * flow->rtt_ns) timeout_ns = 2 * flow->rtt_ns;
        sim_schedule(sim, &burst->retry,
                     burst->sent_ns + (timeout_ns << (burst->attempts < 6 ? burst->attempts : 6)));
    }
    burst_check_end(burst);
}

static void phase_end(struct sim_flow *flow, struct sim_message *message)
{
    flow->source->phases_out--;
    flow->busy--;
    sim_message_release(message);
}

static void endpoint_must_check_peers(struct sim_endpoint *endpoint)
{
    if (endpoint->transport && endpoint->look.index == SIM_IDLE)
        sim_schedule(endpoint->sim, &endpoint->look, endpoint->sim->now_ns);
}

/* The retries are used up: the flow is broken and both ends lose the peer. */
static void break_flow(struct sim_flow *flow)
{
    struct weft_sim *sim = flow->source->sim;
    struct weft_list *node, *spare;
    flow->broken = true;
    flow->users++; /* while its parts end */
    sim->flows.broken_count++;
    weft_list_remove(&flow->of_link);
    while (!weft_list_empty(&flow->queue)) {
        struct sim_message *message = weft_list_first(&flow->queue, struct sim_message, transfer.of_flow);
        weft_list_remove(&message->transfer.of_flow);
        phase_end(flow, message);
    }
    weft_list_foreach(node, spare, &flow->undelivered) {
        struct sim_burst *burst = weft_container_of(node, struct sim_burst, of_undelivered);
        if (burst->last) phase_end(flow, burst->message);
        burst->message = NULL;
        burst->delivered = true;
        weft_list_remove(&burst->of_undelivered);
        burst_check_end(burst);
    }
    weft_list_foreach (node, spare, &flow->unacknowledged)
        burst_check_end(weft_container_of(node, struct sim_burst, of_unacknowledged));
    endpoint_must_check_peers(flow->source);
    endpoint_must_check_peers(flow->sink);
    sim_flow_leave(flow);
}

/* ---- links ---- */

/* Slow-down factor of the link: that of the slower host at its ends. */
static uint32_t link_slow_factor(const struct weft_sim *sim, const struct topology_link *link)
{
    uint32_t hosts = sim->options.host_count;
    uint32_t from = link->from < hosts ? sim->hosts[link->from].slow : 1,
             to = link->to < hosts ? sim->hosts[link->to].slow : 1;
    return from > to ? from : to;
}

/* The first byte of a copy reaches its next link. */
static void enter_link(struct weft_sim *sim, struct sim_copy *copy)
{
    struct sim_burst *burst = copy->burst;
    struct sim_flow *flow = burst->flow;
    const struct weft_topology *topology = sim->options.topology;
    const struct topology_link *link = &topology->links[flow->path[copy->hop]];
    struct sim_link *state = &sim->links[flow->path[copy->hop]];
    uint64_t service_ns = (uint64_t)((double)burst->bytes * link->ns_per_byte + 0.5);
    service_ns *= link_slow_factor(sim, link);
    uint64_t start_ns = state->free_ns > sim->now_ns ? state->free_ns : sim->now_ns,
             waits_ns = start_ns - sim->now_ns;
    if (waits_ns > sim->traffic.queue_max_ns) sim->traffic.queue_max_ns = waits_ns;
    if (link->buffer_bytes && copy->hop > 0 &&
        (double)waits_ns > (double)link->buffer_bytes * link->ns_per_byte) {
        sim->traffic.overflowed++;
        copy_lost(copy);
        return;
    }
    uint64_t end_ns = start_ns + service_ns, arrived_ns = sim->now_ns + copy->lag_ns;
    state->free_ns = end_ns;
    state->bytes += burst->bytes;
    copy->lag_ns = (end_ns > arrived_ns ? end_ns : arrived_ns) - start_ns;
    if (copy->hop == 0 && burst->last && !burst->departed) sim_message_departed(burst->message, end_ns);
    burst->departed = true;
    if (state->down || chance(sim, link->loss)) {
        copy_lost(copy);
        return;
    }
    struct sim_copy *twin = chance(sim, link->duplicate) ? take(sim, &sim->pools.copy_pool) : NULL;
    uint64_t first_ns = start_ns + link->latency_ns;
    copy->hop++;
    uint64_t tail_ns = copy->hop == flow->hops ? copy->lag_ns : 0; /* a burst arrives with its last byte */
    if (twin) {
        *twin = *copy;
        burst->copies++;
        sim->traffic.duplicated++;
        sim_schedule(sim, &twin->due,
                     first_ns + tail_ns +
                         (link->jitter_ns ? sim_random(&sim->random) % (link->jitter_ns + 1) : 0));
    }
    sim_schedule(sim, &copy->due,
                 first_ns + tail_ns +
                     (link->jitter_ns ? sim_random(&sim->random) % (link->jitter_ns + 1) : 0));
}

static bool burst_leaves(struct sim_burst *burst)
{
    struct weft_sim *sim = burst->flow->source->sim;
    struct sim_copy *copy = take(sim, &sim->pools.copy_pool);
    if (!copy) return false;
    *copy = (struct sim_copy){.due = {.index = SIM_IDLE, .fire = copy_fire}, .burst = burst};
    burst->copies++;
    burst->sent_ns = sim->now_ns;
    sim->traffic.bursts++;
    enter_link(sim, copy);
    return true;
}

/* ---- the source ---- */

static bool may_cut(const struct sim_flow *flow)
{
    return !flow->broken && !flow->source->host->dead && !weft_list_empty(&flow->queue) &&
           flow->in_flight_bytes < flow->window_bytes;
}

/* Sends the next burst of the flow. False: no memory. */
static bool cut_burst(struct sim_flow *flow)
{
    struct weft_sim *sim = flow->source->sim;
    const uint64_t burst_bytes = sim->options.topology->burst_bytes;
    struct sim_message *message = weft_list_first(&flow->queue, struct sim_message, transfer.of_flow);
    struct sim_burst *burst = take(sim, &sim->pools.burst_pool);
    if (!burst) return false;
    if (flow->head_left == 0) flow->head_left = message->transfer.phase_bytes;
    uint64_t bytes = flow->head_left < burst_bytes ? flow->head_left : burst_bytes;
    *burst = (struct sim_burst){.flow = flow,
                                .message = message,
                                .number = flow->next_number++,
                                .bytes = bytes,
                                .last = bytes == flow->head_left};
    burst->retry = (struct sim_due){.index = SIM_IDLE, .fire = retry_fire};
    weft_list_append(&flow->unacknowledged, &burst->of_unacknowledged);
    weft_list_append(&flow->undelivered, &burst->of_undelivered);
    flow->busy++;
    flow->in_flight_bytes += bytes;
    flow->head_left -= bytes;
    if (burst->last) weft_list_remove(&message->transfer.of_flow);
    if (!burst_leaves(burst))
        sim_schedule(sim, &burst->retry, sim->now_ns + sim->options.topology->timeout_ns);
    return true;
}

/* The flows that start at this link send one burst each in turn. */
static void link_serve_next(struct weft_sim *sim, struct sim_link *link)
{
    while (!weft_list_empty(&link->waiting) && link->free_ns <= sim->now_ns) {
        struct sim_flow *flow = weft_list_first(&link->waiting, struct sim_flow, of_link);
        weft_list_remove(&flow->of_link);
        flow->users++;
        /* no memory: retry later */
        if (may_cut(flow) && !cut_burst(flow))
            link->free_ns = sim->now_ns + sim->options.topology->timeout_ns;
        if (may_cut(flow)) weft_list_append(&link->waiting, &flow->of_link);
        sim_flow_leave(flow);
    }
    if (!weft_list_empty(&link->waiting) && link->turn.index == SIM_IDLE)
        sim_schedule(sim, &link->turn, link->free_ns);
}

static void turn_fire(struct weft_sim *sim, struct sim_due *due)
{
    link_serve_next(sim, weft_container_of(due, struct sim_link, turn));
}

/* The flow has bytes to send or space in its window: queues it at its link. */
static void flow_ready(struct sim_flow *flow)
{
    struct sim_link *link = &flow->source->sim->links[flow->path[0]];
    if (!may_cut(flow) || !weft_list_empty(&flow->of_link)) return;
    weft_list_append(&link->waiting, &flow->of_link);
    link_serve_next(flow->source->sim, link);
}

void sim_flow_send(struct sim_flow *flow, struct sim_message *message, uint64_t bytes)
{
    if (flow->broken || flow->source->host->dead) {
        sim_message_release(message);
        return;
    }
    message->transfer.phase_bytes = bytes;
    flow->busy++;
    flow->source->phases_out++;
    weft_list_append(&flow->queue, &message->transfer.of_flow);
    flow_ready(flow);
}

static void retry_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_burst *burst = weft_container_of(due, struct sim_burst, retry);
    struct sim_flow *flow = burst->flow;
    bool is_dead = flow->sink->host->dead && flow->sink->host->death_known;
    if (burst->acknowledged || flow->broken || flow->source->host->dead) {
        burst_check_end(burst);
    } else if (is_dead || burst->attempts == sim->options.topology->retry_count) {
        break_flow(flow);
    } else {
        burst->attempts++;
        sim->traffic.retried++;
        if (!burst_leaves(burst))
            sim_schedule(sim, &burst->retry, sim->now_ns + sim->options.topology->timeout_ns);
    }
}

static void acknowledge(struct sim_burst *burst)
{
    if (burst->acknowledged) return;
    burst->acknowledged = true;
    burst->flow->in_flight_bytes -= burst->bytes;
    weft_list_remove(&burst->of_unacknowledged);
    burst_check_end(burst);
}

static void acknowledgement_arrived(struct sim_copy *copy)
{
    struct sim_burst *burst = copy->burst;
    struct sim_flow *flow = burst->flow;
    uint64_t delivered = copy->delivered;
    copy_finish(copy);
    flow->users++; /* while its bursts are created */
    if (burst->acknowledged) burst_check_end(burst); /* it was the last copy of a duplicate */
    else acknowledge(burst);
    while (!weft_list_empty(&flow->unacknowledged)) {
        struct sim_burst *first = weft_list_first(&flow->unacknowledged, struct sim_burst, of_unacknowledged);
        if (first->number >= delivered) break;
        acknowledge(first);
    }
    flow_ready(flow);
    sim_flow_leave(flow);
}

/* ---- the sink ---- */

/* Delivers complete bursts in order. */
static void deliver(struct sim_flow *flow)
{
    while (!weft_list_empty(&flow->undelivered)) {
        struct sim_burst *burst = weft_list_first(&flow->undelivered, struct sim_burst, of_undelivered);
        struct sim_message *message = burst->last ? burst->message : NULL;
        if (!burst->received) break;
        WEFT_ASSERT(burst->number == flow->deliver_number);
        flow->deliver_number++;
        burst->delivered = true;
        burst->message = NULL;
        weft_list_remove(&burst->of_undelivered);
        if (message) {
            sim_message_arrived(message);
            phase_end(flow, message);
        }
        burst_check_end(burst);
    }
}

static void burst_arrived(struct weft_sim *sim, struct sim_copy *copy)
{
    struct sim_burst *burst = copy->burst;
    struct sim_flow *flow = burst->flow;
    if (flow->broken || flow->sink->host->dead || sim_is_cut(sim, flow->source->host, flow->sink->host)) {
        copy_lost(copy);
        return;
    }
    if (!burst->received) {
        burst->received = true;
        flow->users++;
        deliver(flow);
        flow->users--; /* the copy keeps it busy */
    }
    if (chance(sim, flow->ack_loss)) {
        copy_lost(copy);
        return;
    }
    copy->acknowledgement = true;
    copy->delivered = flow->deliver_number;
    sim_schedule(sim, &copy->due, sim->now_ns + flow->ack_ns);
}

static void copy_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_copy *copy = weft_container_of(due, struct sim_copy, due);
    struct sim_flow *flow = copy->burst->flow;
    if (copy->acknowledgement) {
        if (flow->broken || flow->source->host->dead || sim_is_cut(sim, flow->source->host, flow->sink->host))
            copy_lost(copy);
        else acknowledgement_arrived(copy);
    } else if (copy->hop < flow->hops) {
        enter_link(sim, copy);
    } else {
        burst_arrived(sim, copy);
    }
}

/* ---- faults of the topology file ---- */

static void fault_apply(struct weft_sim *sim, const struct topology_fault *fault, bool on)
{
    const struct weft_topology *topology = sim->options.topology;
    if (fault->kind == TOPOLOGY_DOWN) {
        for (uint32_t i = 0; i < topology->link_count; i++) {
            if (topology->links[i].cable == fault->cable) sim->links[i].down = on;
        }
    }
    for (uint32_t i = 0; i < fault->a.count; i++) {
        uint32_t host = fault->a.first + i;
        if (fault->kind == TOPOLOGY_KILL && on) weft_sim_kill(sim, host);
        if (fault->kind == TOPOLOGY_SLOW) weft_sim_slow(sim, host, on ? fault->factor : 1);
        for (uint32_t k = 0; fault->kind == TOPOLOGY_CUT && k < fault->b.count; k++) {
            if (host != fault->b.first + k) weft_sim_partition(sim, host, fault->b.first + k, on);
        }
    }
}

static void fault_fire(struct weft_sim *sim, struct sim_due *due)
{
    struct sim_fault *fault = weft_container_of(due, struct sim_fault, due);
    fault->on = !fault->on;
    fault_apply(sim, fault->what, fault->on);
    if (fault->on && fault->what->until_ns != WEFT_NEVER) sim_schedule(sim, due, fault->what->until_ns);
}

enum weft_status sim_flows_init(struct weft_sim *sim)
{
    const struct weft_topology *topology = sim->options.topology;
    weft_list_init(&sim->flows.idle_flows);
    if (!topology) return WEFT_OK;
    sim->flows.flow_bucket_count = SIM_FLOW_BUCKETS_MIN;
    sim->flows.flow_buckets = weft_alloc_zero(sim->env, SIM_FLOW_BUCKETS_MIN * sizeof(struct sim_flow *));
    sim->links =
        weft_alloc_zero(sim->env, ((size_t)topology->link_count + topology->host_count) * sizeof *sim->links);
    sim->faults = weft_alloc_array(sim->env, (size_t)topology->fault_count + 1, sizeof *sim->faults);
    size_t link_count = (size_t)topology->link_count + topology->host_count;
    if (!sim->flows.flow_buckets || !sim->links || !sim->faults) return WEFT_ERR_NO_MEMORY;
    if (!sim_heap_reserve(&sim->events, sim->env, topology->fault_count + link_count))
        return WEFT_ERR_NO_MEMORY;
    for (size_t i = 0; i < link_count; i++) {
        sim->links[i].turn = (struct sim_due){.index = SIM_IDLE, .fire = turn_fire};
        weft_list_init(&sim->links[i].waiting);
    }
    for (uint32_t i = 0; i < topology->fault_count; i++) {
        sim->faults[i] =
            (struct sim_fault){{.index = SIM_IDLE, .fire = fault_fire}, &topology->faults[i], false};
        sim_schedule(sim, &sim->faults[i].due, topology->faults[i].at_ns);
    }
    return WEFT_OK;
}

void sim_flows_free(struct weft_sim *sim)
{
    sim_pool_free(&sim->pools.flow_pool, sim->env);
    sim_pool_free(&sim->pools.burst_pool, sim->env);
    sim_pool_free(&sim->pools.copy_pool, sim->env);
    weft_free_bytes(sim->env, sim->flows.flow_buckets);
    weft_free_bytes(sim->env, sim->links);
    weft_free_bytes(sim->env, sim->faults);
}
