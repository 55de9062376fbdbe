/* codecbench.h - the effect of a codec on a gradient, and the link speed below which it pays.
 *
 * A case is one codec on one size. One thread runs the sides of all ranks with the calls of the client
 * library, without a network. The timed parts are the encoding of one rank, the combination of all
 * contributions, and the decoding of one rank. A copy is timed in each round, too. The result is compared
 * with the mean of the gradients, summed as doubles. */
#ifndef WEFT_TOOLS_BENCH_CODEC_CODECBENCH_H
#define WEFT_TOOLS_BENCH_CODEC_CODECBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/compress.h"

enum { CODECBENCH_STEPS = 10 };

struct codecbench_case {
    const struct weft_codec_spec *spec; /* as parsed; the row has the spec resolved for this size */
    uint64_t bytes;                     /* of the gradient as f32 */
    uint32_t ranks, rounds;
};

struct codecbench_row {
    struct weft_codec_spec spec; /* resolved: dense if the codec does not apply to such a tensor */
    uint64_t rows, cols, bytes;  /* the matrix, and its bytes as f32 */
    size_t contribution_bytes;   /* of one rank, all rounds */
    double dense_moved, moved;   /* bytes out of each rank in an all-reduce over the ranks */
    double ratio;                /* dense bytes / contribution bytes */
    double error;                /* |result - mean| / |mean|, first step */
    /* the same of the sums over CODECBENCH_STEPS steps, in which the residual returns what was left out */
    double error_steps;
    double encode_s, combine_s, decode_s; /* medians over the rounds */
    double gbps;                          /* dense bytes / (encode + combine + decode), 1e9 per second */
    double copy_gbps;                     /* read plus written */
    double pays_below;                    /* link speed, bytes per second; 0: never; infinity: always */
};

/* False: no memory, or the codec refuses; *sentence is static. */
bool codecbench_run(const struct codecbench_case *wanted, struct codecbench_row *row, const char **sentence);

#endif
