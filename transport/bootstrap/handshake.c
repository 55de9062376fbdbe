/* handshake.c - see handshake.h. Pure: equal input gives equal output. */
#include "transport/bootstrap/handshake.h"

#include <string.h>

enum frame_kind { FRAME_HELLO = 1, FRAME_PROOF, FRAME_REFUSE, FRAME_PARAMETERS, FRAME_MESSAGE };

enum mode { MODE_NONCE = 1, MODE_SECRET = 2 };

static const uint8_t magic[8] = {'w', 'e', 'f', 't', 'm', 'e', 'e', 't'};

/* Offsets in a hello. */
enum { AT_VERSION = 8, AT_MODE = 10, AT_ROLE = 11, AT_FROM = 12, AT_TO = 16, AT_JOB = 20, AT_CHALLENGE = 24 };

static void put_frame(uint8_t *at, enum frame_kind kind, uint32_t descriptors, uint32_t bytes)
{
    at[0] = (uint8_t)kind;
    at[1] = (uint8_t)descriptors;
    put_le16(at + 2, bytes);
}

/* --- keys --- */

enum weft_status handshake_self_init(struct handshake_self *self, uint32_t id, uint64_t nonce,
                                     const void *secret, size_t secret_bytes)
{
    static const char label[] = "weft meet job", mark_label[] = "weft meet mark";
    uint8_t nonce_bytes[8], facts[3], mark[WEFT_HMAC_BYTES];
    *self = (struct handshake_self){.id = id, .has_secret = secret != NULL};
    put_le64(nonce_bytes, nonce);
    put_le16(facts, HANDSHAKE_VERSION);
    facts[2] = secret ? MODE_SECRET : MODE_NONCE;

    const struct weft_bytes_view parts[] = {
        {label, sizeof label}, {facts, sizeof facts}, {nonce_bytes, sizeof nonce_bytes}};
    WEFT_TRY(weft_hmac_sha256(secret ? secret : nonce_bytes, secret ? secret_bytes : sizeof nonce_bytes,
                              parts, 3, self->job_key));
    /* Derived from the nonce alone, so that the check separates another job from a wrong secret. */
    const struct weft_bytes_view mark_part = {mark_label, sizeof mark_label};
    WEFT_TRY(weft_hmac_sha256(nonce_bytes, sizeof nonce_bytes, &mark_part, 1, mark));
    self->job_mark = get_le32(mark);
    return WEFT_OK;
}

void handshake_self_fini(struct handshake_self *self)
{
    weft_wipe(self, sizeof *self);
}

static enum weft_status make_session_key(struct handshake *handshake,
                                         const uint8_t their_hello[HANDSHAKE_HELLO_BYTES])
{
    static const char label[] = "weft meet session";
    bool dialer = handshake->role == HANDSHAKE_DIALER;
    const struct weft_bytes_view parts[] = {
        {label, sizeof label},
        {dialer ? handshake->hello : their_hello, HANDSHAKE_HELLO_BYTES},
        {dialer ? their_hello : handshake->hello, HANDSHAKE_HELLO_BYTES},
    };
    return weft_hmac_sha256(handshake->self->job_key, WEFT_HMAC_BYTES, parts, 3, handshake->session_key);
}

static enum weft_status make_proof(const struct handshake *handshake, enum handshake_role role,
                                   uint8_t proof_out[WEFT_HMAC_BYTES])
{
    static const char label[] = "weft meet proof";
    uint8_t who = (uint8_t)role;
    const struct weft_bytes_view parts[] = {{label, sizeof label}, {&who, 1}};
    return weft_hmac_sha256(handshake->session_key, WEFT_HMAC_BYTES, parts, 2, proof_out);
}

static enum weft_status make_mac(const struct handshake *handshake, enum handshake_role role, uint64_t number,
                                 const uint8_t *frame, const void *data, uint32_t bytes,
                                 uint8_t mac_out[WEFT_HMAC_BYTES])
{
    static const char label[] = "weft meet frame";
    uint8_t place[9];
    place[0] = (uint8_t)role;
    put_le64(place + 1, number);
    const struct weft_bytes_view parts[] = {
        {label, sizeof label}, {place, sizeof place}, {frame, HANDSHAKE_FRAME_BYTES}, {data, bytes}};
    return weft_hmac_sha256(handshake->session_key, WEFT_HMAC_BYTES, parts, 4, mac_out);
}

/* --- frames out --- */

static void put_hello(struct handshake *handshake)
{
    put_le32(handshake->hello + AT_TO, handshake->peer_id);
    put_frame(handshake->out, FRAME_HELLO, 0, HANDSHAKE_HELLO_BYTES);
    memcpy(handshake->out + HANDSHAKE_FRAME_BYTES, handshake->hello, HANDSHAKE_HELLO_BYTES);
    handshake->out_bytes = HANDSHAKE_FRAME_BYTES + HANDSHAKE_HELLO_BYTES;
}

static enum weft_status put_proof(struct handshake *handshake)
{
    put_frame(handshake->out, FRAME_PROOF, 0, WEFT_HMAC_BYTES);
    WEFT_TRY(make_proof(handshake, handshake->role, handshake->out + HANDSHAKE_FRAME_BYTES));
    handshake->out_bytes = HANDSHAKE_FRAME_BYTES + WEFT_HMAC_BYTES;
    return WEFT_OK;
}

void handshake_init(struct handshake *handshake, const struct handshake_self *self, enum handshake_role role,
                    uint32_t peer_id, const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES])
{
    *handshake = (struct handshake){.self = self, .role = role, .state = HANDSHAKE_HELLO, .peer_id = peer_id};
    uint8_t *hello = handshake->hello;
    memcpy(hello, magic, sizeof magic);
    put_le16(hello + AT_VERSION, HANDSHAKE_VERSION);
    hello[AT_MODE] = self->has_secret ? MODE_SECRET : MODE_NONCE;
    hello[AT_ROLE] = (uint8_t)role;
    put_le32(hello + AT_FROM, self->id);
    put_le32(hello + AT_JOB, self->job_mark);
    memcpy(hello + AT_CHALLENGE, challenge, HANDSHAKE_CHALLENGE_BYTES);
    if (role == HANDSHAKE_DIALER) put_hello(handshake);
}

void handshake_fini(struct handshake *handshake)
{
    weft_wipe(handshake->session_key, sizeof handshake->session_key);
}

void handshake_refuse(struct handshake *handshake, enum bootstrap_refusal reason)
{
    if (handshake->state == HANDSHAKE_CLOSED) return;
    handshake->state = HANDSHAKE_CLOSED;
    handshake->reason = reason;
    put_frame(handshake->out, FRAME_REFUSE, 0, 1);
    handshake->out[HANDSHAKE_FRAME_BYTES] = (uint8_t)reason;
    handshake->out_bytes = HANDSHAKE_FRAME_BYTES + 1;
}

enum weft_status handshake_seal(struct handshake *handshake, const void *data, uint32_t bytes,
                                uint32_t descriptors, uint8_t *frame_out)
{
    WEFT_ASSERT(handshake->state == HANDSHAKE_OPEN || handshake->state == HANDSHAKE_CONNECTED);
    WEFT_ASSERT(bytes <= BOOTSTRAP_MESSAGE_BYTES_MAX && descriptors <= BOOTSTRAP_DESCRIPTORS_MAX);
    enum frame_kind kind = handshake->sealed_count == 0 ? FRAME_PARAMETERS : FRAME_MESSAGE;
    put_frame(frame_out, kind, descriptors, bytes + WEFT_HMAC_BYTES);
    if (bytes > 0) memcpy(frame_out + HANDSHAKE_FRAME_BYTES, data, bytes);
    WEFT_TRY(make_mac(handshake, handshake->role, handshake->sealed_count, frame_out, data, bytes,
                      frame_out + HANDSHAKE_FRAME_BYTES + bytes));
    handshake->sealed_count++;
    return WEFT_OK;
}

/* --- frames in --- */

static enum handshake_event refused(struct handshake *handshake, enum bootstrap_refusal reason)
{
    handshake_refuse(handshake, reason);
    return HANDSHAKE_REFUSED;
}

static enum handshake_role other_role(const struct handshake *handshake)
{
    return handshake->role == HANDSHAKE_DIALER ? HANDSHAKE_ACCEPTER : HANDSHAKE_DIALER;
}

/* 0: accepted. The smaller id always dials, so neither side can take the role of the other. */
static enum bootstrap_refusal check_hello(const struct handshake *handshake, const uint8_t *hello)
{
    uint32_t from = get_le32(hello + AT_FROM), self = handshake->self->id;
    if (memcmp(hello, magic, sizeof magic) != 0) return BOOTSTRAP_MALFORMED;
    if (get_le16(hello + AT_VERSION) != HANDSHAKE_VERSION || hello[AT_MODE] != handshake->hello[AT_MODE])
        return BOOTSTRAP_VERSION;
    if (hello[AT_ROLE] == handshake->role) return BOOTSTRAP_REFLECTED;
    if (hello[AT_ROLE] != other_role(handshake)) return BOOTSTRAP_MALFORMED;
    if (get_le32(hello + AT_JOB) != handshake->self->job_mark) return BOOTSTRAP_WRONG_JOB;
    if (memcmp(hello + AT_CHALLENGE, handshake->hello + AT_CHALLENGE, HANDSHAKE_CHALLENGE_BYTES) == 0)
        return BOOTSTRAP_REFLECTED;
    if (get_le32(hello + AT_TO) != self) return BOOTSTRAP_WRONG_ID;
    if (handshake->role == HANDSHAKE_DIALER ? from != handshake->peer_id : from >= self)
        return BOOTSTRAP_WRONG_ID;
    return 0;
}

static enum handshake_event handle_hello(struct handshake *handshake, const uint8_t *hello)
{
    enum bootstrap_refusal reason = check_hello(handshake, hello);
    if (reason) return refused(handshake, reason);
    bool accepter = handshake->role == HANDSHAKE_ACCEPTER;
    if (accepter) {
        handshake->peer_id = get_le32(hello + AT_FROM);
        put_hello(handshake);
    }
    enum weft_status status = make_session_key(handshake, hello);
    if (status >= 0 && !accepter) status = put_proof(handshake);
    if (status < 0) return refused(handshake, BOOTSTRAP_NO_RESOURCE);
    handshake->state = HANDSHAKE_PROOF;
    return HANDSHAKE_STEP;
}

static enum handshake_event handle_proof(struct handshake *handshake, const uint8_t *proof)
{
    uint8_t expected[WEFT_HMAC_BYTES];
    if (make_proof(handshake, other_role(handshake), expected) < 0)
        return refused(handshake, BOOTSTRAP_NO_RESOURCE);
    if (!weft_bytes_equal_constant_time(proof, expected, sizeof expected))
        return refused(handshake, BOOTSTRAP_WRONG_SECRET);
    if (handshake->role == HANDSHAKE_ACCEPTER && put_proof(handshake) < 0)
        return refused(handshake, BOOTSTRAP_NO_RESOURCE);
    handshake->state = HANDSHAKE_OPEN;
    return HANDSHAKE_PROVEN;
}

static enum handshake_event handle_sealed(struct handshake *handshake, const uint8_t *frame,
                                        uint32_t body_bytes, struct handshake_frame *frame_out)
{
    const uint8_t *body = frame + HANDSHAKE_FRAME_BYTES;
    uint32_t bytes = body_bytes - WEFT_HMAC_BYTES;
    uint8_t expected[WEFT_HMAC_BYTES];
    if (make_mac(handshake, other_role(handshake), handshake->unsealed_count, frame, body, bytes, expected) <
        0)
        return refused(handshake, BOOTSTRAP_NO_RESOURCE);
    if (!weft_bytes_equal_constant_time(body + bytes, expected, sizeof expected))
        return refused(handshake, BOOTSTRAP_BAD_MAC);
    handshake->unsealed_count++;
    *frame_out = (struct handshake_frame){body, bytes, frame[1]};
    if (handshake->state == HANDSHAKE_CONNECTED) return HANDSHAKE_MESSAGE;
    handshake->state = HANDSHAKE_CONNECTED;
    return HANDSHAKE_PARAMETERS;
}

static enum handshake_event handle_refuse(struct handshake *handshake, uint8_t reason)
{
    handshake->state = HANDSHAKE_CLOSED;
    handshake->refused_by_peer = true;
    handshake->reason =
        reason > 0 && reason < BOOTSTRAP_REFUSALS ? (enum bootstrap_refusal)reason : BOOTSTRAP_MALFORMED;
    return HANDSHAKE_REFUSED;
}

/* Whether a frame of this kind and length is legal in the present state. 0: yes. */
static enum bootstrap_refusal check_frame(const struct handshake *handshake, const uint8_t *frame)
{
    static const enum frame_kind expected[] = {0, FRAME_HELLO, FRAME_PROOF, FRAME_PARAMETERS, FRAME_MESSAGE};
    uint32_t kind = frame[0], descriptors = frame[1], bytes = get_le16(frame + 2);
    bool sealed = kind == FRAME_PARAMETERS || kind == FRAME_MESSAGE;
    if (!sealed && descriptors > 0) return BOOTSTRAP_MALFORMED;
    if (kind == FRAME_REFUSE) return bytes == 1 ? 0 : BOOTSTRAP_MALFORMED;
    if (kind != expected[handshake->state]) return BOOTSTRAP_MALFORMED;
    if (kind == FRAME_HELLO) return bytes == HANDSHAKE_HELLO_BYTES ? 0 : BOOTSTRAP_MALFORMED;
    if (kind == FRAME_PROOF) return bytes == WEFT_HMAC_BYTES ? 0 : BOOTSTRAP_MALFORMED;
    if (descriptors > BOOTSTRAP_DESCRIPTORS_MAX) return BOOTSTRAP_DESCRIPTORS;
    return bytes >= WEFT_HMAC_BYTES && bytes <= WEFT_HMAC_BYTES + BOOTSTRAP_MESSAGE_BYTES_MAX
               ? 0
               : BOOTSTRAP_MALFORMED;
}

enum handshake_event handshake_consume(struct handshake *handshake, const uint8_t *data, size_t bytes,
                                    size_t *used_out, struct handshake_frame *frame_out)
{
    WEFT_ASSERT(handshake->out_bytes == 0);
    *used_out = 0;
    *frame_out = (struct handshake_frame){0};
    if (handshake->state == HANDSHAKE_CLOSED) return HANDSHAKE_REFUSED;
    if (bytes < HANDSHAKE_FRAME_BYTES) return HANDSHAKE_NEED_MORE;
    enum bootstrap_refusal reason = check_frame(handshake, data);
    if (reason) return refused(handshake, reason);
    uint32_t body_bytes = get_le16(data + 2);
    if (bytes < HANDSHAKE_FRAME_BYTES + body_bytes) return HANDSHAKE_NEED_MORE;
    *used_out = HANDSHAKE_FRAME_BYTES + body_bytes;
    const uint8_t *body = data + HANDSHAKE_FRAME_BYTES;
    switch ((enum frame_kind)data[0]) {
    case FRAME_HELLO: return handle_hello(handshake, body);
    case FRAME_PROOF: return handle_proof(handshake, body);
    case FRAME_REFUSE: return handle_refuse(handshake, body[0]);
    case FRAME_PARAMETERS:
    case FRAME_MESSAGE: return handle_sealed(handshake, data, body_bytes, frame_out);
    }
    return refused(handshake, BOOTSTRAP_MALFORMED);
}
