/* test_shm_peers.c - many peers: more than are polled, each with more than one step may copy; descriptors
 * per peer; system calls of a writer only to wake a sleeping reader. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"
#include "transport/core/core.h"
#include "transport/shm/shm.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { PEERS = 60, CENTRE = 1000, BYTES = 60000 };
_Static_assert(PEERS > (int)SHM_HOT_MAX && PEERS * BYTES > 2 * (int)SHM_STEP_BYTES,
               "as the head of this file states");

struct star { /* endpoint CENTRE and PEERS around it, ids 1.. */
    struct weft_transport *centre, *around[PEERS];
    struct weft_peer *to_centre[PEERS], *from_centre[PEERS];
};

static struct weft_transport *open_one(uint32_t id, const char *tune)
{
    struct weft_transport_options options;
    struct weft_transport *transport = NULL;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = "shm";
    options.id = id;
    options.nonce = 77;
    options.tune = tune;
    if (weft_transport_open(weft_env_system(), &options, &transport, &error) < 0) fail_msg("%s", error.text);
    return transport;
}

static struct weft_peer *connect_one(struct weft_transport *from, struct weft_transport *to)
{
    const void *blob;
    size_t bytes;
    struct weft_peer *peer = NULL;
    assert_int_equal(weft_transport_address(to, &blob, &bytes), WEFT_OK);
    assert_int_equal(weft_transport_connect(from, weft_transport_id(to), blob, bytes, &peer), WEFT_OK);
    return peer;
}

static void pump(struct star *star)
{
    weft_transport_progress(star->centre, 64);
    for (int i = 0; i < PEERS; i++) weft_transport_progress(star->around[i], 64);
}

#define STAR_UNTIL(star, expression)                                                   \
    do {                                                                               \
        uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60);                          \
        while (!(expression)) {                                                        \
            pump(star);                                                                \
            if (net_now_ns() > limit_ns_) fail_msg("never true: %s", #expression);     \
        }                                                                              \
    } while (0)

static void close_one(struct weft_transport *transport)
{
    weft_transport_close(transport);
    while (!weft_transport_drained(transport)) weft_transport_progress(transport, 64);
    weft_transport_free(transport);
}

static int descriptor_count(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

/* All send to the centre at once, which answers. */
static void exchange(struct star *star, const unsigned char *out, unsigned char *in)
{
    static struct op send[PEERS], recv[PEERS], answer[PEERS], answered[PEERS];
    for (int i = 0; i < PEERS; i++) {
        assert_int_equal(
            op_recv(&recv[i], star->centre, (uint32_t)i + 1, TAG(1), in + (size_t)i * BYTES, BYTES),
            WEFT_IN_PROGRESS);
        assert_int_equal(op_recv(&answered[i], star->around[i], CENTRE, TAG(2), NULL, 0), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send[i], star->to_centre[i], TAG(1), NULL, out + i, BYTES),
                         WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&answer[i], star->from_centre[i], TAG(2), NULL, NULL, 0), WEFT_IN_PROGRESS);
    }
    for (int i = 0; i < PEERS; i++) {
        STAR_UNTIL(star, send[i].fired && recv[i].fired && answer[i].fired && answered[i].fired);
        assert_int_equal(send[i].status | recv[i].status | answer[i].status | answered[i].status, WEFT_OK);
        assert_memory_equal(in + (size_t)i * BYTES, out + i, BYTES);
    }
}

static void run_star(const char *tune)
{
    struct star star;
    unsigned char *in = calloc(PEERS, BYTES), *out = malloc(PEERS + BYTES);
    fill(out, PEERS + BYTES, 3);
    star.centre = open_one(CENTRE, tune);
    for (int i = 0; i < PEERS; i++) star.around[i] = open_one((uint32_t)i + 1, tune);
    int before = descriptor_count();
    for (int i = 0; i < PEERS; i++) {
        star.to_centre[i] = connect_one(star.around[i], star.centre);
        star.from_centre[i] = connect_one(star.centre, star.around[i]);
    }
    assert_true(descriptor_count() - before <= PEERS); /* diallers: a socket each */
    for (int round = 0; round < 3; round++) {
        memset(in, 0, (size_t)PEERS * BYTES);
        exchange(&star, out, in);
    }
    /* at each end a socket and the peer's eventfd; and the arena */
    assert_true(descriptor_count() - before <= 4 * PEERS + 1);
    struct weft_transport_stats stats;
    weft_transport_stats(star.centre, &stats);
    assert_true(stats.memory_peer_bytes >= RING_SEGMENT_BYTES &&
                stats.memory_peer_bytes <= RING_SEGMENT_BYTES + 4096);
    for (int i = 0; i < PEERS; i++) close_one(star.around[i]);
    weft_transport_progress(star.centre, 64);
    close_one(star.centre);
    free(in), free(out);
}

static void test_star(void **state) { run_star(NULL); }
static void test_star_staged(void **state) { run_star("cma=off"); }

/* ---- system calls ---- */

static uint64_t calls_of(struct weft_transport *transport)
{
    struct weft_transport_stats stats;
    weft_transport_stats(transport, &stats);
    return stats.system_call_count;
}

static void deliver(struct weft_peer *from_writer, struct weft_transport *writer,
                    struct weft_transport *reader, int count)
{
    for (int i = 0; i < count; i++) {
        struct op send, recv;
        char in[8];
        op_recv(&recv, reader, weft_transport_id(writer), TAG(5), in, sizeof in);
        op_send(&send, from_writer, TAG(5), NULL, "eight by", 8);
        while (!send.fired || !recv.fired)
            weft_transport_progress(writer, 64), weft_transport_progress(reader, 64);
    }
}

static void test_system_calls(void **state)
{
    struct weft_transport *writer = open_one(1, NULL), *reader = open_one(2, NULL);
    struct weft_peer *peer = connect_one(writer, reader);
    connect_one(reader, writer);
    deliver(peer, writer, reader, 1);

    uint64_t before = calls_of(writer);
    deliver(peer, writer, reader, 1000); /* no sleeper: no system call on either side */
    assert_int_equal(calls_of(writer), before);

    struct op send[3], recv[3];
    char in[8];
    for (int i = 0; i < 3; i++) op_recv(&recv[i], reader, 1, TAG(6), in, sizeof in);
    while (core_arm(reader) == WEFT_ERR_AGAIN) weft_transport_progress(reader, 64);
    /* the first message wakes it, the others find it awake */
    for (int i = 0; i < 3; i++) op_send(&send[i], peer, TAG(6), NULL, "wake", 4);
    assert_int_equal(calls_of(writer), before + 1);
    while (!recv[2].fired) weft_transport_progress(reader, 64), weft_transport_progress(writer, 64);
    assert_int_equal(calls_of(writer), before + 1);
    while (!send[2].fired) weft_transport_progress(writer, 64);
    close_one(writer);
    close_one(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_star),
        cmocka_unit_test(test_star_staged),
        cmocka_unit_test(test_system_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
