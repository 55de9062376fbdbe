/* compare_peers.c - one measurement of a peer; see compare.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/p2p/compare.h"

enum { RUN_DEADLINE_S = 60, LISTEN_DEADLINE_MS = 5000 };

static bool fail(char *error, size_t capacity, const char *text, const char *detail)
{
    snprintf(error, capacity, "%s%s%s", text, detail ? ": " : "", detail ? detail : "");
    return false;
}

static void pin(const struct p2p_options *options, uint32_t index)
{
    if (options->cpu_count == 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options->cpus[index % options->cpu_count], &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* ---- ucx_perftest ---- */

static uint16_t free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    uint16_t port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        port = ntohs(address.sin_port);
    }
    if (fd >= 0) close(fd);
    return port;
}

static bool is_listening(uint16_t port)
{
    char line[256], wanted[16];
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    snprintf(wanted, sizeof wanted, ":%04X", port);
    for (size_t i = 0; i < 2; i++) {
        FILE *table = fopen(tables[i], "re");
        while (table && fgets(line, sizeof line, table)) {
            char local[80], remote[80], state[8];
            if (sscanf(line, " %*s %79s %79s %7s", local, remote, state) != 3) continue;
            const char *colon = strrchr(local, ':');
            if (strcmp(state, "0A") == 0 && colon && strcmp(colon, wanted) == 0) {
                fclose(table);
                return true;
            }
        }
        if (table) fclose(table);
    }
    return false;
}

static pid_t start_perftest(const struct p2p_options *options, const struct p2p_peer_run *run, uint16_t port,
                            bool client, int output)
{
    char port_text[8], bytes[24], iters[24], warmup[24];
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    pin(options, client ? 0 : 1);
    setenv("UCX_TLS", run->tls, 1);
    setenv("UCX_NET_DEVICES", options->devices ? options->devices : "lo", 1);
    snprintf(port_text, sizeof port_text, "%u", port);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)run->bytes);
    snprintf(iters, sizeof iters, "%llu", (unsigned long long)run->iters);
    snprintf(warmup, sizeof warmup, "%llu", (unsigned long long)(run->iters / 10 + 1));
    const char *args[24] = {"ucx_perftest"};
    size_t count = 1;
    if (client) {
        const char *const words[] = {"127.0.0.1", "-t", run->test, "-s", bytes, "-n",
                                     iters,       "-w", warmup,    "-f", "-v"};
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) args[count++] = words[i];
        if (run->error_handling) args[count++] = "-e";
        args[count++] = "-E";
        args[count++] = options->wait == P2P_WAIT_POLL ? "poll" : "sleep";
    }
    args[count++] = "-p";
    args[count++] = port_text;
    dup2(output, STDOUT_FILENO);
    execvp(args[0], (char *const *)args);
    _exit(127);
}

static int64_t now_ms(void)
{
    return (int64_t)(p2p_now_ns() / 1000000);
}

static void end_child(pid_t child)
{
    if (child <= 0) return;
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
}

/* The last line that is all numbers: iterations, median and average latency (us), then bandwidth (MiB/s). */
static bool parse_csv(const char *text, const struct p2p_peer_run *run, double *value_out)
{
    bool found = false;
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        double iters, median, average, overall, average_bw, overall_bw;
        if (sscanf(line, "%lf,%lf,%lf,%lf,%lf,%lf", &iters, &median, &average, &overall, &average_bw,
                   &overall_bw) != 6)
            continue;
        *value_out = run->latency ? median : overall_bw * 1048576e-9;
        /* from the time per message: the printed bandwidth is rounded to hundredths */
        if (!run->latency && overall > 0.5) *value_out = (double)run->bytes / overall * 1e-3;
        found = *value_out > 0;
    }
    return found;
}

/* Reads everything that a child writes until it closes its end. False: the deadline has passed. */
static bool read_output(int fd, char *text, size_t capacity)
{
    size_t used = 0;
    int64_t limit = now_ms() + 1000 * RUN_DEADLINE_S;
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int64_t left = limit - now_ms();
        if (left <= 0) return false;
        if (poll(&wait, 1, (int)left) <= 0) continue;
        char rest[512];
        bool full = used + 1 >= capacity;
        ssize_t got = read(fd, full ? rest : text + used, full ? sizeof rest : capacity - used - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (!full) used += (size_t)got;
    }
    text[used] = 0;
    return true;
}

bool p2p_run_ucx_perftest(const struct p2p_options *options, const struct p2p_peer_run *run,
                          double *value_out, char *error, size_t capacity)
{
    int output[2];
    char text[4096] = "";
    uint16_t port = free_port();
    int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (port == 0 || quiet < 0 || pipe2(output, O_CLOEXEC) != 0)
        return fail(error, capacity, "no port or descriptor for ucx_perftest", NULL);
    pid_t server = start_perftest(options, run, port, false, quiet), client = -1;
    int64_t limit = now_ms() + LISTEN_DEADLINE_MS;
    bool up = false, is_missing = server < 0;
    while (!up && !is_missing && now_ms() < limit) {
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        up = is_listening(port);
        is_missing = waitpid(server, NULL, WNOHANG) == server;
    }
    if (is_missing) server = -1;
    if (up) client = start_perftest(options, run, port, true, output[1]);
    close(output[1]);
    bool ended = client > 0 && read_output(output[0], text, sizeof text);
    end_child(client);
    end_child(server);
    close(output[0]);
    close(quiet);
    if (is_missing) return fail(error, capacity, "ucx_perftest cannot be run (package ucx-utils)", NULL);
    if (!ended) return fail(error, capacity, "ucx_perftest did not end in time", run->test);
    return parse_csv(text, run, value_out) ||
           fail(error, capacity, "ucx_perftest printed no result", run->test);
}

/* ---- raw measurements ---- */

/* Runs `once` for about row_ms; returns GB/s for `bytes` per call. */
static double rate(const struct p2p_options *options, uint64_t bytes, bool (*once)(void *context),
                   void *context)
{
    uint64_t count = 0, chunk = ((uint64_t)4 << 20) / bytes + 1;
    for (uint64_t i = 0; i < chunk; i++) {
        if (!once(context)) return 0;
    }
    uint64_t started_ns = p2p_now_ns(), limit_ns = started_ns + WEFT_MS(options->row_ms), now_ns = started_ns;
    while (now_ns < limit_ns) {
        for (uint64_t i = 0; i < chunk; i++) {
            if (!once(context)) return 0;
        }
        count += chunk;
        now_ns = p2p_now_ns();
    }
    return (double)count * (double)bytes / (double)(now_ns - started_ns);
}

struct copy {
    void *from, *to;
    uint64_t bytes;
    pid_t owner;
};

static bool copy_once(void *context)
{
    struct copy *copy = context;
    memcpy(copy->to, copy->from, copy->bytes);
    __asm__ volatile("" ::: "memory"); /* the compiler keeps every copy */
    return true;
}

static bool read_once(void *context)
{
    struct copy *copy = context;
    uint64_t done = 0;
    while (done < copy->bytes) {
        struct iovec local = {(char *)copy->to + done, copy->bytes - done},
                     remote = {(char *)copy->from + done, copy->bytes - done};
        ssize_t got = process_vm_readv(copy->owner, &local, 1, &remote, 1, 0);
        if (got <= 0) return false;
        done += (uint64_t)got;
    }
    return true;
}

/* Measures in a child process, so that it is pinned and touches memory as a rank does. */
static bool in_child(const struct p2p_options *options, uint64_t bytes, bool other_process, double *value_out)
{
    int output[2];
    if (pipe2(output, O_CLOEXEC) != 0) return false;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct copy copy = {.from = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
                            .to = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
                            .bytes = bytes,
                            .owner = getpid()};
        if (!copy.from || !copy.to) _exit(1);
        pin(options, 0);
        memset(copy.from, 1, bytes);
        if (other_process) copy.owner = fork();
        if (copy.owner == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(options, 0);
            memset(copy.from, 2, bytes); /* makes the pages private */
            for (;;) pause();
        }
        if (other_process) nanosleep(&(struct timespec){.tv_nsec = 20000000 + (long)(bytes / 4)}, NULL);
        pin(options, 1);
        memset(copy.to, 3, bytes);
        double value = rate(options, bytes, other_process ? read_once : copy_once, &copy);
        if (other_process) end_child(copy.owner);
        _exit(write(output[1], &value, sizeof value) == sizeof value ? 0 : 1);
    }
    close(output[1]);
    bool fine =
        child > 0 && read(output[0], value_out, sizeof *value_out) == sizeof *value_out && *value_out > 0;
    close(output[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return fine;
}

bool p2p_run_vm_readv(const struct p2p_options *options, uint64_t bytes, double *value_out, char *error,
                      size_t capacity)
{
    return in_child(options, bytes, true, value_out) ||
           fail(error, capacity, "process_vm_readv is not allowed here", NULL);
}

bool p2p_run_memcpy(const struct p2p_options *options, uint64_t bytes, double *value_out, char *error,
                    size_t capacity)
{
    return in_child(options, bytes, false, value_out) || fail(error, capacity, "no memory for memcpy", NULL);
}
