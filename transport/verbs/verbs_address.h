/* verbs_address.h - the blob with which others connect to a verbs endpoint. Pure; all little endian.
 *
 *   magic u32 | version u32 | nonce hash u32 | id u32 | bytes u32 | checksum u32 | where its link listens (bytes)
 *
 * No queue pair, key or memory address is in it: those travel only over the authenticated link. The checksum is against
 * accidents. */
#ifndef WEFT_TRANSPORT_VERBS_ADDRESS_H
#define WEFT_TRANSPORT_VERBS_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

enum { VERBS_BLOB_FIXED_BYTES = 24, VERBS_BLOB_LINK_BYTES_MAX = 64, VERBS_BLOB_BYTES_MAX = VERBS_BLOB_FIXED_BYTES + VERBS_BLOB_LINK_BYTES_MAX };

/* Bytes written. `bytes` <= VERBS_BLOB_LINK_BYTES_MAX. */
uint32_t verbs_blob_encode(uint32_t nonce_hash, uint32_t id, const void *link, uint32_t bytes, uint8_t out[VERBS_BLOB_BYTES_MAX]);
/* WEFT_OK with the link's part inside `blob`; WEFT_ERR_MALFORMED, WEFT_ERR_VERSION, WEFT_ERR_AUTH (another job's nonce). */
enum weft_status verbs_blob_decode(const void *blob, size_t bytes, uint32_t nonce_hash, uint32_t id, const void **link_out, size_t *link_bytes_out);

/* ---- the key of a window ----
 *   magic u32 | owner's id u32 | address u64 | bytes u64 | rights u32 | rails u32 | key u32 x rails */
struct verbs_window_key {
    uint32_t owner, rights, rail_count;
    uint64_t address, bytes;
    uint32_t keys[8]; /* by rail of the owner */
};
uint32_t verbs_window_key_encode(const struct verbs_window_key *key, uint8_t out[WEFT_WINDOW_KEY_BYTES_MAX]);
enum weft_status verbs_window_key_decode(const void *data, size_t bytes, uint32_t owner, struct verbs_window_key *key_out);

#endif
