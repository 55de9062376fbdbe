/* disk.c - files of a store: PATH, PATH.lock, and PATH.part while it is compacted.
 *
 * The lock is flock on a file that is never renamed; the kernel releases it when its process dies. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/store/disk.h"

#define PATH_BYTES 4096

struct posix_disk {
    struct store_disk disk;
    struct weft_env *env;
    int fd, lock_fd; /* -1: closed */
    char path[PATH_BYTES], lock_path[PATH_BYTES + 8], part_path[PATH_BYTES + 8], folder[PATH_BYTES];
};

static struct posix_disk *of(struct store_disk *disk)
{
    return weft_container_of(disk, struct posix_disk, disk);
}

static enum weft_status result(bool succeeded)
{
    return succeeded ? WEFT_OK : WEFT_ERR_IO;
}

static enum weft_status posix_open(struct store_disk *disk)
{
    struct posix_disk *posix = of(disk);
    if (posix->lock_fd < 0) posix->lock_fd = open(posix->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (posix->fd >= 0) close(posix->fd);
    posix->fd = open(posix->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return result(posix->fd >= 0 && posix->lock_fd >= 0);
}

static enum weft_status posix_lock(struct store_disk *disk)
{
    if (flock(of(disk)->lock_fd, LOCK_EX | LOCK_NB) == 0) return WEFT_OK;
    return errno == EWOULDBLOCK || errno == EINTR ? WEFT_ERR_BUSY : WEFT_ERR_IO;
}

static void posix_unlock(struct store_disk *disk)
{
    (void)flock(of(disk)->lock_fd, LOCK_UN);
}

static bool posix_is_replaced(struct store_disk *disk)
{
    struct stat named, open_file;
    const struct posix_disk *posix = of(disk);
    return stat(posix->path, &named) != 0 || fstat(posix->fd, &open_file) != 0 ||
           named.st_ino != open_file.st_ino || named.st_dev != open_file.st_dev;
}

static enum weft_status posix_size(struct store_disk *disk, uint64_t *size_out)
{
    struct stat file;
    if (fstat(of(disk)->fd, &file) != 0) return WEFT_ERR_IO;
    *size_out = (uint64_t)file.st_size;
    return WEFT_OK;
}

static enum weft_status posix_read(struct store_disk *disk, uint64_t offset, void *data, size_t bytes)
{
    for (uint8_t *at = data; bytes > 0;) {
        const ssize_t got = pread(of(disk)->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return WEFT_ERR_IO;
        at += got, offset += (uint64_t)got, bytes -= (size_t)got;
    }
    return WEFT_OK;
}

static enum weft_status write_all(int fd, uint64_t offset, const void *data, size_t bytes)
{
    for (const uint8_t *at = data; bytes > 0;) {
        const ssize_t written = pwrite(fd, at, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return WEFT_ERR_IO;
        at += written, offset += (uint64_t)written, bytes -= (size_t)written;
    }
    return WEFT_OK;
}

static enum weft_status posix_write(struct store_disk *disk, uint64_t offset, const void *data, size_t bytes)
{
    return write_all(of(disk)->fd, offset, data, bytes);
}

static enum weft_status posix_sync(struct store_disk *disk)
{
    return result(fsync(of(disk)->fd) == 0);
}

static enum weft_status posix_truncate(struct store_disk *disk, uint64_t size)
{
    return result(ftruncate(of(disk)->fd, (off_t)size) == 0);
}

static enum weft_status posix_write_part(struct store_disk *disk, const void *data, size_t bytes)
{
    const int fd = open(of(disk)->part_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return WEFT_ERR_IO;
    const bool written = write_all(fd, 0, data, bytes) == WEFT_OK && fsync(fd) == 0;
    return result(close(fd) == 0 && written);
}

static enum weft_status posix_rename_part(struct store_disk *disk)
{
    return result(rename(of(disk)->part_path, of(disk)->path) == 0);
}

static enum weft_status posix_sync_folder(struct store_disk *disk)
{
    const int fd = open(of(disk)->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return WEFT_ERR_IO;
    const bool synced = fsync(fd) == 0;
    return result(close(fd) == 0 && synced);
}

static void posix_close(struct store_disk *disk)
{
    struct posix_disk *posix = of(disk);
    if (posix->fd >= 0) close(posix->fd);
    if (posix->lock_fd >= 0) close(posix->lock_fd);
    weft_free_bytes(posix->env, posix);
}

enum weft_status store_disk_create(struct weft_env *env, const char *path, struct store_disk **out)
{
    if (path[0] == 0 || strlen(path) >= PATH_BYTES) return WEFT_ERR_INVALID;
    struct posix_disk *posix = weft_alloc_zero(env, sizeof *posix);
    if (!posix) return WEFT_ERR_NO_MEMORY;
    char copy[PATH_BYTES];
    posix->env = env;
    posix->fd = posix->lock_fd = -1;
    snprintf(posix->path, sizeof posix->path, "%s", path);
    snprintf(posix->lock_path, sizeof posix->lock_path, "%s.lock", path);
    snprintf(posix->part_path, sizeof posix->part_path, "%s.part", path);
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(posix->folder, sizeof posix->folder, "%s", dirname(copy));
    posix->disk = (struct store_disk){.open = posix_open,
                                      .lock = posix_lock,
                                      .unlock = posix_unlock,
                                      .is_replaced = posix_is_replaced,
                                      .size = posix_size,
                                      .read = posix_read,
                                      .write = posix_write,
                                      .sync = posix_sync,
                                      .truncate = posix_truncate,
                                      .write_part = posix_write_part,
                                      .rename_part = posix_rename_part,
                                      .sync_folder = posix_sync_folder,
                                      .close = posix_close};
    *out = &posix->disk;
    return WEFT_OK;
}
