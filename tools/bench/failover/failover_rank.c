/* failover_rank.c - see failover.h.
 *
 *     warm-up | `steps` steps: their median | step in which a shard is killed | `steps` steps
 *
 * All values are whole numbers below 2^24, so a lost, doubled or repeated contribution changes a result: the
 * mean of the step, or the weights, which add all means up. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_rank.h"
#include "tools/bench/failover/failover.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "weft/weft.h"

enum { WARM_UP = 3 };

struct failover_rank {
    struct bench_rank bench;
    const struct failover_options *options;
    struct weft_tensor *mean, *weights;
    float *grad, *mean_out, *weights_out; /* (count,) */
    uint64_t count, step;
    float model[2];             /* weights of even and of odd elements */
    double *step_us, *ended_us; /* (capacity,) of all ranks: the longest, and the last */
    uint64_t capacity;
    int64_t wrong;
    struct failover_kill kill;
};

static bool declare(struct failover_rank *rank, const char *tensor_name, const char *optimizer,
                    struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = tensor_name;
    options.dim_count = 1;
    options.dims[0] = rank->count;
    options.mode = WEFT_MODE_SERVER;
    options.codec = "dense";
    options.optimizer = optimizer;
    const enum weft_status status = weft_declare(rank->bench.session, &options, tensor_out);
    return status >= 0 || bench_print_failure(&rank->bench, "declare", status);
}

static bool prepare(struct failover_rank *rank)
{
    struct weft_session *session = rank->bench.session;
    rank->count = rank->options->bytes / sizeof(float);
    rank->capacity = WARM_UP + 2 * (uint64_t)rank->options->steps + 1;
    rank->grad = weft_alloc(session, rank->count * sizeof(float));
    rank->mean_out = weft_alloc(session, rank->count * sizeof(float));
    rank->weights_out = weft_alloc(session, rank->count * sizeof(float));
    rank->step_us = calloc(2 * rank->capacity, sizeof(double));
    rank->ended_us = rank->step_us ? rank->step_us + rank->capacity : NULL;
    if (!rank->grad || !rank->mean_out || !rank->weights_out || !rank->step_us)
        return bench_print_failure(&rank->bench, "alloc", WEFT_ERR_NO_MEMORY);
    memset(rank->weights_out, 0, rank->count * sizeof(float));
    if (!declare(rank, "failover.mean", "none", &rank->mean) ||
        !declare(rank, "failover.weights", "sgd", &rank->weights))
        return false;
    const enum weft_status status = weft_tensor_init(rank->weights, rank->weights_out);
    return status >= 0 || bench_print_failure(&rank->bench, "tensor_init", status);
}

/* The mean over the ranks is base + ranks - 1. */
static float base(uint64_t step, uint64_t i)
{
    return (float)(2 * ((step + i) % 2));
}

static bool exchange(struct failover_rank *rank)
{
    struct bench_rank *bench = &rank->bench;
    struct weft_request requests[2] = {{{0}}};
    const struct weft_step step = {.step = rank->step, .lr = 1, .weight = 1};
    enum weft_status status = weft_step_begin(bench->session, &step);
    if (status < 0) return bench_print_failure(bench, "step_begin", status);
    status = weft_push_pull(rank->mean, rank->grad, rank->mean_out, &requests[0]);
    if (status >= 0) status = weft_push_pull(rank->weights, rank->grad, rank->weights_out, &requests[1]);
    if (status < 0) return bench_print_failure(bench, "push_pull", status);
    for (int i = 0; i < 2; i++)
        if (!bench_wait(bench, "push_pull", WEFT_IN_PROGRESS, &requests[i])) return false;
    status = weft_step_end(bench->session);
    return status >= 0 || bench_print_failure(bench, "step_end", status);
}

static void check(struct failover_rank *rank)
{
    const float ranks = (float)rank->bench.ranks;
    const float expected[2] = {base(rank->step, 0) + ranks - 1, base(rank->step, 1) + ranks - 1};
    for (int i = 0; i < 2; i++) rank->model[i] -= expected[i];
    for (uint64_t i = 0; i < rank->count; i++)
        rank->wrong += (rank->mean_out[i] != expected[i % 2]) + (rank->weights_out[i] != rank->model[i % 2]);
}

/* One step of all ranks. The reduction at its end is also the barrier before the next one. */
static bool run_step(struct failover_rank *rank)
{
    rank->step++;
    for (uint64_t i = 0; i < rank->count; i++)
        rank->grad[i] = base(rank->step, i) + 2.0f * (float)rank->bench.rank;
    if (!bench_barrier(&rank->bench)) return false;
    const double began_us = bench_now_us();
    const bool kills = rank->bench.rank == 0 && rank->step == WARM_UP + rank->options->steps + 1;
    if (kills && !failover_kill_start(&rank->kill)) return false;
    const bool well = exchange(rank);
    const double ended_us = bench_now_us();
    if (kills) failover_kill_wait(&rank->kill);
    if (!well) return false;
    check(rank);
    int64_t times[2] = {(int64_t)(ended_us - began_us), (int64_t)ended_us};
    if (!bench_reduce_over_ranks(&rank->bench, times, 2, WEFT_MAX)) return false;
    rank->step_us[rank->step - 1] = (double)times[0];
    rank->ended_us[rank->step - 1] = (double)times[1];
    return true;
}

static bool run_steps(struct failover_rank *rank, uint64_t last)
{
    while (rank->step < last)
        if (!run_step(rank)) return false;
    return true;
}

static double usual_us(const struct failover_rank *rank)
{
    return bench_median_finite(rank->step_us + WARM_UP, rank->options->steps);
}

static void summarise(const struct failover_rank *rank, struct failover_result *result)
{
    const double killed_us = rank->kill.killed_us;
    double longest_us = 0, next_us = 0;
    for (uint64_t i = WARM_UP + rank->options->steps; i < rank->step; i++) {
        if (rank->step_us[i] > longest_us) longest_us = rank->step_us[i];
        if (next_us == 0 && rank->ended_us[i] > killed_us) next_us = rank->ended_us[i] - killed_us;
    }
    *result = (struct failover_result){.workers = rank->bench.ranks,
                                       .shards = rank->kill.shards,
                                       .shard = rank->kill.shard,
                                       .step_ms = usual_us(rank) / 1e3,
                                       .next_ms = next_us / 1e3,
                                       .extra_ms = (longest_us - usual_us(rank)) / 1e3,
                                       .steps = rank->step,
                                       .wrong = (uint64_t)rank->wrong};
}

static void print(const struct failover_options *options, const struct failover_result *result)
{
    if (options->json) {
        bench_row_print(stdout,
                        json_pack("{ss ss sI sI sI sI sf sf sf sI sI}", "measure", "failover", "how",
                                  failover_ways[options->how], "workers", (json_int_t)result->workers,
                                  "shards", (json_int_t)result->shards, "bytes", (json_int_t)options->bytes,
                                  "shard", (json_int_t)result->shard, "step_ms", result->step_ms,
                                  "next_step_ms", result->next_ms, "extra_ms", result->extra_ms, "steps",
                                  (json_int_t)result->steps, "wrong", (json_int_t)result->wrong),
                        6);
        return;
    }
    failover_print_heading(options, result);
    printf("shard %" PRIu32
           ": usual step %.1f ms, from the kill to the next step %.1f ms, longest step %.1f ms "
           "more, wrong elements %" PRIu64 "\n",
           result->shard, result->step_ms, result->next_ms, result->extra_ms, result->wrong);
}

static bool measure(struct failover_rank *rank, struct failover_result *result)
{
    const uint32_t before = WARM_UP + rank->options->steps;
    if (!prepare(rank)) return false;
    /* all tensors are declared: their chunks have copies */
    int64_t refused = rank->bench.rank == 0 && !failover_kill_choose(&rank->kill, rank->options);
    if (!bench_reduce_over_ranks(&rank->bench, &refused, 1, WEFT_MAX)) return false;
    if (refused && rank->bench.rank > 0)
        fprintf(stderr, "weft bench failover: rank 0 cannot kill a shard; its log has the reason\n");
    if (refused) return false;
    if (!run_steps(rank, before)) return false;
    rank->kill.delay_us *= usual_us(rank);
    const bool well = run_steps(rank, rank->capacity);
    failover_kill_end(&rank->kill);
    if (!well || !bench_reduce_over_ranks(&rank->bench, &rank->wrong, 1, WEFT_SUM)) return false;
    summarise(rank, result);
    return true;
}

int failover_run_rank(const struct failover_options *options)
{
    struct failover_rank rank = {.options = options};
    struct failover_result result = {0};
    if (!bench_join(&rank.bench, "weft bench failover")) return 1;
    bool fine = measure(&rank, &result);
    if (fine && rank.bench.rank == 0) {
        print(options, &result);
        fine = bench_flush_output("failover");
    }
    weft_finalize(rank.bench.session); /* frees the memory of weft_alloc */
    free(rank.step_us);
    return fine && result.wrong == 0 ? 0 : 1;
}
