/* state.c - keys sorted by name, leases, and how changes apply. */
#include <string.h>

#include "coordinator/store/state.h"

/* ---- keys ---- */

bool store_key_is_valid(const char *key)
{
    const size_t bytes = key ? strnlen(key, WEFT_STORE_KEY_BYTES + 1) : 0;
    return bytes > 0 && bytes <= WEFT_STORE_KEY_BYTES && weft_text_is_printable(key);
}

static size_t position_of(const struct store_state *state, const char *key)
{
    size_t low = 0, high = state->key_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(state->keys[middle]->entry.key, key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool is_at(const struct store_state *state, size_t at, const char *key)
{
    return at < state->key_count && strcmp(state->keys[at]->entry.key, key) == 0;
}

struct store_key *store_state_find(const struct store_state *state, const char *key)
{
    const size_t at = position_of(state, key);
    return is_at(state, at, key) ? state->keys[at] : NULL;
}

static void key_free(struct store_state *state, struct store_key *key)
{
    if (!key) return;
    weft_free_bytes(state->env, (void *)key->entry.key);
    weft_free_bytes(state->env, (void *)key->entry.value);
    weft_free_bytes(state->env, key);
}

static struct store_key *key_copy(struct store_state *state, const struct weft_store_entry *entry)
{
    struct store_key *key = weft_alloc_zero(state->env, sizeof *key);
    uint8_t *value = entry->bytes > 0 ? weft_alloc_bytes(state->env, entry->bytes) : NULL;
    char *name = weft_alloc_text(state->env, entry->key);
    if (key && name && (value || entry->bytes == 0)) {
        if (value) memcpy(value, entry->value, entry->bytes);
        key->entry = *entry;
        key->entry.key = name;
        key->entry.value = value;
        return key;
    }
    weft_free_bytes(state->env, name);
    weft_free_bytes(state->env, value);
    weft_free_bytes(state->env, key);
    return NULL;
}

/* ---- leases ---- */

struct store_lease *store_state_lease(const struct store_state *state, uint64_t id)
{
    for (size_t i = 0; i < state->lease_count; i++)
        if (state->leases[i].id == id) return &state->leases[i];
    return NULL;
}

/* ---- memory ---- */

/* Memory for `more` further entries of an array. */
static bool reserve(struct weft_env *env, void **array, size_t *capacity, size_t count, size_t more,
                    size_t bytes)
{
    if (count + more <= *capacity) return true;
    const size_t wanted = 2 * (count + more);
    void *larger = weft_alloc_array(env, wanted, bytes);
    if (!larger) return false;
    if (count > 0) memcpy(larger, *array, count * bytes);
    weft_free_bytes(env, *array);
    *array = larger;
    *capacity = wanted;
    return true;
}

void store_state_unprepare(struct store_state *state, struct store_change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        key_free(state, changes[i].prepared);
        changes[i].prepared = NULL;
    }
}

enum weft_status store_state_prepare(struct store_state *state, struct store_change *changes, size_t count)
{
    void *keys = state->keys, *leases = state->leases;
    bool has_memory =
        reserve(state->env, &keys, &state->key_capacity, state->key_count, count, sizeof *state->keys);
    state->keys = keys;
    has_memory &= reserve(state->env, &leases, &state->lease_capacity, state->lease_count, count,
                          sizeof *state->leases);
    state->leases = leases;
    for (size_t i = 0; i < count && has_memory; i++) {
        if (changes[i].kind != STORE_PUT) continue;
        changes[i].prepared = key_copy(state, &changes[i].entry);
        has_memory = changes[i].prepared != NULL;
    }
    if (has_memory) return WEFT_OK;
    store_state_unprepare(state, changes, count);
    return WEFT_ERR_NO_MEMORY;
}

void store_state_free(struct store_state *state)
{
    for (size_t i = 0; i < state->key_count; i++) key_free(state, state->keys[i]);
    weft_free_bytes(state->env, state->keys);
    weft_free_bytes(state->env, state->leases);
    *state = (struct store_state){.env = state->env};
}

/* ---- apply ---- */

static void notify(struct weft_list *watches, const struct weft_store_entry *entry, bool is_deleted)
{
    struct weft_list *node, *spare;
    if (!watches) return;
    weft_list_foreach (node, spare, watches) {
        struct weft_store_watch *watch = weft_container_of(node, struct weft_store_watch, link);
        if (strncmp(entry->key, watch->prefix, strlen(watch->prefix)) == 0)
            watch->changed(watch->context, entry, is_deleted);
    }
}

static void put(struct store_state *state, struct store_key *key, struct weft_list *watches)
{
    const size_t at = position_of(state, key->entry.key);
    if (is_at(state, at, key->entry.key)) {
        key_free(state, state->keys[at]);
    } else {
        memmove(state->keys + at + 1, state->keys + at, (state->key_count - at) * sizeof *state->keys);
        state->key_count++;
    }
    state->keys[at] = key;
    notify(watches, &key->entry, false);
}

static void delete_at(struct store_state *state, size_t at, struct weft_list *watches)
{
    struct store_key *key = state->keys[at];
    state->key_count--;
    memmove(state->keys + at, state->keys + at + 1, (state->key_count - at) * sizeof *state->keys);
    notify(watches, &key->entry, true);
    key_free(state, key);
}

static void revoke(struct store_state *state, uint64_t id, struct weft_list *watches)
{
    struct store_lease *lease = store_state_lease(state, id);
    for (size_t i = state->key_count; i-- > 0;)
        if (state->keys[i]->entry.lease == id) delete_at(state, i, watches);
    if (lease) *lease = state->leases[--state->lease_count];
}

static void lease_put(struct store_state *state, const struct store_change *change)
{
    struct store_lease *lease = store_state_lease(state, change->entry.lease);
    if (!lease) lease = &state->leases[state->lease_count++];
    *lease = (struct store_lease){.id = change->entry.lease,
                                  .ttl_ns = change->ttl_ns,
                                  .beats = change->beats,
                                  .seen_ns = weft_now_ns(state->env)};
}

static void beat(struct store_state *state, uint64_t id)
{
    struct store_lease *lease = store_state_lease(state, id);
    if (!lease) return;
    lease->beats++;
    lease->seen_ns = weft_now_ns(state->env);
}

void store_state_apply(struct store_state *state, struct store_change *changes, size_t count,
                       uint64_t revision, struct weft_list *watches)
{
    state->revision = revision;
    for (size_t i = 0; i < count; i++) {
        struct store_change *change = &changes[i];
        const size_t at = change->kind == STORE_DELETE ? position_of(state, change->entry.key) : 0;
        switch (change->kind) {
        case STORE_PUT:
            put(state, change->prepared, watches);
            change->prepared = NULL;
            break;
        case STORE_DELETE:
            if (is_at(state, at, change->entry.key)) delete_at(state, at, watches);
            break;
        case STORE_LEASE: lease_put(state, change); break;
        case STORE_BEAT: beat(state, change->entry.lease); break;
        case STORE_REVOKE: revoke(state, change->entry.lease, watches); break;
        }
    }
}

void store_state_replace(struct store_state *state, struct store_state *newer, struct weft_list *watches)
{
    /* what this process has seen of a lease continues to count */
    for (size_t i = 0; i < newer->lease_count; i++) {
        const struct store_lease *seen = store_state_lease(state, newer->leases[i].id);
        if (seen && seen->beats == newer->leases[i].beats) newer->leases[i].seen_ns = seen->seen_ns;
    }
    for (size_t i = 0; i < state->key_count; i++)
        if (!store_state_find(newer, state->keys[i]->entry.key))
            notify(watches, &state->keys[i]->entry, true);
    for (size_t i = 0; i < newer->key_count; i++) {
        const struct store_key *old = store_state_find(state, newer->keys[i]->entry.key);
        if (!old || old->entry.mod_revision != newer->keys[i]->entry.mod_revision)
            notify(watches, &newer->keys[i]->entry, false);
    }
    store_state_free(state);
    *state = *newer;
    *newer = (struct store_state){.env = state->env};
}
