/* weftd.c - command line of the server: fills struct weftd_options for server/daemon/weftd.c. */
#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/cli.h"
#include "tools/common.h"

static int set_assignment(const struct cli_command *command, const struct cli_option *option,
                          const char *text)
{
    struct weft_error error = {0};
    char name[256];
    const char *equals = strchr(text, '=');
    if (!equals || (size_t)(equals - text) >= sizeof name)
        return tool_usage_error(command->name, "--set wants NAME=VALUE, not '%s'", text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    if (weft_config_set(option->value, name, equals + 1, "--set", &error) == WEFT_OK) return -1;
    return tool_usage_error(command->name, "%s", error.text);
}

static int read_config(const struct cli_command *command, const struct cli_option *option, const char *path)
{
    struct weft_error error = {0};
    if (weft_config_read_file(option->value, path, &error) == WEFT_OK) return -1;
    fprintf(stderr, "%s: %s\n", command->name, error.text);
    return 1;
}

static int print_example(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    weft_config_print_example(stdout);
    return 0;
}

static int print_config(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    weft_config_print(option->value, stdout);
    return 0;
}

struct command_line {
    struct weft_config *config;
    struct weftd_options options;
    const char *secret_file; /* NULL: not given */
    const char *zone;        /* NULL: not given */
    bool checks;             /* --check-config */
};

static int check_arguments(const struct command_line *line, char **arguments)
{
    const struct weftd_options *options = &line->options;
    struct weft_error error = {0};
    if (arguments[0] && (!line->checks || arguments[1]))
        return tool_usage_error("weftd", "unexpected argument '%s'", arguments[line->checks]);
    if ((options->workers_min || options->workers_max) && options->coordinator)
        return tool_usage_error(
            "weftd",
            "--min-workers and --max-workers are for the coordinator, and this shard joins "
            "the one at %s",
            options->coordinator);
    if (options->workers_min > options->workers)
        return tool_usage_error("weftd", "--min-workers is at most the number of workers, %u",
                                options->workers);
    if (options->workers_max && (!options->workers_min || options->workers_max < options->workers))
        return tool_usage_error(
            "weftd", "--max-workers requires --min-workers, and is at least the number of workers, %u",
            options->workers);
    if (!arguments[0] || weft_config_read_file(line->config, arguments[0], &error) == WEFT_OK) return -1;
    fprintf(stderr, "weftd: %s\n", error.text);
    return 1;
}

/* The address of pod 0 by WEFT_HEADLESS_SERVICE, at the port of this command line, which all pods share.
 * NULL: there is no service; *is_wrong_out: the sentence is on standard error. */
static const char *pod_zero_address(uint32_t port, bool *is_wrong_out)
{
    static char address[WEFT_LAUNCHER_HOST_BYTES + 12];
    char host[WEFT_LAUNCHER_HOST_BYTES];
    struct weft_error error = {0};
    const enum weft_status status = weft_launcher_pod_zero(host, &error);
    *is_wrong_out = status == WEFT_ERR_INVALID || (status == WEFT_OK && (port == 0 || port == UINT32_MAX));
    if (status == WEFT_ERR_INVALID) tool_usage_error("weftd", "%s", error.text);
    else if (*is_wrong_out)
        tool_usage_error("weftd",
                         "WEFT_HEADLESS_SERVICE gives the host of the coordinator, %s; give its --port "
                         "on all shards",
                         host);
    if (status != WEFT_OK || *is_wrong_out) return NULL;
    snprintf(address, sizeof address, "%s:%u", host, port);
    return address;
}

/* Without --index a pod of a StatefulSet is the shard of its ordinal; with --join the coordinator assigns the
 * number. false: it would coordinate a second job. */
static bool take_ordinal(struct weftd_options *options, uint32_t *port)
{
    uint32_t ordinal;
    const char *source;
    bool is_wrong = false;
    if (options->joins || (!options->coordinator && options->shards == 1) ||
        !weft_launcher_ordinal(&ordinal, &source) || ordinal >= WEFT_LIMIT_SHARDS)
        return true;
    options->index = (int)ordinal;
    if (options->coordinator || ordinal == 0) return true;
    options->coordinator = pod_zero_address(*port, &is_wrong);
    if (options->coordinator) *port = UINT32_MAX; /* it is that of pod 0 */
    if (options->coordinator || is_wrong) return !is_wrong;
    tool_usage_error("weftd",
                     "%s=%.80s makes this shard %u of %u, and only shard 0 coordinates; set "
                     "WEFT_HEADLESS_SERVICE, or give --coordinator with the address of pod 0, or --index 0",
                     source, getenv(source), ordinal, options->shards);
    return false;
}

/* -1: continue; otherwise the exit status. */
static int parse(int argc, char **argv, struct command_line *line)
{
    struct weft_config *config = line->config;
    struct weftd_options *options = &line->options;
    uint32_t index = UINT32_MAX, port = UINT32_MAX, http_port = UINT32_MAX; /* not given: UINT32_MAX */
    const struct cli_option table[] = {
        {"workers", 'n', "N", "workers the job waits for", CLI_U32(&options->workers, 1, WEFT_LIMIT_WORKERS)},
        {"min-workers", 0, "N", "workers with which the job continues after a loss",
         "a lost worker ends the job", CLI_U32(&options->workers_min, 1, WEFT_LIMIT_WORKERS)},
        {"max-workers", 0, "N", "workers up to which new ones may join; requires --min-workers",
         "none may join", CLI_U32(&options->workers_max, 1, WEFT_LIMIT_WORKERS)},
        {"shards", 's', "N", "shards of the job, this one included",
         CLI_U32(&options->shards, 1, WEFT_LIMIT_SHARDS)},
        {"coordinator", 'c', "HOST:PORT", "coordinator of the job to join", "this process coordinates",
         CLI_TEXT(&options->coordinator)},
        {"index", 'i', "N", "number of this shard",
         "the ordinal of a StatefulSet or indexed Job, otherwise any free one",
         CLI_U32(&index, 0, WEFT_LIMIT_SHARDS - 1)},
        {"join", 0, NULL, "join a job with copies that runs, as a further shard; requires --coordinator",
         CLI_FLAG(&options->joins)},
        {"engines", 'e', "N", "engine threads; each owns chunks and has an endpoint", "server.engines",
         CLI_U32(&options->engines, 1, WEFT_LIMIT_ENGINES)},
        {"job", 'j', "NAME", "name of the job", "WEFT_JOB, then job.name", CLI_TEXT(&options->job)},
        {"secret-file", 0, "FILE", "file with the secret of the job",
         "WEFT_SECRET, WEFT_SECRET_FILE, then job.secret_file", CLI_TEXT(&line->secret_file)},
        {"listen", 0, "HOST", "address to listen on; anything but loopback requires a secret",
         "127.0.0.1 or ::1", CLI_TEXT(&options->listen)},
        {"port", 'p', "PORT", "port of the coordinator; 0: any free one", "server.port",
         CLI_U32(&port, 0, 65535)},
        {"http-port", 0, "PORT", "port of /metrics, /healthz and /status; 0: any free one", "no HTTP server",
         CLI_U32(&http_port, 0, 65535)},
        {"port-file", 0, "FILE", "file for the port numbers, written once the ports are open", "",
         CLI_TEXT(&options->port_file)},
        {"lanes", 0, "LANES", "transport lanes: tcp, shm", "transport.lanes", CLI_TEXT(&options->lanes)},
        {"devices", 0, "LIST", "network devices", "transport.devices", CLI_TEXT(&options->devices)},
        {"zone", 0, "NAME", "failure domain of this shard, for the places of copies", "server.zone",
         CLI_TEXT(&line->zone)},
        {"restore", 0, "FOLDER[:STEP]", "snapshot to restore; without STEP the newest one",
         "snapshot.restore", CLI_TEXT(&options->restore)},
        {"config", 0, "FILE", "INI file with options", "", CLI_CALL(read_config, config)},
        {"set", 0, "NAME=VALUE", "one option of the configuration", "", CLI_CALL(set_assignment, config)},
        {"check-config", 0, NULL,
         "check the options, the configuration and FILE as at a start, print what is not the default, end",
         CLI_FLAG(&line->checks)},
        {"help-options", 0, NULL, "list of the options of the configuration", "",
         CLI_CALL(print_config, config)},
        {"example-config", 0, NULL, "an INI file of all options with their defaults, as comments", "",
         CLI_CALL(print_example, NULL)},
    };
    const struct cli_command command = {
        "weftd",
        "weftd [options]\n       weftd --check-config [options] [FILE]",
        "One parameter-server shard. Without --coordinator it also coordinates the job.\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes =
            "Exit status: 0 the job ended in order, 1 it did not (one sentence on stderr), 2 wrong usage.\n"
            "With --check-config: 0 a start would accept all of it, 1 it would not. Options without effect "
            "are "
            "named on stderr.\n"};
    int first, status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    if (index != UINT32_MAX) options->index = (int)index;
    else if (!take_ordinal(options, &port)) return TOOL_USAGE;
    if (port != UINT32_MAX) options->port = (int)port;
    if (http_port != UINT32_MAX) options->http_port = (int)http_port;
    return check_arguments(line, argv + first);
}

/* The command line overrides the configuration: enters its values there, with their source. */
static enum weft_status override_config(const struct command_line *line, struct weft_error *error)
{
    const struct weftd_options *options = &line->options;
    const char *job_variable = getenv("WEFT_JOB"), *secret_variable = getenv("WEFT_SECRET_FILE");
    char port[16] = "", engines[16] = "";
    if (options->port >= 0) snprintf(port, sizeof port, "%d", options->port);
    if (options->engines > 0) snprintf(engines, sizeof engines, "%u", options->engines);
    const struct {
        const char *name, *value, *where;
    } given[] = {
        {"job.name", options->job, options->job == job_variable ? "WEFT_JOB" : "--job"},
        {"job.secret_file", secret_variable, "WEFT_SECRET_FILE"},
        {"job.secret_file", line->secret_file, "--secret-file"},
        {"server.listen", options->listen, "--listen"},
        {"server.port", port, "--port"},
        {"server.engines", engines, "--engines"},
        {"transport.lanes", options->lanes, "--lanes"},
        {"transport.devices", options->devices, "--devices"},
        {"server.zone", line->zone, "--zone"},
        {"snapshot.restore", options->restore, "--restore"},
    };
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i].value && given[i].value[0])
            WEFT_TRY(weft_config_set(line->config, given[i].name, given[i].value, given[i].where, error));
    return WEFT_OK;
}

/* A start makes the last part of these paths: the folder above it must exist and be writable. */
static enum weft_status check_folders(const struct weft_config *config, struct weft_error *error)
{
    static const char *const names[] = {"snapshot.folder", "server.store"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *path = weft_config_text(config, names[i]);
        char *copy = path[0] && access(path, W_OK) != 0 ? strdup(path) : NULL;
        const char *folder = copy ? dirname(copy) : NULL;
        if (folder && (access(path, F_OK) == 0 || access(folder, W_OK | X_OK) != 0))
            weft_error_set(error, WEFT_ERR_IO, "%s = %s cannot be written: %s", names[i], path,
                           strerror(errno));
        free(copy);
        if (error->status != WEFT_OK) return (enum weft_status)error->status;
    }
    return WEFT_OK;
}

static void print_warning(void *context, const char *text)
{
    fprintf(stderr, "weftd: %s\n", text);
}

static int check_config(const struct command_line *line)
{
    struct weft_error error = {0};
    if (weftd_options_check(&line->options, &error) == WEFT_OK && override_config(line, &error) == WEFT_OK &&
        check_folders(line->config, &error) == WEFT_OK &&
        weft_config_check(line->config, !line->options.coordinator, print_warning, NULL, &error) == WEFT_OK) {
        weft_config_print_changed(line->config, stdout);
        return 0;
    }
    fprintf(stderr, "weftd: %s\n", error.text);
    return 1;
}

/* Includes the deadline of the workers if WEFT_DEADLINE_MS has it: a shard then names the late worker before
 * the operations of the other workers fail. */
static enum weft_status load_config(struct weft_env *env, struct weft_config **config_out,
                                    struct weft_error *error)
{
    const char *deadline = getenv("WEFT_DEADLINE_MS");
    WEFT_TRY(weft_config_load(env, config_out, error));
    if (!deadline || !*deadline) return WEFT_OK;
    return weft_config_set(*config_out, "client.deadline", deadline, "WEFT_DEADLINE_MS", error);
}

int main(int argc, char **argv)
{
    struct weft_env *env = weft_env_system();
    struct command_line line = {0};
    struct weft_error error = {0};
    char *secret = NULL;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f then has a sentence */
    if (load_config(env, &line.config, &error) != WEFT_OK) {
        fprintf(stderr, "weftd: %s\n", error.text);
        return 1;
    }
    weftd_options_init(&line.options);
    line.options.config = line.config;
    if (getenv("WEFT_JOB") && getenv("WEFT_JOB")[0]) line.options.job = getenv("WEFT_JOB");
    int status = parse(argc, argv, &line);
    if (status < 0 && !tool_read_secret("weftd", line.secret_file, line.config, &secret)) status = 1;
    if (status < 0) {
        line.options.secret = secret;
        status = line.checks ? check_config(&line) : weftd_run(env, &line.options);
    }
    free(secret);
    weft_config_free(line.config);
    return tool_end_output("weftd", status);
}
