/* store.h - keys and values that outlive a coordinator, with revisions, leases and watches as etcd has them.
 *
 *   memory   one process, gone with it
 *   file     the processes that open one path: an append-only file of records (file.c)
 *
 * One revision counts the changes of the whole store. A key has the revision that created it and the one
 * that changed it last. A transaction compares such revisions and changes keys, all or nothing. A lease ends
 * if its owner does not keep it alive for its time; its keys are deleted then.
 *
 * Fencing: a coordinator creates a key with its lease, and each later transaction compares the revision that
 * created it. After the lease has ended, or another process has created the key, all its transactions fail.
 * Time is never compared between processes: each measures for how long it has read no sign of a lease. So a
 * process that has just opened the store waits for at least the time of a lease before it sees it end.
 *
 * One thread. No call waits for another process. */
#ifndef WEFT_COORDINATOR_STORE_STORE_H
#define WEFT_COORDINATOR_STORE_STORE_H

#include "base/base.h"

#define WEFT_STORE_KEY_BYTES 255u         /* longest key; printable */
#define WEFT_STORE_VALUE_BYTES (1u << 20) /* longest value */
#define WEFT_STORE_TXN_CHANGES 128u       /* puts and deletes of a transaction */

struct weft_store;
struct weft_store_entry {
    const char *key;
    const uint8_t *value; /* (bytes,); NULL if bytes is 0 */
    size_t bytes;
    uint64_t create_revision, mod_revision;
    uint64_t lease; /* 0: none */
};

/* An empty store. */
enum weft_status weft_store_open_memory(struct weft_env *env, struct weft_store **out);
/* Creates the file if there is none. Cuts a torn tail. WEFT_ERR_MALFORMED: the file is damaged or is none of
 * a store; nothing is changed. WEFT_ERR_BUSY: another process uses it now; try again. */
enum weft_status weft_store_open_file(struct weft_env *env, const char *path, struct weft_store **out,
                                      struct weft_error *error);
void weft_store_close(struct weft_store *store); /* its leases stay; NULL has no effect */

/* All calls below. WEFT_ERR_BUSY: another process is in a call; nothing has changed; try again. WEFT_ERR_IO:
 * the file cannot be read or written. A transaction that ends so may be done or not: read a snapshot. */

/* Calls `visit` for each key with the prefix, in the order of keys; the entry is valid during the call.
 * visit must not call the store. */
enum weft_status weft_store_snapshot(struct weft_store *store, const char *prefix,
                                     void (*visit)(void *context, const struct weft_store_entry *entry),
                                     void *context, uint64_t *revision_out);

enum weft_store_target { WEFT_STORE_CREATE = 1, WEFT_STORE_MOD = 2 };
struct weft_store_compare {
    enum weft_store_target target;
    const char *key;
    uint64_t revision; /* 0: the key does not exist */
};
struct weft_store_put {
    const char *key;
    const void *value;
    size_t bytes;
    uint64_t lease; /* 0: none */
};
struct weft_store_txn {
    const struct weft_store_compare *compares;
    size_t compare_count;
    const struct weft_store_put *puts;
    size_t put_count;
    const char *const *deletes; /* keys that do not exist are ignored */
    size_t delete_count;
};
/* WEFT_ERR_STALE: a comparison fails. WEFT_ERR_NOT_FOUND: a lease has ended. WEFT_ERR_INVALID: a key or value
 * is out of its limits, or a key is changed twice. Otherwise all changes are durable and have this revision.
 * revision_out may be NULL. */
enum weft_status weft_store_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                uint64_t *revision_out);

/* Leases. The owner must act on a lease no longer than ttl_ns after it has begun the last successful call. */
enum weft_status weft_store_lease(struct weft_store *store, uint64_t ttl_ns, uint64_t *lease_out);
/* WEFT_ERR_NOT_FOUND: the lease has ended. */
enum weft_status weft_store_keepalive(struct weft_store *store, uint64_t lease);
enum weft_status weft_store_revoke(struct weft_store *store, uint64_t lease); /* deletes its keys */

/* Changes of keys with the prefix, in the order of revisions, from any process: during calls of this store.
 * Zeroed before; fields are the caller's until the call. */
struct weft_store_watch {
    struct weft_list link;
    const char *prefix; /* borrowed */
    /* is_deleted: the entry is the last one before. Must not call the store. */
    void (*changed)(void *context, const struct weft_store_entry *entry, bool is_deleted);
    void *context;
};
/* from: the next revision, from a snapshot's revision + 1. WEFT_ERR_STALE: changes since then are not known
 * any more: take another snapshot. */
enum weft_status weft_store_watch(struct weft_store *store, struct weft_store_watch *watch, uint64_t from);
void weft_store_unwatch(struct weft_store_watch *watch);
/* Reads what other processes have changed, and ends leases. Call it periodically. */
enum weft_status weft_store_poll(struct weft_store *store);

#endif
