/* weft.c - the `weft` command: one table of sub-commands, each with a file of its own. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/foreign/foreign.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"

struct command {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"run", weft_run_main, "start shards and workers of a job on this host and join them"},
    {"bench", weft_bench_main, "measure collectives, shards, transports, kernels and codecs"},
    {"doctor", weft_doctor_main, "find out which transports work here and between hosts, and what to do"},
    {"status", weft_status_main, "show the members and tensors of a running job"},
    {"drain", weft_drain_main, "let a shard leave a running job, after its slots have moved to the others"},
    {"rebalance", weft_rebalance_main, "move slots of a running job until the bytes of its shards are even"},
    {"top", weft_top_main, "show rates, exposed time and waits of a running job, live"},
    {"support", weft_support_main, "write one file for a report of a problem, without secrets"},
    {"inspect", weft_inspect_main, "find the ranks that held up a failed job, from its flight records"},
    {"sim", weft_sim_main, "run a collective of thousands of ranks on a simulated network"},
    {"snapshot", weft_snapshot_main, "list, verify, export and prune snapshots of the shards"},
    {"trace", weft_trace_main, "merge the trace files of a job's processes"},
};
enum { LINK_WORDS_MAX = 256 };
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(void)
{
    puts("usage: weft COMMAND [options]\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) printf("  %-9s %s\n", commands[i].name, commands[i].help);
    puts("\n`weft COMMAND --help` lists the options. The server is weftd.");
}

/* A link to weft by the name of another suite's benchmark. Returns the exit status; -1: another name. */
static int run_link(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL, *name = slash ? slash + 1 : argv[0];
    if (argc < 1 || argc > LINK_WORDS_MAX || !bench_foreign_has(name)) return -1;
    char *words[LINK_WORDS_MAX + 2] = {(char *)"bench", (char *)name};
    memcpy(words + 2, argv + 1, (size_t)argc * sizeof *argv); /* with the NULL at the end */
    return weft_bench_main(argc + 1, words);
}

static int run_command(int argc, char **argv)
{
    const int status = run_link(argc, argv);
    if (status >= 0) return status;
    if (argc < 2) return tool_usage_error("weft", "a command is missing");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        tool_print_version("weft");
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].main(argc - 1, argv + 1);
    if (bench_has(argv[1]))
        return tool_usage_error("weft", "'%s' is a benchmark: run weft bench %s", argv[1], argv[1]);
    const char *names[COMMAND_COUNT + 1] = {NULL};
    for (size_t i = 0; i < COMMAND_COUNT; i++) names[i] = commands[i].name;
    return cli_unknown_error("weft", argv[1][0] == '-' ? "option" : "command", argv[1], names);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f then has a sentence */
    return tool_end_output("weft", run_command(argc, argv));
}
