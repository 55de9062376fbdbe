/* test_ranges.c - NVTX ranges of a job, recorded by a tool without a GPU (tests/lib/fake_nvtx_tool): each
 * call and each push_pull has one range with its bytes and codec, which ends when the request completes. */
#include "tests/lib/check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/crowd.h"
#include "tests/lib/fake_nvtx_tool.h"

enum { RANKS = 2, SMALL = 4, LARGE = 40000, CALLS = 20, STEPS = 3 };

static void use(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float buffers[RANKS][LARGE], out[RANKS][LARGE];
    struct weft_request request = {{0}};
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    for (int i = 0; i < CALLS; i++) { /* inline, prepared */
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, buffers[rank], out[rank], SMALL, WEFT_F32, WEFT_SUM, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
    }
    CROWD_OK(crowd, session,
             weft_all_reduce(session, buffers[rank], out[rank], LARGE, WEFT_F32, WEFT_SUM, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    weft_tensor_options_init(&options);
    options.name = "layer1";
    options.dim_count = 1;
    options.dims[0] = LARGE;
    options.codec = "int8:min_count=0";
    options.mode = WEFT_MODE_ALL_REDUCE;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    for (uint32_t s = 1; s <= STEPS; s++) {
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = s, .lr = 1, .weight = 1}));
        CROWD_OK(crowd, session, weft_push_pull(tensor, buffers[rank], out[rank], &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_OK(crowd, session, weft_step_end(session));
    }
}

static uint32_t count_of(const struct fake_nvtx_range *ranges, uint32_t count, const char *name,
                         uint64_t bytes, const char *category)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += strcmp(ranges[i].name, name) == 0 && ranges[i].payload == bytes &&
                 strcmp(ranges[i].category, category) == 0;
    return found;
}

static void each_call_has_a_range_that_ends(void **state)
{
    struct crowd crowd = {0};
    const struct fake_nvtx_range *ranges;
    uint32_t strings, domains;
    crowd_run(&crowd, RANKS, use);
    assert_int_equal(crowd.failures, 0);
    void *tool = dlopen(FAKE_NVTX_TOOL, RTLD_NOW | RTLD_NOLOAD); /* NVTX has loaded it */
    assert_non_null(tool);
    fake_nvtx_ranges_fn *get;
    fake_nvtx_counts_fn *counts;
    *(void **)&get = dlsym(tool, "fake_nvtx_ranges");
    *(void **)&counts = dlsym(tool, "fake_nvtx_counts");
    assert_true(get && counts);
    const uint32_t count = get(&ranges);
    for (uint32_t i = 0; i < count; i++) {
        if (ranges[i].ends != 1) fail_msg("range %u, %s, ended %u times", i, ranges[i].name, ranges[i].ends);
    }
    assert_int_equal(count_of(ranges, count, "all_reduce", SMALL * 4, ""), RANKS * CALLS);
    assert_int_equal(count_of(ranges, count, "all_reduce", LARGE * 4, ""), RANKS);
    assert_int_equal(count_of(ranges, count, "layer1", LARGE * 4, "int8"), RANKS * STEPS);
    counts(&strings, &domains);
    assert_int_equal(domains, 1);
    assert_true(strings >= 1 && strings < 10); /* one for each kind of call, not for each call */
    /* of static names: other ranks begin a range while the first one registers it */
    uint32_t unregistered = 0;
    for (uint32_t i = 0; i < count; i++) {
        const bool is_static = strcmp(ranges[i].name, "layer1") != 0;
        assert_true(is_static || !ranges[i].is_registered);
        unregistered += is_static && !ranges[i].is_registered;
    }
    assert_in_range(unregistered, 0, strings * (RANKS - 1));
    dlclose(tool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_has_a_range_that_ends)};
    setenv("NVTX_INJECTION64_PATH", FAKE_NVTX_TOOL, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
