/* call_digest.h - finds calls that differ between ranks and of which no message shows it. */
#ifndef WEFT_COLLECTIVE_CORE_CONTROL_CALL_DIGEST_H
#define WEFT_COLLECTIVE_CORE_CONTROL_CALL_DIGEST_H

#include "collective/collective.h"
#include "collective/core/header.h"

struct weft_group;
struct peer_state;

/* Sends to a rank, and recvs from it. */
struct coll_sendrecv_counts {
    uint64_t sent, received;
};

/* Digest of the operations with a root that one rank has called; part of its LEAVE. digest 0: none. */
struct call_digest_state {
    uint64_t digest, count, sequence; /* count, sequence, root, kind, dtype, op: of the last operation */
    uint32_t root;
    uint8_t kind, dtype, op;
};
struct call_digest {
    uint64_t next; /* sequence of the last operation with a root, plus one. 0: none */
    struct call_digest_state last;
};
/* Values of `lanes` in a LEAVE. 0: the sender is an older release without a digest. NO_PAIR_COUNTS: the
 * counts of sends and recvs are not valid. */
enum { CALL_DIGEST_VERSION = 1, CALL_DIGEST_NO_PAIR_COUNTS = 2 };

/* counts an operation with a root, once */
void call_digest_add(struct weft_group *group, const struct coll_header *called);
/* counts a send or recv by messages */
void sendrecv_count_add(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank);
void sendrecv_count_remove(struct weft_group *group, uint32_t rank); /* for a cancelled recv */
/* into the LEAVE to `rank` */
void call_digest_write(const struct weft_group *group, uint32_t rank, struct coll_header *header);
/* from the LEAVE of another rank */
void call_digest_read(struct peer_state *peer_state, const struct coll_header *header);
/* `rank` has left and sent more than this rank received */
bool peer_has_unreceived_sends(const struct weft_group *group, uint32_t rank);

#endif
