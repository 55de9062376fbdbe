/* test_push_order.c - tensors in all-reduce mode have one order on all ranks (tensor/order/).
 *
 *   bits       small tensors that travel together, in any order of the pushes, have the bits of separate
 *              operations in the order of the calls: every dtype, optimiser and sample weight
 *   together   200 small tensors of a step take few operations
 *   priority   of the tensors that all ranks have pushed, the most urgent is first
 *   learned    rank 0's first steps decide which of equal priorities that is
 *   deadline   a tensor that one rank never pushes is named */
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/session.h"
#include "collective/core/group.h"
#include "tests/client/crowd.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3, TENSORS = 36, STEPS = 4, ELEMS_MAX = 9000 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

static float value(uint32_t rank, uint32_t step, uint32_t tensor, uint32_t i)
{
    const uint64_t bits = mix(rank * 7919ull + step * 104729ull + tensor * 1299709ull + i * 15485863ull);
    return ((float)(bits & 0xffffff) / 8388608.0f - 1.0f) * (bits >> 60 ? 0.01f : 1000.0f);
}

/* ---- bits ---- */

enum order { SAME, REVERSED, SHUFFLED };

struct run {
    const char *mode; /* client.push_order */
    enum order order;
    bool weighted;
    uint64_t operations; /* of rank 0 */
    float results[RANKS][STEPS][TENSORS][ELEMS_MAX];
};

static uint32_t elems_of(uint32_t t)
{
    return t % 9 == 8 ? ELEMS_MAX /* travels on its own */ : 1 + (uint32_t)(mix(t) % 700);
}

static enum weft_dtype dtype_of(uint32_t t)
{
    return t % 7 == 3 ? WEFT_F16 : t % 7 == 5 ? WEFT_BF16 : t % 7 == 6 ? WEFT_I64 : WEFT_F32;
}

static void declare(struct crowd *crowd, struct weft_session *session, uint32_t t, float *weights,
                    struct weft_tensor **tensor_out)
{
    static const char *const optimizers[] = {"none", "sgd:momentum=0.9", "adam", "none"};
    const struct run *run = crowd->user;
    struct weft_tensor_options options;
    char name[16];
    weft_tensor_options_init(&options);
    snprintf(name, sizeof name, "t%u", t);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = elems_of(t);
    options.dtype = run->weighted ? WEFT_F32 : dtype_of(t);
    options.optimizer = options.dtype == WEFT_F32 ? optimizers[t % 4] : "none";
    options.mode = WEFT_MODE_ALL_REDUCE;
    options.skip_nonfinite = options.dtype == WEFT_F32 && t % 5 == 0; /* the bits of others may be NaN */
    options.priority = (int32_t)(mix(t) % 5) - 2;
    options.alone = t % 11 == 4;
    CROWD_OK(crowd, session, weft_declare(session, &options, tensor_out));
    if (strcmp(options.optimizer, "none") == 0) return;
    for (uint32_t i = 0; i < elems_of(t); i++) weights[i] = value(99, 0, t, i);
    CROWD_OK(crowd, session, weft_tensor_init(*tensor_out, weights));
}

static void order_of(const struct run *run, uint32_t rank, uint32_t step, uint32_t *order)
{
    for (uint32_t t = 0; t < TENSORS; t++) order[t] = run->order == REVERSED ? TENSORS - 1 - t : t;
    for (uint32_t t = TENSORS - 1; run->order == SHUFFLED && t > 0; t--) {
        const uint32_t other = (uint32_t)(mix(rank * 31 + step * 131 + t) % (t + 1)), kept = order[t];
        order[t] = order[other];
        order[other] = kept;
    }
}

static void train(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct run *run = crowd->user;
    struct weft_tensor *tensors[TENSORS];
    struct weft_request requests[TENSORS] = {{{0}}};
    float(*grads)[ELEMS_MAX * 2] = calloc(TENSORS, sizeof *grads);
    float(*out)[ELEMS_MAX * 2] = calloc(TENSORS, sizeof *out);
    uint32_t order[TENSORS];
    if (!grads || !out) abort();
    for (uint32_t t = 0; t < TENSORS; t++) declare(crowd, session, t, out[t], &tensors[t]);
    for (uint32_t step = 0; step < STEPS; step++) {
        const float weight = run->weighted ? 1.0f + (float)rank * 0.37f : 1.0f;
        const struct weft_step begun = {.step = step + 1, .lr = 0.1f, .weight = weight};
        CROWD_OK(crowd, session, weft_step_begin(session, &begun));
        order_of(run, rank, step, order);
        for (uint32_t k = 0; k < TENSORS; k++) {
            const uint32_t t = order[k];
            for (uint32_t i = 0; i < elems_of(t); i++) grads[t][i] = value(rank, step, t, i);
            const bool in_place = t % 4 == 3; /* without an optimiser */
            CROWD_OK(crowd, session,
                     weft_push_pull(tensors[t], grads[t], in_place ? grads[t] : out[t], &requests[t]));
        }
        for (uint32_t k = 0; k < TENSORS && step % 2 == 0; k++)
            CROWD_OK(crowd, session, weft_wait(&requests[TENSORS - 1 - order[k]], 0));
        CROWD_OK(crowd, session, weft_step_end(session));
        for (uint32_t t = 0; t < TENSORS; t++)
            memcpy(run->results[rank][step][t], t % 4 == 3 ? grads[t] : out[t], elems_of(t) * sizeof(float));
    }
    if (rank == 0) run->operations = session->engine->group->ops.sequence;
    free(grads);
    free(out);
}

static struct run *run_of(const char *mode, enum order order, bool weighted)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) abort();
    *run = (struct run){.mode = mode, .order = order, .weighted = weighted};
    struct crowd crowd = {.user = run};
    setenv("WEFT_CLIENT_PUSH_ORDER", mode, 1);
    crowd_run(&crowd, RANKS, train);
    unsetenv("WEFT_CLIENT_PUSH_ORDER");
    assert_int_equal(crowd.failures, 0);
    return run;
}

static void compare(bool weighted)
{
    struct run *called = run_of("called", SAME, weighted);
    for (enum order order = SAME; order <= SHUFFLED; order++) {
        struct run *agreed = run_of("agreed", order, weighted);
        assert_memory_equal(called->results, agreed->results, sizeof called->results);
        free(agreed);
    }
    free(called);
}

static void test_bits(void **state)
{
    compare(false);
}
static void test_weighted_bits(void **state)
{
    compare(true);
}

struct kind {
    const char *prefix;
    uint64_t elems;
    int32_t priority;
    bool alone;
};

/* A tensor of f32 without an optimiser. */
static void declare_f32(struct crowd *crowd, struct weft_session *session, const struct kind *kind,
                        uint32_t t, struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    char name[16];
    weft_tensor_options_init(&options);
    snprintf(name, sizeof name, "%s%u", kind->prefix, t);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = kind->elems;
    options.priority = kind->priority;
    options.alone = kind->alone;
    CROWD_OK(crowd, session, weft_declare(session, &options, tensor_out));
}

/* ---- operations ---- */

enum { SMALL = 200 };

static void push_small(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grads[2][SMALL][8];
    struct weft_tensor *tensors[SMALL];
    struct weft_request requests[SMALL] = {{{0}}};
    for (uint32_t t = 0; t < SMALL; t++) {
        declare_f32(crowd, session, &(struct kind){"s", 8, 0, crowd->user != NULL}, t, &tensors[t]);
        for (uint32_t i = 0; i < 8; i++) grads[rank][t][i] = (float)(t + rank * 2);
    }
    const uint64_t before = session->engine->group->ops.sequence;
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    /* all are pushed before one starts */
    CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
    for (uint32_t t = 0; t < SMALL; t++)
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[rank][t], grads[rank][t], &requests[t]));
    weft_loop_release(session->loop);
    CROWD_OK(crowd, session, weft_step_end(session));
    for (uint32_t t = 0; t < SMALL; t++) CROWD_CHECK(crowd, session, grads[rank][t][7] == (float)(t + 1));
    /* the record, two agreements, the first tensor, a bucket, the comparison of the tensors */
    const uint64_t operations = session->engine->group->ops.sequence - before;
    CROWD_CHECK(crowd, session, crowd->user ? operations >= SMALL : operations <= 6);
}

static void test_together(void **state)
{
    struct crowd crowd = {.user = NULL};
    crowd_run(&crowd, 2, push_small);
    assert_int_equal(crowd.failures, 0);
}

static void test_alone(void **state)
{
    struct crowd crowd = {.user = &crowd};
    crowd_run(&crowd, 2, push_small);
    assert_int_equal(crowd.failures, 0);
}

/* ---- priority ---- */

enum { URGENT = 6 };

struct completions {
    uint32_t order[8], count;
};

struct completion {
    struct completions *all;
    uint32_t tensor;
};

static void completed(void *context, enum weft_status status)
{
    const struct completion *completion = context;
    completion->all->order[completion->all->count++] = completion->tensor;
}

/* Removes the first tensor from the order. */
static void drop_first(struct completions *all)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->count; i++)
        if (all->order[i] != 0) all->order[kept++] = all->order[i];
    all->count = kept;
}

/* Each rank pushes all tensors before its engine runs, so all take part in the second agreement. Only the
 * first one, equal on all ranks, is in the first; more urgent ones may overtake it in flight. */
static void push_urgent(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const int32_t declared[URGENT + 1] = {0}, set[URGENT + 1] = {0, -7, 3, 0, 3, 1, 0};
    static const uint32_t by_declaration[URGENT] = {1, 2, 3, 4, 5, 6},
                          by_priority[URGENT] = {2, 4, 5, 3, 6, 1};
    const bool has_priorities = crowd->user != NULL;
    struct weft_tensor *tensors[URGENT + 1];
    struct weft_request requests[URGENT + 1] = {{{0}}};
    struct completion contexts[URGENT + 1];
    struct completions all = {.count = 0};
    static float grads[2][URGENT + 1][16];
    for (uint32_t t = 0; t <= URGENT; t++) {
        declare_f32(crowd, session, &(struct kind){"u", 16, (has_priorities ? set : declared)[t], true}, t,
                    &tensors[t]);
    }
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
    for (uint32_t k = 0; k <= URGENT; k++) {
        const uint32_t t = k == 0 ? 0 : rank == 0 ? URGENT + 1 - k : 1 + (k + 2) % URGENT;
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[rank][t], grads[rank][t], &requests[t]));
        contexts[t] = (struct completion){&all, t};
        client_request_of(&requests[t])->context = &contexts[t];
        client_request_of(&requests[t])->completed = completed;
    }
    weft_loop_release(session->loop);
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, all.count == URGENT + 1);
    drop_first(&all);
    CROWD_CHECK(crowd, session, all.count == URGENT);
    CROWD_CHECK(crowd, session,
                memcmp(all.order, has_priorities ? by_priority : by_declaration, sizeof by_priority) == 0);
}

static void test_declaration(void **state)
{
    struct crowd crowd = {.user = NULL};
    crowd_run(&crowd, 2, push_urgent);
    assert_int_equal(crowd.failures, 0);
}

static void test_priority(void **state)
{
    struct crowd crowd = {.user = &crowd};
    crowd_run(&crowd, 2, push_urgent);
    assert_int_equal(crowd.failures, 0);
}

/* ---- learned order ---- */

enum { LEARNED = 6, LEARNED_STEPS = 6 };

struct learning {
    const char *option;       /* client.learn_order */
    uint32_t pushes[LEARNED]; /* rank 0's order; rank 1 pushes in the opposite one */
    uint32_t waits[LEARNED];  /* the same for weft_tensor_wait, with deliver_late */
    uint32_t wait_count;
    uint32_t expected[LEARNED]; /* most needed first */
};

static void run_learning_step(struct crowd *crowd, struct weft_session *session, uint32_t rank,
                              struct weft_tensor **tensors, struct completions *all)
{
    static float grads[2][LEARNED + 1][16];
    const struct learning *learning = crowd->user;
    struct weft_request requests[LEARNED + 1] = {{{0}}};
    struct completion contexts[LEARNED + 1];
    const bool late = learning->wait_count > 0;
    *all = (struct completions){.count = 0};
    const uint64_t step = weft_step_next(session);
    CROWD_OK(
        crowd, session,
        weft_step_begin_with(session, WEFT_STEP(.step = step, .lr = 1, .weight = 1, .deliver_late = late)));
    CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
    /* the first one, equal on all ranks, is in an agreement of its own */
    for (uint32_t k = 0; k <= LEARNED; k++) {
        const uint32_t t = k == 0 ? 0 : 1 + learning->pushes[rank == 0 ? k - 1 : LEARNED - k];
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[rank][t], grads[rank][t], &requests[t]));
        contexts[t] = (struct completion){all, t};
        client_request_of(&requests[t])->context = &contexts[t];
        client_request_of(&requests[t])->completed = completed;
    }
    weft_loop_release(session->loop);
    CROWD_OK(crowd, session, weft_step_end(session));
    for (uint32_t k = 0; k < learning->wait_count; k++) {
        const uint32_t w = learning->waits[rank == 0 ? k : learning->wait_count - 1 - k];
        CROWD_OK(crowd, session, weft_tensor_wait(tensors[1 + w], 0));
    }
    CROWD_OK(crowd, session, weft_step_wait(session));
}

static void learn(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct learning *learning = crowd->user;
    struct weft_tensor *tensors[LEARNED + 1];
    struct completions all;
    for (uint32_t t = 0; t <= LEARNED; t++)
        declare_f32(crowd, session, &(struct kind){"n", 16, t == 0, true}, t, &tensors[t]);
    for (uint32_t step = 1; step <= LEARNED_STEPS; step++)
        run_learning_step(crowd, session, rank, tensors, &all);
    CROWD_CHECK(crowd, session, all.count == LEARNED + 1);
    drop_first(&all);
    for (uint32_t k = 0; k < LEARNED; k++)
        CROWD_CHECK(crowd, session, k < all.count && all.order[k] == 1 + learning->expected[k]);
}

static void check_learning(struct learning learning)
{
    struct crowd crowd = {.user = &learning};
    setenv("WEFT_CLIENT_LEARN_ORDER", learning.option, 1);
    crowd_run(&crowd, 2, learn);
    unsetenv("WEFT_CLIENT_LEARN_ORDER");
    assert_int_equal(crowd.failures, 0);
}

static void test_learned(void **state)
{
    /* a backward pass: the last pushed tensor is needed first */
    check_learning((struct learning){"yes", {3, 5, 2, 4, 0, 1}, {0}, 0, {1, 0, 4, 2, 5, 3}});
    /* a loop in the order of the declaration */
    check_learning((struct learning){"yes", {0, 1, 2, 3, 5, 4}, {0}, 0, {0, 1, 2, 3, 4, 5}});
    /* waits in the forward pass, and tensors without a wait */
    check_learning((struct learning){"yes", {5, 4, 3, 2, 1, 0}, {4, 2, 5}, 3, {4, 2, 5, 0, 1, 3}});
    check_learning((struct learning){"no", {3, 5, 2, 4, 0, 1}, {0}, 0, {0, 1, 2, 3, 4, 5}});
}

/* ---- an urgent tensor behind others that are in flight ---- */

enum { FLIGHT = 6, FLIGHT_ELEMS = 128 << 10 };

/* Posted operations. */
static uint64_t sequence_of(struct crowd *crowd, struct weft_session *session)
{
    CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
    const uint64_t sequence = session->engine->group->ops.sequence;
    weft_loop_release(session->loop);
    return sequence;
}

/* Steps until one in which enough others were in flight: a busy machine may stop a rank for long. */
enum { FLIGHT_STEPS = 40, FLIGHT_OPEN = 4 };
#define FLIGHT_LATENCY_NS WEFT_MS(5)

/* Pushes the urgent tensor, declared first, when the others are in flight. */
static void push_behind(struct crowd *crowd, struct weft_session *session, struct weft_tensor **tensors,
                        float (*grads)[FLIGHT_ELEMS], struct completions *all)
{
    struct weft_request requests[FLIGHT + 1] = {{{0}}};
    struct completion contexts[FLIGHT + 1];
    const uint64_t before = sequence_of(crowd, session);
    for (uint32_t k = 0; k <= FLIGHT; k++) {
        const uint32_t t = k == FLIGHT ? 0 : k + 1;
        /* at least one agreement beside them */
        while (k == FLIGHT && sequence_of(crowd, session) < before + FLIGHT + 1)
            (void)weft_wait(&requests[1], 1);
        CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[t], grads[t], &requests[t]));
        contexts[t] = (struct completion){all, t};
        client_request_of(&requests[t])->context = &contexts[t];
        client_request_of(&requests[t])->completed = completed;
        weft_loop_release(session->loop);
    }
    CROWD_OK(crowd, session, weft_step_end(session));
}

/* Tensors in flight when the urgent one had started on both ranks, and those of them that ended before it. */
struct flight {
    uint64_t started_ns[2]; /* of the urgent one, by rank */
    uint32_t open, before;
};

static uint64_t ns_of(struct crowd *crowd, struct weft_session *session, struct weft_tensor *tensor,
                      bool done)
{
    struct weft_tensor_stats stats = {.size = sizeof stats};
    CROWD_OK(crowd, session, weft_tensor_stats_get(tensor, &stats));
    return done ? stats.done_ns : stats.started_ns;
}

static void count_open(struct crowd *crowd, struct weft_session *session, struct weft_tensor **tensors,
                       struct flight *flight)
{
    const uint64_t *starts = flight->started_ns, done_ns = ns_of(crowd, session, tensors[0], true);
    const uint64_t started_ns = starts[0] > starts[1] ? starts[0] : starts[1];
    flight->open = flight->before = 0;
    for (uint32_t t = 1; t <= FLIGHT; t++) {
        const uint64_t other_ns = ns_of(crowd, session, tensors[t], true);
        flight->open += other_ns > started_ns;
        flight->before += other_ns > started_ns && other_ns < done_ns;
    }
}

/* Small operations until one was short on each rank: the longer the shortest one was, the more bytes
 * of others are in flight (collective/core/send_credit.c), and on a busy machine the first ones are long. */
static void measure_latency(struct crowd *crowd, struct weft_session *session)
{
    uint64_t latency_ns;
    do {
        CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
        latency_ns = session->engine->group->sending.send_credit->latency_ns;
        weft_loop_release(session->loop);
        if (latency_ns == 0) latency_ns = WEFT_NEVER; /* not measured */
        struct weft_request request = {{0}};
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, &latency_ns, &latency_ns, 1, WEFT_U64, WEFT_MAX, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
    } while (latency_ns > FLIGHT_LATENCY_NS && crowd->failures == 0);
}

/* A group has credits from its first operation with an urgency on. */
static void open_credits(struct crowd *crowd, struct weft_session *session, struct weft_tensor *tensor,
                         float *grad)
{
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
    CROWD_OK(crowd, session, weft_step_end(session));
}

/* Rank 0 decides for both ranks whether a step counts. */
static void overtake(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grads[2][FLIGHT + 1][FLIGHT_ELEMS];
    struct flight *flight = crowd->user;
    struct weft_tensor *tensors[FLIGHT + 1];
    struct completions all;
    for (uint32_t t = 0; t <= FLIGHT; t++)
        declare_f32(crowd, session, &(struct kind){"f", FLIGHT_ELEMS, 0, false}, t, &tensors[t]);
    open_credits(crowd, session, tensors[0], grads[rank][0]);
    for (uint32_t step = 2; step <= FLIGHT_STEPS; step++) {
        all.count = 0;
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}));
        measure_latency(crowd, session);
        push_behind(crowd, session, tensors, grads[rank], &all);
        CROWD_CHECK(crowd, session, all.count == FLIGHT + 1);
        flight->started_ns[rank] = ns_of(crowd, session, tensors[0], false);
        pthread_barrier_wait(&crowd->meet);
        if (rank == 0) count_open(crowd, session, tensors, flight);
        pthread_barrier_wait(&crowd->meet);
        if (flight->open >= FLIGHT_OPEN) break;
    }
}

static void test_overtakes(void **state)
{
    char links[64], host[64];
    snprintf(links, sizeof links, "/tmp/weft-push-order-%d.json", (int)getpid());
    assert_int_equal(gethostname(host, sizeof host), 0);
    crowd_write_links(links, host, 20000, 4000000);
    setenv("WEFT_COLLECTIVE_LINKS", links, 1);
    setenv("WEFT_TRANSPORT_BACKEND", "tcp", 1);
    setenv("WEFT_TRANSPORT_WRAP", "delay:rate_bytes=4000000", 1);
    setenv("WEFT_CLIENT_LEARN_ORDER", "no", 1); /* the first declared one stays the most urgent */
    struct flight flight = {.open = 0};
    struct crowd crowd = {.user = &flight};
    crowd_run(&crowd, 2, overtake);
    unsetenv("WEFT_COLLECTIVE_LINKS");
    unsetenv("WEFT_TRANSPORT_WRAP");
    unsetenv("WEFT_CLIENT_LEARN_ORDER");
    unlink(links);
    assert_int_equal(crowd.failures, 0);
    assert_in_range(flight.open, FLIGHT_OPEN, FLIGHT);
    if (flight.before > flight.open - 2)
        fail_msg("%u of %u tensors in flight ended before the urgent one", flight.before, flight.open);
}

/* ---- a tensor that one rank does not push ---- */

static void push_less(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grads[2][2][16];
    struct weft_tensor *tensors[2];
    struct weft_request requests[2] = {{{0}}};
    for (uint32_t t = 0; t < 2; t++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = t ? "scarce" : "plenty";
        options.dim_count = 1;
        options.dims[0] = 16;
        CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[t]));
    }
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    for (uint32_t t = 0; t < 2 - rank; t++)
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[rank][t], grads[rank][t], &requests[t]));
    CROWD_OK(crowd, session, weft_wait(&requests[0], 0));
    if (rank == 0)
        CROWD_REFUSED(crowd, session, weft_wait(&requests[1], 200), WEFT_ERR_DEADLINE,
                      "push_pull of tensor 'scarce' step 1 waits until rank 1");
    pthread_barrier_wait(&crowd->meet); /* rank 1 is here while rank 0 waits 200 ms */
    if (rank == 0) CROWD_REFUSED(crowd, session, weft_wait(&requests[1], 0), WEFT_ERR_MISMATCH, "'scarce'");
    else CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_MISMATCH, "'scarce'");
}

static void test_scarce(void **state)
{
    struct crowd crowd = {.workers = 0};
    crowd_run(&crowd, 2, push_less);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),        cmocka_unit_test(test_weighted_bits),
        cmocka_unit_test(test_together),    cmocka_unit_test(test_alone),
        cmocka_unit_test(test_declaration), cmocka_unit_test(test_priority),
        cmocka_unit_test(test_learned),     cmocka_unit_test(test_scarce),
        cmocka_unit_test(test_overtakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
