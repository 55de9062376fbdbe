/* fork_close.h - closes descriptors in the child of fork().
 *
 * A peer sees the end of a connection when the last process closes the socket. A training program may fork
 * helpers that outlive it, such as a data loader. If a helper had a copy of the control connection, the
 * coordinator would not detect the death of the program. All descriptors are close-on-exec, so exec needs no
 * code here. Children of a raw clone() are not covered. */
#ifndef WEFT_BASE_OS_FORK_CLOSE_H
#define WEFT_BASE_OS_FORK_CLOSE_H

/* From here on children of fork() close their copy of `fd`. The table has a fixed size; if it is full,
 * children keep `fd`. Any thread. */
void fork_close_add(int fd);
/* Call before closing `fd`, since the number may be reused. No effect for a descriptor that was not added. */
void fork_close_remove(int fd);

#endif
