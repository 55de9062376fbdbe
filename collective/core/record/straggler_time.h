/* straggler_time.h - the time that operations wait for ranks that have not begun them. */
#ifndef WEFT_COLLECTIVE_CORE_RECORD_STRAGGLER_TIME_H
#define WEFT_COLLECTIVE_CORE_RECORD_STRAGGLER_TIME_H

#include "collective/collective.h"

struct weft_coll;

/* the transfer time of a longer first message would count as waiting */
enum { STRAGGLER_MESSAGE_BYTES_MAX = 256 << 10 };
void straggler_wait_begin(struct weft_coll *coll);
void straggler_wait_end(struct weft_coll *coll); /* may be called if the operation does not wait */
/* a receive was posted. Returns whether it is a peer's first message */
bool straggler_recv_posted(struct weft_coll *coll, const struct weft_action *action);
void straggler_recv_arrived(struct weft_coll *coll); /* such a receive has completed */
/* us that the operation waited for stragglers; for its messages */
int32_t straggler_delay_us(const struct weft_coll *coll);
/* merges the delay in a peer's message. UNTRUSTED: it changes the counter only */
void straggler_merge_delay(struct weft_coll *coll, int32_t late_us);

#endif
