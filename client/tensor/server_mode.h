/* server_mode.h - tensors in server mode: chunks to their shards, results back. Engine thread. */
#ifndef WEFT_CLIENT_TENSOR_SERVER_MODE_H
#define WEFT_CLIENT_TENSOR_SERVER_MODE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

struct client_chunk;
struct weft_session;
struct weft_tensor;
struct weft_command;

/* The start message of a request whose tensor->op is filled. */
void client_server_mode_start(struct weft_command *command);
/* Registers the handler of results on the transport; before the engine starts. */
void client_server_mode_listen(struct weft_session *session);
void client_server_mode_resend(struct weft_session *session);
void client_server_mode_failed(struct weft_tensor *tensor);

/* The chunk's slot has another leader or term. Sends its request again if that is not answered. */
void client_server_mode_follow(struct client_chunk *chunk, uint32_t endpoint, uint32_t term);

/* ---- for message groups (push_group.c) ---- */
struct client_chunk_request {
    uint8_t header[WEFT_WIRE_HEADER_BYTES];
    const void *payload; /* the operation's; NULL: none */
    size_t payload_bytes;
};
/* The request of the chunk's operation. */
void client_server_mode_request(const struct client_chunk *chunk, struct client_chunk_request *request);
/* Records that the request was passed to the transport. */
void client_server_mode_sent(const struct client_chunk *chunk, size_t payload_bytes);
/* Sends the request in its own message. */
void client_server_mode_send_alone(struct client_chunk *chunk);
/* A result with status WEFT_OK; `payload` has header->payload_bytes bytes. */
void client_server_mode_result(struct weft_session *session, uint32_t peer_id,
                               const struct weft_wire_header *header, const void *payload);

#endif
