/* header.h - the header of every message between the ranks of a group (layout: header.c). */
#ifndef WEFT_COLLECTIVE_CORE_HEADER_H
#define WEFT_COLLECTIVE_CORE_HEADER_H

#include "collective/collective.h"

#define COLL_HEADER_BYTES 80u
enum coll_message_type {
    COLL_MESSAGE_DATA = 1,
    /* status and text: the group has ended at the sender. count 1: an operation needs a rank that left */
    COLL_MESSAGE_FAIL = 2,
    COLL_MESSAGE_STATUS_REQUEST = 3, /* sequence: the operation in question */
    /* sequence: the operation in question. count: operations posted so far. chunk: the operation that the
     * sender waits in. root: the rank that it waits for there. lanes: its completed steps */
    COLL_MESSAGE_STATUS_REPLY = 4,
    /* the sender has left after `sequence` operations. count: its vote (enum onehost_vote) */
    COLL_MESSAGE_LEAVE = 5,
    COLL_MESSAGE_ONEHOST_SEGMENT = 6, /* payload: address of the sender's segment (onehost.h) */
    COLL_MESSAGE_ONEHOST_VOTE = 7,    /* status: WEFT_OK, or this rank cannot use the one-host path */
    /* cuts: cell; sequence: version of the cell; count: nanoseconds (retune.h) */
    COLL_MESSAGE_RETUNE_REPORT = 8,
    COLL_MESSAGE_RETUNE_TABLE = 9, /* sequence: version; cuts: cell; root: plan */
    COLL_MESSAGE_RETUNE_ACK = 10,  /* sequence: version; count: operations posted so far; status */
    /* sequence: version; count: first operation that uses the version; status */
    COLL_MESSAGE_RETUNE_COMMIT = 11,
};

struct coll_header {
    uint8_t type, kind, dtype, op, plan;
    /* version of the table that chose the plan (retune.h). 0: the cost model chose it */
    uint16_t plan_version;
    uint32_t group, epoch, rank, root, lanes, message; /* root of a kind without a root: the subject */
    /* of a data message: microseconds that the operation waited for stragglers at the sender
     * (straggler_time.c) */
    int32_t status;
    uint64_t sequence, count, chunk, piece_bytes, cuts;
};
void coll_header_write(uint8_t out[COLL_HEADER_BYTES], const struct coll_header *header);
/* The bytes are UNTRUSTED. Returns false if they are not a header of this version. */
bool coll_header_read(const uint8_t *data, size_t bytes, struct coll_header *header_out);
/* Of a kind without a root: the subject is WEFT_SUBJECT_ANY. */
static inline bool coll_header_has_any_subject(const struct coll_header *header)
{
    return (header->root & (WEFT_SUBJECT_ANY | WEFT_SUBJECT_BATCH)) == WEFT_SUBJECT_ANY;
}
/* Returns the name of the first field in which two calls differ, such as "the count"; NULL: none differs.
 * For `count` and `cuts` it returns coll_header_count and coll_header_cuts. */
extern const char coll_header_count[], coll_header_cuts[];
const char *coll_header_difference(const struct coll_header *a, const struct coll_header *b);
#define COLL_CALL_BYTES 256u /* output of group_describe_call */
/* Formats "all_reduce of 100 f32, sum, plan ring". group_describe_call adds the subject. */
void coll_header_describe(const struct coll_header *header, char *out, size_t out_bytes);

#endif
