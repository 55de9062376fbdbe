/* test_bind.c - cores from a made-up /sys, and their assignment to workers. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tools/run/run_bind.h"

static void words(void **state)
{
    enum run_bind how = RUN_BIND_NONE;
    assert_true(run_bind_parse("core", &how) && how == RUN_BIND_CORE);
    assert_true(run_bind_parse("auto", &how) && how == RUN_BIND_AUTO);
    assert_true(run_bind_parse("none", &how) && how == RUN_BIND_NONE);
    assert_false(run_bind_parse("", &how));
    assert_false(run_bind_parse("cores", &how));
}

static bool has(const struct run_cpus *cpus, uint32_t cpu)
{
    return CPU_ISSET_S(cpu, sizeof *cpus, (const cpu_set_t *)cpus->words);
}
static uint32_t count_of(const struct run_cpus *cpus)
{
    return (uint32_t)CPU_COUNT_S(sizeof *cpus, (const cpu_set_t *)cpus->words);
}

/* Ten cores of two processors each: c and c + 10. */
static void ten_cores(struct run_core cores[10])
{
    memset(cores, 0, 10 * sizeof *cores);
    for (uint32_t c = 0; c < 10; c++) {
        cores[c].first = c;
        CPU_SET_S(c, sizeof cores[c].cpus, (cpu_set_t *)cores[c].cpus.words);
        CPU_SET_S(c + 10, sizeof cores[c].cpus, (cpu_set_t *)cores[c].cpus.words);
    }
}

static void one_core_each(void **state)
{
    struct run_core cores[10];
    struct run_cpus cpus;
    ten_cores(cores);
    for (uint32_t worker = 0; worker < 10; worker++) {
        assert_true(run_bind_assign(RUN_BIND_CORE, cores, 10, 10, worker, &cpus));
        assert_true(count_of(&cpus) == 2 && has(&cpus, worker) && has(&cpus, worker + 10));
    }
    assert_true(run_bind_assign(RUN_BIND_CORE, cores, 10, 3, 2, &cpus));
    assert_true(count_of(&cpus) == 2 && has(&cpus, 2));
    assert_false(run_bind_assign(RUN_BIND_NONE, cores, 10, 3, 2, &cpus));
}

/* Every core has exactly one owner, and shares differ by at most one core. */
static void equal_shares(void **state)
{
    struct run_core cores[10];
    ten_cores(cores);
    for (uint32_t workers = 1; workers <= 10; workers++) {
        uint32_t owners[20] = {0};
        for (uint32_t worker = 0; worker < workers; worker++) {
            struct run_cpus cpus;
            assert_true(run_bind_assign(RUN_BIND_AUTO, cores, 10, workers, worker, &cpus));
            assert_in_range(count_of(&cpus) / 2, 10 / workers, (10 + workers - 1) / workers);
            for (uint32_t cpu = 0; cpu < 20; cpu++) owners[cpu] += has(&cpus, cpu);
        }
        for (uint32_t cpu = 0; cpu < 20; cpu++) assert_int_equal(owners[cpu], 1);
    }
    struct run_cpus cpus;
    /* more workers than cores: no binding */
    assert_false(run_bind_assign(RUN_BIND_AUTO, cores, 10, 11, 0, &cpus));
}

static void describe(const char *sys, uint32_t cpu, const char *name, const char *text)
{
    char path[500];
    snprintf(path, sizeof path, "%s/cpu%u", sys, cpu);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/cpu%u/topology", sys, cpu);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/cpu%u/topology/%s", sys, cpu, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* The processors of this process, as a made-up file system describes them. */
static void cores_of_the_machine(void **state)
{
    struct run_cpus mine = {{0}};
    assert_int_equal(sched_getaffinity(0, sizeof mine, (cpu_set_t *)mine.words), 0);
    uint32_t first = 0, last = 0, count = 0, usable = count_of(&mine);
    for (uint32_t cpu = RUN_CPUS_MAX; cpu-- > 0;)
        if (has(&mine, cpu)) first = cpu, last = last ? last : cpu;
    char *sys = temp_dir_make(), siblings[64];

    struct run_core *cores = run_bind_cores(sys, &count); /* without any description */
    assert_int_equal(count, usable);
    assert_int_equal(cores[0].first, first);
    free(cores);

    /* one core of two threads, of which some may be unusable, and one invalid list */
    snprintf(siblings, sizeof siblings, "%u-%u,8000,99999999\n", first, first + 1);
    describe(sys, first, "thread_siblings_list", siblings);
    describe(sys, last, "physical_package_id", "garbage");
    cores = run_bind_cores(sys, &count);
    bool pair = has(&mine, first + 1);
    assert_int_equal(count, usable - pair);
    assert_int_equal(count_of(&cores[0].cpus), 1 + pair);
    free(cores);

    describe(sys, first, "thread_siblings_list", "-");
    describe(sys, first, "physical_package_id", "1"); /* the first processor is on the second socket */
    cores = run_bind_cores(sys, &count);
    assert_int_equal(count, usable);
    assert_int_equal(cores[count - 1].first, first);
    free(cores);
    temp_dir_remove(sys);
}

/* A process bound to the last core runs only there. */
static void bound(void **state)
{
    uint32_t count = 0;
    struct run_core *cores = run_bind_cores("/sys/devices/system/cpu", &count);
    assert_non_null(cores);
    pid_t child = fork();
    if (child == 0) {
        struct run_cpus now = {{0}};
        bool fine = run_bind_apply(&cores[count - 1].cpus) &&
                    sched_getaffinity(0, sizeof now, (cpu_set_t *)now.words) == 0;
        _exit(fine && memcmp(&now, &cores[count - 1].cpus, sizeof now) == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    free(cores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words), cmocka_unit_test(one_core_each),
                                       cmocka_unit_test(equal_shares), cmocka_unit_test(cores_of_the_machine),
                                       cmocka_unit_test(bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
