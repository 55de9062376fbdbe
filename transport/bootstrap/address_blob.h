/* address_blob.h - the address of an endpoint whose backend connects through bootstrap.h. Pure; little
 * endian.
 *
 *   magic u32 | version u32 | nonce hash u32 | id u32 | bytes u32 | checksum u32 | bootstrap address (bytes)
 *
 * The blob holds no key and no memory address: those travel over the authenticated connection only. The
 * checksum detects accidents, not forgery. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_ADDRESS_BLOB_H
#define WEFT_TRANSPORT_BOOTSTRAP_ADDRESS_BLOB_H

#include "transport/bootstrap/bootstrap.h"

enum {
    ADDRESS_BLOB_FIXED_BYTES = 24,
    ADDRESS_BLOB_BYTES_MAX = ADDRESS_BLOB_FIXED_BYTES + BOOTSTRAP_ADDRESS_BYTES_MAX
};

struct address_blob_kind { /* constants of one backend */
    uint32_t magic, version;
};

/* Returns the bytes written. `bytes` <= BOOTSTRAP_ADDRESS_BYTES_MAX. */
uint32_t address_blob_encode(struct address_blob_kind kind, uint32_t nonce_hash, uint32_t id,
                             const void *address, uint32_t bytes, uint8_t out[ADDRESS_BLOB_BYTES_MAX]);
/* WEFT_OK: *address_out points into `blob`. WEFT_ERR_MALFORMED, WEFT_ERR_VERSION, WEFT_ERR_AUTH (the nonce
 * of another job). */
enum weft_status address_blob_decode(struct address_blob_kind kind, const void *blob, size_t bytes,
                                     uint32_t nonce_hash, uint32_t id, const void **address_out,
                                     size_t *bytes_out);

#endif
