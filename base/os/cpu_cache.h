/* cpu_cache.h - size of the last-level cache. */
#pragma once

#include <stddef.h>

/* Bytes of the last-level cache that CPU 0 uses; 0: unknown. sysconf adds up all such caches of a machine, so
 * it is only the fallback. Reads a file in /sys: do not call it per operation. */
size_t weft_last_level_cache_bytes(void);
