/* bench_device.h - the GPU's half of the kernel benchmark: each kernel in turn with a device-to-device copy
 * that moves as many bytes, timed by the device's own events. */
#ifndef WEFT_TESTS_BENCH_DEVICE_H
#define WEFT_TESTS_BENCH_DEVICE_H

#include "tools/bench/kernels/kernelbench.h"

/* As kernelbench_run(), on the GPU that check_device_open() found. */
bool bench_device(const struct kernelbench_options *options,
                  void (*row)(void *context, const struct kernelbench_row *row), void *context);

#endif
