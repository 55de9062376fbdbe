/* test_probe.c - the link table stores rows and refuses malformed ones; the tournament pairs all endpoints
 * once; the prober measures the values of the simulator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/transport.h"

enum { HOSTS_MAX = 12 };

/* ---- the table ---- */

static struct weft_link link_of(uint32_t from, uint32_t to, const char *lane, uint64_t latency_ns,
                                uint64_t rate)
{
    struct weft_link link = {.from = from,
                             .to = to,
                             .state = rate ? WEFT_LINK_WORKS : WEFT_LINK_FAILED,
                             .latency_ns = latency_ns,
                             .bytes_per_second = rate};
    snprintf(link.lane, sizeof link.lane, "%s", lane);
    snprintf(link.text, sizeof link.text, "%s", rate ? "as measured" : "no such device; add --devices");
    return link;
}

static struct weft_link_table *sample_table(void)
{
    struct weft_link_table *table;
    uint32_t a, b, c;
    assert_int_equal(weft_link_table_create(weft_env_system(), &table), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, "node-a", 11, &a), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, "node-b", 22, &b), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, "node-c", 33, &c), WEFT_OK);
    struct weft_link links[] = {
        link_of(b, a, "ucx:tcp", 20000, 1000000000),
        link_of(a, b, "ucx:tcp", 20000, 1000000000),
        link_of(a, b, "verbs", 3000, 12000000000ull),
        link_of(a, b, "slow", 1000, 1000000),
        link_of(a, c, "verbs", 0, 0),
        link_of(a, a, "shm", 300, 20000000000ull),
    };
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        assert_int_equal(weft_link_table_set(table, &links[i]), WEFT_OK);
    return table;
}

static void rows_are_found_and_the_best_depends_on_the_size(void **state)
{
    struct weft_link_table *table = sample_table();
    assert_int_equal(weft_link_table_count(table), 6);
    for (uint32_t i = 1; i < 6; i++) {
        const struct weft_link *before = weft_link_table_get(table, i - 1),
                               *after = weft_link_table_get(table, i);
        assert_true(before->from < after->from || (before->from == after->from && before->to <= after->to));
    }
    assert_int_equal(weft_link_table_find(table, 0, 1, "verbs")->latency_ns, 3000);
    assert_null(weft_link_table_find(table, 1, 0, "verbs"));
    assert_string_equal(weft_link_table_best(table, 0, 1, 0)->lane, "slow");
    assert_string_equal(weft_link_table_best(table, 0, 1, 1 << 20)->lane, "verbs");
    assert_null(weft_link_table_best(table, 0, 2, 8)); /* measured, does not work */
    assert_null(weft_link_table_best(table, 2, 0, 8)); /* not measured */
    assert_int_equal(weft_link_time_ns(weft_link_table_find(table, 0, 1, "verbs"), 12000), 4000);
    assert_true(weft_link_time_ns(weft_link_table_find(table, 0, 2, "verbs"), 0) == WEFT_NEVER);
    struct weft_link again = link_of(0, 1, "verbs", 4000, 11000000000ull);
    assert_int_equal(weft_link_table_set(table, &again), WEFT_OK);
    assert_int_equal(weft_link_table_count(table), 6);
    assert_int_equal(weft_link_table_find(table, 0, 1, "verbs")->latency_ns, 4000);
    weft_link_table_free(table);
}

/* A group is as slow as its worst pair, each pair as fast as its best lane for the size. */
static void a_group_is_known_by_its_worst_pair(void **state)
{
    struct weft_link_table *table = sample_table();
    struct weft_link_cost cost;
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 1}, 2, 1 << 20, &cost), WEFT_OK);
    assert_true(cost.pairs == 2 && cost.unknown == 0);
    /* the way back has only tcp */
    assert_true(cost.latency_ns == 20000 && cost.bytes_per_second == 1000000000);
    /* two ranks of one host */
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 0}, 2, 1 << 20, &cost), WEFT_OK);
    assert_true(cost.pairs == 2 && cost.latency_ns == 300 && cost.bytes_per_second == 20000000000ull);
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 0, 1}, 3, 0, &cost), WEFT_OK);
    /* no payload: the lane with the lowest latency */
    assert_true(cost.pairs == 6 && cost.latency_ns == 20000 && cost.bytes_per_second == 1000000);
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 1, 2}, 3, 8, &cost), WEFT_OK);
    assert_true(cost.pairs == 6 && cost.unknown == 4); /* one failed, three not measured */
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 2}, 2, 8, &cost), WEFT_OK);
    assert_true(cost.unknown == 2 && cost.bytes_per_second == 0);
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0}, 1, 8, &cost), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_cost_among(table, (uint32_t[]){0, 3}, 2, 8, &cost), WEFT_ERR_INVALID);
    weft_link_table_free(table);
}

/* ---- the ring ---- */
enum { RING_MAX = 64 };
static uint32_t random_below(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*state >> 33) % below);
}
/* Hosts of several sites, in any order: near links take about 10, others a hundred times as long. */
static void make_sites(uint32_t hosts, uint32_t sites, uint64_t *state, uint32_t *site_of, uint32_t *times)
{
    for (uint32_t i = 0; i < hosts; i++) site_of[i] = i < sites ? i : random_below(state, sites);
    for (uint32_t i = hosts; i > 1; i--) {
        uint32_t j = random_below(state, i), site = site_of[i - 1];
        site_of[i - 1] = site_of[j], site_of[j] = site;
    }
    for (uint32_t i = 0; i < hosts; i++)
        for (uint32_t j = 0; j < hosts; j++)
            times[i * hosts + j] = (site_of[i] == site_of[j] ? 1000 : 100000) + random_below(state, 80);
}

/* Between sites with slow links a ring crosses once per site; with equal links the order stays as given. */
static void a_ring_uses_slow_links_least(void **state)
{
    static uint32_t times[RING_MAX * RING_MAX], site_of[RING_MAX], order[RING_MAX];
    uint64_t random = 5;
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t sites = 1 + round % 5, hosts = 5 + random_below(&random, RING_MAX - 5), crossed = 0,
                 gone_to[RING_MAX] = {0};
        make_sites(hosts, sites, &random, site_of, times);
        weft_link_ring(hosts, times, order);
        assert_int_equal(order[0], 0);
        for (uint32_t i = 0; i < hosts; i++) {
            assert_int_equal(gone_to[order[i]]++, 0);
            crossed += site_of[order[i]] != site_of[order[(i + 1) % hosts]];
            assert_true(sites > 1 || order[i] == i);
        }
        assert_int_equal(crossed, sites > 1 ? sites : 0);
    }
    for (uint32_t hosts = 1; hosts < 4; hosts++) {
        weft_link_ring(hosts, times, order);
        for (uint32_t i = 0; i < hosts; i++) assert_int_equal(order[i], i);
    }
}

/* Near hosts form a site in any order; equal links, or a single distant host, give no sites. */
static void sites_are_found(void **state)
{
    static uint32_t times[RING_MAX * RING_MAX], site_of[RING_MAX], found[RING_MAX];
    uint64_t random = 7;
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t sites = 1 + round % 5, hosts = 5 + random_below(&random, RING_MAX - 5), members[5] = {0},
                 least = UINT32_MAX, next = 0;
        make_sites(hosts, sites, &random, site_of, times);
        for (uint32_t i = 0; i < hosts; i++) members[site_of[i]]++;
        for (uint32_t s = 0; s < sites; s++) least = members[s] < least ? members[s] : least;
        assert_int_equal(weft_link_sites(hosts, times, found), least < 2 ? 1 : sites);
        for (uint32_t i = 0; i < hosts; i++) { /* numbered by first host */
            assert_true(found[i] <= next);
            next += found[i] == next;
            for (uint32_t j = 0; j < i; j++)
                assert_true((found[i] == found[j]) == (site_of[i] == site_of[j] || least < 2));
        }
    }
    /* host 0 has a cable four times as slow */
    for (uint32_t i = 0; i < 64; i++) times[i] = i % 9 == 0 ? 0 : i < 8 || i % 8 == 0 ? 4000 : 1000;
    assert_int_equal(weft_link_sites(8, times, found), 1);
    assert_int_equal(weft_link_sites(3, times, found), 1);
}

/* From a table: NOT_FOUND if a link is unknown; a link counts by its slower direction, a host by its best
 * link. */
static void a_ring_from_a_table(void **state)
{
    struct weft_link_table *table;
    uint32_t index, order[5], speeds[5];
    assert_int_equal(weft_link_table_create(weft_env_system(), &table), WEFT_OK);
    for (uint32_t h = 0; h < 5; h++)
        assert_int_equal(weft_link_table_host(table, (char[]){(char)('a' + h), 0}, h + 1, &index), WEFT_OK);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t j = 0; j < 4; j++) { /* 0 2 | 1 3; the links from 3 are slow */
            uint64_t rate = i == 3 ? 250000000 : i % 2 == j % 2 ? 1000000000 : 10000000;
            struct weft_link link = link_of(i, j, "verbs", 4000, rate);
            if (i != j) assert_int_equal(weft_link_table_set(table, &link), WEFT_OK);
        }
    assert_int_equal(weft_link_ring_among(table, (uint32_t[]){0, 1, 2, 3}, 4, 1 << 18, order, speeds),
                     WEFT_OK);
    assert_true(order[0] == 0 && (order[1] == 2 || order[3] == 2) && order[2] != 2);
    assert_true(speeds[0] == 1000 && speeds[1] == 250 && speeds[2] == 1000 && speeds[3] == 250);
    assert_int_equal(weft_link_ring_among(table, (uint32_t[]){0, 1, 2, 3, 4}, 5, 1 << 18, order, speeds),
                     WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_link_ring_among(table, (uint32_t[]){0, 1}, 2, 1 << 18, order, speeds),
                     WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_link_ring_among(table, (uint32_t[]){0, 1, 9}, 3, 1 << 18, order, speeds),
                     WEFT_ERR_INVALID);
    weft_link_table_free(table);
}

/* Machine costs: the slowest host counts; they survive the text form, and a changed host loses them. */
static void machines_are_in_the_table(void **state)
{
    struct weft_link_table *table = sample_table(), *again;
    struct weft_link_cost cost;
    static const struct weft_link_machine a = {640, 125, 90, 40, 8192}, b = {800, 100, 95, 0, 0};
    static const struct weft_link_memory c = {370, 480, 260, 12, 51, 2048, 491520, 39},
                                         d = {360, 500, 250, 13, 50, 1024, 0, 40};
    char *text;
    size_t bytes;
    uint32_t index;
    assert_int_equal(weft_link_table_set_machine(table, 0, &a), WEFT_OK);
    assert_int_equal(weft_link_table_set_machine(table, 1, &b), WEFT_OK);
    assert_int_equal(weft_link_table_set_machine(table, 99, &b), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_set_memory(table, 0, &c), WEFT_OK);
    assert_int_equal(weft_link_table_set_memory(table, 1, &d), WEFT_OK);
    assert_int_equal(weft_link_table_set_memory(table, 99, &d), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_write(table, &text, &bytes), WEFT_OK);
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &again, NULL), WEFT_OK);
    assert_int_equal(weft_link_cost_among(again, (uint32_t[]){0, 1}, 2, 1 << 20, &cost), WEFT_OK);
    assert_true(cost.inject_ns == 800 && cost.sum_ps == 125 && cost.pass_ps == 95 &&
                cost.incast_milli == 40 && cost.eager_bytes == 8192);
    assert_true(cost.memory.flag_round_ns == 370 && cost.memory.slices_overhead_ns == 500 &&
                cost.memory.copyin_ps == 260 && cost.memory.private_cache_ps == 13 &&
                cost.memory.last_cache_ps == 51 && cost.memory.nt_store_ps == 40);
    /* the smallest caches; 0 means unknown */
    assert_true(cost.memory.private_cache_kib == 1024 && cost.memory.last_cache_kib == 491520);
    assert_int_equal(weft_link_table_host(again, "node-a", 4711, &index), WEFT_OK);
    assert_int_equal(weft_link_table_machine(again, index)->sum_ps, 0);
    assert_int_equal(weft_link_table_memory(again, index)->flag_round_ns, 0);
    assert_null(weft_link_table_machine(again, 99));
    assert_null(weft_link_table_memory(again, 99));
    char *line = strstr(text, "machine 1");
    assert_non_null(line);
    line[8] = '7'; /* no such host */
    struct weft_link_table *wrong;
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &wrong, NULL), WEFT_ERR_MALFORMED);
    weft_free_bytes(weft_env_system(), text);
    weft_link_table_free(again);
    weft_link_table_free(table);
}

/* Message costs of one host count if all ranks share it, survive the text form, and are refused completely
 * if malformed. */
static void runs_are_in_the_table(void **state)
{
    static const struct weft_link_runs runs = {
        3,
        2,
        5100,
        900,
        {{100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 191, 192},
         {200, 210, 220, 230, 240, 250, 260, 270, 280, 290, 291, 292},
         {300, 310, 320, 330, 340, 350, 360, 370, 380, 390, 391, 392},
         {400, 410, 420, 430, 440, 450, 460, 470, 480, 490, 491, 492},
         {500, 510, 520, 530, 540, 550, 560, 570, 580, 590, 591, 592}}};
    struct weft_link_runs bad = runs;
    struct weft_link_table *table = sample_table(), *again, *wrong;
    struct weft_link_cost cost;
    char *text, *line;
    size_t bytes;
    assert_int_equal(weft_link_table_set_runs(table, 1, &runs), WEFT_OK);
    assert_int_equal(weft_link_table_set_runs(table, 99, &runs), WEFT_ERR_INVALID);
    bad.byte_ps[4][WEFT_LINK_LENGTHS - 1] = 0;
    assert_int_equal(weft_link_table_set_runs(table, 1, &bad), WEFT_ERR_INVALID);
    bad.byte_ps[4][WEFT_LINK_LENGTHS - 1] = 1000000000;
    assert_int_equal(weft_link_table_set_runs(table, 1, &bad), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_write(table, &text, &bytes), WEFT_OK);
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &again, NULL), WEFT_OK);
    assert_memory_equal(weft_link_table_runs(again, 1), &runs, sizeof runs);
    assert_int_equal(weft_link_cost_among(again, (uint32_t[]){1, 1}, 2, 1 << 20, &cost), WEFT_OK);
    assert_memory_equal(&cost.runs, &runs, sizeof runs);
    assert_int_equal(weft_link_cost_among(again, (uint32_t[]){1, 0}, 2, 1 << 20, &cost), WEFT_OK);
    assert_int_equal(cost.runs.ranks, 0);
    line = strstr(text, "runs 1 4096 3 2 5100 ");
    assert_non_null(line);
    line[7] = '8'; /* other lengths */
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &wrong, NULL), WEFT_ERR_MALFORMED);
    line[7] = '4', line[12] = '0'; /* of no ranks */
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &wrong, NULL), WEFT_ERR_MALFORMED);
    line[12] = '3', line[14] = '0'; /* on no processors */
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &wrong, NULL), WEFT_ERR_MALFORMED);
    line[14] = '2', *strchr(line, '\n') = ' '; /* too many numbers */
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &wrong, NULL), WEFT_ERR_MALFORMED);
    uint32_t index;
    assert_int_equal(weft_link_table_host(again, weft_link_table_host_name(again, 1), 4711, &index), WEFT_OK);
    assert_int_equal(weft_link_table_runs(again, index)->ranks, 0);
    weft_free_bytes(weft_env_system(), text);
    weft_link_table_free(again);
    weft_link_table_free(table);
}

static void a_host_that_changed_loses_its_rows(void **state)
{
    struct weft_link_table *table = sample_table();
    uint32_t index;
    assert_int_equal(weft_link_table_host(table, "node-a", 11, &index), WEFT_OK);
    assert_int_equal(weft_link_table_count(table), 6);
    assert_int_equal(weft_link_table_host(table, "node-c", 34, &index), WEFT_OK);
    assert_int_equal(index, 2);
    assert_int_equal(weft_link_table_count(table), 5);
    assert_int_equal(weft_link_table_host(table, "node-a", 12, &index), WEFT_OK);
    assert_int_equal(weft_link_table_count(table), 0);
    weft_link_table_free(table);
}

static void bad_rows_are_refused(void **state)
{
    struct weft_link_table *table = sample_table();
    uint32_t index = 77;
    char longer[WEFT_LINK_NAME_BYTES + 1];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(weft_link_table_host(table, "", 1, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_host(table, "two words", 1, &index), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_host(table, longer, 1, &index), WEFT_ERR_INVALID);
    assert_int_equal(index, 77);
    struct weft_link bad[] = {link_of(0, 3, "verbs", 1, 1), link_of(9, 0, "verbs", 1, 1),
                              link_of(0, 1, "", 1, 1),      link_of(0, 1, "a b", 1, 1),
                              link_of(0, 1, "a|b", 1, 1),   link_of(0, 1, "verbs", 0, 5)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(weft_link_table_set(table, &bad[i]), WEFT_ERR_INVALID);
    assert_int_equal(weft_link_table_count(table), 6);
    weft_link_table_free(table);
}

static void the_text_form_is_whole_or_refused(void **state)
{
    struct weft_link_table *table = sample_table(), *again = NULL;
    char *text, *second;
    size_t bytes, second_bytes;
    struct weft_error error = {0};
    assert_int_equal(weft_link_table_write(table, &text, &bytes), WEFT_OK);
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &again, &error), WEFT_OK);
    assert_int_equal(weft_link_table_write(again, &second, &second_bytes), WEFT_OK);
    assert_int_equal(bytes, second_bytes);
    assert_memory_equal(text, second, bytes);
    weft_link_table_free(again);
    weft_free_bytes(weft_env_system(), second);
    for (size_t cut = 0; cut < bytes; cut++) {
        again = NULL;
        error = (struct weft_error){0};
        assert_int_equal(weft_link_table_read(weft_env_system(), text, cut, &again, &error),
                         WEFT_ERR_MALFORMED);
        assert_null(again);
        assert_non_null(strstr(error.text, "probe again"));
    }
    text[11] = '2';
    error = (struct weft_error){0};
    assert_int_equal(weft_link_table_read(weft_env_system(), text, bytes, &again, &error), WEFT_ERR_VERSION);
    static const char *const bad[] = {
        "weft-links 1\nhost 1 a\nhost 1 a\nend 2\n",
        "weft-links 1\nhost 1 a\nlink 0 1 works 1 1 x|\nend 2\n",
        "weft-links 1\nhost 1 a\nlink 0 0 works 1 x|\nend 2\n",
        "weft-links 1\nhost 1 a\nlink 0 0 works 1 1 x|\nlink 0 0 works 1 1 x|\nend 3\n",
        "weft-links 1\nhost 1 a\nend 2\n",
        "weft-links 1\nend 0\nhost 1 a\n",
        "weft-links 1\nhost 11111111111111111 a\nend 1\n",
        "weft-links 1\nlink 4294967296 0 works 1 1 x|\nend 1\n",
        "something else\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error = (struct weft_error){0};
        assert_int_equal(weft_link_table_read(weft_env_system(), bad[i], strlen(bad[i]), &again, &error),
                         WEFT_ERR_MALFORMED);
    }
    weft_free_bytes(weft_env_system(), text);
    weft_link_table_free(table);
}

static void a_file_is_replaced_in_one_step(void **state)
{
    char path[] = "/tmp/weft-links-XXXXXX";
    struct weft_link_table *table = sample_table(), *again = NULL;
    struct weft_error error = {0};
    struct stat about;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    /* empty */
    assert_int_equal(weft_link_table_load(weft_env_system(), path, &again, &error), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_link_table_save(table, path, &error), WEFT_OK);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(weft_link_table_load(weft_env_system(), path, &again, &error), WEFT_OK);
    assert_int_equal(weft_link_table_count(again), 6);
    weft_link_table_free(again);
    unlink(path);
    error = (struct weft_error){0};
    assert_int_equal(weft_link_table_load(weft_env_system(), path, &again, &error), WEFT_ERR_NOT_FOUND);
    error = (struct weft_error){0};
    assert_int_equal(weft_link_table_save(table, "/proc/weft/links", &error), WEFT_ERR_IO);
    assert_non_null(strstr(error.text, "/proc/weft/links"));
    weft_link_table_free(table);
}

/* ---- the tournament ---- */

static void everybody_meets_everybody_once(void **state)
{
    for (uint32_t count = 0; count <= 65; count++) {
        uint8_t met[65][65] = {0};
        for (uint32_t round = 0; round < weft_probe_rounds(count); round++) {
            for (uint32_t i = 0; i < count; i++) {
                uint32_t partner = weft_probe_partner(i, round, count);
                if (partner == UINT32_MAX) continue;
                assert_true(partner < count && partner != i);
                assert_int_equal(weft_probe_partner(partner, round, count), i);
                met[i][partner]++;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t k = 0; k < count; k++) assert_int_equal(met[i][k], i != k);
        }
        assert_int_equal(weft_probe_partner(0, weft_probe_rounds(count), count), UINT32_MAX);
    }
}

/* ---- in the simulator ---- */

struct world {
    struct weft_sim *sim;
    uint32_t count, done_count;
    bool all_done;
    uint32_t expected;
    struct weft_loop *loops[HOSTS_MAX];
    struct weft_transport *transports[HOSTS_MAX];
    struct weft_probe *probes[HOSTS_MAX];
    uint32_t ids[HOSTS_MAX];
};

static void on_done(void *context)
{
    struct world *world = context;
    world->all_done = ++world->done_count == world->expected;
}

static void world_open(struct world *world, uint32_t count, const struct weft_sim_options *sim,
                       const char *backend, const char *wrap)
{
    *world = (struct world){.count = count, .expected = count};
    assert_int_equal(weft_sim_create(weft_env_system(), sim, &world->sim), WEFT_OK);
    for (uint32_t i = 0; i < count; i++) {
        struct weft_loop_options loop_options;
        struct weft_transport_options options;
        struct weft_env *env = weft_sim_env(world->sim, i);
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        world->ids[i] = 40 + 3 * i;
        weft_transport_options_init(&options);
        options.backend = backend;
        options.wrap = wrap;
        options.sim = world->sim;
        options.sim_host = i;
        options.id = world->ids[i];
        assert_int_equal(weft_loop_create(env, &loop_options, &world->loops[i]), WEFT_OK);
        assert_int_equal(weft_sim_add(world->sim, i, world->loops[i]), WEFT_OK);
        assert_int_equal(weft_transport_open(env, &options, &world->transports[i], NULL), WEFT_OK);
        assert_int_equal(weft_transport_attach(world->transports[i], world->loops[i]), WEFT_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++) {
            const void *blob;
            size_t bytes;
            struct weft_peer *peer;
            if (i == k) continue;
            assert_int_equal(weft_transport_address(world->transports[k], &blob, &bytes), WEFT_OK);
            assert_int_equal(weft_transport_connect(world->transports[i], world->ids[k], blob, bytes, &peer),
                             WEFT_OK);
        }
    }
}

static void start_probe(struct world *world, uint32_t i)
{
    struct weft_probe_options options;
    struct weft_error error = {0};
    weft_probe_options_init(&options);
    options.ids = world->ids;
    options.count = world->count;
    options.done = on_done;
    options.context = world;
    if (weft_probe_start(world->transports[i], world->loops[i], &options, &world->probes[i], &error) < 0)
        fail_msg("%s", error.text);
}

static void world_close(struct world *world)
{
    for (uint32_t i = 0; i < world->count; i++) {
        if (world->probes[i]) weft_probe_close(world->probes[i]);
        weft_transport_close(world->transports[i]);
    }
    for (uint32_t i = 0; i < world->count; i++) {
        for (int tries = 0; !weft_transport_drained(world->transports[i]) && tries < 10000; tries++) {
            for (uint32_t k = 0; k < world->count; k++) weft_transport_progress(world->transports[k], 64);
            weft_sim_run(world->sim, NULL, weft_sim_now_ns(world->sim) + 1000000);
        }
        assert_true(weft_transport_drained(world->transports[i]));
    }
    for (uint32_t i = 0; i < world->count; i++) {
        if (world->probes[i]) assert_true(weft_probe_drained(world->probes[i]));
        weft_probe_free(world->probes[i]);
    }
    for (uint32_t i = 0; i < world->count; i++) {
        weft_transport_free(world->transports[i]);
        weft_sim_remove(world->sim, world->loops[i]);
        weft_loop_free(world->loops[i]);
    }
    weft_sim_free(world->sim);
}

static void assert_near(uint64_t found, uint64_t truth, uint64_t percent, const char *what, uint32_t from,
                        uint32_t to)
{
    if (found < truth - truth * percent / 100 || found > truth + truth * percent / 100) {
        fail_msg("%s of %u to %u: found %llu, the simulator has %llu (tolerance %llu %%)", what, from, to,
                 (unsigned long long)found, (unsigned long long)truth, (unsigned long long)percent);
    }
}

/* Stated tolerance: latency within 15 % (and the mean of the jitter), bandwidth within 5 %. */
static void check_truth(uint32_t count, uint64_t seed, uint64_t latency_ns, uint64_t rate,
                        const char *backend)
{
    struct world world;
    struct weft_sim_options sim;
    weft_sim_options_init(&sim);
    sim.seed = seed;
    sim.host_count = count;
    sim.latency_ns = latency_ns;
    sim.jitter_ns = latency_ns / 10;
    sim.bytes_per_second = rate;
    world_open(&world, count, &sim, backend, NULL);
    for (uint32_t i = 0; i < count; i++) start_probe(&world, i);
    assert_int_equal(weft_sim_run(world.sim, &world.all_done, WEFT_SECONDS(30)), WEFT_OK);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t found;
        const struct weft_probe_result *results = weft_probe_results(world.probes[i], &found);
        assert_int_equal(found, count - 1);
        for (uint32_t k = 0; k < found; k++) {
            assert_int_equal(results[k].peer_id, world.ids[k < i ? k : k + 1]);
            assert_int_equal(results[k].status, WEFT_OK);
            assert_near(results[k].latency_ns, latency_ns + sim.jitter_ns / 2, 15, "latency", i, k);
            assert_near(results[k].out_bytes_per_second, rate, 5, "bandwidth out", i, k);
            assert_near(results[k].in_bytes_per_second, rate, 5, "bandwidth in", i, k);
        }
    }
    world_close(&world);
}

static void the_simulators_truth_is_found(void **state)
{
    check_truth(2, 1, 5000, 12500000000ull, "sim");
    check_truth(2, 2, 1500, 50000000000ull, "sim");
    check_truth(2, 3, 200000, 125000000, "sim");      /* 1 Gbit/s and 0.2 ms */
    check_truth(3, 4, 20000, 1250000000, "sim");
    check_truth(8, 5, 5000, 12500000000ull, "sim");
    check_truth(11, 6, 10000, 3000000000ull, "sim");
}

static void a_dead_and_a_cut_off_host_cost_time_and_nothing_else(void **state)
{
    struct world world;
    struct weft_sim_options sim;
    uint32_t found;
    weft_sim_options_init(&sim);
    sim.seed = 9;
    sim.host_count = 5;
    world_open(&world, 5, &sim, "sim", NULL);
    weft_sim_partition(world.sim, 0, 3, true);
    weft_sim_kill_at(world.sim, 2, 300000); /* during a measurement */
    for (uint32_t i = 0; i < 5; i++) start_probe(&world, i);
    world.expected = 4;
    assert_int_equal(weft_sim_run(world.sim, &world.all_done, WEFT_SECONDS(60)), WEFT_OK);
    assert_true(weft_sim_now_ns(world.sim) < WEFT_SECONDS(30));
    for (uint32_t i = 0; i < 5; i++) {
        if (i == 2) continue;
        const struct weft_probe_result *results = weft_probe_results(world.probes[i], &found);
        for (uint32_t k = 0; k < found; k++) {
            uint32_t peer = k < i ? k : k + 1;
            bool cut = (i == 0 && peer == 3) || (i == 3 && peer == 0);
            if (peer != 2) assert_int_equal(results[k].status == WEFT_OK, !cut);
            if (results[k].status != WEFT_OK) assert_true(results[k].text[0] != 0);
            assert_true(results[k].status != WEFT_IN_PROGRESS);
        }
    }
    weft_sim_partition(world.sim, 0, 3, false);
    world_close(&world);
}

static void one_that_never_starts_is_late_for_all(void **state)
{
    struct world world;
    struct weft_sim_options sim;
    uint32_t found;
    weft_sim_options_init(&sim);
    sim.host_count = 3;
    world_open(&world, 3, &sim, "sim", NULL);
    world.expected = 2;
    start_probe(&world, 0);
    start_probe(&world, 2);
    assert_int_equal(weft_sim_run(world.sim, &world.all_done, WEFT_SECONDS(60)), WEFT_OK);
    const struct weft_probe_result *results = weft_probe_results(world.probes[0], &found);
    assert_int_equal(results[0].status, WEFT_ERR_DEADLINE);
    assert_int_equal(results[1].status, WEFT_OK);
    results = weft_probe_results(world.probes[2], &found);
    assert_int_equal(results[0].status, WEFT_OK);
    assert_int_equal(results[1].status, WEFT_ERR_DEADLINE);
    world_close(&world);
}

static void bad_options_get_a_sentence(void **state)
{
    struct world world;
    struct weft_sim_options sim;
    weft_sim_options_init(&sim);
    sim.host_count = 2;
    world_open(&world, 2, &sim, "sim", NULL);
    uint32_t absent[] = {40, 99}, twice[] = {40, 40}, without[] = {43, 43};
    struct { const uint32_t *ids; uint32_t count, pings; size_t bulk;
    } bad[] = {
        {absent, 2, 8, 1000},    {twice, 2, 8, 1000},
        {without, 2, 8, 1000},   {world.ids, 1, 8, 1000},
        {world.ids, 2, 0, 1000}, {world.ids, 2, 1000000, 1000},
        {world.ids, 2, 8, 0},    {world.ids, 2, 8, (size_t)1 << 40},
        {NULL, 2, 8, 1000},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct weft_probe_options options;
        struct weft_error error = {0};
        weft_probe_options_init(&options);
        options.ids = bad[i].ids;
        options.count = bad[i].count;
        options.pings = bad[i].pings;
        options.bulk_bytes = bad[i].bulk;
        assert_int_equal(
            weft_probe_start(world.transports[0], world.loops[0], &options, &world.probes[0], &error),
            WEFT_ERR_INVALID);
        assert_true(error.text[0] != 0);
    }
    world_close(&world);
}

static void ignore(struct weft_completion *completion, enum weft_status status) {}

static void nonsense_from_a_peer_is_dropped(void **state)
{
    struct world world;
    struct weft_sim_options sim;
    uint32_t found;
    weft_sim_options_init(&sim);
    sim.host_count = 2;
    world_open(&world, 2, &sim, "sim", NULL);
    struct weft_completion completions[200];
    uint64_t random = 12345;
    start_probe(&world, 0);
    for (uint32_t i = 0; i < 200; i++) {
        uint8_t header[48];
        for (size_t k = 0; k < sizeof header; k++)
            header[k] = (uint8_t)((random = random * 6364136223846793005ull + 1442695040888963407ull) >> 33);
        if (i % 2) header[0] = 1, header[1] = 0, header[2] = (uint8_t)(i / 2 % 12), header[3] = 0;
        if (i % 3) memset(header + 4, 0, 4);
        struct weft_message message = {
            .tag = WEFT_TAG(WEFT_CHANNEL_PROBE, i), .header = header, .header_bytes = i % 5 ? 40 : i % 48};
        weft_completion_init(&completions[i], 1, ignore);
        assert_int_equal(weft_transport_send(weft_transport_peer(world.transports[1], world.ids[0]), &message,
                                             &completions[i]),
                         WEFT_IN_PROGRESS);
        if (i % 20 == 0) weft_sim_run(world.sim, NULL, weft_sim_now_ns(world.sim) + 100000);
    }
    start_probe(&world, 1);
    assert_int_equal(weft_sim_run(world.sim, &world.all_done, WEFT_SECONDS(60)), WEFT_OK);
    weft_probe_results(world.probes[0], &found); /* any status: the probe has ended */
    world_close(&world);
}

static void the_fingerprint_follows_the_machine(void **state)
{
    uint64_t here = weft_host_fingerprint("/");
    assert_true(here != 0);
    assert_true(here == weft_host_fingerprint("/"));
    assert_true(here != weft_host_fingerprint("/nowhere"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_and_the_best_depends_on_the_size),
        cmocka_unit_test(a_group_is_known_by_its_worst_pair),
        cmocka_unit_test(a_ring_uses_slow_links_least),
        cmocka_unit_test(sites_are_found),
        cmocka_unit_test(a_ring_from_a_table),
        cmocka_unit_test(machines_are_in_the_table),
        cmocka_unit_test(runs_are_in_the_table),
        cmocka_unit_test(a_host_that_changed_loses_its_rows),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(the_text_form_is_whole_or_refused),
        cmocka_unit_test(a_file_is_replaced_in_one_step),
        cmocka_unit_test(everybody_meets_everybody_once),
        cmocka_unit_test(the_simulators_truth_is_found),
        cmocka_unit_test(a_dead_and_a_cut_off_host_cost_time_and_nothing_else),
        cmocka_unit_test(one_that_never_starts_is_late_for_all),
        cmocka_unit_test(bad_options_get_a_sentence),
        cmocka_unit_test(nonsense_from_a_peer_is_dropped),
        cmocka_unit_test(the_fingerprint_follows_the_machine),
    };
    return cmocka_run_group_tests_name("probe", tests, NULL, NULL);
}
