/* fork_close.h - closes descriptors in the child of fork().
 *
 * A peer sees the end of a connection only when the last process that holds the socket exits. A trainer
 * may fork helpers that outlive it, such as a data loader. With a copy of the control connection in a
 * helper, the coordinator would not detect the trainer's death. All descriptors are close-on-exec, so exec
 * needs no code here. Children of a raw clone() are not covered. */
#ifndef WEFT_BASE_OS_FORK_CLOSE_H
#define WEFT_BASE_OS_FORK_CLOSE_H

/* Children of fork() close their copy of `fd` from now on. The table is fixed; when it is full, children
 * keep `fd`. Any thread. */
void fork_close_add(int fd);
/* Call before `fd` is closed, since its number may be used again. Ignores a descriptor that was not added. */
void fork_close_remove(int fd);

#endif
