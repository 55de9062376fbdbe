/* sim.c - hosts, clocks, faults, and the run that advances time.
 *
 * A run repeats: step every loop of every *ready* host until all are quiet, then advance the clock to the
 * next event or timer. A host is ready after a message, a finished operation or a due timer, and at the
 * start of a run, when the caller may have changed anything. So an idle host costs nothing.
 *
 * All loops of one host are stepped together, because they may post to each other. A post to a loop of
 * another host takes effect when that host is stepped next, at the latest when the simulation would be
 * idle. */
#include <stdio.h>
#include <string.h>

#include "transport/sim/flow.h"

enum { STEPS_PER_TURN = 4096, TURNS_PER_INSTANT = 1000000 };

void weft_sim_options_init(struct weft_sim_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->seed = 1;
    options->host_count = 1;
    options->latency_ns = 5000;
    options->jitter_ns = 1000;
    options->bytes_per_second = 12500000000ull;
    options->detect_ns = WEFT_MS(100);
    options->slab_bytes = 256 << 10;
}

/* splitmix64 (Steele, Lea, Flood 2014): every state is valid. */
uint64_t sim_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* ---- the env of a host ---- */

static struct sim_host *host_of(struct weft_env *env) { return env->context; }
/* Each reading is later, as with a real clock: code that mixes two readings of one callback fails here,
 * too. */
static uint64_t host_now_ns(struct weft_env *env)
{
    struct sim_host *host = host_of(env);
    if (host->sim->options.still_clock) return host->sim->now_ns;
    host->clock_ns = host->clock_ns < host->sim->now_ns ? host->sim->now_ns : host->clock_ns + 1;
    return host->clock_ns;
}
static uint64_t host_random_u64(struct weft_env *env) { return sim_random(&host_of(env)->random); }
static void *host_alloc(struct weft_env *env, size_t bytes)
{
    return weft_alloc_bytes(host_of(env)->sim->env, bytes);
}
static void host_free(struct weft_env *env, void *memory) { weft_free_bytes(host_of(env)->sim->env, memory); }

static void host_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    struct sim_host *host = host_of(env);
    weft_log(host->sim->env, level, module, "[%.6f s host %u] %s", (double)host->sim->now_ns / 1e9,
             host->index, text);
}

static void kill_fire(struct weft_sim *sim, struct sim_due *due)
{
    weft_sim_kill(sim, weft_container_of(due, struct sim_host, kill_due)->index);
}

/* A death becomes known: each endpoint checks at a slightly different time. */
static void death_fire(struct weft_sim *sim, struct sim_due *due)
{
    weft_container_of(due, struct sim_host, notice_due)->death_known = true;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &sim->endpoints) {
        struct sim_endpoint *endpoint = weft_container_of(node, struct sim_endpoint, link);
        if (!endpoint->transport || endpoint->look.index != SIM_IDLE) continue;
        sim_schedule(sim, &endpoint->look,
                     sim->now_ns + sim_random(&sim->random) % (sim->options.detect_ns / 8 + 1));
    }
}

static void host_init(struct weft_sim *sim, uint32_t index)
{
    struct sim_host *host = &sim->hosts[index];
    host->sim = sim;
    host->index = index;
    host->slow = 1;
    host->random = sim->options.seed * 0x9e3779b97f4a7c15ull + index + 1;
    host->env = (struct weft_env){
        .now_ns = host_now_ns,
        .random_u64 = host_random_u64,
        .alloc = host_alloc,
        .free = host_free,
        .log = host_log,
        .log_level = sim->env->log_level,
        .context = host,
    };
    host->kill_due = (struct sim_due){.index = SIM_IDLE, .fire = kill_fire};
    host->notice_due = (struct sim_due){.index = SIM_IDLE, .fire = death_fire};
    weft_list_init(&host->loops);
    weft_list_init(&host->ready);
}

static void sim_pools_init(struct weft_sim *sim)
{
    sim_pool_init(&sim->pools.message_pool, sizeof(struct sim_message));
    sim_pool_init(&sim->pools.peer_pool, sizeof(struct sim_peer));
    sim_pool_init(&sim->pools.flow_pool, sizeof(struct sim_flow));
    sim_pool_init(&sim->pools.burst_pool, sizeof(struct sim_burst));
    sim_pool_init(&sim->pools.copy_pool, sizeof(struct sim_copy));
    for (int class = 0; class < SIM_COPY_CLASSES; class ++)
        sim_pool_init(&sim->pools.copies[class], (size_t)SIM_COPY_BYTES_MIN << class);
}

enum weft_status weft_sim_create(struct weft_env *env, const struct weft_sim_options *options,
                                 struct weft_sim **sim_out)
{
    uint32_t hosts = options->topology ? options->topology->host_count : options->host_count;
    if (options->size != sizeof *options || hosts == 0 || hosts > TOPOLOGY_HOSTS_MAX) return WEFT_ERR_INVALID;
    struct weft_sim *sim = weft_alloc_zero(env, sizeof *sim);
    if (!sim) return WEFT_ERR_NO_MEMORY;
    sim->env = env;
    sim->options = *options;
    sim->options.host_count = hosts;
    if (options->topology && options->topology->detect_ns)
        sim->options.detect_ns = options->topology->detect_ns;
    sim->random = options->seed;
    sim->timers.tracked = true;
    weft_list_init(&sim->ready);
    weft_list_init(&sim->endpoints);
    weft_list_init(&sim->big_copies);
    weft_list_init(&sim->stalled);
    sim_pools_init(sim);
    size_t host_count = hosts;
    sim->hosts = weft_alloc_zero(env, host_count * sizeof *sim->hosts);
    sim->cuts.cut = weft_alloc_zero(env, host_count * host_count / 8 + 1);
    if (!sim->hosts || !sim->cuts.cut || !sim_heap_reserve(&sim->events, env, 2 * host_count) ||
        sim_flows_init(sim) < 0) {
        weft_sim_free(sim);
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < hosts; i++) host_init(sim, i);
    *sim_out = sim;
    return WEFT_OK;
}

void weft_sim_free(struct weft_sim *sim)
{
    if (!sim) return;
    struct weft_env *env = sim->env;
    struct weft_list *node, *spare;
    for (uint32_t i = 0; sim->hosts && i < sim->options.host_count; i++) {
        if (!sim->hosts[i].sim) break;
        weft_list_foreach (node, spare, &sim->hosts[i].loops)
            weft_free_bytes(env, weft_container_of(node, struct sim_loop, link));
    }
    weft_list_foreach (node, spare, &sim->big_copies)
        weft_free_bytes(env, weft_container_of(node, struct sim_message, all)->buffers.copy);
    weft_list_foreach(node, spare, &sim->endpoints) {
        struct sim_endpoint *endpoint = weft_container_of(node, struct sim_endpoint, link);
        WEFT_ASSERT(!endpoint->transport); /* free the endpoints first */
        weft_free_bytes(env, endpoint);
    }
    for (uint32_t i = 0; i < sim->windows_by_serial.window_count; i++)
        weft_free_bytes(env, sim->windows_by_serial.window_table[i]);
    sim_pool_free(&sim->pools.message_pool, env);
    sim_pool_free(&sim->pools.peer_pool, env);
    sim_flows_free(sim);
    for (int class = 0; class < SIM_COPY_CLASSES; class++) sim_pool_free(&sim->pools.copies[class], env);
    weft_free_bytes(env, sim->windows_by_serial.window_table);
    weft_free_bytes(env, sim->endpoints_by_serial.endpoint_table);
    weft_free_bytes(env, sim->events.entries);
    weft_free_bytes(env, sim->timers.entries);
    weft_free_bytes(env, sim->hosts);
    weft_free_bytes(env, sim->cuts.cut);
    weft_free_bytes(env, sim);
}

struct weft_env *weft_sim_env(struct weft_sim *sim, uint32_t host)
{
    WEFT_ASSERT(host < sim->options.host_count);
    return &sim->hosts[host].env;
}

uint64_t weft_sim_now_ns(const struct weft_sim *sim) { return sim->now_ns; }
uint64_t weft_sim_event_count(const struct weft_sim *sim) { return sim->event_count; }
void weft_sim_traffic(const struct weft_sim *sim, struct weft_sim_traffic *traffic_out)
{
    *traffic_out = sim->traffic;
}
uint64_t weft_sim_trace(const struct weft_sim *sim) { return sim->trace; }

bool sim_table_grow(struct weft_sim *sim, void ***table, uint32_t count, uint32_t *capacity)
{
    if (count < *capacity) return true;
    uint32_t more = *capacity ? *capacity * 2 : 64;
    void **grown = weft_alloc_array(sim->env, more, sizeof *grown);
    if (!grown) return false;
    if (count > 0) memcpy(grown, *table, count * sizeof *grown);
    weft_free_bytes(sim->env, *table);
    *table = grown;
    *capacity = more;
    return true;
}

void sim_schedule(struct weft_sim *sim, struct sim_due *due, uint64_t time_ns)
{
    due->time_ns = time_ns < sim->now_ns ? sim->now_ns : time_ns;
    due->order = sim->order++;
    sim_heap_push(&sim->events, due);
}

void sim_host_ready(struct sim_host *host)
{
    if (host->dead || host->frozen || !weft_list_empty(&host->ready)) return;
    weft_list_append(&host->sim->ready, &host->ready);
}

/* ---- loops ---- */

enum weft_status weft_sim_add(struct weft_sim *sim, uint32_t host_index, struct weft_loop *loop)
{
    if (host_index >= sim->options.host_count) return WEFT_ERR_INVALID;
    struct sim_host *host = &sim->hosts[host_index];
    if (host->dead) return WEFT_ERR_STATE;
    struct sim_loop *entry = weft_alloc_zero(sim->env, sizeof *entry);
    if (!entry || !sim_heap_reserve(&sim->timers, sim->env, 1)) {
        weft_free_bytes(sim->env, entry);
        return WEFT_ERR_NO_MEMORY;
    }
    entry->loop = loop;
    entry->host = host;
    entry->timer.index = SIM_IDLE;
    weft_list_append(&host->loops, &entry->link);
    sim_host_ready(host);
    return WEFT_OK;
}

/* The host may be stepping its loops: clears the entry now; host_timers frees it. */
void weft_sim_remove(struct weft_sim *sim, struct weft_loop *loop)
{
    for (uint32_t i = 0; i < sim->options.host_count; i++) {
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &sim->hosts[i].loops) {
            struct sim_loop *entry = weft_container_of(node, struct sim_loop, link);
            if (entry->loop != loop) continue;
            entry->loop = NULL;
            sim_host_ready(&sim->hosts[i]);
        }
    }
}

void weft_sim_wake(struct weft_sim *sim, uint32_t host)
{
    WEFT_ASSERT(host < sim->options.host_count);
    sim_host_ready(&sim->hosts[host]);
}

struct sim_host *sim_host_of_env(struct weft_env *env)
{
    return env->now_ns == host_now_ns ? host_of(env) : NULL;
}

/* ---- faults ---- */

void weft_sim_kill(struct weft_sim *sim, uint32_t host_index)
{
    WEFT_ASSERT(host_index < sim->options.host_count);
    struct sim_host *host = &sim->hosts[host_index];
    if (host->dead) return;
    host->dead = true;
    host->killed_ns = sim->now_ns;
    weft_list_remove(&host->ready);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &host->loops) {
        struct sim_loop *entry = weft_container_of(node, struct sim_loop, link);
        if (entry->timer.index != SIM_IDLE) sim_heap_remove(&sim->timers, &entry->timer);
    }
    if (host->kill_due.index != SIM_IDLE) sim_heap_remove(&sim->events, &host->kill_due);
    sim_schedule(sim, &host->notice_due, sim->now_ns + sim->options.detect_ns);
}

void weft_sim_kill_at(struct weft_sim *sim, uint32_t host_index, uint64_t time_ns)
{
    WEFT_ASSERT(host_index < sim->options.host_count);
    struct sim_host *host = &sim->hosts[host_index];
    if (host->dead) return;
    if (host->kill_due.index != SIM_IDLE) sim_heap_remove(&sim->events, &host->kill_due);
    sim_schedule(sim, &host->kill_due, time_ns);
}

void weft_sim_freeze(struct weft_sim *sim, uint32_t host_index, bool frozen)
{
    WEFT_ASSERT(host_index < sim->options.host_count);
    struct sim_host *host = &sim->hosts[host_index];
    host->frozen = frozen;
    if (frozen) weft_list_remove(&host->ready);
    else sim_host_ready(host);
}

void weft_sim_slow(struct weft_sim *sim, uint32_t host, uint32_t factor)
{
    WEFT_ASSERT(host < sim->options.host_count);
    sim->hosts[host].slow = factor > 0 ? factor : 1;
}

void weft_sim_partition(struct weft_sim *sim, uint32_t host_a, uint32_t host_b, bool cut)
{
    uint32_t hosts = sim->options.host_count;
    WEFT_ASSERT(host_a < hosts && host_b < hosts);
    const size_t bits[2] = {(size_t)host_a * hosts + host_b, (size_t)host_b * hosts + host_a};
    for (int i = 0; i < 2; i++) {
        uint8_t mask = (uint8_t)(1u << bits[i] % 8);
        if (!(sim->cuts.cut[bits[i] / 8] & mask) != cut) continue;
        sim->cuts.cut[bits[i] / 8] ^= mask;
        if (cut) sim->cuts.cut_count++;
        else sim->cuts.cut_count--;
    }
    if (cut) return;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &sim->stalled) {
        struct sim_message *message = weft_container_of(node, struct sim_message, links.stalled);
        if (!sim_is_cut(sim, message->source->host, message->sink->host)) sim_message_heal(message);
    }
    sim->cuts.heal_done_ns = sim->now_ns + sim->options.latency_ns;
    if (!sim->cuts.has_deferred_notices) return;
    weft_list_foreach(node, spare, &sim->endpoints) {
        struct sim_endpoint *endpoint = weft_container_of(node, struct sim_endpoint, link);
        bool at_cut = endpoint->host->index == host_a || endpoint->host->index == host_b;
        if (at_cut && endpoint->transport && endpoint->look.index == SIM_IDLE)
            sim_schedule(sim, &endpoint->look, sim->cuts.heal_done_ns);
    }
}

/* ---- the run ---- */

/* Steps all loops of a host until none has work. True: quiet; false: its turn is used up. */
static bool host_step(struct weft_sim *sim, struct sim_host *host, const bool *done, bool *worked)
{
    for (int turn = 0; turn < STEPS_PER_TURN; turn++) {
        int work = 0;
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &host->loops) {
            struct sim_loop *entry = weft_container_of(node, struct sim_loop, link);
            if (entry->loop) work += weft_loop_step(entry->loop);
            if (host->dead) return true;
        }
        if (work == 0) return true;
        *worked = true;
        if (done && *done) return false;
    }
    return false;
}

/* Schedules the next timer of each loop and frees removed entries. */
static void host_timers(struct weft_sim *sim, struct sim_host *host)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &host->loops) {
        struct sim_loop *entry = weft_container_of(node, struct sim_loop, link);
        uint64_t next_ns = entry->loop ? weft_loop_next_timer_ns(entry->loop) : WEFT_NEVER;
        if (entry->timer.index != SIM_IDLE) {
            if (entry->timer.time_ns == next_ns) continue;
            sim_heap_remove(&sim->timers, &entry->timer);
        }
        if (!entry->loop) {
            sim_heap_unreserve(&sim->timers, 1);
            weft_list_remove(&entry->link);
            weft_free_bytes(sim->env, entry);
            continue;
        }
        if (next_ns == WEFT_NEVER) continue;
        entry->timer.time_ns = next_ns;
        entry->timer.order = sim->order++;
        sim_heap_push(&sim->timers, &entry->timer);
    }
}

static void all_ready(struct weft_sim *sim)
{
    for (uint32_t i = 0; i < sim->options.host_count; i++) {
        if (!weft_list_empty(&sim->hosts[i].loops)) sim_host_ready(&sim->hosts[i]);
    }
}

/* Advances the clock to `time_ns` and fires what is due. */
static void fire_due(struct weft_sim *sim, uint64_t time_ns)
{
    if (sim->now_ns < time_ns) sim->now_ns = time_ns;
    while (sim->events.count > 0 && sim->events.entries[0].time_ns <= sim->now_ns) {
        struct sim_due *due = sim_heap_pop(&sim->events);
        /* the next one is among them */
        for (size_t i = 0; i < 5 && i < sim->events.count; i++)
            __builtin_prefetch(sim->events.entries[i].due);
        sim->event_count++;
        sim_note(sim, due->time_ns ^ due->order << 32);
        due->fire(sim, due);
    }
    while (sim->timers.count > 0 && sim->timers.entries[0].time_ns <= sim->now_ns) {
        struct sim_due *due = sim_heap_pop(&sim->timers);
        sim->event_count++;
        sim_host_ready(weft_container_of(due, struct sim_loop, timer)->host);
    }
}

/* With thousands of hosts each step starts with cold memory: prefetches the next host. */
static void prefetch_ready(const struct weft_sim *sim)
{
    if (weft_list_empty(&sim->ready)) return;
    const struct sim_host *next = weft_list_first(&sim->ready, struct sim_host, ready);
    if (next->ready.next != &sim->ready)
        __builtin_prefetch(weft_container_of(next->ready.next, struct sim_host, ready)->loops.next);
    if (weft_list_empty(&next->loops)) return;
    const char *loop = (const char *)weft_list_first(&next->loops, struct sim_loop, link)->loop;
    __builtin_prefetch(loop);
    __builtin_prefetch(loop + 64);
}

/* Steps ready hosts until there are none. WEFT_IN_PROGRESS: all quiet. */
static enum weft_status step_ready(struct weft_sim *sim, const bool *done, bool *worked, uint64_t *turns)
{
    while (!weft_list_empty(&sim->ready)) {
        struct sim_host *host = weft_list_first(&sim->ready, struct sim_host, ready);
        weft_list_remove(&host->ready);
        prefetch_ready(sim);
        bool quiet = host_step(sim, host, done, worked);
        if (!host->dead) host_timers(sim, host);
        if (!quiet) sim_host_ready(host);
        if (done && *done) return WEFT_OK;
        if (++*turns > TURNS_PER_INSTANT) {
            weft_log(sim->env, WEFT_LOG_ERROR, "transport",
                     "the simulation does not get beyond %.9f s: host %u never stops working",
                     (double)sim->now_ns / 1e9, host->index);
            return WEFT_ERR_STATE;
        }
    }
    return done && *done ? WEFT_OK : WEFT_IN_PROGRESS;
}

enum weft_status weft_sim_run(struct weft_sim *sim, const bool *done, uint64_t until_ns)
{
    all_ready(sim);
    bool worked = false, asked_all = false;
    uint64_t turns = 0;
    for (;;) {
        enum weft_status status = step_ready(sim, done, &worked, &turns);
        if (status != WEFT_IN_PROGRESS) return status;
        uint64_t next_ns = WEFT_NEVER;
        if (sim->events.count > 0) next_ns = sim->events.entries[0].time_ns;
        if (sim->timers.count > 0 && sim->timers.entries[0].time_ns < next_ns)
            next_ns = sim->timers.entries[0].time_ns;
        if (next_ns == WEFT_NEVER) {
            if (asked_all && !worked) return WEFT_ERR_STATE;
            all_ready(sim); /* another host may have posted to any of them */
            asked_all = true;
            worked = false;
            continue;
        }
        asked_all = false;
        if (next_ns > until_ns) {
            if (sim->now_ns < until_ns) sim->now_ns = until_ns;
            return WEFT_ERR_DEADLINE;
        }
        if (next_ns > sim->now_ns) turns = 0;
        fire_due(sim, next_ns);
    }
}
