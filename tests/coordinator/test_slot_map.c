/* test_slot_map.c - slots with copies: placement, Map, fail-over, and the loss that ends the job. */
#include <stdio.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"
#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name

enum { WORKERS = 2, SHARDS = 3, SLOTS = 64 * SHARDS, MEMBERS = WORKERS + SHARDS };

/* What the members know of the slots: the newest of all Maps received. */
struct view {
    uint32_t version, term[SLOTS], leader[SLOTS], copy[SLOTS]; /* copy: endpoint + 1; 0: none */
};

static void view_apply(struct view *view, const Weft__Control__Map *map)
{
    assert_true(map->version > view->version);
    view->version = map->version;
    for (size_t i = 0; i < map->n_slots; i++) {
        const Weft__Control__Slot *slot = map->slots[i];
        assert_true(slot->slot < SLOTS && slot->term > view->term[slot->slot]);
        view->term[slot->slot] = slot->term;
        view->leader[slot->slot] = slot->leader;
        view->copy[slot->slot] = slot->n_copies ? slot->copies[0] + 1 : 0;
    }
}

/* All members begin; the first endpoint of shard s is WORKERS + s. */
static struct harness *begin_in(uint64_t c[MEMBERS], struct view *view, bool has_moves,
                                const char *const *zones)
{
    struct harness *h = harness_create_copies(WORKERS, SHARDS, true);
    h->zones = zones;
    h->has_moves = h->has_no_chunk_runs = has_moves;
    *view = (struct view){0};
    harness_run(h, c, 1);
    view_apply(view, h->connections[c[0]].inbox[h->connections[c[0]].read - 2]->map);
    return h;
}

static struct harness *begin(uint64_t c[MEMBERS], struct view *view, bool has_moves)
{
    return begin_in(c, view, has_moves, NULL);
}

static struct harness *job(uint64_t c[MEMBERS], struct view *view)
{
    return begin(c, view, false);
}

static void declare(struct harness *h, const uint64_t *c, const char *name, uint32_t ordinal,
                    uint64_t chunk_bytes)
{
    struct harness_declare declare;
    harness_declare_init(&declare, ordinal, name);
    declare.declare.chunk_bytes = chunk_bytes;
    for (int w = 0; w < WORKERS; w++) harness_declare(h, c[w], &declare);
}

/* Each endpoint leads 64 slots. Their copies are on the other shards, evenly. */
static void placement(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = job(c, &view);
    uint32_t led[MEMBERS] = {0}, copied[MEMBERS] = {0};
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(view.term[i], 1);
        assert_true(view.copy[i] > 0 && view.copy[i] - 1 != view.leader[i]);
        led[view.leader[i]]++;
        copied[view.copy[i] - 1]++;
    }
    for (int s = WORKERS; s < MEMBERS; s++) {
        assert_int_equal(led[s], 64);
        assert_int_equal(copied[s], 64);
    }
    /* The leader and the copy of each chunk are asked for memory: here all shards. */
    declare(h, c, "fc1", 0, 1 << 20);
    const Weft__Control__Declared *declared = NULL;
    for (int s = WORKERS; s < MEMBERS; s++) declared = harness_expect(h, c[s], BODY(DECLARED))->declared;
    assert_int_equal(declared->n_chunks, 4);
    for (size_t i = 0; i < declared->n_chunks; i++)
        assert_int_equal(declared->chunks[i]->endpoint, view.leader[declared->chunks[i]->slot]);
    /* two chunks of one endpoint are in two slots */
    assert_int_equal(declared->chunks[0]->endpoint, declared->chunks[3]->endpoint);
    assert_int_not_equal(declared->chunks[0]->slot, declared->chunks[3]->slot);
    harness_free(h);
}

static void fail_over(void **state)
{
    uint64_t c[MEMBERS];
    struct view view, before;
    struct harness *h = job(c, &view);
    const uint32_t lost = WORKERS + 1; /* endpoint of shard 1 */
    declare(h, c, "fc1", 0, 1 << 20);
    for (int s = WORKERS; s < MEMBERS; s++) {
        harness_expect(h, c[s], BODY(DECLARED));
        if (s != WORKERS + 1) harness_declared_ok(h, c[s], 0);
    }
    for (int w = 0; w < WORKERS; w++) harness_expect_nothing(h, c[w]); /* shard 1 has not answered */
    before = view;
    harness_close(h, c[lost], "reset");
    assert_int_equal(h->ended_count, 0);
    for (int i = 0; i < MEMBERS; i++) {
        if (i == (int)lost) continue;
        struct view own = before;
        const Weft__Control__Map *map = harness_expect(h, c[i], BODY(MAP))->map;
        assert_string_equal(map->text, "shard 1 (hostb, pid 44) lost: reset");
        assert_int_equal(map->lost, lost + 1);
        view_apply(&own, map);
        view = own;
    }
    for (int i = 0; i < SLOTS; i++) {
        const bool led = before.leader[i] == lost, copied = before.copy[i] == lost + 1;
        assert_int_equal(view.term[i], led || copied ? 2 : 1);
        assert_int_equal(view.leader[i], led ? before.copy[i] - 1 : before.leader[i]);
        assert_int_equal(view.copy[i], led || copied ? 0 : before.copy[i]);
    }
    /* its answer is no longer waited for, and the workers get the new leaders */
    for (int w = 0; w < WORKERS; w++) {
        const Weft__Control__Declared *declared = harness_expect(h, c[w], BODY(DECLARED))->declared;
        for (size_t i = 0; i < declared->n_chunks; i++)
            assert_int_equal(declared->chunks[i]->endpoint, view.leader[declared->chunks[i]->slot]);
    }
    /* later tensors are placed on the shards that are left */
    declare(h, c, "fc2", 1, 1 << 20);
    const Weft__Control__Declared *declared = harness_expect(h, c[WORKERS], BODY(DECLARED))->declared;
    for (size_t i = 0; i < declared->n_chunks; i++) {
        assert_int_not_equal(declared->chunks[i]->endpoint, lost);
        assert_int_equal(declared->chunks[i]->endpoint, view.leader[declared->chunks[i]->slot]);
    }
    char *status = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(status, "\"slots\":{\"copies\":1,\"count\":192,\"without_copy\":"));
    assert_null(strstr(status, "\"without_copy\":0,"));
    assert_non_null(strstr(status, "\"term_max\":2,\"moves\":0,\"moved_bytes\":0,\"diverged\":0}"));
    weft_free_bytes(&h->env, status);
    /* The job ends in order without the lost shard. */
    for (int w = 0; w < WORKERS; w++) harness_leave(h, c[w], "");
    harness_leave(h, c[WORKERS], "");
    harness_leave(h, c[WORKERS + 2], "");
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_OK);
    harness_free(h);
}

/* Slots of the first lost shard have no copy now: with chunks, the loss of their leader ends the job. */
/* ---- a loss before Go ---- */

static uint64_t join_shard(struct harness *h, int index)
{
    return harness_join(h, WEFT__CONTROL__ROLE__ROLE_SHARD, index, 1, NULL);
}

/* Roster has the shards that are left, and they lead the slots, with copies on each other. */
static void expect_begin(struct harness *h, const uint64_t *c, uint64_t lost)
{
    for (int i = 0; i < MEMBERS; i++) {
        if (c[i] == lost) continue;
        assert_int_equal(harness_expect(h, c[i], BODY(ROSTER))->roster->n_members, MEMBERS - 1);
        const Weft__Control__Map *map = harness_expect(h, c[i], BODY(MAP))->map;
        assert_int_equal(map->n_slots, 64 * (SHARDS - 1));
        for (size_t s = 0; s < map->n_slots; s++) {
            assert_int_not_equal(map->slots[s]->leader, lost - 1);
            assert_int_not_equal(map->slots[s]->copies[0], lost - 1);
        }
    }
    for (int i = 0; i < MEMBERS; i++)
        if (c[i] != lost) harness_ready(h, c[i]);
    for (int i = 0; i < MEMBERS; i++)
        if (c[i] != lost) harness_expect(h, c[i], BODY(GO));
    assert_int_equal(h->ended_count, 0);
}

/* All others wait for its addresses, which never arrive, or have arrived. */
static void lost_before_roster(void **state)
{
    for (int has_addresses = 0; has_addresses < 2; has_addresses++) {
        uint64_t c[MEMBERS];
        struct harness *h = harness_create_copies(WORKERS, SHARDS, true);
        for (int w = 0; w < WORKERS; w++)
            c[w] = harness_join(h, WEFT__CONTROL__ROLE__ROLE_WORKER, w, 1, NULL);
        for (int s = 0; s < SHARDS; s++) c[WORKERS + s] = join_shard(h, s);
        const uint64_t lost = c[WORKERS + 1];
        if (has_addresses) harness_endpoints(h, lost, 1);
        for (int i = 1; i < MEMBERS; i++)
            if (c[i] != lost) harness_endpoints(h, c[i], 1);
        harness_close(h, lost, "killed");
        for (int i = 0; i < MEMBERS; i++)
            if (c[i] != lost) harness_expect_nothing(h, c[i]);
        harness_endpoints(h, c[0], 1);
        expect_begin(h, c, lost);
        harness_free(h);
    }
}

/* A shard that joins before the job begins takes the place of the lost one. */
static void replaced_before_roster(void **state)
{
    uint64_t c[MEMBERS];
    struct harness *h = harness_create_copies(WORKERS, SHARDS, true);
    for (int s = 0; s < SHARDS; s++) c[WORKERS + s] = join_shard(h, s);
    harness_close(h, c[WORKERS + 1], "killed");
    c[WORKERS + 1] = join_shard(h, 1);
    for (int w = 0; w < WORKERS; w++) c[w] = harness_join(h, WEFT__CONTROL__ROLE__ROLE_WORKER, w, 1, NULL);
    for (int i = 0; i < MEMBERS; i++) harness_endpoints(h, c[i], 1);
    for (int i = 0; i < MEMBERS; i++) {
        const Weft__Control__Roster *roster = harness_expect(h, c[i], BODY(ROSTER))->roster;
        assert_int_equal(roster->n_members, MEMBERS);
        for (size_t m = 0; m < roster->n_members; m++) assert_int_not_equal(roster->members[m]->member, 1);
        harness_expect(h, c[i], BODY(MAP));
        harness_ready(h, c[i]);
    }
    for (int i = 0; i < MEMBERS; i++) harness_expect(h, c[i], BODY(GO));
    harness_free(h);
}

/* Copies lead, and Go follows when all others are ready: before the loss, or after it. */
static void lost_before_go(void **state)
{
    for (int ready_first = 0; ready_first < 2; ready_first++) {
        uint64_t c[MEMBERS];
        struct harness *h = harness_create_copies(WORKERS, SHARDS, true);
        for (int w = 0; w < WORKERS; w++)
            c[w] = harness_join(h, WEFT__CONTROL__ROLE__ROLE_WORKER, w, 1, NULL);
        for (int s = 0; s < SHARDS; s++) c[WORKERS + s] = join_shard(h, s);
        const uint64_t lost = c[WORKERS + 1];
        for (int i = 0; i < MEMBERS; i++) harness_endpoints(h, c[i], 1);
        for (int i = 0; i < MEMBERS; i++) {
            harness_expect(h, c[i], BODY(ROSTER));
            harness_expect(h, c[i], BODY(MAP));
            if (ready_first && c[i] != lost) harness_ready(h, c[i]);
        }
        harness_close(h, lost, "killed");
        for (int i = 0; i < MEMBERS; i++) {
            if (c[i] == lost) continue;
            const Weft__Control__Map *map = harness_expect(h, c[i], BODY(MAP))->map;
            assert_int_equal(map->lost, lost);
            for (size_t s = 0; s < map->n_slots; s++) assert_int_not_equal(map->slots[s]->leader, lost - 1);
            if (!ready_first) harness_ready(h, c[i]);
        }
        for (int i = 0; i < MEMBERS; i++)
            if (c[i] != lost) harness_expect(h, c[i], BODY(GO));
        harness_free(h);
    }
}

/* One shard cannot have copies. */
static void too_few_before_roster(void **state)
{
    struct harness *h = harness_create_copies(1, 2, true);
    const uint64_t worker = harness_join(h, WEFT__CONTROL__ROLE__ROLE_WORKER, 0, 1, NULL),
                   shard = join_shard(h, 0);
    harness_close(h, shard, "killed");
    harness_expect(h, worker, BODY(MEMBER_LOST));
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

static void second_loss(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = job(c, &view);
    declare(h, c, "fc1", 0, 8192); /* chunks in all slots */
    for (int s = WORKERS; s < MEMBERS; s++) harness_declared_ok(h, c[s], 0);
    harness_close(h, c[WORKERS], "reset");
    assert_int_equal(h->ended_count, 0);
    harness_close(h, c[WORKERS + 1], "reset");
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
    assert_non_null(strstr(h->end_text, "shard 1 (hostb, pid 44) lost: reset; slot "));
    assert_non_null(strstr(h->end_text, "of its chunks has no copy"));
    harness_free(h);
}

/* Without chunks nothing is lost, until the last shard is. */
static void empty_slots(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = job(c, &view);
    harness_close(h, c[WORKERS], "reset");
    harness_close(h, c[WORKERS + 1], "reset");
    assert_int_equal(h->ended_count, 0);
    harness_expect(h, c[0], BODY(MAP));
    const Weft__Control__Map *map = harness_expect(h, c[0], BODY(MAP))->map;
    for (size_t i = 0; i < map->n_slots; i++) assert_int_equal(map->slots[i]->leader, WORKERS + 2);
    harness_close(h, c[WORKERS + 2], "reset");
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

/* A silent shard is lost after 4 s, a worker after the limit of the job. */
static void silent_shard(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = job(c, &view);
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    for (int second = 0; second < 4; second++) {
        h->now_ns += WEFT_SECONDS(1);
        for (int i = WORKERS; i < MEMBERS - 1; i++) harness_deliver(h, c[i], &message);
        weft_coordinator_tick(h->coordinator);
        const bool is_lost = h->connections[c[MEMBERS - 1]].closed_by_coordinator;
        assert_int_equal(is_lost, second == 3);
    }
    const Weft__Control__Map *map = harness_expect(h, c[0], BODY(MAP))->map;
    assert_string_equal(map->text, "shard 2 (hostb, pid 45) lost: silent for 4 s");
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void refusals(void **state)
{
    /* all members are on one host */
    struct harness *h = harness_create_copies(1, 2, false);
    uint64_t c[3];
    for (int i = 0; i < 3; i++)
        c[i] = harness_join(h, i ? WEFT__CONTROL__ROLE__ROLE_SHARD : WEFT__CONTROL__ROLE__ROLE_WORKER, -1, 1,
                            NULL);
    for (int i = 0; i < 3; i++) harness_endpoints(h, c[i], 1);
    harness_expect_abort(h, c[0], WEFT_ERR_UNSUPPORTED,
                         "server.copies is 1, and no shard on another host can have the copy of shard 0 "
                         "(hostb, pid 42): start one there, or set server.copies_on_one_host",
                         false);
    harness_free(h);

    h = harness_create_copies(1, 2, true);
    c[0] = harness_hello(h, &(struct harness_hello){.role = WEFT__CONTROL__ROLE__ROLE_WORKER,
                                                    .wanted_index = -1,
                                                    .endpoints = 1,
                                                    .has_no_slots = true});
    Control *message = harness_expect(h, c[0], BODY(ABORT));
    assert_int_equal(message->abort->status, WEFT_ERR_VERSION);
    assert_non_null(strstr(message->abort->text, "does not support copies of shards"));
    harness_free(h);
}

/* ---- slots with a codec, or with clocks ---- */

/* Reads all messages of a connection: enters each Map, returns the last one of the kind, which is valid until
 * the next call. */
static Control *read_all(struct harness *h, uint64_t id, struct view *view,
                         Weft__Control__Control__BodyCase body)
{
    struct harness_connection *connection = &h->connections[id];
    Control *found = NULL;
    for (uint32_t i = 0; i < connection->received; i++) {
        Control *message = connection->inbox[i], *unused = message;
        const bool is_new = i >= connection->read;
        if (is_new && view && message->body_case == BODY(MAP)) view_apply(view, message->map);
        if (is_new && message->body_case == body) {
            unused = found;
            found = message;
        }
        if (unused) weft_control_free(weft_env_system(), unused);
    }
    connection->received = connection->read = found != NULL;
    connection->inbox[0] = found;
    return found;
}

/* Declares a tensor of one chunk, with a codec or this consistency; returns its slot. `at`: whose messages
 * are read. */
static uint32_t declare_one(struct harness *h, const uint64_t *c, uint32_t ordinal, const char *consistency,
                            uint64_t at)
{
    char name[16];
    struct harness_declare declare;
    snprintf(name, sizeof name, "codes%u", ordinal);
    harness_declare_init(&declare, ordinal, name);
    if (consistency[0]) declare.declare.n_dims = 1;
    else declare.declare.codec = (char *)"sign";
    declare.declare.consistency = (char *)(uintptr_t)consistency;
    for (int w = 0; w < WORKERS; w++) harness_declare(h, c[w], &declare);
    const Control *declared = read_all(h, at, NULL, BODY(DECLARED));
    assert_non_null(declared);
    assert_int_equal(declared->declared->n_chunks, 1);
    return declared->declared->chunks[0]->slot;
}

static Control *drain(struct harness *h, uint64_t connection, uint32_t shard, struct view *view,
                      Weft__Control__Control__BodyCase answer)
{
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    drain.shard = shard;
    message.body_case = BODY(DRAIN);
    message.drain = &drain;
    harness_deliver(h, connection, &message);
    return read_all(h, connection, view, answer);
}

/* The leader's answer to `asked`: it has copied so many chunks, which are all of the slot that it has. */
static void slot_copied(struct harness *h, uint64_t leader, const Weft__Control__SlotCopy *asked,
                        uint32_t chunks)
{
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopied copied = WEFT__CONTROL__SLOT_COPIED__INIT;
    copied.slot = asked->slot;
    copied.term = asked->term;
    copied.to = asked->to;
    copied.chunks = chunks;
    copied.done = true;
    message.body_case = BODY(SLOT_COPIED);
    message.slot_copied = &copied;
    harness_deliver(h, leader, &message);
}

static void slot_quiet(struct harness *h, uint64_t leader, uint32_t slot, uint32_t term)
{
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotQuiet quiet = WEFT__CONTROL__SLOT_QUIET__INIT;
    quiet.slot = slot;
    quiet.term = term;
    message.body_case = BODY(SLOT_QUIET);
    message.slot_quiet = &quiet;
    harness_deliver(h, leader, &message);
}

/* The slot of such a tensor gets a new copy, and its leader can leave. */
static void check_slot_moves(const char *consistency)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = begin(c, &view, true);
    const uint32_t slot = declare_one(h, c, 0, consistency, c[WORKERS]);
    const uint32_t leader = view.leader[slot], copy = view.copy[slot] - 1;
    const uint32_t third = 3 * WORKERS + 3 - leader - copy; /* endpoints are indices of connections here */
    harness_close(h, c[copy], "reset");
    weft_coordinator_tick(h->coordinator);
    const Control *request = read_all(h, c[leader], &view, BODY(SLOT_COPY));
    assert_non_null(request);
    const Weft__Control__SlotCopy asked = *request->slot_copy;
    assert_int_equal(asked.slot, slot);
    assert_int_equal(asked.to, third);
    slot_copied(h, c[leader], &asked, 1);
    read_all(h, c[leader], &view, BODY(MAP));
    for (uint32_t i = 0; i < SLOTS; i++) assert_true(view.copy[i] > 0);

    request = drain(h, c[leader], leader - WORKERS, &view, BODY(SLOT_QUIET));
    assert_non_null(request);
    assert_int_equal(request->slot_quiet->slot, slot);
    slot_quiet(h, c[leader], slot, request->slot_quiet->term);
    assert_non_null(read_all(h, c[leader], &view, BODY(FINISHED)));
    for (uint32_t i = 0; i < SLOTS; i++) assert_true(view.leader[i] == third && view.copy[i] == 0);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void coded_slot(void **state)
{
    check_slot_moves("");
}

static void slot_with_clocks(void **state)
{
    check_slot_moves("asp");
}

/* Copies are in another zone if a shard is there; without one they are on any other shard. */
static void zones(void **state)
{
    static const char *const two[SHARDS] = {"a", "a", "b"}, *const unknown[SHARDS] = {"a", "", "a"};
    enum { FIRST = WORKERS, LAST = WORKERS + SHARDS - 1 };
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = begin_in(c, &view, true, unknown);
    uint32_t copied[MEMBERS] = {0};
    for (int i = 0; i < SLOTS; i++) copied[view.copy[i] - 1]++;
    for (int s = FIRST; s <= LAST; s++) assert_int_equal(copied[s], 64);
    harness_free(h);

    h = begin_in(c, &view, true, two);
    memset(copied, 0, sizeof copied);
    for (int i = 0; i < SLOTS; i++) {
        assert_true((view.leader[i] == LAST) != (view.copy[i] - 1 == LAST));
        copied[view.copy[i] - 1]++;
    }
    assert_int_equal(copied[FIRST], 32);
    assert_int_equal(copied[FIRST + 1], 32);
    declare(h, c, "fc1", 0, 8192); /* chunks in all slots */
    for (int s = FIRST; s <= LAST; s++) harness_declared_ok(h, c[s], 0);
    harness_close(h, c[LAST], "reset");
    weft_coordinator_tick(h->coordinator);
    const Control *request = read_all(h, c[FIRST], &view, BODY(SLOT_COPY));
    assert_non_null(request);
    assert_int_equal(request->slot_copy->to, FIRST + 1);
    harness_free(h);
}

/* Tensors that are declared meanwhile are not in a slot that is being copied: a leader that drains would copy
 * again and again. The copy is named when it has all chunks: the leader may have a declaration later. */
static void declared_during_move(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = begin(c, &view, true);
    declare(h, c, "fc1", 0, 8192); /* chunks in all slots */
    for (int s = WORKERS; s < MEMBERS; s++) harness_declared_ok(h, c[s], 0);
    const Weft__Control__Declared *declared = read_all(h, c[WORKERS + 1], NULL, BODY(DECLARED))->declared;
    uint32_t chunks[SLOTS] = {0};
    for (size_t i = 0; i < declared->n_chunks; i++) chunks[declared->chunks[i]->slot]++;
    harness_close(h, c[WORKERS], "reset");
    weft_coordinator_tick(h->coordinator);
    const Control *request = read_all(h, c[WORKERS + 1], &view, BODY(SLOT_COPY));
    assert_non_null(request);
    const Weft__Control__SlotCopy asked = *request->slot_copy;
    for (uint32_t ordinal = 1; ordinal <= SLOTS; ordinal++) {
        assert_int_not_equal(declare_one(h, c, ordinal, "", c[WORKERS + 1]), asked.slot);
        for (int i = 0; i < WORKERS + 3; i++)
            if (i != WORKERS + 1) read_all(h, c[i], NULL, BODY(MAP));
    }
    for (uint32_t i = 0; i < 2; i++) {
        slot_copied(h, c[WORKERS + 1], &asked, chunks[asked.slot] - 1 + i);
        read_all(h, c[WORKERS + 1], &view, BODY(MAP));
        assert_int_equal(view.term[asked.slot], asked.term + i);
        assert_int_equal(view.copy[asked.slot], i ? asked.to + 1 : 0);
    }
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* ---- a further shard ---- */

enum { ADDED = WORKERS + SHARDS }; /* index of its connection, and its endpoint */

static void beat(struct harness *h, uint64_t connection)
{
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    if (!h->connections[connection].closed_by_coordinator) harness_deliver(h, connection, &message);
}

/* A shard that joins, up to its Hello. */
static uint64_t join(struct harness *h, const char *refusal)
{
    const struct harness_hello hello = {
        .role = WEFT__CONTROL__ROLE__ROLE_SHARD, .wanted_index = -1, .endpoints = 1, .joins = true};
    const uint64_t connection = harness_hello(h, &hello);
    if (refusal) {
        const Control *message = harness_expect(h, connection, BODY(ABORT));
        assert_non_null(strstr(message->abort->text, refusal));
        assert_true(h->connections[connection].closed_by_coordinator);
        return connection;
    }
    const Weft__Control__Welcome *welcome = harness_expect(h, connection, BODY(WELCOME))->welcome;
    assert_int_equal(welcome->index, SHARDS);
    assert_int_equal(welcome->shards, SHARDS);
    return connection;
}

static void known(struct harness *h, uint64_t connection, uint32_t member, const char *text)
{
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__ShardKnown known = WEFT__CONTROL__SHARD_KNOWN__INIT;
    known.member = member;
    known.text = (char *)(uintptr_t)text;
    message.body_case = BODY(SHARD_KNOWN);
    message.shard_known = &known;
    harness_deliver(h, connection, &message);
}

/* Answers SlotCopy and SlotQuiet as an engine does. false: it is another message. */
static bool answer(struct harness *h, uint64_t connection, const Control *request, const uint32_t *chunks)
{
    Control reply = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopied copied = WEFT__CONTROL__SLOT_COPIED__INIT;
    Weft__Control__SlotQuiet quiet = WEFT__CONTROL__SLOT_QUIET__INIT;
    if (request->body_case == BODY(SLOT_COPY)) {
        copied.slot = request->slot_copy->slot;
        copied.term = request->slot_copy->term;
        copied.to = request->slot_copy->to;
        copied.chunks = chunks[copied.slot];
        copied.done = true;
        reply.body_case = BODY(SLOT_COPIED);
        reply.slot_copied = &copied;
    } else if (request->body_case == BODY(SLOT_QUIET)) {
        quiet.slot = request->slot_quiet->slot;
        quiet.term = request->slot_quiet->term;
        reply.body_case = BODY(SLOT_QUIET);
        reply.slot_quiet = &quiet;
    } else {
        return false;
    }
    harness_deliver(h, connection, &reply);
    return true;
}

/* Until no request is left. `view` follows the Maps of the first shard. Returns the number of requests. */
static uint32_t answer_all(struct harness *h, const uint64_t *c, struct view *view, const uint32_t *chunks)
{
    uint32_t answers = 0, before;
    do {
        before = answers;
        for (uint32_t s = WORKERS; s <= ADDED; s++) {
            struct harness_connection *connection = &h->connections[c[s]];
            for (; connection->read < connection->received; connection->read++) {
                const Control *message = connection->inbox[connection->read];
                if (s == WORKERS && message->body_case == BODY(MAP)) view_apply(view, message->map);
                answers += answer(h, c[s], message, chunks);
            }
            assert_true(connection->received < HARNESS_INBOX);
            read_all(h, c[s], NULL, BODY(GO)); /* empties it */
        }
    } while (answers > before);
    return answers;
}

/* The shards have the same bytes, or differ by a slot that could move. */
static void assert_even(const struct view *view, const uint32_t *chunks)
{
    uint32_t led[ADDED + 1] = {0}, copied[ADDED + 1] = {0}, slots[ADDED + 1] = {0};
    for (uint32_t i = 0; i < SLOTS; i++) {
        led[view->leader[i]] += chunks[i];
        copied[view->copy[i] - 1] += chunks[i];
        slots[view->leader[i]]++;
    }
    for (uint32_t a = WORKERS; a <= ADDED; a++)
        for (uint32_t b = WORKERS; b <= ADDED; b++) {
            assert_true(led[a] <= led[b] + 3); /* chunks of one slot */
            assert_true(copied[a] <= copied[b] + 3);
            assert_true(slots[a] > 0);
        }
}

/* All members with a shard that is accepted and has sent its addresses. */
static struct harness *begin_addition(uint64_t c[ADDED + 1], struct view *view, uint32_t *chunks,
                                      uint64_t chunk_bytes)
{
    struct harness *h = begin(c, view, true);
    declare(h, c, "fc1", 0, chunk_bytes);
    for (int s = WORKERS; s < MEMBERS; s++) harness_declared_ok(h, c[s], 0);
    const Weft__Control__Declared *declared = read_all(h, c[WORKERS], NULL, BODY(DECLARED))->declared;
    for (size_t i = 0; i < declared->n_chunks; i++) chunks[declared->chunks[i]->slot]++;
    c[ADDED] = join(h, NULL);
    for (int i = 0; i < MEMBERS; i++) read_all(h, c[i], NULL, BODY(GO));
    harness_endpoints(h, c[ADDED], 1);
    const Weft__Control__Roster *roster = harness_expect(h, c[ADDED], BODY(ROSTER))->roster;
    assert_int_equal(roster->n_members, MEMBERS + 1);
    for (int i = 0; i < MEMBERS; i++)
        assert_int_equal(harness_expect(h, c[i], BODY(SHARD_ADDED))->shard_added->shard->endpoint_first,
                         ADDED);
    return h;
}

/* It enters when all are connected, gets slots when it has the tensors, and then its share. */
static void addition(void **state)
{
    uint64_t c[ADDED + 1];
    struct view view;
    uint32_t chunks[SLOTS] = {0};
    struct harness *h = begin_addition(c, &view, chunks, 8192);
    join(h, "shard 3 (hostb, pid 46) joins job mnist at this moment");
    harness_ready(h, c[ADDED]);
    for (int i = 0; i < MEMBERS; i++) {
        harness_expect_nothing(h, c[ADDED]); /* one member is not connected */
        known(h, c[i], ADDED, "");
    }
    harness_expect(h, c[ADDED], BODY(GO));
    harness_expect(h, c[ADDED], BODY(MAP));
    assert_int_equal(harness_expect(h, c[ADDED], BODY(DECLARED))->declared->n_chunks, 392);
    weft_coordinator_tick(h->coordinator);
    for (int i = 0; i < MEMBERS; i++) harness_expect_nothing(h, c[i]); /* no slot moves */
    harness_declared_ok(h, c[ADDED], 0);
    assert_true(answer_all(h, c, &view, chunks) > 0);
    assert_even(&view, chunks);
    char *status = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(status, "\"rebalancing\":false"));
    assert_non_null(strstr(status, "\"shards\":4"));
    weft_free_bytes(&h->env, status);
    /* new tensors are placed there, too */
    declare(h, c, "fc2", 1, 1 << 20);
    const Weft__Control__Declared *declared = harness_expect(h, c[ADDED], BODY(DECLARED))->declared;
    bool is_there = false;
    for (size_t i = 0; i < declared->n_chunks; i++) is_there |= declared->chunks[i]->endpoint == ADDED;
    assert_true(is_there);
    harness_close(h, c[ADDED], "reset"); /* its slots have copies */
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* ---- by load ---- */

static void speeds_of_shards(void **state)
{
    const struct coordinator_load loads[] = {{.bytes = 1e9, .ns = 1e9}, {.bytes = 8e8, .ns = 1e9},
                                             {.bytes = 5e8, .ns = 1e9}, {.bytes = 1e6, .ns = 1e9},
                                             {.bytes = 0, .ns = 0},     {.bytes = 9, .ns = 9}};
    const uint32_t expected[] = {1000, 1000 /* nearly as fast */, 500, 62, 1000, 1000};
    uint32_t found[6];
    coordinator_load_speeds(loads, 6, found);
    for (int i = 0; i < 6; i++) assert_int_equal(found[i], expected[i]);
    /* a report adds to sums that decay; a counter that falls adds nothing */
    struct coordinator_member shard = {0};
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    report.pushed_bytes = 1000, report.work_ns = 10;
    coordinator_load_report(&shard, &report, WEFT_SECONDS(1));
    coordinator_load_report(&shard, &report, WEFT_SECONDS(31));
    assert_true(shard.load.bytes > 499 && shard.load.bytes < 501 && shard.load.ns > 4.9 &&
                shard.load.ns < 5.1);
    report.pushed_bytes = 10;
    coordinator_load_report(&shard, &report, WEFT_SECONDS(31));
    assert_true(shard.load.bytes > 499 && shard.load.bytes < 501);
}

static void report(struct harness *h, uint64_t shard, uint64_t pushed_bytes, uint64_t work_ns)
{
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    report.pushed_bytes = pushed_bytes;
    report.work_ns = work_ns;
    heartbeat.report = &report;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    harness_deliver(h, shard, &message);
}

static const Weft__Control__Rebalance *rebalance(struct harness *h, uint64_t observer, bool by_load,
                                                 bool plan)
{
    Weft__Control__Rebalance body = WEFT__CONTROL__REBALANCE__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    body.by_load = by_load;
    body.plan = plan;
    message.body_case = BODY(REBALANCE);
    message.rebalance = &body;
    harness_deliver(h, observer, &message);
    return harness_expect(h, observer, BODY(REBALANCE))->rebalance;
}

static void count_led(const struct view *view, const uint32_t *chunks, uint32_t *led_out)
{
    for (int s = 0; s < MEMBERS; s++) led_out[s] = 0;
    for (uint32_t i = 0; i < SLOTS; i++) led_out[view->leader[i]] += chunks[i];
}

/* Shard 2 needs four times as long for each byte: it gets a quarter of the others' chunks. */
static void by_load(void **state)
{
    uint64_t c[ADDED + 1] = {0};
    struct view view;
    uint32_t chunks[SLOTS] = {0}, led[MEMBERS], planned[MEMBERS];
    struct harness *h = begin(c, &view, true);
    declare(h, c, "fc1", 0, 8192);
    for (int s = WORKERS; s < MEMBERS; s++) harness_declared_ok(h, c[s], 0);
    const Weft__Control__Declared *declared = read_all(h, c[WORKERS], NULL, BODY(DECLARED))->declared;
    for (size_t i = 0; i < declared->n_chunks; i++) chunks[declared->chunks[i]->slot]++;
    for (int s = 0; s < SHARDS; s++) report(h, c[WORKERS + s], 1 << 20, WEFT_MS(s == 2 ? 40 : 10));
    const uint64_t observer = harness_hello(
        h, &(struct harness_hello){.role = WEFT__CONTROL__ROLE__ROLE_OBSERVER, .wanted_index = -1});
    harness_expect(h, observer, BODY(WELCOME));
    const Weft__Control__Rebalance *plan = rebalance(h, observer, false, true);
    assert_true(plan->n_moves == 0 && plan->n_speeds == 0 && !plan->text[0]); /* the bytes are even */
    plan = rebalance(h, observer, true, true);
    assert_int_equal(plan->n_speeds, SHARDS);
    for (int s = 0; s < SHARDS; s++) assert_int_equal(plan->speeds[s], s == 2 ? 250 : 1000);
    count_led(&view, chunks, planned);
    for (size_t i = 0; i < plan->n_moves; i++) {
        if (!plan->moves[i]->leads) continue;
        planned[WORKERS + plan->moves[i]->from] -= chunks[plan->moves[i]->slot];
        planned[WORKERS + plan->moves[i]->to] += chunks[plan->moves[i]->slot];
    }
    assert_true(planned[WORKERS + 2] >= 30 && planned[WORKERS + 2] <= 48); /* 44 of 392 */
    for (int s = WORKERS; s < MEMBERS; s++) read_all(h, c[s], NULL, BODY(GO));
    assert_string_equal(rebalance(h, observer, true, false)->text, "");
    assert_true(answer_all(h, c, &view, chunks) > 0);
    count_led(&view, chunks, led);
    for (int s = WORKERS; s < MEMBERS; s++)
        assert_true(led[s] + 3 >= planned[s] && led[s] <= planned[s] + 3); /* chunks of one slot */
    plan = rebalance(h, observer, true, true);
    assert_true(plan->n_moves == 0);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* The leader reports that the bits of its copy differ: the coordinator has another copy made. */
static void a_copy_with_other_bits(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = begin(c, &view, true);
    const uint32_t slot = declare_one(h, c, 0, "", c[WORKERS]), leader = view.leader[slot];
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopied copied = WEFT__CONTROL__SLOT_COPIED__INIT;
    copied.slot = slot;
    copied.term = view.term[slot];
    copied.to = view.copy[slot] - 1;
    copied.status = WEFT_ERR_DIVERGED;
    message.body_case = BODY(SLOT_COPIED);
    message.slot_copied = &copied;
    harness_deliver(h, c[leader], &message);
    const Control *request = read_all(h, c[leader], &view, BODY(SLOT_COPY));
    assert_true(view.copy[slot] == 0 && view.term[slot] == copied.term + 1);
    if (!request) weft_coordinator_tick(h->coordinator);
    if (!request) request = read_all(h, c[leader], &view, BODY(SLOT_COPY));
    assert_non_null(request);
    const Weft__Control__SlotCopy asked = *request->slot_copy;
    slot_copied(h, c[leader], &asked, 1);
    read_all(h, c[leader], &view, BODY(MAP));
    assert_int_equal(view.copy[slot], asked.to + 1);
    char *status = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(status, "\"diverged\":1"));
    weft_free_bytes(&h->env, status);
    harness_free(h);
}

/* Slots without chunks are spread at once. */
static void addition_without_tensors(void **state)
{
    uint64_t c[ADDED + 1];
    struct view view;
    uint32_t chunks[SLOTS] = {0}, led[ADDED + 1] = {0}, copied[ADDED + 1] = {0};
    struct harness *h = begin(c, &view, true);
    c[ADDED] = join(h, NULL);
    harness_endpoints(h, c[ADDED], 1);
    harness_ready(h, c[ADDED]);
    for (int i = 0; i < MEMBERS; i++) read_all(h, c[i], NULL, BODY(GO));
    for (int i = 0; i < MEMBERS; i++) known(h, c[i], ADDED, "");
    assert_int_equal(answer_all(h, c, &view, chunks), 0);
    for (uint32_t i = 0; i < SLOTS; i++) {
        assert_true(view.copy[i] > 0 && view.copy[i] - 1 != view.leader[i]);
        led[view.leader[i]]++;
        copied[view.copy[i] - 1]++;
    }
    for (int s = WORKERS; s <= ADDED; s++) assert_in_range(led[s], SLOTS / 4 - 1, SLOTS / 4 + 1);
    for (int s = WORKERS; s <= ADDED; s++) assert_in_range(copied[s], SLOTS / 4 - 1, SLOTS / 4 + 1);
    harness_free(h);
}

/* A shard that is lost, or that a member cannot reach, does not enter; the job continues, and another one
 * can join. */
static void addition_fails(void **state)
{
    uint64_t c[ADDED + 1];
    struct view view;
    uint32_t chunks[SLOTS] = {0};
    struct harness *h = begin_addition(c, &view, chunks, 1 << 20);
    known(h, c[0], ADDED, "cannot connect to shard 3: no route");
    Control *message = harness_next(h, c[ADDED]);
    assert_non_null(message);
    assert_int_equal(message->body_case, BODY(ABORT));
    assert_string_equal(message->abort->text, "rank 0 (hostb, pid 41) cannot connect to shard 3: no route");
    for (int i = 0; i < MEMBERS; i++) {
        const Weft__Control__Map *map = harness_expect(h, c[i], BODY(MAP))->map;
        assert_int_equal(map->lost, ADDED + 1);
        assert_int_equal(map->n_slots, 0);
    }
    harness_close(h, c[ADDED], "reset");
    c[ADDED] = join(h, NULL);
    harness_close(h, c[ADDED], "reset"); /* before its addresses: no member has seen it */
    for (int i = 0; i < MEMBERS; i++) harness_expect_nothing(h, c[i]);
    c[ADDED] = join(h, NULL);
    harness_endpoints(h, c[ADDED], 1);
    harness_ready(h, c[ADDED]);
    for (int i = 1; i < MEMBERS; i++) known(h, c[i], MEMBERS + 2, "");
    for (int second = 0; second <= 60; second++) {
        h->now_ns += WEFT_SECONDS(1);
        for (int i = 0; i <= ADDED; i++) beat(h, c[i]);
        for (int i = 0; i <= ADDED; i++)
            if (second < 59) read_all(h, c[i], NULL, BODY(GO));
        if (!h->connections[c[ADDED]].closed_by_coordinator) weft_coordinator_tick(h->coordinator);
    }
    message = read_all(h, c[ADDED], NULL, BODY(ABORT));
    assert_non_null(message);
    assert_string_equal(message->abort->text, "rank 0 (hostb, pid 41) has not connected within 60 s");
    known(h, c[0], MEMBERS + 2, ""); /* too late, and without effect */
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void addition_is_refused(void **state)
{
    uint64_t c[MEMBERS];
    struct view view;
    struct harness *h = harness_create_copies(1, 2, true);
    join(h, "job mnist has not begun");
    harness_free(h);
    h = job(c, &view); /* shards of an earlier release */
    join(h, "is of a release that does not support further shards");
    harness_free(h);
    h = harness_create(WORKERS, SHARDS, NULL);
    h->has_moves = true;
    harness_run(h, c, 1);
    join(h, "job mnist has no copies, so no chunk of it can move to another shard");
    harness_free(h);
    h = begin(c, &view, true);
    harness_leave(h, c[0], "");
    join(h, "workers of job mnist have left");
    harness_free(h);
}

/* ---- another coordinator continues ---- */

enum { FORMER_MEMBERS = 4, FORMER_SLOTS = 3 }; /* a worker and three shards, each with one endpoint */

static void note_map(void *context, uint64_t connection, const Control *message)
{
    uint32_t *term = context;
    if (message->body_case != BODY(MAP) || connection != 1) return;
    for (size_t i = 0; i < message->map->n_slots; i++)
        term[message->map->slots[i]->slot] = message->map->slots[i]->term;
}

static void ignore_close(void *context, uint64_t connection, const char *why) {}

struct former_records {
    Weft__Control__Slot slot[FORMER_SLOTS], *slots[FORMER_SLOTS];
    uint32_t copies[FORMER_SLOTS];
    uint8_t key[WEFT_RESUME_KEY_BYTES];
    ProtobufCBinaryData address;
    Weft__Control__Map map;
    Weft__Control__Member entry[FORMER_MEMBERS];
    Weft__Control__StoredMember body[FORMER_MEMBERS];
    Weft__Control__StoredJob job;
    Weft__Control__Stored stored[FORMER_MEMBERS + 2], *members[FORMER_MEMBERS];
    struct coordinator_loaded loaded;
};

static void fill_member(struct former_records *records, uint32_t i)
{
    Weft__Control__Member *entry = &records->entry[i];
    Weft__Control__StoredMember *body = &records->body[i];
    weft__control__member__init(entry);
    weft__control__stored_member__init(body);
    entry->member = entry->endpoint_first = i;
    entry->role = i ? WEFT__CONTROL__ROLE__ROLE_SHARD : WEFT__CONTROL__ROLE__ROLE_WORKER;
    entry->index = i ? i - 1 : 0;
    entry->name = entry->host = (char *)"hostb";
    entry->n_addresses = 1;
    entry->addresses = &records->address;
    body->member = entry;
    body->state = MEMBER_READY;
    body->resume_key = records->address;
    body->moves = true;
    records->stored[i].member = body;
    records->members[i] = &records->stored[i];
}

/* Slot i: led by shard i, copied by the next one. The former coordinator has begun to move slot 1. */
static void fill_slot(struct former_records *records, uint32_t i)
{
    Weft__Control__Slot *slot = &records->slot[i];
    weft__control__slot__init(slot);
    records->copies[i] = 1 + (i + 1) % FORMER_SLOTS;
    slot->slot = i;
    slot->term = 5;
    slot->leader = 1 + i;
    slot->n_copies = 1;
    slot->copies = &records->copies[i];
    slot->moving = i == 1;
    records->slots[i] = slot;
}

static void fill_records(struct former_records *records)
{
    *records = (struct former_records){.address = {sizeof records->key, records->key}};
    for (int i = 0; i < FORMER_MEMBERS + 2; i++) weft__control__stored__init(&records->stored[i]);
    for (uint32_t i = 0; i < FORMER_MEMBERS; i++) fill_member(records, i);
    for (uint32_t i = 0; i < FORMER_SLOTS; i++) fill_slot(records, i);
    weft__control__map__init(&records->map);
    records->map.n_slots = FORMER_SLOTS;
    records->map.slots = records->slots;
    weft__control__stored_job__init(&records->job);
    records->job.members = FORMER_MEMBERS;
    records->stored[FORMER_MEMBERS].job = &records->job;
    records->stored[FORMER_MEMBERS + 1].slots = &records->map;
    records->loaded = (struct coordinator_loaded){.env = weft_env_system(),
                                                  .job = &records->stored[FORMER_MEMBERS],
                                                  .slots = &records->stored[FORMER_MEMBERS + 1],
                                                  .members = records->members,
                                                  .member_count = FORMER_MEMBERS};
}

/* A move that the former coordinator has requested ends with a new term; other slots keep theirs. */
static void former_move(void **state)
{
    uint32_t term[FORMER_SLOTS] = {0};
    struct former_records records;
    struct weft_coordinator_options options;
    struct weft_coordinator *coordinator;
    fill_records(&records);
    weft_coordinator_options_init(&options);
    options.workers = 1;
    options.shards = FORMER_MEMBERS - 1;
    options.copies = 1;
    options.copies_on_one_host = true;
    options.net.send = note_map;
    options.net.close = ignore_close;
    options.context = term;
    assert_int_equal(weft_coordinator_create(weft_env_system(), &options, &coordinator), WEFT_OK);
    assert_int_equal(coordinator_records_restore(coordinator, &records.loaded), WEFT_OK);
    for (uint32_t i = 0; i < FORMER_MEMBERS; i++)
        assert_int_equal(coordinator_adopt(coordinator, i + 1, coordinator->membership.members[i]), WEFT_OK);
    for (uint32_t i = 0; i < FORMER_MEMBERS; i++) coordinator_welcome_back(coordinator, i + 1, true, 1);
    weft_coordinator_tick(coordinator);
    weft_coordinator_tick(coordinator);
    assert_int_equal(term[0], 5);
    assert_int_equal(term[1], 6);
    assert_int_equal(term[2], 5);
    weft_coordinator_free(coordinator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(former_move),
                                       cmocka_unit_test(coded_slot),
                                       cmocka_unit_test(slot_with_clocks),
                                       cmocka_unit_test(declared_during_move),
                                       cmocka_unit_test(placement),
                                       cmocka_unit_test(fail_over),
                                       cmocka_unit_test(lost_before_roster),
                                       cmocka_unit_test(replaced_before_roster),
                                       cmocka_unit_test(lost_before_go),
                                       cmocka_unit_test(too_few_before_roster),
                                       cmocka_unit_test(second_loss),
                                       cmocka_unit_test(zones),
                                       cmocka_unit_test(empty_slots),
                                       cmocka_unit_test(silent_shard),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(addition),
                                       cmocka_unit_test(addition_without_tensors),
                                       cmocka_unit_test(speeds_of_shards),
                                       cmocka_unit_test(by_load),
                                       cmocka_unit_test(a_copy_with_other_bits),
                                       cmocka_unit_test(addition_fails),
                                       cmocka_unit_test(addition_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
