/* auth.c - proof of knowledge of the job secret, without sending it.
 *
 *     proof = HMAC-SHA256(secret, purpose 0 nonce 0 job 0 name)
 *
 * The nonce is fresh and the other side's, so a recorded proof is not valid later. The purpose prevents that
 * a coordinator's proof is sent back to it as a member's. The zero bytes separate ("ab", "c") from ("a",
 * "bc"): job and name are C strings. The proof authenticates the opener of a connection; seal.c
 * authenticates the later messages. Nothing is encrypted. */
#include <stdio.h>
#include <string.h>

#include "proto/proto.h"
#include "proto/wire_limits.h"

enum weft_status weft_proof_make(const char *secret, const char *purpose,
                                 const uint8_t nonce[WEFT_NONCE_BYTES], const char *job, const char *name,
                                 uint8_t proof_out[WEFT_PROOF_BYTES])
{
    size_t job_bytes = strlen(job), name_bytes = strlen(name);
    if (job_bytes > WEFT_LIMIT_NAME_BYTES || name_bytes > WEFT_LIMIT_NAME_BYTES) return WEFT_ERR_INVALID;
    const struct weft_bytes_view parts[] = {
        {purpose, strlen(purpose) + 1}, {nonce, WEFT_NONCE_BYTES}, {"", 1},
        {job, job_bytes + 1},           {name, name_bytes},
    };
    return weft_hmac_sha256(secret, strlen(secret), parts, sizeof parts / sizeof parts[0], proof_out);
}

bool weft_proof_check(const uint8_t *a, size_t a_bytes, const uint8_t b[WEFT_PROOF_BYTES])
{
    return a_bytes == WEFT_PROOF_BYTES && weft_bytes_equal_constant_time(a, b, WEFT_PROOF_BYTES);
}

void weft_nonce_draw(struct weft_env *env, uint8_t out[WEFT_NONCE_BYTES])
{
    const uint64_t random[2] = {weft_random_u64(env), weft_random_u64(env)};
    _Static_assert(sizeof random == WEFT_NONCE_BYTES && sizeof random == WEFT_RESUME_KEY_BYTES, "two draws");
    memcpy(out, random, sizeof random);
}

enum weft_status weft_http_token(const char *secret, char token_out[WEFT_HTTP_TOKEN_BYTES])
{
    static const char label[] = "weft http token";
    const struct weft_bytes_view part = {label, sizeof label};
    uint8_t mac[WEFT_HMAC_BYTES];
    WEFT_TRY(weft_hmac_sha256(secret, strlen(secret), &part, 1, mac));
    weft_hex_encode(mac, sizeof mac, token_out);
    return WEFT_OK;
}

const char *weft_proto_release(void) { return WEFT_RELEASE; }
