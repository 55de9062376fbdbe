/* wrap.h - inside the wrappers: a transport around another one.
 *
 *   outer core ─ send, put, get ─► [lost? broken?] ─► [wait until due] ─► inner transport ═══ wire
 *   outer core ◄─ core_arrived ─── [wait until due] ◄─ [lost?] ◄─ handler of every channel of the inner one
 *
 *   wrap.c           life, peers, progress
 *   wrap_message.c   messages: sends, arrivals, acceptances
 *   wrap_window.c    windows, puts, gets
 *   wrap_options.c   parameters
 *   trace.h, .c      the trace file
 *
 * The inner transport is a complete endpoint, used through its public functions. The wrapper decides for
 * each operation whether it is lost, when it proceeds, and whether it is traced. Without parameters it
 * changes nothing: the conformance suite passes. Wrappers nest: "fault:trace:ucx" is a fault wrapper
 * around a trace around UCX. */
#ifndef WEFT_TRANSPORT_WRAP_H
#define WEFT_TRANSPORT_WRAP_H

#include "transport/core/core.h"
#include "transport/wrap/wrap_options.h"

enum { WRAP_HELD_MAX = 8192, WRAP_UNUSED_MAX = 256 };

enum wrap_kind { WRAP_SEND = 1, WRAP_ACCEPT, WRAP_RECV, WRAP_PUT, WRAP_GET };

struct wrap_op {
    struct core_done done; /* first */
    struct weft_completion inner;
    struct weft_transport *outer;
    struct weft_list link; /* in wrap->leaving or wrap_peer->vanished, until the inner transport has it */
    uint64_t due_ns;
    enum wrap_kind kind;
    uint64_t tag;
    size_t bytes;
    /* trace: time of the call; start and end in the inner transport; WEFT_NEVER: not yet */
    uint64_t begin_ns, taken_ns, done_ns;
    struct weft_remote *remote;           /* put, get: remote of the inner transport */
    union {
        struct weft_message message;
        struct weft_put put;
        struct {
            uint64_t offset;
            void *destination;
        } get;
    };
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct wrap_arrival {
    struct core_arrival core; /* first */
    struct weft_arrival *inner;
    struct wrap_op op; /* the acceptance */
    uint64_t due_ns, arrived_ns;
    struct weft_list link; /* in wrap->arriving or wrap->unused_arrivals */
};

struct wrap_peer {
    struct weft_peer *inner;
    bool cut, broken;          /* cut: silent from now on; broken: to be reported as lost */
    struct weft_list vanished; /* struct wrap_op: lost operations, which do not end by themselves */
};

struct wrap {
    struct weft_transport *outer, *inner;
    struct wrap_options options;
    struct weft_trace *trace; /* NULL: no trace */
    bool killed, break_pending;
    uint64_t random, message_count;
    uint64_t out_free_ns, out_due_ns, in_due_ns;
    uint64_t matched_posted_ns; /* post time of the receive being matched; WEFT_NEVER: none */
    uint64_t slept_ns;          /* armed since then; WEFT_NEVER: awake */
    uint32_t op_count, unused_count;
    struct weft_list leaving, arriving, sunk;
    struct weft_list unused_ops, unused_arrivals;
};

static inline bool wrap_has_delay(const struct wrap_options *options)
{
    return options->delay_ns || options->jitter_ns || options->rate_bytes;
}
/* Whether the parameters can change an operation, beyond tracing it. */
static inline bool wrap_can_alter(const struct wrap *wrap)
{
    const struct wrap_options *options = &wrap->options;
    return wrap_has_delay(options) || options->drop > 0 || options->breaks > 0 || options->kill_after > 0;
}

static inline struct wrap *wrap_of(struct weft_transport *transport) { return transport->backend; }

/* wrap.c */
uint64_t wrap_random(struct wrap *wrap);
/* Counts one operation of this peer and decides whether it passes. */
bool wrap_lets_pass(struct wrap *wrap, struct wrap_peer *peer);
uint64_t wrap_due_out(struct wrap *wrap, uint64_t bytes);
uint64_t wrap_due_in(struct wrap *wrap, uint64_t bytes);
static inline uint64_t wrap_trace_now(const struct wrap *wrap)
{
    return wrap->trace ? weft_now_ns(wrap->outer->env) : 0;
}

/* wrap_message.c */
struct wrap_op *wrap_op_new(struct weft_transport *outer, enum wrap_kind kind, struct weft_peer *peer,
                            struct weft_completion *completion);
/* Starts, delays or loses the operation. Returns the status of send, put or get; the op is freed unless it
 * is in progress. */
enum weft_status wrap_op_start(struct wrap *wrap, struct wrap_op *op, bool *held_out);
void wrap_op_free(struct wrap_op *op);
int wrap_send_due(struct wrap *wrap, int budget);   /* starts operations that are due */
int wrap_deliver_due(struct wrap *wrap, int budget);  /* delivers arrivals that are due */
void wrap_arrived(void *context, struct weft_arrival *inner); /* handler of the inner transport */
void wrap_flush_arriving(struct wrap *wrap, const struct weft_peer *peer);
void wrap_end_ops(struct weft_transport *transport, struct weft_list *ops, const struct weft_peer *peer,
                  enum weft_status status);
enum weft_status wrap_send(struct weft_transport *transport, struct weft_peer *peer,
                           const struct weft_message *message, struct weft_completion *completion);
enum weft_status wrap_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                             struct weft_completion *completion);
void wrap_discard(struct weft_transport *transport, struct weft_arrival *handle);
void wrap_observe(struct weft_transport *transport, enum core_moment moment, struct weft_receive *receive);

/* wrap_window.c */
enum weft_status wrap_window_open(struct weft_transport *transport, struct weft_window *window,
                                  struct weft_error *error);
void wrap_window_close(struct weft_transport *transport, struct weft_window *window);
/* pin and unpin of weft_transport_memory_ops, by the inner transport. */
enum weft_status wrap_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                      void **registered_out, struct weft_error *error);
void wrap_memory_unregister(struct weft_transport *transport, void *kept);
void wrap_window_free(struct weft_transport *transport, struct weft_window *window);
enum weft_status wrap_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                             size_t bytes);
void wrap_release(struct weft_transport *transport, struct weft_remote *remote);
void *wrap_map(struct weft_transport *transport, struct weft_remote *remote);
enum weft_status wrap_map_peer(struct weft_transport *transport, struct weft_peer *peer,
                               struct weft_mapping *mapping_out);
void wrap_wake(struct weft_transport *transport, struct weft_peer *peer);
enum weft_status wrap_copy_peer(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                                uint64_t address, void *local, size_t bytes);
bool wrap_is_detached(struct weft_transport *transport, const struct weft_peer *peer);
enum weft_status wrap_put(struct weft_transport *transport, struct weft_remote *remote,
                          const struct weft_put *put, struct weft_completion *completion);
enum weft_status wrap_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                          void *destination, size_t bytes, struct weft_completion *completion);

#endif
