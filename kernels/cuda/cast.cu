/* cast.cu - f32 to and from the narrow floats. f16 goes by the hardware's converters (narrow_float.h), the
 * others are integer arithmetic. */
#include "kernels/cuda/narrow_float.h"
#include "kernels/templates/fp8_element.h"

namespace
{

struct from_f16 {
    __device__ float operator()(uint16_t x) const
    {
        return (x & 0x7fffu) > 0x7c00u ? f32_from_f16(x) : __half2float(__ushort_as_half(x));
    }
};
struct from_bf16 {
    __device__ float operator()(uint16_t x) const { return f32_from_bf16(x); }
};
template <enum weft_fp8 FORMAT> struct to_fp8 {
    __device__ uint8_t operator()(float x) const
    {
        const struct fp8_format format = fp8_format(FORMAT);
        return fp8_code(&format, x);
    }
};
template <enum weft_fp8 FORMAT> struct from_fp8 {
    __device__ float operator()(uint8_t x) const
    {
        const struct fp8_format format = fp8_format(FORMAT);
        return fp8_value(&format, x);
    }
};

template <typename Convert, typename To, typename From> struct cast_op {
    To *out;
    const From *in;
    template <int N> __device__ void run(size_t i) const
    {
        const pack<From, N> x = load<N>(in + i);
        pack<To, N> y;
        for (int j = 0; j < N; j++) y.v[j] = Convert()(x.v[j]);
        store<N>(out + i, y);
    }
};

template <typename Convert, typename To, typename From>
enum weft_status cast(To *out, const From *in, size_t count, weft_cuda_stream stream)
{
    return each<8>(stream, cast_op<Convert, To, From>{out, in}, count, aligned(out, in));
}

} // namespace

enum weft_status weft_cuda_cast_f32_f16(uint16_t *out, const float *in, size_t count, weft_cuda_stream stream)
{
    return cast<to_f16>(out, in, count, stream);
}

enum weft_status weft_cuda_cast_f16_f32(float *out, const uint16_t *in, size_t count, weft_cuda_stream stream)
{
    return cast<from_f16>(out, in, count, stream);
}

enum weft_status weft_cuda_cast_f32_bf16(uint16_t *out, const float *in, size_t count,
                                         weft_cuda_stream stream)
{
    return cast<to_bf16>(out, in, count, stream);
}

enum weft_status weft_cuda_cast_bf16_f32(float *out, const uint16_t *in, size_t count,
                                         weft_cuda_stream stream)
{
    return cast<from_bf16>(out, in, count, stream);
}

enum weft_status weft_cuda_cast_f32_fp8(uint8_t *out, const float *in, size_t count, enum weft_fp8 format,
                                        weft_cuda_stream stream)
{
    return format == WEFT_E4M3 ? cast<to_fp8<WEFT_E4M3>>(out, in, count, stream)
                               : cast<to_fp8<WEFT_E5M2>>(out, in, count, stream);
}

enum weft_status weft_cuda_cast_fp8_f32(float *out, const uint8_t *in, size_t count, enum weft_fp8 format,
                                        weft_cuda_stream stream)
{
    return format == WEFT_E4M3 ? cast<from_fp8<WEFT_E4M3>>(out, in, count, stream)
                               : cast<from_fp8<WEFT_E5M2>>(out, in, count, stream);
}
