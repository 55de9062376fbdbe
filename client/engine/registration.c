/* registration.c - weft_register: registers the caller's memory with the transport before the first operation
 * on it.
 *
 *     caller    record ──► command ─────────────────────────► answer: the caller owns the record again
 *     engine               weft_transport_register, or weft_transport_unregister
 *
 * If the engine does not answer within the session's deadline, the caller abandons the command and the
 * engine reverts it. The record stays with the session in both cases, because it contains the command. */
#include "client/engine/engine.h"
#include "client/engine/event_fd.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

enum message_state { MESSAGE_NONE = 0, MESSAGE_SENT, MESSAGE_ANSWERED, MESSAGE_ABANDONED };

struct registration {
    struct weft_list link; /* in session->engine->registrations */
    struct weft_session *session;
    void *memory; /* (bytes,) the caller's; NULL: not registered */
    size_t bytes;
    struct weft_registration *handle; /* written by the engine while the command is queued */
    struct weft_error error;
    struct weft_command command;
    _Atomic int state; /* enum message_state */
};

static struct registration *registration_find(struct weft_session *session, const void *memory)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->engine->registrations) {
        struct registration *own = weft_container_of(node, struct registration, link);
        if (own->memory == memory) return own;
    }
    return NULL;
}

static void registration_free(struct registration *own)
{
    weft_list_remove(&own->link);
    weft_free_bytes(own->session->env, own);
}

void client_registrations_free(struct weft_session *session)
{
    while (!weft_list_empty(&session->engine->registrations))
        registration_free(weft_list_first(&session->engine->registrations, struct registration, link));
}

/* ---- engine thread ---- */

/* Returns false if the caller has abandoned the command; else the caller may have freed the record. */
static bool answer(struct registration *own)
{
    struct weft_loop *loop = own->session->loop;
    int sent = MESSAGE_SENT;
    const bool awaited = atomic_compare_exchange_strong(&own->state, &sent, MESSAGE_ANSWERED);
    weft_loop_notify(loop);
    return awaited;
}

static void register_on_engine(struct weft_command *command)
{
    struct registration *own = weft_container_of(command, struct registration, command);
    if (weft_transport_register(own->session->engine->transport, own->memory, own->bytes, &own->handle,
                                &own->error) < 0)
        own->handle = NULL;
    struct weft_registration *handle = own->handle;
    if (!answer(own)) weft_transport_unregister(handle);
}

static void unregister_on_engine(struct weft_command *command)
{
    struct registration *own = weft_container_of(command, struct registration, command);
    weft_transport_unregister(own->handle);
    (void)answer(own);
}

/* ---- caller's thread ---- */

static bool answered(void *context)
{
    struct registration *own = context;
    return atomic_load_explicit(&own->state, memory_order_acquire) == MESSAGE_ANSWERED ||
           client_failed(own->session) < 0;
}

/* Returns false if the command was abandoned: the session has failed, or the engine thread is in a long
 * computation. */
static bool ask_engine(struct registration *own, void (*run)(struct weft_command *command))
{
    struct weft_session *session = own->session;
    atomic_store(&own->state, MESSAGE_SENT);
    own->command.fn = run;
    client_event_post(session, &own->command);
    (void)client_wait_for(session, answered, own, client_deadline(session, session->settings.deadline_ns));
    int sent = MESSAGE_SENT;
    if (!atomic_compare_exchange_strong(&own->state, &sent, MESSAGE_ABANDONED)) return true;
    own->memory = NULL; /* later calls do not find the record */
    return false;
}

static enum weft_status not_answered(struct weft_session *session, const char *text)
{
    WEFT_TRY(client_usable(session));
    return client_error(session, WEFT_ERR_BUSY, "%s", text);
}

enum weft_status weft_register(struct weft_session *session, void *memory, size_t bytes)
{
    if (!session) return client_null_argument("register", "session");
    WEFT_TRY(client_usable(session));
    if (!memory || bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)memory)
        return client_error(session, WEFT_ERR_INVALID,
                            "register: memory: %zu bytes at %p are not a range of memory", bytes, memory);
    if (registration_find(session, memory))
        return client_error(session, WEFT_ERR_EXISTS,
                            "register: memory at %p is registered already; call weft_unregister first",
                            memory);
    struct registration *own = weft_alloc_zero(session->env, sizeof *own);
    if (!own) return client_error(session, WEFT_ERR_NO_MEMORY, "register: no memory for a record");
    own->session = session;
    own->memory = memory;
    own->bytes = bytes;
    weft_list_append(&session->engine->registrations, &own->link);
    if (!ask_engine(own, register_on_engine))
        return not_answered(session, "register: the engine is in a long computation; call again");
    if (own->handle) return WEFT_OK;
    const enum weft_status status =
        client_error(session, (enum weft_status)own->error.status, "register: %.400s", own->error.text);
    registration_free(own);
    return status;
}

enum weft_status weft_unregister(struct weft_session *session, void *memory)
{
    if (!session) return client_null_argument("unregister", "session");
    if (session->live.pid != weft_process_id()) return client_usable(session);
    struct registration *own = memory ? registration_find(session, memory) : NULL;
    if (!own)
        return client_error(
            session, WEFT_ERR_NOT_FOUND,
            "unregister: memory at %p is not registered; give the address given to weft_register", memory);
    if (client_failed(session) < 0) return WEFT_OK; /* weft_finalize unregisters the memory */
    if (!ask_engine(own, unregister_on_engine))
        return not_answered(
            session, "unregister: the engine is in a long computation; the registration ends after it");
    registration_free(own);
    return WEFT_OK;
}
