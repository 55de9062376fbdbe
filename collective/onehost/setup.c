/* setup.c - maps the peers' segments, votes on the one-host path, and frees a segment that peers may still
 * read.
 *
 *   onehost_open ──► OFFER to all: address of the own segment   ─┐ all offers received: map the segments
 *                    VOTE to all:  all mapped, or not            ┘ all votes yes: ENABLED, else DISABLED
 *
 * A group opens when it is created, or with opens_onehost_later at its first operation or the first offer of
 * a peer. A rank that leaves repeats its vote, because the transport may not have delivered it. Without a
 * vote it counts as no. Operations posted before the end of the vote wait for it (onehost_vote_complete). A
 * segment that a slower peer can still read is freed later: each time a group of this process opens or
 * closes. A peer that is stopped while the group is freed, and then killed, keeps the segment allocated. */
#include "collective/core/control/group_control.h"
#include "collective/onehost/onehost.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define OFFER_MAGIC 0x74736f48u

/* ---- deferred frees ---- */
struct deferred_free {
    struct deferred_free *next;
    struct onehost_segment *segment;
    struct onehost_message_calls *message_calls;
    struct onehost_sendrecv *sendrecv;
    uint8_t *copyin_slots[ONEHOST_SLOT_CLASSES];
    uint64_t operations;
    uint32_t count, rank;
    struct onehost_peer peers[];
};

static struct {
    pthread_mutex_t mutex;
    struct deferred_free *first;
} deferred_frees = {.mutex = PTHREAD_MUTEX_INITIALIZER};

bool onehost_is_read_by_peers(const struct onehost_peer *peers, uint32_t count, uint64_t operations)
{
    for (uint32_t i = 0; i < count; i++)
        if (peers[i].segment && peers[i].memory && onehost_peer_reads_segment(&peers[i], operations))
            return true;
    return false;
}

static void peer_memories_release(struct onehost_peer *peers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) onehost_peer_memory_release(peers[i].memory);
}

static void deferred_frees_sweep(void)
{
    pthread_mutex_lock(&deferred_frees.mutex);
    for (struct deferred_free **at = &deferred_frees.first; *at;) {
        struct deferred_free *deferred_free = *at;
        if (onehost_is_read_by_peers(deferred_free->peers, deferred_free->count, deferred_free->operations) ||
            onehost_sends_are_read_by_peers(deferred_free->sendrecv, deferred_free->peers,
                                            deferred_free->rank)) {
            at = &deferred_free->next;
            continue;
        }
        *at = deferred_free->next;
        peer_memories_release(deferred_free->peers, deferred_free->count);
        onehost_block_free(deferred_free->segment);
        onehost_block_free(deferred_free->message_calls);
        onehost_sendrecv_free(deferred_free->sendrecv);
        for (int slot_class = 0; slot_class < ONEHOST_SLOT_CLASSES; slot_class++)
            weft_memory_free(weft_env_system(), deferred_free->copyin_slots[slot_class]);
        weft_free_bytes(weft_env_system(), deferred_free);
    }
    pthread_mutex_unlock(&deferred_frees.mutex);
}

/* If there is no memory for the entry, the segment and its blocks stay allocated. */
static void defer_free(struct onehost *onehost)
{
    uint32_t ranks = onehost->group->ranks;
    struct deferred_free *deferred_free =
        weft_alloc_zero(weft_env_system(), sizeof *deferred_free + ranks * sizeof deferred_free->peers[0]);
    uint8_t *copyin_slots[ONEHOST_SLOT_CLASSES];
    for (int slot_class = 0; slot_class < ONEHOST_SLOT_CLASSES; slot_class++)
        copyin_slots[slot_class] = onehost_slots_detach(onehost, (enum onehost_slot_class)slot_class);
    if (!deferred_free) return;
    deferred_free->segment = onehost->segment;
    deferred_free->message_calls = onehost->message_calls;
    deferred_free->sendrecv = onehost->sendrecv;
    deferred_free->rank = onehost->group->rank;
    memcpy(deferred_free->copyin_slots, copyin_slots, sizeof copyin_slots);
    deferred_free->operations = onehost->next_seq;
    deferred_free->count = ranks;
    memcpy(deferred_free->peers, onehost->peers, ranks * sizeof deferred_free->peers[0]);
    memset(onehost->peers, 0, ranks * sizeof deferred_free->peers[0]);
    pthread_mutex_lock(&deferred_frees.mutex);
    deferred_free->next = deferred_frees.first;
    deferred_frees.first = deferred_free;
    pthread_mutex_unlock(&deferred_frees.mutex);
}

/* ---- offers and votes ---- */
bool onehost_can_map_all(const struct weft_group *group)
{
    if (group->ranks < 2 || group->ranks > ONEHOST_RANKS_MAX) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank &&
            !(weft_peer_abilities(group->peer_table->peers[rank]) & WEFT_TRANSPORT_MAPS))
            return false;
    return true;
}

/* The affinity can hold fewer cores than are online. If it is unknown, all count. */
static void publish_cpus(struct onehost_segment *segment)
{
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    for (uint32_t i = 0; i < ONEHOST_CPUS; i++)
        if (!known || CPU_ISSET(i, &allowed)) segment->cpu_mask[i / 64] |= (uint64_t)1 << i % 64;
    segment->quota = weft_cpu_quota_read("");
    segment->online_cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Ranks of one container share its limit; the limits of several containers add up. UINT32_MAX: a rank has no
 * limit. */
static uint32_t quota_total(const struct onehost_peer *peers, uint32_t ranks)
{
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct weft_cpu_quota quota = peers[rank].segment->quota;
        bool counted = false;
        for (uint32_t before = 0; before < rank && !counted; before++)
            counted = peers[before].segment->quota.group == quota.group;
        if (quota.processors == 0 || quota.processors > UINT32_MAX - sum) return UINT32_MAX;
        if (!counted) sum += quota.processors;
    }
    return sum;
}

/* Cores of all ranks together: each rank can be bound to its own. Uses only what the segments publish, so all
 * agree. */
uint32_t onehost_processor_count(const struct onehost_peer *peers, uint32_t ranks)
{
    uint32_t quota = quota_total(peers, ranks);
    uint32_t count = 0, online_cpus = UINT32_MAX;
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (peers[rank].segment->online_cpus < online_cpus) online_cpus = peers[rank].segment->online_cpus;
    for (uint32_t word = 0; word < ONEHOST_CPUS / 64; word++) {
        uint64_t any = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) any |= peers[rank].segment->cpu_mask[word];
        count += (uint32_t)__builtin_popcountll(any);
    }
    if (count > online_cpus) count = online_cpus;
    return count < quota ? count : quota;
}

static enum weft_status segment_create(struct onehost *onehost)
{
    void *memory;
    WEFT_TRY(onehost_block_alloc(sizeof *onehost->segment, &memory, &onehost->setup.offer.at));
    onehost->segment = memory;
    onehost->salt = weft_random_u64(onehost->group->env);
    atomic_store(&onehost->segment->retired_seq, onehost->salt);
    atomic_store(&onehost->segment->processor, ONEHOST_NO_PROCESSOR);
    onehost->scheduling.processor = ONEHOST_NO_PROCESSOR;
    publish_cpus(onehost->segment);
    onehost->setup.offer.magic = OFFER_MAGIC;
    onehost->setup.offer.layout = sizeof *onehost->segment;
    onehost->setup.offer.salt = onehost->salt;
    onehost->peers[onehost->group->rank].segment = onehost->segment;
    onehost->peers[onehost->group->rank].salt = onehost->salt;
    return WEFT_OK;
}

enum weft_status onehost_open(struct weft_group *group)
{
    if (group->onehost || !group->may_open_onehost) return WEFT_OK;
    group->may_open_onehost = false;
    deferred_frees_sweep();
    struct onehost *onehost =
        weft_alloc_zero(group->env, sizeof *onehost + group->ranks * sizeof onehost->peers[0]);
    if (!onehost) return WEFT_ERR_NO_MEMORY;
    onehost->group = group;
    weft_list_init(&onehost->polling.queue);
    weft_list_init(&onehost->polling.pollable.link);
    for (int slot_class = 0; slot_class < ONEHOST_SLOT_CLASSES; slot_class++)
        weft_list_init(&onehost->copyin_slots[slot_class].link);
    enum weft_status status = segment_create(onehost);
    if (status < 0) {
        weft_free_bytes(group->env, onehost);
        /* this rank votes no when an offer arrives */
        return status == WEFT_ERR_UNSUPPORTED ? WEFT_OK : status;
    }
    onehost->state = ONEHOST_VOTING;
    onehost->setup.all_mappable = onehost->setup.all_cma = true;
    onehost->setup.credentials = onehost_credentials_read();
    /* the first reading; the second one gives the clock rate */
    weft_timestamp_read_clock(&onehost->stamp, group->env);
    group->onehost = onehost;
    group_control_broadcast(&group->control.offer, group, COLL_MESSAGE_ONEHOST_SEGMENT, 0, WEFT_OK);
    return WEFT_OK;
}

static void vote(struct weft_group *group, enum weft_status opinion)
{
    bool copies = true;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && weft_peer_copy(group->peer_table->peers[rank], false, 0, NULL, 0) < 0)
            copies = false;
    if (group->onehost && !copies) group->onehost->setup.all_cma = false;
    if (group->onehost && opinion == WEFT_OK)
        group->onehost->setup.vote = copies ? ONEHOST_VOTE_YES | ONEHOST_VOTE_CMA : ONEHOST_VOTE_YES;
    group_control_broadcast(&group->control.vote, group, COLL_MESSAGE_ONEHOST_VOTE, copies, opinion);
}

static void set_state(struct onehost *onehost, enum onehost_state state)
{
    if (onehost->state != ONEHOST_VOTING) return;
    onehost->state = state;
    if (state == ONEHOST_ENABLED) {
        uint32_t processors = onehost_processor_count(onehost->peers, onehost->group->ranks);
        onehost->is_oversubscribed = onehost->group->ranks > processors;
        onehost_cache_policy_init(onehost, processors);
        if (onehost->is_oversubscribed) weft_loop_set_wait_core(onehost->group->loop, WEFT_WAIT_SAME_CORE);
        char text[64];
        weft_peer_describe(onehost->group->peer_table->peers[onehost->group->rank == 0], text, sizeof text);
        weft_log(onehost->group->env, WEFT_LOG_DEBUG, "collective",
                 "group %u: its %u ranks meet in the memory of this host (%s)", onehost->group->group_id,
                 onehost->group->ranks, text);
    }
    onehost_vote_complete(onehost);
}

/* Disables the path because `rank` cannot map the memory of the other ranks. */
static void disable(struct onehost *onehost, uint32_t rank)
{
    const struct weft_group *group = onehost->group;
    if (onehost->state == ONEHOST_VOTING)
        weft_log(group->env, WEFT_LOG_INFO, "collective",
                 "group %u: calls use messages, not the memory of this host: rank %u cannot map the memory "
                 "of all %u ranks",
                 group->group_id, rank, group->ranks);
    set_state(onehost, ONEHOST_DISABLED);
}

static void check_votes(struct onehost *onehost)
{
    if (onehost->state == ONEHOST_VOTING && onehost->setup.offer_count == onehost->group->ranks - 1 &&
        onehost->setup.vote_count == onehost->group->ranks - 1 && onehost->setup.all_mappable)
        set_state(onehost, ONEHOST_ENABLED);
}

static bool peer_map(struct onehost_peer *peer, struct weft_peer *transport_peer, const void *payload,
                     size_t bytes)
{
    struct onehost_segment_address offer;
    if (bytes != sizeof offer) return false;
    memcpy(&offer, payload, sizeof offer);
    if (offer.magic != OFFER_MAGIC || offer.layout != sizeof *peer->segment ||
        offer.at % _Alignof(struct onehost_segment))
        return false;
    if (onehost_peer_memory_acquire(transport_peer, &peer->memory) < 0) return false;
    bool fits = onehost_peer_memory_contains(peer->memory, offer.at, sizeof *peer->segment);
    peer->segment = fits ? (struct onehost_segment *)(peer->memory->mapping.base + offer.at) : NULL;
    peer->salt = offer.salt;
    return fits;
}

void onehost_address_received(struct weft_group *group, uint32_t rank, const void *payload, size_t bytes)
{
    (void)onehost_open(group);
    struct onehost *onehost = group->onehost;
    if (!onehost) {
        vote(group, WEFT_ERR_UNSUPPORTED);
        return;
    }
    struct onehost_peer *peer = &onehost->peers[rank];
    if (onehost->setup.offered_ranks >> rank & 1 || onehost->state != ONEHOST_VOTING) return;
    onehost->setup.offered_ranks |= (uint64_t)1 << rank;
    onehost->setup.offer_count++;
    if (!peer_map(peer, group->peer_table->peers[rank], payload, bytes)) onehost->setup.all_mappable = false;
    if (onehost->setup.offer_count < group->ranks - 1) return;
    vote(group, onehost->setup.all_mappable ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
    if (!onehost->setup.all_mappable) disable(onehost, group->rank);
    check_votes(onehost);
}

void onehost_vote_received(struct weft_group *group, uint32_t rank, enum weft_status opinion, bool copies)
{
    struct onehost *onehost = group->onehost;
    /* a peer's answer to the offer of another rank */
    if (!onehost && opinion < 0) group->may_open_onehost = false;
    if (!onehost || onehost->setup.voted_ranks >> rank & 1) return;
    onehost->setup.voted_ranks |= (uint64_t)1 << rank;
    onehost->setup.vote_count++;
    if (!copies) onehost->setup.all_cma = false;
    if (opinion < 0) {
        if (onehost->state == ONEHOST_VOTING && onehost->setup.offer_count < group->ranks - 1)
            vote(group, WEFT_ERR_UNSUPPORTED);
        disable(onehost, rank);
    }
    check_votes(onehost);
}

void onehost_peer_left(struct weft_group *group, uint32_t rank, uint64_t last_vote)
{
    struct onehost *onehost = group->onehost;
    group->may_open_onehost = false;
    if (!onehost || onehost->setup.voted_ranks >> rank & 1) return;
    onehost_vote_received(group, rank, last_vote & ONEHOST_VOTE_YES ? WEFT_OK : WEFT_ERR_UNSUPPORTED,
                          last_vote & ONEHOST_VOTE_CMA);
}

/* ---- end ---- */

/* A dead process reads nothing more and updates no retired_seq. Its memory stays allocated while it is mapped
 * here. */
static void release_dead_peers(struct onehost *onehost)
{
    struct weft_group *group = onehost->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct onehost_peer *peer = &onehost->peers[rank];
        if (rank == group->rank || !peer->memory || !weft_peer_is_detached(group->peer_table->peers[rank]))
            continue;
        onehost_peer_memory_release(peer->memory);
        *peer = (struct onehost_peer){0};
    }
}

void onehost_free(struct weft_group *group)
{
    struct onehost *onehost = group->onehost;
    if (!onehost) return;
    group->onehost = NULL;
    if (onehost->polling.is_registered) weft_loop_remove(group->loop, &onehost->polling.pollable);
    onehost_sendrecv_detach(onehost->sendrecv);
    onehost_publish_retired(onehost, ONEHOST_SEQ_ENDED);
    release_dead_peers(onehost);
    if (onehost_is_read_by_peers(onehost->peers, group->ranks, onehost->next_seq) ||
        onehost_sends_are_read_by_peers(onehost->sendrecv, onehost->peers, group->rank)) {
        defer_free(onehost);
    } else {
        onehost_block_free(onehost->segment);
        onehost_block_free(onehost->message_calls);
        onehost_sendrecv_free(onehost->sendrecv);
        for (int i = 0; i < ONEHOST_SLOT_CLASSES; i++) {
            enum onehost_slot_class slot_class = (enum onehost_slot_class)i;
            onehost_slots_release(group->ops.op_pool, slot_class, onehost_slots_detach(onehost, slot_class));
        }
    }
    onehost_buffers_release(group->ops.op_pool, onehost->buffers);
    peer_memories_release(onehost->peers, group->ranks);
    onehost_prepared_free(onehost);
    weft_free_bytes(group->env, onehost->large_slot_seqs);
    weft_free_bytes(group->env, onehost);
    deferred_frees_sweep();
}
