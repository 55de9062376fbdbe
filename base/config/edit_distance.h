/* edit_distance.h - the distance between a misspelt name and a known one. */
#ifndef WEFT_BASE_CONFIG_EDIT_DISTANCE_H
#define WEFT_BASE_CONFIG_EDIT_DISTANCE_H

#include <stddef.h>

#define WEFT_EDIT_BYTES_MAX 64

/* Number of bytes to insert, delete or replace (Levenshtein). SIZE_MAX if one text is longer than
 * WEFT_EDIT_BYTES_MAX bytes. Any thread. */
size_t weft_edit_distance(const char *a, const char *b);

#endif
