/* hook.h - calls of the hook's program, for the files of the hook. Internal. */
#ifndef WEFT_SNAPSHOT_HOOK_H
#define WEFT_SNAPSHOT_HOOK_H

#include "snapshot/folder.h"

struct weft_env *snapshot_hook_env(const struct weft_snapshot_hook *hook);
/* Runs PROGRAM verb first [second] up to three times and waits. second "": none. WEFT_ERR_IO. */
enum weft_status snapshot_hook_run(struct weft_snapshot_hook *hook, const char *verb, const char *first,
                                   const char *second, struct weft_error *error);
/* Steps of the manifests that `list` prints, ascending, owned by the caller. */
enum weft_status snapshot_hook_steps(struct weft_snapshot_hook *hook, uint64_t **steps_out,
                                     uint32_t *count_out, struct weft_error *error);

#endif
