/* top.c - `weft top`: members of a running job with rates, exposed time and what they wait for.
 *
 *     every --interval: status of the coordinator -> rows against the status before -> screen
 *
 * Only a terminal is painted again, on its alternate screen; otherwise one table is printed. Each status is a
 * connection of its own, so the loss of the coordinator is noticed at the next one. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/target.h"
#include "tools/top/top.h"

/* ---- the terminal ---- */

static volatile sig_atomic_t is_interrupted;
static struct termios terminal_before;
static bool keys_are_read;

static void on_signal(int number)
{
    (void)number;
    is_interrupted = 1;
}

static void terminal_open(void)
{
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART: poll ends at once */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    keys_are_read = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal_before) == 0;
    if (keys_are_read) {
        struct termios raw = terminal_before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout);
}

static void terminal_close(void)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (keys_are_read) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

/* Waits for the next status. false: q, Ctrl-C or SIGTERM. */
static bool wait_for_next(uint64_t milliseconds)
{
    struct weft_env *env = weft_env_system();
    const uint64_t until_ns = weft_now_ns(env) + WEFT_MS(milliseconds);
    struct pollfd input = {.fd = keys_are_read ? STDIN_FILENO : -1, .events = POLLIN};
    for (;;) {
        const uint64_t left_ns = weft_elapsed_ns(weft_now_ns(env), until_ns);
        if (is_interrupted) return false;
        if (left_ns == 0) return true;
        char key;
        if (poll(&input, 1, (int)(left_ns / WEFT_MS(1)) + 1) > 0) {
            if (read(STDIN_FILENO, &key, 1) != 1) keys_are_read = false, input.fd = -1;
            else if (key == 'q' || key == 'Q') return false;
        }
    }
}

static void paint(const json_t *status, const struct top_rows *rows)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    char *text = NULL;
    size_t bytes = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 5 || size.ws_col < 20)
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    FILE *page = open_memstream(&text, &bytes);
    if (!page) return;
    top_print(page, status, rows, size.ws_row - 2u, size.ws_col);
    fputs("q: end", page);
    fclose(page);
    fputs("\033[H\033[2J", stdout);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    free(text);
}

/* ---- the command ---- */

/* NULL: *error has the sentence. */
static json_t *read_status(const struct tool_target *target, struct weft_error *error)
{
    char *text = tool_target_status(target, error);
    if (!text) return NULL;
    json_t *status = json_loads(text, 0, NULL);
    free(text);
    if (!status) weft_error_set(error, WEFT_ERR_MALFORMED, "the coordinator's answer is not JSON");
    return status;
}

static bool print_once(const json_t *status, bool as_json, bool as_metrics)
{
    struct top_rows rows;
    if (as_metrics) {
        top_print_metrics(stdout, status);
        return true;
    }
    if (!top_rows_make(NULL, status, 0, &rows)) return false;
    if (as_json) top_print_json(stdout, status, &rows);
    else top_print(stdout, status, &rows, 0, 0);
    top_rows_free(&rows);
    return true;
}

/* Two earlier statuses. Rates are of the time since the first one: 10 s to 20 s, longer than the period of
 * the reports. */
struct history {
    json_t *status[2]; /* owned; NULL: none yet */
    uint64_t read_ns[2];
};

static void history_add(struct history *history, json_t *status, uint64_t read_ns)
{
    if (history->status[1] && read_ns - history->read_ns[1] < WEFT_SECONDS(10)) {
        json_decref(status);
        return;
    }
    const bool first = !history->status[1];
    json_decref(history->status[0]);
    history->status[0] = first ? json_incref(status) : history->status[1];
    history->read_ns[0] = first ? read_ns : history->read_ns[1];
    history->status[1] = status;
    history->read_ns[1] = read_ns;
}

/* Paints until a key, a signal or an error. Takes `status`. */
static void run_live(const struct tool_target *target, json_t *status, uint64_t interval_ms,
                     struct weft_error *error)
{
    struct weft_env *env = weft_env_system();
    struct history history = {.status = {NULL, NULL}};
    uint64_t read_ns = weft_now_ns(env);
    terminal_open();
    while (status) {
        struct top_rows rows;
        const double seconds = (double)weft_elapsed_ns(history.read_ns[0], read_ns) / 1e9;
        if (!top_rows_make(history.status[0], status, seconds, &rows)) break;
        paint(status, &rows);
        top_rows_free(&rows);
        history_add(&history, status, read_ns);
        status = wait_for_next(interval_ms) ? read_status(target, error) : NULL;
        read_ns = weft_now_ns(env);
    }
    terminal_close();
    json_decref(history.status[0]);
    json_decref(history.status[1]);
}

int weft_top_main(int argc, char **argv)
{
    struct tool_target target;
    struct weft_error error = {0};
    bool once = false, as_json = false, as_metrics = false;
    double interval = 2;
    int first;
    tool_target_init(&target);
    const struct cli_option table[] = {
        TOOL_TARGET_OPTIONS(&target),
        {"interval", 'i', "SECONDS", "time between two screens", CLI_REAL(&interval, 0.1, 3600)},
        {"once", '1', NULL, "one table, with means since the start of the job", CLI_FLAG(&once)},
        {"json", 0, NULL, "the same as one JSON object", CLI_FLAG(&as_json)},
        {"metrics", 0, NULL, "metrics of the job and its workers once, as text for Prometheus",
         CLI_FLAG(&as_metrics)},
    };
    const struct cli_command command = {
        "weft top",
        "weft top [options] [HOST:PORT]",
        "Members of a running job, live: steps, exposed time, bytes, and what they wait for. HOST:PORT is "
        "its\n"
        "coordinator (default WEFT_COORDINATOR). The screen ends with q or Ctrl-C. If standard output is no\n"
        "terminal, one table is printed.\n",
        CLI_TABLE(table),
        .notes =
            "steps/s: of a shard rounds. exposed: part of the step time spent waiting in weft calls; peers: "
            "the\n"
            "part of it in which another rank was late. open: age of the oldest open operation or round.\n"
            "report: age of the figures. Exit status: 0, or 1 if the coordinator does not answer.\n",
        .takes_arguments = true};
    int status = cli_parse(&command, argc, argv, &first);
    if (status < 0) status = tool_target_resolve("weft top", &target, argc, argv, first);
    if (status >= 0) return status;
    json_t *now = read_status(&target, &error);
    if (now && (once || as_json || as_metrics || !isatty(STDOUT_FILENO))) {
        if (!print_once(now, as_json, as_metrics))
            weft_error_set(&error, WEFT_ERR_NO_MEMORY, "no memory for the table");
        json_decref(now);
    } else if (now) {
        run_live(&target, now, (uint64_t)(interval * 1000), &error);
        if (error.status < 0)
            fprintf(stderr, "weft top: the coordinator at %s:%u is lost: ", target.host, target.options.port);
    }
    tool_target_free(&target);
    if (error.status == WEFT_OK) return 0;
    fprintf(stderr, now ? "%s\n" : "weft top: %s\n", error.text);
    return 1;
}
