/* weftd.c - command line of the server: fills struct weftd_options for server/daemon/weftd.c. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int print_config(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    weft_config_print(option->value, stdout);
    return 0;
}

/* -1: continue; otherwise the exit status. */
static int parse(int argc, char **argv, struct weft_config *config, struct weftd_options *options,
                 const char **secret_file_out)
{
    uint32_t index = UINT32_MAX, port = UINT32_MAX, http_port = UINT32_MAX; /* not given: UINT32_MAX */
    const struct cli_option table[] = {
        {"workers", 'n', "N", "workers the job waits for", CLI_U32(&options->workers, 1, WEFT_LIMIT_WORKERS)},
        {"min-workers", 0, "N", "workers with which the job continues after a loss",
         "a lost worker ends the job", CLI_U32(&options->workers_min, 1, WEFT_LIMIT_WORKERS)},
        {"shards", 's', "N", "shards of the job, this one included",
         CLI_U32(&options->shards, 1, WEFT_LIMIT_SHARDS)},
        {"coordinator", 'c', "HOST:PORT", "coordinator of the job to join", "this process coordinates",
         CLI_TEXT(&options->coordinator)},
        {"index", 'i', "N", "number of this shard", "any free one",
         CLI_U32(&index, 0, WEFT_LIMIT_SHARDS - 1)},
        {"engines", 'e', "N", "engine threads; each owns chunks and has an endpoint", "server.engines",
         CLI_U32(&options->engines, 1, WEFT_LIMIT_ENGINES)},
        {"job", 'j', "NAME", "name of the job", "WEFT_JOB, then job.name", CLI_TEXT(&options->job)},
        {"secret-file", 0, "FILE", "file with the secret of the job",
         "WEFT_SECRET, WEFT_SECRET_FILE, then job.secret_file", CLI_TEXT(secret_file_out)},
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
        {"config", 0, "FILE", "INI file with options", "", CLI_CALL(read_config, config)},
        {"set", 0, "NAME=VALUE", "one option of the configuration", "", CLI_CALL(set_assignment, config)},
        {"help-options", 0, NULL, "list of the options of the configuration", "",
         CLI_CALL(print_config, config)},
    };
    const struct cli_command command = {
        "weftd", "weftd [options]",
        "One parameter-server shard. Without --coordinator it also coordinates the job.\n", CLI_TABLE(table),
        .notes =
            "Exit status: 0 the job ended in order, 1 it did not (one sentence on stderr), 2 wrong usage.\n"};
    int status = cli_parse(&command, argc, argv, NULL);
    if (status >= 0) return status;
    if (index != UINT32_MAX) options->index = (int)index;
    if (port != UINT32_MAX) options->port = (int)port;
    if (http_port != UINT32_MAX) options->http_port = (int)http_port;
    if (options->workers_min && options->coordinator)
        return tool_usage_error("weftd",
                                "--min-workers is for the coordinator, and this shard joins the one at %s",
                                options->coordinator);
    if (options->workers_min > options->workers)
        return tool_usage_error("weftd", "--min-workers is at most the number of workers, %u",
                                options->workers);
    return -1;
}

int main(int argc, char **argv)
{
    struct weft_env *env = weft_env_system();
    struct weft_config *config;
    struct weft_error error = {0};
    struct weftd_options options;
    const char *secret_file = NULL;
    char *secret = NULL;
    signal(SIGPIPE, SIG_IGN);
    if (weft_config_load(env, &config, &error) != WEFT_OK) {
        fprintf(stderr, "weftd: %s\n", error.text);
        return 1;
    }
    weftd_options_init(&options);
    options.config = config;
    if (getenv("WEFT_JOB") && getenv("WEFT_JOB")[0]) options.job = getenv("WEFT_JOB");
    int status = parse(argc, argv, config, &options, &secret_file);
    if (status < 0 && !tool_read_secret("weftd", secret_file, config, &secret)) status = 1;
    if (status < 0) {
        options.secret = secret;
        status = weftd_run(env, &options);
    }
    free(secret);
    weft_config_free(config);
    return status;
}
