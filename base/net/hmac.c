/* hmac.c - see hmac.h. The only file that includes OpenSSL; uses calls that 1.1 and 3.x share.
 *
 * HMAC (RFC 2104) is built from OpenSSL's digest calls: the parts of a message are hashed in place, and the
 * digest calls are the same in every OpenSSL version that the host process may have loaded. */
#include "base/net/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>

#define BLOCK_BYTES 64u /* block size of SHA-256 */

/* digest((key ^ pad) || parts) */
static bool digest(EVP_MD_CTX *context, const uint8_t key[BLOCK_BYTES], uint8_t pad,
                   const struct weft_bytes_view *parts, size_t part_count, uint8_t out[WEFT_HMAC_BYTES])
{
    uint8_t block[BLOCK_BYTES];
    for (size_t i = 0; i < BLOCK_BYTES; i++) block[i] = key[i] ^ pad;
    bool ok =
        EVP_DigestInit_ex(context, EVP_sha256(), NULL) && EVP_DigestUpdate(context, block, sizeof block);
    for (size_t i = 0; ok && i < part_count; i++)
        ok = parts[i].bytes == 0 || EVP_DigestUpdate(context, parts[i].data, parts[i].bytes);
    ok = ok && EVP_DigestFinal_ex(context, out, NULL);
    OPENSSL_cleanse(block, sizeof block);
    return ok;
}

enum weft_status weft_hmac_sha256(const void *key, size_t key_bytes, const struct weft_bytes_view *parts,
                                  size_t part_count, uint8_t mac_out[WEFT_HMAC_BYTES])
{
    uint8_t block[BLOCK_BYTES] = {0}, inner[WEFT_HMAC_BYTES];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context) return WEFT_ERR_NO_MEMORY;
    bool ok = true;
    if (key_bytes > BLOCK_BYTES)
        ok = EVP_DigestInit_ex(context, EVP_sha256(), NULL) && EVP_DigestUpdate(context, key, key_bytes) &&
             EVP_DigestFinal_ex(context, block, NULL);
    else if (key_bytes > 0) memcpy(block, key, key_bytes);
    ok = ok && digest(context, block, 0x36, parts, part_count, inner);
    struct weft_bytes_view inside = {inner, sizeof inner};
    ok = ok && digest(context, block, 0x5c, &inside, 1, mac_out);
    EVP_MD_CTX_free(context);
    OPENSSL_cleanse(block, sizeof block);
    OPENSSL_cleanse(inner, sizeof inner);
    return ok ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* A first use makes OpenSSL allocate its state and register its atexit handler. */
void weft_hmac_prepare(void)
{
    uint8_t mac[WEFT_HMAC_BYTES];
    (void)weft_hmac_sha256(NULL, 0, NULL, 0, mac);
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
