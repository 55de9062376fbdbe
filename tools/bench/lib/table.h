/* table.h - an aligned text table with a row of units. Cells are collected first, because the width of a
 * column depends on all rows. Numbers are aligned right, words left. */
#ifndef WEFT_TOOLS_BENCH_LIB_TABLE_H
#define WEFT_TOOLS_BENCH_LIB_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { BENCH_TABLE_COLUMNS_MAX = 24, BENCH_TABLE_CELL_MAX = 176 };

struct bench_column {
    const char *name, *unit; /* unit "" : none */
    bool left;
};

struct bench_table {
    const struct bench_column *columns; /* borrowed */
    size_t column_count, row_count, row_capacity;
    char *cells;       /* owned: (row_capacity, column_count, BENCH_TABLE_CELL_MAX) */
    bool is_truncated; /* out of memory: later rows are missing, and bench_table_print notes it */
};

void bench_table_init(struct bench_table *table, const struct bench_column *columns, size_t column_count);
void bench_table_free(struct bench_table *table);
void bench_table_row(struct bench_table *table);
/* Fills column `column` of the newest row. */
void bench_table_cell(struct bench_table *table, size_t column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void bench_table_print(const struct bench_table *table, FILE *out, const char *line_prefix);

#endif
