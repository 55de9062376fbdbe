/* trace_file.c - see trace_file.h. The engine thread writes one buffer at a time into the page cache. */
#include "base/trace/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 << 10, LINE_BYTES_MAX = 700, END_BYTES_MAX = 150, PATH_BYTES_MAX = 600 };

struct weft_trace {
    struct weft_env *env;
    int fd; /* -1: disabled */
    uint32_t id;
    uint64_t limit_bytes, written_bytes, serial;
    size_t used;
    char path[PATH_BYTES_MAX];
    char buffer[BUFFER_BYTES];
};

/* ---- the file ---- */

static void abandon(struct weft_trace *trace, const char *why)
{
    weft_log(trace->env, WEFT_LOG_WARN, "transport",
             "trace file %s: %s; tracing stops here, the job continues", trace->path, why);
    int cut = ftruncate(trace->fd, (off_t)trace->written_bytes); /* to complete objects, if it works */
    (void)cut;                                                   /* viewers accept a cut file */
    close(trace->fd);
    trace->fd = -1;
}

static void flush(struct weft_trace *trace)
{
    size_t done = 0;
    while (trace->fd >= 0 && done < trace->used) {
        ssize_t put = write(trace->fd, trace->buffer + done, trace->used - done);
        if (put > 0) done += (size_t)put;
        else if (put < 0 && errno != EINTR) abandon(trace, strerror(errno));
    }
    if (trace->fd >= 0) trace->written_bytes += trace->used;
    trace->used = 0;
}

/* The last object has no comma. */
static void end(struct weft_trace *trace)
{
    uint64_t now_ns = weft_now_ns(trace->env);
    if (trace->used + END_BYTES_MAX > BUFFER_BYTES) flush(trace);
    int bytes =
        snprintf(trace->buffer + trace->used, END_BYTES_MAX,
                 "{\"name\":\"end\",\"ph\":\"i\",\"s\":\"p\",\"ts\":%llu.%03u,\"pid\":%u,\"tid\":0}\n]\n",
                 (unsigned long long)(now_ns / 1000), (unsigned)(now_ns % 1000), trace->id);
    trace->used += (size_t)bytes;
    flush(trace);
}

static void write_line(struct weft_trace *trace, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void write_line(struct weft_trace *trace, const char *format, ...)
{
    if (trace->fd < 0) return;
    if (trace->used + LINE_BYTES_MAX > BUFFER_BYTES) flush(trace);
    if (trace->fd >= 0 &&
        trace->written_bytes + trace->used + LINE_BYTES_MAX + END_BYTES_MAX > trace->limit_bytes) {
        end(trace);
        if (trace->fd >= 0) abandon(trace, "it has reached its limit (raise it by limit=BYTES)");
    }
    if (trace->fd < 0) return;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(trace->buffer + trace->used, LINE_BYTES_MAX, format, arguments);
    va_end(arguments);
    if (bytes > 0 && bytes < LINE_BYTES_MAX)
        trace->used += (size_t)bytes; /* longer ones are left out: a partial object is invalid */
}

/* ---- opening ---- */

static size_t add(char *path, size_t at, const char *text)
{
    while (*text && at + 1 < PATH_BYTES_MAX) path[at++] = *text++;
    path[at] = 0;
    return at;
}

static void expand(struct weft_trace *trace, const char *pattern, const char *host)
{
    const char *slash = strrchr(pattern, '/'), *dot = strrchr(pattern, '.');
    const char *insert =
        dot && (!slash || dot > slash + 1) && dot != pattern ? dot : pattern + strlen(pattern);
    char number[24];
    bool named = false;
    size_t at = 0;
    struct stat there;
    for (const char *p = pattern; *p; p++) named |= p[0] == '%' && (p[1] == 'p' || p[1] == 'e');
    /* a pipe or /dev/null: no suffix */
    if (stat(pattern, &there) == 0 && !S_ISREG(there.st_mode)) named = true;
    for (const char *p = pattern;; p++) {
        if (!named && p == insert) {
            snprintf(number, sizeof number, "-%u", trace->id);
            at = add(trace->path, at, number);
        }
        if (!*p) break;
        const char one[2] = {*p, 0};
        const char *text = one;
        if (p[0] == '%' && p[1] == 'h') text = host;
        else if (p[0] == '%' && p[1] == 'p')
            snprintf(number, sizeof number, "%ld", (long)getpid()), text = number;
        else if (p[0] == '%' && p[1] == 'e') snprintf(number, sizeof number, "%u", trace->id), text = number;
        if (text != one) p++;
        at = add(trace->path, at, text);
    }
}

/* Copies text, without characters that JSON forbids. */
static void copy_printable(char *out, size_t bytes, const char *text)
{
    size_t at = 0;
    for (; *text && at + 1 < bytes; text++)
        out[at++] = *text == '"' || *text == '\\' || (unsigned char)*text < 32 || (unsigned char)*text > 126
                        ? '\''
                        : *text;
    out[at] = 0;
}

/* Writes the metadata: process, host, and the wall clock at a time of the env's clock. */
static void head(struct weft_trace *trace, const char *host, const char *title)
{
    struct stat file;
    uint64_t now_ns = weft_now_ns(trace->env);
    char clean_host[64], clean_title[64];
    copy_printable(clean_host, sizeof clean_host, host);
    copy_printable(clean_title, sizeof clean_title, title);
    trace->used = (size_t)snprintf(trace->buffer, BUFFER_BYTES, "[\n");
    flush(trace);
    if (trace->fd < 0) return;
    uint64_t wall_ns = fstat(trace->fd, &file) == 0
                           ? (uint64_t)file.st_mtim.tv_sec * 1000000000u + (uint64_t)file.st_mtim.tv_nsec
                           : 0;
    write_line(trace,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"%s, %s, "
               "process %ld\"}},\n",
               trace->id, clean_title, clean_host, (long)getpid());
    write_line(
        trace,
        "{\"name\":\"weft_clock\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"host\":\"%s\",\"monotonic_ns\":%llu,"
        "\"wall_ns\":%llu}},\n",
        trace->id, clean_host, (unsigned long long)now_ns, (unsigned long long)wall_ns);
}

struct weft_trace *weft_trace_open(struct weft_env *env, const char *pattern, uint64_t limit_bytes,
                                   uint32_t id, const char *title)
{
    struct weft_trace *trace = weft_alloc_bytes(env, sizeof *trace);
    if (!trace) {
        weft_log(env, WEFT_LOG_WARN, "transport", "no memory to trace; the job continues without");
        return NULL;
    }
    char host[64] = "host";
    if (gethostname(host, sizeof host) != 0) host[0] = 0;
    host[sizeof host - 1] = 0;
    memset(trace, 0, offsetof(struct weft_trace, buffer));
    trace->env = env;
    trace->id = id;
    trace->limit_bytes = limit_bytes;
    expand(trace, pattern, host);
    trace->fd = open(trace->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (trace->fd < 0) {
        weft_log(env, WEFT_LOG_WARN, "transport",
                 "trace file %s cannot be written: %s; the job continues without it", trace->path,
                 strerror(errno));
        weft_free_bytes(env, trace);
        return NULL;
    }
    head(trace, host, title);
    return trace;
}

void weft_trace_flush(struct weft_trace *trace)
{
    flush(trace);
}

void weft_trace_close(struct weft_trace *trace)
{
    if (!trace) return;
    end(trace);
    if (trace->fd >= 0) close(trace->fd);
    weft_free_bytes(trace->env, trace);
}

/* ---- events ---- */

#define TIME_FORMAT "%llu.%03u"
#define TIME(ns) (unsigned long long)((ns) / 1000), (unsigned)((ns) % 1000)

/* Operations overlap, so each is a pair of "asynchronous" events with its own number. */
void weft_trace_span(struct weft_trace *trace, const struct weft_trace_span *span)
{
    unsigned long long id = (unsigned long long)trace->id << 40 | trace->serial++;
    write_line(trace,
               "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"b\",\"id\":\"0x%llx\",\"ts\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":0,\"args\":{\"peer\":%u,"
               "\"tag\":\"0x%llx\",\"bytes\":%zu,\"status\":\"%s\",\"queue_us\":" TIME_FORMAT
               ",\"completion_us\":" TIME_FORMAT "}},\n"
               "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"e\",\"id\":\"0x%llx\",\"ts\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":0},\n",
               span->name, span->name, id, TIME(span->begin_ns), trace->id, span->peer_id,
               (unsigned long long)span->tag, span->bytes, weft_status_name(span->status),
               TIME(span->queue_ns), TIME(span->completion_ns), span->name, span->name, id,
               TIME(span->end_ns), trace->id);
}

void weft_trace_range(struct weft_trace *trace, const char *name, const char *category, uint32_t thread,
                      uint64_t begin_ns, uint64_t end_ns, const char *arguments)
{
    char clean[64];
    unsigned long long id = (unsigned long long)trace->id << 40 | trace->serial++;
    copy_printable(clean, sizeof clean, name);
    write_line(trace,
               "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"b\",\"id\":\"0x%llx\",\"ts\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":%u,\"args\":{%s}},\n"
               "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"e\",\"id\":\"0x%llx\",\"ts\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":%u},\n",
               clean, category, id, TIME(begin_ns), trace->id, thread, arguments, clean, category, id,
               TIME(end_ns), trace->id, thread);
}

void weft_trace_state(struct weft_trace *trace, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    uint64_t took_ns = weft_elapsed_ns(begin_ns, end_ns);
    write_line(trace,
               "{\"name\":\"%s\",\"cat\":\"engine\",\"ph\":\"X\",\"ts\":" TIME_FORMAT ",\"dur\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":0},\n",
               name, TIME(begin_ns), TIME(took_ns), trace->id);
}

void weft_trace_mark(struct weft_trace *trace, const char *name, uint32_t peer_id, const char *text)
{
    char clean[200], peer[32] = "";
    uint64_t now_ns = weft_now_ns(trace->env);
    copy_printable(clean, sizeof clean, text ? text : "");
    if (peer_id != WEFT_TRACE_NO_PEER) snprintf(peer, sizeof peer, "\"peer\":%u,", peer_id);
    write_line(trace,
               "{\"name\":\"%s\",\"cat\":\"peer\",\"ph\":\"i\",\"s\":\"p\",\"ts\":" TIME_FORMAT
               ",\"pid\":%u,\"tid\":0,\"args\":{%s\"text\":\"%s\"}},\n",
               name, TIME(now_ns), trace->id, peer, clean);
}
