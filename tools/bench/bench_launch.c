/* bench_launch.c - starts the processes of a benchmark on this host.
 *
 * A benchmark is an ordinary job: this runs `weft run` on this program, and each process joins as a trainer
 * does. */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_ARGS_MAX = 64 };

struct launch {
    char log_directory[64], self[1024];
    char numbers[2][16];
    char *args[RUN_ARGS_MAX + 1];
    size_t arg_count;
};

static void add(struct launch *launch, const char *text)
{
    if (launch->arg_count < RUN_ARGS_MAX) launch->args[launch->arg_count++] = (char *)text;
}

/* weft run -s S -n N --bind B --log-dir D -- weft bench WHAT (the same options) -n 0 */
static bool build_command(struct launch *launch, uint32_t shards, uint32_t processes, const char *bind,
                          const char *what, int argc, char **argv)
{
    ssize_t length = readlink("/proc/self/exe", launch->self, sizeof(launch->self) - 1);
    if (length <= 0) {
        fprintf(stderr, "weft bench: cannot find this program: %s\n", strerror(errno));
        return false;
    }
    snprintf(launch->numbers[0], sizeof(launch->numbers[0]), "%u", shards);
    snprintf(launch->numbers[1], sizeof(launch->numbers[1]), "%u", processes);
    const char *const head[] = {
        launch->self,       "run",    "-s", launch->numbers[0], "-n",
        launch->numbers[1], "--bind", bind, "--log-dir",        launch->log_directory};
    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++) add(launch, head[i]);
    const char *const worker[] = {"--", launch->self, "bench", what};
    for (size_t i = 0; i < sizeof(worker) / sizeof(worker[0]); i++) add(launch, worker[i]);
    for (int i = 1; i < argc; i++) add(launch, argv[i]);
    add(launch, "-n"); /* the last -n is in force: the process takes part and starts no further job */
    add(launch, "0");
    if (launch->arg_count < RUN_ARGS_MAX) return true;
    fprintf(stderr, "weft bench: too many arguments\n");
    return false;
}

static bool make_log_directory(struct launch *launch)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary || strlen(temporary) > 40) temporary = "/tmp";
    snprintf(launch->log_directory, sizeof(launch->log_directory), "%s/weft-bench-XXXXXX", temporary);
    if (mkdtemp(launch->log_directory)) return true;
    fprintf(stderr, "weft bench: cannot make a directory under %s: %s\n", temporary, strerror(errno));
    return false;
}

static void remove_log_directory(const struct launch *launch)
{
    char command[160];
    snprintf(command, sizeof(command), "rm -rf -- '%s'", launch->log_directory);
    if (system(command) != 0) fprintf(stderr, "weft bench: cannot remove %s\n", launch->log_directory);
}

/* `weft run` copies the standard output of rank 0 to its own, which is ours. */
int bench_launch(uint32_t shards, uint32_t processes, const char *bind, const char *what, int argc,
                 char **argv)
{
    struct launch launch = {0};
    if (!make_log_directory(&launch)) return 1;
    int status = 1 << 8;
    if (build_command(&launch, shards, processes, bind, what, argc, argv)) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            execv(launch.self, launch.args);
            fprintf(stderr, "weft bench: cannot start %s: %s\n", launch.self, strerror(errno));
            _exit(127);
        }
        if (child < 0) fprintf(stderr, "weft bench: cannot start a process: %s\n", strerror(errno));
        while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    }
    bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (fine) remove_log_directory(&launch);
    else fprintf(stderr, "weft bench: the job failed; its log files are in %s\n", launch.log_directory);
    return fine ? 0 : 1;
}
