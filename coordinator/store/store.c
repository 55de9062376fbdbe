/* store.c - calls of a store: checks, changes, leases that end; and the engine "memory". */
#include <string.h>

#include "coordinator/store/state.h"

enum weft_status store_create(struct weft_env *env, const struct store_engine *engine, void *context,
                              struct weft_store **out)
{
    struct weft_store *store = weft_alloc_zero(env, sizeof *store);
    if (!store) return WEFT_ERR_NO_MEMORY;
    store->state.env = env;
    store->engine = engine;
    store->context = context;
    weft_list_init(&store->watches);
    *out = store;
    return WEFT_OK;
}

void weft_store_close(struct weft_store *store)
{
    if (!store) return;
    WEFT_ASSERT(weft_list_empty(&store->watches));
    store->engine->close(store);
    store_state_free(&store->state);
    weft_free_bytes(store->state.env, store);
}

/* ---- the engine "memory" ---- */

static enum weft_status memory_begin(struct weft_store *store, struct weft_error *error)
{
    return WEFT_OK;
}
static void memory_end(struct weft_store *store) {}
static enum weft_status memory_commit(struct weft_store *store, const struct store_change *changes,
                                      size_t count, uint64_t revision)
{
    return WEFT_OK;
}

static const struct store_engine memory = {
    .begin = memory_begin, .end = memory_end, .commit = memory_commit, .close = memory_end};

enum weft_status weft_store_open_memory(struct weft_env *env, struct weft_store **out)
{
    return store_create(env, &memory, NULL, out);
}

/* ---- calls ---- */

static enum weft_status change(struct weft_store *store, struct store_change *changes, size_t count,
                               uint64_t revision)
{
    WEFT_TRY(store_state_prepare(&store->state, changes, count));
    const enum weft_status status = store->engine->commit(store, changes, count, revision);
    if (status < 0) store_state_unprepare(&store->state, changes, count);
    else store_state_apply(&store->state, changes, count, revision, &store->watches);
    return status;
}

static enum weft_status end_late_leases(struct weft_store *store)
{
    const uint64_t now_ns = weft_now_ns(store->state.env);
    for (size_t i = store->state.lease_count; i-- > 0;) {
        const struct store_lease *lease = &store->state.leases[i];
        struct store_change revoke = {.kind = STORE_REVOKE, .entry.lease = lease->id};
        if (weft_elapsed_ns(lease->seen_ns, now_ns) <= lease->ttl_ns) continue;
        WEFT_TRY(change(store, &revoke, 1, store->state.revision + 1));
    }
    return WEFT_OK;
}

static enum weft_status begin(struct weft_store *store)
{
    WEFT_TRY(store->engine->begin(store, NULL));
    const enum weft_status status = end_late_leases(store);
    if (status < 0) store->engine->end(store);
    return status;
}

enum weft_status weft_store_poll(struct weft_store *store)
{
    WEFT_TRY(begin(store));
    store->engine->end(store);
    return WEFT_OK;
}

enum weft_status weft_store_snapshot(struct weft_store *store, const char *prefix,
                                     void (*visit)(void *context, const struct weft_store_entry *entry),
                                     void *context, uint64_t *revision_out)
{
    WEFT_TRY(begin(store));
    for (size_t i = 0; i < store->state.key_count; i++)
        if (strncmp(store->state.keys[i]->entry.key, prefix, strlen(prefix)) == 0)
            visit(context, &store->state.keys[i]->entry);
    *revision_out = store->state.revision;
    store->engine->end(store);
    return WEFT_OK;
}

/* ---- transactions ---- */

static enum weft_status compare_all(const struct weft_store *store, const struct weft_store_txn *txn)
{
    for (size_t i = 0; i < txn->compare_count; i++) {
        const struct weft_store_compare *compare = &txn->compares[i];
        const struct store_key *key = store_state_find(&store->state, compare->key);
        const uint64_t revision = !key                                   ? 0
                                  : compare->target == WEFT_STORE_CREATE ? key->entry.create_revision
                                                                         : key->entry.mod_revision;
        if (revision != compare->revision) return WEFT_ERR_STALE;
    }
    return WEFT_OK;
}

static bool is_changed_before(const struct store_change *changes, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(changes[i].entry.key, key) == 0) return true;
    return false;
}

/* The changes of a transaction; only keys that exist are deleted. */
static enum weft_status list_changes(const struct weft_store *store, const struct weft_store_txn *txn,
                                     struct store_change *changes, size_t *count_out)
{
    const uint64_t revision = store->state.revision + 1;
    size_t count = 0;
    for (size_t i = 0; i < txn->put_count; i++) {
        const struct weft_store_put *put = &txn->puts[i];
        const struct store_key *old = store_state_find(&store->state, put->key);
        if (put->bytes > WEFT_STORE_VALUE_BYTES || is_changed_before(changes, count, put->key))
            return WEFT_ERR_INVALID;
        if (put->lease && !store_state_lease(&store->state, put->lease)) return WEFT_ERR_NOT_FOUND;
        changes[count++] = (struct store_change){.kind = STORE_PUT,
                                                 .entry = {put->key, put->value, put->bytes,
                                                           old ? old->entry.create_revision : revision,
                                                           revision, put->lease}};
    }
    for (size_t i = 0; i < txn->delete_count; i++) {
        if (is_changed_before(changes, count, txn->deletes[i])) return WEFT_ERR_INVALID;
        if (store_state_find(&store->state, txn->deletes[i]))
            changes[count++] = (struct store_change){.kind = STORE_DELETE, .entry.key = txn->deletes[i]};
    }
    *count_out = count;
    return store_record_bytes(changes, count) > 0 ? WEFT_OK : WEFT_ERR_INVALID;
}

static bool is_valid(const struct weft_store_txn *txn)
{
    bool valid = txn->put_count + txn->delete_count <= WEFT_STORE_TXN_CHANGES;
    for (size_t i = 0; valid && i < txn->compare_count; i++) valid = store_key_is_valid(txn->compares[i].key);
    for (size_t i = 0; valid && i < txn->put_count; i++) valid = store_key_is_valid(txn->puts[i].key);
    for (size_t i = 0; valid && i < txn->delete_count; i++) valid = store_key_is_valid(txn->deletes[i]);
    return valid;
}

static enum weft_status run_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                struct store_change *changes)
{
    size_t count;
    WEFT_TRY(compare_all(store, txn));
    WEFT_TRY(list_changes(store, txn, changes, &count));
    return count > 0 ? change(store, changes, count, store->state.revision + 1) : WEFT_OK;
}

enum weft_status weft_store_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                uint64_t *revision_out)
{
    struct store_change *changes;
    if (!is_valid(txn)) return WEFT_ERR_INVALID;
    changes = weft_alloc_array(store->state.env, WEFT_STORE_TXN_CHANGES, sizeof *changes);
    if (!changes) return WEFT_ERR_NO_MEMORY;
    enum weft_status status = begin(store);
    if (status == WEFT_OK) {
        status = run_txn(store, txn, changes);
        if (status == WEFT_OK && revision_out) *revision_out = store->state.revision;
        store->engine->end(store);
    }
    weft_free_bytes(store->state.env, changes);
    return status;
}

/* ---- leases ---- */

enum weft_status weft_store_lease(struct weft_store *store, uint64_t ttl_ns, uint64_t *lease_out)
{
    if (ttl_ns == 0) return WEFT_ERR_INVALID;
    WEFT_TRY(begin(store));
    const uint64_t id = store->state.revision + 1;
    struct store_change lease = {.kind = STORE_LEASE, .entry.lease = id, .ttl_ns = ttl_ns};
    const enum weft_status status = change(store, &lease, 1, id);
    if (status == WEFT_OK) *lease_out = id;
    store->engine->end(store);
    return status;
}

static enum weft_status change_lease(struct weft_store *store, enum store_change_kind kind, uint64_t id)
{
    WEFT_TRY(begin(store));
    struct store_change lease = {.kind = kind, .entry.lease = id};
    const uint64_t revision = store->state.revision + (kind == STORE_REVOKE);
    const enum weft_status status =
        store_state_lease(&store->state, id) ? change(store, &lease, 1, revision) : WEFT_ERR_NOT_FOUND;
    store->engine->end(store);
    return status;
}

enum weft_status weft_store_keepalive(struct weft_store *store, uint64_t lease)
{
    return change_lease(store, STORE_BEAT, lease);
}

enum weft_status weft_store_revoke(struct weft_store *store, uint64_t lease)
{
    return change_lease(store, STORE_REVOKE, lease);
}

/* ---- watches ---- */

enum weft_status weft_store_watch(struct weft_store *store, struct weft_store_watch *watch, uint64_t from)
{
    if (from != store->state.revision + 1) return WEFT_ERR_STALE;
    weft_list_append(&store->watches, &watch->link);
    return WEFT_OK;
}

void weft_store_unwatch(struct weft_store_watch *watch)
{
    weft_list_remove(&watch->link);
}
