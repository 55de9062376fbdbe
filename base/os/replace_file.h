/* replace_file.h - writes a file so that a reader sees the old content or the new one, never a part.
 *
 *     regular file, or none    PATH.part.XXXXXX next to it -> renamed over PATH by the commit
 *     symbolic link            the same for the file that it names; the link stays
 *     device, pipe, /dev/fd    written in place: a rename would replace the device by a file
 *
 * Blocks for the disk, and up to 2 s for a reader of a FIFO. Any thread. */
#ifndef WEFT_BASE_OS_REPLACE_FILE_H
#define WEFT_BASE_OS_REPLACE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#define WEFT_REPLACE_PATH_BYTES 4096 /* PATH_MAX; base.h includes this header, so it includes no system
                                      * limits */
#define WEFT_PART_MARK ".part."      /* in the name of a file that is not whole yet */

struct weft_replace_file {
    int fd;           /* -1: not open */
    bool is_in_place; /* the path is a device, pipe or descriptor: no part, no rename */
    char path[WEFT_REPLACE_PATH_BYTES], part[WEFT_REPLACE_PATH_BYTES];
};

/* Opens the part, or the device. mode: of a new file, less the umask. Returns 0 or an errno, and then nothing
 * is left. ENXIO: no process reads the FIFO. */
int weft_replace_file_open(struct weft_replace_file *file, const char *path, unsigned mode);
/* Closes the file. reason 0: renames it, behind a flush to disk if is_durable; otherwise removes the part.
 * Returns reason, or the errno of the first failure. */
int weft_replace_file_close(struct weft_replace_file *file, int reason, bool is_durable);
/* Returns 0 or an errno. */
int weft_replace_file_write(const struct weft_replace_file *file, const void *data, size_t bytes);
/* Opens, writes and closes the file. Returns 0 or an errno. */
int weft_replace_file(const char *path, const void *data, size_t bytes, unsigned mode);

#endif
