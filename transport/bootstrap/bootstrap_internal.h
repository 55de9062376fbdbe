/* bootstrap_internal.h - shared by the files of this folder.
 *
 *     unproven connection --proof--> known peer?  yes: connection --parameters--> connected --> disconnected
 *     (bounded, deadline)                         no:  PEER_EARLY until bootstrap_connect (bounded)
 *
 *     known, larger id than ours:   PEER_DIALLING <-> PEER_BACKING_OFF (after a failure), until the timeout
 *     known, smaller id than ours:  PEER_EXPECTED, until the timeout (connect_timeout_ns)
 *
 * A connection that ends leaves all lists at once. Its memory stays until the end of bootstrap_progress,
 * because events of the current epoll_wait may still point to it. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H
#define WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "transport/bootstrap/handshake.h"

enum {
    BOOTSTRAP_NAME_BYTES = 16,                              /* random name of an abstract socket */
    /* one read and the unfinished frame before it */
    BOOTSTRAP_SCRATCH_BYTES = 16384 + HANDSHAKE_SEALED_FRAME_MAX,
    BOOTSTRAP_DESCRIPTORS_QUEUED = 2 * BOOTSTRAP_DESCRIPTORS_MAX,
};

struct socket_address { /* decoded bootstrap address */
    uint32_t id;
    struct sockaddr_storage storage;
    socklen_t bytes;
};

enum source_kind { SOURCE_LISTENER = 1, SOURCE_TIMER, SOURCE_SOCKET, SOURCE_PROCESS };
struct source { /* target of an epoll event */
    enum source_kind kind;
};

struct out_frame { /* one queued frame */
    struct weft_list link;
    uint32_t bytes, sent;
    uint32_t descriptor_count;
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX]; /* duplicates; closed when the frame is sent */
    uint8_t data[];
};

struct connection {
    struct bootstrap *bootstrap;
    struct source socket, process;
    int fd, process_fd;  /* process_fd: a pidfd, or -1 */
    int32_t pid;         /* of the peer process, or 0 */
    struct handshake handshake;
    struct bootstrap_peer *peer;       /* NULL: unproven */
    struct weft_list link;        /* in bootstrap->unproven, ->dialling or ->dead, or in none */
    uint64_t deadline_ns;         /* while in `unproven` or `dialling` */
    uint64_t since_ns;
    bool connecting;              /* connect() has not ended yet */
    bool ended;
    uint32_t interest;            /* epoll events requested */
    uint8_t *partial;             /* first bytes of an incomplete frame, or NULL */
    uint32_t partial_bytes;
    int descriptors[BOOTSTRAP_DESCRIPTORS_QUEUED]; /* received, not yet claimed by a frame */
    uint32_t descriptor_count;
    struct weft_list out_frames;
    uint32_t unsent_bytes;
    char name[80];                /* name of the peer for log lines */
};

enum peer_state {
    PEER_EARLY = 1,
    PEER_EXPECTED,
    PEER_BACKING_OFF,
    PEER_DIALLING,
    PEER_CONNECTED,
    PEER_DISCONNECTED
};

struct bootstrap_peer {
    struct bootstrap *bootstrap;
    uint32_t id;
    enum peer_state state;
    void *owner;
    struct connection *connection; /* NULL: none */
    struct bootstrap_peer *next;        /* next in the hash bucket */
    /* in bootstrap->waiting until connected; in bootstrap->ending while `disconnected` is pending */
    struct weft_list link;
    struct weft_list backing_off;      /* in bootstrap->resting while PEER_BACKING_OFF */
    uint64_t deadline_ns, retry_ns, backoff_ns;
    uint32_t attempts, refused_dial_count; /* dials; dials in a row that were refused */
    struct socket_address socket_address;       /* where to dial */
    void *parameters;              /* local parameters; NULL when sent or empty */
    uint32_t parameter_bytes, descriptor_count;
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX];
    enum weft_status status;       /* PEER_DISCONNECTED: the reason */
    char text[240];                /* the reason as a sentence, or the error of the last attempt */
};

/* Address that peers connect to. */
struct bootstrap_own_address {
    uint8_t address[BOOTSTRAP_ADDRESS_BYTES_MAX];
    size_t address_bytes;
};
/* While `connected` of a peer runs; bootstrap_detach_socket is legal then. */
struct bootstrap_connecting {
    /* set while `connected` of this peer runs; bootstrap_detach_socket is legal then */
    struct bootstrap_peer *connecting_peer;
    const uint8_t *unconsumed;         /* bytes read behind the parameters of connecting_peer */
    size_t unconsumed_bytes;
};
/* Log lines about refusals. */
struct bootstrap_refusal_log {
    uint64_t logged_ns;      /* time of the last log line about a refusal */
    uint64_t unlogged;       /* refusals since that line */
};

struct bootstrap {
    struct weft_env *env;
    struct bootstrap_options options;
    struct handshake_self self;
    int epoll_fd, listen_fd, timer_fd;
    struct source listener, timer;
    /* the listener is out of epoll: too many unproven connections, or no descriptor */
    bool is_listener_paused;
    uint64_t listen_again_ns;
    uint64_t timer_ns;       /* expiry of timer_fd; WEFT_NEVER: disarmed */
    struct bootstrap_own_address own_address;

    struct bootstrap_peer **buckets;
    uint32_t bucket_count;
    struct weft_list waiting, backing_off, ending;   /* struct bootstrap_peer */
    struct weft_list unproven, dialling, dead;  /* struct connection; the first two ordered by deadline */
    bool progressing;
    struct bootstrap_connecting connecting;

    struct bootstrap_stats stats;
    struct bootstrap_refusal_log refusal_log;
    uint8_t scratch[BOOTSTRAP_SCRATCH_BYTES];
};

/* bootstrap.c */
void bootstrap_count_refusal(struct bootstrap *bootstrap, enum bootstrap_refusal reason,
                             const char *peer_name);
enum weft_status bootstrap_watch_fd(struct bootstrap *bootstrap, int fd, struct source *source,
                                    uint32_t events);
/* Ensures that bootstrap_progress runs at that time or earlier. */
void bootstrap_set_timer(struct bootstrap *bootstrap, uint64_t time_ns);

/* socket_address.c */
enum weft_status socket_address_local(struct bootstrap *bootstrap, uint16_t port,
                                      struct socket_address *socket_address_out, struct weft_error *error);
void bootstrap_address_encode(struct bootstrap *bootstrap, const struct socket_address *socket_address);
enum weft_status bootstrap_address_decode(const struct bootstrap *bootstrap, const void *address,
                                          size_t bytes, struct socket_address *socket_address_out);
void socket_address_name(const struct socket_address *socket_address, char *text, size_t bytes);
bool socket_address_is_local(const struct socket_address *socket_address);

/* bootstrap_listen.c */
enum weft_status bootstrap_listen(struct bootstrap *bootstrap, struct weft_error *error);
int bootstrap_accept(struct bootstrap *bootstrap);
/* Closes expired unproven connections; resumes a paused listener. */
int bootstrap_listen_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t bootstrap_listen_next_ns(const struct bootstrap *bootstrap);
void bootstrap_listen_pause(struct bootstrap *bootstrap, bool pause, uint64_t again_ns);

/* connection.c */
/* NULL: no memory, and fd is closed */
struct connection *connection_create(struct bootstrap *bootstrap, int fd, enum handshake_role role,
                                     uint32_t peer_id);
/* checks user and host; 0: accepted */
enum bootstrap_refusal connection_identify_peer(struct connection *connection);
void connection_watch_process(struct connection *connection);
void connection_set_events(struct connection *connection, uint32_t events);
void connection_read(struct connection *connection);
void connection_write(struct connection *connection);
/* Sends the pending handshake frame. False: the socket is closed or full. */
bool connection_flush_handshake(struct connection *connection);
void connection_on_process_exit(struct connection *connection);
enum weft_status connection_send(struct connection *connection, const void *data, uint32_t bytes,
                                 const int *descriptors, uint32_t count);
/* Removes the connection from all lists and closes it. Calls no callback. */
void connection_close(struct connection *connection);
/* As connection_close, but the socket stays open and belongs to the caller. */
int connection_detach_socket(struct connection *connection);
/* Ends the connection for a local reason: sends the refusal, counts it and informs the peer object. */
void connection_refuse(struct connection *connection, enum bootstrap_refusal reason);
/* Ends a connection that broke or was closed by the peer. */
void connection_lost(struct connection *connection, enum weft_status status, const char *text);
void connections_free_dead(struct bootstrap *bootstrap);

/* bootstrap_peer.c */
struct bootstrap_peer *peer_find(struct bootstrap *bootstrap, uint32_t id);
/* Assigns a proven connection to its peer, or to a new PEER_EARLY. */
void peer_attach_proven(struct connection *connection);
/* The peer's parameters have arrived. */
void peer_connected(struct bootstrap_peer *peer);
/* Ends the peer; the callback `disconnected` runs from bootstrap_progress. */
void peer_fail(struct bootstrap_peer *peer, enum weft_status status, const char *text);
/* The connection of this peer has ended and is closed already. reason 0: it broke, or the peer closed it. */
void peer_connection_ended(struct bootstrap_peer *peer, enum bootstrap_refusal reason, bool refused_by_peer,
                           enum weft_status status, const char *text);
int peer_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t peer_next_ns(const struct bootstrap *bootstrap);
int peer_deliver_disconnects(struct bootstrap *bootstrap);
void peers_free(struct bootstrap *bootstrap);

/* bootstrap_dial.c */
void peer_dial(struct bootstrap_peer *peer);
/* connect() has finished */
void connection_dialled(struct connection *connection);
/* Schedules the next attempt. */
void peer_back_off(struct bootstrap_peer *peer);
int dial_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t dial_next_ns(const struct bootstrap *bootstrap);

#endif
