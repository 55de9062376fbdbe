/* deadline.c - waits that end before their operation: the buffer is free only after the completion, and
 * may then be written, reused and freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

enum { BYTES = 3 << 20 };

static void expect_untouched(const unsigned char *memory, unsigned char value, const char *what)
{
    for (size_t i = 0; i < BYTES; i++)
        if (memory[i] != value) fail_msg("%s: byte %zu was written after the completion", what, i);
}

/* The receiver gives up at every step of a large message: after cancel the buffer is free. */
static void test_receiver_cancels(void **state)
{
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    fill(out, BYTES, 1);
    for (int pumps = 0; pumps < 12; pumps++) {
        struct net net;
        struct op send, recv;
        net_open(&net, flavour, 2);
        assert_int_equal(op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, BYTES), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES), WEFT_IN_PROGRESS);
        for (int i = 0; i < pumps; i++) net_pump(&net);
        weft_transport_cancel(net.transports[1], &recv.receive);
        PUMP_UNTIL(&net, recv.fired);
        if (recv.status == WEFT_OK) assert_true(filled(in, BYTES, 1));
        else assert_int_equal(recv.status, WEFT_ERR_CANCELLED);
        memset(in, 0xEE, BYTES);
        for (int i = 0; i < 30; i++) net_pump(&net);
        expect_untouched(in, 0xEE, "cancelled receive");
        net_close(&net);
        assert_int_equal(send.fired, 1);
        assert_int_equal(recv.fired, 1);
    }
    free(in), free(out);
}

/* The sender gives up on a peer at every step. After the completion it changes the bytes, and the peer
 * never accepts the changed bytes as the message. Meanwhile the receiver gives up on no peer. */
static void test_sender_cancels(void **state)
{
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    for (int pumps = 0; pumps < 12; pumps++) {
        struct net net;
        struct op send, recv;
        net_open(&net, flavour, 2);
        fill(out, BYTES, 1);
        memset(in, 0, BYTES);
        bool posted = pumps % 2 == 0;
        if (posted)
            assert_int_equal(op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, BYTES),
                             WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES), WEFT_IN_PROGRESS);
        for (int i = 0; i < pumps; i++) net_pump(&net);
        weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_DEADLINE, "its deadline has passed");
        PUMP_UNTIL(&net, send.fired);
        memset(out, 0xEE, BYTES);
        if (!posted && op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, BYTES) < 0)
            posted = true, recv.fired = 1;
        for (int i = 0; i < 60 && !recv.fired; i++) net_pump(&net);
        weft_transport_fail_peer(net.transports[1], id_of(0), WEFT_ERR_PEER_LOST, "reported by the test");
        PUMP_UNTIL(&net, recv.fired);
        if (recv.status == WEFT_OK && recv.receive.payload_bytes == BYTES) assert_true(filled(in, BYTES, 1));
        net_close(&net);
    }
    free(in), free(out);
}

/* The receiver's peer is declared dead during a transfer: the buffer is free after the completion. */
static void test_buffer_of_a_lost_peer(void **state)
{
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    fill(out, BYTES, 1);
    for (int pumps = 0; pumps < 12; pumps++) {
        struct net net;
        struct op send, recv;
        net_open(&net, flavour, 2);
        assert_int_equal(op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, BYTES), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES), WEFT_IN_PROGRESS);
        for (int i = 0; i < pumps; i++) net_pump(&net);
        weft_transport_fail_peer(net.transports[1], id_of(0), WEFT_ERR_DEADLINE, "its deadline has passed");
        PUMP_UNTIL(&net, recv.fired);
        if (recv.status == WEFT_OK) assert_true(filled(in, BYTES, 1));
        memset(in, 0xEE, BYTES);
        /* the peer lives and may still be sending */
        for (int i = 0; i < 60; i++) net_pump(&net);
        expect_untouched(in, 0xEE, "receive from a lost peer");
        weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "reported by the test");
        PUMP_UNTIL(&net, send.fired);
        expect_untouched(in, 0xEE, "receive from a lost peer");
        net_close(&net);
    }
    free(in), free(out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_receiver_cancels),
    cmocka_unit_test(test_sender_cancels),
    cmocka_unit_test(test_buffer_of_a_lost_peer),
};
const struct conformance_part conformance_deadline = {"deadline", tests, sizeof tests / sizeof *tests};
