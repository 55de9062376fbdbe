/* control.h - the member's side of the control plane: one connection to the coordinator, on the net
 * thread. */
#ifndef WEFT_CLIENT_SESSION_CONTROL_H
#define WEFT_CLIENT_SESSION_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/proto.h"

struct weft_session;

/* How far the join has come; only ever forward. */
enum client_phase {
    CLIENT_CONNECTING = 0, /* no answer of the coordinator yet */
    CLIENT_HELLO_SENT = 1,    /* Challenge answered by Hello */
    CLIENT_WELCOME = 2,    /* accepted: `welcome` is there */
    CLIENT_ROSTER = 3,     /* everybody's addresses: `roster` is there */
    CLIENT_GO = 4,         /* data may move */
    CLIENT_ENDED = 5,      /* the connection is gone */
};

struct client_control {
    struct weft_net *net;                       /* owned */
    struct weft_net_connection *connection;     /* net thread; NULL when gone */
    _Atomic int phase;                          /* enum client_phase */
    _Atomic bool is_connected;                  /* the connection has been established */
    _Atomic bool leaving;                       /* a closed connection is what we asked for */
    pthread_mutex_t lock;                       /* guards what follows */
    Weft__Control__Control *welcome, *roster;   /* owned; unpacked messages */
    Weft__Control__Control *declared;           /* owned; the answer to the open declaration, or NULL */
    Weft__Control__Control *shrunk;             /* owned; who goes on, the newest, or NULL */
    uint64_t committed, codec_steps;            /* of Go: a newcomer goes on from there; set before the
                                                 * phase */
    uint32_t tensors;                           /* of Go: so many are declared already */
    bool has_wait_reason;                             /* the coordinator has said for whom this rank waits: */
    char whom[320];
    struct weft_list outgoing;                   /* owned; not yet sent */
    uint8_t nonce[WEFT_NONCE_BYTES];            /* ours, for the coordinator's proof */
    char name[128], host[64];
};

enum weft_status client_control_start(struct weft_session *session, struct weft_error *error);
/* Joins the net thread and frees. Fine on a half-built one. */
void client_control_stop(struct weft_session *session);
/* Any thread: pack and queue one message for the coordinator. */
enum weft_status client_control_send(struct weft_session *session, const Weft__Control__Control *message);
/* Any thread: this rank has lost another; do all live? Answered, by client_engine_all_alive, only where
 * they do. */
void client_control_check_liveness(struct weft_session *session);
/* Caller's thread, when its time is up: who has not done what, as the coordinator knows it ("rank 3
 * (hostb, pid 41) has not declared it"). Waits for that a moment; where nothing comes, the text says so,
 * and names the coordinator. */
void client_control_wait_reason(struct weft_session *session, char *out, size_t out_bytes);
/* Any thread: the failure of this session, as an Abort for everybody. */
void client_control_send_abort(struct weft_session *session, enum weft_status status, const char *text);
/* Net thread: this worker's hash of a tensor's weights after a step, for the shard to compare. */
void client_control_send_hash(struct weft_session *session, uint32_t tensor, uint64_t step, uint32_t endpoint,
                              uint64_t hash);
/* Caller's thread: say goodbye, flush, close; waits until the connection is gone or until_ns. */
void client_control_leave(struct weft_session *session, uint64_t until_ns);
static inline enum client_phase client_control_phase(struct client_control *control)
{
    return (enum client_phase)atomic_load(&control->phase);
}

#endif
