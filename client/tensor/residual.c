/* residual.c - the residual of a tensor's codec on this rank, as bytes for a checkpoint: unsent gradient,
 * momentum, warm start, counters, and the carry of earlier codecs (codec "auto").
 *
 *     struct residual_head, carry (elems f32, if has_carry), codec state (compress/codec_state.c),
 *     xxh3 of all bytes before. Version 1 has no hash and is accepted.
 *
 * The bytes are UNTRUSTED. All of them are validated, and a new codec is made from them, before the tensor
 * changes. In a job with another number of ranks the residual is scaled, so that its mean over the ranks is
 * kept (weft_codec_set_ranks). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"

static const char magic[8] = {'w', 'e', 'f', 't', '-', 'r', 'e', 's'};
enum {
    VERSION = 2,
    VERSION_UNHASHED = 1, /* releases before 0.2 */
    DIGEST_BYTES = 8,
};

struct residual_head {
    char magic[8];
    uint32_t version, ranks;
    uint64_t elems;
    uint32_t has_carry, zero;
    char codec[WEFT_CODEC_TEXT_BYTES]; /* canonical text, padded with zeros */
};
_Static_assert(sizeof(struct residual_head) == 32 + WEFT_CODEC_TEXT_BYTES, "a file format");

uint64_t weft_residual_bytes(const struct weft_tensor *tensor)
{
    if (!tensor || client_deliver(tensor->session) < 0) return 0;
    return sizeof(struct residual_head) + (tensor->arrays.carry ? tensor->bytes : 0) +
           (tensor->codec ? weft_codec_state_bytes(tensor->codec) : 0) + DIGEST_BYTES;
}

enum weft_status client_tensor_check_between_steps(struct weft_tensor *tensor, const void *buffer,
                                                   const char *call)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_usable(session));
    if (!buffer)
        return client_error(session, WEFT_ERR_INVALID, "%s of tensor '%s': the buffer is NULL", call,
                            tensor->name);
    WEFT_TRY(client_deliver(session));
    if (session->step.open || atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire))
        return client_error(
            session, WEFT_ERR_STATE,
            "%s of tensor '%s' inside step %llu; call it between weft_step_end and weft_step_begin", call,
            tensor->name, (unsigned long long)session->step.number);
    return WEFT_OK;
}

enum weft_status client_tensor_check_no_group(struct weft_tensor *tensor, const char *call)
{
    if (!client_call_group_is_open(tensor->session)) return WEFT_OK;
    return client_error(tensor->session, WEFT_ERR_STATE,
                        "%s of tensor '%s': a group of calls is open; call weft_group_end first", call,
                        tensor->name);
}

enum weft_status weft_residual_save(struct weft_tensor *tensor, void *out, uint64_t bytes)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("residual_save", "tensor");
    WEFT_TRY(client_tensor_check_between_steps(tensor, out, "residual_save"));
    if (bytes != weft_residual_bytes(tensor))
        return client_error(tensor->session, WEFT_ERR_INVALID,
                            "residual_save of tensor '%s': the buffer has %llu bytes and the residual %llu; "
                            "call weft_residual_bytes between the same two steps",
                            tensor->name, (unsigned long long)bytes,
                            (unsigned long long)weft_residual_bytes(tensor));
    struct residual_head head = {.version = VERSION,
                                 .ranks = tensor->session->ranks,
                                 .elems = tensor->elems,
                                 .has_carry = tensor->arrays.carry != NULL};
    uint8_t *at = out;
    memcpy(head.magic, magic, sizeof magic);
    weft_codec_format(&tensor->options.codec_spec, head.codec, sizeof head.codec);
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    if (tensor->arrays.carry) {
        memcpy(at, tensor->arrays.carry, tensor->bytes);
        at += tensor->bytes;
    }
    if (tensor->codec) WEFT_TRY(weft_codec_save(tensor->codec, at));
    const uint64_t digest = weft_weight_hash(out, bytes - DIGEST_BYTES);
    memcpy((uint8_t *)out + bytes - DIGEST_BYTES, &digest, sizeof digest);
    return WEFT_OK;
}

/* ---- load ---- */

/* Validated content, before it is installed in the tensor. */
struct restored {
    struct weft_codec_spec spec;
    struct weft_codec *codec; /* owned; NULL: dense */
    float *carry;             /* owned (elems,); NULL: none */
};

static enum weft_status refuse(struct weft_tensor *tensor, const char *what)
{
    return client_error(tensor->session, WEFT_ERR_MALFORMED,
                        "residual_load of tensor '%s': %s; nothing was changed", tensor->name, what);
}

static enum weft_status check_head(struct weft_tensor *tensor, const struct residual_head *head,
                                   struct weft_codec_spec *spec_out)
{
    char again[WEFT_CODEC_TEXT_BYTES] = "";
    if (head->elems != tensor->elems)
        return refuse(tensor, "the bytes are of a tensor with another number of elements");
    if (head->ranks == 0 || head->has_carry > 1 || head->zero != 0 ||
        head->codec[sizeof head->codec - 1] != '\0' ||
        weft_codec_parse(head->codec, spec_out, NULL) != WEFT_OK)
        return refuse(tensor, "its head is damaged");
    weft_codec_format(spec_out, again, sizeof again);
    if (memcmp(again, head->codec, sizeof again) != 0 ||
        weft_codec_resolve(spec_out, &tensor->options.shape).id != spec_out->id)
        return refuse(tensor, "the bytes are of a codec that this shape cannot have");
    return WEFT_OK;
}

/* Validates magic, version and hash. Subtracts the hash from *bytes. */
static enum weft_status check_hash(struct weft_tensor *tensor, const uint8_t *data, uint64_t *bytes)
{
    uint64_t digest;
    uint32_t version;
    if (*bytes < sizeof(struct residual_head)) return refuse(tensor, "fewer bytes than its head");
    if (memcmp(data, magic, sizeof magic) != 0)
        return refuse(tensor, "these are not bytes of weft_residual_save");
    memcpy(&version, data + offsetof(struct residual_head, version), sizeof version);
    if (version == VERSION_UNHASHED) return WEFT_OK;
    if (version != VERSION) return refuse(tensor, "the bytes are of another version of weft");
    if (*bytes < sizeof(struct residual_head) + DIGEST_BYTES) return refuse(tensor, "it is cut short");
    *bytes -= DIGEST_BYTES;
    memcpy(&digest, data + *bytes, sizeof digest);
    return digest == weft_weight_hash(data, *bytes)
               ? WEFT_OK
               : refuse(tensor, "the bytes are damaged: their hash does not match");
}

static enum weft_status read_carry(struct weft_tensor *tensor, const uint8_t *from, uint32_t ranks,
                                   struct restored *restored)
{
    const struct weft_session *session = tensor->session;
    restored->carry = weft_alloc_array(session->env, tensor->elems, sizeof *restored->carry);
    if (!restored->carry)
        return client_error(tensor->session, WEFT_ERR_NO_MEMORY, "no memory for the residual of tensor '%s'",
                            tensor->name);
    memcpy(restored->carry, from, tensor->bytes);
    if (ranks != session->ranks)
        weft_kernels()->scale_f32(restored->carry, restored->carry,
                                  (float)((double)session->ranks / (double)ranks), tensor->elems);
    if (weft_kernels()->max_abs_bits_f32(restored->carry, tensor->elems) >= WEFT_RESIDUAL_LIMIT_BITS)
        return refuse(tensor, "its residual is not finite");
    return WEFT_OK;
}

static enum weft_status read_codec(struct weft_tensor *tensor, const uint8_t *from, size_t bytes,
                                   uint32_t ranks, struct restored *restored)
{
    struct weft_session *session = tensor->session;
    if (restored->spec.id == WEFT_CODEC_DENSE)
        return bytes == 0 ? WEFT_OK : refuse(tensor, "it has more bytes than its head states");
    enum weft_status status =
        weft_codec_create(session->env, &restored->spec, &tensor->options.shape, &restored->codec);
    if (status == WEFT_ERR_NO_MEMORY)
        return client_error(session, status, "no memory for the codec of tensor '%s'", tensor->name);
    if (status == WEFT_OK) status = weft_codec_load(restored->codec, from, bytes);
    if (status == WEFT_OK)
        status = weft_codec_set_ranks(restored->codec, ranks); /* the number of ranks in the header */
    if (status == WEFT_OK) status = weft_codec_set_ranks(restored->codec, session->ranks);
    if (status == WEFT_OK)
        status = weft_codec_set_stream(restored->codec, tensor->wire.rounding_seed, session->rank);
    return status == WEFT_OK ? WEFT_OK : refuse(tensor, "the codec's part is cut short or damaged");
}

/* The tensor has another codec than the one that saved: the residual enters the next contribution. */
static enum weft_status residual_to_carry(struct weft_tensor *tensor, struct restored *restored)
{
    struct weft_session *session = tensor->session;
    if (!restored->codec) return WEFT_OK;
    float *residual = weft_alloc_array(session->env, tensor->elems, sizeof *residual);
    if (!residual)
        return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for the residual of tensor '%s'",
                            tensor->name);
    weft_codec_residual_copy(restored->codec, residual);
    if (restored->carry) weft_kernels()->sum_f32(residual, residual, restored->carry, tensor->elems);
    weft_free_bytes(session->env, restored->carry);
    weft_codec_free(restored->codec);
    restored->codec = NULL;
    restored->carry = residual;
    return WEFT_OK;
}

static enum weft_status restore(struct weft_tensor *tensor, const void *data, uint64_t bytes,
                                struct restored *restored)
{
    struct residual_head head;
    const uint8_t *at = data;
    WEFT_TRY(check_hash(tensor, data, &bytes));
    memcpy(&head, at, sizeof head);
    WEFT_TRY(check_head(tensor, &head, &restored->spec));
    at += sizeof head;
    bytes -= sizeof head;
    if (head.has_carry) {
        if (bytes < tensor->bytes) return refuse(tensor, "it is cut short");
        WEFT_TRY(read_carry(tensor, at, head.ranks, restored));
        at += tensor->bytes;
        bytes -= tensor->bytes;
    }
    WEFT_TRY(read_codec(tensor, at, (size_t)bytes, head.ranks, restored));
    char own[WEFT_CODEC_TEXT_BYTES];
    weft_codec_format(&tensor->options.codec_spec, own, sizeof own);
    return strcmp(own, head.codec) == 0 ? WEFT_OK : residual_to_carry(tensor, restored);
}

static void restored_free(struct weft_tensor *tensor, struct restored *restored)
{
    weft_codec_free(restored->codec);
    weft_free_bytes(tensor->session->env, restored->carry);
}

static void install(struct weft_tensor *tensor, const struct restored *restored)
{
    if (restored->codec) {
        weft_codec_free(tensor->codec);
        tensor->codec = restored->codec;
    }
    weft_free_bytes(tensor->session->env, tensor->arrays.carry);
    tensor->arrays.carry = restored->carry;
    tensor->arrays.carry_ranks = tensor->session->ranks;
}

enum weft_status weft_residual_load(struct weft_tensor *tensor, const void *data, uint64_t bytes)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("residual_load", "tensor");
    struct restored restored = {.codec = NULL};
    WEFT_TRY(client_tensor_check_between_steps(tensor, data, "residual_load"));
    const enum weft_status status = restore(tensor, data, bytes, &restored);
    if (status < 0) restored_free(tensor, &restored);
    else install(tensor, &restored);
    return status;
}

/* Multiplies the residual by `share`, at most 1. */
static enum weft_status take_share(struct weft_tensor *tensor, struct restored *restored, float share)
{
    if (share == 1.0f) return WEFT_OK;
    if (restored->carry) weft_kernels()->scale_f32(restored->carry, restored->carry, share, tensor->elems);
    return restored->codec ? weft_codec_rescale(restored->codec, share) : WEFT_OK;
}

/* The residual becomes, or joins, the tensor's carry. */
static enum weft_status add_to_carry(struct weft_tensor *tensor, struct restored *restored)
{
    WEFT_TRY(residual_to_carry(tensor, restored));
    if (restored->carry && tensor->arrays.carry)
        weft_kernels()->sum_f32(restored->carry, restored->carry, tensor->arrays.carry, tensor->elems);
    else if (tensor->arrays.carry) return WEFT_OK;
    install(tensor, restored);
    return WEFT_OK;
}

enum weft_status client_residual_restore(struct weft_tensor *tensor, const void *data, uint64_t bytes,
                                         float share, bool adds)
{
    struct restored restored = {.codec = NULL};
    enum weft_status status = restore(tensor, data, bytes, &restored);
    if (status == WEFT_OK) status = take_share(tensor, &restored, share);
    if (status == WEFT_OK && adds) status = add_to_carry(tensor, &restored);
    else if (status == WEFT_OK) install(tensor, &restored);
    if (status < 0) restored_free(tensor, &restored);
    return status;
}
