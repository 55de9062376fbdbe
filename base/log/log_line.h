/* log_line.h - one log line as text or as a JSON object. Formats into the caller's memory; no system call. */
#ifndef WEFT_BASE_LOG_LOG_LINE_H
#define WEFT_BASE_LOG_LOG_LINE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/env.h"

/* Holds every line: a text of 1,000 bytes with an escape of 6 bytes for each, and the other keys. */
#define WEFT_LOG_LINE_BYTES 8192u

/* The process that logs, for the keys of JSON. */
struct weft_log_source {
    char job[256];    /* "": unknown */
    const char *role; /* "rank" or "shard"; static; NULL: unknown */
    uint32_t index;
};

struct weft_log_line {
    struct timespec time; /* since 1970 */
    enum weft_log_level level;
    const char *module, *text;
};

/* Writes the line with its newline and a NUL; returns its length without the NUL. out: WEFT_LOG_LINE_BYTES.
 *
 *     text   2026-11-21 10:00:00.123 warn transport: text          (local time)
 *     JSON   {"time":"2026-11-21T09:00:00.123Z","level":"warn","module":"transport","job":"a","rank":3,
 *             "text":"text"}                                       (UTC; job, rank and shard if known) */
size_t weft_log_line_format(const struct weft_log_line *line, enum weft_log_format format,
                            const struct weft_log_source *source, char out[WEFT_LOG_LINE_BYTES]);

#endif
