/* bench_limit.c - the least time of an all_reduce on one host by memory bandwidth. By any plan, each rank
 * loads as many bytes as the vector has, and stores as many. All ranks do this at once on the memory of the
 * row: by memcpy, by a non-temporal copy, and by a pass in place. The fastest is the limit. */
#include <string.h>

#include "kernels/kernels.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/kernels/kernelbench.h"

enum pass { PASS_COPY, PASS_STREAM, PASS_IN_PLACE, PASSES };

static void run_pass(struct bench_rank *rank, enum pass pass, size_t bytes)
{
    switch (pass) {
    case PASS_COPY: memcpy(rank->out, rank->in, bytes); break;
    case PASS_STREAM: kernelbench_stream_copy(rank->out, rank->in, bytes / 64 * 64); break;
    default: weft_kernels()->scale_f32(rank->in, rank->in, 1, bytes / sizeof(float)); break;
    }
    __asm__ volatile("" ::: "memory"); /* the compiler keeps every pass */
}

bool bench_limit(struct bench_rank *rank, double time_us, struct bench_limit *limit)
{
    size_t bytes = rank->args.total_elems * weft_dtype_bytes(rank->args.dtype);
    uint32_t iters = rank->options->iters;
    memset(rank->in, 0, bytes);
    for (int pass = 0; pass < PASSES; pass++) {
        double us;
        run_pass(rank, (enum pass)pass, bytes);
        if (!bench_barrier(rank)) return false;
        double began = bench_now_us();
        for (uint32_t i = 0; i < iters; i++) run_pass(rank, (enum pass)pass, bytes);
        if (!bench_average_over_ranks(rank, (bench_now_us() - began) / iters, &us)) return false;
        if (pass == 0 || us < limit->us) limit->us = us;
    }
    limit->has_value = true;
    limit->gbps = limit->us > 0 ? 2e-3 * (double)bytes / limit->us : 0;
    limit->percent = time_us > 0 ? 100 * limit->us / time_us : 0;
    return true;
}
