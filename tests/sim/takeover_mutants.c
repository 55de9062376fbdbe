/* takeover_mutants.c - see takeover_mutants.h. Linked with --wrap of each function. */
#include "tests/sim/takeover_mutants.h"

#include <stddef.h>
#include <string.h>

#include "coordinator/takeover/records.h"

static const char *const names[] = {
    "snapshots-not-recorded",  "snapshot-not-dropped", "snapshots-not-restored", "membership-not-recorded",
    "membership-not-repeated", "loss-not-proposed",    "early-job-not-recorded"};
enum {
    NOT_RECORDED,
    NOT_DROPPED,
    NOT_RESTORED,
    NO_MEMBERSHIP,
    NOT_REPEATED,
    NOT_PROPOSED,
    NOT_WAITING,
    MUTANTS
};
static bool is_on[MUTANTS];

bool takeover_mutant_select(const char *name)
{
    for (size_t i = 0; i < MUTANTS; i++)
        if (strcmp(name, names[i]) == 0) return is_on[i] = true;
    return false;
}

void __real_coordinator_records_snapshots(struct weft_coordinator *coordinator);
void __wrap_coordinator_records_snapshots(struct weft_coordinator *coordinator);
void __wrap_coordinator_records_snapshots(struct weft_coordinator *coordinator)
{
    if (!is_on[NOT_RECORDED]) __real_coordinator_records_snapshots(coordinator);
}

void __real_coordinator_snapshot_repeat(struct weft_coordinator *coordinator,
                                        const struct coordinator_member *member);
void __wrap_coordinator_snapshot_repeat(struct weft_coordinator *coordinator,
                                        const struct coordinator_member *member);
void __wrap_coordinator_snapshot_repeat(struct weft_coordinator *coordinator,
                                        const struct coordinator_member *member)
{
    if (!is_on[NOT_DROPPED]) __real_coordinator_snapshot_repeat(coordinator, member);
}

void __real_coordinator_snapshot_restore(struct weft_coordinator *coordinator,
                                         const Weft__Control__StoredSnapshots *stored);
void __wrap_coordinator_snapshot_restore(struct weft_coordinator *coordinator,
                                         const Weft__Control__StoredSnapshots *stored);
void __wrap_coordinator_snapshot_restore(struct weft_coordinator *coordinator,
                                         const Weft__Control__StoredSnapshots *stored)
{
    if (!is_on[NOT_RESTORED]) __real_coordinator_snapshot_restore(coordinator, stored);
}

void __real_coordinator_records_shrunk(struct weft_coordinator *coordinator,
                                       const Weft__Control__Shrunk *shrunk, uint32_t before);
void __wrap_coordinator_records_shrunk(struct weft_coordinator *coordinator,
                                       const Weft__Control__Shrunk *shrunk, uint32_t before);
void __wrap_coordinator_records_shrunk(struct weft_coordinator *coordinator,
                                       const Weft__Control__Shrunk *shrunk, uint32_t before)
{
    if (!is_on[NO_MEMBERSHIP]) __real_coordinator_records_shrunk(coordinator, shrunk, before);
}

void __real_coordinator_membership_repeat(struct weft_coordinator *coordinator,
                                          struct coordinator_member *member, uint32_t epoch);
void __wrap_coordinator_membership_repeat(struct weft_coordinator *coordinator,
                                          struct coordinator_member *member, uint32_t epoch);
void __wrap_coordinator_membership_repeat(struct weft_coordinator *coordinator,
                                          struct coordinator_member *member, uint32_t epoch)
{
    if (!is_on[NOT_REPEATED]) __real_coordinator_membership_repeat(coordinator, member, epoch);
}

void __real_coordinator_membership_check(struct weft_coordinator *coordinator);
void __wrap_coordinator_membership_check(struct weft_coordinator *coordinator);
void __wrap_coordinator_membership_check(struct weft_coordinator *coordinator)
{
    if (!is_on[NOT_PROPOSED]) __real_coordinator_membership_check(coordinator);
}

bool __real_coordinator_records_wait(struct weft_coordinator *coordinator);
bool __wrap_coordinator_records_wait(struct weft_coordinator *coordinator);
bool __wrap_coordinator_records_wait(struct weft_coordinator *coordinator)
{
    return is_on[NOT_WAITING] || __real_coordinator_records_wait(coordinator);
}
