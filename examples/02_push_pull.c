/* 02_push_pull.c - trains a model of one tensor: every worker moves the weights towards its own target.
 *
 *     weft run -s 1 -n 2 -- build/examples/02_push_pull       through a parameter-server shard
 *     weft run -s 0 -n 2 -- build/examples/02_push_pull       the same lines, as an all-reduce
 *
 * Shows: the optimiser is an option of the tensor. weft_push_pull returns the new weights, equal on all
 * workers. The loss of worker r is |w - r|^2 / 2, its gradient w - r. The mean loss is smallest at the mean
 * of the ranks, where the weights converge. */
#include <math.h>
#include <stdio.h>
#include <weft/weft.h>

static int fail(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    weft_finalize(session);
    return 1;
}

int main(void)
{
    struct weft_session *session = NULL;
    if (weft_init(NULL, &session) < 0) return fail(NULL, "joining the job");
    uint32_t rank = weft_rank(session), ranks = weft_ranks(session);

    enum { ROWS = 32, COLS = 16, COUNT = ROWS * COLS, STEPS = 60 };
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
    if (weft_tensor_init(tensor, weights) < 0) return fail(session, "first weights");

    for (uint64_t step = 1; step <= STEPS; step++) {
        if (weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.2f, .weight = 1}) < 0)
            return fail(session, "step");
        for (int i = 0; i < COUNT; i++) grad[i] = weights[i] - (float)rank;
        struct weft_request request = {{0}};
        if (weft_push_pull(tensor, grad, weights, &request) < 0) return fail(session, "push_pull");
        if (weft_wait(&request, 0) < 0) return fail(session, "push_pull");
        if (weft_step_end(session) < 0) return fail(session, "step");
        if (rank == 0 && step % 10 == 0)
            printf("step %2d: weight 0 is %.6f\n", (int)step, (double)weights[0]);
    }
    float best = (float)(ranks - 1) / 2;
    int status = fabsf(weights[COUNT - 1] - best) < 1e-2f ? 0 : 1;
    printf("rank %u: %s shards the weights went to %.4f (best: %.4f)\n", rank,
           weft_shards(session) ? "through" : "without", (double)weights[COUNT - 1], (double)best);
    weft_free(session, weights);
    weft_free(session, grad);
    weft_finalize(session);
    return status;
}
