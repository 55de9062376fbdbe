/* one_sided.c - windows, put, get, map. A flavour lists the abilities it must have (flavours.c). A missing
 * ability returns WEFT_ERR_UNSUPPORTED, and the other tests here are skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

enum { BYTES = 300001, SMALL = 4096 };

struct pair { /* endpoint 1 owns the memory, endpoint 0 accesses it */
    struct net net;
    struct weft_window *window;
    struct weft_remote *remote;
    unsigned char *memory; /* of weft_memory_alloc */
    size_t bytes;
};

static bool has_windows(struct net *net)
{
    return weft_transport_abilities(net->transports[1]) & WEFT_TRANSPORT_WINDOWS;
}

static void import_window(struct pair *pair)
{
    const void *key;
    size_t bytes;
    weft_window_key(pair->window, &key, &bytes);
    assert_true(bytes <= WEFT_WINDOW_KEY_BYTES_MAX);
    assert_int_equal(weft_transport_import(pair->net.peers[0][1], key, bytes, &pair->remote), WEFT_OK);
    assert_int_equal(weft_remote_bytes(pair->remote), pair->bytes);
}

/* Connected endpoints; false: no windows here, nothing is left open. */
static bool pair_open(struct pair *pair, size_t bytes, unsigned rights)
{
    struct weft_error error = {0};
    struct op send, recv;
    char in[2];
    memset(pair, 0, sizeof *pair);
    net_open(&pair->net, flavour, 2);
    if (!has_windows(&pair->net)) {
        net_close(&pair->net);
        return false;
    }
    op_recv(&recv, pair->net.transports[1], id_of(0), TAG(77), in, 2); /* connected when this completes */
    op_send(&send, pair->net.peers[0][1], TAG(77), NULL, "hi", 2);
    PUMP_UNTIL(&pair->net, send.fired && recv.fired);
    pair->bytes = bytes;
    void *memory;
    assert_int_equal(weft_memory_alloc(weft_env_system(), bytes, &memory, &error), WEFT_OK);
    pair->memory = memory;
    struct weft_window_options options = {sizeof options,   memory, bytes,
                                          WEFT_MEMORY_HOST, rights, WEFT_ANY_PEER};
    if (weft_window_open(pair->net.transports[1], &options, &pair->window, &error) != WEFT_OK)
        fail_msg("%s", error.text);
    import_window(pair);
    return true;
}

static void close_window(struct pair *pair)
{
    struct op closed;
    op_init(&closed);
    op_inside_call = true;
    weft_window_close(pair->window, &closed.completion);
    op_inside_call = false;
    PUMP_UNTIL(&pair->net, closed.fired);
    assert_int_equal(closed.status, WEFT_OK);
    pair->window = NULL;
}

static void pair_close(struct pair *pair)
{
    if (pair->remote) assert_int_equal(weft_remote_release(pair->remote), WEFT_OK);
    if (pair->window) close_window(pair);
    net_close(&pair->net);
    weft_memory_free(weft_env_system(), pair->memory);
}

static enum weft_status put(struct pair *pair, struct op *op, uint64_t offset, const void *source,
                            size_t bytes, const char *message)
{
    struct weft_put put = {
        source, bytes, offset, message != NULL, TAG(9), message, message ? (uint32_t)strlen(message) : 0};
    return op_put(op, pair->remote, &put);
}

static enum weft_status get(struct pair *pair, struct op *op, uint64_t offset, void *destination,
                            size_t bytes)
{
    return op_get(op, pair->remote, offset, destination, bytes);
}

static void test_abilities(void **state)
{
    struct net net;
    net_open(&net, flavour, 2);
    unsigned abilities = weft_transport_abilities(net.transports[0]);
    assert_int_equal(abilities & flavour->must, flavour->must);
    assert_int_equal(abilities & ~(flavour->must | flavour->may), 0);
    if (!has_windows(&net)) {
        static char memory[64];
        struct weft_window_options options = {sizeof options,   memory,           sizeof memory,
                                              WEFT_MEMORY_HOST, WEFT_WINDOW_READ, WEFT_ANY_PEER};
        struct weft_window *window = NULL;
        struct weft_remote *remote = NULL;
        struct weft_error error = {0};
        assert_int_equal(weft_window_open(net.transports[0], &options, &window, &error),
                         WEFT_ERR_UNSUPPORTED);
        assert_true(error.text[0] != 0);
        assert_int_equal(weft_transport_import(net.peers[0][1], memory, sizeof memory, &remote),
                         WEFT_ERR_UNSUPPORTED);
        assert_true(!window && !remote);
    }
    char line[100] = "";
    weft_peer_describe(net.peers[0][1], line, sizeof line);
    assert_true(line[0] != 0);
    net_close(&net);
}

static void test_put_and_get(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4097, 8192, 65536, BYTES};
    struct pair pair;
    if (!pair_open(&pair, BYTES + 64, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE)) return;
    unsigned char *out = malloc(BYTES + 64), *in = malloc(BYTES + 64), *expected = malloc(BYTES + 64);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t shift = 0; shift < 3; shift++) {
            struct op written, message, got;
            char nothing;
            size_t bytes = sizes[i], offset = 5 * shift;
            fill(out + shift, bytes, (uint32_t)(i * 3 + shift));
            memset(pair.memory, 0xA5, pair.bytes);
            memset(expected, 0xA5, pair.bytes);
            memcpy(expected + offset, out + shift, bytes);
            assert_int_equal(op_recv(&message, pair.net.transports[1], id_of(0), TAG(9), &nothing, 0),
                             WEFT_IN_PROGRESS);
            assert_true(op_taken(put(&pair, &written, offset, out + shift, bytes, "note")));
            PUMP_UNTIL(&pair.net, message.fired);
            /* the notification follows the bytes; bytes around them are unchanged */
            assert_memory_equal(pair.memory, expected, pair.bytes);
            assert_int_equal(message.receive.payload_bytes, 0);
            assert_memory_equal(message.receive.header, "note", 4);
            PUMP_UNTIL(&pair.net, written.fired);
            assert_int_equal(written.status, WEFT_OK);
            memset(in, 0, BYTES + 64);
            if (bytes == 0) continue;
            assert_true(op_taken(get(&pair, &got, offset, in + shift, bytes)));
            PUMP_UNTIL(&pair.net, got.fired);
            assert_int_equal(got.status, WEFT_OK);
            assert_true(filled(in + shift, bytes, (uint32_t)(i * 3 + shift)));
            assert_int_equal(in[shift + bytes], 0);
        }
    }
    pair_close(&pair);
    free(in), free(out), free(expected);
}

static void test_bounds_and_rights(void **state)
{
    static unsigned char data[SMALL];
    struct pair pair;
    struct op op;
    if (!pair_open(&pair, SMALL, WEFT_WINDOW_WRITE)) return;
    assert_int_equal(get(&pair, &op, 0, data, 1), WEFT_ERR_INVALID);
    assert_int_equal(put(&pair, &op, 1, data, SMALL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(put(&pair, &op, SMALL + 1, data, 0, NULL), WEFT_ERR_INVALID);
    assert_int_equal(put(&pair, &op, UINT64_MAX, data, 2, NULL), WEFT_ERR_INVALID);
    assert_int_equal(op.fired, 0);
    pair_close(&pair);
    assert_true(pair_open(&pair, SMALL, WEFT_WINDOW_READ));
    assert_int_equal(put(&pair, &op, 0, data, 1, NULL), WEFT_ERR_INVALID);
    assert_int_equal(get(&pair, &op, SMALL, data, 1), WEFT_ERR_INVALID);
    pair_close(&pair);
}

/* Keys are untrusted: every shorter key and a key of another peer's window is refused; a changed key gives
 * no access beyond its window. */
static void test_broken_keys(void **state)
{
    struct pair pair;
    const void *key;
    size_t bytes;
    unsigned char copy[WEFT_WINDOW_KEY_BYTES_MAX + 1] = {0};
    if (!pair_open(&pair, SMALL, WEFT_WINDOW_READ)) return;
    weft_window_key(pair.window, &key, &bytes);
    memcpy(copy, key, bytes);
    struct weft_remote *remote = NULL;
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(weft_transport_import(pair.net.peers[0][1], copy, cut, &remote), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_transport_import(pair.net.peers[0][1], copy, bytes + 1, &remote),
                     WEFT_ERR_MALFORMED);
    /* not a window of endpoint 0 */
    assert_int_equal(weft_transport_import(pair.net.peers[1][0], copy, bytes, &remote), WEFT_ERR_MALFORMED);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(copy, key, bytes);
        copy[i] ^= 0x40;
        if (weft_transport_import(pair.net.peers[0][1], copy, bytes, &remote) == WEFT_OK)
            assert_int_equal(weft_remote_release(remote), WEFT_OK);
    }
    pair_close(&pair);
}

/* More puts than a backend queues; each completes once, and each notification follows its bytes. */
static void test_many_puts(void **state)
{
    enum { COUNT = 2000, WINDOW = COUNT * 8 };
    struct pair pair;
    if (!pair_open(&pair, WINDOW, WEFT_WINDOW_WRITE)) return;
    struct op *writes = calloc(COUNT, sizeof *writes), *notifications = calloc(COUNT, sizeof *notifications);
    uint64_t *values = calloc(COUNT, sizeof *values);
    char nothing;
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(op_recv(&notifications[i], pair.net.transports[1], id_of(0), TAG(9), &nothing, 0),
                         WEFT_IN_PROGRESS);
    for (uint32_t i = 0; i < COUNT; i++) {
        char message[12];
        enum weft_status status;
        values[i] = i * 977 + 1;
        snprintf(message, sizeof message, "%u", i);
        while ((status = put(&pair, &writes[i], 8 * i, &values[i], 8, message)) == WEFT_ERR_AGAIN)
            net_pump(&pair.net);
        assert_true(op_taken(status));
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        PUMP_UNTIL(&pair.net, notifications[i].fired && writes[i].fired);
        char text[12] = "";
        memcpy(text, notifications[i].receive.header, notifications[i].receive.header_bytes);
        unsigned long which = strtoul(text, NULL, 10);
        uint64_t seen;
        memcpy(&seen, pair.memory + 8 * which, 8);
        assert_int_equal(seen, which * 977 + 1);
    }
    for (int i = 0; i < 5; i++) net_pump(&pair.net);
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(writes[i].fired + notifications[i].fired, 2);
    pair_close(&pair);
    free(writes), free(notifications), free(values);
}

/* A closed window is not written any more, whatever was in flight; the user gets an error. */
static void test_window_closes(void **state)
{
    enum { LARGE = 4 << 20, COUNT = 8 };
    struct pair pair;
    if (!pair_open(&pair, LARGE, WEFT_WINDOW_WRITE)) return;
    unsigned char *source = malloc(LARGE);
    memset(source, 7, LARGE);
    struct op puts[COUNT], late;
    for (int i = 0; i < COUNT; i++) assert_true(op_taken(put(&pair, &puts[i], 0, source, LARGE, NULL)));
    bool all_over = true;
    for (int i = 0; i < COUNT; i++) all_over = all_over && puts[i].over;
    if (!all_over) assert_int_equal(weft_remote_release(pair.remote), WEFT_ERR_BUSY);
    for (int i = 0; i < 3; i++) net_pump(&pair.net);
    close_window(&pair);
    memset(pair.memory, 0xEE, LARGE);
    for (int i = 0; i < COUNT; i++) {
        PUMP_UNTIL(&pair.net, puts[i].fired);
        assert_true(puts[i].status == WEFT_OK || puts[i].status == WEFT_ERR_CANCELLED);
    }
    enum weft_status status = put(&pair, &late, 0, source, 100, NULL);
    assert_int_not_equal(status, WEFT_OK);
    if (status == WEFT_IN_PROGRESS) PUMP_UNTIL(&pair.net, late.fired);
    assert_int_equal(status == WEFT_IN_PROGRESS ? late.status : status, WEFT_ERR_CANCELLED);
    for (size_t i = 0; i < LARGE; i++) assert_int_equal(pair.memory[i], 0xEE);
    pair_close(&pair);
    free(source);
}

/* The owner closes its window at every step of a put: after the completion nothing writes there. */
static void test_close_under_put(void **state)
{
    unsigned char *out = malloc(BYTES);
    fill(out, BYTES, 1);
    for (int pumps = 0; pumps < 10; pumps++) {
        struct pair pair;
        struct op written, late;
        if (!pair_open(&pair, BYTES, WEFT_WINDOW_WRITE)) break;
        assert_true(op_taken(put(&pair, &written, 0, out, BYTES, NULL)));
        for (int i = 0; i < pumps; i++) net_pump(&pair.net);
        close_window(&pair);
        memset(pair.memory, 0xEE, BYTES);
        enum weft_status status = put(&pair, &late, 0, out, BYTES, NULL);
        PUMP_UNTIL(&pair.net, written.fired && (status < 0 || late.fired));
        if (written.status != WEFT_OK) assert_int_equal(written.status, WEFT_ERR_CANCELLED);
        assert_int_equal(status == WEFT_IN_PROGRESS ? late.status : status, WEFT_ERR_CANCELLED);
        for (int i = 0; i < 20; i++) net_pump(&pair.net);
        for (size_t i = 0; i < BYTES; i++)
            if (pair.memory[i] != 0xEE) fail_msg("byte %zu was written after the window had closed", i);
        pair_close(&pair);
    }
    free(out);
}

static void test_peer_lost_under_put(void **state)
{
    unsigned char *out = malloc(BYTES);
    fill(out, BYTES, 1);
    for (int pumps = 0; pumps < 6; pumps += 2) {
        struct pair pair;
        struct op written, late;
        if (!pair_open(&pair, BYTES, WEFT_WINDOW_WRITE | WEFT_WINDOW_READ)) break;
        assert_true(op_taken(put(&pair, &written, 0, out, BYTES, "note")));
        for (int i = 0; i < pumps; i++) net_pump(&pair.net);
        weft_transport_fail_peer(pair.net.transports[0], id_of(1), WEFT_ERR_PEER_LOST,
                                 "reported by the test");
        PUMP_UNTIL(&pair.net, written.fired && pair.net.failed_count[0]);
        if (written.status != WEFT_OK) assert_int_equal(written.status, WEFT_ERR_PEER_LOST);
        assert_int_equal(put(&pair, &late, 0, out, 1, NULL), WEFT_ERR_PEER_LOST);
        for (int i = 0; i < 5; i++) net_pump(&pair.net);
        assert_int_equal(written.fired, 1);
        pair_close(&pair);
    }
    free(out);
}

static void test_release_is_busy(void **state)
{
    unsigned char *out = calloc(1, BYTES);
    struct pair pair;
    struct op written;
    if (pair_open(&pair, BYTES, WEFT_WINDOW_WRITE)) {
        assert_true(op_taken(put(&pair, &written, 0, out, BYTES, NULL)));
        if (!written.over) assert_int_equal(weft_remote_release(pair.remote), WEFT_ERR_BUSY);
        PUMP_UNTIL(&pair.net, written.fired);
        pair_close(&pair);
    }
    free(out);
}

static void count_down(struct weft_completion *completion, enum weft_status status) {}

/* An operation that completes inside its call leaves nothing behind: the bytes have arrived, the remote is
 * idle and no completion runs later (checked by op_done of net.c). A completion that counts several
 * operations is decremented by the caller. */
static void test_complete_in_the_call(void **state)
{
    enum { ROUNDS = 300 };
    static unsigned char out[SMALL], in[SMALL];
    struct pair pair;
    struct op ops[2 * ROUNDS];
    if (!pair_open(&pair, SMALL, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE)) return;
    struct weft_transport_stats before, after;
    weft_transport_stats(pair.net.transports[0], &before);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct op *wrote = &ops[2 * round], *read = &ops[2 * round + 1];
        size_t bytes = 1 + round * 13 % SMALL;
        fill(out, bytes, round);
        assert_true(op_taken(put(&pair, wrote, 0, out, bytes, NULL)));
        if (wrote->over) {
            assert_true(filled(pair.memory, bytes, round));
            assert_int_equal(weft_remote_release(pair.remote), WEFT_OK);
            import_window(&pair);
        }
        PUMP_UNTIL(&pair.net, wrote->fired);
        assert_int_equal(wrote->status, WEFT_OK);
        memset(in, 0, bytes);
        assert_true(op_taken(get(&pair, read, 0, in, bytes)));
        if (read->over) assert_true(filled(in, bytes, round));
        PUMP_UNTIL(&pair.net, read->fired);
        assert_true(filled(in, bytes, round));
    }
    for (int i = 0; i < 20; i++) net_pump(&pair.net);
    for (int i = 0; i < 2 * ROUNDS; i++) assert_int_equal(ops[i].fired, 1);
    weft_transport_stats(pair.net.transports[0], &after);
    assert_int_equal(after.put_count - before.put_count, ROUNDS); /* counted, however they ended */
    assert_int_equal(after.get_count - before.get_count, ROUNDS);
    struct weft_completion both;
    struct weft_put half = {.source = out, .bytes = SMALL / 2};
    weft_completion_init(&both, 2, count_down);
    for (int i = 0; i < 2; i++) {
        half.offset = (uint64_t)i * SMALL / 2;
        enum weft_status status = weft_transport_put(pair.remote, &half, &both);
        assert_true(op_taken(status));
        if (status == WEFT_OK) weft_completion_finish(&both, WEFT_OK);
    }
    PUMP_UNTIL(&pair.net, both.count == 0);
    assert_int_equal(both.status, WEFT_OK);
    pair_close(&pair);
}

/* In place: one side stores, the other loads, ordered by a message. */
static void test_map(void **state)
{
    struct pair pair;
    if (!pair_open(&pair, SMALL, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE)) return;
    unsigned char *mapped = weft_remote_map(pair.remote);
    if (!(weft_transport_abilities(pair.net.transports[0]) &
          weft_transport_abilities(pair.net.transports[1]) & WEFT_TRANSPORT_MAPS)) {
        assert_null(mapped);
        pair_close(&pair);
        return;
    }
    assert_non_null(mapped);
    fill(mapped, SMALL, 4);
    exchange(&pair.net, 8, 0, true, 1);
    assert_true(filled(pair.memory, SMALL, 4));
    fill(pair.memory, SMALL, 5);
    assert_true(filled(mapped, SMALL, 5));
    pair_close(&pair);
}

/* Close with open windows, remotes and puts ends everything once. */
static void test_endpoint_closes(void **state)
{
    unsigned char *out = calloc(1, BYTES);
    for (int closed_end = 0; closed_end < 2; closed_end++) {
        struct pair pair;
        struct op written;
        if (!pair_open(&pair, BYTES, WEFT_WINDOW_WRITE)) break;
        assert_true(op_taken(put(&pair, &written, 0, out, BYTES, NULL)));
        net_drop(&pair.net, closed_end);
        if (closed_end == 1)
            weft_transport_fail_peer(pair.net.transports[0], id_of(1), WEFT_ERR_PEER_LOST, "it has closed");
        net_close(&pair.net);
        assert_int_equal(written.fired, 1);
        weft_memory_free(weft_env_system(), pair.memory);
    }
    free(out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_abilities),
    cmocka_unit_test(test_put_and_get),
    cmocka_unit_test(test_bounds_and_rights),
    cmocka_unit_test(test_broken_keys),
    cmocka_unit_test(test_many_puts),
    cmocka_unit_test(test_close_under_put),
    cmocka_unit_test(test_peer_lost_under_put),
    cmocka_unit_test(test_release_is_busy),
    cmocka_unit_test(test_map),
    cmocka_unit_test(test_endpoint_closes),
    cmocka_unit_test(test_window_closes),
    cmocka_unit_test(test_complete_in_the_call),
};
const struct conformance_part conformance_one_sided = {"one_sided", tests, sizeof tests / sizeof *tests};
