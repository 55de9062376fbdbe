/* test_net.c - framed connections and HTTP of base/net/net.h, over 127.0.0.1 and ephemeral ports. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "base/net/net_reason.h"
#include "base/net/open_connections.h"
#include "tests/lib/check.h"

/* Callbacks of one side of a connection. */
struct side {
    struct weft_net_connection *connection;
    int opened, frames, closed;
    size_t bytes;
    uint64_t sum;
    enum weft_status reason;
    char text[500];
    bool echo, close_after_frame;
};

static uint64_t sum_of(const uint8_t *data, size_t bytes)
{
    uint64_t sum = bytes;
    for (size_t i = 0; i < bytes; i++) sum = sum * 31 + data[i];
    return sum;
}

static void on_opened(void *context, struct weft_net_connection *connection)
{
    struct side *side = context;
    side->opened++;
    side->connection = connection;
}

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    struct side *side = context;
    assert_int_equal(side->opened, 1);
    assert_int_equal(side->closed, 0);
    side->frames++;
    side->bytes += bytes;
    side->sum = side->sum * 7 + sum_of(data, bytes);
    if (side->echo) assert_int_equal(weft_net_send(connection, data, bytes), WEFT_OK);
    if (side->close_after_frame) weft_net_close(connection);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct side *side = context;
    side->closed++;
    side->reason = reason;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static const struct weft_net_handler plain = {.opened = on_opened, .frame = on_frame, .closed = on_closed};

static struct weft_net *new_net(void)
{
    struct weft_net *net;
    assert_int_equal(weft_net_create(weft_env_system(), &net), WEFT_OK);
    return net;
}

static uint64_t soon(uint64_t ns)
{
    return weft_now_ns(weft_env_system()) + ns;
}

static uint16_t listen_on_any(struct weft_net *net, const struct weft_net_handler *handler, struct side *side)
{
    uint16_t port = 0;
    struct weft_net_listener *listener;
    assert_int_equal(weft_net_listen(net, "127.0.0.1", 0, handler, side, &port, &listener, NULL), WEFT_OK);
    assert_true(port != 0);
    return port;
}

/* Steps until the condition is true; fails after a minute. */
#define STEP_UNTIL(net, condition)                                     \
    do {                                                               \
        uint64_t limit_ = soon(WEFT_SECONDS(60));                      \
        while (!(condition)) {                                         \
            assert_true(weft_now_ns(weft_env_system()) < limit_);      \
            weft_net_step(net, 100);                                   \
        }                                                              \
    } while (0)

static int raw_connect(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void frames_in_both_directions(void **state)
{
    struct weft_net *net = new_net();
    struct side server = {.echo = true}, client = {0};
    uint16_t port = listen_on_any(net, &plain, &server);
    assert_int_equal(
        weft_net_connect(net, "127.0.0.1", port, &plain, &client, soon(WEFT_SECONDS(60)), &client.connection),
        WEFT_OK);
    assert_int_equal(weft_net_send(client.connection, "x", 1), WEFT_ERR_STATE);
    STEP_UNTIL(net, client.opened);
    static uint8_t data[300000];
    uint64_t sum = 0;
    size_t sizes[] = {0, 1, 5, 4096, 70000, 300000}, total = 0;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(weft_net_send(client.connection, data, sizes[i]), WEFT_OK);
        sum = sum * 7 + sum_of(data, sizes[i]);
        total += sizes[i];
    }
    STEP_UNTIL(net, client.frames == 6);
    assert_int_equal(server.bytes, total);
    assert_int_equal(client.bytes, total);
    assert_true(server.sum == sum && client.sum == sum);
    assert_non_null(strstr(weft_net_peer_name(client.connection), "127.0.0.1:"));
    weft_net_close(client.connection);
    assert_int_equal(client.closed, 0); /* never inside the call */
    assert_int_equal(weft_net_send(client.connection, "x", 1), WEFT_ERR_CLOSED);
    STEP_UNTIL(net, client.closed && server.closed);
    assert_int_equal(client.reason, WEFT_ERR_CLOSED);
    assert_int_equal(server.reason, WEFT_ERR_PEER_LOST);
    weft_net_free(net);
    assert_int_equal(client.closed + server.closed, 2);
}

/* Bytes that arrive one by one, and several frames that arrive at once, give the same frames. */
static void frames_are_cut_from_the_stream(void **state)
{
    struct weft_net *net = new_net();
    struct side server = {0};
    int fd = raw_connect(listen_on_any(net, &plain, &server));
    static const uint8_t stream[] = {3, 0, 0, 0, 'a', 'b', 'c', 0, 0, 0, 0, 2, 0, 0, 0, 'd', 'e'};
    for (size_t i = 0; i < sizeof stream; i++) {
        assert_int_equal(write(fd, stream + i, 1), 1);
        STEP_UNTIL(net, server.opened);
        weft_net_step(net, 1);
    }
    STEP_UNTIL(net, server.frames == 3);
    uint64_t sum = server.sum;
    server.sum = 0;
    assert_int_equal(write(fd, stream, sizeof stream), sizeof stream);
    STEP_UNTIL(net, server.frames == 6);
    assert_true(server.sum == sum);
    assert_int_equal(server.bytes, 10);
    close(fd);
    STEP_UNTIL(net, server.closed);
    assert_int_equal(server.reason, WEFT_ERR_PEER_LOST);
    weft_net_free(net);
}

static void a_long_frame_closes(void **state)
{
    struct weft_net *net = new_net();
    struct weft_net_handler handler = plain;
    struct side server = {0};
    handler.frame_bytes_max = 100;
    int fd = raw_connect(listen_on_any(net, &handler, &server));
    static const uint8_t header[] = {101, 0, 0, 0};
    assert_int_equal(write(fd, header, sizeof header), sizeof header);
    STEP_UNTIL(net, server.closed);
    assert_int_equal(server.reason, WEFT_ERR_MALFORMED);
    assert_non_null(strstr(server.text, "announced a frame of 101 bytes; at most 100"));
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);
    weft_net_free(net);
}

static void a_slow_reader_is_closed(void **state)
{
    struct weft_net *net = new_net();
    struct weft_net_handler handler = plain;
    struct side server = {0};
    static uint8_t data[65536];
    handler.send_bytes_max = 1 << 20;
    int fd = raw_connect(listen_on_any(net, &handler, &server)); /* and never reads */
    STEP_UNTIL(net, server.opened);
    assert_int_equal(weft_net_send(server.connection, data, (4u << 20) + 1), WEFT_ERR_INVALID);
    enum weft_status status = WEFT_OK;
    int sent = 0;
    for (; status == WEFT_OK && sent < 10000; sent++) {
        status = weft_net_send(server.connection, data, sizeof data);
        if (sent % 8 == 7) weft_net_step(net, 0);
    }
    assert_int_equal(status, WEFT_ERR_LIMIT);
    assert_int_equal(weft_net_send(server.connection, data, 1), WEFT_ERR_CLOSED);
    STEP_UNTIL(net, server.closed);
    assert_int_equal(server.reason, WEFT_ERR_LIMIT);
    assert_non_null(strstr(server.text, "reads too slowly"));
    close(fd);
    weft_net_free(net);
}

/* The server replies and closes with unread bytes of the client: the reply must arrive. */
static void the_last_frame_arrives(void **state)
{
    struct weft_net *net = new_net();
    struct side server = {.echo = true, .close_after_frame = true}, client = {0};
    static uint8_t data[100000];
    uint16_t port = listen_on_any(net, &plain, &server);
    assert_int_equal(
        weft_net_connect(net, "127.0.0.1", port, &plain, &client, soon(WEFT_SECONDS(60)), &client.connection),
        WEFT_OK);
    STEP_UNTIL(net, client.opened);
    for (int i = 0; i < 20; i++)
        assert_int_equal(weft_net_send(client.connection, data, sizeof data), WEFT_OK);
    STEP_UNTIL(net, client.closed && server.closed);
    assert_int_equal(server.frames, 1);
    assert_int_equal(client.frames, 1);
    weft_net_free(net);
}

/* Different reasons have different sentences. */
static void reasons_differ(void **state)
{
    static const struct {
        int reason;
        const char *host, *words;
    } cases[] = {
        {ECONNREFUSED, "192.0.2.1", "no process listens"},
        {ENETUNREACH, "192.0.2.1", "no interface of this host leads"},
        {EHOSTUNREACH, "192.0.2.1", "that host is off"},
        {EAFNOSUPPORT, "::1", "one of IPv4"},
        {EAFNOSUPPORT, "127.0.0.1", "one of IPv6"},
    };
    char text[NET_REASON_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        net_connect_reason(cases[i].host, cases[i].reason, text, sizeof text);
        assert_non_null(strstr(text, cases[i].words));
        assert_non_null(strstr(text, strerror(cases[i].reason)));
    }
    net_name_reason("no-such-host", "unknown", text, sizeof text);
    assert_non_null(strstr(text, "no-such-host cannot be resolved (unknown)"));
}

static void connect_retries_until_its_deadline(void **state)
{
    struct weft_net *net = new_net(), *late = new_net();
    struct side server = {0}, client = {0}, hopeless = {0}, named = {0};
    uint16_t port = listen_on_any(late, &plain, &server);
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    assert_int_equal(weft_net_probe("127.0.0.1", service, 1000), 0);
    weft_net_free(late); /* no process listens there now */
    assert_int_equal(weft_net_probe("127.0.0.1", service, 1000), ECONNREFUSED);
    assert_int_equal(weft_net_probe("localhost", service, 1000), ECONNREFUSED);
    assert_int_equal(weft_net_probe("no-such-host.invalid", service, 1000), EHOSTUNREACH);
    assert_int_equal(weft_net_connect(net, "127.0.0.1", port, &plain, &hopeless, soon(WEFT_MS(60)), NULL),
                     WEFT_OK);
    assert_int_equal(weft_net_connect(net, "127.0.0.1", port, &plain, &client, soon(WEFT_SECONDS(60)), NULL),
                     WEFT_OK);
    STEP_UNTIL(net, hopeless.closed);
    assert_int_equal(hopeless.reason, WEFT_ERR_UNREACHABLE);
    assert_non_null(strstr(hopeless.text, "no connection to 127.0.0.1:"));
    assert_non_null(strstr(hopeless.text, "Connection refused: no process listens on that port"));
    assert_int_equal(client.closed + client.opened, 0);
    struct weft_error error = {0};
    assert_int_equal(weft_net_listen(net, "127.0.0.1", port, &plain, &server, NULL, NULL, &error), WEFT_OK);
    STEP_UNTIL(net, client.opened && server.opened);

    assert_int_equal(weft_net_connect(net, "localhost", port, &plain, &named, soon(WEFT_SECONDS(60)), NULL),
                     WEFT_OK);
    STEP_UNTIL(net, named.opened);
    assert_int_equal(weft_net_connect(net, "", port, &plain, &named, 0, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_net_connect(net, "127.0.0.1", 0, &plain, &named, 0, NULL), WEFT_ERR_INVALID);
    weft_net_free(net);
}

static void answer_nothing(void *context, const char *path, bool is_trusted, struct weft_http_reply *reply)
{
}

static void a_port_in_use_is_named(void **state)
{
    struct weft_net *net = new_net();
    struct side side = {0};
    struct weft_error error = {0};
    char wanted[100];
    uint16_t port = listen_on_any(net, &plain, &side);
    assert_int_equal(weft_net_listen(net, "127.0.0.1", port, &plain, &side, NULL, NULL, &error),
                     WEFT_ERR_EXISTS);
    snprintf(wanted, sizeof wanted, "port %u on 127.0.0.1 is already in use", port);
    assert_non_null(strstr(error.text, wanted));
    error = (struct weft_error){0};
    struct weft_http_options http;
    weft_http_options_init(&http);
    http.port = port;
    http.answer = answer_nothing;
    assert_int_equal(weft_http_start(net, &http, NULL, &error), WEFT_ERR_EXISTS);
    error = (struct weft_error){0};
    assert_int_equal(weft_net_listen(net, "192.0.2.1", 0, &plain, &side, NULL, NULL, &error),
                     WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "192.0.2.1 is not an address of this host"));
    weft_net_free(net);
}

static void the_number_of_connections_is_bounded(void **state)
{
    struct weft_net *net = new_net();
    struct weft_net_handler handler = plain;
    struct side server = {0};
    int fds[3];
    char byte;
    handler.connections_max = 2;
    uint16_t port = listen_on_any(net, &handler, &server);
    for (int i = 0; i < 3; i++) fds[i] = raw_connect(port);
    STEP_UNTIL(net, server.opened == 2);
    for (;;) { /* the third is closed at once */
        weft_net_step(net, 10);
        ssize_t got = recv(fds[2], &byte, 1, MSG_DONTWAIT);
        if (got == 0) break;
        assert_true(got < 0 && errno == EAGAIN);
    }
    assert_int_equal(server.opened, 2);
    assert_int_equal(weft_open_connections(false), 2);
    for (int i = 0; i < 3; i++) close(fds[i]);
    STEP_UNTIL(net, server.closed == 2);
    assert_int_equal(weft_open_connections(false), 0);
    int again = raw_connect(port); /* accepted again */
    STEP_UNTIL(net, server.opened == 3);
    close(again);
    weft_net_free(net);
}

/* A peer that closes during a long send: no SIGPIPE, one `closed`. */
static void a_dead_peer_is_no_signal(void **state)
{
    struct weft_net *net = new_net();
    struct side server = {0};
    static uint8_t data[1 << 20];
    signal(SIGPIPE, SIG_DFL);
    int fd = raw_connect(listen_on_any(net, &plain, &server));
    STEP_UNTIL(net, server.opened);
    struct linger reset = {1, 0};
    for (int i = 0; i < 8; i++) weft_net_send(server.connection, data, sizeof data);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    shutdown(fd, SHUT_WR); /* EOF, then a reset: a write now gives EPIPE and a signal */
    close(fd);
    STEP_UNTIL(net, server.closed);
    assert_int_equal(server.reason, WEFT_ERR_PEER_LOST);
    weft_net_free(net);
}

/* --- with the net's own thread --- */

struct counting_command {
    struct weft_command command;
    _Atomic int *count;
};

static void count_command(struct weft_command *command)
{
    (*weft_container_of(command, struct counting_command, command)->count)++;
}

#define POSTERS 4
#define POSTS 5000
static struct weft_net *posted_net;
static _Atomic int posted_count;
static struct counting_command post_commands[POSTERS][POSTS];

static void *post_many(void *argument)
{
    for (int i = 0; i < POSTS; i++) {
        struct counting_command *counting = &post_commands[(intptr_t)argument][i];
        *counting = (struct counting_command){{count_command, NULL}, &posted_count};
        weft_net_post(posted_net, &counting->command);
    }
    return NULL;
}

static void posts_reach_the_thread(void **state)
{
    pthread_t threads[POSTERS];
    posted_net = new_net();
    posted_count = 0;
    assert_int_equal(weft_net_start(posted_net), WEFT_OK);
    for (intptr_t i = 0; i < POSTERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, (void *)i), 0);
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    for (uint64_t limit = soon(WEFT_SECONDS(60)); posted_count < POSTERS * POSTS;) {
        assert_true(weft_now_ns(weft_env_system()) < limit);
        sched_yield();
    }
    /* A command that is still in the mailbox when the net is freed runs too. */
    struct counting_command last = {{count_command, NULL}, &posted_count};
    weft_net_post(posted_net, &last.command);
    weft_net_free(posted_net);
    assert_int_equal(posted_count, POSTERS * POSTS + 1);
}

static void count_tick(void *context)
{
    ++*(int *)context;
}

static void tickers_tick(void **state)
{
    struct weft_net *net = new_net();
    int ticks = 0;
    assert_int_equal(weft_net_timer_periodic(net, WEFT_MS(1), count_tick, &ticks), WEFT_OK);
    STEP_UNTIL(net, ticks >= 5);
    weft_net_free(net);
}

static void ticks_once(void **state)
{
    struct weft_net *net = new_net();
    int ticks = 0, later = 0, never = 0;
    assert_int_equal(weft_net_timer_once(net, WEFT_MS(1), count_tick, &ticks), WEFT_OK);
    /* freed with the net */
    assert_int_equal(weft_net_timer_once(net, WEFT_SECONDS(1000), count_tick, &never), WEFT_OK);
    assert_int_equal(weft_net_timer_periodic(net, WEFT_MS(2), count_tick, &later), WEFT_OK);
    STEP_UNTIL(net, ticks >= 1 && later >= 5);
    assert_int_equal(ticks, 1);
    assert_int_equal(never, 0);
    weft_net_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_in_both_directions),
        cmocka_unit_test(frames_are_cut_from_the_stream),
        cmocka_unit_test(a_long_frame_closes),
        cmocka_unit_test(a_slow_reader_is_closed),
        cmocka_unit_test(the_last_frame_arrives),
        cmocka_unit_test(reasons_differ),
        cmocka_unit_test(connect_retries_until_its_deadline),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(the_number_of_connections_is_bounded),
        cmocka_unit_test(a_dead_peer_is_no_signal),
        cmocka_unit_test(posts_reach_the_thread),
        cmocka_unit_test(tickers_tick),
        cmocka_unit_test(ticks_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
