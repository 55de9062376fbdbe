/* meet_peer.c - the peers: asked for, met, gone; and those that came before anybody asked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/core/meet_internal.h"

enum { BUCKETS_FIRST = 16 };

/* --- the table --- */

static struct meet_peer **bucket_of(struct meet *meet, uint32_t id)
{
    return &meet->buckets[(id * 2654435761u) & (meet->bucket_count - 1)];
}

struct meet_peer *peer_find(struct meet *meet, uint32_t id)
{
    if (meet->bucket_count == 0) return NULL;
    struct meet_peer *peer = *bucket_of(meet, id);
    while (peer && peer->id != id) peer = peer->next;
    return peer;
}

static enum weft_status grow(struct meet *meet)
{
    uint32_t old_count = meet->bucket_count, count = old_count ? old_count * 2 : BUCKETS_FIRST;
    if (meet->stats.peers + meet->stats.early < old_count) return WEFT_OK;
    struct meet_peer **old = meet->buckets,
                     **buckets = weft_alloc_zero(meet->env, count * sizeof(struct meet_peer *));
    if (!buckets) return old ? WEFT_OK : WEFT_ERR_NO_MEMORY; /* long chains do, too */
    meet->buckets = buckets;
    meet->bucket_count = count;
    for (uint32_t i = 0; i < old_count; i++) {
        for (struct meet_peer *peer = old[i], *next; peer; peer = next) {
            next = peer->next;
            peer->next = *bucket_of(meet, peer->id);
            *bucket_of(meet, peer->id) = peer;
        }
    }
    weft_free_bytes(meet->env, old);
    return WEFT_OK;
}

static struct meet_peer *peer_add(struct meet *meet, uint32_t id, enum peer_state state)
{
    if (grow(meet) < 0) return NULL;
    struct meet_peer *peer = weft_alloc_zero(meet->env, sizeof *peer);
    if (!peer) return NULL;
    peer->meet = meet;
    peer->id = id;
    peer->state = state;
    weft_list_init(&peer->link);
    weft_list_init(&peer->resting);
    struct meet_peer **bucket = bucket_of(meet, id);
    peer->next = *bucket;
    *bucket = peer;
    if (state == PEER_EARLY) meet->stats.early++;
    else meet->stats.peers++;
    return peer;
}

static void drop_parameters(struct meet_peer *peer)
{
    for (uint32_t i = 0; i < peer->descriptor_count; i++) close(peer->descriptors[i]);
    peer->descriptor_count = 0;
    weft_free_bytes(peer->meet->env, peer->parameters);
    peer->parameters = NULL;
}

static void peer_remove(struct meet_peer *peer)
{
    struct meet *meet = peer->meet;
    if (peer->state == PEER_EARLY) meet->stats.early--;
    else meet->stats.peers--;
    if (peer->connection) connection_close(peer->connection);
    drop_parameters(peer);
    weft_list_remove(&peer->link);
    weft_list_remove(&peer->resting);
    struct meet_peer **at = bucket_of(meet, peer->id);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    weft_free_bytes(meet->env, peer);
}

void peers_free(struct meet *meet)
{
    for (uint32_t i = 0; i < meet->bucket_count; i++)
        while (meet->buckets[i]) peer_remove(meet->buckets[i]);
    weft_free_bytes(meet->env, meet->buckets);
}

/* --- meeting --- */

static enum weft_status keep_parameters(struct meet_peer *peer, const void *parameters, size_t bytes,
                                        const int *descriptors, uint32_t count)
{
    if (bytes > 0) {
        peer->parameters = weft_alloc_bytes(peer->meet->env, bytes);
        if (!peer->parameters) return WEFT_ERR_NO_MEMORY;
        memcpy(peer->parameters, parameters, bytes);
    }
    peer->parameter_bytes = (uint32_t)bytes;
    for (uint32_t i = 0; i < count; i++) {
        int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 3);
        if (copy < 0) return errno == EBADF ? WEFT_ERR_INVALID : weft_limit_of("what a peer has sent", errno);
        peer->descriptors[peer->descriptor_count++] = copy;
    }
    return WEFT_OK;
}

static void send_parameters(struct meet_peer *peer)
{
    enum weft_status status = connection_send(peer->connection, peer->parameters, peer->parameter_bytes,
                                              peer->descriptors, peer->descriptor_count);
    if (status < 0) peer_fail(peer, status, "our parameters could not be sent");
}

enum weft_status meet_connect(struct meet *meet, uint32_t peer_id, const void *address, size_t address_bytes,
                              const void *parameters, size_t bytes, const int *descriptors, uint32_t count,
                              void *owner, struct meet_peer **peer_out)
{
    struct meet_where where;
    if (peer_id == meet->options.id || bytes > MEET_PARAMETER_BYTES_MAX || count > MEET_DESCRIPTORS_MAX)
        return WEFT_ERR_INVALID;
    if (count > 0 && meet->options.family != MEET_UNIX) return WEFT_ERR_INVALID;
    WEFT_TRY(meet_address_decode(meet, address, address_bytes, &where));
    if (where.id != peer_id) return WEFT_ERR_MALFORMED;

    bool we_dial = meet->options.id < peer_id;
    struct meet_peer *peer = peer_find(meet, peer_id);
    bool was_early = peer && peer->state == PEER_EARLY;
    if (peer && !was_early) return WEFT_ERR_EXISTS;
    if (!peer) peer = peer_add(meet, peer_id, PEER_AWAITED);
    if (!peer) return WEFT_ERR_NO_MEMORY;
    enum weft_status status = keep_parameters(peer, parameters, bytes, descriptors, count);
    if (status < 0) {
        if (was_early) drop_parameters(peer);
        else peer_remove(peer);
        return status;
    }
    if (was_early) {
        meet->stats.early--;
        meet->stats.peers++;
        peer->state = PEER_AWAITED;
    }
    peer->owner = owner;
    peer->where = where;
    peer->deadline_ns = weft_now_ns(meet->env) + meet->options.meet_ns;
    weft_list_append(&meet->waiting, &peer->link);
    meet_set_timer(meet, peer->deadline_ns);
    *peer_out = peer;
    if (peer->connection) {
        connection_want(peer->connection, EPOLLIN);
        send_parameters(peer);
    } else if (we_dial) {
        peer_dial(peer);
    }
    return WEFT_OK;
}

/* Whose connection this is from now on; NULL: refused. */
static struct meet_peer *claim(struct connection *connection)
{
    struct meet *meet = connection->meet;
    struct meet_peer *peer = peer_find(meet, connection->handshake.peer_id);
    enum meet_reason reason = 0;
    if (!peer && meet->stats.early >= meet->options.early_max) reason = MEET_CROWDED;
    else if (!peer && !(peer = peer_add(meet, connection->handshake.peer_id, PEER_EARLY)))
        reason = MEET_NO_RESOURCE;
    else if (peer->state != PEER_EARLY && peer->state != PEER_AWAITED) reason = MEET_TWICE;
    if (reason) {
        connection_refuse(connection, reason);
        return NULL;
    }
    /* A second one that can prove itself is the newer one: the first broke on his side. */
    if (peer->connection) connection_close(peer->connection);
    connection->peer = peer;
    peer->connection = connection;
    weft_list_remove(&connection->link);
    meet->stats.half_open--;
    return peer;
}

void peer_proven(struct connection *connection)
{
    struct meet_peer *peer = connection->peer;
    if (!peer) peer = claim(connection);
    if (!peer) return;
    connection_watch_process(connection);
    if (peer->state == PEER_EARLY) connection_want(connection, EPOLLRDHUP);
    else send_parameters(peer);
}

void peer_met(struct meet_peer *peer)
{
    peer->state = PEER_MET;
    peer->meet->stats.met_count++;
    weft_list_remove(&peer->link);
    weft_list_remove(&peer->connection->link); /* no deadline any more */
    drop_parameters(peer);
}

/* --- ends --- */

void peer_fail(struct meet_peer *peer, enum weft_status status, const char *text)
{
    struct meet *meet = peer->meet;
    if (peer->state == PEER_GONE) return;
    peer->state = PEER_GONE;
    peer->status = status;
    if (text != peer->text) snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, text);
    if (peer->connection) connection_close(peer->connection);
    drop_parameters(peer);
    weft_list_remove(&peer->resting);
    weft_list_remove(&peer->link);
    weft_list_append(&meet->ending, &peer->link);
    meet_set_timer(meet, 0);
}

/* What a refusal before the meeting means for the one who dials; WEFT_OK: try again. */
static enum weft_status status_of(enum meet_reason reason, bool there)
{
    switch (reason) {
    case MEET_VERSION: return WEFT_ERR_VERSION;
    case MEET_WRONG_SECRET:
    case MEET_WRONG_USER: return WEFT_ERR_AUTH;
    case MEET_WRONG_JOB:
    case MEET_WRONG_ID: return WEFT_ERR_MISMATCH;
    case MEET_GARBAGE:
    case MEET_REFLECTED:
    case MEET_TAMPERED:
    case MEET_DESCRIPTORS: return WEFT_ERR_MALFORMED;
    case MEET_NO_RESOURCE: return there ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    case MEET_SLOW:
    case MEET_CROWDED:
    case MEET_TWICE:
    case MEET_HUNG_UP:
    case MEET_REASONS: break;
    }
    return WEFT_OK;
}

void peer_connection_ended(struct meet_peer *peer, enum meet_reason reason, bool there,
                           enum weft_status status, const char *text)
{
    char said[160];
    snprintf(said, sizeof said, "%s%s", there ? "it refused us: " : "", text);
    enum weft_status final = reason ? status_of(reason, there) : WEFT_OK;
    switch (peer->state) {
    case PEER_EARLY: peer_remove(peer); break;
    case PEER_MET:
        peer_fail(peer, reason == 0 ? status : final < 0 && !there ? final : WEFT_ERR_PEER_LOST, said);
        break;
    case PEER_DIALLING:
        if (final < 0) {
            peer_fail(peer, final, said);
            break;
        }
        snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, said);
        peer_rest(peer);
        break;
    case PEER_AWAITED: /* he will dial again; but not when the fault is ours */
        snprintf(peer->text, sizeof peer->text, "endpoint %u: %s", peer->id, said);
        if (final == WEFT_ERR_NO_MEMORY) peer_fail(peer, final, said);
        break;
    case PEER_RESTING:
    case PEER_GONE: break;
    }
}

int peer_timers(struct meet *meet, uint64_t now_ns)
{
    int count = 0;
    while (!weft_list_empty(&meet->waiting)) {
        struct meet_peer *peer = weft_list_first(&meet->waiting, struct meet_peer, link);
        char text[200], last[120];
        if (peer->deadline_ns > now_ns) break;
        snprintf(last, sizeof last, "%.100s", peer->text);
        snprintf(text, sizeof text, "no meeting within %.1f s%s%s", (double)meet->options.meet_ns / 1e9,
                 last[0] ? "; the last attempt: " : ", it was not heard of", last);
        peer_fail(peer, WEFT_ERR_UNREACHABLE, text);
        count++;
    }
    return count;
}

uint64_t peer_next_ns(const struct meet *meet)
{
    if (!weft_list_empty(&meet->ending)) return 0;
    return weft_list_empty(&meet->waiting)
               ? WEFT_NEVER
               : weft_list_first(&meet->waiting, struct meet_peer, link)->deadline_ns;
}

int peer_deliver_ends(struct meet *meet)
{
    int count = 0;
    while (!weft_list_empty(&meet->ending)) {
        struct meet_peer *peer = weft_list_first(&meet->ending, struct meet_peer, link);
        char text[sizeof peer->text];
        weft_list_remove(&peer->link);
        memcpy(text, peer->text, sizeof text); /* he may forget the peer */
        meet->stats.gone_count++;
        meet->options.callbacks.gone(peer->owner, peer, peer->status, text);
        count++;
    }
    return count;
}

/* --- for the owner --- */

enum weft_status meet_send(struct meet_peer *peer, const void *data, size_t bytes, const int *descriptors,
                           uint32_t count)
{
    if (bytes > MEET_MESSAGE_BYTES_MAX || count > MEET_DESCRIPTORS_MAX) return WEFT_ERR_INVALID;
    if (count > 0 && peer->meet->options.family != MEET_UNIX) return WEFT_ERR_INVALID;
    if (peer->state != PEER_MET || !peer->connection) return WEFT_ERR_STATE;
    if (peer->connection->unsent_bytes + bytes > MEET_QUEUE_BYTES_MAX) return WEFT_ERR_AGAIN;
    return connection_send(peer->connection, data, (uint32_t)bytes, descriptors, count);
}

int meet_take(struct meet_peer *peer, const void **rest_out, size_t *rest_bytes_out)
{
    struct meet *meet = peer->meet;
    WEFT_ASSERT(meet->options.family == MEET_TCP && peer->state == PEER_MET && meet->met_now == peer);
    if (!meet_flushed(peer)) return -1;
    *rest_out = meet->rest;
    *rest_bytes_out = meet->rest_bytes;
    return connection_take(peer->connection);
}

bool meet_flushed(const struct meet_peer *peer)
{
    return !peer->connection || peer->connection->unsent_bytes == 0;
}

void meet_forget(struct meet_peer *peer)
{
    peer_remove(peer);
}

uint32_t meet_peer_id(const struct meet_peer *peer)
{
    return peer->id;
}

int32_t meet_peer_pid(const struct meet_peer *peer)
{
    return peer->connection ? peer->connection->pid : 0;
}
