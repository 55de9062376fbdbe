/* address_blob.c - see the layout in the header. */
#include "transport/bootstrap/address_blob.h"

#include <string.h>

/* FNV-1a over the blob without the checksum and without the nonce hash, which the decoder compares itself. */
static uint32_t checksum(const uint8_t *blob, size_t bytes)
{
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < bytes; i++) {
        if ((i >= 8 && i < 12) || (i >= 20 && i < 24)) continue;
        sum = (sum ^ blob[i]) * 16777619u;
    }
    return sum;
}

uint32_t address_blob_encode(struct address_blob_kind kind, uint32_t nonce_hash, uint32_t id,
                             const void *address, uint32_t bytes, uint8_t out[ADDRESS_BLOB_BYTES_MAX])
{
    put_le32(out, kind.magic);
    put_le32(out + 4, kind.version);
    put_le32(out + 8, nonce_hash);
    put_le32(out + 12, id);
    put_le32(out + 16, bytes);
    memcpy(out + ADDRESS_BLOB_FIXED_BYTES, address, bytes);
    put_le32(out + 20, checksum(out, ADDRESS_BLOB_FIXED_BYTES + bytes));
    return ADDRESS_BLOB_FIXED_BYTES + bytes;
}

enum weft_status address_blob_decode(struct address_blob_kind kind, const void *blob, size_t bytes,
                                     uint32_t nonce_hash, uint32_t id, const void **address_out,
                                     size_t *bytes_out)
{
    const uint8_t *at = blob;
    if (bytes < ADDRESS_BLOB_FIXED_BYTES || bytes > ADDRESS_BLOB_BYTES_MAX || get_le32(at) != kind.magic)
        return WEFT_ERR_MALFORMED;
    if (get_le32(at + 4) != kind.version) return WEFT_ERR_VERSION;
    if (get_le32(at + 8) != nonce_hash) return WEFT_ERR_AUTH;
    if (get_le32(at + 12) != id || get_le32(at + 16) != bytes - ADDRESS_BLOB_FIXED_BYTES)
        return WEFT_ERR_MALFORMED;
    if (get_le32(at + 20) != checksum(at, bytes)) return WEFT_ERR_MALFORMED;
    *address_out = at + ADDRESS_BLOB_FIXED_BYTES;
    *bytes_out = bytes - ADDRESS_BLOB_FIXED_BYTES;
    return WEFT_OK;
}
