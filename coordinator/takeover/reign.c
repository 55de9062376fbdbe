/* reign.c - see reign.h. */
#include "coordinator/takeover/reign.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define BUSY_TRIES 500u /* a call of another process is one write and one fsync */
#define IO_TRIES 10u    /* of a write that may have failed */

/* ---- calls that another process may delay ---- */

void coordinator_reign_pause(const struct coordinator_reign *reign)
{
    if (!reign->env->virtual_time) (void)poll(NULL, 0, 1);
}

/* Returns whether the call is to be repeated. */
static bool again(const struct coordinator_reign *reign, enum weft_status status, uint32_t *tries)
{
    if (status != WEFT_ERR_BUSY || ++*tries >= BUSY_TRIES) return false;
    coordinator_reign_pause(reign);
    return true;
}

static enum weft_status run_txn(struct coordinator_reign *reign, const struct weft_store_txn *txn,
                                uint64_t *revision_out)
{
    uint32_t tries = 0;
    enum weft_status status;
    do status = weft_store_txn(reign->store, txn, revision_out);
    while (again(reign, status, &tries));
    return status;
}

/* ---- life ---- */

enum weft_status coordinator_reign_open(struct weft_env *env, const char *path,
                                        struct coordinator_reign **out, struct weft_error *error)
{
    uint32_t tries = 0;
    enum weft_status status;
    struct coordinator_reign *reign = weft_alloc_zero(env, sizeof *reign);
    if (!reign) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the store %.200s", path);
    reign->env = env;
    do {
        if (error) *error = (struct weft_error){0};
        status = weft_store_open_file(env, path, &reign->store, error);
    } while (again(reign, status, &tries));
    if (status == WEFT_OK) *out = reign;
    else weft_free_bytes(env, reign);
    return status;
}

void coordinator_reign_close(struct coordinator_reign *reign)
{
    if (!reign) return;
    if (reign->lease && !reign->has_ended) (void)weft_store_revoke(reign->store, reign->lease);
    weft_store_close(reign->store);
    weft_free_bytes(reign->env, reign);
}

/* ---- the holder ---- */

static void reign_end(struct coordinator_reign *reign, const char *why)
{
    if (!reign->has_ended) snprintf(reign->why, sizeof reign->why, "%s", why);
    reign->has_ended = true;
}

/* After a lost answer: returns whether the key was created. */
static bool has_acquired(struct coordinator_reign *reign)
{
    struct coordinator_reign_view view;
    if (coordinator_reign_read(reign, &view) < 0 || view.number == 0 || view.lease != reign->lease)
        return false;
    reign->number = view.number;
    return true;
}

enum weft_status coordinator_reign_acquire(struct coordinator_reign *reign,
                                           const Weft__Control__StoredReign *value)
{
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    const struct weft_store_compare is_free = {WEFT_STORE_CREATE, COORDINATOR_REIGN_KEY, 0};
    const uint64_t began_ns = weft_now_ns(reign->env);
    struct weft_store_put put = {.key = COORDINATOR_REIGN_KEY};
    uint8_t *data;
    uint32_t tries = 0;
    enum weft_status status;
    stored.body_case = WEFT__CONTROL__STORED__BODY_REIGN;
    stored.reign = (Weft__Control__StoredReign *)value;
    WEFT_TRY(weft_stored_pack(reign->env, &stored, &data, &put.bytes));
    do status = weft_store_lease(reign->store, COORDINATOR_REIGN_NS, &reign->lease);
    while (again(reign, status, &tries));
    if (status == WEFT_OK) {
        put.value = data;
        put.lease = reign->lease;
        const struct weft_store_txn txn = {
            .compares = &is_free, .compare_count = 1, .puts = &put, .put_count = 1};
        status = run_txn(reign, &txn, &reign->number);
        if (status == WEFT_ERR_IO && has_acquired(reign)) status = WEFT_OK;
        if (status < 0) (void)weft_store_revoke(reign->store, reign->lease);
    }
    weft_free_bytes(reign->env, data);
    reign->until_ns = weft_deadline_ns(began_ns, COORDINATOR_REIGN_NS);
    if (status < 0) reign->lease = 0;
    return status;
}

bool coordinator_reign_holds(struct coordinator_reign *reign)
{
    if (reign->lease == 0 || reign->has_ended) return false;
    if (weft_now_ns(reign->env) >= reign->until_ns)
        reign_end(reign,
                  "its lease could not be renewed in time: this process was stopped, or the store was");
    return !reign->has_ended;
}

void coordinator_reign_renew(struct coordinator_reign *reign)
{
    const uint64_t began_ns = weft_now_ns(reign->env);
    if (!coordinator_reign_holds(reign)) return;
    const enum weft_status status = weft_store_keepalive(reign->store, reign->lease);
    if (status == WEFT_OK) reign->until_ns = weft_deadline_ns(began_ns, COORDINATOR_REIGN_NS);
    if (status == WEFT_ERR_NOT_FOUND) reign_end(reign, "another process has ended its lease");
}

bool coordinator_reign_write(struct coordinator_reign *reign, const struct weft_store_put *puts, size_t count)
{
    const struct weft_store_compare is_mine = {WEFT_STORE_CREATE, COORDINATOR_REIGN_KEY, reign->number};
    const struct weft_store_txn txn = {
        .compares = &is_mine, .compare_count = 1, .puts = puts, .put_count = count};
    enum weft_status status = WEFT_ERR_IO;
    for (uint32_t i = 0; i < IO_TRIES && status == WEFT_ERR_IO && coordinator_reign_holds(reign); i++) {
        if (i > 0) coordinator_reign_pause(reign);
        status = run_txn(reign, &txn, NULL);
    }
    if (status == WEFT_ERR_STALE) reign_end(reign, "another process coordinates the job");
    else if (status < 0) reign_end(reign, weft_reason_text(status));
    return status == WEFT_OK;
}

/* ---- reading ---- */

struct old_keys {
    char all[WEFT_STORE_TXN_CHANGES][WEFT_STORE_KEY_BYTES + 1];
    size_t count;
};

static void note_key(void *context, const struct weft_store_entry *entry)
{
    struct old_keys *keys = context;
    if (strcmp(entry->key, COORDINATOR_REIGN_KEY) == 0 || strcmp(entry->key, COORDINATOR_JOB_KEY) == 0 ||
        keys->count == WEFT_STORE_TXN_CHANGES)
        return;
    snprintf(keys->all[keys->count++], sizeof keys->all[0], "%s", entry->key);
}

enum weft_status coordinator_reign_clear(struct coordinator_reign *reign)
{
    const struct weft_store_compare is_mine = {WEFT_STORE_CREATE, COORDINATOR_REIGN_KEY, reign->number};
    struct old_keys *keys = weft_alloc_zero(reign->env, sizeof *keys);
    const char *deletes[WEFT_STORE_TXN_CHANGES];
    uint64_t revision;
    enum weft_status status = keys ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    do {
        uint32_t tries = 0;
        if (keys) keys->count = 0;
        while (keys && again(reign, status = weft_store_snapshot(reign->store, "", note_key, keys, &revision),
                             &tries))
            keys->count = 0;
        if (status < 0 || keys->count == 0) break;
        for (size_t i = 0; i < keys->count; i++) deletes[i] = keys->all[i];
        const struct weft_store_txn txn = {
            .compares = &is_mine, .compare_count = 1, .deletes = deletes, .delete_count = keys->count};
        status = run_txn(reign, &txn, NULL);
    } while (status == WEFT_OK && keys->count == WEFT_STORE_TXN_CHANGES);
    weft_free_bytes(reign->env, keys);
    return status;
}

struct reading {
    struct weft_env *env;
    struct coordinator_reign_view *view;
    enum weft_status status;
};

static void read_entry(void *context, const struct weft_store_entry *entry)
{
    struct reading *reading = context;
    Weft__Control__Stored *stored;
    if (strcmp(entry->key, COORDINATOR_REIGN_KEY) != 0) return;
    reading->status = weft_stored_unpack(reading->env, entry->value, entry->bytes, &stored);
    if (reading->status < 0) return;
    if (stored->body_case == WEFT__CONTROL__STORED__BODY_REIGN) {
        reading->view->number = entry->create_revision;
        reading->view->lease = entry->lease;
        reading->view->job_id = stored->reign->job_id;
        snprintf(reading->view->job, sizeof reading->view->job, "%s", stored->reign->job);
        snprintf(reading->view->address, sizeof reading->view->address, "%s", stored->reign->address);
        if (stored->reign->process.len == WEFT_PROCESS_IDENTITY_BYTES)
            weft_process_identity_decode(stored->reign->process.data, &reading->view->process);
    } else reading->status = WEFT_ERR_MALFORMED;
    weft_stored_free(reading->env, stored);
}

enum weft_status coordinator_reign_read(struct coordinator_reign *reign,
                                        struct coordinator_reign_view *view_out)
{
    struct reading reading = {.env = reign->env, .view = view_out};
    uint64_t revision;
    uint32_t tries = 0;
    enum weft_status status;
    do {
        *view_out = (struct coordinator_reign_view){0};
        status = weft_store_snapshot(reign->store, COORDINATOR_REIGN_KEY, read_entry, &reading, &revision);
    } while (again(reign, status, &tries));
    return status < 0 ? status : reading.status;
}
