/* receive.c - the receiver of a message: posted receives, cancelled ones, channel handlers, discarded
 * tags. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

static void test_cancel(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    unsigned char in[3][8] = {{0}};
    struct op first, second, matched, send;
    op_recv(&first, net.transports[1], id_of(0), TAG(1), in[0], 8);
    op_recv(&second, net.transports[1], id_of(0), TAG(1), in[1], 8);
    op_inside_call = true;
    weft_transport_cancel(net.transports[1], &first.receive);
    op_inside_call = false;
    PUMP_UNTIL(&net, first.fired);
    assert_int_equal(first.status, WEFT_ERR_CANCELLED);
    assert_int_equal(op_send(&send, net.peers[0][1], TAG(1), NULL, "abc", 3), WEFT_IN_PROGRESS);
    PUMP_UNTIL(&net, second.fired && send.fired);
    assert_int_equal(second.status, WEFT_OK);
    assert_memory_equal(in[1], "abc", 3);
    assert_int_equal(in[0][0], 0);
    op_send(&send, net.peers[0][1], TAG(2), NULL, "def", 3); /* a matched one completes normally */
    for (int i = 0; i < 20; i++) net_pump(&net);
    op_recv(&matched, net.transports[1], id_of(0), TAG(2), in[2], 8);
    weft_transport_cancel(net.transports[1], &matched.receive);
    PUMP_UNTIL(&net, matched.fired && send.fired);
    if (matched.status == WEFT_OK) assert_memory_equal(in[2], "def", 3);
    else assert_int_equal(matched.status, WEFT_ERR_CANCELLED); /* it had not arrived */
    weft_transport_cancel(net.transports[1], &matched.receive);
    for (int i = 0; i < 3; i++) net_pump(&net);
    assert_int_equal(matched.fired, 1);
    assert_int_equal(first.fired, 1);
    net_close(&net);
}

static void test_handler(void **state)
{
    const size_t lengths[] = {0, 40, NET_EAGER, 300001};
    for (int late = 0; late < 2; late++) { /* 1: the handler is set after the messages */
        struct net net;
        net_open(&net, flavour, 2);
        struct handled handled = {.count = 0};
        weft_list_init(&handled.held);
        if (!late) weft_transport_handler(net.transports[1], WEFT_CHANNEL_PUSH, on_arrival, &handled);
        struct op sends[8];
        static unsigned char out[8][300001], in[8][300001];
        for (int i = 0; i < 8; i++) {
            fill(out[i], lengths[i % 4], (uint32_t)i);
            char header[8];
            snprintf(header, sizeof header, "n%d", i);
            assert_int_equal(op_send(&sends[i], net.peers[0][1], WEFT_TAG(WEFT_CHANNEL_PUSH, 7), header,
                                     out[i], lengths[i % 4]),
                             WEFT_IN_PROGRESS);
        }
        for (int i = 0; i < 30; i++) net_pump(&net);
        if (late) weft_transport_handler(net.transports[1], WEFT_CHANNEL_PUSH, on_arrival, &handled);
        PUMP_UNTIL(&net, handled.count == 8);
        /* no buffer was named */
        for (int i = 0; i < 8; i++) assert_true(lengths[i % 4] <= NET_EAGER || !sends[i].fired);
        struct op accepts[8];
        for (int i = 0; i < 8; i++) { /* accept the first four, discard the others */
            struct weft_arrival *arrival = weft_list_first(&handled.held, struct weft_arrival, link);
            weft_list_remove(&arrival->link);
            assert_int_equal(arrival->payload_bytes, lengths[i % 4]);
            assert_int_equal(arrival->peer_id, id_of(0));
            assert_int_equal(arrival->header_bytes, 2);
            assert_int_equal(arrival->header[1], '0' + i);
            op_init(&accepts[i]);
            if (i >= 4) {
                weft_transport_discard(net.transports[1], arrival);
                continue;
            }
            if (arrival->payload_bytes > 0) {
                assert_int_equal(weft_transport_accept(net.transports[1], arrival, in[i],
                                                       arrival->payload_bytes - 1, &accepts[i].completion),
                                 WEFT_ERR_TRUNCATED);
            }
            op_inside_call = true;
            assert_int_equal(weft_transport_accept(net.transports[1], arrival, in[i], arrival->payload_bytes,
                                                   &accepts[i].completion),
                             WEFT_IN_PROGRESS);
            op_inside_call = false;
        }
        for (int i = 0; i < 8; i++) PUMP_UNTIL(&net, sends[i].fired && (i >= 4 || accepts[i].fired));
        for (int i = 0; i < 8; i++) {
            assert_int_equal(sends[i].status, WEFT_OK);
            if (i >= 4) continue;
            assert_int_equal(accepts[i].status, WEFT_OK);
            assert_true(filled(in[i], lengths[i], (uint32_t)i));
        }
        net_close(&net);
    }
}

static struct weft_arrival *announced(struct net *net, struct handled *handled, struct op *send,
                                      const unsigned char *out, size_t bytes)
{
    const int before = handled->count;
    assert_int_equal(op_send(send, net->peers[0][1], WEFT_TAG(WEFT_CHANNEL_PUSH, 7), NULL, out, bytes),
                     WEFT_IN_PROGRESS);
    PUMP_UNTIL(net, handled->count == before + 1);
    struct weft_arrival *arrival = weft_list_first(&handled->held, struct weft_arrival, link);
    weft_list_remove(&arrival->link);
    return arrival;
}

/* A payload in mapped memory is read at its sender, then discarded or accepted. Its sender ends: the payload
 * can still be read, but is not valid any more. */
static void test_peek(void **state)
{
    const size_t bytes = 300000;
    struct net net;
    net_open(&net, flavour, 2);
    struct handled handled = {.count = 0};
    weft_list_init(&handled.held);
    weft_transport_handler(net.transports[1], WEFT_CHANNEL_PUSH, on_arrival, &handled);
    unsigned char *out = net_alloc(&net, bytes), *in = net_alloc(&net, bytes);
    fill(out, bytes, 3);
    struct op sends[3], accept;
    struct weft_arrival *arrival = announced(&net, &handled, &sends[0], out, bytes);
    const void *payload = weft_transport_peek(arrival);
    if (flavour->memory && flavour->must & WEFT_TRANSPORT_MAPS) assert_non_null(payload);
    for (int i = 0; i < 10; i++) net_pump(&net);
    assert_false(sends[0].fired);
    if (payload) {
        assert_true(filled(payload, bytes, 3));
        assert_ptr_equal(weft_transport_peek(arrival), payload);
        assert_true(weft_transport_peek_is_valid(arrival));
    }
    weft_transport_discard(net.transports[1], arrival);
    PUMP_UNTIL(&net, sends[0].fired);
    assert_int_equal(sends[0].status, WEFT_OK);

    arrival = announced(&net, &handled, &sends[1], out, bytes);
    (void)weft_transport_peek(arrival);
    op_init(&accept);
    assert_int_equal(weft_transport_accept(net.transports[1], arrival, in, bytes, &accept.completion),
                     WEFT_IN_PROGRESS);
    PUMP_UNTIL(&net, sends[1].fired && accept.fired);
    assert_int_equal(accept.status, WEFT_OK);
    assert_true(filled(in, bytes, 3));

    arrival = announced(&net, &handled, &sends[2], out, bytes);
    payload = weft_transport_peek(arrival);
    weft_transport_close(net.transports[0]);
    PUMP_UNTIL(&net, arrival->lost);
    if (payload) assert_true(filled(payload, bytes, 3));
    assert_false(weft_transport_peek_is_valid(arrival));
    weft_transport_discard(net.transports[1], arrival);
    net_release_memory(&net, out);
    net_release_memory(&net, in);
    net_close(&net);
}

static bool bounds_unread(void)
{
    return !flavour->machine && !net_is_sim(flavour);
}

/* Small messages that wait with the receiver are bounded by its option; the sender keeps the others. */
static void test_unread(void **state)
{
    enum { MESSAGES = 200, BYTES = 1000 };
    struct net net;
    net_unread_bytes = WEFT_TRANSPORT_UNREAD_BYTES_MIN;
    net_open(&net, flavour, 2);
    net_unread_bytes = 0;
    exchange(&net, 10, 0, true, 1); /* each side has the other's number */
    for (int i = 0; i < 100; i++) net_pump(&net);
    static struct op sends[MESSAGES];
    static unsigned char out[BYTES];
    struct handled handled = {.count = 0};
    weft_list_init(&handled.held);
    weft_transport_handler(net.transports[1], WEFT_CHANNEL_PUSH, on_arrival, &handled);
    for (int i = 0; i < MESSAGES; i++)
        assert_int_equal(
            op_send(&sends[i], net.peers[0][1], WEFT_TAG(WEFT_CHANNEL_PUSH, 7), NULL, out, BYTES),
            WEFT_IN_PROGRESS);
    PUMP_UNTIL(&net, handled.count == MESSAGES);
    for (int i = 0; i < 100; i++) net_pump(&net);
    size_t waiting = 0;
    for (int i = 0; i < MESSAGES; i++) waiting += sends[i].fired ? BYTES : 0;
    if (bounds_unread()) assert_in_range(waiting, 1, WEFT_TRANSPORT_UNREAD_BYTES_MIN);
    while (!weft_list_empty(&handled.held)) {
        struct weft_arrival *arrival = weft_list_first(&handled.held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(net.transports[1], arrival);
    }
    for (int i = 0; i < MESSAGES; i++) PUMP_UNTIL(&net, sends[i].fired);
    net_close(&net);
}

/* A posted receive has precedence over the handler of its channel. */
static void test_posted_before_handler(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    struct handled handled = {.count = 0};
    weft_list_init(&handled.held);
    weft_transport_handler(net.transports[1], WEFT_CHANNEL_TEST, on_arrival, &handled);
    struct op recv, sends[2];
    char in[4];
    op_recv(&recv, net.transports[1], id_of(0), TAG(3), in, 4);
    op_send(&sends[0], net.peers[0][1], TAG(3), NULL, "one", 3);
    op_send(&sends[1], net.peers[0][1], TAG(3), NULL, "two", 3);
    PUMP_UNTIL(&net, recv.fired && handled.count == 1 && sends[0].fired && sends[1].fired);
    assert_memory_equal(in, "one", 3);
    struct weft_arrival *arrival = weft_list_first(&handled.held, struct weft_arrival, link);
    weft_list_remove(&arrival->link);
    weft_transport_discard(net.transports[1], arrival);
    net_close(&net);
}

/* A discarded tag: waiting and later messages are dropped and their sends complete; a posted receive still
 * gets its message. */
static void test_refuse(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    static unsigned char big[200000], in[8];
    struct op waiting, later, wanted, recv, other, other_recv;
    op_send(&waiting, net.peers[0][1], TAG(0x1100), NULL, big, sizeof big);
    for (int i = 0; i < 20; i++) net_pump(&net);
    assert_int_equal(
        weft_transport_discard_tags(net.transports[1], TAG(0x1100), WEFT_TAG(0xff, 0xff00), true), WEFT_OK);
    op_send(&later, net.peers[0][1], TAG(0x1122), NULL, big, sizeof big);
    op_send(&other, net.peers[0][1], TAG(0x2200), NULL, "other", 5);
    op_recv(&other_recv, net.transports[1], id_of(0), TAG(0x2200), in, 8);
    PUMP_UNTIL(&net, waiting.fired && later.fired && other.fired && other_recv.fired);
    assert_int_equal(waiting.status, WEFT_OK);
    assert_int_equal(later.status, WEFT_OK);
    op_recv(&recv, net.transports[1], id_of(0), TAG(0x1133), in, 8);
    op_send(&wanted, net.peers[0][1], TAG(0x1133), NULL, "wanted", 6);
    PUMP_UNTIL(&net, wanted.fired && recv.fired);
    assert_memory_equal(in, "wanted", 6);
    assert_int_equal(
        weft_transport_discard_tags(net.transports[1], TAG(0x1100), WEFT_TAG(0xff, 0xff00), false), WEFT_OK);
    op_recv(&recv, net.transports[1], id_of(0), TAG(0x1144), in, 8);
    op_send(&wanted, net.peers[0][1], TAG(0x1144), NULL, "again", 5);
    PUMP_UNTIL(&net, wanted.fired && recv.fired);
    net_close(&net);
}

/* Of many rules the newest count: memory is bounded, and a dropped rule can be set again. */
static void test_many_refusals(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    struct op unmatched, kept, recv;
    unsigned char in[8];
    for (uint64_t i = 0; i < WEFT_DISCARD_RULES_MAX + 3; i++)
        assert_int_equal(weft_transport_discard_tags(net.transports[1], TAG(0x1000 + i), UINT64_MAX, true),
                         WEFT_OK);
    op_send(&unmatched, net.peers[0][1], TAG(0x1003), NULL, "unmatched", 4);
    op_send(&kept, net.peers[0][1], TAG(0x1002), NULL, "kept", 4);
    PUMP_UNTIL(&net, unmatched.fired);
    for (int i = 0; i < 20; i++) net_pump(&net);
    op_recv(&recv, net.transports[1], id_of(0), TAG(0x1002), in, 8);
    PUMP_UNTIL(&net, recv.fired && kept.fired);
    assert_memory_equal(in, "kept", 4);
    assert_int_equal(weft_transport_discard_tags(net.transports[1], TAG(0x1002), UINT64_MAX, true), WEFT_OK);
    op_send(&unmatched, net.peers[0][1], TAG(0x1002), NULL, "unmatched", 4);
    PUMP_UNTIL(&net, unmatched.fired);
    for (uint64_t i = 0; i < WEFT_DISCARD_RULES_MAX + 3; i++)
        assert_int_equal(weft_transport_discard_tags(net.transports[1], TAG(0x1000 + i), UINT64_MAX, false),
                         WEFT_OK);
    op_send(&kept, net.peers[0][1], TAG(0x1002), NULL, "kept", 4);
    for (int i = 0; i < 20; i++) net_pump(&net);
    op_recv(&recv, net.transports[1], id_of(0), TAG(0x1002), in, 8);
    PUMP_UNTIL(&net, recv.fired && kept.fired);
    net_close(&net);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_handler),
    cmocka_unit_test(test_peek),
    cmocka_unit_test(test_unread),
    cmocka_unit_test(test_posted_before_handler),
    cmocka_unit_test(test_refuse),
    cmocka_unit_test(test_many_refusals),
};
const struct conformance_part conformance_receive = {"receive", tests, sizeof tests / sizeof *tests};
