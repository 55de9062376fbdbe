/* context.c - what the connections of a communicator share: attempts to connect, and closing endpoints.
 *
 * An endpoint that closes reads until its peer has closed too, because a socket that is closed with unread
 * input discards what the peer has not read yet. No call but the last of a context waits for that. */
#include "nccl/net/net.h"

#define CLOSE_LIMIT_NS WEFT_MS(500) /* for all endpoints of a context together */

/* Connections of all contexts with a closing endpoint: any call progresses all of them. */
static pthread_mutex_t linger_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_list lingering = {&lingering, &lingering};

enum nccl_result net_context_create(bool has_finalize, struct net_context **context_out)
{
    struct net_context *context = weft_alloc_zero(&net_process()->env, sizeof *context);
    if (!context) return net_report(WEFT_ERR_NO_MEMORY, "no memory for a communicator");
    pthread_mutex_init(&context->lock, NULL);
    weft_list_init(&context->connectors);
    context->has_finalize = has_finalize;
    *context_out = context;
    return NCCL_RESULT_SUCCESS;
}

void net_context_free(struct net_context *context)
{
    if (!context) return;
    net_connectors_free(context);
    net_linger_wait(context);
    /* a connection that NCCL did not close still refers to the context */
    if (context->comm_count > 0) {
        net_report(WEFT_ERR_STATE, "finalize with %u open connections: they stay allocated",
                   context->comm_count);
        return;
    }
    pthread_mutex_destroy(&context->lock);
    weft_free_bytes(&net_process()->env, context);
}

/* Progresses all and frees those that have drained; those of `give_up` in any case. Returns whether one of
 * `context` is left. The caller holds linger_lock. */
static bool sweep(const struct net_context *context, const struct net_context *give_up)
{
    struct weft_list *node, *spare;
    bool is_left = false;
    weft_list_foreach (node, spare, &lingering) {
        struct net_comm *comm = weft_container_of(node, struct net_comm, linger_link);
        weft_transport_progress(comm->transport, NET_PROGRESS_BUDGET);
        if (!weft_transport_drained(comm->transport) && comm->context != give_up) {
            is_left = is_left || comm->context == context;
            continue;
        }
        weft_list_remove(node);
        net_comm_free(comm);
    }
    return is_left;
}

void net_linger_progress(void)
{
    if (pthread_mutex_trylock(&linger_lock) != 0) return;
    sweep(NULL, NULL);
    pthread_mutex_unlock(&linger_lock);
}

void net_linger_wait(const struct net_context *context)
{
    struct weft_env *env = &net_process()->env;
    uint64_t limit_ns = weft_now_ns(env) + CLOSE_LIMIT_NS;
    for (bool is_left = true; is_left;) {
        pthread_mutex_lock(&linger_lock);
        is_left = sweep(context, weft_now_ns(env) >= limit_ns ? context : NULL);
        pthread_mutex_unlock(&linger_lock);
        if (is_left) sched_yield();
    }
}

void net_linger_add(struct net_comm *comm, bool is_last)
{
    struct net_context *context = comm->context;
    weft_transport_close(comm->transport);
    pthread_mutex_lock(&linger_lock);
    weft_list_append(&lingering, &comm->linger_link);
    pthread_mutex_unlock(&linger_lock);
    if (is_last && !context->has_finalize) net_linger_wait(context);
    else net_linger_progress();
}
