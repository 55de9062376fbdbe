/* trace.h - writes the operations of an endpoint to a file for Perfetto and chrome://tracing.
 *
 * The file is a JSON array, one object per line, written through a fixed buffer. If a write fails or the
 * file reaches its limit, one line is logged and the job continues without a trace. close ends the array;
 * viewers also accept a file without its end. */
#ifndef WEFT_TRANSPORT_TRACE_H
#define WEFT_TRANSPORT_TRACE_H

#include "transport/transport.h"

struct trace;

/* %p, %h, %e in the pattern become process id, host name and endpoint id. Without any of them "-ID" is
 * inserted before the suffix, because two endpoints must not share a file. NULL: the file cannot be
 * opened, which is logged. */
struct trace *trace_open(struct weft_env *env, const char *pattern, uint64_t limit_bytes,
                         uint32_t endpoint_id, const char *transport);
void trace_close(struct trace *trace); /* NULL is fine */

struct trace_span {
    const char *name;             /* "send", "recv", ... */
    uint64_t begin_ns, end_ns;    /* env clock */
    uint32_t peer_id;
    uint64_t tag;
    size_t bytes;
    enum weft_status status;
    uint64_t queue_ns;            /* part of the span before the transfer could begin */
    uint64_t completion_ns;       /* part of the span between completion and its delivery */
};
void trace_span(struct trace *trace, const struct trace_span *span);
/* A period of the endpoint: "sleep". */
void trace_state(struct trace *trace, const char *name, uint64_t begin_ns, uint64_t end_ns);
/* An instant event: "peer lost", "again". peer_id WEFT_ANY_PEER: none. text may be NULL. */
void trace_mark(struct trace *trace, const char *name, uint32_t peer_id, const char *text);

#endif
