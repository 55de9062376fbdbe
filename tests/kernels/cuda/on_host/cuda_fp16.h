/* cuda_fp16.h - the conversions kernels/cuda uses of the toolkit's header, by the specification. See
 * cuda_runtime.h. */
#ifndef WEFT_ON_HOST_FP16_H
#define WEFT_ON_HOST_FP16_H

#include "kernels/templates/cast_element.h"

struct __half {
    uint16_t bits;
};
inline __half __float2half_rn(float x)
{
    return {f16_from_f32(x)};
}
inline float __half2float(__half x)
{
    return f32_from_f16(x.bits);
}
inline uint16_t __half_as_ushort(__half x)
{
    return x.bits;
}
inline __half __ushort_as_half(uint16_t x)
{
    return {x};
}

#endif
