/* server_path.h - tensors in server mode: chunks to their shards, results back. Engine thread. */
#ifndef WEFT_CLIENT_SERVER_PATH_H
#define WEFT_CLIENT_SERVER_PATH_H

struct weft_session;
struct weft_tensor;
struct weft_mail;

/* The start letter of a request whose tensor->op is filled. */
void client_server_path_start(struct weft_mail *mail);
/* Receive results on the session's transport; before the engine starts. */
void client_server_path_listen(struct weft_session *session);
void client_server_path_resend(struct weft_session *session);
void client_server_path_failed(struct weft_tensor *tensor);

#endif
