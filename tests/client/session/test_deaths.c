/* test_deaths.c - a process of the job is killed. Every other process ends its wait with PEER_LOST and the
 * name of the dead process, long before the deadline, and no process remains. Real processes: three workers
 * and two shards.
 *
 * All workers run steps; worker 0 kills the victim between two steps. */
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/fleet.h"
#include "weft/weft.h"

#define ELEMS 300000u
#define STEPS_MAX 100000u
#define KILL_AT 5u

enum { VICTIM_WORKER, VICTIM_SHARD, VICTIM_NONE };
static int victim_kind;
static enum weft_mode tensor_mode;

/* In shared memory: what each worker observed. */
struct witness {
    int status;
    char text[480];
};

static int step_until_it_ends(struct fleet *fleet, struct weft_session *session, struct weft_tensor *tensor,
                              float *grad, float *weights)
{
    struct witness *witness = (struct witness *)fleet->user + weft_rank(session);
    struct weft_request request = {{0}};
    for (uint32_t step = 1; step < STEPS_MAX; step++) {
        if (step == KILL_AT && weft_rank(session) == 0 && victim_kind != VICTIM_NONE)
            kill(victim_kind == VICTIM_WORKER ? fleet->worker_pids[2] : fleet->shard_pids[1], SIGKILL);
        enum weft_status status =
            weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.01f, .weight = 1});
        if (status >= 0) status = weft_push_pull(tensor, grad, weights, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        if (status >= 0) status = weft_step_end(session);
        if (status >= 0) continue;
        witness->status = status;
        snprintf(witness->text, sizeof witness->text, "%s", weft_error_text(session));
        return 0;
    }
    return 1;
}

static int worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_tensor_options tensor_options;
    struct weft_session *session;
    struct weft_tensor *tensor;
    if (fleet_join(fleet, rank, 120000, &session) != 0) return 1;
    weft_tensor_options_init(&tensor_options);
    tensor_options.name = "fc1";
    tensor_options.dim_count = 1;
    tensor_options.dims[0] = ELEMS;
    tensor_options.optimizer = "sgd";
    tensor_options.mode = tensor_mode;
    tensor_options.chunk_bytes = 256 << 10;
    float *grad = weft_alloc(session, ELEMS * 4), *weights = weft_alloc(session, ELEMS * 4);
    int rc = 2;
    if (weft_declare(session, &tensor_options, &tensor) >= 0 && weft_tensor_init(tensor, weights) >= 0)
        rc = step_until_it_ends(fleet, session, tensor, grad, weights);
    else
        fprintf(stderr, "rank %u: %s\n", rank, weft_error_text(session));
    weft_finalize(session);
    return rc;
}

static void check_deaths(int kind, enum weft_mode mode, uint32_t shards)
{
    struct fleet_result result;
    void *user;
    victim_kind = kind;
    tensor_mode = mode;
    fleet_run(3, shards, worker, &result, &user);
    const struct witness *witnesses = user;
    for (uint32_t rank = 0; rank < 3; rank++) {
        if (kind == VICTIM_WORKER && rank == 2) {
            assert_true(WIFSIGNALED(result.worker_status[rank]));
            continue;
        }
        assert_int_equal(result.worker_status[rank], 0);
        if (witnesses[rank].status != WEFT_ERR_PEER_LOST ||
            !strstr(witnesses[rank].text, kind == VICTIM_WORKER ? "rank 2 (" : "shard 1 ("))
            fail_msg("rank %u ended with %s, \"%s\"", rank, weft_status_name(witnesses[rank].status),
                     witnesses[rank].text);
    }
}

static void test_worker_dies_server_mode(void **state) { check_deaths(VICTIM_WORKER, WEFT_MODE_SERVER, 2); }
static void test_shard_dies_server_mode(void **state) { check_deaths(VICTIM_SHARD, WEFT_MODE_SERVER, 2); }
static void test_worker_dies_all_reduce(void **state)
{
    check_deaths(VICTIM_WORKER, WEFT_MODE_ALL_REDUCE, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_dies_server_mode),
        cmocka_unit_test(test_shard_dies_server_mode),
        cmocka_unit_test(test_worker_dies_all_reduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
