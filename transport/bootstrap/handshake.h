/* handshake.h - what two endpoints say to each other, as a state machine without sockets, clock or memory.
 *
 * The owner moves bytes: it hands in what has come, always from the start of a frame, and sends what lies in
 * `out`.
 *
 *     frame = kind (1 byte) | descriptors (1) | length of the body (2, little-endian) | body hello : magic
 *     "weftmeet" | version 2 | mode 1 | role 1 | from 4 | to 4 | mark of the job 4 | challenge 32 proof :
 *     HMAC(session key, "weft meet proof" role)
 *     refuse: reason 1                       (never proven: a hint for the text only, either side, then the end)
 *     parameters, message: bytes | HMAC(session key, "weft meet frame" role number frame-header bytes)
 *
 *     job key     = HMAC(secret or nonce, "weft meet job" version mode nonce)
 *     session key = HMAC(job key, "weft meet session" hello of the dialer, hello of the accepter)
 *
 * Both hellos whole: version, mode, job, ids, roles and both fresh challenges. So a proof of one connection,
 * direction or pair is worth nothing in another. `number` counts the sealed frames of one direction from 0.
 *
 * The dialer proves himself first: a stranger who dials learns nothing that depends on the secret. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_HANDSHAKE_H
#define WEFT_TRANSPORT_BOOTSTRAP_HANDSHAKE_H

#include "transport/bootstrap/bootstrap.h"

enum {
    HANDSHAKE_VERSION = 1,
    HANDSHAKE_FRAME_BYTES = 4,
    HANDSHAKE_HELLO_BYTES = 8 + 2 + 1 + 1 + 4 + 4 + 4 + 32,
    HANDSHAKE_CHALLENGE_BYTES = 32,
    /* The longest frame: parameters or a message, sealed. */
    HANDSHAKE_SEALED_FRAME_MAX = HANDSHAKE_FRAME_BYTES + 4096 + WEFT_HMAC_BYTES,
    /* The longest frame of a stranger. */
    HANDSHAKE_UNPROVEN_FRAME_MAX = HANDSHAKE_FRAME_BYTES + HANDSHAKE_HELLO_BYTES,
};

enum handshake_role { HANDSHAKE_DIALER = 1, HANDSHAKE_ACCEPTER = 2 };

enum handshake_state {
    HANDSHAKE_HELLO = 1, /* waits for the other's hello */
    HANDSHAKE_PROOF,     /* waits for the other's proof */
    HANDSHAKE_OPEN,      /* both have proven themselves; the other's parameters come first */
    HANDSHAKE_CONNECTED,       /* the other's parameters are here: messages */
    HANDSHAKE_CLOSED,      /* refused, here or there: nothing is taken or said any more */
};

/* Who we are; shared by all connections of one endpoint. */
struct handshake_self {
    uint32_t id;
    bool has_secret;
    uint32_t job_mark;                /* tells two jobs apart before anything is proven */
    uint8_t job_key[WEFT_HMAC_BYTES]; /* wiped by handshake_self_fini */
};

struct handshake {
    const struct handshake_self *self;
    enum handshake_role role;
    enum handshake_state state;
    uint32_t peer_id;                    /* dialer: whom we want; accepter: who says hello (proven from
                                          * OPEN on) */
    uint8_t hello[HANDSHAKE_HELLO_BYTES];      /* ours */
    uint8_t session_key[WEFT_HMAC_BYTES];
    uint64_t sealed_count, unsealed_count;
    uint8_t out[HANDSHAKE_UNPROVEN_FRAME_MAX]; /* to be sent; the owner sets out_bytes to 0 when it has
                                                * taken them */
    uint32_t out_bytes;
    enum bootstrap_refusal reason;             /* OVER: why */
    bool refused_by_peer;                  /* OVER: the other said so */
};

enum handshake_event {
    HANDSHAKE_NEED_MORE = 1,   /* nothing was taken: the frame is not whole yet */
    HANDSHAKE_STEP,       /* one frame was taken; look at `out` */
    HANDSHAKE_PROVEN,     /* ... and the other is who he says; look at `out` */
    HANDSHAKE_PARAMETERS, /* ... and it holds the parameters */
    HANDSHAKE_MESSAGE,    /* ... and it holds a message */
    HANDSHAKE_REFUSED,    /* over; look at `reason` and `out` */
};

struct handshake_frame { /* with PARAMETERS and MESSAGE */
    const uint8_t *data; /* inside the bytes handed in */
    uint32_t bytes;
    uint32_t descriptors; /* that came with it */
};

/* WEFT_OK or WEFT_ERR_NO_MEMORY. secret NULL: the nonce is the key. */
enum weft_status handshake_self_init(struct handshake_self *self, uint32_t id, uint64_t nonce,
                                     const void *secret, size_t secret_bytes);
void handshake_self_fini(struct handshake_self *self);

/* `challenge`: fresh random bytes. peer_id: of the one we dial; ignored for an accepter. A dialer has a
 * hello in `out`. */
void handshake_init(struct handshake *handshake, const struct handshake_self *self, enum handshake_role role,
                    uint32_t peer_id, const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES]);
void handshake_fini(struct handshake *handshake);

/* Take at most one frame from the front of `data`; *used_out bytes of it are done with. Bytes that can
 * never become a frame of this state are refused as soon as they are here. `out` must be empty. */
enum handshake_event handshake_consume(struct handshake *handshake, const uint8_t *data, size_t bytes,
                                       size_t *used_out, struct handshake_frame *frame_out);

/* The other is told why, if there is still somebody to tell; state OVER. */
void handshake_refuse(struct handshake *handshake, enum bootstrap_refusal reason);

/* A frame of ours: the parameters once (first), then messages; at most 4096 bytes. `frame_out` has room
 * for HANDSHAKE_FRAME_BYTES + bytes + WEFT_HMAC_BYTES. State OPEN or MET (asserted). WEFT_OK or
 * WEFT_ERR_NO_MEMORY. */
enum weft_status handshake_seal(struct handshake *handshake, const void *data, uint32_t bytes,
                                uint32_t descriptors, uint8_t *frame_out);

#endif
