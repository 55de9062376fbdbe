/* peers.c - the peers of one endpoint by id, and the report of lost ones.
 *
 * A peer enters the table by connect, or *early*: its first message may arrive before the local connect,
 * because a third party sends both addresses. The backend has checked the nonce of an early peer; their
 * number is bounded, and their messages wait for the connect.
 *
 * The loss of a peer has two steps. At once: posted receives end, waiting arrivals are dropped, the
 * backend disconnects. Later, from progress, after the last operation with the peer: peer_failed, once. So
 * a caller never sees "peer lost" while one of its buffers is in use. */
#include <stdio.h>
#include <string.h>

#include "transport/core/core.h"
#include "transport/auto/auto_ops.h"

enum { FIRST_BUCKETS = 64, TEXT_BYTES_MAX = 200 };

static uint32_t bucket_of(uint32_t peer_id, uint32_t bucket_count)
{
    return (peer_id * 2654435761u) >> 7 & (bucket_count - 1);
}

/* ---- memory: peers are allocated in batches, because an endpoint may have thousands ---- */

enum { BATCH_FIRST = 4, BATCH_MAX = 64 };

struct core_peer_batch {
    struct core_peer_batch *next;
    uint32_t count;
    struct weft_peer peers[];
};

static struct weft_peer *peer_alloc(struct weft_transport *transport)
{
    if (!transport->peer_table.unused_peers) {
        uint32_t count =
            transport->peer_table.peer_batches ? transport->peer_table.peer_batches->count * 2 : BATCH_FIRST;
        if (count > BATCH_MAX) count = BATCH_MAX;
        struct core_peer_batch *batch =
            weft_alloc_bytes(transport->env, sizeof *batch + count * sizeof *batch->peers);
        if (!batch) return NULL;
        batch->next = transport->peer_table.peer_batches;
        batch->count = count;
        transport->peer_table.peer_batches = batch;
        for (uint32_t i = count; i-- > 0;) {
            batch->peers[i].next = transport->peer_table.unused_peers;
            transport->peer_table.unused_peers = &batch->peers[i];
        }
    }
    struct weft_peer *peer = transport->peer_table.unused_peers;
    transport->peer_table.unused_peers = peer->next;
    memset(peer, 0, sizeof *peer);
    return peer;
}

static void peer_free(struct weft_transport *transport, struct weft_peer *peer)
{
    weft_free_bytes(transport->env, peer->text);
    peer->next = transport->peer_table.unused_peers;
    transport->peer_table.unused_peers = peer;
}

enum weft_status core_peers_init(struct weft_transport *transport)
{
    weft_list_init(&transport->peers);
    weft_list_init(&transport->failing);
    transport->peer_table.peer_buckets =
        weft_alloc_zero(transport->env, FIRST_BUCKETS * sizeof(struct weft_peer *));
    if (!transport->peer_table.peer_buckets) return WEFT_ERR_NO_MEMORY;
    transport->peer_table.peer_bucket_count = FIRST_BUCKETS;
    return WEFT_OK;
}

void core_peers_free(struct weft_transport *transport)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        weft_free_bytes(transport->env, weft_container_of(node, struct weft_peer, link)->text);
    }
    for (struct core_peer_batch *batch = transport->peer_table.peer_batches, *next; batch; batch = next) {
        next = batch->next;
        weft_free_bytes(transport->env, batch);
    }
    weft_free_bytes(transport->env, transport->peer_table.peer_buckets);
}

struct weft_peer *core_peer_find(struct weft_transport *transport, uint32_t peer_id)
{
    struct weft_peer *peer =
        transport->peer_table.peer_buckets[bucket_of(peer_id, transport->peer_table.peer_bucket_count)];
    while (peer && peer->id != peer_id) peer = peer->next;
    return peer;
}

/* Doubles the buckets. Without memory the chains grow. */
static void buckets_grow(struct weft_transport *transport)
{
    uint32_t bucket_count = transport->peer_table.peer_bucket_count * 2;
    struct weft_peer **buckets = weft_alloc_zero(transport->env, bucket_count * sizeof(struct weft_peer *));
    if (!buckets) return;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        uint32_t bucket = bucket_of(peer->id, bucket_count);
        peer->next = buckets[bucket];
        buckets[bucket] = peer;
    }
    weft_free_bytes(transport->env, transport->peer_table.peer_buckets);
    transport->peer_table.peer_buckets = buckets;
    transport->peer_table.peer_bucket_count = bucket_count;
}

struct weft_peer *core_peer_add(struct weft_transport *transport, uint32_t peer_id)
{
    struct weft_peer *peer = peer_alloc(transport);
    if (!peer) return NULL;
    if (transport->peer_table.peer_count >= transport->peer_table.peer_bucket_count) buckets_grow(transport);
    peer->transport = transport;
    peer->id = peer_id;
    peer->status = WEFT_OK;
    weft_list_init(&peer->failing);
    weft_list_init(&peer->arrivals);
    weft_list_append(&transport->peers, &peer->link);
    uint32_t bucket = bucket_of(peer_id, transport->peer_table.peer_bucket_count);
    peer->next = transport->peer_table.peer_buckets[bucket];
    transport->peer_table.peer_buckets[bucket] = peer;
    transport->peer_table.peer_count++;
    return peer;
}

struct weft_peer *core_peer_find_or_add(struct weft_transport *transport, uint32_t peer_id)
{
    struct weft_peer *peer = core_peer_find(transport, peer_id);
    if (peer) return peer;
    if (transport->peer_table.early_peer_count >= CORE_EARLY_PEERS_MAX) return NULL;
    peer = core_peer_add(transport, peer_id);
    if (peer) transport->peer_table.early_peer_count++;
    return peer;
}

void core_peer_remove(struct weft_transport *transport, struct weft_peer *peer)
{
    WEFT_ASSERT(weft_list_empty(&peer->arrivals));
    WEFT_ASSERT(peer->operations == 0);
    struct weft_peer **at =
        &transport->peer_table.peer_buckets[bucket_of(peer->id, transport->peer_table.peer_bucket_count)];
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    weft_list_remove(&peer->link);
    transport->peer_table.peer_count--;
    peer_free(transport, peer);
}

enum weft_status weft_transport_connect(struct weft_transport *transport, uint32_t peer_id, const void *blob,
                                        size_t bytes, struct weft_peer **peer_out)
{
    WEFT_ASSERT(transport && peer_out);
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (!blob || bytes == 0 || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (transport->composite.children) return auto_connect(transport, peer_id, blob, bytes, peer_out);
    struct weft_peer *peer = core_peer_find(transport, peer_id);
    if (peer && peer->connected) return WEFT_ERR_EXISTS;
    bool fresh = !peer;
    if (fresh && !(peer = core_peer_add(transport, peer_id))) return WEFT_ERR_NO_MEMORY;
    enum weft_status status = transport->ops->connect(transport, peer, blob, bytes);
    if (status < 0) {
        if (fresh) core_peer_remove(transport, peer);
        return status;
    }
    peer->connected = true;
    if (!fresh) {
        transport->peer_table.early_peer_count--;
        peer->early = true;
        transport->rescan = true;
    }
    *peer_out = peer;
    return WEFT_OK;
}

const char *weft_transport_connect_hint(enum weft_status status)
{
    if (status == WEFT_ERR_MALFORMED) return "; have all processes the same transport.backend?";
    if (status == WEFT_ERR_UNREACHABLE)
        return "; name the network devices that lead there (transport.devices)";
    return "";
}

struct weft_peer *weft_transport_peer(struct weft_transport *transport, uint32_t peer_id)
{
    for (uint32_t i = 0; i < transport->composite.child_count; i++) {
        struct weft_peer *peer = weft_transport_peer(transport->composite.children[i], peer_id);
        if (peer) return peer;
    }
    if (transport->composite.children) return NULL;
    struct weft_peer *peer = core_peer_find(transport, peer_id);
    return peer && peer->connected ? peer : NULL;
}

size_t weft_peer_eager_bytes(const struct weft_peer *peer) { return peer->transport->eager_bytes_max; }
uint32_t weft_peer_id(const struct weft_peer *peer) { return peer->id; }
enum weft_status weft_peer_status(const struct weft_peer *peer) { return peer->status; }

/* The text is allocated at the loss: there may be thousands of peers, and few are lost. */
static void keep_text(struct weft_transport *transport, struct weft_peer *peer, const char *text)
{
    size_t bytes = text ? strnlen(text, TEXT_BYTES_MAX - 1) : 0;
    if (bytes == 0 || !(peer->text = weft_alloc_bytes(transport->env, bytes + 1))) return;
    memcpy(peer->text, text, bytes);
    peer->text[bytes] = 0;
}

const char *core_peer_text(const struct weft_peer *peer)
{
    if (peer->text) return peer->text;
    return peer->status < 0 ? "the connection to the peer is lost" : "";
}

static void peer_ends(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status,
                      const char *text, bool in_order)
{
    if (transport->closed || !peer->connected || peer->status < 0) return;
    peer->status = status < 0 ? status : WEFT_ERR_PEER_LOST;
    peer->has_left = in_order;
    keep_text(transport, peer, text);
    weft_log(transport->env, WEFT_LOG_INFO, "transport", "endpoint %u peer %u lost: %s", transport->id,
             peer->id, core_peer_text(peer));
    core_match_end_posted(transport, peer, peer->status);
    core_arrivals_drop(transport, peer, in_order);
    transport->losses.has_unreported_loss = true;
    weft_list_append(&transport->failing, &peer->failing);
    transport->ops->disconnect(transport, peer, peer->status);
}

/* Starts the loss of a peer. In a child of `auto` the text names the child, because other peers are not
 * affected. */
static void peer_lost_by_backend(struct weft_transport *transport, struct weft_peer *peer,
                                 enum weft_status status, const char *text, bool in_order)
{
    char named[TEXT_BYTES_MAX];
    if (transport->composite.parent && text && text[0]) {
        snprintf(named, sizeof named, "%s: %s", transport->ops->name, text);
        text = named;
    }
    peer_ends(transport, peer, status, text, in_order);
}

void core_peer_lost(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status,
                    const char *text)
{
    peer_lost_by_backend(transport, peer, status, text, false);
}

void core_peer_left(struct weft_transport *transport, struct weft_peer *peer, const char *text)
{
    peer_lost_by_backend(transport, peer, WEFT_ERR_PEER_LOST, text, true);
}

void weft_transport_fail_peer(struct weft_transport *transport, uint32_t peer_id, enum weft_status status,
                              const char *text)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    if (!peer || transport->closed) return;
    transport = peer->transport;
    if (peer->status < 0 && peer->operations > 0) {
        /* it was closing in order; now it is dead */
        transport->ops->disconnect(transport, peer, peer->status);
        return;
    }
    peer_ends(transport, peer, status, text, false);
}

/* Searches all peers, because losses are rare. The watcher may fail further peers; they are reported in
 * the next call. */
void core_peers_notify_watcher(struct weft_transport *transport)
{
    struct weft_list *node, *spare;
    transport->losses.has_unreported_loss = false;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        if (peer->status == WEFT_OK || peer->watcher_notified) continue;
        peer->watcher_notified = true;
        if (transport->losses.watcher)
            transport->losses.watcher(transport->losses.watcher_context, peer->id, peer->status);
    }
}

/* Calls peer_failed for every lost peer without operations in flight. */
int core_peers_report(struct weft_transport *transport)
{
    int count = 0;
    bool again = true;
    while (again) { /* the callback may fail further peers: restart after each */
        again = false;
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &transport->failing) {
            struct weft_peer *peer = weft_container_of(node, struct weft_peer, failing);
            if (peer->operations > 0) continue;
            weft_list_remove(node);
            count++;
            if (transport->losses.peer_failed) {
                transport->losses.peer_failed(transport->losses.peer_failed_context, peer->id, peer->status,
                                       core_peer_text(peer));
            }
            again = true;
            break;
        }
    }
    return count;
}
