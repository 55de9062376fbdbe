/* host_pair.c - sends and recvs between two ranks of a group that meets in memory.
 *
 *     sender's ring, one for each rank it has sent to             receiver
 *       slot n % SLOTS: count, type and the bytes themselves, ──►  the n-th recv from there takes slot n, and says so
 *                       or "it comes as a message"                 (`taken`, in its own table)
 *       numbers [from, to): as messages, all slots were full
 *
 * A send of up to 16 KiB (32 where ranks take turns), and of memory that is not mapped of up to HERE_BYTES, is over once its bytes lie in the ring, within the call (host_pair_brief). A longer one
 * travels as a message, as between hosts; its slot says so, and how it was called. So both ways keep one order, by one number, and a recv that differs
 * is seen from the slot, whatever the lengths. A sender that is ahead by all slots goes on by messages until everything has been taken.
 *
 * A recv looks at the slot of its number: within the call, and from then on whenever the loop is stepped. Several of a pair wait in
 * the order of their calls, and of different pairs for nothing of each other.
 *
 * Memory: a table of a few words as soon as a group sends or receives so at all; a ring of 1 KiB for each rank that it sends to, and with the first contribution
 * that does not fit into a slot a room for that rank, of 8 KiB, from the first one above 4 KiB on of 64, above 8 KiB of 512 for up to eight ranks. All of it
 * goes with the group, once its peers have taken what lies there.
 *
 * Each word has one writer. Numbers are stored with the writer's salt added, as in segments (host.h). */
#include "collective/host.h"

#include <string.h>

enum { SLOTS = 16, WORD_BYTES = 40, LOOKS = 100 /* a few microseconds */ };
enum { SMALL_BYTES = 2 * HOST_SHORT_BYTES, MIDDLE_BYTES = 64 << 10, LARGE_BYTES = 512 << 10, BEGINNING_BYTES = 64 << 10 }; /* of rooms */
enum { LARGE_ROOMS = 8 }; /* of a group: 4 MiB */
/* What is copied twice, though the receiver could read it where it lies: from mapped memory that is cheap, from other memory a system call. */
enum { HERE_BYTES = LARGE_BYTES / 2, HERE_MAPPED_BYTES = 16 << 10, HERE_MAPPED_CROWDED_BYTES = 32 << 10 };
enum way { NOT_YET = 0, HERE, BY_MESSAGE };

struct pair_slot {
    _Alignas(64) _Atomic uint64_t turn; /* salt + number + 1, stored last */
    uint64_t count;
    uint32_t at;                        /* in the room; of what does not fit into `word` */
    uint8_t dtype, way;
    uint8_t word[WORD_BYTES];
};
_Static_assert(sizeof(struct pair_slot) == 64, "a slot is one line");

struct pair_ring {
    _Alignas(64) _Atomic uint64_t from, to; /* salt + number, each: of those that have no slot. `to` is stored last */
    _Atomic uint64_t room_at;               /* salt + offset + 1; another one once all that lay there was taken */
    struct pair_slot slots[SLOTS];
};

/* What a rank says to one other; (ranks,) of them are its table. */
struct pair_entry {
    _Atomic uint64_t ring_at; /* salt + offset + 1 */
    _Atomic uint64_t taken;   /* salt + number of the next send of that rank */
};

struct host_pair {
    struct weft_list link;   /* pairs->waiting, while it has recvs */
    struct weft_list recvs;  /* struct weft_coll.host.link */
    uint32_t rank;
    /* to that rank */
    struct pair_ring *ring;  /* own; NULL: none yet */
    uint8_t *room;           /* own; NULL: none yet */
    size_t room_bytes;       /* SMALL_BYTES, MIDDLE_BYTES or LARGE_BYTES */
    uint64_t sent;           /* number of the next one */
    uint64_t seen;           /* taken, as seen last */
    uint64_t room_tail, room_head; /* bytes of the room ever given, and of those that are free again */
    uint64_t room_ends[SLOTS]; /* room_head behind each number */
    bool spilling;           /* since all slots were full */
    /* from that rank */
    const struct pair_ring *in; /* in its mapping; NULL: not seen yet */
    uint64_t got;            /* number of the next one */
    struct weft_record records[2]; /* of the last recv and send that were over at once */
    uint64_t owed;           /* messages that were announced to recvs which were cancelled */
};

struct host_pairs {
    struct host *host;
    struct pair_entry *table;   /* own */
    struct weft_list waiting;   /* struct host_pair.link */
    struct weft_pollable pollable;
    uint64_t salt;
    uint32_t ranks;
    uint32_t large_rooms;
    struct weft_moved moved;
    struct host_pair *of[];     /* (ranks,) NULL: nothing yet */
};

bool host_pairs_meet(const struct weft_group *group) { return group->host && group->host->state != HOST_OFF; }

/* ---- memory ---- */
static int progress(struct weft_pollable *pollable, int budget);
static enum weft_status arm(struct weft_pollable *pollable);

static struct host_pairs *pairs_make(struct host *host)
{
    uint32_t ranks = host->group->ranks;
    weft_loop_guard(host->group->loop);
    struct host_pairs *pairs = weft_alloc_zero(weft_env_system(), sizeof *pairs + ranks * sizeof pairs->of[0]);
    void *table;
    uint64_t at;
    if (!pairs || host_piece_take(ranks * sizeof *pairs->table, &table, &at) < 0) {
        weft_free_bytes(weft_env_system(), pairs);
        return NULL;
    }
    pairs->host = host;
    pairs->salt = host->salt;
    pairs->ranks = ranks;
    pairs->table = table;
    for (uint32_t rank = 0; rank < ranks; rank++) atomic_store_explicit(&pairs->table[rank].taken, host->salt, memory_order_relaxed);
    weft_list_init(&pairs->waiting);
    weft_list_init(&pairs->pollable.link);
    pairs->pollable.fd = WEFT_POLLABLE_WOKEN;
    pairs->pollable.progress = progress;
    pairs->pollable.arm = arm;
    (void)weft_loop_add(host->group->loop, &pairs->pollable); /* without a descriptor it cannot fail */
    atomic_store_explicit(&host->segment->pairs_at, host->salt + at + 1, memory_order_release);
    return pairs;
}

static struct host_pair *pair_of(struct host *host, uint32_t rank)
{
    if (!host->pairs && !(host->pairs = pairs_make(host))) return NULL;
    struct host_pair *pair = host->pairs->of[rank];
    if (pair || !(pair = weft_alloc_zero(weft_env_system(), sizeof *pair))) return pair;
    pair->rank = rank;
    weft_list_init(&pair->link);
    weft_list_init(&pair->recvs);
    return host->pairs->of[rank] = pair;
}

static bool ring_make(struct host *host, struct host_pair *pair)
{
    void *ring;
    uint64_t at;
    if (pair->ring) return true;
    weft_loop_guard(host->group->loop);
    if (host_piece_take(sizeof *pair->ring, &ring, &at) < 0) return false;
    pair->ring = ring;
    atomic_store_explicit(&pair->ring->from, host->salt, memory_order_relaxed);
    atomic_store_explicit(&pair->ring->to, host->salt, memory_order_relaxed);
    atomic_store_explicit(&host->pairs->table[pair->rank].ring_at, host->salt + at + 1, memory_order_release);
    return true;
}

bool host_pair_ready(struct host *host, uint32_t rank, bool sends)
{
    struct host_pair *pair = pair_of(host, rank);
    return pair && (!sends || ring_make(host, pair));
}

/* ---- what the other one says ---- */

/* (bytes,) of its memory, where its word says that they lie; NULL: it has said nothing yet. */
static void *found(const struct host_peer *peer, const _Atomic uint64_t *word, size_t bytes, size_t align)
{
    uint64_t at = atomic_load_explicit(word, memory_order_acquire) - peer->salt - 1;
    return host_place_holds(peer->place, at, bytes) && at % align == 0 ? peer->place->mapping.base + at : NULL;
}

/* Its words to the rank `own`. */
static const struct pair_entry *entry_of(const struct host_peer *peer, uint32_t ranks, uint32_t own)
{
    const struct pair_entry *table = found(peer, &peer->segment->pairs_at, ranks * sizeof *table, _Alignof(struct pair_entry));
    return table ? &table[own] : NULL;
}

/* How many of this rank's sends it has taken; what cannot be is that of a group which has gone. */
static uint64_t taken_by(const struct host_pair *pair, const struct host_peer *peer, uint32_t ranks, uint32_t own)
{
    const struct pair_entry *entry = entry_of(peer, ranks, own);
    uint64_t taken = entry ? atomic_load_explicit(&entry->taken, memory_order_acquire) - peer->salt : 0;
    return taken > pair->seen && taken <= pair->sent ? taken : pair->seen;
}

static void see_taken(const struct host *host, struct host_pair *pair)
{
    uint64_t taken = taken_by(pair, &host->peers[pair->rank], host->group->ranks, host->group->rank);
    if (taken == pair->seen) return;
    pair->seen = taken;
    pair->room_tail = pair->room_ends[(taken - 1) % SLOTS];
}

/* ---- sending ---- */

static uint8_t *room_alloc(size_t bytes, uint64_t *at_out)
{
    void *room;
    if (bytes == SMALL_BYTES) return host_piece_take(bytes, &room, at_out) < 0 ? NULL : room;
    if (weft_memory_alloc(weft_env_system(), bytes, &room, NULL) < 0) return NULL;
    if (weft_memory_locate(room, bytes, at_out)) return room;
    weft_memory_free(weft_env_system(), room);
    return NULL;
}

static void room_free(uint8_t *room, size_t bytes)
{
    if (bytes == SMALL_BYTES) host_piece_give(room);
    else weft_memory_free(weft_env_system(), room);
}

/* For a send of so many bytes: where several fit, so that who sends need not wait for who receives. */
static size_t room_wanted(const struct host_pairs *pairs, size_t bytes)
{
    if (bytes <= HOST_SHORT_BYTES) return SMALL_BYTES;
    return bytes <= MIDDLE_BYTES / 8 || pairs->large_rooms == LARGE_ROOMS ? MIDDLE_BYTES : LARGE_BYTES;
}

/* As large as such a send wants it, if there is memory for that, and nothing lies in a smaller one. */
static void room_make(struct host *host, struct host_pair *pair, size_t bytes)
{
    const size_t wanted = room_wanted(host->pairs, bytes);
    uint64_t at;
    if (pair->room_bytes >= wanted) return;
    see_taken(host, pair);
    if (pair->room && pair->seen != pair->sent) return;
    weft_loop_guard(host->group->loop);
    uint8_t *room = room_alloc(wanted, &at);
    if (!room) return;
    if (pair->room) room_free(pair->room, pair->room_bytes);
    if (wanted == LARGE_BYTES) host->pairs->large_rooms++;
    pair->room = room;
    pair->room_bytes = wanted;
    pair->room_head = pair->room_tail = 0;
    atomic_store_explicit(&pair->ring->room_at, host->salt + at + 1, memory_order_release);
}

/* Where the peer keeps up, the room's beginning is enough: it stays in the caches. */
static bool goes_past_beginning(const struct host_pair *pair, size_t bytes) { return pair->room_bytes > BEGINNING_BYTES && pair->room_head % pair->room_bytes + bytes > BEGINNING_BYTES; }

/* In one piece: what is left behind the head may be too short for it. */
static uint64_t room_begin(const struct host_pair *pair, size_t bytes)
{
    const uint64_t left = pair->room_bytes - pair->room_head % pair->room_bytes, again = pair->room_head + left;
    const bool begins_again = goes_past_beginning(pair, bytes) && again + bytes - pair->room_tail <= pair->room_bytes;
    return bytes > left || begins_again ? again : pair->room_head;
}

static bool room_holds(const struct host_pair *pair, size_t bytes) { return room_begin(pair, bytes) + bytes - pair->room_tail <= pair->room_bytes; }

/* A slot for the next send, and in the room, where it needs that. */
static bool has_slot(const struct host *host, struct host_pair *pair, size_t room_bytes)
{
    for (int look = 0; look < 2; look++) {
        if (pair->spilling && pair->seen == pair->sent) pair->spilling = false;
        if (!pair->spilling && pair->sent - pair->seen < SLOTS && (room_bytes == 0 || room_holds(pair, room_bytes))) return true;
        if (look == 0) see_taken(host, pair);
    }
    return false;
}

static bool worth_copying_twice(const struct host *host, const struct weft_coll_args *args, size_t bytes)
{
    uint64_t at;
    if (bytes <= (host->crowded ? HERE_MAPPED_CROWDED_BYTES : HERE_MAPPED_BYTES)) return true;
    return bytes <= HERE_BYTES && !weft_memory_locate(args->in, bytes, &at);
}

static bool carries(struct host *host, struct host_pair *pair, const struct weft_coll_args *args, size_t bytes)
{
    if (bytes <= WORD_BYTES) return has_slot(host, pair, 0);
    if (!worth_copying_twice(host, args, bytes)) return false;
    room_make(host, pair, bytes);
    if (2 * bytes > pair->room_bytes) return false; /* by a message: a room is for sends ahead of their receiver */
    if (goes_past_beginning(pair, bytes)) see_taken(host, pair);
    return has_slot(host, pair, bytes);
}

/* It has a slot. */
static void put(struct host *host, struct host_pair *pair, const struct weft_coll_args *args, enum way way, size_t bytes)
{
    uint64_t number = pair->sent++;
    struct pair_slot *slot = &pair->ring->slots[number % SLOTS];
    if (way == HERE && bytes > WORD_BYTES) {
        uint64_t begin = room_begin(pair, bytes);
        if (pair->seen == number) pair->room_tail = begin; /* the room is empty: all of it is free */
        slot->at = (uint32_t)(begin % pair->room_bytes);
        memcpy(pair->room + slot->at, args->in, bytes);
        pair->room_head = begin + bytes;
    }
    if (way == HERE) host->pairs->moved.out_bytes += bytes;
    pair->room_ends[number % SLOTS] = pair->room_head;
    slot->count = args->count;
    slot->dtype = (uint8_t)args->dtype;
    slot->way = (uint8_t)way;
    if (way == HERE && bytes == sizeof(uint64_t)) memcpy(slot->word, args->in, sizeof(uint64_t)); /* inline */
    else if (way == HERE && bytes > 0 && bytes <= WORD_BYTES) memcpy(slot->word, args->in, bytes);
    host_tell_processor(host);
    atomic_store_explicit(&slot->turn, host->salt + number + 1, memory_order_release);
}

static void wake(const struct host *host, uint32_t rank)
{
    atomic_thread_fence(memory_order_seq_cst); /* before the look whether it sleeps (host_line.c) */
    if (atomic_load_explicit(&host->peers[rank].segment->sleeping, memory_order_seq_cst)) host_wake(host, rank);
}

/* No slot: the number stands beside them. */
static void spill(const struct host *host, struct host_pair *pair)
{
    uint64_t number = pair->sent++;
    if (!pair->spilling) atomic_store_explicit(&pair->ring->from, host->salt + number, memory_order_release);
    pair->spilling = true;
    atomic_store_explicit(&pair->ring->to, host->salt + number + 1, memory_order_release);
}

static size_t bytes_of(const struct weft_coll_args *args) { return args->count * weft_dtype_bytes(args->dtype); }

/* ---- receiving ---- */
static const struct pair_slot *slot_of(const struct host_pair *pair) { return &pair->in->slots[pair->got % SLOTS]; }

/* How the one behind the next `before` comes. */
static enum way way_behind(const struct host *host, struct host_pair *pair, uint64_t before)
{
    const struct host_peer *peer = &host->peers[pair->rank];
    if (before < pair->owed) return BY_MESSAGE;
    if (!pair->in) {
        const struct pair_entry *entry = entry_of(peer, host->group->ranks, host->group->rank);
        pair->in = entry ? found(peer, &entry->ring_at, sizeof *pair->in, _Alignof(struct pair_ring)) : NULL;
        if (!pair->in) return NOT_YET;
    }
    const uint64_t number = pair->got + (before - pair->owed);
    const struct pair_slot *slot = &pair->in->slots[number % SLOTS];
    if (atomic_load_explicit(&slot->turn, memory_order_acquire) == peer->salt + number + 1) return slot->way == HERE ? HERE : BY_MESSAGE;
    uint64_t to = atomic_load_explicit(&pair->in->to, memory_order_acquire) - peer->salt;
    if (to <= number || to >= UINT64_MAX / 2) return NOT_YET;
    uint64_t from = atomic_load_explicit(&pair->in->from, memory_order_relaxed) - peer->salt;
    return from <= number ? BY_MESSAGE : NOT_YET;
}

/* The next one. */
static enum way way_of(const struct host *host, struct host_pair *pair) { return way_behind(host, pair, 0); }

static void say_taken(const struct host *host, struct host_pair *pair)
{
    if (pair->owed > 0) {
        pair->owed--;
        return;
    }
    pair->got++;
    atomic_store_explicit(&host->pairs->table[pair->rank].taken, host->salt + pair->got, memory_order_release);
}

/* Copy what lies there. false: it says that it lies outside its memory. */
static bool take(const struct host *host, struct host_pair *pair, const struct weft_coll_args *args)
{
    const struct host_peer *peer = &host->peers[pair->rank];
    const struct pair_slot *slot = slot_of(pair);
    const uint8_t *from = slot->word;
    size_t bytes = bytes_of(args);
    const bool in_room = bytes > WORD_BYTES;
    if (in_room) {
        const uint64_t room_at = atomic_load_explicit(&pair->in->room_at, memory_order_relaxed) - peer->salt - 1, at = slot->at; /* before the slot's turn */
        if (room_at > peer->place->mapping.bytes || !host_place_holds(peer->place, room_at + at, bytes)) return false;
        from = peer->place->mapping.base + room_at + at;
    }
    if (bytes == sizeof(uint64_t)) memcpy(args->out, from, sizeof(uint64_t));
    else if (bytes > 0) memcpy(args->out, from, bytes);
    if (in_room) weft_take_lines(from, bytes);
    host->pairs->moved.in_bytes += bytes;
    say_taken(host, pair);
    return true;
}

static bool alike(const struct pair_slot *slot, const struct weft_coll_args *args) { return slot->count == args->count && slot->dtype == (uint8_t)args->dtype; }

/* ---- recvs that wait ---- */
static struct weft_coll *first_running(const struct host_pair *pair)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &pair->recvs) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, host.link);
        if (coll->phase == COLL_RUNNING) return coll;
    }
    return NULL;
}

/* One that is cancelled takes none. */
static uint64_t count_running(const struct host_pair *pair)
{
    struct weft_list *node, *spare;
    uint64_t count = 0;
    weft_list_foreach(node, spare, &pair->recvs) count += weft_container_of(node, struct weft_coll, host.link)->phase == COLL_RUNNING;
    return count;
}

static void finish(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    coll->plan_ended = true;
    group->outstanding++; /* keeps the group while the callback runs */
    coll_finish(coll, 0);
    group_released(group);
}

static void differs(struct weft_coll *coll, const struct host_pair *pair)
{
    struct coll_header theirs = coll->header;
    theirs.rank = pair->rank;
    theirs.count = slot_of(pair)->count;
    theirs.dtype = slot_of(pair)->dtype;
    const char *what = coll_header_difference(&theirs, &coll->header);
    coll_mismatch(coll, &coll->header, pair->rank, &theirs, what ? what : "the count");
}

static void lies_outside(const struct weft_coll *coll, uint32_t rank)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, WEFT_ERR_MALFORMED, true, "a recv: what %s sends lies outside its memory", name);
}

static void by_message(const struct host *host, struct host_pair *pair, struct weft_coll *coll)
{
    weft_list_remove(&coll->host.link);
    coll->host.phase = HOST_AWAY;
    coll->host.announced_message = true;
    lack_end(coll);
    coll->lack.asked = UINT64_MAX; /* its sender has begun: the message is on its way */
    say_taken(host, pair);
    group_ready(coll);
}

/* It is dead, or has left in good order, and has sent nothing more before. */
static void miss(struct host *host, struct host_pair *pair)
{
    struct weft_group *group = host->group;
    const bool left = roster_noted(group, pair->rank).left, lost = group->lost && group->lost_rank == pair->rank;
    if (!lost && !left) return;
    if (way_of(host, pair) != NOT_YET) return;
    char name[128];
    group_describe(group, pair->rank, name, sizeof name);
    if (left) {
        group->leaver_missed = true;
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before a recv", name);
        return;
    }
    group_end(group, group->lost_status, true, "lost %s during a recv: %s", name, weft_reason_text(group->lost_status));
}

/* true: something has happened, and the group may be gone. */
static bool look(struct host *host, struct host_pair *pair, struct weft_coll *coll)
{
    enum way way = way_of(host, pair);
    if (way == NOT_YET) {
        miss(host, pair);
        return coll->phase != COLL_RUNNING;
    }
    bool announced = pair->owed == 0 && atomic_load_explicit(&slot_of(pair)->turn, memory_order_relaxed) == host->peers[pair->rank].salt + pair->got + 1;
    if (announced && !alike(slot_of(pair), &coll->args)) differs(coll, pair);
    else if (way == BY_MESSAGE) by_message(host, pair, coll);
    else if (take(host, pair, &coll->args)) finish(coll);
    else lies_outside(coll, pair->rank);
    return true;
}

static int progress(struct weft_pollable *pollable, int budget)
{
    struct host_pairs *pairs = weft_container_of(pollable, struct host_pairs, pollable);
    struct host *host = pairs->host;
    struct weft_list *node, *spare;
    bool crowded = host->crowded;
    if (weft_list_empty(&pairs->waiting)) return 0;
    host_awake(host);
    weft_list_foreach(node, spare, &pairs->waiting) {
        struct host_pair *pair = weft_container_of(node, struct host_pair, link);
        struct weft_coll *coll = first_running(pair);
        if (coll && look(host, pair, coll)) return 1;
        if (weft_list_empty(&pair->recvs)) weft_list_remove(&pair->link);
        else crowded = crowded || host_needs_this_core(host, pair->rank);
    }
    pollable->quick = !weft_list_empty(&pairs->waiting);
    if (pollable->quick) weft_loop_waits(host->group->loop, crowded ? WEFT_LOOP_HERE : WEFT_LOOP_ANYWHERE);
    return 0;
}

static enum weft_status arm(struct weft_pollable *pollable)
{
    struct host_pairs *pairs = weft_container_of(pollable, struct host_pairs, pollable);
    struct weft_list *node, *spare;
    if (weft_list_empty(&pairs->waiting)) return WEFT_OK;
    host_sleep(pairs->host);
    weft_list_foreach(node, spare, &pairs->waiting) {
        struct host_pair *pair = weft_container_of(node, struct host_pair, link);
        if (first_running(pair) && way_of(pairs->host, pair) != NOT_YET) return WEFT_ERR_AGAIN;
    }
    return WEFT_OK;
}

/* ---- the door ---- */
static void send(struct host *host, struct weft_coll *coll)
{
    struct host_pair *pair = host->pairs->of[coll->args.root];
    size_t bytes = bytes_of(&coll->args);
    coll->host.phase = HOST_AWAY;
    if (carries(host, pair, &coll->args, bytes)) {
        put(host, pair, &coll->args, HERE, bytes);
        coll->plan_ended = true; /* over, but a done runs from the loop */
    } else {
        if (has_slot(host, pair, 0)) put(host, pair, &coll->args, BY_MESSAGE, bytes);
        else spill(host, pair);
        coll->host.announced_message = true;
    }
    wake(host, pair->rank);
    group_ready(coll);
}

static void receive(struct host *host, struct weft_coll *coll)
{
    struct host_pair *pair = host->pairs->of[coll->args.root];
    coll->host.phase = HOST_PAIRED;
    weft_list_append(&pair->recvs, &coll->host.link);
    if (weft_list_empty(&pair->link)) weft_list_append(&host->pairs->waiting, &pair->link);
    host->pairs->pollable.quick = true;
}

void host_pair_launch(struct weft_coll *coll)
{
    struct host *host = coll->group->host;
    if (host->state == HOST_ASKING) coll->host.phase = HOST_WAITING;
    else if (coll->args.kind == WEFT_COLL_SEND) send(host, coll);
    else receive(host, coll);
}

void host_pair_owed(const struct weft_coll *coll)
{
    struct host *host = coll->group->host;
    if (host && coll->args.kind == WEFT_COLL_RECV) host->pairs->of[coll->args.root]->owed++;
}

bool host_pair_has_come(const struct weft_group *group, const struct weft_coll_args *args)
{
    struct host *host = group->host;
    bool may = args->kind == WEFT_COLL_RECV && host && host->state == HOST_ON && !group->closing && group->fail_status == WEFT_OK && !group->lost;
    if (!may || group->left_count == 0 || args->root >= group->ranks || args->root == group->rank || !host_pair_ready(host, args->root, false)) return false;
    struct host_pair *pair = host->pairs->of[args->root];
    return way_behind(host, pair, count_running(pair)) != NOT_YET;
}

bool host_pair_recv_has_come(const struct weft_coll *coll)
{
    const struct host *host = coll->group->host;
    struct host_pair *pair = host->pairs->of[coll->args.root];
    struct weft_list *node, *spare;
    uint64_t before = 0;
    weft_list_foreach(node, spare, &pair->recvs) {
        const struct weft_coll *other = weft_container_of(node, struct weft_coll, host.link);
        if (other == coll) break;
        before += other->phase == COLL_RUNNING;
    }
    return way_behind(host, pair, before) != NOT_YET;
}

static bool may_be_brief(const struct weft_group *group, const struct weft_coll_args *args)
{
    const struct host *host = group->host;
    return host && host->state == HOST_ON && group->fail_status == WEFT_OK && !group->closing && !group->lost && group->left_count == 0 && !group->timing_only &&
           args->root < group->ranks && args->root != group->rank && args->count <= HERE_BYTES && (args->kind == WEFT_COLL_SEND ? args->in : args->out);
}

/* What the flight recorder and the events say of one that was over at once. Small fields are written only where the last one's differ: what is
 * written in parts and then read as a word makes the processor wait for all stores before it (host_brief.c). */
static void record(struct host *host, struct host_pair *pair, const struct weft_coll_args *args, size_t bytes)
{
    struct weft_group *group = host->group;
    bool sends = args->kind == WEFT_COLL_SEND;
    uint64_t now_ns = args->posted_ns;
    struct weft_record *record = &pair->records[sends];
    if (record->status != WEFT_OK || record->ranks != group->ranks || record->dtype != (uint8_t)args->dtype) {
        *record = coll_record_of(group, WEFT_COLL_SEQUENCE_PAIR, now_ns, true);
        record->kind = (uint8_t)args->kind, record->dtype = (uint8_t)args->dtype, record->plan = WEFT_PLAN_DIRECT, record->root = pair->rank;
        record->phase = "done", record->status = WEFT_OK;
    }
    record->count = args->count;
    record->posted_ns = record->started_ns = record->ended_ns = now_ns;
    weft_recorder_add(group->recorder, record);
    coll_event(group, args->kind, WEFT_EVENT_BOTH, WEFT_COLL_SEQUENCE_PAIR, bytes, WEFT_OK, now_ns);
}

/* The call may be over at once; *pair_out: with all that it needs. */
static bool fits(struct weft_group *group, const struct weft_coll_args *args, struct host_pair **pair_out)
{
    size_t elem_bytes = weft_dtype_bytes(args->dtype);
    if (!may_be_brief(group, args) || elem_bytes == 0 || args->count * elem_bytes > HERE_BYTES) return false;
    const struct host_pairs *pairs = group->host->pairs;
    bool sends = args->kind == WEFT_COLL_SEND, there = pairs && pairs->of[args->root] && (!sends || pairs->of[args->root]->ring);
    if (!there && !host_pair_ready(group->host, args->root, sends)) return false;
    *pair_out = group->host->pairs->of[args->root];
    return true;
}

static bool send_now(struct host *host, struct host_pair *pair, const struct weft_coll_args *args)
{
    size_t bytes = bytes_of(args);
    if (!carries(host, pair, args, bytes)) return false;
    put(host, pair, args, HERE, bytes);
    record(host, pair, args, bytes);
    wake(host, pair->rank);
    return true;
}

static bool recv_now(struct host *host, struct host_pair *pair, const struct weft_coll_args *args)
{
    if (!weft_list_empty(&pair->recvs) || way_of(host, pair) != HERE || !alike(slot_of(pair), args) || !take(host, pair, args)) return false;
    record(host, pair, args, bytes_of(args));
    return true;
}

enum weft_status host_pair_brief(struct weft_group *group, const struct weft_coll_args *args, weft_coll_done_fn done, void *context, struct weft_coll **coll_out)
{
    struct host_pair *pair;
    struct weft_coll_args call = *args;
    struct weft_error error;
    if (!fits(group, args, &pair)) return WEFT_ERR_AGAIN;
    if (!call.posted_ns) call.posted_ns = weft_now_ns(group->env);
    if (args->kind == WEFT_COLL_SEND) return send_now(group->host, pair, &call) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (recv_now(group->host, pair, &call)) return WEFT_OK;
    weft_loop_guard(group->loop);
    return weft_coll_post(group, &call, done, context, coll_out, &error) == WEFT_IN_PROGRESS ? WEFT_IN_PROGRESS : WEFT_ERR_AGAIN;
}

enum weft_status weft_coll_recv_now(struct weft_group *group, const struct weft_coll_args *args, bool patient)
{
    struct host_pair *pair;
    WEFT_ASSERT(args->kind == WEFT_COLL_RECV);
    if (!fits(group, args, &pair)) return WEFT_ERR_AGAIN;
    struct host *host = group->host;
    if (host->crowded || host_needs_this_core(host, args->root)) patient = false; /* it needs this core to come at all */
    for (uint32_t looks = 0; patient && looks < LOOKS && way_of(host, pair) == NOT_YET; looks++) weft_relax(false);
    return recv_now(host, pair, args) ? WEFT_OK : WEFT_IN_PROGRESS;
}

/* ---- the end ---- */
bool host_pairs_look(const struct host_pairs *pairs, const struct host_peer *peers, uint32_t own)
{
    for (uint32_t rank = 0; pairs && rank < pairs->ranks; rank++) {
        const struct host_pair *pair = pairs->of[rank];
        const struct host_peer *peer = &peers[rank];
        if (!pair || !pair->ring || !peer->segment || !peer->place || !host_looks_at_us(peer, HOST_ENDED)) continue;
        if (taken_by(pair, peer, pairs->ranks, own) < pair->sent) return true;
    }
    return false;
}

struct coll_pair_counts host_pair_counts(const struct host_pairs *pairs, uint32_t rank)
{
    const struct host_pair *pair = pairs ? pairs->of[rank] : NULL;
    return pair ? (struct coll_pair_counts){pair->sent, pair->got} : (struct coll_pair_counts){0, 0};
}

bool host_pairs_untaken(const struct host *host)
{
    const struct host_pairs *pairs = host->pairs;
    for (uint32_t rank = 0; pairs && rank < pairs->ranks; rank++) {
        const struct host_pair *pair = pairs->of[rank];
        const struct host_peer *peer = &host->peers[rank];
        if (pair && pair->ring && peer->segment && taken_by(pair, peer, pairs->ranks, host->group->rank) < pair->sent) return true;
    }
    return false;
}

void host_pairs_add_moved(const struct host_pairs *pairs, struct weft_moved *moved)
{
    if (!pairs) return;
    moved->out_bytes += pairs->moved.out_bytes;
    moved->in_bytes += pairs->moved.in_bytes;
}

void host_pairs_part(struct host_pairs *pairs)
{
    if (!pairs) return;
    weft_loop_remove(pairs->host->group->loop, &pairs->pollable);
    pairs->host = NULL;
    for (uint32_t rank = 0; rank < pairs->ranks; rank++)
        while (pairs->of[rank] && !weft_list_empty(&pairs->of[rank]->recvs)) weft_list_remove(pairs->of[rank]->recvs.next);
}

void host_pairs_free(struct host_pairs *pairs)
{
    if (!pairs) return;
    for (uint32_t rank = 0; rank < pairs->ranks; rank++) {
        struct host_pair *pair = pairs->of[rank];
        if (!pair) continue;
        host_piece_give(pair->ring);
        if (pair->room) room_free(pair->room, pair->room_bytes);
        weft_free_bytes(weft_env_system(), pair);
    }
    host_piece_give(pairs->table);
    weft_free_bytes(weft_env_system(), pairs);
}
