/* module.h - backends in shared objects, opened on first use.
 *
 *      core_backend_find("ucx") ── linked into this program? ── yes ──► its table (libweft.a, tests)
 *                                          │ no
 *                                          ▼
 *      dlopen("libweft_ucx.so") ──► struct core_module ──► ops(services) ──► its table
 *
 * A program that uses neither UCX nor verbs loads neither. A module has no undefined symbols of weft: it
 * calls the core and the base through a table of services (module_imports.c). A module and its library
 * are of the same build. */
#ifndef WEFT_TRANSPORT_MODULE_H
#define WEFT_TRANSPORT_MODULE_H

#include "base/os/library.h"
#include "transport/core/core.h"
#include "transport/bootstrap/address_blob.h"

/* All functions of weft outside its own folder that a backend in a module calls. */
#define CORE_SERVICES(SERVICE) \
    SERVICE(core_arrived) SERVICE(core_arrived_posted) SERVICE(core_finish) SERVICE(core_nonce_hash) \
    SERVICE(core_peer_find) SERVICE(core_peer_left) SERVICE(core_peer_lost) SERVICE(core_peer_find_or_add) \
    SERVICE(core_wake_at) SERVICE(bootstrap_address) SERVICE(address_blob_decode) \
    SERVICE(address_blob_encode) \
    SERVICE(bootstrap_close) SERVICE(bootstrap_connect) SERVICE(bootstrap_fd) SERVICE(bootstrap_is_flushed) \
    SERVICE(bootstrap_forget) \
    SERVICE(bootstrap_open) SERVICE(bootstrap_options_init) SERVICE(bootstrap_options_ports) \
    SERVICE(bootstrap_progress) \
    SERVICE(bootstrap_send) SERVICE(bootstrap_stats) SERVICE(weft_alloc_array) SERVICE(weft_alloc_zero) \
    SERVICE(weft_assert_failed) SERVICE(weft_bytes_equal_constant_time) SERVICE(weft_environment) \
    SERVICE(weft_error_set) SERVICE(weft_key_value_next) SERVICE(weft_key_value_set) \
    SERVICE(weft_hmac_sha256) SERVICE(weft_library_folder) SERVICE(weft_library_open) \
    SERVICE(weft_log) SERVICE(weft_random_bytes) \
    SERVICE(weft_thread_start) SERVICE(weft_transport_peer) SERVICE(weft_wipe)

#define CORE_SERVICE_FIELD(name) __typeof__(name) *name;
struct core_services {
    CORE_SERVICES(CORE_SERVICE_FIELD)
};

/* The object that a module exports as CORE_MODULE_SYMBOL. */
struct core_module {
    uint32_t version;         /* CORE_MODULE_VERSION; the first field in every version */
    uint32_t service_bytes;   /* sizeof(struct core_services) */
    uint32_t transport_bytes; /* sizeof(struct weft_transport) */
    const char *name;         /* of the backend */
    const char *build;        /* CORE_MODULE_BUILD: the release */
    /* Stores the services, which live as long as the process, and returns the table of the backend. */
    const struct weft_transport_ops *(*ops)(const struct core_services *services);
};
#define CORE_MODULE_VERSION 1u
#define CORE_MODULE_SYMBOL "weft_transport_module"

/* module_imports.c, inside a module: the services behind the forwarding functions. */
extern const struct core_services *core_imported;

/* module.c: the table of the backend in libweft_NAME.so. The file is opened once per process and the
 * result is kept. Blocks while it is opened. Any thread. WEFT_ERR_UNSUPPORTED with a sentence: missing,
 * not loadable, or from another build. */
enum weft_status core_module_ops(const char *name, const struct weft_transport_ops **ops_out,
                                 struct weft_error *error);

/* Backends linked into the program; the last entry has name NULL. linked.c lists those of the build,
 * unlinked.c none. An object that uses modules compiles unlinked.c itself. */
struct core_linked_backend {
    const char *name;
    const struct weft_transport_ops *ops;
};
extern const struct core_linked_backend core_linked_backends[];

#endif
