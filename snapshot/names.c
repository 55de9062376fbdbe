/* names.c - see names.h. */
#include "snapshot/names.h"

#include <stdlib.h>
#include <string.h>

enum weft_status snapshot_names_add(struct snapshot_names *names, const char *name)
{
    if (names->count == names->capacity) {
        const size_t capacity = names->capacity ? 2 * names->capacity : 256;
        char(*more)[WEFT_PIECE_NAME_BYTES] = weft_alloc_array(names->env, capacity, sizeof *more);
        if (!more) return WEFT_ERR_NO_MEMORY;
        if (names->count) memcpy(more, names->list, names->count * sizeof *more);
        weft_free_bytes(names->env, names->list);
        names->list = more;
        names->capacity = capacity;
    }
    memcpy(names->list[names->count++], name, WEFT_PIECE_NAME_BYTES);
    return WEFT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

void snapshot_names_sort(struct snapshot_names *names)
{
    size_t kept = 0;
    if (names->count > 0) qsort(names->list, names->count, sizeof *names->list, compare_names);
    for (size_t i = 0; i < names->count; i++)
        if (i == 0 || strcmp(names->list[i], names->list[kept - 1]) != 0)
            memmove(names->list[kept++], names->list[i], sizeof *names->list);
    names->count = kept;
}

bool snapshot_names_has(const struct snapshot_names *names, const char *name)
{
    return names->count > 0 && bsearch(name, names->list, names->count, sizeof *names->list, compare_names);
}

void snapshot_names_free(struct snapshot_names *names)
{
    weft_free_bytes(names->env, names->list);
    names->list = NULL;
    names->count = names->capacity = 0;
}
