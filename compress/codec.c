/* codec.c - entry points of a worker's codec: validates the order of calls within a step, then calls the ops.
 *
 *  progress:  0 --encode(0)--> 1 --take(0)--> 2 --encode(1)--> 3 --take(1)--> 4 --finish--> 4 --commit--> 0
 *             ^                                                                                |
 *             +---------------------------------- abandon, at any time ------------------------+
 *
 * A codec writes only shadow state until commit, so abandon resets this counter and nothing else. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/device/device.h"
#include "compress/device/device_batch.h"
#include "kernels/kernels.h"

enum weft_status weft_codec_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                   const struct weft_shape *shape, struct weft_codec **codec_out)
{
    const uint64_t elems = weft_shape_elems(shape);
    struct weft_codec *codec;
    if (elems == 0 || elems > SIZE_MAX / 16) return WEFT_ERR_INVALID;
    if (weft_codec_resolve(resolved, shape).id != resolved->id) return WEFT_ERR_INVALID;
    switch (resolved->id) {
    case WEFT_CODEC_DENSE:
    case WEFT_CODEC_F16:
    case WEFT_CODEC_BF16: codec = cast_codec_create(env, resolved, shape); break;
    case WEFT_CODEC_POWERSGD: codec = powersgd_codec_create(env, resolved, shape); break;
    case WEFT_CODEC_TOPK: codec = topk_codec_create(env, resolved, shape); break;
    case WEFT_CODEC_INT8:
    case WEFT_CODEC_INT4: codec = quantise_codec_create(env, resolved, shape); break;
    case WEFT_CODEC_SIGN:
    case WEFT_CODEC_E4M3:
    case WEFT_CODEC_E5M2: codec = lowbit_codec_create(env, resolved, shape); break;
    case WEFT_CODEC_RANDOMK: codec = randomk_codec_create(env, resolved, shape); break;
    default: return WEFT_ERR_INVALID;
    }
    if (!codec) return WEFT_ERR_NO_MEMORY;
    codec->env = env;
    codec->spec = *resolved;
    codec->shape = *shape;
    codec->elems = codec->piece = (size_t)elems;
    codec->rounds = weft_codec_rounds(resolved);
    codec->ranks = 0;
    codec->worker = 0;
    codec->tensor = 0;
    codec->device = NULL;
    codec->progress = 0;
    codec->malformed_elem = 0;
    *codec_out = codec;
    return WEFT_OK;
}

bool codec_residual_open(struct weft_codec *codec, size_t elems)
{
    codec->residual = weft_alloc_zero(codec->env, elems * sizeof *codec->residual);
    codec->shadow = weft_alloc_array(codec->env, elems, sizeof *codec->shadow);
    return codec->residual && codec->shadow;
}

void weft_codec_free(struct weft_codec *codec)
{
    if (!codec) return;
    if (codec->device) {
        device_close(codec);
    } else {
        weft_free_bytes(codec->env, codec->residual);
        weft_free_bytes(codec->env, codec->shadow);
    }
    codec->ops->free(codec);
}

enum weft_status codec_send(struct weft_codec *codec, uint32_t round, const void *data, size_t bytes,
                            void *out, size_t *bytes_out)
{
    codec->sent[round].data = data;
    codec->sent[round].bytes = bytes;
    memcpy(out, data, bytes);
    *bytes_out = bytes;
    return WEFT_OK;
}

static enum weft_status encode_again(struct weft_codec *codec, uint32_t round, const float *grad,
                                     float grad_scale, void *out, size_t *bytes_out)
{
    if (codec->ops->encode_again)
        return codec->ops->encode_again(codec, round, grad, grad_scale, out, bytes_out);
    return codec_send(codec, round, codec->sent[round].data, codec->sent[round].bytes, out, bytes_out);
}

/* Queued work must complete first; then the next part, or the bytes. */
static enum weft_status encode_on_device(struct weft_codec *codec, uint32_t round, const float *grad,
                                         float grad_scale, void *out, size_t *bytes_out)
{
    int before;
    WEFT_TRY(device_enter(codec, &before));
    enum weft_status status = device_query(codec);
    if (status == WEFT_OK) {
        device_batch_collect(codec);
        status = codec->ops->encode(codec, round, grad, grad_scale, out, bytes_out);
    }
    device_leave(codec, before);
    if (status != WEFT_IN_PROGRESS) device_encode_end(codec);
    return status;
}

enum weft_status weft_codec_encode(struct weft_codec *codec, uint32_t round, const float *grad,
                                   float grad_scale, void *out, size_t *bytes_out)
{
    if (round >= codec->rounds || codec->progress < 2 * round) return WEFT_ERR_STATE;
    if (codec->progress > 2 * round) return encode_again(codec, round, grad, grad_scale, out, bytes_out);
    const enum weft_status status = codec->device
                                        ? encode_on_device(codec, round, grad, grad_scale, out, bytes_out)
                                        : codec->ops->encode(codec, round, grad, grad_scale, out, bytes_out);
    if (status != WEFT_OK) return status;
    codec->progress = 2 * round + 1;
    return WEFT_OK;
}

enum weft_status weft_codec_take(struct weft_codec *codec, uint32_t round, const void *aggregate,
                                 size_t bytes, uint32_t ranks)
{
    if (round >= codec->rounds || codec->progress != 2 * round + 1) return WEFT_ERR_STATE;
    WEFT_TRY(codec->ops->take(codec, round, aggregate, bytes, ranks));
    codec->progress = 2 * round + 2;
    return WEFT_OK;
}

enum weft_status weft_codec_take_sum(struct weft_codec *codec, uint32_t round, float *sum, size_t bytes,
                                     uint32_t ranks)
{
    if (!codec->ops->take_sum) {
        weft_codec_sum_to_aggregate(&codec->spec, &codec->shape, round, sum);
        return weft_codec_take(codec, round, sum, bytes, ranks);
    }
    if (round >= codec->rounds || codec->progress != 2 * round + 1) return WEFT_ERR_STATE;
    WEFT_TRY(codec->ops->take_sum(codec, round, sum, bytes));
    codec->progress = 2 * round + 2;
    return WEFT_OK;
}

enum weft_status weft_codec_finish(struct weft_codec *codec, float scale, float *out)
{
    WEFT_TRY(weft_codec_finish_begin(codec, scale, out));
    return weft_codec_settle(codec);
}

enum weft_status weft_codec_finish_begin(struct weft_codec *codec, float scale, float *out)
{
    if (codec->progress != 2 * codec->rounds) return WEFT_ERR_STATE;
    if (!codec->device) return codec->ops->finish(codec, scale, out);
    int before;
    WEFT_TRY(device_enter(codec, &before));
    const enum weft_status status = codec->ops->finish(codec, scale, out);
    device_leave(codec, before);
    return status;
}

void weft_codec_commit(struct weft_codec *codec)
{
    WEFT_ASSERT(codec->progress == 0 || codec->progress == 2 * codec->rounds);
    if (codec->progress != 0) {
        codec_swap(&codec->residual, &codec->shadow);
        if (codec->ops->commit) codec->ops->commit(codec);
    }
    codec->progress = 0;
}

void weft_codec_abandon(struct weft_codec *codec)
{
    codec->progress = 0;
    if (codec->device) device_encode_end(codec); /* queued work runs before later work of the stream */
}

/* Forms a lazy residual. Its value does not change, so the codec is const to the caller. */
void codec_residual_materialise(const struct weft_codec *codec)
{
    int before;
    if (!codec->ops->materialise || (codec->device && device_enter(codec, &before) < 0)) return;
    codec->ops->materialise((struct weft_codec *)(uintptr_t)codec);
    if (codec->device) device_leave(codec, before);
}

double weft_codec_residual_norm(const struct weft_codec *codec)
{
    const float *residual = codec->residual;
    float *copy = NULL;
    codec_residual_materialise(codec);
    if (!residual) return 0.0;
    if (codec->device) {
        residual = copy = weft_alloc_array(codec->env, codec->elems, sizeof *copy);
        if (!copy || device_read(codec, copy, codec->residual, codec->elems * sizeof *copy) < 0) {
            weft_free_bytes(codec->env, copy);
            return (double)NAN;
        }
    }
    const double norm = sqrt(weft_kernels()->dot_f32(residual, residual, codec->elems));
    weft_free_bytes(codec->env, copy);
    return norm;
}

enum weft_status weft_codec_residual_copy(const struct weft_codec *codec, float *out)
{
    if (codec->progress != 0 || device_is_encoding(codec)) return WEFT_ERR_STATE;
    codec_residual_materialise(codec);
    if (codec->device && codec->residual)
        return device_read(codec, out, codec->residual, codec->elems * sizeof *out);
    if (codec->residual) memcpy(out, codec->residual, codec->elems * sizeof *out);
    else memset(out, 0, codec->elems * sizeof *out);
    return WEFT_OK;
}
