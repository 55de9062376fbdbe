/* fuzz_nccl_exchange.c - handles and messages of NCCL's plugin: an accepted one lies inside the input, is
 * within its limits, and encodes to the same bytes. The first byte selects what the rest is. */
#include <stdlib.h>
#include <string.h>

#include "nccl/net/exchange_wire.h"
#include "tests/fuzz/fuzz.h"

#define MUST(expression) do { if (!(expression)) abort(); } while (0)

static const uint8_t secret[WIRE_SECRET_BYTES] = "a fixed secret";

static void handle(const uint8_t *data, size_t bytes)
{
    uint8_t padded[WIRE_HANDLE_BYTES] = {0}, again[WIRE_HANDLE_BYTES];
    struct wire_handle decoded, second;
    memcpy(padded, data, bytes < sizeof padded ? bytes : sizeof padded);
    if (wire_handle_decode(padded, &decoded) != WEFT_OK) return;
    MUST(decoded.address_bytes <= sizeof decoded.address);
    wire_handle_encode(&decoded, again);
    MUST(wire_handle_decode(again, &second) == WEFT_OK);
    MUST(second.listener == decoded.listener && second.address_bytes == decoded.address_bytes);
    MUST(memcmp(&second.address, &decoded.address, decoded.address_bytes) == 0);
    MUST(memcmp(second.secret, decoded.secret, sizeof second.secret) == 0);
}

static void message(enum wire_kind kind, const uint8_t *data, size_t bytes)
{
    uint8_t key[WEFT_HMAC_BYTES], again[WIRE_MESSAGE_BYTES_MAX];
    struct wire_message decoded;
    MUST(wire_key(secret, "job", key) == WEFT_OK);
    if (bytes >= WIRE_HEAD_BYTES) MUST(wire_message_bytes(data) <= WIRE_MESSAGE_BYTES_MAX);
    if (wire_message_decode(kind, data, bytes, key, &decoded) != WEFT_OK) return;
    MUST(decoded.blob_bytes <= WIRE_BLOB_BYTES_MAX && decoded.blob + decoded.blob_bytes == data + bytes);
    MUST(wire_message_encode(&decoded, key, again) == bytes && memcmp(again, data, bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) return 0;
    if (data[0] % 3 == 0) handle(data + 1, bytes - 1);
    else message(data[0] % 3 == 1 ? WIRE_HELLO : WIRE_ANSWER, data + 1, bytes - 1);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    uint8_t key[WEFT_HMAC_BYTES], blob[300];
    number %= 12;
    if (capacity < 1 + WIRE_MESSAGE_BYTES_MAX) return 0;
    out[0] = (uint8_t)(number % 3);
    if (out[0] == 0) {
        struct wire_handle sample = {.listener = number, .address_bytes = sizeof(struct sockaddr_in)};
        struct sockaddr_in *v4 = (struct sockaddr_in *)&sample.address;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)(4000 + number))};
        if (number % 2 == 1) sample.address.ss_family = AF_INET6;
        wire_handle_encode(&sample, out + 1);
        return 1 + WIRE_HANDLE_BYTES;
    }
    memset(blob, (int)number, sizeof blob);
    struct wire_message sample = {.kind = out[0] == 1 ? WIRE_HELLO : WIRE_ANSWER, .listener = number,
                                  .blob = blob, .blob_bytes = (uint32_t)(1 + number * 20)};
    MUST(wire_key(secret, "job", key) == WEFT_OK);
    return 1 + wire_message_encode(&sample, key, out + 1);
}
