/* verbs_watch.h - reports when registered memory is unmapped.
 *
 * A registered range keeps its pages after the program unmaps them. Memory mapped at the same address
 * later is different, and the old key would move wrong bytes. So a registration cache must see munmap,
 * mremap, brk and madvise of every caller, including malloc. userfaultfd reports them: ranges are
 * registered in write-protect mode and never protected, so no faults are handled and only the events
 * remain. The unmapping thread sleeps until the event is read here; its range is marked before the lock
 * below is released.
 *
 * One watch per process (a range has one watcher) with one thread, from the first user to the last. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_WATCH_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_WATCH_H

#include "base/base.h"

struct verbs_watcher {
    /* [start, end) is unmapped or has other pages. Runs on the watch's thread with the lock held: must not
     * allocate, free, lock or unmap. */
    void (*unmapped)(void *context, uintptr_t start, uintptr_t end);
    void *context;
    struct weft_list link;
};

/* WEFT_OK, or WEFT_ERR_UNSUPPORTED with the reason. */
enum weft_status verbs_watch_join(struct verbs_watcher *watcher, struct weft_error *error);
/* `watcher` is not called again. The caller has released all its ranges. */
void verbs_watch_leave(struct verbs_watcher *watcher);

/* Watches the pages of [start, end); repeated calls are fine. False: memory that cannot be watched (a
 * mapped file, another watcher's). */
bool verbs_watch_range(uintptr_t start, uintptr_t end);
/* Stops watching; reports the range as unmapped to all watchers that know it. */
void verbs_watch_release(uintptr_t start, uintptr_t end);

/* Guards what `unmapped` writes. Between lock and unlock nothing may unmap memory: it would wait for this
 * lock. */
void verbs_watch_lock(void);
void verbs_watch_unlock(void);

#endif
