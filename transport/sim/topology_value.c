/* topology_value.c - values of a topology: counts, 100Gbit, 2us, 64KiB, 0.001. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "transport/sim/topology.h"

struct unit {
    const char *name;
    double factor;
};

static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit sizes[] = {{"B", 1},      {"KB", 1e3},      {"MB", 1e6},         {"GB", 1e9},
                                    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {NULL, 0}};
static const struct unit rates[] = {/* to bytes a second */
                                    {"bit", 0.125},  {"Kbit", 125}, {"Mbit", 125e3}, {"Gbit", 125e6},
                                    {"Tbit", 125e9}, {"MB", 1e6},   {"GB", 1e9},     {NULL, 0}};

/* Parses "12.5GB" with one of the units; false: another form, or out of [min, max]. */
static bool parse(const char *value, const struct unit *units, double min, double max, double *number_out)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || !isfinite(number)) return false;
    while (*end == ' ') end++;
    for (; units->name; units++) {
        if (strcmp(end, units->name) != 0) continue;
        *number_out = number * units->factor;
        return *number_out >= min && *number_out <= max;
    }
    return false;
}

enum weft_status topology_count(struct topology_text *text, const struct topology_section *section,
                                const char *name, uint64_t min, uint64_t max, uint64_t *value_out)
{
    int line;
    char *end;
    const char *value = topology_setting(text, section, name, &line);
    if (!value) return WEFT_OK;
    unsigned long long number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || number < min || number > max) {
        return topology_bad(text, line, "%s is a whole number from %llu to %llu, not %.40s", name,
                            (unsigned long long)min, (unsigned long long)max, value);
    }
    *value_out = number;
    return WEFT_OK;
}

enum weft_status topology_time(struct topology_text *text, const struct topology_section *section,
                               const char *name, uint64_t *ns_out)
{
    int line;
    double number;
    const char *value = topology_setting(text, section, name, &line);
    if (!value) return WEFT_OK;
    if (!parse(value, times, 0, 1e15, &number))
        return topology_bad(text, line, "%s is a time such as 500ns, 2us, 10ms or 1s, not %.40s", name,
                            value);
    *ns_out = (uint64_t)number;
    return WEFT_OK;
}

enum weft_status topology_size(struct topology_text *text, const struct topology_section *section,
                               const char *name, uint64_t *bytes_out)
{
    int line;
    double number;
    const char *value = topology_setting(text, section, name, &line);
    if (!value) return WEFT_OK;
    if (!parse(value, sizes, 1, 1e15, &number))
        return topology_bad(text, line, "%s is a size such as 64KiB or 4MB, not %.40s", name, value);
    *bytes_out = (uint64_t)number;
    return WEFT_OK;
}

enum weft_status topology_rate(struct topology_text *text, const struct topology_section *section,
                               const char *name, double *per_second_out)
{
    int line;
    double number;
    const char *value = topology_setting(text, section, name, &line);
    if (!value) return WEFT_OK;
    if (!parse(value, rates, 1, 1e15, &number)) {
        return topology_bad(
            text, line, "%s is a rate such as 100Gbit (bits a second) or 12.5GB (bytes a second), not %.40s",
            name, value);
    }
    *per_second_out = number;
    return WEFT_OK;
}

enum weft_status topology_chance(struct topology_text *text, const struct topology_section *section,
                                 const char *name, double *chance_out)
{
    int line;
    char *end;
    const char *value = topology_setting(text, section, name, &line);
    if (!value) return WEFT_OK;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= 0.9)) {
        return topology_bad(
            text, line, "%s is a chance from 0 to 0.9 for each burst, such as 0.001, not %.40s", name, value);
    }
    *chance_out = number;
    return WEFT_OK;
}
