/* fleet_hosts.c - see fleet.h. Each host runs `weft bench fleet` as a rank of one job; rank 0, on the first
 * host, coordinates, and prints JSON rows, which this process reads.
 *
 *   COMMAND HOST 'WEFT_SECRET="$(cat)" WEFT_RANK=1 ... exec weft bench fleet ...'
 *
 * The secret is made here for this job and passes through standard input: no list of processes shows it. */
#include "tools/bench/fleet/fleet.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

enum { LINE_BYTES = 4096, SHELL_WORDS_MAX = 32, OUTPUT_MAX = 64 << 20, POLL_MS = 50, STOP_MS = 2000 };

struct host {
    pid_t pid; /* 0: not started, or ended */
};

struct remote {
    const struct fleet_options *options;
    struct host hosts[FLEET_HOSTS_MAX];
    char secret[33], program[1024], shell[1024];
    char *shell_words[SHELL_WORDS_MAX + 3]; /* also host, line, NULL */
    size_t shell_word_count;
    int output; /* of rank 0 */
    char *text;
    size_t text_bytes;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the command line of a host ---- */

static bool prepare(struct remote *remote)
{
    const struct fleet_options *options = remote->options;
    for (int i = 0; i < 2; i++)
        snprintf(remote->secret + 16 * i, 17, "%016" PRIx64, weft_random_u64(weft_env_system()));
    if (options->program) snprintf(remote->program, sizeof remote->program, "%s", options->program);
    else if (readlink("/proc/self/exe", remote->program, sizeof remote->program - 1) <= 0) return false;
    snprintf(remote->shell, sizeof remote->shell, "%s", options->remote_shell);
    for (char *rest = remote->shell, *word; (word = strsep(&rest, " "));) {
        if (!*word || remote->shell_word_count == SHELL_WORDS_MAX) continue;
        remote->shell_words[remote->shell_word_count++] = word;
    }
    return remote->shell_word_count > 0;
}

/* Appends " NAME='value'". False: the value has a quote, or the line is full. */
static bool add_quoted(char *line, const char *name, const char *value)
{
    const size_t at = strlen(line);
    if (strchr(value, '\'')) return false;
    return snprintf(line + at, LINE_BYTES - at, " %s'%s'", name, value) < (int)(LINE_BYTES - at);
}

static bool write_line(const struct remote *remote, uint32_t rank, char *line)
{
    static const char *const passed_on[] = {"WEFT_TRANSPORT_BACKEND", "WEFT_TRANSPORT_LANES",
                                            "WEFT_TRANSPORT_DEVICES", "WEFT_LOG_LEVEL"};
    const struct fleet_options *options = remote->options;
    const char *first = options->hosts[0], *at_sign = strchr(first, '@');
    const char *deadline = getenv("WEFT_DEADLINE_MS");
    char coordinator[FLEET_NAME_BYTES + 16], job[32], text[32], name[64];
    first = at_sign ? at_sign + 1 : first;
    snprintf(coordinator, sizeof coordinator, strchr(first, ':') ? "[%s]:%u" : "%s:%u", first, options->port);
    snprintf(job, sizeof job, "fleet-%u", (unsigned)getpid());
    snprintf(line, LINE_BYTES, "WEFT_SECRET=\"$(cat)\" WEFT_RANK=%u WEFT_RANKS=%u", rank,
             options->host_count);
    bool fine = add_quoted(line, "WEFT_COORDINATOR=", coordinator) && add_quoted(line, "WEFT_JOB=", job) &&
                add_quoted(line, "WEFT_DEADLINE_MS=", deadline ? deadline : "60000");
    for (size_t i = 0; fine && i < sizeof passed_on / sizeof passed_on[0]; i++) {
        const char *value = getenv(passed_on[i]);
        snprintf(name, sizeof name, "%s=", passed_on[i]);
        fine = !value || add_quoted(line, name, value);
    }
    fine = fine && add_quoted(line, "exec ", remote->program) &&
           add_quoted(line, "bench fleet --name ", options->hosts[rank]);
    const size_t at = strlen(line);
    snprintf(text, sizeof text, "%" PRIu64, options->bytes);
    fine = fine && snprintf(line + at, LINE_BYTES - at, " --json --slow 0 --bytes %s --ms %u%s", text,
                            options->ms, options->serial ? " --serial" : "") < (int)(LINE_BYTES - at);
    if (!fine) fprintf(stderr, "weft bench fleet: a value for the hosts is too long, or has a quote (')\n");
    return fine;
}

/* ---- processes ---- */

static void run_child(struct remote *remote, uint32_t rank, char *line, int input, int output)
{
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    remote->shell_words[remote->shell_word_count] = remote->options->hosts[rank];
    remote->shell_words[remote->shell_word_count + 1] = line;
    dup2(input, STDIN_FILENO);
    dup2(rank == 0 ? output : null, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execvp(remote->shell_words[0], remote->shell_words);
    fprintf(stderr, "weft bench fleet: cannot start %s: %s\n", remote->shell_words[0], strerror(errno));
    _exit(127);
}

static bool start(struct remote *remote, uint32_t rank)
{
    char line[LINE_BYTES];
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    if (!write_line(remote, rank, line)) return false;
    bool fine = pipe2(input, O_CLOEXEC) == 0 && (rank > 0 || pipe2(output, O_CLOEXEC) == 0);
    pid_t child = fine ? fork() : -1;
    if (child == 0) run_child(remote, rank, line, input[0], output[1]);
    const char *reason = child < 0 ? strerror(errno) : NULL;
    if (reason)
        fprintf(stderr, "weft bench fleet: cannot start a process for %s: %s\n", remote->options->hosts[rank],
                reason);
    if (child > 0) remote->hosts[rank].pid = child;
    /* The secret fits into the pipe. A child that has ended breaks it, and is reported when it is taken. */
    if (child > 0 && write(input[1], remote->secret, 32) != 32) kill(child, SIGTERM);
    for (int i = 0; i < 2; i++)
        if (input[i] >= 0) close(input[i]);
    if (output[1] >= 0) close(output[1]);
    if (rank == 0) remote->output = output[0];
    return child > 0;
}

static void print_end(const struct remote *remote, uint32_t rank, int status)
{
    const char *host = remote->options->hosts[rank], *shell = remote->shell_words[0];
    if (WIFEXITED(status))
        fprintf(stderr, "weft bench fleet: host %s: %s ended with status %d\n", host, shell,
                WEXITSTATUS(status));
    else
        fprintf(stderr, "weft bench fleet: host %s: %s was ended by signal %d\n", host, shell,
                WTERMSIG(status));
}

/* Takes the processes that have ended. False: one failed; with `reports` the sentence is on stderr. */
static bool reap(struct remote *remote, bool reports)
{
    bool fine = true;
    for (uint32_t i = 0; i < remote->options->host_count; i++) {
        int status;
        struct host *host = &remote->hosts[i];
        if (host->pid == 0 || waitpid(host->pid, &status, WNOHANG) != host->pid) continue;
        host->pid = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        fine = false;
        if (reports) print_end(remote, i, status);
    }
    return fine;
}

static bool is_any_running(const struct remote *remote)
{
    for (uint32_t i = 0; i < remote->options->host_count; i++)
        if (remote->hosts[i].pid) return true;
    return false;
}

static void signal_all(struct remote *remote, int number)
{
    for (uint32_t i = 0; i < remote->options->host_count; i++)
        if (remote->hosts[i].pid) kill(remote->hosts[i].pid, number);
}

/* Ends all processes; those that ignore SIGTERM for STOP_MS are killed. */
static void stop_all(struct remote *remote)
{
    signal_all(remote, SIGTERM);
    for (int ms = 0; ms < STOP_MS && is_any_running(remote); ms += POLL_MS) {
        reap(remote, false);
        if (is_any_running(remote)) poll(NULL, 0, POLL_MS);
    }
    signal_all(remote, SIGKILL);
    for (uint32_t i = 0; i < remote->options->host_count; i++)
        if (remote->hosts[i].pid) waitpid(remote->hosts[i].pid, NULL, 0);
}

/* Reads what rank 0 prints. *ended_out: its output has ended. False: too much, or out of memory. */
static bool read_output(struct remote *remote, bool *ended_out)
{
    struct pollfd wait = {.fd = *ended_out ? -1 : remote->output, .events = POLLIN};
    if (poll(&wait, 1, POLL_MS) <= 0) return true;
    char *grown =
        remote->text_bytes < OUTPUT_MAX ? realloc(remote->text, remote->text_bytes + LINE_BYTES + 1) : NULL;
    if (!grown) return false;
    remote->text = grown;
    ssize_t got = read(remote->output, grown + remote->text_bytes, LINE_BYTES);
    if (got <= 0) *ended_out = got == 0 || errno != EINTR;
    else remote->text_bytes += (size_t)got;
    grown[remote->text_bytes] = 0;
    return true;
}

static void print_late(const struct remote *remote)
{
    fprintf(stderr, "weft bench fleet: not finished after %u s (--deadline); these hosts still run:",
            remote->options->deadline_s);
    for (uint32_t i = 0; i < remote->options->host_count; i++)
        if (remote->hosts[i].pid) fprintf(stderr, " %s", remote->options->hosts[i]);
    fputc('\n', stderr);
}

/* Waits for all hosts. False: one has failed, or the deadline has passed; all processes have ended. */
static bool await(struct remote *remote)
{
    const double limit = now_s() + remote->options->deadline_s;
    bool ended = false, fine = true;
    while (fine && (!ended || is_any_running(remote))) {
        fine = read_output(remote, &ended) && reap(remote, true);
        if (fine && now_s() > limit) {
            print_late(remote);
            fine = false;
        }
    }
    if (!fine) stop_all(remote);
    return fine;
}

/* ---- rows of rank 0 ---- */

static uint32_t index_of(const struct fleet_matrix *matrix, const json_t *name)
{
    const char *text = json_string_value(name);
    for (uint32_t i = 0; text && i < matrix->count; i++)
        if (strcmp(matrix->names[i], text) == 0) return i;
    return UINT32_MAX;
}

static bool take_row(struct fleet_matrix *matrix, const char *line)
{
    json_t *row = json_loads(line, 0, NULL);
    const uint32_t from = index_of(matrix, json_object_get(row, "from")),
                   to = index_of(matrix, json_object_get(row, "to"));
    const json_t *gbps = json_object_get(row, "avg_GBps"), *us = json_object_get(row, "latency_us");
    const char *way = json_string_value(json_object_get(row, "transport"));
    const bool fine =
        from < matrix->count && to < matrix->count && json_is_number(gbps) && json_is_number(us);
    if (fine) {
        const size_t link = (size_t)from * matrix->count + to;
        matrix->gbps[link] = json_number_value(gbps);
        matrix->us[link] = json_number_value(us);
        snprintf(matrix->ways[link], FLEET_WAY_BYTES, "%s", way ? way : "");
    }
    json_decref(row);
    return fine;
}

static int report(struct remote *remote)
{
    const struct fleet_options *options = remote->options;
    const uint32_t count = options->host_count;
    struct fleet_matrix matrix;
    uint32_t rows = 0;
    if (!fleet_matrix_init(&matrix, count)) return 1;
    for (uint32_t i = 0; i < count; i++) snprintf(matrix.names[i], FLEET_NAME_BYTES, "%s", options->hosts[i]);
    for (char *rest = remote->text, *line; rest && (line = strsep(&rest, "\n"));)
        rows += take_row(&matrix, line);
    int answer = 1;
    if (rows == count * (count - 1)) answer = fleet_matrix_report(&matrix, options);
    else
        fprintf(stderr,
                "weft bench fleet: %s printed %" PRIu32 " of %" PRIu32
                " rows; is weft there of this release?\n",
                options->hosts[0], rows, count * (count - 1));
    fleet_matrix_free(&matrix);
    return answer;
}

int fleet_run_hosts(const struct fleet_options *options)
{
    struct remote *remote = calloc(1, sizeof *remote);
    if (!remote) return fprintf(stderr, "weft bench fleet: out of memory\n"), 1;
    *remote = (struct remote){.options = options, .output = -1};
    bool fine = prepare(remote);
    if (!fine) fprintf(stderr, "weft bench fleet: --rsh is empty, or this program has no path\n");
    for (uint32_t i = 0; fine && i < options->host_count; i++) fine = start(remote, i);
    if (fine) fine = await(remote);
    else stop_all(remote);
    const int answer = fine ? report(remote) : 1;
    if (remote->output >= 0) close(remote->output);
    free(remote->text);
    free(remote);
    return answer;
}
