/* ucx_wire.c - see ucx_wire.h. Every length is checked before the bytes behind it are looked at. */
#include "transport/ucx/ucx_wire.h"

#include <endian.h>
#include <string.h>

static void put16(uint8_t *at, uint16_t value) { value = htole16(value), memcpy(at, &value, sizeof value); }
static void put32(uint8_t *at, uint32_t value) { value = htole32(value), memcpy(at, &value, sizeof value); }
static void put64(uint8_t *at, uint64_t value) { value = htole64(value), memcpy(at, &value, sizeof value); }

static uint16_t get16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return le16toh(value);
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

void ucx_wire_encode(const struct ucx_wire_header *header, uint8_t out[UCX_WIRE_HEADER_BYTES_MAX])
{
    put32(out, UCX_WIRE_MAGIC);
    out[4] = UCX_WIRE_VERSION;
    out[5] = (uint8_t)header->kind;
    put16(out + 6, (uint16_t)header->header_bytes);
    put32(out + 8, header->sender);
    put32(out + 12, header->receiver);
    put64(out + 16, header->nonce);
    put64(out + 24, header->tag);
    put64(out + 32, header->sequence);
    put64(out + 40, header->payload_bytes);
    if (header->header_bytes > 0) memcpy(out + UCX_WIRE_FIXED_BYTES, header->header, header->header_bytes);
}

enum weft_status ucx_wire_decode(const void *data, size_t bytes, struct ucx_wire_header *header_out)
{
    const uint8_t *at = data;
    if (bytes < UCX_WIRE_FIXED_BYTES) return WEFT_ERR_MALFORMED;
    if (get32(at) != UCX_WIRE_MAGIC) return WEFT_ERR_MALFORMED;
    if (at[4] != UCX_WIRE_VERSION) return WEFT_ERR_VERSION;
    if (at[5] < UCX_WIRE_MESSAGE || at[5] > UCX_WIRE_BYE_TOO) return WEFT_ERR_MALFORMED;
    uint32_t header_bytes = get16(at + 6);
    if (header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (bytes != UCX_WIRE_FIXED_BYTES + header_bytes) return WEFT_ERR_MALFORMED;
    *header_out = (struct ucx_wire_header){
        .kind = (enum ucx_wire_kind)at[5],
        .header_bytes = header_bytes,
        .sender = get32(at + 8),
        .receiver = get32(at + 12),
        .nonce = get64(at + 16),
        .tag = get64(at + 24),
        .sequence = get64(at + 32),
        .payload_bytes = get64(at + 40),
        .header = at + UCX_WIRE_FIXED_BYTES,
    };
    return WEFT_OK;
}

/* FNV-1a (Fowler, Noll, Vo). */
static uint32_t checksum(const uint8_t *data, size_t bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ data[i]) * 16777619u;
    return hash;
}

void ucx_wire_address_encode(uint32_t nonce_hash, uint32_t id, const void *address, uint32_t address_bytes, uint8_t *out)
{
    put32(out, UCX_WIRE_ADDRESS_MAGIC);
    put32(out + 4, UCX_WIRE_VERSION);
    put32(out + 8, nonce_hash);
    put32(out + 12, id);
    put32(out + 16, address_bytes);
    put32(out + 20, checksum(address, address_bytes));
    memcpy(out + UCX_WIRE_ADDRESS_BYTES, address, address_bytes);
}

enum weft_status ucx_wire_address_decode(const void *blob, size_t bytes, uint32_t nonce_hash, uint32_t id, const void **address_out)
{
    const uint8_t *at = blob;
    if (bytes <= UCX_WIRE_ADDRESS_BYTES || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (get32(at) != UCX_WIRE_ADDRESS_MAGIC) return WEFT_ERR_MALFORMED;
    if (get32(at + 4) != UCX_WIRE_VERSION) return WEFT_ERR_VERSION;
    if (get32(at + 8) != nonce_hash) return WEFT_ERR_AUTH;
    if (get32(at + 12) != id) return WEFT_ERR_MALFORMED;
    if (get32(at + 16) != bytes - UCX_WIRE_ADDRESS_BYTES) return WEFT_ERR_MALFORMED;
    if (get32(at + 20) != checksum(at + UCX_WIRE_ADDRESS_BYTES, bytes - UCX_WIRE_ADDRESS_BYTES)) return WEFT_ERR_MALFORMED;
    *address_out = at + UCX_WIRE_ADDRESS_BYTES;
    return WEFT_OK;
}
