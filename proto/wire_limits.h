/* wire_limits.h - limits of everything that another process sends. A decoder returns WEFT_ERR_MALFORMED for
 * larger values. */
#ifndef WEFT_PROTO_LIMITS_H
#define WEFT_PROTO_LIMITS_H

#define WEFT_LIMIT_WORKERS 4096u
#define WEFT_RING_HOST_BYTES 12u          /* bytes per host in LinkCost.ring */
#define WEFT_RUNS_BYTES 256u              /* bytes of LinkCost.runs if present */
#define WEFT_LIMIT_CALIBRATION_BYTES 1024u /* bytes of LinkCost.calibration, in every version of the blob */
#define WEFT_LIMIT_SHARDS 1024u
#define WEFT_LIMIT_ADDED_SHARDS 64u       /* that a job admits while it runs */
#define WEFT_LIMIT_ENGINES 64u            /* endpoints of one member */
#define WEFT_LIMIT_ENDPOINTS ((WEFT_LIMIT_WORKERS + WEFT_LIMIT_SHARDS) * WEFT_LIMIT_ENGINES)
#define WEFT_LIMIT_TENSORS 65536u
#define WEFT_LIMIT_DIMS 8u                /* per tensor */
#define WEFT_LIMIT_CHUNKS 65536u          /* per tensor */
#define WEFT_LIMIT_CANDIDATES 8u          /* codecs that a tensor chooses from, with dense */
#define WEFT_LIMIT_TENSOR_ELEMS (1ull << 32)
#define WEFT_LIMIT_CHUNK_BYTES_MIN 1024u  /* chunk_bytes of a declaration */
#define WEFT_LIMIT_CHUNK_BYTES (1ull << 36)
#define WEFT_LIMIT_PAYLOAD_BYTES (1ull << 36) /* per data message */
#define WEFT_LIMIT_GROUP_BYTES (64u << 10) /* payload of a message group */
#define WEFT_LIMIT_GROUP_ENTRIES 256u     /* messages in a group */
#define WEFT_LIMIT_CODEC_ID 15u           /* largest codec number in a header */
#define WEFT_LIMIT_ROUND 15u              /* largest codec round in a header */
#define WEFT_LIMIT_LOSS_EXPONENT 60       /* of the loss scale in a header, up or down */
#define WEFT_LIMIT_TERM ((1u << 24) - 1)  /* largest term of a slot */
#define WEFT_LIMIT_SLOTS 4096u            /* per job */
#define WEFT_LIMIT_COPIES 1u              /* of a slot */
#define WEFT_LIMIT_RESULT_TEXT_BYTES 128u /* text after the header of a failed RESULT */
#define WEFT_LIMIT_NAME_BYTES 255u
#define WEFT_LIMIT_HOST_FINDINGS 16u /* of one HostHealth */
#define WEFT_LIMIT_REPORT_LINKS 4u /* members in a Report to which a worker has sent most bytes */
#define WEFT_LIMIT_TEXT_BYTES 1000u
#define WEFT_LIMIT_ADDRESS_BYTES 4096u
#define WEFT_LIMIT_FRAME_BYTES (8u << 20) /* without the MAC behind it */
#define WEFT_LIMIT_SNAP_PIECES 256u       /* of one SnapPieces */
#define WEFT_LIMIT_SNAP_RANGES 2048u      /* of one piece */
#define WEFT_LIMIT_SNAP_PARTS 9u          /* values, states, residual of a chunk */
#define WEFT_LIMIT_SNAP_CHAIN 8u          /* pieces that a piece depends on */
#define WEFT_LIMIT_SNAP_PIECE_BYTES (16u << 20)
#define WEFT_LIMIT_SNAP_DATA_BYTES (4u << 20)   /* bytes of a worker's part in one message */
#define WEFT_LIMIT_SNAP_PART_BYTES (1ull << 40) /* of a worker */
#define WEFT_SNAP_NAME_BYTES 16u
#define WEFT_LIMIT_HELLO_BYTES (64u << 10) /* frame of a connection that has not sent Hello */
#define WEFT_LIMIT_STATUS_BYTES (4u << 20)

#endif
