/* limit.h - which limit stood in the way: a status has no room for a name and a value.
 *
 * Where the system refuses for a limit, the place that knows errno notes a sentence; whoever prints a reason later, perhaps on
 * another thread and after several returns, asks for it. One sentence is kept for the process, the last. */
#ifndef WEFT_LIMIT_H
#define WEFT_LIMIT_H

#include "weft/status.h"

/* The sentence: the limit, its value, what to raise. Returns WEFT_ERR_LIMIT. Any thread. */
enum weft_status weft_limit_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `what` could not be made, for this errno: WEFT_ERR_NO_MEMORY, or WEFT_ERR_LIMIT with a note of descriptors, threads or shared memory. Any thread. */
enum weft_status weft_limit_of(const char *what, int reason);
/* In the place of weft_status_text, where there is nothing better to say: of WEFT_ERR_LIMIT the note. Valid until this thread asks again. */
const char *weft_reason_text(enum weft_status status);

#endif
