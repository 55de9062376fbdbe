/* kill_random.c - real processes; one is killed or stopped at a random moment of random collectives. Each
 * survivor must end soon, with a fitting status and a text that names the culprit. No buffer of a survivor
 * may change afterwards.
 *
 *   build/tests/collective/kill_random --seeds 500 [--first 1]
 *
 * A seed decides the ranks (2 to 6), the transport (shm, or tcp through UCX if it is built), the calls, which
 * rank tries the fast path, the victim, the signal and the moment. A failure prints its seed. The test
 * asserts no times; it prints the longest time from a death, or from the deadline of a stopped rank, to the
 * end of the last survivor. */
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

enum {
    RANKS_MAX = 6,
    FIRST_ID = 300,
    ELEMS_MAX = 1 << 18,
    PATIENCE_MS = 30000,
    DEADLINE_MS = 700,
    WARM_CALLS = 3
};

/* Shared by parent and children. */
struct board {
    uint32_t ranks;
    uint64_t seed, nonce;
    bool stops, tcp;
    _Atomic uint32_t running, release;
    struct fork_connect fork_connect;
    struct {
        _Atomic int ended;
        int status;
        uint64_t ended_ns;
        _Atomic int touched;
        char text[480], call[80];
    } places[RANKS_MAX];
};
static struct board *board;

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t now_ns(void)
{
    return weft_now_ns(weft_env_system());
}

/* ---- a rank ---- */
struct rank {
    uint32_t rank;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_group *group;
    float *in, *out;
    uint32_t open; /* active operations */
    bool done;
    enum weft_status status;
    char text[480];
};

static void must(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "seed %llu: a child: %s\n", (unsigned long long)board->seed, what);
    _exit(3);
}

static void no_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text) {}

static struct weft_env *quiet_env(void)
{
    static struct weft_env env;
    env = *weft_env_system();
    env.log = no_log;
    return &env;
}

static void open_rank(struct rank *me)
{
    struct weft_env *env = quiet_env();
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = board->tcp ? "ucx" : "shm";
    options.id = FIRST_ID + me->rank;
    options.nonce = board->nonce;
    struct weft_error error = {0};
    must(weft_loop_create(env, NULL, &me->loop) == WEFT_OK, "loop");
    must(weft_transport_open(env, &options, &me->transport, &error) == WEFT_OK, error.text);
    must(weft_transport_attach(me->transport, me->loop) == WEFT_OK, "attach");
    uint32_t ids[RANKS_MAX];
    const char *failed =
        fork_connect_all(&board->fork_connect, me->transport, me->rank, board->ranks, FIRST_ID, ids);
    must(!failed, failed);
    static struct weft_plan_hosts hosts; /* artificial, for the hierarchical plan: two ranks per host */
    static uint32_t hosts_memory[16 * RANKS_MAX];
    uint32_t host_of[RANKS_MAX];
    for (uint32_t r = 0; r < board->ranks; r++) host_of[r] = r / 2;
    must(weft_plan_hosts_words(board->ranks) <= sizeof hosts_memory / sizeof hosts_memory[0], "hosts");
    weft_plan_hosts_init(host_of, board->ranks, hosts_memory, &hosts);
    struct weft_group_options group;
    weft_group_options_init(&group);
    group.hosts = &hosts;
    group.transport = me->transport;
    group.loop = me->loop;
    group.rank = me->rank;
    group.ranks = board->ranks;
    group.endpoint_ids = ids;
    group.group_id = 11;
    group.chunk_bytes = 65536;
    must(weft_group_create(env, &group, &me->group, NULL) == WEFT_OK, "group");
    void *memory[2];
    size_t bytes = sizeof(float) * ELEMS_MAX * RANKS_MAX;
    for (int i = 0; i < 2; i++) must(weft_memory_alloc(env, bytes, &memory[i], NULL) == WEFT_OK, "memory");
    me->in = memory[0];
    me->out = memory[1];
}

static void on_done(void *context, enum weft_status status, const char *text)
{
    struct rank *me = context;
    me->done = --me->open == 0;
    if (me->status < 0) return;
    me->status = status;
    snprintf(me->text, sizeof me->text, "%s", text);
}

/* The call of this number, the same on all ranks. */
static struct weft_coll_args call_of(struct rank *me, uint64_t *state)
{
    static const enum weft_coll_kind kinds[] = {
        WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER,
        WEFT_COLL_BROADCAST,  WEFT_COLL_BARRIER,    WEFT_COLL_REDUCE,         WEFT_COLL_GATHER,
        WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL, WEFT_COLL_SEND,           WEFT_COLL_SEND};
    struct weft_coll_args args = {.kind = kinds[draw(state) % (sizeof kinds / sizeof kinds[0])],
                                  .in = me->in,
                                  .out = me->out,
                                  .dtype = WEFT_F32,
                                  .op = WEFT_SUM,
                                  .root = (uint32_t)(draw(state) % board->ranks)};
    args.count = draw(state) >> (46 + draw(state) % 18);
    if (draw(state) % 2) args.count %= 512; /* those that can use the fast path */
    enum weft_plan_id plan = 1 + draw(state) % (WEFT_PLAN_COUNT - 1);
    if (draw(state) % 2 && weft_plan_supports(plan, args.kind)) args.plan = plan;
    args.deadline_ns = board->stops && atomic_load(&board->running) == board->ranks
                           ? WEFT_MS((uint64_t)DEADLINE_MS)
                           : WEFT_MS((uint64_t)PATIENCE_MS);
    return args;
}

static void begin(struct rank *me, const struct weft_coll_args *args, bool tries)
{
    struct weft_error error = {0};
    enum weft_status status = WEFT_ERR_AGAIN;
    me->open++;
    if (tries) status = weft_coll_try_fastpath(me->group, args, on_done, me, &(struct weft_coll *){NULL});
    if (status == WEFT_ERR_AGAIN) status = weft_coll_post(me->group, args, on_done, me, NULL, &error);
    if (status != WEFT_IN_PROGRESS) on_done(me, status, error.text);
}

/* To and from the partner; of an odd number of ranks the last has none. */
static void exchange(struct rank *me, const struct weft_coll_args *call, uint64_t *own)
{
    uint32_t other = me->rank ^ 1;
    struct weft_coll_args args = *call;
    args.root = other;
    args.plan = WEFT_PLAN_AUTO;
    me->done = other >= board->ranks;
    if (me->done) return;
    me->open++; /* until both are posted */
    bool sends_first = draw(own) % 2;
    for (uint32_t turn = 0; turn < 2; turn++) {
        args.kind = sends_first == (turn == 0) ? WEFT_COLL_SEND : WEFT_COLL_RECV;
        begin(me, &args, draw(own) % 4);
    }
    me->done = --me->open == 0;
}

static void rank_run(uint32_t rank)
{
    static struct rank me;
    uint64_t state = board->seed, own = board->seed * RANKS_MAX + rank;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("UCX_TLS", "tcp", 1);
    me.rank = rank;
    open_rank(&me);
    for (uint64_t calls = 0; me.status == WEFT_OK; calls++) {
        struct weft_coll_args args = call_of(&me, &state);
        me.done = false;
        snprintf(board->places[rank].call, sizeof board->places[rank].call, "call %llu: %s of %llu, plan %s",
                 (unsigned long long)calls, weft_coll_kind_name(args.kind), (unsigned long long)args.count,
                 weft_plan_name(args.plan));
        if (args.kind == WEFT_COLL_SEND) exchange(&me, &args, &own);
        else begin(&me, &args, draw(&own) % 4);
        must(weft_loop_wait(me.loop, &me.done, now_ns() + 2 * WEFT_MS((uint64_t)PATIENCE_MS)) == WEFT_OK,
             "an operation hangs");
        if (calls == WARM_CALLS) atomic_fetch_add(&board->running, 1);
    }
    board->places[rank].ended_ns = now_ns();
    board->places[rank].status = me.status;
    snprintf(board->places[rank].text, sizeof board->places[rank].text, "%s", me.text);
    for (size_t i = 0; i < 1000; i++) me.out[i] = (float)(rank + 1);
    atomic_store(&board->places[rank].ended, 1);
    while (!atomic_load(&board->release)) { /* peers may still need messages */
        weft_loop_step(me.loop);
        usleep(200);
    }
    for (size_t i = 0; i < 1000; i++)
        if (me.out[i] != (float)(rank + 1)) atomic_store(&board->places[rank].touched, 1);
    _exit(0);
}

/* ---- the parent ---- */
static bool wait_ended(uint32_t except, int ms)
{
    for (int i = 0;; i++) {
        bool all = true;
        for (uint32_t r = 0; r < board->ranks; r++)
            all &= r == except || atomic_load(&board->places[r].ended);
        if (all || i == ms) return all;
        usleep(1000);
    }
}

static bool complain(const char *what, uint32_t rank, uint32_t victim)
{
    fprintf(stderr, "seed %llu: %u ranks over %s, rank %u %s: rank %u %s: %s (%s)\n",
            (unsigned long long)board->seed, board->ranks, board->tcp ? "tcp" : "shm", victim,
            board->stops ? "stopped" : "killed", rank, what, board->places[rank].text,
            board->places[rank].call);
    return false;
}

/* "rank 3", or "ranks 0, 2-4": on a busy machine other late ranks are listed with it. */
static bool names(const char *text, uint32_t rank)
{
    for (const char *at = text; (at = strstr(at, "rank")) != NULL;) {
        at += strlen("rank");
        if (*at == 's') at++;
        if (*at == ' ') at++;
        while (*at >= '0' && *at <= '9') {
            char *end;
            uint64_t first = strtoull(at, &end, 10), last = *end == '-' ? strtoull(end + 1, &end, 10) : first;
            if (first <= rank && rank <= last) return true;
            at = strncmp(end, ", ", 2) == 0 ? end + 2 : end;
        }
    }
    return false;
}

static bool check_culprit(uint32_t victim)
{
    bool fine = true;
    enum weft_status expected = board->stops ? WEFT_ERR_DEADLINE : WEFT_ERR_PEER_LOST;
    for (uint32_t r = 0; r < board->ranks; r++) {
        if (r == victim) continue;
        if (!atomic_load(&board->places[r].ended)) fine = complain("did not end", r, victim);
        else if (board->places[r].status != expected)
            fine = complain(weft_status_name(board->places[r].status), r, victim);
        else if (!names(board->places[r].text, victim)) fine = complain("names another", r, victim);
        else if (atomic_load(&board->places[r].touched))
            fine = complain("was written to after the end", r, victim);
    }
    return fine;
}

/* One seed. *took_ms_out: from the signal to the end of the last survivor. */
static bool strike(uint64_t seed, bool may_tcp, double *took_ms_out)
{
    pid_t pids[RANKS_MAX];
    uint64_t state = ~seed;
    memset(board, 0, sizeof *board);
    board->seed = seed;
    board->nonce = 0x5000 + (uint64_t)getpid() * 100003 + seed;
    board->ranks = 2 + (uint32_t)(draw(&state) % (RANKS_MAX - 1));
    board->stops = draw(&state) % 3 == 0;
    board->tcp = may_tcp && draw(&state) % 3 == 0;
    uint32_t victim = (uint32_t)(draw(&state) % board->ranks);
    for (uint32_t r = 0; r < board->ranks; r++) {
        pids[r] = fork();
        if (pids[r] == 0) rank_run(r);
        if (pids[r] < 0) abort();
    }
    for (int i = 0; i < PATIENCE_MS && atomic_load(&board->running) < board->ranks; i++) usleep(1000);
    bool fine = atomic_load(&board->running) == board->ranks;
    if (!fine) complain("did not begin", victim, victim);
    usleep((useconds_t)(draw(&state) % 30000));
    uint64_t struck_ns = now_ns(), last_ns = struck_ns;
    kill(pids[victim], board->stops ? SIGSTOP : SIGKILL);
    bool held = fine && !wait_ended(victim, board->stops ? 8000 : PATIENCE_MS);
    /* a rank stopped inside a store holds its peers' buffers until it continues */
    if (board->stops) kill(pids[victim], SIGCONT);
    if (held) wait_ended(victim, PATIENCE_MS);
    usleep(5000);
    atomic_store(&board->release, 1);
    if (fine) fine = check_culprit(victim);
    for (uint32_t r = 0; r < board->ranks; r++) {
        if (!fine || r == victim) kill(pids[r], SIGKILL);
        waitpid(pids[r], NULL, 0);
        if (r != victim && board->places[r].ended_ns > last_ns) last_ns = board->places[r].ended_ns;
    }
    for (uint32_t r = 0; fine && r < board->ranks; r++)
        if (r != victim && atomic_load(&board->places[r].touched))
            fine = complain("was written to after the end", r, victim);
    *took_ms_out = held ? 0 : (double)(last_ns - struck_ns) / 1e6;
    return fine;
}

static bool built_with_ucx(void)
{
    struct weft_transport_options options;
    struct weft_transport *transport;
    pid_t child = fork(); /* UCX initialized before a fork would be shared by all children */
    if (child == 0) {
        weft_transport_options_init(&options);
        options.backend = "ucx";
        options.id = 1;
        options.nonce = 1;
        _exit(weft_transport_open(quiet_env(), &options, &transport, NULL) == WEFT_OK ? 0 : 1);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 10, first = 1;
    double worst_ms[2] = {0, 0}, took_ms;
    uint32_t counts[2] = {0, 0};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seeds") == 0) seeds = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0) first = strtoull(argv[i + 1], NULL, 10);
        else argc = 0;
    }
    if (argc % 2 == 0) return fprintf(stderr, "usage: %s [--seeds N] [--first N]\n", argv[0]), 2;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    bool tcp = built_with_ucx(), fine = true;
    for (uint64_t seed = first; seed < first + seeds && fine; seed++) {
        fine = strike(seed, tcp, &took_ms);
        counts[board->stops]++;
        if (took_ms > worst_ms[board->stops]) worst_ms[board->stops] = took_ms;
    }
    printf("%u killed: the last survivor knew at most %.0f ms later; %u stopped: at most %.0f ms later, with "
           "a deadline of %d ms\n",
           counts[0], worst_ms[0], counts[1], worst_ms[1], DEADLINE_MS);
    if (!fine)
        fprintf(stderr, "again: %s --seeds 1 --first %llu\n", argv[0], (unsigned long long)board->seed);
    return fine ? 0 : 1;
}
