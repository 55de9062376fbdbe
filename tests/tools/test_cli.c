/* test_cli.c - the option table (tools/cli.h): values of every type, the generated help, one sentence about
 * each mistake. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tools/cli.h"
#include "tools/size.h"

struct values {
    bool json;
    const char *job, *called_with;
    uint32_t workers, bind;
    uint64_t seed, bytes;
    double factor;
    uint32_t other;
    const char *plan;
};

static int set_called(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    if (strcmp(text, "refused") == 0) return cli_value_error(command, "--call", text, "accepted here");
    *(const char **)option->value = text;
    return -1;
}

static char output[8192]; /* of the last parse: stdout and stderr */
static bool takes_arguments = true;

/* Returns what cli_parse returns; the words end with NULL. */
static int parse(struct values *values, bool stops, const char *const *words, int *first_out)
{
    static const char *const binds[] = {"none", "core", "auto", NULL}, *const plans[] = {"auto", "ring",
                                                                                         NULL};
    *values =
        (struct values){.workers = 2, .seed = 1, .bytes = 65536, .factor = 4, .job = "weft", .plan = "auto"};
    const struct cli_option options[] = {
        {"workers", 'n', "N", "worker processes", CLI_U32(&values->workers, 1, 4096)},
        {"job", 'j', "NAME", "name of the job", CLI_TEXT(&values->job)},
        {"seed", 0, "N", "seed of the run", CLI_U64(&values->seed, 0, UINT64_MAX)},
        {"bytes", 'b', "SIZE", "bytes of the vector", CLI_SIZE(&values->bytes, 4, TOOL_SIZE_MAX)},
        {"factor", 0, "F", "ratio of two sizes", "a doubling", CLI_REAL(&values->factor, 1, 1e6)},
        {"bind", 0, "HOW",
         "where workers run: none, core or auto; this line is long enough that it does not fit beside its "
         "option",
         CLI_CHOICE(&values->bind, binds)},
        {"call", 0, "TEXT", "checked by a function", "", CLI_CALL(set_called, &values->called_with)},
        {"plan", 0, "PLAN", "plan of the call", CLI_NAME(&values->plan, plans)},
        {"json", 0, NULL, "one JSON object", CLI_FLAG(&values->json)},
        {"old-job", 0, "NAME", CLI_TEXT(&values->job), .new_name = "job"},
        {"shards", 's', "N", "shards", CLI_U32(&values->other, 1, 2), .not_of = "test"},
    };
    const struct cli_command command = {"weft test",
                                        "weft test [options]",
                                        "Does nothing.\n",
                                        options,
                                        sizeof options / sizeof options[0],
                                        .notes = "Exit status: 0.\n",
                                        .takes_arguments = takes_arguments,
                                        .stops_at_argument = stops};
    char *argv[16], copies[16][64];
    int argc = 0, pipes[2], saved[2] = {dup(1), dup(2)};
    for (; words[argc]; argc++)
        snprintf(copies[argc], sizeof copies[0], "%s", words[argc]), argv[argc] = copies[argc];
    argv[argc] = NULL;
    assert_int_equal(pipe(pipes), 0);
    fflush(stdout);
    dup2(pipes[1], 1), dup2(pipes[1], 2), close(pipes[1]);
    int status = cli_parse(&command, argc, argv, first_out);
    fflush(stdout);
    dup2(saved[0], 1), dup2(saved[1], 2), close(saved[0]), close(saved[1]);
    ssize_t bytes = read(pipes[0], output, sizeof output - 1);
    output[bytes > 0 ? bytes : 0] = 0;
    close(pipes[0]);
    if (status == -1 && values->job != words[0])
        values->job = strdup(values->job); /* the copies end with this call */
    return status;
}

static void values_of_every_type(void **state)
{
    struct values v;
    int first = 0;
    assert_int_equal(
        parse(&v, false,
              (const char *[]){"test", "-n", "7", "--job=a", "x", "--seed", "18446744073709551615", "-b64K",
                               "--factor", "1.5", "--bind", "auto", "--json", "--plan", "ring", NULL},
              &first),
        -1);
    assert_string_equal(v.plan, "ring");
    assert_int_equal(v.workers, 7);
    assert_string_equal(v.job, "a");
    assert_true(v.seed == UINT64_MAX && v.bytes == 65536 && v.bind == 2 && v.json && v.factor == 1.5);
    assert_int_equal(first, 14); /* getopt has moved "x" to the end */
    assert_string_equal(output, "");
    free((char *)v.job);
    assert_int_equal(
        parse(&v, true, (const char *[]){"test", "--old-job", "b", "program", "--json", NULL}, &first), -1);
    assert_int_equal(first, 3);
    assert_false(v.json);
    assert_string_equal(v.job, "b");
    assert_string_equal(output, "weft test: --old-job is the old name of --job and will be removed\n");
    free((char *)v.job);
}

static void one_sentence_about_each_mistake(void **state)
{
    static const struct {
        const char *words[5], *sentence;
    } wrong[] = {
        {{"test", "--wrokers", "2"},
         "weft test: unknown option '--wrokers' (did you mean '--workers'?); see weft test --help\n"},
        {{"test", "--frobnicate"}, "weft test: unknown option '--frobnicate'; see weft test --help\n"},
        {{"test", "-x"}, "weft test: unknown option '-x'; see weft test --help\n"},
        {{"test", "--old-jod", "x"},
         "weft test: unknown option '--old-jod'; see weft test --help\n"}, /* old names are not proposed */
        {{"test", "--job"}, "weft test: option --job needs a value; see weft test --help\n"},
        {{"test", "-n"}, "weft test: option -n needs a value; see weft test --help\n"},
        {{"test", "--json=yes"}, "weft test: --json=yes: the option takes no value; see weft test --help\n"},
        {{"test", "-n", "0"},
         "weft test: --workers: '0' is not a whole number from 1 to 4096; see weft test --help\n"},
        {{"test", "-n", "4097"},
         "weft test: --workers: '4097' is not a whole number from 1 to 4096; see weft test --help\n"},
        {{"test", "-n", "-1"},
         "weft test: --workers: '-1' is not a whole number from 1 to 4096; see weft test --help\n"},
        {{"test", "--seed", "18446744073709551616"},
         "weft test: --seed: '18446744073709551616' is not a whole number from 0 to 18446744073709551615; "
         "see weft test --help\n"},
        {{"test", "-b", "2"},
         "weft test: --bytes: '2' is not a size of at least 4, such as 64K or 1G; see weft test --help\n"},
        {{"test", "--factor", "nan"},
         "weft test: --factor: 'nan' is not a number from 1 to 1e+06; see weft test --help\n"},
        {{"test", "--bind", "cores"},
         "weft test: --bind: 'cores' is not none, core or auto; see weft test --help\n"},
        {{"test", "--call", "refused"},
         "weft test: --call: 'refused' is not accepted here; see weft test --help\n"},
        {{"test", "--shards", "1"}, "weft test: --shards is not an option of test; see weft test --help\n"},
    };
    struct values v;
    int first;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(parse(&v, false, wrong[i].words, &first), 2);
        assert_string_equal(output, wrong[i].sentence);
    }
    takes_arguments = false;
    assert_int_equal(parse(&v, false, (const char *[]){"test", "extra", NULL}, &first), 2);
    assert_string_equal(output, "weft test: unexpected argument 'extra'; see weft test --help\n");
    takes_arguments = true;
}

static void help_lists_the_table_and_its_defaults(void **state)
{
    struct values v;
    int first;
    assert_int_equal(parse(&v, false, (const char *[]){"test", "-n", "9", "--help", NULL}, &first), 0);
    assert_string_equal(output, "usage: weft test [options]\n"
                                "Does nothing.\n"
                                "\n"
                                "  -n, --workers N   worker processes (default: 2)\n"
                                "  -j, --job NAME    name of the job (default: weft)\n"
                                "      --seed N      seed of the run (default: 1)\n"
                                "  -b, --bytes SIZE  bytes of the vector (default: 64K)\n"
                                "      --factor F    ratio of two sizes (default: a doubling)\n"
                                "      --bind HOW    where workers run: none, core or auto; this line is "
                                "long enough that it does not\n"
                                "                    fit beside its option (default: none)\n"
                                "      --call TEXT   checked by a function\n"
                                "      --plan PLAN   plan of the call (default: auto)\n"
                                "      --json        one JSON object\n"
                                "  -h, --help        this text\n"
                                "      --version     release and wire version\n"
                                "\n"
                                "Exit status: 0.\n");
    assert_int_equal(parse(&v, false, (const char *[]){"test", "--version", NULL}, &first), 0);
    assert_memory_equal(output, "weft test ", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type),
        cmocka_unit_test(one_sentence_about_each_mistake),
        cmocka_unit_test(help_lists_the_table_and_its_defaults),
    };
    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}
