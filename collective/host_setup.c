/* host_setup.c - who maps whom: offers, the vote, and the end.
 *
 *     open ──► OFFER to all: "my segment lies there"        ─┐ from everybody: map it
 *              VOTE to all:  "I have mapped everybody", or not ┘ everybody yes: ON, for all ranks alike; else OFF
 *
 * A group opens as it is made, or (weft_group_options.meets_later) with its first operation or the first offer of another rank; so a group that is
 * never used has no memory here. Who leaves before it has voted has not voted yes, so nobody meets; who has says so once more as it leaves, as
 * the transport may not have taken its vote to everybody.
 *
 * Operations posted meanwhile wait for the vote (host_decide), so all ranks agree from which one on they meet in memory.
 * A rank that cannot take part says so when the first offer reaches it; groups with a rank on another host find that out
 * from their peers' abilities and ask nobody.
 *
 * A segment may be looked at by a slower peer when its own rank has finished the last operation and frees the group. Then
 * it is laid aside, and freed when the peers are over with it: whenever a group of this process comes or goes. Of a peer that has died
 * nothing is kept. (One that is stopped as the group is freed, and then killed, is taken for one that may look, for good.) */
#include "collective/host.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define OFFER_MAGIC 0x74736f48u

/* ---- segments laid aside ---- */
struct aside {
    struct aside *next;
    struct host_segment *segment;
    struct host_calls *calls;
    struct host_pairs *pairs;
    uint8_t *rooms[HOST_ROOM_SIZES];
    uint64_t operations;
    uint32_t count, rank;
    struct host_peer peers[];
};

static struct {
    pthread_mutex_t mutex;
    struct aside *first;
} asides = {.mutex = PTHREAD_MUTEX_INITIALIZER};

bool host_peers_look(const struct host_peer *peers, uint32_t count, uint64_t operations)
{
    for (uint32_t i = 0; i < count; i++)
        if (peers[i].segment && peers[i].place && host_looks_at_us(&peers[i], operations)) return true;
    return false;
}

static void release_all(struct host_peer *peers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) host_place_give(peers[i].place);
}

static void asides_sweep(void)
{
    pthread_mutex_lock(&asides.mutex);
    for (struct aside **at = &asides.first; *at;) {
        struct aside *aside = *at;
        if (host_peers_look(aside->peers, aside->count, aside->operations) || host_pairs_look(aside->pairs, aside->peers, aside->rank)) {
            at = &aside->next;
            continue;
        }
        *at = aside->next;
        release_all(aside->peers, aside->count);
        host_piece_give(aside->segment);
        host_piece_give(aside->calls);
        host_pairs_free(aside->pairs);
        for (int size = 0; size < HOST_ROOM_SIZES; size++) weft_memory_free(weft_env_system(), aside->rooms[size]);
        weft_free_bytes(weft_env_system(), aside);
    }
    pthread_mutex_unlock(&asides.mutex);
}

/* No memory for the record: the segment, and what goes with it, stays for good. */
static void lay_aside(struct host *host)
{
    uint32_t ranks = host->group->ranks;
    struct aside *aside = weft_alloc_zero(weft_env_system(), sizeof *aside + ranks * sizeof aside->peers[0]);
    uint8_t *rooms[HOST_ROOM_SIZES];
    for (int size = 0; size < HOST_ROOM_SIZES; size++) rooms[size] = host_room_leave(host, (enum host_room_size)size);
    if (!aside) return;
    aside->segment = host->segment;
    aside->calls = host->calls;
    aside->pairs = host->pairs;
    aside->rank = host->group->rank;
    memcpy(aside->rooms, rooms, sizeof rooms);
    aside->operations = host->next;
    aside->count = ranks;
    memcpy(aside->peers, host->peers, ranks * sizeof aside->peers[0]);
    memset(host->peers, 0, ranks * sizeof aside->peers[0]);
    pthread_mutex_lock(&asides.mutex);
    aside->next = asides.first;
    asides.first = aside;
    pthread_mutex_unlock(&asides.mutex);
}

/* ---- offers and votes ---- */
bool host_all_map(const struct weft_group *group)
{
    if (group->ranks < 2 || group->ranks > HOST_RANKS_MAX) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !(weft_peer_abilities(group->roster->peers[rank]) & WEFT_TRANSPORT_MAPS)) return false;
    return true;
}

/* A container, or who started the rank, may have left it fewer than are online. Not known: all. */
static void tell_processors(struct host_segment *segment)
{
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    for (uint32_t i = 0; i < HOST_PROCESSORS; i++)
        if (!known || CPU_ISSET(i, &allowed)) segment->processors[i / 64] |= (uint64_t)1 << i % 64;
    segment->quota = weft_cpu_quota_read("");
    segment->online = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Ranks of one container share its quota, those of different ones add theirs. UINT32_MAX: some rank has no limit. */
static uint32_t quota_of_all(const struct host_peer *peers, uint32_t ranks)
{
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct weft_cpu_quota quota = peers[rank].segment->quota;
        bool counted = false;
        for (uint32_t before = 0; before < rank && !counted; before++) counted = peers[before].segment->quota.group == quota.group;
        if (quota.processors == 0 || quota.processors > UINT32_MAX - sum) return UINT32_MAX;
        if (!counted) sum += quota.processors;
    }
    return sum;
}

/* Of all together: each may be bound to one of its own. From what the ranks have said alone, so that all find the same. */
uint32_t host_processors(const struct host_peer *peers, uint32_t ranks)
{
    uint32_t quota = quota_of_all(peers, ranks);
    uint32_t count = 0, online = UINT32_MAX;
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (peers[rank].segment->online < online) online = peers[rank].segment->online;
    for (uint32_t word = 0; word < HOST_PROCESSORS / 64; word++) {
        uint64_t any = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) any |= peers[rank].segment->processors[word];
        count += (uint32_t)__builtin_popcountll(any);
    }
    if (count > online) count = online;
    return count < quota ? count : quota;
}

static enum weft_status segment_make(struct host *host)
{
    void *memory;
    WEFT_TRY(host_piece_take(sizeof *host->segment, &memory, &host->offer.at));
    host->segment = memory;
    host->salt = weft_random_u64(host->group->env);
    atomic_store(&host->segment->over, host->salt);
    atomic_store(&host->segment->processor, HOST_NO_PROCESSOR);
    host->processor = HOST_NO_PROCESSOR;
    tell_processors(host->segment);
    host->offer.magic = OFFER_MAGIC;
    host->offer.layout = sizeof *host->segment;
    host->offer.salt = host->salt;
    host->peers[host->group->rank].segment = host->segment;
    host->peers[host->group->rank].salt = host->salt;
    return WEFT_OK;
}

enum weft_status host_open(struct weft_group *group)
{
    if (group->host || !group->may_meet) return WEFT_OK;
    group->may_meet = false;
    asides_sweep();
    struct host *host = weft_alloc_zero(group->env, sizeof *host + group->ranks * sizeof host->peers[0]);
    if (!host) return WEFT_ERR_NO_MEMORY;
    host->group = group;
    weft_list_init(&host->queue);
    weft_list_init(&host->pollable.link);
    for (int size = 0; size < HOST_ROOM_SIZES; size++) weft_list_init(&host->rooms[size].link);
    enum weft_status status = segment_make(host);
    if (status < 0) {
        weft_free_bytes(group->env, host);
        return status == WEFT_ERR_UNSUPPORTED ? WEFT_OK : status; /* who gets an offer answers with a no */
    }
    host->state = HOST_ASKING;
    host->maps_all = host->copies_all = true;
    host->rights = host_rights_now();
    weft_stamp_look(&host->stamp, group->env); /* the first one: the pace is known with the second */
    group->host = host;
    control_send_all(&group->offer, group, COLL_MESSAGE_HOST, 0, WEFT_OK);
    return WEFT_OK;
}

static void vote(struct weft_group *group, enum weft_status opinion)
{
    bool copies = true;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && weft_peer_copy(group->roster->peers[rank], false, 0, NULL, 0) < 0) copies = false;
    if (group->host && !copies) group->host->copies_all = false;
    if (group->host && opinion == WEFT_OK) group->host->vote = copies ? HOST_VOTE_YES | HOST_VOTE_COPIES : HOST_VOTE_YES;
    control_send_all(&group->vote, group, COLL_MESSAGE_HOST_VOTE, copies, opinion);
}

static void decided(struct host *host, enum host_state state)
{
    if (host->state != HOST_ASKING) return;
    host->state = state;
    if (state == HOST_ON) {
        uint32_t processors = host_processors(host->peers, host->group->ranks);
        host->crowded = host->group->ranks > processors;
        host_past_know(host, processors);
        if (host->crowded) weft_loop_waits(host->group->loop, WEFT_LOOP_HERE);
        char text[64];
        weft_peer_describe(host->group->roster->peers[host->group->rank == 0], text, sizeof text);
        weft_log(host->group->env, WEFT_LOG_DEBUG, "collective", "group %u: its %u ranks meet in the memory of this host (%s)",
                 host->group->group_id, host->group->ranks, text);
    }
    host_decide(host);
}

static void count_votes(struct host *host)
{
    if (host->state == HOST_ASKING && host->offer_count == host->group->ranks - 1 && host->vote_count == host->group->ranks - 1 && host->maps_all)
        decided(host, HOST_ON);
}

static bool map(struct host_peer *peer, struct weft_peer *face, const void *payload, size_t bytes)
{
    struct host_offer offer;
    if (bytes != sizeof offer) return false;
    memcpy(&offer, payload, sizeof offer);
    if (offer.magic != OFFER_MAGIC || offer.layout != sizeof *peer->segment || offer.at % _Alignof(struct host_segment)) return false;
    if (host_place_take(face, &peer->place) < 0) return false;
    bool fits = host_place_holds(peer->place, offer.at, sizeof *peer->segment);
    peer->segment = fits ? (struct host_segment *)(peer->place->mapping.base + offer.at) : NULL;
    peer->salt = offer.salt;
    return fits;
}

void host_offered(struct weft_group *group, uint32_t rank, const void *payload, size_t bytes)
{
    (void)host_open(group);
    struct host *host = group->host;
    if (!host) {
        vote(group, WEFT_ERR_UNSUPPORTED);
        return;
    }
    struct host_peer *peer = &host->peers[rank];
    if (host->offered >> rank & 1 || host->state != HOST_ASKING) return;
    host->offered |= (uint64_t)1 << rank;
    host->offer_count++;
    if (!map(peer, group->roster->peers[rank], payload, bytes)) host->maps_all = false;
    if (host->offer_count < group->ranks - 1) return;
    vote(group, host->maps_all ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
    if (!host->maps_all) decided(host, HOST_OFF);
    count_votes(host);
}

void host_voted(struct weft_group *group, uint32_t rank, enum weft_status opinion, bool copies)
{
    struct host *host = group->host;
    if (!host && opinion < 0) group->may_meet = false; /* said to another rank's offer */
    if (!host || host->voted >> rank & 1) return;
    host->voted |= (uint64_t)1 << rank;
    host->vote_count++;
    if (!copies) host->copies_all = false;
    if (opinion < 0) {
        if (host->state == HOST_ASKING && host->offer_count < group->ranks - 1) vote(group, WEFT_ERR_UNSUPPORTED);
        decided(host, HOST_OFF);
    }
    count_votes(host);
}

void host_left(struct weft_group *group, uint32_t rank, uint64_t said)
{
    struct host *host = group->host;
    group->may_meet = false;
    if (!host || host->voted >> rank & 1) return;
    host_voted(group, rank, said & HOST_VOTE_YES ? WEFT_OK : WEFT_ERR_UNSUPPORTED, said & HOST_VOTE_COPIES);
}

/* ---- the end ---- */

/* A process that has ended looks at nothing any more, and will not say so. As long as its memory is mapped here the machine keeps all of it. */
static void forget_the_dead(struct host *host)
{
    struct weft_group *group = host->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct host_peer *peer = &host->peers[rank];
        if (rank == group->rank || !peer->place || !weft_peer_harmless(group->roster->peers[rank])) continue;
        host_place_give(peer->place);
        *peer = (struct host_peer){0};
    }
}

void host_free(struct weft_group *group)
{
    struct host *host = group->host;
    if (!host) return;
    group->host = NULL;
    if (host->polled) weft_loop_remove(group->loop, &host->pollable);
    host_pairs_part(host->pairs);
    host_say_over(host, HOST_ENDED);
    forget_the_dead(host);
    if (host_peers_look(host->peers, group->ranks, host->next) || host_pairs_look(host->pairs, host->peers, group->rank)) {
        lay_aside(host);
    } else {
        host_piece_give(host->segment);
        host_piece_give(host->calls);
        host_pairs_free(host->pairs);
        for (int i = 0; i < HOST_ROOM_SIZES; i++) {
            enum host_room_size size = (enum host_room_size)i;
            host_room_give(group->records, size, host_room_leave(host, size));
        }
    }
    host_reach_give(group->records, host->reach);
    release_all(host->peers, group->ranks);
    host_shapes_free(host);
    weft_free_bytes(group->env, host->slots);
    weft_free_bytes(group->env, host);
    asides_sweep();
}
