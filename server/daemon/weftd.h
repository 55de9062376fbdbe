/* weftd.h - inside weftd: its threads and what each owns.
 *
 *     main thread      starts everything, waits for a signal or the end, stops everything   (weftd.c)
 *     net thread       coordinator, control connection, HTTP; struct weftd below            (weftd_control.c, weftd_http.c)
 *     engine threads   one transport, one loop, one shard engine each                       (weftd_engine.c)
 *
 * They share nothing but letters: net -> engine by the loop's mailbox, engine -> net by weft_net_post, net ->
 * main by one eventfd. A letter's memory belongs to its sender until it has been answered. */
#ifndef WEFT_SERVER_DAEMON_WEFTD_H
#define WEFT_SERVER_DAEMON_WEFTD_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/server.h"

struct weftd;

/* What HTTP shows of an engine: copied by its own thread on request. */
struct weftd_engine_view {
    bool ready; /* it has a shard engine */
    struct weft_shard_engine_stats shard;
    struct weft_transport_stats transport;
};

struct weftd_engine {
    struct weftd *weftd;
    uint32_t index;
    pthread_t thread;
    bool thread_started;
    struct weft_loop *loop; /* made by the net thread, run by the engine's */

    /* the engine's thread */
    struct weft_transport *transport;
    struct weft_shard_engine *shard;
    struct weft_event_ring *events;

    /* one question at a time: open (at thread start), connect (at the roster) */
    struct weft_command request, reply;
    struct weft_error error; /* of the question being answered */
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;

    struct weft_command fail_command; /* posted at most once */

    /* statistics: asked by the net thread, copied by the engine's, under the lock */
    pthread_mutex_t view_lock;
    pthread_cond_t view_changed;
    struct weft_command view_command;
    bool view_requested;
    struct weftd_engine_view view;
};

struct weftd {
    struct weft_env *env;
    struct weftd_options options;
    struct weft_net *net;
    struct weft_coordinator_server *coordinator; /* NULL: elsewhere */
    struct weft_control_client *member;
    uint64_t started_ns;
    int wake_fd; /* net -> main */

    /* the net thread's */
    Weft__Control__Welcome welcome; /* proof is not kept */
    Weft__Control__Control *roster; /* owned; read by engines */
    struct weftd_engine *engines;   /* (options.engines,) */
    struct weft_list requests; /* struct weftd_command.link: those whose answer has not come yet */
    uint32_t engines_waited_for;
    bool joined, running, failing;
    bool member_done;      /* the control connection has ended */
    bool coordinator_done; /* embedded: the job has ended (true when there is none) */
    char label[32];          /* "shard 1" */

    /* written by the net thread before stopped is set, read by main after */
    struct weft_error fail_error; /* what engines tell their workers, written before the letters go */
    uint32_t lost_endpoint;       /* of the lost worker; UINT32_MAX: nobody, or a shard */
    int exit_status;
    struct weft_error end;
    atomic_bool stopped;
};

/* weftd_control.c; net thread */
enum weft_status weftd_control_start(struct weftd *weftd, const char *host, uint16_t port,
                                     struct weft_error *error);
void weftd_coordinator_ended(void *context, enum weft_status status, const char *text);
/* A failure: engines tell the workers, the job is left, the process ends with this sentence. First one
 * wins. */
void weftd_fail(struct weftd *weftd, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* SIGTERM, SIGINT. */
void weftd_interrupted(struct weftd *weftd, const char *signal_name);

/* weftd.c: the calling thread, which has no loop, has nothing to do for so long. */
void weftd_pause(struct weft_env *env, uint64_t pause_ns);

/* weftd_engine.c */
/* net thread, after Welcome */
enum weft_status weftd_engines_start(struct weftd *weftd, struct weft_error *error);
void weftd_engines_stop(struct weftd *weftd);                                        /* main thread; joins */
void weftd_engines_free(struct weftd *weftd);
void weftd_engine_post_connect(struct weftd_engine *engine); /* answered by weftd_engine_replied */
void weftd_engine_post_failure(struct weftd_engine *engine);    /* weftd->fail_error; no answer */
void weftd_engine_view(struct weftd_engine *engine, struct weftd_engine_view *view_out);
/* weftd_control.c again: an engine has answered its question (error.status says how). */
void weftd_engine_replied(struct weft_command *command);

/* weftd_command.c: the first member of a letter, which the answer frees */
struct weftd_command {
    struct weft_command command;
    struct weft_list link; /* weftd->letters; the net thread's */
    struct weftd_engine *engine;
    struct weft_error error; /* the answer; not WEFT_OK: the job ends with it */
};
/* net thread; zeroed, of the env's memory */
void weftd_command_post(struct weftd_command *request, struct weftd_engine *engine,
                        void (*fn)(struct weft_command *command));
void weftd_command_reply(struct weftd_command *request); /* engine's thread, from fn, or later */
/* main thread, once the net thread and the engines are gone: what none of them has read any more */
void weftd_commands_free(struct weftd *weftd);

/* weftd_members.c; net thread */
/* false: the job does not go on */
bool weftd_members_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost);
void weftd_members_left(struct weftd *weftd, const Weft__Control__Left *left);
void weftd_members_joined(struct weftd *weftd, const Weft__Control__Joined *joined);
void weftd_members_shrunk(struct weftd *weftd, const Weft__Control__Shrunk *shrunk);

/* weftd_http.c; net thread */
enum weft_status weftd_http_start(struct weftd *weftd, uint16_t *port_out, struct weft_error *error);

#endif
