/* compare_torch.c - see compare_torch.h.
 *
 * torch_peer.py runs as a second process and answers one line for each request; between requests it sleeps.
 * The gradient is in a memfd that both processes map, so both use the same numbers. */
#include "tools/bench/kernels/compare_torch.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/kernels/codec_case.h"
#include "tools/bench/kernels/kernelbench.h"
#include "tools/bench/lib/samples.h"

extern char **environ;

enum { ROUNDS_MAX = 1000, ANSWER_MS = 600000, LINE_BYTES = 256 };

struct peer {
    pid_t process;
    int requests, answers; /* our ends of the pipes; -1: none */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* In a build folder it is in the directory of the program, after installation in the data folder. */
static bool find_script(char *path_out, size_t bytes)
{
    static const char *const places[] = {"torch_peer.py", "../share/weft/torch_peer.py"};
    char folder[4096];
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length <= 0) return false;
    folder[length] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int written = snprintf(path_out, bytes, "%s/%s", folder, places[i]);
        if (written > 0 && (size_t)written < bytes && access(path_out, R_OK) == 0) return true;
    }
    return false;
}

/* Debian's python3, because python3-torch is installed for that one. */
static bool start(struct peer *peer, char *script, int data, size_t count)
{
    int in[2], out[2];
    char path[64], elements[32];
    char *const arguments[] = {"python3", script, path, elements, NULL};
    posix_spawn_file_actions_t actions;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), data);
    snprintf(elements, sizeof elements, "%zu", count);
    if (pipe(in) != 0) return false;
    if (pipe(out) != 0) {
        close(in[0]);
        close(in[1]);
        return false;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, in[i]);
        posix_spawn_file_actions_addclose(&actions, out[i]);
    }
    const char *python = access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
    const bool started = posix_spawnp(&peer->process, python, &actions, NULL, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    peer->requests = in[1];
    peer->answers = out[0];
    if (!started) peer->process = -1;
    return started;
}

static void stop(struct peer *peer)
{
    if (peer->requests >= 0) close(peer->requests);
    if (peer->answers >= 0) close(peer->answers);
    if (peer->process <= 0) return;
    kill(peer->process, SIGTERM); /* the last answer has been read */
    waitpid(peer->process, NULL, 0);
}

/* Reads one line without its end. False: none within the limit, or the peer has ended. */
static bool read_line(const struct peer *peer, char *line_out)
{
    size_t length = 0;
    while (length + 1 < LINE_BYTES) {
        struct pollfd ready = {.fd = peer->answers, .events = POLLIN};
        if (poll(&ready, 1, ANSWER_MS) <= 0 || read(peer->answers, line_out + length, 1) != 1) return false;
        if (line_out[length] == '\n') {
            line_out[length] = 0;
            return true;
        }
        length++;
    }
    return false;
}

static bool ask(const struct peer *peer, const char *request, double *seconds_out)
{
    char line[LINE_BYTES];
    const size_t bytes = strlen(request);
    if (write(peer->requests, request, bytes) != (ssize_t)bytes || !read_line(peer, line)) return false;
    *seconds_out = strtod(line, NULL);
    return *seconds_out > 0;
}

static const struct comparison {
    const char *name, *peer, *request, *codec;
    bool square;
    double goal;
} comparisons[] = {
    {"top-k 1 % with residual", "torch.topk", "topk\n", "topk:ratio=0.01", false, 10},
    {"powersgd rank 4", "torch's hook", "powersgd\n", "powersgd:rank=4", true, 2.5},
};

static bool compare(const struct comparison *c, const struct peer *peer, const float *data, size_t count,
                    uint32_t rounds, float *out, struct torch_row *row_out, char *reason_out,
                    size_t reason_bytes)
{
    static double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], scratch[ROUNDS_MAX];
    struct codec_case *codec = codec_case_open(c->codec, c->square, count);
    bool fine = codec != NULL;
    if (!fine) snprintf(reason_out, reason_bytes, "no memory for %zu elements: use a smaller --count", count);
    /* round 0 is the warm-up and is overwritten */
    for (uint32_t round = 0; round <= rounds && fine; round++) {
        const uint32_t at = round == 0 ? 0 : round - 1;
        const double begin = now_s();
        codec_case_step(codec, data, out);
        ours[at] = now_s() - begin;
        fine = ask(peer, c->request, &theirs[at]);
        if (!fine)
            snprintf(reason_out, reason_bytes,
                     "torch_peer.py gave no answer to '%.*s'; its own words are above",
                     (int)strlen(c->request) - 1, c->request);
    }
    if (fine) {
        const struct bench_ratio ratio = bench_compare(ours, theirs, rounds, scratch);
        *row_out = (struct torch_row){
            .name = c->name,
            .peer = c->peer,
            .count = codec_case_elems(codec),
            .ours_s = bench_summarise(ours, rounds).p50,
            .theirs_s = bench_summarise(theirs, rounds).p50,
            .ratio = ratio.median,
            .ratio_low = ratio.low,
            .ratio_high = ratio.high,
            .goal = c->goal,
        };
    }
    if (codec) codec_case_close(codec);
    return fine;
}

static bool run(const struct peer *peer, const float *data, float *out, size_t count, uint32_t rounds,
                void (*about)(void *context, const char *text),
                void (*row)(void *context, const struct torch_row *row), void *context, char *reason_out,
                size_t reason_bytes)
{
    char line[LINE_BYTES];
    if (!read_line(peer, line) || strncmp(line, "ready ", 6) != 0) {
        snprintf(reason_out, reason_bytes,
                 "PyTorch did not start (on Debian: apt-get install python3-torch)");
        return false;
    }
    about(context, line + 6);
    for (size_t i = 0; i < sizeof comparisons / sizeof comparisons[0]; i++) {
        struct torch_row result;
        if (!compare(&comparisons[i], peer, data, count, rounds, out, &result, reason_out, reason_bytes))
            return false;
        row(context, &result);
    }
    return true;
}

bool compare_torch(size_t count, uint32_t rounds, void (*about)(void *context, const char *text),
                   void (*row)(void *context, const struct torch_row *row), void *context, char *reason_out,
                   size_t reason_bytes)
{
    const size_t bytes = count * sizeof(float);
    const int memory = memfd_create("weft-bench-gradient", 0); /* the peer opens it by /proc/PID/fd */
    float *data = MAP_FAILED, *out = malloc(bytes);
    char script[4096 + 32];
    struct peer peer = {-1, -1, -1};
    bool fine = memory >= 0 && out && ftruncate(memory, (off_t)bytes) == 0;
    if (rounds > ROUNDS_MAX) rounds = ROUNDS_MAX;
    if (fine) data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    fine = fine && data != MAP_FAILED;
    if (!fine) snprintf(reason_out, reason_bytes, "no memory for %zu elements: use a smaller --count", count);
    if (fine) {
        kernelbench_fill_normal(data, count, 1);
        signal(SIGPIPE, SIG_IGN);
        fine = find_script(script, sizeof script) && start(&peer, script, memory, count);
        if (!fine) snprintf(reason_out, reason_bytes, "torch_peer.py or python3 is not there");
    }
    if (fine) fine = run(&peer, data, out, count, rounds, about, row, context, reason_out, reason_bytes);
    stop(&peer);
    if (data != MAP_FAILED) munmap(data, bytes);
    if (memory >= 0) close(memory);
    free(out);
    return fine;
}
