/* allreduce_mode.h - tensors in all-reduce mode: reduce over the group, then update in this process. Engine
 * thread. */
#ifndef WEFT_CLIENT_TENSOR_ALLREDUCE_MODE_H
#define WEFT_CLIENT_TENSOR_ALLREDUCE_MODE_H

#include "weft/types.h"

struct weft_session;
struct weft_tensor;
struct weft_command;

void client_allreduce_mode_start(struct weft_command *command);
void client_allreduce_mode_failed(struct weft_tensor *tensor);
/* ---- for the order of tensors (order/) ---- */
/* The group holds its operation and those of its followers from now on. */
void client_allreduce_mode_hand_over(struct weft_tensor *tensor);
/* (elems,) what the tensor contributes, and the reduction. */
const void *client_allreduce_mode_input(const struct weft_tensor *tensor);
enum weft_op client_allreduce_mode_op(const struct weft_tensor *tensor);
/* Before each post of a dense tensor. */
void client_allreduce_mode_check_input(struct weft_tensor *tensor);
/* The sum (elems,) of a dense tensor that is handed over has arrived, or the engine has failed. */
void client_allreduce_mode_reduced(struct weft_tensor *tensor, const void *sum);
/* The leader's operation, which is not posted, also carries the tensor. Call once per tensor. */
void client_allreduce_mode_follow(struct weft_tensor *leader, struct weft_tensor *tensor);
/* The message of weft_group_end to the tensors that wait for it (struct client_tensor_call_group.next). */
void client_allreduce_mode_group_closed(struct weft_command *command);
/* The step's records have arrived and agree: continues the tensors that wait for the sum of the weights. */
void client_allreduce_mode_records_agree(struct weft_session *session);

#endif
