/* verbs_address.h - the address blob of a verbs endpoint (address_blob.h; it holds no queue pair), and the
 * keys of windows. Pure; little endian. */
#ifndef WEFT_TRANSPORT_VERBS_ADDRESS_H
#define WEFT_TRANSPORT_VERBS_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/address_blob.h"
#include "transport/transport.h"

static const struct address_blob_kind verbs_blob_kind = {0x42565257 /* "WRVB" */, 1};

/* ---- the key of a window ----
 *   magic u32 | owner id u32 | address u64 | bytes u64 | rights u32 | rails u32 | key u32 x rails */
struct verbs_window_key {
    uint32_t owner, rights, rail_count;
    uint64_t address, bytes;
    uint32_t keys[8]; /* by rail index of the owner */
};
uint32_t verbs_window_key_encode(const struct verbs_window_key *key, uint8_t out[WEFT_WINDOW_KEY_BYTES_MAX]);
enum weft_status verbs_window_key_decode(const void *data, size_t bytes, uint32_t owner,
                                         struct verbs_window_key *key_out);

#endif
