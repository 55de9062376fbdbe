/* reign.h - the right to coordinate a job: a key of the store with a lease. Internal to the coordinator.
 *
 *     acquire -> renew each second -> a renewal or a transaction fails, or the lease expires -> ended
 *
 * The holder counts its lease from the begin of the last successful renewal. Each transaction compares the
 * revision that created the key, so what a former holder decides is never written. Its number is that
 * revision: it rises with each holder. */
#ifndef WEFT_COORDINATOR_TAKEOVER_REIGN_H
#define WEFT_COORDINATOR_TAKEOVER_REIGN_H

#include "base/base.h"
#include "coordinator/store/store.h"
#include "proto/proto.h"

#define COORDINATOR_REIGN_NS WEFT_SECONDS(3) /* time to live of the lease */
#define COORDINATOR_REIGN_KEY "reign"
#define COORDINATOR_JOB_KEY "job"

struct coordinator_reign {
    struct weft_env *env;
    struct weft_store *store; /* owned */
    uint64_t lease;           /* 0: not held */
    uint64_t number;          /* revision that created the key */
    uint64_t until_ns;
    bool has_ended; /* it was held, and is not any more */
    char why[160];  /* why it has ended */
};

/* Opens the store. WEFT_ERR_BUSY: try again. */
enum weft_status coordinator_reign_open(struct weft_env *env, const char *path,
                                        struct coordinator_reign **out, struct weft_error *error);
/* Creates the key. WEFT_ERR_STALE: another process holds it. */
enum weft_status coordinator_reign_acquire(struct coordinator_reign *reign,
                                           const Weft__Control__StoredReign *value);
bool coordinator_reign_holds(struct coordinator_reign *reign);
void coordinator_reign_renew(struct coordinator_reign *reign);
/* Writes if the reign is held. A lost answer is repeated: the same puts have the same effect. false: it has
 * ended. */
bool coordinator_reign_write(struct coordinator_reign *reign, const struct weft_store_put *puts,
                             size_t count);
/* Deletes all keys except the reign and the record of the job: the job to which they belong has ended. */
enum weft_status coordinator_reign_clear(struct coordinator_reign *reign);
/* Waits 1 ms for a process that is in a call of the store. */
void coordinator_reign_pause(const struct coordinator_reign *reign);
void coordinator_reign_close(struct coordinator_reign *reign); /* NULL has no effect */

/* The holder as the store has it. */
struct coordinator_reign_view {
    uint64_t number, lease; /* number 0: there is none */
    struct weft_process_identity process;
    uint64_t job_id;
    char job[256], address[256];
};
enum weft_status coordinator_reign_read(struct coordinator_reign *reign,
                                        struct coordinator_reign_view *view_out);

#endif
