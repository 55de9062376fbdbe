/* input_backup.h - copies of buffers that a step overwrites, for a step that is run again or skipped.
 * Caller's thread. */
#ifndef WEFT_CLIENT_CALL_INPUT_BACKUP_H
#define WEFT_CLIENT_CALL_INPUT_BACKUP_H

#include <stdbool.h>
#include <stddef.h>

#include "weft/status.h"

struct backup;
struct weft_session;

enum weft_status client_backup_copy(struct weft_session *session, void *buffer, size_t bytes);
/* The same for memory that updates overwrite: client_backup_undo restores it. */
enum weft_status client_backup_copy_update(struct weft_session *session, void *buffer, size_t bytes);
/* Reserves the memory; client_backup_fill copies. */
enum weft_status client_backup_reserve_update(struct weft_session *session, void *buffer, size_t bytes,
                                              struct backup **backup_out);
/* copies up to byte `to`, before the update overwrites it. Engine thread */
void client_backup_fill(struct backup *backup, size_t to);
void client_backup_close(struct weft_session *session, bool restore); /* the step has ended */
/* the step is skipped: restores what updates overwrote */
void client_backup_undo(struct weft_session *session);
void client_backup_free(struct weft_session *session);

#endif
