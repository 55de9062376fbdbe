/* measure.c - see measure.h.
 *
 * A row: a few checked messages with new contents, a short calibration of the number of messages, then the
 * timed run, whose last contents are checked, too. Checks and timed run use one loop.
 *
 *   passive side                       active side (sends, puts, gets)
 *   posts receives, sends go    ───►   starts its clock, keeps `window` operations in flight
 *   send: sends end after all   ───►   stops its clock
 *   put, get:             end   ◄───   stops its clock when the last operation is complete */
#include "tools/bench/p2p/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/bench/lib/samples.h"

enum { TAG_DATA, TAG_GO, TAG_END, CHECKS = 3, RATE_WINDOW_FACTOR = 4 };
/* Numbers of messages of the probes, which choose how many messages are timed. */
enum { PROBE_FIRST = 16, PROBE_GROWTH = 8, PROBE_MOST = 2000 };

struct slot {
    struct weft_completion completion;
    struct weft_receive receive;
    struct flow *flow;
    uint32_t index;
};

/* One direction between this rank and one peer. */
struct flow {
    struct run *run;
    uint32_t rank; /* of the peer */
    bool active;   /* this side starts the operations */
    struct p2p_counter count;
    uint64_t posted;
    struct slot *slots; /* (window,) */
    uint32_t *free_slots, free_count;
    struct slot go, end; /* slots of the control messages */
    struct p2p_counter go_count, end_count;
};

struct run {
    struct p2p_link *link;
    unsigned op;
    uint64_t bytes, iters, tag_base;
    uint32_t window, flow_count;
    struct flow *flows;
    struct p2p_counter all; /* data operations of all flows */
    uint64_t wrong;
    /* of the data that arrives here: for the peak */
    uint64_t block, block_left, block_started_ns, fastest_ns;
    uint64_t cpu_ns, copied_bytes, system_calls; /* of the last stream */
};

/* The contribution of each rank to a row. */
struct rank_result {
    uint64_t elapsed_ns, messages, wrong, cpu_ns, copied_bytes, system_calls, iters;
    double peak_GBps, lat[7];
};

static uint64_t run_number; /* equal on every rank, because all make the same runs */

static uint64_t tag_of(const struct run *run, unsigned kind)
{
    return WEFT_TAG(WEFT_CHANNEL_TEST, run->tag_base + kind);
}

/* ---- contents ---- */

static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    return (index + seed * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
}

static void fill_pattern(uint8_t *memory, uint64_t bytes, uint64_t seed)
{
    uint64_t index = 0;
    for (; (index + 1) * 8 <= bytes; index++) {
        uint64_t word = pattern_word(seed, index);
        memcpy(memory + index * 8, &word, 8);
    }
    uint64_t word = pattern_word(seed, index);
    if (bytes % 8) memcpy(memory + index * 8, &word, bytes % 8);
}

static bool has_pattern(const uint8_t *memory, uint64_t bytes, uint64_t seed)
{
    for (uint64_t index = 0; index * 8 < bytes; index++) {
        uint64_t word = pattern_word(seed, index), rest = bytes - index * 8;
        if (memcmp(memory + index * 8, &word, rest < 8 ? rest : 8) != 0) return false;
    }
    return true;
}

/* ---- operations ---- */

/* A block of messages has arrived. */
static void record_block(struct run *run)
{
    uint64_t now_ns = p2p_now_ns(), took = now_ns - run->block_started_ns;
    if (run->block_started_ns && took > 0 && (run->fastest_ns == 0 || took < run->fastest_ns))
        run->fastest_ns = took;
    run->block_started_ns = now_ns;
    run->block_left = run->block;
}

/* One operation is complete. Blocks consist of received sends, and of puts and gets of this side. */
static inline void count_operation(struct flow *flow)
{
    struct run *run = flow->run;
    if ((!flow->active || run->op != P2P_SEND) && --run->block_left == 0) record_block(run);
    p2p_link_count(run->link, &flow->count);
    p2p_link_count(run->link, &run->all);
}

static void complete_data(struct slot *slot, enum weft_status status)
{
    struct flow *flow = slot->flow;
    struct run *run = flow->run;
    bool received = !flow->active && run->op == P2P_SEND;
    if (status < 0) {
        run->wrong++;
        p2p_link_fail(run->link, "%s with rank %u: %s", p2p_op_name(run->op), flow->rank,
                      weft_reason_text(status));
    } else if (received && slot->receive.payload_bytes != run->bytes) {
        run->wrong++;
    }
    /* the latency test takes no slot from the list */
    if (flow->free_count < run->window) flow->free_slots[flow->free_count++] = slot->index;
    count_operation(flow);
}

static void on_data_done(struct weft_completion *completion, enum weft_status status)
{
    complete_data(weft_container_of(completion, struct slot, completion), status);
}

static void on_go_done(struct weft_completion *completion, enum weft_status status)
{
    struct slot *slot = weft_container_of(completion, struct slot, completion);
    if (status < 0)
        p2p_link_fail(slot->flow->run->link, "start with rank %u: %s", slot->flow->rank,
                      weft_reason_text(status));
    p2p_link_count(slot->flow->run->link, &slot->flow->go_count);
}

static void on_end_done(struct weft_completion *completion, enum weft_status status)
{
    struct slot *slot = weft_container_of(completion, struct slot, completion);
    if (status < 0)
        p2p_link_fail(slot->flow->run->link, "end with rank %u: %s", slot->flow->rank,
                      weft_reason_text(status));
    p2p_link_count(slot->flow->run->link, &slot->flow->end_count);
}

static enum weft_status start_data(struct flow *flow, struct slot *slot)
{
    struct run *run = flow->run;
    struct p2p_link *link = run->link;
    uint64_t offset =
        link->options->buffers == 1 ? 0 : flow->posted % link->options->buffers * link->buffer_bytes;
    weft_completion_init(&slot->completion, 1, on_data_done);
    if (!flow->active) {
        slot->receive = (struct weft_receive){
            .completion = &slot->completion, .buffer = link->in + offset, .buffer_bytes = run->bytes};
        return weft_transport_recv(link->transport, flow->rank + 1, tag_of(run, TAG_DATA), &slot->receive);
    }
    if (run->op == P2P_GET) {
        return weft_transport_get(link->out_remotes[flow->rank], offset, link->in + offset, run->bytes,
                                  &slot->completion);
    }
    if (run->op == P2P_PUT) {
        struct weft_put put = {.source = link->out + offset, .bytes = run->bytes, .offset = offset};
        return weft_transport_put(link->in_remotes[flow->rank], &put, &slot->completion);
    }
    struct weft_message message = {
        .tag = tag_of(run, TAG_DATA), .payload = link->out + offset, .payload_bytes = run->bytes};
    return weft_transport_send(link->peers[flow->rank], &message, &slot->completion);
}

/* Posts until the window is full. Puts and gets may complete at once; then at most one window of them is
 * posted. False: failed. *again_out: the transport accepts no more now. */
static bool post(struct flow *flow, bool *again_out)
{
    struct run *run = flow->run;
    if (!flow->active && run->op != P2P_SEND) return true;
    for (uint32_t i = 0; i < run->window && flow->posted < run->iters && flow->free_count > 0; i++) {
        struct slot *slot = &flow->slots[flow->free_slots[flow->free_count - 1]];
        enum weft_status status = start_data(flow, slot);
        if (status == WEFT_ERR_AGAIN) return *again_out = true;
        if (status < 0)
            return p2p_link_fail(run->link, "%s with rank %u: %s", p2p_op_name(run->op), flow->rank,
                                 weft_reason_text(status));
        flow->posted++;
        if (status == WEFT_IN_PROGRESS) flow->free_count--;
        else count_operation(flow);
    }
    return true;
}

/* Posts a control message, which has no contents. */
static bool post_control(struct flow *flow, struct slot *slot, struct p2p_counter *counter, unsigned kind,
                         bool out, void (*fn)(struct weft_completion *, enum weft_status))
{
    struct run *run = flow->run;
    enum weft_status status = WEFT_ERR_AGAIN;
    uint64_t limit_ns = p2p_now_ns() + WEFT_SECONDS(run->link->options->deadline_s);
    counter->finished = 0;
    slot->flow = flow;
    while (status == WEFT_ERR_AGAIN && p2p_now_ns() < limit_ns) {
        struct weft_message message = {.tag = tag_of(run, kind)};
        weft_completion_init(&slot->completion, 1, fn);
        slot->receive = (struct weft_receive){.completion = &slot->completion};
        status = out ? weft_transport_send(run->link->peers[flow->rank], &message, &slot->completion)
                     : weft_transport_recv(run->link->transport, flow->rank + 1, tag_of(run, kind),
                                           &slot->receive);
        if (status == WEFT_ERR_AGAIN) p2p_link_progress(run->link, NULL);
    }
    return status >= 0 ||
           p2p_link_fail(run->link, "control message with rank %u: %s", flow->rank, weft_reason_text(status));
}

/* ---- communication pattern ---- */

static bool is_sender_to(enum p2p_pattern pattern, bool duplex, uint32_t from, uint32_t to, uint32_t ranks)
{
    if (from == to) return false;
    if (duplex && to < from)
        return is_sender_to(pattern, false, to, from, ranks) || is_sender_to(pattern, false, from, to, ranks);
    if (duplex && is_sender_to(pattern, false, to, from, ranks)) return true;
    switch (pattern) {
    case P2P_PAIRS: return from % 2 == 0 && to == from + 1;
    case P2P_INCAST: return to == 0;
    case P2P_FANOUT: return from == 0;
    default: return true;
    }
}

static bool add_flow(struct run *run, uint32_t rank, bool active)
{
    struct flow *flow = &run->flows[run->flow_count++];
    *flow = (struct flow){.run = run, .rank = rank, .active = active};
    flow->slots = calloc(run->window, sizeof *flow->slots);
    flow->free_slots = calloc(run->window, sizeof *flow->free_slots);
    if (!flow->slots || !flow->free_slots)
        return p2p_link_fail(run->link, "no memory for a window of %u", run->window);
    for (uint32_t i = 0; i < run->window; i++) {
        flow->slots[i].flow = flow;
        flow->slots[i].index = i;
        flow->free_slots[flow->free_count++] = i;
    }
    return true;
}

static bool make_flows(struct run *run, unsigned measure)
{
    uint32_t me = run->link->bootstrap->rank, ranks = run->link->bootstrap->ranks;
    enum p2p_pattern pattern = measure == P2P_LATENCY ? P2P_PAIRS : run->link->options->pattern;
    run->flows = calloc(2 * (size_t)ranks, sizeof *run->flows);
    if (!run->flows) return p2p_link_fail(run->link, "no memory");
    for (uint32_t other = 0; other < ranks; other++) {
        /* the side that gets is the side that would receive */
        bool duplex = measure == P2P_DUPLEX, out = is_sender_to(pattern, duplex, me, other, ranks),
             in = is_sender_to(pattern, duplex, other, me, ranks);
        if (out && !add_flow(run, other, true)) return false;
        if (in && !add_flow(run, other, false)) return false;
    }
    return true;
}

static void free_flows(struct run *run)
{
    for (uint32_t i = 0; i < run->flow_count; i++) {
        free(run->flows[i].slots);
        free(run->flows[i].free_slots);
    }
    free(run->flows);
}

/* ---- the loop ---- */

static void rewind_run(struct run *run, uint64_t iters)
{
    run->iters = iters;
    run->tag_base = (++run_number) << 4;
    run->all.finished = 0;
    /* longer than the queues inside the transport */
    run->block = iters / 20 > run->window ? iters / 20 : run->window;
    if (run->block > iters / 4) run->block = iters / 4 ? iters / 4 : 1;
    run->block_left = run->block;
    run->block_started_ns = run->fastest_ns = 0;
    for (uint32_t i = 0; i < run->flow_count; i++) {
        struct flow *flow = &run->flows[i];
        flow->posted = flow->count.finished = 0;
    }
}

/* The end of each flow: the side that has seen the last byte notifies the other. */
static bool exchange_end(struct run *run)
{
    for (uint32_t i = 0; i < run->flow_count; i++) {
        struct flow *flow = &run->flows[i];
        bool is_leader = flow->active != (run->op == P2P_SEND);
        if (is_leader && !post_control(flow, &flow->end, &flow->end_count, TAG_END, true, on_end_done))
            return false;
    }
    for (uint32_t i = 0; i < run->flow_count; i++) {
        if (!p2p_link_wait(run->link, &run->flows[i].end_count, 1, "waiting for the end")) return false;
    }
    return true;
}

/* Exchanges go messages: after it, the receives of all ranks are posted. */
static bool exchange_go(struct run *run, uint64_t *expected_out)
{
    *expected_out = 0;
    for (uint32_t i = 0; i < run->flow_count; i++) {
        struct flow *flow = &run->flows[i];
        bool is_leader = flow->active != (run->op == P2P_SEND), again = false;
        if (flow->active || run->op == P2P_SEND) *expected_out += run->iters;
        if (!flow->active && !post(flow, &again)) return false;
        if (!is_leader && !post_control(flow, &flow->end, &flow->end_count, TAG_END, false, on_end_done))
            return false;
        if (!post_control(flow, &flow->go, &flow->go_count, TAG_GO, !flow->active, on_go_done)) return false;
    }
    for (uint32_t i = 0; i < run->flow_count; i++) {
        if (!p2p_link_wait(run->link, &run->flows[i].go_count, 1, "waiting for the start")) return false;
    }
    return true;
}

static uint64_t cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * 1000000000u +
           ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * 1000u;
}

static bool run_flows(struct run *run, uint64_t expected)
{
    while (run->all.finished < expected) {
        bool again = false;
        uint64_t before = run->all.finished;
        for (uint32_t i = 0; i < run->flow_count; i++) {
            if (!post(&run->flows[i], &again)) return false;
        }
        if (run->all.finished != before) continue; /* completed inside the calls: more can be posted */
        if (again) p2p_link_progress(run->link, &run->all);
        else if (!p2p_link_wait(run->link, &run->all, run->all.finished + 1, p2p_op_name(run->op)))
            return false;
    }
    return true;
}

/* Runs all flows with `window` operations in flight each. *elapsed_out: from go to the end, as the active
 * side measures it. */
static bool run_stream(struct run *run, uint64_t iters, uint64_t *elapsed_out)
{
    struct weft_transport_stats before, after;
    uint64_t expected = 0;
    rewind_run(run, iters);
    if (!exchange_go(run, &expected)) return false;
    weft_transport_stats(run->link->transport, &before);
    uint64_t started_cpu_ns = cpu_ns(), started_ns = p2p_now_ns();
    if (!run_flows(run, expected) || !exchange_end(run)) return false;
    *elapsed_out = p2p_now_ns() - started_ns;
    weft_transport_stats(run->link->transport, &after);
    run->cpu_ns = cpu_ns() - started_cpu_ns;
    run->copied_bytes = after.copied_bytes - before.copied_bytes;
    run->system_calls = after.system_call_count - before.system_call_count;
    return true;
}

/* ---- ping-pong ---- */

/* Posts one operation of the latency test on `flow`; repeats after AGAIN. */
static bool post_ping(struct flow *flow, struct slot *slot)
{
    struct run *run = flow->run;
    struct p2p_link *link = run->link;
    enum weft_status status;
    uint64_t tries = 0;
    do {
        if (run->op == P2P_PUT && flow->active) {
            struct weft_put put = {
                .source = link->out, .bytes = run->bytes, .notify = true, .tag = tag_of(run, TAG_DATA)};
            weft_completion_init(&slot->completion, 1, on_data_done);
            status = weft_transport_put(link->in_remotes[flow->rank], &put, &slot->completion);
        } else if (run->op == P2P_PUT) {
            weft_completion_init(&slot->completion, 1, on_data_done);
            slot->receive = (struct weft_receive){.completion = &slot->completion};
            status =
                weft_transport_recv(link->transport, flow->rank + 1, tag_of(run, TAG_DATA), &slot->receive);
        } else {
            flow->posted = 0; /* always the first buffer */
            status = start_data(flow, slot);
        }
        if (status == WEFT_ERR_AGAIN) p2p_link_progress(link, &flow->count);
    } while (status == WEFT_ERR_AGAIN && !link->failed && ++tries < 1u << 26);
    if (status == WEFT_OK) complete_data(slot, WEFT_OK);
    return status >= 0 || p2p_link_fail(link, "%s with rank %u: %s", p2p_op_name(run->op), flow->rank,
                                        weft_reason_text(status));
}

/* Round trips between the flows out and in of one pair. times: (iters,) ns per round trip; may be NULL. */
static bool run_ping_pong(struct run *run, struct flow *out, struct flow *in, bool first, uint64_t iters,
                          double *times, uint64_t *elapsed_out)
{
    uint64_t started_ns = p2p_now_ns(), before = started_ns;
    if (!post_ping(in, &in->slots[0])) return false;
    for (uint64_t i = 0; i < iters; i++) {
        if (!first && !p2p_link_wait(run->link, &in->count, i + 1, "waiting for a ping")) return false;
        if (i >= 2 && !p2p_link_wait(run->link, &out->count, i - 1, "waiting for a send")) return false;
        if (!post_ping(out, &out->slots[i & 1])) return false;
        /* As in perftest, the next receive is posted while our message is in flight, before the endpoint
         * makes progress: the answer is never unexpected. The first rank has posted it already. */
        if (!first && i + 1 < iters && !post_ping(in, &in->slots[(i + 1) & 1])) return false;
        if (first && i > 0 && !post_ping(in, &in->slots[i & 1])) return false;
        if (first && !p2p_link_wait(run->link, &in->count, i + 1, "waiting for a pong")) return false;
        if (times) {
            uint64_t now_ns = p2p_now_ns();
            times[i] = (double)(now_ns - before);
            before = now_ns;
        }
    }
    *elapsed_out = p2p_now_ns() - started_ns;
    return p2p_link_wait(run->link, &out->count, iters, "waiting for the last send");
}

/* One get after another; the other side makes progress until the end message. */
static bool run_gets(struct run *run, struct flow *flow, uint64_t iters, double *times, uint64_t *elapsed_out)
{
    uint64_t started_ns = p2p_now_ns(), before = started_ns;
    for (uint64_t i = 0; i < iters; i++) {
        if (!post_ping(flow, &flow->slots[0]) ||
            !p2p_link_wait(run->link, &flow->count, i + 1, "waiting for a get"))
            return false;
        uint64_t now_ns = times ? p2p_now_ns() : 0;
        if (times) times[i] = (double)(now_ns - before);
        before = now_ns;
    }
    *elapsed_out = p2p_now_ns() - started_ns;
    return true;
}

/* One pass of the latency test. Flow [0] of a pair is outgoing, flow [1] is incoming; a get has one flow. */
static bool latency_pass(struct run *run, uint64_t iters, double *times, uint64_t *elapsed_out)
{
    bool first = run->link->bootstrap->rank % 2 == 0;
    uint64_t expected = 0;
    rewind_run(run, iters);
    if (run->flow_count == 0) return true;
    if (run->op == P2P_GET) {
        return exchange_go(run, &expected) &&
               (!run->flows[0].active || run_gets(run, &run->flows[0], iters, times, elapsed_out)) &&
               exchange_end(run);
    }
    /* an all-gather is the start: a go message would use the endpoint that is about to be timed */
    return run_ping_pong(run, &run->flows[0], &run->flows[1], first, iters, times, elapsed_out);
}

static bool make_pair_flows(struct run *run)
{
    uint32_t me = run->link->bootstrap->rank, other = me ^ 1;
    run->flows = calloc(2, sizeof *run->flows);
    if (!run->flows) return p2p_link_fail(run->link, "no memory");
    if (other >= run->link->bootstrap->ranks) return true;
    if (run->op == P2P_GET) return add_flow(run, other, me % 2 == 0);
    return add_flow(run, other, true) && add_flow(run, other, false);
}

/* ---- a row ---- */

static bool barrier(struct p2p_link *link)
{
    uint32_t mine = 1, all[P2P_RANKS_MAX];
    return p2p_all_gather(link->bootstrap, &mine, sizeof mine, all) || p2p_link_fail_gather(link);
}

/* Gives the number of rank 0 to all ranks. */
static bool broadcast_number(struct p2p_link *link, uint64_t *number)
{
    uint64_t all[P2P_RANKS_MAX];
    if (!p2p_all_gather(link->bootstrap, number, sizeof *number, all)) return p2p_link_fail_gather(link);
    *number = all[0];
    return true;
}

static bool run_timed(struct run *run, unsigned measure, uint64_t iters, double *times, uint64_t *elapsed_out)
{
    *elapsed_out = 0;
    if (measure == P2P_LATENCY) return latency_pass(run, iters, times, elapsed_out) && barrier(run->link);
    return run_stream(run, iters, elapsed_out) && barrier(run->link);
}

/* Whether bytes arrive in a buffer of this rank. */
static bool is_receiver(const struct run *run)
{
    for (uint32_t i = 0; i < run->flow_count; i++) {
        if (run->flows[i].active == (run->op == P2P_GET)) return true;
    }
    return false;
}

/* `iters` messages with new contents, checked when all have arrived. */
static bool run_checked(struct run *run, unsigned measure, uint64_t iters, uint64_t seed, double *times,
                        uint64_t *elapsed_out)
{
    struct p2p_link *link = run->link;
    uint64_t used = measure == P2P_LATENCY           ? 1
                    : iters < link->options->buffers ? iters
                                                     : link->options->buffers;
    for (uint64_t i = 0; i < used; i++) {
        fill_pattern(link->out + i * link->buffer_bytes, run->bytes, seed);
        memset(link->in + i * link->buffer_bytes, 0x5a, run->bytes);
    }
    if (!barrier(link) || !run_timed(run, measure, iters, times, elapsed_out)) return false;
    for (uint64_t i = 0; is_receiver(run) && i < used; i++) {
        if (!has_pattern(link->in + i * link->buffer_bytes, run->bytes, seed)) run->wrong++;
    }
    return true;
}

/* Warms up and chooses the number of messages. Probes grow until one of them takes a part of the row's time,
 * so that a slow link is not measured for much longer than requested. */
static bool calibrate(struct run *run, unsigned measure, uint64_t *iters_out)
{
    const struct p2p_options *options = run->link->options;
    uint64_t most = ((uint64_t)8 << 20) / (run->bytes + 1), elapsed_ns = 0, probe, next = PROBE_FIRST;
    most = most > PROBE_MOST ? PROBE_MOST : most < 4 ? 4 : most;
    do {
        probe = next < most ? next : most;
        if (!run_timed(run, measure, probe, NULL, &elapsed_ns)) return false;
        next = probe == most || elapsed_ns > WEFT_MS(options->row_ms) / 4 ? 0 : PROBE_GROWTH * probe;
        if (!broadcast_number(run->link, &next)) return false;
    } while (next > 0);
    double wanted = elapsed_ns ? 1e6 * options->row_ms / ((double)elapsed_ns / (double)probe) : 1;
    *iters_out = options->iters           ? options->iters
                 : wanted > P2P_ITERS_MAX ? P2P_ITERS_MAX
                 : wanted < 8             ? 8
                                          : (uint64_t)wanted;
    return broadcast_number(run->link, iters_out);
}

static void summarise_latency(double *times, uint64_t iters, uint64_t elapsed_ns, bool round_trip,
                              double *lat)
{
    double scale = round_trip ? 0.5e-3 : 1e-3, squares = 0;
    struct bench_summary summary = bench_summarise(times, iters);
    for (uint64_t i = 0; i < iters; i++) squares += (times[i] - summary.mean) * (times[i] - summary.mean);
    lat[0] = scale * summary.min;
    lat[1] = scale * summary.max;
    lat[2] = scale * summary.p50;
    lat[3] = scale * (double)elapsed_ns / (double)iters;
    lat[4] = scale * sqrt(squares / (double)iters);
    lat[5] = scale * summary.p99;
    lat[6] = scale * bench_percentile(times, iters, 0.999);
}

/* Latency: one pass with a clock reading per message for the distribution, one without for the mean. */
static bool time_latency(struct run *run, uint64_t iters, uint64_t seed, struct rank_result *rank_result)
{
    double *times = calloc(iters, sizeof *times);
    uint64_t elapsed_ns = 0, ignored;
    bool fine = times || p2p_link_fail(run->link, "no memory for %llu samples", (unsigned long long)iters);
    fine = fine && run_checked(run, P2P_LATENCY, iters, seed, times, &ignored) &&
           run_timed(run, P2P_LATENCY, iters, NULL, &elapsed_ns);
    if (fine) summarise_latency(times, iters, elapsed_ns, run->op != P2P_GET, rank_result->lat);
    free(times);
    rank_result->elapsed_ns = elapsed_ns;
    rank_result->messages = iters;
    return fine;
}

static bool time_stream(struct run *run, unsigned measure, uint64_t iters, uint64_t seed,
                        struct rank_result *rank_result)
{
    if (!run_checked(run, measure, iters, seed, NULL, &rank_result->elapsed_ns)) return false;
    rank_result->cpu_ns = run->cpu_ns;
    rank_result->copied_bytes = run->copied_bytes;
    rank_result->system_calls = run->system_calls;
    if (run->fastest_ns)
        rank_result->peak_GBps = (double)run->block * (double)run->bytes / (double)run->fastest_ns;
    for (uint32_t i = 0; i < run->flow_count; i++) rank_result->messages += run->flows[i].active ? iters : 0;
    /* the clock of a passive rank started with its go message */
    if (rank_result->messages == 0) rank_result->elapsed_ns = 0;
    return true;
}

static void merge_parts(const struct run *run, const struct rank_result *rank_results, uint32_t ranks,
                        struct p2p_row *row)
{
    uint64_t slowest_ns = 0, messages = 0, copied = 0, calls = 0, cpu = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        const struct rank_result *rank_result = &rank_results[i];
        if (rank_result->elapsed_ns > slowest_ns) slowest_ns = rank_result->elapsed_ns;
        messages += rank_result->messages;
        copied += rank_result->copied_bytes;
        calls += rank_result->system_calls;
        cpu += rank_result->cpu_ns;
        row->peak_GBps += rank_result->peak_GBps;
        row->wrong += rank_result->wrong;
    }
    row->seconds = 1e-9 * (double)slowest_ns;
    if (row->measure == P2P_LATENCY) {
        const double *lat = rank_results[0].lat;
        row->t_min = lat[0], row->t_max = lat[1], row->t_typical = lat[2], row->t_avg = lat[3],
        row->t_stdev = lat[4];
        row->t_99 = lat[5], row->t_999 = lat[6];
        return;
    }
    double total = (double)messages * (double)run->bytes;
    if (slowest_ns == 0 || messages == 0) return;
    row->avg_GBps = total / (double)slowest_ns;
    row->rate_Mps = 1e3 * (double)messages / (double)slowest_ns;
    if (row->peak_GBps < row->avg_GBps) row->peak_GBps = row->avg_GBps; /* too few messages for a block */
    row->cpu_s_per_GB = (double)cpu / total;
    row->copies = (double)copied / total;
    row->system_calls = (double)calls / (double)messages;
}

static bool measure_run(struct run *run, unsigned measure, struct rank_result *rank_result)
{
    uint64_t ignored, seed = run_number + 1;
    for (int i = 0; i < CHECKS; i++) {
        if (!run_checked(run, measure, 1, seed++, NULL, &ignored)) return false;
    }
    if (!calibrate(run, measure, &rank_result->iters)) return false;
    if (measure == P2P_LATENCY) return time_latency(run, rank_result->iters, seed, rank_result);
    return time_stream(run, measure, rank_result->iters, seed, rank_result);
}

bool p2p_measure(struct p2p_link *link, unsigned op, unsigned measure, uint64_t bytes, struct p2p_row *row)
{
    struct run run = {.link = link, .op = op, .bytes = bytes};
    struct rank_result mine = {0}, *rank_results = calloc(link->bootstrap->ranks, sizeof *rank_results);
    run.window =
        measure == P2P_LATENCY ? 2 : link->options->window * (measure == P2P_RATE ? RATE_WINDOW_FACTOR : 1);
    bool fine = rank_results && (measure == P2P_LATENCY ? make_pair_flows(&run) : make_flows(&run, measure));
    fine = fine && measure_run(&run, measure, &mine);
    mine.wrong = run.wrong;
    fine = fine &&
           (p2p_all_gather(link->bootstrap, &mine, sizeof mine, rank_results) || p2p_link_fail_gather(link));
    if (fine) {
        *row = (struct p2p_row){.op = op,
                                .measure = measure,
                                .bytes = bytes,
                                .iters = mine.iters,
                                .ranks = link->bootstrap->ranks,
                                .window = run.window};
        uint32_t next = link->bootstrap->rank == 0 ? 1 : 0;
        if (link->peers[next]) weft_peer_describe(link->peers[next], row->path_text, sizeof row->path_text);
        merge_parts(&run, rank_results, link->bootstrap->ranks, row);
    }
    free_flows(&run);
    free(rank_results);
    return fine;
}
