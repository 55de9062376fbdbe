/* test_push_group.c - small tensors in server mode travel together: the bits of tensors that travel alone,
 * with ranks that push in different orders, in fewer messages; an error names its tensor. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "tests/client/fleet.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "tests/client/twin.h"
#include "weft/weft.h"

enum { RANKS = 3, TENSORS = 24, STEPS = 4, ELEMS_MAX = 2048 };

static const struct {
    const char *codec, *optimizer;
    uint64_t rows, columns;
} kinds[] = {
    {"dense", "none", 16, 64}, {"dense", "sgd:momentum=0.9", 5, 7}, {"dense", "adam", 32, 64},
    {"bf16", "sgd", 16, 16},   {"int8:min_count=0", "none", 8, 9},  {"powersgd:rank=2", "sgd", 20, 12},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct side { /* of one rank */
    struct weft_tensor *tensor[TENSORS];
    struct weft_request request[TENSORS];
    float grad[TENSORS][ELEMS_MAX], out[TENSORS][ELEMS_MAX];
    uint64_t messages; /* to the shard in all steps */
};

static uint64_t elems_of(uint32_t t)
{
    return kinds[t % KINDS].rows * kinds[t % KINDS].columns;
}

static int declare(struct weft_session *session, struct side *side, bool alone)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        char name[16], full[32];
        matrix_options(&options, name, t, kinds[t % KINDS].rows, kinds[t % KINDS].columns,
                       kinds[t % KINDS].codec);
        snprintf(full, sizeof full, "%s.%s", name, alone ? "alone" : "together");
        options.name = full;
        options.optimizer = kinds[t % KINDS].optimizer;
        options.mode = WEFT_MODE_SERVER;
        options.alone = alone;
        options.group = t % 2;
        MUST(session, weft_declare(session, &options, &side->tensor[t]));
        for (uint64_t i = 0; i < elems_of(t); i++) side->out[t][i] = mode_pseudo(7, t, i);
        if (strcmp(options.optimizer, "none") != 0)
            MUST(session, weft_tensor_init(side->tensor[t], side->out[t]));
    }
    return 0;
}

/* The caller holds the loop, so the engine does not count meanwhile. */
static uint64_t sent_count(const struct weft_session *session)
{
    struct weft_transport_stats stats;
    weft_transport_stats(session->engine->transport, &stats);
    return stats.sent_count;
}

/* Rank r begins with another tensor. The engine does not step before the last push. */
static int push_all(struct weft_session *session, struct side *side, uint32_t rank, uint32_t step)
{
    MUST(session, weft_loop_acquire(session->loop, WEFT_NEVER));
    const uint64_t before = sent_count(session);
    for (uint32_t n = 0; n < TENSORS; n++) {
        const uint32_t t = (n * 5 + rank * 7) % TENSORS;
        for (uint64_t i = 0; i < elems_of(t); i++)
            side->grad[t][i] = mode_pseudo(rank, step * TENSORS + t, i);
        MUST(session, weft_push_pull(side->tensor[t], side->grad[t], side->out[t], &side->request[t]));
    }
    weft_loop_release(session->loop);
    for (uint32_t t = 0; t < TENSORS; t++) MUST(session, weft_wait(&side->request[t], 0));
    MUST(session, weft_loop_acquire(session->loop, WEFT_NEVER));
    side->messages += sent_count(session) - before;
    weft_loop_release(session->loop);
    return 0;
}

static int train(struct fleet *fleet, uint32_t rank)
{
    static struct side sides[2];
    struct weft_session *session;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (int alone = 0; alone < 2; alone++)
        if (declare(session, &sides[alone], alone)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++) twin_draws(sides[1].tensor[t], sides[0].tensor[t]);
    for (uint32_t step = 1; step <= STEPS; step++) {
        MUST(session, weft_step_begin(
                          session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1 + (float)rank}));
        for (int alone = 0; alone < 2; alone++)
            if (push_all(session, &sides[alone], rank, step)) return 1;
        MUST(session, weft_step_end(session));
    }
    for (uint32_t t = 0; t < TENSORS; t++)
        if (memcmp(sides[0].out[t], sides[1].out[t], elems_of(t) * sizeof(float)) != 0) {
            fprintf(stderr, "rank %u tensor %u (%s): the bits differ\n", rank, t, kinds[t % KINDS].codec);
            return 1;
        }
    if (!getenv("WEFT_SERVER_RECEIVE_BYTES") && sides[0].messages * 2 > sides[1].messages) {
        fprintf(stderr, "rank %u: %llu messages together, %llu alone\n", rank,
                (unsigned long long)sides[0].messages, (unsigned long long)sides[1].messages);
        return 1;
    }
    weft_finalize(session);
    return 0;
}

static void bits_are_the_same(void **state)
{
    struct fleet_result result;
    void *user;
    (void)state;
    assert_true(fleet_run(RANKS, 1, train, &result, &user));
    assert_true(fleet_run(RANKS, 2, train, &result, &user));
}

/* The shard has memory for one group at most, whose payload it receives: the others are sent alone. */
static void a_refused_group_is_sent_alone(void **state)
{
    struct fleet_result result;
    void *user;
    (void)state;
    const char *given = getenv("WEFT_TRANSPORT_BACKEND");
    setenv("WEFT_TRANSPORT_BACKEND", "tcp", 1);
    setenv("WEFT_SERVER_RECEIVE_BYTES", "1MiB", 1);
    assert_true(fleet_run(RANKS, 1, train, &result, &user));
    unsetenv("WEFT_SERVER_RECEIVE_BYTES");
    if (!given) unsetenv("WEFT_TRANSPORT_BACKEND");
}

/* Rank 1 has another learning rate for the tensors of parameter group 1: the error names one of them. */
static int disagree(struct fleet *fleet, uint32_t rank)
{
    static struct side side;
    struct weft_session *session;
    const float lr[2] = {0.1f, rank == 1 ? 0.3f : 0.2f};
    enum weft_status status = WEFT_OK;
    if (fleet_join(fleet, rank, 20000, &session) || declare(session, &side, false)) return 1;
    MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = 1, .lr = 0.1f, .weight = 1,
                                                          .group_count = 2, .group_lr = lr)));
    MUST(session, weft_loop_acquire(session->loop, WEFT_NEVER));
    for (uint32_t t = 0; t < TENSORS; t++)
        MUST(session, weft_push_pull(side.tensor[t], side.grad[t], side.out[t], &side.request[t]));
    weft_loop_release(session->loop);
    for (uint32_t t = 0; t < TENSORS && status >= 0; t++) status = weft_wait(&side.request[t], 0);
    status = weft_step_end(session); /* the session's sentence; the session keeps few of single requests */
    const char *text = weft_error_text(session), *name = strstr(text, "tensor 't");
    uint32_t number = 0;
    if (status != WEFT_ERR_MISMATCH || !name || sscanf(name, "tensor 't%u.together'", &number) != 1 ||
        number % 2 == 0 || !strstr(text, "lr of step 1 differs")) {
        fprintf(stderr, "rank %u: %s: '%s' names no tensor of group 1\n", rank, weft_status_name(status),
                text);
        return 1;
    }
    weft_finalize(session);
    return 0;
}

static void an_error_names_its_tensor(void **state)
{
    struct fleet_result result;
    void *user;
    (void)state;
    assert_true(fleet_run(2, 1, disagree, &result, &user));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_the_same),
                                       cmocka_unit_test(a_refused_group_is_sent_alone),
                                       cmocka_unit_test(an_error_names_its_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
