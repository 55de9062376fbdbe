/* test_env.c - log levels and lines, error sentences, allocation, and every create function of base with each
 * of its allocations failing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/lib/check.h"
#include "tests/lib/fail_env.h"
#include "tests/lib/log_capture.h"

static void levels_have_names(void **state)
{
    enum weft_log_level level;
    for (int i = WEFT_LOG_ERROR; i <= WEFT_LOG_TRACE; i++) {
        assert_true(weft_log_level_parse(weft_log_level_name((enum weft_log_level)i), &level));
        assert_int_equal(level, i);
    }
    assert_false(weft_log_level_parse("loud", &level));
    assert_string_equal(weft_log_level_name((enum weft_log_level)9), "?");
}

static void lines_above_the_level_are_dropped(void **state)
{
    struct log_capture capture;
    log_capture_init(&capture);
    capture.env.log_level = WEFT_LOG_INFO;
    weft_log(&capture.env, WEFT_LOG_INFO, "base", "rank %d", 3);
    weft_log(&capture.env, WEFT_LOG_DEBUG, "base", "rank %d", 4);
    assert_string_equal(capture.text, "info base: rank 3\n");
    log_capture_fini(&capture);
}

static void a_line_is_one_bounded_line(void **state)
{
    struct log_capture capture;
    static char much[5000];
    memset(much, 'x', sizeof much - 1);
    log_capture_init(&capture);
    weft_log(&capture.env, WEFT_LOG_WARN, "base", "peer said \"a\nb\x1b[31m\"");
    assert_string_equal(capture.text, "warn base: peer said \"a\\nb\\x1b[31m\"\n");
    log_capture_clear(&capture);
    weft_log(&capture.env, WEFT_LOG_WARN, "base", "%s", much);
    assert_int_equal(capture.bytes, strlen("warn base: ") + 1000 + 1);
    log_capture_fini(&capture);
    struct weft_env silent = *weft_env_system();
    silent.log = NULL;
    weft_log(&silent, WEFT_LOG_ERROR, "base", "into nothing");
}

static void the_first_error_is_kept(void **state)
{
    struct weft_error error = {0};
    static char much[1000];
    assert_int_equal(weft_error_set(&error, WEFT_ERR_IO, "disk %s", "full"), WEFT_ERR_IO);
    assert_int_equal(weft_error_set(&error, WEFT_ERR_CLOSED, "later"), WEFT_ERR_CLOSED);
    assert_int_equal(error.status, WEFT_ERR_IO);
    assert_string_equal(error.text, "disk full");
    assert_int_equal(weft_error_set(NULL, WEFT_ERR_IO, "no listener"), WEFT_ERR_IO);
    memset(much, 'y', sizeof much - 1);
    error.status = WEFT_OK;
    weft_error_set(&error, WEFT_ERR_IO, "%s", much);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
}

static void allocation_is_aligned_and_checked(void **state)
{
    struct weft_env *env = weft_env_system();
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        unsigned char *memory = weft_alloc_zero(env, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0);
        weft_free_bytes(env, memory);
    }
    assert_null(weft_alloc_array(env, SIZE_MAX / 2, 3));
    weft_free_bytes(env, NULL);
    char *text = weft_alloc_text(env, "weft");
    assert_string_equal(text, "weft");
    weft_free_bytes(env, text);
    assert_true(weft_random_u64(env) != weft_random_u64(env));
    uint64_t before = weft_now_ns(env);
    assert_true(weft_now_ns(env) >= before);
}

/* --- each allocation of each create function fails once --- */

static enum weft_status make_loop(struct weft_env *env, void *context)
{
    static struct weft_timer timers[200]; /* more than the initial capacity of the heap */
    struct weft_loop *loop;
    enum weft_status status = weft_loop_create(env, NULL, &loop);
    if (status < 0) return status;
    for (size_t i = 0; i < 200 && status == WEFT_OK; i++) {
        weft_timer_init(&timers[i], NULL);
        status = weft_timer_start(loop, &timers[i], WEFT_NEVER - i);
        assert_int_equal(weft_timer_is_running(&timers[i]), status == WEFT_OK);
    }
    weft_loop_free(loop);
    return status;
}

static enum weft_status make_ring(struct weft_env *env, void *context)
{
    struct weft_event_ring *ring;
    WEFT_TRY(weft_event_ring_create(env, 100, &ring));
    weft_event_ring_free(ring);
    return WEFT_OK;
}

static enum weft_status make_config(struct weft_env *env, void *context)
{
    struct weft_config *config;
    struct weft_error error = {0};
    enum weft_status status = weft_config_load(env, &config, &error);
    assert_int_equal(error.status, status);
    if (status < 0) return status;
    status = weft_config_set(config, "client.rank", "7", "test", &error);
    assert_int_equal(weft_config_u64(config, "client.rank"), status == WEFT_OK ? 7 : 0);
    weft_config_free(config);
    return status;
}

static void nothing(void *context)
{
}

static void answer_nothing(void *context, const char *path, bool is_trusted, struct weft_http_reply *reply)
{
}

static enum weft_status make_net(struct weft_env *env, void *context)
{
    struct weft_net *net;
    struct weft_net_handler handler = {0};
    struct weft_http_options http;
    uint16_t port;
    weft_http_options_init(&http);
    http.answer = answer_nothing;
    http.token = "token";
    WEFT_TRY(weft_net_create(env, &net));
    enum weft_status status = weft_net_timer_periodic(net, WEFT_SECONDS(1), nothing, NULL);
    if (status == WEFT_OK) status = weft_net_listen(net, "127.0.0.1", 0, &handler, NULL, &port, NULL, NULL);
    if (status == WEFT_OK) status = weft_http_start(net, &http, NULL, NULL);
    if (status == WEFT_OK)
        status = weft_net_connect(net, "127.0.0.1", port, &handler, NULL, weft_now_ns(env) + WEFT_SECONDS(60),
                                  NULL);
    weft_net_free(net);
    return status;
}

static void create_functions_survive_failing_allocations(void **state)
{
    check_failing_allocations(make_loop, NULL);
    check_failing_allocations(make_ring, NULL);
    check_failing_allocations(make_config, NULL);
    check_failing_allocations(make_net, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_have_names),
        cmocka_unit_test(lines_above_the_level_are_dropped),
        cmocka_unit_test(a_line_is_one_bounded_line),
        cmocka_unit_test(the_first_error_is_kept),
        cmocka_unit_test(allocation_is_aligned_and_checked),
        cmocka_unit_test(create_functions_survive_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
