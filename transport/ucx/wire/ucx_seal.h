/* ucx_seal.h - proofs made of the job's secret, so that endpoints believe each other before anything is
 * taken. No UCX here.
 *
 *   mark    of the job: the same for all who hold its nonce and secret; tells "not ours" apart from "broken"
 *   proof   over an address blob: who made it holds the secret, and nobody has changed it. UCX trusts an
 *           address that it unpacks, so none is unpacked without
 *   token   of one pair and direction, over the receiver's fresh challenge: in the header of every message.
 *           Only who holds the secret can make it; nothing is taken, and no memory spent, for a message with
 *           a wrong one
 *
 * The challenge lies in the receiver's address blob, so proving costs no round trip: a sender's first message
 * carries its token, and the sender has seen in the blob's proof that the receiver is no stranger. A job
 * without a secret uses its nonce as the key. Nothing is encrypted: who can read the wire can repeat a token
 * (docs/transport-ucx.md). */
#ifndef WEFT_TRANSPORT_UCX_WIRE_UCX_SEAL_H
#define WEFT_TRANSPORT_UCX_WIRE_UCX_SEAL_H

#include "base/base.h"

enum { UCX_SEAL_CHALLENGE_BYTES = 16, UCX_SEAL_PROOF_BYTES = 16 };

struct ucx_seal {
    uint8_t key[WEFT_HMAC_BYTES];
    uint8_t challenge[UCX_SEAL_CHALLENGE_BYTES]; /* this endpoint's */
    uint32_t mark;
};

/* `secret` may be NULL. WEFT_OK or WEFT_ERR_NO_MEMORY, as all here. */
enum weft_status ucx_seal_init(struct weft_env *env, struct ucx_seal *seal, uint64_t nonce,
                               const void *secret, size_t secret_bytes);
void ucx_seal_fini(struct ucx_seal *seal);
enum weft_status ucx_seal_prove(const struct ucx_seal *seal, const void *data, size_t bytes,
                                uint8_t proof_out[UCX_SEAL_PROOF_BYTES]);
/* Of messages from `sender` to `receiver`, whose challenge it is. */
enum weft_status ucx_seal_token(const struct ucx_seal *seal,
                                const uint8_t challenge[UCX_SEAL_CHALLENGE_BYTES], uint32_t sender,
                                uint32_t receiver, uint64_t *token_out);

#endif
