/* test_http.c - the HTTP server: requests in pieces, the token, and the limits of connections, time and
 * descriptors. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "base/net/http_request.h"
#include "base/net/open_connections.h"
#include "tests/lib/check.h"
#include "tests/lib/log_capture.h"

#define TOKEN "0123456789abcdef"
#define GET "GET /page HTTP/1.1\r\nHost: h\r\n\r\n"
enum { TEXT_BYTES = 4096, LONG_BODY_BYTES = 40 << 20 };

struct server {
    struct log_capture log;
    struct weft_net *net;
    struct weft_http_options options;
    uint16_t port;
    int answered;
};

static void answer(void *context, const char *path, bool is_trusted, struct weft_http_reply *reply)
{
    struct server *server = context;
    server->answered++;
    if (strcmp(path, "/page") != 0 && strcmp(path, "/live") != 0 && strcmp(path, "/long") != 0) return;
    reply->code = 200;
    reply->content_type = "application/json";
    reply->body_bytes = strcmp(path, "/long") == 0 ? LONG_BODY_BYTES : 11;
    reply->body = weft_alloc_zero(&server->log.env, reply->body_bytes + 1);
    memcpy(reply->body, is_trusted ? "{\"ok\":true}" : "{\"ok\":null}", 11);
}

static bool is_public(const char *path)
{
    return strcmp(path, "/live") == 0;
}

static void server_init(struct server *server)
{
    *server = (struct server){0};
    log_capture_init(&server->log);
    weft_http_options_init(&server->options);
    server->options.request_ns = WEFT_SECONDS(60);
    server->options.answer = answer;
    server->options.context = server;
}

static void server_start(struct server *server)
{
    assert_int_equal(weft_net_create(&server->log.env, &server->net), WEFT_OK);
    assert_int_equal(weft_http_start(server->net, &server->options, &server->port, NULL), WEFT_OK);
}

static void server_stop(struct server *server)
{
    weft_net_free(server->net);
    log_capture_fini(&server->log);
}

static int dial(const struct server *server)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(server->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Steps the server until the connection has ended, and returns its reply. */
static const char *reply_of(struct server *server, int fd)
{
    static char text[TEXT_BYTES];
    size_t got = 0;
    for (const uint64_t limit = weft_now_ns(weft_env_system()) + WEFT_SECONDS(60);;) {
        assert_true(weft_now_ns(weft_env_system()) < limit);
        weft_net_step(server->net, 10);
        const ssize_t more = recv(fd, text + got, sizeof text - got - 1, MSG_DONTWAIT);
        if (more > 0) got += (size_t)more;
        else if (more == 0 || errno != EAGAIN) break;
    }
    text[got] = '\0';
    close(fd);
    return text;
}

static const char *request_page(struct server *server, const char *request)
{
    int fd = dial(server);
    send_text(fd, request);
    return reply_of(server, fd);
}

static bool has(const char *text, const char *part)
{
    if (!strstr(text, part)) print_message("'%s' lacks '%s'\n", text, part);
    return strstr(text, part) != NULL;
}

static void answers(void **state)
{
    struct server server;
    static char huge[20000];
    server_init(&server);
    server_start(&server);
    assert_true(has(request_page(&server, GET), "HTTP/1.1 200 OK\r\n"));
    const char *text = request_page(&server, "GET http://name/page?x=1 HTTP/1.0\r\n\r\n");
    assert_true(has(text, "Content-Type: application/json\r\n"));
    assert_true(has(text, "Content-Length: 11\r\n"));
    assert_true(has(text, "Connection: close\r\n"));
    assert_true(has(text, "\r\n\r\n{\"ok\":true}"));
    text = request_page(&server, "HEAD /page HTTP/1.1\r\n\r\n");
    assert_true(has(text, "Content-Length: 11\r\n"));
    assert_null(strstr(text, "{"));
    assert_true(has(request_page(&server, "GET /nothing HTTP/1.1\r\n\r\n"), " 404 "));
    assert_true(has(request_page(&server, "DELETE /page HTTP/1.1\r\n\r\n"), "405 Method Not Allowed\r\n"));
    assert_true(has(request_page(&server, "GET /page HTTP/2.0\r\n\r\n"), " 505 "));
    assert_true(has(request_page(&server, "rubbish\r\n\r\n"), " 400 "));
    const int answered = server.answered;
    int bytes = snprintf(huge, sizeof huge, "GET /page HTTP/1.0\r\nX: ");
    memset(huge + bytes, 'y', sizeof huge - (size_t)bytes);
    memcpy(huge + sizeof huge - 5, "\r\n\r\n", 5);
    assert_true(has(request_page(&server, huge), " 431 "));
    assert_int_equal(server.answered, answered);
    assert_true(has(request_page(&server, GET), " 200 OK\r\n")); /* it still serves */
    server_stop(&server);
}

/* A head that arrives byte by byte, from a client that then shuts down its sending half. */
static void in_pieces(void **state)
{
    struct server server;
    server_init(&server);
    server_start(&server);
    int fd = dial(&server);
    for (const char *c = GET; *c; c++) {
        assert_int_equal(send(fd, c, 1, MSG_NOSIGNAL), 1);
        weft_net_step(server.net, 0);
    }
    shutdown(fd, SHUT_WR);
    assert_true(has(reply_of(&server, fd), "{\"ok\":true}"));
    server_stop(&server);
}

static void token(void **state)
{
    struct server server;
    server_init(&server);
    server.options.token = TOKEN;
    server.options.is_public = is_public;
    server_start(&server);
    static const struct {
        const char *field, *code;
    } cases[] = {
        {"", " 401 "},
        {"Authorization: Bearer " TOKEN "\r\n", " 200 "},
        {"authorization:bearer " TOKEN " \r\n", " 200 "},
        {"Authorization: Bearer 0123456789abcdee\r\n", " 401 "},
        {"Authorization: Bearer " TOKEN "0\r\n", " 401 "},
        {"Authorization: Bearer 0123456789abcde\r\n", " 401 "},
        {"Authorization: Bearer \r\n", " 401 "},
        {"Authorization: Basic " TOKEN "\r\n", " 401 "},
        {"X-Authorization: Bearer " TOKEN "\r\n", " 401 "},
        {"Authorization: Bearer " TOKEN "\r\nAuthorization: Bearer " TOKEN "\r\n", " 400 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char request[400];
        snprintf(request, sizeof request, "GET /page HTTP/1.1\r\n%s\r\n", cases[i].field);
        assert_true(has(request_page(&server, request), cases[i].code));
    }
    assert_int_equal(server.answered, 2);
    assert_true(has(request_page(&server, GET), "WWW-Authenticate: Bearer\r\n"));
    assert_true(has(request_page(&server, "GET /live HTTP/1.1\r\n\r\n"), "{\"ok\":null}"));
    assert_true(log_capture_contains(&server.log, "without the job's token was refused"));
    server_stop(&server);
}

/* The limit is for the whole request: a byte now and then does not extend it, nor does reading slowly. */
static void one_time_for_a_request(void **state)
{
    struct server server;
    server_init(&server);
    server.options.request_ns = WEFT_MS(300);
    server_start(&server);
    int silent = dial(&server), drips = dial(&server), slow = dial(&server);
    int receive_bytes = 1;
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    send_text(slow, "GET /long HTTP/1.1\r\n\r\n");
    send_text(drips, "GET /page HTTP/1.1\r\nX: ");
    bool is_open = true;
    while (is_open) {
        char byte;
        weft_net_step(server.net, 5);
        is_open = send(drips, "y", 1, MSG_NOSIGNAL) == 1 && recv(drips, &byte, 1, MSG_DONTWAIT) != 0;
    }
    close(drips);
    assert_string_equal(reply_of(&server, silent), "");
    char head[64];
    assert_true(recv(slow, head, sizeof head, 0) > 0);
    /* without reading, until the kernel detects the close of the other end */
    for (int reason = 0; reason == 0;) {
        socklen_t bytes = sizeof reason;
        weft_net_step(server.net, 10);
        if (send(slow, "y", 1, MSG_NOSIGNAL) < 0) break;
        assert_int_equal(getsockopt(slow, SOL_SOCKET, SO_ERROR, &reason, &bytes), 0);
    }
    close(slow);
    server_stop(&server);
}

static bool is_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static void the_oldest_is_evicted(void **state)
{
    struct server server;
    int fds[3];
    server_init(&server);
    server.options.connections_max = 2;
    server_start(&server);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial(&server);
        send_text(fds[i], "GET /");
        for (int k = 0; k < 3; k++) weft_net_step(server.net, 1);
    }
    while (!is_closed(fds[0])) weft_net_step(server.net, 10);
    assert_false(is_closed(fds[1]));
    assert_false(is_closed(fds[2]));
    assert_int_equal(weft_open_connections(true), 2);
    send_text(fds[2], "page HTTP/1.1\r\n\r\n");
    assert_true(has(reply_of(&server, fds[2]), " 200 OK"));
    assert_true(log_capture_contains(&server.log, "since 2 are open"));
    close(fds[0]);
    close(fds[1]);
    server_stop(&server);
    assert_int_equal(weft_open_connections(true), 0);
}

static size_t count_lines(const struct log_capture *log)
{
    size_t lines = 0;
    for (const char *c = log->text; c && *c; c++) lines += *c == '\n';
    return lines;
}

/* 2,000 connections that never send a request: bounded, logged once, and a client is served among them. */
static void flood(void **state)
{
    struct server server;
    server_init(&server);
    server.options.connections_max = 16;
    server_start(&server);
    for (int i = 0; i < 2000; i++) {
        int fd = dial(&server);
        if (i % 2) send_text(fd, "GET /pa");
        weft_net_step(server.net, 0);
        if (i % 500 == 250) assert_true(has(request_page(&server, GET), " 200 OK"));
        if (i % 3) close(fd);
        else shutdown(fd, SHUT_RD), close(fd);
    }
    assert_true(count_lines(&server.log) <= 8);
    server_stop(&server);
}

/* The last descriptors of the process stay free for the control plane. */
static void descriptors(void **state)
{
    struct server server;
    struct rlimit before, limit;
    server_init(&server);
    server.options.descriptors_reserved = 8;
    server_start(&server);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int client = dial(&server), next = dup(client); /* the number that accept would use */
    close(next);
    limit = (struct rlimit){.rlim_cur = (rlim_t)next + 8, .rlim_max = before.rlim_max};
    if (limit.rlim_cur / 4 < 8) limit.rlim_cur = 32; /* few are open: then the reserve is a quarter */
    int filler[64], filled = 0;
    while (filled < 64 && (filler[filled] = dup(client)) < (int)limit.rlim_cur - 8 - 1) filled++;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    send_text(client, GET);
    assert_string_equal(reply_of(&server, client), "");
    assert_true(log_capture_contains(&server.log, "reserved for the control plane"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i <= filled && i < 64; i++) close(filler[i]);
    assert_true(has(request_page(&server, GET), " 200 OK"));
    server_stop(&server);
}

static void log_limit(void **state)
{
    struct log_capture log;
    struct weft_log_limit limit = {.component = "base", .burst = 2};
    log_capture_init(&log);
    for (int i = 0; i < 100; i++) weft_log_limited(&log.env, &limit, "10.0.0.7:9", "refused");
    assert_int_equal(count_lines(&log), 2);
    limit.began_ns = 1; /* long ago */
    weft_log_limit_flush(&log.env, &limit);
    assert_int_equal(count_lines(&log), 3);
    assert_true(log_capture_contains(&log, "98 more within"));
    assert_true(log_capture_contains(&log, "the last one: 10.0.0.7:9: refused"));
    limit.began_ns = 1;
    weft_log_limit_flush(&log.env, &limit); /* nothing since */
    assert_int_equal(count_lines(&log), 3);
    log_capture_fini(&log);
}

static void parser(void **state)
{
    static const struct {
        const char *head;
        int code;
        const char *path;
    } cases[] = {
        {"", HTTP_INCOMPLETE, ""},
        {"GET / HTTP/1.1\r\n", HTTP_INCOMPLETE, ""},
        {"\r\nGET / HTTP/1.1\r\n\r\n", HTTP_OK, "/"},
        {"GET /a/b?c=/d HTTP/1.0\n\n", HTTP_OK, "/a/b"},
        {"GET http://h:1 HTTP/1.1\r\n\r\n", HTTP_OK, "/"},
        {"GET  / HTTP/1.1\r\n\r\n", 400, ""},
        {"GET /\x01 HTTP/1.1\r\n\r\n", 400, ""},
        {"GET /\r\n\r\n", 400, ""},
        {"GET * HTTP/1.1\r\n\r\n", 400, ""},
        {"POST / HTTP/1.1\r\n\r\n", 405, ""},
        {"get / HTTP/1.1\r\n\r\n", 405, ""},
        {"GET / HTTP/1.1 x\r\n\r\n", 400, ""},
    };
    struct http_request request;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memset(&request, 0, sizeof request);
        const int code = http_request_parse(cases[i].head, strlen(cases[i].head), &request);
        if (code != cases[i].code || strcmp(request.path, cases[i].path) != 0)
            fail_msg("case %zu: code %d, path '%s'", i, code, request.path);
    }
    char path[400];
    snprintf(path, sizeof path, "GET /%0300d HTTP/1.1\r\n\r\n", 0);
    assert_int_equal(http_request_parse(path, strlen(path), &request), 414);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parser),
        cmocka_unit_test(answers),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(token),
        cmocka_unit_test(one_time_for_a_request),
        cmocka_unit_test(the_oldest_is_evicted),
        cmocka_unit_test(flood),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(log_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
