/* fleet.h - a whole job for a test: coordinator in this process, shards and workers as forked processes.
 *
 * fleet_run() forks everything before it starts its first thread, hands the coordinator's port down a
 * pipe, and collects the exit statuses. `shared` is memory that all processes see (zeroed), for comparing
 * results. */
#ifndef TEST_CLIENT_FLEET_H
#define TEST_CLIENT_FLEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FLEET_MAX 16
#define FLEET_SHARED_BYTES (1u << 20)

struct fleet {
    uint32_t workers, shards;
    char coordinator[64];    /* "127.0.0.1:port", in the workers */
    /* in `shared`: readable by all once they have joined */
    pid_t worker_pids[FLEET_MAX], shard_pids[FLEET_MAX];
    void *user;              /* FLEET_SHARED_BYTES of shared memory */
};

/* Returns 0 when all is well; printed reasons go to stderr. Runs in a forked process. */
typedef int (*fleet_worker_fn)(struct fleet *fleet, uint32_t rank);

struct fleet_result {
    int worker_status[FLEET_MAX]; /* as waitpid gives it */
    int shard_status[FLEET_MAX];
    uint64_t last_exit_ns[FLEET_MAX]; /* when each worker was collected, on the system env's clock */
};

/* Returns true when every worker exited with 0. `user_out` gets the shared memory (unmap not needed). */
bool fleet_run(uint32_t workers, uint32_t shards, fleet_worker_fn worker, struct fleet_result *result,
               void **user_out);

struct weft_session;
/* In a worker: weft_init as its rank, operations have so long. 0, or 1 with the reason printed. */
int fleet_join(const struct fleet *fleet, uint32_t rank, uint32_t deadline_ms,
               struct weft_session **session_out);

#endif
