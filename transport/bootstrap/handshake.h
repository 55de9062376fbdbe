/* handshake.h - the protocol between two endpoints that authenticate each other, as a state machine
 * without sockets, clock or memory. The owner passes received bytes in, from the start of a frame, and
 * sends what lies in `out`.
 *
 *  frame = kind (1 byte) | descriptors (1) | length of the body (2, little-endian) | body
 *  hello : magic "weftmeet" | version 2 | mode 1 | role 1 | from 4 | to 4 | mark of the job 4 | challenge 32
 *  proof : HMAC(session key, "weft meet proof" role)
 *  refuse: reason 1                       (not authenticated: for the error text only; ends it)
 *  parameters, message: bytes | HMAC(session key, "weft meet frame" role number frame-header bytes)
 *
 *  job key     = HMAC(secret or nonce, "weft meet job" version mode nonce)
 *  session key = HMAC(job key, "weft meet session" hello of the dialer, hello of the accepter)
 *
 * The session key covers both hellos: version, mode, job, ids, roles and both fresh challenges. So a proof
 * is valid for one connection, direction and pair only. `number` counts the sealed frames of one direction
 * from 0. The dialer sends its proof first: an unauthenticated dialer receives nothing that depends on the
 * secret. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_HANDSHAKE_H
#define WEFT_TRANSPORT_BOOTSTRAP_HANDSHAKE_H

#include "transport/bootstrap/bootstrap.h"

enum {
    HANDSHAKE_VERSION = 1,
    HANDSHAKE_FRAME_BYTES = 4,
    HANDSHAKE_HELLO_BYTES = 8 + 2 + 1 + 1 + 4 + 4 + 4 + 32,
    HANDSHAKE_CHALLENGE_BYTES = 32,
    /* Largest frame: sealed parameters or a sealed message. */
    HANDSHAKE_SEALED_FRAME_MAX = HANDSHAKE_FRAME_BYTES + 4096 + WEFT_HMAC_BYTES,
    /* Largest frame before the proofs. */
    HANDSHAKE_UNPROVEN_FRAME_MAX = HANDSHAKE_FRAME_BYTES + HANDSHAKE_HELLO_BYTES,
};

enum handshake_role { HANDSHAKE_DIALER = 1, HANDSHAKE_ACCEPTER = 2 };

enum handshake_state {
    HANDSHAKE_HELLO = 1, /* waits for the peer's hello */
    HANDSHAKE_PROOF,     /* waits for the peer's proof */
    HANDSHAKE_OPEN,      /* both sides are authenticated; the peer's parameters are next */
    HANDSHAKE_CONNECTED,       /* the peer's parameters have arrived; messages follow */
    HANDSHAKE_CLOSED,      /* refused by one side; no frame is sent or accepted */
};

/* Identity of the local endpoint; shared by all its connections. */
struct handshake_self {
    uint32_t id;
    bool has_secret;
    uint32_t job_mark;                /* separates two jobs before any proof */
    uint8_t job_key[WEFT_HMAC_BYTES]; /* wiped by handshake_self_fini */
};

struct handshake {
    const struct handshake_self *self;
    enum handshake_role role;
    enum handshake_state state;
    /* dialer: the requested peer; accepter: the id of the peer's hello (proven from OPEN on) */
    uint32_t peer_id;
    uint8_t hello[HANDSHAKE_HELLO_BYTES];      /* the local hello */
    uint8_t session_key[WEFT_HMAC_BYTES];
    uint64_t sealed_count, unsealed_count;
    /* bytes to send; the owner sets out_bytes to 0 after sending */
    uint8_t out[HANDSHAKE_UNPROVEN_FRAME_MAX];
    uint32_t out_bytes;
    enum bootstrap_refusal reason;             /* CLOSED: why */
    bool refused_by_peer;                  /* CLOSED: the peer sent the refusal */
};

enum handshake_event {
    HANDSHAKE_NEED_MORE = 1,   /* the frame is incomplete; nothing was consumed */
    HANDSHAKE_STEP,       /* one frame was consumed; `out` may hold an answer */
    HANDSHAKE_PROVEN,     /* as STEP, and the peer is authenticated */
    HANDSHAKE_PARAMETERS, /* the frame holds the parameters */
    HANDSHAKE_MESSAGE,    /* the frame holds a message */
    HANDSHAKE_REFUSED,    /* closed; see `reason` and `out` */
};

struct handshake_frame { /* set with PARAMETERS and MESSAGE */
    const uint8_t *data; /* points into the input */
    uint32_t bytes;
    uint32_t descriptors; /* number of descriptors that belong to the frame */
};

/* WEFT_OK or WEFT_ERR_NO_MEMORY. secret NULL: the nonce is the key. */
enum weft_status handshake_self_init(struct handshake_self *self, uint32_t id, uint64_t nonce,
                                     const void *secret, size_t secret_bytes);
void handshake_self_fini(struct handshake_self *self);

/* `challenge`: fresh random bytes. peer_id: of the peer to dial; ignored for an accepter. A dialer has its
 * hello in `out`. */
void handshake_init(struct handshake *handshake, const struct handshake_self *self, enum handshake_role role,
                    uint32_t peer_id, const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES]);
void handshake_fini(struct handshake *handshake);

/* Consumes at most one frame from the front of `data`; *used_out is its length. Bytes that cannot become a
 * legal frame are refused before the frame is complete. `out` must be empty. */
enum handshake_event handshake_consume(struct handshake *handshake, const uint8_t *data, size_t bytes,
                                       size_t *used_out, struct handshake_frame *frame_out);

/* Writes a refusal into `out` if the peer can still receive one; the state becomes CLOSED. */
void handshake_refuse(struct handshake *handshake, enum bootstrap_refusal reason);

/* Seals one frame: first the parameters, then messages; at most 4096 bytes each. `frame_out` holds
 * HANDSHAKE_FRAME_BYTES + bytes + WEFT_HMAC_BYTES. Requires state OPEN or CONNECTED. WEFT_OK or
 * WEFT_ERR_NO_MEMORY. */
enum weft_status handshake_seal(struct handshake *handshake, const void *data, uint32_t bytes,
                                uint32_t descriptors, uint8_t *frame_out);

#endif
