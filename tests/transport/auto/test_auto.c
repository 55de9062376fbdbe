/* test_auto.c - the composite endpoint "auto": both ends choose the same backend; encoding of address
 * lists; descriptions; window keys; sleep over all children. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/transport/net.h"
#include "transport/auto/auto.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { SHM, VERBS, UCX };

/* An address list of these backends, in this order. */
static struct auto_address_list address_list(uint32_t id, uint64_t host, const char *kinds)
{
    struct auto_address_list address_list = {
        .nonce_hash = 7, .id = id, .host = host, .net_namespace = 5, .fingerprint = host, .links = 9};
    for (; *kinds; kinds++) {
        uint8_t kind = *kinds == 's' ? SHM : *kinds == 'v' ? VERBS : UCX;
        address_list.addresses[address_list.address_count++] = (struct auto_backend_address){
            .kind = kind, .blob = (const uint8_t *)"address", .bytes = 7u - kind};
    }
    return address_list;
}

/* The backend that both ends choose; computed from both ends. */
static int chosen(const struct auto_address_list *one, const struct auto_address_list *other, bool secret,
                  const struct weft_link_table *links, enum auto_reason reasons[AUTO_BACKENDS])
{
    enum auto_reason back[AUTO_BACKENDS];
    int kind = auto_choose(one, other, secret, links, reasons);
    assert_int_equal(auto_choose(other, one, secret, links, back), kind);
    return kind;
}

static void test_choice(void **state)
{
    enum auto_reason reasons[AUTO_BACKENDS];
    struct auto_address_list one = address_list(1, 10, "svu"), same = address_list(2, 10, "svu"),
                             far = address_list(3, 11, "svu");
    assert_int_equal(chosen(&one, &same, false, NULL, reasons), SHM);
    assert_int_equal(reasons[SHM], AUTO_CHOSEN);
    assert_int_equal(reasons[VERBS], AUTO_LESS_PREFERRED);
    assert_int_equal(chosen(&one, &far, true, NULL, reasons), VERBS);
    assert_int_equal(reasons[SHM], AUTO_OTHER_HOST);
    assert_int_equal(chosen(&one, &far, false, NULL, reasons), UCX);
    assert_int_equal(reasons[VERBS], AUTO_NO_SECRET);
    same.net_namespace = 6;
    assert_int_equal(chosen(&one, &same, false, NULL, reasons), VERBS); /* one host: no secret needed */
    assert_int_equal(reasons[SHM], AUTO_OTHER_NAMESPACE);
    struct auto_address_list unknown = address_list(4, 0, "su"), unknown_too = address_list(5, 0, "su");
    assert_int_equal(chosen(&unknown, &unknown_too, false, NULL, reasons), UCX);
    struct auto_address_list poor = address_list(6, 10, "u"), other = address_list(7, 10, "s");
    assert_int_equal(chosen(&one, &poor, false, NULL, reasons), UCX);
    assert_int_equal(reasons[SHM], AUTO_MISSING_AT_PEER);
    assert_int_equal(auto_choose(&poor, &one, false, NULL, reasons), UCX);
    assert_int_equal(reasons[SHM], AUTO_MISSING_HERE);
    assert_int_equal(chosen(&poor, &other, false, NULL, reasons), -1);
    struct auto_address_list first = address_list(1, 10, "us"), last = address_list(9, 10, "us"),
                             usual = address_list(5, 10, "su");
    assert_int_equal(chosen(&first, &usual, false, NULL, reasons), UCX); /* order of the smaller id */
    assert_int_equal(chosen(&last, &usual, false, NULL, reasons), SHM);
}

static void add_link(struct weft_link_table *table, uint32_t from, uint32_t to, const char *lane,
                     uint64_t latency_ns)
{
    struct weft_link link = {.from = from,
                             .to = to,
                             .state = latency_ns ? WEFT_LINK_WORKS : WEFT_LINK_FAILED,
                             .latency_ns = latency_ns,
                             .bytes_per_second = latency_ns ? 1000000000 : 0};
    snprintf(link.lane, sizeof link.lane, "%s", lane);
    assert_int_equal(weft_link_table_set(table, &link), WEFT_OK);
}

static void test_link_table(void **state)
{
    enum auto_reason reasons[AUTO_BACKENDS];
    struct weft_link_table *table;
    uint32_t a, b;
    struct auto_address_list one = address_list(1, 10, "svu"), far = address_list(2, 11, "svu");
    assert_int_equal(weft_link_table_create(weft_env_system(), &table), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, "a", 10, &a), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, "b", 11, &b), WEFT_OK);
    add_link(table, a, b, "verbs", 900);
    add_link(table, b, a, "verbs", 900000000); /* the slow direction counts */
    add_link(table, a, b, "ucx:tcp", 5000);
    /* ucx was not measured in both directions */
    assert_int_equal(chosen(&one, &far, true, table, reasons), VERBS);
    add_link(table, b, a, "ucx:tcp", 5000);
    assert_int_equal(chosen(&one, &far, true, table, reasons), UCX);
    assert_int_equal(reasons[VERBS], AUTO_LESS_PREFERRED);
    far.links = 8; /* another link table: both ends ignore theirs */
    assert_int_equal(chosen(&one, &far, true, table, reasons), VERBS);
    far.links = 9;
    add_link(table, b, a, "ucx:tcp", 0);
    add_link(table, b, a, "verbs", 0);
    assert_int_equal(chosen(&one, &far, true, table, reasons), -1);
    assert_int_equal(reasons[UCX], AUTO_BAD_LINK);
    weft_link_table_free(table);
}

static void test_offer_bytes(void **state)
{
    uint8_t data[WEFT_TRANSPORT_ADDRESS_BYTES_MAX], hurt[sizeof data];
    struct auto_address_list in = address_list(77, 10, "usv"), out;
    size_t bytes = auto_address_list_encode(&in, data);
    assert_int_equal(auto_address_list_decode(data, bytes, &out), WEFT_OK);
    assert_true(out.id == 77 && out.host == 10 && out.net_namespace == 5 && out.fingerprint == 10 &&
                out.links == 9 && out.nonce_hash == 7);
    assert_int_equal(out.address_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(out.addresses[i].kind, in.addresses[i].kind);
        assert_int_equal(out.addresses[i].bytes, in.addresses[i].bytes);
        assert_memory_equal(out.addresses[i].blob, "address", in.addresses[i].bytes);
    }
    for (size_t length = 0; length < bytes; length++)
        assert_true(auto_address_list_decode(data, length, &out) < 0);
    for (size_t i = 0; i < bytes; i++) {
        if (i >= 8 && i < 12) continue; /* the nonce hash is compared by the caller */
        memcpy(hurt, data, bytes);
        hurt[i] ^= 0x10;
        assert_true(auto_address_list_decode(hurt, bytes, &out) < 0);
    }
    struct auto_address_list long_one = in; /* two addresses of 3,000 bytes exceed the limit */
    long_one.addresses[0].bytes = long_one.addresses[1].bytes = 3000;
    static const uint8_t zeros[3000];
    long_one.addresses[0].blob = long_one.addresses[1].blob = zeros;
    assert_int_equal(auto_address_list_encode(&long_one, data), 0);
    struct auto_address_list none = address_list(1, 10, "");
    bytes = auto_address_list_encode(&none, data);
    assert_int_equal(auto_address_list_decode(data, bytes, &out), WEFT_ERR_MALFORMED);
    struct auto_address_list twice = address_list(1, 10, "ss");
    bytes = auto_address_list_encode(&twice, data);
    assert_int_equal(auto_address_list_decode(data, bytes, &out), WEFT_ERR_MALFORMED);
}

static void refused(const char *tune, const char *words)
{
    struct weft_transport_options options;
    struct weft_transport *transport;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = "auto";
    options.tune = tune;
    assert_true(weft_transport_open(weft_env_system(), &options, &transport, &error) < 0);
    if (!strstr(error.text, words)) fail_msg("\"%s\" has: %s", tune, error.text);
}

static void test_settings(void **state)
{
    refused("use=", "no setting \"use=\"");
    refused("use=shm+shm", "use=shm+verbs+ucx");
    refused("use=tcp", "use=shm+verbs+ucx");
    refused("cma=off", "such as shm.cma=off");
    refused("shm.cma=perhaps", "shm has no setting \"cma=perhaps\"");
    refused("links=/nowhere/links", "/nowhere/links");
}

/* Assigns the listed devices on a synthetic machine. */
static void split(const char *list, const char *rdma, const char *network)
{
    struct auto_devices devices;
    assert_int_equal(auto_devices_split("devices-root", list, &devices, NULL), WEFT_OK);
    assert_string_equal(devices.all, list && list[0] ? list : "lo");
    assert_string_equal(devices.rdma, rdma);
    assert_string_equal(devices.network, network);
}

static void test_devices(void **state)
{
    char devices_text[16], place[] = "/tmp/weft-route-XXXXXX", before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_non_null(mkdtemp(place));
    assert_int_equal(chdir(place), 0);
    static const char *const folders[] = {"devices-root", "devices-root/sys", "devices-root/sys/class",
                                          "devices-root/sys/class/infiniband",
                                          "devices-root/sys/class/infiniband/mlx5_0"};
    for (int i = 0; i < 5; i++) assert_int_equal(mkdir(folders[i], 0700), 0);
    split(NULL, "", "lo");
    split("", "", "lo");
    split("eth0", "", "eth0");
    split("mlx5_0", "mlx5_0", "");
    split("mlx5_0:1,eth0, eth1", "mlx5_0:1", "eth0,eth1");
    split("mlx5_1:1,mlx5_0:2", "mlx5_0:2", "mlx5_1:1");
    split("../infiniband/mlx5_0,.,:1", "", "../infiniband/mlx5_0,.,:1");
    char longer[AUTO_DEVICES_BYTES + 1];
    struct auto_devices devices;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(auto_devices_split("devices-root", longer, &devices, NULL), WEFT_ERR_INVALID);
    for (int i = 5; i-- > 0;) assert_int_equal(rmdir(folders[i]), 0);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(place), 0);
    /* a device for sockets only, which does not exist: an error */
    snprintf(devices_text, sizeof devices_text, "%s", "nosuch0");
    struct weft_transport_options options;
    struct weft_transport *transport;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = "auto";
    options.devices = devices_text;
#ifdef WEFT_HAVE_UCX
    assert_int_equal(weft_transport_open(weft_env_system(), &options, &transport, &error),
                     WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "there is no network device nosuch0"));
#endif
}

#ifdef WEFT_HAVE_UCX
static const struct flavour mixed = {"auto-mixed", "auto", "tcp", .tune = "use=shm+verbs+ucx",
                                     .odd_tune = "use=ucx"};

static void test_describe(void **state)
{
    struct net net;
    char text[400], back[400];
    net_open(&net, &mixed, 3);
    for (int i = 0; i < 2000; i++) net_pump(&net); /* until they are connected */
    weft_peer_describe(net.peers[0][2], text, sizeof text);
    weft_peer_describe(net.peers[2][0], back, sizeof back);
    assert_string_equal(text, back);
    assert_ptr_equal(strstr(text, "shm "), text);
    assert_non_null(strstr(text, "not ucx: would work, too"));
    weft_peer_describe(net.peers[0][1], text, sizeof text);
    assert_ptr_equal(strstr(text, "ucx "), text);
    assert_non_null(strstr(text, "not shm: the peer does not offer it"));
    weft_peer_describe(net.peers[1][0], text, sizeof text);
    assert_non_null(strstr(text, "not shm: left out by use="));
    char narrow[12];
    weft_peer_describe(net.peers[1][0], narrow, sizeof narrow);
    assert_true(strlen(narrow) < sizeof narrow);
    assert_string_equal(weft_transport_name(net.transports[1]), "auto ucx tcp");
    net_close(&net);
}

/* One window, used over shm by one peer and over UCX by another; a key without a peer; close while open in
 * both. */
static void test_window_of_two_ways(void **state)
{
    static unsigned char memory[4096];
    struct net net;
    net_open(&net, &mixed, 3);
    struct weft_window_options options = {.size = sizeof options,
                                          .address = memory,
                                          .bytes = sizeof memory,
                                          .rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
                                          .peer_id = WEFT_ANY_PEER};
    struct weft_window *window;
    struct weft_remote *remotes[2], *none;
    const void *key;
    size_t bytes;
    assert_int_equal(weft_window_open(net.transports[0], &options, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &bytes);
    struct op puts[2], heard[2], closing;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_transport_import(net.peers[i + 1][0], key, bytes, &remotes[i]), WEFT_OK);
        op_recv(&heard[i], net.transports[0], 101 + (uint32_t)i, TAG(5), NULL, 0);
        struct weft_put put = {.source = i ? "two" : "one",
                               .bytes = 3,
                               .offset = (uint64_t)i * 100,
                               .notify = true,
                               .tag = TAG(5)};
        assert_true(op_taken(op_put(&puts[i], remotes[i], &put)));
    }
    PUMP_UNTIL(&net, heard[0].fired && heard[1].fired && puts[0].fired && puts[1].fired);
    assert_memory_equal(memory, "one", 3);
    assert_memory_equal(memory + 100, "two", 3);
    struct weft_transport_stats stats;
    weft_transport_stats(net.transports[0], &stats);
    assert_int_equal(stats.received_count, 2); /* one per peer */
    for (size_t length = 0; length < bytes; length++)
        assert_true(weft_transport_import(net.peers[1][0], key, length, &none) < 0);
    for (int i = 0; i < 2; i++) assert_int_equal(weft_remote_release(remotes[i]), WEFT_OK);
    op_init(&closing);
    weft_window_close(window, &closing.completion);
    PUMP_UNTIL(&net, closing.fired);
    assert_int_equal(closing.status, WEFT_OK);

    options.peer_id = 102; /* for one peer: open in its child only */
    assert_int_equal(weft_window_open(net.transports[0], &options, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &bytes);
    assert_int_equal(weft_transport_import(net.peers[2][0], key, bytes, &remotes[0]), WEFT_OK);
    assert_int_equal(weft_transport_import(net.peers[1][0], key, bytes, &none), WEFT_ERR_UNSUPPORTED);
    weft_remote_release(remotes[0]);
    net_close(&net); /* with the window open */
}

/* Two users of one host share no memory unless the job has a secret: shm is not chosen if it would be
 * refused. */
static void test_two_users(void **state)
{
    struct weft_env *env = weft_env_system();
    if (geteuid() != 0) skip();
    for (int with_secret = 0; with_secret < 2; with_secret++) {
        struct weft_transport *one, *other;
        struct weft_transport_options options;
        struct weft_peer *peer;
        struct weft_error error = {0};
        const void *blob;
        size_t bytes;
        char text[400];
        weft_transport_options_init(&options);
        options.backend = "auto";
        options.nonce = 5;
        options.secret = with_secret ? "of the job" : NULL;
        options.secret_bytes = with_secret ? 10 : 0;
        options.id = 1;
        assert_int_equal(weft_transport_open(env, &options, &one, &error), WEFT_OK);
        options.id = 2;
        assert_int_equal(seteuid(65534), 0);
        enum weft_status status = weft_transport_open(env, &options, &other, &error);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(status, WEFT_OK);
        assert_int_equal(weft_transport_address(other, &blob, &bytes), WEFT_OK);
        assert_int_equal(weft_transport_connect(one, 2, blob, bytes, &peer), WEFT_OK);
        weft_peer_describe(peer, text, sizeof text);
        assert_int_equal(strncmp(text, with_secret ? "shm" : "ucx", 3), 0);
        if (!with_secret) assert_non_null(strstr(text, "not shm: another network namespace or user"));
        weft_transport_close(one);
        weft_transport_close(other);
        while (!weft_transport_drained(one) || !weft_transport_drained(other)) {
            weft_transport_progress(one, 64);
            weft_transport_progress(other, 64);
        }
        weft_transport_free(one);
        weft_transport_free(other);
    }
}

/* The path to one living peer breaks: it is lost with the name of the backend; other peers are not
 * affected. */
static void test_broken_part(void **state)
{
    struct net net;
    struct op send, recv;
    char in[8];
    net_open(&net, &mixed, 3);
    for (int i = 0; i < 2000; i++) net_pump(&net); /* until they are connected */
    op_recv(&recv, net.transports[0], 102, TAG(6), in, sizeof in);
    weft_transport_fail_peer(net.transports[2], 100, WEFT_ERR_PEER_LOST, "reported by its user");
    PUMP_UNTIL(&net, net.failed_count[0] == 1 && net.failed_count[2] == 1 && recv.fired);
    assert_int_equal(net.failed_id[0], 102);
    assert_int_equal(net.failed_status[0], WEFT_ERR_PEER_LOST);
    assert_int_equal(recv.status, WEFT_ERR_PEER_LOST);
    assert_ptr_equal(strstr(net.failed_text[0], "shm: "), net.failed_text[0]);
    assert_string_equal(net.failed_text[2], "reported by its user");
    assert_int_equal(weft_peer_status(net.peers[0][1]), WEFT_OK);
    op_recv(&recv, net.transports[0], 101, TAG(6), in, sizeof in);
    op_send(&send, net.peers[1][0], TAG(6), NULL, "ucx", 3);
    PUMP_UNTIL(&net, recv.fired && send.fired);
    assert_int_equal(recv.status, WEFT_OK);
    /* the third endpoint still exchanges messages with the second */
    op_recv(&recv, net.transports[2], 101, TAG(6), in, sizeof in);
    op_send(&send, net.peers[1][2], TAG(6), NULL, "ucx", 3);
    PUMP_UNTIL(&net, recv.fired && send.fired);
    assert_int_equal(recv.status, WEFT_OK);
    net_close(&net);
}

/* Endpoints that sleep in their own loops are woken by every child, also by the first message of a peer. */
struct echo {
    struct net *net;
    int index;
    bool stop;
    struct op recv, send;
    char in[8];
};

static void answered(struct weft_completion *completion, enum weft_status status)
{
    struct echo *echo = weft_container_of(completion, struct echo, recv.completion);
    echo->recv.fired++;
    echo->stop = true;
}

static void sent(struct weft_completion *completion, enum weft_status status)
{
    weft_container_of(completion, struct echo, send.completion)->stop = true;
}

static void *echo_thread(void *context)
{
    struct echo *echo = context;
    struct weft_loop *loop;
    uint64_t until_ns = net_now_ns() + WEFT_SECONDS(30);
    if (weft_loop_create(weft_env_system(), NULL, &loop) < 0) return NULL;
    if (weft_transport_attach(echo->net->transports[echo->index], loop) < 0) return NULL;
    weft_loop_wait(loop, &echo->stop, until_ns);
    if (echo->stop) {
        op_init(&echo->send);
        echo->send.completion.fn = sent;
        struct weft_message message = {.tag = TAG(9), .payload = "pong", .payload_bytes = 4};
        weft_transport_send(echo->net->peers[echo->index][0], &message, &echo->send.completion);
        echo->stop = false;
        weft_loop_wait(loop, &echo->stop, until_ns);
    }
    weft_transport_close(echo->net->transports[echo->index]);
    weft_loop_free(loop);
    return context;
}

static void test_sleeping(void **state)
{
    struct net net;
    struct echo echoes[2] = {{.index = 1}, {.index = 2}};
    pthread_t threads[2];
    struct op sends[2], recvs[2];
    char in[2][8];
    net_open(&net, &mixed, 3);
    for (int i = 0; i < 2; i++) {
        echoes[i].net = &net;
        op_recv(&echoes[i].recv, net.transports[i + 1], 100, TAG(8), echoes[i].in, 8);
        echoes[i].recv.completion.fn = answered;
        op_recv(&recvs[i], net.transports[0], 101 + (uint32_t)i, TAG(9), in[i], 8);
        assert_int_equal(pthread_create(&threads[i], NULL, echo_thread, &echoes[i]), 0);
    }
    for (int i = 0; i < 2; i++) op_send(&sends[i], net.peers[0][i + 1], TAG(8), NULL, "ping", 4);
    struct weft_loop *loop;
    bool never = false;
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &loop), WEFT_OK);
    assert_int_equal(weft_transport_attach(net.transports[0], loop), WEFT_OK);
    for (int i = 0; i < 100 && !(recvs[0].fired && recvs[1].fired); i++)
        weft_loop_wait(loop, &never, net_now_ns() + WEFT_MS(100));
    assert_true(recvs[0].status == WEFT_OK && recvs[1].status == WEFT_OK);
    assert_memory_equal(in[0], "pong", 4);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    weft_transport_close(net.transports[0]);
    weft_loop_free(loop);
    net_close(&net);
}
#endif

/* Virtual machine only: cuts the wire of the verbs child for good. Its peers are lost within its timeout,
 * with its name; the peer over shared memory is not affected. 0 and 2 share memory, 1 has verbs only. */
static const struct flavour with_verbs = {"auto-verbs-goes", "auto",
                                          .tune = "use=shm+verbs,verbs.timeout=14,verbs.lost_ms=2000",
                                          .odd_tune = "use=verbs,verbs.timeout=14,verbs.lost_ms=2000"};

static void wire(const char *words)
{
    char line[300];
    snprintf(line, sizeof line, "%s", words);
    if (system(line) != 0) fail_msg("'%s' failed", line);
}

static void test_verbs_is_chosen(void **state)
{
    const char *interface = getenv("WEFT_TEST_WIRE"), *repair = getenv("WEFT_TEST_WIRE_REPAIR");
    struct net net;
    struct op sends[3], recvs[3];
    char text[400], command[100], in[3][8];
    if (!interface || !repair) skip();
    net_open(&net, &with_verbs, 3);
    const int addresses[3][2] = {{0, 1}, {1, 2}, {2, 0}};
    for (int i = 0; i < 3; i++) {
        op_recv(&recvs[i], net.transports[addresses[i][1]], 100 + (uint32_t)addresses[i][0], TAG(3), in[i],
                8);
        op_send(&sends[i], net.peers[addresses[i][0]][addresses[i][1]], TAG(3), NULL, "before", 6);
    }
    PUMP_UNTIL(&net, recvs[0].fired && recvs[1].fired && recvs[2].fired);
    weft_peer_describe(net.peers[0][1], text, sizeof text);
    assert_ptr_equal(strstr(text, "verbs "), text);
    weft_peer_describe(net.peers[0][2], text, sizeof text);
    assert_ptr_equal(strstr(text, "shm "), text);
    snprintf(command, sizeof command, "ip link set %s down", interface);
    wire(command);
    op_recv(&recvs[0], net.transports[1], 100, TAG(4), in[0], 8);
    op_send(&sends[0], net.peers[0][1], TAG(4), NULL, "during", 6);
    PUMP_UNTIL(&net,
               net.failed_count[0] == 1 && net.failed_count[1] == 2 && recvs[0].fired && sends[0].fired);
    assert_true(recvs[0].status < 0);
    assert_int_equal(net.failed_id[0], 101);
    assert_ptr_equal(strstr(net.failed_text[0], "verbs: "), net.failed_text[0]);
    assert_ptr_equal(strstr(net.failed_text[1], "verbs: "), net.failed_text[1]);
    print_message("sentence: %s\n", net.failed_text[0]);
    op_recv(&recvs[2], net.transports[0], 102, TAG(4), in[2], 8);
    op_send(&sends[2], net.peers[2][0], TAG(4), NULL, "after", 5);
    PUMP_UNTIL(&net, recvs[2].fired && sends[2].fired);
    assert_int_equal(recvs[2].status, WEFT_OK);
    snprintf(command, sizeof command, "ip link set %s up", interface);
    wire(command);
    wire(repair);
    net_close(&net);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),      cmocka_unit_test(test_link_table),
        cmocka_unit_test(test_offer_bytes), cmocka_unit_test(test_settings),
        cmocka_unit_test(test_devices),     cmocka_unit_test(test_verbs_is_chosen),
#ifdef WEFT_HAVE_UCX
        cmocka_unit_test(test_describe),    cmocka_unit_test(test_window_of_two_ways),
        cmocka_unit_test(test_sleeping),    cmocka_unit_test(test_broken_part),
        cmocka_unit_test(test_two_users),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
