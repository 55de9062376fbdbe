/* folder.h - paths and files of the snapshot folder. Internal. */
#ifndef WEFT_SNAPSHOT_FOLDER_H
#define WEFT_SNAPSHOT_FOLDER_H

#include "snapshot/snapshot.h"

#define SNAPSHOT_PATH_BYTES 4096
#define SNAPSHOT_PART_MARK WEFT_PART_MARK

/* Write SNAPSHOT_PATH_BYTES at most. WEFT_ERR_INVALID: the path is longer. */
enum weft_status snapshot_piece_path(const char *folder, const char *name, char *out,
                                     struct weft_error *error);
enum weft_status snapshot_manifest_path(const char *folder, uint64_t step, char *out,
                                        struct weft_error *error);

/* Writes a part, flushes it, renames it to path and flushes the folder. */
enum weft_status snapshot_file_write(const char *path, const void *data, size_t bytes,
                                     struct weft_error *error);
/* Reads a regular file of 1 to bytes_max bytes; the caller frees *data_out. */
enum weft_status snapshot_file_read(struct weft_env *env, const char *path, size_t bytes_max,
                                    uint8_t **data_out, size_t *bytes_out, struct weft_error *error);
/* One piece without its bases; its content is not compared with its name. */
enum weft_status snapshot_piece_read(struct weft_env *env, const char *folder, const char *name,
                                     struct weft_piece **out, struct weft_piece_ref *ref_out,
                                     struct weft_error *error);
/* FOLDER/NAME, if it is not there. */
enum weft_status snapshot_folder_make_inner(const char *folder, const char *name, struct weft_error *error);
/* false: the name is not that of a manifest. */
bool snapshot_manifest_step(const char *name, uint64_t *step_out);

#endif
