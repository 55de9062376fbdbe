/* fleet.c - see fleet.h. The processes are forked before the first thread starts: a forked child of a
 * threaded process may call few functions. */
#include "fleet.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "server/server.h"
#include "weft/weft.h"

static void *map_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

/* The child's start: wait for the port. */
static void read_port(struct fleet *fleet, int pipe_fd)
{
    uint16_t port = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed test leaves no process behind */
    if (read(pipe_fd, &port, sizeof port) != (ssize_t)sizeof port) {
        fprintf(stderr, "process %ld got no port of a coordinator\n", (long)getpid());
        _exit(99);
    }
    snprintf(fleet->coordinator, sizeof fleet->coordinator, "127.0.0.1:%u", port);
}

static int run_shard(struct fleet *fleet, uint32_t index)
{
    struct weftd_options options;
    weftd_options_init(&options);
    struct weft_error error = {0};
    options.job = "test";
    options.coordinator = fleet->coordinator;
    options.index = (int)index;
    options.http_port = -1;
    options.workers = fleet->workers;
    options.shards = fleet->shards;
    if (weft_config_load(weft_env_system(), &options.config, &error) < 0)
        return fprintf(stderr, "shard %u: %s\n", index, error.text);
    return weftd_run(weft_env_system(), &options);
}

static pid_t fork_child(struct fleet *shared, int pipe_fds[2], uint32_t index, bool shard,
                        fleet_worker_fn worker)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        fprintf(stderr, "no process for %s %u: %s\n", shard ? "shard" : "worker", index, strerror(errno));
    if (pid < 0) abort();
    if (pid != 0) return pid;
    close(pipe_fds[1]);
    struct fleet mine = *shared;
    read_port(&mine, pipe_fds[0]);
    memcpy(mine.worker_pids, shared->worker_pids, sizeof mine.worker_pids);
    memcpy(mine.shard_pids, shared->shard_pids, sizeof mine.shard_pids);
    int rc = shard ? run_shard(&mine, index) : worker(&mine, index);
    fflush(NULL);
    exit(rc == 0 ? 0 : 1); /* rc may be a length of text, of which the low byte is 0 */
}

static void collect(struct fleet *fleet, struct fleet_result *result)
{
    uint32_t left = fleet->workers;
    while (left > 0) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno != EINTR) break;
        for (uint32_t i = 0; i < fleet->workers; i++) {
            if (fleet->worker_pids[i] != pid) continue;
            result->worker_status[i] = status;
            result->last_exit_ns[i] = weft_now_ns(weft_env_system());
            left--;
        }
        for (uint32_t i = 0; i < fleet->shards; i++)
            if (fleet->shard_pids[i] == pid) {
                result->shard_status[i] = status;
                fleet->shard_pids[i] = 0;
            }
    }
    for (uint32_t i = 0; i < fleet->shards; i++)
        if (fleet->shard_pids[i] > 0) waitpid(fleet->shard_pids[i], &result->shard_status[i], 0);
}

static void job_ended(void *context, enum weft_status status, const char *text)
{
    if (getenv("FLEET_VERBOSE"))
        fprintf(stderr, "job ended: %s: %s\n", weft_status_name(status), text ? text : "");
}

bool fleet_run(uint32_t workers, uint32_t shards, fleet_worker_fn worker, struct fleet_result *result,
               void **user_out)
{
    struct fleet *fleet = map_shared(sizeof *fleet);
    int pipe_fds[2];
    fleet->workers = workers;
    fleet->shards = shards;
    fleet->user = map_shared(FLEET_SHARED_BYTES);
    if (pipe(pipe_fds) != 0) abort();
    for (uint32_t i = 0; i < shards; i++) fleet->shard_pids[i] = fork_child(fleet, pipe_fds, i, true, NULL);
    for (uint32_t i = 0; i < workers; i++)
        fleet->worker_pids[i] = fork_child(fleet, pipe_fds, i, false, worker);
    close(pipe_fds[0]);

    struct weft_env *env = weft_env_system();
    struct weft_net *net;
    struct weft_coordinator_server *coordinator;
    struct weft_coordinator_options options;
    struct weft_error error = {0};
    uint16_t port = 0;
    weft_coordinator_options_init(&options);
    options.job = "test";
    options.workers = workers;
    options.shards = shards;
    options.ended = job_ended;
    if (weft_net_create(env, &net) < 0 ||
        weft_coordinator_server_start(env, net, "127.0.0.1", 0, &options, &port, &coordinator, &error) < 0 ||
        weft_net_start(net) < 0) {
        fprintf(stderr, "no coordinator: %s\n", error.text);
        abort();
    }
    for (uint32_t i = 0; i < workers + shards; i++)
        if (write(pipe_fds[1], &port, sizeof port) != (ssize_t)sizeof port) abort();
    close(pipe_fds[1]);

    memset(result, 0, sizeof *result);
    collect(fleet, result);
    weft_net_free(net);
    weft_coordinator_server_free(coordinator);
    if (user_out) *user_out = fleet->user;
    bool fine = true;
    for (uint32_t i = 0; i < workers; i++) {
        int status = result->worker_status[i];
        bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!good) fprintf(stderr, "worker %u ended with status 0x%x\n", i, (unsigned)status);
        fine &= good;
    }
    return fine;
}

int fleet_join(const struct fleet *fleet, uint32_t rank, uint32_t deadline_ms,
               struct weft_session **session_out)
{
    struct weft_options options;
    weft_options_init(&options);
    options.coordinator = fleet->coordinator;
    options.job = "test";
    options.rank = (int)rank;
    options.deadline_ms = deadline_ms;
    if (weft_init(&options, session_out) >= 0) return 0;
    fprintf(stderr, "rank %u: %s\n", rank, weft_error_text(NULL));
    return 1;
}
