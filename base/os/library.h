/* library.h - shared objects that weft opens while it runs, kept apart from the program's own symbols. */
#ifndef WEFT_BASE_OS_LIBRARY_H
#define WEFT_BASE_OS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* Open the file, for the rest of the process. Its symbols stay out of the global scope. Its own references
 * prefer its own libraries to symbols of the program, unless another library or a sanitizer replaces malloc.
 * Blocks while the dynamic loader works. Any thread. NULL: dlerror() has the reason. */
void *weft_library_open(const char *path);

/* The folder of the file whose code or data contains `address`, with links resolved. false: it is not
 * known. */
bool weft_library_folder(const void *address, char *out, size_t bytes);

/* The program's environment. A program at a fixed address has the valid copy of `environ`; the C library's
 * spare one, which objects that prefer their own libraries find, is set to it. Call this before a library
 * reads `environ`. Any thread; as getenv(), not beside a setenv(). */
char **weft_environment(void);

#endif
