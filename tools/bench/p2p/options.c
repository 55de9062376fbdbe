/* options.c - see options.h. */
#include "tools/bench/p2p/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/lib/usage.h"

enum {
    OPTION_OP = 256,
    OPTION_MEASURE,
    OPTION_WAIT,
    OPTION_PATTERN,
    OPTION_MEMORY,
    OPTION_TRANSPORT,
    OPTION_DEVICES,
    OPTION_WRAP,
    OPTION_WINDOW,
    OPTION_BUFFERS,
    OPTION_ITERS,
    OPTION_ROW_MS,
    OPTION_DEADLINE,
    OPTION_EAGER,
    OPTION_CPUS,
    OPTION_JSON,
    OPTION_PEERS,
    OPTION_SECRET,
    OPTION_BESIDE,
    OPTION_ROUNDS,
    OPTION_ONLY,
    OPTION_STEP,
};

static const struct option long_options[] = {
    {"op", required_argument, NULL, OPTION_OP},
    {"measure", required_argument, NULL, OPTION_MEASURE},
    {"wait", required_argument, NULL, OPTION_WAIT},
    {"pattern", required_argument, NULL, OPTION_PATTERN},
    {"memory", required_argument, NULL, OPTION_MEMORY},
    {"transport", required_argument, NULL, OPTION_TRANSPORT},
    {"devices", required_argument, NULL, OPTION_DEVICES},
    {"wrap", required_argument, NULL, OPTION_WRAP},
    {"window", required_argument, NULL, OPTION_WINDOW},
    {"buffers", required_argument, NULL, OPTION_BUFFERS},
    {"iters", required_argument, NULL, OPTION_ITERS},
    {"row-ms", required_argument, NULL, OPTION_ROW_MS},
    {"deadline", required_argument, NULL, OPTION_DEADLINE},
    {"eager", required_argument, NULL, OPTION_EAGER},
    {"cpus", required_argument, NULL, OPTION_CPUS},
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"stepbytes", required_argument, NULL, OPTION_STEP},
    {"processes", required_argument, NULL, 'n'},
    {"peers", required_argument, NULL, OPTION_PEERS},
    {"secret-file", required_argument, NULL, OPTION_SECRET},
    {"json", no_argument, NULL, OPTION_JSON},
    {"beside", required_argument, NULL, OPTION_BESIDE},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"only", required_argument, NULL, OPTION_ONLY},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "usage: weft bench p2p [options]\n\n"
    "Messages between endpoints of one transport, no collective: latency, bandwidth, message rate, contents "
    "checked.\n\n"
    "  -n, --processes N     start N processes on this host (default 2; 0, or inside `weft run`: take part "
    "in that job)\n"
    "      --peers N         process 0 and N peers: -n N+1, and pattern fanout unless another is named\n"
    "      --op OPS          send, put, get, several with commas, or all (default send)\n"
    "      --measure WHAT    lat, bw, duplex, rate, several with commas, or all (default lat,bw)\n"
    "      --transport T     ucx:tcp, ucx:shm, shm, verbs, tcp, auto; wrapped: fault:T, delay:T (default "
    "ucx:tcp)\n"
    "      --devices LIST    network or RDMA devices, comma separated (default lo)\n"
    "      --secret-file FILE  the secret that the endpoints prove to each other, the same on all hosts "
    "(default:\n"
    "                        WEFT_SECRET, WEFT_SECRET_FILE): verbs between hosts needs one\n"
    "      --wrap TEXT       parameters of fault: and delay:, e.g. delay_us=100\n"
    "      --wait MODE       poll (never sleep), sleep (at once), auto (spin briefly, then sleep; default "
    "poll)\n"
    "      --pattern P       bandwidth of: pairs 0-1 2-3 ..., incast (all to 0), fanout (0 to all), all "
    "(default pairs);\n"
    "                        latency is always that of the pairs\n"
    "      --memory M        plain, or mapped: memory that the transport itself gives (default mapped where "
    "there is any)\n"
    "      --window N        messages in flight per peer for bw and duplex (default 16; rate: 4 times that)\n"
    "      --buffers N       buffers used in turn (default 1, as perftest does)\n"
    "      --eager SIZE      payloads up to SIZE travel with their announcement (default: the transport's)\n"
    "      --cpus LIST       pin process i to the i-th CPU of the list, in turn (default: not pinned)\n"
    "  -b, --minbytes SIZE   first size: 8, 64K, 25M, 1G (default 8)\n"
    "  -e, --maxbytes SIZE   last size (default 4M)\n"
    "  -f, --stepfactor F    next size = size * F (default 8)\n"
    "      --stepbytes SIZE  next size = size + SIZE instead\n"
    "      --iters N         timed messages of a row (default: as many as --row-ms hold)\n"
    "      --row-ms MS       time of one row (default 300)\n"
    "      --deadline S      give up when nothing moves for so long (default 30)\n"
    "      --json            one JSON object per row instead of the table\n"
    "      --beside PEERS    ucx_perftest: run it, memcpy and process_vm_readv in turn with ours, print the "
    "ratios\n"
    "      --rounds N        of --beside; medians are printed (default 5)\n"
    "      --only LIST       of --beside: shm-latency, shm-send, shm-put, cma, tcp (default: all)\n"
    "  -h, --help            this text\n\n"
    "Latencies are one way (half a round trip; of get: the whole operation), in microseconds; t_avg is of a "
    "pass without\n"
    "a clock reading per message. BW in GB/s (1e9 bytes), all peers and both directions together; peak: the "
    "fastest\n"
    "twentieth of the messages at each receiver. CPU: processor seconds of all processes per GB. copies: per "
    "message, as the\n"
    "transport counts them. #wrong: messages with a wrong length, status or byte.\n";

const char *p2p_op_name(unsigned op) { return op == P2P_PUT ? "put" : op == P2P_GET ? "get" : "send"; }

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

static bool complain(const char *option, const char *text, const char *expected)
{
    fprintf(stderr, "weft bench p2p: %s %s: expected %s\n", option, text, expected);
    return false;
}

static bool parse_u32(const char *option, const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end = NULL, expected[80];
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    snprintf(expected, sizeof expected, "a whole number from %" PRIu32 " to %" PRIu32, min, max);
    if (end == text || *end || errno || *text == '-' || value < min || value > max)
        return complain(option, text, expected);
    *out = (uint32_t)value;
    return true;
}

static bool parse_size(const char *option, const char *text, uint64_t *out)
{
    if (bench_size_parse(text, out)) return true;
    return complain(option, text, "a size such as 8, 64K, 25M or 1G");
}

/* The index of `text` among `choices`, starting at 1; 0: none. */
static unsigned choose(const char *text, const char *const *choices)
{
    for (unsigned i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) return i + 1;
    }
    return 0;
}

static bool parse_choice(const char *option, const char *text, const char *const *choices, const char *listed,
                         unsigned *out)
{
    unsigned found = choose(text, choices);
    if (!found) return complain(option, text, listed);
    *out = found;
    return true;
}

/* A mask of the choices named in a comma-separated list. */
static bool parse_mask(const char *option, const char *text, const char *const *choices, const char *listed,
                       unsigned *out)
{
    char copy[96];
    unsigned mask = 0;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return complain(option, text, listed);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, ","));) {
        unsigned found = choose(word, choices);
        if (strcmp(word, "all") == 0) mask = ~0u;
        else if (found) mask |= 1u << (found - 1);
        else return complain(option, text, listed);
    }
    *out = mask;
    return mask != 0;
}

static bool parse_cpus(struct p2p_options *options, const char *text)
{
    long online = sysconf(_SC_NPROCESSORS_CONF);
    options->cpu_count = 0;
    while (*text) {
        char *end = NULL;
        unsigned long cpu = strtoul(text, &end, 10);
        if (end == text || cpu >= (unsigned long)online || (*end && *end != ',') ||
            options->cpu_count == P2P_CPUS_MAX) {
            return complain("--cpus", text, "numbers of CPUs of this host, such as 0,1");
        }
        options->cpus[options->cpu_count++] = (uint32_t)cpu;
        text = *end ? end + 1 : end;
    }
    return true;
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
        return complain("--transport", text, "a shorter name");
    }
    if (*at == 0 || (colon && colon[1] == 0))
        return complain("--transport", text, "ucx:tcp, ucx:shm, shm, verbs, tcp or auto");
    if (strncmp(at, "sim", 3) == 0)
        return complain("--transport", text, "a real transport: sim lives inside one process");
    snprintf(spec->text, sizeof spec->text, "%s", text);
    snprintf(spec->backend, sizeof spec->backend, "%.*s", (int)backend_bytes, text);
    if (colon) snprintf(spec->lanes, sizeof spec->lanes, "%s", colon + 1);
    return true;
}

static bool parse_factor(const char *text, double *out)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 1) || value > 1e6) return complain("-f", text, "a number above 1");
    *out = value;
    return true;
}

static bool set_words(struct p2p_options *options, int found, const char *text)
{
    static const char *const ops[] = {"send", "put", "get", NULL}, *const measures[] = {"lat", "bw", "duplex",
                                                                                        "rate", NULL};
    static const char *const waits[] = {"poll", "sleep", "auto", NULL};
    static const char *const patterns[] = {"pairs", "incast", "fanout", "all", NULL}, *const memories[] = {
                                                                                          "plain", "mapped",
                                                                                          NULL};
    unsigned value = 0;
    switch (found) {
    case OPTION_OP:
        if (!parse_mask("--op", text, ops, "send, put, get or all", &options->ops)) return false;
        options->ops &= P2P_SEND | P2P_PUT | P2P_GET;
        return true;
    case OPTION_MEASURE:
        if (!parse_mask("--measure", text, measures, "lat, bw, duplex, rate or all", &options->measures))
            return false;
        options->measures &= P2P_LATENCY | P2P_BANDWIDTH | P2P_DUPLEX | P2P_RATE;
        return true;
    case OPTION_WAIT:
        if (!parse_choice("--wait", text, waits, "poll, sleep or auto", &value)) return false;
        options->wait = (enum p2p_wait)value;
        return true;
    case OPTION_PATTERN:
        if (!parse_choice("--pattern", text, patterns, "pairs, incast, fanout or all", &value)) return false;
        options->pattern = (enum p2p_pattern)value;
        return true;
    default:
        if (!parse_choice("--memory", text, memories, "plain or mapped", &value)) return false;
        options->memory = (enum p2p_memory)value;
        return true;
    }
}

static bool set_option(struct p2p_options *options, int found, const char *text)
{
    switch (found) {
    case 'b': return parse_size("-b", text, &options->sweep.first);
    case 'e': return parse_size("-e", text, &options->sweep.last);
    case 'f': return parse_factor(text, &options->sweep.factor);
    case OPTION_STEP: options->sweep.factor = 0; return parse_size("--stepbytes", text, &options->sweep.step);
    case 'n': return parse_u32("-n", text, 0, P2P_RANKS_MAX, &options->processes);
    case OPTION_PEERS:
        if (!parse_u32("--peers", text, 1, P2P_RANKS_MAX - 1, &options->processes)) return false;
        options->processes++;
        return true;
    case OPTION_TRANSPORT: return p2p_transport_parse(text, &options->transport);
    case OPTION_DEVICES: options->devices = text; return true;
    case OPTION_SECRET: options->secret_file = text; return true;
    case OPTION_WRAP: options->wrap = text; return true;
    case OPTION_WINDOW: return parse_u32("--window", text, 1, P2P_WINDOW_MAX, &options->window);
    case OPTION_BUFFERS: return parse_u32("--buffers", text, 1, P2P_BUFFERS_MAX, &options->buffers);
    case OPTION_ITERS: return parse_u32("--iters", text, 1, P2P_ITERS_MAX, &options->iters);
    case OPTION_ROW_MS: return parse_u32("--row-ms", text, 1, 60000, &options->row_ms);
    case OPTION_DEADLINE: return parse_u32("--deadline", text, 1, 3600, &options->deadline_s);
    case OPTION_EAGER: return parse_size("--eager", text, &options->eager_bytes);
    case OPTION_CPUS: return parse_cpus(options, text);
    case OPTION_JSON: options->json = true; return true;
    case OPTION_BESIDE:
        options->compares = strcmp(text, "ucx_perftest") == 0;
        return options->compares || complain("--beside", text, "ucx_perftest");
    case OPTION_ROUNDS: return parse_u32("--rounds", text, 1, 99, &options->rounds);
    case OPTION_ONLY: options->sections = text; return true;
    default: return set_words(options, found, text);
    }
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
        .processes = getenv("WEFT_COORDINATOR") ? 0 : 2,
        .window = 16,
        .buffers = 1,
        .row_ms = 300,
        .deadline_s = 30,
        .eager_bytes = UINT64_MAX,
        .rounds = 5,
    };
    p2p_transport_parse("ucx:tcp", &options->transport);
    int found, several = 0;
    bool peers = false, patterned = false;
    opterr = 0;
    optind = 1;
    while ((found = getopt_long(argc, argv, ":b:e:f:n:h", long_options, NULL)) != -1) {
        if (found == 'h') return fputs(help, stdout), 1;
        if (found == '?' || found == ':') return bench_option_error("p2p", argv, found) + 1;
        if (found == 'n') several++;
        if (found == OPTION_PEERS) several++, peers = true;
        if (found == OPTION_PATTERN) patterned = true;
        if (!set_option(options, found, optarg)) return 3;
    }
    if (optind < argc) return fprintf(stderr, "weft bench p2p: unexpected argument '%s'\n", argv[optind]), 3;
    if (peers && several > 1)
        return fprintf(stderr, "weft bench p2p: --peers N means -n N+1: say one of them\n"), 3;
    if (peers && !patterned) options->pattern = P2P_FANOUT;
    if (options->sweep.first == 0) options->sweep.first = 1;
    if (options->sweep.first > options->sweep.last) {
        return fprintf(stderr, "weft bench p2p: the first size (-b) is larger than the last (-e)\n"), 3;
    }
    if (options->processes == 1)
        return fprintf(stderr, "weft bench p2p: -n 1: two processes are the least that can talk\n"), 3;
    options->progress = isatty(STDERR_FILENO);
    return 0;
}
