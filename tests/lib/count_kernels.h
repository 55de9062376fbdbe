/* count_kernels.h - the arithmetic of one step of a loop, counted in elements instead of time.
 *
 * A test links count_kernels.c with count_kernels_link_args (meson.build). weft_kernels() then returns a
 * table whose kernels count their elements per thread and call the real ones, and weft_loop_step of a watched
 * loop keeps the largest count of one step. Elements of compute threads are counted on those threads and not
 * used. */
#ifndef WEFT_TESTS_COUNT_KERNELS_H
#define WEFT_TESTS_COUNT_KERNELS_H

#include <stdint.h>

#include "base/base.h"

/* At most 8 loops. */
void count_kernels_watch(struct weft_loop *loop);
void count_kernels_forget(void);
/* Elements of the step with the most elements of any watched loop since the last watch or forget; and those
 * of all steps. */
uint64_t count_kernels_longest(void);
uint64_t count_kernels_total(void);

#endif
