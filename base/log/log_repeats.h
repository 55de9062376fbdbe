/* log_repeats.h - counts equal log lines, so that a repeated one does not fill the log.
 *
 * Of equal lines within WEFT_LOG_WINDOW_NS the first WEFT_LOG_SHOWN are written. The others are counted; one
 * line has the count once the window has passed: with the next line of any text, or at the end of the
 * process. A line that is due every 10 s is always written. Fixed memory, no system call; the caller
 * locks. */
#ifndef WEFT_BASE_LOG_LOG_REPEATS_H
#define WEFT_BASE_LOG_LOG_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"

#define WEFT_LOG_WINDOW_NS WEFT_SECONDS(10)
#define WEFT_LOG_SHOWN 3u
#define WEFT_LOG_REPEATS 16u /* different lines that are counted at once; the oldest is forgotten first */

struct weft_log_repeat {
    uint64_t hash;              /* of level, module and text; 0: not in use */
    uint64_t first_ns, last_ns; /* of the window; of the newest equal line */
    uint32_t shown, hidden;     /* lines that were written; that were counted instead */
    enum weft_log_level level;
    char module[32], text[240]; /* cut */
};

struct weft_log_repeats {
    struct weft_log_repeat entries[WEFT_LOG_REPEATS];
};

/* Writes a line about counted ones: "repeated 41 times in 10.0 s: text". */
typedef void weft_log_repeats_write(void *context, enum weft_log_level level, const char *module,
                                    const char *text);

/* Whether this line is to be written. First writes the counts whose window has passed. */
bool weft_log_repeats_add(struct weft_log_repeats *repeats, uint64_t now_ns, enum weft_log_level level,
                          const char *module, const char *text, weft_log_repeats_write *write, void *context);
/* Writes all counts, also of windows that have not passed. */
void weft_log_repeats_flush(struct weft_log_repeats *repeats, weft_log_repeats_write *write, void *context);

#endif
