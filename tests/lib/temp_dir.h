/* temp_dir.h - a directory and a TCP port of a test's own. */
#ifndef WEFT_TESTS_LIB_TEMP_DIR_H
#define WEFT_TESTS_LIB_TEMP_DIR_H

#include <stdint.h>

/* A new directory under TMPDIR or /tmp; its path is malloc'ed. temp_dir_remove deletes it with all it
 * holds and frees the path; NULL is fine. */
char *temp_dir_make(void);
void temp_dir_remove(char *path);

/* A port of 127.0.0.1 that was free a moment ago. Prefer listening on port 0 and asking which it is;
 * this is for programs that must be told. */
uint16_t free_tcp_port(void);

#endif
