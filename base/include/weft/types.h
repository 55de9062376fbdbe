/* weft/types.h - element types, reductions, kinds of memory. The values are pinned: they are on the wire and
 * in files. */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "weft/status.h" /* for WEFT_API */

#ifdef __cplusplus
extern "C" {
#endif

enum weft_dtype {
    WEFT_F32 = 1,
    WEFT_F16 = 2,  /* IEEE binary16, as uint16_t bits */
    WEFT_BF16 = 3, /* upper half of binary32, as uint16_t bits */
    WEFT_I64 = 4,
    WEFT_F64 = 5,
    WEFT_I8 = 6,
    WEFT_U8 = 7,
    WEFT_I32 = 8,
    WEFT_U32 = 9,
    WEFT_U64 = 10,
    WEFT_F8_E4M3 = 11, /* 8-bit float, 4 bits of exponent, no infinity: a value that is too large becomes
                        * NaN */
    WEFT_F8_E5M2 = 12, /* 8-bit float, 5 bits of exponent */
};
#define WEFT_DTYPE_COUNT 13

enum weft_op {
    WEFT_SUM = 1,
    WEFT_AVG = 2, /* the sum times 1/ranks (floats), or divided by ranks, rounded toward 0 (integers) */
    WEFT_PROD = 3,
    WEFT_MIN = 4, /* NaN if an input is NaN; -0 is below +0 */
    WEFT_MAX = 5,
    WEFT_AND = 6, /* bit by bit, for integers */
    WEFT_OR = 7,
    WEFT_XOR = 8,
    WEFT_SCALED_SUM = 9, /* sum of each rank's contribution times its own factor; floats only */
};
#define WEFT_OP_COUNT 10

/* Where a buffer is. */
enum weft_memory_kind {
    WEFT_MEMORY_HOST = 0,
    WEFT_MEMORY_PINNED = 1, /* host memory that is locked for a device */
    WEFT_MEMORY_CUDA = 2,   /* memory of a CUDA device (cudaMalloc and others) */
    WEFT_MEMORY_DEVICE = 3, /* memory of another accelerator: its table is in the file WEFT_DEVICE_RUNTIME */
};

/* weft_dtype_bytes() - bytes of one element; 0 if the value is not a dtype. */
WEFT_API size_t weft_dtype_bytes(enum weft_dtype dtype);

/* "f32", "bf16", ...; "?": not a dtype. */
WEFT_API const char *weft_dtype_name(enum weft_dtype dtype);

/* Dtype of a name; 0: there is none. */
WEFT_API enum weft_dtype weft_dtype_parse(const char *name);

WEFT_API const char *weft_op_name(enum weft_op op);

#ifdef __cplusplus
}
#endif
#endif
