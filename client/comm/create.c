/* create.c - weft_comm_create: a group that its members alone make.
 *
 *     check the list ─► all members announce their call (creation.h) ─► id ─► client_comm_create
 *
 * The id is the largest next id of the members, as for weft_split: every member knows all of them. From the
 * first announcement on, members may complete, so an error of this rank ends the session. */
#include <stdio.h>

#include "client/comm/comm.h"
#include "client/comm/comms.h"
#include "client/comm/creation.h"
#include "client/engine/group.h"
#include "client/session/epoch_change.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define GROUP_ID_MAX 0xffffffu

static enum weft_status check_list(struct weft_session *session, const uint32_t *ranks, uint32_t count)
{
    if (!ranks || count == 0)
        return client_error(session, WEFT_ERR_INVALID, "comm_create: ranks is empty; list the members");
    if (count > session->ranks)
        return client_error(session, WEFT_ERR_INVALID,
                            "comm_create: the list has %u ranks, the job has %u; list each member once",
                            count, session->ranks);
    bool has_own = false;
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= session->ranks)
            return client_error(session, WEFT_ERR_INVALID,
                                "comm_create: place %u of the list has rank %u; the job has ranks 0 to %u", i,
                                ranks[i], session->ranks - 1);
        has_own |= ranks[i] == session->rank;
    }
    if (!has_own)
        return client_error(session, WEFT_ERR_INVALID,
                            "comm_create: this rank (%u) is not in the list; only members call",
                            session->rank);
    return WEFT_OK;
}

/* A rank that is listed twice has its last place only. */
static enum weft_status check_repeats(struct client_creation *creation)
{
    for (uint32_t i = 0; i < creation->mine.ranks; i++) {
        const uint32_t rank = creation->members[i], last = creation->place[rank];
        if (last == i) continue;
        return client_error(creation->session, WEFT_ERR_INVALID,
                            "comm_create: rank %u is at places %u and %u of the list; list it once", rank, i,
                            last);
    }
    return WEFT_OK;
}

static bool has_ended(void *context)
{
    const struct client_creation *creation = context;
    const struct weft_session *session = creation->session;
    return atomic_load_explicit(&creation->state, memory_order_acquire) == CREATION_COMPLETE ||
           client_failed(session) < 0 || client_is_leaving_epoch(session);
}

/* The membership has ended. The engine abandons a creation that runs. */
static enum weft_status epoch_ended(struct weft_session *session)
{
    char text[sizeof session->epoch_change.text];
    client_epoch_change_text(session, text, sizeof text);
    return client_error(session, WEFT_ERR_PEER_LOST,
                        "comm_create: %.300s; call weft_step_end, or weft_shrink outside steps", text);
}

/* Waits until all members have called. */
static enum weft_status wait_members(struct client_creation *creation)
{
    struct weft_session *session = creation->session;
    client_creation_start(creation);
    const enum weft_status status = client_wait_for(session, has_ended, creation,
                                                    client_deadline(session, session->settings.deadline_ns));
    if (atomic_load_explicit(&creation->state, memory_order_acquire) == CREATION_COMPLETE) return WEFT_OK;
    if (status < 0 && client_failed(session) >= 0) {
        char missing[300];
        client_creation_describe_missing(creation, missing, sizeof missing);
        client_fail(session, WEFT_ERR_DEADLINE, true,
                    "rank %u: comm_create of %u ranks, tag %llu, waited %.1f s for the call of %s",
                    session->rank, creation->mine.ranks, (unsigned long long)creation->mine.tag,
                    (double)session->settings.deadline_ns / 1e9, missing);
    }
    WEFT_TRY(client_usable(session));
    return epoch_ended(session);
}

/* All members have called: makes this rank's part. */
static enum weft_status make_group(struct client_creation *creation, struct weft_comm **comm_out)
{
    struct weft_session *session = creation->session;
    const uint32_t id = creation->id, ranks = creation->mine.ranks;
    char name[64];
    if (id >= GROUP_ID_MAX)
        return client_error(session, WEFT_ERR_LIMIT,
                            "comm_create: one more group would exceed the %u that a job can make; restart "
                            "the job",
                            GROUP_ID_MAX);
    session->comms->next_group_id = id + 1;
    snprintf(name, sizeof name, "comm_create, tag %llu", (unsigned long long)creation->mine.tag);
    uint32_t *members = creation->members;
    creation->members = NULL; /* of the group from here on */
    const enum weft_status status = client_comm_create(session, members, ranks, id, name, comm_out);
    if (status < 0 && client_failed(session) >= 0) {
        char text[sizeof session->failure.error.text];
        snprintf(text, sizeof text, "%s", session->failure.error.text);
        client_fail(session, status, true, "rank %u: %.400s", session->rank, text);
    }
    return status;
}

enum weft_status weft_comm_create(struct weft_session *session, const uint32_t *ranks, uint32_t count,
                                  uint64_t tag, struct weft_comm **comm_out)
{
    if (!session) return client_null_argument("comm_create", "session");
    WEFT_TRY(client_comm_check_create(session, "comm_create"));
    if (!comm_out) return client_error(session, WEFT_ERR_INVALID, "comm_create: comm_out is NULL");
    WEFT_TRY(check_list(session, ranks, count));
    if (client_is_leaving_epoch(session)) return epoch_ended(session);
    struct client_creation *creation = client_creation_new(session, ranks, count, tag);
    if (!creation)
        return client_error(session, WEFT_ERR_NO_MEMORY, "comm_create: no memory for a group of %u ranks",
                            count);
    enum weft_status status = check_repeats(creation);
    const bool is_started = status == WEFT_OK;
    if (is_started) status = wait_members(creation);
    const bool is_held = is_started && status < 0; /* by the engine; freed later */
    if (status == WEFT_OK) status = make_group(creation, comm_out);
    if (!is_held) client_creation_free(creation);
    return status;
}
