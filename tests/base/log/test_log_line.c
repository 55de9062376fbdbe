/* test_log_line.c - lines as text and as JSON, for texts with any bytes; counts of repeated lines. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"

static const char *string_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static json_t *json_of(const struct weft_log_line *line, const struct weft_log_source *source)
{
    char out[WEFT_LOG_LINE_BYTES];
    size_t bytes = weft_log_line_format(line, WEFT_LOG_JSON, source, out);
    assert_int_equal(bytes, strlen(out));
    assert_true(bytes < sizeof out && out[bytes - 1] == '\n');
    assert_ptr_equal(strchr(out, '\n'), out + bytes - 1);
    json_t *json = json_loads(out, 0, NULL);
    assert_non_null(json);
    return json;
}

static void json_has_the_keys(void **state)
{
    const struct weft_log_source unknown = {.job = ""},
                                 rank = {.job = "a \"job\"", .role = "rank", .index = 3};
    struct weft_log_line line = {.time = {1764238292, 123456789},
                                 .level = WEFT_LOG_WARN,
                                 .module = "transport",
                                 .text = "peer \"b\" \\ said \xff"};
    json_t *json = json_of(&line, &rank);
    assert_string_equal(string_of(json, "time"), "2025-11-27T10:11:32.123Z");
    assert_string_equal(string_of(json, "level"), "warn");
    assert_string_equal(string_of(json, "module"), "transport");
    assert_string_equal(string_of(json, "job"), "a \"job\"");
    assert_int_equal(json_integer_value(json_object_get(json, "rank")), 3);
    assert_string_equal(string_of(json, "text"), "peer \"b\" \\ said \u00ff");
    json_decref(json);
    json = json_of(&line, &unknown);
    assert_int_equal(json_object_size(json), 4);
    json_decref(json);
}

/* The longest line: every byte needs an escape. */
static void long_lines_fit(void **state)
{
    static char text[1001], job[256];
    memset(text, '\xfe', sizeof text - 1);
    memset(job, '\xfe', sizeof job - 1);
    struct weft_log_source source = {.role = "shard", .index = UINT32_MAX};
    memcpy(source.job, job, sizeof job);
    const struct weft_log_line line = {.level = WEFT_LOG_ERROR, .module = "m", .text = text};
    json_t *json = json_of(&line, &source);
    assert_true(strlen(string_of(json, "text")) >= 1000);
    json_decref(json);
}

static void text_is_one_line(void **state)
{
    char out[WEFT_LOG_LINE_BYTES];
    const struct weft_log_source source = {.job = "a", .role = "rank"};
    const struct weft_log_line line = {.level = WEFT_LOG_INFO, .module = "base", .text = "text"};
    size_t bytes = weft_log_line_format(&line, WEFT_LOG_TEXT, &source, out);
    assert_int_equal(bytes, strlen("1970-01-01 00:00:00.000 info base: text\n"));
    assert_string_equal(out + strlen("1970-01-01 00:00:00.000 "), "info base: text\n");
}

/* ---- repeats ---- */

static void keep(void *context, enum weft_log_level level, const char *module, const char *text)
{
    char *all = context;
    size_t used = strlen(all);
    snprintf(all + used, 2000 - used, "%s %s: %s\n", weft_log_level_name(level), module, text);
}

static void repeats_are_counted(void **state)
{
    struct weft_log_repeats repeats = {0};
    char all[2000] = "";
    uint32_t shown = 0;
    for (uint32_t i = 0; i < 44; i++) {
        shown += weft_log_repeats_add(&repeats, WEFT_MS(100 * i), WEFT_LOG_WARN, "net", "refused", keep, all);
        /* another line between them is written and ends nothing */
        if (i < 3)
            assert_true(
                weft_log_repeats_add(&repeats, WEFT_MS(100 * i), WEFT_LOG_WARN, "net", "other", keep, all));
    }
    assert_int_equal(shown, WEFT_LOG_SHOWN);
    assert_string_equal(all, "");
    /* the window has passed: the next line of any text writes the count */
    assert_true(weft_log_repeats_add(&repeats, WEFT_SECONDS(10), WEFT_LOG_INFO, "job", "next", keep, all));
    assert_string_equal(all, "warn net: repeated 41 times in 4.3 s: refused\n");
    assert_true(weft_log_repeats_add(&repeats, WEFT_SECONDS(10), WEFT_LOG_WARN, "net", "refused", keep, all));
    weft_log_repeats_flush(&repeats, keep, all);
    assert_string_equal(all, "warn net: repeated 41 times in 4.3 s: refused\n");
}

static void a_periodic_line_is_written(void **state)
{
    struct weft_log_repeats repeats = {0};
    char all[2000] = "";
    for (uint32_t i = 0; i < 20; i++)
        assert_true(weft_log_repeats_add(&repeats, WEFT_SECONDS(5) * i, WEFT_LOG_WARN, "job",
                                         "rank 1 has not joined", keep, all));
    assert_string_equal(all, "");
}

/* More different lines than entries: the count of the oldest one is written when its entry is needed. */
static void a_full_table_writes_its_oldest(void **state)
{
    struct weft_log_repeats repeats = {0};
    char all[2000] = "", text[16];
    for (uint32_t i = 0; i < WEFT_LOG_SHOWN + 2; i++)
        weft_log_repeats_add(&repeats, 1, WEFT_LOG_ERROR, "a", "first", keep, all);
    for (uint32_t i = 0; i < WEFT_LOG_REPEATS; i++) {
        assert_string_equal(all, "");
        snprintf(text, sizeof text, "line %u", i);
        assert_true(weft_log_repeats_add(&repeats, 2 + i, WEFT_LOG_ERROR, "a", text, keep, all));
    }
    assert_string_equal(all, "error a: repeated 2 times in 0.0 s: first\n");
    weft_log_repeats_add(&repeats, 50, WEFT_LOG_ERROR, "a", "line 3", keep, all);
    for (uint32_t i = 0; i < 4; i++)
        weft_log_repeats_add(&repeats, 51, WEFT_LOG_WARN, "a", "line 3", keep, all);
    weft_log_repeats_flush(&repeats, keep, all); /* of another level: another line */
    assert_string_equal(all, "error a: repeated 2 times in 0.0 s: first\n"
                             "warn a: repeated 1 times in 0.0 s: line 3\n");
}

/* ---- the process ---- */

/* Standard error of a child that logs through the system env. */
static void child_output(void (*child)(struct weft_env *env), char *out, size_t bytes)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    struct weft_env *env = weft_env_system();
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    enum weft_log_format format = env->log_format;
    child(env);
    env->log_format = format;
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    size_t got = fread(out, 1, bytes - 1, file);
    out[got] = 0;
    fclose(file);
}

static void log_as_json(struct weft_env *env)
{
    uint64_t before = weft_log_count(WEFT_LOG_WARN);
    env->log_format = WEFT_LOG_JSON;
    weft_log_source_set("job-a", "rank", 7);
    weft_log(env, WEFT_LOG_WARN, "client", "rank %d waits", 2);
    for (int i = 0; i < 10; i++) weft_log(env, WEFT_LOG_WARN, "client", "same");
    assert_int_equal(weft_log_count(WEFT_LOG_WARN) - before, 11);
}

static void the_system_env_writes_json(void **state)
{
    char out[8192];
    child_output(log_as_json, out, sizeof out);
    size_t lines = 0;
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        json_t *json = json_loads(line, 0, NULL);
        assert_non_null(json);
        assert_string_equal(string_of(json, "job"), "job-a");
        assert_int_equal(json_integer_value(json_object_get(json, "rank")), 7);
        assert_string_equal(string_of(json, "text"), lines == 0 ? "rank 2 waits" : "same");
        json_decref(json);
    }
    assert_int_equal(lines, 1 + WEFT_LOG_SHOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_the_keys),          cmocka_unit_test(long_lines_fit),
        cmocka_unit_test(text_is_one_line),           cmocka_unit_test(repeats_are_counted),
        cmocka_unit_test(a_periodic_line_is_written), cmocka_unit_test(a_full_table_writes_its_oldest),
        cmocka_unit_test(the_system_env_writes_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
