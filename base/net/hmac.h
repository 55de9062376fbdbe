/* hmac.h - HMAC-SHA256, comparison in constant time, random bytes. Any thread. */
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

/* HMAC-SHA256 of the concatenated parts. There are no separators, so the caller must make lengths
 * unambiguous. mac_out may be one of the inputs. Works in handlers of exit, too. WEFT_ERR_NO_MEMORY: OpenSSL
 * failed. */
enum weft_status weft_hmac_sha256(const void *key, size_t key_bytes, const struct weft_bytes_view *parts,
                                  size_t part_count, uint8_t mac_out[WEFT_HMAC_BYTES]);
/* Compares in a time that depends on `bytes` only. */
bool weft_bytes_equal_constant_time(const void *a, const void *b, size_t bytes);
/* Fills `out` from the env's random numbers: the system's are fit for keys, the simulator's are seeded. */
void weft_random_bytes(struct weft_env *env, uint8_t *out, size_t bytes);
/* Overwrites a key after its last use. The compiler does not remove it. */
void weft_wipe(void *memory, size_t bytes);

#endif
