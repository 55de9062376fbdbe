/* test_wrap.c - lost messages, silent peers and shaped links, on the simulator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/transport/net.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

/* A cut peer: nothing completes and nothing is reported, until the caller gives up; the third endpoint is
 * not affected. */
static void test_cut(void **state)
{
    static const struct flavour fault = {"fault-sim", "fault:sim", NULL, NULL};
    struct net net;
    net_open(&net, &fault, 3);
    struct op send, recv, back, back_recv, other, other_recv;
    static char in[3][100000], big[100000];
    assert_int_equal(weft_transport_fault_cut(net.transports[0], 101), WEFT_OK);
    assert_int_equal(weft_transport_fault_cut(net.transports[0], 55), WEFT_ERR_NOT_FOUND);
    assert_int_equal(op_send(&send, net.peers[0][1], TAG(1), NULL, "x", 1), WEFT_IN_PROGRESS);
    op_recv(&recv, net.transports[1], 100, TAG(1), in[0], 10);
    assert_int_equal(op_send(&back, net.peers[1][0], TAG(2), NULL, big, sizeof big), WEFT_IN_PROGRESS);
    op_recv(&back_recv, net.transports[0], 101, TAG(2), in[1], sizeof in[1]);
    op_send(&other, net.peers[2][0], TAG(3), NULL, big, sizeof big);
    op_recv(&other_recv, net.transports[0], 102, TAG(3), in[2], sizeof in[2]);
    PUMP_UNTIL(&net, other.fired && other_recv.fired);
    for (int i = 0; i < 1000; i++) net_pump(&net);
    assert_int_equal(send.fired + recv.fired + back.fired + back_recv.fired, 0);
    assert_int_equal(net.failed_count[0] + net.failed_count[1], 0);
    weft_transport_fail_peer(net.transports[0], 101, WEFT_ERR_PEER_LOST, "deadline");
    weft_transport_fail_peer(net.transports[1], 100, WEFT_ERR_PEER_LOST, "deadline");
    PUMP_UNTIL(&net, send.fired && recv.fired && back.fired && back_recv.fired && net.failed_count[0] &&
                         net.failed_count[1]);
    assert_int_equal(send.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(back_recv.status, WEFT_ERR_PEER_LOST);
    net_close(&net);
}

static void test_kill(void **state)
{
    static const struct flavour fault = {"fault-sim", "fault:sim", NULL, "kill_after=5"};
    struct net net;
    net_open(&net, &fault, 2);
    struct op sends[10], recvs[10];
    char in[10];
    for (int i = 0; i < 10; i++) {
        op_recv(&recvs[i], net.transports[1], 100, TAG(i), in, 1);
        assert_int_equal(op_send(&sends[i], net.peers[0][1], TAG(i), NULL, "x", 1), WEFT_IN_PROGRESS);
    }
    for (int i = 0; i < 1000; i++) net_pump(&net);
    int sent = 0, received = 0;
    for (int i = 0; i < 10; i++) sent += sends[i].fired, received += recvs[i].fired;
    assert_int_equal(received, 5);
    assert_true(sent <= 5);
    net_close(&net); /* ends the rest */
    for (int i = 0; i < 10; i++) assert_int_equal(sends[i].fired + recvs[i].fired, 2);
}

static void test_drop_is_seeded(void **state)
{
    static const struct flavour fault = {"fault-sim", "fault:sim", NULL, "drop=0.05,seed=9"};
    int first = 0;
    for (int round = 0; round < 2; round++) {
        struct net net;
        net_open(&net, &fault, 2);
        static struct op sends[200], recvs[200];
        char in[200];
        for (int i = 0; i < 200; i++) {
            op_recv(&recvs[i], net.transports[1], 100, TAG(i), in + i, 1);
            op_send(&sends[i], net.peers[0][1], TAG(i), NULL, "x", 1);
        }
        for (int i = 0; i < 500; i++) net_pump(&net);
        int received = 0;
        for (int i = 0; i < 200; i++) received += recvs[i].fired;
        assert_true(received < 200);
        if (round == 0) first = received;
        assert_int_equal(received, first); /* the same messages every time */
        net_close(&net);
    }
}

/* 20 messages of 100,000 bytes at 10 MB/s take 0.2 s of virtual time. */
static void test_rate(void **state)
{
    static const struct flavour shaped = {"delay-sim", "delay:sim", NULL,
                                          "rate_bytes=10000000,delay_us=1000"};
    struct net net;
    net_open(&net, &shaped, 2);
    static struct op sends[20], recvs[20];
    static char out[100000], in[20][100000];
    for (int i = 0; i < 20; i++) {
        op_recv(&recvs[i], net.transports[1], 100, TAG(1), in[i], sizeof out);
        op_send(&sends[i], net.peers[0][1], TAG(1), NULL, out, sizeof out);
    }
    for (int i = 0; i < 20; i++) PUMP_UNTIL(&net, sends[i].fired && recvs[i].fired);
    uint64_t took_ns = weft_sim_now_ns(net.sim);
    assert_true(took_ns > WEFT_MS(200));
    assert_true(took_ns < WEFT_MS(215));
    net_close(&net);
}

/* ---- one-sided through wrappers ---- */

struct access {
    struct net net;
    struct weft_window *window;
    struct weft_remote *remote;
    struct op notified, put, got, closed;
};
static unsigned char memory[200000], data[200000], back[200000];

static void access_open(struct access *access, const struct flavour *flavour)
{
    const void *key;
    size_t bytes;
    net_open(&access->net, flavour, 2);
    memset(memory, 0, sizeof memory);
    fill(data, sizeof data, 4);
    struct weft_window_options options = {
        sizeof options, memory, sizeof memory, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
        WEFT_ANY_PEER};
    assert_int_equal(weft_window_open(access->net.transports[1], &options, &access->window, NULL), WEFT_OK);
    weft_window_key(access->window, &key, &bytes);
    assert_int_equal(weft_transport_import(access->net.peers[0][1], key, bytes, &access->remote), WEFT_OK);
    assert_int_equal(weft_remote_bytes(access->remote), sizeof memory);
}

static void access_put(struct access *access)
{
    char header[] = "note";
    op_init(&access->put);
    op_recv(&access->notified, access->net.transports[1], 100, TAG(4), NULL, 0);
    struct weft_put put = {data, sizeof data, 0, true, TAG(4), header, 4};
    assert_int_equal(weft_transport_put(access->remote, &put, &access->put.completion), WEFT_IN_PROGRESS);
    memset(header, 0, sizeof header); /* it was copied */
}

static void test_windows(void **state)
{
    static const struct flavour flavours[] = {
        {"fault-sim", "fault:sim", NULL, NULL},
        {"delay-sim", "delay:sim", NULL, "delay_us=500,rate_bytes=1000000000"},
        {"all", "fault:trace:delay:sim", NULL, ";trace:file=/dev/null;jitter_us=5"},
    };
    for (int i = 0; i < 3; i++) {
        static struct access access;
        access_open(&access, &flavours[i]);
        access_put(&access);
        assert_int_equal(weft_remote_release(access.remote), WEFT_ERR_BUSY);
        PUMP_UNTIL(&access.net, access.put.fired && access.notified.fired);
        assert_int_equal(access.put.status | access.notified.status, WEFT_OK);
        assert_memory_equal(access.notified.receive.header, "note", 4);
        assert_true(filled(memory, sizeof memory, 4));
        if (i == 1) assert_true(weft_sim_now_ns(access.net.sim) >= 700000);
        op_init(&access.got);
        assert_int_equal(weft_transport_get(access.remote, 1000, back, 1000, &access.got.completion),
                         WEFT_IN_PROGRESS);
        PUMP_UNTIL(&access.net, access.got.fired);
        assert_memory_equal(back, data + 1000, 1000);
        struct weft_transport_stats stats;
        weft_transport_stats(access.net.transports[0], &stats);
        assert_int_equal(stats.put_bytes, sizeof data);
        assert_int_equal(stats.get_count, 1);
        op_init(&access.closed);
        weft_window_close(access.window, &access.closed.completion);
        PUMP_UNTIL(&access.net, access.closed.fired);
        access_put(&access);
        weft_transport_cancel(access.net.transports[1], &access.notified.receive);
        PUMP_UNTIL(&access.net, access.put.fired && access.notified.fired);
        assert_int_equal(access.put.status, WEFT_ERR_CANCELLED);
        assert_int_equal(weft_remote_release(access.remote), WEFT_OK);
        net_close(&access.net);
    }
}

/* A cut: the put is accepted and does not complete until the caller gives up. */
static void test_windows_cut(void **state)
{
    static const struct flavour fault = {"fault-sim", "trace:fault:sim", NULL, "file=/dev/null"};
    static struct access access;
    access_open(&access, &fault);
    assert_int_equal(weft_transport_fault_cut(access.net.transports[0], 101), WEFT_OK);
    access_put(&access);
    op_init(&access.got);
    weft_transport_get(access.remote, 0, back, 10, &access.got.completion);
    for (int i = 0; i < 1000; i++) net_pump(&access.net);
    assert_int_equal(access.put.fired + access.got.fired + access.notified.fired + access.net.failed_count[0],
                     0);
    assert_int_equal(memory[1], 0);
    weft_transport_fail_peer(access.net.transports[0], 101, WEFT_ERR_PEER_LOST, "deadline");
    PUMP_UNTIL(&access.net, access.put.fired && access.got.fired && access.net.failed_count[0]);
    assert_int_equal(access.put.status, WEFT_ERR_PEER_LOST);
    net_close(&access.net);
}

/* A break is detected: the operation ends and the peer is reported. */
static void test_break(void **state)
{
    static const struct flavour fault = {"fault-sim", "fault:sim", NULL, "break=1"};
    static struct access access;
    access_open(&access, &fault);
    access_put(&access);
    PUMP_UNTIL(&access.net, access.put.fired && access.net.failed_count[0]);
    assert_int_equal(access.put.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(access.net.failed_count[0], 1);
    assert_non_null(strstr(access.net.failed_text[0], "broke"));
    net_close(&access.net);
}

/* ---- the trace ---- */

static char *slurp(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "re");
    if (!file) fail_msg("no file %s", path);
    char *text = calloc(1, 4 << 20);
    *bytes_out = fread(text, 1, (4 << 20) - 1, file);
    fclose(file);
    return text;
}

static int occurrences(const char *text, const char *word)
{
    int count = 0;
    while ((text = strstr(text, word))) count++, text++;
    return count;
}

static void test_trace(void **state)
{
    static const struct flavour traced = {"trace-sim", "trace:sim", NULL, "file=test_wrap_trace.json"};
    static struct access access;
    size_t bytes;
    char in[64];
    access_open(&access, &traced);
    access_put(&access);
    PUMP_UNTIL(&access.net, access.put.fired && access.notified.fired);
    op_init(&access.got);
    weft_transport_get(access.remote, 0, back, 100, &access.got.completion);
    struct op sends[2], recvs[2];
    op_recv(&recvs[0], access.net.transports[1], 100, TAG(5), in, sizeof in);
    op_recv(&recvs[1], access.net.transports[1], 100, TAG(6), in, sizeof in);
    for (int i = 0; i < 2; i++)
        op_send(&sends[i], access.net.peers[0][1], TAG(5), NULL, i ? (void *)data : (void *)"x",
                i ? 30000 : 1);
    weft_transport_cancel(access.net.transports[1], &recvs[1].receive);
    PUMP_UNTIL(&access.net, access.got.fired && sends[0].fired && recvs[0].fired && recvs[1].fired);
    net_drop(&access.net, 1); /* with an unreceived announcement */
    PUMP_UNTIL(&access.net, sends[1].fired && access.net.failed_count[0]);
    net_close(&access.net);
    static const struct {
        const char *file, *words[8];
    } expected[] = {
        {"test_wrap_trace-100.json",
         {"{\"name\":\"put\",\"cat\":\"put\",\"ph\":\"b\"",
          "\"peer\":101,\"tag\":\"0xf00000000000004\",\"bytes\":200000,\"status\":\"WEFT_OK\",\"queue_us\":0."
          "00",
          "{\"name\":\"get\",\"cat\":\"get\",\"ph\":\"e\"",
          "\"bytes\":30000,\"status\":\"WEFT_OK\",\"queue_us\":0.00", "\"name\":\"peer le", "connect",
          "endpoint 100 sim"}},
        {"test_wrap_trace-101.json",
         {"{\"name\":\"recv\",\"cat\":\"recv\",\"ph\":\"b\"",
          "\"peer\":100,\"tag\":\"0xf00000000000005\",\"bytes\":1,\"status\":\"WEFT_OK\"",
          "\"tag\":\"0xf00000000000006\",\"bytes\":0,\"status\":\"WEFT_ERR_CANCELLED\"", "\"name\":\"close\"",
          "weft_clock"}},
    };
    for (int i = 0; i < 2; i++) {
        char *text = slurp(expected[i].file, &bytes);
        for (int k = 0; k < 8 && expected[i].words[k]; k++)
            if (!strstr(text, expected[i].words[k]))
                fail_msg("%s lacks %s:\n%s", expected[i].file, expected[i].words[k], text);
        assert_int_equal(occurrences(text, "\"ph\":\"b\""), occurrences(text, "\"ph\":\"e\""));
        assert_int_equal(text[0], '[');
        assert_string_equal(text + bytes - 3, "\n]\n");
        free(text);
        remove(expected[i].file);
    }
}

/* A put and a get that complete inside their calls are traced like others, and a delaying wrapper
 * completes them later. */
static void test_complete_in_the_call(void **state)
{
    static const struct flavour traced = {"trace-shm", "trace:shm", NULL, "file=test_wrap_over.json"},
                                delayed = {"delay-shm", "delay:shm", NULL, "delay_us=200"};
    for (int waits = 0; waits < 2; waits++) {
        struct net net;
        struct op send, recv, wrote, got, closed;
        struct weft_window *window;
        struct weft_remote *remote;
        void *owned = NULL;
        const void *key;
        size_t bytes;
        char in[4];
        net_open(&net, waits ? &delayed : &traced, 2);
        op_recv(&recv, net.transports[1], 100, TAG(1), in, 4);
        op_send(&send, net.peers[0][1], TAG(1), NULL, "meet", 4);
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_int_equal(weft_memory_alloc(weft_env_system(), 4096, &owned, NULL), WEFT_OK);
        struct weft_window_options options = {
            sizeof options, owned, 4096, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
            WEFT_ANY_PEER};
        assert_int_equal(weft_window_open(net.transports[1], &options, &window, NULL), WEFT_OK);
        weft_window_key(window, &key, &bytes);
        assert_int_equal(weft_transport_import(net.peers[0][1], key, bytes, &remote), WEFT_OK);
        struct weft_put put = {.source = data, .bytes = 1000};
        assert_int_equal(op_put(&wrote, remote, &put), waits ? WEFT_IN_PROGRESS : WEFT_OK);
        PUMP_UNTIL(&net, wrote.fired);
        assert_int_equal(op_get(&got, remote, 0, back, 1000), waits ? WEFT_IN_PROGRESS : WEFT_OK);
        PUMP_UNTIL(&net, got.fired);
        assert_int_equal(wrote.status | got.status, WEFT_OK);
        assert_memory_equal(back, data, 1000);
        assert_int_equal(weft_remote_release(remote), WEFT_OK);
        op_init(&closed);
        weft_window_close(window, &closed.completion);
        PUMP_UNTIL(&net, closed.fired);
        net_close(&net);
        weft_memory_free(weft_env_system(), owned);
    }
    size_t bytes;
    char *text = slurp("test_wrap_over-100.json", &bytes);
    assert_int_equal(occurrences(text, "\"name\":\"put\",\"cat\":\"put\",\"ph\":\"b\""), 1);
    assert_int_equal(occurrences(text, "\"name\":\"get\",\"cat\":\"get\",\"ph\":\"e\""), 1);
    free(text);
    remove("test_wrap_over-100.json");
    remove("test_wrap_over-101.json");
}

static char log_text[4000];

static void listen(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    size_t at = strlen(log_text);
    snprintf(log_text + at, sizeof log_text - at, "%s\n", text);
}

/* A file that cannot be written, at the start or later: one log line, and messages continue. */
static void test_trace_refused(void **state)
{
    static const struct {
        const char *parameters, *words;
    } cases[] = {
        {"file=/nonexistent/trace.json",
         "/nonexistent/trace-100.json cannot be written: No such file or directory; the job continues"},
        {"file=/dev/full", "/dev/full: No space left on device; tracing stops here, the job continues"},
        {"file=test_wrap_limit.json,limit=65536", "it has reached its limit"},
    };
    for (int i = 0; i < 3; i++) {
        struct flavour traced = {"trace-sim", "trace:sim", NULL, cases[i].parameters};
        struct net net;
        void (*spoke)(struct weft_env *, enum weft_log_level, const char *, const char *) =
            weft_env_system()->log;
        weft_env_system()->log = listen;
        log_text[0] = 0;
        net_open(&net, &traced, 2);
        for (int round = 0; round < 300; round++) {
            struct op send, recv;
            char in[8];
            op_recv(&recv, net.transports[1], 100, TAG(1), in, 8);
            op_send(&send, net.peers[0][1], TAG(1), NULL, "x", 1);
            PUMP_UNTIL(&net, send.fired && recv.fired);
            assert_int_equal(recv.status, WEFT_OK);
        }
        net_close(&net);
        weft_env_system()->log = spoke;
        if (!strstr(log_text, cases[i].words))
            fail_msg("not in the log: %s; but: %s", cases[i].words, log_text);
        assert_int_equal(occurrences(log_text, "the job continues"), 2); /* once per endpoint */
    }
    size_t bytes;
    char *text = slurp("test_wrap_limit-100.json", &bytes);
    assert_true(bytes <= 65536 && bytes > 60000);
    assert_string_equal(text + bytes - 3, "\n]\n");
    free(text);
    remove("test_wrap_limit-100.json");
    remove("test_wrap_limit-101.json");
}

/* ---- names and parameters ---- */

static void test_parameters(void **state)
{
    static const char *const bad[][2] = {
        {"fault:sim", "drop=2"},
        {"fault:sim", "drop"},
        {"fault:sim", "speed=1"},
        {"delay:sim", "drop=0.1"},
        {"delay:sim", "delay_us=x"},
        {"trace:sim", NULL},
        {"trace:sim", "file="},
        {"trace:sim", "file=a,limit=10"},
        {"trace:fault:sim", "file=/dev/null;drop=7"},
        {"fault:trace:sim", "drop=0.1"},
        {"delay:sim", "break=1"},
        {"fault:sim", "drop=0;file=/dev/null"},
        {"delay:fault:sim", ";delay:delay_us=1"},
        {"delay:sim", "rate_bytes=-1"},
        {"fault:nothing", ""},
        {"delay:", ""},
    };
    struct weft_sim_options sim_options;
    struct weft_sim *sim;
    weft_sim_options_init(&sim_options);
    assert_int_equal(weft_sim_create(weft_env_system(), &sim_options, &sim), WEFT_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct weft_transport_options options;
        struct weft_transport *transport;
        struct weft_error error = {0};
        weft_transport_options_init(&options);
        options.backend = bad[i][0];
        options.wrap = bad[i][1];
        options.sim = sim;
        assert_true(weft_transport_open(weft_sim_env(sim, 0), &options, &transport, &error) < 0);
        assert_true(strlen(error.text) > 20);
    }
    weft_sim_free(sim);
}

static void test_names_of_users(void **state)
{
    static const struct {
        const char *wrap, *backend, *parameters;
    } rows[] = {{"", "sim", NULL},
                {"fault", "fault:sim", ""},
                {"fault:", "fault:sim", ""},
                {"fault:drop=0.01,seed=7", "fault:sim", "drop=0.01,seed=7"},
                {"delay:delay_us=5", "delay:sim", "delay_us=5"},
                {"fault:drop=0.1;trace:file=a:b.json", "fault:trace:sim", "drop=0.1;trace:file=a:b.json"},
                {"fault;delay:delay_us=1;", "fault:delay:sim", ";delay:delay_us=1;"},
                {":drop=1", ":sim", "drop=1"}}; /* a name that open refuses */
    struct weft_transport_options options;
    char backend[WEFT_TRANSPORT_BACKEND_BYTES_MAX], longer[200];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        weft_transport_options_init(&options);
        assert_int_equal(weft_transport_options_wrap(&options, "sim", rows[i].wrap, backend), WEFT_OK);
        assert_string_equal(options.backend, rows[i].backend);
        if (rows[i].parameters) assert_string_equal(options.wrap, rows[i].parameters);
        else assert_null(options.wrap);
    }
    for (size_t i = 0; i < sizeof longer - 1; i++) longer[i] = "f;"[i % 2];
    longer[sizeof longer - 1] = 0;
    assert_int_equal(weft_transport_options_wrap(&options, "sim", longer, backend), WEFT_ERR_LIMIT);
    memset(longer, 'f', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(weft_transport_options_wrap(&options, "sim", longer, backend), WEFT_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_users), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_kill),           cmocka_unit_test(test_drop_is_seeded),
        cmocka_unit_test(test_rate),           cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_windows),        cmocka_unit_test(test_windows_cut),
        cmocka_unit_test(test_break),          cmocka_unit_test(test_trace),
        cmocka_unit_test(test_trace_refused),  cmocka_unit_test(test_complete_in_the_call),
    };
    char place[] = "/tmp/weft-test-XXXXXX"; /* traces go to the current directory */
    if (!mkdtemp(place) || chdir(place) != 0) return 99;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (chdir("/") == 0) rmdir(place);
    return failed;
}
