/* bundle.h - a folder of text files without secrets, packed by the system's tar. */
#ifndef WEFT_TOOLS_SUPPORT_BUNDLE_H
#define WEFT_TOOLS_SUPPORT_BUNDLE_H

#include <stdbool.h>
#include <stddef.h>

#define BUNDLE_SECRETS_MAX 16
#define BUNDLE_REMOVED "(removed)"

struct bundle {
    char folder[512];                  /* scratch; the files are in its weft-support/ */
    char *secrets[BUNDLE_SECRETS_MAX]; /* owned */
    unsigned secret_count;
};

/* false: no scratch folder; errno has the reason. */
bool bundle_open(struct bundle *bundle);
void bundle_close(struct bundle *bundle); /* removes the scratch folder */
/* No file that is added later has this text; it is replaced by BUNDLE_REMOVED. Texts below 4 bytes are
 * ignored. */
void bundle_add_secret(struct bundle *bundle, const char *secret);
/* Writes one file: text of `bytes` without secrets. Also removes the value of every WEFT_SECRET=. At most the
 * last `bytes_max` of the result are written. `name` has no slash. false: errno has the reason. */
bool bundle_add(struct bundle *bundle, const char *name, const char *text, size_t bytes, size_t bytes_max);
/* The same with the content of a file. Longer ones than 64 MiB are left out: errno is EFBIG. */
bool bundle_add_file(struct bundle *bundle, const char *name, const char *path, size_t bytes_max);
/* Runs a program and adds its standard output and error, with a last line about its end if that was not exit
 * status 0. Kills it after `seconds`. */
bool bundle_add_output(struct bundle *bundle, const char *name, const char *const words[], unsigned seconds);
/* Packs the files as `path`, a tar compressed by gzip, readable by its owner only. false: the sentence is on
 * stderr. */
bool bundle_pack(const struct bundle *bundle, const char *path);

#endif
