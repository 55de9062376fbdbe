/* verbs_watch.h - tells when memory is given back to the system under a registration.
 *
 * A registered range keeps its pages although the program unmaps them; what is mapped at the same address
 * next is other memory, and the old key would move wrong bytes. So whoever keeps registrations must see
 * munmap, mremap, brk and madvise, whoever calls them (malloc among them). The kernel tells by userfaultfd:
 * ranges are registered with it in write-protect mode and nothing is ever protected, so no fault is taken
 * over and only the events remain. The thread that unmaps sleeps until the event has been read here; by then
 * its range is marked, before the lock below is free.
 *
 * One watch per process (a range has one watcher), one thread, started by the first user and ended by the
 * last. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_WATCH_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_WATCH_H

#include "base/base.h"

struct verbs_watcher {
    /* [start, end) is gone or has other pages now. On the watch's thread, under the lock: must not
     * allocate, free, lock or unmap. */
    void (*unmapped)(void *context, uintptr_t start, uintptr_t end);
    void *context;
    struct weft_list link;
};

/* WEFT_OK, or WEFT_ERR_UNSUPPORTED with why this system does not tell. */
enum weft_status verbs_watch_join(struct verbs_watcher *watcher, struct weft_error *error);
/* `watcher` is called no more. The caller has let go of all its ranges. */
void verbs_watch_leave(struct verbs_watcher *watcher);

/* Watch the pages of [start, end) from now on; again is fine. false: memory that cannot be watched (a
 * mapped file, another watcher's). */
bool verbs_watch_range(uintptr_t start, uintptr_t end);
/* Stop; the range is gone for all watchers that still know it. */
void verbs_watch_release(uintptr_t start, uintptr_t end);

/* Guards what `gone` writes. Nothing that could unmap memory may be called between them: it would wait for
 * this lock. */
void verbs_watch_lock(void);
void verbs_watch_unlock(void);

#endif
