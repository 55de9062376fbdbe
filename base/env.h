/* env.h - the nondeterministic services of a module: clock, random numbers, memory, log.
 *
 * Modules use only these, so that the simulator can control time and tests can fail the Nth allocation. The
 * real env is weft_env_system(). */
#ifndef WEFT_BASE_ENV_H
#define WEFT_BASE_ENV_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* error: cannot continue; warn: unexpected, continues; info: start, stop, membership; debug: per object;
 * trace: per operation. */
enum weft_log_level {
    WEFT_LOG_ERROR = 0,
    WEFT_LOG_WARN = 1,
    WEFT_LOG_INFO = 2,
    WEFT_LOG_DEBUG = 3,
    WEFT_LOG_TRACE = 4,
};

/* Format of the system env's lines; the option log.format. */
enum weft_log_format { WEFT_LOG_TEXT = 0, WEFT_LOG_JSON = 1 };
#define WEFT_LOG_LEVELS 5u

struct weft_env;
struct weft_loop;
struct weft_process_identity;

/* Virtual time. The owner of the time steps the loops, which have no threads of their own. A thread that
 * would sleep calls wait, which steps the others. One thread makes all calls. */
struct weft_virtual_time {
    /* Returns WEFT_OK when condition(context) is true, WEFT_ERR_DEADLINE when the clock passes until_ns. Not
     * from a callback of a loop. */
    int (*wait)(struct weft_env *env, bool (*condition)(void *context), void *context, uint64_t until_ns);
    /* Replaces a thread in weft_loop_run: run starts stepping the loop, end stops it. */
    int (*run)(struct weft_env *env, struct weft_loop *loop); /* WEFT_OK or WEFT_ERR_NO_MEMORY */
    void (*end)(struct weft_env *env, struct weft_loop *loop);
    /* Identity and state of a simulated process (base/os/process_identity.h). identify NULL: unknown. */
    void (*identify)(struct weft_env *env, struct weft_process_identity *own_out);
    int (*process_state)(struct weft_env *env, const struct weft_process_identity *identity);
};

struct weft_env {
    /* Monotonic ns from an arbitrary start. Any thread. */
    uint64_t (*now_ns)(struct weft_env *env);
    /* 64 uniform bits. The system env uses the kernel's (fit for keys), the simulator a seed. */
    uint64_t (*random_u64)(struct weft_env *env);
    /* alloc: `bytes` > 0, aligned to 64, not initialised; NULL: no memory. free: NULL has no effect. */
    void *(*alloc)(struct weft_env *env, size_t bytes);
    void (*free)(struct weft_env *env, void *memory);
    /* Writes one line without newline. `module`: the module that logs. Any thread. */
    void (*log)(struct weft_env *env, enum weft_log_level level, const char *module, const char *text);
    enum weft_log_level log_level; /* higher levels are not formatted */
    enum weft_log_format log_format;
    void *context;                 /* data of this env's creator */
    const struct weft_virtual_time *virtual_time; /* borrowed; NULL: real time */
};

/* The env of the process: CLOCK_MONOTONIC, getrandom, aligned malloc, log lines to stderr as "2026-11-21
 * 10:00:00.123 warn transport: text". Level: WEFT_LOG_LEVEL=error|warn|info|debug|trace, default warn.
 * Format: WEFT_LOG_FORMAT=text|json, default text. Repeated lines are counted (log/log_repeats.h). Shared,
 * never freed. Copy it for another log function or level. */
struct weft_env *weft_env_system(void);
/* The job and the rank or shard of this process, for JSON lines of the system env. role: "rank" or "shard", a
 * literal; NULL: not known yet. The last call counts. Any thread. */
void weft_log_source_set(const char *job, const char *role, uint32_t index);
/* Lines that weft_log has passed to env->log in this process, by level. Any thread. */
uint64_t weft_log_count(enum weft_log_level level);

static inline uint64_t weft_now_ns(struct weft_env *env) { return env->now_ns(env); }
/* Sleeps on a thread that has no loop; in virtual time the simulator advances. */
void weft_pause(struct weft_env *env, uint64_t pause_ns);
static inline uint64_t weft_random_u64(struct weft_env *env) { return env->random_u64(env); }
static inline void *weft_alloc_bytes(struct weft_env *env, size_t bytes) { return env->alloc(env, bytes); }
void *weft_alloc_zero(struct weft_env *env, size_t bytes);
/* count * bytes; NULL also on overflow. */
void *weft_alloc_array(struct weft_env *env, size_t count, size_t bytes);
char *weft_alloc_text(struct weft_env *env, const char *text); /* copy of a string */
static inline void weft_free_bytes(struct weft_env *env, void *memory) { if (memory) env->free(env, memory); }

/* Replaces control characters by escapes (\n, \x1b) in place, so that text from a caller, a peer or a file
 * stays on one line. Cuts the text to `bytes`, at most 1,000. */
void weft_text_one_line(char *text, size_t bytes);
bool weft_text_is_printable(const char *text); /* has no control characters */
/* Formats one line, at most 1,000 bytes, and passes it to env->log. */
void weft_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
const char *weft_log_level_name(enum weft_log_level level);
bool weft_log_level_parse(const char *name, enum weft_log_level *level_out);
bool weft_log_format_parse(const char *name, enum weft_log_format *format_out);

/* Fixed-size buffer for the sentence of a status: cause, values, next action. */
struct weft_error {
    int status; /* enum weft_status */
    char text[480];
};
/* Writes status and sentence; returns the status. `error` may be NULL. An error that is already set is not
 * changed. */
int weft_error_set(struct weft_error *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define WEFT_MS(ms) ((uint64_t)(ms) * 1000000u)
#define WEFT_SECONDS(s) ((uint64_t)(s) * 1000000000u)
#define WEFT_NEVER UINT64_MAX
/* from_ns + by_ns; WEFT_NEVER on overflow. */
static inline uint64_t weft_deadline_ns(uint64_t from_ns, uint64_t by_ns)
{
    return by_ns < WEFT_NEVER - from_ns ? from_ns + by_ns : WEFT_NEVER;
}
/* to_ns - from_ns; 0 if from_ns is later. A callback can store a time later than the "now" that its caller
 * has read; a plain subtraction would wrap. */
static inline uint64_t weft_elapsed_ns(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

#endif
