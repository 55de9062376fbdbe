/* connection.c - one socket of the bootstrap: frames and descriptors in both directions.
 *
 * Reads go through the scratch buffer of the bootstrap. Only an incomplete frame is copied into memory of
 * its own; for an unproven connection that memory is bounded by the size of a hello. An unproven
 * connection gets answers of at most one frame, which fits into the empty socket buffer. So an unproven
 * connection never causes a queue. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

static void close_descriptors(int *descriptors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (descriptors[i] >= 0) close(descriptors[i]);
}

/* --- life --- */

/* Keepalive probes detect a silent host on an idle connection; TCP_USER_TIMEOUT detects it while bytes are
 * unacknowledged. */
static void set_liveness(struct connection *connection)
{
    int fd = connection->fd, on = 1;
    int seconds = (int)(connection->bootstrap->options.liveness_ns / 1000000000u), idle = seconds / 2,
        interval = seconds - idle;
    /* the keepalive probe at `seconds` then finds the timeout expired */
    unsigned timeout_ms = (unsigned)seconds * 1000 - 500;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

struct connection *connection_create(struct bootstrap *bootstrap, int fd, enum handshake_role role,
                                     uint32_t peer_id)
{
    uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES];
    struct connection *connection = weft_alloc_zero(bootstrap->env, sizeof *connection);
    if (!connection) {
        close(fd);
        return NULL;
    }
    connection->bootstrap = bootstrap;
    connection->socket.kind = SOURCE_SOCKET;
    connection->process.kind = SOURCE_PROCESS;
    connection->fd = fd;
    connection->process_fd = -1;
    weft_list_init(&connection->link);
    weft_list_init(&connection->out_frames);
    snprintf(connection->name, sizeof connection->name, "an unknown peer");
    weft_random_bytes(bootstrap->env, challenge, sizeof challenge);
    handshake_init(&connection->handshake, &bootstrap->self, role, peer_id, challenge);
    if (bootstrap->options.family == BOOTSTRAP_TCP) set_liveness(connection);
    return connection;
}

enum bootstrap_refusal connection_identify_peer(struct connection *connection)
{
    struct bootstrap *bootstrap = connection->bootstrap;
    if (bootstrap->options.family == BOOTSTRAP_TCP) {
        struct socket_address socket_address = {.bytes = sizeof socket_address.storage};
        if (getpeername(connection->fd, (struct sockaddr *)&socket_address.storage, &socket_address.bytes) !=
            0)
            return BOOTSTRAP_CLOSED_EARLY;
        socket_address_name(&socket_address, connection->name, sizeof connection->name);
        return bootstrap->self.has_secret || socket_address_is_local(&socket_address) ? 0
                                                                                      : BOOTSTRAP_WRONG_USER;
    }
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
        return BOOTSTRAP_CLOSED_EARLY;
    connection->pid = credentials.pid;
    snprintf(connection->name, sizeof connection->name, "process %d of user %u", (int)credentials.pid,
             (unsigned)credentials.uid);
    return bootstrap->self.has_secret || credentials.uid == geteuid() ? 0 : BOOTSTRAP_WRONG_USER;
}

/* The socket alone does not report a death if a child of the dead process holds a copy of it. */
void connection_watch_process(struct connection *connection)
{
    if (connection->pid <= 0 || connection->pid == getpid()) return;
    connection->process_fd = (int)syscall(SYS_pidfd_open, connection->pid, 0);
    if (connection->process_fd < 0) return;
    if (bootstrap_watch_fd(connection->bootstrap, connection->process_fd, &connection->process, EPOLLIN) >= 0)
        return;
    close(connection->process_fd);
    connection->process_fd = -1;
}

void connection_set_events(struct connection *connection, uint32_t events)
{
    struct epoll_event interest = {.events = events, .data.ptr = &connection->socket};
    if (connection->interest == events || connection->ended) return;
    connection->interest = events;
    epoll_ctl(connection->bootstrap->epoll_fd, EPOLL_CTL_MOD, connection->fd, &interest);
}

static void out_frame_free(struct connection *connection, struct out_frame *out_frame)
{
    weft_list_remove(&out_frame->link);
    connection->unsent_bytes -= out_frame->bytes;
    close_descriptors(out_frame->descriptors, out_frame->descriptor_count);
    weft_free_bytes(connection->bootstrap->env, out_frame);
}

static void out_frames_drop(struct connection *connection)
{
    while (!weft_list_empty(&connection->out_frames))
        out_frame_free(connection, weft_list_first(&connection->out_frames, struct out_frame, link));
}

static void drop_partial(struct connection *connection)
{
    weft_free_bytes(connection->bootstrap->env, connection->partial);
    connection->partial = NULL;
    connection->partial_bytes = 0;
}

int connection_detach_socket(struct connection *connection)
{
    int fd = connection->fd;
    epoll_ctl(connection->bootstrap->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    connection->fd = -1;
    connection_close(connection);
    return fd;
}

void connection_close(struct connection *connection)
{
    struct bootstrap *bootstrap = connection->bootstrap;
    if (connection->ended) return;
    connection->ended = true;
    if (connection->handshake.role == HANDSHAKE_ACCEPTER && !connection->peer) bootstrap->stats.half_open--;
    if (connection->peer) connection->peer->connection = NULL;
    connection->peer = NULL;
    /* Remove the descriptor from epoll before closing it: a copy in a child process would keep it there. */
    if (connection->fd >= 0) {
        epoll_ctl(bootstrap->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
        close(connection->fd);
    }
    if (connection->process_fd >= 0) {
        epoll_ctl(bootstrap->epoll_fd, EPOLL_CTL_DEL, connection->process_fd, NULL);
        close(connection->process_fd);
    }
    out_frames_drop(connection);
    drop_partial(connection);
    close_descriptors(connection->descriptors, connection->descriptor_count);
    handshake_fini(&connection->handshake);
    weft_list_remove(&connection->link);
    weft_list_append(&bootstrap->dead, &connection->link);
    if (!bootstrap->progressing) connections_free_dead(bootstrap);
}

void connections_free_dead(struct bootstrap *bootstrap)
{
    while (!weft_list_empty(&bootstrap->dead)) {
        struct connection *connection = weft_list_first(&bootstrap->dead, struct connection, link);
        weft_list_remove(&connection->link);
        weft_free_bytes(bootstrap->env, connection);
    }
}

/* --- ends --- */

static void end(struct connection *connection, enum bootstrap_refusal reason, bool there,
                enum weft_status status, const char *text)
{
    struct bootstrap_peer *peer = connection->peer;
    char name[sizeof connection->name];
    memcpy(name, connection->name, sizeof name);
    struct bootstrap *bootstrap = connection->bootstrap;
    connection_close(connection);
    if (reason && !there) bootstrap_count_refusal(bootstrap, reason, name);
    if (peer) peer_connection_ended(peer, reason, there, status, text);
}

void connection_refuse(struct connection *connection, enum bootstrap_refusal reason)
{
    if (connection->ended) return;
    connection->handshake.out_bytes = 0;
    handshake_refuse(&connection->handshake, reason);
    if (weft_list_empty(&connection->out_frames) && !connection->connecting)
        connection_flush_handshake(connection);
    end(connection, reason, false, WEFT_OK, bootstrap_refusal_text(reason));
}

void connection_lost(struct connection *connection, enum weft_status status, const char *text)
{
    if (connection->ended) return;
    bool is_unproven = !connection->peer;
    end(connection, is_unproven ? BOOTSTRAP_CLOSED_EARLY : 0, false, status, text);
}

/* The handshake is closed. If the refusal is local, send it to the peer. */
static void refused(struct connection *connection)
{
    struct handshake *handshake = &connection->handshake;
    if (!handshake->refused_by_peer && weft_list_empty(&connection->out_frames))
        connection_flush_handshake(connection);
    end(connection, handshake->reason, handshake->refused_by_peer, WEFT_OK,
        bootstrap_refusal_text(handshake->reason));
}

/* --- in --- */

/* Moves the descriptors of a frame out of the queue. False: fewer have arrived than the frame declares. */
static bool take_descriptors(struct connection *connection, uint32_t count,
                             int out[BOOTSTRAP_DESCRIPTORS_MAX])
{
    if (connection->descriptor_count < count) return false;
    memcpy(out, connection->descriptors, count * sizeof *out);
    connection->descriptor_count -= count;
    memmove(connection->descriptors, connection->descriptors + count,
            connection->descriptor_count * sizeof *out);
    return true;
}

static void connection_hand_over(struct connection *connection, enum handshake_event event,
                                 const struct handshake_frame *frame, const uint8_t *unconsumed,
                                 size_t unconsumed_bytes)
{
    struct bootstrap_peer *peer = connection->peer;
    const struct bootstrap_callbacks *callbacks = &connection->bootstrap->options.callbacks;
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX];
    if (!take_descriptors(connection, frame->descriptors, descriptors)) {
        connection_refuse(connection, BOOTSTRAP_DESCRIPTORS);
        return;
    }
    if (event == HANDSHAKE_PARAMETERS) {
        struct bootstrap *bootstrap = connection->bootstrap;
        peer_connected(peer);
        bootstrap->connecting.connecting_peer = peer;
        bootstrap->connecting.unconsumed = unconsumed;
        bootstrap->connecting.unconsumed_bytes = unconsumed_bytes;
        callbacks->connected(peer->owner, peer, frame->data, frame->bytes, descriptors, frame->descriptors);
        bootstrap->connecting.connecting_peer = NULL;
    } else if (callbacks->message) {
        callbacks->message(peer->owner, peer, frame->data, frame->bytes, descriptors, frame->descriptors);
    }
    close_descriptors(descriptors, frame->descriptors); /* those that the callback did not take */
}

/* Handles complete frames at the front of `data` and returns their bytes. */
static size_t take_frames(struct connection *connection, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    while (!connection->ended) {
        struct handshake_frame frame;
        size_t used;
        enum handshake_event event =
            handshake_consume(&connection->handshake, data + at, bytes - at, &used, &frame);
        at += used;
        if (event == HANDSHAKE_NEED_MORE) break;
        if (event == HANDSHAKE_REFUSED) {
            refused(connection);
        } else if (event == HANDSHAKE_PARAMETERS || event == HANDSHAKE_MESSAGE) {
            connection_hand_over(connection, event, &frame, data + at, bytes - at);
        } else if (!connection_flush_handshake(connection)) {
            connection_refuse(connection, BOOTSTRAP_CLOSED_EARLY);
        } else if (event == HANDSHAKE_PROVEN) {
            peer_attach_proven(connection);
            if (!connection->ended && connection->peer->state == PEER_EARLY)
                break; /* bootstrap_connect was not called yet: the parameters wait in the socket */
        }
    }
    return at;
}

static void keep_partial(struct connection *connection, const uint8_t *data, size_t bytes)
{
    if (connection->ended) return;
    if (bytes == 0) {
        drop_partial(connection);
        if (connection->descriptor_count > 0)
            connection_refuse(connection, BOOTSTRAP_DESCRIPTORS); /* descriptors without a frame */
        return;
    }
    if (connection->peer &&
        connection->peer->state == PEER_EARLY) { /* a dialler must wait for our proof before it sends more */
        connection_refuse(connection, BOOTSTRAP_MALFORMED);
        return;
    }
    bool is_unproven = connection->handshake.state < HANDSHAKE_OPEN;
    if (!connection->partial)
        connection->partial =
            weft_alloc_bytes(connection->bootstrap->env,
                             is_unproven ? HANDSHAKE_UNPROVEN_FRAME_MAX : HANDSHAKE_SEALED_FRAME_MAX);
    if (!connection->partial) {
        connection_refuse(connection, BOOTSTRAP_NO_RESOURCE);
        return;
    }
    memcpy(connection->partial, data, bytes);
    connection->partial_bytes = (uint32_t)bytes;
}

/* Descriptors of an unproven connection are closed at once. The accepter's parameters may arrive in the
 * same read as its proof. */
static bool queue_descriptors(struct connection *connection, struct msghdr *message)
{
    const struct handshake *handshake = &connection->handshake;
    bool may = handshake->state >= (handshake->role == HANDSHAKE_DIALER ? HANDSHAKE_PROOF : HANDSHAKE_OPEN);
    bool fine = !(message->msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(control) + i * sizeof descriptor, sizeof descriptor);
            bool is_accepted = fine && may && connection->descriptor_count < BOOTSTRAP_DESCRIPTORS_QUEUED;
            if (is_accepted) connection->descriptors[connection->descriptor_count++] = descriptor;
            else close(descriptor);
            fine = is_accepted;
        }
    }
    return fine;
}

/* The kernel drops descriptors that the process has no space for. */
static bool lacks_descriptors(const struct connection *connection, const struct msghdr *message)
{
    if (!(message->msg_flags & MSG_CTRUNC)) return false;
    const int copy = fcntl(connection->fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) close(copy);
    return copy < 0;
}

/* One recvmsg. Returns whether the socket may hold more. */
static bool read_once(struct connection *connection)
{
    struct bootstrap *bootstrap = connection->bootstrap;
    size_t kept = connection->partial_bytes;
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(BOOTSTRAP_DESCRIPTORS_QUEUED * sizeof(int))];
    } control;
    struct iovec part = {bootstrap->scratch + kept, BOOTSTRAP_SCRATCH_BYTES - HANDSHAKE_SEALED_FRAME_MAX};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
        connection_lost(connection, WEFT_ERR_PEER_LOST,
                        got == 0 ? "closed the connection or ended" : strerror(errno));
        return false;
    }
    if (!queue_descriptors(connection, &message)) {
        connection_refuse(connection, lacks_descriptors(connection, &message) ? BOOTSTRAP_NO_RESOURCE
                                                                              : BOOTSTRAP_DESCRIPTORS);
        return false;
    }
    if (kept > 0) memcpy(bootstrap->scratch, connection->partial, kept);
    drop_partial(connection);
    size_t bytes = kept + (size_t)got, used = take_frames(connection, bootstrap->scratch, bytes);
    keep_partial(connection, bootstrap->scratch + used, bytes - used);
    return !connection->ended;
}

void connection_read(struct connection *connection)
{
    if (connection->peer && connection->peer->state == PEER_EARLY) {
        /* PEER_EARLY polls for hang-up only. */
        connection_lost(connection, WEFT_ERR_PEER_LOST, "closed the connection or ended");
        return;
    }
    read_once(connection);
}

void connection_on_process_exit(struct connection *connection)
{
    /* Messages sent before the process ended are delivered first. A child process may hold the socket
     * open. */
    for (int reads = 0; reads < 64 && connection->peer && connection->peer->state != PEER_EARLY; reads++)
        if (!read_once(connection)) break;
    char text[48];
    snprintf(text, sizeof text, "process %d has ended", (int)connection->pid);
    connection_lost(connection, WEFT_ERR_PEER_LOST, text);
}

/* --- out --- */

bool connection_flush_handshake(struct connection *connection)
{
    struct handshake *handshake = &connection->handshake;
    if (handshake->out_bytes == 0) return true;
    ssize_t sent = send(connection->fd, handshake->out, handshake->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    bool whole = sent == (ssize_t)handshake->out_bytes;
    handshake->out_bytes = 0;
    return whole;
}

static ssize_t out_frame_send(struct connection *connection, struct out_frame *out_frame)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(BOOTSTRAP_DESCRIPTORS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {out_frame->data + out_frame->sent, out_frame->bytes - out_frame->sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    /* descriptors travel with the first byte */
    if (out_frame->descriptor_count > 0 && out_frame->sent == 0) {
        size_t bytes = out_frame->descriptor_count * sizeof(int);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(header), out_frame->descriptors, bytes);
    }
    return sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void connection_write(struct connection *connection)
{
    while (!weft_list_empty(&connection->out_frames)) {
        struct out_frame *out_frame = weft_list_first(&connection->out_frames, struct out_frame, link);
        ssize_t sent = out_frame_send(connection, out_frame);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (sent < 0) {
            /* Messages that the peer sent before still count; reading finds the end of the stream. */
            out_frames_drop(connection);
            shutdown(connection->fd, SHUT_RDWR);
            break;
        }
        out_frame->sent += (uint32_t)sent;
        if (out_frame->sent == out_frame->bytes) out_frame_free(connection, out_frame);
    }
    connection_set_events(connection,
                          weft_list_empty(&connection->out_frames) ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static bool duplicate(const int *descriptors, uint32_t count, int *out)
{
    for (uint32_t i = 0; i < count; i++) {
        out[i] = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 3);
        if (out[i] >= 0) continue;
        int reason = errno;
        close_descriptors(out, i);
        errno = reason;
        return false;
    }
    return true;
}

enum weft_status connection_send(struct connection *connection, const void *data, uint32_t bytes,
                                 const int *descriptors, uint32_t count)
{
    uint32_t frame_bytes = HANDSHAKE_FRAME_BYTES + bytes + WEFT_HMAC_BYTES;
    struct out_frame *out_frame =
        weft_alloc_bytes(connection->bootstrap->env, sizeof *out_frame + frame_bytes);
    if (!out_frame) return WEFT_ERR_NO_MEMORY;
    *out_frame = (struct out_frame){.bytes = frame_bytes, .descriptor_count = count};
    enum weft_status status = WEFT_OK;
    if (!duplicate(descriptors, count, out_frame->descriptors)) {
        status = errno == EBADF ? WEFT_ERR_INVALID : weft_limit_status("what a peer is sent", errno);
        goto err_free;
    }
    status = handshake_seal(&connection->handshake, data, bytes, count, out_frame->data);
    if (status < 0) goto err_close;
    weft_list_append(&connection->out_frames, &out_frame->link);
    connection->unsent_bytes += frame_bytes;
    if (!weft_list_empty(&connection->out_frames)) connection_write(connection);
    return WEFT_OK;

err_close:
    close_descriptors(out_frame->descriptors, count);
err_free:
    weft_free_bytes(connection->bootstrap->env, out_frame);
    return status;
}
