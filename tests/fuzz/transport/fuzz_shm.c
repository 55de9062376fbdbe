/* fuzz_shm.c - a peer that writes arbitrary data into shared memory: cells, bytes after them, counters and
 * flags of its own lines, and of the ring that it should only read. At most that peer is lost. Every
 * operation of the user completes once, and the next peer starts with a clean table.
 *
 *     input: steps of one command byte (modulo STEPS) and its arguments; see run_step. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "transport/shm/shm.h"

#define MUST(expression)            \
    do {                            \
        if (!(expression)) abort(); \
    } while (0)

enum { TUNES = 4, INPUTS_OF_ENDPOINT = 64, BYTES = 60000, OPS = 12 };
enum step { CELL, SCRIBBLE_IN, SCRIBBLE_OUT, PROGRESS, SEND, RECEIVE, PUT_REQUESTED, READ_OUT, STEPS };

static const char *const tunes[TUNES] = {NULL, "cma=off", "maps=off", "cma=off,maps=off"};

struct operation { /* of the user */
    struct weft_completion completion;
    struct weft_receive receive;
    bool on;
    int fired;
};

static struct victim {
    struct weft_transport *transport;
    uint8_t *memory; /* (BYTES,) of the arena */
    uint8_t *plain;  /* (BYTES,) */
    struct weft_window *window;
    uint32_t inputs;
} victims[TUNES];

struct attack {
    struct victim *victim;
    struct weft_peer *peer;
    struct shm_pair *pair;
    struct ring_writer out; /* the attacker's ends */
    struct ring_reader in;
    struct operation operations[OPS];
    uint32_t operation_count;
    const uint8_t *data;
    size_t bytes;
};

static uint32_t next_id = 1000;

static void on_done(struct weft_completion *completion, enum weft_status status)
{
    struct operation *operation = weft_container_of(completion, struct operation, completion);
    operation->fired++;
}

static void on_arrival(void *context, struct weft_arrival *arrival)
{
    weft_transport_discard(context, arrival);
}

static void victim_open(struct victim *victim, const char *tune)
{
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = "shm";
    options.id = 1;
    options.nonce = 3;
    options.tune = tune;
    MUST(weft_transport_open(weft_env_system(), &options, &victim->transport, NULL) == WEFT_OK);
    void *memory;
    MUST(weft_memory_alloc(weft_env_system(), BYTES, &memory, NULL) == WEFT_OK);
    victim->memory = memory;
    victim->plain = calloc(1, BYTES);
    struct weft_window_options window = {
        sizeof window, victim->memory, BYTES, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
        WEFT_ANY_PEER};
    MUST(weft_window_open(victim->transport, &window, &victim->window, NULL) == WEFT_OK);
    weft_transport_handler(victim->transport, WEFT_CHANNEL_TEST, on_arrival, victim->transport);
    victim->inputs = 0;
}

static void victim_close(struct victim *victim)
{
    weft_transport_close(victim->transport);
    for (int i = 0; i < 1000 && !weft_transport_drained(victim->transport); i++)
        weft_transport_progress(victim->transport, 64);
    MUST(weft_transport_drained(victim->transport));
    weft_transport_free(victim->transport);
    weft_memory_free(weft_env_system(), victim->memory);
    free(victim->plain);
    victim->transport = NULL;
}

/* The process that the attacker claims to be: the endpoint may read there, and write where allowed. */
static pid_t attacker_process(void)
{
    static pid_t child;
    if (child > 0) return child;
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    MUST(child > 0);
    return child;
}

/* A connected peer as shm_pair.c creates it, without sockets: both rings are in this process. */
static void attack_begin(struct attack *attack, struct victim *victim)
{
    struct shm_endpoint *endpoint = victim->transport->backend;
    struct shm_pair *pair = weft_alloc_zero(victim->transport->env, sizeof *pair);
    struct memory_arena arena;
    int fd;
    *attack =
        (struct attack){.victim = victim, .pair = pair, .peer = core_peer_add(victim->transport, next_id++)};
    MUST(attack->peer && pair);
    attack->peer->connected = true;
    attack->peer->backend = pair;
    pair->endpoint = endpoint;
    pair->peer = attack->peer;
    struct weft_list *lists[] = {&pair->queue, &pair->answers, &pair->ops, &pair->links.blocked,
                                 &pair->links.ending};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) weft_list_init(lists[i]);
    shm_doorbell_join(endpoint, pair);
    pair->in.shared = memory_file_create("weft-ring", sizeof *pair->in.shared, true, &fd);
    close(fd);
    pair->out.shared = memory_file_create("weft-ring", sizeof *pair->out.shared, true, &fd);
    close(fd);
    pair->mapped.doorbells = memory_file_map(endpoint->doorbells_fd, sizeof *pair->mapped.doorbells, true);
    pair->mapped.window_generations =
        memory_file_map(endpoint->window_generations_fd, sizeof *pair->mapped.window_generations, false);
    pair->mapped.event_fd = fcntl(endpoint->event_fd, F_DUPFD_CLOEXEC, 3);
    MUST(pair->in.shared && pair->out.shared && pair->mapped.doorbells && pair->mapped.window_generations &&
         pair->mapped.event_fd >= 0);
    if (endpoint->access.allow_maps && memory_arena(&arena))
        pair->mapped.view = memory_view_open(arena.fd, arena.id, arena.bytes);
    pair->remote.pid = attacker_process();
    pair->flags.read_by_cma = endpoint->access.allow_cma;
    pair->state = SHM_PAIR_CONNECTED;
    weft_list_append(&endpoint->lists.pairs, &pair->links.link);
    attack->out.shared = pair->in.shared;
    attack->in.shared = pair->out.shared;
}

static uint8_t take_byte(struct attack *attack)
{
    if (attack->bytes == 0) return 0;
    attack->bytes--;
    return *attack->data++;
}

static size_t take(struct attack *attack, void *out, size_t bytes)
{
    size_t count = bytes < attack->bytes ? bytes : attack->bytes;
    memcpy(out, attack->data, count);
    attack->data += count;
    attack->bytes -= count;
    return count;
}

static struct operation *operation_take(struct attack *attack)
{
    if (attack->operation_count == OPS) return NULL;
    struct operation *operation = &attack->operations[attack->operation_count++];
    weft_completion_init(&operation->completion, 1, on_done);
    return operation;
}

static void run_step(struct attack *attack)
{
    struct victim *victim = attack->victim;
    struct shm_pair *pair = attack->pair;
    bool mapped = pair->in.shared != NULL && pair->out.shared != NULL;
    enum step step = take_byte(attack) % STEPS;
    uint8_t how = take_byte(attack);
    struct operation *operation;
    switch (step) {
    case CELL: /* kind, its numbers small and often valid, the rest from the input */
        if (!mapped) break;
        {
            struct ring_cell cell = {.kind = how % (RING_KINDS + 1)};
            take(attack, (uint8_t *)&cell + 5, sizeof cell - 5);
            uint32_t seq = cell.seq;
            struct ring_cell *shared = ring_writer_cell(&attack->out);
            memcpy((uint8_t *)shared + sizeof seq, (uint8_t *)&cell + sizeof seq, sizeof cell - sizeof seq);
            ring_writer_publish(&attack->out);
            shm_doorbell_ring_self(pair);
        }
        break;
    case SCRIBBLE_IN:
    case SCRIBBLE_OUT:
        if (mapped) {
            size_t at = (size_t)how * 64 + take_byte(attack);
            struct ring_shared *ring = step == SCRIBBLE_IN ? pair->in.shared : pair->out.shared;
            if (step == SCRIBBLE_IN && at < 128) break; /* the victim's own lines */
            if (step == SCRIBBLE_OUT && at >= 128) break; /* the attacker's own lines */
            take(attack, (uint8_t *)ring + at, step == SCRIBBLE_IN ? 32 : (128 - at < 32 ? 128 - at : 32));
            /* a writer that stays inside is waited for: not tested here */
            atomic_store(&pair->in.shared->writer.inside, 0);
            for (size_t i = 0; i < RING_WINDOWS / 64; i++) atomic_store(&pair->in.shared->writer.maps[i], 0);
            shm_doorbell_ring_self(pair);
        }
        break;
    case SEND:
        if ((operation = operation_take(attack))) {
            struct weft_message message = {WEFT_TAG(WEFT_CHANNEL_TEST, how), NULL, 0,
                                           how & 1 ? victim->memory : victim->plain, (size_t)how * 230};
            operation->on =
                weft_transport_send(attack->peer, &message, &operation->completion) == WEFT_IN_PROGRESS;
        }
        break;
    case RECEIVE:
        if ((operation = operation_take(attack))) {
            operation->receive = (struct weft_receive){.completion = &operation->completion,
                                                       .buffer = (how & 1 ? victim->memory : victim->plain),
                                                       .buffer_bytes = how & 2 ? BYTES : 64};
            operation->on = weft_transport_recv(victim->transport, attack->peer->id, WEFT_TAG(0, how % 4),
                                                &operation->receive) == WEFT_IN_PROGRESS;
        }
        break;
    case PUT_REQUESTED: /* what a valid peer would write, except for the numbers */
        if (!mapped) break;
        {
            struct ring_cell *cell = ring_writer_cell(&attack->out);
            const struct shm_window *window = victim->window->backend;
            cell->kind = how & 1 ? RING_PUT : RING_GET;
            cell->header_bytes = 0;
            cell->a = how;
            if (how & 1) {
                cell->body.put.op = how;
                cell->body.put.bytes = (uint64_t)how * 200;
                cell->body.put.at = take_byte(attack);
                cell->body.put.offset = how & 2 ? RING_NO_OFFSET : memory_offset(victim->memory, BYTES);
                cell->body.put.window = window->number + 1;
                cell->body.put.generation = window->generation;
                cell->body.put.notify = how & 4;
            } else {
                cell->body.get.bytes = (uint64_t)how * 200;
                cell->body.get.at = take_byte(attack);
                cell->body.get.offset = how & 2 ? RING_NO_OFFSET : memory_offset(victim->memory, BYTES);
                cell->body.get.window = window->number + 1;
                cell->body.get.generation = window->generation;
            }
            ring_writer_publish(&attack->out);
            shm_doorbell_ring_self(pair);
        }
        break;
    case READ_OUT: /* reports bytes as read, which frees space in the victim's ring */
        if (mapped) {
            while (how-- && ring_reader_ready(&attack->in)) {
                struct ring_cell cell;
                ring_reader_copy(&attack->in, &cell);
                ring_reader_next(&attack->in, 0);
            }
            atomic_store(&pair->out.shared->reader.cells_taken, attack->in.cells);
            shm_doorbell_ring_self(pair);
        }
        break;
    case PROGRESS:
    case STEPS: break;
    }
    if (step == PROGRESS || how & 0x80) weft_transport_progress(victim->transport, how % 16 + 1);
}

static void attack_end(struct attack *attack)
{
    struct victim *victim = attack->victim;
    if (attack->pair->in.shared) { /* its process has ended */
        atomic_store(&attack->pair->in.shared->writer.inside, 0);
        for (size_t i = 0; i < RING_WINDOWS / 64; i++)
            atomic_store(&attack->pair->in.shared->writer.maps[i], 0);
    }
    attack->pair->flags.dead = true;
    weft_transport_fail_peer(victim->transport, attack->peer->id, WEFT_ERR_PEER_LOST,
                             "its process has ended");
    bool all = false;
    for (int i = 0; i < 1000 && !all; i++) {
        weft_transport_progress(victim->transport, 64);
        all = true;
        for (uint32_t k = 0; k < attack->operation_count; k++)
            all = all && (!attack->operations[k].on || attack->operations[k].fired > 0);
    }
    for (uint32_t k = 0; k < attack->operation_count; k++)
        MUST(attack->operations[k].fired == attack->operations[k].on);
    MUST(attack->peer->operations == 0 && attack->peer->status < 0 && attack->pair->state == SHM_PAIR_CLOSED);
    MUST(!attack->pair->in.shared && !attack->pair->mapped.view); /* nothing of it is mapped */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2 || bytes > 4096) return 0;
    struct victim *victim = &victims[data[0] % TUNES];
    struct attack attack;
    if (!victim->transport) victim_open(victim, tunes[data[0] % TUNES]);
    attack_begin(&attack, victim);
    attack.data = data + 2;
    attack.bytes = bytes - 2;
    if (data[1] % 8) { /* most begin validly */
        attack.pair->flags.answered = true;
        attack.pair->remote.abilities = data[1] & (SHM_MAPS | SHM_CMA);
    }
    while (attack.bytes > 0) run_step(&attack);
    attack_end(&attack);
    if (++victim->inputs == INPUTS_OF_ENDPOINT) victim_close(victim);
    return 0;
}

/* Valid traffic: receives and sends of the user, matching cells of every kind, and progress. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    size_t at = 0;
    uint64_t state = number * 0x9e3779b97f4a7c15ull + 1;
    out[at++] = (uint8_t)number;
    out[at++] = (uint8_t)(1 + number % 7);
    for (int i = 0; i < 24 && at + 80 < capacity; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint8_t step = (uint8_t)(state >> 40) % STEPS, how = (uint8_t)(state >> 50);
        out[at++] = step;
        out[at++] = how;
        if (step == PUT_REQUESTED) out[at++] = (uint8_t)(state >> 32);
        if (step != CELL) continue;
        struct ring_cell cell = {.inline_bytes = (uint8_t)(state >> 33) % 40, .a = (state >> 35) % 4};
        if (how % 3 == 0) cell.a |= 1ull << 32; /* name of an operation, first generation */
        cell.body.announce.op = 1;
        cell.body.announce.bytes = (state >> 20) % BYTES;
        cell.body.announce.address = state & 1 ? (uintptr_t)cell.body.bytes : 0;
        cell.body.announce.offset = state & 2 ? RING_NO_OFFSET : (state >> 10) % 65536;
        memcpy(out + at, (uint8_t *)&cell + 5, sizeof cell - 5);
        at += sizeof cell - 5;
    }
    return at;
}
