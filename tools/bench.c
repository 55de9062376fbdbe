/* bench.c - `weft bench`: chooses the benchmark and, with -n, starts the processes it runs in.
 *
 * A benchmark is an ordinary job: the launcher runs `weft run` on this same program, and each process
 * joins as any trainer does. Rank 0's rows come back through a named pipe, so they appear as they are
 * measured whatever the launcher does with the output of its processes. */
#include "tools/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_job.h"
#include "tools/bench_options.h"

static const char help[] =
    "usage: weft bench WHAT [options]\n\n"
    "  all_reduce   time and bandwidth of the all-reduce, every element of the result checked\n"
    "  push_pull    the same through parameter-server shards\n"
    "  compare      two commands in turn, the median ratio and its noise\n"
    "  plot         charts (SVG) of CSV files\n\n"
    "With -n N, all_reduce and push_pull start N processes on this host; without it they take part in the job they\n"
    "were started in: weft run -n 4 -- weft bench all_reduce. `weft bench WHAT --help` has the options.\n";

enum { RUN_ARGS_MAX = 64 };

struct launch {
    char directory[64], pipe_path[96], self[1024];
    char *args[RUN_ARGS_MAX + 1];
    size_t arg_count;
};

static void add(struct launch *launch, const char *text)
{
    if (launch->arg_count < RUN_ARGS_MAX) launch->args[launch->arg_count++] = (char *)text;
}

/* weft run -s S -n N -- weft bench WHAT (the same options, less -n and -s) --output PIPE */
static bool build_command(struct launch *launch, const struct bench_options *options, int argc, char **argv, char numbers[2][16])
{
    ssize_t length = readlink("/proc/self/exe", launch->self, sizeof(launch->self) - 1);
    if (length <= 0) {
        fprintf(stderr, "weft bench: cannot find this program: %s\n", strerror(errno));
        return false;
    }
    launch->self[length] = 0;
    snprintf(numbers[0], 16, "%u", options->shards);
    snprintf(numbers[1], 16, "%u", options->processes);
    const char *const head[] = {launch->self, "run", "-s", numbers[0], "-n", numbers[1], "--log-dir", launch->directory, "--",
                                launch->self, "bench", bench_kind_name(options->kind), "--output", launch->pipe_path};
    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++) add(launch, head[i]);
    for (int i = 1; i < argc; i++) add(launch, argv[i]);
    add(launch, "-n"); /* the later one counts: take part, do not launch again */
    add(launch, "0");
    if (launch->arg_count < RUN_ARGS_MAX) return true;
    fprintf(stderr, "weft bench: too many arguments\n");
    return false;
}

static bool make_pipe(struct launch *launch)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary || strlen(temporary) > 40) temporary = "/tmp";
    snprintf(launch->directory, sizeof(launch->directory), "%s/weft-bench-XXXXXX", temporary);
    if (!mkdtemp(launch->directory)) {
        fprintf(stderr, "weft bench: cannot make a directory under %s: %s\n", temporary, strerror(errno));
        return false;
    }
    snprintf(launch->pipe_path, sizeof(launch->pipe_path), "%s/rows", launch->directory);
    if (mkfifo(launch->pipe_path, 0600) == 0) return true;
    fprintf(stderr, "weft bench: cannot make the pipe %s: %s\n", launch->pipe_path, strerror(errno));
    rmdir(launch->directory);
    return false;
}

/* Copies rank 0's rows until the job has ended and the pipe is empty. Returns the wait status. */
static int relay_rows(int pipe_fd, pid_t child)
{
    char buffer[4096];
    int status = 0;
    bool ended = false;
    for (;;) {
        struct pollfd entry = {.fd = pipe_fd, .events = POLLIN};
        poll(&entry, 1, ended ? 0 : 50);
        ssize_t got = entry.revents & POLLIN ? read(pipe_fd, buffer, sizeof(buffer)) : 0;
        if (got > 0) {
            fwrite(buffer, 1, (size_t)got, stdout);
            fflush(stdout);
            continue;
        }
        if (ended) return status;
        if (entry.revents & POLLHUP) poll(NULL, 0, 20); /* rank 0 has closed; the others still leave */
        ended = waitpid(child, &status, WNOHANG) == child;
    }
}

static void remove_directory(const struct launch *launch)
{
    char command[160];
    snprintf(command, sizeof(command), "rm -rf -- '%s'", launch->directory);
    if (system(command) != 0) fprintf(stderr, "weft bench: cannot remove %s\n", launch->directory);
}

static int launch_job(const struct bench_options *options, int argc, char **argv)
{
    struct launch launch = {0};
    char numbers[2][16];
    if (!make_pipe(&launch)) return 1;
    int pipe_fd = open(launch.pipe_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int wait_status = 1 << 8;
    if (pipe_fd >= 0 && build_command(&launch, options, argc, argv, numbers)) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            if (options->lanes) setenv("WEFT_TRANSPORT_LANES", options->lanes, 1); /* of the shards, too */
            dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output is for the rows */
            execv(launch.self, launch.args);
            fprintf(stderr, "weft bench: cannot start %s: %s\n", launch.self, strerror(errno));
            _exit(127);
        }
        if (child > 0) wait_status = relay_rows(pipe_fd, child);
        else fprintf(stderr, "weft bench: cannot start a process: %s\n", strerror(errno));
    }
    if (pipe_fd >= 0) close(pipe_fd);
    bool fine = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    if (!fine) fprintf(stderr, "weft bench: the job failed; its log files are in %s\n", launch.directory);
    else remove_directory(&launch);
    return fine ? 0 : 1;
}

static int measure(enum bench_kind kind, int argc, char **argv)
{
    struct bench_options options;
    int answer = bench_options_parse(&options, kind, argc, argv);
    if (answer != 0) return answer - 1;
    if (options.processes > 0) return launch_job(&options, argc, argv);
    if (!getenv("WEFT_COORDINATOR")) {
        fprintf(stderr, "weft bench: there is no job to take part in; say -n 2 to start one on this host\n");
        return 2;
    }
    return bench_job_run(&options);
}

int weft_bench_main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "all_reduce") == 0) return measure(BENCH_ALL_REDUCE, argc - 1, argv + 1);
    if (strcmp(what, "push_pull") == 0) return measure(BENCH_PUSH_PULL, argc - 1, argv + 1);
    if (strcmp(what, "plot") == 0) return weft_bench_plot_main(argc - 1, argv + 1);
    if (strcmp(what, "compare") == 0) return weft_bench_compare_main(argc - 1, argv + 1);
    bool asked = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0 || strcmp(what, "help") == 0;
    if (!asked && *what) fprintf(stderr, "weft bench: there is no benchmark '%s'\n", what);
    fputs(help, asked ? stdout : stderr);
    return asked ? 0 : 2;
}
