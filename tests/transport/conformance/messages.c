/* messages.c - single messages: sizes, alignment, order, truncation, headers, to oneself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

/* Sends from endpoint 0 to 1, receives, compares; both orders of posting. */
void exchange(struct net *net, size_t bytes, size_t shift, bool post_first, uint32_t seed)
{
    unsigned char *out = net_alloc(net, bytes + shift + 1), *in = net_alloc(net, bytes + shift + 2);
    fill(out + shift, bytes, seed);
    in[shift + bytes] = 0xA5; /* must stay unchanged */
    struct op send, recv;
    if (post_first)
        assert_int_equal(op_recv(&recv, net->transports[1], id_of(0), TAG(seed), in + shift, bytes),
                         WEFT_IN_PROGRESS);
    assert_int_equal(op_send(&send, net->peers[0][1], TAG(seed), "hello", out + shift, bytes),
                     WEFT_IN_PROGRESS);
    if (!post_first) {
        struct weft_transport_stats stats;
        do {
            net_pump(net);
            weft_transport_stats(net->transports[1], &stats);
        } while (stats.unexpected_count == 0);
        assert_int_equal(op_recv(&recv, net->transports[1], id_of(0), TAG(seed), in + shift, bytes),
                         WEFT_IN_PROGRESS);
    }
    PUMP_UNTIL(net, send.fired && recv.fired);
    assert_int_equal(send.status, WEFT_OK);
    assert_int_equal(recv.status, WEFT_OK);
    assert_int_equal(recv.receive.payload_bytes, bytes);
    assert_int_equal(recv.receive.header_bytes, 5);
    assert_memory_equal(recv.receive.header, "hello", 5);
    assert_true(filled(in + shift, bytes, seed));
    assert_int_equal(in[shift + bytes], 0xA5);
    for (int i = 0; i < 3; i++) net_pump(net);
    assert_int_equal(send.fired, 1);
    assert_int_equal(recv.fired, 1);
    net_release_memory(net, out);
    net_release_memory(net, in);
}

static const size_t sizes[] = {
    0, 1, 7, 255, 4096, NET_EAGER - 1, NET_EAGER, NET_EAGER + 1, 65537, 1 << 20, (1 << 20) + 3};

static void test_sizes_posted_first(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        exchange(&net, sizes[i], i % 4, true, (uint32_t)i);
    net_close(&net);
}

static void test_sizes_arrived_first(void **state)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct net net;
        net_open(&net, flavour, 2);
        exchange(&net, sizes[i], i % 3, false, (uint32_t)i);
        net_close(&net);
    }
}

/* All shifts of both buffers, at lengths around word and cache line sizes. */
static void test_misaligned(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    for (size_t shift = 1; shift < 9; shift++)
        for (size_t bytes = 63; bytes <= 65; bytes++)
            exchange(&net, bytes, shift, (shift + bytes) % 2, (uint32_t)(shift * 8 + bytes));
    for (size_t shift = 1; shift < 64; shift += 13) exchange(&net, 70001, shift, true, (uint32_t)shift);
    net_close(&net);
}

/* Larger than any window, slab or socket buffer. */
static void test_huge(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    exchange(&net, ((size_t)48 << 20) + 5, 3, true, 1);
    net_close(&net);
}

/* Equal tags: in the order sent, for all sizes; other tags may be reordered. */
static void test_order_per_tag(void **state)
{
    enum { COUNT = 24 };
    struct net net;
    net_open(&net, flavour, 2);
    static unsigned char out[COUNT][20000], in[COUNT][20000];
    struct op sends[COUNT], recvs[COUNT];
    for (int round = 0; round < 2; round++) { /* 0: receives posted first, 1: last */
        for (int i = 0; i < COUNT && round == 0; i++)
            op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 2), in[i], sizeof in[i]);
        for (int i = 0; i < COUNT; i++) {
            size_t bytes = i % 3 == 0 ? 20000 : i % 3 == 1 ? 10 : NET_EAGER;
            memset(out[i], i + 1, bytes);
            assert_int_equal(op_send(&sends[i], net.peers[0][1], TAG(i % 2), NULL, out[i], bytes),
                             WEFT_IN_PROGRESS);
        }
        if (round == 1) for (int i = 0; i < 50; i++) net_pump(&net);
        for (int i = 0; i < COUNT && round == 1; i++)
            op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 2), in[i], sizeof in[i]);
        for (int i = 0; i < COUNT; i++) PUMP_UNTIL(&net, recvs[i].fired && sends[i].fired);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(recvs[i].status, WEFT_OK);
            assert_int_equal(recvs[i].receive.payload_bytes, i % 3 == 0   ? 20000
                                                             : i % 3 == 1 ? 10
                                                                          : NET_EAGER);
            assert_int_equal(in[i][0], i + 1);
            assert_int_equal(in[i][recvs[i].receive.payload_bytes - 1], i + 1);
        }
    }
    net_close(&net);
}

static void test_truncation(void **state)
{
    const size_t lengths[] = {100, NET_EAGER, 100000};
    for (int arrive_first = 0; arrive_first < 2; arrive_first++) {
        for (int i = 0; i < 3; i++) {
            struct net net;
            net_open(&net, flavour, 2);
            unsigned char *out = calloc(1, lengths[i]), in[64];
            memset(in, 0x5A, sizeof in);
            struct op send, recv, next, send2;
            if (!arrive_first) op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, 50);
            op_send(&send, net.peers[0][1], TAG(1), "long", out, lengths[i]);
            for (int k = 0; k < 20 && arrive_first; k++) net_pump(&net);
            if (arrive_first) op_recv(&recv, net.transports[1], id_of(0), TAG(1), in, 50);
            PUMP_UNTIL(&net, recv.fired && send.fired);
            assert_int_equal(recv.status, WEFT_ERR_TRUNCATED);
            assert_int_equal(send.status, WEFT_OK);
            assert_int_equal(recv.receive.payload_bytes, lengths[i]);
            assert_memory_equal(recv.receive.header, "long", 4);
            for (int k = 0; k < 64; k++) assert_int_equal(in[k], 0x5A);
            op_recv(&next, net.transports[1], id_of(0), TAG(1), in, 50); /* the stream continues after it */
            op_send(&send2, net.peers[0][1], TAG(1), NULL, "next", 4);
            PUMP_UNTIL(&net, next.fired && send2.fired);
            assert_int_equal(next.status, WEFT_OK);
            assert_memory_equal(in, "next", 4);
            net_close(&net);
            free(out);
        }
    }
}

static void test_self(void **state)
{
    struct net net;
    net_open(&net, flavour, 1);
    static unsigned char out[100000], in[100000];
    const size_t lengths[] = {0, 5, NET_EAGER, 100000};
    for (int i = 0; i < 4; i++) {
        struct op send, recv;
        fill(out, lengths[i], (uint32_t)i);
        assert_int_equal(op_recv(&recv, net.transports[0], id_of(0), TAG(i), in, lengths[i]),
                         WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][0], TAG(i), NULL, out, lengths[i]), WEFT_IN_PROGRESS);
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_int_equal(recv.status, WEFT_OK);
        assert_true(filled(in, lengths[i], (uint32_t)i));
    }
    net_close(&net);
}

/* The largest header, with and without payload. */
static void test_headers(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    char header[WEFT_TRANSPORT_HEADER_BYTES_MAX + 1];
    const size_t lengths[] = {0, 1, NET_EAGER, 70000};
    static unsigned char out[70000], in[70000];
    for (int i = 0; i < 4; i++) {
        memset(header, 'a' + i, sizeof header - 1);
        header[sizeof header - 1] = 0;
        struct op send, recv;
        op_recv(&recv, net.transports[1], id_of(0), TAG(i), in, sizeof in);
        assert_int_equal(op_send(&send, net.peers[0][1], TAG(i), header, out, lengths[i]), WEFT_IN_PROGRESS);
        memset(header, 'X', sizeof header - 1); /* it was copied */
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_int_equal(recv.receive.header_bytes, WEFT_TRANSPORT_HEADER_BYTES_MAX);
        for (int k = 0; k < WEFT_TRANSPORT_HEADER_BYTES_MAX; k++)
            assert_int_equal(recv.receive.header[k], 'a' + i);
    }
    net_close(&net);
}

static void test_bad_calls(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    struct op op;
    char byte;
    op_init(&op);
    struct weft_message message = {
        .tag = TAG(1), .header = &byte, .header_bytes = WEFT_TRANSPORT_HEADER_BYTES_MAX + 1};
    assert_int_equal(weft_transport_send(net.peers[0][1], &message, &op.completion), WEFT_ERR_INVALID);
    message = (struct weft_message){.tag = TAG(1), .payload = NULL, .payload_bytes = 4};
    assert_int_equal(weft_transport_send(net.peers[0][1], &message, &op.completion), WEFT_ERR_INVALID);
    assert_int_equal(op_recv(&op, net.transports[0], 55, TAG(1), &byte, 1), WEFT_ERR_NOT_FOUND);
    assert_int_equal(op_recv(&op, net.transports[0], id_of(1), TAG(1), NULL, 1), WEFT_ERR_INVALID);
    assert_int_equal(op.fired, 0);
    net_close(&net);
}

/* Messages from and into registered memory, before and after the registration ends; one registration ends
 * with its endpoint. */
static void test_registered(void **state)
{
    enum { BYTES = (1 << 20) + 3 };
    struct net net;
    struct weft_registration *out_whole, *in_whole, *in_part;
    struct weft_error error = {0};
    net_open(&net, flavour, 2);
    unsigned char *out = calloc(1, BYTES), *in = calloc(1, BYTES);
    assert_int_equal(weft_transport_register(net.transports[0], NULL, 8, &out_whole, &error),
                     WEFT_ERR_INVALID);
    assert_int_equal(weft_transport_register(net.transports[0], out, 0, &out_whole, &error),
                     WEFT_ERR_INVALID);
    error = (struct weft_error){0};
    if (weft_transport_register(net.transports[0], out, BYTES, &out_whole, &error) < 0)
        fail_msg("%s", error.text);
    if (weft_transport_register(net.transports[1], in, BYTES, &in_whole, &error) < 0)
        fail_msg("%s", error.text);
    assert_int_equal(weft_transport_register(net.transports[1], in + 5, 4096, &in_part, &error), WEFT_OK);
    for (uint32_t round = 0; round < 3; round++) {
        struct op send, recv;
        fill(out, BYTES, round);
        assert_int_equal(op_recv(&recv, net.transports[1], id_of(0), TAG(round), in, BYTES),
                         WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][1], TAG(round), NULL, out, BYTES), WEFT_IN_PROGRESS);
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_true(send.status == WEFT_OK && recv.status == WEFT_OK && filled(in, BYTES, round));
        if (round == 0) weft_transport_unregister(in_whole);
        if (round == 1) weft_transport_unregister(out_whole);
    }
    net_close(&net); /* with in_part registered */
    free(out);
    free(in);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sizes_posted_first),
    cmocka_unit_test(test_sizes_arrived_first),
    cmocka_unit_test(test_misaligned),
    cmocka_unit_test(test_huge),
    cmocka_unit_test(test_order_per_tag),
    cmocka_unit_test(test_truncation),
    cmocka_unit_test(test_self),
    cmocka_unit_test(test_headers),
    cmocka_unit_test(test_registered),
    cmocka_unit_test(test_bad_calls),
};
const struct conformance_part conformance_messages = {"messages", tests, sizeof tests / sizeof *tests};
