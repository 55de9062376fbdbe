/* run_watch.c - `weft run` as an observer of its own job. If processes end within milliseconds of each other,
 * only the coordinator knows which one the others lost. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "tools/run/run.h"
#include "tools/target.h"

#define SNAPSHOT_PERIOD_NS WEFT_SECONDS(2) /* between two requests of the status */

enum { WORKERS_MAX = 256 };

struct run_watch {
    struct weft_net *net;
    struct weft_control_client *member;
    long long snapshot_failures; /* printed so far; observer's thread */
    pthread_mutex_t lock;
    char lost[24];     /* first loss that ended the job, "rank 1"; "": none; under the lock */
    uint32_t survived; /* losses after which the job continued; under the lock */
    bool closed;       /* the connection has ended; this and the following fields are under the lock */
    uint32_t workers_lost;
    struct lost_worker {
        uint64_t pid;
        char name[24];
    } workers[WORKERS_MAX]; /* the first WORKERS_MAX lost workers */
};

static void add_worker(struct run_watch *watch, const Weft__Control__MemberLost *lost)
{
    if (lost->role != WEFT__CONTROL__ROLE__ROLE_WORKER || watch->workers_lost == WORKERS_MAX) return;
    struct lost_worker *worker = &watch->workers[watch->workers_lost++];
    worker->pid = lost->pid;
    snprintf(worker->name, sizeof worker->name, "rank %u", lost->index);
}

/* ---- snapshots that fail ---- */

static void request_status(void *context)
{
    struct run_watch *watch = context;
    Weft__Control__StatusRequest body = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__Control request = WEFT__CONTROL__CONTROL__INIT;
    request.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST;
    request.status_request = &body;
    (void)weft_control_client_send(watch->member, &request); /* an error: the connection has ended */
}

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct run_watch *watch = context;
    (void)weft_net_timer_periodic(watch->net, SNAPSHOT_PERIOD_NS, request_status, watch);
}

/* Prints the first failure, then one each time that their number has doubled. */
static void report_snapshots(struct run_watch *watch, const char *status)
{
    json_t *root = json_loads(status, 0, NULL);
    const json_t *snapshots = json_object_get(root, "snapshots");
    const long long failures = tool_json_number(snapshots, "failures");
    if (failures >= 2 * watch->snapshot_failures && failures > 0) {
        fprintf(stderr,
                "weft run: the snapshot of step %lld has failed: %s; last complete step: %lld (0: none)\n",
                tool_json_number(snapshots, "failed_step"), tool_json_text(snapshots, "failed_text"),
                tool_json_number(snapshots, "complete_step"));
        watch->snapshot_failures = failures;
    }
    json_decref(root);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct run_watch *watch = context;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY)
        report_snapshots(watch, message->status_reply->json);
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST) return;
    pthread_mutex_lock(&watch->lock);
    watch->survived += message->member_lost->epoch > 0;
    add_worker(watch, message->member_lost);
    if (!watch->lost[0] && message->member_lost->epoch == 0)
        snprintf(watch->lost, sizeof watch->lost, "%s %u",
                 message->member_lost->role == WEFT__CONTROL__ROLE__ROLE_WORKER ? "rank" : "shard",
                 message->member_lost->index);
    pthread_mutex_unlock(&watch->lock);
}

static void on_awaited(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "weft run: the job waits to begin: %s\n", text);
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct run_watch *watch = context;
    pthread_mutex_lock(&watch->lock);
    watch->closed = true;
    pthread_mutex_unlock(&watch->lock);
}

struct run_watch *run_watch_start(const char *coordinator, const char *job, const char *secret, bool reports,
                                  bool has_snapshots)
{
    struct weft_env *env = weft_env_system();
    struct run_watch *watch = calloc(1, sizeof *watch);
    struct weft_control_client_options options;
    char host[256];
    if (!watch) return NULL;
    pthread_mutex_init(&watch->lock, NULL);
    weft_control_client_options_init(&options);
    options.host = host;
    options.job = job;
    options.secret = secret;
    options.message = on_message;
    options.closed = on_closed;
    if (reports) options.awaited = on_awaited;
    if (has_snapshots) options.welcomed = on_welcomed;
    options.context = watch;
    if (weft_host_port_parse(coordinator, host, &options.port, NULL) != WEFT_OK ||
        weft_net_create(env, &watch->net) != WEFT_OK ||
        weft_control_client_start(env, watch->net, &options, &watch->member, NULL) != WEFT_OK ||
        weft_net_start(watch->net) != WEFT_OK) {
        run_watch_free(watch);
        return NULL;
    }
    return watch;
}

void run_watch_first_lost(struct run_watch *watch, char out[24])
{
    out[0] = 0;
    if (!watch) return;
    pthread_mutex_lock(&watch->lock);
    memcpy(out, watch->lost, sizeof watch->lost);
    pthread_mutex_unlock(&watch->lock);
}

uint32_t run_watch_survived_count(struct run_watch *watch)
{
    if (!watch) return 0;
    pthread_mutex_lock(&watch->lock);
    uint32_t survived = watch->survived;
    pthread_mutex_unlock(&watch->lock);
    return survived;
}

bool run_watch_is_settled(struct run_watch *watch)
{
    if (!watch) return true;
    pthread_mutex_lock(&watch->lock);
    const bool settled = watch->lost[0] || watch->survived > 0 || watch->closed;
    pthread_mutex_unlock(&watch->lock);
    return settled;
}

bool run_watch_has_lost_worker(struct run_watch *watch, uint64_t pid, const char *name)
{
    bool lost = false;
    if (!watch) return false;
    pthread_mutex_lock(&watch->lock);
    for (uint32_t i = 0; i < watch->workers_lost && !lost; i++)
        lost = watch->workers[i].pid == pid && (!name || strcmp(watch->workers[i].name, name) == 0);
    pthread_mutex_unlock(&watch->lock);
    return lost;
}

void run_watch_free(struct run_watch *watch)
{
    if (!watch) return;
    weft_net_free(watch->net);
    weft_control_client_free(watch->member);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
