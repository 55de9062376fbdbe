/* bench_curves.c - the chart of `weft bench OPERATION --plot`; see bench_report.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_report.h"
#include "tools/bench/lib/chart.h"
#include "tools/bench/lib/svg.h"

enum { CURVES_MAX = 24, POINTS_MAX = 256 };

struct curve {
    char name[64];
    double x[POINTS_MAX], y[POINTS_MAX];
    size_t count;
    bool in_place;
};

struct bench_curves {
    struct curve curves[CURVES_MAX];
    size_t count;
};

/* Curves beyond the limit of the chart are left out. */
static struct curve *curve_named(struct bench_curves *curves, const char *name)
{
    for (size_t i = 0; i < curves->count; i++) {
        if (strcmp(curves->curves[i].name, name) == 0) return &curves->curves[i];
    }
    if (curves->count == CURVES_MAX) return NULL;
    struct curve *curve = &curves->curves[curves->count++];
    snprintf(curve->name, sizeof curve->name, "%s", name);
    return curve;
}

static void add(struct bench_curves *curves, const struct bench_row *row, const struct bench_timing *timing,
                const char *form)
{
    char name[64];
    int at = snprintf(name, sizeof name, "%s", weft_dtype_name(row->dtype));
    if (row->op) at += snprintf(name + at, sizeof name - (size_t)at, " %s", weft_op_name(row->op));
    if (row->root > 0) at += snprintf(name + at, sizeof name - (size_t)at, " root %d", row->root);
    snprintf(name + at, sizeof name - (size_t)at, " %s", form);
    struct curve *curve = timing->has_value ? curve_named(curves, name) : NULL;
    if (!curve || curve->count == POINTS_MAX) return;
    curve->x[curve->count] = (double)row->bytes;
    curve->y[curve->count++] = timing->busbw;
    curve->in_place = timing == &row->in_place;
}

void bench_curves_add(struct bench_curves **curves, const struct bench_row *row)
{
    if (!*curves) *curves = calloc(1, sizeof **curves);
    if (!*curves) return;
    add(*curves, row, &row->out_of_place, "out of place");
    add(*curves, row, &row->in_place, "in place");
}

static bool draw(const void *chart, FILE *out)
{
    return bench_chart_write(chart, out);
}

bool bench_curves_write(const struct bench_curves *curves, const char *path, const char *title,
                        const char *subtitle)
{
    struct bench_series series[CURVES_MAX];
    for (size_t i = 0; curves && i < curves->count; i++) {
        const struct curve *curve = &curves->curves[i];
        series[i] = (struct bench_series){.name = curve->name,
                                          .x = curve->x,
                                          .y = curve->y,
                                          .count = curve->count,
                                          .color = (unsigned)i / 2,
                                          .dashed = curve->in_place};
    }
    const struct bench_chart chart = {.title = title,
                                      .subtitle = subtitle,
                                      .x = {"size (bytes)", true, NAN, NAN, .bytes = true},
                                      .y = {"busbw (GB/s)", true, NAN, NAN},
                                      .series = series,
                                      .series_count = curves ? curves->count : 0};
    if (chart.series_count > 0) return bench_svg_write_file("weft bench", path, draw, &chart);
    fprintf(stderr, "weft bench: there is nothing to draw in %s\n", path);
    return false;
}

void bench_curves_free(struct bench_curves *curves)
{
    free(curves);
}
