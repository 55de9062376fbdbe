/* device_check.h - what the checks of the CUDA kernels share. */
#ifndef WEFT_TESTS_DEVICE_CHECK_H
#define WEFT_TESTS_DEVICE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/kernels/cuda/device_memory.h"

static inline void *check_memory(void *memory)
{
    if (memory) return memory;
    fprintf(stderr, "kernel_check: no memory\n");
    exit(1);
}
static inline void *check_malloc(size_t bytes)
{
    return check_memory(malloc(bytes));
}
static inline void *check_device_malloc(size_t bytes)
{
    return check_memory(device_alloc(bytes));
}

/* One vector in so many is checked (1: all): threads as fibers on a host are slow. */
extern unsigned check_one_in;
static inline bool check_this(void)
{
    static unsigned number;
    return number++ % check_one_in == 0;
}

/* Each runs its tests against the scalar kernels; 0 when all passed. */
int check_elementwise(void);
int check_segments(void);
int check_select(void);
int check_products(void);
int check_optimizer(void);
/* Skipped with a line where the device has not the memory. */
int check_large(void);
/* The table of memory operations; skipped with a line where libcudart.so is not found. */
int check_memory_kinds(void);

#endif
