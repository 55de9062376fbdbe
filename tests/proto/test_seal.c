/* test_seal.c - MAC of control frames: only the next frame of the other side passes, unchanged. */
#include "tests/lib/check.h"

#include <string.h>

#include "proto/proto.h"

#define CHALLENGE ((const uint8_t *)"challenge"), 9
#define HELLO ((const uint8_t *)"hello"), 5
enum { BODY_BYTES = 20, FRAME_BYTES = BODY_BYTES + WEFT_SEAL_BYTES };

struct pair {
    struct weft_seal member, coordinator;
};

static void start(struct weft_seal *seal, enum weft_seal_side side, const char *secret)
{
    assert_int_equal(weft_seal_challenge(seal, CHALLENGE), WEFT_OK);
    assert_int_equal(weft_seal_start(seal, side, secret, HELLO), WEFT_OK);
}

static void pair_start(struct pair *pair, const char *secret)
{
    start(&pair->member, WEFT_SEAL_MEMBER, secret);
    start(&pair->coordinator, WEFT_SEAL_COORDINATOR, secret);
}

static void make(struct weft_seal *from, uint8_t fill, uint8_t frame[FRAME_BYTES])
{
    size_t bytes = BODY_BYTES;
    memset(frame, fill, BODY_BYTES);
    assert_int_equal(weft_seal_append(from, frame, &bytes), WEFT_OK);
    assert_int_equal(bytes, FRAME_BYTES);
}

static bool passes(struct weft_seal *to, const uint8_t *frame, size_t bytes)
{
    size_t body_bytes = bytes;
    const struct weft_seal before = *to;
    const bool is_valid = weft_seal_check(to, frame, &body_bytes);
    assert_int_equal(body_bytes, is_valid ? bytes - WEFT_SEAL_BYTES : bytes);
    if (!is_valid) assert_memory_equal(to, &before, sizeof before);
    return is_valid;
}

static void both_directions(void **state)
{
    const char *const secrets[] = {"the job's secret", NULL};
    for (int s = 0; s < 2; s++) {
        struct pair pair;
        uint8_t frame[FRAME_BYTES];
        pair_start(&pair, secrets[s]);
        for (uint8_t i = 0; i < 5; i++) {
            make(&pair.member, i, frame);
            assert_true(passes(&pair.coordinator, frame, FRAME_BYTES));
            make(&pair.coordinator, i, frame);
            assert_true(passes(&pair.member, frame, FRAME_BYTES));
        }
    }
}

static void order(void **state)
{
    struct pair pair;
    uint8_t frames[3][FRAME_BYTES];
    pair_start(&pair, "secret");
    for (uint8_t i = 0; i < 3; i++) make(&pair.member, i, frames[i]);
    assert_false(passes(&pair.coordinator, frames[1], FRAME_BYTES)); /* frame 0 is left out */
    assert_true(passes(&pair.coordinator, frames[0], FRAME_BYTES));
    assert_false(passes(&pair.coordinator, frames[0], FRAME_BYTES)); /* again */
    assert_false(passes(&pair.coordinator, frames[2], FRAME_BYTES)); /* before frame 1 */
    assert_true(passes(&pair.coordinator, frames[1], FRAME_BYTES));
    assert_true(passes(&pair.coordinator, frames[2], FRAME_BYTES));
}

static void every_bit(void **state)
{
    struct pair pair;
    uint8_t frame[FRAME_BYTES];
    pair_start(&pair, "secret");
    make(&pair.coordinator, 7, frame);
    for (size_t bit = 0; bit < 8 * FRAME_BYTES; bit++) {
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(passes(&pair.member, frame, FRAME_BYTES));
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bytes = 0; bytes < FRAME_BYTES; bytes++) assert_false(passes(&pair.member, frame, bytes));
    assert_true(passes(&pair.member, frame, FRAME_BYTES));
}

static void other_connections(void **state)
{
    struct pair pair, other;
    uint8_t frame[FRAME_BYTES];
    pair_start(&pair, "secret");
    make(&pair.member, 1, frame);
    assert_false(passes(&pair.member, frame, FRAME_BYTES)); /* sent back */
    pair_start(&other, "Secret");
    assert_false(passes(&other.coordinator, frame, FRAME_BYTES));
    pair_start(&other, NULL);
    assert_false(passes(&other.coordinator, frame, FRAME_BYTES));
    assert_int_equal(weft_seal_challenge(&other.coordinator, (const uint8_t *)"Challenge", 9), WEFT_OK);
    assert_int_equal(weft_seal_start(&other.coordinator, WEFT_SEAL_COORDINATOR, "secret", HELLO), WEFT_OK);
    assert_false(passes(&other.coordinator, frame, FRAME_BYTES));
    assert_int_equal(weft_seal_challenge(&other.coordinator, CHALLENGE), WEFT_OK);
    assert_int_equal(
        weft_seal_start(&other.coordinator, WEFT_SEAL_COORDINATOR, "secret", (const uint8_t *)"hellO", 5),
        WEFT_OK);
    assert_false(passes(&other.coordinator, frame, FRAME_BYTES));
    assert_true(passes(&pair.coordinator, frame, FRAME_BYTES));
}

/* A peer of an earlier release has no seal: nothing is added, nothing is removed. */
static void without_a_seal(void **state)
{
    struct weft_seal seal;
    uint8_t frame[FRAME_BYTES] = {3};
    size_t bytes = BODY_BYTES;
    assert_int_equal(weft_seal_challenge(&seal, CHALLENGE), WEFT_OK);
    assert_int_equal(weft_seal_append(&seal, frame, &bytes), WEFT_OK);
    assert_int_equal(bytes, BODY_BYTES);
    assert_true(weft_seal_check(&seal, frame, &bytes));
    assert_int_equal(bytes, BODY_BYTES);
}

static void refusals(void **state)
{
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Finished finished = WEFT__CONTROL__FINISHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct weft_env *env = weft_env_system();
    uint8_t *data;
    size_t bytes;
    abort.status = WEFT_ERR_AUTH, abort.text = (char *)"another secret";
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT, message.abort = &abort;
    assert_int_equal(weft_control_pack(env, &message, &data, &bytes), WEFT_OK);
    assert_true(weft_control_is_refusal(env, data, bytes));
    assert_false(weft_control_is_refusal(env, data, bytes - 1));
    weft_free_bytes(env, data);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_FINISHED, message.finished = &finished;
    assert_int_equal(weft_control_pack(env, &message, &data, &bytes), WEFT_OK);
    assert_false(weft_control_is_refusal(env, data, bytes));
    weft_free_bytes(env, data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_directions),   cmocka_unit_test(order),          cmocka_unit_test(every_bit),
        cmocka_unit_test(other_connections), cmocka_unit_test(without_a_seal), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
