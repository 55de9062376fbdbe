/* test_hmac.c - HMAC-SHA256 against RFC 4231, in one part and in several. */
#include <stdio.h>
#include <string.h>

#include "base/net/hmac.h"
#include "tests/lib/check.h"

static void check_mac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                      const char *expected_hex)
{
    uint8_t mac[WEFT_HMAC_BYTES];
    char hex[2 * WEFT_HMAC_BYTES + 1];
    for (size_t cut = 0; cut <= bytes;
         cut += bytes / 3 + 1) { /* in one part, in two, and in three with an empty one */
        const struct weft_bytes_view parts[] = {
            {data, cut}, {NULL, 0}, {(const uint8_t *)data + cut, bytes - cut}};
        assert_int_equal(weft_hmac_sha256(key, key_bytes, parts, 3, mac), WEFT_OK);
        for (size_t i = 0; i < sizeof mac; i++) snprintf(hex + 2 * i, 3, "%02x", mac[i]);
        assert_string_equal(hex, expected_hex);
    }
}

static void known_values(void **state)
{
    uint8_t bytes[131], fifties[50];
    memset(bytes, 0x0b, 20);
    check_mac(bytes, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_mac("Jefe", 4, "what do ya want for nothing?", 28,
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(bytes, 0xaa, sizeof bytes);
    memset(fifties, 0xdd, sizeof fifties);
    check_mac(bytes, 20, fifties, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_mac(bytes, sizeof bytes, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void compare(void **state)
{
    assert_true(weft_bytes_equal_constant_time("abc", "abd", 2));
    assert_false(weft_bytes_equal_constant_time("abc", "abd", 3));
    assert_true(weft_bytes_equal_constant_time("", "", 0));
}

static void random_is_fresh(void **state)
{
    uint8_t a[33] = {0}, b[33] = {0};
    weft_random_bytes(weft_env_system(), a, 32);
    weft_random_bytes(weft_env_system(), b, 32);
    assert_memory_not_equal(a, b, 32);
    assert_int_equal(a[32], 0);
    weft_wipe(a, sizeof a);
    assert_int_equal(a[5], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_values), cmocka_unit_test(compare),
                                       cmocka_unit_test(random_is_fresh)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
