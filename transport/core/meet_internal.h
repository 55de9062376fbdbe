/* meet_internal.h - what the files meet*.c share.
 *
 *     stranger --proven--> somebody asked for him?  yes: the peer's connection --his parameters--> met --> gone
 *     (bounded, deadline)                           no:  PEER_EARLY until somebody does (bounded)
 *
 *     asked for, larger id than ours:  PEER_DIALLING <-> PEER_RESTING (after a failed attempt), until meet_ns
 *     asked for, smaller id:           PEER_AWAITED, until meet_ns
 *
 * A connection that ends is taken out of everything at once, but its memory stays until the end of meet_progress, because
 * the events of this round may still point at it. */
#ifndef WEFT_TRANSPORT_MEET_INTERNAL_H
#define WEFT_TRANSPORT_MEET_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "transport/core/meet_handshake.h"

enum {
    MEET_NAME_BYTES = 16,                              /* random, of an abstract socket */
    MEET_SCRATCH_BYTES = 16384 + HANDSHAKE_SEALED_MAX, /* one read and the rest of the one before */
    MEET_DESCRIPTORS_QUEUED = 2 * MEET_DESCRIPTORS_MAX,
};

struct meet_where { /* an address taken apart */
    uint32_t id;
    struct sockaddr_storage storage;
    socklen_t bytes;
};

enum source_kind { SOURCE_LISTENER = 1, SOURCE_TIMER, SOURCE_SOCKET, SOURCE_PROCESS };
struct source { /* what an epoll event points at */
    enum source_kind kind;
};

struct letter { /* a frame on its way out */
    struct weft_list link;
    uint32_t bytes, sent;
    uint32_t descriptor_count;
    int descriptors[MEET_DESCRIPTORS_MAX]; /* our duplicates; closed once sent */
    uint8_t data[];
};

struct connection {
    struct meet *meet;
    struct source socket, process;
    int fd, process_fd;  /* process_fd: a pidfd, or -1 */
    int32_t pid;         /* of the other side, or 0 */
    struct handshake handshake;
    struct meet_peer *peer;       /* NULL: a stranger */
    struct weft_list link;        /* in meet->strangers, ->dialling or ->dead, or in none */
    uint64_t deadline_ns;         /* while in strangers or dialling */
    uint64_t since_ns;
    bool connecting;              /* connect() has not ended yet */
    bool ended;
    uint32_t interest;            /* epoll events asked for */
    uint8_t *partial;             /* the first bytes of a frame; NULL: none */
    uint32_t partial_bytes;
    int descriptors[MEET_DESCRIPTORS_QUEUED]; /* came, and belong to frames to come */
    uint32_t descriptor_count;
    struct weft_list letters;
    uint32_t unsent_bytes;
    char name[80];                /* of the other side, for people */
};

enum peer_state { PEER_EARLY = 1, PEER_AWAITED, PEER_RESTING, PEER_DIALLING, PEER_MET, PEER_GONE };

struct meet_peer {
    struct meet *meet;
    uint32_t id;
    enum peer_state state;
    void *owner;
    struct connection *connection; /* NULL: none now */
    struct meet_peer *next;        /* in its bucket */
    struct weft_list link;         /* in meet->waiting until met, then in none; in meet->ending while `gone` is owed */
    struct weft_list resting;      /* in meet->resting while PEER_RESTING */
    uint64_t deadline_ns, retry_ns, rest_ns;
    uint32_t attempts, nobody_count; /* dials; those that were told that nobody listens */
    struct meet_where where;       /* to dial */
    void *parameters;              /* ours; NULL when sent or empty */
    uint32_t parameter_bytes, descriptor_count;
    int descriptors[MEET_DESCRIPTORS_MAX];
    enum weft_status status;       /* PEER_GONE: why */
    char text[240];                /* the same, or what the last attempt met */
};

struct meet {
    struct weft_env *env;
    struct meet_options options;
    struct handshake_self self;
    int epoll_fd, listen_fd, timer_fd;
    struct source listener, timer;
    bool listener_rests;     /* not in epoll: too many young strangers, or no descriptor */
    uint64_t listen_again_ns;
    uint64_t timer_ns;       /* what timer_fd is set to; WEFT_NEVER: off */
    uint8_t address[MEET_ADDRESS_BYTES_MAX];
    size_t address_bytes;

    struct meet_peer **buckets;
    uint32_t bucket_count;
    struct weft_list waiting, resting, ending;   /* struct meet_peer */
    struct weft_list strangers, dialling, dead;  /* struct connection; the first two by deadline */
    bool progressing;
    struct meet_peer *met_now;   /* while `met` of this peer runs: what may be taken */
    const uint8_t *rest;         /* ... and what was read behind its parameters */
    size_t rest_bytes;

    struct meet_stats stats;
    uint64_t logged_ns;      /* the last line about a refusal */
    uint64_t unlogged;       /* refusals since */
    uint8_t scratch[MEET_SCRATCH_BYTES];
};

/* meet.c */
void meet_count_refusal(struct meet *meet, enum meet_reason reason, const char *who);
enum weft_status meet_watch(struct meet *meet, int fd, struct source *source, uint32_t events);
/* Have meet_progress called at that time, at the latest. */
void meet_set_timer(struct meet *meet, uint64_t time_ns);

/* meet_address.c */
enum weft_status meet_where_local(struct meet *meet, uint16_t port, struct meet_where *where_out, struct weft_error *error);
void meet_address_encode(struct meet *meet, const struct meet_where *where);
enum weft_status meet_address_decode(const struct meet *meet, const void *address, size_t bytes, struct meet_where *where_out);
void meet_where_name(const struct meet_where *where, char *text, size_t bytes);
bool meet_where_is_local(const struct meet_where *where);

/* meet_listen.c */
enum weft_status meet_listen(struct meet *meet, struct weft_error *error);
int meet_accept(struct meet *meet);
/* Strangers whose time is over; the listener after its rest. */
int meet_listen_timers(struct meet *meet, uint64_t now_ns);
uint64_t meet_listen_next_ns(const struct meet *meet);
void meet_listen_rest(struct meet *meet, bool rest, uint64_t again_ns);

/* meet_connection.c */
struct connection *connection_make(struct meet *meet, int fd, enum handshake_role role, uint32_t peer_id); /* NULL: no memory; fd closed */
enum meet_reason connection_know_peer(struct connection *connection); /* user and process; 0: fine */
void connection_watch_process(struct connection *connection);
void connection_want(struct connection *connection, uint32_t events);
void connection_read(struct connection *connection);
void connection_write(struct connection *connection);
/* Send what the handshake has put out; false: it could not be said (nobody hears, or he does not read). */
bool connection_say(struct connection *connection);
void connection_process_ended(struct connection *connection);
enum weft_status connection_send(struct connection *connection, const void *data, uint32_t bytes, const int *descriptors, uint32_t count);
/* Take it out of everything; no callback. */
void connection_close(struct connection *connection);
/* As connection_close, but the socket stays open and is the caller's. */
int connection_take(struct connection *connection);
/* It is over by our decision: told, counted; the peer, if any, learns. */
void connection_refuse(struct connection *connection, enum meet_reason reason);
/* It is over by itself. */
void connection_lost(struct connection *connection, enum weft_status status, const char *text);
void connections_free_dead(struct meet *meet);

/* meet_peer.c */
struct meet_peer *peer_find(struct meet *meet, uint32_t id);
/* A connection has proven itself: it finds its peer, or waits for one. */
void peer_proven(struct connection *connection);
/* Its parameters are here. */
void peer_met(struct meet_peer *peer);
/* It is over; `gone` follows from meet_progress. */
void peer_fail(struct meet_peer *peer, enum weft_status status, const char *text);
/* The connection of this peer has ended (it is closed already). reason 0: by itself. */
void peer_connection_ended(struct meet_peer *peer, enum meet_reason reason, bool refused_there, enum weft_status status, const char *text);
int peer_timers(struct meet *meet, uint64_t now_ns);
uint64_t peer_next_ns(const struct meet *meet);
int peer_deliver_ends(struct meet *meet);
void peers_free(struct meet *meet);

/* meet_dial.c */
void peer_dial(struct meet_peer *peer);
/* connect() has ended */
void connection_dialled(struct connection *connection);
/* Another attempt soon. */
void peer_rest(struct meet_peer *peer);
int dial_timers(struct meet *meet, uint64_t now_ns);
uint64_t dial_next_ns(const struct meet *meet);

#endif
