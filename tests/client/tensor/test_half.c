/* test_half.c - tensors of f16 and bf16 through shards, and results that the shards round (pull_dtype).
 *
 * Each tensor has a twin of f32, which gets the widened gradients: its results, rounded to nearest even, are
 * the tensor's, bit for bit, with sample weights, a loss scale, clip_norm, skipped steps and push_none. The
 * rounding is arithmetic of this file. The mean is also compared with f64: it differs by half a unit in the
 * last place of the dtype, and by the sum's rounding in f32. A second job continues from a checkpoint. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "client/tensor/tensor.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"

enum { ELEMS = 3001, WORKERS = 3, SHARDS = 2, SAVED_MAX = 64 << 10 };

static const struct plan {
    const char *name, *optimizer;
    enum weft_dtype dtype, pull_dtype; /* pull_dtype 0: as dtype */
} plans[] = {
    {"momentum", "sgd:momentum=0.9,weight_decay=0.01", WEFT_BF16, 0},
    {"moments", "adam", WEFT_F16, 0},
    {"mean", "none", WEFT_BF16, 0},
    {"small mean", "none", WEFT_F16, 0},
    {"pulled", "adamw", WEFT_F32, WEFT_BF16},
    {"pulled mean", "none", WEFT_F32, WEFT_F16},
    {"sum", "sum", WEFT_BF16, 0},
    {"small sum", "sum", WEFT_F16, 0},
};
enum { TENSORS = sizeof plans / sizeof plans[0] };
/* steps of the first job; the checkpoint is saved before the last one */
enum { PLAIN = 1, WEIGHTED, SCALED, CLIPPED, SKIPPED, NONE, LAST };

static struct shared { /* by all processes of both jobs */
    uint8_t state[TENSORS][SAVED_MAX], weights[TENSORS][ELEMS * 4], wanted[TENSORS][ELEMS * 4];
    uint64_t state_bytes[TENSORS];
} * shared;

struct trainee {
    struct weft_session *session;
    uint32_t rank;
    struct weft_tensor *tensor[TENSORS], *twin[TENSORS];
    struct weft_request request[2 * TENSORS];
    uint8_t grad[TENSORS][ELEMS * 4], out[TENSORS][ELEMS * 4];
    float twin_grad[TENSORS][ELEMS], twin_out[TENSORS][ELEMS];
};

/* ---- numbers ---- */

static int precision(enum weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 11 : 8;
}

static float rounded(enum weft_dtype dtype, float value)
{
    const int least = dtype == WEFT_F16 ? -14 : -126;
    if (dtype == WEFT_F32 || value == 0) return value;
    const int exponent = ilogbf(value) > least ? ilogbf(value) : least,
              unit = exponent - precision(dtype) + 1;
    return ldexpf(rintf(ldexpf(value, -unit)), unit);
}

static float value_at(enum weft_dtype dtype, const uint8_t *array, uint32_t i)
{
    float value;
    uint16_t bits;
    if (dtype == WEFT_F32) {
        memcpy(&value, array + 4 * i, 4);
        return value;
    }
    memcpy(&bits, array + 2 * i, 2);
    const uint32_t wide = (uint32_t)bits << 16;
    if (dtype == WEFT_BF16) {
        memcpy(&value, &wide, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    value = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -value : value;
}

/* `value` is a number of the dtype. */
static void put(enum weft_dtype dtype, uint8_t *array, uint32_t i, float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    uint16_t bits = (uint16_t)(wide >> 16);
    if (dtype == WEFT_F32) memcpy(array + 4 * i, &value, 4);
    if (dtype == WEFT_F16) {
        const float size = fabsf(value);
        const int exponent = size < ldexpf(1, -14) ? -15 : ilogbf(size);
        bits = (uint16_t)(exponent == -15 ? ldexpf(size, 24) : ldexpf(size, 10 - exponent) - 1024);
        bits |= (uint16_t)((exponent + 15) << 10 | (signbit(value) ? 0x8000 : 0));
    }
    if (dtype != WEFT_F32) memcpy(array + 2 * i, &bits, 2);
}

static bool updates_weights(const struct plan *plan)
{
    return strcmp(plan->optimizer, "none") != 0 && strcmp(plan->optimizer, "sum") != 0;
}

static enum weft_dtype result_dtype(const struct plan *plan)
{
    return plan->pull_dtype ? plan->pull_dtype : plan->dtype;
}

/* ---- one job ---- */

static int declare(struct trainee *trainee, const struct plan *plan, bool is_twin, struct weft_tensor **out)
{
    struct weft_tensor_options options;
    char name[64];
    snprintf(name, sizeof name, "%s%s", plan->name, is_twin ? " of f32" : "");
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = ELEMS;
    options.mode = WEFT_MODE_SERVER;
    options.codec = "dense";
    options.optimizer = plan->optimizer;
    options.chunk_bytes = 4096;
    options.dtype = is_twin ? WEFT_F32 : plan->dtype;
    if (!is_twin) options.pull_dtype = plan->pull_dtype;
    MUST(trainee->session, weft_declare(trainee->session, &options, out));
    return 0;
}

static int begin(struct trainee *trainee, bool continues)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct plan *plan = &plans[t];
        if (declare(trainee, plan, false, &trainee->tensor[t])) return 1;
        if (declare(trainee, plan, true, &trainee->twin[t])) return 1;
        for (uint32_t i = 0; i < ELEMS; i++) {
            const float first = rounded(plan->dtype, mode_pseudo(7, 0, i));
            trainee->twin_out[t][i] = first;
            put(plan->dtype, trainee->out[t], i, trainee->rank == 0 ? first : -1);
        }
        if (continues && trainee->rank == 0) memcpy(trainee->out[t], shared->weights[t], ELEMS * 4);
        if (!updates_weights(plan)) continue;
        MUST(trainee->session, weft_tensor_init(trainee->tensor[t], trainee->out[t]));
        MUST(trainee->session, weft_tensor_init(trainee->twin[t], trainee->twin_out[t]));
    }
    return 0;
}

static float weight_of(uint32_t rank, uint32_t step)
{
    return step == WEIGHTED || step == CLIPPED ? 0.3f + 0.7f * (float)rank : 1.0f;
}

static float scale_of(uint32_t step)
{
    return step == SCALED || step == LAST ? 512 : 1;
}

static void make_gradients(struct trainee *trainee, uint32_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint32_t i = 0; i < ELEMS; i++) {
            const float value =
                rounded(plans[t].dtype, mode_pseudo(trainee->rank + 9 * t, step, i) * scale_of(step));
            trainee->twin_grad[t][i] = value;
            put(plans[t].dtype, trainee->grad[t], i, value);
        }
    }
}

static int push(struct trainee *trainee, uint32_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (step == NONE && trainee->rank == 1) {
            MUST(trainee->session, weft_push_none(trainee->tensor[t]));
            MUST(trainee->session, weft_push_none(trainee->twin[t]));
            continue;
        }
        MUST(trainee->session,
             weft_push_pull(trainee->tensor[t], trainee->grad[t], trainee->out[t], &trainee->request[2 * t]));
        MUST(trainee->session, weft_push_pull(trainee->twin[t], trainee->twin_grad[t], trainee->twin_out[t],
                                              &trainee->request[2 * t + 1]));
    }
    return 0;
}

static int differs(const struct trainee *trainee, const char *what, uint32_t t, uint32_t step, uint32_t i,
                   double got, double wanted)
{
    fprintf(stderr, "rank %u step %u tensor '%s' element %u: %s %.9g, not %.9g\n", trainee->rank, step,
            plans[t].name, i, what, got, wanted);
    return 1;
}

static int check_results(struct trainee *trainee, uint32_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct plan *plan = &plans[t];
        const bool updates = updates_weights(plan);
        if (!updates && (step == SKIPPED || (step == NONE && trainee->rank == 1))) continue;
        for (uint32_t i = 0; i < ELEMS; i++) {
            const float got = value_at(plan->dtype, trainee->out[t], i),
                        wanted = rounded(result_dtype(plan), trainee->twin_out[t][i]);
            if (memcmp(&got, &wanted, 4) != 0)
                return differs(trainee, "the result is", t, step, i, (double)got, (double)wanted);
        }
    }
    return 0;
}

/* Of the mean or sum, with the weights of all ranks. */
static int check_means(struct trainee *trainee, uint32_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (updates_weights(&plans[t])) continue;
        for (uint32_t i = 0; i < ELEMS; i++) {
            double sum = 0, size = 0, weights = 0;
            for (uint32_t rank = 0; rank < WORKERS; rank++) {
                const float scale = scale_of(step), value = mode_pseudo(rank + 9 * t, step, i) * scale;
                const double weight = (double)weight_of(rank, step);
                const double grad = (double)rounded(plans[t].dtype, value) / (double)scale;
                sum += weight * grad;
                size += weight * fabs(grad);
                weights += weight;
            }
            if (strcmp(plans[t].optimizer, "sum") == 0) weights = 1;
            const double mean = sum / weights, got = (double)value_at(plans[t].dtype, trainee->out[t], i);
            const double bound = ldexp(fabs(mean), -precision(result_dtype(&plans[t]))) +
                                 ldexp(size / weights, -21) + ldexp(1, -25);
            if (!(fabs(got - mean) <= bound)) return differs(trainee, "the mean is", t, step, i, got, mean);
        }
    }
    return 0;
}

static int run_step(struct trainee *trainee, uint32_t step)
{
    struct weft_session *session = trainee->session;
    make_gradients(trainee, step);
    MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = weft_step_next(session), .lr = 0.1f,
                                                          .weight = weight_of(trainee->rank, step),
                                                          .loss_scale = scale_of(step),
                                                          .clip_norm = step == CLIPPED ? 0.5f : 0,
                                                          .skip = step == SKIPPED && trainee->rank == 1)));
    if (push(trainee, step)) return 1;
    const enum weft_status status = weft_step_end(session);
    if (status != (step == SKIPPED ? WEFT_ERR_SKIPPED : WEFT_OK)) {
        fprintf(stderr, "step %u: %s: %s\n", step, weft_status_name(status), weft_error_text(session));
        return 1;
    }
    return check_results(trainee, step) || (step < SKIPPED && check_means(trainee, step));
}

/* The state ends with the shards' weights in f32: those of the twin. */
static int save(struct trainee *trainee)
{
    enum { HEAD_BYTES = 56, DIGEST_BYTES = 8 };
    for (uint32_t t = 0; t < TENSORS; t++) {
        const bool updates = updates_weights(&plans[t]);
        const uint64_t bytes = weft_state_bytes(trainee->tensor[t]),
                       twin_bytes = weft_state_bytes(trainee->twin[t]);
        uint8_t *const state = shared->state[t];
        if (bytes > SAVED_MAX || bytes - twin_bytes != (updates ? ELEMS * sizeof(float) : 0)) return 1;
        MUST(trainee->session, weft_state_save(trainee->tensor[t], state, bytes));
        shared->state_bytes[t] = bytes;
        memcpy(shared->weights[t], trainee->out[t], ELEMS * 4);
        if (updates && memcmp(state + twin_bytes - DIGEST_BYTES, trainee->twin_out[t], ELEMS * 4) != 0)
            return fprintf(stderr, "tensor '%s': the saved weights differ\n", plans[t].name);
    }
    return 0;
}

static int first_job(struct fleet *fleet, uint32_t rank)
{
    struct trainee *trainee = calloc(1, sizeof *trainee);
    trainee->rank = rank;
    if (fleet_join(fleet, rank, 60000, &trainee->session) != 0 || begin(trainee, false)) return 1;
    for (uint32_t step = PLAIN; step <= NONE; step++)
        if (run_step(trainee, step)) return 1;
    if (rank == 0 && save(trainee)) return 1;
    if (run_step(trainee, LAST)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const size_t bytes = ELEMS * weft_dtype_bytes(plans[t].dtype);
        MUST(trainee->session, weft_pull(trainee->tensor[t], trainee->grad[t], &trainee->request[0]));
        MUST(trainee->session, weft_wait(&trainee->request[0], 0));
        if (memcmp(trainee->grad[t], trainee->out[t], bytes) != 0) return fprintf(stderr, "pull differs\n");
        if (rank == 0) memcpy(shared->wanted[t], trainee->out[t], bytes);
    }
    weft_finalize(trainee->session);
    free(trainee);
    return 0;
}

static int second_job(struct fleet *fleet, uint32_t rank)
{
    struct trainee *trainee = calloc(1, sizeof *trainee);
    trainee->rank = rank;
    if (fleet_join(fleet, rank, 60000, &trainee->session) != 0 || begin(trainee, true)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++)
        MUST(trainee->session,
             weft_state_load(trainee->tensor[t], shared->state[t], rank == 0 ? shared->state_bytes[t] : 0));
    make_gradients(trainee, LAST);
    MUST(
        trainee->session,
        weft_step_begin_with(trainee->session, WEFT_STEP(.step = weft_step_next(trainee->session), .lr = 0.1f,
                                                         .weight = 1, .loss_scale = scale_of(LAST))));
    for (uint32_t t = 0; t < TENSORS; t++)
        MUST(trainee->session,
             weft_push_pull(trainee->tensor[t], trainee->grad[t], trainee->out[t], &trainee->request[t]));
    MUST(trainee->session, weft_step_end(trainee->session));
    for (uint32_t t = 0; t < TENSORS; t++)
        if (memcmp(trainee->out[t], shared->wanted[t], ELEMS * weft_dtype_bytes(plans[t].dtype)) != 0)
            return fprintf(stderr, "tensor '%s' does not continue\n", plans[t].name);
    weft_finalize(trainee->session);
    free(trainee);
    return 0;
}

static void results_are_those_of_f32_rounded(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(WORKERS, SHARDS, first_job, &result, NULL));
    assert_true(fleet_run(WORKERS, 1, second_job, &result, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_are_those_of_f32_rounded)};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
