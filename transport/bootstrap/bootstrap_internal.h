/* bootstrap_internal.h - what the files meet*.c share.
 *
 *     stranger --proven--> somebody asked for him?  yes: the peer's connection --his parameters--> met --> gone
 *     (bounded, deadline)                           no:  PEER_EARLY until somebody does (bounded)
 *
 *     asked for, larger id than ours:  PEER_DIALLING <-> PEER_BACKING_OFF (after a failed attempt), until connect_timeout_ns
 *     asked for, smaller id:           PEER_EXPECTED, until connect_timeout_ns
 *
 * A connection that ends is taken out of everything at once, but its memory stays until the end of
 * bootstrap_progress, because the events of this round may still point at it. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H
#define WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "transport/bootstrap/handshake.h"

enum {
    BOOTSTRAP_NAME_BYTES = 16,                              /* random, of an abstract socket */
    /* one read and the rest of the one before */
    BOOTSTRAP_SCRATCH_BYTES = 16384 + HANDSHAKE_SEALED_FRAME_MAX,
    BOOTSTRAP_DESCRIPTORS_QUEUED = 2 * BOOTSTRAP_DESCRIPTORS_MAX,
};

struct socket_address { /* an address taken apart */
    uint32_t id;
    struct sockaddr_storage storage;
    socklen_t bytes;
};

enum source_kind { SOURCE_LISTENER = 1, SOURCE_TIMER, SOURCE_SOCKET, SOURCE_PROCESS };
struct source { /* what an epoll event points at */
    enum source_kind kind;
};

struct out_frame { /* a frame on its way out */
    struct weft_list link;
    uint32_t bytes, sent;
    uint32_t descriptor_count;
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX]; /* our duplicates; closed once sent */
    uint8_t data[];
};

struct connection {
    struct bootstrap *bootstrap;
    struct source socket, process;
    int fd, process_fd;  /* process_fd: a pidfd, or -1 */
    int32_t pid;         /* of the other side, or 0 */
    struct handshake handshake;
    struct bootstrap_peer *peer;       /* NULL: a stranger */
    struct weft_list link;        /* in meet->strangers, ->dialling or ->dead, or in none */
    uint64_t deadline_ns;         /* while in strangers or dialling */
    uint64_t since_ns;
    bool connecting;              /* connect() has not ended yet */
    bool ended;
    uint32_t interest;            /* epoll events asked for */
    uint8_t *partial;             /* the first bytes of a frame; NULL: none */
    uint32_t partial_bytes;
    int descriptors[BOOTSTRAP_DESCRIPTORS_QUEUED]; /* came, and belong to frames to come */
    uint32_t descriptor_count;
    struct weft_list out_frames;
    uint32_t unsent_bytes;
    char name[80];                /* of the other side, for people */
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
    struct connection *connection; /* NULL: none now */
    struct bootstrap_peer *next;        /* in its bucket */
    struct weft_list link;         /* in meet->waiting until met, then in none; in meet->ending while
                                    * `gone` is owed */
    struct weft_list resting;      /* in meet->resting while PEER_BACKING_OFF */
    uint64_t deadline_ns, retry_ns, backoff_ns;
    uint32_t attempts, refused_dial_count; /* dials; those that were told that nobody listens */
    struct socket_address socket_address;       /* to dial */
    void *parameters;              /* ours; NULL when sent or empty */
    uint32_t parameter_bytes, descriptor_count;
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX];
    enum weft_status status;       /* PEER_DISCONNECTED: why */
    char text[240];                /* the same, or what the last attempt met */
};

struct bootstrap {
    struct weft_env *env;
    struct bootstrap_options options;
    struct handshake_self self;
    int epoll_fd, listen_fd, timer_fd;
    struct source listener, timer;
    bool is_listener_paused;     /* not in epoll: too many young strangers, or no descriptor */
    uint64_t listen_again_ns;
    uint64_t timer_ns;       /* what timer_fd is set to; WEFT_NEVER: off */
    uint8_t address[BOOTSTRAP_ADDRESS_BYTES_MAX];
    size_t address_bytes;

    struct bootstrap_peer **buckets;
    uint32_t bucket_count;
    struct weft_list waiting, resting, ending;   /* struct bootstrap_peer */
    struct weft_list unproven, dialling, dead;  /* struct connection; the first two by deadline */
    bool progressing;
    struct bootstrap_peer *connecting_peer;   /* while `met` of this peer runs: what may be taken */
    const uint8_t *rest;         /* ... and what was read behind its parameters */
    size_t rest_bytes;

    struct bootstrap_stats stats;
    uint64_t logged_ns;      /* the last line about a refusal */
    uint64_t unlogged;       /* refusals since */
    uint8_t scratch[BOOTSTRAP_SCRATCH_BYTES];
};

/* meet.c */
void bootstrap_count_refusal(struct bootstrap *bootstrap, enum bootstrap_refusal reason, const char *who);
enum weft_status bootstrap_watch_fd(struct bootstrap *bootstrap, int fd, struct source *source,
                                    uint32_t events);
/* Have bootstrap_progress called at that time, at the latest. */
void bootstrap_set_timer(struct bootstrap *bootstrap, uint64_t time_ns);

/* bootstrap_address.c */
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
/* Strangers whose time is over; the listener after its rest. */
int bootstrap_listen_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t bootstrap_listen_next_ns(const struct bootstrap *bootstrap);
void bootstrap_listen_pause(struct bootstrap *bootstrap, bool rest, uint64_t again_ns);

/* connection.c */
/* NULL: no memory; fd closed */
struct connection *connection_create(struct bootstrap *bootstrap, int fd, enum handshake_role role,
                                     uint32_t peer_id);
/* user and process; 0: fine */
enum bootstrap_refusal connection_identify_peer(struct connection *connection);
void connection_watch_process(struct connection *connection);
void connection_set_events(struct connection *connection, uint32_t events);
void connection_read(struct connection *connection);
void connection_write(struct connection *connection);
/* Send what the handshake has put out; false: it could not be said (nobody hears, or he does not read). */
bool connection_flush_handshake(struct connection *connection);
void connection_on_process_exit(struct connection *connection);
enum weft_status connection_send(struct connection *connection, const void *data, uint32_t bytes,
                                 const int *descriptors, uint32_t count);
/* Take it out of everything; no callback. */
void connection_close(struct connection *connection);
/* As connection_close, but the socket stays open and is the caller's. */
int connection_detach_socket(struct connection *connection);
/* It is over by our decision: told, counted; the peer, if any, learns. */
void connection_refuse(struct connection *connection, enum bootstrap_refusal reason);
/* It is over by itself. */
void connection_lost(struct connection *connection, enum weft_status status, const char *text);
void connections_free_dead(struct bootstrap *bootstrap);

/* bootstrap_peer.c */
struct bootstrap_peer *peer_find(struct bootstrap *bootstrap, uint32_t id);
/* A connection has proven itself: it finds its peer, or waits for one. */
void peer_attach_proven(struct connection *connection);
/* Its parameters are here. */
void peer_connected(struct bootstrap_peer *peer);
/* It is over; `gone` follows from bootstrap_progress. */
void peer_fail(struct bootstrap_peer *peer, enum weft_status status, const char *text);
/* The connection of this peer has ended (it is closed already). reason 0: by itself. */
void peer_connection_ended(struct bootstrap_peer *peer, enum bootstrap_refusal reason, bool refused_by_peer,
                           enum weft_status status, const char *text);
int peer_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t peer_next_ns(const struct bootstrap *bootstrap);
int peer_deliver_disconnects(struct bootstrap *bootstrap);
void peers_free(struct bootstrap *bootstrap);

/* bootstrap_dial.c */
void peer_dial(struct bootstrap_peer *peer);
/* connect() has ended */
void connection_dialled(struct connection *connection);
/* Another attempt soon. */
void peer_back_off(struct bootstrap_peer *peer);
int dial_timers(struct bootstrap *bootstrap, uint64_t now_ns);
uint64_t dial_next_ns(const struct bootstrap *bootstrap);

#endif
