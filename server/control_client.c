/* control_client.c - a process's end of the control connection: it joins the job and sends heartbeats.
 *
 *     connect -> Challenge -> Hello (with proof) -> Welcome (its proof checked) -> messages both ways
 *     closed  -> replaced (coordinator/control_link.h), or `closed`
 *
 * weftd uses it as a shard, `weft status` as an observer. The connection belongs to the net thread. Every end
 * of the connection (refusal, lost coordinator, deadline, own leave) calls `closed` exactly once with a
 * status and a sentence. A heartbeat is sent after a quarter of the allowed silence without another message.
 * The ticker lives as long as the net, so the client is freed after the net. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"

#define LEAVE_NS WEFT_SECONDS(5) /* for the coordinator's Ack of Leave */
#define TICK_NS WEFT_SECONDS(5) /* upper bound of the tick: limits the wake-ups of an idle process */

enum client_state { CLIENT_CONNECTING = 1, CLIENT_HELLO_SENT, CLIENT_JOINED, CLIENT_LEAVING, CLIENT_CLOSED };

struct weft_control_client {
    struct weft_env *env;
    struct weft_net *net;
    struct weft_control_client_options options; /* job, secret: point at the copies below */
    char *job, *secret;
    char address[300]; /* "host:port" of the coordinator */
    char coordinator_host[256], candidate[256], zone[WEFT_LIMIT_NAME_BYTES + 1];
    char name[WEFT_LIMIT_NAME_BYTES + 1], host[65];
    bool opened; /* connected; before that the net checks the deadline */
    enum client_state state;
    uint8_t nonce[WEFT_NONCE_BYTES];
    struct weft_control_link link;
    struct weft_silence silence; /* of the coordinator, after Welcome */
    bool awaits_reply; /* a Heartbeat with wait_reason = true has no reply yet */
    uint64_t join_deadline_ns, tick_ns, heartbeat_ns, sent_ns;
    struct weft_error end; /* first reason of the end */
};

/* ---- sending ---- */

enum weft_status weft_control_client_send(struct weft_control_client *client,
                                          const Weft__Control__Control *message)
{
    client->sent_ns = weft_now_ns(client->env);
    return weft_control_link_send(&client->link, message);
}

enum weft_status weft_control_client_abort(struct weft_control_client *client, enum weft_status status,
                                           const char *text)
{
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    abort.status = status;
    abort.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT;
    message.abort = &abort;
    return weft_control_client_send(client, &message);
}

/* The coordinator has not acknowledged Leave. */
static void on_leave_limit(void *context)
{
    struct weft_control_client *client = context;
    if (client->state == CLIENT_LEAVING) weft_control_link_close(&client->link);
}

enum weft_status weft_control_client_leave(struct weft_control_client *client, const char *text)
{
    Weft__Control__Leave leave = WEFT__CONTROL__LEAVE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    leave.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_LEAVE;
    message.leave = &leave;
    if (!weft_control_link_is_open(&client->link)) return WEFT_ERR_CLOSED;
    const bool has_joined = client->state == CLIENT_JOINED;
    client->link.candidates.count = 0; /* it continues with no other coordinator */
    enum weft_status status = has_joined ? weft_control_client_send(client, &message) : WEFT_OK;
    client->state = CLIENT_LEAVING;
    if (has_joined && weft_net_timer_once(client->net, LEAVE_NS, on_leave_limit, client) == WEFT_OK)
        weft_control_link_leave(&client->link, true);
    else weft_control_link_close(&client->link);
    return status;
}

/* Closes the connection; `closed` will report this status and text unless an earlier reason is set. */
static void fail(struct weft_control_client *client, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct weft_control_client *client, enum weft_status status, const char *format, ...)
{
    char text[sizeof client->end.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    weft_error_set(&client->end, status, "%s", text);
    weft_control_link_close(&client->link);
}

/* ---- joining ---- */

static void on_tick(void *context);

static void send_hello(struct weft_control_client *client, const Weft__Control__Challenge *challenge)
{
    uint8_t proof[WEFT_PROOF_BYTES], process[WEFT_PROCESS_IDENTITY_BYTES];
    char own_text[WEFT_WIRE_RANGE_TEXT_BYTES], text[WEFT_WIRE_RANGE_TEXT_BYTES];
    const struct weft_wire_range own = weft_wire_range_own(client->options.wire_newest),
                                 its = weft_wire_range_of_challenge(challenge);
    if (weft_wire_range_common(own, its) == 0) {
        fail(client, WEFT_ERR_VERSION,
             "the coordinator at %s speaks wire version %s (weft %.40s), this program %s (weft %s): use "
             "releases of weft that are at most one wire version apart",
             client->address, weft_wire_range_text(its, text), challenge->weft_version,
             weft_wire_range_text(own, own_text), weft_proto_release());
        return;
    }
    if (client->secret && !challenge->auth_required) {
        fail(client, WEFT_ERR_AUTH, "the coordinator at %s does not know this job's secret",
                client->address);
        return;
    }
    if (client->secret && challenge->seals < WEFT_SEAL_VERSION) {
        fail(client, WEFT_ERR_VERSION,
             "the coordinator at %s (weft %.40s) does not authenticate its control frames, as a job with a "
             "secret requires (weft %s here): use one release of weft in a job",
             client->address, challenge->weft_version, weft_proto_release());
        return;
    }
    Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    weft_control_link_challenged(&client->link, challenge);
    weft_wire_range_hello(own, weft_wire_range_common(own, its), &hello);
    hello.weft_version = (char *)weft_proto_release();
    hello.job = client->job;
    hello.role = client->options.role;
    hello.name = client->name;
    hello.wanted_index = client->options.wanted_index;
    hello.host = client->host;
    hello.pid = (uint64_t)getpid();
    hello.endpoints = client->options.endpoints;
    hello.states = hello.frees = hello.progress = hello.groups = hello.slots =
        client->options.role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    hello.chunk_runs = hello.takeovers = true;
    hello.candidate = client->candidate;
    hello.zone = client->zone;
    hello.moves = hello.additions = hello.rollback = client->options.role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    hello.joins = client->options.joins;
    hello.resume = client->options.role != WEFT__CONTROL__ROLE__ROLE_OBSERVER;
    hello.process = (ProtobufCBinaryData){weft_process_identity_own(client->env, process), process};
    hello.snapshots = client->options.has_snapshots;
    hello.nonce = (ProtobufCBinaryData){WEFT_NONCE_BYTES, client->nonce};
    hello.seals = challenge->seals < WEFT_SEAL_VERSION ? 0 : WEFT_SEAL_VERSION;
    if (client->secret) {
        enum weft_status status = weft_proof_make(client->secret, WEFT_PROOF_JOIN, challenge->nonce.data,
                                                  client->job, client->name, proof);
        if (status != WEFT_OK) {
            fail(client, status, "cannot prove the job secret: %s", weft_reason_text(status));
            return;
        }
        hello.proof = (ProtobufCBinaryData){sizeof proof, proof};
    }
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HELLO;
    message.hello = &hello;
    enum weft_status status = weft_control_client_send(client, &message);
    if (status != WEFT_OK)
        fail(client, status, "cannot send Hello to the coordinator at %s: %s", client->address,
                weft_reason_text(status));
    client->state = CLIENT_HELLO_SENT;
}

/* ---- which members are missing ---- */

static void request_wait_reason(void *context)
{
    struct weft_control_client *client = context;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    if (client->state != CLIENT_JOINED) return;
    heartbeat.time_ns = weft_now_ns(client->env);
    heartbeat.wait_reason = true;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    client->awaits_reply = weft_control_client_send(client, &message) == WEFT_OK;
}

/* Returns whether the message replies to request_wait_reason. An empty text means that the job has begun:
 * no further request is sent. */
static bool accept_wait_reason(struct weft_control_client *client, const Weft__Control__Control *message)
{
    if (!client->awaits_reply || message->body_case != WEFT__CONTROL__CONTROL__BODY_HEARTBEAT ||
        !message->heartbeat->wait_reason)
        return false;
    client->awaits_reply = false;
    if (!message->heartbeat->text[0]) return true;
    client->options.awaited(client->options.context, message->heartbeat->text);
    if (weft_net_timer_once(client->net, WEFT_WAIT_REASON_PERIOD_NS, request_wait_reason, client) != WEFT_OK)
        weft_log(client->env, WEFT_LOG_WARN, "member", "no memory to report which members are missing");
    return true;
}

/* ---- admission ---- */

static void answer_challenge(struct weft_control_client *client, const Weft__Control__Challenge *challenge,
                             const uint8_t *data, size_t bytes)
{
    const enum weft_status status = weft_seal_challenge(&client->link.seal, data, bytes);
    if (status == WEFT_OK) send_hello(client, challenge);
    else fail(client, status, "no memory for the key of the control connection");
}

static void on_welcome(struct weft_control_client *client, const Weft__Control__Welcome *welcome)
{
    uint8_t proof[WEFT_PROOF_BYTES];
    if (client->secret && (weft_proof_make(client->secret, WEFT_PROOF_WELCOME, client->nonce, client->job,
                                           client->name, proof) != WEFT_OK ||
                           !weft_proof_check(welcome->proof.data, welcome->proof.len, proof))) {
        fail(client, WEFT_ERR_AUTH, "the coordinator at %s does not know this job's secret",
                client->address);
        return;
    }
    client->state = CLIENT_JOINED;
    weft_control_link_welcomed(&client->link, welcome);
    client->heartbeat_ns = welcome->heartbeat_ns;
    weft_silence_start(&client->silence, weft_control_silence_limit_ns(welcome), client->tick_ns,
                       weft_now_ns(client->env));
    uint64_t period_ns = client->heartbeat_ns / 3;
    if (welcome->silence_ns > 0 && welcome->silence_ns / 4 < period_ns) period_ns = welcome->silence_ns / 4;
    if (period_ns < client->tick_ns &&
        weft_net_timer_periodic(client->net, period_ns, on_tick, client) != WEFT_OK) {
        fail(client, WEFT_ERR_NO_MEMORY, "no memory for the heartbeat's timer");
        return;
    }
    if (client->options.awaited &&
        weft_net_timer_once(client->net, WEFT_WAIT_REASON_FIRST_NS, request_wait_reason, client) != WEFT_OK) {
        fail(client, WEFT_ERR_NO_MEMORY, "no memory for the timer that reports missing members");
        return;
    }
    if (client->options.welcomed) client->options.welcomed(client->options.context, welcome);
}

static void on_opened(void *context, struct weft_net_connection *connection)
{
    struct weft_control_client *client = context;
    client->opened = true;
}

/* false: the frame is not the coordinator's next one, and the connection is closed. A refusal has no MAC: a
 * member with another secret must be able to read it. */
static bool take_seal(struct weft_control_client *client, const uint8_t *data, size_t *bytes)
{
    if (client->state < CLIENT_HELLO_SENT || weft_seal_check(&client->link.seal, data, bytes)) return true;
    if (client->state > CLIENT_HELLO_SENT) {
        fail(client, WEFT_ERR_PEER_LOST, "the coordinator at %s%s%s", client->address,
             WEFT_CONTROL_LOST_TEXT, WEFT_SEAL_BROKEN_TEXT);
        return false;
    }
    if (weft_control_is_refusal(client->env, data, *bytes)) return true;
    fail(client, WEFT_ERR_AUTH,
         "the coordinator at %s does not know this job's secret, or its answer was changed on the way",
         client->address);
    return false;
}

static void dispatch(struct weft_control_client *client, const Weft__Control__Control *message,
                     const uint8_t *data, size_t bytes)
{
    bool refused = message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT && client->state < CLIENT_JOINED;
    if (refused)
        fail(client, (enum weft_status)message->abort->status, "%s", message->abort->text);
    else if (client->state == CLIENT_CONNECTING &&
             message->body_case == WEFT__CONTROL__CONTROL__BODY_CHALLENGE)
        answer_challenge(client, message->challenge, data, bytes);
    else if (client->state == CLIENT_HELLO_SENT && message->body_case == WEFT__CONTROL__CONTROL__BODY_WELCOME)
        on_welcome(client, message->welcome);
    else if (client->state == CLIENT_JOINED && !accept_wait_reason(client, message))
        client->options.message(client->options.context, message);
    else if (client->state < CLIENT_JOINED)
        fail(client, WEFT_ERR_MALFORMED, "the coordinator at %s sent message %d out of turn",
                client->address, (int)message->body_case);
}

static void take_frame(void *context, const uint8_t *data, size_t bytes)
{
    struct weft_control_client *client = context;
    bool is_valid;
    Weft__Control__Control *message;
    if (!take_seal(client, data, &bytes)) return;
    weft_silence_received(&client->silence, weft_now_ns(client->env));
    if (weft_control_unpack(client->env, data, bytes, &message) != WEFT_OK) {
        fail(client, WEFT_ERR_MALFORMED,
                "%s sent a frame of %zu bytes that is no control message: is it a weft coordinator?",
                client->address, bytes);
        return;
    }
    if (weft_control_link_received(&client->link, message, bytes, &is_valid))
        dispatch(client, message, data, bytes);
    if (!is_valid)
        fail(client, WEFT_ERR_MALFORMED, "the coordinator at %s acknowledged frames that were not sent",
             client->address);
    weft_control_free(client->env, message);
}

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    take_frame(context, data, bytes);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct weft_control_client *client = context;
    weft_control_link_closed(&client->link, connection, reason, text);
}

static void on_resumed(void *context)
{
    struct weft_control_client *client = context;
    weft_silence_received(&client->silence, weft_now_ns(client->env));
}

static void on_refused(void *context)
{
    struct weft_control_client *client = context;
    if (client->options.refused) client->options.refused(client->options.context, client->link.reign);
}

/* The connection has ended and is not replaced. */
static void on_ended(void *context, enum weft_status reason, const char *text)
{
    struct weft_control_client *client = context;
    bool was_joined = client->state == CLIENT_JOINED, leaving = client->state == CLIENT_LEAVING;
    client->state = CLIENT_CLOSED;
    if (leaving) weft_error_set(&client->end, WEFT_ERR_CLOSED, "left");
    if (reason == WEFT_ERR_UNREACHABLE)
        weft_error_set(&client->end, reason, "no coordinator answers at %s: %s", client->address, text);
    if (reason == WEFT_ERR_IO) weft_error_set(&client->end, reason, "%s", text);
    if (reason == WEFT_ERR_ABORTED) /* it has refused to resume */
        weft_error_set(&client->end, WEFT_ERR_PEER_LOST, "the coordinator at %s%s%s", client->address,
                       WEFT_CONTROL_LOST_TEXT, text);
    if (!was_joined)
        weft_error_set(&client->end, reason,
                       "the process at %s closed the connection before this process had joined: it is no "
                       "coordinator of weft, or ends",
                       client->address);
    weft_error_set(&client->end, reason, "the coordinator at %s%s", client->address,
                   WEFT_CONTROL_LOST_TEXT "its control connection closed");
    client->options.closed(client->options.context, (enum weft_status)client->end.status, client->end.text);
}

static void fail_to_join(struct weft_control_client *client)
{
    if (client->state == CLIENT_CONNECTING)
        fail(client, WEFT_ERR_DEADLINE, "the process at %s%s", client->address, WEFT_CONTROL_SILENT_TEXT);
    else
        fail(client, WEFT_ERR_DEADLINE, "the coordinator at %s did not admit this process within %llu s",
             client->address, (unsigned long long)(client->options.join_ns / WEFT_SECONDS(1)));
}

static void on_tick(void *context)
{
    struct weft_control_client *client = context;
    uint64_t now_ns = weft_now_ns(client->env);
    if (client->opened && client->state < CLIENT_JOINED && now_ns > client->join_deadline_ns)
        fail_to_join(client);
    if (client->state != CLIENT_JOINED || !client->link.connection) return;
    const uint64_t silent_ns = weft_silence_check(&client->silence, now_ns);
    if (silent_ns > 0 && weft_control_link_replace(&client->link)) return;
    if (silent_ns > 0)
        fail(client, WEFT_ERR_PEER_LOST, "the coordinator at %s%s%s for %.0f s", client->address,
             WEFT_CONTROL_LOST_TEXT, WEFT_CUT_OFF_TEXT, (double)silent_ns / 1e9);
    if (weft_elapsed_ns(client->sent_ns, now_ns) < client->heartbeat_ns / 4) return;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    heartbeat.time_ns = now_ns;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    (void)weft_control_client_send(client, &message);
}

void weft_control_client_address(const struct weft_control_client *client, char address_out[300])
{
    const bool is_v6 = strchr(client->link.host, ':') != NULL;
    snprintf(address_out, 300, is_v6 ? "[%.255s]:%u" : "%.255s:%u", client->link.host, client->link.port);
}

/* ---- life ---- */

void weft_control_client_options_init(struct weft_control_client_options *options)
{
    *options = (struct weft_control_client_options){.size = sizeof *options,
                                                    .job = "weft",
                                                    .role = WEFT__CONTROL__ROLE__ROLE_OBSERVER,
                                                    .wanted_index = -1,
                                                    .endpoints = 1,
                                                    .join_ns = WEFT_SECONDS(30)};
}

static const char *role_name(Weft__Control__Role role)
{
    return role == WEFT__CONTROL__ROLE__ROLE_WORKER  ? "rank"
           : role == WEFT__CONTROL__ROLE__ROLE_SHARD ? "shard"
                                                     : "observer";
}

static void link_init(struct weft_control_client *client)
{
    struct weft_control_link *link = &client->link;
    weft_control_link_init(link, client->env);
    link->net = client->net;
    link->secret = client->secret;
    link->host = client->coordinator_host;
    link->port = client->options.port;
    link->frame = take_frame;
    link->resumed = on_resumed;
    link->refused = on_refused;
    link->ended = on_ended;
    link->context = client;
}

enum weft_status weft_control_client_start(struct weft_env *env, struct weft_net *net,
                                           const struct weft_control_client_options *options,
                                           struct weft_control_client **out, struct weft_error *error)
{
    WEFT_ASSERT(options->size == sizeof *options && options->closed && options->message);
    if (!options->job || options->job[0] == 0 || strlen(options->job) > WEFT_LIMIT_NAME_BYTES)
        return weft_error_set(error, WEFT_ERR_INVALID, "a job's name has 1 to %u bytes",
                              WEFT_LIMIT_NAME_BYTES);
    struct weft_control_client *client = weft_alloc_zero(env, sizeof *client);
    bool with_secret = options->secret && options->secret[0];
    if (!client) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a control connection");
    client->env = env;
    client->net = net;
    client->options = *options;
    client->job = weft_alloc_text(env, options->job);
    client->secret = with_secret ? weft_alloc_text(env, options->secret) : NULL;
    client->state = CLIENT_CONNECTING;
    client->join_deadline_ns = weft_now_ns(env) + options->join_ns;
    if (!client->job || (with_secret && !client->secret)) {
        weft_control_client_free(client);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a control connection");
    }
    weft_nonce_draw(env, client->nonce);
    if (gethostname(client->host, sizeof client->host - 1) != 0)
        snprintf(client->host, sizeof client->host, "unknown");
    snprintf(client->address, sizeof client->address, "%.250s:%u", options->host, options->port);
    snprintf(client->candidate, sizeof client->candidate, "%s", options->candidate ? options->candidate : "");
    snprintf(client->zone, sizeof client->zone, "%s", options->zone ? options->zone : "");
    snprintf(client->coordinator_host, sizeof client->coordinator_host, "%.255s", options->host);
    link_init(client);
    if (options->wanted_index >= 0)
        snprintf(client->name, sizeof client->name, "%s %d (%s, pid %d)", role_name(options->role),
                 options->wanted_index, client->host, (int)getpid());
    else
        snprintf(client->name, sizeof client->name, "%s (%s, pid %d)", role_name(options->role), client->host,
                 (int)getpid());

    static const struct weft_net_handler handler = {.opened = on_opened,
                                                    .frame = on_frame,
                                                    .closed = on_closed,
                                                    .frame_bytes_max =
                                                        WEFT_LIMIT_FRAME_BYTES + WEFT_SEAL_BYTES};
    enum weft_status status = weft_net_connect(net, options->host, options->port, &handler, client,
                                               client->join_deadline_ns, &client->link.connection);
    if (status != WEFT_OK) {
        weft_control_client_free(client);
        return weft_error_set(error, status, "cannot connect to the coordinator at %s:%u: %s", options->host,
                              options->port, weft_reason_text(status));
    }
    *out = client; /* the net's callbacks use it from here on: the caller frees it after the net */
    client->tick_ns = options->join_ns / 4 < TICK_NS ? options->join_ns / 4 : TICK_NS;
    status = weft_net_timer_periodic(net, client->tick_ns, on_tick, client);
    if (status != WEFT_OK) return weft_error_set(error, status, "no memory for the heartbeat's timer");
    return WEFT_OK;
}

uint64_t weft_control_client_reign(const struct weft_control_client *client)
{
    return client->link.reign;
}

bool weft_control_client_is_replaced(const struct weft_control_client *client)
{
    return client->link.is_replaced;
}

void weft_control_client_free(struct weft_control_client *client)
{
    if (!client) return;
    weft_free_bytes(client->env, client->job);
    weft_free_bytes(client->env, client->secret);
    weft_control_link_fini(&client->link);
    weft_free_bytes(client->env, client);
}

enum weft_status weft_host_port_parse(const char *text, char host_out[256], uint16_t *port_out,
                                      struct weft_error *error)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    size_t host_bytes = colon ? (size_t)(colon - text) : 0;
    bool digits = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    if (!digits || *end || port == 0 || port > 65535 || host_bytes == 0 || host_bytes > 253)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "'%.100s' is no address: give HOST:PORT, for example 127.0.0.1:4711", text);
    bool bracketed = text[0] == '[' && text[host_bytes - 1] == ']'; /* [::1]:4711 */
    memcpy(host_out, text + bracketed, host_bytes - 2 * bracketed);
    host_out[host_bytes - 2 * bracketed] = 0;
    *port_out = (uint16_t)port;
    return WEFT_OK;
}
