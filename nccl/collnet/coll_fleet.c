/* coll_fleet.c - whether the sums of a communicator go through a fleet: all ranks agree on it.
 *
 *   all have nccl.fleet? -> each joins its job -> all have joined? -> sums go through the shards
 *
 * Both questions are an all_reduce of the communicator's group, so no rank uses shards alone. If one answer
 * is no, all ranks use the collectives, and one line has the reason. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "nccl/collnet/coll.h"

enum { POLL_MS = 1 };
#define JOIN_NS WEFT_SECONDS(20)      /* all nodes are connected: only shards may be missing */
#define JOIN_AGAIN_NS WEFT_SECONDS(2) /* this process has joined before: the job has probably ended */

static _Atomic bool has_joined[NET_DEVICES_MAX]; /* the fleet of the device, in this process */

static struct weft_env *env(void)
{
    return &net_process()->env;
}

/* Entry number `device` of the list in nccl.fleet; "": none. */
static void coordinator_of(int device, char *out, size_t bytes)
{
    const char *at = net_process()->fleet;
    for (; device > 0 && *at; device--) at += strcspn(at, ","), at += *at == ',';
    snprintf(out, bytes, "%.*s", (int)strcspn(at, ","), at);
}

static void answered(void *context, enum weft_status status, const char *text)
{
    struct coll_answer *answer = context;
    answer->is_done = true;
    answer->status = status;
}

/* Do all ranks answer yes? Blocks until limit_ns at most. After an error the communicator is freed. */
static enum weft_status ask_all(struct coll_comm *comm, bool mine, uint64_t limit_ns, bool *all_out,
                                struct weft_error *error)
{
    struct coll_answer *answer = &comm->answer;
    *answer = (struct coll_answer){.mine = mine};
    const struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                        .in = &answer->mine,
                                        .out = &answer->all,
                                        .count = 1,
                                        .dtype = WEFT_I32,
                                        .op = WEFT_MIN};
    enum weft_status status = weft_coll_post(comm->group, &args, answered, answer, NULL, error);
    if (status < 0) return status;
    while (!(answer->is_done && weft_transport_is_flushed(comm->transport)) && weft_now_ns(env()) < limit_ns)
        if (weft_loop_step(comm->loop) == 0) poll(NULL, 0, POLL_MS);
    if (!answer->is_done)
        return weft_error_set(error, WEFT_ERR_DEADLINE, "a rank has not agreed on the fleet in time");
    if (answer->status < 0)
        return weft_error_set(error, answer->status, "a rank has ended before it agreed on the fleet");
    *all_out = answer->all != 0;
    return WEFT_OK;
}

static enum weft_status use_collectives(struct coll_comm *comm, const char *coordinator, const char *reason)
{
    weft_log(env(), WEFT_LOG_WARN, "nccl",
             "CollNet: rank %u of %u uses the collectives, not the shards at %.200s: %.250s", comm->rank,
             comm->ranks, coordinator, reason);
    return WEFT_OK;
}

enum weft_status coll_fleet_open(struct coll_comm *comm, int device, uint64_t patience_ns,
                                 struct weft_error *error)
{
    char coordinator[NET_TEXT_BYTES];
    bool all = false;
    struct weft_error reason = {0};
    coordinator_of(device, coordinator, sizeof coordinator);
    WEFT_TRY(ask_all(comm, coordinator[0] != 0, weft_now_ns(env()) + patience_ns, &all, error));
    if (!coordinator[0]) return WEFT_OK;
    if (!all) return use_collectives(comm, coordinator, "another rank has no nccl.fleet for this device");
    struct fleet *fleet = fleet_join(coordinator, comm->rank, comm->ranks);
    enum weft_status joined = WEFT_ERR_NO_MEMORY;
    uint64_t join_ns = has_joined[device] ? JOIN_AGAIN_NS : JOIN_NS;
    if (join_ns > patience_ns) join_ns = patience_ns;
    if (fleet) joined = fleet_wait(fleet, weft_now_ns(env()) + join_ns, &reason);
    if (joined == WEFT_OK) has_joined[device] = true;
    enum weft_status status =
        ask_all(comm, joined == WEFT_OK, weft_now_ns(env()) + 2 * patience_ns, &all, error);
    if (status == WEFT_OK && all) {
        weft_log(env(), WEFT_LOG_INFO, "nccl",
                 "CollNet: rank %u of %u: sums of f32, f16 and bf16 go through the shards at %.200s",
                 comm->rank, comm->ranks, coordinator);
        comm->fleet = fleet;
        return WEFT_OK;
    }
    fleet_leave(fleet, 0);
    WEFT_TRY(status);
    if (joined == WEFT_OK) snprintf(reason.text, sizeof reason.text, "another rank could not join");
    return use_collectives(comm, coordinator, fleet ? reason.text : "no memory or thread is left");
}

/* ---- calls ---- */

static void report_once(struct coll_comm *comm, bool *is_reported, const char *what)
{
    if (!*is_reported)
        weft_log(env(), WEFT_LOG_WARN, "nccl", "CollNet: rank %u of %u: %s", comm->rank, comm->ranks, what);
    *is_reported = true;
}

struct fleet_call *coll_fleet_post(struct coll_comm *comm, const struct weft_coll_args *args)
{
    struct fleet_place place;
    if (!comm->fleet || args->count == 0) return NULL;
    if (!fleet_sums(args->dtype, args->op)) {
        report_once(comm, &comm->has_reported_types,
                    "calls with other reductions than sum, or other types than f32, f16 and bf16, go through "
                    "the collectives, not the shards");
        return NULL;
    }
    if (!fleet_sizes_next(&comm->fleet->sizes, args->dtype, args->count, &place)) {
        report_once(comm, &comm->has_reported_sizes,
                    "calls of further sizes go through the collectives: the shards have a tensor for each of "
                    "64 sizes");
        return NULL;
    }
    return fleet_post(comm->fleet, args->in, args->out, place);
}
