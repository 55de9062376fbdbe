/* size.c - see size.h. */
#include "tools/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

bool tool_size_parse(const char *text, uint64_t *bytes_out)
{
    /* strtod accepts signs, spaces, "inf" and hexadecimal numbers, too */
    if (*text < '0' || *text > '9' || text[1] == 'x' || text[1] == 'X') return false;
    char *end = NULL;
    double value = strtod(text, &end); /* 1.5M is valid */
    uint64_t unit = 1;
    switch (*end) {
    case 'k':
    case 'K':
        unit = (uint64_t)1 << 10;
        end++;
        break;
    case 'm':
    case 'M':
        unit = (uint64_t)1 << 20;
        end++;
        break;
    case 'g':
    case 'G':
        unit = (uint64_t)1 << 30;
        end++;
        break;
    default: break;
    }
    if (unit > 1 && *end == 'i') end++;
    if (*end == 'B' || *end == 'b') end++;
    double bytes = value * (double)unit;
    if (*end || !(bytes >= 0) || bytes >= (double)TOOL_SIZE_MAX + 1) return false;
    *bytes_out = (uint64_t)bytes;
    return true;
}

void tool_size_format(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G"};
    int level = 0;
    while (level < 3 && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        level++;
    }
    snprintf(out, out_bytes, "%" PRIu64 "%s", bytes, suffixes[level]);
}

void tool_bytes_format(long long bytes, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) value /= 1024, unit++;
    snprintf(out, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}
