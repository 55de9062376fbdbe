/* server_mode.h - tensors in server mode: chunks to their shards, results back. Engine thread. */
#ifndef WEFT_CLIENT_TENSOR_SERVER_MODE_H
#define WEFT_CLIENT_TENSOR_SERVER_MODE_H

struct weft_session;
struct weft_tensor;
struct weft_command;

/* The start message of a request whose tensor->op is filled. */
void client_server_mode_start(struct weft_command *command);
/* Registers the handler of results on the transport; before the engine starts. */
void client_server_mode_listen(struct weft_session *session);
void client_server_mode_resend(struct weft_session *session);
void client_server_mode_failed(struct weft_tensor *tensor);

#endif
