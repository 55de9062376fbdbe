/* run_watch.c - `weft run` as an observer of its own job. If processes end within milliseconds of each other,
 * only the coordinator knows which one the others lost.
 *
 *     the connection ends -> with server.store: another process coordinates -> an observer of that one
 *
 * The status has losses that happened while no observer was connected. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "tools/run/run.h"
#include "tools/target.h"

#define SNAPSHOT_PERIOD_NS WEFT_SECONDS(2) /* between two requests of the status */
#define STORE_READ_NS WEFT_MS(100)         /* period of reads of the store */
#define NEXT_NS WEFT_SECONDS(20)           /* until another process coordinates */

enum { WORKERS_MAX = 256 };

/* A connection; freed after the net. */
struct observer {
    struct observer *next;
    struct run_watch *watch;
    struct weft_control_client *member;
};

struct run_watch {
    struct weft_net *net;
    struct weft_control_client_options options; /* of the next connection; texts: below */
    char *store, *job, *secret;                 /* owned; store, secret: NULL: none */
    char host[256];
    bool has_snapshots;
    struct observer *observers;  /* owned; the first one is in use; written by the net thread after its
                                  * start */
    uint64_t until_ns;           /* for another coordinator; observer's thread */
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

static bool has_worker(const struct run_watch *watch, uint64_t pid, const char *name)
{
    bool has = false;
    for (uint32_t i = 0; i < watch->workers_lost && !has; i++)
        has = watch->workers[i].pid == pid && (!name || strcmp(watch->workers[i].name, name) == 0);
    return has;
}

static void add_worker(struct run_watch *watch, uint64_t pid, uint32_t index)
{
    if (watch->workers_lost == WORKERS_MAX) return;
    struct lost_worker *worker = &watch->workers[watch->workers_lost++];
    worker->pid = pid;
    snprintf(worker->name, sizeof worker->name, "rank %u", index);
}

/* ---- the status: snapshots that fail, and losses of which there was no message ---- */

static void request_status(void *context)
{
    struct run_watch *watch = context;
    Weft__Control__StatusRequest body = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__Control request = WEFT__CONTROL__CONTROL__INIT;
    request.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST;
    request.status_request = &body;
    (void)weft_control_client_send(watch->observers->member,
                                   &request); /* an error: the connection has ended */
}

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct observer *observer = context;
    struct run_watch *watch = observer->watch;
    if (watch->has_snapshots && !observer->next)
        (void)weft_net_timer_periodic(watch->net, SNAPSHOT_PERIOD_NS, request_status, watch);
    if (!observer->next) return;
    pthread_mutex_lock(&watch->lock);
    watch->closed = false;
    pthread_mutex_unlock(&watch->lock);
    request_status(watch);
}

/* Counts the workers that the next coordinator lists as lost. The job continues without them. */
static void count_lost(struct run_watch *watch, const json_t *root)
{
    size_t i;
    json_t *member;
    pthread_mutex_lock(&watch->lock);
    json_array_foreach (json_object_get(root, "members"), i, member) {
        const uint64_t pid = (uint64_t)tool_json_number(member, "pid");
        const bool is_lost = strcmp(tool_json_text(member, "role"), "worker") == 0 &&
                             strcmp(tool_json_text(member, "state"), "lost") == 0;
        if (!is_lost || has_worker(watch, pid, NULL)) continue;
        add_worker(watch, pid, (uint32_t)tool_json_number(member, "index"));
        watch->survived++;
    }
    pthread_mutex_unlock(&watch->lock);
}

/* Prints the first failure, then one each time that their number has doubled. */
static void report_snapshots(struct run_watch *watch, const json_t *root)
{
    const json_t *snapshots = json_object_get(root, "snapshots");
    const long long failures = tool_json_number(snapshots, "failures");
    if (failures >= 2 * watch->snapshot_failures && failures > 0) {
        fprintf(stderr,
                "weft run: the snapshot of step %lld has failed: %s; last complete step: %lld (0: none)\n",
                tool_json_number(snapshots, "failed_step"), tool_json_text(snapshots, "failed_text"),
                tool_json_number(snapshots, "complete_step"));
        watch->snapshot_failures = failures;
    }
}

static void on_status(struct observer *observer, const char *status)
{
    json_t *root = json_loads(status, 0, NULL);
    if (observer->watch->has_snapshots) report_snapshots(observer->watch, root);
    if (observer->next && strcmp(tool_json_text(root, "state"), "running") == 0)
        count_lost(observer->watch, root);
    json_decref(root);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct observer *observer = context;
    struct run_watch *watch = observer->watch;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY)
        on_status(observer, message->status_reply->json);
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST) return;
    const Weft__Control__MemberLost *lost = message->member_lost;
    const bool is_worker = lost->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    pthread_mutex_lock(&watch->lock);
    if (!is_worker || !has_worker(watch, lost->pid, NULL)) {
        watch->survived += lost->epoch > 0;
        if (is_worker) add_worker(watch, lost->pid, lost->index);
    }
    if (!watch->lost[0] && lost->epoch == 0)
        snprintf(watch->lost, sizeof watch->lost, "%s %u", is_worker ? "rank" : "shard", lost->index);
    pthread_mutex_unlock(&watch->lock);
}

static void on_awaited(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "weft run: the job waits to begin: %s\n", text);
}

/* ---- connections ---- */

static enum weft_status observe(struct run_watch *watch)
{
    struct observer *observer = calloc(1, sizeof *observer);
    if (!observer) return WEFT_ERR_NO_MEMORY;
    observer->watch = watch;
    observer->next = watch->observers;
    watch->observers = observer;
    watch->options.context = observer;
    return weft_control_client_start(weft_env_system(), watch->net, &watch->options, &observer->member, NULL);
}

/* Net thread. */
static void observe_next(void *context)
{
    struct run_watch *watch = context;
    struct weft_env *env = weft_env_system();
    char address[256], host[256];
    uint16_t port;
    const bool is_found = weft_takeover_address(env, watch->store, watch->job, address, NULL) == WEFT_OK &&
                          weft_host_port_parse(address, host, &port, NULL) == WEFT_OK &&
                          (port != watch->options.port || strcmp(host, watch->host) != 0);
    if (is_found) {
        memcpy(watch->host, host, sizeof watch->host);
        watch->options.port = port;
        (void)observe(watch);
    } else if (weft_now_ns(env) < watch->until_ns) {
        (void)weft_net_timer_once(watch->net, STORE_READ_NS, observe_next, watch);
    }
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct observer *observer = context;
    struct run_watch *watch = observer->watch;
    pthread_mutex_lock(&watch->lock);
    watch->closed = true;
    pthread_mutex_unlock(&watch->lock);
    watch->until_ns = weft_deadline_ns(weft_now_ns(weft_env_system()), NEXT_NS);
    if (watch->store) (void)weft_net_timer_once(watch->net, 0, observe_next, watch);
}

struct run_watch *run_watch_start(const struct run_watch_options *options)
{
    struct run_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return NULL;
    pthread_mutex_init(&watch->lock, NULL);
    watch->store = options->store ? strdup(options->store) : NULL;
    watch->secret = options->secret ? strdup(options->secret) : NULL;
    watch->job = strdup(options->job);
    watch->has_snapshots = options->has_snapshots;
    weft_control_client_options_init(&watch->options);
    watch->options.host = watch->host;
    watch->options.job = watch->job;
    watch->options.secret = watch->secret;
    watch->options.message = on_message;
    watch->options.closed = on_closed;
    watch->options.welcomed = on_welcomed;
    if (options->reports) watch->options.awaited = on_awaited;
    if (!watch->job || !watch->store != !options->store || !watch->secret != !options->secret ||
        weft_host_port_parse(options->coordinator, watch->host, &watch->options.port, NULL) != WEFT_OK ||
        weft_net_create(weft_env_system(), &watch->net) != WEFT_OK || observe(watch) != WEFT_OK ||
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
    lost = has_worker(watch, pid, name);
    pthread_mutex_unlock(&watch->lock);
    return lost;
}

void run_watch_free(struct run_watch *watch)
{
    if (!watch) return;
    weft_net_free(watch->net);
    while (watch->observers) {
        struct observer *observer = watch->observers;
        watch->observers = observer->next;
        weft_control_client_free(observer->member);
        free(observer);
    }
    pthread_mutex_destroy(&watch->lock);
    free(watch->store);
    free(watch->job);
    free(watch->secret);
    free(watch);
}
