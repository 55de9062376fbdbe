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

/* One without the job's secret is told so, gets nothing through, and delays nobody: those who hold it talk at once. He is
 * the one who dials (the smallest id), and then the one who is dialled. */
static void test_wrong_secret(void **state)
{
    if (net_is_sim(flavour)) return; /* nobody proves anything in a simulation */
    for (int impostor = 0; impostor < 3; impostor += 2) {
        struct net net;
        struct op stray, good, recv, never;
        char in[8], none[8];
        int honest = impostor == 0 ? 2 : 0;
        net_impostor = impostor;
        net_open(&net, flavour, 3);
        net_impostor = -1;
        struct weft_peer *to_us = net.peers[impostor][1];
        if (to_us) op_send(&stray, to_us, TAG(1), NULL, "stray", 5);
        if (net.peers[1][impostor]) op_recv(&never, net.transports[1], id_of(impostor), TAG(1), none, 8);
        op_recv(&recv, net.transports[1], id_of(honest), TAG(1), in, 8);
        op_send(&good, net.peers[honest][1], TAG(1), NULL, "good", 4);
        PUMP_UNTIL(&net, recv.fired && good.fired);
        assert_memory_equal(in, "good", 4);
        int dialler = impostor == 0 ? impostor : 1; /* it learns why; the other one only closes the door */
        if (net.peers[dialler][dialler == 1 ? impostor : 1]) {
            PUMP_UNTIL(&net, net.failed_count[dialler] > 0);
            assert_int_equal(net.failed_status[dialler], WEFT_ERR_AUTH);
        }
        struct weft_transport_stats stats;
        weft_transport_stats(net.transports[1], &stats);
        assert_int_equal(stats.received_payload_bytes, 4);
        if (to_us && impostor == 0) assert_int_equal(stray.status, WEFT_ERR_AUTH);
        net_close(&net);
        if (to_us) assert_int_equal(stray.fired, 1);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_malformed_address),
    cmocka_unit_test(test_wrong_nonce),
    cmocka_unit_test(test_wrong_secret),
};
const struct conformance_part conformance_strangers = {"strangers", tests, sizeof tests / sizeof *tests};
