/* env.c - the helpers every env shares: log formatting, error sentences, checked allocation.
 * Nothing here touches the machine; env_system.c does. */
#include "base/env.h"

#include <stdio.h>
#include <string.h>

/* Longest log line handed to a sink, with its final zero. */
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

/* A line is one line: whatever a peer or file put into the text, control characters become '?'. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

void weft_log(struct weft_env *env, enum weft_log_level level, const char *room, const char *format, ...)
{
    if (level > env->log_level || !env->log) return;
    char text[LOG_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    make_printable(text);
    env->log(env, level, room, text);
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

int weft_error_set(struct weft_error *error, int status, const char *format, ...)
{
    if (!error || error->status < 0) return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    make_printable(error->text);
    return status;
}
