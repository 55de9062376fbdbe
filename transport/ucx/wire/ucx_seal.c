/* ucx_seal.c - see ucx_seal.h. HMAC-SHA256 throughout, each use under its own label. */
#include "transport/ucx/wire/ucx_seal.h"

#include <endian.h>
#include <string.h>

enum weft_status ucx_seal_init(struct weft_env *env, struct ucx_seal *seal, uint64_t nonce,
                               const void *secret, size_t secret_bytes)
{
    static const char key_label[] = "weft ucx key", mark_label[] = "weft ucx mark";
    uint64_t number = htole64(nonce);
    uint8_t mark[WEFT_HMAC_BYTES], with_secret = secret != NULL;
    const struct weft_bytes_view key_parts[] = {
        {key_label, sizeof key_label}, {&with_secret, 1}, {&number, sizeof number}};
    const void *key = secret ? secret : &number;
    WEFT_TRY(weft_hmac_sha256(key, secret ? secret_bytes : sizeof number, key_parts, 3, seal->key));
    const struct weft_bytes_view mark_part = {mark_label, sizeof mark_label};
    WEFT_TRY(weft_hmac_sha256(seal->key, sizeof seal->key, &mark_part, 1, mark));
    memcpy(&seal->mark, mark, sizeof seal->mark);
    seal->mark = le32toh(seal->mark);
    weft_random_bytes(env, seal->challenge, sizeof seal->challenge);
    return WEFT_OK;
}

void ucx_seal_fini(struct ucx_seal *seal)
{
    weft_wipe(seal, sizeof *seal);
}

enum weft_status ucx_seal_prove(const struct ucx_seal *seal, const void *data, size_t bytes,
                                uint8_t proof_out[UCX_SEAL_PROOF_BYTES])
{
    static const char label[] = "weft ucx address";
    uint8_t mac[WEFT_HMAC_BYTES];
    const struct weft_bytes_view parts[] = {{label, sizeof label}, {data, bytes}};
    WEFT_TRY(weft_hmac_sha256(seal->key, sizeof seal->key, parts, 2, mac));
    memcpy(proof_out, mac, UCX_SEAL_PROOF_BYTES);
    return WEFT_OK;
}

enum weft_status ucx_seal_token(const struct ucx_seal *seal,
                                const uint8_t challenge[UCX_SEAL_CHALLENGE_BYTES], uint32_t sender,
                                uint32_t receiver, uint64_t *token_out)
{
    static const char label[] = "weft ucx token";
    uint32_t ids[2] = {htole32(sender), htole32(receiver)};
    uint8_t mac[WEFT_HMAC_BYTES];
    const struct weft_bytes_view parts[] = {
        {label, sizeof label}, {challenge, UCX_SEAL_CHALLENGE_BYTES}, {ids, sizeof ids}};
    WEFT_TRY(weft_hmac_sha256(seal->key, sizeof seal->key, parts, 3, mac));
    memcpy(token_out, mac, sizeof *token_out);
    *token_out = le64toh(*token_out);
    return WEFT_OK;
}
