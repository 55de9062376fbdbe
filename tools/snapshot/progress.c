/* progress.c - a bar on a terminal: "verify  [#####     ]  52 %  1.3 of 2.5 GiB". */
#include "tools/snapshot/progress.h"

#include <stdio.h>
#include <unistd.h>

#define WIDTH 30

void progress_begin(struct progress_bar *bar, const char *label)
{
    *bar = (struct progress_bar){.label = label, .percent = -1, .is_visible = isatty(STDERR_FILENO) == 1};
}

void progress_draw(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress_bar *bar = context;
    const int percent = total_bytes > 0 ? (int)(100.0 * (double)done_bytes / (double)total_bytes) : 100;
    char cells[WIDTH + 1];
    if (!bar->is_visible || percent == bar->percent) return;
    bar->percent = percent;
    for (int i = 0; i < WIDTH; i++) cells[i] = i < percent * WIDTH / 100 ? '#' : ' ';
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%s  [%s] %3d %%  %.1f of %.1f MiB", bar->label, cells, percent,
            (double)done_bytes / (1 << 20), (double)total_bytes / (1 << 20));
    fflush(stderr);
}

void progress_end(struct progress_bar *bar)
{
    if (bar->percent >= 0) fputs("\r\033[K", stderr);
}
