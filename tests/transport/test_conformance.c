/* test_conformance.c - one suite, run against every backend and wrapper: `test_conformance FLAVOUR`.
 * What transport.h promises, sentence by sentence; two to four endpoints in this process. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"
#include "transport/core/core.h"

static const struct flavour flavours[] = {
    {"sim", "sim", NULL, NULL},
    {"lossy-sim", "sim", NULL, NULL},
    {"ucx-tcp", "ucx", "tcp", NULL},
    {"ucx-shm", "ucx", "shm", NULL},
    {"ucx-verbs", "ucx", "rc_verbs,ud_verbs", NULL}, /* in the virtual machine */
    {"verbs", "verbs", NULL, NULL}, /* in the virtual machine */
    {"shm", "shm", NULL, NULL, NULL, true},
    {"shm-cma", "shm", NULL, NULL, "maps=off"},
    {"shm-staged", "shm", NULL, NULL, "cma=off"},
    {"shm-granted", "shm", NULL, NULL, "cma=off", true},
    {"shm-neither", "shm", NULL, NULL, "cma=off,maps=off"},
    {"fault-shm", "fault:shm", NULL, NULL},
    {"delay-shm", "delay:shm", NULL, "delay_us=50,seed=3"},
    {"fault-sim", "fault:sim", NULL, NULL},
    {"delay-sim", "delay:sim", NULL, "delay_us=30,jitter_us=20,rate_bytes=2000000000,seed=3"},
    {"fault-ucx", "fault:ucx", "tcp", NULL},
    {"delay-ucx", "delay:ucx", "tcp", "delay_us=50,seed=3"},
    {"trace-sim", "trace:sim", NULL, "file=/dev/null"},
    {"fault-trace-delay-sim", "fault:trace:delay:sim", NULL, ";trace:file=/dev/null;delay_us=10"},
    {"trace-shm", "trace:shm", NULL, "file=/dev/null"},
    {"delay-fault-sim", "delay:fault:sim", NULL, "delay_us=10"},
};
static const struct flavour *flavour;

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

static uint32_t id_of(int index) { return 100 + (uint32_t)index; }

/* Send from endpoint 0 to 1, receive, compare; both orders of posting. */
static void exchange(struct net *net, size_t bytes, size_t shift, bool post_first, uint32_t seed)
{
    unsigned char *out = net_alloc(net, bytes + shift + 1), *in = net_alloc(net, bytes + shift + 2);
    fill(out + shift, bytes, seed);
    in[shift + bytes] = 0xA5; /* must survive */
    struct op send, recv;
    if (post_first) assert_int_equal(op_recv(&recv, net->transports[1], id_of(0), TAG(seed), in + shift, bytes), WEFT_IN_PROGRESS);
    assert_int_equal(op_send(&send, net->peers[0][1], TAG(seed), "hello", out + shift, bytes), WEFT_IN_PROGRESS);
    if (!post_first) {
        struct weft_transport_stats stats;
        do {
            net_pump(net);
            weft_transport_stats(net->transports[1], &stats);
        } while (stats.unexpected_count == 0);
        assert_int_equal(op_recv(&recv, net->transports[1], id_of(0), TAG(seed), in + shift, bytes), WEFT_IN_PROGRESS);
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
    net_give(net, out);
    net_give(net, in);
}

static const size_t sizes[] = {0, 1, 7, 255, 4096, NET_EAGER - 1, NET_EAGER, NET_EAGER + 1, 65537, 1 << 20, (1 << 20) + 3};

static void test_sizes_posted_first(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) exchange(&net, sizes[i], i % 4, true, (uint32_t)i);
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

/* Same tag: in the order sent, whatever the sizes; other tags may pass. */
static void test_order_per_tag(void **state)
{
    enum { COUNT = 24 };
    struct net net;
    net_open(&net, flavour, 2);
    static unsigned char out[COUNT][20000], in[COUNT][20000];
    struct op sends[COUNT], recvs[COUNT];
    for (int round = 0; round < 2; round++) { /* 0: receives posted first, 1: last */
        for (int i = 0; i < COUNT && round == 0; i++) op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 2), in[i], sizeof in[i]);
        for (int i = 0; i < COUNT; i++) {
            size_t bytes = i % 3 == 0 ? 20000 : i % 3 == 1 ? 10 : NET_EAGER;
            memset(out[i], i + 1, bytes);
            assert_int_equal(op_send(&sends[i], net.peers[0][1], TAG(i % 2), NULL, out[i], bytes), WEFT_IN_PROGRESS);
        }
        if (round == 1) for (int i = 0; i < 50; i++) net_pump(&net);
        for (int i = 0; i < COUNT && round == 1; i++) op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 2), in[i], sizeof in[i]);
        for (int i = 0; i < COUNT; i++) PUMP_UNTIL(&net, recvs[i].fired && sends[i].fired);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(recvs[i].status, WEFT_OK);
            assert_int_equal(recvs[i].receive.payload_bytes, i % 3 == 0 ? 20000 : i % 3 == 1 ? 10 : NET_EAGER);
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
            op_recv(&next, net.transports[1], id_of(0), TAG(1), in, 50); /* the stream goes on after it */
            op_send(&send2, net.peers[0][1], TAG(1), NULL, "next", 4);
            PUMP_UNTIL(&net, next.fired && send2.fired);
            assert_int_equal(next.status, WEFT_OK);
            assert_memory_equal(in, "next", 4);
            net_close(&net);
            free(out);
        }
    }
}

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
    op_send(&send, net.peers[0][1], TAG(2), NULL, "def", 3); /* one that has matched completes normally */
    for (int i = 0; i < 20; i++) net_pump(&net);
    op_recv(&matched, net.transports[1], id_of(0), TAG(2), in[2], 8);
    weft_transport_cancel(net.transports[1], &matched.receive);
    PUMP_UNTIL(&net, matched.fired && send.fired);
    if (matched.status == WEFT_OK) assert_memory_equal(in[2], "def", 3);
    else assert_int_equal(matched.status, WEFT_ERR_CANCELLED); /* it had not arrived yet */
    weft_transport_cancel(net.transports[1], &matched.receive);
    for (int i = 0; i < 3; i++) net_pump(&net);
    assert_int_equal(matched.fired, 1);
    assert_int_equal(first.fired, 1);
    net_close(&net);
}

/* ---- channel handlers ---- */

struct handled {
    struct weft_list held;
    int count;
    bool discard;
};

static void on_arrival(void *context, struct weft_arrival *arrival)
{
    struct handled *handled = context;
    assert_false(op_inside_call);
    handled->count++;
    weft_list_append(&handled->held, &arrival->link);
}

static void test_handler(void **state)
{
    const size_t lengths[] = {0, 40, NET_EAGER, 300001};
    for (int late = 0; late < 2; late++) { /* 1: the handler comes after the messages */
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
            assert_int_equal(op_send(&sends[i], net.peers[0][1], WEFT_TAG(WEFT_CHANNEL_PUSH, 7), header, out[i], lengths[i % 4]), WEFT_IN_PROGRESS);
        }
        for (int i = 0; i < 30; i++) net_pump(&net);
        if (late) weft_transport_handler(net.transports[1], WEFT_CHANNEL_PUSH, on_arrival, &handled);
        PUMP_UNTIL(&net, handled.count == 8);
        for (int i = 0; i < 8; i++) assert_true(lengths[i % 4] <= NET_EAGER || !sends[i].fired); /* nobody named a buffer yet */
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
                assert_int_equal(weft_transport_accept(net.transports[1], arrival, in[i], arrival->payload_bytes - 1, &accepts[i].completion),
                                 WEFT_ERR_TRUNCATED);
            }
            op_inside_call = true;
            assert_int_equal(weft_transport_accept(net.transports[1], arrival, in[i], arrival->payload_bytes, &accepts[i].completion),
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

/* A posted receive goes before the handler of its channel. */
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

/* A refused tag: what waits and what comes is dropped, its sender is told OK; a posted receive still gets its message. */
static void test_refuse(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    static unsigned char big[200000], in[8];
    struct op waiting, later, wanted, recv, other, other_recv;
    op_send(&waiting, net.peers[0][1], TAG(0x1100), NULL, big, sizeof big);
    for (int i = 0; i < 20; i++) net_pump(&net);
    assert_int_equal(weft_transport_refuse(net.transports[1], TAG(0x1100), WEFT_TAG(0xff, 0xff00), true), WEFT_OK);
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
    assert_int_equal(weft_transport_refuse(net.transports[1], TAG(0x1100), WEFT_TAG(0xff, 0xff00), false), WEFT_OK);
    op_recv(&recv, net.transports[1], id_of(0), TAG(0x1144), in, 8);
    op_send(&wanted, net.peers[0][1], TAG(0x1144), NULL, "again", 5);
    PUMP_UNTIL(&net, wanted.fired && recv.fired);
    net_close(&net);
}

/* ---- load ---- */

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
                assert_int_equal(op_recv(&recvs[a][b][i], net.transports[a], id_of(b), TAG(i), in[a][b][i], BYTES), WEFT_IN_PROGRESS);
                assert_int_equal(op_send(&sends[a][b][i], net.peers[a][b], TAG(i), NULL, out[a][i], BYTES), WEFT_IN_PROGRESS);
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

/* Many small messages, more than a backend queues: AGAIN is answered by progress, nothing is lost or swapped. */
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
        while ((status = op_send(&sends[i], net.peers[0][1], TAG(i % 3), NULL, &out[i], 4)) == WEFT_ERR_AGAIN) {
            assert_int_equal(sends[i].fired, 0);
            net_pump(&net);
        }
        assert_int_equal(status, WEFT_IN_PROGRESS);
        assert_int_equal(op_recv(&recvs[i], net.transports[1], id_of(0), TAG(i % 3), &in[i], 4), WEFT_IN_PROGRESS);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        PUMP_UNTIL(&net, sends[i].fired && recvs[i].fired);
        assert_int_equal(sends[i].fired + recvs[i].fired, 2);
        assert_int_equal(in[i], out[i]);
    }
    net_close(&net);
    free(sends), free(recvs), free(out), free(in);
}

/* Nobody receives: sends are taken or answer AGAIN, and close ends every one that was taken, once. */
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
        enum weft_status status = op_send(&sends[i], net.peers[0][1], TAG(i), NULL, big ? large : small, big ? sizeof large : sizeof small);
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

/* He says three things and goes; who listens only afterwards still hears the small ones, in order, and no more. */
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
    for (int i = 0; i < 2; i++) assert_int_equal(op_recv(&receives[i], net.transports[1], id_of(0), TAG(5), in[i], sizeof in[i]), WEFT_IN_PROGRESS);
    assert_int_equal(op_recv(&receives[2], net.transports[1], id_of(0), TAG(5), in[0], 1), WEFT_ERR_PEER_LOST);
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

/* The outside says a peer is dead: everything with it ends, in every state it can be in; the other peer lives on. */
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
    weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "told by the test");
    weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "told twice");
    op_inside_call = false;
    PUMP_UNTIL(&net, posted.fired && moving_recv.fired && sending.fired && net.failed_count[0]);
    assert_int_equal(posted.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(moving_recv.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(sending.status, WEFT_ERR_PEER_LOST);
    assert_int_equal(net.failed_count[0], 1);
    assert_int_equal(net.failed_id[0], id_of(1));
    assert_string_equal(net.failed_text[0], "told by the test");
    assert_int_equal(weft_peer_status(net.peers[0][1]), WEFT_ERR_PEER_LOST);
    struct weft_arrival *arrival = weft_list_first(&handled.held, struct weft_arrival, link);
    assert_true(arrival->lost);
    struct op accept;
    op_init(&accept);
    assert_int_equal(weft_transport_accept(net.transports[0], arrival, in[2], sizeof in[2], &accept.completion), WEFT_ERR_PEER_LOST);
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

/* ---- strangers ---- */

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
    for (size_t i = 0; i < 24; i++) { /* every broken byte of our own part */
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
    if (net.peers[0][1]) op_send(&stray, net.peers[0][1], TAG(1), NULL, "stray", 5);
    do {
        net_pump(&net);
        weft_transport_stats(net.transports[1], &stats);
    } while (net.peers[0][1] && stats.refused_count == 0);
    assert_int_equal(recv.fired, 0);
    assert_int_equal(stats.received_bytes, 0);
    assert_null(weft_transport_peer(net.transports[1], id_of(0)));
    op_send(&good, net.peers[2][1], TAG(1), NULL, "good", 4);
    PUMP_UNTIL(&net, recv.fired && good.fired);
    assert_memory_equal(in, "good", 4);
    net_close(&net);
}

/* With nothing to do the endpoint arms its descriptor and it stays quiet; a message makes it readable. */
static void test_sleep(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    if (net_is_sim(flavour)) { /* nothing sleeps in virtual time */
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

static void test_self(void **state)
{
    struct net net;
    net_open(&net, flavour, 1);
    static unsigned char out[100000], in[100000];
    const size_t lengths[] = {0, 5, NET_EAGER, 100000};
    for (int i = 0; i < 4; i++) {
        struct op send, recv;
        fill(out, lengths[i], (uint32_t)i);
        assert_int_equal(op_recv(&recv, net.transports[0], id_of(0), TAG(i), in, lengths[i]), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net.peers[0][0], TAG(i), NULL, out, lengths[i]), WEFT_IN_PROGRESS);
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_int_equal(recv.status, WEFT_OK);
        assert_true(filled(in, lengths[i], (uint32_t)i));
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
    struct weft_message message = {.tag = TAG(1), .header = &byte, .header_bytes = WEFT_TRANSPORT_HEADER_BYTES_MAX + 1};
    assert_int_equal(weft_transport_send(net.peers[0][1], &message, &op.completion), WEFT_ERR_INVALID);
    message = (struct weft_message){.tag = TAG(1), .payload = NULL, .payload_bytes = 4};
    assert_int_equal(weft_transport_send(net.peers[0][1], &message, &op.completion), WEFT_ERR_INVALID);
    assert_int_equal(op_recv(&op, net.transports[0], 55, TAG(1), &byte, 1), WEFT_ERR_NOT_FOUND);
    assert_int_equal(op_recv(&op, net.transports[0], id_of(1), TAG(1), NULL, 1), WEFT_ERR_INVALID);
    assert_int_equal(op.fired, 0);
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
        for (int k = 0; k < WEFT_TRANSPORT_HEADER_BYTES_MAX; k++) assert_int_equal(recv.receive.header[k], 'a' + i);
    }
    net_close(&net);
}

/* ---- one-sided ---- */

static enum weft_status op_put(struct op *op, struct weft_remote *remote, uint64_t offset, const void *source, size_t bytes, const char *header)
{
    struct weft_put put = {
        .source = source,
        .bytes = bytes,
        .offset = offset,
        .notify = header != NULL,
        .tag = TAG(77),
        .header = header,
        .header_bytes = header ? (uint32_t)strlen(header) : 0,
    };
    op_init(op);
    op_inside_call = true;
    enum weft_status status = weft_transport_put(remote, &put, &op->completion);
    op_inside_call = false;
    return status;
}

static enum weft_status op_get(struct op *op, struct weft_remote *remote, uint64_t offset, void *destination, size_t bytes)
{
    op_init(op);
    op_inside_call = true;
    enum weft_status status = weft_transport_get(remote, offset, destination, bytes, &op->completion);
    op_inside_call = false;
    return status;
}

static struct weft_window *open_window(struct net *net, void *memory, size_t bytes, unsigned rights, struct weft_remote **remote_out)
{
    struct weft_window_options options = {
        .size = sizeof options, .address = memory, .bytes = bytes, .rights = rights, .peer_id = WEFT_ANY_PEER};
    struct weft_window *window;
    const void *key;
    size_t key_bytes;
    assert_int_equal(weft_window_open(net->transports[1], &options, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &key_bytes);
    assert_true(key_bytes <= WEFT_WINDOW_KEY_BYTES_MAX);
    assert_int_equal(weft_transport_import(net->peers[0][1], key, key_bytes, remote_out), WEFT_OK);
    assert_int_equal(weft_remote_bytes(*remote_out), bytes);
    return window;
}

static bool has_windows(const struct net *net)
{
    if (weft_transport_abilities(net->transports[0]) & WEFT_TRANSPORT_WINDOWS) return true;
    print_message("%s has no windows\n", net->flavour->name);
    return false;
}

/* Bytes put are there when the notification has come; bytes got are those of the window; nothing beside them changes. */
static void test_put_and_get(void **state)
{
    enum { BYTES = 700000 };
    const size_t lengths[] = {0, 1, 4097, 65536, 300001};
    static unsigned char memory[BYTES], expected[BYTES], source[BYTES], back[BYTES];
    struct net net;
    net_open(&net, flavour, 2);
    if (has_windows(&net)) {
        struct weft_remote *remote;
        struct weft_window *window = open_window(&net, memory, BYTES, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE, &remote);
        memset(memory, 0x11, BYTES);
        memset(expected, 0x11, BYTES);
        for (int i = 0; i < 5; i++) {
            size_t offset = 1000 + (size_t)i * 13;
            struct op put, got, heard;
            fill(source, lengths[i], (uint32_t)i);
            memcpy(expected + offset, source, lengths[i]);
            op_recv(&heard, net.transports[1], id_of(0), TAG(77), NULL, 0);
            assert_int_equal(op_put(&put, remote, offset, source, lengths[i], "there"), WEFT_IN_PROGRESS);
            PUMP_UNTIL(&net, heard.fired);
            assert_memory_equal(memory, expected, BYTES);
            assert_memory_equal(heard.receive.header, "there", 5);
            PUMP_UNTIL(&net, put.fired);
            assert_int_equal(put.status, WEFT_OK);
            assert_int_equal(op_get(&got, remote, offset, back, 300001), WEFT_IN_PROGRESS);
            PUMP_UNTIL(&net, got.fired);
            assert_int_equal(got.status, WEFT_OK);
            assert_memory_equal(back, expected + offset, 300001);
        }
        struct op closed;
        op_init(&closed);
        weft_window_close(window, &closed.completion);
        PUMP_UNTIL(&net, closed.fired);
        assert_int_equal(weft_remote_release(remote), WEFT_OK);
    }
    net_close(&net);
}

/* A closed window is not written any more, whatever was under way; its user is told. Rights and bounds hold. */
static void test_window_closes(void **state)
{
    enum { BYTES = 4 << 20, COUNT = 8 };
    struct net net;
    net_open(&net, flavour, 2);
    if (has_windows(&net)) {
        unsigned char *memory = calloc(1, BYTES), *source = malloc(BYTES), *back = malloc(BYTES);
        memset(source, 7, BYTES);
        struct weft_remote *remote;
        struct weft_window *window = open_window(&net, memory, BYTES, WEFT_WINDOW_WRITE, &remote);
        struct op puts[COUNT], got, closed, late;
        assert_int_equal(op_get(&got, remote, 0, back, 10), WEFT_ERR_INVALID);
        assert_int_equal(op_put(&late, remote, BYTES - 4, source, 5, NULL), WEFT_ERR_INVALID);
        assert_int_equal(op_put(&late, remote, UINT64_MAX, source, 5, NULL), WEFT_ERR_INVALID);
        for (int i = 0; i < COUNT; i++) assert_int_equal(op_put(&puts[i], remote, 0, source, BYTES, NULL), WEFT_IN_PROGRESS);
        assert_int_equal(weft_remote_release(remote), WEFT_ERR_BUSY);
        for (int i = 0; i < 3; i++) net_pump(&net);
        op_init(&closed);
        weft_window_close(window, &closed.completion);
        PUMP_UNTIL(&net, closed.fired);
        memset(memory, 0xEE, BYTES);
        for (int i = 0; i < COUNT; i++) {
            PUMP_UNTIL(&net, puts[i].fired);
            assert_true(puts[i].status == WEFT_OK || puts[i].status == WEFT_ERR_CANCELLED);
        }
        enum weft_status status = op_put(&late, remote, 0, source, 100, NULL);
        if (status == WEFT_IN_PROGRESS) PUMP_UNTIL(&net, late.fired);
        assert_int_equal(status == WEFT_IN_PROGRESS ? late.status : status, WEFT_ERR_CANCELLED);
        for (size_t i = 0; i < BYTES; i++) assert_int_equal(memory[i], 0xEE);
        assert_int_equal(weft_remote_release(remote), WEFT_OK);
        free(memory), free(source), free(back);
    }
    net_close(&net);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "sim";
    for (size_t i = 0; i < sizeof flavours / sizeof *flavours; i++) {
        if (strcmp(flavours[i].name, name) == 0) flavour = &flavours[i];
    }
    if (!flavour) {
        fprintf(stderr, "usage: test_conformance FLAVOUR; unknown: %s\n", name);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_posted_first),
        cmocka_unit_test(test_sizes_arrived_first),
        cmocka_unit_test(test_order_per_tag),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_handler),
        cmocka_unit_test(test_posted_before_handler),
        cmocka_unit_test(test_refuse),
        cmocka_unit_test(test_both_directions),
        cmocka_unit_test(test_many_small),
        cmocka_unit_test(test_unreceived_then_close),
        cmocka_unit_test(test_close_with_work),
        cmocka_unit_test(test_left_in_order),
        cmocka_unit_test(test_fail_peer),
        cmocka_unit_test(test_malformed_address),
        cmocka_unit_test(test_wrong_nonce),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_put_and_get),
        cmocka_unit_test(test_window_closes),
    };
    return cmocka_run_group_tests_name(flavour->name, tests, NULL, NULL);
}
