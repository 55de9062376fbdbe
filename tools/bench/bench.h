/* bench.h - `weft bench`: measures what users of the C API get; p2p and kernels what lies below it.
 *
 *   bench.c          the command line: which benchmark, launch or take part
 *   bench_options    sizes, type, operation, plan, transport ...
 *   bench_operation  what the operations differ in: buffers, bandwidth, call, contents
 *   bench_pattern    inputs whose reductions are known exactly, and the check of every element
 *   bench_job        session, sweep, rows; bench_timing the timed loops; bench_machine clocks and memory (bench_rank.h)
 *   bench_report     the table (nccl-tests' columns) and the JSON rows; bench_curves what --plot draws
 *   bench_launch     starts the processes; bench_start `weft bench start`, bench_calibrate `weft bench calibrate`, bench_orders `weft bench orders`
 *   bench_replay     `weft bench replay`: records (inspect/) become calls (replay_calls), and are made again
 *   bench_kernels    `weft bench kernels`, over tools/bench/kernels
 *   bench_exposed    `weft bench exposed`: what a step waits for; bench_waiting `weft bench waiting`
 *   bench_lines      `weft bench lines`: a cache line between two cores
 *   bench_codec      `weft bench codec`, over tools/bench/codec
 *   p2p/             `weft bench p2p`: endpoints of the transport room, without anything above them
 *   bench_chart      `weft bench plot`, bench_compare `weft bench compare`, over tools/bench/lib */
#ifndef WEFT_TOOLS_BENCH_BENCH_H
#define WEFT_TOOLS_BENCH_BENCH_H

#include <stdint.h>

/* argv[0] is "bench". Returns the exit status: 0, 1 (failed, or a result was wrong), 2 (usage),
 * 3 (of compare: something is slower). */
int weft_bench_main(int argc, char **argv);

/* bench_launch.c: `weft bench WHAT` with the same options in each of so many processes; the exit status. */
int bench_launch(uint32_t shards, uint32_t processes, const char *bind, const char *what, int argc,
                 char **argv);

int weft_bench_start_main(int argc, char **argv);
int weft_bench_calibrate_main(int argc, char **argv);
int weft_bench_reduction_order_main(int argc, char **argv);
int weft_bench_p2p_main(int argc, char **argv); /* tools/bench/p2p */
int weft_bench_plot_main(int argc, char **argv);
int weft_bench_kernels_main(int argc, char **argv);
int weft_bench_cacheline_main(int argc, char **argv);
int weft_bench_codec_main(int argc, char **argv);
int weft_bench_compare_main(int argc, char **argv);

#endif
