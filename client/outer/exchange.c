/* exchange.c - weft_outer_step, _wait, _sync: when a fragment is exchanged, and the outer step.
 *
 *     inner step s        due: fragment f where s % every == (f + 1) * every / fragments % every
 *     begin exchange      delta = anchor - weights; start = weights; push_pull of delta, in one session step
 *     s + overlap         step_end; anchor takes an outer step with the mean of delta, then
 *                             overlap 0   weights = anchor
 *                             overlap     weights += anchor - start: inner updates made meanwhile stay
 *
 * If the session step is discarded, the fragment stays due, and the next inner step repeats the exchange
 * with new deltas. Ranks that detect a loss in different calls may then differ by `overlap` in their count of
 * inner steps. They exchange the same fragments in the same order, since fragments are taken in a cycle. */
#include <string.h>

#include "client/outer/outer.h"
#include "client/session/failure.h"

enum weft_status outer_usable(struct weft_outer *outer, const char *call)
{
    if (!outer) return client_null_argument(call, "outer");
    WEFT_TRY(client_usable(outer->session));
    if (outer->has_begun) return WEFT_OK;
    return client_error(outer->session, WEFT_ERR_STATE, "%s before outer_begin", call);
}

/* ---- the end of an exchange ---- */

static void apply_part(struct weft_outer *outer, struct outer_part *part)
{
    const float *delta = outer->delta + part->offset;
    const float *start = outer->steps > outer->began_at ? outer->start + part->offset : NULL;
    weft_optimizer_step(&outer->optimizer, outer->lr, outer->updates[part->fragment], part->anchor,
                        part->states, delta, 1.0f, part->elems);
    if (!start) memcpy(part->weights, part->anchor, part->elems * sizeof(float));
    else
        for (uint64_t i = 0; i < part->elems; i++) part->weights[i] += part->anchor[i] - start[i];
}

/* A delta that is not finite: the fragment's weights return to the anchor on all ranks. */
static void reset_part(struct outer_part *part)
{
    memcpy(part->weights, part->anchor, part->elems * sizeof(float));
}

enum weft_status outer_finish(struct weft_outer *outer)
{
    if (outer->open == OUTER_NO_FRAGMENT) return WEFT_OK;
    struct weft_session *session = outer->session;
    const uint32_t fragment = outer->open;
    for (uint32_t i = 0; i < outer->part_count; i++) {
        struct outer_part *part = &outer->parts[i];
        if (part->fragment != fragment || !part->is_pushed) continue;
        /* a wait may end before its operation, which then goes on; weft_step_end returns any other error */
        if (weft_wait(&part->request, 0) == WEFT_ERR_DEADLINE && client_failed(session) == WEFT_OK)
            return WEFT_ERR_DEADLINE;
        part->is_pushed = false;
    }
    const enum weft_status status = weft_step_end(session);
    if (status == WEFT_ERR_DEADLINE && client_failed(session) == WEFT_OK) return status;
    outer->open = OUTER_NO_FRAGMENT;
    if (status < 0 && status != WEFT_ERR_SKIPPED) return status;
    outer->due[fragment] = false;
    outer->next = (fragment + 1) % outer->fragments;
    if (status == WEFT_OK) outer->updates[fragment]++;
    for (uint32_t i = 0; i < outer->part_count; i++) {
        if (outer->parts[i].fragment != fragment) continue;
        if (status == WEFT_OK) apply_part(outer, &outer->parts[i]);
        else reset_part(&outer->parts[i]);
    }
    return status;
}

/* ---- the start of an exchange ---- */

static enum weft_status push_part(struct weft_outer *outer, struct outer_part *part)
{
    float *delta = outer->delta + part->offset;
    if (outer->start) memcpy(outer->start + part->offset, part->weights, part->elems * sizeof(float));
    for (uint64_t i = 0; i < part->elems; i++) delta[i] = part->anchor[i] - part->weights[i];
    const enum weft_status status = weft_push_pull(part->tensor, delta, delta, &part->request);
    part->is_pushed = status >= 0;
    return status;
}

static enum weft_status begin_exchange(struct weft_outer *outer, uint32_t fragment)
{
    struct weft_session *session = outer->session;
    const struct weft_step step = {weft_step_next(session), outer->lr, 1.0f};
    WEFT_TRY(weft_step_begin(session, &step));
    outer->open = fragment;
    outer->began_at = outer->steps;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < outer->part_count && status >= 0; i++)
        if (outer->parts[i].fragment == fragment) status = push_part(outer, &outer->parts[i]);
    if (status >= 0) return WEFT_OK;
    const enum weft_status ended = outer_finish(outer); /* agrees with the other ranks after a loss */
    return ended < 0 ? ended : status;
}

static uint32_t due_fragment(const struct weft_outer *outer)
{
    for (uint32_t i = 0; i < outer->fragments; i++) {
        const uint32_t fragment = (outer->next + i) % outer->fragments;
        if (outer->due[fragment]) return fragment;
    }
    return OUTER_NO_FRAGMENT;
}

static bool has_parts(const struct weft_outer *outer, uint32_t fragment)
{
    for (uint32_t i = 0; i < outer->part_count; i++)
        if (outer->parts[i].fragment == fragment) return true;
    return false;
}

static void mark_due(struct weft_outer *outer)
{
    for (uint32_t f = 0; f < outer->fragments; f++) {
        const uint64_t offset = (f + 1) * outer->every / outer->fragments % outer->every;
        if (outer->steps % outer->every == offset && has_parts(outer, f)) outer->due[f] = true;
    }
}

enum weft_status weft_outer_step(struct weft_outer *outer)
{
    WEFT_DEFAULT_FLOATS;
    WEFT_TRY(outer_usable(outer, "outer_step"));
    outer->steps++;
    mark_due(outer);
    if (outer->steps >= outer->began_at + outer->overlap) WEFT_TRY(outer_finish(outer));
    while (outer->open == OUTER_NO_FRAGMENT) {
        const uint32_t fragment = due_fragment(outer);
        if (fragment == OUTER_NO_FRAGMENT) break;
        WEFT_TRY(begin_exchange(outer, fragment));
        if (outer->overlap == 0) WEFT_TRY(outer_finish(outer));
    }
    return WEFT_OK;
}

enum weft_status weft_outer_wait(struct weft_outer *outer)
{
    WEFT_DEFAULT_FLOATS;
    WEFT_TRY(outer_usable(outer, "outer_wait"));
    return outer_finish(outer);
}

enum weft_status weft_outer_sync(struct weft_outer *outer)
{
    WEFT_DEFAULT_FLOATS;
    WEFT_TRY(outer_usable(outer, "outer_sync"));
    WEFT_TRY(outer_finish(outer));
    for (uint32_t f = 0; f < outer->fragments; f++) {
        if (!has_parts(outer, f)) continue;
        outer->due[f] = true;
        WEFT_TRY(begin_exchange(outer, f));
        WEFT_TRY(outer_finish(outer));
    }
    return WEFT_OK;
}
