/* test_exposed_shards.c - weft_stats in server mode: the time that shards wait for a late rank is
 * exposed_peers_ns. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { RANKS = 3, ELEMS = 5000, STEPS = 5, LATE_MS = 50, SLOW = 1 };

/* Set before the processes are forked. */
static const char *codec;
static bool is_one_slow;

static int train(struct fleet *fleet, uint32_t rank)
{
    static float grad[ELEMS], mean[ELEMS];
    struct weft_session *session;
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    weft_tensor_options_init(&options);
    options.name = "t";
    options.dim_count = 1;
    options.dims[0] = ELEMS;
    options.codec = codec;
    options.chunk_bytes = 4096;
    MUST(session, weft_declare(session, &options, &tensor));
    for (uint32_t step = 1; step <= STEPS; step++) {
        struct weft_request request = {{0}};
        MUST(session, weft_barrier(session, &request));
        MUST(session, weft_wait(&request, 0));
        MUST(session, weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}));
        if (is_one_slow && rank == SLOW) nanosleep(&(struct timespec){0, LATE_MS * 1000000}, NULL);
        MUST(session, weft_push_pull(tensor, grad, mean, &request));
        MUST(session, weft_wait(&request, 0));
        MUST(session, weft_step_end(session));
    }
    struct weft_stats stats = {.size = sizeof stats};
    MUST(session, weft_stats_get(session, &stats));
    const double late_ns = STEPS * LATE_MS * 1e6, peers = (double)stats.exposed_peers_ns;
    const bool waits = is_one_slow && rank != SLOW;
    const bool right =
        (strcmp(codec, "dense") == 0 || stats.encode_ns > 0) &&
        stats.exposed_peers_ns + stats.exposed_network_ns == stats.exposed_ns &&
        (waits ? peers > late_ns / 2 && peers > 0.5 * (double)stats.exposed_ns : peers < late_ns / 2);
    if (!right)
        fprintf(stderr, "rank %u, %s, slow %d: exposed %.1f ms, of that for peers %.1f ms\n", rank, codec,
                is_one_slow, (double)stats.exposed_ns / 1e6, peers / 1e6);
    weft_finalize(session);
    return right ? 0 : 1;
}

static void run(const char *with_codec, bool slow)
{
    struct fleet_result result;
    void *shared;
    codec = with_codec;
    is_one_slow = slow;
    assert_true(fleet_run(RANKS, 2, train, &result, &shared));
}

static void test_slow_rank(void **state)
{
    run("dense", true);
    run("bf16", true);
}

static void test_equal_ranks(void **state) { run("dense", false); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow_rank), cmocka_unit_test(test_equal_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
