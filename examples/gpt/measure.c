/* measure.c - --measure: what communication adds to a step. Four ways in turn, in blocks of steps:
 *
 *     none       no communication; AdamW on a copy of the masters
 *     after      push_pull of all layers behind the backward pass
 *     backward   push_pull of each layer inside it
 *     forward    the same, and the next forward pass waits layer by layer
 *
 * --pace: the layers sleep instead of computing, so that the cores are free for communication.
 * The time of a step is from its begin to the begin of the next one. The first steps of a block are not
 * counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { WAYS = 4, UNCOUNTED = 2 };
static const char *const names[WAYS] = {"none", "after", "backward", "forward"};

struct measure {
    struct trainer *trainer;
    float *copies, *first, *second; /* (parameters,) of `none`: weights and AdamW's arrays */
    double *seconds[WAYS];          /* (steps,) counted steps */
    uint64_t counts[WAYS];
    double network_ns[WAYS], peers_ns[WAYS];
    uint64_t step; /* of the trainer, from 1 */
};

static void update_copy(struct measure *measure, double lr, double decay)
{
    uint64_t at = 0;
    for (uint32_t p = 0; p < measure->trainer->gpt.part_count; p++) {
        const struct gpt_part *part = &measure->trainer->gpt.parts[p];
        for (uint64_t i = 0; i < part->count; i++, at++) {
            const float grad = part->grad[i];
            measure->first[at] = 0.9f * measure->first[at] + 0.1f * grad;
            measure->second[at] = 0.95f * measure->second[at] + 0.05f * grad * grad;
            measure->copies[at] -= (float)lr * (measure->first[at] / (sqrtf(measure->second[at]) + 1e-8f) +
                                                (float)decay * measure->copies[at]);
        }
    }
}

static bool run_step(struct measure *measure, int way)
{
    struct trainer *trainer = measure->trainer;
    double loss;
    if (way > 0) {
        trainer->options.overlap = (enum gpt_overlap)(way - 1);
        return trainer_step(trainer, measure->step++, &loss);
    }
    trainer_forward(trainer, measure->step, &loss);
    for (uint32_t layer = trainer->gpt.shape.blocks + 2; layer-- > 0;) trainer_backward_layer(trainer, layer);
    if (!trainer->options.pace) update_copy(measure, trainer->options.lr, trainer->options.weight_decay);
    return true;
}

static bool run_block(struct measure *measure, int way)
{
    struct trainer *trainer = measure->trainer;
    const uint64_t steps = trainer->options.measure;
    struct weft_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    struct weft_request request = {{0}};
    if (weft_step_wait(trainer->session) < 0 || weft_barrier(trainer->session, &request) < 0 ||
        weft_wait(&request, 0) < 0)
        return trainer_fail(trainer, "barrier");
    double began = 0;
    for (uint64_t i = 0; i <= steps + UNCOUNTED; i++) {
        const double now = trainer_seconds();
        if (i > UNCOUNTED) measure->seconds[way][measure->counts[way]++] = now - began;
        if (i == UNCOUNTED && weft_stats_get(trainer->session, &before) < 0)
            return trainer_fail(trainer, "statistics");
        if (i == steps + UNCOUNTED) break;
        began = trainer_seconds();
        if (!run_step(measure, way)) return false;
    }
    if (weft_stats_get(trainer->session, &after) < 0) return trainer_fail(trainer, "statistics");
    measure->network_ns[way] += (double)(after.exposed_network_ns - before.exposed_network_ns);
    measure->peers_ns[way] += (double)(after.exposed_peers_ns - before.exposed_peers_ns);
    return true;
}

static int compare(const void *a, const void *b)
{
    const double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static void print_ways(struct measure *measure)
{
    double medians[WAYS];
    printf("%-10s %10s %10s %12s %14s %14s\n", "way", "steps", "median-ms", "added-ms", "network-ms",
           "peers-ms");
    for (int way = 0; way < WAYS; way++) {
        const uint64_t count = measure->counts[way];
        qsort(measure->seconds[way], count, sizeof(double), compare);
        medians[way] = 1e3 * measure->seconds[way][count / 2];
        printf("%-10s %10llu %10.2f %12.2f %14.3f %14.3f\n", names[way], (unsigned long long)count,
               medians[way], medians[way] - medians[0], 1e-6 * measure->network_ns[way] / (double)count,
               1e-6 * measure->peers_ns[way] / (double)count);
    }
}

static bool allocate(struct measure *measure)
{
    uint64_t parameters = 0;
    for (uint32_t p = 0; p < measure->trainer->gpt.part_count; p++)
        parameters += measure->trainer->gpt.parts[p].count;
    measure->copies = calloc(3 * parameters, sizeof *measure->copies);
    measure->first = measure->copies + parameters;
    measure->second = measure->copies + 2 * parameters;
    bool well = measure->copies != NULL;
    for (int way = 0; way < WAYS; way++) {
        measure->seconds[way] =
            calloc(measure->trainer->options.steps + measure->trainer->options.measure, sizeof(double));
        well = well && measure->seconds[way];
    }
    return well;
}

bool measure_run(struct trainer *trainer)
{
    static struct measure measure;
    measure = (struct measure){.trainer = trainer, .step = weft_step_next(trainer->session)};
    bool well = allocate(&measure);
    if (!well) fprintf(stderr, "gpt: out of memory for --measure\n");
    while (well && measure.counts[0] < trainer->options.steps)
        for (int way = 0; well && way < WAYS; way++) well = run_block(&measure, way);
    if (well && trainer->rank == 0) print_ways(&measure);
    free(measure.copies);
    for (int way = 0; way < WAYS; way++) free(measure.seconds[way]);
    return well;
}
