/* sim_job.c - thousands of ranks in one thread: the plans and the interpreter of the library over endpoints
 * of the simulator. Each rank has a loop, an endpoint connected to all others, and one group.
 *
 * If ranks are equal (sim.h), only `count` of them exist: the group of each has all `settings.ranks` members,
 * and the endpoint of rank i is that of rank i modulo count.
 *
 * With timing_only no buffer is read or written: memory holds only the state of the ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/sim/sim.h"

#define GROUP_ID 1u
#define ALIKE_MIN 8u                /* smallest ring whose steps in flight do not overlap around the ring */
#define LIMIT_NS WEFT_SECONDS(3600) /* limit of virtual time for the operation */

struct rank {
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_group *group;
    struct sim_job *job;
    float *in, *out;
    enum weft_status status;
    bool ended;
};

struct sim_job {
    struct sim_settings settings;
    struct weft_env env; /* the system environment without a log */
    struct weft_topology *topology;
    struct weft_sim *sim;
    struct rank *ranks;
    uint32_t count, pending;           /* ranks that run; pending: those that have not completed */
    struct weft_link_cost cost, local; /* between hosts; local: inside a host with several ranks */
    struct weft_plan_hosts hosts;
    uint32_t *hosts_memory, *dealt; /* dealt: (hosts of the topology,) order in which hosts get ranks */
    bool done;
    char why[480];                       /* the reason of the first rank that failed */
    uint64_t elems, in_elems, out_elems; /* of the call; in_elems, out_elems: of the buffers of each rank */
    double set_up_s;
};

static double cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static uint64_t memory_peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

uint32_t sim_job_host(const struct sim_job *job, uint32_t rank)
{
    if (!job->topology) return rank;
    uint32_t hosts = weft_topology_hosts(job->topology);
    if (job->settings.round_robin) return job->dealt[rank % hosts];
    return job->dealt[(uint64_t)rank * hosts / job->settings.ranks]; /* neighbouring ranks share hosts */
}
const struct weft_link_cost *sim_job_cost(const struct sim_job *job)
{
    return &job->cost;
}
const struct weft_link_cost *sim_job_local_cost(const struct sim_job *job)
{
    return &job->local;
}
const struct weft_plan_hosts *sim_job_hosts(const struct sim_job *job)
{
    return &job->hosts;
}

struct weft_sim *sim_job_sim(struct sim_job *job)
{
    return job->sim;
}
const struct weft_sim *sim_job_network(const struct sim_job *job)
{
    return job->sim;
}
const struct sim_settings *sim_job_settings(const struct sim_job *job)
{
    return &job->settings;
}
const struct weft_topology *sim_job_topology(const struct sim_job *job)
{
    return job->topology;
}

static bool print_failure(const char *what, enum weft_status status)
{
    fprintf(stderr, "weft sim: %s: %s\n", what, weft_reason_text(status));
    return false;
}

/* ---- set-up ---- */

static bool open_network(struct sim_job *job)
{
    struct weft_sim_options options;
    struct weft_error error = {0};
    if (job->settings.topology_path &&
        weft_topology_load(&job->env, job->settings.topology_path, &job->topology, &error) < 0) {
        fprintf(stderr, "weft sim: %s\n", error.text);
        return false;
    }
    weft_sim_options_init(&options);
    options.topology = job->topology;
    options.host_count = job->count;
    options.seed = job->settings.seed;
    options.timing_only = job->settings.timing_only;
    options.latency_ns = job->settings.latency_ns;
    options.jitter_ns = 0;
    options.bytes_per_second = (uint64_t)job->settings.bytes_per_second;
    enum weft_status status = weft_sim_create(&job->env, &options, &job->sim);
    return status == WEFT_OK || print_failure("the simulation cannot be made", status);
}

/* Hosts in the order of the file, or in a random order as a scheduler may choose. */
static bool assign_hosts(struct sim_job *job)
{
    uint32_t hosts = job->topology ? weft_topology_hosts(job->topology) : 0;
    uint64_t random = job->settings.seed;
    job->dealt = calloc(hosts + 1, sizeof *job->dealt);
    for (uint32_t i = 0; job->dealt && i < hosts; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t other = job->settings.shuffle ? (uint32_t)((random >> 33) % (i + 1)) : i;
        job->dealt[i] = job->dealt[other];
        job->dealt[other] = i;
    }
    return job->dealt || print_failure("no memory for the hosts", WEFT_ERR_NO_MEMORY);
}

static bool find_hosts(struct sim_job *job)
{
    uint32_t ranks = job->settings.ranks, *host_of = calloc(ranks, sizeof *host_of);
    job->hosts_memory = calloc(weft_plan_hosts_words(ranks), sizeof *job->hosts_memory);
    for (uint32_t r = 0; host_of && r < ranks; r++) host_of[r] = sim_job_host(job, r);
    if (host_of && job->hosts_memory) weft_plan_hosts_init(host_of, ranks, job->hosts_memory, &job->hosts);
    free(host_of);
    return (host_of && job->hosts_memory) || print_failure("no memory for the ranks", WEFT_ERR_NO_MEMORY);
}

static enum weft_status open_rank(struct sim_job *job, uint32_t index)
{
    struct rank *rank = &job->ranks[index];
    uint32_t host = sim_job_host(job, index);
    struct weft_env *env = weft_sim_env(job->sim, host);
    struct weft_loop_options loop_options;
    struct weft_transport_options options;
    weft_loop_options_init(&loop_options);
    loop_options.virtual_time = true;
    rank->job = job;
    WEFT_TRY(weft_loop_create(env, &loop_options, &rank->loop));
    WEFT_TRY(weft_sim_add(job->sim, host, rank->loop));
    weft_transport_options_init(&options);
    options.backend = "sim";
    options.id = index;
    options.eager_bytes_max = job->settings.eager_bytes;
    options.sim = job->sim;
    options.sim_host = host;
    char rail[24]; /* the ranks of a host use its ports in turn, as the lanes of the hierarchy do */
    snprintf(rail, sizeof rail, "rail=%u", job->hosts.place[index]);
    options.tune = rail;
    WEFT_TRY(weft_transport_open(env, &options, &rank->transport, NULL));
    return weft_transport_attach(rank->transport, rank->loop);
}

static enum weft_status connect_rank(struct sim_job *job, uint32_t index)
{
    const void *blob;
    size_t bytes;
    WEFT_TRY(weft_transport_address(job->ranks[index].transport, &blob, &bytes));
    for (uint32_t other = 0; other < job->count; other++) {
        struct weft_peer *peer;
        if (other != index)
            WEFT_TRY(weft_transport_connect(job->ranks[other].transport, index, blob, bytes, &peer));
    }
    return WEFT_OK;
}

static enum weft_status make_group(struct sim_job *job, uint32_t index, const uint32_t *ids,
                                   struct weft_error *error)
{
    struct rank *rank = &job->ranks[index];
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.transport = rank->transport;
    options.loop = rank->loop;
    options.rank = index;
    options.ranks = job->settings.ranks;
    options.endpoint_ids = ids;
    options.hosts = &job->hosts;
    options.group_id = GROUP_ID;
    options.chunk_bytes = job->settings.chunk_bytes;
    options.inflight_max = job->settings.inflight;
    options.operations_max = 1;
    options.deadline_ns = LIMIT_NS;
    options.modes.timing_only = job->settings.timing_only;
    options.modes.rank_modulus = job->count < job->settings.ranks ? job->count : 0;
    options.cost = &job->cost;
    options.local_cost = &job->local;
    return weft_group_create(weft_sim_env(job->sim, sim_job_host(job, index)), &options, &rank->group, error);
}

static bool open_ranks(struct sim_job *job)
{
    uint32_t ranks = job->settings.ranks, count = job->count;
    enum weft_status status = WEFT_OK;
    struct weft_error error = {0};
    uint32_t *ids = calloc(ranks, sizeof *ids);
    if (!ids) return print_failure("no memory for the ranks", WEFT_ERR_NO_MEMORY);
    for (uint32_t r = 0; r < count && status == WEFT_OK; r++) status = open_rank(job, r);
    for (uint32_t r = 0; r < count && status == WEFT_OK; r++) status = connect_rank(job, r);
    for (uint32_t r = 0; r < count && status == WEFT_OK; r++) {
        /* a rank is not its own peer */
        for (uint32_t i = 0; i < ranks; i++) ids[i] = i % count == r && i != r ? (i + 1) % count : i % count;
        status = make_group(job, r, ids, &error);
    }
    free(ids);
    if (status == WEFT_OK) return true;
    return print_failure(error.text[0] ? error.text : "a rank cannot be made", status);
}

/* ---- buffers: small integers, whose sums are exact in f32 ---- */

static float input(uint32_t rank, uint64_t elem)
{
    return (float)((rank * 7 + elem * 13) % 32);
}

static float sum_of(const struct sim_job *job, uint64_t elem)
{
    uint64_t sum = 0; /* the pattern repeats after 32 ranks */
    for (uint32_t k = 0; k < 32; k++) {
        uint64_t times = job->settings.ranks / 32 + (k < job->settings.ranks % 32);
        sum += times * ((k * 7 + elem * 13) % 32);
    }
    return (float)sum;
}

static float expected(const struct sim_job *job, uint32_t rank, uint64_t elem)
{
    switch (job->settings.kind) {
    case WEFT_COLL_ALL_REDUCE: return sum_of(job, elem);
    case WEFT_COLL_REDUCE_SCATTER: return sum_of(job, rank * job->elems + elem);
    case WEFT_COLL_ALL_GATHER: return input((uint32_t)(elem / job->elems), elem % job->elems);
    default: return input(job->settings.root, elem);
    }
}

static bool fill(struct sim_job *job)
{
    for (uint32_t r = 0; r < job->count; r++) {
        struct rank *rank = &job->ranks[r];
        if (job->settings.timing_only) {
            rank->in = rank->out = (float *)4096; /* never dereferenced */
            continue;
        }
        rank->in = calloc(job->in_elems + 1, sizeof(float));
        rank->out = calloc(job->out_elems + 1, sizeof(float));
        if (!rank->in || !rank->out)
            return print_failure("no memory for the data: leave --data out", WEFT_ERR_NO_MEMORY);
        for (uint64_t i = 0; i < job->in_elems; i++) rank->in[i] = input(r, i);
        if (job->settings.kind == WEFT_COLL_BROADCAST && r == job->settings.root)
            memcpy(rank->out, rank->in, job->in_elems * sizeof(float));
    }
    return true;
}

static uint64_t count_wrong(const struct sim_job *job)
{
    uint64_t wrong = 0;
    if (job->settings.kind == WEFT_COLL_BARRIER) return 0;
    for (uint32_t r = 0; r < job->settings.ranks; r++)
        for (uint64_t i = 0; i < job->out_elems; i++) wrong += job->ranks[r].out[i] != expected(job, r, i);
    return wrong;
}

static void cut_vector(struct sim_job *job)
{
    uint64_t elems = job->settings.bytes / sizeof(float), ranks = job->settings.ranks;
    bool scatters = job->settings.kind == WEFT_COLL_REDUCE_SCATTER,
         gathers = job->settings.kind == WEFT_COLL_ALL_GATHER;
    job->elems = scatters || gathers ? elems / ranks : job->settings.kind == WEFT_COLL_BARRIER ? 0 : elems;
    job->in_elems = scatters ? job->elems * ranks : job->elems;
    job->out_elems = gathers ? job->elems * ranks : job->elems;
}

/* The figures by which plans are chosen: the worst link between two hosts, and the link inside a host. */
static bool find_cost(struct sim_job *job)
{
    uint64_t latency_ns;
    double rate;
    struct weft_link_cost worst =
        sim_link_cost(&job->settings, job->settings.latency_ns, job->settings.bytes_per_second);
    if (job->topology && !sim_links_measure(job, &worst, job->hosts_memory, &job->hosts))
        return print_failure("no memory for the links", WEFT_ERR_NO_MEMORY);
    job->cost = worst;
    if (job->topology && job->hosts.count == 1) { /* one host: this is the only link */
        weft_sim_path(job->sim, sim_job_host(job, 0), sim_job_host(job, 0), 0, &latency_ns, &rate);
        /* all ranks share it */
        if (rate > 0) job->cost = sim_link_cost(&job->settings, latency_ns, rate / job->settings.ranks);
    }
    uint32_t hosts = job->topology ? weft_topology_hosts(job->topology) : job->settings.ranks,
             share = (job->settings.ranks + hosts - 1) / hosts;
    if (share < 2) return true;
    weft_sim_path(job->sim, 0, 0, 0, &latency_ns, &rate);
    job->local = sim_link_cost(&job->settings, latency_ns, rate / share); /* all ranks of the host share it */
    return true;
}

/* Number of ranks to simulate: all, or the smallest ring of equal neighbours. */
static uint32_t ranks_to_run(const struct sim_job *job)
{
    const struct sim_settings *s = &job->settings;
    struct weft_link_cost cost = sim_link_cost(s, s->latency_ns, s->bytes_per_second);
    struct weft_plan_question question = sim_question_of(s, job->elems, &cost, NULL, NULL);
    bool equal = s->kind != WEFT_COLL_ALL_REDUCE || job->elems % s->ranks == 0;
    if (s->every_rank || !s->timing_only || s->topology_path || !equal ||
        weft_plan_choose(&question, NULL) != WEFT_PLAN_RING)
        return s->ranks;
    for (uint32_t count = ALIKE_MIN; count <= s->ranks / 2; count++)
        if (s->ranks % count == 0) return count;
    return s->ranks;
}

/* ---- the operation ---- */

static void op_done(void *context, enum weft_status status, const char *text)
{
    struct rank *rank = context;
    struct sim_job *job = rank->job;
    rank->ended = true;
    rank->status = status;
    if (status < 0 && !job->why[0])
        snprintf(job->why, sizeof job->why, "rank %u: %s", (uint32_t)(rank - job->ranks), text);
    if (--job->pending == 0) job->done = true;
}

static bool post_all(struct sim_job *job, enum weft_plan_id *plan_out)
{
    job->pending = job->count;
    for (uint32_t r = 0; r < job->count; r++) {
        struct rank *rank = &job->ranks[r];
        struct weft_coll *coll;
        struct weft_error error = {0};
        struct weft_coll_args args = {.kind = job->settings.kind,
                                      .in = rank->in,
                                      .out = rank->out,
                                      .count = job->elems,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM,
                                      .root = job->settings.root,
                                      .plan = job->settings.plan};
        enum weft_status status = weft_coll_post(rank->group, &args, op_done, rank, &coll, &error);
        if (status != WEFT_IN_PROGRESS)
            return print_failure(error.text[0] ? error.text : "cannot post", status);
        *plan_out = weft_coll_plan(coll);
    }
    return true;
}

bool sim_job_run(struct sim_job *job, struct sim_result *result)
{
    memset(result, 0, sizeof *result);
    uint64_t began_ns = weft_sim_now_ns(job->sim), events = weft_sim_event_count(job->sim);
    double began_s = cpu_seconds();
    if (!post_all(job, &result->plan)) return false;
    enum weft_status status = weft_sim_run(job->sim, &job->done, began_ns + LIMIT_NS);
    if (status != WEFT_OK || job->why[0]) {
        fprintf(stderr, "weft sim: the operation did not end well: %s\n",
                job->why[0] ? job->why : weft_reason_text(status));
        return false;
    }
    result->run_s = cpu_seconds() - began_s;
    result->set_up_s = job->set_up_s;
    result->virtual_ns = weft_sim_now_ns(job->sim) - began_ns;
    result->events = weft_sim_event_count(job->sim) - events;
    result->elems = job->elems;
    result->vector_bytes = (job->in_elems > job->out_elems ? job->in_elems : job->out_elems) * sizeof(float);
    result->memory_bytes = memory_peak_bytes();
    result->data_checked = !job->settings.timing_only;
    if (result->data_checked) result->wrong = count_wrong(job);
    result->simulated = job->count;
    for (uint32_t r = 0; r < job->count; r++) {
        struct weft_transport_stats stats = {0};
        weft_transport_stats(job->ranks[r].transport, &stats);
        result->sent_bytes += stats.sent_bytes * (job->settings.ranks / job->count);
    }
    return true;
}

/* ---- open and close ---- */

static void no_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text) {}

struct sim_job *sim_job_open(const struct sim_settings *settings)
{
    double began_s = cpu_seconds();
    struct sim_job *job = calloc(1, sizeof *job);
    if (job) job->ranks = calloc(settings->ranks, sizeof *job->ranks);
    if (!job || !job->ranks) {
        free(job);
        print_failure("no memory for the ranks", WEFT_ERR_NO_MEMORY);
        return NULL;
    }
    job->settings = *settings;
    job->env = *weft_env_system();
    job->env.log = no_log;
    cut_vector(job);
    job->count = ranks_to_run(job);
    if (!open_network(job) || !assign_hosts(job) || !find_hosts(job) || !find_cost(job) || !open_ranks(job) ||
        !fill(job)) {
        sim_job_close(job);
        return NULL;
    }
    job->set_up_s = cpu_seconds() - began_s;
    return job;
}

/* Closes the endpoint of each rank before its group: otherwise thousands of groups would send each other
 * millions of farewell messages. */
void sim_job_close(struct sim_job *job)
{
    if (!job) return;
    for (uint32_t r = 0; r < job->count; r++)
        if (job->ranks[r].transport) weft_transport_close(job->ranks[r].transport);
    for (uint32_t r = 0; r < job->count; r++) {
        struct rank *rank = &job->ranks[r];
        weft_group_free(rank->group);
        for (int i = 0; rank->transport && i < 100 && !weft_transport_drained(rank->transport); i++)
            weft_transport_progress(rank->transport, 1000);
        weft_transport_free(rank->transport);
        if (rank->loop) weft_sim_remove(job->sim, rank->loop);
        weft_loop_free(rank->loop);
        if (job->settings.timing_only) continue;
        free(rank->in);
        free(rank->out);
    }
    weft_sim_free(job->sim);
    weft_topology_free(job->topology);
    free(job->ranks);
    free(job->hosts_memory);
    free(job->dealt);
    free(job);
}
