/* hosts.c - which workers share a host, by the names in the roster: the hierarchical plan goes by it.
 *
 * Every rank has the same roster, so all come to the same answer. */
#include <string.h>

#include "client/session.h"

static void name_hosts(struct weft_session *session, Weft__Control__Member *const *members, size_t count, const char **names)
{
    for (size_t i = 0; i < count; i++) {
        const struct client_member *member = client_member_of_number(session, members[i]->member);
        if (member && !member->is_shard && member->index < session->ranks) names[member->index] = members[i]->host;
    }
}

/* The host of each rank as a number: the first rank that gave this name. */
static void number_hosts(struct weft_session *session, const Weft__Control__Roster *roster, const char **names, uint32_t *host_of)
{
    name_hosts(session, roster->members, roster->n_members, names);
    pthread_mutex_lock(&session->control.lock);
    for (const struct client_grown *grown = session->grown; grown; grown = grown->next)
        name_hosts(session, grown->message->shrunk->newcomers, grown->message->shrunk->n_newcomers, names);
    pthread_mutex_unlock(&session->control.lock);
    uint32_t hosts = 0; /* distinct names so far, each with its first rank */
    uint32_t *firsts = host_of + session->ranks;
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        uint32_t at = 0;
        while (at < hosts && strcmp(names[firsts[at]], names[rank]) != 0) at++;
        if (at == hosts) firsts[hosts++] = rank;
        host_of[rank] = firsts[at];
    }
}

enum weft_status client_hosts_find(struct weft_session *session, const Weft__Control__Roster *roster, struct weft_error *error)
{
    struct client_engine *engine = &session->engine;
    const char **names = weft_alloc_array(session->env, session->ranks, sizeof *names);
    uint32_t *host_of = weft_alloc_array(session->env, session->ranks, 2 * sizeof *host_of);
    engine->hosts_memory = weft_alloc_array(session->env, weft_plan_hosts_words(session->ranks), sizeof *engine->hosts_memory);
    bool room = names && host_of && engine->hosts_memory;
    for (uint32_t rank = 0; room && rank < session->ranks; rank++) names[rank] = "";
    if (room) {
        number_hosts(session, roster, names, host_of);
        weft_plan_hosts_make(host_of, session->ranks, engine->hosts_memory, &engine->hosts);
    }
    weft_free_bytes(session->env, names);
    weft_free_bytes(session->env, host_of);
    return room ? WEFT_OK : weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the hosts of %u ranks", session->ranks);
}
