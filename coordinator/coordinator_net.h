/* coordinator_net.h - connections of the coordinator's driver. Internal to the coordinator module. Net
 * thread. */
#ifndef WEFT_COORDINATOR_COORDINATOR_NET_H
#define WEFT_COORDINATOR_COORDINATOR_NET_H

#include "coordinator/coordinator_state.h"

/* A connection as the state machine sees it. That of a member outlives its sockets. */
struct server_connection {
    struct weft_coordinator_server *server;
    struct weft_net_connection *net; /* NULL: suspended, or closing without one */
    uint64_t id;
    bool has_hello;   /* its first frame was decoded */
    bool is_welcomed; /* frames carry a MAC from Welcome on, if the member announced that in Hello */
    bool is_final;    /* its end is the end of the member: it has left, or was closed on purpose */
    struct weft_seal seal;
    uint64_t sent_ns; /* time of the last message to the member */
    uint8_t challenge[WEFT_NONCE_BYTES]; /* nonce of its Challenge */
    struct weft_resume resume;
    struct weft_process_identity process; /* from Hello */
    bool is_awaited;                      /* of a restored job: the member has not resumed here */
    uint64_t suspended_ns; /* when its socket ended; meaningful without `net` */
    bool is_suspected;     /* since then another member has lost a data connection */
    char why[96];          /* how its socket ended */
};

struct weft_coordinator_server {
    struct weft_env *env;
    struct weft_net *net; /* borrowed */
    char *secret; /* owned; NULL: none */
    struct weft_coordinator *coordinator;
    struct weft_net_listener *listener;
    struct server_connection **connections; /* owned, sorted by id, which rise */
    size_t connection_count, connection_capacity;
    uint64_t next_id;
    const Weft__Control__Control *same; /* the message of the outermost sends to many; NULL: none */
    uint32_t same_depth;                /* a send that fails may lead to further sends to many */
    struct weft_frame *same_frame;      /* owned reference: the packed message; NULL: not yet */
    bool checks_suspended;              /* the timer of coordinator_resume.c runs */
    uint64_t asked_ns;                  /* of the last request of a liveness check; 0: none */
    uint64_t ticked_ns;           /* time of the last tick */
    struct weft_log_limit rejected; /* connections closed because of what they sent */
    uint64_t beat_ns;             /* a welcomed connection gets a message at least this often */
    struct weft_coordinator_snapshot_calls snapshot_calls;
    void (*ended)(void *context, enum weft_status status, const char *text);
    struct coordinator_reign *reign; /* owned; NULL: no store */
    bool is_replaced;                /* another process coordinates, or may */
    void (*replaced)(void *context);
    void *context;
};

/* coordinator_net.c */
/* Without a listener. */
enum weft_status coordinator_server_create(struct weft_env *env, struct weft_net *net,
                                           const struct weft_coordinator_options *options,
                                           struct weft_coordinator_server **out, struct weft_error *error);
/* Of listeners: the context is the server; `opened` as below. */
extern const struct weft_net_handler coordinator_server_handler;
void coordinator_server_opened(void *server, struct weft_net_connection *net);
enum weft_status coordinator_server_begin(struct weft_coordinator_server *server, const char *host,
                                          uint16_t port, struct weft_error *error);
/* A member of a restored job: it may resume. */
enum weft_status coordinator_server_adopt(struct weft_coordinator_server *server,
                                          struct coordinator_member *member, bool is_suspected);
struct server_connection *coordinator_server_find(const struct weft_coordinator_server *server, uint64_t id);
/* The state machine's send and close. */
void coordinator_server_send(void *server, uint64_t id, const Weft__Control__Control *message);
void coordinator_server_close(void *server, uint64_t id, const char *why);
/* A connection without a socket ends: notifies the state machine and frees it. */
void coordinator_server_remove(struct server_connection *connection, const char *why);

/* coordinator_resume.c */
/* The socket has ended. Returns whether the member may resume; then the connection stays, without a socket.
 */
bool coordinator_resume_suspend(struct server_connection *connection, const char *why);
/* The first frame of a new connection is a Resume: its socket replaces the one of the member's connection,
 * and the new connection ends. Otherwise the sender gets the reason and is closed. */
void coordinator_resume_accept(struct server_connection *connection, const Weft__Control__Resume *request,
                               const uint8_t *frame, size_t bytes);
/* Counts a frame of a member. Returns whether an Ack is due. */
bool coordinator_resume_received(struct server_connection *connection, const Weft__Control__Control *message,
                                 size_t bytes);
/* Sends the Ack: what the frames have changed is in the store. */
void coordinator_resume_acknowledge(struct weft_coordinator_server *server, uint64_t id);
/* Begins to check suspended connections. false: no memory. */
bool coordinator_resume_watch(struct weft_coordinator_server *server);
/* Ends a suspended connection, not inside this call. */
void coordinator_resume_drop(struct server_connection *connection, const char *why);

#endif
