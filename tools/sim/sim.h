/* sim.h - inside `weft sim`: collectives of a simulated cluster.
 *
 *   sim.c          command line and output
 *   sim_job.c      ranks, each with loop, endpoint and group, in one simulation; one operation of all of them
 *   sim_links.c    measured figures of the links: the worst, and the ring order and shares that follow
 *   sim_formula.c  cost of a plan by its closed formula
 *   sim_compare.c  the same operation by `weft bench` on this host, and links from a table
 *
 * Equal ranks are simulated once. On the ideal network all hosts are equal. In a ring with equal slices, rank
 * r + 1 does at each moment the same as rank r with other slices of equal length. A smaller ring of
 * neighbours, each with the steps of the large ring, therefore takes the same time
 * (tests/tools/sim/test_sim.py). */
#ifndef WEFT_TOOLS_SIM_SIM_H
#define WEFT_TOOLS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/collective.h"

#define SIM_RANKS_MAX 65536u

struct sim_settings {
    enum weft_coll_kind kind;
    enum weft_plan_id plan;
    uint32_t ranks, root, inflight;
    uint64_t bytes; /* of the whole vector; gather and scatter kinds: of all pieces together */
    uint64_t chunk_bytes, eager_bytes, seed;
    const char *compare_transport; /* the transport to measure on this host; NULL: none */
    /* NULL: the ideal network of latency_ns and bytes_per_second, one rank a host */
    const char *topology_path;
    uint64_t latency_ns;
    double bytes_per_second;
    bool timing_only, json;
    bool round_robin; /* ranks are assigned to hosts in turn, not in blocks */
    /* the order of the hosts is random, from the seed; otherwise that of the file */
    bool shuffle;
    /* ring order and shares do not follow the figures of single links */
    bool ignores_measured_links;
    bool every_rank; /* no rank stands for others */
};

struct sim_result {
    enum weft_plan_id plan;       /* the plan that ran */
    uint64_t elems, vector_bytes; /* vector_bytes: of f32, rounded down to whole pieces */
    uint64_t virtual_ns, events;
    uint32_t simulated;     /* ranks that ran; each stands for ranks / simulated */
    double measured_s;      /* on this host; 0: not measured */
    double set_up_s, run_s; /* processor time */
    uint64_t memory_bytes;  /* peak memory of this process */
    bool data_checked;
    uint64_t wrong;      /* elements of all ranks with a wrong value */
    uint64_t sent_bytes; /* of all ranks, headers included */
};

struct sim_job;
/* NULL: a sentence is on stderr. */
struct sim_job *sim_job_open(const struct sim_settings *settings);
/* Runs one operation of all ranks. False: a sentence is on stderr. */
bool sim_job_run(struct sim_job *job, struct sim_result *result_out);
struct weft_sim *sim_job_sim(struct sim_job *job);
const struct weft_sim *sim_job_network(const struct sim_job *job);
const struct sim_settings *sim_job_settings(const struct sim_job *job);
const struct weft_topology *sim_job_topology(const struct sim_job *job); /* NULL: the ideal network */
uint32_t sim_job_host(const struct sim_job *job, uint32_t rank);
const struct weft_link_cost *sim_job_cost(const struct sim_job *job);
/* inside a host; unknown if each host has one rank */
const struct weft_link_cost *sim_job_local_cost(const struct sim_job *job);
const struct weft_plan_hosts *sim_job_hosts(const struct sim_job *job); /* the ranks of each host */
void sim_job_close(struct sim_job *job);                                /* NULL is allowed */

/* ---- single links (sim_links.c) ---- */
/* Writes the worst figures between two hosts of the job into *worst, and ring order and shares into *hosts,
 * which use `memory`. False: no memory. */
bool sim_links_measure(const struct sim_job *job, struct weft_link_cost *worst, uint32_t *memory,
                       struct weft_plan_hosts *hosts);

/* ---- comparison with a measurement (sim_compare.c) ---- */
/* Reads latency and rate from a link table. False: a sentence is on stderr. */
bool sim_links_load(struct sim_settings *settings, const char *path);
/* Measures the same operation with `weft bench` in processes of this host. Blocks for seconds. False: a
 * sentence is on stderr. */
bool sim_measure_transport(const struct sim_settings *settings, enum weft_plan_id plan, double *seconds_out);

/* ---- formulas ---- */
/* The cost that the library assumes: latency and rate of one link, and no processor time. */
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
/* Evaluates the formula of every plan; returns the plan that `auto` selects. */
enum weft_plan_id sim_formulas_of(const struct sim_settings *settings, uint64_t elems,
                                  const struct weft_link_cost *cost, const struct weft_plan_hosts *hosts,
                                  const struct weft_link_cost *local,
                                  struct sim_formula formulas_out[WEFT_PLAN_COUNT]);

#endif
