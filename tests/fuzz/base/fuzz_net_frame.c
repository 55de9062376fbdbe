/* fuzz_net_frame.c - frames of control connections: for any bytes in any pieces, complete frames are
 * delivered in order, and a length above the limit closes the connection with WEFT_ERR_MALFORMED. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/fuzz/fuzz.h"

enum { FRAME_MAX = 1000, STEPS_MAX = 20000 };

struct seen {
    uint64_t frames, sum;
    bool closed;
    enum weft_status reason;
};

static uint64_t mix(uint64_t sum, const uint8_t *data, size_t bytes)
{
    sum = sum * 31 + bytes;
    for (size_t i = 0; i < bytes; i++) sum = sum * 31 + data[i];
    return sum;
}

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    struct seen *seen = context;
    if (seen->closed || bytes > FRAME_MAX) abort();
    seen->frames++;
    seen->sum = mix(seen->sum, data, bytes);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct seen *seen = context;
    if (seen->closed || !text[0]) abort();
    seen->closed = true;
    seen->reason = reason;
}

/* The frames in the bytes, by the simplest reader. */
static struct seen expect(const uint8_t *data, size_t bytes)
{
    struct seen seen = {.closed = true, .reason = WEFT_ERR_PEER_LOST};
    for (size_t at = 0; bytes - at >= 4;) {
        size_t length =
            data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16 | (size_t)data[at + 3] << 24;
        if (length > FRAME_MAX) {
            seen.reason = WEFT_ERR_MALFORMED;
            break;
        }
        if (length > bytes - at - 4) break;
        seen.frames++;
        seen.sum = mix(seen.sum, data + at + 4, length);
        at += 4 + length;
    }
    return seen;
}

static int dial(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger at_once = {.l_onoff = 1}; /* no TIME_WAIT */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (fd < 0) abort();
    /* The fuzzer's timer signal interrupts; Linux continues the connection. */
    do status = connect(fd, (struct sockaddr *)&to, sizeof to);
    while (status != 0 && errno == EINTR);
    if (status == 0) return fd;
    if (errno != EADDRNOTAVAIL && errno != EADDRINUSE) abort();
    close(fd); /* after about 100,000 connections no port is free for a while */
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct weft_net *net;
    static struct weft_net_listener *listener;
    static struct seen seen;
    static uint16_t port;
    static const struct weft_net_handler handler = {
        .frame = on_frame, .closed = on_closed, .frame_bytes_max = FRAME_MAX};
    if (!net && (weft_net_create(weft_env_system(), &net) < 0 ||
                 weft_net_listen(net, "127.0.0.1", 0, &handler, &seen, &port, &listener, NULL) < 0)) {
        abort();
    }
    if (bytes == 0) return 0;
    size_t piece = data[0] ? data[0] * 16u : bytes, at = 1;
    seen = (struct seen){0};
    int fd = dial(port);
    if (fd < 0) return 0;
    for (int steps = 0; !seen.closed && steps < STEPS_MAX; steps++) {
        size_t wanted = bytes - at < piece ? bytes - at : piece;
        ssize_t sent = wanted ? send(fd, data + at, wanted, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        if (sent > 0) at += (size_t)sent;
        else if (wanted && errno != EAGAIN) at = bytes; /* the peer has closed; checked below */
        if (at == bytes) shutdown(fd, SHUT_WR);
        weft_net_step(net, 1);
    }
    struct seen expected = expect(data + 1, bytes - 1);
    close(fd);
    if (!seen.closed || seen.frames != expected.frames || seen.sum != expected.sum) abort();
    if (expected.reason == WEFT_ERR_MALFORMED && seen.reason != WEFT_ERR_MALFORMED) abort();
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const uint32_t lengths[] = {0, 1, 7, 100, FRAME_MAX, FRAME_MAX + 1, 0xffffffff};
    size_t at = 0;
    out[at++] = (uint8_t)(number * 3);
    for (uint64_t i = 0; i < number % 5 + 1; i++) {
        uint32_t length = lengths[(number + i) % 7], there = length > FRAME_MAX ? 5 : length;
        if (at + 4 + there > capacity) break;
        for (int b = 0; b < 4; b++) out[at++] = (uint8_t)(length >> 8 * b);
        memset(out + at, (int)number, there);
        at += there;
    }
    return at;
}
