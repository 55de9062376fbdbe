/* memory_library.h - the memory operations of another accelerator, from a library of its vendor.
 *
 *     WEFT_DEVICE_RUNTIME=FILE --dlopen--> symbol weft_memory_library --> struct weft_memory_ops
 *
 * The library exports one `const struct weft_memory_library weft_memory_library`. `open` is called once and
 * reports a missing device. All pointers of the table are set. docs/gpu.md has the steps; the device of the
 * tests (tests/lib/fake_device) is an example. */
#ifndef WEFT_BASE_MEMORY_MEMORY_LIBRARY_H
#define WEFT_BASE_MEMORY_MEMORY_LIBRARY_H

#include "base/memory/memory_kind.h"

#define WEFT_MEMORY_LIBRARY_VERSION 1u
#define WEFT_MEMORY_LIBRARY_SYMBOL "weft_memory_library"

struct weft_memory_library {
    uint32_t version, bytes; /* WEFT_MEMORY_LIBRARY_VERSION; of struct weft_memory_ops */
    const struct weft_memory_ops *ops;
    /* WEFT_ERR_UNSUPPORTED: there is no device, with the reason in reason_out (bytes,). */
    enum weft_status (*open)(char *reason_out, size_t bytes);
};

/* Private to base: the row of the table in memory_kind.c. */
enum weft_status memory_library_ops(const struct weft_memory_ops **ops_out, struct weft_error *error);
bool memory_library_in_use(void);

#endif
