/* test_checkpoint.c - checkpoints of the state, with real shards: a saved job continues bit for bit, on
 * another number of shards and in the other mode; on another number of ranks the mean of a shard's residual
 * is kept; without a place for a residual the next gradients take it; damaged bytes change nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"

enum { ROWS = 40, COLS = 60, ELEMS = ROWS * COLS, STEPS = 3, RANKS = 2, SAVED_MAX = 1 << 16 };

static const struct plan {
    const char *codec, *optimizer;
    enum weft_mode mode;
} plans[] = {
    {"dense", "adam:weight_decay=0.01", WEFT_MODE_SERVER},
    {"dense", "sgd:momentum=0.9", WEFT_MODE_SERVER},
    {"dense", "none", WEFT_MODE_SERVER},
    {"topk:ratio=0.05,global=1,min_count=0", "none", WEFT_MODE_SERVER},
    {"topk:ratio=0.05,global=1,min_count=0", "sgd:momentum=0.9", WEFT_MODE_SERVER},
    {"powersgd:rank=2", "adamw", WEFT_MODE_SERVER},
    {"auto:int8:min_count=0", "adagrad", WEFT_MODE_SERVER},
    {"dense", "ftrl:l1=0.05", WEFT_MODE_ALL_REDUCE},
    {"int8:min_count=0", "adamw", WEFT_MODE_SERVER},
    {"e4m3:min_count=0", "sgd:momentum=0.9", WEFT_MODE_SERVER},
    {"bf16", "adagrad", WEFT_MODE_SERVER},
};
static uint64_t chunk_bytes = 2000; /* five chunks, of a codec ten */
enum { TENSORS = sizeof plans / sizeof plans[0], GLOBAL = 3, ADAM = 0, AUTO = 6 };

struct saved {
    uint64_t bytes;
    uint8_t data[SAVED_MAX];
};
static struct shared { /* shared by all processes of all jobs */
    struct saved state[TENSORS], residual[RANKS][TENSORS];
    float weights[TENSORS][ELEMS], wanted[TENSORS][ELEMS], got[TENSORS][ELEMS];
} * shared;

#define HOLDS(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            return 1;                                                               \
        }                                                                           \
    } while (0)
#define REFUSED(session, call, status_, words)                                                        \
    do {                                                                                              \
        enum weft_status got_ = (call);                                                               \
        if (got_ != (status_) || !strstr(weft_error_text(session), words)) {                          \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, weft_status_name(got_), \
                    weft_error_text(session));                                                        \
            return 1;                                                                                 \
        }                                                                                             \
    } while (0)

struct trainee {
    struct weft_session *session;
    struct weft_tensor *tensor[TENSORS];
    float grad[TENSORS][ELEMS], out[TENSORS][ELEMS];
};

static int declare(struct weft_session *session, const char *name, const struct plan *plan,
                   struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.codec = plan->codec;
    options.optimizer = plan->optimizer;
    options.mode = plan->mode;
    options.chunk_bytes = chunk_bytes;
    MUST(session, weft_declare(session, &options, tensor_out));
    return 0;
}

static int join(struct fleet *fleet, uint32_t rank, struct trainee **trainee_out)
{
    static struct trainee trainee;
    if (fleet_join(fleet, rank, 20000, &trainee.session) != 0) return 1;
    *trainee_out = &trainee;
    return 0;
}

static int declare_all(struct trainee *trainee)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[8];
        snprintf(name, sizeof name, "t%u", t);
        if (declare(trainee->session, name, &plans[t], &trainee->tensor[t]) != 0) return 1;
    }
    return 0;
}

static bool updates(uint32_t t)
{
    return strcmp(plans[t].optimizer, "none") != 0;
}

static int init_all(struct trainee *trainee, bool again)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint32_t i = 0; i < ELEMS; i++)
            trainee->out[t][i] = again ? shared->weights[t][i] : mode_pseudo(7, t, i);
        if (updates(t)) MUST(trainee->session, weft_tensor_init(trainee->tensor[t], trainee->out[t]));
    }
    return 0;
}

/* STEPS steps from the session's next one on; gradients depend on (rank, step, tensor). */
static int train(struct trainee *trainee, uint32_t rank)
{
    struct weft_session *session = trainee->session;
    const uint64_t first = weft_step_next(session);
    for (uint64_t step = first; step < first + STEPS; step++) {
        struct weft_request requests[TENSORS] = {{{0}}};
        MUST(session, weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.05f, .weight = 1}));
        for (uint32_t t = 0; t < TENSORS; t++) {
            for (uint32_t i = 0; i < ELEMS; i++)
                trainee->grad[t][i] = mode_pseudo(rank, (uint32_t)step * TENSORS + t, i);
            MUST(session,
                 weft_push_pull(trainee->tensor[t], trainee->grad[t], trainee->out[t], &requests[t]));
        }
        MUST(session, weft_step_end(session));
    }
    return 0;
}

static int save_state(struct trainee *trainee, uint32_t t, struct saved *to)
{
    to->bytes = weft_state_bytes(trainee->tensor[t]);
    HOLDS(to->bytes <= SAVED_MAX);
    MUST(trainee->session, weft_state_save(trainee->tensor[t], to->data, to->bytes));
    return 0;
}

/* Rank 0's buffer only, at an address that is not aligned for floats. */
static enum weft_status load_state(struct weft_tensor *tensor, uint32_t rank, const struct saved *from,
                                   uint64_t bytes)
{
    static uint8_t unaligned[SAVED_MAX + 1];
    if (rank > 0) return weft_state_load(tensor, NULL, 0);
    memcpy(unaligned + 1, from->data, bytes);
    return weft_state_load(tensor, unaligned + 1, bytes);
}

static int meet(struct trainee *trainee)
{
    struct weft_request met = {{0}};
    MUST(trainee->session, weft_barrier(trainee->session, &met));
    MUST(trainee->session, weft_wait(&met, 0));
    return 0;
}

/* ---- bit for bit ---- */

static int first_job(struct fleet *fleet, uint32_t rank)
{
    static struct saved other;
    struct trainee *trainee;
    if (join(fleet, rank, &trainee) || declare_all(trainee) || init_all(trainee, false) ||
        train(trainee, rank))
        return 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct saved *to = &shared->residual[rank][t];
        to->bytes = weft_residual_bytes(trainee->tensor[t]);
        HOLDS(to->bytes <= SAVED_MAX);
        MUST(trainee->session, weft_residual_save(trainee->tensor[t], to->data, to->bytes));
        if (rank == 0 && save_state(trainee, t, &shared->state[t]) != 0) return 1;
        if (rank == 0) memcpy(shared->weights[t], trainee->out[t], sizeof shared->weights[t]);
    }
    if (meet(trainee) != 0) return 1;
    for (uint32_t t = 0; t < TENSORS && rank == 1; t++) { /* every rank saves the same bytes */
        if (save_state(trainee, t, &other) != 0) return 1;
        HOLDS(other.bytes == shared->state[t].bytes &&
              memcmp(other.data, shared->state[t].data, other.bytes) == 0);
    }
    REFUSED(trainee->session, weft_state_save(trainee->tensor[0], other.data, 12), WEFT_ERR_INVALID,
            "weft_state_bytes");
    if (train(trainee, rank) != 0) return 1;
    if (rank == 0) memcpy(shared->wanted, trainee->out, sizeof shared->wanted);
    weft_finalize(trainee->session);
    return 0;
}

static int second_job(struct fleet *fleet, uint32_t rank)
{
    static struct saved again;
    struct trainee *trainee;
    if (join(fleet, rank, &trainee) || declare_all(trainee) || init_all(trainee, true)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct saved *mine = &shared->residual[rank][t], *all = &shared->state[t];
        MUST(trainee->session, weft_residual_load(trainee->tensor[t], mine->data, mine->bytes));
        MUST(trainee->session, load_state(trainee->tensor[t], rank, all, all->bytes));
        HOLDS(weft_step_next(trainee->session) == STEPS + 1);
        if (save_state(trainee, t, &again) != 0) return 1;
        HOLDS(again.bytes == all->bytes && memcmp(again.data, all->data, all->bytes) == 0);
    }
    if (train(trainee, rank) != 0) return 1;
    if (rank == 0) memcpy(shared->got, trainee->out, sizeof shared->got);
    REFUSED(trainee->session, weft_state_load(trainee->tensor[0], NULL, 0), WEFT_ERR_STATE,
            "before the first step");
    weft_finalize(trainee->session);
    return 0;
}

static void run(uint32_t workers, uint32_t shards, fleet_worker_fn fn)
{
    struct fleet_result result;
    assert_true(fleet_run(workers, shards, fn, &result, NULL));
    for (uint32_t i = 0; i < shards; i++) assert_int_equal(result.shard_status[i], 0);
}

/* Saved by a job that has every tensor in one chunk. */
static void test_goes_on(void **state)
{
    chunk_bytes = 1 << 20;
    run(RANKS, 1, first_job);
    chunk_bytes = 2000;
    for (uint32_t t = 0; t < TENSORS; t++)
        assert_memory_not_equal(shared->weights[t], shared->wanted[t], sizeof shared->wanted[t]);
    run(RANKS, 2, second_job);
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (t == AUTO) continue; /* its codec may change with any step */
        print_message("%s, %s\n", plans[t].codec, plans[t].optimizer);
        assert_memory_equal(shared->got[t], shared->wanted[t], sizeof shared->wanted[t]);
    }
}

/* ---- another job ---- */

enum { HEAD = 56 };

static float saved_float(const struct saved *saved, uint32_t i)
{
    float value;
    memcpy(&value, saved->data + HEAD + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* Gradients of zeros: the results are the residual, as a mean over the present ranks. */
static int check_residual_returns(struct trainee *trainee, struct weft_tensor *const *tensors, uint32_t count)
{
    struct weft_request requests[TENSORS] = {{{0}}};
    const uint64_t step = weft_step_next(trainee->session);
    MUST(trainee->session,
         weft_step_begin(trainee->session, &(struct weft_step){.step = step, .lr = 0.05f, .weight = 1}));
    for (uint32_t t = 0; t < count; t++) {
        memset(trainee->grad[t], 0, sizeof trainee->grad[t]);
        MUST(trainee->session, weft_push_pull(tensors[t], trainee->grad[t], trainee->out[t], &requests[t]));
    }
    MUST(trainee->session, weft_step_end(trainee->session));
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t i = 0; i < ELEMS; i++) {
            const float mean = saved_float(&shared->state[GLOBAL], i) / RANKS;
            HOLDS(fabsf(trainee->out[t][i] - mean) <= 1e-6f * fabsf(mean));
        }
    return 0;
}

/* The same tensor; one without a shard's residual, in both modes; one whose k is all elements; and arrays
 * that change the mode. */
static int other_job(struct fleet *fleet, uint32_t rank)
{
    static struct saved again;
    static const struct plan homeless[] = {
        {"dense", "none", WEFT_MODE_SERVER},
        {"dense", "none", WEFT_MODE_ALL_REDUCE},
        {"topk:ratio=0.05,global=1,min_count=0", "none", WEFT_MODE_ALL_REDUCE},
        {"topk:ratio=1,global=1,min_count=0", "none", WEFT_MODE_SERVER}};
    static const struct plan adam = {"dense", "adam", WEFT_MODE_ALL_REDUCE};
    struct weft_tensor *tensors[4], *moments;
    struct trainee *trainee;
    double most = 0;
    if (join(fleet, rank, &trainee) ||
        declare(trainee->session, "same", &plans[GLOBAL], &trainee->tensor[GLOBAL]))
        return 1;
    const struct saved *from = &shared->state[GLOBAL];
    MUST(trainee->session, load_state(trainee->tensor[GLOBAL], rank, from, from->bytes));
    if (save_state(trainee, GLOBAL, &again) != 0) return 1;
    for (uint32_t i = 0; i < ELEMS; i++) {
        HOLDS(saved_float(&again, i) == saved_float(from, i) * (float)(fleet->workers / (double)RANKS));
        most = fmax(most, fabs((double)saved_float(from, i)));
    }
    HOLDS(most > 0);
    for (uint32_t t = 0; t < 4; t++) {
        char name[8];
        snprintf(name, sizeof name, "h%u", t);
        if (declare(trainee->session, name, &homeless[t], &tensors[t]) != 0) return 1;
        MUST(trainee->session, load_state(tensors[t], rank, from, from->bytes));
    }
    if (declare(trainee->session, "moments", &adam, &moments) != 0) return 1;
    MUST(trainee->session, load_state(moments, rank, &shared->state[ADAM], shared->state[ADAM].bytes));
    HOLDS(memcmp(moments->arrays.states[1], shared->state[ADAM].data + HEAD + moments->bytes,
                 moments->bytes) == 0);
    /* the third sends a twentieth of it, equal on every rank */
    struct weft_tensor *const whole[] = {tensors[0], tensors[1], tensors[3]};
    if (check_residual_returns(trainee, whole, 3) != 0) return 1;
    HOLDS(tensors[2]->arrays.carry && !tensors[0]->arrays.carry && !tensors[1]->arrays.carry);
    weft_finalize(trainee->session);
    return 0;
}

static void test_other_ranks_and_modes(void **state)
{
    run(3, 2, other_job);
    run(1, 1, other_job);
}

/* ---- damaged ---- */

static int refused(struct trainee *trainee, uint32_t rank, uint32_t t, const struct saved *bad,
                   uint64_t bytes, const char *words)
{
    REFUSED(trainee->session, load_state(trainee->tensor[t], rank, bad, bytes), WEFT_ERR_MALFORMED,
            rank == 0 ? words : "rank 0");
    HOLDS(strstr(weft_error_text(trainee->session), "nothing was changed"));
    return 0;
}

static void seal(struct saved *bad)
{
    const uint64_t digest = weft_weight_hash(bad->data, bad->bytes - 8);
    memcpy(bad->data + bad->bytes - 8, &digest, 8);
}

static int refusals(struct fleet *fleet, uint32_t rank)
{
    static struct saved bad, before, after;
    static const uint32_t wrong[] = {0, 8, 12, 16, 24, 32, 36, 40, 55, HEAD, HEAD + 4001};
    struct trainee *trainee;
    if (join(fleet, rank, &trainee) || declare_all(trainee)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (save_state(trainee, t, &before) != 0) return 1;
        bad = shared->state[t];
        if (refused(trainee, rank, t, &bad, 20, "fewer bytes") ||
            refused(trainee, rank, t, &bad, bad.bytes - 1,
                    bad.bytes > HEAD + 8 ? "cut short" : "fewer bytes"))
            return 1;
        for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0] && wrong[i] < bad.bytes; i++) {
            bad.data[wrong[i]] ^= 0x41;
            if (refused(trainee, rank, t, &bad, bad.bytes, "state_load of tensor") != 0) return 1;
            bad.data[wrong[i]] ^= 0x41;
        }
        if (bad.bytes > HEAD + 8) { /* NaN, with a valid hash */
            memset(bad.data + HEAD + 400, 0xff, 4);
            seal(&bad);
            if (refused(trainee, rank, t, &bad, bad.bytes, "not finite") != 0) return 1;
        }
        bad = shared->state[t];
        memset(bad.data + 12, 0, 4); /* zero ranks, with a valid hash: the mean would divide by zero */
        seal(&bad);
        if (refused(trainee, rank, t, &bad, bad.bytes, "its head is damaged") != 0) return 1;
        bad = shared->state[t];
        memset(bad.data + 24, 0xff, 8); /* the largest step */
        seal(&bad);
        if (refused(trainee, rank, t, &bad, bad.bytes, "its head is damaged") != 0) return 1;
        if (t != ADAM && refused(trainee, rank, t, &shared->state[ADAM], shared->state[ADAM].bytes,
                                 "arrays of optimiser 'adam'") != 0)
            return 1;
        if (save_state(trainee, t, &after) != 0) return 1;
        HOLDS(memcmp(before.data, after.data, before.bytes) == 0);
    }
    bad = shared->state[ADAM];
    bad.data[24] ^= 1; /* the step */
    seal(&bad);
    MUST(trainee->session, load_state(trainee->tensor[ADAM], rank, &bad, bad.bytes));
    if (refused(trainee, rank, ADAM, &shared->state[ADAM], shared->state[ADAM].bytes, "another step") != 0)
        return 1;
    HOLDS(weft_state_bytes(NULL) == 0 && weft_state_load(NULL, bad.data, 1) == WEFT_ERR_INVALID);
    weft_finalize(trainee->session);
    return 0;
}

/* A shard of an older release, by its roster entry: no rank sends it a request or waits for it. State that
 * shards do not hold needs no shard. */
static int older_shard(struct fleet *fleet, uint32_t rank)
{
    static struct saved saved;
    struct trainee *trainee;
    if (join(fleet, rank, &trainee) || declare_all(trainee)) return 1;
    for (uint32_t i = 0; i < trainee->session->membership.member_count; i++) {
        struct client_member *member = &trainee->session->membership.members[i];
        HOLDS(member->has_state_messages == member->is_shard);
        if (member->is_shard && member->index == 1) member->has_state_messages = false;
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        saved.bytes = weft_state_bytes(trainee->tensor[t]);
        HOLDS(saved.bytes <= SAVED_MAX);
        if (plans[t].mode == WEFT_MODE_ALL_REDUCE || t == AUTO || saved.bytes == HEAD + 8) {
            MUST(trainee->session, weft_state_save(trainee->tensor[t], saved.data, saved.bytes));
            MUST(trainee->session, load_state(trainee->tensor[t], rank, &saved, saved.bytes));
            continue;
        }
        REFUSED(trainee->session, weft_state_save(trainee->tensor[t], saved.data, saved.bytes),
                WEFT_ERR_VERSION, "shard 1");
        REFUSED(trainee->session, load_state(trainee->tensor[t], rank, &saved, saved.bytes), WEFT_ERR_VERSION,
                "use one release");
    }
    weft_finalize(trainee->session);
    return 0;
}

/* Rank 0 fails while it installs: the state is incomplete, so no rank may report that nothing was changed. */
static int installs_to_go = -1; /* of this process; below 0: no failure */
enum weft_status __real_client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                                  float *out, struct weft_request *request);
enum weft_status __wrap_client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                                  float *out, struct weft_request *request);
enum weft_status __wrap_client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                                  float *out, struct weft_request *request)
{
    if (in && installs_to_go >= 0 && installs_to_go-- == 0)
        return client_error(tensor->session, WEFT_ERR_LIMIT, "no more today");
    return __real_client_tensor_start_state(tensor, part, in, out, request);
}

static int half_installed(struct fleet *fleet, uint32_t rank)
{
    static struct saved saved;
    struct trainee *trainee;
    if (join(fleet, rank, &trainee) || declare_all(trainee) || save_state(trainee, ADAM, &saved) != 0 ||
        meet(trainee) != 0)
        return 1;
    if (rank == 0) installs_to_go = 1;
    REFUSED(trainee->session, load_state(trainee->tensor[ADAM], rank, &saved, saved.bytes), WEFT_ERR_LIMIT,
            "rank 0 has installed only a part");
    HOLDS(!strstr(weft_error_text(trainee->session), "nothing was changed"));
    if (rank == 0) HOLDS(strstr(weft_error_text(trainee->session), "no more today"));
    weft_finalize(trainee->session);
    return 0;
}

static void test_half_installed(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(2, 1, half_installed, &result, NULL)); /* the shard reports that the job has
                                                                  * failed */
}

static void test_older_shard(void **state)
{
    run(2, 2, older_shard);
}

static void test_refusals(void **state)
{
    run(2, 1, refusals);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goes_on),
                                       cmocka_unit_test(test_other_ranks_and_modes),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_older_shard),
                                       cmocka_unit_test(test_half_installed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
