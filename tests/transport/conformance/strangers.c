/* strangers.c - address blobs that are broken, and endpoints of another job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

static void test_malformed_address(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    struct weft_peer *peer = NULL;
    const void *blob;
    size_t bytes;
    assert_int_equal(weft_transport_address(net.transports[1], &blob, &bytes), WEFT_OK);
    assert_true(bytes <= WEFT_TRANSPORT_ADDRESS_BYTES_MAX);
    unsigned char *copy = malloc(bytes + 1);
    assert_int_equal(weft_transport_connect(net.transports[0], 7, NULL, 0, &peer), WEFT_ERR_MALFORMED);
    for (size_t cut = 0; cut < bytes; cut++) { /* every shorter blob */
        memcpy(copy, blob, bytes);
        assert_true(weft_transport_connect(net.transports[0], 7, copy, cut, &peer) < 0);
    }
    for (size_t i = 0; i < bytes && i < 24; i++) { /* every broken byte of our own part */
        memcpy(copy, blob, bytes);
        copy[i] ^= 0x40;
        assert_true(weft_transport_connect(net.transports[0], 7, copy, bytes, &peer) < 0);
    }
    memcpy(copy, blob, bytes);
    assert_true(weft_transport_connect(net.transports[0], 7, copy, bytes + 1, &peer) < 0);
    assert_int_equal(weft_transport_connect(net.transports[0], 7, blob, bytes, &peer), WEFT_ERR_MALFORMED); /* not that id */
    assert_int_equal(weft_transport_connect(net.transports[0], id_of(1), blob, bytes, &peer), WEFT_ERR_EXISTS);
    assert_null(peer);
    assert_null(weft_transport_peer(net.transports[0], 7));
    exchange(&net, 1000, 0, true, 1);
    free(copy);
    net_close(&net);
}

/* A message of another job is dropped and counted, and disturbs nobody. */
static void test_wrong_nonce(void **state)
{
    struct net net;
    net_stranger = 0; /* the smallest id: where endpoints meet first, it is the one that dials */
    net_open(&net, flavour, 3);
    net_stranger = -1;
    char in[8];
    struct op stray, good, recv;
    struct weft_transport_stats stats;
    op_recv(&recv, net.transports[1], id_of(2), TAG(1), in, 8);
    weft_transport_stats(net.transports[1], &stats);
    if (net.peers[0][1]) op_send(&stray, net.peers[0][1], TAG(1), NULL, "stray", 5); /* NULL: his forged address was refused */
    while (net.peers[0][1] && stats.refused_count == 0) {
        net_pump(&net);
        weft_transport_stats(net.transports[1], &stats);
    }
    assert_int_equal(recv.fired, 0);
    assert_int_equal(stats.received_bytes, 0);
    assert_null(weft_transport_peer(net.transports[1], id_of(0)));
    op_send(&good, net.peers[2][1], TAG(1), NULL, "good", 4);
    PUMP_UNTIL(&net, recv.fired && good.fired);
    assert_memory_equal(in, "good", 4);
    net_close(&net);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_malformed_address),
    cmocka_unit_test(test_wrong_nonce),
};
const struct conformance_part conformance_strangers = {"strangers", tests, sizeof tests / sizeof *tests};
