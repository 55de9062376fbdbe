/* secret_file.h - reads the file with the secret of a job.
 *
 * A file that other users can read or write is refused, and so is a secret that is short enough to be
 * guessed. Group access is allowed: credentials of systemd and secret volumes of Kubernetes reach a process
 * through an ACL or a group. */
#ifndef WEFT_BASE_CONFIG_SECRET_FILE_H
#define WEFT_BASE_CONFIG_SECRET_FILE_H

#include "base/env.h"
#include "weft/status.h"

#define WEFT_SECRET_BYTES_MIN 16
#define WEFT_SECRET_BYTES_MAX 4096

/* Writes the content to secret_out without white space at its end. WEFT_ERR_IO: the file cannot be opened or
 * read. WEFT_ERR_INVALID: its mode or its length is refused. After a failure secret_out is "". Any thread;
 * blocks on the file. */
enum weft_status weft_secret_file_read(const char *path, char secret_out[WEFT_SECRET_BYTES_MAX + 1],
                                       struct weft_error *error);

#endif
