/* harness.c - runs the points of harness.h, each in a process of its own. */
#include "tests/nccl/harness.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- runs ---- */

static const struct point *const groups[] = {setup_points,  message_points, memory_points, life_points,
                                             random_points, collnet_points, oracle_points, direct_points};

static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, name, length) == 0) return true;
    return false;
}

static void child(struct harness *harness, const struct point *point)
{
    void *context;
    int count = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    CHECK(driver_open(&harness->driver, harness->plugin, harness->version), "the plugin cannot be opened");
    if (strcmp(point->name, "properties") != 0 && strcmp(point->name, "table") != 0) {
        CHECK_OK(driver_init(&harness->driver, 0, &context));
        CHECK_OK(driver_devices(&harness->driver, &count));
        CHECK_OK(driver_properties(&harness->driver, 0, &harness->properties));
        CHECK_OK(driver_finalize(&harness->driver, context));
    }
    point->run(harness);
    fflush(NULL);
    exit(0);
}

static long elapsed_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Runs one point; false: failed. */
static bool run(struct harness *harness, const struct point *point, int limit_s)
{
    int status = -1;
    long start_ms = elapsed_ms();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) child(harness, point);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int got;
    while ((got = poll(&ready, 1, limit_s * 1000)) < 0 && errno == EINTR) {
    }
    bool is_late = got == 0;
    long took_ms = elapsed_ms() - start_ms;
    kill(-pid, SIGKILL); /* also processes that the point has left */
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(fd);
    bool is_ok = !is_late && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %s (%ld ms)", is_ok ? "ok  " : "FAIL", point->name, took_ms);
    if (is_late) printf(": no end within %d s", limit_s);
    else if (WIFSIGNALED(status)) printf(": signal %d", WTERMSIG(status));
    printf("\n");
    return is_ok;
}

static int usage(void)
{
    fprintf(stderr, "usage: nccl_harness --plugin PATH [--version N] [--points a,b] [--seeds N] [--first N] "
                    "[--ranks N] [--shard PID] [--large] [--limit SECONDS] [--log]\npoints:");
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (const struct point *point = groups[g]; point->name; point++) fprintf(stderr, " %s", point->name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int count, char **arguments)
{
    static const struct option options[] = {
        {"plugin", 1, NULL, 'p'}, {"version", 1, NULL, 'v'}, {"points", 1, NULL, 'o'},
        {"seeds", 1, NULL, 's'},  {"first", 1, NULL, 'f'},   {"large", 0, NULL, 'l'},
        {"limit", 1, NULL, 'm'},  {"log", 0, NULL, 'g'},     {"ranks", 1, NULL, 'r'},
        {"shard", 1, NULL, 'k'},  {NULL, 0, NULL, 0}};
    struct harness harness = {.seeds = 20, .first_seed = 1};
    const char *points = NULL;
    int limit_s = 60, failed = 0, ran = 0;
    for (int option; (option = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': harness.plugin = optarg; break;
        case 'v': harness.version = atoi(optarg); break;
        case 'o': points = optarg; break;
        case 's': harness.seeds = atoi(optarg); break;
        case 'f': harness.first_seed = atoi(optarg); break;
        case 'l': harness.is_large = true; break;
        case 'r': harness.ranks = atoi(optarg); break;
        case 'k': harness.shard = atoi(optarg); break;
        case 'm': limit_s = atoi(optarg); break;
        case 'g': driver_logs = true; break;
        default: return usage();
        }
    }
    if (!harness.plugin) return usage();
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (const struct point *point = groups[g]; point->name; point++) {
            if (points && !is_listed(points, point->name)) continue;
            ran++;
            if (!run(&harness, point, limit_s)) failed++;
        }
    }
    printf("%d points, %d failed\n", ran, failed);
    return failed > 0 || ran == 0;
}
