/* program_0_1.c - built against weft-0.1/: what a program of that release relies on. Every struct that the
 * library fills is followed by bytes that must stay. Run by `weft run -n 2`, with shards or without. */
#include <stdio.h>
#include <string.h>

#include <weft/weft.h>

enum { COUNT = 1000 };
#define GUARDED(type) struct { type it; unsigned char guard[256]; }

static int wrong;

static void expect(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        wrong = 1;
    }
}

static void work(struct weft_session *session, enum weft_status status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "%s: %s: %s\n", what, weft_status_name(status), weft_error_text(session));
    wrong = 1;
}

static bool untouched(const unsigned char *guard)
{
    for (int i = 0; i < 256; i++)
        if (guard[i] != 0xa5) return false;
    return true;
}

static float weights[COUNT], grad[COUNT];

static struct weft_tensor *declare(struct weft_session *session)
{
    GUARDED(struct weft_tensor_options) options;
    struct weft_tensor *tensor = NULL;
    memset(&options, 0xa5, sizeof options);
    weft_tensor_options_init(&options.it);
    expect(untouched(options.guard), "weft_tensor_options_init wrote behind its struct");
    expect(options.it.size == sizeof options.it, "weft_tensor_options_init gave another size");
    options.it.name = "w";
    options.it.dim_count = 1;
    options.it.dims[0] = COUNT;
    options.it.optimizer = "sgd";
    work(session, weft_declare(session, &options.it, &tensor), "declare");
    return tensor;
}

static void train(struct weft_session *session, struct weft_tensor *tensor)
{
    struct weft_request request = {{0}};
    work(session, weft_tensor_init(tensor, weights), "tensor_init");
    for (uint64_t step = 1; step <= 2; step++) {
        for (int i = 0; i < COUNT; i++) grad[i] = 1;
        work(session, weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.5f, .weight = 1}),
             "step_begin");
        work(session, weft_push_pull(tensor, grad, weights, &request), "push_pull");
        work(session, weft_wait(&request, 0), "wait");
        work(session, weft_step_end(session), "step_end");
        expect(weights[0] == -0.5f * (float)step && weights[COUNT - 1] == weights[0],
               "the weights are not those of the step");
    }
}

static void sum(struct weft_session *session)
{
    struct weft_request request = {{0}};
    int32_t value = (int32_t)weft_rank(session) + 1,
            total = (int32_t)(weft_ranks(session) * (weft_ranks(session) + 1) / 2);
    work(session,
         weft_call_start(session,
                         WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = &value, .out = &value, .count = 1,
                                   .dtype = WEFT_I32),
                         &request),
         "call");
    work(session, weft_wait(&request, 0), "wait");
    expect(value == total, "all_reduce is not the sum");
}

static void ask(struct weft_session *session, struct weft_tensor *tensor)
{
    GUARDED(struct weft_stats) stats;
    GUARDED(struct weft_choice) choice;
    memset(&stats, 0xa5, sizeof stats);
    memset(&choice, 0xa5, sizeof choice);
    stats.it.size = sizeof stats.it;
    choice.it.size = sizeof choice.it;
    work(session, weft_stats_get(session, &stats.it), "stats_get");
    work(session, weft_choice_get(tensor, &choice.it), "choice_get");
    expect(untouched(stats.guard) && untouched(choice.guard), "a struct was written behind its end");
    expect(stats.it.steps == 2 && stats.it.size == sizeof stats.it, "stats are not those of two steps");
    expect(strcmp(choice.it.codec, "dense") == 0, "the codec is not dense");
}

int main(void)
{
    GUARDED(struct weft_options) options;
    struct weft_session *session = NULL;
    memset(&options, 0xa5, sizeof options);
    weft_options_init(&options.it);
    expect(untouched(options.guard), "weft_options_init wrote behind its struct");
    if (weft_init(&options.it, &session) < 0) {
        fprintf(stderr, "init: %s\n", weft_error_text(NULL));
        return 1;
    }
    struct weft_tensor *tensor = declare(session);
    if (tensor) train(session, tensor);
    sum(session);
    if (tensor) ask(session, tensor);
    work(NULL, weft_finalize(session), "finalize");
    return wrong;
}
