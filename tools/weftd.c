/* weftd.c - the server's command line: options into struct weftd_options, everything else is
 * server/daemon/weftd.c. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "tools/common.h"

static const char help_text[] =
    "usage: weftd [options]\n"
    "One parameter-server shard. Without --coordinator it also coordinates the job.\n"
    "\n"
    "  -n, --workers N         workers that the job waits for (default 1)\n"
    "      --min-workers N     a lost worker does not end the job while N are left (default: it does)\n"
    "  -s, --shards N          shards of the job, this one included (default 1)\n"
    "  -c, --coordinator H:P   join the job coordinated there, instead of coordinating here\n"
    "  -i, --index N           shard number to take (default: any free one)\n"
    "  -e, --engines N         threads that own chunks, each with an endpoint (default: server.engines)\n"
    "  -j, --job NAME          name of the job (default: WEFT_JOB, then job.name)\n"
    "      --secret-file FILE  the job's secret (default: WEFT_SECRET, WEFT_SECRET_FILE, job.secret_file)\n"
    "      --listen HOST       address to listen on; any but loopback needs a secret (default 127.0.0.1, or "
    "::1)\n"
    "  -p, --port PORT         of the coordinator; 0 takes a free one (default: server.port)\n"
    "      --http-port PORT    serve /metrics, /healthz and /status; 0 takes a free one (default: not "
    "served)\n"
    "      --port-file FILE    write the ports there once they are open\n"
    "      --lanes LANES       transport lanes: tcp, shm (default: transport.lanes)\n"
    "      --devices LIST      network devices (default: transport.devices)\n"
    "      --config FILE       read options from an INI file\n"
    "      --set NAME=VALUE    set one option; --help-options lists them\n"
    "      --help, --help-options, --version\n"
    "\n"
    "Exit status: 0 the job ended in order, 1 it did not (one sentence on stderr), 2 wrong usage.\n";

enum {
    SECRET_FILE = 256,
    MIN_WORKERS,
    LISTEN,
    HTTP_PORT,
    PORT_FILE,
    LANES,
    DEVICES,
    CONFIG,
    SET,
    HELP_OPTIONS
};

static const struct option options_table[] = {{"workers", required_argument, NULL, 'n'},
                                              {"min-workers", required_argument, NULL, MIN_WORKERS},
                                              {"shards", required_argument, NULL, 's'},
                                              {"coordinator", required_argument, NULL, 'c'},
                                              {"index", required_argument, NULL, 'i'},
                                              {"engines", required_argument, NULL, 'e'},
                                              {"job", required_argument, NULL, 'j'},
                                              {"secret-file", required_argument, NULL, SECRET_FILE},
                                              {"listen", required_argument, NULL, LISTEN},
                                              {"port", required_argument, NULL, 'p'},
                                              {"http-port", required_argument, NULL, HTTP_PORT},
                                              {"port-file", required_argument, NULL, PORT_FILE},
                                              {"lanes", required_argument, NULL, LANES},
                                              {"devices", required_argument, NULL, DEVICES},
                                              {"config", required_argument, NULL, CONFIG},
                                              {"set", required_argument, NULL, SET},
                                              {"help", no_argument, NULL, 'h'},
                                              {"help-options", no_argument, NULL, HELP_OPTIONS},
                                              {"version", no_argument, NULL, 'V'},
                                              {NULL, 0, NULL, 0}};

static bool set_option(struct weft_config *config, char *assignment)
{
    struct weft_error error = {0};
    char *equals = strchr(assignment, '=');
    if (!equals) {
        tool_usage_error("weftd", "--set wants NAME=VALUE, not '%s'", assignment);
        return false;
    }
    *equals = 0;
    if (weft_config_set(config, assignment, equals + 1, "--set", &error) == WEFT_OK) return true;
    tool_usage_error("weftd", "%s", error.text);
    return false;
}

static bool read_config(struct weft_config *config, const char *path)
{
    struct weft_error error = {0};
    if (weft_config_read_file(config, path, &error) == WEFT_OK) return true;
    fprintf(stderr, "weftd: %s\n", error.text);
    return false;
}

/* -1: go on; otherwise the exit status. */
static int parse(int argc, char **argv, struct weft_config *config, struct weftd_options *options,
                 const char **secret_file_out)
{
    int answer;
    uint64_t number = 0;
    bool ok = true;
    opterr = 0;
    while (ok && (answer = getopt_long(argc, argv, ":n:s:c:i:e:j:p:h", options_table, NULL)) != -1) {
        switch (answer) {
        case 'n':
            ok = tool_parse_number("weftd", "--workers", optarg, 1, WEFT_LIMIT_WORKERS, &number),
            options->workers = (uint32_t)number;
            break;
        case 's':
            ok = tool_parse_number("weftd", "--shards", optarg, 1, WEFT_LIMIT_SHARDS, &number),
            options->shards = (uint32_t)number;
            break;
        case MIN_WORKERS:
            ok = tool_parse_number("weftd", "--min-workers", optarg, 1, WEFT_LIMIT_WORKERS, &number),
            options->workers_min = (uint32_t)number;
            break;
        case 'i':
            ok = tool_parse_number("weftd", "--index", optarg, 0, WEFT_LIMIT_SHARDS - 1, &number),
            options->index = (int)number;
            break;
        case 'e':
            ok = tool_parse_number("weftd", "--engines", optarg, 1, WEFT_LIMIT_ENGINES, &number),
            options->engines = (uint32_t)number;
            break;
        case 'p':
            ok = tool_parse_number("weftd", "--port", optarg, 0, 65535, &number), options->port = (int)number;
            break;
        case HTTP_PORT:
            ok = tool_parse_number("weftd", "--http-port", optarg, 0, 65535, &number),
            options->http_port = (int)number;
            break;
        case 'c': options->coordinator = optarg; break;
        case 'j': options->job = optarg; break;
        case SECRET_FILE: *secret_file_out = optarg; break;
        case LISTEN: options->listen = optarg; break;
        case PORT_FILE: options->port_file = optarg; break;
        case LANES: options->lanes = optarg; break;
        case DEVICES: options->devices = optarg; break;
        case CONFIG:
            if (!read_config(config, optarg)) return 1;
            break;
        case SET: ok = set_option(config, optarg); break;
        case 'h': fputs(help_text, stdout); return 0;
        case HELP_OPTIONS: weft_config_print(config, stdout); return 0;
        case 'V': tool_print_version("weftd"); return 0;
        default: return tool_option_error("weftd", argc, argv, answer);
        }
    }
    if (!ok) return TOOL_USAGE;
    if (options->workers_min && options->coordinator)
        return tool_usage_error("weftd",
                                "--min-workers is for the coordinator, and this shard joins the one at %s",
                                options->coordinator);
    if (options->workers_min > options->workers)
        return tool_usage_error("weftd", "--min-workers is at most the number of workers, %u",
                                options->workers);
    if (optind < argc)
        return tool_usage_error("weftd", "what is '%s'? weftd takes options only", argv[optind]);
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
