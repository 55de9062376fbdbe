/* verbs_watch.c - see verbs_watch.h: the userfaultfd, the thread that reads it, and its watchers. */
#include "transport/verbs/device/verbs_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static struct {
    pthread_mutex_t life;   /* join and leave; taken before `lock` */
    pthread_mutex_t lock;   /* guards the watchers, and what their callbacks write */
    struct weft_list watchers;
    uint32_t count;
    int fd, stop_fd;
    pthread_t thread;
} watch = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .stop_fd = -1};

void verbs_watch_lock(void) { pthread_mutex_lock(&watch.lock); }
void verbs_watch_unlock(void) { pthread_mutex_unlock(&watch.lock); }

static uintptr_t page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

static void report_unmapped(uintptr_t start, uintptr_t end)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &watch.watchers) {
        struct verbs_watcher *watcher = weft_container_of(node, struct verbs_watcher, link);
        watcher->unmapped(watcher->context, start, end);
    }
}

/* The unmapping thread continues when the event is read: the ranges must be marked before another thread
 * can see them. */
static void take_events(void)
{
    struct uffd_msg message;
    verbs_watch_lock();
    while (read(watch.fd, &message, sizeof message) == (ssize_t)sizeof message) {
        if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
            report_unmapped((uintptr_t)message.arg.remove.start, (uintptr_t)message.arg.remove.end);
        } else if (message.event == UFFD_EVENT_REMAP) {
            report_unmapped((uintptr_t)message.arg.remap.from,
                 (uintptr_t)(message.arg.remap.from + message.arg.remap.len));
        }
    }
    verbs_watch_unlock();
}

static void *watch_main(void *unused)
{
    struct pollfd ends[] = {{.fd = watch.fd, .events = POLLIN}, {.fd = watch.stop_fd, .events = POLLIN}};
    do {
        if (poll(ends, 2, -1) < 0 && errno != EINTR) break;
        if (ends[0].revents) take_events();
    } while (!ends[1].revents);
    return NULL;
}

static bool start_thread(void)
{
    return weft_thread_start(&watch.thread, "weft unmaps", watch_main, NULL) == 0;
}

static enum weft_status start(struct weft_error *error)
{
    const uint64_t features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
                              UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    const char *step = "userfaultfd";
    watch.fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (watch.fd < 0) goto err;
    step = "userfaultfd's unmap events";
    if (ioctl(watch.fd, UFFDIO_API, &api) != 0) goto err;
    step = "an eventfd";
    watch.stop_fd = eventfd(0, EFD_CLOEXEC);
    if (watch.stop_fd < 0) goto err;
    step = "a thread";
    if (start_thread()) return WEFT_OK;

err:
    weft_error_set(error, WEFT_ERR_UNSUPPORTED, "the system refuses %s (%s)", step, strerror(errno));
    if (watch.fd >= 0) close(watch.fd);
    if (watch.stop_fd >= 0) close(watch.stop_fd);
    watch.fd = watch.stop_fd = -1;
    return WEFT_ERR_UNSUPPORTED;
}

static void stop(void)
{
    uint64_t one = 1;
    while (write(watch.stop_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_join(watch.thread, NULL);
    close(watch.fd);
    close(watch.stop_fd);
    watch.fd = watch.stop_fd = -1;
}

enum weft_status verbs_watch_join(struct verbs_watcher *watcher, struct weft_error *error)
{
    pthread_mutex_lock(&watch.life);
    if (!watch.watchers.next) weft_list_init(&watch.watchers);
    enum weft_status status = watch.count > 0 ? WEFT_OK : start(error);
    if (status == WEFT_OK) {
        watch.count++;
        verbs_watch_lock();
        weft_list_append(&watch.watchers, &watcher->link);
        verbs_watch_unlock();
    }
    pthread_mutex_unlock(&watch.life);
    return status;
}

void verbs_watch_leave(struct verbs_watcher *watcher)
{
    pthread_mutex_lock(&watch.life);
    verbs_watch_lock();
    weft_list_remove(&watcher->link);
    verbs_watch_unlock();
    if (--watch.count == 0) stop();
    pthread_mutex_unlock(&watch.life);
}

static struct uffdio_range pages_of(uintptr_t start, uintptr_t end)
{
    uintptr_t page = page_bytes(), first = start & ~(page - 1), last = (end + page - 1) & ~(page - 1);
    return (struct uffdio_range){.start = first, .len = last - first};
}

bool verbs_watch_range(uintptr_t start_address, uintptr_t end)
{
    struct uffdio_register range = {.range = pages_of(start_address, end), .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(watch.fd, UFFDIO_REGISTER, &range) == 0;
}

void verbs_watch_release(uintptr_t start_address, uintptr_t end)
{
    struct uffdio_range range = pages_of(start_address, end);
    uintptr_t page = page_bytes();
    if (ioctl(watch.fd, UFFDIO_UNREGISTER, &range) != 0) {
        /* Part of the range is other memory by now: handles the rest page by page. */
        for (uintptr_t at = range.start; at < range.start + range.len; at += page) {
            struct uffdio_range one = {.start = at, .len = page};
            (void)ioctl(watch.fd, UFFDIO_UNREGISTER, &one);
        }
    }
    verbs_watch_lock();
    report_unmapped(range.start, range.start + range.len);
    verbs_watch_unlock();
}
