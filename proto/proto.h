/* proto.h - what client and server say to each other: the fixed data header, the control messages
 * (control.proto through protobuf-c), versions, limits and the job secret's proofs. docs/wire.md is the
 * specification; tests/proto has an independent slow decoder of it.
 *
 * Sans I/O: functions here turn structs into bytes and bytes into checked structs. Everything decoded is
 * hostile until it has passed the checks here. */
#ifndef WEFT_PROTO_H
#define WEFT_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/control.pb-c.h"
#include "proto/wire_limits.h"

/* Raised when an old reader would misread. A peer of another wire version is refused in words. */
#define WEFT_WIRE_VERSION 1
#define WEFT_WIRE_MAGIC 0x31465457u /* "WTF1" as little-endian bytes: W T F 1 */

enum weft_wire_kind {
    WEFT_WIRE_PUSH_PULL = 1, /* worker -> shard: contribution; wants the round's result */
    WEFT_WIRE_PUSH = 2,      /* contribution; answered by a RESULT without payload */
    WEFT_WIRE_PULL = 3,      /* no payload; wants the result of round `step` (0: the initial weights) */
    WEFT_WIRE_INIT = 4,      /* rank 0 -> shard: initial weights of a chunk (step 0) */
    WEFT_WIRE_RESULT = 5,    /* shard -> worker: status; payload when status is WEFT_OK and data was wanted */
    WEFT_WIRE_STATE_PULL = 6, /* no payload; wants a part of what the shard remembers of the chunk beside
                               * its values */
    WEFT_WIRE_STATE_INIT = 7, /* rank 0 -> shard: such a part, before the first step */
};

/* Which part, in the header's round: the optimiser's arrays in their order, or what the codec's sums still
 * owe. */
enum weft_wire_part { WEFT_WIRE_PART_OPTIMIZER = 0, WEFT_WIRE_PART_RESIDUAL = 15 };

/* The header of every data message between worker and shard; WEFT_WIRE_HEADER_BYTES on the wire, little
 * endian, offsets in docs/wire.md. Identity of a push: (job, incarnation, tensor, chunk, step). */
struct weft_wire_header {
    uint8_t kind;          /* enum weft_wire_kind */
    uint8_t codec;         /* enum weft_codec_id of the payload */
    uint8_t dtype;         /* of dense payloads */
    uint8_t round;         /* of the codec; of the STATE kinds enum weft_wire_part */
    int32_t status;        /* RESULT: enum weft_status */
    uint64_t job;
    uint64_t incarnation;  /* of the worker */
    uint32_t worker;       /* rank */
    uint32_t epoch;
    uint32_t tensor;
    uint32_t chunk;
    uint64_t step;
    uint64_t payload_bytes;
    float lr;              /* step_begin's; equal on all workers, disagreement is diagnosed */
    float weight;          /* sample weight of this worker in this step, >= 0 */
    float weight_sum;      /* RESULT: sum over workers (compressed modes scale by 1/weight_sum) */
    uint32_t text_bytes;   /* RESULT with an error: bytes of a sentence that follow the header, <= 128 */
    uint8_t flags;         /* of a contribution: WEFT_WIRE_MAY_SKIP ... */
    uint16_t skips;        /* of a request: steps that this worker has skipped, modulo WEFT_WIRE_SKIPS */
    uint32_t good;         /* of a request, if skips is not 0: the tensor's last step that was not skipped,
                            * low 32 bits */
    uint32_t late_us;      /* RESULT of a push: how long the shard waited for other contributions after
                            * this worker's, in us */
};
#define WEFT_WIRE_SKIPS 4096u
/* the step may be skipped after the shard has closed it: it must be able to take it back */
#define WEFT_WIRE_MAY_SKIP 1u
#define WEFT_WIRE_CHECKED 2u    /* a sum that is not finite skips the step */
#define WEFT_WIRE_NOT_FINITE 4u /* the gradient is not finite: no payload, and the step is skipped */
#define WEFT_WIRE_HEADER_BYTES 88
/* Header and sentence travel together in the transport's header of one message. */
#define WEFT_WIRE_HEADER_BYTES_MAX (WEFT_WIRE_HEADER_BYTES + WEFT_LIMIT_RESULT_TEXT_BYTES)

/* Our own bug if a count, index or kind is out of range (asserted). The caller puts text_bytes bytes of
 * text behind it. */
void weft_wire_encode(const struct weft_wire_header *header, uint8_t out[WEFT_WIRE_HEADER_BYTES]);
/* `bytes` is the whole of what came: header and text. WEFT_ERR_MALFORMED (length, magic, checksum, kind,
 * limits, a non-finite lr or weight), WEFT_ERR_VERSION; header_out untouched then. The text (text_bytes,
 * not terminated) is at data + WEFT_WIRE_HEADER_BYTES; it is not covered by the checksum and may hold any
 * bytes: weft_wire_text cleans it. */
enum weft_status weft_wire_decode(const uint8_t *data, size_t bytes, struct weft_wire_header *header_out);
/* The sentence of a decoded RESULT as a terminated string, unprintable bytes as '?'; "" when there is
 * none. */
void weft_wire_text(const uint8_t *data, const struct weft_wire_header *header,
                    char out[WEFT_LIMIT_RESULT_TEXT_BYTES + 1]);

/* Control: one message per frame. */
/* Packs into memory of env (free with weft_free_bytes). WEFT_ERR_LIMIT when the message breaks a limit of
 * wire_limits.h (its reader would refuse it), WEFT_ERR_NO_MEMORY. */
enum weft_status weft_control_pack(struct weft_env *env, const Weft__Control__Control *message,
                                   uint8_t **data_out, size_t *bytes_out);
/* Decodes and checks every limit; exactly one body is set; names hold no control characters, in texts they
 * are replaced by '?'. Free with weft_control_free. WEFT_ERR_MALFORMED (also when decoding would take far
 * more memory than an honest message of that length), WEFT_ERR_NO_MEMORY is not told apart from it. */
enum weft_status weft_control_unpack(struct weft_env *env, const uint8_t *data, size_t bytes,
                                     Weft__Control__Control **message_out);
void weft_control_free(struct weft_env *env, Weft__Control__Control *message);

/* proof = HMAC-SHA256(secret, purpose | 0 | nonce | 0 | job | 0 | name). `purpose` keeps the two
 * directions apart. WEFT_ERR_INVALID for a name or job longer than its limit, WEFT_ERR_NO_MEMORY. */
#define WEFT_PROOF_JOIN "weft-join"       /* member -> coordinator, over Challenge.nonce */
#define WEFT_PROOF_WELCOME "weft-welcome" /* coordinator -> member, over Hello.nonce */
#define WEFT_PROOF_BYTES 32
#define WEFT_NONCE_BYTES 16
enum weft_status weft_proof_make(const char *secret, const char *purpose,
                                 const uint8_t nonce[WEFT_NONCE_BYTES], const char *job, const char *name,
                                 uint8_t proof_out[WEFT_PROOF_BYTES]);
/* constant time */
bool weft_proof_check(const uint8_t *a, size_t a_bytes, const uint8_t b[WEFT_PROOF_BYTES]);

/* xxh3-64 of f32 weights as they lie in memory: compared between shard and workers (control WeightHash). */
uint64_t weft_weight_hash(const void *weights, size_t bytes);
/* A chunk's share in the hash of several: they are summed modulo 2^64. Chunk 0 alone is its weight hash. */
uint64_t weft_chunk_hash(uint32_t index, const void *weights, size_t bytes);

/* The mode of a tensor; pinned, equal to enum weft_mode of weft.h. */
enum weft_wire_mode { WEFT_WIRE_MODE_SERVER = 1, WEFT_WIRE_MODE_ALL_REDUCE = 2 };

/* "0.1.0": the release of this build, for Challenge and Hello. */
const char *weft_proto_release(void);

#endif
