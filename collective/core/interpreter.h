/* interpreter.h - runs the steps of an operation. */
#ifndef WEFT_COLLECTIVE_CORE_INTERPRETER_H
#define WEFT_COLLECTIVE_CORE_INTERPRETER_H

#include "collective/collective.h"
#include "collective/core/header.h"

struct weft_coll;
struct weft_group;

void coll_advance(struct weft_coll *coll, size_t *budget);
bool coll_scale_input(struct weft_coll *coll, size_t *budget); /* runs before the first step; true: done */
bool coll_is_complete(const struct weft_coll *coll);
void coll_abort(struct weft_coll *coll, enum weft_status status, const char *text);
/* Returns whether a message of the operation has matched. */
bool coll_has_received(const struct weft_coll *coll);
/* Returns the rank that the oldest waiting step waits for. false: none. */
bool coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);
/* "operation 12"; "a send" or "a recv" without a number */
const char *coll_title(const struct weft_coll *coll, uint64_t sequence, char out[48]);
/* Ends the group with WEFT_ERR_MISMATCH: `peer` called another operation. own: this rank's call, of `coll`
 * or of an operation that completed here before the peers called it. */
void coll_report_mismatch(struct weft_coll *coll, const struct coll_header *own, uint32_t peer,
                          const struct coll_header *theirs, const char *what);
/* Ends the group: `peer` and this rank expect different lengths of a piece, in bytes. */
void coll_report_lengths(struct weft_coll *coll, uint32_t peer, bool peer_sends, uint64_t sent,
                         uint64_t expected);

#endif
