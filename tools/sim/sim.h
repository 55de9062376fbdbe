/* sim.h - inside `weft sim`: collectives of a cluster that is not there.
 *
 *   sim.c          the command line and what is printed
 *   sim_job.c      ranks, each with its loop, endpoint and group, in one simulation; one operation of all of them
 *   sim_links.c    what links are measured to be: the worst, and what order and shares follow
 *   sim_formula.c  what a plan costs on paper
 *   sim_compare.c   what it costs here: links from a table, and `weft bench` of the same
 *
 * Ranks that are alike are run once. On the ideal network every host is the same, and in a ring with equal
 * slices rank r + 1 does at each moment what rank r does, with other slices of equal length: so some
 * neighbours in a smaller ring, each with the steps of a rank of the large one, take exactly as long as
 * all of them (tests/tools/sim/test_sim.py compares). */
#ifndef WEFT_TOOLS_SIM_H
#define WEFT_TOOLS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/collective.h"

#define SIM_RANKS_MAX 65536u

struct sim_settings {
    enum weft_coll_kind kind;
    enum weft_plan_id plan;
    uint32_t ranks, root, inflight;
    uint64_t bytes;            /* of the whole vector; gather and scatter kinds: of all pieces together */
    uint64_t chunk_bytes, eager_bytes, seed;
    const char *compare_transport;        /* NULL, or the transport by which the same is measured on this
                                           * host */
    const char *topology_path; /* NULL: an ideal network of the two numbers below, a host for each rank */
    uint64_t latency_ns;
    double bytes_per_second;
    bool timing_only, json;
    bool round_robin;              /* ranks are dealt out to hosts, not side by side */
    bool shuffle;              /* hosts come in an order made by the seed, not in that of the file */
    bool ignores_measured_links;           /* nobody measured single links: neither order nor shares follow
                                            * them */
    bool every_rank;           /* never let some ranks stand for others that are like them */
};

struct sim_result {
    enum weft_plan_id plan;    /* that ran */
    uint64_t elems, vector_bytes; /* f32, rounded down to whole pieces */
    uint64_t virtual_ns, events;
    uint32_t simulated;        /* ranks that ran; each stands for ranks / simulated */
    double measured_s;         /* on this host; 0: not asked */
    double set_up_s, run_s;    /* of processor time */
    uint64_t memory_bytes;     /* most this process held */
    bool data_checked;
    uint64_t wrong;            /* elements of all ranks that are not what they should be */
    uint64_t sent_bytes;       /* of all ranks, headers included */
};

struct sim_job;
/* A sentence is on stderr when it answers NULL. */
struct sim_job *sim_job_open(const struct sim_settings *settings);
/* One operation of all ranks; false: a sentence is on stderr. */
bool sim_job_run(struct sim_job *job, struct sim_result *result_out);
struct weft_sim *sim_job_sim(struct sim_job *job);
const struct weft_sim *sim_job_network(const struct sim_job *job);
const struct sim_settings *sim_job_settings(const struct sim_job *job);
const struct weft_topology *sim_job_topology(const struct sim_job *job); /* NULL: ideal */
uint32_t sim_job_host(const struct sim_job *job, uint32_t rank);
const struct weft_link_cost *sim_job_cost(const struct sim_job *job);
/* inside a host; unknown where each has one rank */
const struct weft_link_cost *sim_job_local_cost(const struct sim_job *job);
const struct weft_plan_hosts *sim_job_hosts(const struct sim_job *job); /* which ranks share one */
void sim_job_close(struct sim_job *job); /* NULL is fine */

/* ---- single links (sim_links.c) ---- */
/* The worst way between two hosts of the job into *worst, and what its links give into *hosts (of memory).
 * False: no memory. */
bool sim_links_measure(const struct sim_job *job, struct weft_link_cost *worst, uint32_t *memory,
                       struct weft_plan_hosts *hosts);

/* ---- beside a measurement ---- */
/* Latency and rate from a link table; false: told on stderr. */
bool sim_links_load(struct sim_settings *settings, const char *path);
/* The same operation by `weft bench` in processes of this host; false: told. Blocks for seconds. */
bool sim_measure_transport(const struct sim_settings *settings, enum weft_plan_id plan, double *seconds_out);

/* ---- formulas ---- */
/* What the library is told of the network: one way's latency and rate, and processors that take no time. */
struct weft_link_cost sim_link_cost(const struct sim_settings *settings, uint64_t latency_ns,
                                    double bytes_per_second);
struct weft_plan_question sim_question_of(const struct sim_settings *settings, uint64_t elems,
                                          const struct weft_link_cost *cost,
                                          const struct weft_plan_hosts *hosts,
                                          const struct weft_link_cost *local);
struct sim_formula {
    const char *text; /* "2(p-1)a + 2n(p-1)/p b"; NULL: the operation has no such plan */
    double seconds;
};
/* Of every plan; the answer is the one that `auto` takes. */
enum weft_plan_id sim_formulas_of(const struct sim_settings *settings, uint64_t elems,
                                  const struct weft_link_cost *cost, const struct weft_plan_hosts *hosts,
                                  const struct weft_link_cost *local,
                                  struct sim_formula formulas_out[WEFT_PLAN_COUNT]);

#endif
