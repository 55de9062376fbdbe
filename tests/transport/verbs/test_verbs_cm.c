/* test_verbs_cm.c - queue pairs connected by librdmacm, on a soft-RoCE device, in the virtual machine.
 * WEFT_TEST_DEVICES names one device, or two joined by a wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/verbs/device/verbs_cm.h"

enum { DIALS = 0, ACCEPTS = 1, WAIT_S = 60 };

static char names[2][64];
static struct side {
    struct verbs_rail rail;
    struct verbs_cm *cm;
    struct verbs_memory *memory;
    struct verbs_region region;
    unsigned char buffer[8192];
    struct verbs_queue_pair *pair;
    struct verbs_cm_event event;
    struct verbs_completion completion;
    int events, completions;
} sides[2];

static struct weft_error why;
#define OK_(call)                                                   \
    do {                                                            \
        why = (struct weft_error){0};                               \
        if ((call) != WEFT_OK) fail_msg("%s: %s", #call, why.text); \
    } while (0)

static void new_pair(struct side *side)
{
    OK_(verbs_queue_pair_create(&side->rail, side == &sides[DIALS] ? "endpoint 8" : "endpoint 7", side,
                                &side->pair, &why));
}

static int open_sides(void **state)
{
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < 2; i++) {
        struct side *side = &sides[i];
        struct verbs_options options;
        uint32_t count;
        verbs_options_init(&options);
        snprintf(options.devices, sizeof options.devices, "%s", names[i]);
        OK_(verbs_options_parse("retries=3,timeout=12,connect=cm,receives=64,depth=16", false, &options,
                                &why));
        OK_(verbs_rails_open(weft_env_system(), &options, &side->rail, &count, &why));
        OK_(verbs_cm_open(&side->rail, &side->cm, &why));
        OK_(verbs_memory_open(weft_env_system(), &side->rail, 1, &side->memory, &why));
        OK_(verbs_memory_register(side->memory, side->buffer, sizeof side->buffer, VERBS_REMOTE_WRITE,
                                  &side->region, &why));
        new_pair(side);
    }
    return 0;
}

static int close_sides(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side *side = &sides[i];
        verbs_cm_close(side->cm);
        verbs_queue_pair_destroy(side->pair);
        verbs_memory_unregister(side->memory, &side->region);
        verbs_memory_close(side->memory);
        verbs_rail_close(&side->rail);
    }
    return 0;
}

static void pump(void)
{
    for (int i = 0; i < 2; i++) {
        sides[i].events += verbs_cm_next(sides[i].cm, &sides[i].event);
        sides[i].completions += verbs_rail_poll(&sides[i].rail, &sides[i].completion, 1);
    }
    usleep(200);
}

#define PUMP_UNTIL(expression)                                                        \
    do {                                                                              \
        uint64_t limit_ = weft_now_ns(weft_env_system()) + WEFT_SECONDS(WAIT_S);      \
        while (!(expression)) {                                                       \
            pump();                                                                   \
            if (weft_now_ns(weft_env_system()) > limit_) fail_msg("never true: %s", #expression); \
        }                                                                             \
    } while (0)

static void dial(const uint8_t *token)
{
    uint8_t address[VERBS_CM_ADDRESS_BYTES];
    verbs_cm_address(sides[ACCEPTS].cm, address);
    OK_(verbs_cm_dial(sides[DIALS].cm, sides[DIALS].pair, address, token, &why));
}

static void connect_sides(void)
{
    uint8_t token[VERBS_CM_TOKEN_BYTES];
    OK_(verbs_cm_expect(sides[ACCEPTS].cm, sides[ACCEPTS].pair, token));
    dial(token);
    PUMP_UNTIL(sides[DIALS].events == 1 && sides[ACCEPTS].events == 1);
    for (int i = 0; i < 2; i++) {
        if (sides[i].event.kind != VERBS_CM_CONNECTED) fail_msg("%s", sides[i].event.text);
        assert_ptr_equal(sides[i].event.queue_pair, sides[i].pair);
        assert_int_equal(sides[i].pair->state, VERBS_CONNECTED);
    }
}

static void write_across(int from)
{
    struct side *writer = &sides[from], *reader = &sides[!from];
    for (size_t i = 0; i < sizeof writer->buffer; i++)
        writer->buffer[i] = (unsigned char)(i * 7 + (size_t)from);
    struct verbs_work work = {.opcode = VERBS_WRITE_IMMEDIATE,
                              .signalled = true,
                              .bytes = sizeof writer->buffer,
                              .local = writer->buffer,
                              .lkey = writer->region.lkey[0],
                              .rkey = reader->region.rkey[0],
                              .remote = (uintptr_t)reader->buffer,
                              .immediate = 77,
                              .id = 5};
    writer->completions = reader->completions = 0;
    OK_(verbs_queue_pair_post(writer->pair, &work, 1));
    PUMP_UNTIL(writer->completions == 1 && reader->completions == 1);
    assert_int_equal(writer->completion.status, WEFT_OK);
    assert_int_equal(reader->completion.immediate, 77);
    assert_memory_equal(writer->buffer, reader->buffer, sizeof writer->buffer);
}

static void test_connects(void **state)
{
    connect_sides();
    write_across(DIALS);
    write_across(ACCEPTS);
}

static void test_disconnect_and_again(void **state)
{
    for (int round = 0; round < 4; round++) {
        connect_sides();
        write_across(round % 2);
        struct side *leaves = &sides[round % 2], *stays = &sides[!(round % 2)];
        verbs_cm_drop(leaves->cm, leaves->pair);
        verbs_queue_pair_destroy(leaves->pair);
        PUMP_UNTIL(stays->events == 2);
        assert_int_equal(stays->event.kind, VERBS_CM_DISCONNECTED);
        assert_int_equal(stays->event.status, WEFT_ERR_PEER_LOST);
        assert_non_null(strstr(stays->event.text, "endpoint"));
        verbs_cm_drop(stays->cm, stays->pair);
        verbs_queue_pair_destroy(stays->pair);
        for (int i = 0; i < 2; i++) {
            sides[i].events = 0;
            new_pair(&sides[i]);
        }
    }
}

/* A request without the right token leaves nothing behind, and the expected one still succeeds. */
static void test_wrong_token(void **state)
{
    uint8_t token[VERBS_CM_TOKEN_BYTES], wrong[VERBS_CM_TOKEN_BYTES] = {0};
    OK_(verbs_cm_expect(sides[ACCEPTS].cm, sides[ACCEPTS].pair, token));
    dial(wrong);
    PUMP_UNTIL(sides[DIALS].events == 1);
    assert_int_equal(sides[DIALS].event.kind, VERBS_CM_FAILED);
    assert_int_equal(sides[DIALS].event.status, WEFT_ERR_AUTH);
    print_message("%s\n", sides[DIALS].event.text);
    assert_non_null(strstr(sides[DIALS].event.text, "endpoint 8"));
    assert_int_equal(verbs_cm_refused(sides[ACCEPTS].cm), 1);
    assert_int_equal(sides[ACCEPTS].events, 0);
    verbs_cm_drop(sides[DIALS].cm, sides[DIALS].pair);
    memcpy(wrong, token, sizeof wrong);
    wrong[31] ^= 1;
    dial(wrong);
    PUMP_UNTIL(sides[DIALS].events == 2);
    assert_int_equal(verbs_cm_refused(sides[ACCEPTS].cm), 2);
    verbs_cm_drop(sides[DIALS].cm, sides[DIALS].pair);
    dial(token);
    PUMP_UNTIL(sides[DIALS].events == 3 && sides[ACCEPTS].events == 1);
    assert_int_equal(sides[DIALS].event.kind, VERBS_CM_CONNECTED);
    assert_int_equal(sides[ACCEPTS].event.kind, VERBS_CM_CONNECTED);
    write_across(DIALS);
    /* A token is valid once. */
    struct verbs_queue_pair *second, *first = sides[DIALS].pair;
    OK_(verbs_queue_pair_create(&sides[DIALS].rail, "endpoint 8", NULL, &second, &why));
    sides[DIALS].pair = second;
    dial(token);
    PUMP_UNTIL(sides[DIALS].events == 4);
    assert_int_equal(sides[DIALS].event.kind, VERBS_CM_FAILED);
    assert_ptr_equal(sides[DIALS].event.queue_pair, second);
    verbs_cm_drop(sides[DIALS].cm, second);
    verbs_queue_pair_destroy(second);
    sides[DIALS].pair = first;
    write_across(ACCEPTS);
}

/* A closed listener; an invalid address. */
static void test_no_listener(void **state)
{
    uint8_t address[VERBS_CM_ADDRESS_BYTES], token[VERBS_CM_TOKEN_BYTES] = {0};
    verbs_cm_address(sides[ACCEPTS].cm, address);
    verbs_cm_close(sides[ACCEPTS].cm);
    sides[ACCEPTS].cm = NULL;
    OK_(verbs_cm_dial(sides[DIALS].cm, sides[DIALS].pair, address, token, &why));
    uint64_t limit = weft_now_ns(weft_env_system()) + WEFT_SECONDS(WAIT_S);
    while (!verbs_cm_next(sides[DIALS].cm, &sides[DIALS].event) && weft_now_ns(weft_env_system()) < limit)
        usleep(1000);
    assert_int_equal(sides[DIALS].event.kind, VERBS_CM_FAILED);
    print_message("%s\n", sides[DIALS].event.text);
    verbs_cm_drop(sides[DIALS].cm, sides[DIALS].pair);
    address[0] = 'x';
    assert_int_equal(verbs_cm_dial(sides[DIALS].cm, sides[DIALS].pair, address, token, NULL),
                     WEFT_ERR_MALFORMED);
}

int main(void)
{
    const char *set = getenv("WEFT_TEST_DEVICES");
    const char *second = set ? strchr(set, ' ') : NULL;
    snprintf(names[DIALS], sizeof names[0], "%.*s", set ? (int)strcspn(set, " ") : 4, set ? set : "rxe0");
    snprintf(names[ACCEPTS], sizeof names[0], "%.60s", second ? second + 1 : names[DIALS]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_connects, open_sides, close_sides),
        cmocka_unit_test_setup_teardown(test_disconnect_and_again, open_sides, close_sides),
        cmocka_unit_test_setup_teardown(test_wrong_token, open_sides, close_sides),
        cmocka_unit_test_setup_teardown(test_no_listener, open_sides, close_sides),
    };
    return cmocka_run_group_tests_name("verbs cm", tests, NULL, NULL);
}
