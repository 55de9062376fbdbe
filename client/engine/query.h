/* query.h - a query of the caller's thread, answered by the engine thread into memory of the session. The
 * caller may stop waiting; then the engine still answers. */
#ifndef WEFT_CLIENT_ENGINE_QUERY_H
#define WEFT_CLIENT_ENGINE_QUERY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

struct weft_session;

struct client_engine_query {
    struct weft_command command;
    struct weft_session *session;
    _Atomic int state; /* 0: idle, 1: queued, 2: answered */
};

/* Caller's thread. Waits at most 1 s. WEFT_ERR_BUSY: the engine thread is in a long computation. */
enum weft_status client_engine_query_run(struct weft_session *session, struct client_engine_query *query);
void client_engine_query_answered(struct client_engine_query *query); /* engine thread */

/* The queries of a session, each with its answer. */
struct client_queries {
    struct {
        struct client_engine_query query;
        uint64_t sent_bytes, received_bytes, encode_ns, requests;
    } stats;
    struct {
        struct client_engine_query query;
        pthread_mutex_t lock; /* one thread at a time queries and reads */
        const void *request;  /* compared only: the request may be freed */
        char text[480];
    } describe;
    struct {
        struct client_engine_query query;
        char *text;                    /* (bytes,) owned by the session */
        size_t bytes;
    } links;
};

#endif
