/* creation.c - see creation.h: the announcements of weft_comm_create, sent and received by the engine.
 *
 *     arrived ──► take: of the running call ──► the last one: complete
 *             └─► keep: for a later call of this rank, one of each sender
 *
 * A call ends before its time if the session fails, or if the membership ends (engine->failed). */
#include "client/comm/creation.h"

#include <stdio.h>
#include <string.h>

#include "client/comm/comms.h"
#include "client/engine/engine.h"
#include "client/engine/suspicion.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "transport/transport.h"

#define RETRY_NS 20000u /* after WEFT_ERR_AGAIN from the transport */
#define MEMBERS_CHECK_NS WEFT_MS(100)
#define MISSING_NAMES_MAX 3u

/* ---- the engine thread ---- */

/* The caller may free the creation from here on. */
static void release(struct client_creation *creation, enum client_creation_state state)
{
    struct weft_loop *loop = creation->session->loop;
    weft_timer_stop(loop, &creation->timer);
    atomic_store_explicit(&creation->state, state, memory_order_release);
    weft_loop_notify(loop);
}

static void end_wait(struct client_creation *creation)
{
    creation->session->comms->creation = NULL;
    weft_groups_set_wait(creation->session->engine->transport, WEFT_ANY_PEER, 0);
}

/* The last statement of its callers: the caller's thread may free the creation. */
static void release_if_complete(struct client_creation *creation)
{
    if (!creation->is_sent || creation->missing > 0 || creation->is_abandoned) return;
    end_wait(creation);
    release(creation, CREATION_COMPLETE);
}

static void all_sent(struct weft_completion *completion, enum weft_status status)
{
    struct client_creation *creation = weft_container_of(completion, struct client_creation, sent);
    (void)status; /* the timer finds a lost member */
    creation->is_sent = true;
    if (creation->is_abandoned) release(creation, CREATION_RELEASED);
    else release_if_complete(creation);
}

static void abandon(struct client_creation *creation)
{
    end_wait(creation);
    creation->is_abandoned = true;
    weft_timer_stop(creation->session->loop, &creation->timer);
    if (creation->is_sent) {
        release(creation, CREATION_RELEASED);
        return;
    }
    const uint32_t ranks = creation->mine.ranks;
    bool loop_has_ended = creation->next_to_send == ranks;
    while (creation->next_to_send < ranks)
        if (creation->members[creation->next_to_send++] != creation->mine.rank)
            weft_completion_finish(&creation->sent, WEFT_OK);
    if (!loop_has_ended) weft_completion_finish(&creation->sent, WEFT_OK);
}

/* Returns false if the transport must be retried. After the last one the caller may free the creation. */
static bool send_announcements(struct client_creation *creation)
{
    uint8_t bytes[ANNOUNCEMENT_BYTES_MAX];
    const struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_GROUP_CREATE, 0),
                                         .header = bytes,
                                         .header_bytes = announcement_write(&creation->mine, bytes)};
    struct weft_transport *transport = creation->session->engine->transport;
    if (creation->next_to_send == creation->mine.ranks) return true;
    while (creation->next_to_send < creation->mine.ranks) {
        const uint32_t place = creation->next_to_send;
        if (creation->members[place] != creation->mine.rank) {
            struct weft_peer *peer = weft_transport_peer(transport, creation->endpoints[place]);
            const enum weft_status status =
                peer ? weft_transport_send(peer, &message, &creation->sent) : WEFT_ERR_PEER_LOST;
            if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) return false;
            if (status < 0) weft_completion_finish(&creation->sent, WEFT_OK);
        }
        creation->next_to_send++;
    }
    weft_completion_finish(&creation->sent, WEFT_OK); /* of this loop */
    return true;
}

/* For ranks that wait for this rank in an operation. */
static void publish_wait(const struct client_creation *creation)
{
    uint32_t place = 0;
    while (place < creation->mine.ranks &&
           (atomic_load(&creation->has_called[place]) || creation->members[place] == creation->mine.rank))
        place++;
    if (place < creation->mine.ranks)
        weft_groups_set_wait(creation->session->engine->transport, creation->endpoints[place],
                             creation->wait_counts_ns);
}

/* A lost member ends the session, unless the coordinator reports its loss first. */
static void check_members(const struct client_creation *creation)
{
    struct weft_session *session = creation->session;
    for (uint32_t place = 0; place < creation->mine.ranks; place++) {
        const uint32_t rank = creation->members[place];
        if (atomic_load(&creation->has_called[place]) || rank == creation->mine.rank) continue;
        const struct weft_peer *peer =
            weft_transport_peer(session->engine->transport, creation->endpoints[place]);
        const bool has_left = weft_group_peer_has_left(session->engine->group, rank);
        char name[128];
        if (!has_left && peer && weft_peer_status(peer) == WEFT_OK) continue;
        client_rank_name(session, rank, name, sizeof name);
        if (has_left)
            client_engine_remote_lost(session, "rank %u: comm_create: %s left the job before it called",
                                      creation->mine.rank, name);
        else
            client_engine_suspect(session, WEFT_ERR_PEER_LOST,
                                  "rank %u: comm_create: lost %s before it called", creation->mine.rank,
                                  name);
        return;
    }
}

static void timer_fired(struct weft_timer *timer)
{
    struct client_creation *creation = weft_container_of(timer, struct client_creation, timer);
    struct weft_session *session = creation->session;
    if (session->engine->failed || creation->mine.epoch != session->epoch) {
        abandon(creation);
        return;
    }
    check_members(creation);
    publish_wait(creation);
    const uint64_t pause_ns = creation->next_to_send < creation->mine.ranks ? RETRY_NS : MEMBERS_CHECK_NS;
    if (weft_timer_start(session->loop, timer, weft_now_ns(session->env) + pause_ns) < 0)
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: comm_create: no memory for a timer",
                    session->rank);
    (void)send_announcements(creation);
}

/* Returns false if the announcement belongs to another creation. */
static bool take(struct client_creation *creation, const struct client_announcement *theirs)
{
    const uint32_t place = theirs->rank < creation->job_ranks ? creation->place[theirs->rank] : UINT32_MAX;
    if (theirs->epoch != creation->mine.epoch || place == UINT32_MAX ||
        creation->endpoints[place] != theirs->peer_id || atomic_load(&creation->has_called[place]))
        return false;
    if (announcement_matches(theirs, &creation->mine)) {
        if (theirs->next_id > creation->id) creation->id = theirs->next_id;
        creation->missing--;
        atomic_store(&creation->has_called[place], 1);
        return true;
    }
    char own[128], name[128], difference[160];
    client_rank_name(creation->session, creation->mine.rank, own, sizeof own);
    client_rank_name(creation->session, theirs->rank, name, sizeof name);
    announcement_describe_difference(theirs, &creation->mine, difference, sizeof difference);
    client_fail(creation->session, WEFT_ERR_MISMATCH, true,
                "%.100s: comm_create: %.100s %s; members call with the same ranks and tag, in the same order",
                own, name, difference);
    return true;
}

static void keep(struct weft_session *session, const struct client_announcement *theirs)
{
    struct weft_list *node, *spare, *kept = &session->comms->announcements;
    weft_list_foreach (node, spare, kept) {
        struct client_announcement *before = weft_container_of(node, struct client_announcement, link);
        if (before->peer_id != theirs->peer_id) continue;
        if ((int32_t)(theirs->epoch - before->epoch) <= 0) return; /* no sender of this version does that */
        weft_list_remove(node);
        weft_free_bytes(session->env, before);
    }
    struct client_announcement *copy = weft_alloc_bytes(session->env, sizeof *copy);
    if (!copy) {
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory to keep the comm_create of %s",
                    session->rank, client_endpoint_name(session, theirs->peer_id));
        return;
    }
    *copy = *theirs;
    weft_list_append(kept, &copy->link);
}

static void arrived(void *context, struct weft_arrival *arrival)
{
    struct weft_session *session = context;
    struct client_creation *creation = session->comms->creation;
    struct client_announcement theirs;
    const bool fits = announcement_read(arrival->header, arrival->header_bytes, &theirs);
    theirs.peer_id = arrival->peer_id;
    weft_transport_discard(session->engine->transport, arrival);
    if (!fits) {
        weft_log(session->env, WEFT_LOG_WARN, "client", "ignored a damaged comm_create of %s",
                 client_endpoint_name(session, theirs.peer_id));
        return;
    }
    if (creation && take(creation, &theirs)) release_if_complete(creation);
    else keep(session, &theirs);
}

static void take_kept(struct client_creation *creation)
{
    struct weft_session *session = creation->session;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->comms->announcements) {
        struct client_announcement *theirs = weft_container_of(node, struct client_announcement, link);
        const bool is_old = (int32_t)(theirs->epoch - creation->mine.epoch) < 0;
        if (!is_old && !take(creation, theirs)) continue;
        weft_list_remove(node);
        weft_free_bytes(session->env, theirs);
    }
}

static void start(struct weft_command *command)
{
    struct client_creation *creation = weft_container_of(command, struct client_creation, command);
    struct weft_session *session = creation->session;
    /* of an earlier membership */
    if (session->comms->creation) abandon(session->comms->creation);
    session->comms->creation = creation;
    creation->wait_counts_ns = weft_now_ns(session->env) + session->settings.deadline_ns / 2;
    take_kept(creation);
    timer_fired(&creation->timer);
}

void client_creations_listen(struct weft_session *session)
{
    weft_transport_handler(session->engine->transport, WEFT_CHANNEL_GROUP_CREATE, arrived, session);
}

/* ---- caller's thread ---- */

static void free_memory(struct client_creation *creation)
{
    struct weft_env *env = creation->session->env;
    weft_free_bytes(env, creation->members);
    weft_free_bytes(env, creation->endpoints);
    weft_free_bytes(env, creation->place);
    weft_free_bytes(env, (void *)creation->has_called);
    weft_free_bytes(env, creation);
}

void client_creation_free(struct client_creation *creation)
{
    weft_list_remove(&creation->link);
    free_memory(creation);
}

static void free_released(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->comms->creations) {
        struct client_creation *creation = weft_container_of(node, struct client_creation, link);
        if (atomic_load_explicit(&creation->state, memory_order_acquire) != CREATION_RUNS)
            client_creation_free(creation);
    }
}

void client_creations_free(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->comms->creations)
        client_creation_free(weft_container_of(node, struct client_creation, link));
    weft_list_foreach (node, spare, &session->comms->announcements)
        weft_free_bytes(session->env, weft_container_of(node, struct client_announcement, link));
    weft_list_init(&session->comms->announcements);
}

struct client_creation *client_creation_new(struct weft_session *session, const uint32_t *members,
                                            uint32_t ranks, uint64_t tag)
{
    free_released(session);
    struct weft_env *env = session->env;
    struct client_creation *creation = weft_alloc_zero(env, sizeof *creation);
    if (!creation) return NULL;
    creation->session = session;
    creation->job_ranks = session->ranks;
    creation->members = weft_alloc_array(env, ranks, sizeof *creation->members);
    creation->endpoints = weft_alloc_array(env, ranks, sizeof *creation->endpoints);
    creation->place = weft_alloc_array(env, creation->job_ranks, sizeof *creation->place);
    creation->has_called = weft_alloc_zero(env, ranks);
    if (!creation->members || !creation->endpoints || !creation->place || !creation->has_called) {
        free_memory(creation);
        return NULL;
    }
    memset(creation->place, 0xff, creation->job_ranks * sizeof *creation->place);
    for (uint32_t i = 0; i < ranks; i++) {
        creation->members[i] = members[i];
        creation->endpoints[i] = client_rank_endpoint(session, members[i]);
        creation->place[members[i]] = i;
    }
    creation->missing = ranks - 1;
    creation->id = session->comms->next_group_id;
    creation->mine = (struct client_announcement){
        .epoch = session->epoch, .rank = session->rank, .next_id = creation->id, .tag = tag};
    announcement_set_members(&creation->mine, members, ranks);
    weft_completion_init(&creation->sent, ranks, all_sent); /* the other members, and the loop */
    weft_timer_init(&creation->timer, timer_fired);
    weft_list_append(&session->comms->creations, &creation->link);
    return creation;
}

void client_creation_start(struct client_creation *creation)
{
    creation->command.fn = start;
    weft_loop_post_lazy(creation->session->loop, &creation->command);
}

void client_creation_describe_missing(const struct client_creation *creation, char *out, size_t out_bytes)
{
    size_t used = 0;
    uint32_t missing = 0;
    out[0] = 0;
    for (uint32_t place = 0; place < creation->mine.ranks; place++) {
        const uint32_t rank = creation->members[place];
        char name[128];
        if (atomic_load(&creation->has_called[place]) || rank == creation->mine.rank) continue;
        if (++missing > MISSING_NAMES_MAX || used >= out_bytes) continue;
        client_rank_name(creation->session, rank, name, sizeof name);
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used > 0 ? ", " : "", name);
    }
    if (missing > MISSING_NAMES_MAX && used < out_bytes)
        snprintf(out + used, out_bytes - used, " and %u more", missing - MISSING_NAMES_MAX);
}
