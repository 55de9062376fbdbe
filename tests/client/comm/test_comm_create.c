/* test_comm_create.c - groups that their members alone make (weft_comm_create). Several sessions in one
 * process: disjoint and overlapping groups, other groups in between, calls that differ or never meet. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/comm/announcement.h"
#include "client/comm/comm.h"
#include "client/session/session.h"
#include "tests/client/crowd.h"

/* Sum over a group of each rank's own number (its rank in the job plus one). */
static int64_t sum_on(struct crowd *crowd, struct weft_session *session, struct weft_comm *comm)
{
    int64_t value = (int64_t)weft_rank(session) + 1;
    struct weft_request request = {{0}};
    CROWD_OK(crowd, session,
             weft_call_start(session,
                             WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = &value,
                                       .out = &value, .count = 1, .dtype = WEFT_I64),
                             &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    return value;
}

static bool lists(const uint32_t *list, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == rank) return true;
    return false;
}

/* Makes the group if this rank is in the list, and sums on it. */
static struct weft_comm *make(struct crowd *crowd, struct weft_session *session, const uint32_t *list,
                              uint32_t count, uint64_t tag)
{
    struct weft_comm *comm = NULL;
    int64_t sum = 0;
    if (!lists(list, count, weft_rank(session))) return NULL;
    if (!CROWD_OK(crowd, session, weft_comm_create(session, list, count, tag, &comm))) return NULL;
    CROWD_CHECK(crowd, session, weft_comm_ranks(comm) == count);
    for (uint32_t i = 0; i < count; i++) {
        CROWD_CHECK(crowd, session, weft_comm_member(comm, i) == list[i]);
        CROWD_CHECK(crowd, session, (weft_comm_rank(comm) == i) == (list[i] == weft_rank(session)));
        sum += list[i] + 1;
    }
    CROWD_CHECK(crowd, session, sum_on(crowd, session, comm) == sum);
    return comm;
}

/* ---- groups that the calls make ---- */

static void made(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint32_t low[] = {2, 0, 1}, high[] = {3, 4, 5}, pair[] = {4, 2}, ends[] = {5, 0},
                          all[] = {5, 4, 3, 2, 1, 0};
    struct weft_comm *halves, *split = NULL, *crossing, *last, *whole;
    halves = make(crowd, session, rank < 3 ? low : high, 3, 1); /* two at the same time */
    crossing = make(crowd, session, pair, 2, 0);
    last = make(crowd, session, ends, 2, 0);
    CROWD_OK(crowd, session, weft_split(session, NULL, (int)(rank % 2), 0, &split));
    CROWD_CHECK(crowd, session, sum_on(crowd, session, split) == (rank % 2 ? 12 : 9));
    whole = make(crowd, session, all, 6, UINT64_MAX);
    /* ids of groups with a common rank differ */
    const struct weft_comm *mine[] = {halves, crossing ? crossing : last, split, whole};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            CROWD_CHECK(crowd, session,
                        !mine[k] || !mine[i] || weft_comm_id(mine[k]) < weft_comm_id(mine[i]));
    struct weft_comm *alone = make(crowd, session, &rank, 1, 9);
    CROWD_CHECK(crowd, session, strcmp(alone->name, "comm_create, tag 9") == 0);
    /* the groups still work, in an order of this rank's own */
    for (uint32_t i = 0; i < 3; i++) {
        if ((i + rank) % 3 == 0) CROWD_CHECK(crowd, session, sum_on(crowd, session, alone) == rank + 1);
        CROWD_CHECK(crowd, session, sum_on(crowd, session, halves) == (rank < 3 ? 6 : 15));
    }
    CROWD_OK(crowd, session, weft_comm_free(halves));
    CROWD_OK(crowd, session, weft_comm_free(crossing ? crossing : last));
    CROWD_CHECK(crowd, session, sum_on(crowd, session, whole) == 21);
}

static void test_made(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 6, made);
    assert_int_equal(crowd.failures, 0);
}

/* Overlapping groups of changing sizes, in one order of the job. Each rank makes those that it is in. */
static void many(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { GROUPS = 300 };
    struct weft_comm *kept[8] = {NULL};
    uint64_t random = 88172645463325252ull;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t list[CROWD_MAX], count = 0;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        for (uint32_t r = 0; r < crowd->workers; r++)
            if (random >> (8 + r) & 1)
                list[count++] = (r + (uint32_t)random % crowd->workers) % crowd->workers;
        struct weft_comm *comm = make(crowd, session, list, count, random % 3);
        if (!comm) continue;
        CROWD_OK(crowd, session, weft_comm_free(kept[g % 8]));
        kept[g % 8] = comm;
    }
    CROWD_CHECK(crowd, session, sum_on(crowd, session, NULL) == 15);
}

static void test_many(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 5, many);
    assert_int_equal(crowd.failures, 0);
}

/* The same group again and again: an announcement may arrive before the last call has ended here. */
static void repeated(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { GROUPS = 100 };
    static const uint32_t all[] = {0, 1, 2};
    struct weft_comm *comms[GROUPS];
    for (uint32_t g = 0; g < GROUPS; g++)
        CROWD_OK(crowd, session, weft_comm_create(session, all, 3, 7, &comms[g]));
    for (uint32_t g = 1; g < GROUPS; g++) {
        CROWD_CHECK(crowd, session, weft_comm_id(comms[g]) == weft_comm_id(comms[0]) + g);
        CROWD_CHECK(crowd, session, comms[g]->hosts == comms[0]->hosts);
    }
    CROWD_CHECK(crowd, session, sum_on(crowd, session, comms[GROUPS - 1]) == 6);
    for (uint32_t g = 0; g < GROUPS; g++) CROWD_OK(crowd, session, weft_comm_free(comms[g]));
}

static void test_repeated(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, repeated);
    assert_int_equal(crowd.failures, 0);
}

/* Ranks of one host: the group takes the one-host plan, as a group of weft_split does. */
static void one_host(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint32_t list[] = {2, 1};
    struct weft_comm *split = NULL;
    CROWD_OK(crowd, session, weft_split(session, NULL, rank == 0 ? -1 : 0, -(int)rank, &split));
    struct weft_comm *comm = make(crowd, session, list, 2, 0);
    if (!comm) return;
    for (int i = 0; i < 50; i++) CROWD_CHECK(crowd, session, sum_on(crowd, session, comm) == 5);
    const char *taken = weft_plan_taken(session);
    for (int i = 0; i < 50; i++) CROWD_CHECK(crowd, session, sum_on(crowd, session, split) == 5);
    CROWD_CHECK(crowd, session, strcmp(taken, weft_plan_taken(session)) == 0);
    CROWD_CHECK(crowd, session, split->hosts == comm->hosts);
}

static void test_one_host(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, one_host);
    assert_int_equal(crowd.failures, 0);
}

/* ---- calls that end the session ---- */

struct differing {
    uint32_t lists[3][3], counts[3]; /* by rank; count 0: the rank makes no call */
    uint64_t tags[3];
    const char *words; /* in the sentence of every rank */
};

static void differs(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct differing *how = crowd->user;
    struct weft_comm *comm = NULL;
    struct weft_request request = {{0}};
    pthread_barrier_wait(&crowd->meet); /* a rank that is still in weft_init would see the end of the job */
    enum weft_status status =
        how->counts[rank] > 0
            ? weft_comm_create(session, how->lists[rank], how->counts[rank], how->tags[rank], &comm)
            : weft_recv(session, &request, 1, WEFT_U8, (rank + 1) % 3, &request);
    if (how->counts[rank] == 0 && status >= 0) status = weft_wait(&request, 0);
    CROWD_REFUSED(crowd, session, status, WEFT_ERR_MISMATCH, how->words);
    CROWD_REFUSED(crowd, session, weft_comm_create(session, &rank, 1, 0, &comm), WEFT_ERR_MISMATCH,
                  "comm_create");
    CROWD_CHECK(crowd, session, comm == NULL);
}

static void test_differing_calls(void **state)
{
    static const struct differing all[] = {
        {{{0, 1, 2}, {0, 1}, {0, 1, 2}}, {3, 2, 3}, {0}, "names"},
        {{{0, 1, 2}, {0, 2, 1}, {0, 1, 2}}, {3, 3, 3}, {0}, "at place 1 of 3"},
        {{{0, 1, 2}, {1, 2}, {0, 1, 2}}, {3, 2, 3}, {0}, "at place 0 of"},
        {{{0, 1}, {0, 1}, {0}}, {2, 2, 0}, {7, 8, 0}, "has tag"},
        {{{0, 1}, {1, 0}, {0}},
         {2, 2, 0},
         {0},
         "members call with the same ranks and tag, in the same order"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct differing how = all[i];
        struct crowd crowd = {.user = &how};
        crowd_run(&crowd, 3, differs);
        assert_int_equal(crowd.failures, 0);
    }
}

/* Three ranks, three groups of two, each rank in another first: a circle that no pair of ranks can see. */
static void circle(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const uint32_t next = (rank + 1) % 3, list[] = {rank < next ? rank : next, rank < next ? next : rank};
    struct weft_comm *comm = NULL;
    session->settings.deadline_ns = WEFT_MS(1000); /* of the calls, not of the join */
    pthread_barrier_wait(&crowd->meet);
    CROWD_REFUSED(crowd, session, weft_comm_create(session, list, 2, 0, &comm), WEFT_ERR_DEADLINE,
                  "for the call of rank");
}

static void test_circle(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, circle);
    assert_int_equal(crowd.failures, 0);
}

/* Two of five never call: every member gets a sentence that names them. */
static void missing(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint32_t all[] = {0, 1, 2, 3, 4};
    struct weft_comm *comm = NULL;
    struct weft_request request = {{0}};
    const bool calls = rank != 1 && rank != 3;
    session->settings.deadline_ns = WEFT_MS(1000); /* of comm_create; the recv has that of the group */
    pthread_barrier_wait(&crowd->meet);
    enum weft_status status = calls ? weft_comm_create(session, all, 5, 44, &comm)
                                    : weft_recv(session, &request, 1, WEFT_U8, 4 - rank, &request);
    if (!calls && status >= 0) status = weft_wait(&request, 0);
    CROWD_CHECK(crowd, session, status == WEFT_ERR_DEADLINE);
    if (!strstr(weft_error_text(session), "comm_create")) return; /* the recv was first */
    CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "of 5 ranks, tag 44") != NULL);
    CROWD_CHECK(crowd, session,
                strstr(weft_error_text(session), "the call of rank 1 (") &&
                    strstr(weft_error_text(session), "), rank 3 ("));
    atomic_fetch_add(&crowd->found, 1);
}

static void test_missing(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 5, missing);
    assert_int_equal(crowd.failures, 0);
    assert_true(crowd.found > 0);
}

/* A member leaves the job in order while another waits for it. */
static void member_leaves(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint32_t all[] = {0, 1};
    struct weft_comm *comm = NULL;
    if (rank == 1) return;
    CROWD_REFUSED(crowd, session, weft_comm_create(session, all, 2, 0, &comm), WEFT_ERR_PEER_LOST, "rank 1");
}

static void test_member_leaves(void **state)
{
    struct crowd crowd = {.deadline_ms = 120000};
    crowd_run(&crowd, 2, member_leaves);
    assert_int_equal(crowd.failures, 0);
}

/* ---- the message ---- */

static void test_announcement(void **state)
{
    uint32_t members[100];
    for (uint32_t i = 0; i < 100; i++) members[i] = 3 * i;
    struct client_announcement mine = {.epoch = 5, .rank = 6, .next_id = 7, .tag = 8}, theirs, read;
    uint8_t bytes[ANNOUNCEMENT_BYTES_MAX];
    char text[160];
    for (uint32_t ranks = 1; ranks <= 100; ranks += 9) {
        announcement_set_members(&mine, members, ranks);
        const uint32_t length = announcement_write(&mine, bytes);
        assert_true(announcement_read(bytes, length, &read));
        assert_true(announcement_matches(&read, &mine) && read.epoch == 5 && read.rank == 6 &&
                    read.next_id == 7);
        for (uint32_t cut = 0; cut < length; cut++) assert_false(announcement_read(bytes, cut, &read));
        for (uint32_t i = 0; i < 8; i++) {
            bytes[i] ^= 1;
            assert_false(announcement_read(bytes, length, &read));
            bytes[i] ^= 1;
        }
    }
    memset(bytes + 20, 0xff, 4); /* more ranks than the message can list */
    assert_true(announcement_read(bytes, sizeof bytes, &read));
    assert_int_equal(read.listed, ANNOUNCEMENT_LISTED_MAX);
    /* ranks that differ behind the listed ones */
    theirs = mine;
    members[99]++;
    announcement_set_members(&theirs, members, mine.ranks);
    members[99]--;
    announcement_set_members(&mine, members, mine.ranks);
    assert_int_equal(mine.ranks, 100);
    assert_false(announcement_matches(&theirs, &mine));
    announcement_describe_difference(&theirs, &mine, text, sizeof text);
    assert_string_equal(text, "names other ranks from place 54 on");
    announcement_set_members(&theirs, members, 99);
    announcement_describe_difference(&theirs, &mine, text, sizeof text);
    assert_string_equal(text, "names 99 ranks, this rank 100");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_differing_calls),
        cmocka_unit_test(test_circle),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_member_leaves),
        cmocka_unit_test(test_announcement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
