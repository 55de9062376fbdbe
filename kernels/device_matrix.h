/* device_matrix.h - one matrix of a call that works on several of equal shape by one launch of each kernel
 * (the calls *_many of device_table.h). Plain data for C, C++ and CUDA. */
#ifndef WEFT_KERNELS_DEVICE_MATRIX_H
#define WEFT_KERNELS_DEVICE_MATRIX_H

#include <stdint.h>

/* Device memory; a call documents which pointers it reads. */
struct weft_matrix {
    float *m;           /* (rows, cols) */
    const float *a, *b; /* (rows, cols): gradient and residual */
    float *p, *q;       /* factors (rank, rows) and (rank, cols) */
    uint32_t *max_bits; /* NULL: not wanted */
    void *scratch;      /* at 16 bytes */
    float factor;       /* m = a * factor + b */
};

/* Of one call: the table is an argument of the kernel. */
#define WEFT_MATRICES_MAX 32u

#endif
