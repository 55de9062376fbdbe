/* soak_access.c - see soak_access.h. One access: put with notification, get, close. A quarter of the
 * windows close during the put. Required: the owner reads what was put when the notification arrives, the
 * user gets back what it put, and after the close nothing writes to the memory. */
#include "tests/transport/conformance/soak_access.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = 60000, ALIVE_MAX = 200, QUARANTINE = 50 };
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, (1ull << 40) + (n))

enum stage { PUTTING = 1, GETTING, CLOSING };

struct access {
    struct weft_list link;
    enum stage stage;
    int owner, user; /* slots */
    uint32_t owner_id, user_id;
    struct weft_window *window; /* NULL: closed, or freed with its endpoint */
    struct weft_remote *remote; /* NULL: released, or freed with its endpoint */
    bool of_transport;          /* the owner's memory is from weft_memory_alloc */
    bool closed_early;
    unsigned char *memory, *source, *back;
    uint32_t bytes, seed;
    struct op put, got, notified, closing;
    bool put_asked, got_asked, notified_posted, closing_asked; /* whether each step was started */
    uint64_t tag, born_ns, born_round;
};

void soak_accesses_init(struct soak_accesses *accesses, struct endpoint_set *endpoint_set,
                        uint64_t (*random_below)(uint64_t limit))
{
    *accesses = (struct soak_accesses){.endpoint_set = endpoint_set, .random_below = random_below};
    weft_list_init(&accesses->going);
    weft_list_init(&accesses->quarantine);
}

static struct weft_transport *living(const struct soak_accesses *accesses, int slot, uint32_t id)
{
    const struct set_member *set_member = &accesses->endpoint_set->members[slot];
    return set_member->id == id ? set_member->transport : NULL;
}

static void access_free(struct access *access)
{
    if (access->of_transport) weft_memory_free(weft_env_system(), access->memory);
    else free(access->memory);
    free(access->source);
    free(access->back);
    free(access);
}

/* Handles end with their endpoints. */
static void forget_the_dead(const struct soak_accesses *accesses, struct access *access)
{
    if (!living(accesses, access->owner, access->owner_id)) access->window = NULL;
    if (!living(accesses, access->user, access->user_id)) access->remote = NULL;
}

static void close_window(struct access *access)
{
    op_init(&access->closing);
    access->closing_asked = true;
    weft_window_close(access->window, &access->closing.completion);
    access->window = NULL;
}

static bool open_and_put(struct soak_accesses *accesses, struct access *access, struct weft_peer *peer)
{
    struct weft_transport *owner = living(accesses, access->owner, access->owner_id);
    struct weft_window_options options = {sizeof options,
                                          access->memory,
                                          access->bytes,
                                          WEFT_MEMORY_HOST,
                                          WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
                                          accesses->random_below(2) ? WEFT_ANY_PEER : access->user_id};
    const void *key;
    size_t key_bytes;
    if (weft_window_open(owner, &options, &access->window, NULL) != WEFT_OK) return false;
    weft_window_key(access->window, &key, &key_bytes);
    /* lost meanwhile: the window is closed later */
    if (weft_transport_import(peer, key, key_bytes, &access->remote) != WEFT_OK) return true;
    access->notified_posted =
        op_recv(&access->notified, owner, access->user_id, TAG(access->tag), NULL, 0) == WEFT_IN_PROGRESS;
    struct weft_put put = {access->source,   access->bytes, 0, access->notified_posted,
                           TAG(access->tag), "put",         3};
    access->put_asked = op_taken(op_put(&access->put, access->remote, &put));
    if (access->put_asked && accesses->random_below(4) == 0) {
        access->closed_early = true;
        close_window(access);
    }
    return true;
}

void soak_access_start(struct soak_accesses *accesses, int owner, int user, struct weft_peer *peer)
{
    const struct set_member *members = accesses->endpoint_set->members;
    unsigned both = weft_transport_abilities(members[owner].transport) &
                    weft_transport_abilities(members[user].transport);
    if (!(both & WEFT_TRANSPORT_WINDOWS) || accesses->alive >= ALIVE_MAX) return;
    struct access *access = calloc(1, sizeof *access);
    access->stage = PUTTING;
    access->owner = owner;
    access->user = user;
    access->owner_id = members[owner].id;
    access->user_id = members[user].id;
    access->bytes = 1 + (uint32_t)accesses->random_below(BYTES_MAX);
    access->tag = accesses->next_tag++ & 0xffffffffu;
    access->seed = (uint32_t)access->tag;
    access->born_ns = net_now_ns();
    access->born_round = accesses->rounds;
    access->of_transport = accesses->random_below(2);
    void *memory = NULL;
    if (!access->of_transport) memory = calloc(1, access->bytes);
    else assert_int_equal(weft_memory_alloc(weft_env_system(), access->bytes, &memory, NULL), WEFT_OK);
    access->memory = memory;
    access->source = malloc(access->bytes);
    access->back = malloc(access->bytes);
    fill(access->source, access->bytes, access->seed);
    if (!open_and_put(accesses, access, peer)) {
        access_free(access);
        return;
    }
    accesses->started++;
    accesses->alive++;
    weft_list_append(&accesses->going, &access->link);
}

/* The put is complete: gets it back, unless something failed. */
static void after_put(struct soak_accesses *accesses, struct access *access)
{
    access->stage = CLOSING;
    if (!access->put_asked || access->put.status != WEFT_OK || access->closed_early || !access->remote)
        return;
    access->got_asked = op_taken(op_get(&access->got, access->remote, 0, access->back, access->bytes));
    if (access->got_asked) access->stage = GETTING;
}

static void check_notification(struct access *access)
{
    if (access->notified_posted && access->notified.fired && access->notified.status == WEFT_OK &&
        !access->closing_asked && access->window && !filled(access->memory, access->bytes, access->seed))
        fail_msg("endpoint %u was notified of %u bytes that are not there", access->owner_id, access->bytes);
}

/* True: nothing of it is in flight. */
static bool wind_up(struct soak_accesses *accesses, struct access *access)
{
    struct weft_transport *owner = living(accesses, access->owner, access->owner_id);
    if (access->remote) {
        assert_int_equal(weft_remote_release(access->remote), WEFT_OK);
        access->remote = NULL;
    }
    /* then the notification arrives */
    bool is_notified = access->put_asked && access->put.status == WEFT_OK && !access->closed_early;
    if (access->notified_posted && !access->notified.fired) {
        if (!is_notified && owner) weft_transport_cancel(owner, &access->notified.receive);
        return false;
    }
    check_notification(access);
    if (access->window) close_window(access);
    return !access->closing_asked || access->closing.fired;
}

static void retire(struct soak_accesses *accesses, struct access *access)
{
    if (access->put_asked && access->put.status == WEFT_ERR_CANCELLED) accesses->cancelled++;
    weft_list_remove(&access->link);
    memset(access->memory, 0xEE, access->bytes);
    weft_list_append(&accesses->quarantine, &access->link);
    accesses->alive--;
    accesses->quarantined++;
}

static void release_oldest(struct soak_accesses *accesses)
{
    struct access *access = weft_list_first(&accesses->quarantine, struct access, link);
    for (uint32_t i = 0; i < access->bytes; i++)
        if (access->memory[i] != 0xEE)
            fail_msg("byte %u of a window of endpoint %u was written after it had closed", i,
                     access->owner_id);
    assert_true(access->put.fired <= 1 && access->got.fired <= 1 && access->notified.fired <= 1 &&
                access->closing.fired <= 1);
    weft_list_remove(&access->link);
    access_free(access);
    accesses->quarantined--;
}

static void look_at(struct soak_accesses *accesses, struct access *access, uint64_t now_ns)
{
    forget_the_dead(accesses, access);
    check_notification(access);
    if (access->stage == PUTTING && (!access->put_asked || access->put.fired)) after_put(accesses, access);
    if (access->stage == GETTING && access->got.fired) {
        if (access->got.status == WEFT_OK) assert_memory_equal(access->back, access->source, access->bytes);
        access->stage = CLOSING;
    }
    if (access->stage == CLOSING && wind_up(accesses, access)) {
        retire(accesses, access);
        return;
    }
    if (now_ns - access->born_ns > SOAK_STUCK_NS && accesses->rounds - access->born_round > SOAK_STUCK_ROUNDS)
        fail_msg("%s of %u bytes of endpoint %u at %u has not ended",
                 access->stage == PUTTING   ? "a put"
                 : access->stage == GETTING ? "a get"
                                            : "the closing of a window",
                 access->bytes, access->user_id, access->owner_id);
}

void soak_accesses_progress(struct soak_accesses *accesses)
{
    struct weft_list *node, *spare;
    uint64_t now_ns = net_now_ns();
    accesses->rounds++;
    weft_list_foreach (node, spare, &accesses->going)
        look_at(accesses, weft_container_of(node, struct access, link), now_ns);
    while (accesses->quarantined > QUARANTINE) release_oldest(accesses);
}

static void check_op(bool asked, const struct op *op, const char *what, uint32_t id)
{
    if (asked && op->fired != 1)
        fail_msg("endpoint %u was freed with a %s that completed %d times", id, what, op->fired);
}

void soak_accesses_check(struct soak_accesses *accesses, uint32_t id)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &accesses->going) {
        struct access *access = weft_container_of(node, struct access, link);
        if (access->user_id == id) {
            check_op(access->put_asked, &access->put, "put", id);
            check_op(access->got_asked, &access->got, "get", id);
        }
        if (access->owner_id == id) {
            check_op(access->notified_posted, &access->notified, "notification's receive", id);
            check_op(access->closing_asked, &access->closing, "closing of a window", id);
        }
    }
}

void soak_accesses_fini(struct soak_accesses *accesses)
{
    for (int i = 0; i < 3; i++) soak_accesses_progress(accesses); /* no endpoint lives: every step passes */
    assert_int_equal(accesses->alive, 0);
    while (accesses->quarantined > 0) release_oldest(accesses);
}
