/* test_config.c - precedence, parsing, and the sentence of each kind of error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config/config_check.h"
#include "tests/lib/check.h"

static struct weft_env env;
static char path[64];

static int setup(void **state)
{
    env = *weft_env_system();
    unsetenv("WEFT_CONFIG");
    unsetenv("WEFT_TRANSPORT_LANES");
    unsetenv("WEFT_CLIENT_DEADLINE");
    unsetenv("WEFT_LOG_LEVEL");
    strcpy(path, "/tmp/weft-test-XXXXXX");
    int fd = mkstemp(path);
    if (fd >= 0) close(fd);
    return fd < 0;
}

static int teardown(void **state)
{
    return unlink(path);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static struct weft_config *load(void)
{
    struct weft_config *config = NULL;
    struct weft_error error = {0};
    assert_int_equal(weft_config_load(&env, &config, &error), WEFT_OK);
    assert_int_equal(error.status, WEFT_OK);
    return config;
}

static void later_sources_win(void **state)
{
    struct weft_config *config = load();
    assert_string_equal(weft_config_text(config, "transport.lanes"), "tcp");
    assert_string_equal(weft_config_source(config, "transport.lanes"), "default");
    weft_config_free(config);

    write_file("; comment\n[transport]\nlanes = self\ndevices = eth0\n\n[client]\ndeadline = 2s\n");
    setenv("WEFT_CONFIG", path, 1);
    setenv("WEFT_CLIENT_DEADLINE", "1500", 1);
    config = load();
    assert_string_equal(weft_config_text(config, "transport.lanes"), "self");
    assert_string_equal(weft_config_text(config, "transport.devices"), "eth0");
    assert_string_equal(weft_config_source(config, "transport.lanes"), path);
    assert_int_equal(weft_config_u64(config, "client.deadline"), WEFT_MS(1500));
    assert_string_equal(weft_config_source(config, "client.deadline"), "WEFT_CLIENT_DEADLINE");
    assert_int_equal(weft_config_set(config, "client.deadline", "7 min", "--set", NULL), WEFT_OK);
    assert_int_equal(weft_config_u64(config, "client.deadline"), WEFT_SECONDS(420));
    weft_config_free(config);
}

static void every_row_of_the_table_is_sound(void **state)
{
    for (const struct weft_option *option = weft_option_table; option->name; option++) {
        assert_non_null(strchr(option->name, '.'));
        assert_int_equal(strspn(option->name, "abcdefghijklmnopqrstuvwxyz_."), strlen(option->name));
        assert_true(strlen(option->name) < 35);
        assert_int_equal(option->help[strlen(option->help) - 1], '.');
        assert_true(option->min <= option->max);
        for (const struct weft_option *other = weft_option_table; other != option; other++)
            assert_string_not_equal(option->name, other->name);
    }
    weft_config_free(load()); /* every default parses and is in range */
}

static void the_example_is_a_file_that_changes_nothing(void **state)
{
    struct weft_config *config = load();
    struct weft_error error = {0};
    char changed[2000] = "", text[64 * 1024];
    FILE *example = fopen(path, "w+");
    assert_non_null(example);
    weft_config_print_example(example);
    rewind(example);
    text[fread(text, 1, sizeof text - 1, example)] = 0;
    assert_int_equal(fclose(example), 0);
    for (const struct weft_option *option = weft_option_table; option->name; option++) {
        char line[200];
        snprintf(line, sizeof line, "\n;%s =%s%s\n", strchr(option->name, '.') + 1,
                 option->default_text[0] ? " " : "", option->default_text);
        if (!strstr(text, line)) fail_msg("the example lacks %s", line);
    }
    if (weft_config_read_file(config, path, &error) != WEFT_OK) fail_msg("%s", error.text);
    FILE *out = fmemopen(changed, sizeof changed, "w");
    weft_config_print_changed(config, out);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(changed, "");
    weft_config_free(config);
}

/* One setting that must be refused with a status and with each of the words in its sentence. */
static void refuse(const char *name, const char *value, enum weft_status status, const char *words)
{
    struct weft_config *config = load();
    struct weft_error error = {0};
    assert_int_equal(weft_config_set(config, name, value, "--set", &error), status);
    assert_int_equal(error.status, status);
    char copy[200], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "~"));)
        if (!strstr(error.text, word)) fail_msg("\"%s\" lacks \"%s\"", error.text, word);
    weft_config_free(config);
}

static void mistakes_get_a_sentence(void **state)
{
    refuse("client.deadlin", "1s", WEFT_ERR_NOT_FOUND,
           "--set: ~no option client.deadlin~did you mean client.deadline?");
    refuse("nonsense", "1s", WEFT_ERR_NOT_FOUND, "no option nonsense~module.name");
    refuse("client.deadline", "5 parsecs", WEFT_ERR_INVALID,
           "--set~client.deadline~5 parsecs~from 1ms to 168h");
    refuse("client.deadline", "0", WEFT_ERR_INVALID, "from 1ms");
    refuse("client.deadline", "18446744073709551615h", WEFT_ERR_INVALID, "from 1ms");
    refuse("client.deadline", "99999999999999999999999", WEFT_ERR_INVALID, "from 1ms");
    refuse("client.deadline", "", WEFT_ERR_INVALID, "\"\"");
    refuse("client.deadline", "-5s", WEFT_ERR_INVALID, "\"-5s\"");
    refuse("collective.chunk_bytes", "4XB", WEFT_ERR_INVALID, "a size from 4KiB to 1GiB");
    refuse("collective.chunk_bytes", "1KiB", WEFT_ERR_INVALID, "a size from 4KiB to 1GiB");
    refuse("client.rank", "3ms", WEFT_ERR_INVALID, "a whole number from 0 to 65535");
    refuse("client.rank", "65536", WEFT_ERR_INVALID, "65535");
    refuse("collective.plan", "rin", WEFT_ERR_INVALID, "one of auto|direct|ring");
    refuse("collective.plan", "auto|direct", WEFT_ERR_INVALID, "one of");
    refuse("job.name", "a\nb", WEFT_ERR_INVALID, "printable");
}

static void good_values_are_exact(void **state)
{
    struct weft_config *config = load();
    static const struct { const char *name, *text; uint64_t number; } good[] = {
        {"collective.chunk_bytes", "4096", 4096},        {"collective.chunk_bytes", "64kib", 65536},
        {"collective.chunk_bytes", "5 MB", 5000000},     {"collective.chunk_bytes", "1GiB", 1073741824},
        {"client.deadline", "1000us", 1000000},      {"client.deadline", "250ms", 250000000},
        {"client.deadline", "2h", WEFT_SECONDS(7200)}, {"client.rank", "65535", 65535},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(weft_config_set(config, good[i].name, good[i].text, "--set", NULL), WEFT_OK);
        assert_int_equal(weft_config_u64(config, good[i].name), good[i].number);
    }
    weft_config_free(config);
}

static void bad_file(const char *text, enum weft_status status, const char *word)
{
    struct weft_config *config = load();
    struct weft_error error = {0};
    char place[100];
    write_file(text);
    assert_int_equal(weft_config_read_file(config, path, &error), status);
    snprintf(place, sizeof place, "%s:%s", path, word);
    if (!strstr(error.text, place)) fail_msg("\"%s\" lacks \"%s\"", error.text, place);
    weft_config_free(config);
}

static void files_are_refused_with_path_and_line(void **state)
{
    bad_file("[transport]\nlanes = tcp\nlane = tcp\n", WEFT_ERR_NOT_FOUND,
             "3: there is no option transport.lane; did you mean transport.lanes?");
    bad_file("[client]\n\nrank = many\n", WEFT_ERR_INVALID, "3: option client.rank cannot be \"many\"");
    bad_file("[client]\nrank = 1\nrank = 2\n", WEFT_ERR_INVALID, "3: option client.rank is twice");
    bad_file("[client]\nrank\n", WEFT_ERR_MALFORMED, "2: not a [module] heading");

    struct weft_config *config = load();
    struct weft_error error = {0};
    assert_int_equal(weft_config_read_file(config, "/nonexistent/weft.ini", &error), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/weft.ini cannot be opened: No such file"));
    error = (struct weft_error){0};
    assert_int_equal(weft_config_read_file(config, "/tmp", &error), WEFT_ERR_IO);
    assert_non_null(strstr(error.text, "/tmp cannot be read: Is a directory"));
    weft_config_free(config);
}

static void the_environment_is_refused_by_variable(void **state)
{
    struct weft_config *config = NULL;
    struct weft_error error = {0};
    setenv("WEFT_CLIENT_DEADLINE", "soon", 1);
    assert_int_equal(weft_config_load(&env, &config, &error), WEFT_ERR_INVALID);
    assert_null(config);
    assert_non_null(strstr(error.text, "WEFT_CLIENT_DEADLINE: option client.deadline cannot be \"soon\""));
}

static char last_line[1001];
static void keep_line(struct weft_env *sink, enum weft_log_level level, const char *module, const char *text)
{
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void slips_in_variables_are_warned_of(void **state)
{
    env.log = keep_line;
    setenv("WEFT_TRANSPORT_LANE", "tcp", 1);
    weft_config_free(load());
    unsetenv("WEFT_TRANSPORT_LANE");
    assert_non_null(
        strstr(last_line, "WEFT_TRANSPORT_LANE is no option; did you mean WEFT_TRANSPORT_LANES?"));
    static const char *const slips[][2] = {
        {"WEFT_DEADLINE", "WEFT_DEADLINE_MS?"},
        {"WEFT_PLAN_ALLREDUCE", "WEFT_PLAN_ALL_REDUCE?"},
        {"WEFT_LOG", "WEFT_LOG_LEVEL?"},
        {"WEFT_BACKEND", "WEFT_TRANSPORT_BACKEND?"},
        {"WEFT_SECRETFILE", "WEFT_SECRET_FILE?"},
        {"WEFT_FROBNICATE", "has no effect"},
        {"WEFT_MIN_WORKERS", "has no effect"},
        {"WEFT_COORD", "WEFT_COORDINATOR?"},
        {"WEFT_DEADLINE_SEC", "WEFT_DEADLINE_MS?"},
    };
    for (size_t i = 0; i < sizeof slips / sizeof slips[0]; i++) {
        setenv(slips[i][0], "5", 1);
        weft_config_free(load());
        if (!strstr(last_line, slips[i][0]) || !strstr(last_line, slips[i][1]))
            fail_msg("%s: \"%s\"", slips[i][0], last_line);
        last_line[0] = '\0';
        weft_config_free(load());
        assert_string_equal(last_line, ""); /* reported once */
        unsetenv(slips[i][0]);
    }
    setenv("WEFT_TEST_ANYTHING", "x", 1);
    setenv("WEFT_TRANSPORT_LANES", "tcp", 1);
    weft_config_free(load());
    assert_string_equal(last_line, "");
}

static void log_level_reaches_the_env(void **state)
{
    setenv("WEFT_LOG_LEVEL", "debug", 1);
    weft_config_free(load());
    assert_int_equal(env.log_level, WEFT_LOG_DEBUG);
    unsetenv("WEFT_LOG_LEVEL");
    /* a log function of the caller keeps its level unless an option sets one */
    env.log_level = WEFT_LOG_INFO;
    struct weft_config *config = load();
    assert_int_equal(env.log_level, WEFT_LOG_INFO);
    assert_int_equal(weft_config_set(config, "log.level", "trace", "--set", NULL), WEFT_OK);
    assert_int_equal(env.log_level, WEFT_LOG_TRACE);
    weft_config_free(config);
}

static void print_names_every_option(void **state)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    struct weft_config *config = load();
    weft_config_print(config, out);
    fclose(out);
    for (const struct weft_option *option = weft_option_table; option->name; option++)
        assert_non_null(strstr(text, option->name));
    free(text);
    weft_config_free(config);
}

static void keep_text(void *context, const char *text)
{
    strcat(strcat(context, text), ";");
}

/* Rows: options that are set, whether this process coordinates, and the expected sentence. */
static void half_of_a_pair_is_refused_or_named(void **state)
{
    static const struct {
        const char *set[2][2]; /* name and value */
        bool coordinates;
        enum weft_status status;
        const char *text;
    } cases[] = {
        {{{"server.store", "/tmp/s"}}, true, WEFT_ERR_INVALID, "server.store needs server.copies=1"},
        {{{"server.store", "/tmp/s"}}, false, WEFT_OK, ""},
        {{{"server.store", "/tmp/s"}, {"server.copies", "1"}}, true, WEFT_OK, ""},
        {{{"server.store", "/tmp/s"}, {"server.resume", "0"}},
         true,
         WEFT_ERR_INVALID,
         "server.resume above 0"},
        {{{"server.store", ""}, {"server.resume", "0"}}, true, WEFT_OK, ""},
        {{{"server.copies_on_one_host", "yes"}},
         true,
         WEFT_OK,
         "server.copies_on_one_host has no effect without server.copies;"},
        {{{"server.copies_on_one_host", "no"}}, true, WEFT_OK, ""},
        {{{"server.rollback", "yes"}},
         true,
         WEFT_OK,
         "server.rollback has no effect without snapshot.folder or snapshot.restore;"},
        {{{"server.rollback", "yes"}, {"snapshot.folder", "/s"}}, true, WEFT_OK, ""},
        {{{"server.copy_bytes", "2MiB"}},
         true,
         WEFT_OK,
         "server.copy_bytes has no effect without server.copies;"},
        {{{"server.copy_bytes", "2MiB"}}, false, WEFT_OK, ""},
        {{{"server.move_rate", "2MiB"}},
         true,
         WEFT_OK,
         "server.move_rate has no effect without server.copies;"},
        {{{"server.move_rate", "2MiB"}, {"server.copies", "1"}}, true, WEFT_OK, ""},
        {{{"server.move_rate", "2MiB"}}, false, WEFT_OK, ""},
        {{{"server.hash_every", "9"}}, true, WEFT_OK, ""},
        {{{"snapshot.every", "5s"}, {"snapshot.keep", "9"}},
         false,
         WEFT_OK,
         "snapshot.every has no effect without snapshot.folder;snapshot.keep has no effect without "
         "snapshot.folder;"},
        {{{"snapshot.every", "5s"}, {"snapshot.folder", "/tmp/s"}}, false, WEFT_OK, ""},
        {{{"snapshot.weights", "int8"}},
         false,
         WEFT_OK,
         "snapshot.weights has no effect without snapshot.folder;"},
        {{{"snapshot.memory_bytes", "2MiB"}},
         false,
         WEFT_OK,
         "snapshot.memory_bytes has no effect without snapshot.folder;"},
        {{{"snapshot.hook", "/bin/true"}},
         false,
         WEFT_OK,
         "snapshot.hook has no effect without snapshot.folder or snapshot.restore;"},
        {{{"snapshot.hook", "/bin/true"}, {"snapshot.restore", "/tmp/s"}}, false, WEFT_OK, ""},
        {{{"snapshot.hook_keep", "2"}},
         false,
         WEFT_OK,
         "snapshot.hook_keep has no effect without snapshot.hook;"},
        {{{"collective.plans", "/tmp/p"}},
         false,
         WEFT_OK,
         "collective.plans has no effect without collective.retune;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weft_config *config = load();
        struct weft_error error = {0};
        char text[400] = "";
        for (int k = 0; k < 2 && cases[i].set[k][0]; k++)
            assert_int_equal(weft_config_set(config, cases[i].set[k][0], cases[i].set[k][1], "test", &error),
                             WEFT_OK);
        assert_int_equal(weft_config_check(config, cases[i].coordinates, keep_text, text, &error),
                         cases[i].status);
        if (cases[i].status == WEFT_OK) assert_string_equal(text, cases[i].text);
        else assert_non_null(strstr(error.text, cases[i].text));
        weft_config_free(config);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(later_sources_win),
        TEST(the_example_is_a_file_that_changes_nothing),
        TEST(every_row_of_the_table_is_sound),
        TEST(mistakes_get_a_sentence),
        TEST(good_values_are_exact),
        TEST(files_are_refused_with_path_and_line),
        TEST(the_environment_is_refused_by_variable),
        TEST(slips_in_variables_are_warned_of),
        TEST(log_level_reaches_the_env),
        TEST(print_names_every_option),
        TEST(half_of_a_pair_is_refused_or_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
