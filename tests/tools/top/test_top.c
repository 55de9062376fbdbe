/* test_top.c - rows of two statuses: rates over the time between two reports, restarted members,
 * the screen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"
#include "tools/top/top.h"

/* A status of one worker and one shard, at the worker's `steps` steps. */
static json_t *status_of(int age_ms, int steps, int incarnation, double open_s)
{
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:[{s:s, s:i, s:s, s:s, s:i, s:i, s:{s:i, s:i, s:i, s:I, s:I}},"
        " {s:s, s:i, s:s, s:s, s:i, s:i, s:{s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s}}]}",
        "job", "a", "state", "running", "uptime_ms", 100000, "workers", 1, "shards", 1, "epoch", 1,
        "weft_version", "0.1.0", "members",
        /* shard */
        "role", "shard", "index", 0, "state", "ready", "host", "h", "pid", 7, "incarnation", 1, "report",
        "age_ms", age_ms, "rounds", steps * 3, "missing", 2, "rounds_open", (json_int_t)4, "round_ns",
        (json_int_t)(open_s * 1e9),
        /* worker */
        "role", "worker", "index", 0, "state", "ready", "host", "h", "pid", 8, "incarnation", incarnation,
        "report", "age_ms", age_ms, "steps", steps, "operations", steps * 2, "missing", 0, "step_ns",
        (json_int_t)steps * 4000000, "exposed_ns", (json_int_t)steps * 1000000, "exposed_peers_ns",
        (json_int_t)steps * 400000, "sent_bytes", (json_int_t)steps * 1024, "open_ns",
        (json_int_t)(open_s * 1e9), "open", "all_reduce 7 waits for rank 1");
}

static void rates_are_of_the_time_between_reports(void **state)
{
    json_t *before = status_of(2000, 100, 2, 0), *now = status_of(1000, 190, 2, 0);
    struct top_rows rows;
    assert_non_null(before);
    /* read 8 s apart; the reports are 9 s apart */
    assert_true(top_rows_make(before, now, 8, &rows));
    assert_int_equal(rows.count, 2);
    assert_true(rows.rows[0].is_worker && !rows.rows[1].is_worker);
    assert_float_equal(rows.rows[0].seconds, 9, 1e-6);
    assert_float_equal(rows.rows[0].steps, 10, 1e-6);
    assert_float_equal(rows.rows[0].operations, 20, 1e-6);
    assert_float_equal(rows.rows[0].sent_bytes, 10240, 1e-6);
    assert_float_equal(rows.rows[0].step_seconds, 0.004, 1e-9);
    assert_float_equal(rows.rows[0].exposed, 0.25, 1e-6);
    assert_float_equal(rows.rows[0].exposed_peers, 0.1, 1e-6);
    assert_float_equal(rows.rows[1].steps, 30, 1e-6);
    top_rows_free(&rows);
    /* the same report again: no rate */
    assert_true(top_rows_make(before, before, 0, &rows));
    assert_float_equal(rows.rows[0].steps, 0, 1e-9);
    top_rows_free(&rows);
    json_decref(before);
    json_decref(now);
}

static void the_first_rates_are_since_the_start(void **state)
{
    json_t *before = status_of(0, 300, 2, 0), *now = status_of(0, 350, 3, 0);
    struct top_rows rows;
    assert_true(top_rows_make(NULL, before, 0, &rows));
    assert_float_equal(rows.rows[0].steps, 3, 1e-6);
    top_rows_free(&rows);
    /* another process has the rank now: its counters began at 0 */
    assert_true(top_rows_make(before, now, 10, &rows));
    assert_float_equal(rows.rows[0].steps, 35, 1e-6);
    top_rows_free(&rows);
    json_decref(before);
    json_decref(now);
}

static json_t *linked_status(int age_ms, long long to_b, long long to_shard)
{
    return json_pack("{s:i, s:[{s:s, s:s, s:i, s:{s:i, s:[[i, I], [i, I], [i, I]]}},"
                     " {s:s, s:s, s:i, s:{s:i, s:[[i, I]]}}, {s:s, s:s, s:i}]}",
                     "uptime_ms", 10000, "members",
                     /* rank 0 */
                     "role", "worker", "host", "a", "incarnation", 1, "report", "age_ms", age_ms, "links", 1,
                     (json_int_t)to_b, 2, (json_int_t)to_shard, 77, (json_int_t)5,
                     /* rank 1 */
                     "role", "worker", "host", "b", "incarnation", 2, "report", "age_ms", age_ms, "links", 2,
                     (json_int_t)to_shard,
                     /* shard 0, without a report */
                     "role", "shard", "host", "b", "incarnation", 3);
}

/* Rank 0 sends to rank 1 and to the shard, both on host b; rank 1 to the shard on its own host. */
static void links_are_between_hosts(void **state)
{
    json_t *before = linked_status(500, 1000, 2000), *now = linked_status(500, 5000, 6000);
    struct top_rows rows;
    char *text = NULL;
    size_t bytes;
    assert_true(top_rows_make(before, now, 4, &rows));
    assert_int_equal(rows.link_count, 2);
    assert_string_equal(rows.links[0].from, "a");
    assert_string_equal(rows.links[0].to, "b");
    assert_float_equal(rows.links[0].sent_bytes, 2000, 1e-6);
    assert_int_equal(rows.links[0].pairs, 2);
    assert_string_equal(rows.links[1].from, "b");
    assert_float_equal(rows.links[1].sent_bytes, 1000, 1e-6);
    FILE *out = open_memstream(&text, &bytes);
    top_print_json(out, now, &rows);
    fclose(out);
    assert_non_null(strstr(text, "\"links\":[{\"from\":\"a\",\"to\":\"b\""));
    free(text);
    top_rows_free(&rows);
    json_decref(before);
    json_decref(now);
}

static char *screen_of(double open_s, unsigned lines, unsigned columns)
{
    json_t *status = status_of(1000, 10, 2, open_s);
    struct top_rows rows;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(top_rows_make(NULL, status, 0, &rows));
    top_print(out, status, &rows, lines, columns);
    fclose(out);
    top_rows_free(&rows);
    json_decref(status);
    return text;
}

static void the_screen_shows_waits(void **state)
{
    char *text = screen_of(12.5, 0, 0);
    assert_non_null(strstr(text, "rank 0: 12.5 s in all_reduce 7 waits for rank 1\n"));
    assert_non_null(strstr(text, "shard 0: 4 open rounds, the oldest for 12.5 s; it lacks 2 workers\n"));
    free(text);
    text = screen_of(0.5, 0, 0);
    assert_null(strstr(text, "all_reduce"));
    free(text);
}

static void the_screen_has_a_size(void **state)
{
    for (unsigned height = 3; height < 9; height++) {
        char *text = screen_of(12.5, height, 30), *at = text;
        unsigned lines = 0;
        for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++) assert_true(end - at <= 30);
        assert_true(lines <= height);
        assert_int_equal(strstr(text, "... and ") != NULL, height < 6);
        free(text);
    }
}

static void json_has_the_members(void **state)
{
    json_t *status = status_of(1000, 10, 2, 1), *answer;
    struct top_rows rows;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(top_rows_make(NULL, status, 0, &rows));
    top_print_json(out, status, &rows);
    fclose(out);
    answer = json_loads(text, 0, NULL);
    assert_non_null(answer);
    const json_t *worker = json_array_get(json_object_get(answer, "members"), 0);
    assert_string_equal(json_string_value(json_object_get(worker, "role")), "worker");
    assert_float_equal(json_real_value(json_object_get(worker, "exposed_ratio")), 0.25, 1e-6);
    assert_non_null(
        json_object_get(json_array_get(json_object_get(answer, "members"), 1), "rounds_per_second"));
    json_decref(answer);
    free(text);
    top_rows_free(&rows);
    json_decref(status);
}

/* The names are those of /metrics; a lost worker has no series. */
static void metrics_have_the_names_of_weftd(void **state)
{
    json_t *status = status_of(1500, 10, 2, 0.5);
    char *text = NULL;
    size_t bytes;
    json_object_set_new(status, "job", json_string("a\"b"));
    json_object_set_new(json_array_get(json_object_get(status, "members"), 0), "state",
                        json_string("draining"));
    FILE *out = open_memstream(&text, &bytes);
    top_print_metrics(out, status);
    json_object_set_new(json_array_get(json_object_get(status, "members"), 1), "state", json_string("lost"));
    fputs("again\n", out);
    top_print_metrics(out, status);
    fclose(out);
    char *again = strstr(text, "again\n");
    assert_non_null(again);
    *again++ = 0;
    assert_non_null(strstr(text, "weft_job_state{weft_job=\"a\\\"b\",state=\"running\"} 1\n"));
    assert_non_null(
        strstr(text, "weft_job_members{weft_job=\"a\\\"b\",role=\"worker\",state=\"ready\"} 1\n"));
    assert_non_null(strstr(
        text, "weft_job_members{weft_job=\"a\\\"b\",role=\"shard\",state=\"ready\"} 1\n")); /* draining */
    assert_non_null(strstr(text, "\nweft_worker_steps_total{weft_job=\"a\\\"b\",rank=\"0\"} 10\n"));
    assert_non_null(strstr(text, "\nweft_worker_step_seconds_total{weft_job=\"a\\\"b\",rank=\"0\"} 0.040\n"));
    assert_non_null(strstr(text, "\nweft_worker_report_age_seconds{weft_job=\"a\\\"b\",rank=\"0\"} 1.500\n"));
    assert_null(strstr(again, "weft_worker_steps_total{"));
    assert_non_null(strstr(again, "role=\"worker\",state=\"lost\"} 1\n"));
    free(text);
    json_decref(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_of_the_time_between_reports),
        cmocka_unit_test(the_first_rates_are_since_the_start),
        cmocka_unit_test(links_are_between_hosts),
        cmocka_unit_test(the_screen_shows_waits),
        cmocka_unit_test(the_screen_has_a_size),
        cmocka_unit_test(json_has_the_members),
        cmocka_unit_test(metrics_have_the_names_of_weftd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
