/* sim.c - `weft sim`: what a collective would cost on a cluster of thousands of ranks, by running it on
 * the simulator. */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/lib/sweep.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/sim/sim.h"

#define DATA_BYTES_MAX (64u << 10)

static const char help[] =
    "usage: weft sim [OPERATION] [options]\n"
    "Runs one collective of many ranks with the plans and the interpreter of the library, over a simulated "
    "network, and\n"
    "prints its virtual time, what the links carried, and what the closed formula says.\n\n"
    "  OPERATION              all_reduce (default), reduce_scatter, all_gather, broadcast, barrier\n"
    "  -n, --ranks N          ranks (default 64, at most 65536)\n"
    "  -b, --bytes SIZE       of the vector, all pieces together (default 64M); suffixes K, M, G\n"
    "  -p, --plan NAME        auto (default) or a plan's name: ring, direct, ...\n"
    "  -t, --topology FILE    hosts, switches and cables (docs/simulator.md); neighbouring ranks share a "
    "host\n"
    "      --latency US       without a topology: one way between two hosts, each with one rank (default 5)\n"
    "      --rate GBIT        without a topology: of each host's link, each direction (default 100)\n"
    "      --links FILE      latency and rate from a link table, as `weft bench calibrate` writes it\n"
    "      --beside NAME     measure the same on this host over this transport (tcp, shm ...), too, and "
    "print the error\n"
    "      --chunk SIZE       a message's longest payload (default: the library's)\n"
    "      --inflight N       steps of one operation in flight (default 16)\n"
    "      --eager SIZE       payloads up to this travel with their announcement (default 64K)\n"
    "      --root N           of a broadcast (default 0)\n"
    "      --seed N           of the simulation (default 1)\n"
    "      --data             move and check real data, also above 64K (default: up to 64K)\n"
    "      --timing-only      never touch data\n"
    "      --in-turn          with a topology: ranks are dealt out to its hosts in turn\n"
    "      --shuffle          with a topology: its hosts in an order made by the seed, as a scheduler may "
    "deal them out\n"
    "      --unmeasured       rings and slices as if no single link had been measured: what they were "
    "before\n"
    "      --every-rank       run every rank, also of a ring whose ranks are all alike (then a few stand for "
    "all)\n"
    "      --json             one JSON object\n"
    "  -h, --help\n\n"
    "Memory grows with the square of the ranks: about 200 bytes a pair (4,096 ranks: 4 GB).\n"
    "Exit status: 0 it ended and data, if checked, is right; 1 not; 2 wrong usage.\n";

enum {
    LATENCY = 256,
    RATE,
    CHUNK,
    INFLIGHT,
    EAGER,
    ROOT,
    SEED,
    DATA,
    TIMING,
    EVERY,
    IN_TURN,
    SHUFFLE,
    UNMEASURED,
    LINKS,
    BESIDE,
    JSON
};

/* ---- options ---- */

static bool size_option(const char *name, const char *text, uint64_t min, uint64_t *out)
{
    if (bench_size_parse(text, out) && *out >= min) return true;
    tool_usage_error("weft sim", "%s '%s' is no size of at least %llu; write 64K, 1M, 4G", name, text,
                     (unsigned long long)min);
    return false;
}

static bool number_option(const char *name, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= 0 && *out <= 1e9) return true;
    tool_usage_error("weft sim", "%s '%s' is no number from 0 to 1e9", name, text);
    return false;
}

static bool small_option(const char *name, const char *text, uint64_t min, uint64_t max, uint32_t *out)
{
    uint64_t value;
    if (!tool_parse_number("weft sim", name, text, min, max, &value)) return false;
    *out = (uint32_t)value;
    return true;
}

static bool plan_option(const char *text, enum weft_plan_id *out)
{
    *out = weft_plan_parse(text);
    if (*out != WEFT_PLAN_AUTO || strcmp(text, "auto") == 0) return true;
    tool_usage_error("weft sim", "there is no plan '%s'", text);
    return false;
}

static bool kind_option(const char *text, enum weft_coll_kind *out)
{
    *out = weft_coll_kind_parse(text, strlen(text));
    if (*out >= WEFT_COLL_ALL_REDUCE && *out <= WEFT_COLL_BARRIER) return true;
    tool_usage_error("weft sim",
                     "there is no operation '%s': all_reduce, reduce_scatter, all_gather, broadcast, barrier",
                     text);
    return false;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, struct sim_settings *s)
{
    static const struct option options[] = {{"ranks", required_argument, NULL, 'n'},
                                            {"bytes", required_argument, NULL, 'b'},
                                            {"plan", required_argument, NULL, 'p'},
                                            {"topology", required_argument, NULL, 't'},
                                            {"latency", required_argument, NULL, LATENCY},
                                            {"rate", required_argument, NULL, RATE},
                                            {"chunk", required_argument, NULL, CHUNK},
                                            {"inflight", required_argument, NULL, INFLIGHT},
                                            {"eager", required_argument, NULL, EAGER},
                                            {"root", required_argument, NULL, ROOT},
                                            {"seed", required_argument, NULL, SEED},
                                            {"data", no_argument, NULL, DATA},
                                            {"timing-only", no_argument, NULL, TIMING},
                                            {"every-rank", no_argument, NULL, EVERY},
                                            {"in-turn", no_argument, NULL, IN_TURN},
                                            {"shuffle", no_argument, NULL, SHUFFLE},
                                            {"unmeasured", no_argument, NULL, UNMEASURED},
                                            {"links", required_argument, NULL, LINKS},
                                            {"beside", required_argument, NULL, BESIDE},
                                            {"json", no_argument, NULL, JSON},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int answer, data = -1;
    bool ok = true;
    const char *links = NULL;
    double number;
    opterr = 0, optind = 1;
    while (ok && (answer = getopt_long(argc, argv, ":n:b:p:t:h", options, NULL)) != -1) {
        switch (answer) {
        case 'n': ok = small_option("--ranks", optarg, 1, SIM_RANKS_MAX, &s->ranks); break;
        case 'b': ok = size_option("--bytes", optarg, 0, &s->bytes); break;
        case 'p': ok = plan_option(optarg, &s->plan); break;
        case 't': s->topology_path = optarg; break;
        case LATENCY:
            if ((ok = number_option("--latency", optarg, &number))) s->latency_ns = (uint64_t)(number * 1e3);
            break;
        case RATE:
            if ((ok = number_option("--rate", optarg, &number))) s->bytes_per_second = number * 1e9 / 8;
            break;
        case CHUNK: ok = size_option("--chunk", optarg, 64, &s->chunk_bytes); break;
        case INFLIGHT: ok = small_option("--inflight", optarg, 2, 4096, &s->inflight); break;
        case EAGER: ok = size_option("--eager", optarg, 1, &s->eager_bytes); break;
        case ROOT: ok = small_option("--root", optarg, 0, SIM_RANKS_MAX - 1, &s->root); break;
        case SEED: ok = tool_parse_number("weft sim", "--seed", optarg, 0, UINT64_MAX, &s->seed); break;
        case DATA: data = 1; break;
        case TIMING: data = 0; break;
        case LINKS: links = optarg; break;
        case BESIDE: s->compare_transport = optarg; break;
        case EVERY: s->every_rank = true; break;
        case IN_TURN: s->round_robin = true; break;
        case SHUFFLE: s->shuffle = true; break;
        case UNMEASURED: s->ignores_measured_links = true; break;
        case JSON: s->json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: return tool_option_error("weft sim", argc, argv, answer);
        }
    }
    if (ok && optind < argc) ok = kind_option(argv[optind++], &s->kind);
    if (!ok) return TOOL_USAGE;
    if (optind < argc) return tool_usage_error("weft sim", "'%s' is one operation too many", argv[optind]);
    if (s->root >= s->ranks) return tool_usage_error("weft sim", "root %u of %u ranks", s->root, s->ranks);
    if (s->compare_transport && (s->topology_path || s->ranks < 2 || s->ranks > 64))
        return tool_usage_error("weft sim",
                                "--beside measures 2 to 64 ranks of this host: without --topology");
    if (links && !sim_links_load(s, links)) return 1;
    s->timing_only = data < 0 ? s->bytes > DATA_BYTES_MAX : data == 0;
    return -1;
}

/* ---- what comes out ---- */

static const char *human_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    unsigned unit = 0;
    while (bytes >= 10000 && unit < 5) bytes /= 1000, unit++;
    snprintf(out, 32, bytes < 100 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

/* Ranks that stand for others do so with their links, too. */
static bool link_use(struct sim_job *job, const struct sim_settings *settings,
                     const struct sim_result *result, uint32_t index, struct weft_sim_link_use *use_out)
{
    if (!weft_sim_link_use(sim_job_sim(job), index, use_out)) return false;
    use_out->links *= settings->ranks / result->simulated;
    use_out->bytes *= settings->ranks / result->simulated;
    return true;
}

static void print_links(struct sim_job *job, const struct sim_settings *settings,
                        const struct sim_result *result)
{
    struct weft_sim_link_use use;
    char all[32], busiest[32];
    printf("\n  %-16s %10s %12s %12s %8s\n", "links", "directed", "all", "busiest", "in use");
    for (uint32_t i = 0; link_use(job, settings, result, i, &use); i++) {
        double seconds = (double)result->virtual_ns / 1e9;
        double used = use.bytes_per_second > 0 && seconds > 0
                          ? (double)use.busiest_bytes / use.bytes_per_second / seconds
                          : 0;
        printf("  %-16s %10" PRIu64 " %12s %12s %7.1f%%\n", use.name, use.links,
               human_bytes((double)use.bytes, all), human_bytes((double)use.busiest_bytes, busiest),
               used * 100);
    }
}

/* Every plan on paper; the one that ran and the one that `auto` takes are marked. */
static void print_formulas(const struct sim_job *job, const struct sim_result *r,
                           const struct sim_formula *formulas, enum weft_plan_id chosen)
{
    const struct weft_link_cost *cost = sim_job_cost(job);
    printf("\n  on paper: a = %.3f us (three above %.4g KiB a message), 1/b = %.3f GB/s\n",
           (double)cost->latency_ns / 1e3, (double)cost->eager_bytes / 1024,
           (double)cost->bytes_per_second / 1e9);
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) {
        if (!formulas[plan].text) continue;
        printf("  %-14s %.6f s   %s", weft_plan_name(plan), formulas[plan].seconds, formulas[plan].text);
        if (plan == (int)chosen) printf(", what auto takes");
        if (plan == (int)r->plan && formulas[plan].seconds > 0)
            printf("; simulated over formula: %.3f", (double)r->virtual_ns / 1e9 / formulas[plan].seconds);
        putchar('\n');
    }
}

static void print_text(const struct sim_settings *s, struct sim_job *job, const struct sim_result *r,
                       const struct sim_formula *formulas, enum weft_plan_id chosen)
{
    char network[200], memory[32], bytes[32];
    double seconds = (double)r->virtual_ns / 1e9;
    if (sim_job_topology(job)) weft_topology_describe(sim_job_topology(job), network, sizeof network);
    else
        snprintf(network, sizeof network, "ideal, %.3g us, %.4g Gbit/s a host", (double)s->latency_ns / 1e3,
                 s->bytes_per_second * 8 / 1e9);
    printf("%s, %u ranks, %s of f32, plan %s%s\n", weft_coll_kind_name(s->kind), s->ranks,
           human_bytes((double)r->vector_bytes, bytes), weft_plan_name(r->plan),
           s->plan == WEFT_PLAN_AUTO ? " (chosen)" : "");
    printf("network: %s\n\n", network);
    printf("  virtual time   %.6f s", seconds);
    if (r->vector_bytes > 0 && seconds > 0)
        printf("   (%.3f GB/s of the vector)", (double)r->vector_bytes / seconds / 1e9);
    printf("\n  data           %s\n", !r->data_checked ? "not touched (timing only)"
                                      : r->wrong       ? "WRONG"
                                                       : "every element of every rank is right");
    if (r->wrong) printf("  wrong          %" PRIu64 " elements\n", r->wrong);
    print_formulas(job, r, formulas, chosen);
    if (r->measured_s > 0)
        printf("\n  measured       %.6f s   on this host over %s; simulated over measured: %.3f\n",
               r->measured_s, s->compare_transport, seconds / r->measured_s);
    print_links(job, s, r);
    putchar('\n');
    if (r->simulated < s->ranks)
        printf("  %u ranks ran, each in the place of %u that do the same at the same time (--every-rank runs "
               "them all)\n",
               r->simulated, s->ranks / r->simulated);
    printf("  %" PRIu64
           " events in %.2f s of processor time (%.2f million a second), set up in %.2f s, memory %s\n",
           r->events, r->run_s, r->run_s > 0 ? (double)r->events / r->run_s / 1e6 : 0, r->set_up_s,
           human_bytes((double)r->memory_bytes, memory));
}

static bool print_json(const struct sim_settings *s, struct sim_job *job, const struct sim_result *r,
                       const struct sim_formula *formulas, enum weft_plan_id chosen)
{
    const struct sim_formula *f = &formulas[r->plan];
    struct weft_sim_link_use use;
    json_t *links = json_array();
    for (uint32_t i = 0; link_use(job, s, r, i, &use); i++)
        json_array_append_new(links, json_pack("{ss sI sI sI sf}", "name", use.name, "links",
                                               (json_int_t)use.links, "bytes", (json_int_t)use.bytes,
                                               "busiest_bytes", (json_int_t)use.busiest_bytes,
                                               "bytes_per_second", use.bytes_per_second));
    json_t *root = json_pack(
        "{ss sI sI ss sb sI sf sI sf sf sI sb sI sI so}", "operation", weft_coll_kind_name(s->kind), "ranks",
        (json_int_t)s->ranks, "bytes", (json_int_t)r->vector_bytes, "plan", weft_plan_name(r->plan), "chosen",
        s->plan == WEFT_PLAN_AUTO, "virtual_ns", (json_int_t)r->virtual_ns, "formula_s", f->seconds, "events",
        (json_int_t)r->events, "run_s", r->run_s, "set_up_s", r->set_up_s, "memory_bytes",
        (json_int_t)r->memory_bytes, "data_checked", r->data_checked, "wrong", (json_int_t)r->wrong,
        "sent_bytes", (json_int_t)r->sent_bytes, "links", links);
    if (root && f->text) json_object_set_new(root, "formula", json_string(f->text));
    json_t *plans = json_object();
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++)
        if (formulas[plan].text)
            json_object_set_new(plans, weft_plan_name(plan), json_real(formulas[plan].seconds));
    if (root) json_object_set_new(root, "formulas_s", plans);
    if (root && r->measured_s > 0) json_object_set_new(root, "measured_s", json_real(r->measured_s));
    if (root) json_object_set_new(root, "auto", json_string(weft_plan_name(chosen)));
    if (root) json_object_set_new(root, "simulated_ranks", json_integer(r->simulated));
    bool fine = root && json_dumpf(root, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(root);
    return fine;
}

int weft_sim_main(int argc, char **argv)
{
    struct sim_settings settings = {.kind = WEFT_COLL_ALL_REDUCE,
                                    .ranks = 64,
                                    .inflight = 16,
                                    .bytes = 64u << 20,
                                    .chunk_bytes = WEFT_COLL_CHUNK_BYTES,
                                    .eager_bytes = 64u << 10,
                                    .seed = 1,
                                    .latency_ns = 5000,
                                    .bytes_per_second = 12.5e9};
    struct sim_result result;
    int status = parse(argc, argv, &settings);
    if (status >= 0) return status;
    struct sim_job *job = sim_job_open(&settings);
    if (!job) return 1;
    bool ran = sim_job_run(job, &result), written = true;
    if (ran && settings.compare_transport)
        ran = sim_measure_transport(&settings, result.plan, &result.measured_s);
    if (ran) {
        struct sim_formula formulas[WEFT_PLAN_COUNT];
        enum weft_plan_id chosen = sim_formulas_of(&settings, result.elems, sim_job_cost(job),
                                                   sim_job_hosts(job), sim_job_local_cost(job), formulas);
        if (settings.json) written = print_json(&settings, job, &result, formulas, chosen);
        else print_text(&settings, job, &result, formulas, chosen);
        written &= fflush(stdout) == 0;
        if (!written) fprintf(stderr, "weft sim: cannot write\n");
    }
    sim_job_close(job);
    return ran && written && result.wrong == 0 ? 0 : 1;
}
