/* nccl_bench.c - bandwidth and latency of a plugin as a ratio to a baseline, between two processes.
 *
 *     nccl_bench --plugin PATH --baseline PATH [--rounds N] [--bytes N]
 *
 * Both processes open both plugins. Rounds of the two alternate; printed are the medians of the rounds and
 * the median of the ratios. Bandwidth: `--bytes` (default 512 KiB) with 8 open, as a channel of NCCL.
 * Latency: 8 bytes there and back. */
#include <getopt.h>
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

enum { OPEN = 8, ROUNDS_MAX = 101, TRIPS = 2000, MESSAGES = 400 };

struct link {
    struct pair pair; /* send to and recv from the other process */
    struct driver driver;
    void *send_memory, *recv_memory;
    double bandwidth[ROUNDS_MAX], latency[ROUNDS_MAX];
};

static size_t message_bytes = 512 << 10;
static char *from, *to;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void link_open(struct link *link, const char *plugin, int fd)
{
    char own[NCCL_HANDLE_BYTES], theirs[NCCL_HANDLE_BYTES];
    void *listener;
    CHECK(driver_open(&link->driver, plugin, 0), "%s cannot be opened", plugin);
    link->pair.driver = &link->driver;
    CHECK_OK(driver_init(&link->driver, 1, &link->pair.send_context));
    CHECK_OK(driver_listen(&link->driver, link->pair.send_context, 0, own, &listener));
    CHECK(send(fd, own, sizeof own, 0) == sizeof own, "the other process has ended");
    CHECK(recv(fd, theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "the other process has ended");
    pair_connect(&link->pair, listener, theirs);
    CHECK_OK(driver_close_listen(&link->driver, listener));
    link->send_memory = reg(&link->pair, link->pair.send, from, OPEN * message_bytes);
    link->recv_memory = reg(&link->pair, link->pair.recv, to, OPEN * message_bytes);
}

/* Sends or receives `count` messages with OPEN in flight, tested oldest first. */
static void stream(struct link *link, bool sends, int count)
{
    void *open[OPEN];
    int bytes;
    for (int posted = 0, done = 0; done < count;) {
        if (posted < count && posted - done < OPEN) {
            size_t at = (size_t)(posted % OPEN) * message_bytes;
            void *request = sends ? send_try(&link->pair, from + at, message_bytes, 0, link->send_memory)
                                  : recv_try(&link->pair, to + at, message_bytes, 0, link->recv_memory);
            if (request) open[posted++ % OPEN] = request;
        }
        if (done < posted && is_done(&link->pair, &open[done % OPEN], &bytes)) done++;
        else sched_yield();
    }
}

static void one_way(struct link *link, bool sends)
{
    void *request = NULL;
    int bytes;
    while (!request)
        request = sends ? send_try(&link->pair, from, 8, 0, link->send_memory)
                        : recv_try(&link->pair, to, 8, 0, link->recv_memory);
    while (!is_done(&link->pair, &request, &bytes)) sched_yield();
}

/* As NCCL, the receive is posted before the send that it answers. */
static void ping_pong(struct link *link, bool begins)
{
    int bytes;
    for (int i = 0; i < TRIPS; i++) {
        void *recv = NULL;
        while (!recv) recv = recv_try(&link->pair, to, 8, 0, link->recv_memory);
        if (begins) one_way(link, true);
        while (!is_done(&link->pair, &recv, &bytes)) sched_yield();
        if (!begins) one_way(link, true);
    }
}

/* Synchronises both processes, so that no round overlaps the one before. */
static void synchronise(struct link *link, bool begins)
{
    if (begins) one_way(link, true);
    one_way(link, false);
    if (!begins) one_way(link, true);
}

static void round_run(struct link *link, bool begins, int round)
{
    synchronise(link, begins);
    double start = now_s();
    stream(link, begins, MESSAGES);
    synchronise(link, begins);
    link->bandwidth[round] = (double)MESSAGES * (double)message_bytes / (now_s() - start) * 1e-9;
    synchronise(link, begins);
    start = now_s();
    ping_pong(link, begins);
    link->latency[round] = (now_s() - start) / TRIPS * 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return sorted[count / 2];
}

static void print(struct link *links, int rounds)
{
    double bandwidth[ROUNDS_MAX], latency[ROUNDS_MAX];
    for (int i = 0; i < rounds; i++) {
        bandwidth[i] = links[0].bandwidth[i] / links[1].bandwidth[i];
        latency[i] = links[0].latency[i] / links[1].latency[i];
    }
    printf("%zu bytes x %d open: %.2f GB/s, baseline %.2f, ratio %.2f\n", message_bytes, OPEN,
           median(links[0].bandwidth, rounds), median(links[1].bandwidth, rounds), median(bandwidth, rounds));
    printf("8 bytes, round trip: %.2f us, baseline %.2f, ratio %.2f\n", median(links[0].latency, rounds),
           median(links[1].latency, rounds), median(latency, rounds));
}

int main(int count, char **arguments)
{
    static const struct option options[] = {{"plugin", 1, NULL, 'p'},
                                            {"baseline", 1, NULL, 'b'},
                                            {"rounds", 1, NULL, 'r'},
                                            {"bytes", 1, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    static struct link links[2];
    const char *plugins[2] = {NULL, NULL};
    int rounds = 7, ends[2];
    for (int option; (option = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        if (option == 'p') plugins[0] = optarg;
        else if (option == 'b') plugins[1] = optarg;
        else if (option == 'r') rounds = atoi(optarg);
        else if (option == 's') message_bytes = strtoul(optarg, NULL, 10);
        else return 2;
    }
    if (!plugins[0] || !plugins[1] || rounds < 1 || rounds > ROUNDS_MAX || message_bytes < 8) {
        fprintf(stderr, "usage: nccl_bench --plugin PATH --baseline PATH [--rounds N] [--bytes N]\n");
        return 2;
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    pid_t pid = fork();
    bool begins = pid != 0;
    if (!begins) prctl(PR_SET_PDEATHSIG, SIGKILL);
    from = calloc(OPEN, message_bytes);
    to = calloc(OPEN, message_bytes);
    memset(from, 1, OPEN * message_bytes);
    memset(to, 1, OPEN * message_bytes);
    for (int i = 0; i < 2; i++) link_open(&links[i], plugins[i], ends[begins]);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2; i++) round_run(&links[i], begins, round);
    for (int i = 0; i < 2; i++) pair_close(&links[i].pair);
    if (!begins) _exit(0);
    print(links, rounds);
    waitpid(pid, NULL, 0);
    return 0;
}
