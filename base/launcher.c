/* launcher.c - see launcher.h. */
#include "base/launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MAX (1u << 20)

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* A whole number up to `max`; false: it is not there, or is none. */
static bool number(const char *name, uint64_t max, uint64_t *out)
{
    const char *text = variable(name);
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || value > max) return false;
    *out = value;
    return true;
}

static bool place(const char *rank_name, const char *ranks_name, struct weft_launcher *out)
{
    uint64_t rank, ranks;
    if (!number(rank_name, RANKS_MAX - 1, &rank) || !number(ranks_name, RANKS_MAX, &ranks) || rank >= ranks) return false;
    out->rank = (uint32_t)rank;
    out->ranks = (uint32_t)ranks;
    return true;
}

/* A port that other jobs are unlikely to have: below those that kernels give out, from the job's name. */
static uint16_t port_of(const char *job)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *job; job++) hash = (hash ^ (uint8_t)*job) * 16777619u;
    return (uint16_t)(20000 + hash % 12000);
}

static void name_job(struct weft_launcher *out, const char *kind, const char *id)
{
    int at = snprintf(out->job, sizeof out->job, "%s-%.60s", kind, id);
    for (int i = 0; i < at && out->job[i]; i++) {
        if (out->job[i] == '/' || out->job[i] <= ' ' || out->job[i] > '~') out->job[i] = '_';
    }
}

/* MASTER_ADDR and MASTER_PORT, whoever has set them. */
static bool at_master(struct weft_launcher *out)
{
    const char *host = variable("MASTER_ADDR");
    uint64_t port;
    if (!host || strlen(host) > 255 || !number("MASTER_PORT", 65535, &port) || port == 0) return false;
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    port = port == 65535 ? port - 1 : port + 1;
    snprintf(out->coordinator, sizeof out->coordinator, bare_v6 ? "[%.255s]:%u" : "%.255s:%u", host, (unsigned)port);
    return true;
}

static void at_loopback(struct weft_launcher *out)
{
    snprintf(out->coordinator, sizeof out->coordinator, "127.0.0.1:%u", port_of(out->job));
}

/* Are as many of the processes here as there are? */
static bool all_here(const char *local_ranks_name, const struct weft_launcher *out)
{
    uint64_t here;
    return number(local_ranks_name, RANKS_MAX, &here) && here == out->ranks;
}

static bool find_torchrun(struct weft_launcher *out)
{
    if (!place("RANK", "WORLD_SIZE", out) || !at_master(out)) return false;
    out->name = "torchrun";
    name_job(out, "torchrun", variable("MASTER_PORT"));
    return true;
}

static bool find_open_mpi(struct weft_launcher *out)
{
    const char *id = variable("PMIX_NAMESPACE");
    if (!place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out)) return false;
    if (!id) id = variable("OMPI_MCA_ess_base_jobid");
    out->name = "mpirun";
    name_job(out, "mpirun", id ? id : "");
    if (!at_master(out) && id && all_here("OMPI_COMM_WORLD_LOCAL_SIZE", out)) at_loopback(out);
    return true;
}

/* MPICH's launcher gives its processes no name of their job; those of one host have one parent. */
static bool find_mpich(struct weft_launcher *out)
{
    char parent[24];
    if (!place("PMI_RANK", "PMI_SIZE", out)) return false;
    out->name = "mpirun";
    snprintf(parent, sizeof parent, "%ld", (long)getppid());
    bool here = all_here("MPI_LOCALNRANKS", out);
    name_job(out, "mpirun", here ? parent : "");
    if (!at_master(out) && here) at_loopback(out);
    return true;
}

/* The first of "node[01-04,7],other": node01. */
static bool first_host(const char *list, char *host, size_t room)
{
    size_t prefix = strcspn(list, "[,"), digits = 0, rest = 0;
    const char *inside = "", *after = "";
    if (list[prefix] == '[') {
        inside = list + prefix + 1;
        digits = strcspn(inside, "-,]");
        after = strchr(inside, ']');
        if (!after) return false;
        rest = strcspn(++after, "[,");
    }
    if (prefix + digits + rest == 0 || prefix + digits + rest >= room) return false;
    snprintf(host, room, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, inside, (int)rest, after);
    return true;
}

static bool find_srun(struct weft_launcher *out)
{
    uint64_t job, step, nodes = 0;
    char id[48], host[256];
    const char *list = variable("SLURM_STEP_NODELIST");
    if (!place("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", out)) return false;
    if (!number("SLURM_JOB_ID", UINT64_MAX, &job) || !number("SLURM_STEP_ID", UINT64_MAX, &step)) return false;
    out->name = "srun";
    snprintf(id, sizeof id, "%llu.%llu", (unsigned long long)job, (unsigned long long)step);
    name_job(out, "srun", id);
    if (at_master(out)) return true;
    if (number("SLURM_STEP_NUM_NODES", RANKS_MAX, &nodes) && nodes == 1) at_loopback(out);
    else if (list && first_host(list, host, sizeof host)) snprintf(out->coordinator, sizeof out->coordinator, "%s:%u", host, port_of(out->job));
    return true;
}

static bool find_pmix(struct weft_launcher *out)
{
    uint64_t rank;
    const char *id = variable("PMIX_NAMESPACE");
    if (!id || !number("PMIX_RANK", RANKS_MAX - 1, &rank)) return false;
    out->name = "PMIx";
    out->rank = (uint32_t)rank;
    name_job(out, "pmix", id);
    at_master(out);
    return true;
}

bool weft_launcher_find(struct weft_launcher *out)
{
    bool (*const finders[])(struct weft_launcher *) = {find_torchrun, find_open_mpi, find_mpich, find_srun, find_pmix};
    for (size_t i = 0; i < sizeof finders / sizeof finders[0]; i++) {
        struct weft_launcher found = {0};
        if (!finders[i](&found)) continue;
        *out = found;
        return true;
    }
    return false;
}
