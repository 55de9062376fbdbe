/* test_subjects.c - in all-reduce mode an operation belongs to its tensor: ranks that push tensors of one
 * shape in different orders get the mean of each. Ranks that leave out different ones get WEFT_ERR_MISMATCH
 * with the names of tensors and ranks. */
#include "tests/lib/check.h"

#include <math.h>
#include <string.h>

#include "tests/client/crowd.h"

enum { SIDE = 64, COUNT = SIDE * SIDE, TENSORS = 2 };
enum way { SWAPPED, LEFT_OUT, OTHER_LEFT_OUT, SWAPPED_TOGETHER };

struct subject_case {
    const char *codec;
    enum way way;
    bool waits; /* for each tensor, before step_end */
};

static const char *const codecs[] = {"dense",
                                     "bf16",
                                     "f16",
                                     "int8",
                                     "int4",
                                     "e4m3",
                                     "e5m2",
                                     "sign",
                                     "powersgd:rank=2",
                                     "topk:ratio=0.05,min_count=0",
                                     "randomk:ratio=0.05,min_count=0",
                                     "auto"};

static void declare(struct crowd *crowd, struct weft_session *session, struct weft_tensor **tensors)
{
    const struct subject_case *now = crowd->user;
    for (int t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = t == 0 ? "left" : "right";
        options.dim_count = 2;
        options.dims[0] = options.dims[1] = SIDE;
        options.codec = now->codec;
        options.mode = WEFT_MODE_ALL_REDUCE;
        CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[t]));
    }
}

/* Returns the tensor that this rank pushes as its k-th; -1: none. */
static int pushed(enum way way, uint32_t rank, int k)
{
    if (way == OTHER_LEFT_OUT) return k == 0 ? (int)rank : -1;
    if (way == LEFT_OUT) return rank == 1 ? (k == 0 ? 1 : -1) : k;
    return rank == 1 ? 1 - k : k;
}

static bool names_both(const char *text, enum way way)
{
    if (!strstr(text, "rank 1") || (!strstr(text, "rank 0") && !strstr(text, "rank 2"))) return false;
    if (way == SWAPPED_TOGETHER) return strstr(text, "put together") != NULL;
    if (way == LEFT_OUT) return strstr(text, "'left'") != NULL; /* rank 1 is in step_end */
    return strstr(text, "'left'") && strstr(text, "'right'");
}

/* Lossy codecs keep at least the sign and the order of magnitude of a constant gradient. */
static bool are_means(float (*mean)[COUNT])
{
    bool right = true;
    for (int i = 0; i < COUNT; i += 97)
        right = right && fabsf(mean[0][i]) < 100 && (mean[1][i] == 0 || mean[1][i] > 100);
    return right;
}

static void differ(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grad[CROWD_MAX][TENSORS][COUNT], mean[CROWD_MAX][TENSORS][COUNT];
    const struct subject_case *now = crowd->user;
    struct weft_tensor *tensors[TENSORS] = {NULL};
    struct weft_request requests[TENSORS] = {{{0}}};
    declare(crowd, session, tensors);
    if (!tensors[0] || !tensors[1]) return;
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < COUNT; i++) grad[rank][t][i] = t ? 1000 : 1;
    enum weft_status status = weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1});
    const bool together = now->way == SWAPPED_TOGETHER;
    if (together && status >= 0) status = weft_group_start(session);
    for (int k = 0; k < TENSORS && status >= 0; k++) {
        const int t = pushed(now->way, rank, k);
        if (t >= 0) status = weft_push_pull(tensors[t], grad[rank][t], mean[rank][t], &requests[t]);
    }
    if (together && status >= 0) status = weft_group_end(session);
    for (int t = 0; t < TENSORS && now->waits && status >= 0; t++) status = weft_wait(&requests[t], 0);
    if (status >= 0) status = weft_step_end(session);
    const bool serves = now->way == SWAPPED || together; /* the agreed order */
    crowd_check(crowd, session, status == (serves ? WEFT_OK : WEFT_ERR_MISMATCH), now->codec, __FILE__,
                __LINE__);
    crowd_check(crowd, session,
                serves ? are_means(mean[rank]) : names_both(weft_error_text(session), now->way), now->codec,
                __FILE__, __LINE__);
    pthread_barrier_wait(&crowd->meet); /* no rank leaves before all have the error */
}

static void run_waiting(const char *codec, enum way way, uint32_t workers, bool waits)
{
    struct subject_case now = {codec, way, waits};
    struct crowd crowd = {.user = &now, .deadline_ms = 5000};
    crowd_run(&crowd, workers, differ);
    assert_int_equal(crowd.failures, 0);
}

static void run(const char *codec, enum way way, uint32_t workers)
{
    run_waiting(codec, way, workers, false);
}

static void test_swapped(void **state)
{
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        run_waiting(codecs[c], SWAPPED, 2, c % 2 == 0);
}

static void test_three_ranks(void **state)
{
    run("dense", SWAPPED, 3);
    run("int8", SWAPPED, 3);
}

static void test_left_out(void **state)
{
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c += 4) {
        run_waiting(codecs[c], LEFT_OUT, 2, c % 8 == 0);
        run(codecs[c], OTHER_LEFT_OUT, 2);
    }
}

/* Each rank waits for a tensor that the other one has not pushed. */
static void test_waiting_for_each_other(void **state)
{
    run_waiting("dense", OTHER_LEFT_OUT, 2, true);
}

static void test_put_together(void **state)
{
    run("powersgd:rank=2", SWAPPED_TOGETHER, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swapped),      cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_left_out),     cmocka_unit_test(test_waiting_for_each_other),
        cmocka_unit_test(test_put_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
