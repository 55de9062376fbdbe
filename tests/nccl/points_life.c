/* points_life.c - a peer that dies or stops, a library that is closed and opened again, an idle process. */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/nccl/harness.h"

enum { DEATH_BYTES = 64 << 10, DEATH_OPEN = 4 };

static void exchange_handle(int fd, void *out, const void *in)
{
    CHECK(write(fd, out, NCCL_HANDLE_BYTES) == NCCL_HANDLE_BYTES, "the other process has ended");
    CHECK(recv(fd, (void *)in, NCCL_HANDLE_BYTES, MSG_WAITALL) == NCCL_HANDLE_BYTES,
          "the other process has ended");
}

/* Two connections with the other process, one in each direction: `send` to it, `recv` from it. */
static void cross_connect(struct pair *pair, int fd)
{
    char own[NCCL_HANDLE_BYTES], theirs[NCCL_HANDLE_BYTES];
    void *listener;
    CHECK_OK(driver_init(pair->driver, 1, &pair->send_context));
    pair->recv_context = pair->send_context;
    CHECK_OK(driver_listen(pair->driver, pair->recv_context, 0, own, &listener));
    exchange_handle(fd, own, theirs);
    pair_connect(pair, listener, theirs);
    CHECK_OK(driver_close_listen(pair->driver, listener));
}

/* Sends and receives until an error, or until `calls` calls of test; returns the result. */
static enum nccl_result traffic(struct pair *pair, long calls)
{
    static char from[DEATH_OPEN][DEATH_BYTES], to[DEATH_OPEN][DEATH_BYTES];
    void *sends[DEATH_OPEN] = {0}, *recvs[DEATH_OPEN] = {0};
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    for (int i = 0; result == NCCL_RESULT_SUCCESS && calls != 0; i = (i + 1) % DEATH_OPEN) {
        void *data = to[i], *memory = NULL, *parent = NULL;
        size_t bytes = DEATH_BYTES;
        int tag = 0, done = 0;
        if (!recvs[i])
            result =
                driver_irecv(pair->driver, pair->recv, 1, &data, &bytes, &tag, &memory, &parent, &recvs[i]);
        if (result == NCCL_RESULT_SUCCESS && !sends[i])
            result = driver_isend(pair->driver, pair->send, from[i], DEATH_BYTES, 0, NULL, NULL, &sends[i]);
        if (result == NCCL_RESULT_SUCCESS && recvs[i])
            result = driver_test(pair->driver, recvs[i], &done, NULL);
        if (done) recvs[i] = NULL;
        done = 0;
        if (result == NCCL_RESULT_SUCCESS && sends[i])
            result = driver_test(pair->driver, sends[i], &done, NULL);
        if (done) sends[i] = NULL;
        if (calls > 0) calls--;
        sched_yield();
    }
    return result;
}

/* The peer ends or stops after `calls` tests. Here: a remote error; a connection with another lives. */
static void peer_run(struct harness *harness, long calls, int how)
{
    int ends[2], status;
    struct pair pair = {.driver = &harness->driver}, bystander;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        cross_connect(&pair, ends[1]);
        traffic(&pair, calls);
        raise(how);
        _exit(0);
    }
    close(ends[1]);
    cross_connect(&pair, ends[0]);
    pair_open(&bystander, harness);
    enum nccl_result result = traffic(&pair, -1);
    CHECK(result == NCCL_RESULT_REMOTE, "a peer that ended after %ld tests gave %d, not %d", calls,
          (int)result, NCCL_RESULT_REMOTE);
    char from[8] = "alive", to[8] = "";
    transfer(&bystander, from, sizeof from, to, sizeof to, 0);
    CHECK(memcmp(from, to, sizeof from) == 0, "the message of a bystander is wrong");
    CHECK_OK(driver_close_send(pair.driver, pair.send));
    CHECK_OK(driver_close_recv(pair.driver, pair.recv));
    CHECK_OK(driver_finalize(pair.driver, pair.send_context));
    pair_close(&bystander);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(ends[0]);
}

static void death(struct harness *harness)
{
    static const long table[] = {0, 1, 2, 3, 5, 8, 13, 40, 200, 1000, 3000};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) peer_run(harness, table[i], SIGKILL);
}

/* ---- a peer that dies before its connection is complete ---- */

/* Forks a child that connects to `handle`, or listens and writes `handle`: it calls connect (accept) once for
 * each step, then dies. Returns the socket for the steps. */
static int fork_half(struct harness *harness, bool connects, char handle[NCCL_HANDLE_BYTES], pid_t *pid_out)
{
    struct driver *driver = &harness->driver;
    void *context, *listener = NULL, *comm = NULL;
    int ends[2];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    *pid_out = fork();
    if (*pid_out != 0) {
        close(ends[1]);
        CHECK(connects || recv(ends[0], handle, NCCL_HANDLE_BYTES, MSG_WAITALL) == NCCL_HANDLE_BYTES,
              "the other process has ended");
        return ends[0];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK_OK(driver_init(driver, 1, &context));
    if (!connects) {
        CHECK_OK(driver_listen(driver, context, 0, handle, &listener));
        CHECK(write(ends[1], handle, NCCL_HANDLE_BYTES) == NCCL_HANDLE_BYTES, "the other process has ended");
    }
    while (read(ends[1], &byte, 1) == 1 && byte) {
        if (connects && !comm) CHECK_OK(driver_connect(driver, context, 0, handle, &comm));
        if (!connects && !comm) CHECK_OK(driver_accept(driver, listener, &comm));
        CHECK(write(ends[1], &byte, 1) == 1, "the other process has ended");
    }
    raise(SIGKILL);
    _exit(1);
}

static void half_step(int fd)
{
    char byte = 1;
    CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1, "the other process has ended");
}

static void half_die(int fd, pid_t pid)
{
    char byte = 0;
    int status;
    CHECK(write(fd, &byte, 1) == 1, "the other process has ended");
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "the other process has not died");
    close(fd);
}

/* A connection whose peer is dead: the first request is a remote error. */
static enum nccl_result use(struct driver *driver, void *comm, bool sends)
{
    static char data[64];
    void *request = NULL, *to = data, *none = NULL;
    size_t bytes = sizeof data;
    int tag = 0, done = 0;
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    while (result == NCCL_RESULT_SUCCESS) {
        if (request) result = driver_test(driver, request, &done, NULL);
        else if (sends) result = driver_isend(driver, comm, data, sizeof data, 0, NULL, NULL, &request);
        else result = driver_irecv(driver, comm, 1, &to, &bytes, &tag, &none, &none, &request);
        if (done) request = NULL;
        done = 0;
        sched_yield();
    }
    return result;
}

/* The sender dies after `calls` calls of connect, of accept here. The listener serves another sender. A
 * connection of the dead one is a remote error within the deadline. */
static void sender_dies(struct harness *harness, int calls)
{
    struct driver *driver = &harness->driver;
    struct pair live = {.driver = driver};
    char handle[NCCL_HANDLE_BYTES], from[8] = "another", to[8] = "";
    void *context, *listener, *dead = NULL;
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    pid_t pid;
    CHECK_OK(driver_init(driver, 1, &context));
    CHECK_OK(driver_listen(driver, context, 0, handle, &listener));
    int fd = fork_half(harness, true, handle, &pid);
    for (int i = 0; i < calls; i++) {
        half_step(fd);
        if (!dead) CHECK_OK(driver_accept(driver, listener, &dead));
    }
    half_die(fd, pid);
    for (int i = 0; i < 200 && !dead && result == NCCL_RESULT_SUCCESS; i++)
        result = driver_accept(driver, listener, &dead);
    CHECK(result == NCCL_RESULT_SUCCESS || result == NCCL_RESULT_REMOTE, "accept of a dead sender gave %d",
          (int)result);
    if (dead) result = use(driver, dead, false);
    CHECK(!dead || result == NCCL_RESULT_REMOTE, "a receive from a dead sender gave %d", (int)result);
    if (dead) CHECK_OK(driver_close_recv(driver, dead));
    live.send_context = live.recv_context = context;
    pair_connect(&live, listener, handle);
    CHECK_OK(driver_close_listen(driver, listener));
    transfer(&live, from, sizeof from, to, sizeof to, 0);
    CHECK(memcmp(from, to, sizeof from) == 0, "the message of another sender is wrong");
    pair_close(&live);
    CHECK_OK(driver_finalize(driver, context));
}

/* The receiver dies after `calls` calls of accept, of connect here: connect or the first send is a remote
 * error. */
static void receiver_dies(struct harness *harness, int calls)
{
    struct driver *driver = &harness->driver;
    char handle[NCCL_HANDLE_BYTES] = "";
    void *context, *comm = NULL;
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    pid_t pid;
    CHECK_OK(driver_init(driver, 1, &context));
    int fd = fork_half(harness, false, handle, &pid);
    for (int i = 0; i < calls; i++) {
        if (!comm) CHECK_OK(driver_connect(driver, context, 0, handle, &comm));
        half_step(fd);
    }
    half_die(fd, pid);
    for (; !comm && result == NCCL_RESULT_SUCCESS; sched_yield())
        result = driver_connect(driver, context, 0, handle, &comm);
    if (comm) result = use(driver, comm, true);
    CHECK(result == NCCL_RESULT_REMOTE, "a receiver that died after %d calls of accept gave %d", calls,
          (int)result);
    if (comm) CHECK_OK(driver_close_send(driver, comm));
    CHECK_OK(driver_finalize(driver, context));
}

/* The plugin detects later deaths of a receiver at its deadline, which the caller of the harness sets. */
static void dies_between(struct harness *harness)
{
    const int most = getenv("WEFT_NCCL_DEADLINE") ? 2 : 0;
    for (int calls = 0; calls <= 3; calls++) sender_dies(harness, calls);
    for (int calls = 0; calls <= most; calls++) receiver_dies(harness, calls);
}

/* Needs a deadline of the plugin, which the caller of the harness sets. */
static void stopped(struct harness *harness)
{
    if (!getenv("WEFT_NCCL_DEADLINE")) return;
    peer_run(harness, 3, SIGSTOP);
    peer_run(harness, 100, SIGSTOP);
}

/* The library is closed after the last communicator and opened again. */
static void reload(struct harness *harness)
{
    for (int life = 0; life < 3; life++) {
        struct pair pair;
        char from[16] = "another life", to[16] = "";
        pair_open(&pair, harness);
        transfer(&pair, from, sizeof from, to, sizeof to, 0);
        CHECK(memcmp(from, to, sizeof from) == 0, "the message is wrong");
        pair_close(&pair);
        driver_close(&harness->driver);
        CHECK(driver_open(&harness->driver, harness->plugin, harness->version), "life %d: not opened", life);
    }
}

static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* A thread besides this one that is running or runnable. */
static bool is_thread_runnable(void)
{
    DIR *folder = opendir("/proc/self/task");
    bool found = false;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[320], state = 'S';
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *file = atoi(entry->d_name) != getpid() && entry->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (file && fscanf(file, "%*d %*[^)]) %c", &state) == 1) found = found || state == 'R';
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
    return found;
}

/* Open connections without requests and without calls: no thread of the plugin runs. */
static void idle(struct harness *harness)
{
    struct pair pair;
    char from[64], to[64];
    pair_open(&pair, harness);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    uint64_t before_ns = cpu_ns();
    int runnable = 0;
    for (int i = 0; i < 30; i++) {
        poll(NULL, 0, 10);
        runnable += is_thread_runnable();
    }
    CHECK(runnable < 15, "a thread runs in an idle process");
    uint64_t used_ns = cpu_ns() - before_ns;
    CHECK(used_ns < 30000000u, "%llu us of processor time in 300 ms of idleness",
          (unsigned long long)used_ns / 1000);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    pair_close(&pair);
}

const struct point life_points[] = {{"death", death},     {"dies-between", dies_between},
                                    {"stopped", stopped}, {"reload", reload},
                                    {"idle", idle},       {NULL, NULL}};
