/* test_comm.c - groups of ranks (split, mesh), calls in a struct, persistent requests, groups of calls,
 * completions. Several sessions in one process. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/call/calls.h"
#include "client/comm/comm.h"
#include "client/session/session.h"
#include "client/session/topology.h"
#include "tests/client/crowd.h"

static enum weft_status finish(enum weft_status started, struct weft_request *request)
{
    return started < 0 ? started : weft_wait(request, 0);
}

/* Sum over a group of each rank's own number (its rank in the job plus one). */
static int64_t sum_on(struct crowd *crowd, struct weft_session *session, struct weft_comm *comm)
{
    int64_t value[3] = {(int64_t)weft_rank(session) + 1, 1, 100};
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session,
             finish(weft_call_start(session,
                                    WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = value,
                                              .out = value, .count = 3, .dtype = WEFT_I64),
                                    &request),
                    &request));
    CROWD_CHECK(crowd, session, value[2] == value[1] * 100);
    return value[0];
}

/* ---- split ---- */

static void split(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_comm *parity = NULL, *pair = NULL, *no_comm = (struct weft_comm *)crowd;
    /* key: the last rank first */
    CROWD_OK(crowd, session, weft_split(session, NULL, (int)(rank % 2), -(int)rank, &parity));
    uint32_t ranks = crowd->workers / 2;
    CROWD_CHECK(crowd, session,
                weft_comm_ranks(parity) == ranks && weft_comm_rank(parity) == ranks - 1 - rank / 2);
    for (uint32_t r = 0; r < ranks; r++)
        CROWD_CHECK(crowd, session, weft_comm_member(parity, r) == 2 * (ranks - 1 - r) + rank % 2);
    CROWD_CHECK(crowd, session, weft_comm_member(parity, ranks) == UINT32_MAX);
    int64_t expected = rank % 2 ? 2 + 4 + 6 : 1 + 3 + 5;
    CROWD_CHECK(crowd, session, sum_on(crowd, session, parity) == expected);
    CROWD_CHECK(crowd, session, sum_on(crowd, session, NULL) == 21);

    /* Of three ranks, the last of each is in no group; the others are a pair. */
    int colour = weft_comm_rank(parity) == 2 ? -1 : 7;
    CROWD_OK(crowd, session, weft_split(session, parity, colour, 0, colour < 0 ? &no_comm : &pair));
    if (colour < 0) {
        CROWD_CHECK(crowd, session, no_comm == NULL);
    } else {
        CROWD_CHECK(crowd, session,
                    weft_comm_ranks(pair) == 2 && sum_on(crowd, session, pair) == (rank % 2 ? 4 + 6 : 3 + 5));
        CROWD_CHECK(crowd, session, weft_comm_id(pair) > weft_comm_id(parity));
    }
    /* Ids: equal in a group, different in all others. */
    int64_t ids[CROWD_MAX], own = weft_comm_id(parity);
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session, finish(weft_all_gather(session, &own, ids, 1, WEFT_I64, &request), &request));
    for (uint32_t r = 0; r < crowd->workers; r++)
        CROWD_CHECK(crowd, session, (ids[r] == own) == (r % 2 == rank % 2));

    /* A group with an open operation cannot be freed; after it can, and other groups continue. */
    int64_t value = 1, sum;
    CROWD_OK(crowd, session,
             weft_call_start(session,
                             WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = parity, .in = &value,
                                       .out = &sum, .count = 1, .dtype = WEFT_I64),
                             &request));
    if (weft_test(&request) == WEFT_IN_PROGRESS) {
        enum weft_status status = weft_comm_free(parity);
        CROWD_CHECK(crowd, session, status == WEFT_ERR_BUSY || weft_test(&request) == WEFT_OK);
        if (status == WEFT_OK) parity = NULL;
    }
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_comm_free(parity));
    CROWD_OK(crowd, session, weft_comm_free(pair));
    CROWD_CHECK(crowd, session, sum_on(crowd, session, NULL) == 21);
    CROWD_REFUSED(crowd, session, weft_split(session, NULL, 0, 0, NULL), WEFT_ERR_INVALID, "comm_out");
}

static void test_split(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 6, split);
    assert_int_equal(crowd.failures, 0);
}

/* Many groups of the same ranks, used in another order on every rank: none waits for another. */
static void many_groups(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { GROUPS = 12 };
    struct weft_comm *comms[GROUPS];
    struct weft_request requests[GROUPS];
    int64_t values[GROUPS];
    memset(requests, 0, sizeof requests);
    for (uint32_t g = 0; g < GROUPS; g++)
        CROWD_OK(crowd, session, weft_split(session, NULL, 0, (int)((rank + g) % crowd->workers), &comms[g]));
    for (uint32_t k = 0; k < GROUPS; k++) {
        uint32_t g = rank % 2 ? k : GROUPS - 1 - k;
        values[g] = (int64_t)(rank + 1) * (g + 1);
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comms[g], .in = &values[g],
                                           .out = &values[g], .count = 1, .dtype = WEFT_I64),
                                 &requests[g]));
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        CROWD_OK(crowd, session, weft_wait(&requests[g], 0));
        CROWD_CHECK(crowd, session, values[g] == 6 * (int64_t)(g + 1));
    }
    /* Groups with the same ranks in the same order share their table of hosts, and may be freed in any
     * order. */
    for (uint32_t g = 0; g < GROUPS; g++) CROWD_CHECK(crowd, session, comms[g]->hosts == comms[g % 3]->hosts);
    CROWD_CHECK(crowd, session,
                comms[0]->hosts != comms[1]->hosts && comms[0]->hosts->user_count == GROUPS / 3);
    for (uint32_t g = 0; g < 3; g++) CROWD_OK(crowd, session, weft_comm_free(comms[g]));
    for (uint32_t g = 3; g < GROUPS; g++)
        CROWD_CHECK(crowd, session,
                    sum_on(crowd, session, comms[g]) == 6 && comms[g]->hosts->user_count == GROUPS / 3 - 1);
}

static void test_many_groups(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, many_groups);
    assert_int_equal(crowd.failures, 0);
}

/* ---- short calls beside a long one ---- */

/* Short calls on one group bypass the loop, but an operation on another needs it: some of them go to the
 * engine, soon. */
static void short_beside_open(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { CALLS = 100, COUNT = 3000, AT_MOST = 8 };
    static int64_t in[2][COUNT], out[2][COUNT];
    struct weft_comm *pair = NULL;
    struct weft_request open = {{0}};
    CROWD_OK(crowd, session, weft_split(session, NULL, 0, (int)rank, &pair));
    for (int i = 0; i < COUNT; i++) in[rank][i] = i + rank;
    if (rank == 0)
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, in[rank], out[rank], COUNT, WEFT_I64, WEFT_SUM, &open));
    for (int i = 0; i < CALLS; i++) { /* rank 1 has not called the other operation yet */
        CROWD_CHECK(crowd, session, sum_on(crowd, session, pair) == 3);
        CROWD_CHECK(crowd, session, rank == 1 || session->calls->fastpath.calls_since_step < AT_MOST);
    }
    if (rank == 1)
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, in[rank], out[rank], COUNT, WEFT_I64, WEFT_SUM, &open));
    CROWD_OK(crowd, session, weft_wait(&open, 0));
    for (int i = 0; i < COUNT; i++) CROWD_CHECK(crowd, session, out[rank][i] == 2 * i + 1);
    CROWD_OK(crowd, session, weft_comm_free(pair));
}

static void test_short_beside_open(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, short_beside_open);
    assert_int_equal(crowd.failures, 0);
}

/* A mismatch in a small group is found, and the sentence names the group. */
static void mismatch(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_comm *half = NULL;
    struct weft_request request = {{0}};
    float data[8] = {0};
    CROWD_OK(crowd, session, weft_split(session, NULL, rank < 2, 0, &half));
    /* the next call ends the job, and a split that has not returned yet */
    pthread_barrier_wait(&crowd->meet);
    if (rank >= 2) {
        pthread_barrier_wait(&crowd->meet);
        return;
    }
    enum weft_status status =
        finish(weft_call_start(session,
                               WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = half, .in = data, .out = data,
                                         .count = 7 + rank, .dtype = WEFT_F32),
                               &request),
               &request);
    CROWD_CHECK(crowd, session, status == WEFT_ERR_MISMATCH);
    CROWD_CHECK(crowd, session,
                strstr(weft_error_text(session), "colour 1") && strstr(weft_error_text(session), "count"));
    pthread_barrier_wait(&crowd->meet);
}

static void test_mismatch(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 4, mismatch);
    assert_int_equal(crowd.failures, 0);
}

/* ---- mesh ---- */

static void mesh(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const struct weft_axis axes[] = {{"dp", 2}, {"tp", 0}, {"pp", 2}}, bad[] = {{"dp", 3}, {"tp", 2}},
                                  twice[] = {{"dp", 4}, {"dp", 2}};
    struct weft_mesh *mesh = NULL;
    struct weft_comm *comm = NULL, *again = NULL;
    CROWD_REFUSED(crowd, session, weft_mesh_create(session, bad, 2, &mesh), WEFT_ERR_INVALID,
                  "dp=3 x tp=2 does not fit the 8 ranks");
    CROWD_REFUSED(crowd, session, weft_mesh_create(session, twice, 2, &mesh), WEFT_ERR_INVALID, "two axes");
    CROWD_OK(crowd, session, weft_mesh_create(session, axes, 3, &mesh));
    CROWD_CHECK(crowd, session, weft_mesh_size(mesh, "tp") == 2 && weft_mesh_size(mesh, "ep") == 0);
    const uint32_t at[3] = {weft_mesh_coordinate(mesh, "dp", rank), weft_mesh_coordinate(mesh, "tp", rank),
                            weft_mesh_coordinate(mesh, "pp", rank)};
    CROWD_CHECK(crowd, session,
                at[0] == rank / 4 && at[1] == rank / 2 % 2 && at[2] == rank % 2 &&
                    weft_mesh_rank(mesh, at) == rank);
    CROWD_CHECK(crowd, session, weft_mesh_coordinate(mesh, "dp", 8) == UINT32_MAX);

    static const uint32_t strides[] = {4, 2, 1};
    for (uint32_t axis = 0; axis < 3; axis++) {
        CROWD_OK(crowd, session, weft_mesh_comm(mesh, axes[axis].name, &comm));
        uint32_t first = rank - at[axis] * strides[axis];
        CROWD_CHECK(crowd, session, weft_comm_ranks(comm) == 2 && weft_comm_rank(comm) == at[axis]);
        CROWD_CHECK(crowd, session, sum_on(crowd, session, comm) == 2 * ((int64_t)first + 1) + strides[axis]);
    }
    /* Two axes at once: the ranks of one tp coordinate, in rank order. */
    CROWD_OK(crowd, session, weft_mesh_comm(mesh, "pp,dp", &comm));
    int64_t expected = 0;
    for (uint32_t r = 0; r < 8; r++)
        if (r / 2 % 2 == at[1]) expected += r + 1;
    CROWD_CHECK(crowd, session,
                weft_comm_ranks(comm) == 4 && weft_comm_rank(comm) == at[0] * 2 + at[2] &&
                    sum_on(crowd, session, comm) == expected);
    CROWD_OK(crowd, session, weft_mesh_comm(mesh, "dp,pp", &again));
    CROWD_CHECK(crowd, session, again == comm);
    CROWD_REFUSED(crowd, session, weft_mesh_comm(mesh, "dp,ep", &comm), WEFT_ERR_INVALID,
                  "'ep' is none of its axes");
    CROWD_OK(crowd, session, weft_mesh_free(mesh));

    /* All ranks name the rank with another mesh. */
    const struct weft_axis other[] = {{"dp", 2}, {rank == 5 ? "cp" : "tp", 4}};
    enum weft_status status = weft_mesh_create(session, other, 2, &mesh);
    CROWD_CHECK(crowd, session, status == WEFT_ERR_MISMATCH && strstr(weft_error_text(session), "axis 1 is"));
    CROWD_CHECK(crowd, session, sum_on(crowd, session, NULL) == 36); /* no other operation has ended */
}

static void test_mesh(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 8, mesh);
    assert_int_equal(crowd.failures, 0);
}

/* ---- persistent requests, completions ---- */

struct counted {
    _Atomic uint32_t calls, errors;
    struct weft_request *request;
};

static void count_completion(void *context, enum weft_status status)
{
    struct counted *counted = context;
    atomic_fetch_add(&counted->errors, status < 0 || weft_test(counted->request) != WEFT_IN_PROGRESS);
    atomic_fetch_add(&counted->calls, 1);
}

static void persistent(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { ROUNDS = 50, COUNT = 1000 };
    float in[COUNT], out[COUNT];
    struct weft_request request = {{0}}, once = {{0}};
    struct counted counted = {.request = &request};
    CROWD_OK(crowd, session,
             weft_call_init(session,
                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = out, .count = COUNT,
                                      .dtype = WEFT_F32, .op = WEFT_AVG, .reproducible = true,
                                      .completed = count_completion, .context = &counted),
                            &request));
    CROWD_CHECK(crowd, session, weft_wait(&request, 0) == WEFT_OK); /* not started */
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < COUNT; i++) in[i] = (float)(i + round * (rank + 1));
        CROWD_CHECK(crowd, session, weft_start(&request) == WEFT_IN_PROGRESS);
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        bool right = atomic_load(&counted.calls) == round + 1;
        for (uint32_t i = 0; i < COUNT; i++) right &= out[i] == (float)(i + round * 2); /* mean of 1, 2, 3 */
        CROWD_CHECK(crowd, session, right);
    }
    CROWD_CHECK(crowd, session, atomic_load(&counted.errors) == 0);
    if (weft_start(&request) == WEFT_IN_PROGRESS && weft_test(&request) == WEFT_IN_PROGRESS) {
        enum weft_status status = weft_start(&request);
        CROWD_CHECK(crowd, session,
                    status == WEFT_ERR_BUSY || weft_test(&request) == WEFT_OK || status == WEFT_IN_PROGRESS);
    }
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_request_free(&request));
    CROWD_CHECK(crowd, session, weft_start(&request) == WEFT_ERR_INVALID);
    CROWD_OK(crowd, session, finish(weft_barrier(session, &once), &once));
    CROWD_REFUSED(crowd, session, weft_start(&once), WEFT_ERR_STATE, "weft_call_init");
    CROWD_REFUSED(crowd, session,
                  weft_call_start(session, &(struct weft_call){.kind = WEFT_CALL_BARRIER}, &once),
                  WEFT_ERR_INVALID, "size");
    CROWD_REFUSED(crowd, session, weft_call_start(session, WEFT_CALL(.kind = (enum weft_call_kind)6), &once),
                  WEFT_ERR_INVALID, "kind 6");
    CROWD_REFUSED(
        crowd, session,
        weft_call_start(session, WEFT_CALL(.kind = WEFT_CALL_BARRIER, .deadline_ms = 1u << 30), &once),
        WEFT_ERR_INVALID, "longer than the session's");
}

static void test_persistent(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, persistent);
    assert_int_equal(crowd.failures, 0);
}

/* An operation's own deadline ends it before the session's; the sentence names the rank that did not call. */
static void own_deadline(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    if (rank == 1) {
        pthread_barrier_wait(&crowd->meet);
        return;
    }
    int64_t value = 1;
    CROWD_REFUSED(crowd, session,
                  finish(weft_call_start(session,
                                         WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = &value, .out = &value,
                                                   .count = 1, .dtype = WEFT_I64, .deadline_ms = 100),
                                         &request),
                         &request),
                  WEFT_ERR_DEADLINE, "rank 1 (");
    pthread_barrier_wait(&crowd->meet);
}

static void test_own_deadline(void **state)
{
    struct crowd crowd = {.deadline_ms = 120000};
    crowd_run(&crowd, 2, own_deadline);
    assert_int_equal(crowd.failures, 0);
}

/* ---- groups of calls ---- */

/* Operations that this rank has posted on the group of all, by the flight recorder. */
static uint32_t operations_of(struct weft_session *session)
{
    char path[64], line[65536];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/tmp/weft-test-groups-%ld-%u.json", (long)getpid(), weft_rank(session));
    if (weft_dump_events(session, path) < 0) return 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        for (char *at = line; (at = strstr(at, "\"kind\":\"all_reduce\"")); at++) count++;
    if (file) fclose(file);
    unlink(path);
    return count;
}

static void batch(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { SMALL = 40, LARGE = 50000 };
    struct weft_request requests[SMALL + 4], single = {{0}};
    memset(requests, 0, sizeof requests);
    uint32_t next = (rank + 1) % crowd->workers, before = (rank + crowd->workers - 1) % crowd->workers,
             begun = operations_of(session);
    float *small[SMALL], *large = calloc(LARGE, sizeof *large);
    int32_t whole[5] = {1, 2, 3, 4, 5}, sent = (int32_t)rank, received = -1;
    for (uint32_t i = 0; i < LARGE; i++) large[i] = (float)(i % 100);

    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_OK(crowd, session, weft_group_start(session)); /* nested in the other */
    for (uint32_t k = 0; k < SMALL; k++) {
        small[k] = malloc((k * 11 + 1) * sizeof **small);
        for (uint32_t i = 0; i < k * 11; i++) small[k][i] = (float)(i + k * (rank + 1));
        CROWD_CHECK(crowd, session,
                    weft_all_reduce(session, small[k], small[k], k * 11, WEFT_F32, WEFT_SUM, &requests[k]) ==
                        WEFT_IN_PROGRESS);
        if (k == 7)
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, large, large, LARGE, WEFT_F32, WEFT_SUM, &requests[SMALL]));
        if (k == 9)
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, whole, whole, 5, WEFT_I32, WEFT_MAX, &requests[SMALL + 1]));
    }
    CROWD_OK(crowd, session, weft_send(session, &sent, 1, WEFT_I32, next, &requests[SMALL + 2]));
    CROWD_OK(crowd, session, weft_recv(session, &received, 1, WEFT_I32, before, &requests[SMALL + 3]));
    CROWD_REFUSED(crowd, session, weft_wait(&requests[0], 0), WEFT_ERR_STATE, "weft_group_end");
    CROWD_REFUSED(crowd, session,
                  weft_all_reduce(session, small[0], small[0], 0, WEFT_F32, WEFT_SUM, &requests[0]),
                  WEFT_ERR_BUSY, "weft_group_end");
    CROWD_REFUSED(crowd, session, weft_all_reduce(session, NULL, NULL, 1, WEFT_F32, WEFT_SUM, &single),
                  WEFT_ERR_INVALID, "NULL");
    CROWD_CHECK(crowd, session,
                weft_group_end(session) == WEFT_OK && weft_group_end(session) == WEFT_IN_PROGRESS);
    for (uint32_t k = SMALL + 4; k-- > 0;) CROWD_OK(crowd, session, weft_wait(&requests[k], 0));

    uint32_t ranks = crowd->workers, sum = ranks * (ranks + 1) / 2;
    bool right = received == (int32_t)before && whole[4] == 5 && large[77] == (float)(77 * ranks);
    for (uint32_t k = 0; k < SMALL; k++)
        for (uint32_t i = 0; i < k * 11; i++) right &= small[k][i] == (float)(i * ranks + k * sum);
    CROWD_CHECK(crowd, session, right);
    /* the small floats are one, the large, the integers */
    CROWD_CHECK(crowd, session, operations_of(session) - begun == 3);
    for (uint32_t k = 0; k < SMALL; k++) free(small[k]);
    free(large);
    CROWD_REFUSED(crowd, session, weft_group_end(session), WEFT_ERR_STATE, "group_start");
    CROWD_OK(crowd, session, weft_group_start(session)); /* left open: weft_finalize ends its calls */
    CROWD_OK(crowd, session, weft_barrier(session, &single));
}

static void test_batch(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, batch);
    assert_int_equal(crowd.failures, 0);
}

/* Persistent requests of a step as one group, repeatedly: the same bits as alone. */
static void batch_persistent(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { TENSORS = 10, COUNT = 333, ROUNDS = 10 };
    float in[TENSORS][COUNT], together[TENSORS][COUNT], alone[TENSORS][COUNT];
    struct weft_request requests[TENSORS], single = {{0}};
    uint64_t random = 88172645463325252ull + rank;
    memset(requests, 0, sizeof requests);
    for (uint32_t t = 0; t < TENSORS; t++)
        CROWD_OK(
            crowd, session,
            weft_call_init(session,
                           WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in[t], .out = together[t],
                                     .count = COUNT, .dtype = WEFT_F32, .op = WEFT_AVG, .reproducible = true),
                           &requests[t]));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint32_t i = 0; i < COUNT; i++) {
                random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                in[t][i] = (float)((double)(random >> 12) * 1e-7 - 2e8) * (random & 1 ? 1e-6f : 1.0f);
            }
        CROWD_CHECK(crowd, session, weft_start_all(requests, TENSORS) == WEFT_IN_PROGRESS);
        for (uint32_t t = 0; t < TENSORS; t++) CROWD_OK(crowd, session, weft_wait(&requests[t], 0));
        for (uint32_t t = 0; t < TENSORS; t++)
            CROWD_OK(crowd, session,
                     finish(weft_call_start(session,
                                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in[t],
                                                      .out = alone[t], .count = COUNT, .dtype = WEFT_F32,
                                                      .op = WEFT_AVG, .reproducible = true),
                                            &single),
                            &single));
        CROWD_CHECK(crowd, session, memcmp(together, alone, sizeof alone) == 0);
    }
}

static void test_batch_persistent(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, batch_persistent);
    assert_int_equal(crowd.failures, 0);
}

/* Groups with different calls, but equal sums of lengths. */
static void batch_mismatch(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    float a[8] = {0}, b[8] = {0};
    struct weft_request requests[2] = {{{0}}};
    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_OK(crowd, session, weft_all_reduce(session, a, a, rank ? 3 : 5, WEFT_F32, WEFT_SUM, &requests[0]));
    CROWD_OK(crowd, session, weft_all_reduce(session, b, b, rank ? 5 : 3, WEFT_F32, WEFT_SUM, &requests[1]));
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_CHECK(crowd, session, weft_wait(&requests[0], 0) == WEFT_ERR_MISMATCH);
    CROWD_CHECK(crowd, session, weft_wait(&requests[1], 0) == WEFT_ERR_MISMATCH);
    pthread_barrier_wait(&crowd->meet);
}

static void test_batch_mismatch(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, batch_mismatch);
    assert_int_equal(crowd.failures, 0);
}

/* ---- abort ---- */

static void *abort_soon(void *context)
{
    usleep(20000);
    weft_abort(context, "the loss is not finite");
    return NULL;
}

/* An abort from a thread that does not wait wakes every waiting thread of every rank, on all groups. */
static void aborted(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_comm *half = NULL;
    struct weft_request request = {{0}};
    pthread_t thread;
    int64_t value = 1;
    CROWD_OK(crowd, session, weft_split(session, NULL, (int)(rank / 2), 0, &half));
    if (rank == 0) CROWD_CHECK(crowd, session, pthread_create(&thread, NULL, abort_soon, session) == 0);
    if (rank % 2 == 0) /* the odd ranks never call it */
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = half, .in = &value,
                                           .out = &value, .count = 1, .dtype = WEFT_I64),
                                 &request));
    else
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_RECV, .out = &value, .count = 1,
                                           .dtype = WEFT_I64, .root = 0),
                                 &request)); /* no rank sends */
    CROWD_REFUSED(crowd, session, weft_wait(&request, 0), WEFT_ERR_ABORTED,
                  "rank 0 aborted the job: the loss is not finite");
    CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_ABORTED,
                  "the loss is not finite");
    if (rank == 0) pthread_join(thread, NULL);
}

static void test_abort(void **state)
{
    struct crowd crowd = {.deadline_ms = 120000};
    crowd_run(&crowd, 4, aborted);
    assert_int_equal(crowd.failures, 0);
}

/* Abort while all ranks call in a loop, with the largest size of an inline call (64 KiB copy-in slots if
 * oversubscribed). */
static void aborted_among_calls(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const enum weft_call_kind kinds[] = {WEFT_CALL_REDUCE, WEFT_CALL_BROADCAST, WEFT_CALL_GATHER,
                                                WEFT_CALL_ALL_REDUCE, WEFT_CALL_SCATTER};
    enum { ELEMS = 8192, TURNS = 1000000 };
    const uint32_t seed = *(const uint32_t *)crowd->user, by = seed % crowd->workers;
    struct weft_request request = {{0}};
    enum weft_status status = WEFT_OK;
    pthread_t thread;
    float *in = weft_alloc(session, 2 * ELEMS * 4), *out = weft_alloc(session, 4 * ELEMS * 4);
    if (rank == by) CROWD_CHECK(crowd, session, pthread_create(&thread, NULL, abort_soon, session) == 0);
    for (uint32_t turn = 0; turn < TURNS && status >= 0; turn++) {
        const enum weft_call_kind kind = kinds[(turn / 5 + seed) % 5];
        const uint64_t count = kind == WEFT_CALL_SCATTER || kind == WEFT_CALL_ALL_REDUCE ? ELEMS / 2 : ELEMS;
        status =
            weft_call_start(session,
                            WEFT_CALL(.kind = kind, .in = in, .out = kind == WEFT_CALL_BROADCAST ? in : out,
                                      .count = count, .dtype = WEFT_F32, .op = WEFT_SUM),
                            &request);
        if (status >= 0) status = weft_wait(&request, 0);
    }
    CROWD_REFUSED(crowd, session, status, WEFT_ERR_ABORTED, "aborted the job: the loss is not finite");
    CROWD_REFUSED(crowd, session, weft_barrier(session, &request), WEFT_ERR_ABORTED,
                  "the loss is not finite");
    if (rank == by) pthread_join(thread, NULL);
}

static void test_abort_among_calls(void **state)
{
    for (uint32_t seed = 0; seed < 10; seed++) {
        struct crowd crowd = {.deadline_ms = 120000, .user = &seed};
        crowd_run(&crowd, 2 + seed % 3, aborted_among_calls);
        assert_int_equal(crowd.failures, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_many_groups),
        cmocka_unit_test(test_short_beside_open),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_persistent),
        cmocka_unit_test(test_own_deadline),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_batch_persistent),
        cmocka_unit_test(test_batch_mismatch),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_among_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
