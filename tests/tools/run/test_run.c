/* test_run.c - `weft run`, `weft status` and weftd as processes: orderly ends, failures, refusals. Each case
 * starts real processes; the argument selects a group of cases ("usage": no job is started; "jobs"). */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tests/lib/process.h"
#include "tests/lib/temp_dir.h"

#define WAIT_MS 20000

static const char *weft, *weftd, *worker; /* paths, from the environment */

/* Runs the command to its end; the output must contain both texts (NULL: none). */
static void expect(const char *const *argv, int exit_code, const char *text, const char *another)
{
    struct process *process = process_start(argv, NULL);
    if (!process_wait(process, WAIT_MS))
        fail_msg("%s %s did not end:\n%s", argv[0], argv[1], process_output(process));
    const char *output = process_output(process);
    if (process_exit_code(process) != exit_code)
        fail_msg("exit status %d, not %d:\n%s", process_exit_code(process), exit_code, output);
    if ((text && !strstr(output, text)) || (another && !strstr(output, another)))
        fail_msg("'%s', '%s' are not in:\n%s", text ? text : "", another ? another : "", output);
    process_free(process);
}
#define WORDS(...)        \
    (const char *const[]) \
    {                     \
        __VA_ARGS__, NULL \
    }

/* Checks the text of another file of the job. */
static void expect_in_log(const char *directory, const char *name, const char *text)
{
    char path[600], data[8192];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0) fail_msg("no log %s", path);
    ssize_t bytes = read(fd, data, sizeof data - 1);
    close(fd);
    data[bytes < 0 ? 0 : bytes] = 0;
    if (!strstr(data, text)) fail_msg("'%s' is not in %s:\n%s", text, path, data);
}

static void usage(void **state)
{
    expect(WORDS(weft), 2, "weft: a command is missing; see weft --help", NULL);
    expect(WORDS(weft, "frobnicate"), 2, "weft: unknown command 'frobnicate'", NULL);
    expect(WORDS(weft, "--frob"), 2, "weft: unknown option '--frob'", NULL);
    expect(WORDS(weft, "benhc"), 2, "weft: unknown command 'benhc' (did you mean 'bench'?); see weft --help",
           NULL);
    expect(WORDS(weft, "--help"), 0, "run ", "status ");
    expect(WORDS(weft, "--version"), 0, "weft 0.1.0 (wire version 2)", NULL);
    expect(WORDS(weft, "run", "--help"), 0, "usage: weft run", "Exit status");
    expect(WORDS(weft, "run", "--version"), 0, "weft run 0.1.0", NULL);
    expect(WORDS(weft, "run"), 2, "the trainer is missing", NULL);
    expect(WORDS(weft, "run", "-n", "none", "--", "true"), 2,
           "--workers: 'none' is not a whole number from 1 to 4096; see weft run --help", NULL);
    expect(WORDS(weft, "run", "-n"), 2, "option -n needs a value", NULL);
    expect(WORDS(weft, "run", "--bogus", "--", "true"), 2, "unknown option '--bogus'", NULL);
    expect(WORDS(weft, "run", "--http", "--", "true"), 2, "--http is served by shard 0", NULL);
    expect(WORDS(weft, "run", "-n", "2", "--min-workers", "3", "--", "true"), 2,
           "--min-workers is at most the number of workers, 2", NULL);
    expect(WORDS(weft, "run", "-n", "2", "-s", "1", "--restarts", "1", "--", "true"), 2,
           "--restarts require --min-workers", NULL);
    expect(WORDS(weft, "run", "-n", "2", "--max-workers", "4", "--", "true"), 2, "require --min-workers",
           NULL);
    expect(WORDS(weft, "run", "-n", "2", "--min-workers", "1", "--max-workers", "1", "--", "true"), 2,
           "--max-workers is at least", NULL);
    char *directory = temp_dir_make(); /* the working directory may not be writable */
    expect(WORDS(weft, "run", "-n", "1", "--min-workers", "1", "--max-workers", "3", "--job", "open", "-l",
                 directory, "--", "true", "a b", "it's"),
           0,
           "up to 3 workers may run; each further one joins by this command on this host, without "
           "WEFT_RANK:\n  WEFT_COORDINATOR=127.0.0.1:",
           "/secret true 'a b' 'it'\\''s'\n");
    temp_dir_remove(directory);
    expect(WORDS(weft, "run", "--bind", "socket", "--", "true"), 2,
           "--bind: 'socket' is not none, core or auto", NULL);
    expect(WORDS(weft, "run", "-j", "a/b", "--", "true"), 2, "no slash", NULL);
    expect(WORDS(weft, "run", "--log-dir", "", "--", "true"), 2, "--log-dir is empty", NULL);
    expect(WORDS(weft, "status", "--help"), 0, "usage: weft status", NULL);
    expect(WORDS("env", "-u", "WEFT_COORDINATOR", weft, "status"), 2,
           "HOST:PORT of the coordinator is missing", NULL);
    expect(WORDS(weft, "status", "nowhere"), 2, "'nowhere' is no address: give HOST:PORT", NULL);
    expect(WORDS(weft, "status", "h:1", "h:2"), 2, "unexpected argument 'h:2'", NULL);
    expect(WORDS(weftd, "--help"), 0, "usage: weftd", NULL);
    expect(WORDS(weftd, "-n", "2", "--min-workers", "3", "-p", "0"), 2,
           "--min-workers is at most the number of workers, 2", NULL);
    expect(WORDS(weftd, "-n", "2", "--max-workers", "3", "-p", "0"), 2,
           "--max-workers requires --min-workers", NULL);
    expect(WORDS(weftd, "--max-workers", "1", "-c", "127.0.0.1:1"), 2, "are for the coordinator", NULL);
    expect(WORDS(weftd, "--min-workers", "1", "-c", "127.0.0.1:1"), 2, "are for the coordinator", NULL);
    expect(WORDS(weftd, "--help-options"), 0, "server.heartbeat", NULL);
    expect(WORDS(weftd, "--version"), 0, "weftd 0.1.0", NULL);
    expect(WORDS(weftd, "--bogus"), 2, "unknown option '--bogus'", NULL);
    expect(WORDS(weftd, "extra"), 2, "unexpected argument 'extra'", NULL);
    expect(WORDS(weftd, "--set", "server.port"), 2, "--set wants NAME=VALUE", NULL);
    expect(WORDS(weftd, "--set", "server.prot=1"), 2, "server.prot", NULL);
    expect(WORDS(weftd, "--secret-file", "/nonexistent/secret"), 1,
           "cannot read the secret file /nonexistent/secret: No such file", NULL);
    expect(WORDS(weftd, "--secret-file", "/dev/null"), 1, "one line of 16 to 4096 characters", NULL);
    expect(WORDS(weftd, "--listen", "0.0.0.0"), 1, "will not listen on 0.0.0.0 without a job secret", NULL);
    expect(WORDS(weftd, "--listen", "::"), 1, "will not listen on ::", NULL);
    expect(WORDS(weftd, "-c", "nowhere"), 1, "'nowhere' is no address", NULL);
    expect(WORDS(weftd, "-c", "127.0.0.1:1", "-p", "5"), 1, "a port is for the coordinator in this process",
           NULL);
    expect(WORDS(weftd, "extra", "--check-config", "more"), 2, "unexpected argument 'more'", NULL);
    expect(WORDS(weftd, "--port-file", "/nonexistent/ports"), 1,
           "cannot write the port file /nonexistent/ports: No such file", NULL);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) fail_msg("cannot write %s", path);
}

/* `weftd --check-config` refuses what a start refuses, and prints each changed value with its source. */
static void check_config(void **state)
{
    char path[600], line[1400];
    char *directory = temp_dir_make();
    snprintf(path, sizeof path, "%s/weft.ini", directory);
    write_file(path, "[server]\nheartbeat = 10s\n\n[transport]\nlanes = tcp,self\n");
    snprintf(line, sizeof line, "transport.lanes  = tcp,self  (%s)\nserver.heartbeat = 10s       (%s)\n",
             path, path);
    expect(WORDS(weftd, "--check-config", path), 0, line, NULL);
    expect(WORDS(weftd, "--check-config", "--config", path, "-p", "7000"), 0,
           "server.port      = 7000      (--port)\n", "server.heartbeat = 10s       (");
    expect(WORDS("env", "WEFT_JOB=demo", "WEFT_SERVER_ENGINES=2", weftd, "--check-config"), 0,
           "job.name       = demo  (WEFT_JOB)\nserver.engines = 2     (WEFT_SERVER_ENGINES)\n", NULL);
    write_file(path, "[server]\nheartbeat = 30000\n[client]\n\nskip_nonfinite = off\n");
    expect(WORDS("sh", "-c", "test -z \"$($0 --check-config $1)\"", weftd, path), 0, NULL, NULL);
    write_file(path, "[server]\nheartbeats = 10s\n");
    snprintf(line, sizeof line, "weftd: %s:2: there is no option server.heartbeats; did you mean", path);
    expect(WORDS(weftd, "--check-config", path), 1, line, NULL);
    write_file(path, "[server]\nlisten = 0.0.0.0\n");
    expect(WORDS(weftd, "--check-config", path), 1, "will not listen on 0.0.0.0 without a job secret", NULL);
    expect(WORDS(weftd, "--check-config", "--devices", "eth0"), 1, "secret", NULL);
    expect(WORDS(weftd, "--check-config", "--set", "snapshot.keep=9"), 0,
           "weftd: snapshot.keep has no effect without snapshot.folder", NULL);
    expect(WORDS(weftd, "--check-config", "-c", "nowhere"), 1, "'nowhere' is no address", NULL);
    expect(WORDS(weftd, "--check-config", "/nonexistent.ini"), 1, "/nonexistent.ini cannot be opened", NULL);
    temp_dir_remove(directory);
}

/* `weft bench compare`: exit statuses and messages about wrong usage; text that looks like a file name is
 * never executed. */
static void bench_compare(void **state)
{
    char a[600], b[600], wrong[600];
    char *directory = temp_dir_make();
    snprintf(a, sizeof a, "%s/a.json", directory);
    snprintf(b, sizeof b, "%s/b.json", directory);
    snprintf(wrong, sizeof wrong, "%s/wrong.json", directory);
    write_file(a, "{\"op\": \"x\", \"time_us\": 4}\n");
    write_file(b, "{\"op\": \"x\", \"time_us\": 6}\nnoise\n");
    write_file(wrong, "{\"op\": \"x\", \"time_us\": 4, \"wrong\": 7}\n{\"op\": \"y\", \"time_us\": 4}\n");
    expect(WORDS(weft, "bench", "compare", "--help"), 0, "A.json B.json", "Exit status");
    expect(WORDS(weft, "bench", "compare", a, b), 3, "1.500", "SLOWER");
    expect(WORDS(weft, "bench", "compare", a, b), 3, "0 faster, 1 slower, 0 within the noise", "1 lines of");
    expect(WORDS(weft, "bench", "compare", "--json", b, a), 0, "\"b_is\":\"faster\"",
           "\"bounds\":\"assumed\"");
    expect(WORDS(weft, "bench", "compare", "--noise", "60", a, b), 0, "within noise", NULL);
    expect(WORDS(weft, "bench", "compare", a, wrong), 1, "1 rows of",
           "have wrong contents: their times mean nothing");
    expect(WORDS(weft, "bench", "compare", "--key", "p50_us", a, b), 1, "no row of",
           "has a number 'p50_us' above 0");
    expect(WORDS(weft, "bench", "compare", a, "nowhere.json"), 1,
           "cannot read nowhere.json: No such file or directory", NULL);
    expect(WORDS(weft, "bench", "compare", a, directory), 1, "Is a directory", NULL);
    expect(WORDS(weft, "bench", "compare", a, "true"), 2, "true is no file of rows, but the other is", NULL);
    expect(WORDS(weft, "bench", "compare", a), 2,
           "needs two files of rows, or two commands; see weft bench compare --help", NULL);
    expect(WORDS(weft, "bench", "compare", "--noise", "x", a, b), 2,
           "--noise: 'x' is not a number from 0 to 99", NULL);
    expect(WORDS(weft, "bench", "compare", "--pairs", "0", "true", "true"), 2,
           "--pairs: '0' is not a whole number from 1 to 1000", NULL);
    expect(WORDS(weft, "bench", "compare", "--pairs", "3", a, b), 2, "--pairs is for commands", NULL);
    expect(WORDS(weft, "bench", "compare", "--bogus", a, b), 2, "unknown option '--bogus'", NULL);
    expect(WORDS(weft, "bench", "compare", a, b, "--noise"), 2, "--noise needs a value", NULL);
    expect(WORDS(weft, "bench", "compare", "--pairs", "1", "true", "exit 5"), 1, "'exit 5' failed (status 5)",
           NULL);
    char full[1400];
    snprintf(full, sizeof full, "'%s' bench compare --json '%s' '%s' > /dev/full", weft, a, b);
    expect(WORDS("sh", "-c", full), 1, "cannot write the result: No space left on device", NULL);
    temp_dir_remove(directory);
}

/* Every command: a wrong option gives one line with the name of the command, and exit status 2; --help gives
 * 0. */
static void every_command(void **state)
{
    static const char *const commands[][2] = {
        {"run"},
        {"status"},
        {"doctor"},
        {"inspect"},
        {"sim"},
        {"trace"},
        {"bench", "all_reduce"},
        {"bench", "broadcast"},
        {"bench", "sendrecv"},
        {"bench", "push_pull"},
        {"bench", "replay"},
        {"bench", "waiting"},
        {"bench", "checks"},
        {"bench", "exposed"},
        {"bench", "start"},
        {"bench", "calibrate"},
        {"bench", "reduction-order"},
        {"bench", "kernels"},
        {"bench", "cacheline"},
        {"bench", "codec"},
        {"bench", "p2p"},
        {"bench", "compare"},
        {"bench", "plot"},
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *first = commands[i][0], *second = commands[i][1];
        char name[100], sentence[300];
        snprintf(name, sizeof name, "weft %s%s%s", first, second ? " " : "", second ? second : "");
        snprintf(sentence, sizeof sentence,
                 "%s: unknown option '--hepl' (did you mean '--help'?); see %s --help\n", name, name);
        if (second) expect(WORDS(weft, first, second, "--hepl"), 2, sentence, NULL);
        else expect(WORDS(weft, first, "--hepl"), 2, sentence, NULL);
        snprintf(sentence, sizeof sentence, "usage: %s", name);
        if (second) expect(WORDS(weft, first, second, "--help"), 0, sentence, "-h, --help");
        else expect(WORDS(weft, first, "--help"), 0, sentence, "-h, --help");
    }
}

/* Old names work for one release: the new command, and one line on stderr. */
static void old_names(void **state)
{
    expect(WORDS(weft, "bench", "orders", "--help"), 0,
           "weft bench: orders is the old name of reduction-order and will be removed\n",
           "usage: weft bench reduction-order");
    expect(WORDS(weft, "bench", "lines", "--help"), 0,
           "weft bench: lines is the old name of cacheline and will be removed\n",
           "usage: weft bench cacheline");
    expect(WORDS(weft, "bench", "kernels", "--beside", "torch", "--only", "sum"), 2,
           "weft bench kernels: --beside is the old name of --compare and will be removed\n", NULL);
    expect(WORDS(weft, "bench", "p2p", "--beside", "jax"), 2,
           "weft bench p2p: --beside is the old name of --compare and will be removed\n",
           "'jax' is not ucx_perftest");
    expect(WORDS(weft, "sim", "-n", "65", "--beside", "tcp"), 2,
           "weft sim: --beside is the old name of --compare and will be removed\n",
           "--compare measures 2 to 64 ranks");
}

/* Wrong usage and full disks: one sentence each. */
static void bench_words(void **state)
{
    char full[700];
    expect(WORDS(weft, "bench"), 2, "usage: weft bench", NULL);
    expect(WORDS(weft, "bench", "nonsense"), 2, "weft bench: unknown benchmark 'nonsense'", NULL);
    expect(WORDS(weft, "bench", "al_reduce"), 2,
           "unknown benchmark 'al_reduce' (did you mean 'all_reduce'?); see weft bench --help", NULL);
    expect(WORDS(weft, "bench", "p2p", "--help"), 0, "usage: weft bench p2p", "--peers");
    expect(WORDS(weft, "bench", "p2p", "--bogus"), 2,
           "weft bench p2p: unknown option '--bogus'; see weft bench p2p --help", NULL);
    expect(WORDS(weft, "bench", "p2p", "-z"), 2, "unknown option '-z'", NULL);
    expect(WORDS(weft, "bench", "p2p", "-b"), 2, "-b needs a value", NULL);
    expect(WORDS(weft, "bench", "p2p", "-b", "8", "-e", "4"), 2,
           "the first size (-b) is larger than the last", NULL);
    expect(WORDS(weft, "bench", "p2p", "--op", "shout"), 2, "--op: 'shout' is not send, put, get or all",
           NULL);
    expect(WORDS(weft, "bench", "p2p", "--peers", "3", "-n", "2"), 2, "--peers N means -n N+1", NULL);
    expect(WORDS(weft, "bench", "p2p", "--peers", "0"), 2, "--peers: '0' is not a whole number from 1 to 255",
           NULL);
    expect(WORDS(weft, "bench", "p2p", "-n", "1"), 2, "two processes are the minimum", NULL);
    expect(WORDS(weft, "bench", "p2p", "--transport", "pigeon"), 1,
           "rank 0: transport backend \"pigeon\" is unknown", NULL);
    expect(WORDS(weft, "bench", "all_reduce", "--bogus"), 2,
           "weft bench all_reduce: unknown option '--bogus'", NULL);
    expect(WORDS(weft, "bench", "all_reduce", "--bind", "socket"), 2,
           "weft bench all_reduce: --bind: 'socket' is not none, core or auto", NULL);
    expect(WORDS(weft, "bench", "push_pull", "--plan", "ring"), 2, "--plan is not an option of push_pull",
           NULL);
    expect(WORDS(weft, "bench", "codec", "-q"), 2, "weft bench codec: unknown option '-q'", NULL);
    expect(WORDS(weft, "bench", "codec", "--codec", "topc"), 2, "codec \"topc\" is unknown", NULL);
    expect(WORDS(weft, "bench", "codec", "--size", "1M,"), 2,
           "--size: '1M,' is not a list of at most 32 sizes from 64 to 4G", NULL);
    expect(WORDS(weft, "bench", "codec", "--ranks", "0"), 2,
           "--ranks: '0' is not a whole number from 1 to 64", NULL);
    expect(WORDS(weft, "bench", "codec", "more"), 2, "unexpected argument 'more'", NULL);
    expect(WORDS(weft, "bench", "codec", "--help"), 0, "pays below", "--json");
    expect(WORDS(weft, "bench", "codec", "-s", "4K", "-c", "dense", "-r", "1", "--json"), 0, "\"ratio\":1.0,",
           "\"pays_below_Gbps\":0.0");
    expect(WORDS(weft, "bench", "codec", "-s", "64K", "-c", "bf16", "-c", "topk", "-r", "1", "-n", "4"), 0,
           "topk:ratio=0.01", "pays below");
    expect(WORDS(weft, "bench", "kernels", "--compare", "jax"), 2, "--compare: 'jax' is not torch", NULL);
    expect(WORDS(weft, "bench", "kernels", "--compare", "torch", "--only", "sum"), 2,
           "--only 'sum' is not for --compare", NULL);
    expect(WORDS(weft, "bench", "kernels", "-q"), 2, "weft bench kernels: unknown option '-q'", NULL);
    expect(WORDS(weft, "bench", "plot", "--x"), 2, "weft bench plot: option --x needs a value", NULL);
    expect(WORDS(weft, "all_reduce_perf"), 2,
           "'all_reduce_perf' is a benchmark: run weft bench all_reduce_perf", NULL);
    expect(WORDS(weft, "p2p"), 2, "'p2p' is a benchmark: run weft bench p2p", NULL);
    expect(WORDS(weft, "bench", "ib_atomic_bw"), 2, "'ib_atomic_bw' has no counterpart here", NULL);
    expect(WORDS(weft, "bench", "osu_bw", "-Q"), 2, "osu_bw: -Q is not a known option of OSU", NULL);
    expect(WORDS(weft, "bench", "fleet", "a", "a;b"), 2, "'a;b' is not the name or address of a host", NULL);
    expect(WORDS(weft, "bench", "fleet", "a", "a"), 2, "host a is listed twice", NULL);
    expect(WORDS(weft, "bench", "fleet", "a"), 2, "2 to 256 hosts, not 1", NULL);
    expect(WORDS(weft, "bench", "fleet", "-n", "2", "a", "b"), 2, "-n starts processes on this host", NULL);
    expect(WORDS(weft, "bench", "p2p", "--transport", "shm", "--peers", "2", "-e", "64", "--iters", "50",
                 "--measure", "bw"),
           0, "3 processes, transport shm", "pattern fanout");
    snprintf(full, sizeof full, "'%s' bench p2p --transport shm -e 8 --iters 50 --json > /dev/full", weft);
    expect(WORDS("sh", "-c", full), 1, "weft bench p2p: cannot write the result: No space left on device",
           NULL);
}

/* Every job gets a directory for its logs and a TMPDIR of its own, which must be empty afterwards. */
static char *logs, *scratch;

static void begin(void)
{
    logs = temp_dir_make();
    scratch = temp_dir_make();
    setenv("TMPDIR", scratch, 1);
}

static void end(void)
{
    unsetenv("TMPDIR");
    if (rmdir(scratch) != 0) fail_msg("%s is not empty: a secret stayed behind", scratch);
    free(scratch);
    temp_dir_remove(logs);
}

#define RUN(shards, workers) weft, "run", "-s", shards, "-n", workers, "-l", logs, "--"

static void in_order(void **state)
{
    begin();
    expect(WORDS(RUN("2", "2"), worker, "declare", "64x32"), 0, "declared, 8 chunks", NULL);
    expect_in_log(logs, "rank1.log", "declared, 8 chunks");
    expect_in_log(logs, "shard1.log", "");
    end();
    begin();
    expect(WORDS(RUN("0", "3"), worker, "leave"), 0, "the job runs", NULL);
    end();
    begin();
    expect(WORDS(weft, "run", "-s", "1", "-e", "2", "-n", "1", "-l", logs, "--", worker, "declare", "64x32"),
           0, "declared, 8 chunks", NULL);
    end();
}

static void others_learn_of_a_death(void **state)
{
    char script[600];
    begin();
    snprintf(script, sizeof script, "test $WEFT_RANK = 1 && exec %s die; exec %s stay", worker, worker);
    expect(WORDS(RUN("2", "3"), "sh", "-c", script), 1, "weft run: rank 1 (pid",
           "was killed by signal 9 (Killed)");
    expect_in_log(logs, "rank0.log", "rank 1 (");
    expect_in_log(logs, "rank2.log", "lost: connection closed");
    expect_in_log(logs, "shard1.log", "lost: connection closed");
    end();
    begin();
    snprintf(script, sizeof script, "test $WEFT_RANK = 0 && exec %s exit 3; exec %s stay", worker, worker);
    expect(WORDS(RUN("0", "2"), "sh", "-c", script), 1, "exited with status 3; the end of", "the job runs");
    expect_in_log(logs, "rank1.log", "rank 0 (");
    end();
}

static void different_shapes(void **state)
{
    char script[600];
    begin();
    snprintf(script, sizeof script, "exec %s declare $((512 + 512 * (1 - WEFT_RANK)))x784", worker);
    expect(WORDS(RUN("1", "2"), "sh", "-c", script), 1,
           "rank 1 declares tensor 'fc1' with shape 512x784, rank 0 with 1024x784", NULL);
    expect_in_log(logs, "rank0.log", "rank 1 declares tensor 'fc1' with shape 512x784, rank 0 with 1024x784");
    expect_in_log(logs, "rank1.log", "rank 1 declares tensor 'fc1' with shape 512x784, rank 0 with 1024x784");
    end();
}

static void aborted(void **state)
{
    begin();
    expect(WORDS(RUN("2", "1"), worker, "abort"), 1, "exited with status 1", NULL);
    expect_in_log(logs, "shard0.log", "aborted by rank 0 (");
    expect_in_log(logs, "shard1.log", "enough of this");
    end();
}

static void trainers_that_never_join(void **state)
{
    begin();
    expect(WORDS(RUN("1", "2"), "true"), 0, "does true call weft_init and weft_finalize?", NULL);
    expect(WORDS(RUN("0", "2"), "true"), 0, NULL, NULL);
    expect(WORDS(RUN("1", "2"), "false"), 1, "exited with status 1", "(its log is empty)");
    expect(WORDS(RUN("1", "1"), "/nonexistent/trainer"), 1,
           "cannot start /nonexistent/trainer for rank 0: No such file", NULL);
    expect(WORDS(weft, "run", "-l", "/proc/logs", "--", "true"), 1,
           "cannot make the log directory /proc/logs", NULL);
    end();
}

static void output_of_rank_0_is_copied(void **state)
{
    begin();
    expect(WORDS(RUN("0", "2"), "sh", "-c", "echo out of $WEFT_RANK; echo err of $WEFT_RANK >&2"), 0,
           "out of 0\n", NULL);
    expect_in_log(logs, "rank0.log", "out of 0\n");
    expect_in_log(logs, "rank0.log", "err of 0\n");
    expect_in_log(logs, "rank1.log", "out of 1\n");
    end();
}

/* Whether a process has ended, or is a zombie of init. */
static bool has_ended(pid_t pid)
{
    char path[64], data[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return true;
    ssize_t bytes = read(fd, data, sizeof data - 1);
    close(fd);
    data[bytes < 0 ? 0 : bytes] = 0;
    const char *after = strrchr(data, ')');
    return bytes <= 0 || (after && after[2] == 'Z');
}

/* The children of `weft run` end with it, for every kind of end. */
static void no_process_is_left(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGKILL};
    for (int i = 0; i < 3; i++) {
        begin();
        char script[600];
        snprintf(script, sizeof script, "echo $$ > %s/pid$WEFT_RANK; exec %s stay", logs, worker);
        struct process *run = process_start(WORDS(RUN("1", "2"), "sh", "-c", script), NULL);
        assert_true(process_wait_output(run, "the job runs", WAIT_MS));
        kill(run->pid, signals[i]); /* this process only, not its group */
        assert_true(process_wait(run, WAIT_MS));
        if (signals[i] != SIGKILL) {
            assert_int_equal(process_exit_code(run), 1);
            assert_non_null(strstr(process_output(run), "weft run: ended by SIG"));
        }
        for (int rank = 0; rank < 2; rank++) {
            char path[600];
            int pid = 0;
            snprintf(path, sizeof path, "%s/pid%d", logs, rank);
            FILE *file = fopen(path, "r");
            assert_non_null(file);
            assert_int_equal(fscanf(file, "%d", &pid), 1);
            fclose(file);
            int tries = 0;
            while (!has_ended(pid) && tries++ < 2000)
                usleep(1000); /* death by PR_SET_PDEATHSIG takes a moment */
            assert_true(has_ended(pid));
        }
        process_free(run);
        if (signals[i] == SIGKILL) { /* no process was left to remove the scratch directory */
            temp_dir_remove(scratch);
            unsetenv("TMPDIR");
            temp_dir_remove(logs);
        } else {
            end();
        }
    }
}

/* The whole response to GET path; to be freed. */
static char *http_get(const char *address, const char *path)
{
    char request[200], *answer = calloc(1, 65536);
    const char *colon = strrchr(address, ':');
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(colon + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t used = 0;
    ssize_t bytes;
    assert_non_null(answer);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
    assert_int_equal(send(fd, request, (size_t)length, MSG_NOSIGNAL), length);
    while ((bytes = recv(fd, answer + used, 65535 - used, 0)) > 0) used += (size_t)bytes;
    close(fd);
    return answer;
}

static void expect_page(const char *address, const char *path, const char *code, const char *text,
                        const char *another)
{
    char *answer = http_get(address, path);
    if (strncmp(answer + 9, code, 3) != 0 || !strstr(answer, text) || !strstr(answer, another))
        fail_msg("%s: not %s with '%s' and '%s':\n%s", path, code, text, another, answer);
    free(answer);
}

static void pages(const char *address)
{
    expect_page(address, "/healthz", "200", "ok connecting", "text/plain");
    expect_page(address, "/readyz", "503", "not ok: connecting", "text/plain");
    expect_page(address, "/metrics", "200", "version=0.0.4", "weft_up 0\n");
    expect_page(address, "/metrics", "200",
                "# TYPE weft_shard_rounds_total "
                "counter\nweft_shard_rounds_total{weft_job=\"jobname\",shard=\"0\",engine=\"0\"} 0\n",
                "weft_transport_received_bytes_total{weft_job=\"jobname\",shard=\"0\",engine=\"0\"} 0\n");
    expect_page(address, "/metrics", "200", "weft_job_state{weft_job=\"jobname\",state=\"joining\"} 1\n",
                "weft_job_members{weft_job=\"jobname\",role=\"shard\",state=\"connecting\"} 1\n");
    expect_page(address, "/metrics", "200", "weft_shard_oldest_round_age_seconds{weft_job=\"jobname\",",
                "# TYPE process_open_fds gauge\nprocess_open_fds ");
    expect_page(address, "/status", "200", "application/json",
                "\"coordinator\":{\"job\":\"jobname\",\"state\":\"joining\"");
    expect_page(address, "/nonsense", "404", "", "");
}

static void status_and_ports(void **state)
{
    char *directory = temp_dir_make(), path[600], line[300], http[300], *colon;
    snprintf(path, sizeof path, "%s/ports", directory);
    struct process *server = process_start(
        WORDS(weftd, "-n", "2", "-s", "2", "-j", "jobname", "--port-file", path, "--http-port", "0"), NULL);
    FILE *file = NULL;
    for (int i = 0; !file && i < 10000; i++) {
        file = fopen(path, "r");
        if (!file) usleep(1000);
    }
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(fgets(http, sizeof http, file));
    fclose(file);
    line[strcspn(line, "\n")] = http[strcspn(http, "\n")] = 0;
    const char *address = strchr(line, '=') + 1;
    for (int i = 0; i < 10000; i++) { /* until shard 0 has joined itself */
        char *metrics = http_get(strchr(http, '=') + 1, "/metrics");
        bool joined = strstr(metrics, "role=\"shard\",state=\"connecting\"} 1") != NULL;
        free(metrics);
        if (joined) break;
        usleep(1000);
    }
    pages(strchr(http, '=') + 1);
    expect(WORDS(weft, "status", "-j", "jobname", address), 0, "job jobname is joining",
           "2 workers, 2 shards");
    expect(WORDS(weft, "status", "--json", "-j", "jobname", address), 0, "\"state\":\"joining\"", NULL);
    expect(WORDS(weft, "status", "-j", "other", address), 1,
           "names job other, this coordinator serves job jobname", NULL);
    expect(WORDS(weftd, "-j", "jobname", "-c", address, "-i", "7"), 1,
           "job jobname has 2 shards, numbered 0 to 1; shard 7 cannot join", NULL);
    colon = strrchr(address, ':');
    expect(WORDS(weftd, "-p", colon + 1), 1, "already in use", colon + 1);
    expect(WORDS("env", "WEFT_SECRET=x", weftd, "-j", "jobname", "-c", address), 1,
           "does not know this job's secret", NULL);
    process_signal(server, SIGTERM);
    assert_true(process_wait(server, WAIT_MS));
    assert_int_equal(process_exit_code(server), 1);
    assert_non_null(strstr(process_output(server), "ended by SIGTERM"));
    process_free(server);
    expect(WORDS(weft, "status", address), 1, "no process listens at", "connection refused");
    temp_dir_remove(directory);
}

/* A stopped process keeps its connection; the missing heartbeats reveal it. */
static void silence(void **state)
{
    char *directory = temp_dir_make(), path[600], line[300], variable[400];
    FILE *file = NULL;
    snprintf(path, sizeof path, "%s/ports", directory);
    struct process *server = process_start(
        WORDS(weftd, "-n", "1", "-j", "quiet", "--set", "server.heartbeat=1s", "--port-file", path), NULL);
    for (int i = 0; !file && i < 10000; i++) {
        file = fopen(path, "r");
        if (!file) usleep(1000);
    }
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    snprintf(variable, sizeof variable, "WEFT_COORDINATOR=%s", strchr(line, '=') + 1);
    struct process *stopped = process_start(WORDS(worker, "stay"), WORDS(variable, "WEFT_JOB=quiet"));
    assert_true(process_wait_output(stopped, "the job runs", WAIT_MS));
    assert_false(process_wait(server, 2500)); /* its heartbeats arrive while it runs */
    process_signal(stopped, SIGSTOP);
    assert_true(process_wait(server, WAIT_MS));
    assert_int_equal(process_exit_code(server), 1);
    assert_non_null(strstr(process_output(server), "lost: silent for 1 s"));
    process_free(stopped);
    process_free(server);
    temp_dir_remove(directory);
}

#define BIND(how) weft, "run", "-n", "2", "-l", logs, "--bind", how, "--"

/* With one usable processor two workers cannot have a core each. */
static void bound_workers(void **state)
{
    begin();
    const char *print = "grep Cpus_allowed_list /proc/self/status";
    cpu_set_t usable, one;
    assert_int_equal(sched_getaffinity(0, sizeof usable, &usable), 0);
    int first = 0;
    while (!CPU_ISSET(first, &usable)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    char only[64];
    snprintf(only, sizeof only, "Cpus_allowed_list:\t%d\n", first);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    expect(WORDS(BIND("core"), "sh", "-c", print), 1,
           "--bind core: 2 workers and 1 cores here that this command may use", NULL);
    expect(WORDS(BIND("auto"), "sh", "-c", print), 0, only, NULL);
    assert_int_equal(sched_setaffinity(0, sizeof usable, &usable), 0);
    end();
}

static void two_jobs_at_a_time(void **state)
{
    begin();
    char *others = temp_dir_make();
    struct process *one = process_start(WORDS(RUN("1", "2"), worker, "stay"), NULL);
    assert_true(process_wait_output(one, "the job runs", WAIT_MS));
    expect(WORDS(weft, "run", "-s", "1", "-n", "2", "-l", others, "--", worker, "declare", "64x32"), 0,
           "declared", NULL);
    assert_false(one->ended);
    process_signal(one, SIGTERM);
    assert_true(process_wait(one, WAIT_MS));
    process_free(one);
    temp_dir_remove(others);
    end();
}

int main(int argc, char **argv)
{
    weft = getenv("WEFT_TEST_WEFT"), weftd = getenv("WEFT_TEST_WEFTD"), worker = getenv("WEFT_TEST_WORKER");
    if (!weft || !weftd || !worker || argc < 2) {
        fprintf(
            stderr,
            "set WEFT_TEST_WEFT, WEFT_TEST_WEFTD and WEFT_TEST_WORKER to the programs; give usage or jobs\n");
        return 2;
    }
    unsetenv("WEFT_SECRET"), unsetenv("WEFT_SECRET_FILE"), unsetenv("WEFT_JOB"), unsetenv("WEFT_CONFIG");
    const struct CMUnitTest usage_tests[] = {
        cmocka_unit_test(usage),     cmocka_unit_test(check_config), cmocka_unit_test(every_command),
        cmocka_unit_test(old_names), cmocka_unit_test(bench_words),  cmocka_unit_test(bench_compare)};
    const struct CMUnitTest job_tests[] = {cmocka_unit_test(in_order),
                                           cmocka_unit_test(others_learn_of_a_death),
                                           cmocka_unit_test(different_shapes),
                                           cmocka_unit_test(aborted),
                                           cmocka_unit_test(trainers_that_never_join),
                                           cmocka_unit_test(output_of_rank_0_is_copied),
                                           cmocka_unit_test(no_process_is_left),
                                           cmocka_unit_test(status_and_ports),
                                           cmocka_unit_test(silence),
                                           cmocka_unit_test(two_jobs_at_a_time),
                                           cmocka_unit_test(bound_workers)};
    return strcmp(argv[1], "usage") == 0 ? cmocka_run_group_tests(usage_tests, NULL, NULL)
                                         : cmocka_run_group_tests(job_tests, NULL, NULL);
}
