/* coordinator_net.c - the coordinator on sockets: frames in, frames out, a tick every second.
 *
 *     accepted connection -> number -> weft_coordinator_opened
 *     frame -> seal checked, unpack -> weft_coordinator_message       send -> pack, keep, seal -> frame
 *     closed -> suspended (coordinator_resume.c), or weft_coordinator_closed
 *
 * Everything runs on the net thread. A frame that does not decode closes its connection. Before Hello, so
 * does a frame longer than WEFT_LIMIT_HELLO_BYTES. The state machine decides what a closed connection means
 * for the job. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "coordinator/coordinator_net.h"
#include "coordinator/takeover/candidate.h"
#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

#define TICK_NS WEFT_SECONDS(1)
#define BEAT_NS_MAX WEFT_SECONDS(10)
/* between two ticks, since the first report is due within 2 s */
#define FIRST_LOOK_NS (WEFT_WAIT_REASON_FIRST_NS + WEFT_MS(50))

/* ---- addresses to listen on ---- */

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

enum weft_status weft_listen_check(const char *host, const char *secret, struct weft_error *error)
{
    if ((secret && secret[0]) || is_loopback(host)) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_AUTH,
                          "will not listen on %.100s without a job secret: any process that reaches it could "
                          "join; give a secret or listen on 127.0.0.1",
                          host);
}

/* ---- out ---- */

/* Index of the connection, or of the next one. */
static size_t position_of(const struct weft_coordinator_server *server, uint64_t id)
{
    size_t low = 0, high = server->connection_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (server->connections[middle]->id < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct server_connection *coordinator_server_find(const struct weft_coordinator_server *server, uint64_t id)
{
    const size_t at = position_of(server, id);
    const bool found = at < server->connection_count && server->connections[at]->id == id;
    return found ? server->connections[at] : NULL;
}

/* Makes place for one more connection. */
static bool connections_grow(struct weft_coordinator_server *server)
{
    if (server->connection_count < server->connection_capacity) return true;
    const size_t capacity = server->connection_capacity ? 2 * server->connection_capacity : 64;
    struct server_connection **more =
        weft_alloc_array(server->env, capacity, sizeof(struct server_connection *));
    if (!more) return false;
    if (server->connection_count > 0)
        memcpy(more, server->connections, server->connection_count * sizeof(struct server_connection *));
    weft_free_bytes(server->env, server->connections);
    server->connections = more;
    server->connection_capacity = capacity;
    return true;
}

static void on_send_same(void *context, const Weft__Control__Control *message)
{
    struct weft_coordinator_server *server = context;
    if (message && server->same_depth++ > 0) return;
    if (!message && --server->same_depth > 0) return;
    weft_frame_release(server->same_frame);
    server->same = message;
    server->same_frame = NULL;
}

/* The refusal of a newcomer is plain: a newcomer with another secret must be able to read it. */
static enum weft_status seal_frame(struct server_connection *connection,
                                   const Weft__Control__Control *message, struct weft_frame *frame,
                                   size_t *bytes)
{
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_CHALLENGE) {
        memcpy(connection->challenge, message->challenge->nonce.data, sizeof connection->challenge);
        return weft_seal_challenge(&connection->seal, frame->data, *bytes);
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_WELCOME) connection->is_welcomed = true;
    return connection->is_welcomed ? weft_seal_append(&connection->seal, frame->data, bytes) : WEFT_OK;
}

/* A suspended connection keeps the frame until its member resumes. */
static enum weft_status send_frame(struct server_connection *connection,
                                   const Weft__Control__Control *message, struct weft_frame *frame)
{
    size_t bytes = frame->bytes; /* each connection has its own MAC behind the shared bytes */
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_ACK) weft_resume_keep(&connection->resume, frame);
    if (!connection->net) return WEFT_OK;
    WEFT_TRY(seal_frame(connection, message, frame, &bytes));
    WEFT_TRY(weft_net_send(connection->net, frame->data, bytes));
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_WELCOME)
        weft_resume_begin(&connection->resume, message->welcome);
    return WEFT_OK;
}

/* Packs the message and sends it. The packed bytes of a message with many receivers are kept. */
static enum weft_status pack_and_send(struct weft_coordinator_server *server,
                                      struct server_connection *connection,
                                      const Weft__Control__Control *message)
{
    struct weft_frame *frame;
    if (message == server->same) {
        if (!server->same_frame) WEFT_TRY(weft_frame_pack(server->env, message, &server->same_frame));
        return send_frame(connection, message, server->same_frame);
    }
    WEFT_TRY(weft_frame_pack(server->env, message, &frame));
    const enum weft_status status = send_frame(connection, message, frame);
    weft_frame_release(frame);
    return status;
}

void coordinator_server_send(void *context, uint64_t id, const Weft__Control__Control *message)
{
    struct weft_coordinator_server *server = context;
    struct server_connection *connection = coordinator_server_find(server, id);
    if (!connection) return;
    connection->sent_ns = weft_now_ns(server->env);
    const enum weft_status status = pack_and_send(server, connection, message);
    if (status == WEFT_OK || status == WEFT_ERR_CLOSED) return;
    /* The member would wait for this message forever. */
    weft_log(server->env, WEFT_LOG_ERROR, "coordinator",
             "message %d to connection %llu could not be sent: %s", (int)message->body_case,
             (unsigned long long)id, weft_reason_text(status));
    coordinator_server_close(server, id, "a message could not be sent");
}

void coordinator_server_close(void *context, uint64_t id, const char *why)
{
    struct server_connection *connection = coordinator_server_find(context, id);
    if (!connection) return;
    connection->is_final = true;
    if (connection->net) weft_net_close(connection->net);
    else coordinator_resume_drop(connection, why);
}

static void on_ended(void *context, enum weft_status status, const char *text)
{
    struct weft_coordinator_server *server = context;
    /* Members join again when this process, or another one, begins the job again. Until then no process
     * listens here, so they try again. */
    if (status == WEFT_ERR_ROLLED_BACK && server->listener) weft_net_unlisten(server->listener);
    if (server->ended) server->ended(server->context, status, text);
}

static void on_snapshot_begin(void *context, uint64_t step)
{
    struct weft_coordinator_server *server = context;
    server->snapshot_calls.begin(server->context, step);
}

static void on_snapshot_pieces(void *context, const Weft__Control__SnapPieces *pieces)
{
    struct weft_coordinator_server *server = context;
    server->snapshot_calls.pieces(server->context, pieces);
}

static void on_snapshot_part(void *context, const struct weft_snapshot_bytes *bytes)
{
    struct weft_coordinator_server *server = context;
    server->snapshot_calls.part(server->context, bytes);
}

static void on_snapshot_fetch(void *context, uint32_t member, uint32_t rank, uint64_t offset)
{
    struct weft_coordinator_server *server = context;
    server->snapshot_calls.fetch(server->context, member, rank, offset);
}

static void on_snapshot_commit(void *context, uint64_t step)
{
    struct weft_coordinator_server *server = context;
    server->snapshot_calls.commit(server->context, step);
}

/* ---- replaced ---- */

/* Another process coordinates, or may: all members find it. Returns true from then on. */
static bool is_replaced(struct weft_coordinator_server *server)
{
    if (server->is_replaced || !coordinator_records_is_fenced(server->coordinator))
        return server->is_replaced;
    server->is_replaced = true;
    for (size_t i = server->connection_count; i-- > 0;) {
        struct server_connection *connection = server->connections[i];
        if (connection->net) weft_net_close(connection->net);
        else coordinator_server_remove(connection, "another process coordinates the job");
    }
    if (server->replaced) server->replaced(server->context);
    return true;
}

/* ---- in ---- */

static struct server_connection *add_connection(struct weft_coordinator_server *server)
{
    struct server_connection *connection =
        connections_grow(server) ? weft_alloc_zero(server->env, sizeof *connection) : NULL;
    if (!connection) return NULL;
    connection->server = server;
    connection->id = ++server->next_id;
    weft_resume_init(&connection->resume, server->env);
    server->connections[server->connection_count++] = connection;
    return connection;
}

void coordinator_server_opened(void *context, struct weft_net_connection *net)
{
    struct weft_coordinator_server *server = context;
    struct server_connection *connection = is_replaced(server) ? NULL : add_connection(server);
    weft_net_set_context(net, connection); /* NULL: the callbacks ignore the connection */
    if (!connection) {
        weft_net_close(net);
        return;
    }
    connection->net = net;
    weft_coordinator_opened(server->coordinator, connection->id, weft_net_peer_name(net));
}

/* Closes the connection because of what it sent; its member is lost at once. */
static void reject(struct server_connection *connection, const char *why)
{
    struct weft_coordinator_server *server = connection->server;
    weft_log_limited(server->env, &server->rejected, weft_net_peer_name(connection->net), why);
    connection->is_final = true;
    weft_net_close(connection->net);
    weft_coordinator_closed(server->coordinator, connection->id, why);
}

/* A member of an earlier release announces no seal; the coordinator decides whether it is served. */
static bool start_seal(struct server_connection *connection, const Weft__Control__Control *message,
                       const uint8_t *data, size_t bytes)
{
    connection->has_hello = true;
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_HELLO ||
        message->hello->seals != WEFT_SEAL_VERSION)
        return true;
    if (message->hello->process.len == WEFT_PROCESS_IDENTITY_BYTES)
        weft_process_identity_decode(message->hello->process.data, &connection->process);
    return weft_seal_start(&connection->seal, WEFT_SEAL_COORDINATOR, connection->server->secret, data,
                           bytes) == WEFT_OK;
}

/* false: the frame is not the member's next one, and the connection is closed. */
static bool unpack(struct server_connection *connection, const uint8_t *data, size_t *bytes,
                   Weft__Control__Control **message_out)
{
    const bool too_long = !connection->has_hello && *bytes > WEFT_LIMIT_HELLO_BYTES;
    if (connection->is_welcomed && !weft_seal_check(&connection->seal, data, bytes)) {
        reject(connection, WEFT_SEAL_BROKEN_TEXT);
        return false;
    }
    if (!too_long && weft_control_unpack(connection->server->env, data, *bytes, message_out) == WEFT_OK)
        return true;
    char why[80];
    snprintf(why, sizeof why, "it sent a frame of %zu bytes that is no control message", *bytes);
    reject(connection, why);
    return false;
}

/* Messages of the control session itself. Returns whether the message is one. */
static bool take_session_message(struct server_connection *connection, const Weft__Control__Control *message,
                                 const uint8_t *data, size_t bytes)
{
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_RESUME:
        if (connection->has_hello) return false;
        coordinator_resume_accept(connection, message->resume, data, bytes);
        return true;
    case WEFT__CONTROL__CONTROL__BODY_ACK:
        if (!connection->is_welcomed) return false;
        if (!weft_resume_acknowledge(&connection->resume, message->ack->received))
            reject(connection, "it acknowledged frames that were not sent");
        return true;
    case WEFT__CONTROL__CONTROL__BODY_CLOSE:
        if (!connection->is_welcomed) return false;
        if (coordinator_resume_received(connection, message, bytes))
            coordinator_resume_acknowledge(connection->server, connection->id);
        return true;
    default: return false;
    }
}

static void on_frame(void *context, struct weft_net_connection *net, const uint8_t *data, size_t bytes)
{
    struct server_connection *connection = weft_net_context(net);
    Weft__Control__Control *message;
    if (!connection || is_replaced(connection->server)) return;
    struct weft_coordinator_server *server = connection->server;
    if (!unpack(connection, data, &bytes, &message)) return;
    const uint64_t id = connection->id;
    if (take_session_message(connection, message, data, bytes)) {
        weft_control_free(server->env, message);
        return;
    }
    if (!connection->has_hello && !start_seal(connection, message, data, bytes)) {
        weft_control_free(server->env, message);
        reject(connection, "no memory for the key of its connection");
        return;
    }
    const bool ack_is_due =
        connection->is_welcomed && coordinator_resume_received(connection, message, bytes);
    weft_coordinator_message(server->coordinator, id, message);
    weft_control_free(server->env, message);
    if (ack_is_due) coordinator_resume_acknowledge(server, id);
    (void)is_replaced(server); /* its decision could not be written */
}

void coordinator_server_remove(struct server_connection *connection, const char *why)
{
    struct weft_coordinator_server *server = connection->server;
    const size_t at = position_of(server, connection->id);
    server->connection_count--;
    memmove(&server->connections[at], &server->connections[at + 1],
            (server->connection_count - at) * sizeof(struct server_connection *));
    weft_coordinator_closed(server->coordinator, connection->id, why);
    weft_seal_wipe(&connection->seal);
    weft_resume_fini(&connection->resume);
    weft_free_bytes(server->env, connection);
}

static void on_closed(void *context, struct weft_net_connection *net, enum weft_status reason,
                      const char *text)
{
    struct server_connection *connection = weft_net_context(net);
    if (!connection) return;
    struct weft_coordinator_server *server = connection->server;
    const uint64_t id = connection->id;
    const char *why = reason == WEFT_ERR_PEER_LOST ? "connection closed" : text;
    connection->net = NULL;
    const bool is_over = is_replaced(server); /* removes connections without a socket */
    if (!coordinator_server_find(server, id)) return;
    if (reason == WEFT_ERR_PEER_LOST && !is_over && coordinator_resume_suspend(connection, why)) return;
    coordinator_server_remove(connection, why);
}

/* Members that receive nothing end by their own clocks: an idle coordinator must send, too. */
static void send_beats(struct weft_coordinator_server *server, uint64_t now_ns)
{
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    heartbeat.time_ns = now_ns;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    for (size_t i = server->connection_count; i-- > 0;) { /* a failed send may remove its connection */
        if (i >= server->connection_count) continue;
        const struct server_connection *connection = server->connections[i];
        if (connection->is_welcomed && connection->net &&
            weft_elapsed_ns(connection->sent_ns, now_ns) + TICK_NS / 2 >= server->beat_ns)
            coordinator_server_send(server, connection->id, &message);
    }
}

static void on_tick(void *context)
{
    struct weft_coordinator_server *server = context;
    uint64_t now_ns = weft_now_ns(server->env), gap_ns = weft_elapsed_ns(server->ticked_ns, now_ns);
    server->ticked_ns = now_ns;
    if (is_replaced(server)) return;
    if (server->reign) coordinator_reign_renew(server->reign);
    if (gap_ns > 2 * TICK_NS) weft_coordinator_paused(server->coordinator, gap_ns - TICK_NS);
    weft_coordinator_tick(server->coordinator);
    send_beats(server, now_ns);
    (void)is_replaced(server);
    weft_log_limit_flush(server->env, &server->rejected);
}

static void on_first_look(void *context)
{
    struct weft_coordinator_server *server = context;
    if (is_replaced(server)) return;
    weft_coordinator_tick(server->coordinator);
}

/* ---- life ---- */

/* Connections that have not joined may use a quarter of the descriptors. The members, the data path and HTTP
 * need the others. */
static uint32_t newcomers_max(uint32_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 4 >= wanted) return wanted;
    return limit.rlim_cur / 4 > 0 ? (uint32_t)(limit.rlim_cur / 4) : 1;
}

static void set_address(struct weft_coordinator *coordinator, const char *host, uint16_t port)
{
    const bool is_v6 = strchr(host, ':') != NULL;
    snprintf(coordinator->process.address, sizeof coordinator->process.address,
             is_v6 ? " at [%.255s]:%u" : " at %.255s:%u", host, port);
}

static uint64_t beat_period(uint64_t heartbeat_ns)
{
    const uint64_t beat_ns = heartbeat_ns / 4;
    return beat_ns < TICK_NS ? TICK_NS : beat_ns < BEAT_NS_MAX ? beat_ns : BEAT_NS_MAX;
}

const struct weft_net_handler coordinator_server_handler = {
    .opened = coordinator_server_opened,
    .frame = on_frame,
    .closed = on_closed,
    .frame_bytes_max = WEFT_LIMIT_FRAME_BYTES + WEFT_SEAL_BYTES,
    .send_bytes_max = 4 * WEFT_LIMIT_FRAME_BYTES,
    .connections_max = WEFT_LIMIT_WORKERS + WEFT_LIMIT_SHARDS + 1024};

/* What the records of a store have no place for. */
static enum weft_status check_store(const struct weft_coordinator_options *options, struct weft_error *error)
{
    if (options->copies == 0)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "server.store needs server.copies=1: the shard of a lost coordinator is lost, too");
    if (options->resume_ns == 0)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "server.store needs server.resume above 0");
    return WEFT_OK;
}

static void set_options(struct weft_coordinator_server *server,
                        const struct weft_coordinator_options *options,
                        struct weft_coordinator_options *inner)
{
    server->ended = options->ended;
    server->replaced = options->replaced;
    server->snapshot_calls.begin = options->snapshot_calls.begin;
    server->snapshot_calls.pieces = options->snapshot_calls.pieces;
    server->snapshot_calls.commit = options->snapshot_calls.commit;
    server->snapshot_calls.part = options->snapshot_calls.part;
    server->snapshot_calls.fetch = options->snapshot_calls.fetch;
    server->context = options->context;
    server->beat_ns = beat_period(options->heartbeat_ns);
    *inner = *options;
    if (options->store) server->beat_ns = TICK_NS;
    inner->process.pid = (uint64_t)getpid();
    inner->newcomers_max = newcomers_max(options->newcomers_max);
    inner->beat_ns = server->beat_ns;
    inner->net.send = coordinator_server_send;
    inner->net.send_same = on_send_same;
    inner->net.close = coordinator_server_close;
    inner->ended = on_ended;
    inner->snapshot_calls.begin = on_snapshot_begin;
    inner->snapshot_calls.pieces = on_snapshot_pieces;
    inner->snapshot_calls.commit = on_snapshot_commit;
    inner->snapshot_calls.part = options->snapshot_calls.part ? on_snapshot_part : NULL;
    inner->snapshot_calls.fetch = on_snapshot_fetch;
    inner->context = server;
}

enum weft_status coordinator_server_create(struct weft_env *env, struct weft_net *net,
                                           const struct weft_coordinator_options *options,
                                           struct weft_coordinator_server **out, struct weft_error *error)
{
    if (options->store) WEFT_TRY(check_store(options, error));
    struct weft_coordinator_server *server = weft_alloc_zero(env, sizeof *server);
    if (!server) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a coordinator");
    struct weft_coordinator_options inner;
    char own_host[65] = "";
    const bool with_secret = options->secret && options->secret[0];
    server->env = env;
    server->net = net;
    server->rejected = (struct weft_log_limit){.component = "coordinator", .burst = 8};
    server->ticked_ns = weft_now_ns(env);
    server->secret = with_secret ? weft_alloc_text(env, options->secret) : NULL;
    if (with_secret && !server->secret) {
        weft_free_bytes(env, server);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a coordinator");
    }
    if (gethostname(own_host, sizeof own_host - 1) != 0) own_host[0] = 0;
    set_options(server, options, &inner);
    inner.process.host = own_host;
    enum weft_status status = weft_coordinator_create(env, &inner, &server->coordinator);
    if (status == WEFT_OK) {
        *out = server;
        return WEFT_OK;
    }
    weft_error_set(error, status,
                   "cannot coordinate job %.100s with %u workers and %u shards: %s (1 to %u workers, up "
                   "to %u shards)",
                   options->job ? options->job : "(no name)", options->workers, options->shards,
                   weft_reason_text(status), WEFT_LIMIT_WORKERS, WEFT_LIMIT_SHARDS);
    weft_free_bytes(env, server->secret);
    weft_free_bytes(env, server);
    return status;
}

enum weft_status coordinator_server_begin(struct weft_coordinator_server *server, const char *host,
                                          uint16_t port, struct weft_error *error)
{
    set_address(server->coordinator, host, port);
    enum weft_status status = weft_net_timer_periodic(server->net, TICK_NS, on_tick, server);
    if (status == WEFT_OK) status = weft_net_timer_once(server->net, FIRST_LOOK_NS, on_first_look, server);
    if (status != WEFT_OK) return weft_error_set(error, status, "no memory for the coordinator's timer");
    return WEFT_OK;
}

enum weft_status weft_coordinator_server_start(struct weft_env *env, struct weft_net *net, const char *host,
                                               uint16_t port, const struct weft_coordinator_options *options,
                                               uint16_t *port_out, struct weft_coordinator_server **out,
                                               struct weft_error *error)
{
    struct weft_coordinator_server *server;
    uint16_t listening_port;
    WEFT_TRY(weft_listen_check(host, options->secret, error));
    WEFT_TRY(coordinator_server_create(env, net, options, &server, error));
    enum weft_status status = weft_net_listen(net, host, port, &coordinator_server_handler, server,
                                              &listening_port, &server->listener, error);
    if (status != WEFT_OK) {
        weft_coordinator_server_free(server);
        return status;
    }
    if (port_out) *port_out = listening_port;
    *out = server; /* the listener refers to it: the caller frees it after the net, also on failure */
    if (options->store)
        WEFT_TRY(coordinator_candidate_first(
            server, options->store, options->reachable ? options->reachable : host, listening_port, error));
    return coordinator_server_begin(server, host, listening_port, error);
}

enum weft_status coordinator_server_adopt(struct weft_coordinator_server *server,
                                          struct coordinator_member *member, bool is_suspected)
{
    Weft__Control__Welcome welcome = WEFT__CONTROL__WELCOME__INIT;
    struct server_connection *connection = add_connection(server);
    if (!connection) return WEFT_ERR_NO_MEMORY;
    connection->has_hello = connection->is_welcomed = connection->is_awaited = true;
    connection->is_suspected = is_suspected;
    connection->suspended_ns = weft_now_ns(server->env);
    snprintf(connection->why, sizeof connection->why, "it has not resumed with the next coordinator");
    if (member->record.process_bytes)
        weft_process_identity_decode(member->record.process, &connection->process);
    welcome.member = member->member;
    welcome.incarnation = member->incarnation;
    welcome.resume_ns = server->coordinator->options.resume_ns;
    welcome.resume_key = (ProtobufCBinaryData){sizeof member->record.resume_key, member->record.resume_key};
    weft_resume_begin(&connection->resume, &welcome);
    return coordinator_adopt(server->coordinator, connection->id, member);
}

uint32_t weft_coordinator_server_connections(const struct weft_coordinator_server *server)
{
    uint32_t count = 0;
    for (size_t i = 0; i < server->coordinator->membership.connection_count; i++)
        count += server->coordinator->membership.connections[i]->state != CONNECTION_OBSERVER;
    return count;
}

struct weft_coordinator *weft_coordinator_server_inner(struct weft_coordinator_server *server)
{
    return server->coordinator;
}

char *weft_coordinator_server_status_json(struct weft_coordinator_server *server)
{
    return weft_coordinator_status_json(server->coordinator);
}

void weft_coordinator_server_stats(const struct weft_coordinator_server *server,
                                   struct weft_coordinator_stats *stats_out)
{
    weft_coordinator_stats(server->coordinator, stats_out);
}

struct weft_member_report *weft_coordinator_server_reports(struct weft_coordinator_server *server,
                                                           uint32_t *count_out)
{
    const uint32_t capacity = weft_coordinator_member_count(server->coordinator);
    struct weft_member_report *reports =
        capacity > 0 ? weft_alloc_array(server->env, capacity, sizeof *reports) : NULL;
    *count_out = reports ? weft_coordinator_reports(server->coordinator, reports, capacity) : 0;
    return reports;
}

void weft_coordinator_server_describe_stall(const struct weft_coordinator_server *server, char *out,
                                            size_t out_bytes)
{
    snprintf(out, out_bytes, "%s", server->coordinator->stall.text);
}

void weft_coordinator_server_describe_active(const struct weft_coordinator_server *server, char *out,
                                             size_t out_bytes)
{
    coordinator_describe_active(server->coordinator, out, out_bytes);
}

void weft_coordinator_server_free(struct weft_coordinator_server *server)
{
    if (!server) return;
    server->ended = NULL;                          /* its context may be freed */
    server->coordinator->records.is_fenced = true; /* nothing is decided any more */
    while (server->connection_count > 0) { /* suspended ones: the net has ended the others */
        WEFT_ASSERT(!server->connections[0]->net);
        coordinator_server_remove(server->connections[0], "the coordinator has ended");
    }
    weft_coordinator_free(server->coordinator);
    coordinator_reign_close(server->reign);
    weft_free_bytes(server->env, server->secret);
    weft_free_bytes(server->env, server->connections);
    weft_free_bytes(server->env, server);
}
