/* control.h - the connection to the coordinator, on the net thread. */
#ifndef WEFT_CLIENT_SESSION_CONTROL_H
#define WEFT_CLIENT_SESSION_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "coordinator/coordinator.h"
#include "proto/proto.h"

struct weft_session;

/* Phase of the join; it only increases. */
enum client_phase {
    CLIENT_CONNECTING = 0, /* no message of the coordinator yet */
    CLIENT_HELLO_SENT = 1, /* the Challenge was answered */
    CLIENT_WELCOME = 2,    /* accepted: control.welcome is set */
    CLIENT_ROSTER = 3,     /* control.roster has the addresses of all members */
    CLIENT_GO = 4,         /* data may move */
    CLIENT_ENDED = 5,      /* the connection is closed */
};

/* A Map or ShardAdded that the engine has not applied. */
struct client_map_message {
    struct client_map_message *next;
    Weft__Control__Control *message; /* owned */
};

struct client_control {
    struct weft_net *net;                     /* owned */
    struct weft_control_link link;            /* net thread */
    _Atomic int phase;                        /* enum client_phase */
    _Atomic bool is_connected;                /* the connection was established */
    _Atomic bool leaving;                     /* this side closes the connection */
    pthread_mutex_t lock;                     /* guards the fields below */
    Weft__Control__Control *welcome, *roster; /* owned; unpacked messages */
    Weft__Control__Control *declared;         /* owned; answer to the running declaration, or NULL */
    Weft__Control__Control *shrunk;           /* owned; the newest Shrunk, which names the members of an
                                               * epoch, or NULL */
    struct client_map_message *maps;          /* owned; in order of arrival */
    uint32_t copies;                          /* of the shards' slots, from Welcome; written before `phase` */
    uint64_t committed, codec_steps;          /* from Go: a newcomer continues from there; written before
                                               * `phase` */
    uint32_t tensors;                         /* from Go: tensors that the job has declared */
    _Atomic uint32_t freed_tensor;            /* elastic jobs: 1 + last one that all ranks have freed */
    uint32_t parts;                           /* from Go: 1 + largest rank with a part in the restored
                                               * snapshot; 0: none */
    bool has_wait_reason;                     /* the coordinator has answered which members this rank waits
                                               * for: */
    char wait_reason[320];
    struct weft_list outgoing;       /* owned; messages not sent yet */
    uint8_t nonce[WEFT_NONCE_BYTES]; /* this side's nonce, for the coordinator's proof */
    struct weft_silence silence;     /* of the coordinator; net thread */
    bool stall_is_reported;          /* the coordinator has been notified of a stall; net thread */
    char name[128], host[64];
};

void client_map_messages_free(struct weft_session *session, struct client_map_message *messages);
enum weft_status client_control_start(struct weft_session *session, struct weft_error *error);
/* Joins the net thread and frees. Works on a half-built connection. */
void client_control_stop(struct weft_session *session);
/* Packs and queues one message for the coordinator. Any thread. */
enum weft_status client_control_send(struct weft_session *session, const Weft__Control__Control *message);
/* The same without a queue. Net thread. */
void client_control_send_now(struct weft_session *session, const Weft__Control__Control *message);
/* Name of the coordinating process, which may be shard 0. Net thread. */
const char *client_control_coordinator_name(const struct weft_session *session);
/* This rank suspects a loss: are all members alive? If they are, the coordinator answers and
 * session->ops.all_alive runs. Any thread. */
void client_control_check_liveness(struct weft_session *session);
/* Which members the coordinator waits for, and for what ("rank 3 (hostb, pid 41) has not declared it").
 * Waits at most 500 ms; without an answer the text names the coordinator. Caller's thread. */
void client_control_wait_reason(struct weft_session *session, char *out, size_t out_bytes);
/* Reports the failure of this session as an Abort to all members. Any thread. */
void client_control_send_abort(struct weft_session *session, enum weft_status status, const char *text);
/* Sends this worker's hash of a tensor's weights after a step; the shard compares it. Net thread. */
void client_control_send_hash(struct weft_session *session, uint32_t tensor, uint64_t step, uint32_t endpoint,
                              uint64_t hash);
/* Sends figures of this rank with a heartbeat. Net thread. */
void client_control_send_report(struct weft_session *session, Weft__Control__Report *report);
/* Sends Leave, flushes, closes; blocks until the connection is closed or until_ns. Caller's thread. */
void client_control_leave(struct weft_session *session, uint64_t until_ns);
static inline enum client_phase client_control_phase(struct client_control *control)
{
    return (enum client_phase)atomic_load(&control->phase);
}

#endif
