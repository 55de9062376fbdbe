/* config_names.c - warns of environment variables that begin with WEFT_ and that weft does not read. Each is
 * reported once per process, with the nearest existing name. */
#include "base/config/config_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config/config.h"
#include "base/config/edit_distance.h"
#include "base/fnv.h"
#include "base/os/library.h"

enum { NAME_BYTES = 64, NAMES_MAX = 256, REPORTED_MAX = 64, LIKELY_DISTANCE = 2 };

/* Variables that weft reads and that are not options. */
static const char *const other_names[] = {
    "WEFT_COORDINATOR",
    "WEFT_JOB",
    "WEFT_RANK",
    "WEFT_RANKS",
    "WEFT_SECRET",
    "WEFT_SECRET_FILE",
    "WEFT_LIBRARY", /* these three of the Python package and its tests */
    "WEFT_INCLUDE",
    "WEFT_PYTHON",
    "WEFT_DEADLINE_MS",
    "WEFT_CONFIG",
    "WEFT_KERNELS",
    "WEFT_CUDA_KERNELS",
    "WEFT_NCCL",
    "WEFT_MODULE_DIR",
    "WEFT_NVML",
    "WEFT_CUDA_RUNTIME",
    "WEFT_DEVICE_RUNTIME",
    "WEFT_HEADLESS_SERVICE",
    "WEFT_BENCH_BEGAN_US",
    "WEFT_PLAN_ALL_REDUCE",
    "WEFT_PLAN_REDUCE_SCATTER",
    "WEFT_PLAN_ALL_GATHER",
    "WEFT_PLAN_BROADCAST",
    "WEFT_PLAN_BARRIER",
    "WEFT_PLAN_REDUCE",
    "WEFT_PLAN_GATHER",
    "WEFT_PLAN_SCATTER",
    "WEFT_PLAN_ALL_TO_ALL",
    "WEFT_PLAN_ALL_GATHER_BYTES",
    "WEFT_PLAN_EXCHANGE_BYTES",
    "WEFT_PLAN_SEND",
    "WEFT_PLAN_RECV",
    /* read by the tests, as is every name that begins with WEFT_TEST_ */
    "WEFT_BUILD",
    "WEFT_DIE_AT",
    "WEFT_SOURCE_ROOT",
};
enum { OTHERS = sizeof other_names / sizeof other_names[0] };

void config_variable_name(const char *option, char *text, size_t bytes)
{
    snprintf(text, bytes, "WEFT_%s", option);
    for (char *at = text + 5; *at; at++) *at = *at == '.' ? '_' : (char)toupper((unsigned char)*at);
}

/* Does `other` contain all words of `name`, without WEFT_? */
static bool has_words(const char *name, const char *other)
{
    char padded[NAME_BYTES + 8], word[NAME_BYTES + 8];
    snprintf(padded, sizeof padded, "_%s_", other + 5);
    for (const char *at = name + 5; *at;) {
        size_t bytes = strcspn(at, "_");
        snprintf(word, sizeof word, "_%.*s_", (int)bytes, at);
        if (!strstr(padded, word)) return false;
        at += bytes + (at[bytes] == '_');
    }
    return true;
}

/* True if `name` is the beginning of `known`, or if two thirds of the longer name are their common
 * beginning. */
static bool begins_like(const char *name, const char *known)
{
    const size_t bytes = strlen(name), known_bytes = strlen(known),
                 longer = bytes > known_bytes ? bytes : known_bytes;
    size_t common = 0;
    while (name[common] && name[common] == known[common]) common++;
    return (common == bytes && bytes >= sizeof "WEFT_xxxx" - 1) || 3 * common >= 2 * longer;
}

/* Rank of a likely misspelling, best first: one letter differs; one name has all words of the other; two
 * letters differ; the beginning is the same. NOT_LIKELY: none of these. */
enum { NOT_LIKELY = 1000 };
static size_t misspelling_rank(const char *name, const char *known)
{
    const size_t away = weft_edit_distance(name, known);
    if (away <= 1) return away;
    if (has_words(name, known) || has_words(known, name)) return 1 + away;
    if (away <= LIKELY_DISTANCE) return NAME_BYTES + away;
    return begins_like(name, known) ? 2 * NAME_BYTES + away : NOT_LIKELY;
}

static const char *nearest(const char *name, const char (*known)[NAME_BYTES], size_t count)
{
    const char *best = NULL;
    size_t least = NOT_LIKELY;
    for (size_t i = 0; i < count; i++) {
        const size_t away = misspelling_rank(name, known[i]);
        if (away >= least) continue;
        least = away;
        best = known[i];
    }
    return best;
}

static size_t collect(char (*known)[NAME_BYTES])
{
    size_t count = 0;
    for (; weft_option_table[count].name && count < NAMES_MAX - OTHERS; count++)
        config_variable_name(weft_option_table[count].name, known[count], NAME_BYTES);
    for (size_t i = 0; i < OTHERS; i++) snprintf(known[count++], NAME_BYTES, "%s", other_names[i]);
    return count;
}

/* Every session of a process loads a configuration. Two threads that load at the same time may both report a
 * name. */
static bool is_first_report(const char *name)
{
    static uint64_t reported[REPORTED_MAX];
    const uint64_t hash = weft_fnv_bytes(WEFT_FNV_BASIS, name, strlen(name)) | 1;
    for (size_t i = 0; i < REPORTED_MAX; i++) {
        const uint64_t seen = __atomic_load_n(&reported[i], __ATOMIC_RELAXED);
        if (seen == hash) return false;
        if (seen != 0) continue;
        __atomic_store_n(&reported[i], hash, __ATOMIC_RELAXED);
        return true;
    }
    return false;
}

void config_report_unknown_names(struct weft_env *env)
{
    char known[NAMES_MAX][NAME_BYTES], name[NAME_BYTES];
    const size_t count = collect(known);
    for (char **entry = weft_environment(); entry && *entry; entry++) {
        const size_t bytes = strcspn(*entry, "=");
        bool exists = strncmp(*entry, "WEFT_TEST_", 10) == 0;
        if (strncmp(*entry, "WEFT_", 5) != 0 || bytes >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *entry);
        for (size_t i = 0; i < count && !exists; i++) exists = strcmp(name, known[i]) == 0;
        if (exists || !is_first_report(name)) continue;
        const char *near = nearest(name, known, count);
        if (near)
            weft_log(env, WEFT_LOG_WARN, "base", "the variable %s is no option; did you mean %s?", name,
                     near);
        else
            weft_log(env, WEFT_LOG_WARN, "base",
                     "the variable %s is no option of weft and has no effect; weftd "
                     "--help-options lists them",
                     name);
    }
}
