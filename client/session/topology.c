/* topology.c - which ranks share a host, by the host names of the roster, and the links between hosts from
 * rank 0's table.
 *
 * The hierarchical plans group ranks by host; rings follow the order of hosts in the table, at the speed
 * of each link. All ranks have the same roster and the same table, so they build the same topology, also
 * after ranks are lost or have joined. Hosts that rank 0's table does not name are last in the ring, and
 * then no speeds are known. */
#include "client/session/topology.h"

#include <stdlib.h>
#include <string.h>

#include "client/session/membership.h"
#include "client/session/session.h"

static void name_hosts(struct weft_session *session, Weft__Control__Member *const *members, size_t count,
                       const char **names)
{
    for (size_t i = 0; i < count; i++) {
        const struct client_member *member = client_member_of_number(session, members[i]->member);
        if (member && !member->is_shard && member->index < session->ranks)
            names[member->index] = members[i]->host;
    }
}

/* Numbers each rank's host by the first rank with the same host name. */
static void number_hosts(struct weft_session *session, const Weft__Control__Roster *roster,
                         const char **names, uint32_t *host_of)
{
    name_hosts(session, roster->members, roster->n_members, names);
    pthread_mutex_lock(&session->control.lock);
    for (const struct client_newcomer_message *newcomer = session->membership.newcomer_messages; newcomer;
         newcomer = newcomer->next)
        name_hosts(session, newcomer->message->shrunk->newcomers, newcomer->message->shrunk->n_newcomers,
                   names);
    pthread_mutex_unlock(&session->control.lock);
    uint32_t hosts = 0; /* distinct names so far; firsts[] has the first rank of each */
    uint32_t *firsts = host_of + session->ranks;
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        uint32_t at = 0;
        while (at < hosts && strcmp(names[firsts[at]], names[rank]) != 0) at++;
        if (at == hosts) firsts[hosts++] = rank;
        host_of[rank] = firsts[at];
    }
}

/* FNV-1a: the key of a host in LinkCost.ring. */
static uint64_t key_of(const char *name)
{
    return weft_fnv_bytes(WEFT_FNV_BASIS, name, strlen(name));
}

struct client_hosts *client_hosts_alloc(struct weft_session *session, uint32_t ranks)
{
    struct client_hosts *hosts =
        weft_alloc_zero(session->env, sizeof *hosts + weft_plan_hosts_words(ranks) * sizeof hosts->memory[0]);
    if (hosts) atomic_init(&hosts->user_count, 1);
    return hosts;
}

static void hosts_free(struct weft_env *env, struct client_hosts *hosts)
{
    while (hosts) {
        struct client_hosts *before = hosts->previous;
        weft_free_bytes(env, hosts->keys);
        weft_free_bytes(env, hosts);
        hosts = before;
    }
}

void client_hosts_free(struct weft_session *session) { hosts_free(session->env, session->membership.hosts); }

enum weft_status client_hosts_create(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error)
{
    const char **names = weft_alloc_array(session->env, session->ranks, sizeof *names);
    uint32_t *host_of = weft_alloc_array(session->env, session->ranks, 2 * sizeof *host_of);
    struct client_hosts *hosts = client_hosts_alloc(session, session->ranks);
    if (hosts) hosts->keys = weft_alloc_array(session->env, session->ranks, sizeof *hosts->keys);
    bool has_memory = names && host_of && hosts && hosts->keys;
    for (uint32_t rank = 0; has_memory && rank < session->ranks; rank++) names[rank] = "";
    if (has_memory) {
        number_hosts(session, roster, names, host_of);
        weft_plan_hosts_init(host_of, session->ranks, hosts->memory, &hosts->plan);
        for (uint32_t rank = 0; rank < session->ranks; rank++) hosts->keys[rank] = key_of(names[rank]);
        hosts->previous = session->membership.hosts;
        session->membership.hosts = hosts;
    } else {
        hosts_free(session->env, hosts);
    }
    weft_free_bytes(session->env, names);
    weft_free_bytes(session->env, host_of);
    return has_memory ? WEFT_OK
                      : weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the hosts of %u ranks",
                                       session->ranks);
}

/* ---- order and speed of hosts ---- */
/* A host, its position in LinkCost.ring, and its speed. */
struct ring_position {
    uint32_t host, position, speed;
};

static int compare_positions(const void *left, const void *right)
{
    const struct ring_position *a = left, *b = right;
    if (a->position != b->position) return a->position < b->position ? -1 : 1;
    return a->host < b->host ? -1 : a->host > b->host;
}

static struct ring_position find_in_ring(const struct weft_session *session, uint32_t host, uint64_t key)
{
    for (uint32_t i = 0; i < session->link.ring_hosts; i++) {
        const uint8_t *wire = session->link.ring + i * WEFT_RING_HOST_BYTES;
        if (get_le64(wire) == key) return (struct ring_position){host, i, get_le32(wire + 8)};
    }
    return (struct ring_position){host, UINT32_MAX, 0};
}

bool client_hosts_apply_links_subset(struct weft_session *session, const uint32_t *members, uint32_t ranks,
                                     uint32_t *memory, struct weft_plan_hosts *hosts)
{
    if (session->link.ring_hosts == 0 || hosts->count < 2) return true;
    struct ring_position *ring_position = weft_alloc_array(session->env, hosts->count, sizeof *ring_position);
    uint32_t *order = weft_alloc_array(session->env, hosts->count, 2 * sizeof *order),
             *speeds = order + hosts->count;
    bool has_memory = ring_position && order, speeds_known = true;
    for (uint32_t h = 0; has_memory && h < hosts->count; h++) {
        uint32_t first = hosts->members[hosts->first[h]];
        ring_position[h] = find_in_ring(
            session, h, atomic_load(&session->membership.hosts)->keys[members ? members[first] : first]);
        speeds[h] = ring_position[h].speed;
        speeds_known &= speeds[h] > 0;
    }
    if (has_memory) {
        qsort(ring_position, hosts->count, sizeof *ring_position, compare_positions);
        for (uint32_t h = 0; h < hosts->count; h++) order[h] = ring_position[h].host;
        weft_plan_hosts_apply_links(
            hosts, memory, ranks,
            &(struct weft_plan_links){.order = order, .speeds = speeds_known ? speeds : NULL});
    }
    weft_free_bytes(session->env, ring_position);
    weft_free_bytes(session->env, order);
    return has_memory;
}

enum weft_status client_hosts_apply_links(struct weft_session *session, struct weft_error *error)
{
    struct client_hosts *hosts = session->membership.hosts;
    if (client_hosts_apply_links_subset(session, NULL, session->ranks, hosts->memory, &hosts->plan))
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the links of %u hosts",
                          hosts->plan.count);
}
