/* library.h - opens shared objects at run time, with symbols separate from the program's. */
#ifndef WEFT_BASE_OS_LIBRARY_H
#define WEFT_BASE_OS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* Opens the file for the rest of the process. Its symbols are not global. Its own references prefer its own
 * libraries to the program's symbols, unless malloc is replaced. Blocks in the dynamic loader. Any thread.
 * NULL: dlerror() has the reason. */
void *weft_library_open(const char *path);

/* Writes the folder of the file that contains `address`, with links resolved. false: unknown. */
bool weft_library_folder(const void *address, char *out, size_t bytes);

/* The program's environment. A program at a fixed address has the valid copy of `environ`; this sets the C
 * library's spare copy, which objects opened with RTLD_DEEPBIND read. Call before such an object reads
 * `environ`. Any thread; as getenv(), not concurrent with setenv(). */
char **weft_environment(void);

#endif
