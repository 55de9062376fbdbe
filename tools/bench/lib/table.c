/* table.c - see table.h. */
#include "tools/bench/lib/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static char *cell_at(const struct bench_table *table, size_t row, size_t column)
{
    return table->cells + (row * table->column_count + column) * BENCH_TABLE_CELL_MAX;
}

void bench_table_init(struct bench_table *table, const struct bench_column *columns, size_t column_count)
{
    *table = (struct bench_table){.columns = columns, .column_count = column_count};
}

void bench_table_free(struct bench_table *table)
{
    free(table->cells);
    table->cells = NULL;
    table->row_count = table->row_capacity = 0;
}

void bench_table_row(struct bench_table *table)
{
    if (table->row_count == table->row_capacity) {
        size_t capacity = table->row_capacity ? 2 * table->row_capacity : 16;
        char *cells = realloc(table->cells, capacity * table->column_count * BENCH_TABLE_CELL_MAX);
        if (!cells) {
            table->is_truncated = true;
            return;
        }
        table->cells = cells;
        table->row_capacity = capacity;
    }
    memset(cell_at(table, table->row_count, 0), 0, table->column_count * BENCH_TABLE_CELL_MAX);
    table->row_count++;
}

void bench_table_cell(struct bench_table *table, size_t column, const char *format, ...)
{
    if (table->is_truncated || table->row_count == 0) return;
    va_list args;
    va_start(args, format);
    vsnprintf(cell_at(table, table->row_count - 1, column), BENCH_TABLE_CELL_MAX, format, args);
    va_end(args);
}

/* Columns of text on a terminal: bytes that do not continue a UTF-8 character. */
static size_t text_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cell(FILE *out, const char *text, size_t width, bool left, bool last)
{
    size_t fill = width - text_width(text);
    if (!left) fprintf(out, "%*s", (int)fill, "");
    fputs(text, out);
    if (left && !last) fprintf(out, "%*s", (int)fill, "");
}

void bench_table_print(const struct bench_table *table, FILE *out, const char *line_prefix)
{
    size_t widths[BENCH_TABLE_COLUMNS_MAX] = {0};
    bool units = false;
    for (size_t c = 0; c < table->column_count; c++) {
        size_t unit_width = text_width(table->columns[c].unit);
        widths[c] = text_width(table->columns[c].name);
        if (unit_width > widths[c]) widths[c] = unit_width;
        units = units || unit_width > 0;
        for (size_t r = 0; r < table->row_count; r++) {
            size_t width = text_width(cell_at(table, r, c));
            if (width > widths[c]) widths[c] = width;
        }
    }
    size_t first_row = units ? 2 : 1; /* lines: names, units, rows */
    for (size_t line = 0; line < first_row + table->row_count; line++) {
        fputs(line < first_row ? line_prefix : "", out);
        if (line >= first_row) fprintf(out, "%*s", (int)text_width(line_prefix), "");
        for (size_t c = 0; c < table->column_count; c++) {
            const char *text = line == 0          ? table->columns[c].name
                               : line < first_row ? table->columns[c].unit
                                                  : cell_at(table, line - first_row, c);
            bool last = c + 1 == table->column_count;
            print_cell(out, text, widths[c], table->columns[c].left, last);
            if (!last) fputs("  ", out);
        }
        fputc('\n', out);
    }
    if (table->is_truncated) fprintf(out, "%s(out of memory: rows are missing)\n", line_prefix);
}
