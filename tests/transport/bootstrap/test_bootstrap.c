/* test_bootstrap.c - honest endpoints over real sockets: parameters, descriptors, messages, ends, limits. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/fail_env.h"
#include "tests/transport/bootstrap/bootstrap_fixture.h"

static enum bootstrap_family family; /* of this run */
static int descriptors_before;

static int remember(void **state)
{
    descriptors_before = open_descriptor_count();
    return 0;
}

static int nothing_left_open(void **state)
{
    assert_int_equal(open_descriptor_count(), descriptors_before);
    return 0;
}

static void open_two(struct place *a, struct place *b, const char *secret)
{
    struct bootstrap_options options;
    place_options(&options, family, 1, secret);
    place_open(a, &options);
    place_options(&options, family, 2, secret);
    place_open(b, &options);
}

static void connect_two(struct place *a, struct place *b, struct fixture_peer *of_a,
                        struct fixture_peer *of_b)
{
    open_two(a, b, "secret");
    assert_int_equal(place_connect(a, of_a, b, "pa", 2, NULL, 0), WEFT_OK);
    assert_int_equal(place_connect(b, of_b, a, "pbb", 3, NULL, 0), WEFT_OK);
    STEP_UNTIL(((struct place *const[]){a, b}), 2, of_a->connected && of_b->connected);
}

static void either_asks_first(void **state)
{
    static uint8_t most[BOOTSTRAP_PARAMETER_BYTES_MAX];
    memset(most, 9, sizeof most);
    for (int order = 0; order < 4; order++) {
        struct place a, b, *const both[] = {&a, &b};
        struct fixture_peer of_a = {0}, of_b = {0};
        open_two(&a, &b, order % 2 ? "secret" : NULL);
        if (order < 2) assert_int_equal(place_connect(&a, &of_a, &b, most, sizeof most, NULL, 0), WEFT_OK);
        else assert_int_equal(place_connect(&b, &of_b, &a, NULL, 0, NULL, 0), WEFT_OK);
        for (int i = 0; i < 20; i++) place_step(both, 2);
        struct bootstrap_stats stats;
        bootstrap_stats(b.bootstrap, &stats);
        assert_int_equal(stats.early, order < 2 ? 1 : 0); /* proven, and kept until bootstrap_connect */
        assert_int_equal(stats.half_open, 0);
        if (order < 2) assert_int_equal(place_connect(&b, &of_b, &a, NULL, 0, NULL, 0), WEFT_OK);
        else assert_int_equal(place_connect(&a, &of_a, &b, most, sizeof most, NULL, 0), WEFT_OK);
        STEP_UNTIL(both, 2, of_a.connected && of_b.connected);
        assert_int_equal(of_a.parameter_bytes, 0);
        assert_int_equal(of_b.parameter_bytes, sizeof most);
        assert_memory_equal(of_b.parameters, most, sizeof most);
        bootstrap_stats(b.bootstrap, &stats);
        assert_int_equal(stats.early, 0);
        assert_int_equal(stats.refused_count, 0);
        place_close(&a);
        place_close(&b);
    }
}

static void messages(void **state)
{
    static uint8_t most[BOOTSTRAP_MESSAGE_BYTES_MAX];
    struct place a, b, *const both[] = {&a, &b};
    struct fixture_peer of_a = {0}, of_b = {0};
    connect_two(&a, &b, &of_a, &of_b);
    int sent = 0;
    for (;; sent++) { /* until the queue is full; the peer does not read */
        memset(most, sent, sizeof most);
        enum weft_status status = bootstrap_send(of_a.peer, most, sizeof most - (size_t)sent % 7, NULL, 0);
        if (status == WEFT_ERR_AGAIN) break;
        assert_int_equal(status, WEFT_OK);
        assert_true(sent < 10000);
    }
    assert_false(bootstrap_is_flushed(of_a.peer));
    STEP_UNTIL(both, 2, of_b.messages == sent);
    assert_true(bootstrap_is_flushed(of_a.peer));
    assert_int_equal(of_b.message_bytes, sizeof most - (size_t)(sent - 1) % 7);
    assert_int_equal(of_b.message[100], (uint8_t)(sent - 1));
    assert_int_equal(bootstrap_send(of_b.peer, NULL, 0, NULL, 0), WEFT_OK);
    STEP_UNTIL(both, 2, of_a.messages == 1);
    assert_int_equal(of_a.message_bytes, 0);
    assert_int_equal(bootstrap_send(of_b.peer, most, sizeof most + 1, NULL, 0), WEFT_ERR_INVALID);
    place_close(&a);
    place_close(&b);
}

/* Descriptors travel with parameters and messages; those not taken are closed (checked by
 * nothing_left_open). */
static void descriptors(void **state)
{
    struct place a, b, *const both[] = {&a, &b};
    struct fixture_peer of_a = {0}, of_b = {0};
    open_two(&a, &b, "secret");
    int file = memfd_create("test", MFD_CLOEXEC), files[BOOTSTRAP_DESCRIPTORS_MAX];
    assert_int_equal(write(file, "in the file", 11), 11);
    for (uint32_t i = 0; i < BOOTSTRAP_DESCRIPTORS_MAX; i++) files[i] = file;
    if (family == BOOTSTRAP_TCP) {
        assert_int_equal(place_connect(&a, &of_a, &b, "p", 1, &file, 1), WEFT_ERR_INVALID);
    } else {
        static const uint8_t filler[BOOTSTRAP_MESSAGE_BYTES_MAX];
        assert_int_equal(place_connect(&a, &of_a, &b, "p", 1, files, BOOTSTRAP_DESCRIPTORS_MAX), WEFT_OK);
        assert_int_equal(place_connect(&b, &of_b, &a, "p", 1, files, 2), WEFT_OK);
        STEP_UNTIL(both, 2, of_a.connected && of_b.connected);
        assert_int_equal(of_b.descriptor_count, BOOTSTRAP_DESCRIPTORS_MAX);
        assert_int_equal(of_a.descriptor_count, 2);
        char text[12] = "";
        assert_int_equal(pread(of_b.descriptors[7], text, 11, 0), 11);
        assert_string_equal(text, "in the file");
        /* mixed with messages without descriptors, so that reads cut anywhere */
        for (int i = 0; i < 30; i++) {
            assert_int_equal(bootstrap_send(of_a.peer, filler, (size_t)i * 100, NULL, 0), WEFT_OK);
            assert_int_equal(bootstrap_send(of_a.peer, "m", 1, files, (uint32_t)i % 9), WEFT_OK);
            STEP_UNTIL(both, 2, of_b.messages == 2 * i + 2);
            assert_int_equal(of_b.descriptor_count, i % 9);
        }
        int invalid = 19999;
        assert_int_equal(bootstrap_send(of_a.peer, "m", 1, &invalid, 1), WEFT_ERR_INVALID);
        assert_int_equal(bootstrap_peer_pid(of_a.peer), getpid());
        for (uint32_t i = 0; i < of_b.descriptor_count; i++) close(of_b.descriptors[i]);
        for (uint32_t i = 0; i < of_a.descriptor_count; i++) close(of_a.descriptors[i]);
    }
    close(file);
    place_close(&a);
    place_close(&b);
}

/* Messages sent before the close are delivered, then the end. */
static void closing_is_noticed(void **state)
{
    struct place a, b, *const both[] = {&a, &b};
    struct fixture_peer of_a = {0}, of_b = {0};
    connect_two(&a, &b, &of_a, &of_b);
    assert_int_equal(bootstrap_send(of_a.peer, "bye", 3, NULL, 0), WEFT_OK);
    place_close(&a);
    STEP_UNTIL(both, 2, of_b.disconnected);
    assert_int_equal(of_b.messages, 1);
    assert_int_equal(of_b.status, WEFT_ERR_PEER_LOST);
    place_close(&b);
}

static void forgetting_inside_callbacks(void **state)
{
    struct place a, b, *const both[] = {&a, &b};
    struct fixture_peer of_a = {.forget_in_connected = true}, of_b = {0};
    open_two(&a, &b, "secret");
    place_connect(&a, &of_a, &b, "p", 1, NULL, 0);
    place_connect(&b, &of_b, &a, "p", 1, NULL, 0);
    STEP_UNTIL(both, 2, of_a.connected && of_b.disconnected);
    assert_int_equal(of_a.disconnected, 0);
    place_close(&a);
    place_close(&b);
}

static void wrong_calls(void **state)
{
    struct place a, b;
    struct fixture_peer of_a = {0}, other = {0};
    open_two(&a, &b, "secret");
    struct bootstrap_peer *peer;
    size_t bytes;
    const void *address = bootstrap_address(b.bootstrap, &bytes);
    static const uint8_t much[BOOTSTRAP_PARAMETER_BYTES_MAX + 1];
    assert_int_equal(bootstrap_connect(a.bootstrap, 1, address, bytes, NULL, 0, NULL, 0, &other, &peer),
                     WEFT_ERR_INVALID);
    assert_int_equal(bootstrap_connect(a.bootstrap, 3, address, bytes, NULL, 0, NULL, 0, &other, &peer),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(
        bootstrap_connect(a.bootstrap, 2, address, bytes, much, sizeof much, NULL, 0, &other, &peer),
        WEFT_ERR_INVALID);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(bootstrap_connect(a.bootstrap, 2, address, cut, NULL, 0, NULL, 0, &other, &peer),
                         WEFT_ERR_MALFORMED);
    uint8_t changed[BOOTSTRAP_ADDRESS_BYTES_MAX];
    memcpy(changed, address, bytes);
    changed[1] = (uint8_t)(family == BOOTSTRAP_UNIX ? 4 : 1);
    assert_int_equal(bootstrap_connect(a.bootstrap, 2, changed, bytes, NULL, 0, NULL, 0, &other, &peer),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(place_connect(&a, &of_a, &b, NULL, 0, NULL, 0), WEFT_OK);
    assert_int_equal(place_connect(&a, &other, &b, NULL, 0, NULL, 0), WEFT_ERR_EXISTS);
    assert_int_equal(bootstrap_send(of_a.peer, "m", 1, NULL, 0), WEFT_ERR_STATE);
    place_close(&a);
    place_close(&b);
}

static void two_secrets(void **state)
{
    static const struct {
        const char *a, *b;
        enum weft_status status;
    } rows[] = {
        {"one", "two", WEFT_ERR_AUTH}, {"one", NULL, WEFT_ERR_VERSION}, {NULL, "two", WEFT_ERR_VERSION}};
    for (size_t i = 0; i < 3; i++) {
        struct place a, b, *const both[] = {&a, &b};
        struct fixture_peer of_a = {0}, of_b = {0};
        struct bootstrap_options options;
        struct bootstrap_stats stats;
        place_options(&options, family, 1, rows[i].a);
        place_open(&a, &options);
        place_options(&options, family, 2, rows[i].b);
        options.connect_timeout_ns = WEFT_MS(300);
        place_open(&b, &options);
        place_connect(&a, &of_a, &b, NULL, 0, NULL, 0);
        place_connect(&b, &of_b, &a, NULL, 0, NULL, 0);
        STEP_UNTIL(both, 2, of_a.disconnected && of_b.disconnected);
        assert_int_equal(of_a.status, rows[i].status);
        assert_int_equal(of_b.status, WEFT_ERR_UNREACHABLE); /* no authenticated peer connected */
        assert_int_equal(of_a.connected + of_b.connected, 0);
        bootstrap_stats(b.bootstrap, &stats);
        assert_int_equal(
            stats.refused[rows[i].status == WEFT_ERR_AUTH ? BOOTSTRAP_WRONG_SECRET : BOOTSTRAP_VERSION], 1);
        assert_int_equal(stats.half_open, 0);
        place_close(&a);
        place_close(&b);
    }
}

static void no_listener(void **state)
{
    struct place a, b, *const one[] = {&a};
    struct fixture_peer of_a = {0};
    open_two(&a, &b, "secret");
    place_connect(&a, &of_a, &b, NULL, 0, NULL, 0); /* while it listens: the address is real */
    bootstrap_forget(of_a.peer);
    size_t bytes;
    uint8_t address[BOOTSTRAP_ADDRESS_BYTES_MAX];
    memcpy(address, bootstrap_address(b.bootstrap, &bytes), BOOTSTRAP_ADDRESS_BYTES_MAX);
    bootstrap_address(b.bootstrap, &bytes);
    place_close(&b);
    assert_int_equal(bootstrap_connect(a.bootstrap, 2, address, bytes, NULL, 0, NULL, 0, &of_a, &of_a.peer),
                     WEFT_OK);
    assert_int_equal(of_a.disconnected, 0); /* never inside the call */
    STEP_UNTIL(one, 1, of_a.disconnected);
    assert_int_equal(of_a.status, WEFT_ERR_UNREACHABLE);
    assert_non_null(strstr(of_a.text, "no process listens"));
    place_close(&a);
}

/* Crash: the process is killed while a child holds copies of its sockets. */
static void a_killed_process_is_noticed(void **state)
{
    struct place a, b, *const one[] = {&b};
    struct fixture_peer of_b = {0};
    struct bootstrap_options options;
    int blob[2], report[2];
    assert_int_equal(pipe(blob), 0);
    assert_int_equal(pipe(report), 0);
    pid_t child = fork();
    if (child == 0) {
        struct fixture_peer of_a = {0};
        place_options(&options, family, 1, "secret");
        if (family == BOOTSTRAP_TCP) options.bind_host = "127.0.0.1";
        place_open(&a, &options);
        size_t bytes;
        const void *address = bootstrap_address(a.bootstrap, &bytes);
        if (write(report[1], address, bytes) != (ssize_t)bytes) _exit(1);
        uint8_t theirs[BOOTSTRAP_ADDRESS_BYTES_MAX];
        ssize_t got = read(blob[0], theirs, sizeof theirs);
        of_a = (struct fixture_peer){.place = &a, .id = 2};
        if (bootstrap_connect(a.bootstrap, 2, theirs, (size_t)got, NULL, 0, NULL, 0, &of_a, &of_a.peer) !=
            WEFT_OK)
            _exit(2);
        struct place *const mine[] = {&a};
        STEP_UNTIL(mine, 1, of_a.connected);
        pid_t grandchild = family == BOOTSTRAP_UNIX ? fork() : 1;
        if (grandchild == 0) { /* holds every descriptor until the end of the test */
            uint8_t byte;
            close(blob[1]);
            _exit(read(blob[0], &byte, 1) == 0 ? 0 : 1);
        }
        if (write(report[1], "met", 3) != 3) _exit(3);
        for (;;) pause();
    }
    place_options(&options, family, 2, "secret");
    place_open(&b, &options);
    uint8_t theirs[BOOTSTRAP_ADDRESS_BYTES_MAX], connected[3];
    size_t bytes;
    const void *address = bootstrap_address(b.bootstrap, &bytes);
    ssize_t got = read(report[0], theirs, sizeof theirs);
    assert_true(got > 0);
    of_b = (struct fixture_peer){.place = &b, .id = 1};
    assert_int_equal(
        bootstrap_connect(b.bootstrap, 1, theirs, (size_t)got, NULL, 0, NULL, 0, &of_b, &of_b.peer), WEFT_OK);
    assert_int_equal(write(blob[1], address, bytes), bytes);
    STEP_UNTIL(one, 1, of_b.connected);
    assert_int_equal(bootstrap_peer_pid(of_b.peer), family == BOOTSTRAP_UNIX ? child : 0);
    assert_int_equal(read(report[0], connected, 3), 3);
    kill(child, SIGKILL);
    STEP_UNTIL(one, 1, of_b.disconnected);
    assert_int_equal(of_b.status, WEFT_ERR_PEER_LOST);
    waitpid(child, NULL, 0);
    close(blob[0]), close(blob[1]), close(report[0]), close(report[1]);
    place_close(&b);
}

/* A thousand endpoints dial one at once, or as many as descriptors allow; all connect, although fewer
 * unproven connections are allowed. */
static void a_thousand_at_once(void **state)
{
    enum { MANY = 1000, DESCRIPTORS_EACH = 6 };
    static struct place places[MANY + 1], *all[MANY + 1];
    static struct fixture_peer of_one[MANY], of_many[MANY];
    struct bootstrap_options options;
    struct rlimit limit;
    int many = MANY;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < MANY * DESCRIPTORS_EACH + 100)
        many = (int)(limit.rlim_cur - 100) / DESCRIPTORS_EACH;
    for (int i = 0; i <= many; i++) {
        place_options(&options, family, (uint32_t)i + 1, "secret");
        place_open(&places[i], &options);
        all[i] = &places[i];
    }
    for (int i = 0; i < many; i++) {
        assert_int_equal(place_connect(&places[i], &of_many[i], &places[many], "me", 2, NULL, 0), WEFT_OK);
        if (i % 2)
            assert_int_equal(place_connect(&places[many], &of_one[i], &places[i], "you", 3, NULL, 0),
                             WEFT_OK);
    }
    for (int i = 0; i < 3; i++) place_step(all, many + 1);
    for (int i = 0; i < many; i += 2)
        assert_int_equal(place_connect(&places[many], &of_one[i], &places[i], "you", 3, NULL, 0), WEFT_OK);
    for (int i = 0; i < many; i++) STEP_UNTIL(all, many + 1, of_one[i].connected && of_many[i].connected);
    struct bootstrap_stats stats;
    bootstrap_stats(places[many].bootstrap, &stats);
    assert_int_equal(stats.connected_count, many);
    assert_int_equal(stats.peers, many);
    assert_int_equal(stats.half_open + stats.early, 0);
    for (int i = 0; i <= many; i++) place_close(&places[i]);
}

static void port_range(void **state)
{
    struct bootstrap_options options;
    struct bootstrap *first = NULL, *meets[3] = {NULL};
    struct weft_error error = {0};
    place_options(&options, BOOTSTRAP_TCP, 1, NULL);
    assert_int_equal(bootstrap_open(weft_env_system(), &options, &first, NULL), WEFT_OK);
    size_t bytes;
    const uint8_t *address = bootstrap_address(first, &bytes);
    uint16_t port = (uint16_t)(address[2] | address[3] << 8);
    options.port_first = port; /* in use */
    options.port_last = port;
    assert_int_equal(bootstrap_open(weft_env_system(), &options, &meets[0], &error), WEFT_ERR_EXISTS);
    assert_true(error.text[0] != 0);
    options.port_last = port < 65000 ? (uint16_t)(port + 400) : port;
    enum weft_status status = bootstrap_open(weft_env_system(), &options, &meets[0], NULL);
    if (port < 65000) {
        assert_int_equal(status, WEFT_OK);
        address = bootstrap_address(meets[0], &bytes);
        uint16_t other = (uint16_t)(address[2] | address[3] << 8);
        assert_true(other > port && other <= port + 400);
    }
    bootstrap_close(meets[0]);
    bootstrap_close(first);
}

static void bad_options(void **state)
{
    static const struct {
        const char *host, *advertise, *secret;
        enum weft_status status;
    } rows[] = {{"host.example", NULL, "s", WEFT_ERR_INVALID}, {"0.0.0.0", NULL, "s", WEFT_ERR_INVALID},
                {"0.0.0.0", "127.0.0.1", "s", WEFT_OK},        {"0.0.0.0", "127.0.0.1", NULL, WEFT_ERR_AUTH},
                {"192.0.2.77", NULL, "s", WEFT_ERR_NOT_FOUND}, {"192.0.2.77", NULL, NULL, WEFT_ERR_AUTH},
                {"::", NULL, "s", WEFT_ERR_INVALID},           {"127.0.0.2", NULL, NULL, WEFT_OK}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct bootstrap_options options;
        struct weft_error error = {0};
        struct bootstrap *bootstrap = NULL;
        place_options(&options, BOOTSTRAP_TCP, 1, rows[i].secret);
        options.bind_host = rows[i].host;
        options.advertise = rows[i].advertise;
        enum weft_status status = bootstrap_open(weft_env_system(), &options, &bootstrap, &error);
        if (status != rows[i].status)
            fail_msg("%s: %s (%s)", rows[i].host, weft_status_name(status), error.text);
        assert_int_equal(status < 0, error.text[0] != 0);
        bootstrap_close(bootstrap);
    }
}

static enum weft_status connect_and_exchange(struct weft_env *env, void *context)
{
    struct bootstrap_options options;
    struct place a = {0}, b = {0}, *const both[] = {&a, &b};
    struct fixture_peer of_a = {0}, of_b = {0};
    place_options(&options, family, 1, "secret");
    a.id = 1, b.id = 2;
    options.connect_timeout_ns = WEFT_MS(500);
    enum weft_status status = bootstrap_open(env, &options, &a.bootstrap, NULL);
    options.id = 2;
    if (status >= 0) status = bootstrap_open(env, &options, &b.bootstrap, NULL);
    if (status >= 0) status = place_connect(&a, &of_a, &b, "p", 1, NULL, 0);
    for (int i = 0; status >= 0 && i < 5; i++) place_step(both, 2);
    if (status >= 0) status = place_connect(&b, &of_b, &a, "p", 1, NULL, 0);
    while (status >= 0 && !(of_a.connected && of_b.connected) && !of_a.disconnected && !of_b.disconnected)
        place_step(both, 2);
    if (of_a.connected && of_b.connected && !of_a.disconnected && !of_b.disconnected)
        status = bootstrap_send(of_a.peer, "m", 1, NULL, 0);
    while (status >= 0 && of_b.messages == 0 && !of_a.disconnected && !of_b.disconnected) place_step(both, 2);
    bootstrap_close(a.bootstrap);
    bootstrap_close(b.bootstrap);
    /* Out of memory on one side may look like a lost or absent peer on the other. */
    if (status >= 0 && (of_a.disconnected || of_b.disconnected)) status = WEFT_ERR_NO_MEMORY;
    return status;
}

/* A connection refused for lack of memory is dialled again and succeeds. */
static enum weft_status tolerant(struct weft_env *env, void *context)
{
    enum weft_status status = connect_and_exchange(env, context);
    struct fail_env *fail = weft_container_of(env, struct fail_env, env);
    return status == WEFT_OK && fail->failed ? WEFT_ERR_NO_MEMORY : status;
}

static void every_allocation_fails_once(void **state)
{
    check_failing_allocations(tolerant, NULL);
}

/* Without descriptors the bootstrap waits until some are free, and nothing breaks. */
static void out_of_descriptors(void **state)
{
    struct place a, b, *const both[] = {&a, &b};
    struct fixture_peer of_a = {0}, of_b = {0};
    struct rlimit before, tight;
    open_two(&a, &b, "secret");
    getrlimit(RLIMIT_NOFILE, &before);
    tight = before;
    tight.rlim_cur = (rlim_t)dup(0); /* the next descriptor exceeds the limit: none for a dialler */
    close((int)tight.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &tight);
    place_connect(&a, &of_a, &b, "p", 1, NULL, 0);
    place_connect(&b, &of_b, &a, "p", 1, NULL, 0);
    for (int i = 0; i < 20; i++) place_step(both, 2);
    tight.rlim_cur += 1; /* one for the dialler, none for the listener */
    setrlimit(RLIMIT_NOFILE, &tight);
    for (int i = 0; i < 20; i++) place_step(both, 2);
    assert_int_equal(of_a.connected + of_b.connected + of_a.disconnected + of_b.disconnected, 0);
    setrlimit(RLIMIT_NOFILE, &before);
    STEP_UNTIL(both, 2, of_a.connected && of_b.connected);
    place_close(&a);
    place_close(&b);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(either_asks_first, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(messages, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(descriptors, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(closing_is_noticed, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(forgetting_inside_callbacks, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(wrong_calls, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(two_secrets, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(no_listener, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(a_killed_process_is_noticed, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(a_thousand_at_once, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(port_range, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(bad_options, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(every_allocation_fails_once, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(out_of_descriptors, remember, nothing_left_open),
    };
    family = argc > 1 && strcmp(argv[1], "tcp") == 0 ? BOOTSTRAP_TCP : BOOTSTRAP_UNIX;
    return cmocka_run_group_tests_name(family == BOOTSTRAP_TCP ? "meet tcp" : "meet unix", tests, NULL, NULL);
}
