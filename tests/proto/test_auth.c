/* test_auth.c - proofs: a published HMAC-SHA256 value, effect of every input, comparison; and which devices
 * are allowed. */
#include <string.h>

#include "proto/proto.h"
#include "tests/lib/check.h"

static const uint8_t nonce[WEFT_NONCE_BYTES] = "0123456789abcdef";

static void make(const char *secret, const char *purpose, const uint8_t *with, const char *job,
                 const char *name, uint8_t *out)
{
    assert_int_equal(weft_proof_make(secret, purpose, with, job, name, out), WEFT_OK);
}

/* python3: hmac.new(b"s3cret", b"weft-join\0" + b"0123456789abcdef" + b"\0job\0rank 0",
 * "sha256").hexdigest() */
static void known_value(void **state)
{
    static const uint8_t expected[WEFT_PROOF_BYTES] = {
        0x4e, 0x79, 0x4a, 0xfd, 0xc7, 0xe2, 0xa8, 0x6a, 0x7e, 0x54, 0xf5, 0xa1, 0x8f, 0x53, 0x1d, 0x37,
        0xcc, 0x0c, 0x65, 0xee, 0x23, 0x0e, 0x86, 0xbc, 0x9b, 0x80, 0xda, 0x4d, 0x6c, 0xad, 0xc7, 0x43};
    uint8_t proof[WEFT_PROOF_BYTES];
    make("s3cret", WEFT_PROOF_JOIN, nonce, "job", "rank 0", proof);
    assert_memory_equal(proof, expected, sizeof expected);
}

static void every_input_matters(void **state)
{
    uint8_t proof[WEFT_PROOF_BYTES], other[WEFT_PROOF_BYTES], other_nonce[WEFT_NONCE_BYTES];
    memcpy(other_nonce, nonce, sizeof other_nonce);
    other_nonce[15] ^= 1;
    make("s", WEFT_PROOF_JOIN, nonce, "job", "name", proof);
    assert_true(weft_proof_check(proof, sizeof proof, proof));
    make("t", WEFT_PROOF_JOIN, nonce, "job", "name", other);
    assert_false(weft_proof_check(other, sizeof other, proof));
    make("s", WEFT_PROOF_WELCOME, nonce, "job", "name", other);
    assert_false(weft_proof_check(other, sizeof other, proof));
    make("s", WEFT_PROOF_JOIN, other_nonce, "job", "name", other);
    assert_false(weft_proof_check(other, sizeof other, proof));
    make("s", WEFT_PROOF_JOIN, nonce, "jobn", "ame", other);
    assert_false(weft_proof_check(other, sizeof other, proof));
    make("s", WEFT_PROOF_JOIN, nonce, "job", "", other);
    assert_false(weft_proof_check(other, sizeof other, proof));
    assert_false(weft_proof_check(proof, 0, proof));
    assert_false(weft_proof_check(proof, 31, proof));
    char longer[WEFT_LIMIT_NAME_BYTES + 2];
    memset(longer, 'n', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(weft_proof_make("s", WEFT_PROOF_JOIN, nonce, "job", longer, other), WEFT_ERR_INVALID);
}

static void devices_need_a_secret(void **state)
{
    static const char *const own[] = {NULL, "", "lo", "lo,lo", ","}, *const open[] = {"eth0", "lo,eth0",
                                                                                      "lo0", "l", "all"};
    for (size_t i = 0; i < 5; i++) {
        struct weft_error error = {0};
        assert_int_equal(weft_devices_check(own[i], NULL, NULL), WEFT_OK);
        assert_int_equal(weft_devices_check(open[i], NULL, &error), WEFT_ERR_AUTH);
        assert_non_null(strstr(error.text, "without a job secret"));
        assert_int_equal(weft_devices_check(open[i], "", NULL), WEFT_ERR_AUTH);
        assert_int_equal(weft_devices_check(open[i], "s", NULL), WEFT_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_value), cmocka_unit_test(every_input_matters),
        cmocka_unit_test(devices_need_a_secret)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
