/* progress.h - a bar on a terminal for an action that takes long; nothing elsewhere. */
#ifndef WEFT_TOOLS_SNAPSHOT_PROGRESS_H
#define WEFT_TOOLS_SNAPSHOT_PROGRESS_H

#include "snapshot/snapshot.h"

struct progress_bar {
    const char *label;
    int percent;     /* last one that was drawn; -1: none */
    bool is_visible; /* standard error is a terminal */
};
void progress_begin(struct progress_bar *bar, const char *label);
/* For struct weft_snapshot_progress; context: the bar. */
void progress_draw(void *context, uint64_t done_bytes, uint64_t total_bytes);
void progress_end(struct progress_bar *bar); /* removes the bar */

#endif
