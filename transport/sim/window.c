/* window.c - windows, keys, put and get in virtual time.
 *
 * Bytes move between the two buffers when the operation arrives, and only if the window is still open. So
 * a closed window is safe at once and its completion need not wait. Puts are deliberately not ordered with
 * each other or with messages: jitter reorders them, as the contract permits. */
#include <string.h>

#include "transport/sim/sim.h"

enum { KEY_MAGIC = 0x4b495357, KEY_VERSION = 1, KEY_BYTES = 32 };

static struct sim_endpoint *endpoint_of(struct weft_transport *transport) { return transport->backend; }

/* magic u32 | version u32 | nonce hash u32 | owner id u32 | serial u32 | 0 u32 | secret u64 */
static void key_write(uint8_t *key, const struct weft_transport *transport, const struct sim_window *window)
{
    uint32_t words[6] = {KEY_MAGIC,         KEY_VERSION,    core_nonce_hash(transport->nonce),
                         window->owner->id, window->serial, 0};
    memcpy(key, words, sizeof words);
    memcpy(key + sizeof words, &window->secret, sizeof window->secret);
}

enum weft_status sim_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct weft_sim *sim = endpoint->sim;
    if (weft_memory_is_device(window->options.kind)) {
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "the simulator has no device memory: open the window on host memory");
    }
    struct sim_window *opened = weft_alloc_zero(sim->env, sizeof *opened);
    if (!opened ||
        !sim_table_grow(sim, (void ***)&sim->windows_by_serial.window_table,
                        sim->windows_by_serial.window_count, &sim->windows_by_serial.window_capacity)) {
        weft_free_bytes(sim->env, opened);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a simulated window");
    }
    opened->owner = endpoint;
    opened->address = window->options.address;
    opened->bytes = window->options.bytes;
    opened->rights = window->options.rights;
    opened->peer_id = window->options.peer_id;
    opened->secret = weft_random_u64(transport->env);
    opened->serial = sim->windows_by_serial.window_count++;
    opened->open = true;
    sim->windows_by_serial.window_table[opened->serial] = opened;
    window->backend = opened;
    key_write(window->key, transport, opened);
    window->key_bytes = KEY_BYTES;
    return WEFT_OK;
}

void sim_window_close(struct weft_transport *transport, struct weft_window *window)
{
    ((struct sim_window *)window->backend)->open = false;
    core_finish(transport, &window->done, WEFT_OK);
    sim_host_ready(endpoint_of(transport)->host);
}

void sim_window_free(struct weft_transport *transport, struct weft_window *window)
{
    ((struct sim_window *)window->backend)->open = false;
}

enum weft_status sim_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                            size_t bytes)
{
    struct weft_sim *sim = endpoint_of(transport)->sim;
    uint32_t words[6];
    uint64_t secret;
    if (bytes != KEY_BYTES) return WEFT_ERR_MALFORMED;
    memcpy(words, key, sizeof words);
    memcpy(&secret, (const char *)key + sizeof words, sizeof secret);
    if (words[0] != KEY_MAGIC || words[1] != KEY_VERSION || words[5] != 0) return WEFT_ERR_MALFORMED;
    if (words[2] != core_nonce_hash(transport->nonce)) return WEFT_ERR_MALFORMED;
    if (words[3] != remote->peer->id || words[4] >= sim->windows_by_serial.window_count)
        return WEFT_ERR_MALFORMED;
    struct sim_window *window = sim->windows_by_serial.window_table[words[4]];
    const struct sim_peer *sim_peer = remote->peer->backend;
    if (window->owner != sim_peer->remote || window->secret != secret) return WEFT_ERR_MALFORMED;
    if (window->peer_id != WEFT_ANY_PEER && window->peer_id != transport->id) return WEFT_ERR_AUTH;
    remote->bytes = window->bytes;
    remote->rights = window->rights;
    remote->backend = window;
    return WEFT_OK;
}

void sim_release(struct weft_transport *transport, struct weft_remote *remote) { remote->backend = NULL; }

/* The common part of put and get. NULL: *status_out is the reason. */
static struct sim_message *access_new(struct weft_transport *transport, struct weft_remote *remote,
                                      uint64_t offset, size_t bytes, struct weft_completion *completion,
                                      enum weft_status *status_out)
{
    struct sim_endpoint *endpoint = endpoint_of(transport);
    struct sim_window *window = remote->backend;
    *status_out = WEFT_ERR_AGAIN;
    if (endpoint->sending_count >= SIM_SENDING_MAX) return NULL;
    *status_out = WEFT_ERR_NO_MEMORY;
    struct sim_message *message = sim_message_new(endpoint, window->owner, true);
    if (!message) return NULL;
    message->window = window;
    message->offset = offset;
    message->bytes = bytes;
    message->send_done = (struct core_done){
        .peer = remote->peer, .remote = remote, .completion = completion, .recycle = sim_recycle_send};
    *status_out = WEFT_IN_PROGRESS;
    return message;
}

enum weft_status sim_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion)
{
    enum weft_status status;
    struct sim_message *message = access_new(transport, remote, put->offset, put->bytes, completion, &status);
    if (!message) return status;
    message->buffers.payload = put->source;
    message->notify = put->notify;
    message->eager = message->arrival.is_complete = true; /* the notification is a message without payload */
    if (put->notify) {
        message->arrival.handle.tag = put->tag;
        message->arrival.handle.header_bytes = put->header_bytes;
        if (put->header_bytes > 0) memcpy(message->arrival.handle.header, put->header, put->header_bytes);
    }
    sim_message_start(message, SIM_PUT, NULL);
    return WEFT_IN_PROGRESS;
}

enum weft_status sim_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion)
{
    enum weft_status status;
    struct sim_message *message = access_new(transport, remote, offset, bytes, completion, &status);
    if (!message) return status;
    message->buffers.buffer = destination;
    sim_message_start(message, SIM_GET, NULL);
    return WEFT_IN_PROGRESS;
}
