/* sweep.c - see sweep.h. */
#include "tools/bench/lib/sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_LIMIT ((uint64_t)1 << 48)

bool bench_size_parse(const char *text, uint64_t *bytes_out)
{
    /* strtod knows more than we want */
    if (*text < '0' || *text > '9' || text[1] == 'x' || text[1] == 'X') return false;
    char *end = NULL;
    double value = strtod(text, &end); /* 1.5M is fine */
    uint64_t unit = 1;
    switch (*end) {
    case 'k': case 'K': unit = (uint64_t)1 << 10; end++; break;
    case 'm': case 'M': unit = (uint64_t)1 << 20; end++; break;
    case 'g': case 'G': unit = (uint64_t)1 << 30; end++; break;
    default: break;
    }
    if (unit > 1 && *end == 'i') end++;
    if (*end == 'B' || *end == 'b') end++;
    double bytes = value * (double)unit;
    if (*end || !(bytes >= 0) || bytes >= (double)SIZE_LIMIT) return false;
    *bytes_out = (uint64_t)bytes;
    return true;
}

void bench_size_format(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G"};
    int level = 0;
    while (level < 3 && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        level++;
    }
    snprintf(out, out_bytes, "%" PRIu64 "%s", bytes, suffixes[level]);
}

static uint64_t round_to_unit(uint64_t bytes, uint64_t unit)
{
    return bytes / unit ? bytes / unit * unit : unit;
}

uint64_t bench_sweep_next(const struct bench_sweep *sweep, uint64_t bytes)
{
    if (bytes == 0) return round_to_unit(sweep->first, sweep->unit);
    uint64_t next = bytes;
    /* rounding may fall back on the same size: go on from there */
    for (uint64_t at = bytes; next <= bytes;) {
        at = sweep->factor > 1 ? (uint64_t)((double)at * sweep->factor + 0.5)
                               : at + (sweep->step ? sweep->step : sweep->unit);
        if (at <= bytes) at = bytes + sweep->unit;
        if (at > sweep->last) return 0;
        next = round_to_unit(at, sweep->unit);
    }
    return next <= sweep->last ? next : 0;
}
