/* trace.h - what an endpoint did, as a file that Perfetto and chrome://tracing show.
 *
 * One JSON object a line, in an array. Written through a buffer of fixed size; when the file cannot be
 * written any more (or has reached its limit) one sentence goes to the log and the job goes on without it.
 * The array is closed at the end, but viewers take it as well when the process died before. */
#ifndef WEFT_TRANSPORT_TRACE_H
#define WEFT_TRANSPORT_TRACE_H

#include "transport/transport.h"

struct trace;

/* %p, %h, %e in the pattern become process id, host name and endpoint id; without any of them "-ID" is put
 * before the suffix, as two endpoints never share a file. NULL when the file cannot be opened: logged, and
 * no reason to stop. */
struct trace *trace_open(struct weft_env *env, const char *pattern, uint64_t limit_bytes,
                         uint32_t endpoint_id, const char *transport);
void trace_close(struct trace *trace); /* NULL is fine */

struct trace_span {
    const char *name;             /* "send", "recv", ... */
    uint64_t begin_ns, end_ns;    /* on the env's clock */
    uint32_t peer_id;
    uint64_t tag;
    size_t bytes;
    enum weft_status status;
    uint64_t queue_ns;            /* of it: before anything could happen */
    uint64_t completion_ns;       /* of it: over already, but its owner was not told yet */
};
void trace_span(struct trace *trace, const struct trace_span *span);
/* Something of the endpoint itself that lasts: "sleep". */
void trace_state(struct trace *trace, const char *name, uint64_t begin_ns, uint64_t end_ns);
/* Something that happens at once: "peer lost", "again". peer_id WEFT_ANY_PEER: of nobody. text may be
 * NULL. */
void trace_mark(struct trace *trace, const char *name, uint32_t peer_id, const char *text);

#endif
