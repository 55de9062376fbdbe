/* sequence.c - who needs nothing of the others does not wait for them: they find its line when they come.
 * What keeps that safe.
 *
 *     operation   ... | settled ............ next - 1 | next
 *                     | over here, where this rank    | to be announced where ONEHOST_DESCRIPTORS operations before it was
 *                     | led some; the others' lines   |
 *                     | are not all seen yet          |
 *
 * In a broadcast and in a scatter the root *leads* and the others follow; in a reduce and in a gather all
 * lead but the root. An operation is settled when all ranks have called it alike. One for which this rank
 * waited for all of them is settled as it ends: the root of a reduce or gather does. Who follows a root has
 * seen its line, which is all it needs to. Who leads goes on at once, and looks later: it may have
 * ONEHOST_RUN_AHEAD_MAX operations that are not settled, and no operation but one of onehost/fastpath.c
 * begins before all have called what was before it. Only what is settled is said to be over, so lines that
 * somebody has yet to look at stay where they are; who would write over one waits.
 *
 * Who leads sees that all others are over with an operation, by a word of each, or else their lines. The word
 * will do, as of calls that differ not all can be said to be over unseen: who waited for all has seen all
 * lines; who follows has called as its root did, which leads as well; and of those who lead the first to be
 * over saw the lines of all the others that lead, as none had said its word.
 *
 * Nobody waits in a circle: the rank that has announced least asks for nothing that is not there. Others are
 * at most ONEHOST_RUN_AHEAD_MAX operations behind with their words, and lines there are ONEHOST_DESCRIPTORS.
 * So the words are looked at seldom: who has seen an announcement knows how far its writer was over with what
 * was before. (Who leads leaves one line free, so that a receiver who has seen its line may use the next. It
 * looks behind some time before it has to: others who lead, and see no line of it that is new, may wait for
 * its word.)
 *
 * Who sleeps until others have called is woken by their announcement, as always; their words wake nobody, and
 * need not.
 *
 * An operation that was cancelled before it was announced has no line here, and needs none of the others:
 * it is settled with what is before it. Its word is then all that others hear of it, and wakes them. They
 * may wait for just that, so nobody goes ahead of it. */
#include "collective/onehost/onehost.h"

enum {
    POLL_TIMEOUT_NS = 5000,         /* as for the others' lines (onehost/fastpath.c) */
    POLL_TIMEOUT_OVERSUBSCRIBED_NS = 50000,
    POLLS_PER_CLOCK_READ = 16,
};

static void advance(uint64_t *word, uint64_t to)
{
    if (*word < to) *word = to;
}

static void set_verified(struct onehost *onehost, uint64_t below)
{
    if (onehost->run_ahead.verified_seq >= below) return;
    onehost->run_ahead.verified_seq = below;
    onehost_publish_retired(onehost, below);
}

void onehost_all_arrived(struct onehost *onehost, uint64_t seq)
{
    advance(&onehost->run_ahead.peers_read_seq, seq);
    if (seq >= ONEHOST_RUN_AHEAD_MAX)
        advance(&onehost->run_ahead.peers_retired_seq, seq - (ONEHOST_RUN_AHEAD_MAX - 1));
}

void onehost_root_arrived(struct onehost *onehost, uint64_t seq)
{
    /* as the root has seen it */
    if (seq >= ONEHOST_DESCRIPTORS)
        advance(&onehost->run_ahead.peers_retired_seq, seq + 2 - ONEHOST_DESCRIPTORS);
}

void onehost_retire(struct onehost *onehost, uint64_t seq)
{
    if (onehost->run_ahead.verified_seq == seq) set_verified(onehost, seq + 1);
}

/* Look how far the others say they are over. This rank is over with operations `below`. A word that makes
 * no sense is that of a segment which has gone: its rank has ended the group. */
static void read_retired_seqs(struct onehost *onehost, uint64_t below)
{
    uint64_t least = below;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        const struct onehost_peer *peer = &onehost->peers[rank];
        if (rank == onehost->group->rank) continue;
        uint64_t retired_seq =
            atomic_load_explicit(&peer->segment->retired_seq, memory_order_acquire) - peer->salt;
        if (retired_seq < least) least = retired_seq;
    }
    advance(&onehost->run_ahead.peers_retired_seq, least);
    advance(&onehost->run_ahead.peers_read_seq, least);
    set_verified(onehost, least);
}

static bool descriptors_match(const struct onehost_descriptor *a, const struct onehost_descriptor *b)
{
    return a->sequence == b->sequence && a->count == b->count && a->kind == b->kind && a->dtype == b->dtype &&
           a->op == b->op && a->root == b->root && !((a->flags ^ b->flags) & ONEHOST_UNEQUAL);
}

/* All others have called operation `number` as this rank has, or are over with it. Else host->seen has
 * not, or otherwise. */
static bool peers_have_called(struct onehost *onehost, uint64_t seq)
{
    const struct onehost_descriptor *own = onehost_descriptor_of(onehost->segment, seq);
    onehost->run_ahead.waiting_seq = seq;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        const struct onehost_peer *peer = &onehost->peers[rank];
        if (rank == onehost->group->rank || !onehost_peer_reads_segment(peer, seq + 1)) continue;
        if (onehost_peer_has_arrived(onehost, rank, seq) &&
            descriptors_match(own, onehost_descriptor_of(peer->segment, seq)))
            continue;
        onehost->awaited_rank = rank;
        return false;
    }
    return true;
}

/* Else it was cancelled before. The lines of what is not settled stand. */
static bool is_published(const struct onehost *onehost, uint64_t seq)
{
    return onehost_peer_has_arrived(onehost, onehost->group->rank, seq);
}

/* All others are over with what is below. Else host->seen is not. */
static bool peers_have_retired(struct onehost *onehost, uint64_t below)
{
    onehost->run_ahead.waiting_seq = below;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        if (rank == onehost->group->rank || !onehost_peer_reads_segment(&onehost->peers[rank], below))
            continue;
        onehost->awaited_rank = rank;
        return false;
    }
    advance(&onehost->run_ahead.peers_retired_seq, below);
    advance(&onehost->run_ahead.peers_read_seq, below);
    return true;
}

bool onehost_verify(struct onehost *onehost, uint64_t below)
{
    while (onehost->run_ahead.verified_seq < below) {
        bool called = is_published(onehost, onehost->run_ahead.verified_seq);
        if (called && !peers_have_called(onehost, onehost->run_ahead.verified_seq)) return false;
        set_verified(onehost, onehost->run_ahead.verified_seq + 1);
        if (!called) onehost_wake_peers(onehost);
    }
    return true;
}

bool onehost_verify_all_before(struct onehost *onehost, uint64_t seq)
{
    if (!onehost_verify(onehost, seq)) return false;
    if (seq == 0 || onehost->run_ahead.peers_read_seq + 1 >= seq) return true;
    if (!is_published(onehost, seq - 1)) return peers_have_retired(onehost, seq - 1);
    if (!peers_have_called(onehost, seq - 1)) return false; /* other receivers of a broadcast */
    onehost_all_arrived(onehost, seq - 1);
    return true;
}

bool onehost_waits_for_retired_seq(const struct onehost *onehost)
{
    return !is_published(onehost, onehost->run_ahead.waiting_seq);
}

uint32_t onehost_large_slot_find(const struct onehost *onehost, size_t copyin_bytes)
{
    const uint32_t needed = onehost_large_slots_needed(copyin_bytes);
    uint32_t free = 0;
    for (uint32_t slot = 0; slot < ONEHOST_LARGE_SLOTS; slot++) {
        free = onehost->large_slot_seqs[slot] <= onehost->run_ahead.peers_read_seq ? free + 1 : 0;
        if (free == needed) return slot + 1 - needed;
    }
    return ONEHOST_LARGE_SLOTS;
}

static uint32_t small_slot_offset(const struct onehost *onehost, uint64_t seq)
{
    return (uint32_t)seq - onehost->small_slots_first_seq;
}

static uint32_t small_slot_of(const struct onehost *onehost, uint64_t seq)
{
    return small_slot_offset(onehost, seq) % ONEHOST_SMALL_SLOTS;
}

/* At most one contribution is still being read. */
static bool peers_keep_up(const struct onehost *onehost, uint64_t seq)
{
    return onehost->run_ahead.peers_read_seq + 1 >= seq;
}

/* After thousands of millions of operations without any in a room, all is taken for before `origin`: until
 * this rank is followed closely. */
bool onehost_small_slot_is_free(const struct onehost *onehost, uint64_t seq)
{
    const bool is_before_first = (int32_t)small_slot_offset(onehost, onehost->run_ahead.peers_read_seq) < 0,
               hits_limit = is_before_first && small_slot_offset(onehost, seq) >= onehost->small_slots_limit;
    return peers_keep_up(onehost, seq) ||
           (seq < onehost->run_ahead.peers_read_seq + ONEHOST_SMALL_SLOTS && !hits_limit);
}

/* As long as the others keep up the first two places are enough: the caches hold them. */
size_t onehost_small_slot_take(struct onehost *onehost, uint64_t seq)
{
    WEFT_ASSERT(onehost_small_slot_is_free(onehost, seq));
    const uint32_t last = seq > 0 ? small_slot_of(onehost, seq - 1) : 0;
    const bool all_read = onehost->run_ahead.peers_read_seq >= seq;
    if (all_read || (peers_keep_up(onehost, seq) && last > 0)) {
        onehost->small_slots_first_seq = (uint32_t)seq;
        onehost->small_slots_limit = (uint8_t)(all_read ? ONEHOST_SMALL_SLOTS : last);
    }
    return (size_t)small_slot_of(onehost, seq) * ONEHOST_SMALL_SLOT_BYTES;
}

/* All others have read what lies at its place. */
static bool slot_is_free(const struct onehost *onehost, size_t bytes)
{
    if (!onehost_needs_slot(bytes)) return true;
    return onehost_slot_class_of(bytes) == ONEHOST_LARGE
               ? onehost_large_slot_find(onehost, bytes) < ONEHOST_LARGE_SLOTS
               : onehost_small_slot_is_free(onehost, onehost->next_seq);
}

static bool can_reserve(struct onehost *onehost, bool completes_early, size_t bytes)
{
    const uint64_t seq = onehost->next_seq, last = seq + completes_early;
    if (onehost_should_verify(onehost)) read_retired_seqs(onehost, seq); /* a word of each settles many */
    if (onehost_should_verify(onehost) || onehost->run_ahead.verified_seq < onehost->run_ahead.cancelled_seq)
        (void)onehost_verify(onehost, seq);
    if (!slot_is_free(onehost, bytes)) (void)onehost_verify_all_before(onehost, seq);
    if (last >= onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS || !slot_is_free(onehost, bytes))
        read_retired_seqs(onehost, seq);
    return onehost->run_ahead.verified_seq >= onehost->run_ahead.cancelled_seq &&
           seq - onehost->run_ahead.verified_seq < ONEHOST_RUN_AHEAD_MAX &&
           last < onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS && slot_is_free(onehost, bytes);
}

bool onehost_reserve_sequence(struct onehost *onehost, bool completes_early, size_t bytes)
{
    if (can_reserve(onehost, completes_early, bytes)) return true;
    struct weft_env *env = onehost->group->env;
    uint64_t until_ns =
        weft_now_ns(env) + (onehost->is_oversubscribed ? POLL_TIMEOUT_OVERSUBSCRIBED_NS : POLL_TIMEOUT_NS);
    for (uint32_t polls = 1; !can_reserve(onehost, completes_early, bytes); polls++) {
        if ((onehost->is_oversubscribed || polls % POLLS_PER_CLOCK_READ == 0) && weft_now_ns(env) > until_ns)
            return false;
        weft_cpu_relax(onehost->is_oversubscribed);
    }
    return true;
}
