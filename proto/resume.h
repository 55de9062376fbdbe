/* resume.h - a control session that outlives its connections: counted frames, copies until the peer has
 * received them, and the proofs by which a member resumes. Both sides use the same struct. No I/O.
 *
 *     Welcome      weft_resume_begin: both sides count from here
 *     send         weft_resume_keep, then MAC and socket; without a connection only keep
 *     receive      weft_resume_count; an Ack: weft_resume_acknowledge
 *     lost         Challenge -> Resume -> Resumed, new MAC keys; weft_resume_acknowledge with the number of
 *                  the other side; then each kept frame again, in order
 *
 * A frame is neither lost nor doubled: a connection delivers a prefix of what was sent, its receiver counts
 * that prefix, and the sender continues behind it. An Ack is neither counted nor kept. */
#ifndef WEFT_PROTO_RESUME_H
#define WEFT_PROTO_RESUME_H

#include "proto/proto.h"

/* A packed message, shared by all connections that send it. One thread. */
struct weft_frame {
    struct weft_env *env;
    uint32_t references;
    int kind;         /* body_case of the message */
    bool is_question; /* a Heartbeat that requests a liveness check */
    size_t bytes;     /* of the message */
    uint8_t *data;    /* owned, (bytes + WEFT_SEAL_BYTES,) */
};
/* Packs into a frame with one reference. Statuses of weft_control_pack. */
enum weft_status weft_frame_pack(struct weft_env *env, const Weft__Control__Control *message,
                                 struct weft_frame **out);
/* Takes data that weft_control_pack made; NULL: no memory, and the data stays the caller's. */
struct weft_frame *weft_frame_of(struct weft_env *env, uint8_t *data, size_t bytes);
void weft_frame_release(struct weft_frame *frame); /* NULL has no effect */

struct weft_resume {
    struct weft_env *env;
    bool has_begun;         /* member: Go has been received */
    uint32_t epoch;         /* member: of the last Roster or Shrunk received; 0: none */
    bool is_possible;       /* both sides support it and all kept frames are here */
    uint32_t member;
    uint64_t incarnation;
    uint8_t key[WEFT_RESUME_KEY_BYTES];
    uint64_t period_ns;     /* a member resumes within this time */
    uint64_t sent, acked;   /* frames of this side: sent; received by the peer */
    uint64_t received;      /* frames of the peer */
    uint64_t reported;      /* `received` of the last Ack */
    size_t unreported_bytes, kept_bytes;
    struct weft_list kept;  /* frames acked + 1 ... sent */
};
/* Before Welcome: not possible, nothing is kept. */
void weft_resume_init(struct weft_resume *resume, struct weft_env *env);
/* When Welcome is sent or received. Without a key in it the session ends with its connection. */
void weft_resume_begin(struct weft_resume *resume, const Weft__Control__Welcome *welcome);
void weft_resume_fini(struct weft_resume *resume);

/* Counts a frame that is about to be sent, and keeps a reference. No effect if the session cannot resume, or
 * before Welcome. If memory is short or the peer acknowledges nothing, the session cannot resume any more. */
void weft_resume_keep(struct weft_resume *resume, struct weft_frame *frame);
/* Counts a received frame. Returns true if an Ack is due: after 16 frames or 64 KiB, at Leave and Close. */
bool weft_resume_count(struct weft_resume *resume, const Weft__Control__Control *message, size_t bytes);
/* The Ack to send now. */
void weft_resume_report(struct weft_resume *resume, Weft__Control__Ack *ack_out);
/* The peer has received so many frames. False if that is impossible. */
bool weft_resume_acknowledge(struct weft_resume *resume, uint64_t received);
/* Member: another coordinator has accepted this session, and both sides count from 0 again. Kept frames stay
 * if `stays` returns true, and are counted as sent. */
void weft_resume_restart(struct weft_resume *resume, bool (*stays)(const struct weft_frame *frame));
/* Calls send for each kept frame in order until it fails; returns its status. */
enum weft_status weft_resume_send_kept(struct weft_resume *resume,
                                       enum weft_status (*send)(void *context, struct weft_frame *frame),
                                       void *context);

/* Member: the answer to a Challenge. The proof is written to `proof`, the nonce is the caller's; both must
 * outlive the message. secret NULL: none. */
enum weft_status weft_resume_request(const struct weft_resume *resume, const char *secret,
                                     const ProtobufCBinaryData *challenge, uint8_t nonce[WEFT_NONCE_BYTES],
                                     uint8_t proof[WEFT_PROOF_BYTES], Weft__Control__Resume *request_out);
/* Coordinator: is this the member of this session, and can both continue? Changes nothing. */
bool weft_resume_check(const struct weft_resume *resume, const char *secret,
                       const uint8_t challenge[WEFT_NONCE_BYTES], const Weft__Control__Resume *request);
/* Coordinator: the answer, with its proof in `proof`. */
enum weft_status weft_resume_answer(const struct weft_resume *resume, const char *secret,
                                    const Weft__Control__Resume *request, uint8_t proof[WEFT_PROOF_BYTES],
                                    Weft__Control__Resumed *answer_out);
/* Member: the answer is that of the coordinator of this session. Acknowledges the frames that it names. */
bool weft_resume_accept(struct weft_resume *resume, const char *secret, const uint8_t nonce[WEFT_NONCE_BYTES],
                        const Weft__Control__Resumed *answer);

#endif
