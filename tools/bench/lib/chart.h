/* chart.h - line charts as SVG: axes with round ticks, linear or logarithmic, a legend, no dependencies.
 *
 * A chart is a plain struct of borrowed arrays. Points that are not finite, or not positive on a logarithmic
 * axis, are left out. The colours of the palette are distinct for colour-blind readers and in print; a dash
 * pattern is a second attribute. */
#ifndef WEFT_TOOLS_BENCH_LIB_CHART_H
#define WEFT_TOOLS_BENCH_LIB_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bench_series {
    const char *name;
    const double *x, *y; /* (count,) */
    size_t count;
    unsigned color; /* index into the palette */
    bool dashed;
};

struct bench_axis {
    const char *label;
    bool log;
    double min, max; /* NAN: from the points */
    bool bytes;      /* of a logarithmic axis: ticks at powers of two, as 64K, 1M */
};

struct bench_chart {
    const char *title, *subtitle;
    struct bench_axis x, y;
    const struct bench_series *series;
    size_t series_count;
    unsigned width, height; /* pixels; 0: 880 x 480 */
};

/* False: the stream failed, or there is no point to draw. */
bool bench_chart_write(const struct bench_chart *chart, FILE *out);

/* Writes at most `capacity` round tick values inside [min, max]; returns their number. */
size_t bench_chart_ticks(double min, double max, bool log, double *ticks, size_t capacity);
/* The same at powers of two, a power of two apart: every 1, 2, 4 ... doublings, at most eight ticks. */
size_t bench_chart_ticks_binary(double min, double max, double *ticks, size_t capacity);

#endif
