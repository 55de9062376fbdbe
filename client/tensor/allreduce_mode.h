/* allreduce_mode.h - tensors in all-reduce mode: reduce over the group, then update in this process. Engine
 * thread. */
#ifndef WEFT_CLIENT_TENSOR_ALLREDUCE_MODE_H
#define WEFT_CLIENT_TENSOR_ALLREDUCE_MODE_H

struct weft_session;
struct weft_tensor;
struct weft_command;

void client_allreduce_mode_start(struct weft_command *command);
void client_allreduce_mode_failed(struct weft_tensor *tensor);
/* The message of weft_group_end to a tensor that leads others. */
void client_allreduce_mode_group_closed(struct weft_command *command);
/* The step's records have arrived and agree: continues the tensors that wait for the sum of the weights. */
void client_allreduce_mode_records_agree(struct weft_session *session);

#endif
