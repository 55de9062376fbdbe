/* checkpoint.c - weft_state_save, weft_state_load: the state of a tensor that a job has once: optimiser
 * arrays and the residual of a shard's codec. residual.c has the state of each rank.
 *
 *     struct state_head, arrays (elems f32 each), residual (elems f32, if has_residual), xxh3 of all before
 *
 * The arrays are where the update runs: in this process, at the shards, or (codec in server mode) at both,
 * with equal values. Elements are in the tensor's order, independent of chunks and shards. With another
 * number of ranks the residual, which is of a sum, is scaled so that its mean is kept.
 *
 *     save   one rank    own arrays: copied; at the shards: STATE_PULL of every chunk, part by part
 *     load   rank 0      validates everything; STATE_INIT of every chunk, part by part; broadcasts the result
 *            all ranks   receive the result, then the arrays of this process, by broadcast */
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/tensor.h"

static const char magic[8] = {'w', 'e', 'f', 't', '-', 's', 't', 'a'};
enum { VERSION = 1 };

struct state_head {
    char magic[8];
    uint32_t version, ranks;
    uint64_t elems, step;
    uint32_t arrays, has_residual;
    char optimizer[16]; /* name, padded with zeros */
};
_Static_assert(sizeof(struct state_head) == 56, "a file format");
enum { DIGEST_BYTES = 8 };
#define ANY_VALUE UINT32_MAX         /* weights: NaN and infinity, too */
#define STEP_MAX ((uint64_t)1 << 62) /* above any number of steps */

/* The optimiser's, then the shards' weights, if ranks have them rounded only. */
enum { ARRAYS_MAX = WEFT_OPTIMIZER_STATES_MAX + 1 };

static uint32_t arrays_of(const struct weft_tensor *tensor)
{
    return weft_optimizer_states(&tensor->options.optimizer) + client_tensor_has_masters(tensor);
}

static bool is_master(const struct weft_tensor *tensor, uint32_t array)
{
    return array == weft_optimizer_states(&tensor->options.optimizer);
}

static uint32_t part_of(const struct weft_tensor *tensor, uint32_t array)
{
    return is_master(tensor, array) ? WEFT_WIRE_PART_WEIGHTS : WEFT_WIRE_PART_OPTIMIZER + array;
}

/* NULL: the shards have it. */
static float *own_array(const struct weft_tensor *tensor, uint32_t array)
{
    return is_master(tensor, array) ? NULL : tensor->arrays.states[array];
}

static bool shards_hold_state(const struct weft_tensor *tensor)
{
    return tensor->mode == WEFT_MODE_SERVER && !client_tensor_has_codec_choice(tensor);
}

static bool shards_hold_residual(const struct weft_tensor *tensor)
{
    return shards_hold_state(tensor) && tensor->options.codec_spec.id == WEFT_CODEC_TOPK &&
           tensor->options.codec_spec.global;
}

/* A shard of an older release drops these requests, and the caller would wait for its deadline. Equal on all
 * ranks. */
static enum weft_status check_shards(const struct weft_tensor *tensor, const char *call)
{
    struct weft_session *session = tensor->session;
    if (!shards_hold_state(tensor) || (arrays_of(tensor) == 0 && !shards_hold_residual(tensor)))
        return WEFT_OK;
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        const struct client_member *member = &session->membership.members[i];
        if (!member->is_shard || member->has_state_messages) continue;
        return client_error(session, WEFT_ERR_VERSION,
                            "%s of tensor '%s': %s, or the coordinator, is of an older weft, whose shards "
                            "neither save nor load state: use one release of weft in a job",
                            call, tensor->name, member->name);
    }
    return WEFT_OK;
}

static uint64_t bytes_of(const struct weft_tensor *tensor, uint32_t arrays, uint32_t has_residual)
{
    return sizeof(struct state_head) + (uint64_t)(arrays + has_residual) * tensor->elems * sizeof(float) +
           DIGEST_BYTES;
}

uint64_t weft_state_bytes(const struct weft_tensor *tensor)
{
    return tensor ? bytes_of(tensor, arrays_of(tensor), shards_hold_residual(tensor)) : 0;
}

/* Arrays pass through tensor->arrays.scratch, which may have been allocated for that only. */
static void free_scratch(struct weft_tensor *tensor, bool had)
{
    if (had || atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire)) return;
    weft_free_bytes(tensor->session->env, tensor->arrays.scratch);
    tensor->arrays.scratch = NULL;
}

/* ---- save ---- */

static enum weft_status pull_part(struct weft_tensor *tensor, uint32_t part, uint8_t *out)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_tensor_alloc_scratch(tensor));
    WEFT_TRY(client_tensor_start_state(tensor, part, NULL, tensor->arrays.scratch, &request));
    WEFT_TRY(client_request_wait_internal(tensor->session, &request, "state_save"));
    memcpy(out, tensor->arrays.scratch, client_tensor_state_bytes(tensor));
    return WEFT_OK;
}

static enum weft_status save_parts(struct weft_tensor *tensor, uint8_t *at)
{
    const size_t bytes = client_tensor_state_bytes(tensor);
    for (uint32_t a = 0; a < arrays_of(tensor); a++, at += bytes) {
        if (own_array(tensor, a)) memcpy(at, own_array(tensor, a), bytes);
        else WEFT_TRY(pull_part(tensor, part_of(tensor, a), at));
    }
    return shards_hold_residual(tensor) ? pull_part(tensor, WEFT_WIRE_PART_RESIDUAL, at) : WEFT_OK;
}

enum weft_status weft_state_save(struct weft_tensor *tensor, void *out, uint64_t bytes)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("state_save", "tensor");
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_tensor_check_between_steps(tensor, out, "state_save"));
    WEFT_TRY(client_update_to_host(tensor));
    if (bytes != weft_state_bytes(tensor))
        return client_error(
            session, WEFT_ERR_INVALID,
            "state_save of tensor '%s': the buffer has %llu bytes and the state %llu; call weft_state_bytes",
            tensor->name, (unsigned long long)bytes, (unsigned long long)weft_state_bytes(tensor));
    WEFT_TRY(check_shards(tensor, "state_save"));
    struct state_head head = {.version = VERSION,
                              .ranks = session->ranks,
                              .elems = tensor->elems,
                              .step = session->step.number,
                              .arrays = arrays_of(tensor),
                              .has_residual = shards_hold_residual(tensor)};
    const bool had_scratch = tensor->arrays.scratch != NULL;
    uint8_t *const data = out;
    memcpy(head.magic, magic, sizeof magic);
    snprintf(head.optimizer, sizeof head.optimizer, "%s",
             weft_optimizer_name(tensor->options.optimizer.kind));
    memcpy(data, &head, sizeof head);
    const enum weft_status status = save_parts(tensor, data + sizeof head);
    free_scratch(tensor, had_scratch);
    if (status < 0) return status;
    const uint64_t digest = weft_weight_hash(data, bytes - DIGEST_BYTES);
    memcpy(data + bytes - DIGEST_BYTES, &digest, sizeof digest);
    return WEFT_OK;
}

/* ---- load: rank 0 ---- */

static enum weft_status refuse(struct weft_tensor *tensor, const char *what)
{
    return client_error(tensor->session, WEFT_ERR_MALFORMED,
                        "state_load of tensor '%s': %s; nothing was changed", tensor->name, what);
}

static enum weft_status check_optimizer(struct weft_tensor *tensor, const struct state_head *head)
{
    const char *const name = weft_optimizer_name(tensor->options.optimizer.kind);
    char own[sizeof head->optimizer] = "", what[120];
    snprintf(own, sizeof own, "%s", name);
    if (memcmp(own, head->optimizer, sizeof own) == 0 && head->arrays == arrays_of(tensor)) return WEFT_OK;
    snprintf(what, sizeof what,
             "the bytes have %u arrays of optimiser '%.16s', and the tensor's, '%s', has %u", head->arrays,
             head->optimizer, name, arrays_of(tensor));
    return refuse(tensor, what);
}

static enum weft_status check_bytes(struct weft_tensor *tensor, const uint8_t *data, uint64_t bytes,
                                    struct state_head *head_out)
{
    struct state_head head;
    uint64_t digest;
    if (!data || bytes < sizeof head + DIGEST_BYTES) return refuse(tensor, "fewer bytes than its head");
    memcpy(&head, data, sizeof head);
    if (memcmp(head.magic, magic, sizeof magic) != 0)
        return refuse(tensor, "these are not bytes of weft_state_save");
    if (head.version != VERSION) return refuse(tensor, "the bytes are of another version of weft");
    if (head.elems != tensor->elems)
        return refuse(tensor, "the bytes are of a tensor with another number of elements");
    if (head.ranks == 0 || head.step >= STEP_MAX || head.has_residual > 1 || head.arrays > ARRAYS_MAX ||
        head.optimizer[sizeof head.optimizer - 1] != '\0' ||
        bytes != bytes_of(tensor, head.arrays, head.has_residual))
        return refuse(tensor, "its head is damaged, or it is cut short");
    memcpy(&digest, data + bytes - DIGEST_BYTES, sizeof digest);
    if (digest != weft_weight_hash(data, bytes - DIGEST_BYTES))
        return refuse(tensor, "the bytes are damaged");
    WEFT_TRY(check_optimizer(tensor, &head));
    if (head.has_residual && tensor->dtype != WEFT_F32)
        return refuse(tensor, "it holds a residual, which requires a tensor of f32");
    if (tensor->session->step.number != 0 && tensor->session->step.number != head.step)
        return refuse(tensor, "it was saved after another step than the state loaded before");
    *head_out = head;
    return WEFT_OK;
}

/* Copies one part to the scratch, times `factor`. WEFT_ERR_MALFORMED: a value is not finite or too large. */
static enum weft_status read_part(struct weft_tensor *tensor, const uint8_t *from, float factor,
                                  uint32_t too_large_bits)
{
    memcpy(tensor->arrays.scratch, from, client_tensor_state_bytes(tensor));
    if (factor != 1.0f)
        weft_kernels()->scale_f32(tensor->arrays.scratch, tensor->arrays.scratch, factor, tensor->elems);
    if (too_large_bits == ANY_VALUE) return WEFT_OK;
    if (weft_kernels()->max_abs_bits_f32(tensor->arrays.scratch, tensor->elems) < too_large_bits)
        return WEFT_OK;
    return refuse(tensor, "a value in it is not finite, or too large");
}

static enum weft_status install_part(struct weft_tensor *tensor, uint32_t part)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_tensor_start_state(tensor, part, tensor->arrays.scratch, NULL, &request));
    return client_request_wait_internal(tensor->session, &request, "state_load");
}

/* Scale of the residual: of a sum over the present ranks at a shard, or of each rank's share. */
static float residual_factor(const struct weft_tensor *tensor, uint32_t ranks)
{
    return (float)((shards_hold_residual(tensor) ? (double)tensor->session->ranks : 1.0) / ranks);
}

/* Validates all parts before one is installed. */
static enum weft_status check_parts(struct weft_tensor *tensor, const uint8_t *at,
                                    const struct state_head *head)
{
    for (uint32_t a = 0; a < head->arrays; a++, at += client_tensor_state_bytes(tensor))
        WEFT_TRY(read_part(tensor, at, 1.0f, is_master(tensor, a) ? ANY_VALUE : WEFT_F32_INFINITY_BITS));
    return head->has_residual
               ? read_part(tensor, at, residual_factor(tensor, head->ranks), WEFT_RESIDUAL_LIMIT_BITS)
               : WEFT_OK;
}

static enum weft_status install_parts(struct weft_tensor *tensor, const uint8_t *at,
                                      const struct state_head *head)
{
    const size_t bytes = client_tensor_state_bytes(tensor);
    for (uint32_t a = 0; a < head->arrays; a++, at += bytes) {
        WEFT_TRY(read_part(tensor, at, 1.0f, is_master(tensor, a) ? ANY_VALUE : WEFT_F32_INFINITY_BITS));
        if (own_array(tensor, a)) memcpy(own_array(tensor, a), tensor->arrays.scratch, bytes);
        if (shards_hold_state(tensor)) WEFT_TRY(install_part(tensor, part_of(tensor, a)));
    }
    if (!head->has_residual) return WEFT_OK;
    WEFT_TRY(read_part(tensor, at, residual_factor(tensor, head->ranks), WEFT_RESIDUAL_LIMIT_BITS));
    return shards_hold_residual(tensor) ? install_part(tensor, WEFT_WIRE_PART_RESIDUAL)
                              : WEFT_OK; /* else it stays in the scratch */
}

/* An error from here on ends the session: only a part of the state is installed. */
static enum weft_status install(struct weft_tensor *tensor, const uint8_t *at, const struct state_head *head)
{
    struct weft_session *session = tensor->session;
    const enum weft_status status = install_parts(tensor, at, head);
    if (status < 0)
        client_fail(session, status, true,
                    "state_load of tensor '%s': rank %u has installed only a part of the state: %.300s",
                    tensor->name, session->rank,
                    session->failure.error.text[0] ? session->failure.error.text : weft_reason_text(status));
    return status < 0 ? client_usable(session) : WEFT_OK;
}

/* ---- load: all ranks ---- */

enum { LOAD_STATUS, LOAD_STEP, LOAD_HAS_RESIDUAL, LOAD_WORDS };

static enum weft_status broadcast_from_root(struct weft_tensor *tensor, void *buffer, uint64_t count,
                                  enum weft_dtype dtype)
{
    const struct client_simple_call call = client_simple_broadcast(buffer, count, dtype, 0);
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_STATE_LOAD, &call, "state_load");
}

/* No shard can hold the residual, which is in rank 0's scratch: it becomes the carry of every rank. */
static enum weft_status residual_to_carry(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(broadcast_from_root(tensor, tensor->arrays.scratch, tensor->elems, WEFT_F32));
    if (!tensor->arrays.carry) tensor->arrays.carry = weft_alloc_zero(session->env, tensor->bytes);
    tensor->arrays.carry_ranks = session->ranks;
    if (!tensor->arrays.carry) { /* the other ranks depend on this one */
        client_fail(session, WEFT_ERR_NO_MEMORY, true,
                    "rank %u has no memory for the residual of tensor '%s'", session->rank, tensor->name);
        return client_usable(session);
    }
    weft_kernels()->sum_f32(tensor->arrays.carry, tensor->arrays.carry, tensor->arrays.scratch,
                            tensor->elems);
    return WEFT_OK;
}

static enum weft_status check_load(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_tensor_check_between_steps(tensor, tensor, "state_load"));
    WEFT_TRY(client_update_to_host(tensor));
    WEFT_TRY(client_tensor_check_no_group(tensor, "state_load"));
    if (session->totals.steps_ended > 0)
        return client_error(session, WEFT_ERR_STATE,
                            "state_load of tensor '%s' after step %llu; call it before the first step",
                            tensor->name, (unsigned long long)session->step.number);
    if (session->membership.is_elastic)
        return client_error(
            session, WEFT_ERR_UNSUPPORTED,
            "state_load of tensor '%s' in an elastic job (weft run --min-workers): its steps count from 1",
            tensor->name);
    return check_shards(tensor, "state_load");
}

static enum weft_status load(struct weft_tensor *tensor, const void *data, uint64_t bytes)
{
    struct weft_session *session = tensor->session;
    int64_t answer[LOAD_WORDS] = {WEFT_OK};
    enum weft_status status = WEFT_OK; /* below 0: nothing was changed */
    if (session->rank == 0) {
        struct state_head head = {.ranks = 1};
        status = check_bytes(tensor, data, bytes, &head);
        if (status == WEFT_OK) status = check_parts(tensor, (const uint8_t *)data + sizeof head, &head);
        if (status == WEFT_OK) WEFT_TRY(install(tensor, (const uint8_t *)data + sizeof head, &head));
        answer[LOAD_STATUS] = status;
        answer[LOAD_STEP] = (int64_t)head.step;
        answer[LOAD_HAS_RESIDUAL] = head.has_residual;
    }
    char why[400];
    snprintf(why, sizeof why, "%.399s", session->failure.error.text);
    WEFT_TRY(broadcast_from_root(tensor, answer, LOAD_WORDS, WEFT_I64));
    if (status < 0) return client_error(session, status, "%s", why);
    if (answer[LOAD_STATUS] < 0)
        return client_error(session, (enum weft_status)answer[LOAD_STATUS],
                            "state_load of tensor '%s': rank 0 cannot use its bytes; nothing was changed",
                            tensor->name);
    if (answer[LOAD_HAS_RESIDUAL] && !shards_hold_residual(tensor)) WEFT_TRY(residual_to_carry(tensor));
    for (uint32_t s = 0; s < weft_optimizer_states(&tensor->options.optimizer) && tensor->arrays.states[s];
         s++)
        WEFT_TRY(broadcast_from_root(tensor, tensor->arrays.states[s], tensor->elems, WEFT_F32));
    session->step.number = (uint64_t)answer[LOAD_STEP];
    return WEFT_OK;
}

enum weft_status weft_state_load(struct weft_tensor *tensor, const void *data, uint64_t bytes)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("state_load", "tensor");
    WEFT_TRY(check_load(tensor));
    const bool had_scratch = tensor->arrays.scratch != NULL;
    enum weft_status status = client_tensor_alloc_scratch(tensor);
    if (status < 0) { /* the other ranks depend on this one */
        client_fail(tensor->session, status, true, "rank %u: no memory to load the state of tensor '%s'",
                    tensor->session->rank, tensor->name);
        return status;
    }
    status = load(tensor, data, bytes);
    free_scratch(tensor, had_scratch);
    return status;
}
