/* send_credit.c - see send_credit.h.
 *
 * The credit of a peer is a few messages, and what the link carries during the trips of a rendezvous. Rate
 * and latency are those of the link table (collective.links) for links of the peer's kind; else 5 Gbit/s, and
 * the time of the shortest small operation.
 *
 * No deadlock: 1. If no send to a peer has been posted or completed for STALL_NS, the oldest operation of the
 * group may have one send to the peer in flight. 2. All ranks post in one order: the lowest sequence that is
 * active on any rank is the oldest where it is active. 3. Its sends to one peer are in step order, so its
 * least unfinished message is held for STALL_NS at most: the group's timer retries held operations. */
#include "collective/core/send_credit.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

#include <math.h>

/* Messages in flight to each peer. An announced message passes the queue of the link three times
 * (announcement, grant, payload), so fewer leave the link idle. */
#define EAGER_MESSAGES 1.5
#define ANNOUNCED_MESSAGES 3.0
#define TRIPS 10.0 /* one way: announcement, grant, payload; of a contribution, a result, the next chunk */
#define QUICK_SECONDS 0.5e-3 /* a fast link sends more messages than these in a time that delays little */
#define BYTES_PER_SECOND_UNKNOWN 625e6
#define STALL_NS WEFT_MS(20)  /* longer than a message of a slow link */
#define SHORT_BYTES_MAX 1024u /* its time is the latency of the links, and more while they are busy */

void send_credit_open(struct weft_group *group)
{
    if (group->sending.send_credit) return;
    const size_t bytes =
        sizeof *group->sending.send_credit + group->ranks * sizeof group->sending.send_credit->peers[0];
    group->sending.send_credit = weft_alloc_zero(group->env, bytes);
    if (group->sending.send_credit) group->sending.send_credit->retry_ns = WEFT_NEVER;
}

void send_credit_close(struct weft_group *group)
{
    weft_free_bytes(group->env, group->sending.send_credit);
    group->sending.send_credit = NULL;
}

static bool is_oldest(const struct weft_coll *coll)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &coll->group->ops.active) {
        const struct weft_coll *other = weft_container_of(node, struct weft_coll, link);
        if (!other->flags.is_sendrecv && other->phase == COLL_RUNNING && other->sequence < coll->sequence)
            return false;
    }
    return true;
}

static bool has_send_in_flight(const struct weft_coll *coll, uint32_t peer)
{
    const uint32_t window = coll->group->limits.window;
    for (uint64_t number = coll->steps.tail; number < coll->steps.head; number++) {
        const struct slot *slot = &coll->slots[number % window];
        if (slot->state == SLOT_POSTED && slot->action.kind == WEFT_ACTION_SEND && slot->action.peer == peer)
            return true;
    }
    return false;
}

/* Sets the rate (0: unknown) and latency of the worst link of the peer's kind: inside the host, inside the
 * site, or any. */
static void find_link(const struct weft_group *group, uint32_t peer, uint64_t *rate_out,
                      uint64_t *latency_ns_out)
{
    const struct weft_plan_hosts *hosts = group->planning.hosts;
    const struct weft_link_cost *cost = &group->planning.cost;
    *rate_out = cost->bytes_per_second;
    *latency_ns_out = cost->latency_ns;
    if (!hosts) return;
    if (hosts->host[peer] == hosts->host[group->rank]) {
        if (group->planning.local_cost.bytes_per_second == 0) return; /* unknown */
        *rate_out = group->planning.local_cost.bytes_per_second;
        *latency_ns_out = group->planning.local_cost.latency_ns;
    } else if (hosts->sites > 1 && hosts->sites_aligned && hosts->near_bytes_per_second > 0 &&
               peer / hosts->site_ranks == group->rank / hosts->site_ranks) {
        *rate_out = hosts->near_bytes_per_second;
        *latency_ns_out = hosts->near_latency_ns;
    }
}

/* Bytes that may be in flight to the peer. */
static double credit_bytes(const struct weft_group *group, uint32_t peer)
{
    const struct send_credit *credit = group->sending.send_credit;
    uint64_t known_rate, latency_ns;
    find_link(group, peer, &known_rate, &latency_ns);
    if (latency_ns < credit->latency_ns) latency_ns = credit->latency_ns;
    if (latency_ns == 0) return HUGE_VAL;
    const bool is_eager = credit->longest_bytes <= weft_peer_eager_bytes(group->peer_table->peers[peer]);
    const double rate = known_rate > 0 ? (double)known_rate : BYTES_PER_SECOND_UNKNOWN,
                 on_the_way = TRIPS * rate * 1e-9 * (double)latency_ns, quick = rate * QUICK_SECONDS,
                 messages = (is_eager ? EAGER_MESSAGES : ANNOUNCED_MESSAGES) * (double)credit->longest_bytes;
    return (messages > quick ? messages : quick) + on_the_way;
}

static bool has_credit(const struct weft_group *group, uint32_t peer, size_t bytes)
{
    const struct send_credit *credit = group->sending.send_credit;
    const uint64_t in_flight = credit->peers[peer].in_flight;
    if (in_flight == 0) return true;
    return !credit->is_least && (double)(in_flight + bytes) <= credit_bytes(group, peer);
}

/* The sends in flight to the peer may wait for receives behind this operation. */
static bool passes_stalled(const struct weft_coll *coll, uint32_t peer, uint64_t now_ns)
{
    return weft_elapsed_ns(coll->group->sending.send_credit->peers[peer].moved_ns, now_ns) >= STALL_NS &&
           is_oldest(coll) && !has_send_in_flight(coll, peer);
}

bool send_credit_holds(struct weft_coll *coll, uint32_t peer, size_t bytes)
{
    struct send_credit *credit = coll->group->sending.send_credit;
    if (!credit || coll->args.urgency == 0 || has_credit(coll->group, peer, bytes)) return false;
    const uint64_t now_ns = weft_now_ns(coll->group->env);
    if (passes_stalled(coll, peer, now_ns)) return false;
    if (credit->held_count == 0) credit->retry_ns = now_ns + STALL_NS;
    if (!coll->flags.is_held) credit->held_count++;
    coll->flags.is_held = true;
    return true;
}

void send_credit_take(struct slot *slot, size_t bytes)
{
    const struct weft_coll *coll = slot->coll;
    struct weft_group *group = coll->group;
    struct send_credit *credit = group->sending.send_credit;
    slot->credit_bytes = 0;
    if (!credit || coll->args.urgency == 0 || bytes == 0) return;
    slot->credit_bytes = bytes;
    if (bytes > credit->longest_bytes) credit->longest_bytes = bytes;
    credit->peers[slot->action.peer].in_flight += bytes;
    credit->peers[slot->action.peer].moved_ns = weft_now_ns(group->env);
}

static void wake_held(struct weft_group *group)
{
    struct weft_list *node, *spare;
    group->sending.send_credit->held_count = 0;
    group->sending.send_credit->retry_ns = WEFT_NEVER;
    weft_list_foreach (node, spare, &group->ops.active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (!coll->flags.is_held) continue;
        coll->flags.is_held = false;
        coll_mark_ready(coll);
    }
}

void send_credit_op_ended(const struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    struct send_credit *credit = group->sending.send_credit;
    if (!credit) return;
    if (!coll->flags.is_sendrecv && coll->status == WEFT_OK && !coll->path.is_active &&
        coll->header.count * coll->data.elem_bytes <= SHORT_BYTES_MAX) {
        const uint64_t ns = weft_elapsed_ns(coll->posted_ns, weft_now_ns(group->env)) + 1;
        if (credit->latency_ns == 0 || ns < credit->latency_ns) credit->latency_ns = ns;
    }
    if (credit->held_count > 0) wake_held(group); /* another operation is the oldest */
}

void send_credit_return(struct slot *slot)
{
    struct weft_group *group = slot->coll->group;
    struct send_credit *credit = group->sending.send_credit;
    const size_t bytes = slot->credit_bytes;
    if (bytes == 0) return;
    slot->credit_bytes = 0;
    credit->peers[slot->action.peer].in_flight -= bytes;
    credit->peers[slot->action.peer].moved_ns = weft_now_ns(group->env);
    if (credit->held_count > 0) wake_held(group);
}

uint64_t send_credit_retry(struct weft_group *group, uint64_t now_ns)
{
    const struct send_credit *credit = group->sending.send_credit;
    if (!credit || credit->held_count == 0) return WEFT_NEVER;
    if (now_ns < credit->retry_ns) return credit->retry_ns;
    wake_held(group);
    return now_ns + STALL_NS;
}
