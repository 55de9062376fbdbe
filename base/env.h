/* env.h - everything nondeterministic that a room may use: clock, random numbers, memory, log.
 * Rooms take a `struct weft_env *` and call nothing else for these, so that the simulator can own
 * time and tests can fail the Nth allocation. The real one is weft_env_system(). */
#ifndef WEFT_BASE_ENV_H
#define WEFT_BASE_ENV_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Levels by volume: error (cannot go on), warn (odd, goes on), info (start, stop, membership),
 * debug (per object), trace (per operation). */
enum weft_log_level {
    WEFT_LOG_ERROR = 0,
    WEFT_LOG_WARN = 1,
    WEFT_LOG_INFO = 2,
    WEFT_LOG_DEBUG = 3,
    WEFT_LOG_TRACE = 4,
};

struct weft_env;
struct weft_loop;

/* Of an env whose time is virtual: whoever owns that time steps the loops that would have a thread of
 * their own, and a caller that would sleep comes here and lets the others run. One thread calls all of it. */
struct weft_virtual_time {
    /* Until fact(context) holds (WEFT_OK) or the clock passes until_ns (WEFT_ERR_DEADLINE). Not from a
     * callback of a loop. */
    int (*wait)(struct weft_env *env, bool (*condition)(void *context), void *context, uint64_t until_ns);
    /* Instead of a thread in weft_loop_run: the loop is stepped from now on, and no more. */
    int (*run)(struct weft_env *env, struct weft_loop *loop); /* WEFT_OK or WEFT_ERR_NO_MEMORY */
    void (*end)(struct weft_env *env, struct weft_loop *loop);
};

struct weft_env {
    /* Monotonic nanoseconds; never goes back; starts anywhere. Any thread. */
    uint64_t (*now_ns)(struct weft_env *env);
    /* Uniform 64 bits. The system env reads the kernel (fit for keys); the simulator's is seeded. */
    uint64_t (*random_u64)(struct weft_env *env);
    /* alloc: `bytes` > 0 aligned to 64, contents undefined; NULL when there is none. free: NULL is fine. */
    void *(*alloc)(struct weft_env *env, size_t bytes);
    void (*free)(struct weft_env *env, void *memory);
    /* One finished line without newline; `room` is the name of the room that speaks. Any thread. */
    void (*log)(struct weft_env *env, enum weft_log_level level, const char *module, const char *text);
    enum weft_log_level log_level; /* lines above it are not formatted */
    void *context;                 /* of whoever made this env */
    const struct weft_virtual_time *virtual_time; /* borrowed; NULL: time passes by itself */
};

/* The process's real env: CLOCK_MONOTONIC, getrandom, aligned malloc, log lines to stderr as
 * "2026-11-21 10:00:00.123 warn transport: text" (level from WEFT_LOG_LEVEL=error|warn|info|debug|trace,
 * default warn). Shared and never freed; a caller that wants another sink or level copies it. */
struct weft_env *weft_env_system(void);

static inline uint64_t weft_now_ns(struct weft_env *env) { return env->now_ns(env); }
static inline uint64_t weft_random_u64(struct weft_env *env) { return env->random_u64(env); }
static inline void *weft_alloc_bytes(struct weft_env *env, size_t bytes) { return env->alloc(env, bytes); }
void *weft_alloc_zero(struct weft_env *env, size_t bytes);
/* count * bytes with the overflow checked: NULL then. */
void *weft_alloc_array(struct weft_env *env, size_t count, size_t bytes);
char *weft_alloc_text(struct weft_env *env, const char *text); /* copy of a string */
static inline void weft_free_bytes(struct weft_env *env, void *memory) { if (memory) env->free(env, memory); }

/* weft_text_one_line() - replaces control characters by escapes (\n, \x1b), in place. Text from a caller,
 * a peer or a file then stays on one line. Cuts the text to `bytes`, at most 1,000. */
void weft_text_one_line(char *text, size_t bytes);
bool weft_text_is_printable(const char *text); /* without control characters */
/* weft_log() - format and hand one line (at most 1,000 bytes, cut after) to the sink. */
void weft_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
const char *weft_log_level_name(enum weft_log_level level);
bool weft_log_level_parse(const char *name, enum weft_log_level *level_out);

/* A fixed-size place for the sentence that goes with a status: cause, values, next action. */
struct weft_error {
    int status; /* enum weft_status */
    char text[480];
};
/* weft_error_set() - write status and sentence, return the status. `error` may be NULL. The first
 * error is kept: a later set on an error that already holds one changes nothing. */
int weft_error_set(struct weft_error *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define WEFT_MS(ms) ((uint64_t)(ms) * 1000000u)
#define WEFT_SECONDS(s) ((uint64_t)(s) * 1000000000u)
#define WEFT_NEVER UINT64_MAX
/* A time and a duration; never stays never. */
static inline uint64_t weft_deadline_ns(uint64_t from_ns, uint64_t by_ns)
{
    return by_ns < WEFT_NEVER - from_ns ? from_ns + by_ns : WEFT_NEVER;
}
/* The time from `from_ns` to `to_ns`; 0 if `from_ns` is later. A callback can store a time that is later
 * than the "now" that its caller read before. A plain subtraction would wrap. */
static inline uint64_t weft_elapsed_ns(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

#endif
