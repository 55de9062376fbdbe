/* launcher.c - see launcher.h. */
#include "base/config/launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/net/net.h"

/* Errors in one launcher's variables: the first missing one, and the first invalid value. */
struct reading {
    struct weft_error missing, wrong;
    bool coordinator_known; /* do not read MASTER_ADDR and MASTER_PORT */
};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static const char *text(struct reading *reading, const char *name)
{
    const char *value = variable(name);
    if (!value)
        weft_error_set(&reading->missing, WEFT_ERR_NOT_FOUND, "%s is %s", name,
                       getenv(name) ? "empty" : "not set");
    return value;
}

/* Returns a number from min to max; 0: an error was recorded. */
static uint64_t number(struct reading *reading, const char *name, uint64_t min, uint64_t max)
{
    const char *value = text(reading, name);
    char *end = NULL;
    if (!value) return 0;
    errno = 0;
    unsigned long long result = *value >= '0' && *value <= '9' ? strtoull(value, &end, 10) : 0;
    if (end && !*end && !errno && result >= min && result <= max) return result;
    weft_error_set(&reading->wrong, WEFT_ERR_INVALID, "%s=%.40s is not a number from %llu to %llu", name,
                   value, (unsigned long long)min, (unsigned long long)max);
    return 0;
}

static void read_ranks(struct reading *reading, const char *rank_name, const char *ranks_name,
                       struct weft_launcher *out)
{
    out->ranks = (uint32_t)number(reading, ranks_name, 1, WEFT_LAUNCHER_RANKS_MAX);
    if (out->ranks > 0 && out->rank >= out->ranks)
        weft_error_set(&reading->wrong, WEFT_ERR_INVALID, "%s=%u is not a number from 0 to %u, and %s=%u",
                       rank_name, out->rank, out->ranks - 1, ranks_name, out->ranks);
}

static void place(struct reading *reading, const char *rank_name, const char *ranks_name,
                  struct weft_launcher *out)
{
    out->rank = (uint32_t)number(reading, rank_name, 0, WEFT_LAUNCHER_RANKS_MAX - 1);
    read_ranks(reading, rank_name, ranks_name, out);
}

/* A port derived from the job's name, below the range that kernels assign. */
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

#define PORT_STEP 1000u

uint16_t weft_launcher_port(uint16_t first, uint32_t k)
{
    const uint32_t port = first + PORT_STEP * (k % WEFT_LAUNCHER_PORTS);
    return (uint16_t)(port <= 65535 ? port : port - 10 * PORT_STEP);
}

/* Takes the coordinator from MASTER_ADDR and MASTER_PORT, which users of any launcher may set. here: all
 * processes of the job are on this host, so loopback replaces MASTER_ADDR, which may be an external name. */
static bool at_master(struct reading *reading, bool here, struct weft_launcher *out)
{
    if (reading->coordinator_known) return false;
    const char *host = text(reading, "MASTER_ADDR");
    uint64_t port = number(reading, "MASTER_PORT", 1, 65535);
    if (host && strlen(host) > 255)
        weft_error_set(&reading->wrong, WEFT_ERR_INVALID, "MASTER_ADDR=%.40s... is longer than 255 bytes",
                       host);
    if (!host || strlen(host) > 255 || port == 0) return false;
    if (here) host = weft_loopback_host();
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    port = weft_launcher_port((uint16_t)port, 1);
    snprintf(out->coordinator, sizeof out->coordinator, bare_v6 ? "[%.255s]:%u" : "%.255s:%u", host,
             (unsigned)port);
    return true;
}

/* If neither is set, the launcher's own variables may name the coordinator. */
static bool at_master_if_given(struct reading *reading, bool here, struct weft_launcher *out)
{
    return (variable("MASTER_ADDR") || variable("MASTER_PORT")) && at_master(reading, here, out);
}

static void at_loopback(struct weft_launcher *out)
{
    const char *host = weft_loopback_host();
    snprintf(out->coordinator, sizeof out->coordinator, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             port_of(out->job));
}

/* Writes the first host of a list: "node[01-04,7],other" gives node01. */
static bool first_host(const char *list, char *host, size_t host_bytes)
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
    if (prefix + digits + rest == 0 || prefix + digits + rest >= host_bytes) return false;
    snprintf(host, host_bytes, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, inside, (int)rest, after);
    return true;
}

/* Rank 0 is on the first host of a list of Slurm. Without the list the coordinator stays unknown. */
static void at_first_host(struct reading *reading, const char *list_name, struct weft_launcher *out)
{
    char host[256];
    const char *list = variable(list_name);
    if (!list) return;
    if (first_host(list, host, sizeof host))
        snprintf(out->coordinator, sizeof out->coordinator, "%s:%u", host, port_of(out->job));
    else
        weft_error_set(&reading->wrong, WEFT_ERR_INVALID, "%s=%.60s is not a list of hosts", list_name, list);
}

/* Do all processes of the job run on this host? */
static bool all_here(struct reading *reading, const char *local_ranks_name, const struct weft_launcher *out)
{
    return variable(local_ranks_name) &&
           number(reading, local_ranks_name, 1, out->ranks ? out->ranks : 1) == out->ranks;
}

static void read_torchrun(struct weft_launcher *out, struct reading *reading)
{
    place(reading, "RANK", "WORLD_SIZE", out);
    bool here = !reading->coordinator_known && all_here(reading, "LOCAL_WORLD_SIZE", out);
    if (at_master(reading, here, out)) name_job(out, "torchrun", variable("MASTER_PORT"));
}

static void read_open_mpi(struct weft_launcher *out, struct reading *reading)
{
    const char *id = variable("PMIX_NAMESPACE");
    place(reading, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out);
    if (!id) id = variable("OMPI_MCA_ess_base_jobid");
    name_job(out, "mpirun", id ? id : "");
    bool here = all_here(reading, "OMPI_COMM_WORLD_LOCAL_SIZE", out);
    if (at_master_if_given(reading, here, out) || !id) return;
    if (here) at_loopback(out);
    else at_first_host(reading, "SLURM_JOB_NODELIST", out);
}

/* MPICH sets no job name. Its processes on one host have one parent; on several hosts of Slurm they have one
 * allocation. */
static void read_mpich(struct weft_launcher *out, struct reading *reading)
{
    char parent[24];
    place(reading, "PMI_RANK", "PMI_SIZE", out);
    snprintf(parent, sizeof parent, "%ld", (long)getppid());
    bool here = all_here(reading, "MPI_LOCALNRANKS", out);
    const char *allocation = variable("SLURM_JOB_ID");
    name_job(out, "mpirun", here ? parent : allocation ? allocation : "");
    if (at_master_if_given(reading, here, out)) return;
    if (here) at_loopback(out);
    else if (allocation) at_first_host(reading, "SLURM_JOB_NODELIST", out);
}

/* A batch script has SLURM_PROCID=0 and no step. */
static bool in_slurm_step(void)
{
    const char *rank = variable("SLURM_PROCID");
    return variable("SLURM_STEP_ID") || variable("SLURM_STEP_NUM_TASKS") || (rank && strcmp(rank, "0") != 0);
}

static void read_srun(struct weft_launcher *out, struct reading *reading)
{
    char id[48];
    place(reading, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", out);
    uint64_t job = number(reading, "SLURM_JOB_ID", 0, UINT64_MAX),
             step = number(reading, "SLURM_STEP_ID", 0, UINT64_MAX);
    uint64_t nodes = variable("SLURM_STEP_NUM_NODES")
                         ? number(reading, "SLURM_STEP_NUM_NODES", 1, WEFT_LAUNCHER_RANKS_MAX)
                         : 0;
    snprintf(id, sizeof id, "%llu.%llu", (unsigned long long)job, (unsigned long long)step);
    name_job(out, "srun", id);
    if (at_master_if_given(reading, nodes == 1, out)) return;
    if (nodes == 1) at_loopback(out);
    else at_first_host(reading, "SLURM_STEP_NODELIST", out);
}

static void read_pmix(struct weft_launcher *out, struct reading *reading)
{
    out->rank = (uint32_t)number(reading, "PMIX_RANK", 0, WEFT_LAUNCHER_RANKS_MAX - 1);
    const char *id = text(reading, "PMIX_NAMESPACE");
    name_job(out, "pmix", id ? id : "");
    if (variable("WEFT_RANKS")) read_ranks(reading, "PMIX_RANK", "WEFT_RANKS", out);
    at_master_if_given(reading, false, out);
}

/* A number without sign at the end of the host name, behind a dash. The suffix of a pod of a Deployment has
 * five characters: five digits are no ordinal. */
static const char *ordinal_of_host(void)
{
    const char *host = variable("KUBERNETES_SERVICE_HOST") ? variable("HOSTNAME") : NULL;
    const char *dash = host ? strrchr(host, '-') : NULL;
    const size_t digits = dash ? strspn(dash + 1, "0123456789") : 0;
    return digits > 0 && digits < 5 && dash > host && !dash[1 + digits] ? dash + 1 : NULL;
}

bool weft_launcher_ordinal(uint32_t *ordinal_out, const char **source_out)
{
    struct reading reading = {.coordinator_known = true};
    const bool is_job = variable("JOB_COMPLETION_INDEX") != NULL;
    const char *ordinal = is_job ? NULL : ordinal_of_host();
    if (!is_job && !ordinal) return false;
    *ordinal_out = is_job ? (uint32_t)number(&reading, "JOB_COMPLETION_INDEX", 0, WEFT_LAUNCHER_RANKS_MAX - 1)
                          : (uint32_t)strtoul(ordinal, NULL, 10);
    if (source_out) *source_out = is_job ? "JOB_COMPLETION_INDEX" : "HOSTNAME";
    return reading.wrong.status == WEFT_OK && *ordinal_out < WEFT_LAUNCHER_RANKS_MAX;
}

static bool is_dns_name(const char *name)
{
    return name[0] &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == strlen(name);
}

enum weft_status weft_launcher_pod_zero(char host_out[WEFT_LAUNCHER_HOST_BYTES], struct weft_error *error)
{
    const char *service = variable("WEFT_HEADLESS_SERVICE"), *host = variable("HOSTNAME");
    const char *dash = host ? strrchr(host, '-') : NULL;
    if (!service || !dash || dash == host) return WEFT_ERR_NOT_FOUND;
    if (!is_dns_name(service) || !is_dns_name(host))
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID, "%s=%.80s is not a host name of DNS",
                                                is_dns_name(service) ? "HOSTNAME" : "WEFT_HEADLESS_SERVICE",
                                                is_dns_name(service) ? host : service);
    const int bytes =
        snprintf(host_out, WEFT_LAUNCHER_HOST_BYTES, "%.*s-0.%s", (int)(dash - host), host, service);
    if (bytes < WEFT_LAUNCHER_HOST_BYTES) return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_INVALID, "HOSTNAME and WEFT_HEADLESS_SERVICE give a name of %d bytes, above %d",
        bytes, WEFT_LAUNCHER_HOST_BYTES - 1);
}

static void at_pod_zero(struct weft_launcher *out, struct reading *reading)
{
    char host[WEFT_LAUNCHER_HOST_BYTES];
    if (reading->coordinator_known || weft_launcher_pod_zero(host, &reading->wrong) != WEFT_OK) return;
    snprintf(out->coordinator, sizeof out->coordinator, "%s:%u", host, (unsigned)port_of(out->job));
}

static void read_kubernetes(struct weft_launcher *out, struct reading *reading)
{
    const char *source = "JOB_COMPLETION_INDEX", *host = variable("HOSTNAME");
    char base[80] = "";
    if (!weft_launcher_ordinal(&out->rank, &source))
        out->rank = (uint32_t)number(reading, source, 0, WEFT_LAUNCHER_RANKS_MAX - 1);
    if (variable("WEFT_RANKS"))
        out->ranks = (uint32_t)number(reading, "WEFT_RANKS", 1, WEFT_LAUNCHER_RANKS_MAX);
    if (out->ranks > 0 && out->rank >= out->ranks)
        weft_error_set(&reading->wrong, WEFT_ERR_INVALID, "%s=%.60s gives rank %u, and WEFT_RANKS=%u", source,
                       variable(source), out->rank, out->ranks);
    /* all pods of a Job or StatefulSet have the same name before the ordinal */
    const char *dash = host ? strrchr(host, '-') : NULL;
    if (dash) snprintf(base, sizeof base, "%.*s", (int)(dash - host), host);
    name_job(out, "kubernetes", base);
    if (!at_master_if_given(reading, false, out)) at_pod_zero(out, reading);
}

static const struct kind {
    const char *name, *needs;
    const char *marks[5]; /* one of them is set: the launcher started this process */
    void (*read)(struct weft_launcher *out, struct reading *reading);
} kinds[] = {
    {"torchrun",
     "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
     {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
     read_torchrun},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     read_open_mpi},
    {"mpirun", "PMI_RANK and PMI_SIZE", {"PMI_RANK", "PMI_SIZE"}, read_mpich},
    {"srun",
     "SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_ID and SLURM_STEP_ID",
     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"},
     read_srun},
    {"PMIx", "PMIX_RANK and PMIX_NAMESPACE", {"PMIX_RANK", "PMIX_NAMESPACE"}, read_pmix},
    {"Kubernetes",
     "JOB_COMPLETION_INDEX, or HOSTNAME with an ordinal",
     {"JOB_COMPLETION_INDEX", "HOSTNAME"},
     read_kubernetes},
    /* programs under any launcher set these, too: only a process without another mark has lost its rank */
    {"torchrun",
     "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
     {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     read_torchrun},
};

/* A process with a coordinator may set these variables for another purpose. */
static bool is_extra(const char *mark)
{
    return strncmp(mark, "MASTER_", 7) == 0 || strncmp(mark, "LOCAL_", 6) == 0;
}

/* The set variable that identifies the launcher; NULL: none. */
static const char *mark_of(const struct kind *kind, bool coordinator_known)
{
    if (kind->read == read_srun && !in_slurm_step()) return NULL;
    if (kind->read == read_kubernetes) {
        const bool is_asked = coordinator_known || variable("WEFT_RANKS");
        return !is_asked                          ? NULL
               : variable("JOB_COMPLETION_INDEX") ? "JOB_COMPLETION_INDEX"
               : ordinal_of_host()                ? "HOSTNAME"
                                                  : NULL;
    }
    for (const char *const *mark = kind->marks; *mark; mark++)
        if (variable(*mark) && !(coordinator_known && is_extra(*mark))) return *mark;
    return NULL;
}

enum weft_status weft_launcher_find(bool coordinator_known, struct weft_launcher *out,
                                    struct weft_error *error)
{
    struct weft_error half = {0};
    struct weft_launcher incomplete = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *mark = mark_of(&kinds[i], coordinator_known);
        struct weft_launcher found = {.name = kinds[i].name, .needs = kinds[i].needs};
        struct reading reading = {.coordinator_known = coordinator_known};
        if (!mark) continue;
        kinds[i].read(&found, &reading);
        if (reading.wrong.status < 0)
            return weft_error_set(error, WEFT_ERR_INVALID,
                                  "the variables of %s cannot be used: %s; correct them, or unset them",
                                  found.name, reading.wrong.text);
        bool whole = reading.missing.status == WEFT_OK;
        if (whole && (coordinator_known || (found.ranks > 0 && found.coordinator[0])))
            return *out = found, WEFT_OK;
        if (half.status < 0 || incomplete.name) continue; /* the first one is reported */
        if (whole) incomplete = found;
        else
            weft_error_set(&half, WEFT_ERR_INVALID,
                           "the variables of %s are incomplete: %s=%.40s is set and %s; set %s in every "
                           "process, or unset %s",
                           found.name, mark, variable(mark), reading.missing.text, found.needs, mark);
    }
    if (half.status < 0) return weft_error_set(error, WEFT_ERR_INVALID, "%s", half.text);
    if (!incomplete.name) return WEFT_ERR_NOT_FOUND;
    *out = incomplete;
    return WEFT_OK;
}
