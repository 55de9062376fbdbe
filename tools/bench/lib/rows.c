/* rows.c - see rows.h. */
#include "tools/bench/lib/rows.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/bench/lib/origin.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/sweep.h"
#include "tools/size.h"

enum { RUNS_MAX = 1024 };
#define CHANCE 0.9

void bench_row_print(FILE *out, struct json_t *row, int digits)
{
    struct bench_origin origin;
    bench_origin_read(&origin);
    json_object_set_new(row, "host", json_string(origin.host));
    json_object_set_new(row, "weft_version", json_string(origin.version));
    json_object_set_new(row, "git_revision", json_string(origin.revision));
    json_object_set_new(row, "date", json_string(origin.date));
    json_dumpf(row, out, JSON_COMPACT | JSON_REAL_PRECISION(digits));
    fputc('\n', out);
    fflush(out);
    json_decref(row);
}

/* The number of a row: the first of these fields that it has. */
static const struct metric {
    /* field_of: only rows whose field field_of has value_of; NULL: any row */
    const char *field, *field_of, *value_of;
    const char *unit; /* NULL: the field "unit" of the row */
    bool lower_is_better;
} metrics[] = {
    {"weft", "bench", "p2p-beside", NULL, false},
    {"t_typical_us", "measure", "lat", "us", true},
    {"rate_Mps", "measure", "rate", "M/s", false},
    {"avg_GBps", NULL, NULL, "GB/s", false},
    {"time_us", NULL, NULL, "us", true},
    {"time_ms", NULL, NULL, "ms", true},
    {"throughput_ratio", "measure", "busy", "", false},
    {"cpu_us", "measure", "late", "us", true},
    {"first_5ms_cpu_us", "measure", "idle", "us", true},
};

static const char *word(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

static double number(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

/* ---- from a line to a row ---- */

static void append(char *text, size_t capacity, const char *format, const char *addition)
{
    size_t at = strlen(text);
    if (at > 0 && at + 1 < capacity) text[at++] = ' ';
    snprintf(text + at, capacity - at, format, addition);
    for (; text[at]; at++) { /* the file is not trusted, and the text is printed */
        if (text[at] < ' ' || text[at] > '~') text[at] = '?';
    }
}

/* Fields that identify the measurement go into the name; the transport, plan or kernel set goes into the
 * variant. */
static void name_row(const json_t *object, struct bench_measurement *row)
{
    static const struct {
        const char *field, *format;
    } words[] = {
        {"section", "%s"},   {"kernel", "%s"}, {"codec", "%s"}, {"op", "%s"},
        {"measure", "%s"},   {"dtype", "%s"},  {"redop", "%s"}, {"pattern", "%s"},
        {"wait", "wait %s"}, {"memory", "%s"}, {"from", "%s"},  {"to", "to %s"},
    };
    static const char *const numbers[] = {"ranks", "shards", "window", "elements"};
    static const char *const variants[] = {"transport", "plan", "variant"};
    char text[40], size[24];
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (*word(object, words[i].field))
            append(row->name, sizeof row->name, words[i].format, word(object, words[i].field));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!(number(object, numbers[i]) > 0)) continue;
        snprintf(text, sizeof text, "%s %.10g", numbers[i], number(object, numbers[i]));
        append(row->name, sizeof row->name, "%s", text);
    }
    double bytes = number(object, "bytes");
    if (bytes > 0 && bytes < 1e18) {
        tool_size_format((uint64_t)bytes, size, sizeof size);
        append(row->name, sizeof row->name, "%sB", size);
    }
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if (*word(object, variants[i]))
            append(row->variant, sizeof row->variant, "%s", word(object, variants[i]));
    }
}

/* A number that the caller names: speeds should rise, everything else (times, CPU, copies) should fall. */
static bool is_speed(const char *field)
{
    return strstr(field, "GBps") || strstr(field, "Mps") || strstr(field, "ratio");
}

static bool measured(const json_t *object, const char *asked, struct bench_measurement *row)
{
    *row = (struct bench_measurement){.wrong = number(object, "wrong")};
    const char *field = asked, *unit = "";
    row->lower_is_better = asked && !is_speed(asked);
    for (size_t i = 0; !field && i < sizeof metrics / sizeof metrics[0]; i++) {
        const struct metric *metric = &metrics[i];
        if (metric->field_of && strcmp(word(object, metric->field_of), metric->value_of) != 0) continue;
        if (!json_is_number(json_object_get(object, metric->field))) continue;
        field = metric->field;
        unit = metric->unit ? metric->unit : word(object, "unit");
        row->lower_is_better = metric->unit ? metric->lower_is_better : strcmp(unit, "us") == 0;
    }
    row->value = field ? number(object, field) : 0;
    if (!(row->value > 0)) return false;
    append(row->metric, sizeof row->metric, "%s", field);
    append(row->unit, sizeof row->unit, "%s", unit);
    name_row(object, row);
    return row->name[0] != 0;
}

static bool add(struct bench_rows *rows, const struct bench_measurement *row)
{
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        struct bench_measurement *more = realloc(rows->rows, capacity * sizeof *more);
        if (!more) return false;
        rows->rows = more;
        rows->capacity = capacity;
    }
    if (rows->count > 0 && strcmp(rows->rows[0].variant, row->variant) != 0) rows->several_variants = true;
    rows->rows[rows->count++] = *row;
    return true;
}

/* ---- a file ---- */

/* The next line, without its end, of at most BENCH_LINE_MAX bytes. 1: a line; 0: the end; -1: too long. */
static int next_line(FILE *file, char *line, size_t *bytes_out)
{
    size_t bytes = 0;
    int c;
    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        if (bytes == BENCH_LINE_MAX) return -1;
        line[bytes++] = (char)c;
    }
    *bytes_out = bytes;
    return c != EOF || bytes > 0;
}

static bool read_lines(FILE *file, const char *path, const char *metric, struct bench_rows *rows, char *error,
                       size_t error_bytes)
{
    struct bench_measurement row;
    char *line = malloc(BENCH_LINE_MAX);
    size_t bytes = 0;
    int found = 0;
    bool fine = line != NULL;
    snprintf(error, error_bytes, "out of memory");
    while (fine && (found = next_line(file, line, &bytes)) > 0) {
        json_t *object = json_loadb(line, bytes, 0, NULL);
        if (json_is_object(object) && measured(object, metric, &row))
            fine = rows->count < BENCH_ROWS_MAX && add(rows, &row);
        else if (bytes > 0) rows->skipped++;
        json_decref(object);
    }
    if (rows->count == BENCH_ROWS_MAX)
        snprintf(error, error_bytes, "%s has more than %d rows", path, BENCH_ROWS_MAX);
    if (found < 0)
        snprintf(error, error_bytes, "%s has a line of more than %d bytes: it is not of a benchmark", path,
                 BENCH_LINE_MAX);
    if (fine && ferror(file)) snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
    fine = fine && found == 0 && !ferror(file);
    free(line);
    return fine;
}

bool bench_rows_read(const char *path, const char *metric, struct bench_rows *rows, char *error,
                     size_t error_bytes)
{
    struct stat about;
    *rows = (struct bench_rows){0};
    FILE *file = fopen(path, "re");
    if (!file || fstat(fileno(file), &about) != 0 || S_ISDIR(about.st_mode)) {
        snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(file ? EISDIR : errno));
        if (file) fclose(file);
        return false;
    }
    bool fine = read_lines(file, path, metric, rows, error, error_bytes);
    fclose(file);
    if (fine && rows->count > 0) return true;
    if (fine && metric) snprintf(error, error_bytes, "no row of %s has a number '%s' above 0", path, metric);
    else if (fine)
        snprintf(error, error_bytes,
                 "%s has no row of a benchmark; make it with `weft bench ... --json > %s`", path, path);
    bench_rows_free(rows);
    return false;
}

void bench_rows_free(struct bench_rows *rows)
{
    free(rows->rows);
    *rows = (struct bench_rows){0};
}

/* ---- comparison ---- */

static bool same(const struct bench_measurement *a, const struct bench_measurement *b, bool variants)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->metric, b->metric) == 0 &&
           (!variants || strcmp(a->variant, b->variant) == 0);
}

/* The values of all runs of one measurement. */
static size_t collect(const struct bench_rows *rows, const struct bench_measurement *of, bool variants,
                      double *values)
{
    size_t count = 0;
    for (size_t i = 0; i < rows->count && count < RUNS_MAX; i++) {
        if (same(&rows->rows[i], of, variants)) values[count++] = rows->rows[i].value;
    }
    return count;
}

static void decide_direction(struct bench_difference *difference, double *a, double *b, double noise)
{
    double a_low, a_high, b_low, b_high;
    difference->a = bench_summarise(a, difference->a_runs).p50; /* sorts */
    difference->b = bench_summarise(b, difference->b_runs).p50;
    difference->ratio = difference->b / difference->a;
    difference->bounds_assumed =
        difference->a_runs < BENCH_RUNS_ENOUGH || difference->b_runs < BENCH_RUNS_ENOUGH;
    bench_median_bounds(a, difference->a_runs, CHANCE, &a_low, &a_high);
    bench_median_bounds(b, difference->b_runs, CHANCE, &b_low, &b_high);
    difference->low = difference->bounds_assumed ? difference->ratio * (1 - noise) : b_low / a_high;
    difference->high = difference->bounds_assumed ? difference->ratio * (1 + noise) : b_high / a_low;
    bool small = difference->ratio >= 1 - noise && difference->ratio <= 1 + noise;
    bool more = difference->low > 1, less = difference->high < 1;
    difference->direction = small || !(more || less) ? 0 : more != difference->row->lower_is_better ? 1 : -1;
}

static bool seen_before(const struct bench_rows *rows, size_t index, bool variants)
{
    for (size_t i = 0; i < index; i++) {
        if (same(&rows->rows[i], &rows->rows[index], variants)) return true;
    }
    return false;
}

size_t bench_rows_compare(const struct bench_rows *a, const struct bench_rows *b, double noise,
                          struct bench_difference *out, size_t capacity, size_t *only_a, size_t *only_b)
{
    bool variants = a->several_variants || b->several_variants;
    double a_values[RUNS_MAX], b_values[RUNS_MAX];
    size_t count = 0;
    *only_a = *only_b = 0;
    for (size_t i = 0; i < a->count; i++) {
        if (seen_before(a, i, variants)) continue;
        struct bench_difference difference = {.row = &a->rows[i]};
        difference.a_runs = collect(a, difference.row, variants, a_values);
        difference.b_runs = collect(b, difference.row, variants, b_values);
        if (difference.b_runs == 0) {
            ++*only_a;
            continue;
        }
        decide_direction(&difference, a_values, b_values, noise);
        if (count < capacity) out[count++] = difference;
    }
    for (size_t i = 0; i < b->count; i++) {
        if (!seen_before(b, i, variants) && collect(a, &b->rows[i], variants, a_values) == 0) ++*only_b;
    }
    return count;
}
