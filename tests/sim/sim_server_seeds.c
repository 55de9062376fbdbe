/* sim_server_seeds.c - shard engines with random fleets, orders, memory sizes and deaths.
 *
 *     sim_server_seeds [--seeds N] [--first S] [--topology] [--copies | --moves | --by-load] [--mutant NAME]
 *                      [--verbose]
 *
 * Safety: what a worker received and what a shard stores equals the scalar reference of that step bit for
 * bit, so nothing is lost, mixed or applied twice; watermarks equal the closed step; receive memory stays
 * below its bound and is free at the end. Liveness: every live worker ends, with WEFT_OK or an error that
 * names the culprit (the lost, the late, the two that differ), soon after the detection and long before the
 * deadline of a round. With --topology every seed has a random network whose links queue, lose, duplicate and
 * fail for some time. With --copies every chunk has a copy on another shard, and a shard that dies, or that
 * is abandoned and continues, costs no step: all workers end with WEFT_OK, every result and both values of a
 * chunk equal the reference, no result arrives of a step that the copy does not hold, no step takes longer
 * than the detection, the Map and a resend, and no Map lowers a term. With --moves copies
 * are also made and handed leadership at random, and after a loss all chunks get a copy again, so that a
 * further shard may die, until two are left; a copy that is named in a Map holds every step of which a worker
 * has the result. Some tensors are clipped: their squares equal the reference's, and the copy has the sum
 * before a worker has them. Some have consistency ssp or asp, and whole numbers: the values are the sum of
 * all contributions, each once, and the copy has a contribution before its worker has the result. Further
 * shards join, shards leave after their chunks have moved, and chunks move to the shard that leads least.
 * --by-load: --moves with one shard on a slow link. Its chunks move to the others by their speeds.
 * --mutant makes one fault of the replication, which a seed must detect. A failing seed prints the command
 * that replays it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard_fleet.h"
#include "tests/sim/random_topology.h"

#define DETECT_NS WEFT_MS(100)
#define STEP_NS WEFT_MS(5)       /* of a step without a loss, and of what is pushed again */
#define SLOW_STEP_NS WEFT_MS(60) /* with a slow host */
enum { COPY_TRIES = 2000 };      /* of 1 ms */
enum { SLOW_LINK = 30 };         /* with --by-load, times the usual time */
enum { MAPPED_ELEMS = 2304 };    /* of a chunk whose values lie in mapped memory */

static bool with_topology, with_copies, with_moves, by_load; /* --topology, --copies, --moves, --by-load */
static uint32_t mutants, map_mutants;   /* --mutant */

static const struct fleet_tensor_spec catalogue[] = {
    {.name = "fc1",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9,weight_decay=1e-4",
     .dim_count = 2,
     .dims = {33, 29},
     .chunk_elems = 300},
    {.name = "low",
     .codec = "powersgd:rank=2,iterations=2",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {24, 30}},
    {.name = "bias",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9,nesterov=1",
     .dim_count = 1,
     .dims = {37}},
    {.name = "top",
     .codec = "topk:ratio=0.05,min_count=64",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {25, 25}},
    {.name = "mean",
     .codec = "dense",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {900},
     .chunk_elems = 256},
    {.name = "half", .codec = "f16", .optimizer = "none", .dim_count = 1, .dims = {300}},
    {.name = "brain",
     .codec = "bf16",
     .optimizer = "sgd:momentum=0.5",
     .dim_count = 1,
     .dims = {700},
     .chunk_elems = 256},
    {.name = "eight",
     .codec = "int8:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {600},
     .chunk_elems = 256},
};
enum { CATALOGUE = sizeof catalogue / sizeof catalogue[0] };

/* More of them, in worlds with copies: what a copy must have of each kind of combiner. */
static const struct fleet_tensor_spec coded[] = {
    {.name = "debt",
     .codec = "topk:ratio=0.1,min_count=64,global=1",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {20, 31}},
    {.name = "drawn",
     .codec = "randomk:ratio=0.1,min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {512}},
    /* many chunks on each shard: of a lost one, workers have received different results */
    {.name = "codes",
     .codec = "int8:min_count=0",
     .optimizer = "sgd:momentum=0.5",
     .dim_count = 1,
     .dims = {256 * 12},
     .chunk_elems = 256},
    {.name = "signs", .codec = "sign:min_count=0", .optimizer = "none", .dim_count = 1, .dims = {600}},
    {.name = "four",
     .codec = "int4:min_count=0",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {700},
     .chunk_elems = 256},
    {.name = "float8",
     .codec = "e4m3:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {600},
     .chunk_elems = 256},
    {.name = "rank1", .codec = "powersgd:rank=1", .optimizer = "none", .dim_count = 2, .dims = {24, 30}},
};
enum { CODED = sizeof coded / sizeof coded[0] };

/* Faults. */
enum trouble { CALM, WORKER_DIES, SHARD_DIES, SHORT_DEADLINE, OTHER_LR, SHARD_GIVEN_UP };
static const char *const trouble_names[] = {"calm",         "a worker dies",
                                            "a shard dies", "a short deadline",
                                            "another lr",   "a shard is given up and continues"};

struct world {
    enum trouble trouble;
    uint64_t seed, random;
    struct fleet_options options;
    struct fleet_tensor_spec tensors[CATALOGUE];
    uint64_t steps;
    int lost_worker, lost_shard; /* -1: none dies */
    uint64_t kill_ns, cut_ns;    /* after the training has begun */
    uint64_t map_ns;             /* longest time of a Map on its way */
    uint32_t slow_host;
};

static uint64_t draw(struct world *world, uint64_t below)
{
    world->random = fleet_mix(world->random);
    return world->random % below;
}

/* Shards and workers of one host: contributions are summed in place, sometimes into a spare. */
static void world_map(struct world *world)
{
    static const struct fleet_tensor_spec many = {.name = "many",
                                                  .codec = "dense",
                                                  .optimizer = "none",
                                                  .dim_count = 1,
                                                  .dims = {MAPPED_ELEMS * 8 + 7},
                                                  .chunk_elems = MAPPED_ELEMS};
    struct fleet_options *options = &world->options;
    options->maps_payloads = true;
    if (draw(world, 4) == 0) options->faults.odd_rank = 1 + (uint32_t)draw(world, options->workers);
    if (options->workers > 8 || draw(world, 2)) return;
    world->tensors[0] = many;
    options->receive_bytes_max += shard_slots_bytes(weft_tree_reduce_buffer_count(options->workers),
                                                    MAPPED_ELEMS * sizeof(float));
}

/* Two of three dense tensors have gradients or results of 16 bits. In one of three worlds dense results
 * are sums, not means. Draws nothing from the world's numbers. */
static void world_dtypes(struct world *world)
{
    static const enum weft_dtype pairs[][2] = {
        {WEFT_BF16, 0}, {WEFT_F16, 0}, {WEFT_F32, WEFT_BF16}, {WEFT_F32, WEFT_F16}};
    world->options.loss_exponent = (int8_t)(world->seed % 8);
    for (uint32_t t = 0; t < world->options.tensor_count; t++) {
        const uint64_t number = fleet_mix(world->seed ^ (uint64_t)(t + 1) << 32) % 6;
        const bool is_mean = strcmp(world->tensors[t].codec, "dense") == 0 &&
                             strcmp(world->tensors[t].optimizer, "none") == 0;
        if (world->seed % 3 == 1 && is_mean) world->tensors[t].optimizer = "sum";
        /* the longest keeps its spare, which is of f32 alone */
        if (number > 3 || strcmp(world->tensors[t].codec, "dense") != 0 ||
            world->tensors[t].dims[0] > MAPPED_ELEMS)
            continue;
        world->tensors[t].dtype = pairs[number][0];
        world->tensors[t].pull_dtype = pairs[number][1];
    }
}

/* One of three tensors with an optimizer is clipped. Draws nothing from the world's numbers. */
static void world_clip(struct world *world)
{
    for (uint32_t t = 0; t < world->options.tensor_count; t++)
        world->tensors[t].clips = fleet_mix(world->seed ^ (uint64_t)(t + 7) << 40) % 3 == 0 &&
                                  strcmp(world->tensors[t].codec, "dense") == 0 &&
                                  strcmp(world->tensors[t].optimizer, "none") != 0;
}

/* Some tensors have a clock, where the workers are a power of two. Draws nothing from the world's numbers. */
static void world_clock(struct world *world)
{
    static const char *const rules[] = {"asp", "ssp:0", "ssp:2"};
    const uint32_t workers = world->options.workers;
    for (uint32_t t = 0; t < world->options.tensor_count && (workers & (workers - 1)) == 0; t++) {
        const uint64_t number = fleet_mix(world->seed ^ (uint64_t)(t + 9) << 48);
        struct fleet_tensor_spec *tensor = &world->tensors[t];
        if (number % 3 > 0 || strcmp(tensor->codec, "dense") != 0 || tensor->dims[0] > MAPPED_ELEMS) continue;
        tensor->consistency = rules[number / 3 % 3];
        tensor->optimizer = "sgd";
        tensor->dtype = tensor->pull_dtype = 0;
        tensor->clips = false;
    }
}

/* Tensors with copies; a shard dies, or is abandoned, or nothing happens. */
static void world_copy(struct world *world)
{
    struct fleet_options *options = &world->options;
    options->copies = true;
    options->hash_every = 1 + (uint32_t)(fleet_mix(world->seed ^ 77) % 3);
    options->faults.mutants = mutants;
    options->faults.map_mutants = map_mutants;
    options->shards = 2 + (uint32_t)draw(world, FLEET_SHARDS_MAX - 1);
    if (world->slow_host != UINT32_MAX) world->slow_host %= options->shards + options->workers;
    options->round_deadline_ns = 0;
    options->faults.other_lr_step = 0;
    options->coordinate = false;
    world->cut_ns = 0;
    world->lost_worker = -1;
    world->trouble = draw(world, 8) == 0 ? CALM : draw(world, 3) == 0 ? SHARD_GIVEN_UP : SHARD_DIES;
    world->lost_shard = world->trouble == CALM ? -1 : (int)draw(world, options->shards);
    world->map_ns = draw(world, 2) ? 0 : 1 + draw(world, 500000);
    if (with_moves) world->steps += draw(world, 10);
    options->late = with_moves && options->shards < FLEET_SHARDS_MAX && fleet_mix(world->seed) % 3 < 2;
    options->shards += options->late;
    if (with_moves) world->slow_host = UINT32_MAX; /* the time of a world is that of its moves */
    const uint64_t at = draw(world, CODED);
    for (uint32_t t = 0; t < options->tensor_count; t++)
        if (draw(world, 2) == 0) world->tensors[t] = coded[(at + t) % CODED];
}

static void world_make(struct world *world, uint64_t seed)
{
    *world = (struct world){.seed = seed,
                            .random = fleet_mix(seed ^ 0x5eed),
                            .lost_worker = -1,
                            .lost_shard = -1,
                            .slow_host = UINT32_MAX};
    struct fleet_options *options = &world->options;
    options->seed = seed;
    options->shards = 1 + (uint32_t)draw(world, 3);
    options->workers = 1 + (uint32_t)draw(world, 8);
    options->tensor_count = 1 + (uint32_t)draw(world, 4);
    options->tensors = world->tensors;
    uint32_t at = (uint32_t)draw(world, CATALOGUE);
    for (uint32_t t = 0; t < options->tensor_count; t++) world->tensors[t] = catalogue[(at + t) % CATALOGUE];
    /* sometimes many workers */
    if (draw(world, 40) == 0) options->workers = 9 + (uint32_t)draw(world, FLEET_WORKERS_MAX - 8);
    size_t least = shard_slots_bytes(weft_tree_reduce_buffer_count(options->workers), 300 * sizeof(float));
    if (least < 4096) least = 4096;
    options->receive_bytes_max = draw(world, 2) ? least : least * (2 + draw(world, 20));
    options->think_ns = draw(world, 4) * 100000;
    options->weighted = draw(world, 2);
    options->faults.repeat_percent = draw(world, 3) ? 0 : 30;
    options->hash_every = 2;
    options->faults.again_percent = draw(world, 4) ? 0 : 40;
    options->coordinate = true;
    world->steps = 2 + draw(world, 5);
    uint64_t length = world->steps * (options->think_ns + 60000);
    static const enum trouble troubles[] = {WORKER_DIES,    WORKER_DIES, WORKER_DIES, SHARD_DIES,
                                            SHORT_DEADLINE, OTHER_LR,    CALM,        CALM};
    world->trouble = troubles[draw(world, 8)];
    if (world->trouble == WORKER_DIES) world->lost_worker = (int)draw(world, options->workers);
    if (world->trouble == SHARD_DIES) world->lost_shard = (int)draw(world, options->shards);
    if (world->trouble == SHORT_DEADLINE) options->round_deadline_ns = 10000 + draw(world, 2000000);
    if (world->trouble == OTHER_LR && options->workers > 1) {
        options->faults.other_lr_step = 1 + draw(world, world->steps);
        options->faults.other_lr_rank = (uint32_t)draw(world, options->workers);
    }
    world->kill_ns = 1 + draw(world, length);
    if (draw(world, 4) == 0) world->slow_host = (uint32_t)draw(world, options->shards + options->workers);
    if (draw(world, 4) == 0) world->cut_ns = 1 + draw(world, length);
    if (draw(world, 3) == 0) world_map(world);
    /* An error in a held request is found late, and workers that have failed push no more. */
    const bool can_hold =
        world->trouble == CALM || world->trouble == WORKER_DIES || world->trouble == SHARD_DIES;
    if (draw(world, 3) == 0 && can_hold) options->state_blocks = 1 + (uint32_t)draw(world, 3);
    if (with_copies) world_copy(world);
    if (with_copies) world_clip(world);
    world_dtypes(world);
    if (with_copies) world_clock(world);
}

static int failed(const struct world *world, const char *what, const char *text)
{
    printf("seed %llu: %s %s\n  %u shards, %u workers, %u tensors, %llu steps, lost worker %d shard %d at "
           "%llu ns\n"
           "  trouble: %s\n  replay: tests/sim/sim_server_seeds --first %llu --seeds 1 --verbose%s%s\n",
           (unsigned long long)world->seed, what, text, world->options.shards, world->options.workers,
           world->options.tensor_count, (unsigned long long)world->steps, world->lost_worker,
           world->lost_shard, (unsigned long long)world->kill_ns, trouble_names[world->trouble],
           (unsigned long long)world->seed, with_topology ? " --topology" : "",
           by_load       ? " --by-load"
           : with_moves  ? " --moves"
           : with_copies ? " --copies"
                         : "");
    return 1;
}

/* The coordinator sees a death within DETECT_NS. */
static void fail_over(struct fleet *fleet, const struct world *world)
{
    if (!fleet->done && world->trouble == SHARD_DIES)
        (void)fleet_train_end(fleet, weft_sim_now_ns(fleet->sim) + fleet_random(fleet) % DETECT_NS);
    fleet->closes_lost = world->trouble == SHARD_DIES || world->seed % 2;
    fleet_fail_over(fleet, (uint32_t)world->lost_shard, world->map_ns);
}

/* Each chunk without a copy gets one on another live shard. true: all have one. */
static bool make_copies(struct fleet *fleet)
{
    bool all = true;
    fleet_moves_repeat(fleet);
    const uint32_t shards = fleet->options.shards;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        if (fleet->chunk[c].copy > 0) continue;
        all = false;
        uint32_t to = (uint32_t)fleet_random(fleet) % shards;
        while (to == fleet->chunk[c].shard || !fleet_is_live(fleet, to)) to = (to + 1) % shards;
        fleet_copy(fleet, c, to);
    }
    return all;
}

static void lose(struct fleet *fleet, const struct world *world, uint32_t shard)
{
    const bool dies = world->trouble != SHARD_GIVEN_UP;
    if (dies) fleet_kill_shard(fleet, shard);
    if (dies && !fleet->done)
        (void)fleet_train_end(fleet, weft_sim_now_ns(fleet->sim) + fleet_random(fleet) % DETECT_NS);
    fleet->closes_lost = dies || world->seed % 2;
    fleet_fail_over(fleet, shard, world->map_ns);
}

static bool leaves(const struct fleet *fleet)
{
    for (uint32_t s = 0; s < fleet->options.shards; s++)
        if (fleet->shard[s].leaves && !fleet->shard[s].given_up && !fleet->shard[s].killed) return true;
    return false;
}

/* Random moves, additions, drains and losses while the workers train. */
static bool play_moves(struct fleet *fleet, const struct world *world, uint64_t *ended_ns_out)
{
    const uint64_t begun = weft_sim_now_ns(fleet->sim), pause = 1 + fleet_random(fleet) % 40000;
    uint64_t before_ns = 0;
    uint32_t losses = (uint32_t)fleet_random(fleet) % fleet->options.shards;
    fleet->map_delay_ns = world->map_ns;
    if (by_load) weft_sim_slow(fleet->sim, (uint32_t)(world->seed % fleet->options.shards), SLOW_LINK);
    fleet_train_begin(fleet, 1, world->steps);
    while (!fleet_train_end(fleet,
                            weft_sim_now_ns(fleet->sim) + 1 +
                                fleet_random(fleet) % (pause + (weft_sim_now_ns(fleet->sim) - begun) / 50))) {
        const uint64_t now_ns = weft_sim_now_ns(fleet->sim);
        if (now_ns == before_ns || now_ns - begun > WEFT_SECONDS(100)) return false; /* no event is left */
        before_ns = now_ns;
        const uint32_t c = (uint32_t)(fleet_random(fleet) % fleet->chunk_count),
                       s = (uint32_t)(fleet_random(fleet) % fleet->options.shards);
        if (fleet_live_shards(fleet) < 2) continue;
        fleet_drains_continue(fleet);
        if (fleet_live_shards(fleet) < 2 || !make_copies(fleet)) continue;
        const uint64_t choice = fleet_random(fleet) % 11;
        if (choice < 3) fleet_copy(fleet, c, s);
        else if (choice < 6) fleet_hand_over(fleet, c);
        else if (choice == 8 || (by_load && choice == 7)) fleet_rebalance(fleet, by_load);
        else if (choice == 9) fleet_drain(fleet, s);
        else if (choice == 10) fleet_add(fleet, fleet->options.shards - 1);
        else if (losses > 0 && fleet_live_shards(fleet) > 1 && fleet_can_lose(fleet, s)) {
            losses--;
            lose(fleet, world, s);
        }
    }
    for (uint32_t tries = 0; fleet_live_shards(fleet) > 1; tries++) {
        if (make_copies(fleet) && !leaves(fleet)) break;
        if (tries == COPY_TRIES) return false;
        fleet_drains_continue(fleet);
        fleet_settle(fleet, WEFT_MS(1));
    }
    fleet_settle(fleet, WEFT_MS(10)); /* moves under way end */
    *ended_ns_out = weft_sim_now_ns(fleet->sim) - begun;
    return true;
}

/* Runs the world and its faults. */
static bool play(struct fleet *fleet, const struct world *world, uint64_t *ended_ns_out)
{
    uint64_t begun = weft_sim_now_ns(fleet->sim);
    uint64_t kill = world->lost_worker >= 0 || world->lost_shard >= 0 ? world->kill_ns : WEFT_NEVER;
    uint64_t cut = world->cut_ns ? world->cut_ns : WEFT_NEVER;
    bool done = false;
    if (world->slow_host != UINT32_MAX) weft_sim_slow(fleet->sim, world->slow_host, 1000);
    fleet_train_begin(fleet, 1, world->steps);
    while (!done && (kill != WEFT_NEVER || cut != WEFT_NEVER)) {
        uint64_t next = kill < cut ? kill : cut;
        done = fleet_train_end(fleet, begun + next);
        if (next == cut) {
            uint32_t host = world->options.shards + (uint32_t)(world->seed % world->options.workers);
            weft_sim_partition(fleet->sim, 0, host, true); /* for 5 ms: slow, not dead */
            if (!done) done = fleet_train_end(fleet, weft_sim_now_ns(fleet->sim) + WEFT_MS(5));
            weft_sim_partition(fleet->sim, 0, host, false);
            cut = WEFT_NEVER;
            continue;
        }
        if (world->lost_worker >= 0) fleet_kill_worker(fleet, (uint32_t)world->lost_worker);
        else if (world->trouble == SHARD_DIES) fleet_kill_shard(fleet, (uint32_t)world->lost_shard);
        if (with_copies) fail_over(fleet, world);
        kill = WEFT_NEVER;
        done = fleet->done;
    }
    done = fleet_train_end(fleet, begun + WEFT_SECONDS(1000));
    *ended_ns_out = weft_sim_now_ns(fleet->sim) - begun;
    return done;
}

/* Returns whether this error fits the world's fault and its text names the culprit. */
static bool error_fits(const struct world *world, const struct fleet_worker *worker)
{
    char expected[32];
    switch (world->trouble) {
    case CALM: return false;
    case WORKER_DIES:
        snprintf(expected, sizeof expected, "rank %d is lost", world->lost_worker);
        return worker->training.failure == WEFT_ERR_PEER_LOST &&
               strcmp(worker->training.failure_text, expected) == 0;
    case SHARD_GIVEN_UP: return false;
    case SHARD_DIES: return !with_copies && worker->training.failure == WEFT_ERR_PEER_LOST;
    case SHORT_DEADLINE:
        return worker->training.failure == WEFT_ERR_DEADLINE &&
               (strstr(worker->training.failure_text, "no push from rank") ||
                strstr(worker->training.failure_text, "all pushed"));
    case OTHER_LR:
        snprintf(expected, sizeof expected, "rank %u has ", world->options.faults.other_lr_rank);
        return worker->training.failure == WEFT_ERR_MISMATCH &&
               strstr(worker->training.failure_text, expected);
    }
    return false;
}

static int check_workers(struct fleet *fleet, const struct world *world, uint64_t ended_ns)
{
    bool somebody_failed = false;
    for (uint32_t w = 0; w < world->options.workers; w++) {
        const struct fleet_worker *worker = &fleet->worker[w];
        if (world->options.faults.other_lr_step > 0 && worker->training.failure == WEFT_OK)
            return failed(world, "a disagreement was not reported", "");
        if (worker->killed || worker->training.failure == WEFT_OK) continue;
        somebody_failed = true;
        if (!error_fits(world, worker))
            return failed(world, weft_status_name(worker->training.failure), worker->training.failure_text);
    }
    /* detection, Map, and the requests again */
    const bool is_slow = world->slow_host != UINT32_MAX || with_topology;
    if (with_copies && !with_moves &&
        fleet->counts.longest_step_ns > DETECT_NS + world->map_ns + (is_slow ? SLOW_STEP_NS : STEP_NS))
        return failed(world, "a step took too long", "");
    bool death = world->trouble == WORKER_DIES || world->trouble == SHARD_DIES;
    uint64_t soon =
        somebody_failed && death ? world->kill_ns + 2 * DETECT_NS + WEFT_SECONDS(1) : WEFT_SECONDS(10);
    return ended_ns > soon ? failed(world, "ended too late", "") : 0;
}

static int check_shards(struct fleet *fleet, const struct world *world)
{
    if (fleet->counts.wrong > 0) return failed(world, "a result differs from the reference", "");
    if (fleet->counts.diverged > 0) return failed(world, "a copy has other bits than its leader", "");
    if (fleet->counts.unheld > 0) return failed(world, "a result of a step that the copy does not hold", "");
    if (fleet->counts.terms_fallen > 0) return failed(world, "the term of a slot has fallen", "");
    if (with_copies) fleet_settle(fleet, WEFT_SECONDS(2));
    if (fleet_wrong_values(fleet) > 0)
        return failed(world, "values at a shard differ from the reference", "");
    if (with_copies && fleet_wrong_copies(fleet, world->steps) > 0)
        return failed(world, "values of a copy differ from the reference", "");
    bool job_over = (world->trouble == SHARD_DIES && !with_copies) || world->trouble == OTHER_LR;
    for (uint32_t s = 0; s < world->options.shards && job_over; s++) /* as the coordinator would */
        if (!fleet->shard[s].killed)
            weft_shard_engine_fail(fleet->shard[s].engine, WEFT_ERR_ABORTED, "the job has ended");
    fleet_settle(fleet, WEFT_SECONDS(2));
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct shard_chunk *chunk = fleet_shard_chunk(fleet, c);
        if (fleet->shard[fleet->chunk[c].shard].killed) continue;
        if (chunk->closed_step > world->steps) return failed(world, "more steps closed than taken", "");
        if (chunk->hold.is_due || chunk->hold.is_sending || chunk->copy.payload)
            return failed(world, "a change is held at rest", "");
        if (chunk->workers.contributions) return failed(world, "states of workers are not given back", "");
        if (chunk->result.replies_pending > 0 || chunk->result.sends > 0 || chunk->open.receiving > 0)
            return failed(world, "something is left in flight", "");
    }
    for (uint32_t s = 0; s < world->options.shards; s++) {
        struct weft_shard_engine_stats stats;
        weft_shard_engine_stats(fleet->shard[s].engine, &stats);
        if (stats.receive_bytes_peak > world->options.receive_bytes_max)
            return failed(world, "receive memory above its bound", "");
        if (fleet->shard[s].given_up) continue;
        if (!fleet->shard[s].killed && fleet->shard[s].engine->replication.memory.used_bytes > 0)
            return failed(world, "memory for copies is not given back", "");
        if (!fleet->shard[s].killed && stats.receive_bytes_used > 0)
            return failed(world, "receive memory is not given back", "");
        if (!fleet->shard[s].killed && fleet->shard[s].engine->reply_pool.replies_in_flight > 0)
            return failed(world, "a reply is left in flight", "");
    }
    return 0;
}

static uint64_t retried; /* bursts, in all worlds */
static uint64_t moved, handed_over, unloaded; /* slots, in all worlds */
static uint64_t added, left;        /* shards */

static int run_seed(uint64_t seed, bool verbose)
{
    struct world world;
    world_make(&world, seed);
    struct weft_topology *topology = NULL;
    if (with_topology)
        topology = random_topology(weft_env_system(), seed, world.options.shards + world.options.workers);
    world.options.topology = topology;
    struct fleet *fleet = fleet_create(&world.options);
    uint64_t ended_ns = 0;
    fleet_install(fleet);
    bool done = with_moves ? play_moves(fleet, &world, &ended_ns) : play(fleet, &world, &ended_ns);
    int bad = done ? check_workers(fleet, &world, ended_ns) : failed(&world, "a worker never ended", "");
    if (!bad) bad = check_shards(fleet, &world);
    if (verbose) {
        printf("seed %llu: %s after %.6f s, longest step %.6f s, %s, repeats %u\n", (unsigned long long)seed,
               bad ? "BAD" : "good", (double)ended_ns / 1e9, (double)fleet->counts.longest_step_ns / 1e9,
               trouble_names[world.trouble], fleet->counts.repeats);
        for (uint32_t w = 0; w < world.options.workers; w++)
            printf("  rank %u step %llu left %u %s %s\n", w,
                   (unsigned long long)fleet->worker[w].training.step, fleet->worker[w].training.left,
                   weft_status_name(fleet->worker[w].training.failure),
                   fleet->worker[w].training.failure_text);
    }
    if (topology) {
        struct weft_sim_traffic traffic;
        weft_sim_traffic(fleet->sim, &traffic);
        retried += traffic.retried;
    }
    moved += fleet->counts.moved;
    handed_over += fleet->counts.handed_over;
    unloaded += fleet->counts.unloaded;
    added += fleet->counts.added;
    left += fleet->counts.left;
    fleet_free(fleet);
    weft_topology_free(topology);
    return bad;
}

static bool mutant_find(const char *name)
{
    static const struct {
        const char *name;
        uint32_t engine, map;
    } all[] = {{"reply-before-ack", WEFT_MUTANT_REPLY_BEFORE_ACK, 0},
               {"ack-before-held", WEFT_MUTANT_ACK_BEFORE_HELD, 0},
               {"result-not-kept", WEFT_MUTANT_RESULT_NOT_KEPT, 0},
               {"reply-before-new-copy", WEFT_MUTANT_REPLY_BEFORE_NEW_COPY, 0},
               {"copy-without-states", WEFT_MUTANT_COPY_WITHOUT_STATES, 0},
               {"copy-reported-early", WEFT_MUTANT_COPY_REPORTED_EARLY, 0},
               {"quiet-early", WEFT_MUTANT_QUIET_EARLY, 0},
               {"sum-not-copied", WEFT_MUTANT_SUM_NOT_COPIED, 0},
               {"factor-not-kept", WEFT_MUTANT_FACTOR_NOT_KEPT, 0},
               {"copy-without-residual", WEFT_MUTANT_COPY_WITHOUT_RESIDUAL, 0},
               {"copy-without-result", WEFT_MUTANT_COPY_WITHOUT_RESULT, 0},
               {"step-kept-open", WEFT_MUTANT_STEP_KEPT_OPEN, 0},
               {"lower-term", WEFT_MUTANT_LOWER_TERM, 0},
               {"older-map", WEFT_MUTANT_OLDER_MAP, 0},
               {"unfinished-copy", 0, FLEET_MUTANT_UNFINISHED_COPY},
               {"clock-not-kept", WEFT_MUTANT_CLOCK_NOT_KEPT, 0},
               {"copy-without-clocks", WEFT_MUTANT_COPY_WITHOUT_CLOCKS, 0},
               {"same-term", 0, FLEET_MUTANT_SAME_TERM},
               {"wrong-leader", 0, FLEET_MUTANT_WRONG_LEADER},
               {"added-undeclared", 0, FLEET_MUTANT_ADDED_UNDECLARED},
               {"added-unconnected", 0, FLEET_MUTANT_ADDED_UNCONNECTED},
               {"round-opens-early", WEFT_MUTANT_ROUND_OPENS_EARLY, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(name, all[i].name) != 0) continue;
        mutants = all[i].engine;
        map_mutants = all[i].map;
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1, bad = 0;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else if (strcmp(argv[i], "--topology") == 0) with_topology = true;
        else if (strcmp(argv[i], "--copies") == 0) with_copies = true;
        else if (strcmp(argv[i], "--moves") == 0) with_copies = with_moves = true;
        else if (strcmp(argv[i], "--by-load") == 0) with_copies = with_moves = by_load = true;
        else if (strcmp(argv[i], "--mutant") == 0 && i + 1 < argc && mutant_find(argv[i + 1])) i++;
        else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else {
            fprintf(stderr,
                    "usage: %s [--seeds N] [--first S] [--topology] [--copies | --moves | --by-load] "
                    "[--mutant NAME] [--verbose]\n",
                    argv[0]);
            return 2;
        }
    }
    for (uint64_t seed = first; seed < first + seeds && bad < (mutants || map_mutants ? 1 : 5); seed++)
        bad += (uint64_t)run_seed(seed, verbose);
    printf("%llu seeds from %llu: %llu bad", (unsigned long long)seeds, (unsigned long long)first,
           (unsigned long long)bad);
    if (with_topology) printf(", %llu bursts sent again", (unsigned long long)retried);
    if (with_moves)
        printf(", %llu copies made, %llu changes of leader, %llu shards joined, %llu left",
               (unsigned long long)moved, (unsigned long long)handed_over, (unsigned long long)added,
               (unsigned long long)left);
    if (by_load) printf(", %llu moves from slow shards", (unsigned long long)unloaded);
    printf("\n");
    if (by_load && seeds >= 20 && unloaded == 0) bad++;
    if (with_moves && seeds >= 20 && (moved == 0 || handed_over == 0 || added == 0 || left == 0))
        bad++;                                               /* else nothing was tested */
    if (with_topology && seeds >= 20 && retried == 0) bad++; /* otherwise the links lost nothing */
    if (mutants || map_mutants) return bad == 0;             /* a fault that no seed detects */
    return bad > 0;
}
