/* hmac.h - the few cryptographic primitives weft uses: HMAC-SHA256, comparison in constant time, fresh
 * random bytes. hmac.c is the one file that sees OpenSSL. Any thread. */
#ifndef WEFT_BASE_NET_HMAC_H
#define WEFT_BASE_NET_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "weft/status.h"

#define WEFT_HMAC_BYTES 32u

struct weft_bytes_view {
    const void *data; /* borrowed; NULL only when bytes is 0 */
    size_t bytes;
};

/* HMAC-SHA256 of the parts in a row (no separators: the caller makes lengths unambiguous). `mac_out` may
 * be one of the inputs. WEFT_OK; WEFT_ERR_NO_MEMORY when OpenSSL has none (or refuses). */
enum weft_status weft_hmac_sha256(const void *key, size_t key_bytes, const struct weft_bytes_view *parts,
                                  size_t part_count, uint8_t mac_out[WEFT_HMAC_BYTES]);
/* Start OpenSSL now: handlers of atexit() that are registered afterwards run before OpenSSL ends. */
void weft_hmac_prepare(void);
/* Equal? In a time that depends on `bytes` only. */
bool weft_bytes_equal_constant_time(const void *a, const void *b, size_t bytes);
/* From the env's random numbers (the system's are fit for keys, the simulator's are seeded). */
void weft_random_bytes(struct weft_env *env, uint8_t *out, size_t bytes);
/* Overwrite a key that is not needed any more; not optimised away. */
void weft_wipe(void *memory, size_t bytes);

#endif
