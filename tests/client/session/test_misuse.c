/* test_misuse.c - wrong calls, and sessions that fail: a status, a sentence, and no hang. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "tests/client/crowd.h"

static void options_of(struct weft_tensor_options *options, const char *name, uint64_t elems)
{
    weft_tensor_options_init(options);
    options->name = name;
    options->dim_count = 1;
    options->dims[0] = elems;
}

/* ---- a wrong call changes nothing: later calls work ---- */

static void wrong_declarations(struct crowd *crowd, struct weft_session *session)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
#define REFUSE(change, status, words)                                                             \
    do {                                                                                          \
        options_of(&options, "x", 10);                                                            \
        change;                                                                                   \
        CROWD_REFUSED(crowd, session, weft_declare(session, &options, &tensor), status, words);   \
    } while (0)
    REFUSE(options.size = 1, WEFT_ERR_INVALID, "weft_tensor_options_init");
    REFUSE(options.name = NULL, WEFT_ERR_INVALID, "needs a name");
    REFUSE(options.name = "", WEFT_ERR_INVALID, "needs a name");
    REFUSE(options.dim_count = 0, WEFT_ERR_INVALID, "dim_count is 0");
    REFUSE(options.dim_count = 9, WEFT_ERR_INVALID, "dim_count is 9");
    REFUSE(options.dims[0] = 0, WEFT_ERR_INVALID, "must be positive");
    REFUSE(options.dims[0] = UINT64_MAX, WEFT_ERR_INVALID, "must be positive");
    REFUSE(options.dtype = (enum weft_dtype)77, WEFT_ERR_INVALID, "dtype 77");
    REFUSE(options.mode = WEFT_MODE_SERVER, WEFT_ERR_INVALID, "no shards");
    REFUSE(options.mode = (enum weft_mode)9, WEFT_ERR_INVALID, "mode 9");
    REFUSE(options.codec = "zip", WEFT_ERR_INVALID, "zip");
    REFUSE(options.codec = "topk:ratio=7", WEFT_ERR_INVALID, "ratio");
    REFUSE(options.optimizer = "adamantium", WEFT_ERR_INVALID, "adamantium");
    REFUSE(options.chunk_bytes = 3, WEFT_ERR_INVALID, "chunk_bytes is 3");
    REFUSE((options.dtype = WEFT_F16, options.optimizer = "sgd"), WEFT_ERR_UNSUPPORTED,
           "need dtype f32, not f16");
    REFUSE(options.pull_dtype = WEFT_F16, WEFT_ERR_UNSUPPORTED, "it needs server mode");
    REFUSE(options.pull_dtype = (enum weft_dtype)77, WEFT_ERR_INVALID, "pull_dtype is f16 or bf16");
    CROWD_REFUSED(crowd, session, weft_declare(session, NULL, &tensor), WEFT_ERR_INVALID,
                  "weft_tensor_options_init");
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, NULL), WEFT_ERR_INVALID, "tensor_out");
    CROWD_CHECK(crowd, session, tensor == NULL);
#undef REFUSE
}

static void wrong_collectives(struct crowd *crowd, struct weft_session *session)
{
    struct weft_request request = {{0}}, dirty;
    float x[4] = {0};
    memset(&dirty, 0x77, sizeof dirty);
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, NULL, x, 4, WEFT_F32, WEFT_SUM, &request),
                  WEFT_ERR_INVALID, "NULL");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, x, x, 4, (enum weft_dtype)0, WEFT_SUM, &request),
                  WEFT_ERR_INVALID, "dtype 0");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, (enum weft_op)55, &request),
                  WEFT_ERR_INVALID, "op 55");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, x, x, UINT64_MAX, WEFT_F32, WEFT_SUM, &request),
                  WEFT_ERR_INVALID, "memory");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, NULL),
                  WEFT_ERR_INVALID, "request is NULL");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &dirty),
                  WEFT_ERR_INVALID, "zeroed");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, x, 4, WEFT_F32, 99, &request), WEFT_ERR_INVALID,
                  "root 99");
    CROWD_REFUSED(crowd, session, weft_set_plan(session, "warp"), WEFT_ERR_INVALID, "'warp'");
    CROWD_REFUSED(crowd, session, weft_set_plan(session, NULL), WEFT_ERR_INVALID, "plan is NULL");
    CROWD_CHECK(crowd, session, weft_wait(&request, 0) == WEFT_OK);
}

static void wrong_steps(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensor = NULL, *untrained = NULL;
    struct weft_tensor_options options;
    struct weft_request request = {{0}}, other = {{0}};
    struct weft_stats stats = {.size = 5};
    float grad[10] = {0}, weights[10] = {0};
    options_of(&options, "t", 10);
    options.optimizer = "sgd";
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    options.name = "u";
    CROWD_OK(crowd, session, weft_declare(session, &options, &untrained));
    CROWD_OK(crowd, session, weft_tensor_init(tensor, weights));
    CROWD_REFUSED(crowd, session, weft_tensor_init(tensor, weights), WEFT_ERR_STATE, "second time");
    CROWD_REFUSED(crowd, session, weft_tensor_init(untrained, NULL), WEFT_ERR_INVALID, "NULL");
    CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_STATE, "without step_begin");
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, grad, weights, &request), WEFT_ERR_STATE,
                  "outside a step");
    CROWD_REFUSED(crowd, session, weft_step_begin(session, NULL), WEFT_ERR_INVALID, "NULL");
    struct weft_step step = {.step = 1, .lr = 1, .weight = 1};
    step.weight = -1;
    CROWD_REFUSED(crowd, session, weft_step_begin(session, &step), WEFT_ERR_INVALID, "weight is -1");
    step = (struct weft_step){.step = 2, .lr = 1, .weight = 1};
    CROWD_REFUSED(crowd, session, weft_step_begin(session, &step), WEFT_ERR_INVALID, "the next one is 1");
    step.step = 1;
    CROWD_OK(crowd, session, weft_step_begin(session, &step));
    CROWD_REFUSED(crowd, session, weft_step_begin(session, &step), WEFT_ERR_STATE, "still open");
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, &tensor), WEFT_ERR_STATE, "inside step 1");
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, NULL, weights, &request), WEFT_ERR_INVALID, "NULL");
    CROWD_REFUSED(crowd, session, weft_push_pull(untrained, grad, weights, &request), WEFT_ERR_STATE,
                  "weft_tensor_init");
    CROWD_REFUSED(crowd, session, weft_push(tensor, grad, &request), WEFT_ERR_UNSUPPORTED, "use push_pull");
    CROWD_REFUSED(crowd, session, weft_pull(tensor, weights, &request), WEFT_ERR_UNSUPPORTED,
                  "use push_pull");
    CROWD_OK(crowd, session, weft_push_pull(tensor, grad, weights, &request));
    enum weft_status again = weft_push_pull(tensor, grad, weights, &other);
    /* its request is open, or it is the second one in the step: both are wrong */
    CROWD_CHECK(crowd, session, again == WEFT_ERR_STATE);
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_REFUSED(crowd, session, weft_stats_get(session, &stats), WEFT_ERR_INVALID, "stats.size");
}

static void misuse(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[4] = {1, 2, 3, 4};
    wrong_declarations(crowd, session);
    wrong_collectives(crowd, session);
    wrong_steps(crowd, session, rank);
    CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_CHECK(crowd, session, x[3] == 8);
}

static void test_misuse(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, misuse);
    assert_int_equal(crowd.failures, 0);
}

/* ---- jobs that continue without lost ranks, and jobs that do not ---- */

/* A tensor with an optimiser: one rank broadcasts its state between steps. An update can be reverted only
 * in host memory. */
static void elastic_updates(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[2][1000], grad[1000];
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    options_of(&options, "u", 1000);
    options.optimizer = "adam";
    options.mode = WEFT_MODE_ALL_REDUCE;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    for (int i = 0; i < 1000; i++) weights[rank][i] = (float)(rank + 1);
    CROWD_REFUSED(crowd, session, weft_tensor_share(tensor, NULL, 0), WEFT_ERR_INVALID,
                  "tensor_share of tensor 'u': the buffer is NULL");
    CROWD_REFUSED(crowd, session, weft_tensor_share(tensor, weights[rank], 2), WEFT_ERR_INVALID,
                  "root is 2, the ranks are 0 to 1");
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, WEFT_MEMORY_CUDA, NULL));
    CROWD_REFUSED(crowd, session, weft_tensor_share(tensor, weights[rank], 1), WEFT_ERR_UNSUPPORTED,
                  "tensor_share of tensor 'u': its weights must be in host memory");
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, WEFT_MEMORY_HOST, NULL));
    CROWD_OK(crowd, session, weft_tensor_share(tensor, weights[rank], 1));
    CROWD_CHECK(crowd, session, weights[rank][0] == 2 && weights[rank][999] == 2);
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_REFUSED(crowd, session, weft_tensor_share(tensor, weights[rank], 0), WEFT_ERR_STATE,
                  "inside step 1");
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, WEFT_MEMORY_CUDA, NULL));
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, grad, weights[rank], &request), WEFT_ERR_UNSUPPORTED,
                  "its weights must be in host memory");
    CROWD_OK(crowd, session, weft_tensor_memory(tensor, WEFT_MEMORY_HOST, NULL));
    CROWD_OK(crowd, session, weft_push_pull(tensor, grad, weights[rank], &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_step_end(session));
}

static void elastic_refuses(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    uint32_t last;
    options_of(&options, "w", 100000);
    options.mode = WEFT_MODE_SERVER;
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, &tensor), WEFT_ERR_INVALID, "no shards");
    options.mode = WEFT_MODE_ALL_REDUCE;
    /* the refused calls have sent nothing to other ranks */
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    CROWD_REFUSED(crowd, session, weft_state_load(tensor, NULL, 0), WEFT_ERR_UNSUPPORTED,
                  "in an elastic job");
    CROWD_CHECK(crowd, session, weft_shrink(session) == WEFT_OK && !weft_newcomer(session));
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_REFUSED(crowd, session, weft_join(session, 0, &last), WEFT_ERR_STATE, "step 1 is open");
    CROWD_REFUSED(crowd, session, weft_shrink(session), WEFT_ERR_STATE, "step 1 is open");
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void test_elastic_refuses(void **state)
{
    struct crowd crowd = {.workers_min = 1};
    crowd_run(&crowd, 2, elastic_refuses);
    crowd_run(&crowd, 2, elastic_updates);
    assert_int_equal(crowd.failures, 0);
}

static void no_elastic(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    uint32_t last;
    CROWD_REFUSED(crowd, session, weft_join(session, 0, &last), WEFT_ERR_STATE,
                  "only an elastic job continues without a rank");
    CROWD_CHECK(crowd, session, weft_shrink(session) == WEFT_OK && !weft_newcomer(session));
    pthread_barrier_wait(&crowd->meet);
}

static void test_not_elastic(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, no_elastic);
    assert_int_equal(crowd.failures, 0);
}

/* A rank that leaves in order is not lost: the coordinator reports nothing, and nothing waits for a
 * report. */
static void elastic_leaver(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct weft_request kept[3]; /* a wait may end before its operation */
    static float x[3][4];
    struct weft_request *request = &kept[rank];
    CROWD_OK(crowd, session, weft_barrier(session, request));
    CROWD_OK(crowd, session, weft_wait(request, 0));
    pthread_barrier_wait(&crowd->meet); /* the operation has ended on all ranks before one leaves */
    if (rank == 0) return;
    enum weft_status status = weft_all_reduce(session, x[rank], x[rank], 4, WEFT_F32, WEFT_SUM, request);
    CROWD_REFUSED(crowd, session, status < 0 ? status : weft_wait(request, 10000), WEFT_ERR_PEER_LOST,
                  "rank 0");
    CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "left the group") != NULL);
}

static void test_elastic_leaver(void **state)
{
    struct crowd crowd = {.workers_min = 1};
    crowd_run(&crowd, 3, elastic_leaver);
    assert_int_equal(crowd.failures, 0);
}

/* ---- ranks that disagree ---- */

static void different_lr(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    float grad[10] = {0}, weights[10] = {0};
    options_of(&options, "t", 10);
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    CROWD_OK(
        crowd, session,
        weft_step_begin(session, &(struct weft_step){.step = 1, .lr = rank ? 0.5f : 0.25f, .weight = 1}));
    /* may return the mismatch already */
    enum weft_status status = weft_push_pull(tensor, grad, weights, &request);
    CROWD_CHECK(crowd, session, status == WEFT_IN_PROGRESS || status == WEFT_ERR_MISMATCH);
    CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_MISMATCH, "lr 0.5");
    CROWD_CHECK(crowd, session,
                strstr(weft_error_text(session), "lr 0.25") && strstr(weft_error_text(session), "rank "));
    /* the session stays failed */
    CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_MISMATCH, "lr 0.5");
}

static void test_different_lr(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, different_lr);
    assert_int_equal(crowd.failures, 0);
}

static void different_shapes(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    options_of(&options, "fc1", rank == 0 ? 10 : 11);
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, &tensor), WEFT_ERR_MISMATCH, "fc1");
    CROWD_CHECK(crowd, session, tensor == NULL && strstr(weft_error_text(session), "rank "));
}

static void test_different_shapes(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, different_shapes);
    assert_int_equal(crowd.failures, 0);
}

static void different_counts(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[8] = {0};
    CROWD_OK(crowd, session, weft_all_reduce(session, x, x, rank == 0 ? 4 : 5, WEFT_F32, WEFT_SUM, &request));
    CROWD_CHECK(crowd, session, weft_wait(&request, 0) == WEFT_ERR_MISMATCH);
    CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "rank ") != NULL);
    pthread_barrier_wait(&crowd->meet); /* no rank leaves before all have seen it */
}

static void test_different_counts(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, different_counts);
    assert_int_equal(crowd.failures, 0);
}

/* ---- the last operation of a job: no later operation can detect that ranks called it differently ---- */

static void last_broadcast(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[8] = {0};
    const int *const what = crowd->user;
    enum weft_status status = WEFT_OK;
    for (int i = 0; i < 20; i++) { /* after the first few calls, ranks of one host use shared memory */
        CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
    }
    if (*what == 0) status = weft_broadcast(session, x, 4, WEFT_F32, rank, &request);
    else if (*what == 1) status = weft_broadcast(session, x, rank == 0 ? 4 : 3, WEFT_F32, rank, &request);
    else if (*what == 2 && rank == 0) status = weft_broadcast(session, x, 4, WEFT_F32, 0, &request);
    else if (*what == 3) status = weft_broadcast(session, x, 4, WEFT_F32, 0, &request);
    else if (*what == 4 && rank == 0) status = weft_send(session, x, 4, WEFT_F32, 1, &request);
    else if (*what == 5)
        status = rank == 0 ? weft_send(session, x, 4, WEFT_F32, 1, &request)
                           : weft_recv(session, x, 4, WEFT_F32, 0, &request);
    else if (*what == 6) {
        /* rank 0 expects a piece of 1, rank 1 sends 2 */
        static const uint64_t ones[2] = {1, 1}, two_first[2] = {2, 1};
        status = weft_all_to_all_v(session, x, rank == 0 ? ones : two_first, x + 4, ones, WEFT_F32, &request);
    }
    if (status >= 0) status = weft_wait(&request, 0);
    bool found = status < 0;
    status = weft_finalize(session);
    if (status == WEFT_ERR_MISMATCH)
        found = strstr(weft_error_text(NULL), *what == 4   ? "called 1 sends to rank 1"
                                              : *what == 6 ? "the piece from rank 1 to rank 0"
                                                           : "broadcast of 4 f32 from rank 0") != NULL;
    crowd->sessions[rank] = NULL;
    if (found) atomic_fetch_add(&crowd->found, 1);
}

static void test_last_operation(void **state)
{
    static const uint32_t least[] = {1, 1, 1, 0, 1, 0, 1}, most[] = {2, 2, 2, 0, 2, 0, 2};
    for (int what = 0; what < 7; what++) {
        struct crowd crowd = {.user = &what};
        crowd_run(&crowd, 2, last_broadcast);
        assert_int_equal(crowd.failures, 0);
        assert_in_range(crowd.found, least[what], most[what]);
    }
}

/* ---- contents of a mismatch sentence ---- */

struct differing {
    enum weft_status (*call)(struct weft_session *session, uint32_t rank, struct weft_request *request);
    const char *words[2];
};

static _Thread_local float field[64];

static enum weft_status split_by_one(struct weft_session *session, uint32_t rank,
                                     struct weft_request *request)
{
    struct weft_comm *comm;
    return rank == 0 ? weft_split(session, NULL, 0, 0, &comm)
                     : weft_all_reduce(session, field, field, 4, WEFT_F32, WEFT_SUM, request);
}

static enum weft_status mesh_by_one(struct weft_session *session, uint32_t rank, struct weft_request *request)
{
    struct weft_mesh *mesh;
    const struct weft_axis axis = {"dp", 0};
    return rank == 0 ? weft_mesh_create(session, &axis, 1, &mesh) : weft_barrier(session, request);
}

static enum weft_status declare_four(struct weft_session *session, struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    options_of(&options, "t", 4);
    return weft_declare(session, &options, tensor_out);
}

/* The broadcast has the length and root of the tensor's. Only the public call that it belongs to differs. */
static enum weft_status init_by_one(struct weft_session *session, uint32_t rank, struct weft_request *request)
{
    struct weft_tensor *tensor;
    enum weft_status status = declare_four(session, &tensor);
    if (status < 0) return status;
    if (rank == 0) return weft_tensor_init(tensor, field);
    status = weft_broadcast(session, field + 8, 4, WEFT_F32, 0, request);
    if (status >= 0) status = weft_wait(request, 0);
    return status < 0 ? status : weft_barrier(session, request);
}

static enum weft_status share_by_one(struct weft_session *session, uint32_t rank,
                                     struct weft_request *request)
{
    struct weft_tensor *tensor;
    enum weft_status status = declare_four(session, &tensor);
    if (status < 0) return status;
    return rank == 0 ? weft_tensor_share(tensor, field, 1) : weft_barrier(session, request);
}

static enum weft_status two_roots(struct weft_session *session, uint32_t rank, struct weft_request *request)
{
    return weft_reduce(session, field, field + 8 * (rank + 1), 4, WEFT_F32, WEFT_SUM, rank, request);
}

static enum weft_status two_roots_of_scatter(struct weft_session *session, uint32_t rank,
                                             struct weft_request *request)
{
    return weft_scatter(session, field, field + 16 * (rank + 1), 4, WEFT_F32, 1 - rank, request);
}

static enum weft_status two_counts(struct weft_session *session, uint32_t rank, struct weft_request *request)
{
    return weft_gather(session, field, field + 16, 4 + rank, WEFT_F32, 0, request);
}

static enum weft_status counts_by_one(struct weft_session *session, uint32_t rank,
                                      struct weft_request *request)
{
    static const uint64_t counts[] = {4, 4};
    return rank == 0 ? weft_gather_v(session, field, field + 16, 4, counts, WEFT_F32, 0, request)
                     : weft_gather(session, field, field + 16, 4, WEFT_F32, 0, request);
}

/* One count differs, or two of them. */
static enum weft_status gather_pieces(struct weft_session *session, uint32_t rank,
                                      struct weft_request *request)
{
    static const uint64_t counts[][2] = {{3, 4}, {3, 5}};
    return weft_all_gather_v(session, field, field + 16 * (rank + 1), counts[rank], WEFT_F32, request);
}

static enum weft_status gather_other_pieces(struct weft_session *session, uint32_t rank,
                                            struct weft_request *request)
{
    static const uint64_t counts[][2] = {{3, 4}, {4, 3}};
    return weft_all_gather_v(session, field, field + 16 * (rank + 1), counts[rank], WEFT_F32, request);
}

static enum weft_status scatter_pieces(struct weft_session *session, uint32_t rank,
                                       struct weft_request *request)
{
    static const uint64_t counts[][2] = {{3, 4}, {5, 4}};
    return weft_reduce_scatter_v(session, field, field + 16 * (rank + 1), counts[rank], WEFT_F32, WEFT_SUM,
                                 request);
}

static enum weft_status gather_v_pieces(struct weft_session *session, uint32_t rank,
                                        struct weft_request *request)
{
    static const uint64_t counts[] = {3, 4};
    return weft_gather_v(session, field, field + 16, rank == 0 ? 3 : 5, counts, WEFT_F32, 0, request);
}

static enum weft_status scatter_v_pieces(struct weft_session *session, uint32_t rank,
                                         struct weft_request *request)
{
    static const uint64_t counts[] = {3, 4};
    return weft_scatter_v(session, field, field + 16 * (rank + 1), rank == 0 ? 3 : 5, counts, WEFT_F32, 0,
                          request);
}

static enum weft_status exchanged_pieces(struct weft_session *session, uint32_t rank,
                                         struct weft_request *request)
{
    static const uint64_t to[][2] = {{2, 4}, {3, 2}}, from[][2] = {{2, 3}, {5, 2}};
    return weft_all_to_all_v(session, field, to[rank], field + 16 * (rank + 1), from[rank], WEFT_F32,
                             request);
}

static enum weft_status exchange_by_one(struct weft_session *session, uint32_t rank,
                                        struct weft_request *request)
{
    static const uint64_t counts[] = {2, 2};
    return rank == 0 ? weft_all_to_all_v(session, field, counts, field + 16, counts, WEFT_F32, request)
                     : weft_all_to_all(session, field, field + 32, 2, WEFT_F32, request);
}

static enum weft_status weight_by_one(struct weft_session *session, uint32_t rank,
                                      struct weft_request *request)
{
    return rank == 0 ? weft_all_reduce_weighted(session, field, field, 4, WEFT_F32, 1, request)
                     : weft_all_reduce(session, field, field, 4, WEFT_F32, WEFT_AVG, request);
}

/* Also for an elastic job, whose step_end votes. */
static enum weft_status end_by_one(struct weft_session *session, uint32_t rank, struct weft_request *request)
{
    const enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1});
    if (status < 0) return status;
    return rank == 0 ? weft_step_end(session)
                     : weft_all_reduce(session, field, field + 16, 4, WEFT_F32, WEFT_SUM, request);
}

static void differ(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct differing *differing = crowd->user;
    struct weft_request request = {{0}};
    enum weft_status status = differing->call(session, rank, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    /* a rank that needed no message of the other one detects it here */
    if (status >= 0) status = weft_barrier(session, &request);
    if (status == WEFT_IN_PROGRESS) status = weft_wait(&request, 0);
    const char *text = weft_error_text(session);
    CROWD_CHECK(crowd, session,
                status == WEFT_ERR_MISMATCH && strstr(text, differing->words[0]) &&
                    strstr(text, differing->words[1]));
    pthread_barrier_wait(&crowd->meet);
}

static void test_differing_calls(void **state)
{
    static const struct differing all[] = {
        {split_by_one, {"called split (all_gather", "called all_reduce of 4 f32"}},
        {mesh_by_one, {"called mesh_create", "called barrier"}},
        {init_by_one,
         {"called tensor_init (broadcast of 4 f32 from rank 0)", "called broadcast of 4 f32 from rank 0"}},
        {share_by_one, {"called tensor_share (broadcast", "called barrier"}},
        {two_roots, {"root 0", "root 1"}},
        {two_roots_of_scatter, {"root 0", "root 1"}},
        {two_counts, {"gather of 4 f32", "gather of 5 f32"}},
        {counts_by_one, {"gather of f32 with counts", "gather of 4 f32"}},
        {gather_pieces, {"(4 elements in that piece)", "(5 elements in that piece)"}},
        {gather_pieces, {"the count of rank 1's piece", "called all_gather"}},
        {gather_other_pieces, {"the counts of the pieces", "(counts "}},
        {scatter_pieces, {"the count of rank 0's piece", "(5 elements in that piece)"}},
        {gather_v_pieces, {"the count of rank 1's piece", "sends 5 f32 to rank 0"}},
        {gather_v_pieces, {"gather differs", ", which expects 4"}},
        {scatter_v_pieces, {"the count of rank 1's piece", "sends 4 f32 to rank 1"}},
        {scatter_v_pieces, {"scatter differs", ", which expects 5"}},
        {exchanged_pieces, {"the count of the piece from rank 0 to rank 1", "sends 4 f32 to rank 1"}},
        {exchanged_pieces, {"all_to_all differs", ", which expects 5"}},
        {exchange_by_one, {"called all_to_all of f32 with counts", "called all_to_all of 2 f32"}},
        {end_by_one, {"step_end of an elastic job votes with it", "called all_reduce of 4 f32"}},
        {weight_by_one, {"a weighted all_reduce begins with it", "all_reduce of 4 f32, avg"}},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct differing differing = all[i];
        struct crowd crowd = {.user = &differing, .workers_min = differing.call == end_by_one};
        crowd_run(&crowd, 2, differ);
        assert_int_equal(crowd.failures, 0);
    }
}

/* Operations that cannot complete end after this time. The session has a longer deadline: on a loaded machine
 * the ranks take longer to join. */
enum { OPERATION_DEADLINE_MS = 300 };

/* Both ranks send and none receives: one detects it, the other gets the sentence in a message. A send of that
 * other rank may complete before, since its peer drops what it holds; the next operation then reports. */
static void both_send(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float long_ones[2][600000];
    struct weft_request request = {{0}};
    char itself[2][40];
    enum weft_status status =
        weft_call_start(session,
                        WEFT_CALL(.kind = WEFT_CALL_SEND, .in = long_ones[rank], .count = 600000,
                                  .dtype = WEFT_F32, .root = 1 - rank, .deadline_ms = OPERATION_DEADLINE_MS),
                        &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (status >= 0)
        status = weft_call_start(
            session, WEFT_CALL(.kind = WEFT_CALL_BARRIER, .deadline_ms = OPERATION_DEADLINE_MS), &request);
    if (status == WEFT_IN_PROGRESS) status = weft_wait(&request, 0);
    CROWD_CHECK(crowd, session, status < 0);
    const char *text = weft_error_text(session);
    for (unsigned r = 0; r < 2; r++) {
        snprintf(itself[0], sizeof itself[0], "rank %u: a send", r);
        snprintf(itself[1], sizeof itself[1], "s for rank %u ", r);
        CROWD_CHECK(crowd, session, !(strstr(text, itself[0]) && strstr(text, itself[1])));
    }
    pthread_barrier_wait(&crowd->meet);
}

static void test_waits_for_the_other(void **state)
{
    for (int i = 0; i < 3; i++) { /* either rank may be first */
        struct crowd crowd = {0};
        crowd_run(&crowd, 2, both_send);
        assert_int_equal(crowd.failures, 0);
    }
}

/* ---- waits that end ---- */

static void timeouts(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[4] = {0};
    if (rank == 0) {
        CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request));
        CROWD_REFUSED(crowd, session, weft_wait(&request, 30), WEFT_ERR_DEADLINE, "all_reduce 0");
        CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_IN_PROGRESS);
        CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_BUSY, "still in use");
    }
    pthread_barrier_wait(&crowd->meet);
    if (rank == 1) CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0)); /* it completed later */
}

static void test_wait_timeout(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, timeouts);
    assert_int_equal(crowd.failures, 0);
}

static void late_rank(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[4] = {0};
    if (rank == 0) {
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = x, .out = x, .count = 4,
                                           .dtype = WEFT_F32, .deadline_ms = OPERATION_DEADLINE_MS),
                                 &request));
        CROWD_REFUSED(crowd, session, weft_wait(&request, 0), WEFT_ERR_DEADLINE, "rank");
    }
    pthread_barrier_wait(&crowd->meet);
    if (rank == 1) { /* the message has the reason */
        enum weft_status status = weft_barrier(session, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        CROWD_CHECK(crowd, session,
                    status == WEFT_ERR_DEADLINE && strstr(weft_error_text(session), "rank") != NULL);
    }
}

static void test_deadline_names_the_late(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, late_rank);
    assert_int_equal(crowd.failures, 0);
}

static void *abort_soon(void *context)
{
    struct crowd *crowd = context;
    weft_abort(crowd->sessions[1], "loss is NaN");
    return NULL;
}

static void aborts(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[4] = {0};
    pthread_t thread;
    pthread_barrier_wait(&crowd->meet); /* all ranks have joined */
    if (rank == 1 && pthread_create(&thread, NULL, abort_soon, crowd) == 0) { /* "any thread" */
        pthread_join(thread, NULL);
        CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_ABORTED, "loss is NaN");
        CROWD_CHECK(crowd, session, weft_abort(session, "again") == WEFT_ERR_ABORTED);
    } else {
        enum weft_status status = weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        CROWD_CHECK(crowd, session, status == WEFT_ERR_ABORTED);
        CROWD_CHECK(crowd, session,
                    strstr(weft_error_text(session), "rank 1 aborted the job: loss is NaN") != NULL);
    }
}

static void test_abort(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, aborts);
    assert_int_equal(crowd.failures, 0);
}

/* One rank leaves with an open operation: it gets CLOSED, and the other ranks get its sentence. */
static void leaves_early(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct weft_request abandoned;
    struct weft_request request = {{0}};
    static float x[4], y[5];
    pthread_barrier_wait(&crowd->meet); /* all ranks have joined */
    if (rank == 0) {
        CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &abandoned));
        crowd->user = &abandoned;
    } else {
        enum weft_status status = weft_all_reduce(session, y, y, 5, WEFT_F32, WEFT_SUM, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        CROWD_CHECK(crowd, session, status < 0);
        CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "rank 0") != NULL);
    }
}

static void test_finalize_with_open_requests(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, leaves_early);
    assert_int_equal(crowd.failures, 0);
    assert_true(weft_test(crowd.user) < 0); /* the session is freed; the request still has its status */
}

/* A transport that never releases its buffers: the engine is halted, the requests complete, and
 * weft_finalize works. */
static void halts(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    struct weft_stats stats = {.size = sizeof stats};
    float *x = weft_alloc(session, 400000 * sizeof *x);
    if (rank == 0)
        CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 400000, WEFT_F32, WEFT_SUM, &request));
    pthread_barrier_wait(&crowd->meet);
    if (rank != 0) return;
    /* The engine never runs the command of client_fail: the failure is stored without it. */
    snprintf(session->failure.text, sizeof session->failure.text, "for this test");
    atomic_store(&session->failure.status, WEFT_ERR_ABORTED);
    CROWD_CHECK(crowd, session, client_engine_halt(session));
    CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_ERR_ABORTED);
    memset(&request, 0xee, sizeof request);
    /* Another thread has checked the session before the failure and posts after it. */
    atomic_store(&session->failure.status, WEFT_OK);
    memset(&request, 0, sizeof request);
    CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 400000, WEFT_F32, WEFT_SUM, &request));
    atomic_store(&session->failure.status, WEFT_ERR_ABORTED);
    /* as a wait does after CLIENT_BUFFER_RELEASE_NS */
    CROWD_CHECK(crowd, session, client_engine_halt(session));
    CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_ERR_ABORTED);
    CROWD_OK(crowd, session, weft_stats_get(session, &stats)); /* still works */
}

static void test_halt(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, halts);
    assert_int_equal(crowd.failures, 0);
}

/* ---- fork ---- */

static void forks(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    float x[4] = {0};
    pid_t pid = fork();
    if (pid == 0) {
        bool right = weft_barrier(session, &request) == WEFT_ERR_FORKED &&
                     strstr(weft_error_text(session), "fork") && weft_step_end(session) == WEFT_ERR_FORKED &&
                     weft_abort(session, "x") == WEFT_ERR_FORKED && weft_alloc(session, 10) == NULL &&
                     weft_finalize(session) == WEFT_OK;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CROWD_CHECK(crowd, session, status == 0);
    /* the parent continues */
    CROWD_OK(crowd, session, weft_all_reduce(session, x, x, 4, WEFT_F32, WEFT_SUM, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void test_fork(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, forks);
    assert_int_equal(crowd.failures, 0);
}

/* test_halt leaks a transport on purpose; the leak checker does not find all of UCX's memory. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:ucs_calloc\nleak:ucs_malloc\n"; }

int main(int argc, char **argv) /* [a pattern of test names] */
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    setenv("UCX_MEM_EVENTS", "n", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_different_lr),
        cmocka_unit_test(test_elastic_refuses),
        cmocka_unit_test(test_not_elastic),
        cmocka_unit_test(test_elastic_leaver),
        cmocka_unit_test(test_different_shapes),
        cmocka_unit_test(test_different_counts),
        cmocka_unit_test(test_wait_timeout),
        cmocka_unit_test(test_last_operation),
        cmocka_unit_test(test_differing_calls),
        cmocka_unit_test(test_waits_for_the_other),
        cmocka_unit_test(test_deadline_names_the_late),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_finalize_with_open_requests),
        cmocka_unit_test(test_halt),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
