/* test_topology.c - the ring of hosts in Go, from a hostile or a good coordinator: every ring gives an
 * order with each rank once, and slice weights that cut a vector. */
#include "tests/lib/check.h"

#include <string.h>

#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"
#include "tests/lib/fail_env.h"

#define RANKS 12u
#define KEY(host) ((uint64_t)(host) * 1000003 + 7) /* of a host's name */

struct bench {
    struct weft_session session;
    uint64_t keys[RANKS];
    uint8_t ring[4 * RANKS * WEFT_RING_HOST_BYTES];
    uint32_t memory[9 * RANKS + 5];
    struct weft_plan_hosts hosts;
    struct client_hosts all; /* of all workers */
};

static void put_host(struct bench *b, uint32_t position, uint64_t key, uint32_t speed)
{
    put_le64(b->ring + position * WEFT_RING_HOST_BYTES, key);
    put_le32(b->ring + position * WEFT_RING_HOST_BYTES + 8, speed);
    if (position >= b->session.link.ring_hosts) b->session.link.ring_hosts = position + 1;
}

/* host_of: by rank. members: (ranks,) of the group; NULL: all ranks. */
static void follow(struct bench *b, const uint32_t *host_of, const uint32_t *members, uint32_t ranks)
{
    uint32_t of_members[RANKS], seen[RANKS] = {0};
    assert_true(weft_plan_hosts_words(ranks) <= sizeof b->memory / sizeof *b->memory);
    b->session.env = weft_env_system();
    b->session.link.ring = b->ring;
    b->all.keys = b->keys;
    b->session.membership.hosts = &b->all;
    for (uint32_t r = 0; r < RANKS; r++) b->keys[r] = KEY(host_of[r]);
    for (uint32_t r = 0; r < ranks; r++) of_members[r] = host_of[members ? members[r] : r];
    memset(b->memory, 0xee, sizeof b->memory);
    weft_plan_hosts_init(of_members, ranks, b->memory, &b->hosts);
    assert_true(client_hosts_apply_links_subset(&b->session, members, ranks, b->memory, &b->hosts));
    for (uint32_t i = 0; i < ranks; i++) {
        assert_in_range(b->hosts.ring_order[i], 0, ranks - 1);
        assert_int_equal(seen[b->hosts.ring_order[i]]++, 0);
        assert_int_equal(b->hosts.ring_position[b->hosts.ring_order[i]], i);
    }
    if (!b->hosts.slice_weights) return;
    uint32_t longest = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        assert_true(b->hosts.slice_weights[r] <= b->hosts.slice_weights[r + 1]);
        if (b->hosts.slice_weights[r + 1] - b->hosts.slice_weights[r] > longest)
            longest = b->hosts.slice_weights[r + 1] - b->hosts.slice_weights[r];
    }
    assert_int_equal(b->hosts.slice_weights[0], 0);
    assert_in_range(b->hosts.slice_weights[ranks], 1, 64 * RANKS);
    assert_int_equal(b->hosts.slice_weights[ranks + 1], longest);
}

static const uint32_t one_each[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

/* The same ring for all ranks, for a group, and after a loss: each group has its hosts in the order of the
 * ring. */
static void groups_have_their_part(void **state)
{
    struct bench b = {0};
    static const uint32_t members[] = {1, 4, 6, 11, 2};
    for (uint32_t i = 0; i < RANKS; i++) put_host(&b, i, KEY(i * 5 % RANKS), 1000);
    follow(&b, one_each, NULL, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) assert_int_equal(b.hosts.ring_order[i], i * 5 % RANKS);
    assert_true(!b.hosts.ring_is_identity && !b.hosts.slice_weights && b.hosts.number != 0);
    follow(&b, one_each, members, 5); /* 0 5 10 3 8 1 6 11 4 9 2 7 */
    assert_memory_equal(b.hosts.ring_order, ((uint32_t[]){0, 2, 3, 1, 4}), 5 * sizeof(uint32_t));
    put_host(&b, 4, KEY(8), 250);
    follow(&b, one_each, NULL, RANKS);
    assert_true(b.hosts.slice_weights && b.hosts.slice_weights[8] == b.hosts.slice_weights[9]);
    follow(&b, one_each, members, 5); /* without the slow host */
    assert_null(b.hosts.slice_weights);
}

/* Hosts that the ring does not name are last, and then no speed is known; nor if a speed is 0. If a host
 * is named twice, the first position counts. */
static void unknown_and_listed_twice(void **state)
{
    struct bench b = {0};
    for (uint32_t i = 0; i < RANKS; i++) put_host(&b, i, KEY(i == 3 ? 99 : RANKS - 1 - i), i == 0 ? 1 : 1000);
    follow(&b, one_each, NULL, RANKS);
    assert_int_equal(b.hosts.ring_order[RANKS - 1], RANKS - 1 - 3);
    assert_true(!b.hosts.speeds && !b.hosts.slice_weights);
    put_host(&b, 3, KEY(8), 0);
    follow(&b, one_each, NULL, RANKS);
    assert_int_equal(b.hosts.ring_order[3], 8);
    assert_true(!b.hosts.speeds && !b.hosts.slice_weights);
    put_host(&b, 3, KEY(8), 1000);
    put_host(&b, RANKS, KEY(8), 7);
    put_host(&b, RANKS + 1, KEY(11), 7);
    follow(&b, one_each, NULL, RANKS);
    assert_true(b.hosts.ring_order[3] == 8 && b.hosts.speeds[8] == 1000 && b.hosts.speeds[11] == 1 &&
                b.hosts.slice_weights);
}

/* From 1 MB/s to the largest value of the field: the slow hosts get no slice, the fast ones all. */
static void speeds_far_apart(void **state)
{
    static const uint32_t speeds[] = {1, 1000, 1000000, UINT32_MAX};
    for (uint32_t fast = 1; fast < RANKS; fast++)
        for (uint32_t s = 1; s < 4; s++) {
            struct bench b = {0};
            for (uint32_t i = 0; i < RANKS; i++) put_host(&b, i, KEY(i), speeds[i < fast ? s : 0]);
            follow(&b, one_each, NULL, RANKS);
            assert_true(b.hosts.slice_weights && b.hosts.number != 0);
            if (fast >= 2) assert_int_equal(b.hosts.slice_weights[fast], b.hosts.slice_weights[RANKS]);
            for (uint32_t i = 1; i < fast; i++)
                assert_int_equal(b.hosts.slice_weights[i + 1] - b.hosts.slice_weights[i],
                                 b.hosts.slice_weights[1]);
        }
}

static void any_ring(void **state)
{
    uint64_t random = 3;
    for (uint32_t round = 0; round < 3000; round++) {
        struct bench b = {0};
        uint32_t host_of[RANKS], members[RANKS], ranks = 0;
        for (uint32_t i = 0; i < 4 * RANKS; i++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            if (i < RANKS) host_of[i] = round % 2 ? i : (uint32_t)(random >> 33) % RANKS;
            if (i < RANKS && random >> 62) members[ranks++] = i;
            if (i < round % (4 * RANKS))
                put_host(&b, i, KEY(random >> 40 & 15), (uint32_t)(random >> 20) >> (random >> 59));
        }
        follow(&b, host_of, NULL, RANKS);
        if (ranks > 0) follow(&b, host_of, members, ranks);
    }
}

/* ---- no memory ---- */

/* RANKS on two hosts in turn, as a coordinator lists them. */
struct listed {
    struct client_member members[RANKS];
    Weft__Control__Member roster_members[RANKS], *places[RANKS];
    Weft__Control__Roster roster;
};

static void list(struct listed *listed)
{
    listed->roster = (Weft__Control__Roster)WEFT__CONTROL__ROSTER__INIT;
    for (uint32_t i = 0; i < RANKS; i++) {
        listed->members[i] = (struct client_member){.member = i, .index = i};
        listed->roster_members[i] = (Weft__Control__Member)WEFT__CONTROL__MEMBER__INIT;
        listed->roster_members[i].member = i;
        listed->roster_members[i].host = i % 2 ? "odd" : "even";
        listed->places[i] = &listed->roster_members[i];
    }
    listed->roster.n_members = RANKS;
    listed->roster.members = listed->places;
}

/* Creates the hosts of all ranks; then ranks are lost, and memory may be short: the group keeps the old
 * tables. */
static enum weft_status find_twice(struct weft_env *env, void *context)
{
    struct listed *listed = context;
    struct weft_session session = {
        .env = env, .membership.members = listed->members, .membership.member_count = RANKS, .ranks = RANKS};
    struct weft_error error = {0};
    pthread_mutex_init(&session.control.lock, NULL);
    enum weft_status status = client_hosts_create(&session, &listed->roster, &error);
    struct client_hosts *first = session.membership.hosts;
    if (status == WEFT_OK) {
        session.ranks = 1;
        status = client_hosts_create(&session, &listed->roster, &error);
        if (status < 0) assert_ptr_equal(session.membership.hosts, first);
        else assert_int_equal(atomic_load(&session.membership.hosts)->plan.count, 1);
        assert_int_equal(first->plan.count, 2); /* still valid */
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_int_equal(first->plan.host[i], i % 2);
            assert_int_equal(first->keys[i], first->keys[i % 2]);
        }
    } else {
        assert_null(first);
    }
    client_hosts_free(&session);
    pthread_mutex_destroy(&session.control.lock);
    return status;
}

static void without_memory_nothing_changes(void **state)
{
    static struct listed listed;
    list(&listed);
    check_failing_allocations(find_twice, &listed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_memory_nothing_changes),
                                       cmocka_unit_test(groups_have_their_part),
                                       cmocka_unit_test(unknown_and_listed_twice),
                                       cmocka_unit_test(speeds_far_apart), cmocka_unit_test(any_ring)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
