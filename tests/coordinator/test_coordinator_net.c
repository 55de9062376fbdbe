/* test_coordinator_net.c - coordinator and members over real sockets; the test steps one net. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"
#include "tests/coordinator/control_member.h"
#include "tests/lib/check.h"

#define STEPS_MAX 2000 /* of 10 ms: a limit, not a wait */

struct bench {
    struct weft_net *net;
    struct weft_coordinator_server *server;
    uint16_t port;
    int ended;
    enum weft_status end_status;
    char end_text[480];
};

struct seat { /* one member */
    struct weft_control_client *member;
    struct weft_control_client_options options;
    Weft__Control__Welcome welcome;
    bool welcomed, roster, go, lost, closed;
    uint64_t members;
    char text[480], coordinator[300];
    enum weft_status status;
};

static void on_ended(void *context, enum weft_status status, const char *text)
{
    struct bench *bench = context;
    bench->ended++;
    bench->end_status = status;
    snprintf(bench->end_text, sizeof bench->end_text, "%s", text);
}

static void bench_start(struct bench *bench, uint32_t workers, uint32_t shards, const char *secret)
{
    struct weft_coordinator_options options;
    struct weft_error error = {0};
    *bench = (struct bench){0};
    weft_coordinator_options_init(&options);
    options.job = "loop";
    options.secret = secret;
    options.workers = workers;
    options.shards = shards;
    options.ended = on_ended;
    options.context = bench;
    assert_int_equal(weft_net_create(weft_env_system(), &bench->net), WEFT_OK);
    if (weft_coordinator_server_start(weft_env_system(), bench->net, "127.0.0.1", 0, &options, &bench->port,
                                      &bench->server, &error) != WEFT_OK)
        fail_msg("%s", error.text);
}

static void bench_end(struct bench *bench, struct seat *seats, int count)
{
    weft_net_free(bench->net);
    for (int i = 0; i < count; i++) weft_control_client_free(seats[i].member);
    weft_coordinator_server_free(bench->server);
}

#define STEP_UNTIL(bench, condition)                                                  \
    do {                                                                              \
        int steps_ = 0;                                                               \
        while (!(condition) && steps_++ < STEPS_MAX) weft_net_step((bench)->net, 10); \
        if (!(condition)) fail_msg("never became true: %s", #condition);              \
    } while (0)

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct seat *seat = context;
    seat->welcome = *welcome;
    seat->welcomed = true;
    if (seat->options.role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        assert_int_equal(control_member_send_endpoints(seat->member), WEFT_OK);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct seat *seat = context;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ROSTER) {
        seat->roster = true;
        seat->members = message->roster->n_members;
        snprintf(seat->coordinator, sizeof seat->coordinator, "%s", message->roster->coordinator);
        (void)control_member_send_ready(seat->member, message->roster);
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_GO) seat->go = true;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST) {
        seat->lost = true;
        snprintf(seat->text, sizeof seat->text, "%s", message->member_lost->text);
    }
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct seat *seat = context;
    assert_false(seat->closed);
    seat->closed = true;
    seat->status = status;
    snprintf(seat->text, sizeof seat->text, "%s", text);
}

static void sit(struct bench *bench, struct seat *seat, Weft__Control__Role role, int index,
                const char *secret)
{
    struct weft_error error = {0};
    *seat = (struct seat){0};
    weft_control_client_options_init(&seat->options);
    seat->options.host = "127.0.0.1";
    seat->options.port = bench->port;
    seat->options.job = "loop";
    seat->options.secret = secret;
    seat->options.role = role;
    seat->options.wanted_index = index;
    seat->options.welcomed = on_welcomed;
    seat->options.message = on_message;
    seat->options.closed = on_closed;
    seat->options.context = seat;
    assert_int_equal(
        weft_control_client_start(weft_env_system(), bench->net, &seat->options, &seat->member, &error),
        WEFT_OK);
}

#define WORKER WEFT__CONTROL__ROLE__ROLE_WORKER
#define SHARD WEFT__CONTROL__ROLE__ROLE_SHARD

static void in_order(void **state)
{
    struct bench bench;
    struct seat seats[3];
    bench_start(&bench, 2, 1, "shared");
    sit(&bench, &seats[0], WORKER, 1, "shared");
    sit(&bench, &seats[1], WORKER, -1, "shared");
    sit(&bench, &seats[2], SHARD, 0, "shared");
    for (int i = 0; i < 3; i++) STEP_UNTIL(&bench, seats[i].go);
    assert_int_equal(seats[0].welcome.index, 1);
    assert_int_equal(seats[1].welcome.index, 0);
    assert_int_equal(seats[0].members, 3);
    assert_non_null(strstr(seats[0].coordinator, "pid")); /* one process: the name is a member's */
    weft_control_client_leave(seats[0].member, "");
    weft_control_client_leave(seats[1].member, "");
    STEP_UNTIL(&bench, seats[0].closed && seats[1].closed);
    assert_int_equal(seats[0].status, WEFT_ERR_CLOSED);
    weft_control_client_leave(seats[2].member, "");
    STEP_UNTIL(&bench, bench.ended);
    assert_int_equal(bench.end_status, WEFT_OK);
    STEP_UNTIL(&bench, weft_coordinator_server_connections(bench.server) == 0);
    bench_end(&bench, seats, 3);
}

/* A Hello for a worker's index, as a frame, followed by `padding` bytes of an unknown field. Returns its
 * length. */
static size_t hello_frame(uint8_t *frame, const char *name, int rank, size_t padding)
{
    Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    uint8_t *data, nonce[WEFT_NONCE_BYTES] = {0};
    size_t bytes;
    hello.wire_version = WEFT_WIRE_VERSION;
    hello.job = (char *)"loop", hello.name = (char *)name, hello.host = (char *)"elsewhere", hello.pid = 77;
    hello.role = WORKER, hello.wanted_index = rank;
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HELLO;
    message.hello = &hello;
    assert_int_equal(weft_control_pack(weft_env_system(), &message, &data, &bytes), WEFT_OK);
    memcpy(frame + 4, data, bytes);
    weft_free_bytes(weft_env_system(), data);
    if (padding) {
        frame[4 + bytes++] = 0xa2, frame[4 + bytes++] = 0x06; /* field 100, length-delimited */
        for (size_t left = padding; left; left >>= 7)
            frame[4 + bytes++] = (uint8_t)((left & 0x7f) | (left >> 7 ? 0x80 : 0));
        memset(frame + 4 + bytes, 0, padding);
        bytes += padding;
    }
    for (int i = 0; i < 4; i++) frame[i] = (uint8_t)(bytes >> 8 * i);
    return bytes + 4;
}

/* A raw socket, for what a member would not send. */
static int dial(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* The oldest connection closes: the others are still found. */
static void others_are_found_after_a_close(void **state)
{
    struct bench bench;
    struct seat seats[3];
    bench_start(&bench, 2, 1, "shared");
    int fd = dial(bench.port);
    STEP_UNTIL(&bench, weft_coordinator_server_connections(bench.server) == 1);
    for (int i = 0; i < 2; i++) sit(&bench, &seats[i], WORKER, i, "shared");
    for (int i = 0; i < 2; i++) STEP_UNTIL(&bench, seats[i].welcomed);
    close(fd);
    STEP_UNTIL(&bench, weft_coordinator_server_connections(bench.server) == 2);
    sit(&bench, &seats[2], SHARD, 0, "shared");
    for (int i = 0; i < 3; i++) STEP_UNTIL(&bench, seats[i].go);
    for (int i = 0; i < 3; i++) weft_control_client_leave(seats[i].member, "");
    STEP_UNTIL(&bench, bench.ended);
    STEP_UNTIL(&bench, weft_coordinator_server_connections(bench.server) == 0);
    bench_end(&bench, seats, 3);
}

/* After these bytes the coordinator closes; the job is not affected. */
static void hangs_up(struct bench *bench, const void *data, size_t bytes)
{
    uint8_t in[4096];
    ssize_t got = 1;
    int fd = dial(bench->port);
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
    for (int i = 0; i < STEPS_MAX && got != 0; i++) {
        weft_net_step(bench->net, 10);
        got = recv(fd, in, sizeof in, MSG_DONTWAIT); /* the Challenge, an Abort, then the end */
    }
    assert_int_equal(got, 0);
    close(fd);
    STEP_UNTIL(bench, weft_coordinator_server_connections(bench->server) == 0);
    assert_int_equal(bench->ended, 0);
}

static void malformed_connections_are_closed(void **state)
{
    struct bench bench;
    struct seat seat;
    static uint8_t longer[80 << 10];
    bench_start(&bench, 1, 0, NULL);
    hangs_up(&bench, "GET / HTTP/1.0\r\n\r\n", 18);              /* an impossible length */
    hangs_up(&bench, "\x02\0\0\0\xff\xff", 6);                   /* not a message */
    hangs_up(&bench, "\0\0\0\0", 4);                             /* an empty message */
    hangs_up(&bench, "\x02\0\0\0\x5a\0", 6);                     /* Heartbeat before Hello */
    /* longer than allowed before Hello */
    hangs_up(&bench, longer, hello_frame(longer, "rank 0", 0, 70 << 10));
    sit(&bench, &seat, WORKER, 0, NULL);
    STEP_UNTIL(&bench, seat.go);
    bench_end(&bench, &seat, 1);
}

static void refused_in_words(void **state)
{
    struct bench bench;
    struct seat seats[4];
    bench_start(&bench, 2, 0, "shared");
    sit(&bench, &seats[0], WORKER, 0, NULL);
    sit(&bench, &seats[1], WORKER, 0, "guessed");
    sit(&bench, &seats[2], WORKER, 5, "shared");
    for (int i = 0; i < 3; i++) STEP_UNTIL(&bench, seats[i].closed);
    assert_int_equal(seats[0].status, WEFT_ERR_AUTH);
    assert_non_null(strstr(seats[0].text, "this job has a secret"));
    assert_int_equal(seats[1].status, WEFT_ERR_AUTH);
    assert_non_null(strstr(seats[1].text, "has another secret"));
    assert_string_equal(seats[2].text, "job loop has 2 workers, numbered 0 to 1; rank 5 cannot join");
    assert_false(seats[0].welcomed || seats[1].welcomed || seats[2].welcomed);
    assert_int_equal(bench.ended, 0);
    bench_end(&bench, seats, 3);

    bench_start(&bench, 2, 0, NULL); /* a coordinator that requests no secret is not ours */
    sit(&bench, &seats[0], WORKER, 0, "shared");
    STEP_UNTIL(&bench, seats[0].closed);
    assert_int_equal(seats[0].status, WEFT_ERR_AUTH);
    assert_non_null(strstr(seats[0].text, "does not know this job's secret"));
    bench_end(&bench, seats, 1);
}

static void death(void **state)
{
    struct bench bench;
    struct seat seats[1];
    bench_start(&bench, 2, 0, NULL);
    sit(&bench, &seats[0], WORKER, 0, NULL);
    STEP_UNTIL(&bench, seats[0].welcomed);
    /* The other one is a raw socket that sends Hello and closes. */
    uint8_t frame[512];
    size_t bytes = hello_frame(frame, "rank 1", 1, 0);
    int fd = dial(bench.port);
    assert_int_equal(send(fd, frame, bytes, MSG_NOSIGNAL), bytes);
    for (bool joined = false; !joined;) {
        weft_net_step(bench.net, 10);
        char *json = weft_coordinator_server_status_json(bench.server);
        joined = strstr(json, "\"elsewhere\"") != NULL;
        weft_free_bytes(weft_env_system(), json);
    }
    close(fd);
    STEP_UNTIL(&bench, seats[0].lost);
    assert_string_equal(seats[0].text, "rank 1 (elsewhere, pid 77) lost: connection closed");
    assert_int_equal(bench.end_status, WEFT_ERR_PEER_LOST);
    bench_end(&bench, seats, 1);
}

static void listening(void **state)
{
    struct bench bench;
    struct weft_coordinator_options options;
    struct weft_coordinator_server *server = NULL;
    struct weft_error error = {0};
    uint16_t port;
    bench_start(&bench, 1, 0, NULL);
    weft_coordinator_options_init(&options);
    assert_int_equal(weft_coordinator_server_start(weft_env_system(), bench.net, "127.0.0.1", bench.port,
                                                   &options, &port, &server, &error),
                     WEFT_ERR_EXISTS);
    assert_non_null(strstr(error.text, "in use"));
    assert_null(server);
    error = (struct weft_error){0};
    assert_int_equal(weft_coordinator_server_start(weft_env_system(), bench.net, "0.0.0.0", 0, &options,
                                                   &port, &server, &error),
                     WEFT_ERR_AUTH);
    assert_non_null(strstr(error.text, "will not listen on 0.0.0.0 without a job secret"));
    error = (struct weft_error){0};
    options.workers = WEFT_LIMIT_WORKERS + 1;
    assert_int_equal(weft_coordinator_server_start(weft_env_system(), bench.net, "127.0.0.1", 0, &options,
                                                   &port, &server, &error),
                     WEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "4097 workers"));
    bench_end(&bench, NULL, 0);

    static const char *const fine[] = {"127.0.0.1", "127.9.9.9", "localhost", "::1"};
    static const char *const open[] = {"0.0.0.0", "10.0.0.1", "::", "example.org", "127.0.0.1.example.org",
                                       ""};
    for (size_t i = 0; i < 4; i++) assert_int_equal(weft_listen_check(fine[i], NULL, NULL), WEFT_OK);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(weft_listen_check(open[i], NULL, NULL), WEFT_ERR_AUTH);
        assert_int_equal(weft_listen_check(open[i], "", NULL), WEFT_ERR_AUTH);
        assert_int_equal(weft_listen_check(open[i], "s", NULL), WEFT_OK);
    }
}

static void addresses(void **state)
{
    static const char *const bad[] = {"",           "host",    ":1",      "host:",   "host:0",
                                      "host:65536", "host:-1", "host:1x", "host: 1", "host:+1"};
    char host[256];
    uint16_t port;
    assert_int_equal(weft_host_port_parse("node-7.example.org:4711", host, &port, NULL), WEFT_OK);
    assert_string_equal(host, "node-7.example.org");
    assert_int_equal(port, 4711);
    assert_int_equal(weft_host_port_parse("[::1]:1", host, &port, NULL), WEFT_OK);
    assert_string_equal(host, "::1");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (weft_host_port_parse(bad[i], host, &port, NULL) != WEFT_ERR_INVALID)
            fail_msg("'%s' was accepted", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_order),
                                       cmocka_unit_test(others_are_found_after_a_close),
                                       cmocka_unit_test(malformed_connections_are_closed),
                                       cmocka_unit_test(refused_in_words), cmocka_unit_test(death),
                                       cmocka_unit_test(listening),        cmocka_unit_test(addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
