/* codec_threads.h - counts on which thread a codec's arithmetic runs. For tensors longer than a slice it must
 * be the compute thread, so that no step of the engine is long. Link with codec_threads_link_args
 * (meson.build), which wraps the codec's functions. */
#ifndef TEST_CLIENT_CODEC_THREADS_H
#define TEST_CLIENT_CODEC_THREADS_H

#include <stddef.h>
#include <stdint.h>

/* Elements of the longest tensor whose codec ran in a step of an engine; calls on the compute thread. */
uint64_t codec_threads_longest_step(void);
uint64_t codec_threads_apart(void);
/* From now on byte `at` of every aggregate is 0xff when it is taken. */
void codec_threads_spoil(size_t at);

#endif
