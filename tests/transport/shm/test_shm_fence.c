/* test_shm_fence.c - a window is closed repeatedly while the endpoint of another thread writes into it
 * without pause: after the close nothing is written. `test_shm_fence light [ROUNDS]` and `test_shm_fence
 * full [ROUNDS]`: the two fences of transport/shm/shm_fence.c.
 *
 *   user (thread)                           owner (main)
 *                                  ◄─────   opens a window, sends its key
 *   puts, puts, puts ...           ─────►   sees the first bytes, waits a random time, closes
 *   a put is cancelled: releases            owns the memory: writes a pattern and finds it unchanged */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"

enum { LINES = 8, BYTES = 64 * LINES };

static uint32_t rounds = 500;

static struct flavour ways[] = {{"light", "shm", .memory = true},
                                {"full", "shm", .tune = "membarrier=off", .memory = true}},
                      *way = ways;

struct scene {
    struct net net;
    unsigned char *window_memory, *source;
    unsigned char key[WEFT_WINDOW_KEY_BYTES_MAX];
    size_t key_bytes;
    uint64_t deadline_ns;
    _Atomic uint32_t opened, ended; /* rounds: the key is valid; the user has released */
    _Atomic bool failed;            /* one side failed: the other must not wait */
    const char *why;                /* of the user */
    uint64_t put_count, at_once_count, waited_count;
};

static bool give_up(struct scene *scene, const char *why)
{
    scene->why = why;
    atomic_store(&scene->failed, true);
    return false;
}

/* Waits until *word is `round`. There may be one core only. */
static bool await(struct scene *scene, _Atomic uint32_t *word, uint32_t round)
{
    for (uint32_t i = 0; atomic_load_explicit(word, memory_order_acquire) != round; i++) {
        if (atomic_load(&scene->failed)) return false;
        if (i % 1000 == 999) sched_yield();
        if (i % 100000 == 99999 && net_now_ns() > scene->deadline_ns) return false;
    }
    return true;
}

/* ---- the user's thread ---- */

struct put_op {
    struct weft_completion completion;
    int fired;
    enum weft_status status;
};

static void put_done(struct weft_completion *completion, enum weft_status status)
{
    struct put_op *op = weft_container_of(completion, struct put_op, completion);
    op->fired++;
    op->status = status;
}

/* Puts until one is cancelled. */
static bool put_until_closed(struct scene *scene, struct weft_remote *remote)
{
    for (uint32_t i = 0;; i++) {
        struct put_op op = {.fired = 0};
        struct weft_put put = {.source = scene->source, .bytes = 64, .offset = i % LINES * 64};
        weft_completion_init(&op.completion, 1, put_done);
        enum weft_status status = weft_transport_put(remote, &put, &op.completion);
        scene->put_count++;
        if (status == WEFT_OK) scene->at_once_count++;
        if (status == WEFT_OK && i % 4096 != 4095) continue;
        if (status < 0) return give_up(scene, "a put was refused");
        while (status == WEFT_IN_PROGRESS && !op.fired) {
            weft_transport_progress(scene->net.transports[0], 64);
            if (net_now_ns() > scene->deadline_ns) return give_up(scene, "a put does not end");
        }
        if (status == WEFT_IN_PROGRESS && op.status == WEFT_ERR_CANCELLED) return true;
        if (status == WEFT_IN_PROGRESS && op.status != WEFT_OK) return give_up(scene, "a put failed");
        if (atomic_load(&scene->failed) || net_now_ns() > scene->deadline_ns)
            return give_up(scene, "the window is never closed");
        sched_yield(); /* the owner may have no other core */
    }
}

static void *user_run(void *context)
{
    struct scene *scene = context;
    for (uint32_t round = 1; round <= rounds; round++) {
        struct weft_remote *remote;
        if (!await(scene, &scene->opened, round)) break;
        if (weft_transport_import(scene->net.peers[0][1], scene->key, scene->key_bytes, &remote) != WEFT_OK) {
            give_up(scene, "a key was refused");
            break;
        }
        bool fine = put_until_closed(scene, remote);
        weft_remote_release(remote);
        if (!fine) break;
        atomic_store_explicit(&scene->ended, round, memory_order_release);
    }
    return NULL;
}

/* ---- the owner ---- */

static bool all(const volatile unsigned char *memory, unsigned char value)
{
    for (int i = 0; i < BYTES; i++)
        if (memory[i] != value) return false;
    return true;
}

static void owner_round(struct scene *scene, uint32_t round, uint64_t *seed)
{
    struct weft_transport *owner = scene->net.transports[1];
    struct weft_window_options options = {sizeof options,   scene->window_memory, BYTES,
                                          WEFT_MEMORY_HOST, WEFT_WINDOW_WRITE,    WEFT_ANY_PEER};
    volatile unsigned char *memory = scene->window_memory;
    struct weft_window *window;
    struct op closing;
    const void *key;
    memset(scene->window_memory, 0, BYTES);
    assert_int_equal(weft_window_open(owner, &options, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &scene->key_bytes);
    memcpy(scene->key, key, scene->key_bytes);
    atomic_store_explicit(&scene->opened, round, memory_order_release);
    for (uint32_t i = 0; memory[BYTES - 1] == 0; i++) { /* all lines have been written */
        if (atomic_load(&scene->failed) || (i % 1000 == 999 && net_now_ns() > scene->deadline_ns))
            fail_msg("%s", scene->why ? scene->why : "nothing is put");
        if (i % 1000 == 999) sched_yield();
    }
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    for (uint32_t i = 0; i < (*seed >> 40) % 400; i++)
        (void)memory[i % LINES * 64]; /* delays the visibility of its stores */
    op_init(&closing);
    weft_window_close(window, &closing.completion);
    while (!closing.fired) {
        weft_transport_progress(owner, 64);
        if (!closing.fired) scene->waited_count++;
        if (net_now_ns() > scene->deadline_ns) fail_msg("a window cannot be closed");
    }
    assert_int_equal(closing.status, WEFT_OK);
    memset(scene->window_memory, 0xEE, BYTES);
    if (!await(scene, &scene->ended, round))
        fail_msg("%s", scene->why ? scene->why : "the user does not end");
    if (!all(memory, 0xEE)) fail_msg("round %u: written after the window had closed", round);
}

static void test_nothing_after_the_close(void **state)
{
    static struct scene scene;
    pthread_t user;
    uint64_t seed = 1;
    struct op send, recv;
    char in[4];
    scene.deadline_ns = net_now_ns() + WEFT_SECONDS(100);
    net_open(&scene.net, way, 2);
    op_recv(&recv, scene.net.transports[1], 100, WEFT_TAG(WEFT_CHANNEL_TEST, 1), in, 4);
    op_send(&send, scene.net.peers[0][1], WEFT_TAG(WEFT_CHANNEL_TEST, 1), NULL, "meet", 4);
    PUMP_UNTIL(&scene.net, send.fired && recv.fired);
    scene.window_memory = net_alloc(&scene.net, BYTES);
    scene.source = net_alloc(&scene.net, 64);
    memset(scene.source, 7, 64);
    assert_int_equal(pthread_create(&user, NULL, user_run, &scene), 0);
    for (uint32_t round = 1; round <= rounds; round++) owner_round(&scene, round, &seed);
    pthread_join(user, NULL);
    if (scene.why) fail_msg("%s", scene.why);
    assert_true(scene.at_once_count >= (uint64_t)rounds * LINES); /* most rounds must test this */
    printf("%s: %u windows closed under %llu puts, %llu of them complete in the call; %llu checks found a "
           "thread "
           "inside\n",
           way->name, rounds, (unsigned long long)scene.put_count, (unsigned long long)scene.at_once_count,
           (unsigned long long)scene.waited_count);
    net_close(&scene.net);
    net_release_memory(&scene.net, scene.window_memory);
    net_release_memory(&scene.net, scene.source);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "full") == 0) way = &ways[1];
    if (argc > 2) rounds = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_after_the_close)};
    return cmocka_run_group_tests_name(way->name, tests, NULL, NULL);
}
