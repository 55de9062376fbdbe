/* leaver.c - a worker for tests/system: the highest rank has less data than the others and leaves in order,
 * with shards.
 *
 *     leaver push_pull | push | part | idle  CODEC  [DEADLINE_MS]
 *
 * All ranks run two steps on two tensors. Then the highest rank leaves; in "part" it pushes one tensor of the
 * third step first; in "idle" it waits in weft_step_end of the third step instead. The other ranks run the
 * third step with the named call and print "ended STATUS after MS ms: SENTENCE". In "part" a rank may get the
 * failure while it ends the second step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "../now_ms.h"

enum { TENSORS = 2, ROWS = 64, COLUMNS = 64 };

static float grad[TENSORS][ROWS * COLUMNS], weights[TENSORS][ROWS * COLUMNS];

static void must(struct weft_session *session, enum weft_status status)
{
    if (status >= 0) return;
    fprintf(stderr, "before the third step: %s\n", weft_error_text(session));
    exit(1);
}

static enum weft_status step(struct weft_session *session, struct weft_tensor **tensors, const char *kind,
                             uint64_t number)
{
    struct weft_request request[TENSORS] = {{{0}}};
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = number, .lr = 1, .weight = 1});
    for (int t = 0; t < TENSORS && status >= 0; t++) {
        if (number > 2 && strcmp(kind, "push") == 0) status = weft_push(tensors[t], grad[t], &request[t]);
        else status = weft_push_pull(tensors[t], grad[t], weights[t], &request[t]);
    }
    for (int t = 0; t < TENSORS && status >= 0; t++) status = weft_wait(&request[t], 0);
    enum weft_status ended = weft_step_end(session);
    return status < 0 ? status : ended;
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    struct weft_tensor *tensors[TENSORS];
    struct weft_options options;
    weft_options_init(&options);
    if (argc > 3) options.deadline_ms = strtoull(argv[3], NULL, 10);
    if (argc < 3 || weft_init(&options, &session) < 0)
        return fprintf(stderr, "%s\n", weft_error_text(NULL)), 1;
    for (int t = 0; t < TENSORS; t++) {
        struct weft_tensor_options tensor;
        weft_tensor_options_init(&tensor);
        tensor.name = t ? "bias" : "kernel";
        tensor.codec = argv[2];
        tensor.dim_count = 2;
        tensor.dims[0] = ROWS;
        tensor.dims[1] = COLUMNS;
        must(session, weft_declare(session, &tensor, &tensors[t]));
        for (int i = 0; i < ROWS * COLUMNS; i++) grad[t][i] = (float)(i % 7) + 1;
    }
    enum weft_status status = WEFT_OK;
    uint64_t before = 0;
    const bool leaves = weft_rank(session) == weft_ranks(session) - 1;
    for (uint64_t number = 1; number <= (leaves ? 2 : 3) && status >= 0; number++) {
        before = now_ms();
        status = step(session, tensors, argv[1], number);
    }
    if (leaves) {
        must(session, status);
        struct weft_request request = {{0}};
        if (strcmp(argv[1], "idle") == 0) {
            must(session, weft_step_begin(session, &(struct weft_step){.step = 3, .lr = 1, .weight = 1}));
            (void)weft_step_end(session);
        }
        if (strcmp(argv[1], "part") == 0) {
            must(session, weft_step_begin(session, &(struct weft_step){.step = 3, .lr = 1, .weight = 1}));
            must(session, weft_push_pull(tensors[0], grad[0], weights[0], &request));
        }
        weft_finalize(session);
        return 0;
    }
    printf("ended %s after %llu ms: %s\n", weft_status_name(status), (unsigned long long)(now_ms() - before),
           weft_error_text(session));
    weft_finalize(session);
    return 0;
}
