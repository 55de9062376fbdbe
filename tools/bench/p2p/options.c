/* options.c - see options.h. */
#include "tools/bench/p2p/options.h"
#include "base/base.h"
#include "tools/bench/bench_cli.h"
#include "tools/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/lib/output.h"

const char *p2p_op_name(unsigned op)
{
    return op == P2P_PUT ? "put" : op == P2P_GET ? "get" : "send";
}

const char *p2p_measure_name(unsigned measure)
{
    return measure == P2P_LATENCY     ? "lat"
           : measure == P2P_BANDWIDTH ? "bw"
           : measure == P2P_DUPLEX    ? "duplex"
                                      : "rate";
}

const char *p2p_wait_name(enum p2p_wait wait)
{
    return wait == P2P_WAIT_POLL ? "poll" : wait == P2P_WAIT_SLEEP ? "sleep" : "auto";
}

const char *p2p_pattern_name(enum p2p_pattern pattern)
{
    return pattern == P2P_PAIRS    ? "pairs"
           : pattern == P2P_INCAST ? "incast"
           : pattern == P2P_FANOUT ? "fanout"
                                   : "all";
}

/* The index of `text` among `choices`, starting at 1; 0: none. */
static unsigned choose(const char *text, const char *const *choices)
{
    for (unsigned i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) return i + 1;
    }
    return 0;
}

/* A mask of the choices named in a comma-separated list; "all" names every one. */
static int set_mask(const struct cli_command *command, const char *option, const char *text,
                    const char *const *choices, const char *expected, unsigned *out)
{
    char copy[96];
    unsigned mask = 0;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return cli_value_error(command, option, text, expected);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, ","));) {
        unsigned found = choose(word, choices);
        if (strcmp(word, "all") == 0) mask = ~0u;
        else if (found) mask |= 1u << (found - 1);
        else return cli_value_error(command, option, text, expected);
    }
    *out = mask;
    return -1;
}

static int set_ops(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const char *const ops[] = {"send", "put", "get", NULL};
    struct p2p_options *options = option->value;
    int status = set_mask(command, "--op", text, ops, "send, put, get or all", &options->ops);
    options->ops &= P2P_SEND | P2P_PUT | P2P_GET;
    return status;
}

static int set_measures(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const char *const measures[] = {"lat", "bw", "duplex", "rate", NULL};
    struct p2p_options *options = option->value;
    int status =
        set_mask(command, "--measure", text, measures, "lat, bw, duplex, rate or all", &options->measures);
    options->measures &= P2P_LATENCY | P2P_BANDWIDTH | P2P_DUPLEX | P2P_RATE;
    return status;
}

static int set_cpus(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct p2p_options *options = option->value;
    const char *list = text;
    long online = sysconf(_SC_NPROCESSORS_CONF);
    options->cpu_count = 0;
    while (*list) {
        char *end = NULL;
        unsigned long cpu = strtoul(list, &end, 10);
        if (end == list || cpu >= (unsigned long)online || (*end && *end != ',') ||
            options->cpu_count == P2P_CPUS_MAX)
            return cli_value_error(command, "--cpus", text, "a list of CPUs of this host, such as 0,1");
        options->cpus[options->cpu_count++] = (uint32_t)cpu;
        list = *end ? end + 1 : end;
    }
    return -1;
}

static bool transport_error(const char *text, const char *expected)
{
    fprintf(stderr, "weft bench p2p: --transport: '%s' is not %s\n", text, expected);
    return false;
}

bool p2p_transport_parse(const char *text, struct p2p_transport_spec *spec)
{
    const char *at = text;
    while (strncmp(at, "fault:", 6) == 0 || strncmp(at, "delay:", 6) == 0 || strncmp(at, "trace:", 6) == 0)
        at += 6;
    const char *colon = strchr(at, ':');
    size_t backend_bytes = colon ? (size_t)(colon - text) : strlen(text);
    memset(spec, 0, sizeof *spec);
    if (strlen(text) >= sizeof spec->text || backend_bytes >= sizeof spec->backend ||
        (colon && strlen(colon + 1) >= sizeof spec->lanes)) {
        return transport_error(text, "a shorter name");
    }
    if (*at == 0 || (colon && colon[1] == 0))
        return transport_error(text, "ucx:tcp, ucx:shm, shm, verbs, tcp or auto");
    if (strncmp(at, "sim", 3) == 0)
        return transport_error(text, "a real transport: sim lives inside one process");
    snprintf(spec->text, sizeof spec->text, "%s", text);
    snprintf(spec->backend, sizeof spec->backend, "%.*s", (int)backend_bytes, text);
    if (colon) snprintf(spec->lanes, sizeof spec->lanes, "%s", colon + 1);
    return true;
}

static int set_transport(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    return p2p_transport_parse(text, option->value) ? -1 : TOOL_USAGE;
}

static int set_step(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct p2p_options *options = option->value;
    if (!tool_size_parse(text, &options->sweep.step))
        return cli_value_error(command, "--stepbytes", text, "a size such as 64K");
    options->sweep.factor = 0;
    return -1;
}

/* Values that the table fills in addition to struct p2p_options. UINT32_MAX: not given. */
struct given {
    uint32_t processes, peers, wait, pattern, memory, compared;
};

/* -1: continue; otherwise the exit status. */
static int parse(struct p2p_options *options, struct given *given, int argc, char **argv)
{
    static const char *const waits[] = {"poll", "sleep", "auto", NULL};
    static const char *const patterns[] = {"pairs", "incast", "fanout", "all", NULL};
    static const char *const memories[] = {"plain", "mapped", NULL};
    static const char *const peers[] = {"ucx_perftest", NULL};
    const struct cli_option table[] = {
        {"processes", 'n', "N", "processes to start on this host; 0: take part in the job of the environment",
         "2; inside `weft run`, mpirun, srun or torchrun 0", CLI_U32(&given->processes, 0, P2P_RANKS_MAX)},
        {"peers", 0, "N", "peers of process 0: -n N+1, and pattern fanout unless --pattern is given", "",
         CLI_U32(&given->peers, 1, P2P_RANKS_MAX - 1)},
        {"op", 0, "OPS", "send, put, get, several with commas, or all", "send", CLI_CALL(set_ops, options)},
        {"measure", 0, "LIST", "lat, bw, duplex, rate, several with commas, or all", "lat,bw",
         CLI_CALL(set_measures, options)},
        {"transport", 0, "T", "ucx:tcp, ucx:shm, shm, verbs, tcp, auto; wrapped: fault:T, delay:T", "ucx:tcp",
         CLI_CALL(set_transport, &options->transport)},
        {"devices", 0, "LIST", "network or RDMA devices, separated by commas", "lo",
         CLI_TEXT(&options->devices)},
        {"secret-file", 0, "FILE",
         "file with the secret by which the endpoints authenticate, the same on all hosts; verbs between "
         "hosts "
         "requires one",
         "WEFT_SECRET, then WEFT_SECRET_FILE", CLI_TEXT(&options->secret_file)},
        {"wrap", 0, "TEXT", "parameters of fault: and delay:, such as delay_us=100", "",
         CLI_TEXT(&options->wrap)},
        {"wait", 0, "MODE", "poll: never sleep; sleep: at once; auto: poll for a while, then sleep", "poll",
         CLI_CHOICE(&given->wait, waits)},
        {"pattern", 0, "P",
         "pattern of bandwidth: pairs (0-1 2-3 ...), incast (all to 0), fanout (0 to all) or all; latency is "
         "always "
         "that of the pairs",
         "pairs", CLI_CHOICE(&given->pattern, patterns)},
        {"memory", 0, "M", "plain, or mapped: memory from the transport", "mapped, if the transport has any",
         CLI_CHOICE(&given->memory, memories)},
        {"window", 0, "N", "messages in flight per peer for bw and duplex; rate has 4 times as many",
         CLI_U32(&options->window, 1, P2P_WINDOW_MAX)},
        {"buffers", 0, "N", "buffers used in turn; perftest has 1",
         CLI_U32(&options->buffers, 1, P2P_BUFFERS_MAX)},
        {"eager", 0, "SIZE", "longest payload that is sent without a rendezvous", "that of the transport",
         CLI_SIZE(&options->eager_bytes, 0, TOOL_SIZE_MAX)},
        {"cpus", 0, "LIST", "CPUs for the processes, in turn", "not pinned", CLI_CALL(set_cpus, options)},
        {"minbytes", 'b', "SIZE", "first size: 8, 64K, 25M, 1G",
         CLI_SIZE(&options->sweep.first, 0, TOOL_SIZE_MAX)},
        {"maxbytes", 'e', "SIZE", "last size", CLI_SIZE(&options->sweep.last, 0, TOOL_SIZE_MAX)},
        {"stepfactor", 'f', "F", "ratio of a size to the one before",
         CLI_REAL(&options->sweep.factor, 1.001, 1e6)},
        {"stepbytes", 0, "SIZE", "difference of a size to the one before, instead of a ratio", "",
         CLI_CALL(set_step, options)},
        {"iters", 0, "N", "timed messages of a row", "as many as --row-ms allows",
         CLI_U32(&options->iters, 1, P2P_ITERS_MAX)},
        {"row-ms", 0, "MS", "time of one row", CLI_U32(&options->row_ms, 1, 60000)},
        {"deadline", 0, "SECONDS", "longest time without progress", CLI_U32(&options->deadline_s, 1, 3600)},
        BENCH_JSON_OPTION(&options->json),
        {"compare", 0, "PEER",
         "ucx_perftest: run it, memcpy and process_vm_readv in turn with weft, and print the ratios", "",
         CLI_CHOICE(&given->compared, peers)},
        {"beside", 0, "PEER", CLI_CHOICE(&given->compared, peers), .new_name = "compare"},
        {"rounds", 0, "N", "rounds of --compare; medians are printed", CLI_U32(&options->rounds, 1, 99)},
        {"only", 0, "LIST", "sections of --compare: shm-latency, shm-send, shm-put, cma, tcp", "all",
         CLI_TEXT(&options->sections)},
    };
    const struct cli_command command = {"weft bench p2p", "weft bench p2p [options]",
                                        "Messages between endpoints of one transport, no collective: "
                                        "latency, bandwidth, message rate, contents checked.\n",
                                        CLI_TABLE(table),
                                        .notes = "Latencies are one way (half a round trip; of get: the "
                                                 "whole operation), in microseconds; t_avg is of a pass\n"
                                                 "without a clock reading per message. BW in GB/s (1e9 "
                                                 "bytes), all peers and both directions together; peak:\n"
                                                 "the fastest twentieth of the messages at each receiver. "
                                                 "CPU: processor seconds of all processes per GB.\n"
                                                 "copies: per message, as the transport counts them. #wrong: "
                                                 "messages with a wrong length, status or byte.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

static int usage_error(const char *sentence)
{
    return tool_usage_error("weft bench p2p", "%s", sentence);
}

/* Whether a launcher or `weft run` has started this process as one of several. */
static bool is_in_job(void)
{
    struct weft_launcher launcher;
    return getenv("WEFT_COORDINATOR") != NULL ||
           weft_launcher_find(false, &launcher, NULL) != WEFT_ERR_NOT_FOUND;
}

int p2p_options_parse(struct p2p_options *options, int argc, char **argv)
{
    *options = (struct p2p_options){
        .ops = P2P_SEND,
        .measures = P2P_LATENCY | P2P_BANDWIDTH,
        .wait = P2P_WAIT_POLL,
        .pattern = P2P_PAIRS,
        .memory = P2P_MEMORY_MAPPED,
        .sweep = {.first = 8, .last = 4 << 20, .factor = 8, .unit = 1},
        .processes = is_in_job() ? 0 : 2,
        .window = 16,
        .buffers = 1,
        .row_ms = 300,
        .deadline_s = 30,
        .eager_bytes = UINT64_MAX,
        .rounds = 5,
    };
    struct given given = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    p2p_transport_parse("ucx:tcp", &options->transport);
    int status = parse(options, &given, argc, argv);
    if (status >= 0) return status;
    const bool has_peers = given.peers != UINT32_MAX, has_pattern = given.pattern != UINT32_MAX;
    if (has_peers && given.processes != UINT32_MAX)
        return usage_error("--peers N means -n N+1: give one of them");
    if (given.processes != UINT32_MAX) options->processes = given.processes;
    if (has_peers) options->processes = given.peers + 1;
    if (has_pattern) options->pattern = (enum p2p_pattern)(given.pattern + 1);
    else if (has_peers) options->pattern = P2P_FANOUT;
    if (given.wait != UINT32_MAX) options->wait = (enum p2p_wait)(given.wait + 1);
    if (given.memory != UINT32_MAX) options->memory = (enum p2p_memory)(given.memory + 1);
    options->compares = given.compared != UINT32_MAX;
    if (options->sweep.first == 0) options->sweep.first = 1;
    if (options->sweep.first > options->sweep.last)
        return usage_error("the first size (-b) is larger than the last (-e)");
    if (options->processes == 1) return usage_error("-n 1: two processes are the minimum");
    options->progress = isatty(STDERR_FILENO);
    return -1;
}
