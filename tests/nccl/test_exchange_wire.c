/* test_exchange_wire.c - handles and messages that connect two endpoints: round trips, and every change of a
 * byte refused. */
#include <arpa/inet.h>
#include <string.h>

#include "nccl/net/exchange_wire.h"
#include "tests/lib/check.h"

static const uint8_t secret[WIRE_SECRET_BYTES] = "fifteen letters";

static void handle_round_trip(void **state)
{
    struct wire_handle handle = {.listener = 0x1122334455667788ull,
                                 .address_bytes = sizeof(struct sockaddr_in6)},
                       decoded;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&handle.address;
    uint8_t data[WIRE_HANDLE_BYTES];
    memcpy(handle.secret, secret, sizeof secret);
    *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(40123), .sin6_scope_id = 7};
    inet_pton(AF_INET6, "fe80::1:2", &v6->sin6_addr);
    wire_handle_encode(&handle, data);
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_OK);
    assert_true(decoded.listener == handle.listener && decoded.address_bytes == sizeof *v6);
    assert_memory_equal(decoded.secret, secret, sizeof secret);
    assert_memory_equal(&decoded.address, v6, sizeof *v6);

    struct sockaddr_in *v4 = (struct sockaddr_in *)&handle.address;
    *v4 = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(80), .sin_addr.s_addr = htonl(0x7f000001)};
    wire_handle_encode(&handle, data);
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_OK);
    assert_int_equal(decoded.address_bytes, sizeof *v4);
    assert_memory_equal(&decoded.address, v4, sizeof *v4);
}

static void handle_refused(void **state)
{
    struct wire_handle handle = {.listener = 1}, decoded;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&handle.address;
    uint8_t data[WIRE_HANDLE_BYTES];
    *v4 = (struct sockaddr_in){.sin_family = AF_INET};
    wire_handle_encode(&handle, data);
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_ERR_MALFORMED); /* port 0 */
    v4->sin_port = htons(1);
    wire_handle_encode(&handle, data);
    data[4]++;
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_ERR_VERSION);
    data[4]--;
    data[32] = 9; /* family */
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_ERR_MALFORMED);
    memset(data, 0, sizeof data);
    assert_int_equal(wire_handle_decode(data, &decoded), WEFT_ERR_MALFORMED);
}

static size_t sample(enum wire_kind kind, const uint8_t *key, uint8_t *out)
{
    static uint8_t blob[200];
    struct wire_message message = {
        .kind = kind, .listener = 42, .flags = WIRE_ANNOUNCE_ALL, .blob = blob, .blob_bytes = sizeof blob};
    for (size_t i = 0; i < sizeof blob; i++) blob[i] = (uint8_t)i;
    memset(message.challenge, 0x33, sizeof message.challenge);
    return wire_message_encode(&message, key, out);
}

static void message_round_trip(void **state)
{
    uint8_t key[WEFT_HMAC_BYTES], data[WIRE_MESSAGE_BYTES_MAX];
    struct wire_message decoded;
    assert_int_equal(wire_key(secret, "", key), WEFT_OK);
    size_t bytes = sample(WIRE_HELLO, key, data);
    assert_int_equal(bytes, WIRE_HEAD_BYTES + 200);
    assert_int_equal(wire_message_bytes(data), bytes);
    assert_int_equal(wire_message_decode(WIRE_HELLO, data, bytes, key, &decoded), WEFT_OK);
    assert_true(decoded.listener == 42 && decoded.blob == data + WIRE_HEAD_BYTES &&
                decoded.blob_bytes == 200);
    assert_int_equal(decoded.challenge[15], 0x33);
    assert_true(decoded.flags == 0);
    bytes = sample(WIRE_ANSWER, key, data);
    assert_int_equal(wire_message_decode(WIRE_ANSWER, data, bytes, key, &decoded), WEFT_OK);
    assert_true(decoded.flags == WIRE_ANNOUNCE_ALL && decoded.listener == 0);
}

/* Any changed byte, another kind, another key, another job and a wrong length are refused. */
static void message_refused(void **state)
{
    uint8_t key[WEFT_HMAC_BYTES], other[WEFT_HMAC_BYTES], data[WIRE_MESSAGE_BYTES_MAX];
    struct wire_message decoded;
    assert_int_equal(wire_key(secret, "", key), WEFT_OK);
    size_t bytes = sample(WIRE_ANSWER, key, data);
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= 0x10;
        assert_int_not_equal(wire_message_decode(WIRE_ANSWER, data, bytes, key, &decoded), WEFT_OK);
        data[i] ^= 0x10;
    }
    assert_int_equal(wire_message_decode(WIRE_HELLO, data, bytes, key, &decoded), WEFT_ERR_MALFORMED);
    for (size_t shorter = 0; shorter < bytes; shorter++)
        assert_int_equal(wire_message_decode(WIRE_ANSWER, data, shorter, key, &decoded), WEFT_ERR_MALFORMED);
    assert_int_equal(wire_key(secret, "of a job", other), WEFT_OK);
    assert_int_equal(wire_message_decode(WIRE_ANSWER, data, bytes, other, &decoded), WEFT_ERR_AUTH);
    uint8_t another[WIRE_SECRET_BYTES] = "another secret";
    assert_int_equal(wire_key(another, "", other), WEFT_OK);
    assert_int_equal(wire_message_decode(WIRE_ANSWER, data, bytes, other, &decoded), WEFT_ERR_AUTH);
}

static void message_bounds(void **state)
{
    uint8_t head[WIRE_HEAD_BYTES] = {0}, key[WEFT_HMAC_BYTES], data[WIRE_MESSAGE_BYTES_MAX];
    assert_int_equal(wire_message_bytes(head), 0);
    assert_int_equal(wire_key(secret, "", key), WEFT_OK);
    sample(WIRE_HELLO, key, data);
    put_le32(data + 32, 0);
    assert_int_equal(wire_message_bytes(data), 0);
    put_le32(data + 32, WIRE_BLOB_BYTES_MAX + 1);
    assert_int_equal(wire_message_bytes(data), 0);
    put_le32(data + 32, WIRE_BLOB_BYTES_MAX);
    assert_int_equal(wire_message_bytes(data), WIRE_MESSAGE_BYTES_MAX);
}

/* The secret of a connection depends on the key and on the challenge. */
static void secrets(void **state)
{
    uint8_t key[WEFT_HMAC_BYTES], challenge[WIRE_SECRET_BYTES] = {1}, one[WEFT_HMAC_BYTES],
                                  two[WEFT_HMAC_BYTES];
    assert_int_equal(wire_key(secret, "", key), WEFT_OK);
    assert_int_equal(wire_connection_secret(key, challenge, one), WEFT_OK);
    challenge[15] ^= 1;
    assert_int_equal(wire_connection_secret(key, challenge, two), WEFT_OK);
    assert_memory_not_equal(one, two, sizeof one);
    assert_int_equal(wire_key(secret, "job", key), WEFT_OK);
    assert_int_equal(wire_connection_secret(key, challenge, one), WEFT_OK);
    assert_memory_not_equal(one, two, sizeof one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handle_round_trip),  cmocka_unit_test(handle_refused),
        cmocka_unit_test(message_round_trip), cmocka_unit_test(message_refused),
        cmocka_unit_test(message_bounds),     cmocka_unit_test(secrets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
