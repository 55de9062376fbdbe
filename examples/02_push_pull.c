/* 02_push_pull.c - trains a model of one tensor: every worker moves the weights towards its own target.
 *
 *     weft run -s 1 -n 2 -- build/examples/02_push_pull       through a parameter-server shard
 *     weft run -s 0 -n 2 -- build/examples/02_push_pull       the same lines, as an all-reduce
 *
 *     weft run -s 1 -n 3 --min-workers 2 --restarts 1 -- ...  workers may be lost and are started again
 *
 * Shows: the optimiser is an option of the tensor. weft_push_pull returns the new weights, equal on all
 * workers. After a loss the other ranks run the step again; new ranks get the weights. The loss of worker r
 * is |w - r|^2 / 2, its gradient w - r. The mean loss is smallest at the mean of the ranks, where the weights
 * converge. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <weft/weft.h>

static int fail(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    weft_finalize(session);
    return 1;
}

enum { ROWS = 32, COLS = 16, COUNT = ROWS * COLS, STEPS = 60 };

/* WEFT_ERR_SHRUNK, WEFT_ERR_GREW: the ranks are others now, run the step again. */
static enum weft_status run_step(struct weft_session *session, struct weft_tensor *tensor, float *weights,
                                 float *grad)
{
    struct weft_step step = {.step = weft_step_next(session), .lr = 0.2f, .weight = 1};
    enum weft_status status = weft_step_begin(session, &step);
    if (status < 0) return status;
    for (int i = 0; i < COUNT; i++) grad[i] = weights[i] - (float)weft_rank(session);
    struct weft_request request = {{0}};
    status = weft_push_pull(tensor, grad, weights, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (status < 0 && status != WEFT_ERR_PEER_LOST) return status;
    return weft_step_end(session); /* after a loss it agrees with the other ranks */
}

/* STEPS steps, and as many after each change of the ranks. */
static enum weft_status train(struct weft_session *session, struct weft_tensor *tensor, float *weights,
                              float *grad)
{
    uint64_t last = weft_step_next(session) - 1 + STEPS;
    bool is_new = weft_newcomer(session), good = false; /* good: a step has ended well since ranks were new */
    enum weft_status status = is_new ? WEFT_OK : weft_tensor_init(tensor, weights);
    while (weft_step_next(session) <= last) {
        /* new ranks, and all until a step is good, get the weights */
        if (is_new && !good) status = weft_tensor_share(tensor, weights, 0);
        /* after a loss weft_step_begin returns what to do */
        if (status >= 0 || status == WEFT_ERR_PEER_LOST) status = run_step(session, tensor, weights, grad);
        if (status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW) {
            if (weft_rank(session) == 0) printf("%s\n", weft_error_text(session));
            if (status == WEFT_ERR_GREW) good = false;
            is_new = true;
            last = weft_step_next(session) - 1 + STEPS;
            status = WEFT_OK;
            continue;
        }
        if (status < 0) return status;
        good = true;
        if (weft_rank(session) == 0 && weft_step_next(session) % 10 == 1)
            printf("step %2d: weight 0 is %.6f\n", (int)weft_step_next(session) - 1, (double)weights[0]);
    }
    return WEFT_OK;
}

int main(void)
{
    struct weft_session *session = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines of progress, also into a file */
    if (weft_init(NULL, &session) < 0) return fail(NULL, "joining the job");

    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = "weights";
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.optimizer = "sgd:momentum=0.5";
    struct weft_tensor *tensor = NULL;
    if (weft_declare(session, &options, &tensor) < 0) return fail(session, "declare");

    float *weights = weft_alloc(session, COUNT * sizeof(float)),
          *grad = weft_alloc(session, COUNT * sizeof(float));
    if (!weights || !grad) return fail(session, "memory");
    for (int i = 0; i < COUNT; i++) weights[i] = 10;
    if (train(session, tensor, weights, grad) < 0) return fail(session, "training");

    float best = (float)(weft_ranks(session) - 1) / 2;
    int status = fabsf(weights[COUNT - 1] - best) < 1e-2f ? 0 : 1;
    printf("rank %u: %s shards the weights went to %.4f (best: %.4f)\n", weft_rank(session),
           weft_shards(session) ? "through" : "without", (double)weights[COUNT - 1], (double)best);
    weft_free(session, weights);
    weft_free(session, grad);
    weft_finalize(session);
    return status;
}
