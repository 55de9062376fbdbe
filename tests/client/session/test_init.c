/* test_init.c - failures of weft_init: each case gives one status and one sentence, in time, and leaves
 * nothing behind. A listener that sends prepared messages plays the coordinator. */
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "proto/proto.h"
#include "weft/weft.h"

enum script {
    SEND_NOTHING,
    SEND_JUNK,
    SEND_OLD_VERSION,
    SEND_WANT_SECRET,
    SEND_CHALLENGE_THEN_CLOSE,
    SEND_REFUSED,
    SEND_GO_FIRST,
    SEND_FALSE_WELCOME
};

struct impostor {
    enum script script;
    struct weft_net *net;
    uint16_t port;
    uint32_t hellos;
};

static void send_control(struct weft_net_connection *connection, Weft__Control__Control *message)
{
    uint8_t *data;
    size_t bytes;
    assert_int_equal(weft_control_pack(weft_env_system(), message, &data, &bytes), WEFT_OK);
    weft_net_send(connection, data, bytes);
    weft_free_bytes(weft_env_system(), data);
}

static void send_challenge(struct weft_net_connection *connection, uint32_t version, bool auth)
{
    static uint8_t nonce[WEFT_NONCE_BYTES] = {1, 2, 3};
    Weft__Control__Challenge challenge = WEFT__CONTROL__CHALLENGE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    challenge.wire_version = version;
    challenge.nonce.data = nonce;
    challenge.nonce.len = sizeof nonce;
    challenge.weft_version = "9.9.9";
    challenge.auth_required = auth;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_CHALLENGE;
    message.challenge = &challenge;
    send_control(connection, &message);
}

static void impostor_opened(void *context, struct weft_net_connection *connection)
{
    struct impostor *impostor = context;
    Weft__Control__Go go = WEFT__CONTROL__GO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    switch (impostor->script) {
    case SEND_NOTHING: break;
    case SEND_JUNK: weft_net_send(connection, "hello?", 6); break;
    case SEND_OLD_VERSION: send_challenge(connection, 42, false); break;
    case SEND_WANT_SECRET: send_challenge(connection, WEFT_WIRE_VERSION, true); break;
    case SEND_GO_FIRST:
        go.epoch = 1;
        message.body_case = WEFT__CONTROL__CONTROL__BODY_GO;
        message.go = &go;
        send_control(connection, &message);
        break;
    default: send_challenge(connection, WEFT_WIRE_VERSION, false); break;
    }
}

static void impostor_frame(void *context, struct weft_net_connection *connection, const uint8_t *data,
                           size_t bytes)
{
    struct impostor *impostor = context;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__Abort refusal = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Welcome welcome = WEFT__CONTROL__WELCOME__INIT;
    static uint8_t proof[WEFT_PROOF_BYTES];
    impostor->hellos++;
    if (impostor->script == SEND_CHALLENGE_THEN_CLOSE) {
        weft_net_close(connection);
    } else if (impostor->script == SEND_REFUSED) {
        refusal.status = WEFT_ERR_EXISTS;
        refusal.text = "rank 3 is taken";
        message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT;
        message.abort = &refusal;
        send_control(connection, &message);
    } else if (impostor->script == SEND_FALSE_WELCOME) {
        welcome.workers = 1;
        welcome.incarnation = 1;
        welcome.proof.data = proof;
        welcome.proof.len = sizeof proof;
        welcome.heartbeat_ns = WEFT_SECONDS(1);
        message.body_case = WEFT__CONTROL__CONTROL__BODY_WELCOME;
        message.welcome = &welcome;
        send_control(connection, &message);
    }
}

static void impostor_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                            const char *text)
{
}

static const struct weft_net_handler impostor_handler = {impostor_opened, impostor_frame, impostor_closed};

/* weft_init against an impostor; the sentence in `text`. */
static enum weft_status join(enum script script, const char *secret, uint64_t deadline_ms, char text[512])
{
    struct impostor impostor = {.script = script};
    struct weft_net_listener *listener;
    struct weft_options options;
    struct weft_session *session = (struct weft_session *)&impostor;
    char coordinator[64];
    assert_int_equal(weft_net_create(weft_env_system(), &impostor.net), WEFT_OK);
    assert_int_equal(weft_net_listen(impostor.net, "127.0.0.1", 0, &impostor_handler, &impostor,
                                     &impostor.port, &listener, NULL),
                     WEFT_OK);
    assert_int_equal(weft_net_start(impostor.net), WEFT_OK);
    snprintf(coordinator, sizeof coordinator, "127.0.0.1:%u", impostor.port);
    weft_options_init(&options);
    options.coordinator = coordinator;
    options.secret = secret;
    options.deadline_ms = deadline_ms;
    enum weft_status status = weft_init(&options, &session);
    assert_ptr_equal(session, &impostor); /* not written */
    snprintf(text, 512, "%s", weft_error_text(NULL));
    assert_non_null(strstr(text, "weft_init: "));
    weft_net_free(impostor.net);
    return status;
}

static void test_coordinators_that_are_none(void **state)
{
    static const struct {
        enum script script;
        const char *secret;
        uint64_t deadline_ms;
        enum weft_status status;
        const char *words;
    } cases[] = {
        {SEND_NOTHING, NULL, 150, WEFT_ERR_UNREACHABLE, "no answer from"},
        {SEND_JUNK, NULL, 10000, WEFT_ERR_MALFORMED, "does not speak weft"},
        {SEND_OLD_VERSION, NULL, 10000, WEFT_ERR_VERSION, "(weft 9.9.9) speaks wire version 42"},
        {SEND_WANT_SECRET, NULL, 10000, WEFT_ERR_AUTH, "wants a secret"},
        {SEND_WANT_SECRET, "the secret", 10000, WEFT_ERR_VERSION, "does not authenticate its control frames"},
        {SEND_CHALLENGE_THEN_CLOSE, NULL, 10000, WEFT_ERR_PEER_LOST, "lost the coordinator"},
        {SEND_REFUSED, NULL, 10000, WEFT_ERR_EXISTS, "rank 3 is taken"},
        {SEND_GO_FIRST, NULL, 10000, WEFT_ERR_MALFORMED, "out of order"},
        {SEND_FALSE_WELCOME, "the secret", 10000, WEFT_ERR_AUTH, "has another secret"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        enum weft_status status = join(cases[i].script, cases[i].secret, cases[i].deadline_ms, text);
        if (status != cases[i].status || !strstr(text, cases[i].words))
            fail_msg("case %zu: %s, \"%s\"; wanted %s, \"%s\"", i, weft_status_name(status), text,
                     weft_status_name(cases[i].status), cases[i].words);
    }
}

static enum weft_status init_with(const char *coordinator, const char *words,
                                  void (*change)(struct weft_options *))
{
    struct weft_options options;
    struct weft_session *session = NULL;
    weft_options_init(&options);
    options.coordinator = coordinator;
    options.deadline_ms = 120;
    if (change) change(&options);
    enum weft_status status = weft_init(&options, &session);
    assert_null(session);
    if (!strstr(weft_error_text(NULL), words))
        fail_msg("\"%s\" lacks \"%s\"", weft_error_text(NULL), words);
    return status;
}

static void bad_size(struct weft_options *options) { options->size = 3; }
static void bad_rank(struct weft_options *options) { options->rank = 1000000; }

static void test_bad_options(void **state)
{
    assert_int_equal(init_with(NULL, "no coordinator given", NULL), WEFT_ERR_INVALID);
    assert_int_equal(init_with("nowhere", "is not host:port", NULL), WEFT_ERR_INVALID);
    assert_int_equal(init_with("host:", "the coordinator's port", NULL), WEFT_ERR_INVALID);
    assert_int_equal(init_with("host:99999", "the coordinator's port", NULL), WEFT_ERR_INVALID);
    assert_int_equal(init_with("host:1x", "the coordinator's port", NULL), WEFT_ERR_INVALID);
    assert_int_equal(init_with("host:1", "weft_options_init", bad_size), WEFT_ERR_INVALID);
    assert_int_equal(init_with("host:1", "beyond the limit", bad_rank), WEFT_ERR_INVALID);
    assert_int_equal(weft_init(NULL, NULL), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_text(NULL), "session_out"));
}

static void test_bad_environment(void **state)
{
    setenv("WEFT_COORDINATOR", "somewhere", 1);
    assert_int_equal(init_with(NULL, "from WEFT_COORDINATOR", NULL), WEFT_ERR_INVALID);
    unsetenv("WEFT_COORDINATOR");
    setenv("WEFT_RANK", "two", 1);
    assert_int_equal(init_with("127.0.0.1:1", "from WEFT_RANK", NULL), WEFT_ERR_INVALID);
    unsetenv("WEFT_RANK");
    setenv("WEFT_SECRET_FILE", "/nonexistent/secret", 1);
    assert_int_equal(init_with("127.0.0.1:1", "/nonexistent/secret", NULL), WEFT_ERR_IO);
    setenv("WEFT_SECRET_FILE", "/dev/null", 1);
    assert_int_equal(init_with("127.0.0.1:1", "one line", NULL), WEFT_ERR_INVALID);
    unsetenv("WEFT_SECRET_FILE");
    setenv("WEFT_CLIENT_DEADLINE", "soon", 1);
    assert_int_equal(init_with("127.0.0.1:1", "client.deadline", NULL), WEFT_ERR_INVALID);
    unsetenv("WEFT_CLIENT_DEADLINE");
}

static void test_coordinator_does_not_listen(void **state)
{
    /* A free port: bind, remember, close. */
    struct weft_net *net;
    struct weft_net_listener *listener;
    uint16_t port;
    char coordinator[64];
    assert_int_equal(weft_net_create(weft_env_system(), &net), WEFT_OK);
    assert_int_equal(weft_net_listen(net, "127.0.0.1", 0, &impostor_handler, NULL, &port, &listener, NULL),
                     WEFT_OK);
    weft_net_free(net);
    snprintf(coordinator, sizeof coordinator, "127.0.0.1:%u", port);
    assert_int_equal(init_with(coordinator, "cannot reach the coordinator at 127.0.0.1", NULL),
                     WEFT_ERR_UNREACHABLE);
}

static void test_calls_without_a_session(void **state)
{
    struct weft_request request = {{0}}, garbage;
    struct weft_stats stats = {.size = sizeof stats};
    struct weft_tensor *tensor;
    float x[2] = {0};
    memset(&garbage, 0x5a, sizeof garbage);
    assert_int_equal(weft_wait(&request, 0), WEFT_OK); /* never started */
    assert_int_equal(weft_test(&request), WEFT_OK);
    assert_int_equal(weft_wait(&garbage, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_test(NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_wait(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_declare(NULL, NULL, &tensor), WEFT_ERR_INVALID);
    assert_int_equal(weft_tensor_init(NULL, x), WEFT_ERR_INVALID);
    assert_int_equal(weft_push_pull(NULL, x, x, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_push(NULL, x, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_pull(NULL, x, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_step_begin(NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_step_end(NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_all_reduce(NULL, x, x, 2, WEFT_F32, WEFT_SUM, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_reduce_scatter(NULL, x, x, 2, WEFT_F32, WEFT_SUM, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_all_gather(NULL, x, x, 2, WEFT_F32, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_broadcast(NULL, x, 2, WEFT_F32, 0, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_barrier(NULL, &request), WEFT_ERR_INVALID);
    assert_int_equal(weft_set_plan(NULL, "ring"), WEFT_ERR_INVALID);
    assert_int_equal(weft_stats_get(NULL, &stats), WEFT_ERR_INVALID);
    assert_int_equal(weft_dump_events(NULL, "x"), WEFT_ERR_INVALID);
    assert_int_equal(weft_abort(NULL, "x"), WEFT_ERR_INVALID);
    assert_null(weft_alloc(NULL, 8));
    weft_free(NULL, x);
    assert_int_equal(weft_finalize(NULL), WEFT_OK);
    assert_int_equal(weft_rank(NULL) + weft_ranks(NULL) + weft_shards(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_options),    cmocka_unit_test(test_bad_environment),
        cmocka_unit_test(test_coordinator_does_not_listen), cmocka_unit_test(test_coordinators_that_are_none),
        cmocka_unit_test(test_calls_without_a_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
