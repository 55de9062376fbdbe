/* trainer.c - the training loop of the GPT.
 *
 * One step, --overlap forward:
 *
 *     weft_tensor_wait of layer 0, its forward pass; of layer 1 ...    the last step's results arrive
 *     weft_step_begin, deliver_late
 *     backward of layer L + 1 -> weft_push_pull of its parts; of layer L, while they are transferred; ...
 *     weft_step_end                                                    does not wait for results
 *
 * --overlap backward: weft_step_end waits, so that all masters are those of the next step.
 * Each rank sums over an equal part of the batch, so the mean gradient does not depend on the number of
 * ranks. */
#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trainer.h"

enum { HELD_OUT_SAMPLES = 64 };

bool trainer_fail(const struct trainer *trainer, const char *what)
{
    fprintf(stderr, "gpt: rank %u, %s: %s\n", trainer->rank, what, weft_error_text(trainer->session));
    return false;
}

double trainer_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void sleep_us(uint64_t us)
{
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

/* ---- set-up ---- */

static bool declare(struct trainer *trainer, uint32_t index)
{
    struct gpt_part *part = &trainer->gpt.parts[index];
    const struct gpt_options *options = &trainer->options;
    char optimizer[96];
    snprintf(optimizer, sizeof optimizer, "adamw:beta1=0.9,beta2=0.95,weight_decay=%g",
             part->cols ? options->weight_decay : 0);
    struct weft_tensor_options declared;
    weft_tensor_options_init(&declared);
    declared.name = part->name;
    declared.dim_count = part->cols ? 2 : 1;
    declared.dims[0] = part->rows;
    declared.dims[1] = part->cols;
    declared.codec = part->cols ? options->codec : "dense";
    declared.optimizer = optimizer;
    if (options->mode)
        declared.mode = strcmp(options->mode, "server") == 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    if (weft_declare(trainer->session, &declared, &trainer->tensors[index]) < 0)
        return trainer_fail(trainer, part->name);
    part->master = weft_alloc(trainer->session, part->count * sizeof(float));
    part->grad = weft_alloc(trainer->session, part->count * sizeof(float));
    if (part->master && part->grad) return true;
    fprintf(stderr, "gpt: rank %u: out of memory for %s\n", trainer->rank, part->name);
    return false;
}

static bool prepare(struct trainer *trainer)
{
    const struct gpt_options *options = &trainer->options;
    char error[1400];
    if (!text_load(&trainer->text, options->text, (uint32_t)options->length, error, sizeof error))
        return fprintf(stderr, "gpt: %s\n", error), false;
    if (weft_init(NULL, &trainer->session) < 0) return trainer_fail(trainer, "joining the job");
    trainer->rank = weft_rank(trainer->session);
    trainer->ranks = weft_ranks(trainer->session);
    if (options->batch % trainer->ranks)
        return fprintf(stderr, "gpt: --batch %u is no multiple of %u ranks\n", (unsigned)options->batch,
                       trainer->ranks),
               false;
    trainer->samples = (uint32_t)options->batch / trainer->ranks;
    trainer->first = trainer->samples * trainer->rank;
    const struct gpt_shape shape = {(uint32_t)options->blocks, (uint32_t)options->width,
                                    (uint32_t)options->heads, (uint32_t)options->length,
                                    strcmp(options->precision, "bf16") == 0};
    trainer->batch = malloc((size_t)trainer->samples * (options->length + 1));
    if (trainer->batch && gpt_create(&trainer->gpt, &shape, trainer->samples)) return true;
    return fprintf(stderr, "gpt: out of memory; make --batch or --width smaller\n"), false;
}

/* A job that has restored a snapshot of the shards reads the samples of the job that made it: their order
 * depends on the seed and the number of the step. weft_declare restores what the codecs have not sent. */
static bool restore_seed(struct trainer *trainer)
{
    uint64_t seed, bytes = sizeof seed;
    const enum weft_status status = weft_snapshot_restored_blob(trainer->session, 0, &seed, &bytes, NULL);
    if (status == WEFT_ERR_NOT_FOUND) return true; /* the job begins */
    if (status < 0) return trainer_fail(trainer, "the blob of the snapshot");
    if (bytes != sizeof seed) return fprintf(stderr, "gpt: the snapshot is of another trainer\n"), false;
    trainer->options.seed = seed;
    return true;
}

static bool begin(struct trainer *trainer)
{
    const uint64_t *seed = &trainer->options.seed;
    if (!restore_seed(trainer)) return false;
    if (weft_snapshot_blob(trainer->session, seed, sizeof *seed) < 0)
        return trainer_fail(trainer, "the blob of snapshots");
    for (uint32_t i = 0; i < trainer->gpt.part_count; i++)
        if (!declare(trainer, i)) return false;
    gpt_init(&trainer->gpt, trainer->options.seed);
    if (!checkpoint_load(trainer)) return false;
    for (uint32_t layer = 0; layer <= trainer->gpt.shape.blocks + 1; layer++)
        gpt_refresh(&trainer->gpt, layer);
    return true;
}

/* ---- training ---- */

/* Rises linearly over a tenth of the steps, then falls by a half cosine. */
static float learning_rate(const struct trainer *trainer, uint64_t step)
{
    const double steps = (double)trainer->options.steps, warm = floor(steps / 10) + 1;
    const double at = (double)step, lr = trainer->options.lr;
    if (at < warm) return (float)(lr * at / warm);
    return (float)(lr * 0.5 * (1 + cos(acos(-1.0) * (at - warm) / (steps - warm + 1))));
}

static bool push_layer(struct trainer *trainer, uint32_t layer)
{
    for (uint32_t i = 0; i < trainer->gpt.part_count; i++) {
        struct gpt_part *part = &trainer->gpt.parts[i];
        if (part->layer == layer &&
            weft_push_pull(trainer->tensors[i], part->grad, part->master, &trainer->requests[i]) < 0)
            return trainer_fail(trainer, part->name);
    }
    return true;
}

/* The masters of the layer are those of this step: reads them. */
static bool take_layer(struct trainer *trainer, uint32_t layer)
{
    for (uint32_t i = 0; i < trainer->gpt.part_count; i++)
        if (trainer->gpt.parts[i].layer == layer && weft_tensor_wait(trainer->tensors[i], 0) < 0)
            return trainer_fail(trainer, trainer->gpt.parts[i].name);
    gpt_refresh(&trainer->gpt, layer);
    return true;
}

static double forward_layer(struct trainer *trainer, uint32_t layer)
{
    if (!trainer->options.pace) return gpt_forward(&trainer->gpt, layer);
    sleep_us(trainer->options.pace);
    return 0;
}

void trainer_backward_layer(struct trainer *trainer, uint32_t layer)
{
    if (trainer->options.pace) sleep_us(2 * trainer->options.pace);
    else gpt_backward(&trainer->gpt, layer);
}

bool trainer_forward(struct trainer *trainer, uint64_t number, double *loss_out)
{
    struct gpt *gpt = &trainer->gpt;
    text_batch(&trainer->text, trainer->options.seed, number, trainer->first, trainer->samples,
               gpt->shape.length, trainer->batch);
    gpt_begin(gpt, trainer->batch, trainer->samples);
    for (uint32_t layer = 0; layer <= gpt->shape.blocks + 1; layer++) {
        if (!take_layer(trainer, layer)) return false;
        *loss_out = forward_layer(trainer, layer);
    }
    return true;
}

bool trainer_step(struct trainer *trainer, uint64_t number, double *loss_out)
{
    struct gpt *gpt = &trainer->gpt;
    const uint32_t last = gpt->shape.blocks + 1;
    const bool after = trainer->options.overlap == GPT_AFTER;
    if (!trainer_forward(trainer, number, loss_out)) return false;
    if (weft_step_begin_with(trainer->session,
                             WEFT_STEP(.step = number, .lr = learning_rate(trainer, number), .weight = 1,
                                       .deliver_late = trainer->options.overlap == GPT_FORWARD)) < 0)
        return trainer_fail(trainer, "step_begin");
    for (uint32_t layer = last + 1; layer-- > 0;) {
        trainer_backward_layer(trainer, layer);
        if (!after && !push_layer(trainer, layer)) return false;
    }
    for (uint32_t layer = last + 1; after && layer-- > 0;)
        if (!push_layer(trainer, layer)) return false;
    return weft_step_end(trainer->session) >= 0 || trainer_fail(trainer, "step_end");
}

/* Mean loss of the held-out samples, which the ranks share. */
static bool evaluate(struct trainer *trainer, double *loss_out)
{
    struct gpt *gpt = &trainer->gpt;
    double sum[2] = {0, 0};
    struct weft_request request = {{0}};
    if (weft_step_wait(trainer->session) < 0) return trainer_fail(trainer, "step_wait");
    for (uint32_t layer = 0; layer <= gpt->shape.blocks + 1; layer++)
        if (!take_layer(trainer, layer)) return false;
    for (uint32_t first = trainer->first; first < HELD_OUT_SAMPLES;
         first += (uint32_t)trainer->options.batch) {
        text_held_out(&trainer->text, first, trainer->samples, gpt->shape.length, trainer->batch);
        gpt_begin(gpt, trainer->batch, trainer->samples);
        double loss = 0;
        for (uint32_t layer = 0; layer <= gpt->shape.blocks + 1; layer++) loss = gpt_forward(gpt, layer);
        sum[0] += loss;
        sum[1]++;
    }
    if (weft_all_reduce(trainer->session, sum, sum, 2, WEFT_F64, WEFT_SUM, &request) < 0 ||
        weft_wait(&request, 0) < 0)
        return trainer_fail(trainer, "evaluation");
    *loss_out = sum[0] / sum[1];
    return true;
}

/* FNV-1a over the bits of all masters: equal hashes, equal weights. */
static uint64_t hash_masters(const struct trainer *trainer)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < trainer->gpt.part_count; i++)
        for (uint64_t k = 0; k < trainer->gpt.parts[i].count; k++) {
            uint32_t bits;
            memcpy(&bits, &trainer->gpt.parts[i].master[k], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
    return hash;
}

static bool train(struct trainer *trainer)
{
    const struct gpt_options *options = &trainer->options;
    const double began = trainer_seconds();
    double loss = 0, held_out = 0;
    for (uint64_t step = weft_step_next(trainer->session); step <= options->stop; step++) {
        if (!trainer_step(trainer, step, &loss)) return false;
        if (step % options->every && step != options->stop) continue;
        if (!evaluate(trainer, &held_out)) return false;
        if (trainer->rank == 0)
            printf("step %5" PRIu64 ": loss %.4f, held-out loss %.6f, %.1f s\n", step, loss, held_out,
                   trainer_seconds() - began);
        fflush(stdout);
        if (options->checkpoint && !checkpoint_save(trainer)) return false;
    }
    return true;
}

static bool finish(struct trainer *trainer)
{
    struct weft_stats stats = {.size = sizeof stats};
    if (weft_step_wait(trainer->session) < 0) return trainer_fail(trainer, "step_wait");
    if (weft_stats_get(trainer->session, &stats) < 0) return trainer_fail(trainer, "statistics");
    if (trainer->rank == 0)
        printf("%u ranks, %.1f MB sent by rank 0, network time exposed %.1f %% of step_begin to step_end\n",
               trainer->ranks, 1e-6 * (double)stats.sent_bytes,
               stats.step_ns ? 100 * (double)stats.exposed_network_ns / (double)stats.step_ns : 0);
    printf("rank %u: weights %016" PRIx64 "\n", trainer->rank, hash_masters(trainer));
    return true;
}

static void leave(struct trainer *trainer)
{
    weft_finalize(trainer->session); /* waits for results, and frees masters and gradients */
    gpt_free(&trainer->gpt);
    text_free(&trainer->text);
    free(trainer->batch);
}

int main(int argc, char **argv)
{
    static struct trainer trainer;
    const int answer = gpt_options_parse(&trainer.options, argc, argv);
    if (answer != 0) return answer - 1;
    openblas_set_num_threads(1); /* one core per rank */
    const bool well = prepare(&trainer) && begin(&trainer) &&
                      (trainer.options.measure ? measure_run(&trainer) : train(&trainer)) && finish(&trainer);
    leave(&trainer);
    return well ? 0 : 1;
}
