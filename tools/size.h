/* size.h - byte counts as text: 8, 64K, 25M, 1G. */
#ifndef WEFT_TOOLS_SIZE_H
#define WEFT_TOOLS_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOOL_SIZE_MAX (((uint64_t)1 << 48) - 1)

/* A decimal number with an optional suffix K, M or G (powers of 1024); "B" or "iB" may follow. False: not
 * such a number, or more than TOOL_SIZE_MAX. */
bool tool_size_parse(const char *text, uint64_t *bytes_out);
/* The reverse, in the shortest exact form: "64K", "1000", "1M". 24 bytes are enough for `out`. */
void tool_size_format(uint64_t bytes, char *out, size_t out_bytes);

/* "1.5 MiB": at most one digit after the point. */
void tool_bytes_format(long long bytes, char out[24]);

#endif
