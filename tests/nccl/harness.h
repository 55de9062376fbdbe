/* harness.h - conformance points for network plugins, and what they share.
 *
 *     nccl_harness --plugin PATH [--version N] [--points a,b] [--seeds N] [--first N] [--ranks N]
 *                  [--shard PID] [--large] [--limit S]
 *
 * Each point runs in a process of its own, which opens the plugin, so a crash or a hang is a failure of one
 * point. A failed check ends that process with a sentence. */
#ifndef WEFT_TESTS_NCCL_HARNESS_H
#define WEFT_TESTS_NCCL_HARNESS_H

#include <sched.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/nccl/driver.h"

struct harness {
    struct driver driver;
    const char *plugin;
    int version, seeds, first_seed;
    int ranks;    /* of CollNet points; 0: several numbers */
    pid_t shard;  /* a process that coll-shard kills; 0: none */
    bool is_large;
    struct nccl_properties_v12 properties; /* of device 0 */
};

struct point {
    const char *name;
    void (*run)(struct harness *harness);
};
extern const struct point setup_points[], message_points[], memory_points[], life_points[], random_points[],
    collnet_points[], oracle_points[], direct_points[];

__attribute__((noreturn, format(printf, 3, 4))) void point_fail(const char *file, int line,
                                                               const char *format, ...);
#define CHECK(condition, ...)                                        \
    do {                                                             \
        if (!(condition)) point_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
#define CHECK_OK(call)                                                                     \
    do {                                                                                   \
        enum nccl_result result_ = (call);                                                 \
        if (result_ != NCCL_RESULT_SUCCESS)                                                \
            point_fail(__FILE__, __LINE__, "%s returned %d", #call, (int)result_);         \
    } while (0)

/* One connection with both ends in this process, and a registration of `memory` at each end if given. */
struct pair {
    struct driver *driver;
    void *send_context, *recv_context; /* owned if `owns` */
    bool owns;
    void *send, *recv;
};
void pair_open(struct pair *pair, struct harness *harness);
void pair_open_in(struct pair *pair, struct harness *harness, void *send_context, void *recv_context);
/* The same, but returns an error of connect or accept; then one end may be NULL. pair_close in any case. */
enum nccl_result pair_open_under_faults(struct pair *pair, struct harness *harness);
/* Calls connect and accept in turn until both have a connection. */
void pair_connect(struct pair *pair, void *listener, void *handle);
void pair_close(struct pair *pair);

/* Post; NULL: the queue is full. An error fails the point. */
void *send_try(struct pair *pair, void *data, size_t bytes, int tag, void *memory);
void *recv_try(struct pair *pair, void *data, size_t bytes, int tag, void *memory);
/* Tests once; clears *request and returns true if it has completed. */
bool is_done(struct pair *pair, void **request, int *bytes_out);
/* Tests both in turn until both are complete; NULL: none. Returns the size that the receive reports. */
int finish(struct pair *pair, void *send, void *recv);
/* One message, completely. */
void transfer(struct pair *pair, void *from, size_t bytes, void *to, size_t capacity, int tag);
void *reg(struct pair *pair, void *comm, void *data, size_t bytes);

void pattern_fill(void *data, size_t bytes, uint64_t seed);
bool pattern_is(const void *data, size_t bytes, uint64_t seed);
uint64_t random_next(uint64_t *state);
int thread_count(void); /* of this process */

#endif
