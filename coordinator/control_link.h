/* control_link.h - a member's end of its control session: the connection in use, its MAC, and its replacement
 * after the network has broken it. Public through coordinator.h; weftd and libweft use it. Net thread.
 *
 *     closed -> connect again --refused: the coordinator's process is dead--> ended
 *                  |    ^ ended before Resumed: after 20 ms
 *               Challenge -> Resume -> Resumed -> frames that the coordinator has not received, in order
 *
 * Meanwhile messages are kept, and the process continues: operations between ranks and shards need no
 * coordinator. After Welcome.resume_ns the session has ended.
 *
 * In a job with a store the link then tries the candidates of the Roster in turn, also after the silence of
 * the coordinator. A Challenge with a higher reign is another coordinator's: it has the job's state but no
 * frames. Both sides count from 0 again. The member repeats its kept requests, its unanswered
 * declaration and its unanswered liveness request. */
#ifndef WEFT_COORDINATOR_CONTROL_LINK_H
#define WEFT_COORDINATOR_CONTROL_LINK_H

#include "base/base.h"
#include "proto/proto.h"

struct weft_control_address {
    char host[256];
    uint16_t port;
};

/* HOST:PORT, an IPv6 address in brackets. */
bool weft_control_address_parse(const char *text, struct weft_control_address *address_out);

struct weft_control_link {
    struct weft_env *env;
    struct weft_net *net;             /* borrowed; this and the fields up to context: set by the owner */
    const char *secret, *host;        /* borrowed; secret NULL: none */
    uint16_t port;
    /* a frame of a replaced connection, as that of the first one */
    void (*frame)(void *context, const uint8_t *data, size_t bytes);
    void (*resumed)(void *context);
    /* The coordinator's address refuses connections: no process coordinates there. May be NULL. */
    void (*refused)(void *context);
    /* The session has ended: reason and text of base/net, or WEFT_ERR_ABORTED and the coordinator's
     * sentence. */
    void (*ended)(void *context, enum weft_status reason, const char *text);
    void *context;

    struct weft_net_connection *connection; /* in use; NULL: none. The owner sets the first one */
    struct weft_seal seal;                  /* of that connection */
    struct weft_resume resume;
    bool is_leaving;                        /* closes when the coordinator has all frames */
    bool is_replaced;                       /* not the coordinator that the Roster names */
    uint64_t reign;                         /* of the coordinator of this session; 0: it has no store */
    uint32_t wire_version;                  /* of the job; 0: before the Roster */
    bool is_elastic;                        /* the coordinator answers TensorFree */
    struct {
        uint64_t takeover_ns;             /* from Welcome */
        struct weft_control_address *all; /* owned, (count,) of the Roster */
        uint32_t count;                   /* 0: no other process can coordinate */
    } candidates;
    /* owned references; not answered; NULL: none */
    struct weft_frame *declare, *question, *fetch, *agreement;
    bool has_abandoned;                    /* a connection that is not in use may report its end */
    struct {
        struct weft_net_connection *connection; /* until the coordinator has accepted it */
        struct weft_seal seal;
        uint8_t nonce[WEFT_NONCE_BYTES]; /* for the coordinator's proof */
        bool has_challenge;              /* it has answered the Challenge */
        uint64_t until_ns;               /* 0: nothing is being replaced */
        uint32_t target;                 /* 0: host and port; else candidate - 1 */
        uint64_t limit_ns, reign;        /* of this attempt; reign: from its Challenge */
    } next;
};

void weft_control_link_init(struct weft_control_link *link, struct weft_env *env);
void weft_control_link_fini(struct weft_control_link *link); /* after the net */
/* Packs, keeps and sends. Without a connection the message is kept until the session resumes. Hello starts
 * the MAC. WEFT_ERR_CLOSED: the session has ended or cannot resume. */
enum weft_status weft_control_link_send(struct weft_control_link *link,
                                        const Weft__Control__Control *message);
enum weft_status weft_control_link_send_frame(struct weft_control_link *link, struct weft_frame *frame);
/* The first messages of the coordinator. */
void weft_control_link_challenged(struct weft_control_link *link, const Weft__Control__Challenge *challenge);
void weft_control_link_welcomed(struct weft_control_link *link, const Weft__Control__Welcome *welcome);
/* Counts a frame behind Welcome, and sends the Ack that is due. False: the message is an Ack, and done.
 * *is_valid_out: false: the coordinator breaks the protocol. */
bool weft_control_link_received(struct weft_control_link *link, const Weft__Control__Control *message,
                                size_t bytes, bool *is_valid_out);
/* Ends the session now: the connection cannot be used any more. The coordinator is notified if possible. */
void weft_control_link_close(struct weft_control_link *link);
/* Ends the session when the coordinator has received all frames. `ended` follows. has_left: the last one is
 * Leave; otherwise Close follows. */
void weft_control_link_leave(struct weft_control_link *link, bool has_left);
/* The owner's connection has ended. It is replaced, or `ended` runs. */
void weft_control_link_closed(struct weft_control_link *link, struct weft_net_connection *connection,
                              enum weft_status reason, const char *text);
/* The coordinator is silent: abandons the connection in use and tries the candidates. false: there are none,
 * and nothing has changed. */
bool weft_control_link_replace(struct weft_control_link *link);

static inline bool weft_control_link_is_open(const struct weft_control_link *link)
{
    return link->connection || link->next.until_ns;
}

#endif
