/* progress.c - a bar on a terminal: "verify  [#####     ]  52 %  1.3 of 2.5 MiB". */
#include "tools/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define WIDTH 30

void progress_begin(struct progress_bar *bar, const char *label, const char *unit)
{
    *bar = (struct progress_bar){
        .label = label, .unit = unit, .percent = -1, .is_visible = isatty(STDERR_FILENO) == 1};
}

void progress_draw(void *context, uint64_t done, uint64_t total)
{
    struct progress_bar *bar = context;
    const int percent = total > 0 ? (int)(100.0 * (double)done / (double)total) : 100;
    char cells[WIDTH + 1];
    if (!bar->is_visible || percent == bar->percent) return;
    bar->percent = percent;
    for (int i = 0; i < WIDTH; i++) cells[i] = i < percent * WIDTH / 100 ? '#' : ' ';
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%s  [%s] %3d %%  ", bar->label, cells, percent);
    if (bar->unit) fprintf(stderr, "%" PRIu64 " of %" PRIu64 " %s", done, total, bar->unit);
    else fprintf(stderr, "%.1f of %.1f MiB", (double)done / (1 << 20), (double)total / (1 << 20));
    fflush(stderr);
}

void progress_end(struct progress_bar *bar)
{
    if (bar->percent >= 0) fputs("\r\033[K", stderr);
}
