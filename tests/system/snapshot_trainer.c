/* snapshot_trainer.c - a trainer for tests of snapshots: every step depends on all weights and on its number.
 *
 *     snapshot_trainer LAST [MILLISECONDS [CODEC [CONSISTENCY]]]     steps weft_step_next .. LAST, each at
 *                                                                    least so long
 *
 * Each step sets a blob with its number and rank. A restored job prints "rank R: blob of step S, rank B" for
 * each blob that its rank reads, those of ranks R, R + ranks, ... At the end it prints
 * "steps FIRST to LAST: HASH", the FNV-1a of the weights of all tensors. The tensor `frozen` moves in step 1
 * only, and `mean` has no optimizer: with a CONSISTENCY it is not declared. SNAPSHOT_TRAINER_AWAITS=STEP:FILE
 * makes it wait for the file after that step. When the job is rolled back it prints "rolled back: SENTENCE",
 * and continues in another session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

struct model {
    const char *name, *optimizer;
    uint64_t count, last_step; /* last_step 0: it moves in every step */
    struct weft_tensor *tensor;
    float *weights, *gradient;
    struct weft_request request;
};

static struct model models[] = {
    {.name = "large", .optimizer = "adam", .count = 300000},
    {.name = "small", .optimizer = "sgd:momentum=0.9", .count = 1001},
    {.name = "frozen", .optimizer = "sgd:momentum=0.9", .count = 5000, .last_step = 1},
    {.name = "mean", .optimizer = "none", .count = 400},
};
static int model_count = sizeof models / sizeof models[0];

static int fail(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    return 1;
}

static int declare(struct weft_session *session, const char *codec, const char *consistency)
{
    for (int m = 0; m < model_count; m++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = models[m].name;
        options.dim_count = 1;
        options.dims[0] = models[m].count;
        options.optimizer = models[m].optimizer;
        options.codec = m == 0 ? codec : "dense";
        options.consistency = consistency;
        if (weft_declare(session, &options, &models[m].tensor) < 0) return fail(session, "declare");
        models[m].weights = calloc(models[m].count, sizeof(float));
        models[m].gradient = calloc(models[m].count, sizeof(float));
        if (!models[m].weights || !models[m].gradient) return 1;
        for (uint64_t i = 0; i < models[m].count; i++) models[m].weights[i] = (float)(i % 97) * 0.01f;
        if (weft_tensor_init(models[m].tensor, models[m].weights) < 0) return fail(session, "init");
    }
    return 0;
}

/* The blobs of the snapshot, those of lost ranks included. */
static int read_blobs(struct weft_session *session)
{
    for (uint32_t rank = weft_rank(session);; rank += weft_ranks(session)) {
        char blob[64] = "";
        uint64_t bytes = sizeof blob - 1, step = 0;
        const enum weft_status status = weft_snapshot_restored_blob(session, rank, blob, &bytes, &step);
        if (status == WEFT_ERR_NOT_FOUND) return 0;
        if (status < 0) return fail(session, "restored_blob");
        printf("rank %u: blob of step %llu, %s\n", weft_rank(session), (unsigned long long)step, blob);
    }
}

static bool moves(const struct model *model, uint64_t step)
{
    return model->last_step == 0 || step <= model->last_step;
}

static int train(struct weft_session *session, uint64_t step, uint32_t milliseconds)
{
    const struct weft_step begun = {.step = step, .lr = 0.01f, .weight = 1};
    if (weft_step_begin(session, &begun) < 0) return fail(session, "step_begin");
    for (int m = 0; m < model_count; m++) {
        struct model *model = &models[m];
        if (!moves(model, step)) continue;
        const float pull = strcmp(model->optimizer, "none") == 0 ? 0 : 1; /* no snapshot has the last mean */
        for (uint64_t i = 0; i < model->count; i++)
            model->gradient[i] =
                pull * model->weights[i] - (float)((i * 31 + step * 7 + weft_rank(session)) % 13);
        if (weft_push_pull(model->tensor, model->gradient, model->weights, &model->request) < 0)
            return fail(session, "push_pull");
    }
    for (int m = 0; m < model_count; m++)
        if (moves(&models[m], step) && weft_wait(&models[m].request, 0) < 0) return fail(session, "wait");
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    if (milliseconds > 0) nanosleep(&pause, NULL);
    char blob[64];
    const int bytes =
        snprintf(blob, sizeof blob, "step %llu, rank %u", (unsigned long long)step, weft_rank(session));
    if (weft_snapshot_blob(session, blob, (uint64_t)bytes) < 0) return fail(session, "snapshot_blob");
    return weft_step_end(session) < 0 ? fail(session, "step_end") : 0;
}

static int await_file(uint64_t step)
{
    enum { POLLS = 3000 };
    const struct timespec pause = {.tv_nsec = 10000000};
    const char *awaited = getenv("SNAPSHOT_TRAINER_AWAITS");
    char *file;
    if (!awaited || strtoull(awaited, &file, 10) != step) return 0;
    for (int poll = 0; poll < POLLS; poll++) {
        if (access(file + 1, F_OK) == 0) return 0;
        nanosleep(&pause, NULL);
    }
    printf("there is no %s after step %llu\n", file + 1, (unsigned long long)step);
    return 1;
}

static uint64_t hash_weights(void)
{
    uint64_t hash = 1469598103934665603u;
    for (int m = 0; m < model_count; m++) {
        const unsigned char *bytes = (const unsigned char *)models[m].weights;
        for (uint64_t i = 0; i < models[m].count * sizeof(float); i++)
            hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}

/* *again_out: the job begins again from a snapshot. */
static int run_session(int argc, char **argv, bool *again_out)
{
    struct weft_session *session = NULL;
    const uint64_t last = strtoull(argv[1], NULL, 10);
    const uint32_t milliseconds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    *again_out = false;
    if (weft_init(NULL, &session) < 0) return fail(NULL, "init");
    const uint64_t first = weft_step_next(session);
    int status = read_blobs(session);
    if (status == 0) status = declare(session, argc > 3 ? argv[3] : "dense", argc > 4 ? argv[4] : "bsp");
    for (uint64_t step = first; status == 0 && step <= last; step++) {
        status = train(session, step, milliseconds);
        if (status == 0) status = await_file(step);
    }
    if (status == 0)
        printf("steps %llu to %llu: %016llx\n", (unsigned long long)first, (unsigned long long)last,
               (unsigned long long)hash_weights());
    *again_out = status != 0 && weft_snapshot_blob(session, "", 0) == WEFT_ERR_ROLLED_BACK;
    if (*again_out) printf("rolled back: %s\n", weft_error_text(session));
    weft_finalize(session);
    for (int m = 0; m < model_count; m++) {
        free(models[m].weights);
        free(models[m].gradient);
        models[m].weights = models[m].gradient = NULL;
    }
    return status;
}

int main(int argc, char **argv)
{
    bool again;
    int status;
    if (argc < 2) return 2;
    if (argc > 4) model_count--;
    do status = run_session(argc, argv, &again);
    while (again);
    return status;
}
