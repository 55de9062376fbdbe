/* auth.c - proofs that somebody knows the job secret, without sending it. The one file that sees OpenSSL.
 *
 *     proof = HMAC-SHA256(secret, purpose 0 nonce 0 job 0 name)
 *
 * The nonce is the other side's and fresh, so a proof heard once is worth nothing later; the purpose keeps
 * a coordinator's proof from being sent back to it as a member's. The zero bytes keep ("ab", "c") and
 * ("a", "bc") apart: job and name are C strings and hold none.
 *
 * This proves who opens a connection. It neither hides nor protects what follows on it. */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <limits.h>
#include <string.h>

#include "proto/proto.h"
#include "proto/wire_limits.h"

#define PURPOSE_BYTES_MAX 32u

static size_t append(uint8_t *out, size_t at, const void *data, size_t bytes)
{
    memcpy(out + at, data, bytes);
    return at + bytes;
}

enum weft_status weft_proof_make(const char *secret, const char *purpose, const uint8_t nonce[WEFT_NONCE_BYTES], const char *job,
                                 const char *name, uint8_t proof_out[WEFT_PROOF_BYTES])
{
    uint8_t message[PURPOSE_BYTES_MAX + WEFT_NONCE_BYTES + 2 * WEFT_LIMIT_NAME_BYTES + 3];
    size_t purpose_bytes = strlen(purpose), job_bytes = strlen(job), name_bytes = strlen(name), secret_bytes = strlen(secret);
    WEFT_ASSERT(purpose_bytes <= PURPOSE_BYTES_MAX);
    if (job_bytes > WEFT_LIMIT_NAME_BYTES || name_bytes > WEFT_LIMIT_NAME_BYTES || secret_bytes > INT_MAX) return WEFT_ERR_INVALID;

    size_t bytes = append(message, 0, purpose, purpose_bytes + 1);
    bytes = append(message, bytes, nonce, WEFT_NONCE_BYTES);
    message[bytes++] = 0;
    bytes = append(message, bytes, job, job_bytes + 1);
    bytes = append(message, bytes, name, name_bytes);

    unsigned int proof_bytes = 0;
    uint8_t proof[EVP_MAX_MD_SIZE];
    if (!HMAC(EVP_sha256(), secret, (int)secret_bytes, message, bytes, proof, &proof_bytes)) return WEFT_ERR_INTERNAL;
    WEFT_ASSERT(proof_bytes == WEFT_PROOF_BYTES);
    memcpy(proof_out, proof, WEFT_PROOF_BYTES);
    return WEFT_OK;
}

bool weft_proof_check(const uint8_t *a, size_t a_bytes, const uint8_t b[WEFT_PROOF_BYTES])
{
    return a_bytes == WEFT_PROOF_BYTES && CRYPTO_memcmp(a, b, WEFT_PROOF_BYTES) == 0;
}
