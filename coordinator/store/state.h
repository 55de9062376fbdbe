/* state.h - content of a store and its changes. Internal to coordinator/store.
 *
 *     a call -> changes -> engine: durable -> prepared -> applied to the state -> watches
 *
 * A change holds everything that applying it needs, so that a file of changes is the store. */
#ifndef WEFT_COORDINATOR_STORE_STATE_H
#define WEFT_COORDINATOR_STORE_STATE_H

#include "coordinator/store/store.h"

struct store_key {
    struct weft_store_entry entry; /* key and value are owned */
};

struct store_lease {
    uint64_t id, ttl_ns;
    uint64_t beats;   /* keepalives so far */
    uint64_t seen_ns; /* when this process has read the newest one */
};

struct store_state {
    struct weft_env *env;
    struct store_key **keys; /* owned, sorted by key */
    size_t key_count, key_capacity;
    struct store_lease *leases; /* owned */
    size_t lease_count, lease_capacity;
    uint64_t revision;
};

enum store_change_kind {
    STORE_PUT = 1,    /* entry */
    STORE_DELETE = 2, /* entry.key */
    STORE_LEASE = 3,  /* entry.lease, ttl_ns, beats */
    STORE_BEAT = 4,   /* entry.lease */
    STORE_REVOKE = 5, /* entry.lease */
};
struct store_change {
    enum store_change_kind kind;
    struct weft_store_entry entry; /* borrowed */
    uint64_t ttl_ns, beats;
    struct store_key *prepared; /* owned until it is applied */
};

/* state.c */
void store_state_free(struct store_state *state);
struct store_key *store_state_find(const struct store_state *state, const char *key);
struct store_lease *store_state_lease(const struct store_state *state, uint64_t id);
/* Takes all memory that applying needs. WEFT_ERR_NO_MEMORY: nothing is prepared. */
enum weft_status store_state_prepare(struct store_state *state, struct store_change *changes, size_t count);
void store_state_unprepare(struct store_state *state, struct store_change *changes, size_t count);
/* Cannot fail. watches: list of struct weft_store_watch, or NULL. */
void store_state_apply(struct store_state *state, struct store_change *changes, size_t count,
                       uint64_t revision, struct weft_list *watches);
/* Replaces the state by a newer one, which is emptied: watches get the difference. */
void store_state_replace(struct store_state *state, struct store_state *newer, struct weft_list *watches);
bool store_key_is_valid(const char *key);

/* ---- engines ---- */
struct store_engine {
    /* Begins a call: the state is up to date afterwards, and no other process changes it until end. */
    enum weft_status (*begin)(struct weft_store *store, struct weft_error *error);
    void (*end)(struct weft_store *store);
    /* Makes the changes durable; they are applied afterwards. */
    enum weft_status (*commit)(struct weft_store *store, const struct store_change *changes, size_t count,
                               uint64_t revision);
    void (*close)(struct weft_store *store);
};

struct weft_store {
    struct store_state state;
    const struct store_engine *engine;
    void *context; /* of the engine; owned by it */
    struct weft_list watches;
};
enum weft_status store_create(struct weft_env *env, const struct store_engine *engine, void *context,
                              struct weft_store **out);

/* ---- record.c: changes as bytes ---- */
#define STORE_RECORD_HEAD_BYTES 16u /* length of the body, 0, hash of the body */
#define STORE_RECORD_BODY_BYTES_MAX (8u << 20)
#define STORE_RECORD_CHANGES_MAX 4096u
struct store_record {
    uint64_t revision;
    size_t change_count;
    struct store_change *changes; /* owned; keys and values point into the body and `texts` */
    char *texts;                  /* owned: keys as C strings */
};
/* Bytes of the record; 0: above a limit. */
size_t store_record_bytes(const struct store_change *changes, size_t count);
/* `out` has store_record_bytes. chain: hash of the record before; returns the hash of this one. */
uint64_t store_record_encode(const struct store_change *changes, size_t count, uint64_t revision,
                             uint64_t chain, uint8_t *out);
/* Decodes the record at `data`. WEFT_OK: *used_out and *chain (in, out) are set. WEFT_ERR_TRUNCATED,
 * WEFT_ERR_MALFORMED: there is no whole record of this chain. */
enum weft_status store_record_decode(struct weft_env *env, const uint8_t *data, size_t bytes, uint64_t *chain,
                                     struct store_record *record_out, size_t *used_out);
void store_record_free(struct weft_env *env, struct store_record *record);
/* A record that is whole begins anywhere in the bytes. */
bool store_record_is_in(const uint8_t *data, size_t bytes);

#endif
