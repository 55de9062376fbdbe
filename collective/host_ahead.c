/* host_ahead.c - who needs nothing of the others does not wait for them: they find its line when they come. What keeps that safe.
 *
 *     operation   ... | settled ............ next - 1 | next
 *                     | over here, where this rank    | to be announced where HOST_LINES operations before it was
 *                     | led some; the others' lines   |
 *                     | are not all seen yet          |
 *
 * In a broadcast and in a scatter the root *leads* and the others follow; in a reduce and in a gather all lead but the root. An operation is
 * settled when all ranks have called it alike. One for which this rank waited for all of them is settled as it ends: the root of a reduce or
 * gather does. Who follows a root has seen its line, which is all it needs to. Who leads goes on at once, and looks later: it may have
 * HOST_AHEAD_MAX operations that are not settled, and no operation but one of host_brief.c begins before all have called what was before it. Only
 * what is settled is said to be over, so lines that somebody has yet to look at stay where they are; who would write over one waits.
 *
 * Who leads sees that all others are over with an operation, by a word of each, or else their lines. The word will do, as of calls that
 * differ not all can be said to be over unseen: who waited for all has seen all lines; who follows has called as its root did, which leads
 * as well; and of those who lead the first to be over saw the lines of all the others that lead, as none had said its word.
 *
 * Nobody waits in a circle: the rank that has announced least asks for nothing that is not there. Others are at most HOST_AHEAD_MAX operations
 * behind with their words, and lines there are HOST_LINES. So the words are looked at seldom: who has seen an announcement knows how far its
 * writer was over with what was before. (Who leads leaves one line free, so that a receiver who has seen its line may use the next. It looks
 * behind some time before it has to: others who lead, and see no line of it that is new, may wait for its word.)
 *
 * Who sleeps until others have called is woken by their announcement, as always; their words wake nobody, and need not.
 *
 * An operation that was cancelled before it was announced has no line here, and needs none of the others: it is settled with what is before
 * it. Its word is then all that others hear of it, and wakes them. They may wait for just that, so nobody goes ahead of it. */
#include "collective/host.h"

enum {
    PATIENCE_NS = 5000,         /* as for the others' lines (host_brief.c) */
    PATIENCE_CROWDED_NS = 50000,
    LOOKS_PER_CLOCK = 16,
};

static void raise(uint64_t *word, uint64_t to)
{
    if (*word < to) *word = to;
}

static void settle(struct host *host, uint64_t below)
{
    if (host->ahead.settled >= below) return;
    host->ahead.settled = below;
    host_say_over(host, below);
}

void host_all_came(struct host *host, uint64_t number)
{
    raise(&host->ahead.passed, number);
    if (number >= HOST_AHEAD_MAX) raise(&host->ahead.followed, number - (HOST_AHEAD_MAX - 1));
}

void host_root_came(struct host *host, uint64_t number)
{
    if (number >= HOST_LINES) raise(&host->ahead.followed, number + 2 - HOST_LINES); /* as the root has seen it */
}

void host_over(struct host *host, uint64_t number)
{
    if (host->ahead.settled == number) settle(host, number + 1);
}

/* Look how far the others say they are over. This rank is over with operations `below`. A word that makes no sense is that of a segment
 * which has gone: its rank has ended the group. */
static void follow(struct host *host, uint64_t below)
{
    uint64_t least = below;
    for (uint32_t rank = 0; rank < host->group->ranks; rank++) {
        const struct host_peer *peer = &host->peers[rank];
        if (rank == host->group->rank) continue;
        uint64_t over = atomic_load_explicit(&peer->segment->over, memory_order_acquire) - peer->salt;
        if (over < least) least = over;
    }
    raise(&host->ahead.followed, least);
    raise(&host->ahead.passed, least);
    settle(host, least);
}

static bool alike(const struct host_post *a, const struct host_post *b)
{
    return a->sequence == b->sequence && a->count == b->count && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           !((a->flags ^ b->flags) & HOST_UNEQUAL);
}

/* All others have called operation `number` as this rank has, or are over with it. Else host->seen has not, or otherwise. */
static bool all_called(struct host *host, uint64_t number)
{
    const struct host_post *own = host_post_of(host->segment, number);
    host->ahead.awaited = number;
    for (uint32_t rank = 0; rank < host->group->ranks; rank++) {
        const struct host_peer *peer = &host->peers[rank];
        if (rank == host->group->rank || !host_looks_at_us(peer, number + 1)) continue;
        if (host_has_come(host, rank, number) && alike(own, host_post_of(peer->segment, number))) continue;
        host->seen = rank;
        return false;
    }
    return true;
}

/* Else it was cancelled before. The lines of what is not settled stand. */
static bool announced(const struct host *host, uint64_t number) { return host_has_come(host, host->group->rank, number); }

/* All others are over with what is below. Else host->seen is not. */
static bool all_over(struct host *host, uint64_t below)
{
    host->ahead.awaited = below;
    for (uint32_t rank = 0; rank < host->group->ranks; rank++) {
        if (rank == host->group->rank || !host_looks_at_us(&host->peers[rank], below)) continue;
        host->seen = rank;
        return false;
    }
    raise(&host->ahead.followed, below);
    raise(&host->ahead.passed, below);
    return true;
}

bool host_settle(struct host *host, uint64_t below)
{
    while (host->ahead.settled < below) {
        bool called = announced(host, host->ahead.settled);
        if (called && !all_called(host, host->ahead.settled)) return false;
        settle(host, host->ahead.settled + 1);
        if (!called) host_announced(host);
    }
    return true;
}

bool host_followed(struct host *host, uint64_t number)
{
    if (!host_settle(host, number)) return false;
    if (number == 0 || host->ahead.passed + 1 >= number) return true;
    if (!announced(host, number - 1)) return all_over(host, number - 1);
    if (!all_called(host, number - 1)) return false; /* other receivers of a broadcast */
    host_all_came(host, number - 1);
    return true;
}

bool host_waits_for_word(const struct host *host) { return !announced(host, host->ahead.awaited); }

uint32_t host_hall_slot(const struct host *host, size_t said_bytes)
{
    const uint32_t needed = host_hall_slots(said_bytes);
    uint32_t free = 0;
    for (uint32_t slot = 0; slot < HOST_HALL_SLOTS; slot++) {
        free = host->slots[slot] <= host->ahead.passed ? free + 1 : 0;
        if (free == needed) return slot + 1 - needed;
    }
    return HOST_HALL_SLOTS;
}

static uint32_t since_origin(const struct host *host, uint64_t number) { return (uint32_t)number - host->origin; }

static uint32_t place_of(const struct host *host, uint64_t number) { return since_origin(host, number) % HOST_ROOM_SLOTS; }

/* At most one contribution is still being read. */
static bool is_followed_closely(const struct host *host, uint64_t number) { return host->ahead.passed + 1 >= number; }

/* After thousands of millions of operations without any in a room, all is taken for before `origin`: until this rank is followed closely. */
bool host_room_has_place(const struct host *host, uint64_t number)
{
    const bool before_origin = (int32_t)since_origin(host, host->ahead.passed) < 0, meets_wall = before_origin && since_origin(host, number) >= host->wall;
    return is_followed_closely(host, number) || (number < host->ahead.passed + HOST_ROOM_SLOTS && !meets_wall);
}

/* As long as the others keep up the first two places are enough: the caches hold them. */
size_t host_room_place(struct host *host, uint64_t number)
{
    WEFT_ASSERT(host_room_has_place(host, number));
    const uint32_t last = number > 0 ? place_of(host, number - 1) : 0;
    const bool all_read = host->ahead.passed >= number;
    if (all_read || (is_followed_closely(host, number) && last > 0)) {
        host->origin = (uint32_t)number;
        host->wall = (uint8_t)(all_read ? HOST_ROOM_SLOTS : last);
    }
    return (size_t)place_of(host, number) * HOST_SHORT_BYTES;
}

/* All others have read what lies at its place. */
static bool room_is_free(const struct host *host, size_t bytes)
{
    if (!host_needs_room(bytes)) return true;
    return host_room_of(bytes) == HOST_HALL ? host_hall_slot(host, bytes) < HOST_HALL_SLOTS : host_room_has_place(host, host->next);
}

static bool may_announce(struct host *host, bool leads, size_t bytes)
{
    const uint64_t number = host->next, last = number + leads;
    if (host_looks_behind(host)) follow(host, number); /* a word of each settles many */
    if (host_looks_behind(host) || host->ahead.settled < host->ahead.unsaid) (void)host_settle(host, number);
    if (!room_is_free(host, bytes)) (void)host_followed(host, number);
    if (last >= host->ahead.followed + HOST_LINES || !room_is_free(host, bytes)) follow(host, number);
    return host->ahead.settled >= host->ahead.unsaid && number - host->ahead.settled < HOST_AHEAD_MAX && last < host->ahead.followed + HOST_LINES && room_is_free(host, bytes);
}

bool host_make_way(struct host *host, bool leads, size_t bytes)
{
    if (may_announce(host, leads, bytes)) return true;
    struct weft_env *env = host->group->env;
    uint64_t until_ns = weft_now_ns(env) + (host->crowded ? PATIENCE_CROWDED_NS : PATIENCE_NS);
    for (uint32_t looks = 1; !may_announce(host, leads, bytes); looks++) {
        if ((host->crowded || looks % LOOKS_PER_CLOCK == 0) && weft_now_ns(env) > until_ns) return false;
        weft_relax(host->crowded);
    }
    return true;
}
