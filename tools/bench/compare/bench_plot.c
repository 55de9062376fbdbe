/* bench_plot.c - `weft bench plot`: columns of CSV files as an SVG chart. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/lib/chart.h"
#include "tools/bench/lib/csv.h"
#include "tools/bench/lib/usage.h"

enum { SERIES_MAX = 16 };

enum {
    P_TITLE = 256,
    P_SUBTITLE,
    P_X,
    P_Y,
    P_XLABEL,
    P_YLABEL,
    P_XSCALE,
    P_YSCALE,
    P_XLOG,
    P_YLOG,
    P_XMIN,
    P_XMAX,
    P_YMIN,
    P_YMAX
};

static const struct option plot_options[] = {
    {"title", required_argument, NULL, P_TITLE},   {"subtitle", required_argument, NULL, P_SUBTITLE},
    {"x", required_argument, NULL, P_X},           {"y", required_argument, NULL, P_Y},
    {"x-label", required_argument, NULL, P_XLABEL}, {"y-label", required_argument, NULL, P_YLABEL},
    {"x-scale", required_argument, NULL, P_XSCALE}, {"y-scale", required_argument, NULL, P_YSCALE},
    {"x-log", no_argument, NULL, P_XLOG},          {"y-log", no_argument, NULL, P_YLOG},
    {"x-min", required_argument, NULL, P_XMIN},    {"x-max", required_argument, NULL, P_XMAX},
    {"y-min", required_argument, NULL, P_YMIN},    {"y-max", required_argument, NULL, P_YMAX},
    {"output", required_argument, NULL, 'o'},      {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char plot_help[] =
    "usage: weft bench plot --x COLUMN --y COLUMN [options] -o FILE.svg NAME=FILE.csv[,color=N][,dashed] "
    "...\n\n"
    "Draws two columns of each CSV file as a line.\n\n"
    "  --title, --subtitle TEXT           above the chart\n"
    "  --x, --y COLUMN                    by the names in the first line of the files\n"
    "  --x-label, --y-label TEXT          of the axes (default: the column)\n"
    "  --x-scale, --y-scale FACTOR        multiplied with every value (1e-6: bytes to MB)\n"
    "  --x-log, --y-log                   logarithmic axis\n"
    "  --x-min, --x-max, --y-min, --y-max VALUE   ends of the axes (default: from the data)\n"
    "  -o, --output FILE                  the SVG (default: standard output)\n";

struct plot {
    struct bench_chart chart;
    struct bench_series series[SERIES_MAX];
    struct bench_points points[SERIES_MAX];
    char names[SERIES_MAX][64];
    const char *x, *y, *output;
    double x_scale, y_scale;
};

static bool plot_number(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    if (end != text && !*end && isfinite(*out)) return true;
    fprintf(stderr, "weft bench plot: '%s' is not a number\n", text);
    return false;
}

static bool plot_option(struct plot *plot, int found, const char *text)
{
    struct bench_chart *chart = &plot->chart;
    switch (found) {
    case P_TITLE: chart->title = text; return true;
    case P_SUBTITLE: chart->subtitle = text; return true;
    case P_X: plot->x = text; return true;
    case P_Y: plot->y = text; return true;
    case P_XLABEL: chart->x.label = text; return true;
    case P_YLABEL: chart->y.label = text; return true;
    case P_XLOG: chart->x.log = true; return true;
    case P_YLOG: chart->y.log = true; return true;
    case P_XSCALE: return plot_number(text, &plot->x_scale);
    case P_YSCALE: return plot_number(text, &plot->y_scale);
    case P_XMIN: return plot_number(text, &chart->x.min);
    case P_XMAX: return plot_number(text, &chart->x.max);
    case P_YMIN: return plot_number(text, &chart->y.min);
    case P_YMAX: return plot_number(text, &chart->y.max);
    default: plot->output = text; return true;
    }
}

/* NAME=FILE[,color=N][,dashed] */
static bool plot_series(struct plot *plot, const char *text)
{
    size_t index = plot->chart.series_count;
    const char *equals = strchr(text, '=');
    if (!equals || index == SERIES_MAX) {
        fprintf(stderr, "weft bench plot: %s '%s'\n",
                equals ? "too many files, 16 fit on a chart:" : "expected NAME=FILE.csv, not", text);
        return false;
    }
    struct bench_series *series = &plot->series[index];
    *series = (struct bench_series){.name = plot->names[index], .color = (unsigned)index};
    snprintf(plot->names[index], sizeof(plot->names[index]), "%.*s", (int)(equals - text), text);
    char *copy = strdup(equals + 1), error[512] = "out of memory";
    char *rest = copy, *path = copy ? strsep(&rest, ",") : NULL;
    bool fine = path != NULL;
    for (char *word; fine && (word = strsep(&rest, ","));) {
        if (strcmp(word, "dashed") == 0) series->dashed = true;
        else if (sscanf(word, "color=%u", &series->color) != 1) fine = false;
        if (!fine) snprintf(error, sizeof(error), "'%s' in '%s': expected color=N or dashed", word, text);
    }
    fine = fine && bench_csv_read(path, plot->x, plot->y, &plot->points[index], error, sizeof(error));
    free(copy);
    if (!fine) {
        fprintf(stderr, "weft bench plot: %s\n", error);
        return false;
    }
    struct bench_points *points = &plot->points[index];
    for (size_t i = 0; i < points->count; i++) {
        points->x[i] *= plot->x_scale;
        points->y[i] *= plot->y_scale;
    }
    series->x = points->x;
    series->y = points->y;
    series->count = points->count;
    plot->chart.series_count++;
    return true;
}

static int plot_write(struct plot *plot)
{
    struct bench_chart *chart = &plot->chart;
    if (!chart->x.label) chart->x.label = plot->x;
    if (!chart->y.label) chart->y.label = plot->y;
    FILE *out = plot->output ? fopen(plot->output, "w") : stdout;
    if (!out) {
        fprintf(stderr, "weft bench plot: cannot write %s\n", plot->output);
        return 1;
    }
    bool fine = bench_chart_write(chart, out);
    if (out != stdout) fine = fclose(out) == 0 && fine;
    if (!fine)
        fprintf(stderr, "weft bench plot: nothing to draw, or %s cannot be written\n",
                plot->output ? plot->output : "the output");
    return fine ? 0 : 1;
}

int weft_bench_plot_main(int argc, char **argv)
{
    static struct plot plot;
    plot = (struct plot){.chart = {.title = "",
                                   .x = {.min = NAN, .max = NAN},
                                   .y = {.min = NAN, .max = NAN},
                                   .series = plot.series},
                         .x_scale = 1,
                         .y_scale = 1};
    int found;
    opterr = 0;
    optind = 1;
    while ((found = getopt_long(argc, argv, ":o:h", plot_options, NULL)) != -1) {
        if (found == 'h') return fputs(plot_help, stdout), 0;
        if (found == '?' || found == ':') return bench_option_error("plot", argv, found);
        if (!plot_option(&plot, found, optarg)) return 2;
    }
    if (!plot.x || !plot.y || optind == argc) {
        fprintf(stderr, "weft bench plot: needs --x, --y and at least one NAME=FILE.csv; see --help\n");
        return 2;
    }
    bool fine = true;
    for (; fine && optind < argc; optind++) fine = plot_series(&plot, argv[optind]);
    int status = fine ? plot_write(&plot) : 1;
    for (size_t i = 0; i < SERIES_MAX; i++) bench_points_free(&plot.points[i]);
    return status;
}
