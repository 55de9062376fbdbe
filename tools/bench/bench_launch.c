/* bench_launch.c - starts the processes of a benchmark on this host.
 *
 * A benchmark is an ordinary job: this runs `weft run` on this program, and each process joins as a trainer
 * does. */
#include "tools/bench/bench.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_ARGS_MAX = 64 };

struct command {
    char log_directory[64], self[1024];
    char numbers[2][16];
    char *args[RUN_ARGS_MAX + 1];
    size_t arg_count;
};

static void add(struct command *command, const char *text)
{
    if (command->arg_count < RUN_ARGS_MAX) command->args[command->arg_count++] = (char *)text;
}

/* weft run -s S -n N --bind B --log-dir D -- weft bench WHAT (the same options) -n 0 */
static bool build_command(struct command *command, const struct bench_launch *launch)
{
    ssize_t length = readlink("/proc/self/exe", command->self, sizeof(command->self) - 1);
    if (length <= 0) {
        fprintf(stderr, "weft bench: cannot find this program: %s\n", strerror(errno));
        return false;
    }
    snprintf(command->numbers[0], sizeof(command->numbers[0]), "%u", launch->shards);
    snprintf(command->numbers[1], sizeof(command->numbers[1]), "%u", launch->processes);
    const char *const head[] = {
        command->self,       "run",    "-s",         command->numbers[0], "-n",
        command->numbers[1], "--bind", launch->bind, "--log-dir",         command->log_directory};
    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++) add(command, head[i]);
    const char *const worker[] = {"--", command->self, "bench", launch->what};
    for (size_t i = 0; i < sizeof(worker) / sizeof(worker[0]); i++) add(command, worker[i]);
    for (int i = 1; i < launch->argc; i++) add(command, launch->argv[i]);
    add(command, "-n"); /* the last -n is in force: the process takes part and starts no further job */
    add(command, "0");
    if (command->arg_count < RUN_ARGS_MAX) return true;
    fprintf(stderr, "weft bench: too many arguments\n");
    return false;
}

static bool make_log_directory(struct command *command)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary || strlen(temporary) > 40) temporary = "/tmp";
    snprintf(command->log_directory, sizeof(command->log_directory), "%s/weft-bench-XXXXXX", temporary);
    if (mkdtemp(command->log_directory)) return true;
    fprintf(stderr, "weft bench: cannot make a directory under %s: %s\n", temporary, strerror(errno));
    return false;
}

static void remove_log_directory(const struct command *command)
{
    char line[160];
    snprintf(line, sizeof(line), "rm -rf -- '%s'", command->log_directory);
    if (system(line) != 0) fprintf(stderr, "weft bench: cannot remove %s\n", command->log_directory);
}

static void run_child(const struct command *command, const struct bench_launch *launch)
{
    if (launch->output) dup2(fileno(launch->output), STDOUT_FILENO);
    if (launch->errors) dup2(fileno(launch->errors), STDERR_FILENO);
    execv(command->self, command->args);
    fprintf(stderr, "weft bench: cannot start %s: %s\n", command->self, strerror(errno));
    _exit(127);
}

/* `weft run` copies the standard output of rank 0 to its own. */
int bench_launch(const struct bench_launch *launch)
{
    struct command command = {0};
    if (!make_log_directory(&command)) return 1;
    int status = 1 << 8;
    if (build_command(&command, launch)) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) run_child(&command, launch);
        if (child < 0) fprintf(stderr, "weft bench: cannot start a process: %s\n", strerror(errno));
        while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    }
    bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (fine) remove_log_directory(&command);
    else fprintf(stderr, "weft bench: the job failed; its log files are in %s\n", command.log_directory);
    return fine ? 0 : 1;
}

/* ---- the rows of a job ---- */

static void copy_text(FILE *from, FILE *to)
{
    char block[4096];
    size_t bytes;
    rewind(from);
    while ((bytes = fread(block, 1, sizeof block, from)) > 0) fwrite(block, 1, bytes, to);
}

static json_t *read_rows(FILE *output)
{
    char line[8192];
    json_t *rows = json_array();
    rewind(output);
    while (rows && fgets(line, sizeof line, output)) {
        json_t *row = json_loads(line, 0, NULL);
        if (row) json_array_append_new(rows, row);
    }
    return rows;
}

json_t *bench_launch_rows(const struct bench_launch *launch, char *const added[])
{
    char *args[RUN_ARGS_MAX + 1];
    struct bench_launch captured = *launch;
    json_t *rows = NULL;
    int count = 0;
    for (int i = 0; i < launch->argc && count < RUN_ARGS_MAX; i++) args[count++] = launch->argv[i];
    for (int i = 0; added[i] && count < RUN_ARGS_MAX; i++) args[count++] = added[i];
    args[count++] = (char *)"--json";
    captured.argc = count;
    captured.argv = args;
    captured.output = tmpfile();
    captured.errors = tmpfile();
    if (!captured.output || !captured.errors)
        fprintf(stderr, "weft bench: cannot make a temporary file: %s\n", strerror(errno));
    else if (bench_launch(&captured) == 0) rows = read_rows(captured.output);
    else copy_text(captured.errors, stderr);
    if (captured.output) fclose(captured.output);
    if (captured.errors) fclose(captured.errors);
    return rows;
}
