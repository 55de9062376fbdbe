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
    put64(out + 16, header->token);
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
    if (at[5] < UCX_WIRE_MESSAGE || at[5] > UCX_WIRE_KIND_LAST) return WEFT_ERR_MALFORMED;
    uint32_t header_bytes = get16(at + 6);
    uint32_t header_bytes_max = at[5] == UCX_WIRE_PUT ? UCX_WIRE_INNER_BYTES_MAX : WEFT_TRANSPORT_HEADER_BYTES_MAX;
    if (header_bytes > header_bytes_max) return WEFT_ERR_MALFORMED;
    if (bytes != UCX_WIRE_FIXED_BYTES + header_bytes) return WEFT_ERR_MALFORMED;
    *header_out = (struct ucx_wire_header){
        .kind = (enum ucx_wire_kind)at[5],
        .header_bytes = header_bytes,
        .sender = get32(at + 8),
        .receiver = get32(at + 12),
        .token = get64(at + 16),
        .tag = get64(at + 24),
        .sequence = get64(at + 32),
        .payload_bytes = get64(at + 40),
        .header = at + UCX_WIRE_FIXED_BYTES,
    };
    return WEFT_OK;
}

void ucx_wire_entry_encode(const struct ucx_wire_entry *entry, uint8_t *out)
{
    out[0] = (uint8_t)entry->word;
    out[1] = 0;
    put16(out + 2, (uint16_t)entry->header_bytes);
    put32(out + 4, (uint32_t)entry->status);
    put64(out + 8, entry->id);
    put64(out + 16, entry->a);
    put64(out + 24, entry->b);
    put64(out + 32, entry->c);
    if (entry->header_bytes > 0) memcpy(out + UCX_WIRE_ENTRY_BYTES, entry->header, entry->header_bytes);
}

size_t ucx_wire_entry_decode(const uint8_t *data, size_t bytes, struct ucx_wire_entry *entry_out)
{
    if (bytes < UCX_WIRE_ENTRY_BYTES) return 0;
    uint32_t header_bytes = get16(data + 2);
    if (data[0] < UCX_WORD_ANNOUNCE || data[0] > UCX_WORD_LAST || data[1] != 0) return 0;
    if (header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX || header_bytes > bytes - UCX_WIRE_ENTRY_BYTES) return 0;
    *entry_out = (struct ucx_wire_entry){
        .word = (enum ucx_wire_word)data[0],
        .header_bytes = header_bytes,
        .status = (int32_t)get32(data + 4),
        .id = get64(data + 8),
        .a = get64(data + 16),
        .b = get64(data + 24),
        .c = get64(data + 32),
        .header = data + UCX_WIRE_ENTRY_BYTES,
    };
    return UCX_WIRE_ENTRY_BYTES + header_bytes;
}

void ucx_wire_put_encode(const struct ucx_wire_put *put, uint8_t out[UCX_WIRE_PUT_BYTES])
{
    memset(out, 0, UCX_WIRE_PUT_BYTES);
    put64(out, put->window);
    put64(out + 8, put->secret);
    put64(out + 16, put->id);
    put64(out + 24, put->bytes);
    out[32] = put->notify;
    put64(out + 40, put->tag);
    put64(out + 48, put->sequence);
}

enum weft_status ucx_wire_put_decode(const uint8_t *data, size_t bytes, struct ucx_wire_put *put_out)
{
    if (bytes < UCX_WIRE_PUT_BYTES || data[32] > 1) return WEFT_ERR_MALFORMED;
    *put_out = (struct ucx_wire_put){
        .window = get64(data),
        .secret = get64(data + 8),
        .id = get64(data + 16),
        .bytes = get64(data + 24),
        .notify = data[32] != 0,
        .tag = get64(data + 40),
        .sequence = get64(data + 48),
    };
    return WEFT_OK;
}

void ucx_wire_key_encode(const struct ucx_wire_key *key, uint8_t out[UCX_WIRE_KEY_BYTES])
{
    put32(out, UCX_WIRE_KEY_MAGIC);
    put32(out + 4, UCX_WIRE_VERSION);
    put32(out + 8, key->owner);
    put32(out + 12, key->rights);
    put64(out + 16, key->window);
    put64(out + 24, key->secret);
    put64(out + 32, key->bytes);
    put64(out + 40, key->address);
}

enum weft_status ucx_wire_key_decode(const uint8_t *data, size_t bytes, struct ucx_wire_key *key_out)
{
    const unsigned all_rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE;
    if (bytes != UCX_WIRE_KEY_BYTES) return WEFT_ERR_MALFORMED;
    if (get32(data) != UCX_WIRE_KEY_MAGIC || get32(data + 4) != UCX_WIRE_VERSION) return WEFT_ERR_MALFORMED;
    *key_out = (struct ucx_wire_key){
        .owner = get32(data + 8),
        .rights = get32(data + 12),
        .window = get64(data + 16),
        .secret = get64(data + 24),
        .bytes = get64(data + 32),
        .address = get64(data + 40),
    };
    if (key_out->rights == 0 || (key_out->rights & ~all_rights) || key_out->bytes == 0) return WEFT_ERR_MALFORMED;
    if (key_out->address + key_out->bytes < key_out->address) return WEFT_ERR_MALFORMED;
    return WEFT_OK;
}

uint64_t ucx_wire_u64(const uint8_t *at) { return get64(at); }
void ucx_wire_put_u64(uint8_t *at, uint64_t value) { put64(at, value); }

void ucx_wire_address_encode(const struct ucx_wire_address *address, uint8_t *out)
{
    const struct ucx_wire_process *process = &address->process;
    put32(out, UCX_WIRE_ADDRESS_MAGIC);
    put32(out + 4, UCX_WIRE_VERSION);
    put32(out + 8, address->mark);
    put32(out + 12, address->id);
    put32(out + 16, address->packed_bytes);
    put32(out + 20, 0);
    memcpy(out + 24, address->challenge, UCX_SEAL_CHALLENGE_BYTES);
    put64(out + 40, process->pid);
    put64(out + 48, process->start);
    put64(out + 56, process->namespace);
    memcpy(out + 64, process->host, sizeof process->host);
    memcpy(out + UCX_WIRE_ADDRESS_BYTES, address->packed, address->packed_bytes);
    memset(out + UCX_WIRE_ADDRESS_BYTES + address->packed_bytes, 0, UCX_SEAL_PROOF_BYTES);
}

enum weft_status ucx_wire_address_decode(const void *blob, size_t bytes, struct ucx_wire_address *address_out)
{
    const uint8_t *at = blob;
    if (bytes <= UCX_WIRE_AROUND_BYTES || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (get32(at) != UCX_WIRE_ADDRESS_MAGIC) return WEFT_ERR_MALFORMED;
    if (get32(at + 4) != UCX_WIRE_VERSION) return WEFT_ERR_VERSION;
    if (get32(at + 16) != bytes - UCX_WIRE_AROUND_BYTES || get32(at + 20) != 0) return WEFT_ERR_MALFORMED;
    *address_out = (struct ucx_wire_address){
        .mark = get32(at + 8),
        .id = get32(at + 12),
        .challenge = at + 24,
        .process = {.pid = get64(at + 40), .start = get64(at + 48), .namespace = get64(at + 56)},
        .packed = at + UCX_WIRE_ADDRESS_BYTES,
        .packed_bytes = get32(at + 16),
        .proof = at + bytes - UCX_SEAL_PROOF_BYTES,
    };
    memcpy(address_out->process.host, at + 64, sizeof address_out->process.host);
    return WEFT_OK;
}
