/* outer_state.c - weft_outer_begin, _bytes, _save, _share: the first anchors, and those of a checkpoint.
 *
 *     struct state_head, updates (fragments u64), for each part: anchor, states (elems f32 each),
 *     for each part: length (u64) and residual of its tensor, digest of all before (u64)
 *
 * Anchors, states and counters are equal on all ranks: rank 0's are broadcast. Weights and residual are each
 * rank's own. Everything is validated on all ranks before anything changes. */
#include <stdio.h>
#include <string.h>

#include "client/outer/outer.h"
#include "client/session/failure.h"
#include "proto/proto.h"

static const char magic[8] = {'w', 'e', 'f', 't', '-', 'o', 'u', 't'};
enum { VERSION = 1, DIGEST_BYTES = 8 };

struct state_head {
    char magic[8];
    uint32_t version, states; /* arrays of the outer optimizer */
    uint32_t parts, fragments;
    uint64_t names_hash, every, steps;
    uint32_t next, reserved;
    char optimizer[16];
};
_Static_assert(sizeof(struct state_head) == 72, "a file format");

static uint32_t states_of(const struct weft_outer *outer)
{
    return weft_optimizer_states(&outer->optimizer);
}

static uint64_t arrays_bytes(const struct weft_outer *outer)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < outer->part_count; i++)
        bytes += (1 + states_of(outer)) * outer->parts[i].elems * sizeof(float);
    return bytes;
}

static uint64_t bytes_before_residuals(const struct weft_outer *outer)
{
    return sizeof(struct state_head) + outer->fragments * sizeof(uint64_t) + arrays_bytes(outer);
}

static void fill_head(const struct weft_outer *outer, struct state_head *head_out)
{
    *head_out = (struct state_head){.version = VERSION,
                                    .states = states_of(outer),
                                    .parts = outer->part_count,
                                    .fragments = outer->fragments,
                                    .names_hash = outer->names_hash,
                                    .every = outer->every,
                                    .steps = outer->steps,
                                    .next = outer->next};
    memcpy(head_out->magic, magic, sizeof magic);
    snprintf(head_out->optimizer, sizeof head_out->optimizer, "%s",
             weft_optimizer_name(outer->optimizer.kind));
}

/* ---- save ---- */

uint64_t weft_outer_bytes(const struct weft_outer *outer)
{
    if (!outer) return 0;
    uint64_t bytes = bytes_before_residuals(outer) + DIGEST_BYTES;
    for (uint32_t i = 0; i < outer->part_count; i++)
        bytes += sizeof(uint64_t) + weft_residual_bytes(outer->parts[i].tensor);
    return bytes;
}

static enum weft_status save_residuals(struct weft_outer *outer, uint8_t **at)
{
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct weft_tensor *tensor = outer->parts[i].tensor;
        const uint64_t bytes = weft_residual_bytes(tensor);
        memcpy(*at, &bytes, sizeof bytes);
        WEFT_TRY(weft_residual_save(tensor, *at + sizeof bytes, bytes));
        *at += sizeof bytes + bytes;
    }
    return WEFT_OK;
}

enum weft_status weft_outer_save(struct weft_outer *outer, void *out, uint64_t bytes)
{
    WEFT_TRY(outer_usable(outer, "outer_save"));
    struct weft_session *session = outer->session;
    if (outer->open != OUTER_NO_FRAGMENT)
        return client_error(session, WEFT_ERR_STATE,
                            "outer_save: an exchange is open; call weft_outer_wait first, on all ranks");
    if (!out || bytes != weft_outer_bytes(outer))
        return client_error(session, WEFT_ERR_INVALID,
                            "outer_save: the buffer has %llu bytes and the state %llu; call weft_outer_bytes",
                            out ? (unsigned long long)bytes : 0ull,
                            (unsigned long long)weft_outer_bytes(outer));
    struct state_head head;
    uint8_t *at = out;
    fill_head(outer, &head);
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    memcpy(at, outer->updates, outer->fragments * sizeof(uint64_t));
    at += outer->fragments * sizeof(uint64_t);
    for (uint32_t i = 0; i < outer->part_count; i++) {
        const struct outer_part *part = &outer->parts[i];
        const uint64_t length = part->elems * sizeof(float);
        memcpy(at, part->anchor, length);
        at += length;
        for (uint32_t s = 0; s < states_of(outer); s++, at += length) memcpy(at, part->states[s], length);
    }
    WEFT_TRY(save_residuals(outer, &at));
    const uint64_t digest = weft_weight_hash(out, bytes - DIGEST_BYTES);
    memcpy(at, &digest, sizeof digest);
    return WEFT_OK;
}

/* ---- load ---- */

static enum weft_status refuse(struct weft_outer *outer, const char *what)
{
    return client_error(outer->session, WEFT_ERR_MALFORMED,
                        "outer_begin: the saved state %s; nothing was changed", what);
}

/* The lengths of the residuals fill the rest of the bytes. */
static bool residuals_fit(const struct weft_outer *outer, const uint8_t *data, uint64_t bytes)
{
    uint64_t at = bytes_before_residuals(outer), end = bytes - DIGEST_BYTES, length;
    for (uint32_t i = 0; i < outer->part_count; i++) {
        if (end - at < sizeof length) return false;
        memcpy(&length, data + at, sizeof length);
        at += sizeof length;
        if (length > end - at) return false;
        at += length;
    }
    return at == end;
}

static enum weft_status check_saved(struct weft_outer *outer, const uint8_t *data, uint64_t bytes)
{
    struct state_head head, own;
    uint64_t digest;
    if (bytes < bytes_before_residuals(outer) + DIGEST_BYTES)
        return refuse(outer, "is shorter than the anchors of these tensors");
    memcpy(&head, data, sizeof head);
    fill_head(outer, &own);
    if (memcmp(head.magic, own.magic, sizeof own.magic) != 0)
        return refuse(outer, "was not written by weft_outer_save");
    if (head.version != VERSION) return refuse(outer, "is of another version of weft");
    if (head.parts != own.parts || head.names_hash != own.names_hash)
        return refuse(outer, "is of other tensors: names, lengths and order must be equal");
    if (head.fragments != own.fragments || head.every != own.every)
        return refuse(outer, "has other values of every or fragments");
    if (memcmp(head.optimizer, own.optimizer, sizeof own.optimizer) != 0 || head.states != own.states)
        return refuse(outer, "is of another outer optimizer");
    memcpy(&digest, data + bytes - DIGEST_BYTES, sizeof digest);
    if (head.next >= head.fragments || !residuals_fit(outer, data, bytes) ||
        digest != weft_weight_hash(data, bytes - DIGEST_BYTES))
        return refuse(outer, "is damaged or cut short");
    return WEFT_OK;
}

static void install_saved(struct weft_outer *outer, const uint8_t *data)
{
    struct state_head head;
    memcpy(&head, data, sizeof head);
    const uint8_t *at = data + sizeof head;
    outer->steps = head.steps;
    outer->next = head.next;
    memcpy(outer->updates, at, outer->fragments * sizeof(uint64_t));
    at += outer->fragments * sizeof(uint64_t);
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct outer_part *part = &outer->parts[i];
        const uint64_t length = part->elems * sizeof(float);
        memcpy(part->anchor, at, length);
        at += length;
        for (uint32_t s = 0; s < states_of(outer); s++, at += length) memcpy(part->states[s], at, length);
    }
}

static enum weft_status load_residuals(struct weft_outer *outer, const uint8_t *data)
{
    const uint8_t *at = data + bytes_before_residuals(outer);
    for (uint32_t i = 0; i < outer->part_count; i++) {
        uint64_t length;
        memcpy(&length, at, sizeof length);
        WEFT_TRY(weft_residual_load(outer->parts[i].tensor, at + sizeof length, length));
        at += sizeof length + length;
    }
    return WEFT_OK;
}

/* ---- agreement ---- */

static enum weft_status run(enum weft_status started, struct weft_request *request)
{
    return started < 0 ? started : started == WEFT_IN_PROGRESS ? weft_wait(request, 0) : started;
}

/* Rank 0's counters, anchors and states reach all ranks. */
static enum weft_status broadcast_state(struct weft_outer *outer)
{
    struct weft_session *session = outer->session;
    struct weft_request request = {{0}};
    uint64_t counters[2 + OUTER_FRAGMENTS_MAX] = {outer->steps, outer->next};
    for (uint32_t f = 0; f < outer->fragments; f++) counters[2 + f] = outer->updates[f] << 1 | outer->due[f];
    WEFT_TRY(run(weft_broadcast(session, counters, 2 + outer->fragments, WEFT_U64, 0, &request), &request));
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct outer_part *part = &outer->parts[i];
        WEFT_TRY(run(weft_broadcast(session, part->anchor, part->elems, WEFT_F32, 0, &request), &request));
        for (uint32_t s = 0; s < states_of(outer); s++)
            WEFT_TRY(
                run(weft_broadcast(session, part->states[s], part->elems, WEFT_F32, 0, &request), &request));
    }
    outer->steps = counters[0];
    outer->next = (uint32_t)counters[1];
    for (uint32_t f = 0; f < outer->fragments; f++) {
        outer->updates[f] = counters[2 + f] >> 1;
        outer->due[f] = counters[2 + f] & 1;
    }
    return WEFT_OK;
}

/* WEFT_OK if no rank refuses its saved state, and rank 0 has one if any rank has. */
static enum weft_status agree(struct weft_outer *outer, enum weft_status mine, bool has_saved,
                              bool *root_has_out)
{
    struct weft_session *session = outer->session;
    struct weft_request request = {{0}};
    char text[500];
    snprintf(text, sizeof text, "%s", weft_error_text(session));
    const bool is_root = weft_rank(session) == 0;
    int64_t words[3] = {mine >= 0, has_saved ? 0 : 1, is_root && !has_saved ? 0 : 1};
    WEFT_TRY(run(weft_all_reduce(session, words, words, 3, WEFT_I64, WEFT_MIN, &request), &request));
    if (mine < 0) return client_error(session, mine, "%s", text);
    if (!words[0])
        return client_error(session, WEFT_ERR_MALFORMED,
                            "outer_begin: another rank refuses its saved state; nothing was changed");
    *root_has_out = words[2] != 0;
    if (!words[1] && !*root_has_out)
        return client_error(session, WEFT_ERR_INVALID,
                            "outer_begin: a rank has a saved state and rank 0 has none; give rank 0 one");
    return WEFT_OK;
}

/* ---- fragments ---- */

/* All elements are divided evenly; a part belongs to the fragment that has its middle element. */
static uint64_t assign_fragments(struct weft_outer *outer)
{
    uint64_t total = 0, before = 0, most = 0;
    uint64_t lengths[OUTER_FRAGMENTS_MAX] = {0};
    for (uint32_t i = 0; i < outer->part_count; i++) total += outer->parts[i].elems;
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct outer_part *part = &outer->parts[i];
        const double middle = (double)before + (double)part->elems / 2;
        part->fragment = (uint32_t)(middle / (double)total * outer->fragments);
        if (part->fragment >= outer->fragments) part->fragment = outer->fragments - 1;
        part->offset = lengths[part->fragment];
        lengths[part->fragment] += part->elems;
        if (lengths[part->fragment] > most) most = lengths[part->fragment];
        before += part->elems;
    }
    return most;
}

static enum weft_status alloc_exchange(struct weft_outer *outer)
{
    struct weft_session *session = outer->session;
    if (outer->delta) return WEFT_OK;
    const uint64_t bytes = assign_fragments(outer) * sizeof(float);
    outer->delta = weft_alloc(session, bytes);
    if (outer->delta && outer->overlap > 0) outer->start = weft_alloc_bytes(session->env, bytes);
    if (outer->delta && (outer->start || outer->overlap == 0)) return WEFT_OK;
    weft_free(session, outer->delta);
    outer->delta = NULL;
    return client_error(session, WEFT_ERR_NO_MEMORY, "outer: no memory for an exchange of %llu bytes",
                        (unsigned long long)bytes);
}

static enum weft_status check_begin(struct weft_outer *outer, const char *call)
{
    if (!outer) return client_null_argument(call, "outer");
    WEFT_TRY(client_usable(outer->session));
    if (outer->part_count == 0)
        return client_error(outer->session, WEFT_ERR_STATE, "%s: no weights; call weft_outer_add first",
                            call);
    return alloc_exchange(outer);
}

static void copy_weights(struct weft_outer *outer, bool to_anchor)
{
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct outer_part *part = &outer->parts[i];
        float *to = to_anchor ? part->anchor : part->weights,
              *from = to_anchor ? part->weights : part->anchor;
        memcpy(to, from, part->elems * sizeof(float));
    }
}

enum weft_status weft_outer_begin(struct weft_outer *outer, const void *saved, uint64_t bytes)
{
    WEFT_DEFAULT_FLOATS;
    bool root_has;
    WEFT_TRY(check_begin(outer, "outer_begin"));
    if (outer->has_begun)
        return client_error(outer->session, WEFT_ERR_STATE, "outer_begin for the second time");
    const enum weft_status mine = saved ? check_saved(outer, saved, bytes) : WEFT_OK;
    WEFT_TRY(agree(outer, mine, saved != NULL, &root_has));
    if (saved) WEFT_TRY(load_residuals(outer, saved));
    if (saved) install_saved(outer, saved);
    else copy_weights(outer, true);
    WEFT_TRY(broadcast_state(outer));
    if (!saved) copy_weights(outer, false);
    outer->has_begun = true;
    return WEFT_OK;
}

enum weft_status weft_outer_share(struct weft_outer *outer)
{
    WEFT_DEFAULT_FLOATS;
    WEFT_TRY(check_begin(outer, "outer_share"));
    struct weft_session *session = outer->session;
    if (outer->open != OUTER_NO_FRAGMENT)
        return client_error(session, WEFT_ERR_STATE, "outer_share inside an exchange");
    WEFT_TRY(broadcast_state(outer));
    if (!outer->has_begun) copy_weights(outer, false);
    outer->has_begun = true;
    return WEFT_OK;
}
