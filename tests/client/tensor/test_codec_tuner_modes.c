/* test_codec_tuner_modes.c - codec "auto" in server mode and in all-reduce mode gives the same weights, bit
 * for bit, after every step, while the choice changes with every step.
 *
 * Each tensor is declared twice, once per mode, with the same candidates. The choice is forced and equal for
 * both. Every candidate follows every other, tensors are left out of some steps, sample weights change. A
 * lost residual, a shard with another codec or a stale optimiser array would change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"

enum { STEPS = 18, PAIRS = 4, CANDIDATES = 5 };

#define CODEC "auto:topk:ratio=0.05,min_count=0,powersgd:rank=1,int8:min_count=0,e4m3:min_count=0"
static const struct mode_plan plans[PAIRS] = {
    /* dense, int8, e4m3: ten chunks on both shards */
    {"pieces", CODEC, "sgd:momentum=0.9", 2, {40, 60}, 1024, .chunks = 32},
    {"moments", CODEC, "adam:weight_decay=0.01", 2, {90, 40}, 1 << 20},
    {"mean", CODEC, "none", 2, {70, 90}, 4096},
    {"long", CODEC, "lamb:weight_decay=0.02", 2, {500, 400}, 1 << 17}, /* slices, and the compute thread */
};

/* Puts the choice in force with the next step, as if rank 0 had broadcast it. Both tensors of a pair get the
 * same. */
static void force(struct weft_session *session, uint32_t step)
{
    struct client_codec_tuner *codec_tuner = &session->tensors->codec_tuner;
    codec_tuner->decision[CLIENT_DECISION_REVISION] = codec_tuner->revision + 1;
    codec_tuner->decision[CLIENT_DECISION_PROBE_BYTES] = 0;
    for (uint32_t i = 0; i < codec_tuner->count; i++)
        codec_tuner->decision[CLIENT_DECISION_CHOICES + i] =
            (step * (i / 2 % 3 + 1) + step / CANDIDATES) % CANDIDATES;
    codec_tuner->phase = CLIENT_CODEC_TUNER_BROADCASTING;
}

static int step_of(struct weft_session *session, struct mode_pair *pairs, uint32_t count, uint32_t step)
{
    const uint32_t rank = weft_rank(session);
    const float weight = step % 3 ? 1.0f : 0.3f + (float)rank * 0.7f;
    MUST(session, weft_step_begin(session, &(struct weft_step){
                                               .step = step, .lr = 0.1f / (float)step, .weight = weight}));
    for (uint32_t t = 0; t < count; t++) {
        struct mode_pair *pair = &pairs[t];
        /* not pushed in this step, and not while the tuner's own choice is in force */
        if (step == 1 || (t == 1 && step % 5 == 3)) continue;
        for (uint64_t i = 0; i < pair->elems; i++) pair->grad[i] = mode_pseudo(rank, step * 8 + t, i);
        for (int mode = 0; mode < 2; mode++)
            MUST(session,
                 weft_push_pull(pair->tensor[mode], pair->grad, pair->out[mode], &pair->request[mode]));
    }
    MUST(session, weft_step_end(session));
    for (uint32_t t = 0; t < count; t++) {
        char name[64];
        snprintf(name, sizeof name, "%s (%s)", plans[t].name,
                 pairs[t].tensor[0]->options.codec_spec.id == WEFT_CODEC_DENSE ? "dense" : "coded");
        if (!mode_pair_equal(&pairs[t], name, rank, step)) return 1;
    }
    return 0;
}

static int refuses(struct weft_session *session, struct weft_tensor *tensor, enum weft_status got,
                   const char *call)
{
    if (got == WEFT_ERR_UNSUPPORTED && strstr(weft_error_text(session), call)) return 0;
    return fprintf(stderr, "%s of a tensor whose codec may change: %s\n", call, weft_error_text(session));
}

static int worker(struct fleet *fleet, uint32_t rank, uint32_t count)
{
    struct weft_session *session;
    struct mode_pair pairs[PAIRS] = {0};
    struct weft_choice choice = {.size = sizeof choice};
    uint64_t *hashes = fleet->user; /* [rank][pair] */
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    int rc = 0;
    for (uint32_t t = 0; t < count && rc == 0; t++) rc = mode_pair_declare(session, &plans[t], &pairs[t]);
    for (uint32_t step = 1; step <= STEPS && rc == 0; step++) {
        rc = step_of(session, pairs, count, step);
        if (rc == 0) force(session, step);
    }
    if (rc == 0)
        rc = refuses(session, pairs[0].tensor[0],
                     weft_pull(pairs[0].tensor[0], pairs[0].out[0], &pairs[0].request[0]), "pull");
    for (uint32_t t = 0; t < count && rc == 0; t++) {
        MUST(session, weft_choice_get(pairs[t].tensor[0], &choice));
        if (choice.candidates != CANDIDATES || choice.changes < STEPS / 2 || choice.saved_bytes <= 0)
            rc = fprintf(stderr, "tensor %s: %u candidates, %u changes\n", plans[t].name, choice.candidates,
                         choice.changes);
        hashes[rank * PAIRS + t] = weft_weight_hash(pairs[t].out[0], pairs[t].elems * 4);
    }
    weft_finalize(session);
    return rc;
}

static int worker_two(struct fleet *fleet, uint32_t rank) { return worker(fleet, rank, 2); }
static int worker_all(struct fleet *fleet, uint32_t rank) { return worker(fleet, rank, PAIRS); }

static void check_job(uint32_t workers, uint32_t shards, fleet_worker_fn fn, uint32_t pairs)
{
    struct fleet_result result;
    void *user;
    assert_true(fleet_run(workers, shards, fn, &result, &user));
    const uint64_t *hashes = user;
    for (uint32_t rank = 1; rank < workers; rank++)
        for (uint32_t t = 0; t < pairs; t++) assert_int_equal(hashes[rank * PAIRS + t], hashes[t]);
    for (uint32_t i = 0; i < shards; i++) assert_int_equal(result.shard_status[i], 0);
}

static void test_small(void **state) { check_job(2, 2, worker_two, 2); }
static void test_two_workers(void **state) { check_job(2, 1, worker_all, PAIRS); }
static void test_three_workers(void **state) { check_job(3, 2, worker_all, PAIRS); }

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = {cmocka_unit_test(test_small)};
    const struct CMUnitTest full[] = {cmocka_unit_test(test_two_workers),
                                      cmocka_unit_test(test_three_workers)};
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    return small ? cmocka_run_group_tests(quick, NULL, NULL) : cmocka_run_group_tests(full, NULL, NULL);
}
