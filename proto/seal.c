/* seal.c - authentication of the control frames of one connection after its handshake.
 *
 *     Challenge, Hello    plain; both are part of the key, so a change of either fails the next frame
 *     Welcome and later   body, then 16 bytes of HMAC-SHA256(key, label 0 side number length body)
 *
 *     key = HMAC-SHA256(secret, "weft control session" 0 digest of the Challenge, Hello)
 *
 * Both frames carry a fresh nonce, so a key belongs to one connection. Each direction numbers its frames from
 * 0; the number is not sent. A frame that is injected, repeated, left out, moved, changed or sent back fails.
 * A job without a secret has a key that any process can compute: it detects accidents, not attackers. Nothing
 * is encrypted. */
#include <string.h>

#include "proto/proto.h"

#define CHALLENGE_LABEL "weft control challenge" /* sizeof includes the zero byte that ends each label */
#define SESSION_LABEL "weft control session"
#define FRAME_LABEL "weft control frame"

enum weft_status weft_seal_challenge(struct weft_seal *seal, const uint8_t *frame, size_t bytes)
{
    const struct weft_bytes_view part = {frame, bytes};
    memset(seal, 0, sizeof *seal);
    return weft_hmac_sha256(CHALLENGE_LABEL, sizeof CHALLENGE_LABEL, &part, 1, seal->challenge);
}

enum weft_status weft_seal_start(struct weft_seal *seal, enum weft_seal_side side, const char *secret,
                                 const uint8_t *hello, size_t bytes)
{
    const struct weft_bytes_view parts[] = {
        {SESSION_LABEL, sizeof SESSION_LABEL}, {seal->challenge, sizeof seal->challenge}, {hello, bytes}};
    WEFT_TRY(weft_hmac_sha256(secret, secret ? strlen(secret) : 0, parts, sizeof parts / sizeof parts[0],
                              seal->key));
    seal->side = side;
    seal->sent = seal->received = 0;
    seal->is_active = true;
    return WEFT_OK;
}

static enum weft_status frame_mac(const struct weft_seal *seal, enum weft_seal_side sender, uint64_t number,
                                  const uint8_t *frame, size_t bytes, uint8_t mac_out[WEFT_HMAC_BYTES])
{
    uint8_t head[17] = {(uint8_t)sender};
    put_le64(head + 1, number);
    put_le64(head + 9, bytes);
    const struct weft_bytes_view parts[] = {
        {FRAME_LABEL, sizeof FRAME_LABEL}, {head, sizeof head}, {frame, bytes}};
    return weft_hmac_sha256(seal->key, sizeof seal->key, parts, sizeof parts / sizeof parts[0], mac_out);
}

enum weft_status weft_seal_append(struct weft_seal *seal, uint8_t *frame, size_t *bytes)
{
    uint8_t mac[WEFT_HMAC_BYTES];
    if (!seal->is_active) return WEFT_OK;
    WEFT_TRY(frame_mac(seal, seal->side, seal->sent, frame, *bytes, mac));
    memcpy(frame + *bytes, mac, WEFT_SEAL_BYTES);
    *bytes += WEFT_SEAL_BYTES;
    seal->sent++;
    return WEFT_OK;
}

bool weft_seal_check(struct weft_seal *seal, const uint8_t *frame, size_t *bytes)
{
    uint8_t mac[WEFT_HMAC_BYTES];
    const enum weft_seal_side sender =
        seal->side == WEFT_SEAL_MEMBER ? WEFT_SEAL_COORDINATOR : WEFT_SEAL_MEMBER;
    if (!seal->is_active) return true;
    if (*bytes < WEFT_SEAL_BYTES) return false;
    const size_t body_bytes = *bytes - WEFT_SEAL_BYTES;
    if (frame_mac(seal, sender, seal->received, frame, body_bytes, mac) != WEFT_OK ||
        !weft_bytes_equal_constant_time(mac, frame + body_bytes, WEFT_SEAL_BYTES))
        return false;
    *bytes = body_bytes;
    seal->received++;
    return true;
}

void weft_seal_wipe(struct weft_seal *seal)
{
    weft_wipe(seal, sizeof *seal);
}
