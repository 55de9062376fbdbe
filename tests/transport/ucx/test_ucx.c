/* test_ucx.c - specific to the UCX backend: the job's secret, ports, devices, UCX_* variables of the user,
 * stray connections to its port, sleep, and peer descriptions. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/transport/net.h"
#include "transport/core/core.h"
#include "transport/ucx/wire/ucx_wire.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
#define NONCE 0x51de

struct place {
    struct weft_transport *transport;
    struct weft_error error;
    enum weft_status status;
    int failed;
};

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    ((struct place *)context)->failed++;
}

static void place_init(struct weft_transport_options *options, struct place *place, uint32_t id)
{
    *place = (struct place){0};
    weft_transport_options_init(options);
    options->backend = "ucx";
    options->id = id;
    options->nonce = NONCE;
    options->peer_failed = on_failed;
    options->peer_failed_context = place;
}

static bool place_open(const struct weft_transport_options *options, struct place *place)
{
    place->status = weft_transport_open(weft_env_system(), options, &place->transport, &place->error);
    return place->status == WEFT_OK;
}

static void must_open(const struct weft_transport_options *options, struct place *place)
{
    if (!place_open(options, place)) fail_msg("open: %s", place->error.text);
}

static void pump(struct place *places, int count)
{
    for (int i = 0; i < count; i++) {
        if (places[i].transport) weft_transport_progress(places[i].transport, 64);
    }
}

#define UNTIL(places, count, expression)                                                        \
    for (uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60); !(expression);) {                \
        pump(places, count);                                                                    \
        if (net_now_ns() > limit_ns_) fail_msg("never true: %s", #expression);                  \
    }

static bool all_drained(struct place *places, int count)
{
    for (int i = 0; i < count; i++) {
        if (places[i].transport && !weft_transport_drained(places[i].transport)) return false;
    }
    return true;
}

static void close_all(struct place *places, int count)
{
    for (int i = 0; i < count; i++) {
        if (places[i].transport) weft_transport_close(places[i].transport);
    }
    UNTIL(places, count, all_drained(places, count));
    for (int i = 0; i < count; i++) weft_transport_free(places[i].transport);
}

static enum weft_status bootstrap(struct place *from, struct place *to, uint32_t to_id,
                                  struct weft_peer **peer_out)
{
    const void *blob;
    size_t bytes;
    assert_int_equal(weft_transport_address(to->transport, &blob, &bytes), WEFT_OK);
    return weft_transport_connect(from->transport, to_id, blob, bytes, peer_out);
}

/* An eager and an announced message in each direction; ids 1 and 2. */
static void exchange(struct place *places, struct weft_peer *peers[2])
{
    enum { BYTES = 300000 };
    static char out[BYTES], in[2][BYTES];
    for (int round = 0; round < 2; round++) {
        size_t bytes = round == 0 ? 100 : BYTES;
        struct op sends[2], recvs[2];
        fill(out, bytes, (uint32_t)round);
        for (int i = 0; i < 2; i++) {
            memset(in[i], 0, bytes);
            op_recv(&recvs[i], places[i].transport, (uint32_t)(2 - i), TAG(round), in[i], bytes);
            assert_int_equal(op_send(&sends[i], peers[i], TAG(round), NULL, out, bytes), WEFT_IN_PROGRESS);
        }
        UNTIL(places, 2, sends[0].fired && sends[1].fired && recvs[0].fired && recvs[1].fired);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(sends[i].status, WEFT_OK);
            assert_int_equal(recvs[i].status, WEFT_OK);
            assert_true(filled(in[i], bytes, (uint32_t)round));
        }
    }
}

static void connect_both(struct place *places, struct weft_peer *peers[2])
{
    assert_int_equal(bootstrap(&places[0], &places[1], 2, &peers[0]), WEFT_OK);
    assert_int_equal(bootstrap(&places[1], &places[0], 1, &peers[1]), WEFT_OK);
}

/* Two connected endpoints that have exchanged messages. lanes NULL: UCX's choice. */
static void open_two(struct place *places, struct weft_peer *peers[2], const char *lanes)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct weft_transport_options options;
        place_init(&options, &places[i], i + 1);
        if (lanes) options.lanes = lanes;
        must_open(&options, &places[i]);
    }
    connect_both(places, peers);
    exchange(places, peers);
}

/* ---- the secret ---- */

static void open_with_secret(struct place *place, uint32_t id, const char *secret)
{
    struct weft_transport_options options;
    place_init(&options, place, id);
    options.secret = secret;
    options.secret_bytes = secret ? strlen(secret) : 0;
    must_open(&options, place);
}

/* The same nonce and another secret, or none on one side: refused when the blob is read. */
static void test_secrets_differ(void **state)
{
    const char *secrets[][2] = {{"one", "two"}, {"one", NULL}, {NULL, "two"}};
    for (int i = 0; i < 3; i++) {
        struct place places[2];
        struct weft_peer *peer = NULL;
        open_with_secret(&places[0], 1, secrets[i][0]);
        open_with_secret(&places[1], 2, secrets[i][1]);
        assert_int_equal(bootstrap(&places[0], &places[1], 2, &peer), WEFT_ERR_AUTH);
        assert_int_equal(bootstrap(&places[1], &places[0], 1, &peer), WEFT_ERR_AUTH);
        close_all(places, 2);
    }
    struct place places[2];
    struct weft_peer *peers[2];
    open_with_secret(&places[0], 1, "the same");
    open_with_secret(&places[1], 2, "the same");
    connect_both(places, peers);
    exchange(places, peers);
    close_all(places, 2);
}

/* No byte of a blob can be changed. */
static void test_blob_is_sealed(void **state)
{
    struct place places[2];
    open_with_secret(&places[0], 1, "s");
    open_with_secret(&places[1], 2, "s");
    const void *blob;
    size_t bytes;
    uint8_t copy[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    struct weft_peer *peer = NULL;
    assert_int_equal(weft_transport_address(places[1].transport, &blob, &bytes), WEFT_OK);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(copy, blob, bytes);
        copy[i] ^= 1;
        assert_true(weft_transport_connect(places[0].transport, 2, copy, bytes, &peer) < 0);
    }
    assert_null(peer);
    close_all(places, 2);
}

/* A program that unpacks the address without proof reaches this endpoint; nothing of its messages is
 * accepted. */
static void test_forger(void **state)
{
    struct place places[2];
    open_with_secret(&places[0], 1, "ours");
    open_with_secret(&places[1], 2, "theirs");
    const void *blob;
    size_t bytes;
    uint8_t copy[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    struct ucx_seal seal;
    assert_int_equal(weft_transport_address(places[0].transport, &blob, &bytes), WEFT_OK);
    memcpy(copy, blob, bytes);
    assert_int_equal(ucx_seal_init(weft_env_system(), &seal, NONCE, "theirs", 6), WEFT_OK);
    for (int i = 0; i < 4; i++) copy[8 + i] = (uint8_t)(seal.mark >> 8 * i);
    assert_int_equal(
        ucx_seal_prove(&seal, copy, bytes - UCX_SEAL_PROOF_BYTES, copy + bytes - UCX_SEAL_PROOF_BYTES),
        WEFT_OK);
    struct weft_peer *peer;
    assert_int_equal(weft_transport_connect(places[1].transport, 1, copy, bytes, &peer), WEFT_OK);

    char in[8], big[200000] = "";
    struct op recv, small, large;
    struct weft_transport_stats stats;
    op_recv(&recv, places[0].transport, 2, TAG(1), in, sizeof in);
    op_send(&small, peer, TAG(1), NULL, "forged", 6);
    op_send(&large, peer, TAG(1), NULL, big, sizeof big);
    uint64_t refused = 0;
    /* HELLO too */
    UNTIL(places, 2, (weft_transport_stats(places[0].transport, &stats), refused = stats.refused_count) >= 3);
    assert_true(refused >= 3);
    assert_int_equal(recv.fired, 0);
    assert_int_equal(stats.received_count, 0);
    assert_int_equal(places[0].transport->peer_table.early_peer_count, 0); /* and no memory is spent on it */
    close_all(places, 2);
}

/* ---- ports and devices ---- */

static int listen_somewhere(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0) return fd;
    close(fd);
    return -1;
}

/* Two adjacent free ports, below the system's ephemeral range. */
static uint16_t free_ports(void)
{
    for (uint16_t port = (uint16_t)(20000 + (unsigned)getpid() % 10000); port < 32000; port += 2) {
        int first = listen_somewhere(port), second = listen_somewhere((uint16_t)(port + 1));
        if (first >= 0) close(first);
        if (second >= 0) close(second);
        if (first >= 0 && second >= 0) return port;
    }
    fail_msg("no free ports");
    return 0;
}

/* A connection to the port on this host; -1: refused. */
static int dial(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static void test_port_range(void **state)
{
    struct place places[3];
    struct weft_peer *peers[2];
    struct weft_transport_options options;
    uint16_t first = free_ports();
    char ports[32];
    snprintf(ports, sizeof ports, "%u-%u", first, first + 1u);
    for (uint32_t i = 0; i < 3; i++) {
        place_init(&options, &places[i], i + 1);
        options.ports = ports;
        if (i < 2) must_open(&options, &places[i]);
    }
    for (int i = 0; i < 2; i++) {
        int fd = dial((uint16_t)(first + i));
        assert_true(fd >= 0);
        close(fd);
    }
    assert_false(place_open(&options, &places[2])); /* does not search without end */
    assert_int_equal(places[2].status, WEFT_ERR_EXISTS);
    assert_non_null(strstr(places[2].error.text, ports));
    assert_non_null(strstr(places[2].error.text, "0 are free"));
    connect_both(places, peers);
    exchange(places, peers);
    close_all(places, 2);
    static const char *const wrong[] = {"70000-70001", "5-4", "0-10", "100", "a-b", "1-2-3", "1-2 "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.ports = wrong[i];
        places[2].error = (struct weft_error){0};
        assert_false(place_open(&options, &places[2]));
        assert_int_equal(places[2].status, WEFT_ERR_INVALID);
        assert_non_null(strstr(places[2].error.text, wrong[i]));
    }
}

/* Loopback and the first other device that is up and has an IPv4 address. */
static bool second_device(char *out, size_t out_bytes)
{
    struct ifaddrs *all, *one;
    bool found = false;
    if (getifaddrs(&all) < 0) return false;
    for (one = all; one && !found; one = one->ifa_next) {
        found = one->ifa_addr && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP) &&
                strcmp(one->ifa_name, "lo") != 0;
        if (found) snprintf(out, out_bytes, "%s", one->ifa_name);
    }
    freeifaddrs(all);
    return found;
}

static void test_devices(void **state)
{
    char device[IFNAMSIZ], both[IFNAMSIZ + 8];
    struct weft_transport_options options;
    struct place places[2];
    if (!second_device(device, sizeof device)) {
        fprintf(stderr, "only a loopback device here: one device tested\n");
        snprintf(device, sizeof device, "lo");
    }
    snprintf(both, sizeof both, strcmp(device, "lo") == 0 ? "%s" : "lo,%s", device);
    const char *const pairs[][2] = {{both, both}, {device, device}, {both, device}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct weft_peer *peers[2];
        for (uint32_t k = 0; k < 2; k++) {
            place_init(&options, &places[k], k + 1);
            options.devices = pairs[i][k];
            must_open(&options, &places[k]);
        }
        connect_both(places, peers);
        exchange(places, peers);
        char line[200];
        weft_peer_describe(peers[0], line, sizeof line);
        if (!strstr(line, "tcp/")) fail_msg("devices %s, %s: \"%s\"", pairs[i][0], pairs[i][1], line);
        close_all(places, 2);
    }
    place_init(&options, &places[0], 1);
    options.devices = "nosuch0";
    assert_false(place_open(&options, &places[0]));
    assert_non_null(strstr(places[0].error.text, "nosuch0"));
}

/* ---- the user's own settings ---- */

static void expect_refusal(const char *variable, const char *value)
{
    struct weft_transport_options options;
    struct place place;
    setenv(variable, value, 1);
    place_init(&options, &place, 1);
    bool opened = place_open(&options, &place);
    unsetenv(variable);
    assert_false(opened);
    if (!strstr(place.error.text, variable) || !strstr(place.error.text, value)) {
        fail_msg("%s=%s: the sentence is \"%s\"", variable, value, place.error.text);
    }
}

static void test_user_settings(void **state)
{
    struct weft_transport_options options;
    struct place places[2];
    struct weft_peer *peers[2];
    char line[200], range[32];
    setenv("UCX_TLS", "sysv,cma,self", 1); /* wins over lanes=tcp */
    for (uint32_t i = 0; i < 2; i++) {
        place_init(&options, &places[i], i + 1);
        must_open(&options, &places[i]);
    }
    unsetenv("UCX_TLS");
    connect_both(places, peers);
    exchange(places, peers);
    weft_peer_describe(peers[0], line, sizeof line);
    if (!strstr(line, "sysv") || strstr(line, "tcp")) fail_msg("\"%s\"", line);
    close_all(places, 2);

    uint16_t first = free_ports();
    snprintf(range, sizeof range, "%u-%u", first, first);
    setenv("UCX_TCP_PORT_RANGE", range, 1); /* wins over ports */
    place_init(&options, &places[0], 1);
    options.ports = "1-1";
    must_open(&options, &places[0]);
    int fd = dial(first);
    assert_true(fd >= 0);
    close(fd);
    place_init(&options, &places[1], 2);
    assert_false(place_open(&options, &places[1])); /* a range in use is reported by a sentence, too */
    unsetenv("UCX_TCP_PORT_RANGE");
    assert_non_null(strstr(places[1].error.text, "UCX_TCP_PORT_RANGE"));
    close_all(places, 1);

    expect_refusal("UCX_TLS", "nonsense");
    expect_refusal("UCX_NET_DEVICES", "nosuch0");
    expect_refusal("UCX_KEEPALIVE_INTERVAL", "soon");
    expect_refusal("UCX_TCP_PORT_RANGE", "many");
}

/* ---- stray connections ---- */

static void scribble(int fd, uint32_t seed, size_t bytes)
{
    char garbage[512];
    fill(garbage, sizeof garbage, seed);
    for (size_t i = 0; i < bytes && i < sizeof garbage; i++) {
        if (send(fd, garbage + i, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
    }
}

static void test_stray_connections(void **state)
{
    enum { STRANGERS = 60 };
    struct place places[2];
    struct weft_peer *peers[2];
    struct weft_transport_options options;
    uint16_t first = free_ports();
    char ports[32];
    int fds[STRANGERS];
    snprintf(ports, sizeof ports, "%u-%u", first, first + 1u);
    for (uint32_t i = 0; i < 2; i++) {
        place_init(&options, &places[i], i + 1);
        options.ports = ports;
        must_open(&options, &places[i]);
    }
    for (int i = 0; i < STRANGERS; i++) { /* before any connect */
        fds[i] = dial((uint16_t)(first + i % 2));
        assert_true(fds[i] >= 0);
        if (i % 3 == 0) scribble(fds[i], (uint32_t)i, 1 + (size_t)i * 8); /* a word or a page */
        if (i % 5 == 0) {
            close(fds[i]); /* closed */
            fds[i] = -1;
        }
    }
    connect_both(places, peers);
    for (int round = 0; round < 20; round++) { /* the others stay, silent or sending slowly */
        for (int i = 0; i < STRANGERS; i++) {
            if (fds[i] >= 0 && i % 3 == 1) scribble(fds[i], (uint32_t)(i + round), 1);
        }
        exchange(places, peers);
    }
    assert_int_equal(places[0].failed + places[1].failed, 0);
    for (int i = 0; i < STRANGERS; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    exchange(places, peers);
    close_all(places, 2);
}

/* ---- sleeping ---- */

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* After the last message a third of a second costs nearly no processor time: both endpoints sleep on their
 * descriptors. */
static void sleeps(const char *lanes)
{
    struct place places[2];
    struct weft_peer *peers[2];
    open_two(places, peers, lanes);
    double before = processor_seconds();
    int awake = 0;
    for (uint64_t end_ns = net_now_ns() + WEFT_MS(333), now_ns; (now_ns = net_now_ns()) < end_ns;) {
        struct pollfd fds[2];
        int armed = 0;
        for (int i = 0; i < 2; i++) {
            fds[i] =
                (struct pollfd){.fd = places[i].transport->ops->fd(places[i].transport), .events = POLLIN};
            armed += core_arm(places[i].transport) == WEFT_OK;
        }
        if (armed == 2) poll(fds, 2, (int)((end_ns - now_ns) / 1000000) + 1);
        else awake++;
        pump(places, 2);
    }
    double used = processor_seconds() - before;
    if (used > 0.1)
        fail_msg("lanes %s: %.3f s of processor time in 0.33 s without work, %d rounds awake", lanes, used,
                 awake);
    exchange(places, peers); /* and wakes again */
    close_all(places, 2);
}

/* A polled endpoint does not listen to UCX's descriptor, which would cost each sender; an armed one does. */
static void test_listens_when_armed(void **state)
{
    enum { TAG_LISTENS = 7 };
    struct place places[2];
    struct weft_peer *peers[2];
    struct op unheard, heard, sends[2];
    open_two(places, peers, "tcp");
    struct weft_transport *receiver = places[1].transport;
    struct pollfd fd = {.fd = receiver->ops->fd(receiver), .events = POLLIN};
    for (uint64_t end_ns = net_now_ns() + WEFT_MS(10); net_now_ns() < end_ns;) pump(places, 2);
    op_recv(&unheard, receiver, 1, TAG(TAG_LISTENS), NULL, 0);
    op_send(&sends[0], peers[0], TAG(TAG_LISTENS), "x", NULL, 0);
    for (uint64_t end_ns = net_now_ns() + WEFT_MS(10); net_now_ns() < end_ns;) pump(places, 1);
    assert_int_equal(poll(&fd, 1, 0), 0);
    UNTIL(places, 2, unheard.fired && sends[0].fired);

    while (core_arm(receiver) != WEFT_OK) pump(places, 2);
    assert_int_equal(poll(&fd, 1, 0), 0);
    op_recv(&heard, receiver, 1, TAG(TAG_LISTENS), NULL, 0);
    op_send(&sends[1], peers[0], TAG(TAG_LISTENS), "x", NULL, 0);
    int ready = 0;
    for (int i = 0; i < 1000 && ready == 0; i++) { /* only the sender is progressed */
        pump(places, 1);
        ready = poll(&fd, 1, 10);
    }
    assert_int_equal(ready, 1);
    UNTIL(places, 2, heard.fired && sends[1].fired);
    close_all(places, 2);
}

static void test_sleeps_tcp(void **state) { sleeps("tcp"); }
static void test_sleeps_shm(void **state) { sleeps("shm"); }

/* ---- the end ---- */

/* Peers send while an endpoint closes: they see a close, not an error, and everything ends. */
static void test_close_while_written(void **state)
{
    enum { COUNT = 12, BYTES = 1 << 20 };
    static char source[BYTES], memory[BYTES];
    const char *const lanes[] = {"tcp", "shm"};
    for (int way = 0; way < 2; way++) {
        struct place places[2];
        struct weft_peer *peers[2];
        open_two(places, peers, lanes[way]);
        struct weft_window_options own = {.size = sizeof own,
                                          .address = memory,
                                          .bytes = BYTES,
                                          .rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
                                          .peer_id = WEFT_ANY_PEER};
        struct weft_window *window;
        struct weft_remote *remote;
        const void *key;
        size_t key_bytes;
        assert_int_equal(weft_window_open(places[1].transport, &own, &window, NULL), WEFT_OK);
        weft_window_key(window, &key, &key_bytes);
        assert_int_equal(weft_transport_import(peers[0], key, key_bytes, &remote), WEFT_OK);
        struct op ops[COUNT];
        for (int i = 0; i < COUNT; i++) {
            struct weft_put put = {.source = source, .bytes = BYTES};
            op_init(&ops[i]);
            enum weft_status status =
                i % 3 == 0   ? weft_transport_put(remote, &put, &ops[i].completion)
                : i % 3 == 1 ? op_send(&ops[i], peers[0], TAG(i), NULL, source, i % 2 ? BYTES : 1000)
                             : weft_transport_get(remote, 0, source, BYTES, &ops[i].completion);
            assert_int_equal(status, WEFT_IN_PROGRESS);
        }
        for (int i = 0; i < 5; i++) pump(places, 2);
        weft_transport_close(places[1].transport);
        UNTIL(places, 2, places[0].failed);
        assert_int_equal(weft_peer_status(peers[0]), WEFT_ERR_PEER_LOST);
        assert_true(peers[0]->has_left);
        assert_string_equal(peers[0]->text, "it has closed its endpoint");
        UNTIL(places, 2, weft_transport_drained(places[1].transport));
        for (int i = 0; i < COUNT; i++) UNTIL(places, 2, ops[i].fired);
        for (int i = 0; i < COUNT; i++) assert_int_equal(ops[i].fired, 1);
        assert_int_equal(weft_remote_release(remote), WEFT_OK);
        assert_int_equal(places[0].failed, 1);
        close_all(places, 2);
    }
}

/* ---- remote access ---- */

static struct weft_window *open_window(struct place *place, struct weft_peer *peer, void *memory,
                                       size_t bytes, struct weft_remote *remotes[2])
{
    struct weft_window_options own = {.size = sizeof own,
                                      .address = memory,
                                      .bytes = bytes,
                                      .rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
                                      .peer_id = WEFT_ANY_PEER};
    struct weft_window *window;
    const void *key;
    size_t key_bytes;
    assert_int_equal(weft_window_open(place->transport, &own, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &key_bytes);
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_transport_import(peer, key, key_bytes, &remotes[i]), WEFT_OK);
    return window;
}

static uint64_t copied(struct place *place)
{
    struct weft_transport_stats stats;
    weft_transport_stats(place->transport, &stats);
    return stats.copied_bytes;
}

static enum weft_status put(struct op *op, struct weft_remote *remote, const void *source, size_t bytes,
                            bool notify)
{
    struct weft_put what = {.source = source,
                            .bytes = bytes,
                            .notify = notify,
                            .tag = TAG(5),
                            .header = "there",
                            .header_bytes = notify ? 5 : 0};
    op_init(op);
    return weft_transport_put(remote, &what, &op->completion);
}

static size_t gathered_bytes(int i) { return i == 0 ? 8 : i % 10 == 9 ? 16 << 10 : (size_t)i * 7; }

/* Small messages between two calls of progress leave together: in order, complete, to receives posted
 * before and after. The first is sent at once, without a copy. */
static void test_gathered(void **state)
{
    enum { COUNT = 300, LARGEST = 16 << 10 };
    struct place places[2];
    struct weft_peer *peers[2];
    open_two(places, peers, NULL);
    unsigned char *out = calloc(1, LARGEST), *in = calloc(COUNT, LARGEST);
    struct op *sends = calloc(COUNT, sizeof *sends), *recvs = calloc(COUNT, sizeof *recvs);
    for (int late = 0; late < 2; late++) {
        static unsigned char lead[8];
        uint64_t gathered = 0, before = copied(&places[0]);
        for (int i = 0; i < COUNT && !late; i++)
            op_recv(&recvs[i], places[1].transport, 1, TAG(5), in + (size_t)i * LARGEST, LARGEST);
        for (int i = 0; i < COUNT; i++) {
            size_t bytes = gathered_bytes(i);
            char header[16];
            snprintf(header, sizeof header, "%d", i);
            fill(i == 0 ? lead : out, bytes, (uint32_t)i);
            assert_int_equal(op_send(&sends[i], peers[0], TAG(5), header, i == 0 ? lead : out, bytes),
                             WEFT_IN_PROGRESS);
            memset(out, 0xEE, bytes); /* all but the first were copied */
            if (i > 0) gathered += bytes;
        }
        assert_int_equal(copied(&places[0]) - before, gathered);
        for (int i = 0; i < 30 && late; i++) pump(places, 2);
        for (int i = 0; i < COUNT && late; i++)
            op_recv(&recvs[i], places[1].transport, 1, TAG(5), in + (size_t)i * LARGEST, LARGEST);
        for (int i = 0; i < COUNT; i++) {
            UNTIL(places, 2, sends[i].fired && recvs[i].fired);
            assert_int_equal(sends[i].status | recvs[i].status, WEFT_OK);
            assert_int_equal(recvs[i].receive.payload_bytes, gathered_bytes(i));
            assert_int_equal(strtol((const char *)recvs[i].receive.header, NULL, 10), i);
            assert_true(filled(in + (size_t)i * LARGEST, gathered_bytes(i), (uint32_t)i));
        }
    }
    free(out), free(in), free(sends), free(recvs);
    close_all(places, 2);
}

/* More unconsumed messages than the eager window, of sizes around the small and large buffers and the
 * announcement limit: each arrives complete when received, small ones do not use the largest buffers, and
 * the buffers are reused. */
static void test_kept(void **state)
{
    enum { COUNT = 60, LARGEST = 300 << 10 };
    static const size_t sizes[] = {200, 60 << 10, (60 << 10) + 1, 256 << 10, (256 << 10) + 1, 300};
    struct place places[2];
    struct weft_peer *peers[2];
    struct weft_transport_stats stats;
    open_two(places, peers, NULL);
    unsigned char *out = malloc((size_t)COUNT * LARGEST), *in = malloc(LARGEST);
    struct op *sends = calloc(COUNT, sizeof *sends);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            size_t bytes = sizes[i % 6];
            fill(out + (size_t)i * LARGEST, bytes, (uint32_t)i);
            assert_int_equal(op_send(&sends[i], peers[0], TAG(i), NULL, out + (size_t)i * LARGEST, bytes),
                             WEFT_IN_PROGRESS);
        }
        for (int i = 0; i < 200; i++) pump(places, 2);
        for (int i = 0; i < COUNT; i++) {
            struct op recv;
            op_recv(&recv, places[1].transport, 1, TAG(i), in, LARGEST);
            UNTIL(places, 2, sends[i].fired && recv.fired);
            assert_int_equal(sends[i].status | recv.status, WEFT_OK);
            assert_int_equal(recv.receive.payload_bytes, sizes[i % 6]);
            assert_true(filled(in, sizes[i % 6], (uint32_t)i));
        }
        weft_transport_stats(places[1].transport, &stats);
    }
    assert_true(stats.memory_bytes < 8 << 20); /* the window of 4 MiB, and records */
    free(out), free(in), free(sends);
    close_all(places, 2);
}

/* Over verbs lanes (in the virtual machine): the owner's processor copies nothing, the notification
 * follows the bytes, and a window closes only when every key was released. */
static void test_remote_access(void **state)
{
    enum { BYTES = 1 << 20, COUNT = 16 };
    const char *devices = getenv("WEFT_TEST_DEVICES");
    if (!devices) {
        fprintf(stderr, "WEFT_TEST_DEVICES names no RDMA device\n");
        skip();
    }
    struct place places[2];
    struct weft_peer *peers[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct weft_transport_options options;
        char device[64];
        const char *second = strchr(devices, ' ');
        snprintf(device, sizeof device, "%s", i == 1 && second ? second + 1 : devices);
        device[strcspn(device, " ")] = 0;
        place_init(&options, &places[i], i + 1);
        options.lanes = "rc_verbs,ud_verbs";
        options.devices = device;
        must_open(&options, &places[i]);
    }
    connect_both(places, peers);
    exchange(places, peers);
    char line[200];
    weft_peer_describe(peers[0], line, sizeof line);
    if (!strstr(line, "put and get by remote access")) fail_msg("\"%s\"", line);

    static unsigned char memory[BYTES], source[BYTES], back[BYTES];
    struct weft_remote *remotes[2];
    struct weft_window *window = open_window(&places[1], peers[0], memory, BYTES, remotes);
    exchange(places, peers); /* meanwhile the key is requested and sent */
    uint64_t before = copied(&places[1]), own_before = copied(&places[0]);
    for (uint32_t round = 0; round < 4; round++) {
        size_t bytes = round == 0 ? 8 : BYTES >> (3 - round);
        struct op put_op, got, heard;
        fill(source, bytes, round);
        memset(back, 0, bytes);
        op_recv(&heard, places[1].transport, 1, TAG(5), NULL, 0);
        assert_int_equal(put(&put_op, remotes[round % 2], source, bytes, true), WEFT_IN_PROGRESS);
        UNTIL(places, 2, heard.fired);
        assert_true(filled(memory, bytes, round));
        assert_memory_equal(heard.receive.header, "there", 5);
        UNTIL(places, 2, put_op.fired);
        assert_int_equal(put_op.status, WEFT_OK);
        op_init(&got);
        assert_int_equal(weft_transport_get(remotes[round % 2], 0, back, bytes, &got.completion),
                         WEFT_IN_PROGRESS);
        UNTIL(places, 2, got.fired);
        assert_int_equal(got.status, WEFT_OK);
        assert_true(filled(back, bytes, round));
    }
    assert_int_equal(copied(&places[1]), before);
    assert_int_equal(copied(&places[0]), own_before);

    struct op puts[COUNT], closed, late;
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(put(&puts[i], remotes[0], source, BYTES, false), WEFT_IN_PROGRESS);
    op_init(&closed);
    weft_window_close(window, &closed.completion);
    /* the importer has not received it */
    for (int i = 0; i < 20; i++) weft_transport_progress(places[1].transport, 64);
    assert_int_equal(closed.fired, 0);
    UNTIL(places, 2, closed.fired);
    memset(memory, 0xEE, BYTES);
    for (int i = 0; i < COUNT; i++) UNTIL(places, 2, puts[i].fired);
    assert_int_equal(put(&late, remotes[0], source, 100, false), WEFT_IN_PROGRESS);
    UNTIL(places, 2, late.fired);
    assert_int_equal(late.status, WEFT_ERR_CANCELLED);
    for (int i = 0; i < BYTES; i++) assert_int_equal(memory[i], 0xEE);
    for (int i = 0; i < 2; i++) assert_int_equal(weft_remote_release(remotes[i]), WEFT_OK);

    /* released before and after the key has arrived */
    window = open_window(&places[1], peers[0], memory, BYTES, remotes);
    assert_int_equal(weft_remote_release(remotes[0]), WEFT_OK);
    exchange(places, peers);
    assert_int_equal(weft_remote_release(remotes[1]), WEFT_OK);
    op_init(&closed);
    weft_window_close(window, &closed.completion);
    UNTIL(places, 2, closed.fired);
    assert_int_equal(places[0].failed + places[1].failed, 0);

    /* its user closes without releasing */
    window = open_window(&places[1], peers[0], memory, BYTES, remotes);
    exchange(places, peers);
    assert_int_equal(put(&puts[0], remotes[0], source, BYTES, false), WEFT_IN_PROGRESS);
    weft_transport_close(places[0].transport);
    op_init(&closed);
    weft_window_close(window, &closed.completion);
    UNTIL(places, 2, closed.fired && puts[0].fired);
    close_all(places, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secrets_differ),
        cmocka_unit_test(test_blob_is_sealed),
        cmocka_unit_test(test_forger),
        cmocka_unit_test(test_port_range),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_user_settings),
        cmocka_unit_test(test_stray_connections),
        cmocka_unit_test(test_sleeps_tcp),
        cmocka_unit_test(test_sleeps_shm),
        cmocka_unit_test(test_listens_when_armed),
        cmocka_unit_test(test_close_while_written),
        cmocka_unit_test(test_remote_access),
        cmocka_unit_test(test_gathered),
        cmocka_unit_test(test_kept),
    };
    /* no peer answers: takes two seconds */
    if (argc > 1 && strcmp(argv[1], "quick") == 0) cmocka_set_skip_filter("test_forger");
    else if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("ucx", tests, NULL, NULL);
}
