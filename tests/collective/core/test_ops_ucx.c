/* test_ops_ucx.c - the same operations over real sockets: 2 to 4 endpoints in one process, UCX tcp on
 * loopback. */
#include "tests/collective/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

#define RANKS_MAX 4
#define PATIENCE_NS WEFT_SECONDS(20) /* only a hang takes that long */

static struct weft_loop *loops[RANKS_MAX];
static struct weft_transport *transports[RANKS_MAX];
static struct weft_group *groups[RANKS_MAX];
static struct weft_env quiet;
static bool available;

static void open_all(uint32_t ranks)
{
    uint32_t ids[RANKS_MAX];
    quiet = *weft_env_system();
    quiet.log_level = WEFT_LOG_ERROR;
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_loop_options loop_options;
        weft_loop_options_init(&loop_options);
        loop_options.spin_us = 0;
        assert_int_equal(weft_loop_create(&quiet, &loop_options, &loops[r]), WEFT_OK);
        struct weft_transport_options options;
        weft_transport_options_init(&options);
        options.backend = "ucx";
        options.id = ids[r] = 40 + r;
        options.nonce = 12345;
        struct weft_error error = {0};
        if (weft_transport_open(&quiet, &options, &transports[r], &error) < 0) fail_msg("%s", error.text);
        assert_int_equal(weft_transport_attach(transports[r], loops[r]), WEFT_OK);
    }
    for (uint32_t a = 0; a < ranks; a++) {
        const void *blob;
        size_t bytes;
        assert_int_equal(weft_transport_address(transports[a], &blob, &bytes), WEFT_OK);
        for (uint32_t b = 0; b < ranks; b++) {
            struct weft_peer *peer;
            if (a != b)
                assert_int_equal(weft_transport_connect(transports[b], 40 + a, blob, bytes, &peer), WEFT_OK);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_group_options options;
        weft_group_options_init(&options);
        options.transport = transports[r];
        options.loop = loops[r];
        options.rank = r;
        options.ranks = ranks;
        options.endpoint_ids = ids;
        options.group_id = 9;
        options.chunk_bytes = 65536;
        assert_int_equal(weft_group_create(&quiet, &options, &groups[r], NULL), WEFT_OK);
    }
}

/* Steps all loops in turn until *done; false after PATIENCE_NS. */
static bool run_all(uint32_t ranks, const bool *done)
{
    uint64_t until_ns = weft_now_ns(&quiet) + PATIENCE_NS;
    while (!*done && weft_now_ns(&quiet) < until_ns)
        for (uint32_t r = 0; r < ranks; r++)
            if (loops[r]) weft_loop_step(loops[r]);
    return *done;
}

static void close_all(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_group_free(groups[r]);
    for (uint32_t r = 0; r < ranks; r++)
        if (transports[r]) weft_transport_close(transports[r]);
    for (bool drained = false; !drained;) {
        drained = true;
        for (uint32_t r = 0; r < ranks; r++) {
            if (!transports[r]) continue;
            weft_transport_progress(transports[r], 100);
            drained &= weft_transport_drained(transports[r]);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) {
        weft_transport_free(transports[r]);
        weft_loop_free(loops[r]);
        transports[r] = NULL;
        loops[r] = NULL;
    }
}

static void run_call(const struct call *call, bool in_place)
{
    struct posted posted[RANKS_MAX];
    uint32_t pending = call->ranks;
    bool done = false;
    char name[160], why[200];
    call_name(call, name, sizeof name);
    for (uint32_t r = 0; r < call->ranks; r++) {
        posted_prepare(&posted[r], call, r, in_place);
        posted[r].outcome.pending = &pending;
        posted[r].outcome.all_done = &done;
        assert_int_equal(posted_start(&posted[r], groups[r], 0), WEFT_IN_PROGRESS);
    }
    if (!run_all(call->ranks, &done)) fail_msg("%s: %u ranks did not end", name, pending);
    for (uint32_t r = 0; r < call->ranks; r++) {
        if (posted[r].outcome.status != WEFT_OK) fail_msg("%s: rank %u: %s", name, r, posted[r].outcome.text);
        if (!posted_check(&posted[r], why, sizeof why))
            fail_msg("%s%s: %s", name, in_place ? ", in place" : "", why);
        posted_release(&posted[r]);
    }
}

static void all_operations(void **state)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
                                                WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST, WEFT_COLL_BARRIER};
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I64};
    static const uint64_t counts[] = {0, 1, 777, 60013};
    if (!available) skip();
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++) {
        open_all(ranks);
        uint64_t seed = 1;
        for (size_t k = 0; k < 5; k++)
            for (int plan = WEFT_PLAN_DIRECT; plan <= WEFT_PLAN_RING; plan++)
                for (size_t n = 0; n < 4; n++) {
                    if (!weft_plan_supports(plan, kinds[k])) continue;
                    struct call call = {.kind = kinds[k],
                                        .plan = plan,
                                        .dtype = dtypes[seed % 4],
                                        .op = seed % 3 ? WEFT_SUM : WEFT_AVG,
                                        .ranks = ranks,
                                        .root = (uint32_t)(seed % ranks),
                                        .count = counts[n],
                                        .seed = seed};
                    run_call(&call, seed % 2);
                    seed++;
                }
        close_all(ranks);
    }
}

/* One rank calls another count: all three end, also operations with payload in flight. */
static void mismatch(void **state)
{
    static float in[3][60000], out[3][60000];
    struct outcome outcomes[3] = {0};
    uint32_t pending = 3;
    bool done = false;
    if (!available) skip();
    open_all(3);
    for (uint32_t r = 0; r < 3; r++) {
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .in = in[r],
                                      .out = out[r],
                                      .count = r == 1 ? 59999 : 60000,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM};
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    assert_true(run_all(3, &done));
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
        assert_non_null(strstr(outcomes[r].text, "all_reduce of 59999 f32"));
    }
    close_all(3);
}

/* Rank 2 closes without a message. */
static void peer_lost(void **state)
{
    static float in[3][60000], out[3][60000];
    struct outcome outcomes[3] = {0};
    uint32_t pending = 2;
    bool done = false;
    if (!available) skip();
    open_all(3);
    for (uint32_t r = 0; r < 2; r++) {
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .in = in[r],
                                      .out = out[r],
                                      .count = 60000,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM};
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    for (int i = 0; i < 200; i++) weft_loop_step(loops[i % 3]);
    weft_transport_close(transports[2]);
    while (!weft_transport_drained(transports[2])) weft_transport_progress(transports[2], 100);
    weft_group_free(groups[2]);
    groups[2] = NULL;
    weft_transport_free(transports[2]);
    transports[2] = NULL;
    weft_loop_free(loops[2]);
    loops[2] = NULL;
    assert_true(run_all(2, &done));
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, WEFT_ERR_PEER_LOST);
        assert_non_null(strstr(outcomes[r].text, "rank 2"));
    }
    close_all(3);
}

static int find_ucx(void **state)
{
    struct weft_transport_options options;
    struct weft_transport *transport;
    struct weft_env silent = *weft_env_system();
    silent.log_level = WEFT_LOG_ERROR;
    weft_transport_options_init(&options);
    options.backend = "ucx";
    options.id = 1;
    enum weft_status status = weft_transport_open(&silent, &options, &transport, NULL);
    available = status != WEFT_ERR_UNSUPPORTED; /* a build without UCX: skipped */
    if (status == WEFT_OK) weft_transport_free(transport);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_operations), cmocka_unit_test(mismatch),
                                       cmocka_unit_test(peer_lost)};
    return cmocka_run_group_tests(tests, find_ucx, NULL);
}
