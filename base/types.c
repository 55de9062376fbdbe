/* types.c - sizes and names of element types and reductions. */
#include "weft/types.h"

#include <string.h>

static const struct {
    enum weft_dtype dtype;
    size_t bytes;
    const char *name;
} dtypes[] = {
    {WEFT_F32, 4, "f32"},
    {WEFT_F16, 2, "f16"},
    {WEFT_BF16, 2, "bf16"},
    {WEFT_I64, 8, "i64"},
};
#define DTYPE_COUNT (sizeof dtypes / sizeof dtypes[0])

size_t weft_dtype_bytes(enum weft_dtype dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].bytes;
    return 0;
}

const char *weft_dtype_name(enum weft_dtype dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return "?";
}

enum weft_dtype weft_dtype_parse(const char *name)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) return dtypes[i].dtype;
    return (enum weft_dtype)0;
}

const char *weft_op_name(enum weft_op op)
{
    switch (op) {
    case WEFT_SUM: return "sum";
    case WEFT_AVG: return "avg";
    }
    return "?";
}
