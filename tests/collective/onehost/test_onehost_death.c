/* test_onehost_death.c - the one-host path between processes, one killed or stopped at a random moment: the
 * other ranks end with a status that names it, and nothing stores into their buffers afterwards. */
#include "collective/collective.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/collective/onehost/fork_connect.h"
#include "tests/lib/check.h"

enum { RANKS = 3, FIRST_ID = 200, LONG_ELEMS = 1 << 20, PATIENCE_MS = 20000 };

/* Shared by parent and children. */
struct board {
    uint32_t deadline_ms;
    _Atomic uint32_t running, release;
    struct fork_connect fork_connect;
    struct {
        _Atomic int ended;
        int status;
        _Atomic int touched; /* its buffer changed after the end */
        _Atomic uint64_t operations;
        char text[480];
    } ranks[RANKS];
};
static struct board *board;

struct rank {
    uint32_t rank;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_group *group;
    bool done;
    enum weft_status status;
    char text[480];
};

static void connect_all(struct rank *me)
{
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = "shm";
    options.id = FIRST_ID + me->rank;
    options.nonce = 0x7000 + (uint64_t)getppid();
    fork_connect_must(weft_loop_create(weft_env_system(), NULL, &me->loop) == WEFT_OK, "loop");
    fork_connect_must(weft_transport_open(weft_env_system(), &options, &me->transport, NULL) == WEFT_OK,
                      "open");
    fork_connect_must(weft_transport_attach(me->transport, me->loop) == WEFT_OK, "attach");
    uint32_t ids[RANKS];
    const char *failed =
        fork_connect_all(&board->fork_connect, me->transport, me->rank, RANKS, FIRST_ID, ids);
    fork_connect_must(!failed, failed);
    struct weft_group_options group;
    weft_group_options_init(&group);
    group.transport = me->transport;
    group.loop = me->loop;
    group.rank = me->rank;
    group.ranks = RANKS;
    group.endpoint_ids = ids;
    group.group_id = 9;
    fork_connect_must(weft_group_create(weft_env_system(), &group, &me->group, NULL) == WEFT_OK, "group");
}

static void on_done(void *context, enum weft_status status, const char *text)
{
    struct rank *me = context;
    me->done = true;
    me->status = status;
    snprintf(me->text, sizeof me->text, "%s", text);
}

static void all_reduce(struct rank *me, float *buffer, uint64_t count)
{
    struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                  .in = buffer,
                                  .out = buffer,
                                  .count = count,
                                  .dtype = WEFT_F32,
                                  .op = WEFT_AVG,
                                  .deadline_ns = atomic_load(&board->running) < RANKS
                                                     ? WEFT_MS((uint64_t)PATIENCE_MS)
                                                     : WEFT_MS((uint64_t)board->deadline_ms)};
    struct weft_error error = {0};
    me->done = false;
    enum weft_status status = weft_coll_post(me->group, &args, on_done, me, NULL, &error);
    if (status != WEFT_IN_PROGRESS) on_done(me, status, error.text);
    fork_connect_must(weft_loop_wait(me->loop, &me->done,
                                     weft_now_ns(weft_env_system()) + WEFT_MS((uint64_t)PATIENCE_MS)) ==
                          WEFT_OK,
                      "an operation hangs");
}

static void child(uint32_t rank, bool lengthy)
{
    static struct rank me;
    void *memory;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    me.rank = rank;
    connect_all(&me);
    fork_connect_must(
        weft_memory_alloc(weft_env_system(), LONG_ELEMS * sizeof(float), &memory, NULL) == WEFT_OK, "memory");
    float *buffer = memory;
    do {
        all_reduce(&me, buffer, lengthy ? LONG_ELEMS : 100);
        if (atomic_fetch_add(&board->ranks[rank].operations, 1) == 2) atomic_fetch_add(&board->running, 1);
    } while (me.status == WEFT_OK);
    for (size_t i = 0; i < LONG_ELEMS; i++) buffer[i] = (float)(rank + 1);
    board->ranks[rank].status = me.status;
    snprintf(board->ranks[rank].text, sizeof board->ranks[rank].text, "%s", me.text);
    atomic_store(&board->ranks[rank].ended, 1);
    while (!atomic_load(&board->release)) {
        /* peers may still need messages; also detects late stores */
        weft_loop_step(me.loop);
        usleep(200);
    }
    for (size_t i = 0; i < LONG_ELEMS; i++)
        if (buffer[i] != (float)(rank + 1)) atomic_store(&board->ranks[rank].touched, 1);
    _exit(0);
}

static bool ended(uint32_t except)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != except && !atomic_load(&board->ranks[r].ended)) return false;
    return true;
}

static bool wait_ended(uint32_t except, int ms)
{
    for (int i = 0; i < ms && !ended(except); i++) usleep(1000);
    return ended(except);
}

static void one_round(unsigned seed, int signal_number, bool lengthy)
{
    pid_t pids[RANKS];
    uint32_t victim = seed % RANKS;
    char name[16];
    snprintf(name, sizeof name, "rank %u", victim);
    memset(board, 0, sizeof *board);
    board->deadline_ms = signal_number == SIGSTOP ? 1000 : PATIENCE_MS;
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) child(r, lengthy);
    }
    int tries = 0;
    while (atomic_load(&board->running) < RANKS && tries++ < PATIENCE_MS) usleep(1000);
    assert_int_equal(atomic_load(&board->running), RANKS);
    usleep(seed * 7919 % 5000);
    kill(pids[victim], signal_number);
    /* A rank stopped inside a store holds its peers' buffers until it continues. */
    bool held = !wait_ended(victim, signal_number == SIGSTOP ? 5000 : PATIENCE_MS);
    if (signal_number == SIGSTOP) kill(pids[victim], SIGCONT);
    if (held && signal_number != SIGSTOP)
        fail_msg("seed %u: a rank hangs after the death of %s", seed, name);
    assert_true(wait_ended(signal_number == SIGSTOP ? RANKS : victim, PATIENCE_MS));
    usleep(20000);
    atomic_store(&board->release, 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (r == victim && signal_number == SIGKILL) continue;
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        enum weft_status expected = signal_number == SIGKILL ? WEFT_ERR_PEER_LOST : WEFT_ERR_DEADLINE;
        if (board->ranks[r].status != expected || !strstr(board->ranks[r].text, name))
            fail_msg("seed %u: rank %u: %s, and the culprit is %s", seed, r, board->ranks[r].text, name);
        if (atomic_load(&board->ranks[r].touched))
            fail_msg("seed %u: rank %u: its buffer was written after the end", seed, r);
    }
}

static unsigned rounds = 1;

static void killed(void **state)
{
    for (unsigned seed = 0; seed < 2 * rounds; seed++) one_round(seed, SIGKILL, seed % 2 == 0);
}

static void stopped(void **state)
{
    for (unsigned seed = 0; seed < rounds; seed++) one_round(seed, SIGSTOP, seed % 2 == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = (unsigned)atoi(argv[1]);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
