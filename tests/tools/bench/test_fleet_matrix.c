/* test_fleet_matrix.c - slow links and slow hosts of weft bench fleet, from matrices written by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"
#include "tools/bench/fleet/fleet.h"
#include "tools/bench/lib/heat.h"

enum { HOSTS = 4 };

static struct fleet_matrix matrix;
static char *text;

static int set_up(void **state)
{
    assert_true(fleet_matrix_init(&matrix, HOSTS));
    for (uint32_t from = 0; from < HOSTS; from++) {
        matrix.names[from][0] = (char)('a' + from);
        for (uint32_t to = 0; to < HOSTS; to++)
            if (from != to) matrix.gbps[from * HOSTS + to] = 10 + 0.1 * (from + to);
    }
    return 0;
}

static int tear_down(void **state)
{
    fleet_matrix_free(&matrix);
    free(text);
    text = NULL;
    return 0;
}

static uint32_t diagnose(void)
{
    size_t bytes = 0;
    free(text);
    FILE *out = open_memstream(&text, &bytes);
    const uint32_t slow = fleet_matrix_diagnose(&matrix, 70, out);
    fclose(out);
    return slow;
}

static size_t lines(void)
{
    size_t count = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++) count++;
    return count;
}

static void equal_links_are_not_slow(void **state)
{
    assert_int_equal(diagnose(), 0);
    assert_string_equal(text, "");
    assert_true(fabs(fleet_matrix_median(&matrix) - 10.3) < 0.01);
}

static void one_direction_and_both(void **state)
{
    matrix.gbps[0 * HOSTS + 2] = 1;
    assert_int_equal(diagnose(), 1);
    assert_int_equal(lines(), 1);
    assert_non_null(strstr(text, "slow link: a -> c: 1.000 GB/s, 10 % of the median 10.3"));
    assert_true(fleet_matrix_is_slow(&matrix, 0, 2, 70) && !fleet_matrix_is_slow(&matrix, 2, 0, 70));
    matrix.gbps[2 * HOSTS + 0] = 0.5;
    assert_int_equal(diagnose(), 2);
    assert_int_equal(lines(), 1);
    assert_non_null(strstr(text, "slow link: a <-> c: 0.500 GB/s"));
}

static void a_slow_link_of_another_transport(void **state)
{
    for (int i = 0; i < HOSTS * HOSTS; i++) strcpy(matrix.ways[i], "verbs mlx5_0");
    matrix.gbps[0 * HOSTS + 2] = 1;
    assert_string_equal(fleet_matrix_common_way(&matrix), "verbs mlx5_0");
    diagnose();
    assert_null(strstr(text, "over"));
    strcpy(matrix.ways[0 * HOSTS + 2], "tcp eth0");
    assert_string_equal(fleet_matrix_common_way(&matrix), "verbs mlx5_0");
    diagnose();
    assert_non_null(strstr(text, "median 10.300 GB/s, over tcp eth0; check"));
    for (int i = 0; i < HOSTS * HOSTS; i++) snprintf(matrix.ways[i], FLEET_WAY_BYTES, "way %d", i / 2);
    assert_non_null(strstr(fleet_matrix_common_way(&matrix), "way")); /* more transports than are counted */
}

static void all_links_from_a_host(void **state)
{
    for (uint32_t to = 0; to < HOSTS; to++)
        if (to != 1) matrix.gbps[1 * HOSTS + to] = 2;
    assert_int_equal(diagnose(), 3);
    assert_int_equal(lines(), 1);
    assert_non_null(strstr(text, "slow host: b: every link from it is slow, 2.000 GB/s on average"));
    matrix.gbps[3 * HOSTS + 1] = 3; /* one link into it: a line of its own */
    assert_int_equal(diagnose(), 4);
    assert_int_equal(lines(), 2);
    assert_non_null(strstr(text, "slow link: d -> b: 3.000"));
}

static void links_that_were_not_measured(void **state)
{
    matrix.gbps[0 * HOSTS + 1] = NAN;
    assert_int_equal(diagnose(), 0);
    for (int i = 0; i < HOSTS * HOSTS; i++) matrix.gbps[i] = NAN;
    assert_int_equal(diagnose(), 0);
    const char *const names[] = {"a", "b", "c", "d"};
    const struct bench_heat heat = {"t", "s", names, matrix.gbps, HOSTS};
    size_t bytes = 0;
    free(text);
    FILE *out = open_memstream(&text, &bytes);
    assert_false(bench_heat_write(&heat, out));
    fclose(out);
}

static void a_heat_map_has_a_cell_for_each_link(void **state)
{
    const char *const names[] = {"a<b", "b", "c", "a name of more than twenty-four letters"};
    const struct bench_heat heat = {"t", "s", names, matrix.gbps, HOSTS};
    size_t bytes = 0, cells = 0;
    free(text);
    matrix.gbps[0 * HOSTS + 2] = 0;
    matrix.gbps[0 * HOSTS + 1] = 1000;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(bench_heat_write(&heat, out));
    fclose(out);
    for (const char *at = text; (at = strstr(at, "<rect")); at++) cells++;
    assert_int_equal(cells, 1 + HOSTS * (HOSTS - 1));
    assert_non_null(strstr(text, "#c92a2a")); /* of the slowest */
    assert_non_null(strstr(text, "#0b6fb8")); /* of the fastest */
    assert_non_null(strstr(text, "#f8f9fa")); /* of the median */
    assert_non_null(strstr(text, "a&lt;b"));
    assert_null(strstr(text, "nan"));
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(equal_links_are_not_slow),         CASE(one_direction_and_both),
        CASE(a_slow_link_of_another_transport), CASE(all_links_from_a_host),
        CASE(links_that_were_not_measured),     CASE(a_heat_map_has_a_cell_for_each_link),
    };
    return cmocka_run_group_tests_name("fleet_matrix", tests, NULL, NULL);
}
