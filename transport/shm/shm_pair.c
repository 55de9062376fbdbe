/* shm_pair.c - connects two endpoints and ends the connection.
 *
 * The endpoints authenticate over a Unix socket (bootstrap.h). Then each side creates the ring that the
 * peer writes to and sends it as one message with descriptors: ring, doorbell bitmap, window generations,
 * eventfd, arena. Each side maps them, tests CMA and reports the result in its first cell (HELLO). The
 * socket stays open and breaks when the process ends.
 *
 * So a peer costs memory only once it is connected, and three descriptors: the socket, a pidfd and the
 * peer's eventfd. The others are closed when they are sent or mapped.
 *
 * The end has two steps. At once: the state in both rings informs the peer that no copy counts and none may
 * begin. Then operations complete, except those whose buffer the peer may be writing (it is inside). These
 * operations, the staging slots filled for the peer and the mapping of its ring stay until the peer is
 * outside or its process has ended. */
#include <fcntl.h>
#include <stdio.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "transport/shm/shm.h"

#define ADDRESS_MAGIC 0x4d485357u
enum { ADDRESS_VERSION = 2, PARAMETERS_VERSION = 2, DESCRIPTORS = 5 };

struct address {
    uint32_t magic, version, nonce_hash, id, bytes, check;
    uint64_t host; /* hash of the boot id: the scope of shared memory */
};

struct parameters {
    /* flags: enum shm_ability allowed here */
    uint32_t version, doorbell_bit, segment_bytes, doorbells_bytes, window_generations_bytes, flags;
    uint64_t arena_id, arena_bytes; /* 0: none */
    uint64_t probe_address, probe;
};

static uint64_t host_hash(void)
{
    char text[64] = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0; /* errno is the reason */
    ssize_t bytes = read(fd, text, sizeof text);
    close(fd);
    errno = 0;
    return bytes > 0 ? weft_fnv_bytes(WEFT_FNV_BASIS, text, (size_t)bytes) : 0;
}

static uint32_t address_check(const struct address *head, const uint8_t *rest, size_t bytes)
{
    /* the other fields are compared one by one */
    uint64_t sum = weft_fnv_bytes(WEFT_FNV_BASIS, &head->bytes, sizeof head->bytes);
    sum = weft_fnv_bytes(sum, &head->host, sizeof head->host);
    return (uint32_t)(weft_fnv_bytes(sum, rest, bytes) >> 16);
}

enum weft_status shm_address_make(struct shm_endpoint *endpoint)
{
    size_t bytes;
    const void *meeting = bootstrap_address(endpoint->bootstrap, &bytes);
    struct weft_transport *transport = endpoint->transport;
    struct address head = {.magic = ADDRESS_MAGIC,
                           .version = ADDRESS_VERSION,
                           .nonce_hash = core_nonce_hash(transport->nonce),
                           .id = transport->id};
    if (bytes > sizeof endpoint->own_address.address - sizeof head)
        return weft_limit_note(
            "the address of an endpoint has %zu bytes, at most %zu fit; use a shorter TMPDIR", bytes,
            sizeof endpoint->own_address.address - sizeof head);
    head.host = host_hash();
    if (head.host == 0 && errno == EMFILE) return weft_limit_status("the identity of the host", errno);
    head.bytes = (uint32_t)(sizeof head + bytes);
    head.check = address_check(&head, meeting, bytes);
    memcpy(endpoint->own_address.address, &head, sizeof head);
    memcpy(endpoint->own_address.address + sizeof head, meeting, bytes);
    endpoint->own_address.address_bytes = sizeof head + bytes;
    return WEFT_OK;
}

static enum weft_status address_read(const struct shm_endpoint *endpoint, uint32_t peer_id, const void *blob,
                                     size_t bytes)
{
    const struct weft_transport *transport = endpoint->transport;
    struct address head, own;
    if (bytes < sizeof head) return WEFT_ERR_MALFORMED;
    memcpy(&head, blob, sizeof head);
    if (head.magic != ADDRESS_MAGIC) return WEFT_ERR_MALFORMED;
    if (head.version != ADDRESS_VERSION) return WEFT_ERR_VERSION;
    if (head.nonce_hash != core_nonce_hash(transport->nonce)) return WEFT_ERR_AUTH;
    if (head.bytes != bytes || head.id != peer_id) return WEFT_ERR_MALFORMED;
    if (head.check != address_check(&head, (const uint8_t *)blob + sizeof head, bytes - sizeof head))
        return WEFT_ERR_MALFORMED;
    memcpy(&own, endpoint->own_address.address, sizeof own);
    return head.host == own.host ? WEFT_OK : WEFT_ERR_UNREACHABLE;
}

/* ---- connect ---- */

static void pair_forget(struct shm_pair *pair)
{
    if (pair->bootstrap) bootstrap_forget(pair->bootstrap);
    pair->bootstrap = NULL;
}

static void pair_unmap(struct shm_pair *pair)
{
    memory_file_unmap(pair->in.shared, sizeof *pair->in.shared);
    if (!pair->flags.self) {
        memory_file_unmap(pair->out.shared, sizeof *pair->out.shared);
        memory_file_unmap(pair->mapped.doorbells, sizeof *pair->mapped.doorbells);
        memory_file_unmap(pair->mapped.window_generations, sizeof *pair->mapped.window_generations);
        if (pair->mapped.event_fd >= 0) close(pair->mapped.event_fd);
    }
    memory_view_unref(pair->mapped.view);
    pair->in.shared = pair->out.shared = NULL;
    pair->mapped.doorbells = NULL;
    pair->mapped.window_generations = NULL;
    pair->mapped.event_fd = -1;
    pair->mapped.view = NULL;
}

/* The pair of an endpoint with itself: one ring, written and read here. */
static void shm_bootstrap_self(struct shm_pair *pair)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    struct memory_arena arena;
    pair->flags.self = pair->flags.answered = pair->flags.light = true;
    pair->credit.max = endpoint->credit_bytes;
    pair->out.shared = pair->in.shared;
    pair->mapped.doorbells = endpoint->doorbells;
    pair->mapped.window_generations = endpoint->window_generations;
    pair->mapped.event_fd = endpoint->event_fd;
    pair->peer_doorbell_bit = pair->doorbell_bit;
    if (endpoint->access.allow_maps && memory_arena(&arena))
        pair->mapped.view = memory_view_open(arena.fd, arena.id, arena.bytes);
    pair->remote.pid = getpid();
    pair->remote.probe_address = (uintptr_t)&endpoint->probe;
    uint64_t seen = 0;
    pair->flags.read_by_cma =
        endpoint->access.allow_cma &&
        shm_cma(pair->remote.pid, &seen, (uintptr_t)&endpoint->probe, sizeof seen, false) == WEFT_OK;
    pair->remote.abilities = (pair->mapped.view ? SHM_MAPS : 0) | (pair->flags.read_by_cma ? SHM_CMA : 0);
    pair->state = SHM_PAIR_CONNECTED;
}

static enum weft_status shm_bootstrap_other(struct shm_pair *pair, const uint8_t *address, size_t bytes)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    struct memory_arena arena;
    bool have_arena = endpoint->access.allow_maps && memory_arena(&arena);
    struct parameters mine = {
        .version = PARAMETERS_VERSION,
        .doorbell_bit = pair->doorbell_bit,
        .segment_bytes = sizeof(struct ring_shared),
        .doorbells_bytes = sizeof(struct shm_doorbell_bitmap),
        .window_generations_bytes = sizeof(struct shm_window_generations),
        .flags = (endpoint->access.allow_maps ? SHM_MAPS : 0) | (endpoint->access.allow_cma ? SHM_CMA : 0) |
                 (endpoint->access.fences ? SHM_FENCES : 0),
        .arena_id = have_arena ? arena.id : 0,
        .arena_bytes = have_arena ? arena.bytes : 0,
        .probe_address = (uintptr_t)&endpoint->probe,
        .probe = endpoint->probe,
    };
    enum weft_status status = bootstrap_connect(endpoint->bootstrap, pair->peer->id, address, bytes, &mine,
                                                sizeof mine, NULL, 0, pair, &pair->bootstrap);
    if (status == WEFT_OK) {
        pair->state = SHM_PAIR_CONNECTING;
        endpoint->connecting_count++;
        endpoint->bootstrap_due = true;
    }
    return status;
}

/* Creates the ring that the peer writes to; its reader touches it first. WEFT_ERR_LIMIT. */
static enum weft_status inbox_make(struct shm_pair *pair, int *fd_out)
{
    pair->in.shared = memory_file_create("weft-ring", sizeof *pair->in.shared, true, fd_out);
    if (!pair->in.shared) return weft_limit_status("the ring of a peer in shared memory", errno);
    memset(pair->in.shared, 0, RING_HEAD_BYTES + RING_CELLS * RING_CELL_BYTES);
    return WEFT_OK;
}

/* Sends the peer the memory that it may map. */
static enum weft_status offer(struct shm_pair *pair)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    struct memory_arena arena = {.fd = -1};
    bool have_arena = endpoint->access.allow_maps && memory_arena(&arena);
    int inbox_fd;
    WEFT_TRY(inbox_make(pair, &inbox_fd));
    const int descriptors[DESCRIPTORS] = {inbox_fd, endpoint->doorbells_fd, endpoint->window_generations_fd,
                                          endpoint->event_fd, arena.fd};
    enum weft_status status =
        bootstrap_send(pair->bootstrap, NULL, 0, descriptors, have_arena ? DESCRIPTORS : DESCRIPTORS - 1);
    close(inbox_fd);
    return status;
}

static enum weft_status shm_bootstrap_start(struct shm_pair *pair, const uint8_t *blob, size_t bytes)
{
    if (pair->peer->id != pair->endpoint->transport->id)
        return shm_bootstrap_other(pair, blob + sizeof(struct address), bytes - sizeof(struct address));
    int inbox_fd;
    WEFT_TRY(inbox_make(pair, &inbox_fd));
    close(inbox_fd);
    shm_bootstrap_self(pair);
    return WEFT_OK;
}

enum weft_status shm_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes)
{
    struct shm_endpoint *endpoint = transport->backend;
    WEFT_TRY(address_read(endpoint, peer->id, blob, bytes));
    struct shm_pair *pair = weft_alloc_zero(transport->env, sizeof *pair);
    if (!pair) return WEFT_ERR_NO_MEMORY;
    pair->credit.max = SHM_CREDIT_FIRST;
    pair->endpoint = endpoint;
    pair->peer = peer;
    pair->mapped.event_fd = -1;
    weft_list_init(&pair->queue);
    weft_list_init(&pair->answers);
    weft_list_init(&pair->ops);
    weft_list_init(&pair->links.blocked);
    weft_list_init(&pair->links.ending);
    shm_doorbell_join(endpoint, pair);
    enum weft_status status = shm_bootstrap_start(pair, blob, bytes);
    if (status < 0) {
        shm_doorbell_leave(endpoint, pair);
        pair_unmap(pair);
        weft_free_bytes(transport->env, pair);
        return status;
    }
    weft_list_append(&endpoint->lists.pairs, &pair->links.link);
    peer->backend = pair;
    return WEFT_OK;
}

/* Maps the memory that the peer sent. False: wrong contents, or it cannot be mapped. */
static bool map_peer(struct shm_pair *pair, int *descriptors, uint32_t count)
{
    pair->out.shared = memory_file_map(descriptors[0], sizeof *pair->out.shared, true);
    pair->mapped.doorbells = memory_file_map(descriptors[1], sizeof *pair->mapped.doorbells, true);
    pair->mapped.window_generations =
        memory_file_map(descriptors[2], sizeof *pair->mapped.window_generations, false);
    if (!pair->out.shared || !pair->mapped.doorbells || !pair->mapped.window_generations) return false;
    pair->mapped.event_fd = descriptors[3];
    descriptors[3] = -1;
    if (count == DESCRIPTORS && pair->remote.arena_bytes > 0 && pair->endpoint->access.allow_maps) {
        pair->mapped.view = memory_view_open(descriptors[4], pair->remote.arena_id, pair->remote.arena_bytes);
    }
    return true;
}

static void probe_cma(struct shm_pair *pair, const struct parameters *theirs)
{
    uint64_t seen = 0;
    pair->remote.pid = bootstrap_peer_pid(pair->bootstrap);
    pair->remote.probe_address = theirs->probe_address;
    if (!pair->endpoint->access.allow_cma || !(theirs->flags & SHM_CMA) || pair->remote.pid <= 0) return;
    pair->flags.read_by_cma =
        shm_cma(pair->remote.pid, &seen, theirs->probe_address, sizeof seen, false) == WEFT_OK &&
        seen == theirs->probe;
}

void shm_pair_connected(void *owner, struct bootstrap_peer *bootstrap, const void *data, size_t bytes,
                        int *descriptors, uint32_t count)
{
    struct shm_pair *pair = owner;
    struct weft_transport *transport = pair->endpoint->transport;
    struct parameters theirs;
    bool fits = bytes == sizeof theirs;
    if (fits) memcpy(&theirs, data, sizeof theirs);
    fits = fits && theirs.version == PARAMETERS_VERSION && theirs.doorbell_bit < SHM_DOORBELL_BITS &&
           theirs.segment_bytes == sizeof(struct ring_shared) &&
           theirs.doorbells_bytes == sizeof(struct shm_doorbell_bitmap) &&
           theirs.window_generations_bytes == sizeof(struct shm_window_generations);
    if (!fits) {
        core_peer_lost(transport, pair->peer, WEFT_ERR_VERSION,
                       "the peer's shared memory is laid out by another version of weft");
        return;
    }
    pair->peer_doorbell_bit = theirs.doorbell_bit;
    pair->flags.light = pair->endpoint->access.fences && (theirs.flags & SHM_FENCES);
    pair->remote.arena_id = theirs.arena_id;
    pair->remote.arena_bytes = theirs.arena_bytes;
    probe_cma(pair, &theirs);
    enum weft_status status = offer(pair);
    if (status < 0)
        core_peer_lost(transport, pair->peer, status,
                       "no memory file for this peer could be made: raise ulimit -n, or the memory limit");
}

/* The peer's memory has arrived: the pair is connected. */
void shm_pair_on_message(void *owner, struct bootstrap_peer *bootstrap, const void *data, size_t bytes,
                         int *descriptors, uint32_t count)
{
    struct shm_pair *pair = owner;
    struct shm_endpoint *endpoint = pair->endpoint;
    if (pair->state != SHM_PAIR_CONNECTING) return; /* closed, or an unexpected message */
    if (bytes != 0 || count < DESCRIPTORS - 1 || count > DESCRIPTORS || !map_peer(pair, descriptors, count)) {
        core_peer_lost(endpoint->transport, pair->peer, WEFT_ERR_UNREACHABLE,
                       "the peer's shared memory cannot be mapped: raise vm.max_map_count or the limit on "
                       "address space (ulimit -v)");
        return;
    }
    pair->state = SHM_PAIR_CONNECTED;
    endpoint->connecting_count--;
    struct ring_cell hello = {.kind = RING_HELLO,
                              .a = (pair->mapped.view ? SHM_MAPS : 0) |
                                   (pair->flags.read_by_cma ? SHM_CMA : 0) |
                                   (uint64_t)endpoint->credit_bytes << 32};
    shm_write(pair, &hello, NULL, NULL, 0);
    shm_doorbell_ring_self(pair); /* the peer may have connected and rung before this side connected */
    shm_pair_flush(pair);
}

void shm_pair_disconnected(void *owner, struct bootstrap_peer *bootstrap, enum weft_status status,
                           const char *text)
{
    struct shm_pair *pair = owner;
    struct weft_transport *transport = pair->endpoint->transport;
    bool was_met = pair->state == SHM_PAIR_CONNECTED;
    /* it ran until it stored RING_LEFT, or until its process ended */
    if (status == WEFT_ERR_PEER_LOST || !was_met) pair->flags.dead = true;
    while (pair->state == SHM_PAIR_CONNECTED && atomic_load(&pair->in.shared->writer.state) == RING_LEFT &&
           ring_reader_ready(&pair->in)) {
        pair->endpoint->step_bytes = 0;
        shm_pair_poll(pair, RING_CELLS); /* its earlier cells are delivered first */
    }
    if (pair->state == SHM_PAIR_CONNECTED && atomic_load(&pair->in.shared->writer.state) == RING_LEFT) {
        core_peer_left(transport, pair->peer, "the endpoint has closed");
    } else if (pair->state != SHM_PAIR_CLOSED) {
        core_peer_lost(transport, pair->peer, status, text);
    }
    if (pair->state != SHM_PAIR_CLOSED) shm_pair_end(pair, RING_ENDED, status); /* the core knew already */
    pair_forget(pair);
}

/* ---- the end ---- */

void shm_pair_broken(struct shm_pair *pair, const char *text)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence, "endpoint %u: %s", pair->peer->id, text);
    core_count_refused(pair->endpoint->transport);
    core_peer_lost(pair->endpoint->transport, pair->peer, WEFT_ERR_MALFORMED, sentence);
}

/* Whether the peer may be inside our memory now. */
static bool is_inside(const struct shm_pair *pair)
{
    if (pair->flags.dead || pair->flags.self || !pair->in.shared || !pair->out.shared) return false;
    if (atomic_load(&pair->in.shared->writer.inside) != 0 || shm_fence_is_uncertain(pair)) return true;
    for (uint32_t i = 0; i < RING_WINDOWS / 64; i++) {
        if (atomic_load(&pair->in.shared->writer.maps[i]) != 0) return true;
    }
    return false;
}

static void ops_end(struct shm_pair *pair, enum weft_status status)
{
    bool writes = !pair->flags.dead && !pair->flags.self && pair->in.shared &&
                  (atomic_load(&pair->in.shared->writer.inside) != 0 || shm_fence_is_uncertain(pair));
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &pair->ops) {
        struct shm_op *op = weft_container_of(node, struct shm_op, of_pair);
        bool reached = op->phase == SHM_GRANTED || (op->split && op->is_arrival);
        if (!reached || !writes) shm_op_finish(op, status);
    }
}

void shm_pair_end(struct shm_pair *pair, enum ring_state how, enum weft_status status)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    if (pair->state == SHM_PAIR_CLOSED) return;
    bool connected = pair->state == SHM_PAIR_CONNECTED;
    if (!connected) endpoint->connecting_count--;
    pair->flags.watched = connected && how == RING_ENDED && !pair->flags.dead && !pair->flags.self;
    shm_doorbell_leave(endpoint, pair);
    pair->state = SHM_PAIR_CLOSED;
    pair->end_status = status;
    /* the peer may be connected already */
    if (pair->in.shared) atomic_store(&pair->in.shared->reader.state, how);
    if (pair->out.shared) atomic_store(&pair->out.shared->writer.state, how);
    shm_fence_users(endpoint);
    if (connected && !pair->flags.dead && !pair->flags.self) shm_doorbell_ring(pair);
    while (!weft_list_empty(&pair->answers)) {
        struct shm_op *op = weft_list_first(&pair->answers, struct shm_op, link);
        weft_list_remove(&op->link);
        op->queued = false;
        if (op->phase == SHM_DONE && (!op->has_user || op->delivered))
            shm_op_recycle(endpoint->transport, &op->done);
    }
    ops_end(pair, status);
    weft_list_remove(&pair->links.blocked);
    weft_list_append(&endpoint->lists.ending, &pair->links.ending);
    shm_pairs_ending(endpoint);
}

/* Pairs whose peer may be inside our memory: finishes their end when it is outside. */
int shm_pairs_ending(struct shm_endpoint *endpoint)
{
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->lists.ending) {
        struct shm_pair *pair = weft_container_of(node, struct shm_pair, links.ending);
        ops_end(pair, pair->end_status);
        if (!weft_list_empty(&pair->ops) || is_inside(pair)) continue;
        weft_list_remove(&pair->links.ending);
        shm_slots_free(endpoint, pair); /* the peer stores into slots that it has read */
        pair_unmap(pair);
        if (!pair->flags.watched) pair_forget(pair);
        count++;
    }
    return count;
}

/* The local endpoint closes: it does not wait for the peer's process. */
void shm_pair_leave(struct shm_pair *pair)
{
    shm_pair_end(pair, RING_LEFT, WEFT_ERR_CLOSED);
    pair->flags.watched = false;
    if (weft_list_empty(&pair->links.ending)) pair_forget(pair);
}

void shm_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    shm_pair_end(peer->backend, RING_ENDED, status);
}

void shm_pair_free(struct shm_pair *pair)
{
    weft_list_remove(&pair->links.link);
    pair_unmap(pair);
    pair_forget(pair);
    weft_free_bytes(pair->endpoint->transport->env, pair);
}

enum weft_status shm_map_peer(struct weft_transport *transport, struct weft_peer *peer,
                              struct weft_mapping *mapping_out)
{
    struct shm_pair *pair = peer->backend;
    if (!pair || pair->state != SHM_PAIR_CONNECTED || !pair->mapped.view) return WEFT_ERR_UNSUPPORTED;
    memory_view_ref(pair->mapped.view);
    *mapping_out = (struct weft_mapping){
        .base = pair->mapped.view->base, .bytes = pair->mapped.view->bytes, .view = pair->mapped.view};
    return WEFT_OK;
}

enum weft_status shm_copy_peer(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                               uint64_t address, void *local, size_t bytes)
{
    struct shm_pair *pair = peer->backend;
    uint64_t probed;
    if (!pair || pair->state != SHM_PAIR_CONNECTED || !pair->flags.read_by_cma) return WEFT_ERR_UNSUPPORTED;
    transport->stats.system_call_count++;
    /* tests whether the kernel still permits it */
    if (bytes == 0) return shm_pair_cma(pair, &probed, pair->remote.probe_address, sizeof probed, false);
    transport->stats.copied_bytes += bytes;
    return shm_pair_cma(pair, local, address, bytes, outward);
}

bool shm_is_detached(struct weft_transport *transport, const struct weft_peer *peer)
{
    const struct shm_pair *pair = peer->backend;
    return pair && pair->flags.dead;
}

/* The method that both sides have agreed on; the same text on both sides. */
void shm_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    const struct shm_pair *pair = peer->backend;
    if (!pair || pair->state != SHM_PAIR_CONNECTED || !pair->flags.answered) {
        snprintf(out, bytes, "shm, not met yet");
        return;
    }
    bool maps = pair->mapped.view && (pair->remote.abilities & SHM_MAPS),
         cma = pair->flags.read_by_cma && (pair->remote.abilities & SHM_CMA);
    snprintf(out, bytes, "shm %s, other memory %s", maps ? "mapped" : "not mapped",
             cma ? "by CMA" : "staged");
}
