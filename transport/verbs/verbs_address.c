/* verbs_address.c - see verbs_address.h. */
#include "transport/verbs/verbs_address.h"

#include <string.h>

enum { WINDOW_MAGIC = 0x57565257 /* "WRVW" */, WINDOW_FIXED_BYTES = 32 };

uint32_t verbs_window_key_encode(const struct verbs_window_key *key, uint8_t out[WEFT_WINDOW_KEY_BYTES_MAX])
{
    put_le32(out, WINDOW_MAGIC);
    put_le32(out + 4, key->owner);
    put_le64(out + 8, key->address);
    put_le64(out + 16, key->bytes);
    put_le32(out + 24, key->rights);
    put_le32(out + 28, key->rail_count);
    for (uint32_t i = 0; i < key->rail_count; i++) put_le32(out + WINDOW_FIXED_BYTES + 4 * i, key->keys[i]);
    return WINDOW_FIXED_BYTES + 4 * key->rail_count;
}

enum weft_status verbs_window_key_decode(const void *data, size_t bytes, uint32_t owner,
                                         struct verbs_window_key *key_out)
{
    const uint8_t *at = data;
    if (bytes < WINDOW_FIXED_BYTES || get_le32(at) != WINDOW_MAGIC || get_le32(at + 4) != owner)
        return WEFT_ERR_MALFORMED;
    struct verbs_window_key key = {.owner = owner,
                                   .address = get_le64(at + 8),
                                   .bytes = get_le64(at + 16),
                                   .rights = get_le32(at + 24),
                                   .rail_count = get_le32(at + 28)};
    if (key.rail_count == 0 || key.rail_count > 8 || bytes != WINDOW_FIXED_BYTES + 4 * (size_t)key.rail_count)
        return WEFT_ERR_MALFORMED;
    if (key.bytes == 0 || key.address + key.bytes < key.address) return WEFT_ERR_MALFORMED;
    for (uint32_t i = 0; i < key.rail_count; i++) key.keys[i] = get_le32(at + WINDOW_FIXED_BYTES + 4 * i);
    *key_out = key;
    return WEFT_OK;
}
