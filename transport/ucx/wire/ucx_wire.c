/* ucx_wire.c - see ucx_wire.h. Every length is checked before the bytes behind it are read. */
#include "transport/ucx/wire/ucx_wire.h"

#include <string.h>

void ucx_wire_encode(const struct ucx_wire_header *header, uint8_t out[UCX_WIRE_HEADER_BYTES_MAX])
{
    put_le32(out, UCX_WIRE_MAGIC);
    out[4] = UCX_WIRE_VERSION;
    out[5] = (uint8_t)header->kind;
    put_le16(out + 6, (uint16_t)header->header_bytes);
    put_le32(out + 8, header->sender);
    put_le32(out + 12, header->receiver);
    put_le64(out + 16, header->token);
    put_le64(out + 24, header->tag);
    put_le64(out + 32, header->sequence);
    put_le64(out + 40, header->payload_bytes);
    if (header->header_bytes > 0) memcpy(out + UCX_WIRE_FIXED_BYTES, header->header, header->header_bytes);
}

enum weft_status ucx_wire_decode(const void *data, size_t bytes, struct ucx_wire_header *header_out)
{
    const uint8_t *at = data;
    if (bytes < UCX_WIRE_FIXED_BYTES) return WEFT_ERR_MALFORMED;
    if (get_le32(at) != UCX_WIRE_MAGIC) return WEFT_ERR_MALFORMED;
    if (at[4] != UCX_WIRE_VERSION) return WEFT_ERR_VERSION;
    if (at[5] < UCX_WIRE_MESSAGE || at[5] > UCX_WIRE_KIND_LAST) return WEFT_ERR_MALFORMED;
    uint32_t header_bytes = get_le16(at + 6);
    uint32_t header_bytes_max =
        at[5] == UCX_WIRE_PUT ? UCX_WIRE_INNER_BYTES_MAX : WEFT_TRANSPORT_HEADER_BYTES_MAX;
    if (header_bytes > header_bytes_max) return WEFT_ERR_MALFORMED;
    if (bytes != UCX_WIRE_FIXED_BYTES + header_bytes) return WEFT_ERR_MALFORMED;
    *header_out = (struct ucx_wire_header){
        .kind = (enum ucx_wire_kind)at[5],
        .header_bytes = header_bytes,
        .sender = get_le32(at + 8),
        .receiver = get_le32(at + 12),
        .token = get_le64(at + 16),
        .tag = get_le64(at + 24),
        .sequence = get_le64(at + 32),
        .payload_bytes = get_le64(at + 40),
        .header = at + UCX_WIRE_FIXED_BYTES,
    };
    return WEFT_OK;
}

void ucx_wire_entry_encode(const struct ucx_wire_entry *entry, uint8_t *out)
{
    out[0] = (uint8_t)entry->control;
    out[1] = 0;
    put_le16(out + 2, (uint16_t)entry->header_bytes);
    put_le32(out + 4, (uint32_t)entry->status);
    put_le64(out + 8, entry->id);
    put_le64(out + 16, entry->a);
    put_le64(out + 24, entry->b);
    put_le64(out + 32, entry->c);
    if (entry->header_bytes > 0) memcpy(out + UCX_WIRE_ENTRY_BYTES, entry->header, entry->header_bytes);
}

size_t ucx_wire_entry_decode(const uint8_t *data, size_t bytes, struct ucx_wire_entry *entry_out)
{
    if (bytes < UCX_WIRE_ENTRY_BYTES) return 0;
    uint32_t header_bytes = get_le16(data + 2);
    if (data[0] < UCX_CONTROL_ANNOUNCE || data[0] > UCX_CONTROL_LAST || data[1] != 0) return 0;
    if (header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX || header_bytes > bytes - UCX_WIRE_ENTRY_BYTES)
        return 0;
    *entry_out = (struct ucx_wire_entry){
        .control = (enum ucx_wire_control)data[0],
        .header_bytes = header_bytes,
        .status = (int32_t)get_le32(data + 4),
        .id = get_le64(data + 8),
        .a = get_le64(data + 16),
        .b = get_le64(data + 24),
        .c = get_le64(data + 32),
        .header = data + UCX_WIRE_ENTRY_BYTES,
    };
    return UCX_WIRE_ENTRY_BYTES + header_bytes;
}

size_t ucx_wire_record_encode(const struct ucx_wire_record *record, uint8_t *out)
{
    put_le64(out, record->tag);
    put_le64(out + 8, record->sequence);
    put_le32(out + 16, record->payload_bytes);
    put_le16(out + 20, (uint16_t)record->header_bytes);
    put_le16(out + 22, 0);
    out += UCX_WIRE_RECORD_BYTES;
    if (record->header_bytes > 0) memcpy(out, record->header, record->header_bytes);
    if (record->payload_bytes > 0) memcpy(out + record->header_bytes, record->payload, record->payload_bytes);
    return UCX_WIRE_RECORD_BYTES + (size_t)record->header_bytes + record->payload_bytes;
}

size_t ucx_wire_record_decode(const uint8_t *data, size_t bytes, struct ucx_wire_record *record_out)
{
    if (bytes < UCX_WIRE_RECORD_BYTES) return 0;
    uint32_t payload_bytes = get_le32(data + 16), header_bytes = get_le16(data + 20);
    if (get_le16(data + 22) != 0 || header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return 0;
    bytes -= UCX_WIRE_RECORD_BYTES;
    if (header_bytes > bytes || payload_bytes > bytes - header_bytes) return 0;
    *record_out = (struct ucx_wire_record){
        .tag = get_le64(data),
        .sequence = get_le64(data + 8),
        .payload_bytes = payload_bytes,
        .header_bytes = header_bytes,
        .header = data + UCX_WIRE_RECORD_BYTES,
        .payload = data + UCX_WIRE_RECORD_BYTES + header_bytes,
    };
    return UCX_WIRE_RECORD_BYTES + (size_t)header_bytes + payload_bytes;
}

void ucx_wire_put_encode(const struct ucx_wire_put *put, uint8_t out[UCX_WIRE_PUT_BYTES])
{
    memset(out, 0, UCX_WIRE_PUT_BYTES);
    put_le64(out, put->window);
    put_le64(out + 8, put->secret);
    put_le64(out + 16, put->id);
    put_le64(out + 24, put->bytes);
    out[32] = put->notify;
    put_le64(out + 40, put->tag);
    put_le64(out + 48, put->sequence);
}

enum weft_status ucx_wire_put_decode(const uint8_t *data, size_t bytes, struct ucx_wire_put *put_out)
{
    if (bytes < UCX_WIRE_PUT_BYTES || data[32] > 1) return WEFT_ERR_MALFORMED;
    *put_out = (struct ucx_wire_put){
        .window = get_le64(data),
        .secret = get_le64(data + 8),
        .id = get_le64(data + 16),
        .bytes = get_le64(data + 24),
        .notify = data[32] != 0,
        .tag = get_le64(data + 40),
        .sequence = get_le64(data + 48),
    };
    return WEFT_OK;
}

void ucx_wire_key_encode(const struct ucx_wire_key *key, uint8_t out[UCX_WIRE_KEY_BYTES])
{
    put_le32(out, UCX_WIRE_KEY_MAGIC);
    put_le32(out + 4, UCX_WIRE_VERSION);
    put_le32(out + 8, key->owner);
    put_le32(out + 12, key->rights);
    put_le64(out + 16, key->window);
    put_le64(out + 24, key->secret);
    put_le64(out + 32, key->bytes);
    put_le64(out + 40, key->address);
}

enum weft_status ucx_wire_key_decode(const uint8_t *data, size_t bytes, struct ucx_wire_key *key_out)
{
    const unsigned all_rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE;
    if (bytes != UCX_WIRE_KEY_BYTES) return WEFT_ERR_MALFORMED;
    if (get_le32(data) != UCX_WIRE_KEY_MAGIC || get_le32(data + 4) != UCX_WIRE_VERSION)
        return WEFT_ERR_MALFORMED;
    *key_out = (struct ucx_wire_key){
        .owner = get_le32(data + 8),
        .rights = get_le32(data + 12),
        .window = get_le64(data + 16),
        .secret = get_le64(data + 24),
        .bytes = get_le64(data + 32),
        .address = get_le64(data + 40),
    };
    if (key_out->rights == 0 || (key_out->rights & ~all_rights) || key_out->bytes == 0)
        return WEFT_ERR_MALFORMED;
    if (key_out->address + key_out->bytes < key_out->address) return WEFT_ERR_MALFORMED;
    return WEFT_OK;
}

uint64_t ucx_wire_u64(const uint8_t *at) { return get_le64(at); }
void ucx_wire_put_u64(uint8_t *at, uint64_t value) { put_le64(at, value); }

void ucx_wire_address_encode(const struct ucx_wire_address *address, uint8_t *out)
{
    const struct ucx_wire_process *process = &address->process;
    put_le32(out, UCX_WIRE_ADDRESS_MAGIC);
    put_le32(out + 4, UCX_WIRE_VERSION);
    put_le32(out + 8, address->mark);
    put_le32(out + 12, address->id);
    put_le32(out + 16, address->packed_bytes);
    put_le32(out + 20, 0);
    memcpy(out + 24, address->challenge, UCX_SEAL_CHALLENGE_BYTES);
    put_le64(out + 40, process->pid);
    put_le64(out + 48, process->start);
    put_le64(out + 56, process->namespace);
    memcpy(out + 64, process->host, sizeof process->host);
    memcpy(out + UCX_WIRE_ADDRESS_BYTES, address->packed, address->packed_bytes);
    memset(out + UCX_WIRE_ADDRESS_BYTES + address->packed_bytes, 0, UCX_SEAL_PROOF_BYTES);
}

enum weft_status ucx_wire_address_decode(const void *blob, size_t bytes, struct ucx_wire_address *address_out)
{
    const uint8_t *at = blob;
    if (bytes <= UCX_WIRE_AROUND_BYTES || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (get_le32(at) != UCX_WIRE_ADDRESS_MAGIC) return WEFT_ERR_MALFORMED;
    if (get_le32(at + 4) != UCX_WIRE_VERSION) return WEFT_ERR_VERSION;
    if (get_le32(at + 16) != bytes - UCX_WIRE_AROUND_BYTES || get_le32(at + 20) != 0)
        return WEFT_ERR_MALFORMED;
    *address_out = (struct ucx_wire_address){
        .mark = get_le32(at + 8),
        .id = get_le32(at + 12),
        .challenge = at + 24,
        .process = {.pid = get_le64(at + 40), .start = get_le64(at + 48), .namespace = get_le64(at + 56)},
        .packed = at + UCX_WIRE_ADDRESS_BYTES,
        .packed_bytes = get_le32(at + 16),
        .proof = at + bytes - UCX_SEAL_PROOF_BYTES,
    };
    memcpy(address_out->process.host, at + 64, sizeof address_out->process.host);
    return WEFT_OK;
}
