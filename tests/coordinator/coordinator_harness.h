/* coordinator_harness.h - a coordinator with simulated connections, clock and random numbers. Every message
 * it sends is packed and unpacked, as over a socket, and waits in the connection's inbox. */
#ifndef WEFT_TESTS_COORDINATOR_COORDINATOR_HARNESS_H
#define WEFT_TESTS_COORDINATOR_COORDINATOR_HARNESS_H

#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator.h"
#include "tests/lib/check.h"

#define HARNESS_CONNECTIONS 512
#define HARNESS_INBOX 512

typedef Weft__Control__Control Control;

struct harness_connection {
    bool open, closed_by_coordinator;
    char why[500];
    Control *inbox[HARNESS_INBOX];
    uint32_t received, read;
    size_t frame_bytes; /* of the last message */
};

struct harness {
    struct weft_env env;
    uint64_t now_ns, random;
    struct weft_coordinator_options options;
    struct weft_coordinator *coordinator;
    struct harness_connection connections[HARNESS_CONNECTIONS + 1];
    uint64_t opened_count;
    const Control *same; /* of the sends to many members that have begun */
    uint32_t same_count, sends_of_same;
    bool has_no_chunk_runs; /* members that join do not read runs of chunks */
    bool has_moves;         /* shards that join support SlotCopy and SlotQuiet */
    const char *const *zones; /* of shards by number; NULL: unknown */
    uint32_t ended_count;
    enum weft_status end_status;
    char end_text[500];
};

struct harness *harness_create(uint32_t workers, uint32_t shards, const char *secret);
/* continues while workers_min remain */
struct harness *harness_create_elastic(uint32_t workers, uint32_t workers_min);
struct harness *harness_create_elastic_shards(uint32_t workers, uint32_t shards, uint32_t workers_min);
/* and admits newcomers */
struct harness *harness_create_growing(uint32_t workers, uint32_t shards, uint32_t workers_min,
                                        uint32_t workers_max);
/* with one copy of each slot. one_host: it may be on the host of the original, where all members are */
struct harness *harness_create_copies(uint32_t workers, uint32_t shards, bool one_host);
/* the same on one host, and continues while one worker remains, and admits newcomers */
struct harness *harness_create_growing_copies(uint32_t workers, uint32_t shards, uint32_t workers_max);
void harness_free(struct harness *harness);

/* The coordinator of a job that speaks at most this wire version; workers_max 0: not elastic. */
struct harness *harness_create_version(uint32_t workers, uint32_t shards, uint32_t workers_max,
                                       uint32_t wire_newest);

uint64_t harness_open(struct harness *harness);
/* the peer closes */
void harness_close(struct harness *harness, uint64_t connection, const char *why);
void harness_deliver(struct harness *harness, uint64_t connection, const Control *message);
/* Next unread message of a connection; NULL: none. */
Control *harness_next(struct harness *harness, uint64_t connection);
/* The next message must be of this kind. */
Control *harness_expect(struct harness *harness, uint64_t connection, Weft__Control__Control__BodyCase body);
void harness_expect_nothing(struct harness *harness, uint64_t connection);
/* The next message must be an Abort with this status and text. `closed`: the connection must have been
 * closed. */
void harness_expect_abort(struct harness *harness, uint64_t connection, enum weft_status status,
                          const char *text, bool closed);

/* Common sequences. */
struct harness_hello {
    Weft__Control__Role role;
    int wanted_index;
    const char *job, *secret;
    uint32_t wire_version, wire_oldest, wire_newest, endpoints; /* wire_version 0: the newest one */
    bool has_no_seal, has_no_slots; /* as a member of an earlier release */
    bool joins;                     /* a shard joins a job that runs */
};
/* opens, reads Challenge, sends Hello */
uint64_t harness_hello(struct harness *harness, const struct harness_hello *hello);
uint64_t harness_join(struct harness *harness, Weft__Control__Role role, int index, uint32_t endpoints,
                      Weft__Control__Welcome *welcome_out);
void harness_endpoints(struct harness *harness, uint64_t connection, uint32_t count);
void harness_ready(struct harness *harness, uint64_t connection);
void harness_ready_with(struct harness *harness, uint64_t connection, Weft__Control__LinkCost *cost);
void harness_leave(struct harness *harness, uint64_t connection, const char *text);
/* A declaration of a 1024x784 f32 dense tensor in server mode; the caller may change it. */
struct harness_declare {
    Weft__Control__Declare declare;
    uint64_t dims[8];
};
void harness_declare_init(struct harness_declare *declare, uint32_t ordinal, const char *name);
void harness_declare(struct harness *harness, uint64_t connection, const struct harness_declare *declare);
void harness_declared_ok(struct harness *harness, uint64_t connection, uint32_t tensor);
/* All members join, connect and get Go. connections_out: ids of workers, then of shards. */
void harness_run(struct harness *harness, uint64_t *connections_out, uint32_t engines);

#endif
