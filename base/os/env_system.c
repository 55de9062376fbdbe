/* env_system.c - struct weft_env of the real machine: clock, kernel random numbers, C allocator, log to
 * standard error. No other file of the library uses these (tests/tidy checks it). One shared object, set up
 * once. */
#include "base/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/log/log_line.h"
#include "base/log/log_repeats.h"
#include "base/weft_assert.h"

#define ALIGNMENT 64

static uint64_t system_now_ns(struct weft_env *env)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t system_random_u64(struct weft_env *env)
{
    uint64_t value;
    ssize_t got;
    /* Up to 256 bytes are complete once the kernel's pool is seeded; before that the call may be
     * interrupted. */
    do {
        got = getrandom(&value, sizeof value, 0);
    } while (got < 0 && errno == EINTR);
    WEFT_ASSERT(got == (ssize_t)sizeof value);
    return value;
}

static void *system_alloc(struct weft_env *env, size_t bytes)
{
    void *memory = NULL;
    if (bytes > PTRDIFF_MAX) return NULL; /* larger than any object: a size computation may have overflowed */
    if (posix_memalign(&memory, ALIGNMENT, bytes > 0 ? bytes : 1) != 0) return NULL;
    return memory;
}

static void system_free(struct weft_env *env, void *memory)
{
    free(memory);
}

/* ---- log ---- */

static struct {
    pthread_mutex_t lock;
    struct weft_log_source source;
    struct weft_log_repeats repeats;
} lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One write, so that lines of several threads and processes do not mix. A log that cannot be written is not
 * an error. The lock is held. */
static void write_line(void *context, enum weft_log_level level, const char *module, const char *text)
{
    const struct weft_env *env = context;
    struct weft_log_line line = {.level = level, .module = module, .text = text};
    char out[WEFT_LOG_LINE_BYTES];
    clock_gettime(CLOCK_REALTIME, &line.time);
    const size_t bytes = weft_log_line_format(&line, env->log_format, &lines.source, out);
    int kept = errno;
    if (write(STDERR_FILENO, out, bytes) < 0) errno = kept;
}

static void system_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    pthread_mutex_lock(&lines.lock);
    if (weft_log_repeats_add(&lines.repeats, system_now_ns(env), level, module, text, write_line, env))
        write_line(env, level, module, text);
    pthread_mutex_unlock(&lines.lock);
}

void weft_log_source_set(const char *job, const char *role, uint32_t index)
{
    pthread_mutex_lock(&lines.lock);
    snprintf(lines.source.job, sizeof lines.source.job, "%s", job);
    lines.source.role = role;
    lines.source.index = index;
    pthread_mutex_unlock(&lines.lock);
}

/* The parent may hold the lock, and it writes the counts. */
static void forget_in_child(void)
{
    pthread_mutex_init(&lines.lock, NULL);
    memset(&lines.repeats, 0, sizeof lines.repeats);
}

static struct weft_env system_env = {
    .now_ns = system_now_ns,
    .random_u64 = system_random_u64,
    .alloc = system_alloc,
    .free = system_free,
    .log = system_log,
    .log_level = WEFT_LOG_WARN,
};
static pthread_once_t system_env_once = PTHREAD_ONCE_INIT;

static void system_env_setup(void)
{
    const char *level = getenv("WEFT_LOG_LEVEL");
    /* weft_config_load reports an invalid level */
    if (level) weft_log_level_parse(level, &system_env.log_level);
    const char *format = getenv("WEFT_LOG_FORMAT");
    if (format) weft_log_format_parse(format, &system_env.log_format);
    /* without memory for the handler a child's first line could wait for a lock that the parent held */
    (void)pthread_atfork(NULL, NULL, forget_in_child);
}

/* The counts of repeated lines at the end of the process, or of the library. */
__attribute__((destructor)) static void flush_repeats(void)
{
    if (pthread_mutex_trylock(&lines.lock) != 0) return;
    weft_log_repeats_flush(&lines.repeats, write_line, &system_env);
    pthread_mutex_unlock(&lines.lock);
}

struct weft_env *weft_env_system(void)
{
    pthread_once(&system_env_once, system_env_setup);
    return &system_env;
}
