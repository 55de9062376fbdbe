/* bench_order.c - `weft bench order`: order and grouping of tensors in all-reduce mode; with --shards,
 * grouping of tensors in server mode (row small alone).
 *
 *   small    --small-count tensors are pushed and waited for: each alone, against together
 *   urgent   --large-count tensors are pushed, then one more; time of its push and wait: it is the least
 *            urgent one, against the most urgent one
 *   all      the same steps, until all tensors have arrived
 *
 * Both sides of a row have tensors of their own and are measured in turn, a step each. A time is the median
 * of rank 0; the ratio is the median of the ratios of the steps. */
#include "tools/bench/order/bench_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench/bench_cli.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/samples.h"
#include "weft/weft.h"

enum { WARM_UP = 3 };

/* One side of a row: its tensors. */
struct side {
    uint32_t count;
    struct weft_tensor **tensors;
    struct weft_request *requests;
    float **buffers; /* gradient, and result in place */
};

struct order {
    struct bench_rank rank;
    const struct bench_order *options;
    uint64_t step;
    struct side small[2], urgent[2]; /* [1]: together; the urgent one first */
};

int bench_order_parse(struct bench_order *order, int argc, char **argv)
{
    *order = (struct bench_order){.small_count = 200,
                                  .small_bytes = 1024,
                                  .large_count = 6,
                                  .large_bytes = 4u << 20,
                                  .urgent_bytes = 1u << 20,
                                  .iters = 20};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&order->processes, 256),
        {"shards", 's', "N", "parameter-server shards of the small tensors; 0: all-reduce mode",
         CLI_U32(&order->shards, 0, 256)},
        {"small-count", 0, "N", "small tensors of a step", CLI_U32(&order->small_count, 1, 10000)},
        {"small-bytes", 0, "SIZE", "bytes of each", CLI_SIZE(&order->small_bytes, 4, TOOL_SIZE_MAX)},
        {"large-count", 0, "N", "tensors before the urgent one", CLI_U32(&order->large_count, 1, 1000)},
        {"large-bytes", 0, "SIZE", "bytes of each", CLI_SIZE(&order->large_bytes, 4, TOOL_SIZE_MAX)},
        {"urgent-bytes", 0, "SIZE", "bytes of the urgent tensor",
         CLI_SIZE(&order->urgent_bytes, 4, TOOL_SIZE_MAX)},
        {"iters", 0, "N", "steps of each side", CLI_U32(&order->iters, 1, 100000)},
        BENCH_TRANSPORT_OPTION,
        BENCH_JSON_OPTION(&order->json),
    };
    const struct cli_command command = {
        "weft bench order", "weft bench order [options]",
        "Order and grouping of small tensors, both sides of a row in turn.\n", CLI_TABLE(table),
        .notes =
            "small: small tensors, each alone, against together.\n"
            "urgent: a tensor behind large ones that are in flight; the least urgent, against the most\n"
            "urgent one. all: until all tensors of these steps have arrived. With --shards: small alone.\n"
            "A slow link on one host: WEFT_TRANSPORT_WRAP=delay:rate_bytes=125000000 --transport tcp.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

/* ---- tensors ---- */

static bool declare(struct order *order, struct side *side, const char *name, uint32_t index, uint64_t bytes,
                    int32_t priority, bool alone)
{
    struct bench_rank *rank = &order->rank;
    struct weft_tensor_options options;
    char full[48];
    weft_tensor_options_init(&options);
    snprintf(full, sizeof full, "%s.%" PRIu32, name, index);
    options.name = full;
    options.dim_count = 1;
    options.dims[0] = bytes / sizeof(float);
    options.mode = order->options->shards ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    options.codec = "dense";
    options.priority = priority;
    options.alone = alone;
    const enum weft_status status = weft_declare(rank->session, &options, &side->tensors[index]);
    if (status < 0) return bench_print_failure(rank, "declare", status);
    side->buffers[index] = weft_alloc(rank->session, options.dims[0] * sizeof(float));
    return side->buffers[index] || bench_print_failure(rank, "alloc", WEFT_ERR_NO_MEMORY);
}

static bool side_create(struct side *side, uint32_t count)
{
    side->count = count;
    side->tensors = calloc(count, sizeof *side->tensors);
    side->requests = calloc(count, sizeof *side->requests);
    side->buffers = calloc(count, sizeof *side->buffers);
    if (side->tensors && side->requests && side->buffers) return true;
    fprintf(stderr, "weft bench order: no memory for %" PRIu32 " tensors\n", count);
    return false;
}

static void side_free(struct side *side)
{
    free(side->tensors);
    free(side->requests);
    free(side->buffers);
}

static bool make_tensors(struct order *order)
{
    const struct bench_order *options = order->options;
    const uint32_t large = options->large_count;
    static const char *const names[2][2] = {{"alone", "together"}, {"last", "first"}};
    for (uint32_t s = 0; s < 2; s++) {
        if (!side_create(&order->small[s], options->small_count)) return false;
        for (uint32_t i = 0; i < options->small_count; i++)
            if (!declare(order, &order->small[s], names[0][s], i, options->small_bytes, 0, s == 0))
                return false;
        if (options->shards > 0) continue;
        if (!side_create(&order->urgent[s], large + 1)) return false;
        for (uint32_t i = 0; i < large; i++)
            if (!declare(order, &order->urgent[s], names[1][s], i, options->large_bytes, 0, true))
                return false;
        if (!declare(order, &order->urgent[s], names[1][s], large, options->urgent_bytes, s == 0 ? -1 : 1,
                     true))
            return false;
    }
    return true;
}

/* ---- steps ---- */

static bool begin(struct order *order)
{
    const struct weft_step step = {.step = ++order->step, .lr = 1, .weight = 1};
    const enum weft_status status = weft_step_begin(order->rank.session, &step);
    if (status < 0) return bench_print_failure(&order->rank, "step_begin", status);
    return bench_barrier(&order->rank);
}

static bool push(struct order *order, struct side *side, uint32_t index)
{
    const enum weft_status status = weft_push_pull(side->tensors[index], side->buffers[index],
                                                   side->buffers[index], &side->requests[index]);
    return status >= 0 || bench_print_failure(&order->rank, "push_pull", status);
}

static bool wait(struct order *order, struct side *side, uint32_t index)
{
    return bench_wait(&order->rank, "push_pull", WEFT_IN_PROGRESS, &side->requests[index]);
}

static bool end(struct order *order)
{
    const enum weft_status status = weft_step_end(order->rank.session);
    return status >= 0 || bench_print_failure(&order->rank, "step_end", status);
}

static bool small_step(struct order *order, struct side *side, double *us)
{
    if (!begin(order)) return false;
    const double began_us = bench_now_us();
    for (uint32_t i = 0; i < side->count; i++)
        if (!push(order, side, i)) return false;
    for (uint32_t i = side->count; i-- > 0;)
        if (!wait(order, side, i)) return false;
    *us = bench_now_us() - began_us;
    return end(order);
}

/* Without a wait the engine need not run, so a barrier makes sure that the large tensors are in flight. */
static bool urgent_step(struct order *order, struct side *side, double *urgent_us, double *all_us)
{
    const uint32_t last = side->count - 1;
    if (!begin(order)) return false;
    const double began_us = bench_now_us();
    for (uint32_t i = 0; i < last; i++)
        if (!push(order, side, i)) return false;
    if (!bench_barrier(&order->rank)) return false;
    const double pushed_us = bench_now_us();
    if (!push(order, side, last) || !wait(order, side, last)) return false;
    *urgent_us = bench_now_us() - pushed_us;
    for (uint32_t i = 0; i < last; i++)
        if (!wait(order, side, i)) return false;
    *all_us = bench_now_us() - began_us;
    return end(order);
}

/* ---- rows ---- */

struct times {
    double *us[2], *ratio; /* (iters,); ratio: scratch */
};

static void print_row(const struct order *order, const char *name, struct times *times)
{
    const uint32_t iters = order->options->iters;
    const double ratio = bench_compare(times->us[0], times->us[1], iters, times->ratio).median,
                 without = bench_summarise(times->us[0], iters).p50,
                 with = bench_summarise(times->us[1], iters).p50;
    if (order->rank.rank != 0) return;
    if (order->options->json)
        printf("{\"measure\": \"order\", \"row\": \"%s\", \"ranks\": %" PRIu32
               ", \"without_us\": %.1f, \"with_us\": %.1f, \"ratio\": %.3f}\n",
               name, order->rank.ranks, without, with, ratio);
    else printf("%-8s %14.1f %14.1f %10.3f\n", name, without, with, ratio);
    fflush(stdout);
}

static bool times_create(struct times *times, uint32_t count)
{
    times->us[0] = calloc(count, sizeof(double));
    times->us[1] = calloc(count, sizeof(double));
    times->ratio = calloc(count, sizeof(double));
    return times->us[0] && times->us[1] && times->ratio;
}

static void times_free(struct times *times)
{
    free(times->us[0]);
    free(times->us[1]);
    free(times->ratio);
}

/* The first steps are not counted. */
static bool measure(struct order *order, struct times *small, struct times *urgent, struct times *all)
{
    const uint32_t iters = order->options->iters;
    for (uint32_t i = 0; i < WARM_UP + iters; i++)
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t at = i < WARM_UP ? 0 : i - WARM_UP;
            if (!small_step(order, &order->small[s], &small->us[s][at])) return false;
            if (order->options->shards == 0 &&
                !urgent_step(order, &order->urgent[s], &urgent->us[s][at], &all->us[s][at]))
                return false;
        }
    return true;
}

static bool run_rows(struct order *order)
{
    const struct bench_order *options = order->options;
    struct times small = {{0}}, urgent = {{0}}, all = {{0}};
    bool well = times_create(&small, options->iters) && times_create(&urgent, options->iters) &&
                times_create(&all, options->iters);
    if (!well) fprintf(stderr, "weft bench order: no memory for the times\n");
    well = well && measure(order, &small, &urgent, &all);
    if (well && order->rank.rank == 0 && !options->json && options->shards)
        printf("# weft bench order: %" PRIu32 " ranks, %" PRIu32 " shards, %" PRIu32 " tensors of %" PRIu64
               " bytes; us\n%-8s %14s %14s %10s\n",
               order->rank.ranks, options->shards, options->small_count, options->small_bytes, "row",
               "without", "with", "ratio");
    else if (well && order->rank.rank == 0 && !options->json)
        printf("# weft bench order: %" PRIu32 " ranks, %" PRIu32 " tensors of %" PRIu64
               " bytes; one of %" PRIu64 " behind %" PRIu32 " of %" PRIu64 "; us\n%-8s %14s %14s %10s\n",
               order->rank.ranks, options->small_count, options->small_bytes, options->urgent_bytes,
               options->large_count, options->large_bytes, "row", "without", "with", "ratio");
    if (well) {
        print_row(order, "small", &small);
        if (options->shards == 0) {
            print_row(order, "urgent", &urgent);
            print_row(order, "all", &all);
        }
    }
    times_free(&small);
    times_free(&urgent);
    times_free(&all);
    return well;
}

int bench_order_run(const struct bench_order *options)
{
    struct order order = {.options = options};
    if (!bench_join(&order.rank, "weft bench order")) return 1;
    const bool well = make_tensors(&order) && run_rows(&order);
    weft_finalize(order.rank.session);
    for (uint32_t s = 0; s < 2; s++) side_free(&order.small[s]), side_free(&order.urgent[s]);
    return well ? 0 : 1;
}
