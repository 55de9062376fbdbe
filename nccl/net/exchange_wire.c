/* exchange_wire.c - see exchange_wire.h. */
#include "nccl/net/exchange_wire.h"

#include <string.h>

enum {
    HANDLE_MAGIC = 0x4c4e4357,  /* "WCNL" */
    MESSAGE_MAGIC = 0x584e4357, /* "WCNX"; the kind is added */
    VERSION = 1,
    MAC_AT = WIRE_HEAD_BYTES - WEFT_HMAC_BYTES,
};

/* ---- handle ---- */

void wire_handle_encode(const struct wire_handle *handle, uint8_t out[WIRE_HANDLE_BYTES])
{
    memset(out, 0, WIRE_HANDLE_BYTES);
    put_le32(out, HANDLE_MAGIC);
    put_le32(out + 4, VERSION);
    put_le64(out + 8, handle->listener);
    memcpy(out + 16, handle->secret, WIRE_SECRET_BYTES);
    if (handle->address.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&handle->address;
        put_le16(out + 32, 4);
        put_le16(out + 34, ntohs(v4->sin_port));
        memcpy(out + 40, &v4->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&handle->address;
        put_le16(out + 32, 6);
        put_le16(out + 34, ntohs(v6->sin6_port));
        put_le32(out + 36, v6->sin6_scope_id);
        memcpy(out + 40, &v6->sin6_addr, 16);
    }
}

enum weft_status wire_handle_decode(const uint8_t data[WIRE_HANDLE_BYTES], struct wire_handle *handle_out)
{
    uint16_t family = get_le16(data + 32), port = get_le16(data + 34);
    *handle_out = (struct wire_handle){.listener = get_le64(data + 8)};
    if (get_le32(data) != HANDLE_MAGIC) return WEFT_ERR_MALFORMED;
    if (get_le32(data + 4) != VERSION) return WEFT_ERR_VERSION;
    if ((family != 4 && family != 6) || port == 0) return WEFT_ERR_MALFORMED;
    memcpy(handle_out->secret, data + 16, WIRE_SECRET_BYTES);
    if (family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&handle_out->address;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&v4->sin_addr, data + 40, 4);
        handle_out->address_bytes = sizeof *v4;
    } else {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&handle_out->address;
        *v6 = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_scope_id = get_le32(data + 36)};
        memcpy(&v6->sin6_addr, data + 40, 16);
        handle_out->address_bytes = sizeof *v6;
    }
    return WEFT_OK;
}

/* ---- keys ---- */

static enum weft_status derive(const uint8_t *key, size_t key_bytes, const char *label, const void *data,
                               size_t bytes, uint8_t out[WEFT_HMAC_BYTES])
{
    struct weft_bytes_view parts[2] = {{label, strlen(label) + 1}, {data, bytes}};
    return weft_hmac_sha256(key, key_bytes, parts, 2, out);
}

enum weft_status wire_key(const uint8_t secret[WIRE_SECRET_BYTES], const char *job_secret,
                          uint8_t key_out[WEFT_HMAC_BYTES])
{
    return derive(secret, WIRE_SECRET_BYTES, "weft nccl exchange", job_secret, strlen(job_secret), key_out);
}

enum weft_status wire_connection_secret(const uint8_t key[WEFT_HMAC_BYTES],
                                        const uint8_t challenge[WIRE_SECRET_BYTES],
                                        uint8_t secret_out[WEFT_HMAC_BYTES])
{
    return derive(key, WEFT_HMAC_BYTES, "weft nccl connection", challenge, WIRE_SECRET_BYTES, secret_out);
}

/* ---- messages ---- */

static enum weft_status mac_of(const uint8_t *data, const uint8_t *blob, size_t blob_bytes,
                               const uint8_t key[WEFT_HMAC_BYTES], uint8_t out[WEFT_HMAC_BYTES])
{
    struct weft_bytes_view parts[2] = {{data, MAC_AT}, {blob, blob_bytes}};
    return weft_hmac_sha256(key, WEFT_HMAC_BYTES, parts, 2, out);
}

size_t wire_message_encode(const struct wire_message *message, const uint8_t key[WEFT_HMAC_BYTES],
                           uint8_t out[WIRE_MESSAGE_BYTES_MAX])
{
    WEFT_ASSERT(message->blob_bytes <= WIRE_BLOB_BYTES_MAX);
    put_le32(out, MESSAGE_MAGIC + message->kind);
    put_le32(out + 4, VERSION);
    put_le64(out + 8, message->kind == WIRE_HELLO ? message->listener : message->flags);
    memcpy(out + 16, message->challenge, WIRE_SECRET_BYTES);
    put_le32(out + 32, message->blob_bytes);
    memcpy(out + WIRE_HEAD_BYTES, message->blob, message->blob_bytes);
    if (mac_of(out, message->blob, message->blob_bytes, key, out + MAC_AT) != WEFT_OK) return 0;
    return WIRE_HEAD_BYTES + message->blob_bytes;
}

size_t wire_message_bytes(const uint8_t *head)
{
    uint32_t magic = get_le32(head), blob_bytes = get_le32(head + 32);
    if (magic != MESSAGE_MAGIC + WIRE_HELLO && magic != MESSAGE_MAGIC + WIRE_ANSWER) return 0;
    return blob_bytes > 0 && blob_bytes <= WIRE_BLOB_BYTES_MAX ? WIRE_HEAD_BYTES + blob_bytes : 0;
}

enum weft_status wire_message_decode(enum wire_kind kind, const uint8_t *data, size_t bytes,
                                     const uint8_t key[WEFT_HMAC_BYTES], struct wire_message *message_out)
{
    uint8_t mac[WEFT_HMAC_BYTES];
    if (bytes < WIRE_HEAD_BYTES || wire_message_bytes(data) != bytes) return WEFT_ERR_MALFORMED;
    if (get_le32(data) != (uint32_t)MESSAGE_MAGIC + kind) return WEFT_ERR_MALFORMED;
    if (get_le32(data + 4) != VERSION) return WEFT_ERR_VERSION;
    WEFT_TRY(mac_of(data, data + WIRE_HEAD_BYTES, bytes - WIRE_HEAD_BYTES, key, mac));
    if (!weft_bytes_equal_constant_time(mac, data + MAC_AT, sizeof mac)) return WEFT_ERR_AUTH;
    *message_out = (struct wire_message){.kind = kind,
                                         .listener = kind == WIRE_HELLO ? get_le64(data + 8) : 0,
                                         .flags = kind == WIRE_ANSWER ? get_le64(data + 8) : 0,
                                         .blob = data + WIRE_HEAD_BYTES,
                                         .blob_bytes = (uint32_t)(bytes - WIRE_HEAD_BYTES)};
    memcpy(message_out->challenge, data + 16, WIRE_SECRET_BYTES);
    return WEFT_OK;
}
