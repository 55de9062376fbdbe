/* resume.c - see resume.h.
 *
 *     proof = HMAC-SHA256(secret, label 0 nonce of the other side, key of Welcome, member, incarnation,
 *                         received)
 *
 * The secret authenticates; the key of Welcome binds the proof to one member of one coordinator. Without a
 * secret the key alone keeps the processes of a host from resuming each other's sessions by mistake. */
#include <string.h>

#include "proto/resume.h"

#define ACK_FRAMES 16u
#define ACK_BYTES ((size_t)64 << 10)
#define KEPT_BYTES_MAX \
    (4 * (size_t)WEFT_LIMIT_FRAME_BYTES)    /* as base/net bounds what a slow peer has not read */
#define PERIOD_NS_MAX WEFT_SECONDS(600)     /* as server.resume */
#define REQUEST_LABEL "weft control resume" /* sizeof includes the zero byte that ends each label */
#define ANSWER_LABEL "weft control resumed"

struct kept_frame {
    struct weft_list link;
    struct weft_frame *frame; /* one reference */
};

/* ---- frames ---- */

struct weft_frame *weft_frame_of(struct weft_env *env, uint8_t *data, size_t bytes)
{
    struct weft_frame *frame = weft_alloc_bytes(env, sizeof *frame);
    if (frame) *frame = (struct weft_frame){.env = env, .references = 1, .bytes = bytes, .data = data};
    return frame;
}

enum weft_status weft_frame_pack(struct weft_env *env, const Weft__Control__Control *message,
                                 struct weft_frame **out)
{
    uint8_t *data;
    size_t bytes;
    WEFT_TRY(weft_control_pack(env, message, &data, &bytes));
    *out = weft_frame_of(env, data, bytes);
    if (*out) {
        (*out)->kind = (int)message->body_case;
        (*out)->is_question =
            message->body_case == WEFT__CONTROL__CONTROL__BODY_HEARTBEAT && message->heartbeat->ask;
        return WEFT_OK;
    }
    weft_free_bytes(env, data);
    return WEFT_ERR_NO_MEMORY;
}

void weft_frame_release(struct weft_frame *frame)
{
    if (!frame || --frame->references > 0) return;
    weft_free_bytes(frame->env, frame->data);
    weft_free_bytes(frame->env, frame);
}

/* ---- counting and keeping ---- */

void weft_resume_init(struct weft_resume *resume, struct weft_env *env)
{
    memset(resume, 0, sizeof *resume);
    resume->env = env;
    weft_list_init(&resume->kept);
}

void weft_resume_begin(struct weft_resume *resume, const Weft__Control__Welcome *welcome)
{
    resume->is_possible = welcome->resume_key.len == WEFT_RESUME_KEY_BYTES && welcome->resume_ns > 0;
    if (!resume->is_possible) return;
    memcpy(resume->key, welcome->resume_key.data, WEFT_RESUME_KEY_BYTES);
    resume->period_ns = welcome->resume_ns < PERIOD_NS_MAX ? welcome->resume_ns : PERIOD_NS_MAX;
    resume->member = welcome->member;
    resume->incarnation = welcome->incarnation;
}

static void drop(struct weft_resume *resume, struct kept_frame *kept)
{
    weft_list_remove(&kept->link);
    resume->kept_bytes -= kept->frame->bytes;
    weft_frame_release(kept->frame);
    weft_free_bytes(resume->env, kept);
}

static void drop_first(struct weft_resume *resume)
{
    drop(resume, weft_list_first(&resume->kept, struct kept_frame, link));
}

static void abandon(struct weft_resume *resume)
{
    resume->is_possible = false;
    while (!weft_list_empty(&resume->kept)) drop_first(resume);
}

void weft_resume_fini(struct weft_resume *resume)
{
    if (!resume->env) return;
    abandon(resume);
    weft_wipe(resume->key, sizeof resume->key);
}

void weft_resume_keep(struct weft_resume *resume, struct weft_frame *frame)
{
    if (!resume->is_possible) return;
    struct kept_frame *kept = weft_alloc_bytes(resume->env, sizeof *kept);
    if (!kept || resume->kept_bytes + frame->bytes > KEPT_BYTES_MAX) {
        weft_free_bytes(resume->env, kept);
        abandon(resume);
        return;
    }
    frame->references++;
    kept->frame = frame;
    weft_list_append(&resume->kept, &kept->link);
    resume->kept_bytes += frame->bytes;
    resume->sent++;
}

bool weft_resume_count(struct weft_resume *resume, const Weft__Control__Control *message, size_t bytes)
{
    if (!resume->is_possible) return false;
    resume->received++;
    resume->unreported_bytes += bytes;
    return resume->received - resume->reported >= ACK_FRAMES || resume->unreported_bytes >= ACK_BYTES ||
           message->body_case == WEFT__CONTROL__CONTROL__BODY_LEAVE ||
           message->body_case == WEFT__CONTROL__CONTROL__BODY_CLOSE;
}

void weft_resume_report(struct weft_resume *resume, Weft__Control__Ack *ack_out)
{
    weft__control__ack__init(ack_out);
    ack_out->received = resume->reported = resume->received;
    resume->unreported_bytes = 0;
}

void weft_resume_restart(struct weft_resume *resume, bool (*stays)(const struct weft_frame *frame))
{
    struct weft_list *node, *spare;
    resume->sent = resume->acked = resume->received = resume->reported = 0;
    resume->unreported_bytes = 0;
    weft_list_foreach (node, spare, &resume->kept) {
        struct kept_frame *kept = weft_container_of(node, struct kept_frame, link);
        if (stays(kept->frame)) resume->sent++;
        else drop(resume, kept);
    }
}

bool weft_resume_acknowledge(struct weft_resume *resume, uint64_t received)
{
    if (!resume->is_possible) return true; /* nothing is kept */
    if (received < resume->acked || received > resume->sent) return false;
    for (; resume->acked < received; resume->acked++) drop_first(resume);
    return true;
}

enum weft_status weft_resume_send_kept(struct weft_resume *resume,
                                       enum weft_status (*send)(void *context, struct weft_frame *frame),
                                       void *context)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &resume->kept)
        WEFT_TRY(send(context, weft_container_of(node, struct kept_frame, link)->frame));
    return WEFT_OK;
}

/* ---- proofs ---- */

static enum weft_status make_proof(const struct weft_resume *resume, const char *secret,
                                   struct weft_bytes_view label, const uint8_t nonce[WEFT_NONCE_BYTES],
                                   uint64_t received, uint8_t proof_out[WEFT_PROOF_BYTES])
{
    uint8_t numbers[20];
    put_le32(numbers, resume->member);
    put_le64(numbers + 4, resume->incarnation);
    put_le64(numbers + 12, received);
    const struct weft_bytes_view parts[] = {
        label, {nonce, WEFT_NONCE_BYTES}, {resume->key, sizeof resume->key}, {numbers, sizeof numbers}};
    return weft_hmac_sha256(secret, secret ? strlen(secret) : 0, parts, sizeof parts / sizeof parts[0],
                            proof_out);
}

enum weft_status weft_resume_request(const struct weft_resume *resume, const char *secret,
                                     const ProtobufCBinaryData *challenge, uint8_t nonce[WEFT_NONCE_BYTES],
                                     uint8_t proof[WEFT_PROOF_BYTES], Weft__Control__Resume *request_out)
{
    weft__control__resume__init(request_out);
    request_out->member = resume->member;
    request_out->incarnation = resume->incarnation;
    request_out->received = resume->received;
    request_out->has_begun = resume->has_begun;
    request_out->epoch = resume->epoch;
    request_out->nonce = (ProtobufCBinaryData){WEFT_NONCE_BYTES, nonce};
    request_out->proof = (ProtobufCBinaryData){WEFT_PROOF_BYTES, proof};
    if (challenge->len != WEFT_NONCE_BYTES) return WEFT_ERR_MALFORMED;
    return make_proof(resume, secret, (struct weft_bytes_view){REQUEST_LABEL, sizeof REQUEST_LABEL},
                      challenge->data, resume->received, proof);
}

bool weft_resume_check(const struct weft_resume *resume, const char *secret,
                       const uint8_t challenge[WEFT_NONCE_BYTES], const Weft__Control__Resume *request)
{
    uint8_t expected[WEFT_PROOF_BYTES];
    if (!resume->is_possible || request->member != resume->member ||
        request->incarnation != resume->incarnation || request->received < resume->acked ||
        request->received > resume->sent)
        return false;
    return make_proof(resume, secret, (struct weft_bytes_view){REQUEST_LABEL, sizeof REQUEST_LABEL},
                      challenge, request->received, expected) == WEFT_OK &&
           weft_proof_check(request->proof.data, request->proof.len, expected);
}

enum weft_status weft_resume_answer(const struct weft_resume *resume, const char *secret,
                                    const Weft__Control__Resume *request, uint8_t proof[WEFT_PROOF_BYTES],
                                    Weft__Control__Resumed *answer_out)
{
    weft__control__resumed__init(answer_out);
    answer_out->received = resume->received;
    answer_out->proof = (ProtobufCBinaryData){WEFT_PROOF_BYTES, proof};
    return make_proof(resume, secret, (struct weft_bytes_view){ANSWER_LABEL, sizeof ANSWER_LABEL},
                      request->nonce.data, resume->received, proof);
}

bool weft_resume_accept(struct weft_resume *resume, const char *secret, const uint8_t nonce[WEFT_NONCE_BYTES],
                        const Weft__Control__Resumed *answer)
{
    uint8_t expected[WEFT_PROOF_BYTES];
    return make_proof(resume, secret, (struct weft_bytes_view){ANSWER_LABEL, sizeof ANSWER_LABEL}, nonce,
                      answer->received, expected) == WEFT_OK &&
           weft_proof_check(answer->proof.data, answer->proof.len, expected) &&
           weft_resume_acknowledge(resume, answer->received);
}
