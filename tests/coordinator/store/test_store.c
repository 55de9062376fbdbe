/* test_store.c - stores of both engines: transactions, leases, watches; and the file's engine when its
 * process or host stops at any write, sync or rename, and when several processes share it. */
#include "tests/lib/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "coordinator/coordinator.h"
#include "coordinator/store/file.h"
#include "tests/coordinator/store/memory_disk.h"
#include "tests/lib/fail_env.h"
#include "tests/lib/temp_dir.h"

static uint64_t now_ns = WEFT_SECONDS(1000);
static uint64_t manual_now(struct weft_env *env)
{
    return now_ns;
}
static struct weft_env *manual_env(void)
{
    static struct weft_env env;
    env = *weft_env_system();
    env.now_ns = manual_now;
    return &env;
}

/* ---- helpers ---- */

static enum weft_status put_one(struct weft_store *store, const char *key, const char *value, uint64_t lease)
{
    const struct weft_store_put put = {key, value, strlen(value), lease};
    const struct weft_store_txn txn = {.puts = &put, .put_count = 1};
    return weft_store_txn(store, &txn, NULL);
}

static enum weft_status delete_one(struct weft_store *store, const char *key)
{
    const struct weft_store_txn txn = {.deletes = &key, .delete_count = 1};
    return weft_store_txn(store, &txn, NULL);
}

struct text {
    char data[1 << 16];
    size_t bytes;
};

/* "key=xxxxxxxxxxxxxxxx c1 m2 l0": hash of the value, revisions, lease. */
static void add_entry(void *context, const struct weft_store_entry *entry)
{
    struct text *text = context;
    text->bytes += (size_t)snprintf(
        text->data + text->bytes, sizeof text->data - text->bytes, "%s=%016llx c%llu m%llu l%llu\n",
        entry->key, (unsigned long long)weft_bytes_hash(entry->value, entry->bytes),
        (unsigned long long)entry->create_revision, (unsigned long long)entry->mod_revision,
        (unsigned long long)entry->lease);
}

static void dump(struct weft_store *store, struct text *out)
{
    uint64_t revision;
    out->bytes = 0;
    assert_int_equal(weft_store_snapshot(store, "", add_entry, out, &revision), WEFT_OK);
    out->bytes += (size_t)snprintf(out->data + out->bytes, sizeof out->data - out->bytes, "revision %llu\n",
                                   (unsigned long long)revision);
}

static void count_entry(void *context, const struct weft_store_entry *entry)
{
    ++*(size_t *)context;
}
static size_t count_keys(struct weft_store *store, const char *prefix)
{
    size_t count = 0;
    uint64_t revision;
    assert_int_equal(weft_store_snapshot(store, prefix, count_entry, &count, &revision), WEFT_OK);
    return count;
}

static void for_both_engines(void (*check)(struct weft_store *store))
{
    struct weft_store *store;
    struct weft_error error = {0};
    char *folder = temp_dir_make(), path[256];
    assert_int_equal(weft_store_open_memory(manual_env(), &store), WEFT_OK);
    check(store);
    weft_store_close(store);
    snprintf(path, sizeof path, "%s/store", folder);
    assert_int_equal(weft_store_open_file(manual_env(), path, &store, &error), WEFT_OK);
    check(store);
    weft_store_close(store);
    temp_dir_remove(folder);
}

/* ---- both engines ---- */

static void check_transactions(struct weft_store *store)
{
    struct weft_store_put puts[] = {{"a/1", "x", 1, 0}, {"a/2", "", 0, 0}};
    struct weft_store_compare compare = {WEFT_STORE_CREATE, "a/1", 0};
    struct weft_store_txn txn = {.compares = &compare, .compare_count = 1, .puts = puts, .put_count = 2};
    uint64_t revision = 0;
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_OK);
    assert_int_equal(revision, 1);
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_ERR_STALE);
    assert_int_equal(put_one(store, "a/1", "y", 0), WEFT_OK); /* revision 2 */
    compare = (struct weft_store_compare){WEFT_STORE_MOD, "a/1", 1};
    puts[0].value = "z";
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_ERR_STALE);
    compare.revision = 2;
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_OK);
    compare = (struct weft_store_compare){WEFT_STORE_CREATE, "a/1", 1};
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_OK);
    assert_int_equal(put_one(store, "b", "1", 0), WEFT_OK);
    assert_int_equal(count_keys(store, "a/"), 2);
    assert_int_equal(delete_one(store, "a/1"), WEFT_OK);
    assert_int_equal(delete_one(store, "none"), WEFT_OK);
    assert_int_equal(count_keys(store, "a/"), 1);
    puts[1].key = "a/1"; /* changed twice: nothing is done */
    txn.compare_count = 0;
    assert_int_equal(weft_store_txn(store, &txn, &revision), WEFT_ERR_INVALID);
    assert_int_equal(count_keys(store, ""), 2);
    assert_int_equal(put_one(store, "", "1", 0), WEFT_ERR_INVALID);
    assert_int_equal(put_one(store, "a\n", "1", 0), WEFT_ERR_INVALID);
    assert_int_equal(put_one(store, "a", "1", 99), WEFT_ERR_NOT_FOUND); /* no such lease */
}
static void transactions(void **state)
{
    for_both_engines(check_transactions);
}

static void check_leases(struct weft_store *store)
{
    uint64_t lease, other;
    assert_int_equal(weft_store_lease(store, WEFT_SECONDS(2), &lease), WEFT_OK);
    assert_int_equal(weft_store_lease(store, WEFT_SECONDS(9), &other), WEFT_OK);
    assert_true(lease != other);
    assert_int_equal(put_one(store, "reign", "me", lease), WEFT_OK);
    assert_int_equal(put_one(store, "other", "me", other), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        now_ns += WEFT_SECONDS(2);
        assert_int_equal(weft_store_keepalive(store, lease), WEFT_OK);
    }
    assert_int_equal(count_keys(store, "reign"), 1);
    now_ns += WEFT_SECONDS(2) + 1;
    assert_int_equal(weft_store_keepalive(store, lease), WEFT_ERR_NOT_FOUND);
    assert_int_equal(count_keys(store, ""), 1);
    assert_int_equal(weft_store_revoke(store, other), WEFT_OK);
    assert_int_equal(weft_store_revoke(store, other), WEFT_ERR_NOT_FOUND);
    assert_int_equal(count_keys(store, ""), 0);
}
static void leases(void **state)
{
    for_both_engines(check_leases);
}

static void note_change(void *context, const struct weft_store_entry *entry, bool is_deleted)
{
    struct text *text = context;
    text->bytes += (size_t)snprintf(text->data + text->bytes, sizeof text->data - text->bytes, "%c%s ",
                                    is_deleted ? '-' : '+', entry->key);
}

static void check_watches(struct weft_store *store)
{
    struct text text = {.bytes = 0};
    struct weft_store_watch watch = {.prefix = "a/", .changed = note_change, .context = &text};
    uint64_t lease;
    assert_int_equal(put_one(store, "a/0", "0", 0), WEFT_OK);
    assert_int_equal(weft_store_watch(store, &watch, 1), WEFT_ERR_STALE);
    assert_int_equal(weft_store_watch(store, &watch, 2), WEFT_OK);
    assert_int_equal(put_one(store, "a/1", "1", 0), WEFT_OK);
    assert_int_equal(put_one(store, "b", "1", 0), WEFT_OK);
    assert_int_equal(delete_one(store, "a/0"), WEFT_OK);
    assert_int_equal(weft_store_lease(store, WEFT_SECONDS(2), &lease), WEFT_OK);
    assert_int_equal(put_one(store, "a/2", "1", lease), WEFT_OK);
    now_ns += WEFT_SECONDS(3);
    assert_int_equal(weft_store_poll(store), WEFT_OK);
    weft_store_unwatch(&watch);
    assert_int_equal(put_one(store, "a/3", "1", 0), WEFT_OK);
    assert_string_equal(text.data, "+a/1 -a/0 +a/2 -a/2 ");
}
static void watches(void **state)
{
    for_both_engines(check_watches);
}

static enum weft_status use_without_memory(struct weft_env *env, void *context)
{
    struct weft_store *store;
    struct memory_disk *memory = context;
    memory_disk_init(memory, 1);
    enum weft_status status = store_file_open(env, &memory->disk, "x", &store, NULL);
    if (status < 0) return status;
    uint64_t lease;
    status = weft_store_lease(store, WEFT_SECONDS(1000), &lease);
    if (status == WEFT_OK) status = put_one(store, "key", "value", lease);
    if (status == WEFT_OK) status = put_one(store, "key", "other", 0);
    weft_store_close(store);
    return status;
}

static void failing_allocations(void **state)
{
    struct memory_disk *memory = malloc(sizeof *memory);
    check_failing_allocations(use_without_memory, memory);
    free(memory);
}

/* ---- stops at each operation of the disk ---- */

enum { CALLS = 60 };

/* The i-th call of a program; the same on the model. */
static enum weft_status call(struct weft_store *store, uint64_t seed, uint32_t i)
{
    static char value[6000];
    const uint64_t random = weft_bytes_hash(&(uint64_t[]){seed, i}, 16);
    char key[16], second[16];
    uint64_t lease;
    snprintf(key, sizeof key, "k/%u", (unsigned)(random % 7));
    snprintf(second, sizeof second, "m/%u", (unsigned)(random >> 8) % 5);
    memset(value, (int)(random & 0x7f), sizeof value);
    const struct weft_store_put puts[] = {{key, value, (random >> 16) % sizeof value, 0},
                                          {second, "1", 1, 0}};
    const char *const deletes[] = {second};
    const struct weft_store_compare compare = {WEFT_STORE_CREATE, key, 0};
    struct weft_store_txn txn = {.puts = puts, .put_count = 2};
    switch ((random >> 40) % 8) {
    case 0: txn.put_count = 1, txn.deletes = deletes, txn.delete_count = 1; break;
    case 1: txn.compares = &compare, txn.compare_count = 1; break;
    case 2: return weft_store_lease(store, WEFT_SECONDS(1000), &lease);
    case 3: return weft_store_keepalive(store, 1 + random % 20);
    default: break;
    }
    return weft_store_txn(store, &txn, NULL);
}

/* Runs the program until it stops; then what is on the disk is the model before or behind the open call. */
static bool stop_and_check(struct memory_disk *memory, uint64_t seed, uint64_t stop_at, uint32_t *renames_out)
{
    static struct text before, after, found;
    struct weft_store *store, *model;
    struct weft_error error = {0};
    memory_disk_init(memory, seed ^ stop_at);
    memory->stop_at = stop_at;
    assert_int_equal(weft_store_open_memory(manual_env(), &model), WEFT_OK);
    dump(model, &before);
    after = before;
    if (store_file_open(manual_env(), &memory->disk, "x", &store, NULL) == WEFT_OK) {
        for (uint32_t i = 0; i < CALLS && !memory->has_stopped; i++) {
            const enum weft_status status = call(store, seed, i), expected = call(model, seed, i);
            after = before;
            dump(model, &after);
            if (status != WEFT_ERR_IO) assert_int_equal(status, expected);
            if (status != WEFT_ERR_IO) before = after;
        }
        weft_store_close(store);
    }
    const bool has_stopped = memory->has_stopped;
    *renames_out += memory->renames;
    memory_disk_restart(memory, (seed + stop_at) % 2);
    if (store_file_open(manual_env(), &memory->disk, "x", &store, &error) != WEFT_OK)
        fail_msg("seed %d, stop %d: %s", (int)seed, (int)stop_at, error.text);
    dump(store, &found);
    if (strcmp(found.data, before.data) != 0 && strcmp(found.data, after.data) != 0)
        fail_msg("seed %d, stop %d: the store has\n%s, not\n%s, nor\n%s", (int)seed, (int)stop_at, found.data,
                 before.data, after.data);
    assert_int_equal(put_one(store, "next", "1", 0), WEFT_OK);
    weft_store_close(store);
    weft_store_close(model);
    return has_stopped;
}

static void stops_at_each_operation(void **state)
{
    struct memory_disk *memory = malloc(sizeof *memory);
    uint32_t renames = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        uint64_t stop_at = 1;
        while (stop_and_check(memory, seed, stop_at, &renames)) stop_at++;
        assert_true(stop_at > CALLS);
    }
    assert_true(renames > 0); /* the file was compacted */
    free(memory);
}

/* An operation fails, as on a full disk: the call may be done or not, later calls are not affected, and a
 * loss of power afterwards changes nothing. */
static bool fail_and_check(struct memory_disk *memory, uint64_t seed, uint64_t fails_at)
{
    static struct text before, after, found;
    struct weft_store *store, *model;
    memory_disk_init(memory, seed);
    assert_int_equal(store_file_open(manual_env(), &memory->disk, "x", &store, NULL), WEFT_OK);
    assert_int_equal(weft_store_open_memory(manual_env(), &model), WEFT_OK);
    memory->fails_at = memory->operations + fails_at;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < CALLS && status != WEFT_ERR_IO; i++) {
        dump(model, &before);
        status = call(store, seed, i);
        (void)call(model, seed, i);
    }
    dump(model, &after);
    const bool has_failed = memory->operations >= memory->fails_at;
    memory->fails_at = 0;
    uint64_t revision;
    size_t count = 0;
    /* a store that cannot take a failed record back refuses every later call */
    if (weft_store_snapshot(store, "", count_entry, &count, &revision) == WEFT_OK) {
        dump(store, &found);
        assert_true(strcmp(found.data, before.data) == 0 || strcmp(found.data, after.data) == 0);
        assert_int_equal(put_one(store, "next", "1", 0), WEFT_OK);
        dump(store, &before);
        after = before;
    }
    weft_store_close(store);
    memory_disk_restart(memory, true);
    assert_int_equal(store_file_open(manual_env(), &memory->disk, "x", &store, NULL), WEFT_OK);
    dump(store, &found);
    assert_true(strcmp(found.data, before.data) == 0 || strcmp(found.data, after.data) == 0);
    weft_store_close(store);
    weft_store_close(model);
    return has_failed;
}

static void fails_at_each_operation(void **state)
{
    struct memory_disk *memory = malloc(sizeof *memory);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        uint64_t fails_at = 1;
        while (fail_and_check(memory, seed, fails_at)) fails_at++;
        assert_true(fails_at > CALLS);
    }
    free(memory);
}

/* ---- real files, several processes ---- */

struct shared {
    char *folder, path[256];
    struct weft_store *a, *b;
};

static void shared_open(struct shared *shared)
{
    shared->folder = temp_dir_make();
    snprintf(shared->path, sizeof shared->path, "%s/store", shared->folder);
    assert_int_equal(weft_store_open_file(manual_env(), shared->path, &shared->a, NULL), WEFT_OK);
    assert_int_equal(weft_store_open_file(manual_env(), shared->path, &shared->b, NULL), WEFT_OK);
}

static void shared_close(struct shared *shared)
{
    weft_store_close(shared->a);
    weft_store_close(shared->b);
    temp_dir_remove(shared->folder);
}

static void another_process_reads(void **state)
{
    struct shared shared;
    struct text text = {.bytes = 0};
    static struct text a, b;
    struct weft_store_watch watch = {.prefix = "", .changed = note_change, .context = &text};
    shared_open(&shared);
    assert_int_equal(weft_store_watch(shared.b, &watch, 1), WEFT_OK);
    assert_int_equal(put_one(shared.a, "x", "1", 0), WEFT_OK);
    assert_int_equal(put_one(shared.a, "y", "1", 0), WEFT_OK);
    assert_int_equal(weft_store_poll(shared.b), WEFT_OK);
    assert_int_equal(delete_one(shared.a, "x"), WEFT_OK);
    static char large[60000];
    memset(large, 'v', sizeof large - 1);
    for (int i = 0; i < 5; i++) assert_int_equal(put_one(shared.a, "y", large, 0), WEFT_OK); /* compacts */
    assert_int_equal(put_one(shared.a, "z", "1", 0), WEFT_OK);
    assert_int_equal(weft_store_poll(shared.b), WEFT_OK);
    assert_string_equal(text.data, "+x +y -x +y +z ");
    dump(shared.a, &a);
    dump(shared.b, &b);
    assert_string_equal(a.data, b.data);
    weft_store_unwatch(&watch);
    shared_close(&shared);
}

static void busy(void **state)
{
    struct shared shared;
    char lock[300];
    shared_open(&shared);
    snprintf(lock, sizeof lock, "%s.lock", shared.path);
    const int fd = open(lock, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(put_one(shared.a, "x", "1", 0), WEFT_ERR_BUSY);
    close(fd);
    assert_int_equal(put_one(shared.a, "x", "1", 0), WEFT_OK);
    shared_close(&shared);
}

/* A coordinator that was stopped, and whose lease has ended, changes nothing any more. */
static void a_former_owner_is_fenced(void **state)
{
    struct shared shared;
    uint64_t mine, other, reign;
    shared_open(&shared);
    assert_int_equal(weft_store_lease(shared.a, WEFT_SECONDS(5), &mine), WEFT_OK);
    const struct weft_store_compare absent = {WEFT_STORE_CREATE, "reign", 0};
    struct weft_store_put put = {"reign", "a", 1, mine};
    struct weft_store_txn elect = {.compares = &absent, .compare_count = 1, .puts = &put, .put_count = 1};
    assert_int_equal(weft_store_txn(shared.a, &elect, &reign), WEFT_OK);
    assert_int_equal(weft_store_lease(shared.b, WEFT_SECONDS(5), &other), WEFT_OK);
    put = (struct weft_store_put){"reign", "b", 1, other};
    assert_int_equal(weft_store_txn(shared.b, &elect, NULL), WEFT_ERR_STALE); /* a lives */
    now_ns += WEFT_SECONDS(4);
    assert_int_equal(weft_store_keepalive(shared.b, other), WEFT_OK);
    now_ns += WEFT_SECONDS(2); /* b has seen no sign of a for 6 s */
    assert_int_equal(weft_store_txn(shared.b, &elect, NULL), WEFT_OK);

    const struct weft_store_compare still = {WEFT_STORE_CREATE, "reign", reign};
    const struct weft_store_put decision = {"epoch", "7", 1, 0};
    const struct weft_store_txn decide = {
        .compares = &still, .compare_count = 1, .puts = &decision, .put_count = 1};
    assert_int_equal(weft_store_txn(shared.a, &decide, NULL), WEFT_ERR_STALE);
    assert_int_equal(weft_store_keepalive(shared.a, mine), WEFT_ERR_NOT_FOUND);
    assert_int_equal(count_keys(shared.a, "epoch"), 0);
    shared_close(&shared);
}

/* A process that compacts the file again and again does not keep a dead process's lease alive. */
static void a_lease_ends_beside_compactions(void **state)
{
    struct shared shared;
    uint64_t lease;
    static char large[60000];
    memset(large, 'v', sizeof large - 1);
    shared_open(&shared);
    assert_int_equal(weft_store_lease(shared.a, WEFT_SECONDS(50), &lease), WEFT_OK);
    assert_int_equal(put_one(shared.a, "reign", "a", lease), WEFT_OK);
    for (int i = 0; i < 49; i++) {
        now_ns += WEFT_SECONDS(1);
        if (i % 8 == 0) assert_int_equal(put_one(shared.a, "large", large, 0), WEFT_OK);
        assert_int_equal(count_keys(shared.b, "reign"), 1);
    }
    now_ns += WEFT_SECONDS(2) + 1; /* b has read it one second after a has written it */
    assert_int_equal(count_keys(shared.b, "reign"), 0);
    shared_close(&shared);
}

static void set_file(struct memory_disk *memory, const uint8_t *data, size_t bytes)
{
    memory_disk_init(memory, 1);
    memcpy(memory->file->now, data, bytes);
    memory->file->now_bytes = bytes;
}

/* The revision of the store that the bytes are; UINT64_MAX: refused. */
static uint64_t open_bytes(struct memory_disk *memory, const uint8_t *data, size_t bytes)
{
    struct weft_store *store;
    uint64_t revision = UINT64_MAX;
    size_t count = 0;
    set_file(memory, data, bytes);
    if (store_file_open(manual_env(), &memory->disk, "x", &store, NULL) != WEFT_OK) return revision;
    assert_int_equal(weft_store_snapshot(store, "", count_entry, &count, &revision), WEFT_OK);
    weft_store_close(store);
    return revision;
}

/* A torn tail is cut; damage before the last record is refused and left as it is. */
static void torn_and_damaged(void **state)
{
    struct memory_disk *memory = malloc(sizeof *memory);
    struct weft_store *store;
    static uint8_t whole[4096], changed[4096];
    memory_disk_init(memory, 1);
    assert_int_equal(store_file_open(manual_env(), &memory->disk, "x", &store, NULL), WEFT_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(put_one(store, i % 2 ? "x" : "y", "value", 0), WEFT_OK);
    weft_store_close(store);
    const size_t bytes = memory->file->now_bytes, record = (bytes - 8) / 5;
    memcpy(whole, memory->file->now, bytes);
    for (size_t cut = 8; cut < bytes; cut++) {
        assert_int_equal(open_bytes(memory, whole, cut), (cut - 8) / record);
        assert_int_equal(memory->file->now_bytes, 8 + (cut - 8) / record * record);
    }
    for (size_t at = 0; at < bytes; at++) {
        memcpy(changed, whole, bytes);
        changed[at] ^= 0x10;
        const bool is_in_last = at >= bytes - record;
        assert_int_equal(open_bytes(memory, changed, bytes), is_in_last ? 4 : UINT64_MAX);
        assert_int_equal(memory->file->now_bytes, is_in_last ? bytes - record : bytes);
    }
    /* a record of another place: valid by itself, and not the next one */
    memcpy(changed, whole, bytes);
    memcpy(changed + bytes - 2 * record, whole + bytes - record, record);
    assert_int_equal(open_bytes(memory, changed, bytes - record), 3);
    free(memory);
}

/* A newer release has written it: refused as such, and left as it is. */
static void newer_format(void **state)
{
    struct memory_disk *memory = malloc(sizeof *memory);
    struct weft_store *store;
    struct weft_error error = {0};
    set_file(memory, (const uint8_t *)"WEFTSTO2 and more", 17);
    assert_int_equal(store_file_open(manual_env(), &memory->disk, "x", &store, &error), WEFT_ERR_VERSION);
    assert_string_equal(error.text, "the store x has a format of a newer release than this one, which reads "
                                    "WEFTSTO1: use a newer release of weft, or another server.store");
    assert_int_equal(memory->file->now_bytes, 17);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newer_format),
        cmocka_unit_test(transactions),
        cmocka_unit_test(leases),
        cmocka_unit_test(watches),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(stops_at_each_operation),
        cmocka_unit_test(fails_at_each_operation),
        cmocka_unit_test(another_process_reads),
        cmocka_unit_test(busy),
        cmocka_unit_test(a_former_owner_is_fenced),
        cmocka_unit_test(a_lease_ends_beside_compactions),
        cmocka_unit_test(torn_and_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
