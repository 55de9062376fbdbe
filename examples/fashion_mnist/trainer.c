/* trainer.c - data-parallel training through weft; the only file here that calls weft.
 *
 * One step:
 *
 *     weft_step_begin
 *       forward, loss
 *       backward of the last layer  -> weft_push_pull of its gradients starts
 *       backward of the layer before, while they are transferred -> weft_push_pull ...
 *     wait for all, weft_step_end      the weights are those of the next step
 *
 * In a job of weft run --min-workers the others run an interrupted step again (changed), and new workers get
 * the weights and the plan (share_state). Two options of the tensors (declare_tensor) select shards or
 * all-reduce, dense or compressed. What must be equal on all workers (when to stop, when to evaluate) is
 * computed from the step number or agreed on, so that no worker waits for one that has left. */
#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/weft.h>

#include "batches.h"
#include "idx.h"
#include "mlp.h"
#include "options.h"
#include "report.h"

enum { LAYERS = 3, TENSORS = 2 * LAYERS, EVAL_BATCH = 500 };

struct tensor {
    struct weft_tensor *weft;
    float *weights, *grad; /* owned, by weft_alloc */
    uint64_t count;
    struct weft_request request;
};

/* What the loop does next. */
struct trainer_due {
    bool stop, evaluate_due; /* after the last step; before the next step */
    bool is_changed, good;   /* ranks were lost or are new; a step has ended well since ranks were new */
};
/* Training time, in seconds. */
struct trainer_clock {
    double seconds;                 /* seconds of training */
    double started;                 /* begin of the training time that `seconds` does not contain yet */
    double seconds_evaluated;       /* `seconds` of the last evaluation */
};
/* Losses since the last evaluation. */
struct trainer_loss {
    double loss_sum;                /* sum of the losses since the last evaluation, and its number of steps;
                                     * mean over this worker's batches */
    uint64_t loss_steps;
};
/* What the workers decide together. */
struct trainer_vote {
    int64_t votes[2];               /* time limit reached; evaluation due: 0 or 1, summed over all workers in
                                     * place */
    struct weft_request vote_request;
};

struct trainer {
    struct trainer_options options;
    struct weft_session *session;
    uint32_t rank, ranks;
    struct dataset train, test;
    struct batches batches;
    struct mlp mlp;
    struct tensor tensors[TENSORS]; /* weights of layer 0, bias of layer 0, weights of layer 1 ... */
    float *x;
    uint8_t *labels;
    uint64_t steps, step;           /* planned steps; completed steps */
    uint64_t images;                /* used by all workers in the completed steps */
    uint32_t eval_every;
    struct trainer_due due;
    struct trainer_clock clock;
    struct trainer_loss loss;
    struct trainer_vote vote;
    struct report report;           /* of rank 0 */
    bool reports;                   /* it is open */
    const char *doing;              /* the call of weft that may fail */
    bool is_explained;              /* the reason of a failure was printed */
    FILE *hashes;
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Prints the sentence of a failed weft call. All of them end the run here. */
static bool fail(struct trainer *trainer, const char *what, enum weft_status status)
{
    const char *text = weft_error_text(trainer->session);
    if (trainer->is_explained) return false;
    if (!text || !*text) text = weft_status_text(status);
    if (trainer->session) {
        fprintf(stderr, "fashion_mnist: rank %u, step %" PRIu64 ", %s: %s\n", trainer->rank,
                trainer->step + 1, what, text);
    } else {
        fprintf(stderr, "fashion_mnist: %s: %s\n", what, text);
    }
    if (trainer->reports) report_abandon(&trainer->report, text);
    return false;
}

#define TRY(trainer, what, call)                                     \
    do {                                                             \
        enum weft_status status_ = (call);                           \
        if (status_ < 0) return fail(trainer, what, status_);        \
    } while (0)

/* The same for a function that returns the status: the caller decides whether the run ends. */
#define PASS(trainer, what, call)          \
    do {                                   \
        (trainer)->doing = (what);         \
        enum weft_status status_ = (call); \
        if (status_ < 0) return status_;   \
    } while (0)

static bool open_report(struct trainer *trainer)
{
    if (trainer->rank != 0 || trainer->reports) return true;
    trainer->reports = report_open(&trainer->report, trainer->options.csv, trainer->options.json);
    if (!trainer->reports) weft_abort(trainer->session, "rank 0 cannot write its report file");
    return trainer->reports;
}

/* ---- changes of the ranks, in a job of weft run --min-workers ---- */

/* Call with the status of a failed call, outside steps. true: ranks were lost or are new; continue. */
static bool changed(struct trainer *trainer, enum weft_status status)
{
    if (status == WEFT_ERR_PEER_LOST) status = weft_shrink(trainer->session);
    if (status != WEFT_ERR_SHRUNK && status != WEFT_ERR_GREW) return fail(trainer, trainer->doing, status);
    trainer->rank = weft_rank(trainer->session);
    trainer->ranks = weft_ranks(trainer->session);
    trainer->step = weft_step_next(trainer->session) - 1;
    trainer->due.is_changed = true;
    if (status == WEFT_ERR_GREW) trainer->due.good = false;
    if (trainer->rank == 0) fprintf(stderr, "fashion_mnist: %s\n", weft_error_text(trainer->session));
    return open_report(trainer);
}

/* Until a step has ended well, all ranks get the weights, and from rank 0 the plan. */
static enum weft_status share_state(struct trainer *trainer)
{
    enum { STEPS, IMAGES, EVAL_EVERY, EVALUATE_DUE, STOP, VALUES };
    int64_t values[VALUES] = {(int64_t)trainer->steps, (int64_t)trainer->images, trainer->eval_every,
                              trainer->due.evaluate_due, trainer->due.stop};
    struct weft_request request = {{0}};
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct tensor *tensor = &trainer->tensors[t];
        PASS(trainer, "the present weights", weft_tensor_share(tensor->weft, tensor->weights, 0));
    }
    PASS(trainer, "the plan", weft_broadcast(trainer->session, values, VALUES, WEFT_I64, 0, &request));
    PASS(trainer, "the plan", weft_wait(&request, 0));
    trainer->steps = (uint64_t)values[STEPS];
    trainer->images = (uint64_t)values[IMAGES];
    trainer->eval_every = (uint32_t)values[EVAL_EVERY];
    trainer->due.evaluate_due = values[EVALUATE_DUE] != 0;
    trainer->due.stop = values[STOP] != 0;
    trainer->step = weft_step_next(trainer->session) - 1;
    return WEFT_OK;
}

/* ---- set-up ---- */

static bool declare_tensor(struct trainer *trainer, uint32_t layer_index, bool bias)
{
    struct mlp_layer *layer = &trainer->mlp.layers[layer_index];
    struct tensor *tensor = &trainer->tensors[2 * layer_index + bias];
    const struct trainer_options *options = &trainer->options;
    char name[32], optimizer[96];
    snprintf(name, sizeof(name), "fc%u.%s", layer_index + 1, bias ? "bias" : "weight");
    snprintf(optimizer, sizeof(optimizer), "sgd:momentum=%g,weight_decay=%g,nesterov=%d", options->momentum,
             options->weight_decay, options->momentum > 0);

    struct weft_tensor_options declared;
    weft_tensor_options_init(&declared);
    declared.name = name;
    declared.dim_count = bias ? 1 : 2;
    declared.dims[0] = layer->out;
    if (!bias) declared.dims[1] = layer->in;
    if (options->mode)
        declared.mode = strcmp(options->mode, "server") == 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    declared.codec = options->codec;
    declared.optimizer = optimizer;
    if (options->chunk_bytes) declared.chunk_bytes = options->chunk_bytes;
    TRY(trainer, name, weft_declare(trainer->session, &declared, &tensor->weft));

    tensor->count = bias ? layer->out : (uint64_t)layer->out * layer->in;
    tensor->weights = weft_alloc(trainer->session, tensor->count * sizeof(float));
    tensor->grad = weft_alloc(trainer->session, tensor->count * sizeof(float));
    if (!tensor->weights || !tensor->grad) return fail(trainer, name, WEFT_ERR_NO_MEMORY);
    if (bias) {
        layer->bias = tensor->weights;
        layer->bias_grad = tensor->grad;
    } else {
        layer->weights = tensor->weights;
        layer->weights_grad = tensor->grad;
    }
    return true;
}

/* Joins the job, declares all tensors and distributes rank 0's first weights. */
static bool join(struct trainer *trainer)
{
    TRY(trainer, "joining the job", weft_init(NULL, &trainer->session));
    trainer->rank = weft_rank(trainer->session);
    trainer->ranks = weft_ranks(trainer->session);
    if (!open_report(trainer)) return false;
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (!declare_tensor(trainer, l, false) || !declare_tensor(trainer, l, true)) return false;
    }
    mlp_init(&trainer->mlp, trainer->options.seed);
    trainer->due.is_changed = weft_newcomer(trainer->session);
    trainer->doing = "first weights";
    for (uint32_t t = 0; t < TENSORS && !trainer->due.is_changed; t++) {
        enum weft_status status = weft_tensor_init(trainer->tensors[t].weft, trainer->tensors[t].weights);
        if (status < 0 && !changed(trainer, status)) return false;
    }
    return true;
}

static bool prepare(struct trainer *trainer)
{
    char error[1400];
    const struct trainer_options *options = &trainer->options;
    if (!dataset_load(&trainer->train, options->data, "train", error, sizeof(error)) ||
        !dataset_load(&trainer->test, options->data, "t10k", error, sizeof(error))) {
        fprintf(stderr, "fashion_mnist: %s\n", error);
        return false;
    }
    uint32_t rows = options->batch > EVAL_BATCH ? options->batch : EVAL_BATCH;
    const uint32_t sizes[LAYERS + 1] = {IMAGE_PIXELS, options->hidden, options->hidden, CLASS_COUNT};
    trainer->x = malloc((size_t)rows * IMAGE_PIXELS * sizeof(float));
    trainer->labels = malloc(rows);
    if (!trainer->x || !trainer->labels || !mlp_create(&trainer->mlp, sizes, LAYERS, rows) ||
        !batches_create(&trainer->batches, &trainer->train, options->seed)) {
        fprintf(stderr, "fashion_mnist: out of memory for a batch of %u images; make --batch smaller\n",
                rows);
        return false;
    }
    return true;
}

/* ---- measuring ---- */

/* FNV-1a over the bits of all weights, eight bytes at a time: equal hashes, equal weights. */
static uint64_t hash_weights(const struct trainer *trainer)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct tensor *tensor = &trainer->tensors[t];
        uint64_t bytes = tensor->count * sizeof(float);
        for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
            uint64_t word;
            memcpy(&word, (const char *)tensor->weights + i, 8);
            hash = (hash ^ word) * 0x100000001b3u;
            hash ^= hash >> 29;
        }
        if (bytes % 8) {
            uint32_t half;
            memcpy(&half, tensor->weights + tensor->count - 1, 4);
            hash = (hash ^ half) * 0x100000001b3u;
        }
    }
    return hash;
}

/* All workers together: each evaluates its part of the test images; an all-reduce sums the counts. */
static enum weft_status evaluate(struct trainer *trainer)
{
    enum { CORRECT, TEST_LOSS, TRAIN_LOSS, SENT, RECEIVED, VALUES };
    const uint32_t count = trainer->test.count;
    uint32_t first = (uint32_t)((uint64_t)count * trainer->rank / trainer->ranks);
    uint32_t end = (uint32_t)((uint64_t)count * (trainer->rank + 1) / trainer->ranks);
    uint64_t correct_all = 0;
    double loss = 0;
    for (uint32_t at = first; at < end; at += EVAL_BATCH) {
        uint32_t piece = end - at < EVAL_BATCH ? end - at : EVAL_BATCH, correct = 0;
        images_fill(&trainer->test, at, piece, trainer->x);
        mlp_forward(&trainer->mlp, trainer->x, piece);
        loss += mlp_loss(&trainer->mlp, trainer->test.labels + at, piece, false, &correct);
        correct_all += correct;
    }
    struct weft_stats stats = {.size = sizeof(stats)};
    PASS(trainer, "statistics", weft_stats_get(trainer->session, &stats));
    double train_loss =
        trainer->loss.loss_steps ? trainer->loss.loss_sum / (double)trainer->loss.loss_steps : 0;
    int64_t values[VALUES] = {(int64_t)correct_all, llround(loss * 1e6), llround(train_loss * 1e6),
                              (int64_t)stats.sent_bytes, (int64_t)stats.received_bytes};
    struct weft_request request = {{0}};
    PASS(trainer, "evaluation",
         weft_all_reduce(trainer->session, values, values, VALUES, WEFT_I64, WEFT_SUM, &request));
    PASS(trainer, "evaluation", weft_wait(&request, 0));

    trainer->loss.loss_sum = 0;
    trainer->loss.loss_steps = 0;
    if (trainer->rank != 0) return WEFT_OK;
    report_add(&trainer->report, &(struct measurement){
                                     .step = trainer->step,
                                     .epoch = (double)trainer->images / trainer->train.count,
                                     .seconds = trainer->clock.seconds,
                                     .sent_bytes = (double)values[SENT] / trainer->ranks,
                                     .received_bytes = (double)values[RECEIVED] / trainer->ranks,
                                     .train_loss = (double)values[TRAIN_LOSS] * 1e-6 / trainer->ranks,
                                     .test_loss = (double)values[TEST_LOSS] * 1e-6 / count,
                                     .accuracy = (double)values[CORRECT] / count,
                                 });
    return WEFT_OK;
}

/* ---- training ---- */

/* Rises linearly during the warm-up, then falls by a half cosine. Depends on the step only: equal on all
 * ranks. */
static float learning_rate(const struct trainer *trainer, uint64_t step)
{
    const struct trainer_options *options = &trainer->options;
    double warm = options->warmup * (double)trainer->steps, at = (double)step;
    if (at < warm) return (float)(options->lr * (at + 1) / (warm + 1));
    double done = warm < (double)trainer->steps ? (at - warm) / ((double)trainer->steps - warm) : 1;
    double share = options->lr_final + (1 - options->lr_final) * 0.5 * (1 + cos(acos(-1.0) * done));
    return (float)(options->lr * share);
}

static enum weft_status start_push_pull(struct trainer *trainer, uint32_t index)
{
    struct tensor *tensor = &trainer->tensors[index];
    PASS(trainer, "push_pull", weft_push_pull(tensor->weft, tensor->grad, tensor->weights, &tensor->request));
    return WEFT_OK;
}

enum { VOTE_STOP, VOTE_EVALUATE, VOTE_COUNT };

/* Clocks differ, so workers vote on what depends on time, and all receive the result in the same step. */
static enum weft_status start_vote(struct trainer *trainer)
{
    const struct trainer_options *options = &trainer->options;
    double seconds = trainer->clock.seconds + (now_seconds() - trainer->clock.started);
    trainer->vote.votes[VOTE_STOP] = options->seconds > 0 && seconds >= options->seconds;
    trainer->vote.votes[VOTE_EVALUATE] =
        options->eval_seconds > 0 && seconds >= trainer->clock.seconds_evaluated + options->eval_seconds;
    PASS(trainer, "vote",
         weft_all_reduce(trainer->session, trainer->vote.votes, trainer->vote.votes, VOTE_COUNT, WEFT_I64,
                         WEFT_SUM, &trainer->vote.vote_request));
    return WEFT_OK;
}

static enum weft_status refuse_loss(struct trainer *trainer)
{
    char text[120];
    snprintf(text, sizeof(text), "the loss of rank %u is not finite in step %" PRIu64 "; make --lr smaller",
             trainer->rank, trainer->step + 1);
    fprintf(stderr, "fashion_mnist: %s\n", text);
    weft_abort(trainer->session, text);
    trainer->is_explained = true;
    return WEFT_ERR_ABORTED;
}

/* The operations of an open step. */
static enum weft_status contribute(struct trainer *trainer, double *loss_out)
{
    const struct trainer_options *options = &trainer->options;
    bool voting = options->seconds > 0 || options->eval_seconds > 0;
    if (voting) PASS(trainer, "vote", start_vote(trainer)); /* overlaps with the forward pass */
    mlp_forward(&trainer->mlp, trainer->x, options->batch);
    double loss = mlp_loss(&trainer->mlp, trainer->labels, options->batch, true, NULL) / options->batch;
    if (!isfinite(loss)) return refuse_loss(trainer);
    *loss_out = loss;
    for (uint32_t l = LAYERS; l-- > 0;) {
        mlp_backward(&trainer->mlp, l, trainer->x, options->batch);
        PASS(trainer, "push_pull", start_push_pull(trainer, 2 * l));
        PASS(trainer, "push_pull", start_push_pull(trainer, 2 * l + 1));
    }
    for (uint32_t t = TENSORS; t-- > 0;)
        PASS(trainer, "push_pull", weft_wait(&trainer->tensors[t].request, 0));
    if (voting) PASS(trainer, "vote", weft_wait(&trainer->vote.vote_request, 0));
    return WEFT_OK;
}

static enum weft_status train_step(struct trainer *trainer)
{
    const struct trainer_options *options = &trainer->options;
    batches_fill(&trainer->batches, trainer->images + (uint64_t)trainer->rank * options->batch,
                 options->batch, trainer->x, trainer->labels);
    struct weft_step step = {
        .step = trainer->step + 1, .lr = learning_rate(trainer, trainer->step), .weight = 1};
    double loss = 0;
    PASS(trainer, "step_begin", weft_step_begin(trainer->session, &step));
    enum weft_status status = contribute(trainer, &loss);
    if (status < 0 && status != WEFT_ERR_PEER_LOST) return status;
    if (status == WEFT_OK) trainer->doing = "step_end";
    status = weft_step_end(trainer->session); /* after a loss it agrees with the other ranks */
    if (status < 0) return status;
    trainer->loss.loss_sum += loss;
    trainer->loss.loss_steps++;
    trainer->step++;
    trainer->images += (uint64_t)options->batch * trainer->ranks;
    trainer->due.good = true;
    if (trainer->rank == 0)
        report_progress(&trainer->report, trainer->step, trainer->steps, trainer->clock.seconds, loss);
    return WEFT_OK;
}

static void write_hash(struct trainer *trainer)
{
    double before = now_seconds();
    fprintf(trainer->hashes, "%" PRIu64 " %016" PRIx64 "\n", trainer->step, hash_weights(trainer));
    trainer->clock.started += now_seconds() - before;
}

/* An evaluation, if that is due, else a step. */
static enum weft_status advance(struct trainer *trainer)
{
    const struct trainer_options *options = &trainer->options;
    if (trainer->due.is_changed && !trainer->due.good) PASS(trainer, trainer->doing, share_state(trainer));
    if (trainer->due.evaluate_due) {
        double now = now_seconds();
        trainer->clock.seconds += now - trainer->clock.started;
        trainer->clock.started = now;
        trainer->clock.seconds_evaluated = trainer->clock.seconds;
        PASS(trainer, "evaluation", evaluate(trainer));
        trainer->due.evaluate_due = false;
        trainer->clock.started = now_seconds();
        return WEFT_OK;
    }
    PASS(trainer, "step", train_step(trainer));
    if (trainer->hashes) write_hash(trainer);
    trainer->due.stop = trainer->vote.votes[VOTE_STOP] > 0 || trainer->step == trainer->steps;
    trainer->due.evaluate_due =
        trainer->due.stop || (options->eval_seconds > 0 ? trainer->vote.votes[VOTE_EVALUATE] > 0
                                                    : trainer->step % trainer->eval_every == 0);
    return WEFT_OK;
}

/* Runs steps, with evaluations in between, until the plan or the time is complete. */
static bool train(struct trainer *trainer)
{
    const struct trainer_options *options = &trainer->options;
    double images = options->epochs * trainer->train.count;
    uint64_t images_per_step = (uint64_t)options->batch * trainer->ranks;
    trainer->steps = options->steps ? options->steps : (uint64_t)(images / (double)images_per_step);
    if (trainer->steps == 0) trainer->steps = 1;
    trainer->eval_every = options->eval_every ? options->eval_every
                                              : (uint32_t)(trainer->train.count / images_per_step / 4 + 1);
    trainer->due.evaluate_due = true;
    trainer->clock.started = now_seconds();
    while (!trainer->due.stop || trainer->due.evaluate_due) {
        enum weft_status status = advance(trainer);
        if (status < 0 && !changed(trainer, status)) return false;
    }
    return true;
}

static bool summarise_tensors(struct trainer *trainer, struct tensor_summary *summaries)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_choice choice = {.size = sizeof(choice)};
        TRY(trainer, "the choice of codecs", weft_choice_get(trainer->tensors[t].weft, &choice));
        summaries[t] = (struct tensor_summary){
            .chosen = choice.candidates > 0, .since_step = choice.since_step, .changes = choice.changes,
            .saved_bytes = (double)choice.saved_bytes, .saved_seconds = 1e-9 * (double)choice.saved_ns,
        };
        snprintf(summaries[t].name, sizeof(summaries[t].name), "fc%u.%s", t / 2 + 1,
                 t % 2 ? "bias" : "weight");
        snprintf(summaries[t].codec, sizeof(summaries[t].codec), "%s", choice.codec);
    }
    return true;
}

/* *equal_out: all workers have these weights. */
static enum weft_status compare_weights(struct trainer *trainer, int64_t own, bool *equal_out)
{
    int64_t *hashes = calloc(trainer->ranks, sizeof(*hashes));
    trainer->doing = "comparing the weights";
    if (!hashes) return WEFT_ERR_NO_MEMORY;
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_gather(trainer->session, &own, hashes, 1, WEFT_I64, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    *equal_out = true;
    for (uint32_t r = 0; r < trainer->ranks; r++) *equal_out = *equal_out && hashes[r] == own;
    free(hashes);
    return status;
}

/* Compares the workers' weights, then prints and writes the summary. */
static bool finish(struct trainer *trainer)
{
    int64_t own = (int64_t)hash_weights(trainer);
    bool equal;
    enum weft_status status;
    while ((status = compare_weights(trainer, own, &equal)) < 0)
        if (!changed(trainer, status)) return false;
    if (!equal)
        fprintf(stderr, "fashion_mnist: rank %u: the workers ended with different weights\n", trainer->rank);
    if (trainer->rank != 0) return equal;

    struct tensor_summary tensors[TENSORS];
    if (!summarise_tensors(trainer, tensors)) return false;
    struct weft_stats stats = {.size = sizeof(stats)};
    TRY(trainer, "statistics", weft_stats_get(trainer->session, &stats));
    const struct trainer_options *options = &trainer->options;
    uint32_t shards = weft_shards(trainer->session);
    double images = (double)trainer->images;
    struct summary summary = {
        .mode = options->mode ? options->mode
                : shards > 0  ? "server"
                              : "all_reduce",
        .codec = options->codec,
        .workers = trainer->ranks,
        .shards = shards,
        .batch = options->batch,
        .seed = options->seed,
        .steps = trainer->step,
        .steps_planned = trainer->steps,
        .seconds = trainer->clock.seconds,
        .images_per_second = trainer->clock.seconds > 0 ? images / trainer->clock.seconds : 0,
        .exposed_share = stats.step_ns ? (double)stats.exposed_ns / (double)stats.step_ns : 0,
        .weight_hash = (uint64_t)own,
        .tensors = tensors,
        .tensor_count = TENSORS,
    };
    return report_close(&trainer->report, &summary) && equal;
}

static void leave(struct trainer *trainer)
{
    for (uint32_t t = 0; trainer->session && t < TENSORS; t++) {
        weft_free(trainer->session, trainer->tensors[t].weights);
        weft_free(trainer->session, trainer->tensors[t].grad);
    }
    weft_finalize(trainer->session);
    if (trainer->hashes) fclose(trainer->hashes);
    mlp_free(&trainer->mlp);
    batches_free(&trainer->batches);
    dataset_free(&trainer->train);
    dataset_free(&trainer->test);
    free(trainer->x);
    free(trainer->labels);
}

static bool open_hashes(struct trainer *trainer)
{
    if (!trainer->options.hash_steps) return true;
    char path[1024];
    snprintf(path, sizeof(path), "%s.%u", trainer->options.hash_steps, trainer->rank);
    trainer->hashes = fopen(path, "w");
    if (!trainer->hashes) {
        fprintf(stderr, "fashion_mnist: cannot write %s\n", path);
        weft_abort(trainer->session, "a worker cannot write its file of hashes");
    }
    return trainer->hashes != NULL;
}

int main(int argc, char **argv)
{
    static struct trainer trainer;
    int answer = trainer_options_parse(&trainer.options, argc, argv);
    if (answer != 0) return answer - 1;
    openblas_set_num_threads(1); /* one core per worker: the job decides how many workers a host has */

    bool fine =
        prepare(&trainer) && join(&trainer) && open_hashes(&trainer) && train(&trainer) && finish(&trainer);
    leave(&trainer);
    return fine ? 0 : 1;
}
