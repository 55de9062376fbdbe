/* host_memory.c - what a group keeps in the memory that peers map, small and for all groups of a process together.
 *
 *     pieces   segments, the words about calls, rings of sends: a few KiB each, cut from chunks of this process; for the life of a group
 *     places   where the memory of each other process is mapped
 *     rooms    for contributions of short operations that do not fit into an announcement: lent to the groups of a session that use them.
 *              One that is at rest loses its room to the next that needs one, once its peers have read what lies there.
 *     halls    the same for contributions of some hundred KiB
 *
 * So memory grows with what is under way, and little with the number of groups. */
#include "collective/host.h"

#include <pthread.h>
#include <string.h>

enum { CHUNK_BYTES = 16384, LINE = 64, PIECES_MAX = 64, ROOMS_MIN = 16, HALLS_MIN = 1, TRIED = 8 };
_Static_assert(2 * sizeof(struct host_segment) <= CHUNK_BYTES && sizeof(struct host_calls) <= CHUNK_BYTES && 2 * HOST_SHORT_BYTES <= (int)CHUNK_BYTES, "pieces of a chunk");

/* ---- pieces ---- */
struct chunk {
    struct chunk *next;
    uint8_t *memory;   /* (CHUNK_BYTES,) */
    size_t piece_bytes;
    uint64_t used;     /* a bit each */
};

static struct {
    pthread_mutex_t mutex;
    struct chunk *first;
} chunks = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t all_of(const struct chunk *chunk)
{
    size_t count = CHUNK_BYTES / chunk->piece_bytes;
    return count < PIECES_MAX ? ((uint64_t)1 << count) - 1 : UINT64_MAX;
}

/* With the mutex held. One that a parent process has made is not found in this one's memory. */
static struct chunk *chunk_with_room(size_t piece_bytes)
{
    uint64_t at;
    for (struct chunk *chunk = chunks.first; chunk; chunk = chunk->next)
        if (chunk->piece_bytes == piece_bytes && chunk->used != all_of(chunk) && weft_memory_locate(chunk->memory, CHUNK_BYTES, &at)) return chunk;
    return NULL;
}

static enum weft_status chunk_make(size_t piece_bytes, struct chunk **chunk_out)
{
    struct weft_env *env = weft_env_system();
    struct chunk *chunk = weft_alloc_zero(env, sizeof *chunk);
    void *memory = NULL;
    uint64_t at;
    enum weft_status status = chunk ? weft_memory_alloc(env, CHUNK_BYTES, &memory, NULL) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK && !weft_memory_locate(memory, CHUNK_BYTES, &at)) status = WEFT_ERR_UNSUPPORTED;
    if (status < 0) {
        weft_memory_free(env, memory);
        weft_free_bytes(env, chunk);
        return status;
    }
    *chunk = (struct chunk){.next = chunks.first, .memory = memory, .piece_bytes = piece_bytes};
    chunks.first = *chunk_out = chunk;
    return WEFT_OK;
}

enum weft_status host_piece_take(size_t bytes, void **piece_out, uint64_t *at_out)
{
    size_t piece_bytes = (bytes + LINE - 1) & ~(size_t)(LINE - 1);
    pthread_mutex_lock(&chunks.mutex);
    struct chunk *chunk = chunk_with_room(piece_bytes);
    enum weft_status status = chunk ? WEFT_OK : chunk_make(piece_bytes, &chunk);
    if (status == WEFT_OK) {
        unsigned index = (unsigned)__builtin_ctzll(~chunk->used);
        chunk->used |= (uint64_t)1 << index;
        *piece_out = chunk->memory + index * piece_bytes;
        weft_memory_locate(*piece_out, piece_bytes, at_out);
    }
    pthread_mutex_unlock(&chunks.mutex);
    if (status == WEFT_OK) memset(*piece_out, 0, piece_bytes);
    return status;
}

void host_piece_give(void *piece)
{
    if (!piece) return;
    pthread_mutex_lock(&chunks.mutex);
    struct chunk **at = &chunks.first;
    while (*at && (uintptr_t)piece - (uintptr_t)(*at)->memory >= CHUNK_BYTES) at = &(*at)->next;
    struct chunk *chunk = *at;
    WEFT_ASSERT(chunk);
    chunk->used &= ~((uint64_t)1 << (size_t)((uint8_t *)piece - chunk->memory) / chunk->piece_bytes);
    bool empty = chunk->used == 0;
    if (empty) *at = chunk->next;
    pthread_mutex_unlock(&chunks.mutex);
    if (!empty) return;
    weft_memory_free(weft_env_system(), chunk->memory);
    weft_free_bytes(weft_env_system(), chunk);
}

/* ---- places ---- */
static struct {
    pthread_mutex_t mutex;
    struct host_place *first;
} places = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum weft_status host_place_take(struct weft_peer *peer, const struct host_place **place_out)
{
    struct weft_mapping mapping;
    WEFT_TRY(weft_peer_map(peer, &mapping));
    pthread_mutex_lock(&places.mutex);
    struct host_place *place = places.first;
    while (place && place->mapping.view != mapping.view) place = place->next;
    if (place) {
        weft_mapping_release(&mapping); /* the place has it already */
    } else if ((place = weft_alloc_zero(weft_env_system(), sizeof *place))) {
        place->mapping = mapping;
        place->next = places.first;
        places.first = place;
    }
    if (place) place->users++;
    pthread_mutex_unlock(&places.mutex);
    if (!place) weft_mapping_release(&mapping);
    *place_out = place;
    return place ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

void host_place_give(const struct host_place *given)
{
    if (!given) return;
    pthread_mutex_lock(&places.mutex);
    struct host_place **at = &places.first;
    while (*at && *at != given) at = &(*at)->next;
    struct host_place *place = *at;
    WEFT_ASSERT(place);
    bool last = --place->users == 0;
    if (last) *at = place->next;
    pthread_mutex_unlock(&places.mutex);
    if (!last) return;
    weft_mapping_release(&place->mapping);
    weft_free_bytes(weft_env_system(), place);
}

/* ---- rooms ---- */
struct idle_room {
    struct idle_room *next;
};

static const struct {
    size_t bytes;
    uint32_t least; /* so many are made before a group loses its own */
} sizes[HOST_ROOM_SIZES] = {[HOST_ROOM] = {HOST_ROOM_BYTES, ROOMS_MIN}, [HOST_HALL] = {HOST_HALL_BYTES, HALLS_MIN}};
_Static_assert(sizeof((struct records *)0)->rooms / sizeof(struct lent_rooms) == HOST_ROOM_SIZES, "one each");

/* Has `rank` still to read what this one has said? Who has announced an operation has read what was said in those before it; and of what is said to a
 * root the others read nothing. They need not have said that they are over with it: who went ahead of the others says that with its next operation. */
static bool may_read(const struct host *host, uint32_t rank)
{
    const struct host_peer *peer = &host->peers[rank];
    if (!peer->segment || !peer->place || !host_looks_at_us(peer, host->next)) return false;
    const uint64_t last = host->next - 1; /* it is not over with all, so there was one */
    const struct host_post *post = host_post_of(host->segment, last);
    bool to_root = (post->kind == WEFT_COLL_REDUCE || post->kind == WEFT_COLL_GATHER) && !(post->flags & HOST_UNEQUAL); /* else the root has said its cuts */
    return !to_root || rank == post->root || !host_has_come(host, host->group->rank, last) || !host_has_come(host, rank, last);
}

static bool rests(const struct host *host)
{
    const struct weft_group *group = host->group;
    if (group->active_count + group->prepared_count > 0) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (may_read(host, rank)) return false;
    return true;
}

/* The room of a group that has no use for it now; of the few that have had theirs for the longest. */
static uint8_t *room_of_another(struct lent_rooms *lent, enum host_room_size size)
{
    struct weft_list *node, *spare;
    unsigned tried = 0;
    weft_list_foreach(node, spare, &lent->holders) {
        struct host_room *room = weft_container_of(node, struct host_room, link);
        struct host *holder = weft_container_of(room - size, struct host, rooms[0]);
        weft_list_remove(node);
        if (rests(holder)) {
            uint8_t *memory = room->memory;
            room->memory = NULL;
            return memory;
        }
        weft_list_append(&lent->holders, node);
        if (++tried == TRIED) break;
    }
    return NULL;
}

/* Where the peers can read it, as a segment; NULL: there is no such memory left. Whatever else weft_memory_alloc finds is of no use. */
static uint8_t *room_make(size_t bytes)
{
    void *memory;
    uint64_t at;
    if (weft_memory_alloc(weft_env_system(), bytes, &memory, NULL) < 0) return NULL;
    if (weft_memory_locate(memory, bytes, &at)) return memory;
    weft_memory_free(weft_env_system(), memory);
    return NULL;
}

bool host_room_take(struct host *host, enum host_room_size size)
{
    struct lent_rooms *lent = &host->group->records->rooms[size];
    struct host_room *room = &host->rooms[size];
    if (room->memory) return true;
    weft_loop_guard(host->group->loop);
    if (size == HOST_HALL && !host->slots && !(host->slots = weft_alloc_array(host->group->env, HOST_HALL_SLOTS, sizeof *host->slots))) return false;
    struct idle_room *idle = lent->idle;
    uint8_t *memory = (uint8_t *)idle;
    if (idle) lent->idle = idle->next;
    else if (lent->count >= sizes[size].least) memory = room_of_another(lent, size);
    if (!memory && (memory = room_make(sizes[size].bytes))) lent->count++;
    if (!memory || !weft_memory_locate(memory, sizes[size].bytes, &room->at)) return false; /* a child of fork finds none of its parent's */
    room->memory = memory;
    if (size == HOST_HALL) memset(host->slots, 0, HOST_HALL_SLOTS * sizeof *host->slots); /* nobody has anything to read in it */
    weft_list_append(&lent->holders, &room->link);
    return true;
}

uint8_t *host_room_leave(struct host *host, enum host_room_size size)
{
    struct host_room *room = &host->rooms[size];
    uint8_t *memory = room->memory;
    if (!memory) return NULL;
    weft_list_remove(&room->link);
    room->memory = NULL;
    host->group->records->rooms[size].count--;
    return memory;
}

void host_room_give(struct records *records, enum host_room_size size, uint8_t *memory)
{
    struct lent_rooms *lent = &records->rooms[size];
    if (!memory) return;
    struct idle_room *idle = (struct idle_room *)memory;
    idle->next = lent->idle;
    lent->idle = idle;
    lent->count++;
}

/* ---- what an operation knows of its peers' buffers ---- */
struct idle_reach {
    struct idle_reach *next;
};

struct host_reach *host_reach_take(struct weft_group *group)
{
    struct idle_reach *idle = group->records->reaches;
    if (idle) group->records->reaches = idle->next;
    return idle ? (struct host_reach *)idle : weft_alloc_array(group->env, HOST_RANKS_MAX, sizeof(struct host_reach));
}

void host_reach_give(struct records *records, struct host_reach *reach)
{
    if (!reach) return;
    struct idle_reach *idle = (struct idle_reach *)reach;
    idle->next = records->reaches;
    records->reaches = idle;
}

void host_memory_free(struct weft_env *env, struct records *records)
{
    for (int size = 0; size < HOST_ROOM_SIZES; size++)
        for (struct idle_room *idle; (idle = records->rooms[size].idle); weft_memory_free(weft_env_system(), idle)) records->rooms[size].idle = idle->next;
    for (struct idle_reach *idle; (idle = records->reaches); weft_free_bytes(env, idle)) records->reaches = idle->next;
}
