/* test_coordinator_thread.c - a coordinator on its own thread: start, search for its port, end of the job. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"
#include "tests/coordinator/control_member.h"
#include "tests/lib/check.h"

#define STEPS_MAX 2000 /* of 10 ms: a limit, not a wait */
#define LOOK_NS WEFT_MS(200)
#define TRY_NS WEFT_MS(1200) /* a connection is tried for less */

static struct weft_coordinator_thread *start(const char *job, uint16_t *port)
{
    struct weft_coordinator_options options;
    struct weft_coordinator_thread *thread = NULL;
    struct weft_error error = {0};
    weft_coordinator_options_init(&options);
    options.job = job;
    if (weft_coordinator_thread_start(weft_env_system(), "127.0.0.1", 0, &options, port, &thread, &error) < 0)
        fail_msg("%s", error.text);
    return thread;
}

/* A socket that listens, and whose connections are not answered. */
static int listen_silently(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static enum weft_status find(const uint16_t *ports, uint32_t count, uint64_t timeout_ns, uint16_t *port,
                             char seen[400])
{
    return weft_coordinator_find(weft_env_system(), "127.0.0.1", ports, count, "mine", timeout_ns, port, seen,
                                 400);
}

static void not_found(uint16_t at, uint64_t timeout_ns, const char *words)
{
    char seen[400];
    uint16_t port = 7;
    assert_int_equal(find(&at, 1, timeout_ns, &port, seen), WEFT_ERR_DEADLINE);
    assert_int_equal(port, 7);
    if (!strstr(seen, words)) fail_msg("\"%s\" lacks \"%s\"", seen, words);
}

/* ---- the worker of a job of one ---- */

struct worker {
    struct weft_net *net;
    struct weft_control_client *client;
    bool has_go, is_closed;
};

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct worker *worker = context;
    assert_int_equal(control_member_send_endpoints(worker->client), WEFT_OK);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct worker *worker = context;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ROSTER)
        assert_int_equal(control_member_send_ready(worker->client, message->roster), WEFT_OK);
    worker->has_go |= message->body_case == WEFT__CONTROL__CONTROL__BODY_GO;
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    ((struct worker *)context)->is_closed = true;
}

static void step_until(struct worker *worker, const bool *condition)
{
    for (int i = 0; i < STEPS_MAX && !*condition; i++) weft_net_step(worker->net, 10);
    assert_true(*condition);
}

static void worker_join(struct worker *worker, uint16_t port)
{
    struct weft_control_client_options options;
    struct weft_error error = {0};
    *worker = (struct worker){0};
    weft_control_client_options_init(&options);
    options.host = "127.0.0.1";
    options.port = port;
    options.job = "mine";
    options.role = WEFT__CONTROL__ROLE__ROLE_WORKER;
    options.welcomed = on_welcomed;
    options.message = on_message;
    options.closed = on_closed;
    options.context = worker;
    assert_int_equal(weft_net_create(weft_env_system(), &worker->net), WEFT_OK);
    if (weft_control_client_start(weft_env_system(), worker->net, &options, &worker->client, &error) < 0)
        fail_msg("%s", error.text);
    step_until(worker, &worker->has_go);
}

static void worker_end(struct worker *worker)
{
    weft_net_free(worker->net);
    weft_control_client_free(worker->client);
}

/* ---- tests ---- */

static void found_among_other_processes(void **state)
{
    uint16_t ports[4], port = 0;
    char seen[400];
    int silent = listen_silently(&ports[0]);
    int closed = listen_silently(&ports[1]);
    struct weft_coordinator_thread *other = start("other", &ports[2]), *mine = start("mine", &ports[3]);
    close(closed);
    assert_int_equal(find(ports, 4, WEFT_SECONDS(20), &port, seen), WEFT_OK);
    assert_int_equal(port, ports[3]);
    weft_coordinator_thread_stop(other);
    weft_coordinator_thread_stop(mine);
    close(silent);
}

static void what_is_no_coordinator_of_the_job_is_described(void **state)
{
    uint16_t silent_port, other_port, closed_port;
    int silent = listen_silently(&silent_port);
    close(listen_silently(&closed_port));
    struct weft_coordinator_thread *other = start("other", &other_port);
    not_found(silent_port, LOOK_NS, "a process that does not answer as a coordinator");
    not_found(closed_port, TRY_NS, "Connection refused: no process listens on that port");
    not_found(other_port, LOOK_NS, "the coordinator of job other");
    close(silent);
    weft_coordinator_thread_stop(other);
}

static void a_port_in_use_is_an_error(void **state)
{
    uint16_t port;
    struct weft_error error = {0};
    struct weft_coordinator_options options;
    struct weft_coordinator_thread *second = NULL;
    struct weft_coordinator_thread *thread = start("mine", &port);
    weft_coordinator_options_init(&options);
    assert_int_equal(weft_coordinator_thread_start(weft_env_system(), "127.0.0.1", port, &options, NULL,
                                                   &second, &error),
                     WEFT_ERR_EXISTS);
    assert_null(second);
    assert_non_null(strstr(error.text, "is already in use"));
    weft_coordinator_thread_stop(thread);
}

static void the_wait_ends_with_the_job(void **state)
{
    uint16_t port;
    struct worker worker;
    struct weft_coordinator_thread *thread = start("mine", &port);
    worker_join(&worker, port);
    not_found(port, LOOK_NS, "the coordinator of job mine, which has begun");
    assert_false(weft_coordinator_thread_ended_in_order(thread));
    assert_int_equal(weft_control_client_leave(worker.client, "done"), WEFT_OK);
    step_until(&worker, &worker.is_closed);
    weft_coordinator_thread_wait(thread, WEFT_SECONDS(20));
    assert_true(weft_coordinator_thread_ended_in_order(thread));
    weft_coordinator_thread_stop(thread);
    worker_end(&worker);
}

static void the_wait_has_a_limit(void **state)
{
    uint16_t port;
    struct worker worker;
    struct weft_coordinator_thread *thread = start("mine", &port);
    worker_join(&worker, port);
    weft_coordinator_thread_wait(thread, WEFT_MS(50));
    assert_false(weft_coordinator_thread_ended_in_order(thread));
    weft_coordinator_thread_stop(thread);
    step_until(&worker, &worker.is_closed);
    worker_end(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_among_other_processes),
        cmocka_unit_test(what_is_no_coordinator_of_the_job_is_described),
        cmocka_unit_test(a_port_in_use_is_an_error),
        cmocka_unit_test(the_wait_ends_with_the_job),
        cmocka_unit_test(the_wait_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
