/* test_codec_tuner.c - tensors with codec "auto": candidates are measured, choices change between steps on
 * all ranks at once, and a change loses no residual. Several sessions in one process. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/elastic/elastic.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"
#include "tests/client/crowd.h"

enum { ROWS = 40, COLS = 60, ELEMS = ROWS * COLS, TENSORS = 2, STEPS = 22 };

static struct weft_tensor *declare(struct crowd *crowd, struct weft_session *session, const char *name,
                                   const char *codec, const char *optimizer)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.codec = codec;
    options.optimizer = optimizer;
    options.mode = WEFT_MODE_ALL_REDUCE;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    return tensor;
}

static float gradient(uint32_t rank, uint32_t tensor, uint32_t step, uint32_t i)
{
    const uint32_t x = (rank * 1000003u + tensor * 7919u + step * 104729u + i * 2654435761u) >> 7;
    return (float)(x % 2001) / 1000.0f - 1.0f;
}

/* Puts a decision in force with the next step, as if rank 0 had broadcast it. */
static void force(struct weft_session *session, const uint8_t *choices)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    codec_tuner->decision[CLIENT_DECISION_REVISION] = codec_tuner->revision + 1;
    codec_tuner->decision[CLIENT_DECISION_PROBE_BYTES] = 0;
    for (uint32_t i = 0; i < codec_tuner->count; i++)
        codec_tuner->decision[CLIENT_DECISION_CHOICES + i] = choices[i];
    codec_tuner->phase = CLIENT_CODEC_TUNER_BROADCASTING;
}

static double *add_residual(const struct weft_tensor *tensor, double *residual_sum)
{
    float *own_residual = calloc(ELEMS, sizeof *own_residual);
    if (tensor->codec) weft_codec_residual_copy(tensor->codec, own_residual);
    for (uint32_t i = 0; i < ELEMS; i++)
        residual_sum[i] +=
            (double)own_residual[i] + (tensor->arrays.carry ? (double)tensor->arrays.carry[i] : 0);
    free(own_residual);
    return residual_sum;
}

struct ledger {
    double given[TENSORS][ELEMS];                   /* weight * gradient, summed over ranks and steps */
    double residual_sum[CROWD_MAX][TENSORS][ELEMS]; /* residual of each rank at the end */
    double got[TENSORS][ELEMS];                     /* results, times the sum of weights */
    float out[CROWD_MAX][TENSORS][ELEMS];           /* of the last step */
};

/* Another codec in every step, also twice while a tensor is not pushed. */
static void changes(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct ledger *ledger = crowd->user;
    struct weft_tensor *tensors[TENSORS];
    struct weft_request requests[TENSORS] = {{{0}}};
    float *grads[TENSORS], *outs[TENSORS];
    const uint32_t ranks = crowd->workers;
    const float weight = 1.0f + 0.5f * (float)rank;
    double weights = 0;
    for (uint32_t r = 0; r < ranks; r++) weights += 1.0 + 0.5 * r;
    for (uint32_t t = 0; t < TENSORS; t++) {
        tensors[t] = declare(crowd, session, t ? "b" : "a",
                             "auto:topk:ratio=0.05,min_count=0,powersgd:rank=1,int8:min_count=0", "none");
        if (!tensors[t]) return;
        grads[t] = weft_alloc(session, ELEMS * 4);
        outs[t] = weft_alloc(session, ELEMS * 4);
    }
    for (uint32_t step = 1; step <= STEPS; step++) {
        const uint8_t choices[TENSORS] = {(uint8_t)(step % 4), (uint8_t)(step / 2 % 4)};
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = weight};
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (t == 1 && step % 7 > 3) continue; /* not pushed in this step */
            for (uint32_t i = 0; i < ELEMS; i++) grads[t][i] = gradient(rank, t, step, i);
            CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[t], outs[t], &requests[t]));
        }
        for (uint32_t t = 0; t < TENSORS; t++) CROWD_OK(crowd, session, weft_wait(&requests[t], 0));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        for (uint32_t t = 0; t < TENSORS && rank == 0; t++)
            for (uint32_t i = 0; i < ELEMS && !(t == 1 && step % 7 > 3); i++) {
                ledger->got[t][i] += weights * (double)outs[t][i];
                for (uint32_t r = 0; r < ranks; r++)
                    ledger->given[t][i] += (1.0 + 0.5 * r) * (double)gradient(r, t, step, i);
            }
        force(session, choices);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_choice choice = {.size = sizeof choice};
        add_residual(tensors[t], ledger->residual_sum[rank][t]);
        memcpy(ledger->out[rank][t], outs[t], ELEMS * 4);
        CROWD_OK(crowd, session, weft_choice_get(tensors[t], &choice));
        CROWD_CHECK(crowd, session,
                    choice.candidates == 4 && choice.changes >= STEPS / 2 - 1 && choice.coded_steps > 0);
    }
}

static void test_nothing_is_lost(void **state)
{
    for (uint32_t workers = 2; workers <= 3; workers++) {
        struct ledger *ledger = calloc(1, sizeof *ledger);
        struct crowd crowd = {.user = ledger};
        double worst = 0, largest_residual = 0;
        crowd_run(&crowd, workers, changes);
        assert_int_equal(crowd.failures, 0);
        for (uint32_t t = 0; t < TENSORS; t++) {
            for (uint32_t r = 1; r < workers; r++)
                assert_memory_equal(ledger->out[r][t], ledger->out[0][t], sizeof ledger->out[0][t]);
            for (uint32_t i = 0; i < ELEMS; i++) {
                double residual_sum = 0;
                for (uint32_t r = 0; r < workers; r++) residual_sum += ledger->residual_sum[r][t][i];
                worst = fmax(worst, fabs(ledger->given[t][i] - ledger->got[t][i] - residual_sum));
                largest_residual = fmax(largest_residual, fabs(residual_sum));
            }
        }
        assert_true(largest_residual > 0.1); /* there was a residual to lose */
        assert_true(worst < 1e-3);
        free(ledger);
    }
}

/* The tuner decides alone: all ranks have its choice from the same step on, and weights stay equal. */
struct diary {
    char codec[CROWD_MAX][40][256];
    uint32_t revision[CROWD_MAX][40];
    float weights[CROWD_MAX][ELEMS];
};

static void by_itself(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct diary *diary = crowd->user;
    struct weft_tensor *tensor =
        declare(crowd, session, "w", "auto:topk:ratio=0.05,min_count=0,bf16", "sgd:momentum=0.9");
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4), *weights = weft_alloc(session, ELEMS * 4);
    for (uint32_t i = 0; i < ELEMS; i++) weights[i] = (float)i;
    if (!tensor || !CROWD_OK(crowd, session, weft_tensor_init(tensor, weights))) return;
    for (uint32_t step = 1; step <= 40; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        struct weft_choice choice = {.size = sizeof choice};
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        for (uint32_t i = 0; i < ELEMS; i++) grad[i] = gradient(rank, 0, step, i);
        /* The costs change from time to time, on rank 0 only: the other ranks must follow. */
        if (rank == 0 && step % 8 == 1) tensor->codec_choice.costs[0].wire_bytes = step / 8 % 2 ? 1e9 : 1;
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, weights, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        CROWD_OK(crowd, session, weft_choice_get(tensor, &choice));
        memcpy(diary->codec[rank][step - 1], choice.codec, sizeof choice.codec);
        diary->revision[rank][step - 1] = session->tensors->codec_tuner.revision;
    }
    memcpy(diary->weights[rank], weights, sizeof diary->weights[rank]);
}

static void test_all_ranks_agree(void **state)
{
    struct diary *diary = calloc(1, sizeof *diary);
    struct crowd crowd = {.user = diary};
    crowd_run(&crowd, 3, by_itself);
    assert_int_equal(crowd.failures, 0);
    for (uint32_t r = 1; r < 3; r++) {
        assert_memory_equal(diary->codec[r], diary->codec[0], sizeof diary->codec[0]);
        assert_memory_equal(diary->revision[r], diary->revision[0], sizeof diary->revision[0]);
        assert_memory_equal(diary->weights[r], diary->weights[0], sizeof diary->weights[0]);
    }
    free(diary);
}

/* Tensors that are declared later: the tuner measures and chooses again, and all ranks replace the former
 * codecs, with their residuals. */
static void late(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const char dear[] =
        "auto:powersgd:rank=20,min_ratio=1"; /* twice the messages, nearly the same bytes: not chosen */
    struct diary *diary = crowd->user;
    struct weft_tensor *tensors[2] = {declare(crowd, session, "first", dear, "none"), NULL};
    struct weft_request requests[2] = {{{0}}};
    float *grad = weft_alloc(session, ELEMS * 4),
          *outs[2] = {weft_alloc(session, ELEMS * 4), weft_alloc(session, ELEMS * 4)};
    for (uint32_t step = 1; tensors[0] && step <= 12; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        struct weft_choice choice = {.size = sizeof choice};
        if (step == 6) tensors[1] = declare(crowd, session, "second", dear, "none");
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        for (uint32_t i = 0; i < ELEMS; i++) grad[i] = gradient(rank, 0, step, i);
        for (uint32_t t = 0; t < 2 && tensors[t]; t++)
            CROWD_OK(crowd, session, weft_push_pull(tensors[t], grad, outs[t], &requests[t]));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        CROWD_OK(crowd, session, weft_choice_get(tensors[0], &choice));
        memcpy(diary->codec[rank][step - 1], choice.codec, sizeof choice.codec);
        diary->revision[rank][step - 1] = session->tensors->codec_tuner.revision;
        if (step == 2) force(session, (uint8_t[]){1});
        if (step == 5) CROWD_CHECK(crowd, session, tensors[0]->codec_choice.chosen == 1);
    }
    if (rank == 0) /* the tuner of rank 0 has the choices in force */
        for (uint32_t t = 0; t < 2; t++)
            CROWD_CHECK(crowd, session,
                        weft_codec_tuner_choices(session->tensors->codec_tuner.tuner)[t] ==
                            tensors[t]->codec_choice.chosen);
    memcpy(diary->weights[rank], outs[0], sizeof diary->weights[rank]);
}

static void test_late_declaration(void **state)
{
    struct diary *diary = calloc(1, sizeof *diary);
    struct crowd crowd = {.user = diary};
    crowd_run(&crowd, 2, late);
    assert_int_equal(crowd.failures, 0);
    assert_memory_equal(diary->codec[1], diary->codec[0], sizeof diary->codec[0]);
    assert_memory_equal(diary->revision[1], diary->revision[0], sizeof diary->revision[0]);
    assert_memory_equal(diary->weights[1], diary->weights[0], sizeof diary->weights[0]);
    free(diary);
}

/* A tensor too small to measure the link: all ranks measure it by a probe, with one result. */
static void probes(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    double *seen = crowd->user;
    struct weft_tensor *tensor = declare(crowd, session, "w", "auto", "none");
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4);
    for (uint32_t step = 1; tensor && step <= 20; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        if (step == 5) {
            session->tensors->codec_tuner.link.bytes_per_second = 1e7; /* as if the link had been slow */
            session->tensors->codec_tuner.link.probed_ns = 0;          /* long ago */
        }
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
    }
    CROWD_CHECK(crowd, session, session->tensors->codec_tuner.link.probed_ns > 0);
    seen[rank] = session->tensors->codec_tuner.link.bytes_per_second;
}

static void test_link_is_probed(void **state)
{
    double seen[CROWD_MAX] = {0};
    struct crowd crowd = {.user = seen};
    crowd_run(&crowd, 3, probes);
    assert_int_equal(crowd.failures, 0);
    assert_true(seen[0] > 0 && seen[0] != 1e7 && seen[1] == seen[0] && seen[2] == seen[0]);
}

/* The first choice follows the job's link table, without a timed exchange. Later measurements replace the
 * table, on all ranks. */
struct tabled {
    uint64_t latency_ns, bytes_per_second;
    bool coded; /* expected of the first choice */
    double corrected[CROWD_MAX];
};

static void from_table(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct tabled *tabled = crowd->user;
    const struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    struct weft_tensor *tensor = declare(crowd, session, "w", "auto:topk:ratio=0.05,min_count=0", "none");
    struct weft_tensor *late = NULL;
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4);
    for (uint32_t step = 1; tensor && step <= 20; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        if (step == 5) session->tensors->codec_tuner.link.probed_ns -= WEFT_SECONDS(100000); /* long ago */
        if (step == 20) late = declare(crowd, session, "late", "auto", "none");
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        if (step == 1) {
            CROWD_CHECK(crowd, session, codec_tuner->link.latency_ns == (double)tabled->latency_ns);
            CROWD_CHECK(crowd, session,
                        codec_tuner->link.bytes_per_second == (double)tabled->bytes_per_second);
            CROWD_CHECK(crowd, session, (tensor->codec_choice.chosen > 0) == tabled->coded);
            CROWD_CHECK(crowd, session,
                        codec_tuner->link.latency_from_table && codec_tuner->link.bandwidth_from_table);
        }
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        if (step == 19) tabled->corrected[rank] = codec_tuner->link.bytes_per_second;
    }
    CROWD_CHECK(crowd, session, late && codec_tuner->link.bytes_per_second == tabled->corrected[rank]);
    CROWD_CHECK(crowd, session,
                !codec_tuner->link.latency_from_table &&
                    codec_tuner->link.latency_ns != (double)tabled->latency_ns);
}

static void test_begins_from_the_link_table(void **state)
{
    static const struct tabled rows[] = {{1000000, 100000, .coded = true},
                                         {1, 1000000000000, .coded = false}};
    char path[64], host[64] = "";
    snprintf(path, sizeof path, "/tmp/weft-judging-links-%ld", (long)getpid());
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    setenv("WEFT_COLLECTIVE_LINKS", path, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tabled tabled = rows[i];
        struct crowd crowd = {.user = &tabled};
        crowd_write_links(path, host, tabled.latency_ns, tabled.bytes_per_second);
        crowd_run(&crowd, 2, from_table);
        assert_int_equal(crowd.failures, 0);
        assert_true(tabled.corrected[0] != (double)tabled.bytes_per_second);
        assert_true(tabled.corrected[0] == tabled.corrected[1]);
    }
    unlink(path);
    unsetenv("WEFT_COLLECTIVE_LINKS");
}

/* Ranks with different revisions fail by the step's records. */
static void strayed(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensor = declare(crowd, session, "w", "auto", "none");
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4);
    enum weft_status status = WEFT_OK;
    for (uint32_t step = 1; tensor && step <= 3 && status >= 0; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        if (step == 3 && rank == 1) session->tensors->codec_tuner.revision += 5;
        status = weft_step_begin(session, &begun);
        if (status >= 0) status = weft_push_pull(tensor, grad, grad, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        if (weft_step_end(session) < 0) status = WEFT_ERR_MISMATCH;
        CROWD_CHECK(crowd, session, step == 3 || status >= 0);
    }
    CROWD_CHECK(crowd, session, status < 0 && strstr(weft_error_text(session), "revision"));
}

static void test_revision_is_compared(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, strayed);
    assert_int_equal(crowd.failures, 0);
}

/* A single rank stays dense, whatever the candidates; so do small tensors. A choice requires f32. */
static void alone(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_choice choice = {.size = sizeof choice};
    struct weft_tensor *tensor = declare(crowd, session, "w", "auto:lossy", "none"), *other = NULL;
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4);
    struct weft_tensor_options options;
    grad[7] = 3;
    for (uint32_t step = 1; step <= 20; step++) {
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        CROWD_OK(crowd, session, weft_step_begin(session, &begun));
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    CROWD_OK(crowd, session, weft_choice_get(tensor, &choice));
    CROWD_CHECK(crowd, session, strcmp(choice.codec, "dense") == 0 && choice.changes == 0 && grad[7] == 3);
    choice.size = 1;
    CROWD_REFUSED(crowd, session, weft_choice_get(tensor, &choice), WEFT_ERR_INVALID, "choice.size");
    weft_tensor_options_init(&options);
    options.name = "half";
    options.dim_count = 1;
    options.dims[0] = 5000;
    options.dtype = WEFT_F16;
    options.codec = "auto";
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, &other), WEFT_ERR_UNSUPPORTED, "f32");
    options.codec = NULL; /* the job's codec, where possible: not for this tensor */
    CROWD_OK(crowd, session, weft_declare(session, &options, &other));
    choice.size = sizeof choice;
    CROWD_OK(crowd, session, weft_choice_get(other, &choice));
    CROWD_CHECK(crowd, session, choice.candidates == 0 && strcmp(choice.codec, "dense") == 0);
    options.name = "job's";
    options.dtype = WEFT_F32;
    CROWD_OK(crowd, session, weft_declare(session, &options, &other));
    CROWD_OK(crowd, session, weft_choice_get(other, &choice));
    CROWD_CHECK(crowd, session, choice.candidates == 2); /* top-k and dense */
    options.name = "none";
    options.codec = "auto:topk,zip";
    CROWD_REFUSED(crowd, session, weft_declare(session, &options, &other), WEFT_ERR_INVALID,
                  "codec \"zip\" is unknown");
}

static void test_alone(void **state)
{
    struct crowd crowd = {0};
    setenv("WEFT_CLIENT_CODEC", "auto:topk", 1);
    crowd_run(&crowd, 1, alone);
    unsetenv("WEFT_CLIENT_CODEC");
    assert_int_equal(crowd.failures, 0);
}

/* Changes the number of ranks to that of the call, and checks the tensor's carry. */
static void follows(struct crowd *crowd, struct weft_session *session, struct weft_tensor *tensor,
                    uint32_t ranks, const float *wanted)
{
    const uint32_t before = session->ranks;
    session->ranks = ranks;
    client_codecs_set_membership(session);
    client_codecs_set_membership(session); /* applied once */
    session->ranks = before;
    CROWD_CHECK(crowd, session,
                tensor->arrays.carry_ranks == ranks && memcmp(tensor->arrays.carry, wanted, ELEMS * 4) == 0);
}

/* The carry of an earlier codec is a share of a mean: with fewer ranks each part of the sum weighs more, with
 * more ranks less. A carry that would become infinite is unchanged. */
static void carries(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float own_residual[2][ELEMS], wanted[2][ELEMS];
    struct weft_tensor *tensor = declare(crowd, session, "w", "auto:topk:ratio=0.05,min_count=0", "none");
    struct weft_request request = {{0}};
    float *grad = weft_alloc(session, ELEMS * 4);
    double all = 0;
    if (!tensor) return;
    for (uint32_t step = 1; step <= 5; step++) {
        const uint8_t coded = 1, dense = 0;
        const struct weft_step begun = {.step = step, .lr = 0.1f, .weight = 1.0f};
        if (step > 1 && step < 5) force(session, step == 4 ? &dense : &coded);
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        for (uint32_t i = 0; i < ELEMS; i++) grad[i] = gradient(rank, 0, step, i);
        if (step != 4) CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
        if (step != 4) CROWD_OK(crowd, session, weft_wait(&request, 0));
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        if (step != 4) continue;
        /* the tensor has another codec, the carry is not sent yet, and no operation is open */
        if (!CROWD_CHECK(crowd, session,
                         tensor->arrays.carry && !tensor->codec && tensor->arrays.carry_ranks == 2))
            return;
        for (uint32_t i = 0; i < ELEMS; i++)
            all += fabs((double)(own_residual[rank][i] = tensor->arrays.carry[i]));
        CROWD_CHECK(crowd, session, all > 0);
        for (uint32_t i = 0; i < ELEMS; i++) wanted[rank][i] = own_residual[rank][i] * 2;
        follows(crowd, session, tensor, 4, wanted[rank]);
        for (uint32_t i = 0; i < ELEMS; i++) wanted[rank][i] = own_residual[rank][i] * 0.5f;
        follows(crowd, session, tensor, 1, wanted[rank]);
        follows(crowd, session, tensor, 2, own_residual[rank]);
        tensor->arrays.carry[11] = 3e38f;
        memcpy(wanted[rank], tensor->arrays.carry, ELEMS * 4);
        follows(crowd, session, tensor, 4, wanted[rank]);
        tensor->arrays.carry[11] = 0;
        tensor->arrays.carry_ranks = 2;
    }
    CROWD_CHECK(crowd, session, !tensor->arrays.carry);
}

static void test_carry_follows_the_ranks(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, carries);
    assert_int_equal(crowd.failures, 0);
}

/* Four ranks, codecs combined in slices: the bytes of the costs are the bytes that a rank sends. */
static void true_bytes(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct weft_step begun = {.step = 1, .lr = 0.1f, .weight = 1.0f};
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = "large";
    options.dim_count = 1;
    options.dims[0] = 1 << 16;
    options.codec = "auto:bf16,f16,int8,e4m3,e5m2";
    options.mode = WEFT_MODE_ALL_REDUCE;
    if (!CROWD_OK(crowd, session, weft_declare(session, &options, &tensor))) return;
    if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
    const struct client_codec_choice *codec_choice = &tensor->codec_choice;
    const double dense = codec_choice->costs[0].wire_bytes;
    CROWD_CHECK(crowd, session, codec_choice->candidates.count == 6);
    for (uint32_t c = 1; c < codec_choice->candidates.count; c++) {
        const enum weft_codec_id id = codec_choice->candidates.specs[c].id;
        const double most = id == WEFT_CODEC_BF16 || id == WEFT_CODEC_F16 ? 0.5001 : 0.375;
        CROWD_CHECK(crowd, session, codec_choice->costs[c].wire_bytes > 0.25 * dense);
        CROWD_CHECK(crowd, session, codec_choice->costs[c].wire_bytes <= most * dense);
        CROWD_CHECK(crowd, session, codec_choice->costs[c].hops >= 2);
    }
    CROWD_OK(crowd, session, weft_step_end(session));
}

static void test_true_bytes(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 4, true_bytes);
    assert_int_equal(crowd.failures, 0);
}

static uint64_t ticks(struct weft_env *env) { return *(uint64_t *)env->context += 1000; }

/* One rank adds 1 / ranks of what a combiner of all elements adds, and packs where a sum is packed. */
static void test_time_of_a_slice(void **state)
{
    uint64_t clock = 0;
    struct weft_env env = *weft_env_system();
    const struct weft_shape shape = {.dim_count = 1, .dims = {1 << 16}};
    uint8_t *sums = calloc(1 << 16, sizeof(uint16_t));
    struct weft_codec_spec spec;
    struct weft_slices slices;
    env.context = &clock;
    env.now_ns = ticks;
    assert_int_equal(weft_codec_parse("bf16", &spec, NULL), WEFT_OK);
    assert_false(weft_coll_codec_slices(&spec, &shape, 2, 0, &slices));
    assert_true(weft_coll_codec_slices(&spec, &shape, 4, 0, &slices));
    assert_true(client_codec_tuner_sliced_ns(&env, &slices, sums, 2 << 16, 8000) == 2000);
    assert_int_equal(weft_codec_parse("e4m3", &spec, NULL), WEFT_OK);
    assert_true(weft_coll_codec_slices(&spec, &shape, 4, 0, &slices));
    assert_true(client_codec_tuner_sliced_ns(&env, &slices, sums, 2 << 16, 8000) == 3000);
    free(sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost),      cmocka_unit_test(test_all_ranks_agree),
        cmocka_unit_test(test_late_declaration),     cmocka_unit_test(test_link_is_probed),
        cmocka_unit_test(test_revision_is_compared), cmocka_unit_test(test_begins_from_the_link_table),
        cmocka_unit_test(test_alone),                cmocka_unit_test(test_carry_follows_the_ranks),
        cmocka_unit_test(test_true_bytes),           cmocka_unit_test(test_time_of_a_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
