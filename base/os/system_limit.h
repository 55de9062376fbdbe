/* system_limit.h - which limit stood in the way: a status has no room for a name and a value.
 *
 * The function that reads errno records a sentence. The function that later reports the status reads it
 * back, possibly on another thread. The process keeps one sentence, the last. */
#ifndef WEFT_BASE_OS_SYSTEM_LIMIT_H
#define WEFT_BASE_OS_SYSTEM_LIMIT_H

#include "weft/status.h"

/* Records the sentence: the limit, its value, what to raise. Returns WEFT_ERR_LIMIT. Any thread. */
enum weft_status weft_limit_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Maps the errno of a failed creation of `what`: WEFT_ERR_NO_MEMORY, or WEFT_ERR_LIMIT with a recorded
 * sentence. Any thread. */
enum weft_status weft_limit_status(const char *what, int reason);
/* The recorded sentence for WEFT_ERR_LIMIT, else weft_status_text. Valid until this thread's next call. */
const char *weft_reason_text(enum weft_status status);

#endif
