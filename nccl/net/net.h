/* net.h - inside libnccl-net-weft.so: one process, its devices, contexts, listeners and connections.
 *
 *   tables       older_tables.c -> plugin.c (version 12)
 *   once         process.c (settings, log), device.c (rails)
 *   set-up       listener.c and connector.c -> exchange.c (one TCP connection) -> exchange_wire.c
 *   connection   comm.c: one transport endpoint for each connection; request.c, memory.c, watch.c
 *
 * A connection has an endpoint of its own, so its end touches no other connection. Threads: NCCL's service
 * thread sets up, registers and closes; its progress thread sends, receives and tests. Both may be inside
 * one connection, whose lock is only tried where NCCL must not wait. The plugin has no thread: an endpoint
 * progresses inside the calls of NCCL, so an idle process uses no processor. */
#ifndef WEFT_NCCL_NET_NET_H
#define WEFT_NCCL_NET_NET_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "nccl/net/exchange.h"
#include "nccl/net/tables.h"
#include "transport/transport.h"

enum {
    NET_DEVICES_MAX = 16,
    NET_NAME_BYTES = 64,
    NET_LISTENER_ID = 2, /* endpoint ids of the two ends of a connection */
    NET_CONNECTOR_ID = 1,
    NET_TEXT_BYTES = 512,
};

struct net_device { /* one rail */
    char name[NET_NAME_BYTES]; /* of transport.devices */
    char pci_path[256];        /* "": none */
    int speed_mbps;
    uint64_t guid;
    bool is_probed;
    unsigned direct_kinds; /* once probed: enum weft_direct_kinds of its endpoints */
};

/* Set by the first init, constant afterwards. */
struct net_process {
    struct weft_env env;       /* the system's, with NCCL's log */
    char backend[NET_NAME_BYTES], lanes[NET_NAME_BYTES], ports[NET_NAME_BYTES];
    char tune[NET_TEXT_BYTES], wrap[NET_TEXT_BYTES];
    char secret[WEFT_SECRET_BYTES_MAX + 1]; /* of the job; "": none */
    char trace[NET_TEXT_BYTES];             /* file of the profiler; "": none */
    char fleet[NET_TEXT_BYTES];             /* CollNet: list of coordinators, one for each device; "": none */
    size_t eager_bytes;
    uint64_t deadline_ns;
    bool is_reproducible; /* CollNet: bits depend on the ranks only */
    struct net_device devices[NET_DEVICES_MAX];
    int device_count;
};
/* The first call reads the options; later ones only replace the logger. The caller holds no lock. A failure
 * is logged. */
enum nccl_result net_process_init(nccl_logger_fn logger);
struct net_process *net_process(void); /* NULL: not initialised */
/* Logs the sentence as a warning and returns NCCL's code for the status. */
enum nccl_result net_report(enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
enum nccl_result net_result(enum weft_status status);

/* device.c: reads the list of transport.devices. */
enum weft_status net_devices_read(struct net_process *process, const char *list, struct weft_error *error);
enum nccl_result net_device_properties(int device, struct nccl_properties_v12 *out);
/* Writes the address of the device as a socket address with port 0. */
enum weft_status net_device_address(const struct net_device *device, struct sockaddr_storage *address_out,
                                    socklen_t *bytes_out, struct weft_error *error);

/* ---- one communicator (versions 8 and 10: one process) ---- */
struct net_context {
    pthread_mutex_t lock;
    struct weft_list connectors; /* struct net_connector */
    uint32_t comm_count;         /* open connections */
    bool has_finalize;           /* false: its last close waits as finalize does */
};
enum nccl_result net_context_create(bool has_finalize, struct net_context **context_out);
void net_context_free(struct net_context *context);
/* Closes the endpoint in order; later calls continue, and free the connection at the end. is_last: it was
 * the last one of its context. */
struct net_comm;
void net_linger_add(struct net_comm *comm, bool is_last);
/* Continues all closing endpoints, without waiting. */
void net_linger_progress(void);
/* Waits for the endpoints of the context, bounded in time, then frees them. */
void net_linger_wait(const struct net_context *context);

/* ---- set-up ---- */
enum nccl_result net_listen(void *context, int device, void *handle_out, void **listener_out);
enum nccl_result net_accept(void *listener, void **comm_out, struct nccl_device_handle **handle_out);
enum nccl_result net_close_listen(void *listener);
enum nccl_result net_connect(void *context, int device, void *handle, void **comm_out,
                             struct nccl_device_handle **handle_out);
void net_connectors_free(struct net_context *context);
/* For CollNet: the identity of a listener, and its next TCP connection (-1: none). */
struct net_listener_identity {
    struct net_context *context;
    int device;
    uint64_t id;
    uint8_t key[WEFT_HMAC_BYTES];
};
const struct net_listener_identity *net_listener_identity(const void *listener);
int net_listener_take_socket(void *listener);

/* ---- one connection ---- */
struct net_memory { /* one registration: the requests that use it are counted for deregMr */
    struct weft_list link;
    uint32_t open_count;
    struct weft_registration *direct; /* of device memory; NULL: host memory */
};

struct net_request {
    struct weft_completion completion;
    struct net_comm *comm;
    struct weft_list link; /* in comm->free_requests or comm->open_requests */
    bool is_done;
    enum weft_status status;
    int count;
    size_t send_bytes;
    struct net_memory *memories[NCCL_RECVS_LIMIT];
    struct weft_receive *receives; /* (NCCL_RECVS_LIMIT,); NULL: a send */
};

struct net_watch { /* watch.c */
    int fd;
    bool is_open;
    bool is_held; /* the sender has reported that it keeps the connection */
};

struct net_comm {
    pthread_mutex_t lock;
    struct net_context *context;
    struct weft_transport *transport; /* NULL: abandoned (net_comm_abandon) */
    struct weft_peer *peer;
    bool is_send;
    enum nccl_result failed; /* once set, every call returns it */
    uint32_t polls;
    uint64_t waiting_ns;     /* since when nothing completes; 0: not measured yet */
    struct weft_list free_requests, open_requests, memories;
    struct weft_list linger_link; /* context.c: while its endpoint closes */
    struct net_request *requests;
    struct weft_receive *receives;
    struct net_watch watch;
    char peer_name[NET_NAME_BYTES];
    char lost_text[256]; /* why the transport has lost the peer; "": it has not */
};

struct net_endpoint_options {
    int device;
    uint32_t id;
    const uint8_t *secret; /* WEFT_HMAC_BYTES; the nonce follows from it */
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *context;
};
enum weft_status net_endpoint_open(const struct net_endpoint_options *options,
                                   struct weft_transport **transport_out, struct weft_error *error);

/* Opens the endpoint of one side. `secret` is of the connection, WEFT_HMAC_BYTES. */
enum weft_status net_comm_create(struct net_context *context, int device, bool is_send,
                                 const uint8_t *secret, struct net_comm **comm_out, struct weft_error *error);
/* Connects the endpoint to the blob of the other side; `peer_name` is for messages. */
enum weft_status net_comm_connect(struct net_comm *comm, const void *blob, size_t bytes,
                                  const char *peer_name);
/* watch.c: keeps the connection of the exchange until the first message is complete. The exchange has no
 * descriptor afterwards. */
void net_watch_begin(struct net_comm *comm, struct exchange *exchange);
void net_watch_end(struct net_comm *comm);
/* Receiver: returns whether the sender has died before its first message. */
bool net_watch_shows_death(struct net_comm *comm);
void net_comm_close(struct net_comm *comm); /* requests may be open */
void net_comm_free(struct net_comm *comm);  /* with its endpoint */
/* Ends all requests of the connection: on return no peer accesses their memory. Bounded in time. The caller
 * holds the lock. */
void net_comm_abandon(struct net_comm *comm);
/* Fails the connection; its requests complete with an error. The caller holds the lock. */
enum nccl_result net_comm_fail(struct net_comm *comm, enum weft_status status, const char *text);

enum nccl_result net_isend(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                           void **request_out);
enum nccl_result net_irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                           void **parents, void **request_out);
enum nccl_result net_test(void *request, int *is_done_out, int *bytes_out);
/* The caller holds the lock: is a request not complete; no request refers to the memory any more. */
bool net_request_is_pending(const struct net_comm *comm);
void net_request_forget(struct net_comm *comm, const struct net_memory *memory);
enum nccl_result net_reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out);
enum nccl_result net_reg_mr_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                   void **memory_out);
enum nccl_result net_dereg_mr(void *comm, void *memory);
enum nccl_result net_iflush(void *comm, int count, void **data, int *bytes, void **memories,
                            void **request_out);
#define NET_PROGRESS_BUDGET 64

#endif
