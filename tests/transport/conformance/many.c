/* many.c - a thousand endpoints (`many` of the flavour, or --endpoints): each exchanges messages with a
 * central one and its neighbour; then every third closes and the others continue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/transport/conformance/conformance.h"
#include "tests/transport/conformance/endpoint_set.h"

enum { SMALL = 100, LARGE = 20000, DESCRIPTORS_EACH = 24 };

struct member { /* of the circle around endpoint 0 */
    struct weft_peer *centre, *next;
    struct op to_centre, from_previous, to_next;
    struct op at_centre;
    unsigned char *in, *in_centre;
};

static void talk(struct endpoint_set *endpoint_set, struct member *members, const unsigned char *out,
                 uint32_t round)
{
    for (int i = 1; i < endpoint_set->count; i++) {
        struct member *member = &members[i];
        struct set_member *set_member = &endpoint_set->members[i];
        int next = i + 1 < endpoint_set->count ? i + 1 : 1;
        if (!set_member->transport) continue;
        memset(member->in_centre, 0, LARGE);
        assert_int_equal(op_recv(&member->at_centre, endpoint_set->members[0].transport, set_member->id,
                                 TAG(round), member->in_centre, LARGE),
                         WEFT_IN_PROGRESS);
        assert_int_equal(
            op_send(&member->to_centre, member->centre, TAG(round), NULL, out + i, i % 2 ? SMALL : LARGE),
            WEFT_IN_PROGRESS);
        if (!endpoint_set->members[next].transport) continue;
        assert_int_equal(op_recv(&members[next].from_previous, endpoint_set->members[next].transport,
                                 set_member->id, TAG(round), members[next].in, SMALL),
                         WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&member->to_next, member->next, TAG(round), NULL, out + i + 1, SMALL),
                         WEFT_IN_PROGRESS);
    }
    for (int i = 1; i < endpoint_set->count; i++) {
        struct member *member = &members[i];
        int next = i + 1 < endpoint_set->count ? i + 1 : 1;
        if (!endpoint_set->members[i].transport) continue;
        ENDPOINT_SET_UNTIL(endpoint_set, member->at_centre.fired && member->to_centre.fired);
        assert_int_equal(member->at_centre.status, WEFT_OK);
        assert_int_equal(member->to_centre.status, WEFT_OK);
        assert_memory_equal(member->in_centre, out + i, i % 2 ? SMALL : LARGE);
        if (!endpoint_set->members[next].transport) continue;
        ENDPOINT_SET_UNTIL(endpoint_set, members[next].from_previous.fired && member->to_next.fired);
        assert_memory_equal(members[next].in, out + i + 1, SMALL);
    }
}

/* The requested number; else the flavour's, bounded by the limit on descriptors. */
static int how_many(void)
{
    struct rlimit limit;
    if (conformance_endpoints > 0) return conformance_endpoints;
    if (net_is_sim(flavour) || getrlimit(RLIMIT_NOFILE, &limit) != 0) return flavour->many;
    rlim_t most = limit.rlim_cur > 100 ? (limit.rlim_cur - 100) / DESCRIPTORS_EACH : 0;
    return most < (rlim_t)flavour->many ? (int)most : flavour->many;
}

static void test_many_endpoints(void **state)
{
    struct endpoint_set endpoint_set;
    int count = how_many(), before = endpoint_set_descriptors();
    endpoint_set_init(&endpoint_set, flavour, count, weft_env_system());
    struct member *members = calloc((size_t)count, sizeof *members);
    unsigned char *out = malloc((size_t)count + LARGE);
    fill(out, (size_t)count + LARGE, 3);
    for (int i = 0; i < count; i++) endpoint_set_enter(&endpoint_set, i);
    for (int i = 1; i < count; i++) {
        members[i].in = malloc(SMALL);
        members[i].in_centre = malloc(LARGE);
        endpoint_set_connect(&endpoint_set, i, 0, &members[i].centre, NULL);
    }
    for (int i = 1; i < count; i++)
        endpoint_set_connect(&endpoint_set, i, i + 1 < count ? i + 1 : 1, &members[i].next, NULL);
    talk(&endpoint_set, members, out, 1);
    print_message("%d endpoints hold %d descriptors\n", count, endpoint_set_descriptors() - before);
    for (int i = 3; i < count; i += 3) endpoint_set_leave(&endpoint_set, i);
    talk(&endpoint_set, members, out, 2);
    endpoint_set_fini(&endpoint_set);
    /* a library may keep descriptors of its first open */
    assert_true(endpoint_set_descriptors() <= before + DESCRIPTORS_EACH);
    for (int i = 0; i < count; i++) free(members[i].in), free(members[i].in_centre);
    free(members), free(out);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_endpoints)};
const struct conformance_part conformance_many = {"many", tests, sizeof tests / sizeof *tests};
