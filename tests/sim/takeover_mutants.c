/* takeover_mutants.c - see takeover_mutants.h. Linked with --wrap of each function. */
#include "tests/sim/takeover_mutants.h"

#include <stddef.h>
#include <string.h>

#include "coordinator/takeover/records.h"

static const char *const names[] = {"snapshots-not-recorded", "snapshot-not-dropped",
                                    "snapshots-not-restored"};
enum { NOT_RECORDED, NOT_DROPPED, NOT_RESTORED, MUTANTS };
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
