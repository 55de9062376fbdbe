/* file.h - a store in a file of a given disk. Internal to coordinator/store. */
#ifndef WEFT_COORDINATOR_STORE_FILE_H
#define WEFT_COORDINATOR_STORE_FILE_H

#include "coordinator/store/disk.h"
#include "coordinator/store/store.h"

/* As weft_store_open_file. Owns the disk, also on failure. */
enum weft_status store_file_open(struct weft_env *env, struct store_disk *disk, const char *name,
                                 struct weft_store **out, struct weft_error *error);
/* A file is compacted when it is longer than twice what is alive, and this. */
#define STORE_FILE_COMPACT_BYTES ((uint64_t)64 << 10)

#endif
