/* codec_case.h - a codec as a case of the kernel benchmark: the cost of its kernels together. */
#ifndef WEFT_TOOLS_BENCH_KERNELS_CODEC_CASE_H
#define WEFT_TOOLS_BENCH_KERNELS_CODEC_CASE_H

#include <stdbool.h>
#include <stddef.h>

struct codec_case;

/* For `count` elements, or the largest square matrix within them and 4096 x 4096. NULL: no memory. */
struct codec_case *codec_case_open(const char *spec, bool square, size_t count);
size_t codec_case_elems(const struct codec_case *codec);
/* A whole step of one worker: encodes every round and takes its own bytes as the aggregate. A codec of one
 * round is not finished (only selection and residual). The step is committed, so that the next one has a
 * residual. */
void codec_case_step(struct codec_case *codec, const float *grad, float *out);
void codec_case_close(struct codec_case *codec);

#endif
