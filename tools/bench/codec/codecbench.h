/* codecbench.h - what each codec does to a gradient, and from which link on it is worth its time.
 *
 * A case is one codec on one size. All ranks' sides run on one thread, with the calls that a trainer's
 * library makes, but without a network: what is timed is one rank's encoding, the combining of all
 * contributions, and one rank's decoding. A copy is timed in each round beside it. The result is compared
 * with the mean of the gradients, summed as doubles. */
#ifndef WEFT_TOOLS_BENCH_CODEC_CODECBENCH_H
#define WEFT_TOOLS_BENCH_CODEC_CODECBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/compress.h"

enum { CODECBENCH_STEPS = 10 };

struct codecbench_case {
    const struct weft_codec_spec *spec; /* as parsed; what it becomes for this size is in the row */
    uint64_t bytes;                     /* of the gradient as f32 */
    uint32_t ranks, rounds;
};

struct codecbench_row {
    struct weft_codec_spec spec; /* resolved: dense where the codec leaves such tensors alone */
    uint64_t rows, cols, bytes;  /* the matrix taken, and its bytes as f32 */
    size_t contribution_bytes;   /* one rank's, all rounds */
    double dense_moved, moved;   /* bytes out of each rank in an all-reduce over the ranks */
    double ratio;                /* dense bytes / contribution bytes */
    double error;                /* |result - mean| / |mean|, first step */
    /* the same of the sums over CODECBENCH_STEPS steps: what the residual makes good */
    double error_steps;
    double encode_s, combine_s, decode_s; /* medians over the rounds */
    double gbps;                          /* dense bytes / (encode + combine + decode), 1e9 per second */
    double copy_gbps;                     /* read plus written */
    double pays_below;                    /* bytes per second of the link; 0: never; infinity: always */
};

/* False: no memory, or the codec refuses (then *sentence says so; static text). */
bool codecbench_run(const struct codecbench_case *wanted, struct codecbench_row *row, const char **sentence);

#endif
