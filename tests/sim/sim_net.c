/* sim_net.c - see sim_net.h.
 *
 *     weft_net_send ──► event in the list of the other end ──► timer of that loop ──► opened, frame, closed
 *
 * An end closes once: by its owner, when the other end has closed (which it learns after the last frame, or
 * after FLUSH_NS), or by a fault. */
#include "tests/sim/sim_net.h"

#include <stdio.h>
#include <string.h>

#define FLUSH_NS WEFT_SECONDS(5) /* as base/net/net_connection.c */
#define RETRY_NS WEFT_MS(20)

enum { KIND_WELCOME = 3, KIND_RESUME = 40 }; /* control frames (proto/control.proto) */

enum event_kind { EVENT_OPENED, EVENT_FRAME, EVENT_CLOSED, EVENT_ACCEPT };

struct event {
    struct event *next;
    enum event_kind kind;
    uint64_t time_ns;
    uint32_t from;            /* host */
    enum weft_status reason;  /* of CLOSED */
    size_t bytes;
    uint8_t data[];
};

struct weft_net {
    struct weft_env *env;
    struct weft_loop *loop;
    uint32_t host;
    bool freed;
    struct weft_net *next;
    struct weft_net_connection *connections;
    struct every *everies;
};

struct every {
    struct every *next;
    struct weft_timer timer;
    struct weft_net *net;
    uint64_t period_ns;
    void (*fn)(void *context);
    void *context;
};

struct weft_net_listener {
    struct weft_net_listener *next;
    struct weft_net *net;
    uint16_t port;
    struct weft_net_handler handler;
    void *context;
};

struct weft_net_connection {
    struct weft_net_connection *next; /* list of its net; of a caller not accepted yet: world.knocks */
    struct weft_net *net;
    struct weft_net_connection *other; /* NULL: not accepted yet, or never */
    struct weft_net_handler handler;
    void *context;
    struct weft_net_listener *listener; /* that will accept it */
    bool open, closing, closed;
    bool has_session;                 /* Welcome has arrived, or Resume was sent */
    struct weft_timer arrives, limit; /* limit of an end that closes or is not open */
    struct weft_timer retry;          /* of an end that no listener answers */
    uint16_t port;
    uint64_t deadline_ns;
    uint64_t back_ns;                 /* latency of the notification of the other's end */
    struct event *events;
    uint64_t last_ns;                 /* arrival time of the last event */
    char name[32];
};

static struct {
    uint32_t (*host_of)(struct weft_env *env);
    void (*wake)(uint32_t host);
    uint64_t (*random)(uint64_t below);
    uint64_t latency_ns;
    struct weft_net *nets;
    struct weft_net_listener *listeners;
    struct weft_net_connection *knocks; /* callers; never freed */
    uint16_t ports;
    bool dead[SIM_NET_HOSTS_MAX];
    uint64_t stalled_ns[SIM_NET_HOSTS_MAX];
    bool cut[SIM_NET_HOSTS_MAX][SIM_NET_HOSTS_MAX];
    bool silent[SIM_NET_HOSTS_MAX]; /* dead, and no peer is notified */
    uint32_t break_host;            /* of sim_net_break */
    uint64_t break_frame, break_one_in, frames;
    uint32_t dying_host;            /* of sim_net_die_at */
    uint64_t dying_frame, sent;     /* 0: it does not die */
    void (*dies)(void);
} world;

void sim_net_begin(uint32_t (*host_of)(struct weft_env *env), void (*wake)(uint32_t host),
                   uint64_t (*random)(uint64_t below), uint64_t latency_ns)
{
    memset(&world, 0, sizeof world);
    world.host_of = host_of;
    world.wake = wake;
    world.random = random;
    world.latency_ns = latency_ns;
    world.ports = 4000;
}

/* ---- events ---- */

static void watch(struct weft_net_connection *end)
{
    if (!end->events || world.dead[end->net->host] || end->net->freed) return;
    if (weft_timer_start(end->net->loop, &end->arrives, end->events->time_ns) < 0) return;
    world.wake(end->net->host);
}

static uint64_t draw_latency_ns(void)
{
    return world.latency_ns / 2 + world.random(world.latency_ns / 2 + 1);
}

/* From `from` to the end's host. */
static void add_event_after(struct weft_net_connection *end, uint64_t latency_ns, uint32_t from,
                            enum event_kind kind, enum weft_status reason, const void *data, size_t bytes)
{
    struct event *event = weft_alloc_bytes(end->net->env, sizeof *event + bytes), **at = &end->events;
    if (!event) return;
    uint32_t to = end->net->host;
    uint64_t time_ns = weft_now_ns(end->net->env) + latency_ns;
    if (time_ns < world.stalled_ns[from]) time_ns = world.stalled_ns[from];
    if (time_ns < world.stalled_ns[to]) time_ns = world.stalled_ns[to];
    if (time_ns < end->last_ns) time_ns = end->last_ns;
    end->last_ns = time_ns;
    *event = (struct event){.kind = kind, .time_ns = time_ns, .from = from, .reason = reason, .bytes = bytes};
    if (bytes > 0) memcpy(event->data, data, bytes);
    while (*at) at = &(*at)->next;
    *at = event;
    watch(end);
}

static void add_event(struct weft_net_connection *end, uint32_t from, enum event_kind kind,
                      enum weft_status reason, const void *data, size_t bytes)
{
    add_event_after(end, draw_latency_ns(), from, kind, reason, data, bytes);
}

static void end_closed(struct weft_net_connection *end, enum weft_status reason)
{
    if (end->closed) return;
    end->closed = true;
    end->open = false;
    weft_timer_stop(end->net->loop, &end->limit);
    weft_timer_stop(end->net->loop, &end->retry);
    if (end->closing) reason = WEFT_ERR_CLOSED;
    else if (end->other && end->other->closing && !end->other->closed)
        add_event_after(end->other, end->other->back_ns, end->net->host, EVENT_CLOSED, WEFT_ERR_CLOSED, NULL,
                        0);
    struct weft_net_connection **at = &end->net->connections;
    while (*at && *at != end) at = &(*at)->next;
    if (*at) *at = end->next;
    const char *text = reason == WEFT_ERR_UNREACHABLE ? "no listener answers" : "the connection is closed";
    end->handler.closed(end->context, end, reason, text);
}

static struct weft_net_connection *new_end(struct weft_net *net, const struct weft_net_handler *handler,
                                           void *context, uint32_t peer_host);
static void try_again(struct weft_timer *timer);

static void accepted(struct weft_net_connection *caller)
{
    struct weft_net_listener *listener = caller->listener;
    struct weft_net_connection *end =
        new_end(listener->net, &listener->handler, listener->context, caller->net->host);
    if (!end) return;
    end->other = caller;
    caller->other = end;
    end->open = true;
    add_event(caller, listener->net->host, EVENT_OPENED, WEFT_OK, NULL, 0);
    end->handler.opened(end->context, end);
}

/* The kind of a control frame is its first field number: two bytes from 16 on. */
static uint32_t kind_of(const uint8_t *data, size_t bytes)
{
    if (bytes < 2) return 0;
    return data[0] & 0x80 ? ((data[0] & 0x7fu) | (uint32_t)data[1] << 7) >> 3 : data[0] >> 3u;
}

static void happen(struct weft_net_connection *end, const struct event *event)
{
    switch (event->kind) {
    case EVENT_OPENED:
        weft_timer_stop(end->net->loop, &end->limit);
        end->open = true;
        if (end->handler.opened) end->handler.opened(end->context, end);
        break;
    case EVENT_FRAME:
        end->has_session |= kind_of(event->data, event->bytes) == KIND_WELCOME;
        if (end->open && !end->closing) end->handler.frame(end->context, end, event->data, event->bytes);
        break;
    case EVENT_CLOSED: end_closed(end, event->reason); break;
    case EVENT_ACCEPT: break;
    }
}

static void arrive(struct weft_timer *timer)
{
    struct weft_net_connection *end = weft_container_of(timer, struct weft_net_connection, arrives);
    struct event *event = end->events;
    /* after the heal the events are checked again */
    if (end->net->freed || !event || world.cut[event->from][end->net->host]) return;
    if (event->kind == EVENT_ACCEPT) { /* at the listener's host: this end only carries the event */
        end->events = NULL;
        accepted(end->other);
        return;
    }
    end->events = event->next;
    happen(end, event);
    weft_free_bytes(end->net->env, event);
    watch(end);
}

static void limit_passed(struct weft_timer *timer)
{
    struct weft_net_connection *end = weft_container_of(timer, struct weft_net_connection, limit);
    end_closed(end, end->open || end->closing ? WEFT_ERR_CLOSED : WEFT_ERR_UNREACHABLE);
}

/* ---- nets ---- */

enum weft_status weft_net_create(struct weft_env *env, struct weft_net **net_out)
{
    struct weft_net *net = weft_alloc_zero(env, sizeof *net);
    if (!net) return WEFT_ERR_NO_MEMORY;
    net->env = env;
    net->host = world.host_of(env);
    WEFT_TRY(weft_loop_create(env, NULL, &net->loop));
    WEFT_TRY(env->virtual_time->run(env, net->loop));
    net->next = world.nets;
    world.nets = net;
    *net_out = net;
    return WEFT_OK;
}

enum weft_status weft_net_start(struct weft_net *net) { return WEFT_OK; }
void weft_net_step(struct weft_net *net, int timeout_ms) {}

/* Callers that no listener of the net has accepted see the end of the connection. */
static void refuse_callers(const struct weft_net *net)
{
    for (struct weft_net_connection *knock = world.knocks; knock; knock = knock->next) {
        if (knock->net != net || !knock->events) continue;
        weft_timer_stop(net->loop, &knock->arrives);
        knock->events = NULL;
        if (!knock->other->closed && !knock->other->net->freed)
            add_event(knock->other, net->host, EVENT_CLOSED, WEFT_ERR_PEER_LOST, NULL, 0);
    }
}

void weft_net_free(struct weft_net *net)
{
    if (!net) return;
    refuse_callers(net);
    weft_loop_run_commands(net->loop);
    while (net->connections) {
        struct weft_net_connection *end = net->connections;
        weft_net_close(end);
        end_closed(end, WEFT_ERR_CLOSED);
    }
    for (struct weft_net_listener **at = &world.listeners; *at;)
        if ((*at)->net == net) *at = (*at)->next;
        else at = &(*at)->next;
    net->freed = true;
    net->env->virtual_time->end(net->env, net->loop);
    weft_loop_free(net->loop);
}

/* No thread, so no lock. */
void weft_net_pause(struct weft_net *net, uint64_t timeout_ns) {}
void weft_net_resume(struct weft_net *net) {}

void weft_net_post(struct weft_net *net, struct weft_command *command)
{
    weft_loop_post(net->loop, command);
    world.wake(net->host);
}

static void again(struct weft_timer *timer)
{
    struct every *every = weft_container_of(timer, struct every, timer);
    weft_timer_start(every->net->loop, timer, weft_now_ns(every->net->env) + every->period_ns);
    every->fn(every->context);
}

static void once(struct weft_timer *timer)
{
    struct every *every = weft_container_of(timer, struct every, timer);
    every->fn(every->context);
}

static enum weft_status add_timer(struct weft_net *net, uint64_t time_ns, void (*due)(struct weft_timer *),
                                  void (*fn)(void *), void *context)
{
    struct every *every = weft_alloc_zero(net->env, sizeof *every);
    if (!every) return WEFT_ERR_NO_MEMORY;
    *every =
        (struct every){.next = net->everies, .net = net, .period_ns = time_ns, .fn = fn, .context = context};
    net->everies = every;
    weft_timer_init(&every->timer, due);
    return weft_timer_start(net->loop, &every->timer, weft_now_ns(net->env) + time_ns);
}

enum weft_status weft_net_timer_periodic(struct weft_net *net, uint64_t period_ns, void (*fn)(void *),
                                         void *context)
{
    return add_timer(net, period_ns, again, fn, context);
}

/* The timer's memory is freed with the net. */
enum weft_status weft_net_timer_once(struct weft_net *net, uint64_t delay_ns, void (*fn)(void *),
                                     void *context)
{
    return add_timer(net, delay_ns, once, fn, context);
}

/* ---- connections ---- */

enum weft_status weft_net_listen(struct weft_net *net, const char *host, uint16_t port,
                                 const struct weft_net_handler *handler, void *context, uint16_t *port_out,
                                 struct weft_net_listener **listener_out, struct weft_error *error)
{
    struct weft_net_listener *listener = weft_alloc_zero(net->env, sizeof *listener);
    if (!listener) return WEFT_ERR_NO_MEMORY;
    *listener = (struct weft_net_listener){.next = world.listeners,
                                           .net = net,
                                           .port = port ? port : world.ports++,
                                           .handler = *handler,
                                           .context = context};
    world.listeners = listener;
    *port_out = listener->port;
    *listener_out = listener;
    return WEFT_OK;
}

void weft_net_unlisten(struct weft_net_listener *listener)
{
    struct weft_net_listener **at = &world.listeners;
    while (*at && *at != listener) at = &(*at)->next;
    if (*at) *at = listener->next;
}

static struct weft_net_connection *new_end(struct weft_net *net, const struct weft_net_handler *handler,
                                           void *context, uint32_t peer_host)
{
    struct weft_net_connection *end = weft_alloc_zero(net->env, sizeof *end);
    if (!end) return NULL;
    *end = (struct weft_net_connection){
        .next = net->connections, .net = net, .handler = *handler, .context = context};
    weft_timer_init(&end->arrives, arrive);
    weft_timer_init(&end->limit, limit_passed);
    weft_timer_init(&end->retry, try_again);
    snprintf(end->name, sizeof end->name, "h%u:1", peer_host);
    net->connections = end;
    return end;
}

/* Without an answer: WEFT_ERR_UNREACHABLE at once if a refusal ends the attempt, else at the deadline. */
static enum weft_status try_connect(struct weft_net_connection *end)
{
    struct weft_net *net = end->net;
    struct weft_net_listener *listener = world.listeners;
    while (listener && listener->port != end->port) listener = listener->next;
    const bool is_silent = listener && world.silent[listener->net->host];
    if (!listener || world.dead[listener->net->host]) {
        const bool is_last = weft_now_ns(net->env) + RETRY_NS >= end->deadline_ns;
        if (!is_last && !(end->handler.refusal_ends && !is_silent))
            return weft_timer_start(net->loop, &end->retry, weft_now_ns(net->env) + RETRY_NS);
        end->last_ns = is_last ? end->deadline_ns : 0;
        add_event(end, net->host, EVENT_CLOSED, WEFT_ERR_UNREACHABLE, NULL, 0);
        return WEFT_OK;
    }
    snprintf(end->name, sizeof end->name, "h%u:1", listener->net->host);
    end->listener = listener;
    struct weft_net_connection *knock = weft_alloc_zero(net->env, sizeof *knock); /* in no list */
    if (!knock) return WEFT_ERR_NO_MEMORY;
    *knock = (struct weft_net_connection){.next = world.knocks, .net = listener->net, .other = end};
    world.knocks = knock;
    weft_timer_init(&knock->arrives, arrive);
    weft_timer_start(net->loop, &end->limit, end->deadline_ns); /* the host may fail silently */
    add_event(knock, net->host, EVENT_ACCEPT, WEFT_OK, NULL, 0);
    return WEFT_OK;
}

static void try_again(struct weft_timer *timer)
{
    struct weft_net_connection *end = weft_container_of(timer, struct weft_net_connection, retry);
    if (!end->closed && !end->net->freed && try_connect(end) < 0) end_closed(end, WEFT_ERR_NO_MEMORY);
}

enum weft_status weft_net_connect(struct weft_net *net, const char *host, uint16_t port,
                                  const struct weft_net_handler *handler, void *context, uint64_t deadline_ns,
                                  struct weft_net_connection **connection_out)
{
    struct weft_net_connection *end = new_end(net, handler, context, 0);
    if (!end) return WEFT_ERR_NO_MEMORY;
    end->port = port;
    end->deadline_ns = deadline_ns;
    *connection_out = end;
    return try_connect(end);
}

static void drop_events(struct weft_net_connection *end)
{
    while (end->events) {
        struct event *event = end->events;
        end->events = event->next;
        weft_free_bytes(end->net->env, event);
    }
    add_event(end, end->net->host, EVENT_CLOSED, WEFT_ERR_PEER_LOST, NULL, 0);
}

/* Counts a frame. Returns whether the network breaks the connection that carries it. */
static bool is_broken_by(struct weft_net_connection *end, const uint8_t *data, size_t bytes)
{
    const bool is_of_host =
        end->net->host == world.break_host || end->other->net->host == world.break_host;
    if (kind_of(data, bytes) == KIND_RESUME) end->has_session = true;
    const bool has_session = end->has_session || end->other->has_session;
    if (!is_of_host || !has_session || (world.break_frame == 0 && world.break_one_in == 0)) return false;
    world.frames++;
    return world.frames == world.break_frame || (world.break_one_in && world.random(world.break_one_in) == 0);
}

/* Counts a frame of the dying host. Returns whether it is lost. */
static bool is_lost_with(const struct weft_net_connection *end)
{
    if (world.dying_frame == 0 || end->net->host != world.dying_host) return false;
    if (++world.sent == world.dying_frame) world.dies();
    return world.sent > world.dying_frame;
}

enum weft_status weft_net_send(struct weft_net_connection *end, const void *data, size_t bytes)
{
    if (end->closed || end->closing) return WEFT_ERR_CLOSED;
    if (!end->open) return WEFT_ERR_STATE;
    if (is_lost_with(end)) return WEFT_OK;
    if (is_broken_by(end, data, bytes)) {
        drop_events(end);
        if (!end->other->closed) drop_events(end->other);
        return WEFT_OK;
    }
    add_event(end->other, end->net->host, EVENT_FRAME, WEFT_OK, data, bytes);
    return WEFT_OK;
}

void weft_net_close(struct weft_net_connection *end)
{
    if (end->closed || end->closing) return;
    end->closing = true;
    if (end->other) add_event(end->other, end->net->host, EVENT_CLOSED, WEFT_ERR_PEER_LOST, NULL, 0);
    end->back_ns = draw_latency_ns();
    const bool met = end->other && !end->other->closed;
    if (!met || weft_timer_start(end->net->loop, &end->limit, weft_now_ns(end->net->env) + FLUSH_NS) < 0)
        add_event_after(end, end->back_ns, end->net->host, EVENT_CLOSED, WEFT_ERR_CLOSED, NULL, 0);
}

void weft_net_set_context(struct weft_net_connection *end, void *context) { end->context = context; }
void *weft_net_context(struct weft_net_connection *end) { return end->context; }
const char *weft_net_peer_name(struct weft_net_connection *end) { return end->name; }

void weft_http_options_init(struct weft_http_options *options) { (void)options; }
enum weft_status weft_http_start(struct weft_net *net, const struct weft_http_options *options,
                                 uint16_t *port_out, struct weft_error *error)
{
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "a simulated host has no HTTP");
}

/* ---- faults ---- */

void sim_net_died(uint32_t host, bool silent)
{
    world.dead[host] = true;
    world.silent[host] = silent;
    for (struct weft_net *net = world.nets; net && !silent; net = net->next) {
        if (net->host != host || net->freed) continue;
        refuse_callers(net);
        for (struct weft_net_connection *end = net->connections; end; end = end->next)
            if (end->other && !end->other->closed)
                add_event(end->other, host, EVENT_CLOSED, WEFT_ERR_PEER_LOST, NULL, 0);
    }
}

void sim_net_stall(uint32_t host, uint64_t until_ns) { world.stalled_ns[host] = until_ns; }

void sim_net_cut(uint32_t a, uint32_t b, bool cut)
{
    world.cut[a][b] = world.cut[b][a] = cut;
    if (cut) return;
    for (struct weft_net *net = world.nets; net; net = net->next)
        for (struct weft_net_connection *end = net->connections; end; end = end->next) watch(end);
    for (struct weft_net_connection *knock = world.knocks; knock; knock = knock->next) watch(knock);
}

bool sim_net_has_died(uint32_t host) { return world.dead[host] && !world.silent[host]; }

void sim_net_break(uint32_t host, uint64_t n, uint64_t one_in)
{
    world.break_host = host;
    world.break_frame = n;
    world.break_one_in = one_in;
}

uint64_t sim_net_frames(void) { return world.frames; }

void sim_net_die_at(uint32_t host, uint64_t n, void (*dies)(void))
{
    world.dying_host = host;
    world.dying_frame = n;
    world.dies = dies;
}
