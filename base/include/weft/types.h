/* weft/types.h - element types and reductions, shared by all modules and users. Values never change: messages
 * and files contain them. */
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
    WEFT_F8_E4M3 = 11, /* 8-bit float, 4 exponent bits, no infinity: overflow gives NaN */
    WEFT_F8_E5M2 = 12, /* 8-bit float, 5 exponent bits */
};
#define WEFT_DTYPE_COUNT 13

enum weft_op {
    WEFT_SUM = 1,
    WEFT_AVG = 2, /* sum, then one multiplication by 1/ranks (floats) or truncating division (integers) */
    WEFT_PROD = 3,
    WEFT_MIN = 4, /* a NaN on either side gives NaN; -0 is below +0 */
    WEFT_MAX = 5,
    WEFT_AND = 6, /* bitwise, integers only */
    WEFT_OR = 7,
    WEFT_XOR = 8,
    WEFT_SCALED_SUM = 9, /* each rank's contribution times its factor, then the sum; floats only */
};
#define WEFT_OP_COUNT 10

/* Memory that contains a buffer. */
enum weft_memory_kind {
    WEFT_MEMORY_HOST = 0,
    WEFT_MEMORY_PINNED = 1, /* host memory pinned by a device */
    WEFT_MEMORY_CUDA = 2,   /* memory of a CUDA device (cudaMalloc and others) */
};

/* Bytes of one element; 0: not a dtype. */
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
