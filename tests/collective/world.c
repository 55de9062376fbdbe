/* world.c - see world.h. */
#include "tests/collective/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum weft_status host_open(struct world *world, uint32_t host)
{
    world->envs[host] = weft_sim_env(world->sim, host);
    struct weft_loop_options loop_options;
    weft_loop_options_init(&loop_options);
    loop_options.virtual_time = true;
    WEFT_TRY(weft_loop_create(world->envs[host], &loop_options, &world->loops[host]));
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = "sim";
    options.id = 100 + host;
    options.nonce = 7;
    options.sim = world->sim;
    options.sim_host = host;
    options.eager_bytes_max = world->eager_bytes;
    WEFT_TRY(weft_transport_open(world->envs[host], &options, &world->transports[host], NULL));
    WEFT_TRY(weft_transport_attach(world->transports[host], world->loops[host]));
    return weft_sim_add(world->sim, host, world->loops[host]);
}

static enum weft_status connect_all(struct world *world)
{
    for (uint32_t a = 0; a < world->hosts; a++) {
        const void *blob;
        size_t bytes;
        WEFT_TRY(weft_transport_address(world->transports[a], &blob, &bytes));
        for (uint32_t b = 0; b < world->hosts; b++) {
            struct weft_peer *peer;
            if (a != b) WEFT_TRY(weft_transport_connect(world->transports[b], 100 + a, blob, bytes, &peer));
        }
    }
    return WEFT_OK;
}

struct world *world_create(struct weft_env *outer, uint32_t hosts, uint64_t seed,
                           void (*tweak)(struct weft_sim_options *options))
{
    return world_create_eager(outer, hosts, seed, tweak, 0);
}

struct world *world_create_eager(struct weft_env *outer, uint32_t hosts, uint64_t seed,
                                 void (*tweak)(struct weft_sim_options *options), size_t eager_bytes)
{
    struct world *world = calloc(1, sizeof *world);
    world->eager_bytes = eager_bytes;
    world->outer = outer;
    world->hosts = hosts;
    world->seed = seed;
    world->loops = calloc(hosts, sizeof(struct weft_loop *));
    world->transports = calloc(hosts, sizeof(struct weft_transport *));
    world->envs = calloc(hosts, sizeof(struct weft_env *));
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.seed = seed;
    options.host_count = hosts;
    if (tweak) tweak(&options);
    enum weft_status status = weft_sim_create(outer, &options, &world->sim);
    for (uint32_t host = 0; host < hosts && status == WEFT_OK; host++) status = host_open(world, host);
    if (status == WEFT_OK) status = connect_all(world);
    if (status == WEFT_OK) return world;
    world_free(world);
    return NULL;
}

void world_free(struct world *world)
{
    if (!world) return;
    bool never = false;
    for (uint32_t host = 0; host < world->hosts; host++)
        if (world->transports[host]) weft_transport_close(world->transports[host]);
    if (world->sim) world_run(world, &never, WEFT_SECONDS(1));
    for (uint32_t host = 0; host < world->hosts; host++) {
        for (int i = 0; world->transports[host] && i < 100; i++)
            weft_transport_progress(world->transports[host], 1000);
        weft_transport_free(world->transports[host]);
        if (world->loops[host]) weft_sim_remove(world->sim, world->loops[host]);
        weft_loop_free(world->loops[host]);
    }
    weft_sim_free(world->sim);
    free(world->loops);
    free(world->transports);
    free(world->envs);
    free(world);
}

enum weft_status world_group(struct world *world, const uint32_t *hosts, uint32_t ranks, uint32_t group_id,
                             const struct weft_group_options *options, struct weft_group **groups_out)
{
    uint32_t *ids = calloc(ranks, sizeof *ids);
    for (uint32_t rank = 0; rank < ranks; rank++) ids[rank] = 100 + (hosts ? hosts[rank] : rank);
    memset(groups_out, 0, ranks * sizeof *groups_out);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint32_t host = hosts ? hosts[rank] : rank;
        struct weft_group_options mine = *options;
        mine.transport = world->transports[host];
        mine.loop = world->loops[host];
        mine.rank = rank;
        mine.ranks = ranks;
        mine.endpoint_ids = ids;
        mine.group_id = group_id;
        struct weft_error error = {0};
        enum weft_status status = weft_group_create(world->envs[host], &mine, &groups_out[rank], &error);
        if (status < 0) {
            for (uint32_t made = 0; made < rank; made++) weft_group_free(groups_out[made]);
            memset(groups_out, 0, ranks * sizeof *groups_out);
            free(ids);
            return status;
        }
    }
    free(ids);
    return WEFT_OK;
}

enum weft_status world_run(struct world *world, const bool *done, uint64_t virtual_ns)
{
    return weft_sim_run(world->sim, done, weft_sim_now_ns(world->sim) + virtual_ns);
}

double world_seconds(const struct world *world) { return (double)weft_sim_now_ns(world->sim) / 1e9; }

void outcome_done(void *context, enum weft_status status, const char *text)
{
    struct outcome *outcome = context;
    outcome->ended = true;
    outcome->status = status;
    outcome->times++;
    snprintf(outcome->text, sizeof outcome->text, "%s", text);
    if (outcome->pending && --*outcome->pending == 0) *outcome->all_done = true;
}
