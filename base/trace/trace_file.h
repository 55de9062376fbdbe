/* trace_file.h - writes the operations of an endpoint, or of NCCL, to a file for Perfetto and
 * chrome://tracing. Used by one thread at a time.
 *
 * The file is a JSON array, one object per line, written through a fixed buffer. If a write fails or the
 * file reaches its limit, one line is logged and the job continues without a trace. close ends the array;
 * viewers also accept a file without its end. */
#ifndef WEFT_BASE_TRACE_TRACE_FILE_H
#define WEFT_BASE_TRACE_TRACE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "weft/status.h"

#define WEFT_TRACE_NO_PEER UINT32_MAX

struct weft_trace;

/* %p, %h, %e in the pattern become process id, host name and `id`. Without any of them "-ID" is inserted
 * before the suffix, because two endpoints must not share a file. `title` names the source, such as
 * "endpoint 3 tcp". NULL: the file cannot be opened, which is logged. */
struct weft_trace *weft_trace_open(struct weft_env *env, const char *pattern, uint64_t limit_bytes,
                                   uint32_t id, const char *title);
void weft_trace_flush(struct weft_trace *trace); /* writes what is buffered */
void weft_trace_close(struct weft_trace *trace); /* NULL is fine */

struct weft_trace_span {
    const char *name;          /* "send", "recv", ... */
    uint64_t begin_ns, end_ns; /* env clock */
    uint32_t peer_id;
    uint64_t tag;
    size_t bytes;
    enum weft_status status;
    uint64_t queue_ns;      /* part of the span before the transfer could begin */
    uint64_t completion_ns; /* part of the span between completion and its delivery */
};
void weft_trace_span(struct weft_trace *trace, const struct weft_trace_span *span);
/* A span with arguments of its own: `arguments` is the inside of a JSON object, such as "\"bytes\":8", and
 * spans of one `thread` are shown together. */
void weft_trace_range(struct weft_trace *trace, const char *name, const char *category, uint32_t thread,
                      uint64_t begin_ns, uint64_t end_ns, const char *arguments);
/* A period of the endpoint: "sleep". */
void weft_trace_state(struct weft_trace *trace, const char *name, uint64_t begin_ns, uint64_t end_ns);
/* An instant event: "peer lost", "again". peer_id WEFT_TRACE_NO_PEER: none. text may be NULL. */
void weft_trace_mark(struct weft_trace *trace, const char *name, uint32_t peer_id, const char *text);

#endif
