/* edit_distance.c - see edit_distance.h: one row of the table of Wagner and Fischer (1974). */
#include "base/config/edit_distance.h"

#include <stdint.h>
#include <string.h>

size_t weft_edit_distance(const char *a, const char *b)
{
    size_t row[WEFT_EDIT_BYTES_MAX + 1], width = strlen(b);
    if (width > WEFT_EDIT_BYTES_MAX || strlen(a) > WEFT_EDIT_BYTES_MAX) return SIZE_MAX;
    for (size_t j = 0; j <= width; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[width];
}
