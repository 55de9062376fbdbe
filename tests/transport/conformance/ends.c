/* ends.c - close in order, close with work in flight, and a peer that is reported dead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

/* A peer sends three messages and closes. A receive posted later still gets the eager ones, in order, and
 * nothing else. */
static void test_left_in_order(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    unsigned char out[2][40], in[2][40];
    struct op sends[2], receives[3];
    for (int i = 0; i < 2; i++) {
        fill(out[i], sizeof out[i], (uint32_t)i);
        op_send(&sends[i], net.peers[0][1], TAG(5), NULL, out[i], sizeof out[i]);
    }
    PUMP_UNTIL(&net, sends[0].fired && sends[1].fired);
    weft_transport_close(net.transports[0]);
    PUMP_UNTIL(&net, net.failed_count[1]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(op_recv(&receives[i], net.transports[1], id_of(0), TAG(5), in[i], sizeof in[i]),
                         WEFT_IN_PROGRESS);
    assert_int_equal(op_recv(&receives[2], net.transports[1], id_of(0), TAG(5), in[0], 1),
                     WEFT_ERR_PEER_LOST);
    PUMP_UNTIL(&net, receives[0].fired && receives[1].fired);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(receives[i].status, WEFT_OK);
        assert_true(filled(in[i], sizeof in[i], (uint32_t)i));
    }
    net_close(&net);
}

static void test_close_with_work(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    static unsigned char big[400000], in[400000];
    struct op recv_posted, recv_moving, send_moving, send_waiting, lost_recv, after;
    op_recv(&recv_posted, net.transports[0], id_of(1), TAG(1), in, 10);
    op_recv(&recv_moving, net.transports[0], id_of(1), TAG(2), in, sizeof in);
    op_send(&send_moving, net.peers[1][0], TAG(2), NULL, big, sizeof big);
    op_send(&send_waiting, net.peers[0][1], TAG(3), NULL, big, sizeof big);
    op_recv(&lost_recv, net.transports[1], id_of(0), TAG(9), in, 10);
    net_pump(&net);
    net_drop(&net, 0);
    assert_int_equal(recv_posted.fired, 1);
    assert_int_equal(recv_posted.status, WEFT_ERR_CLOSED);
    assert_int_equal(recv_moving.fired, 1);
    assert_int_equal(send_waiting.fired, 1);
    assert_int_equal(send_waiting.status, WEFT_ERR_CLOSED);
    weft_transport_fail_peer(net.transports[1], id_of(0), WEFT_ERR_PEER_LOST, "it has closed");
    PUMP_UNTIL(&net, send_moving.fired && lost_recv.fired && net.failed_count[1]);
    assert_int_equal(lost_recv.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(net.failed_count[1], 1);
    assert_int_equal(op_send(&after, net.peers[1][0], TAG(1), NULL, big, 4), WEFT_ERR_PEER_LOST);
    assert_int_equal(op_recv(&after, net.transports[1], id_of(0), TAG(1), in, 4), WEFT_ERR_PEER_LOST);
    net_close(&net);
}

/* A peer is reported dead: all its operations end, in every state; the other peer is not affected. */
static void test_fail_peer(void **state)
{
    struct net net;
    net_open(&net, flavour, 3);
    static unsigned char big[300000], in[4][300000];
    struct op posted, unexpected, moving_recv, sending, held_send, small, other_send, other_recv;
    struct handled handled = {.count = 0};
    weft_list_init(&handled.held);
    weft_transport_handler(net.transports[0], WEFT_CHANNEL_PUSH, on_arrival, &handled);
    op_recv(&posted, net.transports[0], id_of(1), TAG(1), in[0], 10);
    op_send(&unexpected, net.peers[1][0], TAG(2), NULL, big, 100);
    op_send(&small, net.peers[1][0], TAG(4), NULL, big, 100);
    op_send(&held_send, net.peers[1][0], WEFT_TAG(WEFT_CHANNEL_PUSH, 1), NULL, big, sizeof big);
    PUMP_UNTIL(&net, handled.count == 1);
    op_recv(&moving_recv, net.transports[0], id_of(1), TAG(3), in[1], sizeof in[1]);
    op_send(&sending, net.peers[0][1], TAG(5), NULL, big, sizeof big);
    op_inside_call = true;
    weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "reported by the test");
    weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "reported twice");
    op_inside_call = false;
    PUMP_UNTIL(&net, posted.fired && moving_recv.fired && sending.fired && net.failed_count[0]);
    assert_int_equal(posted.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(moving_recv.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(sending.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(net.failed_count[0], 1);
    assert_int_equal(net.failed_id[0], id_of(1));
    assert_string_equal(net.failed_text[0], "reported by the test");
    assert_int_equal(weft_peer_status(net.peers[0][1]), WEFT_ERR_PEER_LOST);
    struct weft_arrival *arrival = weft_list_first(&handled.held, struct weft_arrival, link);
    assert_true(arrival->lost);
    struct op accept;
    op_init(&accept);
    assert_int_equal(
        weft_transport_accept(net.transports[0], arrival, in[2], sizeof in[2], &accept.completion),
        WEFT_ERR_PEER_LOST);
    weft_list_remove(&arrival->link);
    weft_transport_discard(net.transports[0], arrival);
    op_recv(&other_recv, net.transports[0], id_of(2), TAG(1), in[3], sizeof in[3]);
    op_send(&other_send, net.peers[2][0], TAG(1), NULL, big, sizeof big);
    PUMP_UNTIL(&net, other_send.fired && other_recv.fired);
    assert_int_equal(other_recv.status, WEFT_OK);
    for (int i = 0; i < 10; i++) net_pump(&net);
    assert_int_equal(posted.fired + moving_recv.fired + sending.fired + net.failed_count[0], 4);
    net_close(&net);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_left_in_order),
    cmocka_unit_test(test_close_with_work),
    cmocka_unit_test(test_fail_peer),
};
const struct conformance_part conformance_ends = {"ends", tests, sizeof tests / sizeof *tests};
