/* test_sim.c - the simulator: time, determinism, death, partition, and 64 hosts at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { RANKS = 64 };

struct world {
    struct weft_sim *sim;
    uint32_t ranks;
    struct weft_loop *loops[RANKS];
    struct weft_transport *transports[RANKS];
    int failed[RANKS];
    int done_count;
    uint64_t trace; /* hash of the order and times of completions */
};

struct work {
    struct weft_completion completion;
    struct weft_receive receive;
    struct world *world;
    int fired;
    enum weft_status status;
};

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    (*(int *)context)++;
}

static size_t slab_bytes = 256 << 10;
static bool timing_only;

static void world_open(struct world *world, uint32_t ranks, uint64_t seed)
{
    memset(world, 0, sizeof *world);
    world->ranks = ranks;
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.host_count = ranks;
    options.seed = seed;
    options.slab_bytes = slab_bytes;
    options.timing_only = timing_only;
    assert_int_equal(weft_sim_create(weft_env_system(), &options, &world->sim), WEFT_OK);
    for (uint32_t i = 0; i < ranks; i++) {
        struct weft_env *env = weft_sim_env(world->sim, i);
        struct weft_loop_options loop_options;
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        assert_int_equal(weft_loop_create(env, &loop_options, &world->loops[i]), WEFT_OK);
        assert_int_equal(weft_sim_add(world->sim, i, world->loops[i]), WEFT_OK);
        struct weft_transport_options transport;
        weft_transport_options_init(&transport);
        transport.backend = "sim";
        transport.sim = world->sim;
        transport.sim_host = i;
        transport.id = i;
        transport.peer_failed = on_failed;
        transport.peer_failed_context = &world->failed[i];
        assert_int_equal(weft_transport_open(env, &transport, &world->transports[i], NULL), WEFT_OK);
        assert_int_equal(weft_transport_attach(world->transports[i], world->loops[i]), WEFT_OK);
    }
    for (uint32_t i = 0; i < ranks; i++) {
        for (uint32_t k = 0; k < ranks; k++) {
            const void *blob;
            size_t bytes;
            struct weft_peer *peer;
            weft_transport_address(world->transports[k], &blob, &bytes);
            assert_int_equal(weft_transport_connect(world->transports[i], k, blob, bytes, &peer), WEFT_OK);
        }
    }
}

static void world_close(struct world *world)
{
    for (uint32_t i = 0; i < world->ranks; i++) {
        weft_transport_close(world->transports[i]);
        while (!weft_transport_drained(world->transports[i]))
            weft_transport_progress(world->transports[i], 64);
        weft_transport_free(world->transports[i]);
        weft_sim_remove(world->sim, world->loops[i]);
        weft_loop_free(world->loops[i]);
    }
    weft_sim_free(world->sim);
}

static void on_done(struct weft_completion *completion, enum weft_status status)
{
    struct work *work = weft_container_of(completion, struct work, completion);
    work->fired++;
    work->status = status;
    work->world->done_count++;
    work->world->trace =
        (work->world->trace ^ weft_sim_now_ns(work->world->sim) ^ (uint64_t)status) * 1099511628211ull;
}

static void work_init(struct work *work, struct world *world)
{
    memset(work, 0, sizeof *work);
    work->world = world;
    weft_completion_init(&work->completion, 1, on_done);
}

static void send(struct world *world, struct work *work, uint32_t from, uint32_t to, uint64_t tag,
                 const void *data, size_t bytes)
{
    work_init(work, world);
    struct weft_message message = {.tag = tag, .payload = data, .payload_bytes = bytes};
    assert_int_equal(
        weft_transport_send(weft_transport_peer(world->transports[from], to), &message, &work->completion),
        WEFT_IN_PROGRESS);
}

static void receive(struct world *world, struct work *work, uint32_t at, uint32_t from, uint64_t tag,
                    void *data, size_t bytes)
{
    work_init(work, world);
    work->receive =
        (struct weft_receive){.completion = &work->completion, .buffer = data, .buffer_bytes = bytes};
    assert_int_equal(weft_transport_recv(world->transports[at], from, tag, &work->receive), WEFT_IN_PROGRESS);
}

/* All to all on 64 hosts, some die meanwhile: operations with dead hosts end, all others arrive. */
static uint64_t all_to_all(uint64_t seed, bool deaths, uint64_t *events_out)
{
    struct world world;
    world_open(&world, RANKS, seed);
    struct work *sends = calloc(RANKS * RANKS, sizeof *sends),
                *receives = calloc(RANKS * RANKS, sizeof *receives);
    static unsigned char out[20000];
    unsigned char *in = malloc((size_t)RANKS * RANKS * 64);
    unsigned char *big = malloc((size_t)RANKS * sizeof out);
    fill(out, sizeof out, 5);
    for (uint32_t i = 0; i < RANKS; i++) {
        for (uint32_t k = 0; k < RANKS; k++) {
            uint32_t n = i * RANKS + k;
            bool large = k == (i + 1) % RANKS;
            receive(&world, &receives[n], i, k, TAG(1), large ? big + i * sizeof out : in + (size_t)n * 64,
                    large ? sizeof out : 64);
            send(&world, &sends[n], i, k, TAG(1), out, k == (i + RANKS - 1) % RANKS ? sizeof out : 64);
        }
    }
    if (deaths)
        weft_sim_kill_at(world.sim, 5, 3000), weft_sim_kill_at(world.sim, 40, 9000),
            weft_sim_kill(world.sim, 63);
    assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(10)), WEFT_ERR_STATE);
    for (uint32_t n = 0; n < RANKS * RANKS; n++) {
        uint32_t i = n / RANKS, k = n % RANKS;
        bool i_dead = deaths && (i == 5 || i == 40 || i == 63),
             k_dead = deaths && (k == 5 || k == 40 || k == 63);
        if (i_dead) continue;
        if (sends[n].fired != 1 || receives[n].fired != 1)
            fail_msg("seed %llu: rank %u peer %u did not end", (unsigned long long)seed, i, k);
        if (k_dead) continue;
        assert_int_equal(sends[n].status, WEFT_OK);
        assert_int_equal(receives[n].status, WEFT_OK);
        bool large = k == (i + 1) % RANKS;
        assert_true(filled(large ? big + i * sizeof out : in + (size_t)n * 64, large ? sizeof out : 64, 5));
    }
    for (uint32_t i = 0; deaths && i < RANKS; i++) {
        if (i != 5 && i != 40 && i != 63) assert_int_equal(world.failed[i], 3);
    }
    uint64_t trace = world.trace ^ weft_sim_now_ns(world.sim) ^ weft_sim_trace(world.sim);
    *events_out = weft_sim_event_count(world.sim);
    world_close(&world);
    free(sends), free(receives), free(in), free(big);
    return trace;
}

static void test_all_to_all(void **state)
{
    uint64_t events[3];
    uint64_t first = all_to_all(1, false, &events[0]), again = all_to_all(1, false, &events[1]),
             other = all_to_all(2, false, &events[2]);
    assert_true(first == again);
    assert_int_equal(events[0], events[1]);
    assert_true(first != other);
}

static void test_deaths(void **state)
{
    uint64_t events[2];
    assert_true(all_to_all(7, true, &events[0]) == all_to_all(7, true, &events[1]));
    for (uint64_t seed = 10; seed < 20; seed++) all_to_all(seed, true, &events[0]);
}

/* The source of memory changes no result. */
static void test_slabs(void **state)
{
    uint64_t events[3], traces[3];
    const size_t sizes[] = {0, 1000, 1 << 20};
    for (int i = 0; i < 3; i++) {
        slab_bytes = sizes[i];
        traces[i] = all_to_all(3, true, &events[i]);
    }
    slab_bytes = 256 << 10;
    for (int i = 1; i < 3; i++) {
        assert_true(traces[i] == traces[0]);
        assert_int_equal(events[i], events[0]);
    }
}

/* Payloads at invalid addresses travel, and take as long as others. */
static void test_timing_only(void **state)
{
    static char real[2][50000], real_in[2][50000];
    uint64_t ended_ns[2];
    for (int mode = 0; mode < 2; mode++) {
        struct world world;
        struct work sends[2], receives[2];
        timing_only = mode == 1;
        world_open(&world, 2, 1);
        for (int i = 0; i < 2; i++) {
            size_t bytes = i ? 50000 : 300; /* rendezvous, eager */
            char *nowhere = (char *)16;
            receive(&world, &receives[i], 1, 0, TAG(1), timing_only ? nowhere : real_in[i], bytes);
            send(&world, &sends[i], 0, 1, TAG(1), timing_only ? nowhere : real[i], bytes);
        }
        assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(10)), WEFT_ERR_STATE);
        for (int i = 0; i < 2; i++) assert_int_equal(sends[i].fired + receives[i].fired, 2);
        struct weft_transport_stats stats;
        weft_transport_stats(world.transports[1], &stats);
        assert_int_equal(stats.received_payload_bytes, 50300);
        assert_int_equal(stats.copied_bytes, timing_only ? 0 : 50300);
        ended_ns[mode] = weft_sim_now_ns(world.sim);
        world_close(&world);
    }
    timing_only = false;
    assert_int_equal(ended_ns[0], ended_ns[1]);
}

/* ---- windows ---- */

static struct weft_window *open_window(struct world *world, uint32_t at, void *memory, size_t bytes,
                                       unsigned rights, uint32_t peer)
{
    struct weft_window_options options = {sizeof options, memory, bytes, WEFT_MEMORY_HOST, rights, peer};
    struct weft_window *window;
    assert_int_equal(weft_window_open(world->transports[at], &options, &window, NULL), WEFT_OK);
    return window;
}

static enum weft_status import(struct world *world, uint32_t at, uint32_t owner,
                               const struct weft_window *window, struct weft_remote **remote_out)
{
    const void *key;
    size_t bytes;
    weft_window_key(window, &key, &bytes);
    return weft_transport_import(weft_transport_peer(world->transports[at], owner), key, bytes, remote_out);
}

static void put(struct world *world, struct work *work, struct weft_remote *remote, uint64_t offset,
                const void *data, size_t bytes, bool notify)
{
    work_init(work, world);
    struct weft_put put = {data, bytes, offset, notify, TAG(9), "note", 4};
    assert_int_equal(weft_transport_put(remote, &put, &work->completion), WEFT_IN_PROGRESS);
}

static void test_windows(void **state)
{
    struct world world;
    world_open(&world, 3, 1);
    static unsigned char memory[100000], data[100000], back[100000];
    fill(data, sizeof data, 3);
    struct weft_window *window =
        open_window(&world, 0, memory, sizeof memory, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE, 1);
    struct weft_remote *remote, *none;
    assert_int_equal(import(&world, 2, 0, window, &none), WEFT_ERR_AUTH);      /* it is for endpoint 1 */
    assert_int_equal(import(&world, 1, 2, window, &none), WEFT_ERR_MALFORMED); /* it belongs to endpoint 0 */
    assert_int_equal(import(&world, 1, 0, window, &remote), WEFT_OK);
    struct work puts[2], got, notified, closed, late;
    receive(&world, &notified, 0, 1, TAG(9), NULL, 0);
    put(&world, &puts[0], remote, 100, data + 100, sizeof data - 100, true);
    put(&world, &puts[1], remote, 0, data, 100, false);
    assert_int_equal(weft_remote_release(remote), WEFT_ERR_BUSY);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(1));
    assert_int_equal(puts[0].fired + puts[1].fired + notified.fired, 3);
    assert_int_equal(puts[0].status | puts[1].status | notified.status, WEFT_OK);
    assert_memory_equal(notified.receive.header, "note", 4);
    assert_true(filled(memory, sizeof memory, 3));
    work_init(&got, &world);
    assert_int_equal(weft_transport_get(remote, 50000, back, 50000, &got.completion), WEFT_IN_PROGRESS);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(2));
    assert_int_equal(got.fired, 1);
    assert_memory_equal(back, data + 50000, 50000);
    work_init(&got, &world);
    assert_int_equal(weft_transport_get(remote, 50001, back, 50000, &got.completion), WEFT_ERR_INVALID);

    /* Operations in flight when the window closes change nothing. */
    memset(data, 0, sizeof data);
    put(&world, &late, remote, 0, data, sizeof data, true);
    work_init(&closed, &world);
    weft_window_close(window, &closed.completion);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(3));
    assert_int_equal(closed.fired + late.fired, 2);
    assert_int_equal(late.status, WEFT_ERR_CANCELLED);
    assert_true(filled(memory, sizeof memory, 3));
    assert_int_equal(weft_remote_release(remote), WEFT_OK);

    /* A dead owner ends them, as it ends messages. */
    window = open_window(&world, 0, memory, sizeof memory, WEFT_WINDOW_WRITE, WEFT_ANY_PEER);
    assert_int_equal(import(&world, 2, 0, window, &remote), WEFT_OK);
    /* no right to read */
    assert_int_equal(weft_transport_get(remote, 0, back, 1, &got.completion), WEFT_ERR_INVALID);
    put(&world, &late, remote, 0, data, sizeof data, true);
    weft_sim_kill(world.sim, 0);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(4));
    assert_int_equal(late.fired, 1);
    assert_int_equal(late.status, WEFT_ERR_PEER_LOST);
    assert_true(filled(memory, sizeof memory, 3));
    world_close(&world);
}

/* Each reading of a host's clock is later than the previous one, and the simulation's time is unchanged;
 * unless still_clock is set. */
static void test_clock(void **state)
{
    for (int still = 0; still < 2; still++) {
        struct weft_sim_options options;
        struct weft_sim *sim;
        weft_sim_options_init(&options);
        options.host_count = 2;
        options.still_clock = still;
        assert_true(weft_sim_create(weft_env_system(), &options, &sim) == WEFT_OK);
        const uint64_t first = weft_now_ns(weft_sim_env(sim, 0)), second = weft_now_ns(weft_sim_env(sim, 0));
        assert_int_equal(second - first, still ? 0 : 1);
        assert_int_equal(weft_sim_now_ns(sim), 0);
        assert_true(weft_now_ns(weft_sim_env(sim, 1)) <= first);
        weft_sim_free(sim);
    }
}

static void test_partition(void **state)
{
    struct world world;
    world_open(&world, 2, 1);
    struct work sends[2], receives[2];
    char in[2][4];
    static char big[100000], big_in[100000];
    weft_sim_partition(world.sim, 0, 1, true);
    receive(&world, &receives[0], 1, 0, TAG(1), in[0], 4);
    receive(&world, &receives[1], 1, 0, TAG(1), big_in, sizeof big_in);
    send(&world, &sends[0], 0, 1, TAG(1), "one", 3);
    send(&world, &sends[1], 0, 1, TAG(1), big, sizeof big);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(5));
    assert_int_equal(receives[0].fired + receives[1].fired, 0);
    weft_sim_partition(world.sim, 0, 1, false);
    assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(10)), WEFT_ERR_STATE);
    assert_int_equal(receives[0].fired + receives[1].fired + sends[0].fired + sends[1].fired, 4);
    assert_memory_equal(in[0], "one", 3);
    world_close(&world);
}

/* A message sent shortly before the heal does not overtake messages that waited behind the cut. */
static void test_order_after_heal(void **state)
{
    for (uint64_t late_ns = 0; late_ns <= 7000; late_ns += 500) {
        struct world world;
        world_open(&world, 2, 1);
        struct work sends[2], receives[2];
        char in[2][4];
        weft_sim_partition(world.sim, 0, 1, true);
        receive(&world, &receives[0], 1, 0, TAG(1), in[0], 3);
        receive(&world, &receives[1], 1, 0, TAG(1), in[1], 3);
        send(&world, &sends[0], 0, 1, TAG(1), "one", 3);
        uint64_t second_ns = weft_sim_now_ns(world.sim) + 20000; /* the first message has reached the cut */
        weft_sim_run(world.sim, NULL, second_ns);
        send(&world, &sends[1], 0, 1, TAG(1), "two", 3);
        weft_sim_run(world.sim, NULL, second_ns + late_ns);
        weft_sim_partition(world.sim, 0, 1, false);
        weft_sim_run(world.sim, NULL, WEFT_SECONDS(1));
        assert_int_equal(receives[0].fired + receives[1].fired, 2);
        assert_memory_equal(in[0], "one", 3);
        assert_memory_equal(in[1], "two", 3);
        world_close(&world);
    }
}

/* An endpoint sends two messages and closes behind a cut. After the heal the peer gets both, then the
 * notice of the close. A third endpoint gets the notice at once. */
static void test_close_behind_cut(void **state)
{
    struct world world;
    world_open(&world, 3, 1);
    struct work sends[2], receives[3];
    char in[3][4];
    weft_sim_partition(world.sim, 0, 1, true);
    send(&world, &sends[0], 0, 1, TAG(1), "one", 3);
    send(&world, &sends[1], 0, 1, TAG(1), "two", 3);
    receive(&world, &receives[0], 1, 0, TAG(1), in[0], 3);
    weft_sim_run(world.sim, NULL, WEFT_MS(1));
    weft_transport_close(world.transports[0]);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(5));
    assert_int_equal(world.failed[1], 0);
    assert_int_equal(world.failed[2], 1);
    assert_int_equal(receives[0].fired, 0);
    weft_sim_partition(world.sim, 0, 1, false);
    assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(10)), WEFT_ERR_STATE);
    assert_int_equal(world.failed[1], 1);
    receive(&world, &receives[1], 1, 0, TAG(1), in[1], 3);
    weft_sim_run(world.sim, NULL, WEFT_SECONDS(10));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(receives[i].fired, 1);
        assert_int_equal(receives[i].status, WEFT_OK);
        assert_memory_equal(in[i], i ? "two" : "one", 3);
    }
    world_close(&world);
}

/* 10 MB over 12.5 GB/s is 0.8 ms; ten times slower with slow = 10. */
static void test_bandwidth(void **state)
{
    static char big[10000000], in[10000000];
    for (uint32_t factor = 1; factor <= 10; factor += 9) {
        struct world world;
        world_open(&world, 2, 1);
        weft_sim_slow(world.sim, 0, factor);
        struct work sent, received;
        receive(&world, &received, 1, 0, TAG(1), in, sizeof in);
        send(&world, &sent, 0, 1, TAG(1), big, sizeof big);
        weft_sim_run(world.sim, NULL, WEFT_SECONDS(1));
        assert_int_equal(received.fired, 1);
        assert_true(weft_sim_now_ns(world.sim) > factor * 800000);
        assert_true(weft_sim_now_ns(world.sim) < factor * 800000 + 100000);
        world_close(&world);
    }
}

static void timer_fired(struct weft_timer *timer) { timer->deadline_ns = 0; }

static void test_run_answers(void **state)
{
    struct world world;
    world_open(&world, 2, 1);
    bool done = false;
    /* no event will occur */
    assert_int_equal(weft_sim_run(world.sim, &done, WEFT_SECONDS(1)), WEFT_ERR_STATE);
    struct weft_timer timer;
    weft_timer_init(&timer, timer_fired);
    weft_timer_start(world.loops[1], &timer, WEFT_SECONDS(3));
    assert_int_equal(weft_sim_run(world.sim, &done, WEFT_SECONDS(2)), WEFT_ERR_DEADLINE);
    assert_int_equal(weft_sim_now_ns(world.sim), WEFT_SECONDS(2));
    assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(4)), WEFT_ERR_STATE);
    assert_int_equal(timer.deadline_ns, 0);
    assert_int_equal(weft_sim_now_ns(world.sim), WEFT_SECONDS(3));
    done = true;
    assert_int_equal(weft_sim_run(world.sim, &done, WEFT_SECONDS(4)), WEFT_OK);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_partition),
        cmocka_unit_test(test_order_after_heal),
        cmocka_unit_test(test_close_behind_cut),
        cmocka_unit_test(test_bandwidth),
        cmocka_unit_test(test_run_answers),
        cmocka_unit_test(test_slabs),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_timing_only),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
