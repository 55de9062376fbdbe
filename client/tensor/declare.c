/* declare.c - weft_declare: validates the options, asks the coordinator, allocates the tensor.
 *
 * All workers declare the same tensors in the same order, so the n-th declaration is tensor n on every rank.
 * The coordinator compares the declarations, places the chunks, and answers when the shards have memory. The
 * answer is validated: chunks in order, without gaps, owned by existing endpoints, and cut between blocks of
 * the codec. */
#include "client/tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/sized.h"
#include "client/session/wait.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/shard/shard_map.h"
#include "client/tensor/tensors.h"

static const struct weft_tensor_options DEFAULTS = {.size = sizeof DEFAULTS, .dtype = WEFT_F32};

void weft_tensor_options_init_sized(struct weft_tensor_options *options, size_t size)
{
    client_sized_init(&DEFAULTS, sizeof DEFAULTS, options, size);
}

/* Programs of release 0.1 call it; their struct ends at this field. Later programs use the macro of this
 * name. */
void(weft_tensor_options_init)(struct weft_tensor_options *options)
{
    weft_tensor_options_init_sized(options, client_sized_end(struct weft_tensor_options, chunk_bytes));
}

/* Default chunk size. A shard answers a chunk when all workers have sent it, so a tensor needs several chunks
 * to send and receive at the same time, and to use several shards. Below 256 KiB the cost per message
 * dominates. Large tensors have larger chunks, so that their number stays bounded. */
#define DEFAULT_CHUNK_BYTES (256u << 10)
#define DEFAULT_CHUNKS_MAX 16384u
static uint64_t chunk_bytes_of(const struct weft_tensor_options *options, const struct weft_tensor *tensor)
{
    if (options->chunk_bytes != 0) return options->chunk_bytes;
    /* each choice may be cut */
    const uint32_t choices =
        client_tensor_has_codec_choice(tensor) ? tensor->codec_choice.candidates.count : 1;
    uint64_t cut = DEFAULT_CHUNK_BYTES;
    while (tensor->bytes / cut * choices >= DEFAULT_CHUNKS_MAX) cut *= 2;
    return cut;
}

/* ---- validation of the options ---- */

static enum weft_status check_shape(struct weft_session *session, const struct weft_tensor_options *options,
                                    struct weft_tensor *tensor)
{
    if (options->dim_count < 1 || options->dim_count > WEFT_TENSOR_DIMS_MAX)
        return client_error(session, WEFT_ERR_INVALID,
                            "declare: tensor '%s': dim_count is %u; it must be 1 to %u", options->name,
                            options->dim_count, WEFT_TENSOR_DIMS_MAX);
    tensor->options.shape.dim_count = options->dim_count;
    for (uint32_t i = 0; i < options->dim_count; i++) tensor->options.shape.dims[i] = options->dims[i];
    tensor->elems = weft_shape_elems(&tensor->options.shape);
    if (tensor->elems == 0 || tensor->elems > WEFT_LIMIT_TENSOR_ELEMS)
        return client_error(
            session, WEFT_ERR_INVALID,
            "declare: tensor '%s': its dimensions must be positive and their product at most %llu",
            options->name, WEFT_LIMIT_TENSOR_ELEMS);
    return WEFT_OK;
}

static enum weft_status check_mode(struct weft_session *session, const struct weft_tensor_options *options,
                                   struct weft_tensor *tensor)
{
    tensor->mode = options->mode         ? options->mode
                   : session->membership.shards > 0 ? WEFT_MODE_SERVER
                                         : WEFT_MODE_ALL_REDUCE;
    if (tensor->mode != WEFT_MODE_SERVER && tensor->mode != WEFT_MODE_ALL_REDUCE)
        return client_error(
            session, WEFT_ERR_INVALID,
            "declare: tensor '%s': mode %d is not a valid weft_mode (WEFT_MODE_SERVER, WEFT_MODE_ALL_REDUCE)",
            options->name, (int)options->mode);
    if (tensor->mode == WEFT_MODE_SERVER && session->membership.shards == 0)
        return client_error(session, WEFT_ERR_INVALID,
                            "declare: tensor '%s' wants server mode, but this job has no shards; start some "
                            "(weft run -s) or choose "
                            "WEFT_MODE_ALL_REDUCE",
                            options->name);
    return WEFT_OK;
}

/* The tensor's own codec, else the job's if the tensor's dtype allows it. */
static const char *codec_text(const struct weft_tensor_options *options, const struct weft_tensor *tensor)
{
    if (options->codec && options->codec[0]) return options->codec;
    const char *text = weft_config_text(tensor->session->settings.config, "client.codec");
    const bool may_have_codec =
        tensor->dtype == WEFT_F32 && !options->pull_dtype && !client_tensor_has_clock(tensor);
    return text[0] && may_have_codec ? text : "dense";
}

/* Sets the first codec; a codec choice begins with dense. */
static enum weft_status parse_codec(const char *text, struct weft_tensor *tensor,
                                    struct weft_codec_spec *spec_out, struct weft_error *error)
{
    if (!weft_codec_candidates_requested(text)) return weft_codec_parse(text, spec_out, error);
    WEFT_TRY(weft_codec_candidates_parse(text, &tensor->codec_choice.candidates, error));
    weft_codec_candidates_resolve(&tensor->codec_choice.candidates, &tensor->options.shape);
    *spec_out = tensor->codec_choice.candidates.specs[0];
    return WEFT_OK;
}

static bool is_declared(const struct weft_session *session, const char *name)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list)
        if (strcmp(weft_container_of(node, struct weft_tensor, registration.session_link)->name, name) == 0)
            return true;
    return false;
}

/* Validates the text of a codec or an optimiser, which is sent to the coordinator unchanged. */
static enum weft_status check_text(const char *text, const char *what, struct weft_error *error)
{
    if (strlen(text) > WEFT_LIMIT_NAME_BYTES)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s has %zu bytes; it has at most %u", what,
                              strlen(text), WEFT_LIMIT_NAME_BYTES);
    if (!weft_text_is_printable(text))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s '%s' holds control characters", what, text);
    return WEFT_OK;
}

/* Checks the number of chunks that the coordinator will make. */
static enum weft_status check_cut(struct weft_session *session, const struct weft_tensor_options *options,
                                  const struct weft_tensor *tensor)
{
    const struct weft_chunking cut = {.elems = tensor->elems,
                                      .elem_bytes = weft_dtype_bytes(tensor->dtype),
                                      .chunk_bytes = chunk_bytes_of(options, tensor),
                                      .codec = &tensor->options.codec_spec,
                                      .optimizer = &tensor->options.optimizer,
                                      .candidates = &tensor->codec_choice.candidates};
    if (tensor->mode != WEFT_MODE_SERVER || weft_chunking_count(&cut, NULL) <= WEFT_LIMIT_CHUNKS)
        return WEFT_OK;
    return client_error(session, WEFT_ERR_INVALID,
                        "declare: tensor '%s' would be cut into %llu chunks with chunk_bytes %llu; at most "
                        "%u are allowed: give a larger chunk_bytes",
                        options->name, (unsigned long long)weft_chunking_count(&cut, NULL),
                        (unsigned long long)cut.chunk_bytes, WEFT_LIMIT_CHUNKS);
}

static enum weft_status check_consistency(struct weft_session *session,
                                          const struct weft_tensor_options *options,
                                          struct weft_tensor *tensor)
{
    struct weft_error error = {0};
    const char *text = options->consistency ? options->consistency : "";
    enum weft_status status = check_text(text, "its consistency", &error);
    if (status == WEFT_OK) status = weft_consistency_parse(text, &tensor->options.consistency, &error);
    if (status < 0)
        return client_error(session, status, "declare: tensor '%s': %s", options->name, error.text);
    if (!client_tensor_has_clock(tensor)) return WEFT_OK;
    if (tensor->mode != WEFT_MODE_SERVER || session->membership.is_elastic)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "declare: tensor '%s' has consistency %s: it needs server mode, and a job that "
                            "ends when a rank is lost (without weft run --min-workers)",
                            options->name, text);
    const bool is_dense = !options->codec || !options->codec[0] || strcmp(options->codec, "dense") == 0;
    const bool updates =
        options->optimizer && options->optimizer[0] && strcmp(options->optimizer, "none") != 0;
    if (is_dense && updates && !options->skip_nonfinite) return WEFT_OK;
    return client_error(session, WEFT_ERR_UNSUPPORTED,
                        "declare: tensor '%s' has consistency %s: each push is an update of its own, so the "
                        "tensor is dense, has an optimizer and no skip_nonfinite",
                        options->name, text);
}

static enum weft_status check_dtypes(struct weft_session *session, const struct weft_tensor_options *options,
                                     struct weft_tensor *tensor, bool is_dense)
{
    struct weft_error error = {0};
    const struct weft_tensor_dtypes dtypes = {
        .dtype = (uint32_t)tensor->dtype,
        .pull_dtype = (uint32_t)options->pull_dtype,
        .mode = (uint32_t)tensor->mode,
        .is_dense = is_dense && tensor->codec_choice.candidates.count == 0,
        .has_optimizer = tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE,
        .has_rounds = !client_tensor_has_clock(tensor)};
    tensor->wire.pull_dtype = options->pull_dtype ? options->pull_dtype : tensor->dtype;
    const enum weft_status status = weft_tensor_dtypes_check(&dtypes, &error);
    return status < 0 ? client_error(session, status, "declare: tensor '%s': %s", options->name, error.text)
                      : WEFT_OK;
}

static enum weft_status check_options(struct weft_session *session, const struct weft_tensor_options *options,
                                      struct weft_tensor *tensor)
{
    struct weft_error error = {0};
    struct weft_codec_spec spec;
    size_t name_bytes = options->name ? strlen(options->name) : 0;
    if (name_bytes < 1 || name_bytes > WEFT_LIMIT_NAME_BYTES)
        return client_error(session, WEFT_ERR_INVALID, "declare: a tensor needs a name of 1 to %u bytes",
                            WEFT_LIMIT_NAME_BYTES);
    if (!weft_text_is_printable(options->name))
        return client_error(session, WEFT_ERR_INVALID,
                            "declare: tensor '%s': a tensor's name holds no control characters",
                            options->name);
    if (is_declared(session, options->name))
        return client_error(session, WEFT_ERR_EXISTS,
                            "declare: tensor '%s' is declared already; names are unique in a job",
                            options->name);
    WEFT_TRY(check_shape(session, options, tensor));
    WEFT_TRY(check_mode(session, options, tensor));
    WEFT_TRY(check_consistency(session, options, tensor));
    tensor->dtype = options->dtype ? options->dtype : WEFT_F32;
    if (tensor->dtype > WEFT_I64 || weft_dtype_bytes(tensor->dtype) == 0)
        return client_error(
            session, WEFT_ERR_INVALID,
            "declare: tensor '%s': dtype %d is not a dtype of tensors (WEFT_F32, _F16, _BF16, _I64)",
            options->name, (int)options->dtype);
    tensor->bytes = tensor->elems * weft_dtype_bytes(tensor->dtype);
    const char *codec = codec_text(options, tensor),
               *optimizer = options->optimizer ? options->optimizer : "none";
    enum weft_status status = check_text(codec, "its codec", &error);
    if (status == WEFT_OK) status = check_text(optimizer, "its optimizer", &error);
    if (status == WEFT_OK) status = parse_codec(codec, tensor, &spec, &error);
    if (status == WEFT_OK) status = weft_optimizer_parse(optimizer, &tensor->options.optimizer, &error);
    if (status < 0)
        return client_error(session, status, "declare: tensor '%s': %.400s", options->name, error.text);
    tensor->options.codec_spec = weft_codec_resolve(&spec, &tensor->options.shape);
    WEFT_TRY(check_dtypes(session, options, tensor, spec.id == WEFT_CODEC_DENSE));
    if (options->chunk_bytes != 0 &&
        (options->chunk_bytes < WEFT_LIMIT_CHUNK_BYTES_MIN || options->chunk_bytes > WEFT_LIMIT_CHUNK_BYTES))
        return client_error(session, WEFT_ERR_INVALID,
                            "declare: tensor '%s': chunk_bytes is %llu; it must be %u to %llu, or 0",
                            options->name, (unsigned long long)options->chunk_bytes,
                            WEFT_LIMIT_CHUNK_BYTES_MIN, WEFT_LIMIT_CHUNK_BYTES);
    WEFT_TRY(check_cut(session, options, tensor));
    const bool has_codec = spec.id != WEFT_CODEC_DENSE || tensor->codec_choice.candidates.count > 0;
    const bool no_copies = tensor->mode == WEFT_MODE_SERVER && session->membership.is_elastic && !has_codec;
    if (options->skip_nonfinite && no_copies)
        return client_error(
            session, WEFT_ERR_UNSUPPORTED,
            "declare: dense tensor '%s' has skip_nonfinite and is in server mode, in an elastic "
            "job (weft run --min-workers): its shards cannot undo an update; leave the "
            "option out or choose WEFT_MODE_ALL_REDUCE",
            options->name);
    tensor->options.skip_nonfinite =
        !no_copies && !client_tensor_has_clock(tensor) &&
        (options->skip_nonfinite || weft_config_bool(session->settings.config, "client.skip_nonfinite"));
    tensor->options.priority = options->priority;
    tensor->options.alone = options->alone;
    tensor->options.group = options->group;
    snprintf(tensor->name, sizeof tensor->name, "%s", options->name);
    tensor->wire.rounding_seed = weft_fnv_bytes(WEFT_FNV_BASIS, tensor->name, strlen(tensor->name));
    return WEFT_OK;
}

/* ---- the question to the coordinator ---- */

static enum weft_status check_version(const struct weft_tensor *tensor, const Weft__Control__Declare *declare)
{
    struct weft_session *session = tensor->session;
    const bool is_dense =
        tensor->options.codec_spec.id == WEFT_CODEC_DENSE && tensor->codec_choice.candidates.count == 0;
    char text[WEFT_LIMIT_NAME_BYTES + 100];
    const char *what;
    const uint32_t version =
        weft_wire_version_of_declare(declare, is_dense, session->membership.is_elastic, &what);
    snprintf(text, sizeof text, "declare: tensor '%s' has %s, which", tensor->name, what);
    return client_wire_check(session, version, text);
}

static enum weft_status send_declare(struct weft_session *session, const struct weft_tensor_options *options,
                                     const struct weft_tensor *tensor)
{
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    declare.ordinal = session->tensors->count;
    declare.name = (char *)options->name;
    declare.dtype = tensor->dtype;
    declare.n_dims = tensor->options.shape.dim_count;
    declare.dims = (uint64_t *)tensor->options.shape.dims;
    declare.codec = (char *)codec_text(options, tensor);
    declare.optimizer = (char *)(options->optimizer && options->optimizer[0] ? options->optimizer : "none");
    declare.mode = tensor->mode;
    declare.chunk_bytes = chunk_bytes_of(options, tensor);
    declare.skip_nonfinite = tensor->options.skip_nonfinite;
    declare.priority = tensor->options.priority;
    declare.alone = tensor->options.alone;
    if (client_tensor_has_clock(tensor)) declare.consistency = (char *)options->consistency;
    declare.pull_dtype = (uint32_t)options->pull_dtype;
    WEFT_TRY(check_version(tensor, &declare));
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DECLARE;
    message.declare = &declare;
    enum weft_status status = client_control_send(session, &message);
    if (status < 0)
        return client_error(session, status, "tensor '%s' cannot be declared: %s", tensor->name,
                            weft_reason_text(status));
    return WEFT_OK;
}

static bool has_answer(struct weft_session *session)
{
    pthread_mutex_lock(&session->control.lock);
    bool there = session->control.declared != NULL;
    pthread_mutex_unlock(&session->control.lock);
    return there;
}

/* After a loss the coordinator does not answer a new declaration. It still answers one that the other ranks
 * made before this rank joined. */
static bool has_lost_answer(struct weft_session *session)
{
    return client_is_leaving_epoch(session) && session->tensors->count >= session->control.tensors;
}

/* The membership has ended before the declaration: the ranks agree first. */
static enum weft_status check_membership(struct weft_session *session, const struct weft_tensor *tensor)
{
    char text[sizeof session->epoch_change.text];
    if (!has_lost_answer(session)) return WEFT_OK;
    client_epoch_change_text(session, text, sizeof text);
    return client_error(session, WEFT_ERR_PEER_LOST,
                        "declare of tensor '%.100s': %.250s; nothing was declared: call weft_shrink, then "
                        "weft_declare again",
                        tensor->name, text);
}

static bool answered_or_failed(void *context)
{
    struct weft_session *session = context;
    return client_failed(session) < 0 || has_lost_answer(session) || has_answer(session);
}

static enum weft_status wait_declared(struct weft_session *session, const struct weft_tensor *tensor,
                                      Weft__Control__Control **answer_out)
{
    enum weft_status status = client_wait_for(session, answered_or_failed, session,
                                              client_deadline(session, session->settings.deadline_ns));
    if (status < 0) {
        char reason[320];
        client_control_wait_reason(session, reason, sizeof reason);
        if (!answered_or_failed(session)) /* the answer arrived meanwhile */
            client_fail(session, WEFT_ERR_DEADLINE, true,
                        "rank %u declared tensor '%.60s' and waited %.1f s: %s; all ranks declare the same "
                        "tensors in the same order",
                        session->rank, tensor->name, (double)session->settings.deadline_ns / 1e9, reason);
    }
    if (!has_answer(session) && has_lost_answer(session)) { /* an answer from before the loss is valid */
        char text[sizeof session->epoch_change.text];
        client_epoch_change_text(session, text, sizeof text);
        client_fail(session, WEFT_ERR_PEER_LOST, true,
                    "rank %u: %.300s, while tensor '%s' was being declared", session->rank, text,
                    tensor->name);
    }
    WEFT_TRY(client_usable(session));
    pthread_mutex_lock(&session->control.lock);
    *answer_out = session->control.declared;
    session->control.declared = NULL;
    pthread_mutex_unlock(&session->control.lock);
    return WEFT_OK;
}

/* ---- the answer ---- */

/* Checks that chunks of one choice are contiguous and cover the tensor. With a codec they have equal lengths,
 * except the last, and end between its blocks. Returns their number; 0: invalid. */
static size_t count_choice_chunks(const struct weft_tensor *tensor, const struct weft_codec_spec *codec,
                                  uint32_t candidate, Weft__Control__Chunk *const *chunks, size_t count)
{
    const bool dense = codec->id == WEFT_CODEC_DENSE, cuts = dense || weft_codec_can_split(codec);
    uint64_t end = 0;
    size_t i = 0;
    for (; i < count && end < tensor->elems; i++) {
        const Weft__Control__Chunk *chunk = chunks[i];
        if (chunk->candidate != candidate || chunk->offset != end || chunk->count == 0 ||
            chunk->count > tensor->elems - end)
            return 0;
        end += chunk->count;
        if (end < tensor->elems &&
            (!cuts || (!dense && (chunk->count != chunks[0]->count || chunk->count % WEFT_CODEC_PIECE != 0))))
            return 0;
        if (!dense && chunk->count > chunks[0]->count) return 0;
    }
    return end == tensor->elems ? i : 0;
}

static enum weft_status install_chunks(struct weft_tensor *tensor, const Weft__Control__Declared *declared)
{
    struct weft_session *session = tensor->session;
    const bool server = tensor->mode == WEFT_MODE_SERVER;
    const uint32_t choices = !server                                  ? 0
                             : client_tensor_has_codec_choice(tensor) ? tensor->codec_choice.candidates.count
                                                                      : 1;
    const size_t count = server ? declared->n_chunks : 0;
    /* tensors that were freed before this rank joined have numbers, too */
    const bool is_next = session->membership.is_newcomer ? declared->tensor >= session->tensors->count
                                                         : declared->tensor == session->tensors->count;
    if (!is_next || count > WEFT_LIMIT_CHUNKS) goto err;
    if (count > 0) {
        tensor->chunk_table.chunks =
            weft_alloc_array(session->env, count, sizeof *tensor->chunk_table.chunks);
        if (!tensor->chunk_table.chunks)
            return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for the chunks of tensor '%s'",
                                tensor->name);
        memset(tensor->chunk_table.chunks, 0, count * sizeof *tensor->chunk_table.chunks);
    }
    size_t taken = 0;
    for (uint32_t choice = 0; choice < choices; choice++) {
        const struct weft_codec_spec *codec =
            choice > 0 ? &tensor->codec_choice.candidates.specs[choice] : &tensor->options.codec_spec;
        const size_t chunks =
            count_choice_chunks(tensor, codec, choice, declared->chunks + taken, count - taken);
        if (chunks == 0) goto err;
        taken += chunks;
        tensor->chunk_table.choice_first[choice + 1] = (uint32_t)taken;
    }
    if (taken != count) goto err;
    for (size_t i = 0; i < count; i++) {
        const Weft__Control__Chunk *source = declared->chunks[i];
        const struct client_member *owner = client_member_of_endpoint(session, source->endpoint);
        if (!owner || !owner->is_shard) goto err;
        tensor->chunk_table.chunks[i] = (struct client_chunk){.tensor = tensor,
                                                  .index = (uint32_t)i,
                                                  .endpoint = source->endpoint,
                                                  .slot = source->slot,
                                                  .offset = source->offset,
                                                  .count = source->count};
        weft_list_init(&tensor->chunk_table.chunks[i].send_link);
    }
    tensor->chunk_table.count = (uint32_t)count;
    tensor->id = declared->tensor;
    tensor->order.need.position = tensor->id;
    return WEFT_OK;

err:
    client_fail(session, WEFT_ERR_MALFORMED, true,
                "rank %u: the coordinator placed tensor '%s' in a way that does not cover it", session->rank,
                tensor->name);
    return client_usable(session);
}

static void store_larger(size_t bytes, size_t *most)
{
    if (bytes > *most) *most = bytes;
}

/* Ranks of any membership. */
static uint32_t most_ranks(const struct weft_session *session)
{
    const uint32_t joined = session->control.welcome->welcome->workers_max;
    return joined > session->ranks ? joined : session->ranks;
}

/* Allocates messages of server mode, for its codec or for every candidate. */
static bool alloc_messages(struct weft_tensor *tensor)
{
    const struct weft_session *session = tensor->session;
    const uint32_t candidates =
        client_tensor_has_codec_choice(tensor) ? tensor->codec_choice.candidates.count : 1;
    const uint32_t ranks_most = most_ranks(session);
    size_t most[WEFT_CODEC_ROUNDS_MAX] = {0};
    for (uint32_t c = 0; c < candidates; c++) {
        const struct weft_codec_spec *spec = client_tensor_has_codec_choice(tensor)
                                                 ? &tensor->codec_choice.candidates.specs[c]
                                                 : &tensor->options.codec_spec;
        if (spec->id == WEFT_CODEC_DENSE) continue; /* dense messages use the caller's memory */
        for (uint32_t round = 0; round < weft_codec_rounds(spec); round++) {
            store_larger(weft_codec_contribution_bytes_max(spec, &tensor->options.shape, round),
                         &most[round]);
            store_larger(weft_codec_aggregate_bytes_max(spec, &tensor->options.shape, round, ranks_most),
                         &tensor->wire.aggregate_bytes_max);
            /* the only one that may be longer than with more ranks (compress/combiner/union_combiner.c) */
            if (session->membership.is_elastic)
                store_larger(weft_codec_aggregate_bytes_max(spec, &tensor->options.shape, round, 1),
                             &tensor->wire.aggregate_bytes_max);
        }
    }
    bool failed = false;
    for (uint32_t round = 0; round < WEFT_CODEC_ROUNDS_MAX; round++) {
        if (most[round] == 0) continue;
        tensor->wire.contribution[round] = weft_alloc_zero(session->env, most[round]);
        failed |= !tensor->wire.contribution[round];
    }
    if (tensor->wire.aggregate_bytes_max > 0) {
        tensor->wire.aggregate = weft_alloc_zero(session->env, tensor->wire.aggregate_bytes_max);
        failed |= !tensor->wire.aggregate;
    }
    return !failed;
}

/* Shards that apply the same updates to a copy of the weights compare hashes with this rank. */
static bool alloc_endpoint_hashes(struct weft_tensor *tensor)
{
    if (tensor->mode != WEFT_MODE_SERVER || !tensor->codec ||
        tensor->options.optimizer.kind == WEFT_OPTIMIZER_NONE || client_tensor_has_codec_choice(tensor))
        return true;
    tensor->hash.endpoints =
        weft_alloc_array(tensor->session->env, tensor->chunk_table.count, sizeof *tensor->hash.endpoints);
    if (!tensor->hash.endpoints) return false;
    for (uint32_t i = 0; i < tensor->chunk_table.count; i++) {
        struct client_chunk *chunk = &tensor->chunk_table.chunks[i];
        for (chunk->hash_index = 0; chunk->hash_index < tensor->hash.endpoint_count &&
                                    tensor->hash.endpoints[chunk->hash_index].endpoint != chunk->endpoint;)
            chunk->hash_index++;
        if (chunk->hash_index == tensor->hash.endpoint_count)
            tensor->hash.endpoints[tensor->hash.endpoint_count++] =
                (struct client_endpoint_hash){.endpoint = chunk->endpoint};
    }
    return true;
}

static enum weft_status no_memory(const struct weft_tensor *tensor, enum weft_status status)
{
    return client_error(tensor->session, status,
                        "declare: no memory for the state of tensor '%s' (%zu bytes each)", tensor->name,
                        tensor->bytes);
}

/* Allocates all memory that does not depend on the placement, before anything is sent, so that an error
 * changes nothing. */
static enum weft_status alloc_memory(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    struct weft_env *env = session->env;
    const struct weft_codec_spec *spec = &tensor->options.codec_spec;
    enum weft_status status = WEFT_OK;
    bool failed = false;
    if (spec->id != WEFT_CODEC_DENSE)
        status = weft_codec_create(env, spec, &tensor->options.shape, &tensor->codec);
    if (tensor->codec) weft_codec_set_ranks(tensor->codec, session->ranks);
    if (tensor->codec) weft_codec_set_stream(tensor->codec, tensor->wire.rounding_seed, session->rank);
    if (tensor->codec) weft_codec_set_steps(tensor->codec, session->epoch_change.codec_steps);
    if (tensor->mode == WEFT_MODE_SERVER) failed |= !alloc_messages(tensor);
    if (client_tensor_widens(tensor)) {
        tensor->wire.rounded = weft_alloc_array(env, tensor->elems, sizeof *tensor->wire.rounded);
        failed |= !tensor->wire.rounded;
    }
    if (client_tensor_has_local_optimizer(tensor)) {
        tensor->arrays.scratch = weft_alloc_zero(env, tensor->bytes);
        failed |= !tensor->arrays.scratch;
        for (uint32_t s = 0; s < weft_optimizer_states(&tensor->options.optimizer); s++) {
            tensor->arrays.states[s] = weft_alloc_zero(env, tensor->bytes);
            failed |= !tensor->arrays.states[s];
        }
    }
    if (status < 0 || failed) return no_memory(tensor, failed ? WEFT_ERR_NO_MEMORY : status);
    return WEFT_OK;
}

/* Allocates the rest. A failure concerns this rank alone. */
static enum weft_status alloc_placed(struct weft_tensor *tensor)
{
    if (tensor->mode == WEFT_MODE_SERVER && !alloc_endpoint_hashes(tensor))
        return no_memory(tensor, WEFT_ERR_NO_MEMORY);
    if (!client_tensor_has_codec_choice(tensor)) return WEFT_OK;
    const enum weft_status status = client_codec_tuner_add(tensor->session, tensor);
    return status == WEFT_OK ? WEFT_OK
                             : client_error(tensor->session, status,
                                            "no memory to choose a codec for tensor '%s'", tensor->name);
}

static void attach(struct weft_command *command)
{
    struct weft_tensor *tensor = weft_container_of(command, struct weft_tensor, registration.attach_command);
    struct weft_tensor **bucket = &tensor->session->tensors->by_id[tensor->id % CLIENT_TENSOR_BUCKETS];
    tensor->registration.engine_next = *bucket;
    *bucket = tensor;
    client_shard_map_follow(tensor); /* a Map may be newer than the declaration */
}

static struct weft_tensor *create(struct weft_session *session)
{
    struct weft_tensor *tensor = weft_alloc_zero(session->env, sizeof *tensor);
    if (!tensor) return NULL;
    tensor->session = session;
    weft_list_init(&tensor->registration.session_link);
    weft_list_init(&tensor->execution.work.link);
    weft_list_init(&tensor->order.call_group.link);
    weft_list_init(&tensor->execution.record_link);
    weft_task_init(&tensor->execution.task);
    weft_timer_init(&tensor->execution.device_timer, NULL);
    weft_list_init(&tensor->execution.group_op.link);
    weft_list_init(&tensor->order.push_link);
    tensor->registration.attach_command.fn = attach;
    return tensor;
}

enum weft_status weft_declare(struct weft_session *session, const struct weft_tensor_options *asked,
                              struct weft_tensor **tensor_out)
{
    WEFT_DEFAULT_FLOATS;
    struct weft_tensor_options own = DEFAULTS;
    const struct weft_tensor_options *options = &own;
    struct weft_error error = {0};
    if (!session) return client_null_argument("declare", "session");
    WEFT_TRY(client_usable(session));
    if (!tensor_out) return client_error(session, WEFT_ERR_INVALID, "declare: tensor_out is NULL");
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE,
                            "weft_declare inside step %llu; declare before weft_step_begin",
                            (unsigned long long)session->step.number);
    WEFT_TRY(client_deliver(session));
    if (session->tensors->count >= WEFT_LIMIT_TENSORS)
        return client_error(
            session, WEFT_ERR_LIMIT,
            "declare: a job has at most %u tensors (WEFT_LIMIT_TENSORS); declare fewer, or join some",
            WEFT_LIMIT_TENSORS);
    enum weft_status status =
        client_sized_copy_in(&own, sizeof own, asked, client_sized_end(struct weft_tensor_options, dims),
                             "declare: options", &error);
    if (status < 0)
        return client_error(session, status, "%s; begin with weft_tensor_options_init", error.text);
    struct weft_tensor *tensor = create(session);
    if (!tensor) return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for a tensor");

    Weft__Control__Control *answer = NULL;
    status = check_options(session, options, tensor);
    if (status == WEFT_OK) status = check_membership(session, tensor);
    if (status == WEFT_OK) status = alloc_memory(tensor);
    if (status == WEFT_OK) status = send_declare(session, options, tensor);
    if (status == WEFT_OK) status = wait_declared(session, tensor, &answer);
    if (status == WEFT_OK) status = install_chunks(tensor, answer->declared);
    if (status == WEFT_OK && (status = alloc_placed(tensor)) < 0) /* the other ranks depend on this one */
        client_fail(session, status, true, "rank %u: %s", session->rank, session->failure.error.text);
    if (status == WEFT_OK && answer->declared->restored > 0) {
        tensor->progress.is_restored = true;
        tensor->progress.last_step = answer->declared->restored - 1;
    }
    if (answer) weft_control_free(session->env, answer);
    if (status < 0) {
        client_tensor_free(tensor);
        return status;
    }
    /* the other ranks have its weights and arrays */
    tensor->elastic.broadcast.is_required =
        session->membership.is_newcomer && tensor->id < session->control.tensors;
    weft_list_append(&session->tensors->list, &tensor->registration.session_link);
    session->tensors->count = tensor->id + 1;
    session->tensors->live_count++;
    if (tensor->mode == WEFT_MODE_ALL_REDUCE) session->tensors->reduce_count++;
    if (client_tensor_can_skip_step(tensor)) session->tensors->skip.tensors++;
    weft_loop_post(session->loop, &tensor->registration.attach_command);
    WEFT_TRY(client_snapshot_restore_tensor(tensor));
    *tensor_out = tensor;
    return WEFT_OK;
}
