/* test_cpu_quota.c - CPU time limits of control groups, read from folders created here. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/cpu_quota.h"
#include "tests/lib/check.h"

static char root[64];

/* Creates folders as needed; `path` begins with '/'. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int fresh(void **state)
{
    strcpy(root, "/tmp/weft-quota-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int removed(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static uint32_t processors(void) { return weft_cpu_quota_read(root).processors; }

static void nothing_known(void **state)
{
    assert_int_equal(processors(), 0);
    put("/proc/self/cgroup", "");
    assert_int_equal(processors(), 0);
    put("/proc/self/cgroup", "nonsense\n7\n::\n0::relative\n0::/not/there\n");
    assert_int_equal(processors(), 0);
}

static void version_2(void **state)
{
    put("/proc/self/cgroup", "0::/pod/worker\n");
    put("/sys/fs/cgroup/pod/worker/cpu.max", "max 100000\n");
    assert_int_equal(processors(), 0);
    put("/sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
    assert_int_equal(processors(), 3);
    uint64_t pod = weft_cpu_quota_read(root).group;
    put("/sys/fs/cgroup/pod/worker/cpu.max", "20000 100000\n");
    assert_int_equal(processors(), 1);
    assert_true(weft_cpu_quota_read(root).group != pod);
    put("/sys/fs/cgroup/pod/worker/cpu.max", "800000 100000\n"); /* more than the group above */
    assert_int_equal(processors(), 3);
    assert_true(weft_cpu_quota_read(root).group == pod);
    put("/sys/fs/cgroup/pod/cpu.max", "garbage\n");
    put("/sys/fs/cgroup/pod/worker/cpu.max", "");
    assert_int_equal(processors(), 0);
}

/* A container sees its own group as the root. */
static void in_a_container(void **state)
{
    put("/proc/self/cgroup", "12:memory:/docker/1234\n4:cpu,cpuacct:/docker/1234\n1:cpuset:/docker/1234\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(processors(), 0);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(processors(), 2);
    put("/proc/self/cgroup", "4:cpuacct,cpuset:/\n");
    assert_int_equal(processors(), 0);
    put("/proc/self/cgroup", "4:cpu:/\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "0\n");
    assert_int_equal(processors(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_known, fresh, removed),
        cmocka_unit_test_setup_teardown(version_2, fresh, removed),
        cmocka_unit_test_setup_teardown(in_a_container, fresh, removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
