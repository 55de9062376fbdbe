/* event_fd.c - weft_event_fd: a descriptor that is readable when a request of the session has completed.
 *
 *     weft_event_fd       creates it, readable; from then on calls wake the engine thread
 *     request completes   after `done` is stored, client_event_signal adds 1
 *     weft_event_clear    reads the counter, and the descriptor is no longer readable
 *
 * A program that clears first and then tests its requests misses no completion: a request that completes
 * after the test makes the descriptor readable again. */
#include "client/engine/event_fd.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/engine/engine.h"
#include "client/session/failure.h"
#include "client/session/session.h"

void client_event_signal(struct weft_session *session)
{
    const int fd = atomic_load_explicit(&session->engine->event_fd, memory_order_acquire);
    if (fd < 0) return;
    weft_loop_guard_thread(session->loop); /* the write is a cancellation point */
    (void)eventfd_write(fd, 1);            /* fails only if the counter is full; the descriptor is readable
                                            * then */
}

void client_event_post(struct weft_session *session, struct weft_command *command)
{
    if (client_event_is_enabled(session)) weft_loop_post(session->loop, command);
    else weft_loop_post_lazy(session->loop, command);
}

void client_event_close(struct weft_session *session)
{
    const int fd = atomic_exchange(&session->engine->event_fd, -1);
    if (fd >= 0) close(fd);
}

enum weft_status weft_event_fd(struct weft_session *session, int *fd_out)
{
    if (!session) return client_null_argument("event_fd", "session");
    WEFT_TRY(client_usable(session));
    if (!fd_out) return client_error(session, WEFT_ERR_INVALID, "event_fd: fd_out is NULL");
    if (!client_event_is_enabled(session)) {
        const int fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return client_error(session, errno == ENOMEM ? WEFT_ERR_NO_MEMORY : WEFT_ERR_LIMIT,
                                "event_fd: no descriptor: %s (see ulimit -n)", strerror(errno));
        atomic_store_explicit(&session->engine->event_fd, fd, memory_order_release);
    }
    *fd_out = atomic_load_explicit(&session->engine->event_fd, memory_order_relaxed);
    return WEFT_OK;
}

enum weft_status weft_event_clear(struct weft_session *session)
{
    if (!session) return client_null_argument("event_clear", "session");
    if (session->live.pid != weft_process_id()) return client_usable(session);
    const int fd = atomic_load_explicit(&session->engine->event_fd, memory_order_acquire);
    if (fd < 0)
        return client_error(session, WEFT_ERR_STATE,
                            "event_clear: the session has no descriptor yet; call weft_event_fd first");
    eventfd_t count;
    (void)eventfd_read(fd, &count); /* EAGAIN: it was not readable */
    return WEFT_OK;
}
