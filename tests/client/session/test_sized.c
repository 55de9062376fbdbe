/* test_sized.c - structs of programs that were built against an older or a newer header. */
#include "tests/lib/check.h"

#include <string.h>

#include "client/session/session.h"
#include "client/session/sized.h"
#include "tests/client/crowd.h"

struct own { size_t size; uint32_t first; uint32_t second; uint64_t third; };
static const struct own DEFAULTS = {.size = sizeof DEFAULTS, .first = 1, .second = 2, .third = 3};

static void test_an_older_struct_takes_defaults(void **state)
{
    (void)state;
    struct own own = DEFAULTS,
               theirs = {.size = client_sized_end(struct own, first), .first = 7, .second = 8, .third = 9};
    struct weft_error error = {0};
    assert_int_equal(
        client_sized_copy_in(&own, sizeof own, &theirs, client_sized_end(struct own, first), "x", &error),
        WEFT_OK);
    assert_int_equal(own.size, sizeof own);
    assert_int_equal(own.first, 7);
    assert_int_equal(own.second, 2);
    assert_int_equal(own.third, 3);
}

static void test_a_newer_struct_must_have_nothing_new(void **state)
{
    (void)state;
    struct { struct own it; uint64_t newer[4]; } theirs = {.it = DEFAULTS};
    struct own own = DEFAULTS;
    struct weft_error error = {0};
    theirs.it.size = sizeof theirs;
    theirs.it.first = 7;
    assert_int_equal(client_sized_copy_in(&own, sizeof own, &theirs, sizeof(size_t), "x", &error), WEFT_OK);
    assert_int_equal(own.first, 7);
    assert_int_equal(own.size, sizeof own);
    theirs.newer[3] = 1;
    theirs.it.first = 8;
    assert_int_equal(client_sized_copy_in(&own, sizeof own, &theirs, sizeof(size_t), "x", &error),
                     WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "does not know"));
    assert_int_equal(own.first, 7);
}

static void test_what_is_no_size_is_refused(void **state)
{
    (void)state;
    struct own own = DEFAULTS, theirs = DEFAULTS;
    struct weft_error error = {0};
    const size_t sizes[] = {0, 1, sizeof(size_t), sizeof own + CLIENT_SIZED_GROWTH + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        theirs.size = sizes[i];
        assert_int_equal(
            client_sized_copy_in(&own, sizeof own, &theirs, client_sized_end(struct own, first), "x", &error),
            WEFT_ERR_INVALID);
        assert_non_null(strstr(error.text, "x.size is"));
        if (sizes[i] == sizeof(size_t)) continue; /* a struct to be filled has no other field */
        assert_int_equal(client_sized_check(&theirs, sizeof own, "x", &error), WEFT_ERR_INVALID);
    }
    assert_int_equal(client_sized_copy_in(&own, sizeof own, NULL, 8, "x", &error), WEFT_ERR_INVALID);
    assert_int_equal(client_sized_check(NULL, sizeof own, "x", &error), WEFT_ERR_INVALID);
}

static void test_a_struct_is_filled_up_to_its_size(void **state)
{
    (void)state;
    struct own theirs;
    memset(&theirs, 0x55, sizeof theirs);
    theirs.size = client_sized_end(struct own, second);
    client_sized_copy_out(&DEFAULTS, sizeof DEFAULTS, &theirs);
    assert_int_equal(theirs.second, 2);
    assert_int_equal(theirs.third, 0x5555555555555555);
    assert_int_equal(theirs.size, client_sized_end(struct own, second));
    theirs.size = sizeof theirs + 100; /* a newer header; `size` then holds the bytes that were filled */
    client_sized_copy_out(&DEFAULTS, sizeof DEFAULTS, &theirs);
    assert_int_equal(theirs.size, sizeof theirs);
    assert_int_equal(theirs.third, 3);
}

/* The same through the public calls. */
static void calls(struct crowd *crowd, struct weft_session *session, uint32_t index)
{
    (void)index;
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = "w";
    options.dim_count = 1;
    options.dims[0] = 10;
    options.chunk_bytes = 1; /* not read */
    options.size = client_sized_end(struct weft_tensor_options, optimizer);
    CROWD_CHECK(crowd, session, weft_declare(session, &options, &tensor) == WEFT_OK);
    float w[10] = {0}, grad[10] = {1};
    struct weft_request request = {{0}};
    CROWD_REFUSED(crowd, session, weft_step_begin_with(session, &(struct weft_step_options){.step = 1}),
                  WEFT_ERR_INVALID, "options.size is 0");
    CROWD_CHECK(crowd, session,
                weft_step_begin_with(session, WEFT_STEP(.step = 1, .lr = 1, .weight = 1)) == WEFT_OK);
    CROWD_CHECK(crowd, session,
                weft_push_pull(tensor, grad, w, &request) >= 0 && weft_wait(&request, 0) == WEFT_OK);
    CROWD_CHECK(crowd, session, weft_step_end(session) == WEFT_OK);
    struct weft_stats stats = {.size = client_sized_end(struct weft_stats, steps), .requests = 77};
    CROWD_CHECK(crowd, session,
                weft_stats_get(session, &stats) == WEFT_OK && stats.steps == 1 && stats.requests == 77);
    struct weft_call call = {.size = client_sized_end(struct weft_call, op),
                             .kind = WEFT_CALL_ALL_REDUCE,
                             .in = w,
                             .out = w,
                             .count = 10,
                             .dtype = WEFT_F32,
                             .op = WEFT_SUM,
                             .weighted = true,
                             .memory = (enum weft_memory_kind)99};
    CROWD_CHECK(crowd, session,
                weft_call_start(session, &call, &request) >= 0 && weft_wait(&request, 0) == WEFT_OK);
    CROWD_CHECK(crowd, session, w[0] == (float)weft_ranks(session));
}

static void test_calls_take_smaller_structs(void **state)
{
    (void)state;
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, calls);
    assert_int_equal(crowd.failures, 0);
}

/* check_arguments.py compares this list with weft.h. */
static void test_a_binding_gets_the_size_of_every_struct(void **state)
{
#define SAME_SIZE(name) assert_int_equal(weft_struct_bytes(#name), sizeof(struct name))
    (void)state;
    SAME_SIZE(weft_options);
    SAME_SIZE(weft_tensor_options);
    SAME_SIZE(weft_step);
    SAME_SIZE(weft_step_options);
    SAME_SIZE(weft_request);
    SAME_SIZE(weft_choice);
    SAME_SIZE(weft_call);
    SAME_SIZE(weft_axis);
    SAME_SIZE(weft_stats);
    SAME_SIZE(weft_outer_options);
    SAME_SIZE(weft_tensor_stats);
    /* no public struct has these names */
    assert_int_equal(weft_struct_bytes("weft_session"), 0);
    assert_int_equal(weft_struct_bytes("weft_option"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_older_struct_takes_defaults),
        cmocka_unit_test(test_a_newer_struct_must_have_nothing_new),
        cmocka_unit_test(test_what_is_no_size_is_refused),
        cmocka_unit_test(test_a_struct_is_filled_up_to_its_size),
        cmocka_unit_test(test_calls_take_smaller_structs),
        cmocka_unit_test(test_a_binding_gets_the_size_of_every_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
