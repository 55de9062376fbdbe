/* seed.h - random draws and a log for the seeded tests of whole jobs; the log is printed with --verbose. */
#ifndef WEFT_TESTS_SEED_H
#define WEFT_TESTS_SEED_H

#include <stdio.h>

#include "base/base.h"

static bool verbose;

static inline void log_line(struct weft_env *env, enum weft_log_level level, const char *module,
                            const char *text)
{
    if (verbose) fprintf(stderr, "%s %s\n", module, text);
}

static uint64_t random_state;

static inline void seed_random(uint64_t seed) { random_state = seed * 0x2545f4914f6cdd1dull + 1; }

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t roll(uint64_t below)
{
    random_state += 0x9e3779b97f4a7c15ull;
    return mix(random_state) % below;
}

#endif
