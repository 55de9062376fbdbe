/* test_verbs_device.c - the device part of the verbs backend on a soft-RoCE device, in the virtual
 * machine.
 *
 * WEFT_TEST_DEVICES names one device, or two joined by a wire; WEFT_TEST_WIRE the interfaces of that wire,
 * which some tests disturb. Exit status 77: no device. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/verbs/device/verbs_device.h"

enum { A = 0, B = 1, BYTES = 4 << 20, WAIT_S = 60 };

static char names[2][128];
static const char *wire;

struct side {
    struct verbs_rail rail;
    struct verbs_memory *memory;
    struct verbs_region region;
    unsigned char *buffer;
    struct verbs_queue_pair *pair;
    struct verbs_completion got[512]; /* every completion, in order of arrival */
    int count;
};

struct both {
    struct side sides[2];
};

static uint64_t now_ns(void) { return weft_now_ns(weft_env_system()); }

static struct weft_error why; /* of the last OK_ */
#define OK_(call)                                                            \
    do {                                                                     \
        why = (struct weft_error){0};                                        \
        if ((call) != WEFT_OK) fail_msg("%s: %s", #call, why.text);          \
    } while (0)

static void side_open(struct side *side, const char *device, const char *tune)
{
    struct verbs_options options;
    uint32_t count = 0;
    verbs_options_init(&options);
    options.timeout = 14; /* errors are reported soon */
    snprintf(options.devices, sizeof options.devices, "%s", device);
    OK_(verbs_options_parse(tune, false, &options, &why));
    OK_(verbs_rails_open(weft_env_system(), &options, &side->rail, &count, &why));
    assert_int_equal(count, 1);
    OK_(verbs_memory_open(weft_env_system(), &side->rail, 1, &side->memory, &why));
    side->buffer = aligned_alloc(4096, BYTES);
    memset(side->buffer, 0, BYTES);
    OK_(verbs_memory_register(side->memory, side->buffer, BYTES,
                              VERBS_REMOTE_WRITE | VERBS_REMOTE_READ | VERBS_TARGET, &side->region, &why));
}

static void side_close(struct side *side)
{
    verbs_queue_pair_destroy(side->pair);
    verbs_memory_unregister(side->memory, &side->region);
    verbs_memory_close(side->memory);
    verbs_rail_close(&side->rail);
    free(side->buffer);
}

static void connect_both(struct both *both)
{
    for (int i = 0; i < 2; i++) {
        struct side *side = &both->sides[i];
        OK_(verbs_queue_pair_create(&side->rail, i == A ? "endpoint 8" : "endpoint 7", side, &side->pair,
                                    &why));
    }
    for (int i = 0; i < 2; i++) {
        uint8_t blob[VERBS_ADDRESS_BYTES];
        verbs_queue_pair_address(both->sides[!i].pair, blob);
        OK_(verbs_queue_pair_connect(both->sides[i].pair, blob, sizeof blob, &why));
    }
}

static struct both *open_both(const char *tune)
{
    struct both *both = calloc(1, sizeof *both);
    side_open(&both->sides[A], names[A], tune);
    side_open(&both->sides[B], names[B], tune);
    connect_both(both);
    return both;
}

static void close_both(struct both *both)
{
    side_close(&both->sides[A]);
    side_close(&both->sides[B]);
    free(both);
}

static void pump(struct both *both)
{
    int count = 0;
    for (int i = 0; i < 2; i++) {
        struct side *side = &both->sides[i];
        int got = verbs_rail_poll(&side->rail, side->got + side->count,
                                  (int)(sizeof side->got / sizeof *side->got) - side->count);
        assert_true(got >= 0);
        side->count += got;
        count += got;
    }
    if (count == 0) usleep(100); /* two pollers starve the soft-RoCE wire */
}

static void never(const struct both *both, const char *expression)
{
    for (int i = 0; i < 2; i++) {
        const struct side *side = &both->sides[i];
        print_message("side %d: state %d, posted %llu, retired %llu, %d completions\n", i,
                      side->pair ? (int)side->pair->state : 0,
                      side->pair ? (unsigned long long)side->pair->posted : 0,
                      side->pair ? (unsigned long long)side->pair->retired : 0, side->count);
        for (int k = 0; k < side->count; k++)
            print_message("  event %d id %llu cause %d\n", side->got[k].event,
                          (unsigned long long)side->got[k].id, side->got[k].cause);
    }
    fail_msg("never true: %s", expression);
}

#define PUMP_UNTIL(both, expression)                                                     \
    do {                                                                                 \
        uint64_t limit_ = now_ns() + WEFT_SECONDS(WAIT_S);                               \
        while (!(expression)) {                                                          \
            pump(both);                                                                  \
            if (now_ns() > limit_) never(both, #expression);                             \
        }                                                                                \
    } while (0)

static struct verbs_work work(const struct both *both, enum verbs_opcode opcode, size_t from, size_t to,
                              uint32_t bytes, uint64_t id)
{
    const struct side *a = &both->sides[A], *b = &both->sides[B];
    return (struct verbs_work){
        .opcode = opcode,
        .signalled = true,
        .bytes = bytes,
        .local = a->buffer + from,
        .lkey = a->region.lkey[0],
        .remote = (uintptr_t)b->buffer + to,
        .rkey = b->region.rkey[0],
        .id = id,
    };
}

static void forget(struct both *both) { both->sides[A].count = both->sides[B].count = 0; }

static void fill(unsigned char *at, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 11);
}

static void run_shell(const char *command)
{
    if (system(command) != 0) fail_msg("'%s' failed", command);
}

/* ---- choosing ---- */

static void test_picks(void **state)
{
    struct verbs_options options;
    struct verbs_port *ports;
    uint32_t count;
    verbs_options_init(&options);
    assert_int_equal(verbs_ports_list(weft_env_system(), &options, &ports, &count), WEFT_OK);
    assert_true(count >= 1 && ports[0].usable);
    assert_true(ports[0].roce);
    assert_int_equal(ports[0].gid_type, 2);
    assert_int_equal(ports[0].mtu_bytes, 4096);
    assert_int_equal(ports[0].gid.raw[10], 0xff); /* IPv4 rather than link-local */
    assert_int_equal(ports[0].gid.raw[12], 10);
    char text[256];
    verbs_port_describe(&ports[0], text, sizeof text);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "RoCE v2"));
    assert_non_null(strstr(text, "10.7"));
    weft_free_bytes(weft_env_system(), ports);
}

static enum weft_status opens(const char *devices, const char *tune, struct verbs_rail *rails,
                              uint32_t *count, struct weft_error *error)
{
    struct verbs_options options;
    verbs_options_init(&options);
    snprintf(options.devices, sizeof options.devices, "%s", devices);
    *error = (struct weft_error){0};
    enum weft_status status = verbs_options_parse(tune, false, &options, error);
    return status < 0 ? status : verbs_rails_open(weft_env_system(), &options, rails, count, error);
}

static uint32_t usable_ports(void)
{
    struct verbs_options options;
    struct verbs_port *ports;
    uint32_t count, usable = 0;
    verbs_options_init(&options);
    assert_int_equal(verbs_ports_list(weft_env_system(), &options, &ports, &count), WEFT_OK);
    for (uint32_t i = 0; i < count; i++) usable += ports[i].usable;
    weft_free_bytes(weft_env_system(), ports);
    return usable < VERBS_RAILS_MAX ? usable : VERBS_RAILS_MAX;
}

static void test_overrides(void **state)
{
    struct verbs_rail rails[VERBS_RAILS_MAX];
    struct weft_error error;
    uint32_t count;
    char text[160];
    assert_int_equal(opens("", "gid=0,mtu=1024,tc=104,sl=3", rails, &count, &error), WEFT_OK);
    assert_int_equal(rails[0].port.gid.raw[0], 0xfe); /* link-local, as requested */
    assert_int_equal(rails[0].port.mtu_bytes, 1024);
    uint64_t own, each;
    verbs_rail_memory(&rails[0], &own, &each);
    print_message("memory: %llu KiB for the rail, %llu bytes for each peer's queue pair\n",
                  (unsigned long long)own / 1024, (unsigned long long)each);
    assert_true(own > 0 && own < (8u << 20) && each > 0 && each < 100000);
    verbs_rail_close(&rails[0]);
    snprintf(text, sizeof text, "%s:1", names[B]);
    assert_int_equal(opens(text, NULL, rails, &count, &error), WEFT_OK);
    assert_string_equal(rails[0].port.device, names[B]);
    snprintf(text, sizeof text, "%s", rails[0].port.interface);
    verbs_rail_close(&rails[0]);
    assert_int_equal(opens(text, NULL, rails, &count, &error), WEFT_OK); /* by network interface */
    assert_string_equal(rails[0].port.device, names[B]);
    verbs_rail_close(&rails[0]);
    assert_int_equal(opens("", "rails=8", rails, &count, &error), WEFT_OK);
    assert_int_equal(count, usable_ports());
    while (count > 0) verbs_rail_close(&rails[--count]);
}

static void test_refusals(void **state)
{
    struct verbs_rail rails[VERBS_RAILS_MAX];
    struct weft_error error;
    uint32_t count;
    static const struct {
        const char *devices, *tune;
        enum weft_status status;
        const char *words;
    } cases[] = {
        {"mlx5_9", NULL, WEFT_ERR_NOT_FOUND, "mlx5_9"},
        {"mlx5_9", NULL, WEFT_ERR_NOT_FOUND, "rxe0"}, /* lists what there is */
        {"rxe0:2", NULL, WEFT_ERR_NOT_FOUND, "rxe0:2"},
        {"rxe0", "gid=77", WEFT_ERR_NOT_FOUND, "no GID 77"},
        {"rxe0", "mtu=1000", WEFT_ERR_INVALID, "mtu"},
        {"rxe0", "retries=7", WEFT_ERR_INVALID, "retries"}, /* "for ever" */
        {"rxe0", "colour=red", WEFT_ERR_NOT_FOUND, "colour"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(opens(cases[i].devices, cases[i].tune, rails, &count, &error), cases[i].status);
        if (!strstr(error.text, cases[i].words))
            fail_msg("'%s' does not contain '%s'", error.text, cases[i].words);
    }
}

static void test_blobs(void **state)
{
    struct both *both = open_both(NULL);
    struct verbs_queue_pair *pair;
    uint8_t blob[VERBS_ADDRESS_BYTES], bad[VERBS_ADDRESS_BYTES];
    struct weft_error error = {0};
    verbs_queue_pair_address(both->sides[B].pair, blob);
    assert_int_equal(verbs_queue_pair_connect(both->sides[A].pair, blob, sizeof blob, &error),
                     WEFT_ERR_STATE);
    OK_(verbs_queue_pair_create(&both->sides[A].rail, "endpoint 9", NULL, &pair, &why));
    assert_int_equal(verbs_queue_pair_connect(pair, blob, sizeof blob - 1, NULL), WEFT_ERR_MALFORMED);
    static const int places[] = {0, 1, 2, 3, 7, 11};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        memcpy(bad, blob, sizeof bad);
        bad[places[i]] = 0xee;
        assert_int_equal(verbs_queue_pair_connect(pair, bad, sizeof bad, NULL), WEFT_ERR_MALFORMED);
    }
    memcpy(bad, blob, sizeof bad);
    bad[3] = 0; /* an InfiniBand port */
    error = (struct weft_error){0};
    assert_int_equal(verbs_queue_pair_connect(pair, bad, sizeof bad, &error), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "endpoint 9"));
    assert_int_equal(pair->state, VERBS_FRESH);
    verbs_queue_pair_destroy(pair);
    close_both(both);
}

/* ---- transfer ---- */

static void test_write(void **state)
{
    struct both *both = open_both(NULL);
    const uint32_t sizes[] = {1, 7, 220, 4096, 4097, 65536, 1 << 20};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        forget(both);
        fill(both->sides[A].buffer, sizes[i], i);
        both->sides[B].buffer[sizes[i]] = 0xA5;
        struct verbs_work works[2] = {work(both, VERBS_WRITE, 0, 0, sizes[i], 10 + i),
                                      work(both, VERBS_WRITE_IMMEDIATE, 0, 0, 0, 20 + i)};
        works[0].signalled = false;
        works[1].immediate = 0xfedcba00u + i;
        uint64_t doorbells = both->sides[A].rail.counters.doorbells;
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, works, 2), WEFT_OK);
        assert_int_equal(both->sides[A].rail.counters.doorbells, doorbells + 1);
        PUMP_UNTIL(both, both->sides[A].count == 1 && both->sides[B].count == 1);
        assert_int_equal(both->sides[A].got[0].event, VERBS_SENT);
        assert_int_equal(both->sides[A].got[0].id, 20 + i);
        assert_int_equal(both->sides[B].got[0].event, VERBS_ARRIVED);
        assert_int_equal(both->sides[B].got[0].immediate, 0xfedcba00u + i);
        assert_int_equal(both->sides[B].got[0].bytes, 0);
        assert_ptr_equal(both->sides[B].got[0].queue_pair, both->sides[B].pair);
        assert_memory_equal(both->sides[A].buffer, both->sides[B].buffer, sizes[i]);
        assert_int_equal(both->sides[B].buffer[sizes[i]], 0xA5);
        assert_int_equal(verbs_queue_pair_space(both->sides[A].pair), both->sides[A].pair->send_depth);
    }
    close_both(both);
}

static void test_inline_and_read(void **state)
{
    struct both *both = open_both(NULL);
    assert_true(both->sides[A].pair->inline_bytes >= 220);
    unsigned char small[220];
    fill(small, sizeof small, 5);
    struct verbs_work one = work(both, VERBS_WRITE_IMMEDIATE, 0, 100, sizeof small, 1);
    one.local = small;
    one.lkey = 0; /* not registered */
    one.inlined = true;
    one.immediate = 1;
    assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
    memset(small, 0, sizeof small); /* it was copied */
    PUMP_UNTIL(both, both->sides[A].count == 1 && both->sides[B].count == 1);
    assert_int_equal(both->sides[B].got[0].bytes, sizeof small);
    fill(small, sizeof small, 5);
    assert_memory_equal(both->sides[B].buffer + 100, small, sizeof small);
    fill(both->sides[B].buffer, 100000, 9);
    struct verbs_work read = work(both, VERBS_READ, 0, 0, 100000, 2);
    assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &read, 1), WEFT_OK);
    PUMP_UNTIL(both, both->sides[A].count == 2);
    assert_memory_equal(both->sides[A].buffer, both->sides[B].buffer, 100000);
    close_both(both);
}

/* No signal is requested: completions arrive regularly, the queue drains, and nothing is counted twice. */
static void test_signals_and_space(void **state)
{
    struct both *both = open_both("depth=32");
    struct verbs_queue_pair *pair = both->sides[A].pair;
    assert_int_equal(verbs_queue_pair_space(pair), 32);
    uint32_t sent = 0;
    bool was_full = false;
    struct verbs_work works[8];
    for (uint32_t i = 0; i < 8; i++) {
        works[i] = work(both, VERBS_WRITE, 0, 0, 64, i);
        works[i].signalled = false;
    }
    assert_int_equal(verbs_queue_pair_post(pair, works, 1), WEFT_OK);
    while (sent < 400) {
        uint32_t room = verbs_queue_pair_space(pair), count = 1 + sent % 8;
        enum weft_status status = verbs_queue_pair_post(pair, works, count);
        assert_int_equal(status, room >= count ? WEFT_OK : WEFT_ERR_AGAIN);
        if (status == WEFT_OK) sent += count;
        else was_full = true;
        if (status == WEFT_ERR_AGAIN) pump(both);
    }
    assert_true(was_full);
    struct verbs_work last = work(both, VERBS_WRITE, 0, 0, 64, 999);
    PUMP_UNTIL(both, verbs_queue_pair_space(pair) > 0);
    assert_int_equal(verbs_queue_pair_post(pair, &last, 1), WEFT_OK);
    PUMP_UNTIL(both, both->sides[A].count > 0 && both->sides[A].got[both->sides[A].count - 1].id == 999);
    assert_int_equal(verbs_queue_pair_space(pair), 32);
    assert_true(both->sides[A].rail.counters.signalled <= (sent + 2) / 8 + 1);
    close_both(both);
}

/* More immediates than the shared queue has receives, in bursts: none is lost, the sender waits. */
static void test_receives_refill(void **state)
{
    struct both *both = open_both("receives=64,depth=64");
    uint32_t sent = 0, seen = 0;
    while (seen < 600) {
        while (sent < 600 && verbs_queue_pair_space(both->sides[A].pair) > 0) {
            struct verbs_work one = work(both, VERBS_WRITE_IMMEDIATE, 0, 0, 4, sent);
            one.signalled = false;
            one.immediate = sent++;
            assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
        }
        pump(both);
        for (int i = 0; i < both->sides[B].count; i++)
            assert_int_equal(both->sides[B].got[i].immediate, seen++);
        forget(both);
    }
    close_both(both);
}

static void test_sleep(void **state)
{
    struct both *both = open_both(NULL);
    struct side *b = &both->sides[B];
    for (int round = 0; round < 20; round++) {
        forget(both);
        while (verbs_rail_arm(&b->rail) == WEFT_ERR_AGAIN) pump(both);
        struct pollfd fd = {.fd = verbs_rail_fd(&b->rail), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 0), 0);
        struct verbs_work one = work(both, VERBS_WRITE_IMMEDIATE, 0, 0, 64, 1);
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
        assert_int_equal(poll(&fd, 1, WAIT_S * 1000), 1);
        verbs_rail_woken(&b->rail);
        assert_int_equal(poll(&fd, 1, 0), 0);
        PUMP_UNTIL(both, b->count == 1 && both->sides[A].count == 1);
        /* arm finds completions before it. */
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
        while (both->sides[A].count < 2)
            both->sides[A].count += verbs_rail_poll(&both->sides[A].rail, both->sides[A].got, 1);
        assert_int_equal(verbs_rail_arm(&b->rail), WEFT_ERR_AGAIN);
        PUMP_UNTIL(both, b->count == 2);
    }
    close_both(both);
}

/* ---- breaking ---- */

static void say(const struct verbs_completion *completion, char *text, size_t bytes)
{
    verbs_completion_describe(completion, text, bytes);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "endpoint 8"));
    assert_non_null(strstr(text, completion->queue_pair->rail->port.device));
}

static void rebuild(struct both *both)
{
    for (int i = 0; i < 2; i++) {
        verbs_queue_pair_break(both->sides[i].pair);
        PUMP_UNTIL(both, both->sides[i].pair->state == VERBS_FLUSHED);
    }
    for (int i = 0; i < 2; i++) {
        verbs_queue_pair_destroy(both->sides[i].pair);
        both->sides[i].pair = NULL;
    }
    forget(both);
    connect_both(both);
    struct verbs_work one = work(both, VERBS_WRITE_IMMEDIATE, 0, 0, 4096, 5);
    assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
    PUMP_UNTIL(both, both->sides[A].count == 1 && both->sides[B].count == 1);
    assert_int_equal(both->sides[A].got[0].status, WEFT_OK);
    assert_int_equal(both->sides[B].got[0].status, WEFT_OK);
}

static void test_errors(void **state)
{
    struct both *both = open_both(NULL);
    for (int kind = 0; kind < 3; kind++) {
        struct verbs_work works[3] = {work(both, VERBS_WRITE, 0, 0, 64, 1),
                                      work(both, VERBS_WRITE, 0, 0, 64, 2),
                                      work(both, VERBS_WRITE, 0, 0, 64, 3)};
        if (kind == 0) works[1].rkey ^= 0x5500;
        if (kind == 1) works[1].remote += BYTES - 32; /* beyond its end */
        if (kind == 2) works[1].lkey ^= 0x5500;
        forget(both);
        /* The first may complete; the others end with an error, each once, in order. */
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, works, 3), WEFT_OK);
        PUMP_UNTIL(both, both->sides[A].pair->state == VERBS_FLUSHED);
        assert_int_equal(both->sides[A].count, 3);
        for (int i = 0; i < 3; i++) assert_int_equal(both->sides[A].got[i].id, i + 1);
        assert_int_equal(both->sides[A].got[0].status, WEFT_OK);
        if (kind < 2) assert_int_equal(both->sides[A].got[1].status, WEFT_ERR_PEER_LOST);
        /* devices differ */
        else
            assert_true(both->sides[A].got[1].status < 0 &&
                        both->sides[A].got[1].status != WEFT_ERR_CANCELLED);
        assert_int_equal(both->sides[A].got[2].status, WEFT_ERR_CANCELLED);
        if (kind < 2) assert_true(verbs_may_rebuild(both->sides[A].got[1].cause));
        char text[300];
        say(&both->sides[A].got[1], text, sizeof text);
        assert_int_equal(verbs_queue_pair_space(both->sides[A].pair), 0);
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, works, 1), WEFT_ERR_STATE);
        rebuild(both);
    }
    close_both(both);
}

/* Broken during work, many times: every work request ends exactly once, in order, and the next queue pair
 * starts clean. */
static void test_break_in_flight(void **state)
{
    struct both *both = open_both("depth=64");
    for (int round = 0; round < 20; round++) {
        forget(both);
        struct verbs_work works[40];
        for (uint32_t i = 0; i < 40; i++) works[i] = work(both, VERBS_WRITE, 0, 0, 20000, i);
        assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, works, 40), WEFT_OK);
        for (int i = 0; i < round % 5; i++) pump(both);
        verbs_queue_pair_break(both->sides[round % 2].pair);
        PUMP_UNTIL(both, both->sides[A].pair->state == VERBS_FLUSHED || both->sides[A].count == 40);
        assert_int_equal(both->sides[A].count, 40);
        bool failed = false;
        for (int i = 0; i < 40; i++) {
            assert_int_equal(both->sides[A].got[i].id, i);
            if (failed) assert_int_equal(both->sides[A].got[i].status, WEFT_ERR_CANCELLED);
            failed = failed || both->sides[A].got[i].status != WEFT_OK;
        }
        rebuild(both);
    }
    close_both(both);
}

static void test_peer_vanishes(void **state)
{
    struct both *both = open_both("retries=3,timeout=10");
    verbs_queue_pair_destroy(both->sides[B].pair);
    both->sides[B].pair = NULL;
    struct verbs_work one = work(both, VERBS_WRITE, 0, 0, 64, 1);
    assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, &one, 1), WEFT_OK);
    PUMP_UNTIL(both, both->sides[A].pair->state == VERBS_FLUSHED);
    assert_int_equal(both->sides[A].count, 1);
    assert_int_equal(both->sides[A].got[0].status, WEFT_ERR_PEER_LOST);
    char text[300];
    say(&both->sides[A].got[0], text, sizeof text);
    close_both(both);
}

static void test_many_and_limit(void **state)
{
    struct both *both = open_both("depth=16,receives=64");
    enum { MANY = 64 };
    struct verbs_queue_pair *pairs[2][MANY];
    uint32_t capacity = both->sides[A].rail.queue_capacity;
    for (int k = 0; k < MANY; k++) {
        for (int i = 0; i < 2; i++)
            OK_(verbs_queue_pair_create(&both->sides[i].rail, "endpoint 8", NULL, &pairs[i][k], &why));
        uint8_t blob[VERBS_ADDRESS_BYTES];
        verbs_queue_pair_address(pairs[B][k], blob);
        OK_(verbs_queue_pair_connect(pairs[A][k], blob, sizeof blob, &why));
        verbs_queue_pair_address(pairs[A][k], blob);
        OK_(verbs_queue_pair_connect(pairs[B][k], blob, sizeof blob, &why));
    }
    assert_true(both->sides[A].rail.queue_capacity > capacity); /* it grew */
    for (int k = 0; k < MANY; k++) {
        struct verbs_work one = work(both, VERBS_WRITE_IMMEDIATE, 0, (size_t)k * 64, 64, (uint64_t)k);
        assert_int_equal(verbs_queue_pair_post(pairs[A][k], &one, 1), WEFT_OK);
    }
    PUMP_UNTIL(both, both->sides[A].count == MANY && both->sides[B].count == MANY);
    for (int k = 0; k < MANY; k++) assert_int_equal(both->sides[A].got[k].status, WEFT_OK);
    for (int k = 0; k < MANY; k++) {
        verbs_queue_pair_destroy(pairs[A][k]);
        verbs_queue_pair_destroy(pairs[B][k]);
    }
    close_both(both);

    struct side side = {0}; /* more work requests than its completion queue can hold */
    side_open(&side, names[A], "depth=16000");
    struct verbs_queue_pair *deep[8];
    struct weft_error error = {0};
    int count = 0;
    enum weft_status status = WEFT_OK;
    while (count < 8 && (status = verbs_queue_pair_create(&side.rail, "endpoint 8", NULL, &deep[count],
                                                          &error)) == WEFT_OK)
        count++;
    assert_int_equal(status, WEFT_ERR_LIMIT);
    assert_non_null(strstr(error.text, "depth"));
    print_message("%s\n", error.text);
    while (count > 0) verbs_queue_pair_destroy(deep[--count]);
    side_close(&side);
}

/* ---- memory ---- */

static void get(struct side *side, const void *address, size_t bytes, unsigned access,
                struct verbs_region **out)
{
    OK_(verbs_memory_get(side->memory, address, bytes, access, out, &why));
}

static struct verbs_memory_stats stats_of(const struct side *side)
{
    struct verbs_memory_stats stats;
    verbs_memory_stats(side->memory, &stats);
    return stats;
}

static void *map(void *at, size_t bytes)
{
    void *memory =
        mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void test_cache_hits(void **state)
{
    struct both *both = open_both("cache=1m");
    struct side *a = &both->sides[A];
    struct verbs_region *one, *two;
    char *memory = map(NULL, 1 << 20);
    assert_true(stats_of(a).watching);
    get(a, memory, 65536, VERBS_LOCAL, &one);
    verbs_memory_put(a->memory, one);
    get(a, memory + 100, 1000, VERBS_LOCAL, &two); /* inside it */
    assert_ptr_equal(one, two);
    assert_int_equal(stats_of(a).hits, 1);
    verbs_memory_put(a->memory, two);
    get(a, memory, 65536, VERBS_REMOTE_WRITE, &two); /* more rights: another one */
    assert_ptr_not_equal(one, two);
    assert_int_equal(stats_of(a).misses, 2);
    verbs_memory_put(a->memory, two);
    /* the bound: idle regions are dropped if it does not fit */
    get(a, memory + 65536, 1 << 19, VERBS_LOCAL, &one);
    get(a, memory + 65536 + (1 << 19), 400000, VERBS_LOCAL, &two);
    assert_true(stats_of(a).evictions >= 1);
    assert_true(stats_of(a).cached_bytes <= 1 << 20);
    verbs_memory_put(a->memory, one);
    verbs_memory_put(a->memory, two);
    munmap(memory, 1 << 20);
    close_both(both);
}

/* Other memory at the same address: the bytes of the new mapping arrive. */
static void test_cache_unmaps(void **state)
{
    struct both *both = open_both(NULL);
    struct side *a = &both->sides[A], *b = &both->sides[B];
    char *memory = map(NULL, 1 << 20);
    for (int way = 0; way < 3; way++) {
        for (uint32_t round = 0; round < 4; round++) {
            forget(both);
            memset(memory, (int)(16 * (unsigned)way + round + 1), 65536);
            struct verbs_region *region;
            get(a, memory, 65536, VERBS_LOCAL, &region);
            struct verbs_work one = work(both, VERBS_WRITE, 0, 0, 65536, 1);
            one.local = memory;
            one.lkey = region->lkey[0];
            assert_int_equal(verbs_queue_pair_post(a->pair, &one, 1), WEFT_OK);
            PUMP_UNTIL(both, a->count == 1);
            assert_int_equal(a->got[0].status, WEFT_OK);
            verbs_memory_put(a->memory, region);
            assert_int_equal(b->buffer[0], 16 * (unsigned)way + round + 1);
            assert_int_equal(b->buffer[65535], 16 * (unsigned)way + round + 1);
            uint64_t unmaps = stats_of(a).unmaps;
            if (way == 0) munmap(memory, 1 << 20);
            if (way == 0 || way == 1) map(memory, 1 << 20); /* 1: replaced by a new mapping */
            if (way == 2) madvise(memory, 1 << 20, MADV_DONTNEED);
            assert_int_equal(stats_of(a).unmaps, unmaps + 1);
        }
    }
    assert_int_equal(stats_of(a).hits, 0);
    /* Unmapped during use: the old key stays valid for its user and is not given to others. */
    struct verbs_region *old, *fresh;
    get(a, memory, 65536, VERBS_LOCAL, &old);
    map(memory, 1 << 20);
    get(a, memory, 65536, VERBS_LOCAL, &fresh);
    assert_ptr_not_equal(old, fresh);
    verbs_memory_put(a->memory, old);
    verbs_memory_put(a->memory, fresh);
    verbs_memory_forget(a->memory, memory + 4096, 1); /* reported by its owner */
    assert_int_equal(stats_of(a).region_count, 0);
    munmap(memory, 1 << 20);
    close_both(both);
}

/* Many ranges with frequent remapping: the bytes of the present mapping arrive; and no registration is
 * left. */
static void test_cache_random(void **state)
{
    struct both *both = open_both("cache=2m");
    struct side *a = &both->sides[A], *b = &both->sides[B];
    enum { PLACES = 12, PLACE = 256 << 10 };
    char *memory = map(NULL, (size_t)PLACES * PLACE);
    uint64_t registered = stats_of(a).registered_bytes;
    uint32_t random = 12345;
    for (uint32_t round = 0; round < 300; round++) {
        random = random * 1664525u + 1013904223u;
        char *at = memory + (size_t)(random >> 20) % PLACES * PLACE;
        size_t bytes = 1 + (random >> 8) % (PLACE - 1);
        if (random >> 29 == 0) map(at, PLACE);
        if (random >> 29 == 1) madvise(at, PLACE / 2, MADV_DONTNEED);
        memset(at, (int)(round % 251 + 1), bytes);
        struct verbs_region *region;
        get(a, at, bytes, VERBS_LOCAL | (random & 4 ? VERBS_RELAXED : 0), &region);
        forget(both);
        struct verbs_work one = work(both, VERBS_WRITE, 0, 0, (uint32_t)bytes, 1);
        one.local = at;
        one.lkey = region->lkey[0];
        assert_int_equal(verbs_queue_pair_post(a->pair, &one, 1), WEFT_OK);
        PUMP_UNTIL(both, a->count == 1);
        assert_int_equal(a->got[0].status, WEFT_OK);
        verbs_memory_put(a->memory, region);
        for (size_t i = 0; i<bytes; i += bytes> 64 ? bytes / 64 : 1)
            assert_int_equal(b->buffer[i], round % 251 + 1);
        assert_true(stats_of(a).cached_bytes <= 2 << 20);
    }
    struct verbs_memory_stats stats = stats_of(a);
    print_message("hits %llu, misses %llu, evictions %llu, unmaps %llu\n", (unsigned long long)stats.hits,
                  (unsigned long long)stats.misses, (unsigned long long)stats.evictions,
                  (unsigned long long)stats.unmaps);
    assert_true(stats.hits > 0 && stats.evictions > 0 && stats.unmaps > 0);
    munmap(memory, (size_t)PLACES * PLACE);
    verbs_memory_forget(a->memory, memory, (size_t)PLACES * PLACE);
    assert_int_equal(stats_of(a).registered_bytes, registered);
    close_both(both);
}

static void test_memory_refusals(void **state)
{
    struct both *both = open_both("cache=0");
    struct side *a = &both->sides[A];
    struct verbs_region *region, own;
    struct weft_error error = {0};
    assert_false(stats_of(a).watching);
    get(a, a->buffer, 4096, VERBS_LOCAL, &region); /* without a cache: for this use only */
    assert_int_equal(stats_of(a).region_count, 0);
    verbs_memory_put(a->memory, region);
    assert_int_equal(verbs_memory_get(a->memory, (void *)0x10000, 4096, VERBS_LOCAL, &region, &error),
                     WEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, names[A]));
    error = (struct weft_error){0};
    int file = fileno(tmpfile());
    assert_int_equal(verbs_memory_register_dmabuf(a->memory, file, 0, (void *)0x10000, 4096,
                                                  VERBS_REMOTE_WRITE, &own, &error) < 0,
                     1);
    print_message("%s\n", error.text);
    assert_true(strlen(error.text) > 10);
    close_both(both);
}

/* As an ordinary user with little locked memory: one sentence. In a child process, which drops its
 * privileges once the device is open. */
static int little_memory(void)
{
    struct side side = {0};
    side_open(&side, names[A], NULL);
    struct rlimit limit = {8 << 20, 8 << 20};
    char *memory = map(NULL, 32 << 20);
    memset(memory, 1, 32 << 20);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setresuid(65534, 65534, 65534) != 0) return 2;
    struct verbs_region *region;
    struct weft_error error = {0};
    enum weft_status status = verbs_memory_get(side.memory, memory, 32 << 20, VERBS_LOCAL, &region, &error);
    printf("%s\n", error.text);
    return status == WEFT_ERR_LIMIT && strstr(error.text, "8192 KiB") && strstr(error.text, "memlock") ? 0
                                                                                                       : 1;
}

static void test_memlock(void **state)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        status = little_memory();
        fflush(stdout);
        _exit(status);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- the wire ---- */

static void shell_wire(const char *format)
{
    char command[256];
    snprintf(command, sizeof command, format, wire, wire);
    run_shell(command);
}

/* Packets are lost, delayed, duplicated, reordered and corrupted: all data arrives intact. */
static void test_netem(void **state)
{
    if (!wire) skip();
    static const char *const faults[] = {"loss 3%", "delay 2ms", "delay 1ms reorder 10%", "duplicate 5%",
                                         "corrupt 2%"};
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        char command[256];
        snprintf(command, sizeof command, "tc qdisc replace dev %s root netem %s", wire, faults[f]);
        run_shell(command);
        print_message("%s\n", faults[f]);
        struct both *both = open_both(NULL);
        for (uint32_t round = 0; round < 20; round++) {
            forget(both);
            fill(both->sides[A].buffer, 20000, round);
            struct verbs_work works[2] = {work(both, VERBS_WRITE, 0, 0, 20000, 1),
                                          work(both, VERBS_WRITE_IMMEDIATE, 0, 0, 0, 2)};
            works[0].signalled = false;
            assert_int_equal(verbs_queue_pair_post(both->sides[A].pair, works, 2), WEFT_OK);
            PUMP_UNTIL(both, both->sides[A].count == 1 && both->sides[B].count == 1);
            assert_int_equal(both->sides[A].got[0].status, WEFT_OK);
            assert_memory_equal(both->sides[A].buffer, both->sides[B].buffer, 100000);
        }
        close_both(both);
        shell_wire("tc qdisc del dev %s root");
    }
}

static enum verbs_async_kind next_async(struct side *side, char *text, size_t bytes)
{
    struct verbs_async async;
    for (int i = 0; i < WAIT_S * 100; i++) {
        if (verbs_rail_async(&side->rail, &async)) {
            print_message("%s\n", async.text);
            snprintf(text, bytes, "%s", async.text);
            if (async.kind != VERBS_ASYNC_OTHER && async.kind != VERBS_ASYNC_ADDRESS) return async.kind;
        }
        usleep(10000);
    }
    return 0;
}

static void test_link_cut(void **state)
{
    if (!wire) skip();
    struct both *both = open_both("retries=5,timeout=12");
    struct side *a = &both->sides[A];
    char text[256];
    struct verbs_work works[20];
    for (uint32_t i = 0; i < 20; i++) works[i] = work(both, VERBS_WRITE, 0, 0, 100000, i);
    assert_int_equal(verbs_queue_pair_post(a->pair, works, 20), WEFT_OK);
    shell_wire("ip link set %s down");
    struct pollfd fd = {.fd = verbs_rail_async_fd(&a->rail), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, WAIT_S * 1000), 1);
    assert_int_equal(next_async(a, text, sizeof text), VERBS_ASYNC_PORT_DOWN);
    assert_non_null(strstr(text, names[A]));
    assert_true(a->rail.broken);
    struct verbs_queue_pair *pair;
    struct weft_error error = {0};
    assert_int_equal(verbs_queue_pair_create(&a->rail, "endpoint 8", NULL, &pair, &error),
                     WEFT_ERR_UNREACHABLE);
    PUMP_UNTIL(both, a->pair->state == VERBS_FLUSHED || a->count == 20);
    assert_int_equal(a->count, 20);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(a->got[i].id, i);
    for (uint32_t i = 0; i < 20; i++) {
        if (a->got[i].status == WEFT_ERR_PEER_LOST) say(&a->got[i], text, sizeof text);
    }
    shell_wire("ip link set %s up");
    assert_int_equal(next_async(a, text, sizeof text), VERBS_ASYNC_PORT_UP);
    assert_false(a->rail.broken);
    /* Neighbours and routes of the interface were lost with it. */
    run_shell(getenv("WEFT_TEST_WIRE_REPAIR") ? getenv("WEFT_TEST_WIRE_REPAIR") : "true");
    both->sides[B].rail.broken = false;
    rebuild(both);
    close_both(both);
}

int main(void)
{
    char text[160];
    const char *set = getenv("WEFT_TEST_DEVICES");
    struct verbs_options options;
    struct verbs_port *ports;
    uint32_t count;
    snprintf(text, sizeof text, "%s", set ? set : "rxe0");
    char *second = strchr(text, ' ');
    if (second) *second++ = 0;
    snprintf(names[A], sizeof names[A], "%.60s", text);
    snprintf(names[B], sizeof names[B], "%.60s", second ? second : text);
    wire = getenv("WEFT_TEST_WIRE");
    verbs_options_init(&options);
    if (verbs_ports_list(weft_env_system(), &options, &ports, &count) != WEFT_OK || count == 0) return 77;
    weft_free_bytes(weft_env_system(), ports);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_picks),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_blobs),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_inline_and_read),
        cmocka_unit_test(test_signals_and_space),
        cmocka_unit_test(test_receives_refill),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_break_in_flight),
        cmocka_unit_test(test_peer_vanishes),
        cmocka_unit_test(test_many_and_limit),
        cmocka_unit_test(test_cache_hits),
        cmocka_unit_test(test_cache_unmaps),
        cmocka_unit_test(test_cache_random),
        cmocka_unit_test(test_memory_refusals),
        cmocka_unit_test(test_memlock),
        cmocka_unit_test(test_netem),
        cmocka_unit_test(test_link_cut),
    };
    return cmocka_run_group_tests_name("verbs device", tests, NULL, NULL);
}
