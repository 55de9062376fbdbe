/* reduce_path.h - tensors in all-reduce mode: reduce over the group, then update here. Engine thread. */
#ifndef WEFT_CLIENT_REDUCE_PATH_H
#define WEFT_CLIENT_REDUCE_PATH_H

struct weft_session;
struct weft_tensor;
struct weft_mail;

void client_reduce_path_start(struct weft_mail *mail);
void client_reduce_path_failed(struct weft_tensor *tensor);
/* The letter of weft_group_end to a tensor that leads others. */
void client_reduce_path_batch_closed(struct weft_mail *mail);
/* The step's records have arrived and agree: whoever waits for the sum of the weights goes on. */
void client_reduce_path_record_known(struct weft_session *session);

#endif
