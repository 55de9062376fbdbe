/* cuda_kernels.h - the kernels of kernels.h on device memory.
 *
 * Every pointer is device memory unless its line says host. Calls queue work on `stream` and return: no synchronisation, no
 * allocation; scratch comes from the caller, who keeps it until the stream has passed (a call may share it with later
 * calls on the same stream). Parameters are copied before the call returns. Any host thread; the current device is
 * the stream's.
 *
 * The bits are those of kernels.h, on every device and in every run: same per-element text (the *_element.h headers), one
 * rounding per operation, the same order of every sum, nothing that depends on which thread comes first. Lengths and starts
 * are free to one element; starts at 16 bytes are faster. in/out ranges are equal or disjoint as kernels.h says.
 *
 * Every call answers WEFT_OK (queued), WEFT_ERR_INVALID (an argument out of its documented range; nothing was queued),
 * WEFT_ERR_UNSUPPORTED (this device or driver cannot run this build) or WEFT_ERR_STATE (the CUDA context has failed, perhaps
 * long before; cudaGetLastError says why, and where a call queues several launches some may be queued).
 *
 * `max_bits` raises a value in device memory to max_abs_bits of what was computed (kernels.h): the caller sets it to 0 before
 * (cudaMemsetAsync) and reads it when it likes; >= 0x7f800000 says that something was not finite. */
#ifndef WEFT_CUDA_KERNELS_H
#define WEFT_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/parameters.h"
#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *weft_cuda_stream; /* cudaStream_t */

/* ---- sums, scale, casts ---- */
enum weft_status weft_cuda_sum_f32(float *out, const float *a, const float *b, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_sum_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count, weft_cuda_stream stream);
/* outs and sources are host arrays of device pointers, 1 to 8 each. */
enum weft_status weft_cuda_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources, size_t source_count,
                                        size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_scale_f32(float *out, const float *in, float factor, size_t count, weft_cuda_stream stream);
/* out = a*factor + b; max_bits may be NULL. */
enum weft_status weft_cuda_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                         uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_max_abs_bits_f32(uint32_t *max_bits, const float *in, size_t count, weft_cuda_stream stream);

enum weft_status weft_cuda_cast_f32_f16(uint16_t *out, const float *in, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_cast_f16_f32(float *out, const uint16_t *in, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_cast_f32_bf16(uint16_t *out, const float *in, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_cast_bf16_f32(float *out, const uint16_t *in, size_t count, weft_cuda_stream stream);
/* 8-bit floats without a scale, to nearest even, saturating: what is above the largest number, Inf and NaN become it. */
enum weft_status weft_cuda_cast_f32_fp8(uint8_t *out, const float *in, size_t count, enum weft_fp8 format, weft_cuda_stream stream);
enum weft_status weft_cuda_cast_fp8_f32(float *out, const uint8_t *in, size_t count, enum weft_fp8 format, weft_cuda_stream stream);

/* ---- block quantisation, 8-bit floats, signs: x becomes the residual. noise (host) may be NULL: to nearest ---- */
enum weft_status weft_cuda_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                                unsigned limit, uint8_t *exponents_out, uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count, unsigned limit,
                                        const struct weft_noise *noise, weft_cuda_stream stream);
enum weft_status weft_cuda_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor, size_t count,
                                              weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor, size_t count,
                                              weft_cuda_stream stream);
/* Two 4-bit codes in a byte, the first in its low half; an odd last one alone. And back, with the sign. */
enum weft_status weft_cuda_pack_i4(uint8_t *out, const int8_t *codes, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_unpack_i4(int8_t *codes_out, const uint8_t *in, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                            enum weft_fp8 format, weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                              enum weft_fp8 format, weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales, size_t count,
                                               weft_cuda_stream stream);

/* One pass from gradient to codes where the scales are this worker's own: out = a*factor + b, each block's exponent (or mean
 * magnitude) from it, codes under that, and out becomes the residual: 13 bytes an element (sign: 12.14). The bits are those
 * of scale_add_f32, then weft_block_exponent or weft_fp8_exponent of every block, then quantise. Where a block is not
 * finite out keeps the sum, the exponent is 255 and the codes are 0 (a sign's scale and bits are whatever comes): max_bits tells. */
enum weft_status weft_cuda_scale_add_quantise_f32(int8_t *codes_out, uint8_t *exponents_out, float *out, const float *a, float factor,
                                                  const float *b, size_t count, unsigned limit, const struct weft_noise *noise,
                                                  uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_scale_add_quantise_fp8_f32(uint8_t *codes_out, uint8_t *exponents_out, float *out, const float *a,
                                                      float factor, const float *b, size_t count, enum weft_fp8 format,
                                                      uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_scale_add_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *out, const float *a, float factor,
                                                       const float *b, size_t count, uint32_t *max_bits, weft_cuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif
