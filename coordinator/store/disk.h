/* disk.h - what a file store needs of its file system, so that a test can stop at each operation. Internal to
 * coordinator/store. Functions return WEFT_OK, or WEFT_ERR_IO with the reason in errno. */
#ifndef WEFT_COORDINATOR_STORE_DISK_H
#define WEFT_COORDINATOR_STORE_DISK_H

#include "base/base.h"

struct store_disk {
    /* Opens the file and its lock, and creates them if they do not exist. Again after a rename. */
    enum weft_status (*open)(struct store_disk *disk);
    /* Exclusive among processes. WEFT_ERR_BUSY: another one has it. */
    enum weft_status (*lock)(struct store_disk *disk);
    void (*unlock)(struct store_disk *disk);
    /* The path names another file than the open one: a process has compacted it. With the lock. */
    bool (*is_replaced)(struct store_disk *disk);
    enum weft_status (*size)(struct store_disk *disk, uint64_t *size_out);
    enum weft_status (*read)(struct store_disk *disk, uint64_t offset, void *data, size_t bytes);
    enum weft_status (*write)(struct store_disk *disk, uint64_t offset, const void *data, size_t bytes);
    enum weft_status (*sync)(struct store_disk *disk);
    enum weft_status (*truncate)(struct store_disk *disk, uint64_t size);
    /* Another file beside it: written whole and synced; then it takes the path; then the folder is synced. */
    enum weft_status (*write_part)(struct store_disk *disk, const void *data, size_t bytes);
    enum weft_status (*rename_part)(struct store_disk *disk);
    enum weft_status (*sync_folder)(struct store_disk *disk);
    void (*close)(struct store_disk *disk);
};

/* The real one. */
enum weft_status store_disk_create(struct weft_env *env, const char *path, struct store_disk **out);

#endif
