/* cpu_cache.h - how much a processor finds in the last cache before memory. */
#pragma once

#include <stddef.h>

/* Bytes, of the part that the first processor has: a machine of several such parts adds them up in what
 * sysconf says. 0: not known. Reads a file of the kernel's: not for each call. */
size_t weft_last_level_cache_bytes(void);
