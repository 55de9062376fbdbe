/* env_system.c - struct weft_env of the real machine: clock, kernel random numbers, C allocator, log to
 * standard error. No other file of the library uses these (tests/tidy checks it). One shared object, set up
 * once. */
#include "base/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

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

static void system_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    struct timespec now;
    struct tm parts;
    char day[32], line[1200];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &parts);
    int bytes = snprintf(line, sizeof line, "%s.%03ld %s %s: %s\n", day, now.tv_nsec / 1000000,
                         weft_log_level_name(level), module, text);
    if (bytes <= 0) return;
    if (bytes > (int)sizeof line - 1) {
        bytes = (int)sizeof line - 1;
        line[bytes - 1] = '\n';
    }
    /* One write, so that lines of several threads and processes do not mix. A log that cannot be written is
     * not an error. */
    int kept = errno;
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0) errno = kept;
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
}

struct weft_env *weft_env_system(void)
{
    pthread_once(&system_env_once, system_env_setup);
    return &system_env;
}
