/* test_wrap.c - what the wrappers are for: lost messages, silent peers, shaped links; on the simulator. */
#include <string.h>

#include "tests/transport/net.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

/* A cut peer: nothing completes, nobody is told, until somebody above gives up; the third endpoint is not touched. */
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
    PUMP_UNTIL(&net, send.fired && recv.fired && back.fired && back_recv.fired && net.failed_count[0] && net.failed_count[1]);
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

/* 20 messages of 100,000 bytes at 10 MB/s last 0.2 s of virtual time, not much more and not less. */
static void test_rate(void **state)
{
    static const struct flavour shaped = {"delay-sim", "delay:sim", NULL, "rate_bytes=10000000,delay_us=1000"};
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

static void test_parameters(void **state)
{
    static const char *const bad[][2] = {
        {"fault:sim", "drop=2"}, {"fault:sim", "drop"}, {"fault:sim", "speed=1"}, {"delay:sim", "drop=0.1"},
        {"delay:sim", "delay_us=x"}, {"delay:sim", "rate_bytes=-1"}, {"fault:nothing", ""}, {"delay:", ""},
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
    } rows[] = {{"", "sim", NULL}, {"fault", "fault:sim", ""}, {"fault:", "fault:sim", ""}, {"fault:drop=0.01,seed=7", "fault:sim", "drop=0.01,seed=7"},
                {"delay:delay_us=5", "delay:sim", "delay_us=5"}};
    struct weft_transport_options options;
    char room[WEFT_TRANSPORT_BACKEND_BYTES_MAX], longer[200];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        weft_transport_options_init(&options);
        assert_int_equal(weft_transport_options_wrap(&options, "sim", rows[i].wrap, room), WEFT_OK);
        assert_string_equal(options.backend, rows[i].backend);
        if (rows[i].parameters) assert_string_equal(options.wrap, rows[i].parameters);
        else assert_null(options.wrap);
    }
    memset(longer, 'f', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(weft_transport_options_wrap(&options, "sim", longer, room), WEFT_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_users),
        cmocka_unit_test(test_cut),  cmocka_unit_test(test_kill),       cmocka_unit_test(test_drop_is_seeded),
        cmocka_unit_test(test_rate), cmocka_unit_test(test_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
