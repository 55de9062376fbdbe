/* test_launcher.c - variables of mpirun, torchrun and srun: complete, incomplete and invalid ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/launcher.h"
#include "tests/lib/check.h"

static const char *const names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_NTASKS",
    "SLURM_JOB_NODELIST",
    "WEFT_RANKS",
    "JOB_COMPLETION_INDEX",
    "HOSTNAME",
    "KUBERNETES_SERVICE_HOST",
    "WEFT_HEADLESS_SERVICE",
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

static bool found(struct weft_launcher *launcher)
{
    return weft_launcher_find(false, launcher, NULL) == WEFT_OK;
}

/* The sentence must contain each of the words, separated by '~'. */
static void refused(const char *words)
{
    struct weft_launcher launcher = {.rank = 77};
    struct weft_error error = {0};
    char copy[200], *rest = copy;
    assert_int_equal(weft_launcher_find(false, &launcher, &error), WEFT_ERR_INVALID);
    assert_int_equal(error.status, WEFT_ERR_INVALID);
    assert_int_equal(launcher.rank, 77);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "~"));)
        if (!strstr(error.text, word)) fail_msg("\"%s\" lacks \"%s\"", error.text, word);
}

/* Complete sets of variables; the first `numbers` of them are numbers. */
static const struct complete {
    const char *kind;
    int numbers;
    const char *pairs[7][2];
} complete[] = {
    {"torchrun", 3, {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", "29500"}, {"MASTER_ADDR", "a"}}},
    {"mpirun", 2, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}}},
    {"mpirun", 2, {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}},
    {"srun",
     4,
     {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "0"}}},
    {"PMIx", 1, {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}}},
};
#define COMPLETE_COUNT (sizeof complete / sizeof complete[0])

static void put_complete(const struct complete *set)
{
    empty(NULL);
    for (int i = 0; set->pairs[i][0]; i++) setenv(set->pairs[i][0], set->pairs[i][1], 1);
}

static void one_missing_variable_is_named(void **state)
{
    for (size_t i = 0; i < COMPLETE_COUNT; i++) {
        for (int left_out = 0; complete[i].pairs[left_out][0]; left_out++) {
            char words[200];
            const char *name = complete[i].pairs[left_out][0];
            put_complete(&complete[i]);
            snprintf(words, sizeof words, "variables of %s are incomplete~%s is not set~=~unset",
                     complete[i].kind, name);
            unsetenv(name);
            refused(words);
            snprintf(words, sizeof words, "variables of %s are incomplete~%s is empty", complete[i].kind,
                     name);
            setenv(name, "", 1);
            refused(words);
        }
    }
    empty(NULL);
    PUT({"RANK", "0"});
    refused("RANK=0~WORLD_SIZE is not set");
    empty(NULL);
    PUT({"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"});
    refused("MASTER_ADDR=a~RANK is not set");
}

static void what_is_no_number_is_named(void **state)
{
    static const char *const wrong[] = {"-1", "zero", "1x", " 1", "+1", "1.0", "0x1", "99999999999999999999"};
    for (size_t i = 0; i < COMPLETE_COUNT; i++) {
        for (int place = 0; place < complete[i].numbers; place++) {
            for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
                char words[200];
                put_complete(&complete[i]);
                setenv(complete[i].pairs[place][0], wrong[k], 1);
                snprintf(words, sizeof words, "variables of %s~%s=%s is not a number from ", complete[i].kind,
                         complete[i].pairs[place][0], wrong[k]);
                refused(words);
            }
        }
    }
}

static void ranks_beyond_the_last_are_named(void **state)
{
    for (size_t i = 0; i < COMPLETE_COUNT; i++) {
        char words[200];
        put_complete(&complete[i]);
        const char *rank = complete[i].pairs[0][0], *ranks = complete[i].pairs[1][0];
        setenv(rank, "4096", 1);
        snprintf(words, sizeof words, "%s=4096 is not a number from 0 to 4095", rank);
        refused(words);
        if (complete[i].numbers < 2) continue;
        setenv(rank, "3", 1);
        snprintf(words, sizeof words, "%s=3 is not a number from 0 to 2~%s=3", rank, ranks);
        refused(words);
        setenv(ranks, "0", 1);
        snprintf(words, sizeof words, "%s=0 is not a number from 1 to 4096", ranks);
        refused(words);
    }
    empty(NULL);
    PUT({"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"});
    refused("MASTER_PORT=0 is not a number from 1 to 65535");
    PUT({"MASTER_PORT", "65536"});
    refused("MASTER_PORT=65536");
    empty(NULL);
    PUT({"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"});
    refused("OMPI_COMM_WORLD_LOCAL_SIZE=3");
    PUT({"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "a"});
    refused("MASTER_ADDR=a"); /* if one of the two is set, both are required */
}

static void another_launcher_makes_up_for_what_is_missing(void **state)
{
    struct weft_launcher launcher;
    PUT({"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}, {"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.name, "srun");
    assert_string_equal(launcher.coordinator, "a:1005");
    PUT({"RANK", "0"}); /* torchrun's variables are complete now */
    assert_true(found(&launcher));
    assert_string_equal(launcher.name, "torchrun");
    empty(NULL); /* srun with MPICH's variables: the launcher with a coordinator is used */
    PUT({"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_NODES", "1"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.name, "srun");
}

static void a_known_coordinator_needs_the_rank_alone(void **state)
{
    struct weft_launcher launcher;
    struct weft_error error = {0};
    PUT({"MASTER_ADDR", "a"}, {"MASTER_PORT", "none"});
    assert_int_equal(weft_launcher_find(true, &launcher, &error), WEFT_ERR_NOT_FOUND);
    PUT({"RANK", "1"}, {"WORLD_SIZE", "2"});
    assert_int_equal(weft_launcher_find(true, &launcher, &error), WEFT_OK);
    assert_int_equal(launcher.rank, 1);
    assert_int_equal(error.status, WEFT_OK);
    unsetenv("WORLD_SIZE");
    assert_int_equal(weft_launcher_find(true, &launcher, &error), WEFT_ERR_INVALID);
}

static void without_a_launcher_nothing_is_found(void **state)
{
    struct weft_launcher launcher;
    struct weft_error error = {0};
    assert_int_equal(weft_launcher_find(false, &launcher, &error), WEFT_ERR_NOT_FOUND);
    /* a batch script without step */
    PUT({"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "123"}, {"SLURM_NTASKS", "8"});
    assert_int_equal(weft_launcher_find(false, &launcher, &error), WEFT_ERR_NOT_FOUND);
    PUT({"SLURM_PROCID", "1"});
    refused("SLURM_PROCID=1~SLURM_STEP_NUM_TASKS is not set");
}

/* torchrun names its host as other hosts know it, and a job on one host needs no address but loopback. */
static void torchrun_on_one_host(void **state)
{
    struct weft_launcher launcher;
    PUT({"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"},
        {"MASTER_PORT", "29500"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "127.0.0.1:30500");
    PUT({"LOCAL_WORLD_SIZE", "1"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "node7:30500");
}

static void the_ports_of_a_coordinator_differ(void **state)
{
    for (uint32_t first = 1024; first <= 65535; first++)
        for (uint32_t k = 0; k < WEFT_LAUNCHER_PORTS; k++)
            for (uint32_t other = 0; other < k; other++) {
                const uint16_t port = weft_launcher_port((uint16_t)first, k);
                if (port < 1024 || port == weft_launcher_port((uint16_t)first, other))
                    fail_msg("port %u of the list of %u is %u", k, first, port);
            }
}

static void torchrun_names_the_coordinator(void **state)
{
    struct weft_launcher launcher;
    PUT({"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.name, "torchrun");
    assert_true(launcher.rank == 3 && launcher.ranks == 4);
    assert_string_equal(launcher.coordinator, "node7:30500"); /* 29500 is the port of torchrun's own store */
    assert_string_equal(launcher.job, "torchrun-29500");
    PUT({"MASTER_ADDR", "fd00::7"}, {"MASTER_PORT", "65535"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "[fd00::7]:56535");
}

static void mpirun_on_one_host_and_on_several(void **state)
{
    struct weft_launcher launcher, other;
    PUT({"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_NAMESPACE", "prterun-a/b@1"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.name, "mpirun");
    assert_true(launcher.rank == 0 && launcher.ranks == 2);
    assert_string_equal(launcher.job, "mpirun-prterun-a_b@1");
    unsigned port = 0;
    assert_int_equal(sscanf(launcher.coordinator, "127.0.0.1:%u", &port), 1);
    assert_in_range(port, 20000, 31999);
    PUT({"OMPI_COMM_WORLD_RANK", "1"});
    assert_true(found(&other));
    assert_string_equal(other.coordinator, launcher.coordinator); /* equal on all ranks */
    PUT({"OMPI_COMM_WORLD_LOCAL_SIZE", "1"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "");
    PUT({"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "5000"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "10.0.0.1:6000");
}

static void mpirun_in_an_allocation_of_slurm(void **state)
{
    struct weft_launcher open_mpi, mpich;
    PUT({"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"PMIX_NAMESPACE", "7"}, {"SLURM_JOB_NODELIST", "node[3-4]"}, {"SLURM_JOB_ID", "9"});
    assert_true(found(&open_mpi));
    assert_int_equal(strncmp(open_mpi.coordinator, "node3:", 6), 0);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    PUT({"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"});
    assert_true(found(&mpich));
    assert_int_equal(strncmp(mpich.coordinator, "node3:", 6), 0);
    assert_string_equal(mpich.job, "mpirun-9");
}

static void mpich_has_no_name(void **state)
{
    struct weft_launcher launcher;
    PUT({"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"});
    assert_true(found(&launcher));
    assert_true(launcher.rank == 1 && launcher.ranks == 3 && launcher.coordinator[0]);
    PUT({"MPI_LOCALNRANKS", "2"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "");
}

static void srun_lists_its_hosts(void **state)
{
    static const struct {
        const char *list, *first;
    } lists[] = {
        {"node[01-04,7],other", "node01"},  {"node[7]", "node7"}, {"a,b", "a"}, {"n[3,5]-ib,m", "n3-ib"},
        {"gpu-2.cluster", "gpu-2.cluster"},
    };
    struct weft_launcher launcher;
    PUT({"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_JOB_ID", "123"}, {"SLURM_STEP_ID", "4"},
        {"SLURM_STEP_NUM_NODES", "2"});
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char host[64];
        PUT({"SLURM_STEP_NODELIST", lists[i].list});
        assert_true(found(&launcher));
        snprintf(host, sizeof host, "%s:", lists[i].first);
        assert_int_equal(strncmp(launcher.coordinator, host, strlen(host)), 0);
    }
    PUT({"SLURM_STEP_NODELIST", "node[01"});
    refused("SLURM_STEP_NODELIST=node[01 is not a list of hosts");
    PUT({"SLURM_STEP_NUM_NODES", "1"});
    assert_true(found(&launcher));
    assert_int_equal(strncmp(launcher.coordinator, "127.0.0.1:", 10), 0);
    assert_string_equal(launcher.job, "srun-123.4");
}

static void pmix_alone_has_no_rank_count(void **state)
{
    struct weft_launcher launcher;
    PUT({"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "x"});
    assert_true(found(&launcher));
    assert_true(launcher.rank == 2 && launcher.ranks == 0 && launcher.coordinator[0] == 0);
    PUT({"WEFT_RANKS", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "2000"});
    assert_true(found(&launcher));
    assert_true(launcher.rank == 2 && launcher.ranks == 4);
    assert_string_equal(launcher.coordinator, "a:3000");
    PUT({"PMIX_RANK", "4"});
    refused("PMIX_RANK=4 is not a number from 0 to 3~WEFT_RANKS=4");
}

/* The rank of a host is no rank of the job. */
static void local_ranks_alone_are_incomplete(void **state)
{
    struct weft_launcher launcher;
    PUT({"LOCAL_RANK", "1"});
    refused("variables of torchrun are incomplete~LOCAL_RANK=1 is set~RANK is not set");
    PUT({"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"});
    assert_true(found(&launcher));
    assert_true(launcher.rank == 1 && launcher.ranks == 3);
    empty(NULL);
    PUT({"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"});
    assert_int_equal(weft_launcher_find(true, &launcher, NULL), WEFT_ERR_NOT_FOUND);
}

static bool known(struct weft_launcher *launcher)
{
    return weft_launcher_find(true, launcher, NULL) == WEFT_OK;
}

static void an_indexed_job(void **state)
{
    struct weft_launcher launcher;
    uint32_t ordinal = 77;
    const char *source = NULL;
    PUT({"JOB_COMPLETION_INDEX", "3"}, {"HOSTNAME", "train-3"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"});
    assert_true(weft_launcher_ordinal(&ordinal, &source));
    assert_int_equal(ordinal, 3);
    assert_string_equal(source, "JOB_COMPLETION_INDEX");
    assert_false(found(&launcher)); /* neither coordinator nor number of ranks: may be a job of its own */
    assert_true(known(&launcher));
    assert_int_equal(launcher.rank, 3);
    PUT({"WEFT_RANKS", "4"}, {"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "2000"});
    /* MASTER_ADDR alone belongs to torchrun, whose RANK is missing; this is complete */
    assert_true(found(&launcher));
    assert_true(launcher.rank == 3 && launcher.ranks == 4);
    assert_string_equal(launcher.coordinator, "train-0.train:3000");
    assert_string_equal(launcher.job, "kubernetes-train");
    PUT({"WEFT_RANKS", "3"});
    refused("JOB_COMPLETION_INDEX=3~rank 3~WEFT_RANKS=3");
    PUT({"JOB_COMPLETION_INDEX", "x"}, {"WEFT_RANKS", "4"});
    refused("JOB_COMPLETION_INDEX=x is not a number from 0");
    assert_false(weft_launcher_ordinal(&ordinal, NULL));
}

static void pod_zero_of_a_headless_service(void **state)
{
    struct weft_launcher launcher, again;
    struct weft_error error = {0};
    char host[WEFT_LAUNCHER_HOST_BYTES];
    char longest[300];
    PUT({"JOB_COMPLETION_INDEX", "3"}, {"HOSTNAME", "a-train-3"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
        {"WEFT_RANKS", "4"});
    assert_int_equal(weft_launcher_pod_zero(host, &error), WEFT_ERR_NOT_FOUND);
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, ""); /* no service */
    PUT({"WEFT_HEADLESS_SERVICE", "train.jobs.svc"});
    assert_int_equal(weft_launcher_pod_zero(host, &error), WEFT_OK);
    assert_string_equal(host, "a-train-0.train.jobs.svc");
    assert_true(found(&launcher));
    assert_int_equal(launcher.rank, 3);
    assert_memory_equal(launcher.coordinator, "a-train-0.train.jobs.svc:", 25);
    PUT({"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "a-train-0"});
    assert_true(found(&again));
    assert_string_equal(again.coordinator, launcher.coordinator); /* equal on all ranks */
    PUT({"MASTER_ADDR", "b"}, {"MASTER_PORT", "2000"});
    assert_true(found(&launcher));
    assert_string_equal(launcher.coordinator, "b:3000"); /* it is more specific */
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    assert_true(known(&launcher)); /* a given coordinator needs no service */
    assert_string_equal(launcher.coordinator, "");
    PUT({"WEFT_HEADLESS_SERVICE", "a b"});
    refused("WEFT_HEADLESS_SERVICE=a b is not a host name of DNS");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    setenv("WEFT_HEADLESS_SERVICE", longest, 1);
    refused("give a name of 309 bytes, above 255");
    PUT({"WEFT_HEADLESS_SERVICE", "train"}, {"HOSTNAME", "train"});
    assert_int_equal(weft_launcher_pod_zero(host, &error), WEFT_ERR_NOT_FOUND);
}

static void a_stateful_set(void **state)
{
    static const struct {
        const char *host;
        int ordinal; /* -1: none */
    } cases[] = {{"train-1", 1},         {"a-b-12", 12},   {"train-0", 0},   {"train", -1},
                 {"train-", -1},         {"-1", -1},       {"train-1a", -1}, {"train-+1", -1},
                 {"web-5d9f-24567", -1}, {"x-4095", 4095}, {"x-4096", -1}};
    struct weft_launcher launcher;
    PUT({"HOSTNAME", "node-7"});
    assert_false(known(&launcher)); /* a host outside a cluster */
    PUT({"KUBERNETES_SERVICE_HOST", "10.0.0.1"});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t ordinal;
        setenv("HOSTNAME", cases[i].host, 1);
        if (weft_launcher_ordinal(&ordinal, NULL) != (cases[i].ordinal >= 0) ||
            (cases[i].ordinal >= 0 && ordinal != (uint32_t)cases[i].ordinal))
            fail_msg("%s", cases[i].host);
    }
    PUT({"HOSTNAME", "train-1"});
    assert_true(known(&launcher));
    assert_int_equal(launcher.rank, 1);
    assert_false(found(&launcher));
    PUT({"WEFT_RANKS", "2"});
    assert_true(found(&launcher)); /* the coordinator is unknown; weft_init requests its address */
    assert_true(launcher.rank == 1 && launcher.ranks == 2 && launcher.coordinator[0] == 0);
    PUT({"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}); /* mpirun inside a pod */
    assert_true(known(&launcher));
    assert_string_equal(launcher.name, "mpirun");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_a_launcher_nothing_is_found, empty),
        cmocka_unit_test_setup(one_missing_variable_is_named, empty),
        cmocka_unit_test_setup(what_is_no_number_is_named, empty),
        cmocka_unit_test_setup(ranks_beyond_the_last_are_named, empty),
        cmocka_unit_test_setup(another_launcher_makes_up_for_what_is_missing, empty),
        cmocka_unit_test_setup(a_known_coordinator_needs_the_rank_alone, empty),
        cmocka_unit_test_setup(torchrun_names_the_coordinator, empty),
        cmocka_unit_test_setup(torchrun_on_one_host, empty),
        cmocka_unit_test(the_ports_of_a_coordinator_differ),
        cmocka_unit_test_setup(mpirun_on_one_host_and_on_several, empty),
        cmocka_unit_test_setup(mpirun_in_an_allocation_of_slurm, empty),
        cmocka_unit_test_setup(mpich_has_no_name, empty),
        cmocka_unit_test_setup(srun_lists_its_hosts, empty),
        cmocka_unit_test_setup(an_indexed_job, empty),
        cmocka_unit_test_setup(pod_zero_of_a_headless_service, empty),
        cmocka_unit_test_setup(a_stateful_set, empty),
        cmocka_unit_test_setup(pmix_alone_has_no_rank_count, empty),
        cmocka_unit_test_setup(local_ranks_alone_are_incomplete, empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
