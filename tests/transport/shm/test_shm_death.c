/* test_shm_death.c - a process dies or stops after each of its steps: `test_shm_death METHOD`.
 *
 * Two processes send to each other, put into and get from each other's windows and close them, in a loop.
 * The child kills or stops itself after its n-th effective progress, n = 1, 2, ... The survivor must
 * detect it. Each of its operations must end exactly once, its memory must be free, and no mapping,
 * descriptor or name may be left. Meanwhile it exchanges messages with a bystander. A stopped peer delays
 * only operations that wait for it. */
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/net.h"

enum {
    BIG = 300000,
    SMALL = 3000,
    SURVIVOR_ID = 11,
    BYSTANDER_ID = 12,
    CHILD_ID = 13 /* the larger id: the survivor dials and detects a closed listener */,
    STEPS = 48
};
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

static const struct way {
    const char *name, *tune;
    bool child_memory, survivor_memory; /* from weft_memory_alloc */
} ways[] = {
    {"mapped", NULL, true, true},       {"cma", NULL, false, false},     {"staged", "cma=off", false, false},
    {"granted", "cma=off", false, true}, {"neither", "cma=off,maps=off", false, false},
}, *way;

/* ---- one end of an exchange ---- */

enum { KEY, EAGER, LARGE, NOTE, MESSAGES }; /* tags, one of each per round and direction */

struct end {
    struct weft_transport *transport;
    struct weft_peer *peer;
    uint32_t peer_id;
    unsigned char *in, *out, *window_memory, *got; /* (BIG,) each */
    struct weft_window *window;
    struct weft_remote *remote;
    struct op recv[MESSAGES], send[MESSAGES], put, get, close;
    bool posted[MESSAGES], sent[MESSAGES], put_on, get_on, close_on;
    uint32_t rounds;
    bool over; /* an operation reported that the peer is lost */
};

static unsigned char *memory_take(bool from_transport)
{
    void *memory = calloc(1, BIG);
    if (from_transport) {
        free(memory);
        if (weft_memory_alloc(weft_env_system(), BIG, &memory, NULL) < 0) abort();
    }
    return memory;
}

static void end_init(struct end *end, struct weft_transport *transport, struct weft_peer *peer,
                     uint32_t peer_id, bool from_transport)
{
    *end = (struct end){.transport = transport, .peer = peer, .peer_id = peer_id};
    end->in = memory_take(from_transport);
    end->out = memory_take(from_transport);
    end->window_memory = memory_take(from_transport);
    end->got = memory_take(from_transport);
}

static void end_fini(struct end *end, bool from_transport)
{
    unsigned char *memory[] = {end->in, end->out, end->window_memory, end->got};
    for (size_t i = 0; i < 4; i++) {
        if (from_transport) weft_memory_free(weft_env_system(), memory[i]);
        else free(memory[i]);
    }
}

static void start(struct end *end, bool *on, enum weft_status status)
{
    *on = op_taken(status);
    if (!*on) end->over = true;
}

static void end_start(struct end *end)
{
    struct weft_window_options options = {
        sizeof options, end->window_memory, BIG, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
        end->peer_id};
    const size_t bytes[MESSAGES] = {0, SMALL, BIG, 0};
    const void *key;
    size_t key_bytes;
    if (weft_window_open(end->transport, &options, &end->window, NULL) < 0) abort();
    weft_window_key(end->window, &key, &key_bytes);
    for (int i = 0; i < MESSAGES; i++) {
        start(end, &end->posted[i],
              op_recv(&end->recv[i], end->transport, end->peer_id, TAG(i), end->in, bytes[i]));
        if (i == NOTE) continue;
        struct weft_message message = {TAG(i), i == KEY ? key : NULL, i == KEY ? (uint32_t)key_bytes : 0,
                                       end->out, bytes[i]};
        op_init(&end->send[i]);
        start(end, &end->sent[i], weft_transport_send(end->peer, &message, &end->send[i].completion));
    }
}

/* Handles what has ended; true: the round is complete. */
static bool end_step(struct end *end)
{
    if (end->over) return false;
    if (end->recv[KEY].fired && end->recv[KEY].status == WEFT_OK && !end->remote) {
        struct weft_put put = {end->out, BIG, 0, true, TAG(NOTE), "note", 4};
        if (weft_transport_import(end->peer, end->recv[KEY].receive.header,
                                  end->recv[KEY].receive.header_bytes, &end->remote) < 0) {
            end->over = true;
            return false;
        }
        weft_remote_map(end->remote);
        start(end, &end->put_on, op_put(&end->put, end->remote, &put));
        start(end, &end->get_on, op_get(&end->get, end->remote, 0, end->got, BIG));
    }
    if (end->put_on && end->put.fired && end->get_on && end->get.fired && end->recv[NOTE].fired &&
        end->remote && !end->close_on) {
        weft_remote_release(end->remote);
        end->remote = NULL;
        end->recv[KEY].status = WEFT_ERR_STATE; /* not again */
        op_init(&end->close);
        weft_window_close(end->window, &end->close.completion);
        end->window = NULL;
        end->close_on = true;
    }
    bool all = end->close_on && end->close.fired;
    for (int i = 0; i < MESSAGES && all; i++)
        all = end->recv[i].fired && (!end->sent[i] || end->send[i].fired);
    return all;
}

static void end_next_round(struct end *end)
{
    memset(end->posted, 0, sizeof end->posted);
    memset(end->sent, 0, sizeof end->sent);
    end->put_on = end->get_on = end->close_on = false;
    end->rounds++;
    end_start(end);
}

static bool ended_once(bool on, const struct op *op)
{
    if (on && op->fired > 1) fail_msg("a completion ran %d times", op->fired);
    return !on || op->fired == 1;
}

static bool end_is_quiet(const struct end *end)
{
    bool quiet = ended_once(end->put_on, &end->put) && ended_once(end->get_on, &end->get) &&
                 ended_once(end->close_on, &end->close);
    for (int i = 0; i < MESSAGES; i++)
        quiet = quiet && ended_once(end->posted[i], &end->recv[i]) && ended_once(end->sent[i], &end->send[i]);
    return quiet;
}

/* ---- the processes ---- */

static int failed_count;

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    failed_count++;
    /* the latter before they connected */
    bool fine = status == WEFT_ERR_PEER_LOST || status == WEFT_ERR_UNREACHABLE;
    if (!fine || peer_id != CHILD_ID) fail_msg("peer %u: %s: %s", peer_id, weft_status_name(status), text);
}

static struct weft_transport *endpoint_open(uint32_t id)
{
    struct weft_transport_options options;
    struct weft_transport *transport;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = "shm";
    options.tune = way->tune;
    options.id = id;
    options.nonce = 78;
    if (id == SURVIVOR_ID) options.peer_failed = on_failed;
    if (weft_transport_open(weft_env_system(), &options, &transport, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    return transport;
}

static struct weft_peer *connect_with(struct weft_transport *transport, uint32_t peer_id, int fd)
{
    struct {
        size_t bytes;
        unsigned char blob[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    } mine = {0}, theirs;
    const void *blob;
    struct weft_peer *peer;
    weft_transport_address(transport, &blob, &mine.bytes);
    memcpy(mine.blob, blob, mine.bytes);
    if (send(fd, &mine, sizeof mine, 0) != (ssize_t)sizeof mine) abort();
    if (recv(fd, &theirs, sizeof theirs, MSG_WAITALL) != (ssize_t)sizeof theirs) abort();
    if (weft_transport_connect(transport, peer_id, theirs.blob, theirs.bytes, &peer) < 0) abort();
    return peer;
}

static struct weft_peer *connect_here(struct weft_transport *from, struct weft_transport *to)
{
    const void *blob;
    size_t bytes;
    struct weft_peer *peer = NULL;
    weft_transport_address(to, &blob, &bytes);
    assert_int_equal(weft_transport_connect(from, weft_transport_id(to), blob, bytes, &peer), WEFT_OK);
    return peer;
}

static void child(int fd, int steps, int signal_number)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct weft_transport *transport = endpoint_open(CHILD_ID);
    struct end end;
    end_init(&end, transport, connect_with(transport, SURVIVOR_ID, fd), SURVIVOR_ID, way->child_memory);
    end_start(&end);
    for (int step = 0;;) {
        if (end_step(&end)) end_next_round(&end);
        if (weft_transport_progress(transport, 1) == 0) continue; /* waiting is not a step */
        if (++step == steps) kill(getpid(), signal_number);
        if (end.over) _exit(3);
    }
}

static int count_lines(const char *path, const char *word)
{
    char line[1000];
    int count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) count += strstr(line, word) != NULL;
    fclose(file);
    return count;
}

static int count_entries(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    if (!directory) return 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

struct held { /* resources of the transport in this process */
    int mappings, descriptors, names;
};

static struct held held_now(void)
{
    return (struct held){count_lines("/proc/self/maps", "memfd:weft"), count_entries("/proc/self/fd"),
                         count_entries("/dev/shm")};
}

struct scene {
    struct weft_transport *survivor, *bystander;
    struct end to_child, to_bystander, of_bystander;
};

static void scene_step(struct scene *scene)
{
    struct end *ends[] = {&scene->to_child, &scene->to_bystander, &scene->of_bystander};
    for (size_t i = 0; i < 3; i++) {
        if (ends[i]->peer && end_step(ends[i])) end_next_round(ends[i]);
    }
    weft_transport_progress(scene->survivor, 1);
    weft_transport_progress(scene->bystander, 1);
}

#define SCENE_UNTIL(scene, expression)                                                                   \
    for (uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(60); !(expression);) {                         \
        scene_step(scene);                                                                               \
        if (net_now_ns() > limit_ns_) fail_msg("after %d steps, never true: %s", steps, #expression);    \
    }

static void run_case(int steps, int signal_number)
{
    int fds[2], status;
    struct scene scene = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        child(fds[1], steps, signal_number);
    }
    close(fds[1]);
    failed_count = 0;
    scene.survivor = endpoint_open(SURVIVOR_ID);
    scene.bystander = endpoint_open(BYSTANDER_ID);
    end_init(&scene.to_bystander, scene.survivor, connect_here(scene.survivor, scene.bystander), BYSTANDER_ID,
             way->survivor_memory);
    end_init(&scene.of_bystander, scene.bystander, connect_here(scene.bystander, scene.survivor), SURVIVOR_ID,
             way->survivor_memory);
    end_start(&scene.to_bystander);
    end_start(&scene.of_bystander);
    SCENE_UNTIL(&scene, scene.to_bystander.rounds > 0);
    end_init(&scene.to_child, scene.survivor, NULL, CHILD_ID, way->survivor_memory);
    struct held before = held_now();
    scene.to_child.peer = connect_with(scene.survivor, CHILD_ID, fds[0]);
    end_start(&scene.to_child);

    if (signal_number == SIGSTOP) { /* the others continue, also with windows */
        siginfo_t child = {0};
        while (waitid(P_PID, (id_t)pid, &child, WSTOPPED | WNOHANG | WNOWAIT) == 0 && child.si_pid == 0)
            scene_step(&scene);
        uint32_t rounds = scene.to_bystander.rounds;
        SCENE_UNTIL(&scene, scene.to_bystander.rounds > rounds + 5);
        assert_int_equal(failed_count, 0);
        kill(pid, SIGKILL);
    }
    SCENE_UNTIL(&scene, failed_count > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct end *mine = &scene.to_child;
    mine->over = true;
    if (mine->remote) {
        SCENE_UNTIL(&scene, ended_once(mine->put_on, &mine->put) && ended_once(mine->get_on, &mine->get));
        assert_int_equal(weft_remote_release(mine->remote), WEFT_OK);
    }
    if (mine->window) {
        op_init(&mine->close);
        weft_window_close(mine->window, &mine->close.completion);
        mine->close_on = true;
    }
    SCENE_UNTIL(&scene, end_is_quiet(mine));
    memset(mine->window_memory, 0xEE, BIG); /* the memory is free again */
    memset(mine->in, 0xEE, BIG);
    uint32_t rounds = scene.to_bystander.rounds;
    SCENE_UNTIL(&scene, scene.to_bystander.rounds > rounds);
    for (size_t i = 0; i < BIG; i++) {
        if (mine->window_memory[i] != 0xEE || mine->in[i] != 0xEE)
            fail_msg("byte %zu was written after it was given back", i);
    }
    assert_int_equal(failed_count, 1);
    struct held after = held_now();
    if (memcmp(&before, &after, sizeof before) != 0) {
        fail_msg("%d steps: mappings %d -> %d, descriptors %d -> %d, names %d -> %d", steps, before.mappings,
                 after.mappings, before.descriptors, after.descriptors, before.names, after.names);
    }
    weft_transport_close(scene.survivor);
    weft_transport_close(scene.bystander);
    scene.to_bystander.over = scene.of_bystander.over = true;
    SCENE_UNTIL(&scene, weft_transport_drained(scene.survivor) && weft_transport_drained(scene.bystander));
    weft_transport_free(scene.survivor);
    weft_transport_free(scene.bystander);
    end_fini(&scene.to_child, way->survivor_memory);
    end_fini(&scene.to_bystander, way->survivor_memory);
    end_fini(&scene.of_bystander, way->survivor_memory);
    close(fds[0]);
}

static void test_killed_at_every_step(void **state)
{
    for (int steps = 1; steps <= STEPS; steps++) run_case(steps, SIGKILL);
}

static void test_stopped_at_every_step(void **state)
{
    for (int steps = 1; steps <= STEPS; steps += 3) run_case(steps, SIGSTOP);
}

/* Lost while it is stopped, it may continue at any time; only its end detaches it. */
static void test_given_up_before_its_end(void **state)
{
    int fds[2], status;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        child(fds[1], INT_MAX, 0);
    }
    close(fds[1]);
    failed_count = 0;
    struct weft_transport *survivor = endpoint_open(SURVIVOR_ID);
    struct end end;
    end_init(&end, survivor, NULL, CHILD_ID, way->survivor_memory);
    int descriptors = held_now().descriptors;
    end.peer = connect_with(survivor, CHILD_ID, fds[0]);
    end_start(&end);
    while (end.rounds < 3) {
        if (end_step(&end)) end_next_round(&end);
        weft_transport_progress(survivor, 16);
    }
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    weft_transport_fail_peer(survivor, CHILD_ID, WEFT_ERR_PEER_LOST, "given up");
    end.over = true;
    for (int i = 0; i < 1000; i++) {
        weft_transport_progress(survivor, 16);
        assert_false(weft_peer_is_detached(end.peer));
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (end.remote) weft_remote_release(end.remote);
    for (uint64_t limit_ns = net_now_ns() + WEFT_SECONDS(60); !weft_peer_is_detached(end.peer);) {
        weft_transport_progress(survivor, 16);
        assert_true(net_now_ns() < limit_ns);
    }
    if (end.window) {
        op_init(&end.close);
        weft_window_close(end.window, &end.close.completion);
        end.close_on = true;
    }
    while (!end_is_quiet(&end)) weft_transport_progress(survivor, 16);
    assert_int_equal(held_now().descriptors, descriptors);
    weft_transport_close(survivor);
    while (!weft_transport_drained(survivor)) weft_transport_progress(survivor, 16);
    weft_transport_free(survivor);
    end_fini(&end, way->survivor_memory);
    close(fds[0]);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "mapped";
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, name) == 0) way = &ways[i];
    }
    if (!way) return 2;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_every_step),
        cmocka_unit_test(test_stopped_at_every_step),
        cmocka_unit_test(test_given_up_before_its_end),
    };
    return cmocka_run_group_tests_name(way->name, tests, NULL, NULL);
}
