/* freed.c - a worker for tests/system: an elastic job that declares, uses and frees a tensor again and again,
 * while a rank is killed inside weft_tensor_free and a new one joins.
 *
 *     freed KILL_RANK DELAY_US RANKS MODE
 *
 * MODE is "reduce" or "server". A cycle has four phases: declare "again"; a step of "kept" and "again"; free
 * "again"; a step of "kept". In cycle 3 rank KILL_RANK kills itself DELAY_US after it has called
 * weft_tensor_free, and does nothing after the call. From cycle 5 on the ranks wait until there are RANKS
 * ranks, and run three more cycles. A new rank receives cycle and phase from rank 0, so it knows which
 * tensors are left. Gradients are 1, so the weights of "kept" are minus the number of steps.
 *
 * Every rank prints "freed: RANK of RANKS, cycles N, lost L". lost: calls of weft_tensor_free to repeat. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

enum { COUNT = 5000, KILL_CYCLE = 3, FIRST_CYCLES = 5, MORE_CYCLES = 3 };
enum phase { DECLARE, USE, FREE, CONTINUE };

struct job {
    struct weft_session *session;
    struct weft_tensor *kept, *again;
    enum weft_mode mode;
    int64_t at[2];    /* cycle, enum phase */
    int64_t delay_us; /* before this rank kills itself; -1: it does not */
    bool take;        /* ranks are new: rank 0's state is due */
    unsigned lost;
};

static float kept_weights[COUNT], again_sum[COUNT], ones[COUNT];

static void die(const struct job *job, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(job->session));
    exit(1);
}

static struct weft_tensor *declare(struct job *job, const char *name, uint64_t elems, const char *codec,
                                   const char *optimizer)
{
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = elems;
    options.codec = codec;
    options.optimizer = optimizer;
    options.mode = job->mode;
    const enum weft_status status = weft_declare(job->session, &options, &tensor);
    if (status == WEFT_ERR_PEER_LOST && strstr(weft_error_text(job->session), "nothing was declared"))
        return NULL; /* a new rank waits, and all ranks get this status */
    if (status < 0) die(job, "declare");
    return tensor;
}

static uint64_t again_elems(const struct job *job)
{
    return COUNT - 16u * ((uint64_t)job->at[0] % 64);
}

/* The tensor of a cycle has its length and its codec. */
static void declare_again(struct job *job)
{
    job->again = declare(job, "again", again_elems(job), job->at[0] % 2 ? "bf16" : "dense", "none");
}

/* A new rank declares the tensors that are left. */
static void take_state(struct job *job)
{
    const bool is_new = !job->kept;
    struct weft_request request = {{0}};
    enum weft_status status = weft_broadcast(job->session, job->at, 2, WEFT_I64, 0, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (is_new && status >= 0) {
        job->kept = declare(job, "kept", COUNT, "dense", "sgd");
        if (job->at[1] == USE || job->at[1] == FREE) declare_again(job);
    }
    if (status >= 0) status = weft_tensor_share(job->kept, kept_weights, 0);
    if (status < 0 && status != WEFT_ERR_PEER_LOST) die(job, "take_state");
    job->take = status < 0;
}

/* WEFT_OK: the step has ended well. Else it is to be repeated. */
static enum weft_status step(struct job *job, struct weft_tensor *again)
{
    struct weft_request requests[2] = {{{0}}};
    enum weft_status status = weft_step_begin(
        job->session, &(struct weft_step){.step = weft_step_next(job->session), .lr = 1, .weight = 1});
    if (status == WEFT_OK) {
        if (weft_push_pull(job->kept, ones, kept_weights, &requests[0]) < 0) die(job, "push_pull of kept");
        if (again && weft_push_pull(again, ones, again_sum, &requests[1]) < 0) die(job, "push_pull of again");
        status = weft_step_end(job->session);
    }
    if (status == WEFT_ERR_GREW) job->take = true;
    if (status < 0 && status != WEFT_ERR_GREW && status != WEFT_ERR_SHRUNK) die(job, "step");
    return status;
}

static void *kill_this(void *context)
{
    const struct job *job = context;
    usleep((useconds_t)job->delay_us);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* On the membership that continues. */
static enum weft_status agree(struct job *job)
{
    const enum weft_status status = weft_shrink(job->session);
    if (status != WEFT_ERR_SHRUNK && status != WEFT_ERR_GREW) die(job, "shrink");
    job->take = status == WEFT_ERR_GREW;
    return status;
}

static enum weft_status free_again(struct job *job)
{
    pthread_t thread;
    const bool dies = job->delay_us >= 0 && job->at[0] == KILL_CYCLE;
    if (dies && pthread_create(&thread, NULL, kill_this, job) != 0) exit(2);
    enum weft_status status = weft_tensor_free(job->again);
    while (dies) pause();
    if (status == WEFT_OK) job->again = NULL;
    if (status == WEFT_OK) return status;
    if (status != WEFT_ERR_PEER_LOST) die(job, "free");
    fprintf(stderr, "free: %s\n", weft_error_text(job->session));
    job->lost++;
    return agree(job);
}

static enum weft_status run_phase(struct job *job)
{
    switch ((enum phase)job->at[1]) {
    case DECLARE: declare_again(job); return job->again ? WEFT_OK : agree(job);
    case USE: {
        const enum weft_status status = step(job, job->again);
        for (uint64_t i = 0; status == WEFT_OK && i < again_elems(job); i++)
            if (again_sum[i] != 1) die(job, "the mean of ones is not 1");
        return status;
    }
    case FREE: return free_again(job);
    case CONTINUE: return step(job, NULL);
    }
    return WEFT_OK;
}

static void run(struct job *job, uint32_t ranks)
{
    int64_t end = INT64_MAX;
    while (job->at[0] < end) {
        if (job->take) take_state(job);
        if (job->at[1] == DECLARE && end == INT64_MAX && job->at[0] >= FIRST_CYCLES &&
            weft_ranks(job->session) == ranks)
            end = job->at[0] + MORE_CYCLES;
        if (run_phase(job) != WEFT_OK) continue;
        if (job->at[1] == CONTINUE) job->at[0]++;
        job->at[1] = (job->at[1] + 1) % (CONTINUE + 1);
    }
}

int main(int argc, char **argv)
{
    static struct job job = {.delay_us = -1};
    if (argc != 5) return 2;
    const unsigned killed = (unsigned)atoi(argv[1]);
    job.mode = strcmp(argv[4], "server") == 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    if (weft_init(NULL, &job.session) < 0) die(&job, "init");
    job.take = weft_newcomer(job.session);
    if (!job.take) {
        if (weft_rank(job.session) == killed) job.delay_us = atoi(argv[2]);
        job.kept = declare(&job, "kept", COUNT, "dense", "sgd");
        if (weft_tensor_init(job.kept, kept_weights) < 0) die(&job, "tensor_init");
    }
    run(&job, (uint32_t)atoi(argv[3]));
    const float expected = -(float)(weft_step_next(job.session) - 1);
    for (int i = 0; i < COUNT; i++)
        if (kept_weights[i] != expected) die(&job, "a weight is not minus the number of steps");
    if (weft_tensor_free(job.kept) < 0) die(&job, "free of kept");
    printf("freed: %u of %u, cycles %lld, lost %u\n", weft_rank(job.session), weft_ranks(job.session),
           (long long)job.at[0], job.lost);
    return weft_finalize(job.session) == WEFT_OK ? 0 : 1;
}
