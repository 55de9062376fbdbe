/* elastic.h - changes of membership, and the comparisons at the end of a step: struct client_elastic. */
#ifndef WEFT_CLIENT_ELASTIC_ELASTIC_H
#define WEFT_CLIENT_ELASTIC_ELASTIC_H

#include <stdint.h>

#include "client/elastic/step_compare.h"
#include "weft/weft.h"

struct weft_session;

struct client_elastic {
    struct client_compare compare; /* the caller's thread */
};

/* Registers the folder with the session. */
void client_elastic_init(struct weft_session *session, struct client_elastic *elastic);
void client_elastic_free(struct weft_session *session);

/* Net thread: a member is lost, and the job may go on as `epoch`. */
void client_leave_epoch(struct weft_session *session, uint32_t epoch, const char *text);
/* Net thread: a newcomer waits; the ranks agree on it by the vote at the end of a step. */
void client_newcomer_announced(struct weft_session *session, uint32_t epoch, const char *text);
/* Caller's thread, the epoch has ended, no request open: agrees with the other ranks and installs the new
 * membership. committed: the last step that this rank knows to be good; *committed_out: the last step that
 * is good on all ranks. Blocks up to the deadline. */
enum weft_status client_shrink(struct weft_session *session, uint64_t committed, uint64_t *committed_out);
/* Caller's thread: reads the members of the new epoch, and lets the engine make their group. */
enum weft_status client_enter_epoch(struct weft_session *session, uint64_t until_ns);
/* Caller's thread: completes the step whose results are still arriving (step.c). */
enum weft_status client_step_deliver(struct weft_session *session);
/* weft_finalize: waits for results that are still arriving, until the deadline at most. */
void client_delivery_finish(struct weft_session *session, uint64_t until_ns);
/* weft_finalize: writes the report of client.exposed_report, if that is set (exposed_report.c). */
void client_exposed_report(struct weft_session *session);
/* Caller's thread: largest step count of a codec of this rank. After ranks have joined, all ranks count on
 * from the largest count of all (epoch_change.codec_steps), because some codecs draw random numbers by it. */
uint64_t client_codecs_steps_max(struct weft_session *session);
/* Between steps: scales the residuals of codecs to the number of ranks, and sets their counts to
 * epoch_change.codec_steps. */
void client_codecs_set_membership(struct weft_session *session);

#endif
