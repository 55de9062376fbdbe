/* test_tcp.c - specific to the tcp backend: silent hosts and stopped processes, settings, statistics. Runs
 * in its own network namespace, whose loopback can be switched off to make a host silent. */
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/transport/net.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { BIG = 24 << 20 };

static const struct flavour impatient = {"tcp", "tcp", .tune = "lost_ms=2000"};
static const struct flavour tight = {"tcp", "tcp", .tune = "budget=64k"};
static bool own_network;

static void switch_loopback(bool on)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0);
    if (on) request.ifr_flags |= IFF_UP;
    else request.ifr_flags = (short)(request.ifr_flags & ~IFF_UP);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* Idle: the kernel's keepalive probes detect it. */
static void test_silent_while_idle(void **state)
{
    struct net net;
    if (!own_network) skip();
    net_open(&net, &impatient, 2);
    net_connect_pair(&net);
    switch_loopback(false);
    PUMP_UNTIL(&net, net.failed_count[0] == 1 && net.failed_count[1] == 1);
    assert_int_equal(net.failed_status[0], WEFT_ERR_PEER_LOST);
    switch_loopback(true);
    net_close(&net);
}

/* With bytes in flight the kernel alone would retry for a quarter of an hour. */
static void test_silent_while_busy(void **state)
{
    struct net net;
    struct op send, recv;
    if (!own_network) skip();
    net_open(&net, &impatient, 2);
    net_connect_pair(&net);
    switch_loopback(false);
    char in[2];
    op_recv(&recv, net.transports[1], 100, TAG(1), in, 2);
    op_send(&send, net.peers[0][1], TAG(1), NULL, "up", 2);
    PUMP_UNTIL(&net, net.failed_count[0] == 1 && net.failed_count[1] == 1);
    assert_int_equal(net.failed_status[0], WEFT_ERR_PEER_LOST);
    assert_int_equal(recv.fired, 1);
    assert_int_equal(recv.status, WEFT_ERR_PEER_LOST);
    switch_loopback(true);
    net_close(&net);
}

/* A process that is stopped for longer is not lost: its host still acknowledges. */
static void test_stopped_peer(void **state)
{
    struct net net;
    struct op send, recv;
    char *out = calloc(1, BIG), *in = calloc(1, BIG);
    net_open(&net, &impatient, 2);
    net_connect_pair(&net);
    fill(out, BIG, 3);
    op_recv(&recv, net.transports[1], 100, TAG(2), in, BIG);
    op_send(&send, net.peers[0][1], TAG(2), NULL, out, BIG);
    /* until it is granted: then the peer stops in the middle */
    while (recv.receive.payload_bytes == 0) net_pump(&net);
    for (uint64_t end_ns = net_now_ns() + WEFT_MS(4500); net_now_ns() < end_ns;)
        weft_transport_progress(net.transports[0], 64);
    assert_int_equal(net.failed_count[0], 0);
    assert_int_equal(send.fired, 0);
    PUMP_UNTIL(&net, send.fired && recv.fired);
    assert_int_equal(recv.status, WEFT_OK);
    assert_true(filled(in, BIG, 3));
    net_close(&net);
    free(out);
    free(in);
}

/* Unconsumed messages are bounded: the rest is announced and arrives when received. */
static void test_budget(void **state)
{
    enum { MESSAGES = 400, BYTES = 4000 };
    static struct op sends[MESSAGES], receives[MESSAGES];
    static char out[BYTES], in[BYTES];
    struct net net;
    struct weft_transport_stats stats;
    int done = 0;
    net_open(&net, &tight, 2);
    net_connect_pair(&net);
    fill(out, BYTES, 8);
    for (int i = 0; i < MESSAGES; i++) op_send(&sends[i], net.peers[0][1], TAG(i), NULL, out, BYTES);
    for (int i = 0; i < 2000; i++) net_pump(&net);
    for (int i = 0; i < MESSAGES; i++) done += sends[i].fired;
    assert_in_range(done, 1, (64 << 10) / BYTES);
    weft_transport_stats(net.transports[1], &stats);
    assert_true(stats.memory_bytes < (1 << 20));
    for (int i = MESSAGES - 1; i >= 0; i--) {
        memset(in, 0, BYTES);
        op_recv(&receives[i], net.transports[1], 100, TAG(i), in, BYTES);
        PUMP_UNTIL(&net, receives[i].fired);
        assert_true(filled(in, BYTES, 8));
    }
    PUMP_UNTIL(&net, sends[0].fired && sends[MESSAGES - 1].fired);
    net_close(&net);
}

static void test_settings(void **state)
{
    static const char *const wrong[] = {"budget=1", "budget=2g", "lost_ms=10", "lost_ms=x",
                                        "host=",    "speed=9",   "budget",     "host=no.such.host.here"};
    struct weft_transport_options options;
    struct weft_transport *transport;
    weft_transport_options_init(&options);
    options.backend = "tcp";
    options.id = 1;
    options.nonce = 2;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct weft_error error = {0};
        options.tune = wrong[i];
        assert_true(weft_transport_open(weft_env_system(), &options, &transport, &error) < 0);
        assert_true(error.text[0] != 0);
    }
    struct weft_error error = {0};
    options.tune = NULL;
    options.devices = "nosuchdevice7,andnosuch8";
    assert_int_equal(weft_transport_open(weft_env_system(), &options, &transport, &error),
                     WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "nosuchdevice7"));
    options.devices = "nosuchdevice7,lo";
    options.tune = "budget=1m,lost_ms=5000";
    assert_int_equal(weft_transport_open(weft_env_system(), &options, &transport, NULL), WEFT_OK);
    weft_transport_free(transport);
}

/* The message size for long payloads is equal for all endpoints, so that ranks agree on it: with all
 * options, and through a wrapper. */
static void test_message_bytes(void **state)
{
    static const char *const backends[] = {"tcp", "trace:tcp", "tcp"};
    for (int i = 0; i < 3; i++) {
        struct weft_transport_options options;
        struct weft_transport *transport;
        weft_transport_options_init(&options);
        options.backend = backends[i];
        options.eager_bytes_max = i == 2 ? 1000 : 0;
        options.wrap = i == 1 ? "trace:file=/dev/null" : NULL;
        assert_int_equal(weft_transport_open(weft_env_system(), &options, &transport, NULL), WEFT_OK);
        assert_int_equal(weft_transport_message_bytes(transport), 512 << 10);
        weft_transport_close(transport);
        weft_transport_free(transport);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_bytes),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_stopped_peer),
        cmocka_unit_test(test_silent_while_idle),
        cmocka_unit_test(test_silent_while_busy),
    };
    own_network = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
    if (own_network) switch_loopback(true);
    return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
