/* progress.h - a bar on a terminal for a long action; nothing elsewhere. */
#ifndef WEFT_TOOLS_PROGRESS_H
#define WEFT_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress_bar {
    const char *label;
    const char *unit; /* of the counts; NULL: bytes, which are printed in MiB */
    int percent;      /* last one that was drawn; -1: none */
    bool is_visible;  /* standard error is a terminal */
};
void progress_begin(struct progress_bar *bar, const char *label, const char *unit);
/* context: the bar. For struct weft_snapshot_progress, too. */
void progress_draw(void *context, uint64_t done, uint64_t total);
void progress_end(struct progress_bar *bar); /* removes the bar */

#endif
