/* meet_connection.c - one socket: frames in, frames out, descriptors beside them.
 *
 * Reading goes through the endpoint's one scratch buffer; only the rest of an unfinished frame is kept, and memory for it
 * is taken when there is such a rest (a stranger's fits the stack of one hello). Strangers get answers of at most one
 * frame that must fit into the socket's empty buffer: so a stranger never makes us queue. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/core/meet_internal.h"

static void close_descriptors(int *descriptors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (descriptors[i] >= 0) close(descriptors[i]);
}

/* --- life --- */

/* A host that falls silent is noticed by the probes of an idle connection, and by unacknowledged bytes of a busy one. */
static void set_liveness(struct connection *connection)
{
    int fd = connection->fd, on = 1;
    int seconds = (int)(connection->meet->options.liveness_ns / 1000000000u), idle = seconds / 2,
        interval = seconds - idle;
    unsigned timeout_ms = (unsigned)seconds * 1000 - 500; /* so that the probe at `seconds` finds it passed */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

struct connection *connection_make(struct meet *meet, int fd, enum handshake_role role, uint32_t peer_id)
{
    uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES];
    struct connection *connection = weft_alloc_zero(meet->env, sizeof *connection);
    if (!connection) {
        close(fd);
        return NULL;
    }
    connection->meet = meet;
    connection->socket.kind = SOURCE_SOCKET;
    connection->process.kind = SOURCE_PROCESS;
    connection->fd = fd;
    connection->process_fd = -1;
    weft_list_init(&connection->link);
    weft_list_init(&connection->letters);
    snprintf(connection->name, sizeof connection->name, "a stranger");
    weft_random_bytes(meet->env, challenge, sizeof challenge);
    handshake_init(&connection->handshake, &meet->self, role, peer_id, challenge);
    if (meet->options.family == MEET_TCP) set_liveness(connection);
    return connection;
}

enum meet_reason connection_know_peer(struct connection *connection)
{
    struct meet *meet = connection->meet;
    if (meet->options.family == MEET_TCP) {
        struct meet_where where = {.bytes = sizeof where.storage};
        if (getpeername(connection->fd, (struct sockaddr *)&where.storage, &where.bytes) != 0)
            return MEET_HUNG_UP;
        meet_where_name(&where, connection->name, sizeof connection->name);
        return meet->self.has_secret || meet_where_is_local(&where) ? 0 : MEET_WRONG_USER;
    }
    struct ucred who;
    socklen_t bytes = sizeof who;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return MEET_HUNG_UP;
    connection->pid = who.pid;
    snprintf(connection->name, sizeof connection->name, "process %d of user %u", (int)who.pid,
             (unsigned)who.uid);
    return meet->self.has_secret || who.uid == geteuid() ? 0 : MEET_WRONG_USER;
}

/* The socket alone does not tell of a death when a child of the dead process holds a copy of it. */
void connection_watch_process(struct connection *connection)
{
    if (connection->pid <= 0 || connection->pid == getpid()) return;
    connection->process_fd = (int)syscall(SYS_pidfd_open, connection->pid, 0);
    if (connection->process_fd < 0) return;
    if (meet_watch(connection->meet, connection->process_fd, &connection->process, EPOLLIN) >= 0) return;
    close(connection->process_fd);
    connection->process_fd = -1;
}

void connection_want(struct connection *connection, uint32_t events)
{
    struct epoll_event interest = {.events = events, .data.ptr = &connection->socket};
    if (connection->interest == events || connection->ended) return;
    connection->interest = events;
    epoll_ctl(connection->meet->epoll_fd, EPOLL_CTL_MOD, connection->fd, &interest);
}

static void letter_free(struct connection *connection, struct letter *letter)
{
    weft_list_remove(&letter->link);
    connection->unsent_bytes -= letter->bytes;
    close_descriptors(letter->descriptors, letter->descriptor_count);
    weft_free_bytes(connection->meet->env, letter);
}

static void drop_letters(struct connection *connection)
{
    while (!weft_list_empty(&connection->letters))
        letter_free(connection, weft_list_first(&connection->letters, struct letter, link));
}

static void drop_partial(struct connection *connection)
{
    weft_free_bytes(connection->meet->env, connection->partial);
    connection->partial = NULL;
    connection->partial_bytes = 0;
}

int connection_take(struct connection *connection)
{
    int fd = connection->fd;
    epoll_ctl(connection->meet->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    connection->fd = -1;
    connection_close(connection);
    return fd;
}

void connection_close(struct connection *connection)
{
    struct meet *meet = connection->meet;
    if (connection->ended) return;
    connection->ended = true;
    if (connection->handshake.role == HANDSHAKE_ACCEPTER && !connection->peer) meet->stats.half_open--;
    if (connection->peer) connection->peer->connection = NULL;
    connection->peer = NULL;
    /* Before closing: a copy of the descriptor in a child would keep it in epoll. */
    if (connection->fd >= 0) {
        epoll_ctl(meet->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
        close(connection->fd);
    }
    if (connection->process_fd >= 0) {
        epoll_ctl(meet->epoll_fd, EPOLL_CTL_DEL, connection->process_fd, NULL);
        close(connection->process_fd);
    }
    drop_letters(connection);
    drop_partial(connection);
    close_descriptors(connection->descriptors, connection->descriptor_count);
    handshake_fini(&connection->handshake);
    weft_list_remove(&connection->link);
    weft_list_append(&meet->dead, &connection->link);
    if (!meet->progressing) connections_free_dead(meet);
}

void connections_free_dead(struct meet *meet)
{
    while (!weft_list_empty(&meet->dead)) {
        struct connection *connection = weft_list_first(&meet->dead, struct connection, link);
        weft_list_remove(&connection->link);
        weft_free_bytes(meet->env, connection);
    }
}

/* --- ends --- */

static void end(struct connection *connection, enum meet_reason reason, bool there, enum weft_status status,
                const char *text)
{
    struct meet_peer *peer = connection->peer;
    char name[sizeof connection->name];
    memcpy(name, connection->name, sizeof name);
    struct meet *meet = connection->meet;
    connection_close(connection);
    if (reason && !there) meet_count_refusal(meet, reason, name);
    if (peer) peer_connection_ended(peer, reason, there, status, text);
}

void connection_refuse(struct connection *connection, enum meet_reason reason)
{
    if (connection->ended) return;
    connection->handshake.out_bytes = 0;
    handshake_refuse(&connection->handshake, reason);
    if (weft_list_empty(&connection->letters) && !connection->connecting) connection_say(connection);
    end(connection, reason, false, WEFT_OK, meet_reason_text(reason));
}

void connection_lost(struct connection *connection, enum weft_status status, const char *text)
{
    if (connection->ended) return;
    bool stranger = !connection->peer;
    end(connection, stranger ? MEET_HUNG_UP : 0, false, status, text);
}

/* The handshake said that it is over: here (tell the other) or there. */
static void refused(struct connection *connection)
{
    struct handshake *handshake = &connection->handshake;
    if (!handshake->refused_there && weft_list_empty(&connection->letters)) connection_say(connection);
    end(connection, handshake->reason, handshake->refused_there, WEFT_OK,
        meet_reason_text(handshake->reason));
}

/* --- in --- */

/* The descriptors that belong to a frame leave the queue; false: they did not come with it. */
static bool take_descriptors(struct connection *connection, uint32_t count, int out[MEET_DESCRIPTORS_MAX])
{
    if (connection->descriptor_count < count) return false;
    memcpy(out, connection->descriptors, count * sizeof *out);
    connection->descriptor_count -= count;
    memmove(connection->descriptors, connection->descriptors + count,
            connection->descriptor_count * sizeof *out);
    return true;
}

static void hand_over(struct connection *connection, enum handshake_event event,
                      const struct handshake_frame *frame, const uint8_t *rest, size_t rest_bytes)
{
    struct meet_peer *peer = connection->peer;
    const struct meet_callbacks *callbacks = &connection->meet->options.callbacks;
    int descriptors[MEET_DESCRIPTORS_MAX];
    if (!take_descriptors(connection, frame->descriptors, descriptors)) {
        connection_refuse(connection, MEET_DESCRIPTORS);
        return;
    }
    if (event == HANDSHAKE_PARAMETERS) {
        struct meet *meet = connection->meet;
        peer_met(peer);
        meet->met_now = peer;
        meet->rest = rest;
        meet->rest_bytes = rest_bytes;
        callbacks->met(peer->owner, peer, frame->data, frame->bytes, descriptors, frame->descriptors);
        meet->met_now = NULL;
    } else if (callbacks->message) {
        callbacks->message(peer->owner, peer, frame->data, frame->bytes, descriptors, frame->descriptors);
    }
    close_descriptors(descriptors, frame->descriptors); /* those that were not taken */
}

/* Frames from the front of `data`; returns the bytes that are done with, short when the connection ended or must wait. */
static size_t take_frames(struct connection *connection, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    while (!connection->ended) {
        struct handshake_frame frame;
        size_t used;
        enum handshake_event event =
            handshake_take(&connection->handshake, data + at, bytes - at, &used, &frame);
        at += used;
        if (event == HANDSHAKE_MORE) break;
        if (event == HANDSHAKE_REFUSED) {
            refused(connection);
        } else if (event == HANDSHAKE_PARAMETERS || event == HANDSHAKE_MESSAGE) {
            hand_over(connection, event, &frame, data + at, bytes - at);
        } else if (!connection_say(connection)) {
            connection_refuse(connection, MEET_HUNG_UP);
        } else if (event == HANDSHAKE_PROVEN) {
            peer_proven(connection);
            if (!connection->ended && connection->peer->state == PEER_EARLY)
                break; /* nobody to give his parameters to */
        }
    }
    return at;
}

static void keep_rest(struct connection *connection, const uint8_t *data, size_t bytes)
{
    if (connection->ended) return;
    if (bytes == 0) {
        drop_partial(connection);
        if (connection->descriptor_count > 0)
            connection_refuse(connection, MEET_DESCRIPTORS); /* they belong to no frame */
        return;
    }
    if (connection->peer &&
        connection->peer->state == PEER_EARLY) { /* who proves himself waits for our proof first */
        connection_refuse(connection, MEET_GARBAGE);
        return;
    }
    bool stranger = connection->handshake.state < HANDSHAKE_OPEN;
    if (!connection->partial)
        connection->partial =
            weft_alloc_bytes(connection->meet->env, stranger ? HANDSHAKE_STRANGER_MAX : HANDSHAKE_SEALED_MAX);
    if (!connection->partial) {
        connection_refuse(connection, MEET_NO_RESOURCE);
        return;
    }
    memcpy(connection->partial, data, bytes);
    connection->partial_bytes = (uint32_t)bytes;
}

/* Those of a stranger are closed unseen. What the accepter sends with its parameters may be read together with its proof. */
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
            bool room = fine && may && connection->descriptor_count < MEET_DESCRIPTORS_QUEUED;
            if (room) connection->descriptors[connection->descriptor_count++] = descriptor;
            else close(descriptor);
            fine = room;
        }
    }
    return fine;
}

/* One read. Returns whether there may be more. */
static bool read_once(struct connection *connection)
{
    struct meet *meet = connection->meet;
    size_t kept = connection->partial_bytes;
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(MEET_DESCRIPTORS_QUEUED * sizeof(int))];
    } control;
    struct iovec part = {meet->scratch + kept, MEET_SCRATCH_BYTES - HANDSHAKE_SEALED_MAX};
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
        connection_refuse(connection, MEET_DESCRIPTORS);
        return false;
    }
    if (kept > 0) memcpy(meet->scratch, connection->partial, kept);
    drop_partial(connection);
    size_t bytes = kept + (size_t)got, used = take_frames(connection, meet->scratch, bytes);
    keep_rest(connection, meet->scratch + used, bytes - used);
    return !connection->ended;
}

void connection_read(struct connection *connection)
{
    if (connection->peer && connection->peer->state == PEER_EARLY) {
        /* Only asked for hang-ups. */
        connection_lost(connection, WEFT_ERR_PEER_LOST, "closed the connection or ended");
        return;
    }
    read_once(connection);
}

void connection_process_ended(struct connection *connection)
{
    /* What it had said before comes first; a child may hold the socket open. */
    for (int reads = 0; reads < 64 && connection->peer && connection->peer->state != PEER_EARLY; reads++)
        if (!read_once(connection)) break;
    char text[48];
    snprintf(text, sizeof text, "process %d has ended", (int)connection->pid);
    connection_lost(connection, WEFT_ERR_PEER_LOST, text);
}

/* --- out --- */

bool connection_say(struct connection *connection)
{
    struct handshake *handshake = &connection->handshake;
    if (handshake->out_bytes == 0) return true;
    ssize_t sent = send(connection->fd, handshake->out, handshake->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    bool whole = sent == (ssize_t)handshake->out_bytes;
    handshake->out_bytes = 0;
    return whole;
}

static ssize_t send_letter(struct connection *connection, struct letter *letter)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(MEET_DESCRIPTORS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {letter->data + letter->sent, letter->bytes - letter->sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (letter->descriptor_count > 0 && letter->sent == 0) { /* they go with the first byte */
        size_t bytes = letter->descriptor_count * sizeof(int);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(header), letter->descriptors, bytes);
    }
    return sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void connection_write(struct connection *connection)
{
    while (!weft_list_empty(&connection->letters)) {
        struct letter *letter = weft_list_first(&connection->letters, struct letter, link);
        ssize_t sent = send_letter(connection, letter);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (sent < 0) {
            /* What he has sent before still counts: reading comes to the end by itself. */
            drop_letters(connection);
            shutdown(connection->fd, SHUT_RDWR);
            break;
        }
        letter->sent += (uint32_t)sent;
        if (letter->sent == letter->bytes) letter_free(connection, letter);
    }
    connection_want(connection, weft_list_empty(&connection->letters) ? EPOLLIN : EPOLLIN | EPOLLOUT);
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
    struct letter *letter = weft_alloc_bytes(connection->meet->env, sizeof *letter + frame_bytes);
    if (!letter) return WEFT_ERR_NO_MEMORY;
    *letter = (struct letter){.bytes = frame_bytes, .descriptor_count = count};
    enum weft_status status = WEFT_OK;
    if (!duplicate(descriptors, count, letter->descriptors)) {
        status = errno == EBADF ? WEFT_ERR_INVALID : weft_limit_of("what a peer is sent", errno);
        goto err_free;
    }
    status = handshake_seal(&connection->handshake, data, bytes, count, letter->data);
    if (status < 0) goto err_close;
    weft_list_append(&connection->letters, &letter->link);
    connection->unsent_bytes += frame_bytes;
    if (!weft_list_empty(&connection->letters)) connection_write(connection);
    return WEFT_OK;

err_close:
    close_descriptors(letter->descriptors, count);
err_free:
    weft_free_bytes(connection->meet->env, letter);
    return status;
}
