/* wire_limits.h - the bound of everything that comes from another process. Exceeding one is
 * WEFT_ERR_MALFORMED (hostile or broken) at the decoder, or a clear sentence at the caller. */
#ifndef WEFT_PROTO_LIMITS_H
#define WEFT_PROTO_LIMITS_H

#define WEFT_LIMIT_WORKERS 4096u
#define WEFT_RING_HOST_BYTES 12u          /* of a host in LinkCost.ring */
#define WEFT_RUNS_BYTES 256u              /* of LinkCost.runs, if it is there */
#define WEFT_LIMIT_SHARDS 1024u
#define WEFT_LIMIT_ENGINES 64u            /* endpoints of one member */
#define WEFT_LIMIT_ENDPOINTS ((WEFT_LIMIT_WORKERS + WEFT_LIMIT_SHARDS) * WEFT_LIMIT_ENGINES)
#define WEFT_LIMIT_TENSORS 65536u
#define WEFT_LIMIT_DIMS 8u                /* of one tensor */
#define WEFT_LIMIT_CHUNKS 65536u          /* of one tensor */
#define WEFT_LIMIT_CANDIDATES 8u          /* codecs that a tensor chooses from, dense among them */
#define WEFT_LIMIT_TENSOR_ELEMS (1ull << 32)
#define WEFT_LIMIT_CHUNK_BYTES_MIN 1024u  /* cut size of a declaration */
#define WEFT_LIMIT_CHUNK_BYTES (1ull << 36)
#define WEFT_LIMIT_PAYLOAD_BYTES (1ull << 36) /* of one data message */
#define WEFT_LIMIT_CODEC_ID 15u           /* highest codec number a header may carry */
#define WEFT_LIMIT_ROUND 15u              /* highest codec round a header may carry */
#define WEFT_LIMIT_RESULT_TEXT_BYTES 128u /* sentence behind the header of a failed RESULT */
#define WEFT_LIMIT_NAME_BYTES 255u
#define WEFT_LIMIT_TEXT_BYTES 1000u
#define WEFT_LIMIT_ADDRESS_BYTES 4096u
#define WEFT_LIMIT_FRAME_BYTES (8u << 20)
#define WEFT_LIMIT_HELLO_BYTES (64u << 10) /* a frame from a connection that has not joined */
#define WEFT_LIMIT_STATUS_BYTES (4u << 20)

#endif
