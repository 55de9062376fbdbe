/* env.c - functions shared by all envs: log lines, error sentences, checked allocation. Uses no system call.
 */
#include "base/env.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* longest log line, with its NUL */
#define LOG_LINE_BYTES 1001

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void *weft_alloc_zero(struct weft_env *env, size_t bytes)
{
    void *memory = weft_alloc_bytes(env, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

void *weft_alloc_array(struct weft_env *env, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
    return weft_alloc_bytes(env, total);
}

char *weft_alloc_text(struct weft_env *env, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = weft_alloc_bytes(env, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

static bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

/* Formats one character, a control character as an escape. Returns the length. */
static size_t printed(unsigned char c, char out[5])
{
    static const char digits[] = "0123456789abcdef";
    const char letter = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : 0;
    if (!is_control(c)) return out[0] = (char)c, 1;
    out[0] = '\\';
    if (letter) return out[1] = letter, 2;
    out[1] = 'x', out[2] = digits[c >> 4], out[3] = digits[c & 15];
    return 4;
}

bool weft_text_is_printable(const char *text)
{
    while (*text && !is_control((unsigned char)*text)) text++;
    return !*text;
}

void weft_text_one_line(char *text, size_t bytes)
{
    char line[LOG_LINE_BYTES], one[5];
    size_t used = 0;
    if (weft_text_is_printable(text)) return;
    if (bytes > sizeof line) bytes = sizeof line;
    for (const char *at = text; *at; at++) {
        const size_t length = printed((unsigned char)*at, one);
        if (used + length >= bytes) break;
        memcpy(line + used, one, length);
        used += length;
    }
    memcpy(text, line, used);
    text[used] = 0;
}

static _Atomic uint64_t log_counts[WEFT_LOG_LEVELS];

uint64_t weft_log_count(enum weft_log_level level)
{
    return (unsigned)level < WEFT_LOG_LEVELS ? atomic_load_explicit(&log_counts[level], memory_order_relaxed)
                                             : 0;
}

void weft_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *format, ...)
{
    if (level > env->log_level || !env->log) return;
    char text[LOG_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    weft_text_one_line(text, sizeof text);
    if ((unsigned)level < WEFT_LOG_LEVELS)
        atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);
    env->log(env, level, module, text);
}

const char *weft_log_level_name(enum weft_log_level level)
{
    if ((unsigned)level >= sizeof level_names / sizeof level_names[0]) return "?";
    return level_names[level];
}

bool weft_log_level_parse(const char *name, enum weft_log_level *level_out)
{
    for (unsigned i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *level_out = (enum weft_log_level)i;
        return true;
    }
    return false;
}

bool weft_log_format_parse(const char *name, enum weft_log_format *format_out)
{
    if (strcmp(name, "text") != 0 && strcmp(name, "json") != 0) return false;
    *format_out = name[0] == 'j' ? WEFT_LOG_JSON : WEFT_LOG_TEXT;
    return true;
}

int weft_error_set(struct weft_error *error, int status, const char *format, ...)
{
    if (!error || error->status < 0) return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    weft_text_one_line(error->text, sizeof error->text);
    return status;
}

static bool never(void *context)
{
    return false;
}

void weft_pause(struct weft_env *env, uint64_t pause_ns)
{
    if (env->virtual_time) (void)env->virtual_time->wait(env, never, NULL, weft_now_ns(env) + pause_ns);
    else (void)poll(NULL, 0, (int)(pause_ns / WEFT_MS(1)));
}
