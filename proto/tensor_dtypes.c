/* tensor_dtypes.c - which dtypes a tensor may have, as Declare carries them.
 *
 *     mode         dtype          pull_dtype    with
 *     all-reduce   f32            none          all
 *                  any other      none          dense, no optimizer
 *     server       f32            none          all
 *                  f32            f16, bf16     dense, consistency bsp
 *                  f16, bf16      none          dense, consistency bsp */
#include "proto/proto.h"

static enum weft_status check_all_reduce(const struct weft_tensor_dtypes *tensor, struct weft_error *error)
{
    if (tensor->pull_dtype != 0)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "pull_dtype is the dtype of what shards send: it needs server mode");
    if (tensor->dtype == WEFT_F32 || (tensor->is_dense && !tensor->has_optimizer)) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "codecs and optimizers need dtype f32, not %s",
                          weft_dtype_name((enum weft_dtype)tensor->dtype));
}

enum weft_status weft_tensor_dtypes_check(const struct weft_tensor_dtypes *tensor, struct weft_error *error)
{
    const bool is_half = weft_dtype_is_half(tensor->dtype);
    if (tensor->pull_dtype != 0 && (tensor->dtype != WEFT_F32 || !weft_dtype_is_half(tensor->pull_dtype)))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "pull_dtype is f16 or bf16 and belongs to a tensor of f32; it is %s, of %s",
                              weft_dtype_name((enum weft_dtype)tensor->pull_dtype),
                              weft_dtype_name((enum weft_dtype)tensor->dtype));
    if (tensor->mode == WEFT_WIRE_MODE_ALL_REDUCE) return check_all_reduce(tensor, error);
    if (tensor->dtype != WEFT_F32 && !is_half)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "shards serve f32, f16 and bf16, not %s",
                              weft_dtype_name((enum weft_dtype)tensor->dtype));
    if ((!is_half && tensor->pull_dtype == 0) || (tensor->is_dense && tensor->has_rounds)) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "shards exchange %s with dense tensors of consistency bsp only: leave out the "
                          "codec and the consistency, or use f32",
                          weft_dtype_name((enum weft_dtype)(is_half ? tensor->dtype : tensor->pull_dtype)));
}
