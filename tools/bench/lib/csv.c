/* csv.c - see csv.h. */
#include "tools/bench/lib/csv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find_column(char *header, const char *name)
{
    int column = 0;
    char *rest = header;
    for (char *field; (field = strsep(&rest, ",")); column++) {
        if (strcmp(field, name) == 0) return column;
    }
    return -1;
}

static bool number_at(const char *line, int column, double *value_out)
{
    for (; column > 0; column--) {
        line = strchr(line, ',');
        if (!line) return false;
        line++;
    }
    char *end = NULL;
    *value_out = strtod(line, &end);
    return end != line && (*end == ',' || *end == '\0');
}

static bool append(struct bench_points *points, size_t *capacity, double x, double y)
{
    if (points->count == *capacity) {
        size_t more = *capacity ? 2 * *capacity : 64;
        double *xs = realloc(points->x, more * sizeof(*xs));
        if (xs) points->x = xs;
        double *ys = realloc(points->y, more * sizeof(*ys));
        if (ys) points->y = ys;
        if (!xs || !ys) return false;
        *capacity = more;
    }
    points->x[points->count] = x;
    points->y[points->count++] = y;
    return true;
}

bool bench_csv_read(const char *path, const char *x_name, const char *y_name, struct bench_points *points,
                    char *error, size_t error_bytes)
{
    *points = (struct bench_points){0};
    FILE *file = fopen(path, "r");
    if (!file) {
        snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
        return false;
    }
    char *line = NULL;
    size_t line_capacity = 0, capacity = 0;
    int x_column = -1, y_column = -1;
    bool fine = true;
    for (bool first = true; fine && getline(&line, &line_capacity, file) > 0; first = false) {
        line[strcspn(line, "\r\n")] = 0;
        double x, y;
        if (first) {
            char *copy = strdup(line);
            x_column = find_column(line, x_name);
            y_column = copy ? find_column(copy, y_name) : -1;
            free(copy);
            fine = x_column >= 0 && y_column >= 0;
            if (!fine)
                snprintf(error, error_bytes, "%s has no column '%s'", path, x_column < 0 ? x_name : y_name);
        } else if (number_at(line, x_column, &x) && number_at(line, y_column, &y)) {
            fine = append(points, &capacity, x, y);
            if (!fine) snprintf(error, error_bytes, "out of memory for the rows of %s", path);
        }
    }
    free(line);
    fclose(file);
    if (!fine) bench_points_free(points);
    return fine;
}

void bench_points_free(struct bench_points *points)
{
    free(points->x);
    free(points->y);
    *points = (struct bench_points){0};
}
