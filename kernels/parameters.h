/* parameters.h - arguments of kernels that are no arrays. Plain data for C, C++ and CUDA. */
#ifndef WEFT_KERNELS_PARAMETERS_H
#define WEFT_KERNELS_PARAMETERS_H

#include <stdbool.h>
#include <stdint.h>

/* Hyper-parameters of one optimiser step; learning rate travels with the step. */
struct weft_sgd {
    float lr;
    float momentum;     /* 0: plain SGD, velocity may be NULL */
    float weight_decay; /* L2, added to the gradient: g + wd*w; 0: none */
    bool nesterov;
};

/* One step of Adam: step_size and root_scale hold the corrections of the moments' bias. */
struct weft_adam {
    float lr;
    float step_size;  /* lr / (1 - beta1^t) */
    float root_scale; /* 1 / sqrt(1 - beta2^t) */
    float beta1, beta2, eps;
    float weight_decay;
    bool decoupled;   /* decay: w = w - lr*wd*w beside the step (AdamW), not g = g + wd*w */
};

/* One step of LAMB: the corrections of the moments' bias. */
struct weft_lamb {
    float first_scale; /* 1 / (1 - beta1^t) */
    float root_scale;  /* 1 / sqrt(1 - beta2^t) */
    float beta1, beta2, eps;
    float weight_decay;
};

/* LAMB's norms are summed in blocks of so many elements (kernels/lamb.c). */
#define WEFT_LAMB_BLOCK 4096

/* M^T P is summed in bands of so many rows (matmul_t in kernels.h). */
#define WEFT_MATMUL_T_BAND 256

struct weft_ftrl {
    float alpha; /* the learning rate */
    float beta, l1, l2;
};

/* Block quantisation: elements per shared exponent. */
#define WEFT_BLOCK 256

/* 8-bit floats of the OCP specification: 4 exponent bits and 3 of mantissa, up to 448; or 5 and 2, up to
 * 57344. */
enum weft_fp8 { WEFT_E4M3 = 1, WEFT_E5M2 };

/* What stochastic rounding draws from: Philox 4x32-10 (kernels/philox.h) keyed by `key`, counting elements
 * and steps. */
struct weft_noise {
    uint32_t key[2];
    uint64_t step;
    uint64_t first_block; /* number of the first block of the call within its tensor */
};

#endif
