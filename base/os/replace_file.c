/* replace_file.c - see replace_file.h. */
#include "base/os/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READER_WAIT_MS 2000
#define READER_POLL_MS 20
#define NAMES_MAX 100 /* attempts to create a name that does not exist */

/* The target of /dev/stdout or /dev/fd/1 may be a regular file to which other processes write. */
static bool is_link_to_descriptor(const char *path, const struct stat *named)
{
    return S_ISLNK(named->st_mode) && (strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0);
}

/* Opens a FIFO without blocking: an open that blocks has no deadline. */
static int open_in_place(struct weft_replace_file *file)
{
    struct stat there;
    const int flags = O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC;
    for (int waited = 0; (file->fd = open(file->path, flags)) < 0; waited += READER_POLL_MS) {
        const int reason = errno;
        if (reason == EINTR) continue;
        if (reason != ENXIO || waited >= READER_WAIT_MS) return reason;
        if (stat(file->path, &there) != 0 || !S_ISFIFO(there.st_mode)) return reason;
        (void)poll(NULL, 0, READER_POLL_MS);
    }
    /* other processes write to a regular file: append */
    if (fstat(file->fd, &there) == 0 && fcntl(file->fd, F_SETFL, S_ISREG(there.st_mode) ? O_APPEND : 0) == 0)
        return 0;
    const int reason = errno;
    close(file->fd);
    file->fd = -1;
    return reason;
}

static int open_part(struct weft_replace_file *file, unsigned mode)
{
    static atomic_uint serial; /* threads may write the same file at the same time */
    for (int i = 0; i < NAMES_MAX; i++) {
        /* processes of two containers may have the same pid; the address of `file` is random */
        const uint32_t number =
            (uint32_t)((uintptr_t)file >> 4) ^ ((uint32_t)getpid() << 8) ^ atomic_fetch_add(&serial, 1);
        if (snprintf(file->part, sizeof file->part, "%s" WEFT_PART_MARK "%06x", file->path,
                     (unsigned)(number & 0xffffff)) >= (int)sizeof file->part)
            return ENAMETOOLONG;
        file->fd = open(file->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (file->fd >= 0) return 0;
        if (errno != EEXIST && errno != EINTR) return errno;
    }
    return EEXIST;
}

int weft_replace_file_open(struct weft_replace_file *file, const char *path, unsigned mode)
{
    struct stat named, there;
    file->fd = -1;
    file->is_in_place = false;
    if (snprintf(file->path, sizeof file->path, "%s", path) >= (int)sizeof file->path) return ENAMETOOLONG;
    if (lstat(path, &named) != 0) return errno == ENOENT ? open_part(file, mode) : errno;
    if (stat(path, &there) == 0) {
        if (S_ISDIR(there.st_mode)) return EISDIR;
        file->is_in_place = !S_ISREG(there.st_mode) || is_link_to_descriptor(path, &named);
        if (file->is_in_place) return open_in_place(file);
        if (S_ISLNK(named.st_mode) && !realpath(path, file->path)) return errno;
    }
    return open_part(file, mode);
}

int weft_replace_file_write(const struct weft_replace_file *file, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        const ssize_t written = write(file->fd, from, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        from += written;
        bytes -= (size_t)written;
    }
    return 0;
}

int weft_replace_file_close(struct weft_replace_file *file, int reason, bool is_durable)
{
    if (reason == 0 && is_durable && !file->is_in_place && fsync(file->fd) != 0) reason = errno;
    if (close(file->fd) != 0 && reason == 0) reason = errno;
    file->fd = -1;
    if (file->is_in_place) return reason;
    if (reason == 0 && rename(file->part, file->path) != 0) reason = errno;
    if (reason != 0) (void)unlink(file->part);
    return reason;
}

int weft_replace_file(const char *path, const void *data, size_t bytes, unsigned mode)
{
    struct weft_replace_file file;
    const int reason = weft_replace_file_open(&file, path, mode);
    if (reason != 0) return reason;
    return weft_replace_file_close(&file, weft_replace_file_write(&file, data, bytes), false);
}
