/* ucx_seal.h - authentication of endpoints by the job's secret. Uses no UCX.
 *
 *   mark    of the job: equal for all holders of its nonce and secret; separates another job from garbage
 *   proof   over an address blob: its author holds the secret and it is unchanged. UCX trusts an address that
 *           it unpacks, so a blob without a valid proof is not unpacked
 *   token   of one pair and direction, over the receiver's fresh challenge, in the header of every message.
 *           Only a holder of the secret can compute it; a message with a wrong token costs no memory and has
 *           no effect
 *
 * The challenge is in the receiver's address blob, so authentication costs no round trip: the first
 * message carries its token, and the proof of the blob authenticates the receiver. A job without a secret
 * uses its nonce as the key. Nothing is encrypted: an observer of the wire can replay a token
 * (docs/transport-ucx.md). */
#ifndef WEFT_TRANSPORT_UCX_WIRE_UCX_SEAL_H
#define WEFT_TRANSPORT_UCX_WIRE_UCX_SEAL_H

#include "base/base.h"

enum { UCX_SEAL_CHALLENGE_BYTES = 16, UCX_SEAL_PROOF_BYTES = 16 };

struct ucx_seal {
    uint8_t key[WEFT_HMAC_BYTES];
    uint8_t challenge[UCX_SEAL_CHALLENGE_BYTES]; /* of this endpoint */
    uint32_t mark;
};

/* `secret` may be NULL. All functions return WEFT_OK or WEFT_ERR_NO_MEMORY. */
enum weft_status ucx_seal_init(struct weft_env *env, struct ucx_seal *seal, uint64_t nonce,
                               const void *secret, size_t secret_bytes);
void ucx_seal_fini(struct ucx_seal *seal);
enum weft_status ucx_seal_prove(const struct ucx_seal *seal, const void *data, size_t bytes,
                                uint8_t proof_out[UCX_SEAL_PROOF_BYTES]);
/* For messages from `sender` to `receiver`; the challenge is the receiver's. */
enum weft_status ucx_seal_token(const struct ucx_seal *seal,
                                const uint8_t challenge[UCX_SEAL_CHALLENGE_BYTES], uint32_t sender,
                                uint32_t receiver, uint64_t *token_out);

#endif
