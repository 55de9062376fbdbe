/* sleep.c - an idle endpoint stays quiet, and every event wakes it. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

/* An idle endpoint arms its descriptor, which stays quiet; a message makes it readable. */
static void test_sleep(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    if (net_is_sim(flavour)) { /* no sleep in virtual time */
        assert_int_equal(net.transports[1]->ops->fd(net.transports[1]), -1);
        net_close(&net);
        return;
    }
    exchange(&net, 100000, 0, true, 1);
    struct pollfd descriptor = {.fd = net.transports[1]->ops->fd(net.transports[1]), .events = POLLIN};
    PUMP_UNTIL(&net, core_arm(net.transports[1]) == WEFT_OK && poll(&descriptor, 1, 1) == 0);
    for (int i = 0; i < 5; i++) { /* it does not wake itself */
        assert_int_equal(core_arm(net.transports[1]), WEFT_OK);
        assert_int_equal(poll(&descriptor, 1, 0), 0);
    }
    struct op send, recv;
    char in[4];
    op_recv(&recv, net.transports[1], id_of(0), TAG(7), in, 4);
    op_send(&send, net.peers[0][1], TAG(7), NULL, "wake", 4);
    int readable = 0;
    for (int i = 0; i < 6000 && readable == 0; i++) {
        weft_transport_progress(net.transports[0], 64); /* the sender only */
        readable = poll(&descriptor, 1, 10);
    }
    assert_int_equal(readable, 1);
    PUMP_UNTIL(&net, send.fired && recv.fired);
    net_close(&net);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sleep),
};
const struct conformance_part conformance_sleep = {"sleep", tests, sizeof tests / sizeof *tests};
