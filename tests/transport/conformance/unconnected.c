/* unconnected.c - malformed address blobs, endpoints of another job, and stray connections. */
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    for (size_t i = 0; i < bytes && i < 24; i++) { /* every byte of the backend's own part changed */
        memcpy(copy, blob, bytes);
        copy[i] ^= 0x40;
        assert_true(weft_transport_connect(net.transports[0], 7, copy, bytes, &peer) < 0);
    }
    memcpy(copy, blob, bytes);
    assert_true(weft_transport_connect(net.transports[0], 7, copy, bytes + 1, &peer) < 0);
    /* not that id */
    assert_int_equal(weft_transport_connect(net.transports[0], 7, blob, bytes, &peer), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_transport_connect(net.transports[0], id_of(1), blob, bytes, &peer),
                     WEFT_ERR_EXISTS);
    assert_null(peer);
    assert_null(weft_transport_peer(net.transports[0], 7));
    exchange(&net, 1000, 0, true, 1);
    free(copy);
    net_close(&net);
}

/* A message of another job is dropped and counted, and affects no peer. */
static void test_wrong_nonce(void **state)
{
    struct net net;
    net_stranger = 0; /* the smallest id: it dials */
    net_open(&net, flavour, 3);
    net_stranger = -1;
    char in[8];
    struct op stray, good, recv;
    struct weft_transport_stats stats;
    op_recv(&recv, net.transports[1], id_of(2), TAG(1), in, 8);
    weft_transport_stats(net.transports[1], &stats);
    /* NULL: its forged address was refused */
    if (net.peers[0][1]) op_send(&stray, net.peers[0][1], TAG(1), NULL, "stray", 5);
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

/* An endpoint without the job's secret gets an error and delays no peer. It dials once (the smallest id)
 * and is dialled once. */
static void test_wrong_secret(void **state)
{
    if (net_is_sim(flavour)) return; /* a simulation does not authenticate */
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
        int dialler = impostor == 0 ? impostor : 1; /* it gets the reason; the other side only closes */
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

/* ---- connections ---- */

enum { STRAYS = 12, LISTENERS_MAX = 64 };

struct listener {
    struct sockaddr_storage address;
    socklen_t bytes;
};

/* All sockets on which this process listens: TCP, or Unix domain. */
static int find_listeners(struct listener *listeners)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) && count < LISTENERS_MAX;) {
        int fd = atoi(entry->d_name), listens = 0;
        socklen_t bytes = sizeof listens;
        struct listener *found = &listeners[count];
        if (entry->d_name[0] == '.' || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) < 0 ||
            !listens)
            continue;
        found->bytes = sizeof found->address;
        if (getsockname(fd, (struct sockaddr *)&found->address, &found->bytes) < 0) continue;
        struct sockaddr_in *ip4 = (struct sockaddr_in *)&found->address;
        struct sockaddr_in6 *ip6 = (struct sockaddr_in6 *)&found->address;
        if (ip4->sin_family == AF_INET && ip4->sin_addr.s_addr == INADDR_ANY)
            ip4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (ip6->sin6_family == AF_INET6 && memcmp(&ip6->sin6_addr, &in6addr_any, sizeof in6addr_any) == 0)
            ip6->sin6_addr = in6addr_loopback;
        count++;
    }
    closedir(directory);
    return count;
}

/* Connected or connecting; -1: refused. */
static int dial(const struct listener *listener)
{
    int fd = socket(listener->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 && listener->address.ss_family == AF_UNIX)
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) connect(fd, (const struct sockaddr *)&listener->address, listener->bytes);
    return fd;
}

static void dribble(int fd, uint32_t seed, size_t bytes)
{
    unsigned char garbage[256];
    fill(garbage, sizeof garbage, seed);
    for (size_t i = 0; i < bytes && i < sizeof garbage; i++)
        if (fd >= 0 && send(fd, garbage + i, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

/* Before any bootstrap each listener is full of connections that are silent, send garbage or close: the
 * endpoints connect nevertheless and exchange messages meanwhile. */
static void test_stray_connections(void **state)
{
    struct listener listeners[LISTENERS_MAX];
    int fds[LISTENERS_MAX * STRAYS];
    struct net net;
    net_open(&net, flavour, 2);
    int count = find_listeners(listeners) * STRAYS;
    if (count == 0) { /* no listener: the simulator, UCX over shared memory */
        net_close(&net);
        skip();
    }
    for (int i = 0; i < count; i++) {
        fds[i] = dial(&listeners[i / STRAYS]);
        if (i % 3 == 0) dribble(fds[i], (uint32_t)i, 1 + (size_t)(i % STRAYS) * 20);
        if (i % 4 == 1 && fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
    }
    for (int round = 0; round < 10; round++) {
        exchange(&net, 20000, 0, round % 2 == 0, (uint32_t)round);
        for (int i = round % 3; i < count; i += 3) dribble(fds[i], (uint32_t)(i + round), 1);
    }
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0) close(fds[i]);
    exchange(&net, 1000, 0, true, 77);
    assert_int_equal(net.failed_count[0] + net.failed_count[1], 0);
    net_close(&net);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_stray_connections),
    cmocka_unit_test(test_malformed_address),
    cmocka_unit_test(test_wrong_nonce),
    cmocka_unit_test(test_wrong_secret),
};
const struct conformance_part conformance_unconnected = {"unconnected", tests, sizeof tests / sizeof *tests};
