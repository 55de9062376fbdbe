/* fleet.c - options of `weft bench fleet`; see fleet.h. */
#include "tools/bench/fleet/fleet.h"

#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_cli.h"

static int set_devices(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    if (setenv("WEFT_TRANSPORT_DEVICES", text, 1) == 0) return -1;
    fprintf(stderr, "%s: no memory for --devices\n", command->name);
    return 1;
}

/* A host is a word of a command line for a remote shell. */
static bool is_host(const char *host)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%@";
    return *host && host[0] != '-' && strspn(host, letters) == strlen(host) &&
           strlen(host) < FLEET_NAME_BYTES;
}

static int check_hosts(const struct fleet_options *options)
{
    static const char name[] = "weft bench fleet";
    if (options->host_count == 0) return -1;
    if (options->processes > 0) return tool_usage_error(name, "-n starts processes on this host: no hosts");
    if (options->host_count < 2 || options->host_count > FLEET_HOSTS_MAX)
        return tool_usage_error(name, "2 to %d hosts, not %u", FLEET_HOSTS_MAX, options->host_count);
    for (uint32_t i = 0; i < options->host_count; i++) {
        if (!is_host(options->hosts[i]))
            return tool_usage_error(name, "'%s' is not the name or address of a host", options->hosts[i]);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(options->hosts[i], options->hosts[j]) == 0)
                return tool_usage_error(name, "host %s is listed twice", options->hosts[i]);
    }
    return -1;
}

int fleet_options_parse(struct fleet_options *options, int argc, char **argv)
{
    *options = (struct fleet_options){.remote_shell = "ssh",
                                      .bytes = 1 << 20,
                                      .ms = 50,
                                      .slow_percent = 70,
                                      .port = 4848,
                                      .deadline_s = 300};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&options->processes, FLEET_HOSTS_MAX),
        BENCH_TRANSPORT_OPTION,
        {"devices", 0, "LIST", "network or RDMA devices, separated by commas",
         "the device that leads to the first host", CLI_CALL(set_devices, NULL)},
        {"bytes", 'b', "SIZE", "message of the bandwidth", CLI_SIZE(&options->bytes, 1, 1u << 30)},
        {"ms", 0, "MS", "time of one measurement of bandwidth", CLI_U32(&options->ms, 1, 60000)},
        {"serial", 0, NULL, "one pair at a time, instead of disjoint pairs at once",
         CLI_FLAG(&options->serial)},
        {"slow", 0, "PERCENT", "a link below this part of the median bandwidth is slow; 0: none is",
         CLI_U32(&options->slow_percent, 0, 100)},
        {"rsh", 0, "COMMAND",
         "with HOSTS, the command that runs a shell line on a host: COMMAND HOST LINE, the job's secret on "
         "its "
         "standard input",
         CLI_TEXT(&options->remote_shell)},
        {"program", 0, "PATH", "with HOSTS, path of weft there", "that of this program",
         CLI_TEXT(&options->program)},
        {"port", 0, "PORT", "with HOSTS, port of the coordinator on the first host",
         CLI_U32(&options->port, 1, 65535)},
        {"deadline", 0, "SECONDS", "with HOSTS, longest time of the whole measurement",
         CLI_U32(&options->deadline_s, 1, 86400)},
        {"name", 0, "NAME", "name of the host of this rank", "its host name", CLI_TEXT(&options->name)},
        BENCH_JSON_OPTION(&options->json),
        {"plot", 0, "FILE", "heat map of the bandwidth (SVG; PNG for the ending .png)", "",
         CLI_TEXT(&options->plot)},
    };
    const struct cli_command command = {
        "weft bench fleet",
        "weft bench fleet [options] [HOST HOST ...]",
        "Bandwidth and latency between each pair of hosts, as matrices, and the slow links by name.\n",
        CLI_TABLE(table),
        .notes =
            "With HOSTS a rank starts on each host, by ssh. Without, each process of the job is a host.\n"
            "Exit status: 0 measured; 1 a measurement failed; 3 with HOSTS, a link is slow.\n",
        .takes_arguments = true};
    int first, status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    options->hosts = argv + first;
    options->host_count = (uint32_t)(argc - first);
    return check_hosts(options);
}
