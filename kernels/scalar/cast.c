/* cast.c - conversions between f32 and the two 16-bit floats; the text is cast_element.h. */
#include "kernels/templates/cast_element.h"
#include "kernels/scalar/scalar.h"

void weft_scalar_cast_f32_f16(uint16_t *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f16_from_f32(in[i]);
}

void weft_scalar_cast_f16_f32(float *out, const uint16_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f32_from_f16(in[i]);
}

void weft_scalar_cast_f32_bf16(uint16_t *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_from_f32(in[i]);
}

void weft_scalar_cast_bf16_f32(float *out, const uint16_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f32_from_bf16(in[i]);
}
