/* narrow_float.h - f32 to the 16-bit floats, one element. f16 goes by the hardware's converter, which rounds
 * to nearest even and keeps denormals and Inf; NaN apart, whose sign and payload the converter does not keep.
 * Private to kernels/cuda. */
#ifndef WEFT_CUDA_NARROW_FLOAT_H
#define WEFT_CUDA_NARROW_FLOAT_H

#include <cuda_fp16.h>

#include "kernels/cuda/device.h"
#include "kernels/templates/cast_element.h"

namespace
{

struct to_f16 {
    __device__ uint16_t operator()(float x) const
    {
        return magnitude(x) > FLOAT_INF ? f16_from_f32(x) : __half_as_ushort(__float2half_rn(x));
    }
};
struct to_bf16 {
    __device__ uint16_t operator()(float x) const { return bf16_from_f32(x); }
};

} // namespace

#endif
