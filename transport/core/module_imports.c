/* module_imports.c - inside a module: functions of the core and the base, forwarded to the library that
 * opened it. */
#include <stdarg.h>
#include <stdio.h>

#include "transport/core/module.h"

enum { LOG_LINE_BYTES = 1001 }; /* bound of a weft_log line, with the final zero */

const struct core_services *core_imported;

/* ---- the core ---- */

void core_arrived(struct weft_transport *transport, struct core_arrival *arrival)
{
    core_imported->core_arrived(transport, arrival);
}
bool core_arrived_posted(struct weft_transport *transport, struct core_arrival *arrival)
{
    return core_imported->core_arrived_posted(transport, arrival);
}
void core_finish(struct weft_transport *transport, struct core_done *done, enum weft_status status)
{
    core_imported->core_finish(transport, done, status);
}
uint32_t core_nonce_hash(uint64_t nonce)
{
    return core_imported->core_nonce_hash(nonce);
}
struct weft_peer *core_peer_find(struct weft_transport *transport, uint32_t peer_id)
{
    return core_imported->core_peer_find(transport, peer_id);
}
void core_peer_left(struct weft_transport *transport, struct weft_peer *peer, const char *text)
{
    core_imported->core_peer_left(transport, peer, text);
}
void core_peer_lost(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status,
                    const char *text)
{
    core_imported->core_peer_lost(transport, peer, status, text);
}
struct weft_peer *core_peer_find_or_add(struct weft_transport *transport, uint32_t peer_id)
{
    return core_imported->core_peer_find_or_add(transport, peer_id);
}
void core_wake_at(struct weft_transport *transport, uint64_t time_ns)
{
    core_imported->core_wake_at(transport, time_ns);
}
struct weft_peer *weft_transport_peer(struct weft_transport *transport, uint32_t peer_id)
{
    return core_imported->weft_transport_peer(transport, peer_id);
}

/* ---- bootstrap ---- */

const void *bootstrap_address(const struct bootstrap *bootstrap, size_t *bytes_out)
{
    return core_imported->bootstrap_address(bootstrap, bytes_out);
}
enum weft_status address_blob_decode(struct address_blob_kind kind, const void *blob, size_t bytes,
                                  uint32_t nonce_hash, uint32_t id, const void **address_out,
                                  size_t *bytes_out)
{
    return core_imported->address_blob_decode(kind, blob, bytes, nonce_hash, id, address_out, bytes_out);
}
uint32_t address_blob_encode(struct address_blob_kind kind, uint32_t nonce_hash, uint32_t id,
                             const void *address, uint32_t bytes, uint8_t out[ADDRESS_BLOB_BYTES_MAX])
{
    return core_imported->address_blob_encode(kind, nonce_hash, id, address, bytes, out);
}
void bootstrap_close(struct bootstrap *bootstrap)
{
    core_imported->bootstrap_close(bootstrap);
}
enum weft_status bootstrap_connect(struct bootstrap *bootstrap, uint32_t peer_id, const void *address,
                                   size_t address_bytes, const void *parameters, size_t bytes,
                                   const int *descriptors, uint32_t count, void *owner,
                                   struct bootstrap_peer **peer_out)
{
    return core_imported->bootstrap_connect(bootstrap, peer_id, address, address_bytes, parameters, bytes,
                                            descriptors, count, owner, peer_out);
}
int bootstrap_fd(const struct bootstrap *bootstrap)
{
    return core_imported->bootstrap_fd(bootstrap);
}
bool bootstrap_is_flushed(const struct bootstrap_peer *peer)
{
    return core_imported->bootstrap_is_flushed(peer);
}
void bootstrap_forget(struct bootstrap_peer *peer)
{
    core_imported->bootstrap_forget(peer);
}
enum weft_status bootstrap_open(struct weft_env *env, const struct bootstrap_options *options,
                                struct bootstrap **bootstrap_out, struct weft_error *error)
{
    return core_imported->bootstrap_open(env, options, bootstrap_out, error);
}
void bootstrap_options_init(struct bootstrap_options *options)
{
    core_imported->bootstrap_options_init(options);
}
enum weft_status bootstrap_options_ports(struct bootstrap_options *options, const char *text,
                                         struct weft_error *error)
{
    return core_imported->bootstrap_options_ports(options, text, error);
}
int bootstrap_progress(struct bootstrap *bootstrap, int budget)
{
    return core_imported->bootstrap_progress(bootstrap, budget);
}
enum weft_status bootstrap_send(struct bootstrap_peer *peer, const void *data, size_t bytes,
                                const int *descriptors, uint32_t count)
{
    return core_imported->bootstrap_send(peer, data, bytes, descriptors, count);
}
void bootstrap_stats(const struct bootstrap *bootstrap, struct bootstrap_stats *stats_out)
{
    core_imported->bootstrap_stats(bootstrap, stats_out);
}

/* ---- the base ---- */

void *weft_alloc_array(struct weft_env *env, size_t count, size_t bytes)
{
    return core_imported->weft_alloc_array(env, count, bytes);
}
void *weft_alloc_zero(struct weft_env *env, size_t bytes)
{
    return core_imported->weft_alloc_zero(env, bytes);
}
void weft_assert_failed(const char *expression, const char *file, int line)
{
    core_imported->weft_assert_failed(expression, file, line);
    __builtin_unreachable(); /* a function pointer does not carry the noreturn attribute */
}
bool weft_key_value_next(const char **text, const char *ends, struct weft_key_value *item_out)
{
    return core_imported->weft_key_value_next(text, ends, item_out);
}
enum weft_key_result weft_key_value_set(const struct weft_key *keys, uint32_t groups,
                                        const struct weft_key_value *item, void *out)
{
    return core_imported->weft_key_value_set(keys, groups, item, out);
}
bool weft_bytes_equal_constant_time(const void *a, const void *b, size_t bytes)
{
    return core_imported->weft_bytes_equal_constant_time(a, b, bytes);
}
char **weft_environment(void)
{
    return core_imported->weft_environment();
}
int weft_error_set(struct weft_error *error, int status, const char *format, ...)
{
    struct weft_error written;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(written.text, sizeof written.text, format, arguments);
    va_end(arguments);
    return core_imported->weft_error_set(error, status, "%s", written.text);
}
enum weft_status weft_hmac_sha256(const void *key, size_t key_bytes, const struct weft_bytes_view *parts,
                                  size_t part_count, uint8_t mac_out[WEFT_HMAC_BYTES])
{
    return core_imported->weft_hmac_sha256(key, key_bytes, parts, part_count, mac_out);
}
bool weft_library_folder(const void *address, char *out, size_t bytes)
{
    return core_imported->weft_library_folder(address, out, bytes);
}
void *weft_library_open(const char *path)
{
    return core_imported->weft_library_open(path);
}
void weft_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *format, ...)
{
    char text[LOG_LINE_BYTES];
    va_list arguments;
    if (level > env->log_level || !env->log) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    core_imported->weft_log(env, level, module, "%s", text);
}
void weft_random_bytes(struct weft_env *env, uint8_t *out, size_t bytes)
{
    core_imported->weft_random_bytes(env, out, bytes);
}
int weft_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *), void *argument)
{
    return core_imported->weft_thread_start(thread_out, name, run, argument);
}
void weft_wipe(void *memory, size_t bytes)
{
    core_imported->weft_wipe(memory, bytes);
}
