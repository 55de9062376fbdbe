/* ucx_sleep.c - the epoll that an endpoint sleeps on: UCX's own epoll and the pidfds of watched processes.
 *
 * UCX's descriptor is in it only while the endpoint may sleep. Over tcp the kernel walks all epolls above
 * a socket for every segment, inside the sender's system call, which is waste while the endpoint is
 * polled. So after LOOK_NS of polling without arm UCX's descriptor is removed; the next arm adds it again
 * before it arms UCX. A sleeping thread has armed, and arms again if another thread has polled meanwhile
 * (struct weft_pollable.arm). */
#include <errno.h>
#include <string.h>

#include <sys/epoll.h>
#include <unistd.h>

#include "transport/ucx/ucx.h"

/* A busy endpoint checks its descriptors at most so often; it reads the clock once in LOOK_ROUNDS quiet
 * rounds. */
enum { LOOK_NS = 1000000, LOOK_ROUNDS = 32 };

static bool listen_to_ucx(struct ucx_endpoint *endpoint)
{
    if (endpoint->events.is_listening) return true;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    endpoint->events.is_listening =
        epoll_ctl(endpoint->events.fd, EPOLL_CTL_ADD, endpoint->events.ucx_fd, &event) == 0;
    return endpoint->events.is_listening;
}

enum weft_status ucx_sleep_open(struct ucx_endpoint *endpoint, struct weft_error *error)
{
    ucs_status_t ucs = ucp_worker_get_efd(endpoint->worker, &endpoint->events.ucx_fd);
    if (ucs != UCS_OK) {
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "UCX cannot sleep on lanes %s: %s",
                              endpoint->settings.list, ucs_status_string(ucs));
    }
    endpoint->events.fd = epoll_create1(EPOLL_CLOEXEC);
    if (endpoint->events.fd >= 0 && listen_to_ucx(endpoint)) return WEFT_OK;
    enum weft_status status = weft_error_set(
        error, WEFT_ERR_LIMIT, "no descriptor for a UCX endpoint: %s (raise the limit of open files)",
        strerror(errno));
    if (endpoint->events.fd >= 0) close(endpoint->events.fd);
    return status;
}

bool ucx_sleep_arm(struct ucx_endpoint *endpoint)
{
    if (!listen_to_ucx(endpoint) || ucp_worker_arm(endpoint->worker) != UCS_OK) return false;
    endpoint->events.armed = true;
    return true;
}

/* Whether a check is due. Always after sleeping: a death may have ended the sleep. */
static bool is_due(struct ucx_endpoint *endpoint)
{
    if (weft_list_empty(&endpoint->processes) && !endpoint->events.is_listening) return false;
    if (!endpoint->events.armed && ++endpoint->events.looks % LOOK_ROUNDS != 0) return false;
    uint64_t now_ns = weft_now_ns(endpoint->transport->env);
    if (!endpoint->events.armed && now_ns < endpoint->events.look_ns + LOOK_NS) return false;
    endpoint->events.look_ns = now_ns;
    return true;
}

int ucx_sleep_check(struct ucx_endpoint *endpoint)
{
    if (!is_due(endpoint)) return 0;
    if (!endpoint->events.armed && endpoint->events.is_listening)
        endpoint->events.is_listening =
            epoll_ctl(endpoint->events.fd, EPOLL_CTL_DEL, endpoint->events.ucx_fd, NULL) != 0;
    endpoint->events.armed = false;
    return weft_list_empty(&endpoint->processes) ? 0 : ucx_processes_progress(endpoint);
}
