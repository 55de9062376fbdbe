/* temp_dir.h - a temporary directory and a free TCP port for one test. */
#ifndef WEFT_TESTS_LIB_TEMP_DIR_H
#define WEFT_TESTS_LIB_TEMP_DIR_H

#include <stdint.h>

/* Creates a directory under TMPDIR or /tmp; the path is allocated with malloc. temp_dir_remove deletes it
 * with its contents and frees the path; NULL is allowed. */
char *temp_dir_make(void);
void temp_dir_remove(char *path);

/* A port of 127.0.0.1 that was free at the time of the call. For programs that cannot listen on port 0 and
 * report the port. */
uint16_t free_tcp_port(void);

#endif
