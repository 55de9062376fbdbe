/* retune_file.c - the settled plans of a group as text, for a later job with the same numbers of ranks and
 * hosts:
 *
 *     weft-plans 1
 *     ranks 16 hosts 2
 *     cell all_reduce 18 2 ring 624573        kind, octave of bytes, flags (retune.c), plan, nanoseconds
 *     end 1
 *
 * A text is taken as a whole or refused; at most RETUNE_CELLS_MAX cells. Rank 0 reads it and publishes each
 * cell as any other change. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/core/retune.h"

#define LINE_BYTES_MAX 96u
#define FLAG_SHIFT 16

static uint32_t host_count(const struct weft_group *group)
{
    return group->planning.hosts ? group->planning.hosts->count : 0;
}

static void add(char *out, size_t out_bytes, size_t *used, const char *line)
{
    size_t bytes = strlen(line);
    if (*used + bytes < out_bytes) memcpy(out + *used, line, bytes + 1);
    *used += bytes;
}

size_t weft_group_plans_write(const struct weft_group *group, char *out, size_t out_bytes)
{
    char line[LINE_BYTES_MAX];
    size_t used = 0;
    uint32_t cells = 0;
    if (out_bytes > 0) out[0] = 0;
    snprintf(line, sizeof line, "weft-plans 1\nranks %" PRIu32 " hosts %" PRIu32 "\n", group->ranks,
             host_count(group));
    add(out, out_bytes, &used, line);
    for (uint32_t i = 0; group->planning.retune && i < RETUNE_CELLS_MAX; i++) {
        const struct retune_cell *cell = &group->planning.retune->cells[i];
        if (!cell->key || cell->settled == WEFT_PLAN_AUTO) continue;
        snprintf(line, sizeof line, "cell %s %" PRIu32 " %" PRIu32 " %s %" PRIu64 "\n",
                 weft_coll_kind_name((enum weft_coll_kind)(cell->key & 0xff)), cell->key >> 8 & 0xff,
                 cell->key >> FLAG_SHIFT, weft_plan_name(cell->settled), cell->times_ns[cell->settled]);
        add(out, out_bytes, &used, line);
        cells++;
    }
    snprintf(line, sizeof line, "end %" PRIu32 "\n", cells);
    add(out, out_bytes, &used, line);
    return used;
}

/* Copies the next line without its end. false: none. */
static bool next_line(const char **at, const char *end, char line[LINE_BYTES_MAX])
{
    const char *stop = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    if (!stop || (size_t)(stop - *at) >= LINE_BYTES_MAX || memchr(*at, 0, (size_t)(stop - *at))) return false;
    memcpy(line, *at, (size_t)(stop - *at));
    line[stop - *at] = 0;
    *at = stop + 1;
    return true;
}

static bool cell_parse(const char *line, struct retune_cell *cell)
{
    char kind_name[24], plan_name[24], end;
    uint32_t octave, flags;
    uint64_t time_ns;
    if (sscanf(line, "cell %23s %2" SCNu32 " %1" SCNu32 " %23s %18" SCNu64 "%c", kind_name, &octave, &flags,
               plan_name, &time_ns, &end) != 5)
        return false;
    const enum weft_coll_kind kind = weft_coll_kind_parse(kind_name, strlen(kind_name));
    *cell = (struct retune_cell){.key = (uint32_t)kind | octave << 8 | flags << FLAG_SHIFT,
                               .settled = weft_plan_parse(plan_name)};
    if (kind == 0 || cell->settled == WEFT_PLAN_AUTO || octave > 63 || flags > 7 || time_ns == 0)
        return false;
    cell->times_ns[cell->settled] = time_ns;
    return weft_plan_supports(cell->settled, kind);
}

enum weft_status weft_group_plans_read(struct weft_group *group, const char *text, size_t bytes,
                                       struct weft_error *error)
{
    struct retune_cell cells[RETUNE_CELLS_MAX];
    char line[LINE_BYTES_MAX], is_wanted[LINE_BYTES_MAX];
    const char *at = text, *end = text + bytes;
    uint32_t count = 0, number = 3;
    if (!group->planning.retune || group->rank != 0) return WEFT_OK;
    if (!next_line(&at, end, line) || strcmp(line, "weft-plans 1") != 0)
        return weft_error_set(
            error, WEFT_ERR_MALFORMED,
            "line 1: not a table of plans of this version: remove the file, it is written anew");
    snprintf(is_wanted, sizeof is_wanted, "ranks %" PRIu32 " hosts %" PRIu32, group->ranks,
             host_count(group));
    if (!next_line(&at, end, line) || strcmp(line, is_wanted) != 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "line 2: the plans were tuned for other ranks than '%s'", is_wanted);
    for (; next_line(&at, end, line); number++) {
        snprintf(is_wanted, sizeof is_wanted, "end %" PRIu32, count);
        if (strcmp(line, is_wanted) == 0) {
            for (uint32_t i = 0; i < count; i++) retune_seed(group, &cells[i]);
            return WEFT_OK;
        }
        if (count == RETUNE_CELLS_MAX || !cell_parse(line, &cells[count++])) break;
    }
    return weft_error_set(
        error, WEFT_ERR_MALFORMED,
        "line %" PRIu32 ": not a cell of a table of plans: remove the file, it is written anew", number);
}
