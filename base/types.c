/* types.c - sizes and names of element types and reductions. */
#include "weft/types.h"

#include <string.h>

static const struct {
    size_t bytes;
    const char *name;
} dtypes[WEFT_DTYPE_COUNT] = {
    /* by enum weft_dtype; a table, since every call uses it */
    [WEFT_F32] = {4, "f32"},
    [WEFT_F16] = {2, "f16"},
    [WEFT_BF16] = {2, "bf16"},
    [WEFT_I64] = {8, "i64"},
    [WEFT_F64] = {8, "f64"},
    [WEFT_I8] = {1, "i8"},
    [WEFT_U8] = {1, "u8"},
    [WEFT_I32] = {4, "i32"},
    [WEFT_U32] = {4, "u32"},
    [WEFT_U64] = {8, "u64"},
    [WEFT_F8_E4M3] = {1, "e4m3"},
    [WEFT_F8_E5M2] = {1, "e5m2"},
};

size_t weft_dtype_bytes(enum weft_dtype dtype)
{
    return (unsigned)dtype < WEFT_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *weft_dtype_name(enum weft_dtype dtype)
{
    return weft_dtype_bytes(dtype) ? dtypes[dtype].name : "?";
}

enum weft_dtype weft_dtype_parse(const char *name)
{
    for (unsigned i = 1; i < WEFT_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) return (enum weft_dtype)i;
    return (enum weft_dtype)0;
}

const char *weft_op_name(enum weft_op op)
{
    switch (op) {
    case WEFT_SUM: return "sum";
    case WEFT_AVG: return "avg";
    case WEFT_PROD: return "prod";
    case WEFT_MIN: return "min";
    case WEFT_MAX: return "max";
    case WEFT_AND: return "and";
    case WEFT_OR: return "or";
    case WEFT_XOR: return "xor";
    case WEFT_SCALED_SUM: return "scaled_sum";
    }
    return "?";
}
