/* job_version.c - the wire version of a job.
 *
 *     joining   each member speaks a range of versions; all ranges, and the coordinator's, share a version
 *     roster    the newest shared one is the version of the job, for its whole life
 *     later     a new member must speak that version
 *
 * The version does not rise when the last older member has been replaced: members that have joined before
 * would have to agree on the step from which on it holds. What the version does not have is refused with a
 * sentence that names the oldest member. Workers exchange data in formats that have no version (plans, order
 * of tensors), so all of them speak the same newest one. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"

struct weft_wire_range coordinator_wire_range(const struct weft_coordinator *coordinator)
{
    return weft_wire_range_own(coordinator->options.wire_newest);
}

struct weft_wire_range coordinator_wire_of(const struct weft_coordinator *coordinator,
                                           const Weft__Control__Hello *hello)
{
    const struct weft_wire_range only = {hello->wire_version, hello->wire_version};
    return coordinator_wire_range(coordinator).newest > 1 ? weft_wire_range_of_hello(hello) : only;
}

static struct weft_wire_range intersect(struct weft_wire_range a, struct weft_wire_range b)
{
    return (struct weft_wire_range){a.oldest > b.oldest ? a.oldest : b.oldest,
                                    a.newest < b.newest ? a.newest : b.newest};
}

/* The versions that the coordinator and all members speak. */
static struct weft_wire_range shared_range(const struct weft_coordinator *coordinator)
{
    struct weft_wire_range shared = coordinator_wire_range(coordinator);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        shared = intersect(shared, coordinator->membership.members[i]->abilities.wire);
    return shared;
}

/* A member that does not share a version with the range; NULL: each does, but not all the same one. */
static const struct coordinator_member *find_other(const struct weft_coordinator *coordinator,
                                                   struct weft_wire_range range)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (weft_wire_range_common(coordinator->membership.members[i]->abilities.wire, range) == 0)
            return coordinator->membership.members[i];
    return NULL;
}

static const struct coordinator_member *find_worker(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
            coordinator->membership.members[i]->state < MEMBER_LEFT)
            return coordinator->membership.members[i];
    return NULL;
}

static bool workers_agree(const struct weft_coordinator *coordinator, const Weft__Control__Hello *hello,
                          struct weft_error *why)
{
    const uint32_t newest = coordinator_wire_of(coordinator, hello).newest;
    const struct coordinator_member *other = find_worker(coordinator);
    if (!other || other->abilities.wire.newest == newest) return true;
    weft_error_set(why, WEFT_ERR_VERSION,
                   "%.100s speaks wire version %u (weft %.40s) and %.200s version %u: workers exchange data "
                   "with each other, use one release of weft in all workers of a job",
                   hello->name, newest, hello->weft_version, other->label, other->abilities.wire.newest);
    return false;
}

static bool has_begun_with(const struct weft_coordinator *coordinator, const Weft__Control__Hello *hello,
                           struct weft_error *why)
{
    char text[WEFT_WIRE_RANGE_TEXT_BYTES];
    const struct weft_wire_range its = coordinator_wire_of(coordinator, hello);
    if (!weft_wire_range_has(its, coordinator->wire_version)) {
        weft_error_set(why, WEFT_ERR_VERSION,
                       "%.100s speaks wire version %s (weft %.40s) and job %.100s has version %u since its "
                       "start: use a release of weft that speaks it",
                       hello->name, weft_wire_range_text(its, text), hello->weft_version, coordinator->job,
                       coordinator->wire_version);
        return false;
    }
    const bool is_newcomer = hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
                             coordinator->options.shards > 0 && coordinator->options.workers_max > 0;
    return !is_newcomer ||
           coordinator_wire_check(coordinator, 2, "a new worker in a job with shards", why) == WEFT_OK;
}

bool coordinator_wire_admits(const struct weft_coordinator *coordinator, const Weft__Control__Hello *hello,
                             struct weft_error *why)
{
    char text[WEFT_WIRE_RANGE_TEXT_BYTES], other_text[WEFT_WIRE_RANGE_TEXT_BYTES];
    const struct weft_wire_range its = coordinator_wire_of(coordinator, hello),
                                 shared = shared_range(coordinator);
    if (hello->role == WEFT__CONTROL__ROLE__ROLE_OBSERVER) return true;
    if (hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER && !workers_agree(coordinator, hello, why))
        return false;
    if (coordinator->wire_version > 0) return has_begun_with(coordinator, hello, why);
    if (weft_wire_range_common(shared, its) > 0) return true;
    const struct coordinator_member *other = find_other(coordinator, its);
    weft_error_set(
        why, WEFT_ERR_VERSION,
        "%.100s speaks wire version %s (weft %.40s) and %.200s %s: use releases of weft that are at "
        "most one wire version apart",
        hello->name, weft_wire_range_text(its, text), hello->weft_version,
        other ? other->label : "the other members",
        weft_wire_range_text(other ? other->abilities.wire : shared, other_text));
    return false;
}

/* The first process that does not speak the version. */
static const char *oldest_process(const struct weft_coordinator *coordinator, uint32_t version)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->abilities.wire.newest < version)
            return coordinator->membership.members[i]->label;
    return "the coordinator";
}

void coordinator_wire_choose(struct weft_coordinator *coordinator)
{
    coordinator->wire_version = shared_range(coordinator).newest;
    if (coordinator->wire_version < WEFT_WIRE_VERSION)
        weft_log(
            coordinator->env, WEFT_LOG_WARN, "coordinator",
            "job %s has wire version %u, because %s speaks no newer one: features of version %u are refused",
            coordinator->job, coordinator->wire_version, oldest_process(coordinator, WEFT_WIRE_VERSION),
            coordinator->wire_version + 1);
}

uint32_t coordinator_wire_written(const struct weft_coordinator *coordinator)
{
    return coordinator_wire_range(coordinator).newest > 1 ? coordinator->wire_version : 0;
}

enum weft_status coordinator_wire_check(const struct weft_coordinator *coordinator, uint32_t needed,
                                        const char *what, struct weft_error *error)
{
    if (coordinator->wire_version >= needed) return WEFT_OK;
    return weft_wire_version_refuse(what, needed, coordinator->wire_version,
                                    oldest_process(coordinator, needed), error);
}
