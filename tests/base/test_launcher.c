/* test_launcher.c - what mpirun, torchrun and srun put into the environment, and what does not count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/launcher.h"
#include "tests/lib/check.h"

static const char *const names[] = {
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
};

static int empty(void **state)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    return 0;
}

static void put(const char *const (*pairs)[2])
{
    for (; (*pairs)[0]; pairs++) setenv((*pairs)[0], (*pairs)[1], 1);
}
#define PUT(...) put((const char *const[][2]){__VA_ARGS__, {NULL, NULL}})

static void nobody_launched_this(void **state)
{
    struct weft_launcher launcher = {.rank = 77};
    assert_false(weft_launcher_find(&launcher));
    PUT({"RANK", "1"}, {"WORLD_SIZE", "4"}); /* not all four */
    assert_false(weft_launcher_find(&launcher));
    PUT({"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"});
    assert_false(weft_launcher_find(&launcher));
    PUT({"MASTER_PORT", "1"}, {"RANK", "4"}); /* beyond the last */
    assert_false(weft_launcher_find(&launcher));
    PUT({"RANK", "-1"});
    assert_false(weft_launcher_find(&launcher));
    PUT({"RANK", "1x"});
    assert_false(weft_launcher_find(&launcher));
    PUT({"RANK", "99999999999999999999"});
    assert_false(weft_launcher_find(&launcher));
    assert_int_equal(launcher.rank, 77);
}

static void torchrun_says_where(void **state)
{
    struct weft_launcher launcher;
    PUT({"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.name, "torchrun");
    assert_true(launcher.rank == 3 && launcher.ranks == 4);
    assert_string_equal(launcher.coordinator, "node7:29501"); /* at 29500 is its own store */
    assert_string_equal(launcher.job, "torchrun-29500");
    PUT({"MASTER_ADDR", "fd00::7"}, {"MASTER_PORT", "65535"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.coordinator, "[fd00::7]:65534");
}

static void mpirun_on_one_host_and_on_several(void **state)
{
    struct weft_launcher launcher, other;
    PUT({"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "prterun-a/b@1"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.name, "mpirun");
    assert_true(launcher.rank == 0 && launcher.ranks == 2);
    assert_string_equal(launcher.job, "mpirun-prterun-a_b@1");
    unsigned port = 0;
    assert_int_equal(sscanf(launcher.coordinator, "127.0.0.1:%u", &port), 1);
    assert_in_range(port, 20000, 31999);
    PUT({"OMPI_COMM_WORLD_RANK", "1"});
    assert_true(weft_launcher_find(&other));
    assert_string_equal(other.coordinator, launcher.coordinator); /* all ranks say the same */
    PUT({"OMPI_COMM_WORLD_LOCAL_SIZE", "1"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.coordinator, "");
    PUT({"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "5000"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.coordinator, "10.0.0.1:5001");
}

static void mpich_has_no_name(void **state)
{
    struct weft_launcher launcher;
    PUT({"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"});
    assert_true(weft_launcher_find(&launcher));
    assert_true(launcher.rank == 1 && launcher.ranks == 3 && launcher.coordinator[0]);
    PUT({"MPI_LOCALNRANKS", "2"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.coordinator, "");
}

static void srun_lists_its_hosts(void **state)
{
    static const struct { const char *list, *first; } lists[] = {
        {"node[01-04,7],other", "node01"}, {"node[7]", "node7"}, {"a,b", "a"}, {"n[3,5]-ib,m", "n3-ib"}, {"gpu-2.cluster", "gpu-2.cluster"},
    };
    struct weft_launcher launcher;
    PUT({"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_JOB_ID", "123"});
    assert_false(weft_launcher_find(&launcher)); /* a batch script, no step */
    PUT({"SLURM_STEP_ID", "4"}, {"SLURM_STEP_NUM_NODES", "2"});
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char host[64];
        PUT({"SLURM_STEP_NODELIST", lists[i].list});
        assert_true(weft_launcher_find(&launcher));
        snprintf(host, sizeof host, "%s:", lists[i].first);
        assert_int_equal(strncmp(launcher.coordinator, host, strlen(host)), 0);
    }
    PUT({"SLURM_STEP_NODELIST", "node[01"});
    assert_true(weft_launcher_find(&launcher));
    assert_string_equal(launcher.coordinator, "");
    PUT({"SLURM_STEP_NUM_NODES", "1"});
    assert_true(weft_launcher_find(&launcher));
    assert_int_equal(strncmp(launcher.coordinator, "127.0.0.1:", 10), 0);
    assert_string_equal(launcher.job, "srun-123.4");
}

static void pmix_alone_counts_nobody(void **state)
{
    struct weft_launcher launcher;
    PUT({"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "x"});
    assert_true(weft_launcher_find(&launcher));
    assert_true(launcher.rank == 2 && launcher.ranks == 0 && launcher.coordinator[0] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nobody_launched_this, empty),
        cmocka_unit_test_setup(torchrun_says_where, empty),
        cmocka_unit_test_setup(mpirun_on_one_host_and_on_several, empty),
        cmocka_unit_test_setup(mpich_has_no_name, empty),
        cmocka_unit_test_setup(srun_lists_its_hosts, empty),
        cmocka_unit_test_setup(pmix_alone_counts_nobody, empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
