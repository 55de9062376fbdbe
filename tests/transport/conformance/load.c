/* load.c - more operations than a backend queues: WEFT_ERR_AGAIN, flow control, nothing lost, duplicated
 * or reordered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

static void test_both_directions(void **state)
{
    enum { COUNT = 12, BYTES = 200000 };
    struct net net;
    net_open(&net, flavour, 3);
    static unsigned char out[3][COUNT][BYTES], in[3][3][COUNT][BYTES];
    static struct op sends[3][3][COUNT], recvs[3][3][COUNT];
    for (int a = 0; a < 3; a++) {
        for (int i = 0; i < COUNT; i++) fill(out[a][i], BYTES, (uint32_t)(a * 100 + i));
    }
    for (int a = 0; a < 3; a++) {
        for (int b = 0; b < 3; b++) {
            for (int i = 0; i < COUNT && a != b; i++) {
                assert_int_equal(
                    op_recv(&recvs[a][b][i], net.transports[a], id_of(b), TAG(i), in[a][b][i], BYTES),
                    WEFT_IN_PROGRESS);
                assert_int_equal(op_send(&sends[a][b][i], net.peers[a][b], TAG(i), NULL, out[a][i], BYTES),
                                 WEFT_IN_PROGRESS);
            }
        }
    }
    for (int a = 0; a < 3; a++) {
        for (int b = 0; b < 3; b++) {
            for (int i = 0; i < COUNT && a != b; i++) {
                PUMP_UNTIL(&net, sends[a][b][i].fired && recvs[a][b][i].fired);
                assert_int_equal(recvs[a][b][i].status, WEFT_OK);
                assert_true(filled(in[a][b][i], BYTES, (uint32_t)(b * 100 + i)));
            }
        }
    }
    struct weft_transport_stats stats[3];
    uint64_t sent = 0, received = 0, sent_payload = 0, received_payload = 0;
    for (int a = 0; a < 3; a++) {
        weft_transport_stats(net.transports[a], &stats[a]);
        sent += stats[a].sent_bytes;
        received += stats[a].received_bytes;
        sent_payload += stats[a].sent_payload_bytes;
        received_payload += stats[a].received_payload_bytes;
        assert_int_equal(stats[a].sent_count, 2 * COUNT);
        assert_int_equal(stats[a].received_count, 2 * COUNT);
        assert_int_equal(stats[a].refused_count, 0);
    }
    assert_int_equal(sent, received);
    assert_int_equal(sent_payload, received_payload);
    assert_int_equal(sent_payload, 6ull * COUNT * BYTES);
    net_close(&net);
}

/* Many small messages: the test progresses after AGAIN; nothing is lost or reordered. */
static void test_many_small(void **state)
{
    enum { COUNT = 20000 };
    struct net net;
    net_open(&net, flavour, 2);
    struct op *sends = calloc(COUNT, sizeof *sends), *recvs = calloc(COUNT, sizeof *recvs);
    uint32_t *out = calloc(COUNT, 4), *in = calloc(COUNT, 4);
    for (uint32_t i = 0; i < COUNT; i++) {
        out[i] = i * 7 + 1;
        enum weft_status status;
        while ((status = op_send(&sends[i], net.peers[0][1], TAG(i % 3), NULL, &out[i], 4)) ==
               WEFT_ERR_AGAIN) {
            assert_int_equal(sends[i].fired, 0);
            net_pump(&net);
        }
        assert_int_equal(status, WEFT_IN_PROGRESS);
        assert_int_equal(op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 3), &in[i], 4),
                         WEFT_IN_PROGRESS);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        PUMP_UNTIL(&net, sends[i].fired && recvs[i].fired);
        assert_int_equal(sends[i].fired + recvs[i].fired, 2);
        assert_int_equal(in[i], out[i]);
    }
    net_close(&net);
    free(sends), free(recvs), free(out), free(in);
}

/* No receives: sends are accepted or return AGAIN, and close ends every accepted one once. */
static void test_unreceived_then_close(void **state)
{
    enum { COUNT = 6000 };
    struct net net;
    net_open(&net, flavour, 2);
    struct op *sends = calloc(COUNT, sizeof *sends);
    static unsigned char small[600], large[50000];
    int taken = 0;
    for (int i = 0; i < COUNT; i++) {
        bool big = i % 8 == 0;
        enum weft_status status = op_send(&sends[i], net.peers[0][1], TAG(i), NULL, big ? large : small,
                                          big ? sizeof large : sizeof small);
        if (i % 64 == 0) net_pump(&net);
        if (status == WEFT_ERR_AGAIN) continue;
        assert_int_equal(status, WEFT_IN_PROGRESS);
        taken++;
    }
    assert_true(taken > 100);
    for (int i = 0; i < 20; i++) net_pump(&net);
    net_drop(&net, 0);
    int fired = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_true(sends[i].fired <= 1);
        fired += sends[i].fired;
        if (sends[i].fired && i % 8 == 0) assert_int_equal(sends[i].status, WEFT_ERR_CLOSED);
    }
    assert_int_equal(fired, taken);
    net_close(&net);
    free(sends);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_both_directions),
    cmocka_unit_test(test_many_small),
    cmocka_unit_test(test_unreceived_then_close),
};
const struct conformance_part conformance_load = {"load", tests, sizeof tests / sizeof *tests};
