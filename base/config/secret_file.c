/* secret_file.c - see secret_file.h. The mode is that of the open file, so a rename between check and read
 * has no effect. */
#include "base/config/secret_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_SHOWN "%.200s"

static enum weft_status check_mode(FILE *file, const char *path, struct weft_error *error)
{
    struct stat about;
    if (fstat(fileno(file), &about) != 0)
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the secret file " PATH_SHOWN ": %s", path,
                              strerror(errno));
    /* A pipe has no other readers by name; a device is not a place for a secret and fails by its length. */
    if (!S_ISREG(about.st_mode) || !(about.st_mode & (S_IROTH | S_IWOTH))) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_INVALID,
                          "the secret file " PATH_SHOWN " has mode %04o, so other users of this host can %s "
                          "it; run chmod o-rwx on it, and make a new secret if others may know this one",
                          path, (unsigned)about.st_mode & 07777u,
                          about.st_mode & S_IROTH ? "read" : "replace");
}

static enum weft_status read_text(FILE *file, const char *path, char secret_out[WEFT_SECRET_BYTES_MAX + 1],
                                  struct weft_error *error)
{
    char text[WEFT_SECRET_BYTES_MAX + 2]; /* one byte more than allowed, and its end */
    errno = 0;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    if (ferror(file))
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the secret file " PATH_SHOWN ": %s", path,
                              strerror(errno));
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1])) bytes--;
    text[bytes] = 0;
    if (bytes < WEFT_SECRET_BYTES_MIN || bytes > WEFT_SECRET_BYTES_MAX || strlen(text) != bytes)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "the secret file " PATH_SHOWN " must hold one line of %d to %d characters; "
                              "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n' makes one",
                              path, WEFT_SECRET_BYTES_MIN, WEFT_SECRET_BYTES_MAX);
    memcpy(secret_out, text, bytes + 1);
    return WEFT_OK;
}

enum weft_status weft_secret_file_read(const char *path, char secret_out[WEFT_SECRET_BYTES_MAX + 1],
                                       struct weft_error *error)
{
    secret_out[0] = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the secret file " PATH_SHOWN ": %s", path,
                              strerror(errno));
    enum weft_status status = check_mode(file, path, error);
    if (status == WEFT_OK) status = read_text(file, path, secret_out, error);
    fclose(file);
    return status;
}
