/* soak.c - a thousand endpoints for minutes, with continuous faults, in constant memory:
 *
 *     soak [--flavour NAME] [--endpoints N] [--seconds S | --minutes M] [--seed X]
 *
 * Members exchange messages of every size along random edges, with receives posted early, late, or
 * cancelled and posted again. They put into and get from each other's windows (soak_access.h). Meanwhile
 * members are killed (silent), edges are cut, members close with work in flight, and each is replaced
 * under a new id. Checked all the time:
 * - every operation completes once, with the bytes that were sent;
 * - an operation between two connected members ends within a minute and a thousand rounds;
 * - a member that ends leaves no operation behind;
 * - memory: live allocations, resident pages and open descriptors of the last quarter equal those of the
 *   second. An endpoint remembers dead peers, so this holds once every member was replaced LIVES_TO_JUDGE
 *   times; a shorter run reports that. (The simulator keeps a record of every endpoint and window until
 *   its end, which is accounted for.) At the end nothing is left. The backend is wrapped in fault:, which
 *   kills and cuts inside one process. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/sanitizer.h"
#include "tests/lib/fail_env.h"
#include "tests/transport/conformance/endpoint_set.h"
#include "tests/transport/conformance/soak_access.h"

enum {
    EDGES_PER_ENTRY = 2,
    MESSAGES_PER_ROUND = 40,
    ACCESSES_PER_ROUND = 3,
    LARGE = 150000,
    LIVES_TO_JUDGE = 8,
    DESCRIPTORS_KEPT = 24 /* a library may keep descriptors of its first open */
};
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

struct edge {
    int slots[2];
    uint32_t ids[2];
    struct weft_peer *peers[2]; /* the peer, as each side sees it */
    int work;                   /* in flight */
    bool cut;
};

enum work_state { SENDING = 1, OWED, POSTED, CANCELLED_ONCE };

struct work { /* one side of one message */
    struct weft_list link;
    struct op op;
    enum work_state state;
    int slot;            /* where it runs */
    uint32_t id;         /* of this member; of the peer */
    uint32_t other_id;
    uint64_t tag, born_ns, born_round;
    uint32_t bytes, seed;
    unsigned char *buffer; /* of malloc */
};

static struct soak {
    struct endpoint_set endpoint_set;
    struct soak_accesses accesses;
    struct fail_env memory; /* counts live allocations; never fails */
    struct edge *edges;
    int edge_count;
    struct weft_list works, quarantine; /* completed ones wait in quarantine, to detect a second completion */
    int quarantined;
    struct {
        uint32_t at, about;
    } failures[4096]; /* peer_failed: at which member, about which */
    int failure_count;
    uint64_t random, next_tag;
    uint64_t lives, messages, cancels, cuts, kills, leaves, failed_operations;
} soak;

static uint64_t random_below(uint64_t limit)
{
    uint64_t x = soak.random += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) % limit;
}

static void on_failed(struct set_member *set_member, uint32_t peer_id)
{
    if (soak.failure_count == (int)(sizeof soak.failures / sizeof *soak.failures))
        fail_msg("more deaths at once than there are residents");
    soak.failures[soak.failure_count].at = set_member->id;
    soak.failures[soak.failure_count++].about = peer_id;
}

/* ---- members and edges ---- */

/* Also in the past: two members that lost each other do not connect again. */
static bool connect_pair(const struct set_member *a, const struct set_member *b)
{
    return weft_transport_peer(a->transport, b->id) || weft_transport_peer(b->transport, a->id);
}

static void add_edge(int a)
{
    int b = (int)random_below((uint64_t)soak.endpoint_set.count);
    const struct set_member *members = soak.endpoint_set.members;
    if (a == b || !members[a].transport || !members[b].transport || connect_pair(&members[a], &members[b]))
        return;
    if (soak.edge_count >= soak.endpoint_set.count * EDGES_PER_ENTRY) return;
    struct edge *edge = &soak.edges[soak.edge_count++];
    *edge = (struct edge){.slots = {a, b},
                          .ids = {soak.endpoint_set.members[a].id, soak.endpoint_set.members[b].id}};
    endpoint_set_connect(&soak.endpoint_set, a, b, &edge->peers[0], &edge->peers[1]);
}

static void move_in(int slot)
{
    endpoint_set_enter(&soak.endpoint_set, slot);
    soak.lives++;
    for (int i = 0; i < EDGES_PER_ENTRY; i++) add_edge(slot);
}

/* Informs both sides, as a coordinator would; a repeated report has no effect. */
static void end_edge(int index)
{
    struct edge edge = soak.edges[index];
    soak.edges[index] = soak.edges[--soak.edge_count];
    for (int side = 0; side < 2; side++) {
        struct set_member *set_member = &soak.endpoint_set.members[edge.slots[side]];
        if (set_member->transport && set_member->id == edge.ids[side])
            weft_transport_fail_peer(set_member->transport, edge.ids[1 - side], WEFT_ERR_PEER_LOST,
                                     "ended by the soak test");
    }
}

static void end_edges_of(int slot)
{
    for (int i = soak.edge_count - 1; i >= 0; i--)
        if (soak.edges[i].slots[0] == slot || soak.edges[i].slots[1] == slot) end_edge(i);
}

static void receive_notifications(void)
{
    for (int n = 0; n < soak.failure_count; n++)
        for (int i = soak.edge_count - 1; i >= 0; i--) {
            const uint32_t *ids = soak.edges[i].ids;
            if ((ids[0] == soak.failures[n].at && ids[1] == soak.failures[n].about) ||
                (ids[1] == soak.failures[n].at && ids[0] == soak.failures[n].about))
                end_edge(i);
        }
    soak.failure_count = 0;
}

/* ---- messages ---- */

static struct work *work_make(enum work_state state, int slot, uint32_t other_id, uint64_t tag,
                              uint32_t bytes)
{
    struct work *work = calloc(1, sizeof *work);
    work->state = state;
    work->slot = slot;
    work->id = soak.endpoint_set.members[slot].id;
    work->other_id = other_id;
    work->tag = tag;
    work->seed = (uint32_t)tag;
    work->bytes = bytes;
    work->born_ns = net_now_ns();
    work->born_round = soak.accesses.rounds;
    work->buffer = malloc(bytes + 1);
    weft_list_append(&soak.works, &work->link);
    return work;
}

static void work_retire(struct work *work)
{
    weft_list_remove(&work->link);
    free(work->buffer);
    work->buffer = NULL;
    weft_list_append(&soak.quarantine, &work->link);
    if (++soak.quarantined <= 5000) return;
    struct work *oldest = weft_list_first(&soak.quarantine, struct work, link);
    if (oldest->op.fired > 1) fail_msg("an operation completed %d times", oldest->op.fired);
    weft_list_remove(&oldest->link);
    free(oldest);
    soak.quarantined--;
}

/* False: the peer is or will be lost: its receive is not required. */
static bool post(struct work *work)
{
    struct set_member *set_member = &soak.endpoint_set.members[work->slot];
    if (!set_member->transport || set_member->id != work->id) return false;
    work->buffer[work->bytes] = 0xA5;
    return op_recv(&work->op, set_member->transport, work->other_id, TAG(work->tag), work->buffer,
                   work->bytes) == WEFT_IN_PROGRESS;
}

static void start_message(void)
{
    if (soak.edge_count == 0) return;
    struct edge *edge = &soak.edges[random_below((uint64_t)soak.edge_count)];
    int from = (int)random_below(2);
    uint64_t kind = random_below(20), tag = soak.next_tag++ & 0xffffffffu;
    uint32_t bytes = kind < 2    ? 0
                     : kind < 14 ? (uint32_t)random_below(3000)
                     : kind < 18 ? (uint32_t)random_below(20000)
                                 : (uint32_t)random_below(LARGE);
    struct work *sender = work_make(SENDING, edge->slots[from], edge->ids[1 - from], tag, bytes);
    fill(sender->buffer, bytes, sender->seed);
    if (op_send(&sender->op, edge->peers[from], TAG(tag), NULL, sender->buffer, bytes) != WEFT_IN_PROGRESS) {
        work_retire(sender); /* AGAIN, or lost meanwhile */
        return;
    }
    struct work *receiver = work_make(OWED, edge->slots[1 - from], edge->ids[from], tag, bytes);
    soak.messages++;
    uint64_t when = random_below(4);
    if (when == 0) return; /* later */
    if (!post(receiver)) {
        work_retire(receiver);
        return;
    }
    receiver->state = POSTED;
    if (when > 1) return;
    receiver->state = CANCELLED_ONCE; /* posted again after the cancellation */
    weft_transport_cancel(soak.endpoint_set.members[receiver->slot].transport, &receiver->op.receive);
    soak.cancels++;
}

static void check_received(struct work *work)
{
    if (work->op.status == WEFT_OK) {
        assert_int_equal(work->op.receive.payload_bytes, work->bytes);
        assert_true(filled(work->buffer, work->bytes, work->seed));
    }
    if (work->bytes > 0) assert_int_equal(work->buffer[work->bytes], 0xA5);
}

static void look_at(struct work *work, uint64_t now_ns)
{
    if (work->state == OWED) {
        if (random_below(8) > 0) return;
        if (post(work)) work->state = POSTED;
        else work_retire(work);
        return;
    }
    if (!work->op.fired) {
        if (now_ns - work->born_ns > SOAK_STUCK_NS &&
            soak.accesses.rounds - work->born_round > SOAK_STUCK_ROUNDS)
            fail_msg("%s of %u bytes at endpoint %u with %u has not ended for %.0f s and %llu rounds",
                     work->state == SENDING ? "a send" : "a receive", work->bytes, work->id, work->other_id,
                     (double)(now_ns - work->born_ns) / 1e9,
                     (unsigned long long)(soak.accesses.rounds - work->born_round));
        return;
    }
    assert_int_equal(work->op.fired, 1);
    if (work->state == CANCELLED_ONCE && work->op.status == WEFT_ERR_CANCELLED) {
        if (post(work)) work->state = POSTED;
        else work_retire(work);
        return;
    }
    if (work->state != SENDING) check_received(work);
    if (work->op.status != WEFT_OK) soak.failed_operations++;
    work_retire(work);
}

static void look_at_all(void)
{
    struct weft_list *node, *spare;
    uint64_t now_ns = net_now_ns();
    weft_list_foreach(node, spare, &soak.works) look_at(weft_container_of(node, struct work, link), now_ns);
}

/* A member has ended: all its operations must be complete. */
static void expect_nothing_of(uint32_t id)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &soak.works) {
        struct work *work = weft_container_of(node, struct work, link);
        if (work->id == id && work->state != OWED && work->op.fired != 1)
            fail_msg("endpoint %u was freed with a %s that completed %d times", id,
                     work->state == SENDING ? "send" : "receive", work->op.fired);
    }
}

/* ---- faults ---- */

static void replace(int slot)
{
    uint32_t id = soak.endpoint_set.members[slot].id;
    endpoint_set_leave(&soak.endpoint_set, slot);
    expect_nothing_of(id);
    soak_accesses_check(&soak.accesses, id);
    end_edges_of(slot);
    move_in(slot);
}

static void do_fault(void)
{
    int slot = (int)random_below((uint64_t)soak.endpoint_set.count);
    struct set_member *set_member = &soak.endpoint_set.members[slot];
    switch (random_below(3)) {
    case 0: /* silent at once; the others are informed; then its process ends */
        assert_int_equal(weft_transport_fault_kill(set_member->transport), WEFT_OK);
        for (int i = 0; i < 3; i++) endpoint_set_pump(&soak.endpoint_set);
        end_edges_of(slot);
        replace(slot);
        soak.kills++;
        break;
    case 1: /* in order, with work in flight */
        replace(slot);
        soak.leaves++;
        break;
    default:
        if (soak.edge_count == 0) return;
        struct edge *edge = &soak.edges[random_below((uint64_t)soak.edge_count)];
        assert_int_equal(
            weft_transport_fault_cut(soak.endpoint_set.members[edge->slots[0]].transport, edge->ids[1]),
            WEFT_OK);
        edge->cut = true;
        soak.cuts++;
    }
    /* a deadline detects the cut some rounds later */
    for (int i = soak.edge_count - 1; i >= 0; i--)
        if (soak.edges[i].cut && random_below(4) == 0) end_edge(i);
}

/* ---- memory ---- */

struct memory_use {
    double allocations, pages, descriptors; /* means */
    double ours, heap, kept; /* bytes: of the endpoints' env, of all mallocs, free in the heap */
    uint64_t lives, accesses;               /* so far */
    int samples;
};

static void sample_memory(struct memory_use *use)
{
    unsigned long size, set_member = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%lu %lu", &size, &set_member) != 2) set_member = 0;
        fclose(file);
    }
    const struct mallinfo2 heap = mallinfo2();
    use->samples++;
    use->ours += ((double)soak.memory.live_bytes - use->ours) / use->samples;
    use->heap += ((double)(heap.uordblks + heap.hblkhd) - use->heap) / use->samples;
    use->kept += ((double)heap.fordblks - use->kept) / use->samples;
    use->allocations += ((double)soak.memory.live - use->allocations) / use->samples;
    use->pages += ((double)set_member - use->pages) / use->samples;
    use->descriptors += (endpoint_set_descriptors() - use->descriptors) / use->samples;
    use->lives = soak.lives;
    use->accesses = soak.accesses.started;
}

static void print_memory(const struct memory_use *uses)
{
    for (int i = 0; i < 4; i++)
        printf("  quarter %d: %.0f allocations alive (%.1f MiB), %.1f MiB resident (all mallocs %.1f, free "
               "in the heap %.1f), %.0f descriptors\n",
               i + 1, uses[i].allocations, uses[i].ours / 1048576, uses[i].pages * 4096 / 1048576,
               uses[i].heap / 1048576, uses[i].kept / 1048576, uses[i].descriptors);
}

/* a sanitizer delays the reuse of freed memory */
static const bool pages_tell_nothing = WEFT_THREAD_SANITIZER || WEFT_ADDRESS_SANITIZER;

/* The first quarter fills the tables; from the second on the means are constant. */
static void check_memory(const struct memory_use *uses, bool is_sim)
{
    double records =
        is_sim ? (double)(uses[3].lives - uses[1].lives) * 1.5 + (double)(uses[3].accesses - uses[1].accesses)
               : 0;
    assert_true(uses[3].allocations <= uses[1].allocations * 1.15 + 500 + records);
    assert_true(pages_tell_nothing || uses[3].pages <= uses[1].pages * 1.15 + 2048);
    assert_true(uses[3].descriptors <= uses[1].descriptors * 1.1 + 100);
}

/* ---- the run ---- */

static const struct flavour *chosen;
static int endpoints = 1000;
static double seconds = 20;
static uint64_t seed = 1;

static void run_until(uint64_t end_ns, struct memory_use *use)
{
    for (uint64_t round = 0; net_now_ns() < end_ns; round++) {
        for (int i = 0; i < MESSAGES_PER_ROUND; i++) start_message();
        for (int i = 0; i < ACCESSES_PER_ROUND && soak.edge_count > 0; i++) {
            const struct edge *edge = &soak.edges[random_below((uint64_t)soak.edge_count)];
            int user = (int)random_below(2);
            soak_access_start(&soak.accesses, edge->slots[1 - user], edge->slots[user], edge->peers[user]);
        }
        for (int i = 0; i <= soak.endpoint_set.count / 500; i++) do_fault();
        for (int i = 0; i < 2; i++) add_edge((int)random_below((uint64_t)soak.endpoint_set.count));
        endpoint_set_pump(&soak.endpoint_set);
        receive_notifications();
        look_at_all();
        soak_accesses_progress(&soak.accesses);
        if (round % 16 == 0) sample_memory(use);
    }
}

static void test_soak(void **state)
{
    char backend[64];
    struct memory_use uses[4] = {{0}};
    int descriptors = endpoint_set_descriptors();
    soak.random = seed;
    fail_env_init(&soak.memory, 0);
    soak.memory.env.log = weft_env_system()->log;
    weft_list_init(&soak.works);
    weft_list_init(&soak.quarantine);
    endpoint_set_init(&soak.endpoint_set, chosen, endpoints, &soak.memory.env);
    snprintf(backend, sizeof backend, "fault:%s", chosen->backend);
    soak.endpoint_set.backend = backend;
    soak.endpoint_set.peer_failed = on_failed;
    soak_accesses_init(&soak.accesses, &soak.endpoint_set, random_below);
    soak.edges = calloc((size_t)endpoints * EDGES_PER_ENTRY, sizeof *soak.edges);
    for (int i = 0; i < endpoints; i++) move_in(i);
    uint64_t begin_ns = net_now_ns(), quarter_ns = (uint64_t)(seconds * 1e9 / 4);
    for (int i = 0; i < 4; i++) run_until(begin_ns + (uint64_t)(i + 1) * quarter_ns, &uses[i]);
    printf("%s: %.0f s, seed %llu: %llu lives of %d residents, %llu messages, %llu puts (%llu cancelled by a "
           "closing window), %llu cancels, "
           "%llu kills, %llu leaves, %llu cuts, %llu operations ended by a fault\n",
           backend, seconds, (unsigned long long)seed, (unsigned long long)soak.lives, endpoints,
           (unsigned long long)soak.messages, (unsigned long long)soak.accesses.started,
           (unsigned long long)soak.accesses.cancelled, (unsigned long long)soak.cancels,
           (unsigned long long)soak.kills, (unsigned long long)soak.leaves, (unsigned long long)soak.cuts,
           (unsigned long long)soak.failed_operations);
    print_memory(uses);
    endpoint_set_empty(&soak.endpoint_set);
    look_at_all();
    look_at_all();
    soak_accesses_fini(&soak.accesses);
    endpoint_set_fini(&soak.endpoint_set);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &soak.works) {
        struct work *work = weft_container_of(node, struct work, link);
        if (work->state != OWED) fail_msg("an operation was left behind by endpoint %u", work->id);
        work_retire(work);
    }
    weft_list_foreach(node, spare, &soak.quarantine) {
        struct work *work = weft_container_of(node, struct work, link);
        assert_true(work->op.fired <= 1);
        free(work);
    }
    free(soak.edges);
    assert_int_equal(soak.memory.live, 0);
    assert_true(endpoint_set_descriptors() <= descriptors + DESCRIPTORS_KEPT);
    if (soak.lives < (uint64_t)endpoints * LIVES_TO_JUDGE) {
        printf("  too short to check the memory of %d residents: %d lives of each are wanted\n", endpoints,
               LIVES_TO_JUDGE);
        return;
    }
    check_memory(uses, net_is_sim(chosen));
}

int main(int argc, char **argv)
{
    const char *name = "sim";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--flavour") == 0) name = argv[i + 1];
        else if (strcmp(argv[i], "--endpoints") == 0) endpoints = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0) seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--minutes") == 0) seconds = atof(argv[i + 1]) * 60;
        else if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 10);
        else endpoints = 0;
    }
    chosen = flavour_find(name);
    if (!chosen || endpoints < 3 || seconds <= 0) {
        fprintf(
            stderr,
            "usage: soak [--flavour NAME] [--endpoints N] [--seconds S | --minutes M] [--seed X]\nflavours:");
        flavour_print_names();
        return 2;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    return cmocka_run_group_tests_name("soak", tests, NULL, NULL);
}
