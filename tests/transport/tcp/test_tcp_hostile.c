/* test_tcp_hostile.c - an authenticated peer exceeds its limits in well-formed frames: it is lost, with
 * its operations, before it costs more memory than the budget. (fuzz_tcp.c sends arbitrary frames.) */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/tcp/tcp_wire.h"

enum {
    NONCE = 7,
    OURS = 1,
    THEIRS = 2,
    BUDGET = TCP_BUDGET_MIN,
    PAYLOAD = 1000,
    STEPS_MAX = 200000,
    ANNOUNCED_MAX = 8192 /* as many as a sender has operations */
};

static struct weft_transport *endpoint;
static char why[200]; /* reason of the loss */
static enum weft_status loss = WEFT_ERR_MALFORMED; /* its status */
static bool throws_away;
static uint32_t held_count; /* or discarded */
static struct weft_list held;

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    assert_int_equal(peer_id, THEIRS);
    assert_int_equal(status, loss);
    snprintf(why, sizeof why, "%s", text);
}

/* Holds it, or discards it. */
static void on_arrival(void *context, struct weft_arrival *arrival)
{
    if (throws_away) {
        weft_transport_discard(endpoint, arrival);
        held_count++;
        return;
    }
    weft_list_append(&held, &arrival->link);
    held_count++;
}

struct hostile {
    struct bootstrap *bootstrap;
    int fd;
};

static void connected(void *owner, struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                      int *descriptors, uint32_t count)
{
    const void *rest;
    size_t rest_bytes;
    ((struct hostile *)owner)->fd = bootstrap_detach_socket(peer, &rest, &rest_bytes);
}

static void disconnected(void *owner, struct bootstrap_peer *peer, enum weft_status status, const char *text)
{
    fail_msg("the two did not meet: %s", text);
}

static void open_both(struct hostile *hostile)
{
    struct weft_transport_options options;
    struct bootstrap_options theirs;
    struct bootstrap_peer *there;
    struct weft_peer *peer;
    uint8_t parameters[TCP_PARAMETER_BYTES], blob[ADDRESS_BLOB_BYTES_MAX];
    const void *blob_of_ours, *address, *mine;
    size_t bytes, address_bytes;
    weft_transport_options_init(&options);
    options.backend = "tcp";
    options.id = OURS;
    options.nonce = NONCE;
    options.tune = "budget=64k";
    options.peer_failed = on_failed;
    assert_int_equal(weft_transport_open(weft_env_system(), &options, &endpoint, NULL), WEFT_OK);
    weft_transport_handler(endpoint, WEFT_CHANNEL_TEST, on_arrival, NULL);
    weft_list_init(&held);
    held_count = 0;
    throws_away = false;
    why[0] = 0;
    *hostile = (struct hostile){.fd = -1};
    bootstrap_options_init(&theirs);
    theirs.family = BOOTSTRAP_TCP;
    theirs.id = THEIRS;
    theirs.nonce = NONCE;
    theirs.callbacks = (struct bootstrap_callbacks){.connected = connected, .disconnected = disconnected};
    assert_int_equal(bootstrap_open(weft_env_system(), &theirs, &hostile->bootstrap, NULL), WEFT_OK);
    mine = bootstrap_address(hostile->bootstrap, &bytes);
    uint32_t blob_bytes = address_blob_encode(tcp_address_blob_kind, core_nonce_hash(NONCE), THEIRS, mine,
                                              (uint32_t)bytes, blob);
    assert_int_equal(weft_transport_connect(endpoint, THEIRS, blob, blob_bytes, &peer), WEFT_OK);
    assert_int_equal(weft_transport_address(endpoint, &blob_of_ours, &bytes), WEFT_OK);
    assert_int_equal(address_blob_decode(tcp_address_blob_kind, blob_of_ours, bytes, core_nonce_hash(NONCE),
                                         OURS, &address, &address_bytes),
                     WEFT_OK);
    tcp_parameters_encode(BUDGET, parameters);
    assert_int_equal(bootstrap_connect(hostile->bootstrap, OURS, address, address_bytes, parameters,
                                       sizeof parameters, NULL, 0, hostile, &there),
                     WEFT_OK);
    for (int steps = 0; hostile->fd < 0; steps++) {
        assert_in_range(steps, 0, STEPS_MAX);
        bootstrap_progress(hostile->bootstrap, 16);
        weft_transport_progress(endpoint, 64);
    }
}

/* Sends the frame and payload bytes; no effect after the peer is lost. */
static void say(const struct hostile *hostile, struct tcp_frame frame, size_t payload_bytes)
{
    uint8_t words[TCP_FRAME_BYTES + PAYLOAD] = {0};
    const size_t all = TCP_FRAME_BYTES + payload_bytes;
    tcp_frame_encode(&frame, words);
    for (size_t at = 0; at < all && !why[0];) {
        ssize_t sent = send(hostile->fd, words + at, all - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) break;
        if (sent > 0) at += (size_t)sent;
        weft_transport_progress(endpoint, 64);
    }
}

static void expect(struct hostile *hostile, const char *text)
{
    for (int steps = 0; !why[0] && steps < STEPS_MAX; steps++) weft_transport_progress(endpoint, 64);
    if (!strstr(why, text)) fail_msg("'%s' is not why it was given up: '%s'", text, why);
    while (!weft_list_empty(&held)) {
        struct weft_arrival *arrival = weft_list_first(&held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(endpoint, arrival);
    }
    close(hostile->fd);
    bootstrap_close(hostile->bootstrap);
    weft_transport_free(endpoint);
}

static struct tcp_frame message(uint64_t bytes)
{
    return (struct tcp_frame){.kind = TCP_MESSAGE, .number = WEFT_TAG(WEFT_CHANNEL_TEST, 1), .bytes = bytes};
}

/* Up to the budget everything is kept; one more byte is too much. */
static void more_than_is_kept(void **state)
{
    struct hostile hostile;
    const uint32_t fit = (uint32_t)(BUDGET / tcp_cost(PAYLOAD));
    open_both(&hostile);
    for (uint32_t i = 0; i < fit; i++) say(&hostile, message(PAYLOAD), PAYLOAD);
    for (int steps = 0; held_count < fit && steps < STEPS_MAX; steps++) weft_transport_progress(endpoint, 64);
    assert_int_equal(held_count, fit);
    assert_string_equal(why, "");
    say(&hostile, message(PAYLOAD), PAYLOAD);
    expect(&hostile, "sent more than it may without being received");
    assert_int_equal(held_count, fit);
}

/* Discarded bytes are free again, also for a peer that uses its whole budget many times. */
static void what_is_thrown_away_is_free(void **state)
{
    struct hostile hostile;
    const uint32_t many = (uint32_t)(4 * BUDGET / tcp_cost(PAYLOAD));
    open_both(&hostile);
    throws_away = true;
    for (uint32_t i = 0; i < many; i++) say(&hostile, message(PAYLOAD), PAYLOAD);
    for (int steps = 0; held_count < many && !why[0] && steps < STEPS_MAX; steps++)
        weft_transport_progress(endpoint, 64);
    assert_string_equal(why, "");
    assert_int_equal(held_count, many);
    say(&hostile, (struct tcp_frame){.kind = TCP_KINDS}, 0);
    expect(&hostile, "sent what is no frame");
}

/* It returns credit for bytes that were never sent. */
static void more_credit_than_granted(void **state)
{
    struct hostile hostile;
    open_both(&hostile);
    say(&hostile, (struct tcp_frame){.kind = TCP_TAKEN, .taken = 1}, 0);
    expect(&hostile, "took more than was sent");
}

static void more_announced_than_it_has_operations(void **state)
{
    struct hostile hostile;
    struct tcp_frame announcement = message(1 << 20);
    announcement.kind = TCP_ANNOUNCE;
    open_both(&hostile);
    for (uint32_t i = 0; i < ANNOUNCED_MAX; i++) say(&hostile, announcement, 0);
    for (int steps = 0; held_count < ANNOUNCED_MAX && steps < STEPS_MAX; steps++)
        weft_transport_progress(endpoint, 64);
    assert_int_equal(held_count, ANNOUNCED_MAX);
    assert_string_equal(why, "");
    say(&hostile, announcement, 0);
    expect(&hostile, "announced more than it may");
}

static void neither_announced_nor_granted(void **state)
{
    struct hostile hostile;
    open_both(&hostile);
    say(&hostile, (struct tcp_frame){.kind = TCP_GRANT, .number = 0}, 0);
    expect(&hostile, "granted what was not announced");
    open_both(&hostile);
    say(&hostile, (struct tcp_frame){.kind = TCP_DATA, .number = 0, .bytes = 10}, 10);
    expect(&hostile, "sent data that was not requested");
    open_both(&hostile);
    say(&hostile, (struct tcp_frame){.kind = TCP_KINDS}, 0);
    expect(&hostile, "sent what is no frame");
}

static enum weft_status received;
static void on_received(struct weft_completion *completion, enum weft_status status) { received = status; }

/* A receive that matched the start of a message ends with its peer. */
static void cut_off_in_a_message(void **state)
{
    static const size_t sent[] = {0, 1, PAYLOAD / 2, PAYLOAD - 1};
    loss = WEFT_ERR_PEER_LOST;
    for (size_t i = 0; i < sizeof sent / sizeof sent[0]; i++) {
        static uint8_t buffer[PAYLOAD];
        struct hostile hostile;
        struct weft_completion completion;
        struct weft_receive receive = {
            .completion = &completion, .buffer = buffer, .buffer_bytes = sizeof buffer};
        open_both(&hostile);
        received = WEFT_IN_PROGRESS;
        weft_completion_init(&completion, 1, on_received);
        assert_int_equal(weft_transport_recv(endpoint, THEIRS, WEFT_TAG(WEFT_CHANNEL_TEST, 1), &receive),
                         WEFT_IN_PROGRESS);
        say(&hostile, message(PAYLOAD), sent[i]);
        for (int steps = 0; steps < 1000; steps++) weft_transport_progress(endpoint, 64);
        assert_int_equal(received, WEFT_IN_PROGRESS);
        shutdown(hostile.fd, SHUT_RDWR);
        expect(&hostile, "");
        assert_int_equal(received, WEFT_ERR_PEER_LOST);
    }
    loss = WEFT_ERR_MALFORMED;
}

/* A closing endpoint sends LEAVE before it closes the socket, and waits for the peer for a bounded time. */
static bool announces_the_end_first(void)
{
    struct hostile hostile;
    uint8_t said[256];
    ssize_t got = 1;
    open_both(&hostile);
    weft_transport_close(endpoint);
    while (got != 0) {
        weft_transport_progress(endpoint, 64);
        got = recv(hostile.fd, said, sizeof said, MSG_DONTWAIT);
    }
    const bool first = !weft_transport_drained(endpoint);
    for (int steps = 0; !weft_transport_drained(endpoint); steps++) {
        assert_in_range(steps, 0, 20000);
        weft_transport_progress(endpoint, 64);
        usleep(1000);
    }
    close(hostile.fd);
    bootstrap_close(hostile.bootstrap);
    weft_transport_free(endpoint);
    return first;
}

static void one_that_stays(void **state)
{
    int tries = 1;
    /* this process may have been stopped for as long as it waits */
    while (!announces_the_end_first()) assert_in_range(tries++, 1, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_is_kept),
        cmocka_unit_test(what_is_thrown_away_is_free),
        cmocka_unit_test(more_credit_than_granted),
        cmocka_unit_test(more_announced_than_it_has_operations),
        cmocka_unit_test(neither_announced_nor_granted),
        cmocka_unit_test(cut_off_in_a_message),
        cmocka_unit_test(one_that_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
