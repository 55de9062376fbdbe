/* exchange_wire.h - encoding of handles, and of the two messages that connect a pair of endpoints. Pure.
 *
 *   handle   magic u32 | version u32 | listener u64 | secret 16 | family u16 | port u16 | scope u32 |
 *            address 16                                           the rest of the 128 bytes is 0
 *   hello    magic u32 | version u32 | listener u64 | challenge 16 | blob bytes u32 | MAC 32 | blob
 *   answer   magic u32 | version u32 | flags u64    | challenge 16 | blob bytes u32 | MAC 32 | blob
 *
 * Little endian. NCCL carries the handle to the connecting rank, so a peer that has the secret of a handle
 * is a rank of the job. Both MACs cover their whole message under a key of secret and job secret. The
 * secret of the transport connection follows from the same key and the challenge. */
#ifndef WEFT_NCCL_NET_EXCHANGE_WIRE_H
#define WEFT_NCCL_NET_EXCHANGE_WIRE_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/base.h"

enum {
    WIRE_HANDLE_BYTES = 128,
    WIRE_SECRET_BYTES = 16,
    WIRE_HEAD_BYTES = 4 + 4 + 8 + 16 + 4 + 32,
    WIRE_BLOB_BYTES_MAX = 4096,
    WIRE_MESSAGE_BYTES_MAX = WIRE_HEAD_BYTES + WIRE_BLOB_BYTES_MAX,
};

enum wire_kind { WIRE_HELLO = 1, WIRE_ANSWER = 2 };

struct wire_handle {
    uint64_t listener;
    uint8_t secret[WIRE_SECRET_BYTES];
    struct sockaddr_storage address; /* IPv4 or IPv6 */
    socklen_t address_bytes;
};
void wire_handle_encode(const struct wire_handle *handle, uint8_t out[WIRE_HANDLE_BYTES]);
/* WEFT_ERR_MALFORMED, WEFT_ERR_VERSION. */
enum weft_status wire_handle_decode(const uint8_t data[WIRE_HANDLE_BYTES], struct wire_handle *handle_out);

/* ANNOUNCE_ALL: messages to the listener announce their payload at every size (weft_peer_announce_all). */
enum wire_flags { WIRE_ANNOUNCE_ALL = 1 };

struct wire_message {
    enum wire_kind kind;
    uint64_t listener; /* id of the listener, in a hello */
    uint64_t flags;    /* in an answer: enum wire_flags, or-ed; unknown bits are ignored */
    uint8_t challenge[WIRE_SECRET_BYTES];
    const uint8_t *blob;
    uint32_t blob_bytes;
};
/* The key of both messages. `job_secret` may be "". */
enum weft_status wire_key(const uint8_t secret[WIRE_SECRET_BYTES], const char *job_secret,
                          uint8_t key_out[WEFT_HMAC_BYTES]);
/* Writes the message and its MAC; returns its bytes, or 0 if the MAC cannot be computed. */
size_t wire_message_encode(const struct wire_message *message, const uint8_t key[WEFT_HMAC_BYTES],
                           uint8_t out[WIRE_MESSAGE_BYTES_MAX]);
/* Bytes of the whole message, from its first WIRE_HEAD_BYTES; 0: malformed. */
size_t wire_message_bytes(const uint8_t *head);
/* Decodes `bytes` bytes, as wire_message_bytes has returned. The blob points into `data`. WEFT_ERR_VERSION,
 * WEFT_ERR_MALFORMED, WEFT_ERR_AUTH: wrong MAC. */
enum weft_status wire_message_decode(enum wire_kind kind, const uint8_t *data, size_t bytes,
                                     const uint8_t key[WEFT_HMAC_BYTES], struct wire_message *message_out);
/* The secret of the transport connection. */
enum weft_status wire_connection_secret(const uint8_t key[WEFT_HMAC_BYTES],
                                        const uint8_t challenge[WIRE_SECRET_BYTES],
                                        uint8_t secret_out[WEFT_HMAC_BYTES]);

#endif
