/* test_copyin_death.c - a process is killed or stopped after its copy-in (collective/onehost/copyin.c) and
 * before the others read it: they get all of it or end with an error that names it, and keep no mapping of
 * it. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/onehost/onehost.h"
#include "tests/collective/onehost/fork_connect.h"
#include "tests/lib/check.h"

enum { RANKS_MAX = 3, FIRST_ID = 300, BUFFER_BYTES = 4 << 20, PATIENCE_MS = 20000, LATE_MS = 300 };

/* Shared by parent and children. */
struct board {
    struct fork_connect fork_connect;
    _Atomic uint32_t published, fallen, read, released, freed;
    struct {
        int status; /* of the operation that the victim published, and of the next one */
        int next_status;
        char text[480];
        double waited_s; /* in the next one */
        _Atomic int wrong;
        int views; /* mappings of peers' memory, at the end */
    } ranks[RANKS_MAX];
};
static struct board *board;

struct round {
    enum weft_coll_kind kind;
    uint32_t ranks, root, victim;
    int signal_number;
    bool is_oversubscribed;
};

struct rank {
    uint32_t rank;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_group *group;
    uint8_t *memory;
    bool done;
    enum weft_status status;
    char text[480];
};

static void await(const _Atomic uint32_t *word, uint32_t least)
{
    for (int ms = 0; atomic_load(word) < least; ms++) {
        fork_connect_must(ms < PATIENCE_MS, "another process does not arrive");
        usleep(1000);
    }
}

static void make_group(struct rank *me, uint32_t rank, uint32_t ranks, const uint32_t *ids, uint32_t group_id)
{
    struct weft_group_options group;
    weft_group_options_init(&group);
    group.transport = me->transport;
    group.loop = me->loop;
    group.rank = rank;
    group.ranks = ranks;
    group.endpoint_ids = ids;
    group.group_id = group_id;
    fork_connect_must(weft_group_create(weft_env_system(), &group, &me->group, NULL) == WEFT_OK, "group");
}

static void connect_all(struct rank *me, const struct round *round)
{
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = "shm";
    options.id = FIRST_ID + me->rank;
    options.nonce = 0x7100 + (uint64_t)getppid();
    fork_connect_must(weft_loop_create(weft_env_system(), NULL, &me->loop) == WEFT_OK, "loop");
    fork_connect_must(weft_transport_open(weft_env_system(), &options, &me->transport, NULL) == WEFT_OK,
                      "open");
    fork_connect_must(weft_transport_attach(me->transport, me->loop) == WEFT_OK, "attach");
    me->memory = calloc(1, BUFFER_BYTES); /* unmapped: copied in up to the limit */
    fork_connect_must(me->memory, "memory");
    uint32_t ids[RANKS_MAX];
    const char *failed =
        fork_connect_all(&board->fork_connect, me->transport, me->rank, round->ranks, FIRST_ID, ids);
    fork_connect_must(!failed, failed);
    make_group(me, me->rank, round->ranks, ids, 9);
}

static void on_done(void *context, enum weft_status status, const char *text)
{
    struct rank *me = context;
    me->done = true;
    me->status = status;
    snprintf(me->text, sizeof me->text, "%s", text);
}

static enum weft_status post(struct rank *me, const struct weft_coll_args *args)
{
    struct weft_error error = {0};
    me->done = false;
    enum weft_status status = weft_coll_post(me->group, args, on_done, me, NULL, &error);
    if (status != WEFT_IN_PROGRESS) on_done(me, status, error.text);
    return status;
}

static enum weft_status call(struct rank *me, const struct weft_coll_args *args, bool tries_fastpath)
{
    enum weft_status status = WEFT_ERR_AGAIN;
    me->done = false;
    if (tries_fastpath)
        status = weft_coll_try_fastpath(me->group, args, on_done, me, &(struct weft_coll *){NULL});
    if (status == WEFT_OK) on_done(me, WEFT_OK, "");
    if (status == WEFT_ERR_AGAIN) (void)post(me, args);
    fork_connect_must(weft_loop_wait(me->loop, &me->done,
                                     weft_now_ns(weft_env_system()) + WEFT_MS((uint64_t)PATIENCE_MS)) ==
                          WEFT_OK,
                      "an operation hangs");
    return me->status;
}

static float value_of(uint32_t rank, uint64_t at)
{
    return (float)(1 + rank * 1000 + at % 97);
}

/* The longest copy-in. */
static struct weft_coll_args longest(const struct rank *me, const struct round *round)
{
    struct weft_coll_args args = {.kind = round->kind,
                                  .in = me->memory,
                                  .out = me->memory + BUFFER_BYTES / 2,
                                  .dtype = WEFT_F32,
                                  .op = WEFT_SUM,
                                  .root = round->root};
    if (args.kind == WEFT_COLL_BROADCAST) args.in = args.out = me->memory;
    for (args.count = 1 << 17; args.count > 1 && !onehost_uses_copyin(me->group, &args);) args.count--;
    fork_connect_must(onehost_needs_slot(args.count * 4), "no long contribution is copied in");
    return args;
}

/* Pieces of scatter, reduce_scatter and all_to_all are the same for all ranks. */
static bool result_is_right(const struct rank *me, const struct round *round,
                            const struct weft_coll_args *args)
{
    const float *out = args->out;
    bool root = me->rank == round->root;
    for (uint64_t i = 0; i < args->count; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < round->ranks; r++) sum += value_of(r, i);
        for (uint32_t r = 0; r < round->ranks; r++) {
            bool gathers = args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_TO_ALL ||
                           (args->kind == WEFT_COLL_GATHER && root);
            if (gathers && out[r * args->count + i] != value_of(r, i)) return false;
        }
        bool sums = args->kind == WEFT_COLL_ALL_REDUCE || args->kind == WEFT_COLL_REDUCE_SCATTER ||
                    (args->kind == WEFT_COLL_REDUCE && root);
        bool takes = args->kind == WEFT_COLL_BROADCAST || args->kind == WEFT_COLL_SCATTER;
        if (sums && out[i] != sum) return false;
        if (takes && out[i] != value_of(round->root, i)) return false;
    }
    return true;
}

/* Processes whose memory is still mapped here, this one included if it has allocated any. */
static int views(void)
{
    char line[512];
    unsigned long files[64];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    fork_connect_must(maps, "maps");
    while (fgets(line, sizeof line, maps)) {
        unsigned long file;
        int known = 0;
        if (!strstr(line, "memfd:weft-memory") || sscanf(line, "%*s %*s %*s %*s %lu", &file) != 1) continue;
        while (known < count && files[known] != file) known++;
        fork_connect_must(known < 64, "too many mappings");
        if (known == count) files[count++] = file;
    }
    fclose(maps);
    return count;
}

static void bind_to_one(void)
{
    cpu_set_t whole, one;
    fork_connect_must(sched_getaffinity(0, sizeof whole, &whole) == 0, "affinity");
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    fork_connect_must(sched_setaffinity(0, sizeof one, &one) == 0, "affinity");
}

static void fall(struct rank *me, const struct round *round, const struct weft_coll_args *args)
{
    enum weft_status status =
        weft_coll_try_fastpath(me->group, args, on_done, me, &(struct weft_coll *){NULL});
    if (status == WEFT_ERR_AGAIN) (void)post(me, args);
    atomic_fetch_add(&board->published, 1);
    raise(round->signal_number);
    await(&board->released, 1); /* continues after the stop: must not touch anything */
    _exit(0);
}

static void child(uint32_t rank, const struct round *round)
{
    static struct rank me;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (round->is_oversubscribed) bind_to_one();
    me.rank = rank;
    connect_all(&me, round);
    struct weft_coll_args first = {.kind = WEFT_COLL_BARRIER};
    fork_connect_must(call(&me, &first, false) == WEFT_OK, "the first one"); /* connects */
    fork_connect_must(me.group->onehost && me.group->onehost->state == ONEHOST_ENABLED,
                      "the one-host path is not enabled");
    struct weft_coll_args args = longest(&me, round);
    uint64_t pieces = args.kind == WEFT_COLL_SCATTER || args.kind == WEFT_COLL_REDUCE_SCATTER ||
                              args.kind == WEFT_COLL_ALL_TO_ALL
                          ? round->ranks
                          : 1;
    for (uint64_t i = 0; i < args.count * pieces; i++)
        ((float *)me.memory)[i] = value_of(rank, i % args.count);
    /* all contributions are there */
    fork_connect_must(call(&me, &first, false) == WEFT_OK, "the second one");
    if (rank == round->victim) fall(&me, round, &args);
    await(&board->fallen, 1);
    board->ranks[rank].status = call(&me, &args, rank % 2 == 0);
    snprintf(board->ranks[rank].text, sizeof board->ranks[rank].text, "%s", me.text);
    if (me.status == WEFT_OK && !result_is_right(&me, round, &args))
        atomic_store(&board->ranks[rank].wrong, 1);
    struct weft_coll_args next = {
        .kind = WEFT_COLL_BARRIER,
        .deadline_ns = WEFT_MS((uint64_t)(round->signal_number == SIGSTOP ? LATE_MS : PATIENCE_MS))};
    const uint64_t began_ns = weft_now_ns(weft_env_system());
    board->ranks[rank].next_status = call(&me, &next, false);
    board->ranks[rank].waited_s = (double)(weft_now_ns(weft_env_system()) - began_ns) / 1e9;
    if (board->ranks[rank].status == WEFT_OK)
        snprintf(board->ranks[rank].text, sizeof board->ranks[rank].text, "%s", me.text);
    atomic_fetch_add(&board->read, 1);
    for (int ms = 0; atomic_load(&board->released) == 0; ms++) { /* peers may still need messages */
        fork_connect_must(ms < PATIENCE_MS, "the parent does not arrive");
        weft_loop_step(me.loop);
        usleep(1000);
    }
    weft_group_free(me.group);
    atomic_fetch_add(&board->freed, 1);
    await(&board->freed, round->ranks - 1);
    if (round->ranks == 3) { /* survivors continue, which frees deferred memory */
        const uint32_t left[] = {FIRST_ID + (round->victim == 0), FIRST_ID + (round->victim == 2 ? 1 : 2)};
        make_group(&me, left[1] == FIRST_ID + rank, 2, left, 10);
        weft_group_free(me.group);
    }
    for (int i = 0; i < 20; i++) weft_loop_step(me.loop);
    weft_transport_close(me.transport);
    for (int i = 0; i < 20; i++) weft_transport_progress(me.transport, 1000);
    weft_transport_free(me.transport);
    free(me.memory);
    board->ranks[rank].views = views();
    _exit(0);
}

static void check(const struct round *round, uint32_t rank)
{
    char name[16], what[160];
    snprintf(name, sizeof name, "rank %u", round->victim);
    snprintf(what, sizeof what, "%s of %u ranks%s, root %u, rank %u got signal %d: rank %u",
             weft_coll_kind_name(round->kind), round->ranks,
             round->is_oversubscribed ? " on one processor" : "", round->root, round->victim,
             round->signal_number, rank);
    enum weft_status expected = round->signal_number == SIGKILL ? WEFT_ERR_PEER_LOST : WEFT_ERR_DEADLINE;
    if (board->ranks[rank].wrong) fail_msg("%s has a wrong result", what);
    if (board->ranks[rank].status != WEFT_OK && board->ranks[rank].status != (int)expected)
        fail_msg("%s: %s, %s", what, weft_status_name((enum weft_status)board->ranks[rank].status),
                 board->ranks[rank].text);
    if (board->ranks[rank].next_status != (int)expected)
        fail_msg("%s: then %s, %s", what, weft_status_name((enum weft_status)board->ranks[rank].next_status),
                 board->ranks[rank].text);
    if (!strstr(board->ranks[rank].text, name))
        fail_msg("%s does not name it: %s", what, board->ranks[rank].text);
    if (board->ranks[rank].views != 0 && round->signal_number == SIGKILL)
        fail_msg("%s keeps the memory of %d processes", what, board->ranks[rank].views);
}

static double longest_wait_s;

static void run(const struct round *round)
{
    pid_t pids[RANKS_MAX];
    memset(board, 0, sizeof *board);
    for (uint32_t r = 0; r < round->ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) child(r, round);
    }
    int status;
    pid_t victim = pids[round->victim];
    assert_int_equal(waitpid(victim, &status, WUNTRACED), victim);
    assert_true(round->signal_number == SIGKILL ? WIFSIGNALED(status) : WIFSTOPPED(status));
    assert_int_equal(atomic_load(&board->published), 1);
    atomic_store(&board->fallen, 1);
    for (int ms = 0; atomic_load(&board->read) < round->ranks - 1 && ms < 2 * PATIENCE_MS; ms++) usleep(1000);
    assert_int_equal(atomic_load(&board->read), round->ranks - 1);
    if (round->signal_number == SIGSTOP) {
        kill(victim, SIGCONT);
        atomic_store(&board->released, 1);
        assert_int_equal(waitpid(victim, &status, 0), victim);
    }
    atomic_store(&board->released, 1);
    for (uint32_t r = 0; r < round->ranks; r++) {
        if (r == round->victim) continue;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("rank %u: status %x", r, status);
        check(round, r);
        if (board->ranks[r].waited_s > longest_wait_s) longest_wait_s = board->ranks[r].waited_s;
    }
}

static void all_of(int signal_number)
{
    static const enum weft_coll_kind kinds[] = {
        WEFT_COLL_ALL_REDUCE, WEFT_COLL_BROADCAST,  WEFT_COLL_REDUCE,         WEFT_COLL_GATHER,
        WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER};
    longest_wait_s = 0;
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t ranks = 2 + i / 8;
        const bool from_root = kinds[i % 8] == WEFT_COLL_BROADCAST || kinds[i % 8] == WEFT_COLL_SCATTER;
        struct round round = {.kind = kinds[i % 8],
                              .ranks = ranks,
                              .root = from_root ? 1 : 0,
                              .victim = 1,
                              .signal_number = signal_number,
                              .is_oversubscribed = i >= 8};
        if (signal_number == SIGSTOP && i % 8 != 1 && i % 8 != 3) continue; /* each waits for its deadline */
        run(&round);
    }
    print_message("the next operation ended after %.3f s at most\n", longest_wait_s);
}

static void killed(void **state)
{
    all_of(SIGKILL);
}
static void stopped(void **state)
{
    all_of(SIGSTOP);
}

int main(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
