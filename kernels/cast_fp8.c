/* cast_fp8.c - 8-bit floats as elements: to f32 and back without a block's scale (formats: lowbit_element.h).
 *
 * To nearest even, denormals kept. What rounds above the largest number becomes Inf in e5m2 and NaN in
 * e4m3, which has no Inf: an overflow of a sum stays visible. NaN becomes the positive canonical NaN, 0x7f
 * and 0x7e. The 256 values of a format are a table made on the stack: one pass over it costs less than the
 * branches it saves. */
#include "kernels/templates/fp8_element.h"
#include "kernels/kernels.h"

static struct fp8_format format_of(enum weft_dtype dtype)
{
    return fp8_format(dtype == WEFT_F8_E4M3 ? WEFT_E4M3 : WEFT_E5M2);
}

void weft_cast_fp8_f32(enum weft_dtype dtype, float *out, const uint8_t *in, size_t count)
{
    float values[256];
    const struct fp8_format format = format_of(dtype);
    if (count < 256) {
        for (size_t i = 0; i < count; i++) out[i] = fp8_value(&format, in[i]);
        return;
    }
    for (unsigned code = 0; code < 256; code++) values[code] = fp8_value(&format, (uint8_t)code);
    for (size_t i = 0; i < count; i++) out[i] = values[in[i]];
}

void weft_cast_f32_fp8(enum weft_dtype dtype, uint8_t *out, const float *in, size_t count)
{
    const struct fp8_format format = format_of(dtype);
    for (size_t i = 0; i < count; i++) out[i] = fp8_code(&format, in[i]);
}
