/* announcement.h - the message by which a rank calls the other members of a group that weft_comm_create makes
 * (layout: announcement.c). */
#ifndef WEFT_CLIENT_COMM_ANNOUNCEMENT_H
#define WEFT_CLIENT_COMM_ANNOUNCEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define ANNOUNCEMENT_BYTES_MAX 256u
#define ANNOUNCEMENT_LISTED_MAX 54u /* members in the message, for the sentence of a mismatch */

struct client_announcement {
    struct weft_list link;    /* of one that arrived before this rank's own call */
    uint32_t peer_id;         /* endpoint that sent it; known to the transport */
    uint32_t epoch, rank;     /* membership; rank of the sender in the job */
    uint32_t next_id;         /* ids below are in use at the sender */
    uint32_t ranks, listed;   /* members of the group; those of them in `members` */
    uint64_t tag, hash;       /* hash: of all members, in their order */
    uint32_t members[ANNOUNCEMENT_LISTED_MAX];
};

/* Sets ranks, hash and the listed members. members: (ranks,). */
void announcement_set_members(struct client_announcement *announcement, const uint32_t *members,
                              uint32_t ranks);
/* Writes the message; returns its bytes. */
uint32_t announcement_write(const struct client_announcement *announcement,
                            uint8_t out[ANNOUNCEMENT_BYTES_MAX]);
/* The bytes are UNTRUSTED. Returns false if they are no announcement of this version. */
bool announcement_read(const uint8_t *data, size_t bytes, struct client_announcement *announcement_out);
/* Whether the two calls make the same group. */
bool announcement_matches(const struct client_announcement *a, const struct client_announcement *b);
/* Formats how the call of another rank differs from this rank's: "names 3 ranks, this rank 4". */
void announcement_describe_difference(const struct client_announcement *theirs,
                                      const struct client_announcement *mine, char *out, size_t out_bytes);

#endif
