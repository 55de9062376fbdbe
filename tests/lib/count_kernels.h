/* count_kernels.h - how much arithmetic does one step of a loop do? Counted in elements, not in time.
 *
 * A test links count_kernels.c with COUNT_KERNELS_LINK_ARGS (meson.build): weft_kernels() then answers a
 * table whose kernels count the elements they are given on this thread and pass them on, and
 * weft_loop_step of a watched loop keeps the largest number that one step has seen. What a compute thread
 * does is counted there, for nobody. */
#ifndef WEFT_TESTS_COUNT_KERNELS_H
#define WEFT_TESTS_COUNT_KERNELS_H

#include <stdint.h>

#include "base/base.h"

/* Up to 8 loops. */
void count_kernels_watch(struct weft_loop *loop);
void count_kernels_forget(void);
/* Elements of the longest step of any watched loop since the last watch or forget; and of all steps
 * together. */
uint64_t count_kernels_longest(void);
uint64_t count_kernels_total(void);

#endif
