/* optimizer.h - the update rules of weights: text to numbers, and one step, the same bits on a shard and on a
 * worker.
 *
 *   sgd       momentum, Nesterov, L2 decay                          1 array of state with momentum, else none
 *   adam      Kingma, Ba 2015, algorithm 1; decay is L2             2 arrays: first and second moment
 *   adamw     Loshchilov, Hutter 2019, algorithm 2: decay decoupled 2 arrays
 *   adagrad   Duchi, Hazan, Singer 2011; decay is L2                1 array: sum of squares
 *   ftrl      McMahan et al. 2013, algorithm 1 (FTRL-Proximal)      2 arrays: z and n
 *   lamb      You et al. 2020, algorithm 2; decay within the step   2 arrays: first and second moment
 *
 * Defaults and the order of operations are PyTorch's where it has the rule (adam, adamw, adagrad:
 * torch.optim). ftrl forgets the first weights at its first step, as its authors' does: begin with zero.
 * State starts as zero.
 *
 * All but lamb go element by element. lamb's step length depends on norms of the whole tensor: no part of
 * it can be stepped alone, so a tensor with lamb lives on one shard in one chunk. */
#ifndef WEFT_KERNELS_OPTIMIZER_H
#define WEFT_KERNELS_OPTIMIZER_H

#include "base/base.h"

enum weft_optimizer_kind { WEFT_OPTIMIZER_NONE, WEFT_OPTIMIZER_SGD, WEFT_OPTIMIZER_ADAM, WEFT_OPTIMIZER_ADAMW,
                           WEFT_OPTIMIZER_ADAGRAD, WEFT_OPTIMIZER_FTRL, WEFT_OPTIMIZER_LAMB };

enum { WEFT_OPTIMIZER_STATES_MAX = 2 };

struct weft_optimizer {
    enum weft_optimizer_kind kind;
    float momentum;     /* sgd */
    bool nesterov;      /* sgd */
    float weight_decay; /* all but ftrl */
    float beta1, beta2; /* adam, adamw, lamb */
    float eps;          /* adam, adamw, adagrad, lamb */
    float beta, l1, l2; /* ftrl */
    bool is_sum;        /* kind none: a round results in the sum, not the mean */
};

/* "" and "none"; "sum"; "sgd", "sgd:momentum=0.9,weight_decay=1e-4,nesterov=1";
 * "adam:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0"; "adamw" likewise, decay 0.01;
 * "adagrad:eps=1e-10,weight_decay=0"; "ftrl:beta=1,l1=0,l2=0"; "lamb:beta1=0.9,beta2=0.999,
 * eps=1e-6,weight_decay=0.01". The learning rate is a parameter of each step. WEFT_ERR_INVALID and a sentence
 * that lists what is allowed; *optimizer_out is then as it was. */
enum weft_status weft_optimizer_parse(const char *text, struct weft_optimizer *optimizer_out,
                                      struct weft_error *error);

/* "adam"; "none" for WEFT_OPTIMIZER_NONE. */
const char *weft_optimizer_name(enum weft_optimizer_kind kind);

/* What turns the sum of a round into its result or mean: 1 / weight_sum, or 1 for "sum". */
static inline float weft_optimizer_grad_scale(const struct weft_optimizer *optimizer, float weight_sum)
{
    return optimizer->is_sum ? 1.0f : (float)(1.0 / (double)weight_sum);
}

/* Arrays of state, each as long as the weights. */
uint32_t weft_optimizer_states(const struct weft_optimizer *optimizer);

/* True when a step takes the whole tensor: count is then its length. */
bool weft_optimizer_is_whole(const struct weft_optimizer *optimizer);

/* weights and states (count,) after step number `step` (1, 2, ...) with gradient grad*grad_scale. Element
 * by element: a tensor may be cut anywhere, unless weft_optimizer_is_whole(). Unused states may be NULL.
 * No allocation, any thread. kind is not NONE. */
void weft_optimizer_step(const struct weft_optimizer *optimizer, float lr, uint64_t step, float *weights,
                         float *const states[WEFT_OPTIMIZER_STATES_MAX], const float *grad, float grad_scale,
                         size_t count);

#endif
