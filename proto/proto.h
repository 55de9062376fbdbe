/* proto.h - messages between client and server: data header, control messages (control.proto through
 * protobuf-c), versions, limits, and proofs of the job secret. Encoding only.
 *
 * docs/wire.md is the specification; tests/proto has an independent decoder. Functions convert structs to
 * bytes, and bytes to checked structs. Bytes are untrusted until the checks here have passed. */
#ifndef WEFT_PROTO_H
#define WEFT_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/control.pb-c.h"
#include "proto/wire_limits.h"

/* Wire version: of the control frames and data messages of a job. Raised if an older reader would misread. A
 * process speaks the newest version and the one before; a job has one version (wire_version.c). */
#define WEFT_WIRE_VERSION 2
#define WEFT_WIRE_VERSION_OLDEST 1
/* Version field of a data header: only with a term. A job without copies has no terms. */
#define WEFT_WIRE_HEADER_VERSION 1
#define WEFT_WIRE_HEADER_VERSION_TERMS 2
#define WEFT_WIRE_GROUP_VERSION 1
#define WEFT_WIRE_MAGIC 0x31465457u /* "WTF1" as little-endian bytes: W T F 1 */

enum weft_wire_kind {
    WEFT_WIRE_PUSH_PULL = 1,  /* worker -> shard: contribution; requests the round's result */
    WEFT_WIRE_PUSH = 2,       /* contribution; the reply is a RESULT without payload */
    WEFT_WIRE_PULL = 3,       /* no payload; requests the values after `step` (0: the initial weights) */
    WEFT_WIRE_INIT = 4,       /* rank 0 -> shard: initial weights of a chunk (step 0) */
    WEFT_WIRE_RESULT = 5,     /* shard -> worker: status; payload if status is WEFT_OK and data was
                               * requested */
    WEFT_WIRE_STATE_PULL = 6, /* no payload; requests a state of the chunk (enum weft_wire_part) */
    WEFT_WIRE_STATE_INIT = 7, /* rank 0 -> shard: a state, before the first step */
    /* leader -> copy: what closed `step`: the dense sum if there is an optimiser, else the mean; no payload:
     * the step was skipped; else by `round`, enum weft_wire_change. Step 0: first weights or a state, `round`
     * is its part */
    WEFT_WIRE_REPLICATE = 8,
    WEFT_WIRE_REPLICATED = 9, /* copy -> leader: it holds that, or the status is the reason */
    /* leader -> new copy: a part of the chunk as it is after `step`; flags: enum weft_wire_copy_flag */
    WEFT_WIRE_COPY = 10,
    WEFT_WIRE_COPIED = 11, /* new copy -> leader: it has that part, or the status is the reason */
    WEFT_WIRE_PUSH_HOLD =
        12,               /* contribution; the shard holds the sum, and replies with its squares, one f64 */
    WEFT_WIRE_APPLY = 13, /* no payload; weight: factor of the held mean, round 1: NaN. Requests the
                           * values */
    /* leader -> copy: no payload; incarnation: hash of the values after `step`. If its values differ, the
     * copy answers REPLICATED with WEFT_ERR_DIVERGED; else it does not answer */
    WEFT_WIRE_COMPARE = 14,
};

/* State in the header's `round`: optimiser arrays in order, or the codec's residual. RESULT in COPY only: the
 * aggregate of the last round. */
enum weft_wire_part {
    WEFT_WIRE_PART_OPTIMIZER = 0,
    WEFT_WIRE_PART_CLOCKS = 11,  /* COPY: with consistency ssp and asp, struct shard_clock_counts */
    WEFT_WIRE_PART_VERDICT = 12, /* COPY: of a step with clip_norm, struct shard_verdict_last */
    WEFT_WIRE_PART_RESULT = 13,
    WEFT_WIRE_PART_WEIGHTS = 14, /* f32, whatever the dtype of results */
    WEFT_WIRE_PART_RESIDUAL = 15
};

/* `round` of a REPLICATE with step > 0. */
enum weft_wire_change {
    WEFT_WIRE_CHANGE_STEP = 0,    /* what closed the step */
    WEFT_WIRE_CHANGE_HELD = 1,    /* the sum of a step with clip_norm, which is not closed */
    WEFT_WIRE_CHANGE_VERDICT = 2, /* its factor, one f32, which closes it */
};

/* Flags of COPY. The weights are the last part, without payload if the chunk has none; the flags but BEFORE
 * are theirs. */
enum weft_wire_copy_flag {
    WEFT_WIRE_COPY_BEFORE = 1, /* the part is as it was before the last close, which may be undone */
    WEFT_WIRE_COPY_UNDO = 2,   /* parts with COPY_BEFORE precede */
    WEFT_WIRE_COPY_RESULT = 4, /* the last result may be requested again */
    WEFT_WIRE_COPY_FIRST = 8,  /* the chunk has first weights */
};

/* Kinds between the engines of shards. */
static inline bool weft_wire_is_between_shards(uint8_t kind)
{
    return (kind >= WEFT_WIRE_REPLICATE && kind <= WEFT_WIRE_COPIED) || kind == WEFT_WIRE_COMPARE;
}

/* Kinds that carry a gradient. */
static inline bool weft_wire_contributes(uint8_t kind)
{
    return kind == WEFT_WIRE_PUSH_PULL || kind == WEFT_WIRE_PUSH || kind == WEFT_WIRE_PUSH_HOLD;
}

/* Header of every data message between worker and shard: WEFT_WIRE_HEADER_BYTES on the wire, little endian,
 * offsets in docs/wire.md. Identity of a push: (job, incarnation, tensor, chunk, step). */
struct weft_wire_header {
    uint8_t kind;          /* enum weft_wire_kind */
    uint8_t codec;         /* enum weft_codec_id of the payload */
    uint8_t dtype;         /* dtype of dense payloads */
    uint8_t round;         /* round of the codec; STATE kinds: enum weft_wire_part */
    int32_t status;        /* RESULT: enum weft_status */
    uint64_t job;
    uint64_t incarnation;  /* the worker's; REPLICATE: the step that the chunk had closed before; COPY of the
                            * weights: a later step that was skipped, or 0 */
    uint32_t worker;       /* the worker's rank; REPLICATE with ssp and asp: the rank of the contribution */
    uint32_t epoch;
    uint32_t tensor;
    uint32_t chunk;
    uint64_t step;
    uint64_t payload_bytes;
    float lr;              /* from weft_step_begin; must be equal on all workers */
    float weight;          /* sample weight of this worker in this step, >= 0; COPY of the weights: 1: after
                            * PART_VERDICT */
    float weight_sum;      /* RESULT: sum over workers; codecs scale by 1 / weight_sum. A contribution with
                            * WEFT_WIRE_DECAY: weight decay of the step, >= 0; equal on all workers */
    uint32_t text_bytes;   /* RESULT with an error: bytes of the text after the header, <= 128 */
    int8_t loss_exponent;  /* contribution of f16 or bf16: the loss scale is 2 to this power, and the shard
                            * unscales. Else 0: the worker does */
    uint32_t term;         /* of the chunk's slot, <= WEFT_LIMIT_TERM; 0: the job has no copies */
    uint8_t flags;         /* contribution: WEFT_WIRE_MAY_SKIP ...; RESULT: WEFT_WIRE_FINITE */
    uint16_t skips;        /* request: steps that this worker has skipped, modulo WEFT_WIRE_SKIPS */
    uint32_t good;         /* request with skips > 0: last step of the tensor that was not skipped, low 32
                            * bits */
    uint32_t late_us;      /* RESULT of a push: time from this contribution to the last one of the round,
                            * us */
};
#define WEFT_WIRE_SKIPS 4096u
/* the step may be skipped after the shard has closed it: the shard must keep a copy */
#define WEFT_WIRE_MAY_SKIP 1u
#define WEFT_WIRE_CHECKED 2u    /* skip the step if the sum is not finite */
#define WEFT_WIRE_NOT_FINITE 4u /* no finite gradient: no payload; the step is skipped */
#define WEFT_WIRE_DECAY 8u      /* weight_sum replaces the weight decay of the shard's optimiser */
/* RESULT: no gradient of the round has a NaN or an infinity. Not set: the shard did not check. */
#define WEFT_WIRE_FINITE 2u
#define WEFT_WIRE_HEADER_BYTES 88
/* Header and text are together in the transport's message header. */
#define WEFT_WIRE_HEADER_BYTES_MAX (WEFT_WIRE_HEADER_BYTES + WEFT_LIMIT_RESULT_TEXT_BYTES)

/* Asserts that counts, indices and kind are in range. The caller appends text_bytes bytes of text. */
void weft_wire_encode(const struct weft_wire_header *header, uint8_t out[WEFT_WIRE_HEADER_BYTES]);
/* `bytes` is the length of header and text. WEFT_ERR_MALFORMED (length, magic, checksum, kind, limits, lr or
 * weight not finite), WEFT_ERR_VERSION; then header_out is not written. The text at data +
 * WEFT_WIRE_HEADER_BYTES has text_bytes bytes without NUL. The checksum does not cover it, and it may contain
 * any bytes: use weft_wire_text. */
enum weft_status weft_wire_decode(const uint8_t *data, size_t bytes, struct weft_wire_header *header_out);
/* The text of a decoded RESULT with NUL, control characters as '?'; "" if it has none. */
void weft_wire_text(const uint8_t *data, const struct weft_wire_header *header,
                    char out[WEFT_LIMIT_RESULT_TEXT_BYTES + 1]);

/* ---- wire versions (wire_version.c) ---- */
struct weft_wire_range {
    uint32_t oldest, newest; /* inclusive */
};
/* What this process speaks. limit: the newest version by its option job.wire_version; 0: no limit. */
struct weft_wire_range weft_wire_range_own(uint32_t limit);
struct weft_wire_range weft_wire_range_of_challenge(const Weft__Control__Challenge *challenge);
struct weft_wire_range weft_wire_range_of_hello(const Weft__Control__Hello *hello);
/* Sets the version fields. A process that speaks version 1 alone writes them as version 1 does. */
void weft_wire_range_challenge(struct weft_wire_range own, Weft__Control__Challenge *challenge);
void weft_wire_range_hello(struct weft_wire_range own, uint32_t version, Weft__Control__Hello *hello);
/* The newest version in both; 0: none. */
uint32_t weft_wire_range_common(struct weft_wire_range a, struct weft_wire_range b);
bool weft_wire_range_has(struct weft_wire_range range, uint32_t version);
/* "1" or "1 to 2". */
#define WEFT_WIRE_RANGE_TEXT_BYTES 32u
const char *weft_wire_range_text(struct weft_wire_range range, char out[WEFT_WIRE_RANGE_TEXT_BYTES]);
/* The version since which a message exists; what_out: what needs it, for sentences. Everything that a
 * capability of Hello announces has version 1. is_elastic: a lost worker does not end the job. */
uint32_t weft_wire_version_of_declare(const Weft__Control__Declare *declare, bool is_dense, bool is_elastic,
                                      const char **what_out);
uint32_t weft_wire_version_of_header(const struct weft_wire_header *header);
/* Sets the sentence why a job of `version` has no `what`, which needs a newer one: `process` spoke no newer
 * one. Returns WEFT_ERR_VERSION. */
enum weft_status weft_wire_version_refuse(const char *what, uint32_t needed, uint32_t version,
                                          const char *process, struct weft_error *error);

/* ---- message groups (wire_group.c): data messages of small tensors that travel as one ---- */
#define WEFT_WIRE_GROUP_MAGIC 0x31475457u /* "WTG1" as little-endian bytes: W T G 1 */
#define WEFT_WIRE_GROUP_HEADER_BYTES 32
enum weft_wire_group_kind {
    WEFT_WIRE_GROUP_REQUESTS = 1, /* worker -> shard: entries are requests */
    WEFT_WIRE_GROUP_RESULTS = 2,  /* shard -> worker: entries are RESULTs without a text */
    WEFT_WIRE_GROUP_REFUSED = 3,  /* shard -> worker: group `number` was not read; send its entries alone */
};
struct weft_wire_group {
    uint8_t kind;           /* enum weft_wire_group_kind */
    uint64_t job;
    uint32_t number;        /* chosen by the sender; REFUSED: that of the requests */
    uint32_t count;         /* entries */
    uint32_t payload_bytes; /* of all entries */
};
struct weft_wire_entry {
    uint8_t header[WEFT_WIRE_HEADER_BYTES];
    struct weft_wire_header decoded; /* of `header` */
    const uint8_t *payload;          /* (payload_bytes,) in the group's payload */
    size_t payload_bytes;
};
/* Asserts the limits. */
void weft_wire_group_encode(const struct weft_wire_group *group, uint8_t out[WEFT_WIRE_GROUP_HEADER_BYTES]);
/* WEFT_ERR_MALFORMED (length, magic, checksum, kind, limits), WEFT_ERR_VERSION; then group_out is not
 * written. */
enum weft_status weft_wire_group_decode(const uint8_t *data, size_t bytes,
                                        struct weft_wire_group *group_out);
/* Bytes of an entry in the group's payload. */
size_t weft_wire_group_entry_bytes(size_t payload_bytes);
/* Writes an entry at `at`, which has weft_wire_group_entry_bytes(payload_bytes) bytes. */
void weft_wire_group_put(uint8_t *at, const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload,
                         size_t payload_bytes);
/* Reads the entry at *at and moves *at behind it. Call while *at < bytes. Errors: those of weft_wire_decode,
 * and WEFT_ERR_MALFORMED for an entry that ends behind the payload. */
enum weft_status weft_wire_group_next(const uint8_t *payload, size_t bytes, size_t *at,
                                      struct weft_wire_entry *entry_out);

/* Control: one message per frame. */
/* Packs into memory of the env; free with weft_free_bytes. WEFT_SEAL_BYTES behind the message are free for
 * weft_seal_append. WEFT_ERR_LIMIT: the message breaks a limit of wire_limits.h. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_control_pack(struct weft_env *env, const Weft__Control__Control *message,
                                   uint8_t **data_out, size_t *bytes_out);
/* Chunks of a Declared as runs of equal ones. `endpoints` (count,) is memory for the runs. false: they do not
 * fit into WEFT_LIMIT_CANDIDATES runs; send the list. */
struct weft_chunk_runs {
    size_t count;
    Weft__Control__ChunkRun run[WEFT_LIMIT_CANDIDATES], *pointers[WEFT_LIMIT_CANDIDATES];
};
bool weft_chunk_runs_make(const Weft__Control__Chunk *chunks, size_t count, struct weft_chunk_runs *runs,
                          uint32_t *endpoints);
/* Decodes and checks every limit. Exactly one body is set. Runs of a Declared become its list of chunks.
 * Names contain no control characters; in texts these are replaced by '?'. Free with weft_control_free.
 * WEFT_ERR_MALFORMED, also without memory, and if decoding needs far more memory than a valid message of that
 * length. */
enum weft_status weft_control_unpack(struct weft_env *env, const uint8_t *data, size_t bytes,
                                     Weft__Control__Control **message_out);
void weft_control_free(struct weft_env *env, Weft__Control__Control *message);
/* Is the frame an Abort? A refusal before Welcome carries no MAC. */
bool weft_control_is_refusal(struct weft_env *env, const uint8_t *data, size_t bytes);

/* Records of the store of a job (Stored in control.proto), as weft_control_pack and weft_control_unpack. */
enum weft_status weft_stored_pack(struct weft_env *env, const Weft__Control__Stored *stored,
                                  uint8_t **data_out, size_t *bytes_out);
enum weft_status weft_stored_unpack(struct weft_env *env, const uint8_t *data, size_t bytes,
                                    Weft__Control__Stored **stored_out);
void weft_stored_free(struct weft_env *env, Weft__Control__Stored *stored); /* NULL has no effect */

/* A member that receives nothing for this time is cut off, and ends by its own clock; 0: the coordinator does
 * not announce how often it sends. Longer than the coordinator's own limit for a silent member. If the
 * coordinator can be replaced, the member then tries the candidates. */
static inline uint64_t weft_control_silence_limit_ns(const Weft__Control__Welcome *welcome)
{
    const uint64_t beats_ns = 3 * welcome->beat_ns;
    if (welcome->silence_ns > 0) return welcome->silence_ns;
    if (welcome->beat_ns == 0) return 0;
    return welcome->beat_ns + (welcome->heartbeat_ns > beats_ns ? welcome->heartbeat_ns : beats_ns);
}

/* proof = HMAC-SHA256(secret, purpose | 0 | nonce | 0 | job | 0 | name). `purpose` distinguishes the two
 * directions. WEFT_ERR_INVALID: name or job is longer than its limit. WEFT_ERR_NO_MEMORY. */
#define WEFT_PROOF_JOIN "weft-join"       /* member -> coordinator, over Challenge.nonce */
#define WEFT_PROOF_WELCOME "weft-welcome" /* coordinator -> member, over Hello.nonce */
#define WEFT_PROOF_BYTES 32
#define WEFT_NONCE_BYTES 16
/* Random bytes in the Welcome of one member; proof of its identity when it resumes (proto/resume.h). */
#define WEFT_RESUME_KEY_BYTES 16u
/* Random bytes, for a nonce or a resume key. */
void weft_nonce_draw(struct weft_env *env, uint8_t out[WEFT_NONCE_BYTES]);
enum weft_status weft_proof_make(const char *secret, const char *purpose,
                                 const uint8_t nonce[WEFT_NONCE_BYTES], const char *job, const char *name,
                                 uint8_t proof_out[WEFT_PROOF_BYTES]);
/* constant time */
bool weft_proof_check(const uint8_t *a, size_t a_bytes, const uint8_t b[WEFT_PROOF_BYTES]);

/* The token that HTTP clients beyond loopback send: 64 hex digits of HMAC-SHA256(secret, label). The secret
 * cannot be computed from it. WEFT_ERR_NO_MEMORY. */
#define WEFT_HTTP_TOKEN_BYTES (2 * WEFT_HMAC_BYTES + 1)
enum weft_status weft_http_token(const char *secret, char token_out[WEFT_HTTP_TOKEN_BYTES]);

/* Authentication of the control frames after the handshake (seal.c). One weft_seal per connection and side.
 * Order: weft_seal_challenge when the Challenge is sent or received, weft_seal_start when Hello is, then
 * append and check. Before start, append and check have no effect. A peer announces the version of the seal
 * in Challenge.seals and Hello.seals; 0: it has none. */
#define WEFT_SEAL_VERSION 1u
#define WEFT_SEAL_BYTES 16u
enum weft_seal_side { WEFT_SEAL_MEMBER = 1, WEFT_SEAL_COORDINATOR = 2 };
struct weft_seal {
    uint8_t challenge[WEFT_HMAC_BYTES]; /* digest of the Challenge's frame */
    uint8_t key[WEFT_HMAC_BYTES];
    uint64_t sent, received;            /* number of the next frame in each direction */
    enum weft_seal_side side;
    bool is_active;
};
/* The frames are the bytes as sent. secret NULL: none. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_seal_challenge(struct weft_seal *seal, const uint8_t *frame, size_t bytes);
enum weft_status weft_seal_start(struct weft_seal *seal, enum weft_seal_side side, const char *secret,
                                 const uint8_t *hello, size_t bytes);
/* Appends the MAC of the next frame to send; the memory has WEFT_SEAL_BYTES more. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_seal_append(struct weft_seal *seal, uint8_t *frame, size_t *bytes);
/* Removes the MAC of the next frame received. false: the frame is not the one that the peer sent next;
 * nothing is changed, and the connection must be closed. */
bool weft_seal_check(struct weft_seal *seal, const uint8_t *frame, size_t *bytes);
void weft_seal_wipe(struct weft_seal *seal);
/* What a member that was cut off reports about the coordinator; the time follows. */
#define WEFT_CUT_OFF_TEXT "it is stopped, its host is down or the network to it is cut: no message"
/* Why a frame was refused, for texts that begin with the peer. */
#define WEFT_SEAL_BROKEN_TEXT                                                                                \
    "a control frame failed its MAC: added, repeated, moved or changed on the way; find the relay or proxy"

uint64_t weft_bytes_hash(const void *data, size_t bytes); /* xxh3-64 */
/* xxh3-64 of f32 weights as they are in memory; shard and workers compare it (control WeightHash). */
uint64_t weft_weight_hash(const void *weights, size_t bytes);
/* The same hash of weights in parts: begin (NULL: no memory), add each part in order, end, which frees the
 * state (NULL: 0). */
void *weft_weight_hash_begin(void);
void weft_weight_hash_add(void *state, const void *part, size_t bytes);
uint64_t weft_weight_hash_end(void *state);
/* A chunk's term in the hash of a tensor; terms are added modulo 2^64. The term of chunk 0 is its weight
 * hash. */
uint64_t weft_chunk_hash(uint32_t index, const void *weights, size_t bytes);
/* XXH3-128 of the data, with the XXH3-64 of the head as seed, big endian: names the content of a file. */
#define WEFT_CONTENT_HASH_BYTES 16
void weft_content_hash(const void *head, size_t head_bytes, const void *data, size_t bytes,
                       uint8_t hash_out[WEFT_CONTENT_HASH_BYTES]);

/* Mode of a tensor; equal to enum weft_mode of weft.h. */
enum weft_wire_mode { WEFT_WIRE_MODE_SERVER = 1, WEFT_WIRE_MODE_ALL_REDUCE = 2 };

/* When a result of a tensor in server mode waits for other workers (Declare.consistency).
 *     bsp      a step closes when all workers have contributed; all get the same result
 *     ssp:S    a contribution is applied as it arrives; a result waits until no worker is over S behind
 *     asp      a contribution is applied as it arrives; a result never waits for another worker */
enum weft_consistency_kind { WEFT_CONSISTENCY_BSP = 0, WEFT_CONSISTENCY_SSP, WEFT_CONSISTENCY_ASP };
struct weft_consistency {
    enum weft_consistency_kind kind;
    uint32_t staleness; /* S of ssp */
};
#define WEFT_STALENESS_MAX 1000000u
/* Reads "", "bsp", "ssp:S" or "asp". WEFT_ERR_INVALID with a sentence: another text. */
enum weft_status weft_consistency_parse(const char *text, struct weft_consistency *out,
                                        struct weft_error *error);

/* 16-bit floats, which shards widen and round. */
static inline bool weft_dtype_is_half(uint32_t dtype)
{
    return dtype == WEFT_F16 || dtype == WEFT_BF16;
}
/* Checks which dtypes a tensor may have (tensor_dtypes.c). WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED. */
struct weft_tensor_dtypes {
    uint32_t dtype, pull_dtype; /* of gradients; of results, 0: the same */
    uint32_t mode;              /* enum weft_wire_mode */
    bool is_dense, has_optimizer;
    bool has_rounds; /* consistency bsp */
};
enum weft_status weft_tensor_dtypes_check(const struct weft_tensor_dtypes *tensor, struct weft_error *error);

/* "0.1.0": release of this build, for Challenge and Hello. */
const char *weft_proto_release(void);

#include "proto/resume.h" /* needs the types above */

#endif
