/* bench_plot.c - `weft bench plot`: columns of CSV files as an SVG chart. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/lib/chart.h"
#include "tools/bench/lib/csv.h"
#include "tools/bench/lib/output.h"

enum { SERIES_MAX = 16 };

struct plot {
    struct bench_chart chart;
    struct bench_series series[SERIES_MAX];
    struct bench_points points[SERIES_MAX];
    char names[SERIES_MAX][64];
    const char *x, *y, *output;
    double x_scale, y_scale;
};

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

/* -1: continue; otherwise the exit status. The files begin at argv[*first_out]. */
static int parse(struct plot *plot, int argc, char **argv, int *first_out)
{
    struct bench_chart *chart = &plot->chart;
    const struct cli_option table[] = {
        {"title", 0, "TEXT", "title of the chart", "", CLI_TEXT(&chart->title)},
        {"subtitle", 0, "TEXT", "line below the title", CLI_TEXT(&chart->subtitle)},
        {"x", 0, "COLUMN", "column of the horizontal axis, by its name in the first line of the files",
         CLI_TEXT(&plot->x)},
        {"y", 0, "COLUMN", "column of the vertical axis", CLI_TEXT(&plot->y)},
        {"x-label", 0, "TEXT", "label of the horizontal axis", "the column", CLI_TEXT(&chart->x.label)},
        {"y-label", 0, "TEXT", "label of the vertical axis", "the column", CLI_TEXT(&chart->y.label)},
        {"x-scale", 0, "FACTOR", "factor of every x (1e-6: bytes to MB)",
         CLI_REAL(&plot->x_scale, -DBL_MAX, DBL_MAX)},
        {"y-scale", 0, "FACTOR", "factor of every y", CLI_REAL(&plot->y_scale, -DBL_MAX, DBL_MAX)},
        {"x-log", 0, NULL, "logarithmic horizontal axis", CLI_FLAG(&chart->x.log)},
        {"x-bytes", 0, NULL, "logarithmic horizontal axis with powers of two: 64K, 1M",
         CLI_FLAG(&chart->x.bytes)},
        {"y-log", 0, NULL, "logarithmic vertical axis", CLI_FLAG(&chart->y.log)},
        {"x-min", 0, "VALUE", "left end of the axis", "from the data",
         CLI_REAL(&chart->x.min, -DBL_MAX, DBL_MAX)},
        {"x-max", 0, "VALUE", "right end", "from the data", CLI_REAL(&chart->x.max, -DBL_MAX, DBL_MAX)},
        {"y-min", 0, "VALUE", "lower end", "from the data", CLI_REAL(&chart->y.min, -DBL_MAX, DBL_MAX)},
        {"y-max", 0, "VALUE", "upper end", "from the data", CLI_REAL(&chart->y.max, -DBL_MAX, DBL_MAX)},
        {"output", 'o', "FILE", "file for the SVG", "standard output", CLI_TEXT(&plot->output)},
    };
    const struct cli_command command = {
        "weft bench plot",
        "weft bench plot --x COLUMN --y COLUMN [options] -o FILE.svg NAME=FILE.csv[,color=N][,dashed] ...",
        "Draws two columns of each CSV file as a line.\n", CLI_TABLE(table), .takes_arguments = true};
    int status = cli_parse(&command, argc, argv, first_out);
    chart->x.log |= chart->x.bytes;
    if (status >= 0 || (plot->x && plot->y && *first_out < argc)) return status;
    return tool_usage_error(command.name, "needs --x, --y and at least one NAME=FILE.csv");
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
    int first, status = parse(&plot, argc, argv, &first);
    if (status >= 0) return status;
    bool fine = true;
    for (; fine && first < argc; first++) fine = plot_series(&plot, argv[first]);
    status = fine ? plot_write(&plot) : 1;
    for (size_t i = 0; i < SERIES_MAX; i++) bench_points_free(&plot.points[i]);
    return status;
}
