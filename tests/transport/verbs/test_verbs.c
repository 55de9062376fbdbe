/* test_verbs.c - specific to the verbs backend: queue pairs forced into error under load, several lanes
 * and rails, windows with real keys, cost of the work. Runs in the virtual machine (tests/vm); skipped
 * without a device.
 *
 *     test_verbs                                   all tests; WEFT_TEST_DEVICES as in net.c
 *     test_verbs --cost BYTES [DEVICE]             work requests, doorbells, ... per MiB of messages */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/verbs_ops.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

static struct flavour flavour = {"verbs", "verbs"};

static uint32_t id_of(int index) { return 100 + (uint32_t)index; }

static void open_tuned(struct net *net, int count, const char *tune)
{
    flavour.tune = tune;
    net_open(net, &flavour, count);
}

static uint64_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    return *random >> 33;
}

/* Messages of all sizes in both directions; `trouble` is called between them. */
struct endpoint_set {
    struct net *net;
    struct op sends[2][64], recvs[2][64];
    unsigned char *out[2][64], *in[2][64];
    size_t bytes[2][64];
    int count;
};

static void endpoint_set_start(struct endpoint_set *endpoint_set, struct net *net, int count, uint64_t seed)
{
    static const size_t sizes[] = {0, 8, 300, NET_EAGER, NET_EAGER + 1, 65536, 65537, 300000, 1 << 20};
    endpoint_set->net = net;
    endpoint_set->count = count;
    for (int i = 0; i < count; i++) {
        for (int a = 0; a < 2; a++) {
            size_t bytes = endpoint_set->bytes[a][i] = sizes[draw(&seed) % 9];
            endpoint_set->out[a][i] = malloc(bytes + 1);
            endpoint_set->in[a][i] = calloc(1, bytes + 1);
            fill(endpoint_set->out[a][i], bytes, (uint32_t)(a * 1000 + i));
            assert_int_equal(op_recv(&endpoint_set->recvs[1 - a][i], net->transports[1 - a], id_of(a),
                                     TAG(i % 4), endpoint_set->in[a][i], bytes),
                             WEFT_IN_PROGRESS);
            assert_int_equal(op_send(&endpoint_set->sends[a][i], net->peers[a][1 - a], TAG(i % 4), NULL,
                                     endpoint_set->out[a][i], bytes),
                             WEFT_IN_PROGRESS);
        }
    }
}

static bool endpoint_set_done(const struct endpoint_set *endpoint_set)
{
    for (int i = 0; i < endpoint_set->count; i++) {
        for (int a = 0; a < 2; a++) {
            if (!endpoint_set->sends[a][i].fired || !endpoint_set->recvs[a][i].fired) return false;
        }
    }
    return true;
}

static void endpoint_set_check(struct endpoint_set *endpoint_set)
{
    for (int i = 0; i < endpoint_set->count; i++) {
        for (int a = 0; a < 2; a++) {
            assert_int_equal(endpoint_set->sends[a][i].status, WEFT_OK);
            assert_int_equal(endpoint_set->recvs[1 - a][i].status, WEFT_OK);
            assert_int_equal(endpoint_set->recvs[1 - a][i].receive.payload_bytes, endpoint_set->bytes[a][i]);
            assert_true(filled(endpoint_set->in[a][i], endpoint_set->bytes[a][i], (uint32_t)(a * 1000 + i)));
            assert_int_equal(endpoint_set->sends[a][i].fired + endpoint_set->recvs[1 - a][i].fired, 2);
            free(endpoint_set->out[a][i]);
            free(endpoint_set->in[a][i]);
        }
    }
}

/* Queue pairs go into error repeatedly, on either side, under traffic: every message arrives once, in
 * order, intact; and the lanes return. */
static void break_under_load(const char *tune, uint32_t lanes, int breaks, uint64_t seed)
{
    struct net net;
    struct endpoint_set endpoint_set = {.count = 0};
    uint32_t up = 0, rebuilt = 0;
    open_tuned(&net, 2, tune);
    PUMP_UNTIL(&net, (verbs_lanes(net.transports[0], id_of(1), &up, &rebuilt), up == lanes));
    for (int round = 0; round < 4; round++) {
        endpoint_set_start(&endpoint_set, &net, 24, seed + (uint64_t)round);
        for (int i = 0; i < breaks; i++) {
            for (uint64_t pumps = draw(&seed) % 40; pumps > 0; pumps--) net_pump(&net);
            int side = (int)(draw(&seed) % 2);
            verbs_force_error(net.transports[side], id_of(1 - side), (uint32_t)(draw(&seed) % lanes));
        }
        PUMP_UNTIL(&net, endpoint_set_done(&endpoint_set));
        endpoint_set_check(&endpoint_set);
    }
    PUMP_UNTIL(&net, (verbs_lanes(net.transports[0], id_of(1), &up, &rebuilt), up == lanes));
    assert_true(rebuilt > 0);
    assert_int_equal(net.failed_count[0] + net.failed_count[1], 0);
    net_close(&net);
}

static void test_break_one_lane(void **state) { break_under_load(NULL, 1, 3, 1); }
static void test_break_of_four_lanes(void **state) { break_under_load("lanes=4,chunk=16k", 4, 6, 2); }

/* Small limits everywhere: rings, chunks, depth, budget. */
static void test_small_everything(void **state)
{
    struct net net;
    struct endpoint_set endpoint_set = {.count = 0};
    open_tuned(&net, 2, "lanes=3,chunk=4k,ring=16k,depth=16,budget=16k,inline=0,receives=64");
    for (int round = 0; round < 3; round++) {
        endpoint_set_start(&endpoint_set, &net, 40, 77 + (uint64_t)round);
        PUMP_UNTIL(&net, endpoint_set_done(&endpoint_set));
        endpoint_set_check(&endpoint_set);
    }
    struct weft_transport_stats stats;
    weft_transport_stats(net.transports[0], &stats);
    assert_true(stats.memory_peer_bytes > 2 * 16384);
    assert_true(stats.memory_peer_bytes < 1 << 20); /* bounded by its settings */
    char text[200], wanted[40];
    weft_peer_describe(net.peers[0][1], text, sizeof text);
    snprintf(wanted, sizeof wanted, "%llu KiB", (unsigned long long)(stats.memory_peer_bytes + 1023) / 1024);
    print_message("%s\n", text);
    assert_non_null(strstr(text, wanted));
    net_close(&net);
}

static struct weft_window *window_of(struct net *net, int index, void *memory, size_t bytes, unsigned rights)
{
    struct weft_window_options options = {.size = sizeof options,
                                          .address = memory,
                                          .bytes = bytes,
                                          .rights = rights,
                                          .peer_id = WEFT_ANY_PEER};
    struct weft_window *window = NULL;
    struct weft_error error = {0};
    if (weft_window_open(net->transports[index], &options, &window, &error) < 0) fail_msg("%s", error.text);
    return window;
}

static struct weft_remote *import_at(struct net *net, int from, int to, struct weft_window *window)
{
    const void *key;
    size_t bytes;
    struct weft_remote *remote = NULL;
    weft_window_key(window, &key, &bytes);
    assert_int_equal(weft_transport_import(net->peers[from][to], key, bytes, &remote), WEFT_OK);
    return remote;
}

/* Put with notification and get while queue pairs break. Then the window is closed and the next access is
 * refused; the peer lives on. */
static void test_windows_and_breaks(void **state)
{
    enum { BYTES = 500000 };
    struct net net;
    static unsigned char window_memory[BYTES], out[BYTES], in[BYTES];
    struct op put, get, notified, closed, refused, send, recv;
    open_tuned(&net, 2, "lanes=2");
    struct weft_window *window =
        window_of(&net, 1, window_memory, BYTES, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE);
    struct weft_remote *remote = import_at(&net, 0, 1, window);
    for (uint32_t round = 0; round < 6; round++) {
        fill(out, BYTES, round);
        op_recv(&notified, net.transports[1], id_of(0), TAG(round), NULL, 0);
        op_init(&put);
        struct weft_put what = {.source = out,
                                .bytes = BYTES,
                                .notify = true,
                                .tag = TAG(round),
                                .header = "there",
                                .header_bytes = 5};
        assert_int_equal(weft_transport_put(remote, &what, &put.completion), WEFT_IN_PROGRESS);
        if (round % 2) {
            net_pump(&net);
            verbs_force_error(net.transports[round / 2 % 2], id_of(1 - (int)(round / 2 % 2)), round / 3);
        }
        PUMP_UNTIL(&net, notified.fired);
        assert_true(filled(window_memory, BYTES, round));
        assert_memory_equal(notified.receive.header, "there", 5);
        PUMP_UNTIL(&net, put.fired);
        assert_int_equal(put.status, WEFT_OK);
        memset(in, 0, BYTES);
        op_init(&get);
        assert_int_equal(weft_transport_get(remote, 1000, in, BYTES - 1000, &get.completion),
                         WEFT_IN_PROGRESS);
        PUMP_UNTIL(&net, get.fired);
        assert_int_equal(get.status, WEFT_OK);
        assert_memory_equal(in, window_memory + 1000, BYTES - 1000);
    }
    op_init(&closed);
    weft_window_close(window, &closed.completion);
    PUMP_UNTIL(&net, closed.fired);
    memset(window_memory, 0x5A, BYTES);
    op_init(&refused);
    assert_int_equal(
        weft_transport_put(remote, &(struct weft_put){.source = out, .bytes = BYTES}, &refused.completion),
        WEFT_IN_PROGRESS);
    PUMP_UNTIL(&net, refused.fired);
    assert_int_equal(refused.status, WEFT_ERR_CANCELLED);
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(window_memory[i], 0x5A);
    assert_int_equal(weft_remote_release(remote), WEFT_OK);
    op_recv(&recv, net.transports[1], id_of(0), TAG(99), in, BYTES);
    op_send(&send, net.peers[0][1], TAG(99), NULL, out, BYTES);
    PUMP_UNTIL(&net, send.fired && recv.fired);
    assert_int_equal(recv.status, WEFT_OK);
    assert_memory_equal(in, out, BYTES);
    net_close(&net);
}

/* GPU memory uses its dma-buf; without a CUDA driver an error is reported and nothing else happens. */
static void test_window_of_gpu_memory(void **state)
{
    struct net net;
    static unsigned char memory[4096];
    struct weft_window_options options = {.size = sizeof options,
                                          .address = memory,
                                          .bytes = sizeof memory,
                                          .kind = WEFT_MEMORY_CUDA,
                                          .rights = WEFT_WINDOW_WRITE,
                                          .peer_id = WEFT_ANY_PEER};
    struct weft_window *window = NULL;
    struct weft_error error = {0};
    open_tuned(&net, 1, NULL);
    assert_int_equal(weft_window_open(net.transports[0], &options, &window, &error), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "CUDA driver"));
    assert_null(window);
    options.kind = WEFT_MEMORY_PINNED; /* ordinary memory for this device */
    struct op closed;
    op_init(&closed);
    assert_int_equal(weft_window_open(net.transports[0], &options, &window, &error), WEFT_OK);
    weft_window_close(window, &closed.completion);
    PUMP_UNTIL(&net, closed.fired);
    net_close(&net);
}

/* The connection manager creates the queue pairs, the first ones and those after breaks. */
static void test_connection_manager(void **state) { break_under_load("connect=cm,lanes=2", 2, 3, 5); }

/* ---- cost ---- */

static void exchange(struct net *net, unsigned char *out, unsigned char *in, size_t bytes, int count)
{
    for (int i = 0; i < count; i++) {
        struct op send, recv;
        assert_int_equal(op_recv(&recv, net->transports[1], id_of(0), TAG(i), in, bytes), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, net->peers[0][1], TAG(i), NULL, out, bytes), WEFT_IN_PROGRESS);
        PUMP_UNTIL(net, send.fired && recv.fired);
    }
}

static uint64_t works_of(struct weft_transport *transport)
{
    struct weft_transport_stats stats;
    weft_transport_stats(transport, &stats);
    return stats.work_request_count;
}

/* Progress of one endpoint alone, until the expression is true. */
#define ALONE_UNTIL(net, index, expression)                                        \
    do {                                                                           \
        const uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60);                \
        while (!(expression)) {                                                    \
            (void)weft_transport_progress((net)->transports[index], 64);           \
            if (net_now_ns() > limit_ns_) fail_msg("never true: %s", #expression); \
        }                                                                          \
    } while (0)

static bool is_all(const unsigned char *memory, size_t bytes, unsigned char byte)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != byte) return false;
    return true;
}

/* A peer has the keys of a buffer and stops. The receiver abandons it, and the buffer is free for other use.
 * When the peer continues, its writes with these keys are refused, and change nothing. */
static void test_stale_write(void **state)
{
    enum { BYTES = 256 << 10 };
    static unsigned char out[BYTES], in[BYTES];
    struct net net;
    struct op recv, send;
    uint32_t up = 0, rebuilt = 0;
    open_tuned(&net, 2, NULL);
    exchange(&net, out, in, 8, 2); /* both ends are connected */
    PUMP_UNTIL(&net, (verbs_lanes(net.transports[1], id_of(0), &up, &rebuilt), up == 1));
    memset(out, 1, sizeof out);
    assert_int_equal(op_recv(&recv, net.transports[0], id_of(1), TAG(9), in, BYTES), WEFT_IN_PROGRESS);
    uint64_t before = works_of(net.transports[1]);
    assert_int_equal(op_send(&send, net.peers[1][0], TAG(9), NULL, out, BYTES), WEFT_IN_PROGRESS);
    ALONE_UNTIL(&net, 1, works_of(net.transports[1]) > before); /* announced */
    before = works_of(net.transports[0]);
    ALONE_UNTIL(&net, 0, works_of(net.transports[0]) > before); /* granted: address and keys */
    /* what weft_transport_fail_peer does first, without its notice: the peer writes unaware */
    assert_int_equal(verbs_force_error(net.transports[0], id_of(1), 0), WEFT_OK);
    memset(in, 2, sizeof in);
    before = works_of(net.transports[1]);
    ALONE_UNTIL(&net, 1, works_of(net.transports[1]) >= before + BYTES / (64 << 10));
    ALONE_UNTIL(&net, 1, (verbs_lanes(net.transports[1], id_of(0), &up, &rebuilt), up == 0)); /* refused */
    assert_false(send.fired);
    assert_true(is_all(in, sizeof in, 2));
    weft_transport_fail_peer(net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "abandoned");
    ALONE_UNTIL(&net, 0, recv.fired);
    assert_int_equal(recv.status, WEFT_ERR_PEER_LOST);
    memset(in, 3, sizeof in);
    PUMP_UNTIL(&net, send.fired && net.failed_count[1] == 1);
    assert_int_equal(send.status, WEFT_ERR_PEER_LOST);
    assert_true(is_all(in, sizeof in, 3));
    net_close(&net);
}

/* Work requests and doorbells of both ends for messages of `bytes`, compared with one RDMA write per
 * chunk; payload is never copied. */
static void test_cost(void **state)
{
    enum { BYTES = 16 << 20, CHUNK = 64 << 10 };
    struct net net;
    unsigned char *out = malloc(BYTES), *in = calloc(1, BYTES);
    fill(out, BYTES, 5);
    open_tuned(&net, 2, NULL);
    exchange(&net, out, in, 8, 2);
    struct weft_transport_stats before[2], after[2];
    for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &before[i]);
    exchange(&net, out, in, BYTES, 1);
    for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &after[i]);
    assert_true(filled(in, BYTES, 5));
    uint64_t works = after[0].work_request_count - before[0].work_request_count;
    /* announced, closed, a credit at most */
    assert_true(works >= BYTES / CHUNK && works <= BYTES / CHUNK + 3);
    assert_true(after[0].doorbell_count - before[0].doorbell_count <= BYTES / CHUNK / 16);
    assert_true(after[0].signalled_count - before[0].signalled_count <= BYTES / CHUNK / 100 + 1);
    assert_true(after[1].work_request_count - before[1].work_request_count <= 2);
    assert_int_equal(after[0].copied_bytes - before[0].copied_bytes, 0);
    assert_int_equal(after[1].copied_bytes - before[1].copied_bytes, 0);
    net_close(&net);
    free(out);
    free(in);
}

/* One line for tests/vm: per MiB of payload, both ends together. */
static int print_cost(size_t bytes)
{
    struct net net;
    unsigned char *out = malloc(bytes), *in = calloc(1, bytes);
    int count = bytes >= 64 << 20 ? 1 : bytes >= 16 << 20 ? 4 : 64;
    open_tuned(&net, 2, getenv("WEFT_TEST_TUNE"));
    exchange(&net, out, in, bytes, 1);
    struct weft_transport_stats before[2], after[2];
    for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &before[i]);
    exchange(&net, out, in, bytes, count);
    for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &after[i]);
    double mib = (double)bytes * count / (1 << 20);
#define BOTH(field) ((double)(after[0].field - before[0].field + after[1].field - before[1].field) / mib)
#define SENDER(field) ((double)(after[0].field - before[0].field) / mib)
    printf("bytes %zu per_mib work_requests %.3f doorbells %.3f signalled %.3f copied %.1f system_calls %.3f "
           "sender_work_requests %.3f "
           "sender_doorbells %.3f sender_signalled %.3f\n",
           bytes, BOTH(work_request_count), BOTH(doorbell_count), BOTH(signalled_count), BOTH(copied_bytes),
           BOTH(system_call_count), SENDER(work_request_count), SENDER(doorbell_count),
           SENDER(signalled_count));
    net_close(&net);
    free(out);
    free(in);
    return 0;
}

static bool have_device(void)
{
    struct verbs_options options;
    struct verbs_port *ports = NULL;
    uint32_t count = 0;
    verbs_options_init(&options);
    enum weft_status status = verbs_ports_list(weft_env_system(), &options, &ports, &count);
    bool usable = status == WEFT_OK && count > 0 && ports[0].usable;
    weft_free_bytes(weft_env_system(), ports);
    return usable;
}

int main(int argc, char **argv)
{
    if (!have_device()) {
        printf("skipped: no usable RDMA device here (tests/vm runs this over soft-RoCE)\n");
        return 77;
    }
    if (argc > 2 && strcmp(argv[1], "--cost") == 0) return print_cost(strtoull(argv[2], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_break_one_lane),       cmocka_unit_test(test_break_of_four_lanes),
        cmocka_unit_test(test_small_everything),     cmocka_unit_test(test_windows_and_breaks),
        cmocka_unit_test(test_window_of_gpu_memory), cmocka_unit_test(test_connection_manager),
        cmocka_unit_test(test_stale_write),          cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests_name("verbs", tests, NULL, NULL);
}
