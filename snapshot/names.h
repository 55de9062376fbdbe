/* names.h - a set of names of pieces. Internal. */
#ifndef WEFT_SNAPSHOT_NAMES_H
#define WEFT_SNAPSHOT_NAMES_H

#include "snapshot/snapshot.h"

struct snapshot_names {
    struct weft_env *env;
    char (*list)[WEFT_PIECE_NAME_BYTES]; /* (count,) owned */
    size_t count, capacity;
};

enum weft_status snapshot_names_add(struct snapshot_names *names, const char *name); /* WEFT_ERR_NO_MEMORY */
/* After the last add, before snapshot_names_has: sorts, and removes what is there twice. */
void snapshot_names_sort(struct snapshot_names *names);
bool snapshot_names_has(const struct snapshot_names *names, const char *name);
void snapshot_names_free(struct snapshot_names *names);

#endif
