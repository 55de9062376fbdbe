/* bootstrap_peer.c - the peers of one bootstrap: table, connect, end, and connections that arrive before
 * the local connect. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

enum { BUCKETS_FIRST = 16 };

/* --- the table --- */

static struct bootstrap_peer **bucket_of(struct bootstrap *bootstrap, uint32_t id)
{
    return &bootstrap->buckets[(id * 2654435761u) & (bootstrap->bucket_count - 1)];
}

struct bootstrap_peer *peer_find(struct bootstrap *bootstrap, uint32_t id)
{
    if (bootstrap->bucket_count == 0) return NULL;
    struct bootstrap_peer *peer = *bucket_of(bootstrap, id);
    while (peer && peer->id != id) peer = peer->next;
    return peer;
}

static enum weft_status grow(struct bootstrap *bootstrap)
{
    uint32_t old_count = bootstrap->bucket_count, count = old_count ? old_count * 2 : BUCKETS_FIRST;
    if (bootstrap->stats.peers + bootstrap->stats.early < old_count) return WEFT_OK;
    struct bootstrap_peer **old = bootstrap->buckets,
                     **buckets = weft_alloc_zero(bootstrap->env, count * sizeof(struct bootstrap_peer *));
    /* out of memory: longer chains in the old table */
    if (!buckets) return old ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    bootstrap->buckets = buckets;
    bootstrap->bucket_count = count;
    for (uint32_t i = 0; i < old_count; i++) {
        for (struct bootstrap_peer *peer = old[i], *next; peer; peer = next) {
            next = peer->next;
            peer->next = *bucket_of(bootstrap, peer->id);
            *bucket_of(bootstrap, peer->id) = peer;
        }
    }
    weft_free_bytes(bootstrap->env, old);
    return WEFT_OK;
}

static struct bootstrap_peer *peer_add(struct bootstrap *bootstrap, uint32_t id, enum peer_state state)
{
    if (grow(bootstrap) < 0) return NULL;
    struct bootstrap_peer *peer = weft_alloc_zero(bootstrap->env, sizeof *peer);
    if (!peer) return NULL;
    peer->bootstrap = bootstrap;
    peer->id = id;
    peer->state = state;
    weft_list_init(&peer->link);
    weft_list_init(&peer->backing_off);
    struct bootstrap_peer **bucket = bucket_of(bootstrap, id);
    peer->next = *bucket;
    *bucket = peer;
    if (state == PEER_EARLY) bootstrap->stats.early++;
    else bootstrap->stats.peers++;
    return peer;
}

static void drop_parameters(struct bootstrap_peer *peer)
{
    for (uint32_t i = 0; i < peer->descriptor_count; i++) close(peer->descriptors[i]);
    peer->descriptor_count = 0;
    weft_free_bytes(peer->bootstrap->env, peer->parameters);
    peer->parameters = NULL;
}

static void peer_remove(struct bootstrap_peer *peer)
{
    struct bootstrap *bootstrap = peer->bootstrap;
    if (peer->state == PEER_EARLY) bootstrap->stats.early--;
    else bootstrap->stats.peers--;
    if (peer->connection) connection_close(peer->connection);
    drop_parameters(peer);
    weft_list_remove(&peer->link);
    weft_list_remove(&peer->backing_off);
    struct bootstrap_peer **at = bucket_of(bootstrap, peer->id);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    weft_free_bytes(bootstrap->env, peer);
}

void peers_free(struct bootstrap *bootstrap)
{
    for (uint32_t i = 0; i < bootstrap->bucket_count; i++)
        while (bootstrap->buckets[i]) peer_remove(bootstrap->buckets[i]);
    weft_free_bytes(bootstrap->env, bootstrap->buckets);
}

/* --- connect --- */

static enum weft_status keep_parameters(struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                                        const int *descriptors, uint32_t count)
{
    if (bytes > 0) {
        peer->parameters = weft_alloc_bytes(peer->bootstrap->env, bytes);
        if (!peer->parameters) return WEFT_ERR_NO_MEMORY;
        memcpy(peer->parameters, parameters, bytes);
    }
    peer->parameter_bytes = (uint32_t)bytes;
    for (uint32_t i = 0; i < count; i++) {
        int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
            return errno == EBADF ? WEFT_ERR_INVALID : weft_limit_status("what a peer has sent", errno);
        peer->descriptors[peer->descriptor_count++] = copy;
    }
    return WEFT_OK;
}

static void send_parameters(struct bootstrap_peer *peer)
{
    enum weft_status status = connection_send(peer->connection, peer->parameters, peer->parameter_bytes,
                                              peer->descriptors, peer->descriptor_count);
    if (status < 0) peer_fail(peer, status, "our parameters could not be sent");
}

enum weft_status bootstrap_connect(struct bootstrap *bootstrap, uint32_t peer_id, const void *address,
                                   size_t address_bytes, const void *parameters, size_t bytes,
                                   const int *descriptors, uint32_t count, void *owner,
                                   struct bootstrap_peer **peer_out)
{
    struct socket_address socket_address;
    if (peer_id == bootstrap->options.id || bytes > BOOTSTRAP_PARAMETER_BYTES_MAX ||
        count > BOOTSTRAP_DESCRIPTORS_MAX)
        return WEFT_ERR_INVALID;
    if (count > 0 && bootstrap->options.family != BOOTSTRAP_UNIX) return WEFT_ERR_INVALID;
    WEFT_TRY(bootstrap_address_decode(bootstrap, address, address_bytes, &socket_address));
    if (socket_address.id != peer_id) return WEFT_ERR_MALFORMED;

    bool we_dial = bootstrap->options.id < peer_id;
    struct bootstrap_peer *peer = peer_find(bootstrap, peer_id);
    bool was_early = peer && peer->state == PEER_EARLY;
    if (peer && !was_early) return WEFT_ERR_EXISTS;
    if (!peer) peer = peer_add(bootstrap, peer_id, PEER_EXPECTED);
    if (!peer) return WEFT_ERR_NO_MEMORY;
    enum weft_status status = keep_parameters(peer, parameters, bytes, descriptors, count);
    if (status < 0) {
        if (was_early) drop_parameters(peer);
        else peer_remove(peer);
        return status;
    }
    if (was_early) {
        bootstrap->stats.early--;
        bootstrap->stats.peers++;
        peer->state = PEER_EXPECTED;
    }
    peer->owner = owner;
    peer->socket_address = socket_address;
    peer->deadline_ns = weft_now_ns(bootstrap->env) + bootstrap->options.connect_timeout_ns;
    weft_list_append(&bootstrap->waiting, &peer->link);
    bootstrap_set_timer(bootstrap, peer->deadline_ns);
    *peer_out = peer;
    if (peer->connection) {
        connection_set_events(peer->connection, EPOLLIN);
        send_parameters(peer);
    } else if (we_dial) {
        peer_dial(peer);
    }
    return WEFT_OK;
}

/* Assigns the proven connection to its peer. NULL: refused. */
static struct bootstrap_peer *claim(struct connection *connection)
{
    struct bootstrap *bootstrap = connection->bootstrap;
    struct bootstrap_peer *peer = peer_find(bootstrap, connection->handshake.peer_id);
    enum bootstrap_refusal reason = 0;
    if (!peer && bootstrap->stats.early >= bootstrap->options.early_max) reason = BOOTSTRAP_TOO_MANY;
    else if (!peer && !(peer = peer_add(bootstrap, connection->handshake.peer_id, PEER_EARLY)))
        reason = BOOTSTRAP_NO_RESOURCE;
    else if (peer->state != PEER_EARLY && peer->state != PEER_EXPECTED) reason = BOOTSTRAP_DUPLICATE;
    if (reason) {
        connection_refuse(connection, reason);
        return NULL;
    }
    /* If the same peer proves a second connection, the first one broke on the peer's side. */
    if (peer->connection) connection_close(peer->connection);
    connection->peer = peer;
    peer->connection = connection;
    weft_list_remove(&connection->link);
    bootstrap->stats.half_open--;
    return peer;
}

void peer_attach_proven(struct connection *connection)
{
    struct bootstrap_peer *peer = connection->peer;
    if (!peer) peer = claim(connection);
    if (!peer) return;
    connection_watch_process(connection);
    if (peer->state == PEER_EARLY) connection_set_events(connection, EPOLLRDHUP);
    else send_parameters(peer);
}

void peer_connected(struct bootstrap_peer *peer)
{
    peer->state = PEER_CONNECTED;
    peer->bootstrap->stats.connected_count++;
    weft_list_remove(&peer->link);
    weft_list_remove(&peer->connection->link); /* the deadline ends */
    drop_parameters(peer);
}

/* --- ends --- */

void peer_fail(struct bootstrap_peer *peer, enum weft_status status, const char *text)
{
    struct bootstrap *bootstrap = peer->bootstrap;
    if (peer->state == PEER_DISCONNECTED) return;
    peer->state = PEER_DISCONNECTED;
    peer->status = status;
    if (text != peer->text) snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, text);
    if (peer->connection) connection_close(peer->connection);
    drop_parameters(peer);
    weft_list_remove(&peer->backing_off);
    weft_list_remove(&peer->link);
    weft_list_append(&bootstrap->ending, &peer->link);
    bootstrap_set_timer(bootstrap, 0);
}

/* Status of a refusal before `connected`, for the dialling side. WEFT_OK: dial again. */
static enum weft_status status_of(enum bootstrap_refusal reason, bool refused_by_peer)
{
    switch (reason) {
    case BOOTSTRAP_VERSION: return WEFT_ERR_VERSION;
    case BOOTSTRAP_WRONG_SECRET:
    case BOOTSTRAP_WRONG_USER: return WEFT_ERR_AUTH;
    case BOOTSTRAP_WRONG_JOB:
    case BOOTSTRAP_WRONG_ID: return WEFT_ERR_MISMATCH;
    case BOOTSTRAP_MALFORMED:
    case BOOTSTRAP_REFLECTED:
    case BOOTSTRAP_BAD_MAC:
    case BOOTSTRAP_DESCRIPTORS: return WEFT_ERR_MALFORMED;
    case BOOTSTRAP_NO_RESOURCE: return refused_by_peer ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    case BOOTSTRAP_TIMED_OUT:
    case BOOTSTRAP_TOO_MANY:
    case BOOTSTRAP_DUPLICATE:
    case BOOTSTRAP_CLOSED_EARLY:
    case BOOTSTRAP_REFUSALS: break;
    }
    return WEFT_OK;
}

void peer_connection_ended(struct bootstrap_peer *peer, enum bootstrap_refusal reason, bool refused_by_peer,
                           enum weft_status status, const char *text)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence, "%s%s", refused_by_peer ? "it refused us: " : "", text);
    enum weft_status final = reason ? status_of(reason, refused_by_peer) : WEFT_OK;
    switch (peer->state) {
    case PEER_EARLY: peer_remove(peer); break;
    case PEER_CONNECTED:
        peer_fail(peer,
                  reason == 0                     ? status
                  : final < 0 && !refused_by_peer ? final
                                                  : WEFT_ERR_PEER_LOST,
                  sentence);
        break;
    case PEER_DIALLING:
        if (final < 0) {
            peer_fail(peer, final, sentence);
            break;
        }
        snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, sentence);
        peer_back_off(peer);
        break;
    case PEER_EXPECTED: /* the peer dials again, unless the failure is local */
        snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, sentence);
        if (final == WEFT_ERR_NO_MEMORY) peer_fail(peer, final, sentence);
        break;
    case PEER_BACKING_OFF:
    case PEER_DISCONNECTED: break;
    }
}

int peer_timers(struct bootstrap *bootstrap, uint64_t now_ns)
{
    int count = 0;
    while (!weft_list_empty(&bootstrap->waiting)) {
        struct bootstrap_peer *peer = weft_list_first(&bootstrap->waiting, struct bootstrap_peer, link);
        char text[200], last[120];
        if (peer->deadline_ns > now_ns) break;
        snprintf(last, sizeof last, "%.100s", peer->text);
        snprintf(text, sizeof text, "no connection within %.1f s%s%s",
                 (double)bootstrap->options.connect_timeout_ns / 1e9,
                 last[0] ? "; the last attempt: " : ", it sent nothing", last);
        peer_fail(peer, WEFT_ERR_UNREACHABLE, text);
        count++;
    }
    return count;
}

uint64_t peer_next_ns(const struct bootstrap *bootstrap)
{
    if (!weft_list_empty(&bootstrap->ending)) return 0;
    return weft_list_empty(&bootstrap->waiting)
               ? WEFT_NEVER
               : weft_list_first(&bootstrap->waiting, struct bootstrap_peer, link)->deadline_ns;
}

int peer_deliver_disconnects(struct bootstrap *bootstrap)
{
    int count = 0;
    while (!weft_list_empty(&bootstrap->ending)) {
        struct bootstrap_peer *peer = weft_list_first(&bootstrap->ending, struct bootstrap_peer, link);
        char text[sizeof peer->text];
        weft_list_remove(&peer->link);
        memcpy(text, peer->text, sizeof text); /* the callback may forget the peer */
        bootstrap->stats.disconnected_count++;
        bootstrap->options.callbacks.disconnected(peer->owner, peer, peer->status, text);
        count++;
    }
    return count;
}

/* --- for the owner --- */

enum weft_status bootstrap_send(struct bootstrap_peer *peer, const void *data, size_t bytes,
                                const int *descriptors, uint32_t count)
{
    if (bytes > BOOTSTRAP_MESSAGE_BYTES_MAX || count > BOOTSTRAP_DESCRIPTORS_MAX) return WEFT_ERR_INVALID;
    if (count > 0 && peer->bootstrap->options.family != BOOTSTRAP_UNIX) return WEFT_ERR_INVALID;
    if (peer->state != PEER_CONNECTED || !peer->connection) return WEFT_ERR_STATE;
    if (peer->connection->unsent_bytes + bytes > BOOTSTRAP_QUEUE_BYTES_MAX) return WEFT_ERR_AGAIN;
    return connection_send(peer->connection, data, (uint32_t)bytes, descriptors, count);
}

int bootstrap_detach_socket(struct bootstrap_peer *peer, const void **unconsumed_out,
                            size_t *unconsumed_bytes_out)
{
    struct bootstrap *bootstrap = peer->bootstrap;
    WEFT_ASSERT(bootstrap->options.family == BOOTSTRAP_TCP && peer->state == PEER_CONNECTED &&
                bootstrap->connecting.connecting_peer == peer);
    if (!bootstrap_is_flushed(peer)) return -1;
    *unconsumed_out = bootstrap->connecting.unconsumed;
    *unconsumed_bytes_out = bootstrap->connecting.unconsumed_bytes;
    return connection_detach_socket(peer->connection);
}

bool bootstrap_is_flushed(const struct bootstrap_peer *peer)
{
    return !peer->connection || peer->connection->unsent_bytes == 0;
}

void bootstrap_forget(struct bootstrap_peer *peer)
{
    peer_remove(peer);
}

uint32_t bootstrap_peer_id(const struct bootstrap_peer *peer)
{
    return peer->id;
}

int32_t bootstrap_peer_pid(const struct bootstrap_peer *peer)
{
    return peer->connection ? peer->connection->pid : 0;
}
