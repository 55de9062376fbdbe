/* heat.h - a square matrix as a heat map (SVG): one coloured cell for each pair, its value inside. */
#ifndef WEFT_TOOLS_BENCH_LIB_HEAT_H
#define WEFT_TOOLS_BENCH_LIB_HEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bench_heat {
    const char *title, *subtitle;
    const char *const *names; /* (count,) of rows and columns */
    const double *values;     /* (count, count), row after row; NAN: an empty cell */
    size_t count;
};

/* Colours go from 0 (red) over the median (white) to twice the median and more (blue): equal values are
 * white, and one outlier does not change the others. False: the stream failed, or no cell is above 0. */
bool bench_heat_write(const struct bench_heat *heat, FILE *out);

#endif
