/* fuzz_tcp.c - an authenticated peer of the tcp backend that sends anything: valid frames in any order,
 * truncated frames, arbitrary bytes. Every operation completes exactly once, and the endpoint serves the next
 * peer.
 *
 *     input: steps; first byte of each % 10: 0 raw bytes, 8 a frame of any fields, 9 a piece of one, else a
 *     frame of that kind with small fields. If the first byte of all is above 127 the peer does not read, so
 *     the endpoint's output stays in its queue.
 *
 * The same bytes are also passed to the pure decoders. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/core/core.h"
#include "transport/tcp/tcp_wire.h"

#define MUST(expression)            \
    do {                            \
        if (!(expression)) abort(); \
    } while (0)

enum {
    LIVES = 400,
    OPERATIONS = 6,
    STEPS_MAX = 20000,
    LONG = 16 << 20 /* more than a socket buffer */,
    BUFFER_BYTES = 1 << 12,
    EAGER = 1000,
    NONCE = 7,
    OURS = 1
};
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

struct operation {
    struct weft_completion completion;
    struct weft_receive receive;
    int fired;
    uint8_t buffer[3000];
};

static struct weft_transport *endpoint;
static bool failed;
static struct weft_list held;

static void on_done(struct weft_completion *completion, enum weft_status status)
{
    struct operation *operation = weft_container_of(completion, struct operation, completion);
    MUST(operation->fired++ == 0);
}

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    MUST(!failed && text[0]);
    failed = true;
}

/* Every third is kept until the peer is lost, every third is discarded, the others are received. */
static void on_arrival(void *context, struct weft_arrival *arrival)
{
    static unsigned turn;
    if (turn++ % 3 == 0) weft_list_append(&held, &arrival->link);
    else weft_transport_discard(endpoint, arrival);
}

static void open_endpoint(void)
{
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = "tcp";
    options.id = OURS;
    options.nonce = NONCE;
    options.tune = "budget=64k";
    options.eager_bytes_max = EAGER;
    options.peer_failed = on_failed;
    MUST(weft_transport_open(weft_env_system(), &options, &endpoint, NULL) == WEFT_OK);
    weft_transport_handler(endpoint, WEFT_CHANNEL_PROBE, on_arrival, NULL);
    weft_list_init(&held);
}

/* ---- the other side ---- */

struct hostile {
    struct bootstrap *bootstrap;
    int fd;
    bool disconnected, deaf;
};

static void connected(void *owner, struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                      int *descriptors, uint32_t count)
{
    struct hostile *hostile = owner;
    const void *rest;
    size_t rest_bytes;
    uint32_t budget;
    MUST(tcp_parameters_decode(parameters, bytes, &budget) == WEFT_OK && budget == 64 << 10);
    hostile->fd = bootstrap_detach_socket(peer, &rest, &rest_bytes);
    MUST(hostile->fd >= 0);
}

static void disconnected(void *owner, struct bootstrap_peer *peer, enum weft_status status, const char *text)
{
    ((struct hostile *)owner)->disconnected = true;
}

/* false: no port is free at the moment. */
static bool connect_endpoint(struct hostile *hostile, uint32_t id, struct weft_peer **peer_out)
{
    struct bootstrap_options options;
    struct bootstrap_peer *there;
    uint8_t parameters[TCP_PARAMETER_BYTES], blob[ADDRESS_BLOB_BYTES_MAX];
    const void *theirs, *address, *mine;
    size_t bytes, address_bytes;
    *hostile = (struct hostile){.fd = -1};
    bootstrap_options_init(&options);
    options.family = BOOTSTRAP_TCP;
    options.id = id;
    options.nonce = NONCE;
    options.callbacks = (struct bootstrap_callbacks){.connected = connected, .disconnected = disconnected};
    if (bootstrap_open(weft_env_system(), &options, &hostile->bootstrap, NULL) < 0) return false;
    mine = bootstrap_address(hostile->bootstrap, &bytes);
    uint32_t blob_bytes =
        address_blob_encode(tcp_address_blob_kind, core_nonce_hash(NONCE), id, mine, (uint32_t)bytes, blob);
    MUST(weft_transport_connect(endpoint, id, blob, blob_bytes, peer_out) == WEFT_OK);
    MUST(weft_transport_address(endpoint, &theirs, &bytes) == WEFT_OK);
    MUST(address_blob_decode(tcp_address_blob_kind, theirs, bytes, core_nonce_hash(NONCE), OURS, &address,
                             &address_bytes) == WEFT_OK);
    tcp_parameters_encode(64 << 10, parameters);
    MUST(bootstrap_connect(hostile->bootstrap, OURS, address, address_bytes, parameters, sizeof parameters,
                           NULL, 0, hostile, &there) == WEFT_OK);
    for (int steps = 0; hostile->fd < 0 && !hostile->disconnected && !failed && steps < STEPS_MAX; steps++) {
        bootstrap_progress(hostile->bootstrap, 16);
        weft_transport_progress(endpoint, 64);
    }
    return hostile->fd >= 0;
}

static void say(const struct hostile *hostile, const uint8_t *data, size_t bytes)
{
    uint8_t heard[4096];
    for (int steps = 0; bytes > 0 && steps < 1000; steps++) {
        ssize_t sent = send(hostile->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) return;
        if (sent > 0) data += sent, bytes -= (size_t)sent;
        weft_transport_progress(endpoint, 64);
        while (!hostile->deaf && recv(hostile->fd, heard, sizeof heard, MSG_DONTWAIT) > 0) {}
    }
}

static uint8_t next(const uint8_t **data, size_t *bytes)
{
    if (*bytes == 0) return 0;
    --*bytes;
    return *(*data)++;
}

static void say_script(const struct hostile *hostile, const uint8_t *data, size_t bytes)
{
    static uint8_t words[TCP_FRAME_BYTES + BUFFER_BYTES];
    memset(words, 0x5a, sizeof words);
    for (int steps = 0; bytes > 0 && !failed && steps < 200; steps++) {
        uint8_t kind = next(&data, &bytes) % 10;
        if (kind == 0) {
            size_t count = next(&data, &bytes);
            if (count > bytes) count = bytes;
            say(hostile, data, count);
            data += count;
            bytes -= count;
            continue;
        }
        uint8_t small = next(&data, &bytes), header = next(&data, &bytes), taken = next(&data, &bytes);
        uint64_t size = (uint64_t)next(&data, &bytes) * (small % 2 ? 1 : 16);
        struct tcp_frame frame = {.kind = (enum tcp_kind)(kind > 7 ? 1 + small % 7 : kind),
                                  .taken = taken > 250 ? taken : 0,
                                  .number = small % 8,
                                  .bytes = size};
        bool message = frame.kind == TCP_MESSAGE || frame.kind == TCP_ANNOUNCE;
        if (message)
            frame.header_bytes = header,
            frame.number = WEFT_TAG(small / 8 % 2 ? WEFT_CHANNEL_TEST : WEFT_CHANNEL_PROBE, small % 8);
        else if (frame.kind != TCP_DATA) frame.bytes = 0;
        if (kind == 8)
            frame.header_bytes = header * 300u, frame.number = (uint64_t)small << 40,
            frame.bytes = size << 36;
        tcp_frame_encode(&frame, words);
        size_t count = TCP_FRAME_BYTES + (message ? frame.header_bytes : 0) +
                       (frame.kind == TCP_MESSAGE || frame.kind == TCP_DATA ? size : 0);
        if (count > sizeof words) count = sizeof words;
        say(hostile, words, kind == 9 ? count * header / 256 : count);
    }
}

/* ---- one input ---- */

static void decode(const uint8_t *data, size_t bytes)
{
    struct tcp_frame frame;
    uint8_t again[TCP_FRAME_BYTES];
    uint32_t budget;
    const void *address;
    size_t address_bytes;
    for (size_t at = 0; at + TCP_FRAME_BYTES <= bytes; at += TCP_FRAME_BYTES) {
        if (!tcp_frame_decode(data + at, &frame)) continue;
        MUST(frame.header_bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX && frame.bytes <= TCP_PAYLOAD_BYTES_MAX);
        tcp_frame_encode(&frame, again);
        MUST(memcmp(again, data + at, sizeof again) == 0);
    }
    if (tcp_parameters_decode(data, bytes, &budget) == WEFT_OK)
        MUST(budget >= TCP_BUDGET_MIN && budget <= TCP_BUDGET_MAX);
    if (address_blob_decode(tcp_address_blob_kind, data, bytes, 1, 2, &address, &address_bytes) == WEFT_OK)
        MUST((const uint8_t *)address >= data && (const uint8_t *)address + address_bytes == data + bytes);
}

static void begin(struct operation *operation, struct weft_peer *peer, int number)
{
    static uint8_t payload[LONG];
    operation->fired = 0;
    weft_completion_init(&operation->completion, 1, on_done);
    enum weft_status status;
    if (number % 2) {
        struct weft_message message = {.tag = TAG(number),
                                       .header = "h",
                                       .header_bytes = 1,
                                       .payload = payload,
                                       .payload_bytes = number == 1   ? 10
                                                        : number == 3 ? 3000
                                                                      : LONG};
        status = weft_transport_send(peer, &message, &operation->completion);
    } else {
        operation->receive = (struct weft_receive){.completion = &operation->completion,
                                                   .buffer = operation->buffer,
                                                   .buffer_bytes = sizeof operation->buffer};
        status = weft_transport_recv(endpoint, weft_peer_id(peer), TAG(number % 4), &operation->receive);
    }
    MUST(status == WEFT_IN_PROGRESS);
}

static void release_memory(void)
{
    while (!weft_list_empty(&held)) {
        struct weft_arrival *arrival = weft_list_first(&held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(endpoint, arrival);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint32_t lives;
    static struct operation operations[OPERATIONS];
    struct hostile hostile;
    struct weft_peer *peer = NULL;
    decode(data, bytes);
    if (lives++ % LIVES == 0) { /* an endpoint keeps its former peers */
        weft_transport_free(endpoint);
        open_endpoint();
    }
    failed = false;
    bool there = connect_endpoint(&hostile, 2 + lives % LIVES, &peer);
    if (there) {
        for (int i = 0; i < OPERATIONS; i++) begin(&operations[i], peer, i);
        hostile.deaf = bytes > 0 && data[0] > 127;
        /* otherwise the kernel buffers megabytes for it */
        if (hostile.deaf) setsockopt(hostile.fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int));
        say_script(&hostile, data, bytes);
        /* ends by a reset, or normally; no TIME_WAIT */
        struct linger at_once = {.l_onoff = lives % 2};
        setsockopt(hostile.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(hostile.fd);
    }
    if (hostile.bootstrap) bootstrap_close(hostile.bootstrap);
    if (peer && !there) weft_transport_fail_peer(endpoint, weft_peer_id(peer), WEFT_ERR_PEER_LOST, "not met");
    for (int steps = 0; peer && !failed && steps < STEPS_MAX; steps++) weft_transport_progress(endpoint, 64);
    release_memory();
    MUST(!peer || failed);
    for (int i = 0; there && i < OPERATIONS; i++) MUST(operations[i].fired == 1);
    return 0;
}

/* Does not read: a grant of the long payload fills the socket. Then an announcement that is received here,
 * and its data before its grant was sent. */
static const uint8_t too_early[] = {133,       1, 0, 0, 0,   TCP_ANNOUNCE, 8 + 2, 0, 0, 100,
                                    TCP_DATA,  0, 0, 0, 100, TCP_TAKEN,    0,     0, 0, 0,
                                    TCP_TAKEN, 0, 0, 0, 0};

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    size_t at = 0;
    if (number == 0 && capacity >= sizeof too_early) {
        memcpy(out, too_early, sizeof too_early);
        return sizeof too_early;
    }
    for (uint64_t i = 0; i < number % 13 + 1 && at + 5 <= capacity; i++) {
        out[at++] = (uint8_t)(number * (i + 1) + i);
        out[at++] = (uint8_t)(number + i);
        out[at++] = (uint8_t)(number * 7);
        out[at++] = (uint8_t)(number % 3);
        out[at++] = (uint8_t)(number * 11 + i * 40);
    }
    return at;
}
