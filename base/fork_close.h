/* fork_close.h - descriptors that a forked child does not keep.
 *
 * A connection ends for its peer when the last process that holds its socket is gone. A trainer forks helpers (a data loader, an uploader) that
 * outlive it: with a copy of the control connection in them the coordinator would not learn of its death. exec is no matter of this file: all
 * descriptors are close-on-exec. Of a process that clones itself without fork() nothing is known here. */
#ifndef WEFT_BASE_FORK_CLOSE_H
#define WEFT_BASE_FORK_CLOSE_H

/* From now on a child of fork() closes its copy. Descriptors beyond a fixed number of them are kept by children. Any thread. */
void fork_close_add(int fd);
/* Before the descriptor is closed: another one may have its number afterwards. One that was not added: nothing happens. */
void fork_close_remove(int fd);

#endif
