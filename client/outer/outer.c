/* outer.c - weft_outer_create, _add, _free: the parts and their memory. See outer.h. */
#include "client/outer/outer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fnv.h"
#include "client/session/failure.h"
#include "client/session/sized.h"

static enum weft_status check_options(struct weft_session *session, const struct weft_outer_options *options)
{
    if (!(options->lr > 0) || !isfinite(options->lr))
        return client_error(session, WEFT_ERR_INVALID,
                            "outer: lr is %g; it must be finite and above 0 (default 0.7)",
                            (double)options->lr);
    if (options->fragments > OUTER_FRAGMENTS_MAX || options->fragments > options->every)
        return client_error(session, WEFT_ERR_INVALID,
                            "outer: %u fragments; at most one per inner step (every is %llu), and %d",
                            options->fragments, (unsigned long long)options->every, OUTER_FRAGMENTS_MAX);
    if (options->overlap >= options->every / options->fragments)
        return client_error(session, WEFT_ERR_INVALID,
                            "outer: overlap is %llu; an exchange must end before the next one, which begins "
                            "%llu inner steps later (every / fragments)",
                            (unsigned long long)options->overlap,
                            (unsigned long long)(options->every / options->fragments));
    if (options->codec && strlen(options->codec) >= sizeof((struct weft_outer *)0)->codec)
        return client_error(session, WEFT_ERR_INVALID, "outer: the text of codec is longer than %zu bytes",
                            sizeof((struct weft_outer *)0)->codec - 1);
    return WEFT_OK;
}

static enum weft_status parse_optimizer(struct weft_session *session, const char *text,
                                        struct weft_optimizer *optimizer_out)
{
    struct weft_error error = {0};
    enum weft_status status = weft_optimizer_parse(text, optimizer_out, &error);
    if (status < 0) return client_error(session, status, "outer: %s", error.text);
    if (optimizer_out->kind == WEFT_OPTIMIZER_NONE)
        return client_error(session, WEFT_ERR_INVALID,
                            "outer: the outer optimizer is 'none'; for a mean of the weights use sgd and "
                            "lr 1");
    return WEFT_OK;
}

enum weft_status weft_outer_create(struct weft_session *session, const struct weft_outer_options *options,
                                   struct weft_outer **outer_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("outer_create", "session");
    WEFT_TRY(client_usable(session));
    if (!outer_out) return client_error(session, WEFT_ERR_INVALID, "outer_create: outer_out is NULL");
    struct weft_outer_options own = {.size = sizeof own};
    struct weft_error error = {0};
    if (options) {
        enum weft_status status =
            client_sized_copy_in(&own, sizeof own, options, sizeof own.size, "outer_create: options", &error);
        if (status < 0) return client_error(session, status, "%s", error.text);
    }
    if (own.every == 0) own.every = 100;
    if (own.fragments == 0) own.fragments = 1;
    if (own.lr == 0) own.lr = 0.7f;
    WEFT_TRY(check_options(session, &own));
    struct weft_optimizer optimizer;
    WEFT_TRY(
        parse_optimizer(session, own.optimizer ? own.optimizer : "sgd:momentum=0.9,nesterov=1", &optimizer));
    struct weft_outer *outer = weft_alloc_zero(session->env, sizeof *outer);
    if (!outer) return client_error(session, WEFT_ERR_NO_MEMORY, "outer_create: no memory is left");
    *outer = (struct weft_outer){.session = session,
                                 .optimizer = optimizer,
                                 .lr = own.lr,
                                 .every = own.every,
                                 .overlap = own.overlap,
                                 .fragments = own.fragments,
                                 .open = OUTER_NO_FRAGMENT};
    snprintf(outer->codec, sizeof outer->codec, "%s", own.codec ? own.codec : "int8");
    *outer_out = outer;
    return WEFT_OK;
}

/* ---- parts ---- */

static void part_release(struct weft_env *env, struct outer_part *part)
{
    weft_free_bytes(env, part->anchor);
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) weft_free_bytes(env, part->states[s]);
    *part = (struct outer_part){0};
}

/* Anchor and states of a part, zeroed. */
static bool part_alloc(struct weft_outer *outer, struct outer_part *part, uint64_t elems)
{
    struct weft_env *env = outer->session->env;
    *part = (struct outer_part){.elems = elems, .anchor = weft_alloc_zero(env, elems * sizeof(float))};
    bool has_all = part->anchor != NULL;
    for (uint32_t s = 0; s < weft_optimizer_states(&outer->optimizer); s++) {
        part->states[s] = weft_alloc_zero(env, elems * sizeof(float));
        has_all = has_all && part->states[s];
    }
    if (!has_all) part_release(env, part);
    return has_all;
}

static bool reserve_part(struct weft_outer *outer)
{
    if (outer->part_count < outer->part_capacity) return true;
    struct weft_env *env = outer->session->env;
    const uint32_t capacity = outer->part_capacity ? 2 * outer->part_capacity : 16;
    struct outer_part *parts = weft_alloc_array(env, capacity, sizeof *parts);
    if (!parts) return false;
    if (outer->part_count > 0) memcpy(parts, outer->parts, outer->part_count * sizeof *parts);
    weft_free_bytes(env, outer->parts);
    outer->parts = parts;
    outer->part_capacity = capacity;
    return true;
}

static enum weft_status declare(struct weft_outer *outer, const char *name, uint32_t dim_count,
                                const uint64_t *dims, struct weft_tensor **tensor_out)
{
    struct weft_session *session = outer->session;
    struct weft_tensor_options options;
    char full[300];
    weft_tensor_options_init(&options);
    snprintf(full, sizeof full, "outer/%.255s", name);
    options.name = full;
    options.dim_count = dim_count;
    for (uint32_t d = 0; d < dim_count; d++) options.dims[d] = dims[d];
    options.codec = outer->codec;
    options.skip_nonfinite = !session->membership.is_elastic || weft_shards(session) == 0;
    return weft_declare(session, &options, tensor_out);
}

enum weft_status weft_outer_add(struct weft_outer *outer, const char *name, float *weights,
                                uint32_t dim_count, const uint64_t *dims)
{
    if (!outer) return client_null_argument("outer_add", "outer");
    struct weft_session *session = outer->session;
    WEFT_TRY(client_usable(session));
    if (outer->has_begun)
        return client_error(session, WEFT_ERR_STATE, "outer_add after outer_begin: add all weights before");
    if (!name || !weights || !dims)
        return client_error(session, WEFT_ERR_INVALID, "outer_add: %s is NULL",
                            !name      ? "name"
                            : !weights ? "weights"
                                       : "dims");
    if (outer->part_count >= OUTER_PARTS_MAX)
        return client_error(session, WEFT_ERR_LIMIT, "outer_add: %d tensors are the limit", OUTER_PARTS_MAX);
    if (dim_count < 1 || dim_count > 8)
        return client_error(session, WEFT_ERR_INVALID, "outer_add of '%.255s': %u dimensions; 1 to 8", name,
                            dim_count);
    uint64_t elems = 1;
    for (uint32_t d = 0; d < dim_count; d++)
        if (__builtin_mul_overflow(elems, dims[d], &elems) || elems > (uint64_t)1 << 32)
            return client_error(session, WEFT_ERR_INVALID, "outer_add of '%.255s': more than 2^32 elements",
                                name);
    struct outer_part part;
    if (!reserve_part(outer) || !part_alloc(outer, &part, elems ? elems : 1))
        return client_error(session, WEFT_ERR_NO_MEMORY,
                            "outer_add of '%.255s': no memory for the anchor and the optimizer arrays of "
                            "%llu elements",
                            name, (unsigned long long)elems);
    enum weft_status status = declare(outer, name, dim_count, dims, &part.tensor);
    if (status < 0) {
        part_release(session->env, &part);
        return status;
    }
    part.weights = weights;
    outer->parts[outer->part_count++] = part;
    outer->names_hash = weft_fnv_bytes(outer->names_hash, name, strlen(name) + 1);
    outer->names_hash = weft_fnv_bytes(outer->names_hash, &elems, sizeof elems);
    return WEFT_OK;
}

enum weft_status weft_outer_free(struct weft_outer *outer)
{
    if (!outer) return WEFT_OK;
    struct weft_session *session = outer->session;
    if (outer->open != OUTER_NO_FRAGMENT && client_failed(session) == WEFT_OK)
        return client_error(session, WEFT_ERR_BUSY,
                            "outer_free: an exchange is open; call weft_outer_wait first, on all ranks");
    struct weft_env *env = session->env;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < outer->part_count; i++) {
        if (status >= 0 && client_failed(session) == WEFT_OK && !session->membership.is_elastic)
            status = weft_tensor_free(outer->parts[i].tensor);
        part_release(env, &outer->parts[i]);
    }
    weft_free(session, outer->delta);
    weft_free_bytes(env, outer->start);
    weft_free_bytes(env, outer->parts);
    weft_free_bytes(env, outer);
    return status;
}
