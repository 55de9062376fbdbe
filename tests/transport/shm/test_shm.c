/* test_shm.c - specific to the shared memory backend: weft_memory_alloc, windows by every copy method,
 * close under a slow user, copy counts, and a corrupted ring. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/transport/net.h"
#include "transport/memory/memory.h"
#include "transport/shm/shm.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

/* tune; whether the memory of window and user is from weft_memory_alloc */
static const struct flavour ways[] = {
    {"mapped", "shm", NULL, NULL, NULL, true},     {"cma", "shm", NULL, NULL, "maps=off"},
    {"staged", "shm", NULL, NULL, "cma=off"},      {"neither", "shm", NULL, NULL, "cma=off,maps=off"},
    {"fenced", "shm", NULL, NULL, "membarrier=off", true},
};

static enum weft_status put(struct op *op, struct weft_remote *remote, uint64_t offset, const void *data,
                            size_t bytes, bool notify)
{
    struct weft_put put = {data, bytes, offset, notify, TAG(9), "note", 4};
    return op_put(op, remote, &put);
}

static struct weft_window *window_open(struct net *net, int owner, void *memory, size_t bytes)
{
    struct weft_window_options options = {
        sizeof options, memory, bytes, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE, WEFT_ANY_PEER};
    struct weft_window *window = NULL;
    assert_int_equal(weft_window_open(net->transports[owner], &options, &window, NULL), WEFT_OK);
    return window;
}

static struct weft_remote *window_import(struct net *net, int user, int owner,
                                         const struct weft_window *window)
{
    const void *key;
    size_t bytes;
    struct weft_remote *remote = NULL;
    weft_window_key(window, &key, &bytes);
    assert_int_equal(weft_transport_import(net->peers[user][owner], key, bytes, &remote), WEFT_OK);
    return remote;
}

static void bootstrap(struct net *net)
{
    struct op send, recv;
    char in[4];
    op_recv(&recv, net->transports[1], 100, TAG(77), in, 4);
    op_send(&send, net->peers[0][1], TAG(77), NULL, "meet", 4);
    PUMP_UNTIL(net, send.fired && recv.fired);
    op_recv(&recv, net->transports[0], 101, TAG(78), in, 4);
    op_send(&send, net->peers[1][0], TAG(78), NULL, "meet", 4);
    PUMP_UNTIL(net, send.fired && recv.fired);
}

static void test_put_and_get(void **state)
{
    const size_t sizes[] = {1, 8, 4096, 65537, 700000, 3 << 20};
    enum { BYTES = 4 << 20 };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct net net;
        net_open(&net, &ways[w], 2);
        bootstrap(&net);
        unsigned char *memory = net_alloc(&net, BYTES), *mine = net_alloc(&net, BYTES);
        struct weft_window *window = window_open(&net, 1, memory, BYTES);
        struct weft_remote *remote = window_import(&net, 0, 1, window);
        assert_int_equal(weft_remote_bytes(remote), BYTES);
        assert_true((weft_remote_map(remote) != NULL) == ways[w].memory);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct op wrote, got, notified;
            op_recv(&notified, net.transports[1], 100, TAG(9), NULL, 0);
            fill(mine, sizes[i], (uint32_t)i);
            memset(memory, 0, BYTES);
            /* such a put or get completes inside its call */
            bool at_once = ways[w].memory && sizes[i] < SHM_DIRECT_BYTES;
            assert_int_equal(put(&wrote, remote, 13, mine, sizes[i], true),
                             at_once ? WEFT_OK : WEFT_IN_PROGRESS);
            PUMP_UNTIL(&net, notified.fired);
            assert_int_equal(notified.status, WEFT_OK);
            assert_int_equal(notified.receive.header_bytes, 4);
            assert_int_equal(notified.receive.payload_bytes, 0);
            assert_true(filled(memory + 13, sizes[i], (uint32_t)i));
            assert_int_equal(memory[12] | memory[13 + sizes[i]], 0);
            PUMP_UNTIL(&net, wrote.fired);
            assert_int_equal(wrote.status, WEFT_OK);
            memset(mine, 0, sizes[i]);
            assert_int_equal(op_get(&got, remote, 13, mine, sizes[i]), at_once ? WEFT_OK : WEFT_IN_PROGRESS);
            PUMP_UNTIL(&net, got.fired);
            assert_int_equal(got.status, WEFT_OK);
            assert_true(filled(mine, sizes[i], (uint32_t)i));
        }
        struct op outside;
        assert_int_equal(put(&outside, remote, BYTES - 4, mine, 5, false), WEFT_ERR_INVALID);
        struct op closing, late;
        op_init(&closing);
        weft_window_close(window, &closing.completion);
        assert_int_equal(put(&late, remote, 0, mine, 64, true), WEFT_IN_PROGRESS);
        PUMP_UNTIL(&net, late.fired);
        assert_int_equal(late.status, WEFT_ERR_CANCELLED);
        /* held mapped: the close waits for the release */
        assert_int_equal(closing.fired, ways[w].memory ? 0 : 1);
        assert_int_equal(weft_remote_release(remote), WEFT_OK);
        PUMP_UNTIL(&net, closing.fired);
        assert_int_equal(closing.status, WEFT_OK);
        net_close(&net);
        net_release_memory(&net, memory);
        net_release_memory(&net, mine);
    }
}

/* A changed key, or a key of another window, opens nothing. */
static void test_keys(void **state)
{
    struct net net;
    net_open(&net, &ways[0], 3);
    static char memory[100];
    struct weft_window *window = window_open(&net, 1, memory, sizeof memory);
    const void *key;
    size_t bytes;
    unsigned char forged[WEFT_WINDOW_KEY_BYTES_MAX];
    struct weft_remote *remote = NULL;
    weft_window_key(window, &key, &bytes);
    assert_int_equal(weft_transport_import(net.peers[0][2], key, bytes, &remote), WEFT_ERR_MALFORMED);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(forged, key, bytes);
        forged[i] ^= 1;
        assert_int_equal(weft_transport_import(net.peers[0][1], forged, bytes, &remote), WEFT_ERR_MALFORMED);
    }
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(weft_transport_import(net.peers[0][1], key, i, &remote), WEFT_ERR_MALFORMED);
    net_close(&net);
}

/* The close waits for a user that is inside, not for others. */
static void test_close_under_a_user(void **state)
{
    struct net net;
    net_open(&net, &ways[0], 2);
    bootstrap(&net);
    char *memory = net_alloc(&net, 4096);
    struct weft_window *window = window_open(&net, 1, memory, 4096);
    const struct shm_window *own = window->backend;
    struct shm_pair *pair = net.peers[0][1]->backend;
    /* stopped in the middle of a put */
    assert_true(shm_access_begin(pair, own->number + 1, own->generation));
    struct op closing;
    op_init(&closing);
    weft_window_close(window, &closing.completion);
    for (int i = 0; i < 50; i++) net_pump(&net);
    assert_int_equal(closing.fired, 0);
    shm_access_end(pair);
    PUMP_UNTIL(&net, closing.fired);
    assert_int_equal(closing.status, WEFT_OK);
    net_close(&net);
    net_release_memory(&net, memory);
}

/* membarrier was refused: the close waits for users that may be inside unseen. */
static void test_close_without_fence(void **state)
{
    struct net net;
    net_open(&net, &ways[0], 2);
    bootstrap(&net);
    const struct shm_pair *pair = net.peers[1][0]->backend;
    char *memory = net_alloc(&net, 4096);
    struct weft_window *window = window_open(&net, 1, memory, 4096);
    if (pair->flags.light) {
        struct op closing;
        op_init(&closing);
        pair->endpoint->access.uncertain_until_ns = weft_now_ns(weft_env_system()) + WEFT_SECONDS(3600);
        weft_window_close(window, &closing.completion);
        for (int i = 0; i < 50; i++) net_pump(&net);
        assert_int_equal(closing.fired, 0);
        pair->endpoint->access.uncertain_until_ns = 1; /* in the past */
        PUMP_UNTIL(&net, closing.fired);
        assert_int_equal(closing.status, WEFT_OK);
    }
    net_close(&net);
    net_release_memory(&net, memory);
}

/* One copy if the memory is mapped or CMA is allowed; two if staged or through the ring. */
static void test_copies(void **state)
{
    enum { BYTES = 1 << 20 };
    const int copies[] = {1, 1, 2, 2, 1};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct net net;
        net_open(&net, &ways[w], 2);
        bootstrap(&net);
        struct weft_transport_stats before[2], after[2];
        unsigned char *out = net_alloc(&net, BYTES), *in = net_alloc(&net, BYTES);
        struct op send, recv;
        fill(out, BYTES, 5);
        for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &before[i]);
        op_recv(&recv, net.transports[1], 100, TAG(1), in, BYTES);
        op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES);
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_true(filled(in, BYTES, 5));
        uint64_t copied = 0;
        for (int i = 0; i < 2; i++) {
            weft_transport_stats(net.transports[i], &after[i]);
            copied += after[i].copied_bytes - before[i].copied_bytes;
        }
        assert_int_equal(copied, (uint64_t)copies[w] * BYTES);
        char text[2][80];
        weft_peer_describe(net.peers[0][1], text[0], sizeof text[0]);
        weft_peer_describe(net.peers[1][0], text[1], sizeof text[1]);
        assert_string_equal(text[0], text[1]);
        net_close(&net);
        net_release_memory(&net, out);
        net_release_memory(&net, in);
    }
}

/* Large CMA payloads are copied from both ends, each byte once. The receiver reads what the sender cannot
 * write; what the receiver cannot read is staged. */
static void test_split(void **state)
{
    enum { BYTES = (3 << 20) + 777, FINE = 0, SENDER_FAILS, RECEIVER_FAILS, SENDER_IS_AWAY, CASES };
    for (int how = FINE; how < CASES; how++) {
        struct net net;
        struct weft_transport_stats before[2], after[2];
        net_open(&net, &ways[1], 2);
        bootstrap(&net);
        unsigned char *out = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                      *in = malloc(BYTES);
        struct shm_pair *to_receiver = net.peers[0][1]->backend;
        struct op send, recv;
        fill(out, BYTES, (uint32_t)how);
        memset(in, 0, BYTES);
        for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &before[i]);
        op_recv(&recv, net.transports[1], 100, TAG(1), in, BYTES);
        op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES);
        if (how == SENDER_FAILS) to_receiver->remote.pid = INT32_MAX; /* no such process */
        if (how == RECEIVER_FAILS) {
            assert_int_equal(mprotect(out, 2 << 20, PROT_NONE), 0);
            for (int i = 0; i < 20; i++) weft_transport_progress(net.transports[1], 64);
            assert_int_equal(recv.fired, 0);
            assert_int_equal(mprotect(out, 2 << 20, PROT_READ), 0);
        }
        for (int i = 0; i < 20 && how == SENDER_IS_AWAY; i++) weft_transport_progress(net.transports[1], 64);
        if (how == SENDER_IS_AWAY) assert_int_equal(recv.fired, 1); /* the receiver has not waited for it */
        PUMP_UNTIL(&net, send.fired && recv.fired);
        assert_int_equal(send.status | recv.status, WEFT_OK);
        assert_true(filled(in, BYTES, (uint32_t)how));
        for (int i = 0; i < 2; i++) weft_transport_stats(net.transports[i], &after[i]);
        uint64_t sender = after[0].copied_bytes - before[0].copied_bytes,
                 receiver = after[1].copied_bytes - before[1].copied_bytes;
        if (how == FINE) assert_true(sender > 0 && receiver > 0);
        if (how == FINE || how == SENDER_FAILS || how == SENDER_IS_AWAY)
            assert_int_equal(sender + receiver, BYTES);
        if (how == SENDER_FAILS || how == SENDER_IS_AWAY) assert_int_equal(sender, 0);
        if (how == RECEIVER_FAILS) assert_int_equal(sender, BYTES);
        net_close(&net);
        munmap(out, BYTES);
        free(in);
    }
}

/* In an exchange each side reads its own payload: no split, no wait. */
static void test_exchange(void **state)
{
    enum { BYTES = (2 << 20) + 77 };
    struct net net;
    struct weft_transport_stats before[2], after[2];
    struct op sends[2], recvs[2];
    unsigned char *out[2], *in[2];
    net_open(&net, &ways[1], 2);
    bootstrap(&net);
    for (int i = 0; i < 2; i++) {
        out[i] = malloc(BYTES), in[i] = malloc(BYTES);
        fill(out[i], BYTES, (uint32_t)i);
        weft_transport_stats(net.transports[i], &before[i]);
        op_recv(&recvs[i], net.transports[i], (uint64_t)(101 - i), TAG(1), in[i], BYTES);
    }
    for (int i = 0; i < 2; i++) op_send(&sends[i], net.peers[i][1 - i], TAG(1), NULL, out[i], BYTES);
    PUMP_UNTIL(&net, sends[0].fired && recvs[0].fired && sends[1].fired && recvs[1].fired);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sends[i].status | recvs[i].status, WEFT_OK);
        assert_true(filled(in[i], BYTES, (uint32_t)(1 - i)));
        weft_transport_stats(net.transports[i], &after[i]);
        assert_int_equal(after[i].copied_bytes - before[i].copied_bytes, BYTES);
        assert_int_equal(((struct shm_pair *)net.peers[i][1 - i]->backend)->split_epoch, 0);
        free(out[i]), free(in[i]);
    }
    net_close(&net);
}

static uint32_t slots_of(const struct shm_pair *pair)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SHM_SLOTS; i++) count += pair->endpoint->staging_area.slots[i].pair == pair;
    return count;
}

/* A receiver stops while it stores into the lines of a staged piece: the slot is not reused before the
 * receiver has left, although the sender has lost it. */
static void test_slot_of_a_stopped_peer(void **state)
{
    enum { BYTES = 1 << 20 };
    struct net net;
    net_open(&net, &ways[2], 2);
    bootstrap(&net);
    struct shm_pair *pair = net.peers[0][1]->backend;
    unsigned char *out = net_alloc(&net, BYTES), *in = net_alloc(&net, BYTES);
    struct op send, recv;
    op_recv(&recv, net.transports[1], 100, TAG(1), in, BYTES);
    op_send(&send, net.peers[0][1], TAG(1), NULL, out, BYTES);
    for (int i = 0; i < 100 && slots_of(pair) == 0; i++) weft_transport_progress(net.transports[i % 2], 64);
    const uint32_t filled_slots = slots_of(pair);
    assert_true(filled_slots > 0);
    struct shm_pair *of_receiver = net.peers[1][0]->backend;
    assert_true(shm_access_begin(of_receiver, 0, 0));
    core_peer_lost(net.transports[0], net.peers[0][1], WEFT_ERR_PEER_LOST, "it does not answer");
    for (int i = 0; i < 50; i++) weft_transport_progress(net.transports[0], 64);
    assert_int_equal(slots_of(pair), filled_slots);
    shm_access_end(of_receiver);
    for (int i = 0; i < 1000 && slots_of(pair) > 0; i++) weft_transport_progress(net.transports[0], 64);
    assert_int_equal(slots_of(pair), 0);
    PUMP_UNTIL(&net, send.fired && recv.fired);
    assert_int_equal(send.status, WEFT_ERR_PEER_LOST);
    net_close(&net);
    net_release_memory(&net, out);
    net_release_memory(&net, in);
}

/* ---- a corrupted ring ---- */

static void scribble(struct net *net, uint64_t *seed)
{
    struct shm_pair *pair = net->peers[0][1]->backend; /* 0 writes, 1 must survive */
    uint8_t *shared = (uint8_t *)pair->out.shared;
    for (int i = 0; i < 8; i++) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t at = (*seed >> 20) % sizeof *pair->out.shared;
        if (at < 128) continue; /* the reader's own lines */
        shared[at] = (uint8_t)(*seed >> 56);
    }
    struct ring_cell *cell = ring_writer_cell(&pair->out); /* and a cell that will be read */
    for (size_t i = 4; i < sizeof *cell; i++) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        if (*seed >> 62 == 0) ((uint8_t *)cell)[i] = (uint8_t)(*seed >> 40);
    }
    cell->kind = (uint8_t)((*seed >> 33) % (RING_KINDS + 1));
    ring_writer_publish(&pair->out);
    shm_doorbell_ring(pair);
}

/* Whatever is in a peer's ring, this endpoint survives, loses at most that peer, and still exchanges
 * messages with the other. */
static void test_scribbled_ring(void **state)
{
    int lost = 0;
    for (uint64_t round = 1; round <= 60; round++) {
        struct net net;
        net_open(&net, &ways[round % 4], 3);
        bootstrap(&net);
        char *in = net_alloc(&net, 100000), *window_memory = net_alloc(&net, 4096);
        window_open(&net, 1, window_memory, 4096);
        uint64_t seed = round * 0x9e3779b97f4a7c15ull;
        struct op receive, other_recv, other_send;
        op_recv(&receive, net.transports[1], 100, TAG(3), in, 1000);
        for (int i = 0; i < 40 && net.failed_count[1] == 0; i++) {
            scribble(&net, &seed);
            weft_transport_progress(net.transports[1], 64);
        }
        lost += net.failed_count[1];
        op_recv(&other_recv, net.transports[1], 102, TAG(4), in, 100000);
        op_send(&other_send, net.peers[2][1], TAG(4), NULL, in, 100000);
        PUMP_UNTIL(&net, other_recv.fired && other_send.fired);
        assert_int_equal(other_recv.status, WEFT_OK);
        assert_true(net.failed_count[1] <= 1);
        net_close(&net);
        net_release_memory(&net, in);
        net_release_memory(&net, window_memory);
    }
    assert_true(lost > 50); /* random bytes are rarely valid */
}

/* ---- memory ---- */

static void test_memory(void **state)
{
    enum { COUNT = 400 };
    struct weft_env *env = weft_env_system();
    static unsigned char *block[COUNT];
    static size_t bytes[COUNT];
    uint64_t seed = 7;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            if (block[i] && seed >> 63) {
                assert_true(filled(block[i], bytes[i], (uint32_t)i));
                weft_memory_free(env, block[i]);
                block[i] = NULL;
            }
            if (block[i]) continue;
            bytes[i] = 1 + (seed >> 33) % (i % 50 == 0 ? 5000000 : 20000);
            void *memory;
            assert_int_equal(weft_memory_alloc(env, bytes[i], &memory, NULL), WEFT_OK);
            block[i] = memory;
            assert_int_equal((uintptr_t)memory % 4096, 0);
            assert_true(memory_offset(memory, bytes[i]) != MEMORY_NO_OFFSET);
            for (size_t k = 0; k < bytes[i]; k++) assert_int_equal(block[i][k], 0);
            fill(block[i], bytes[i], (uint32_t)i);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        assert_true(filled(block[i], bytes[i], (uint32_t)i));
        weft_memory_free(env, block[i]);
    }
    char elsewhere;
    assert_true(memory_offset(&elsewhere, 1) == MEMORY_NO_OFFSET);
}

/* A file beyond ulimit -f is refused. Without the check SIGXFSZ would end the process. */
static void test_file_limit(void **state)
{
    struct rlimit before, small;
    void *memory;
    int fd = -1;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){8192, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    memory = memory_file_create("weft-test", 8193, true, &fd);
    const int reason = errno;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_null(memory);
    assert_int_equal(reason, EFBIG);
    assert_int_equal(weft_limit_status("the ring", reason), WEFT_ERR_LIMIT);
    assert_non_null(strstr(weft_reason_text(WEFT_ERR_LIMIT), "ulimit -f"));
}

/* Non-temporal copy: any length and alignment, no other byte is changed. */
static void test_copy_nontemporal(void **state)
{
    enum { MOST = 70000, SLACK = 256 };
    static uint8_t from[MOST + SLACK], to[MOST + SLACK], before[MOST + SLACK];
    static const size_t lengths[] = {0,     1,     63,         4095,  4096,  4097,        16383,
                                     16384, 16385, 16384 + 64, 40000, 65536, 65536 + 127, MOST};
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t shift = 0; shift < 130; shift += 13) {
            memset(to, 0xee, sizeof to);
            memcpy(before, to, sizeof to);
            memcpy(before + shift, from + shift * 5 % 67, lengths[n]);
            weft_copy_nontemporal(to + shift, from + shift * 5 % 67, lengths[n]);
            assert_memory_equal(to, before, sizeof to);
        }
}

/* Claiming lines changes no byte, in the range or beside it. */
static void test_claim_lines(void **state)
{
    enum { MOST = 70000, SLACK = 256 };
    static uint8_t memory[MOST + SLACK], before[MOST + SLACK];
    static const size_t lengths[] = {0, 1, 64, 2047, 2048, 2049, 4096, 40000, MOST};
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)(i * 7 + i / 251);
    memcpy(before, memory, sizeof memory);
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t shift = 0; shift < 130; shift += 13) {
            weft_claim_lines(memory + shift, lengths[n]);
            assert_memory_equal(memory, before, sizeof memory);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_file_limit),
        cmocka_unit_test(test_put_and_get),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_close_under_a_user),
        cmocka_unit_test(test_close_without_fence),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copy_nontemporal),
        cmocka_unit_test(test_claim_lines),
        cmocka_unit_test(test_slot_of_a_stopped_peer),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_scribbled_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
