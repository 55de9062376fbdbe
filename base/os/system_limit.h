/* system_limit.h - which system limit was reached: a status has no space for its name and value.
 *
 * The function that reads errno records a sentence. The function that reports the status later reads it,
 * possibly on another thread. The process keeps only the last sentence. */
#ifndef WEFT_BASE_OS_SYSTEM_LIMIT_H
#define WEFT_BASE_OS_SYSTEM_LIMIT_H

#include "weft/status.h"

struct weft_error;

/* Records the sentence: limit, value, what to raise. Returns WEFT_ERR_LIMIT. Any thread. */
enum weft_status weft_limit_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Maps the errno of a failed creation of `what` to WEFT_ERR_NO_MEMORY, or to WEFT_ERR_LIMIT with a recorded
 * sentence. Any thread. */
enum weft_status weft_limit_status(const char *what, int reason);
/* The same, and sets the error to "TEXT: SENTENCE"; `format` and what follows are the text. Any thread. */
enum weft_status weft_limit_error(struct weft_error *error, const char *what, int reason, const char *format,
                                  ...) __attribute__((format(printf, 4, 5)));
/* The recorded sentence for WEFT_ERR_LIMIT, otherwise weft_status_text. Valid until this thread's next call.
 */
const char *weft_reason_text(enum weft_status status);

#endif
