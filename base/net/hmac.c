/* hmac.c - see hmac.h. The only file that includes OpenSSL; uses calls that 1.1 and 3.x share.
 *
 * HMAC (RFC 2104) is built from the SHA256 calls, which keep no state besides the context. The EVP calls fail
 * once OpenSSL's handler of exit has run, and a session may end in a handler that runs later. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/net/hmac.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

#define BLOCK_BYTES 64u /* block size of SHA-256 */

/* digest((key ^ pad) || parts) */
static bool digest(const uint8_t key[BLOCK_BYTES], uint8_t pad, const struct weft_bytes_view *parts,
                   size_t part_count, uint8_t out[WEFT_HMAC_BYTES])
{
    SHA256_CTX context;
    uint8_t block[BLOCK_BYTES];
    for (size_t i = 0; i < BLOCK_BYTES; i++) block[i] = key[i] ^ pad;
    bool ok = SHA256_Init(&context) && SHA256_Update(&context, block, sizeof block);
    for (size_t i = 0; ok && i < part_count; i++)
        ok = parts[i].bytes == 0 || SHA256_Update(&context, parts[i].data, parts[i].bytes);
    ok = ok && SHA256_Final(out, &context);
    OPENSSL_cleanse(&context, sizeof context);
    OPENSSL_cleanse(block, sizeof block);
    return ok;
}

/* A key longer than a block is replaced by its digest. */
static bool key_block(const void *key, size_t key_bytes, uint8_t block_out[BLOCK_BYTES])
{
    SHA256_CTX context;
    memset(block_out, 0, BLOCK_BYTES);
    if (key_bytes <= BLOCK_BYTES) {
        if (key_bytes > 0) memcpy(block_out, key, key_bytes);
        return true;
    }
    const bool ok = SHA256_Init(&context) && SHA256_Update(&context, key, key_bytes) &&
                    SHA256_Final(block_out, &context);
    OPENSSL_cleanse(&context, sizeof context);
    return ok;
}

enum weft_status weft_hmac_sha256(const void *key, size_t key_bytes, const struct weft_bytes_view *parts,
                                  size_t part_count, uint8_t mac_out[WEFT_HMAC_BYTES])
{
    uint8_t block[BLOCK_BYTES], inner[WEFT_HMAC_BYTES];
    const struct weft_bytes_view inside = {inner, sizeof inner};
    const bool ok = key_block(key, key_bytes, block) && digest(block, 0x36, parts, part_count, inner) &&
                    digest(block, 0x5c, &inside, 1, mac_out);
    OPENSSL_cleanse(block, sizeof block);
    OPENSSL_cleanse(inner, sizeof inner);
    return ok ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

bool weft_bytes_equal_constant_time(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

void weft_random_bytes(struct weft_env *env, uint8_t *out, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = weft_random_u64(env);
        memcpy(out + at, &word, bytes - at < sizeof word ? bytes - at : sizeof word);
    }
}

void weft_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}
