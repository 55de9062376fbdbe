/* test_session.c - sessions that work: collectives, all-reduce tensors, steps, memory, statistics. Several
 * sessions in one process over UCX tcp. */
#include "tests/lib/check.h"

#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "tests/client/crowd.h"
#include "kernels/kernels.h"

#define COUNT 10007u

static enum weft_status finish(enum weft_status started, struct weft_request *request)
{
    return started < 0 ? started : weft_wait(request, 0);
}

/* ---- collectives ---- */

static void collectives(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    uint32_t ranks = weft_ranks(session);
    CROWD_CHECK(crowd, session,
                ranks == crowd->workers && weft_rank(session) == rank && weft_shards(session) == 0);
    float *in = weft_alloc(session, COUNT * 4 * ranks), *out = weft_alloc(session, COUNT * 4 * ranks);
    struct weft_request request = {{0}};
    for (uint32_t i = 0; i < COUNT * ranks; i++) in[i] = (float)(i % 1000) + (float)rank;
    float rank_sum = (float)(ranks * (ranks - 1) / 2);

    CROWD_OK(crowd, session,
             finish(weft_all_reduce(session, in, out, COUNT, WEFT_F32, WEFT_SUM, &request), &request));
    bool right = true;
    for (uint32_t i = 0; i < COUNT; i++) right &= out[i] == (float)(i % 1000) * (float)ranks + rank_sum;
    CROWD_CHECK(crowd, session, right);

    CROWD_OK(crowd, session,
             finish(weft_reduce_scatter(session, in, out, COUNT, WEFT_F32, WEFT_SUM, &request), &request));
    right = true;
    for (uint32_t i = 0; i < COUNT; i++)
        right &= out[i] == (float)((rank * COUNT + i) % 1000) * (float)ranks + rank_sum;
    CROWD_CHECK(crowd, session, right);

    memcpy(out + rank * COUNT, in, COUNT * 4); /* in place */
    CROWD_OK(crowd, session,
             finish(weft_all_gather(session, out + rank * COUNT, out, COUNT, WEFT_F32, &request), &request));
    right = true;
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t i = 0; i < COUNT; i++) right &= out[r * COUNT + i] == (float)(i % 1000) + (float)r;
    CROWD_CHECK(crowd, session, right);

    CROWD_OK(crowd, session,
             finish(weft_broadcast(session, in, COUNT, WEFT_F32, ranks - 1, &request), &request));
    right = true;
    for (uint32_t i = 0; i < COUNT; i++) right &= in[i] == (float)(i % 1000) + (float)(ranks - 1);
    CROWD_CHECK(crowd, session, right);
    CROWD_OK(crowd, session, finish(weft_barrier(session, &request), &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0)); /* a second wait returns the same status */
    weft_free(session, in); /* out is freed with the session */
}

static void test_collectives(void **state)
{
    for (uint32_t workers = 1; workers <= 3; workers++) {
        struct crowd crowd = {0};
        crowd_run(&crowd, workers, collectives);
        assert_int_equal(crowd.failures, 0);
    }
}

/* Many operations at once, of different sizes, waited for in another order. */
static void many(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { OPERATIONS = 60 };
    static const char *const plans[] = {"auto", "ring", "direct"};
    struct weft_request requests[OPERATIONS];
    int64_t *data[OPERATIONS];
    memset(requests, 0, sizeof requests);
    for (uint32_t k = 0; k < OPERATIONS; k++) {
        uint64_t count = 1 + k * 37;
        data[k] = weft_alloc(session, count * 8);
        for (uint64_t i = 0; i < count; i++) data[k][i] = (int64_t)(i + k) * (rank + 1);
        CROWD_OK(crowd, session, weft_set_plan(session, plans[k % 3]));
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, data[k], data[k], count, WEFT_I64, WEFT_SUM, &requests[k]));
    }
    for (uint32_t k = OPERATIONS; k-- > 0;) CROWD_OK(crowd, session, weft_wait(&requests[k], 0));
    int64_t factor = crowd->workers * (crowd->workers + 1) / 2;
    bool right = true;
    for (uint32_t k = 0; k < OPERATIONS; k++)
        for (uint64_t i = 0; i < 1 + k * 37; i++) right &= data[k][i] == (int64_t)(i + k) * factor;
    CROWD_CHECK(crowd, session, right);
}

static void test_many_at_once(void **state)
{
    struct crowd crowd = {.secret = "between us"};
    crowd_run(&crowd, 3, many);
    assert_int_equal(crowd.failures, 0);
}

/* Several threads of one rank wait at once, each for its own request; one of them has a deadline that
 * passes. The thread that steps the engine completes the requests of the other threads too. */
enum { WAITING_THREADS = 4, WAITED_ROUNDS = 100 };

struct waiting {
    struct crowd *crowd;
    struct weft_session *session;
    struct weft_request request;
    int64_t value;
    uint64_t timeout_ms;
};

static void *wait_for_own(void *argument)
{
    struct waiting *waiting = argument;
    if (waiting->timeout_ms) {
        enum weft_status status = weft_wait(&waiting->request, waiting->timeout_ms);
        CROWD_CHECK(waiting->crowd, waiting->session, status == WEFT_OK || status == WEFT_ERR_DEADLINE);
        if (status == WEFT_ERR_DEADLINE)
            CROWD_CHECK(waiting->crowd, waiting->session,
                        strstr(weft_error_text(waiting->session), "wait again"));
    }
    CROWD_OK(waiting->crowd, waiting->session, weft_wait(&waiting->request, 0));
    return NULL;
}

static void waiting_threads(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    for (int round = 0; round < WAITED_ROUNDS; round++) {
        struct waiting waitings[WAITING_THREADS];
        pthread_t threads[WAITING_THREADS];
        memset(waitings, 0, sizeof waitings);
        for (int i = 0; i < WAITING_THREADS; i++) {
            struct waiting *waiting = &waitings[i];
            *waiting = (struct waiting){
                .crowd = crowd, .session = session, .value = i + 1, .timeout_ms = i == 0 ? 1 : 0};
            /* the other ranks wait for the operation */
            if (rank == 1 && round % 20 == 0 && i == 2) usleep(5000);
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, &waiting->value, &waiting->value, 1, WEFT_I64, WEFT_SUM,
                                     &waiting->request));
        }
        for (int i = 0; i < WAITING_THREADS; i++)
            CROWD_CHECK(crowd, session,
                        pthread_create(&threads[i], NULL, wait_for_own,
                                       &waitings[(i + round) % WAITING_THREADS]) == 0);
        for (int i = 0; i < WAITING_THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < WAITING_THREADS; i++)
            CROWD_CHECK(crowd, session, waitings[i].value == (i + 1) * (int64_t)crowd->workers);
    }
}

static void test_waiting_threads(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, waiting_threads);
    assert_int_equal(crowd.failures, 0);
}

/* ---- a tensor in all-reduce mode ---- */

static float gradient(uint32_t rank, uint32_t step, uint32_t i)
{
    return sinf((float)(rank * 7919 + step * 104729 + i));
}
static float sample_weight(uint32_t rank, uint32_t step) { return step == 1 ? 1.0f : 0.25f + (float)rank; }

/* Reference: reduce by the canonical tree T over ranks, then the kernel. */
static void reference_step(uint32_t ranks, uint32_t step, float lr, float *weights, float *velocity,
                           const struct weft_sgd *rules)
{
    float *parts[CROWD_MAX], *freed[32];
    struct weft_tree_reduce fold;
    uint32_t freed_count;
    double sum = 0;
    weft_tree_reduce_init(&fold, COUNT);
    for (uint32_t r = 0; r < ranks; r++) {
        parts[r] = malloc(COUNT * 4);
        for (uint32_t i = 0; i < COUNT; i++) parts[r][i] = gradient(r, step, i);
        if (sample_weight(r, step) != 1.0f)
            weft_kernels()->scale_f32(parts[r], parts[r], sample_weight(r, step), COUNT);
        sum += (double)sample_weight(r, step);
        weft_tree_reduce_add(&fold, parts[r], freed);
    }
    struct weft_sgd sgd = *rules;
    sgd.lr = lr;
    float *total = weft_tree_reduce_finish(&fold, freed, &freed_count);
    weft_kernels()->sgd_f32(weights, velocity, total, (float)(1.0 / (double)(float)sum), &sgd, COUNT);
    for (uint32_t r = 0; r < ranks; r++) free(parts[r]);
}

static void trains(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    struct weft_request request = {{0}};
    struct weft_stats stats = {.size = sizeof stats};
    float *weights = weft_alloc(session, COUNT * 4), *grad = weft_alloc(session, COUNT * 4);
    float *wanted = malloc(COUNT * 4), *velocity = calloc(COUNT, 4);
    weft_tensor_options_init(&options);
    options.name = "fc1";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.optimizer = "sgd:momentum=0.9,weight_decay=1e-3";
    if (!CROWD_OK(crowd, session, weft_declare(session, &options, &tensor))) return;
    for (uint32_t i = 0; i < COUNT; i++) {
        wanted[i] = cosf((float)i);
        weights[i] = rank == 0 ? wanted[i] : 0;
    }
    CROWD_OK(crowd, session, weft_tensor_init(tensor, weights));
    CROWD_CHECK(crowd, session, memcmp(weights, wanted, COUNT * 4) == 0);
    for (uint32_t step = 1; step <= 4; step++) {
        struct weft_step begin = {
            .step = step, .lr = 0.1f / (float)step, .weight = sample_weight(rank, step)};
        CROWD_OK(crowd, session, weft_step_begin(session, &begin));
        for (uint32_t i = 0; i < COUNT; i++) grad[i] = gradient(rank, step, i);
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, weights, &request));
        CROWD_OK(crowd, session, weft_step_end(session));
        CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_OK);
        reference_step(crowd->workers, step, begin.lr, wanted, velocity,
                       &(struct weft_sgd){.momentum = 0.9f, .weight_decay = 1e-3f});
        if (!CROWD_CHECK(crowd, session, memcmp(weights, wanted, COUNT * 4) == 0)) break;
    }
    CROWD_OK(crowd, session, weft_stats_get(session, &stats));
    CROWD_CHECK(crowd, session, stats.steps == 4 && stats.requests >= 4 && stats.step_ns >= stats.exposed_ns);
    CROWD_CHECK(crowd, session,
                crowd->workers == 1 || (stats.sent_bytes > 4 * COUNT && stats.received_bytes > 4 * COUNT));
    free(wanted);
    free(velocity);
}

static void test_all_reduce_tensor(void **state)
{
    for (uint32_t workers = 1; workers <= 3; workers += 2) {
        struct crowd crowd = {0};
        crowd_run(&crowd, workers, trains);
        assert_int_equal(crowd.failures, 0);
    }
}

/* Without an optimiser: the weighted mean, in place and out of place; other dtypes when all weights are 1. */
static void means(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor_options options;
    struct weft_tensor *f32 = NULL, *i64 = NULL;
    struct weft_request requests[2] = {{{0}}, {{0}}};
    float grad[3] = {(float)rank, 1, -2}, out[3];
    int64_t whole[2] = {10 * rank, 4};
    weft_tensor_options_init(&options);
    options.name = "mean";
    options.dim_count = 1;
    options.dims[0] = 3;
    CROWD_OK(crowd, session, weft_declare(session, &options, &f32));
    options.name = "whole";
    options.dims[0] = 2;
    options.dtype = WEFT_I64;
    CROWD_OK(crowd, session, weft_declare(session, &options, &i64));
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0, .weight = 1}));
    CROWD_OK(crowd, session, weft_push_pull(f32, grad, out, &requests[0]));
    CROWD_OK(crowd, session, weft_push_pull(i64, whole, whole, &requests[1]));
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, out[0] == 0.5f && out[1] == 1 && out[2] == -2);
    CROWD_CHECK(crowd, session, whole[0] == 5 && whole[1] == 4);
    CROWD_OK(
        crowd, session,
        weft_step_begin(session, &(struct weft_step){.step = 2, .lr = 0, .weight = rank == 0 ? 1.0f : 3.0f}));
    CROWD_OK(crowd, session, weft_push_pull(f32, grad, grad, &requests[0]));
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, grad[0] == 0.75f && grad[1] == 1 && grad[2] == -2);
}

static void test_means(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, means);
    assert_int_equal(crowd.failures, 0);
}

/* ---- memory and the recorder ---- */

/* Is the address in the memory file that peers map? */
static bool is_transport_memory(const void *address)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long first, last;
        if (sscanf(line, "%lx-%lx", &first, &last) != 2 || (uintptr_t)address < first ||
            (uintptr_t)address >= last)
            continue;
        found = strstr(line, "memfd:weft-memory") != NULL;
    }
    if (maps) fclose(maps);
    return found;
}

static void memory(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const char *backend = getenv("WEFT_TRANSPORT_BACKEND");
    bool mapped = !backend || strcmp(backend, "shm") == 0 || strcmp(backend, "auto") == 0;
    uint8_t *shared = weft_alloc(session, 100000);
    CROWD_CHECK(crowd, session, shared && is_transport_memory(shared) == mapped);
    weft_free(session, shared);
    weft_free(session, &mapped); /* not of weft_alloc: logged and ignored */
    for (size_t bytes = 0; bytes < 5000; bytes += 777) {
        uint8_t *block = weft_alloc(session, bytes);
        CROWD_CHECK(crowd, session,
                    block && (uintptr_t)block % 64 == 0 &&
                        (bytes == 0 || (block[0] == 0 && block[bytes - 1] == 0)));
        if (bytes % 2) weft_free(session, block);
    }
    CROWD_CHECK(crowd, session, weft_alloc(session, SIZE_MAX - 3) == NULL);
    CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "no memory") != NULL);
    float mine[4] = {1, 2, 3, 4};
    struct weft_request request = {{0}};
    char path[64];
    snprintf(path, sizeof path, "/tmp/weft-test-%ld-%u.json", (long)getpid(), rank);
    CROWD_OK(crowd, session,
             finish(weft_all_reduce(session, mine, mine, 4, WEFT_F32, WEFT_SUM, &request), &request));
    CROWD_OK(crowd, session, weft_dump_events(session, path));
    FILE *file = fopen(path, "r");
    char text[4096] = "";
    CROWD_CHECK(crowd, session, file && fread(text, 1, sizeof text - 1, file) > 0 && strstr(text, "rank"));
    if (file) fclose(file);
    unlink(path);
    CROWD_REFUSED(crowd, session, weft_dump_events(session, "/nonexistent/x.json"), WEFT_ERR_IO,
                  "No such file");
    CROWD_REFUSED(crowd, session, weft_dump_events(session, ""), WEFT_ERR_INVALID, "empty");
}

static void test_memory(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, memory);
    assert_int_equal(crowd.failures, 0);
}

/* Disowned memory stays when its session has ended. */
static uint8_t *disowned[2];

static void disown(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    uint8_t *freed = weft_alloc(session, 8);
    disowned[rank] = weft_alloc(session, 70000);
    memset(disowned[rank], 7, 70000);
    CROWD_OK(crowd, session, weft_disown(session, disowned[rank]));
    CROWD_OK(crowd, session, weft_disown(session, freed));
    CROWD_REFUSED(crowd, session, weft_disown(session, freed), WEFT_ERR_NOT_FOUND, "not from weft_alloc");
    weft_free(NULL, freed);
}

static void test_disown(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, disown);
    assert_int_equal(crowd.failures, 0);
    for (size_t rank = 0; rank < 2; rank++) {
        assert_int_equal(disowned[rank][0] + disowned[rank][69999], 14);
        weft_free(NULL, disowned[rank]);
    }
}

/* A thread that learns of the failure frees its memory while the engine still completes other requests. */
struct two_ends {
    sem_t heard, freed;
    _Atomic uint32_t count;
    struct one_end {
        struct two_ends *both;
        struct weft_request request;
        uint8_t *memory;
        bool first;
    } ends[2];
};

static void on_end(void *context, enum weft_status status)
{
    struct one_end *end = context;
    end->first = atomic_fetch_add(&end->both->count, 1) == 0;
    if (!end->first) return;
    sem_post(&end->both->heard);
    sem_wait(&end->both->freed);
}

static void frees_on_the_way_out(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { BYTES = 1 << 20 };
    struct two_ends both = {.count = 0};
    /* all ranks have returned from weft_init */
    enum weft_status met = finish(weft_barrier(session, &both.ends[0].request), &both.ends[0].request);
    if (rank > 0) { /* it learns of the failure here or later */
        CROWD_CHECK(crowd, session,
                    met < 0 || finish(weft_recv(session, &met, 1, WEFT_U8, 0, &both.ends[0].request),
                                      &both.ends[0].request) < 0);
        return;
    }
    CROWD_OK(crowd, session, met);
    sem_init(&both.heard, 0, 0);
    sem_init(&both.freed, 0, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct one_end *end = &both.ends[i];
        *end = (struct one_end){.both = &both, .memory = weft_alloc(session, BYTES)};
        struct weft_call call = {sizeof call,      WEFT_CALL_RECV, .out = end->memory,  .count = BYTES,
                                 .dtype = WEFT_U8, .root = 1,      .completed = on_end, .context = end};
        CROWD_OK(crowd, session, weft_call_start(session, &call, &end->request));
    }
    CROWD_OK(crowd, session, weft_abort(session, "enough"));
    sem_wait(&both.heard);
    struct one_end *other = &both.ends[both.ends[0].first];
    weft_free(session, other->memory);
    CROWD_CHECK(crowd, session, weft_test(&other->request) == WEFT_IN_PROGRESS);
    memset(other->memory, 1, BYTES); /* the engine may write it too */
    sem_post(&both.freed);
    CROWD_CHECK(crowd, session, weft_wait(&other->request, 0) < 0);
    sem_destroy(&both.heard);
    sem_destroy(&both.freed);
}

static void test_frees_on_the_way_out(void **state)
{
    struct crowd crowd = {.workers = 0};
    crowd_run(&crowd, 2, frees_on_the_way_out);
    assert_int_equal(crowd.failures, 0);
}

/* Every rank has the cost of rank 0's table, with or without a file of its own. */
struct links {
    struct weft_link_cost wanted;
};

/* A rank that leaves right after weft_init may not be connected with all others. They learn that it has
 * left, not that it is lost. */
static void leaves_at_once(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    if (rank == 2) return;
    CROWD_OK(crowd, session, weft_barrier(session, &request));
    CROWD_REFUSED(crowd, session, weft_wait(&request, 0), WEFT_ERR_PEER_LOST, "left the group before");
    CROWD_CHECK(crowd, session, !strstr(weft_error_text(session), "no word")); /* no report was due */
}

static void test_leaves_at_once(void **state)
{
    struct crowd crowd = {.workers = 0};
    crowd_run(&crowd, 3, leaves_at_once);
    assert_int_equal(crowd.failures, 0);
}

static void costs(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct links *links = crowd->user;
    const struct weft_link_cost *cost = weft_group_cost(session->engine->group);
    CROWD_CHECK(crowd, session, memcmp(cost, &links->wanted, sizeof *cost) == 0);
    float value = 1;
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session,
             finish(weft_all_reduce(session, &value, &value, 1, WEFT_F32, WEFT_SUM, &request), &request));
    CROWD_CHECK(crowd, session, value == 3);
}

static void test_link_cost(void **state)
{
    char path[64], host[64] = "";
    struct links links = {0};
    struct crowd crowd = {.user = &links};
    snprintf(path, sizeof path, "/tmp/weft-links-%ld", (long)getpid());
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    crowd_run(&crowd, 3, costs); /* no file: the cost is unknown */
    setenv("WEFT_COLLECTIVE_LINKS", path, 1);
    crowd_write_links(path, host, 5000, 4000000000ull);
    links.wanted = (struct weft_link_cost){.pairs = 2,
                                           .latency_ns = 5000,
                                           .bytes_per_second = 4000000000ull,
                                           .eager_bytes = 8192,
                                           .inject_ns = 640,
                                           .sum_ps = 125,
                                           .pass_ps = 90,
                                           .incast_milli = 40,
                                           .memory = {370, 480, 260, 12, 51, 2048, 491520},
                                           .runs = CROWD_RUNS};
    crowd_run(&crowd, 3, costs);
    crowd_write_links(path, host, 0, 0); /* the host, but not its link */
    links.wanted = (struct weft_link_cost){.pairs = 2, .unknown = 2};
    crowd_run(&crowd, 3, costs);
    crowd_write_links(path, "elsewhere", 5000, 4000000000ull);
    links.wanted = (struct weft_link_cost){0};
    crowd_run(&crowd, 3, costs);
    assert_int_equal(crowd.failures, 0);
    unlink(path);
    unsetenv("WEFT_COLLECTIVE_LINKS");
}

int main(void)
{
    setenv("UCX_MEM_EVENTS", "n", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_all_reduce_tensor),
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_disown),
        cmocka_unit_test(test_waiting_threads),
        cmocka_unit_test(test_link_cost),
        cmocka_unit_test(test_leaves_at_once),
        cmocka_unit_test(test_frees_on_the_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
