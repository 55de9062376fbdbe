/* sim.c - `weft sim`: runs a collective of thousands of ranks on the simulator and prints its virtual
 * time. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/sim/sim.h"
#include "tools/size.h"

#define DATA_BYTES_MAX (64u << 10)

/* ---- options ---- */

static int set_plan(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    enum weft_plan_id *plan = option->value;
    *plan = weft_plan_parse(text);
    if (*plan != WEFT_PLAN_AUTO || strcmp(text, "auto") == 0) return -1;
    return tool_usage_error(command->name, "there is no plan '%s'", text);
}

static int set_kind(const char *text, enum weft_coll_kind *out)
{
    *out = weft_coll_kind_parse(text, strlen(text));
    if (*out >= WEFT_COLL_ALL_REDUCE && *out <= WEFT_COLL_BARRIER) return -1;
    static const char *const kinds[] = {"all_reduce", "reduce_scatter", "all_gather",
                                        "broadcast",  "barrier",        NULL};
    return cli_unknown_error("weft sim", "operation", text, kinds);
}

static int set_data(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    *(int *)option->value = strcmp(option->name, "data") == 0;
    return -1;
}

/* -1: continue; otherwise the exit status. */
static int parse(int argc, char **argv, struct sim_settings *s)
{
    static const char usage[] = "weft sim [OPERATION] [options]";
    double latency_us = (double)s->latency_ns / 1e3, rate_gbit = s->bytes_per_second * 8 / 1e9;
    int data = -1; /* 0: never, 1: always, -1: by size */
    const char *links = NULL;
    const struct cli_option table[] = {
        {"ranks", 'n', "N", "ranks", CLI_U32(&s->ranks, 1, SIM_RANKS_MAX)},
        {"bytes", 'b', "SIZE", "bytes of the vector, all pieces together",
         CLI_SIZE(&s->bytes, 0, TOOL_SIZE_MAX)},
        {"plan", 'p', "NAME", "plan: auto, ring, direct, ...", "auto", CLI_CALL(set_plan, &s->plan)},
        {"topology", 't', "FILE",
         "hosts, switches and cables (docs/simulator.md); neighbouring ranks share a host",
         "an ideal network, one rank a host", CLI_TEXT(&s->topology_path)},
        {"latency", 0, "US", "latency of the ideal network, one way between two hosts, microseconds",
         CLI_REAL(&latency_us, 0, 1e9)},
        {"rate", 0, "GBIT", "rate of the ideal network, per host and direction, Gbit/s",
         CLI_REAL(&rate_gbit, 0, 1e9)},
        {"links", 0, "FILE", "link table with latency and rate, as `weft bench calibrate` writes it", "",
         CLI_TEXT(&links)},
        {"compare", 0, "TRANSPORT", "measure the same on this host over this transport, and print the error",
         "", CLI_TEXT(&s->compare_transport)},
        {"beside", 0, "TRANSPORT", CLI_TEXT(&s->compare_transport), .new_name = "compare"},
        {"chunk", 0, "SIZE", "longest payload of a message", "that of the library",
         CLI_SIZE(&s->chunk_bytes, 64, TOOL_SIZE_MAX)},
        {"inflight", 0, "N", "steps of one operation in flight", CLI_U32(&s->inflight, 2, 4096)},
        {"eager", 0, "SIZE", "longest payload that is sent without a rendezvous",
         CLI_SIZE(&s->eager_bytes, 1, TOOL_SIZE_MAX)},
        {"root", 0, "N", "root of a broadcast", CLI_U32(&s->root, 0, SIM_RANKS_MAX - 1)},
        {"seed", 0, "N", "seed of the simulation", CLI_U64(&s->seed, 0, UINT64_MAX)},
        {"data", 0, NULL, "move and check data for every size; without it only up to 64K",
         CLI_CALL(set_data, &data)},
        {"timing-only", 0, NULL, "never move data", CLI_CALL(set_data, &data)},
        {"in-turn", 0, NULL, "with --topology: ranks are assigned to its hosts round-robin",
         CLI_FLAG(&s->round_robin)},
        {"shuffle", 0, NULL, "with --topology: its hosts in a random order made from the seed",
         CLI_FLAG(&s->shuffle)},
        {"unmeasured", 0, NULL, "ring order and slices that do not follow the measured links",
         CLI_FLAG(&s->ignores_measured_links)},
        {"every-rank", 0, NULL, "simulate every rank; without it a few stand for equal ranks of a ring",
         CLI_FLAG(&s->every_rank)},
        {"json", 0, NULL, "one JSON object", CLI_FLAG(&s->json)},
    };
    const struct cli_command command = {
        "weft sim",
        usage,
        "Runs one collective of many ranks over a simulated network, with the plans and the interpreter of\n"
        "the library. Prints its virtual time, what the links carried, and the time by the closed formula.\n"
        "OPERATION: all_reduce (default), reduce_scatter, all_gather, broadcast, barrier.\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes = "Memory grows with the square of the ranks: about 200 bytes a pair (4,096 ranks: 4 GB).\n"
                 "Exit status: 0 it ended and data, if checked, is right; 1 otherwise; 2 wrong usage.\n"};
    int first, status = cli_parse(&command, argc, argv, &first);
    if (status < 0 && first < argc) status = set_kind(argv[first++], &s->kind);
    if (status >= 0) return status;
    s->latency_ns = (uint64_t)(latency_us * 1e3);
    s->bytes_per_second = rate_gbit * 1e9 / 8;
    if (first < argc)
        return tool_usage_error("weft sim", "unexpected argument '%s' after the operation", argv[first]);
    if (s->root >= s->ranks) return tool_usage_error("weft sim", "root %u of %u ranks", s->root, s->ranks);
    if (s->compare_transport && (s->topology_path || s->ranks < 2 || s->ranks > 64))
        return tool_usage_error("weft sim",
                                "--compare measures 2 to 64 ranks of this host: without --topology");
    if (links && !sim_links_load(s, links)) return 1;
    s->timing_only = data < 0 ? s->bytes > DATA_BYTES_MAX : data == 0;
    return -1;
}

/* ---- output ---- */

static const char *human_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    unsigned unit = 0;
    while (bytes >= 10000 && unit < 5) bytes /= 1000, unit++;
    snprintf(out, 32, bytes < 100 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

/* A simulated rank that stands for others stands for their links, too. */
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

/* Prints the formula of every plan; marks the plan that ran and the plan that `auto` selects. */
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
        if (plan == (int)chosen) printf(", selected by auto");
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
