/* test_tcp_parts.c - partial system calls: frames and payloads cut at every byte, and an endpoint that
 * closes with a partly sent frame. This file replaces the system calls to control the cuts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/transport/net.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { LONG = NET_EAGER + 1000, SHORT = 700 };

static const struct flavour tight = {"tcp", "tcp", .tune = "budget=64k"};
static size_t sent_at_once = SIZE_MAX, got_at_once = SIZE_MAX; /* bytes of one call */
/* bytes that sockets accept, over all calls */
static size_t accepted_bytes_max = SIZE_MAX;
/* the reader is as fast as the writer: buffers never fill */
static bool swallows;
static size_t swallowed;

static struct msghdr cut(const struct msghdr *message, struct iovec *parts, size_t bytes)
{
    struct msghdr shorter = *message;
    shorter.msg_iov = parts;
    shorter.msg_iovlen = 0;
    for (size_t i = 0; i < message->msg_iovlen && bytes > 0; i++) {
        struct iovec part = message->msg_iov[i];
        if (part.iov_len > bytes) part.iov_len = bytes;
        bytes -= part.iov_len;
        parts[shorter.msg_iovlen++] = part;
    }
    return shorter;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct iovec parts[64];
    if (swallows) {
        size_t all = 0;
        for (size_t i = 0; i < message->msg_iovlen; i++) all += message->msg_iov[i].iov_len;
        swallowed += all;
        return (ssize_t)all;
    }
    size_t bytes = sent_at_once < accepted_bytes_max ? sent_at_once : accepted_bytes_max;
    if (bytes == 0) {
        errno = EAGAIN;
        return -1;
    }
    struct msghdr shorter = cut(message, parts, bytes);
    ssize_t sent = syscall(SYS_sendmsg, fd, &shorter, flags);
    if (sent > 0 && accepted_bytes_max != SIZE_MAX) accepted_bytes_max -= (size_t)sent;
    return sent;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    struct iovec parts[64];
    struct msghdr shorter = cut(message, parts, got_at_once);
    ssize_t got = syscall(SYS_recvmsg, fd, &shorter, flags);
    message->msg_controllen = shorter.msg_controllen;
    message->msg_flags = shorter.msg_flags;
    return got;
}

ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
    return syscall(SYS_recvfrom, fd, buffer, bytes < got_at_once ? bytes : got_at_once, flags, NULL, NULL);
}

static const char header[] = "of a message";

/* Announced and eager, with and without headers, receives posted before and after, in both directions. */
static void exchange(struct net *net, size_t sent, size_t got)
{
    enum { MESSAGES = 6 };
    static const size_t lengths[MESSAGES] = {0, SHORT, LONG, 1, LONG, SHORT};
    static unsigned char out[LONG], in[2][MESSAGES][LONG];
    struct op sends[2][MESSAGES], receives[2][MESSAGES];
    fill(out, LONG, 5);
    memset(in, 0, sizeof in);
    sent_at_once = sent;
    got_at_once = got;
    for (int early = 0; early < 2; early++)
        for (int i = 0; i < MESSAGES; i++)
            for (int to = 0; to < 2; to++) {
                if (early == 0)
                    op_send(&sends[to][i], net->peers[1 - to][to], TAG(i), i % 2 ? header : NULL,
                            lengths[i] ? out : NULL, lengths[i]);
                if ((early == 0) == (i < MESSAGES / 2))
                    op_recv(&receives[to][i], net->transports[to], 101 - (uint32_t)to, TAG(i), in[to][i],
                            LONG);
                net_pump(net);
            }
    for (int i = 0; i < MESSAGES; i++)
        for (int to = 0; to < 2; to++) {
            PUMP_UNTIL(net, sends[to][i].fired && receives[to][i].fired);
            assert_int_equal(sends[to][i].status, WEFT_OK);
            assert_int_equal(receives[to][i].status, WEFT_OK);
            assert_int_equal(receives[to][i].receive.payload_bytes, lengths[i]);
            assert_int_equal(receives[to][i].receive.header_bytes, i % 2 ? strlen(header) : 0);
            assert_true(filled(in[to][i], lengths[i], 5));
        }
    sent_at_once = got_at_once = SIZE_MAX;
}

static void test_pieces(void **state)
{
    static const size_t cuts[] = {1, 2, 23, 24, 25, 37, 700, 4096};
    struct net net;
    net_open(&net, &tight, 2);
    net_connect_pair(&net);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        exchange(&net, cuts[i], SIZE_MAX);
        exchange(&net, SIZE_MAX, cuts[i]);
        exchange(&net, cuts[i], cuts[(i + 3) % (sizeof cuts / sizeof *cuts)]);
    }
    net_close(&net);
}

/* A long payload to a fast reader: progress still returns, so that others get a turn. */
static void test_others_get_their_turn(void **state)
{
    enum { LONGEST = 256 << 20 };
    struct net net;
    struct op send, receive;
    char *out = calloc(1, LONGEST), *in = malloc(LONGEST); /* never touched */
    net_open(&net, &tight, 2);
    net_connect_pair(&net);
    op_recv(&receive, net.transports[1], 100, TAG(1), in, LONGEST);
    op_send(&send, net.peers[0][1], TAG(1), NULL, out, LONGEST);
    weft_transport_progress(net.transports[0], 64);
    while (receive.receive.payload_bytes == 0) weft_transport_progress(net.transports[1], 64);
    swallows = true;
    swallowed = 0;
    while (swallowed == 0) weft_transport_progress(net.transports[0], 64);
    assert_in_range(swallowed, 1, LONGEST / 2);
    while (!send.fired) weft_transport_progress(net.transports[0], 64);
    swallows = false;
    net_close(&net);
    free(out);
    free(in);
}

/* ---- closing ---- */

enum begun { MESSAGE, ANNOUNCEMENT, DATA, GRANT, REFUSAL, BEGUN };

static struct weft_transport *refuser;
static void refuse(void *context, struct weft_arrival *arrival) { weft_transport_discard(refuser, arrival); }

/* Endpoint 1 begins such a frame, of which the socket accepts so many bytes. */
static void begin(struct net *net, enum begun what, size_t bytes, struct op *ours, struct op *theirs)
{
    static unsigned char out[LONG], in[LONG];
    struct weft_transport *transport = net->transports[1];
    op_init(ours);
    op_init(theirs);
    switch (what) {
    case MESSAGE:
    case ANNOUNCEMENT:
        accepted_bytes_max = bytes;
        op_send(ours, net->peers[1][0], TAG(1), header, out, what == MESSAGE ? SHORT : LONG);
        return;
    case DATA:
        op_recv(theirs, net->transports[0], 101, TAG(1), in, LONG);
        op_send(ours, net->peers[1][0], TAG(1), header, out, LONG);
        weft_transport_progress(transport, 64);
        while (theirs->receive.payload_bytes == 0) weft_transport_progress(net->transports[0], 64);
        accepted_bytes_max = bytes;
        for (int i = 0; i < 100; i++) weft_transport_progress(transport, 64);
        return;
    case GRANT:
    case REFUSAL:
        op_send(theirs, net->peers[0][1], what == GRANT ? TAG(1) : WEFT_TAG(WEFT_CHANNEL_PROBE, 1), NULL, out,
                LONG);
        weft_transport_progress(net->transports[0], 64);
        accepted_bytes_max = bytes;
        if (what == GRANT) op_recv(ours, transport, 100, TAG(1), in, LONG);
        for (int i = 0; i < 100; i++) weft_transport_progress(transport, 64);
    case BEGUN: return;
    }
}

static void close_with(enum begun what, size_t bytes)
{
    struct net net;
    struct op ours, theirs;
    net_open(&net, &tight, 2);
    net_connect_pair(&net);
    refuser = net.transports[1];
    weft_transport_handler(refuser, WEFT_CHANNEL_PROBE, refuse, NULL);
    begin(&net, what, bytes, &ours, &theirs);
    weft_transport_close(net.transports[1]);
    for (int i = 0; i < 10; i++) weft_transport_progress(net.transports[1], 64);
    accepted_bytes_max = SIZE_MAX;
    PUMP_UNTIL(&net, weft_transport_drained(net.transports[1]) && net.failed_count[0] > 0);
    /* all earlier frames were complete */
    assert_string_equal(net.failed_text[0], "it has closed its endpoint");
    assert_int_equal(ours.fired, what != REFUSAL);
    assert_int_equal(theirs.fired, what >= DATA);
    net_close(&net);
}

static void test_close_in_a_frame(void **state)
{
    for (enum begun what = MESSAGE; what < BEGUN; what++)
        for (size_t bytes = 0; bytes <= 24 + sizeof header; bytes++) close_with(what, bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_others_get_their_turn),
                                       cmocka_unit_test(test_close_in_a_frame)};
    return cmocka_run_group_tests_name("tcp-parts", tests, NULL, NULL);
}
